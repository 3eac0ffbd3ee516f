package solver

import (
	"cmp"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// channelStep is what numbers of channels are rounded up to, so that few graphs differ by nothing else.
const channelStep = 4

// outlierChannels returns how many channels beyond its static scale a step multiplies at once, beside a product of that
// many rows: the largest count that the calibration saw in a call, 0 if it saw none.
func (s *request) outlierChannels(node string, rows int) int {
	if s.in.Calibration == nil {
		return 0
	}
	most, counted := s.in.Calibration.MostExceeding(node, rows)
	if !counted {
		return 0
	}
	return min(op.RoundUp(max(1, most), channelStep), op.MostChannels(s.productDepth(node)))
}

// productDepth returns the number of channels that enter the product of a node (its K).
func (s *request) productDepth(name string) int {
	for i := range s.graph.Sections {
		section := &s.graph.Sections[i]
		for _, node := range section.Nodes {
			if section.Name+"."+node.Name == name {
				return node.Ops[len(node.Ops)-1].K
			}
		}
	}
	return 0
}

// outliersOf lists how many channels each product with shadow outliers multiplies at once, by the plan's decisions.
func (s *request) outliersOf(plan *planir.Plan) (out []planir.Outliers) {
	for i := range plan.Decisions {
		decision := &plan.Decisions[i]
		if !decision.Scheme.Shadow() {
			continue
		}
		if channels := s.outlierChannels(decision.Node, decision.Rows); channels > 0 {
			out = append(out, planir.Outliers{Node: decision.Node, Rows: decision.Rows, Channels: channels})
		}
	}
	slices.SortFunc(out, func(x, y planir.Outliers) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), cmp.Compare(x.Rows, y.Rows))
	})
	return out
}

// hotOf lists the rows of weights that shadow outliers are expected to need most often, by the calibration's counts,
// for the layers of a plan that keep shadow outliers.
func (s *request) hotOf(plan *planir.Plan) (out []planir.Hot) {
	if s.in.Calibration == nil {
		return nil
	}
	for i := range s.graph.Sections {
		section := &s.graph.Sections[i]
		for _, node := range section.Nodes {
			name := section.Name + "." + node.Name
			hasShadow := func(decision planir.Decision) bool {
				return decision.Node == name && decision.Scheme.Shadow()
			}
			if !slices.ContainsFunc(plan.Decisions, hasShadow) {
				continue
			}

			for layer := section.First; layer < section.First+max(1, section.Layers); layer++ {
				channels, others, counted := s.in.Calibration.HotChannels(name, layer)
				if counted && !plan.Pruned(name, layer) {
					out = append(out, planir.Hot{Weight: node.W[0], Layer: layer, Channels: channels, Others: others})
				}
			}
		}
	}

	slices.SortFunc(out, func(x, y planir.Hot) int {
		return cmp.Or(cmp.Compare(x.Weight, y.Weight), cmp.Compare(x.Layer, y.Layer))
	})
	return out
}

// boundHot removes hot rows from a lowered plan whose memory is limited, unless the plan is predicted to hold less with
// them. Problems under a limit count whole weights, and a plan that fits by such a problem must fit.
func (s *request) boundHot(plan *planir.Plan) {
	isLimited := s.in.MaxMemory > 0 || s.in.Workload.Memory > 0
	if len(plan.Hot) == 0 || !isLimited {
		return
	}
	without := *plan
	without.Hot = nil
	if planir.MemoryOf(plan).Total > planir.MemoryOf(&without).Total {
		plan.Hot = nil
	}
}

// noteOutliers warns of products for which the calibration counted more channels than a step multiplies at once.
func (s *request) noteOutliers(plan *planir.Plan) {
	for _, entry := range plan.Outliers {
		most, _ := s.in.Calibration.MostExceeding(entry.Node, entry.Rows)
		if most > entry.Channels {
			s.warn("%s at %d rows: in a call of the calibration %d channels exceeded the static scale, "+
				"more than the %d that are multiplied at once: such calls take several passes",
				entry.Node, entry.Rows, most, entry.Channels)
		}
	}
}
