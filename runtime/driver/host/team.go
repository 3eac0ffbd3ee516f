package host

import (
	"errors"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/mem"
)

// idleSpin is how long a helper spins after the last call before it sleeps: longer than the pause
// between two steps of one lane, and too short for a person to notice.
const idleSpin = 100 * time.Microsecond

// rousePatience bounds the wait for helpers that are being woken.
const rousePatience = 2 * time.Millisecond

// claimShare is the part of its run that a worker claims at once, where tasks may be joined: large
// pieces first, which costs few claims, and small ones at the end, where workers of different speed
// meet.
const claimShare = 4

// fetchTurn is how many bytes a helper asks for between two looks whether a job is open.
const fetchTurn = 512

// yieldSpins is how many turns a thread spins, some 100 us, before it yields to other goroutines.
// These may be what it waits for, when the process has fewer processors than threads.
const yieldSpins = 1 << 16

// team is the threads of one processor. The lane's own thread is worker 0. Helpers 1.. take part in
// a job while it is open. A helper that is late, or not scheduled at all, costs nothing: the lane
// takes every task that is left and waits only for helpers inside the job.
//
// The tasks of a job are divided as it goes (work stealing). Each worker begins with an equal run of
// consecutive tasks, the same one whenever the job is repeated, so that the weights of a layer lie
// in the cache of the core that reads them, and one task continues the memory of the one before. A
// worker that is done takes over half of what another one has not begun, from its end.
//
// A job of a few microseconds is worth dividing only if the threads exchange few cache lines. The
// lane writes one line to open it (board), each helper has one to say that it is inside, and each
// worker claims tasks by a compare-and-swap on a line that others touch only to steal.
//
// Between two jobs the lane computes alone, a few microseconds, and memory is idle. A helper that leaves a job then
// asks for the first bytes of what it will multiply by next (ahead), until the next job is open: weights pass through
// every core once a token, and whatever lies in its cache by then does not have to be waited for.
type team struct {
	*board
	fetch   func([]byte) // asks memory for bytes; nil: cannot
	helpers []*helper
	called  atomic.Bool               // a call is in progress: helpers spin without limit
	stop    atomic.Bool               // helpers return
	fault   atomic.Pointer[mem.Fault] // the first of the job
	done    sync.WaitGroup
}

// board is what helpers spin on, and what they need to join: one cache line brings all of it. Two lines are its own,
// because processors fetch pairs. The job is written before state opens it.
type board struct {
	state  atomic.Uint64 // number of the latest job, times two; odd while helpers may join
	job    func(worker, from, to int)
	tasks  uint64
	runs   []taskRun // of each worker
	single bool      // claims are single tasks
	ahead  func(worker int) []byte
	_      [64]byte
}

// taskRun is the tasks [from,to) that a worker has not begun, with the number of the job. One of another job stands for
// the run that the worker begins with (see left), which no other worker has touched yet. Every job empties all runs, so
// that some bits of its number tell it from the one before. The bits are all there is to know of a run: they may come
// back.
type taskRun struct {
	bits atomic.Uint64
	_    [120]byte
}

// Fields of taskRun.bits, from the highest: 8 of the job's number, from, to.
const (
	runBits = 28
	runMask = 1<<runBits - 1
)

// Values of helper.sleep.
const (
	awake int32 = iota
	asleep
	woken // and has a token
)

// helper sleeps on wake; the thread that turns asleep into woken sends the token.
type helper struct {
	sleep  atomic.Int32
	wake   chan struct{} // one token
	_      [112]byte
	inside atomic.Uint64 // state of the job that it is in, 0: none
	_      [120]byte
}

// start runs one helper per core beyond the first and returns when all are pinned.
func (t *team) start(cores []int) error {
	t.board = &board{runs: make([]taskRun, len(cores))}
	t.state.Store(2) // 0 is no job's
	ready := make(chan error)
	for i, core := range cores[1:] {
		added := &helper{wake: make(chan struct{}, 1)}
		t.helpers = append(t.helpers, added)
		t.done.Go(func() {
			runtime.LockOSThread() // never unlocked: the pinned thread ends with the goroutine
			debug.SetPanicOnFault(true)
			err := affinity.Pin(core)
			ready <- err
			if err == nil {
				t.serve(added, i+1)
			}
		})
	}
	var first error
	for range t.helpers {
		if err := <-ready; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// close ends the helpers and waits for them.
func (t *team) close() {
	t.stop.Store(true)
	t.wakeAll()
	t.done.Wait()
	t.helpers = nil
}

// wakeAll wakes the helpers that sleep; those that spin see the job.
func (t *team) wakeAll() {
	for _, helper := range t.helpers {
		if helper.sleep.Load() == asleep && helper.sleep.CompareAndSwap(asleep, woken) {
			helper.wake <- struct{}{}
		}
	}
}

// begin and end enclose the jobs of one call.
func (t *team) begin() { t.called.Store(true) }
func (t *team) end()   { t.called.Store(false) }

// rouse returns when every helper is awake, or after rousePatience: another thread may have its core now.
func (t *team) rouse() {
	if len(t.helpers) == 0 {
		return
	}
	t.wakeAll()
	deadline := time.Now().Add(rousePatience)
	for _, helper := range t.helpers {
		for spin := 1; helper.sleep.Load() != awake; spin++ {
			if spin%256 == 0 && time.Now().After(deadline) {
				return
			}
			if spin%yieldSpins == 0 {
				runtime.Gosched()
			}
		}
	}
}

// run calls job(worker, from, to) so that every task of 0..tasks-1 is in one range [from,to), and
// returns when all are done. Ranges are single tasks if asked for, else up to a claimShare of what
// the worker has left. If a task reads mapped memory that has vanished, the rest is left out and the
// *mem.Fault is thrown once no helper is inside the job.
func (t *team) run(tasks int, single bool, job func(worker, from, to int)) {
	if len(t.helpers) == 0 || tasks < 2 {
		if !single {
			job(0, 0, tasks)
			return
		}
		for i := range tasks {
			job(0, i, i+1)
		}
		return
	}
	t.job, t.tasks, t.single = job, uint64(tasks), single
	open := t.state.Load() + 3
	t.state.Store(open)
	t.wakeAll()
	t.work(0)
	t.state.Store(open - 1)
	for _, helper := range t.helpers { // those inside are at their last task
		for spin := 1; helper.inside.Load() == open; spin++ {
			if spin%yieldSpins == 0 {
				runtime.Gosched()
			}
		}
	}
	if fault := t.fault.Swap(nil); fault != nil {
		panic(fault)
	}
}

// work takes tasks of the open job until none are left. A fault in mapped memory ends the job for
// all workers.
func (t *team) work(worker int) {
	defer func() {
		if err := mem.Recovered(recover()); err != nil {
			t.fail(err)
		}
	}()
	board := t.board
	for {
		from, to, ok := board.claim(worker)
		for ; ok; from, to, ok = board.claim(worker) {
			board.job(worker, from, to)
		}
		if !board.steal(worker) {
			return
		}
	}
}

// left returns the tasks [from,to) of the latest job that a worker has not begun, and the bits that say so.
func (b *board) left(worker int) (from, to, bits uint64) {
	bits = b.runs[worker].bits.Load()
	if bits>>(2*runBits) == b.tag() {
		return bits >> runBits & runMask, bits & runMask, bits
	}
	workers := uint64(len(b.runs))
	from, to = uint64(worker)*b.tasks/workers, uint64(worker+1)*b.tasks/workers
	if from == to {
		b.leave(worker, from, to, bits) // no other worker will, and the bits must not grow old
	}
	return from, to, bits
}

// leave changes what a worker has not begun, if that is still what bits say.
func (b *board) leave(worker int, from, to, bits uint64) bool {
	return b.runs[worker].bits.CompareAndSwap(bits, b.tag()<<(2*runBits)|from<<runBits|to)
}

// tag tells runs of the latest job from those of the one before.
func (b *board) tag() uint64 { return b.state.Load() >> 1 & 0xff }

// claim takes the next tasks of a worker's own run; false where it is empty.
func (b *board) claim(worker int) (from, to int, ok bool) {
	for {
		first, end, bits := b.left(worker)
		if first >= end {
			return 0, 0, false
		}
		next := first + 1
		if !b.single {
			next = first + (end-first+claimShare-1)/claimShare
		}
		if b.leave(worker, next, end, bits) {
			return int(first), int(next), true
		}
	}
}

// steal moves the second half of another worker's run to the run of a worker, which is empty; false where all are
// empty. For a moment the half is in neither run. A third worker may then find all of them empty and stop, and the
// worker that steals computes the half alone.
func (b *board) steal(worker int) bool {
	for i := 1; i < len(b.runs); i++ {
		other := (worker + i) % len(b.runs)
		for {
			from, to, bits := b.left(other)
			if from >= to {
				break
			}
			half := from + (to-from)/2
			if b.leave(other, from, half, bits) {
				b.runs[worker].bits.Store(b.tag()<<(2*runBits) | half<<runBits | to)
				return true
			}
		}
	}
	return false
}

// fail records the first fault and ends the job early.
func (t *team) fail(err error) {
	if fault, ok := errors.AsType[*mem.Fault](err); ok {
		t.fault.CompareAndSwap(nil, fault)
	}
	for i := range t.runs {
		t.runs[i].bits.Store(t.tag() << (2 * runBits))
	}
}

// serve is the life of a helper: it waits for a job, joins it while it is open, and works. It says that it is inside
// before it looks again whether the job is open, and the lane closes the job before it looks who is inside, so that one
// of them sees the other.
func (t *team) serve(self *helper, worker int) {
	var ahead []byte // what the worker reads next
	for last := uint64(0); !t.stop.Load(); {
		open := t.await(self, last, ahead)
		if ahead = nil; open == 0 {
			continue
		}
		self.inside.Store(open)
		if t.state.Load() == open {
			t.work(worker)
			if t.ahead != nil {
				ahead = t.ahead(worker)
			}
		}
		self.inside.Store(0)
		last = open
	}
}

// await spins, and then sleeps, until a job other than last is open, and returns the state of that, or 0 when stop has
// to be looked at. Meanwhile it asks memory for what lies ahead.
func (t *team) await(self *helper, last uint64, ahead []byte) uint64 {
	board := t.board
	var idle time.Time // when the spinning without a call began
	for spin := 1; ; spin++ {
		if state := board.state.Load(); state&1 == 1 && state != last {
			return state
		}
		if len(ahead) > 0 {
			size := min(len(ahead), fetchTurn)
			t.fetch(ahead[:size])
			ahead = ahead[size:]
		}
		if spin%yieldSpins == 0 {
			runtime.Gosched()
		}
		if spin%256 != 0 {
			continue
		}
		switch {
		case t.stop.Load():
			return 0
		case t.called.Load():
			idle = time.Time{}
		case idle.IsZero():
			idle = time.Now()
		case time.Since(idle) > idleSpin:
			self.sleep.Store(asleep)
			// the job may have been opened before that: look again, or the wake-up is lost
			state := board.state.Load()
			if !(state&1 == 1 && state != last || t.stop.Load()) || !self.sleep.CompareAndSwap(asleep, awake) {
				<-self.wake
				self.sleep.Store(awake)
			}
			return 0
		}
	}
}
