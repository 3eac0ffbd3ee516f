package exact_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
)

// smallTiers draws an instance that can be enumerated: groups of up to three experts, loads with hot experts, and now
// and then a limit.
func smallTiers(random *rand.Rand) *problem.Tiers {
	layers, experts, chunks := 1+random.IntN(2), 3+random.IntN(3), 1+random.IntN(4)
	p := &problem.Tiers{
		Name: "small", Tile: 4, Capacities: []int{4, 8, 16}[:1+random.IntN(3)], MaxTiers: 1 + random.IntN(2),
		ExpertBytes: 10, CallNS: random.Int64N(50), LayerNS: random.Int64N(100), ShapeNS: random.Int64N(60),
		Serial: random.IntN(5) == 0,
	}
	if random.IntN(3) == 0 {
		p.RegionBytes = int64(10 * layers * (1 + random.IntN(experts)))
	}
	if random.IntN(4) == 0 {
		p.MaxGraphs = 1 + random.Int64N(2)
	}
	if random.IntN(3) == 0 {
		p.Drop, p.MaxDropPPM = true, random.Int64N(300_000)
	}
	for _, rows := range p.Capacities {
		var list []int64
		for size := range int64(3) {
			list = append(list, 50+(size+1)*int64(rows)*(4+random.Int64N(3)))
		}
		p.GroupNS = append(p.GroupNS, list)
	}
	for rows := range int64(33) {
		p.CPUNS = append(p.CPUNS, min(rows, 1)*20+rows*(10+random.Int64N(3)))
	}
	for range layers {
		var y problem.TierLayer
		for range experts {
			var rows []int32
			hot := int32(1 + random.IntN(24))
			for range chunks {
				rows = append(rows, random.Int32N(hot+8))
			}
			y.Rows = append(y.Rows, rows)
		}
		p.Layers = append(p.Layers, y)
	}
	return p
}

// bestTiers is the least objective of all solutions: of any numbers of slots and any experts in them.
func bestTiers(p *problem.Tiers) int64 {
	best := int64(math.MaxInt64)
	tiers, experts := len(p.Capacities), p.Experts()
	var assignments func(layer int, slots, list []int, visit func([]int))
	assignments = func(layer int, slots, list []int, visit func([]int)) {
		if len(list) == experts {
			if slices.Max(slots) == 0 {
				visit(list)
			}
			return
		}
		for choice := range tiers + 1 {
			next := slices.Clone(slots)
			if choice > 0 {
				if next[choice-1]--; next[choice-1] < 0 {
					continue
				}
			}
			assignments(layer, next, append(slices.Clone(list), choice), visit)
		}
	}
	var counts func(slots []int)
	counts = func(slots []int) {
		if len(slots) < tiers {
			for n := range p.MostSlots() + 1 {
				counts(append(slices.Clone(slots), n))
			}
			return
		}
		sum := 0
		for _, n := range slots {
			sum += n
		}
		if sum > p.MostSlots() {
			return
		}
		// Layers are independent once the slots are given.
		choices := make([][]int, len(p.Layers))
		for layer := range p.Layers {
			one := *p
			one.Layers = p.Layers[layer : layer+1]
			least := int64(math.MaxInt64)
			assignments(layer, slots, nil, func(list []int) {
				dropped := int64(0)
				for expert, choice := range list {
					dropped += p.Dropped(layer, expert, choice)
				}
				if ns := one.Time(slots, [][]int{list}); ns < least && dropped <= p.MostDropped(layer) {
					least, choices[layer] = ns, list
				}
			})
			if choices[layer] == nil {
				return
			}
		}
		if p.Broken(slots, choices) == "" {
			best = min(best, p.Time(slots, choices))
		}
	}
	counts(nil)
	return best
}

func TestTiersAgainstBruteForce(t *testing.T) {
	static := 0
	for seed := range uint64(150) {
		p := smallTiers(rand.New(rand.NewPCG(seed, 1)))
		got, err := exact.Engine{}.Tiers(t.Context(), p, problem.Limits{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if want := bestTiers(p); got.Objective != want || got.Status != problem.Optimal {
			t.Errorf("seed %d: %d, bound %d, %s, slots %v; want %d", seed, got.Objective, got.Bound, got.Status,
				got.Slots, want)
		}
		if slices.Max(got.Slots) > 0 {
			static++
		}
	}
	if static < 30 || static > 145 {
		t.Errorf("%d of 150 instances have slots: they do not test both", static)
	}
}

// The layers, experts and observed chunks of an instance may come in any order, and more room never makes it slower.
func TestTiersProperties(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 2))
		p := smallTiers(random)
		first, err := exact.Engine{}.Tiers(t.Context(), p, problem.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		same := func(what string, change func(q *problem.Tiers), ok func(a, b int64) bool) {
			q := *p
			q.Layers = slices.Clone(p.Layers)
			change(&q)
			other, err := exact.Engine{}.Tiers(t.Context(), &q, problem.Limits{})
			if err != nil || !ok(first.Objective, other.Objective) {
				t.Errorf("seed %d, %s: %d, then %d, %v", seed, what, first.Objective, other.Objective, err)
			}
		}
		equal := func(a, b int64) bool { return a == b }
		better := func(a, b int64) bool { return b <= a }
		same("layers in another order", func(q *problem.Tiers) { slices.Reverse(q.Layers) }, equal)
		same("experts in another order", func(q *problem.Tiers) {
			for i := range q.Layers {
				q.Layers[i].Rows = slices.Clone(q.Layers[i].Rows)
				slices.Reverse(q.Layers[i].Rows)
			}
		}, equal)
		same("more tiers", func(q *problem.Tiers) { q.MaxTiers++ }, better)
		same("no region", func(q *problem.Tiers) { q.RegionBytes = 0 }, better)
		same("any number of graphs", func(q *problem.Tiers) { q.MaxGraphs = 0 }, better)
		if p.Drop {
			same("more dropped", func(q *problem.Tiers) { q.MaxDropPPM *= 2 }, better)
		}
		if p.Serial {
			same("side by side", func(q *problem.Tiers) { q.Serial = false }, better)
		}
	}
}

// Instances as large as published models end within a stated gap. The limit of work, not of time, ends the search.
func TestTiersOfPublishedSizes(t *testing.T) {
	if testing.Short() {
		t.Skip("several seconds a size")
	}
	for _, size := range []struct {
		layers, experts int
		gap             float64
	}{{32, 16, 0.02}, {48, 128, 0.2}, {61, 256, 0.3}} {
		p := problem.GenerateTiers(1, size.layers, size.experts, 10)
		start := time.Now()
		got, err := exact.Engine{}.Tiers(t.Context(), p, problem.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		gap := float64(got.Objective-got.Bound) / float64(got.Objective)
		dynamic := p.Time(make([]int, len(p.Capacities)), zeros(size.layers, size.experts))
		t.Logf("%d x %d: slots %v, %.4g ms, %.1f %% of dynamic, gap %.2f %%, %d nodes, %v", size.layers, size.experts,
			got.Slots, float64(got.Objective)/1e6/float64(p.Chunks()), 100*float64(got.Objective)/float64(dynamic),
			100*gap, got.Nodes, time.Since(start))
		if gap > size.gap {
			t.Errorf("%d layers of %d experts: gap %.2f %%, want at most %.2f %%", size.layers, size.experts, 100*gap,
				100*size.gap)
		}
	}
}

// zeros are choices without slots.
func zeros(layers, experts int) (out [][]int) {
	for range layers {
		out = append(out, make([]int, experts))
	}
	return out
}

func ExampleEngine_Tiers() {
	p := problem.GenerateTiers(3, 2, 8, 4)
	solution, err := exact.Engine{}.Tiers(context.Background(), p, problem.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Capacities, solution.Slots, solution.Status)
	// Output:
	// [16 32 48 64] [0 0 0 8] optimal
}
