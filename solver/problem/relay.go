package problem

import (
	"context"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// Relay solves instances with a general engine: it poses them as mixed-integer linear programs.
type Relay struct {
	General milp.Engine
	// Exact names the first of equally good solutions once the general engine has proved how good they are; nil: nobody
	// does, and such answers are Feasible without a gap.
	Exact Engine
}

// Name implements Engine.
func (r Relay) Name() string { return r.General.Name() }

// Partition implements Engine.
func (r Relay) Partition(context.Context, *Partition) (Solution, error) {
	return Solution{}, diag.New(diag.ClassUnavailable, "partition problems are not posed to general engines yet")
}

// Joint implements Engine.
func (r Relay) Joint(context.Context, *Joint, Limits) (JointSolution, error) {
	return JointSolution{}, diag.New(diag.ClassUnavailable, "joint problems are not posed to general engines yet")
}
