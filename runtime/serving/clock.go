package serving

import (
	"context"
	"time"

	"github.com/hetc/hetc/runtime/executor"
)

// Clock is the time of a Server whose machine is simulated, and the source of its requests. Run calls it, one method at
// a time.
type Clock interface {
	Now() int64 // ns
	// Called says that a program call has ended. Now then returns the time of its end.
	Called(Call)
	// Boundary is called before every decision. It submits the requests that have arrived by now.
	Boundary()
	// Idle is called when there is nothing to do. It waits for the next request, or drains the Server.
	Idle(ctx context.Context)
}

// Call is a program call.
type Call struct {
	Tokens    int   // how many of a prompt it processed; 0: it decoded
	Rest      int   // tokens that the prompt had left before this chunk, or before the chunk beside this call
	Sequences int   // of how many it decoded a token or verified a draft
	Draft     int   // tokens of the draft
	Beside    bool  // another processor processed a chunk meanwhile
	NS        int64 // as the executor measured or simulated it
}

// wallClock is the time of this machine.
type wallClock struct {
	began time.Time
	wake  <-chan struct{}
}

func (c *wallClock) Now() int64  { return int64(time.Since(c.began)) }
func (c *wallClock) Called(Call) {}
func (c *wallClock) Boundary()   {}

// Idle waits for notify.
func (c *wallClock) Idle(ctx context.Context) {
	select {
	case <-c.wake:
	case <-ctx.Done():
	}
}

// called notes a program call that has ended.
func (s *Server) called(call Call) {
	s.clock.Called(call)
	s.tally.latest = call
}

// Warm executes every program of a machine once, so that no request waits for what the first call loads or prepares. It
// leaves the caches of all sequences empty.
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

// ignored takes logits that are not needed.
func ignored(int, []float32) error { return nil }

// warmPrefill executes the programs that process this many tokens of a prompt.
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

// warmDecode executes the programs that decode this many sequences together.
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
