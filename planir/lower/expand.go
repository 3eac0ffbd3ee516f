// Package lower knows how decisions become a program: it makes quantisation steps explicit, cuts
// operators into the decided shares, assigns buffers and packed weights, and orders the lanes with
// the fewest flags that its analysis can show to be needed.
package lower

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
)

// Node is one node of a model graph at a number of rows, with its scheme fixed. Solver and lowering
// see the same nodes, so that what is priced is what is executed.
type Node struct {
	Name string   // "layers.qkv"
	Ops  []op.Op  // a chain, executed by one step; the last one is what is decided about
	In   []string // values read, in the operands' order
	W    []string // weights read
	Out  []string // values written; one that is also read is changed in place
}

// Op is the node's main operator: the last of its chain.
func (n *Node) Op() op.Op { return n.Ops[len(n.Ops)-1] }

// Section is a section of a model graph at a number of rows.
type Section struct {
	Name   string           // "layers"
	First  int              // layer
	Layers int              // how often it repeats; 0: it is run once and belongs to no layer
	Logits bool             // it is run once for each row whose logits are wanted
	Values map[string]Value // all that its nodes read and write
	Nodes  []Node           // in an order in which one processor could execute them
}

// Value is the type and shape of an activation: Rows rows, Fan of them per token.
type Value struct {
	Type op.Type
	Rows int // tokens times Fan
	Cols int
	Fan  int // rows of one token, at least 1
}

// Expand fixes rows, context and schemes: matmuls get the scheme that schemeOf returns for their name (exact ones
// float32), an embedding op.I32Q8C if that is returned for it, and where it quantises activations a node NAME_quant
// precedes the first matmul that reads the value. Such a node is decided about like any other. Its scale may be static:
// it is then the weight ScaleWeight of that matmul, and no weight of the model. A matmul on a grid takes its steps as
// the weight StepsWeight behind its own.
func Expand(
	graph *models.Graph, rows, context int, kv op.Type, schemeOf func(node string) op.Scheme,
) (out []Section, err error) {
	for i := range graph.Sections {
		model := &graph.Sections[i]
		state := expansion{kv: kv, schemeOf: schemeOf, quantised: map[string]bool{}}
		state.section = Section{Name: model.Name, First: model.First, Layers: model.Layers, Values: map[string]Value{}}
		for _, described := range model.Values {
			value := Value{op.F32, rows * max(1, described.Fan), described.Cols, max(1, described.Fan)}
			if described.Rows1 {
				value.Rows, state.section.Logits = 1, true
			}
			value.Type = cmp.Or(described.Type, value.Type)
			state.section.Values[described.Name] = value
		}
		for j := range model.Nodes {
			if err := state.node(&model.Nodes[j], rows, context); err != nil {
				return nil, err
			}
		}
		out = append(out, state.section)
	}
	return out, nil
}

// expansion is the state of expanding a section.
type expansion struct {
	section   Section
	kv        op.Type
	schemeOf  func(node string) op.Scheme
	quantised map[string]bool // values that hold the quantised form of another one, which nothing changed since
}

// node expands a node of the model, with the node that quantises what it reads where there is none yet.
func (e *expansion) node(model *models.Node, rows, context int) error {
	name := e.section.Name + "." + model.Name
	node := Node{Name: name, In: slices.Clone(model.In), W: model.W, Out: model.Out}
	if len(model.Out) > 0 && model.Ops[0].Kind != op.SelectRow {
		result := e.section.Values[model.Out[0]]
		rows = result.Rows / result.Fan
	}
	node.Ops = model.At(rows, context)
	for i := range node.Ops {
		operator := &node.Ops[i]
		if operator.Kind.Has("kv") {
			operator.KV = e.kv
		}
		var err error
		switch operator.Kind {
		case op.Embed:
			err = e.embedding(model, &node, operator)
		case op.MatMul, op.ExpertMatMul:
			err = e.product(model, &node, operator)
		}
		if err == nil {
			err = operator.Validate()
		}
		if err != nil {
			return fmt.Errorf("node %q: %w", name, err)
		}
	}
	// The quantised form of a value that is written anew is stale.
	for _, changed := range node.Out {
		delete(e.quantised, changed+".q")
		for _, scales := range scaleCounts {
			delete(e.quantised, changed+".qs"+scalesSuffix(scales))
		}
	}
	e.section.Nodes = append(e.section.Nodes, node)
	return nil
}

// embedding looks rows up in the packed weight of a product, if that is the scheme.
func (e *expansion) embedding(model *models.Node, node *Node, operator *op.Op) error {
	if e.schemeOf(node.Name) != op.I32Q8C {
		return nil
	}
	if model.Packed == "" {
		return fmt.Errorf("scheme %q, and no weight of a product holds the same matrix", op.I32Q8C)
	}
	operator.Scheme, operator.Table, node.W = op.I32Q8C, "", []string{model.Packed}
	return nil
}

// product gives a product its scheme, the steps of its grid, and quantised rows to read.
func (e *expansion) product(model *models.Node, node *Node, operator *op.Op) error {
	operator.Scheme = op.A32W32
	if !model.Exact {
		operator.Scheme = e.schemeOf(node.Name)
	}
	if _, err := op.ParseScheme(string(operator.Scheme)); err != nil {
		return err
	}
	if operator.Scheme.Grid() {
		node.W = append(slices.Clone(node.W), StepsWeight(node.Name))
	}
	if operator.Scheme.QuantisedRows() {
		codes, scales := e.quantise(node, operator.Scheme)
		node.In = append([]string{codes, scales}, node.In[1:]...)
	}
	return nil
}

// quantise returns the values that hold the quantised form of a product's input, and adds the node that computes them
// where none did.
func (e *expansion) quantise(product *Node, scheme op.Scheme) (codes, scales string) {
	input := product.In[0]
	codes, scales, suffix := input+".q", input+".s", "_quant"
	if scheme.Static() {
		several := scalesSuffix(scheme.Scales())
		codes, scales, suffix = input+".qs"+several, input+".ss"+several, "_static"+several
	}
	if e.quantised[codes] {
		return codes, scales
	}
	e.quantised[codes] = true
	value := e.section.Values[input]
	e.section.Values[codes] = Value{op.U8, value.Rows, value.Cols, value.Fan}
	e.section.Values[scales] = Value{op.F32, value.Rows, 1, value.Fan}
	quant := scheme.QuantRows(value.Rows/value.Fan, value.Cols, value.Fan)
	node := Node{
		Name: product.Name + suffix, Ops: []op.Op{quant}, In: []string{input}, Out: []string{codes, scales},
	}
	if quant.Static {
		node.W = []string{ScaleWeight(product.Name, scheme.Scales())}
	}
	e.section.Nodes = append(e.section.Nodes, node)
	return codes, scales
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
