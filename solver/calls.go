package solver

import (
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/solver/price"
)

// Caller predicts single calls of a plan, of any number of rows and at any position. A plan's own predictions are of
// whole programs, with attention over as many positions as its workload expects: a prompt of several chunks takes
// longer for each than for the one before, and its last chunk may be a part of one.
type Caller struct {
	session *session
	plan    *planir.Plan
}

// NewCaller prepares predictions for a plan from the inputs that it was solved from.
func NewCaller(in Input, plan *planir.Plan) (*Caller, error) {
	session, err := newSession(in)
	if err != nil {
		return nil, err
	}
	return &Caller{session, plan}, nil
}

// NS returns the time in ns of a call of so many rows, with attention over context positions, the call's own included.
func (c *Caller) NS(rows, context int) (int64, error) {
	program := c.plan.Program.For(rows)
	if program == nil || rows < 1 || context < rows {
		return 0, diag.New(diag.ClassInput,
			"predict a call of %d rows at position %d: the plan has no program for it", rows, context)
	}

	at := func(int) int { return context }
	if flight := c.plan.InFlight; c.plan.InFlightOf(program) {
		at = func(from int) int { return context - rows + (from/flight.Rows+1)*flight.Rows }
	}

	of, err := c.session.workAt(c.plan, program, rows, at)
	if err != nil {
		return 0, err
	}
	total, _, err := c.session.predictSections(program, of, func(e price.Estimate) int64 { return e.NS })
	return total, err
}
