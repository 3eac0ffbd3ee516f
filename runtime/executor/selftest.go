package executor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/selftest"
)

// Tried is the result of a self-test on one processor.
type Tried struct {
	Proc    string
	Kernels int // distinct graphs that were executed
	// Worst is the largest error found, as a part of what its kernel is permitted.
	Worst float64
	Took  time.Duration
}

// ErrLeftBehind says that a thread may still compute, so that what it reads, src among it, must stay as it is.
var ErrLeftBehind = errors.New("its thread is left behind, with the memory that it uses")

// SelfTest executes every case of a plan's self-test on the processors called procs, with the weights of the first
// layer that a graph runs in, and compares with the results that the test holds. It opens processors for itself, and
// closes them. A result that is too far off is an error of class ClassRun that names processor, graph, operator and
// error. A call that does not return within the deadline (0: two minutes) is one as well, and is ErrLeftBehind.
func SelfTest(ctx context.Context, plan *planir.Plan, src Source, test *selftest.Test, procs []string,
	options Options) ([]Tried, error) {
	if options.Deadline == 0 {
		options.Deadline = 2 * time.Minute
	}
	targets := selftest.Targets(plan)
	var out []Tried
	for _, name := range procs {
		began := time.Now()
		run := &selfTest{plan: plan, src: src, proc: plan.Proc(name), drivers: options.Drivers,
			beat: make(chan struct{}, 1)}
		for i := range targets {
			if targets[i].Graph.Proc == name {
				run.targets, run.cases = append(run.targets, &targets[i]), append(run.cases, &test.Cases[i])
			}
		}
		done := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // for good: see driver.Processor
			done <- run.runAll(ctx)
		}()
		if err := run.wait(ctx, done, options.Deadline); err != nil {
			return out, err
		}
		out = append(out, Tried{Proc: name, Kernels: len(run.targets), Worst: run.worst, Took: time.Since(began)})
	}
	return out, nil
}

// selfTest is the test of one processor, on a thread of its own.
type selfTest struct {
	plan    *planir.Plan
	src     Source
	proc    *planir.Proc
	drivers []driver.Driver
	targets []*selftest.Target
	cases   []*selftest.Case
	beat    chan struct{}                   // something has finished
	tries   atomic.Pointer[selftest.Target] // under way; nil: the processor is being opened
	worst   float64
}

// wait returns what the thread returns, or an error once nothing has finished for the deadline.
func (t *selfTest) wait(ctx context.Context, done <-chan error, deadline time.Duration) error {
	timer := time.NewTimer(deadline)
	defer timer.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return fmt.Errorf("self-test of processor %q: %w; %w", t.proc.Name, context.Cause(ctx), ErrLeftBehind)
		case <-t.beat:
			timer.Reset(deadline)
		case <-timer.C:
			what := "opening it"
			if target := t.tries.Load(); target != nil {
				what = fmt.Sprintf("graph %q (%s)", target.Graph.Name, mainOp(&target.Graph.Graph).Key())
			}
			return diag.New(diag.ClassRun, "self-test of processor %q: %s does not return within %v; %w", t.proc.Name,
				what, deadline, ErrLeftBehind).
				WithHint("update the device's driver, or solve the plan without the processor")
		}
	}
}

// runAll opens the processor and executes every case, the first failure ends it.
func (t *selfTest) runAll(ctx context.Context) (err error) {
	proc, err := openProcessor(ctx, t.drivers, t.proc)
	if err != nil {
		return fmt.Errorf("self-test: %w", err)
	}
	defer func() { err = errors.Join(err, proc.Close()) }()
	if err := proc.Attach(); err != nil {
		return diag.New(diag.ClassOr(err, diag.ClassRun), "self-test: attach processor %q: %w", t.proc.Name, err)
	}
	// A machine without buffers and crews, which loads graphs as every other one does.
	machine := &Machine{plan: t.plan, loader: newLoader(t.plan, t.src)}
	machine.closers = append(machine.closers, machine.loader.weights.close)
	defer func() {
		for _, closer := range slices.Backward(machine.closers) {
			err = errors.Join(err, closer())
		}
	}()
	on := &lane{name: t.proc.Name, proc: proc}
	for i := range t.targets {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("self-test of processor %q: %w", t.proc.Name, context.Cause(ctx))
		}
		fault := mem.CatchFault(func() { err = t.runCase(ctx, machine, on, i) })
		if fault != nil {
			return fmt.Errorf("self-test of processor %q: %w", t.proc.Name, fault)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// runCase executes a case, with all rows and with fewer where the processor takes fewer.
func (t *selfTest) runCase(ctx context.Context, machine *Machine, on *lane, at int) error {
	target, stored := t.targets[at], t.cases[at]
	t.tries.Store(target)
	fail := func(err error) error {
		return diag.New(diag.ClassOr(err, diag.ClassRun), "self-test of processor %q: graph %q: %w", t.proc.Name,
			target.Graph.Name, err)
	}
	exe, err := machine.executable(ctx, on, &step{Step: target.Step, graph: &target.Graph.Graph}, target.Graph,
		target.Layer)
	if err != nil {
		return fail(err)
	}
	call := selftest.NewCall(t.plan, target)
	for _, rows := range call.Rows(on.proc.Capabilities().DynamicRows) {
		results, err := call.Execute(on.proc, exe, stored.Amplitudes, rows, true)
		if err != nil {
			return fail(err)
		}
		found := stored.Compare(call, results)
		t.worst = max(t.worst, found.Error/stored.Tolerance)
		if !(found.Error <= stored.Tolerance) {
			return diag.New(diag.ClassRun,
				"self-test of processor %q: graph %q with %d rows: %s, want at most %.2g",
				t.proc.Name, target.Graph.Name, rows, &found, stored.Tolerance).
				WithHint("the device's compiler or driver gets this kernel wrong: update it, or solve the plan without " +
					"the processor (hetc solve --only)")
		}
	}
	select {
	case t.beat <- struct{}{}:
	default:
	}
	return nil
}
