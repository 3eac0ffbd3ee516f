package park

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// No wake-up is lost, whenever it comes: two threads that hand a number to each other count to the end.
func TestHandedToAndFro(t *testing.T) {
	const turns = 20000
	var here, there Spot
	var count atomic.Int64
	ended := make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		defer close(ended)
		for i := range int64(turns) {
			there.Sleep()
			if got := count.Add(1); got != 2*i+1 {
				t.Errorf("turn %d: count %d, want %d", i, got, 2*i+1)
			}
			here.Wake()
		}
	}()
	for i := range int64(turns) {
		there.Wake()
		here.Sleep()
		if got := count.Add(1); got != 2*i+2 {
			t.Fatalf("turn %d: count %d, want %d", i, got, 2*i+2)
		}
	}
	<-ended
}

// A wake-up before the sleep ends it at once, and several count as one.
func TestWokenBefore(t *testing.T) {
	var spot Spot
	spot.Wake()
	spot.Wake()
	spot.Sleep()
	var slept atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		spot.Sleep()
		slept.Store(true)
	}()
	time.Sleep(20 * time.Millisecond)
	if slept.Load() {
		t.Error("one of two wake-ups was left for a second sleep")
	}
	spot.Wake()
	<-ended
}

// A thread that sleeps does not hold up the collector, which stops all others.
func TestCollectedWhileAsleep(t *testing.T) {
	var spot Spot
	ended := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer close(ended)
		spot.Sleep()
	}()
	for range 10 {
		runtime.GC()
	}
	spot.Wake()
	<-ended
}
