package models

import (
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// FoldGroup is a place where factors s [K], one per channel and all positive, can be moved through a model without
// changing what it computes: the outputs of one weight are divided by s, and the rows of every weight that
// reads them are multiplied by s (SmoothQuant sec. 4). Each layer has its own factors; all experts of a
// layer share them.
type FoldGroup struct {
	Name     string     // the first of Divide: "layers.attn_norm", "layers.ffn_gate_up"
	K        int        // channels
	Divide   []FoldPart // the gain of a norm and its bias, or the columns of up and their bias
	Multiply []string   // weights whose rows are multiplied
	Readers  []string   // classes that read the divided outputs, as decisions name nodes: "layers.qkv"
}

// FoldPart is the columns that are divided: those of one source of a weight, see Weight.Interleave (0 where
// there is one source). Column i of the source belongs to factor i.
type FoldPart struct {
	Weight string
	Source int
}

// Folds lists the groups of the graph in the order of its nodes: norms whose results enter nothing but matrix
// products, and gated products that enter nothing but matrix products, by their up columns. A weight
// has at most one group that multiplies its rows and one that divides its columns.
func (g *Graph) Folds() []FoldGroup {
	f := &folds{bad: map[string]bool{}, behind: map[string]map[string]bool{}}
	for i := range g.Sections {
		f.section(g, &g.Sections[i])
	}
	return slices.DeleteFunc(f.groups, func(group FoldGroup) bool {
		return f.bad[group.Name] || slices.ContainsFunc(group.Multiply, func(w string) bool { return len(f.behind[w]) > 1 })
	})
}

// folds collects groups while Folds walks the sections. One name may stand in several sections, and
// all must permit it: a class of layers that reads a norm elsewhere spoils the group for every layer.
type folds struct {
	groups []FoldGroup
	bad    map[string]bool            // groups that some section does not permit
	behind map[string]map[string]bool // by weight of a product: the groups in front of it, "" for none
}

// group returns the collected group of that name, a new one if there is none.
func (f *folds) group(divide []FoldPart, channels int) *FoldGroup {
	at := slices.IndexFunc(f.groups, func(group FoldGroup) bool { return group.Name == divide[0].Weight })
	if at < 0 {
		at = len(f.groups)
		f.groups = append(f.groups, FoldGroup{Name: divide[0].Weight, Divide: divide, K: channels})
	}
	return &f.groups[at]
}

// section collects what a section divides and multiplies.
func (f *folds) section(g *Graph, section *Section) {
	// First pass: writers whose results can be divided, and the readers of these.
	front := make([]string, len(section.Nodes)) // the group in front of each node
	for at := range section.Nodes {
		writer := &section.Nodes[at]
		divide := g.divisible(section, at)
		if divide == nil {
			continue
		}
		group := f.group(divide, writer.Ops[0].N)
		readers := section.readers(at, writer.Out[0])
		f.bad[group.Name] = f.bad[group.Name] || len(readers) == 0
		for _, reader := range readers {
			node := &section.Nodes[reader]
			front[reader] = group.Name
			if !node.isProduct() || slices.Index(node.In, writer.Out[0]) != 0 {
				f.bad[group.Name] = true
				continue
			}
			group.Multiply = appendNew(group.Multiply, node.W[0])
			group.Readers = appendNew(group.Readers, section.Name+"."+node.Name)
		}
	}
	// Second pass: a weight that is read behind different groups, or behind one and behind none, cannot be folded.
	for at := range section.Nodes {
		if node := &section.Nodes[at]; node.isProduct() {
			if f.behind[node.W[0]] == nil {
				f.behind[node.W[0]] = map[string]bool{}
			}
			f.behind[node.W[0]][front[at]] = true
		}
	}
}

// isProduct reports whether a node is nothing but a product by a matrix.
func (n *Node) isProduct() bool { return len(n.Ops) == 1 && n.Ops[0].HasScheme() }

// appendNew appends x unless the list has it.
func appendNew(list []string, x string) []string {
	if slices.Contains(list, x) {
		return list
	}
	return append(list, x)
}

// divisible returns what has to be divided so that the result of a section's node is: a norm's gain and bias, or the up
// columns in front of a gated unit. It is nil where nothing does that.
func (g *Graph) divisible(section *Section, number int) []FoldPart {
	node := &section.Nodes[number]
	if len(node.Ops) != 1 {
		return nil
	}
	switch operator := node.Ops[0]; operator.Kind {
	case op.Norm, op.LayerNorm:
		parts := make([]FoldPart, len(node.W)) // gain, bias
		for i, name := range node.W {
			parts[i].Weight = name
		}
		return parts
	case op.GLU:
		at := number - 1 // of the product that it reads
		for at >= 0 && !slices.Contains(section.Nodes[at].Out, node.In[0]) {
			at--
		}
		if at < 0 || !section.Nodes[at].isProduct() {
			return nil
		}
		if !slices.Equal(section.readers(at, node.In[0]), []int{number}) {
			return nil
		}
		var parts []FoldPart
		for _, name := range section.Nodes[at].W { // the matrix and its bias
			if !slices.Equal(g.Weight(name).Interleave, []int{operator.Interleave, operator.Interleave}) {
				return nil // gate and up cannot be told apart
			}
			parts = append(parts, FoldPart{Weight: name, Source: 1})
		}
		return parts
	}
	return nil
}

// readers returns the nodes that read what a node writes to a value, up to the next that writes it, in the next layer
// too.
func (s *Section) readers(writer int, value string) []int {
	var out []int
	for i := 1; i < len(s.Nodes); i++ {
		reader := (writer + i) % len(s.Nodes)
		if reader < writer && s.Layers == 0 {
			break
		}
		node := &s.Nodes[reader]
		if slices.Contains(node.In, value) {
			out = append(out, reader)
		}
		if slices.Contains(node.Out, value) {
			break
		}
	}
	return out
}
