// Package moves knows which operands of a program's calls travel between the host's memory and processors with memory
// of their own.
package moves

import (
	"slices"

	"github.com/hetc/hetc/planir"
)

// Processors with memory of their own hold a second copy of each buffer. What of it travels follows from the program,
// by a data-flow analysis over its calls in one order that the flags allow: of each buffer the state is a set of
// disjoint rectangles, each with the memories that hold its value and the call that wrote it. A call fetches those
// parts of what it reads which its memory lacks, and the calls that wrote them hand just these to the host. Any other
// order has the same answer, because no two steps touch a view without an order (rule P009). The caches are no part of
// it: what they hold outlives programs.

// Place names a call of a program: a step in one iteration of its section, by their numbers.
type Place struct{ Section, Lane, Step, Iteration int }

// Call lists the parts of a call's operands that travel, by position. Fetch are the parts of Step.In that travel to the
// processor before the call, Hand the parts of Step.Out that travel to the host after it. The parts of an operand are
// disjoint and lie in the buffer as its view does.
type Call struct{ Fetch, Hand [][]planir.View }

// Of returns what travels in a program of a plan: the calls of processors that have memory of their own. space returns
// a number for the memory on which a processor computes; 0 is the host's.
func Of(plan *planir.Plan, phase *planir.PhaseProgram, space func(proc string) int) map[Place]*Call {
	out, state := map[Place]*Call{}, flow{}
	state.write(planir.View{Buffer: phase.Own(planir.IDs), R1: phase.Rows, C1: 1}, 0, nil, 0)
	for number := range phase.Sections {
		section := &phase.Sections[number]
		inOrder(section, func(lane, step, iteration int) {
			st := &section.Lanes[lane].Steps[step]
			if _, works := st.Layer(section, iteration); !works {
				return
			}
			memory := space(section.Lanes[lane].Proc)
			call := &Call{Fetch: make([][]planir.View, len(st.In)), Hand: make([][]planir.View, len(st.Out))}
			if memory > 0 {
				out[Place{number, lane, step, iteration}] = call
			}
			for i, view := range st.In {
				// A call with few rows skips a step of later rows, and what that fetches is not there.
				call.Fetch[i] = state.read(view, memory, st.R0 == 0)
			}
			for i, view := range st.Out {
				state.write(view, memory, call, i)
			}
		})
	}
	logits := phase.Own(planir.Logits)
	for _, buffer := range plan.Program.Buffers {
		if buffer.Name == logits {
			state.read(planir.View{Buffer: logits, R1: buffer.Rows, C1: buffer.Cols}, 0, true)
		}
	}
	for _, call := range out {
		for _, lists := range [2][][]planir.View{call.Fetch, call.Hand} {
			for i := range lists {
				lists[i] = joined(lists[i])
			}
		}
	}
	return out
}

// inOrder visits all steps of a section in an order in which they may execute.
func inOrder(section *planir.Section, visit func(lane, step, iteration int)) {
	at := make([]int, len(section.Lanes)) // steps visited
	set := make([]int, section.Flags)     // times
	for moved := true; moved; {
		moved = false
		for lane := range section.Lanes {
			steps := section.Lanes[lane].Steps
			for at[lane] < section.Iterations()*len(steps) {
				iteration, number := at[lane]/len(steps), at[lane]%len(steps)
				if slices.ContainsFunc(steps[number].Wait, func(wait planir.Wait) bool {
					need := iteration + 1
					if wait.Back {
						need--
					}
					return set[wait.Flag] < need
				}) {
					break
				}
				visit(lane, number, iteration)
				if flag := steps[number].Set; flag != nil {
					set[*flag]++
				}
				at[lane]++
				moved = true
			}
		}
	}
}

// region is a rectangle of a buffer as it was written last.
type region struct {
	view planir.View
	held uint64 // bit s: memory s holds it; 0 is the host's
	by   *Call  // that wrote it into a memory of its own
	out  int    // number of the output
}

// flow is the state of the analysis: the regions of each buffer.
type flow map[string][]region

// write notes that a call has written a view: only one memory holds its value now.
func (f flow) write(view planir.View, space int, by *Call, out int) {
	var rest []region
	for _, old := range f[view.Buffer] {
		for _, piece := range minus(old.view, view) {
			kept := old
			kept.view = piece
			rest = append(rest, kept)
		}
	}
	f[view.Buffer] = append(rest, region{view: view, held: 1 << space, by: by, out: out})
}

// read notes that a call on a memory reads a view, and returns the parts that must be fetched. kept says that the
// memory holds them from then on.
func (f flow) read(view planir.View, space int, kept bool) (fetch []planir.View) {
	list := f[view.Buffer]
	lacks := func(old *region) bool { return old.view.Overlaps(view) && old.held&(1<<space) == 0 }
	if !slices.ContainsFunc(list, func(old region) bool { return lacks(&old) }) {
		return nil
	}
	var out []region
	for _, old := range list {
		if !lacks(&old) {
			out = append(out, old)
			continue
		}
		for _, outside := range minus(old.view, view) {
			other := old
			other.view = outside
			out = append(out, other)
		}
		part := old
		part.view = common(old.view, view)
		if part.held&1 == 0 {
			part.by.Hand[part.out] = append(part.by.Hand[part.out], part.view)
			part.held |= 1
		}
		if space > 0 {
			fetch = append(fetch, part.view)
			if kept {
				part.held |= 1 << space
			}
		}
		out = append(out, part)
	}
	f[view.Buffer] = out
	return fetch
}

// common returns the rectangle that two overlapping views of a buffer have in common.
func common(a, b planir.View) planir.View {
	return planir.View{Buffer: a.Buffer, R0: max(a.R0, b.R0), R1: min(a.R1, b.R1),
		C0: max(a.C0, b.C0), C1: min(a.C1, b.C1)}
}

// joined unites disjoint rectangles into fewer ones, because each copy has a cost of its own: it unites neighbours
// along a whole side as long as there are any.
func joined(list []planir.View) []planir.View {
	for {
		one, other, ok := neighbours(list)
		if !ok {
			return list
		}
		a, b := list[one], list[other]
		list[one] = planir.View{Buffer: a.Buffer, R0: min(a.R0, b.R0), R1: max(a.R1, b.R1),
			C0: min(a.C0, b.C0), C1: max(a.C1, b.C1)}
		list = slices.Delete(list, other, other+1)
	}
}

// neighbours returns the numbers of the first two rectangles whose union is one, the lower number first.
func neighbours(list []planir.View) (one, other int, ok bool) {
	for i, a := range list {
		for j, b := range list[:i] {
			sameColumns, sameRows := a.C0 == b.C0 && a.C1 == b.C1, a.R0 == b.R0 && a.R1 == b.R1
			if sameColumns && (a.R1 == b.R0 || b.R1 == a.R0) || sameRows && (a.C1 == b.C0 || b.C1 == a.C0) {
				return j, i, true
			}
		}
	}
	return 0, 0, false
}

// minus returns the parts of a view outside another view: at most four rectangles.
func minus(view, without planir.View) (rest []planir.View) {
	if !view.Overlaps(without) {
		return []planir.View{view}
	}
	add := func(r0, r1, c0, c1 int) {
		if r0 < r1 && c0 < c1 {
			rest = append(rest, planir.View{Buffer: view.Buffer, R0: r0, R1: r1, C0: c0, C1: c1})
		}
	}
	top, bottom := max(view.R0, without.R0), min(view.R1, without.R1)
	add(view.R0, top, view.C0, view.C1)
	add(bottom, view.R1, view.C0, view.C1)
	add(top, bottom, view.C0, max(view.C0, without.C0))
	add(top, bottom, min(view.C1, without.C1), view.C1)
	return rest
}
