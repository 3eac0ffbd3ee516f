// Package planview knows how a plan is told to people: tables of predictions and decisions, sentences on
// limits, memory, capacity tiers and compiled graphs.
package planview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/solver/workload"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
)

// ShowEvidence says what a plan is that was not measured on the machine that executes it.
func ShowEvidence(s *cli.Streams, p *planir.Plan) {
	if text := p.EvidenceText(); text != "" {
		s.Printf("%s\n", text)
	}
}

// LeftOut returns the buckets that a workload lists and the plan has no program for, ascending.
func LeftOut(listed workload.Rows, p *planir.Plan) []int {
	out := []int{}
	for _, rows := range listed {
		has := func(ph planir.PhaseProgram) bool { return ph.Phase == "prefill" && ph.Rows == rows }
		if rows > 0 && !slices.ContainsFunc(p.Program.Programs, has) {
			out = append(out, rows)
		}
	}
	return out
}

// ShowAttention says in which programs attention is sparse.
func ShowAttention(s *cli.Streams, p *planir.Plan) {
	if p.Attention != nil {
		s.Printf("%s\n", p.Attention.Text())
	}
}

// ShowSizes tells which buckets and batches were chosen, among how many.
func ShowSizes(ui *cli.Streams, p *planir.Plan) {
	for _, solve := range p.Solver {
		unit := "ms"
		if p.UnitOf(&solve) == "nJ" {
			unit = "mJ"
		}
		var rows []string
		for i := range p.Program.Programs {
			// One row is always there: it is not chosen.
			if n := p.Program.Programs[i].Rows; n > 1 && p.Decodes(n) == (solve.Problem == "batches") {
				rows = append(rows, strconv.Itoa(n))
			}
		}
		list := strings.Join(rows, ", ")
		if list == "" {
			list = "none"
		}
		// Solves of partitions are among them; only those that chose sizes are told here.
		switch solve.Problem {
		case "buckets":
			ui.Printf("buckets: %s of %d candidates; %.3f %s of prefill a prompt, at least %.3f by the candidates' "+
				"costs (%s)\n", list, solve.Choices, float64(solve.ObjectiveNS)/1e6, unit, float64(solve.BoundNS)/1e6,
				solve.Status)
		case "batches":
			ui.Printf("batches: %s of %d candidates; %.3f %s of decode a token, at least %.3f by the candidates' "+
				"costs (%s)\n", list, solve.Choices, float64(solve.ObjectiveNS)/1e6, unit, float64(solve.BoundNS)/1e6,
				solve.Status)
		}
	}
}

// ShowLimits tells what a plan is predicted to lose and to hold.
func ShowLimits(ui *cli.Streams, plan *planir.Plan) {
	for _, quality := range plan.Quality {
		limit := ""
		if quality.MaxKL > 0 {
			limit = fmt.Sprintf(" of at most %.3g", quality.MaxKL)
			// A limit of 0 is held as the smallest positive number, because 0 means no limit.
			if quality.MaxKL <= workload.Lossless {
				limit = " of at most 0"
			}
		}
		ui.Printf("%s: predicted KL %.3g%s nats a token, from calibration\n", quality.Phase, quality.KL, limit)
	}
	ShowStatic(ui, plan)
	if memory := plan.Memory; memory != nil {
		limit := ""
		if memory.Max > 0 {
			limit = fmt.Sprintf(" of at most %v", unit.Bytes(memory.Max))
		}
		ui.Printf("memory: predicted %v%s, with every program loaded and a full context: %s\n",
			unit.Bytes(memory.Total), limit, memory)
	}
}

// ShowStatic tells in which phases activations have static scales.
func ShowStatic(ui *cli.Streams, p *planir.Plan) {
	count, scheme := map[string]int{}, map[string]op.Scheme{}
	for i := range p.Decisions {
		if decision := &p.Decisions[i]; decision.Scheme.Static() {
			phase := "prefill"
			if p.Decodes(decision.Rows) {
				phase = "decode"
			}
			what := phase + " " + string(decision.Scheme)
			count[what]++
			scheme[what] = decision.Scheme
		}
	}
	for _, what := range slices.Sorted(maps.Keys(count)) {
		// Schemes on a grid keep a margin beyond the largest value that was seen.
		beyond, choice := "what", ""
		if scheme[what].Grid() {
			beyond = fmt.Sprintf("%d times what", calibration.GridMargin)
		}
		if n := scheme[what].Scales(); n > 1 {
			choice = fmt.Sprintf("every row has the smallest of %d that holds it, and ", n)
		}
		if scheme[what].Shadow() {
			ui.Printf("static scales: %s in %d decisions: what exceeds them is multiplied beside%s\n", what, count[what],
				shadowText(p))
			continue
		}
		ui.Printf("static scales: %s in %d decisions: %sactivations that exceed %s the calibration saw are clipped\n",
			what, count[what], choice, beyond)
	}
}

// shadowText says of which products outliers are pruned in some layers, "" where of none.
func shadowText(p *planir.Plan) string {
	var kept []string
	for i := range p.Shadows {
		kept = append(kept, p.Shadows[i].Node+" "+p.Shadows[i].LayersText())
	}
	if kept == nil {
		return ""
	}
	return "; pruned but for " + strings.Join(kept, "; ")
}

// ShowPredictions prints the predicted time of every program beside that of each processor alone.
func ShowPredictions(ui *cli.Streams, plan *planir.Plan) {
	if len(plan.Predictions) == 0 {
		return
	}
	header := []string{"program", ">plan ms", ">interval"}
	var procs []string // that execute some program alone
	for _, pr := range plan.Predictions {
		for _, single := range pr.Singles {
			procs = append(procs, single.Proc)
		}
	}
	slices.Sort(procs)
	procs = slices.Compact(procs)
	for _, name := range procs {
		header = append(header, ">"+name+" ms")
	}
	header = append(header, ">best single / plan", ">tokens/s")
	energy := slices.ContainsFunc(plan.Predictions, func(x planir.Prediction) bool { return x.EnergyUJ > 0 })
	if energy {
		header = append(header, ">mJ (modelled)")
	}
	var rows [][]string
	for i := range plan.Predictions {
		rows = append(rows, predictionRow(plan, &plan.Predictions[i], procs, energy))
	}
	what := "predicted"
	if times := plan.SoC.Times(); times != "" {
		what = "predicted from " + times
	}
	ui.Printf("%s:\n", what)
	ui.Table(header, rows)
	showPipelines(ui, plan)
	showInFlight(ui, plan)
	showBeside(ui, plan)
	showDrafts(ui, plan)
}

// showPipelines tells where the heads of sparse attention pass through a pipeline.
func showPipelines(ui *cli.Streams, plan *planir.Plan) {
	if plan.Attention == nil {
		return
	}
	for i := range plan.Attention.Pipelines {
		ui.Printf("%s\n", plan.Attention.Pipelines[i].Text())
	}
}

// orderedBy are the words for what ordered the steps of chunks in flight.
var orderedBy = map[string]string{"": "one chunk after the other", planir.ByGreedy: "by the rule of llm.npu",
	planir.ByExact: "by an exact search"}

// showInFlight tells which chunks of prompts are processed together, and in which order.
func showInFlight(ui *cli.Streams, plan *planir.Plan) {
	if flight := plan.InFlight; flight != nil {
		ui.Printf("%d chunks of %d tokens in flight, steps ordered %s\n", flight.Chunks, flight.Rows, orderedBy[flight.By])
	}
}

// predictionRow returns a program's line: its time and interval, those of processors alone, gain, rate, and energy
// where any is known.
func predictionRow(plan *planir.Plan, pr *planir.Prediction, procs []string, energy bool) []string {
	ms := func(ns int64) string { return fmt.Sprintf("%.3f", float64(ns)/1e6) }
	row := []string{pr.Program, ms(pr.PlanNS), ms(pr.LowNS) + ".." + ms(pr.HighNS)}
	// 0 until some processor executes the program alone.
	best := int64(0)
	for _, name := range procs {
		at := slices.IndexFunc(pr.Singles, func(x planir.SingleTime) bool { return x.Proc == name })
		if at < 0 {
			row = append(row, "-")
			continue
		}
		ns := pr.Singles[at].NS
		row = append(row, ms(ns))
		if best == 0 || ns < best {
			best = ns
		}
	}
	gain := "-"
	if best > 0 {
		gain = fmt.Sprintf("%.2f", float64(best)/float64(pr.PlanNS))
	}
	row = append(row, gain)
	for _, program := range plan.Program.All() {
		if program.Name == pr.Program {
			row = append(row, fmt.Sprintf("%.1f", float64(program.Rows)*1e9/float64(max(1, pr.PlanNS))))
		}
	}
	if energy {
		mj := "-"
		if pr.EnergyUJ > 0 {
			mj = fmt.Sprintf("%.3f", float64(pr.EnergyUJ)/1e3)
		}
		row = append(row, mj)
	}
	return row
}

// showBeside prints the predicted times of programs that run side by side, and what the same work takes by turns.
func showBeside(ui *cli.Streams, plan *planir.Plan) {
	beside := plan.Beside
	if beside == nil {
		return
	}
	predicted := map[int]int64{} // of the programs of all processors, by rows
	for i := range plan.Program.Programs {
		program := &plan.Program.Programs[i]
		for j := range plan.Predictions {
			if plan.Predictions[j].Program == program.Name {
				predicted[program.Rows] = plan.Predictions[j].PlanNS
			}
		}
	}
	ms := func(ns float64) string { return fmt.Sprintf("%.3f", ns/1e6) }
	var rows [][]string
	for _, pair := range beside.Pairs {
		steps := float64(pair.PrefillNS) / float64(max(1, pair.DecodeNS))
		turns := float64(predicted[pair.PrefillRows]) + steps*float64(predicted[pair.DecodeRows])
		rows = append(rows, []string{strconv.Itoa(pair.PrefillRows), strconv.Itoa(pair.DecodeRows),
			ms(float64(pair.PrefillNS)), ms(float64(pair.DecodeNS)), ms(turns),
			fmt.Sprintf("%.2f", turns/float64(max(1, pair.PrefillNS)))})
	}
	ui.Printf("\nprompts on %s beside decoding on %s; by turns, all processors do the same work in:\n", beside.Prefill,
		beside.Decode)
	ui.Table([]string{">rows", ">sequences", ">chunk ms", ">step ms", ">by turns ms", ">by turns / beside"}, rows)
}

// ShowTarget tells that a plan is for the device of its SoC.
func ShowTarget(ui *cli.Streams, plan *planir.Plan) {
	if !plan.SoC.Target {
		return
	}
	var procs []string
	for i := range plan.Procs {
		procs = append(procs, plan.Procs[i].Name)
	}
	times := ""
	if plan.SoC.Simulated {
		times = "; its times are simulated"
	}
	ui.Printf("target %s: only processors with target data, with what they execute there (%s)%s\n", plan.SoC.Name,
		strings.Join(procs, ", "), times)
}

// Kernels is a variant of a processor's kernels that a plan names, and the graphs whose products are by it.
type Kernels struct {
	Proc    string   `json:"processor"`
	Variant string   `json:"variant"`
	Graphs  []string `json:"graphs"`
}

// NamedKernels lists the variants of kernels that a plan names, by processor and name.
func NamedKernels(plan *planir.Plan) (list []Kernels) {
	for i := range plan.Program.Graphs {
		graph := &plan.Program.Graphs[i]
		for j := range graph.Graph.Nodes {
			variant := graph.Graph.Nodes[j].Op.Form.Kernel()
			if variant == "" {
				continue
			}
			at := slices.IndexFunc(list, func(k Kernels) bool { return k.Proc == graph.Proc && k.Variant == variant })
			if at < 0 {
				at, list = len(list), append(list, Kernels{Proc: graph.Proc, Variant: variant})
			}
			if !slices.Contains(list[at].Graphs, graph.Name) {
				list[at].Graphs = append(list[at].Graphs, graph.Name)
			}
		}
	}
	slices.SortFunc(list, func(a, b Kernels) int {
		return cmp.Or(strings.Compare(a.Proc, b.Proc), strings.Compare(a.Variant, b.Variant))
	})
	return list
}

// ShowKernels tells which variants of kernels a plan names, a line each.
func ShowKernels(ui *cli.Streams, plan *planir.Plan) {
	const few = 4
	for _, named := range NamedKernels(plan) {
		graphs, more := named.Graphs, ""
		if len(graphs) > few {
			graphs, more = graphs[:few], fmt.Sprintf(" and %d more", len(graphs)-few)
		}
		ui.Printf("kernels %q of %s: %s%s\n", named.Variant, named.Proc, strings.Join(graphs, ", "), more)
	}
}
