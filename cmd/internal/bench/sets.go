package bench

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/measure"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
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
	// Twins of measured sets are not opened: every open plan holds memory and threads.
	like := map[string]string{} // a set that is not measured, and the one that stands for it
	labels, plans, err := solveSets(ctx, ui, from.Input, planSets(soc, options.All, like), options.PromptLen+options.Gen)
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
	memory, err := openMemoryWatch(ctx, soc)
	if err != nil {
		return err
	}
	defer memory.close()
	virtual, err := measureRounds(ctx, opened.list, options, memory)
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
	seen, err := memory.show(ui)
	if err != nil {
		return err
	}
	if seen != nil {
		doc["memory"] = seen
	}
	doc["pairs"] = showPairs(ui, soc, set, opened.list, like, plans[0], model)
	doc["solved"] = showSolved(ui, opened.list)
	return ui.Result(doc)
}

// inputs are what plans are solved from, and the record behind their costs. The model is the caller's to close.
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
	label string
	// names of processors; nil for all
	only []string
	// that may be chosen from; nil for all
	strategies []planir.Strategy
	// parts of every matrix by processor; nil where solve decides
	ratio map[string]float64
	// rule for capacity tiers of experts; the zero value where solve decides
	tiers solver.TierRule
	// experts have no capacity tiers
	dynamic bool
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
	bytes, shared := int64(0), map[planir.Pack]bool{}
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

// what describes what is measured in a phase.
func what(phase string, o *Options) string {
	if phase == "prefill" {
		return fmt.Sprintf("a prompt of %d tokens, %d interleaved rounds", o.PromptLen, o.Rounds)
	}
	return fmt.Sprintf("a token, mean of %d after that prompt, %d interleaved rounds", o.Gen, o.Rounds)
}

// processorSets returns the processors alone and in pairs that can work at the same time. A set that is
// like an earlier one, with the same drivers and numbers of cores, is left out unless all are
// wanted; like maps it to that one.
func processorSets(soc *socs.SoC, all bool, like map[string]string) (out [][]string) {
	// Processors of one kind are exchangeable: their plans take the same time.
	kind := func(name string) string {
		proc := soc.Processor(name)
		return fmt.Sprint(proc.Driver, proc.Kind, proc.Options, len(proc.Cores))
	}
	seen := map[string]string{}
	add := func(names ...string) {
		var kinds []string
		for _, n := range names {
			kinds = append(kinds, kind(n))
		}
		sort.Strings(kinds)
		key, label := strings.Join(kinds, "\n"), strings.Join(names, " + ")
		if old, ok := seen[key]; ok && !all {
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
			// Sets of cores that overlap cannot work at the same time.
			if a, b := soc.Processors[i].Name, soc.Processors[j].Name; soc.Concurrent(a, b) == nil {
				add(a, b)
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

// showCandidates prints the measured and predicted times of plans in a phase, and their ratio to
// the fastest.
func showCandidates(ui *cli.Streams, list []*candidate, phase string) {
	var rows [][]string
	fastest := 0.0
	for _, candidate := range list {
		if summary, _, _ := candidate.of(phase); fastest == 0 || summary.Median < fastest {
			fastest = summary.Median
		}
	}
	for _, candidate := range list {
		summary, _, predicted := candidate.of(phase)
		row := []string{candidate.Name, fmt.Sprintf("%.3f", summary.Median/1e6),
			fmt.Sprintf("%.3f..%.3f", summary.Low/1e6, summary.High/1e6), "-", "-", ratio(fastest, summary.Median)}
		if predicted > 0 {
			row[3], row[4] = fmt.Sprintf("%.3f", float64(predicted)/1e6), fmt.Sprintf("%+.0f %%",
				100*(float64(predicted)/summary.Median-1))
		}
		rows = append(rows, row)
	}
	ui.Table([]string{"processors", ">median ms", ">95 % interval", ">predicted ms", ">error", ">best / this"}, rows)
}

// rate is how fast a processor computed a product in the profile.
type rate struct {
	Proc string `json:"proc"`
	Op   string `json:"op"`
	// of one product; operations and bytes per ns follow from it
	NS   float64 `json:"ns"`
	Gops float64 `json:"gops"`
	GBps float64 `json:"gbps"`
}

// products returns the whole matrix products of a plan's program with the given rows, and how often
// each occurs.
func products(p *planir.Plan, m *models.Model, rows int) (out []op.Op, times []int) {
	graph := m.Graph()
	for i := range graph.Sections {
		sec := &graph.Sections[i]
		for _, node := range sec.Nodes {
			// The product comes after its quantiser, so it is the last of a node's operators.
			operator := node.Ops[len(node.Ops)-1]
			decision := p.DecisionFor(sec.Name+"."+node.Name, rows)
			if operator.Kind != op.MatMul || decision == nil {
				continue
			}
			operator.M, operator.Scheme, operator.Bias = rows, decision.Scheme, false
			at := slices.Index(out, operator)
			if at < 0 {
				at = len(out)
				out, times = append(out, operator), append(times, 0)
			}
			times[at] += max(1, sec.Layers)
		}
	}
	return out, times
}

// profiled returns the profiled time of an operator in ns, alone or beside another processor's half; 0
// if it was not measured.
func profiled(set *record.Set, proc string, o op.Op, beside string) float64 {
	var samples []float64
	for _, measurement := range set.All() {
		if measurement.Kind != record.Op || measurement.Proc != proc || measurement.Op == nil || *measurement.Op != o ||
			measurement.HeldOut {
			continue
		}
		// A neighbour without an operator of its own only loads the memory.
		if beside == "" && len(measurement.Concurrent) == 0 || len(measurement.Concurrent) == 1 &&
			measurement.Concurrent[0].Proc == beside && measurement.Concurrent[0].Op != nil {
			samples = append(samples, measurement.Samples...)
		}
	}
	if len(samples) == 0 {
		return 0
	}
	return stat.Median(samples)
}

// phaseRows returns the number of rows of the largest program of a phase.
func phaseRows(p *planir.Plan, phase string) int {
	rows := 1
	for _, ph := range p.Program.Programs {
		if phase == "prefill" && ph.Phase == phase {
			rows = max(rows, ph.Rows)
		}
	}
	return rows
}

// showRates prints the rates at which processors computed a plan's products in the profile:
// operations per second for prefill, bytes per second for decode.
func showRates(ui *cli.Streams, soc *socs.SoC, set *record.Set, p *planir.Plan, m *models.Model) (doc []rate) {
	for _, ph := range []string{"prefill", "decode"} {
		ops, _ := products(p, m, phaseRows(p, ph))
		header := []string{"product"}
		for i := range soc.Processors {
			header = append(header, ">"+soc.Processors[i].Name)
		}
		var rows [][]string
		for _, operator := range ops {
			row := []string{operator.Key()}
			for i := range soc.Processors {
				name := soc.Processors[i].Name
				ns := profiled(set, name, operator, "")
				if ns == 0 {
					row = append(row, "-")
					continue
				}
				read := rate{name, operator.Key(), ns, float64(operator.Flops()) / ns, float64(operator.Bytes()) / ns}
				doc = append(doc, read)
				if ph == "prefill" {
					row = append(row, fmt.Sprintf("%.0f", read.Gops))
				} else {
					row = append(row, fmt.Sprintf("%.1f", read.GBps))
				}
			}
			rows = append(rows, row)
		}
		unit := "1e9 operations a second"
		if ph == "decode" {
			unit = "1e9 bytes a second"
		}
		from := "the profile"
		if set.Header.Simulated {
			from = "the simulated profile"
		}
		ui.Printf("\nmatrix products of %s, from %s, weights cold: %s\n", ph, from, unit)
		ui.Table(header, rows)
	}
	return doc
}

// pair is what two processors reach together, compared with the better one alone.
type pair struct {
	Processors string  `json:"processors"`
	Phase      string  `json:"phase"`
	Speedup    float64 `json:"speedup"`    // over the better one, median of rounds
	Low        float64 `json:"low"`        // 95 % interval of it
	High       float64 `json:"high"`       //
	Ideal      float64 `json:"ideal"`      // (r1+r2)/max(r1,r2) of the processors alone
	Contention float64 `json:"contention"` // joint over separate rates of halves of the products, from the profile
	Share      float64 `json:"share"`      // speedup / (ideal * contention)
}

// showPairs prints how much faster pairs of processors are than their better one. Beside it stands
// what their separate speeds, and the contention in the profile, would allow.
func showPairs(
	ui *cli.Streams, soc *socs.SoC, set *record.Set, list []*candidate, like map[string]string, plan *planir.Plan,
	model *models.Model,
) (doc []pair) {
	find := func(label string) *candidate {
		if old, ok := like[label]; ok {
			label = old
		}
		i := slices.IndexFunc(list, func(c *candidate) bool { return c.Name == label })
		if i < 0 {
			return nil
		}
		return list[i]
	}
	var rows [][]string
	for _, ph := range []string{"prefill", "decode"} {
		for _, joint := range list {
			names := strings.Split(joint.Name, " + ")
			if len(names) != 2 {
				continue
			}
			left, right := find(names[0]), find(names[1])
			if left == nil || right == nil {
				continue
			}
			_, both, _ := joint.of(ph)
			_, first, _ := left.of(ph)
			_, second, _ := right.of(ph)
			// round by round, since both sides of a round met the same state of the machine
			var speedups, ideals []float64
			for i := range both {
				best := min(first[i], second[i])
				// The ideal adds the speeds that both have alone: (1/first + 1/second) relative to 1/best.
				speedups, ideals = append(speedups, best/both[i]), append(ideals, best/first[i]+best/second[i])
			}
			sum, err := stat.Summarise(speedups)
			if err != nil {
				continue
			}
			found := pair{joint.Name, ph, sum.Median, sum.Low, sum.High, stat.Median(ideals),
				contention(soc, set, names, plan, model, ph), 0}
			row := []string{found.Processors, ph, fmt.Sprintf("%.2f", found.Speedup),
				fmt.Sprintf("%.2f..%.2f", found.Low, found.High), fmt.Sprintf("%.2f", found.Ideal), "-", "-"}
			if found.Contention > 0 {
				found.Share = found.Speedup / (found.Ideal * found.Contention)
				row[5], row[6] = fmt.Sprintf("%.2f", found.Contention), fmt.Sprintf("%.2f", found.Share)
			}
			doc, rows = append(doc, found), append(rows, row)
		}
	}
	if len(rows) > 0 {
		ui.Printf("\npairs against the better of the two alone; ideal: both at the speed they have alone; " +
			"contention: joint over separate\nrates of their halves of the products, from the profile\n")
		ui.Table([]string{"processors", "phase", ">speed-up", ">95 % interval", ">ideal", ">contention",
			">of ideal * contention"}, rows)
	}
	return doc
}

// contention returns the rate of two processors at work on their halves of a phase's products, over
// their rates alone. It is the mean over the products, by time; 0 if nothing was measured.
func contention(soc *socs.SoC, set *record.Set, names []string, p *planir.Plan, m *models.Model, phase string) float64 {
	ops, times := products(p, m, phaseRows(p, phase))
	sum, weight := 0.0, 0.0
	for i, operator := range ops {
		separate, joint := 0.0, 0.0
		complete := true
		for k, name := range names {
			half := operator
			// The profiler measured halves of the columns, rounded to the processor's tile.
			half.N = profiler.Half(operator.N, soc.Processor(name).Tile.N)
			alone, beside := profiled(set, name, half, ""), profiled(set, name, half, names[1-k])
			complete = complete && alone > 0 && beside > 0
			if complete {
				separate, joint = separate+1/alone, joint+1/beside
			}
		}
		if complete {
			// The time that both take for all occurrences of the product at their separate speeds.
			w := float64(times[i]) / separate
			sum, weight = sum+w*joint/separate, weight+w
		}
	}
	if weight == 0 {
		return 0
	}
	return sum / weight
}

// comparison is the solved plan against the best of the others in a phase.
type comparison struct {
	Phase string  `json:"phase"`
	Best  string  `json:"best"`
	Ratio float64 `json:"ratio"` // time of the chosen plan over the best's, median of rounds
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// showSolved prints whether the solved plan is the fastest of all measured plans.
func showSolved(ui *cli.Streams, list []*candidate) (doc []comparison) {
	ui.Printf("\n")
	for _, ph := range []string{"prefill", "decode"} {
		var best *candidate
		for _, candidate := range list[1:] {
			here, _, _ := candidate.of(ph)
			if best == nil {
				best = candidate
			} else if least, _, _ := best.of(ph); here.Median < least.Median {
				best = candidate
			}
		}
		if best == nil {
			continue
		}
		_, solved, _ := list[0].of(ph)
		_, other, _ := best.of(ph)
		var ratios []float64
		for i := range solved {
			ratios = append(ratios, solved[i]/other[i])
		}
		summary, err := stat.Summarise(ratios)
		if err != nil {
			continue
		}
		doc = append(doc, comparison{ph, best.Name, summary.Median, summary.Low, summary.High})
		ui.Printf("%s: the plan solved from the profile takes %.2f (%.2f..%.2f) of the time of the best of the "+
			"others, %s\n", ph, summary.Median, summary.Low, summary.High, best.Name)
	}
	return doc
}
