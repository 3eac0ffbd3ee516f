package planir

import (
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// Rules P007 to P010 are about what happens before what. A section's lanes run concurrently and meet only through
// flags, so "before" is Lamport's relation, which vector clocks decide. unroll executes a section symbolically: an
// event is one execution of a step, and its clock says of every lane how many events are finished when it starts. The
// state is the clocks of the lanes and of the flags that are set. Waits reach back one iteration at most, so three
// iterations show everything. The cost is one pass over the events, times the number of lanes; races compares all pairs
// of them.

// iterations is how often unroll repeats the section of several layers, and as often more as steps are layers behind
// others.
const iterations = 3

// flags checks rule P007.
func (c *checker) flags() {
	for section := range c.plan.Program.sections() {
		setters := make([]int, section.Flags)
		for step := range section.steps() {
			if step.Set != nil {
				setters[*step.Set]++
			}
		}
		for flag, count := range setters {
			if count != 1 {
				c.fail(section.path(), "flag %d is set by %d steps, want 1", flag, count)
			}
		}
	}
}

// unrolled is a section unrolled for a few iterations, with what is known to have happened before each event.
type unrolled struct {
	events []event
	before [][]int // per event: number of events per lane known to be finished when it starts
}

// event is one execution of a step.
type event struct {
	step *Step
	lane int
	iter int
	seq  int // position in its lane
}

// precedes reports whether event a is finished before event b starts.
func (r *unrolled) precedes(a, b int) bool {
	first, second := r.events[a], r.events[b]
	if first.lane == second.lane {
		return first.seq < second.seq
	}
	return r.before[b][first.lane] > first.seq
}

// setting is a flag as it is set in one iteration.
type setting struct{ flag, iter int }

// unrolling is the state of unroll.
type unrolling struct {
	unrolled
	set   map[setting][]int // the clocks at which flags were set
	clock [][]int           // of each lane
	next  []int             // of each lane, the position of its next event
}

// unroll executes the section symbolically; nil when the lanes wait in a circle.
func unroll(section *Section) *unrolled {
	state := unrolling{set: map[setting][]int{}, clock: make([][]int, len(section.Lanes)),
		next: make([]int, len(section.Lanes))}
	for lane := range state.clock {
		state.clock[lane] = make([]int, len(section.Lanes))
	}
	most := min(section.Iterations(), iterations+section.behind())
	for progress := true; progress; {
		progress = false
		for lane := range section.Lanes {
			for state.next[lane] < len(section.Lanes[lane].Steps)*most &&
				state.advance(lane, section.Lanes[lane].Steps) {
				progress = true
			}
		}
	}
	for lane := range section.Lanes {
		if state.next[lane] < len(section.Lanes[lane].Steps)*most {
			return nil
		}
	}
	return &state.unrolled
}

// advance executes the next step of a lane; false when a flag that it waits for is not set.
func (u *unrolling) advance(lane int, steps []Step) bool {
	seq := u.next[lane]
	step, iter := &steps[seq%len(steps)], seq/len(steps)
	clock := u.clock[lane]
	for _, wait := range step.Wait {
		key := setting{wait.Flag, iter}
		if wait.Back {
			key.iter--
		}
		if key.iter < 0 {
			continue
		}
		known, ok := u.set[key]
		if !ok {
			return false
		}
		for other, events := range known {
			clock[other] = max(clock[other], events)
		}
	}
	u.events = append(u.events, event{step, lane, iter, seq})
	u.before = append(u.before, slices.Clone(clock))
	u.next[lane]++
	clock[lane] = u.next[lane]
	if step.Set != nil {
		u.set[setting{*step.Set, iter}] = slices.Clone(clock)
	}
	return true
}

// deadlock checks rule P008. It unrolls the sections for races and written.
func (c *checker) deadlock() {
	for section := range c.plan.Program.sections() {
		unrolled := unroll(section.Section)
		if unrolled == nil {
			c.fail(section.path(), "lanes of %q wait for each other and none can go on", section.Name)
			continue
		}
		c.runs[section.Section] = unrolled
	}
}

// accesses returns what a step reads and writes, the heads of the cache as a buffer of their own.
func accesses(step *Step) (reads, writes []View) {
	reads, writes = step.In, step.Out
	if step.Heads != nil {
		view := View{Buffer: "\x00cache", R1: 1, C0: step.Heads[0], C1: step.Heads[1]}
		reads = append(slices.Clone(reads), view)
		writes = append(slices.Clone(writes), view)
	}
	return reads, writes
}

// anyOverlap returns the first view of one list that overlaps one of another.
func anyOverlap(list, others []View) (View, bool) {
	for _, view := range list {
		if slices.ContainsFunc(others, view.Overlaps) {
			return view, true
		}
	}
	return View{}, false
}

// races checks rule P009. Two events race if neither precedes the other, their views overlap, and one of them writes.
// It reports the first race only, since one missing flag usually causes many.
func (c *checker) races() {
	for section := range c.plan.Program.sections() {
		if len(section.Lanes) < 2 {
			continue
		}
		unrolled := c.runs[section.Section]
		for b, second := range unrolled.events {
			reads, writes := accesses(second.step)
			for a, first := range unrolled.events[:b] {
				if first.lane == second.lane || unrolled.precedes(a, b) {
					continue
				}
				// The second cannot precede the first, which was executed earlier: no flag of the second reached it.
				readsFirst, writesFirst := accesses(first.step)
				view, hit := anyOverlap(writesFirst, slices.Concat(reads, writes))
				if !hit {
					view, hit = anyOverlap(readsFirst, writes)
				}
				if hit {
					c.fail(section.path(), "%q on %q (iteration %d) and %q on %q (iteration %d) touch %s without an order",
						first.step.Node, section.Lanes[first.lane].Proc, first.iter,
						second.step.Node, section.Lanes[second.lane].Proc, second.iter, view)
					return
				}
			}
		}
	}
}

// written checks rule P010. Written before an event are the ids, the earlier sections of its program, and the events of
// its section that precede it. It reports the first missing element only.
func (c *checker) written() {
	var program *PhaseProgram
	var earlier []View // what is written before the section
	for section := range c.plan.Program.sections() {
		if section.program != program {
			program = section.program
			earlier = []View{{Buffer: program.Own(IDs), R1: program.Rows, C1: 1}}
		}
		unrolled := c.runs[section.Section]
		var have []View
		for b, reader := range unrolled.events {
			if reader.iter != reader.step.Behind {
				continue // has at least what the first layer had
			}
			have = append(have[:0], earlier...)
			for a, writer := range unrolled.events {
				if writer.iter >= writer.step.Behind && unrolled.precedes(a, b) {
					have = append(have, writer.step.Out...)
				}
			}
			rows := program.Rows
			if section.Logits && c.graphOf[reader.step.Run].Graph.Nodes[0].Op.Kind != op.SelectRow {
				rows = 1 // whatever the bucket is
			}
			for _, view := range reader.step.In {
				if !reader.step.Full {
					view.R1 = min(view.R1, max(view.R0+1, rows)) // padding rows need not be written
				}
				if miss, ok := uncovered(view, have); ok {
					c.fail(section.path(), "%q on %q reads %s, which nothing wrote before",
						reader.step.Node, section.Lanes[reader.lane].Proc, miss)
					return
				}
			}
		}
		for _, writer := range unrolled.events {
			if writer.iter == writer.step.Behind {
				earlier = append(earlier, writer.step.Out...)
			}
		}
	}
}

// uncovered returns a part of a view that none of the others covers: what the first that overlaps leaves over, above,
// below, left and right of it, is searched in turn.
func uncovered(view View, have []View) (View, bool) {
	for _, cover := range have {
		if !cover.Overlaps(view) {
			continue
		}
		var rest []View
		if view.R0 < cover.R0 {
			rest = append(rest, View{view.Buffer, view.R0, cover.R0, view.C0, view.C1})
		}
		if cover.R1 < view.R1 {
			rest = append(rest, View{view.Buffer, cover.R1, view.R1, view.C0, view.C1})
		}
		top, bottom := max(view.R0, cover.R0), min(view.R1, cover.R1)
		if view.C0 < cover.C0 {
			rest = append(rest, View{view.Buffer, top, bottom, view.C0, cover.C0})
		}
		if cover.C1 < view.C1 {
			rest = append(rest, View{view.Buffer, top, bottom, cover.C1, view.C1})
		}
		for _, part := range rest {
			if miss, ok := uncovered(part, have); ok {
				return miss, true
			}
		}
		return View{}, false
	}
	return view, true
}
