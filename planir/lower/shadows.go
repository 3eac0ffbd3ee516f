package lower

import (
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// addOutliers adds two nodes beside a product: one multiplies what the static scale of the product's input cuts off,
// the other adds that to the result.
func (e *expansion) addOutliers(product *Node, input string) error {
	operator := product.Op()
	remainder := op.Op{Kind: op.OutlierMatMul, M: operator.M, K: operator.K, N: operator.N, Scheme: op.A32W16}
	if e.channels != nil {
		remainder.Channels = min(remainder.K, e.channels(product.Name, product.Op().M))
	}
	result := product.Out[0]

	part := result + ".o"
	e.section.Values[part] = e.section.Values[result]
	scale := e.quantised[input+quantFormOf(operator.Scheme).codes]
	merge := op.Op{Kind: op.Add, M: operator.M, N: operator.N}

	e.section.Nodes = append(e.section.Nodes,
		Node{Name: product.Name + outliersSuffix, Ops: []op.Op{remainder}, In: []string{input},
			W: []string{product.W[0], scale}, Out: []string{part}},
		Node{Name: product.Name + mergeSuffix, Ops: []op.Op{merge}, In: []string{result, part}, Out: []string{result}})
	return remainder.Validate()
}

// prune removes from sections the nodes that compute shadow outliers in the layers where the plan prunes them. A
// section becomes several, one for each run of layers with the same nodes; they keep its name and its decisions.
func prune(sections []Section, plan *planir.Plan) (out []Section) {
	if len(plan.Shadows) == 0 {
		return sections
	}
	for i := range sections {
		section := &sections[i]
		for layer := range max(1, section.Layers) {
			part := *section
			part.First, part.Layers = section.First+layer, min(section.Layers, 1)
			part.Nodes = prunedNodes(section.Nodes, plan, part.First)
			last := len(out) - 1
			if layer > 0 && sameNodes(out[last].Nodes, part.Nodes) {
				out[last].Layers++
				continue
			}
			out = append(out, part)
		}
	}
	return out
}

// sameNodes reports whether two lists have the same nodes.
func sameNodes(nodes, others []Node) bool {
	return slices.EqualFunc(nodes, others, func(node, other Node) bool { return node.Name == other.Name })
}

// prunedNodes returns the nodes of a section without those that the plan prunes in a layer.
func prunedNodes(nodes []Node, plan *planir.Plan, layer int) (out []Node) {
	pruned := map[string]bool{}
	for i := range nodes {
		if operator := nodes[i].Op(); operator.Scheme.Shadow() && plan.Pruned(nodes[i].Name, layer) {
			pruned[nodes[i].Name+outliersSuffix], pruned[nodes[i].Name+mergeSuffix] = true, true
		}
		if !pruned[nodes[i].Name] {
			out = append(out, nodes[i])
		}
	}
	return out
}
