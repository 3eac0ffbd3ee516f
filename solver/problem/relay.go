package problem

import (
	"cmp"

	"github.com/hetc/hetc/solver/milp"
)

// Relay solves instances with a general engine: it poses them as mixed-integer linear programs.
type Relay struct {
	General milp.Engine
	// Exact names the first of equally good solutions once the general engine has proved how good they are; nil: nobody
	// does, and such answers are Feasible without a gap.
	Exact Engine
	// Nodes limits the search of each problem whose caller sets no limit; 0: none. A solve then ends, and at the same place each time.
	Nodes int64
}

// limit is how many nodes a search may have.
func (r Relay) limit(l Limits) int64 { return cmp.Or(l.Nodes, r.Nodes) }

// Name implements Engine.
func (r Relay) Name() string { return r.General.Name() }
