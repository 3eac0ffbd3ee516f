package sim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
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

// phone returns the SoC of the tests.
func phone(t testing.TB) *socs.SoC {
	t.Helper()
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	return soc
}

// matmul returns a product [m,k] x [k,n].
func matmul(m, k, n int, scheme op.Scheme) op.Op {
	return op.Op{Kind: op.MatMul, M: m, K: k, N: n, Scheme: scheme}
}

// ns returns how many nanoseconds a processor takes for an operator beside other processors.
func ns(t interface {
	Fatal(...any)
	Helper()
}, soc *socs.SoC, proc string, o op.Op, beside ...string) int64 {
	t.Helper()
	took, err := sim.NS(soc, proc, o, beside...)
	if err != nil {
		t.Fatal(err)
	}
	return took
}

// open opens a processor that is closed after the test.
func open(t testing.TB, soc *socs.SoC, proc string, options map[string]string) driver.Processor {
	t.Helper()
	p, err := sim.New(soc).Open(context.Background(), driver.Config{Select: proc, Options: options})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// load compiles an operator for a processor of the SoC, and loads it there.
func load(
	t testing.TB, soc *socs.SoC, p driver.Processor, proc string, o op.Op, weights driver.Weights,
) driver.Executable {
	t.Helper()
	graph := op.Single(o, pack.N32)
	artifact, err := sim.NewCompiler(soc).Compile(context.Background(), graph, weights, driver.Target{Proc: proc})
	if err != nil {
		t.Fatal(err)
	}
	exe, err := p.Load(context.Background(), artifact, weights)
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// The simulation agrees with every latency that the papers print for this SoC: within a factor of 2 on the CPU (one
// rate for all shapes), 1.5 on the GPU and 1.3 on the NPU.
func TestPublishedPoints(t *testing.T) {
	soc := phone(t)
	if len(soc.Points) < 30 {
		t.Fatalf("%d points", len(soc.Points))
	}
	limits := map[string]float64{"cpu": 2, "gpu": 1.5, "npu": 1.3}
	var table strings.Builder
	for _, p := range soc.Points {
		got := float64(ns(t, soc, p.Processor, p.Op())) / 1e3
		ratio := got / p.LatencyUS
		fmt.Fprintf(&table, "%-4s %-9s [%d,%d,%d] %8.0f us printed %8.0f us simulated %+5.0f %%  %s\n",
			p.Processor, p.Scheme, p.M, p.K, p.N, p.LatencyUS, got, 100*(ratio-1), p.Source)
		if limit := limits[p.Processor]; ratio > limit || ratio < 1/limit {
			t.Errorf("%s [%d,%d,%d] on %s: %.0f us, printed %.0f (%s)", p.Scheme, p.M, p.K, p.N, p.Processor, got,
				p.LatencyUS, p.Source)
		}
	}
	t.Log("\n" + table.String())
}

// Estimates of scores on the NPU take the three latencies that shadowAttn prints (section 3.4) within 8 %: queries
// [1,H,128,64] and 2048 keys. Heads in one launch share its fixed part.
func TestPublishedEstimates(t *testing.T) {
	soc := phone(t)
	took := func(heads int) float64 {
		estimate := op.Op{
			Kind:    op.Estimate,
			M:       128,
			Heads:   heads,
			KVHeads: heads,
			HeadDim: 64,
			Context: 2048,
			KV:      op.F16,
			Block:   op.SparseBlock,
		}
		return float64(ns(t, soc, "npu", estimate)) / 1e6
	}
	for _, printed := range []struct {
		heads int
		ms    float64
	}{
		{heads: 1, ms: 2},
		{heads: 2, ms: 3},
		{heads: 4, ms: 4},
	} {
		got := took(printed.heads)
		if off := got/printed.ms - 1; math.Abs(off) > 0.08 {
			t.Errorf("%d heads: %.3f ms, printed %v: off by %.2g", printed.heads, got, printed.ms, off)
		}
		if apart := float64(printed.heads) * took(1); printed.heads > 1 && got >= apart {
			t.Errorf("%d heads take %.3f ms in one launch, %.3f in a launch each", printed.heads, got, apart)
		}
	}
}

// The NPU computes whole tiles of 32 rows, so that its time is a staircase. The GPU's time is linear in the rows.
func TestStaircase(t *testing.T) {
	soc := phone(t)
	took := func(proc string, rows int) int64 {
		return ns(t, soc, proc, matmul(rows, 4096, 4096, op.A8TQ4B32))
	}

	for base := 32; base <= 256; base += 32 {
		whole := took("npu", base+32)
		for more := 1; more <= 32; more++ {
			if got := took("npu", base+more); got != whole {
				t.Fatalf("M=%d takes %d ns, M=%d %d ns", base+more, got, base+32, whole)
			}
		}
	}
	if before, after := took("npu", 256), took("npu", 257); after <= before {
		t.Errorf("no step after 256: %d, %d ns", before, after)
	}

	early := took("gpu", 301) - took("gpu", 300)
	late := took("gpu", 500) - took("gpu", 499)
	if early <= 0 || early-late > 1 || late-early > 1 {
		t.Errorf("gpu rows cost %d and %d ns", early, late)
	}
}

// An operator that memory bounds takes longer beside another processor, within the bandwidths that are printed. An
// operator that arithmetic bounds does not.
func TestContention(t *testing.T) {
	soc := phone(t)
	memoryBound := matmul(1, 4096, 28672, op.A8TQ4B32)
	computeBound := matmul(512, 4096, 4096, op.A8TQ4B32)

	alone := ns(t, soc, "gpu", memoryBound)
	both := ns(t, soc, "gpu", memoryBound, "npu")
	if ratio := float64(both) / float64(alone); ratio < 1.2 || ratio > (43.3+42.5)/59.5 {
		t.Errorf("a memory-bound operator beside the NPU takes %.3f times as long", ratio)
	}
	if a, b := ns(t, soc, "gpu", computeBound), ns(t, soc, "gpu", computeBound, "npu"); a != b {
		t.Errorf("a compute-bound operator slows down from %d to %d ns", a, b)
	}
	if got := ns(t, soc, "gpu", memoryBound, "npu=5"); got != alone {
		t.Errorf("5e9 byte/s beside it change %d to %d ns", alone, got)
	}
	for _, bad := range []string{"dsp", "npu=x", "npu=-1", "gpu", ""} {
		if _, err := sim.NS(soc, "gpu", memoryBound, bad); err == nil {
			t.Errorf("beside %q was accepted", bad)
		}
	}
}

// A product by experts takes as long as the products of as many experts as possible, evenly divided.
func TestExperts(t *testing.T) {
	soc := phone(t)
	for _, proc := range []string{"cpu", "gpu"} {
		p := soc.Processor(proc)
		for _, scheme := range p.Schemes {
			fixed := 1e3 * (p.LaunchUS + p.Sim.Schemes[scheme].SetupUS)
			for _, c := range []struct {
				rows, fan, experts int
				each               []int // rows of every expert that is chosen
			}{
				{rows: 1, fan: 2, experts: 16, each: []int{1, 1}},
				{rows: 256, fan: 2, experts: 16, each: slices.Repeat([]int{32}, 16)},
				{rows: 3, fan: 3, experts: 4, each: []int{3, 2, 2, 2}},
				{rows: 5, fan: 1, experts: 1, each: []int{5}},
			} {
				product := op.Op{
					Kind:    op.ExpertMatMul,
					M:       c.rows,
					Fan:     c.fan,
					Experts: c.experts,
					K:       1024,
					N:       768,
					Scheme:  scheme,
					Spread:  true,
				}
				want := fixed
				for _, rows := range c.each {
					want += float64(ns(t, soc, proc, matmul(rows, 1024, 768, scheme))) - fixed
				}
				if got := float64(ns(t, soc, proc, product)); math.Abs(got-want) > float64(len(c.each))+1 {
					t.Errorf("%s on %s: got %.0f ns, want %.0f", product.Key(), proc, got, want)
				}
			}
		}
	}
}

// noisy is the product whose noise the tests draw.
var noisy = matmul(256, 14336, 4096, op.A8TQ4B32)

// drawNoise opens an NPU and returns how long it takes for some calls. A sequence that is not empty is drawn after
// calls that belong to none.
func drawNoise(t *testing.T, soc *socs.SoC, options map[string]string, sequence string, calls int) []float64 {
	t.Helper()
	all := map[string]string{"compute": "false"}
	maps.Copy(all, options)
	p := open(t, soc, "npu", all)
	exe := load(t, soc, p, "npu", noisy, nil)
	run := func() float64 {
		span, err := p.Run(exe, nil)
		if err != nil {
			t.Fatal(err)
		}
		return float64(span.End - span.Start)
	}

	if sequence != "" {
		for range 3 {
			run()
		}
		p.(driver.Virtual).Draw(exe, sequence)
	}
	var took []float64
	for range calls {
		took = append(took, run())
	}
	return took
}

// The noise of calls has a mean of 0 and a deviation of 2 %, and a processor that is opened again draws the same.
func TestNoise(t *testing.T) {
	soc := phone(t)
	exact := float64(ns(t, soc, "npu", noisy))

	took := drawNoise(t, soc, nil, "", 4000)

	sum, squares := 0.0, 0.0
	for _, x := range took {
		off := x/exact - 1
		sum, squares = sum+off, squares+off*off
	}
	n := float64(len(took))
	mean, deviation := sum/n, math.Sqrt(squares/n)
	if math.Abs(mean) > 0.002 || math.Abs(deviation-0.02) > 0.002 {
		t.Errorf("noise has mean %.4f and deviation %.4f, want 0 and 0.02", mean, deviation)
	}
	if again := drawNoise(t, soc, nil, "", len(took)); !slices.Equal(took, again) {
		t.Error("another processor draws another noise")
	}
}

// A seed changes the noise, and there is none where it is not wanted.
func TestNoiseOptions(t *testing.T) {
	soc := phone(t)
	exact := float64(ns(t, soc, "npu", noisy))
	plain := drawNoise(t, soc, nil, "", 1)

	if got := drawNoise(t, soc, map[string]string{"seed": "1"}, "", 1); got[0] == plain[0] {
		t.Error("the seed changes nothing")
	}
	if got := drawNoise(t, soc, map[string]string{"noise": "false"}, "", 2); got[0] != exact || got[1] != exact {
		t.Errorf("without noise: %v, want %v", got, exact)
	}
}

// The noise of a sequence is that of its name, whatever the processor did before.
func TestNoiseOfSequences(t *testing.T) {
	soc := phone(t)
	none := drawNoise(t, soc, nil, "", 2)
	one, again := drawNoise(t, soc, nil, "one", 2), drawNoise(t, soc, nil, "one", 2)
	other := drawNoise(t, soc, nil, "other", 2)

	if !slices.Equal(one, again) || slices.Equal(one, other) || one[0] == none[0] {
		t.Errorf("sequences: %v, again %v, another %v, none %v", one, again, other, none)
	}
}

// A simulated processor has a clock of its own. It never goes back, and a call takes the simulated time.
func TestVirtualClock(t *testing.T) {
	soc := phone(t)
	p := open(t, soc, "gpu", map[string]string{"compute": "false", "noise": "false"})
	product := matmul(128, 4096, 4096, op.A8TQ4B32)
	exe := load(t, soc, p, "gpu", product, nil)

	p.WaitUntil(1000)
	p.WaitUntil(500)
	span, err := p.Run(exe, nil)
	if err != nil {
		t.Fatal(err)
	}

	if !p.Capabilities().Virtual {
		t.Error("not virtual")
	}
	end := driver.Tick(1000 + ns(t, soc, "gpu", product))
	if span.Start != 1000 || span.End != end || p.Now() != end {
		t.Errorf("span %v, now %d, want 1000 to %d", span, p.Now(), end)
	}
}

// Fewer rows cost less where rows are dynamic.
func TestFewerRows(t *testing.T) {
	soc := phone(t)
	p := open(t, soc, "gpu", map[string]string{"compute": "false", "noise": "false"})
	exe := load(t, soc, p, "gpu", matmul(128, 4096, 4096, op.A8TQ4B32), nil)

	span, err := p.Run(exe, &driver.Bindings{Scalars: &driver.Scalars{Rows: 64, KVLen: 64}})
	if err != nil {
		t.Fatal(err)
	}

	want := driver.Tick(ns(t, soc, "gpu", matmul(64, 4096, 4096, op.A8TQ4B32)))
	if got := span.End - span.Start; got != want {
		t.Errorf("64 of 128 rows take %d ns, want %d", got, want)
	}
}

// lanes are the processors of a schedule of three calls of one operator: a call of the GPU beside one of the NPU, and
// another call of the GPU after both. The CPU starts them.
type lanes struct {
	soc           *socs.SoC
	gpu, npu, cpu driver.Processor
	operator      op.Op
}

// newLanes opens the processors.
func newLanes(t *testing.T) *lanes {
	t.Helper()
	soc := phone(t)
	options := map[string]string{"compute": "false", "noise": "false"}
	return &lanes{
		soc:      soc,
		gpu:      open(t, soc, "gpu", options),
		npu:      open(t, soc, "npu", options),
		cpu:      open(t, soc, "cpu", nil),
		operator: op.Op{Kind: op.Add, M: 512, N: 4096},
	}
}

// schedule runs the three calls, and returns the schedule that is to be settled.
func (l *lanes) schedule(t *testing.T) driver.Schedule {
	t.Helper()
	work := func(p driver.Processor, proc string) driver.Work {
		if _, err := p.Run(load(t, l.soc, p, proc, l.operator, nil), nil); err != nil {
			t.Fatal(err)
		}
		return p.(driver.Virtual).Last()
	}
	first, second, beside := work(l.gpu, "gpu"), work(l.gpu, "gpu"), work(l.npu, "npu")
	return driver.Schedule{
		Start:   1000,
		Control: l.cpu,
		Lanes: []driver.ScheduleLane{
			{Proc: l.gpu, Calls: []driver.ScheduleCall{
				{Work: first},
				{Work: second, After: []driver.ScheduleAfter{{Lane: 1, Call: 0}}},
			}},
			{Proc: l.npu, Calls: []driver.ScheduleCall{{Work: beside}}},
		},
	}
}

// handover returns how long a processor takes to notice that another one is done.
func (l *lanes) handover(from, to string) driver.Tick {
	link, _ := l.soc.Link(from, to)
	return driver.Tick(1e3 * link.HandoverUS)
}

// Calls that ran side by side are settled afterwards. Calls that read memory at the same time take longer. A call waits
// until its processor has noticed that another one is done, and the control notices the end.
func TestSettle(t *testing.T) {
	l := newLanes(t)
	x := l.schedule(t)

	if err := l.gpu.(driver.Virtual).Settle(&x); err != nil {
		t.Fatal(err)
	}

	alone := driver.Tick(ns(t, l.soc, "gpu", l.operator))
	first, second, beside := x.Lanes[0].Calls[0].Span, x.Lanes[0].Calls[1], x.Lanes[1].Calls[0].Span
	if first.Start != 1000+l.handover("cpu", "gpu") || beside.Start != 1000+l.handover("cpu", "npu") {
		t.Errorf("the calls start at %d and %d", first.Start, beside.Start)
	}
	if slower := float64(first.End-first.Start) / float64(alone); slower < 1.2 || slower > 1.45 {
		t.Errorf("the first call takes %.3f times as long as alone", slower)
	}
	begins := max(first.End, beside.End+l.handover("npu", "gpu"))
	if want := (driver.Span{Start: begins, End: begins + alone}); second.Span != want || second.Idle != first.End {
		t.Errorf("second call %+v, want %v", second, want)
	}
	if want := second.Span.End + l.handover("gpu", "cpu"); x.End != want {
		t.Errorf("end %d, want %d", x.End, want)
	}
}

// Calls that wait for each other, and calls of another SoC, are not settled.
func TestSettleRefuses(t *testing.T) {
	l := newLanes(t)
	circle := l.schedule(t)
	circle.Lanes[1].Calls[0].After = []driver.ScheduleAfter{{Lane: 0, Call: 1}}
	if err := l.gpu.(driver.Virtual).Settle(&circle); err == nil || !strings.Contains(err.Error(), "circle") {
		t.Errorf("a circle: got %v", err)
	}

	good := l.schedule(t)
	elsewhere := open(t, phone(t), "npu", map[string]string{"compute": "false"})
	if err := elsewhere.(driver.Virtual).Settle(&good); err == nil {
		t.Error("another SoC's calls were settled")
	}
}

// A product on the simulated NPU is the plain sum: the simulation computes with the kernels of host.
func TestComputes(t *testing.T) {
	soc := phone(t)
	const m, k, n = 3, 64, 32
	weight := make([]float32, k*n)
	for i := range weight {
		weight[i] = float32(i%7) - 3
	}
	product := matmul(m, k, n, op.A32W32)
	packed := packWeight(t, product.WeightSpec("weight", pack.N32), weight)
	p := open(t, soc, "npu", nil)
	exe := load(t, soc, p, "npu", product, driver.Weights{packed})
	x, in := operand(t, p, m, k)
	y, out := operand(t, p, m, n)
	for i := range x {
		x[i] = float32(i%5) - 2
	}
	bindings := &driver.Bindings{
		In:      []driver.View{in},
		Out:     []driver.View{out},
		Scalars: &driver.Scalars{Rows: m, KVLen: m},
	}

	ran := make(chan error)
	go func() { // the thread stays the processor's
		err := p.Attach()
		if err == nil {
			_, err = p.Run(exe, bindings)
		}
		ran <- err
	}()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}

	for i := range m {
		for j := range n {
			want := float32(0)
			for l := range k {
				want += x[i*k+l] * weight[l*n+j]
			}
			if got := y[i*n+j]; got != want {
				t.Fatalf("y[%d,%d] = %v, want %v", i, j, got, want)
			}
		}
	}
}

// packWeight packs a weight into memory that is freed after the test.
func packWeight(t *testing.T, spec op.WeightSpec, values []float32) driver.Packed {
	t.Helper()
	size, err := pack.Bytes(spec)
	if err != nil {
		t.Fatal(err)
	}
	region, err := mem.Alloc(int(size), driver.Align)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { region.Close() })
	source, err := pack.Floats(values, spec.K, spec.N)
	if err != nil {
		t.Fatal(err)
	}
	if err := pack.Pack(region.Bytes(), spec, source); err != nil {
		t.Fatal(err)
	}
	return driver.Packed{Spec: spec, Bytes: region.Bytes()}
}

// operand allocates a matrix of float32, and returns its elements and its view.
func operand(t *testing.T, p driver.Processor, rows, cols int) ([]float32, driver.View) {
	t.Helper()
	buffer, err := p.Alloc(int64(4 * rows * cols))
	if err != nil {
		t.Fatal(err)
	}
	values, err := mem.View[float32](buffer.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return values, driver.View{Buffer: buffer, Type: op.F32, Rows: rows, Cols: cols, Stride: cols}
}

// A graph that the SoC's processor cannot compute is not compiled, and the error says why.
func TestCompileRefuses(t *testing.T) {
	soc := phone(t)
	soc.Processor("npu").Sim.Infeasible = []socs.ShapeRange{{MinM: 512, MinK: 8192}}
	soc.Processor("npu").GraphBytes = 1 << 20
	soc.Processor("gpu").GraphBytes = 1 << 20
	for _, c := range []struct {
		proc     string
		operator op.Op
		class    diag.Class
		want     string
	}{
		{
			proc:     "npu",
			operator: matmul(512, 14336, 32, op.A8TQ4B32),
			class:    diag.ClassInfeasible,
			want:     "cannot be compiled",
		},
		{
			proc:     "npu",
			operator: matmul(1, 4096, 4096, op.A8TQ4B32),
			class:    diag.ClassInfeasible,
			want:     "graphs of at most 1048576",
		},
		{
			proc:     "gpu",
			operator: op.Op{Kind: op.ExpertMatMul, M: 1, Fan: 2, Experts: 16, K: 1024, N: 128, Scheme: op.A8TQ8C},
			class:    diag.ClassInfeasible,
			want:     "have 2113536 bytes",
		},
		{
			proc:     "npu",
			operator: op.Op{Kind: op.Attention, M: 1, Heads: 4, KVHeads: 2, HeadDim: 64, Context: 8, KV: op.F16},
			class:    diag.ClassInput,
			want:     `operator "attention" is not supported`,
		},
		{
			proc:     "dsp",
			operator: matmul(1, 32, 32, op.A8TQ4B32),
			class:    diag.ClassInput,
			want:     "no such simulated processor",
		},
	} {
		graph := op.Single(c.operator, pack.N32)
		_, err := sim.NewCompiler(soc).Compile(t.Context(), graph, nil, driver.Target{Proc: c.proc})
		if err == nil || diag.ClassOf(err) != c.class || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v (class %d), want %q (class %d)", err, diag.ClassOf(err), c.want, c.class)
		}
	}

	_, err := sim.NS(soc, "npu", matmul(512, 14336, 32, op.A8TQ4B32))
	if diag.ClassOf(err) != diag.ClassInfeasible {
		t.Errorf("infeasible shape: got %v", err)
	}
}

// An artifact of another driver, and one that is damaged or of another layout, is not loaded.
func TestLoadRefuses(t *testing.T) {
	p := open(t, phone(t), "npu", map[string]string{"compute": "false"})
	good, err := json.Marshal(op.Single(matmul(1, 32, 32, op.A8TQ8C), pack.N32))
	if err != nil {
		t.Fatal(err)
	}
	otherLayout := bytes.Replace(good, []byte("n32"), []byte("n64"), 1)
	for _, c := range []struct {
		artifact driver.Artifact
		want     string
	}{
		{artifact: driver.Artifact{Driver: "host", Code: good}, want: `compiled for driver "host"`},
		{artifact: driver.Artifact{Driver: "sim", Code: good[:20]}, want: "parse graph"},
		{artifact: driver.Artifact{Driver: "sim", Code: otherLayout}, want: `layout "n64"`},
	} {
		if _, err := p.Load(t.Context(), c.artifact, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// A processor runs no executable of another processor, and none that is closed.
func TestRunRefuses(t *testing.T) {
	soc := phone(t)
	p := open(t, soc, "npu", map[string]string{"compute": "false"})
	other := open(t, soc, "gpu", map[string]string{"compute": "false"})
	exe := load(t, soc, p, "npu", matmul(1, 32, 32, op.A8TQ8C), nil)

	if _, err := other.Run(exe, nil); err == nil {
		t.Error("another processor's executable ran")
	}
	if err := exe.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(exe, nil); err == nil {
		t.Error("a closed executable ran")
	}
}

// A processor that the SoC does not have, and an option that is unknown or bad, are errors of input.
func TestOpenRefuses(t *testing.T) {
	for proc, options := range map[string]map[string]string{
		"dsp": nil,
		"":    nil,
		"npu": {"speed": "2"},
		"gpu": {"beside": "gpu"},
		"cpu": {"seed": "-1"},
	} {
		_, err := sim.New(phone(t)).Open(t.Context(), driver.Config{Select: proc, Options: options})
		if err == nil || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("open %q %v: got %v", proc, options, err)
		}
	}
}

// A product with more rows, that is deeper or wider, never costs less, and none is free.
func TestMonotone(t *testing.T) {
	soc := phone(t)
	rapid.Check(t, func(rt *rapid.T) {
		proc := rapid.SampledFrom([]string{"cpu", "gpu", "npu"}).Draw(rt, "processor")
		scheme := rapid.SampledFrom(soc.Processor(proc).Schemes).Draw(rt, "scheme")
		side, more := rapid.IntRange(1, 20000), rapid.IntRange(0, 64)
		small := matmul(rapid.IntRange(1, 4096).Draw(rt, "m"), side.Draw(rt, "k"), side.Draw(rt, "n"), scheme)
		large := small
		large.M += more.Draw(rt, "dm")
		large.K += more.Draw(rt, "dk")
		large.N += more.Draw(rt, "dn")

		x, y := ns(rt, soc, proc, small), ns(rt, soc, proc, large)
		if x <= 0 || y < x {
			rt.Fatalf("%s takes %d ns, %s %d ns", small.Key(), x, large.Key(), y)
		}
	})
}
