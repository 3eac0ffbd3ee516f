package serving

import (
	"cmp"
	"math"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/executor"
)

// draw samples the next token of a request from logits [vocabulary], with the log probabilities it wants.
func (a *Answer) draw(logits []float32) (Token, error) {
	id, err := a.request.Sampler.Next(logits)
	if err != nil || a.request.LogProbs < 0 {
		return Token{ID: id}, err
	}
	top, sum := math.Inf(-1), 0.0
	for _, logit := range logits {
		top = max(top, float64(logit))
	}
	for _, logit := range logits {
		sum += math.Exp(float64(logit) - top)
	}
	norm := top + math.Log(sum)
	token := Token{ID: id, LogProb: float64(logits[id]) - norm}
	for _, i := range likeliest(logits, a.request.LogProbs) {
		token.Likely = append(token.Likely, Likely{ID: i, LogProb: float64(logits[i]) - norm})
	}
	return token, nil
}

// likeliest are the ids of the n largest logits, in descending order, ties by id.
func likeliest(logits []float32, n int) []int32 {
	out := make([]int32, 0, n+1)
	for i, logit := range logits {
		if len(out) == n && (n == 0 || logits[out[n-1]] >= logit) {
			continue
		}
		at, _ := slices.BinarySearchFunc(out, logit, func(id int32, logit float32) int {
			if logits[id] >= logit { // behind those that are as large
				return -1
			}
			return 1
		})
		out = slices.Insert(out, at, int32(i))
		out = out[:min(len(out), n)]
	}
	return out
}

// times are what a plan predicts of its programs, in ns.
type times struct {
	byName   map[string]int64
	decoding []batchTime // in ascending order of rows
}

// batchTime is a program that decodes that many sequences together.
type batchTime struct {
	rows int
	ns   int64
}

// predictions reads a plan's predictions.
func predictions(plan *planir.Plan) *times {
	out := &times{byName: map[string]int64{}}
	for i := range plan.Predictions {
		out.byName[plan.Predictions[i].Program] = plan.Predictions[i].PlanNS
	}
	for i := range plan.Program.Programs {
		if phase := &plan.Program.Programs[i]; phase.Rows == 1 || phase.Batch() {
			out.decoding = append(out.decoding, batchTime{phase.Rows, out.byName[phase.Name]})
		}
	}
	slices.SortFunc(out.decoding, func(a, b batchTime) int { return cmp.Compare(a.rows, b.rows) })
	return out
}

// decode is the time of the smallest program for n sequences.
func (t *times) decode(n int) int64 {
	for _, program := range t.decoding {
		if program.rows >= n {
			return program.ns
		}
	}
	return 0
}

// chunk is the time of the program that processes the first of n tokens.
func (t *times) chunk(machine *executor.Machine) func(n int) (int, int64) {
	return func(n int) (int, int64) {
		program, rows := machine.ProgramFor(n)
		return rows, t.byName[program]
	}
}
