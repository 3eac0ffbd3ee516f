package sim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
)

func phone(t testing.TB) *socs.SoC {
	t.Helper()
	s, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func matmul(m, k, n int, scheme op.Scheme) op.Op {
	return op.Op{Kind: op.MatMul, M: m, K: k, N: n, Scheme: scheme}
}

func ns(t interface {
	Fatal(...any)
	Helper()
}, s *socs.SoC, proc string, o op.Op, beside ...string) int64 {
	t.Helper()
	x, err := sim.NS(s, proc, o, beside...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// The simulation against every latency the papers print for this SoC: within a factor of 2 on the CPU (one
// rate for all shapes), 1.5 on the GPU and 1.3 on the NPU.
func TestPublishedPoints(t *testing.T) {
	s := phone(t)
	if len(s.Points) < 30 {
		t.Fatalf("%d points", len(s.Points))
	}
	var table strings.Builder
	for _, p := range s.Points {
		got := float64(ns(t, s, p.Processor, p.Op())) / 1e3
		off := got/p.LatencyUS - 1
		fmt.Fprintf(&table, "%-4s %-9s [%d,%d,%d] %8.0f us printed %8.0f us simulated %+5.0f %%  %s\n", p.Processor, p.Scheme, p.M, p.K, p.N, p.LatencyUS, got, 100*off, p.Source)
		limit := map[string]float64{"cpu": 2, "gpu": 1.5, "npu": 1.3}[p.Processor]
		if math.Abs(math.Log(1+off)) > math.Log(limit) {
			t.Errorf("%s [%d,%d,%d] on %s: %.0f us, printed %.0f (%s)", p.Scheme, p.M, p.K, p.N, p.Processor, got, p.LatencyUS, p.Source)
		}
	}
	t.Log("\n" + table.String())
}

// Estimates of scores on the NPU against the three latencies that shadowAttn prints (3.4): queries [1,H,128,64] and 2048
// keys, within 8 %. Heads in one launch share its fixed part.
func TestPublishedEstimates(t *testing.T) {
	s := phone(t)
	for _, printed := range []struct {
		heads int
		ms    float64
	}{{1, 2}, {2, 3}, {4, 4}} {
		o := op.Op{Kind: op.Estimate, M: 128, Heads: printed.heads, KVHeads: printed.heads, HeadDim: 64, Context: 2048, KV: op.F16,
			Block: op.SparseBlock}
		got := float64(ns(t, s, "npu", o)) / 1e6
		if off := got/printed.ms - 1; math.Abs(off) > 0.08 {
			t.Errorf("%d heads: %.3f ms, printed %v: off by %.2g", printed.heads, got, printed.ms, off)
		}
		if apart := float64(printed.heads) * float64(ns(t, s, "npu", with(o, 1))) / 1e6; printed.heads > 1 && got >= apart {
			t.Errorf("%d heads take %.3f ms in one launch, %.3f in a launch each", printed.heads, got, apart)
		}
	}
}

// with is the operator for so many heads.
func with(o op.Op, heads int) op.Op {
	o.Heads, o.KVHeads = heads, heads
	return o
}

func TestStaircase(t *testing.T) {
	s := phone(t)
	for base := 32; base <= 256; base += 32 {
		for d := 1; d <= 32; d++ {
			if a, b := ns(t, s, "npu", matmul(base+d, 4096, 4096, op.A8TQ4B32)), ns(t, s, "npu", matmul(base+32, 4096, 4096, op.A8TQ4B32)); a != b {
				t.Fatalf("M=%d takes %d ns, M=%d %d ns", base+d, a, base+32, b)
			}
		}
	}
	a := ns(t, s, "npu", matmul(256, 4096, 4096, op.A8TQ4B32))
	b := ns(t, s, "npu", matmul(257, 4096, 4096, op.A8TQ4B32))
	if b <= a {
		t.Errorf("no step after 256: %d, %d ns", a, b)
	}
	// The GPU is linear: equal differences.
	g := func(m int) int64 { return ns(t, s, "gpu", matmul(m, 4096, 4096, op.A8TQ4B32)) }
	if d1, d2 := g(301)-g(300), g(500)-g(499); d1-d2 > 1 || d2-d1 > 1 || d1 <= 0 {
		t.Errorf("gpu rows cost %d and %d ns", d1, d2)
	}
}

func TestContention(t *testing.T) {
	s := phone(t)
	gemv, gemm := matmul(1, 4096, 28672, op.A8TQ4B32), matmul(512, 4096, 4096, op.A8TQ4B32)
	alone, both := ns(t, s, "gpu", gemv), ns(t, s, "gpu", gemv, "npu")
	if r := float64(both) / float64(alone); r < 1.2 || r > (43.3+42.5)/59.5 {
		t.Errorf("a memory-bound operator beside the NPU takes %.3f times as long", r)
	}
	if a, b := ns(t, s, "gpu", gemm), ns(t, s, "gpu", gemm, "npu"); a != b {
		t.Errorf("a compute-bound operator slows down from %d to %d ns", a, b)
	}
	if a := ns(t, s, "gpu", gemv, "npu=5"); a != alone {
		t.Errorf("5e9 byte/s beside it change %d to %d ns", alone, a)
	}
	for _, bad := range []string{"dsp", "npu=x", "npu=-1", "gpu", ""} {
		if _, err := sim.NS(s, "gpu", gemv, bad); err == nil {
			t.Errorf("beside %q was accepted", bad)
		}
	}
}

// A product by experts takes as long as the products of as many experts as possible, evenly divided.
func TestExperts(t *testing.T) {
	s := phone(t)
	for _, proc := range []string{"cpu", "gpu"} {
		p := s.Processor(proc)
		for _, scheme := range p.Schemes {
			for _, c := range []struct {
				m, fan, experts int
				each            []int // rows of each that was chosen
			}{{1, 2, 16, []int{1, 1}}, {256, 2, 16, slices.Repeat([]int{32}, 16)}, {3, 3, 4, []int{3, 2, 2, 2}}, {5, 1, 1, []int{5}}} {
				o := op.Op{Kind: op.ExpertMatMul, M: c.m, Fan: c.fan, Experts: c.experts, K: 1024, N: 768, Scheme: scheme, Spread: true}
				fixed := 1e3 * (p.LaunchUS + p.Sim.Schemes[scheme].SetupUS)
				want := fixed
				for _, rows := range c.each {
					want += float64(ns(t, s, proc, matmul(rows, 1024, 768, scheme))) - fixed
				}
				if got := float64(ns(t, s, proc, o)); math.Abs(got-want) > float64(len(c.each))+1 {
					t.Errorf("%s on %s: got %.0f ns, want %.0f", o.Key(), proc, got, want)
				}
			}
		}
	}
}

func open(t testing.TB, s *socs.SoC, sel string, options map[string]string) driver.Processor {
	t.Helper()
	p, err := sim.New(s).Open(context.Background(), driver.Config{Select: sel, Options: options})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func load(t testing.TB, s *socs.SoC, p driver.Processor, proc string, o op.Op, w driver.Weights) driver.Executable {
	t.Helper()
	g := op.Single(o, pack.N32)
	a, err := sim.NewCompiler(s).Compile(context.Background(), g, w, driver.Target{Proc: proc})
	if err != nil {
		t.Fatal(err)
	}
	e, err := p.Load(context.Background(), a, w)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestNoise(t *testing.T) {
	s := phone(t)
	o := matmul(256, 14336, 4096, op.A8TQ4B32)
	exact := float64(ns(t, s, "npu", o))
	sequence := ""
	draw := func(options map[string]string, n int) []float64 {
		options["compute"] = "false"
		p := open(t, s, "npu", options)
		e := load(t, s, p, "npu", o, nil)
		if sequence != "" {
			for range 3 {
				if _, err := p.Run(e, nil); err != nil { // counts for the sequence before
					t.Fatal(err)
				}
			}
			p.(driver.Virtual).Draw(e, sequence)
		}
		var out []float64
		for range n {
			span, err := p.Run(e, nil)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, float64(span.End-span.Start))
		}
		return out
	}
	a, b := draw(map[string]string{}, 4000), draw(map[string]string{}, 4000)
	sum, sq := 0.0, 0.0
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("sample %d: %v and %v", i, a[i], b[i])
		}
		d := a[i]/exact - 1
		sum, sq = sum+d, sq+d*d
	}
	n := float64(len(a))
	if mean, cv := sum/n, math.Sqrt(sq/n); math.Abs(mean) > 0.002 || math.Abs(cv-0.02) > 0.002 {
		t.Errorf("noise has mean %.4f and deviation %.4f, want 0 and 0.02", mean, cv)
	}
	if c := draw(map[string]string{"seed": "1"}, 1); c[0] == a[0] {
		t.Error("the seed changes nothing")
	}
	if c := draw(map[string]string{"noise": "false"}, 2); c[0] != exact || c[1] != exact {
		t.Errorf("without noise: %v, want %v", c, exact)
	}
	sequence = "one"
	one, again := draw(map[string]string{}, 2), draw(map[string]string{}, 2)
	sequence = "other"
	if other := draw(map[string]string{}, 2); !slices.Equal(one, again) || slices.Equal(one, other) || one[0] == a[0] {
		t.Errorf("sequences: %v, again %v, another %v, none %v", one, again, other, a[:2])
	}
}

func TestVirtualClock(t *testing.T) {
	s := phone(t)
	p := open(t, s, "gpu", map[string]string{"compute": "false", "noise": "false"})
	if !p.Capabilities().Virtual {
		t.Error("not virtual")
	}
	o := matmul(128, 4096, 4096, op.A8TQ4B32)
	e := load(t, s, p, "gpu", o, nil)
	p.WaitUntil(1000)
	p.WaitUntil(500)
	span, err := p.Run(e, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := driver.Tick(1000 + ns(t, s, "gpu", o)); span.Start != 1000 || span.End != want || p.Now() != want {
		t.Errorf("span %v, now %d, want 1000 to %d", span, p.Now(), want)
	}
	// Fewer rows cost less where rows are dynamic.
	half, err := p.Run(e, &driver.Bindings{Scalars: &driver.Scalars{Rows: 64, KVLen: 64}})
	if err != nil {
		t.Fatal(err)
	}
	o.M = 64
	if got, want := half.End-half.Start, driver.Tick(ns(t, s, "gpu", o)); got != want {
		t.Errorf("64 of 128 rows take %d ns, want %d", got, want)
	}
}

// Calls that ran side by side are settled afterwards: who reads memory while the other one does takes longer, a call waits until its
// processor has noticed that another one is done, and whoever starts them notices the end.
func TestSettle(t *testing.T) {
	s := phone(t)
	gpu, npu, cpu := open(t, s, "gpu", map[string]string{"compute": "false", "noise": "false"}), open(t, s, "npu", map[string]string{"compute": "false", "noise": "false"}), open(t, s, "cpu", nil)
	o := op.Op{Kind: op.Add, M: 512, N: 4096}
	last := func(p driver.Processor, proc string) driver.Work {
		if _, err := p.Run(load(t, s, p, proc, o, nil), nil); err != nil {
			t.Fatal(err)
		}
		return p.(driver.Virtual).Last()
	}
	x := driver.Schedule{Start: 1000, Control: cpu, Lanes: []driver.ScheduleLane{
		{Proc: gpu, Calls: []driver.ScheduleCall{{Work: last(gpu, "gpu")}, {Work: last(gpu, "gpu"), After: []driver.ScheduleAfter{{Lane: 1, Call: 0}}}}},
		{Proc: npu, Calls: []driver.ScheduleCall{{Work: last(npu, "npu")}}},
	}}
	if err := gpu.(driver.Virtual).Settle(&x); err != nil {
		t.Fatal(err)
	}
	us := func(from, to string) driver.Tick {
		l, _ := s.Link(from, to)
		return driver.Tick(1e3 * l.HandoverUS)
	}
	alone := driver.Tick(ns(t, s, "gpu", o))
	first, second, other := x.Lanes[0].Calls[0].Span, x.Lanes[0].Calls[1], x.Lanes[1].Calls[0].Span
	if took := first.End - first.Start; first.Start != 1000+us("cpu", "gpu") || other.Start != 1000+us("cpu", "npu") || float64(took) < 1.2*float64(alone) || float64(took) > 1.45*float64(alone) {
		t.Errorf("first call %v beside %v, alone %d ns", first, other, alone)
	}
	begins := max(first.End, other.End+us("npu", "gpu"))
	if second.Span != (driver.Span{Start: begins, End: begins + alone}) || second.Idle != first.End || x.End != second.Span.End+us("gpu", "cpu") {
		t.Errorf("second call %+v, end %d, want start %d, %d ns", second, x.End, begins, alone)
	}
	x.Lanes[1].Calls[0].After = []driver.ScheduleAfter{{Lane: 0, Call: 1}}
	if err := gpu.(driver.Virtual).Settle(&x); err == nil || !strings.Contains(err.Error(), "circle") {
		t.Errorf("a circle: got %v", err)
	}
	elsewhere := open(t, phone(t), "npu", map[string]string{"compute": "false"})
	if err := elsewhere.(driver.Virtual).Settle(&x); err == nil {
		t.Error("another SoC's calls were settled")
	}
}

// Results are the host's: a matmul on the simulated NPU equals the plain sum.
func TestComputes(t *testing.T) {
	s := phone(t)
	const m, k, n = 3, 64, 32
	o := matmul(m, k, n, op.A32W32)
	weight := make([]float32, k*n)
	for i := range weight {
		weight[i] = float32(i%7) - 3
	}
	spec := o.WeightSpec("weight", pack.N32)
	size, err := pack.Bytes(spec)
	if err != nil {
		t.Fatal(err)
	}
	region, err := mem.Alloc(int(size), 64)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	src, err := pack.Floats(weight, k, n)
	if err != nil {
		t.Fatal(err)
	}
	if err := pack.Pack(region.Bytes(), spec, src); err != nil {
		t.Fatal(err)
	}
	w := driver.Weights{{Spec: spec, Bytes: region.Bytes()}}
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			p := open(t, s, "npu", nil)
			if err := p.Attach(); err != nil {
				return err
			}
			e := load(t, s, p, "npu", o, w)
			in, err := p.Alloc(4 * m * k)
			if err != nil {
				return err
			}
			out, err := p.Alloc(4 * m * n)
			if err != nil {
				return err
			}
			x, err := mem.View[float32](in.Bytes())
			if err != nil {
				return err
			}
			for i := range x {
				x[i] = float32(i%5) - 2
			}
			b := &driver.Bindings{
				In:      []driver.View{{Buffer: in, Type: op.F32, Rows: m, Cols: k, Stride: k}},
				Out:     []driver.View{{Buffer: out, Type: op.F32, Rows: m, Cols: n, Stride: n}},
				Scalars: &driver.Scalars{Rows: m, KVLen: m},
			}
			if _, err := p.Run(e, b); err != nil {
				return err
			}
			y, err := mem.View[float32](out.Bytes())
			if err != nil {
				return err
			}
			for i := range m {
				for j := range n {
					want := float32(0)
					for l := range k {
						want += x[i*k+l] * weight[l*n+j]
					}
					if y[i*n+j] != want {
						return fmt.Errorf("y[%d,%d] = %v, want %v", i, j, y[i*n+j], want)
					}
				}
			}
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestRefuses(t *testing.T) {
	s := phone(t)
	s.Processor("npu").Sim.Infeasible = []socs.ShapeRange{{MinM: 512, MinK: 8192}}
	s.Processor("npu").GraphBytes = 1 << 20
	s.Processor("gpu").GraphBytes = 1 << 20
	ctx := context.Background()
	c := sim.NewCompiler(s)
	compile := func(proc string, o op.Op) error {
		_, err := c.Compile(ctx, op.Single(o, pack.N32), nil, driver.Target{Proc: proc})
		return err
	}
	for _, x := range []struct {
		err   error
		class diag.Class
		want  string
	}{
		{compile("npu", matmul(512, 14336, 32, op.A8TQ4B32)), diag.ClassInfeasible, "cannot be compiled"},
		{compile("npu", matmul(1, 4096, 4096, op.A8TQ4B32)), diag.ClassInfeasible, "graphs of at most 1048576"},
		{compile("gpu", op.Op{Kind: op.ExpertMatMul, M: 1, Fan: 2, Experts: 16, K: 1024, N: 128, Scheme: op.A8TQ8C}), diag.ClassInfeasible, "have 2113536 bytes"},
		{compile("npu", op.Op{Kind: op.Attention, M: 1, Heads: 4, KVHeads: 2, HeadDim: 64, Context: 8, KV: op.F16}), diag.ClassInput, `operator "attention" is not supported`},
		{compile("dsp", matmul(1, 32, 32, op.A8TQ4B32)), diag.ClassInput, "no such simulated processor"},
	} {
		if x.err == nil || diag.ClassOf(x.err) != x.class || !strings.Contains(x.err.Error(), x.want) {
			t.Errorf("got %v (class %d), want %q (class %d)", x.err, diag.ClassOf(x.err), x.want, x.class)
		}
	}
	if _, err := sim.NS(s, "npu", matmul(512, 14336, 32, op.A8TQ4B32)); diag.ClassOf(err) != diag.ClassInfeasible {
		t.Errorf("infeasible shape: got %v", err)
	}

	p := open(t, s, "npu", map[string]string{"compute": "false"})
	good, err := json.Marshal(op.Single(matmul(1, 32, 32, op.A8TQ8C), pack.N32))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		a    driver.Artifact
		want string
	}{
		{driver.Artifact{Driver: "host", Code: good}, `compiled for driver "host"`},
		{driver.Artifact{Driver: "sim", Code: good[:20]}, "parse graph"},
		{driver.Artifact{Driver: "sim", Code: []byte(strings.Replace(string(good), "n32", "n64", 1))}, `layout "n64"`},
	} {
		if _, err := p.Load(ctx, x.a, nil); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("got %v, want %q", err, x.want)
		}
	}
	other := open(t, s, "gpu", map[string]string{"compute": "false"})
	e := load(t, s, p, "npu", matmul(1, 32, 32, op.A8TQ8C), nil)
	if _, err := other.Run(e, nil); err == nil {
		t.Error("another processor's executable ran")
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(e, nil); err == nil {
		t.Error("a closed executable ran")
	}
	for sel, options := range map[string]map[string]string{
		"dsp": nil, "": nil, "npu": {"speed": "2"}, "gpu": {"beside": "gpu"}, "cpu": {"seed": "-1"},
	} {
		_, err := sim.New(s).Open(ctx, driver.Config{Select: sel, Options: options})
		if err == nil || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("open %q %v: got %v", sel, options, err)
		}
	}
}

// More rows, deeper or wider never cost less, and nothing is free.
func TestMonotone(t *testing.T) {
	s := phone(t)
	rapid.Check(t, func(rt *rapid.T) {
		dim := rapid.IntRange(1, 20000)
		proc := rapid.SampledFrom([]string{"cpu", "gpu", "npu"}).Draw(rt, "processor")
		scheme := rapid.SampledFrom(s.Processor(proc).Schemes).Draw(rt, "scheme")
		a := matmul(rapid.IntRange(1, 4096).Draw(rt, "m"), dim.Draw(rt, "k"), dim.Draw(rt, "n"), scheme)
		b := a
		b.M += rapid.IntRange(0, 64).Draw(rt, "dm")
		b.K += rapid.IntRange(0, 64).Draw(rt, "dk")
		b.N += rapid.IntRange(0, 64).Draw(rt, "dn")
		x, y := ns(rt, s, proc, a), ns(rt, s, proc, b)
		if x <= 0 || y < x {
			rt.Fatalf("%s takes %d ns, %s %d ns", a.Key(), x, b.Key(), y)
		}
	})
}
