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

// batchPlan is makePlan with programs that decode batches of so many sequences.
func batchPlan(t testing.TB, m *models.Model, batches []int, spec planSpec) *planir.Plan {
	t.Helper()
	p := makePlan(t, m, spec)
	p.Batches = batches
	g := m.Graph()
	batch := g.Batch()
	control := spec.procs[0].Name
	schemeOf := func(node string) op.Scheme { return p.DecisionFor(node, 1).Scheme }
	ofNode := func(node string, _ int) op.Scheme { return schemeOf(node) }
	for _, size := range batches {
		more, err := lower.Trivial(&batch, control, []int{size}, spec.context, op.F32, ofNode)
		if err != nil {
			t.Fatal(err)
		}
		sections, err := lower.Expand(&batch, size, spec.context, op.F32, schemeOf, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if spec.layout != nil && len(spec.procs) > 1 {
			divideUndivided(more, sections, spec.layout)
		}
		p.Decisions = append(p.Decisions, more...)
	}
	if err := lower.Lower(p, &g); err != nil {
		t.Fatal(err)
	}
	if list := planir.Check(p); list.Err() != nil {
		t.Fatal(list.Err())
	}
	return p
}

// divideUndivided lets the layout change those decisions of the nodes that are not divided yet.
func divideUndivided(decisions []planir.Decision, sections []lower.Section, layout layoutOf) {
	for _, section := range sections {
		for _, node := range section.Nodes {
			for i := range decisions {
				if d := &decisions[i]; d.Node == node.Name && d.Axis == planir.AxisNone {
					layout(d, &node)
				}
			}
		}
	}
}

// prompts are of these lengths, of ids below vocab.
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

// keepIn returns a function that appends logits to the trace.
func keepIn(tr *trace) func(row int, logits []float32) error {
	return func(_ int, logits []float32) error {
		*tr = append(*tr, slices.Clone(logits))
		return nil
	}
}

// next is the token that greedy decoding takes after the trace.
func (tr trace) next() int32 { return greedy(tr[len(tr)-1]) }

// alone decodes each prompt by itself: the tokens and the logits they were taken from.
func alone(t testing.TB, x *executor.Machine, list [][]int32, steps int) (out []trace) {
	t.Helper()
	for _, prompt := range list {
		var tr trace
		x.Reset()
		err := x.Do(context.Background(), func(c *executor.Control) error {
			tokens := prompt
			for range steps {
				if _, err := c.Forward(tokens, executor.WantLast, keepIn(&tr)); err != nil {
					return err
				}
				tokens = []int32{tr.next()}
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

// greedy is the first token with the largest logit.
func greedy(logits []float32) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return int32(best)
}

// together decodes the prompts in sequences that begin and end at different times: prompt k has steps-k%3 steps.
func together(t testing.TB, x *executor.Machine, list [][]int32, steps int) []trace {
	t.Helper()
	out := make([]trace, len(list))
	sequence := func(k int) int { return len(list) - 1 - k }
	x.Reset()
	err := x.Do(context.Background(), func(c *executor.Control) error {
		for k, prompt := range list {
			if _, err := c.Extend(sequence(k), prompt, executor.WantLast, keepIn(&out[k])); err != nil {
				return err
			}
		}
		for {
			var tokens []executor.Token
			var prompts []int
			for k := range list {
				if len(out[k]) < steps-k%3 {
					tokens = append(tokens, executor.Token{Sequence: sequence(k), ID: out[k].next()})
					prompts = append(prompts, k)
				}
			}
			if len(tokens) == 0 {
				return nil
			}
			_, err := c.Step(tokens, func(i int, logits []float32) error { return keepIn(&out[prompts[i]])(i, logits) })
			if err != nil {
				return err
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// same compares what was computed together with what was computed alone. Logits may differ by the limit; 0 stands for
// equal bits.
func same(t testing.TB, what string, alone, together []trace, limit float64) {
	t.Helper()
	for k := range together {
		for i, logits := range together[k] {
			if d := maxDiff(logits, alone[k][i]); !(d <= limit) {
				what := fmt.Sprintf("%s: prompt %d, step %d", what, k, i)
				t.Errorf("%s: logits differ by %g from those alone, want at most %g", what, d, limit)
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
	setups := []archSetup{
		{name: "two cores", procs: singleOn(a + "-" + b)},
		{name: "columns and heads", procs: pairOn(a, b), layout: byColumns},
		{name: "rows", procs: pairOn(a, b), layout: byRows},
	}
	schemes := []op.Scheme{op.A8TQ8C, op.A8TQ4B32, op.A8TQ4B128, op.A32W32, op.A32W16}
	if raceEnabled {
		schemes = schemes[:2] // others read and write the same
	}
	for _, set := range kernel.Sets() {
		byRow := set.Name == kernel.Reference().Name // which is slow, too
		if raceEnabled || byRow {
			continue // one lane races with nobody
		}
		setups = append(setups, archSetup{name: set.Name, procs: []planir.Proc{proc("a", a, set.Name)}})
	}
	for _, setup := range setups {
		for _, scheme := range schemes {
			limit := 0.0
			if !scheme.QuantisedRows() {
				limit = 1e-4 // kernels for one row add in another order
			}
			x := machine(t, m, setup.batchPlan(t, m, scheme), executor.Options{})
			what := fmt.Sprintf("%s %s", setup.name, scheme)
			same(t, what, alone(t, x, list, 5), together(t, x, list, 5), limit)
			x.Close()
		}
		for _, cached := range op.CacheTypes[1:] {
			p := setup.batchPlan(t, m, op.A8TQ8C)
			x := machine(t, m, withCache(t, m, p, cached), executor.Options{})
			what := fmt.Sprintf("%s, cache %s", setup.name, cached)
			same(t, what, alone(t, x, list, 5), together(t, x, list, 5), 0)
			x.Close()
		}
	}
}

// batchPlan is a plan with programs for three and four sequences.
func (s archSetup) batchPlan(t testing.TB, m *models.Model, scheme op.Scheme) *planir.Plan {
	t.Helper()
	return batchPlan(t, m, []int{3, 4}, planSpec{
		procs: s.procs, rows: []int{1, 16}, context: 64, scheme: scheme, layout: s.layout,
	})
}

// So they do for every architecture: windows, rotations that depend on the length, experts.
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
			for _, setup := range []archSetup{
				{name: "one", procs: singleOn(a)},
				{name: "portable", procs: []planir.Proc{proc("a", a, "portable")}},
				{name: "columns", procs: pairOn(a, b), layout: byColumns},
			} {
				if raceEnabled && len(setup.procs) == 1 {
					continue // one lane races with nobody
				}
				x := machine(t, m, batchPlan(t, m, []int{4}, planSpec{
					procs: setup.procs, rows: []int{1, 32}, context: context, scheme: op.A8TQ8C, layout: setup.layout,
				}), executor.Options{})
				same(t, setup.name, alone(t, x, list, 6), together(t, x, list, 6), 0)
				x.Close()
			}
			runtime.GC()
		})
	}
}

// Requests get the tokens that they get alone, whatever runs beside them, also more requests than sequences. One that
// ends, fails or fills its context leaves the others alone.
func TestGenerateBatch(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	const limit = 24
	x := machine(t, m, batchPlan(t, m, []int{2, 3}, planSpec{
		procs: singleOn(a), rows: []int{1, 16}, context: 40, scheme: op.A8TQ8C,
	}), executor.Options{OnDemand: true})
	if x.Sequences() != 3 {
		t.Fatalf("%d sequences, want 3", x.Sequences())
	}
	list := prompts(m.Vocab, 4, 30, 1, 39, 12, 40, 8)
	const stopped = 4 // the request that ends itself after three tokens
	for _, sampler := range []executor.Sampler{{}, {Temperature: 0.9, TopK: 40, Seed: 5}} {
		want := make([]executor.Generation, len(list))
		requests := make([]executor.Request, len(list))
		for i, prompt := range list {
			s := sampler
			x.Reset()
			g, err := x.Generate(context.Background(), prompt, limit, &s, nil)
			if err != nil {
				t.Fatal(err)
			}
			want[i] = g
			requests[i] = executor.Request{Prompt: prompt, MaxTokens: limit, Sampler: sampler}
		}
		count := 0
		requests[stopped].OnToken = func(int32) bool {
			count++
			return count < 3
		}
		want[stopped].Tokens, want[stopped].Stopped, want[stopped].Full = want[stopped].Tokens[:3], true, false

		// A batch leaves no trace in requests or caches.
		if _, err := x.GenerateBatch(context.Background(), requests[5:], nil); err != nil {
			t.Fatal(err)
		}

		const wrong = 2 // where the wrong requests begin
		out, err := x.GenerateBatch(context.Background(), slices.Insert(requests, wrong,
			executor.Request{Prompt: make([]int32, 41), MaxTokens: 3},
			executor.Request{Prompt: []int32{1, 1 << 20}, MaxTokens: 3},
			executor.Request{MaxTokens: 3},
		), nil)
		if err != nil {
			t.Fatal(err)
		}

		for i, words := range []string{"context of 40", "1048576", "no tokens"} {
			if err := out[wrong+i].Err; err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("wrong request %d: got %v, want an error about %q", i, err, words)
			}
		}
		out = slices.Delete(out, wrong, wrong+3)
		for i, got := range out {
			checkGeneration(t, i, got, want[i])
		}
		if !out[1].Full || !out[3].Full || !out[5].Full || out[0].Full && len(out[0].Tokens) == limit {
			t.Error("a full context is not told from the limit of tokens")
		}
	}
	if _, err := x.GenerateBatch(context.Background(), []executor.Request{{Prompt: list[0]}}, nil); err == nil {
		t.Error("a request of no tokens is accepted")
	}
}

// checkGeneration compares a request's outcome with what it has alone.
func checkGeneration(t *testing.T, request int, got executor.Outcome, want executor.Generation) {
	t.Helper()
	if got.Err != nil {
		t.Errorf("request %d: %v", request, got.Err)
	}
	if !slices.Equal(got.Tokens, want.Tokens) {
		t.Errorf("request %d: got tokens %v, want %v", request, got.Tokens, want.Tokens)
	}
	if got.Stopped != want.Stopped || got.Full != want.Full {
		t.Errorf("request %d: stopped %v, full %v, want %v, %v", request, got.Stopped, got.Full, want.Stopped,
			want.Full)
	}
}

// A plan of one sequence takes requests in turn.
func TestOneSequenceTakesRequestsInTurn(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	x := machine(t, m, makePlan(t, m, planSpec{
		procs: singleOn(a), rows: []int{1, 16}, context: 40, scheme: op.A8TQ8C,
	}), executor.Options{})
	list := prompts(m.Vocab, 4, 9)

	out, err := x.GenerateBatch(context.Background(), []executor.Request{
		{Prompt: list[0], MaxTokens: 5},
		{Prompt: list[1], MaxTokens: 5},
	}, nil)
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

// A step of wrong tokens is refused with what is wrong, and so is one beyond the context.
func TestStepRefuses(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	x := machine(t, m, batchPlan(t, m, []int{2}, planSpec{
		procs: singleOn(a), rows: []int{1}, context: 2, scheme: op.A8TQ8C,
	}), executor.Options{})
	step := func(tokens ...executor.Token) error {
		return x.Do(context.Background(), func(c *executor.Control) error {
			_, err := c.Step(tokens, nil)
			return err
		})
	}
	for _, c := range []struct {
		tokens []executor.Token
		want   string
	}{
		{tokens: nil, want: "no tokens"},
		{tokens: []executor.Token{{Sequence: 0, ID: 1}, {Sequence: 0, ID: 2}}, want: "both of sequence 0"},
		{tokens: []executor.Token{{Sequence: 0, ID: 1}, {Sequence: 2, ID: 2}}, want: "sequence 2"},
		{tokens: []executor.Token{{Sequence: -1, ID: 1}}, want: "sequence -1"},
		{tokens: []executor.Token{{Sequence: 0, ID: -1}, {Sequence: 1, ID: 2}}, want: "id -1"},
	} {
		err := step(c.tokens...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want an error about %q", c.tokens, err, c.want)
		}
	}

	both := []executor.Token{{Sequence: 0, ID: 1}, {Sequence: 1, ID: 2}}
	for i := range 2 {
		if err := step(both...); err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	}
	if err := step(both...); err == nil || !strings.Contains(err.Error(), "context of 2") {
		t.Errorf("a step beyond the context: got %v", err)
	}
}

// A lane that fails while a batch is decoded ends every lane. Later calls return, too.
func TestFaultInABatchEndsEveryLane(t *testing.T) {
	m := open(t)
	a, b := cores(t)
	p := batchPlan(t, m, []int{2}, planSpec{
		procs: pairOn(a, b), rows: []int{1, 16}, context: 64, scheme: op.A8TQ8C, layout: byColumns,
	})
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

// A step of a batch allocates nothing.
func TestStepAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	m := open(t)
	a, b := cores(t)
	x := machine(t, m, batchPlan(t, m, []int{4}, planSpec{
		procs: pairOn(a, b), rows: []int{1, 16}, context: 512, scheme: op.A8TQ8C, layout: byColumns,
	}), executor.Options{})
	tokens := []executor.Token{{Sequence: 0, ID: 1}, {Sequence: 2, ID: 3}, {Sequence: 3, ID: 9}}
	top := float32(math.Inf(-1))
	sink := func(_ int, logits []float32) error {
		top = max(top, logits[0])
		return nil
	}
	err := x.Do(context.Background(), func(c *executor.Control) error {
		step := func() error {
			_, err := c.Step(tokens, sink)
			return err
		}
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
