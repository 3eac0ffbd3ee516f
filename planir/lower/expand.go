// Package lower knows how decisions become a program: it makes quantisation steps explicit, cuts
// operators into the decided shares, assigns buffers and packed weights, and orders the lanes with
// the fewest flags that its analysis can show to be needed.
package lower

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
)

// Node is one node of a model graph at a number of rows, with its scheme fixed. Solver and lowering
// see the same nodes, so that what is priced is what is executed.
type Node struct {
	Name string // "layers.qkv"
	Ops  []op.Op
	In   []string
	W    []string
	Out  []string
}

// Op is the node's main operator: the last of its chain.
func (n *Node) Op() op.Op { return n.Ops[len(n.Ops)-1] }

// Section is a section of a model graph at a number of rows.
type Section struct {
	Name   string
	First  int
	Layers int
	Logits bool
	Values map[string]Value
	Nodes  []Node
}

// Value is the type and shape of an activation: Rows rows, Fan of them per token.
type Value struct {
	Type op.Type
	Rows int
	Cols int
	Fan  int
}

// Expand fixes rows, context and schemes: matmuls get the scheme that schemeOf returns for their
// name (exact ones float32), an embedding op.I32Q8C if that is returned for it, and where it quantises activations a node NAME_quant precedes the first
// matmul that reads the value. Such a node is decided about like any other. Its scale may be static: it is then the
// weight ScaleWeight of that matmul, and no weight of the model. A matmul on a grid takes its steps as the weight
// StepsWeight behind its own.
func Expand(g *models.Graph, rows, context int, kv op.Type, schemeOf func(node string) op.Scheme) ([]Section, error) {
	var out []Section
	for _, ms := range g.Sections {
		s := Section{Name: ms.Name, First: ms.First, Layers: ms.Layers, Values: map[string]Value{}}
		for _, v := range ms.Values {
			x := Value{op.F32, rows * max(1, v.Fan), v.Cols, max(1, v.Fan)}
			if v.Rows1 {
				x.Rows, s.Logits = 1, true
			}
			if v.Type != "" {
				x.Type = v.Type
			}
			s.Values[v.Name] = x
		}
		quantised := map[string]bool{} // by what holds the result
		for _, mn := range ms.Nodes {
			name := ms.Name + "." + mn.Name
			n := Node{Name: name, In: append([]string(nil), mn.In...), W: mn.W, Out: mn.Out}
			m := rows
			if len(mn.Out) > 0 && mn.Ops[0].Kind != op.SelectRow {
				out := s.Values[mn.Out[0]]
				m = out.Rows / out.Fan
			}
			n.Ops = mn.At(m, context)
			for i := range n.Ops {
				o := &n.Ops[i]
				if o.Kind.Has("kv") {
					o.KV = kv
				}
				switch o.Kind {
				case op.Embed:
					if schemeOf(name) != op.I32Q8C {
						break
					}
					if mn.Packed == "" {
						return nil, fmt.Errorf("node %q: scheme %q, and no weight of a product holds the same matrix", name, op.I32Q8C)
					}
					o.Scheme, o.Table, n.W = op.I32Q8C, "", []string{mn.Packed}
				case op.MatMul, op.ExpertMatMul:
					if o.Scheme = op.A32W32; !mn.Exact {
						o.Scheme = schemeOf(name)
					}
					if _, err := op.ParseScheme(string(o.Scheme)); err != nil {
						return nil, fmt.Errorf("node %q: %w", name, err)
					}
					if o.Scheme.Grid() {
						n.W = append(slices.Clone(n.W), StepsWeight(name))
					}
					if !o.Scheme.QuantisedRows() {
						break
					}
					x := n.In[0]
					q, sc, suffix := x+".q", x+".s", "_quant"
					if o.Scheme.Static() {
						several := scalesSuffix(o.Scheme.Scales())
						q, sc, suffix = x+".qs"+several, x+".ss"+several, "_static"+several
					}
					if !quantised[q] {
						v := s.Values[x]
						s.Values[q] = Value{op.U8, v.Rows, v.Cols, v.Fan}
						s.Values[sc] = Value{op.F32, v.Rows, 1, v.Fan}
						quant := o.Scheme.QuantRows(v.Rows/v.Fan, v.Cols, v.Fan)
						node := Node{
							Name: name + suffix,
							Ops:  []op.Op{quant},
							In:   []string{x}, Out: []string{q, sc},
						}
						if quant.Static {
							node.W = []string{ScaleWeight(name, o.Scheme.Scales())}
						}
						s.Nodes = append(s.Nodes, node)
						quantised[q] = true
					}
					n.In = append([]string{q, sc}, n.In[1:]...)
				}
				if err := o.Validate(); err != nil {
					return nil, fmt.Errorf("node %q: %w", name, err)
				}
			}
			for _, v := range n.Out {
				delete(quantised, v+".q")
				for _, several := range scaleCounts {
					delete(quantised, v+".qs"+scalesSuffix(several))
				}
			}
			s.Nodes = append(s.Nodes, n)
		}
		out = append(out, s)
	}
	return out, nil
}

// scaleCounts are the numbers of static scales that schemes have.
var scaleCounts = []int{1, 2, 4}

// scalesSuffix tells apart what depends on the number of static scales.
func scalesSuffix(scales int) string {
	if scales == 1 {
		return ""
	}
	return strconv.Itoa(scales)
}

// ScaleWeight is the name of the weight f32 [1,scales] that holds the static scales of what enters the products of a class,
// named as decisions name nodes.
func ScaleWeight(class string, scales int) string { return class + ".scale" + scalesSuffix(scales) }

// Computed are the weights that a class of products may have and no model has: its static scales and its steps.
func Computed(class string) []string {
	var out []string
	for _, n := range scaleCounts {
		out = append(out, ScaleWeight(class, n))
	}
	return append(out, StepsWeight(class))
}

// Quantising are the names of the nodes that quantise what enters a product.
func Quantising(node string) []string {
	out := []string{node + "_quant"}
	for _, n := range scaleCounts {
		out = append(out, node+"_static"+scalesSuffix(n))
	}
	return out
}

// StepsWeight is the name of the weight f32 [2,N] that holds the steps of a product on a grid (op.Scheme.Grid): of what
// enters it and of what it computes.
func StepsWeight(class string) string { return class + ".steps" }
