package problem

import (
	"context"
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// maxScaleVars bounds the linear program of a choice of scales: a variable for every interval of different samples.
const maxScaleVars = 1 << 17

// scaleVars says what the variables of Scales.MILP mean.
type scaleVars struct {
	Values []float64 // by variable: the scale of its interval
	Unit   float64   // objective of the program times Unit is the sum of squared distances
}

// milp poses the instance as a set partition. The samples that take a scale are neighbours when sorted, so a variable
// says that an interval of different samples shares the scale that is best for it: their mean, with Cover the largest.
// Every sample lies in one interval, and there are at most K. The objective is scaled so that one scale for all costs
// 1e3.
func (s *Scales) milp() (*milp.Model, *scaleVars, error) {
	samples := slices.Sorted(slices.Values(s.Samples))
	var first []int // of equal samples, and the end
	for i, sample := range samples {
		if i == 0 || sample != samples[i-1] {
			first = append(first, i)
		}
	}
	different := len(first)
	if different*(different+1)/2 > maxScaleVars {
		return nil, nil, diag.New(diag.ClassUnavailable, "scales: %d different samples make a linear program "+
			"of more than %d variables", different, maxScaleVars).WithHint("use the exact engine")
	}
	first = append(first, len(samples))
	model, vars := builder{&milp.Model{Name: "scales"}}, &scaleVars{Unit: 1}
	if _, all := s.interval(samples); all > 0 {
		vars.Unit = all / 1e3
	}
	// All intervals of different samples; held are, for each sample, those that it lies in.
	held, count := make([][]milp.Term, different), []milp.Term(nil)
	for i := range different {
		for j := i + 1; j <= different; j++ {
			scale, squares := s.interval(samples[first[i]:first[j]])
			term := one(model.binary(fmt.Sprintf("samples %d to %d", first[i], first[j]-1), squares/vars.Unit))
			vars.Values = append(vars.Values, scale)
			count = append(count, term)
			for k := i; k < j; k++ {
				held[k] = append(held[k], term)
			}
		}
	}
	for k, terms := range held {
		model.row(fmt.Sprintf("held %d", first[k]), 1, 1, terms)
	}
	model.atMost("scales", float64(s.K), count)
	return model.Model, vars, nil
}

// interval returns the best scale of sorted samples, and the sum of their squared distances to it.
func (s *Scales) interval(samples []float64) (scale, squares float64) {
	if scale = samples[len(samples)-1]; !s.Cover {
		total := 0.0 // of differences: less is lost
		for _, sample := range samples {
			total += sample - samples[0]
		}
		scale = samples[0] + total/float64(len(samples))
	}
	for _, sample := range samples {
		squares += float64((sample - scale) * (sample - scale))
	}
	return scale, squares
}

// Scales solves the instance with the general engine, to proved optimality: an engine that stops at a limit is an
// error.
func (r Relay) Scales(ctx context.Context, scales *Scales, limits Limits) (ScaleSolution, error) {
	if err := scales.Validate(); err != nil {
		return ScaleSolution{}, err
	}
	model, vars, err := scales.milp()
	if err != nil {
		return ScaleSolution{}, err
	}
	got, err := r.General.Solve(ctx, model, milp.Options{Nodes: r.limit(limits)})
	if err != nil {
		return ScaleSolution{}, fmt.Errorf("solve scales: %w", err)
	}
	if got.Status != milp.Optimal {
		return ScaleSolution{}, diag.New(diag.ClassInfeasible, "solve scales: %s stops with status %v, want optimal",
			r.General.Name(), got.Status).WithHint("use the exact engine")
	}
	var out ScaleSolution
	for j, scale := range vars.Values {
		if got.X[j] > 0.5 {
			out.Scales = append(out.Scales, scale)
		}
	}
	slices.Sort(out.Scales)
	out.MSE = scales.MSEOf(out.Scales)
	return out, nil
}
