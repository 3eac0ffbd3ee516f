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
// many runs succeeded.
func calls(t *testing.T, d driver.Driver, opened func(driver.Processor)) (int, error) {
	t.Helper()
	ctx := t.Context()
	devices, err := d.Devices(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.Open(ctx, driver.Config{Select: devices[0].Select})
	if err != nil {
		return 0, err
	}
	defer p.Close()
	if opened != nil {
		opened(p)
	}
	g := op.Single(op.Op{Kind: op.Copy, M: 1, N: 8}, "")
	a, err := compile.New().Compile(ctx, g, nil, driver.Target{})
	if err != nil {
		t.Fatal(err)
	}
	exe, err := p.Load(ctx, a, nil)
	if err != nil {
		return 0, err
	}
	runs, result := 0, make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: Attach pins it
		result <- func() error {
			if err := p.Attach(); err != nil {
				return err
			}
			b, err := p.Alloc(64)
			if err != nil {
				return err
			}
			v := driver.View{Buffer: b, Type: op.F32, Rows: 1, Cols: 8, Stride: 8}
			for ; runs < 5; runs++ {
				if _, err := p.Run(exe, &driver.Bindings{In: []driver.View{v}, Out: []driver.View{v}, Scalars: &driver.Scalars{Rows: 1}}); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	err = <-result
	return runs, err
}

func TestInject(t *testing.T) {
	for _, c := range []struct {
		fault drivertest.Fault
		runs  int
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
		runs, err := calls(t, drivertest.Inject(t.Context(), host.New(), c.fault), nil)
		if runs != c.runs {
			t.Errorf("%+v: %d runs succeeded, want %d", c.fault, runs, c.runs)
		}
		var injected *drivertest.Error
		if errors.As(err, &injected) != c.fails || err != nil && !c.fails {
			t.Errorf("%+v: got %v", c.fault, err)
		}
		if c.fails && injected.Fault != c.fault {
			t.Errorf("%+v: got fault %+v", c.fault, injected.Fault)
		}
	}
}

func TestInjectedHangEnds(t *testing.T) {
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	for _, at := range []drivertest.Point{drivertest.AtRun, drivertest.AtLoad, drivertest.AtOpen} {
		_, err := calls(t, drivertest.Inject(short(), host.New(), drivertest.Fault{At: at, K: 1, Hang: true}), nil)
		if err == nil {
			t.Errorf("a hang at %s ended without an error", at)
		}
	}
	for _, at := range []drivertest.Point{drivertest.AtRun, drivertest.AtLoad} {
		_, err := calls(t, drivertest.Inject(t.Context(), host.New(), drivertest.Fault{At: at, K: 1, Hang: true}), func(p driver.Processor) {
			time.AfterFunc(20*time.Millisecond, func() { p.Close() })
		})
		if err == nil {
			t.Errorf("a hang at %s ended without an error after close", at)
		}
	}
}
