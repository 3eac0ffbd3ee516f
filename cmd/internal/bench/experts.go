package bench

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/compare"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/solver/workload"
)

// tierSets returns the rows of NPUMoE's ablation as plans to solve for.
func tierSets() (out []planSet) {
	for i, row := range compare.TierRows {
		set := planSet{label: row.Name, dynamic: row.Dynamic, tiers: row.Rule}
		if i == 0 {
			set.label = solvedName
		}
		out = append(out, set)
	}
	return out
}

// expertResult holds the speed of a plan with a prompt, and the shares of rows that its tiers moved or dropped.
type expertResult struct {
	*strategyResult
	compare.TierUse
	// Shares of the rows that were routed while it was measured, in percent; 0 without tiers.
	RealMoved    float64 `json:"measured_moved_percent"`
	RealOverflow float64 `json:"measured_overflow_percent"`
	Padding      float64 `json:"padding_percent"` // of the rows that slots reserve
}

// Experts measures the rows of NPUMoE's ablation in the same rounds: experts in groups of several shapes on a processor
// of static graphs, beside dynamic experts on the control processor.
func Experts(c *cobra.Command, ui *cli.Streams, options *Options, prompts []int) error {
	ctx := c.Context()
	from, err := options.open()
	if err != nil {
		return err
	}
	defer from.Model.Close()
	if from.Model.Experts == 0 {
		return diag.New(diag.ClassInput, "model %q has no experts to measure", options.Model).
			WithHint("hetc models list shows which have")
	}
	if from.Loads, err = workload.ReadLoads(options.Loads); err != nil {
		return err
	}
	labels, plans, err := solveSets(ctx, ui, from.Input, tierSets(), slices.Max(prompts)+options.Gen)
	if err != nil {
		return err
	}

	labels, plans = distinct(labels, plans)
	opened := &fleet{model: from.Model, cal: from.Calibration, soc: from.SoC}
	defer opened.close()
	if err := opened.openAll(ctx, labels, plans); err != nil {
		return err
	}
	measured, virtual, err := measureTasks(ctx, opened.list, prompts, options, from.Input)
	if err != nil {
		return err
	}

	ui.Printf("%s, %s, %s loads\n", howMeasured(virtual), interleaved(options.Rounds), from.Loads.Source)
	results := withUse(measured, opened.list)
	showExperts(ui, results)
	return ui.Result(map[string]any{"soc": from.SoC.Name, "simulated": virtual, "rounds": options.Rounds,
		"results": results})
}

// withUse adds to every result the tiers of its plan and how they were used.
func withUse(measured []*strategyResult, list []*candidate) (out []expertResult) {
	for _, result := range measured {
		at := slices.IndexFunc(list, func(c *candidate) bool { return c.Name == result.Plan })
		one := expertResult{strategyResult: result}
		plan, stats := list[at].machine.Plan(), list[at].machine.Experts()
		one.TierUse = compare.TiersIn(plan, prefillRows(plan, int(result.tokens)))
		one.RealMoved, one.RealOverflow, one.Padding = sharesOf(stats)
		out = append(out, one)
	}
	return out
}

// prefillRows returns the number of rows of the program that a prompt of so many tokens begins with.
func prefillRows(plan *planir.Plan, tokens int) int {
	for _, choice := range plan.Program.Decider {
		if tokens >= choice.Min && tokens <= choice.Max {
			for i := range plan.Program.Programs {
				if plan.Program.Programs[i].Name == choice.Program {
					return plan.Program.Programs[i].Rows
				}
			}
		}
	}
	return 0
}

// sharesOf are shares of all routed rows, and of the rows that slots reserve, in percent.
func sharesOf(stats []executor.ExpertStat) (moved, overflow, padding float64) {
	var routed, inSlots, beyond, reserved int64
	for i := range stats {
		routed, inSlots = routed+stats[i].Routed, inSlots+stats[i].Moved
		beyond, reserved = beyond+stats[i].Overflow, reserved+stats[i].Reserved
	}
	percent := func(part, all int64) float64 { return 100 * float64(part) / float64(max(1, all)) }
	return percent(inSlots, routed), percent(beyond, routed), percent(reserved-inSlots, reserved)
}

// showExperts prints a line for every plan and prompt, and how near the solved plan is to the best of them.
func showExperts(ui *cli.Streams, results []expertResult) {
	var rows [][]string
	best := map[string]expertResult{} // by task
	for _, result := range results {
		if known, ok := best[result.Task]; !ok || result.Solved > known.Solved {
			best[result.Task] = result
		}
		shares := []string{"-", "-", "-", "-"}
		if result.Slots > 0 {
			shares = nil
			for _, share := range []float64{result.RealMoved, result.RealOverflow, result.Overflow, result.Padding} {
				shares = append(shares, fmt.Sprintf("%.1f", share))
			}
		}
		off := 100 * (result.TPS/result.PredictedPS - 1) // of the time
		rows = append(rows, slices.Concat([]string{result.Task, result.Plan, compare.ShortGroups(result.Groups),
			fmt.Sprint(result.Launches)}, shares, []string{fmt.Sprintf("%.1f", result.TPS),
			fmt.Sprintf("%.1f..%.1f", result.Low, result.High), fmt.Sprintf("%.1f", result.PredictedPS),
			fmt.Sprintf("%+.0f %%", off), fmt.Sprintf("%.2f", result.Solved)}))
	}

	ui.Table([]string{"task", "plan", "groups of a layer", ">launches", ">in slots %", ">beyond %", ">expected %",
		">padding %", ">tokens/s", ">95 % interval", ">predicted", ">error of time", ">solved / this, time"}, rows)
	for i, result := range results {
		if i == 0 || result.Task != results[i-1].Task { // of each task the solved plan is the first
			top := best[result.Task]
			ui.Printf("%s: the solved plan reaches %.2f of the speed of the best row, %s\n", result.Task, 1/top.Solved,
				top.Plan)
		}
	}
}
