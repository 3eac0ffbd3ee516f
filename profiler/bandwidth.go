package profiler

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/internal/mem"
)

// chunk is how much a reader reads between two looks at the stop flag.
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

// reader reads its part of a memory over and over on one core.
type reader struct {
	core  int
	part  []byte
	bytes atomic.Int64
	_     [64]byte // the counters of two readers share no cache line
}

// readers are threads that read memory at the same time, one per core.
type readers struct {
	all  []*reader
	stop atomic.Bool
	done sync.WaitGroup
	sink atomic.Uint64
}

// startReaders divides memory, aligned, among the cores and reads it until close.
func startReaders(memory []byte, cores []int) (*readers, error) {
	rs := &readers{}
	each := len(memory) / max(len(cores), 1) &^ (chunk - 1)
	if each < chunk {
		panic("BUG: too little memory for the readers")
	}
	errs := make(chan error, len(cores))
	for i, core := range cores {
		r := &reader{core: core, part: memory[i*each : (i+1)*each]}
		rs.all = append(rs.all, r)
		rs.done.Add(1)
		go func() {
			defer rs.done.Done()
			runtime.LockOSThread() // never unlocked: the pinned thread ends with the goroutine
			if err := pin(r.core); err != nil {
				errs <- err
				return
			}
			errs <- nil
			var s uint64
			for at := 0; !rs.stop.Load(); at += chunk {
				if at == len(r.part) {
					at = 0
				}
				s += sum(r.part[at : at+chunk])
				r.bytes.Add(chunk)
			}
			rs.sink.Add(s)
		}()
	}
	for range cores {
		if err := <-errs; err != nil {
			rs.close()
			return nil, err
		}
	}
	return rs, nil
}

func (rs *readers) close() {
	rs.stop.Store(true)
	rs.done.Wait()
}

// read is how many bytes the first n readers have read.
func (rs *readers) read(n int) (bytes int64) {
	for _, r := range rs.all[:n] {
		bytes += r.bytes.Load()
	}
	return bytes
}

// rates returns count samples of the bytes per nanosecond that the readers of cores reach while
// those of beside read too.
func rates(ctx context.Context, memory []byte, cores, beside []int, count int, window time.Duration) ([]float64, error) {
	rs, err := startReaders(memory, append(append([]int(nil), cores...), beside...))
	if err != nil {
		return nil, err
	}
	defer rs.close()
	out := make([]float64, 0, count)
	last, lastBytes := time.Now(), int64(-1)
	for len(out) < count {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(window):
		}
		now, bytes := time.Now(), rs.read(len(cores))
		// The first window warms up.
		if lastBytes >= 0 {
			if bytes == lastBytes {
				window *= 2 // slower than a chunk per window
				continue
			}
			out = append(out, float64(bytes-lastBytes)/float64(now.Sub(last).Nanoseconds()))
		}
		last, lastBytes = now, bytes
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
