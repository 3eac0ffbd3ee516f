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
	var out []FoldGroup
	bad := map[string]bool{}               // groups that some section does not permit
	behind := map[string]map[string]bool{} // by weight of a product: the groups in front of it, "" for none
	for i := range g.Sections {
		section := &g.Sections[i]
		group := make([]string, len(section.Nodes)) // in front of each node
		for at := range section.Nodes {
			parts := g.divisible(section, at)
			if parts == nil {
				continue
			}
			name := parts[0].Weight
			readers := section.readers(at, section.Nodes[at].Out[0])
			j := slices.IndexFunc(out, func(f FoldGroup) bool { return f.Name == name })
			if j < 0 {
				j = len(out)
				out = append(out, FoldGroup{Name: name, Divide: parts, K: section.Nodes[at].Ops[0].N})
			}
			bad[name] = bad[name] || len(readers) == 0
			for _, reader := range readers {
				node := &section.Nodes[reader]
				group[reader] = name
				if len(node.Ops) != 1 || !node.Ops[0].HasScheme() || slices.Index(node.In, section.Nodes[at].Out[0]) != 0 {
					bad[name] = true
					continue
				}
				out[j].Multiply = appendNew(out[j].Multiply, node.W[0])
				out[j].Readers = appendNew(out[j].Readers, section.Name+"."+node.Name)
			}
		}
		for at, node := range section.Nodes {
			if len(node.Ops) == 1 && node.Ops[0].HasScheme() {
				if behind[node.W[0]] == nil {
					behind[node.W[0]] = map[string]bool{}
				}
				behind[node.W[0]][group[at]] = true
			}
		}
	}
	return slices.DeleteFunc(out, func(f FoldGroup) bool {
		return bad[f.Name] || slices.ContainsFunc(f.Multiply, func(w string) bool { return len(behind[w]) > 1 })
	})
}

func appendNew(list []string, x string) []string {
	if slices.Contains(list, x) {
		return list
	}
	return append(list, x)
}

// divisible is what divides the result of node k of s by factors, nil where nothing does.
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
		at := -1 // the product that it reads
		for i := range section.Nodes[:number] {
			if slices.Contains(section.Nodes[i].Out, node.In[0]) {
				at = i
			}
		}
		if at < 0 || len(section.Nodes[at].Ops) != 1 || !section.Nodes[at].Ops[0].HasScheme() || !slices.Equal(section.readers(at, node.In[0]), []int{number}) {
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

// readers are the nodes that read what node k writes to a value, in the next layer too.
func (s *Section) readers(k int, value string) []int {
	var out []int
	for i := 1; i < len(s.Nodes); i++ {
		reader := (k + i) % len(s.Nodes)
		if reader < k && s.Layers == 0 {
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
