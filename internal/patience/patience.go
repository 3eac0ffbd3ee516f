// Package patience knows how long this process has waited: time in which it was stopped (Ctrl-Z, a debugger, a machine
// that slept) does not count, because whom it waits for may not have run either.
//
// Waiting is counted in ticks. A ticker drops those that nobody took, so a stop of any length counts as one.
package patience

import (
	"context"
	"time"
)

const (
	ticks   = 20 // of a wait
	longest = 100 * time.Millisecond
)

// AfterFunc calls f in a goroutine of its own once the process has run for d. stop ends the wait and reports whether it
// came before that.
func AfterFunc(d time.Duration, f func()) (stop func() bool) {
	return afterTicks(d, f, func(period time.Duration) (<-chan time.Time, func()) {
		t := time.NewTicker(period)
		return t.C, t.Stop
	})
}

// WithTimeout is context.WithTimeout for time in which the process runs. The context then ends with context.Canceled and
// the cause context.DeadlineExceeded.
func WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := AfterFunc(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

func afterTicks(d time.Duration, f func(), ticker func(time.Duration) (<-chan time.Time, func())) (stop func() bool) {
	period := max(1, min(d/ticks, longest))
	c, end := ticker(period)
	asked, late := make(chan chan bool), make(chan struct{})
	go func() {
		defer end()
		for left := d; left > 0; left -= period {
			select {
			case <-c:
			case answer := <-asked:
				answer <- true
				return
			}
		}
		close(late)
		f()
	}()
	ended, was := false, false
	return func() bool {
		if ended {
			return was
		}
		ended = true
		answer := make(chan bool, 1)
		select {
		case asked <- answer:
			was = <-answer
		case <-late:
		}
		return was
	}
}
