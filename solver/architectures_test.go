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

// architectures opens those models of testdata/arch, made by another implementation, that differ in what planning sees.
// Together they have every operator, biases wherever there may be some, and layers of up to three classes in turn.
func architectures(t *testing.T) []*models.Model {
	t.Helper()
	var out []*models.Model
	kinds := map[op.Kind]bool{op.QuantRows: true, op.Copy: true} // of plans, not of models
	classes := map[int]bool{}
	for _, name := range []string{
		"gemma2-caps", "llama-mlp-bias", "mixtral-window-fused", "olmo2-plain", "olmoe-clip-fused", "phi-partial",
		"phimoe-longrope-fused", "qwen2-moe-dense-layers-fused", "qwen3-bias-window", "starcoder2-window",
	} {
		model := open(t, "../testdata/arch/"+name)
		names := map[string]bool{}
		for _, sec := range model.Graph().Sections {
			names[sec.Name] = true
			for _, node := range sec.Nodes {
				for _, operator := range node.Ops {
					kinds[operator.Kind] = true
				}
			}
		}
		classes[len(names)-2] = true
		out = append(out, model)
	}

	// Products with outliers need a calibration: TestExecutionTakesAsLongAsPredicted.
	kinds[op.OutlierMatMul] = true
	// Plans with capacity tiers have these.
	kinds[op.GroupMatMul], kinds[op.Dispatch], kinds[op.Collect] = true, true, true
	// Plans with sparse attention have these: TestAttentionChosen.
	kinds[op.Estimate], kinds[op.Select], kinds[op.SparseAttend] = true, true, true
	for _, kind := range op.Kinds {
		if !kinds[kind] {
			t.Errorf("no model has %q", kind)
		}
	}
	for count := 1; count <= 3; count++ {
		if !classes[count] {
			t.Errorf("no model has layers of %d classes", count)
		}
	}
	return out
}

// profiled fits what the simulated SoC takes for exactly what is asked to be measured.
func profiled(t *testing.T, soc *socs.SoC, model *models.Model, work *workload.Workload) *roofline.Costs {
	t.Helper()
	digest, err := soc.Digest()
	if err != nil {
		t.Fatal(err)
	}

	needs, err := work.Needs(model.MaxContext)
	if err != nil {
		t.Fatal(err)
	}
	requests, err := profiler.Requests(soc, model, profiler.Want{Buckets: needs.Buckets, Batches: needs.Batches,
		Schemes: needs.Schemes, MaxContext: needs.Context, Caches: needs.Caches, Densities: needs.Densities})
	if err != nil {
		t.Fatal(err)
	}

	set := record.NewSet(record.Header{Schema: record.Schema, SoC: soc.Name, SoCDigest: digest, Simulated: true,
		Hetc: "test"})
	for _, request := range requests {
		measured := request.What
		if measured.Kind != record.Op || len(measured.Concurrent) > 0 {
			continue
		}
		ns, err := sim.NS(soc, measured.Proc, *measured.Op)
		if err != nil {
			continue // infeasible
		}
		measured.Loops, measured.Samples, measured.Simulated = 1, []float64{float64(ns)}, true
		if err := set.Add(&measured); err != nil {
			t.Fatal(err)
		}
	}

	costs, err := roofline.Fit(soc, set)
	if err != nil {
		t.Fatal(err)
	}
	return costs
}

// coresAndNPU are two cores and a processor beside them that has static shapes, writes whole buffers and loads whole
// weights. It executes no router, nor what has state.
func coresAndNPU(t *testing.T) *socs.SoC {
	t.Helper()
	soc := twoCores(t, 0.8)
	soc.Processors = soc.Processors[:2]
	npu := soc.Processors[1]
	npu.Name, npu.Select, npu.Kind, npu.Cores = "npu", "npu", socs.KindNPU, nil
	npu.StaticShapes, npu.DynamicRows = true, false
	npu.StridedInput, npu.StridedOutput, npu.WeightRanges = false, false, false
	npu.Tile.M, npu.KV = 8, nil
	npu.Kinds = slices.DeleteFunc(slices.Clone(op.Kinds), func(kind op.Kind) bool {
		return kind == op.Route || kind == op.KVAppend || kind == op.Attention
	})
	soc.Processors = append(soc.Processors, npu)

	for _, core := range []string{"c0", "c1"} {
		soc.Links = append(soc.Links, socs.Link{From: core, To: "npu", HandoverUS: 1},
			socs.Link{From: "npu", To: core, HandoverUS: 1})
	}
	return soc
}

// small is a workload for the models of testdata/arch.
func small(model *models.Model, schemes ...op.Scheme) *workload.Workload {
	work := workload.Default()
	work.Buckets, work.Context = []int{16, 64}, min(model.MaxContext, 160)
	work.Schemes = workload.Schemes{Prefill: schemes, Decode: schemes}
	return work
}

// computes executes a plan on the simulated SoC by all of its programs: the logits of 7 tokens in one call, and of the
// last of 33, of which the last one is decoded unless the length of a call changes its positions.
func computes(t testing.TB, model *models.Model, soc *socs.SoC, plan *planir.Plan) (of7, of33 []float32) {
	t.Helper()
	content, err := emit.NewContent(context.Background(), plan, model, []driver.Compiler{sim.NewCompiler(soc)})
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	machine, err := executor.Open(context.Background(), plan, content,
		executor.Options{Drivers: []driver.Driver{sim.New(soc)}})
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()

	pieces := []int{32, 1}
	for _, sec := range model.Graph().Sections {
		for _, node := range sec.Nodes {
			if node.Ops[0].LongFrom > 0 || len(node.Ops) > 1 && node.Ops[1].LongFrom > 0 {
				pieces = []int{33}
			}
		}
	}
	return forwardPieces(t, machine, readReference(t, model, 7).ids, executor.WantAll, 7),
		forwardPieces(t, machine, readReference(t, model, 33).ids, executor.WantLast, pieces...)
}

// forwardPieces executes calls of so many tokens one after the other, and returns the logits that are wanted of the
// last one.
func forwardPieces(t testing.TB, machine *executor.Machine, ids []int32, last executor.Want,
	pieces ...int) (logits []float32) {
	t.Helper()
	machine.Reset()
	keep := func(_ int, row []float32) error {
		logits = append(logits, row...)
		return nil
	}
	err := machine.Do(context.Background(), func(control *executor.Control) error {
		for i, tokens := range pieces {
			want := executor.WantNone
			if i == len(pieces)-1 {
				want = last
			}
			if _, err := control.Forward(ids[:tokens], want, keep); err != nil {
				return err
			}
			ids = ids[tokens:]
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return logits
}

// reference is what the other implementation computes for a prompt: the logits of some of its tokens, the last one's at
// the end.
type reference struct {
	ids    []int32
	logits []float32
}

// readReference reads the reference for a prompt of so many tokens.
func readReference(t testing.TB, model *models.Model, tokens int) (out reference) {
	t.Helper()
	file, err := safetensors.Open(filepath.Join(model.Dir, "logits.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if out.ids, err = view[int32](file, fmt.Sprintf("ids_%d", tokens)); err != nil {
		t.Fatal(err)
	}
	if out.logits, err = view[float32](file, fmt.Sprintf("logits_%d", tokens)); err != nil {
		t.Fatal(err)
	}
	return out
}

// view returns a copy of a tensor's elements.
func view[T mem.Scalar](file *safetensors.File, name string) ([]T, error) {
	tensor, ok := file.Tensor(name)
	if !ok {
		return nil, fmt.Errorf("no tensor %q", name)
	}
	elements, err := mem.View[T](tensor.Data)
	return slices.Clone(elements), err
}

// differs is how far logits, as of computes, are from the reference.
func differs(t testing.TB, model *models.Model, of7, of33 []float32) float64 {
	t.Helper()
	long := readReference(t, model, 33).logits
	return max(worstDifference(of7, readReference(t, model, 7).logits),
		worstDifference(of33, long[len(long)-model.Vocab:]))
}

// worstDifference returns how far logits are apart at most: infinity if one is no number, or if their numbers differ.
func worstDifference(got, want []float32) (worst float64) {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	for i := range want {
		difference := math.Abs(float64(got[i] - want[i]))
		if math.IsNaN(difference) {
			return math.Inf(1)
		}
		worst = max(worst, difference)
	}
	return worst
}

// What is asked to be measured suffices to plan any architecture, with every section counted, and the plan gives the
// logits of another implementation.
func TestSolveArchitectures(t *testing.T) {
	require.Slow(t)
	soc := twoCores(t, 0.6)
	for _, model := range architectures(t) {
		t.Run(model.Name, func(t *testing.T) {
			work := small(model, op.A32W32)
			result, err := Solve(context.Background(), Input{Model: model, SoC: soc,
				Costs: profiled(t, soc, model, work), Workload: work, Engine: exact.Engine{}})
			if err != nil {
				t.Fatal(err)
			}
			if len(result.Warnings) > 0 {
				t.Errorf("warnings %v", result.Warnings)
			}

			plan := result.Plan
			graph := model.Graph()
			for _, pred := range plan.Predictions {
				var sum int64
				if len(pred.Sections) != len(graph.Sections) {
					t.Fatalf("%s: times of %d sections, want %d", pred.Program, len(pred.Sections), len(graph.Sections))
				}
				for i, time := range pred.Sections {
					section := &graph.Sections[i]
					if time.Section != section.Name {
						t.Errorf("%s: section %d is %q, want %q", pred.Program, i, time.Section, section.Name)
					}
					sum += time.NS * int64(max(1, section.Layers))
				}
				if off := pred.PlanNS - sum; off < 0 || off > int64(model.Layers) { // each time is rounded down
					t.Errorf("%s: %d ns, and its sections %d", pred.Program, pred.PlanNS, sum)
				}
				if pred.PlanNS > best(pred) {
					t.Errorf("%s: predicted %d ns, single processors %v", pred.Program, pred.PlanNS, pred.Singles)
				}
			}

			of7, of33 := computes(t, model, soc, plan)
			if difference := differs(t, model, of7, of33); difference > 1e-3 {
				t.Errorf("logits differ by %.2g", difference)
			}
		})
	}
}

// Sections of one name are decided once and counted as often as they run. On one processor, where nothing is handed
// over, the objective, what the processor was said to take alone, and the walk through the program agree.
func TestOneProcessorAddsUp(t *testing.T) {
	soc := twoCores(t, 1)
	soc.Processors, soc.Links, soc.Joint = soc.Processors[:1], nil, nil
	runs := 0
	for _, model := range architectures(t) {
		for _, scheme := range []op.Scheme{op.A32W32, op.A8TQ8C} {
			ses := exactSession(t, soc, model, scheme)
			plan, err := ses.eachAlone(context.Background())
			if err == nil {
				err = ses.predict(plan)
			}
			if err != nil {
				t.Fatal(err)
			}

			for i := range plan.Predictions {
				checkAddsUp(t, soc, plan, i)
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
				for _, decision := range in.decisions(make([]int, len(in.candidates))) {
					if in.section.Exact[decision.Node] && decision.Scheme != op.A32W32 {
						t.Errorf("%s: %s is decided in %s", model.Name, decision.Node, decision.Scheme)
					}
				}
			}
			if layers != model.Layers {
				t.Errorf("%s: %d layers are solved, want %d", model.Name, layers, model.Layers)
			}
		}
	}
	if runs < 2 {
		t.Error("no section runs several times with others between")
	}
}

// checkAddsUp compares the i-th prediction of a plan for one processor with the objective of its problem.
func checkAddsUp(t *testing.T, soc *socs.SoC, plan *planir.Plan, i int) {
	t.Helper()
	// Operators on rows that follow each other are one graph: the problem counts a launch for each.
	joined := int64(0)
	for _, sec := range plan.Program.Programs[i].Sections {
		for _, lane := range sec.Lanes {
			for k := range lane.Steps {
				joined += int64(max(1, sec.Layers) * (len(lane.Steps[k].Nodes()) - 1))
			}
		}
	}

	report, pred := plan.Solver[i], plan.Predictions[i]
	want := report.ObjectiveNS - joined*int64(1e3*soc.Processors[0].LaunchUS)
	if pred.PlanNS != want || pred.PlanNS != pred.Singles[0].NS || report.Status != "optimal" {
		t.Errorf("%s %s: %d ns, alone %d ns, want %d (%s)", plan.Model.Name, pred.Program, pred.PlanNS,
			pred.Singles[0].NS, want, report.Status)
	}
}

// Experts count as many times as there are, in one graph's weights and in what a processor has to hold.
func TestExpertsTakeMemory(t *testing.T) {
	model := open(t, "../testdata/arch/mixtral-window-fused")
	soc := twoCores(t, 1)
	var operator op.Op
	for _, sec := range model.Graph().Sections {
		for _, node := range sec.Nodes {
			if node.Name == "expert_gate_up" {
				operator = node.Ops[0]
			}
		}
	}
	one := op.WeightBytes("w32", operator.K, operator.N)
	if one == 0 || operator.Experts < 2 {
		t.Fatalf("%+v is no matrix of experts", operator)
	}

	for i := range soc.Processors {
		soc.Processors[i].GraphBytes = int64(operator.Experts)*one - 1
	}
	in := Input{Model: model, SoC: soc, Costs: profiled(t, soc, model, small(model, op.A32W32)),
		Workload: small(model, op.A32W32), Engine: exact.Engine{}}
	_, err := Solve(context.Background(), in)
	experts := fmt.Sprint(int64(operator.Experts) * one)
	if diag.ClassOf(err) != diag.ClassInfeasible || !says(err, "layers.expert_gate_up", experts) {
		t.Errorf("graphs of one byte less than the experts: %v", err)
	}
}

// Processors that lack float32, or an operator, are not given what needs it, and explain says so.
func TestWhoCannot(t *testing.T) {
	require.Slow(t)
	model := open(t, "../testdata/arch/olmoe-plain")
	soc := twoCores(t, 1)
	soc.Processors = soc.Processors[:2]
	soc.Processors[1].Schemes = []op.Scheme{op.A8TQ8C}
	soc.Processors[1].Kinds = slices.DeleteFunc(slices.Clone(op.Kinds),
		func(kind op.Kind) bool { return kind == op.Route })
	work := small(model, op.A8TQ8C)
	in := Input{Model: model, SoC: soc, Costs: profiled(t, soc, model, work), Workload: work, Engine: exact.Engine{}}
	plan := solve(t, in).Plan

	divided := false
	for _, decision := range plan.Decisions {
		for _, share := range decision.Shares {
			if share.Proc == "c1" && (decision.Node == "layers.router" || decision.Node == "layers.route") {
				t.Errorf("%s@%d: %s", decision.Node, decision.Rows, decision.ShareText())
			}
			divided = divided || share.Proc == "c1"
		}
	}
	if !divided {
		t.Error("nothing is left for the second core")
	}

	for node, want := range map[string]string{
		"layers.router": `"c1" does not execute scheme "a32/w32"`,
		"layers.route":  `"c1" does not execute "route"`,
	} {
		rows, err := Explain(plan, node, 16, &in)
		if err != nil {
			t.Fatal(err)
		}
		if last := rows[len(rows)-1]; last.NS != 0 || last.Shares != "c1" || last.Note != want {
			t.Errorf("%s: explained as %+v, want %q", node, rows, want)
		}
	}
	rows, err := Explain(plan, "layers.expert_down", 16, &in)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if row.NS == 0 || strings.HasPrefix(row.Shares, "k ") {
			t.Errorf("expert_down: %+v", row)
		}
	}

	// Without anybody who computes in float32 there is no plan, whatever the workload permits.
	soc.Processors[0].Schemes = soc.Processors[1].Schemes
	in.Costs = profiled(t, soc, model, work)
	_, err = Solve(context.Background(), in)
	if diag.ClassOf(err) != diag.ClassInfeasible || !says(err, "layers.router", "a32/w32") {
		t.Errorf("nobody computes in float32: %v (hints %q)", err, diag.HintsOf(err))
	}
}

// Equal inputs give equal bytes of plans with experts and several classes of layers, too.
func TestDeterministicExperts(t *testing.T) {
	require.Slow(t)
	model := open(t, "../testdata/arch/qwen2-moe-dense-layers-fused")
	soc := coresAndNPU(t)
	work := small(model, op.A8TQ8C)
	costs := profiled(t, soc, model, work)
	var first []byte
	for range 2 {
		data, err := planir.Encode(solve(t, Input{Model: model, SoC: soc, Costs: costs, Workload: work}).Plan)
		if err != nil {
			t.Fatal(err)
		}
		if first != nil && !bytes.Equal(first, data) {
			t.Fatal("another plan")
		}
		first = data
	}
}

// truth are prices without measurements: what the simulated SoC takes.
type truth struct{ soc *socs.SoC }

// Together returns the simulated times.
func (x truth) Together(tasks []price.Task) ([]price.Estimate, error) {
	out := make([]price.Estimate, len(tasks))
	for i, task := range tasks {
		ns, err := sim.NS(x.soc, task.Proc, task.Op)
		if err != nil {
			return nil, err
		}
		out[i] = price.Estimate{NS: ns, Low: ns, High: ns}
	}
	return out, nil
}

// Handover returns what the SoC says.
func (x truth) Handover(from, to string) (price.Estimate, error) {
	link, _ := x.soc.Link(from, to)
	ns := int64(1e3 * link.HandoverUS)
	return price.Estimate{NS: ns, Low: ns, High: ns}, nil
}

// GatedShare and LeastGatedShare say that products save nothing.
func (truth) GatedShare(string, op.Op, op.Op) float64 { return 1 }
func (truth) LeastGatedShare(string) float64          { return 1 }

// Launch returns what the SoC says.
func (x truth) Launch(proc string) (price.Estimate, error) {
	return price.Estimate{NS: int64(1e3 * x.soc.Processor(proc).LaunchUS)}, nil
}

// Nothing is measured, there is one form of every operator, and memory has no limit.
func (truth) Measured(price.Task) []int  { return nil }
func (truth) Forms(price.Task) []op.Form { return nil }
func (truth) Memory() *timeline.Memory   { return &timeline.Memory{} }

// Phase returns a phase of the operator's time that only computes.
func (x truth) Phase(task price.Task) (timeline.Phase, error) {
	estimates, err := x.Together([]price.Task{task})
	if err != nil {
		return timeline.Phase{}, err
	}
	return timeline.Phase{ComputeNS: float64(estimates[0].NS)}, nil
}

// Copy returns no time.
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
func exactSession(t *testing.T, soc *socs.SoC, model *models.Model, scheme op.Scheme) *session {
	t.Helper()
	digest, err := soc.Digest()
	if err != nil {
		t.Fatal(err)
	}

	costs := &roofline.Costs{Schema: roofline.Schema, SoC: soc.Name, SoCDigest: digest, Simulated: true}
	for _, link := range soc.Links {
		costs.Handovers = append(costs.Handovers, roofline.Handover{From: link.From, To: link.To})
	}
	permitted := []op.Scheme{scheme}
	if scheme == mixed {
		permitted = []op.Scheme{op.A32W32, op.A8TQ8C}
	}
	out, err := newSession(Input{Model: model, SoC: soc, Costs: costs, Workload: small(model, permitted...),
		Engine: exact.Engine{}})
	if err != nil {
		t.Fatal(err)
	}
	out.prices, out.prefill, out.decode = truth{soc}, out.mixed(scheme, 0), out.mixed(scheme, 1)
	return out
}

// mixed is the scheme for every class, or stored precision for every other one.
const mixed op.Scheme = "mixed"

// mixed returns the assignment of a scheme to every class; for the scheme mixed that to every other one, from the first
// or the second on.
func (s *session) mixed(scheme op.Scheme, odd int) assignment {
	if scheme != mixed {
		return s.uniform(scheme)
	}
	out := s.uniform(op.A32W32)
	for class := range out {
		if !s.classes[class].head && class%2 == odd {
			out[class] = op.A8TQ8C
		}
	}
	return out
}

// newDrawn solves for a model in a scheme, and executes it on one processor.
func newDrawn(t *testing.T, soc *socs.SoC, model *models.Model, scheme op.Scheme) *drawn {
	t.Helper()
	made := &drawn{model: model, scheme: scheme, session: exactSession(t, soc, model, scheme)}
	var err error
	if made.plan, err = made.session.eachAlone(context.Background()); err != nil {
		t.Fatal(err)
	}

	graph := model.Graph()
	single := *made.plan
	schemeOf := func(node string, rows int) op.Scheme {
		return made.session.schemeOf(made.session.assigned(rows))(node)
	}
	if single.Decisions, err = lower.Trivial(&graph, "c0", []int{1, 16, 64}, single.MaxContext, single.KV,
		schemeOf); err != nil {
		t.Fatal(err)
	}
	if err := lower.Lower(&single, &graph); err != nil {
		t.Fatal(err)
	}
	made.of7, made.of33 = computes(t, model, soc, &single)
	return made
}

// draw decides every operator as some candidate of its program.
func (d *drawn) draw(rt *rapid.T) *planir.Plan {
	plan := *d.plan
	plan.Decisions, plan.Solver, plan.Program = nil, nil, planir.Program{}
	for i, rows := range append([]int{1}, d.session.want.Buckets...) {
		pr, err := d.session.program(rows, d.session.assigned(rows))
		if err != nil {
			rt.Fatal(err)
		}
		for _, in := range pr.instances {
			choices := make([]int, len(in.candidates))
			for node, list := range in.candidates {
				choices[node] = drawChoice(rt, list)
			}
			d.appendDecisions(&plan, in.decisions(choices), i > 0)
		}
	}
	if err := d.session.lower(&plan); err != nil {
		rt.Fatal(err)
	}
	return &plan
}

// appendDecisions adds decisions to a plan. Those of prefill on a head that is divided as in decode are left out.
func (d *drawn) appendDecisions(plan *planir.Plan, decisions []planir.Decision, prefill bool) {
	for _, decision := range decisions {
		isHead := prefill && d.session.isHead(decision.Node)
		if isHead && price.SameShares(plan.DecisionFor(decision.Node, 1), &decision) {
			continue
		}
		plan.Decisions = append(plan.Decisions, decision)
	}
}

// drawChoice draws a candidate. Divided ones may go wrong: others are drawn less often than they come.
func drawChoice(rt *rapid.T, list []price.Candidate) int {
	var divided []int
	for i := range list {
		if len(list[i].Shares) > 1 {
			divided = append(divided, i)
		}
	}
	choice := rapid.IntRange(0, len(list)-1).Draw(rt, "choice")
	if len(divided) > 0 && rapid.IntRange(0, 3).Draw(rt, "divide") > 0 {
		return rapid.SampledFrom(divided).Draw(rt, "division")
	}
	return choice
}

// Whatever combination of candidates is chosen, the plan is legal and computes what one processor computes: in float32
// the logits of another implementation, quantised the very bits of the undivided plan, mixed nearly those.
func TestAnyCandidatesComputeTheModel(t *testing.T) {
	require.Slow(t)
	soc := coresAndNPU(t)
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
		model := rapid.SampledFrom(list).Draw(rt, "model")
		scheme := rapid.SampledFrom([]op.Scheme{op.A32W32, op.A8TQ8C, mixed}).Draw(rt, "scheme")
		of := key{model.Name, scheme}
		if made[of] == nil {
			made[of] = newDrawn(t, soc, model, scheme)
		}

		single := made[of]
		plan := single.draw(rt)
		if found := check.Plan(plan, model, soc); len(found) > 0 {
			rt.Fatalf("%s %s: %v\n%s", model.Name, scheme, found, planir.Dump(plan))
		}
		of7, of33 := computes(t, model, soc, plan)
		switch scheme {
		case op.A32W32:
			if difference := differs(t, model, of7, of33); difference > 1e-3 {
				rt.Fatalf("%s: logits differ by %.2g\n%s", model.Name, difference, planir.Dump(plan))
			}
		case mixed: // partial sums of float32 may round an 8-bit activation differently
			checkNear(rt, model.Name, of7, single.of7)
			checkNear(rt, model.Name, of33, single.of33)
		default:
			if !slices.Equal(of7, single.of7) || !slices.Equal(of33, single.of33) {
				rt.Fatalf("%s: quantised logits differ from those of one processor\n%s", model.Name, planir.Dump(plan))
			}
		}
		passed++
	})
}

// checkNear checks that logits differ by at most 5 % of the largest.
func checkNear(rt *rapid.T, name string, got, want []float32) {
	largest := float32(0)
	for _, logit := range want {
		largest = max(largest, logit, -logit)
	}
	if difference := worstDifference(got, want); difference > 0.05*float64(largest) {
		rt.Fatalf("%s: logits of mixed schemes differ by %v from those of one processor", name, difference)
	}
}

// Experts have not all schemes: that a phase permits none of theirs is an error before anything is priced, with the way
// out.
func TestExpertsLackSchemes(t *testing.T) {
	grid, both := []op.Scheme{op.A16SQ8C}, []op.Scheme{op.A16SQ8C, op.A8TQ8C}
	for _, test := range []struct {
		model           string
		prefill, decode []op.Scheme
		want            string // part of the error, "" for none
	}{
		{"mixtral-full", grid, both, "permits in prefill: [a16s/q8c]"},
		{"mixtral-full", both, []op.Scheme{op.A16FW16}, "permits in decode: [a16f/w16]"},
		{"mixtral-full", both, both, ""},
		{"llama-plain", grid, grid, ""},
	} {
		in := &Input{Model: open(t, "../testdata/arch/"+test.model), Workload: workload.Default()}
		in.Workload.Schemes = workload.Schemes{Prefill: test.prefill, Decode: test.decode}
		err := in.CheckSchemes()
		if test.want == "" {
			if err != nil {
				t.Errorf("%s, %v and %v: got %v, want no error", test.model, test.prefill, test.decode, err)
			}
			continue
		}
		if diag.ClassOf(err) != diag.ClassInput || !says(err, test.want, "a8t/q8c") {
			t.Errorf("%s, %v and %v: got %v (hints %q), want %q", test.model, test.prefill, test.decode, err,
				diag.HintsOf(err), test.want)
		}
	}
}
