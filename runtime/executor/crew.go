package executor

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/runtime/driver"
)

// crew is a thread with the lanes that take turns on it: those of processors with the same first
// core, of which only one can work at a time anyway, or one of a processor without cores. Handing
// over within a crew costs nothing.
type crew struct {
	lanes []*lane

	// written by the control thread: start begins sections, whose parts are in work
	start  atomic.Uint64  // incremented to start work
	work   []*crewSection // in order
	rest   atomic.Bool    // others work on its core now: it has no steps, and does not spin there
	parked atomic.Bool
	wake   chan struct{}
	// value of start at the section under way
	seen   uint64
	done   atomic.Uint64 // sections finished
	failed error         // of the latest work, until start moves again
	stop   atomic.Bool
	exited chan struct{}

	spins bool  // it does not sleep while a processor works: a lane says so
	late  int64 // nanoseconds by which its naps end too late, by and large
}

// crewSection is a crew's part of a section, and its progress in the current call.
type crewSection struct {
	crew  *crew
	lanes []*laneSection // asynchronous ones first
	feeds int            // how many those are
	iters int
	call  driver.Scalars // of all rows of the call
	// what is in flight at the end stays there: the next section is the same processor's
	runsOn bool
}

// laneSection is a lane's part of a section, and its progress in the current call.
type laneSection struct {
	lane   *lane
	steps  []*step
	iter   int
	next   int   // step of the iteration
	missed *wait // for traces: the latest flag that was not set
	// of an asynchronous lane, whose iter and next are what it submits: steps finished
	retired int
	virt    *virtualLane

	watched bool // lanes of other threads wait for it
	// at and began tell other threads how far the lane is. at is 2n while n steps are finished and
	// the next has not begun, and 2n+1 once it has; began is when, on the machine's clock in ns. An asynchronous lane
	// tells so for several steps at a time.
	at    atomic.Int64
	began atomic.Int64
}

// formCrews gives every lane a thread, the control lane's first.
// RATIONALE: Why do lanes of one core share a thread?
func (m *Machine) formCrews() {
	lanes := append([]*lane{m.control}, m.lanes...)
	for _, lane := range lanes {
		if lane.crew != nil {
			continue
		}
		i := -1
		// On a simulated SoC every lane has its own: which of two can go on first would depend on real time.
		if cores := lane.proc.Capabilities().Cores; len(cores) > 0 && !lane.virt {
			i = slices.IndexFunc(m.crews, func(c *crew) bool {
				other := c.lanes[0]
				theirs := other.proc.Capabilities().Cores
				return !other.virt && len(theirs) > 0 && theirs[0] == cores[0]
			})
		}
		if lane.queue != nil && lane != m.control && m.joinsControl(lane) {
			i = 0
		}
		if i < 0 {
			i = len(m.crews)
			m.crews = append(m.crews, &crew{wake: make(chan struct{}, 1), exited: make(chan struct{}),
				late: int64(lateFirst)})
		}
		lane.crew = m.crews[i]
		lane.crew.spins = lane.crew.spins || lane.queue != nil && lane.wait == capability.WaitPoll
		lane.crew.lanes = append(lane.crew.lanes, lane)
	}
}

// String names the crew's processors in errors.
func (c *crew) String() string {
	names := make([]string, len(c.lanes))
	for i, lane := range c.lanes {
		names[i] = fmt.Sprintf("%q", lane.name)
	}
	if len(names) == 1 {
		return "processor " + names[0]
	}
	return "one of the processors " + strings.Join(names, ", ")
}

// connectLanes groups the lanes of a section by crew, resolves which steps set the flags that others wait for, and
// finds the crews that must not spin on a core that the section needs.
func (m *Machine) connectLanes(sec *section) {
	needed := map[int]bool{} // cores
	setters := make([]wait, sec.Flags)
	for _, ls := range sec.lanes {
		for _, core := range ls.lane.proc.Capabilities().Cores {
			needed[core] = true
		}
		sec.addLane(ls)
		ls.watched = ls.lane.crew != m.control.crew // the control crew waits for its end
		for position, st := range ls.steps {
			if st.Set != nil {
				setters[*st.Set] = wait{flag: &m.flags[*st.Set], setter: ls, after: position + 1}
			}
		}
	}
	for _, ls := range sec.lanes {
		ls.resolve(setters)
	}
	for _, crew := range m.crews {
		if m.wouldSpinOn(crew, sec, needed) {
			sec.rest = append(sec.rest, crew)
		}
	}
}

// addLane adds a lane to its crew's part of the section. A lane with a queue is fed before the thread computes, so such
// lanes come first.
func (s *section) addLane(ls *laneSection) {
	i := slices.IndexFunc(s.crews, func(cs *crewSection) bool { return cs.crew == ls.lane.crew })
	if i < 0 {
		i = len(s.crews)
		s.crews = append(s.crews, &crewSection{crew: ls.lane.crew})
	}
	crew := s.crews[i]
	if ls.lane.queue != nil {
		crew.lanes = slices.Insert(crew.lanes, 0, ls)
		crew.feeds++
	} else {
		crew.lanes = append(crew.lanes, ls)
	}
}

// resolve turns the flags that a lane's steps wait for into waits for the steps that set them. A queue keeps the order
// of its own steps, which need no waits.
func (ls *laneSection) resolve(setters []wait) {
	for _, st := range ls.steps {
		for _, wait := range st.Wait {
			setter := setters[wait.Flag]
			if wait.Back {
				setter.back = 1
			}
			if setter.setter == ls && ls.lane.queue != nil {
				continue
			}
			st.waits = append(st.waits, setter)
			setter.setter.steps[setter.after-1].awaited = true
			setter.setter.watched = setter.setter.watched || setter.setter.lane.crew != ls.lane.crew
		}
	}
}

// wouldSpinOn reports whether a crew that has no steps in a section would spin on a core that the section needs, or,
// with a queue and on a crowded machine, on any.
func (m *Machine) wouldSpinOn(crew *crew, sec *section, needed map[int]bool) bool {
	if slices.ContainsFunc(sec.crews, func(cs *crewSection) bool { return cs.crew == crew }) {
		return false
	}
	cores := crew.lanes[0].proc.Capabilities().Cores
	if len(cores) > 0 {
		return needed[cores[0]]
	}
	return crew.lanes[0].queue != nil && m.usesEveryCore()
}

// startCrews starts one locked thread per crew. The control crew serves jobs, the others sections.
func (m *Machine) startCrews() error {
	m.started = true
	ready := make(chan error, len(m.crews))
	for _, crew := range m.crews {
		go func() {
			runtime.LockOSThread()      // never unlocked: the thread keeps its pinning and ends with the crew
			debug.SetPanicOnFault(true) // weights may lie in a file that another process truncates
			sharpen()
			defer close(crew.exited)
			var err error
			for _, lane := range crew.attachOrder() {
				if failure := lane.proc.Attach(); failure != nil {
					class := diag.ClassOr(failure, diag.ClassRun)
					err = errors.Join(err, diag.New(class, "attach to processor %q: %w", lane.name, failure))
				}
			}
			ready <- err
			if err != nil {
				return
			}
			if crew == m.control.crew {
				for j := range m.jobs {
					j.done <- j.run()
				}
				return
			}
			m.serve(crew)
		}()
	}
	var err error
	for range m.crews {
		err = errors.Join(err, <-ready)
	}
	return err
}

// attachOrder returns the crew's lanes with those of processors without cores first: threads that these start inherit
// where the thread may run, and it is not pinned yet.
func (c *crew) attachOrder() []*lane {
	lanes := slices.Clone(c.lanes)
	slices.SortStableFunc(lanes, func(a, b *lane) int {
		return min(1, len(a.proc.Capabilities().Cores)) - min(1, len(b.proc.Capabilities().Cores))
	})
	return lanes
}

// begin starts the crew's part of a section, and wakes it if it is parked.
func (c *crew) begin() {
	c.rest.Store(false)
	c.start.Add(1)
	if c.parked.Load() {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// serve runs the sections given to a crew until it is stopped.
func (m *Machine) serve(c *crew) {
	for {
		c.waitForWork()
		if c.stop.Load() {
			return
		}
		c.failed = nil
		for _, part := range c.work {
			if c.failed = m.walk(part); c.failed != nil {
				m.fail(c.failed)
			}
			if !part.finished() {
				break // the rest would work on what is not there
			}
		}
		c.done.Store(c.seen)
	}
}

// waitForWork returns when start has moved. It spins for a while, unless its core is needed, and then
// parks.
func (c *crew) waitForWork() {
	moved := func() bool { return c.start.Load() != c.seen }
	deadline := time.Now().Add(idleSpin)
	for !moved() {
		for i := 0; i < 256 && !moved(); i++ {
		}
		if c.rest.Load() || time.Now().After(deadline) {
			c.parked.Store(true)
			// start may have moved before parked was set: look again, or the wake-up is lost
			if !moved() {
				<-c.wake
			}
			c.parked.Store(false)
		}
	}
	c.seen++
}

// reset prepares for the first step of a call.
func (cs *crewSection) reset(iters int, call driver.Scalars, runsOn bool) {
	cs.iters, cs.call, cs.runsOn = iters, call, runsOn
	for _, ls := range cs.lanes {
		ls.iter, ls.next, ls.retired = 0, 0, 0
		ls.at.Store(0)
	}
}

// finished reports whether all lanes have run all iterations.
func (cs *crewSection) finished() bool {
	return !slices.ContainsFunc(cs.lanes, func(ls *laneSection) bool { return !ls.isFinished(cs) })
}

// walk executes the steps of a crew's lanes in one section. It runs each lane as far as its flags
// are set, at most to the end of an iteration, and waits when no lane can go on. Lanes never wait
// in a cycle (rule P008), so a thread only waits for threads and processors that work. When it returns, nothing is in
// flight, unless the section runs on into the next or a processor hangs.
func (m *Machine) walk(cs *crewSection) error {
	err := m.walkSteps(cs)
	if err != nil {
		m.fail(err) // so that the other lanes stop meanwhile
	}
	if err != nil || cs.feeds > 0 && !cs.finished() {
		m.drain(cs.lanes)
	}
	return err
}

// walkSteps is walk until the first failure.
func (m *Machine) walkSteps(cs *crewSection) error {
	for !cs.finished() {
		moved := false
		for _, ls := range cs.lanes {
			if ls.isFinished(cs) {
				continue
			}
			ran, err := m.advance(cs, ls)
			if err != nil {
				return err
			}
			if m.poison.Load() != nil {
				return nil // another lane failed and has said why
			}
			moved = moved || ran
		}
		if !moved {
			if err := m.waitForFlag(cs); err != nil {
				return err
			}
		}
	}
	return nil
}

// advance runs a lane's steps until the end of the iteration, or until one must wait. It returns
// whether any step ran. Between two steps it feeds the asynchronous lanes of its thread.
func (m *Machine) advance(cs *crewSection, ls *laneSection) (bool, error) {
	if ls.lane.queue != nil {
		return m.feed(cs, ls)
	}
	ran := false
	for ls.next < len(ls.steps) {
		st := ls.steps[ls.next]
		if m.poison.Load() != nil || ls.blocked() != nil {
			return ran, nil
		}
		if err := m.run(cs, ls, st); err != nil {
			return ran, err
		}
		if st.Set != nil {
			m.flags[*st.Set].epoch.Store(int64(ls.iter) + 1)
		}
		m.steps.Add(1)
		ls.next++
		ran = true
		for _, other := range cs.lanes[:cs.feeds] {
			if other.isFinished(cs) {
				continue
			}
			if _, err := m.feed(cs, other); err != nil {
				return ran, err
			}
		}
	}
	ls.iter, ls.next = ls.iter+1, 0
	return true, nil
}

// run executes a lane's next step on the rows that the call has for it: none, if the call has
// fewer.
func (m *Machine) run(cs *crewSection, ls *laneSection, st *step) error {
	lane, call := ls.lane, &cs.call
	number := int64(ls.iter*len(ls.steps) + ls.next)
	if rows := st.prepare(lane, call, ls.iter); rows > 0 {
		bound := &st.calls[ls.iter]
		// tell the lanes that wait when the step began, so that they can sleep
		if ls.watched && st.estimateNS.Load() > int64(shortNap) { // no lane sleeps through a shorter one
			ls.began.Store(m.now())
			ls.at.Store(2*number + 1)
		}
		var from int64
		if m.trace != nil {
			from = m.now()
		}
		span, err := lane.execute(bound)
		if m.trace != nil && !lane.virt {
			m.trace.add(lane, st, nil, ls.iter, rows, from, m.now())
		}
		if err != nil {
			return m.failure(ls, st, ls.iter, err)
		}
		if m.observe != nil {
			m.observe(Observed{Node: st.Node, Layer: st.layer(ls.iter), Graph: st.graph, Rows: rows,
				In: bound.bind.In, Out: bound.bind.Out})
		}
		if bound.dispatched != nil {
			bound.dispatched.count(rows)
		}
		took := int64(span.End - span.Start)
		if ls.virt != nil {
			ls.storeWork(number, rows)
		} else {
			st.runNS += took
			st.runCount++
			if ls.watched {
				st.correctExpected(took)
			}
		}
	}
	if ls.watched {
		ls.at.Store(2*number + 2)
	}
	return nil
}

// prepare sets the scalars of a step to the rows that a call has for it, and returns how many: none, if the call has
// fewer, or if the step has no layer in this iteration.
func (st *step) prepare(lane *lane, call *driver.Scalars, iter int) int {
	rows := min(call.Rows-st.R0, st.rows)
	if rows <= 0 && !st.Full || !st.works(iter) {
		return 0
	}
	if st.Full || !lane.dynamic && !st.counts {
		rows = st.rows // rows beyond the call's hold what earlier calls left, and are not read
	}
	st.scalars = *call
	st.scalars.Pos, st.scalars.Rows, st.scalars.KVLen = call.Pos+st.R0, rows, call.Pos+st.R0+rows
	if call.Batch != nil {
		st.scalars.Batch = call.Batch[st.R0:]
	}
	return rows
}

// execute runs a call. Weights whose mapped file has vanished are an error: the thread has
// SetPanicOnFault.
func (l *lane) execute(c *call) (span driver.Span, err error) {
	l.executes.Store(c)
	defer func() {
		l.executes.Store(nil)
		if fault := mem.Recovered(recover()); fault != nil {
			err = fault
		}
	}()
	return l.proc.Run(c.exe, &c.bind)
}

// correctExpected corrects the expected duration of a step by the latest one: at once when it is shorter,
// because waiting lanes must not oversleep, and slowly when it is longer.
func (st *step) correctExpected(took int64) {
	if have := st.estimateNS.Load(); have > took {
		st.estimateNS.Store(took)
	} else if have > 0 {
		st.estimateNS.Store(have + (took-have)/64)
	}
}

// now returns the machine's clock in ns since Open.
func (m *Machine) now() int64 { return int64(time.Since(m.origin)) }
