package problem

import (
	"context"
	"math"

	"github.com/hetc/hetc/solver/milp"
)

// Report says how one problem was solved by one engine.
type Report struct {
	Problem   string // "partition prefill@256"
	Engine    string
	Status    Status
	Objective int64 // of the instance: weighted ns, nJ, bytes
	Bound     int64
	Choices   int      // of the instance: what there is to choose from
	Vars      int      // of the linear program, 0 where none was posed
	Rows      int      // likewise
	Nodes     int64    // of the search tree
	Models    []string // what Watch.Posed returned for its linear programs
	Err       error    // nil when there is an answer
}

// Gap returns how much better a solution could still be, relative to the objective; infinite where there is none.
func (r *Report) Gap() float64 {
	hasSolution := r.Status == Optimal || r.Status == Feasible
	if r.Err != nil || !hasSolution {
		return math.Inf(1)
	}
	return float64(max(0, r.Objective-r.Bound)) / math.Max(1, float64(r.Objective))
}

// Watch tells what an engine does. Any of its functions may be nil.
type Watch struct {
	Started  func(problem, engine string)
	Done     func(Report)
	Progress func(problem, engine string, objective, bound float64, nodes int64) // of a linear program, in its units
	// Posed gets the linear program of every problem, also where an engine needs none; the report has what it returns.
	Posed func(model *milp.Model) (name string)
}

// Engine returns the engine, watched. Of a Relay it also tells the size of the linear programs, and their progress.
func (w *Watch) Engine(engine Engine) Engine { return watched{w, engine} }

// watched is an engine whose progress is reported; it implements Engine.
type watched struct {
	watch  *Watch
	engine Engine
}

// Direct returns the engine behind another one that solves partition problems without a general one, unwatched: for
// problems that are solved only to compare with. They have one answer whatever engine solves them.
func Direct(engine Engine) Engine {
	switch outer := engine.(type) {
	case watched:
		return Direct(outer.engine)
	case Auto:
		return Direct(outer.Exact)
	case Relay:
		if outer.Exact != nil {
			return Direct(outer.Exact)
		}
	}
	return engine
}

// Name implements Engine.
func (w watched) Name() string { return w.engine.Name() }

// follow runs one solve of the engine or, where that is a Relay, of one whose general engine is looked at.
func follow[S answering[S]](
	observed watched, name string, choices int, models []string, solve func(engine Engine) (S, error),
) (S, error) {
	if observed.watch.Started != nil {
		observed.watch.Started(name, observed.engine.Name())
	}

	engine, sizes := observed.engine, &sized{}
	if relay, ok := engine.(Relay); ok {
		sizes.Engine = relay.General
		if observed.watch.Progress != nil {
			sizes.progress = func(objective, bound float64, nodes int64) {
				observed.watch.Progress(name, relay.Name(), objective, bound, nodes)
			}
		}
		relay.General = sizes
		engine = relay
	}

	solution, err := solve(engine)
	if observed.watch.Done != nil {
		answer := solution.answer()
		observed.watch.Done(Report{
			Problem: name, Engine: observed.engine.Name(), Status: answer.status, Objective: answer.objective,
			Bound: answer.bound, Choices: choices, Vars: sizes.vars, Rows: sizes.rows,
			Nodes: max(answer.nodes, sizes.nodes), Models: models, Err: err,
		})
	}
	return solution, err
}

// sized notes the size of the last model, and the nodes of all.
type sized struct {
	milp.Engine
	vars, rows int
	nodes      int64
	progress   func(objective, bound float64, nodes int64)
}

// Solve implements milp.Engine.
func (x *sized) Solve(ctx context.Context, model *milp.Model, options milp.Options) (milp.Result, error) {
	x.vars, x.rows, options.Progress = len(model.Vars), len(model.Rows), x.progress
	result, err := x.Engine.Solve(ctx, model, options)
	x.nodes += result.Nodes
	return result, err
}

// Partition implements Engine.
func (w watched) Partition(ctx context.Context, partition *Partition) (Solution, error) {
	var models []string
	if w.watch.Posed != nil && partition.Validate() == nil {
		model, _ := (&Joint{Name: partition.Name, Parts: []Part{{Partition: partition, Weight: 1}}}).MILP()
		models = append(models, w.watch.Posed(model))
	}
	return follow(w, "partition "+partition.Name, partition.Size(), models, func(engine Engine) (Solution, error) {
		return engine.Partition(ctx, partition)
	})
}

// Joint implements Engine.
func (w watched) Joint(ctx context.Context, joint *Joint, limits Limits) (JointSolution, error) {
	var models []string
	if w.watch.Posed != nil && joint.Validate() == nil {
		model, _ := joint.MILP()
		models = append(models, w.watch.Posed(model))
	}
	choices := 0
	for i := range joint.Parts {
		if p := joint.Parts[i].Partition; p != nil {
			choices += p.Size()
		}
	}
	return follow(w, "joint "+joint.Name, choices, models, func(engine Engine) (JointSolution, error) {
		return engine.Joint(ctx, joint, limits)
	})
}

// Buckets implements Engine.
func (w watched) Buckets(ctx context.Context, buckets *Buckets, limits Limits) (BucketSolution, error) {
	var models []string
	if w.watch.Posed != nil && buckets.Validate() == nil {
		if model, _, err := buckets.MILP(); err == nil { // some are too large for a linear program
			models = append(models, w.watch.Posed(model))
		}
	}
	return follow(w, "buckets "+buckets.Name, len(buckets.Sizes), models, func(engine Engine) (BucketSolution, error) {
		return engine.Buckets(ctx, buckets, limits)
	})
}

// Shadows implements Engine.
func (w watched) Shadows(ctx context.Context, shadows *Shadows, limits Limits) (ShadowSolution, error) {
	var models []string
	if w.watch.Posed != nil && shadows.Validate() == nil {
		model, _, _ := shadows.MILP()
		models = append(models, w.watch.Posed(model))
	}
	choices := 0
	for i := range shadows.Groups {
		choices += len(shadows.Groups[i].Options)
	}
	return follow(w, "shadows "+shadows.Name, choices, models, func(engine Engine) (ShadowSolution, error) {
		return engine.Shadows(ctx, shadows, limits)
	})
}

// Tiers implements Engine.
func (w watched) Tiers(ctx context.Context, tiers *Tiers, limits Limits) (TierSolution, error) {
	var models []string
	if w.watch.Posed != nil && tiers.Validate() == nil {
		if model, _, err := tiers.MILP(); err == nil { // some are too large for a linear program
			models = append(models, w.watch.Posed(model))
		}
	}
	return follow(w, "tiers "+tiers.Name, len(tiers.Capacities), models, func(engine Engine) (TierSolution, error) {
		return engine.Tiers(ctx, tiers, limits)
	})
}
