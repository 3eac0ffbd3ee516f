package solver

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/workload"
)

// twoCores is a machine of two cores, the second slower by ratio, which together read 1.6 times what
// one does; and both as one processor that shares its work without loss but 10 % of everything.
func twoCores(t testing.TB, ratio float64) *socs.SoC {
	t.Helper()
	core := func(name, cores string, peak, bandwidth float64) string {
		return fmt.Sprintf(`
  - name: %s
    kind: cpu
    driver: sim
    select: %s
    cores: [%s]
    bandwidth_gbps: %g
    launch_us: 0.2
    tile: {k: 32, n: 32}
    schemes: [a32/w32, a8t/q8c]
    layouts: {w32: n32, q8c: n32}
    kv: [f32]
    dynamic_rows: true
    strided_output: true
    strided_input: true
    weight_ranges: true
    sim:
      schemes: {a32/w32: {peak_gops: %g}, a8t/q8c: {peak_gops: %g}}
      other_gops: %g`, name, name, cores, bandwidth, peak, 4*peak, peak/4)
	}
	text := "schema: hetc.soc/1\nname: two-cores\ncontrol: c0\nprocessors:" +
		core("c0", "0", 100, 10) + core("c1", "1", 100*ratio, 10*ratio) + core("c01", "0, 1", 90*(1+ratio), 14) + `
links:
  - {from: c0, to: c1, handover_us: 0.3}
  - {from: c1, to: c0, handover_us: 0.3}
joint:
  - {processors: [c0, c1], bandwidth_gbps: 16}
`
	soc, err := socs.Parse("two-cores.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return soc
}

// demo opens a small model of the tests.
func demo(t testing.TB) *models.Model { return open(t, "../testdata/models/tiny-llama-kjv") }

// open opens a model, until the test ends.
func open(t testing.TB, name string) *models.Model {
	t.Helper()
	model, err := models.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	return model
}

// costs fits what the simulated SoC takes for a model's operators: at some numbers of rows, whole and in half, and
// attention over some contexts.
func costs(t testing.TB, soc *socs.SoC, model *models.Model, schemes ...op.Scheme) *roofline.Costs {
	t.Helper()
	return batchCosts(t, soc, model, nil, schemes...)
}

// batchCosts also knows batches of sequences.
func batchCosts(t testing.TB, soc *socs.SoC, model *models.Model, batches []int, schemes ...op.Scheme) *roofline.Costs {
	t.Helper()
	digest, err := soc.Digest()
	if err != nil {
		t.Fatal(err)
	}
	header := record.Header{Schema: record.Schema, SoC: soc.Name, SoCDigest: digest, Simulated: true, Hetc: "test"}
	simulated := &simulatedSet{t: t, soc: soc, set: record.NewSet(header)}

	graph := model.Graph()
	batch := graph.Batch()
	for i := range soc.Processors {
		for _, scheme := range schemes {
			for _, rows := range []int{1, 16, 64, 256, 512} {
				simulated.addGraph(&soc.Processors[i], &graph, rows, scheme)
			}
			for _, rows := range batches {
				simulated.addGraph(&soc.Processors[i], &batch, rows, scheme)
			}
		}
	}

	costs, err := roofline.Fit(soc, simulated.set)
	if err != nil {
		t.Fatal(err)
	}
	return costs
}

// gatedShares has all products of a model that end with a gated linear unit take half of the time on a processor.
func gatedShares(t testing.TB, proc string, model *models.Model, scheme op.Scheme) (out []roofline.Gated) {
	t.Helper()
	graph := model.Graph()
	sections, err := lower.Expand(&graph, 1, 1024, op.F32, func(string) op.Scheme { return scheme }, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, section := range sections {
		for i, node := range section.Nodes {
			if product := node.Op(); node.Gated && product.Kind == op.MatMul {
				out = append(out, roofline.Gated{
					Proc: proc, Scheme: product.Scheme, Bias: product.Bias, Act: section.Nodes[i+1].Op().Act,
					K: product.K, N: product.N, Rows: []int{1}, Shares: []float64{0.5},
				})
			}
		}
	}
	return out
}

// simulatedSet collects the simulated times of operators on a SoC.
type simulatedSet struct {
	t   testing.TB
	soc *socs.SoC
	set *record.Set
}

// add simulates an operator on a processor, in every form that it has there.
func (s *simulatedSet) add(proc *socs.Processor, operator op.Op) {
	if !proc.Executes(operator.Kind) {
		return
	}
	layout := op.RowsLayout
	if operator.Scheme != "" {
		layout = proc.Layouts[operator.Scheme.Weight()]
	} else if len(operator.Sig().W) == 0 {
		layout = ""
	}

	if operator.Kind == op.MatMul && operator.Form == "" {
		for _, form := range op.FormsOf(operator.M, proc.Forms[operator.Scheme]) {
			formed := operator
			formed.Form = form
			s.add(proc, formed)
		}
	}

	ns, err := sim.NS(s.soc, proc.Name, operator)
	if err != nil {
		return // infeasible
	}
	measured := record.Measurement{Kind: record.Op, Proc: proc.Name, Op: &operator, Layout: layout,
		Cold: (&price.Task{Op: operator}).Cold(), Unit: "ns", Loops: 1, Samples: []float64{float64(ns)},
		Simulated: true}
	if s.set.Has(measured.Key()) {
		return
	}
	if err := s.set.Add(&measured); err != nil {
		s.t.Fatal(err)
	}
}

// addGraph simulates the operators of a graph at a number of rows, with all products in one scheme.
func (s *simulatedSet) addGraph(proc *socs.Processor, graph *models.Graph, rows int, scheme op.Scheme) {
	schemeOf := func(string) op.Scheme { return scheme }
	sections, err := lower.Expand(graph, rows, 1024, op.F32, schemeOf, nil, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, section := range sections {
		for _, node := range section.Nodes {
			for _, operator := range node.Ops {
				s.addOperator(proc, operator, rows, scheme)
			}
		}
	}
}

// addOperator simulates an operator with its contexts and caches, and its parts as solving divides it.
func (s *simulatedSet) addOperator(proc *socs.Processor, operator op.Op, rows int, scheme op.Scheme) {
	if operator.Kind == op.Embed && scheme.QuantisedRows() && scheme.Table() != "" {
		packed := operator
		packed.Scheme, packed.Table = scheme.Table(), ""
		s.add(proc, packed)
	}

	for _, context := range []int{64, 320, 1024} {
		if operator.Kind == op.Attention {
			operator.Context = max(context, rows)
		}
		s.add(proc, operator)
		if !operator.Kind.Has("kv") {
			continue
		}
		cached := operator
		for _, cached.KV = range proc.KV {
			s.add(proc, cached)
		}
	}

	switch operator.Kind {
	case op.MatMul:
		if operator.N == 1 {
			return
		}
		half := operator
		half.N = op.RoundUp(operator.N/2, 32)
		s.add(proc, half)
		half = operator
		half.K = op.RoundUp(operator.K/2, 32)
		s.add(proc, half)
		s.add(proc, op.Op{Kind: op.Add, M: operator.M, N: operator.N})
		s.add(proc, op.Op{Kind: op.Copy, M: operator.M, N: operator.N})
	case op.OutlierMatMul:
		operator.Channels = op.FewChannels
		s.add(proc, operator)
	case op.GLU, op.Add:
		operator.N = op.RoundUp(operator.N/2, max(1, operator.Interleave))
		s.add(proc, operator)
	}
}

// solve returns the result of solving, with the exact engine if none is given.
func solve(t testing.TB, in Input) *Result {
	t.Helper()
	if in.Engine == nil {
		in.Engine = exact.Engine{}
	}
	result, err := Solve(context.Background(), in)
	if err != nil {
		t.Fatalf("%v (hints %q)", err, diag.HintsOf(err))
	}
	return result
}

// says reports whether an error and its hints have all of these texts.
func says(err error, texts ...string) bool {
	all := fmt.Sprint(err, diag.HintsOf(err))
	for _, text := range texts {
		if !strings.Contains(all, text) {
			return false
		}
	}
	return true
}

// prediction returns what a plan predicts of a program.
func prediction(t testing.TB, plan *planir.Plan, program string) planir.Prediction {
	t.Helper()
	for _, predicted := range plan.Predictions {
		if predicted.Program == program {
			return predicted
		}
	}
	t.Fatalf("no prediction for %q", program)
	return planir.Prediction{}
}

// best returns the least time of a single processor, in ns.
func best(predicted planir.Prediction) int64 {
	var ns int64
	for _, single := range predicted.Singles {
		if ns == 0 || single.NS < ns {
			ns = single.NS
		}
	}
	return ns
}

// quick is the default with two buckets.
func quick() *workload.Workload {
	work := workload.Default()
	work.Buckets = []int{16, 256}
	return work
}

// permit is quick with these schemes, in both phases.
func permit(schemes ...op.Scheme) *workload.Workload {
	work := quick()
	work.Schemes = workload.Schemes{Prefill: schemes, Decode: schemes}
	return work
}

// A context of one position has no program for prompts.
func TestOnePosition(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	work := workload.Default()
	work.Context = 1

	plan := solve(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: work}).Plan
	if len(plan.Program.Programs) != 1 || plan.MaxContext != 1 {

		t.Errorf("%d programs for %d positions, want decode alone", len(plan.Program.Programs), plan.MaxContext)
	}
}

// Times beyond what problems are made of are refused: cut off there, slow and slowest would look alike.
func TestEndlessTimes(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)

	for name, change := range map[string]func(c *roofline.Costs){
		"operators": func(fitted *roofline.Costs) {
			for i := range fitted.Families {
				for j := range fitted.Families[i].Curves {
					for k := range fitted.Families[i].Curves[j].Points {
						point := &fitted.Families[i].Curves[j].Points[k]
						point[1], point[2], point[3] = 1<<50, 1<<50, 1<<50
					}
				}
			}
		},
		"hand-overs": func(fitted *roofline.Costs) {
			for i := range fitted.Handovers {
				fitted.Handovers[i].NS, fitted.Handovers[i].HighNS = 1<<50, 1<<50
			}
		},
	} {

		fitted := costs(t, soc, model, op.A32W32)
		change(fitted)
		result, err := Solve(t.Context(),
			Input{Model: model, SoC: soc, Costs: fitted, Workload: quick(), Engine: exact.Engine{}})
		if name == "operators" {
			if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "are predicted, want at most") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		isMissing := func(warning *diag.Diagnostic) bool {
			return strings.Contains(warning.Summary, "are not combined")
		}
		if err != nil || !slices.ContainsFunc(result.Warnings, isMissing) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// However unlike the cores are, the plan is legal, proved, and no slower than the best single processor.
func TestTwoCores(t *testing.T) {
	require.Slow(t)
	model := demo(t)
	for _, ratio := range []float64{1, 0.5, 0.1} {
		t.Run(fmt.Sprint(ratio), func(t *testing.T) {
			soc := twoCores(t, ratio)
			work, programs := quick(), 3
			if ratio == 1 {
				work, programs = nil, 7 // decode and 16..512
			}
			result := solve(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: work})

			if len(result.Warnings) > 0 {
				t.Errorf("warnings %v", result.Warnings)
			}
			if found := check.Plan(result.Plan, model, soc); len(found) > 0 {
				t.Fatal(found)
			}
			if got := len(result.Plan.Predictions); got != programs {
				t.Errorf("%d predictions, want %d", got, programs)
			}

			for _, pred := range result.Plan.Predictions {
				if len(pred.Singles) != 3 || pred.PlanNS > best(pred) {
					t.Errorf("%s: predicted %d ns, single processors %v", pred.Program, pred.PlanNS, pred.Singles)
				}
				if pred.LowNS > pred.PlanNS || pred.PlanNS > pred.HighNS {
					t.Errorf("%s: interval %d..%d around %d", pred.Program, pred.LowNS, pred.HighNS, pred.PlanNS)
				}
				if ratio == 1 && float64(best(pred)) < 1.05*float64(pred.PlanNS) {
					t.Errorf("%s: predicted %d ns, want a gain over %d", pred.Program, pred.PlanNS, best(pred))
				}
			}

			for _, report := range result.Plan.Solver {
				proved := report.Status == "optimal" && report.BoundNS == report.ObjectiveNS
				if !proved && report.Status != StatusFaster || report.Choices < 100 {
					t.Errorf("%+v", report)
				}
			}

			// No lane oversubscribes a core that another lane of the same call uses.
			for _, ph := range result.Plan.Program.Programs {
				used := map[string]bool{}
				for _, sec := range ph.Sections {
					for _, lane := range sec.Lanes {
						used[lane.Proc] = true
					}
				}
				if used["c01"] && (used["c0"] || used["c1"]) {
					t.Errorf("%s uses %v", ph.Name, used)
				}
			}
		})
	}
}

// Two equal cores halve the weights.
func TestEqualCoresHalve(t *testing.T) {
	model, s := demo(t), twoCores(t, 1)
	plan := solve(t, Input{Model: model, SoC: s, Costs: costs(t, s, model, op.A32W32), Workload: quick()}).Plan

	graph := model.Graph()
	for _, decision := range plan.Decisions {
		weight := graph.Weight(decision.Node)
		if decision.Rows != 1 || decision.Scheme == "" || weight == nil {
			continue
		}
		if len(decision.Shares) != 2 || decision.Shares[0].To*2 != decision.Shares[1].To {
			t.Errorf("%s is divided %s, want halves", decision.Node, decision.ShareText())
		}
	}
}

// A section's decisions add up to its part of the objective, and alternatives never beat what was chosen, unless they
// are excluded by a core.
func TestPricesAddUp(t *testing.T) {
	model, s := demo(t), twoCores(t, 0.5)
	in := Input{Model: model, SoC: s, Costs: costs(t, s, model, op.A32W32), Workload: quick(), Engine: exact.Engine{}}
	plan := solve(t, in).Plan

	for _, report := range plan.Solver {
		rows := 1
		fmt.Sscanf(report.Problem, "partition prefill@%d", &rows)
		var sum int64
		for _, sec := range model.Graph().Sections {
			for _, node := range sec.Nodes {
				decision := DecisionAt(plan, sec.Name+"."+node.Name, rows)
				if decision == nil {
					t.Fatalf("%s.%s@%d is not decided", sec.Name, node.Name, rows)
				}
				sum += decision.PredictNS * int64(max(1, sec.Layers))
			}
		}
		// The last repetition hands nothing over to a next one. Divisions by rows count for more than they take,
		// because of calls with fewer rows.
		less := sum < report.ObjectiveNS
		mayBeLess := rows > 1 && float64(report.ObjectiveNS) <= 1.4*float64(sum)
		if sum-report.ObjectiveNS > 5000 || less && !mayBeLess {
			t.Errorf("%s: decisions add up to %d ns, objective %d ns", report.Problem, sum, report.ObjectiveNS)
		}
	}

	cheaper := 0
	for _, decision := range plan.Decisions {
		stored, err := Explain(plan, decision.Node, decision.Rows, nil)
		if err != nil {
			t.Fatal(err)
		}

		chosen := 0
		for i, row := range stored {
			if row.Chosen {
				chosen++
				if row.NS != decision.PredictNS {
					t.Errorf("%s@%d: explained as %d ns, decided as %d", decision.Node, decision.Rows, row.NS,
						decision.PredictNS)
				}
			} else if row.NS < decision.PredictNS {
				cheaper++
				if row.Note == "" {
					t.Errorf("%s@%d: %+v is cheaper and nothing says why not", decision.Node, decision.Rows, row)
				}
			}
			if i > 0 && stored[i-1].NS > row.NS {
				t.Errorf("%s@%d: rows are out of order", decision.Node, decision.Rows)
			}
		}
		if chosen != 1 {
			t.Errorf("%s@%d: %d rows are chosen", decision.Node, decision.Rows, chosen)
		}
	}

	if cheaper == 0 {
		t.Error("nothing was excluded: the case is not tested")
	}
}

// What explain says is the same stored and recomputed.
func TestExplainRecomputes(t *testing.T) {
	model, soc := demo(t), twoCores(t, 0.5)
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: quick(),
		Engine: exact.Engine{}}
	plan := solve(t, in).Plan

	for _, node := range []string{"layers.ffn_down", "layers.attention", "layers.ffn_norm"} {
		stored, err := Explain(plan, node, 256, nil)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Explain(plan, node, 256, &in)
		if err != nil {
			t.Fatal(err)
		}
		for i := range stored { // the reason may be told more exactly with the SoC at hand
			stored[i].Note, again[i].Note = "", ""
		}
		if fmt.Sprint(stored) != fmt.Sprint(again) {
			t.Errorf("%s: stored\n%v\nrecomputed\n%v", node, stored, again)
		}
	}
}

// A node that the plan does not decide is an error that names the nearest one, or the rows that are decided.
func TestExplainUnknown(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	plan := solve(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: quick()}).Plan
	for node, want := range map[string]string{"layers.ffn_dwn": "layers.ffn_down", "layers.ffn_down": "[1 16 256]"} {
		_, err := Explain(plan, node, 7, nil)
		if diag.ClassOf(err) != diag.ClassUsage || !says(err, want) {
			t.Errorf("%s@7: got %v (%v), want %q", node, err, diag.HintsOf(err), want)
		}
	}
}

// Equal inputs give equal bytes, also from costs that were written and read again.
func TestDeterministic(t *testing.T) {
	model, soc := demo(t), twoCores(t, 0.7)
	fitted := costs(t, soc, model, op.A8TQ8C)
	work := permit(op.A8TQ8C)
	work.Buckets = []int{64}

	path := t.TempDir() + "/costs.yaml"
	if err := roofline.Write(path, fitted); err != nil {
		t.Fatal(err)
	}
	again, err := roofline.Open(path)
	if err != nil {
		t.Fatal(err)
	}

	var first []byte
	for i, given := range []*roofline.Costs{fitted, fitted, again} {
		plan := solve(t, Input{Model: model, SoC: soc, Costs: given, Workload: work}).Plan
		data, err := planir.Encode(plan)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = data
		} else if !bytes.Equal(first, data) {
			t.Fatalf("solve %d gives another plan", i)
		}
	}
}

// Where handing over is dear, producer and consumer are divided alike: columns, then the reduction.
func TestDearHandoversPair(t *testing.T) {
	require.Slow(t)
	model := open(t, "tinyllama-1.1b")
	strategies := func(us float64) map[planir.Strategy]int {
		soc := twoCores(t, 1)
		for i := range soc.Links {
			soc.Links[i].HandoverUS = us
		}

		work := permit(op.A32W32)
		work.Buckets = []int{64}
		plan, err := prepared(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32),
			Workload: work}).eachAlone(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		count := map[planir.Strategy]int{}
		for _, decision := range plan.Decisions {
			if decision.Rows == 1 && strings.HasPrefix(decision.Node, "layers.") {
				count[decision.Strategy]++
			}
		}
		return count
	}

	if count := strategies(0.3); count[planir.WeightCentric] < 4 {
		t.Errorf("cheap hand-overs: %v, want every matrix in columns", count)
	}
	if count := strategies(60); count[planir.Paired] < 1 {
		t.Errorf("dear hand-overs: %v, want pairs", count)
	}
	if count := strategies(100e3); count[planir.Single] != 10 {
		t.Errorf("hand-overs dearer than the work: %v, want single processors", count)
	}
}

// What gets faster or cheaper never makes the optimum worse.
func TestFasterNeverHurts(t *testing.T) {
	require.Slow(t)
	model := demo(t)
	work := workload.Default()
	work.Buckets = []int{64, 256}
	objectives := func(change func(s *socs.SoC)) map[string]int64 {
		soc := twoCores(t, 0.5)
		change(soc)
		in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: work}
		out := map[string]int64{}
		for _, report := range solve(t, in).Plan.Solver {
			out[report.Problem] = report.ObjectiveNS
		}
		return out
	}

	base := objectives(func(*socs.SoC) {})
	for name, change := range map[string]func(s *socs.SoC){
		"joint bandwidth": func(s *socs.SoC) { s.Joint[0].BandwidthGBps *= 1.3 },
		"hand-overs": func(soc *socs.SoC) {
			for i := range soc.Links {
				soc.Links[i].HandoverUS /= 3
			}
		},
		"a core": func(soc *socs.SoC) {
			soc.Processors[0].BandwidthGBps *= 1.5
			for scheme, speed := range soc.Processors[0].Sim.Schemes {
				speed.PeakGops *= 1.5
				soc.Processors[0].Sim.Schemes[scheme] = speed
			}
		},
	} {
		for posed, ns := range objectives(change) {
			if float64(ns) > 1.01*float64(base[posed]) { // 1 %: the fit's
				t.Errorf("faster %s: %s takes %d ns, before %d", name, posed, ns, base[posed])
			}
		}
	}
}

// The workload's schemes are tried and the faster one taken; without permission precision stays.
func TestSchemes(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), twoCores(t, 1)
	both := costs(t, soc, model, op.A32W32, op.A8TQ8C)
	scheme := func(plan *planir.Plan, rows int) op.Scheme { return plan.DecisionFor("layers.ffn_down", rows).Scheme }
	head := func(plan *planir.Plan) op.Scheme { return plan.DecisionFor("head.lm_head", 1).Scheme }

	plan := solve(t, Input{Model: model, SoC: soc, Costs: both, Workload: quick()}).Plan
	if scheme(plan, 1) != op.A32W32 || scheme(plan, 256) != op.A32W32 {
		t.Errorf("nobody permitted %q, %q", scheme(plan, 1), scheme(plan, 256))
	}

	work := quick()
	work.Schemes.Decode = []op.Scheme{op.A32W32, op.A8TQ8C}
	plan = solve(t, Input{Model: model, SoC: soc, Costs: both, Workload: work}).Plan
	if scheme(plan, 1) != op.A8TQ8C || head(plan) != op.A8TQ8C || scheme(plan, 256) != op.A32W32 {
		t.Errorf("decode in %q, prefill in %q", scheme(plan, 1), scheme(plan, 256))
	}
	if found := check.Plan(plan, model, soc); len(found) > 0 {
		t.Fatal(found)
	}

	// The head alone may be more precise, or less, than decode is.
	for _, test := range []struct{ decode, head op.Scheme }{{op.A8TQ8C, op.A32W32}, {op.A32W32, op.A8TQ8C}} {
		want := quick()
		want.Schemes.Decode, want.Schemes.Head = []op.Scheme{test.decode}, []op.Scheme{test.head}
		plan = solve(t, Input{Model: model, SoC: soc, Costs: both, Workload: want}).Plan
		if scheme(plan, 1) != test.decode || head(plan) != test.head || scheme(plan, 256) != op.A32W32 {
			t.Errorf("decode in %q, head in %q, prefill in %q; want %+v",
				scheme(plan, 1), head(plan), scheme(plan, 256), test)
		}
		if needs, err := want.Needs(512); err != nil || len(needs.Schemes) != 2 {
			t.Errorf("to measure: %v, %v", needs.Schemes, err)
		}
	}

	// What was never measured is left out, and reported.
	result := solve(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: work})
	isReported := len(result.Warnings) == 1 && strings.Contains(result.Warnings[0].Summary, "a8t/q8c")
	if scheme(result.Plan, 1) != op.A32W32 || !isReported {
		t.Errorf("scheme %q, warnings %v", scheme(result.Plan, 1), result.Warnings)
	}
}

// Where the only permitted scheme was never measured, one hint says with which command to measure it.
func TestUnmeasuredScheme(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	_, err := Solve(context.Background(), Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32),
		Workload: permit(op.A8TQ8C), Engine: exact.Engine{}})
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "never measured") {
		t.Errorf("got %v, want that the scheme was never measured", err)
	}
	const command = "hetc profile --soc SOC --model MODEL --workload"
	if hints := diag.HintsOf(err); len(hints) != 1 || !strings.Contains(hints[0], command) {
		t.Errorf("hints %q, want one with %q", hints, command)
	}
}

// A processor that was not measured completely is named.
func TestIncompleteCosts(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	fitted := costs(t, soc, model, op.A32W32)
	fitted.Families = slices.DeleteFunc(fitted.Families,
		func(f roofline.Family) bool { return f.Proc == "c1" && f.Kind == op.Norm })

	path := t.TempDir() + "/costs.yaml"
	if err := roofline.Write(path, fitted); err != nil {
		t.Fatal(err)
	}
	fitted, err := roofline.Open(path)
	if err != nil {
		t.Fatal(err)
	}

	work := quick()
	work.Buckets = []int{16}
	result := solve(t, Input{Model: model, SoC: soc, Costs: fitted, Workload: work})
	text := fmt.Sprint(result.Warnings)
	if len(result.Warnings) != 1 || !strings.Contains(text, `"c1"`) || !strings.Contains(text, "norm") {
		t.Errorf("warnings %v", result.Warnings)
	}
	if n := len(prediction(t, result.Plan, "decode").Singles); n != 2 {
		t.Errorf("%d processors execute everything alone, want 2", n)
	}
}

// Many processors are all considered alone, and the fastest together.
func TestManyProcessors(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), twoCores(t, 1)
	for i := range 8 {
		proc := soc.Processors[1]
		proc.Name = fmt.Sprintf("x%d", i)
		proc.Select, proc.Cores = proc.Name, []int{2 + i}
		proc.BandwidthGBps = float64(1 + i)
		soc.Processors = append(soc.Processors, proc)
	}
	soc.Links = nil
	for _, from := range soc.Processors {
		for _, to := range soc.Processors {
			if from.Name != to.Name {
				soc.Links = append(soc.Links, socs.Link{From: from.Name, To: to.Name, HandoverUS: 0.3})
			}
		}
	}

	work := quick()
	work.Buckets = []int{64}
	result := solve(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: work})

	if len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0].Summary, "of 11 processors the 6") {
		t.Errorf("warnings %v", result.Warnings)
	}
	if n := len(prediction(t, result.Plan, "decode").Singles); n != 11 {
		t.Errorf("%d processors were tried alone, want 11", n)
	}

	used := map[string]bool{}
	for _, decision := range result.Plan.Decisions {
		for _, share := range decision.Shares {
			used[share.Proc] = true
		}
	}
	if len(used) < 3 || used["x0"] {
		t.Errorf("used %v, want at least three, without the slowest", used)
	}
}

// What cannot be solved is an error of its class that says what to do.
func TestErrors(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	fitted := costs(t, soc, model, op.A32W32)
	for name, test := range map[string]struct {
		in    func() Input
		class diag.Class
		want  []string // in the error or its hints
	}{
		"scheme never measured": {
			func() Input { return Input{Model: model, SoC: soc, Costs: fitted, Workload: permit(op.A8TQ8C)} },
			diag.ClassInput,
			[]string{"quant", "hetc profile"}},
		"costs of another SoC": {func() Input {
			other := twoCores(t, 1)
			other.Name = "other"
			return Input{Model: model, SoC: other, Costs: fitted}
		}, diag.ClassInput, []string{`"two-cores"`, `"other"`, "profile this SoC"}},
		"costs of an edited SoC": {func() Input {
			edited := twoCores(t, 1)
			edited.Processors[0].BandwidthGBps *= 2
			return Input{Model: model, SoC: edited, Costs: fitted}
		}, diag.ClassInput, []string{"digest", "fitted with"}},
		"context beyond the model": {func() Input {
			work := workload.Default()
			work.Context = 1 << 20
			return Input{Model: model, SoC: soc, Costs: fitted, Workload: work}
		}, diag.ClassInput, []string{"1024"}},
		"nobody attends": {func() Input {
			lame := twoCores(t, 1)
			for i := range lame.Processors {
				lame.Processors[i].Kinds = []op.Kind{op.Embed, op.Norm, op.MatMul, op.Add, op.GLU, op.SelectRow}
				lame.Processors[i].KV = nil
			}
			return Input{Model: model, SoC: lame, Costs: costs(t, lame, model, op.A32W32)}
		}, diag.ClassInfeasible, []string{"layers.attention"}},
		"no scheme in common": {func() Input {
			lame := twoCores(t, 1)
			for i := range lame.Processors {
				lame.Processors[i].Schemes = []op.Scheme{op.A8TQ8C}
			}
			digest, err := lame.Digest()
			if err != nil {
				t.Fatal(err)
			}
			measured := &roofline.Costs{Schema: fitted.Schema, SoC: fitted.SoC, SoCDigest: digest,
				Fingerprint: fitted.Fingerprint, Simulated: fitted.Simulated, Record: fitted.Record,
				Processors: fitted.Processors, Families: fitted.Families, Handovers: fitted.Handovers,
				Copies: fitted.Copies, Sharing: fitted.Sharing, Infeasible: fitted.Infeasible}
			return Input{Model: model, SoC: lame, Costs: measured}
		}, diag.ClassInfeasible, []string{"a32/w32", "another scheme"}},
		"too little memory": {func() Input {
			small := twoCores(t, 1)
			for i := range small.Processors {
				small.Processors[i].AddressBytes = 1 << 20
			}
			return Input{Model: model, SoC: small, Costs: costs(t, small, model, op.A32W32)}
		}, diag.ClassInfeasible, []string{"at most 1048576 bytes", "soc.address_bytes", "fewer bits"}},
		"too small graphs": {func() Input {
			small := twoCores(t, 1)
			for i := range small.Processors {
				small.Processors[i].GraphBytes = 1 << 10
			}
			return Input{Model: model, SoC: small, Costs: costs(t, small, model, op.A32W32)}
		}, diag.ClassInfeasible, []string{"layers.qkv", "at most 1024"}},
		"too many graphs": {func() Input {
			small := twoCores(t, 1)
			for i := range small.Processors {
				small.Processors[i].MaxGraphs = 2
			}
			return Input{Model: model, SoC: small, Costs: costs(t, small, model, op.A32W32)}
		}, diag.ClassInfeasible, []string{"at most 2"}},
	} {

		in := test.in()
		in.Engine = exact.Engine{}
		if in.Workload == nil {
			in.Workload = quick()
			in.Workload.Buckets = []int{16}
		}
		_, err := Solve(context.Background(), in)
		if err == nil || diag.ClassOf(err) != test.class {
			t.Errorf("%s: got %v of class %d, want class %d", name, err, diag.ClassOf(err), test.class)
			continue
		}
		if !says(err, test.want...) {
			t.Errorf("%s: %v (hints %q), want %q", name, err, diag.HintsOf(err), test.want)
		}
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Solve(ctx, Input{Model: model, SoC: soc, Costs: fitted, Engine: exact.Engine{}})
	if diag.ClassOf(err) != diag.ClassInterrupted {
		t.Errorf("cancelled: %v", err)
	}
}

// Pricing the candidates of a large model takes seconds. An interruption does not wait for the classes that are left.
func TestPricingIsInterrupted(t *testing.T) {
	model := open(t, "tinyllama-1.1b")
	soc := twoCores(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var priced []string
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Engine: exact.Engine{}}
	in.Progress = func(p Progress) {
		if strings.HasPrefix(p.Phase, "price ") {
			priced = append(priced, p.What)
			cancel()
		}
	}
	_, err := Solve(ctx, in)
	if diag.ClassOf(err) != diag.ClassInterrupted || !strings.Contains(err.Error(), "price candidates") {
		t.Errorf("got %v", err)
	}
	if len(priced) != 1 {
		t.Errorf("priced after the interruption: %q", priced)
	}
}

// On a phone with a GPU and an NPU: the paper's strategies come out, and the NPU's address space holds.
func TestPhone(t *testing.T) {
	model := open(t, "llama-3-8b")
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}

	work := permit(op.A8TQ4B32)
	work.Buckets = []int{256}
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ4B32), Workload: work,
		Engine: exact.Engine{}}
	result := solve(t, in)

	if found := check.Plan(result.Plan, model, soc); len(found) > 0 {
		t.Fatal(found)
	}
	if !result.Plan.SoC.Simulated {
		t.Error("the plan does not say that its times are simulated")
	}
	npu := soc.Processor("npu")
	if load := check.Load(result.Plan, npu); load.Bytes > npu.AddressBytes || load.Bytes < 1<<30 {
		t.Errorf("the NPU holds %d bytes", load.Bytes)
	}

	for _, report := range result.Plan.Solver {
		if gap := float64(report.ObjectiveNS)/float64(report.BoundNS) - 1; gap < 0 || gap > 0.05 {
			t.Errorf("%s: %d ns with bound %d ns, %s", report.Problem, report.ObjectiveNS, report.BoundNS,
				report.Status)
		}
	}
	// HeteroInfer sec. 5.3.1: 5.85 times the GPU
	if predicted := prediction(t, result.Plan, "prefill@256"); predicted.PlanNS*3 > best(predicted) {
		t.Errorf("prefill of 256 tokens takes %d ns, single processors %v", predicted.PlanNS, predicted.Singles)
	}

	rows, err := Explain(result.Plan, "layers.ffn_down", 256, &in)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&text, "%s %s\n", row.Strategy, strings.Join(processors(row.Shares), "+"))
	}
	for _, want := range []string{"single cpu\n", "single gpu\n", "single npu\n", "weight-centric gpu+npu\n",
		"activation-centric gpu+npu\n", "weight-centric cpu+gpu+npu\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("explain says nothing of %q:\n%s", want, text.String())
		}
	}
}

// Calls of many lengths are divided by columns, calls of one length by whatever is fastest then.
func TestLengths(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	for i := range soc.Links { // makes divisions by columns dearer, which hand over more
		soc.Links[i].HandoverUS = 20
	}
	fitted := costs(t, soc, model, op.A32W32)
	dividedByRows := func(prompts ...workload.Prompt) (count int) {
		work := workload.Default()
		work.Buckets, work.Prompts = []int{256}, prompts
		plan := solve(t, Input{Model: model, SoC: soc, Costs: fitted, Workload: work}).Plan
		for _, decision := range plan.Decisions {
			if decision.Rows == 256 && decision.Axis == planir.AxisRows && decision.Scheme != "" {
				count++
			}
		}
		return count
	}

	if n := dividedByRows(workload.Prompt{Tokens: 256, Share: 1}); n < 3 {
		t.Errorf("full buckets: %d matrices are divided by rows, want most of 4", n)
	}
	half := []workload.Prompt{{Tokens: 130, Share: 1}, {Tokens: 140, Share: 1}}
	if n := dividedByRows(half...); n > 0 {
		t.Errorf("half empty buckets: %d matrices are divided by rows", n)
	}
}

// Rows that are no multiple of an NPU's are padded: the whole, and the last piece.
func TestPadding(t *testing.T) {
	require.Slow(t)
	model := open(t, "llama-3-8b")
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	soc.Processor("npu").AddressBytes = 0

	work := permit(op.A8TQ4B32)
	work.Buckets = []int{48, 250}
	plan := solve(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ4B32), Workload: work}).Plan

	seen := map[planir.Strategy]bool{}
	for _, decision := range plan.Decisions {
		if decision.Rows == 1 {
			continue
		}
		seen[decision.Strategy] = true
		for _, share := range decision.Shares {
			rows := decision.Rows
			if decision.Axis == planir.AxisRows {
				rows = share.To - share.From
			}
			if share.PadRows > 0 {
				rows = share.PadRows
			}
			if share.Proc == "npu" && rows%32 != 0 {
				t.Errorf("%s@%d: %s gives the NPU %d rows", decision.Node, decision.Rows, decision.ShareText(), rows)
			}
		}
		for _, alternative := range decision.Alternatives {
			seen[alternative.Strategy] = true
		}
	}

	for _, want := range []planir.Strategy{planir.Padding, planir.Hybrid, planir.ActivationDivide} {
		if !seen[want] {
			t.Errorf("no decision or alternative is %q", want)
		}
	}
}
