package bench

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/workload"
)

// HeadOptions name the processors of Heads.
type HeadOptions struct {
	Estimate string  // processor that estimates scores, and nothing else
	Beside   string  // processor that computes the rest
	Density  float64 // share of the positions that queries attend to; 0: the workload's
}

// headRow is one way to execute attention.
type headRow struct {
	label     string
	soc       *socs.SoC
	attention workload.Attention
	order     string // of the heads, see solver.Input.HeadOrder
	pipeline  bool   // a plan without one is refused
}

// headResult holds the times of a plan with a prompt.
type headResult struct {
	*chunkResult
	Prompt int `json:"prompt"`
	// launches of estimates and turns of heads in the plan's first pipeline; 0: it has none
	Launches int `json:"launches"`
	Turns    int `json:"turns"`
	// programs of prompts that attend sparsely, of all
	Sparse   int `json:"sparse_programs"`
	Programs int `json:"programs"`
}

// Heads measures sparse attention whose scores another processor estimates (shadowAttn 3.4). It compares, in the same
// rounds: dense and sparse attention on one processor; the estimates on another processor before the rest; heads in a
// pipeline, in the orders of Algorithm 1 and of an exact search; and the plan that solve makes of all processors. In
// all plans but the last one processor computes each operator.
func Heads(c *cobra.Command, ui *cli.Streams, options *Options, roles *HeadOptions, prompts []int) error {
	ctx := c.Context()
	from, err := options.open()
	if err != nil {
		return err
	}
	defer from.Model.Close()
	density, err := roles.prepare(from)
	if err != nil {
		return err
	}
	rows, err := headRows(from.SoC, roles)
	if err != nil {
		return err
	}
	plans, err := headPlans(ctx, from.Input, rows, density)
	if err != nil {
		return err
	}
	if err := holdPrompt(plans, slices.Max(prompts)); err != nil {
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

	var results []headResult
	simulated := false
	for _, prompt := range prompts {
		predicted, err := predictHeads(from.Input, rows, plans, density, prompt)
		if err != nil {
			return err
		}
		task := *options
		task.PromptLen = prompt
		times, virtual, err := opened.prompts(ctx, predicted, &task)
		if err != nil {
			return err
		}
		simulated = virtual
		for i, row := range times {
			results = append(results, headResultOf(row, plans[i], prompt))
		}
	}
	ui.Printf("%s, %s, sparse attention to %.3g %% of the positions\n", howMeasured(simulated),
		interleaved(options.Rounds), 100*density)
	showHeads(ui, results, rows[0].label)
	return ui.Result(map[string]any{"soc": from.SoC.Name, "simulated": simulated, "density": density,
		"rounds": options.Rounds, "results": results})
}

// holdPrompt refuses a prompt that exceeds the context of one of the plans.
func holdPrompt(plans []*planir.Plan, tokens int) error {
	for _, plan := range plans {
		if tokens > plan.MaxContext {
			return diag.New(diag.ClassUsage, "--prompt-len %d needs a context of as many tokens, the plan has %d",
				tokens, plan.MaxContext).
				WithHint("measure shorter prompts, or name a larger context in the workload")
		}
	}
	return nil
}

// prepare returns the share of positions that queries attend to, and has all heads keep it where there is no
// calibration.
func (o *HeadOptions) prepare(from *inputs) (density float64, err error) {
	if density = o.Density; density == 0 {
		density = from.Workload.Density
	}
	if density == 0 {
		return 0, diag.New(diag.ClassUsage, "hetc bench heads: no density is given").
			WithHint("name it with --density, or in the workload")
	}
	if from.Calibration == nil {
		from.Calibration, err = trial.EvenHeads(from.Model, density)
	}
	return density, err
}

// predictHeads returns the times in ns that the prices of each row predict for its plan with a prompt.
func predictHeads(
	from solver.Input, rows []headRow, plans []*planir.Plan, density float64, prompt int,
) (predicted []int64, err error) {
	for i, plan := range plans {
		in := from
		rows[i].edit(&in, density)
		ns, err := predictTask(in, plan, strategyTask{prompt}, 0)
		if err != nil {
			return nil, fmt.Errorf("predict %q: %w", rows[i].label, err)
		}
		predicted = append(predicted, ns)
	}
	return predicted, nil
}

// headRows returns the plans to compare. The times of the others are compared with those of the first.
func headRows(soc *socs.SoC, roles *HeadOptions) ([]headRow, error) {
	for _, given := range []struct{ flag, name string }{{"estimate", roles.Estimate}, {"beside", roles.Beside}} {
		if soc.Processor(given.name) == nil {
			return nil, diag.New(diag.ClassUsage, "--%s: unknown processor %q of SoC %q", given.flag, given.name,
				soc.Name)
		}
	}

	if err := soc.Concurrent(roles.Estimate, roles.Beside); err != nil {
		return nil, diag.New(diag.ClassUsage, "--estimate %s and --beside %s: %w", roles.Estimate, roles.Beside, err)
	}
	estimator := soc.Processor(roles.Estimate)
	if !slices.Contains(estimator.Kinds, op.Estimate) && len(estimator.Kinds) > 0 {
		return nil, diag.New(diag.ClassUsage, "--estimate: processor %q does not execute operator %q", roles.Estimate,
			op.Estimate)
	}

	all := func(op.Kind) bool { return true }
	estimates := func(kind op.Kind) bool { return kind == op.Estimate }
	rest := func(kind op.Kind) bool { return kind != op.Estimate }
	alone := withRoles(soc, roles.Beside, map[string]func(op.Kind) bool{roles.Beside: all})
	two := withRoles(soc, roles.Beside, map[string]func(op.Kind) bool{roles.Estimate: estimates, roles.Beside: rest})
	on := "estimates on " + roles.Estimate + ", "
	return []headRow{
		{label: "dense, " + roles.Beside, soc: alone, attention: workload.AttentionDense},
		{label: "sparse, " + roles.Beside, soc: alone, attention: workload.AttentionSparse, order: solver.NoPipeline},
		{label: on + "in order", soc: two, attention: workload.AttentionSparse, order: solver.NoPipeline},
		{label: on + "Algorithm 1", soc: two, attention: workload.AttentionSparse, order: planir.ByGreedy,
			pipeline: true},
		{label: on + "exact order", soc: two, attention: workload.AttentionSparse, order: planir.ByExact,
			pipeline: true},
		{label: solvedName, attention: workload.AttentionBest},
	}, nil
}

// edit makes of the common inputs those of a row.
func (r *headRow) edit(in *solver.Input, density float64) {
	in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) {
		w.Attention, w.Density = r.attention, density
		if r.attention == workload.AttentionDense {
			w.Density = 0
		}
		w.ChunksInFlight = 0
	})
	in.HeadOrder = r.order
	if r.soc != nil {
		in.SoC = r.soc
		in.WhatIf.OtherSoC = true // the costs are of the same processors, which now have fewer operators
	}
}

// headPlans solves for every row.
func headPlans(
	ctx context.Context, from solver.Input, rows []headRow, density float64,
) (plans []*planir.Plan, err error) {
	for i := range rows {
		row, in := &rows[i], from
		row.edit(&in, density)
		result, err := solver.Solve(ctx, in)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", row.label, err)
		}
		if row.pipeline && (result.Plan.Attention == nil || len(result.Plan.Attention.Pipelines) == 0) {
			return nil, diag.New(diag.ClassInput, "bench heads, %q: no heads pass through a pipeline: %v", row.label,
				result.Warnings)
		}
		plans = append(plans, result.Plan)
	}
	return plans, nil
}

// headResultOf adds the plan's decisions about attention to its times.
func headResultOf(row *chunkResult, plan *planir.Plan, prompt int) headResult {
	out := headResult{chunkResult: row, Prompt: prompt}
	for _, program := range plan.Program.Programs {
		if program.Phase == "prefill" && !program.Batch() {
			out.Programs++
			if plan.Sparse(program.Rows) {
				out.Sparse++
			}
		}
	}

	if plan.Attention != nil && len(plan.Attention.Pipelines) > 0 {
		pipeline := &plan.Attention.Pipelines[0]
		out.Launches, out.Turns = len(pipeline.Launches), len(pipeline.Turns)
	}
	return out
}

// showHeads prints a line for every plan and prompt. first is the plan that times are compared with.
func showHeads(ui *cli.Streams, results []headResult, first string) {
	var rows [][]string
	for _, result := range results {
		heads := "-"
		if result.Launches > 0 {
			heads = fmt.Sprintf("%d launches, %d turns", result.Launches, result.Turns)
		}
		rows = append(rows, slices.Concat([]string{fmt.Sprint(result.Prompt), result.Plan,
			fmt.Sprintf("%d of %d", result.Sparse, result.Programs), heads}, result.timeCells(),
			[]string{fmt.Sprintf("%.3f", 1/result.Ratio)}))
	}
	ui.Table(slices.Concat([]string{">prompt", "attention", "sparse programs", "pipeline"}, timeColumns,
		[]string{">" + first + " / this"}), rows)
}
