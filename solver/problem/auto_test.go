package problem_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/milp"
	"github.com/hetc/hetc/solver/problem"
)

// answering is an engine that answers what it was told to.
type answering struct {
	problem.Engine
	solution problem.JointSolution
	err      error
	asked    *[]problem.Limits
}

// Name implements problem.Engine.
func (a answering) Name() string { return "answering" }

// Joint notes the limits and returns the answer.
func (a answering) Joint(_ context.Context, _ *problem.Joint,
	limits problem.Limits) (problem.JointSolution, error) {
	if a.asked != nil {
		*a.asked = append(*a.asked, limits)
	}
	return a.solution, a.err
}

// The general engine is asked where a gap is left, from the solution that is there; what it cannot do loses nothing.
func TestAuto(t *testing.T) {
	answer := func(status problem.Status, objective, bound int64, choice int) problem.JointSolution {
		solution := problem.JointSolution{Status: status, Objective: objective, Bound: bound}
		if status != problem.LimitReached {
			solution.Choices = [][][]int{{{choice}}}
		}
		return solution
	}
	opt, fea, lim := problem.Optimal, problem.Feasible, problem.LimitReached
	infeasible := diag.New(diag.ClassInfeasible, "no way")
	for name, test := range map[string]struct {
		exact, general       problem.JointSolution
		exactErr, generalErr error
		want                 problem.JointSolution
		wantErr              error
		asked                bool
	}{
		"proved":     {exact: answer(opt, 5, 5, 1), want: answer(opt, 5, 5, 1)},
		"infeasible": {exactErr: infeasible, wantErr: infeasible},
		"closed": {exact: answer(fea, 7, 3, 1), general: answer(opt, 5, 5, 2), want: answer(opt, 5, 5, 2),
			asked: true},
		"better, with a gap": {exact: answer(fea, 7, 4, 1), general: answer(fea, 6, 3, 2), want: answer(fea, 6, 4, 2),
			asked: true},
		"worse, better bound": {exact: answer(fea, 7, 3, 1), general: answer(fea, 8, 5, 2), want: answer(fea, 7, 5, 1),
			asked: true},
		"equally good": {exact: answer(fea, 7, 3, 1), general: answer(fea, 7, 7, 2), want: answer(fea, 7, 7, 1),
			asked: true},
		"fails": {exact: answer(fea, 7, 3, 1), generalErr: errors.New("crash"),
			want: answer(fea, 7, 3, 1), asked: true},
		"only the second": {exact: answer(lim, 0, 2, 0), general: answer(fea, 9, 1, 2), want: answer(fea, 9, 2, 2),
			asked: true},
		"neither": {exact: answer(lim, 0, 2, 0), general: answer(lim, 0, 1, 0), want: answer(lim, 0, 2, 0),
			asked: true},
		"limit, then a proof": {exact: answer(lim, 0, 2, 0), generalErr: infeasible, wantErr: infeasible, asked: true},
		"bound above, clipped": {exact: answer(fea, 7, 3, 1), general: answer(fea, 9, 8, 2), want: answer(fea, 7, 7, 1),
			asked: true},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []problem.Limits
			auto := problem.Auto{Exact: answering{solution: test.exact, err: test.exactErr},
				General: answering{solution: test.general, err: test.generalErr, asked: &asked}}
			got, err := auto.Joint(context.Background(), &problem.Joint{}, problem.Limits{Nodes: 3})
			if !errors.Is(err, test.wantErr) || err == nil && test.wantErr != nil {
				t.Fatalf("got %v, want %v", err, test.wantErr)
			}
			got.Nodes = 0
			if err == nil && !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}

			if (len(asked) > 0) != test.asked {
				t.Errorf("asked %v", asked)
			}
			if len(asked) == 0 {
				return
			}
			hasStart := asked[0].Start != nil
			if asked[0].Nodes != problem.GeneralNodes || hasStart != (test.exact.Choices != nil) {
				t.Errorf("asked with %+v", asked[0])
			}
		})
	}

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	auto := problem.Auto{Exact: answering{solution: answer(fea, 7, 3, 1)},
		General: answering{err: errors.New("cancelled")}}
	_, err := auto.Joint(ended, &problem.Joint{}, problem.Limits{})
	if diag.ClassOf(err) != diag.ClassInterrupted {
		t.Errorf("interrupted: %v", err)
	}
}

// first answers a linear program with nothing, so that only its size is seen.
type first struct{}

// Name implements milp.Engine.
func (first) Name() string { return "first" }

// Solve reports progress once.
func (first) Solve(_ context.Context, _ *milp.Model, options milp.Options) (milp.Result, error) {
	if options.Progress != nil {
		options.Progress(2, 1, 5)
	}
	return milp.Result{Status: milp.Limit, Nodes: 9}, nil
}

// A watched engine reports what it is given, what it poses, how far it is, and what it found.
func TestWatch(t *testing.T) {
	partition := &problem.Partition{Name: "prefill@8", Procs: []string{"cpu"},
		Chains: []problem.Chain{{Name: "layers", Repeat: 1, Items: []problem.Item{
			{Name: "qkv", Before: []string{"x"}, After: []string{"y"},
				Choices: []problem.Choice{{Label: "a", Procs: []int{0}, CostNS: 5},
					{Label: "b", Procs: []int{0}, CostNS: 4}}}}}}}
	joint := &problem.Joint{Name: "plan", Parts: []problem.Part{{Partition: partition, Weight: 1}}}
	var reports []problem.Report
	var started, models []string
	progress := 0
	watch := &problem.Watch{
		Started:  func(problem, engine string) { started = append(started, problem+" "+engine) },
		Done:     func(report problem.Report) { reports = append(reports, report) },
		Progress: func(string, string, float64, float64, int64) { progress++ },
		Posed:    func(model *milp.Model) string { models = append(models, model.Name); return model.Name },
	}
	engine := watch.Engine(exact.Engine{})
	if solution, err := engine.Partition(context.Background(), partition); err != nil || solution.ObjectiveNS != 4 {
		t.Fatalf("%+v, %v", solution, err)
	}
	solution, err := engine.Joint(context.Background(), joint, problem.Limits{})
	if err != nil || solution.Objective != 4 {
		t.Fatalf("%+v, %v", solution, err)
	}
	relay := watch.Engine(problem.Relay{General: first{}})
	solution, err = relay.Joint(context.Background(), joint, problem.Limits{})
	if err != nil || solution.Status != problem.LimitReached {
		t.Fatalf("%+v, %v", solution, err)
	}

	wantStarted := []string{"partition prefill@8 exact", "joint plan exact", "joint plan first"}
	if !slices.Equal(started, wantStarted) {
		t.Errorf("started %q, want %q", started, wantStarted)
	}
	if len(models) != 3 || models[1] != "joint plan" || progress != 1 {
		t.Errorf("posed %q, progress %d", models, progress)
	}
	for i, want := range []problem.Report{
		{Problem: "partition prefill@8", Engine: "exact", Status: problem.Optimal, Objective: 4, Bound: 4, Choices: 2,
			Models: models[:1]},
		{Problem: "joint plan", Engine: "exact", Status: problem.Optimal, Objective: 4, Bound: 4, Choices: 2,
			Models: models[1:2]},
		{Problem: "joint plan", Engine: "first", Status: problem.LimitReached, Choices: 2, Nodes: 9,
			Models: models[2:]},
	} {
		got := reports[i]
		hasGap := got.Vars >= 2 && got.Rows >= 1 && got.Gap() >= 1
		if i == 2 && !hasGap || i < 2 && got.Gap() != 0 {
			t.Errorf("%+v with gap %v", got, got.Gap())
		}
		got.Vars, got.Rows, want.Nodes = 0, 0, max(want.Nodes, got.Nodes)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}
