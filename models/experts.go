package models

import (
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// FirstExpertNode is the node of the first product of a layer's experts.
const FirstExpertNode = "expert_gate_up"

// ExpertNodes are the nodes that compute one layer's experts, in order: product, gated activation, product.
var ExpertNodes = []string{FirstExpertNode, "expert_act", "expert_down"}

// ExpertLayers are the numbers of the layers that have experts, ascending.
func (m *Model) ExpertLayers() (out []int) {
	for _, s := range m.graph.Sections {
		if slices.ContainsFunc(s.Nodes, func(n Node) bool { return n.Name == FirstExpertNode }) {
			for i := range max(1, s.Layers) {
				out = append(out, s.First+i)
			}
		}
	}
	slices.Sort(out)
	return out
}

// ExpertOps are the operators of a single expert for a number of rows, as a graph of static shape has them: a product, the gated
// activation, a product. The products have no scheme yet.
func (m *Model) ExpertOps(rows int) (out []op.Op) {
	for _, s := range m.graph.Sections {
		for _, n := range s.Nodes {
			if len(out) == len(ExpertNodes) || !slices.Contains(ExpertNodes, n.Name) {
				continue
			}
			o := n.Ops[0]
			o.M = rows
			if o.Kind == op.ExpertMatMul {
				o = op.Op{Kind: op.MatMul, M: rows, K: o.K, N: o.N}
			}
			o.Fan = 0
			out = append(out, o)
		}
	}
	return out
}

// ExpertBytes is the size of one expert's weights with its products in the schemes, in order. Unquantised ones count as they
// are stored, as targets with 16-bit weights hold them.
func (m *Model) ExpertBytes(schemes []op.Scheme) (sum int64) {
	k := 0
	for _, o := range m.ExpertOps(1) {
		if o.Kind != op.MatMul || k >= len(schemes) {
			continue
		}
		if w := schemes[k].Weight(); w == op.A32W32.Weight() {
			sum += int64(o.K) * int64(o.N) * int64(max(1, m.Stored.Bytes()))
		} else {
			sum += op.WeightBytes(w, o.K, o.N)
		}
		k++
	}
	return sum
}
