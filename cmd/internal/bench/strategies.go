package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver/opencl"
	"github.com/hetc/hetc/runtime/serving"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
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

// strategySets returns the plan of all strategies, those of each processor alone, and those of the ablation.
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

// strategyResult holds the speed of one plan in one task.
type strategyResult struct {
	Task        string  `json:"task"`
	Plan        string  `json:"plan"`
	TPS         float64 `json:"tokens_per_s"` // median of rounds
	Low         float64 `json:"low"`          // 95 % interval
	High        float64 `json:"high"`
	PredictedPS float64 `json:"predicted_tokens_per_s"`
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

	labels, plans = distinct(labels, plans)

	// HeteroInfer's fast synchronisation (4.3) against none: the same program, whose lanes wait in the other way.
	if other, how := otherWaits(plans[0]); other != nil {
		labels, plans = append(labels, labels[0]+how), append(plans, other)
	}
	opened := &fleet{model: from.Model, cal: from.Calibration, soc: from.SoC}
	defer opened.close()
	if err := opened.openAll(ctx, labels, plans); err != nil {
		return err
	}
	results, virtual, err := measureTasks(ctx, opened.list, prompts, options, from.Input)
	if err != nil {
		return err
	}

	ui.Printf("%s, %s, decode: mean of %d tokens after %d\n", howMeasured(virtual),
		interleaved(options.Rounds), options.Gen, slices.Min(prompts))
	showStrategies(ui, results)
	return ui.Result(map[string]any{"soc": from.SoC.Name, "simulated": virtual, "gen": options.Gen,
		"rounds": options.Rounds, "results": results})
}

// distinct returns the plans that differ in their programs or in the experts in their slots, each with the labels of
// all plans that equal it. Equal plans would differ by noise alone, and each would take its memory and time.
func distinct(labels []string, plans []*planir.Plan) (names []string, different []*planir.Plan) {
	for i, plan := range plans {
		at := slices.IndexFunc(different, func(other *planir.Plan) bool {
			return reflect.DeepEqual(plan.Program, other.Program) && reflect.DeepEqual(plan.Procs, other.Procs) &&
				reflect.DeepEqual(slotsOf(plan), slotsOf(other))
		})
		if at < 0 {
			names, different = append(names, labels[i]), append(different, plan)
			continue
		}
		names[at] += " = " + labels[i]
	}
	return names, different
}

// slotsOf returns the experts in the slots of every program and layer.
func slotsOf(plan *planir.Plan) (out [][]int) {
	for i := range plan.Experts {
		for _, layer := range plan.Experts[i].Layers {
			out = append(out, layer.Slots)
		}
	}
	return out
}

// otherWaits returns the same plan with another way of waiting for devices, and the words for its label; nil without a
// device. Drivers wake the lanes or, where all of them do already, lanes sleep for the predicted time of a call.
func otherWaits(plan *planir.Plan) (*planir.Plan, string) {
	other := *plan
	other.Procs = slices.Clone(plan.Procs)
	var devices []*planir.Proc
	for i := range other.Procs {
		if other.Procs[i].Driver == opencl.Name {
			devices = append(devices, &other.Procs[i])
		}
	}
	if len(devices) == 0 {
		return nil, ""
	}

	wait, how := capability.WaitEvent, ", waits for events"
	if !slices.ContainsFunc(devices, func(proc *planir.Proc) bool { return proc.Wait != capability.WaitEvent }) {
		wait, how = capability.WaitSleep, ", predicted sleep"
	}
	for _, proc := range devices {
		proc.Wait = wait
	}
	return &other, how
}

// measureTasks measures every plan in every task once a round, in random order. A round before these is not counted,
// and leaves out prompts of several chunks. Results are grouped by task, the solved plan first. Without tokens to
// decode (options.Gen is 0) the tasks are the prompts alone.
func measureTasks(
	ctx context.Context, list []*candidate, prompts []int, options *Options, in solver.Input,
) (results []*strategyResult, virtual bool, err error) {
	shortest := slices.Min(prompts)
	if results, err = predictTasks(list, prompts, options, in); err != nil {
		return nil, false, err
	}
	byName := map[string]*strategyResult{}
	for _, result := range results {
		byName[result.Task+result.Plan] = result
	}
	rng := rand.New(rand.NewPCG(1, 2)) // the order of measurements, not their values
	for round := -1; round < options.Rounds; round++ {
		for _, prompt := range prompts {
			for _, i := range rng.Perm(len(list)) {
				plan, gen := list[i], 0
				if round < 0 && prompt > largestProgram(plan.machine.Plan()) {
					continue // its programs are those of shorter prompts
				}
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

// predictTasks returns the predictions of all tasks, every plan in each: the prompts, and decoding behind the shortest
// one.
func predictTasks(list []*candidate, prompts []int, options *Options, in solver.Input) (results []*strategyResult,
	err error) {
	tasks := slices.Clone(prompts)
	if options.Gen > 0 {
		tasks = append(tasks, 0)
	}
	position := slices.Min(prompts) + (options.Gen+1)/2
	for _, prompt := range tasks {
		task := strategyTask{prompt}
		for _, plan := range list {
			if err := plan.refuseEmulator(); err != nil {
				return nil, err
			}
			ns, err := predictTask(in, plan.machine.Plan(), task, position)
			if err != nil {
				return nil, fmt.Errorf("predict %q, %v: %w", plan.Name, task, err)
			}
			tokens := float64(max(1, prompt))
			results = append(results, &strategyResult{Task: task.String(), Plan: plan.Name, tokens: tokens,
				PredictedPS: tokens * 1e9 / float64(ns)})
		}
	}
	return results, nil
}

// largestProgram returns the most tokens that a program of the plan takes.
func largestProgram(plan *planir.Plan) (rows int) {
	for i := range plan.Program.Programs {
		rows = max(rows, plan.Program.Programs[i].Rows)
	}
	return rows
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

// predictTask returns the time of a task in ns by the prices of a plan. A prompt takes the chunks that the plan's
// decider chooses, each with attention over the chunks before it; decoding takes a token at the given position.
func predictTask(in solver.Input, plan *planir.Plan, task strategyTask, position int) (ns int64, err error) {
	caller, err := solver.NewCaller(in, plan)
	if err != nil {
		return 0, err
	}
	if task.Prompt == 0 {
		return caller.NS(1, position)
	}

	times := serving.TimesOf(plan)
	for done := 0; done < task.Prompt; {
		tokens, _ := times.Chunk(task.Prompt - done)
		done += tokens
		chunk, err := caller.NS(tokens, done)
		if err != nil {
			return 0, err
		}
		ns += chunk
	}
	return ns, nil
}

// mean returns the arithmetic mean.
func mean(ns []int64) float64 {
	sum := int64(0)
	for _, one := range ns {
		sum += one
	}
	return float64(sum) / float64(len(ns))
}

// showStrategies prints a line for every plan and task.
func showStrategies(ui *cli.Streams, results []*strategyResult) {
	var rows [][]string
	for _, result := range results {
		off := 100 * (result.TPS/result.PredictedPS - 1) // of the time
		rows = append(rows, []string{result.Task, result.Plan, fmt.Sprintf("%.1f", result.TPS),
			fmt.Sprintf("%.1f..%.1f", result.Low, result.High), fmt.Sprintf("%.1f", result.PredictedPS),
			fmt.Sprintf("%+.0f %%", off), fmt.Sprintf("%.2f", result.Solved)})
	}
	ui.Table([]string{"task", "plan", ">tokens/s", ">95 % interval", ">predicted", ">error of time",
		">solved / this, time"}, rows)
}
