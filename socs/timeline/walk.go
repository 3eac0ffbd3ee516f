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
	// Endless lanes repeat their steps until all others are done; nobody waits for them.
	Endless bool
}

// Step is one step of a lane.
type Step struct{ After []After }

// After is a step, of this iteration or the one before (Back), whose flag a step waits for.
type After struct {
	Lane, Step int
	Back       bool
}

// Section is lanes that repeat their steps. Control is the processor that starts it: the lanes of others begin when they
// have noticed, and the section ends when Control has noticed that all are done. "" starts and ends at no cost.
type Section struct {
	Lanes      []Lane
	Iterations int
	Control    string
}

// Work is where a walk learns what steps do, and where it tells when they ran.
type Work interface {
	// Phases are those of a step, one after the other. They are not changed, and stay where they are during the walk.
	Phases(lane, step, iteration int) []Phase
	// Ran tells when a step started and ended, in nanoseconds from the start of the section, and since when its thread had
	// had nothing to do.
	Ran(lane, step, iteration int, idle, start, end int64)
}

// Walk goes through a section event by event and returns the time until Control has noticed its end. An event is the end
// of a set-up, the end of a phase, or the start of a step; between two events every activity proceeds at a constant
// speed, which the memory decides. Steps of a lane run in order. A step starts once its thread is free and it has noticed
// all flags that it waits for; a flag that was set long ago costs nothing. ok is false when lanes wait in a circle.
func Walk(m *Machine, s *Section, work Work) (ns int64, ok bool) {
	w := walk{machine: m, section: s, work: work, slow: map[[4]*Phase][4]float64{}}
	w.prepare()
	for w.left > 0 {
		if !w.event() {
			return 0, false
		}
	}
	end := 0.0
	for i := range w.lanes {
		if l := &s.Lanes[i]; len(l.Steps) > 0 && !l.Endless {
			end = max(end, w.lanes[i].end+w.handover(l.Proc, s.Control))
		}
	}
	return whole(end), true
}

type walk struct {
	machine    *Machine
	section    *Section
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
}

// threadState is what a thread does.
type threadState struct {
	lanes  []int
	first  int // index in lanes: who is asked first
	lane   int // -1: none, it waits
	idle   float64
	start  float64
	phases []Phase
	phase  int
	setup  float64 // left of it, ns
	work   float64 // left of the phase after its set-up, ns at full speed
	factor float64 // of the time that it takes
}

func (w *walk) handover(from, to string) float64 {
	if w.machine.Handover == nil || from == "" || to == "" || from == to {
		return 0
	}
	return w.machine.Handover(from, to)
}

func (w *walk) prepare() {
	s := w.section
	w.iterations = max(1, s.Iterations)
	w.lanes = make([]laneState, len(s.Lanes))
	threads := map[int]int{}
	for i := range s.Lanes {
		l := &s.Lanes[i]
		k, ok := threads[l.Thread]
		if !ok {
			k = len(w.threads)
			threads[l.Thread] = k
			w.threads = append(w.threads, threadState{lane: -1})
		}
		w.threads[k].lanes = append(w.threads[k].lanes, i)
		w.lanes[i].end = w.handover(s.Control, l.Proc)
		w.lanes[i].done = len(l.Steps) == 0
		if !w.lanes[i].done && !l.Endless {
			w.left++
		}
	}
}

// event starts what can start, and moves on to the next event. It returns false when there is none.
func (w *walk) event() bool {
	next, passed := math.Inf(1), math.Inf(1)
	for k := range w.threads {
		if t := &w.threads[k]; t.lane < 0 {
			next = min(next, w.begin(t))
		}
	}
	w.contend()
	for k := range w.threads {
		if t := &w.threads[k]; t.lane >= 0 {
			passed = min(passed, t.remaining())
		}
	}
	if math.IsInf(next, 1) && math.IsInf(passed, 1) {
		return false
	}
	if passed < next-w.now {
		w.now += passed
	} else {
		passed, w.now = next-w.now, next
	}
	for k := range w.threads {
		if t := &w.threads[k]; t.lane >= 0 {
			w.proceed(t, passed)
		}
	}
	return true
}

// begin starts a step of an idle thread, if one can start now. Otherwise it returns when one can, as far as that is known.
func (w *walk) begin(t *threadState) float64 {
	soonest := math.Inf(1)
	for i := range t.lanes {
		k := (t.first + i) % len(t.lanes)
		lane := t.lanes[k]
		l := &w.lanes[lane]
		if l.done {
			continue
		}
		at, known := w.ready(lane)
		if !known || at > w.now {
			if known {
				soonest = min(soonest, at)
			}
			continue
		}
		t.first, t.lane, t.start, t.phase = k, lane, w.now, -1
		t.phases = w.work.Phases(lane, l.step, l.iteration)
		t.enter()
		return math.Inf(1)
	}
	return soonest
}

// ready is when the next step of a lane has noticed all flags that it waits for; false while one is not set.
func (w *walk) ready(lane int) (at float64, known bool) {
	l := &w.lanes[lane]
	at = l.end
	for _, a := range w.section.Lanes[lane].Steps[l.step].After {
		iteration := l.iteration
		if a.Back {
			iteration--
		}
		if iteration < 0 {
			continue
		}
		from := &w.section.Lanes[a.Lane]
		number := iteration*len(from.Steps) + a.Step
		ends := w.lanes[a.Lane].ends
		if number >= len(ends) {
			return 0, false
		}
		at = max(at, ends[number]+w.handover(from.Proc, w.section.Lanes[lane].Proc))
	}
	return at, true
}

// enter moves to the next phase that takes any time; false when there is none.
func (t *threadState) enter() bool {
	for t.phase++; t.phase < len(t.phases); t.phase++ {
		p := &t.phases[t.phase]
		if t.setup, t.work, t.factor = p.SetupNS, p.work(1, 1), 1; t.setup > 0 || t.work > 0 {
			return true
		}
	}
	t.setup, t.work = 0, 0
	return false
}

// remaining is the time until the thread's next event at its present speed.
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
	for k := range w.threads {
		if t := &w.threads[k]; t.working() {
			if n := len(w.activities); n < len(key) {
				key[n] = &t.phases[t.phase]
			}
			w.activities = append(w.activities, Activity{w.section.Lanes[t.lane].Proc, &t.phases[t.phase]})
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
	for k := range w.threads {
		if t := &w.threads[k]; t.working() {
			t.factor = w.factors[i]
			i++
		}
	}
}

// hair is less than anything takes, in nanoseconds: what rounding leaves over.
const hair = 1e-3

// proceed lets time pass for a thread, at most until its next event.
func (w *walk) proceed(t *threadState, passed float64) {
	rest := t.remaining() - passed
	switch {
	case t.setup > 0 && rest > hair:
		t.setup = rest
	case t.setup > 0 && t.work > 0:
		t.setup = 0
	case rest > hair:
		t.work = rest / t.factor
	case !t.enter():
		w.finish(t)
	}
}

// finish ends the step of a thread.
func (w *walk) finish(t *threadState) {
	l, from := &w.lanes[t.lane], &w.section.Lanes[t.lane]
	w.work.Ran(t.lane, l.step, l.iteration, whole(t.idle), whole(t.start), whole(w.now))
	l.end, t.idle = w.now, w.now
	if !from.Endless {
		l.ends = append(l.ends, w.now)
	}
	if l.step++; l.step == len(from.Steps) {
		l.step = 0
		l.iteration++
		t.first++ // another lane of the thread has its turn
		if l.iteration == w.iterations && !from.Endless {
			l.done = true
			w.left--
		}
	}
	t.lane = -1
}

func whole(ns float64) int64 { return int64(math.Round(ns)) }

// times is the work of lanes of one step each, and the ends of them.
type times struct {
	phases [][]Phase
	ends   []float64
}

func (x *times) Phases(lane, _, _ int) []Phase { return x.phases[lane] }

func (x *times) Ran(lane, _, _ int, _, _, end int64) { x.ends[lane] = float64(end) }

// Together is how long activities take that start at the same time on distinct processors.
func Together(m *Machine, procs []string, phases [][]Phase) []float64 {
	s, x := Section{}, times{phases, make([]float64, len(phases))}
	for i := range procs {
		s.Lanes = append(s.Lanes, Lane{Proc: procs[i], Thread: i, Steps: make([]Step, 1)})
	}
	Walk(m, &s, &x)
	return x.ends
}

// Beside is how long the first activity takes while the others are repeated all along.
func Beside(m *Machine, procs []string, phases [][]Phase) float64 {
	const rounds = 1000 // more of them only take time
	s, x := Section{}, times{slices.Clone(phases), make([]float64, len(phases))}
	long := ns(phases[0])
	for i := range procs {
		l := Lane{Proc: procs[i], Thread: i, Steps: make([]Step, 1), Endless: i > 0}
		if i > 0 {
			own := ns(phases[i])
			if own == 0 {
				l.Steps = nil
			} else if factor := long / own / rounds; factor > 1 {
				x.phases[i] = slices.Clone(phases[i])
				for k := range x.phases[i] {
					x.phases[i][k] = phases[i][k].Times(factor)
				}
			}
		}
		s.Lanes = append(s.Lanes, l)
	}
	Walk(m, &s, &x)
	return x.ends[0]
}

// ns is the time of phases alone.
func ns(phases []Phase) float64 {
	sum := 0.0
	for i := range phases {
		sum += phases[i].NS()
	}
	return sum
}
