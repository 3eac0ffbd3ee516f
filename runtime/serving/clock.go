package serving

import (
	"context"
	"time"

	"github.com/hetc/hetc/runtime/executor"
)

// Clock is the time of a Server whose machine is simulated, and who sends it requests. Run calls it, one method at a
// time.
type Clock interface {
	Now() int64 // ns
	// Called says that a program call has ended: Now is then when it did.
	Called(Call)
	// Boundary comes before every decision. Requests that have arrived by now are submitted here.
	Boundary()
	// Idle waits for the next request, or drains the Server. There is nothing else to do.
	Idle(ctx context.Context)
}

// Call is a program call.
type Call struct {
	Tokens    int   // of a prompt that it processed; 0: it decoded
	Rest      int   // of the prompt that it processed, or that another processor processed meanwhile, these tokens included
	Sequences int   // that it decoded a token of, or verified a draft of
	Draft     int   // tokens of the draft
	Beside    bool  // another processor processed a chunk meanwhile
	NS        int64 // by the executor: real or simulated
}

// wallClock is the time of this machine.
type wallClock struct {
	began time.Time
	wake  <-chan struct{}
}

func (c *wallClock) Now() int64  { return int64(time.Since(c.began)) }
func (c *wallClock) Called(Call) {}
func (c *wallClock) Boundary()   {}

// Idle waits until somebody says that there is something to do.
func (c *wallClock) Idle(ctx context.Context) {
	select {
	case <-c.wake:
	case <-ctx.Done():
	}
}

// called tells of a program call that has ended.
func (s *Server) called(call Call) {
	s.clock.Called(call)
	s.tally.latest = call
}

// Warm executes every program of a machine once: what is loaded or prepared when a program is first called is there
// afterwards, so that no request waits for it. The caches of all sequences are empty then.
func Warm(ctx context.Context, machine *executor.Machine) error {
	return machine.Do(ctx, func(control *executor.Control) error {
		empty := func() {
			for sequence := range machine.Sequences() {
				control.Truncate(sequence, 0)
			}
		}
		defer empty()
		plan := machine.Plan()
		for _, choice := range plan.Program.Decider {
			empty()
			if err := warmPrefill(control, machine.Beside(), make([]int32, choice.Min)); err != nil {
				return err
			}
		}
		for _, count := range append([]int{1}, plan.Batches...) {
			empty()
			if err := warmDecode(control, machine.Beside(), count); err != nil {
				return err
			}
		}
		return nil
	})
}

// ignored takes logits that are of no use.
func ignored(int, []float32) error { return nil }

// warmPrefill has the programs that process this many tokens of a prompt do so.
func warmPrefill(control *executor.Control, beside bool, tokens []int32) error {
	if _, _, err := control.Chunk(0, tokens, executor.WantLast, ignored); err != nil {
		return err
	}
	if !beside || len(tokens) < 2 {
		return nil
	}
	control.Truncate(0, 0)
	if _, err := control.Begin(0, tokens, true); err != nil {
		return err
	}
	_, err := control.Await(func([]float32) error { return nil })
	return err
}

// warmDecode has the programs that decode this many sequences together do so.
func warmDecode(control *executor.Control, beside bool, sequences int) error {
	tokens := make([]executor.Token, sequences)
	for i := range tokens {
		tokens[i].Sequence = i
	}
	if _, err := control.Step(tokens, ignored); err != nil || !beside {
		return err
	}
	for i := range tokens {
		control.Truncate(i, 0)
	}
	_, err := control.StepBeside(tokens, ignored)
	return err
}
