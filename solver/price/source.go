// Package price knows the ways to execute each operator of a section on a machine, and what each costs: measured, interpolated or
// bounded by the fitted costs, simulated, or refused by a device's compiler.
package price

import (
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs/timeline"
	"github.com/hetc/hetc/solver/problem"
)

// estimate is a predicted time in nanoseconds.
type Estimate struct{ NS, Low, High int64 }

// task is an operator on a processor, as prices are asked for it.
type Task struct {
	Proc string
	Op   op.Op
}

// cold reports whether a task reads what lies as a model leaves it (weights, the cache) rather than
// what the step before has just written.
func (t *Task) Cold() bool {
	return t.Op.HasScheme() || t.Op.Kind == op.Embed || t.Op.Kind == op.Attention
}

// prices is what the solver asks of a cost model. An error says that it has no answer: nothing was
// measured, or the shape is infeasible.
type Source interface {
	// together predicts tasks that different processors execute at the same time, each slowed down
	// by the others.
	Together(tasks []Task) ([]Estimate, error)
	// phase is a task taken apart: what of it others slow down.
	Phase(Task) (timeline.Phase, error)
	// memory is how processors slow each other down.
	Memory() *timeline.Memory
	// handover is the time from one processor's setting of a flag to the other's noticing it.
	Handover(from, to string) (Estimate, error)
	// launch is the part of every operator's price that a graph of several pays once.
	Launch(proc string) (int64, error)
	// copy is the time to move bytes from one processor to another, 0 where they share memory.
	Copy(from, to string, bytes int64) (int64, error)
	// measured lists numbers of rows at which an operator of a task's shape was measured.
	Measured(Task) []int
	// forms lists the forms, besides the default, of which something is known.
	Forms(Task) []op.Form
}

func (t *Task) Key() string { return t.Proc + " " + t.Op.Key() }

// reckoned is an error where a time is beyond what problems are made of: cut off there, slow and slowest would look alike.
func reckoned(ns int64, what string, args ...any) error {
	if ns <= problem.MaxNS {
		return nil
	}
	return diag.New(diag.ClassInput, "price %s: %.4g s are predicted, want at most %.4g", fmt.Sprintf(what, args...), float64(ns)/1e9, float64(problem.MaxNS)/1e9).
		WithHint("no operator takes that long: measure again, and fit the costs again")
}

func Whole(ns float64) int64 { return int64(min(ns, math.MaxInt64/2)) }

// anyScheme are prices that take another scheme's time for what was never measured because no processor executes it. They
// tell whether a plan exists, and nothing of how fast it is.
type AnyScheme struct{ Source }

func (f AnyScheme) Measured(Task) []int  { return nil }
func (f AnyScheme) Forms(Task) []op.Form { return nil }

func (f AnyScheme) Together(tasks []Task) ([]Estimate, error) {
	out, err := f.Source.Together(tasks)
	if err == nil {
		return out, nil
	}
	out = nil
	for _, t := range tasks {
		alone, err := f.Source.Together([]Task{t})
		for _, scheme := range op.Schemes {
			if err == nil || t.Op.Scheme == "" {
				break
			}
			other := t
			other.Op.Scheme = scheme
			alone, err = f.Source.Together([]Task{other})
		}
		if err != nil {
			return nil, err
		}
		out = append(out, alone[0])
	}
	return out, nil
}
