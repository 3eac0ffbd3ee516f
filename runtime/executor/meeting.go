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

// Meeting measures what a way of waiting for an asynchronous processor is worth. It is a machine with one lane, whose
// only section is one call.
type Meeting struct {
	machine *Machine
	section *section
}

// measuringMachine returns a machine without a plan, for Meeting and Relay, which give it lanes.
func measuringMachine(flags int) *Machine {
	return &Machine{deadline: time.Minute, origin: time.Now(), jobs: make(chan job), flags: make([]flag, flags)}
}

// Met is one meeting: from the submission until the lane has noticed the end, and the time of a core that its thread
// has used meanwhile, in ns; 0 where the system does not tell.
type Met struct{ Took, Core int64 }

// NewMeeting starts the lane's thread and attaches the processor, which nothing else may use and which Close does not
// close. The call is an executable of the processor with its operands.
func NewMeeting(proc driver.Asynchronous, wait capability.Waiting, exe driver.Executable,
	bind driver.Bindings) (*Meeting, error) {
	machine := measuringMachine(1)
	machine.control = &lane{name: "met", proc: proc, dynamic: true, waiting: wait,
		queue: &queue{Asynchronous: proc, offset: machine.now() - int64(proc.Now())}}
	machine.lanes = []*lane{machine.control}
	machine.formCrews()

	set := 0
	single := &planir.Section{Flags: 1}
	st := &step{Step: &planir.Step{Node: "call", Set: &set}, section: single, graph: &op.Graph{},
		rows: bind.Scalars.Rows, awaited: true}
	bind.Scalars = &st.scalars
	st.add(call{exe: exe, bind: bind})
	part := &laneSection{lane: machine.control, steps: []*step{st}}
	out := &Meeting{machine, &section{Section: single, iters: 1, lanes: []*laneSection{part}}}
	machine.connectLanes(out.section)
	if err := machine.startCrews(); err != nil {
		return nil, err
	}
	return out, nil
}

// Once runs the call on a number of rows and waits for it. What it is expected to take is learnt from the calls before.
func (m *Meeting) Once(ctx context.Context, rows int) (met Met, err error) {
	err = m.machine.Do(ctx, func(*Control) error {
		st := m.section.lanes[0].steps[0]
		if st.runCount > 0 && st.estimateNS.Load() == 0 { // as a plan expects it
			st.estimateNS.Store(st.runNS / st.runCount)
		}
		began, core := time.Now(), threadTime()
		err := m.machine.runSection(m.section, driver.Scalars{Rows: rows, KVLen: rows, Seq: rows}, false)
		met = Met{Took: int64(time.Since(began)), Core: threadTime() - core}
		return err
	})
	return met, err
}

// Close ends the lane's thread.
func (m *Meeting) Close() error {
	if err := m.machine.Close(); err != nil {
		return diag.New(diag.ClassRun, "close meeting: %w", err)
	}
	return nil
}
