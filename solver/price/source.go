// Package price knows the ways to execute each operator of a section on a machine, and what each costs by the fitted
// latency models, or that a device's compiler refuses it. The solver reads it to pose its problems.
//
// list.go lists the candidates of an operator, shape.go and divide.go how each divides it, candidate.go what one takes,
// and handover.go what moving values between the candidates of neighbours takes. fitted.go is the only file that asks
// the latency models.
package price

import (
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/socs/timeline"
	"github.com/hetc/hetc/solver/problem"
)

// Estimate is a predicted time in nanoseconds, with its interval and its source.
type Estimate struct {
	NS, Low, High int64
	Source        source.Source
}

// Task is an operator on a processor.
type Task struct {
	Proc string
	Op   op.Op
}

// Cold reports whether a task reads data that is in no cache (weights, cached positions) rather than the result of the
// step before.
func (t *Task) Cold() bool {
	return t.Op.HasScheme() || t.Op.Kind == op.Embed || t.Op.Kind.ReadsCache()
}

// Key returns a key of the task: tasks with equal keys cost the same.
func (t *Task) Key() string { return t.Proc + " " + t.Op.Key() }

// Costs is a cost model. An error means that it has no answer: nothing was measured, or the shape is infeasible.
type Costs interface {
	// Together predicts tasks that different processors execute at the same time, each slowed down by the others.
	Together(tasks []Task) ([]Estimate, error)
	// Phase is a task taken apart into what others slow down and what they do not.
	Phase(Task) (timeline.Phase, error)
	// Memory is how processors slow each other down.
	Memory() *timeline.Memory
	// Handover is the time from one processor's setting of a flag to the other's noticing it.
	Handover(from, to string) (Estimate, error)
	// Launch is the part of every operator's price that a graph of several operators pays once.
	Launch(proc string) (Estimate, error)
	// GatedShare is how much of their prices, less a launch, a product and the gated linear unit that it ends with take;
	// LeastGatedShare is the least of any product on the processor.
	GatedShare(proc string, product, unit op.Op) float64
	LeastGatedShare(proc string) float64
	// Copy is the time to move bytes from one processor to another; the zero Estimate where they share memory.
	Copy(from, to string, bytes int64) (Estimate, error)
	// Measured lists numbers of rows at which an operator of a task's shape was measured.
	Measured(Task) []int
	// Forms lists the forms, besides the default, of which something is known.
	Forms(Task) []op.Form
}

// predictAlone predicts a task on an otherwise idle machine.
func predictAlone(costs Costs, task Task) (Estimate, error) {
	list, err := costs.Together([]Task{task})
	if err != nil {
		return Estimate{}, err
	}
	return list[0], nil
}

// inRange returns an error if a time is beyond the range of problems. If it were cut off there, slow and slowest
// candidates would look alike.
func inRange(ns int64, what string, args ...any) error {
	if ns <= problem.MaxNS {
		return nil
	}
	return diag.New(diag.ClassInput, "price %s: %.4g s are predicted, want at most %.4g",
		fmt.Sprintf(what, args...), float64(ns)/1e9, float64(problem.MaxNS)/1e9).
		WithHint("no operator takes that long: measure again, and fit the costs again")
}

// Whole returns a time or energy as a whole number. It cuts off large values so that the sum of two still fits an
// int64.
func Whole(x float64) int64 { return int64(min(x, math.MaxInt64/2)) }

// AnyScheme is a cost model that takes another scheme's time for operators that were never measured because no
// processor executes them. Its answers tell whether a plan exists, but not how fast it is.
type AnyScheme struct{ Costs }

// Measured lists nothing: times of another scheme are no reason to prefer a number of rows.
func (a AnyScheme) Measured(Task) []int { return nil }

// Forms lists nothing, for the same reason.
func (a AnyScheme) Forms(Task) []op.Form { return nil }

// Together predicts each task alone. A task without a price takes that of the first scheme that has one.
func (a AnyScheme) Together(tasks []Task) ([]Estimate, error) {
	out, err := a.Costs.Together(tasks)
	if err == nil {
		return out, nil
	}
	out = nil
	for _, task := range tasks {
		estimate, err := inAnyScheme(task, func(task Task) (Estimate, error) { return predictAlone(a.Costs, task) })
		if err != nil {
			return nil, err
		}
		out = append(out, estimate)
	}
	return out, nil
}

// Phase returns a task's phase. A task without a price takes that of the first scheme that has one.
func (a AnyScheme) Phase(task Task) (timeline.Phase, error) { return inAnyScheme(task, a.Costs.Phase) }

// inAnyScheme returns a cost model's answer for a task, or else its answer for the task in the first scheme that has
// one.
func inAnyScheme[T any](task Task, of func(Task) (T, error)) (T, error) {
	known, err := of(task)
	for _, scheme := range op.Schemes {
		if err == nil || task.Op.Scheme == "" {
			break
		}
		other := task
		other.Op.Scheme = scheme
		known, err = of(other)
	}
	return known, err
}
