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

// extraLimits returns the limits in a workload's sections limits and experts.
func extraLimits(work *workload.Workload, of string, machine *socs.SoC) []Limit {
	opening := func(r *solver.Result) (ms float64) {
		for i := range r.Plan.Program.Graphs {
			ms += machine.Processor(r.Plan.Program.Graphs[i].Proc).CompileMS
		}
		return ms
	}
	energy := func(r *solver.Result) float64 {
		if r.ExpectedNJ == 0 {
			return math.NaN()
		}
		return r.ExpectedNJ / 1e6
	}
	var out []Limit
	// least makes the quantity all that solve minimises: no bound below what it then gets has a plan.
	for _, row := range []struct {
		key, unit string
		field     func(*workload.Limits) *float64
		least     func(*solver.Input)
		used      func(*solver.Result) float64
	}{
		{workload.KeyPrefill, "ms", func(l *workload.Limits) *float64 { return &l.PrefillMS },
			fastest(workload.Weights{Prefill: 1}), slowest("prefill")},
		{workload.KeyDecode, "ms", func(l *workload.Limits) *float64 { return &l.DecodeMS },
			fastest(workload.Weights{Decode: 1}), slowest("decode")},
		{workload.KeyEnergy, "mJ, modelled", func(l *workload.Limits) *float64 { return &l.EnergyMJ },
			minimising(problem.Energy), energy},
		{workload.KeyOpen, "ms", func(l *workload.Limits) *float64 { return &l.OpenMS }, nil, opening},
	} {
		value := *row.field(&work.Limits)
		if value == 0 {
			continue
		}
		text := func(value float64) string { return fmt.Sprintf("%.6g %s", value, row.unit) }
		set := func(in *solver.Input, value float64) {
			in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { *row.field(&w.Limits) = value })
		}
		limit := numeric(row.key, of, value, text, set,
			func(_ *solver.Input, result *solver.Result) float64 { return row.used(result) })
		limit.least, limit.most = row.least, workload.MaxLimit
		out = append(out, limit)
	}

	out = append(out, perProcessor(work, of, workload.KeyAddress, bytesText,
		func(l *workload.Limits) *map[string]unit.Bytes { return &l.AddressBytes },
		func(l check.Loaded) float64 { return float64(l.Bytes) })...)
	return append(out, perProcessor(work, of, workload.KeyGraphs, graphsText,
		func(l *workload.Limits) *map[string]int { return &l.MaxGraphs },
		func(l check.Loaded) float64 { return float64(l.Graphs) })...)
}

// perProcessor returns the limits that a field of a workload's limits sets by processor. used returns the amount that a
// processor loads.
func perProcessor[V unit.Bytes | int](work *workload.Workload, of, key string, format func(float64) string,
	field func(*workload.Limits) *map[string]V, used func(check.Loaded) float64) (out []Limit) {
	values := *field(&work.Limits)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		set := func(in *solver.Input, value float64) {
			in.Workload = workload.Edited(in.Workload, func(work *workload.Workload) {
				list := field(&work.Limits)
				*list = maps.Clone(*list)
				(*list)[name] = V(value)
				if value == 0 {
					delete(*list, name)
				}
			})
		}
		limit := numeric(key+name, of, float64(values[name]), format, set,
			func(_ *solver.Input, result *solver.Result) float64 { return used(result.Load(name)) })
		limit.whole = true
		out = append(out, limit)
	}
	return out
}

// slowest returns the longest predicted call of a phase, in ms; NaN without one.
func slowest(phase string) func(*solver.Result) float64 {
	return func(result *solver.Result) float64 {
		most := math.NaN()
		for _, prediction := range result.Plan.Predictions {
			ms := float64(prediction.PlanNS) / 1e6
			name, _, _ := strings.Cut(prediction.Program, "@")
			if name == phase && !(most >= ms) { // also where none is known yet
				most = ms
			}
		}
		return most
	}
}

// fastest has solve look for the least time, with phases that count as the weights say.
func fastest(weights workload.Weights) func(*solver.Input) {
	return func(in *solver.Input) {
		in.Workload = workload.Edited(in.Workload,
			func(w *workload.Workload) { w.Weights, w.Minimise = weights, problem.Time })
	}
}
