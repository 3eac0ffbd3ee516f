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
	if r.Err != nil || r.Status != Optimal && r.Status != Feasible {
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
	Posed func(m *milp.Model) (name string)
}

// Engine returns the engine, watched. Of a Relay it also tells the size of the linear programs, and their progress.
func (w *Watch) Engine(e Engine) Engine { return watched{w, e} }

// watched is an engine whose progress is reported; it implements Engine.
type watched struct {
	w *Watch
	e Engine
}

// Direct returns the engine behind another one that solves partition problems without a general one, unwatched: for
// problems that are solved only to compare with. They have one answer whatever engine solves them.
func Direct(engine Engine) Engine {
	switch x := engine.(type) {
	case watched:
		return Direct(x.e)
	case Auto:
		return Direct(x.Exact)
	case Relay:
		if x.Exact != nil {
			return Direct(x.Exact)
		}
	}
	return engine
}

// Name implements Engine.
func (x watched) Name() string { return x.e.Name() }

// follow runs one solve of the engine or, where that is a Relay, of one whose general engine is looked at.
func follow[S answering[S]](
	x watched, name string, choices int, models []string, solve func(engine Engine) (S, error),
) (S, error) {
	if x.w.Started != nil {
		x.w.Started(name, x.e.Name())
	}
	engine, sizes := x.e, &sized{}
	if relay, ok := engine.(Relay); ok {
		sizes.Engine = relay.General
		if x.w.Progress != nil {
			sizes.progress = func(objective, bound float64, nodes int64) {
				x.w.Progress(name, relay.Name(), objective, bound, nodes)
			}
		}
		relay.General = sizes
		engine = relay
	}
	solution, err := solve(engine)
	if x.w.Done != nil {
		answer := solution.answer()
		x.w.Done(Report{
			Problem: name, Engine: x.e.Name(), Status: answer.status, Objective: answer.objective, Bound: answer.bound,
			Choices: choices, Vars: sizes.vars, Rows: sizes.rows, Nodes: max(answer.nodes, sizes.nodes),
			Models: models, Err: err,
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
func (x watched) Partition(ctx context.Context, p *Partition) (Solution, error) {
	var models []string
	if x.w.Posed != nil && p.Validate() == nil {
		m, _ := (&Joint{Name: p.Name, Parts: []Part{{Partition: p, Weight: 1}}}).MILP()
		models = append(models, x.w.Posed(m))
	}
	return follow(x, "partition "+p.Name, p.Size(), models, func(e Engine) (Solution, error) {
		return e.Partition(ctx, p)
	})
}

// Joint implements Engine.
func (x watched) Joint(ctx context.Context, j *Joint, limits Limits) (JointSolution, error) {
	var models []string
	if x.w.Posed != nil && j.Validate() == nil {
		m, _ := j.MILP()
		models = append(models, x.w.Posed(m))
	}
	choices := 0
	for i := range j.Parts {
		if p := j.Parts[i].Partition; p != nil {
			choices += p.Size()
		}
	}
	return follow(x, "joint "+j.Name, choices, models, func(e Engine) (JointSolution, error) {
		return e.Joint(ctx, j, limits)
	})
}

// Buckets implements Engine.
func (x watched) Buckets(ctx context.Context, b *Buckets, limits Limits) (BucketSolution, error) {
	var models []string
	if x.w.Posed != nil && b.Validate() == nil {
		if m, _, err := b.MILP(); err == nil { // some are too large for a linear program
			models = append(models, x.w.Posed(m))
		}
	}
	return follow(x, "buckets "+b.Name, len(b.Sizes), models, func(e Engine) (BucketSolution, error) {
		return e.Buckets(ctx, b, limits)
	})
}

// Shadows implements Engine.
func (x watched) Shadows(ctx context.Context, s *Shadows, limits Limits) (ShadowSolution, error) {
	var models []string
	if x.w.Posed != nil && s.Validate() == nil {
		m, _, _ := s.MILP()
		models = append(models, x.w.Posed(m))
	}
	choices := 0
	for i := range s.Groups {
		choices += len(s.Groups[i].Options)
	}
	return follow(x, "shadows "+s.Name, choices, models, func(e Engine) (ShadowSolution, error) {
		return e.Shadows(ctx, s, limits)
	})
}

// Tiers implements Engine.
func (x watched) Tiers(ctx context.Context, p *Tiers, limits Limits) (TierSolution, error) {
	var models []string
	if x.w.Posed != nil && p.Validate() == nil {
		if m, _, err := p.MILP(); err == nil { // some are too large for a linear program
			models = append(models, x.w.Posed(m))
		}
	}
	return follow(x, "tiers "+p.Name, len(p.Capacities), models, func(e Engine) (TierSolution, error) {
		return e.Tiers(ctx, p, limits)
	})
}
