package solver

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// skewed are true prices, but matrices of each shape and scheme take a random factor more.
type skewed struct {
	truth
	factor map[string]float64
	rand   *rand.Rand
}

// Together returns the true prices, times the factors.
func (x skewed) Together(tasks []price.Task) ([]price.Estimate, error) {
	out, err := x.truth.Together(tasks)
	for i := range out {
		operator := tasks[i].Op
		if !operator.HasScheme() {
			continue
		}
		key := fmt.Sprintf("%d %d %s", operator.M, operator.K, operator.Scheme)
		if x.factor[key] == 0 {
			x.factor[key] = 0.2 + 3*x.rand.Float64()
		}
		ns := int64(float64(out[i].NS) * x.factor[key])
		out[i] = price.Estimate{NS: ns, Low: ns, High: ns}
	}
	return out, err
}

// invented is a calibration with random losses of every class in a scheme.
func invented(t testing.TB, model *models.Model, random *rand.Rand, schemes ...op.Scheme) *calibration.Calibration {
	t.Helper()
	digest, err := model.Digest()
	if err != nil {
		t.Fatal(err)
	}

	cal := &calibration.Calibration{Schema: calibration.Schema,
		Model: calibration.Model{Name: model.Name, Digest: digest}}
	for _, sec := range model.Graph().Sections {
		for _, node := range sec.Nodes {
			if operator := node.Ops[len(node.Ops)-1]; !operator.HasScheme() || node.Exact {
				continue
			}
			for _, scheme := range schemes {
				cal.Losses = append(cal.Losses, calibration.Loss{Class: sec.Name + "." + node.Name, Scheme: scheme,
					KL: random.Float64() / 100})
			}
		}
	}
	return cal
}

// addActivations adds what enters the products of every layer to a calibration.
func addActivations(cal *calibration.Calibration, model *models.Model) {
	for _, sec := range model.Graph().Sections {
		for _, node := range sec.Nodes {
			if !node.Ops[0].HasScheme() {
				continue
			}
			for layer := range max(1, sec.Layers) {
				cal.Activations = append(cal.Activations, calibration.Activation{
					Class: sec.Name + "." + node.Name, Layer: layer, K: node.Ops[0].K})
			}
		}
	}
}

// randomSession is one with random prices by class and scheme.
func randomSession(t testing.TB, soc *socs.SoC, model *models.Model, work *workload.Workload, seed uint64) *session {
	t.Helper()
	digest, err := soc.Digest()
	if err != nil {
		t.Fatal(err)
	}

	costs := &roofline.Costs{Schema: roofline.Schema, SoC: soc.Name, SoCDigest: digest, Simulated: true}
	for _, link := range soc.Links {
		costs.Handovers = append(costs.Handovers, roofline.Handover{From: link.From, To: link.To})
	}

	out, err := newSession(Input{Model: model, SoC: soc, Costs: costs, Workload: work, Engine: exact.Engine{}})
	if err != nil {
		t.Fatal(err)
	}
	out.prices = skewed{truth{soc}, map[string]float64{}, rand.New(rand.NewPCG(seed, 2))}
	return out
}

// everyPair calls try with every pair of assignments of what is permitted: the head's in prefill is decode's.
func everyPair(ses *session, try func(prefill, decode assignment)) {
	for _, decode := range everyAssignment(ses, ses.want.Decode, true) {
		for _, prefill := range everyAssignment(ses, ses.want.Prefill, false) {
			for class := range prefill {
				if ses.classes[class].head {
					prefill[class] = decode[class]
				}
			}
			try(slices.Clone(prefill), decode)
		}
	}
}

// everyAssignment lists all assignments of permitted schemes to classes. head: those of the head vary as well.
func everyAssignment(ses *session, permits []op.Scheme, head bool) (out []assignment) {
	out = []assignment{ses.uniform(op.A32W32)}
	for class := range ses.classes {
		if ses.classes[class].head && !head {
			continue
		}
		var more []assignment
		for _, schemes := range out {
			for _, scheme := range permits {
				changed := slices.Clone(schemes)
				changed[class] = scheme
				more = append(more, changed)
			}
		}
		out = more
	}
	return out
}

// kl adds up what the calibration says of an assignment.
func kl(ses *session, schemes assignment) float64 {
	total := 0.0
	for class, scheme := range schemes {
		if scheme == op.A32W32 {
			continue
		}
		for _, node := range ses.classes[class].nodes {
			total += ses.in.Calibration.Loss(node, scheme, false).KL
		}
	}
	return total
}

// The chosen schemes are those that trying every combination finds, with limits of quality and without.
func TestSchemesAreTheBest(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), twoCores(t, 0.7)
	both := []op.Scheme{op.A32W32, op.A8TQ8C}
	mixes, limited := 0, 0
	for seed := range uint64(8) {
		work := workload.Default()
		work.Buckets, work.Context, work.OutputTokens = []int{16}, 128, 8
		work.Schemes = workload.Schemes{Prefill: both, Decode: both}
		ses := randomSession(t, soc, model, work, seed)

		random := rand.New(rand.NewPCG(seed, 1))
		ses.in.Calibration = invented(t, model, random, op.A8TQ8C)
		if seed%2 == 1 {
			ses.want.MaxKL = workload.KLLimit{Prefill: 0.002 + 0.01*random.Float64(),
				Decode: 0.002 + 0.01*random.Float64()}
		}

		if err := ses.chooseSchemes(context.Background()); err != nil {
			t.Fatal(err)
		}
		got, err := ses.solvedObjective(context.Background(), ses.prefill, ses.decode)
		if err != nil {
			t.Fatal(err)
		}

		best, free := math.Inf(1), math.Inf(1)
		everyPair(ses, func(prefill, decode assignment) {
			ns, err := ses.solvedObjective(context.Background(), prefill, decode)
			if err != nil {
				t.Fatal(err)
			}
			free = min(free, ns)
			limit := ses.want.MaxKL
			isPermitted := kl(ses, prefill) <= limit.Prefill && kl(ses, decode) <= limit.Decode
			if limit == (workload.KLLimit{}) || isPermitted {
				best = min(best, ns)
			}
		})

		if got != best {
			t.Errorf("seed %d: prefill %v and decode %v take %v ns, the best %v", seed, ses.prefill, ses.decode, got,
				best)
		}
		if best > free {
			limited++
		}
		if len(slices.Compact(slices.Sorted(slices.Values(ses.decode)))) > 1 {
			mixes++
		}
		if ses.chosen == nil || ses.chosen.Status != "optimal" || ses.chosen.ObjectiveNS != price.Whole(best) {
			t.Errorf("seed %d: %+v", seed, ses.chosen)
		}

		plan, err := ses.completePlan(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if found := check.Plan(plan, model, soc); len(found) > 0 {
			t.Fatalf("seed %d: %v", seed, found)
		}
	}
	if mixes == 0 || limited == 0 {
		t.Errorf("%d cases mix schemes, %d are limited by quality", mixes, limited)
	}
}

// A limit of predicted KL is held by the sum over the classes as decided, a tighter one costs time, and the plan says
// what it relied on.
func TestQuality(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	cal := invented(t, model, rand.New(rand.NewPCG(7, 7)), op.A8TQ8C)
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32, op.A8TQ8C), Engine: exact.Engine{},
		Calibration: cal}

	last := 0.0
	var used []int
	limits := []float64{1, 0.02, 0.01, 0.005, 1e-9}
	if testing.Short() {
		limits = []float64{0.01, 1e-9}
	}
	for _, limit := range limits {
		in.Workload = quick()
		in.Workload.Quality.MaxKL = workload.KLLimit{Prefill: limit, Decode: limit / 2}
		result := solve(t, in)
		if result.ExpectedNS < last {
			t.Errorf("limit %v: %v ns, and %v with a looser one", limit, result.ExpectedNS, last)
		}
		last = result.ExpectedNS

		sum := map[int]float64{} // by rows
		quantised := 0
		for _, rows := range []int{1, 16, 256} {
			for _, decision := range result.Plan.Decisions {
				isHead := decision.Node == "head.lm_head" && decision.Rows == 1 // decided once, for decode
				if decision.Scheme == op.A8TQ8C && (decision.Rows == rows || isHead) {
					sum[rows] += cal.Loss(decision.Node, decision.Scheme, false).KL
					quantised++
				}
			}
		}
		used = append(used, quantised)

		quality := result.Plan.Quality
		if len(quality) != 2 || quality[0].Phase != "decode" || quality[1].Phase != "prefill" {
			t.Fatalf("limit %v: quality %+v", limit, quality)
		}
		if quality[0].MaxKL != limit/2 || quality[1].MaxKL != limit {
			t.Fatalf("limit %v: quality %+v", limit, quality)
		}
		for i, rows := range []int{1, 16} {
			if math.Abs(quality[i].KL-sum[rows]) > 1e-12 || quality[i].KL > quality[i].MaxKL || sum[16] != sum[256] {
				t.Errorf("limit %v: %+v, and the decisions add up to %v", limit, quality[i], sum)
			}
		}

		if found := check.Plan(result.Plan, model, soc); len(found) > 0 {
			t.Fatal(found)
		}
		digest, err := cal.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(result.Plan.Inputs, planir.Input{Kind: "calibration", Digest: digest}) {
			t.Errorf("inputs %v", result.Plan.Inputs)
		}
	}

	if used[len(used)-1] != 0 || !testing.Short() && (used[0] != 15 || used[1] <= used[3]) {
		t.Errorf("8-bit decisions by limit: %v, want fewer and fewer of 15", used)
	}
}

// Static scales need a calibration, are chosen where they are permitted alone, and never where their twin is
// permitted at the same price: by a limit of quality alone they are no choice on processors that execute both.
func TestStaticScales(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), twoCores(t, 1)
	for i := range soc.Processors {
		soc.Processors[i].Schemes = append(soc.Processors[i].Schemes, op.A8SQ8C)
	}
	cal := invented(t, model, rand.New(rand.NewPCG(7, 8)), op.A8TQ8C, op.A8SQ8C)
	for i := range cal.Losses {
		if loss := &cal.Losses[i]; loss.Scheme == op.A8SQ8C {
			loss.KL += 0.02
		}
	}
	cal.Losses = append(cal.Losses, calibration.Loss{Class: "embed.embed", Scheme: op.I32Q8C, KL: 1e-5})
	bare := *cal
	addActivations(cal, model)

	fitted := costs(t, soc, model, op.A32W32, op.A8TQ8C)
	schemes := func(plan *planir.Plan) (out []op.Scheme) {
		for _, decision := range plan.Decisions {
			isProduct := decision.Scheme != "" && decision.Scheme != op.I32Q8C
			if isProduct && !slices.Contains(out, decision.Scheme) {
				out = append(out, decision.Scheme)
			}
		}
		return out
	}

	result := solve(t, Input{Model: model, SoC: soc, Costs: fitted, Workload: permit(op.A8SQ8C), Calibration: cal})
	if got := schemes(result.Plan); !slices.Equal(got, []op.Scheme{op.A8SQ8C}) || len(result.Warnings) > 0 {
		t.Errorf("schemes %v, warnings %v", got, result.Warnings)
	}
	if found := check.Plan(result.Plan, model, soc); len(found) > 0 {
		t.Fatal(found)
	}

	twin := solve(t, Input{Model: model, SoC: soc, Costs: fitted, Workload: permit(op.A8TQ8C), Calibration: cal})
	if twin.ExpectedNS != result.ExpectedNS {
		t.Errorf("%v ns expected, and %v of the twin", result.ExpectedNS, twin.ExpectedNS)
	}

	work := quick()
	work.Quality.MaxKL = workload.KLLimit{Prefill: 1, Decode: 1}
	result = solve(t, Input{Model: model, SoC: soc, Costs: fitted, Workload: work, Calibration: cal})
	if got := schemes(result.Plan); slices.Contains(got, op.A8SQ8C) || !slices.Contains(got, op.A8TQ8C) {
		t.Errorf("under a limit: schemes %v", got)
	}
	work.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A32W32, op.A8SQ8C}, Decode: []op.Scheme{op.A32W32}}
	result = solve(t, Input{Model: model, SoC: soc, Costs: fitted, Workload: work, Calibration: cal})
	if !slices.Contains(schemes(result.Plan), op.A8SQ8C) {
		t.Errorf("under a limit, permitted: schemes %v", schemes(result.Plan))
	}

	for name, test := range map[string]struct {
		cal  *calibration.Calibration
		want string
	}{"no calibration": {nil, "come from a calibration"}, "no ranges": {&bare, "says nothing about what enters"}} {
		_, err := Solve(context.Background(), Input{Model: model, SoC: soc, Costs: fitted, Workload: permit(op.A8SQ8C),
			Calibration: test.cal, Engine: exact.Engine{}})
		if diag.ClassOf(err) != diag.ClassInput || !says(err, test.want) || len(diag.HintsOf(err)) != 1 {
			t.Errorf("%s: %v, hints %q", name, err, diag.HintsOf(err))
		}
	}
}

// Several static scales have losses of their own, which limits of quality count, and need a calibration that has the
// scales.
func TestSeveralStaticScales(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), twoCores(t, 1)
	for i := range soc.Processors {
		soc.Processors[i].Schemes = []op.Scheme{op.A32W32, op.A8SQ8C, op.A8S2Q8C}
	}
	cal := invented(t, model, rand.New(rand.NewPCG(7, 8)), op.A8SQ8C, op.A8S2Q8C)
	for i := range cal.Losses {
		cal.Losses[i].KL = 1e-4
		if cal.Losses[i].Scheme == op.A8SQ8C {
			cal.Losses[i].KL = 0.02
		}
	}
	cal.Losses = append(cal.Losses, calibration.Loss{Class: "embed.embed", Scheme: op.I32Q8C, KL: 1e-5})
	addActivations(cal, model)
	for _, entering := range cal.Activations {
		cal.Scales = append(cal.Scales, calibration.Scales{Class: entering.Class, Layer: entering.Layer,
			Values: []float32{1, 2}})
	}
	older := *cal
	older.Scales = nil

	fitted := costs(t, soc, model, op.A32W32, op.A8TQ8C)
	work := quick()
	work.Quality.MaxKL = workload.KLLimit{Prefill: 0.005, Decode: 0.005}
	result := solve(t, Input{Model: model, SoC: soc, Costs: fitted, Workload: work, Calibration: cal})

	used := map[op.Scheme]int{}
	for _, decision := range result.Plan.Decisions {
		used[decision.Scheme]++
	}
	if used[op.A8S2Q8C] == 0 || used[op.A8SQ8C] != 0 {
		t.Errorf("under a limit that two scales keep and one does not: %v", used)
	}
	if found := check.Plan(result.Plan, model, soc); len(found) > 0 {
		t.Fatal(found)
	}

	one := solve(t, Input{Model: model, SoC: soc, Costs: fitted, Workload: permit(op.A8SQ8C), Calibration: cal})
	two := solve(t, Input{Model: model, SoC: soc, Costs: fitted, Workload: permit(op.A8S2Q8C), Calibration: cal})
	if one.ExpectedNS != two.ExpectedNS {
		t.Errorf("%v ns expected with two scales, %v with one", two.ExpectedNS, one.ExpectedNS)
	}

	_, err := Solve(context.Background(), Input{Model: model, SoC: soc, Costs: fitted, Workload: permit(op.A8S2Q8C),
		Calibration: &older, Engine: exact.Engine{}})
	if diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) != 1 ||
		!says(err, "says nothing about 2 static scales", "--schemes a8s2/q8c") {
		t.Errorf("an older calibration: %v, hints %q", err, diag.HintsOf(err))
	}
}

// Products on a 16-bit grid need the ranges of their results, are divided by columns, each share with its steps, and
// never along their reduction.
func TestGridSchemes(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	for i := range soc.Processors {
		proc := &soc.Processors[i]
		proc.Schemes = append(proc.Schemes, op.A16SQ8C)
		proc.Sim.Schemes[op.A16SQ8C] = proc.Sim.Schemes[op.A8TQ8C]
	}
	cal := invented(t, model, rand.New(rand.NewPCG(7, 8)), op.A16SQ8C)
	addActivations(cal, model)
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32, op.A16SQ8C),
		Workload: permit(op.A16SQ8C), Calibration: cal, Engine: exact.Engine{}}
	_, err := Solve(context.Background(), in)
	if !says(err, "nothing about what it computes") || len(diag.HintsOf(err)) != 1 {
		t.Errorf("no ranges of results: %v", err)
	}

	for i := range cal.Activations {
		cal.Activations[i].OutMax = calibration.Vector{1}
	}
	result := solve(t, in)
	if found := check.Plan(result.Plan, model, soc); len(found) > 0 {
		t.Fatal(found)
	}

	shared := 0
	for _, decision := range result.Plan.Decisions {
		if decision.Scheme != op.A16SQ8C {
			continue
		}
		if decision.Axis == planir.AxisK {
			t.Errorf("%s@%d is divided along its reduction", decision.Node, decision.Rows)
		}
		if decision.Axis == planir.AxisCols {
			shared++
		}
	}
	if shared == 0 {
		t.Error("nothing is divided by columns")
	}
}

// What a calibration lacks is left out and reported.
func TestPartialCalibration(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), twoCores(t, 1)
	cal := invented(t, model, rand.New(rand.NewPCG(3, 3)), op.A8TQ8C)
	fitted := costs(t, soc, model, op.A32W32, op.A8TQ8C)
	work := quick()
	work.Quality.MaxKL = workload.KLLimit{Prefill: 1, Decode: 1}

	partial := *cal
	partial.Losses = slices.DeleteFunc(slices.Clone(cal.Losses),
		func(l calibration.Loss) bool { return l.Class == "layers.ffn_down" })
	result := solve(t, Input{Model: model, SoC: soc, Costs: fitted, Workload: work, Calibration: &partial})
	for _, decision := range result.Plan.Decisions {
		want := op.A8TQ8C
		if decision.Node == "layers.ffn_down" {
			want = op.A32W32
		}
		if decision.Scheme != "" && decision.Scheme != want {
			t.Errorf("%s@%d in %q, want %q", decision.Node, decision.Rows, decision.Scheme, want)
		}
	}
	text := fmt.Sprint(result.Warnings)
	for _, phase := range []string{"decode", "prefill"} {
		want := fmt.Sprintf("\"a8t/q8c\" is left out of %s for layers.ffn_down", phase)
		if !strings.Contains(text, want) {
			t.Errorf("warnings %v, want %q", result.Warnings, want)
		}
	}

	// Folded losses count where the calibration folds.
	folded := *cal
	folded.Folds = []calibration.Fold{{Group: "layers.attn_norm", Layer: 0}}
	for _, loss := range cal.Losses {
		loss.Folded, loss.KL = true, loss.KL/2
		folded.Losses = append(folded.Losses, loss)
	}
	full := solve(t, Input{Model: model, SoC: soc, Costs: fitted, Workload: work, Calibration: cal}).Plan
	half := solve(t, Input{Model: model, SoC: soc, Costs: fitted, Workload: work, Calibration: &folded}).Plan
	if math.Abs(full.Quality[0].KL-2*half.Quality[0].KL) > 1e-12 {
		t.Errorf("folded losses: %+v, unfolded %+v", half.Quality, full.Quality)
	}
}

// A limit of quality that cannot be kept is refused with a way out.
func TestQualityRefusals(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	cal := invented(t, model, rand.New(rand.NewPCG(3, 3)), op.A8TQ8C)
	fitted := costs(t, soc, model, op.A32W32, op.A8TQ8C)
	bounded := func(change func(w *workload.Workload)) *workload.Workload {
		work := quick()
		work.Quality.MaxKL = workload.KLLimit{Prefill: 1, Decode: 1}
		if change != nil {
			change(work)
		}
		return work
	}
	other := *cal
	other.Model.Digest = strings.Repeat("0", 64)
	for name, test := range map[string]struct {
		in    Input
		class diag.Class
		want  []string
	}{
		"none": {Input{Workload: bounded(nil)}, diag.ClassInput,
			[]string{"hetc calibrate", "--calibration"}},
		"of another model": {Input{Workload: bounded(nil), Calibration: &other}, diag.ClassInput,
			[]string{"000000000000", "hetc calibrate"}},
		"too tight": {Input{Workload: bounded(func(work *workload.Workload) {
			work.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A8TQ8C}, Decode: []op.Scheme{op.A8TQ8C}}
			work.Quality.MaxKL = workload.KLLimit{Prefill: 1, Decode: 1e-9}
		}), Calibration: cal}, diag.ClassInfeasible, []string{"decode", "at most 1e-09", "quality.max_kl.decode"}},
		"too tight for prefill": {Input{Workload: bounded(func(work *workload.Workload) {
			work.Schemes.Prefill = []op.Scheme{op.A8TQ8C}
			work.Quality.MaxKL = workload.KLLimit{Prefill: 1e-9, Decode: 1}
		}), Calibration: cal}, diag.ClassInfeasible, []string{"prefill", "quality.max_kl.prefill"}},
		"nothing measured": {Input{Workload: bounded(func(w *workload.Workload) {
			w.Schemes.Decode = []op.Scheme{op.A8TQ8C}
		}), Calibration: &calibration.Calibration{Schema: cal.Schema, Model: cal.Model}}, diag.ClassInfeasible,
			[]string{"no scheme is left", "hetc calibrate"}},
	} {
		test.in.Model, test.in.SoC, test.in.Costs, test.in.Engine = model, soc, fitted, exact.Engine{}
		_, err := Solve(context.Background(), test.in)
		if err == nil || diag.ClassOf(err) != test.class {
			t.Errorf("%s: got %v of class %d, want class %d", name, err, diag.ClassOf(err), test.class)
			continue
		}
		if hints := diag.HintsOf(err); len(hints) != 1 {
			t.Errorf("%s: hints %q, want one", name, hints)
		}
		if !says(err, test.want...) {
			t.Errorf("%s: %v (hints %q), want %q", name, err, diag.HintsOf(err), test.want)
		}
	}
}

// With a bound of memory the plan is the best of every combination of schemes and buckets that fits. More memory is
// never slower, and as much as the unbounded plan takes changes nothing.
func TestMemoryBound(t *testing.T) {
	require.Slow(t)
	ctx := context.Background()
	model, soc := demo(t), twoCores(t, 0.7)
	work := workload.Default()
	work.Buckets, work.Context, work.OutputTokens = []int{16, 128}, 256, 8
	work.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A8TQ8C}, Decode: []op.Scheme{op.A32W32, op.A8TQ8C}}

	ses := randomSession(t, soc, model, work, 5)
	// Stored precision is what decode prefers, so that two formats of some weights are held.
	prices := ses.prices.(skewed)
	for _, k := range []int{256, 768} {
		prices.factor[fmt.Sprintf("1 %d %s", k, op.A32W32)] = 0.2
		prices.factor[fmt.Sprintf("1 %d %s", k, op.A8TQ8C)] = 4
	}
	if err := ses.chooseSchemes(ctx); err != nil {
		t.Fatal(err)
	}
	ses.nodes = triedNodes // as combinations are tried
	free, err := ses.completePlan(ctx)
	if err != nil {
		t.Fatal(err)
	}
	all := everyPlan(t, ses)
	least := slices.MinFunc(all, func(a, b sizedPlan) int { return int(a.bytes - b.bytes) }).bytes

	last := ses.objective(free)
	steps := map[float64]bool{}
	for i := range 9 {
		bound := free.Memory.Total - int64(i)*(free.Memory.Total-least)/8
		best := math.Inf(1)
		for _, plan := range all {
			if plan.bytes <= bound {
				best = min(best, plan.ns)
			}
		}

		// These prices are not those of the timeline, by which variants are compared.
		found, err := ses.searchWithinMemory(ctx, bound, free, 0)
		if err != nil {
			t.Fatalf("bound %d of %d..%d: %v", bound, least, free.Memory.Total, err)
		}
		plan := found.plan
		got := found.by.objective(plan)
		if math.Abs(got-best) > 1e-9*best || plan.Memory.Total > bound {
			t.Errorf("bound %v: %v ns in %v, trying everything finds %v", unit.Bytes(bound), got,
				unit.Bytes(plan.Memory.Total), best)
		}

		if got < last {
			t.Errorf("bound %v: %v ns, and %v with more memory", unit.Bytes(bound), got, last)
		}
		last, steps[got] = got, true
		if mistakes := check.Plan(plan, model, soc); len(mistakes) > 0 {
			t.Fatal(mistakes)
		}
	}
	if len(steps) < 3 {
		t.Errorf("%d different objectives: the case tests little", len(steps))
	}

	// Placed for memory rather than for time a plan holds still less; below that there is none.
	_, lean, err := ses.planWithinMemory(ctx, least-1, free)
	if err != nil || lean.Memory.Total >= least {
		t.Fatalf("one byte less than the least of the fastest placements (%d): %v", least, err)
	}

	smallest, err := ses.withGoal(problem.Memory)
	if err != nil {
		t.Fatal(err)
	}
	_, lean, err = smallest.smallest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = ses.planWithinMemory(ctx, lean.Memory.Total-1, free)
	if diag.ClassOf(err) != diag.ClassInfeasible ||
		!says(err, "of weights", fmt.Sprintf("at least %d bytes", lean.Memory.Total)) {
		t.Errorf("one byte less than the least (%d): %v (hints %q)", lean.Memory.Total, err, diag.HintsOf(err))
	}
}

// sizedPlan is what a plan holds and takes.
type sizedPlan struct {
	bytes int64
	ns    float64
}

// everyPlan makes the plans of all pairs of assignments, for all buckets and for the first one.
func everyPlan(t *testing.T, ses *session) (all []sizedPlan) {
	t.Helper()
	ctx := t.Context()
	first, err := ses.withFirstBuckets(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	first.nodes = triedNodes
	for _, of := range []*session{ses, first} {
		prefill, decode := of.prefill, of.decode
		everyPair(of, func(ofPrefill, ofDecode assignment) {
			of.prefill, of.decode, of.chosen = ofPrefill, ofDecode, nil
			plan, err := of.completePlan(ctx)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, sizedPlan{plan.Memory.Total, of.objective(plan)})
		})
		of.prefill, of.decode = prefill, decode
	}
	return all
}

// The bound of the flag comes before the workload's, is stored, and changes nothing where it is met anyway.
func TestMaxMemory(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), twoCores(t, 1)
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32, op.A8TQ8C),
		Workload: permit(op.A32W32, op.A8TQ8C)}
	free := solve(t, in).Plan

	in.Workload.Memory = 1
	in.MaxMemory = free.Memory.Total
	same := solve(t, in).Plan
	if same.Memory.Max != free.Memory.Total {
		t.Errorf("bound %d, want %d", same.Memory.Max, free.Memory.Total)
	}
	same.Memory.Max, same.Inputs = 0, free.Inputs
	want, err := planir.Digest(free)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := planir.Digest(same); err != nil || got != want {
		t.Errorf("the memory of the unbounded plan as a bound gives another plan (%v)", err)
	}

	in.MaxMemory = 0
	in.Engine = exact.Engine{}
	if _, err := Solve(context.Background(), in); diag.ClassOf(err) != diag.ClassInfeasible {
		t.Errorf("a bound of one byte: %v", err)
	}
}

// Where a processor holds own copies of its shares, a bound of memory makes programs share equal regions.
func TestMemoryBoundOfCopies(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), coresAndNPU(t)
	work := quick()
	work.Buckets = []int{64} // no bucket to go without
	in := Input{Model: model, SoC: soc, Costs: profiled(t, soc, model, work), Workload: work}
	free := solve(t, in)
	if !packsTwice(free.Plan) {
		t.Fatal("nothing is held twice: the case tests nothing")
	}

	once := int64(0)
	for _, class := range newClasses(t, in) {
		once += class.bytes("w32")
	}

	// As much as two thirds of the way to one copy of everything.
	in.MaxMemory = free.Plan.Memory.Total - 2*(free.Plan.Memory.Weights-once)/3
	result := solve(t, in)
	if result.Plan.Memory.Total > in.MaxMemory || result.ExpectedNS < free.ExpectedNS {
		t.Errorf("bound %d: %d bytes in %v ns, without one %d in %v", in.MaxMemory, result.Plan.Memory.Total,
			result.ExpectedNS, free.Plan.Memory.Total, free.ExpectedNS)
	}
	if found := check.Plan(result.Plan, model, soc); len(found) > 0 {
		t.Fatal(found)
	}
}

// newClasses returns the classes of products of an input.
func newClasses(t *testing.T, in Input) []productClass {
	t.Helper()
	in.Engine = exact.Engine{}
	ses, err := newSession(in)
	if err != nil {
		t.Fatal(err)
	}
	return ses.classes
}

// A tied model keeps one copy of its table where the head has 8 bit: when the price of looking rows up in it is known,
// and within limits of quality only when the loss is.
func TestPackedEmbedding(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), twoCores(t, 1)
	both := costs(t, soc, model, op.A32W32, op.A8TQ8C)
	work := quick()
	work.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A32W32}, Decode: []op.Scheme{op.A8TQ8C}}
	wide := *work
	wide.Schemes.Head = []op.Scheme{op.A32W32}
	bounded := *work
	bounded.Quality.MaxKL = workload.KLLimit{Prefill: 1, Decode: 1}

	without := costs(t, soc, model, op.A32W32, op.A8TQ8C)
	without.Families = slices.DeleteFunc(without.Families,
		func(f roofline.Family) bool { return f.Scheme == op.I32Q8C })

	cal := invented(t, model, rand.New(rand.NewPCG(5, 5)), op.A8TQ8C)
	folded := *cal
	folded.Folds = []calibration.Fold{{Group: "head.norm"}}
	for _, loss := range cal.Losses {
		loss.Folded = true
		folded.Losses = append(folded.Losses, loss)
	}
	known := *cal
	known.Losses = append(slices.Clone(cal.Losses),
		calibration.Loss{Class: "embed.embed", Scheme: op.I32Q8C, KL: 0.125})

	for name, test := range map[string]struct {
		in      Input
		packed  bool
		warning string
	}{
		"plain":       {Input{Costs: both, Workload: work}, true, ""},
		"float head":  {Input{Costs: both, Workload: &wide}, false, ""},
		"no price":    {Input{Costs: without, Workload: work}, false, "never measured"},
		"calibrated":  {Input{Costs: both, Workload: work, Calibration: &known}, true, ""},
		"folded head": {Input{Costs: both, Workload: work, Calibration: &folded}, false, ""},
		"bounded":     {Input{Costs: both, Workload: &bounded, Calibration: &known}, true, ""},
		"loss unknown": {Input{Costs: both, Workload: &bounded, Calibration: cal}, false,
			"the calibration does not say"},
		"no bound, too": {Input{Costs: both, Workload: work, Calibration: cal}, true, "i32/q8c in embed.embed"},
	} {
		test.in.Model, test.in.SoC = model, soc
		result := solve(t, test.in)
		if found := check.Plan(result.Plan, model, soc); len(found) > 0 {
			t.Fatalf("%s: %v", name, found)
		}

		want := op.Scheme("")
		if test.packed {
			want = op.I32Q8C
		}
		for _, rows := range []int{1, 16, 256} {
			if decision := result.Plan.DecisionFor("embed.embed", rows); decision.Scheme != want {
				t.Errorf("%s: embedding at %d rows in %q, want %q", name, rows, decision.Scheme, want)
			}
		}
		if (result.Plan.Memory.Tables == 0) != test.packed {
			t.Errorf("%s: %d bytes of tables", name, result.Plan.Memory.Tables)
		}
		text := fmt.Sprint(result.Warnings)
		isQuiet := test.warning != "" || len(result.Warnings) == 0
		if !isQuiet || !strings.Contains(text, test.warning) {
			t.Errorf("%s: warnings %q, want %q", name, text, test.warning)
		}

		if quality := result.Plan.Quality; name == "bounded" || name == "calibrated" {
			head := known.Loss("head.lm_head", op.A8TQ8C, false).KL
			if len(quality) != 2 || math.Abs(quality[1].KL-0.125-head) > 1e-12 {
				t.Errorf("%s: quality %+v, want %v for prefill", name, quality, 0.125+head)
			}
		}
	}
}

// A tied model's embedding is looked up in the head in the precision that the head has.
func TestEmbeddingFollowsTheHead(t *testing.T) {
	require.Slow(t)
	model, soc := demo(t), twoCores(t, 1)
	for i := range soc.Processors {
		proc := &soc.Processors[i]
		proc.Schemes, proc.Layouts["q6c"] = append(proc.Schemes, op.A8TQ6C), op.TilesLayout
		proc.Sim.Schemes[op.A8TQ6C] = proc.Sim.Schemes[op.A8TQ8C]
	}
	prices := costs(t, soc, model, op.A32W32, op.A8TQ8C, op.A8TQ6C)
	for head, want := range map[op.Scheme]op.Scheme{op.A8TQ8C: op.I32Q8C, op.A8TQ6C: op.I32Q6C, op.A32W32: ""} {
		work := quick()
		work.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A32W32}, Decode: []op.Scheme{op.A8TQ8C},
			Head: []op.Scheme{head}}
		plan := solve(t, Input{Model: model, SoC: soc, Costs: prices, Workload: work}).Plan
		if found := check.Plan(plan, model, soc); len(found) > 0 {
			t.Fatalf("%s: %v", head, found)
		}

		for _, rows := range []int{1, 16, 256} {
			if got := plan.DecisionFor("embed.embed", rows).Scheme; got != want {
				t.Errorf("head in %s, %d rows: embedding in %q, want %q", head, rows, got, want)
			}
		}
	}

	// The phases may have the head in precisions of their own; the lightest plan holds it once.
	for _, test := range []struct {
		minimise          problem.Measure
		decode, embedding op.Scheme
		copies            int
	}{{problem.Time, op.A8TQ6C, op.I32Q6C, 2}, {problem.Memory, op.A8TQ8C, op.I32Q8C, 1}} {
		work := quick()
		work.Minimise = test.minimise
		work.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A8TQ8C}, Decode: []op.Scheme{op.A8TQ8C},
			Head: []op.Scheme{op.A8TQ8C, op.A8TQ6C}, PrefillHead: []op.Scheme{op.A8TQ8C}}
		plan := solve(t, Input{Model: model, SoC: soc, Costs: prices, Workload: work}).Plan
		if found := check.Plan(plan, model, soc); len(found) > 0 {
			t.Fatalf("minimise %s: %v", test.minimise, found)
		}

		for _, program := range plan.Program.Programs {
			wantHead, wantEmbedding := op.A8TQ8C, op.I32Q8C
			if program.Phase == "decode" {
				wantHead, wantEmbedding = test.decode, test.embedding
			}
			head := DecisionAt(plan, "head.lm_head", program.Rows).Scheme
			embedding := plan.DecisionFor("embed.embed", program.Rows).Scheme
			if head != wantHead || embedding != wantEmbedding {
				t.Errorf("minimise %s, %s: head in %q, embedding in %q, want %q and %q", test.minimise, program.Name,
					head, embedding, wantHead, wantEmbedding)
			}
		}

		formats := map[string]bool{}
		for _, packed := range plan.Program.Packs {
			if packed.Weight == "head.lm_head" {
				formats[packed.Scheme] = true
			}
		}
		if len(formats) != test.copies {
			t.Errorf("minimise %s: the head is packed as %v, want %d formats", test.minimise, formats, test.copies)
		}
	}
}

// Of permitted schemes, --only takes those that its processors execute, however fast others are with the rest.
func TestOnlyDecidesSchemes(t *testing.T) {
	require.Slow(t)
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	model := demo(t)
	work := quick()
	work.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A8TQ8C, op.A16FW16},
		Decode: []op.Scheme{op.A8TQ8C, op.A16FW16}}
	in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32, op.A8TQ8C, op.A16FW16),
		Engine: exact.Engine{}, Workload: work}
	if err := in.ForTarget(); err != nil {
		t.Fatal(err)
	}

	products := func(only ...string) (all, onNPU int) {
		in.Only = only
		for _, decision := range solve(t, in).Plan.Decisions {
			if decision.Scheme == "" || decision.Scheme == op.I32Q8C {
				continue
			}
			all++
			if slices.ContainsFunc(decision.Shares, func(share planir.Share) bool { return share.Proc == "npu" }) {
				onNPU++
			}
		}
		return all, onNPU
	}
	if all, onNPU := products(); all == 0 || onNPU == all {
		t.Fatalf("without --only the NPU has %d of %d products: nothing to decide", onNPU, all)
	}
	if all, onNPU := products("npu"); all == 0 || onNPU != all {
		t.Errorf("--only npu: the NPU has %d of %d products", onNPU, all)
	}
}

// Where prefill alone rounds what enters the last matrix, decode has no decision on that.
func TestHeadRoundedInPrefillAlone(t *testing.T) {
	model, soc := demo(t), twoCores(t, 1)
	work := permit(op.A8TQ8C)
	work.Schemes.Decode, work.Schemes.PrefillHead = []op.Scheme{op.A32W32}, []op.Scheme{op.A8TQ8C}
	work.Buckets = workload.Rows{32}
	solve(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C, op.A32W32), Workload: work})
}

// A plan that loses more than its workload permits is a defect, whichever decision was the last to forget the limit.
func TestQualityIsChecked(t *testing.T) {
	limit := planir.Quality{Phase: "decode", KL: 0.031, MaxKL: 0.02}
	in := &Input{Workload: workload.Default()}
	if err := in.checkQuality([]planir.Quality{limit}); diag.ClassOf(err) != diag.ClassInternal {
		t.Errorf("a loss of 0.031 of at most 0.02: got %v", err)
	}

	in.Workload.Shadows.Prune = 0.85
	if err := in.checkQuality([]planir.Quality{limit}); err != nil {
		t.Errorf("the workload says which outliers are kept: got %v", err)
	}

	in.Workload.Shadows.Prune, limit.KL = 0, 0.02
	if err := in.checkQuality([]planir.Quality{limit}); err != nil {
		t.Errorf("a loss at the limit: got %v", err)
	}
}
