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
	posed := &joint{Joint: &problem.Joint{Name: "plan", Regions: []problem.Region{{Name: "memory"}},
		MaxBytes: maxBytes}}
	for i, cost := range costs {
		posed.Assets = append(posed.Assets, problem.Asset{Name: fmt.Sprint("graph ", i), Bytes: 10})
		posed.Parts = append(posed.Parts, problem.Part{Partition: &problem.Partition{
			Name: fmt.Sprint("program ", i), Procs: []string{"cpu"},
			Chains: []problem.Chain{{Name: "layers", Repeat: 1, Items: []problem.Item{{Name: "node",
				Before: []string{"here"}, After: []string{"here"}, Choices: []problem.Choice{
					{Label: "fast", Procs: []int{0}, CostNS: cost[0], Assets: []int{i}},
					{Label: "slow", Procs: []int{0}, CostNS: cost[1]}}}}}}}})
	}
	posed.weigh(func(part int) float64 { return calls[part] })
	return posed
}

// A program that is called a millionth as often as another one counts a millionth: what is chosen is, by the calls
// themselves, as good as the best of all choices.
func TestWeightsOfUnlikePrograms(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 14))
	for trial := range 300 {
		programs := 2 + random.IntN(5)
		costs, calls := make([][2]int64, programs), make([]float64, programs)
		for i := range programs {
			fast := int64(1000 + random.IntN(1e6))
			costs[i] = [2]int64{fast, fast + int64(math.Exp(random.Float64()*14))}
			calls[i] = math.Exp(random.Float64() * 18) // 1 to 6.6e7
		}
		room := 1 + random.IntN(programs-1)
		posed := weighed(costs, calls, int64(10*room))

		// What a choice costs beyond that every program is fast: all else is the same for every choice.
		extra := func(slow func(i int) bool) (sum float64) {
			for i := range programs {
				if slow(i) {
					sum += calls[i] * float64(costs[i][1]-costs[i][0])
				}
			}
			return sum
		}
		best := math.Inf(1)
		for set := range 1 << programs {
			fast := 0
			for i := range programs {
				fast += set >> i & 1
			}
			if fast <= room {
				best = min(best, extra(func(i int) bool { return set>>i&1 == 0 }))
			}
		}

		found, err := exact.Engine{}.Joint(t.Context(), posed.Joint, problem.Limits{Nodes: 1 << 20})
		if err != nil || found.Status != problem.Optimal {
			t.Fatalf("trial %d: %v, %v", trial, found.Status, err)
		}
		if got := extra(func(i int) bool { return found.Choices[i][0][0] == 1 }); got > best*1.03 {
			t.Errorf("trial %d: calls %v of %v take %v ns more than the fastest, want %v", trial, calls, costs, got,
				best)
		}
	}
}

// Weights of nearly equal programs stay as they were posed before; no weight is 0, and no sum leaves what the search
// calculates with exactly.
func TestScaleOfWeights(t *testing.T) {
	for _, test := range []struct {
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
		costs := make([][2]int64, len(test.calls))
		for i := range costs {
			costs[i] = [2]int64{test.costs, test.costs}
		}
		posed := weighed(costs, test.calls, 0)
		for i := range posed.Parts {
			if posed.Parts[i].Weight != test.want[i] || math.Abs(posed.unit/test.unit-1) > 1e-12 {
				t.Errorf("%v calls of %d ns: part %d has weight %d in units of %v, want %d and %v", test.calls,
					test.costs, i, posed.Parts[i].Weight, posed.unit, test.want[i], test.unit)
			}
		}
		if err := posed.Validate(); err != nil {
			t.Error(err)
		}
	}
}
