package executor

import (
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/moves"
	"github.com/hetc/hetc/runtime/driver"
)

// planMoves tells the calls of processors with memory of their own which parts of their operands travel. It does not
// concern calls of processors on the host's memory, nor the caches: see cacheHoldings.
func (m *Machine) planMoves(pr *program) {
	if m.spaces == 0 {
		return
	}
	travel := moves.Of(m.plan, pr.PhaseProgram, func(proc string) int { return m.loader.lanes[proc].space })
	for place, call := range travel {
		st := pr.sections[place.Section].lanes[place.Lane].steps[place.Step]
		st.calls[place.Iteration].bind.Moves = &driver.Moves{Fetch: partsOf(st.In, call.Fetch),
			Hand: partsOf(st.Out, call.Hand)}
	}
}

// partsOf returns the travelling parts of views as rectangles within them.
func partsOf(views []planir.View, travels [][]planir.View) [][]driver.Rect {
	out := make([][]driver.Rect, len(views))
	for i, view := range views {
		for _, part := range travels[i] {
			out[i] = append(out[i], driver.Rect{R0: part.R0 - view.R0, R1: part.R1 - view.R0,
				C0: part.C0 - view.C0, C1: part.C1 - view.C0})
		}
	}
	return out
}
