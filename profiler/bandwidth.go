package profiler

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/mem"
)

// chunk is how much memory a worker reads between two looks at the stop flag.
const chunk = 1 << 20

// raiseThreads has the Go scheduler run a thread on each of so many cores that are measured together, and two that
// wait, whatever GOMAXPROCS says: threads that take turns would be measured as slow cores. It returns what restores
// GOMAXPROCS.
func raiseThreads(cores int) (restore func()) {
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(before, cores+2))
	return func() { runtime.GOMAXPROCS(before) }
}

// sum reads one word of every cache line of data, which is aligned and a multiple of 512 bytes
// long: arithmetic on all words would measure the arithmetic. Eight streams keep enough fetches in
// flight to saturate a core's path to memory, which one stream does not on every CPU.
func sum(data []byte) uint64 {
	words, err := mem.View[uint64](data)
	if err != nil {
		panic("BUG: bandwidth memory is not aligned")
	}
	const line = 8 // words
	n := len(words) / 8
	a0, a1, a2, a3 := words[:n], words[n:2*n], words[2*n:3*n], words[3*n:4*n]
	a4, a5, a6, a7 := words[4*n:5*n], words[5*n:6*n], words[6*n:7*n], words[7*n:8*n]
	var sums [8]uint64
	for i := 0; i < n; i += line {
		sums[0] += a0[i]
		sums[1] += a1[i]
		sums[2] += a2[i]
		sums[3] += a3[i]
		sums[4] += a4[i]
		sums[5] += a5[i]
		sums[6] += a6[i]
		sums[7] += a7[i]
	}
	return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7]
}

// reading returns the work of the workers that read memory together: worker i reads its own,
// aligned part over and over, a chunk at a time, with the function read.
func reading(memory []byte, cores int, read func([]byte) uint64) func(i int) func() int64 {
	each := len(memory) / max(cores, 1) &^ (chunk - 1)
	if each < chunk {
		panic("BUG: too little memory for the readers")
	}
	return func(i int) func() int64 {
		part, at := memory[i*each:(i+1)*each], 0
		return func() int64 {
			sink.Add(read(part[at : at+chunk]))
			if at += chunk; at == len(part) {
				at = 0
			}
			return chunk
		}
	}
}

// sink takes results, so that the compiler does not remove the reads.
var sink atomic.Uint64

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

// rates returns count samples of the work per nanosecond that the cores do together. The cores of
// beside do the same work meanwhile, as the last workers, and are not counted. A sample is one
// window; the first one warms up.
func rates(
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
		// The first window warms up.
		if lastSize >= 0 {
			if size == lastSize {
				continue // slower than a piece per window: it ends with the next one that sees some
			}
			out = append(out, float64(size-lastSize)/float64(now.Sub(last).Nanoseconds()))
		}
		last, lastSize = now, size
	}
	return out, nil
}

// streamBytes returns the size of a memory that no cache holds: four times the last-level cache, at
// least 1 GiB. It is at most a third of the available memory, but never less than 64 MiB.
func streamBytes(lastCache int64) int64 {
	bytes := max(4*lastCache, 1<<30)
	if free := availableBytes(); free > 0 {
		bytes = min(bytes, free/3)
	}
	return max(bytes, 64<<20)
}

// touched allocates memory and writes every page of it. Pages that were never written all map to
// one zero page, which a cache holds.
func touched(bytes int64) (*mem.Region, error) {
	bytes = (bytes + chunk - 1) &^ (chunk - 1)
	region, err := mem.Alloc(int(bytes), 4096)
	if err != nil {
		return nil, err
	}
	words, err := mem.View[uint64](region.Bytes())
	if err != nil {
		region.Close()
		return nil, err
	}
	// xorshift64
	state := uint64(0x9e3779b97f4a7c15)
	for i := range words {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		words[i] = state
	}
	return region, nil
}
