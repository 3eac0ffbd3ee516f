package solver

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// boundedCase is an input whose NPU holds copies of its own, so that a bound of memory costs more than schemes.
func boundedCase(t *testing.T, seed uint64, goal problem.Measure) Input {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 4))
	model := demo(t)
	soc := withNPU(t, func(npu *socs.Processor) {
		npu.WeightRanges, npu.BandwidthGBps = false, 2+random.Float64() // single tokens are the other's
	})
	soc.Processors[0].PowerW, soc.Processors[1].PowerW = 4, 0.3+random.Float64()

	work := permit(op.A8TQ8C, op.A32W32)
	work.Minimise, work.Buckets, work.Context, work.OutputTokens = goal, workload.Rows{64, 128}, 256, 8+random.IntN(32)
	work.Prompts = workload.Prompts{{Tokens: 40, Share: 1}, {Tokens: 100 + random.IntN(90), Share: 1}}
	return Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C, op.A32W32), Workload: work,
		Engine: exact.Engine{}}
}

// No plan costs less than its pair of assignments is bounded by within the memory that the plan holds.
func TestMemoryRelaxationIsABound(t *testing.T) {
	tight := 0
	for seed := range uint64(2) {
		for _, goal := range []problem.Measure{problem.Time, problem.Energy} {
			ses := prepared(t, boundedCase(t, seed, goal))
			ses.nodes = triedNodes
			free, err := ses.completePlan(t.Context())
			if err != nil {
				t.Fatal(err)
			}

			rest := ses.leastPool() + ses.fixedBytes(free)
			random := rand.New(rand.NewPCG(seed, 9))
			for range 6 {
				prefills, decodes := ses.phases[0].points, ses.phases[1].points
				prefill, decode := ses.assignments(&prefills[random.IntN(len(prefills))],
					&decodes[random.IntN(len(decodes))])
				ses.prefill, ses.decode, ses.chosen = prefill, decode, nil
				half := free.Memory.Total - free.Memory.Weights/2
				for _, bound := range []int64{1 << 40, half + free.Memory.Weights/4, half} {
					checkRelaxation(t, ses, bound, rest)
				}

				// With room for one copy of everything.
				bytes := ses.weightBytes(prefill, decode) * 101 / 100
				relaxed := ses.newMemoryRelaxation(rest + bytes)
				least, ok := relaxed.at(prefill, decode, bytes, leastPrice-1)
				if ok && relaxed.bound(prefill, decode, bytes, 1e300) > least*1.02 {
					tight++
				}
			}
		}
	}
	if tight == 0 {
		t.Error("no price of memory raises a bound: the case tests nothing")
	}
}

// checkRelaxation compares the best plan of a session's schemes within a bound of memory with what is proved of it.
// rest is what any plan holds beside weights.
func checkRelaxation(t *testing.T, ses *session, bound, rest int64) {
	t.Helper()
	ses.addMemoryBound(bound)
	plan, err := ses.completePlan(t.Context())
	if diag.ClassOf(err) == diag.ClassInfeasible {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	total := planir.MemoryOf(plan).Total
	relaxed := ses.newMemoryRelaxation(total)
	held, ok := relaxed.leastHeld(ses.prefill, ses.decode)
	if !ok || held > total-rest || held <= 0 {
		t.Errorf("%d bytes at least beside %d, and a plan holds %d", held, rest, total)
	}
	least, cost := relaxed.bound(ses.prefill, ses.decode, total-rest, 1e300), ses.objective(plan)
	if least > cost*(1+1e-9) {
		t.Errorf("least %s, %v: bound %v within %d bytes, and a plan takes %v", ses.measure(),
			[]assignment{ses.prefill, ses.decode}, least, total, cost)
	}
}

// A bound of memory is searched for by what it costs, and not only by what schemes cost without it.
func TestMemoryBoundTriesFewPairs(t *testing.T) {
	require.Slow(t)
	model := demo(t)
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	work := permit(op.A8TQ8C, op.A8TQ4B32)
	work.Minimise, work.OutputTokens = problem.Energy, 64
	work.Buckets, work.Context = workload.Rows{64}, 512
	work.Prompts = workload.Prompts{{Tokens: 40, Share: 1}, {Tokens: 200, Share: 1}}
	in := Input{Model: model, SoC: soc, Costs: profiled(t, soc, model, work), Workload: work, Engine: exact.Engine{},
		MaxMemory: 113 << 18} // 28.25 MiB; the best plan without a bound holds 29.7

	tried := 0
	in.Progress = func(p Progress) {
		if strings.HasPrefix(p.Phase, "fit ") {
			tried = max(tried, p.Done)
		}
	}

	plan := solve(t, in).Plan
	schemes := plan.Solver[len(plan.Solver)-1]
	const most = 100
	if tried > most {
		t.Errorf("%d pairs are tried, want at most %d", tried, most)
	}
	if gap := float64(schemes.ObjectiveNS-schemes.BoundNS) / float64(schemes.ObjectiveNS); gap > 0.15 {
		t.Errorf("%+v: gap %.2f", schemes, gap)
	}
}

// A plan for few buckets that fits bounds the search for one with more buckets, which hardly fits.
func TestMemoryBoundBeginsWithFewBuckets(t *testing.T) {
	require.Slow(t)
	model := demo(t)
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	work := permit(op.A8TQ8C, op.A8TQ4B32)
	work.Minimise, work.OutputTokens = problem.Energy, 64
	work.Buckets, work.Context = workload.Rows{64, 256}, 512
	work.Prompts = workload.Prompts{{Tokens: 40, Share: 1}, {Tokens: 200, Share: 1}}
	in := Input{Model: model, SoC: soc, Costs: profiled(t, soc, model, work), Workload: work, Engine: exact.Engine{},
		MaxMemory: 111 << 18} // 27.75 MiB; the best plan without a bound holds 34.4

	tried := map[string]int{}
	in.Progress = func(p Progress) { tried[p.Phase] = max(tried[p.Phase], p.Done) }
	plan := solve(t, in).Plan
	if least := plan.Solver[len(plan.Solver)-1].BoundNS; least < 100e6 {
		t.Errorf("the bound of all plans is %d nJ, want 100e6", least)
	}
	const few, most = "fit 27.8 MiB of memory, 1 buckets", 40
	if tried[few] == 0 || tried["fit 27.8 MiB of memory, 2 buckets"] > most {
		t.Errorf("pairs tried: %v, want at most %d with 2 buckets", tried, most)
	}
}

// Results for other numbers of buckets are compared by what is minimised.
func TestExpectedIsWhatIsMinimised(t *testing.T) {
	for goal, want := range map[problem.Measure]float64{problem.Time: 2, problem.Energy: 3} {
		ses := prepared(t, boundedCase(t, 0, goal))
		if got := (&Result{ExpectedNS: 2, ExpectedNJ: 3, session: ses}).expected(); got != want {
			t.Errorf("least %s: got %v, want %v", goal, got, want)
		}
	}
}

// Where a plan is known that costs less, a search within a bound of memory finds nothing and starts no other one.
func TestMemoryBoundWithBetterPlan(t *testing.T) {
	in := boundedCase(t, 0, problem.Energy)
	ses := prepared(t, in)
	free, err := ses.completePlan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ses.knownObjective = ses.lowestObjective() / 2
	_, plan, err := ses.planWithinMemory(t.Context(), free.Memory.Total, free)
	if plan != nil || diag.ClassOf(err) != diag.ClassInfeasible || Proved(err) {
		t.Errorf("got a plan: %v, %v; want an error of class infeasible that proves nothing", plan != nil, err)
	}
}

// A search within a bound of memory ends where many pairs in a row give nothing.
func TestFruitlessSearchEnds(t *testing.T) {
	in := boundedCase(t, 0, problem.Time)
	ses := prepared(t, in)
	tried := 0
	all := func(prefill, decode assignment) bool { return true }
	onlyThird := func(prefill, decode assignment) (float64, bool, error) {
		tried++
		return 1e9, tried == 3, nil
	}
	found, err := ses.search(t.Context(), math.Inf(1), all, onlyThird)
	if err != nil || tried != 3+maxFruitless+1 {
		t.Fatalf("%d pairs are tried: %v", tried, err)
	}
	if found.decode == nil || found.report.Status != string(problem.Feasible) {
		t.Errorf("%+v, %+v", found, found.report)
	}
	if math.IsInf(found.open, 1) || found.report.BoundNS > price.Whole(found.open) {
		t.Errorf("%+v, %+v", found, found.report)
	}
}

// A prompt may take more energy with fewer buckets than is allowed, and less with more of them.
func TestMemoryBoundWithALimitOfEnergy(t *testing.T) {
	in := boundedCase(t, 0, problem.Energy)
	frugal := solve(t, in)
	one := in
	one.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.Buckets = workload.Rows{64} })
	few := solve(t, one)
	if few.ExpectedNJ <= frugal.ExpectedNJ {
		t.Fatalf("%g nJ with one bucket, %g with two: the case tests nothing", few.ExpectedNJ, frugal.ExpectedNJ)
	}

	in.MaxMemory = frugal.Plan.Memory.Total
	in.Workload = workload.Edited(in.Workload, func(work *workload.Workload) {
		work.Minimise = problem.Time
		work.Limits.EnergyMJ = (few.ExpectedNJ + frugal.ExpectedNJ) / 2e6
	})
	searched := map[string]bool{}
	in.Progress = func(p Progress) { searched[p.Phase] = true }
	ses := prepared(t, in)
	_, plan, err := ses.planWithinMemory(t.Context(), in.MaxMemory, nil)
	if err != nil {
		t.Fatal(err)
	}
	phase := fmt.Sprintf("fit %v of memory, 2 buckets", unit.Bytes(in.MaxMemory))
	if !searched[phase] || plan.Memory.Total > in.MaxMemory {
		t.Errorf("%d bytes of %d, searched %v, want %q among them", plan.Memory.Total, in.MaxMemory, searched, phase)
	}
}

// A bound of memory that leaves a bucket no room gives the plan that a workload without that bucket gets: one that the
// timeline says is faster than each program's optimum, and that may hold less than these do.
func TestMemoryBoundComparesVariants(t *testing.T) {
	require.Slow(t)
	m := demo(t)
	faster := 0
	for _, seed := range []uint64{1, 9} {
		r := rand.New(rand.NewPCG(seed, 77))
		s := withNPU(t, func(npu *socs.Processor) { npu.WeightRanges = r.IntN(2) == 0 })
		w := permit(op.A8TQ8C)
		w.Buckets, w.Context = workload.Rows{16 + 8*r.IntN(3), 64 + 32*r.IntN(3), 192}, 256
		w.Prompts = workload.Prompts{{Tokens: 30 + r.IntN(120), Share: 1}, {Tokens: 192, Share: 0.2}}
		in := Input{Model: m, SoC: s, Costs: profiled(t, s, m, w), Workload: w, Engine: exact.Engine{}}
		in.MaxMemory = solve(t, in).Plan.Memory.Total * 95 / 100
		within := solve(t, in)

		few := in
		kept := len(within.Plan.Program.Programs) - 1
		few.Workload = workload.Edited(w, func(w *workload.Workload) { w.Buckets = w.Buckets[:kept] })
		want := solve(t, few)
		if within.ExpectedNS > want.ExpectedNS || within.Plan.Memory.Total > in.MaxMemory {
			t.Errorf("seed %d: %.0f ns and %d bytes of %d, want at most %.0f ns as with %d buckets", seed, within.ExpectedNS,
				within.Plan.Memory.Total, in.MaxMemory, want.ExpectedNS, kept)
		}
		if kept < len(w.Buckets) && slices.ContainsFunc(want.Plan.Solver,
			func(report planir.Solve) bool { return report.Status == StatusFaster }) {
			faster++
		}
	}
	if faster == 0 {
		t.Error("no plan is faster than its optimum: the case tests nothing")
	}
}
