package solver

import (
	"fmt"
	"math"
	"strings"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/solver/problem"
)

// What a plan says of the problems it was solved from (planir.Solve.Status), beside problem.Optimal, problem.Feasible
// and problem.LimitReached. They are the solver's words: engines know nothing of a plan.
const (
	// StatusTied: nothing better exists, that is proved; whether the solution is the first of several equally good
	// ones is not.
	StatusTied = "optimal, order not proved"
	// StatusReplaced: the problem was solved as BoundNS says, and the best single processor is taken instead, which a
	// timeline of the whole program predicts to be faster. ObjectiveNS is what it takes in the problem.
	StatusReplaced = "single processor instead"
	// StatusFaster: likewise, and the optimum of a problem with fewer choices is taken instead (fastest.go).
	StatusFaster = "predicted faster than the optimum"
)

// statusOf returns an engine's status in the words of a plan.
func statusOf(status problem.Status, objective, bound int64) string {
	if status == problem.Feasible && bound >= objective {
		return StatusTied
	}
	return string(status)
}

// Proof says what is proved of a plan, according to the problems that it stores. All messages about it come from here.
type Proof struct {
	Problems int `json:"problems"` // whose solutions the plan is made of
	Proved   int `json:"proved"`   // nothing is better
	Tied     int `json:"tied"`     // of the proved: whether the first of equally good solutions was taken is not known
	Replaced int `json:"replaced"` // of the proved: the best single processor was taken instead, predicted to be faster
	Faster   int `json:"faster"`   // of the proved: other decisions were taken instead, predicted to be faster
	Open     int `json:"open"`     // something better is not ruled out
	// Gap is how much better, relative to the objective: the largest of a problem.
	Gap float64 `json:"gap"`

	holds bool // the measure is what a process holds
}

// ProofOf sums up the problems of a plan. Where a plan from older versions says feasible of an objective that is its
// bound, that is a proof all the same.
func ProofOf(list []planir.Solve) Proof {
	proof := Proof{Problems: len(list)}
	for _, report := range list {
		proof.holds = proof.holds || report.Problem == jointProblem(problem.Memory)
		switch statusOf(problem.Status(report.Status), report.ObjectiveNS, report.BoundNS) {
		case string(problem.Optimal):
			proof.Proved++
		case StatusTied:
			proof.Proved++
			proof.Tied++
		case StatusReplaced:
			proof.Proved++
			proof.Replaced++
		case StatusFaster:
			proof.Proved++
			proof.Faster++
		default:
			proof.Open++
			proof.Gap = math.Max(proof.Gap, gapOf(report))
		}
	}
	return proof
}

// gapOf returns how much better a solution could be, relative to its objective.
func gapOf(report planir.Solve) float64 {
	if report.ObjectiveNS <= 0 {
		return 0
	}
	return float64(max(0, report.ObjectiveNS-report.BoundNS)) / float64(report.ObjectiveNS)
}

// String returns the proof as a sentence; "" where no problem was solved.
func (p Proof) String() string {
	if p.Problems == 0 {
		return ""
	}
	var parts []string
	switch {
	case p.Open == 0 && p.holds:
		parts = append(parts, "No plan made of these candidates is predicted to hold less: that is proved. "+
			"Of those that hold as little another one may be faster.")
	case p.Open == 0:
		parts = append(parts, "Counting operators and hand-overs within sections, these decisions are proved to be "+
			"the best of the candidates in every program. Waits between sections are only predicted.")
	case p.Proved == 0:
		parts = append(parts, fmt.Sprintf(
			"The search ended at its limit: a plan that is up to %.2g %% better under these predictions "+
				"is not ruled out.", 100*p.Gap))
	default:
		parts = append(parts, fmt.Sprintf(
			"Of %d problems that the plan is made of %d are proved best; for the others a plan that is up to %.2g %% "+
				"better under these predictions is not ruled out.",
			p.Problems, p.Proved, 100*p.Gap))
	}

	if p.Tied > 0 {
		parts = append(parts, fmt.Sprintf("Of %s another solution may be as good.", several(p.Tied, "of them")))
	}
	if p.Replaced > 0 {
		parts = append(parts, fmt.Sprintf(
			"%s executed by its best single processor, which is predicted to be faster than the proved division.",
			several(p.Replaced, "program is", "programs are")))
	}
	if p.Faster > 0 {
		parts = append(parts, fmt.Sprintf(
			"Counting them too, %s predicted to be faster with other decisions, and %s those.",
			several(p.Faster, "program is", "programs are"), []string{"has", "have"}[min(p.Faster-1, 1)]))
	}
	return strings.Join(parts, " ")
}

// several counts things: "1 program is", "3 programs are".
func several(count int, words ...string) string {
	if count == 1 || len(words) == 1 {
		return fmt.Sprintf("%d %s", count, words[0])
	}
	return fmt.Sprintf("%d %s", count, words[1])
}
