package executor_test

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
	"github.com/hetc/hetc/runtime/executor"
)

// batchPlan is makePlan with programs that decode batches of sequences.
func batchPlan(t testing.TB, m *models.Model, procs []planir.Proc, rows, batches []int, context int, scheme op.Scheme, f layoutOf) *planir.Plan {
	t.Helper()
	p := makePlan(t, m, procs, rows, context, scheme, f)
	p.Batches = batches
	g := m.Graph()
	batch := g.Batch()
	schemeOf := func(node string) op.Scheme { return p.DecisionFor(node, 1).Scheme }
	for _, b := range batches {
		more, err := lower.Trivial(&batch, procs[0].Name, []int{b}, context, op.F32, func(node string, _ int) op.Scheme { return schemeOf(node) })
		if err != nil {
			t.Fatal(err)
		}
		sections, err := lower.Expand(&batch, b, context, op.F32, schemeOf, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		at := len(p.Decisions)
		p.Decisions = append(p.Decisions, more...)
		for _, s := range sections {
			for _, n := range s.Nodes {
				for i := range p.Decisions[at:] {
					if d := &p.Decisions[at+i]; d.Node == n.Name && len(procs) > 1 && d.Axis == planir.AxisNone {
						f(d, &n)
					}
				}
			}
		}
	}
	if err := lower.Lower(p, &g); err != nil {
		t.Fatal(err)
	}
	if l := planir.Check(p); l.Err() != nil {
		t.Fatal(l.Err())
	}
	return p
}

// prompts of different lengths, of ids below vocab.
func prompts(vocab int, lengths ...int) [][]int32 {
	var out [][]int32
	for k, n := range lengths {
		p := make([]int32, n)
		for i := range p {
			p[i] = int32((i*(31+2*k) + 7*k + 1) % vocab)
		}
		out = append(out, p)
	}
	return out
}

// trace is the logits after every step of a sequence.
type trace [][]float32

// alone decodes each prompt by itself: the tokens and the logits they were taken from.
func alone(t testing.TB, x *executor.Machine, list [][]int32, steps int) (out []trace) {
	t.Helper()
	for _, prompt := range list {
		var tr trace
		x.Reset()
		err := x.Do(context.Background(), func(c *executor.Control) error {
			next := slices.Clone(prompt)
			for range steps {
				if _, err := c.Forward(next, executor.WantLast, func(_ int, l []float32) error {
					tr = append(tr, slices.Clone(l))
					return nil
				}); err != nil {
					return err
				}
				next = []int32{greedy(tr[len(tr)-1])}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, tr)
	}
	return out
}

func greedy(l []float32) int32 {
	best := 0
	for i, v := range l {
		if v > l[best] {
			best = i
		}
	}
	return int32(best)
}

// together decodes the prompts in sequences that begin and end at different times: prompt k is of steps-k%3 steps.
func together(t testing.TB, x *executor.Machine, list [][]int32, steps int) []trace {
	t.Helper()
	out := make([]trace, len(list))
	x.Reset()
	err := x.Do(context.Background(), func(c *executor.Control) error {
		for k, prompt := range list {
			if _, err := c.Extend(len(list)-1-k, prompt, executor.WantLast, func(_ int, l []float32) error {
				out[k] = append(out[k], slices.Clone(l))
				return nil
			}); err != nil {
				return err
			}
		}
		for {
			var tokens []executor.Token
			var who []int
			for k := range list {
				if len(out[k]) < steps-k%3 {
					tokens, who = append(tokens, executor.Token{Sequence: len(list) - 1 - k, ID: greedy(out[k][len(out[k])-1])}), append(who, k)
				}
			}
			if len(who) == 0 {
				return nil
			}
			if _, err := c.Step(tokens, func(i int, l []float32) error {
				out[who[i]] = append(out[who[i]], slices.Clone(l))
				return nil
			}); err != nil {
				return err
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// same compares what was computed together with what was computed alone, within limit (0: bit by bit).
func same(t testing.TB, what string, alone, together []trace, limit float64) {
	t.Helper()
	for k := range together {
		for i, l := range together[k] {
			if d := maxDiff(l, alone[k][i]); !(d <= limit) {
				t.Errorf("%s: prompt %d, step %d: logits differ by %g from those alone, want at most %g", what, k, i, d, limit)
				break
			}
		}
	}
}

// Sequences that are decoded together compute the very bits of each of them alone in every quantised scheme: with the
// kernels of every tier that this CPU has, on one core and several, divided over two processors.
func TestBatchComputesTheSameBits(t *testing.T) {
	require.Slow(t)
	m := open(t)
	a, b := cores(t)
	list := prompts(m.Vocab, 5, 1, 17, 30)
	type setup struct {
		name  string
		procs []planir.Proc
		f     layoutOf
	}
	setups := []setup{
		{"two cores", []planir.Proc{proc("a", a+"-"+b, "")}, bySingle},
		{"columns and heads", []planir.Proc{proc("a", a, ""), proc("b", b, "")}, byColumns},
		{"rows", []planir.Proc{proc("a", a, ""), proc("b", b, "")}, byRows},
	}
	schemes := []op.Scheme{op.A8TQ8C, op.A8TQ4B32, op.A8TQ4B128, op.A32W32, op.A32W16}
	if raceEnabled {
		schemes = schemes[:2] // others read and write the same
	}
	for _, set := range kernel.Sets() {
		if set.Name != kernel.Reference().Name && !raceEnabled { // which is slow, and computes row by row; one lane races with nobody
			setups = append(setups, setup{set.Name, []planir.Proc{proc("a", a, set.Name)}, bySingle})
		}
	}
	for _, c := range setups {
		for _, scheme := range schemes {
			limit := 0.0
			if !scheme.QuantisedRows() {
				limit = 1e-4 // kernels for one row add in another order
			}
			x := machine(t, m, batchPlan(t, m, c.procs, []int{1, 16}, []int{3, 4}, 64, scheme, c.f), executor.Options{})
			same(t, fmt.Sprintf("%s %s", c.name, scheme), alone(t, x, list, 5), together(t, x, list, 5), limit)
			x.Close()
		}
		for _, cached := range op.CacheTypes[1:] {
			p := batchPlan(t, m, c.procs, []int{1, 16}, []int{3, 4}, 64, op.A8TQ8C, c.f)
			x := machine(t, m, withCache(t, m, p, cached), executor.Options{})
			same(t, fmt.Sprintf("%s, cache %s", c.name, cached), alone(t, x, list, 5), together(t, x, list, 5), 0)
			x.Close()
		}
	}
}

// The same for every architecture: windows, rotations that depend on the length, experts.
func TestBatchArchitectures(t *testing.T) {
	require.Slow(t)
	a, b := cores(t)
	for i, config := range archDirs(t) {
		if raceEnabled && i%4 != 0 {
			continue
		}
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			context := min(m.MaxContext, 160)
			list := prompts(m.Vocab, 3, min(60, context-10), 34)
			for _, s := range []struct {
				procs []planir.Proc
				f     layoutOf
			}{
				{[]planir.Proc{proc("a", a, "")}, bySingle},
				{[]planir.Proc{proc("a", a, "portable")}, bySingle},
				{[]planir.Proc{proc("a", a, ""), proc("b", b, "")}, byColumns},
			} {
				if raceEnabled && len(s.procs) == 1 {
					continue // one lane races with nobody
				}
				x := machine(t, m, batchPlan(t, m, s.procs, []int{1, 32}, []int{4}, context, op.A8TQ8C, s.f), executor.Options{})
				same(t, s.procs[0].Options["kernels"], alone(t, x, list, 6), together(t, x, list, 6), 0)
				x.Close()
			}
			runtime.GC()
		})
	}
}

// Requests get the tokens that they get alone, whatever runs beside them, also more requests than sequences; one that
// ends, fails or fills its context leaves the others alone.
func TestGenerateBatch(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	const limit = 24
	x := machine(t, m, batchPlan(t, m, []planir.Proc{proc("a", a, "")}, []int{1, 16}, []int{2, 3}, 40, op.A8TQ8C, bySingle), executor.Options{OnDemand: true})
	if x.Sequences() != 3 {
		t.Fatalf("%d sequences, want 3", x.Sequences())
	}
	list := prompts(m.Vocab, 4, 30, 1, 39, 12, 40, 8)
	for _, sampler := range []executor.Sampler{{}, {Temperature: 0.9, TopK: 40, Seed: 5}} {
		want := make([]executor.Generation, len(list))
		requests := make([]executor.Request, len(list))
		for i, p := range list {
			s := sampler
			x.Reset()
			g, err := x.Generate(context.Background(), p, limit, &s, nil)
			if err != nil {
				t.Fatal(err)
			}
			want[i] = g
			requests[i] = executor.Request{Prompt: p, MaxTokens: limit, Sampler: sampler}
		}
		stop := 0
		requests[4].OnToken = func(int32) bool { stop++; return stop < 3 }
		if _, err := x.GenerateBatch(context.Background(), requests[5:], nil); err != nil { // leaves no trace in requests or caches
			t.Fatal(err)
		}
		requests = slices.Insert(requests, 2, executor.Request{Prompt: make([]int32, 41), MaxTokens: 3}, executor.Request{Prompt: []int32{1, 1 << 20}, MaxTokens: 3}, executor.Request{MaxTokens: 3})
		out, err := x.GenerateBatch(context.Background(), requests, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, words := range map[int]string{2: "context of 40", 3: "1048576", 4: "no tokens"} {
			if err := out[i].Err; err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("request %d: got %v, want an error about %q", i, err, words)
			}
		}
		out = slices.Delete(out, 2, 5)
		for i, o := range out {
			w := want[i]
			if i == 4 {
				w.Tokens, w.Stopped, w.Full = w.Tokens[:3], true, false
			}
			if o.Err != nil || !slices.Equal(o.Tokens, w.Tokens) || o.Stopped != w.Stopped || o.Full != w.Full {
				t.Errorf("request %d: got %v (stopped %v, full %v, %v), want %v (stopped %v, full %v)", i, o.Tokens, o.Stopped, o.Full, o.Err, w.Tokens, w.Stopped, w.Full)
			}
		}
		if !out[1].Full || !out[3].Full || !out[5].Full || out[0].Full && len(out[0].Tokens) == limit {
			t.Error("a full context is not told from the limit of tokens")
		}
	}
	if _, err := x.GenerateBatch(context.Background(), []executor.Request{{Prompt: list[0]}}, nil); err == nil {
		t.Error("a request of no tokens is accepted")
	}
}

// A plan of one sequence takes requests in turn.
func TestGenerateBatchOfOne(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	x := machine(t, m, makePlan(t, m, []planir.Proc{proc("a", a, "")}, []int{1, 16}, 40, op.A8TQ8C, bySingle), executor.Options{})
	list := prompts(m.Vocab, 4, 9)
	out, err := x.GenerateBatch(context.Background(), []executor.Request{{Prompt: list[0], MaxTokens: 5}, {Prompt: list[1], MaxTokens: 5}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range out {
		x.Reset()
		g, err := x.Generate(context.Background(), list[i], 5, &executor.Sampler{}, nil)
		if err != nil || !slices.Equal(g.Tokens, o.Tokens) {
			t.Errorf("request %d: got %v, want %v (%v)", i, o.Tokens, g.Tokens, err)
		}
	}
}

func TestStepRefuses(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	x := machine(t, m, batchPlan(t, m, []planir.Proc{proc("a", a, "")}, []int{1}, []int{2}, 2, op.A8TQ8C, bySingle), executor.Options{})
	for _, c := range []struct {
		tokens []executor.Token
		words  string
	}{
		{nil, "no tokens"},
		{[]executor.Token{{Sequence: 0, ID: 1}, {Sequence: 0, ID: 2}}, "both of sequence 0"},
		{[]executor.Token{{Sequence: 0, ID: 1}, {Sequence: 2, ID: 2}}, "sequence 2"},
		{[]executor.Token{{Sequence: -1, ID: 1}}, "sequence -1"},
		{[]executor.Token{{Sequence: 0, ID: -1}, {Sequence: 1, ID: 2}}, "id -1"},
	} {
		err := x.Do(context.Background(), func(c2 *executor.Control) error { _, err := c2.Step(c.tokens, nil); return err })
		if err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%v: got %v, want an error about %q", c.tokens, err, c.words)
		}
	}
	both := []executor.Token{{Sequence: 0, ID: 1}, {Sequence: 1, ID: 2}}
	for i := range 3 {
		err := x.Do(context.Background(), func(c *executor.Control) error { _, err := c.Step(both, nil); return err })
		if (err != nil) != (i == 2) || err != nil && !strings.Contains(err.Error(), "context of 2") {
			t.Errorf("step %d: %v", i, err)
		}
	}
}

// A lane that fails while a batch is decoded ends every lane; later calls return, too.
func TestBatchFaults(t *testing.T) {
	m := open(t)
	a, b := cores(t)
	p := batchPlan(t, m, []planir.Proc{proc("a", a, ""), proc("b", b, "")}, []int{1, 16}, []int{2}, 64, op.A8TQ8C, byColumns)
	list := prompts(m.Vocab, 5, 9)
	requests := []executor.Request{{Prompt: list[0], MaxTokens: 6}, {Prompt: list[1], MaxTokens: 6}}
	for _, lane := range []string{a, b} {
		for _, k := range []int{1, 40, 90, 200} {
			ctx, cancel := context.WithCancel(context.Background())
			d := drivertest.Inject(ctx, host.New(), drivertest.Fault{At: drivertest.AtRun, K: k, Select: lane})
			x := machine(t, m, p, executor.Options{Drivers: []driver.Driver{d}})
			for range 2 {
				out, err := x.GenerateBatch(context.Background(), requests, nil)
				if err == nil || !strings.Contains(err.Error(), "step") {
					t.Errorf("core %s, call %d: got %v, want the injected failure", lane, k, err)
				}
				if len(out) != 2 {
					t.Errorf("core %s, call %d: %d outcomes, want 2", lane, k, len(out))
				}
			}
			cancel()
			x.Close()
		}
	}
}

func TestStepAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	m := open(t)
	a, b := cores(t)
	x := machine(t, m, batchPlan(t, m, []planir.Proc{proc("a", a, ""), proc("b", b, "")}, []int{1, 16}, []int{4}, 512, op.A8TQ8C, byColumns), executor.Options{})
	tokens := []executor.Token{{Sequence: 0, ID: 1}, {Sequence: 2, ID: 3}, {Sequence: 3, ID: 9}}
	top := float32(math.Inf(-1))
	sink := func(_ int, l []float32) error { top = max(top, l[0]); return nil }
	err := x.Do(context.Background(), func(c *executor.Control) error {
		step := func() error { _, err := c.Step(tokens, sink); return err }
		if err := step(); err != nil {
			return err
		}
		const runs = 200
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			if err := step(); err != nil {
				return err
			}
		}
		runtime.ReadMemStats(&after)
		if n := after.Mallocs - before.Mallocs; n > runs/10 {
			t.Errorf("%d steps allocate %d objects", runs, n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
