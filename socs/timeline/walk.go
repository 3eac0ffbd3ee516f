package timeline

import (
	"math"
	"slices"
)

// Machine is what lanes run on: the memory they share, and what they cost each other.
type Machine struct {
	Memory
	// Handover is the time from one processor's setting of a flag to another's noticing it, in nanoseconds; nil: none.
	Handover func(from, to string) float64
}

// Lane is the steps of one processor in one section.
type Lane struct {
	Proc string
	// Thread is what executes the lane: lanes with the same number take turns. Steps of one thread never overlap.
	Thread int
	Steps  []Step // of one iteration
	// Endless lanes repeat their first iteration until all others are done; no step waits for them. One whose iteration
	// takes next to nothing beside the work of the others is walked in longer steps, and one that takes nothing is left
	// out.
	Endless bool
	// SubmitNS is how long Feeder, a thread that also computes, takes to give the processor one step; 0: no time. Steps
	// are given in order, as soon as what they wait for is there and before the thread computes on.
	SubmitNS float64
	Feeder   int
}

// Step is one step of a lane.
type Step struct{ After []After }

// After is a step, of this iteration or the one before (Back), whose flag a step waits for.
type After struct {
	Lane, Step int
	Back       bool
}

// Section is lanes that repeat their steps. Control is the processor that starts it: the lanes of others begin when
// they have noticed, and the section ends when Control has noticed that all are done. "" starts and ends at no cost.
type Section struct {
	Lanes      []Lane
	Iterations int
	Control    string
}

// Work is where a walk learns what steps do, and where it tells when they ran.
type Work interface {
	// Phases are those of a step, one after the other. They are not changed, and stay where they are during the walk.
	Phases(lane, step, iteration int) []Phase
	// Ran tells when a step started and ended, in nanoseconds from the start of the section, and since when its
	// thread had had nothing to do.
	Ran(lane, step, iteration int, idle, start, end int64)
}

// Walk goes through a section event by event and returns the time until Control has noticed its end. An event is the
// end of a set-up, the end of a phase, or the start of a step; between two events every activity proceeds at a
// constant speed, which the memory decides. Steps of a lane run in order. A step starts once its thread is free and
// it has noticed all flags that it waits for; a flag that was set long ago costs nothing. ok is false when lanes wait
// in a circle.
func Walk(m *Machine, section *Section, work Work) (ns int64, ok bool) {
	state := walk{machine: m, work: work, given: len(section.Lanes), slow: map[[4]*Phase][4]float64{}}
	state.section, state.feeds = submitted(section)
	state.prepare()
	state.lengthen()
	for state.left > 0 {
		if !state.event() {
			return 0, false
		}
	}
	end := 0.0
	for i := range state.lanes {
		if lane := &state.section.Lanes[i]; len(lane.Steps) > 0 && !lane.Endless {
			end = max(end, state.lanes[i].end+state.handover(lane.Proc, section.Control))
		}
	}
	return whole(end), true
}

// submitted returns a section with a lane more for each processor that a computing thread feeds: the submissions, which
// that thread makes, and which the processor's steps wait for. What these waited for is waited for by the submissions.
// feeds is whose they are.
func submitted(section *Section) (with *Section, feeds []int) {
	out := *section
	out.Lanes = slices.Clone(section.Lanes)
	for i := range section.Lanes {
		fed := &section.Lanes[i]
		if !fed.fed() {
			continue
		}
		submissions := Lane{Proc: section.Control, Thread: fed.Feeder, Steps: make([]Step, len(fed.Steps))}
		steps := make([]Step, len(fed.Steps))
		for k := range fed.Steps {
			for _, after := range fed.Steps[k].After {
				if after.Lane != i { // the processor keeps the order of its own
					submissions.Steps[k].After = append(submissions.Steps[k].After, after)
				}
			}
			steps[k].After = []After{{Lane: len(out.Lanes), Step: k}}
		}
		out.Lanes[i].Steps = steps
		out.Lanes, feeds = append(out.Lanes, submissions), append(feeds, i)
	}
	return &out, feeds
}

// fed reports whether a thread that computes besides gives the lane its steps.
func (l *Lane) fed() bool { return l.SubmitNS > 0 && !l.Endless && len(l.Steps) > 0 }

// walk is the state of a simulation, which moves from event to event in virtual ns.
type walk struct {
	machine    *Machine
	section    *Section
	given      int   // lanes of the caller's; behind them are submissions
	feeds      []int // lanes that each of these feeds
	work       Work
	iterations int
	left       int // lanes that are not done
	now        float64
	lanes      []laneState
	threads    []threadState
	slow       map[[4]*Phase][4]float64 // answers of the memory

	activities []Activity // scratch
	factors    []float64
}

// laneState is how far a lane is.
type laneState struct {
	iteration, step int
	done            bool
	end             float64   // of its latest step
	ends            []float64 // of all its steps so far
	submission      []Phase   // what each takes, in a lane of submissions
	longer          [][]Phase // steps of an endless lane that are walked as longer ones
}

// threadState is what a thread does.
type threadState struct {
	lanes  []int
	feeds  []int // lanes of submissions, which come before all others
	first  int   // index in lanes: the one that is asked first
	lane   int   // -1: none, it waits
	idle   float64
	start  float64
	phases []Phase
	phase  int
	setup  float64 // left of it, ns
	work   float64 // left of the phase after its set-up, ns at full speed
	factor float64 // of the time that it takes
}

// handover returns the time of passing a flag in ns, 0 within one processor.
func (w *walk) handover(from, to string) float64 {
	if w.machine.Handover == nil || from == "" || to == "" || from == to {
		return 0
	}
	return w.machine.Handover(from, to)
}

// reaches returns the time in ns from the end of a step of one lane until a step of another knows. Of a processor that
// a computing thread feeds, submitting is a step by itself.
func (w *walk) reaches(from, to int) float64 {
	lanes := w.section.Lanes
	way := w.handover(lanes[from].Proc, lanes[to].Proc)
	if from >= w.given {
		return max(0, way-lanes[to].SubmitNS)
	}
	return way
}

// phases returns those of a lane's next step. A step without any is not submitted.
func (w *walk) phases(lane int) []Phase {
	state := &w.lanes[lane]
	switch {
	case state.longer != nil:
		return state.longer[state.step]
	case lane < w.given:
		return w.work.Phases(lane, state.step, state.iteration)
	}
	if len(w.work.Phases(w.feeds[lane-w.given], state.step, state.iteration)) == 0 {
		return nil
	}
	return state.submission
}

// prepare gives lanes their threads, and every thread its lanes in turn.
func (w *walk) prepare() {
	section := w.section
	w.iterations = max(1, section.Iterations)
	w.lanes = make([]laneState, len(section.Lanes))
	threads := map[int]int{}
	for i := range section.Lanes {
		lane := &section.Lanes[i]
		thread, ok := threads[lane.Thread]
		if !ok {
			thread = len(w.threads)
			threads[lane.Thread] = thread
			w.threads = append(w.threads, threadState{lane: -1})
		}
		if i >= w.given {
			w.lanes[i].submission = []Phase{{SetupNS: section.Lanes[w.feeds[i-w.given]].SubmitNS}}
			w.threads[thread].feeds = append(w.threads[thread].feeds, i)
		} else {
			w.threads[thread].lanes = append(w.threads[thread].lanes, i)
		}
		if !lane.fed() { // others get their first step from the thread that feeds them
			w.lanes[i].end = w.handover(section.Control, lane.Proc)
		}
		w.lanes[i].done = len(lane.Steps) == 0
		if !w.lanes[i].done && !lane.Endless {
			w.left++
		}
	}
}

// mostRounds is how often an endless lane is repeated while the others work: more of it changes next to nothing, and a
// file that describes one processor as absurdly slow beside another would keep a walk busy for ever.
const mostRounds = 1000

// lengthen makes the steps of endless lanes so long that they are repeated mostRounds times at most.
func (w *walk) lengthen() {
	iteration := func(lane int) (sum float64) {
		for step := range w.section.Lanes[lane].Steps {
			sum += ns(w.work.Phases(lane, step, 0))
		}
		return sum
	}
	long := 0.0
	for i := range w.given {
		if !w.section.Lanes[i].Endless {
			long += float64(w.iterations) * iteration(i)
		}
	}
	for i := range w.given {
		state, lane := &w.lanes[i], &w.section.Lanes[i]
		if state.done || !lane.Endless {
			continue
		}
		own := iteration(i)
		factor := long / own / mostRounds
		switch {
		case own == 0:
			state.done = true
		case factor > 1:
			for step := range lane.Steps {
				phases := slices.Clone(w.work.Phases(i, step, 0))
				for k := range phases {
					phases[k] = phases[k].Times(factor)
				}
				state.longer = append(state.longer, phases)
			}
		}
	}
}

// event starts what can start, and moves on to the next event. It returns false when there is none.
func (w *walk) event() bool {
	next, passed := math.Inf(1), math.Inf(1)
	for number := range w.threads {
		if state := &w.threads[number]; state.lane < 0 {
			next = min(next, w.begin(state))
		}
	}
	// speeds hold until the next event
	w.contend()
	for number := range w.threads {
		if state := &w.threads[number]; state.lane >= 0 {
			passed = min(passed, state.remaining())
		}
	}
	if math.IsInf(next, 1) && math.IsInf(passed, 1) {
		return false
	}
	// move the clock to the next start or the next end, whichever is earlier
	if passed < next-w.now {
		w.now += passed
	} else {
		passed, w.now = next-w.now, next
	}
	for number := range w.threads {
		if state := &w.threads[number]; state.lane >= 0 {
			w.proceed(state, passed)
		}
	}
	return true
}

// begin starts a step of an idle thread, if one can start now. Otherwise it returns when one can, as far as that is
// known.
func (w *walk) begin(thread *threadState) float64 {
	soonest := math.Inf(1)
	starts := func(lane int) bool {
		state := &w.lanes[lane]
		if state.done {
			return false
		}
		at, known := w.ready(lane)
		if !known || at > w.now {
			if known {
				soonest = min(soonest, at)
			}
			return false
		}
		thread.lane, thread.start, thread.phase = lane, w.now, -1
		thread.phases = w.phases(lane)
		thread.enter()
		return true
	}
	if slices.ContainsFunc(thread.feeds, starts) {
		return math.Inf(1)
	}
	for i := range thread.lanes {
		number := (thread.first + i) % len(thread.lanes)
		if starts(thread.lanes[number]) {
			thread.first = number
			return math.Inf(1)
		}
	}
	return soonest
}

// ready is when the next step of a lane has noticed all flags that it waits for; false while one is not set.
func (w *walk) ready(lane int) (at float64, known bool) {
	state := &w.lanes[lane]
	at = state.end
	for _, after := range w.section.Lanes[lane].Steps[state.step].After {
		iteration := state.iteration
		if after.Back {
			iteration--
		}
		if iteration < 0 {
			continue
		}
		number := iteration*len(w.section.Lanes[after.Lane].Steps) + after.Step
		ends := w.lanes[after.Lane].ends
		if number >= len(ends) {
			return 0, false
		}
		at = max(at, ends[number]+w.reaches(after.Lane, lane))
	}
	return at, true
}

// enter moves to the next phase that takes any time; false when there is none.
func (t *threadState) enter() bool {
	for t.phase++; t.phase < len(t.phases); t.phase++ {
		phase := &t.phases[t.phase]
		if t.setup, t.work, t.factor = phase.SetupNS, phase.work(1, 1), 1; t.setup > 0 || t.work > 0 {
			return true
		}
	}
	t.setup, t.work = 0, 0
	return false
}

// remaining returns the time until the thread's next event at its present speed.
func (t *threadState) remaining() float64 {
	if t.setup > 0 {
		return t.setup
	}
	return float64(t.work * t.factor)
}

// working reports whether a thread is in a phase, past its set-up.
func (t *threadState) working() bool { return t.lane >= 0 && t.setup == 0 && t.work > 0 }

// contend decides how fast activities proceed. Layers repeat each other: what the memory has answered is kept.
func (w *walk) contend() {
	w.activities = w.activities[:0]
	var key [4]*Phase
	for number := range w.threads {
		if state := &w.threads[number]; state.working() {
			if count := len(w.activities); count < len(key) {
				key[count] = &state.phases[state.phase]
			}
			w.activities = append(w.activities, Activity{w.section.Lanes[state.lane].Proc, &state.phases[state.phase]})
		}
	}
	if len(w.activities) > len(key) {
		w.factors = w.machine.Slow(w.activities, w.factors)
	} else {
		known, ok := w.slow[key]
		if !ok {
			w.factors = w.machine.Slow(w.activities, w.factors)
			copy(known[:], w.factors)
			w.slow[key] = known
		}
		w.factors = append(w.factors[:0], known[:len(w.activities)]...)
	}
	i := 0
	for number := range w.threads {
		if state := &w.threads[number]; state.working() {
			state.factor = w.factors[i]
			i++
		}
	}
}

// hair is less than anything takes, in nanoseconds: what rounding leaves over.
const hair = 1e-3

// proceed lets time pass for a thread, at most until its next event.
func (w *walk) proceed(thread *threadState, passed float64) {
	rest := thread.remaining() - passed
	switch {
	case thread.setup > 0 && rest > hair:
		thread.setup = rest
	case thread.setup > 0 && thread.work > 0:
		thread.setup = 0
	case rest > hair:
		thread.work = rest / thread.factor
	case !thread.enter():
		w.finish(thread)
	}
}

// finish ends the step of a thread.
func (w *walk) finish(thread *threadState) {
	lane, from := &w.lanes[thread.lane], &w.section.Lanes[thread.lane]
	if thread.lane < w.given {
		w.work.Ran(thread.lane, lane.step, lane.iteration, whole(thread.idle), whole(thread.start), whole(w.now))
	}
	lane.end, thread.idle = w.now, w.now
	if !from.Endless {
		lane.ends = append(lane.ends, w.now)
	}
	if lane.step++; lane.step == len(from.Steps) {
		lane.step = 0
		lane.iteration++
		if thread.lane < w.given {
			thread.first++ // another lane of the thread has its turn
		}
		if lane.iteration == w.iterations && !from.Endless {
			lane.done = true
			w.left--
		}
	}
	thread.lane = -1
}

// whole rounds to nanoseconds, in which plans state times.
func whole(ns float64) int64 { return int64(math.Round(ns)) }

// times is the work of lanes of one step each, and the ends of them.
type times struct {
	phases [][]Phase
	ends   []float64
}

// Phases returns those of the lane's only step.
func (x *times) Phases(lane, _, _ int) []Phase { return x.phases[lane] }

// Ran keeps the end: all lanes start at 0.
func (x *times) Ran(lane, _, _ int, _, _, end int64) { x.ends[lane] = float64(end) }

// Together returns how long activities take that start at the same time on distinct processors.
func Together(m *Machine, procs []string, phases [][]Phase) []float64 {
	section, measured := Section{}, times{phases, make([]float64, len(phases))}
	for i := range procs {
		section.Lanes = append(section.Lanes, Lane{Proc: procs[i], Thread: i, Steps: make([]Step, 1)})
	}
	Walk(m, &section, &measured)
	return measured.ends
}

// Beside returns how long the first activity takes while the others are repeated all along.
func Beside(machine *Machine, procs []string, phases [][]Phase) float64 {
	section, measured := Section{}, times{phases, make([]float64, len(phases))}
	for i := range procs {
		section.Lanes = append(section.Lanes, Lane{Proc: procs[i], Thread: i, Steps: make([]Step, 1), Endless: i > 0})
	}
	Walk(machine, &section, &measured)
	return measured.ends[0]
}

// ns returns the time of phases alone.
func ns(phases []Phase) float64 {
	sum := 0.0
	for i := range phases {
		sum += phases[i].NS()
	}
	return sum
}
