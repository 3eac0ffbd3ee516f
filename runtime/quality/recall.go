package quality

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/executor"
)

// Passage plants a passage into a window: length tokens, drawn from those that the window has so that they are of its
// kind in no order that could be guessed, end half a window before its end, and are repeated at its end. What follows
// the first three of the repeated ones, from position from on, can be known from the context alone.
func Passage(window []int32, length int, seed uint64) (prompt []int32, from int, err error) {
	if length < 8 || 4*length > len(window) {
		return nil, 0, diag.New(diag.ClassInput, "plant a passage of %d tokens into a window of %d, want 8..%d", length,
			len(window), len(window)/4)
	}
	random := rand.New(rand.NewPCG(seed, uint64(len(window))))
	prompt = append([]int32{}, window...)
	kinds := slices.Clone(window)
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	passage := make([]int32, length)
	for i := range passage {
		passage[i] = kinds[random.IntN(len(kinds))]
	}
	end := len(prompt)
	copy(prompt[end-len(window)/2-length:], passage)
	copy(prompt[end-length:], passage)
	const known = 3 // tokens by which the passage is recognised
	return prompt, end - length + known - 1, nil
}

// Recall is at how many positions from the given one the likeliest token is the one that follows in the prompt, of how
// many. The prompt is executed in one call from an empty cache.
func Recall(ctx context.Context, machine *executor.Machine, prompt []int32, from int) (right, all int, err error) {
	err = forward(ctx, machine, prompt, len(prompt), func(pos int, out row) error {
		if pos < from || pos+1 >= len(prompt) {
			return nil
		}
		all++
		if out.top == int(prompt[pos+1]) {
			right++
		}
		return nil
	})
	return right, all, err
}
