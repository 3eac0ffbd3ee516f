package bindings

import (
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/highs"
	"github.com/hetc/hetc/solver/milp"
	"github.com/hetc/hetc/solver/problem"
)

// AutoEngine solves exactly, and has HiGHS close what that leaves open in at most that many bytes, where HiGHS is there. w may be nil.
func AutoEngine(w *problem.Watch, bytes int64) problem.Engine {
	var e problem.Engine = exact.Engine{}
	if w != nil {
		e = w.Engine(e)
	}
	h, err := highs.Open()
	if err != nil {
		return e
	}
	h.Limit(bytes)
	return problem.Auto{Exact: e, General: GeneralEngine(h, w)}
}

func GeneralEngine(h milp.Engine, w *problem.Watch) problem.Engine {
	r := problem.Relay{General: h, Exact: exact.Engine{}, Nodes: problem.GeneralNodes}
	if w != nil {
		return w.Engine(r)
	}
	return r
}
