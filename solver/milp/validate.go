package milp

import (
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/diag"
)

// Limits of a model. Engines answer wrongly beyond them rather than refusing: HiGHS drops coefficients of at most
// 1e-9 and takes bounds and costs from 1e20 for infinite, and a sum of larger products has no digits left for
// what is below 1.
const (
	MaxVars  = 1 << 21
	MaxRows  = 1 << 21
	MaxTerms = 1 << 25 // of all rows together
	MinCoef  = 1e-8    // of a coefficient that is not 0
	MaxCoef  = 1e13    // of a coefficient or cost
	MaxBound = 1e15    // of a finite bound, the offset and a value to start from
)

// Validate reports the first thing that makes the model meaningless, naming the variable or row: what is not
// a number, numbers out of range, a lower bound above the upper one, terms that point nowhere or name a variable
// twice, names that are empty or appear twice. The error is of class ClassInput.
//
// A variable or row whose bounds exclude each other is invalid rather than infeasible: whoever computed them knows
// more about the reason than an engine could say.
func (m *Model) Validate() error {
	fail := func(format string, args ...any) error {
		return diag.New(diag.ClassInput, "model %q: %s", m.Name, fmt.Sprintf(format, args...))
	}
	if len(m.Vars) == 0 || len(m.Vars) > MaxVars {
		return fail("%d variables, want 1..%d", len(m.Vars), MaxVars)
	}
	if len(m.Rows) > MaxRows {
		return fail("%d rows, want at most %d", len(m.Rows), MaxRows)
	}
	if !within(m.Offset, MaxBound) {
		return fail("offset is %v, want a number of at most %g", m.Offset, float64(MaxBound))
	}
	names := make(map[string]bool, max(len(m.Vars), len(m.Rows)))
	for j := range m.Vars {
		v := &m.Vars[j]
		if v.Name == "" || names[v.Name] {
			return fail("variable %d: name %q is empty or appears twice", j, v.Name)
		}
		names[v.Name] = true
		if !within(v.Cost, MaxCoef) {
			return fail("variable %q: cost is %v, want a number of at most %g", v.Name, v.Cost, float64(MaxCoef))
		}
		if why := bounds(v.Low, v.High); why != "" {
			return fail("variable %q: %s", v.Name, why)
		}
	}
	clear(names)
	last := make([]int, len(m.Vars)) // row that named the variable last, counted from 1
	terms := 0
	for i := range m.Rows {
		r := &m.Rows[i]
		if r.Name == "" || names[r.Name] {
			return fail("row %d: name %q is empty or appears twice", i, r.Name)
		}
		names[r.Name] = true
		if why := bounds(r.Low, r.High); why != "" {
			return fail("row %q: %s", r.Name, why)
		}
		if terms += len(r.Terms); terms > MaxTerms {
			return fail("more than %d terms", MaxTerms)
		}
		for _, t := range r.Terms {
			switch {
			case t.Var < 0 || t.Var >= len(m.Vars):
				return fail("row %q: variable %d of %d", r.Name, t.Var, len(m.Vars))
			case last[t.Var] == i+1:
				return fail("row %q: variable %q appears twice", r.Name, m.Vars[t.Var].Name)
			case !within(t.Coef, MaxCoef) || t.Coef != 0 && math.Abs(t.Coef) < MinCoef:
				return fail("row %q: coefficient of %q is %v, want 0 or a number of %g..%g", r.Name, m.Vars[t.Var].Name, t.Coef, MinCoef, float64(MaxCoef))
			}
			last[t.Var] = i + 1
		}
	}
	return nil
}

// Validate reports what is wrong with the options of a solve of m, which is valid. The error is of class ClassInput.
func (o *Options) Validate(m *Model) error {
	fail := func(format string, args ...any) error {
		return diag.New(diag.ClassInput, "model %q: %s", m.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case o.Nodes < 0 || o.Nodes > math.MaxInt32:
		return fail("limit of %d nodes, want 0..%d", o.Nodes, math.MaxInt32)
	case o.Time < 0:
		return fail("limit of %v, want at least 0", o.Time)
	case o.Start != nil && len(o.Start) != len(m.Vars):
		return fail("a start of %d values, want %d", len(o.Start), len(m.Vars))
	}
	for j, x := range o.Start {
		if !within(x, MaxBound) {
			return fail("variable %q starts at %v, want a number of at most %g", m.Vars[j].Name, x, float64(MaxBound))
		}
	}
	return nil
}

// within reports whether x is a number of at most most, whatever its sign.
func within(x, most float64) bool { return math.Abs(x) <= most }

// bounds says what is wrong with two bounds, "" when nothing is.
func bounds(low, high float64) string {
	switch {
	case math.IsNaN(low) || math.IsNaN(high) || math.IsInf(low, 1) || math.IsInf(high, -1):
		return fmt.Sprintf("bounds %v and %v", low, high)
	case !math.IsInf(low, 0) && !within(low, MaxBound), !math.IsInf(high, 0) && !within(high, MaxBound):
		return fmt.Sprintf("bounds %v and %v, want infinite ones or at most %g", low, high, float64(MaxBound))
	case low > high:
		return fmt.Sprintf("the lower bound %v is above the upper one %v", low, high)
	}
	return ""
}
