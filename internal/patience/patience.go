// Package patience knows how long this process has waited: time in which it was stopped (Ctrl-Z, a debugger, a machine
// that slept) does not count, because whom it waits for may not have run either.
//
// Waiting is counted in ticks. A ticker drops ticks that were not received, so a stop of any length counts as one.
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
func AfterFunc(wait time.Duration, run func()) (stop func() bool) {
	return afterTicks(wait, run, func(period time.Duration) (<-chan time.Time, func()) {
		ticker := time.NewTicker(period)
		return ticker.C, ticker.Stop
	})
}

// WithTimeout is context.WithTimeout for time in which the process runs. The context then ends with context.Canceled
// and the cause context.DeadlineExceeded.
func WithTimeout(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := AfterFunc(wait, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Await returns what arrives before the process has run for wait, and whether anything did.
func Await[T any](arrives <-chan T, wait time.Duration) (value T, ok bool) {
	late := make(chan struct{})
	stop := AfterFunc(wait, func() { close(late) })
	defer stop()
	select {
	case value = <-arrives:
		return value, true
	case <-late:
		return value, false
	}
}

// afterTicks calls run after wait, counted in ticks. stop prevents that, and returns whether it
// came in time.
func afterTicks(
	wait time.Duration, run func(), ticker func(time.Duration) (<-chan time.Time, func()),
) (stop func() bool) {
	period := max(1, min(wait/ticks, longest))
	ticks, end := ticker(period)
	asked, late := make(chan chan bool), make(chan struct{})
	go func() {
		defer end()
		for left := wait; left > 0; left -= period {
			select {
			case <-ticks:
			case answer := <-asked:
				answer <- true
				return
			}
		}
		close(late)
		run()
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
