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
	"github.com/hetc/hetc/profiler"
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

// micros returns a time in microseconds.
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
	var names []string
	for _, candidate := range bindings.Drivers(nil) {
		names = append(names, candidate.Name())
		if candidate.Name() == options.Driver {
			from = candidate
		}
	}
	if from == nil {
		return nil, release, diag.New(diag.ClassUsage, "--driver %q: no such driver can be measured here", options.Driver).
			WithHint("%s", diag.DidYouMean(options.Driver, names))
	}

	var compiler driver.Compiler
	for _, candidate := range bindings.Compilers(nil) {
		if candidate.Name() == options.Driver {
			compiler = candidate
		}
	}

	selector := options.Select
	if selector == "" {
		devices, err := from.Devices(ctx)
		if err != nil {
			return nil, release, err
		}
		if len(devices) > 0 {
			selector = devices[0].Select
		}
	}

	for _, columns := range meetingColumns {
		for _, text := range options.Configs {
			config, err := meetingConfig(selector, text)
			if err != nil {
				return nil, release, err
			}
			for _, wait := range capability.Waitings {
				lane, closeAll, err := profiler.OpenMeeting(ctx, from, compiler, config, wait, columns)
				closers = append(closers, closeAll...)
				if err != nil {
					if text != "" {
						err = fmt.Errorf("--options %q: %w", text, err)
					}
					return nil, release, err
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
