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
	t     *rapid.T
	joint *problem.Joint
}

// Name implements milp.Engine.
func (trivial) Name() string { return "trivial" }

// Solve goes through all choices.
func (s trivial) Solve(_ context.Context, given *milp.Model, _ milp.Options) (milp.Result, error) {
	if err := given.Validate(); err != nil {
		return milp.Result{}, err
	}
	model, vars := s.joint.MILP()
	if len(model.Vars) != len(given.Vars) || len(model.Rows) != len(given.Rows) {
		s.t.Fatalf("posed with %d variables and %d rows, now %d and %d", len(given.Vars), len(given.Rows),
			len(model.Vars), len(model.Rows))
	}

	best := milp.Result{Status: milp.Infeasible, Objective: math.Inf(1)}
	each(s.joint, func(choices [][][]int) {
		keeps := s.joint.Keeps(choices)
		values, objective, err := given.Verify(vars.X(s.joint, given, choices))
		if keeps != (err == nil) {
			s.t.Fatalf("choices %v keep the limits: %v, and the model says: %v", choices, keeps, err)
		}
		if err != nil {
			return
		}
		use := s.joint.Use(choices)
		if want := float64(s.joint.Objective(&use)); math.Abs(objective*vars.Unit-want) > 1e-6*max(1, want) {
			s.t.Fatalf("choices %v: objective %v, want %v", choices, objective*vars.Unit, want)
		}
		if objective < best.Objective {
			best = milp.Result{Status: milp.Optimal, X: values, Objective: objective, Bound: objective}
		}
	})
	return best, nil
}

// each calls visit with every combination of choices, in lexicographic order.
func each(joint *problem.Joint, visit func([][][]int)) {
	var now [][][]int
	var places []*int
	var sizes []int
	for _, part := range joint.Parts {
		var chains [][]int
		for _, chain := range part.Partition.Chains {
			list := make([]int, len(chain.Items))
			for i := range chain.Items {
				places, sizes = append(places, &list[i]), append(sizes, len(chain.Items[i].Choices))
			}
			chains = append(chains, list)
		}
		now = append(now, chains)
	}
	eachPick(sizes, func(pick []int) {
		for i, choice := range pick {
			*places[i] = choice
		}
		visit(now)
	})
}

// The linear programs of random instances accept exactly the combinations that keep the limits, at what they cost, and
// what is read from an answer is the first of the optimal solutions, as the exact engine returns it.
func TestJointAsLinearProgram(t *testing.T) {
	several := 0
	many(t, long(2000), func(t *rapid.T) {
		joint := drawJoint(t)
		relay := problem.Relay{General: trivial{t, joint}, Exact: exact.Engine{}}
		got, err := relay.Joint(context.Background(), joint, problem.Limits{})
		want, infeasible := solveJoint(t, joint, 100000)
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
		if got.Status != problem.Optimal || got.Objective != want.Objective || !joint.Keeps(got.Choices) {
			t.Fatalf("relayed %+v, exact %+v", got, want)
		}
	})
	if several == 0 {
		t.Fatal("no feasible instance was drawn")
	}
}

// The linear program of one partition alone has its optimum.
func TestPartitionAsLinearProgram(t *testing.T) {
	many(t, long(2000), func(t *rapid.T) {
		partition := draw(t)
		joint := &problem.Joint{Name: partition.Name, Parts: []problem.Part{{Partition: partition, Weight: 1}}}
		want, first := solveFirst(t, partition)
		got, err := problem.Relay{General: trivial{t, joint}, Exact: exact.Engine{}}.Partition(context.Background(),
			partition)
		if (err != nil) != (first == nil) {
			t.Fatalf("relayed: %v, exact %v", err, first)
		}
		if err == nil && (got.Status != problem.Optimal || got.ObjectiveNS != want) {
			t.Fatalf("relayed %+v, exact %d", got, want)
		}
	})
}
