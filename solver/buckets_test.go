package solver

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// TestBucketsChosen compares the buckets that solve chooses with every set of its candidates, each solved as a plan
// of its own.
func TestBucketsChosen(t *testing.T) {
	require.Slow(t)
	soc, model := twoCores(t, 0.5), demo(t)
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Engine: exact.Engine{}}
	prompts := workload.Prompts{{Tokens: 20, Share: 4}, {Tokens: 43, Share: 2}}
	work := workload.Default()
	work.Prompts, work.Buckets, work.Context = prompts, workload.AtMost(2), 160
	in.Workload = work
	got, err := Solve(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}

	var rows []int
	for _, ph := range got.Plan.Program.Programs {
		if ph.Rows > 1 {
			rows = append(rows, ph.Rows)
		}
	}
	report := got.Plan.Solver[len(got.Plan.Solver)-1]
	isProved := report.Status == "optimal" && report.BoundNS == report.ObjectiveNS
	if report.Problem != "buckets" || !isProved || len(rows) == 0 || len(rows) > 2 {
		t.Fatalf("rows %v, %+v", rows, report)
	}

	needs, err := work.Needs(model.MaxContext)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(needs.Buckets, []int{16, 24, 32, 48}) {
		t.Errorf("to be measured: %v", needs.Buckets)
	}

	best, at := math.Inf(1), []int(nil)
	fixed := *work
	in.Workload = &fixed
	for i, first := range needs.Buckets {
		for _, second := range needs.Buckets[i:] {
			fixed.Buckets = slices.Compact([]int{first, second})
			result, err := Solve(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			if result.ExpectedNS < best {
				best, at = result.ExpectedNS, fixed.Buckets
			}
		}
	}
	if got.ExpectedNS > best*1.001 { // hand-overs that the partition's edges do not see
		t.Errorf("buckets %v cost %v ns a request, and %v %v", rows, got.ExpectedNS, at, best)
	}
}

// Of the batches that are left open the plan has those that are best by solves with each of them named.
func TestBatchesChosen(t *testing.T) {
	require.Slow(t)
	soc, model := twoCores(t, 0.5), demo(t)
	work := workload.Default()
	work.Parallel = []workload.Parallel{{Sequences: 1, Share: 0.2}, {Sequences: 3, Share: 0.5},
		{Sequences: 8, Share: 0.3}}
	work.Buckets, work.Batches = []int{64}, workload.AtMost(1)
	if needs, err := work.Needs(model.MaxContext); err != nil || !slices.Equal(needs.Batches, []int{2, 3, 4, 8}) {
		t.Fatalf("%+v, %v", needs, err)
	}

	in := Input{Model: model, SoC: soc, Costs: batchCosts(t, soc, model, []int{2, 3, 4, 8}, op.A32W32),
		Engine: exact.Engine{}, Workload: work}
	got, err := Solve(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}

	best := math.Inf(1)
	var at []int
	fixed := *work
	in.Workload = &fixed
	for _, batch := range []int{0, 2, 3, 4, 8} {
		fixed.Batches = []int{batch}
		if batch == 0 {
			fixed.Batches = nil
		}
		result, err := Solve(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		if result.ExpectedNS < best {
			best, at = result.ExpectedNS, result.Plan.Batches
		}
	}
	if !slices.Equal(got.Plan.Batches, at) || got.ExpectedNS != best {
		t.Errorf("batches %v cost %v ns, and %v %v", got.Plan.Batches, got.ExpectedNS, at, best)
	}
	report := got.Plan.Solver[len(got.Plan.Solver)-1]
	if report.Problem != "batches" || report.Status != "optimal" {
		t.Errorf("%+v", report)
	}
}

// A limit of time excludes sizes, not plans: the sizes that solve chooses within one are as good as any that are listed
// and keep it.
func TestSizesWithinCallLimits(t *testing.T) {
	require.Slow(t)
	soc, model := twoCores(t, 0.5), demo(t)
	prompts := workload.Default()
	prompts.Prompts, prompts.Context = workload.Prompts{{Tokens: 20, Share: 4}, {Tokens: 43, Share: 2}}, 160

	together := workload.Default()
	together.Parallel = []workload.Parallel{{Sequences: 1, Share: 0.2}, {Sequences: 3, Share: 0.5},
		{Sequences: 8, Share: 0.3}}
	together.Buckets = []int{64}

	in := Input{Model: model, SoC: soc, Engine: exact.Engine{},
		Costs: batchCosts(t, soc, model, []int{2, 3, 4, 8}, op.A32W32)}
	with := func(work *workload.Workload, change func(*workload.Workload)) (*Result, error) {
		given := in
		given.Workload = workload.Edited(work, change)
		return Solve(t.Context(), given)
	}
	for name, test := range map[string]struct {
		work    *workload.Workload
		sizes   []int
		program string
		choose  func(w *workload.Workload, sizes workload.Rows)
		limit   func(w *workload.Workload, ms float64)
		key     string
	}{
		"buckets": {prompts, []int{16, 24, 32, 48}, "prefill@",
			func(w *workload.Workload, sizes workload.Rows) { w.Buckets = sizes },
			func(w *workload.Workload, ms float64) { w.Limits.PrefillMS = ms }, workload.KeyPrefill},
		"batches": {together, []int{2, 3, 4, 8}, "decode@",
			func(w *workload.Workload, sizes workload.Rows) { w.Batches = sizes },
			func(w *workload.Workload, ms float64) { w.Limits.DecodeMS = ms }, workload.KeyDecode},
	} {
		alone := map[int]*Result{}
		for _, rows := range test.sizes {
			var err error
			alone[rows], err = with(test.work, func(w *workload.Workload) { test.choose(w, workload.Rows{rows}) })
			if err != nil {
				t.Fatal(err)
			}
		}

		for _, most := range test.sizes[:len(test.sizes)-1] {
			limit := prediction(t, alone[most].Plan, fmt.Sprint(test.program, most)).PlanNS + 1
			got, err := with(test.work, func(work *workload.Workload) {
				test.choose(work, workload.AtMost(1))
				test.limit(work, float64(limit)/1e6)
			})
			if err != nil {
				t.Errorf("%s: %d rows take %d ns, and within that nothing is found: %v", name, most, limit, err)
				continue
			}

			best := math.Inf(1)
			for rows, result := range alone {
				if prediction(t, result.Plan, fmt.Sprint(test.program, rows)).PlanNS <= limit {
					best = min(best, result.ExpectedNS)
				}
			}
			if got.ExpectedNS > best*1.001 {
				t.Errorf("%s within %d ns: %v ns expected, at least %v with one size", name, limit, got.ExpectedNS,
					best)
			}
		}

		_, err := with(test.work, func(work *workload.Workload) {
			test.choose(work, workload.AtMost(1))
			test.limit(work, 1e-6)
		})
		if !namesLimit(err, test.key) || !Proved(err) {
			t.Errorf("%s: a call within a nanosecond: %v, want a proof that none is", name, err)
		}
	}
}

// The smallest buckets hold least, and may take more energy than is allowed: then larger ones are tried.
func TestLeastMemoryOfSizesWithinEnergy(t *testing.T) {
	require.Slow(t)
	soc, m := twoCores(t, 0.5), demo(t)
	for i := range soc.Processors {
		soc.Processors[i].PowerW = 1
	}
	w := permit(op.A8TQ8C)
	w.Prompts, w.Buckets = workload.Prompts{{Tokens: 200, Share: 1}}, workload.AtMost(1)
	w.Context, w.OutputTokens, w.Minimise = 256, 1, problem.Memory
	in := Input{Model: m, SoC: soc, Costs: costs(t, soc, m, op.A8TQ8C), Workload: w, Engine: exact.Engine{}}
	small, frugal := solve(t, in), in
	frugal.Minimise(problem.Energy)
	least := solve(t, frugal)
	if least.ExpectedNJ >= small.ExpectedNJ {
		t.Fatalf("%g nJ with the smallest buckets, %g at least: the case tests nothing", small.ExpectedNJ, least.ExpectedNJ)
	}

	for _, share := range []float64{0.001, 0.5} { // of what is between the two
		most := least.ExpectedNJ + share*(small.ExpectedNJ-least.ExpectedNJ)
		in.Workload = workload.Edited(w, func(w *workload.Workload) { w.Limits.EnergyMJ = most / 1e6 })
		got, err := Solve(t.Context(), in)
		if err != nil {
			t.Errorf("%g nJ, which a plan of %g keeps: %v", most, least.ExpectedNJ, err)
			continue
		}
		if got.ExpectedNJ > most+1 {
			t.Errorf("%g nJ, and at most %g are allowed", got.ExpectedNJ, most)
		}
	}
	in.Workload = workload.Edited(w, func(w *workload.Workload) { w.Limits.EnergyMJ = least.ExpectedNJ * 0.9 / 1e6 })
	if _, err := Solve(t.Context(), in); !namesLimit(err, workload.KeyEnergy) {
		t.Errorf("below the least energy: %v", err)
	}
}

// A call of a large model takes hours on a slow machine, and kilojoules on a fast one: sizes are chosen all the same.
func TestSizesOfLongCalls(t *testing.T) {
	prompts := workload.Prompts{{Tokens: 60, Share: 3}, {Tokens: 2000, Share: 1}}
	costs := map[int]int64{1: 1 << 39, 64: 1 << 43, 512: 1 << 45, 2048: 3 << 46}
	for most, want := range map[int][]int{1: {512}, 2: {64, 512}} {
		rows, report, err := solveSizes(t.Context(), exact.Engine{},
			poseSizes(prompts, []int{64, 512, 2048}, costs, most))
		if err != nil || !slices.Equal(rows, want) || report.Status != "optimal" {
			t.Errorf("at most %d: %v, %+v (%v), want %v", most, rows, report, err, want)
		}
	}
}
