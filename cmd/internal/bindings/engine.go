package bindings

import (
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/highs"
	"github.com/hetc/hetc/solver/milp"
	"github.com/hetc/hetc/solver/problem"
)

// AutoEngine solves exactly, and has HiGHS close what that leaves open in at most that many bytes, where HiGHS is
// there. w may be nil.
func AutoEngine(watch *problem.Watch, bytes int64) problem.Engine {
	var engine problem.Engine = exact.Engine{}
	if watch != nil {
		engine = watch.Engine(engine)
	}
	wasm, err := highs.Open()
	if err != nil {
		return engine
	}
	wasm.Limit(bytes)
	return problem.Auto{Exact: engine, General: GeneralEngine(wasm, watch)}
}

// GeneralEngine solves problems as mixed-integer programs with a general engine, and has the exact one do what
// needs none. w may be nil.
func GeneralEngine(h milp.Engine, w *problem.Watch) problem.Engine {
	relay := problem.Relay{General: h, Exact: exact.Engine{}, Nodes: problem.GeneralNodes}
	if w != nil {
		return w.Engine(relay)
	}
	return relay
}
