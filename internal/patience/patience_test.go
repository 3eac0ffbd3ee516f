package patience

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Only ticks that were taken count: a process that was stopped takes one, however long it was.
func TestStopsDoNotCount(t *testing.T) {
	clock := make(chan time.Time)
	var period time.Duration
	called := make(chan bool)
	stop := afterTicks(2*time.Second, func() { close(called) }, func(p time.Duration) (<-chan time.Time, func()) {
		period = p
		return clock, func() {}
	})
	now := time.Time{}
	for i := range ticks {
		select {
		case <-called:
			t.Fatalf("called after %d ticks of %v", i, period)
		default:
		}
		now = now.Add(time.Hour) // as far as a clock goes while the process is stopped
		clock <- now
	}
	<-called
	if first, again := stop(), stop(); first || again {
		t.Error("stopped in time, when it was late")
	}
}

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan int, 1)
		time.AfterFunc(time.Minute/2, func() { answers <- 7 })
		if got, ok := Await(answers, time.Minute); got != 7 || !ok {
			t.Errorf("got %d, %v, want 7", got, ok)
		}

		began := time.Now()
		if got, ok := Await(answers, time.Minute); ok {
			t.Errorf("got %d, want nothing", got)
		}
		if took := time.Since(began); took < time.Minute || took > time.Minute+longest {
			t.Errorf("awaited for %v", took)
		}
	})
}

func TestWithTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := WithTimeout(t.Context(), time.Minute)
		defer cancel()
		<-ctx.Done()
		if took := time.Since(began); took < time.Minute || took > time.Minute+longest || !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			t.Errorf("ended after %v: %v", took, context.Cause(ctx))
		}
		ctx, cancel = WithTimeout(t.Context(), time.Minute)
		cancel()
		cancel()
		if !errors.Is(ctx.Err(), context.Canceled) || errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			t.Errorf("cancelled: %v", context.Cause(ctx))
		}
		stop := AfterFunc(time.Hour, func() { t.Error("called") })
		if first, again := stop(), stop(); !first || !again {
			t.Error("stopped late")
		}
		done := make(chan bool)
		AfterFunc(time.Nanosecond, func() { close(done) })
		<-done
	})
}
