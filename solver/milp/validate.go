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
	maxVars  = 1 << 21
	maxRows  = 1 << 21
	maxTerms = 1 << 25 // of all rows together
	MinCoef  = 1e-8    // of a coefficient that is not 0
	MaxCoef  = 1e13    // of a coefficient or cost
	maxBound = 1e15    // of a finite bound, the offset and a value to start from
)

// Validate reports the first thing that makes the model meaningless, naming the variable or row: what is not
// a number, numbers out of range, a lower bound above the upper one, terms that point nowhere or name a variable
// twice, names that are empty or appear twice. The error is of class ClassInput.
//
// A variable or row whose bounds exclude each other is invalid rather than infeasible: the code that computed them
// knows more about the reason than an engine could say.
func (m *Model) Validate() error {
	err := m.validateVars()
	if err == nil {
		err = m.validateRows()
	}
	return m.input(err)
}

// input makes what is wrong with a model or its options an error of class ClassInput.
func (m *Model) input(err error) error {
	if err == nil {
		return nil
	}
	return diag.New(diag.ClassInput, "model %q: %v", m.Name, err)
}

// validateVars looks at the variables and at sizes.
func (m *Model) validateVars() error {
	if len(m.Vars) == 0 || len(m.Vars) > maxVars {
		return fmt.Errorf("%d variables, want 1..%d", len(m.Vars), maxVars)
	}
	if len(m.Rows) > maxRows {
		return fmt.Errorf("%d rows, want at most %d", len(m.Rows), maxRows)
	}
	if !within(m.Offset, maxBound) {
		return fmt.Errorf("offset is %v, want a number of at most %g", m.Offset, float64(maxBound))
	}
	names := make(map[string]bool, len(m.Vars))
	for j := range m.Vars {
		variable := &m.Vars[j]
		if variable.Name == "" || names[variable.Name] {
			return fmt.Errorf("variable %d: name %q is empty or appears twice", j, variable.Name)
		}
		names[variable.Name] = true
		if !within(variable.Cost, MaxCoef) {
			return fmt.Errorf("variable %q: cost is %v, want a number of at most %g",
				variable.Name, variable.Cost, float64(MaxCoef))
		}
		if why := bounds(variable.Low, variable.High); why != "" {
			return fmt.Errorf("variable %q: %s", variable.Name, why)
		}
	}
	return nil
}

// validateRows looks at the rows. last tells a variable that appears twice in one pass over all terms.
func (m *Model) validateRows() error {
	names := make(map[string]bool, len(m.Rows))
	last := make([]int, len(m.Vars)) // row that named the variable last, counted from 1
	terms := 0
	for i := range m.Rows {
		row := &m.Rows[i]
		if row.Name == "" || names[row.Name] {
			return fmt.Errorf("row %d: name %q is empty or appears twice", i, row.Name)
		}
		names[row.Name] = true
		if why := bounds(row.Low, row.High); why != "" {
			return fmt.Errorf("row %q: %s", row.Name, why)
		}
		if terms += len(row.Terms); terms > maxTerms {
			return fmt.Errorf("more than %d terms", maxTerms)
		}
		for _, term := range row.Terms {
			switch {
			case term.Var < 0 || term.Var >= len(m.Vars):
				return fmt.Errorf("row %q: variable %d of %d", row.Name, term.Var, len(m.Vars))
			case last[term.Var] == i+1:
				return fmt.Errorf("row %q: variable %q appears twice", row.Name, m.Vars[term.Var].Name)
			case !within(term.Coef, MaxCoef) || term.Coef != 0 && math.Abs(term.Coef) < MinCoef:
				return fmt.Errorf("row %q: coefficient of %q is %v, want 0 or a number of %g..%g",
					row.Name, m.Vars[term.Var].Name, term.Coef, MinCoef, float64(MaxCoef))
			}
			last[term.Var] = i + 1
		}
	}
	return nil
}

// Validate reports what is wrong with the options of a solve of a valid model. The error is of class ClassInput.
func (o *Options) Validate(model *Model) error {
	switch {
	case o.Nodes < 0 || o.Nodes > math.MaxInt32:
		return model.input(fmt.Errorf("limit of %d nodes, want 0..%d", o.Nodes, math.MaxInt32))
	case o.Time < 0:
		return model.input(fmt.Errorf("limit of %v, want at least 0", o.Time))
	case o.Start != nil && len(o.Start) != len(model.Vars):
		return model.input(fmt.Errorf("a start of %d values, want %d", len(o.Start), len(model.Vars)))
	}
	for j, value := range o.Start {
		if !within(value, maxBound) {
			return model.input(fmt.Errorf("variable %q starts at %v, want a number of at most %g",
				model.Vars[j].Name, value, float64(maxBound)))
		}
	}
	return nil
}

// within reports whether a value is a number of at most most, whatever its sign.
func within(value, most float64) bool { return math.Abs(value) <= most }

// bounds says what is wrong with two bounds, "" when nothing is.
func bounds(low, high float64) string {
	switch {
	case math.IsNaN(low) || math.IsNaN(high) || math.IsInf(low, 1) || math.IsInf(high, -1):
		return fmt.Sprintf("bounds %v and %v", low, high)
	case !math.IsInf(low, 0) && !within(low, maxBound), !math.IsInf(high, 0) && !within(high, maxBound):
		return fmt.Sprintf("bounds %v and %v, want infinite ones or at most %g", low, high, float64(maxBound))
	case low > high:
		return fmt.Sprintf("the lower bound %v is above the upper one %v", low, high)
	}
	return ""
}
