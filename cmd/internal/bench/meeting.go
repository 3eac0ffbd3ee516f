package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/executor"
)

// MeetingOptions are the flags of hetc bench meeting.
type MeetingOptions struct {
	Driver, Select string
	// Configs are sets of the driver's options, "completion=flag,memory=own", each measured beside the others.
	Configs []string
	Rounds  int
}

// meeting is a way to meet calls of one length.
type meeting struct {
	Config  string             `json:"options"`
	Wait    capability.Waiting `json:"wait"`
	Columns int                `json:"columns"` // of the vectors that a call adds
	P50NS   int64              `json:"p50_ns"`
	P95NS   int64              `json:"p95_ns"`
	CoreNS  int64              `json:"core_ns"` // of the lane's thread for a call, in the middle

	lane *executor.Meeting
	met  []executor.Met
}

// meetingColumns are the lengths of the vectors: calls of microseconds to milliseconds.
var meetingColumns = []int{1 << 10, 1 << 16, 1 << 20, 1 << 22}

// Meeting measures the ways in which a lane meets the calls of an asynchronous processor, by the executor's own code.
func Meeting(ctx context.Context, ui *cli.Streams, options *MeetingOptions) error {
	const mostRounds = 100_000
	if options.Rounds < 1 || options.Rounds > mostRounds {
		return diag.New(diag.ClassUsage, "--rounds %d: want 1 to %d", options.Rounds, mostRounds)
	}
	list, release, err := meetings(ctx, options)
	defer release()
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(1, 2)) // the order of measurements, not their values
	line := ui.Line(false)
	const warm = 5
	for round := -warm; round < options.Rounds; round++ {
		for _, i := range rng.Perm(len(list)) {
			met, err := list[i].lane.Once(ctx, 1)
			if err != nil {
				line.End()
				return fmt.Errorf("measure options %q, wait %q: %w", list[i].Config, list[i].Wait, err)
			}
			if round >= 0 {
				list[i].met = append(list[i].met, met)
			}
		}
		line.Bar("round", max(0, round), options.Rounds, "")
	}
	line.End()
	var rows [][]string
	for _, m := range list {
		m.judge()
		wait := string(m.Wait)
		if m.Wait == capability.WaitSleep {
			wait = "sleep"
		}
		rows = append(rows, []string{fmt.Sprint(m.Columns), m.Config, wait, micros(m.P50NS), micros(m.P95NS),
			micros(m.CoreNS)})
	}
	ui.Table([]string{">columns", "options", "wait", ">p50 us", ">p95 us", ">core us"}, rows)
	return ui.Result(map[string]any{"driver": options.Driver, "select": options.Select, "rounds": options.Rounds,
		"meetings": list})
}

// judge finds the quantiles.
func (m *meeting) judge() {
	at := func(of func(executor.Met) int64, percent int) int64 {
		values := make([]int64, len(m.met))
		for i, met := range m.met {
			values[i] = of(met)
		}
		slices.Sort(values)
		return values[min(len(values)-1, len(values)*percent/100)]
	}
	took := func(met executor.Met) int64 { return met.Took }
	m.P50NS, m.P95NS = at(took, 50), at(took, 95)
	m.CoreNS = at(func(met executor.Met) int64 { return met.Core }, 50)
}

// micros is a time in microseconds.
func micros(ns int64) string { return fmt.Sprintf("%.1f", float64(ns)/1e3) }

// meetings opens a processor and a lane for each way: options, wait and length. release closes them all.
func meetings(ctx context.Context, options *MeetingOptions) (list []*meeting, release func(), err error) {
	var closers []func() error
	release = func() {
		for _, closer := range slices.Backward(closers) {
			_ = closer() // nothing is kept of it
		}
	}
	var from driver.Driver
	for _, candidate := range bindings.Drivers(nil) {
		if candidate.Name() == options.Driver {
			from = candidate
		}
	}
	if from == nil {
		return nil, release, diag.New(diag.ClassUsage, "--driver %q: this program has no such driver", options.Driver)
	}
	var compiler driver.Compiler
	for _, candidate := range bindings.Compilers(nil) {
		if candidate.Name() == options.Driver {
			compiler = candidate
		}
	}
	for _, columns := range meetingColumns {
		for _, text := range options.Configs {
			config, err := meetingConfig(options.Select, text)
			if err != nil {
				return nil, release, err
			}
			for _, wait := range capability.Waitings {
				lane, closeAll, err := meetingLane(ctx, from, compiler, config, wait, columns)
				closers = append(closers, closeAll...)
				if err != nil {
					return nil, release, fmt.Errorf("options %q: %w", text, err)
				}
				list = append(list, &meeting{Config: text, Wait: wait, Columns: columns, lane: lane})
			}
		}
	}
	return list, release, nil
}

// meetingConfig parses options of a driver.
func meetingConfig(selector, text string) (driver.Config, error) {
	config := driver.Config{Select: selector, Options: map[string]string{}}
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			return config, diag.New(diag.ClassUsage, "--options %q: want key=value, separated by commas", text)
		}
		config.Options[key] = value
	}
	return config, nil
}

// meetingLane opens a processor, loads an addition of vectors and starts a lane for it. What it returns is to be closed
// last first, also after an error.
func meetingLane(ctx context.Context, from driver.Driver, compiler driver.Compiler, config driver.Config,
	wait capability.Waiting, columns int) (lane *executor.Meeting, closers []func() error, err error) {
	proc, err := from.Open(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, proc.Close)
	async, ok := proc.(driver.Asynchronous)
	if !ok || compiler == nil {
		return nil, closers, diag.New(diag.ClassUsage, "processor %q of driver %q executes calls synchronously: there is "+
			"nothing to wait for", config.Select, from.Name())
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
	views := make([]driver.View, 3)
	for i := range views {
		buffer, err := proc.Alloc(int64(4 * columns))
		if err != nil {
			return nil, closers, err
		}
		closers = append(closers, buffer.Close)
		views[i] = driver.View{Buffer: buffer, Type: op.F32, Rows: 1, Cols: columns, Stride: columns}
	}
	// Nothing travels: what is measured is the meeting.
	bind := driver.Bindings{In: views[:2], Out: views[2:], Scalars: &driver.Scalars{Rows: 1},
		Moves: &driver.Moves{Fetch: make([]bool, 2), Hand: make([]bool, 1)}}
	lane, err = executor.NewMeeting(async, wait, exe, bind)
	if err != nil {
		return nil, closers, err
	}
	return lane, append(closers, lane.Close), nil
}
