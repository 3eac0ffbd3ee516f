package solver

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
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

// withNPU is the two cores with the second one turned into a processor with static shapes and little memory.
func withNPU(t testing.TB, change func(npu *socs.Processor)) *socs.SoC {
	t.Helper()
	soc := twoCores(t, 1)

	soc.Processors = soc.Processors[:2]
	soc.Processors[0].PowerW, soc.Processors[1].PowerW = 4, 1
	npu := soc.Processor("c1")
	npu.Kind, npu.Cores, npu.StaticShapes, npu.DynamicRows = socs.KindNPU, nil, true, false
	npu.StridedInput, npu.StridedOutput, npu.WeightRanges, npu.Tile.M = false, false, false, 32
	npu.Kinds, npu.KV = []op.Kind{op.Norm, op.QuantRows, op.MatMul, op.GLU, op.Add, op.Copy}, nil
	npu.CompileMS = 10
	if change != nil {
		change(npu)
	}
	return soc
}

// prepared is a session whose schemes are chosen.
func prepared(t testing.TB, in Input) *session {
	t.Helper()
	in.Engine = exact.Engine{}
	ses, err := newSession(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := ses.chooseSchemes(context.Background()); err != nil {
		t.Fatal(err)
	}
	return ses
}

// Whatever is chosen, a processor loads what the joint problem says it does (rule P027), to the byte and the graph.
// Where operators on rows are joined in one graph the problem counts each of them; buffers that stay inside it too.
func TestJointCountsWhatIsLoaded(t *testing.T) {
	require.Slow(t)
	const limit = 1 << 40 // that nothing reaches
	for name, test := range map[string]struct {
		model  string
		scheme op.Scheme
		soc    *socs.SoC
	}{
		"shared":    {"../testdata/models/tiny-llama-kjv", op.A32W32, withNPU(t, nil)},
		"quantised": {"../testdata/models/tiny-llama-kjv", op.A8TQ8C, withNPU(t, nil)},
		"in every graph": {"../testdata/models/tiny-llama-kjv", op.A32W32,
			withNPU(t, func(p *socs.Processor) { p.WeightBytes = socs.WeightsPerGraph })},
		"ranges": {"../testdata/models/tiny-llama-kjv", op.A8TQ8C,
			withNPU(t, func(p *socs.Processor) { p.WeightRanges = true })},
		"ranges per graph": {"../testdata/models/tiny-llama-kjv", op.A32W32,
			withNPU(t, func(p *socs.Processor) { p.WeightRanges, p.WeightBytes = true, socs.WeightsPerGraph })},
		"strided": {"../testdata/models/tiny-llama-kjv", op.A32W32,
			withNPU(t, func(p *socs.Processor) { p.StridedInput, p.StridedOutput = true, true })},
		"experts": {"olmoe-1b-7b", op.A8TQ8C,
			withNPU(t, func(p *socs.Processor) { p.Kinds = append(p.Kinds, op.ExpertMatMul, op.Combine) })},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range test.soc.Processors {
				test.soc.Processors[i].AddressBytes, test.soc.Processors[i].MaxGraphs = limit, 1<<20
			}
			model := open(t, test.model)
			work := permit(test.scheme)
			work.Buckets = []int{48, 256}
			ses := prepared(t, Input{Model: model, SoC: test.soc, Costs: costs(t, test.soc, model, test.scheme),
				Workload: work})

			posed, err := ses.poseJoint()
			if err != nil {
				t.Fatal(err)
			}
			if err := posed.Validate(); err != nil {
				t.Fatal(err)
			}

			random := rand.New(rand.NewPCG(1, 2))
			for range 60 {
				checkModelled(t, ses, posed, random)
			}
		})
	}
}

// checkModelled compares what a plan of random choices loads and takes with what the joint problem says of them.
func checkModelled(t *testing.T, ses *session, posed *joint, random *rand.Rand) {
	t.Helper()
	var choices [][][]int
	made := solved{reports: []planir.Solve{}}
	for i := range posed.programs {
		var part [][]int
		var list []planir.Decision
		for j, in := range posed.programs[i].instances {
			items := posed.Parts[i].Partition.Chains[j].Items
			pick := make([]int, len(items))
			for node := range pick {
				pick[node] = random.IntN(len(items[node].Choices))
			}
			part = append(part, pick)
			list = append(list, in.decisions(pick)...)
		}
		choices, made.decisions = append(choices, part), append(made.decisions, list)
	}
	plan, err := ses.buildPlan(made)
	if err != nil {
		t.Fatal(err)
	}

	modelled := posed.modelledAmounts(ses, choices)
	for _, name := range []string{"c0", "c1"} {
		load := check.Load(plan, ses.in.SoC.Processor(name))
		graphs := modelled[quantity{problem.LimitRegionGraphs, name}]
		bytes := modelled[quantity{problem.LimitRegionBytes, name}]
		if bytes < load.Bytes || float64(bytes) > 1.2*float64(load.Bytes) {
			t.Fatalf("%s loads %d bytes, and the problem says %d", name, load.Bytes, bytes)
		}
		if name == "c0" { // whose operators on rows are joined
			continue
		}
		if bytes != load.Bytes || graphs != int64(load.Graphs) {
			t.Fatalf("%s loads %d bytes in %d graphs, and the problem says %d in %d", name, load.Bytes, load.Graphs,
				bytes, graphs)
		}
	}

	for i := range choices {
		want := posedEnergy(posed, i, choices[i])
		got, ok, err := ses.energy(plan, &plan.Program.Programs[i])
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		if math.Abs(float64(got-want)) > 1e-3*float64(want) {
			t.Fatalf("program %d takes %d nJ, and the problem says %d", i, got, want)
		}
	}
}

// posedEnergy adds up the energy of the choices of a joint problem's part, in nanojoules.
func posedEnergy(posed *joint, part int, choices [][]int) (nj int64) {
	for i := range choices {
		repeat := int64(posed.Parts[part].Partition.Chains[i].Repeat)
		candidates := posed.programs[part].instances[i].candidates
		for node, choice := range choices[i] {
			nj += repeat * candidates[node][choice].EnergyNJ
		}
	}
	return nj
}

// solveOr does what solve does, and returns nil where limits cannot be kept. Plans are checked.
func solveOr(t testing.TB, in Input) *Result {
	t.Helper()
	in.Engine = exact.Engine{}
	result, err := Solve(context.Background(), in)
	if diag.ClassOf(err) == diag.ClassInfeasible {
		var limits *LimitError
		if !errors.As(err, &limits) || len(limits.Names) == 0 {
			t.Fatalf("%v names no limits", err)
		}
		if !limits.Proved && strings.Contains(limits.Error(), "no plan keeps") {
			t.Errorf("%v: the text claims a proof, and there is none", err)
		}
		return nil
	}

	if err != nil {
		t.Fatalf("%v (hints %q)", err, diag.HintsOf(err))
	}
	if found := check.Plan(result.Plan, in.Model, in.SoC); len(found) > 0 {
		t.Fatal(found)
	}
	return result
}

// The more a limit permits, the better the plan, and it keeps the limit. What no plan keeps is an error that names it,
// and without the limit there is a plan.
func TestLimitsAreKept(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), withNPU(t, nil)
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C)}
	newWorkload := func() *workload.Workload {
		work := permit(op.A8TQ8C)
		work.Buckets = []int{64, 256}
		return work
	}
	in.Workload = newWorkload()
	free := solveOr(t, in)
	load := check.Load(free.Plan, soc.Processor("c1"))
	if load.Graphs < 4 || load.Bytes < 1<<20 {
		t.Fatalf("the processor holds %+v: nothing to limit", load)
	}

	slowest := func(result *Result, phase string) (ns int64) {
		for i, ph := range result.Plan.Program.Programs {
			if ph.Phase == phase {
				ns = max(ns, result.Plan.Predictions[i].PlanNS)
			}
		}
		return ns
	}

	for name, test := range map[string]struct {
		set   func(l *workload.Limits, part float64)
		taken func(r *Result) float64 // of the unlimited plan's is 1
	}{
		"limits.address_bytes.c1": {
			func(l *workload.Limits, part float64) {
				l.AddressBytes = map[string]unit.Bytes{"c1": unit.Bytes(part * float64(load.Bytes))}
			},
			func(r *Result) float64 {
				return float64(check.Load(r.Plan, soc.Processor("c1")).Bytes) / float64(load.Bytes)
			},
		},
		"limits.max_graphs.c1": {
			func(l *workload.Limits, part float64) {
				l.MaxGraphs = map[string]int{"c1": int(part * float64(load.Graphs))}
			},
			func(r *Result) float64 {
				return float64(check.Load(r.Plan, soc.Processor("c1")).Graphs) / float64(load.Graphs)
			},
		},
		workload.KeyOpen: {
			func(l *workload.Limits, part float64) { l.OpenMS = part * float64(10*load.Graphs) },
			func(r *Result) float64 {
				return float64(check.Load(r.Plan, soc.Processor("c1")).Graphs) / float64(load.Graphs)
			},
		},
		workload.KeyEnergy: {
			func(l *workload.Limits, part float64) { l.EnergyMJ = part * free.ExpectedNJ / 1e6 },
			func(r *Result) float64 { return r.ExpectedNJ / free.ExpectedNJ },
		},
		workload.KeyPrefill: {
			func(l *workload.Limits, part float64) { l.PrefillMS = part * float64(slowest(free, "prefill")) / 1e6 },
			func(r *Result) float64 { return float64(slowest(r, "prefill")) / float64(slowest(free, "prefill")) },
		},
		workload.KeyDecode: {
			func(l *workload.Limits, part float64) { l.DecodeMS = part * float64(slowest(free, "decode")) / 1e6 },
			func(r *Result) float64 { return float64(slowest(r, "decode")) / float64(slowest(free, "decode")) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			last := free.ExpectedNS
			within := 0
			for _, part := range []float64{1.001, 0.8, 0.5, 0.05} {
				in := in
				in.Workload = newWorkload()
				test.set(&in.Workload.Limits, part)
				result := solveOr(t, in)

				if result == nil {
					in.Workload = newWorkload()
					if again := solveOr(t, in); again == nil || math.Abs(again.ExpectedNS-free.ExpectedNS) > 1 {
						t.Errorf("without the limit: %v", again)
					}
					continue
				}
				within++
				if got := test.taken(result); got > part*(1+1e-4) {
					t.Errorf("%v of what is taken without a limit, and %v are allowed", got, part)
				}
				// A search that stops early says how far it may be off.
				slack := 1.0
				if report := result.Plan.Solver[0]; report.ObjectiveNS > 0 {
					slack = float64(report.ObjectiveNS) / float64(report.BoundNS)
				}
				if result.ExpectedNS*slack < last*(1-0.02) {
					t.Errorf("at %v: %v ns, with more allowed %v ns", part, result.ExpectedNS, last)
				}
				last = result.ExpectedNS
			}
			if within == 0 {
				t.Error("no plan keeps any of the limits")
			}
		})
	}
}

// Minimising energy takes no more of it than minimising time, which is no slower; and least memory is least.
func TestObjectives(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), withNPU(t, nil)
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C, op.A32W32)}
	by := map[problem.Measure]*Result{}
	units := map[problem.Measure]string{problem.Time: "ns", problem.Energy: "nJ", problem.Memory: "bytes"}

	for _, measure := range []problem.Measure{problem.Time, problem.Energy, problem.Memory} {
		if got := (&planir.Solve{Problem: jointProblem(measure)}).Unit(); got != units[measure] {
			t.Errorf("the objective of %s is said to be in %s, want %s", measure, got, units[measure])
		}
		work := permit(op.A8TQ8C, op.A32W32)
		work.Minimise = measure
		in.Workload = work
		result := solveOr(t, in)
		if result == nil {
			t.Fatal(measure)
		}
		by[measure] = result
		for _, predicted := range result.Plan.Predictions {
			if predicted.EnergyUJ <= 0 {
				t.Errorf("%s: no energy of %s", measure, predicted.Program)
			}
		}
	}

	fast, frugal, small := by[problem.Time], by[problem.Energy], by[problem.Memory]
	if !(frugal.ExpectedNJ < 0.999*fast.ExpectedNJ) || !(fast.ExpectedNS < frugal.ExpectedNS) {
		t.Errorf("least time: %v ns, %v nJ; least energy: %v ns, %v nJ", fast.ExpectedNS, fast.ExpectedNJ,
			frugal.ExpectedNS, frugal.ExpectedNJ)
	}
	// What depends on more than one choice, beside scratch and loaded steps.
	holds := func(result *Result) int64 {
		memory := result.Plan.Memory
		return memory.Weights + memory.Prepacked + memory.Tables + memory.Pool
	}
	if held := holds(small); held > holds(frugal) || held >= holds(fast) {
		t.Errorf("least memory holds %v, others %v and %v", small.Plan.Memory, fast.Plan.Memory, frugal.Plan.Memory)
	}

	// The least energy cannot be undercut, and that little time limits nothing.
	want := permit(op.A8TQ8C, op.A32W32)
	want.Limits.EnergyMJ = 0.9 * frugal.ExpectedNJ / 1e6
	in.Workload = want
	if less := solveOr(t, in); less != nil {
		t.Errorf("less than the least energy: %v nJ of %v", less.ExpectedNJ, frugal.ExpectedNJ)
	}

	soc.Processors[1].PowerW = 0
	want.Limits.EnergyMJ = 1e6
	in.Costs = costs(t, soc, model, op.A8TQ8C, op.A32W32)
	in.Engine = exact.Engine{}
	_, err := Solve(context.Background(), in)
	if diag.ClassOf(err) != diag.ClassInput || !says(err, `power of processor "c1"`) {
		t.Errorf("a limit of energy without powers: %v", err)
	}
}

// What a plan is compared with: whole operators on one processor, and one ratio for all.
func TestPolicies(t *testing.T) {
	model, soc := demo(t), twoCores(t, 0.5)
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: quick()}
	best := solve(t, in)

	in.Strategies = []planir.Strategy{planir.Single, planir.Padding}
	layers := solve(t, in)
	for _, decision := range layers.Plan.Decisions {
		if len(decision.Shares) != 1 {
			t.Errorf("%s@%d: %s", decision.Node, decision.Rows, decision.ShareText())
		}
	}

	in.Strategies = nil
	in.Ratio = map[string]float64{"c0": 0.75, "c1": 0.25}
	fixed := solve(t, in)
	matrices := 0
	for _, decision := range fixed.Plan.Decisions {
		if decision.Scheme == "" {
			continue
		}
		matrices++
		if len(decision.Shares) != 2 {
			t.Errorf("%s@%d: %s", decision.Node, decision.Rows, decision.ShareText())
			continue
		}
		ratio := float64(decision.Shares[0].To) / float64(decision.Shares[1].To)
		if math.Abs(ratio-0.75) > 0.1 {
			t.Errorf("%s@%d: %s", decision.Node, decision.Rows, decision.ShareText())
		}
	}
	if matrices < 10 {
		t.Errorf("%d matrices", matrices)
	}

	if !(best.ExpectedNS < layers.ExpectedNS && best.ExpectedNS < fixed.ExpectedNS) {
		t.Errorf("%v ns, of whole operators %v, in one ratio %v", best.ExpectedNS, layers.ExpectedNS, fixed.ExpectedNS)
	}

	for _, bad := range []Input{
		{Strategies: []planir.Strategy{"best"}},
		{Ratio: map[string]float64{"c0": 0.5}},
		{Ratio: map[string]float64{"c9": 1}},
	} {
		given := in
		given.Strategies, given.Ratio, given.Engine = bad.Strategies, bad.Ratio, exact.Engine{}
		if _, err := Solve(context.Background(), given); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%v %v: %v", bad.Strategies, bad.Ratio, err)
		}
	}
}

// Energies that do not fit where times stand are refused: cut off there, much and most would look alike.
func TestEnergyBeyondReckoning(t *testing.T) {
	model, soc := demo(t), withNPU(t, nil)
	soc.Processors[0].PowerW, soc.Processors[1].PowerW = 1e12, 1e12
	work := permit(op.A32W32)
	work.Minimise = problem.Energy
	_, err := Solve(t.Context(), Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: work,
		Engine: exact.Engine{}})
	if diag.ClassOf(err) != diag.ClassInput || !says(err, "J are modelled, want at most 1100", "power_w") {
		t.Errorf("got %v, hints %q", err, diag.HintsOf(err))
	}
}
