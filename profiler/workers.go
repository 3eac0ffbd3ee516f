package profiler

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/internal/affinity"
)

// raiseThreads has the Go scheduler run a thread on each of so many cores that are measured together, and two that
// wait, whatever GOMAXPROCS says: threads that take turns would be measured as slow cores. It returns what restores
// GOMAXPROCS.
func raiseThreads(cores int) (restore func()) {
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(before, cores+2))
	return func() { runtime.GOMAXPROCS(before) }
}

// worker works on one core until it is stopped.
type worker struct {
	core int
	do   func() int64 // a piece of work; returns its size
	done atomic.Int64
	_    [64]byte // the counters of two workers share no cache line
}

// workers are pinned threads that work at the same time, one per core.
type workers struct {
	all  []*worker
	stop atomic.Bool
	done sync.WaitGroup
}

// startWorkers starts a thread on each core; worker i repeats work(i) until close. It returns once
// all are pinned.
func startWorkers(cores []int, work func(i int) func() int64) (*workers, error) {
	ws := &workers{}
	errs := make(chan error, len(cores))
	for i, core := range cores {
		worker := &worker{core: core, do: work(i)}
		ws.all = append(ws.all, worker)
		ws.done.Go(func() {
			runtime.LockOSThread() // never unlocked: the pinned thread ends with the goroutine
			if err := affinity.Pin(worker.core); err != nil {
				errs <- err
				return
			}
			errs <- nil
			for !ws.stop.Load() {
				worker.done.Add(worker.do())
			}
		})
	}
	for range cores {
		if err := <-errs; err != nil {
			ws.close()
			return nil, err
		}
	}
	return ws, nil
}

// close stops the workers and waits for them.
func (ws *workers) close() {
	ws.stop.Store(true)
	ws.done.Wait()
}

// size returns how much the first n workers have done.
func (ws *workers) size(n int) (sum int64) {
	for _, w := range ws.all[:n] {
		sum += w.done.Load()
	}
	return sum
}

// computing returns the work of workers at their peak: arithmetic on registers alone, in pieces of at least pieceTime,
// beside which what a call of peak does before and after it is nothing.
func computing(peak func(ops int64) int64) func(i int) func() int64 {
	const (
		least     = 1 << 20 // milliseconds of scalar instructions, a microsecond or less of tiles
		pieceTime = 200 * time.Microsecond
	)
	return func(int) func() int64 {
		ops := int64(least)
		return func() int64 {
			begin := time.Now()
			done := peak(ops)
			if time.Since(begin) < pieceTime {
				ops *= 2
			}
			return done
		}
	}
}

// sampleRates returns count samples of the work per nanosecond that the cores do together. The cores of beside do the
// same work meanwhile, as the last workers, and are not counted. A sample is one window. Another one before them warms
// up.
func sampleRates(
	ctx context.Context, cores, beside []int, count int, window time.Duration, work func(i int) func() int64,
) ([]float64, error) {
	ws, err := startWorkers(append(append([]int(nil), cores...), beside...), work)
	if err != nil {
		return nil, err
	}
	defer ws.close()
	out := make([]float64, 0, count)
	last, lastSize := time.Now(), int64(-1)
	for len(out) < count {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(window):
		}
		now, size := time.Now(), ws.size(len(cores))
		if lastSize >= 0 { // not the window that warms up
			if size == lastSize {
				continue // no piece of work has ended: the window grows until one has
			}
			out = append(out, float64(size-lastSize)/float64(now.Sub(last).Nanoseconds()))
		}
		last, lastSize = now, size
	}
	return out, nil
}
