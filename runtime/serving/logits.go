package serving

import (
	"math"
	"slices"
)

// draw samples the next token of a request from logits [vocabulary], with the log probabilities it wants.
func (a *Answer) draw(logits []float32) (Token, error) {
	id, err := a.request.Sampler.Next(logits)
	if a.request.Given != nil && err == nil {
		id = a.request.Given[a.given]
		a.given++
	}
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

// likeliest returns the ids of the n largest logits, in descending order, ties by id.
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
