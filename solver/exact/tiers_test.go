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

// extremeLoads are ways to route that distributions hardly ever draw: what an expert of a layer gets in a chunk, of at
// most so many rows.
var extremeLoads = []func(random *rand.Rand, expert, chunk int, most int32) int32{
	func(*rand.Rand, int, int, int32) int32 { return 0 }, // nothing is routed
	func(_ *rand.Rand, expert, _ int, most int32) int32 { // all to one expert
		if expert == 0 {
			return most
		}
		return 0
	},
	func(_ *rand.Rand, expert, chunk int, most int32) int32 { // all to another one in every chunk
		if expert == chunk%3 {
			return most
		}
		return 0
	},
	func(_ *rand.Rand, _, _ int, most int32) int32 { return most / 2 }, // ties everywhere
	func(random *rand.Rand, expert, chunk int, most int32) int32 { // together beyond slots, apart never
		if (expert+chunk)%2 == 0 {
			return most - random.Int32N(2)
		}
		return 1
	},
}

// smallTiers draws an instance that can be enumerated: groups of up to three experts, loads with hot experts or extreme
// ones, and now and then limits, tight ones too.
func smallTiers(random *rand.Rand) *problem.Tiers {
	layers, experts, chunks := 1+random.IntN(2), 1+random.IntN(5), 1+random.IntN(4)
	p := &problem.Tiers{
		Name: "small", Tile: 4, Capacities: []int{4, 8, 16}[:1+random.IntN(3)], MaxTiers: 1 + random.IntN(2),
		ExpertBytes: 10, CallNS: random.Int64N(50), LayerNS: random.Int64N(100), ShapeNS: random.Int64N(60),
		Serial: random.IntN(5) == 0,
	}
	if random.IntN(2) == 0 { // weights and buffers
		expert := int64(10 * layers)
		p.Limits = append(p.Limits, problem.TierLimit{Name: "region", Expert: expert, Row: random.Int64N(4),
			Bytes: expert + random.Int64N(int64(experts)*(expert+30))})
	}
	if random.IntN(3) == 0 { // mostly buffers
		p.Limits = append(p.Limits, problem.TierLimit{Name: "memory", Expert: 1, Row: 2,
			Bytes: 1 + random.Int64N(int64(experts)*40)})
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
	extreme := random.IntN(2 * len(extremeLoads))
	for range layers {
		var y problem.TierLayer
		for expert := range experts {
			var rows []int32
			hot := int32(1 + random.IntN(24))
			for chunk := range chunks {
				if extreme < len(extremeLoads) {
					rows = append(rows, extremeLoads[extreme](random, expert, chunk, 32))
				} else {
					rows = append(rows, random.Int32N(hot+8))
				}
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
			if p.MostSlots() == 0 { // no graph may be opened, or no slot has room
				best = p.Time(make([]int, tiers), zeros(len(p.Layers), experts))
				return
			}
			for n := range p.MostSlots() + 1 {
				counts(append(slices.Clone(slots), n))
			}
			return
		}
		sum := 0
		for _, n := range slots {
			sum += n
		}
		if sum > experts {
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
	static, full := 0, 0
	for seed := range uint64(250) {
		p := smallTiers(rand.New(rand.NewPCG(seed, 1)))
		got, err := exact.Engine{}.Tiers(t.Context(), p, problem.Limits{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		want := bestTiers(p)
		if got.Objective != want || got.Status != problem.Optimal {
			t.Errorf("seed %d: %d, bound %d, %s, slots %v; want %d", seed, got.Objective, got.Bound, got.Status,
				got.Slots, want)
		}
		// What is stated before the search has ended is a proof, too.
		for _, nodes := range []int64{1, 4} {
			early, err := exact.Engine{}.Tiers(t.Context(), p, problem.Limits{Nodes: nodes})
			if err != nil || early.Bound > want || early.Objective < want {
				t.Errorf("seed %d, %d boxes: %d..%d, %v; the optimum is %d", seed, nodes, early.Bound, early.Objective, err, want)
			}
		}
		if slices.Max(got.Slots) > 0 {
			static++
		}
		unlimited := *p
		unlimited.Limits = nil
		if len(p.Limits) > 0 && bestTiers(&unlimited) < want {
			full++
		}
	}
	if static < 60 || static > 240 {
		t.Errorf("%d of 250 instances have slots: they do not test both", static)
	}
	if full < 25 {
		t.Errorf("a limit costs time in %d of 250 instances: they do not test limits", full)
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
		same("no limits", func(q *problem.Tiers) { q.Limits = nil }, better)
		same("smaller buffers", func(q *problem.Tiers) {
			q.Limits = slices.Clone(p.Limits)
			for i := range q.Limits {
				q.Limits[i].Row, q.Limits[i].Expert = q.Limits[i].Row/2, max(1, q.Limits[i].Expert)
			}
		}, better)
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
	}{{32, 16, 0.001}, {48, 128, 0.001}, {61, 256, 0.001}} {
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
			t.Errorf("%d layers of %d experts: gap %.3f %%, want at most %.3f %%", size.layers, size.experts, 100*gap,
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
