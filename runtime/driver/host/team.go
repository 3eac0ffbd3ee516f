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

// yieldSpins is how many turns a thread spins, some 100 us, before it yields to other goroutines.
// These may be what it waits for, when the process has fewer processors than threads.
const yieldSpins = 1 << 16

// closed is the value of gate while no job accepts helpers.
const closed = -1 << 32

// team is the threads of one processor. The lane's own thread is worker 0. Helpers 1.. take part in
// a job while its gate is open. A helper that is late, or not scheduled at all, costs nothing: the
// lane takes every task that is left and waits only for helpers inside the job.
type team struct {
	helpers []*helper
	running atomic.Bool   // a call is in progress: helpers spin without limit
	stop    atomic.Bool   // helpers return
	epoch   atomic.Uint64 // number of jobs opened
	gate    atomic.Int64  // helpers inside the job, or closed
	next    atomic.Int64  // next task
	// the job: written before epoch is raised, so that helpers that join see it
	tasks int
	job   func(worker, task int)
	fault atomic.Pointer[mem.Fault] // the first of the job
	done  sync.WaitGroup
}

// helper sleeps on wake; whoever turns asleep off sends the token.
type helper struct {
	asleep atomic.Bool
	wake   chan struct{} // one token, sent by the thread that turns asleep off
}

// start runs one helper per core beyond the first and returns when all are pinned.
func (t *team) start(cores []int) error {
	t.gate.Store(closed)
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

// wakeAll wakes the helpers that sleep; those that spin see the epoch.
func (t *team) wakeAll() {
	for _, helper := range t.helpers {
		if helper.asleep.CompareAndSwap(true, false) {
			helper.wake <- struct{}{}
		}
	}
}

// begin and end enclose the jobs of one call.
func (t *team) begin() { t.running.Store(true) }
func (t *team) end()   { t.running.Store(false) }

// run calls job(worker, task) once for every task in 0..tasks-1, and returns when all are done. If
// a task reads mapped memory that has vanished, the rest is left out and the *mem.Fault is thrown
// once no helper is inside the job.
func (t *team) run(tasks int, job func(worker, task int)) {
	if len(t.helpers) == 0 || tasks < 2 {
		for i := range tasks {
			job(0, i)
		}
		return
	}
	t.job, t.tasks = job, tasks
	t.next.Store(0)
	t.gate.Store(0)
	t.epoch.Add(1)
	t.wakeAll()
	t.work(0)
	for spin := 1; !t.gate.CompareAndSwap(0, closed); spin++ { // helpers are inside their last task
		if spin%yieldSpins == 0 {
			runtime.Gosched()
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
	for {
		i := int(t.next.Add(1) - 1)
		if i >= t.tasks {
			return
		}
		t.job(worker, i)
	}
}

// fail records the first fault and ends the job early.
func (t *team) fail(err error) {
	if fault, ok := errors.AsType[*mem.Fault](err); ok {
		t.fault.CompareAndSwap(nil, fault)
	}
	t.next.Store(int64(t.tasks))
}

// join enters the open job; false where none is open.
func (t *team) join() bool {
	for {
		generation := t.gate.Load()
		if generation < 0 {
			return false
		}
		if t.gate.CompareAndSwap(generation, generation+1) {
			return true
		}
	}
}

// serve is the life of a helper: it waits for a job, joins it while it is open, and works.
func (t *team) serve(h *helper, worker int) {
	last := uint64(0)
	for !t.stop.Load() {
		if !t.await(h, last) {
			continue
		}
		last = t.epoch.Load() // before joining: a newer job is then seen as new
		if t.join() {
			t.work(worker)
			t.gate.Add(-1)
		}
	}
}

// await spins, and then sleeps, until a job newer than last is opened. It returns false when stop
// has to be looked at.
func (t *team) await(self *helper, last uint64) bool {
	var idle time.Time // when the spinning without a call began
	for spin := 1; ; spin++ {
		if t.epoch.Load() != last {
			return true
		}
		if spin%yieldSpins == 0 {
			runtime.Gosched()
		}
		if spin%256 != 0 {
			continue
		}
		switch {
		case t.stop.Load():
			return false
		case t.running.Load():
			idle = time.Time{}
		case idle.IsZero():
			idle = time.Now()
		case time.Since(idle) > idleSpin:
			// the job may have been opened before asleep was set: look again, or the wake-up is
			// lost
			self.asleep.Store(true)
			if (t.epoch.Load() != last || t.stop.Load()) && self.asleep.CompareAndSwap(true, false) {
				return false
			}
			<-self.wake
			return false
		}
	}
}
