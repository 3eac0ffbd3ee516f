package solver

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// limitedCase is an input whose fastest, most frugal and smallest plans differ in schemes, buckets and placement.
func limitedCase(t *testing.T, seed uint64) Input {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 3))
	model := demo(t)
	soc := withNPU(t, func(npu *socs.Processor) { npu.WeightRanges = random.IntN(2) == 0 })
	soc.Processors[0].PowerW, soc.Processors[1].PowerW = 1+4*random.Float64(), 0.2+2*random.Float64()

	work := permit(op.A8TQ8C, op.A32W32)
	work.Buckets, work.Context, work.OutputTokens = workload.Rows{16, 64 + 32*random.IntN(4)}, 256, 8+random.IntN(32)
	work.Prompts = workload.Prompts{{Tokens: 10 + random.IntN(60), Share: 1},
		{Tokens: 100 + random.IntN(90), Share: random.Float64()}}
	if seed%2 == 1 {
		work.Limits.AddressBytes = map[string]unit.Bytes{"c1": unit.Bytes(200<<10 + random.IntN(4<<20))}
	}
	return Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C, op.A32W32), Workload: work,
		Engine: exact.Engine{}}
}

// A limit that is not below what minimising reaches has a plan, whatever else is limited and whatever is minimised.
func TestWhatIsReachedIsPossible(t *testing.T) {
	require.Slow(t)
	for seed := range uint64(3) {
		in := limitedCase(t, seed)
		goal := func(measure problem.Measure) *Result {
			with := in
			with.Minimise(measure)
			return solve(t, with)
		}

		frugal, small := goal(problem.Energy), goal(problem.Memory)
		limited := in
		limited.Workload = workload.Edited(in.Workload,
			func(w *workload.Workload) { w.Limits.EnergyMJ = frugal.ExpectedNJ/1e6 + 1e-6 })
		result, err := Solve(t.Context(), limited)
		if err != nil {
			t.Errorf("seed %d: energy as it was reached, %v nJ: %v", seed, frugal.ExpectedNJ, err)
		} else if result.ExpectedNJ > frugal.ExpectedNJ+1 {
			t.Errorf("seed %d: %v nJ, at most %v are allowed", seed, result.ExpectedNJ, frugal.ExpectedNJ)
		}

		limited = in
		limited.MaxMemory = small.Plan.Memory.Total
		result, err = Solve(t.Context(), limited)
		if err != nil {
			t.Errorf("seed %d: memory as it was reached, %d bytes: %v", seed, limited.MaxMemory, err)
			continue
		}
		found := check.Plan(result.Plan, in.Model, in.SoC)
		if result.Plan.Memory.Total > limited.MaxMemory || len(found) > 0 {
			t.Errorf("seed %d: %d bytes, at most %d are allowed; %v", seed, result.Plan.Memory.Total,
				limited.MaxMemory, found)
		}
	}
}

// The least energy that is predicted is possible as a limit, also where rounding to microjoules takes a part of it off.
func TestLeastEnergyIsPossible(t *testing.T) {
	model, soc := open(t, "../testdata/arch/llama-mqa"), twoCores(t, 0.5)
	soc.Processors, soc.Joint = soc.Processors[:2], nil
	for _, power := range []float64{0.31, 0.47, 0.73, 0.97} {
		soc.Processors[0].PowerW, soc.Processors[1].PowerW = power, 2*power
		in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: quick(),
			Engine: exact.Engine{}}
		in.Workload.Buckets, in.Workload.Context = []int{16}, 64
		in.Minimise(problem.Energy)
		least := solve(t, in).ExpectedNJ

		for _, measure := range []problem.Measure{problem.Energy, problem.Time} {
			in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) {
				w.Minimise, w.Limits.EnergyMJ = measure, least/1e6
			})
			result, err := Solve(t.Context(), in)
			if err != nil {
				t.Errorf("minimise %s within %v nJ, which a plan takes: %v", measure, least, err)
			} else if result.ExpectedNJ > least {
				t.Errorf("minimise %s: %v nJ, at most %v are allowed", measure, result.ExpectedNJ, least)
			}
		}
	}
}

// The times of the fastest plan are possible as limits where energy is minimised, although only the timeline knows that
// its programs are so fast.
func TestLeastTimeIsPossible(t *testing.T) {
	for _, name := range []string{"llama-mqa", "llama-plain", "qwen3-lean"} {
		model, soc := open(t, "../testdata/arch/"+name), withNPU(t, nil)
		for i := range soc.Links {
			soc.Links[i].HandoverUS = 2
		}
		work := quick()
		work.Buckets, work.Context = workload.Rows{16}, 64
		soc.Processor(soc.Control).FusesGLU = true
		in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: work,
			Engine: exact.Engine{}}
		in.Costs.Gated = gatedShares(t, soc.Control, model, op.A32W32)
		fastest := solve(t, in)
		decode, prefill := prediction(t, fastest.Plan, "decode").PlanNS, prediction(t, fastest.Plan, "prefill@16").PlanNS

		in.Workload = workload.Edited(work, func(w *workload.Workload) {
			w.Minimise = problem.Energy
			w.Limits.DecodeMS, w.Limits.PrefillMS = float64(decode+1)/1e6, float64(prefill+1)/1e6
		})
		result, err := Solve(t.Context(), in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		plan := result.Plan
		isKept := prediction(t, plan, "decode").PlanNS <= decode+1 && prediction(t, plan, "prefill@16").PlanNS <= prefill+1
		if !isKept || result.ExpectedNJ > fastest.ExpectedNJ {
			t.Errorf("%s: %+v and %v nJ, want at most %d and %d ns, %v nJ", name, plan.Predictions, result.ExpectedNJ,
				decode, prefill, fastest.ExpectedNJ)
		}
	}
}

// No plan for another goal, with a bound of memory or restricted in placement, holds less than the one that minimises
// memory.
func TestLeastMemoryIsLeast(t *testing.T) {
	require.Slow(t)
	for seed := range uint64(2) {
		in := limitedCase(t, seed)
		in.Workload.Limits = workload.Limits{}
		least := in
		least.Minimise(problem.Memory)
		small := solve(t, least).Plan
		if got := small.Solver[0]; got.ObjectiveNS != small.Memory.Total || got.BoundNS > got.ObjectiveNS {
			t.Errorf("seed %d: objective %d, at least %d, and the plan says %d bytes", seed, got.ObjectiveNS,
				got.BoundNS, small.Memory.Total)
		}

		for name, change := range map[string]func(*Input){
			"least time":      func(*Input) {},
			"least energy":    func(x *Input) { x.Minimise(problem.Energy) },
			"only c0":         func(x *Input) { x.Only = []string{"c0"} },
			"only c1":         func(x *Input) { x.Only = []string{"c1"} },
			"whole operators": func(x *Input) { x.Strategies = []planir.Strategy{planir.Single, planir.Padding} },
			"little memory":   func(x *Input) { x.MaxMemory = small.Memory.Total * 21 / 20 },
			"one bucket alone": func(x *Input) {
				x.Workload = workload.Edited(x.Workload, func(w *workload.Workload) { w.Buckets = w.Buckets[:1] })
			},
		} {
			changed := in
			change(&changed)
			if got := solve(t, changed).Plan.Memory.Total; got < small.Memory.Total {
				t.Errorf("seed %d: %s holds %d bytes, the least is said to be %d", seed, name, got,
					small.Memory.Total)
			}
		}
	}
}

// noJoint is an engine that is not asked about all programs together.
type noJoint struct {
	problem.Engine
	t *testing.T
}

// Joint fails the test.
func (n noJoint) Joint(ctx context.Context, joint *problem.Joint,
	limits problem.Limits) (problem.JointSolution, error) {
	n.t.Errorf("a joint problem is posed, of %d programs", len(joint.Parts))
	return n.Engine.Joint(ctx, joint, limits)
}

// A limit below what every plan takes is told before a plan is looked for, whatever is minimised.
func TestHopelessLimitsAreToldAtOnce(t *testing.T) {
	in := limitedCase(t, 0)
	in.Engine = noJoint{exact.Engine{}, t}
	for _, measure := range []problem.Measure{problem.Time, problem.Energy, problem.Memory} {
		for name, limits := range map[string]workload.Limits{
			workload.KeyEnergy:  {EnergyMJ: 1e-6},
			workload.KeyDecode:  {DecodeMS: 1e-6},
			workload.KeyPrefill: {PrefillMS: 1e-6},
		} {
			limited := in
			limited.Workload = workload.Edited(in.Workload, func(w *workload.Workload) {
				w.Limits, w.Minimise = limits, measure
			})
			_, err := Solve(t.Context(), limited)
			var why *LimitError
			if !errors.As(err, &why) || !why.Proved || !slices.Equal(why.Names, []string{name}) {
				t.Errorf("least %s with %s: got %v, want a proof that names it", measure, name, err)
			}
		}
	}
}

// Lowering joins steps, and what that saves of launches is no reason to refuse a limit: the time that a plan takes on
// one processor is possible there.
func TestJoinedStepsKeepALimit(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	soc.Processors, soc.Links, soc.Joint = soc.Processors[:1], nil, nil
	soc.Processors[0].LaunchUS = 20
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C), Workload: permit(op.A8TQ8C),
		Engine: exact.Engine{}}
	in.Workload.Prompts = workload.Prompts{{Tokens: 200, Share: 1}}

	free := solve(t, in).Plan
	ms := func(program string) float64 { return float64(prediction(t, free, program).PlanNS+1) / 1e6 }
	in.Workload.Limits = workload.Limits{DecodeMS: ms("decode"), PrefillMS: max(ms("prefill@16"), ms("prefill@256"))}
	if _, err := Solve(t.Context(), in); err != nil {
		t.Errorf("limits %+v, which a plan keeps: %v", in.Workload.Limits, err)
	}
}

// A limit of calls that only fewer buckets keep is kept by a plan that the timeline says is faster than the optimum.
func TestFasterThanTheOptimumKeepsALimit(t *testing.T) {
	model, soc := demo(t), withNPU(t, nil)
	work := permit(op.A8TQ8C)
	work.Buckets, work.Context = workload.Rows{24, 96}, 120
	work.Prompts = workload.Prompts{{Tokens: 72, Share: 1}}
	in := Input{Model: model, SoC: soc, Costs: profiled(t, soc, model, work), Workload: work, Engine: exact.Engine{}}
	free := solve(t, in).Plan
	if prefill := free.Solver[1]; len(free.Program.Programs) != 2 || prefill.Status != StatusFaster {
		t.Fatalf("%d programs, prefill is %s: the case tests nothing", len(free.Program.Programs), prefill.Status)
	}

	most := prediction(t, free, "prefill@24").PlanNS
	in.Workload = workload.Edited(work, func(w *workload.Workload) { w.Limits.PrefillMS = float64(most+1) / 1e6 })
	limited, err := Solve(t.Context(), in)
	if err != nil {
		t.Fatalf("prefill of %d ns, which a plan keeps: %v", most, err)
	}
	if got := prediction(t, limited.Plan, "prefill@24").PlanNS; got > most+1 {
		t.Errorf("prefill takes %d ns, and at most %d are allowed", got, most+1)
	}

	in.MaxMemory = free.Memory.Total
	limited, err = Solve(t.Context(), in)
	if err != nil {
		t.Fatalf("prefill of %d ns within %d bytes, which a plan keeps: %v", most, in.MaxMemory, err)
	}
	if got := limited.Plan; prediction(t, got, "prefill@24").PlanNS > most+1 || got.Memory.Total > in.MaxMemory {
		t.Errorf("prefill takes %d ns within %d bytes, and at most %d and %d are allowed",
			prediction(t, got, "prefill@24").PlanNS, got.Memory.Total, most+1, in.MaxMemory)
	}
}

// A limit that is missed by a nanosecond or a byte does not read as if it were kept.
func TestExceededByLittle(t *testing.T) {
	for kind, want := range map[problem.LimitKind][2]string{
		problem.LimitPartNS:   {"98086023 ns", "98086022 ns"},
		problem.LimitEnergyNJ: {"98086023 nJ", "98086022 nJ"},
		problem.LimitBytes:    {"98086023 bytes", "98086022 bytes"},
	} {
		limit := bound{quantity{kind, "decode"}, 98086022, ""}
		if _, takes, most := limit.exceeded(98086023); takes != want[0] || most != want[1] {
			t.Errorf("%v: %q of %q, want %q", kind, takes, most, want)
		}
		if _, takes, most := limit.exceeded(2 * 98086023); takes == most || strings.HasSuffix(takes, " "+want[0][9:]) {
			t.Errorf("%v: %q of %q", kind, takes, most)
		}
	}
}
