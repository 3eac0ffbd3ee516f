package bench

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/workload"
)

// chunkRules are llm.npu's experiment (Fig. 19): the same plan with its chunks one after the other, or two in flight.
var chunkRules = []struct{ label, by string }{
	{"one after the other", ""},
	{"two in flight, paper's rule", planir.ByGreedy},
	{"two in flight, exact", planir.ByExact},
}

// chunkResult holds the times of a plan.
type chunkResult struct {
	Plan      string  `json:"plan"`
	MS        float64 `json:"ms"` // median of rounds
	Low       float64 `json:"low_ms"`
	High      float64 `json:"high_ms"`
	Predicted float64 `json:"predicted_ms"`
	// time over that of one chunk after the other, median of the rounds' ratios
	Ratio float64    `json:"over_one_after_the_other"`
	Idle  []laneIdle `json:"idle"`

	samples []float64 // ns
	ran     []int64   // ns of every prompt since the first round that counts, those that only prepare others too
}

// laneIdle is how long a lane had nothing to do, on average in a prompt, and before which step most of it.
type laneIdle struct {
	Proc   string  `json:"proc"`
	BusyMS float64 `json:"busy_ms"`
	IdleMS float64 `json:"idle_ms"`
	Before string  `json:"before,omitempty"`
	MostMS float64 `json:"before_ms,omitempty"`
}

// Chunks measures a prompt of several chunks, one after the other and two in flight, in orders by the paper's rule and
// by an exact search, in the same rounds. Operators are placed whole. As the NPU of the paper does, the processor named
// products computes all products and their quantisers, and nothing else; "" leaves that to solve.
func Chunks(c *cobra.Command, ui *cli.Streams, options *Options, products string) error {
	ctx := c.Context()
	from, err := options.open()
	if err != nil {
		return err
	}
	defer from.Model.Close()
	in := from.Input
	in.Strategies = []planir.Strategy{planir.Single, planir.Padding}
	if products != "" {
		if in.SoC, err = byRole(in.SoC, products); err != nil {
			return err
		}
		in.WhatIf.OtherSoC = true // the costs are of the same processors, which now have fewer operators
	}

	opened := &fleet{model: from.Model, cal: from.Calibration, soc: from.SoC}
	defer opened.close()
	var labels []string
	var plans []*planir.Plan
	var predicted []int64
	for _, rule := range chunkRules {
		in.ChunkOrder = rule.by
		in.Workload = workload.Edited(from.Workload, func(w *workload.Workload) {
			w.ChunksInFlight = 1
			if rule.by != "" {
				w.ChunksInFlight = 2
			}
		})
		result, err := solver.Solve(ctx, in)
		if err != nil {
			return err
		}
		if rule.by != "" && result.Plan.InFlight == nil {
			return diag.New(diag.ClassInput, "bench chunks: no two chunks are in flight: %v", result.Warnings)
		}
		ns, err := predictTask(in, result.Plan, strategyTask{options.PromptLen}, 0)
		if err != nil {
			return err
		}
		plans, labels, predicted = append(plans, result.Plan), append(labels, rule.label), append(predicted, ns)
	}

	if err := opened.openAll(ctx, labels, plans); err != nil {
		return err
	}
	results, virtual, err := opened.prompts(ctx, predicted, options)
	if err != nil {
		return err
	}

	ui.Printf("%s, %s, prompt of %d tokens\n", howMeasured(virtual), interleaved(options.Rounds),
		options.PromptLen)
	showChunks(ui, results)
	return ui.Result(map[string]any{"soc": from.SoC.Name, "simulated": virtual, "prompt": options.PromptLen,
		"rounds": options.Rounds, "results": results})
}

// prompts measures a prompt on every open plan once a round, in random order, after a round that is not counted.
// predicted are the times of the plans in ns.
func (f *fleet) prompts(ctx context.Context, predicted []int64, options *Options) (
	results []*chunkResult, virtual bool, err error) {
	for i, plan := range f.list {
		results = append(results, &chunkResult{Plan: plan.Name, Predicted: float64(predicted[i]) / 1e6})
	}
	rng := rand.New(rand.NewPCG(1, 2)) // the order of measurements, not their values
	for round := -1; round < options.Rounds; round++ {
		for _, i := range rng.Perm(len(f.list)) {
			plan := f.list[i]
			if round == 0 {
				plan.machine.ResetStats()
			}
			times, err := runcmd.Round(ctx, plan.machine, options.PromptLen, 0)
			if err != nil {
				return nil, false, fmt.Errorf("measure %q: %w", plan.Name, err)
			}
			virtual = times.Virtual
			if round >= 0 {
				results[i].samples = append(results[i].samples, float64(times.PrefillNS[0]))
				results[i].ran = append(results[i].ran, times.RanNS...)
			}
		}
	}

	for i, result := range results {
		if err := result.summarise(results[0].samples); err != nil {
			return nil, false, err
		}
		result.Idle = idleLanes(f.list[i].machine.Stats(), result.ran)
	}

	return results, virtual, nil
}

// byRole returns a SoC on which one processor computes all products and their quantisers, and nothing else.
func byRole(soc *socs.SoC, products string) (*socs.SoC, error) {
	out := *soc
	out.Processors = slices.Clone(soc.Processors)
	if out.Processor(products) == nil {
		return nil, diag.New(diag.ClassUsage, "--products: unknown processor %q of SoC %q", products, soc.Name)
	}

	matrix := []op.Kind{op.MatMul, op.ExpertMatMul}
	for i := range out.Processors {
		proc := &out.Processors[i]
		kinds := proc.Kinds
		if len(kinds) == 0 {
			kinds = op.Kinds
		}
		mine := proc.Name == products
		proc.Kinds = slices.DeleteFunc(slices.Clone(kinds), func(kind op.Kind) bool {
			return slices.Contains(matrix, kind) != mine && !(mine && kind == op.QuantRows)
		})
	}
	return &out, nil
}

// summarise computes median and interval from the samples, and the ratio to those of one chunk after the other.
func (r *chunkResult) summarise(first []float64) error {
	times, err := stat.Summarise(r.samples)
	if err != nil {
		return err
	}
	r.MS, r.Low, r.High = times.Median/1e6, times.Low/1e6, times.High/1e6
	ratios := make([]float64, len(first))
	for i := range ratios {
		ratios[i] = r.samples[i] / first[i]
	}
	r.Ratio = stat.Median(ratios)
	return nil
}

// idleLanes tells of each processor how long it worked and waited in a prompt, on average. steps were counted while
// prompts ran that took so many ns each.
func idleLanes(steps []executor.StepStat, ran []int64) (out []laneIdle) {
	calls := float64(len(ran)) * 1e6
	total := mean(ran) / 1e6
	waits := map[[2]string]float64{}
	for _, step := range steps {
		i := slices.IndexFunc(out, func(lane laneIdle) bool { return lane.Proc == step.Proc })
		if i < 0 {
			i = len(out)
			out = append(out, laneIdle{Proc: step.Proc, IdleMS: total})
		}
		lane := &out[i]
		lane.BusyMS += float64(step.RunNS) / calls
		lane.IdleMS -= float64(step.RunNS) / calls
		key := [2]string{step.Proc, step.Node}
		waits[key] += float64(step.WaitNS) / calls
		if waits[key] > lane.MostMS {
			lane.Before, lane.MostMS = step.Node, waits[key]
		}
	}

	slices.SortFunc(out, func(a, b laneIdle) int { return cmp.Compare(a.Proc, b.Proc) })
	return out
}

// timeColumns are the headers of timeCells.
var timeColumns = []string{">ms", ">95 % interval", ">predicted", ">error"}

// timeCells returns the time of a plan as a row shows it, with its interval, the predicted time and how far that is
// off.
func (r *chunkResult) timeCells() []string {
	cells := []string{fmt.Sprintf("%.2f", r.MS), fmt.Sprintf("%.2f..%.2f", r.Low, r.High), "-", "-"}
	if r.Predicted > 0 {
		cells[2] = fmt.Sprintf("%.2f", r.Predicted)
		cells[3] = fmt.Sprintf("%+.1f %%", 100*(r.Predicted/r.MS-1))
	}
	return cells
}

// laneRows returns a row for every lane of a plan.
func (r *chunkResult) laneRows() (rows [][]string) {
	for _, lane := range r.Idle {
		rows = append(rows, []string{r.Plan, lane.Proc, fmt.Sprintf("%.2f", lane.BusyMS),
			fmt.Sprintf("%.2f", lane.IdleMS), lane.Before, fmt.Sprintf("%.2f", lane.MostMS)})
	}
	return rows
}

// showLanes prints rows of laneRows below a table whose first column has this header.
func showLanes(ui *cli.Streams, first string, rows [][]string) {
	ui.Printf("\n")
	ui.Table([]string{first, "processor", ">busy ms", ">idle ms", "most of it before", ">ms"}, rows)
}

// showChunks prints a line for every plan, and one for every lane.
func showChunks(ui *cli.Streams, results []*chunkResult) {
	var rows, lanes [][]string
	for _, result := range results {
		rows = append(rows, slices.Concat([]string{result.Plan}, result.timeCells(),
			[]string{fmt.Sprintf("%.3f", result.Ratio)}))
		lanes = append(lanes, result.laneRows()...)
	}
	ui.Table(slices.Concat([]string{"chunks"}, timeColumns, []string{">/ one after the other"}), rows)
	showLanes(ui, "chunks", lanes)
}
