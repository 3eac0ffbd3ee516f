package solver

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
)

// weighed is a joint problem of programs with two choices each, of which the fast one needs an asset of 10 bytes.
func weighed(costs [][2]int64, calls []float64, maxBytes int64) *joint {
	j := &joint{Joint: &problem.Joint{Name: "plan", Regions: []problem.Region{{Name: "memory"}}, MaxBytes: maxBytes}}
	for i, cost := range costs {
		j.Assets = append(j.Assets, problem.Asset{Name: fmt.Sprint("graph ", i), Bytes: 10})
		j.Parts = append(j.Parts, problem.Part{Partition: &problem.Partition{
			Name: fmt.Sprint("program ", i), Procs: []string{"cpu"},
			Chains: []problem.Chain{{Name: "layers", Repeat: 1, Items: []problem.Item{{Name: "node",
				Before: []string{"here"}, After: []string{"here"}, Choices: []problem.Choice{
					{Label: "fast", Procs: []int{0}, CostNS: cost[0], Assets: []int{i}},
					{Label: "slow", Procs: []int{0}, CostNS: cost[1]}}}}}}}})
	}
	j.weigh(func(part int) float64 { return calls[part] })
	return j
}

// A program that is called a millionth as often as another one counts a millionth: what is chosen is, by the calls
// themselves, as good as the best of all choices.
func TestWeightsOfUnlikePrograms(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 14))
	for trial := range 300 {
		n := 2 + random.IntN(5)
		costs, calls := make([][2]int64, n), make([]float64, n)
		for i := range n {
			fast := int64(1000 + random.IntN(1e6))
			costs[i] = [2]int64{fast, fast + int64(math.Exp(random.Float64()*14))}
			calls[i] = math.Exp(random.Float64() * 18) // 1 to 6.6e7
		}
		room := 1 + random.IntN(n-1)
		j := weighed(costs, calls, int64(10*room))
		// What a choice costs beyond that every program is fast: all else is the same for every choice.
		extra := func(slow func(i int) bool) (sum float64) {
			for i := range n {
				if slow(i) {
					sum += calls[i] * float64(costs[i][1]-costs[i][0])
				}
			}
			return sum
		}
		best := math.Inf(1)
		for set := range 1 << n {
			fast := 0
			for i := range n {
				fast += set >> i & 1
			}
			if fast <= room {
				best = min(best, extra(func(i int) bool { return set>>i&1 == 0 }))
			}
		}
		found, err := exact.Engine{}.Joint(t.Context(), j.Joint, problem.Limits{Nodes: 1 << 20})
		if err != nil || found.Status != problem.Optimal {
			t.Fatalf("trial %d: %v, %v", trial, found.Status, err)
		}
		if got := extra(func(i int) bool { return found.Choices[i][0][0] == 1 }); got > best*1.03 {
			t.Errorf("trial %d: calls %v of %v take %v ns more than the fastest, want %v", trial, calls, costs, got, best)
		}
	}
}

// Weights of nearly equal programs stay as they were posed before; no weight is 0, and no sum leaves what the search
// calculates with exactly.
func TestScaleOfWeights(t *testing.T) {
	for _, c := range []struct {
		calls []float64
		costs int64
		want  []int64
		unit  float64
	}{
		{[]float64{2, 1}, 1000, []int64{1 << 14, 1 << 13}, 1 << 13},
		{[]float64{1, 0}, 1000, []int64{1 << 14, 1}, 1 << 14},
		{[]float64{0, 0}, 1000, []int64{1, 1}, 1 << 14},
		{[]float64{1e6, 1}, 1000, []int64{1 << 26, 67}, float64(1<<26) / 1e6},
		{[]float64{1e6, 1}, 1 << 38, []int64{1 << 14, 1}, float64(1<<14) / 1e6},
	} {
		costs := make([][2]int64, len(c.calls))
		for i := range costs {
			costs[i] = [2]int64{c.costs, c.costs}
		}
		j := weighed(costs, c.calls, 0)
		for i := range j.Parts {
			if j.Parts[i].Weight != c.want[i] || math.Abs(j.unit/c.unit-1) > 1e-12 {
				t.Errorf("%v calls of %d ns: part %d has weight %d in units of %v, want %d and %v", c.calls, c.costs, i,
					j.Parts[i].Weight, j.unit, c.want[i], c.unit)
			}
		}
		if err := j.Validate(); err != nil {
			t.Error(err)
		}
	}
}
