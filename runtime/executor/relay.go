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

// Relay measures what a hand-over takes in a program. It is two lanes whose steps depend on each other in turn: a
// processor that computes on its lane's thread, and an asynchronous one. In every turn the first one computes, the
// asynchronous one gets a call that waits for it, the first one computes beside that call, and goes on once the call is
// known to be done.
//
// Between two calls the asynchronous processor has nothing to do, as in a program of one-row steps. What happens while
// it is idle (threads go to sleep, clocks and caches change) is part of a hand-over, and would not be seen if calls
// followed each other at once. Nor would a call be seen that begins only when the thread stops.
type Relay struct {
	machine *Machine
	section *section
	device  *timedQueue
}

// RelayCall is an executable of a processor of a Relay with its operands.
type RelayCall struct {
	Exe  driver.Executable
	Bind driver.Bindings
}

// RelayWork is what the processors of a Relay do in each turn: executables that are called one after another, one in
// each turn, so that operands can be in no cache. Each list has as many as there are turns.
type RelayWork struct {
	Before    []RelayCall // of the processor with a thread, which the call waits for
	Meanwhile []RelayCall // of the same processor, beside the call
	Call      []RelayCall // of the asynchronous processor
}

// Relayed is a run of a Relay: means over its turns, in ns.
type Relayed struct {
	Turn              int64 // a turn takes
	Before, Meanwhile int64 // computing on the thread takes
	Submit            int64 // of a turn the submission takes, of the thread that feeds the asynchronous processor
	Call              int64 // one more call takes while others are in flight
}

// timedQueue adds up how long submissions take.
type timedQueue struct {
	driver.Asynchronous
	spent time.Duration
	calls int64
}

// Submit submits to the processor and adds the time.
func (q *timedQueue) Submit(exe driver.Executable, bind *driver.Bindings) (driver.Ticket, error) {
	began := time.Now()
	ticket, err := q.Asynchronous.Submit(exe, bind)
	q.spent += time.Since(began)
	q.calls++
	return ticket, err
}

// NewRelay starts the lanes' threads and attaches the processors, which nothing else may use and which Close does not
// close. fed says that the first processor's thread feeds the other one, as the control thread of a plan does where it
// computes what that one is given; otherwise the other one has a thread of its own.
func NewRelay(own driver.Processor, device driver.Asynchronous, wait capability.Waiting, fed bool,
	work RelayWork) (*Relay, error) {
	turns := len(work.Call)
	if turns == 0 || len(work.Before) != turns || len(work.Meanwhile) != turns {
		return nil, diag.New(diag.ClassInternal, "relay of %d steps, %d beside and %d calls, want as many of each",
			len(work.Before), len(work.Meanwhile), turns)
	}
	timed := &timedQueue{Asynchronous: device}
	machine := measuringMachine(2)
	machine.feedsAll = fed
	machine.control = &lane{name: "thread", proc: own, dynamic: true}
	queued := &lane{name: "device", proc: device, dynamic: true, waiting: wait,
		queue: &queue{Asynchronous: timed, offset: machine.now() - int64(device.Now())}}
	machine.lanes = []*lane{machine.control, queued}
	machine.formCrews()

	// The thread's first step waits for the call of the turn before, and the call for that step.
	sec := &section{Section: &planir.Section{Flags: 2, Layers: turns}, iters: turns}
	started, ended := 0, 1
	made := func(name string, calls []RelayCall, sets *int, waits ...planir.Wait) *step {
		st := &step{Step: &planir.Step{Node: name, Set: sets, Wait: waits}, section: sec.Section, graph: &op.Graph{},
			rows: 1}
		for _, from := range calls {
			one := call{exe: from.Exe, bind: from.Bind}
			one.bind.Scalars = &st.scalars
			st.add(one)
		}
		return st
	}
	thread := &laneSection{lane: machine.control, steps: []*step{
		made("before", work.Before, &started, planir.Wait{Flag: ended, Back: true}),
		made("meanwhile", work.Meanwhile, nil)}}
	calls := &laneSection{lane: queued, steps: []*step{made("call", work.Call, &ended, planir.Wait{Flag: started})}}
	sec.lanes = []*laneSection{thread, calls}
	machine.connectLanes(sec)
	if err := machine.startCrews(); err != nil {
		return nil, err
	}
	return &Relay{machine, sec, timed}, nil
}

// Run takes all turns once.
func (r *Relay) Run(ctx context.Context) (out Relayed, err error) {
	err = r.machine.Do(ctx, func(*Control) error {
		each, err := r.callTime()
		if err != nil {
			return err
		}
		r.device.spent, r.device.calls = 0, 0
		r.expect(each)
		began := time.Now()
		if err := r.machine.runSection(r.section, driver.Scalars{Rows: 1, KVLen: 1, Seq: 1}, false); err != nil {
			return err
		}
		turns := int64(r.section.iters)
		out = Relayed{Turn: int64(time.Since(began)) / turns, Submit: int64(r.device.spent) / max(1, r.device.calls),
			Call: each}
		own := r.section.lanes[0].steps
		out.Before, out.Meanwhile = own[0].runNS/turns, own[1].runNS/turns
		return nil
	})
	return out, err
}

// expect tells the lanes what steps take, as a plan does. Before a first run only the time of the call is known.
func (r *Relay) expect(callNS int64) {
	for _, lane := range r.section.lanes {
		for _, st := range lane.steps {
			if st.runCount > 0 && st.estimateNS.Load() == 0 {
				st.estimateNS.Store(st.runNS / st.runCount)
			}
			st.runNS, st.waitNS, st.runCount = 0, 0, 0
		}
	}
	if call := r.section.lanes[1].steps[0]; call.estimateNS.Load() == 0 {
		call.estimateNS.Store(callNS)
	}
}

// callTime returns the time of one more call while others are in flight: the difference between all calls, submitted
// ahead, and one.
func (r *Relay) callTime() (int64, error) {
	lane := r.section.lanes[1]
	calls := lane.steps[0].calls
	calls = calls[:min(len(calls), driver.MaxInFlight/2)]
	submitted := func(calls []call) (time.Duration, error) {
		began := time.Now()
		var last driver.Ticket
		for i := range calls {
			var err error
			if last, err = lane.lane.submit(&calls[i]); err != nil {
				return 0, err
			}
		}
		_, err := lane.lane.queue.Wait(last)
		return time.Since(began), err
	}
	lane.steps[0].scalars = driver.Scalars{Rows: 1, KVLen: 1, Seq: 1}
	single, err := submitted(calls[:1])
	if err != nil || len(calls) == 1 {
		return int64(single), err
	}
	all, err := submitted(calls)
	// At most its share of all: a single call that was disturbed takes longer than it.
	return min(max(0, int64(all-single)/int64(len(calls)-1)), int64(all)/int64(len(calls))), err
}

// Close ends the lanes' threads.
func (r *Relay) Close() error {
	if err := r.machine.Close(); err != nil {
		return diag.New(diag.ClassRun, "close relay: %w", err)
	}
	return nil
}
