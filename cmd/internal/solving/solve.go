package solving

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/planview"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/explain"
	"github.com/hetc/hetc/solver/workload"
)

// Options are the flags of hetc solve.
type Options struct {
	Inputs
	Engine           EngineFlags
	Working          Working
	Output           string            // plan to write
	Calibration      string            // file
	Loads            string            // file
	MaxMemory        string            // bound of a process that executes the plan
	Pareto           string            // list plans instead of writing one
	Only, Strategies []string          // restrictions to compare with
	Tiers            []string          // rule for capacity tiers, to compare with
	Ratio            map[string]string // likewise, share of columns by processor
}

// Solve decides, writes the plan unless the same bytes are there, and tells what was decided and how well it is proved.
func Solve(cmd *cobra.Command, ui *cli.Streams, options *Options) error {
	options.Working.Start()
	if err := options.checkOutput(cmd); err != nil {
		return err
	}
	options.Warn = ui
	input, err := options.open(cmd)
	if err != nil {
		return err
	}
	defer input.Model.Close()
	end, err := options.Working.Begin(ui, input)
	if err != nil {
		return err
	}
	defer end()
	if options.Pareto != "" {
		return showPareto(cmd.Context(), ui, *input)
	}
	result, log, err := options.decide(cmd.Context(), ui, input)
	if err != nil {
		return err
	}
	// What follows tells results: the line of progress must be gone by then. end may be called again.
	end()
	log.Choose(result)
	if err := log.Written(); err != nil {
		return err
	}
	for _, warning := range result.Warnings {
		ui.Warnf("%s", warning)
	}
	digest, unchanged, err := writePlan(ui, options.Output, result.Plan)
	if err != nil {
		return err
	}
	doc := options.tell(ui, input, result, log)
	doc["file"], doc["digest"], doc["unchanged"] = options.Output, digest, unchanged
	return ui.Result(doc)
}

// checkOutput refuses flags that name no plan to write, or one beside --pareto, which writes none.
func (o *Options) checkOutput(c *cobra.Command) error {
	if o.Pareto == "" {
		if err := cli.Required(c, "output"); err != nil {
			return err
		}
		return wholefile.Writable(o.Output)
	}
	if o.Pareto != "energy,latency" && o.Pareto != "latency,energy" || o.Output != "" {
		return diag.New(diag.ClassUsage,
			"solve: --pareto %q lists plans and writes none, want --pareto energy,latency and no -o", o.Pareto).
			WithHint("the list says which limit in the workload gives which plan")
	}
	return nil
}

// open reads every input. The caller closes the model.
func (o *Options) open(c *cobra.Command) (*solver.Input, error) {
	input, err := o.Open(c)
	if err != nil {
		return nil, err
	}
	if input.Calibration, err = bindings.ReadCalibration(o.Calibration); err == nil && o.Loads != "" {
		input.Loads, err = workload.ReadLoads(o.Loads)
	}
	if err == nil {
		input.MaxMemory, err = MaxMemory(o.MaxMemory)
	}
	if err != nil {
		return nil, errors.Join(err, input.Model.Close())
	}
	input.Only = o.Only
	return input, nil
}

// decide solves with the engine that the flags name.
func (o *Options) decide(ctx context.Context, s *cli.Streams, input *solver.Input) (*solver.Result, *Log, error) {
	for _, name := range o.Strategies {
		input.Strategies = append(input.Strategies, planir.Strategy(name))
	}
	var err error
	if input.Ratio, err = parts(o.Ratio); err != nil {
		return nil, nil, err
	}
	if input.TierRule, err = solver.ParseTierRule(o.Tiers); err != nil {
		return nil, nil, err
	}
	engine, log, err := o.Engine.Open(s, input.WorkingMemory)
	if err != nil {
		return nil, nil, err
	}
	input.Engine = engine
	result, err := solver.Solve(ctx, *input)
	if ctx.Err() != nil && err != nil {
		return nil, nil, errors.Join(o.Working.interrupted(err), log.discard())
	}
	if err != nil {
		// The models of a solve that failed are what another solver would be asked about, so they are kept.
		return nil, nil, errors.Join(explain.Diagnose(ctx, *input, err), log.Written())
	}
	return result, log, nil
}

// writePlan writes a plan unless the file holds the same bytes.
func writePlan(ui *cli.Streams, path string, plan *planir.Plan) (digest string, unchanged bool, err error) {
	text, err := plantext.Encode(plan)
	if err != nil {
		return "", false, err
	}
	if digest, err = planir.Digest(plan); err != nil {
		return "", false, err
	}
	if old, err := wholefile.Read(path, int64(len(text))); err == nil && bytes.Equal(old, text) {
		ui.Printf("%s: unchanged (same inputs)\n", path)
		return digest, true, nil
	}
	if err := wholefile.Write(path, text); err != nil {
		return "", false, err
	}
	cli.Wrote(ui, path, "plan %.12s for %s on %s", digest, plan.Model.Name, plan.SoC.Name)
	return digest, false, nil
}

// tell shows the plan and what solving took, and returns the same for --json.
func (o *Options) tell(ui *cli.Streams, input *solver.Input, result *solver.Result, log *Log) map[string]any {
	plan := result.Plan
	planview.ShowTarget(ui, plan)
	planview.ShowPredictions(ui, plan)
	planview.ShowAttention(ui, plan)
	planview.ShowSizes(ui, plan)
	// A bucket that is worth nothing may be left out, which a user who listed it must learn.
	dropped := planview.LeftOut(input.Workload.Buckets, plan)
	if len(dropped) > 0 {
		ui.Printf("buckets left out of the workload's list: %v; the plan serves its prompts faster without them, "+
			"or within its bound of memory\n", dropped)
	}
	planview.ShowLimits(ui, plan)
	planview.ShowTiers(ui, plan)
	for _, reason := range result.TiersLeft {
		ui.Printf("capacity tiers not taken: %s\n", reason)
	}
	planview.ShowCompiled(ui, plan)
	log.Show()
	log.ShowModels()
	proof := solver.ProofOf(plan.Solver)
	ui.Printf("%s\n", proof)
	took := o.Working.Show(ui, result)
	grounds := solver.GroundsOf(plan)
	ui.Printf("%s\n", grounds)
	return map[string]any{
		"proof": proof, "grounds": grounds, "took": took, "simulated": plan.SoC.Simulated,
		"imported": plan.SoC.Imported,
		"quality":  plan.Quality, "memory": plan.Memory, "buckets_left_out": dropped,
		"predictions": plan.Predictions, "compiled": plan.Compiled, "solver": plan.Solver, "solves": log.Solves,
		"expected_ns": result.ExpectedNS, "expected_nj_modelled": result.ExpectedNJ,
	}
}

// paretoSteps is how many limits of energy are tried between the fastest plan and the one of least energy.
const paretoSteps = 8

// showPareto lists plans that none beats in both time and energy.
func showPareto(ctx context.Context, ui *cli.Streams, in solver.Input) error {
	list, err := explain.Pareto(ctx, in, paretoSteps)
	if err != nil {
		return err
	}
	simulated := ""
	if in.SoC.Simulated() {
		simulated = "; times are simulated"
	}
	ui.Printf("a prompt and its answer: expected time, and energy modelled from power_w of %s%s\n", in.SoC.Name,
		simulated)
	var rows [][]string
	for _, point := range list {
		limit, proof := "none", "proved"
		if point.LimitMJ > 0 {
			limit = fmt.Sprintf("limits: {energy_mj: %.4f}", point.LimitMJ)
		}
		if !point.Proved {
			proof = fmt.Sprintf("gap %.2f %%", 100*point.Gap)
		}
		rows = append(rows, []string{fmt.Sprintf("%.3f", point.ExpectedMS), fmt.Sprintf("%.3f", point.EnergyMJ), limit,
			proof})
	}
	ui.Table([]string{">expected ms", ">energy mJ, modelled", "workload that gives it", ""}, rows)
	return ui.Result(map[string]any{"points": list, "energy": "modelled", "simulated": in.SoC.Simulated()})
}
