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
	tiers := &problem.Tiers{
		Name: "small", Tile: 4, Capacities: []int{4, 8, 16}[:1+random.IntN(3)], MaxTiers: 1 + random.IntN(2),
		ExpertBytes: 10, CallNS: random.Int64N(50), LayerNS: random.Int64N(100), ShapeNS: random.Int64N(60),
		Serial: random.IntN(5) == 0,
	}

	if random.IntN(2) == 0 { // weights and buffers
		expert := int64(10 * layers)
		tiers.Limits = append(tiers.Limits, problem.TierLimit{Name: "region", Expert: expert, Row: random.Int64N(4),
			Bytes: expert + random.Int64N(int64(experts)*(expert+30))})
	}
	if random.IntN(3) == 0 { // mostly buffers
		tiers.Limits = append(tiers.Limits, problem.TierLimit{Name: "memory", Expert: 1, Row: 2,
			Bytes: 1 + random.Int64N(int64(experts)*40)})
	}
	if random.IntN(4) == 0 {
		tiers.MaxGraphs = 1 + random.Int64N(2)
	}
	if random.IntN(3) == 0 {
		tiers.Drop, tiers.MaxDropPPM = true, random.Int64N(300_000)
	}

	for _, rows := range tiers.Capacities {
		var list []int64
		for size := range int64(3) {
			list = append(list, 50+(size+1)*int64(rows)*(4+random.Int64N(3)))
		}
		tiers.GroupNS = append(tiers.GroupNS, list)
	}
	for rows := range int64(33) {
		tiers.CPUNS = append(tiers.CPUNS, min(rows, 1)*20+rows*(10+random.Int64N(3)))
	}

	extreme := random.IntN(2 * len(extremeLoads))
	for range layers {
		var layer problem.TierLayer
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
			layer.Rows = append(layer.Rows, rows)
		}
		tiers.Layers = append(tiers.Layers, layer)
	}
	return tiers
}

// bestTiers is the least objective of all solutions: of any numbers of slots and any experts in them.
func bestTiers(posed *problem.Tiers) int64 {
	best := int64(math.MaxInt64)
	tiers, experts := len(posed.Capacities), posed.Experts()
	if posed.MostSlots() == 0 { // no graph may be opened, or no slot has room
		return posed.Time(make([]int, tiers), zeros(len(posed.Layers), experts))
	}
	eachPick(slices.Repeat([]int{posed.MostSlots() + 1}, tiers), func(slots []int) {
		sum := 0
		for _, count := range slots {
			sum += count
		}
		if sum > experts {
			return
		}
		choices := bestAssignments(posed, slots)
		if choices != nil && posed.Broken(slots, choices) == "" {
			best = min(best, posed.Time(slots, choices))
		}
	})
	return best
}

// bestAssignments returns the choices that take least with these numbers of slots, nil if none drop few enough rows.
// Layers are independent once the slots are given.
func bestAssignments(posed *problem.Tiers, slots []int) [][]int {
	choices := make([][]int, len(posed.Layers))
	for layer := range posed.Layers {
		one := *posed
		one.Layers = posed.Layers[layer : layer+1]
		least := int64(math.MaxInt64)
		eachAssignment(slots, posed.Experts(), nil, func(list []int) {
			dropped := int64(0)
			for expert, choice := range list {
				dropped += posed.Dropped(layer, expert, choice)
			}
			if ns := one.Time(slots, [][]int{list}); ns < least && dropped <= posed.MostDropped(layer) {
				least, choices[layer] = ns, list
			}
		})
		if choices[layer] == nil {
			return nil
		}
	}
	return choices
}

// eachAssignment calls visit with every way to put experts in slots of tiers, all of which are used. list has the first
// experts' choices.
func eachAssignment(slots []int, experts int, list []int, visit func([]int)) {
	if len(list) == experts {
		if slices.Max(slots) == 0 {
			visit(list)
		}
		return
	}
	for choice := range len(slots) + 1 {
		left := slices.Clone(slots)
		if choice > 0 {
			if left[choice-1]--; left[choice-1] < 0 {
				continue
			}
		}
		eachAssignment(left, experts, append(slices.Clone(list), choice), visit)
	}
}

// Of random instances the optimum is that of an enumeration, and what a search says that is ended early holds.

func TestTiersAgainstBruteForce(t *testing.T) {
	static, full := 0, 0
	for seed := range uint64(250) {
		tiers := smallTiers(rand.New(rand.NewPCG(seed, 1)))
		got, err := exact.Engine{}.Tiers(t.Context(), tiers, problem.Limits{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		want := bestTiers(tiers)
		if got.Objective != want || got.Status != problem.Optimal {
			t.Errorf("seed %d: %d, bound %d, %s, slots %v; want %d", seed, got.Objective, got.Bound, got.Status,
				got.Slots, want)
		}

		// What is stated before the search has ended is a proof, too.
		for _, nodes := range []int64{1, 4} {
			early, err := exact.Engine{}.Tiers(t.Context(), tiers, problem.Limits{Nodes: nodes})
			if err != nil || early.Bound > want || early.Objective < want {
				t.Errorf("seed %d, %d boxes: %d..%d, %v; the optimum is %d", seed, nodes, early.Bound, early.Objective,
					err, want)
			}
		}
		if slices.Max(got.Slots) > 0 {
			static++
		}

		unlimited := *tiers
		unlimited.Limits = nil
		if len(tiers.Limits) > 0 && bestTiers(&unlimited) < want {
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
		tiers := smallTiers(random)
		first, err := exact.Engine{}.Tiers(t.Context(), tiers, problem.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		same := func(what string, change func(q *problem.Tiers), ok func(a, b int64) bool) {
			posed := *tiers
			posed.Layers = slices.Clone(tiers.Layers)
			change(&posed)
			other, err := exact.Engine{}.Tiers(t.Context(), &posed, problem.Limits{})
			if err != nil || !ok(first.Objective, other.Objective) {
				t.Errorf("seed %d, %s: %d, then %d, %v", seed, what, first.Objective, other.Objective, err)
			}
		}

		equal := func(a, b int64) bool { return a == b }
		better := func(a, b int64) bool { return b <= a }
		same("layers in another order", func(q *problem.Tiers) { slices.Reverse(q.Layers) }, equal)
		same("experts in another order", func(posed *problem.Tiers) {
			for i := range posed.Layers {
				posed.Layers[i].Rows = slices.Clone(posed.Layers[i].Rows)
				slices.Reverse(posed.Layers[i].Rows)
			}
		}, equal)
		same("more tiers", func(q *problem.Tiers) { q.MaxTiers++ }, better)
		same("no limits", func(q *problem.Tiers) { q.Limits = nil }, better)
		same("smaller buffers", func(posed *problem.Tiers) {
			posed.Limits = slices.Clone(tiers.Limits)
			for i := range posed.Limits {
				posed.Limits[i].Row, posed.Limits[i].Expert = posed.Limits[i].Row/2, max(1, posed.Limits[i].Expert)
			}
		}, better)
		same("any number of graphs", func(q *problem.Tiers) { q.MaxGraphs = 0 }, better)
		if tiers.Drop {
			same("more dropped", func(q *problem.Tiers) { q.MaxDropPPM *= 2 }, better)
		}
		if tiers.Serial {
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
		tiers := problem.GenerateTiers(1, size.layers, size.experts, 10)
		start := time.Now()
		got, err := exact.Engine{}.Tiers(t.Context(), tiers, problem.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		gap := float64(got.Objective-got.Bound) / float64(got.Objective)
		dynamic := tiers.Time(make([]int, len(tiers.Capacities)), zeros(size.layers, size.experts))
		t.Logf("%d x %d: slots %v, %.4g ms, %.1f %% of dynamic, gap %.2f %%, %d nodes, %v", size.layers, size.experts,
			got.Slots, float64(got.Objective)/1e6/float64(tiers.Chunks()), 100*float64(got.Objective)/float64(dynamic),
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

// ExampleEngine_Tiers decides how many slots of each capacity the experts of two layers have.
func ExampleEngine_Tiers() {
	tiers := problem.GenerateTiers(3, 2, 8, 4)
	solution, err := exact.Engine{}.Tiers(context.Background(), tiers, problem.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(tiers.Capacities, solution.Slots, solution.Status)
	// Output:
	// [16 32 48 64] [0 0 0 8] optimal
}
