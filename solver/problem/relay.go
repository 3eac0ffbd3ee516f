package problem

import "github.com/hetc/hetc/solver/milp"

// Relay solves instances with a general engine: it poses them as mixed-integer linear programs.
type Relay struct {
	General milp.Engine
	// Exact names the first of equally good solutions once the general engine has proved how good they are; nil: nobody
	// does, and such answers are Feasible without a gap.
	Exact Engine
}

// Name implements Engine.
func (r Relay) Name() string { return r.General.Name() }
