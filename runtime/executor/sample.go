package executor

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/hetc/hetc/internal/diag"
)

// Sampler picks the next token from logits. Temperature 0 is greedy, and ties go to the lower id.
// With a temperature the choice is drawn from the TopK likeliest tokens (0: all), within the
// smallest set whose probability reaches TopP (0: all). The generator is seeded with Seed: same
// seed, same text.
type Sampler struct {
	Temperature float64
	TopK        int
	TopP        float64
	Seed        uint64

	rng *rand.Rand
	// of the latest call of Next
	logits        []float32
	best          float64   // the largest of them
	order         []int32   // the likeliest tokens, as many as were wanted so far
	probabilities []float64 // theirs, unnormalised
	rest          []int32   // a heap of the other tokens
}

// Validate returns an error for settings outside their range.
func (s *Sampler) Validate() error {
	if !(s.Temperature >= 0) || math.IsInf(s.Temperature, 1) || s.TopK < 0 || math.IsNaN(s.TopP) || s.TopP < 0 ||
		s.TopP > 1 {
		return diag.New(diag.ClassUsage,
			"sampling: temperature %v, top-k %d, top-p %v, want a finite temperature >= 0, top-k >= 0, top-p in 0..1",
			s.Temperature, s.TopK, s.TopP)
	}
	return nil
}

// Next returns the id of the chosen token. Logits of which none is a finite number are an error.
func (s *Sampler) Next(logits []float32) (int32, error) {
	best := -1
	for i, logit := range logits {
		if logit == logit && (best < 0 || logit > logits[best]) {
			best = i
		}
	}
	if best < 0 || math.IsInf(float64(logits[best]), 0) {
		return 0, diag.New(diag.ClassRun, "sample: logits hold no finite maximum").
			WithHint("run hetrun --check against the reference, or verify the model's weights")
	}
	if s.Temperature == 0 {
		return int32(best), nil
	}
	if s.rng == nil {
		s.rng = rand.New(rand.NewPCG(s.Seed, 0x9e3779b97f4a7c15))
	}
	s.rank(logits, float64(logits[best]))
	count, sum := s.candidates()
	point := s.rng.Float64() * sum
	for i := range count {
		if point -= s.nth(i); point < 0 {
			return s.order[i], nil
		}
	}
	return s.order[count-1], nil
}

// candidates returns how many of the likeliest tokens TopK and TopP leave to choose from, and the sum of their
// unnormalised probabilities.
func (s *Sampler) candidates() (count int, sum float64) {
	count = len(s.rest)
	if s.TopK > 0 && s.TopK < count {
		count = s.TopK
		for i := range count {
			sum += s.nth(i)
		}
	} else {
		for _, id := range s.rest {
			sum += s.weight(id)
		}
	}
	if s.TopP <= 0 || s.TopP >= 1 {
		return count, sum
	}
	part := 0.0
	for i := range count {
		if part += s.nth(i); part >= s.TopP*sum {
			return i + 1, part
		}
	}
	return count, sum
}

// rank prepares to take tokens in descending order of their logits. Usually only few are taken, so it does not sort:
// the tokens that were not taken form a heap whose first one is the likeliest.
func (s *Sampler) rank(logits []float32, best float64) {
	s.logits, s.best = logits, best
	s.order, s.probabilities, s.rest = s.order[:0], s.probabilities[:0], s.rest[:0]
	for i, logit := range logits {
		if logit == logit && !math.IsInf(float64(logit), -1) {
			s.rest = append(s.rest, int32(i))
		}
	}
	for i := len(s.rest)/2 - 1; i >= 0; i-- {
		s.sift(i)
	}
}

// sift moves the token at a place of the heap down to where none below it is likelier.
func (s *Sampler) sift(at int) {
	for {
		below := 2*at + 1
		if below+1 < len(s.rest) && s.likelier(s.rest[below+1], s.rest[below]) {
			below++
		}
		if below >= len(s.rest) || !s.likelier(s.rest[below], s.rest[at]) {
			return
		}
		s.rest[at], s.rest[below] = s.rest[below], s.rest[at]
		at = below
	}
}

// likelier reports whether token a comes before token b. Equal logits keep the order of ids.
func (s *Sampler) likelier(a, b int32) bool {
	return s.logits[a] > s.logits[b] || s.logits[a] == s.logits[b] && a < b
}

// nth returns the unnormalised probability of the i-th likeliest token, counted from 0. That token is s.order[i] then.
func (s *Sampler) nth(i int) float64 {
	for len(s.order) <= i {
		id, last := s.rest[0], len(s.rest)-1
		s.rest[0] = s.rest[last]
		s.rest = s.rest[:last]
		s.sift(0)
		s.order, s.probabilities = append(s.order, id), append(s.probabilities, s.weight(id))
	}
	return s.probabilities[i]
}

// weight returns the unnormalised probability of a token.
func (s *Sampler) weight(id int32) float64 {
	return math.Exp((float64(s.logits[id]) - s.best) / s.Temperature)
}

// Generation is the outcome of Generate. Times are on the control processor's clock.
type Generation struct {
	Tokens    []int32
	PrefillNS int64
	DecodeNS  []int64 // per generated token after the first
	Virtual   bool    // times are simulated
	Stopped   bool    // by an end token or by onToken, not by the limit
	Full      bool    // the context is: it ended before the limit
}

// addToken adds a sampled token to the result of a sequence, and returns whether that ends it.
func (g *Generation) addToken(machine *Machine, sequence int, id int32, maxTokens int,
	onToken func(int32) bool) (end bool) {
	if slices.Contains(machine.plan.Model.EOS, int(id)) {
		g.Stopped = true
		return true
	}
	g.Tokens = append(g.Tokens, id)
	if onToken != nil && !onToken(id) {
		g.Stopped = true
		return true
	}
	if len(g.Tokens) >= maxTokens {
		return true
	}
	g.Full = machine.pos[sequence] >= machine.plan.MaxContext
	return g.Full
}

// Generate processes the prompt at the current position and samples up to maxTokens tokens, or fewer
// when an end token appears (which is not part of the result), onToken returns false, or the context is
// full. onToken may be nil.
func (m *Machine) Generate(ctx context.Context, prompt []int32, maxTokens int, sampler *Sampler,
	onToken func(int32) bool) (Generation, error) {
	var out Generation
	if err := sampler.Validate(); err != nil {
		return out, err
	}
	out.Tokens = make([]int32, 0, min(maxTokens, m.plan.MaxContext))
	out.DecodeNS = make([]int64, 0, cap(out.Tokens))
	err := m.Do(ctx, func(control *Control) error {
		var next int32
		pick := func(_ int, logits []float32) (err error) {
			next, err = sampler.Next(logits)
			return err
		}
		input := prompt
		one := make([]int32, 1)
		for {
			want := WantLast
			if maxTokens == 0 {
				want = WantNone
			}
			timing, err := control.Forward(input, want, pick)
			if err != nil {
				return err
			}
			out.Virtual = timing.Virtual
			if len(out.Tokens) == 0 {
				out.PrefillNS = timing.NS
			} else {
				out.DecodeNS = append(out.DecodeNS, timing.NS)
			}
			if maxTokens == 0 {
				return nil
			}
			if out.addToken(m, 0, next, maxTokens, onToken) {
				return nil
			}
			one[0] = next
			input = one
		}
	})
	return out, err
}
