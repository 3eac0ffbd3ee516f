package bench

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/cmd/internal/measure"
	"github.com/hetc/hetc/cmd/internal/runcmd"
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

// solved names the plan that may use every processor.
const solvedName = "all: solved"

// Sets measures plans for every processor, every pair and all of them, and those of two rules.
func Sets(c *cobra.Command, s *cli.Streams, o *Options) error {
	ctx := c.Context()
	if err := cli.Required(c, "soc"); err != nil {
		return err
	}
	soc, set, costs, err := measure.OpenCosts(o.SoC, o.Record)
	if err != nil {
		return err
	}
	w, err := measure.ReadWorkload(o.Workload)
	if err != nil {
		return err
	}
	m, err := models.Open(o.Model)
	if err != nil {
		return err
	}
	defer m.Close()
	cal, err := bindings.ReadCalibration(o.Calibration)
	if err != nil {
		return err
	}
	in := solver.Input{Model: m, SoC: soc, Costs: costs, Workload: w, Engine: bindings.AutoEngine(nil, solver.DefaultWorkingMemory), Calibration: cal}
	like := map[string]string{} // a set that is not measured, and the one that stands for it
	var plans []*planir.Plan
	var labels []string
	for _, set := range planSets(soc, o.All, like) {
		in.Only, in.Strategies, in.Ratio = set.only, set.strategies, set.ratio
		r, err := solver.Solve(ctx, in)
		if err != nil {
			if set.label == solvedName || diag.ClassOf(err) == diag.ClassUsage || ctx.Err() != nil {
				return err
			}
			s.Warnf("%s is left out: %v", set.label, err)
			continue
		}
		if need := o.PromptLen + o.Gen; need > r.Plan.MaxContext {
			return diag.New(diag.ClassUsage, "--prompt-len %d and --gen %d need a context of %d, the plan has %d", o.PromptLen, o.Gen, need, r.Plan.MaxContext)
		}
		plans, labels = append(plans, r.Plan), append(labels, set.label)
	}
	if err := runcmd.EnoughMemory(plans, heldBytes(plans), machine.FreeMemory()); err != nil {
		return fmt.Errorf("measure %d plans side by side: %w", len(plans), err)
	}
	f := &fleet{model: m, cal: cal, soc: soc}
	defer f.close()
	for i, p := range plans {
		if err := f.open(ctx, labels[i], p); err != nil {
			return err
		}
		predict(f.list[i:], p, o)
	}
	virtual, err := measureRounds(ctx, f.list, o)
	if err != nil {
		return err
	}
	doc := map[string]any{"soc": soc.Name, "simulated": virtual, "prompt_len": o.PromptLen, "gen": o.Gen, "rounds": o.Rounds, "candidates": f.list}
	doc["rates"] = showRates(s, soc, set, plans[0], m)
	measured := "measured"
	if virtual {
		measured = "simulated"
	}
	for _, ph := range []string{"prefill", "decode"} {
		s.Printf("\n%s, %s: %s\n", ph, measured, what(ph, o))
		showCandidates(s, f.list, ph)
	}
	doc["pairs"] = showPairs(s, soc, set, f.list, like, plans[0], m)
	doc["solved"] = showSolved(s, f.list)
	return s.Result(doc)
}

// planSet is what a plan that is measured may use.
type planSet struct {
	label      string
	only       []string
	strategies []planir.Strategy
	ratio      map[string]float64
}

// planSets are the plan that solve chooses, those of processors alone and in pairs, and those of two rules: each operator whole, on
// the processor that is best at it, and for every kind of pair all matrices in fixed parts.
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
	out = append(out, planSet{label: "each operator whole", strategies: []planir.Strategy{planir.Single, planir.Padding}})
	for _, p := range pairs {
		for _, part := range []struct {
			text string
			of   float64
		}{{"1:1", 0.5}, {"3:1", 0.75}} {
			out = append(out, planSet{label: fmt.Sprintf("%s of %s and %s", part.text, p[0], p[1]), ratio: map[string]float64{p[0]: part.of, p[1]: 1 - part.of}})
		}
	}
	return out
}

// heldBytes is at most what plans that are open side by side hold of weights: those that the first packs are shared, and
// libraries have copies of their own.
func heldBytes(plans []*planir.Plan) int64 {
	n, shared := int64(0), map[planir.Pack]bool{}
	for i, p := range plans {
		n += p.Memory.Prepacked
		for _, b := range p.Program.WeightBlobs() {
			for _, at := range b.Packs {
				if i == 0 {
					shared[*at.Pack] = true
				}
				if i == 0 || !shared[*at.Pack] {
					n += at.Pack.Bytes
				}
			}
		}
	}
	return n
}

func what(phase string, o *Options) string {
	if phase == "prefill" {
		return fmt.Sprintf("a prompt of %d tokens, %d interleaved rounds", o.PromptLen, o.Rounds)
	}
	return fmt.Sprintf("a token, mean of %d after that prompt, %d interleaved rounds", o.Gen, o.Rounds)
}

// processorSets are the processors, alone and in pairs that may work at the same time. Those that are like an earlier
// one, same driver and as many cores, are left out unless all are wanted, and noted in like.
func processorSets(soc *socs.SoC, all bool, like map[string]string) (out [][]string) {
	kind := func(name string) string {
		p := soc.Processor(name)
		return fmt.Sprint(p.Driver, p.Kind, p.Options, len(p.Cores))
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
			if a, b := soc.Processors[i].Name, soc.Processors[j].Name; soc.Concurrent(a, b) == nil {
				add(a, b)
			}
		}
	}
	return out
}

// of are the samples and the prediction of a candidate in a phase.
func (c *candidate) of(phase string) (stat.Summary, []float64, int64) {
	if phase == "prefill" {
		return c.Prefill, c.prefill, c.PrefillNS
	}
	return c.Decode, c.decode, c.DecodeNS
}

func showCandidates(s *cli.Streams, list []*candidate, phase string) {
	var rows [][]string
	fastest := 0.0
	for _, c := range list {
		if x, _, _ := c.of(phase); fastest == 0 || x.Median < fastest {
			fastest = x.Median
		}
	}
	for _, c := range list {
		x, _, predicted := c.of(phase)
		row := []string{c.Name, fmt.Sprintf("%.3f", x.Median/1e6), fmt.Sprintf("%.3f..%.3f", x.Low/1e6, x.High/1e6), "-", "-", ratio(fastest, x.Median)}
		if predicted > 0 {
			row[3], row[4] = fmt.Sprintf("%.3f", float64(predicted)/1e6), fmt.Sprintf("%+.0f %%", 100*(float64(predicted)/x.Median-1))
		}
		rows = append(rows, row)
	}
	s.Table([]string{"processors", ">median ms", ">95 % interval", ">predicted ms", ">error", ">best / this"}, rows)
}

// rate is how fast a processor computes a matrix product, by the profile.
type rate struct {
	Proc string  `json:"proc"`
	Op   string  `json:"op"`
	NS   float64 `json:"ns"`
	Gops float64 `json:"gops"`
	GBps float64 `json:"gbps"`
}

// products are the matrix products that a plan's program for as many rows computes, whole, and how often.
func products(p *planir.Plan, m *models.Model, rows int) (out []op.Op, times []int) {
	g := m.Graph()
	for i := range g.Sections {
		sec := &g.Sections[i]
		for _, n := range sec.Nodes {
			o := n.Ops[len(n.Ops)-1]
			d := p.DecisionFor(sec.Name+"."+n.Name, rows)
			if o.Kind != op.MatMul || d == nil {
				continue
			}
			o.M, o.Scheme, o.Bias = rows, d.Scheme, false
			k := slices.Index(out, o)
			if k < 0 {
				k = len(out)
				out, times = append(out, o), append(times, 0)
			}
			times[k] += max(1, sec.Layers)
		}
	}
	return out, times
}

// profiled is the time in ns of an operator by the profile, alone or beside the half of another processor, 0 if it was
// not measured.
func profiled(set *record.Set, proc string, o op.Op, beside string) float64 {
	var samples []float64
	for _, x := range set.All() {
		if x.Kind != record.Op || x.Proc != proc || x.Op == nil || *x.Op != o || x.HeldOut {
			continue
		}
		if beside == "" && len(x.Concurrent) == 0 || len(x.Concurrent) == 1 && x.Concurrent[0].Proc == beside && x.Concurrent[0].Op != nil {
			samples = append(samples, x.Samples...)
		}
	}
	if len(samples) == 0 {
		return 0
	}
	return stat.Median(samples)
}

// phaseRows is how many rows the largest program of a phase has.
func phaseRows(p *planir.Plan, phase string) int {
	rows := 1
	for _, ph := range p.Program.Programs {
		if phase == "prefill" && ph.Phase == phase {
			rows = max(rows, ph.Rows)
		}
	}
	return rows
}

func showRates(s *cli.Streams, soc *socs.SoC, set *record.Set, p *planir.Plan, m *models.Model) (doc []rate) {
	for _, ph := range []string{"prefill", "decode"} {
		ops, _ := products(p, m, phaseRows(p, ph))
		header := []string{"product"}
		for i := range soc.Processors {
			header = append(header, ">"+soc.Processors[i].Name)
		}
		var rows [][]string
		for _, o := range ops {
			row := []string{o.Key()}
			for i := range soc.Processors {
				name := soc.Processors[i].Name
				ns := profiled(set, name, o, "")
				if ns == 0 {
					row = append(row, "-")
					continue
				}
				r := rate{name, o.Key(), ns, float64(o.Flops()) / ns, float64(o.Bytes()) / ns}
				doc = append(doc, r)
				if ph == "prefill" {
					row = append(row, fmt.Sprintf("%.0f", r.Gops))
				} else {
					row = append(row, fmt.Sprintf("%.1f", r.GBps))
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
		s.Printf("\nmatrix products of %s, from %s, weights cold: %s\n", ph, from, unit)
		s.Table(header, rows)
	}
	return doc
}

// pair is what two processors reach together.
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

func showPairs(s *cli.Streams, soc *socs.SoC, set *record.Set, list []*candidate, like map[string]string, p *planir.Plan, m *models.Model) (doc []pair) {
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
		for _, c := range list {
			names := strings.Split(c.Name, " + ")
			if len(names) != 2 {
				continue
			}
			a, b := find(names[0]), find(names[1])
			if a == nil || b == nil {
				continue
			}
			_, both, _ := c.of(ph)
			_, first, _ := a.of(ph)
			_, second, _ := b.of(ph)
			var speedups, ideals []float64
			for i := range both {
				best := min(first[i], second[i])
				speedups, ideals = append(speedups, best/both[i]), append(ideals, best/first[i]+best/second[i])
			}
			sum, err := stat.Summarise(speedups)
			if err != nil {
				continue
			}
			x := pair{c.Name, ph, sum.Median, sum.Low, sum.High, stat.Median(ideals), contention(soc, set, names, p, m, ph), 0}
			row := []string{x.Processors, ph, fmt.Sprintf("%.2f", x.Speedup), fmt.Sprintf("%.2f..%.2f", x.Low, x.High), fmt.Sprintf("%.2f", x.Ideal), "-", "-"}
			if x.Contention > 0 {
				x.Share = x.Speedup / (x.Ideal * x.Contention)
				row[5], row[6] = fmt.Sprintf("%.2f", x.Contention), fmt.Sprintf("%.2f", x.Share)
			}
			doc, rows = append(doc, x), append(rows, row)
		}
	}
	if len(rows) > 0 {
		s.Printf("\npairs against the better of the two alone; ideal: both at the speed they have alone; contention: joint over separate\nrates of their halves of the products, from the profile\n")
		s.Table([]string{"processors", "phase", ">speed-up", ">95 % interval", ">ideal", ">contention", ">of ideal * contention"}, rows)
	}
	return doc
}

// contention is by how much two processors at work on their halves of a phase's products are slower than each alone,
// mean over the products by time, 0 if nothing was measured.
func contention(soc *socs.SoC, set *record.Set, names []string, p *planir.Plan, m *models.Model, phase string) float64 {
	ops, times := products(p, m, phaseRows(p, phase))
	sum, weight := 0.0, 0.0
	for i, o := range ops {
		separate, joint := 0.0, 0.0
		complete := true
		for k, name := range names {
			half := o
			half.N = profiler.Half(o.N, soc.Processor(name).Tile.N)
			alone, beside := profiled(set, name, half, ""), profiled(set, name, half, names[1-k])
			complete = complete && alone > 0 && beside > 0
			if complete {
				separate, joint = separate+1/alone, joint+1/beside
			}
		}
		if complete {
			w := float64(times[i]) / separate
			sum, weight = sum+w*joint/separate, weight+w
		}
	}
	if weight == 0 {
		return 0
	}
	return sum / weight
}

// comparison is the chosen plan against the best of the others in a phase.
type comparison struct {
	Phase string  `json:"phase"`
	Best  string  `json:"best"`
	Ratio float64 `json:"ratio"` // time of the chosen plan over the best's, median of rounds
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

func showSolved(s *cli.Streams, list []*candidate) (doc []comparison) {
	s.Printf("\n")
	for _, ph := range []string{"prefill", "decode"} {
		var best *candidate
		for _, c := range list[1:] {
			x, _, _ := c.of(ph)
			if best == nil {
				best = c
			} else if y, _, _ := best.of(ph); x.Median < y.Median {
				best = c
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
		x, err := stat.Summarise(ratios)
		if err != nil {
			continue
		}
		doc = append(doc, comparison{ph, best.Name, x.Median, x.Low, x.High})
		s.Printf("%s: the plan solved from the profile takes %.2f (%.2f..%.2f) of the time of the best of the others, %s\n", ph, x.Median, x.Low, x.High, best.Name)
	}
	return doc
}
