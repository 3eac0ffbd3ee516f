package profiler

import (
	"slices"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
)

// traffic is the number of bytes that a model reads between two uses of an operand.
type traffic struct {
	read  map[op.Scheme]int64 // matrices that one token reads, by scheme
	held  map[op.Scheme]int64 // matrices of the model with all experts, by scheme
	cache int64               // keys and values of all layers
}

// trafficOf adds up the bytes that one pass through the model reads.
func (b *builder) trafficOf(graph *models.Graph) traffic {
	out := traffic{read: map[op.Scheme]int64{}, held: map[op.Scheme]int64{}}
	for i := range graph.Sections {
		section := &graph.Sections[i]
		times := int64(max(section.Layers, 1))
		for j := range section.Nodes {
			node := &section.Nodes[j]
			for _, operator := range node.Ops {
				switch operator.Kind {
				case op.MatMul, op.ExpertMatMul:
					for _, scheme := range b.schemes {
						one := scheme
						if node.Exact {
							one = op.A32W32
						}
						bytes := times * op.WeightBytes(one.Weight(), operator.K, operator.N)
						out.read[scheme] += bytes * int64(max(1, min(operator.Fan, operator.Experts)))
						out.held[scheme] += bytes * int64(max(1, operator.Experts))
					}
				case op.Attention:
					// The most exact type is the largest one.
					bytes := int64(b.context) * int64(operator.KVHeads) * b.caches[0].CacheRowBytes(operator.HeadDim)
					out.cache += times * 2 * bytes
				}
			}
		}
	}
	return out
}

// setFootprints sets the number of bytes that cold operands rotate through: those of the model, or 0 where they are
// more than the caches hold. A simulated SoC has no caches.
func (b *builder) setFootprints(graph *models.Graph) {
	if b.soc.Simulated() {
		return
	}
	all := b.trafficOf(graph)
	enough := beyondCaches(b.soc)
	bound := func(bytes int64) int64 {
		if bytes >= enough {
			return 0
		}
		return bytes
	}
	for i := range b.requests {
		what := &b.requests[i].What
		if what.Op == nil || !what.Cold {
			continue
		}

		scheme := what.Op.Scheme
		if !slices.Contains(b.schemes, scheme) {
			// The operator has no matrix, or one that is always exact.
			scheme = b.schemes[0]
		}

		// The whole decode step passes between two uses of a weight or of a layer's cache; between two uses
		// of an expert the others do, too.
		switch what.Op.Kind {
		case op.MatMul:
			what.Footprint = bound(all.read[scheme] + all.cache)
		case op.ExpertMatMul:
			what.Footprint = bound(all.held[scheme] + all.cache)
		case op.Attention, op.Estimate, op.SparseAttend:
			what.Footprint = bound(all.read[scheme] + all.cache)
		case op.Embed:
			bytes := int64(what.Op.K) * int64(what.Op.N) * int64(max(1, what.Op.Table.Bytes()))
			what.Footprint = bound(bytes)
		}
	}
}
