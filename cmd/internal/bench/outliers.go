package bench

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/workload"
)

// OutlierOptions name the processors of Outliers.
type OutlierOptions struct {
	Products string  // processor that computes products, with static scales
	Beside   string  // processor that computes the rest, with the products of outliers
	Behind   string  // processor that takes turns with Products; "": the first that has its first core
	Share    float64 // of the channels that exceed their scale, where there is no calibration
}

// outlierRow is one way to execute the products of outliers, which static scales cut off.
type outlierRow struct {
	label  string
	scheme op.Scheme
	soc    *socs.SoC
}

// outlierResult is a row of the table, with how many channels exceeded their scales.
type outlierResult struct {
	*chunkResult
	// of all calls of products with shadow outliers in the measured prompts
	Channels float64 `json:"channels_per_call"`
	Most     int64   `json:"most_channels"`
	Beyond   int64   `json:"calls_beyond_bound"`
}

// Outliers measures the cost of shadow outliers (llm.npu 3.3 and 4.4) in a prompt. It compares, in the same rounds:
// none, with clipped activations; another processor that computes them at the same time; the same core, before or after
// the product; and everything on that core. Operators are placed whole.
func Outliers(c *cobra.Command, ui *cli.Streams, options *Options, roles *OutlierOptions) error {
	ctx := c.Context()
	from, err := options.open()
	if err != nil {
		return err
	}
	defer from.Model.Close()
	rows, err := outlierRows(from.SoC, roles)
	if err != nil {
		return err
	}

	if from.Calibration == nil {
		tokens := runcmd.BenchPrompt(options.PromptLen, from.Model.Vocab, 0)
		if from.Calibration, err = observed(ctx, from.Model, tokens, roles.Share); err != nil {
			return err
		}
		ui.Printf("static scales from the prompt itself: %.2g %% of the channels exceed them\n", 100*roles.Share)
	}

	plans, predicted, err := outlierPlans(ctx, from.Input, rows, options)
	if err != nil {
		return err
	}

	opened := &fleet{model: from.Model, cal: from.Calibration, soc: from.SoC}
	defer opened.close()
	labels := make([]string, len(rows))
	for i := range rows {
		labels[i] = rows[i].label
	}
	if err := opened.openAll(ctx, labels, plans); err != nil {
		return err
	}
	times, virtual, err := opened.prompts(ctx, predicted, options)
	if err != nil {
		return err
	}

	var results []outlierResult
	for i, row := range times {
		results = append(results, outlierResultOf(row, opened.list[i].machine.Outliers()))
	}
	ui.Printf("%s, %s, prompt of %d tokens\n", howMeasured(virtual), interleaved(options.Rounds),
		options.PromptLen)
	showOutliers(ui, results)
	return ui.Result(map[string]any{"soc": from.SoC.Name, "simulated": virtual, "prompt": options.PromptLen,
		"rounds": options.Rounds, "results": results})
}

// outlierResultOf adds to the times of a plan how many channels exceeded their scales.
func outlierResultOf(times *chunkResult, products []executor.OutlierStat) outlierResult {
	out := outlierResult{chunkResult: times}
	calls, channels := int64(0), int64(0)
	for _, product := range products {
		calls, channels = calls+product.Calls, channels+product.Channels
		out.Most, out.Beyond = max(out.Most, product.Most), out.Beyond+product.Beyond
	}
	out.Channels = float64(channels) / float64(max(1, calls))
	return out
}

// outlierPlans solves for every row, operators placed whole, and predicts the prompt.
func outlierPlans(ctx context.Context, in solver.Input, rows []outlierRow, options *Options) (plans []*planir.Plan,
	predicted []int64, err error) {
	in.Strategies = []planir.Strategy{planir.Single, planir.Padding}
	in.WhatIf.OtherSoC = true // the costs are of the same processors, which now have fewer operators
	work := in.Workload
	for _, row := range rows {
		in.SoC = row.soc
		in.Workload = workload.Edited(work, func(w *workload.Workload) {
			w.ChunksInFlight, w.Outliers, w.Shadows, w.Quality = 0, "", workload.Shadows{}, workload.Quality{}
			only := []op.Scheme{row.scheme}
			w.Schemes = workload.Schemes{Prefill: only, Decode: only, Head: only}
		})
		result, err := solver.Solve(ctx, in)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", row.label, err)
		}
		ns, err := predictTask(in, result.Plan, strategyTask{options.PromptLen}, 0)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", row.label, err)
		}
		plans, predicted = append(plans, result.Plan), append(predicted, ns)
	}

	return plans, predicted, nil
}

// outlierRows returns the ways to compare. Without a processor that takes turns with that of the products there are
// two.
func outlierRows(soc *socs.SoC, roles *OutlierOptions) ([]outlierRow, error) {
	for _, given := range []struct{ flag, name string }{
		{"products", roles.Products}, {"beside", roles.Beside}, {"behind", roles.Behind},
	} {
		if soc.Processor(given.name) == nil && (given.name != "" || given.flag != "behind") {
			return nil, diag.New(diag.ClassUsage, "--%s: unknown processor %q of SoC %q", given.flag, given.name,
				soc.Name)
		}
	}

	behind := roles.Behind
	if behind == "" {
		behind = twinOf(soc, roles.Products)
	}
	matrix := []op.Kind{op.MatMul, op.ExpertMatMul, op.GroupMatMul}
	products := func(kind op.Kind) bool { return slices.Contains(matrix, kind) || kind == op.QuantRows }
	rest := func(kind op.Kind) bool { return !slices.Contains(matrix, kind) }
	outliers := func(kind op.Kind) bool { return kind == op.OutlierMatMul }
	two := withRoles(soc, roles.Beside, map[string]func(op.Kind) bool{roles.Products: products, roles.Beside: rest})
	out := []outlierRow{{"none: clipped", op.A8SQ8C, two}, {"on " + roles.Beside, op.A8OQ8C, two}}
	if behind == "" {
		return out, nil
	}
	return append(out,
		outlierRow{"on " + behind + ", in turns with products", op.A8OQ8C, withRoles(soc, roles.Beside,
			map[string]func(op.Kind) bool{roles.Products: products, behind: outliers,
				roles.Beside: func(kind op.Kind) bool { return rest(kind) && !outliers(kind) }})},
		outlierRow{"everything on that core", op.A8OQ8C, withRoles(soc, behind,
			map[string]func(op.Kind) bool{roles.Products: products, behind: rest})}), nil
}

// twinOf returns the first other processor of the same cores that executes the products of outliers, "" without one.
func twinOf(soc *socs.SoC, name string) string {
	cores := soc.Processor(name).Cores
	if len(cores) == 0 {
		return ""
	}
	for i := range soc.Processors {
		other := &soc.Processors[i]
		executes := len(other.Kinds) == 0 || slices.Contains(other.Kinds, op.OutlierMatMul)
		if executes && other.Name != name && slices.Equal(cores, other.Cores) {
			return other.Name
		}
	}
	return ""
}

// withRoles returns a SoC of some processors alone, each with those of its kinds of operators that its role permits.
func withRoles(soc *socs.SoC, control string, roles map[string]func(op.Kind) bool) *socs.SoC {
	out := *soc
	out.Control, out.Processors = control, nil
	for _, proc := range soc.Processors {
		permits := roles[proc.Name]
		if permits == nil {
			continue
		}
		if len(proc.Kinds) == 0 {
			proc.Kinds = op.Kinds
		}
		proc.Kinds = slices.DeleteFunc(slices.Clone(proc.Kinds), func(kind op.Kind) bool { return !permits(kind) })
		out.Processors = append(out.Processors, proc)
	}
	return &out
}

// observed returns a calibration of the ranges of a prompt with which that share of the channels, one at least, exceeds
// the scale of each product.
func observed(ctx context.Context, model *models.Model, tokens []int32, share float64) (*calibration.Calibration,
	error) {
	tried, err := trial.Open(ctx, model)
	if err != nil {
		return nil, err
	}
	cal, err := trial.Observe(ctx, tried, tokens)
	if err != nil {
		return nil, err
	}

	for i := range cal.Activations {
		activation := &cal.Activations[i]
		exceeding := max(1, int(share*float64(activation.K)+0.5))
		activation.LeaveOut(exceeding, op.OutlierChannels(activation.K))
		cal.Exceeding = append(cal.Exceeding, calibration.Exceeding{Class: activation.Class, Layer: activation.Layer,
			Counts: []calibration.Count{{Rows: len(tokens), Mean: float64(exceeding), Most: exceeding}}})
	}

	return cal, cal.Validate()
}

// showOutliers prints a line for every plan, and one for every lane.
func showOutliers(ui *cli.Streams, results []outlierResult) {
	var rows, lanes [][]string
	none := results[0]
	for _, result := range results {
		over := "-"
		if none.Predicted > 0 {
			over = fmt.Sprintf("%+.1f %%", 100*(result.Predicted/none.Predicted-1))
		}
		rows = append(rows, slices.Concat([]string{result.Plan}, result.timeCells(),
			[]string{fmt.Sprintf("%+.1f %%", 100*(result.Ratio-1)), over, fmt.Sprintf("%.1f", result.Channels),
				fmt.Sprint(result.Most), fmt.Sprint(result.Beyond)}))
		lanes = append(lanes, result.laneRows()...)
	}
	ui.Table(slices.Concat([]string{"outliers"}, timeColumns,
		[]string{">over none", ">predicted over none", ">channels", ">most", ">beyond"}), rows)
	showLanes(ui, "outliers", lanes)
}
