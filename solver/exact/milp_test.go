package exact_test

import (
	"context"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/milp"
	"github.com/hetc/hetc/solver/problem"
)

// trivial is a general engine that knows the answer: it checks that the model accepts the solutions of the instance
// that keep the limits, no others, at the same objective.
type trivial struct {
	t *rapid.T
	j *problem.Joint
}

func (trivial) Name() string { return "trivial" }

func (e trivial) Solve(_ context.Context, m *milp.Model, o milp.Options) (milp.Result, error) {
	if err := m.Validate(); err != nil {
		return milp.Result{}, err
	}
	model, vars := e.j.MILP()
	if len(model.Vars) != len(m.Vars) || len(model.Rows) != len(m.Rows) {
		e.t.Fatalf("posed with %d variables and %d rows, now %d and %d", len(m.Vars), len(m.Rows), len(model.Vars), len(model.Rows))
	}
	best := milp.Result{Status: milp.Infeasible, Objective: math.Inf(1)}
	each(e.j, func(choices [][][]int) {
		keeps := e.j.Keeps(choices)
		x, objective, err := m.Verify(vars.X(e.j, m, choices))
		if keeps != (err == nil) {
			e.t.Fatalf("choices %v keep the limits: %v, and the model says: %v", choices, keeps, err)
		}
		if err != nil {
			return
		}
		u := e.j.Use(choices)
		if want := float64(e.j.Objective(&u)); math.Abs(objective*vars.Unit-want) > 1e-6*max(1, want) {
			e.t.Fatalf("choices %v: objective %v, want %v", choices, objective*vars.Unit, want)
		}
		if objective < best.Objective {
			best = milp.Result{Status: milp.Optimal, X: x, Objective: objective, Bound: objective}
		}
	})
	return best, nil
}

// each calls visit with every combination of choices.
func each(j *problem.Joint, visit func([][][]int)) {
	var now [][][]int
	var places []*int
	var sizes []int
	for i := range j.Parts {
		var part [][]int
		for k := range j.Parts[i].Partition.Chains {
			items := j.Parts[i].Partition.Chains[k].Items
			list := make([]int, len(items))
			for n := range items {
				places, sizes = append(places, &list[n]), append(sizes, len(items[n].Choices))
			}
			part = append(part, list)
		}
		now = append(now, part)
	}
	for {
		visit(now)
		n := len(places) - 1
		for ; n >= 0; n-- {
			if *places[n]++; *places[n] < sizes[n] {
				break
			}
			*places[n] = 0
		}
		if n < 0 {
			return
		}
	}
}

// The linear programs of random instances accept exactly the combinations that keep the limits, at what they cost, and
// what is read from an answer is the first of the optimal solutions, as the exact engine returns it.
func TestJointAsLinearProgram(t *testing.T) {
	several := 0
	many(t, long(2000), func(t *rapid.T) {
		j := drawJoint(t)
		relay := problem.Relay{General: trivial{t, j}, Exact: exact.Engine{}}
		got, err := relay.Joint(context.Background(), j, problem.Limits{})
		want, infeasible := solveJoint(t, j, 100000)
		if (err != nil) != infeasible {
			t.Fatalf("relayed: %v, exact infeasible: %v", err, infeasible)
		}
		if err != nil {
			if diag.ClassOf(err) != diag.ClassInfeasible {
				t.Fatalf("%v", err)
			}
			return
		}
		several++
		if got.Status != problem.Optimal || got.Objective != want.Objective || !j.Keeps(got.Choices) {
			t.Fatalf("relayed %+v, exact %+v", got, want)
		}
	})
	if several == 0 {
		t.Fatal("no feasible instance was drawn")
	}
}

func TestPartitionAsLinearProgram(t *testing.T) {
	many(t, long(2000), func(t *rapid.T) {
		p := draw(t)
		j := &problem.Joint{Name: p.Name, Parts: []problem.Part{{Partition: p, Weight: 1}}}
		want, first := solveFirst(t, p)
		got, err := problem.Relay{General: trivial{t, j}, Exact: exact.Engine{}}.Partition(context.Background(), p)
		if (err != nil) != (first == nil) {
			t.Fatalf("relayed: %v, exact %v", err, first)
		}
		if err == nil && (got.Status != problem.Optimal || got.ObjectiveNS != want) {
			t.Fatalf("relayed %+v, exact %d", got, want)
		}
	})
}
