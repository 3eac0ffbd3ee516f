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
func (m *Model) Verify(values []float64) (exact []float64, objective float64, err error) {
	fail := func(format string, args ...any) ([]float64, float64, error) {
		return nil, 0, diag.New(diag.ClassInternal, "answer for model %q: "+format, append([]any{m.Name}, args...)...)
	}
	if len(values) != len(m.Vars) {
		return fail("%d values for %d variables", len(values), len(m.Vars))
	}
	exact = make([]float64, len(values))
	objective = m.Offset
	for j := range m.Vars {
		variable, value := &m.Vars[j], values[j]
		if !within(value, 2*maxBound) {
			return fail("variable %q is %v", variable.Name, value)
		}
		if variable.Integer {
			whole := math.Round(value)
			if math.Abs(whole-value) > Tolerance {
				return fail("variable %q is %v, want a whole number", variable.Name, value)
			}
			value = whole
		}
		if low, high := variable.Low, variable.High; value < low-slack(low) || value > high+slack(high) {
			return fail("variable %q is %v, want %v..%v", variable.Name, value, low, high)
		}
		if !variable.Integer {
			value = min(max(value, variable.Low), variable.High)
		}
		exact[j] = value + 0 // no negative zero
		objective += float64(variable.Cost * value)
	}
	// Rows, with the values as they are returned: rounding may have broken one.
	for i := range m.Rows {
		row := &m.Rows[i]
		sum, size := 0.0, 1.0
		for _, term := range row.Terms {
			product := float64(term.Coef * exact[term.Var])
			sum += product
			size += math.Abs(product)
		}
		if off := float64(Tolerance * size); sum < row.Low-off || sum > row.High+off {
			return fail("row %q is %v, want %v..%v", row.Name, sum, row.Low, row.High)
		}
	}
	return exact, objective, nil
}

// slack returns how far a value may be from a bound. Of an infinite one it is 0.
func slack(bound float64) float64 {
	if math.IsInf(bound, 0) {
		return 0
	}
	return float64(Tolerance * max(1, math.Abs(bound)))
}

// Accept checks an engine's answer to a valid model and returns it with the values and the objective of Verify. An
// answer that is claimed to be optimal although its own bound leaves a gap becomes Feasible. The error is of
// class ClassInternal.
func (m *Model) Accept(answer Result) (Result, error) {
	switch answer.Status {
	case Infeasible, Limit:
		answer.X, answer.Objective = nil, math.Inf(1)
		if answer.Status == Infeasible {
			answer.Bound = math.Inf(1)
		} else if math.IsNaN(answer.Bound) {
			answer.Bound = math.Inf(-1)
		}
		return answer, nil
	case Optimal, Feasible:
	default:
		return Result{}, diag.New(diag.ClassInternal, "answer for model %q: unknown status %q", m.Name, answer.Status)
	}
	values, objective, err := m.Verify(answer.X)
	if err != nil {
		return Result{}, err
	}
	off := slack(objective)
	if !(math.Abs(objective-answer.Objective) <= off) { // NaN too
		return Result{}, diag.New(diag.ClassInternal, "answer for model %q: the engine claims an objective of %v, "+
			"its values give %v", m.Name, answer.Objective, objective)
	}
	if math.IsNaN(answer.Bound) || answer.Bound > objective+off {
		return Result{}, diag.New(diag.ClassInternal, "answer for model %q: bound %v above the objective %v",
			m.Name, answer.Bound, objective)
	}
	answer.X, answer.Objective, answer.Bound = values, objective, min(answer.Bound, objective)
	if answer.Status == Optimal && objective-answer.Bound > off {
		answer.Status = Feasible
	}
	return answer, nil
}
