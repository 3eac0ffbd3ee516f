package milp

import (
	"math"

	"github.com/hetc/hetc/internal/diag"
)

// Tolerance is how far an answer may be off: a whole variable from a whole number; a value from its bound, relative
// to the bound where that is above 1; a row from its bound, relative to the sum of its terms' sizes where that is
// above 1; an objective that an engine claims from the one recomputed, likewise relative.
const Tolerance = 1e-6

// Verify checks values for the variables of a valid model. It returns them with whole variables rounded and values that
// are outside their bounds by rounding errors put onto them, and the objective of these; rows are checked for
// what is returned. The error is of class ClassInternal and names the variable or row.
func (m *Model) Verify(x []float64) (exact []float64, objective float64, err error) {
	fail := func(format string, args ...any) ([]float64, float64, error) {
		return nil, 0, diag.New(diag.ClassInternal, "answer for model %q: "+format, append([]any{m.Name}, args...)...)
	}
	if len(x) != len(m.Vars) {
		return fail("%d values for %d variables", len(x), len(m.Vars))
	}
	exact = make([]float64, len(x))
	objective = m.Offset
	for j := range m.Vars {
		v, y := &m.Vars[j], x[j]
		if !within(y, 2*MaxBound) {
			return fail("variable %q is %v", v.Name, y)
		}
		if v.Integer {
			whole := math.Round(y)
			if math.Abs(whole-y) > Tolerance {
				return fail("variable %q is %v, want a whole number", v.Name, y)
			}
			y = whole
		}
		if low, high := v.Low, v.High; y < low-slack(low) || y > high+slack(high) {
			return fail("variable %q is %v, want %v..%v", v.Name, y, low, high)
		}
		if !v.Integer {
			y = min(max(y, v.Low), v.High)
		}
		exact[j] = y + 0 // no negative zero
		objective += float64(v.Cost * y)
	}
	for i := range m.Rows {
		r := &m.Rows[i]
		sum, size := 0.0, 1.0
		for _, t := range r.Terms {
			p := float64(t.Coef * exact[t.Var])
			sum += p
			size += math.Abs(p)
		}
		if off := float64(Tolerance * size); sum < r.Low-off || sum > r.High+off {
			return fail("row %q is %v, want %v..%v", r.Name, sum, r.Low, r.High)
		}
	}
	return exact, objective, nil
}

// slack is how far a value may be from a bound. Of an infinite one it is 0.
func slack(bound float64) float64 {
	if math.IsInf(bound, 0) {
		return 0
	}
	return float64(Tolerance * max(1, math.Abs(bound)))
}

// Accept checks an engine's answer to a valid model and returns it with the values and the objective of Verify. An
// answer that is claimed to be optimal although its own bound leaves a gap becomes Feasible. The error is of
// class ClassInternal.
func (m *Model) Accept(r Result) (Result, error) {
	switch r.Status {
	case Infeasible, Limit:
		r.X, r.Objective = nil, math.Inf(1)
		if r.Status == Infeasible {
			r.Bound = math.Inf(1)
		} else if math.IsNaN(r.Bound) {
			r.Bound = math.Inf(-1)
		}
		return r, nil
	case Optimal, Feasible:
	default:
		return Result{}, diag.New(diag.ClassInternal, "answer for model %q: unknown status %q", m.Name, r.Status)
	}
	x, objective, err := m.Verify(r.X)
	if err != nil {
		return Result{}, err
	}
	off := slack(objective)
	if !(math.Abs(objective-r.Objective) <= off) { // NaN too
		return Result{}, diag.New(diag.ClassInternal, "answer for model %q: the engine claims an objective of %v, its values give %v", m.Name, r.Objective, objective)
	}
	if math.IsNaN(r.Bound) || r.Bound > objective+off {
		return Result{}, diag.New(diag.ClassInternal, "answer for model %q: bound %v above the objective %v", m.Name, r.Bound, objective)
	}
	r.X, r.Objective, r.Bound = x, objective, min(r.Bound, objective)
	if r.Status == Optimal && objective-r.Bound > off {
		r.Status = Feasible
	}
	return r, nil
}

// Gap is how much better than the objective a solution could still be, relative to the objective: 0 when the bound
// reaches it, infinite without a solution or a bound.
func (r *Result) Gap() float64 {
	switch {
	case r.X == nil || math.IsInf(r.Bound, -1):
		return math.Inf(1)
	case r.Bound >= r.Objective:
		return 0
	}
	return (r.Objective - r.Bound) / max(math.Abs(r.Objective), 1e-9)
}
