package executor

import (
	"context"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// Meeting is the lane of a machine whose only section is one call of an asynchronous processor. It measures what a way
// of waiting is worth.
type Meeting struct {
	m *Machine
	s *section
}

// Met is one meeting: from the submission until the lane has noticed the end, and the time of a core that its thread
// has used meanwhile, in ns; 0 where the system does not tell.
type Met struct{ Took, Core int64 }

// NewMeeting starts the lane's thread and attaches the processor, which nothing else may use and which Close does not
// close. The call is an executable of the processor with its operands.
func NewMeeting(proc driver.Asynchronous, wait capability.Waiting, exe driver.Executable, bind driver.Bindings) (*Meeting,
	error) {
	m := &Machine{deadline: time.Minute, origin: time.Now(), jobs: make(chan job), lost: make(chan struct{}),
		flags: make([]flag, 1)}
	m.control = &lane{name: "met", proc: proc, dynamic: true, wait: wait,
		queue: &queue{Asynchronous: proc, offset: m.now() - int64(proc.Now())}}
	m.lanes = []*lane{m.control}
	m.formCrews()
	set := 0
	one := &planir.Section{Flags: 1}
	st := &step{Step: &planir.Step{Node: "call", Set: &set}, section: one, graph: &op.Graph{}, rows: bind.Scalars.Rows,
		awaited: true}
	bind.Scalars = &st.scalars
	st.add(call{exe: exe, bind: bind})
	ls := &laneSection{lane: m.control, steps: []*step{st}}
	out := &Meeting{m, &section{Section: one, iters: 1, lanes: []*laneSection{ls}}}
	m.connectLanes(out.s)
	if err := m.startCrews(); err != nil {
		return nil, err
	}
	return out, nil
}

// Once runs the call and waits for it. What it is expected to take is learnt from the calls before.
func (m *Meeting) Once(ctx context.Context, rows int) (met Met, err error) {
	err = m.m.Do(ctx, func(*Control) error {
		st := m.s.lanes[0].steps[0]
		if st.runCount > 0 && st.lately.Load() == 0 { // as a plan expects it
			st.lately.Store(st.runNS / st.runCount)
		}
		began, core := time.Now(), threadTime()
		err := m.m.section(m.s, driver.Scalars{Rows: rows, KVLen: rows, Seq: rows}, false)
		met = Met{Took: int64(time.Since(began)), Core: threadTime() - core}
		return err
	})
	return met, err
}

// Close ends the lane's thread.
func (m *Meeting) Close() error {
	if err := m.m.Close(); err != nil {
		return diag.New(diag.ClassRun, "close meeting: %w", err)
	}
	return nil
}
