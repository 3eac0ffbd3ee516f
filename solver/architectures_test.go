package solver

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/socs/timeline"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/workload"
)

// architectures opens those models of testdata/arch, made by another implementation, that differ in what
// planning sees: together they have every operator, biases wherever there may be some, and layers of up to
// three classes in turn.
func architectures(t *testing.T) []*models.Model {
	t.Helper()
	var out []*models.Model
	kinds := map[op.Kind]bool{op.QuantRows: true, op.Copy: true} // of plans, not of models
	classes := map[int]bool{}
	for _, name := range []string{
		"gemma2-caps", "llama-mlp-bias", "mixtral-window-fused", "olmo2-plain", "olmoe-clip-fused", "phi-partial", "phimoe-longrope-fused",
		"qwen2-moe-dense-layers-fused", "qwen3-bias-window", "starcoder2-window",
	} {
		m := open(t, "../testdata/arch/"+name)
		names := map[string]bool{}
		for _, sec := range m.Graph().Sections {
			names[sec.Name] = true
			for _, n := range sec.Nodes {
				for _, o := range n.Ops {
					kinds[o.Kind] = true
				}
			}
		}
		classes[len(names)-2] = true
		out = append(out, m)
	}
	kinds[op.OutlierMatMul] = true // stands behind products whose scheme needs a calibration: TestExecutionTakesAsLongAsPredicted
	// Plans with capacity tiers have these.
	kinds[op.GroupMatMul], kinds[op.Dispatch], kinds[op.Collect] = true, true, true
	// Plans with sparse attention have these: TestAttentionChosen.
	kinds[op.Estimate], kinds[op.Select], kinds[op.SparseAttend] = true, true, true
	for _, k := range op.Kinds {
		if !kinds[k] {
			t.Errorf("no model has %q", k)
		}
	}
	for n := 1; n <= 3; n++ {
		if !classes[n] {
			t.Errorf("no model has layers of %d classes", n)
		}
	}
	return out
}

// profiled fits what the simulated SoC takes for exactly what is asked to be measured.
func profiled(t *testing.T, s *socs.SoC, m *models.Model, w *workload.Workload) *roofline.Costs {
	t.Helper()
	digest, err := s.Digest()
	if err != nil {
		t.Fatal(err)
	}
	needs, err := w.Needs(m.MaxContext)
	if err != nil {
		t.Fatal(err)
	}
	requests, err := profiler.Requests(s, m, profiler.Want{Buckets: needs.Buckets, Batches: needs.Batches, Schemes: needs.Schemes, MaxContext: needs.Context,
		Caches: needs.Caches, Densities: needs.Densities})
	if err != nil {
		t.Fatal(err)
	}
	set := record.NewSet(record.Header{Schema: record.Schema, SoC: s.Name, SoCDigest: digest, Simulated: true, Hetc: "test"})
	for _, r := range requests {
		x := r.What
		if x.Kind != record.Op || len(x.Concurrent) > 0 {
			continue
		}
		ns, err := sim.NS(s, x.Proc, *x.Op)
		if err != nil {
			continue // infeasible
		}
		x.Loops, x.Samples, x.Simulated = 1, []float64{float64(ns)}, true
		if err := set.Add(&x); err != nil {
			t.Fatal(err)
		}
	}
	c, err := roofline.Fit(s, set)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// coresAndNPU are two cores and a processor beside them that has static shapes, writes whole buffers and loads
// whole weights. It executes no router, nor what has state.
func coresAndNPU(t *testing.T) *socs.SoC {
	t.Helper()
	s := twoCores(t, 0.8)
	s.Processors = s.Processors[:2]
	npu := s.Processors[1]
	npu.Name, npu.Select, npu.Kind, npu.Cores = "npu", "npu", socs.KindNPU, nil
	npu.StaticShapes, npu.DynamicRows, npu.StridedInput, npu.StridedOutput, npu.WeightRanges = true, false, false, false, false
	npu.Tile.M, npu.KV = 8, nil
	npu.Kinds = slices.DeleteFunc(slices.Clone(op.Kinds), func(k op.Kind) bool { return k == op.Route || k == op.KVAppend || k == op.Attention })
	s.Processors = append(s.Processors, npu)
	for _, core := range []string{"c0", "c1"} {
		s.Links = append(s.Links, socs.Link{From: core, To: "npu", HandoverUS: 1}, socs.Link{From: "npu", To: core, HandoverUS: 1})
	}
	return s
}

// small is a workload for the models of testdata/arch.
func small(m *models.Model, schemes ...op.Scheme) *workload.Workload {
	w := workload.Default()
	w.Buckets, w.Context = []int{16, 64}, min(m.MaxContext, 160)
	w.Schemes = workload.Schemes{Prefill: schemes, Decode: schemes}
	return w
}

// computes executes a plan on the simulated SoC by all of its programs: the logits of 7 tokens in one call, and of
// the last of 33, of which the last one is decoded unless the length of a call changes its positions.
func computes(t testing.TB, m *models.Model, s *socs.SoC, p *planir.Plan) (of7, of33 []float32) {
	t.Helper()
	c, err := emit.NewContent(context.Background(), p, m, []driver.Compiler{sim.NewCompiler(s)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	x, err := executor.Open(context.Background(), p, c, executor.Options{Drivers: []driver.Driver{sim.New(s)}})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	run := func(ids []int32, want executor.Want, pieces ...int) (out []float32) {
		x.Reset()
		err := x.Do(context.Background(), func(c *executor.Control) error {
			for i, n := range pieces {
				w := want
				if i < len(pieces)-1 {
					w = executor.WantNone
				}
				if _, err := c.Forward(ids[:n], w, func(_ int, l []float32) error {
					out = append(out, l...)
					return nil
				}); err != nil {
					return err
				}
				ids = ids[n:]
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	pieces := []int{32, 1}
	for _, sec := range m.Graph().Sections {
		for _, n := range sec.Nodes {
			if n.Ops[0].LongFrom > 0 || len(n.Ops) > 1 && n.Ops[1].LongFrom > 0 {
				pieces = []int{33}
			}
		}
	}
	return run(readReference(t, m, 7).ids, executor.WantAll, 7), run(readReference(t, m, 33).ids, executor.WantLast, pieces...)
}

// reference is what the other implementation computes for a prompt of n tokens: the logits of some of them, the
// last one's at the end.
type reference struct {
	ids    []int32
	logits []float32
}

func readReference(t testing.TB, m *models.Model, n int) (r reference) {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(m.Dir, "logits.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if r.ids, err = view[int32](f, fmt.Sprintf("ids_%d", n)); err != nil {
		t.Fatal(err)
	}
	if r.logits, err = view[float32](f, fmt.Sprintf("logits_%d", n)); err != nil {
		t.Fatal(err)
	}
	return r
}

func view[T mem.Scalar](f *safetensors.File, name string) ([]T, error) {
	x, ok := f.Tensor(name)
	if !ok {
		return nil, fmt.Errorf("no tensor %q", name)
	}
	v, err := mem.View[T](x.Data)
	return slices.Clone(v), err
}

// differs is how far logits, as of computes, are from the reference.
func differs(t testing.TB, m *models.Model, of7, of33 []float32) float64 {
	t.Helper()
	long := readReference(t, m, 33).logits
	worst := 0.0
	for _, x := range []struct{ got, want []float32 }{{of7, readReference(t, m, 7).logits}, {of33, long[len(long)-m.Vocab:]}} {
		if len(x.got) != len(x.want) {
			t.Fatalf("%d logits, want %d", len(x.got), len(x.want))
		}
		for i, want := range x.want {
			d := math.Abs(float64(x.got[i] - want))
			if math.IsNaN(d) {
				return math.Inf(1)
			}
			worst = max(worst, d)
		}
	}
	return worst
}

// What is asked to be measured suffices to plan any architecture, with every section counted, and the plan
// gives the logits of another implementation.
func TestSolveArchitectures(t *testing.T) {
	require.Slow(t)
	s := twoCores(t, 0.6)
	for _, m := range architectures(t) {
		t.Run(m.Name, func(t *testing.T) {
			w := small(m, op.A32W32)
			r, err := Solve(context.Background(), Input{Model: m, SoC: s, Costs: profiled(t, s, m, w), Workload: w, Engine: exact.Engine{}})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Warnings) > 0 {
				t.Errorf("warnings %v", r.Warnings)
			}
			p := r.Plan
			g := m.Graph()
			for _, pred := range p.Predictions {
				var sum int64
				if len(pred.Sections) != len(g.Sections) {
					t.Fatalf("%s: times of %d sections, want %d", pred.Program, len(pred.Sections), len(g.Sections))
				}
				for i, x := range pred.Sections {
					if x.Section != g.Sections[i].Name {
						t.Errorf("%s: section %d is %q, want %q", pred.Program, i, x.Section, g.Sections[i].Name)
					}
					sum += x.NS * int64(max(1, g.Sections[i].Layers))
				}
				if off := pred.PlanNS - sum; off < 0 || off > int64(m.Layers) { // each time is rounded down
					t.Errorf("%s: %d ns, and its sections %d", pred.Program, pred.PlanNS, sum)
				}
				if pred.PlanNS > best(pred) {
					t.Errorf("%s: predicted %d ns, single processors %v", pred.Program, pred.PlanNS, pred.Singles)
				}
			}
			of7, of33 := computes(t, m, s, p)
			if d := differs(t, m, of7, of33); d > 1e-3 {
				t.Errorf("logits differ by %.2g", d)
			}
		})
	}
}

// Sections of one name are decided once and counted as often as they run: on one processor, where nothing is
// handed over, the objective, what the processor was said to take alone, and the walk through the program agree.
func TestOneProcessorAddsUp(t *testing.T) {
	s := twoCores(t, 1)
	s.Processors, s.Links, s.Joint = s.Processors[:1], nil, nil
	runs := 0
	for _, m := range architectures(t) {
		for _, scheme := range []op.Scheme{op.A32W32, op.A8TQ8C} {
			ses := exactSession(t, s, m, scheme)
			p, err := ses.eachAlone(context.Background())
			if err == nil {
				err = ses.predict(p)
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, pred := range p.Predictions {
				// Operators on rows that follow each other are one graph: the problem counts a launch for each.
				joined := int64(0)
				for _, sec := range p.Program.Programs[i].Sections {
					for _, l := range sec.Lanes {
						for k := range l.Steps {
							joined += int64(max(1, sec.Layers) * (len(l.Steps[k].Nodes()) - 1))
						}
					}
				}
				want := p.Solver[i].ObjectiveNS - joined*int64(1e3*s.Processors[0].LaunchUS)
				if x := p.Solver[i]; pred.PlanNS != want || pred.PlanNS != pred.Singles[0].NS || x.Status != "optimal" {
					t.Errorf("%s %s %s: %d ns, alone %d ns, want %d (%s)", m.Name, scheme, pred.Program, pred.PlanNS, pred.Singles[0].NS, want, x.Status)
				}
			}
			pr, err := ses.program(16, ses.prefill)
			if err != nil {
				t.Fatal(err)
			}
			layers := 0
			for _, in := range pr.instances {
				if in.section.Layers > 0 {
					layers += in.chain.Repeat
					runs = max(runs, in.chain.Breaks+1)
				}
				for _, d := range in.decisions(make([]int, len(in.candidates))) {
					if in.section.Exact[d.Node] && d.Scheme != op.A32W32 {
						t.Errorf("%s: %s is decided in %s", m.Name, d.Node, d.Scheme)
					}
				}
			}
			if layers != m.Layers {
				t.Errorf("%s: %d layers are solved, want %d", m.Name, layers, m.Layers)
			}
		}
	}
	if runs < 2 {
		t.Error("no section runs several times with others between")
	}
}

// Experts count as many times as there are, in one graph's weights and in what a processor has to hold.
func TestExpertsTakeMemory(t *testing.T) {
	m := open(t, "../testdata/arch/mixtral-window-fused")
	s := twoCores(t, 1)
	var o op.Op
	for _, sec := range m.Graph().Sections {
		for _, n := range sec.Nodes {
			if n.Name == "expert_gate_up" {
				o = n.Ops[0]
			}
		}
	}
	one := op.WeightBytes("w32", o.K, o.N)
	if one == 0 || o.Experts < 2 {
		t.Fatalf("%+v is no matrix of experts", o)
	}
	for i := range s.Processors {
		s.Processors[i].GraphBytes = int64(o.Experts)*one - 1
	}
	in := Input{Model: m, SoC: s, Costs: profiled(t, s, m, small(m, op.A32W32)), Workload: small(m, op.A32W32), Engine: exact.Engine{}}
	_, err := Solve(context.Background(), in)
	if diag.ClassOf(err) != diag.ClassInfeasible || !strings.Contains(err.Error(), "layers.expert_gate_up") || !strings.Contains(err.Error(), fmt.Sprint(int64(o.Experts)*one)) {
		t.Errorf("graphs of one byte less than the experts: %v", err)
	}
}

// Processors that lack float32, or an operator, are not given what needs it, and explain says so.
func TestWhoCannot(t *testing.T) {
	require.Slow(t)
	m := open(t, "../testdata/arch/olmoe-plain")
	s := twoCores(t, 1)
	s.Processors = s.Processors[:2]
	s.Processors[1].Schemes = []op.Scheme{op.A8TQ8C}
	s.Processors[1].Kinds = slices.DeleteFunc(slices.Clone(op.Kinds), func(k op.Kind) bool { return k == op.Route })
	w := small(m, op.A8TQ8C)
	in := Input{Model: m, SoC: s, Costs: profiled(t, s, m, w), Workload: w, Engine: exact.Engine{}}
	p := solve(t, in).Plan
	divided := false
	for _, d := range p.Decisions {
		for _, sh := range d.Shares {
			if sh.Proc == "c1" && (d.Node == "layers.router" || d.Node == "layers.route") {
				t.Errorf("%s@%d: %s", d.Node, d.Rows, d.ShareText())
			}
			divided = divided || sh.Proc == "c1"
		}
	}
	if !divided {
		t.Error("nothing is left for the second core")
	}
	for node, want := range map[string]string{"layers.router": `"c1" does not execute scheme "a32/w32"`, "layers.route": `"c1" does not execute "route"`} {
		rows, err := Explain(p, node, 16, &in)
		if err != nil {
			t.Fatal(err)
		}
		if last := rows[len(rows)-1]; last.NS != 0 || last.Shares != "c1" || last.Note != want {
			t.Errorf("%s: explained as %+v, want %q", node, rows, want)
		}
	}
	rows, err := Explain(p, "layers.expert_down", 16, &in)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.NS == 0 || strings.HasPrefix(r.Shares, "k ") {
			t.Errorf("expert_down: %+v", r)
		}
	}
	// Without anybody who computes in float32 there is no plan, whatever the workload permits.
	s.Processors[0].Schemes = s.Processors[1].Schemes
	in.Costs = profiled(t, s, m, w)
	_, err = Solve(context.Background(), in)
	if hints := strings.Join(diag.HintsOf(err), " "); diag.ClassOf(err) != diag.ClassInfeasible || !strings.Contains(err.Error(), "layers.router") || !strings.Contains(hints, "a32/w32") {
		t.Errorf("nobody computes in float32: %v (hints %q)", err, hints)
	}
}

// Equal inputs give equal bytes of plans with experts and several classes of layers, too.
func TestDeterministicExperts(t *testing.T) {
	require.Slow(t)
	m := open(t, "../testdata/arch/qwen2-moe-dense-layers-fused")
	s := coresAndNPU(t)
	w := small(m, op.A8TQ8C)
	c := profiled(t, s, m, w)
	var first []byte
	for range 2 {
		b, err := planir.Encode(solve(t, Input{Model: m, SoC: s, Costs: c, Workload: w}).Plan)
		if err != nil {
			t.Fatal(err)
		}
		if first != nil && !bytes.Equal(first, b) {
			t.Fatal("another plan")
		}
		first = b
	}
}

// truth are prices without measurements: what the simulated SoC takes.
type truth struct{ soc *socs.SoC }

func (x truth) Together(tasks []price.Task) ([]price.Estimate, error) {
	out := make([]price.Estimate, len(tasks))
	for i, t := range tasks {
		ns, err := sim.NS(x.soc, t.Proc, t.Op)
		if err != nil {
			return nil, err
		}
		out[i] = price.Estimate{NS: ns, Low: ns, High: ns}
	}
	return out, nil
}

func (x truth) Handover(from, to string) (price.Estimate, error) {
	l, _ := x.soc.Link(from, to)
	ns := int64(1e3 * l.HandoverUS)
	return price.Estimate{NS: ns, Low: ns, High: ns}, nil
}

func (x truth) Launch(proc string) (price.Estimate, error) {
	return price.Estimate{NS: int64(1e3 * x.soc.Processor(proc).LaunchUS)}, nil
}

func (truth) Measured(price.Task) []int  { return nil }
func (truth) Forms(price.Task) []op.Form { return nil }
func (truth) Memory() *timeline.Memory   { return &timeline.Memory{} }

func (x truth) Phase(t price.Task) (timeline.Phase, error) {
	e, err := x.Together([]price.Task{t})
	if err != nil {
		return timeline.Phase{}, err
	}
	return timeline.Phase{ComputeNS: float64(e[0].NS)}, nil
}

func (truth) Copy(_, _ string, _ int64) (price.Estimate, error) { return price.Estimate{}, nil }

// drawn is a model in a scheme, of whose candidates random plans are made.
type drawn struct {
	model     *models.Model
	scheme    op.Scheme
	session   *session
	plan      *planir.Plan // the best one
	of7, of33 []float32    // logits of one processor
}

// exactSession is one that knows the times of the simulated SoC without measurements.
func exactSession(t *testing.T, s *socs.SoC, m *models.Model, scheme op.Scheme) *session {
	t.Helper()
	digest, err := s.Digest()
	if err != nil {
		t.Fatal(err)
	}
	costs := &roofline.Costs{Schema: roofline.Schema, SoC: s.Name, SoCDigest: digest, Simulated: true}
	for _, l := range s.Links {
		costs.Handovers = append(costs.Handovers, roofline.Handover{From: l.From, To: l.To})
	}
	permitted := []op.Scheme{scheme}
	if scheme == mixed {
		permitted = []op.Scheme{op.A32W32, op.A8TQ8C}
	}
	out, err := newSession(Input{Model: m, SoC: s, Costs: costs, Workload: small(m, permitted...), Engine: exact.Engine{}})
	if err != nil {
		t.Fatal(err)
	}
	out.prices, out.prefill, out.decode = truth{s}, out.mixed(scheme, 0), out.mixed(scheme, 1)
	return out
}

// mixed is the scheme for every class, or stored precision for every other one.
const mixed op.Scheme = "mixed"

func (s *session) mixed(scheme op.Scheme, odd int) assignment {
	if scheme != mixed {
		return s.uniform(scheme)
	}
	a := s.uniform(op.A32W32)
	for k := range a {
		if !s.classes[k].head && k%2 == odd {
			a[k] = op.A8TQ8C
		}
	}
	return a
}

func newDrawn(t *testing.T, s *socs.SoC, m *models.Model, scheme op.Scheme) *drawn {
	t.Helper()
	x := &drawn{model: m, scheme: scheme, session: exactSession(t, s, m, scheme)}
	var err error
	if x.plan, err = x.session.eachAlone(context.Background()); err != nil {
		t.Fatal(err)
	}
	g := m.Graph()
	single := *x.plan
	if single.Decisions, err = lower.Trivial(&g, "c0", []int{1, 16, 64}, single.MaxContext, single.KV, func(node string, rows int) op.Scheme { return x.session.schemeOf(x.session.assigned(rows))(node) }); err != nil {
		t.Fatal(err)
	}
	if err := lower.Lower(&single, &g); err != nil {
		t.Fatal(err)
	}
	x.of7, x.of33 = computes(t, m, s, &single)
	return x
}

// draw decides every operator as some candidate of its program.
func (x *drawn) draw(rt *rapid.T) *planir.Plan {
	p := *x.plan
	p.Decisions, p.Solver, p.Program = nil, nil, planir.Program{}
	for i, rows := range append([]int{1}, x.session.want.Buckets...) {
		pr, err := x.session.program(rows, x.session.assigned(rows))
		if err != nil {
			rt.Fatal(err)
		}
		for _, in := range pr.instances {
			choices := make([]int, len(in.candidates))
			for k, list := range in.candidates {
				var divided []int // may go wrong: others are drawn less often than they come
				for c := range list {
					if len(list[c].Shares) > 1 {
						divided = append(divided, c)
					}
				}
				if choices[k] = rapid.IntRange(0, len(list)-1).Draw(rt, "choice"); len(divided) > 0 && rapid.IntRange(0, 3).Draw(rt, "divide") > 0 {
					choices[k] = rapid.SampledFrom(divided).Draw(rt, "division")
				}
			}
			for _, d := range in.decisions(choices) {
				if i > 0 && x.session.isHead(d.Node) && price.SameShares(p.DecisionFor(d.Node, 1), &d) {
					continue
				}
				p.Decisions = append(p.Decisions, d)
			}
		}
	}
	if err := x.session.lower(&p); err != nil {
		rt.Fatal(err)
	}
	return &p
}

// Whatever combination of candidates is chosen, the plan is legal and computes what one processor computes:
// in float32 the logits of another implementation, quantised the very bits of the undivided plan, mixed nearly those.
func TestAnyCandidatesComputeTheModel(t *testing.T) {
	require.Slow(t)
	s := coresAndNPU(t)
	list := architectures(t)
	type key struct {
		model  string
		scheme op.Scheme
	}
	made := map[key]*drawn{}
	draws, passed := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		if draws == 25 && passed == draws && os.Getenv("HETC_LONG") == "" {
			return // each executes a model twice
		}
		draws++
		m := rapid.SampledFrom(list).Draw(rt, "model")
		k := key{m.Name, rapid.SampledFrom([]op.Scheme{op.A32W32, op.A8TQ8C, mixed}).Draw(rt, "scheme")}
		if made[k] == nil {
			made[k] = newDrawn(t, s, m, k.scheme)
		}
		x := made[k]
		p := x.draw(rt)
		if found := check.Plan(p, m, s); len(found) > 0 {
			rt.Fatalf("%s %s: %v\n%s", m.Name, k.scheme, found, planir.Dump(p))
		}
		of7, of33 := computes(t, m, s, p)
		if k.scheme == op.A32W32 {
			if d := differs(t, m, of7, of33); d > 1e-3 {
				rt.Fatalf("%s: logits differ by %.2g\n%s", m.Name, d, planir.Dump(p))
			}
		} else if k.scheme == mixed { // partial sums of float32 may round an 8-bit activation differently
			for i, list := range [][]float32{of7, of33} {
				want := [][]float32{x.of7, x.of33}[i]
				top := float32(0)
				for _, v := range want {
					top = max(top, v, -v)
				}
				for j, v := range list {
					if d := v - want[j]; d > 0.05*top || -d > 0.05*top || d != d {
						rt.Fatalf("%s: logit %d of mixed schemes is %v, and %v of one processor", m.Name, j, v, want[j])
					}
				}
			}
		} else if !slices.Equal(of7, x.of7) || !slices.Equal(of33, x.of33) {
			rt.Fatalf("%s: quantised logits differ from those of one processor\n%s", m.Name, planir.Dump(p))
		}
		passed++
	})
}

// Experts have not all schemes: that a phase permits none of theirs is said before anything is priced, with the way
// out.
func TestExpertsLackSchemes(t *testing.T) {
	grid, both := []op.Scheme{op.A16SQ8C}, []op.Scheme{op.A16SQ8C, op.A8TQ8C}
	for _, c := range []struct {
		model           string
		prefill, decode []op.Scheme
		want            string // part of the error, "" for none
	}{
		{"mixtral-full", grid, both, "permits in prefill: [a16s/q8c]"},
		{"mixtral-full", both, []op.Scheme{op.A16FW16}, "permits in decode: [a16f/w16]"},
		{"mixtral-full", both, both, ""},
		{"llama-plain", grid, grid, ""},
	} {
		in := &Input{Model: open(t, "../testdata/arch/"+c.model), Workload: workload.Default()}
		in.Workload.Schemes = workload.Schemes{Prefill: c.prefill, Decode: c.decode}
		err := in.CheckSchemes()
		switch {
		case c.want == "" && err == nil:
		case err == nil || c.want == "" || !strings.Contains(err.Error(), c.want):
			t.Errorf("%s, %v and %v: got %v, want %q", c.model, c.prefill, c.decode, err, c.want)
		case diag.ClassOf(err) != diag.ClassInput || !strings.Contains(strings.Join(diag.HintsOf(err), " "), "a8t/q8c"):
			t.Errorf("%v of class %v, hints %q", err, diag.ClassOf(err), diag.HintsOf(err))
		}
	}
}
