package runcmd

import (
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/tokenizer"
)

// startGCPercent has the garbage collector begin at 16 MB instead of 4. What a start allocates stays anyway, and two
// collections on the way to the first token take a tenth of its processor time.
const startGCPercent = 400

// execution is one run of the command, from the bundle that is opened to what is printed.
type execution struct {
	*options
	ui            *cli.Streams
	path          string
	watch         *stopwatch
	bundle        *opened
	plan          *planir.Plan
	drivers       []driver.Driver
	closePrograms func() // closes the cache of programs; nil: there is none
	machine       *executor.Machine
	tokenizer     tokenizer.Tokenizer // nil where the bundle has none
	prompt        []int32             // token ids
	jobs          []job               // of --prompts
}

// run executes a bundle as the flags say. list yields the drivers that may open the processors of its plan.
//
// What takes long runs side by side. Weights are verified from the moment the bundle's signature is: first in the order
// of the file, and in that of their use once the plan is read and its processors are open. The tokenizer is read
// meanwhile. Where both the plan and the prompt are refused, the error is about the prompt.
func run(
	ctx context.Context, ui *cli.Streams, path string, flags *options,
	changed func(string) bool, list func(*planir.Plan) ([]driver.Driver, error),
) error {
	if err := flags.validate(changed); err != nil {
		return err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(startGCPercent))
	// a path that cannot be written is told of now, not after minutes
	for _, out := range []string{flags.dumpLogits, flags.trace} {
		if out == "" {
			continue
		}
		if err := wholefile.Writable(out); err != nil {
			return err
		}
	}
	x := &execution{options: flags, ui: ui, path: path, watch: newStopwatch()}
	var err error
	if x.bundle, err = openBundle(ui, path, flags); err != nil {
		return err
	}
	defer x.bundle.Close()
	x.bundle.Anticipate()
	vocabulary := async(x.bundle.tokenizer)
	defer func() { _, _ = vocabulary() }() // it reads the bundle
	x.watch.mark("open and verify the bundle")
	if err := x.readPlan(list); err != nil {
		return err
	}
	defer x.closePrograms()
	// An error about the prompt comes before a refusal, because the user can mend it at once.
	refusal := x.openMachine(ctx)
	if refusal == nil {
		defer func() { _ = x.bundle.noteLeftBehind(x.machine.Close()) }()
	}
	x.watch.mark("open processors")
	if err := x.readPrompt(ctx, vocabulary); err != nil {
		return err
	}
	x.watch.mark("tokenizer and prompt")
	if refusal != nil {
		return refusal
	}
	// all inputs are there: execute, and write what was asked for
	noteTimes(x.ui, x.machine)
	err = x.execute(ctx)
	if mem.IsFault(err) { // of a page that cannot be read although the file has not changed
		err = fmt.Errorf("%s: %w", path, err)
	}
	if err == nil && flags.trace != "" {
		err = flags.writeTrace(ui, x.machine)
	}
	if err != nil {
		return err
	}
	// Only a bundle that has worked raises what later ones must have.
	return x.bundle.Remember(ui)
}

// readPlan reads the bundle's plan, and asks for the drivers of its processors.
func (x *execution) readPlan(list func(*planir.Plan) ([]driver.Driver, error)) (err error) {
	if x.plan, err = x.bundle.entry(); err != nil {
		return err
	}
	if err := x.bundle.checkTarget(x.plan, x.options); err != nil {
		return err
	}
	x.watch.mark("read the plan")
	if x.drivers, err = list(x.plan); err == nil {
		x.drivers, x.closePrograms = x.bundle.programs(x.ui, x.plan, x.drivers, x.strict)
	}
	return err
}

// openMachine tests the processors that are not known to compute rightly, and opens them all. Weights that generating
// will need are loaded while the tokenizer is read.
func (x *execution) openMachine(ctx context.Context) (err error) {
	options := executor.Options{Drivers: x.drivers, Deadline: x.deadline, OnDemand: !x.bench, Checked: true}
	if x.trace != "" {
		options.Trace = traceEvents
	}
	if err := x.bundle.selfTest(ctx, x.ui, x.plan, x.drivers, x.deadline, x.selfTest); err != nil {
		return err
	}
	if x.machine, err = Execute(ctx, x.plan, x.bundle, 0, options); err != nil {
		return err
	}
	if !x.bench && x.tokens == "" {
		// Weights are read and verified while the prompt becomes tokens.
		x.machine.Foresee(ctx)
	}
	return nil
}

// readPrompt makes token ids of what is to be continued or answered.
func (x *execution) readPrompt(ctx context.Context, vocabulary func() (*tokenizer.Unbound, error)) error {
	unbound, err := vocabulary()
	if err != nil {
		return err
	}
	if unbound != nil {
		if x.tokenizer, err = unbound.Begin(x.plan.Model.BOS); err != nil {
			return err
		}
	}
	if x.prompts != "" {
		x.jobs, err = x.options.jobs(ctx, x.ui, x.tokenizer)
	} else {
		x.prompt, err = x.input(ctx, x.ui, x.tokenizer)
	}
	return err
}

// noteTimes says whose times are shown where they are not those of a device.
func noteTimes(ui *cli.Streams, machine *executor.Machine) {
	plan := machine.Plan()
	switch emulated := machine.Emulated(); {
	case len(emulated) > 0:
		ui.Notef("%s", emulatedNote(emulated))
	case plan.SoC.Simulated:
		ui.Notef("times are simulated (soc %q)", plan.SoC.Name)
	case plan.Evidence() == planir.Unproved:
		ui.Notef("%s", plan.EvidenceText())
	}
	if plan.SoC.Imported {
		ui.Notef("the plan was made from times measured elsewhere (imported)")
	}
}

// execute does what the flags ask for: measure, dump logits, or generate.
func (x *execution) execute(ctx context.Context) error {
	switch {
	case x.bench:
		return x.runBench(ctx, x.ui, x.machine)
	case x.dumpLogits != "":
		return x.runDump(ctx, x.ui, x.machine, x.prompt)
	}
	prefix, err := x.beginning()
	if err != nil {
		return err
	}
	if x.prompts != "" {
		return x.generateAll(ctx, x.ui, x.machine, x.tokenizer, x.jobs, prefix)
	}
	if x.check {
		if err := x.runCheck(ctx, x.ui, x.bundle, x.machine, x.prompt, x.drivers); err != nil {
			return err
		}
		x.machine.Reset()
	}
	var known int
	err = x.machine.Do(ctx, func(control *executor.Control) (err error) {
		known, err = prefix.restore(control, 0, x.prompt)
		return err
	})
	if err != nil {
		return err
	}
	if known > 0 {
		x.watch.mark("cache of the prompt's beginning")
	}
	return x.generate(ctx, known)
}

// emulatedNote says whose times these are.
func emulatedNote(names []string) string {
	return fmt.Sprintf("emulated, not device time: %s is an emulator on this machine, with a device's results; no "+
		"time here is one of a device", strings.Join(names, ", "))
}

// traceEvents is how many events of each lane a trace holds: some hundred tokens of a model of twenty layers.
const traceEvents = 1 << 17

// writeTrace writes what ran when, and tells where the beginning alone was kept.
func (o *options) writeTrace(ui *cli.Streams, m *executor.Machine) error {
	lost := int64(0)
	err := wholefile.Stream(o.trace, func(w io.Writer) (err error) {
		lost, err = m.WriteTrace(w)
		return err
	})
	if err != nil {
		return err
	}
	ui.Notef("wrote trace %s; open it at ui.perfetto.dev", o.trace)
	if lost > 0 {
		ui.Warnf("%s holds the beginning: %d later events are left out (the first %d of each lane are kept)", o.trace,
			lost, traceEvents)
	}
	return nil
}
