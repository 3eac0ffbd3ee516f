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
	s, err := socs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// header is that of a simulated record of s.
func header(t testing.TB, s *socs.SoC) record.Header {
	t.Helper()
	d, err := s.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return record.Header{Schema: record.Schema, SoC: s.Name, SoCDigest: d, Simulated: true, Hetc: "test"}
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

func add(t testing.TB, set *record.Set, m record.Measurement) {
	t.Helper()
	m.Unit, m.Loops, m.Simulated = "ns", 1, set.Header.Simulated
	if err := set.Add(&m); err != nil {
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
func simulated(t testing.TB, s *socs.SoC, proc string, scheme op.Scheme, ms []int, n noise) *record.Set {
	t.Helper()
	set := record.NewSet(header(t, s))
	for _, w := range shapes {
		for _, m := range ms {
			o := matmul(m, w[0], w[1], scheme)
			x, err := sim.NS(s, proc, o)
			if err != nil {
				t.Fatal(err)
			}
			add(t, set, record.Measurement{Kind: record.Op, Proc: proc, Op: &o, Layout: "n32", Samples: n.samples(float64(x))})
		}
	}
	return set
}

// truth holds out random M of the sampled shapes, at least 5 % from every sampled M.
func truth(t testing.TB, s *socs.SoC, proc string, scheme op.Scheme, ms []int, count int) *record.Set {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 7))
	set := record.NewSet(header(t, s))
	for set.Len() < count {
		w := shapes[rng.IntN(len(shapes))]
		m := 1 + rng.IntN(512)
		near := false
		for _, x := range ms {
			near = near || math.Abs(float64(m)/float64(x)-1) < 0.05
		}
		o := matmul(m, w[0], w[1], scheme)
		x, err := sim.NS(s, proc, o)
		if err != nil {
			t.Fatal(err)
		}
		r := record.Measurement{Kind: record.Op, Proc: proc, Op: &o, Layout: "n32", Samples: []float64{float64(x)}, Simulated: true, Unit: "ns", Loops: 1}
		if near || set.Has(r.Key()) {
			continue
		}
		add(t, set, r)
	}
	return set
}

func report(t *testing.T, name string, q Quality) {
	t.Helper()
	var b strings.Builder
	for _, m := range q.Misses[:min(3, len(q.Misses))] {
		b.WriteString("\n    " + m.Key + " " + string(m.Predicted.Source))
		b.WriteString(" error " + percent(m.Error))
	}
	t.Logf("%-40s n %d, within 10 %%: %s, 15 %%: %s, MAPE %s, covered %s%s", name, q.N, percent(q.Within10), percent(q.Within15), percent(q.MAPE), percent(q.Covered), b.String())
}

func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 2, 64) + " %" }

// Known processors, without noise: the steps are recovered and everything between samples is met.
func TestSimulatedTruth(t *testing.T) {
	require.Slow(t)
	for _, name := range socs.Catalog() {
		s := openSoC(t, name)
		for i := range s.Processors {
			p := &s.Processors[i]
			for _, scheme := range p.Schemes {
				c, err := Fit(s, simulated(t, s, p.Name, scheme, powers, noise{}))
				if err != nil {
					t.Fatal(err)
				}
				q, err := Evaluate(c, truth(t, s, p.Name, scheme, powers, 200))
				if err != nil {
					t.Fatal(err)
				}
				report(t, name+" "+p.Name+" "+string(scheme), q)
				if q.MAPE > 0.01 || q.Within10 < 1 {
					t.Errorf("MAPE %s, within 10 %%: %s", percent(q.MAPE), percent(q.Within10))
				}
				if got, want := c.Families[0].Step[0], max(p.Sim.Schemes[scheme].Step.M, 1); got != want {
					t.Errorf("step of M is %d, want %d", got, want)
				}
				if !c.Simulated {
					t.Error("costs from a simulated record are not marked")
				}
			}
		}
	}
}

// Steps that the SoC does not state are found from samples on both sides of them.
func TestUnknownSteps(t *testing.T) {
	for _, step := range []int{8, 16, 24, 32, 48, 64, 128} {
		s := openSoC(t, "snapdragon-8gen3")
		p := s.Processor("npu")
		p.Tile = capability.Tile{}
		x := p.Sim.Schemes[op.A8TQ4B32]
		x.Step, x.Forms = capability.Tile{M: step}, nil // rates of the order whose price is the step alone
		p.Sim.Schemes[op.A8TQ4B32] = x
		ms := slices.Concat(powers, []int{2 * step, 2*step + 1, 4 * step, 4*step + 1, 5 * step, 5*step + 1})
		slices.Sort(ms)
		ms = slices.Compact(ms)
		c, err := Fit(s, simulated(t, s, "npu", op.A8TQ4B32, ms, noise{}))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Families[0].Step[0]; got != step {
			t.Errorf("step %d is taken for %d", step, got)
		}
		q, err := Evaluate(c, truth(t, s, "npu", op.A8TQ4B32, ms, 200))
		if err != nil {
			t.Fatal(err)
		}
		if q.MAPE > 0.01 {
			t.Errorf("step %d: MAPE %s", step, percent(q.MAPE))
		}
	}
}

// With 2 % noise and ten samples each, 95 % of what was not measured is within 10 %.
func TestNoise(t *testing.T) {
	require.Slow(t)
	s := openSoC(t, "snapdragon-8gen3")
	for _, proc := range []string{"cpu", "gpu", "npu"} {
		for _, scheme := range s.Processor(proc).Schemes {
			n := noise{rng: rand.New(rand.NewPCG(3, 4)), cv: 0.02, n: 10}
			c, err := Fit(s, simulated(t, s, proc, scheme, powers, n))
			if err != nil {
				t.Fatal(err)
			}
			q, err := Evaluate(c, truth(t, s, proc, scheme, powers, 200))
			if err != nil {
				t.Fatal(err)
			}
			report(t, proc+" "+string(scheme)+", 2 % noise", q)
			if q.Within10 < 0.95 || q.Covered < 0.75 {
				t.Errorf("%s %s: within 10 %%: %s, covered %s", proc, scheme, percent(q.Within10), percent(q.Covered))
			}
			if got, want := c.Families[0].Step[0], max(s.Processor(proc).Sim.Schemes[scheme].Step.M, 1); got != want {
				t.Errorf("%s %s: step of M is %d, want %d", proc, scheme, got, want)
			}
		}
	}
}

// Column shards of a measured weight follow from a few measured shards.
func TestShards(t *testing.T) {
	s := openSoC(t, "snapdragon-8gen3")
	for _, proc := range []string{"cpu", "gpu", "npu"} {
		set, held := record.NewSet(header(t, s)), record.NewSet(header(t, s))
		for _, m := range []int{1, 16, 128, 256} {
			for n := 512; n <= 4096; n += 512 {
				o := matmul(m, 4096, n, op.A8TQ4B32)
				x, err := sim.NS(s, proc, o)
				if err != nil {
					t.Fatal(err)
				}
				to := held
				if n == 512 || n == 1024 || n == 2048 || n == 4096 {
					to = set
				}
				add(t, to, record.Measurement{Kind: record.Op, Proc: proc, Op: &o, Samples: []float64{float64(x)}})
			}
		}
		c, err := Fit(s, set)
		if err != nil {
			t.Fatal(err)
		}
		q, err := Evaluate(c, held)
		if err != nil {
			t.Fatal(err)
		}
		report(t, proc+" shards", q)
		if q.MAPE > 0.01 {
			t.Errorf("%s: MAPE %s", proc, percent(q.MAPE))
		}
	}
}

// beside is the exact time of an operator while another processor repeats one that reads at the given rate.
func beside(t testing.TB, s *socs.SoC, proc string, o op.Op, other string, p op.Op) float64 {
	t.Helper()
	x, err := sim.Beside(s, sim.Company{Proc: proc, Op: o}, sim.Company{Proc: other, Op: p})
	if err != nil {
		t.Fatal(err)
	}
	return float64(x)
}

var gpuAndNPU = []string{"gpu", "npu"}

// full is a record with everything a profile of a laptop would hold.
func full(t testing.TB, s *socs.SoC) *record.Set {
	t.Helper()
	set := record.NewSet(header(t, s))
	put := func(m record.Measurement, ns float64) {
		m.Samples = []float64{ns}
		add(t, set, m)
	}
	exact := func(proc string, o op.Op) float64 {
		x, err := sim.NS(s, proc, o)
		if err != nil {
			t.Fatal(err)
		}
		return float64(x)
	}
	joint, _ := s.JointGBps(gpuAndNPU...)
	for i, proc := range gpuAndNPU {
		p, other := s.Processor(proc), gpuAndNPU[1-i]
		put(record.Measurement{Kind: record.Bandwidth, Proc: proc, Bytes: 1 << 28}, (1<<28)/p.BandwidthGBps)
		share := p.BandwidthGBps / (p.BandwidthGBps + s.Processor(other).BandwidthGBps) * joint
		put(record.Measurement{Kind: record.Bandwidth, Proc: proc, Bytes: 1 << 28, Concurrent: []record.Partner{{Proc: other}}}, (1<<28)/share)
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
				put(record.Measurement{Kind: record.Op, Proc: proc, Op: &o, Layout: "n32", Concurrent: []record.Partner{{Proc: other, Op: &o, Layout: "n32"}}}, beside(t, s, proc, o, other, o))
			}
			o := matmul(1, w[0], w[1], op.A8TQ8C)
			bytes := op.WeightBytes("q8c", w[0], w[1])
			put(record.Measurement{Kind: record.Load, Proc: proc, Op: &o, Bytes: bytes}, 1e6+float64(bytes))
		}
		for _, o := range []op.Op{{Kind: op.Norm, M: 64, N: 4096}, {Kind: op.Norm, M: 256, N: 4096}, {Kind: op.Add, M: 256, N: 4096}} {
			put(record.Measurement{Kind: record.Op, Proc: proc, Op: &o}, exact(proc, o))
		}
	}
	return set
}

func fitFull(t testing.TB) (*socs.SoC, *Costs) {
	t.Helper()
	s := openSoC(t, "core-ultra-5-125h")
	c, err := Fit(s, full(t, s))
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

func TestConcurrent(t *testing.T) {
	s, c := fitFull(t)
	gemv, gemm := matmul(1, 4096, 28672, op.A8TQ8C), matmul(256, 4096, 4096, op.A8TQ8C)
	for _, x := range []struct {
		name      string
		a, b      op.Op
		tolerance float64
		rests     source.Source
	}{
		{"measured pair", gemv, gemv, 1e-4, source.Measured},
		{"shards of it", matmul(1, 4096, 16384, op.A8TQ8C), matmul(1, 4096, 12288, op.A8TQ8C), 0.1, source.Interpolated},
		{"compute-bound", gemm, gemm, 0.01, source.Measured},
		{"one of each", gemv, matmul(512, 4096, 28672, op.A8TQ8C), 0.1, source.Interpolated},
	} {
		f, rests, err := c.Concurrent(Load{Proc: "gpu", Op: x.a}, Load{Proc: "npu", Op: x.b})
		if err != nil {
			t.Fatal(err)
		}
		if rests != x.rests {
			t.Errorf("%s: slowdowns are %s, want %s", x.name, rests, x.rests)
		}
		exact, err := sim.Together(s, sim.Company{Proc: "gpu", Op: x.a}, sim.Company{Proc: "npu", Op: x.b})
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range []op.Op{x.a, x.b} {
			alone, err := sim.NS(s, gpuAndNPU[i], o)
			if err != nil {
				t.Fatal(err)
			}
			want := float64(exact[i]) / float64(alone)
			t.Logf("%s on %s: factor %.3f, exactly %.3f", x.name, gpuAndNPU[i], f[i], want)
			if math.Abs(f[i]/want-1) > x.tolerance {
				t.Errorf("%s on %s: factor %.3f, want %.3f", x.name, gpuAndNPU[i], f[i], want)
			}
		}
	}
	if f, _, err := c.Concurrent(Load{Proc: "gpu", Op: gemv}); err != nil || f[0] != 1 {
		t.Errorf("alone: %v %v", f, err)
	}
	if _, _, err := c.Concurrent(Load{Proc: "gpu", Op: gemv}, Load{Proc: "gpu", Op: gemm}); err == nil {
		t.Error("two operators ran on one processor at once")
	}
	if _, _, err := c.Concurrent(Load{Proc: "dsp", Op: gemv}, Load{Proc: "gpu", Op: gemm}); err == nil {
		t.Error("an unknown processor was predicted")
	}
}

func TestWholeMachine(t *testing.T) {
	_, c := fitFull(t)
	if p, ok := c.Sync("npu", "gpu"); !ok || p.NS != 5000 || p.Source != source.Measured {
		t.Errorf("measured hand-over: %+v %v", p, ok)
	}
	if p, ok := c.Sync("cpu", "gpu"); !ok || p.NS != 20000 || p.Source != source.Described {
		t.Errorf("described hand-over: %+v %v", p, ok)
	}
	if p, ok := c.Sync("gpu", "gpu"); !ok || p.NS != 0 {
		t.Errorf("staying: %+v %v", p, ok)
	}
	if _, ok := c.Sync("gpu", "dsp"); ok {
		t.Error("hand-over to an unknown processor")
	}
	if p, err := c.Launch("npu"); err != nil || p.NS != 100000 || p.Source != source.Measured {
		t.Errorf("launch: %+v %v", p, err)
	}
	if p, err := c.Launch("cpu"); err != nil || p.NS != 1000 || p.Source != source.Described {
		t.Errorf("described launch: %+v %v", p, err)
	}
	if _, err := c.Launch("dsp"); err == nil {
		t.Error("launch on an unknown processor")
	}
	for bytes, want := range map[int64]float64{1 << 20: 2000 + (1<<20)/20, 1 << 22: 2000 + (1<<22)/20, 1 << 26: 2000 + (1<<26)/20, 1: 2000} {
		p, ok := c.Copy("gpu", "npu", bytes)
		if !ok || math.Abs(float64(p.NS)/want-1) > 0.01 {
			t.Errorf("copy of %d bytes: %+v %v, want %.0f", bytes, p, ok, want)
		}
	}
	if _, ok := c.Copy("cpu", "npu", 1); ok {
		t.Error("copy between processors that share memory")
	}
	if p := c.load("gpu", 10_000_000); math.Abs(float64(p.NS)/11e6-1) > 0.01 {
		t.Errorf("load of 10 MB: %+v, want 11 ms", p)
	}
	for _, x := range c.Sharing {
		if slices.Equal(x.Procs, []string{"gpu", "npu"}) && (math.Abs(x.BytesPerNS/78-1) > 0.1 || x.Source != source.Measured) {
			t.Errorf("joint bandwidth %v (%s), want about 78", x.BytesPerNS, x.Source)
		}
	}
}

func TestMissingAndInfeasible(t *testing.T) {
	_, c := fitFull(t)
	for _, x := range []struct {
		proc string
		o    op.Op
		want []string
	}{
		{"gpu", matmul(1, 4096, 4096, op.A8TQ4B32), []string{"matmul in scheme a8t/q4b32 was never measured", "hetc profile"}},
		{"npu", op.Op{Kind: op.GLU, M: 1, N: 64, Interleave: 32, Act: op.SiLU}, []string{"operator glu was never measured", "hetc profile"}},
		{"dsp", matmul(1, 4096, 4096, op.A8TQ8C), []string{`no processor "dsp"`, "cpu, gpu, npu"}},
		{"gpu", matmul(0, 4096, 4096, op.A8TQ8C), []string{"m = 0"}},
	} {
		_, err := c.Op(x.proc, x.o, false)
		if err == nil {
			t.Fatalf("%s on %s was predicted", x.o.Key(), x.proc)
		}
		text := err.Error() + strings.Join(diag.HintsOf(err), " ")
		for _, w := range x.want {
			if !strings.Contains(text, w) {
				t.Errorf("got %q, want %q", text, w)
			}
		}
		if diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("class %d", diag.ClassOf(err))
		}
	}
	o := matmul(100, 4096, 4096, op.A8TQ8C)
	if _, err := c.Op("npu", o, false); err != nil {
		t.Fatal(err)
	}
	c.exclude("npu", o, "spills")
	c.exclude("npu", o, "spills")
	_, err := c.Op("npu", o, false)
	if diag.ClassOf(err) != diag.ClassInfeasible || !strings.Contains(err.Error(), "spills") || len(c.Infeasible) != 1 {
		t.Errorf("an excluded operator: %v", err)
	}
	for _, m := range []int{99, 101} { // its neighbours stay
		o.M = m
		if _, err := c.Op("npu", o, false); err != nil {
			t.Errorf("M=%d: %v", m, err)
		}
	}
	path := filepath.Join(t.TempDir(), "costs.yaml")
	if err := Write(path, c); err != nil {
		t.Fatal(err)
	}
	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	o.M = 100
	if _, err := again.Op("npu", o, false); diag.ClassOf(err) != diag.ClassInfeasible {
		t.Errorf("after writing and reading: %v", err)
	}
}

// What was measured with scales of rows answers for static ones, alone and beside others, and the other way round; what
// is infeasible for one of them is for the other.
func TestTwins(t *testing.T) {
	_, c := fitFull(t)
	for _, proc := range []string{"gpu", "npu"} {
		o := matmul(100, 4096, 4096, op.A8TQ8C)
		want, err := c.Op(proc, o, false)
		if err != nil {
			t.Fatal(err)
		}
		o.Scheme = op.A8SQ8C
		if got, err := c.Op(proc, o, false); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", proc, got, err, want)
		}
	}
	loads := func(s op.Scheme) []Load {
		return []Load{{"gpu", matmul(100, 4096, 2048, s), false}, {"npu", matmul(100, 4096, 2048, s), false}}
	}
	want, _, err := c.Concurrent(loads(op.A8TQ8C)...)
	if err != nil {
		t.Fatal(err)
	}
	static := loads(op.A8SQ8C)
	if got, _, err := c.Concurrent(static...); err != nil || !slices.Equal(got, want) || static[0].Op.Scheme != op.A8SQ8C {
		t.Errorf("together %v, %v, want %v", got, err, want)
	}
	o := matmul(100, 4096, 4096, op.A8TQ8C)
	c.exclude("npu", o, "spills")
	o.Scheme = op.A8SQ8C
	if _, err := c.Op("npu", o, false); diag.ClassOf(err) != diag.ClassInfeasible {
		t.Errorf("the twin of an excluded operator: %v", err)
	}
	for i := range c.Families { // as if the others had been measured
		if f := &c.Families[i]; f.Scheme == op.A8TQ8C {
			f.Scheme = op.A8SQ8C
		}
	}
	path := filepath.Join(t.TempDir(), "costs.yaml")
	if err := Write(path, c); err != nil {
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
	s := openSoC(t, "snapdragon-8gen3")
	set := record.NewSet(header(t, s))
	put := func(m int, cold bool, ns float64) {
		o := matmul(m, 4096, 4096, op.A8TQ8C)
		add(t, set, record.Measurement{Kind: record.Op, Proc: "cpu", Op: &o, Cold: cold, Samples: []float64{ns}})
	}
	put(1, true, 400e3)
	put(2, true, 410e3)
	for _, m := range []int{1, 4, 16, 64, 256} {
		put(m, false, 100e3*float64(m))
	}
	c, err := Fit(s, set)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		m    int
		cold bool
		want int64
	}{{1, true, 400e3}, {1, false, 100e3}, {256, true, 25600e3}, {2, false, 200e3}, {2, true, 410e3}} {
		p, err := c.Op("cpu", matmul(x.m, 4096, 4096, op.A8TQ8C), x.cold)
		if err != nil || math.Abs(float64(p.NS)/float64(x.want)-1) > 0.02 {
			t.Errorf("M=%d cold=%v: %+v %v, want %d", x.m, x.cold, p, err, x.want)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	s, c := fitFull(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "costs.yaml")
	if err := Write(path, c); err != nil {
		t.Fatal(err)
	}
	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Fit(s, full(t, s))
	if err != nil {
		t.Fatal(err)
	}
	want, _ := c.Digest()
	for name, x := range map[string]*Costs{"read back": again, "fitted again": second} {
		if got, _ := x.Digest(); got != want {
			t.Errorf("%s: digest %s, want %s", name, got, want)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		o := matmul(1+rng.IntN(600), 32*(1+rng.IntN(400)), 32*(1+rng.IntN(400)), op.A8TQ8C)
		p, err := c.Op("npu", o, rng.IntN(2) == 0)
		q, err2 := again.Op("npu", o, rng.IntN(2) == 0)
		if err != nil || err2 != nil || p != q {
			t.Fatalf("%s: %+v and %+v (%v, %v)", o.Key(), p, q, err, err2)
		}
	}
	// Writing again gives the same bytes; a failed write leaves the old file.
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c.Families[0].SetupNS = math.NaN()
	if err := Write(path, c); err == nil {
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
	s := openSoC(t, "core-ultra-5-125h")
	other := openSoC(t, "apple-m2-ultra")
	if _, err := Fit(other, full(t, s)); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "core-ultra-5-125h") {
		t.Errorf("a record of another SoC: %v", err)
	}
	if _, err := Fit(s, record.NewSet(header(t, s))); err == nil || len(diag.HintsOf(err)) == 0 {
		t.Errorf("an empty record: %v", err)
	}
	set := record.NewSet(header(t, s))
	o := matmul(1, 32, 32, op.A8TQ8C)
	add(t, set, record.Measurement{Kind: record.Op, Proc: "dsp", Op: &o, Samples: []float64{1}})
	if _, err := Fit(s, set); err == nil || !strings.Contains(err.Error(), `"dsp"`) {
		t.Errorf("an unknown processor: %v", err)
	}
	for want, add := range map[string]func(set *record.Set){
		"takes 1e+16 ns, want at most 9007199254740992 (104 days)": func(set *record.Set) {
			add(t, set, record.Measurement{Kind: record.Op, Proc: "cpu", Op: &o, Samples: []float64{1e16}})
		},
		// of which the mean is infinite
		"takes +Inf ns": func(set *record.Set) {
			add(t, set, record.Measurement{Kind: record.Op, Proc: "cpu", Op: &o, Samples: []float64{1.7e308, 1.7e308}})
		},
		"bytes_per_ns is 1.07374e+18, want a number above 0, at most 1e+09": func(set *record.Set) {
			add(t, set, record.Measurement{Kind: record.Op, Proc: "cpu", Op: &o, Samples: []float64{1}})
			add(t, set, record.Measurement{Kind: record.Bandwidth, Proc: "cpu", Bytes: 1 << 30, Samples: []float64{1e-9}})
		},
	} {
		set := record.NewSet(header(t, s))
		add(set)
		if _, err := Fit(s, set); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := CrossValidate(s, full(t, s), 1, new(Costs)); err == nil {
		t.Error("one fold")
	}
}

// What is held out changes nothing but the digest of the record.
func TestHeldOutIsNotFitted(t *testing.T) {
	s := openSoC(t, "core-ultra-5-125h")
	set := full(t, s)
	plain, err := Fit(s, set)
	if err != nil {
		t.Fatal(err)
	}
	o := matmul(100, 4096, 4096, op.A8TQ8C)
	add(t, set, record.Measurement{Kind: record.Op, Proc: "gpu", Op: &o, Samples: []float64{1}, HeldOut: true})
	again, err := Fit(s, set)
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
	q, err := Evaluate(plain, set.HeldOut())
	if err != nil || q.N != 1 {
		t.Errorf("evaluated %d held-out operators: %v", q.N, err)
	}
}

func TestCrossValidate(t *testing.T) {
	require.Slow(t)
	s := openSoC(t, "core-ultra-5-125h")
	set := full(t, s)
	c, err := Fit(s, set)
	if err != nil {
		t.Fatal(err)
	}
	q, err := CrossValidate(s, set, 5, c)
	if err != nil {
		t.Fatal(err)
	}
	report(t, "5 folds, edges included", q)
	if q.N < 80 || q.Within10 < 0.8 {
		t.Errorf("%d operators, within 10 %%: %s", q.N, percent(q.Within10))
	}
	again, err := CrossValidate(s, set, 5, new(Costs)) // knows no family: every fold fits all
	if err != nil || !reflect.DeepEqual(again, q) {
		t.Errorf("MAPE %v with the families that lack nothing taken over, %v with all fitted again (%v)", q.MAPE, again.MAPE, err)
	}
}

// Whatever was measured, every prediction is a positive time inside its interval, a measured shape comes
// out as measured, and between two samples of a shape the time lies between theirs.
func TestPredictionProperties(t *testing.T) {
	s := openSoC(t, "snapdragon-8gen3")
	rapid.Check(t, func(rt *rapid.T) {
		set := record.NewSet(header(t, s))
		times := map[int]map[int]float64{} // by N, M
		n := rapid.IntRange(1, 12).Draw(rt, "samples")
		for range n {
			o := matmul(rapid.IntRange(1, 600).Draw(rt, "m"), 256, 32*rapid.IntRange(1, 6).Draw(rt, "n"), op.A8TQ8C)
			if times[o.N][o.M] != 0 {
				continue
			}
			x := math.Round(math.Exp(rapid.Float64Range(0, 25).Draw(rt, "log ns")))
			if times[o.N] == nil {
				times[o.N] = map[int]float64{}
			}
			times[o.N][o.M] = x
			add(t, set, record.Measurement{Kind: record.Op, Proc: "npu", Op: &o, Samples: []float64{x}})
		}
		c, err := Fit(s, set)
		if err != nil {
			rt.Fatal(err)
		}
		for range 20 {
			o := matmul(rapid.IntRange(1, 700).Draw(rt, "m"), rapid.SampledFrom([]int{256, 64, 5000}).Draw(rt, "k"), 32*rapid.IntRange(1, 8).Draw(rt, "n"), op.A8TQ8C)
			p, err := c.Op("npu", o, rapid.Bool().Draw(rt, "cold"))
			if err != nil {
				rt.Fatal(err)
			}
			if p.NS < 1 || p.LowNS < 0 || p.LowNS > p.NS || p.HighNS < p.NS {
				rt.Fatalf("%s: %+v", o.Key(), p)
			}
			if o.K != 256 {
				continue
			}
			lo, hi := 0, math.MaxInt
			for m := range times[o.N] {
				if m <= o.M {
					lo = max(lo, m)
				}
				if m >= o.M {
					hi = min(hi, m)
				}
			}
			switch {
			case lo == o.M:
				if p.Source != source.Measured || float64(p.NS) != times[o.N][lo] {
					rt.Fatalf("%s: %+v, measured %v", o.Key(), p, times[o.N][lo])
				}
			case lo > 0 && hi < math.MaxInt:
				a, b := times[o.N][lo], times[o.N][hi]
				if p.Source != source.Interpolated {
					rt.Fatalf("%s between M=%d and %d: %+v", o.Key(), lo, hi, p)
				}
				if c.Families[0].Step[0] == 1 && // else the samples of one step count as one
					(float64(p.NS) < math.Floor(min(a, b)) || float64(p.NS) > math.Ceil(max(a, b))) {
					rt.Fatalf("%s: %+v, between %v and %v", o.Key(), p, a, b)
				}
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	_, c := fitFull(f)
	path := filepath.Join(f.TempDir(), "costs.yaml")
	if err := Write(path, c); err != nil {
		f.Fatal(err)
	}
	seed, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte("schema: hetc.costs/1\nfamilies: [{proc: a, kind: matmul, step: [0,0,0], curves: [{points: [[1,2,3,4]]}]}]\nend: true\n"))
	f.Add([]byte(`{"schema":"hetc.costs/1","end":true,"families":[{"proc":"a","kind":"rope","group":-1,"head_dim":1,"setup_ns":1e308,"curves":[{"a":-1,"b":9223372036854775807}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("fuzz.yaml", data)
		if err != nil {
			return
		}
		for _, x := range c.Families {
			for _, k := range x.Curves {
				p, err := c.Op(x.Proc, x.operator(int(k.Points[0][0]), k.A, k.B), x.Cold)
				if err == nil && (p.NS < 1 || p.LowNS > p.NS || p.HighNS < p.NS) {
					t.Fatalf("%s: %+v", x.key(), p)
				}
			}
		}
	})
}
