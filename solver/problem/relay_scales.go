package problem

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// maxScaleVars bounds the linear program of a choice of scales: a variable for every interval of different samples.
const maxScaleVars = 1 << 17

// ScaleVars says what the variables of Scales.MILP mean.
type ScaleVars struct {
	Values []float64 // by variable: the scale of its interval
	Unit   float64   // objective of the program times Unit is the sum of squared distances
}

// MILP poses the instance as a set partition. The samples that take a scale are neighbours when sorted, so a variable says
// that an interval of different samples shares the scale that is best for it: their mean, with Cover the largest. Every sample
// lies in one interval, and there are at most K. The objective is scaled so that one scale for all costs 1e3.
func (s *Scales) MILP() (*milp.Model, *ScaleVars, error) {
	x := slices.Sorted(slices.Values(s.Samples))
	var first []int // of equal samples, and the end
	for i, v := range x {
		if i == 0 || v != x[i-1] {
			first = append(first, i)
		}
	}
	n := len(first)
	if n*(n+1)/2 > maxScaleVars {
		return nil, nil, diag.New(diag.ClassUnavailable, "scales: %d different samples make a linear program of more than %d variables", n, maxScaleVars).WithHint("use the exact engine")
	}
	first = append(first, len(x))
	// interval is the best scale of samples, and their squared distance to it.
	interval := func(x []float64) (scale, squares float64) {
		if scale = x[len(x)-1]; !s.Cover {
			total := 0.0 // of differences: less is lost
			for _, v := range x {
				total += v - x[0]
			}
			scale = x[0] + total/float64(len(x))
		}
		for _, v := range x {
			squares += float64((v - scale) * (v - scale))
		}
		return scale, squares
	}
	m, vars := &milp.Model{Name: "scales"}, &ScaleVars{Unit: 1}
	if _, all := interval(x); all > 0 {
		vars.Unit = all / 1e3
	}
	held, count := make([][]milp.Term, n), []milp.Term(nil)
	for i := range n {
		for j := i + 1; j <= n; j++ {
			scale, squares := interval(x[first[i]:first[j]])
			t := milp.Term{Var: len(m.Vars), Coef: 1}
			m.Vars = append(m.Vars, milp.Var{Name: fmt.Sprintf("samples %d to %d", first[i], first[j]-1), Cost: squares / vars.Unit, High: 1, Integer: true})
			vars.Values = append(vars.Values, scale)
			count = append(count, t)
			for k := i; k < j; k++ {
				held[k] = append(held[k], t)
			}
		}
	}
	for k, terms := range held {
		m.Rows = append(m.Rows, milp.Row{Name: fmt.Sprintf("held %d", first[k]), Low: 1, High: 1, Terms: terms})
	}
	m.Rows = append(m.Rows, milp.Row{Name: "scales", Low: math.Inf(-1), High: float64(s.K), Terms: count})
	return m, vars, nil
}

// Scales solves the instance with the general engine, to proved optimality: an engine that stops at a limit is an error.
func (r Relay) Scales(ctx context.Context, s *Scales, l Limits) (ScaleSolution, error) {
	if err := s.Validate(); err != nil {
		return ScaleSolution{}, err
	}
	m, vars, err := s.MILP()
	if err != nil {
		return ScaleSolution{}, err
	}
	got, err := r.General.Solve(ctx, m, milp.Options{Nodes: r.limit(l)})
	if err != nil {
		return ScaleSolution{}, fmt.Errorf("solve scales: %w", err)
	}
	if got.Status != milp.Optimal {
		return ScaleSolution{}, diag.New(diag.ClassInfeasible, "solve scales: %s stops with status %v, want optimal", r.General.Name(), got.Status).WithHint("use the exact engine")
	}
	var out ScaleSolution
	for j, v := range vars.Values {
		if got.X[j] > 0.5 {
			out.Scales = append(out.Scales, v)
		}
	}
	slices.Sort(out.Scales)
	out.MSE = s.MSEOf(out.Scales)
	return out, nil
}
