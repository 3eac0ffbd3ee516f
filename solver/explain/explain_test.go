package explain

import (
	"context"
	"errors"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// The set found is as small as the smallest infeasible subset of all, the first of them, over random families of
// minimal conflicts.
func TestSmallestConflict(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		n := 1 + random.IntN(7)
		var minimal []int // conflicts, as masks
		for range random.IntN(4) {
			minimal = append(minimal, 1+random.IntN(1<<n-1))
		}
		infeasible := func(mask int) bool {
			return slices.ContainsFunc(minimal, func(m int) bool { return mask&m == m })
		}
		best := -1
		for mask := 1; mask < 1<<n; mask++ {
			if !infeasible(mask) {
				continue
			}
			if best < 0 || bits.OnesCount(uint(mask)) < bits.OnesCount(uint(best)) ||
				bits.OnesCount(uint(mask)) == bits.OnesCount(uint(best)) &&
					slices.Compare(members(mask), members(best)) < 0 {
				best = mask
			}
		}
		asked := 0
		set, smallest, err := smallestConflict(n, func(holds []bool) (bool, error) {
			asked++
			mask := 0
			for i, h := range holds {
				if h {
					mask |= 1 << i
				}
			}
			return infeasible(mask), nil
		})
		switch {
		case err != nil:
			t.Fatal(err)
		case best < 0 && set != nil:
			t.Fatalf("conflicts %b: found %v, want none", minimal, set)
		case best >= 0 && (!slices.Equal(set, members(best)) || !smallest):
			t.Fatalf("conflicts %b: found %v, want %v", minimal, set, members(best))
		}
	}
}

func members(mask int) []int {
	var out []int
	for i := 0; mask>>i > 0; i++ {
		if mask>>i&1 == 1 {
			out = append(out, i)
		}
	}
	return out
}

// conflicts poses inputs whose limits contradict each other, on a machine of two cores.
func conflicts(t *testing.T) map[string]struct {
	in   solver.Input
	want []string // keys
} {
	t.Helper()
	model, soc := demo(t), twoCores(t, 1)
	both := costs(t, soc, model, op.A32W32, op.A8TQ8C)
	small := func(change func(*workload.Workload)) *workload.Workload {
		work := workload.Default()
		work.Buckets, work.Context = []int{16}, 128
		change(work)
		return work
	}
	int8s := twoCores(t, 1)
	for i := range int8s.Processors {
		int8s.Processors[i].Schemes = []op.Scheme{op.A8TQ8C}
		int8s.Processors[i].Layouts = map[string]string{"q8c": op.TilesLayout}
	}
	address := func(bytes int64) *socs.SoC {
		machine := twoCores(t, 1)
		for i := range machine.Processors {
			if machine.Processors[i].Name == "c1" {
				machine.Processors[i].AddressBytes = bytes
			}
		}
		return machine
	}
	tight := address(1 << 20)
	type c = struct {
		in   solver.Input
		want []string
	}
	return map[string]c{
		"memory": {solver.Input{Model: model, SoC: soc, Costs: both, MaxMemory: 10 << 20,
			Workload: small(func(*workload.Workload) {})}, []string{"--max-memory"}},
		"a region and a choice": {solver.Input{Model: model, SoC: tight, Costs: costs(t, tight, model, op.A32W32),
			Only: []string{"c1"}, Workload: small(func(*workload.Workload) {})},
			[]string{"--only", "c1.address_bytes"}},
		"nothing may be lost in 8 bit": {solver.Input{Model: model, SoC: soc, Costs: both,
			Workload: small(func(work *workload.Workload) {
				work.Quality.MaxKL = workload.KLLimit{Prefill: workload.Lossless, Decode: workload.Lossless}
				work.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A8TQ8C}, Decode: []op.Scheme{op.A8TQ8C}}
			})}, []string{"quality.max_kl", "schemes.prefill"}},
		"processors of 8 bit": {solver.Input{Model: model, SoC: int8s, Costs: costs(t, int8s, model, op.A8TQ8C),
			Workload: small(func(w *workload.Workload) {
				w.Quality.MaxKL = workload.KLLimit{Prefill: workload.Lossless, Decode: workload.Lossless}
			})}, []string{"quality.max_kl", "processors.schemes"}},
		"processors of 8 bit, nothing permitted": {solver.Input{Model: model, SoC: int8s,
			Costs: costs(t, int8s, model, op.A8TQ8C), Workload: small(func(*workload.Workload) {})},
			[]string{"schemes.prefill", "processors.schemes"}},
	}
}

// A search for a conflict tells where it stands, also from within the solves that it makes.
func TestConflictTellsProgress(t *testing.T) {
	require.Slow(t)
	in := conflicts(t)["nothing may be lost in 8 bit"].in
	in.Engine = exact.Engine{}
	_, reason := solver.Solve(context.Background(), in)
	var phases []string
	in.Progress = func(p solver.Progress) { phases = append(phases, p.Phase) }
	if _, err := findConflict(context.Background(), in, reason); err != nil {
		t.Fatal(err)
	}
	if len(phases) == 0 || phases[0] != conflictPhase {
		t.Fatalf("begins with %.3q, want %q", phases, conflictPhase)
	}
	values := slices.Index(phases, nearestPhase)
	if values < 0 {
		t.Fatalf("phases %.20q, want %q among them", phases, nearestPhase)
	}
	for what, list := range map[string][]string{conflictPhase: phases[:values], nearestPhase: phases[values:]} {
		inner := 0
		for _, phase := range list {
			if !strings.HasPrefix(phase, what) {
				t.Errorf("while it looks for %s: %q", what, phase)
			}
			if strings.Contains(phase, ", solve ") {
				inner++
			}
		}
		if inner == 0 {
			t.Errorf("while it looks for %s no solve tells where it stands: %.20q", what, list)
		}
	}
}

// The limits named are a smallest set in conflict, as solving under every subset of them shows; of every limit in it
// the value named has a plan.
func TestConflicts(t *testing.T) {
	require.Slow(t)
	for name, test := range conflicts(t) {
		t.Run(name, func(t *testing.T) {
			if name != "nothing may be lost in 8 bit" && os.Getenv("HETC_LONG") == "" {
				t.Skip("takes minutes: HETC_LONG=1 runs it")
			}
			test.in.Engine = exact.Engine{}
			ctx := context.Background()
			_, err := solver.Solve(ctx, test.in)
			if diag.ClassOf(err) != diag.ClassInfeasible {
				t.Fatalf("solve: %v, want no plan", err)
			}
			found, err := findConflict(ctx, test.in, err)
			if err != nil || found == nil || !found.Smallest {
				t.Fatalf("found %+v, %v", found, err)
			}
			var keys []string
			for _, l := range found.Limits {
				keys = append(keys, l.Key)
			}
			if !slices.Equal(keys, test.want) {
				t.Fatalf("limits %q, want %q", keys, test.want)
			}
			tr := newTrial(test.in, limitsOf(&test.in))
			n, least := len(tr.limits), 99
			for mask := range 1 << n {
				holds := make([]bool, n)
				for i := range holds {
					holds[i] = mask>>i&1 == 1
				}
				a, err := tr.holding(ctx, holds)
				if err != nil {
					t.Fatal(err)
				}
				if yes, known := a.feasible(); !yes && known {
					least = min(least, bits.OnesCount(uint(mask)))
				}
			}
			if least != len(keys) {
				t.Errorf("%d limits are in conflict, and %d suffice", len(keys), least)
			}
			e := Diagnose(ctx, test.in, found.Reason)
			if diag.ClassOf(e) != diag.ClassInfeasible {
				t.Errorf("class of %v", e)
			}
			for _, k := range keys {
				if !strings.Contains(e.Error(), k) {
					t.Errorf("%q lacks %q", e, k)
				}
			}
			for _, l := range found.Limits {
				if l.set == nil {
					continue
				}
				v, err := parseNearest(l.Nearest)
				if err != nil {
					t.Fatal(err)
				}
				if a, err := tr.solve(ctx, func(in *solver.Input) { l.set(in, v) }); err != nil || a.result == nil {
					t.Errorf("%s: no plan at the nearest value %s: %v, %v", l.Key, l.Nearest, err, a.err)
				}
			}
		})
	}
}

func parseNearest(text string) (float64, error) {
	b, err := unit.ParseBytes(strings.ReplaceAll(text, " ", ""))
	return float64(b), err
}

// No point is beaten by another, the fastest comes first, and every limit named gives a plan of that energy.
func TestPareto(t *testing.T) {
	if os.Getenv("HETC_LONG") == "" {
		t.Skip("takes minutes: HETC_LONG=1 runs it; the script explain lists points too")
	}
	model, soc := demo(t), twoCores(t, 0.5)
	for i := range soc.Processors {
		soc.Processors[i].PowerW = []float64{4, 1, 5}[i]
	}
	work := workload.Default()
	work.Buckets, work.Context = []int{16}, 128
	in := solver.Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: work,
		Engine: exact.Engine{}}
	list, err := Pareto(context.Background(), in, 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 2 {
		t.Fatalf("%d points, want a choice between a fast and a frugal core", len(list))
	}
	for i, p := range list {
		if i > 0 && (p.ExpectedMS <= list[i-1].ExpectedMS || p.EnergyMJ >= list[i-1].EnergyMJ) {
			t.Errorf("point %d: %.3f ms, %.4f mJ after %.3f ms, %.4f mJ",
				i, p.ExpectedMS, p.EnergyMJ, list[i-1].ExpectedMS, list[i-1].EnergyMJ)
		}
		if p.LimitMJ > 0 && p.EnergyMJ > p.LimitMJ {
			t.Errorf("point %d takes %.4f mJ under a limit of %.4f", i, p.EnergyMJ, p.LimitMJ)
		}
	}
	soc.Processors[0].PowerW = 0
	in.Costs = costs(t, soc, model, op.A32W32)
	if _, err := Pareto(context.Background(), in, 2); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("without power: %v", err)
	}
}

// What is named in place of a limit was solved: with it there is a plan. Without a proof the error does not say that
// there is none.
func TestNamedValuesWork(t *testing.T) {
	require.Slow(t)
	for name, limit := range map[string]func(in *solver.Input, frugal, small *solver.Result){
		"memory": func(in *solver.Input, _, small *solver.Result) { in.MaxMemory = small.Plan.Memory.Total * 9 / 10 },
		"energy": func(in *solver.Input, frugal, _ *solver.Result) {
			in.Workload.Limits.EnergyMJ = 0.9 * frugal.ExpectedNJ / 1e6
		},
		"far too little": func(in *solver.Input, _, _ *solver.Result) { in.MaxMemory = 1 << 20 },
		"energy and address": func(in *solver.Input, frugal, _ *solver.Result) {
			in.Workload.Limits.EnergyMJ = 0.5 * frugal.ExpectedNJ / 1e6
		},
	} {
		seed := uint64(0)
		if strings.Contains(name, "address") {
			seed = 1
		}
		in := limitedCase(t, seed)
		goal := func(m problem.Measure) *solver.Result {
			x := in
			x.Minimise(m)
			return solve(t, x)
		}
		limit(&in, goal(problem.Energy), goal(problem.Memory))
		_, err := solver.Solve(t.Context(), in)
		if diag.ClassOf(err) != diag.ClassInfeasible {
			t.Errorf("%s: %v, want no plan", name, err)
			continue
		}
		c, failed := findConflict(context.Background(), in, err)
		if failed != nil || c == nil {
			t.Errorf("%s: %v: no conflict, %v", name, err, failed)
			continue
		}
		var limits *solver.LimitError
		if known := errors.As(err, &limits); known && limits.Proved != c.Proved && len(c.Limits) == 1 {
			t.Errorf("%s: proved %v, and the error says %v", name, c.Proved, limits.Proved)
		}
		text := c.err().Error()
		if strings.Contains(text, "the least that works") || strings.Contains(text, "no plan satisfies") != c.Proved {
			t.Errorf("%s: proved %v: %q", name, c.Proved, text)
		}
		for i := range c.Limits {
			l := &c.Limits[i]
			if l.Nearest == "" {
				t.Errorf("%s: no value that works for %s", name, l.Key)
				continue
			}
			x := in
			l.set(&x, l.works)
			if _, err := solver.Solve(t.Context(), x); err != nil {
				t.Errorf("%s: %s is said to work for %s: %v", name, l.Nearest, l.Key, err)
			}
		}
	}
}

// Where no value that a workload may give works, that is said without solving for one.
func TestNoValueWorksThatMayBeWritten(t *testing.T) {
	in := limitedCase(t, 0)
	in.Workload.Weights = workload.Weights{Prefill: 1e12, Decode: 1e12}
	in.Workload.Limits.EnergyMJ = workload.MaxLimit
	_, err := solver.Solve(t.Context(), in)
	if diag.ClassOf(err) != diag.ClassInfeasible {
		t.Fatalf("got %v, want no plan", err)
	}
	solves := map[string]bool{} // that look for a value
	in.Progress = func(p solver.Progress) {
		if part := strings.SplitN(p.Phase, ": ", 2); strings.HasPrefix(p.Phase, nearestPhase) && len(part) == 2 {
			solves[part[0]] = true
		}
	}
	found, failed := findConflict(t.Context(), in, err)
	if failed != nil || found == nil || len(found.Limits) != 1 || found.Limits[0].Nearest != "" {
		t.Fatalf("got %+v (%v), want a conflict with one limit and no value", found, failed)
	}
	if len(solves) > 2 {
		t.Errorf("%d solves look for a value, want one without the limit and one for the least: %v", len(solves),
			solves)
	}
}

// What a plan for a device takes of a limit on addressed bytes includes what compiled binaries hold beyond their
// weights, as it does where solve compares it with the limit; and opening the graphs takes the time of each.
func TestLimitsCountCompiledBinaries(t *testing.T) {
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	model, err := models.Open("tinyllama-1.1b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	facts, err := record.Open("../../testdata/facts/snapdragon-8gen3-2048.jsonl")
	if err != nil {
		t.Fatal(err)
	}

	work := workload.Default()
	work.Buckets = []int{128, 256}
	work.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A16SQ8C}, Decode: []op.Scheme{op.A16SQ8C}}
	work.Limits.AddressBytes = map[string]unit.Bytes{"npu": 64 << 30}
	work.Limits.OpenMS = 1e6
	in := solver.Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32, op.A16SQ8C),
		Workload: work, Calibration: ranges(t, model), Only: []string{"npu"}, Facts: facts, Engine: exact.Engine{}}
	if err := in.ForTarget(); err != nil {
		t.Fatal(err)
	}
	result := solve(t, in)

	var beyond int64
	for _, compiled := range result.Plan.Compiled {
		beyond += int64(compiled.Copies) * (compiled.ChargedBytes - op.WeightBytes("q8c", 2048, 2048))
	}
	plain := check.Load(result.Plan, soc.Processor("npu"))
	opened := 0.0
	for _, graph := range result.Plan.Program.Graphs {
		opened += soc.Processor(graph.Proc).CompileMS
	}
	want := map[string]float64{"npu.address_bytes": float64(plain.Bytes + beyond), workload.KeyOpen: opened,
		workload.KeyAddress + "npu": float64(plain.Bytes + beyond)}
	if beyond <= 0 || opened <= 0 {
		t.Fatalf("%d bytes beyond the weights, %v ms to open, want more", beyond, opened)
	}
	for _, limit := range limitsOf(&in) {
		if most, ok := want[limit.Key]; ok {
			if got := limit.used(&in, result); math.Abs(got/most-1) > 1e-3 {
				t.Errorf("%s: %v of it are taken, want %v", limit.Key, got, most)
			}
			delete(want, limit.Key)
		}
	}
	if len(want) > 0 {
		t.Errorf("no limits %v", want)
	}
}

// ranges is a calibration that knows the ranges of a model's activations.
func ranges(t *testing.T, model *models.Model) *calibration.Calibration {
	t.Helper()
	digest, err := model.Digest()
	if err != nil {
		t.Fatal(err)
	}
	out := &calibration.Calibration{Schema: calibration.Schema,
		Model: calibration.Model{Name: model.Name, Digest: digest}}
	for _, section := range model.Graph().Sections {
		for _, node := range section.Nodes {
			if !node.Ops[0].HasScheme() {
				continue
			}
			for layer := range max(1, section.Layers) {
				out.Activations = append(out.Activations, calibration.Activation{Class: section.Name + "." + node.Name,
					Layer: section.First + layer, K: node.Ops[0].K, AbsMax: make([]float32, node.Ops[0].K),
					OutMax: make([]float32, node.Ops[0].N)})
			}
		}
	}
	return out
}
