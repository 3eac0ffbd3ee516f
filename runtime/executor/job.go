package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hetc/hetc/internal/diag"
)

// Control is what a job on the control thread can do. It is valid during the job only.
type Control struct {
	machine *Machine
	ctx     context.Context
}

// job is a function for the control lane's thread.
type job struct {
	run  func() error
	done chan error
}

// patience is how long Do waits for a step once its context has ended, so that an interruption does not take as long as
// the deadline. Close waits as long for threads to return.
const patience = 5 * time.Second

// Do runs fn on the control lane's thread and returns its error. When ctx ends, lanes stop at their next step. When no
// lane finishes a step for the machine's deadline, or for 5 s after ctx ended, Do gives up: the Machine is then
// unusable, and Close leaves the hanging processor behind.
func (m *Machine) Do(ctx context.Context, fn func(*Control) error) error {
	if broken := m.broken.Load(); broken != nil {
		return *broken
	}
	given := job{done: make(chan error, 1)}
	given.run = func() error {
		err := fn(&Control{m, ctx})
		if err != nil {
			m.abandon(err)
		}
		return err
	}
	select {
	case m.jobs <- given:
	case <-ctx.Done():
		return ctx.Err()
	}
	return m.watch(ctx, given.done)
}

// watch waits for a job to end, and gives it up when no lane finishes a step for too long. Lanes that wait for flags
// give up at the deadline themselves; a lane that hangs inside its driver cannot. So watch waits a little longer than
// the deadline.
func (m *Machine) watch(ctx context.Context, ended <-chan error) error {
	period := max(m.deadline/20, time.Millisecond)
	tick := time.NewTicker(period)
	defer tick.Stop()
	last, quiet := m.steps.Load(), time.Duration(0)
	allowed := m.deadline // as the error says it
	limit := allowed + 4*period
	cancelled := ctx.Done()
	for {
		select {
		case err := <-ended:
			if failure := m.poison.Swap(nil); failure != nil && err != nil {
				err = *failure // the first failure, not what it caused elsewhere
			}
			return m.cause(err)
		case <-cancelled:
			m.fail(ctx.Err())
			cancelled, quiet = nil, 0
			if limit > patience {
				allowed, limit, period = patience, patience, patience/20
				tick.Reset(period)
			}
		case <-tick.C:
			if steps := m.steps.Load(); steps != last {
				last, quiet = steps, 0
				continue
			}
			if quiet += period; quiet > limit {
				var hangs error = diag.New(diag.ClassRun, "no step finished for %v; %s", allowed, m.describeWork())
				m.fail(hangs)
				m.broken.Store(&hangs)
				return *m.poison.Load() // that of ctx, where it had ended
			}
		}
	}
}

// describeWork describes what the processors have to do, for an error about one that hangs. Any goroutine may call it.
func (m *Machine) describeWork() string {
	var list []string
	for _, lane := range m.lanes {
		if graph := lane.loads.Load(); graph != nil {
			list = append(list, fmt.Sprintf("graph %q (%s) is being loaded on processor %q", graph.Name,
				mainOp(&graph.Graph).Key(), lane.name))
		}
		if call := lane.executes.Load(); call != nil {
			list = append(list, fmt.Sprintf("%s on processor %q is not done", call.step.describe(call.iter), lane.name))
		}
	}
	switch len(list) {
	case 0:
		return "no processor has anything to do: what runs between two steps does not return"
	case 1:
		return list[0] + ": the processor hangs"
	}
	return strings.Join(list, ", ") + ": one of them hangs"
}

// cause returns the cause of an error if that is a change of the weights while the machine uses them, else the error.
func (m *Machine) cause(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if changed := m.checkIntact(); changed != nil {
		return changed
	}
	return err
}

// fail records the first error, upon which all lanes stop at their next step.
func (m *Machine) fail(err error) {
	m.poison.CompareAndSwap(nil, &err)
}
