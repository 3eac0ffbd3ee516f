package executor

import (
	"runtime"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
)

// blocked returns a flag that the lane's next step still waits for, nil when it can go on.
func (ls *laneSection) blocked() *wait {
	st := ls.steps[ls.next]
	for i := range st.waits {
		if wait := &st.waits[i]; wait.flag.epoch.Load() < int64(ls.iter)+1-wait.back {
			return wait
		}
	}
	return nil
}

// waitForFlag waits until a lane of the crew can go on, and counts the time for its next step.
func (m *Machine) waitForFlag(cs *crewSection) error {
	if cs.asyncLanes > 0 && m.waitInDriver(cs) {
		return nil
	}
	began := m.now()
	for _, ls := range cs.lanes[cs.asyncLanes:] {
		ls.missed = nil
	}
	for _, ls := range cs.lanes[:cs.asyncLanes] {
		ls.lane.queue.chooseTarget()
	}
	var next *laneSection // nil: an asynchronous one
	ready := func() (found bool) {
		next, found = m.findReady(cs)
		return found
	}
	over := func(waited int64) bool { return m.poison.Load() != nil || waited > int64(m.deadline) }
	if !m.await(cs.crew, ready, cs.untilReady, over) {
		if m.poison.Load() != nil {
			return nil
		}
		return m.overdue(cs)
	}
	if next == nil || next.lane.virtual {
		return nil
	}
	st, now := next.steps[next.next], m.now()
	st.waitNS += now - began
	if m.trace != nil && next.missed != nil { // nil: it was set meanwhile
		m.trace.add(next.lane, st, next.missed, next.iter, 0, began, now)
	}
	return nil
}

// findReady looks once for a lane of the crew that can go on: an asynchronous one whose awaited call is done or that
// can submit its next step (lane is nil then), or the lane whose next step waits for no flag.
func (m *Machine) findReady(cs *crewSection) (lane *laneSection, found bool) {
	for _, ls := range cs.lanes[:cs.asyncLanes] {
		queue := ls.lane.queue
		if queue.awaited > 0 && queue.isDone(queue.awaited) {
			return nil, true
		}
		if ls.iter == cs.iters || queue.count == driver.MaxInFlight {
			continue
		}
		wait := ls.blocked()
		if wait == nil {
			return nil, true
		}
		ls.missed = wait
	}
	for _, ls := range cs.lanes[cs.asyncLanes:] {
		if ls.iter == cs.iters {
			continue
		}
		wait := ls.blocked()
		if wait == nil {
			return ls, true
		}
		if m.trace != nil {
			ls.missed = wait
		}
	}
	return nil, false
}

// overdue returns the error about the lane that waited until the deadline, and the step it waited for;
// nil if it can go on now.
func (m *Machine) overdue(cs *crewSection) error {
	working := false
	for _, ls := range cs.lanes[:cs.asyncLanes] {
		working = working || ls.lane.queue.count > 0
		if err := m.overdueCall(ls); err != nil {
			return err
		}
	}
	if working {
		return nil // and makes progress
	}
	for _, ls := range cs.lanes {
		if ls.iter == cs.iters {
			continue
		}
		wait := ls.blocked()
		if wait == nil {
			return nil // just in time
		}
		if wait.setter.lane.crew != cs.crew {
			by := wait.setter.steps[wait.after-1]
			return diag.New(diag.ClassRun,
				"step %q on processor %q waited %v for flag %d of step %q on processor %q; %s", ls.steps[ls.next].Node,
				ls.lane.name, m.deadline, *by.Set, by.Node, wait.setter.lane.name, m.describeWork())
		}
	}
	panic("BUG: lanes of one thread wait for each other, which rule P008 excludes")
}

// untilReady returns a lower bound, in ns, of the time until a lane of the crew can go on, by the expected durations of
// the steps that it waits for.
func (cs *crewSection) untilReady(now int64) int64 {
	least := int64(-1)
	note := func(need int64) {
		if least < 0 || need < least {
			least = need
		}
	}
	for _, ls := range cs.lanes {
		if queue := ls.lane.queue; queue != nil {
			if target := queue.target(); target > 0 {
				note(queue.remaining(target, now))
			}
			if queue.count == driver.MaxInFlight {
				continue
			}
		}
		if ls.iter == cs.iters {
			continue
		}
		if need, known := ls.untilUnblocked(now); known {
			note(need)
		}
	}
	return max(least, 0)
}

// untilUnblocked returns a lower bound, in ns, of the time until the flags that the lane's next step waits for are set.
// It is unknown where a lane of the same thread sets one of them, since that lane waits itself.
func (ls *laneSection) untilUnblocked(now int64) (need int64, known bool) {
	waits := ls.steps[ls.next].waits
	for i := range waits {
		wait := &waits[i]
		epoch := ls.iter + 1 - int(wait.back)
		if wait.flag.epoch.Load() >= int64(epoch) {
			continue
		}
		setter := wait.setter
		if setter.lane.crew == ls.lane.crew && setter.lane.queue == nil {
			return 0, false
		}
		need = max(need, setter.remaining((epoch-1)*len(setter.steps)+wait.after, now))
	}
	return need, true
}

// remaining returns a lower bound, in ns, of the time that the crew's part of a section still takes.
func (cs *crewSection) remaining(now int64) int64 {
	longest := int64(0)
	if cs.runsOn {
		return 0 // it ends when all is submitted
	}
	for _, ls := range cs.lanes {
		longest = max(longest, ls.remaining(cs.iters*len(ls.steps), now))
	}
	return longest
}

// remaining returns a lower bound, in ns, of the time until a lane has finished the given number of steps.
func (ls *laneSection) remaining(steps int, now int64) int64 {
	at := ls.progress.Load()
	done, ns := int(at/2), int64(0)
	for i := done; i < min(steps, done+foresight); i++ {
		st := ls.steps[i%len(ls.steps)]
		if !st.works(i / len(ls.steps)) {
			continue
		}
		estimateNS := st.estimateNS.Load()
		if i == done && at%2 == 1 && ls.lane.queue == nil {
			estimateNS = max(0, estimateNS-(now-ls.stepBegan.Load()))
		}
		ns += estimateNS
	}
	if ls.lane.queue != nil && at%2 == 1 { // it has begun at least one of them, and perhaps finished several
		ns = max(0, ns-(now-ls.stepBegan.Load()))
	}
	return ns
}

// Times of waiting.
const (
	idleSpin  = 500 * time.Microsecond // between sections: sampling takes less
	foresight = 16                     // steps of another lane
	spinLast  = 10 * time.Microsecond  // before a wait is expected to end
	// After it was expected to end, or half of what was expected: then a lane that spins naps. On a core that others
	// use too, the scheduler takes the core from threads that have spun when work comes.
	spinAfter     = 100 * time.Microsecond
	shortNap      = 10 * time.Microsecond
	longNap       = time.Millisecond
	lastNap       = 100 * time.Microsecond // long naps end later: the last one is short
	firstNapDelay = 40 * time.Microsecond  // how late naps are thought to end before there was one
	maxNapDelay   = 200 * time.Microsecond
	// How long a lane asks for a call that is about to end, before it has the driver wake it: about what waking takes.
	spinEvent = 50 * time.Microsecond

	mostBetween = 100 * time.Millisecond // of two looks, on a machine where every nap ends late
)

// await waits on a crew's thread until ready. It sleeps while left says that there is time, then spins, and naps if the
// wait takes longer than expected. It returns false when stop, which is given how long the crew has waited, says so.
// Two looks that are further apart than mostBetween count as mostBetween: the process was stopped meanwhile and did not
// wait.
// RATIONALE: How does a lane wait?
func (m *Machine) await(crew *crew, ready func() bool, left func(now int64) int64, stop func(waited int64) bool) bool {
	for range 256 {
		if ready() {
			return true
		}
	}
	began := m.now()
	looked, waited := began, int64(0)
	for due := began; ; {
		for range 64 {
			if ready() {
				return true
			}
		}
		now := m.now()
		waited += min(now-looked, int64(mostBetween))
		looked = now
		if stop(waited) {
			return false
		}
		// sleep most of the time that is left, then short naps, then spin
		switch early := left(now) - int64(spinLast) - crew.napDelay; {
		case crew.spins && !crew.yield.Load():
			if now-began > int64(spinAfter) {
				runtime.Gosched()
			}
		case early > int64(lastNap):
			nap(min(time.Duration(early)*3/4, longNap))
			due = m.now() + int64(spinLast)
		case early > int64(shortNap):
			nap(time.Duration(early))
			due = m.now()
			crew.learnNapDelay(due - now - early)
			due += int64(spinLast)
		case crew.yield.Load() || now-due > max(int64(spinAfter), (due-began)/2):
			runtime.Gosched() // with fewer Go processors than lanes, the other lane may need this one
			nap(napTime(time.Duration(now - began)))
		}
	}
}

// learnNapDelay learns how late naps end from one that ended ns late. It is 5 us on one machine and 50 us on another,
// or when others use the cores. Late ends count more: missing the end of a wait is worse than spinning for as long.
func (c *crew) learnNapDelay(ns int64) {
	ns = min(max(ns, 0), int64(maxNapDelay)) // a longer delay says that the process was stopped
	if ns > c.napDelay {
		c.napDelay += (ns - c.napDelay) / 4
	} else {
		c.napDelay -= (c.napDelay - ns) / 32
	}
}

// napTime returns the length of a nap for a lane that has waited longer than expected: a small part of
// the wait so far. The end of every nap takes the core from the thread that works there, which may
// be the one waited for.
func napTime(waited time.Duration) time.Duration { return min(max(waited/32, shortNap), longNap) }
