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
	s := twoCores(t, 1)
	s.Processors = s.Processors[:2]
	s.Processors[0].PowerW, s.Processors[1].PowerW = 4, 1
	npu := s.Processor("c1")
	npu.Kind, npu.Cores, npu.StaticShapes, npu.DynamicRows = socs.KindNPU, nil, true, false
	npu.StridedInput, npu.StridedOutput, npu.WeightRanges, npu.Tile.M = false, false, false, 32
	npu.Kinds, npu.KV = []op.Kind{op.Norm, op.QuantRows, op.MatMul, op.GLU, op.Add, op.Copy}, nil
	npu.CompileMS = 10
	if change != nil {
		change(npu)
	}
	return s
}

// prepared is a session whose schemes are chosen.
func prepared(t testing.TB, in Input) *session {
	t.Helper()
	in.Engine = exact.Engine{}
	s, err := newSession(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.chooseSchemes(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

// Whatever is chosen, a processor loads what the joint problem says it does (rule P027), to the byte and the graph.
// Where operators on rows are joined in one graph the problem counts each of them; buffers that stay inside it too.
func TestJointCountsWhatIsLoaded(t *testing.T) {
	require.Slow(t)
	const limit = 1 << 40 // that nothing reaches
	for name, c := range map[string]struct {
		model  string
		scheme op.Scheme
		soc    *socs.SoC
	}{
		"shared":           {"../testdata/models/tiny-llama-kjv", op.A32W32, withNPU(t, nil)},
		"quantised":        {"../testdata/models/tiny-llama-kjv", op.A8TQ8C, withNPU(t, nil)},
		"in every graph":   {"../testdata/models/tiny-llama-kjv", op.A32W32, withNPU(t, func(p *socs.Processor) { p.WeightBytes = socs.WeightsPerGraph })},
		"ranges":           {"../testdata/models/tiny-llama-kjv", op.A8TQ8C, withNPU(t, func(p *socs.Processor) { p.WeightRanges = true })},
		"ranges per graph": {"../testdata/models/tiny-llama-kjv", op.A32W32, withNPU(t, func(p *socs.Processor) { p.WeightRanges, p.WeightBytes = true, socs.WeightsPerGraph })},
		"strided":          {"../testdata/models/tiny-llama-kjv", op.A32W32, withNPU(t, func(p *socs.Processor) { p.StridedInput, p.StridedOutput = true, true })},
		"experts":          {"olmoe-1b-7b", op.A8TQ8C, withNPU(t, func(p *socs.Processor) { p.Kinds = append(p.Kinds, op.ExpertMatMul, op.Combine) })},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range c.soc.Processors {
				c.soc.Processors[i].AddressBytes, c.soc.Processors[i].MaxGraphs = limit, 1<<20
			}
			m := open(t, c.model)
			w := permit(c.scheme)
			w.Buckets = []int{48, 256}
			s := prepared(t, Input{Model: m, SoC: c.soc, Costs: costs(t, c.soc, m, c.scheme), Workload: w})
			j, err := s.poseJoint()
			if err != nil {
				t.Fatal(err)
			}
			if err := j.Validate(); err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(1, 2))
			for range 60 {
				var choices [][][]int
				x := solved{reports: []planir.Solve{}}
				for i := range j.programs {
					var part [][]int
					var list []planir.Decision
					for k, in := range j.programs[i].instances {
						items := j.Parts[i].Partition.Chains[k].Items
						pick := make([]int, len(items))
						for n := range pick {
							pick[n] = r.IntN(len(items[n].Choices))
						}
						part = append(part, pick)
						list = append(list, in.decisions(pick)...)
					}
					choices, x.decisions = append(choices, part), append(x.decisions, list)
				}
				p, err := s.buildPlan(x)
				if err != nil {
					t.Fatal(err)
				}
				said := j.modelledAmounts(s, choices)
				for _, name := range []string{"c0", "c1"} {
					load := check.Load(p, c.soc.Processor(name))
					graphs, bytes := said[quantity{problem.LimitRegionGraphs, name}], said[quantity{problem.LimitRegionBytes, name}]
					if bytes < load.Bytes || float64(bytes) > 1.2*float64(load.Bytes) {
						t.Fatalf("%s loads %d bytes, and the problem says %d", name, load.Bytes, bytes)
					}
					if name == "c0" { // whose operators on rows are joined
						continue
					}
					if bytes != load.Bytes || graphs != int64(load.Graphs) {
						t.Fatalf("%s loads %d bytes in %d graphs, and the problem says %d in %d", name, load.Bytes, load.Graphs, bytes, graphs)
					}
				}
				// So much energy is predicted as the choices were said to take.
				for i, part := range choices {
					var nj int64
					for k := range part {
						for n, pick := range part[k] {
							nj += int64(j.Parts[i].Partition.Chains[k].Repeat) * j.programs[i].instances[k].candidates[n][pick].EnergyNJ
						}
					}
					got, ok, err := s.energy(p, &p.Program.Programs[i])
					if err != nil || !ok {
						t.Fatal(ok, err)
					}
					if diff := float64(got-nj) / float64(nj); diff > 1e-3 || diff < -1e-3 {
						t.Fatalf("program %d takes %d nJ, and the problem says %d", i, got, nj)
					}
				}
			}
		})
	}
}

// solveOr is solve, and nil where limits cannot be kept.
func solveOr(t testing.TB, in Input) *Result {
	t.Helper()
	in.Engine = exact.Engine{}
	r, err := Solve(context.Background(), in)
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
	if found := check.Plan(r.Plan, in.Model, in.SoC); len(found) > 0 {
		t.Fatal(found)
	}
	return r
}

// The more a limit permits, the better the plan, and it keeps the limit. What no plan keeps is an error that names
// it, and without the limit there is a plan.
func TestLimitsAreKept(t *testing.T) {
	require.Slow(t)
	m, s := demo(t), withNPU(t, nil)
	c := costs(t, s, m, op.A8TQ8C)
	in := Input{Model: m, SoC: s, Costs: c}
	newWorkload := func() *workload.Workload {
		w := permit(op.A8TQ8C)
		w.Buckets = []int{64, 256}
		return w
	}
	in.Workload = newWorkload()
	free := solveOr(t, in)
	load := check.Load(free.Plan, s.Processor("c1"))
	if load.Graphs < 4 || load.Bytes < 1<<20 {
		t.Fatalf("the processor holds %+v: nothing to limit", load)
	}
	slowest := func(r *Result, phase string) (ns int64) {
		for i, ph := range r.Plan.Program.Programs {
			if ph.Phase == phase {
				ns = max(ns, r.Plan.Predictions[i].PlanNS)
			}
		}
		return ns
	}
	for name, x := range map[string]struct {
		set   func(l *workload.Limits, part float64)
		taken func(r *Result) float64 // of the unlimited plan's is 1
	}{
		"limits.address_bytes.c1": {
			func(l *workload.Limits, part float64) {
				l.AddressBytes = map[string]unit.Bytes{"c1": unit.Bytes(part * float64(load.Bytes))}
			},
			func(r *Result) float64 {
				return float64(check.Load(r.Plan, s.Processor("c1")).Bytes) / float64(load.Bytes)
			},
		},
		"limits.max_graphs.c1": {
			func(l *workload.Limits, part float64) {
				l.MaxGraphs = map[string]int{"c1": int(part * float64(load.Graphs))}
			},
			func(r *Result) float64 {
				return float64(check.Load(r.Plan, s.Processor("c1")).Graphs) / float64(load.Graphs)
			},
		},
		workload.KeyOpen: {
			func(l *workload.Limits, part float64) { l.OpenMS = part * float64(10*load.Graphs) },
			func(r *Result) float64 {
				return float64(check.Load(r.Plan, s.Processor("c1")).Graphs) / float64(load.Graphs)
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
				x.set(&in.Workload.Limits, part)
				r := solveOr(t, in)
				if r == nil {
					in.Workload = newWorkload()
					if again := solveOr(t, in); again == nil || math.Abs(again.ExpectedNS-free.ExpectedNS) > 1 {
						t.Errorf("without the limit: %v", again)
					}
					continue
				}
				within++
				if got := x.taken(r); got > part*(1+1e-4) {
					t.Errorf("%v of what is taken without a limit, and %v are allowed", got, part)
				}
				// A search that stops early says how far it may be off.
				slack := 1.0
				if y := r.Plan.Solver[0]; y.ObjectiveNS > 0 {
					slack = float64(y.ObjectiveNS) / float64(y.BoundNS)
				}
				if r.ExpectedNS*slack < last*(1-0.02) {
					t.Errorf("at %v: %v ns, with more allowed %v ns", part, r.ExpectedNS, last)
				}
				last = r.ExpectedNS
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
	m, s := demo(t), withNPU(t, nil)
	in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A8TQ8C, op.A32W32)}
	by := map[problem.Measure]*Result{}
	units := map[problem.Measure]string{problem.Time: "ns", problem.Energy: "nJ", problem.Memory: "bytes"}
	for _, measure := range []problem.Measure{problem.Time, problem.Energy, problem.Memory} {
		if got := (&planir.Solve{Problem: jointProblem(measure)}).Unit(); got != units[measure] {
			t.Errorf("the objective of %s is said to be in %s, want %s", measure, got, units[measure])
		}
		w := permit(op.A8TQ8C, op.A32W32)
		w.Minimise = measure
		in.Workload = w
		r := solveOr(t, in)
		if r == nil {
			t.Fatal(measure)
		}
		by[measure] = r
		for _, x := range r.Plan.Predictions {
			if x.EnergyUJ <= 0 {
				t.Errorf("%s: no energy of %s", measure, x.Program)
			}
		}
	}
	fast, frugal, small := by[problem.Time], by[problem.Energy], by[problem.Memory]
	if !(frugal.ExpectedNJ < 0.999*fast.ExpectedNJ) || !(fast.ExpectedNS < frugal.ExpectedNS) {
		t.Errorf("least time: %v ns, %v nJ; least energy: %v ns, %v nJ", fast.ExpectedNS, fast.ExpectedNJ, frugal.ExpectedNS, frugal.ExpectedNJ)
	}
	// What depends on more than one choice, beside scratch and loaded steps.
	holds := func(r *Result) int64 { m := r.Plan.Memory; return m.Weights + m.Prepacked + m.Tables + m.Pool }
	if a, b := holds(small), min(holds(fast), holds(frugal)); a > b || a >= holds(fast) {
		t.Errorf("least memory holds %v, others %v and %v", small.Plan.Memory, fast.Plan.Memory, frugal.Plan.Memory)
	}
	// The least energy cannot be undercut, and that little time limits nothing.
	w := permit(op.A8TQ8C, op.A32W32)
	w.Limits.EnergyMJ = 0.9 * frugal.ExpectedNJ / 1e6
	in.Workload = w
	if r := solveOr(t, in); r != nil {
		t.Errorf("less than the least energy: %v nJ of %v", r.ExpectedNJ, frugal.ExpectedNJ)
	}
	s.Processors[1].PowerW = 0
	w.Limits.EnergyMJ = 1e6
	in.Costs = costs(t, s, m, op.A8TQ8C, op.A32W32)
	in.Engine = exact.Engine{}
	if _, err := Solve(context.Background(), in); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), `power of processor "c1"`) {
		t.Errorf("a limit of energy without powers: %v", err)
	}
}

// What a plan is compared with: whole operators on one processor, and one ratio for all.
func TestPolicies(t *testing.T) {
	m, s := demo(t), twoCores(t, 0.5)
	in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: quick()}
	best := solve(t, in)
	in.Strategies = []planir.Strategy{planir.Single, planir.Padding}
	layers := solve(t, in)
	for _, d := range layers.Plan.Decisions {
		if len(d.Shares) != 1 {
			t.Errorf("%s@%d: %s", d.Node, d.Rows, d.ShareText())
		}
	}
	in.Strategies = nil
	in.Ratio = map[string]float64{"c0": 0.75, "c1": 0.25}
	fixed := solve(t, in)
	n := 0
	for _, d := range fixed.Plan.Decisions {
		if d.Scheme == "" {
			continue
		}
		n++
		if len(d.Shares) != 2 || math.Abs(float64(d.Shares[0].To)/float64(d.Shares[1].To)-0.75) > 0.1 {
			t.Errorf("%s@%d: %s", d.Node, d.Rows, d.ShareText())
		}
	}
	if n < 10 {
		t.Errorf("%d matrices", n)
	}
	if !(best.ExpectedNS < layers.ExpectedNS && best.ExpectedNS < fixed.ExpectedNS) {
		t.Errorf("%v ns, of whole operators %v, in one ratio %v", best.ExpectedNS, layers.ExpectedNS, fixed.ExpectedNS)
	}
	for _, bad := range []Input{{Strategies: []planir.Strategy{"best"}}, {Ratio: map[string]float64{"c0": 0.5}}, {Ratio: map[string]float64{"c9": 1}}} {
		x := in
		x.Strategies, x.Ratio, x.Engine = bad.Strategies, bad.Ratio, exact.Engine{}
		if _, err := Solve(context.Background(), x); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%v %v: %v", bad.Strategies, bad.Ratio, err)
		}
	}
}

// Energies that do not fit where times stand are refused: cut off there, much and most would look alike.
func TestEnergyBeyondReckoning(t *testing.T) {
	m, s := demo(t), withNPU(t, nil)
	s.Processors[0].PowerW, s.Processors[1].PowerW = 1e12, 1e12
	w := permit(op.A32W32)
	w.Minimise = problem.Energy
	_, err := Solve(t.Context(), Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: w, Engine: exact.Engine{}})
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "J are modelled, want at most 1100") || !strings.Contains(strings.Join(diag.HintsOf(err), " "), "power_w") {
		t.Errorf("got %v, hints %q", err, diag.HintsOf(err))
	}
}
