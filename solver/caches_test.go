package solver

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/workload"
)

// Of the types of cache that are left open the plan has the one that is best by solves with each of them named, within
// the limit of quality, of which the cache takes its part.
func TestCacheChosen(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), twoCores(t, 1)
	for i := range soc.Processors {
		soc.Processors[i].KV = op.CacheTypes
	}
	cal := invented(t, model, rand.New(rand.NewPCG(7, 7)), op.A8TQ8C)
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Engine: exact.Engine{}}

	open := func(cache op.Type, limit float64, losses ...calibration.CacheLoss) Input {
		one, known := in, *cal
		one.Workload = quick()
		one.Workload.Cache = cache
		if limit > 0 {
			one.Workload.Quality.MaxKL = workload.KLLimit{Prefill: limit, Decode: limit}
			one.Workload.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A32W32}, Decode: []op.Scheme{op.A32W32}}
			known.Caches = losses
			one.Calibration = &known
		}
		return one
	}

	named := map[op.Type]float64{}
	for _, cache := range op.CacheTypes {
		named[cache] = solve(t, open(cache, 0)).ExpectedNS
	}
	if !(named[op.Q8] < named[op.F16] && named[op.BF16] == named[op.F16] && named[op.F16] < named[op.F32]) {
		t.Fatalf("expected times %v, want less with fewer bits and equal ones with as many", named)
	}

	half, byte8 := calibration.CacheLoss{Type: op.F16, KL: 1e-6}, calibration.CacheLoss{Type: op.Q8, KL: 2e-3}
	brain := calibration.CacheLoss{Type: op.BF16, KL: 1e-4}
	for _, test := range []struct {
		limit  float64
		losses []calibration.CacheLoss
		want   op.Type
		left   int
		kl     float64
	}{
		{0, nil, op.Q8, 0, math.NaN()},
		{0.01, []calibration.CacheLoss{half, brain, byte8}, op.Q8, 0, 2e-3},
		{1e-3, []calibration.CacheLoss{half, brain, byte8}, op.F16, 1, 1e-6}, // as fast as bf16, and more exact
		{1e-3, []calibration.CacheLoss{brain, byte8}, op.BF16, 2, 1e-4},
		{1e-7, []calibration.CacheLoss{half, brain, byte8}, op.F32, 3, 0},
		{0.01, nil, op.F32, 3, 0},
		{0.01, []calibration.CacheLoss{byte8}, op.Q8, 2, 2e-3},
	} {
		result := solve(t, open(workload.CacheBest, test.limit, test.losses...))
		left := 0
		for _, warning := range result.Warnings {
			if strings.Contains(warning.Error(), "no plan caches keys and values in") {
				left++
			}
		}
		if result.Plan.KV != test.want || result.ExpectedNS != named[test.want] || left != test.left {
			t.Errorf("limit %v, losses %v: cache %s in %v ns, %d left out, want %s in %v, %d", test.limit, test.losses,
				result.Plan.KV, result.ExpectedNS, left, test.want, named[test.want], test.left)
		}

		for _, quality := range result.Plan.Quality {
			if quality.KL != test.kl || quality.MaxKL != test.limit {
				t.Errorf("limit %v, cache %s: quality %+v, want KL %v", test.limit, test.want, quality, test.kl)
			}
		}
	}

	// A cache that was named is refused where it loses too much, or nobody knows what it loses.
	for _, losses := range [][]calibration.CacheLoss{nil, {byte8}} {
		_, err := Solve(t.Context(), open(op.Q8, 1e-3, losses...))
		want := []diag.Class{diag.ClassInput, diag.ClassInfeasible}[len(losses)]
		if diag.ClassOf(err) != want || !says(err, "cache in q8") {
			t.Errorf("losses %v: got %v", losses, err)
		}
	}

	// Where every type holds too much the error is that of the smallest.
	small, smallest := open(workload.CacheBest, 0), open(op.Q8, 0)
	small.MaxMemory, smallest.MaxMemory = 1<<20, 1<<20
	_, err := Solve(t.Context(), small)
	if _, want := Solve(t.Context(), smallest); err == nil || want == nil || err.Error() != want.Error() {
		t.Errorf("within 1 MiB: got %v, want %v", err, want)
	}

	// No processor has a cache of fewer bits.
	for i := range soc.Processors {
		soc.Processors[i].KV = []op.Type{op.F32}
	}
	in.Costs = costs(t, soc, model, op.A32W32)
	if result := solve(t, open(workload.CacheBest, 0)); result.Plan.KV != op.F32 || len(result.Warnings) < 2 {
		t.Errorf("cache %s, warnings %v", result.Plan.KV, result.Warnings)
	}
	if !slices.Equal(op.CacheTypes, (&workload.Workload{Cache: workload.CacheBest}).Caches()) {
		t.Error("another order of types")
	}
}

// The type of the cache that was chosen, and what it leaves of the limit of quality, count whichever sizes are chosen
// or left out.
func TestCacheChosenWithSizes(t *testing.T) {
	require.Slow(t)
	const limit = 0.02
	model, soc := demo(t), twoCores(t, 1)
	for i := range soc.Processors {
		soc.Processors[i].KV = op.CacheTypes
	}
	cal := invented(t, model, rand.New(rand.NewPCG(7, 7)), op.A8TQ8C)
	cal.Caches = []calibration.CacheLoss{{Type: op.F16, KL: 0.015}, {Type: op.BF16, KL: 0.015},
		{Type: op.Q8, KL: 0.015}}

	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32, op.A8TQ8C), Engine: exact.Engine{}}
	work := permit(op.A32W32, op.A8TQ8C)
	work.Cache, work.Context, work.Prompts = workload.CacheBest, 512, workload.Prompts{{Tokens: 64, Share: 1}}
	for name, buckets := range map[string]workload.Rows{"chosen": workload.AtMost(1), "left out": {64, 256}} {
		in.Workload, in.Calibration = workload.Edited(work, func(w *workload.Workload) { w.Buckets = buckets }), nil
		free := solve(t, in)
		if free.Plan.KV != op.Q8 {
			t.Errorf("%s: cache %s, want q8", name, free.Plan.KV)
		}

		in.Calibration = cal
		in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) {
			w.Cache, w.Quality.MaxKL = op.Q8, workload.KLLimit{Prefill: limit, Decode: limit}
		})
		for _, part := range []float64{0, 0.999} { // of the memory, 0: no bound
			in.MaxMemory = int64(part * float64(free.Plan.Memory.Total))
			result, err := Solve(t.Context(), in)
			if err != nil {
				continue // a bound below what every plan holds
			}
			for _, quality := range result.Plan.Quality {
				if quality.KL > limit || result.Plan.KV != op.Q8 {
					t.Errorf("%s, %v of the memory: a cache in %s, and %s loses %v, want at most %v", name, part,
						result.Plan.KV, quality.Phase, quality.KL, limit)
				}
			}
		}
		in.MaxMemory = 0
	}
}
