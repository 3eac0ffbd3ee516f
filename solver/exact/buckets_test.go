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
func randomBuckets(r *rand.Rand, sizes, lengths int) *problem.Buckets {
	b := &problem.Buckets{Name: "random", Max: 1 + r.IntN(4)}
	longest := 6 + r.IntN(4*sizes)
	step := int64(1)
	if r.IntN(3) == 0 {
		step = 100 // many ties
	}
	rows := 1
	for range 1 + r.IntN(sizes) {
		rows += 1 + r.IntN(max(1, longest/sizes))
		b.Sizes = append(b.Sizes, problem.Size{
			Rows: rows, CostNS: (r.Int64N(300) + int64(rows)*r.Int64N(40)) / step * step, Infeasible: r.IntN(8) == 0,
			Bytes: r.Int64N(100), Graphs: r.IntN(5), OpenNS: r.Int64N(50),
		})
	}
	if r.IntN(5) > 0 {
		b.OneNS = 1 + r.Int64N(200)
	}
	t := 0
	for range 1 + r.IntN(lengths) {
		t += 1 + r.IntN(longest/3+1)
		b.Lengths = append(b.Lengths, problem.Length{Tokens: t, Weight: r.Int64N(6)})
	}
	b.Lengths[r.IntN(len(b.Lengths))].Weight = 1
	for _, limit := range []func(){
		func() { b.MaxBytes = 1 + r.Int64N(200) },
		func() { b.MaxGraphs = 1 + r.IntN(10) },
		func() { b.MaxOpenNS = 1 + r.Int64N(100) },
	} {
		if r.IntN(3) == 0 {
			limit()
		}
	}
	b.Fastest = r.IntN(2) == 0
	return b
}

// brute tries every set of sizes.
func brute(b *problem.Buckets) (best int64, sizes []int) {
	best = math.MaxInt64
	for set := range 1 << len(b.Sizes) {
		var list []int
		ok := true
		for i := range b.Sizes {
			if set&(1<<i) != 0 {
				list, ok = append(list, i), ok && !b.Sizes[i].Infeasible
			}
		}
		if !ok || !b.Within(list) {
			continue
		}
		if ns, ok := b.Objective(list); ok && (ns < best || ns == best && b.Precedes(list, sizes)) {
			best, sizes = ns, list
		}
	}
	return best, sizes
}

func long(t *testing.T, usual, all int) int {
	t.Helper()
	if os.Getenv("HETC_LONG") != "" {
		return all
	}
	return usual
}

// TestBucketsBrute compares with every set of sizes: objective and, as ties have an order, the sizes.
func TestBucketsBrute(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 3))
	limited := 0
	for i := range 10000 {
		b := randomBuckets(r, 9, 12)
		if i%4 == 0 {
			b.MaxBytes, b.MaxGraphs, b.MaxOpenNS = 0, 0, 0
		}
		got, err := Engine{}.Buckets(t.Context(), b, problem.Limits{})
		want, sizes := brute(b)
		if want == math.MaxInt64 {
			if diag.ClassOf(err) != diag.ClassInfeasible {
				t.Fatalf("instance %d: %v, want infeasible: %+v", i, err, b)
			}
			continue
		}
		if err != nil {
			t.Fatalf("instance %d: %v: %+v", i, err, b)
		}
		if err := b.Verify(got); err != nil {
			t.Fatalf("instance %d: %v", i, err)
		}
		if got.Objective != want || got.Status != problem.Optimal || !slices.Equal(got.Sizes, sizes) {
			t.Fatalf("instance %d: %+v, want %d with %v: %+v", i, got, want, sizes, b)
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
	r := rand.New(rand.NewPCG(1, 9))
	for i := range long(t, 40, 400) {
		b := randomBuckets(r, 120, 300)
		b.Max = 1 + r.IntN(9)
		b.MaxBytes, b.MaxGraphs, b.MaxOpenNS = 0, 0, 0
		want := plain(b)
		got, err := Engine{}.Buckets(t.Context(), b, problem.Limits{})
		if want == math.MaxInt64 {
			if err == nil {
				t.Fatalf("instance %d: %+v, want an error", i, got)
			}
			continue
		}
		if err != nil || b.Verify(got) != nil || got.Objective != want {
			t.Fatalf("instance %d: %+v, %v, want %d", i, got, err, want)
		}
	}
}

// plain is the optimum without limits by the recurrence over every pair of sizes, smallest bucket first.
func plain(b *problem.Buckets) int64 {
	best := int64(math.MaxInt64)
	if ns, ok := b.Objective(nil); ok {
		best = ns
	}
	for c, chunk := range b.Sizes {
		if chunk.Infeasible {
			continue
		}
		rests := make([]int64, chunk.Rows+1)
		var fixed int64
		for _, l := range b.Lengths {
			full, left := problem.Cut(l.Tokens, chunk.Rows)
			fixed += l.Weight * int64(full) * chunk.CostNS
			if left == 1 && b.OneNS > 0 {
				fixed += l.Weight * b.OneNS
			} else {
				rests[left] += l.Weight
			}
		}
		upTo := make([]int64, chunk.Rows+1)
		for n := 1; n <= chunk.Rows; n++ {
			upTo[n] = upTo[n-1] + rests[n]
		}
		cost := make([]int64, c+1) // with what ends in candidate i
		for i := range cost {
			cost[i] = math.MaxInt64
			if !b.Sizes[i].Infeasible {
				cost[i] = upTo[b.Sizes[i].Rows] * b.Sizes[i].CostNS
			}
		}
		best = min(best, fixed+cost[c])
		for k := 2; k <= b.Max; k++ {
			next := slices.Clone(cost)
			for j := range next {
				for i := range j {
					if cost[i] != math.MaxInt64 && !b.Sizes[j].Infeasible {
						next[j] = min(next[j], cost[i]+(upTo[b.Sizes[j].Rows]-upTo[b.Sizes[i].Rows])*b.Sizes[j].CostNS)
					}
				}
			}
			cost = next
			best = min(best, fixed+cost[c])
		}
	}
	return best
}

// TestBucketsNodeLimit stops early: the answer is a choice within the limits, with a bound below the optimum.
func TestBucketsNodeLimit(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	gaps := 0
	for range 300 {
		b := randomBuckets(r, 12, 20)
		b.MaxBytes, b.Max = 20+r.Int64N(100), 6
		best, err := Engine{}.Buckets(t.Context(), b, problem.Limits{})
		if err != nil {
			continue
		}
		got, err := Engine{}.Buckets(t.Context(), b, problem.Limits{Nodes: 1 + r.Int64N(30)})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Verify(got); err != nil {
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

func TestBucketsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Engine{}).Buckets(ctx, problem.BucketExample(64, 4), problem.Limits{}); diag.ClassOf(err) != diag.ClassInterrupted {
		t.Errorf("%v, want an interruption", err)
	}
}

// TestBucketsProperties are what must hold between instances.
func TestBucketsProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := randomBuckets(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), 10, 14)
		solve := func(b *problem.Buckets) int64 {
			s, err := Engine{}.Buckets(context.Background(), b, problem.Limits{})
			if err != nil {
				if diag.ClassOf(err) != diag.ClassInfeasible {
					t.Fatal(err)
				}
				return math.MaxInt64
			}
			if err := b.Verify(s); err != nil {
				t.Fatal(err)
			}
			return s.Objective
		}
		base := solve(b)
		with := func(change func(*problem.Buckets)) int64 {
			x := *b
			x.Sizes, x.Lengths = slices.Clone(b.Sizes), slices.Clone(b.Lengths)
			change(&x)
			return solve(&x)
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
		if got := with(func(x *problem.Buckets) {
			x.OneNS *= 3
			for i := range x.Sizes {
				x.Sizes[i].CostNS *= 3
			}
		}); got != 3*base {
			t.Fatalf("three times the costs give %d, want %d", got, 3*base)
		}
		if got := with(func(x *problem.Buckets) {
			for i := range x.Lengths {
				x.Lengths[i].Weight *= 5
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

func BenchmarkBuckets(b *testing.B) {
	p := problem.BucketExample(2048, 8)
	for b.Loop() {
		if _, err := (Engine{}).Buckets(b.Context(), p, problem.Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}
