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
			ask("a", &op.Op{Kind: op.ExpertMatMul, M: 1, K: 64, N: 70, Scheme: scheme, Experts: 7, Fan: 2,
				Spread: true}, 0),
			ask("a", &op.Op{Kind: op.ExpertMatMul, M: 9, K: 64, N: 70, Scheme: scheme, Experts: 7, Fan: 2}, 0))
	}
	for _, operator := range []op.Op{
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
		out = append(out, ask("b", &operator, 0))
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
	driver := &fake{cost: work}
	soc := fakeSoC()
	writer, _ := newRecord(t, soc)
	few := ask("a", &op.Op{Kind: op.ExpertMatMul, M: 2, K: 64, N: 64, Scheme: op.A32W32, Experts: 10, Fan: 2}, 0)
	few.What.Footprint = 3 * 10 * 64 * 64 * 4
	warm := ask("a", &op.Op{Kind: op.ExpertMatMul, M: 2, K: 64, N: 96, Scheme: op.A32W32, Experts: 10, Fan: 2}, 0)
	warm.What.Cold, warm.What.Footprint = false, 0
	rep, err := Run(context.Background(), soc, []Request{few, warm}, writer, driver.options())
	if err != nil || rep.Measured != 2 {
		t.Fatalf("measured %d of 2 (%v), refused %v", rep.Measured, err, rep.Refused)
	}
	if got := len(driver.used[few.What.Op.Key()]); got != 3*10 {
		t.Errorf("%d experts were used, want 10 in each of 3 copies", got)
	}
	if got := len(driver.used[warm.What.Op.Key()]); got != 4 {
		t.Errorf("%d experts were used of a warm weight, want 4", got)
	}
}

func TestRunMeasuresWhatThereIs(t *testing.T) {
	require.Slow(t)
	driver := &fake{cost: work}
	soc := fakeSoC()
	writer, path := newRecord(t, soc)
	requests := everyKind()
	for _, p := range []string{"a", "b", "c"} {
		requests = append(requests,
			Request{What: record.Measurement{Kind: record.Bandwidth, Proc: p, Bytes: 1 << 20, Unit: "ns"}})
	}
	requests = append(requests,
		Request{What: record.Measurement{Kind: record.Bandwidth, Proc: "a", Bytes: 1 << 20, Unit: "ns",
			Concurrent: []record.Partner{{Proc: "b"}}}},
		Request{What: record.Measurement{Kind: record.Sync, Proc: "a", To: "b", Unit: "ns"}},
		Request{What: record.Measurement{Kind: record.Launch, Proc: "a", Op: &op.Op{Kind: op.Copy, M: 1, N: 1},
			Unit: "ns"}},
		Request{What: record.Measurement{Kind: record.Load, Proc: "a", Op: matmul(5), Layout: pack.N32, Unit: "ns"}},
	)
	driver.fail = func(what, _ string, _ op.Op) error {
		if what == "load" {
			driver.clock.Add(5000)
		}
		return nil
	}
	options := driver.options()
	options.Rule = stat.Rule{Min: 10, Max: 12, Within: 0.02} // bandwidth takes real time
	rep, err := Run(context.Background(), soc, requests, writer, options)
	if err != nil {
		t.Fatal(err)
	}
	if rep.Measured != len(requests) || len(rep.Refused) != 0 || len(rep.Left) != 0 {
		t.Fatalf("measured %d of %d, refused %v, left %v", rep.Measured, len(requests), rep.Refused, rep.Left)
	}
	if driver.streams.Load() == 0 {
		t.Error("bandwidth was not measured with the processor's own loop, which is the fastest")
	}
	set, err := record.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range requests {
		measured := set.Lookup(requests[i].Key())
		if measured == nil {
			t.Errorf("%s is missing", requests[i].Key())
			continue
		}
		if len(measured.Samples) < 10 {
			t.Errorf("%s has %d samples, want at least 10", measured.Key(), len(measured.Samples))
		}
		if measured.Kind == record.Load && measured.Samples[0] != 5000 {
			t.Errorf("%s took %g ns, want 5000", measured.Key(), measured.Samples[0])
		}
		if measured.Kind != record.Op && measured.Kind != record.Launch {
			continue
		}
		want := round(work("", *measured.Op, 1), 7)
		if measured.Samples[3] != want || measured.First != round(7*work("", *measured.Op, 1), 7) {
			t.Errorf("%s: sample %g, first %g, want %g and 7 times that", measured.Key(), measured.Samples[3],
				measured.First, want)
		}
		if len(measured.Warnings) != 0 {
			t.Errorf("%s: warnings %v", measured.Key(), measured.Warnings)
		}
		if time.Duration(measured.Samples[3])*time.Duration(measured.Loops) < minSample {
			t.Errorf("%s: sample of %d executions is shorter than %v", measured.Key(), measured.Loops, minSample)
		}
	}
}

// TestColdWeightsRotate checks that executions of a cold operator use many copies of its weight.
func TestColdWeightsRotate(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]map[*byte]bool{}
	executions := 0
	f := &fake{cost: work}
	soc := fakeSoC()
	// The cache has 1 MiB, so at least 64 MiB are rotated.
	cold, warm := ask("a", matmul(1), 0), ask("a", matmul(2), 0)
	cold.What.Footprint = 0
	warm.What.Cold, warm.What.Footprint = false, 0
	small := ask("a", matmul(3), 0)
	small.What.Footprint = 10 * (32*64 + 256) * 3
	writer, _ := newRecord(t, soc)
	options := f.options()
	options.Drivers = map[string]driver.Driver{"fake": spyDriver{f, func(e driver.Executable) {
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
	if _, err := Run(context.Background(), soc, []Request{cold, warm, small}, writer, options); err != nil {
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
	driver := &fake{}
	driver.cost = func(p string, operator op.Op, i int) float64 {
		ns := 300_000.0
		if operator.M == 2 {
			ns *= 1 + 0.6*rng.Float64()
		} else if operator.M == 1 {
			ns *= 1 + 0.005*rng.Float64()
		}
		return ns
	}
	soc := fakeSoC()
	writer, _ := newRecord(t, soc)
	calm, wild := ask("a", matmul(1), 0), ask("a", matmul(2), 0)
	rep, err := Run(context.Background(), soc, []Request{calm, wild}, writer, driver.options())
	if err != nil {
		t.Fatal(err)
	}
	measured, b := writer.Set().Lookup(calm.Key()), writer.Set().Lookup(wild.Key())
	if len(measured.Warnings) != 0 || len(measured.Samples) > 30 {
		t.Errorf("calm: %d samples, %v", len(measured.Samples), measured.Warnings)
	}
	if !slices.Contains(b.Warnings, record.Noisy) || len(b.Samples) <= len(measured.Samples) {
		t.Errorf("wild: %d samples, %v", len(b.Samples), b.Warnings)
	}
	if rep.Warnings[record.Noisy] != 1 {
		t.Errorf("report: %v", rep.Warnings)
	}
}

func TestSamplesAreInterleaved(t *testing.T) {
	var order []int
	driver := &fake{}
	driver.cost = func(p string, operator op.Op, i int) float64 {
		if operator.Kind == op.MatMul {
			order = append(order, operator.M)
		}
		return 1e6
	}
	soc := fakeSoC()
	writer, _ := newRecord(t, soc)
	var requests []Request
	for m := 1; m <= 5; m++ {
		requests = append(requests, ask("a", matmul(m), 0))
	}
	if _, err := Run(context.Background(), soc, requests, writer, driver.options()); err != nil {
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
	driver := &fake{}
	slow := func() bool { n := driver.runs.Load(); return n > 300 && n < 540 }
	driver.cost = func(p string, o op.Op, i int) float64 {
		ns := 1e6
		if slow() {
			ns *= 1.2
		}
		return ns
	}
	soc := fakeSoC()
	writer, _ := newRecord(t, soc)
	var requests []Request
	for m := 1; m <= 30; m++ {
		requests = append(requests, ask("a", matmul(m), 0))
	}
	if _, err := Run(context.Background(), soc, requests, writer, driver.options()); err != nil {
		t.Fatal(err)
	}
	if driver.runs.Load() < 420 {
		t.Fatalf("only %d runs: the slow phase was not passed", driver.runs.Load())
	}
	flagged := 0
	for _, measured := range writer.Set().All() {
		if slices.Contains(measured.Warnings, record.Drifted) {
			flagged++
			continue
		}
		if lo, hi := slices.Min(measured.Samples), slices.Max(measured.Samples); hi > 1.01*lo {
			t.Errorf("%s mixes %g and %g without a warning", measured.Key(), lo, hi)
		}
	}
	if flagged > 16 {
		t.Errorf("%d of 30 measurements are flagged for one short disturbance", flagged)
	}
}

func TestBudget(t *testing.T) {
	driver := &fake{cost: func(p string, o op.Op, i int) float64 { return 1e6 * float64(o.M) }}
	soc := fakeSoC()
	writer, _ := newRecord(t, soc)
	var requests []Request
	for m := 1; m <= 40; m++ {
		requests = append(requests, ask("a", matmul(m), priorityShards+m%2))
	}
	dear := ask("b", matmul(100), priorityBase)
	requests = append(requests, dear)
	options := driver.options()
	options.Budget = 3 * time.Second
	var last Progress
	options.Progress = func(p Progress) {
		if p.Done < last.Done || p.Total != 41 || p.Left > options.Budget {
			t.Errorf("progress %+v after %+v", p, last)
		}
		last = p
	}
	rep, err := Run(context.Background(), soc, requests, writer, options)
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Left) == 0 || rep.Measured == 0 || rep.Measured+len(rep.Left) != 41 {
		t.Fatalf("measured %d, left %d of 41", rep.Measured, len(rep.Left))
	}
	if limit := options.Budget + options.Budget/2; rep.Elapsed > limit {
		t.Errorf("took %v, want at most %v", rep.Elapsed, limit)
	}
	// The dear one came first by priority, and got three samples.
	measured := writer.Set().Lookup(dear.Key())
	if measured == nil || len(measured.Samples) != fewSamples ||
		!slices.Contains(measured.Warnings, record.FewSamples) {
		t.Fatalf("dear operator: %+v", measured)
	}
	left := map[int]int{}
	for _, key := range rep.Left {
		for _, request := range requests {
			if request.Key() == key {
				left[request.Priority]++
			}
		}
	}
	if left[priorityShards] > 0 && left[priorityBetween] < 20 {
		t.Errorf("left by priority: %v, want the less urgent first", left)
	}
	// Nothing that was cut short hides it.
	for _, m := range writer.Set().All() {
		if len(m.Samples) < 10 && !slices.Contains(m.Warnings, record.FewSamples) {
			t.Errorf("%s has %d samples and warnings %v", m.Key(), len(m.Samples), m.Warnings)
		}
	}
	// A second run with time measures the rest.
	options.Budget, options.Progress = 0, nil
	before := writer.Set().Len()
	rep, err = Run(context.Background(), soc, requests, writer, options)
	if err != nil || rep.Present != before || rep.Measured != 41-before || writer.Set().Len() != 41 {
		t.Errorf("second run: %+v, %v", rep, err)
	}
}

// A budget never leaves out what no plan can do without.
func TestBudgetMeasuresTheIndispensable(t *testing.T) {
	for _, rounds := range []int{1, Rounds} {
		driver := &fake{cost: func(p string, o op.Op, i int) float64 { return 1e6 * float64(o.M) }}
		soc := fakeSoC()
		writer, _ := newRecord(t, soc)
		var requests []Request
		for m := 1; m <= 40; m++ {
			requests = append(requests, ask("a", matmul(m), m%4))
		}
		options := driver.options()
		options.Budget, options.Rounds = time.Nanosecond, rounds
		rep, err := Run(context.Background(), soc, requests, writer, options)
		if err != nil {
			t.Fatal(err)
		}
		if rep.Measured != 20 || len(rep.Left) != 20 {
			t.Errorf("%d rounds: measured %d, left %d, want 20 and 20", rounds, rep.Measured, len(rep.Left))
		}
		for _, request := range requests {
			measured := writer.Set().Lookup(request.Key())
			if (measured != nil) != (request.Priority <= priorityGlue) {
				t.Errorf("%d rounds: %s of priority %d: measured %v", rounds, request.Key(), request.Priority,
					measured != nil)
			}
			if measured != nil && !slices.Contains(measured.Warnings, record.FewSamples) {
				t.Errorf("%d rounds: %s has %d samples and warnings %v", rounds, measured.Key(), len(measured.Samples),
					measured.Warnings)
			}
		}
	}
}

// TestResume interrupts a run again and again; together the runs measure everything once.
func TestResume(t *testing.T) {
	soc := fakeSoC()
	w, path := newRecord(t, soc)
	w.Close()
	requests := everyKind()
	measured := 0
	for round := 0; ; round++ {
		if round > len(requests) {
			t.Fatal("no end")
		}
		driver := &fake{cost: work}
		ctx, cancel := context.WithCancel(context.Background())
		options := driver.options()
		ended := 0
		options.Progress = func(p Progress) {
			if p.Ended {
				if ended++; ended == 3 {
					cancel()
				}
			}
		}
		writer, err := record.Resume(path, fakeHeader(t, soc))
		if err != nil {
			t.Fatal(err)
		}
		if writer.Set().Len() != measured {
			t.Fatalf("round %d resumes with %d measurements, want %d", round, writer.Set().Len(), measured)
		}
		rep, err := Run(ctx, soc, requests, writer, options)
		writer.Close()
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
	driver := &fake{cost: work, emulated: true}
	soc := fakeSoC()
	w, _ := newRecord(t, soc)
	_, err := Run(context.Background(), soc, []Request{ask("a", matmul(7), 0)}, w, driver.options())
	if err == nil || !strings.Contains(err.Error(), `processor "a" of driver "fake" is an emulator`) ||
		diag.ClassOf(err) != diag.ClassUnavailable {
		t.Errorf("got %v", err)
	}
	if driver.runs.Load() != 0 {
		t.Error("something was run")
	}
}

// A processor that does not open as it is described ends the run: no request for it can be measured.
func TestUnopenedProcessor(t *testing.T) {
	wrong := diag.New(diag.ClassInput, "no kernels are called so")
	f := &fake{cost: work, unopened: wrong}
	soc := fakeSoC()
	writer, _ := newRecord(t, soc)

	report, err := Run(context.Background(), soc, []Request{ask("a", matmul(1), 0)}, writer, f.options())

	if !errors.Is(err, wrong) || diag.ClassOf(err) != diag.ClassInput || len(report.Refused) > 0 {
		t.Errorf("got %v, refused %v, want the driver's error", err, report.Refused)
	}
}

func TestRefusals(t *testing.T) {
	soc := fakeSoC()
	bad := errors.New("shape is too odd")
	f := &fake{cost: work, fail: func(what, _ string, operator op.Op) error {
		switch {
		case what == "load" && operator.M == 2:
			return bad
		case what == "run" && operator.M == 3:
			return bad
		case what == "run" && operator.M == 4:
			panic("driver bug")
		}
		return nil
	}}
	writer, _ := newRecord(t, soc)
	requests := []Request{ask("a", matmul(1), 0), ask("a", matmul(2), 0), ask("a", matmul(3), 0),
		ask("a", matmul(4), 0), ask("a", matmul(5), 0), ask("zz", matmul(5), 0)}
	rep, err := Run(context.Background(), soc, requests, writer, f.options())
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

	options := f.options()
	options.Drivers = nil
	if _, err := Run(context.Background(), soc, []Request{ask("a", matmul(7), 0)}, writer, options); !errors.Is(err,
		driver.ErrUnavailable) {
		t.Errorf("without a driver: %v", err)
	}
	options = f.options()
	options.Compilers = nil
	if _, err := Run(context.Background(), soc, []Request{ask("a", matmul(7), 0)}, writer,
		options); diag.ClassOf(err) != diag.ClassUnavailable {
		t.Errorf("without a compiler: %v", err)
	}
	other := fakeSoC()
	other.Name = "other"
	if _, err := Run(context.Background(), other, nil, writer, f.options()); err == nil {
		t.Error("a record of another SoC is accepted")
	}
}

// TestHangingDriver gives a processor that never returns: an interrupt still ends the run.
func TestHangingDriver(t *testing.T) {
	require.Slow(t)
	soc := fakeSoC()
	release := make(chan struct{})
	defer close(release)
	ctx, cancel := context.WithCancel(context.Background())
	driver := &fake{cost: work, fail: func(what, _ string, o op.Op) error {
		if what == "run" && o.M == 2 {
			cancel()
			<-release
		}
		return nil
	}}
	writer, _ := newRecord(t, soc)
	done := make(chan error, 1)
	go func() {
		_, err := Run(ctx, soc, []Request{ask("a", matmul(1), 0), ask("a", matmul(2), 1)}, writer, driver.options())
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

// TestSlowdownBesideIsMeasured lets an operator take twice as long while another processor runs.
func TestSlowdownBesideIsMeasured(t *testing.T) {
	driver := &fake{busy: 20 * time.Microsecond}
	driver.cost = func(p string, o op.Op, i int) float64 {
		if driver.running.Load() > 1 {
			return 2e6
		}
		return 1e6
	}
	soc := fakeSoC()
	writer, _ := newRecord(t, soc)
	alone := ask("a", matmul(1), 0)
	both := ask("a", matmul(1), 0)
	both.What.Concurrent = []record.Partner{{Proc: "b", Op: matmul(2), Layout: pack.N32, Cold: true}}
	stream := ask("a", matmul(1), 0)
	stream.What.Concurrent = []record.Partner{{Proc: "b"}}
	shared := ask("a", matmul(1), 0)
	shared.What.Concurrent = []record.Partner{{Proc: "c", Op: matmul(2), Layout: pack.N32}}
	rep, err := Run(context.Background(), soc, []Request{alone, both, stream, shared}, writer, driver.options())
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Refused) != 1 || rep.Refused[0].Key != shared.Key() {
		t.Errorf("refused %v, want the pair that shares a core", rep.Refused)
	}
	measured, b := writer.Set().Lookup(alone.Key()), writer.Set().Lookup(both.Key())
	if measured == nil || b == nil || writer.Set().Lookup(stream.Key()) == nil {
		t.Fatal("a measurement is missing")
	}
	// The clock is shared, so the partner's runs lengthen b's samples further; alone nothing does.
	if x, y := stat.Median(measured.Samples), stat.Median(b.Samples); x != 1e6 || y < 1.5e6 {
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
	soc := fakeSoC()
	for i := range soc.Processors {
		soc.Processors[i].Cores = nil
	}
	driver := &fake{cost: work}
	writer, _ := newRecord(t, soc)
	rep, err := Run(context.Background(), soc, []Request{
		{What: record.Measurement{Kind: record.Sync, Proc: "a", To: "b", Unit: "ns"}},
		{What: record.Measurement{Kind: record.Copy, Proc: "a", To: "b", Bytes: 4096, Unit: "ns"}},
		{What: record.Measurement{Kind: record.Bandwidth, Proc: "a", Bytes: 4096, Unit: "ns"}},
	}, writer, driver.options())
	if err != nil {
		t.Fatal(err)
	}
	// A processor without cores of its own shows its bandwidth through an operator; the flag it cannot spin on.
	if rep.Measured < 1 || len(rep.Refused) < 1 || rep.Refused[0].Key != "sync a to b" {
		t.Errorf("measured %d, refused %v", rep.Measured, rep.Refused)
	}
	measured := writer.Set().Lookup("bandwidth a 4096B")
	if measured == nil {
		t.Fatal("no bandwidth")
	}
	o := streamOp(false)
	if want := work("", o, 1) * 4096 / float64(o.Bytes()); measured.Samples[0] != round(want, 7) {
		t.Errorf("bandwidth sample %g, want %g", measured.Samples[0], want)
	}
}

var _ = socs.SimDriver
