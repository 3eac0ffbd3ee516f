package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/socs"
)

// showCandidates prints the measured and predicted times of plans in a phase, and their ratio to
// the fastest.
func showCandidates(ui *cli.Streams, list []*candidate, phase string) {
	fastest := 0.0
	for _, candidate := range list {
		summary, _, _ := candidate.of(phase)
		if fastest == 0 || summary.Median < fastest {
			fastest = summary.Median
		}
	}

	var rows [][]string
	for _, candidate := range list {
		summary, _, predicted := candidate.of(phase)
		row := []string{candidate.Name, fmt.Sprintf("%.3f", summary.Median/1e6), msInterval(summary), "-", "-", ratio(fastest, summary.Median)}
		if predicted > 0 {
			row[3] = fmt.Sprintf("%.3f", float64(predicted)/1e6)
			row[4] = fmt.Sprintf("%+.0f %%", 100*(float64(predicted)/summary.Median-1))
		}
		rows = append(rows, row)
	}

	ui.Table([]string{"processors", ">median ms", ">95 % interval", ">predicted ms", ">error", ">best / this"}, rows)
}

// rate is the speed at which a processor computed a product in the profile.
type rate struct {
	Proc string  `json:"proc"`
	Op   string  `json:"op"`
	NS   float64 `json:"ns"`   // time of one product
	Gops float64 `json:"gops"` // operations per ns
	GBps float64 `json:"gbps"` // bytes per ns
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
func profiled(set *record.Set, proc string, operator op.Op, beside string) float64 {
	var samples []float64
	for _, measurement := range set.All() {
		if measurement.Kind != record.Op || measurement.Proc != proc || measurement.HeldOut {
			continue
		}
		if measurement.Op == nil || *measurement.Op != operator {
			continue
		}
		if worksBeside(measurement.Concurrent, beside) {
			samples = append(samples, measurement.Samples...)
		}
	}

	if len(samples) == 0 {
		return 0
	}
	return stat.Median(samples)
}

// worksBeside reports whether the neighbours of a measurement are the named processor with an operator, or, if no name
// is given, none. A neighbour without an operator of its own only loads the memory.
func worksBeside(neighbours []record.Partner, name string) bool {
	switch len(neighbours) {
	case 0:
		return name == ""
	case 1:
		return neighbours[0].Proc == name && neighbours[0].Op != nil
	}
	return false
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
	header := []string{"product"}
	for i := range soc.Processors {
		header = append(header, ">"+soc.Processors[i].Name)
	}
	from := "the profile"
	if set.Header.Simulated {
		from = "the simulated profile"
	}

	for _, phase := range []struct {
		name, unit string
		cell       func(rate) string
	}{
		{"prefill", "1e9 operations a second", func(r rate) string { return fmt.Sprintf("%.0f", r.Gops) }},
		{"decode", "1e9 bytes a second", func(r rate) string { return fmt.Sprintf("%.1f", r.GBps) }},
	} {
		operators, _ := products(p, m, phaseRows(p, phase.name))
		var rows [][]string
		for _, operator := range operators {
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
				row = append(row, phase.cell(read))
			}
			rows = append(rows, row)
		}
		ui.Printf("\nmatrix products of %s, from %s, weights cold: %s\n", phase.name, from, phase.unit)
		ui.Table(header, rows)
	}
	return doc
}

// pair compares two processors at work together with the better one alone.
type pair struct {
	Processors string  `json:"processors"`
	Phase      string  `json:"phase"`
	Speedup    float64 `json:"speedup"`    // over the better one, median of rounds
	Low        float64 `json:"low"`        // lower bound of its 95 % interval
	High       float64 `json:"high"`       // upper bound
	Ideal      float64 `json:"ideal"`      // (r1+r2)/max(r1,r2) of the processors alone
	Contention float64 `json:"contention"` // joint over separate rates of halves of the products, from the profile
	Share      float64 `json:"share"`      // speedup / (ideal * contention)

	rounds int
}

// showPairs prints the speed-up of pairs of processors over their better one, beside the speed-up that their separate
// speeds and the contention in the profile would allow.
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

	for _, phase := range []string{"prefill", "decode"} {
		for _, joint := range list {
			names := strings.Split(joint.Name, " + ")
			if len(names) != 2 {
				continue
			}
			left, right := find(names[0]), find(names[1])
			if left == nil || right == nil {
				continue
			}
			found, ok := pairOf(joint, left, right, phase)
			if !ok {
				continue
			}

			found.Contention = contention(soc, set, names, plan, model, phase)
			if found.Contention > 0 {
				found.Share = found.Speedup / (found.Ideal * found.Contention)
			}
			doc = append(doc, found)
		}
	}

	if len(doc) > 0 {
		ui.Printf("\npairs against the better of the two alone; ideal: both at the speed they have alone; " +
			"contention: joint over separate\nrates of their halves of the products, from the profile\n")
		ui.Table([]string{"processors", "phase", ">speed-up", ">95 % interval", ">ideal", ">contention",
			">of ideal * contention"}, pairRows(doc))
	}
	return doc
}

// pairOf compares the times of two processors together with those of each alone, round by round, since both sides of a
// round met the same state of the machine. ok is false where the rounds do not suffice.
func pairOf(joint, left, right *candidate, phase string) (found pair, ok bool) {
	_, both, _ := joint.of(phase)
	_, first, _ := left.of(phase)
	_, second, _ := right.of(phase)
	var speedups, ideals []float64
	for i := range both {
		best := min(first[i], second[i])
		speedups = append(speedups, best/both[i])
		// The ideal adds the speeds that both have alone: (1/first + 1/second) relative to 1/best.
		ideals = append(ideals, best/first[i]+best/second[i])
	}

	speedup, err := stat.Summarise(speedups)
	if err != nil {
		return pair{}, false
	}
	return pair{
		Processors: joint.Name, Phase: phase, Speedup: speedup.Median, Low: speedup.Low, High: speedup.High,
		Ideal: stat.Median(ideals), rounds: speedup.N,
	}, true
}

// pairRows formats pairs as rows of a table.
func pairRows(pairs []pair) (rows [][]string) {
	for _, found := range pairs {
		row := []string{found.Processors, found.Phase, fmt.Sprintf("%.2f", found.Speedup),
			ratioInterval(found.rounds, found.Low, found.High), fmt.Sprintf("%.2f", found.Ideal), "-", "-"}
		if found.Contention > 0 {
			row[5], row[6] = fmt.Sprintf("%.2f", found.Contention), fmt.Sprintf("%.2f", found.Share)
		}
		rows = append(rows, row)
	}
	return rows
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
			// The weight is the time that both take for all occurrences of the product at their separate speeds.
			ns := float64(times[i]) / separate
			sum, weight = sum+ns*joint/separate, weight+ns
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

// showSolved prints the time of the solved plan, list[0], relative to the fastest of the others.
func showSolved(ui *cli.Streams, list []*candidate) (doc []comparison) {
	ui.Printf("\n")
	for _, phase := range []string{"prefill", "decode"} {
		best := fastestOf(list[1:], phase)
		if best == nil {
			continue
		}
		_, solved, _ := list[0].of(phase)
		_, other, _ := best.of(phase)
		var ratios []float64
		for i := range solved {
			ratios = append(ratios, solved[i]/other[i])
		}
		summary, err := stat.Summarise(ratios)
		if err != nil {
			continue
		}
		doc = append(doc, comparison{phase, best.Name, summary.Median, summary.Low, summary.High})
		bounds := ""
		if summary.N >= enoughRounds {
			bounds = fmt.Sprintf(" (%.2f..%.2f)", summary.Low, summary.High)
		}
		ui.Printf("%s: the plan solved from the profile takes %.2f%s of the time of the best of the others, %s\n",
			phase, summary.Median, bounds, best.Name)
	}
	return doc
}

// fastestOf returns the plan with the least median time of a phase, nil if the list is empty.
func fastestOf(list []*candidate, phase string) (fastest *candidate) {
	least := 0.0
	for _, candidate := range list {
		summary, _, _ := candidate.of(phase)
		if fastest == nil || summary.Median < least {
			fastest, least = candidate, summary.Median
		}
	}
	return fastest
}
