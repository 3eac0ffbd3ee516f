package models

import (
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// Graph is what a model computes, independent of processors, schemes and sequence lengths. Sections
// run in order; a section with Layers > 0 runs once per layer with that layer's weights. Layers of one
// class (dense or with experts, windowed or not) that do not follow one another are sections of one
// name with the same nodes and other First.
type Graph struct {
	Sections []Section
	Weights  []op.Weight // every weight a node names, in a fixed order; without layers and folds
}

// Section is a sequence of nodes over named values ("x" [M,Hidden] carries the residual stream
// between sections).
type Section struct {
	Name   string // "embed", "layers", "head"
	First  int    // its first layer
	Layers int    // 0: once
	Values []Value
	Nodes  []Node
}

// Value is an activation [M*Fan,Cols]. Rows1 marks values of the head, which has one row whatever M is.
type Value struct {
	Name  string
	Type  op.Type // "": f32
	Fan   int     // rows per token; 0: 1
	Cols  int
	Rows1 bool
}

// Node is the unit a plan decides about: operators that always run together on the same rows or heads.
// Ops are templates whose M and Context are filled in by At. Except for the attention node
// (qk_norm, rope, kv_append, attention over one fused QKV value) it holds one operator.
type Node struct {
	Name  string // "qkv", "attention", "ffn_down"
	Exact bool   // computed in float32 whatever precision is permitted: a rounded router chooses other experts
	Ops   []op.Op
	In    []string // values
	W     []string // weights
	// Packed, of an embedding, is the weight of a product that holds the same matrix transposed: that of a tied
	// head. It follows from the rest, and is no part of a digest.
	Packed string   `json:"-"`
	Out    []string // values
}

// Batch is the graph as sequences are decoded together, one row of each: every row lies at a position of its own on a
// cache of its own, and all rows have logits, so that the head selects none.
func (g *Graph) Batch() Graph {
	out := Graph{Weights: g.Weights}
	for _, section := range g.Sections {
		section.Values, section.Nodes = slices.Clone(section.Values), slices.Clone(section.Nodes)
		for i := range section.Values {
			section.Values[i].Rows1 = false
		}
		// Readers of a selected row read all rows instead.
		selected := map[string]string{} // by the selection's result, what it selects from
		section.Nodes = slices.DeleteFunc(section.Nodes, func(n Node) bool {
			if n.Ops[0].Kind != op.SelectRow {
				return false
			}
			selected[n.Out[0]] = n.In[0]
			return true
		})
		for i := range section.Nodes {
			node := &section.Nodes[i]
			node.In, node.Out, node.Ops = slices.Clone(node.In), slices.Clone(node.Out), slices.Clone(node.Ops)
			for _, names := range [][]string{node.In, node.Out} {
				for at, value := range names {
					if all, ok := selected[value]; ok {
						names[at] = all
					}
				}
			}
			for at := range node.Ops {
				operator := &node.Ops[at]
				operator.Batch = operator.Kind.Has("batch")
			}
		}
		out.Sections = append(out.Sections, section)
	}
	return out
}

// At returns the node's operators for m rows and a context of ctx cached positions.
func (n *Node) At(m, ctx int) []op.Op {
	out := make([]op.Op, len(n.Ops))
	for i, operator := range n.Ops {
		operator.M = m
		if operator.Kind.Has("context") {
			operator.Context = ctx
		}
		out[i] = operator
	}
	return out
}
