package executor

import (
	"math"
	"slices"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// ExpertStat counts, over all calls so far, what happened to the rows that a layer's router sent to experts, in a
// program with capacity tiers. A token has one such row for each of its experts.
type ExpertStat struct {
	Program  string
	Layer    int
	Calls    int64 // of the operator that moves rows: one for each chunk
	Routed   int64 // rows
	Moved    int64 // to the slots of their experts
	Overflow int64 // beyond the rows of their slots
	Dropped  int64 // of these, computed by no processor
	Reserved int64 // rows of all slots: those to which no row was moved are padding

	// The same of full calls alone, and what the plan expects of one: shares of the rows.
	FullRouted, FullMoved, FullOverflow int64
	ExpectMoved, ExpectOverflow         float64
}

// Drift returns how far the shares of moved rows and of overflow in full calls are from what the plan expects,
// whichever is farther; 0 without a full call.
func (s *ExpertStat) Drift() float64 {
	if s.FullRouted == 0 {
		return 0
	}
	off := func(count int64, expected float64) float64 {
		return math.Abs(float64(count)/float64(s.FullRouted) - expected)
	}
	return max(off(s.FullMoved, s.ExpectMoved), off(s.FullOverflow, s.ExpectOverflow))
}

// Stale reports whether routing differs from the plan by more than chance explains: by five points and three standard
// errors, which for a share of independent rows are at most half a row each. Then the loads for which the plan was made
// are not those that it meets.
func (s *ExpertStat) Stale() bool {
	const tolerated, errors = 0.05, 3
	return s.FullRouted > 0 && s.Drift() > tolerated+errors*0.5/math.Sqrt(float64(s.FullRouted))
}

// dispatchCount counts, in one layer, the rows that a step moves to slots.
type dispatchCount struct {
	stat        ExpertStat
	fan, tokens int    // experts of each token, tokens of a full call
	reserved    int64  // rows of all slots
	slotted     []bool // by expert: it has a slot

	// operands of the step, by row of a token and one of its experts: the expert, the row of a slot that it is moved to
	// (-1: none), and its row among those that are computed without a slot (-1: none; nil: there are no such rows)
	ids, places, rest []int32
}

// newDispatchCount prepares counting for a step that moves rows to slots. It returns nil for every other step, and
// where the operands cannot be read as plain rows. Counting reads them in main memory, which a device with memory of
// its own may not have filled.
func (m *Machine) newDispatchCount(
	program *planir.PhaseProgram, st *step, layer int, bind *driver.Bindings,
) (*dispatchCount, error) {
	node := &st.graph.Nodes[0]
	tiers := m.plan.TiersOf(node.Op.M) // also of a chunk in flight, whose program has the rows of several
	if node.Op.Kind != op.Dispatch || len(st.graph.Nodes) != 1 || tiers == nil || tiers.Layer(layer) == nil {
		return nil, nil
	}
	expected := tiers.Layer(layer)
	counted := &dispatchCount{fan: node.Op.Fan, tokens: node.Op.M, reserved: int64(node.Op.Groups.Rows()),
		slotted: make([]bool, tiers.Experts)}
	counted.stat = ExpertStat{Program: program.Name, Layer: layer, ExpectMoved: expected.Moved,
		ExpectOverflow: expected.Overflow}
	for _, expert := range expected.Slots {
		counted.slotted[expert] = true
	}
	groups := len(node.Op.Groups.List())
	var err error
	dense := func(view driver.View) (rows []int32) {
		if err == nil && view.Stride == view.Cols {
			rows, err = mem.View[int32](view.Bytes())
		}
		return rows
	}
	counted.ids, counted.places = dense(bind.In[1]), dense(bind.Out[groups])
	if node.Op.Sent > 0 {
		counted.rest = dense(bind.Out[groups+1])
	}
	if err != nil || counted.ids == nil || counted.places == nil {
		return nil, err
	}
	return counted, nil
}

// count adds a call of some tokens.
func (d *dispatchCount) count(tokens int) {
	stat := &d.stat
	stat.Calls++
	stat.Reserved += d.reserved
	moved, overflow := stat.Moved, stat.Overflow
	for row, place := range d.places[:tokens*d.fan] {
		stat.Routed++
		switch {
		case place >= 0:
			stat.Moved++
		case d.slotted[d.ids[row]]:
			stat.Overflow++
			if d.rest == nil || d.rest[row] < 0 {
				stat.Dropped++
			}
		}
	}
	if tokens == d.tokens {
		stat.FullRouted += int64(tokens * d.fan)
		stat.FullMoved, stat.FullOverflow = stat.FullMoved+stat.Moved-moved, stat.FullOverflow+stat.Overflow-overflow
	}
}

// add adds what another step of the same program and layer has counted.
func (s *ExpertStat) add(other *ExpertStat) {
	s.Calls += other.Calls
	s.Routed += other.Routed
	s.Moved += other.Moved
	s.Overflow += other.Overflow
	s.Dropped += other.Dropped
	s.Reserved += other.Reserved
	s.FullRouted += other.FullRouted
	s.FullMoved += other.FullMoved
	s.FullOverflow += other.FullOverflow
}

// Experts lists what happened to the rows that routers sent to experts, by program and layer, for programs with
// capacity tiers that were called. Chunks that a program has in flight are counted together. The machine must be idle
// meanwhile.
func (m *Machine) Experts() (out []ExpertStat) {
	m.eachStep(func(_ *program, _ *section, _ *laneSection, st *step) {
		for i := range st.calls {
			counted := st.calls[i].counts
			if counted == nil || counted.stat.Calls == 0 {
				continue
			}
			same := slices.IndexFunc(out, func(listed ExpertStat) bool {
				return listed.Program == counted.stat.Program && listed.Layer == counted.stat.Layer
			})
			if same < 0 {
				out = append(out, counted.stat)
			} else {
				out[same].add(&counted.stat)
			}
		}
	})
	return out
}
