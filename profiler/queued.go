package profiler

import (
	"errors"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
)

// What an operator takes on a processor that executes calls by itself is what one more call of it takes while others
// are in flight, as the executor submits them ahead. What comes once, however many calls there are, is no part of it:
// the way of the first one to the processor, and the way of the last one's end back. These are the prices of hand-overs
// (see measureMeetings).
//
// A sample is the difference of two runs, each timed from before its first submission until its last call is known to
// be done: of one call, and of one more than what is asked for. Where submitting takes longer than executing, the
// difference is what submitting takes. Of calls that end soon several are taken, whatever is asked for: the way there
// and back takes many times as long as one of them, and what disturbs it would be taken for theirs.
// RATIONALE: What does an operator take on a device that executes calls by itself?

// How long a call takes, in ns: of a short one at least shortTimes are a sample, and of a long one the way there and
// back is so small a part that it is not measured by itself.
const (
	shortCall  = 2e6
	shortTimes = 16
	longCall   = 10e6
)

// tries is how often a sample is repeated whose two runs differ by less than nothing: the single call was disturbed.
const tries = 3

// runQueued executes the operator on an asynchronous processor and returns nanoseconds per execution.
func (ld *loadedOp) runQueued(queue driver.Asynchronous, times int) (float64, error) {
	if ld.callNS >= longCall {
		took, err := ld.timeSubmitted(queue, times)
		ld.callNS = took / float64(times)
		return ld.callNS, err
	}
	for range tries {
		single, err := ld.timeSubmitted(queue, 1)
		if err != nil {
			return 0, err
		}
		calls := times
		if single < shortCall {
			calls = max(times, shortTimes)
		}
		several, err := ld.timeSubmitted(queue, calls+1)
		if err != nil {
			return 0, err
		}
		// At most its share of all calls together, which is what remains where no try has a difference.
		ld.callNS = several / float64(calls+1)
		if each := (several - single) / float64(calls); each > 0 {
			ld.callNS = min(ld.callNS, each)
			break
		}
	}
	return ld.callNS, nil
}

// timeSubmitted submits calls, never more than half of what may be in flight, and returns the ns until the last one is
// done.
func (ld *loadedOp) timeSubmitted(queue driver.Asynchronous, calls int) (float64, error) {
	const ahead = driver.MaxInFlight / 2
	start := queue.Now()
	var last driver.Ticket
	for i := range calls {
		if i >= ahead {
			if _, err := queue.Wait(last - ahead + 1); err != nil {
				return 0, withoutCallNumber(err)
			}
		}
		var err error
		if last, err = queue.Submit(ld.exes[ld.next], &ld.binds[ld.next]); err != nil {
			return 0, err
		}
		if ld.next++; ld.next == len(ld.exes) {
			ld.next = 0
		}
	}
	if _, err := queue.Wait(last); err != nil {
		return 0, withoutCallNumber(err)
	}
	return float64(queue.Now() - start), nil
}

// withoutCallNumber returns the error of a call without its number.
func withoutCallNumber(err error) error {
	if failure, ok := errors.AsType[*driver.Failure](err); ok {
		return diag.New(diag.ClassOr(failure.Err, diag.ClassRun), "%w", failure.Err)
	}
	return err
}
