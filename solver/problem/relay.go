package problem

import (
	"cmp"
	"math"
	"strconv"

	"github.com/hetc/hetc/solver/milp"
)

// Relay solves instances with a general engine: it poses them as mixed-integer linear programs.
type Relay struct {
	General milp.Engine
	// Exact names the first of equally good solutions once the general engine has proved how good they are; nil: none
	// does, and such answers are Feasible without a gap.
	Exact Engine
	// Nodes limits the search of each problem whose caller sets no limit; 0: none. A solve then ends, and at the same
	// place each time.
	Nodes int64
}

// limit returns how many nodes a search may have.
func (r Relay) limit(limits Limits) int64 { return cmp.Or(limits.Nodes, r.Nodes) }

// Name implements Engine.
func (r Relay) Name() string { return r.General.Name() }

// builder adds to a linear program.
type builder struct{ *milp.Model }

// variable adds one of 0..high, and returns its number.
func (b builder) variable(name string, cost, high float64, integer bool) int {
	b.Vars = append(b.Vars, milp.Var{Name: name, Cost: cost, High: high, Integer: integer})
	return len(b.Vars) - 1
}

// binary adds a variable of 0 or 1, and returns its number.
func (b builder) binary(name string, cost float64) int { return b.variable(name, cost, 1, true) }

// row adds low <= sum of terms <= high.
func (b builder) row(name string, low, high float64, terms []milp.Term) {
	b.Rows = append(b.Rows, milp.Row{Name: name, Low: low, High: high, Terms: terms})
}

// atMost adds a row without a lower bound.
func (b builder) atMost(name string, high float64, terms []milp.Term) {
	b.row(name, math.Inf(-1), high, terms)
}

// implies has terms sum to at most variable.
func (b builder) implies(name string, terms []milp.Term, variable int) {
	b.atMost(name, 0, append(terms, milp.Term{Var: variable, Coef: -1}))
}

// one returns the term of a variable that counts once.
func one(variable int) milp.Term { return milp.Term{Var: variable, Coef: 1} }

// note says what the objective of a program stands for.
func note(unit float64, what string) string {
	return "the objective times " + strconv.FormatFloat(unit, 'g', -1, 64) + " is in " + what
}
