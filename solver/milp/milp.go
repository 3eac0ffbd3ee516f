// Package milp knows what a mixed-integer linear program is: variables, rows, an objective, and what
// may be said of an answer. Engines take models of it; whatever one returns is verified here, by code that
// shares nothing with the code that built the model.
package milp

import (
	"context"
	"time"
)

// Model is a problem to be minimised:
//
//	min  Offset + sum Vars[j].Cost * x[j]
//	s.t. Rows[i].Low <= sum Terms.Coef * x[Terms.Var] <= Rows[i].High,  Vars[j].Low <= x[j] <= Vars[j].High
//
// with x[j] whole where Vars[j].Integer. Bounds may be infinite.
type Model struct {
	Name   string
	Note   string // what the objective stands for, one line: a comment where the model is written
	Offset float64
	Vars   []Var
	Rows   []Row
}

// Var is a variable. Names are unique in a model, and so are those of rows.
type Var struct {
	Name string
	Cost float64
	// bounds, which may be infinite
	Low, High float64
	Integer   bool
}

// Row is a linear constraint. No variable appears twice in it.
type Row struct {
	Name      string
	Low, High float64
	Terms     []Term
}

// Term is a variable, by index, with its coefficient.
type Term struct {
	Var  int
	Coef float64
}

// Status says what is known of an answer.
type Status string

const (
	Optimal    Status = "optimal"    // no solution is better
	Feasible   Status = "feasible"   // a solution, and a bound below it
	Infeasible Status = "infeasible" // proved: there is no solution
	Limit      Status = "limit"      // stopped without a solution or a proof that there is none
)

// Result is an engine's answer. X is nil unless Status is Optimal or Feasible.
type Result struct {
	Status    Status
	X         []float64
	Objective float64
	Bound     float64 // no solution is below it
	Nodes     int64   // of the search tree
}

// Options bound a solve. The zero value means: until it is proved.
type Options struct {
	Nodes int64         // of the search tree, deterministic; 0: no limit
	Time  time.Duration // 0: no limit. Answers that a time limit cut short differ between runs
	// Start is a solution to begin with, nil: none. One that breaks a row is ignored.
	Start []float64
	// Progress is called now and then while solving, with the best objective and the bound; nil: it is not.
	Progress func(objective, bound float64, nodes int64)
	// Log gets the engine's own messages, line by line; nil: they are dropped.
	Log func(line string)
}

// Engine solves models. An error is of class ClassInterrupted when ctx ended, ClassInput when the model is
// not valid, ClassInternal when the engine failed or its answer did not stand verification. That no solution
// exists is no error but a Status.
type Engine interface {
	Name() string // "highs", "highs-native"
	Solve(ctx context.Context, m *Model, o Options) (Result, error)
}
