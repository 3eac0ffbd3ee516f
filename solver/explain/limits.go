package explain

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// Limit is one restriction that a user sets on plans, named after the place where it was written.
type Limit struct {
	Key   string `json:"key"`   // "memory", "--max-memory", "npu.address_bytes"
	In    string `json:"in"`    // "workload", "soc", "command line"
	Value string `json:"value"` // as people write it

	number      float64 // of a number, in the unit that format takes
	most        float64 // that it may be; 0: not known
	format      func(float64) string
	holdsMemory bool                                        // of what a process holds
	whole       bool                                        // values between two whole numbers mean nothing
	without     func(*solver.Input)                         // takes it away
	set         func(*solver.Input, float64)                // gives it another number; nil for lists
	used        func(*solver.Input, *solver.Result) float64 // what a plan takes of it; nil where plans do not tell
	least       func(*solver.Input)                         // has solve minimise it; nil where it cannot
	wider       []wider                                     // of a list: what may be added
}

// wider is an addition to a list that a limit permits.
type wider struct {
	text string
	do   func(*solver.Input)
}

// String returns the limit as a sentence names it.
func (l *Limit) String() string {
	if strings.HasPrefix(l.Key, "--") {
		return l.Key + " " + l.Value
	}
	return fmt.Sprintf("%s: %s (%s)", l.Key, l.Value, l.In)
}

// limitsOf lists the limits of an input in a fixed order: of memory, of the workload, of the command line, of the
// SoC.
func limitsOf(in *solver.Input) []Limit {
	work := in.Workload
	if work == nil {
		work = workload.Default()
	}
	of := "workload"
	if work.Name != "" {
		of = work.Title()
	}
	out := memoryLimits(in, work, of)
	out = append(out, extraLimits(work, of, in.SoC)...)
	out = append(out, qualityLimits(in, work, of)...)
	out = append(out, schemeLimits(in, work, of)...)
	if len(in.Only) > 0 {
		out = append(out, onlyLimit(in))
	}
	return append(out, socLimits(in)...)
}

// numeric returns a limit that is a number, and none where it is set to 0. used is what a plan takes of it.
func numeric(key, where string, value float64, format func(float64) string, set func(*solver.Input, float64),
	used func(*solver.Input, *solver.Result) float64) Limit {
	return Limit{
		Key: key, In: where, Value: format(value), number: value, format: format, set: set, used: used,
		without: func(x *solver.Input) { set(x, 0) },
	}
}

// bytesText and graphsText write the value of a limit with its unit.
func bytesText(x float64) string  { return unit.Bytes(x).String() }
func graphsText(x float64) string { return fmt.Sprintf("%.0f graphs", x) }

// memoryLimits returns the limit on the memory of a process: the command line's, else the workload's.
func memoryLimits(in *solver.Input, work *workload.Workload, of string) []Limit {
	bound := func(x *solver.Input, value float64) {
		x.Workload = workload.Edited(x.Workload, func(w *workload.Workload) { w.Memory = unit.Bytes(value) })
	}
	total := func(_ *solver.Input, r *solver.Result) float64 { return float64(r.Plan.Memory.Total) }
	var limit Limit
	switch {
	case in.MaxMemory > 0:
		limit = numeric("--max-memory", "command line",
			float64(in.MaxMemory), bytesText, func(x *solver.Input, value float64) {
				// Taking --max-memory away uncovers the workload's bound, which goes too.
				x.MaxMemory = int64(value)
				if value == 0 {
					bound(x, 0)
				}
			}, total)
	case work.Memory > 0:
		limit = numeric(workload.KeyMemory, of, float64(work.Memory), bytesText, bound, total)
	default:
		return nil
	}
	limit.holdsMemory, limit.whole = true, true
	limit.least = minimising(problem.Memory)
	return []Limit{limit}
}

// onlyLimit returns the list of processors that the command line permits.
func onlyLimit(in *solver.Input) Limit {
	limit := Limit{Key: "--only", In: "command line", Value: strings.Join(in.Only, ",")}
	limit.without = func(x *solver.Input) { x.Only = nil }
	for i := range in.SoC.Processors {
		name := in.SoC.Processors[i].Name
		if !slices.Contains(in.Only, name) {
			add := func(x *solver.Input) { x.Only = append(slices.Clone(x.Only), name) }
			limit.wider = append(limit.wider, wider{name, add})
		}
	}
	return limit
}

// socLimits returns the limits on what the SoC's processors hold.
func socLimits(in *solver.Input) []Limit {
	var out []Limit
	soc := fmt.Sprintf("SoC %q", in.SoC.Name)
	for i := range in.SoC.Processors {
		proc := &in.SoC.Processors[i]
		add := func(key string, value float64, format func(float64) string, field func(*socs.Processor, float64),
			used func(*solver.Input, *solver.Result) float64) {
			if value == 0 {
				return
			}
			set := func(x *solver.Input, value float64) { editProc(x, i, func(p *socs.Processor) { field(p, value) }) }
			limit := numeric(proc.Name+key, soc, value, format, set, used)
			limit.whole = true
			out = append(out, limit)
		}
		add(".address_bytes", float64(proc.AddressBytes), bytesText,
			func(p *socs.Processor, value float64) { p.AddressBytes = int64(value) },
			func(_ *solver.Input, r *solver.Result) float64 { return float64(r.Load(proc.Name).Bytes) })
		add(".graph_bytes", float64(proc.GraphBytes), bytesText,
			func(p *socs.Processor, value float64) { p.GraphBytes = int64(value) },
			func(_ *solver.Input, r *solver.Result) float64 { return float64(largestGraph(r.Plan, proc.Name)) })
		add(".max_graphs", float64(proc.MaxGraphs), graphsText,
			func(p *socs.Processor, value float64) { p.MaxGraphs = int(value) },
			func(_ *solver.Input, r *solver.Result) float64 { return float64(r.Load(proc.Name).Graphs) })
	}
	return out
}

// qualityLimits returns the limits of quality: one if both phases have the same.
func qualityLimits(in *solver.Input, work *workload.Workload, of string) []Limit {
	var out []Limit
	add := func(key string, value float64, phases ...string) {
		// One number is set in every phase that the limit is for.
		set := func(x *solver.Input, value float64) {
			x.Workload = workload.Edited(x.Workload, func(work *workload.Workload) {
				for _, ph := range phases {
					to, schemes := &work.Quality.MaxKL.Prefill, &work.Schemes.Prefill
					if ph == "decode" {
						to, schemes = &work.Quality.MaxKL.Decode, &work.Schemes.Decode
					}
					*to = value
					if value == workload.LargestKL && in.Calibration == nil {
						// What is lost is not known: the permission stays.
						if *to = 0; len(*schemes) == 0 {
							*schemes = dynamic()
						}
					}
				}
			})
		}
		limit := Limit{Key: key, In: of, Value: workload.KLText(value), number: value, format: workload.KLText,
			without: func(x *solver.Input) { set(x, workload.LargestKL) }}
		// Without a calibration losses are unknown: the limit can be taken away but not be given a number.
		if in.Calibration != nil {
			limit.set, limit.used = set, func(_ *solver.Input, r *solver.Result) float64 {
				most := math.NaN()
				for _, quality := range r.Plan.Quality {
					if slices.Contains(phases, quality.Phase) {
						most = max(quality.KL, most)
						if math.IsNaN(most) {
							most = quality.KL
						}
					}
				}
				return most
			}
		}
		out = append(out, limit)
	}
	switch limit := work.Quality.MaxKL; {
	case limit.Prefill > 0 && limit.Prefill == limit.Decode:
		add("quality.max_kl", limit.Prefill, "prefill", "decode")
	default:
		if limit.Prefill > 0 {
			add("quality.max_kl.prefill", limit.Prefill, "prefill")
		}
		if limit.Decode > 0 {
			add("quality.max_kl.decode", limit.Decode, "decode")
		}
	}
	return out
}

// minimising has solve look for the plan that takes least of a measure.
func minimising(m problem.Measure) func(*solver.Input) {
	return func(x *solver.Input) {
		x.Workload = workload.Edited(x.Workload, func(w *workload.Workload) { w.Minimise = m })
	}
}

// editProc changes a processor of a copy of the SoC.
func editProc(in *solver.Input, i int, change func(*socs.Processor)) {
	edited := *in.SoC
	edited.Processors = slices.Clone(edited.Processors)
	change(&edited.Processors[i])
	in.SoC = &edited
	in.WhatIf.OtherSoC = true
}

// schemeLimits returns the precisions that a workload permits, and those that the processors execute.
func schemeLimits(in *solver.Input, work *workload.Workload, of string) []Limit {
	out := permittedSchemes(work, of)
	if limit := executedSchemes(in); len(limit.wider) > 0 {
		out = append(out, limit)
	}
	return out
}

// schemesText writes a list of schemes as workloads have it.
func schemesText(list []op.Scheme) string {
	names := make([]string, len(list))
	for i, scheme := range list {
		names[i] = string(scheme)
	}
	return "[" + strings.Join(names, ", ") + "]"
}

// permittedSchemes returns the lists of precisions of a workload. A list can be taken away, or made longer by one
// scheme, each of which is solved for itself.
func permittedSchemes(work *workload.Workload, of string) (out []Limit) {
	for _, phase := range []struct {
		name string
		of   func(*workload.Schemes) *[]op.Scheme
		max  float64
	}{
		{"prefill", func(s *workload.Schemes) *[]op.Scheme { return &s.Prefill }, work.Quality.MaxKL.Prefill},
		{"decode", func(s *workload.Schemes) *[]op.Scheme { return &s.Decode }, work.Quality.MaxKL.Decode},
		{"head", func(s *workload.Schemes) *[]op.Scheme { return &s.Head }, 0},
		{"prefill_head", func(s *workload.Schemes) *[]op.Scheme { return &s.PrefillHead }, 0},
	} {
		list := *phase.of(&work.Schemes)
		if len(list) == 0 && (phase.max > 0 || strings.HasSuffix(phase.name, "head")) {
			continue // a limit of quality permits all
		}
		limit := Limit{Key: "schemes." + phase.name, In: of, Value: schemesText(list)}
		if len(list) == 0 {
			list = []op.Scheme{op.A32W32}
			limit.Value = "left out: a32/w32, as stored"
		}
		set := func(in *solver.Input, list []op.Scheme) {
			in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { *phase.of(&w.Schemes) = list })
		}
		// Taken away means that every scheme is permitted which needs no calibration.
		limit.without = func(in *solver.Input) { set(in, dynamic()) }
		for _, scheme := range dynamic() {
			if !slices.Contains(list, scheme) {
				add := func(in *solver.Input) { set(in, append(slices.Clone(list), scheme)) }
				limit.wider = append(limit.wider, wider{string(scheme), add})
			}
		}
		out = append(out, limit)
	}
	return out
}

// executedSchemes returns the precisions that the processors execute. What they lack may be taught to them: how fast
// they would be is unknown, so that only feasibility is asked.
func executedSchemes(in *solver.Input) Limit {
	var have []op.Scheme
	for _, scheme := range op.Schemes {
		executes := func(p socs.Processor) bool { return slices.Contains(p.Schemes, scheme) }
		if slices.ContainsFunc(in.SoC.Processors, executes) {
			have = append(have, scheme)
		}
	}

	taught := func(list ...op.Scheme) func(*solver.Input) {
		return func(in *solver.Input) {
			in.WhatIf.AnyScheme = true
			for i := range in.SoC.Processors {
				editProc(in, i, func(p *socs.Processor) { teach(p, in.SoC, list) })
			}
		}
	}
	limit := Limit{Key: "processors.schemes", In: fmt.Sprintf("SoC %q", in.SoC.Name),
		Value: "all of them together execute " + schemesText(have), without: taught(dynamic()...)}
	for _, scheme := range dynamic() {
		if !slices.Contains(have, scheme) {
			limit.wider = append(limit.wider, wider{string(scheme), taught(scheme)})
		}
	}
	return limit
}

// dynamic returns the schemes that need no calibration.
func dynamic() []op.Scheme {
	return slices.DeleteFunc(slices.Clone(op.Schemes), func(x op.Scheme) bool { return x.Static() })
}

// teach adds schemes to those that a processor executes, in layouts that another processor reads.
func teach(proc *socs.Processor, s *socs.SoC, list []op.Scheme) {
	proc.Schemes = slices.Clone(proc.Schemes)
	layouts := map[string]string{}
	maps.Copy(layouts, proc.Layouts)
	for _, scheme := range list {
		if !slices.Contains(proc.Schemes, scheme) {
			proc.Schemes = append(proc.Schemes, scheme)
		}
		if layouts[scheme.Weight()] == "" {
			layouts[scheme.Weight()] = op.TilesLayout
		}
	}
	proc.Layouts = layouts
}

// largestGraph returns the bytes of weights in the largest graph of a processor, as rule P014 counts them.
func largestGraph(plan *planir.Plan, proc string) int64 {
	var most int64
	for i := range plan.Program.Graphs {
		graph := &plan.Program.Graphs[i]
		if graph.Proc != proc {
			continue
		}
		var bytes int64
		for _, w := range graph.Graph.Weights {
			if w.Layout != op.RowsLayout {
				bytes += int64(max(1, w.Experts)) * op.WeightBytes(w.Scheme, w.K, w.N)
			}
		}
		most = max(most, bytes)
	}
	return most
}

// attempt is a solve under other limits.
type attempt struct {
	result *solver.Result // nil: no plan
	err    error          // why there is none
}

// feasible reports whether there is a plan. known is false if something other than limits prevented the answer.
func (a *attempt) feasible() (yes, known bool) {
	return a.result != nil, a.result != nil || diag.ClassOf(a.err) == diag.ClassInfeasible
}

// trial solves inputs under other limits.
type trial struct {
	in     solver.Input
	limits []Limit
	most   int // solves
	made   int
	known  map[string]attempt // by which limits hold
	what   string             // solves are for, as progress tells
}

// newTrial makes a trial without solves so far. All its solves share prices, which do not depend on the limits.
func newTrial(in solver.Input, limits []Limit) *trial {
	if in.Prices == nil {
		in.Prices = price.NewFitted(in.Costs, in.SoC)
	}
	return &trial{in: in, limits: limits, most: 400, known: map[string]attempt{}}
}

// errTrials ends a search that would solve too often.
var errTrials = diag.New(diag.ClassInternal, "too many solves")

// solve calls Solve for the input with changes.
func (t *trial) solve(ctx context.Context, changes ...func(*solver.Input)) (attempt, error) {
	if t.made++; t.made > t.most {
		return attempt{}, errTrials
	}
	in := t.in
	// Progress of the solve is passed on under the trial's name, with the number of the solve.
	if tell := in.Progress; tell != nil { // of this solve as a part of the whole
		made := t.made
		in.Progress = func(p solver.Progress) {
			p.Phase = strings.TrimPrefix(fmt.Sprintf("%s, solve %d: %s", t.what, made, p.Phase), ", ")
			tell(p)
		}
	}
	for _, c := range changes {
		if c != nil {
			c(&in)
		}
	}
	result, err := solver.Solve(ctx, in)
	// Being interrupted is no answer, and must not be kept as one.
	if err != nil && (diag.ClassOf(err) == diag.ClassInterrupted || ctx.Err() != nil) {
		return attempt{}, err
	}
	return attempt{result, err}, nil
}

// possible solves only to find out whether there is a plan. It permits only whole operators, with which a plan is found
// much sooner than the best one.
func (t *trial) possible(ctx context.Context, changes ...func(*solver.Input)) (attempt, error) {
	// Inputs that restrict the strategies themselves are solved as they are.
	if len(t.in.Strategies) == 0 && len(t.in.Ratio) == 0 {
		at, err := t.solve(ctx, append(slices.Clone(changes),
			func(in *solver.Input) { in.Strategies = []planir.Strategy{planir.Single, planir.Padding} })...)
		if at.result != nil || err != nil {
			return at, err
		}
	}
	return t.solve(ctx, changes...)
}

// holding solves with the limits for which holds is true, and without the others.
func (t *trial) holding(ctx context.Context, holds []bool) (attempt, error) {
	key := fmt.Sprint(holds)
	if at, ok := t.known[key]; ok {
		return at, nil
	}
	var changes []func(*solver.Input)
	for i := range t.limits {
		if !holds[i] {
			changes = append(changes, t.limits[i].without)
		}
	}
	attempt, err := t.possible(ctx, changes...)
	if err == nil {
		t.known[key] = attempt
	}
	return attempt, err
}
