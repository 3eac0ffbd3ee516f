package explain

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// extraLimits are those of a workload's section limits.
func extraLimits(w *workload.Workload, of string, machine *socs.SoC) []Limit {
	var out []Limit
	add := func(key string, value float64, unitOf string, field func(*workload.Limits) *float64, least func(*solver.Input), used func(*solver.Result) float64) {
		if value == 0 {
			return
		}
		text := func(v float64) string { return fmt.Sprintf("%.6g %s", v, unitOf) }
		set := func(x *solver.Input, v float64) {
			x.Workload = workload.Edited(x.Workload, func(w *workload.Workload) { *field(&w.Limits) = v })
		}
		out = append(out, Limit{Key: key, In: of, Value: text(value), number: value, format: text, set: set, least: least,
			without: func(x *solver.Input) { set(x, 0) }, used: func(_ *solver.Input, r *solver.Result) float64 { return used(r) }})
	}
	slowest := func(phase string) func(*solver.Result) float64 {
		return func(r *solver.Result) float64 {
			most := math.NaN()
			for _, pred := range r.Plan.Predictions {
				if name, _, _ := strings.Cut(pred.Program, "@"); name == phase && !(most >= float64(pred.PlanNS)/1e6) {
					most = float64(pred.PlanNS) / 1e6
				}
			}
			return most
		}
	}
	only := func(weights workload.Weights) func(*solver.Input) {
		return func(x *solver.Input) {
			x.Workload = workload.Edited(x.Workload, func(w *workload.Workload) { w.Weights, w.Minimise = weights, problem.Time })
		}
	}
	unknown := func(*solver.Result) float64 { return math.NaN() }
	add(workload.KeyPrefill, w.Limits.PrefillMS, "ms", func(l *workload.Limits) *float64 { return &l.PrefillMS }, only(workload.Weights{Prefill: 1}), slowest("prefill"))
	add(workload.KeyDecode, w.Limits.DecodeMS, "ms", func(l *workload.Limits) *float64 { return &l.DecodeMS }, only(workload.Weights{Decode: 1}), slowest("decode"))
	add(workload.KeyEnergy, w.Limits.EnergyMJ, "mJ, modelled", func(l *workload.Limits) *float64 { return &l.EnergyMJ }, minimising(problem.Energy), func(r *solver.Result) float64 {
		if r.ExpectedNJ == 0 {
			return math.NaN()
		}
		return r.ExpectedNJ / 1e6
	})
	add(workload.KeyOpen, w.Limits.OpenMS, "ms", func(l *workload.Limits) *float64 { return &l.OpenMS }, nil, unknown)
	if e := w.Experts; e.MaxUSToken > 0 {
		text := func(v float64) string { return fmt.Sprintf("%.6g us", v) }
		set := func(x *solver.Input, v float64) {
			x.Workload = workload.Edited(x.Workload, func(w *workload.Workload) { w.Experts.MaxUSToken = v })
		}
		out = append(out, Limit{Key: workload.KeyExperts, In: of, Value: text(e.MaxUSToken), number: e.MaxUSToken, format: text, set: set,
			without: func(x *solver.Input) { set(x, workload.MaxLimit) }})
	}
	for _, name := range slices.Sorted(maps.Keys(w.Limits.AddressBytes)) {
		text := func(v float64) string { return unit.Bytes(v).String() }
		value := float64(w.Limits.AddressBytes[name])
		set := func(x *solver.Input, v float64) {
			x.Workload = workload.Edited(x.Workload, func(w *workload.Workload) {
				w.Limits.AddressBytes = maps.Clone(w.Limits.AddressBytes)
				w.Limits.AddressBytes[name] = unit.Bytes(v)
				if v == 0 {
					delete(w.Limits.AddressBytes, name)
				}
			})
		}
		out = append(out, Limit{Key: workload.KeyAddress + name, In: of, Value: text(value), number: value, format: text, whole: true, set: set,
			without: func(x *solver.Input) { set(x, 0) }, used: loaded(machine, name, func(l check.Loaded) float64 { return float64(l.Bytes) })})
	}
	for _, name := range slices.Sorted(maps.Keys(w.Limits.MaxGraphs)) {
		text := func(v float64) string { return fmt.Sprintf("%.0f graphs", v) }
		value := float64(w.Limits.MaxGraphs[name])
		set := func(x *solver.Input, v float64) {
			x.Workload = workload.Edited(x.Workload, func(w *workload.Workload) {
				w.Limits.MaxGraphs = maps.Clone(w.Limits.MaxGraphs)
				w.Limits.MaxGraphs[name] = int(v)
				if v == 0 {
					delete(w.Limits.MaxGraphs, name)
				}
			})
		}
		out = append(out, Limit{Key: workload.KeyGraphs + name, In: of, Value: text(value), number: value, format: text, whole: true, set: set,
			without: func(x *solver.Input) { set(x, 0) }, used: loaded(machine, name, func(l check.Loaded) float64 { return float64(l.Graphs) })})
	}
	return out
}

// loaded is what a processor holds of a plan.
func loaded(machine *socs.SoC, name string, of func(check.Loaded) float64) func(*solver.Input, *solver.Result) float64 {
	return func(_ *solver.Input, r *solver.Result) float64 {
		p := machine.Processor(name)
		if p == nil {
			return math.NaN()
		}
		return of(check.Load(r.Plan, p))
	}
}
