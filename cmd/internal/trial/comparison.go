package trial

import (
	"context"
	"errors"
	"fmt"

	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/quality"
)

// comparison compares executions of a model with what its float32 machine computes, window by window.
type comparison struct {
	*Model
	compared  []quality.Window
	machine   *Machine // float32: open to the end, since others share its packed weights
	ref       *quality.Reference
	progress  func(done, all int, what string) // may be nil
	done, all int                              // windows executed
}

// openComparison opens the float32 machine for windows of equal length.
func openComparison(ctx context.Context, model *Model, compared []quality.Window,
	observe func(executor.Observed)) (*comparison, error) {
	plan, err := model.Plan(len(compared[0].Tokens), Float32, nil)
	if err != nil {
		return nil, err
	}
	out := &comparison{Model: model, compared: compared}
	if out.machine, err = model.Open(ctx, plan, nil, observe); err != nil {
		return nil, err
	}
	if out.ref, err = quality.NewReference(); err != nil {
		return nil, errors.Join(err, out.machine.Close())
	}
	return out, nil
}

// close releases what was opened.
func (c *comparison) close() error { return errors.Join(c.ref.Close(), c.machine.Close()) }

// step tells that a window was executed.
func (c *comparison) step(what string) {
	c.done++
	if c.progress != nil {
		c.progress(c.done, c.all, what)
	}
}

// observe executes windows for the observer of the float32 machine.
func (c *comparison) observe(ctx context.Context, windows []quality.Window, what string) error {
	for i, window := range windows {
		if err := quality.Execute(ctx, c.machine.Machine, window); err != nil {
			return fmt.Errorf("%s: window %d: %w", what, i, err)
		}
		c.step(what)
	}
	return nil
}

// reference keeps what the float32 machine computes for the compared windows.
func (c *comparison) reference(ctx context.Context) error {
	for i, window := range c.compared {
		if err := c.ref.Add(ctx, c.machine.Machine, window); err != nil {
			return fmt.Errorf("window %d: %w", i, err)
		}
		c.step("reference")
	}
	return nil
}

// compare executes the compared windows on a machine.
func (c *comparison) compare(ctx context.Context, what string, machine *Machine, tally *quality.Tally) error {
	for i := range c.ref.Windows() {
		if err := c.ref.Compare(ctx, machine.Machine, i, len(c.compared[i].Tokens), tally); err != nil {
			return fmt.Errorf("window %d: %w", i, err)
		}
		c.step(what)
	}
	return nil
}
