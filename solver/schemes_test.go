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

func (x skewed) Together(tasks []price.Task) ([]price.Estimate, error) {
	out, err := x.truth.Together(tasks)
	for i := range out {
		o := tasks[i].Op
		if !o.HasScheme() {
			continue
		}
		k := fmt.Sprintf("%d %d %s", o.M, o.K, o.Scheme)
		if x.factor[k] == 0 {
			x.factor[k] = 0.2 + 3*x.rand.Float64()
		}
		ns := int64(float64(out[i].NS) * x.factor[k])
		out[i] = price.Estimate{NS: ns, Low: ns, High: ns}
	}
	return out, err
}

// invented is a calibration with random losses of every class in a scheme.
func invented(t testing.TB, m *models.Model, r *rand.Rand, schemes ...op.Scheme) *calibration.Calibration {
	t.Helper()
	digest, err := m.Digest()
	if err != nil {
		t.Fatal(err)
	}
	c := &calibration.Calibration{Schema: calibration.Schema, Model: calibration.Model{Name: m.Name, Digest: digest}}
	for _, sec := range m.Graph().Sections {
		for _, n := range sec.Nodes {
			if o := n.Ops[len(n.Ops)-1]; !o.HasScheme() || n.Exact {
				continue
			}
			for _, s := range schemes {
				c.Losses = append(c.Losses, calibration.Loss{Class: sec.Name + "." + n.Name, Scheme: s, KL: r.Float64() / 100})
			}
		}
	}
	return c
}

// randomSession is one with random prices by class and scheme.
func randomSession(t testing.TB, s *socs.SoC, m *models.Model, w *workload.Workload, seed uint64) *session {
	t.Helper()
	digest, err := s.Digest()
	if err != nil {
		t.Fatal(err)
	}
	c := &roofline.Costs{Schema: roofline.Schema, SoC: s.Name, SoCDigest: digest, Simulated: true}
	for _, l := range s.Links {
		c.Handovers = append(c.Handovers, roofline.Handover{From: l.From, To: l.To})
	}
	out, err := newSession(Input{Model: m, SoC: s, Costs: c, Workload: w, Engine: exact.Engine{}})
	if err != nil {
		t.Fatal(err)
	}
	out.prices = skewed{truth{s}, map[string]float64{}, rand.New(rand.NewPCG(seed, 2))}
	return out
}

// everyPair calls f with every pair of assignments of what is permitted: the head's in prefill is decode's.
func everyPair(s *session, f func(prefill, decode assignment)) {
	combos := func(permits []op.Scheme, head bool) (out []assignment) {
		out = []assignment{s.uniform(op.A32W32)}
		for k := range s.classes {
			if s.classes[k].head && !head {
				continue
			}
			var more []assignment
			for _, a := range out {
				for _, scheme := range permits {
					b := slices.Clone(a)
					b[k] = scheme
					more = append(more, b)
				}
			}
			out = more
		}
		return out
	}
	for _, d := range combos(s.want.Decode, true) {
		for _, p := range combos(s.want.Prefill, false) {
			for k := range p {
				if s.classes[k].head {
					p[k] = d[k]
				}
			}
			f(slices.Clone(p), d)
		}
	}
}

// kl adds up what the calibration says of an assignment.
func kl(s *session, a assignment) float64 {
	total := 0.0
	for k := range a {
		if a[k] == op.A32W32 {
			continue
		}
		for _, node := range s.classes[k].nodes {
			total += s.in.Calibration.Loss(node, a[k], false).KL
		}
	}
	return total
}

// The chosen schemes are those that trying every combination finds, with limits of quality and without.
func TestSchemesAreTheBest(t *testing.T) {
	require.Slow(t)
	m, s := demo(t), twoCores(t, 0.7)
	both := []op.Scheme{op.A32W32, op.A8TQ8C}
	mixes, limited := 0, 0
	for seed := range uint64(8) {
		w := workload.Default()
		w.Buckets, w.Context, w.OutputTokens = []int{16}, 128, 8
		w.Schemes = workload.Schemes{Prefill: both, Decode: both}
		ses := randomSession(t, s, m, w, seed)
		r := rand.New(rand.NewPCG(seed, 1))
		ses.in.Calibration = invented(t, m, r, op.A8TQ8C)
		if seed%2 == 1 {
			ses.want.MaxKL = workload.KLLimit{Prefill: 0.002 + 0.01*r.Float64(), Decode: 0.002 + 0.01*r.Float64()}
		}
		if err := ses.chooseSchemes(context.Background()); err != nil {
			t.Fatal(err)
		}
		got, err := ses.solvedObjective(context.Background(), ses.prefill, ses.decode)
		if err != nil {
			t.Fatal(err)
		}
		best, free := math.Inf(1), math.Inf(1)
		everyPair(ses, func(p, d assignment) {
			ns, err := ses.solvedObjective(context.Background(), p, d)
			if err != nil {
				t.Fatal(err)
			}
			free = min(free, ns)
			if limit := ses.want.MaxKL; limit == (workload.KLLimit{}) || kl(ses, p) <= limit.Prefill && kl(ses, d) <= limit.Decode {
				best = min(best, ns)
			}
		})
		if got != best {
			t.Errorf("seed %d: prefill %v and decode %v take %v ns, the best %v", seed, ses.prefill, ses.decode, got, best)
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
		if found := check.Plan(plan, m, s); len(found) > 0 {
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
	m, s := demo(t), twoCores(t, 1)
	cal := invented(t, m, rand.New(rand.NewPCG(7, 7)), op.A8TQ8C)
	in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32, op.A8TQ8C), Engine: exact.Engine{}, Calibration: cal}
	last := 0.0
	var used []int
	limits := []float64{1, 0.02, 0.01, 0.005, 1e-9}
	if testing.Short() {
		limits = []float64{0.01, 1e-9}
	}
	for _, limit := range limits {
		in.Workload = quick()
		in.Workload.Quality.MaxKL = workload.KLLimit{Prefill: limit, Decode: limit / 2}
		r := solve(t, in)
		if r.ExpectedNS < last {
			t.Errorf("limit %v: %v ns, and %v with a looser one", limit, r.ExpectedNS, last)
		}
		last = r.ExpectedNS
		sum := map[int]float64{} // by rows
		quantised := 0
		for _, rows := range []int{1, 16, 256} {
			for _, d := range r.Plan.Decisions {
				// The head is decided once, for decode.
				if d.Scheme == op.A8TQ8C && (d.Rows == rows || d.Node == "head.lm_head" && d.Rows == 1) {
					sum[rows] += cal.Loss(d.Node, d.Scheme, false).KL
					quantised++
				}
			}
		}
		used = append(used, quantised)
		q := r.Plan.Quality
		if len(q) != 2 || q[0].Phase != "decode" || q[1].Phase != "prefill" || q[0].MaxKL != limit/2 || q[1].MaxKL != limit {
			t.Fatalf("limit %v: quality %+v", limit, q)
		}
		for i, rows := range []int{1, 16} {
			if math.Abs(q[i].KL-sum[rows]) > 1e-12 || q[i].KL > q[i].MaxKL || sum[16] != sum[256] {
				t.Errorf("limit %v: %+v, and the decisions add up to %v", limit, q[i], sum)
			}
		}
		if found := check.Plan(r.Plan, m, s); len(found) > 0 {
			t.Fatal(found)
		}
		digest, err := cal.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(r.Plan.Inputs, planir.Input{Kind: "calibration", Digest: digest}) {
			t.Errorf("inputs %v", r.Plan.Inputs)
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
	m, s := demo(t), twoCores(t, 1)
	for i := range s.Processors {
		s.Processors[i].Schemes = append(s.Processors[i].Schemes, op.A8SQ8C)
	}
	cal := invented(t, m, rand.New(rand.NewPCG(7, 8)), op.A8TQ8C, op.A8SQ8C)
	for i := range cal.Losses {
		if l := &cal.Losses[i]; l.Scheme == op.A8SQ8C {
			l.KL += 0.02
		}
	}
	cal.Losses = append(cal.Losses, calibration.Loss{Class: "embed.embed", Scheme: op.I32Q8C, KL: 1e-5})
	bare := *cal
	for _, sec := range m.Graph().Sections {
		for _, n := range sec.Nodes {
			for l := 0; l < max(1, sec.Layers) && n.Ops[0].HasScheme(); l++ {
				cal.Activations = append(cal.Activations, calibration.Activation{Class: sec.Name + "." + n.Name, Layer: l, K: n.Ops[0].K})
			}
		}
	}
	c := costs(t, s, m, op.A32W32, op.A8TQ8C)
	schemes := func(p *planir.Plan) (out []op.Scheme) {
		for _, d := range p.Decisions {
			if d.Scheme != "" && d.Scheme != op.I32Q8C && !slices.Contains(out, d.Scheme) {
				out = append(out, d.Scheme)
			}
		}
		return out
	}
	r := solve(t, Input{Model: m, SoC: s, Costs: c, Workload: permit(op.A8SQ8C), Calibration: cal})
	if got := schemes(r.Plan); !slices.Equal(got, []op.Scheme{op.A8SQ8C}) || len(r.Warnings) > 0 {
		t.Errorf("schemes %v, warnings %v", got, r.Warnings)
	}
	if found := check.Plan(r.Plan, m, s); len(found) > 0 {
		t.Fatal(found)
	}
	twin := solve(t, Input{Model: m, SoC: s, Costs: c, Workload: permit(op.A8TQ8C), Calibration: cal})
	if twin.ExpectedNS != r.ExpectedNS {
		t.Errorf("%v ns expected, and %v of the twin", r.ExpectedNS, twin.ExpectedNS)
	}
	w := quick()
	w.Quality.MaxKL = workload.KLLimit{Prefill: 1, Decode: 1}
	r = solve(t, Input{Model: m, SoC: s, Costs: c, Workload: w, Calibration: cal})
	if got := schemes(r.Plan); slices.Contains(got, op.A8SQ8C) || !slices.Contains(got, op.A8TQ8C) {
		t.Errorf("under a limit: schemes %v", got)
	}
	w.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A32W32, op.A8SQ8C}, Decode: []op.Scheme{op.A32W32}}
	if r = solve(t, Input{Model: m, SoC: s, Costs: c, Workload: w, Calibration: cal}); !slices.Contains(schemes(r.Plan), op.A8SQ8C) {
		t.Errorf("under a limit, permitted: schemes %v", schemes(r.Plan))
	}
	for name, x := range map[string]struct {
		cal  *calibration.Calibration
		want string
	}{"no calibration": {nil, "come from a calibration"}, "no ranges": {&bare, "says nothing about what enters"}} {
		_, err := Solve(context.Background(), Input{Model: m, SoC: s, Costs: c, Workload: permit(op.A8SQ8C), Calibration: x.cal, Engine: exact.Engine{}})
		if err == nil || !strings.Contains(err.Error(), x.want) || diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) != 1 {
			t.Errorf("%s: %v, hints %q", name, err, diag.HintsOf(err))
		}
	}
}

// Several static scales have losses of their own, which limits of quality count, and need a calibration that has the
// scales.
func TestSeveralStaticScales(t *testing.T) {
	require.Slow(t)
	m, s := demo(t), twoCores(t, 1)
	for i := range s.Processors {
		s.Processors[i].Schemes = []op.Scheme{op.A32W32, op.A8SQ8C, op.A8S2Q8C}
	}
	cal := invented(t, m, rand.New(rand.NewPCG(7, 8)), op.A8SQ8C, op.A8S2Q8C)
	for i := range cal.Losses {
		if l := &cal.Losses[i]; l.Scheme == op.A8SQ8C {
			l.KL = 0.02
		} else {
			l.KL = 1e-4
		}
	}
	cal.Losses = append(cal.Losses, calibration.Loss{Class: "embed.embed", Scheme: op.I32Q8C, KL: 1e-5})
	for _, sec := range m.Graph().Sections {
		for _, n := range sec.Nodes {
			for l := 0; l < max(1, sec.Layers) && n.Ops[0].HasScheme(); l++ {
				class := sec.Name + "." + n.Name
				cal.Activations = append(cal.Activations, calibration.Activation{Class: class, Layer: l, K: n.Ops[0].K})
				cal.Scales = append(cal.Scales, calibration.Scales{Class: class, Layer: l, Values: []float32{1, 2}})
			}
		}
	}
	older := *cal
	older.Scales = nil
	c := costs(t, s, m, op.A32W32, op.A8TQ8C)
	w := quick()
	w.Quality.MaxKL = workload.KLLimit{Prefill: 0.005, Decode: 0.005}
	r := solve(t, Input{Model: m, SoC: s, Costs: c, Workload: w, Calibration: cal})
	used := map[op.Scheme]int{}
	for _, d := range r.Plan.Decisions {
		used[d.Scheme]++
	}
	if used[op.A8S2Q8C] == 0 || used[op.A8SQ8C] != 0 {
		t.Errorf("under a limit that two scales keep and one does not: %v", used)
	}
	if found := check.Plan(r.Plan, m, s); len(found) > 0 {
		t.Fatal(found)
	}
	one := solve(t, Input{Model: m, SoC: s, Costs: c, Workload: permit(op.A8SQ8C), Calibration: cal})
	two := solve(t, Input{Model: m, SoC: s, Costs: c, Workload: permit(op.A8S2Q8C), Calibration: cal})
	if one.ExpectedNS != two.ExpectedNS {
		t.Errorf("%v ns expected with two scales, %v with one", two.ExpectedNS, one.ExpectedNS)
	}
	_, err := Solve(context.Background(), Input{Model: m, SoC: s, Costs: c, Workload: permit(op.A8S2Q8C), Calibration: &older, Engine: exact.Engine{}})
	if hints := diag.HintsOf(err); err == nil || !strings.Contains(err.Error(), "says nothing about 2 static scales") || diag.ClassOf(err) != diag.ClassInput || len(hints) != 1 || !strings.Contains(hints[0], "--schemes a8s2/q8c") {
		t.Errorf("an older calibration: %v, hints %q", err, diag.HintsOf(err))
	}
}

// Products on a 16-bit grid need the ranges of their results, are divided by columns, each share with its steps, and
// never along their reduction.
func TestGridSchemes(t *testing.T) {
	m, s := demo(t), twoCores(t, 1)
	for i := range s.Processors {
		p := &s.Processors[i]
		p.Schemes = append(p.Schemes, op.A16SQ8C)
		p.Sim.Schemes[op.A16SQ8C] = p.Sim.Schemes[op.A8TQ8C]
	}
	cal := invented(t, m, rand.New(rand.NewPCG(7, 8)), op.A16SQ8C)
	for _, sec := range m.Graph().Sections {
		for _, n := range sec.Nodes {
			for l := 0; l < max(1, sec.Layers) && n.Ops[0].HasScheme(); l++ {
				cal.Activations = append(cal.Activations, calibration.Activation{Class: sec.Name + "." + n.Name, Layer: l, K: n.Ops[0].K})
			}
		}
	}
	in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32, op.A16SQ8C), Workload: permit(op.A16SQ8C), Calibration: cal, Engine: exact.Engine{}}
	if _, err := Solve(context.Background(), in); err == nil || !strings.Contains(err.Error(), "nothing about what it computes") || len(diag.HintsOf(err)) != 1 {
		t.Errorf("no ranges of results: %v", err)
	}
	for i := range cal.Activations {
		cal.Activations[i].OutMax = calibration.Vector{1}
	}
	r := solve(t, in)
	if found := check.Plan(r.Plan, m, s); len(found) > 0 {
		t.Fatal(found)
	}
	shared := 0
	for _, d := range r.Plan.Decisions {
		if d.Scheme != op.A16SQ8C {
			continue
		}
		if d.Axis == planir.AxisK {
			t.Errorf("%s@%d is divided along its reduction", d.Node, d.Rows)
		}
		if d.Axis == planir.AxisCols {
			shared++
		}
	}
	if shared == 0 {
		t.Error("nothing is divided by columns")
	}
}

// What a calibration lacks is left out and said; what it cannot give is refused with a way out.
func TestQualityRefusals(t *testing.T) {
	require.Slow(t)
	m, s := demo(t), twoCores(t, 1)
	cal := invented(t, m, rand.New(rand.NewPCG(3, 3)), op.A8TQ8C)
	c := costs(t, s, m, op.A32W32, op.A8TQ8C)
	bounded := func(change func(w *workload.Workload)) *workload.Workload {
		w := quick()
		w.Quality.MaxKL = workload.KLLimit{Prefill: 1, Decode: 1}
		if change != nil {
			change(w)
		}
		return w
	}
	partial := *cal
	partial.Losses = slices.DeleteFunc(slices.Clone(cal.Losses), func(l calibration.Loss) bool { return l.Class == "layers.ffn_down" })
	r := solve(t, Input{Model: m, SoC: s, Costs: c, Workload: bounded(nil), Calibration: &partial})
	for _, d := range r.Plan.Decisions {
		if want := map[bool]op.Scheme{true: op.A32W32, false: op.A8TQ8C}[d.Node == "layers.ffn_down"]; d.Scheme != "" && d.Scheme != want {
			t.Errorf("%s@%d in %q, want %q", d.Node, d.Rows, d.Scheme, want)
		}
	}
	text := fmt.Sprint(r.Warnings)
	if !strings.Contains(text, `"a8t/q8c" is left out of decode for layers.ffn_down`) || !strings.Contains(text, `"a8t/q8c" is left out of prefill for layers.ffn_down`) {
		t.Errorf("warnings %v", r.Warnings)
	}
	// Folded losses count where the calibration folds.
	folded := *cal
	folded.Folds = []calibration.Fold{{Group: "layers.attn_norm", Layer: 0}}
	for _, l := range cal.Losses {
		l.Folded, l.KL = true, l.KL/2
		folded.Losses = append(folded.Losses, l)
	}
	full, half := solve(t, Input{Model: m, SoC: s, Costs: c, Workload: bounded(nil), Calibration: cal}).Plan, solve(t, Input{Model: m, SoC: s, Costs: c, Workload: bounded(nil), Calibration: &folded}).Plan
	if math.Abs(full.Quality[0].KL-2*half.Quality[0].KL) > 1e-12 {
		t.Errorf("folded losses: %+v, unfolded %+v", half.Quality, full.Quality)
	}
	other := *cal
	other.Model.Digest = strings.Repeat("0", 64)
	for name, x := range map[string]struct {
		in    Input
		class diag.Class
		want  []string
	}{
		"none":             {Input{Workload: bounded(nil)}, diag.ClassInput, []string{"hetc calibrate", "--calibration"}},
		"of another model": {Input{Workload: bounded(nil), Calibration: &other}, diag.ClassInput, []string{"000000000000", "hetc calibrate"}},
		"too tight": {Input{Workload: bounded(func(w *workload.Workload) {
			w.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A8TQ8C}, Decode: []op.Scheme{op.A8TQ8C}}
			w.Quality.MaxKL = workload.KLLimit{Prefill: 1, Decode: 1e-9}
		}), Calibration: cal}, diag.ClassInfeasible, []string{"decode", "at most 1e-09", "quality.max_kl.decode"}},
		"too tight for prefill": {Input{Workload: bounded(func(w *workload.Workload) {
			w.Schemes.Prefill = []op.Scheme{op.A8TQ8C}
			w.Quality.MaxKL = workload.KLLimit{Prefill: 1e-9, Decode: 1}
		}), Calibration: cal}, diag.ClassInfeasible, []string{"prefill", "quality.max_kl.prefill"}},
		"nothing measured": {Input{Workload: bounded(func(w *workload.Workload) {
			w.Schemes.Decode = []op.Scheme{op.A8TQ8C}
		}), Calibration: &calibration.Calibration{Schema: cal.Schema, Model: cal.Model}}, diag.ClassInfeasible, []string{"no scheme is left", "hetc calibrate"}},
	} {
		x.in.Model, x.in.SoC, x.in.Costs, x.in.Engine = m, s, c, exact.Engine{}
		_, err := Solve(context.Background(), x.in)
		if err == nil || diag.ClassOf(err) != x.class {
			t.Errorf("%s: got %v of class %d, want class %d", name, err, diag.ClassOf(err), x.class)
			continue
		}
		if hints := diag.HintsOf(err); len(hints) != 1 {
			t.Errorf("%s: hints %q, want one", name, hints)
		}
		for _, want := range x.want {
			if text := err.Error() + fmt.Sprint(diag.HintsOf(err)); !strings.Contains(text, want) {
				t.Errorf("%s: %q, want %q", name, text, want)
			}
		}
	}
}

// With a bound of memory the plan is the best of every combination of schemes and buckets that fits; more memory
// is never slower, and as much as the unbounded plan takes changes nothing.
func TestMemoryBound(t *testing.T) {
	require.Slow(t)
	ctx := context.Background()
	m, s := demo(t), twoCores(t, 0.7)
	w := workload.Default()
	w.Buckets, w.Context, w.OutputTokens = []int{16, 128}, 256, 8
	w.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A8TQ8C}, Decode: []op.Scheme{op.A32W32, op.A8TQ8C}}
	ses := randomSession(t, s, m, w, 5)
	// Stored precision is what decode prefers, so that two formats of some weights are held.
	x := ses.prices.(skewed)
	for _, k := range []int{256, 768} {
		x.factor[fmt.Sprintf("1 %d %s", k, op.A32W32)], x.factor[fmt.Sprintf("1 %d %s", k, op.A8TQ8C)] = 0.2, 4
	}
	if err := ses.chooseSchemes(ctx); err != nil {
		t.Fatal(err)
	}
	ses.nodes = triedNodes // as combinations are tried
	free, err := ses.completePlan(ctx)
	if err != nil {
		t.Fatal(err)
	}
	type point struct {
		bytes int64
		ns    float64
	}
	var all []point
	for n := 2; n >= 1; n-- {
		y := ses
		if n == 1 {
			if y, err = ses.withFirstBuckets(ctx, 1); err != nil {
				t.Fatal(err)
			}
			y.nodes = triedNodes
		}
		keep := [2]assignment{y.prefill, y.decode}
		everyPair(y, func(p, d assignment) {
			y.prefill, y.decode, y.chosen = p, d, nil
			plan, err := y.completePlan(ctx)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, point{plan.Memory.Total, y.objective(plan)})
		})
		y.prefill, y.decode = keep[0], keep[1]
	}
	least := slices.MinFunc(all, func(a, b point) int { return int(a.bytes - b.bytes) }).bytes
	last := ses.objective(free)
	steps := map[float64]bool{}
	for i := range 9 {
		bound := free.Memory.Total - int64(i)*(free.Memory.Total-least)/8
		best := math.Inf(1)
		for _, p := range all {
			if p.bytes <= bound {
				best = min(best, p.ns)
			}
		}
		by, plan, err := ses.planWithinMemory(ctx, bound, free)
		if err != nil {
			t.Fatalf("bound %d of %d..%d: %v", bound, least, free.Memory.Total, err)
		}
		got := by.objective(plan)
		if math.Abs(got-best) > 1e-9*best || plan.Memory.Total > bound {
			t.Errorf("bound %v: %v ns in %v, trying everything finds %v", unit.Bytes(bound), got, unit.Bytes(plan.Memory.Total), best)
		}
		if got < last {
			t.Errorf("bound %v: %v ns, and %v with more memory", unit.Bytes(bound), got, last)
		}
		last, steps[got] = got, true
		if found := check.Plan(plan, m, s); len(found) > 0 {
			t.Fatal(found)
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
	if text := fmt.Sprint(err, diag.HintsOf(err)); diag.ClassOf(err) != diag.ClassInfeasible || !strings.Contains(text, "of weights") || !strings.Contains(text, fmt.Sprintf("at least %d bytes", lean.Memory.Total)) {
		t.Errorf("one byte less than the least (%d): %v", lean.Memory.Total, text)
	}
}

// The bound of the flag comes before the workload's, is stored, and changes nothing where it is met anyway.
func TestMaxMemory(t *testing.T) {
	require.Slow(t)
	m, s := demo(t), twoCores(t, 1)
	in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32, op.A8TQ8C), Workload: permit(op.A32W32, op.A8TQ8C)}
	free := solve(t, in).Plan
	in.Workload.Memory = 1
	in.MaxMemory = free.Memory.Total
	same := solve(t, in).Plan
	if same.Memory.Max != free.Memory.Total {
		t.Errorf("bound %d, want %d", same.Memory.Max, free.Memory.Total)
	}
	same.Memory.Max, same.Inputs = 0, free.Inputs
	a, err := planir.Digest(free)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := planir.Digest(same); err != nil || a != b {
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
	m, s := demo(t), coresAndNPU(t)
	w := quick()
	w.Buckets = []int{64} // no bucket to go without
	in := Input{Model: m, SoC: s, Costs: profiled(t, s, m, w), Workload: w}
	free := solve(t, in)
	if !packsTwice(free.Plan) {
		t.Fatal("nothing is held twice: the case tests nothing")
	}
	once := int64(0)
	for _, x := range newClasses(t, in) {
		once += x.bytes("w32")
	}
	// As much as two thirds of the way to one copy of everything.
	in.MaxMemory = free.Plan.Memory.Total - 2*(free.Plan.Memory.Weights-once)/3
	r := solve(t, in)
	if r.Plan.Memory.Total > in.MaxMemory || r.ExpectedNS < free.ExpectedNS {
		t.Errorf("bound %d: %d bytes in %v ns, without one %d in %v", in.MaxMemory, r.Plan.Memory.Total, r.ExpectedNS, free.Plan.Memory.Total, free.ExpectedNS)
	}
	if found := check.Plan(r.Plan, m, s); len(found) > 0 {
		t.Fatal(found)
	}
}

func newClasses(t *testing.T, in Input) []productClass {
	t.Helper()
	in.Engine = exact.Engine{}
	s, err := newSession(in)
	if err != nil {
		t.Fatal(err)
	}
	return s.classes
}

// A tied model keeps one copy of its table where the head has 8 bit: when the price of looking rows up in it is
// known, and within limits of quality only when the loss is.
func TestPackedEmbedding(t *testing.T) {
	require.Slow(t)
	m, s := demo(t), twoCores(t, 1)
	both := costs(t, s, m, op.A32W32, op.A8TQ8C)
	w := quick()
	w.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A32W32}, Decode: []op.Scheme{op.A8TQ8C}}
	wide := *w
	wide.Schemes.Head = []op.Scheme{op.A32W32}
	bounded := *w
	bounded.Quality.MaxKL = workload.KLLimit{Prefill: 1, Decode: 1}
	without := costs(t, s, m, op.A32W32, op.A8TQ8C)
	without.Families = slices.DeleteFunc(without.Families, func(f roofline.Family) bool { return f.Scheme == op.I32Q8C })
	cal := invented(t, m, rand.New(rand.NewPCG(5, 5)), op.A8TQ8C)
	folded := *cal
	folded.Folds = []calibration.Fold{{Group: "head.norm"}}
	for _, l := range cal.Losses {
		l.Folded = true
		folded.Losses = append(folded.Losses, l)
	}
	known := *cal
	known.Losses = append(slices.Clone(cal.Losses), calibration.Loss{Class: "embed.embed", Scheme: op.I32Q8C, KL: 0.125})
	for name, c := range map[string]struct {
		in      Input
		packed  bool
		warning string
	}{
		"plain":         {Input{Costs: both, Workload: w}, true, ""},
		"float head":    {Input{Costs: both, Workload: &wide}, false, ""},
		"no price":      {Input{Costs: without, Workload: w}, false, "never measured"},
		"calibrated":    {Input{Costs: both, Workload: w, Calibration: &known}, true, ""},
		"folded head":   {Input{Costs: both, Workload: w, Calibration: &folded}, false, ""},
		"bounded":       {Input{Costs: both, Workload: &bounded, Calibration: &known}, true, ""},
		"loss unknown":  {Input{Costs: both, Workload: &bounded, Calibration: cal}, false, "the calibration does not say"},
		"no bound, too": {Input{Costs: both, Workload: w, Calibration: cal}, true, "i32/q8c in embed.embed"},
	} {
		c.in.Model, c.in.SoC = m, s
		r := solve(t, c.in)
		if found := check.Plan(r.Plan, m, s); len(found) > 0 {
			t.Fatalf("%s: %v", name, found)
		}
		for _, rows := range []int{1, 16, 256} {
			want := op.Scheme("")
			if c.packed {
				want = op.I32Q8C
			}
			if d := r.Plan.DecisionFor("embed.embed", rows); d.Scheme != want {
				t.Errorf("%s: embedding at %d rows in %q, want %q", name, rows, d.Scheme, want)
			}
		}
		if (r.Plan.Memory.Tables == 0) != c.packed {
			t.Errorf("%s: %d bytes of tables", name, r.Plan.Memory.Tables)
		}
		if text := fmt.Sprint(r.Warnings); !strings.Contains(text, c.warning) || c.warning == "" && len(r.Warnings) > 0 {
			t.Errorf("%s: warnings %q, want %q", name, text, c.warning)
		}
		if q := r.Plan.Quality; name == "bounded" || name == "calibrated" {
			head := known.Loss("head.lm_head", op.A8TQ8C, false).KL
			if len(q) != 2 || math.Abs(q[1].KL-0.125-head) > 1e-12 {
				t.Errorf("%s: quality %+v, want %v for prefill", name, q, 0.125+head)
			}
		}
	}
}

// A tied model's embedding is looked up in the head in the precision that the head has.
func TestEmbeddingFollowsTheHead(t *testing.T) {
	require.Slow(t)
	m, s := demo(t), twoCores(t, 1)
	for i := range s.Processors {
		proc := &s.Processors[i]
		proc.Schemes, proc.Layouts["q6c"] = append(proc.Schemes, op.A8TQ6C), op.TilesLayout
		proc.Sim.Schemes[op.A8TQ6C] = proc.Sim.Schemes[op.A8TQ8C]
	}
	prices := costs(t, s, m, op.A32W32, op.A8TQ8C, op.A8TQ6C)
	for head, want := range map[op.Scheme]op.Scheme{op.A8TQ8C: op.I32Q8C, op.A8TQ6C: op.I32Q6C, op.A32W32: ""} {
		w := quick()
		w.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A32W32}, Decode: []op.Scheme{op.A8TQ8C},
			Head: []op.Scheme{head}}
		plan := solve(t, Input{Model: m, SoC: s, Costs: prices, Workload: w}).Plan
		if found := check.Plan(plan, m, s); len(found) > 0 {
			t.Fatalf("%s: %v", head, found)
		}
		for _, rows := range []int{1, 16, 256} {
			if got := plan.DecisionFor("embed.embed", rows).Scheme; got != want {
				t.Errorf("head in %s, %d rows: embedding in %q, want %q", head, rows, got, want)
			}
		}
	}
	// The phases may have the head in precisions of their own; the lightest plan holds it once.
	for _, c := range []struct {
		minimise          problem.Measure
		decode, embedding op.Scheme
		copies            int
	}{{problem.Time, op.A8TQ6C, op.I32Q6C, 2}, {problem.Memory, op.A8TQ8C, op.I32Q8C, 1}} {
		w := quick()
		w.Minimise = c.minimise
		w.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A8TQ8C}, Decode: []op.Scheme{op.A8TQ8C},
			Head: []op.Scheme{op.A8TQ8C, op.A8TQ6C}, PrefillHead: []op.Scheme{op.A8TQ8C}}
		plan := solve(t, Input{Model: m, SoC: s, Costs: prices, Workload: w}).Plan
		if found := check.Plan(plan, m, s); len(found) > 0 {
			t.Fatalf("minimise %s: %v", c.minimise, found)
		}
		for _, program := range plan.Program.Programs {
			wantHead, wantEmbedding := op.A8TQ8C, op.I32Q8C
			if program.Phase == "decode" {
				wantHead, wantEmbedding = c.decode, c.embedding
			}
			head := DecisionAt(plan, "head.lm_head", program.Rows).Scheme
			embedding := plan.DecisionFor("embed.embed", program.Rows).Scheme
			if head != wantHead || embedding != wantEmbedding {
				t.Errorf("minimise %s, %s: head in %q, embedding in %q, want %q and %q", c.minimise, program.Name, head,
					embedding, wantHead, wantEmbedding)
			}
		}
		formats := map[string]bool{}
		for _, packed := range plan.Program.Packs {
			if packed.Weight == "head.lm_head" {
				formats[packed.Scheme] = true
			}
		}
		if len(formats) != c.copies {
			t.Errorf("minimise %s: the head is packed as %v, want %d formats", c.minimise, formats, c.copies)
		}
	}
}

// Of permitted schemes, --only takes those that its processors execute, however fast others are with the rest.
func TestOnlyDecidesSchemes(t *testing.T) {
	require.Slow(t)
	s, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	m := demo(t)
	w := quick()
	w.Schemes = workload.Schemes{Prefill: []op.Scheme{op.A8TQ8C, op.A16FW16}, Decode: []op.Scheme{op.A8TQ8C, op.A16FW16}}
	in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32, op.A8TQ8C, op.A16FW16), Engine: exact.Engine{}, Workload: w}
	if err := in.ForTarget(); err != nil {
		t.Fatal(err)
	}
	products := func(only ...string) (n, npu int) {
		in.Only = only
		for _, d := range solve(t, in).Plan.Decisions {
			if d.Scheme == "" || d.Scheme == op.I32Q8C {
				continue
			}
			n++
			if slices.ContainsFunc(d.Shares, func(x planir.Share) bool { return x.Proc == "npu" }) {
				npu++
			}
		}
		return n, npu
	}
	if n, npu := products(); n == 0 || npu == n {
		t.Fatalf("without --only the NPU has %d of %d products: nothing to decide", npu, n)
	}
	if n, npu := products("npu"); n == 0 || npu != n {
		t.Errorf("--only npu: the NPU has %d of %d products", npu, n)
	}
}

// Where prefill alone rounds what enters the last matrix, decode has no decision on that.
func TestHeadRoundedInPrefillAlone(t *testing.T) {
	m, s := demo(t), twoCores(t, 1)
	w := permit(op.A8TQ8C)
	w.Schemes.Decode, w.Schemes.PrefillHead = []op.Scheme{op.A32W32}, []op.Scheme{op.A8TQ8C}
	w.Buckets = workload.Rows{32}
	solve(t, Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A8TQ8C, op.A32W32), Workload: w})
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
