package executor

import (
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/runtime/driver"
)

// reset prepares the crew's part of a section for a call.
func (cs *crewSection) reset(iters int, call driver.Scalars, runsOn bool) {
	cs.iters, cs.call, cs.runsOn = iters, call, runsOn
	for _, ls := range cs.lanes {
		ls.iter, ls.next, ls.retired = 0, 0, 0
		ls.progress.Store(0)
	}
}

// finished reports whether all lanes have run all iterations.
func (cs *crewSection) finished() bool {
	return !slices.ContainsFunc(cs.lanes, func(ls *laneSection) bool { return !ls.isFinished(cs) })
}

// walk executes the steps of a crew's lanes in one section. It runs each lane as far as its flags are set, at most to
// the end of an iteration, and waits when no lane can go on. Lanes never wait in a cycle (rule P008), so a thread only
// waits for threads and processors that work. When walk returns, nothing is in flight, unless the section runs on into
// the next or a processor hangs.
func (m *Machine) walk(cs *crewSection) error {
	err := m.walkSteps(cs)
	if err != nil {
		m.fail(err) // so that the other lanes stop meanwhile
	}
	if err != nil || cs.asyncLanes > 0 && !cs.finished() {
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
		for _, other := range cs.lanes[:cs.asyncLanes] {
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

// run executes a lane's next step on the rows that the call has for it, if there are any.
func (m *Machine) run(cs *crewSection, ls *laneSection, st *step) error {
	number := int64(ls.iter*len(ls.steps) + ls.next)
	if rows := st.prepare(ls.lane, &cs.call, ls.iter); rows > 0 {
		if err := m.runRows(ls, st, number, rows); err != nil {
			return m.failure(ls, st, ls.iter, err)
		}
	}
	if ls.watched {
		ls.progress.Store(2*number + 2)
	}
	return nil
}

// runRows executes a lane's next step, which is its step of that number in the section, on as many rows as prepare
// says.
func (m *Machine) runRows(ls *laneSection, st *step, number int64, rows int) error {
	lane, bound := ls.lane, &st.calls[ls.iter]
	// Lanes that wait sleep by the time at which the step began, but not through a short one.
	if ls.watched && st.estimateNS.Load() > int64(shortNap) {
		ls.stepBegan.Store(m.now())
		ls.progress.Store(2*number + 1)
	}
	var from int64
	if m.trace != nil {
		from = m.now()
	}
	span, err := lane.execute(bound)
	if m.trace != nil && !lane.virtual {
		m.trace.add(lane, st, nil, ls.iter, rows, from, m.now())
	}
	if err != nil {
		return err
	}
	if m.observe != nil {
		m.observe(Observed{Node: st.Node, Layer: st.layer(ls.iter), Graph: st.graph, Rows: rows,
			In: bound.bind.In, Out: bound.bind.Out})
	}
	if bound.counts != nil {
		bound.counts.count(rows)
	}
	if ls.virtual != nil {
		ls.storeWork(number, rows)
		return nil
	}
	took := int64(span.End - span.Start)
	st.runNS += took
	st.runCount++
	if ls.watched {
		st.correctExpected(took)
	}
	return nil
}

// prepare sets the scalars of a step to the rows that a call has for it, and returns how many rows it computes: 0 if
// the call ends before them, or if the step has no layer in this iteration.
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

// correctExpected corrects the expected duration of a step by the latest one: at once when that is shorter, because
// waiting lanes must not oversleep, and slowly when it is longer.
func (st *step) correctExpected(took int64) {
	if have := st.estimateNS.Load(); have > took {
		st.estimateNS.Store(took)
	} else if have > 0 {
		st.estimateNS.Store(have + (took-have)/64)
	}
}

// failure returns an error of a step in an iteration.
func (m *Machine) failure(ls *laneSection, st *step, iter int, err error) error {
	class := diag.ClassRun
	switch {
	case mem.IsFault(err):
		class = diag.ClassIO
	case diag.ClassOf(err) == diag.ClassVerify: // a row of a weight that was first needed now
		class = diag.ClassVerify
	}
	return diag.New(class, "%s on processor %q: %w", st.describe(iter), ls.lane.name, err)
}
