package profiler

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/profiler/stat"
)

// flag is a counter alone on its cache lines.
type flag struct {
	_ [64]byte
	v atomic.Uint32
	_ [60]byte
}

// game passes a flag back and forth between two threads, as lanes signal each other.
type game struct {
	there, back flag
	stop        atomic.Bool
}

// wait spins until flag reaches value. It yields now and then, in case both threads share a core,
// and returns false once the game is stopped.
func (g *game) wait(flag *flag, value uint32) bool {
	for i := 1; flag.v.Load() != value; i++ {
		if i&0xffff == 0 {
			if g.stop.Load() {
				return false
			}
			runtime.Gosched()
		}
	}
	return true
}

// ping sends the flag the given number of times and waits for each return; pong answers.
func (g *game) ping(from, rounds uint32) bool {
	for i := from + 1; i <= from+rounds; i++ {
		g.there.v.Store(i)
		if !g.wait(&g.back, i) {
			return false
		}
	}
	return true
}

// pong is the other side of ping, which must be given the same numbers.
func (g *game) pong(from, rounds uint32) bool {
	for i := from + 1; i <= from+rounds; i++ {
		if !g.wait(&g.there, i) {
			return false
		}
		g.back.v.Store(i)
	}
	return true
}

// Handover returns the time in ns from setting a flag on one core to seeing it on another: what Probe writes into a SoC
// file as the hand-over of two processors, measured now.
func Handover(ctx context.Context, from, to int) (float64, error) {
	defer raiseThreads(2)()
	_, samples, err := handover(ctx, from, to, syncSamples, syncLoops)
	if err != nil {
		return 0, err
	}
	return stat.Median(samples), nil
}

// handover measures the time in nanoseconds from setting a flag on one core to seeing it on
// another: half of a round trip. It returns count samples, each a mean over loops round trips, and
// the very first hand-over apart.
func handover(ctx context.Context, from, to, count int, loops uint32) (first float64, samples []float64, err error) {
	game := &game{}
	// Both threads look at flags alone: asking the context takes longer than that.
	timer := context.AfterFunc(ctx, func() { game.stop.Store(true) })
	defer timer()
	errs := make(chan error, 2)
	warm := uint32(1000)
	// Both sides must agree on the number of rounds: the first, those that warm up, and those that are timed.
	total := 1 + warm + uint32(count)*loops
	go func() {
		runtime.LockOSThread()
		err := affinity.Pin(to)
		if err != nil {
			game.stop.Store(true)
		} else if !game.pong(0, total) {
			err = ctx.Err()
		}
		errs <- err
	}()
	go func() {
		runtime.LockOSThread()
		err := affinity.Pin(from)
		if err != nil {
			game.stop.Store(true)
			errs <- err
			return
		}
		begin := time.Now()
		ok := game.ping(0, 1)
		first = float64(time.Since(begin).Nanoseconds()) / 2
		ok = ok && game.ping(1, warm)
		at := 1 + warm
		for range count {
			begin := time.Now()
			ok = ok && game.ping(at, loops)
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
		if failed := <-errs; failed != nil && err == nil {
			err = failed
		}
	}
	if err != nil {
		return 0, nil, diag.New(diag.ClassRun, "measure hand-over between cores %d and %d: %w", from, to, err)
	}
	return first, samples, nil
}
