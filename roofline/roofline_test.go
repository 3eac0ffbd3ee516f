package roofline

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/capability"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
)

func openSoC(t testing.TB, name string) *socs.SoC {
	t.Helper()
	soc, err := socs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	return soc
}

// header is that of a simulated record of s.
func header(t testing.TB, soc *socs.SoC) record.Header {
	t.Helper()
	d, err := soc.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return record.Header{Schema: record.Schema, SoC: soc.Name, SoCDigest: d, Simulated: true, Hetc: "test"}
}

// noise draws samples around a time.
type noise struct {
	rng *rand.Rand
	cv  float64
	n   int
}

func (n noise) samples(ns float64) []float64 {
	if n.cv == 0 {
		return []float64{ns}
	}
	out := make([]float64, n.n)
	for i := range out {
		out[i] = ns * math.Exp(n.cv*n.rng.NormFloat64())
	}
	return out
}

func add(t testing.TB, set *record.Set, measured record.Measurement) {
	t.Helper()
	measured.Unit, measured.Loops, measured.Simulated = "ns", 1, set.Header.Simulated
	if err := set.Add(&measured); err != nil {
		t.Fatal(err)
	}
}

func matmul(m, k, n int, scheme op.Scheme) op.Op {
	return op.Op{Kind: op.MatMul, M: m, K: k, N: n, Scheme: scheme}
}

// shapes are the weights of llama-3-8b.
var shapes = [][2]int{{4096, 6144}, {4096, 4096}, {4096, 28672}, {14336, 4096}}

var powers = []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}

// simulated measures every shape at every m on a processor, exactly as the simulation says.
func simulated(t testing.TB, soc *socs.SoC, proc string, scheme op.Scheme, ms []int, n noise) *record.Set {
	t.Helper()
	set := record.NewSet(header(t, soc))
	for _, w := range shapes {
		for _, m := range ms {
			operator := matmul(m, w[0], w[1], scheme)
			x, err := sim.NS(soc, proc, operator)
			if err != nil {
				t.Fatal(err)
			}
			add(t, set, record.Measurement{Kind: record.Op, Proc: proc, Op: &operator, Layout: "n32",
				Samples: n.samples(float64(x))})
		}
	}
	return set
}

// truth holds out random M of the sampled shapes, at least 5 % from every sampled M.
func truth(t testing.TB, soc *socs.SoC, proc string, scheme op.Scheme, ms []int, count int) *record.Set {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 7))
	set := record.NewSet(header(t, soc))
	for set.Len() < count {
		w := shapes[rng.IntN(len(shapes))]
		m := 1 + rng.IntN(512)
		near := false
		for _, x := range ms {
			near = near || math.Abs(float64(m)/float64(x)-1) < 0.05
		}
		operator := matmul(m, w[0], w[1], scheme)
		x, err := sim.NS(soc, proc, operator)
		if err != nil {
			t.Fatal(err)
		}
		measured := record.Measurement{Kind: record.Op, Proc: proc, Op: &operator, Layout: "n32",
			Samples: []float64{float64(x)}, Simulated: true, Unit: "ns", Loops: 1}
		if near || set.Has(measured.Key()) {
			continue
		}
		add(t, set, measured)
	}
	return set
}

func report(t *testing.T, name string, quality Quality) {
	t.Helper()
	var text strings.Builder
	for _, m := range quality.Misses[:min(3, len(quality.Misses))] {
		text.WriteString("\n    " + m.Key + " " + string(m.Predicted.Source))
		text.WriteString(" error " + percent(m.Error))
	}
	t.Logf("%-40s n %d, within 10 %%: %s, 15 %%: %s, MAPE %s, covered %s%s", name, quality.N, percent(quality.Within10),
		percent(quality.Within15), percent(quality.MAPE), percent(quality.Covered), text.String())
}

func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 2, 64) + " %" }

// Known processors, without noise: the steps are recovered and everything between samples is met.
func TestSimulatedTruth(t *testing.T) {
	require.Slow(t)
	for _, name := range socs.Catalog() {
		soc := openSoC(t, name)
		for i := range soc.Processors {
			proc := &soc.Processors[i]
			for _, scheme := range proc.Schemes {
				costs, err := Fit(soc, simulated(t, soc, proc.Name, scheme, powers, noise{}))
				if err != nil {
					t.Fatal(err)
				}
				quality, err := Evaluate(costs, truth(t, soc, proc.Name, scheme, powers, 200))
				if err != nil {
					t.Fatal(err)
				}
				report(t, name+" "+proc.Name+" "+string(scheme), quality)
				if quality.MAPE > 0.01 || quality.Within10 < 1 {
					t.Errorf("MAPE %s, within 10 %%: %s", percent(quality.MAPE), percent(quality.Within10))
				}
				if got, want := costs.Families[0].Step[0], max(proc.Sim.Schemes[scheme].Step.M, 1); got != want {
					t.Errorf("step of M is %d, want %d", got, want)
				}
				if !costs.Simulated {
					t.Error("costs from a simulated record are not marked")
				}
			}
		}
	}
}

// Steps that the SoC does not state are found from samples on both sides of them.
func TestUnknownSteps(t *testing.T) {
	for _, step := range []int{8, 16, 24, 32, 48, 64, 128} {
		soc := openSoC(t, "snapdragon-8gen3")
		proc := soc.Processor("npu")
		proc.Tile = capability.Tile{}
		x := proc.Sim.Schemes[op.A8TQ4B32]
		x.Step, x.Forms = capability.Tile{M: step}, nil // rates of the order whose price is the step alone
		proc.Sim.Schemes[op.A8TQ4B32] = x
		ms := slices.Concat(powers, []int{2 * step, 2*step + 1, 4 * step, 4*step + 1, 5 * step, 5*step + 1})
		slices.Sort(ms)
		ms = slices.Compact(ms)
		costs, err := Fit(soc, simulated(t, soc, "npu", op.A8TQ4B32, ms, noise{}))
		if err != nil {
			t.Fatal(err)
		}
		if got := costs.Families[0].Step[0]; got != step {
			t.Errorf("step %d is taken for %d", step, got)
		}
		quality, err := Evaluate(costs, truth(t, soc, "npu", op.A8TQ4B32, ms, 200))
		if err != nil {
			t.Fatal(err)
		}
		if quality.MAPE > 0.01 {
			t.Errorf("step %d: MAPE %s", step, percent(quality.MAPE))
		}
	}
}

// With 2 % noise and ten samples each, 95 % of what was not measured is within 10 %.
func TestNoise(t *testing.T) {
	require.Slow(t)
	soc := openSoC(t, "snapdragon-8gen3")
	for _, proc := range []string{"cpu", "gpu", "npu"} {
		for _, scheme := range soc.Processor(proc).Schemes {
			n := noise{rng: rand.New(rand.NewPCG(3, 4)), cv: 0.02, n: 10}
			costs, err := Fit(soc, simulated(t, soc, proc, scheme, powers, n))
			if err != nil {
				t.Fatal(err)
			}
			quality, err := Evaluate(costs, truth(t, soc, proc, scheme, powers, 200))
			if err != nil {
				t.Fatal(err)
			}
			report(t, proc+" "+string(scheme)+", 2 % noise", quality)
			if quality.Within10 < 0.95 || quality.Covered < 0.75 {
				t.Errorf("%s %s: within 10 %%: %s, covered %s", proc, scheme, percent(quality.Within10),
					percent(quality.Covered))
			}
			if got, want := costs.Families[0].Step[0],
				max(soc.Processor(proc).Sim.Schemes[scheme].Step.M, 1); got != want {
				t.Errorf("%s %s: step of M is %d, want %d", proc, scheme, got, want)
			}
		}
	}
}

// Column shards of a measured weight follow from a few measured shards.
func TestShards(t *testing.T) {
	soc := openSoC(t, "snapdragon-8gen3")
	for _, proc := range []string{"cpu", "gpu", "npu"} {
		set, held := record.NewSet(header(t, soc)), record.NewSet(header(t, soc))
		for _, m := range []int{1, 16, 128, 256} {
			for n := 512; n <= 4096; n += 512 {
				operator := matmul(m, 4096, n, op.A8TQ4B32)
				x, err := sim.NS(soc, proc, operator)
				if err != nil {
					t.Fatal(err)
				}
				to := held
				if n == 512 || n == 1024 || n == 2048 || n == 4096 {
					to = set
				}
				add(t, to, record.Measurement{Kind: record.Op, Proc: proc, Op: &operator,
					Samples: []float64{float64(x)}})
			}
		}
		costs, err := Fit(soc, set)
		if err != nil {
			t.Fatal(err)
		}
		quality, err := Evaluate(costs, held)
		if err != nil {
			t.Fatal(err)
		}
		report(t, proc+" shards", quality)
		if quality.MAPE > 0.01 {
			t.Errorf("%s: MAPE %s", proc, percent(quality.MAPE))
		}
	}
}

// beside is the exact time of an operator while another processor repeats one that reads at the given rate.
func beside(t testing.TB, soc *socs.SoC, proc string, operator op.Op, other string, p op.Op) float64 {
	t.Helper()
	x, err := sim.Beside(soc, sim.Company{Proc: proc, Op: operator}, sim.Company{Proc: other, Op: p})
	if err != nil {
		t.Fatal(err)
	}
	return float64(x)
}

var gpuAndNPU = []string{"gpu", "npu"}

// full is a record with everything a profile of a laptop would hold.
func full(t testing.TB, soc *socs.SoC) *record.Set {
	t.Helper()
	set := record.NewSet(header(t, soc))
	put := func(measured record.Measurement, ns float64) {
		measured.Samples = []float64{ns}
		add(t, set, measured)
	}
	exact := func(proc string, o op.Op) float64 {
		x, err := sim.NS(soc, proc, o)
		if err != nil {
			t.Fatal(err)
		}
		return float64(x)
	}
	joint, _ := soc.JointGBps(gpuAndNPU...)
	for i, proc := range gpuAndNPU {
		p, other := soc.Processor(proc), gpuAndNPU[1-i]
		put(record.Measurement{Kind: record.Bandwidth, Proc: proc, Bytes: 1 << 28}, (1<<28)/p.BandwidthGBps)
		share := p.BandwidthGBps / (p.BandwidthGBps + soc.Processor(other).BandwidthGBps) * joint
		put(record.Measurement{Kind: record.Bandwidth, Proc: proc, Bytes: 1 << 28,
			Concurrent: []record.Partner{{Proc: other}}}, (1<<28)/share)
		put(record.Measurement{Kind: record.Launch, Proc: proc, Op: &op.Op{Kind: op.Add, M: 1, N: 32}}, 1e3*p.LaunchUS)
		put(record.Measurement{Kind: record.Sync, Proc: proc, To: other}, 5000)
		for _, bytes := range []int64{1 << 12, 1 << 20, 1 << 24} {
			put(record.Measurement{Kind: record.Copy, Proc: proc, To: other, Bytes: bytes}, 2000+float64(bytes)/20)
		}
		for _, w := range shapes {
			for _, m := range powers {
				o := matmul(m, w[0], w[1], op.A8TQ8C)
				put(record.Measurement{Kind: record.Op, Proc: proc, Op: &o, Layout: "n32"}, exact(proc, o))
			}
			for _, m := range []int{1, 256} {
				o := matmul(m, w[0], w[1], op.A8TQ8C)
				put(record.Measurement{Kind: record.Op, Proc: proc, Op: &o, Layout: "n32",
					Concurrent: []record.Partner{{Proc: other, Op: &o, Layout: "n32"}}},
					beside(t, soc, proc, o, other, o))
			}
			operator := matmul(1, w[0], w[1], op.A8TQ8C)
			bytes := op.WeightBytes("q8c", w[0], w[1])
			put(record.Measurement{Kind: record.Load, Proc: proc, Op: &operator, Bytes: bytes}, 1e6+float64(bytes))
		}
		for _, o := range []op.Op{
			{Kind: op.Norm, M: 64, N: 4096}, {Kind: op.Norm, M: 256, N: 4096}, {Kind: op.Add, M: 256, N: 4096},
		} {
			put(record.Measurement{Kind: record.Op, Proc: proc, Op: &o}, exact(proc, o))
		}
	}
	return set
}

func fitFull(t testing.TB) (*socs.SoC, *Costs) {
	t.Helper()
	soc := openSoC(t, "core-ultra-5-125h")
	costs, err := Fit(soc, full(t, soc))
	if err != nil {
		t.Fatal(err)
	}
	return soc, costs
}

func TestConcurrent(t *testing.T) {
	soc, costs := fitFull(t)
	gemv, gemm := matmul(1, 4096, 28672, op.A8TQ8C), matmul(256, 4096, 4096, op.A8TQ8C)
	for _, test := range []struct {
		name      string
		a, b      op.Op
		tolerance float64
		rests     source.Source
	}{
		{"measured pair", gemv, gemv, 1e-4, source.Measured},
		{"shards of it", matmul(1, 4096, 16384, op.A8TQ8C), matmul(1, 4096, 12288, op.A8TQ8C), 0.1,
			source.Interpolated},
		{"compute-bound", gemm, gemm, 0.01, source.Measured},
		{"one of each", gemv, matmul(512, 4096, 28672, op.A8TQ8C), 0.1, source.Interpolated},
	} {
		f, rests, err := costs.Concurrent(Load{Proc: "gpu", Op: test.a}, Load{Proc: "npu", Op: test.b})
		if err != nil {
			t.Fatal(err)
		}
		if rests != test.rests {
			t.Errorf("%s: slowdowns are %s, want %s", test.name, rests, test.rests)
		}
		exact, err := sim.Together(soc, sim.Company{Proc: "gpu", Op: test.a}, sim.Company{Proc: "npu", Op: test.b})
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range []op.Op{test.a, test.b} {
			alone, err := sim.NS(soc, gpuAndNPU[i], o)
			if err != nil {
				t.Fatal(err)
			}
			want := float64(exact[i]) / float64(alone)
			t.Logf("%s on %s: factor %.3f, exactly %.3f", test.name, gpuAndNPU[i], f[i], want)
			if math.Abs(f[i]/want-1) > test.tolerance {
				t.Errorf("%s on %s: factor %.3f, want %.3f", test.name, gpuAndNPU[i], f[i], want)
			}
		}
	}
	if f, _, err := costs.Concurrent(Load{Proc: "gpu", Op: gemv}); err != nil || f[0] != 1 {
		t.Errorf("alone: %v %v", f, err)
	}
	if _, _, err := costs.Concurrent(Load{Proc: "gpu", Op: gemv}, Load{Proc: "gpu", Op: gemm}); err == nil {
		t.Error("two operators ran on one processor at once")
	}
	if _, _, err := costs.Concurrent(Load{Proc: "dsp", Op: gemv}, Load{Proc: "gpu", Op: gemm}); err == nil {
		t.Error("an unknown processor was predicted")
	}
}

func TestWholeMachine(t *testing.T) {
	_, costs := fitFull(t)
	if p, ok := costs.Sync("npu", "gpu"); !ok || p.NS != 5000 || p.Source != source.Measured {
		t.Errorf("measured hand-over: %+v %v", p, ok)
	}
	if p, ok := costs.Sync("cpu", "gpu"); !ok || p.NS != 20000 || p.Source != source.Described {
		t.Errorf("described hand-over: %+v %v", p, ok)
	}
	if p, ok := costs.Sync("gpu", "gpu"); !ok || p.NS != 0 {
		t.Errorf("staying: %+v %v", p, ok)
	}
	if _, ok := costs.Sync("gpu", "dsp"); ok {
		t.Error("hand-over to an unknown processor")
	}
	if p, err := costs.Launch("npu"); err != nil || p.NS != 100000 || p.Source != source.Measured {
		t.Errorf("launch: %+v %v", p, err)
	}
	if p, err := costs.Launch("cpu"); err != nil || p.NS != 1000 || p.Source != source.Described {
		t.Errorf("described launch: %+v %v", p, err)
	}
	if _, err := costs.Launch("dsp"); err == nil {
		t.Error("launch on an unknown processor")
	}
	for bytes, want := range map[int64]float64{
		1 << 20: 2000 + (1<<20)/20, 1 << 22: 2000 + (1<<22)/20, 1 << 26: 2000 + (1<<26)/20, 1: 2000,
	} {
		predicted, ok := costs.Copy("gpu", "npu", bytes)
		if !ok || math.Abs(float64(predicted.NS)/want-1) > 0.01 {
			t.Errorf("copy of %d bytes: %+v %v, want %.0f", bytes, predicted, ok, want)
		}
	}
	if _, ok := costs.Copy("cpu", "npu", 1); ok {
		t.Error("copy between processors that share memory")
	}
	if gpu := costs.look().processors["gpu"]; math.Abs((gpu.LoadNS+10*gpu.LoadNSPerMB)/11e6-1) > 0.01 {
		t.Errorf("loading takes %v ns and %v ns per MB, want 11 ms for 10 MB", gpu.LoadNS, gpu.LoadNSPerMB)
	}
	for _, x := range costs.Sharing {
		if slices.Equal(x.Procs, []string{"gpu", "npu"}) && (math.Abs(x.BytesPerNS/78-1) > 0.1 ||
			x.Source != source.Measured) {
			t.Errorf("joint bandwidth %v (%s), want about 78", x.BytesPerNS, x.Source)
		}
	}
}

func TestMissingAndInfeasible(t *testing.T) {
	_, costs := fitFull(t)
	for _, test := range []struct {
		proc string
		o    op.Op
		want []string
	}{
		{"gpu", matmul(1, 4096, 4096, op.A8TQ4B32),
			[]string{"matmul in scheme a8t/q4b32 was never measured", "hetc profile"}},
		{"npu", op.Op{Kind: op.GLU, M: 1, N: 64, Interleave: 32, Act: op.SiLU},
			[]string{"operator glu was never measured", "hetc profile"}},
		{"dsp", matmul(1, 4096, 4096, op.A8TQ8C), []string{`no processor "dsp"`, "cpu, gpu, npu"}},
		{"gpu", matmul(0, 4096, 4096, op.A8TQ8C), []string{"m = 0"}},
	} {
		_, err := costs.Op(test.proc, test.o, false)
		if err == nil {
			t.Fatalf("%s on %s was predicted", test.o.Key(), test.proc)
		}
		text := err.Error() + strings.Join(diag.HintsOf(err), " ")
		for _, w := range test.want {
			if !strings.Contains(text, w) {
				t.Errorf("got %q, want %q", text, w)
			}
		}
		if diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("class %d", diag.ClassOf(err))
		}
	}
	operator := matmul(100, 4096, 4096, op.A8TQ8C)
	if _, err := costs.Op("npu", operator, false); err != nil {
		t.Fatal(err)
	}
	costs.exclude("npu", operator, "spills")
	costs.exclude("npu", operator, "spills")
	_, err := costs.Op("npu", operator, false)
	if diag.ClassOf(err) != diag.ClassInfeasible || !strings.Contains(err.Error(), "spills") ||
		len(costs.Infeasible) != 1 {
		t.Errorf("an excluded operator: %v", err)
	}
	for _, m := range []int{99, 101} { // its neighbours stay
		operator.M = m
		if _, err := costs.Op("npu", operator, false); err != nil {
			t.Errorf("M=%d: %v", m, err)
		}
	}
	path := filepath.Join(t.TempDir(), "costs.yaml")
	if err := Write(path, costs); err != nil {
		t.Fatal(err)
	}
	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	operator.M = 100
	if _, err := again.Op("npu", operator, false); diag.ClassOf(err) != diag.ClassInfeasible {
		t.Errorf("after writing and reading: %v", err)
	}
}

// What was measured with scales of rows answers for static ones, alone and beside others, and the other way round; what
// is infeasible for one of them is for the other.
func TestTwins(t *testing.T) {
	_, costs := fitFull(t)
	for _, proc := range []string{"gpu", "npu"} {
		operator := matmul(100, 4096, 4096, op.A8TQ8C)
		want, err := costs.Op(proc, operator, false)
		if err != nil {
			t.Fatal(err)
		}
		operator.Scheme = op.A8SQ8C
		if got, err := costs.Op(proc, operator, false); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", proc, got, err, want)
		}
	}
	loads := func(s op.Scheme) []Load {
		return []Load{{"gpu", matmul(100, 4096, 2048, s), false}, {"npu", matmul(100, 4096, 2048, s), false}}
	}
	want, _, err := costs.Concurrent(loads(op.A8TQ8C)...)
	if err != nil {
		t.Fatal(err)
	}
	static := loads(op.A8SQ8C)
	if got, _, err := costs.Concurrent(static...); err != nil || !slices.Equal(got, want) ||
		static[0].Op.Scheme != op.A8SQ8C {
		t.Errorf("together %v, %v, want %v", got, err, want)
	}
	o := matmul(100, 4096, 4096, op.A8TQ8C)
	costs.exclude("npu", o, "spills")
	o.Scheme = op.A8SQ8C
	if _, err := costs.Op("npu", o, false); diag.ClassOf(err) != diag.ClassInfeasible {
		t.Errorf("the twin of an excluded operator: %v", err)
	}
	for i := range costs.Families { // as if the others had been measured
		if f := &costs.Families[i]; f.Scheme == op.A8TQ8C {
			f.Scheme = op.A8SQ8C
		}
	}
	path := filepath.Join(t.TempDir(), "costs.yaml")
	if err := Write(path, costs); err != nil {
		t.Fatal(err)
	}
	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []op.Scheme{op.A8TQ8C, op.A8SQ8C} {
		if _, err := again.Op("npu", matmul(99, 4096, 4096, s), false); err != nil {
			t.Error(err)
		}
	}
}

// Cold and warm answer for each other only where one of them has no samples around M.
func TestColdAndWarm(t *testing.T) {
	soc := openSoC(t, "snapdragon-8gen3")
	set := record.NewSet(header(t, soc))
	put := func(m int, cold bool, ns float64) {
		o := matmul(m, 4096, 4096, op.A8TQ8C)
		add(t, set, record.Measurement{Kind: record.Op, Proc: "cpu", Op: &o, Cold: cold, Samples: []float64{ns}})
	}
	put(1, true, 400e3)
	put(2, true, 410e3)
	for _, m := range []int{1, 4, 16, 64, 256} {
		put(m, false, 100e3*float64(m))
	}
	costs, err := Fit(soc, set)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		m    int
		cold bool
		want int64
	}{{1, true, 400e3}, {1, false, 100e3}, {256, true, 25600e3}, {2, false, 200e3}, {2, true, 410e3}} {
		predicted, err := costs.Op("cpu", matmul(test.m, 4096, 4096, op.A8TQ8C), test.cold)
		if err != nil || math.Abs(float64(predicted.NS)/float64(test.want)-1) > 0.02 {
			t.Errorf("M=%d cold=%v: %+v %v, want %d", test.m, test.cold, predicted, err, test.want)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	soc, costs := fitFull(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "costs.yaml")
	if err := Write(path, costs); err != nil {
		t.Fatal(err)
	}
	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Fit(soc, full(t, soc))
	if err != nil {
		t.Fatal(err)
	}
	want, _ := costs.Digest()
	for name, x := range map[string]*Costs{"read back": again, "fitted again": second} {
		if got, _ := x.Digest(); got != want {
			t.Errorf("%s: digest %s, want %s", name, got, want)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		operator := matmul(1+rng.IntN(600), 32*(1+rng.IntN(400)), 32*(1+rng.IntN(400)), op.A8TQ8C)
		predicted, err := costs.Op("npu", operator, rng.IntN(2) == 0)
		q, err2 := again.Op("npu", operator, rng.IntN(2) == 0)
		if err != nil || err2 != nil || predicted != q {
			t.Fatalf("%s: %+v and %+v (%v, %v)", operator.Key(), predicted, q, err, err2)
		}
	}
	// Writing again gives the same bytes; a failed write leaves the old file.
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	costs.Families[0].SetupNS = math.NaN()
	if err := Write(path, costs); err == nil {
		t.Error("NaN was written")
	}
	if err := Write(path, again); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); string(b) != string(first) {
		t.Error("written differently the second time")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("temporary files left: %v", left)
	}
}

func TestFitRefuses(t *testing.T) {
	soc := openSoC(t, "core-ultra-5-125h")
	other := openSoC(t, "apple-m2-ultra")
	if _, err := Fit(other, full(t, soc)); diag.ClassOf(err) != diag.ClassInput ||
		!strings.Contains(err.Error(), "core-ultra-5-125h") {
		t.Errorf("a record of another SoC: %v", err)
	}
	if _, err := Fit(soc, record.NewSet(header(t, soc))); err == nil || len(diag.HintsOf(err)) == 0 {
		t.Errorf("an empty record: %v", err)
	}
	set := record.NewSet(header(t, soc))
	operator := matmul(1, 32, 32, op.A8TQ8C)
	add(t, set, record.Measurement{Kind: record.Op, Proc: "dsp", Op: &operator, Samples: []float64{1}})
	if _, err := Fit(soc, set); err == nil || !strings.Contains(err.Error(), `"dsp"`) {
		t.Errorf("an unknown processor: %v", err)
	}
	for want, add := range map[string]func(set *record.Set){
		"takes 1e+16 ns, want at most 9007199254740992 (104 days)": func(set *record.Set) {
			add(t, set, record.Measurement{Kind: record.Op, Proc: "cpu", Op: &operator, Samples: []float64{1e16}})
		},
		// of which the mean is infinite
		"takes +Inf ns": func(set *record.Set) {
			add(t, set, record.Measurement{Kind: record.Op, Proc: "cpu", Op: &operator,
				Samples: []float64{1.7e308, 1.7e308}})
		},
		"bytes_per_ns is 1.07374e+18, want a number above 0, at most 1e+09": func(set *record.Set) {
			add(t, set, record.Measurement{Kind: record.Op, Proc: "cpu", Op: &operator, Samples: []float64{1}})
			add(t, set, record.Measurement{Kind: record.Bandwidth, Proc: "cpu", Bytes: 1 << 30,
				Samples: []float64{1e-9}})
		},
	} {
		set := record.NewSet(header(t, soc))
		add(set)
		if _, err := Fit(soc, set); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := CrossValidate(soc, full(t, soc), 1, new(Costs)); err == nil {
		t.Error("one fold")
	}
}

// What is held out changes nothing but the digest of the record.
func TestHeldOutIsNotFitted(t *testing.T) {
	soc := openSoC(t, "core-ultra-5-125h")
	set := full(t, soc)
	plain, err := Fit(soc, set)
	if err != nil {
		t.Fatal(err)
	}
	o := matmul(100, 4096, 4096, op.A8TQ8C)
	add(t, set, record.Measurement{Kind: record.Op, Proc: "gpu", Op: &o, Samples: []float64{1}, HeldOut: true})
	again, err := Fit(soc, set)
	if err != nil {
		t.Fatal(err)
	}
	if again.Record == plain.Record {
		t.Error("the digest leaves out what was held out")
	}
	again.Record = plain.Record
	a, _ := plain.Digest()
	if b, _ := again.Digest(); a != b {
		t.Error("a held-out measurement was fitted")
	}
	quality, err := Evaluate(plain, set.HeldOut())
	if err != nil || quality.N != 1 {
		t.Errorf("evaluated %d held-out operators: %v", quality.N, err)
	}
}

func TestCrossValidate(t *testing.T) {
	require.Slow(t)
	soc := openSoC(t, "core-ultra-5-125h")
	set := full(t, soc)
	costs, err := Fit(soc, set)
	if err != nil {
		t.Fatal(err)
	}
	quality, err := CrossValidate(soc, set, 5, costs)
	if err != nil {
		t.Fatal(err)
	}
	report(t, "5 folds, edges included", quality)
	if quality.N < 80 || quality.Within10 < 0.8 {
		t.Errorf("%d operators, within 10 %%: %s", quality.N, percent(quality.Within10))
	}
	again, err := CrossValidate(soc, set, 5, new(Costs)) // knows no family: every fold fits all
	if err != nil || !reflect.DeepEqual(again, quality) {
		t.Errorf("MAPE %v with the families that lack nothing taken over, %v with all fitted again (%v)", quality.MAPE,
			again.MAPE, err)
	}
}

// Whatever was measured, every prediction is a positive time inside its interval, a measured shape comes
// out as measured, and between two samples of a shape the time lies between theirs.
func TestPredictionProperties(t *testing.T) {
	soc := openSoC(t, "snapdragon-8gen3")
	rapid.Check(t, func(rt *rapid.T) {
		set := record.NewSet(header(t, soc))
		times := map[int]map[int]float64{} // by N, M
		n := rapid.IntRange(1, 12).Draw(rt, "samples")
		for range n {
			operator := matmul(rapid.IntRange(1, 600).Draw(rt, "m"), 256, 32*rapid.IntRange(1, 6).Draw(rt, "n"),
				op.A8TQ8C)
			if times[operator.N][operator.M] != 0 {
				continue
			}
			x := math.Round(math.Exp(rapid.Float64Range(0, 25).Draw(rt, "log ns")))
			if times[operator.N] == nil {
				times[operator.N] = map[int]float64{}
			}
			times[operator.N][operator.M] = x
			add(t, set, record.Measurement{Kind: record.Op, Proc: "npu", Op: &operator, Samples: []float64{x}})
		}
		costs, err := Fit(soc, set)
		if err != nil {
			rt.Fatal(err)
		}
		for range 20 {
			operator := matmul(rapid.IntRange(1, 700).Draw(rt, "m"),
				rapid.SampledFrom([]int{256, 64, 5000}).Draw(rt, "k"), 32*rapid.IntRange(1, 8).Draw(rt, "n"), op.A8TQ8C)
			predicted, err := costs.Op("npu", operator, rapid.Bool().Draw(rt, "cold"))
			if err != nil {
				rt.Fatal(err)
			}
			if predicted.NS < 1 || predicted.LowNS < 0 || predicted.LowNS > predicted.NS ||
				predicted.HighNS < predicted.NS {
				rt.Fatalf("%s: %+v", operator.Key(), predicted)
			}
			if operator.K != 256 {
				continue
			}
			lo, hi := 0, math.MaxInt
			for m := range times[operator.N] {
				if m <= operator.M {
					lo = max(lo, m)
				}
				if m >= operator.M {
					hi = min(hi, m)
				}
			}
			switch {
			case lo == operator.M:
				if predicted.Source != source.Measured || float64(predicted.NS) != times[operator.N][lo] {
					rt.Fatalf("%s: %+v, measured %v", operator.Key(), predicted, times[operator.N][lo])
				}
			case lo > 0 && hi < math.MaxInt:
				a, b := times[operator.N][lo], times[operator.N][hi]
				if predicted.Source != source.Interpolated {
					rt.Fatalf("%s between M=%d and %d: %+v", operator.Key(), lo, hi, predicted)
				}
				if costs.Families[0].Step[0] == 1 && // else the samples of one step count as one
					(float64(predicted.NS) < math.Floor(min(a, b)) || float64(predicted.NS) > math.Ceil(max(a, b))) {
					rt.Fatalf("%s: %+v, between %v and %v", operator.Key(), predicted, a, b)
				}
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	_, costs := fitFull(f)
	path := filepath.Join(f.TempDir(), "costs.yaml")
	if err := Write(path, costs); err != nil {
		f.Fatal(err)
	}
	seed, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte("schema: hetc.costs/1\nfamilies: [{proc: a, kind: matmul, step: [0,0,0], curves: [{points: " +
		"[[1,2,3,4]]}]}]\nend: true\n"))
	f.Add([]byte(`{"schema":"hetc.costs/1","end":true,"families":[{"proc":"a","kind":"rope","group":-1,"head_dim":1,"setup_ns":1e308,"curves":[{"a":-1,"b":9223372036854775807}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		fitted, err := Parse("fuzz.yaml", data)
		if err != nil {
			return
		}
		for _, family := range fitted.Families {
			for _, k := range family.Curves {
				predicted, err := fitted.Op(family.Proc, family.operator(int(k.Points[0][0]), k.A, k.B), family.Cold)
				if err == nil && (predicted.NS < 1 || predicted.LowNS > predicted.NS ||
					predicted.HighNS < predicted.NS) {
					t.Fatalf("%s: %+v", family.key(), predicted)
				}
			}
		}
	})
}
