package drivertest_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	compile "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
)

// calls opens a processor, loads a copy and runs it five times or until something fails; it returns how
// many runs succeeded. opened, nil for nothing, is called with the processor.
func calls(t *testing.T, drv driver.Driver, opened func(driver.Processor)) (int, error) {
	t.Helper()
	devices, err := drv.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	proc, err := drv.Open(t.Context(), driver.Config{Select: devices[0].Select})
	if err != nil {
		return 0, err
	}
	defer proc.Close()
	if opened != nil {
		opened(proc)
	}
	graph := op.Single(op.Op{Kind: op.Copy, M: 1, N: 8}, "")
	artifact, err := compile.New().Compile(t.Context(), graph, nil, driver.Target{})
	if err != nil {
		t.Fatal(err)
	}
	exe, err := proc.Load(t.Context(), artifact, nil)
	if err != nil {
		return 0, err
	}
	runs, result := 0, make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: Attach pins it
		result <- func() error {
			if err := proc.Attach(); err != nil {
				return err
			}
			buffer, err := proc.Alloc(64)
			if err != nil {
				return err
			}
			views := []driver.View{{Buffer: buffer, Type: op.F32, Rows: 1, Cols: 8, Stride: 8}}
			bind := &driver.Bindings{In: views, Out: views, Scalars: &driver.Scalars{Rows: 1}}
			for ; runs < 5; runs++ {
				if _, err := proc.Run(exe, bind); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	err = <-result
	return runs, err
}

// A fault strikes the call that it names and all later ones at its point, and no other.
func TestInject(t *testing.T) {
	for _, test := range []struct {
		fault drivertest.Fault
		runs  int // that succeed
		fails bool
	}{
		{drivertest.Fault{}, 5, false},
		{drivertest.Fault{At: drivertest.AtRun, K: 1}, 0, true},
		{drivertest.Fault{At: drivertest.AtRun, K: 3}, 2, true},
		{drivertest.Fault{At: drivertest.AtRun, K: 6}, 5, false},
		{drivertest.Fault{At: drivertest.AtRun, K: 1, Select: "other"}, 5, false},
		{drivertest.Fault{At: drivertest.AtLoad, K: 1}, 0, true},
		{drivertest.Fault{At: drivertest.AtOpen, K: 1}, 0, true},
	} {
		runs, err := calls(t, drivertest.Inject(t.Context(), host.New(), test.fault), nil)
		if runs != test.runs {
			t.Errorf("%+v: %d runs succeeded, want %d", test.fault, runs, test.runs)
		}
		injected, struck := errors.AsType[*drivertest.Error](err)
		if struck != test.fails || err != nil && !test.fails {
			t.Errorf("%+v: got %v, want the fault: %v", test.fault, err, test.fails)
		}
		if struck && injected.Fault != test.fault {
			t.Errorf("%+v: got fault %+v", test.fault, injected.Fault)
		}
	}
}

// A call that hangs fails when a context ends, or when its processor is closed.
func TestInjectedHangEnds(t *testing.T) {
	hang := func(at drivertest.Point) drivertest.Fault { return drivertest.Fault{At: at, K: 1, Hang: true} }
	for _, at := range []drivertest.Point{drivertest.AtRun, drivertest.AtLoad, drivertest.AtOpen} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		t.Cleanup(cancel)
		if _, err := calls(t, drivertest.Inject(ctx, host.New(), hang(at)), nil); err == nil {
			t.Errorf("a hang at %s ended without an error", at)
		}
	}
	closeSoon := func(proc driver.Processor) {
		time.AfterFunc(20*time.Millisecond, func() { proc.Close() })
	}
	for _, at := range []drivertest.Point{drivertest.AtRun, drivertest.AtLoad} {
		if _, err := calls(t, drivertest.Inject(t.Context(), host.New(), hang(at)), closeSoon); err == nil {
			t.Errorf("a hang at %s ended without an error after close", at)
		}
	}
}
