package executor_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/executor"
)

// sorted draws by the definition: all tokens in order of their logits, ties by id.
func sorted(s executor.Sampler, logits []float32, u float64) int32 {
	var order []int32
	best := math.Inf(-1)
	for i, logit := range logits {
		if logit == logit && !math.IsInf(float64(logit), -1) {
			order = append(order, int32(i))
			best = max(best, float64(logit))
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(logits[b], logits[a]) })
	if s.TopK > 0 {
		order = order[:min(s.TopK, len(order))]
	}

	weight := func(id int32) float64 { return math.Exp((float64(logits[id]) - best) / s.Temperature) }
	sum := 0.0
	for _, id := range order {
		sum += weight(id)
	}
	if s.TopP > 0 && s.TopP < 1 {
		part := 0.0
		for i, id := range order {
			part += weight(id)
			if part >= s.TopP*sum {
				order, sum = order[:i+1], part
				break
			}
		}
	}

	point := u * sum
	for _, id := range order {
		point -= weight(id)
		if point < 0 {
			return id
		}
	}
	return order[len(order)-1]
}

// Drawing takes the token of the definition, which sorts all tokens: whatever is cut off, with ties, and where some
// logits are no numbers.
func TestSamplerDrawsInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		random := rand.New(rand.NewPCG(seed, 1))
		logits := make([]float32, rapid.IntRange(1, 300).Draw(t, "tokens"))
		ties := rapid.Bool().Draw(t, "ties")
		for i := range logits {
			logits[i] = float32(3 * random.NormFloat64())
			if ties {
				logits[i] = float32(random.IntN(4))
			}
			if i > 0 && random.IntN(20) == 0 {
				logits[i] = []float32{float32(math.NaN()), float32(math.Inf(-1))}[random.IntN(2)]
			}
		}
		s := executor.Sampler{
			Temperature: rapid.SampledFrom([]float64{0.01, 0.7, 1, 2}).Draw(t, "temperature"),
			TopK:        rapid.SampledFrom([]int{0, 1, 5, 400}).Draw(t, "top-k"),
			TopP:        rapid.SampledFrom([]float64{0, math.SmallestNonzeroFloat64, 0.5, 0.95, 1}).Draw(t, "top-p"),
			Seed:        seed,
		}

		draws := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)) // as the sampler's
		for range 5 {
			got, err := s.Next(logits)

			if want := sorted(s, logits, draws.Float64()); err != nil || got != want {
				t.Fatalf("got %d (%v), want %d", got, err, want)
			}
		}
	})
}

// Logits of which none is a finite number are refused, drawn or not.
func TestSamplerNeedsANumber(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, logits := range [][]float32{{-inf, -inf}, {nan, -inf}, {nan}, {1, inf}} {
		for _, temperature := range []float64{0, 1} {
			s := executor.Sampler{Temperature: temperature}
			if id, err := s.Next(logits); diag.ClassOf(err) != diag.ClassRun {
				t.Errorf("%v at temperature %v: got token %d (%v), want an error", logits, temperature, id, err)
			}
		}
	}
}
