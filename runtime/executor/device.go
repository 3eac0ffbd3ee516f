package executor

import (
	"errors"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/runtime/driver"
)

// A lane whose processor is asynchronous is a queue. Its thread submits steps as soon as the flags that other lanes set
// are there, and goes on: what the processor has to wait for within its own lane is kept by the order of its queue. A
// step is retired when its call is known to be done, and sets its flag then. The thread does not ask for each call, but
// for the first one that a lane waits for, which tells of all calls before it. So a lane has two positions in a
// section: laneSection.iter and next are what it submits next, and laneSection.retired is how many steps are finished.

// pending is a step of an asynchronous lane that was submitted and is not yet retired.
type pending struct {
	step   *step
	part   *laneSection  // that it belongs to: of this section, or of the one before
	ticket driver.Ticket // of the call, or of the one before where the call has no rows for the step; 0: there is none
	iter   int
	rows   int // 0: it was skipped
}

// queue is the ring of calls that an asynchronous lane has in flight.
type queue struct {
	driver.Asynchronous
	calls   [driver.MaxInFlight]pending
	first   int // of the ring
	count   int
	done    driver.Ticket // the latest call that is known to be done
	awaited driver.Ticket // the call that the lane's thread waits for; 0: none
	failed  error         // why a call failed, of which the lane's thread was told and which it has not reported
	ended   int64         // when the latest call ended, on the machine's clock in ns
	offset  int64         // from the processor's clock to the machine's
}

// at returns call number i in flight.
func (q *queue) at(i int) *pending { return &q.calls[(q.first+i)%len(q.calls)] }

// oldest returns the first call in flight, nil if there is none.
func (q *queue) oldest() *call {
	for i := range q.count {
		if entry := q.at(i); entry.rows > 0 {
			return &entry.step.calls[entry.iter]
		}
	}
	return nil
}

// isDone asks the processor about a call, and keeps an error for retire.
func (q *queue) isDone(ticket driver.Ticket) bool {
	if ticket <= q.done || q.failed != nil {
		return true
	}
	done, err := q.Done(ticket)
	return q.noteAnswer(ticket, done, err)
}

// noteAnswer notes the processor's answer about a call.
func (q *queue) noteAnswer(ticket driver.Ticket, done bool, err error) bool {
	if err != nil {
		q.failed = err
		return true
	}
	if done {
		q.done = ticket
	}
	return done
}

// target returns how many calls must be done before the lane's thread has something to do: those up to the first whose
// flag another lane waits for. Without such a call it is all of them. It is foresight at most, so that a device that
// works is seen to make progress and gets further calls in time.
func (q *queue) target() int {
	calls := min(q.count, foresight)
	for i := range calls {
		if q.at(i).step.awaited {
			return i + 1
		}
	}
	return calls
}

// chooseTarget finds the call for which the lane's thread is going to wait.
func (q *queue) chooseTarget() {
	q.awaited = 0
	if target := q.target(); target > 0 {
		q.awaited = q.at(target - 1).ticket
	}
}

// isFinished reports whether the lane has finished its part of the section, or has submitted it where the next section
// is the same processor's alone.
func (ls *laneSection) isFinished(cs *crewSection) bool {
	return ls.iter == cs.iters && (ls.lane.queue == nil || ls.lane.queue.count == 0 || cs.runsOn)
}

// submits reports whether the lane's next step can be submitted.
func (ls *laneSection) submits(cs *crewSection) bool {
	return ls.iter < cs.iters && ls.lane.queue.count < driver.MaxInFlight && ls.blocked() == nil
}

// feed retires what the processor of an asynchronous lane has done and submits its steps, to the end of an iteration,
// until one must wait or the queue is full. It returns whether anything has changed.
func (m *Machine) feed(cs *crewSection, ls *laneSection) (bool, error) {
	moved, err := m.retire(ls)
	if err != nil {
		return moved, err
	}
	for ls.iter < cs.iters {
		if m.poison.Load() != nil || !ls.submits(cs) {
			return moved, nil
		}
		if err := m.submit(cs, ls); err != nil {
			return moved, err
		}
		moved = true
		if ls.next++; ls.next == len(ls.steps) {
			ls.iter, ls.next = ls.iter+1, 0
			break
		}
	}
	return moved, nil
}

// submit gives a lane's next step to its processor, on the rows that the call has for it.
func (m *Machine) submit(cs *crewSection, ls *laneSection) error {
	queue, st := ls.lane.queue, ls.steps[ls.next]
	entry := pending{step: st, part: ls, iter: ls.iter, rows: st.prepare(ls.lane, &cs.call, ls.iter)}
	if queue.count > 0 {
		entry.ticket = queue.at(queue.count - 1).ticket
	} else {
		m.noteResumed(ls, st)
		if entry.rows > 0 {
			ls.lane.executes.Store(&st.calls[ls.iter])
		}
	}
	if entry.rows > 0 {
		var err error
		if entry.ticket, err = ls.lane.submit(&st.calls[ls.iter]); err != nil {
			return m.failure(ls, st, ls.iter, err)
		}
	}
	*queue.at(queue.count) = entry
	queue.count++
	return nil
}

// noteResumed notes that an idle processor gets a step.
func (m *Machine) noteResumed(ls *laneSection, st *step) {
	now, idle := m.now(), ls.lane.queue.ended
	if idle > 0 && ls.retired > 0 {
		st.waitNS += now - idle
		if m.trace != nil && ls.missed != nil {
			m.trace.add(ls.lane, st, ls.missed, ls.iter, 0, idle, now)
		}
	}
	ls.missed = nil
	ls.noteBegun(now)
}

// submit enqueues a call. Weights whose mapped file has vanished are an error, as in execute.
func (l *lane) submit(c *call) (ticket driver.Ticket, err error) {
	defer func() {
		if fault := mem.Recovered(recover()); fault != nil {
			err = fault
		}
	}()
	return l.queue.Submit(c.exe, &c.bind)
}

// retire sets the flags of the steps that the processor has finished, as far as other lanes wait for them. It returns
// whether there were any.
func (m *Machine) retire(ls *laneSection) (bool, error) {
	queue := ls.lane.queue
	target := queue.target()
	if target == 0 || !queue.isDone(queue.at(target-1).ticket) {
		return false, nil
	}
	return true, m.retireFirst(queue, target)
}

// retireFirst retires the oldest steps, whose calls are done or have failed.
func (m *Machine) retireFirst(queue *queue, count int) error {
	for range count {
		entry := queue.at(0)
		if queue.failed != nil {
			return m.callFailed(queue)
		}
		if err := m.accountCall(queue, entry); err != nil {
			return err
		}
		if entry.step.awaited {
			m.flags[*entry.step.Set].epoch.Store(int64(entry.iter) + 1)
		}
		m.steps.Add(1)
		entry.part.retired++
		queue.first, queue.count = (queue.first+1)%len(queue.calls), queue.count-1
		entry.part.lane.executes.Store(queue.oldest())
		now := m.now()
		queue.ended = now
		entry.part.progress.Store(2 * int64(entry.part.retired))
		if queue.count > 0 {
			queue.at(0).part.noteBegun(now)
		}
	}
	return nil
}

// noteBegun notes that the processor has begun the step behind those that are finished.
func (ls *laneSection) noteBegun(now int64) {
	ls.stepBegan.Store(now)
	ls.progress.Store(2*int64(ls.retired) + 1)
}

// remaining returns a lower bound, in ns, of the time until the first calls in flight are done.
func (q *queue) remaining(calls int, now int64) (ns int64) {
	for i := range calls {
		ns += q.at(i).step.estimateNS.Load()
	}
	return max(0, ns-(now-q.at(0).part.stepBegan.Load()))
}

// accountCall adds the time of a finished call to the step's statistics, to what is expected of it, and to the trace.
func (m *Machine) accountCall(queue *queue, entry *pending) error {
	st := entry.step
	if entry.rows == 0 {
		return nil
	}
	span, err := queue.Wait(entry.ticket)
	if err != nil {
		queue.failed = err
		return m.callFailed(queue)
	}
	took := int64(span.End - span.Start)
	st.runNS += took
	st.runCount++
	if took > 0 {
		st.correctExpected(took)
	}
	if m.trace != nil {
		m.trace.add(entry.part.lane, st, nil, entry.iter, entry.rows, int64(span.Start)+queue.offset,
			int64(span.End)+queue.offset)
	}
	return nil
}

// callFailed returns the error of a call in flight, which names its step.
func (m *Machine) callFailed(queue *queue) error {
	failed := queue.failed
	queue.failed = nil
	if failure, ok := errors.AsType[*driver.Failure](failed); ok {
		for i := range queue.count {
			if entry := queue.at(i); entry.ticket == failure.Ticket && entry.rows > 0 {
				return m.failure(entry.part, entry.step, entry.iter, failure.Err)
			}
		}
	}
	return m.failure(queue.at(0).part, queue.at(0).step, queue.at(0).iter, failed)
}

// drain waits, after a failure, until nothing is in flight on lanes: until then the processors may use the memory. A
// processor that hangs is found by the watchdog in Do, and Close leaves it behind.
func (m *Machine) drain(lanes []*laneSection) {
	for _, ls := range lanes {
		queue := ls.lane.queue
		if queue == nil || queue.count == 0 {
			continue
		}
		last := queue.at(queue.count - 1).ticket
		ended := func() bool {
			done, _ := queue.Done(last) // the first failure was reported
			return done
		}
		left := func(int64) int64 { return 0 }
		if last == 0 || m.await(ls.lane.crew, ended, left, func(int64) bool { return m.broken.Load() != nil }) {
			queue.first, queue.count, queue.done, queue.failed = 0, 0, last, nil
			ls.lane.executes.Store(nil)
		}
	}
}

// continuesOn reports whether a section and the one behind it are of one asynchronous processor alone. Then the
// processor need not be done with the first before it gets the second: the order of its queue is all that there is to
// keep.
func (s *section) continuesOn(next *section) bool {
	return len(s.lanes) == 1 && len(next.lanes) == 1 && s.lanes[0].lane == next.lanes[0].lane &&
		s.lanes[0].lane.queue != nil
}

// waitInDriver waits for a call in the processor's own way, if the plan says that this is best, and returns whether it
// did. For a call that is about to end it polls for a while instead: lanes that share an operator mostly end within
// less time than the system takes to wake a thread.
func (m *Machine) waitInDriver(cs *crewSection) bool {
	for _, ls := range cs.lanes {
		queue := ls.lane.queue
		target := 0
		if queue != nil && ls.lane.waiting == capability.WaitEvent {
			target = queue.target()
		}
		if target == 0 {
			continue
		}
		ticket := queue.at(target - 1).ticket
		began := m.now()
		for soon := queue.remaining(target, began) < int64(spinEvent); soon; soon = m.now()-began < int64(spinEvent) {
			if queue.isDone(ticket) {
				return true
			}
		}
		_, err := queue.Wait(ticket)
		queue.noteAnswer(ticket, true, err)
		return true
	}
	return false
}

// overdueCall returns the error about a lane whose processor has finished nothing until the deadline; nil if it has, or
// if it has nothing to do.
func (m *Machine) overdueCall(ls *laneSection) error {
	queue := ls.lane.queue
	if queue.count == 0 {
		return nil
	}
	entry := queue.at(0)
	if queue.isDone(entry.ticket) {
		return m.retireFirst(queue, 1)
	}
	return diag.New(diag.ClassRun, "%s on processor %q is not done after %v: the processor hangs",
		entry.step.describe(entry.iter), ls.lane.name, m.deadline)
}
