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

// Batch returns the graph as sequences are decoded together, one row of each: every row lies at a position of its own
// on a cache of its own, and all rows have logits, so that the head selects none.
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

// Sparse returns the graph with sparse attention: instead of each node of attention there are four, of which the last
// has its name and result. What comes before attention in the node appends to the cache; scores are estimated,
// positions are selected, and these are attended to.
func (g *Graph) Sparse(sparsity op.Sparsity) Graph {
	out := Graph{Weights: g.Weights}
	for _, section := range g.Sections {
		nodes := section.Nodes
		section.Nodes = nil
		for _, node := range nodes {
			last := len(node.Ops) - 1
			if node.Ops[last].Kind != op.Attention {
				section.Nodes = append(section.Nodes, node)
				continue
			}
			dense := node.Ops[last]
			heads := []string{HeadsWeight(section.Name + "." + node.Name)}
			scores, positions := node.Out[0]+ScoresSuffix, node.Out[0]+PositionsSuffix
			estimate := op.Op{Kind: op.Estimate, Heads: dense.Heads, KVHeads: dense.KVHeads, HeadDim: dense.HeadDim,
				KV: dense.KV, Window: dense.Window, Block: sparsity.Block, Least: sparsity.Least,
				Buckets: sparsity.Buckets, Density: sparsity.Estimated}
			choose := op.Op{Kind: op.Select, Heads: dense.Heads, KVHeads: dense.KVHeads, Window: dense.Window,
				Block: sparsity.Block, Least: sparsity.Least}
			attend := dense
			attend.Kind, attend.Block, attend.Density = op.SparseAttend, sparsity.Block, sparsity.Density
			attend.Rest, attend.Least = sparsity.Rest, sparsity.Least
			section.Nodes = append(section.Nodes,
				Node{Name: node.Name + appendSuffix, Ops: node.Ops[:last:last], In: node.In, W: node.W, Out: node.In},
				Node{Name: node.Name + estimateSuffix, Ops: []op.Op{estimate}, In: node.In, W: heads,
					Out: []string{scores}},
				Node{Name: node.Name + selectSuffix, Ops: []op.Op{choose}, In: []string{scores}, W: heads,
					Out: []string{positions}},
				Node{Name: node.Name, Ops: []op.Op{attend}, In: []string{node.In[0], positions}, Out: node.Out})
		}
		out.Sections = append(out.Sections, section)
	}
	return out
}

// Suffixes of what Sparse adds: nodes, and values. Values have the shapes that their operators say.
const (
	appendSuffix    = "_append"
	estimateSuffix  = "_estimate"
	selectSuffix    = "_select"
	ScoresSuffix    = ".scores"
	PositionsSuffix = ".positions"
)

// SparseNodes returns the names of the nodes that Sparse puts in front of a node of attention, with their kinds.
func SparseNodes(node string) map[string]op.Kind {
	return map[string]op.Kind{node + appendSuffix: op.KVAppend, node + estimateSuffix: op.Estimate,
		node + selectSuffix: op.Select}
}

// HeadsWeight returns the name of the weight f32 [1,3*heads] that says for a node of attention how its heads are
// rounded and how many positions they keep (op.Estimate).
func HeadsWeight(class string) string { return class + ".heads" }

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
