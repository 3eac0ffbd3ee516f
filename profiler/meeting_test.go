package profiler

import (
	"math"
	"slices"
	"testing"
	"time"

	compilehost "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
)

// slowQueue is an asynchronous processor on a clock of its own: what submitting, executing and noticing an end take in
// ns.
type slowQueue struct {
	driver.Processor
	submit, execute, notice driver.Tick

	now   driver.Tick
	ends  []driver.Tick // by ticket - 1
	known driver.Ticket // calls that are known to be done
	most  int           // calls in flight

	slow, by int // the wait of that number takes so many ns more
	waits    int
}

func (q *slowQueue) Now() driver.Tick { return q.now }

func (q *slowQueue) Submit(driver.Executable, *driver.Bindings) (driver.Ticket, error) {
	q.now += q.submit
	begins := q.now
	if count := len(q.ends); count > 0 {
		begins = max(begins, q.ends[count-1])
	}
	q.ends = append(q.ends, begins+q.execute)
	q.most = max(q.most, len(q.ends)-int(q.known))
	return driver.Ticket(len(q.ends)), nil
}

func (q *slowQueue) Done(t driver.Ticket) (bool, error) { return q.now >= q.ends[t-1], nil }

func (q *slowQueue) Wait(t driver.Ticket) (driver.Span, error) {
	q.now = max(q.now, q.ends[t-1]+q.notice)
	if q.waits == q.slow {
		q.now += driver.Tick(q.by)
	}
	q.waits++
	q.known = max(q.known, t)
	return driver.Span{}, nil
}

// What an operator takes among others in flight holds neither its way to the processor nor back; where submitting takes
// longest, it is that. Never are more calls in flight than a processor takes.
func TestQueuedOperatorsCostWhatOneMoreTakes(t *testing.T) {
	for _, test := range []struct {
		queue slowQueue
		want  float64
	}{
		{slowQueue{submit: 3_000, execute: 40_000, notice: 500_000}, 40_000},
		{slowQueue{submit: 20_000, execute: 4_000, notice: 7_000}, 20_000},
		{slowQueue{submit: 1_000, execute: 20_000_000, notice: 100_000}, 20_000_000},
	} {
		for _, times := range []int{1, 7, 300} {
			queue := test.queue
			load := &loadedOp{exes: make([]driver.Executable, 3), binds: make([]driver.Bindings, 3)}
			for range 3 { // the later ones know how long a call takes
				got, err := load.runQueued(&queue, times)
				// Waiting for half of the calls in flight leaves the queue something to do.
				if err != nil || math.Abs(got/test.want-1) > 0.02 {
					t.Errorf("%d calls: %.0f ns each (%v), want %.0f", times, got, err, test.want)
				}
			}
			if queue.most > driver.MaxInFlight {
				t.Errorf("%d calls in flight, want at most %d", queue.most, driver.MaxInFlight)
			}
		}
	}
}

// A single call that was disturbed is no reason for times near nothing, from which the number of executions of a sample
// follows.
func TestDisturbedQueue(t *testing.T) {
	for disturbed := range 8 {
		queue := slowQueue{submit: 2_000, execute: 10_000, notice: 50_000, slow: disturbed, by: 5_000_000}
		load := &loadedOp{exes: make([]driver.Executable, 1), binds: make([]driver.Bindings, 1)}
		for range 4 {
			got, err := load.runQueued(&queue, 1)
			if err != nil || got < 9_900 || got > 400_000 {
				t.Errorf("flight %d takes long: %.0f ns each (%v), want about 10000, and never next to nothing",
					disturbed, got, err)
			}
		}
	}
}

// The best way to wait takes least over all lengths of calls; of ways that are alike, the one that leaves the core to
// others.
func TestBestMeeting(t *testing.T) {
	way := func(wait capability.Waiting, short, long, core float64) *meeting {
		return &meeting{wait: wait, lanes: make([]*executor.Meeting, 2), took: [][]float64{{short}, {long}},
			core: [][]float64{{core}, {core}}}
	}
	for _, test := range []struct {
		list []*meeting
		want capability.Waiting
	}{
		{[]*meeting{way(capability.WaitSleep, 60, 1000, 20), way(capability.WaitPoll, 20, 1000, 900),
			way(capability.WaitEvent, 90, 1100, 10)}, capability.WaitPoll},
		{[]*meeting{way(capability.WaitSleep, 20.2, 1005, 20), way(capability.WaitPoll, 20, 1000, 900),
			way(capability.WaitEvent, 90, 1100, 10)}, capability.WaitSleep},
		{[]*meeting{way(capability.WaitSleep, 50, 1500, 20), way(capability.WaitPoll, 48, 1490, 900),
			way(capability.WaitEvent, 40, 1000, 10)}, capability.WaitEvent},
	} {
		if got := bestMeeting(test.list); got.wait != test.want {
			t.Errorf("got %q, want %q", got.wait, test.want)
		}
	}
}

// A device of the CPU's cores loses speed to a lane that asks.
func TestWaysToWait(t *testing.T) {
	if got := waysToWait(&socs.Processor{Cores: []int{1}}); !slices.Equal(got,
		[]capability.Waiting{capability.WaitEvent}) {
		t.Errorf("a device of a core: %q", got)
	}
	if got := waysToWait(&socs.Processor{}); len(got) != len(capability.Waitings) {
		t.Errorf("a device of its own: %q", got)
	}
}

// A meeting takes as long as its call, in every way of waiting, and asking all the time uses the core for as long.
func TestOpenMeeting(t *testing.T) {
	devices, err := host.New().Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const long = 20 * time.Millisecond
	for _, wait := range capability.Waitings {
		slow := drivertest.Queue(host.New(),
			drivertest.Queueing{Delay: func(driver.Ticket) time.Duration { return long }})
		lane, closers, err := OpenMeeting(t.Context(), slow, compilehost.New(),
			driver.Config{Select: devices[0].Select},
			wait, 64)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			met, err := lane.Once(t.Context(), 1)
			if err != nil || met.Took < int64(long) {
				t.Errorf("wait %q: a call of %v is met after %v (%v)", wait, long, time.Duration(met.Took), err)
			}
			if wait == capability.WaitEvent && met.Core > int64(long)/2 {
				t.Errorf("waiting for an event of %v uses a core for %v", long, time.Duration(met.Core))
			}
		}
		for i := range closers {
			if err := closers[len(closers)-1-i](); err != nil {
				t.Error(err)
			}
		}
	}
	_, closers, err := OpenMeeting(t.Context(), host.New(), compilehost.New(), driver.Config{Select: devices[0].Select},
		capability.WaitSleep, 64)
	if err == nil {
		t.Error("a processor that executes synchronously is met")
	}
	for _, closer := range closers {
		_ = closer()
	}
}
