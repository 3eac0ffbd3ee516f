// Package planview knows how a plan is told to people: tables of predictions and decisions, sentences on
// limits, memory, capacity tiers and compiled graphs.
package planview

import (
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
	"github.com/hetc/hetc/solver/problem"
)

// ShowEvidence says what a plan is that was not measured on the machine that executes it.
func ShowEvidence(s *cli.Streams, p *planir.Plan) {
	if text := p.EvidenceText(); text != "" {
		s.Printf("%s\n", text)
	}
}

// LeftOut are the buckets that a workload lists and the plan has no program for, ascending.
func LeftOut(listed workload.Rows, p *planir.Plan) []int {
	out := []int{}
	for _, rows := range listed {
		has := func(ph planir.Phase) bool { return ph.Phase == "prefill" && ph.Rows == rows }
		if rows > 0 && !slices.ContainsFunc(p.Program.Programs, has) {
			out = append(out, rows)
		}
	}
	return out
}

// ShowSizes tells which buckets and batches were chosen, among how many.
func ShowSizes(s *cli.Streams, p *planir.Plan) {
	unit := "ms"
	if slices.ContainsFunc(p.Solver, func(x planir.Solve) bool { return strings.Contains(x.Problem, string(problem.Energy)) }) {
		unit = "mJ"
	}
	for _, x := range p.Solver {
		var rows []string
		for i := range p.Program.Programs {
			if n := p.Program.Programs[i].Rows; n > 1 && p.Decodes(n) == (x.Problem == "batches") {
				rows = append(rows, strconv.Itoa(n))
			}
		}
		list := strings.Join(rows, ", ")
		if list == "" {
			list = "none"
		}
		switch x.Problem {
		case "buckets":
			s.Printf("buckets: %s of %d candidates; %.3f %s of prefill a prompt, at least %.3f by the candidates' costs (%s)\n", list, x.Choices, float64(x.ObjectiveNS)/1e6, unit, float64(x.BoundNS)/1e6, x.Status)
		case "batches":
			s.Printf("batches: %s of %d candidates; %.3f %s of decode a token, at least %.3f by the candidates' costs (%s)\n", list, x.Choices, float64(x.ObjectiveNS)/1e6, unit, float64(x.BoundNS)/1e6, x.Status)
		}
	}
}

// ShowLimits tells what a plan is predicted to lose and to hold.
func ShowLimits(s *cli.Streams, p *planir.Plan) {
	for _, q := range p.Quality {
		limit := ""
		if q.MaxKL > 0 {
			limit = fmt.Sprintf(" of at most %.3g", q.MaxKL)
			if q.MaxKL <= workload.Lossless {
				limit = " of at most 0"
			}
		}
		s.Printf("%s: predicted KL %.3g%s nats a token, from calibration\n", q.Phase, q.KL, limit)
	}
	ShowStatic(s, p)
	if m := p.Memory; m != nil {
		limit := ""
		if m.Max > 0 {
			limit = fmt.Sprintf(" of at most %v", unit.Bytes(m.Max))
		}
		s.Printf("memory: predicted %v%s, with every program loaded and a full context: %s\n", unit.Bytes(m.Total), limit, m)
	}
}

// ShowStatic tells in which phases activations have static scales.
func ShowStatic(s *cli.Streams, p *planir.Plan) {
	count, scheme := map[string]int{}, map[string]op.Scheme{}
	for i := range p.Decisions {
		if d := &p.Decisions[i]; d.Scheme.Static() {
			phase := "prefill"
			if p.Decodes(d.Rows) {
				phase = "decode"
			}
			what := phase + " " + string(d.Scheme)
			count[what]++
			scheme[what] = d.Scheme
		}
	}
	for _, what := range slices.Sorted(maps.Keys(count)) {
		beyond, choice := "what", ""
		if scheme[what].Grid() {
			beyond = fmt.Sprintf("%d times what", calibration.GridMargin)
		}
		if n := scheme[what].Scales(); n > 1 {
			choice = fmt.Sprintf("every row has the smallest of %d that holds it, and ", n)
		}
		s.Printf("static scales: %s in %d decisions: %sactivations that exceed %s the calibration saw are clipped\n", what, count[what], choice, beyond)
	}
}

func ShowPredictions(s *cli.Streams, p *planir.Plan) {
	if len(p.Predictions) == 0 {
		return
	}
	header := []string{"program", ">plan ms", ">interval"}
	var procs []string // that execute some program alone
	for _, pr := range p.Predictions {
		for _, x := range pr.Singles {
			procs = append(procs, x.Proc)
		}
	}
	slices.Sort(procs)
	procs = slices.Compact(procs)
	for _, name := range procs {
		header = append(header, ">"+name+" ms")
	}
	header = append(header, ">best single / plan", ">tokens/s")
	energy := slices.ContainsFunc(p.Predictions, func(x planir.Prediction) bool { return x.EnergyUJ > 0 })
	if energy {
		header = append(header, ">mJ (modelled)")
	}
	ms := func(ns int64) string { return fmt.Sprintf("%.3f", float64(ns)/1e6) }
	var rows [][]string
	for _, pr := range p.Predictions {
		row := []string{pr.Program, ms(pr.PlanNS), ms(pr.LowNS) + ".." + ms(pr.HighNS)}
		best := int64(0)
		for _, name := range procs {
			k := slices.IndexFunc(pr.Singles, func(x planir.SingleTime) bool { return x.Proc == name })
			if k < 0 {
				row = append(row, "-")
				continue
			}
			ns := pr.Singles[k].NS
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
		if i := slices.IndexFunc(p.Program.Programs, func(ph planir.Phase) bool { return ph.Name == pr.Program }); i >= 0 {
			row = append(row, fmt.Sprintf("%.1f", float64(p.Program.Programs[i].Rows)*1e9/float64(max(1, pr.PlanNS))))
		}
		if energy {
			mj := "-"
			if pr.EnergyUJ > 0 {
				mj = fmt.Sprintf("%.3f", float64(pr.EnergyUJ)/1e3)
			}
			row = append(row, mj)
		}
		rows = append(rows, row)
	}
	what := "predicted"
	if times := p.SoC.Times(); times != "" {
		what = "predicted from " + times
	}
	s.Printf("%s:\n", what)
	s.Table(header, rows)
}

// ShowTarget tells that a plan is for the device of its SoC.
func ShowTarget(s *cli.Streams, p *planir.Plan) {
	if !p.SoC.Target {
		return
	}
	var procs []string
	for i := range p.Procs {
		procs = append(procs, p.Procs[i].Name)
	}
	times := ""
	if p.SoC.Simulated {
		times = "; its times are simulated"
	}
	s.Printf("target %s: only processors with target data, with what they execute there (%s)%s\n", p.SoC.Name, strings.Join(procs, ", "), times)
}
