package solver

import (
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/socs/timeline"
	"github.com/hetc/hetc/solver/price"
)

// How long the branches of a fork take when they run at once. Each choice is cut into the steps that lowering would
// make of it, steps go to the lanes of their processors, and timeline.Walk executes them on shared memory. It is the
// walk that also predicts lowered programs, on one fork instead of a section.

// piece is a step of a choice, as lanes execute it.
type piece struct {
	proc    string
	in, out []planir.View
	phases  []timeline.Phase
}

// pieces returns the steps of a node's choice.
func (in *instance) pieces(fork *forkJoin, node, choice int) []piece {
	key := [2]int{node, choice}
	if out, ok := fork.pieces[key]; ok {
		return out
	}

	st := in.section
	cut, err := lower.Cut(st.Section, &st.Nodes[node], &in.candidates[node][choice].Decision, st.Proc)
	var out []piece
	for i := range cut {
		part := piece{proc: cut[i].Proc, in: cut[i].In, out: cut[i].Out}
		for j, operator := range cut[i].Ops {
			var phase timeline.Phase
			if err == nil {
				phase, err = st.Phase(price.Task{Proc: part.proc, Op: st.InContext(operator)}, j > 0)
			}
			part.phases = append(part.phases, phase)
		}
		out = append(out, part)
	}

	if err != nil {
		panic("BUG: a candidate of " + st.Nodes[node].Name + " was priced and cannot be again: " + err.Error())
	}
	fork.pieces[key] = out
	return out
}

// contendedNS goes through a fork as lanes do, in ns: what split leaves is there at the start, each step begins when
// its lane is free and what it needs has been handed over, and steps that run at once share the memory. Nodes from
// end on do not count.
func (in *instance) contendedNS(fork *forkJoin, choices []int, end int, of costOf) int64 {
	var all []placedPiece
	var lanes timeline.Section
	work := &forkWork{}
	for node := fork.split + 1; node < end; node++ {
		// of may count more than the predicted time (what short calls leave idle): the steps take that much longer.
		stretch := 1.0
		if ns := in.predictedNS(node, choices[node]); ns > 0 {
			stretch = float64(of(node, choices[node])) / float64(ns)
		}

		for _, piece := range in.pieces(fork, node, choices[node]) {
			index := slices.IndexFunc(lanes.Lanes, func(lane timeline.Lane) bool { return lane.Proc == piece.proc })
			if index < 0 {
				index = len(lanes.Lanes)
				lanes.Lanes = append(lanes.Lanes, timeline.Lane{Proc: piece.proc, Thread: index})
				work.phases = append(work.phases, nil)
			}
			phases := piece.phases
			if stretch != 1 {
				phases = stretched(phases, stretch)
			}

			lane := &lanes.Lanes[index]
			lane.Steps = append(lane.Steps, timeline.Step{After: waitsFor(all, &piece, index)})
			all = append(all, placedPiece{piece, index, len(lane.Steps) - 1})
			work.phases[index] = append(work.phases[index], phases)
		}
	}

	ns, ok := timeline.Walk(in.section.Memory, &lanes, work)
	if !ok {
		panic("BUG: branches of " + in.section.Name + " wait in a circle")
	}
	return ns
}

// placedPiece is a piece with its place in the lanes.
type placedPiece struct {
	piece
	lane, step int
}

// waitsFor returns the steps of other lanes that a piece waits for: the last of each that it must follow.
func waitsFor(all []placedPiece, part *piece, lane int) (out []timeline.After) {
	for _, earlier := range slices.Backward(all) {
		isLane := func(after timeline.After) bool { return after.Lane == earlier.lane }
		if earlier.lane == lane || slices.ContainsFunc(out, isLane) {
			continue
		}
		if overlap(part.in, earlier.out) || overlap(part.out, earlier.out) || overlap(part.out, earlier.in) {
			out = append(out, timeline.After{Lane: earlier.lane, Step: earlier.step})
		}
	}
	return out
}

// overlap reports whether a view of one list has an element in common with a view of the other.
func overlap(a, b []planir.View) bool {
	return slices.ContainsFunc(a, func(x planir.View) bool {
		return slices.ContainsFunc(b, func(y planir.View) bool { return x.Overlaps(y) })
	})
}

// forkWork is what the lanes of a fork do.
type forkWork struct{ phases [][][]timeline.Phase }

// Phases returns the phases of a step, by lane and step.
func (w *forkWork) Phases(lane, step, _ int) []timeline.Phase { return w.phases[lane][step] }

// Ran is called by the walk for every step; the time of a fork needs none of it.
func (w *forkWork) Ran(_, _, _ int, _, _, _ int64) {}
