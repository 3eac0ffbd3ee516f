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

// Expand fixes rows, context and schemes: matmuls get the scheme that schemeOf returns for their name (exact ones
// float32), an embedding op.I32Q8C if that is returned for it, and where it quantises activations a node NAME_quant
// precedes the first matmul that reads the value. Such a node is decided about like any other. Its scale may be static:
// it is then the weight ScaleWeight of that matmul, and no weight of the model. A matmul on a grid takes its steps as
// the weight StepsWeight behind its own.
func Expand(graph *models.Graph, rows, context int, kv op.Type, schemeOf func(node string) op.Scheme) ([]Section,
	error) {
	var out []Section
	for _, ms := range graph.Sections {
		section := Section{Name: ms.Name, First: ms.First, Layers: ms.Layers, Values: map[string]Value{}}
		for _, described := range ms.Values {
			value := Value{op.F32, rows * max(1, described.Fan), described.Cols, max(1, described.Fan)}
			if described.Rows1 {
				value.Rows, section.Logits = 1, true
			}
			if described.Type != "" {
				value.Type = described.Type
			}
			section.Values[described.Name] = value
		}
		quantised := map[string]bool{} // by what holds the result
		for _, mn := range ms.Nodes {
			name := ms.Name + "." + mn.Name
			node := Node{Name: name, In: append([]string(nil), mn.In...), W: mn.W, Out: mn.Out}
			tokens := rows
			if len(mn.Out) > 0 && mn.Ops[0].Kind != op.SelectRow {
				out := section.Values[mn.Out[0]]
				tokens = out.Rows / out.Fan
			}
			node.Ops = mn.At(tokens, context)
			for i := range node.Ops {
				operator := &node.Ops[i]
				if operator.Kind.Has("kv") {
					operator.KV = kv
				}
				switch operator.Kind {
				case op.Embed:
					if schemeOf(name) != op.I32Q8C {
						break
					}
					if mn.Packed == "" {
						return nil, fmt.Errorf("node %q: scheme %q, and no weight of a product holds the same matrix",
							name, op.I32Q8C)
					}
					operator.Scheme, operator.Table, node.W = op.I32Q8C, "", []string{mn.Packed}
				case op.MatMul, op.ExpertMatMul:
					if operator.Scheme = op.A32W32; !mn.Exact {
						operator.Scheme = schemeOf(name)
					}
					if _, err := op.ParseScheme(string(operator.Scheme)); err != nil {
						return nil, fmt.Errorf("node %q: %w", name, err)
					}
					if operator.Scheme.Grid() {
						node.W = append(slices.Clone(node.W), StepsWeight(name))
					}
					if !operator.Scheme.QuantisedRows() {
						break
					}
					input := node.In[0]
					codes, sc, suffix := input+".q", input+".s", "_quant"
					if operator.Scheme.Static() {
						several := scalesSuffix(operator.Scheme.Scales())
						codes, sc, suffix = input+".qs"+several, input+".ss"+several, "_static"+several
					}
					if !quantised[codes] {
						value := section.Values[input]
						section.Values[codes] = Value{op.U8, value.Rows, value.Cols, value.Fan}
						section.Values[sc] = Value{op.F32, value.Rows, 1, value.Fan}
						quant := operator.Scheme.QuantRows(value.Rows/value.Fan, value.Cols, value.Fan)
						node := Node{
							Name: name + suffix,
							Ops:  []op.Op{quant},
							In:   []string{input}, Out: []string{codes, sc},
						}
						if quant.Static {
							node.W = []string{ScaleWeight(name, operator.Scheme.Scales())}
						}
						section.Nodes = append(section.Nodes, node)
						quantised[codes] = true
					}
					node.In = append([]string{codes, sc}, node.In[1:]...)
				}
				if err := operator.Validate(); err != nil {
					return nil, fmt.Errorf("node %q: %w", name, err)
				}
			}
			for _, name := range node.Out {
				delete(quantised, name+".q")
				for _, several := range scaleCounts {
					delete(quantised, name+".qs"+scalesSuffix(several))
				}
			}
			section.Nodes = append(section.Nodes, node)
		}
		out = append(out, section)
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

// ScaleWeight is the name of the weight f32 [1,scales] that holds the static scales of what enters the products of a
// class, named as decisions name nodes.
func ScaleWeight(class string, scales int) string { return class + ".scale" + scalesSuffix(scales) }

// Computed are the weights that a class of products may have and no model has: its static scales and its steps.
func Computed(class string) []string {
	var out []string
	for _, scales := range scaleCounts {
		out = append(out, ScaleWeight(class, scales))
	}
	return append(out, StepsWeight(class))
}

// Quantising are the names of the nodes that quantise what enters a product.
func Quantising(node string) []string {
	out := []string{node + "_quant"}
	for _, scales := range scaleCounts {
		out = append(out, node+"_static"+scalesSuffix(scales))
	}
	return out
}

// StepsWeight is the name of the weight f32 [2,N] that holds the steps of a product on a grid (op.Scheme.Grid): of what
// enters it and of what it computes.
func StepsWeight(class string) string { return class + ".steps" }
