package exact

import (
	"context"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/problem"
)

// randomBuckets is an instance with costs that need not grow, gaps, ties and, often, limits.
func randomBuckets(random *rand.Rand, sizes, lengths int) *problem.Buckets {
	buckets := &problem.Buckets{Name: "random", Max: 1 + random.IntN(4)}
	longest := 6 + random.IntN(4*sizes)
	step := int64(1)
	if random.IntN(3) == 0 {
		step = 100 // many ties
	}
	rows := 1
	for range 1 + random.IntN(sizes) {
		rows += 1 + random.IntN(max(1, longest/sizes))
		buckets.Sizes = append(buckets.Sizes, problem.Size{Rows: rows,
			CostNS:     (random.Int64N(300) + int64(rows)*random.Int64N(40)) / step * step,
			Infeasible: random.IntN(8) == 0,
			Bytes:      random.Int64N(100), Graphs: random.IntN(5), OpenNS: random.Int64N(50),
		})
	}

	if random.IntN(5) > 0 {
		buckets.OneNS = 1 + random.Int64N(200)
	}

	tokens := 0
	for range 1 + random.IntN(lengths) {
		tokens += 1 + random.IntN(longest/3+1)
		buckets.Lengths = append(buckets.Lengths, problem.Length{Tokens: tokens, Weight: random.Int64N(6)})
	}
	buckets.Lengths[random.IntN(len(buckets.Lengths))].Weight = 1

	for _, limit := range []func(){
		func() { buckets.MaxBytes = 1 + random.Int64N(200) },
		func() { buckets.MaxGraphs = 1 + random.IntN(10) },
		func() { buckets.MaxOpenNS = 1 + random.Int64N(100) },
	} {
		if random.IntN(3) == 0 {
			limit()
		}
	}
	buckets.Fastest = random.IntN(2) == 0
	return buckets
}

// brute tries every set of sizes.
func brute(buckets *problem.Buckets) (best int64, sizes []int) {
	best = math.MaxInt64
	for set := range 1 << len(buckets.Sizes) {
		var list []int
		isFeasible := true
		for i := range buckets.Sizes {
			if set&(1<<i) != 0 {
				list, isFeasible = append(list, i), isFeasible && !buckets.Sizes[i].Infeasible
			}
		}
		if !isFeasible || !buckets.Within(list) {
			continue
		}
		ns, ok := buckets.Objective(list)
		isFirst := ns == best && buckets.Precedes(list, sizes)
		if ok && (ns < best || isFirst) {
			best, sizes = ns, list
		}
	}
	return best, sizes
}

// long is the usual number, or all where HETC_LONG asks for tests that take long.
func long(t *testing.T, usual, all int) int {
	t.Helper()
	if os.Getenv("HETC_LONG") != "" {
		return all
	}
	return usual
}

// TestBucketsBrute compares with every set of sizes: objective and, as ties have an order, the sizes.
func TestBucketsBrute(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 3))
	limited := 0
	for i := range 10000 {
		buckets := randomBuckets(random, 9, 12)
		if i%4 == 0 {
			buckets.MaxBytes, buckets.MaxGraphs, buckets.MaxOpenNS = 0, 0, 0
		}
		got, err := Engine{}.Buckets(t.Context(), buckets, problem.Limits{})
		want, sizes := brute(buckets)

		if want == math.MaxInt64 {
			if diag.ClassOf(err) != diag.ClassInfeasible {
				t.Fatalf("instance %d: %v, want infeasible: %+v", i, err, buckets)
			}
			continue
		}
		if err != nil {
			t.Fatalf("instance %d: %v: %+v", i, err, buckets)
		}
		if err := buckets.Verify(got); err != nil {
			t.Fatalf("instance %d: %v", i, err)
		}
		if got.Objective != want || got.Status != problem.Optimal || !slices.Equal(got.Sizes, sizes) {
			t.Fatalf("instance %d: %+v, want %d with %v: %+v", i, got, want, sizes, buckets)
		}
		if got.Nodes > 0 {
			limited++
		}
	}
	if limited < 500 {
		t.Errorf("%d instances were searched within limits, want at least 500", limited)
	}
}

// TestBucketsLayers compares larger instances with the plain recurrence of O(Max * sizes^2) for every chunk.
func TestBucketsLayers(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 9))
	for i := range long(t, 40, 400) {
		buckets := randomBuckets(random, 120, 300)
		buckets.Max = 1 + random.IntN(9)
		buckets.MaxBytes, buckets.MaxGraphs, buckets.MaxOpenNS = 0, 0, 0
		want := plain(buckets)
		got, err := Engine{}.Buckets(t.Context(), buckets, problem.Limits{})
		if want == math.MaxInt64 {
			if err == nil {
				t.Fatalf("instance %d: %+v, want an error", i, got)
			}
			continue
		}
		if err != nil || buckets.Verify(got) != nil || got.Objective != want {
			t.Fatalf("instance %d: %+v, %v, want %d", i, got, err, want)
		}
	}
}

// plain is the optimum without limits by the recurrence over every pair of sizes, smallest bucket first.
func plain(buckets *problem.Buckets) int64 {
	best := int64(math.MaxInt64)
	if ns, ok := buckets.Objective(nil); ok {
		best = ns
	}
	for at, chunk := range buckets.Sizes {
		if !chunk.Infeasible {
			best = min(best, plainOfChunk(buckets, at))
		}
	}
	return best
}

// plainOfChunk is the optimum of plain with one size as the chunk.
func plainOfChunk(buckets *problem.Buckets, at int) (best int64) {
	chunk := buckets.Sizes[at]
	rests := make([]int64, chunk.Rows+1)
	var fixed int64
	for _, length := range buckets.Lengths {
		full, left := problem.Cut(length.Tokens, chunk.Rows)
		fixed += length.Weight * int64(full) * chunk.CostNS
		if left == 1 && buckets.OneNS > 0 {
			fixed += length.Weight * buckets.OneNS
		} else {
			rests[left] += length.Weight
		}
	}
	upTo := make([]int64, chunk.Rows+1)
	for rows := 1; rows <= chunk.Rows; rows++ {
		upTo[rows] = upTo[rows-1] + rests[rows]
	}
	between := func(from, to int) int64 { return upTo[buckets.Sizes[to].Rows] - upTo[buckets.Sizes[from].Rows] }

	cost := make([]int64, at+1) // with what ends in candidate i
	for i := range cost {
		cost[i] = math.MaxInt64
		if !buckets.Sizes[i].Infeasible {
			cost[i] = upTo[buckets.Sizes[i].Rows] * buckets.Sizes[i].CostNS
		}
	}
	best = fixed + cost[at]
	for count := 2; count <= buckets.Max; count++ {
		next := slices.Clone(cost)
		for to := range next {
			for from := range to {
				if cost[from] != math.MaxInt64 && !buckets.Sizes[to].Infeasible {
					next[to] = min(next[to], cost[from]+between(from, to)*buckets.Sizes[to].CostNS)
				}
			}
		}
		cost = next
		best = min(best, fixed+cost[at])
	}
	return best
}

// TestBucketsNodeLimit stops early: the answer is a choice within the limits, with a bound below the optimum.
func TestBucketsNodeLimit(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 5))
	gaps := 0
	for range 300 {
		buckets := randomBuckets(random, 12, 20)
		buckets.MaxBytes, buckets.Max = 20+random.Int64N(100), 6
		best, err := Engine{}.Buckets(t.Context(), buckets, problem.Limits{})
		if err != nil {
			continue
		}
		got, err := Engine{}.Buckets(t.Context(), buckets, problem.Limits{Nodes: 1 + random.Int64N(30)})
		if err != nil {
			t.Fatal(err)
		}
		if err := buckets.Verify(got); err != nil {
			t.Fatal(err)
		}
		if got.Bound > best.Objective || got.Objective < best.Objective {
			t.Fatalf("%+v, optimum %d", got, best.Objective)
		}
		if got.Status == problem.Feasible {
			gaps++
		}
	}
	if gaps == 0 {
		t.Error("no search was stopped")
	}
}

// A solve that is cancelled ends with an error of its class.
func TestBucketsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Engine{}.Buckets(ctx, problem.BucketExample(64, 4), problem.Limits{})
	if diag.ClassOf(err) != diag.ClassInterrupted {
		t.Errorf("%v, want an interruption", err)
	}
}

// TestBucketsProperties are what must hold between instances.
func TestBucketsProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		buckets := randomBuckets(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), 10, 14)
		solve := func(posed *problem.Buckets) int64 {
			solution, err := Engine{}.Buckets(context.Background(), posed, problem.Limits{})
			if err != nil {
				if diag.ClassOf(err) != diag.ClassInfeasible {
					t.Fatal(err)
				}
				return math.MaxInt64
			}
			if err := posed.Verify(solution); err != nil {
				t.Fatal(err)
			}
			return solution.Objective
		}

		base := solve(buckets)
		with := func(change func(*problem.Buckets)) int64 {
			posed := *buckets
			posed.Sizes, posed.Lengths = slices.Clone(buckets.Sizes), slices.Clone(buckets.Lengths)
			change(&posed)
			return solve(&posed)
		}

		if got := with(func(x *problem.Buckets) { x.Fastest = !x.Fastest }); got != base {
			t.Fatalf("the other dispatch gives %d, want %d", got, base)
		}
		if got := with(func(x *problem.Buckets) { x.Max++ }); got > base {
			t.Fatalf("one more bucket gives %d, more than %d", got, base)
		}
		if got := with(func(x *problem.Buckets) { x.MaxBytes, x.MaxGraphs = 2*x.MaxBytes, 2*x.MaxGraphs }); got > base {
			t.Fatalf("more memory gives %d, more than %d", got, base)
		}
		if got := with(func(x *problem.Buckets) {
			x.Sizes = append(x.Sizes, problem.Size{Rows: x.Sizes[len(x.Sizes)-1].Rows + 3, CostNS: 50})
		}); got > base {
			t.Fatalf("one more candidate gives %d, more than %d", got, base)
		}

		if base == math.MaxInt64 {
			return
		}
		if got := with(func(posed *problem.Buckets) {
			posed.OneNS *= 3
			for i := range posed.Sizes {
				posed.Sizes[i].CostNS *= 3
			}
		}); got != 3*base {
			t.Fatalf("three times the costs give %d, want %d", got, 3*base)
		}
		if got := with(func(posed *problem.Buckets) {
			for i := range posed.Lengths {
				posed.Lengths[i].Weight *= 5
			}
		}); got != 5*base {
			t.Fatalf("five times the weights give %d, want %d", got, 5*base)
		}
		// A length without weight says nothing.
		if got := with(func(x *problem.Buckets) {
			x.Lengths = append(x.Lengths, problem.Length{Tokens: x.Lengths[len(x.Lengths)-1].Tokens + 7})
		}); got != base {
			t.Fatalf("a length without weight gives %d, want %d", got, base)
		}
	})
}

// How long an instance of published size takes.
func BenchmarkBuckets(b *testing.B) {
	buckets := problem.BucketExample(2048, 8)
	for b.Loop() {
		if _, err := (Engine{}).Buckets(b.Context(), buckets, problem.Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}
