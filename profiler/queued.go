package profiler

import (
	"errors"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
)

// An asynchronous processor executes calls by itself, and the executor submits them ahead. The price of an operator
// there is the time of one more call while others are in flight. It excludes what is paid once for any number of calls:
// submitting the first one, and noticing the end of the last one. Those are the prices of hand-overs (see
// measureMeetings).
//
// A sample is the difference of two runs: one of a single call, and one of a call more than is asked for. Each is timed
// from before its first submission until its last call is known to be done. Where submitting takes longer than
// executing, the difference is the time of submitting.
//
// A sample of short calls has at least shortTimes of them. Submission and notification take many times as long as one
// such call, so that a disturbance of these would count as time of the call.
// RATIONALE: What does an operator take on a device that executes calls by itself?

// Times of a call in ns that decide how it is sampled. Of a long call, submission and notification are so small a part
// that they are not subtracted.
const (
	shortCall  = 2e6
	shortTimes = 16
	longCall   = 10e6
)

// tries is how often a sample is taken at most. It is taken again if the run of several calls is the shorter one: then
// the single call was disturbed.
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
		// An upper bound, which also counts where no try has a positive difference.
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
