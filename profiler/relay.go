package profiler

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
)

// The prices of handing over to a device and back are measured as a program pays them: by the executor's own lanes,
// with work in between. In each turn
//
//  1. a thread adds two vectors,
//  2. the device adds two vectors that depend on these,
//  3. the thread adds others meanwhile, and goes on when it knows that the device is done.
//
// The time of a turn beyond addition 1 and the longer one of 2 and 3 is the price of both ways. The time of the
// submission is the way there, and the rest the way back.
//
// The vectors of 1 and 2 differ from turn to turn, so that they come from memory as the weights of a model do. Those of
// 3 stay in the cache and leave the bandwidth of memory to the device. Calls that follow each other at once would cost
// less than in a program: the device's threads would not have gone to sleep, and the caches would still hold what
// submitting needs.
//
// Prices are means over all turns, because a program pays the sum of its hand-overs, and a few may take many times as
// long as most.
const (
	relayTurns  = 32
	relayRounds = 41
	relayWarm   = 2
	// Vectors of the additions: both processors are busy for a while, as in a step of one row.
	relayColumns = 1 << 18
)

// handovers are the prices of a pair in ns: from the processor with a thread to the device, and back.
type handovers struct{ there, back float64 }

// relay measures the hand-overs between a processor that computes on a thread and a device whose calls are met in a
// way.
func (p *prober) relay(ctx context.Context, run *runner, own, device *socs.Processor, how *meeting) (out handovers,
	err error) {
	var closers []func() error
	defer func() {
		for _, closer := range slices.Backward(closers) {
			if failed := closer(); err == nil {
				err = failed
			}
		}
	}()
	open := func(proc *socs.Processor, more map[string]string) (*opened, error) {
		options := map[string]string{}
		maps.Copy(options, more)
		maps.Copy(options, proc.Options)
		made, closing, err := openAddition(ctx, run.options.Drivers[proc.Driver], run.options.Compilers[proc.Driver],
			driver.Config{Select: proc.Select, Options: options}, relayColumns, relayTurns)
		closers = append(closers, closing...)
		return made, err
	}
	thread, err := open(own, nil)
	if err != nil {
		return out, err
	}
	queued, err := open(device, how.options)
	if err != nil {
		return out, err
	}
	queue, ok := queued.proc.(driver.Asynchronous)
	if !ok {
		return out, diag.New(diag.ClassInput, "processor %q executes calls synchronously: nothing is handed over",
			device.Name)
	}
	lanes, err := executor.NewRelay(thread.proc, queue, how.wait, p.besideControl(own), executor.RelayWork{
		Before: thread.calls, Meanwhile: slices.Repeat(thread.calls[:1], len(queued.calls)), Call: queued.calls})
	if err != nil {
		return out, err
	}
	closers = append(closers, lanes.Close)
	rounds := relayRounds
	if p.options.memory > 0 { // tests
		rounds = 3
	}
	var submit, beyond []float64
	for round := -relayWarm; round < rounds; round++ {
		got, err := lanes.Run(ctx)
		if err != nil {
			return out, fmt.Errorf("measure hand-overs between %s and %s: %w", own.Name, device.Name, err)
		}
		if round >= 0 {
			submit = append(submit, float64(got.Submit))
			beyond = append(beyond, float64(got.Turn-got.Before-max(got.Meanwhile, got.Call)))
		}
	}
	out.there = stat.Mean(submit)
	out.back = max(0, stat.Mean(beyond)-out.there)
	return out, nil
}

// besideControl reports whether a processor computes on the control processor's thread, which then feeds devices.
func (p *prober) besideControl(own *socs.Processor) bool {
	control := p.soc.Processor(p.soc.Control)
	return len(own.Cores) > 0 && len(control.Cores) > 0 && own.Cores[0] == control.Cores[0]
}

// opened is a processor with calls of an addition of two vectors that it has loaded.
type opened struct {
	proc  driver.Processor
	calls []executor.RelayCall
}

// openAddition opens a processor, loads an addition of two vectors of so many columns, and makes count calls of it.
// Each call has operands of its own in the processor's memory, and nothing is copied. The caller closes the closers
// last first, also after an error.
func openAddition(ctx context.Context, from driver.Driver, compiler driver.Compiler, config driver.Config, columns,
	count int) (out *opened, closers []func() error, err error) {
	proc, err := from.Open(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, proc.Close)
	if compiler == nil {
		return nil, closers, diag.New(diag.ClassUnavailable,
			"measure on processor %q: no compiler for driver %q in this build", config.Select, from.Name())
	}
	graph := op.Single(op.Op{Kind: op.Add, M: 1, N: columns}, "")
	artifact, err := compiler.Compile(ctx, graph, nil, driver.Target{Options: config.Options})
	if err != nil {
		return nil, closers, err
	}
	exe, err := proc.Load(ctx, artifact, nil)
	if err != nil {
		return nil, closers, err
	}
	closers = append(closers, exe.Close)
	out = &opened{proc: proc}
	buffers := make([]driver.Buffer, 3)
	for i := range buffers {
		if buffers[i], err = proc.Alloc(int64(4 * columns * count)); err != nil {
			return nil, closers, err
		}
		closers = append(closers, buffers[i].Close)
	}
	for number := range count {
		bind := driver.Bindings{Scalars: &driver.Scalars{Rows: 1},
			Moves: &driver.Moves{Fetch: make([][]driver.Rect, 2), Hand: make([][]driver.Rect, 1)}}
		for i, buffer := range buffers {
			view := driver.View{Buffer: buffer, Type: op.F32, Offset: int64(4 * columns * number), Rows: 1, Cols: columns,
				Stride: columns}
			if i < 2 {
				bind.In = append(bind.In, view)
			} else {
				bind.Out = append(bind.Out, view)
			}
		}
		out.calls = append(out.calls, executor.RelayCall{Exe: exe, Bind: bind})
	}
	return out, closers, nil
}
