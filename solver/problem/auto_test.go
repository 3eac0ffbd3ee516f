package problem_test

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/milp"
	"github.com/hetc/hetc/solver/problem"
)

// said is an engine that answers what it was told to.
type said struct {
	problem.Engine
	s     problem.JointSolution
	err   error
	asked *[]problem.Limits
}

func (s said) Name() string { return "said" }

func (s said) Joint(_ context.Context, _ *problem.Joint, l problem.Limits) (problem.JointSolution, error) {
	if s.asked != nil {
		*s.asked = append(*s.asked, l)
	}
	return s.s, s.err
}

// The general engine is asked where a gap is left, from the solution that is there; what it cannot do loses nothing.
func TestAuto(t *testing.T) {
	answer := func(status problem.Status, objective, bound int64, choice int) problem.JointSolution {
		s := problem.JointSolution{Status: status, Objective: objective, Bound: bound}
		if status != problem.LimitReached {
			s.Choices = [][][]int{{{choice}}}
		}
		return s
	}
	opt, fea, lim := problem.Optimal, problem.Feasible, problem.LimitReached
	infeasible := diag.New(diag.ClassInfeasible, "no way")
	for name, c := range map[string]struct {
		exact, general       problem.JointSolution
		exactErr, generalErr error
		want                 problem.JointSolution
		wantErr              error
		asked                bool
	}{
		"proved":               {exact: answer(opt, 5, 5, 1), want: answer(opt, 5, 5, 1)},
		"infeasible":           {exactErr: infeasible, wantErr: infeasible},
		"closed":               {exact: answer(fea, 7, 3, 1), general: answer(opt, 5, 5, 2), want: answer(opt, 5, 5, 2), asked: true},
		"better, with a gap":   {exact: answer(fea, 7, 4, 1), general: answer(fea, 6, 3, 2), want: answer(fea, 6, 4, 2), asked: true},
		"worse, better bound":  {exact: answer(fea, 7, 3, 1), general: answer(fea, 8, 5, 2), want: answer(fea, 7, 5, 1), asked: true},
		"equally good":         {exact: answer(fea, 7, 3, 1), general: answer(fea, 7, 7, 2), want: answer(fea, 7, 7, 1), asked: true},
		"fails":                {exact: answer(fea, 7, 3, 1), generalErr: errors.New("crash"), want: answer(fea, 7, 3, 1), asked: true},
		"only the second":      {exact: answer(lim, 0, 2, 0), general: answer(fea, 9, 1, 2), want: answer(fea, 9, 2, 2), asked: true},
		"neither":              {exact: answer(lim, 0, 2, 0), general: answer(lim, 0, 1, 0), want: answer(lim, 0, 2, 0), asked: true},
		"limit, then a proof":  {exact: answer(lim, 0, 2, 0), generalErr: infeasible, wantErr: infeasible, asked: true},
		"bound above, clipped": {exact: answer(fea, 7, 3, 1), general: answer(fea, 9, 8, 2), want: answer(fea, 7, 7, 1), asked: true},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []problem.Limits
			a := problem.Auto{Exact: said{s: c.exact, err: c.exactErr}, General: said{s: c.general, err: c.generalErr, asked: &asked}}
			got, err := a.Joint(context.Background(), &problem.Joint{}, problem.Limits{Nodes: 3})
			if !errors.Is(err, c.wantErr) || err == nil && c.wantErr != nil {
				t.Fatalf("got %v, want %v", err, c.wantErr)
			}
			if err == nil && (got.Status != c.want.Status || got.Objective != c.want.Objective || got.Bound != c.want.Bound || len(got.Choices) != len(c.want.Choices) ||
				got.Choices != nil && got.Choices[0][0][0] != c.want.Choices[0][0][0]) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if (len(asked) > 0) != c.asked {
				t.Errorf("asked %v", asked)
			}
			if len(asked) > 0 && (asked[0].Nodes != problem.GeneralNodes || (asked[0].Start != nil) != (c.exact.Choices != nil)) {
				t.Errorf("asked with %+v", asked[0])
			}
		})
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	a := problem.Auto{Exact: said{s: answer(fea, 7, 3, 1)}, General: said{err: errors.New("cancelled")}}
	if _, err := a.Joint(ended, &problem.Joint{}, problem.Limits{}); diag.ClassOf(err) != diag.ClassInterrupted {
		t.Errorf("interrupted: %v", err)
	}
}

// first answers a linear program with nothing, so that only its size is seen.
type first struct{}

func (first) Name() string { return "first" }

func (first) Solve(_ context.Context, _ *milp.Model, o milp.Options) (milp.Result, error) {
	if o.Progress != nil {
		o.Progress(2, 1, 5)
	}
	return milp.Result{Status: milp.Limit, Nodes: 9}, nil
}

func TestWatch(t *testing.T) {
	p := &problem.Partition{Name: "prefill@8", Procs: []string{"cpu"}, Chains: []problem.Chain{{Name: "layers", Repeat: 1, Items: []problem.Item{
		{Name: "qkv", Before: []string{"x"}, After: []string{"y"}, Choices: []problem.Choice{{Label: "a", Procs: []int{0}, CostNS: 5}, {Label: "b", Procs: []int{0}, CostNS: 4}}}}}}}
	j := &problem.Joint{Name: "plan", Parts: []problem.Part{{Partition: p, Weight: 1}}}
	var reports []problem.Report
	var started, models []string
	progress := 0
	w := &problem.Watch{
		Started:  func(problem, engine string) { started = append(started, problem+" "+engine) },
		Done:     func(r problem.Report) { reports = append(reports, r) },
		Progress: func(string, string, float64, float64, int64) { progress++ },
		Posed:    func(m *milp.Model) string { models = append(models, m.Name); return m.Name },
	}
	e := w.Engine(exact.Engine{})
	if s, err := e.Partition(context.Background(), p); err != nil || s.ObjectiveNS != 4 {
		t.Fatalf("%+v, %v", s, err)
	}
	if s, err := e.Joint(context.Background(), j, problem.Limits{}); err != nil || s.Objective != 4 {
		t.Fatalf("%+v, %v", s, err)
	}
	if s, err := w.Engine(problem.Relay{General: first{}}).Joint(context.Background(), j, problem.Limits{}); err != nil || s.Status != problem.LimitReached {
		t.Fatalf("%+v, %v", s, err)
	}
	if len(started) != 3 || started[0] != "partition prefill@8 exact" || started[2] != "joint plan first" || len(models) != 3 || models[1] != "joint plan" || progress != 1 {
		t.Errorf("started %q, posed %q, progress %d", started, models, progress)
	}
	for i, want := range []problem.Report{
		{Problem: "partition prefill@8", Engine: "exact", Status: problem.Optimal, Objective: 4, Bound: 4, Choices: 2, Models: models[:1]},
		{Problem: "joint plan", Engine: "exact", Status: problem.Optimal, Objective: 4, Bound: 4, Choices: 2, Models: models[1:2]},
		{Problem: "joint plan", Engine: "first", Status: problem.LimitReached, Choices: 2, Nodes: 9, Models: models[2:]},
	} {
		got := reports[i]
		if i == 2 && (got.Vars < 2 || got.Rows < 1 || got.Gap() < 1) || i < 2 && got.Gap() != 0 {
			t.Errorf("%+v with gap %v", got, got.Gap())
		}
		if got.Vars, got.Rows, want.Nodes = 0, 0, max(want.Nodes, got.Nodes); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}
