package solver

import (
	"cmp"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// channelStep is what numbers of channels are rounded up to, so that few graphs differ by nothing else.
const channelStep = 4

// channels is how many channels beyond its static scale a step multiplies at once beside a product of that many rows:
// the most that the calibration counted in a call, 0 where it counted none.
func (s *request) channels(node string, rows int) int {
	if s.in.Calibration == nil {
		return 0
	}
	most, counted := s.in.Calibration.MostExceeding(node, rows)
	if !counted {
		return 0
	}
	return min(op.RoundUp(max(1, most), channelStep), op.MostChannels(s.depth(node)))
}

// depth is how many channels enter the product of a node.
func (s *request) depth(name string) int {
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

// outliersOf says how many channels the products of a plan's decisions with shadow outliers multiply at once.
func (s *request) outliersOf(plan *planir.Plan) (out []planir.Outliers) {
	for i := range plan.Decisions {
		decision := &plan.Decisions[i]
		if !decision.Scheme.Shadow() {
			continue
		}
		if channels := s.channels(decision.Node, decision.Rows); channels > 0 {
			out = append(out, planir.Outliers{Node: decision.Node, Rows: decision.Rows, Channels: channels})
		}
	}
	slices.SortFunc(out, func(x, y planir.Outliers) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), cmp.Compare(x.Rows, y.Rows))
	})
	return out
}

// noteOutliers says of which products the calibration counted more channels than a step multiplies at once.
func (s *request) noteOutliers(plan *planir.Plan) {
	for _, entry := range plan.Outliers {
		most, _ := s.in.Calibration.MostExceeding(entry.Node, entry.Rows)
		if most > entry.Channels {
			s.note("%s at %d rows: in a call of the calibration %d channels exceeded the static scale, more than the %d that "+
				"are multiplied at once: such calls take several passes", entry.Node, entry.Rows, most, entry.Channels)
		}
	}
}
