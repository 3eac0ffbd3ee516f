package order

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Heads is the attention of one layer as shadowAttn (sec. 3.4) executes it. Launches estimate the scores of some heads
// on one processor. Turns select positions and attend to them, each for heads of one launch. Eq. 4: a turn selects when
// its launch is done, and attends when it has selected. Times are integers of one unit.
type Heads struct {
	Launches []Launch
	Turns    []Turn
	// OneLane has one processor select and attend; else two do, each turn after turn.
	OneLane bool
	// ScoresNS is from the end of a launch until its turns know of it, PositionsNS from selection to attention.
	ScoresNS, PositionsNS int64
}

// Launch estimates the scores of the heads of some turns.
type Launch struct {
	NS    int64
	Turns []int
}

// Turn is what follows the estimate for some heads.
type Turn struct{ SelectNS, AttendNS int64 }

// HeadOrder is the order in which launches and turns are executed, and the end of the last one.
type HeadOrder struct {
	Launches, Turns []int
	NS              int64
}

// clock has the times at which the stages behind the estimate finish what they have begun.
type clock struct{ selected, attended int64 }

// after returns the clock after one more turn, whose scores are available at ready.
func (h *Heads) after(at clock, ready int64, turn int) clock {
	work := &h.Turns[turn]
	if h.OneLane {
		at.selected = max(at.attended, ready) + work.SelectNS
		at.attended = at.selected + work.AttendNS
		return at
	}
	at.selected = max(at.selected, ready) + work.SelectNS
	at.attended = max(at.attended, at.selected+h.PositionsNS) + work.AttendNS
	return at
}

// InOrder returns all launches and turns as they are listed.
func (h *Heads) InOrder() HeadOrder {
	var out HeadOrder
	for i := range h.Launches {
		out.Launches = append(out.Launches, i)
		out.Turns = append(out.Turns, h.Launches[i].Turns...)
	}
	out.NS, _ = h.Time(out.Launches, out.Turns)
	return out
}

// Time recomputes from the dependencies alone when an order ends. An order that leaves out or repeats something is an
// error.
func (h *Heads) Time(launches, turns []int) (int64, error) {
	released := make([]int64, len(h.Turns))
	started, seen := make([]int, len(h.Launches)), make([]int, len(h.Turns))
	at := int64(0)
	for _, i := range launches {
		started[i]++
		at += h.Launches[i].NS
		for _, turn := range h.Launches[i].Turns {
			released[turn] = at + h.ScoresNS
		}
	}

	var now clock
	for _, turn := range turns {
		seen[turn]++
		now = h.after(now, released[turn], turn)
	}

	for i, count := range started {
		if count != 1 {
			return 0, fmt.Errorf("launch %d is executed %d times, want once", i, count)
		}
	}
	for turn, count := range seen {
		if count != 1 {
			return 0, fmt.Errorf("turn %d is executed %d times, want once", turn, count)
		}
	}
	return max(now.attended, at), nil
}

// Greedy is Algorithm 1. Each step takes the launch with which attention is done first, and within it the turn for
// which that is so. Line 25 of the listing appends the turns of the launch that was tried last; the paper means those
// of the launch that was selected.
func (h *Heads) Greedy() HeadOrder {
	var out HeadOrder
	var now clock
	estimated := int64(0)
	for range h.Launches {
		selected := -1
		var best []int
		var end clock

		for i := range h.Launches {
			if slices.Contains(out.Launches, i) {
				continue
			}
			turns, at := h.greedyTurns(now, estimated+h.Launches[i].NS+h.ScoresNS, h.Launches[i].Turns)
			if selected < 0 || at.attended < end.attended {
				selected, best, end = i, turns, at
			}
		}

		out.Launches, out.Turns = append(out.Launches, selected), append(out.Turns, best...)
		estimated += h.Launches[selected].NS
		now = end
	}
	out.NS = max(now.attended, estimated)
	return out
}

// greedyTurns is C/GPUPlan, lines 1 to 13 of Algorithm 1. It returns the order of the turns of a launch whose scores
// are available at ready, and the clock after them.
func (h *Heads) greedyTurns(now clock, ready int64, turns []int) (order []int, end clock) {
	for range turns {
		selected := -1
		var best clock
		for _, turn := range turns {
			if slices.Contains(order, turn) {
				continue
			}
			if at := h.after(now, ready, turn); selected < 0 || at.attended < best.attended {
				selected, best = turn, at
			}
		}
		order = append(order, selected)
		now = best
	}
	return order, now
}

// Bounds of the exact searches: they take 2^n steps of launches or turns.
const (
	mostTurns    = 8
	mostLaunches = 10
)

// Exact returns an order with the least end, and a lower bound of every order's end. If the two are equal, the order is
// proved to be optimal.
//
// On one lane behind the estimate, any order of turns that never waits needlessly ends as early as the launches permit.
// So this is a flow shop of two machines, and Johnson's rule (1954) is optimal. Launches that take less time than their
// turns come first, the shortest first. Then the others follow, those with the shortest turns last. With a third stage
// the search is a dynamic program over sets (of turns, or of launches if there are many turns), which keeps the
// undominated clocks. If there are too many sets, the better one of both rules is taken.
func (h *Heads) Exact() (best HeadOrder, bound int64) {
	best = h.Greedy()
	take := func(order HeadOrder) {
		if order.NS < best.NS {
			best = order
		}
	}

	take(h.InOrder())
	take(h.johnson())
	switch {
	case h.OneLane:
		return best, best.NS
	case len(h.Turns) <= mostTurns:
		take(h.byTurn())
		return best, best.NS
	case len(h.Launches) <= mostLaunches:
		take(h.byLaunch())
	}
	return best, min(best.NS, h.least())
}

// least returns a lower bound of every order's end: each processor does all of its work, after the shortest way to its
// first task and before the shortest way from its last.
func (h *Heads) least() int64 {
	var estimate, selects, attends int64
	first, behind, last := int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64)

	for i := range h.Launches {
		estimate += h.Launches[i].NS
		first = min(first, h.Launches[i].NS)
	}

	shortest := int64(math.MaxInt64) // selection
	for _, turn := range h.Turns {
		selects, attends = selects+turn.SelectNS, attends+turn.AttendNS
		behind, last = min(behind, turn.SelectNS+turn.AttendNS), min(last, turn.AttendNS)
		shortest = min(shortest, turn.SelectNS)
	}
	return max(estimate+behind, first+selects+last, first+shortest+attends)
}

// johnson returns the launches by Johnson's rule, with their own turns in the order of Johnson's rule too.
func (h *Heads) johnson() HeadOrder {
	work := make([]int64, len(h.Launches))
	for i := range h.Launches {
		for _, turn := range h.Launches[i].Turns {
			work[i] += h.Turns[turn].SelectNS + h.Turns[turn].AttendNS
		}
	}

	var out HeadOrder
	out.Launches = johnsonOrder(len(h.Launches), func(i int) (int64, int64) { return h.Launches[i].NS, work[i] })
	for _, i := range out.Launches {
		out.Turns = append(out.Turns, h.johnsonTurns(h.Launches[i].Turns)...)
	}
	out.NS, _ = h.Time(out.Launches, out.Turns)
	return out
}

// johnsonTurns returns the order in which turns that may all begin end first.
func (h *Heads) johnsonTurns(turns []int) (order []int) {
	for _, i := range johnsonOrder(len(turns), func(i int) (int64, int64) {
		return h.Turns[turns[i]].SelectNS, h.Turns[turns[i]].AttendNS
	}) {
		order = append(order, turns[i])
	}
	return order
}

// johnsonOrder returns the order in which jobs of two stages end first (Johnson 1954).
func johnsonOrder(count int, stages func(i int) (first, second int64)) []int {
	order := make([]int, count)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		firstA, secondA := stages(a)
		firstB, secondB := stages(b)
		before, after := firstA < secondA, firstB < secondB
		switch {
		case before && !after:
			return -1
		case after && !before:
			return 1
		case before:
			return cmp.Compare(firstA, firstB)
		}
		return cmp.Compare(secondB, secondA)
	})
	return order
}

// label is a partial order: the clock after it, and the step that led to it.
type label struct {
	clock
	last int
	from *label
}

// undominated keeps the labels for which no other one is at least as good in both times: that one could replace them in
// every order.
func undominated(labels []*label) []*label {
	slices.SortStableFunc(labels, func(a, b *label) int {
		return cmp.Or(cmp.Compare(a.selected, b.selected), cmp.Compare(a.attended, b.attended))
	})
	kept := labels[:0]
	for _, label := range labels {
		if len(kept) == 0 || label.attended < kept[len(kept)-1].attended {
			kept = append(kept, label)
		}
	}
	return kept
}

// path returns the steps of a label, first to last.
func (l *label) path() (steps []int) {
	for ; l.from != nil; l = l.from {
		steps = append(steps, l.last)
	}
	slices.Reverse(steps)
	return steps
}

// byLaunch returns the best order in which the turns of a launch follow each other, as in Algorithm 1. Within a launch
// Johnson's rule is optimal. The state is the set of finished launches, which determines the estimate's time, with the
// undominated clocks.
func (h *Heads) byLaunch() HeadOrder {
	count := len(h.Launches)
	turns := make([][]int, count)
	for i := range h.Launches {
		turns[i] = h.johnsonTurns(h.Launches[i].Turns)
	}

	states := make([][]*label, 1<<count) // a larger set has a larger number: each is complete when it comes up
	states[0] = []*label{{}}
	for set := range states {
		states[set] = undominated(states[set])
		estimated := int64(0)
		for i := range h.Launches {
			if set>>i&1 == 1 {
				estimated += h.Launches[i].NS
			}
		}

		for i := range h.Launches {
			if set>>i&1 == 1 {
				continue
			}
			ready := estimated + h.Launches[i].NS + h.ScoresNS
			for _, from := range states[set] {
				next := &label{clock: from.clock, last: i, from: from}
				for _, turn := range turns[i] {
					next.clock = h.after(next.clock, ready, turn)
				}
				states[set|1<<i] = append(states[set|1<<i], next)
			}
		}
	}

	out := HeadOrder{Launches: firstDone(states[len(states)-1]).path()}
	for _, i := range out.Launches {
		out.Turns = append(out.Turns, turns[i]...)
	}
	out.NS, _ = h.Time(out.Launches, out.Turns)
	return out
}

// byTurn returns the best order of all: turns in any order, and launches in the order in which they are first needed,
// since starting another launch earlier only delays those. The state is the set of finished turns, with the undominated
// clocks.
func (h *Heads) byTurn() HeadOrder {
	of := make([]int, len(h.Turns))
	for i := range h.Launches {
		for _, turn := range h.Launches[i].Turns {
			of[turn] = i
		}
	}

	states := make([][]*label, 1<<len(h.Turns)) // as in byLaunch
	states[0] = []*label{{}}
	started := make([]bool, len(h.Launches))
	for set := range states {
		states[set] = undominated(states[set])
		clear(started)
		estimated := int64(0)
		for turn := range h.Turns {
			if set>>turn&1 == 1 && !started[of[turn]] {
				started[of[turn]] = true
				estimated += h.Launches[of[turn]].NS
			}
		}

		for turn := range h.Turns {
			if set>>turn&1 == 1 {
				continue
			}
			ready := int64(0) // of a launch that has been begun, the selection is not done before it
			if !started[of[turn]] {
				ready = estimated + h.Launches[of[turn]].NS + h.ScoresNS
			}
			for _, from := range states[set] {
				states[set|1<<turn] = append(states[set|1<<turn],
					&label{clock: h.after(from.clock, ready, turn), last: turn, from: from})
			}
		}
	}

	out := HeadOrder{Turns: firstDone(states[len(states)-1]).path()}
	for _, turn := range out.Turns {
		if !slices.Contains(out.Launches, of[turn]) {
			out.Launches = append(out.Launches, of[turn])
		}
	}
	out.NS, _ = h.Time(out.Launches, out.Turns)
	return out
}

// firstDone returns the label whose attention is done first.
func firstDone(labels []*label) *label {
	return slices.MinFunc(labels, func(a, b *label) int { return cmp.Compare(a.attended, b.attended) })
}
