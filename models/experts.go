package models

import (
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// firstExpertNode is the node of the first product of a layer's experts.
const firstExpertNode = "expert_gate_up"

// ExpertNodes are the nodes that compute one layer's experts, in order: product, gated activation, product.
var ExpertNodes = []string{firstExpertNode, "expert_act", "expert_down"}

// ExpertLayers returns the numbers of the layers that have experts, ascending.
func (m *Model) ExpertLayers() (out []int) {
	for _, section := range m.graph.Sections {
		if slices.ContainsFunc(section.Nodes, func(n Node) bool { return n.Name == firstExpertNode }) {
			for i := range max(1, section.Layers) {
				out = append(out, section.First+i)
			}
		}
	}
	slices.Sort(out)
	return out
}

// ExpertOps returns the operators of a single expert for a number of rows, as a graph of static shape has them: a
// product, the gated activation, a product. The products have no scheme yet.
func (m *Model) ExpertOps(rows int) (out []op.Op) {
	for _, section := range m.graph.Sections {
		for _, node := range section.Nodes {
			if len(out) == len(ExpertNodes) || !slices.Contains(ExpertNodes, node.Name) {
				continue
			}
			operator := node.Ops[0]
			operator.M = rows
			if operator.Kind == op.ExpertMatMul {
				operator = op.Op{Kind: op.MatMul, M: rows, K: operator.K, N: operator.N}
			}
			operator.Fan = 0
			out = append(out, operator)
		}
	}
	return out
}

// ExpertBytes returns the size of one expert's weights with its products in the schemes, in order. Unquantised ones
// count as they are stored, as targets with 16-bit weights hold them.
func (m *Model) ExpertBytes(schemes []op.Scheme) (sum int64) {
	product := 0
	for _, operator := range m.ExpertOps(1) {
		if operator.Kind != op.MatMul || product >= len(schemes) {
			continue
		}
		if weightType := schemes[product].Weight(); weightType == op.A32W32.Weight() {
			sum += int64(operator.K) * int64(operator.N) * int64(max(1, m.Stored.Bytes()))
		} else {
			sum += op.WeightBytes(weightType, operator.K, operator.N)
		}
		product++
	}
	return sum
}
