// Package lower knows how decisions become a program: it makes quantisation steps explicit, cuts
// operators into the decided shares, assigns buffers and packed weights, and orders the lanes with
// the fewest flags that its analysis can show to be needed.
//
// Lower (lower.go) walks through the steps: Expand (expand.go) makes a section's nodes, Cut (cut.go) the pieces of a
// decision, fuse.go joins what one step can execute, sync.go adds flags. groups.go, heads.go and inflight.go do the
// same for groups of experts, heads in a pipeline and chunks in flight.
package lower

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
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
	// Gated: it is a product whose results the gated linear unit behind it takes, and no other node; or that unit.
	Gated bool
	// Slots is where the rows of a node of a group of experts are reserved, nil for rows that are tokens.
	Slots *Slots
}

// Op returns the node's main operator: the last of its chain.
func (n *Node) Op() op.Op { return n.Ops[len(n.Ops)-1] }

// Section is a section of a model graph at a number of rows.
type Section struct {
	Name   string // "layers"
	First  int    // layer
	Layers int    // how often it repeats; 0: it is run once and belongs to no layer
	Logits bool   // it is run once for each row whose logits are wanted

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

// Expand fixes rows, context and schemes of a model's graph, and adds the nodes that its schemes need.
//
//   - A product gets the scheme that schemeOf returns for its name; an exact one is computed in float32. An embedding
//     that gets op.I32Q8C or op.I32Q6C looks rows up in the weight of a product.
//   - Where a scheme quantises activations, a node NAME_quant precedes the first product that reads the value. It is
//     decided about like any other node. If its scale is static, that is the weight ScaleWeight of the product.
//   - A product on a grid reads its steps from the weight StepsWeight, behind its own weight.
//   - A product with shadow outliers is followed by two nodes. NAME_outliers multiplies what the static scale cuts off,
//     in passes of as many channels as channels returns for the product's name and rows (0, nil: the usual number).
//     NAME_merge adds that to the result.
//   - With tiers (nil: none) experts are executed by groups as well (see groups.go).
func Expand(
	graph *models.Graph, rows, context int, kv op.Type, schemeOf func(node string) op.Scheme, tiers *planir.ExpertTiers,
	channels func(node string, rows int) int,
) (out []Section, err error) {
	for i := range graph.Sections {
		model := &graph.Sections[i]
		state := expansion{kv: kv, schemeOf: schemeOf, quantised: map[string]string{}, tiers: tiers,
			channels: channels}
		state.section = Section{Name: model.Name, First: model.First, Layers: model.Layers, Values: map[string]Value{}}

		for _, described := range model.Values {
			value := Value{op.F32, rows * max(1, described.Fan), described.Cols, max(1, described.Fan)}
			if described.Rows1 {
				value.Rows, state.section.Logits = 1, true
			}
			value.Type = cmp.Or(described.Type, value.Type)
			state.section.Values[described.Name] = value
		}

		for j := 0; j < len(model.Nodes); j++ {
			if tiers != nil && model.Nodes[j].Ops[0].Kind == op.ExpertMatMul {
				if err := state.expandGroups(model.Nodes[j:], rows, context); err != nil {
					return nil, err
				}
				j += expertNodes - 1
				continue
			}
			if err := state.expandNode(&model.Nodes[j], rows, context); err != nil {
				return nil, err
			}
		}
		state.section.markGated()
		out = append(out, state.section)
	}
	return out, nil
}

// markGated sets Gated of the nodes.
func (s *Section) markGated() {
	for i := range s.Nodes[:max(0, len(s.Nodes)-1)] {
		product, unit := &s.Nodes[i], &s.Nodes[i+1]
		if len(product.Ops) != 1 || len(unit.Ops) != 1 || !product.Ops[0].GatedBy(&unit.Ops[0]) {
			continue
		}
		reads := 0
		for _, node := range s.Nodes {
			if slices.Contains(node.In, product.Out[0]) {
				reads++
			}
		}
		if unit.In[0] == product.Out[0] && reads == 1 {
			product.Gated, unit.Gated = true, true
		}
	}
}

// expansion is the state of expanding a section.
type expansion struct {
	section  Section
	kv       op.Type
	schemeOf func(node string) op.Scheme
	tiers    *planir.ExpertTiers             // nil: none
	channels func(node string, rows int) int // nil: the usual number
	slots    *Slots                          // of the group whose nodes are being expanded, nil: of none

	// quantised has the values that hold the quantised form of another one, which nothing changed since, and the weight
	// that is their static scale, "" for a scale of each row.
	quantised map[string]string
}

// class returns the class of a node's products, which names its calibration.
func (e *expansion) class(node string) string {
	if e.slots != nil {
		return e.slots.Class
	}
	return node
}

// expandNode expands a node of the model, with the node that quantises what it reads where there is none yet.
func (e *expansion) expandNode(model *models.Node, rows, context int) error {
	name := e.section.Name + "." + model.Name
	node := Node{Name: name, In: slices.Clone(model.In), W: model.W, Out: model.Out, Slots: e.slots}

	if len(model.Out) > 0 && model.Ops[0].Kind != op.SelectRow {
		// Scores and positions, which no model lists, are of the rows that there are.
		if result, listed := e.section.Values[model.Out[0]]; listed {
			rows = result.Rows / result.Fan
		}
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
		case op.MatMul, op.ExpertMatMul, op.GroupMatMul:
			err = e.product(model, &node, operator)
		}

		if err == nil {
			err = operator.Validate()
		}
		if err != nil {
			return fmt.Errorf("node %q: %w", name, err)
		}
	}

	e.addNode(&node)
	if operator := node.Op(); operator.Kind == op.MatMul && operator.Scheme.Shadow() {
		return e.addOutliers(&node, model.In[0])
	}
	return nil
}

// addNode adds a node to the section, with the values that it writes. A quantised form of such a value is stale now.
func (e *expansion) addNode(node *Node) {
	for i, value := range node.Op().Sig().Out {
		if _, listed := e.section.Values[node.Out[i]]; !listed {
			e.section.Values[node.Out[i]] = Value{value.Type, value.Rows, value.Cols, 1}
		}
	}
	for _, changed := range node.Out {
		for _, form := range quantForms {
			delete(e.quantised, changed+form.codes)
		}
	}
	e.section.Nodes = append(e.section.Nodes, *node)
}

// embedding looks rows up in the packed weight of a product, if that is the scheme.
func (e *expansion) embedding(model *models.Node, node *Node, operator *op.Op) error {
	scheme := e.schemeOf(node.Name)
	if !scheme.LooksUp() {
		return nil
	}
	if model.Packed == "" {
		return fmt.Errorf("scheme %q, and no weight of a product holds the same matrix", scheme)
	}
	operator.Scheme, operator.Table, node.W = scheme, "", []string{model.Packed}
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
		node.W = append(slices.Clone(node.W), StepsWeight(e.class(node.Name)))
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
	input, form := product.In[0], quantFormOf(scheme)
	codes, scales = input+form.codes, input+form.scales
	if _, there := e.quantised[codes]; there {
		return codes, scales
	}

	value := e.section.Values[input]
	e.section.Values[codes] = Value{op.U8, value.Rows, value.Cols, value.Fan}
	e.section.Values[scales] = Value{op.F32, value.Rows, 1, value.Fan}
	quant := scheme.QuantRows(value.Rows/value.Fan, value.Cols, value.Fan)
	node := Node{
		Name: product.Name + form.node, Ops: []op.Op{quant}, In: []string{input}, Out: []string{codes, scales},
		Slots: e.slots,
	}
	if form.weight != nil {
		node.W = []string{form.weight(e.class(product.Name))}
		e.quantised[codes] = node.W[0]
	} else {
		e.quantised[codes] = ""
	}
	e.section.Nodes = append(e.section.Nodes, node)
	return codes, scales
}

// quantForm is a way of quantising a value. It has the suffixes of the values that hold codes and scales and of the
// node that computes them, and the name of the weight of a class that holds its static scales, nil if each row has its
// own scale.
type quantForm struct {
	codes, scales, node string
	weight              func(class string) string
	serves              func(scheme op.Scheme) bool
}

// quantForms are all ways.
var quantForms = func() []quantForm {
	list := []quantForm{
		{codes: ".q", scales: ".s", node: "_quant", serves: func(s op.Scheme) bool { return !s.Static() }},
		{codes: ".qo", scales: ".so", node: "_inner", weight: InnerScaleWeight, serves: op.Scheme.Shadow},
	}
	for _, count := range scaleCounts {
		several := scalesSuffix(count)
		list = append(list, quantForm{codes: ".qs" + several, scales: ".ss" + several, node: "_static" + several,
			weight: func(class string) string { return ScaleWeight(class, count) },
			serves: func(s op.Scheme) bool { return s.Scales() == count && !s.Shadow() }})
	}
	return list
}()

// quantFormOf returns the way in which a scheme wants its rows quantised.
func quantFormOf(scheme op.Scheme) *quantForm {
	for i := range quantForms {
		if quantForms[i].serves(scheme) {
			return &quantForms[i]
		}
	}
	panic("BUG: no form of quantised rows for scheme " + string(scheme))
}
