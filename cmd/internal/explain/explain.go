// Package explain knows the questions that hetc explain answers, and words its answers.
package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/planview"
	"github.com/hetc/hetc/cmd/internal/solving"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/explain"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
	"github.com/spf13/cobra"
)

// Options are the flags of hetc explain: the inputs of the solve that made the plan, for solving again.
type Options struct {
	solving.Inputs
	Working     solving.Working
	Calibration string // file
	MaxMemory   string
	Loads       string   // file
	Only        []string // names of processors
}

// Run answers a question about a plan: args are its file and, optionally, WHAT.
func (o *Options) Run(cmd *cobra.Command, ui *cli.Streams, args []string) error {
	plan, err := plantext.Read(args[0])
	if err != nil {
		return err
	}

	answer := answer{s: ui, ctx: cmd.Context(), p: plan}
	if o.SoC != "" || o.Target != "" {
		name, err := solving.SoCOrTarget(cmd, o.SoC, o.Target)
		if err != nil {
			return err
		}
		if answer.soc, err = bindings.SoCOf(plan, name); err != nil {
			return err
		}
	}

	// Parse the question before reading the inputs, which may take long.
	what := ""
	if len(args) == 2 {
		what = args[1]
	}
	ask, err := parse(plan, what)
	if err != nil {
		return err
	}

	if o.Record != "" || o.Costs != "" || o.Model != "" || o.Workload != "" {
		if answer.input, err = o.open(cmd, ui, plan); err != nil {
			return err
		}
		defer answer.input.Model.Close()

		// From here on solving shows its progress and keeps to the working memory of the flags.
		end, err := o.Working.Begin(ui, answer.input)
		if err != nil {
			return err
		}
		defer end()
	} else if err := alone(cmd); err != nil {
		return err
	}
	return answer.to(ask)
}

// alone refuses flags of solving again where its inputs are missing, as they would change nothing.
func alone(cmd *cobra.Command) error {
	for _, name := range []string{"calibration", "facts", "loads", "max-memory", "only", "progress", "working-memory"} {
		if cmd.Flags().Changed(name) {
			return diag.New(diag.ClassUsage, "%s: --%s is one of the inputs of solve, and the others are missing",
				cmd.CommandPath(), name).
				WithHint("give --soc, --costs (or --record), --model and --workload too, as for hetc solve")
		}
	}
	return nil
}

// open reads the inputs for solving again. The caller closes the model.
func (o *Options) open(c *cobra.Command, ui *cli.Streams, plan *planir.Plan) (*solver.Input, error) {
	input, err := o.Open(c)
	if err != nil {
		return nil, err
	}
	if err := complete(ui, plan, input, o); err != nil {
		return nil, errors.Join(err, input.Model.Close())
	}
	return input, nil
}

// to answers a question.
func (x *answer) to(ask question) error {
	switch {
	case ask.node != "":
		return x.operator(ask.node, ask.rows)
	case ask.what == "limits":
		return x.limits()
	case ask.what == "tiers":
		return x.tiers()

	// Only sizes of prefill are chosen among candidates, so only they have a story of their own.
	case ask.program != "" && !x.p.Decodes(ask.rows):
		return x.bucket(ask.rows)
	case ask.program != "":
		return x.program(ask.program)
	}
	return x.plan()
}

// complete adds the inputs for solving again, and warns where they are not those of the plan.
func complete(ui *cli.Streams, plan *planir.Plan, input *solver.Input, options *Options) error {
	var err error
	if options.Loads != "" {
		if input.Loads, err = workload.ReadLoads(options.Loads); err != nil {
			return err
		}
	}

	if input.Calibration, err = bindings.ReadCalibration(options.Calibration); err != nil {
		return err
	}
	if input.MaxMemory, err = solving.MaxMemory(options.MaxMemory); err != nil {
		return err
	}

	// The plan says the bound it was solved under; where the workload has another one, it came from --max-memory.
	if plan.Memory != nil && options.MaxMemory == "" && int64(input.Workload.Memory) != plan.Memory.Max {
		input.MaxMemory = plan.Memory.Max
	}
	input.Only = options.Only
	if plan.SoC.Target && !input.Targeted() {
		if err := input.ForTarget(); err != nil {
			return err
		}
	}

	// Another model or SoC is an error; other costs or workloads only make the answers differ.
	differ, err := explain.SameInputs(plan, input)
	if err != nil {
		return err
	}

	for _, kind := range differ {
		// Without the calibration no scheme has a known loss, so that nothing comparable can be solved.
		if kind == planir.CalibrationInput && options.Calibration == "" {
			return diag.New(diag.ClassInput, "explain: the plan was solved with a calibration, and none is given").
				WithHint("give it with --calibration")
		}
		ui.Warnf("what was given as %s is not what the plan was solved with: what is solved again differs for that "+
			"reason too", kind)
	}

	return nil
}

// answer is one run of explain.
type answer struct {
	s     *cli.Streams
	ctx   context.Context
	p     *planir.Plan
	soc   *socs.SoC     // nil: no SoC was named
	input *solver.Input // nil: nothing is solved again
}

// stored prints what is missing because nothing was solved again, and how to get it.
func (x *answer) stored(what string) {
	if x.input == nil {
		x.s.Printf("%s: give --soc, --costs (or --record), --model and --workload, as for hetc solve\n", what)
	}
}

// title prints the first line of every answer. It labels all numbers below it.
func (x *answer) title(what string) {
	from := ", predicted"
	if times := x.p.SoC.Times(); times != "" {
		from += " from " + times
	}
	x.s.Printf("%s on %s%s\n", what, x.p.SoC.Name, from)
}

// operator lists the choices of an operator with the time that each would take, cheapest first. Without inputs for
// solving again they are the ones that the plan stores: the best of each strategy.
func (x *answer) operator(node string, rows int) error {
	plan, ui, soc := x.p, x.s, x.soc
	list, err := solver.Explain(plan, node, rows, x.input)
	if err != nil {
		return err
	}

	x.title(fmt.Sprintf("%s@%d", node, rows))
	if x.input == nil {
		ui.Printf("the plan stores these alternatives, the best of each strategy; with --soc, --costs and --model " +
			"every choice is priced again\n")
	}

	var compiledWords []string
	for _, compiled := range planview.CompiledFor(plan, rows) {
		if compiled.Node == node {
			compiledWords = append(compiledWords, planview.CompiledWords([]planir.Compiled{compiled})...)
		}
	}

	for _, line := range compiledWords {
		ui.Printf("- %s\n", line)
	}
	if pipeline := plan.Attention.Pipeline(node, rows); pipeline != nil {
		ui.Printf("- %s; launches %v, turns %v (numbers of shares)\n", pipeline.Text(), pipeline.Launches,
			pipeline.Turns)
	}

	choices := make([]choice, len(list))
	for i, row := range list {
		choices[i] = choice{row, planview.RoofOf(plan, soc, plan.DecisionFor(node, rows), row.Procs, row.NS)}
	}
	x.showChoices(choices)
	return ui.Result(map[string]any{
		"node": node, "rows": rows, "simulated": plan.SoC.Simulated, "stored_only": x.input == nil, "choices": choices,
		"compiled": compiledWords,
	})
}

// showChoices prints a table of choices. Its last column marks the chosen one, and has notes of the solver such as why
// a choice is impossible. Roofs need a SoC.
func (x *answer) showChoices(choices []choice) {
	var table [][]string
	var roofs []*roofline.Roof
	for _, row := range choices {
		roofs = append(roofs, row.Roof)
		mark := ""
		if row.Chosen {
			mark = "chosen"
		}
		if row.Note != "" {
			mark = strings.TrimSpace(mark + " " + row.Note)
		}
		us := "-" // the choice cannot be executed
		if row.NS > 0 {
			us = fmt.Sprintf("%.1f", float64(row.NS)/1e3)
		}
		line := []string{string(row.Strategy), row.Shares, us, cmp.Or(string(row.Source), "-")}
		if x.soc != nil {
			line = append(line, planview.RoofText(row.Roof))
		}
		table = append(table, append(line, mark))
	}

	header := []string{"strategy", "shares", ">us", "source"}
	if x.soc != nil {
		header = append(header, ">roof")
	}
	x.s.Table(append(header, ""), table)
	planview.NoteProbe(x.s, roofs)
}

// choice is one way to execute an operator, with its roof where a SoC was named.
type choice struct {
	solver.Row
	Roof *roofline.Roof `json:"roof,omitempty"`
}

// plan describes the whole plan: sentences first, then the tables.
func (x *answer) plan() error {
	plan, ui := x.p, x.s
	times := explain.TimesOf(plan)
	summary := x.summary(times)
	x.title(plan.Model.Name)
	for _, line := range summary {
		ui.Printf("- %s\n", line)
	}
	x.stored("plans without each of the processors are not stored")
	doc := map[string]any{
		"summary": summary, "programs": times, "predictions": plan.Predictions, "decisions": plan.Decisions,
		"solver": plan.Solver, "proof": solver.ProofOf(plan.Solver), "grounds": solver.GroundsOf(plan),
		"quality": plan.Quality, "memory": plan.Memory, "drafts": plan.Drafts,
		"simulated": plan.SoC.Simulated, "stored_only": x.input == nil,
	}

	if x.input != nil {
		// One solve for each processor that the plan uses, and one for the plan itself.
		list, err := explain.Without(x.ctx, plan, *x.input)
		if err != nil {
			return err
		}

		x.alternatives("solved again", list)
		doc["alternatives"] = list
	}

	ui.Printf("\n")
	planview.ShowPredictions(ui, plan)
	planview.ShowAttention(ui, plan)
	planview.ShowLimits(ui, plan)
	ui.Printf("\n")
	shown := planview.ShowDecisions(ui, plan, x.soc)

	var rows [][]string
	for i := range plan.Solver {
		solve := &plan.Solver[i]
		in := plan.UnitOf(solve)
		rows = append(rows, []string{solve.Problem, solve.Status, measureText(solve.ObjectiveNS, in),
			measureText(solve.BoundNS, in), strconv.Itoa(solve.Choices)})
	}
	ui.Printf("\n")
	ui.Table([]string{"problem", "status", ">objective", ">bound", ">choices"}, rows)
	if x.soc != nil {
		doc["roofs"] = shown
	}
	return ui.Result(doc)
}

// measureText writes an objective or a bound of a problem, which is in one of the units of planir.Solve.
func measureText(value int64, in string) string {
	switch in {
	case "nJ":
		return fmt.Sprintf("%.3f mJ", float64(value)/1e6)
	case "bytes":
		return unit.Bytes(value).String()
	}
	return fmt.Sprintf("%.1f us", float64(value)/1e3)
}

// alternatives prints a table of plans under other conditions, below a title.
func (x *answer) alternatives(title string, list []explain.Alternative) {
	what, symbol, _ := minimised(&list[0])
	x.s.Printf("\n%s, %s:\n", title, what)
	var rows [][]string
	for _, alternative := range list {
		row := []string{alternative.What, "-", "", alternative.Note}
		if alternative.ExpectedNS > 0 {
			_, _, value := minimised(&alternative)
			row[1], row[2] = fmt.Sprintf("%.3f", value), change(alternative.Ratio)
		}
		rows = append(rows, row)
	}
	x.s.Table([]string{"plan", ">expected " + symbol, ">change", ""}, rows)
}

// minimised says what the workload minimises of plans, and how much of it a plan takes, with the symbol of its unit.
func minimised(plan *explain.Alternative) (what, symbol string, value float64) {
	value, measure := plan.Minimised()
	switch measure {
	case problem.Energy:
		return "expected energy of a prompt and its answer, modelled", "mJ", value / 1e6
	case problem.Memory:
		return "memory of a process", "MiB", value / (1 << 20)
	}
	return "expected time of a prompt and its answer", "ms", value / 1e6
}

// program describes how a program of decoding spends its time.
func (x *answer) program(name string) error {
	all := explain.TimesOf(x.p)
	index := slices.IndexFunc(all, func(times explain.ProgramTimes) bool { return times.Program == name })
	if index < 0 {
		return diag.New(diag.ClassUsage, "explain %q: the plan has no such program", name)
	}

	times := &all[index]

	each := "a token"
	if times.Rows > 1 {
		each = fmt.Sprintf("for a token of each of %d sequences", times.Rows)
	}
	lines := []string{fmt.Sprintf("It takes %s %s (%.0f tokens/s; between %s and %s)%s.", ms(times.PlanNS), each,
		tokensPerSecond(times), ms(times.LowNS), ms(times.HighNS), against(times))}
	lines = append(lines, x.where([]explain.ProgramTimes{*times})...)
	lines = append(lines, "What bounds it: "+x.bounds(times)+".")
	if times.Rows == 1 {
		lines = append(lines, "What would help: weights of fewer bits (schemes or quality.max_kl in the "+
			"workload), decoding several sequences together (batches), or faster memory.")
	}

	x.title(name)
	x.list(lines)
	x.parts(times)
	return x.s.Result(map[string]any{"program": times, "summary": lines, "simulated": x.p.SoC.Simulated})
}

// list prints sentences, one a line.
func (x *answer) list(lines []string) {
	for _, line := range lines {
		x.s.Printf("- %s\n", line)
	}
}

// tokensPerSecond returns the rate of a program, one token a row.
func tokensPerSecond(times *explain.ProgramTimes) float64 {
	return float64(times.Rows) * 1e9 / float64(max(1, times.PlanNS))
}

// parts prints tables of the working time of each lane, and of the slowest operators.
func (x *answer) parts(times *explain.ProgramTimes) {
	var lanes [][]string
	for _, busy := range times.Busy {
		lanes = append(lanes, []string{busy.Proc, ms(busy.NS), shareText(busy.NS, times.PlanNS)})
	}
	x.s.Printf("\n")
	x.s.Table([]string{"processor", ">works", ">of the time"}, lanes)

	var operators [][]string
	for _, slow := range times.Slowest {
		var procs []string
		if decision := x.p.DecisionFor(slow.Node, times.Rows); decision != nil {
			for _, share := range decision.Shares {
				procs = append(procs, share.Proc)
			}
		}

		operators = append(operators, []string{slow.Node, ms(slow.NS), shareText(slow.NS, times.PlanNS),
			strings.Join(procs, " + ")})
	}

	x.s.Printf("\n")
	x.s.Table([]string{"slowest operators", ">all layers", ">of the time", "on"}, operators)
}

// bucket explains why a size of prefill exists.
func (x *answer) bucket(rows int) error {
	effect, err := explain.Bucket(x.ctx, x.p, rows, x.input)
	if err != nil {
		return err
	}

	var times explain.ProgramTimes
	largest := 0
	for _, program := range explain.TimesOf(x.p) {
		if program.Phase != "prefill" {
			continue
		}
		largest = max(largest, program.Rows)
		if program.Rows == rows {
			times = program
		}
	}

	lines := []string{
		bucketPrompts(effect, rows, rows == largest),
		fmt.Sprintf("A full one takes %s (%.0f tokens/s)%s.", ms(times.PlanNS), tokensPerSecond(&times),
			against(&times)),
	}
	lines = append(lines, x.where([]explain.ProgramTimes{times})...)
	lines = append(lines, "What bounds it: "+x.bounds(&times)+".")
	lines = append(lines, planview.CompiledWords(planview.CompiledFor(x.p, rows))...)
	if x.input != nil {
		lines = append(lines, fmt.Sprintf("By the workload a prompt makes %.2f calls of it, %.0f %% of the time of "+
			"prefill.", effect.Calls, 100*effect.Time))
	}

	x.title(fmt.Sprintf("prefill@%d", rows))
	x.list(lines)

	// The plan does not store the times of other buckets: they are solved again, which needs all inputs.
	x.stored("what prefill would cost without it, or with one more, is not stored in the plan")
	if len(effect.Sets) > 0 {
		x.alternatives("solved again for the same prompts", effect.Sets)
	}
	x.parts(&times)
	return x.s.Result(map[string]any{
		"bucket": effect, "program": times, "summary": lines, "simulated": x.p.SoC.Simulated,
		"imported": x.p.SoC.Imported, "stored_only": x.input == nil,
	})
}

// bucketPrompts says which prompts run in a size of prefill. Only the largest one is repeated for longer prompts; the
// others take the rest of them.
func bucketPrompts(effect *explain.BucketEffect, rows int, largest bool) string {
	if effect.From == effect.To {
		return fmt.Sprintf("Prompts of %d tokens run in it.", rows)
	}
	text := fmt.Sprintf("Prompts of %d to %d tokens run in it, padded to %d where a processor needs that", effect.From,
		effect.To, rows)
	if largest {
		return text + fmt.Sprintf("; longer ones are cut into pieces of %d.", rows)
	}
	return text + fmt.Sprintf(", and so do the last %d to %d tokens of longer ones.", effect.From, effect.To)
}
