package traffic

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/serving"
	"github.com/hetc/hetc/socs"
)

// ProcessorReport is how long a processor works in a simulated trace. Nothing of it is measured: busy time is what the
// plan expects of the processor's steps, and energy the SoC's power_w for as long as it is busy.
type ProcessorReport struct {
	Proc        string  `json:"proc"`
	Busy        float64 `json:"busy"`                        // share of the trace's time
	WhileActive float64 `json:"busy_while_active"`           // share of the time in which the machine does anything
	EnergyJ     float64 `json:"modelled_energy_j,omitempty"` // 0: the SoC does not say what the processor takes
}

// usage adds up how long processors work.
type usage struct {
	plan  *planir.Plan
	times *serving.Times
	busy  map[string]float64 // ns by processor
}

// newUsage has no work.
func newUsage(plan *planir.Plan, times *serving.Times) *usage {
	return &usage{plan, times, map[string]float64{}}
}

// called adds a call of a program of all processors that takes ns: with fewer rows than the program has, all of its
// steps take less.
func (u *usage) called(program *planir.PhaseProgram, ns int64) {
	whole := int64(0)
	if program != nil {
		whole = u.times.Of(program)
	}
	if whole <= 0 {
		return
	}
	for proc, busy := range u.plan.BusyNS(program) {
		u.busy[proc] += float64(busy) * float64(ns) / float64(whole)
	}
}

// chunk adds a call that processes a chunk of a prompt, of which some tokens are left: it computes no logits.
func (u *usage) chunk(program *planir.PhaseProgram) {
	if program == nil {
		return
	}
	for proc, busy := range u.plan.BusyWithoutLogitsNS(program) {
		u.busy[proc] += float64(busy)
	}
}

// alone adds time in which a processor works by itself, beside another one.
func (u *usage) alone(proc string, ns int64) { u.busy[proc] += float64(ns) }

// report returns the share of each processor in a trace of so many seconds, of which the machine did something for busy
// ns.
func (u *usage) report(seconds float64, busy int64) (out []ProcessorReport) {
	for i := range u.plan.Procs {
		name := u.plan.Procs[i].Name
		if worked := u.busy[name]; worked > 0 {
			out = append(out, ProcessorReport{Proc: name, Busy: worked / 1e9 / seconds, WhileActive: worked / float64(max(1, busy))})
		}
	}
	slices.SortFunc(out, func(a, b ProcessorReport) int { return cmp.Compare(a.Proc, b.Proc) })
	return out
}

// Energy fills in what processors take by the power of a SoC, and the energy of a token, prompts included
// (Agent.xpu sec. 6.1). nil, or a processor without power_w: it is not known.
func (r *Report) Energy(soc *socs.SoC) {
	r.TokenJ = 0
	total, known := 0.0, soc != nil && len(r.Processors) > 0
	for i := range r.Processors {
		at := &r.Processors[i]
		at.EnergyJ = 0
		if soc == nil {
			continue
		}
		proc := soc.Processor(at.Proc)
		if proc == nil || proc.PowerW == 0 {
			known = false
			continue
		}
		at.EnergyJ = at.Busy * r.Seconds * proc.PowerW
		total += at.EnergyJ
	}
	if known && r.Processed > 0 {
		r.TokenJ = total / float64(r.Processed)
	}
}

// showProcessors prints how long processors work, and what that takes, under each policy.
func showProcessors(ui *cli.Streams, reports []*Report) {
	var rows [][]string
	for _, report := range reports {
		for i, at := range report.Processors {
			energy, token := "-", ""
			if at.EnergyJ > 0 {
				energy = fmt.Sprintf("%.2f", at.EnergyJ)
			}
			if i == 0 {
				token = "-"
				if report.TokenJ > 0 {
					token = fmt.Sprintf("%.4f", report.TokenJ)
				}
			}
			rows = append(rows, []string{string(report.Policy), at.Proc, fmt.Sprintf("%.0f %%", 100*at.Busy),
				fmt.Sprintf("%.0f %%", 100*at.WhileActive), energy, token})
		}
	}
	ui.Table([]string{"policy", "processor", ">busy", ">while active", ">modelled J", ">modelled J a token"}, rows)
}
