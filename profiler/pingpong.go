package profiler

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/diag"
)

// flag is a counter alone on its cache line.
type flag struct {
	_ [64]byte
	v atomic.Uint32
	_ [60]byte
}

// game is one hand-over of a flag back and forth between two threads, as lanes do it.
type game struct {
	there, back flag
	stop        atomic.Bool
}

// wait spins until f reaches n. Now and then it gives its place away, in case both threads have to
// share a core; it gives up when the game is stopped.
func (g *game) wait(f *flag, n uint32) bool {
	for i := 1; f.v.Load() != n; i++ {
		if i&0xffff == 0 {
			if g.stop.Load() {
				return false
			}
			runtime.Gosched()
		}
	}
	return true
}

// ping sends the flag n times and waits for its return, pong answers.
func (g *game) ping(from, n uint32) bool {
	for i := from + 1; i <= from+n; i++ {
		g.there.v.Store(i)
		if !g.wait(&g.back, i) {
			return false
		}
	}
	return true
}

func (g *game) pong(from, n uint32) bool {
	for i := from + 1; i <= from+n; i++ {
		if !g.wait(&g.there, i) {
			return false
		}
		g.back.v.Store(i)
	}
	return true
}

// handover returns count samples, in nanoseconds, of the time from setting a flag on one core to seeing it
// on another: half of a round trip, averaged over loops of them, and the first one apart.
func handover(ctx context.Context, a, b, count int, loops uint32) (first float64, samples []float64, err error) {
	g := &game{}
	timer := context.AfterFunc(ctx, func() { g.stop.Store(true) })
	defer timer()
	errs := make(chan error, 2)
	warm := uint32(1000)
	total := 1 + warm + uint32(count)*loops
	go func() {
		runtime.LockOSThread()
		err := affinity.Pin(b)
		if err != nil {
			g.stop.Store(true)
		} else if !g.pong(0, total) {
			err = ctx.Err()
		}
		errs <- err
	}()
	go func() {
		runtime.LockOSThread()
		err := affinity.Pin(a)
		if err != nil {
			g.stop.Store(true)
			errs <- err
			return
		}
		begin := time.Now()
		ok := g.ping(0, 1)
		first = float64(time.Since(begin).Nanoseconds()) / 2
		ok = ok && g.ping(1, warm)
		at := 1 + warm
		for range count {
			begin := time.Now()
			ok = ok && g.ping(at, loops)
			samples = append(samples, float64(time.Since(begin).Nanoseconds())/2/float64(loops))
			at += loops
		}
		if !ok {
			errs <- ctx.Err()
			return
		}
		errs <- nil
	}()
	for range 2 {
		if e := <-errs; e != nil && err == nil {
			err = e
		}
	}
	if err != nil {
		return 0, nil, diag.New(diag.ClassRun, "measure hand-over between cores %d and %d: %w", a, b, err)
	}
	return first, samples, nil
}
