package lower

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// Capacity tiers (NPUMoE sec. 4) turn the experts of a layer, which are a product, an activation, a product and a sum,
// into these nodes:
//
//	dispatch       rows to the slots of their experts, as far as these have room
//	NAME_g0, ...   of each group the same three operators on the rows of its slots, static shapes all of them
//	NAME           the model's own nodes, on the rows that no group holds
//	the sum        of what was computed of a token, wherever it is
//
// Groups read nothing that the rest computes, nor the other way round, so that processors may execute both at the same
// time. The nodes of a group follow one another: a processor that fuses makes one graph of them.

// expertNodes are the nodes of a layer's experts from the first product on: product, activation, product, sum.
const expertNodes = 4

// expandGroups expands the experts of a layer, whose nodes of the model these are, for the tiers of its program.
func (e *expansion) expandGroups(nodes []models.Node, rows, context int) error {
	if err := e.tiersFit(nodes); err != nil {
		return err
	}
	first, sum := &nodes[0], &nodes[expertNodes-1]

	name := e.section.Name + "." + first.Name
	ids := first.In[1]
	places, rest := ids+".places", ids+".rest"
	e.section.Values[places] = e.section.Values[ids]
	e.section.Values[rest] = e.section.Values[ids]
	dispatched, collected := e.groupValues(nodes)

	// What the model's own products read is quantised before the rows are divided: groups and the rest are then
	// branches of one fork.
	if scheme := e.schemeOf(name); e.tiers.Sent > 0 && !first.Exact && scheme.QuantisedRows() {
		e.quantise(&Node{Name: name, In: first.In}, scheme)
	}
	if err := e.addDispatch(name+dispatchSuffix, first, sum, append(dispatched, places), rest, rows); err != nil {
		return err
	}

	slot := 0
	for group, shape := range e.tiers.Groups {
		for i := range nodes[:expertNodes-1] {
			if err := e.expandGroupNode(&nodes[i], group, shape, slot, context); err != nil {
				return err
			}
		}
		slot += shape.Slots
	}

	collect := op.Op{Kind: op.Collect, Groups: e.tiers.Shape(), Sent: e.expectedSent(rows, first.Ops[0].Fan)}
	if e.tiers.Sent > 0 {
		if err := e.addDynamic(nodes, rest, rows, context); err != nil {
			return err
		}
		collected = append(collected, sum.In[0])
	}
	own := *sum
	collect.N, collect.Fan = sum.Ops[0].N, sum.Ops[0].Fan
	own.Ops, own.In = []op.Op{collect}, append(append(collected, places), sum.In[1])
	return e.expandNode(&own, rows, context)
}

// tiersFit checks that tiers are for a layer's nodes, its experts and all layers.
func (e *expansion) tiersFit(nodes []models.Node) error {
	name := e.section.Name + "." + nodes[0].Name
	for i, kind := range []op.Kind{op.ExpertMatMul, op.GLU, op.ExpertMatMul, op.Combine} {
		isAlone := i < len(nodes) && len(nodes[i].Ops) == 1
		if !isAlone || nodes[i].Ops[0].Kind != kind {
			return fmt.Errorf("node %q: capacity tiers are for experts of a product, a gated activation, a product "+
				"and a sum in this order", name)
		}
	}

	if experts := nodes[0].Ops[0].Experts; experts != e.tiers.Experts {
		return fmt.Errorf("node %q: capacity tiers are for %d experts, and a layer has %d", name, e.tiers.Experts,
			experts)
	}

	for layer := e.section.First; layer < e.section.First+e.section.Layers; layer++ {
		if e.tiers.Layer(layer) == nil {
			return fmt.Errorf("node %q: capacity tiers say nothing of layer %d", name, layer)
		}
	}
	return nil
}

// groupValues makes the values of the groups, after those of the model's nodes. It returns the values to which rows are
// dispatched and those that are collected.
func (e *expansion) groupValues(nodes []models.Node) (dispatched, collected []string) {
	first, result := &nodes[0], nodes[2].Out[0]
	for group, shape := range e.tiers.Groups {
		for _, value := range []string{first.In[0], first.Out[0], nodes[1].Out[0], result} {
			e.section.Values[value+groupSuffix(group)] = Value{op.F32, shape.Slots * shape.Rows,
				e.section.Values[value].Cols, 1}
		}
		dispatched = append(dispatched, first.In[0]+groupSuffix(group))
		collected = append(collected, result+groupSuffix(group))
	}
	return dispatched, collected
}

// addDynamic adds the model's own products, for the rows that no slot takes.
func (e *expansion) addDynamic(nodes []models.Node, rest string, rows, context int) error {
	sent := e.expectedSent(rows, nodes[0].Ops[0].Fan)
	for i := range nodes[:expertNodes-1] {
		own := nodes[i]
		if own.Ops[0].Kind == op.ExpertMatMul {
			own.In, own.Ops = []string{own.In[0], rest}, slices.Clone(own.Ops)
			own.Ops[0].Sent = sent
		}
		if err := e.expandNode(&own, rows, context); err != nil {
			return err
		}
	}
	return nil
}

// expectedSent returns how many rows the dynamic products of a layer are expected to compute, of those that there are.
func (e *expansion) expectedSent(rows, fan int) int { return min(e.tiers.Sent, rows*max(1, fan)) }

// addDispatch adds the node that moves rows to the slots of the first product's experts, whose results sum adds up.
// Salience is read from the attention's result or from the router's weights.
func (e *expansion) addDispatch(name string, first, sum *models.Node, out []string, rest string, rows int) error {
	product := first.Ops[0]
	operator := op.Op{Kind: op.Dispatch, M: rows, N: product.K, Experts: product.Experts, Fan: product.Fan,
		Groups: e.tiers.Shape(), Sent: e.expectedSent(rows, product.Fan), Salience: e.tiers.Salience}
	node := Node{Name: name, In: first.In[:2:2], W: []string{SlotsWeight(e.tiers.Rows)}, Out: out}

	salience := ""
	switch e.tiers.Salience {
	case op.SalienceNorm:
		if salience = e.attended(); salience == "" {
			return fmt.Errorf(
				"node %q: rows are dropped by the norm of what attention computes, and section %q has none",
				name, e.section.Name)
		}
	case op.SalienceWeight:
		salience = sum.In[1]
	}

	if salience != "" {
		operator.K = e.section.Values[salience].Cols
		node.In = append(node.In, salience)
	}

	if operator.Sent > 0 {
		node.Out = append(node.Out, rest)
	}
	node.Ops = []op.Op{operator}
	e.section.Nodes = append(e.section.Nodes, node)
	return operator.Validate()
}

// attended returns the value that the last attention of the section computes, "" if there is none.
func (e *expansion) attended() (value string) {
	for i := range e.section.Nodes {
		node := &e.section.Nodes[i]
		if kind := node.Op().Kind; kind == op.Attention || kind == op.SparseAttend {
			value = node.Out[len(node.Out)-1]
		}
	}
	return value
}

// expandGroupNode adds a node of the model for the rows of a group, whose first slot is given.
func (e *expansion) expandGroupNode(model *models.Node, group int, shape planir.ExpertGroup, slot, context int) error {
	suffix := groupSuffix(group)
	own := *model
	own.Name += suffix
	own.In, own.Out = []string{model.In[0] + suffix}, []string{model.Out[0] + suffix}
	operator := model.Ops[0]
	operator.Fan = 0
	if operator.Kind == op.ExpertMatMul {
		operator = op.Op{Kind: op.GroupMatMul, K: operator.K, N: operator.N, Experts: shape.Slots}
		own.W = slices.Repeat(model.W, shape.Slots)
	}
	own.Ops = []op.Op{operator}
	e.slots = &Slots{Class: e.section.Name + "." + model.Name, Tiers: e.tiers.Rows, First: slot}
	err := e.expandNode(&own, shape.Slots*shape.Rows, context)
	e.slots = nil
	return err
}

// Slots is the range of rows reserved for a node of a group. Every call executes all of them, since they are not rows
// of tokens.
type Slots struct {
	Class string // the model's node, whose calibration counts
	Tiers int    // rows of the program
	First int    // slot
}

// addGroups adds the nodes that tiers may add for a node of the model, by name.
func addGroups(out map[string]op.Kind, node string, kind op.Kind) {
	switch kind {
	case op.ExpertMatMul:
		kind, out[node+dispatchSuffix] = op.GroupMatMul, op.Dispatch
	case op.GLU:
	default:
		return
	}
	for group := range op.MaxGroups {
		out[node+groupSuffix(group)] = kind
	}
}
