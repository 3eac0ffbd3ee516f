package drivertest

import (
	"context"
	"fmt"
	"sync"

	"github.com/hetc/hetc/runtime/driver"
)

// Point is a kind of call at which a fault strikes.
type Point string

// The calls that can be made to fail.
const (
	AtOpen Point = "open"
	AtLoad Point = "load"
	AtRun  Point = "run"
)

// Fault makes the K-th call (from 1) at a point fail or hang, and all later ones at that point fail. Calls are
// counted over all processors of the driver, or over those of one selector. The zero K never strikes.
type Fault struct {
	At     Point
	K      int
	Hang   bool   // until the processor is closed or a context ends, then fail
	Select string // only the processor opened with this selector; "" for any
}

// Error is what an injected fault returns.
type Error struct{ Fault Fault }

// Error names the point and the number of the call, but not the processor.
func (e *Error) Error() string { return fmt.Sprintf("injected fault: %s %d", e.Fault.At, e.Fault.K) }

// Inject wraps a driver so that the fault strikes. ctx ends hangs, also those of Run, which has no
// context of its own.
func Inject(ctx context.Context, d driver.Driver, f Fault) driver.Driver {
	return &faulty{Driver: d, ctx: ctx, fault: f}
}

// faulty counts the calls at the fault's point over all its processors.
type faulty struct {
	driver.Driver
	// its end releases every call that hangs
	ctx   context.Context
	fault Fault

	mu sync.Mutex
	// so far, at the fault's point
	calls int
}

// strike counts a call. It returns the fault's error if the call is due, after the hang.
func (d *faulty) strike(at Point, sel string, ctx context.Context, closed <-chan struct{}) error {
	if at != d.fault.At || d.fault.K < 1 || d.fault.Select != "" && sel != d.fault.Select {
		return nil
	}
	d.mu.Lock()
	d.calls++
	due, first := d.calls >= d.fault.K, d.calls == d.fault.K
	d.mu.Unlock()
	if !due {
		return nil
	}
	if first && d.fault.Hang {
		select {
		case <-ctx.Done():
		case <-d.ctx.Done():
		case <-closed:
		}
	}
	return &Error{d.fault}
}

// Open counts as one call at AtOpen. There is no processor yet that could end a hang, only contexts.
func (d *faulty) Open(ctx context.Context, c driver.Config) (driver.Processor, error) {
	if err := d.strike(AtOpen, c.Select, ctx, nil); err != nil {
		return nil, err
	}
	proc, err := d.Driver.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	return &faultyProcessor{Processor: proc, d: d, sel: c.Select, closed: make(chan struct{})}, nil
}

// faultyProcessor closes the channel closed with itself, which ends a hang.
type faultyProcessor struct {
	driver.Processor
	d      *faulty
	sel    string
	once   sync.Once
	closed chan struct{}
}

// Load counts as one call at AtLoad, before the artifact is looked at.
func (p *faultyProcessor) Load(ctx context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	if err := p.d.strike(AtLoad, p.sel, ctx, p.closed); err != nil {
		return nil, err
	}
	return p.Processor.Load(ctx, a, w)
}

// Run counts as one call at AtRun. A call that fails takes no time and writes nothing.
func (p *faultyProcessor) Run(e driver.Executable, b *driver.Bindings) (driver.Span, error) {
	if err := p.d.strike(AtRun, p.sel, context.Background(), p.closed); err != nil {
		now := p.Now()
		return driver.Span{Start: now, End: now}, err
	}
	return p.Processor.Run(e, b)
}

// Close ends a hang first: the wrapped processor may wait for the call that hangs.
func (p *faultyProcessor) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Processor.Close()
}
