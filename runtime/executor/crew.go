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
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/runtime/driver"
)

// crew is a thread with the lanes that take turns on it. Processors with the same first core share one: only one of
// them can work at a time anyway, and handing over within a crew costs nothing. A processor without cores has its own,
// or is served by the control crew (joinsControl).
type crew struct {
	lanes []*lane
	spins bool // a lane's processor is polled: the thread does not sleep while that works

	// Written by the control thread, which increments start once work is in place.
	start atomic.Uint64
	work  []*crewSection // in order
	yield atomic.Bool    // others need its core and it has no steps: it must not spin there
	stop  atomic.Bool

	// Written by the crew's own thread.
	seen     uint64        // value of start at the work under way
	done     atomic.Uint64 // value of start at the latest finished work
	failed   error         // of the latest work, until start moves again
	napDelay int64         // ns by which its naps end too late, a running estimate
	exited   chan struct{}

	parked atomic.Bool // the thread waits for wake
	wake   chan struct{}
}

// crewSection is a crew's part of a section, and its progress in the current call.
type crewSection struct {
	crew       *crew
	lanes      []*laneSection // asynchronous ones first
	asyncLanes int            // how many those are
	iters      int
	call       driver.Scalars // of all rows of the call
	runsOn     bool           // calls may still be in flight at its end: see Machine.runsOn
}

// laneSection is a lane's part of a section, and its progress in the current call.
type laneSection struct {
	lane  *lane
	steps []*step

	// The step that the lane runs next; of an asynchronous lane, the step that it submits next.
	iter int
	next int // index in steps

	retired int          // of an asynchronous lane: steps finished in all iterations
	virtual *virtualLane // nil: its clock is real
	missed  *wait        // for traces: the latest flag that was not set

	watched bool // lanes of other threads wait for it
	// Progress for those lanes: 2n while n steps are finished and the next has not begun, 2n+1 once it has. stepBegan
	// is when it did, on the machine's clock in ns. An asynchronous lane updates both for several steps at a time.
	progress  atomic.Int64
	stepBegan atomic.Int64
}

// formCrews gives every lane a thread, the control lane's first.
// RATIONALE: Why do lanes of one core share a thread?
func (m *Machine) formCrews() {
	for _, lane := range append([]*lane{m.control}, m.lanes...) {
		if lane.crew != nil {
			continue // the control lane, which is in m.lanes too
		}
		lane.crew = m.crewFor(lane)
		lane.crew.spins = lane.crew.spins || lane.queue != nil && lane.waiting == capability.WaitPoll
		lane.crew.lanes = append(lane.crew.lanes, lane)
	}
}

// crewFor returns the crew that a lane joins: that of the control lane, that of lanes with the same first core, or a
// new one.
func (m *Machine) crewFor(joining *lane) *crew {
	if joining.queue != nil && joining != m.control && m.joinsControl(joining) {
		return m.control.crew
	}
	// On a simulated SoC every lane has its own: which of two can go on first would depend on real time.
	if cores := joining.proc.Capabilities().Cores; len(cores) > 0 && !joining.virtual {
		for _, crew := range m.crews {
			other := crew.lanes[0]
			theirs := other.proc.Capabilities().Cores
			if !other.virtual && len(theirs) > 0 && theirs[0] == cores[0] {
				return crew
			}
		}
	}
	formed := &crew{wake: make(chan struct{}, 1), exited: make(chan struct{}), napDelay: int64(firstNapDelay)}
	m.crews = append(m.crews, formed)
	return formed
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
	neededCores := map[int]bool{}
	setters := make([]wait, sec.Flags) // by flag
	for _, ls := range sec.lanes {
		for _, core := range ls.lane.proc.Capabilities().Cores {
			neededCores[core] = true
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
		if m.wouldSpinOn(crew, sec, neededCores) {
			sec.yielding = append(sec.yielding, crew)
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
		crew.asyncLanes++
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
			minimizeTimerSlack()
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
	c.yield.Store(false)
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
				break // the later parts would read what was not computed
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
		if c.yield.Load() || time.Now().After(deadline) {
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

// now returns the machine's clock in ns since Open.
func (m *Machine) now() int64 { return int64(time.Since(m.origin)) }

// joinsControl reports whether an asynchronous lane is served by the control thread.
func (m *Machine) joinsControl(l *lane) bool {
	return m.feedsAll || m.plan != nil && m.plan.FedByControl(l.name, m.onControl)
}

// onControl reports whether the control thread computes the inputs of a processor.
func (m *Machine) onControl(name string) bool {
	return slices.ContainsFunc(m.control.crew.lanes, func(l *lane) bool { return l.name == name && l.queue == nil })
}

// usesEveryCore reports whether the plan's processors have every core of the machine, so that a thread that spins takes
// one of them.
func (m *Machine) usesEveryCore() bool {
	cores := map[int]bool{}
	for _, lane := range m.lanes {
		for _, core := range lane.proc.Capabilities().Cores {
			cores[core] = true
		}
	}
	return len(cores) >= runtime.NumCPU()
}
