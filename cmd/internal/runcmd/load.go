package runcmd

import (
	"context"
	"errors"
	"time"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/prefix"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/tokenizer"
)

// Loaded is a bundle that this machine executes.
type Loaded struct {
	Machine   *executor.Machine
	Tokenizer tokenizer.Tokenizer // nil: the bundle has none
	Prefix    *prefix.Prefix      // that the bundle's plan has computed; nil: none
	bundle    *opened
}

// Load verifies a bundle on these terms and loads all of its plan onto the processors. A bundle for another machine is
// refused, unless anyMachine is set. A lane that finishes no step for the deadline is given up.
func Load(
	ctx context.Context, ui *cli.Streams, path string, terms accept.Terms, anyMachine bool, drivers []driver.Driver,
	deadline time.Duration,
) (*Loaded, error) {
	bundle, err := openBundle(ui, path, &options{terms: terms, anyMachine: anyMachine})
	if err != nil {
		return nil, err
	}
	out := &Loaded{bundle: bundle}
	plan, err := bundle.entry()
	if err == nil {
		// Also where opening was told to accept any machine: a simulation must not be served as a device.
		err = bundle.checkTarget(plan, &options{anyMachine: anyMachine})
	}
	if err == nil {
		out.Prefix, err = bundle.computedPrefix(plan)
	}
	done := func() {}
	if err == nil {
		drivers, done = bundle.programs(ui, plan, drivers, false)
	}
	defer done() // all programs are loaded by then
	if err == nil {
		err = bundle.selfTest(ctx, ui, plan, drivers, deadline, false)
	}
	if err == nil {
		err = out.load(ctx, plan, executor.Options{Drivers: drivers, Deadline: deadline, Checked: true})
	}
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	noteTimes(ui, out.Machine)
	return out, nil
}

// load opens the processors, and reads the tokenizer meanwhile.
func (l *Loaded) load(ctx context.Context, plan *planir.Plan, o executor.Options) (err error) {
	vocabulary := async(l.bundle.tokenizer)
	l.Machine, err = Execute(ctx, plan, l.bundle, 0, o)
	unbound, wrong := vocabulary() // it reads the bundle, which may be closed from here on
	if err = errors.Join(err, wrong); err == nil && unbound != nil {
		l.Tokenizer, err = unbound.Begin(plan.Model.BOS)
	}
	return err
}

// Digest tells apart what is loaded from every other bundle.
func (l *Loaded) Digest() string { return l.bundle.Digest().String() }

// Worked says that the machine has computed something: what the bundle demands of later ones is stored from now on.
func (l *Loaded) Worked(ui *cli.Streams) error { return l.bundle.Remember(ui) }

// Close ends the machine and closes the bundle.
func (l *Loaded) Close() error {
	var err error
	if l.Machine != nil {
		err = l.bundle.noteLeftBehind(l.Machine.Close())
	}
	return errors.Join(err, l.bundle.Close())
}
