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
		s := &g.Sections[i]
		group := make([]string, len(s.Nodes)) // in front of each node
		for k := range s.Nodes {
			parts := g.divisible(s, k)
			if parts == nil {
				continue
			}
			name := parts[0].Weight
			readers := s.readers(k, s.Nodes[k].Out[0])
			j := slices.IndexFunc(out, func(f FoldGroup) bool { return f.Name == name })
			if j < 0 {
				j = len(out)
				out = append(out, FoldGroup{Name: name, Divide: parts, K: s.Nodes[k].Ops[0].N})
			}
			bad[name] = bad[name] || len(readers) == 0
			for _, r := range readers {
				n := &s.Nodes[r]
				group[r] = name
				if len(n.Ops) != 1 || !n.Ops[0].HasScheme() || slices.Index(n.In, s.Nodes[k].Out[0]) != 0 {
					bad[name] = true
					continue
				}
				out[j].Multiply = appendNew(out[j].Multiply, n.W[0])
				out[j].Readers = appendNew(out[j].Readers, s.Name+"."+n.Name)
			}
		}
		for k, n := range s.Nodes {
			if len(n.Ops) == 1 && n.Ops[0].HasScheme() {
				if behind[n.W[0]] == nil {
					behind[n.W[0]] = map[string]bool{}
				}
				behind[n.W[0]][group[k]] = true
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
func (g *Graph) divisible(s *Section, k int) []FoldPart {
	n := &s.Nodes[k]
	if len(n.Ops) != 1 {
		return nil
	}
	switch o := n.Ops[0]; o.Kind {
	case op.Norm, op.LayerNorm:
		parts := make([]FoldPart, len(n.W)) // gain, bias
		for i, w := range n.W {
			parts[i].Weight = w
		}
		return parts
	case op.GLU:
		at := -1 // the product that it reads
		for i := range s.Nodes[:k] {
			if slices.Contains(s.Nodes[i].Out, n.In[0]) {
				at = i
			}
		}
		if at < 0 || len(s.Nodes[at].Ops) != 1 || !s.Nodes[at].Ops[0].HasScheme() || !slices.Equal(s.readers(at, n.In[0]), []int{k}) {
			return nil
		}
		var parts []FoldPart
		for _, w := range s.Nodes[at].W { // the matrix and its bias
			if !slices.Equal(g.Weight(w).Interleave, []int{o.Interleave, o.Interleave}) {
				return nil // gate and up cannot be told apart
			}
			parts = append(parts, FoldPart{Weight: w, Source: 1})
		}
		return parts
	}
	return nil
}

// readers are the nodes that read what node k writes to a value, in the next layer too.
func (s *Section) readers(k int, value string) []int {
	var out []int
	for i := 1; i < len(s.Nodes); i++ {
		r := (k + i) % len(s.Nodes)
		if r < k && s.Layers == 0 {
			break
		}
		n := &s.Nodes[r]
		if slices.Contains(n.In, value) {
			out = append(out, r)
		}
		if slices.Contains(n.Out, value) {
			break
		}
	}
	return out
}
