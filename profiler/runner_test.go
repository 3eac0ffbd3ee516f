package profiler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// everyKind asks for one operator of each kind, in three schemes.
func everyKind() (out []Request) {
	for _, scheme := range op.Schemes {
		out = append(out, ask("a", &op.Op{Kind: op.MatMul, M: 3, K: 100, N: 70, Scheme: scheme}, 0),
			ask("a", &op.Op{Kind: op.MatMul, M: 3, K: 100, N: 70, Scheme: scheme, Bias: true}, 0))
		if !scheme.Experts() {
			continue
		}
		out = append(out,
			ask("a", &op.Op{Kind: op.ExpertMatMul, M: 1, K: 64, N: 70, Scheme: scheme, Experts: 7, Fan: 2, Spread: true}, 0),
			ask("a", &op.Op{Kind: op.ExpertMatMul, M: 9, K: 64, N: 70, Scheme: scheme, Experts: 7, Fan: 2}, 0))
	}
	for _, o := range []op.Op{
		{Kind: op.Embed, M: 4, K: 300, N: 64, Table: op.BF16},
		{Kind: op.Embed, M: 4, K: 200, N: 64, Table: op.F32},
		{Kind: op.SelectRow, M: 4, N: 64},
		{Kind: op.Norm, M: 4, N: 100},
		{Kind: op.LayerNorm, M: 4, N: 100},
		{Kind: op.QuantRows, M: 4, N: 100},
		{Kind: op.Route, M: 4, Experts: 7, Fan: 2, Router: op.RouteSoftmaxNorm},
		{Kind: op.Route, M: 4, Experts: 7, Fan: 2, Router: op.RouteSparseMixer, Jitter: 0.01},
		{Kind: op.Combine, M: 4, N: 100, Fan: 2},
		{Kind: op.QKNorm, M: 4, Heads: 4, KVHeads: 2, HeadDim: 32},
		{Kind: op.QKNorm, M: 4, Heads: 4, KVHeads: 2, HeadDim: 32, Joint: true},
		{Kind: op.Rope, M: 4, Heads: 4, KVHeads: 2, HeadDim: 32},
		{Kind: op.Rope, M: 4, Heads: 4, KVHeads: 2, HeadDim: 32, RotaryDim: 16, LongFrom: 2},
		{Kind: op.KVAppend, M: 4, Heads: 4, KVHeads: 2, HeadDim: 32, KV: op.F32},
		{Kind: op.Attention, M: 4, Heads: 4, KVHeads: 2, HeadDim: 32, Context: 50, KV: op.F32},
		{Kind: op.Attention, M: 4, Heads: 4, KVHeads: 2, HeadDim: 32, Context: 50, KV: op.F32, Window: 16, Cap: 20},
		{Kind: op.GLU, M: 4, N: 64, Interleave: 16, Act: op.SiLU},
		{Kind: op.Activate, M: 4, N: 64, Act: op.GELUTanh},
		{Kind: op.Gate, M: 4, N: 64},
		{Kind: op.Softcap, M: 4, N: 64, Cap: 30},
		{Kind: op.Clip, M: 4, N: 64, Cap: 8},
		{Kind: op.Add, M: 4, N: 64},
		{Kind: op.Copy, M: 4, N: 64},
	} {
		out = append(out, ask("b", &o, 0))
	}
	return out
}

// work is a plausible cost: proportional to the operator, with a slow first run.
func work(_ string, o op.Op, i int) float64 {
	ns := 1000 + float64((o.Flops()+o.Bytes())/4) // whole, as the clock counts them
	if i == 0 {
		ns *= 7
	}
	return ns
}

// Cold matrices of experts are used in turn, in every copy.
func TestColdExperts(t *testing.T) {
	f := &fake{cost: work}
	s := fakeSoC()
	w, _ := newRecord(t, s)
	few := ask("a", &op.Op{Kind: op.ExpertMatMul, M: 2, K: 64, N: 64, Scheme: op.A32W32, Experts: 10, Fan: 2}, 0)
	few.What.Footprint = 3 * 10 * 64 * 64 * 4
	warm := ask("a", &op.Op{Kind: op.ExpertMatMul, M: 2, K: 64, N: 96, Scheme: op.A32W32, Experts: 10, Fan: 2}, 0)
	warm.What.Cold, warm.What.Footprint = false, 0
	rep, err := Run(context.Background(), s, []Request{few, warm}, w, f.options())
	if err != nil || rep.Measured != 2 {
		t.Fatalf("measured %d of 2 (%v), refused %v", rep.Measured, err, rep.Refused)
	}
	if got := len(f.used[few.What.Op.Key()]); got != 3*10 {
		t.Errorf("%d experts were used, want 10 in each of 3 copies", got)
	}
	if got := len(f.used[warm.What.Op.Key()]); got != 4 {
		t.Errorf("%d experts were used of a warm weight, want 4", got)
	}
}

func TestRunMeasuresWhatThereIs(t *testing.T) {
	require.Slow(t)
	f := &fake{cost: work}
	s := fakeSoC()
	w, path := newRecord(t, s)
	requests := everyKind()
	for _, p := range []string{"a", "b", "c"} {
		requests = append(requests, Request{What: record.Measurement{Kind: record.Bandwidth, Proc: p, Bytes: 1 << 20, Unit: "ns"}})
	}
	requests = append(requests,
		Request{What: record.Measurement{Kind: record.Bandwidth, Proc: "a", Bytes: 1 << 20, Unit: "ns", Concurrent: []record.Partner{{Proc: "b"}}}},
		Request{What: record.Measurement{Kind: record.Sync, Proc: "a", To: "b", Unit: "ns"}},
		Request{What: record.Measurement{Kind: record.Launch, Proc: "a", Op: &op.Op{Kind: op.Copy, M: 1, N: 1}, Unit: "ns"}},
		Request{What: record.Measurement{Kind: record.Load, Proc: "a", Op: matmul(5), Layout: pack.N32, Unit: "ns"}},
	)
	f.fail = func(what, _ string, _ op.Op) error {
		if what == "load" {
			f.clock.Add(5000)
		}
		return nil
	}
	o := f.options()
	o.Rule = stat.Rule{Min: 10, Max: 12, Within: 0.02} // bandwidth takes real time
	rep, err := Run(context.Background(), s, requests, w, o)
	if err != nil {
		t.Fatal(err)
	}
	if rep.Measured != len(requests) || len(rep.Refused) != 0 || len(rep.Left) != 0 {
		t.Fatalf("measured %d of %d, refused %v, left %v", rep.Measured, len(requests), rep.Refused, rep.Left)
	}
	if f.streams.Load() == 0 {
		t.Error("bandwidth was not measured with the processor's own loop, which is the fastest")
	}
	set, err := record.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range requests {
		m := set.Lookup(requests[i].Key())
		if m == nil {
			t.Errorf("%s is missing", requests[i].Key())
			continue
		}
		if len(m.Samples) < 10 {
			t.Errorf("%s has %d samples, want at least 10", m.Key(), len(m.Samples))
		}
		if m.Kind == record.Load && m.Samples[0] != 5000 {
			t.Errorf("%s took %g ns, want 5000", m.Key(), m.Samples[0])
		}
		if m.Kind != record.Op && m.Kind != record.Launch {
			continue
		}
		want := round(work("", *m.Op, 1), 7)
		if m.Samples[3] != want || m.First != round(7*work("", *m.Op, 1), 7) {
			t.Errorf("%s: sample %g, first %g, want %g and 7 times that", m.Key(), m.Samples[3], m.First, want)
		}
		if len(m.Warnings) != 0 {
			t.Errorf("%s: warnings %v", m.Key(), m.Warnings)
		}
		if time.Duration(m.Samples[3])*time.Duration(m.Loops) < minSample {
			t.Errorf("%s: sample of %d executions is shorter than %v", m.Key(), m.Loops, minSample)
		}
	}
}

// TestColdWeightsRotate checks that executions of a cold operator use many copies of its weight.
func TestColdWeightsRotate(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]map[*byte]bool{}
	executions := 0
	f := &fake{cost: work}
	s := fakeSoC()
	// The cache has 1 MiB, so at least 64 MiB are rotated.
	cold, warm := ask("a", matmul(1), 0), ask("a", matmul(2), 0)
	cold.What.Footprint = 0
	warm.What.Cold, warm.What.Footprint = false, 0
	small := ask("a", matmul(3), 0)
	small.What.Footprint = 10 * (32*64 + 256) * 3
	w, _ := newRecord(t, s)
	o := f.options()
	o.Drivers = map[string]driver.Driver{"fake": spyDriver{f, func(e driver.Executable) {
		x := e.(*fakeExecutable)
		if len(x.w) == 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		key := x.o.Key()
		if x.o.M == 1 {
			executions++
		}
		if seen[key] == nil {
			seen[key] = map[*byte]bool{}
		}
		seen[key][&x.w[0].Bytes[0]] = true
	}}}
	if _, err := Run(context.Background(), s, []Request{cold, warm, small}, w, o); err != nil {
		t.Fatal(err)
	}
	if n := len(seen[matmul(1).Key()]); n != min(executions, maxCopies) || n < 10 {
		t.Errorf("cold: %d executions used %d copies, want another one each time", executions, n)
	}
	if n := len(seen[matmul(2).Key()]); n != 1 {
		t.Errorf("warm: %d copies, want 1", n)
	}
	if n := len(seen[matmul(3).Key()]); n != 10 {
		t.Errorf("footprint of ten weights: %d copies", n)
	}
}

// spyDriver sees every executable that runs.
type spyDriver struct {
	*fake
	run func(driver.Executable)
}

func (d spyDriver) Open(ctx context.Context, c driver.Config) (driver.Processor, error) {
	p, err := d.fake.Open(ctx, c)
	return spyProcessor{p, d.run}, err
}

type spyProcessor struct {
	driver.Processor
	run func(driver.Executable)
}

func (p spyProcessor) Run(e driver.Executable, b *driver.Bindings) (driver.Span, error) {
	p.run(e)
	return p.Processor.Run(e, b)
}

func TestNoise(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	f := &fake{}
	f.cost = func(p string, o op.Op, i int) float64 {
		ns := 300_000.0
		if o.M == 2 {
			ns *= 1 + 0.6*rng.Float64()
		} else if o.M == 1 {
			ns *= 1 + 0.005*rng.Float64()
		}
		return ns
	}
	s := fakeSoC()
	w, _ := newRecord(t, s)
	calm, wild := ask("a", matmul(1), 0), ask("a", matmul(2), 0)
	rep, err := Run(context.Background(), s, []Request{calm, wild}, w, f.options())
	if err != nil {
		t.Fatal(err)
	}
	a, b := w.Set().Lookup(calm.Key()), w.Set().Lookup(wild.Key())
	if len(a.Warnings) != 0 || len(a.Samples) > 30 {
		t.Errorf("calm: %d samples, %v", len(a.Samples), a.Warnings)
	}
	if !slices.Contains(b.Warnings, record.Noisy) || len(b.Samples) <= len(a.Samples) {
		t.Errorf("wild: %d samples, %v", len(b.Samples), b.Warnings)
	}
	if rep.Warnings[record.Noisy] != 1 {
		t.Errorf("report: %v", rep.Warnings)
	}
}

func TestSamplesAreInterleaved(t *testing.T) {
	var order []int
	f := &fake{}
	f.cost = func(p string, o op.Op, i int) float64 {
		if o.Kind == op.MatMul {
			order = append(order, o.M)
		}
		return 1e6
	}
	s := fakeSoC()
	w, _ := newRecord(t, s)
	var requests []Request
	for m := 1; m <= 5; m++ {
		requests = append(requests, ask("a", matmul(m), 0))
	}
	if _, err := Run(context.Background(), s, requests, w, f.options()); err != nil {
		t.Fatal(err)
	}
	order = order[len(order)-2*5*8:] // the last rounds, all five in progress
	for i := range len(order) / 2 {
		if order[2*i] != order[2*i+1] {
			t.Fatalf("before a sample of %d rows one of %d was executed", order[2*i+1], order[2*i])
		}
		order[i] = order[2*i]
	}
	order = order[:5*8]
	rounds := map[string]bool{}
	for i := 0; i < len(order); i += 5 {
		round := slices.Clone(order[i : i+5])
		rounds[fmt.Sprint(round)] = true
		slices.Sort(round)
		if !slices.Equal(round, []int{1, 2, 3, 4, 5}) {
			t.Fatalf("a round is %v, want each once", order[i:i+5])
		}
	}
	if len(rounds) < 4 {
		t.Errorf("%d different orders in 8 rounds: %v", len(rounds), order)
	}
}

// TestDriftIsNotKept slows the machine down by a fifth for a while: no measurement mixes both speeds
// without saying so.
func TestDriftIsNotKept(t *testing.T) {
	f := &fake{}
	slow := func() bool { n := f.runs.Load(); return n > 300 && n < 540 }
	f.cost = func(p string, o op.Op, i int) float64 {
		ns := 1e6
		if slow() {
			ns *= 1.2
		}
		return ns
	}
	s := fakeSoC()
	w, _ := newRecord(t, s)
	var requests []Request
	for m := 1; m <= 30; m++ {
		requests = append(requests, ask("a", matmul(m), 0))
	}
	if _, err := Run(context.Background(), s, requests, w, f.options()); err != nil {
		t.Fatal(err)
	}
	if f.runs.Load() < 420 {
		t.Fatalf("only %d runs: the slow phase was not passed", f.runs.Load())
	}
	flagged := 0
	for _, m := range w.Set().All() {
		if slices.Contains(m.Warnings, record.Drifted) {
			flagged++
			continue
		}
		if lo, hi := slices.Min(m.Samples), slices.Max(m.Samples); hi > 1.01*lo {
			t.Errorf("%s mixes %g and %g without a warning", m.Key(), lo, hi)
		}
	}
	if flagged > 16 {
		t.Errorf("%d of 30 measurements are flagged for one short disturbance", flagged)
	}
}

func TestBudget(t *testing.T) {
	f := &fake{cost: func(p string, o op.Op, i int) float64 { return 1e6 * float64(o.M) }}
	s := fakeSoC()
	w, _ := newRecord(t, s)
	var requests []Request
	for m := 1; m <= 40; m++ {
		requests = append(requests, ask("a", matmul(m), priorityShards+m%2))
	}
	dear := ask("b", matmul(100), priorityBase)
	requests = append(requests, dear)
	o := f.options()
	o.Budget = 3 * time.Second
	var last Progress
	o.Progress = func(p Progress) {
		if p.Done < last.Done || p.Total != 41 || p.Left > o.Budget {
			t.Errorf("progress %+v after %+v", p, last)
		}
		last = p
	}
	rep, err := Run(context.Background(), s, requests, w, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Left) == 0 || rep.Measured == 0 || rep.Measured+len(rep.Left) != 41 {
		t.Fatalf("measured %d, left %d of 41", rep.Measured, len(rep.Left))
	}
	if limit := o.Budget + o.Budget/2; rep.Elapsed > limit {
		t.Errorf("took %v, want at most %v", rep.Elapsed, limit)
	}
	// The dear one came first by priority, and got three samples.
	m := w.Set().Lookup(dear.Key())
	if m == nil || len(m.Samples) != fewSamples || !slices.Contains(m.Warnings, record.FewSamples) {
		t.Fatalf("dear operator: %+v", m)
	}
	left := map[int]int{}
	for _, key := range rep.Left {
		for _, r := range requests {
			if r.Key() == key {
				left[r.Priority]++
			}
		}
	}
	if left[priorityShards] > 0 && left[priorityBetween] < 20 {
		t.Errorf("left by priority: %v, want the less urgent first", left)
	}
	// Nothing that was cut short hides it.
	for _, m := range w.Set().All() {
		if len(m.Samples) < 10 && !slices.Contains(m.Warnings, record.FewSamples) {
			t.Errorf("%s has %d samples and warnings %v", m.Key(), len(m.Samples), m.Warnings)
		}
	}
	// A second run with time measures the rest.
	o.Budget, o.Progress = 0, nil
	before := w.Set().Len()
	rep, err = Run(context.Background(), s, requests, w, o)
	if err != nil || rep.Present != before || rep.Measured != 41-before || w.Set().Len() != 41 {
		t.Errorf("second run: %+v, %v", rep, err)
	}
}

// A budget never leaves out what no plan can do without.
func TestBudgetMeasuresTheIndispensable(t *testing.T) {
	for _, rounds := range []int{1, Rounds} {
		f := &fake{cost: func(p string, o op.Op, i int) float64 { return 1e6 * float64(o.M) }}
		s := fakeSoC()
		w, _ := newRecord(t, s)
		var requests []Request
		for m := 1; m <= 40; m++ {
			requests = append(requests, ask("a", matmul(m), m%4))
		}
		o := f.options()
		o.Budget, o.Rounds = time.Nanosecond, rounds
		rep, err := Run(context.Background(), s, requests, w, o)
		if err != nil {
			t.Fatal(err)
		}
		if rep.Measured != 20 || len(rep.Left) != 20 {
			t.Errorf("%d rounds: measured %d, left %d, want 20 and 20", rounds, rep.Measured, len(rep.Left))
		}
		for _, q := range requests {
			m := w.Set().Lookup(q.Key())
			if (m != nil) != (q.Priority <= priorityGlue) {
				t.Errorf("%d rounds: %s of priority %d: measured %v", rounds, q.Key(), q.Priority, m != nil)
			}
			if m != nil && !slices.Contains(m.Warnings, record.FewSamples) {
				t.Errorf("%d rounds: %s has %d samples and warnings %v", rounds, m.Key(), len(m.Samples), m.Warnings)
			}
		}
	}
}

// TestResume interrupts a run again and again; together the runs measure everything once.
func TestResume(t *testing.T) {
	s := fakeSoC()
	w, path := newRecord(t, s)
	w.Close()
	requests := everyKind()
	measured := 0
	for round := 0; ; round++ {
		if round > len(requests) {
			t.Fatal("no end")
		}
		f := &fake{cost: work}
		ctx, cancel := context.WithCancel(context.Background())
		o := f.options()
		ended := 0
		o.Progress = func(p Progress) {
			if p.Ended {
				if ended++; ended == 3 {
					cancel()
				}
			}
		}
		w, err := record.Resume(path, fakeHeader(t, s))
		if err != nil {
			t.Fatal(err)
		}
		if w.Set().Len() != measured {
			t.Fatalf("round %d resumes with %d measurements, want %d", round, w.Set().Len(), measured)
		}
		rep, err := Run(ctx, s, requests, w, o)
		w.Close()
		cancel()
		measured += rep.Measured
		if rep.Present+rep.Measured == len(requests) {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	if measured != len(requests) {
		t.Errorf("%d measurements for %d requests", measured, len(requests))
	}
}

func TestPending(t *testing.T) {
	requests := everyKind()
	requests = append(requests, requests[0])
	for i := range requests {
		requests[i].Priority = i % 3
	}
	a, b, c := Pending(requests, nil, 1, 1), Pending(requests, nil, 1, 1), Pending(requests, nil, 1, 2)
	if !reflect.DeepEqual(a, b) || reflect.DeepEqual(a, c) {
		t.Error("the order does not follow from the seed alone")
	}
	if len(a) != len(requests)-1 || !slices.IsSortedFunc(a, func(x, y Request) int { return x.Priority - y.Priority }) {
		t.Errorf("%d requests, want %d in order of priority", len(a), len(requests)-1)
	}
}

// Times of an emulator are nothing to fit costs to.
func TestEmulatorsAreNotMeasured(t *testing.T) {
	f := &fake{cost: work, emulated: true}
	s := fakeSoC()
	w, _ := newRecord(t, s)
	_, err := Run(context.Background(), s, []Request{ask("a", matmul(7), 0)}, w, f.options())
	if err == nil || !strings.Contains(err.Error(), `processor "a" of driver "fake" is an emulator`) || diag.ClassOf(err) != diag.ClassUnavailable {
		t.Errorf("got %v", err)
	}
	if f.runs.Load() != 0 {
		t.Error("something was run")
	}
}

func TestRefusals(t *testing.T) {
	s := fakeSoC()
	bad := errors.New("shape is too odd")
	f := &fake{cost: work, fail: func(what, _ string, o op.Op) error {
		switch {
		case what == "load" && o.M == 2:
			return bad
		case what == "run" && o.M == 3:
			return bad
		case what == "run" && o.M == 4:
			panic("driver bug")
		}
		return nil
	}}
	w, _ := newRecord(t, s)
	requests := []Request{ask("a", matmul(1), 0), ask("a", matmul(2), 0), ask("a", matmul(3), 0), ask("a", matmul(4), 0), ask("a", matmul(5), 0), ask("zz", matmul(5), 0)}
	rep, err := Run(context.Background(), s, requests, w, f.options())
	if err != nil {
		t.Fatal(err)
	}
	if rep.Measured != 2 || len(rep.Refused) != 4 {
		t.Fatalf("measured %d, refused %v", rep.Measured, rep.Refused)
	}
	text := ""
	for _, r := range rep.Refused {
		text += r.Err.Error() + "\n"
	}
	for _, want := range []string{bad.Error(), "driver panicked: driver bug", `SoC "fake" has no such processor`} {
		if !strings.Contains(text, want) {
			t.Errorf("refusals %q lack %q", text, want)
		}
	}

	o := f.options()
	o.Drivers = nil
	if _, err := Run(context.Background(), s, []Request{ask("a", matmul(7), 0)}, w, o); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("without a driver: %v", err)
	}
	o = f.options()
	o.Compilers = nil
	if _, err := Run(context.Background(), s, []Request{ask("a", matmul(7), 0)}, w, o); diag.ClassOf(err) != diag.ClassUnavailable {
		t.Errorf("without a compiler: %v", err)
	}
	other := fakeSoC()
	other.Name = "other"
	if _, err := Run(context.Background(), other, nil, w, f.options()); err == nil {
		t.Error("a record of another SoC is accepted")
	}
}

// TestHangingDriver gives a processor that never returns: an interrupt still ends the run.
func TestHangingDriver(t *testing.T) {
	require.Slow(t)
	s := fakeSoC()
	release := make(chan struct{})
	defer close(release)
	ctx, cancel := context.WithCancel(context.Background())
	f := &fake{cost: work, fail: func(what, _ string, o op.Op) error {
		if what == "run" && o.M == 2 {
			cancel()
			<-release
		}
		return nil
	}}
	w, _ := newRecord(t, s)
	done := make(chan error, 1)
	go func() {
		_, err := Run(ctx, s, []Request{ask("a", matmul(1), 0), ask("a", matmul(2), 1)}, w, f.options())
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the run does not end")
	}
}

// TestBeside lets an operator take twice as long while another processor runs.
func TestBeside(t *testing.T) {
	f := &fake{busy: 20 * time.Microsecond}
	f.cost = func(p string, o op.Op, i int) float64 {
		if f.running.Load() > 1 {
			return 2e6
		}
		return 1e6
	}
	s := fakeSoC()
	w, _ := newRecord(t, s)
	alone := ask("a", matmul(1), 0)
	both := ask("a", matmul(1), 0)
	both.What.Concurrent = []record.Partner{{Proc: "b", Op: matmul(2), Layout: pack.N32, Cold: true}}
	stream := ask("a", matmul(1), 0)
	stream.What.Concurrent = []record.Partner{{Proc: "b"}}
	shared := ask("a", matmul(1), 0)
	shared.What.Concurrent = []record.Partner{{Proc: "c", Op: matmul(2), Layout: pack.N32}}
	rep, err := Run(context.Background(), s, []Request{alone, both, stream, shared}, w, f.options())
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Refused) != 1 || rep.Refused[0].Key != shared.Key() {
		t.Errorf("refused %v, want the pair that shares a core", rep.Refused)
	}
	a, b := w.Set().Lookup(alone.Key()), w.Set().Lookup(both.Key())
	if a == nil || b == nil || w.Set().Lookup(stream.Key()) == nil {
		t.Fatal("a measurement is missing")
	}
	// The clock is shared, so the partner's runs lengthen b's samples further; alone nothing does.
	if x, y := stat.Median(a.Samples), stat.Median(b.Samples); x != 1e6 || y < 1.5e6 {
		t.Errorf("alone %g, beside %g", x, y)
	}
}

func TestLaunchOfNothing(t *testing.T) {
	for ns, want := range map[float64]int{0: 1000, 1: maxLoops, 1000: 200, 150_000: 2, 200_000: 1, 1e12: 1} {
		if got := loopsFor(ns); got != want {
			t.Errorf("loopsFor(%g) = %d, want %d", ns, got, want)
		}
	}
}

func TestSoCWithoutLinksRefusesCopies(t *testing.T) {
	s := fakeSoC()
	for i := range s.Processors {
		s.Processors[i].Cores = nil
	}
	f := &fake{cost: work}
	w, _ := newRecord(t, s)
	rep, err := Run(context.Background(), s, []Request{
		{What: record.Measurement{Kind: record.Sync, Proc: "a", To: "b", Unit: "ns"}},
		{What: record.Measurement{Kind: record.Copy, Proc: "a", To: "b", Bytes: 4096, Unit: "ns"}},
		{What: record.Measurement{Kind: record.Bandwidth, Proc: "a", Bytes: 4096, Unit: "ns"}},
	}, w, f.options())
	if err != nil {
		t.Fatal(err)
	}
	// A processor without cores of its own shows its bandwidth through an operator; the flag it cannot spin on.
	if rep.Measured < 1 || len(rep.Refused) < 1 || rep.Refused[0].Key != "sync a to b" {
		t.Errorf("measured %d, refused %v", rep.Measured, rep.Refused)
	}
	m := w.Set().Lookup("bandwidth a 4096B")
	if m == nil {
		t.Fatal("no bandwidth")
	}
	o := streamOp(false)
	if want := work("", o, 1) * 4096 / float64(o.Bytes()); m.Samples[0] != round(want, 7) {
		t.Errorf("bandwidth sample %g, want %g", m.Samples[0], want)
	}
}

var _ = socs.SimDriver
