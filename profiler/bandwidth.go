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

// sum fetches every cache line of b, aligned and a multiple of 512 bytes long, and adds up one word of
// each: arithmetic on all of them would measure the arithmetic. Eight streams keep enough fetches
// in flight to saturate a core's path to memory, which one stream does not on every CPU.
func sum(b []byte) uint64 {
	w, err := mem.View[uint64](b)
	if err != nil {
		panic("BUG: bandwidth memory is not aligned")
	}
	const line = 8 // words
	n := len(w) / 8
	a0, a1, a2, a3 := w[:n], w[n:2*n], w[2*n:3*n], w[3*n:4*n]
	a4, a5, a6, a7 := w[4*n:5*n], w[5*n:6*n], w[6*n:7*n], w[7*n:8*n]
	var s [8]uint64
	for i := 0; i < n; i += line {
		s[0] += a0[i]
		s[1] += a1[i]
		s[2] += a2[i]
		s[3] += a3[i]
		s[4] += a4[i]
		s[5] += a5[i]
		s[6] += a6[i]
		s[7] += a7[i]
	}
	return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7]
}

// reading is what worker i of n does to read its part of memory, aligned, over and over, with read, a chunk at a time.
func reading(memory []byte, n int, read func([]byte) uint64) func(i int) func() int64 {
	each := len(memory) / max(n, 1) &^ (chunk - 1)
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

// sink keeps results from being optimised away.
var sink atomic.Uint64

// computing is what every worker does to reach a peak.
func computing(peak func(ops int64) int64) func(i int) func() int64 {
	const ops = 1 << 20 // milliseconds of scalar instructions, microseconds of the widest
	return func(int) func() int64 { return func() int64 { return peak(ops) } }
}

// worker works on one core until it is stopped.
type worker struct {
	core int
	do   func() int64 // a piece of work; returns its size
	done atomic.Int64
	_    [64]byte // the counters of two workers share no cache line
}

// workers are threads that work at the same time, one per core.
type workers struct {
	all  []*worker
	stop atomic.Bool
	done sync.WaitGroup
}

// startWorkers has worker i of the cores do work(i) over and over until close.
func startWorkers(cores []int, work func(i int) func() int64) (*workers, error) {
	ws := &workers{}
	errs := make(chan error, len(cores))
	for i, core := range cores {
		w := &worker{core: core, do: work(i)}
		ws.all = append(ws.all, w)
		ws.done.Add(1)
		go func() {
			defer ws.done.Done()
			runtime.LockOSThread() // never unlocked: the pinned thread ends with the goroutine
			if err := affinity.Pin(w.core); err != nil {
				errs <- err
				return
			}
			errs <- nil
			for !ws.stop.Load() {
				w.done.Add(w.do())
			}
		}()
	}
	for range cores {
		if err := <-errs; err != nil {
			ws.close()
			return nil, err
		}
	}
	return ws, nil
}

func (ws *workers) close() {
	ws.stop.Store(true)
	ws.done.Wait()
}

// size is how much the first n workers have done.
func (ws *workers) size(n int) (sum int64) {
	for _, w := range ws.all[:n] {
		sum += w.done.Load()
	}
	return sum
}

// rates returns count samples of the work per nanosecond that the cores do while those of beside, the last workers,
// work too.
func rates(ctx context.Context, cores, beside []int, count int, window time.Duration, work func(i int) func() int64) ([]float64, error) {
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

// streamBytes is the size of a memory that no cache holds: four times the last cache, at least 1 GiB,
// but at most a third of what is available and never less than 64 MiB.
func streamBytes(lastCache int64) int64 {
	bytes := max(4*lastCache, 1<<30)
	if free := availableBytes(); free > 0 {
		bytes = min(bytes, free/3)
	}
	return max(bytes, 64<<20)
}

// touched allocates memory and writes every page, so that reading it reads memory and not the one
// zero page.
func touched(bytes int64) (*mem.Region, error) {
	bytes = (bytes + chunk - 1) &^ (chunk - 1)
	r, err := mem.Alloc(int(bytes), 4096)
	if err != nil {
		return nil, err
	}
	w, err := mem.View[uint64](r.Bytes())
	if err != nil {
		r.Close()
		return nil, err
	}
	x := uint64(0x9e3779b97f4a7c15)
	for i := range w {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		w[i] = x
	}
	return r, nil
}
