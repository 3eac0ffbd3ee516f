package bench

import (
	"context"
	"fmt"
	"sort"
	"strings"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/measure"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/spf13/cobra"
)

// solvedName labels the plan that may use every processor.
const solvedName = "all: solved"

// Sets measures the plans for every processor, every pair and all of them, and the plans of two
// fixed rules.
func Sets(c *cobra.Command, ui *cli.Streams, options *Options) error {
	ctx := c.Context()
	if err := cli.Required(c, "soc"); err != nil {
		return err
	}
	from, err := options.open()
	if err != nil {
		return err
	}
	defer from.Model.Close()
	soc, set, model := from.SoC, from.set, from.Model

	// Sets that equal a measured one are not opened, because every open plan holds memory and threads. like names the
	// measured one.
	like := map[string]string{}
	sets := planSets(soc, options.All, like)
	labels, plans, err := solveSets(ctx, ui, from.Input, sets, options.PromptLen+options.Gen)
	if err != nil {
		return err
	}

	opened := &fleet{model: model, cal: from.Calibration, soc: soc}
	defer opened.close()
	if err := opened.openAll(ctx, labels, plans); err != nil {
		return err
	}

	for i, plan := range plans {
		predict(opened.list[i:i+1], plan, options)
	}
	watch, err := openMachineWatch(ctx, soc)
	if err != nil {
		return err
	}
	defer watch.close()
	virtual, err := measureRounds(ctx, opened.list, options, watch)
	if err != nil {
		return err
	}
	doc := map[string]any{
		"soc": soc.Name, "simulated": virtual, "prompt_len": options.PromptLen, "gen": options.Gen,
		"rounds": options.Rounds, "candidates": opened.list,
	}
	doc["rates"] = showRates(ui, soc, set, plans[0], model)
	for _, ph := range []string{"prefill", "decode"} {
		ui.Printf("\n%s, %s: %s\n", ph, howMeasured(virtual), what(ph, options))
		showCandidates(ui, opened.list, ph)
	}
	if err := watch.show(ui, doc); err != nil {
		return err
	}
	doc["pairs"] = showPairs(ui, soc, set, opened.list, like, plans[0], model)
	doc["solved"] = showSolved(ui, opened.list)
	return ui.Result(doc)
}

// inputs holds the input of the solver and the record behind its costs. The caller closes the model.
type inputs struct {
	solver.Input
	set *record.Set
}

// open reads the files that the options name.
func (o *Options) open() (*inputs, error) {
	soc, set, costs, err := measure.OpenCosts(o.SoC, o.Record)
	if err != nil {
		return nil, err
	}
	if err := ofThisMachine(soc); err != nil {
		return nil, err
	}
	workload, err := measure.ReadWorkload(o.Workload)
	if err != nil {
		return nil, err
	}
	cal, err := bindings.ReadCalibration(o.Calibration)
	if err != nil {
		return nil, err
	}
	model, err := models.Open(o.Model)
	if err != nil {
		return nil, err
	}
	return &inputs{set: set, Input: solver.Input{
		Model: model, SoC: soc, Costs: costs, Workload: workload,
		Engine: bindings.AutoEngine(nil, solver.DefaultWorkingMemory), Calibration: cal,
	}}, nil
}

// solveSets solves for each set, and refuses plans whose context is less than so many tokens. A set without a plan is
// left out with a warning, unless it is the one of all processors.
func solveSets(
	ctx context.Context, ui *cli.Streams, in solver.Input, sets []planSet, tokens int,
) (labels []string, plans []*planir.Plan, err error) {
	for _, set := range sets {
		in.Only, in.Strategies, in.Ratio, in.TierRule = set.only, set.strategies, set.ratio, set.tiers
		given := in
		if set.dynamic {
			given.Loads = nil
		}
		result, err := solver.Solve(ctx, given)
		if err != nil {
			// Without the plan of all processors there is nothing to compare with.
			if set.label == solvedName || diag.ClassOf(err) == diag.ClassUsage || ctx.Err() != nil {
				return nil, nil, err
			}
			ui.Warnf("%s is left out: %v", set.label, err)
			continue
		}

		if tokens > result.Plan.MaxContext {
			return nil, nil, diag.New(diag.ClassUsage, "prompt and --gen need a context of %d tokens, the plan has %d",
				tokens, result.Plan.MaxContext).WithHint("measure fewer, or name a larger context in the workload")
		}
		plans, labels = append(plans, result.Plan), append(labels, set.label)
	}
	return labels, plans, nil
}

// planSet restricts what a measured plan may use.
type planSet struct {
	label      string
	only       []string           // names of processors; nil: all
	strategies []planir.Strategy  // to choose from; nil: all
	ratio      map[string]float64 // parts of every matrix by processor; nil: solve decides
	tiers      solver.TierRule    // for capacity tiers of experts; zero value: solve decides
	dynamic    bool               // experts have no capacity tiers
}

// planSets lists: the plan that solve chooses; plans of processors alone and in pairs; and the
// plans of two rules. The rules are each operator whole on its best processor, and for every pair
// all matrices in fixed parts.
func planSets(soc *socs.SoC, all bool, like map[string]string) []planSet {
	out := []planSet{{label: solvedName}}
	var pairs [][]string
	for _, names := range processorSets(soc, all, like) {
		out = append(out, planSet{label: strings.Join(names, " + "), only: names})
		if len(names) == 2 {
			pairs = append(pairs, names)
		}
	}

	if len(pairs) == 0 {
		return out
	}

	out = append(out, planSet{label: "each operator whole",
		strategies: []planir.Strategy{planir.Single, planir.Padding}})
	for _, names := range pairs {
		for _, part := range []struct {
			text string
			of   float64
		}{{"1:1", 0.5}, {"3:1", 0.75}} {
			out = append(out, planSet{
				label: fmt.Sprintf("%s of %s and %s", part.text, names[0], names[1]),
				ratio: map[string]float64{names[0]: part.of, names[1]: 1 - part.of},
			})
		}
	}
	return out
}

// heldBytes bounds how many bytes of weights the open plans hold: packs that the first plan has are
// shared, and libraries have copies of their own.
func heldBytes(plans []*planir.Plan) int64 {
	var bytes int64
	shared := map[planir.Pack]bool{}
	for i, plan := range plans {
		// Libraries pack weights again for themselves, once for each plan.
		bytes += plan.Memory.Prepacked
		for _, blob := range plan.Program.WeightBlobs() {
			for _, at := range blob.Packs {
				if i == 0 {
					shared[*at.Pack] = true
				}
				if i == 0 || !shared[*at.Pack] {
					bytes += at.Pack.Bytes
				}
			}
		}
	}
	return bytes
}

// what describes the measurements of a phase.
func what(phase string, o *Options) string {
	if phase == "prefill" {
		return fmt.Sprintf("a prompt of %d tokens, %s", o.PromptLen, interleaved(o.Rounds))
	}
	return fmt.Sprintf("a token, mean of %d after that prompt, %s", o.Gen, interleaved(o.Rounds))
}

// processorSets returns the processors alone, and the pairs that can work at the same time. A set with the same drivers
// and numbers of cores as an earlier one is left out unless all are wanted; like maps its label to the earlier one's.
func processorSets(soc *socs.SoC, all bool, like map[string]string) (out [][]string) {
	// Processors of one kind are exchangeable: their plans take the same time.
	kind := func(name string) string {
		proc := soc.Processor(name)
		return fmt.Sprint(proc.Driver, proc.Kind, proc.Options, len(proc.Cores))
	}
	seen := map[string]string{}
	add := func(names ...string) {
		var kinds []string
		for _, name := range names {
			kinds = append(kinds, kind(name))
		}
		sort.Strings(kinds)
		key, label := strings.Join(kinds, "\n"), strings.Join(names, " + ")
		old, ok := seen[key]
		if ok && !all {
			like[label] = old
			return
		}
		seen[key] = label
		out = append(out, names)
	}
	for i := range soc.Processors {
		add(soc.Processors[i].Name)
	}

	for i := range soc.Processors {
		for j := i + 1; j < len(soc.Processors); j++ {
			first, second := soc.Processors[i].Name, soc.Processors[j].Name
			// Sets of cores that overlap cannot work at the same time.
			if soc.Concurrent(first, second) == nil {
				add(first, second)
			}
		}
	}
	return out
}

// of returns summary, samples and prediction of a phase, in ns.
func (c *candidate) of(phase string) (stat.Summary, []float64, int64) {
	if phase == "prefill" {
		return c.Prefill, c.prefill, c.PrefillNS
	}
	return c.Decode, c.decode, c.DecodeNS
}
