// Package explain knows the questions that hetc explain answers, and words its answers.
package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/planview"
	"github.com/hetc/hetc/cmd/internal/solving"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/explain"
	"github.com/hetc/hetc/solver/workload"
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

// Run answers the question that args ask: a plan file, and optionally what is asked of it.
func (o *Options) Run(cmd *cobra.Command, ui *cli.Streams, args []string) error {
	plan, err := plantext.Read(args[0])
	if err != nil {
		return err
	}
	answer := answer{s: ui, ctx: cmd.Context(), p: plan, file: args[0]}
	if name := cmp.Or(o.Target, o.SoC); name != "" {
		if answer.soc, err = bindings.SoCOf(plan, name); err != nil {
			return err
		}
	}
	what := ""
	if len(args) == 2 {
		what = args[1]
	}
	// The question is understood before inputs are read, which may take long.
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
	}
	if o.Loads != "" && answer.input == nil {
		return diag.New(diag.ClassUsage, "explain: --loads is one of the inputs of solve, and the others are missing").
			WithHint("give --soc, --costs (or --record), --model and --workload too, as for hetc solve")
	}
	return answer.to(ask)
}

// open reads the inputs for solving again. The caller closes the model.
func (o *Options) open(c *cobra.Command, ui *cli.Streams, plan *planir.Plan) (*solver.Input, error) {
	input, err := o.Open(c)
	if err != nil {
		return nil, err
	}
	// An error from here on must close the model that Open has opened.
	if o.Loads != "" {
		if input.Loads, err = workload.ReadLoads(o.Loads); err != nil {
			return nil, errors.Join(err, input.Model.Close())
		}
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

// question is what explain is asked.
type question struct {
	what, program, node string
	rows                int
}

// parse reads WHAT. A word that the plan has nothing of is an error of class ClassUsage that names the nearest.
func parse(plan *planir.Plan, what string) (question, error) {
	if what == "" || what == "limits" || what == "tiers" {
		return question{what: what}, nil
	}
	node, at, _ := strings.Cut(what, "@")
	rows := 1
	if at != "" {
		var err error
		if rows, err = strconv.Atoi(at); err != nil || rows < 1 {
			return question{}, diag.New(diag.ClassUsage, "explain %q: %q is not a number of rows", what, at).
				WithHint("write NODE@ROWS, such as layers.ffn_down@256")
		}
	}
	var programs []string
	for _, program := range plan.Program.Programs {
		// "@256" and "prefill@256" mean the program of that many rows, whatever its name.
		byRows := node == "" || node == program.Phase && at != ""
		if program.Name == what || byRows && program.Rows == rows {
			return question{program: program.Name, rows: program.Rows}, nil
		}
		programs = append(programs, program.Name)
	}
	if len(programs) == 0 {
		return question{}, diag.New(diag.ClassInput, "explain %q: the plan has no programs", what).
			WithHint("make the plan again: hetc solve")
	}
	if node == "" || node == "prefill" || node == "decode" {
		return question{}, diag.New(diag.ClassUsage, "explain %q: the plan has no such program", what).
			WithHint("it has %s", strings.Join(programs, ", "))
	}
	nodes := map[string]bool{}
	for _, decision := range plan.Decisions {
		if decision.Node == node {
			return question{node: node, rows: rows}, nil // the number of rows is looked at with the decisions
		}
		nodes[decision.Node] = true
	}
	return question{}, diag.New(diag.ClassUsage, "explain %q: the plan has no such operator, program or section", what).
		WithHint("%s", nearest(what, node, programs, slices.Sorted(maps.Keys(nodes))))
}

// nearest returns what a user may have meant by a word, or by its part before the @; else it lists what there is.
func nearest(word, node string, programs, nodes []string) string {
	known := slices.Concat(programs, []string{"limits", "tiers"}, nodes)
	return cmp.Or(diag.DidYouMean(word, known), diag.DidYouMean(node, known),
		"WHAT is limits, tiers, one of "+strings.Join(programs, ", ")+", or one of "+strings.Join(nodes, ", ")+
			" with @ROWS")
}

// complete adds the inputs for solving again, and tells where they are not those of the plan.
func complete(ui *cli.Streams, plan *planir.Plan, input *solver.Input, options *Options) error {
	var err error
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

// answer is one run of explain. soc and input may be nil.
type answer struct {
	// p is the plan, file its path; soc is nil where no SoC was named, and input where nothing is solved again.
	s     *cli.Streams
	ctx   context.Context
	p     *planir.Plan
	soc   *socs.SoC
	input *solver.Input
	file  string
}

// stored tells that nothing was solved again.
func (x *answer) stored(what string) {
	if x.input == nil {
		x.s.Printf("%s: give --soc, --costs (or --record), --model and --workload, as for hetc solve\n", what)
	}
}

// title is the first line of every answer.
func (x *answer) title(what string) {
	from := ""
	if times := x.p.SoC.Times(); times != "" {
		from = ", from " + times
	}
	x.s.Printf("%s on %s%s\n", what, x.p.SoC.Name, from)
}

// operator lists every strategy of an operator with what it would have cost, cheapest first.
func (x *answer) operator(node string, rows int) error {
	plan, ui, soc := x.p, x.s, x.soc
	// Without inputs the list is what the plan stores: the best choice of each strategy.
	list, err := solver.Explain(plan, node, rows, x.input)
	if err != nil {
		return err
	}
	x.title(fmt.Sprintf("%s@%d", node, rows))
	if x.input == nil {
		ui.Printf("the plan stores these alternatives, the best of each strategy; with --soc, --costs and --model every " +
			"choice is priced again\n")
	}
	var said []string
	for _, compiled := range planview.CompiledFor(plan, rows) {
		if compiled.Node == node {
			said = append(said, planview.CompiledWords([]planir.Compiled{compiled})...)
		}
	}
	for _, line := range said {
		ui.Printf("- %s\n", line)
	}
	if pipeline := plan.Attention.Pipeline(node, rows); pipeline != nil {
		ui.Printf("- %s; launches %v, turns %v (numbers of shares)\n", pipeline.Text(), pipeline.Launches,
			pipeline.Turns)
	}
	var table [][]string
	choices := make([]choice, len(list))
	for i, row := range list {
		choices[i] = choice{row, planview.RoofOf(plan, soc, plan.DecisionFor(node, rows), row.Procs, row.NS)}
		// The last column says what was chosen, and notes of the solver such as why a choice is impossible.
		mark := ""
		if row.Chosen {
			mark = "chosen"
		}
		if row.Note != "" {
			mark = strings.TrimSpace(mark + " " + row.Note)
		}
		us := "-" // it cannot be executed so
		if row.NS > 0 {
			us = fmt.Sprintf("%.1f", float64(row.NS)/1e3)
		}
		line := []string{string(row.Strategy), row.Shares, us, cmp.Or(string(row.Source), "-")}
		if soc != nil {
			line = append(line, planview.RoofText(choices[i].Roof))
		}
		table = append(table, append(line, mark))
	}
	header := []string{"strategy", "shares", ">us", "source"}
	if soc != nil {
		header = append(header, ">roof")
	}
	ui.Table(append(header, ""), table)
	return ui.Result(map[string]any{
		"node": node, "rows": rows, "simulated": plan.SoC.Simulated, "stored_only": x.input == nil, "choices": choices,
		"compiled": said,
	})
}

// choice is a row of explain.
type choice struct {
	solver.Row
	Roof *roofline.Roof `json:"roof,omitempty"`
}

// plan tells of the whole plan: sentences first, then the tables.
func (x *answer) plan() error {
	plan, ui := x.p, x.s
	times := explain.TimesOf(plan)
	summary := x.summary(times)
	x.title(plan.Model.Name)
	for _, line := range summary {
		ui.Printf("- %s\n", line)
	}
	x.stored("plans without each of the processors are not stored")
	doc := map[string]any{"summary": summary, "programs": times, "predictions": plan.Predictions,
		"decisions": plan.Decisions, "solver": plan.Solver, "proof": solver.ProofOf(plan.Solver),
		"grounds": solver.GroundsOf(plan),
		"quality": plan.Quality, "memory": plan.Memory, "drafts": plan.Drafts, "simulated": plan.SoC.Simulated,
		"stored_only": x.input == nil}
	if x.input != nil {
		// A solve for each processor that the plan uses, and one for the plan itself.
		list, err := explain.Without(x.ctx, plan, *x.input)
		if err != nil {
			return err
		}
		ui.Printf("\nsolved again, expected time of a prompt and its answer:\n")
		x.alternatives(list)
		doc["alternatives"] = list
	}
	ui.Printf("\n")
	planview.ShowPredictions(ui, plan)
	planview.ShowAttention(ui, plan)
	planview.ShowLimits(ui, plan)
	ui.Printf("\n")
	shown := planview.ShowDecisions(ui, plan, x.soc)
	var rows [][]string
	for _, solve := range plan.Solver {
		rows = append(rows, []string{solve.Problem, solve.Status, fmt.Sprintf("%.1f", float64(solve.ObjectiveNS)/1e3),
			fmt.Sprintf("%.1f", float64(solve.BoundNS)/1e3), strconv.Itoa(solve.Choices)})
	}
	ui.Printf("\n")
	ui.Table([]string{"problem", "status", ">objective us", ">bound us", ">choices"}, rows)
	if x.soc != nil {
		doc["roofs"] = shown
	}
	return ui.Result(doc)
}

// summary returns the plan in sentences.
func (x *answer) summary(times []explain.ProgramTimes) []string {
	if len(times) == 0 {
		return []string{"the plan has no programs"}
	}
	var out []string
	if x.p.SoC.Target {
		out = append(out, "It is planned for the device: only processors with target data take part, with the "+
			"operators and schemes they execute there.")
	}
	out = append(out, x.where(times)...)
	decode, prefill := timed(times)
	if decode != nil {
		out = append(out, fmt.Sprintf("An answer takes %s a token (%.0f tokens/s)%s.",
			ms(decode.PlanNS), 1e9/float64(decode.PlanNS), against(decode)))
	}
	var large *explain.ProgramTimes
	if len(prefill) > 0 {
		// The largest bucket stands for prompts: long ones consist of it.
		large = slices.MaxFunc(prefill, func(a, b *explain.ProgramTimes) int { return a.Rows - b.Rows })
		out = append(out, fmt.Sprintf("A prompt of %d tokens takes %s (%.0f tokens/s)%s.",
			large.Rows, ms(large.PlanNS), float64(large.Rows)*1e9/float64(large.PlanNS), against(large)))
		out = append(out, gains(large, prefill)...)
	}
	if decode != nil {
		out = append(out, "What bounds an answer: "+x.bounds(decode)+".")
	}
	if large != nil {
		out = append(out, "What bounds a prompt: "+x.bounds(large)+".")
	}
	out = append(out, x.forms()...)
	out = append(out, waits(x.p)...)
	out = append(out, planview.CompiledWords(x.p.Compiled)...)
	if proof := solver.ProofOf(x.p.Solver).String(); proof != "" {
		out = append(out, proof)
	}
	if grounds := solver.GroundsOf(x.p).String(); grounds != "" {
		out = append(out, grounds)
	}
	return append(out, provenance(&x.p.SoC))
}

// timed returns the programs that have a predicted time: of one token, nil where there is none, and of prompts.
func timed(times []explain.ProgramTimes) (decode *explain.ProgramTimes, prefill []*explain.ProgramTimes) {
	for i := range times {
		program := &times[i]
		switch {
		case program.PlanNS <= 0:
		case program.Phase == "decode" && program.Rows == 1:
			decode = program
		case program.Phase == "prefill":
			prefill = append(prefill, program)
		}
	}
	return decode, prefill
}

// gains says between what the gain over the best single processor is, where there are several sizes. The largest
// one counts where others gain the same.
func gains(large *explain.ProgramTimes, prefill []*explain.ProgramTimes) []string {
	least, most := large, large
	for _, program := range prefill {
		if program.Gain() < least.Gain() {
			least = program
		}
		if program.Gain() > most.Gain() {
			most = program
		}
	}
	// A gain of 0 means that no single processor executes the program.
	if least.Gain() <= 0 || len(prefill) < 2 {
		return nil
	}
	return []string{fmt.Sprintf("Over prompts of all sizes it is %.2f (%s) to %.2f times (%s) as fast as the best "+
		"single processor for that size.",
		least.Gain(), least.Program, most.Gain(), most.Program)}
}

// provenance says whose times a plan rests on.
func provenance(soc *planir.SoCRef) string {
	switch {
	case soc.Simulated && soc.Imported:
		return "Times are simulated, or were measured elsewhere (imported): the SoC is a description, not a machine " +
			"that was measured."
	case soc.Simulated:
		return "All times are simulated: the SoC is a description, not a machine that was measured."
	case soc.Imported:
		return "Times were measured elsewhere (imported): hetc did not measure them, and cannot."
	}
	return "All times are predictions from measurements of this machine; hetc bench processors measures the plan " +
		"itself."
}

// forms tells which processors are given matrix products in another form than the default, or by named kernels.
func (x *answer) forms() (out []string) {
	// The default form is not told: readers expect it.
	words := map[op.Form]string{op.Swapped: "weight first", op.BatchMatMul: "as a batch matmul",
		op.Conv: "as a 1x1 convolution"}
	for i := range x.p.Procs {
		name, products, count := x.p.Procs[i].Name, 0, map[op.Form]int{}
		for _, decision := range x.p.Decisions {
			for _, sh := range decision.Shares {
				if sh.Proc == name && decision.Scheme != "" {
					products++
					count[sh.Form.Class()]++
				}
			}
		}
		var parts []string
		for _, form := range op.FormClasses {
			if count[form] > 0 {
				parts = append(parts, fmt.Sprintf("%d of %d matrix products %s", count[form], products, words[form]))
			}
		}
		for _, form := range slices.Sorted(maps.Keys(count)) {
			if variant := form.Kernel(); variant != "" {
				parts = append(parts, fmt.Sprintf("%d of %d matrix products by its kernels %q", count[form], products,
					variant))
			}
		}
		if parts != nil {
			out = append(out, fmt.Sprintf("%s is given %s: the arithmetic is the same, and it is faster at it.", name,
				cli.Enumerate(parts)))
		}
	}
	return out
}

// waits tells how lanes notice the end of calls, where the SoC file names another way than the usual one.
func waits(plan *planir.Plan) (out []string) {
	words := map[capability.Waiting]string{capability.WaitPoll: "ask again and again whether it has ended",
		capability.WaitEvent: "are woken by its driver"}
	for i := range plan.Procs {
		proc := &plan.Procs[i]
		if word := words[proc.Wait]; word != "" {
			out = append(out, fmt.Sprintf("Lanes that wait for a call of %s %s (wait: %s in the SoC file, which hetc probe "+
				"measures).", proc.Name, word, proc.Wait))
		}
	}
	return out
}

// where tells which processors do what, of programs that do alike together.
func (x *answer) where(times []explain.ProgramTimes) []string {
	type group struct {
		text     string
		programs []string
	}
	var groups []group
	for i := range times {
		st := &times[i]
		var total int64
		for _, busy := range st.Busy {
			total += busy.NS
		}
		var main []explain.Busy
		for _, busy := range st.Busy {
			// What takes less than 2 % of the work is not worth naming, but keeps "everything" from being said.
			if float64(busy.NS) >= 0.02*float64(total) {
				main = append(main, busy)
			}
		}
		var names []string
		for _, busy := range main {
			names = append(names, busy.Proc)
		}
		slices.Sort(names)
		text := cli.Enumerate(names)
		switch {
		case len(names) == 1:
			text += " computes everything"
			if len(st.Busy) > 1 {
				text = cli.Enumerate(names) + " computes nearly everything"
			}
		// Most of the time of products is that of products with several shares.
		case st.Divided > 0.5:
			text += " divide the matrix products among them and compute their parts at the same time"
		case st.Divided > 0:
			text += " share the operators, each executed by one of them, and divide some matrix products"
		default:
			text += " share the operators, each executed by one of them"
		}
		name := st.Program
		if k := slices.IndexFunc(groups, func(g group) bool { return g.text == text }); k >= 0 {
			groups[k].programs = append(groups[k].programs, name)
			continue
		}
		groups = append(groups, group{text, []string{name}})
	}
	var out []string
	for _, group := range groups {
		who := cli.Enumerate(spoken(group.programs))
		if len(group.programs) == len(times) && len(times) > 1 {
			who = "answers and prompts of every size"
		}
		out = append(out, fmt.Sprintf("For %s: %s.", who, group.text))
	}
	return out
}

// bounds tells what takes the time of a program.
func (x *answer) bounds(st *explain.ProgramTimes) string {
	total := st.ProductsNS + st.AttentionNS + st.OtherNS + st.HandoverNS
	parts := []string{shareText(st.ProductsNS, total) + " of the time is matrix products"}
	for _, part := range []struct {
		ns   int64
		what string
	}{{st.AttentionNS, "attention"}, {st.HandoverNS, "handing over between processors"}, {st.OtherNS, "the rest"}} {
		// Parts below half a percent are left out.
		if 200*part.ns >= total {
			parts = append(parts, shareText(part.ns, total)+" "+part.what)
		}
	}
	text := cli.Enumerate(parts)
	if st.ProductsNS <= 0 {
		return text
	}
	var procs []string
	for _, busy := range st.Busy {
		// Bandwidth is compared for processors that work at least a tenth as long as the busiest.
		if busy.NS*10 > st.Busy[0].NS {
			procs = append(procs, busy.Proc)
		}
	}
	// Bytes per nanosecond are GB/s, as operations per nanosecond below are Gop/s.
	rate := float64(st.WeightBytes) / float64(st.ProductsNS)
	switch {
	case st.Rows == 1 || st.Phase == "decode":
		text = fmt.Sprintf("every token reads %v of weights, at %.1f GB/s while it does", unit.Bytes(st.WeightBytes),
			rate)
		if x.soc != nil {
			if most, ok := x.soc.JointGBps(procs...); ok {
				text += " (" + besideProbe(rate, most, cli.Enumerate(procs)) + ")"
			}
		}
		text += ": " + cli.Enumerate(parts)
	default:
		text = fmt.Sprintf("arithmetic, %.0f Gop/s in matrix products: %s", float64(st.Flops)/float64(st.ProductsNS), text)
	}
	return text
}

// alternatives is a table of plans under other conditions.
func (x *answer) alternatives(list []explain.Alternative) {
	var rows [][]string
	for _, alternative := range list {
		row := []string{alternative.What, "-", "", alternative.Note}
		if alternative.ExpectedNS > 0 {
			row[1] = fmt.Sprintf("%.3f", alternative.ExpectedNS/1e6)
			row[2] = change(alternative.Ratio)
		}
		rows = append(rows, row)
	}
	x.s.Table([]string{"plan", ">expected ms", ">change", ""}, rows)
}

// program tells where the time of one goes.
func (x *answer) program(name string) error {
	ui := x.s
	for _, st := range explain.TimesOf(x.p) {
		if st.Program != name {
			continue
		}
		x.title(name)
		lines := []string{}
		unitOf := "a token"
		if st.Rows > 1 {
			unitOf = fmt.Sprintf("for a token of each of %d sequences", st.Rows)
		}
		lines = append(lines, fmt.Sprintf("It takes %s %s (%.0f tokens/s; between %s and %s)%s.", ms(st.PlanNS), unitOf,
			float64(st.Rows)*1e9/float64(max(1, st.PlanNS)), ms(st.LowNS), ms(st.HighNS), against(&st)))
		lines = append(lines, x.where([]explain.ProgramTimes{st})...)
		lines = append(lines, "What bounds it: "+x.bounds(&st)+".")
		if st.Rows == 1 {
			lines = append(lines, "What would help: weights of fewer bits (schemes or quality.max_kl in the "+
				"workload), decoding several sequences together (batches), or faster memory.")
		}
		for _, l := range lines {
			ui.Printf("- %s\n", l)
		}
		x.parts(&st)
		return ui.Result(map[string]any{"program": st, "summary": lines, "simulated": x.p.SoC.Simulated})
	}
	return diag.New(diag.ClassUsage, "explain %q: the plan has no such program", name)
}

// parts are tables of how long each lane works, and of the slowest operators.
func (x *answer) parts(st *explain.ProgramTimes) {
	var rows [][]string
	for _, busy := range st.Busy {
		rows = append(rows, []string{busy.Proc, ms(busy.NS), shareText(busy.NS, st.PlanNS)})
	}
	x.s.Printf("\n")
	x.s.Table([]string{"processor", ">works", ">of the time"}, rows)
	rows = nil
	for _, time := range st.Slowest {
		var shares []string
		if decision := x.p.DecisionFor(time.Node, st.Rows); decision != nil {
			for _, sh := range decision.Shares {
				shares = append(shares, sh.Proc)
			}
		}
		rows = append(rows, []string{time.Node, ms(time.NS), shareText(time.NS, st.PlanNS),
			strings.Join(shares, " + ")})
	}
	x.s.Printf("\n")
	x.s.Table([]string{"slowest operators", ">all layers", ">of the time", "on"}, rows)
}

// bucket tells why a size of prefill exists.
func (x *answer) bucket(rows int) error {
	effect, err := explain.Bucket(x.ctx, x.p, rows, x.input)
	if err != nil {
		return err
	}
	ui, plan := x.s, x.p
	x.title(fmt.Sprintf("prefill@%d", rows))
	var st explain.ProgramTimes
	largest := 0
	// The largest bucket has to be known to say what becomes of longer prompts.
	for _, program := range explain.TimesOf(x.p) {
		if program.Phase == "prefill" {
			largest = max(largest, program.Rows)
			if program.Rows == rows {
				st = program
			}
		}
	}
	var lines []string
	switch {
	case effect.From == effect.To:
		lines = append(lines, fmt.Sprintf("Prompts of %d tokens run in it.", rows))
	// Only the largest bucket is repeated for long prompts; the others take what is left of them.
	case rows == largest:
		lines = append(lines, fmt.Sprintf("Prompts of %d to %d tokens run in it, padded to %d where a processor "+
			"needs that; longer ones are cut into pieces of %d.", effect.From, effect.To, rows, rows))
	default:
		lines = append(lines, fmt.Sprintf("Prompts of %d to %d tokens run in it, padded to %d where a processor "+
			"needs that, and so do the last %d to %d tokens of longer ones.", effect.From, effect.To, rows, effect.From,
			effect.To))
	}
	lines = append(lines, fmt.Sprintf("A full one takes %s (%.0f tokens/s)%s.", ms(st.PlanNS),
		float64(rows)*1e9/float64(max(1, st.PlanNS)), against(&st)))
	lines = append(lines, x.where([]explain.ProgramTimes{st})...)
	lines = append(lines, "What bounds it: "+x.bounds(&st)+".")
	lines = append(lines, planview.CompiledWords(planview.CompiledFor(plan, rows))...)
	if x.input != nil {
		lines = append(lines, fmt.Sprintf("By the workload a prompt makes %.2f calls of it, %.0f %% of the time of "+
			"prefill.", effect.Calls, 100*effect.Time))
	}
	for _, l := range lines {
		ui.Printf("- %s\n", l)
	}
	// The plan alone does not hold what other buckets would cost: that is solved again, which needs all inputs.
	x.stored("what prefill would cost without it, or with one more, is not stored in the plan")
	if len(effect.Sets) > 0 {
		ui.Printf("\nsolved again for the same prompts, expected time of a prompt and its answer:\n")
		x.alternatives(effect.Sets)
	}
	x.parts(&st)
	return ui.Result(map[string]any{
		"bucket": effect, "program": st, "summary": lines, "simulated": x.p.SoC.Simulated, "imported": x.p.SoC.Imported,
		"stored_only": x.input == nil,
	})
}

// limits tells which limits bind, and what relaxing each would buy.
func (x *answer) limits() error {
	ui, plan := x.s, x.p
	x.title("limits of the plan")
	// Without inputs the plan tells limits and what it takes of them, not which of them bind.
	if x.input == nil {
		planview.ShowLimits(ui, plan)
		var rows [][]string
		for i := range plan.Procs {
			if g := plan.Procs[i].GraphBytes; g > 0 {
				rows = append(rows, []string{plan.Procs[i].Name + ".graph_bytes", unit.Bytes(g).String()})
			}
		}
		if rows != nil {
			ui.Table([]string{"limit", ">value"}, rows)
		}
		x.stored("which of them bind, and what relaxing them would gain, is found by solving again")
		return ui.Result(map[string]any{"stored_only": true, "memory": plan.Memory, "quality": plan.Quality,
			"simulated": plan.SoC.Simulated})
	}
	list, expected, err := explain.LimitsOf(x.ctx, *x.input)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, effect := range list {
		row := []string{effect.Key, effect.Value, effect.Used, "no", "", "", effect.Note}
		if effect.Binds {
			row[3] = "yes"
			if effect.Step != nil {
				row[4] = effect.Step.What + ": " + change(effect.Step.Ratio)
			}
			if effect.Free != nil {
				row[5] = change(effect.Free.Ratio)
			}
		}
		rows = append(rows, row)
	}
	ui.Printf("expected time of a prompt and its answer: %.3f ms; changes are of that\n", expected/1e6)
	ui.Table([]string{"limit", "value", "the plan takes", "binds", "the next step buys", ">without it", ""}, rows)
	binding := 0
	for _, effect := range list {
		if effect.Binds {
			binding++
		}
	}
	if binding == 0 {
		ui.Printf("no limit makes the plan slower\n")
	}
	return ui.Result(map[string]any{"expected_ns": expected, "limits": list, "simulated": plan.SoC.Simulated})
}

// tiers tells of the capacity tiers of a mixture of experts.
func (x *answer) tiers() error {
	x.title("capacity tiers")
	if len(x.p.Experts) == 0 {
		x.s.Printf("the plan has none: every expert is computed with the rows it gets. hetc solve --loads chooses tiers " +
			"for a model with experts, where they are faster\n")
	}
	planview.ShowTiers(x.s, x.p)
	for i := range x.p.Experts {
		tiers := &x.p.Experts[i]
		var groups, layers [][]string
		for _, group := range tiers.Groups {
			groups = append(groups, []string{strconv.Itoa(tiers.Rows), strconv.Itoa(group.Slots),
				strconv.Itoa(group.Rows), fmt.Sprintf("%.1f", float64(group.ExpectNS)/1e3)})
		}
		for _, layer := range tiers.Layers {
			layers = append(layers, []string{strconv.Itoa(tiers.Rows), strconv.Itoa(layer.Layer),
				fmt.Sprintf("%.1f", 100*layer.Moved), fmt.Sprintf("%.1f", 100*layer.Overflow),
				fmt.Sprintf("%.1f", 100*(1-layer.Moved-layer.Overflow)),
				fmt.Sprintf("%.1f", float64(layer.ExpectNS)/1e3)})
		}
		x.s.Table([]string{">prompt rows", ">slots", ">rows of a slot", ">launch us"}, groups)
		x.s.Table([]string{">prompt rows", ">layer", ">in slots %", ">overflow %", ">without a slot %", ">expected us"},
			layers)
	}
	return x.s.Result(map[string]any{"tiers": x.p.Experts, "simulated": x.p.SoC.Simulated})
}
