package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver/opencl"
	"github.com/hetc/hetc/runtime/serving"
	"github.com/hetc/hetc/socs"
)

// ablation is HeteroInfer's experiment (5.2 to 5.4): each row permits one more way of dividing an operator.
var ablation = []struct {
	label string
	adds  []planir.Strategy
}{
	{"each operator whole", []planir.Strategy{planir.Single, planir.Padding}},
	{"and weight-centric", []planir.Strategy{planir.WeightCentric}},
	{"and activation-centric", []planir.Strategy{planir.ActivationDivide, planir.Pipe}},
	{"and hybrid", []planir.Strategy{planir.Hybrid}},
}

// strategySets are the plan of all strategies, those of each processor alone, and those of the ablation.
func strategySets(soc *socs.SoC) []planSet {
	out := []planSet{{label: solvedName}}
	for i := range soc.Processors {
		name := soc.Processors[i].Name
		out = append(out, planSet{label: name, only: []string{name}})
	}
	var permitted []planir.Strategy
	for _, row := range ablation {
		permitted = append(permitted, row.adds...)
		out = append(out, planSet{label: row.label, strategies: slices.Clone(permitted)})
	}
	return out
}

// strategyTask is a prompt of that many tokens, or, where Prompt is 0, decoding.
type strategyTask struct{ Prompt int }

// String names the task in tables and results.
func (t strategyTask) String() string {
	if t.Prompt == 0 {
		return "decode"
	}
	return fmt.Sprintf("prefill %d", t.Prompt)
}

// strategyResult is what one plan reached in one task.
type strategyResult struct {
	Task        string  `json:"task"`
	Plan        string  `json:"plan"`
	TPS         float64 `json:"tokens_per_s"` // median of rounds
	Low         float64 `json:"low"`          // 95 % interval
	High        float64 `json:"high"`
	PredictedPS float64 `json:"predicted_tokens_per_s,omitempty"`
	// time of the solved plan over this one's, median of the rounds' ratios
	Solved float64 `json:"solved_takes"`

	tokens  float64
	samples []float64 // ns
}

// Strategies measures plans that may divide operators in ever more ways beside the plans of each processor alone, for
// several lengths of prompts and for decoding after the shortest, all in the same rounds.
func Strategies(c *cobra.Command, ui *cli.Streams, options *Options, prompts []int) error {
	ctx := c.Context()
	from, err := options.open()
	if err != nil {
		return err
	}
	defer from.Model.Close()
	labels, plans, err := solveSets(ctx, ui, from.Input, strategySets(from.SoC), slices.Max(prompts)+options.Gen)
	if err != nil {
		return err
	}
	// HeteroInfer's fast synchronisation (4.3), left out: the same program, whose lanes wait in the driver's own way.
	if slow := eventWaits(plans[0]); slow != nil {
		labels, plans = append(labels, labels[0]+", waits for events"), append(plans, slow)
	}
	if err := runcmd.EnoughMemory(plans, heldBytes(plans), machine.FreeMemory()); err != nil {
		return fmt.Errorf("measure %d plans side by side: %w", len(plans), err)
	}
	opened := &fleet{model: from.Model, cal: from.Calibration, soc: from.SoC}
	defer opened.close()
	for i, plan := range plans {
		if err := opened.open(ctx, labels[i], plan); err != nil {
			return err
		}
	}
	results, virtual, err := measureTasks(ctx, opened.list, prompts, options)
	if err != nil {
		return err
	}
	measured := "measured"
	if virtual {
		measured = "simulated"
	}
	ui.Printf("%s, %d interleaved rounds, decode: mean of %d tokens after %d\n", measured, options.Rounds, options.Gen,
		slices.Min(prompts))
	showStrategies(ui, results)
	return ui.Result(map[string]any{"soc": from.SoC.Name, "simulated": virtual, "gen": options.Gen,
		"rounds": options.Rounds, "results": results})
}

// eventWaits is the plan with lanes that are woken by drivers, nil where no processor executes calls by itself.
func eventWaits(plan *planir.Plan) *planir.Plan {
	slow := *plan
	slow.Procs = slices.Clone(plan.Procs)
	found := false
	for i := range slow.Procs {
		if proc := &slow.Procs[i]; proc.Driver == opencl.Name {
			proc.Wait, found = capability.WaitEvent, true
		}
	}
	if !found {
		return nil
	}
	return &slow
}

// measureTasks measures every plan in every task once a round, in random order, after a round that is not counted.
// Results are grouped by task, the solved plan first.
func measureTasks(
	ctx context.Context, list []*candidate, prompts []int, options *Options,
) (results []*strategyResult, virtual bool, err error) {
	shortest := slices.Min(prompts)
	byName := map[string]*strategyResult{}
	add := func(task strategyTask, plan *candidate) {
		result := &strategyResult{Task: task.String(), Plan: plan.Name, tokens: float64(max(1, task.Prompt))}
		if ns := predictTask(plan.machine.Plan(), task); ns > 0 {
			result.PredictedPS = result.tokens * 1e9 / float64(ns)
		}
		results = append(results, result)
		byName[result.Task+plan.Name] = result
	}
	for _, prompt := range append(slices.Clone(prompts), 0) {
		for _, plan := range list {
			if e := plan.machine.Emulated(); len(e) > 0 {
				return nil, false, diag.New(diag.ClassInput, "measure %q: %s is an emulator, whose times are none of a "+
					"device's", plan.Name, strings.Join(e, ", "))
			}
			add(strategyTask{prompt}, plan)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2)) // the order of measurements, not their values
	for round := -1; round < options.Rounds; round++ {
		for _, prompt := range prompts {
			for _, i := range rng.Perm(len(list)) {
				plan, gen := list[i], 0
				if prompt == shortest {
					gen = options.Gen
				}
				times, err := runcmd.Round(ctx, plan.machine, prompt, gen)
				if err != nil {
					return nil, false, fmt.Errorf("measure %q: %w", plan.Name, err)
				}
				virtual = times.Virtual
				if round < 0 {
					continue
				}
				result := byName[strategyTask{prompt}.String()+plan.Name]
				result.samples = append(result.samples, float64(times.PrefillNS[0]))
				if gen > 0 {
					result = byName[strategyTask{}.String()+plan.Name]
					result.samples = append(result.samples, mean(times.DecodeNS))
				}
			}
		}
	}
	return results, virtual, summarise(results)
}

// summarise computes rates and ratios from the samples of the rounds.
func summarise(results []*strategyResult) error {
	var solved *strategyResult
	for _, result := range results {
		if solved == nil || solved.Task != result.Task {
			solved = result // the first of its task
		}
		times, err := stat.Summarise(result.samples)
		if err != nil {
			return err
		}
		rate := result.tokens * 1e9
		result.TPS, result.Low, result.High = rate/times.Median, rate/times.High, rate/times.Low
		ratios := make([]float64, len(result.samples))
		for i := range ratios {
			ratios[i] = solved.samples[i] / result.samples[i]
		}
		result.Solved = stat.Median(ratios)
	}
	return nil
}

// predictTask is what a plan predicts for a task in ns, 0 where it predicts nothing: a prompt is processed in the
// chunks that the plan's decider chooses.
func predictTask(plan *planir.Plan, task strategyTask) (ns int64) {
	times := serving.TimesOf(plan)
	if task.Prompt == 0 {
		return times.Decode(1)
	}
	for left := task.Prompt; left > 0; {
		tokens, chunk := times.Chunk(left)
		if chunk == 0 {
			return 0
		}
		ns += chunk
		left -= tokens
	}
	return ns
}

// mean is the arithmetic mean.
func mean(ns []int64) float64 {
	sum := int64(0)
	for _, x := range ns {
		sum += x
	}
	return float64(sum) / float64(len(ns))
}

// showStrategies prints a line for every plan and task.
func showStrategies(ui *cli.Streams, results []*strategyResult) {
	var rows [][]string
	for _, result := range results {
		row := []string{result.Task, result.Plan, fmt.Sprintf("%.1f", result.TPS),
			fmt.Sprintf("%.1f..%.1f", result.Low, result.High), "-", "-", fmt.Sprintf("%.2f", result.Solved)}
		if result.PredictedPS > 0 {
			row[4] = fmt.Sprintf("%.1f", result.PredictedPS)
			row[5] = fmt.Sprintf("%+.0f %%", 100*(result.TPS/result.PredictedPS-1)) // of the time
		}
		rows = append(rows, row)
	}
	ui.Table([]string{"task", "plan", ">tokens/s", ">95 % interval", ">predicted", ">error of time",
		">solved / this, time"}, rows)
}
