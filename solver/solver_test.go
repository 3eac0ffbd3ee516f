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
	s, err := socs.Parse("two-cores.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func demo(t testing.TB) *models.Model { return open(t, "../testdata/models/tiny-llama-kjv") }

func open(t testing.TB, name string) *models.Model {
	t.Helper()
	m, err := models.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// costs fits what the simulated SoC takes for a model's operators: at some numbers of rows, whole and
// in half, attention over some contexts.
func costs(t testing.TB, s *socs.SoC, m *models.Model, schemes ...op.Scheme) *roofline.Costs {
	t.Helper()
	return batchCosts(t, s, m, nil, schemes...)
}

// batchCosts also knows batches of sequences.
func batchCosts(t testing.TB, s *socs.SoC, m *models.Model, batches []int, schemes ...op.Scheme) *roofline.Costs {
	t.Helper()
	digest, err := s.Digest()
	if err != nil {
		t.Fatal(err)
	}
	set := record.NewSet(record.Header{Schema: record.Schema, SoC: s.Name, SoCDigest: digest, Simulated: true, Hetc: "test"})
	g := m.Graph()
	batch := g.Batch()
	var add func(p *socs.Processor, o op.Op)
	add = func(p *socs.Processor, o op.Op) {
		if !p.Executes(o.Kind) {
			return
		}
		layout := op.RowsLayout
		if o.Scheme != "" {
			layout = p.Layouts[o.Scheme.Weight()]
		} else if len(o.Sig().W) == 0 {
			layout = ""
		}
		if o.Kind == op.MatMul && o.Form == "" {
			for _, f := range op.FormsOf(o.M, p.Forms[o.Scheme]) {
				formed := o
				formed.Form = f
				add(p, formed)
			}
		}
		ns, err := sim.NS(s, p.Name, o)
		if err != nil {
			return // infeasible
		}
		x := record.Measurement{Kind: record.Op, Proc: p.Name, Op: &o, Layout: layout, Cold: (&price.Task{Op: o}).Cold(), Unit: "ns", Loops: 1, Samples: []float64{float64(ns)}, Simulated: true}
		if set.Has(x.Key()) {
			return
		}
		if err := set.Add(&x); err != nil {
			t.Fatal(err)
		}
	}
	for i := range s.Processors {
		p := &s.Processors[i]
		for _, scheme := range schemes {
			for i, rows := range append([]int{1, 16, 64, 256, 512}, batches...) {
				of := &g
				if i >= 5 {
					of = &batch
				}
				sections, err := lower.Expand(of, rows, 1024, op.F32, func(string) op.Scheme { return scheme }, nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, sec := range sections {
					for _, n := range sec.Nodes {
						for _, o := range n.Ops {
							if o.Kind == op.Embed && scheme.QuantisedRows() && scheme.Table() != "" {
								packed := o
								packed.Scheme, packed.Table = scheme.Table(), ""
								add(p, packed)
							}
							for _, c := range []int{64, 320, 1024} {
								if o.Kind == op.Attention {
									o.Context = max(c, rows)
								}
								add(p, o)
								if cached := o; o.Kind.Has("kv") {
									for _, cached.KV = range p.KV {
										add(p, cached)
									}
								}
							}
							if o.Kind == op.MatMul && o.N > 1 {
								half := o
								half.N = op.RoundUp(o.N/2, 32)
								add(p, half)
								half = o
								half.K = op.RoundUp(o.K/2, 32)
								add(p, half)
								add(p, op.Op{Kind: op.Add, M: o.M, N: o.N})
								add(p, op.Op{Kind: op.Copy, M: o.M, N: o.N})
							}
							if o.Kind == op.OutlierMatMul {
								few := o
								few.Channels = op.FewChannels
								add(p, few)
							}
							if o.Kind == op.GLU || o.Kind == op.Add {
								o.N = op.RoundUp(o.N/2, max(1, o.Interleave))
								add(p, o)
							}
						}
					}
				}
			}
		}
	}
	c, err := roofline.Fit(s, set)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func solve(t testing.TB, in Input) *Result {
	t.Helper()
	if in.Engine == nil {
		in.Engine = exact.Engine{}
	}
	r, err := Solve(context.Background(), in)
	if err != nil {
		t.Fatalf("%v (hints %q)", err, diag.HintsOf(err))
	}
	return r
}

func prediction(t testing.TB, p *planir.Plan, program string) planir.Prediction {
	t.Helper()
	for _, x := range p.Predictions {
		if x.Program == program {
			return x
		}
	}
	t.Fatalf("no prediction for %q", program)
	return planir.Prediction{}
}

func best(p planir.Prediction) int64 {
	var ns int64
	for _, x := range p.Singles {
		if ns == 0 || x.NS < ns {
			ns = x.NS
		}
	}
	return ns
}

// quick is the default with two buckets.
func quick() *workload.Workload {
	w := workload.Default()
	w.Buckets = []int{16, 256}
	return w
}

func permit(schemes ...op.Scheme) *workload.Workload {
	w := quick()
	w.Schemes = workload.Schemes{Prefill: schemes, Decode: schemes}
	return w
}

// A context of one position has no program for prompts.
func TestOnePosition(t *testing.T) {
	m, s := demo(t), twoCores(t, 1)
	w := workload.Default()
	w.Context = 1
	p := solve(t, Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: w}).Plan
	if len(p.Program.Programs) != 1 || p.MaxContext != 1 {
		t.Errorf("%d programs for %d positions, want decode alone", len(p.Program.Programs), p.MaxContext)
	}
}

// Times beyond what problems are made of are refused: cut off there, slow and slowest would look alike.
func TestEndlessTimes(t *testing.T) {
	m, s := demo(t), twoCores(t, 1)
	for name, change := range map[string]func(c *roofline.Costs){
		"operators": func(c *roofline.Costs) {
			for i := range c.Families {
				for k := range c.Families[i].Curves {
					for j := range c.Families[i].Curves[k].Points {
						p := &c.Families[i].Curves[k].Points[j]
						p[1], p[2], p[3] = 1<<50, 1<<50, 1<<50
					}
				}
			}
		},
		"hand-overs": func(c *roofline.Costs) {
			for i := range c.Handovers {
				c.Handovers[i].NS, c.Handovers[i].HighNS = 1<<50, 1<<50
			}
		},
	} {
		c := costs(t, s, m, op.A32W32)
		change(c)
		r, err := Solve(t.Context(), Input{Model: m, SoC: s, Costs: c, Workload: quick(), Engine: exact.Engine{}})
		switch name {
		case "operators":
			if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "are predicted, want at most") {
				t.Errorf("%s: %v", name, err)
			}
		default:
			if err != nil || !slices.ContainsFunc(r.Warnings, func(d *diag.Diagnostic) bool { return strings.Contains(d.Summary, "are not combined") }) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// However unlike the cores are, the plan is legal, proved, and no slower than the best single processor.
func TestTwoCores(t *testing.T) {
	require.Slow(t)
	m := demo(t)
	for _, ratio := range []float64{1, 0.5, 0.1} {
		t.Run(fmt.Sprint(ratio), func(t *testing.T) {
			s := twoCores(t, ratio)
			w, programs := quick(), 3
			if ratio == 1 {
				w, programs = nil, 7 // decode and 16..512
			}
			r := solve(t, Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: w})
			if len(r.Warnings) > 0 {
				t.Errorf("warnings %v", r.Warnings)
			}
			if found := check.Plan(r.Plan, m, s); len(found) > 0 {
				t.Fatal(found)
			}
			if got := len(r.Plan.Predictions); got != programs {
				t.Errorf("%d predictions, want %d", got, programs)
			}
			for _, pred := range r.Plan.Predictions {
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
			for _, x := range r.Plan.Solver {
				proved := x.Status == "optimal" && x.BoundNS == x.ObjectiveNS
				if !proved && x.Status != StatusFaster || x.Choices < 100 {
					t.Errorf("%+v", x)
				}
			}
			// No lane oversubscribes a core that another lane of the same call uses.
			for _, ph := range r.Plan.Program.Programs {
				used := map[string]bool{}
				for _, sec := range ph.Sections {
					for _, l := range sec.Lanes {
						used[l.Proc] = true
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
	m, s := demo(t), twoCores(t, 1)
	p := solve(t, Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: quick()}).Plan
	g := m.Graph()
	for _, d := range p.Decisions {
		w := g.Weight(d.Node)
		if d.Rows != 1 || d.Scheme == "" || w == nil {
			continue
		}
		if len(d.Shares) != 2 || d.Shares[0].To*2 != d.Shares[1].To {
			t.Errorf("%s is divided %s, want halves", d.Node, d.ShareText())
		}
	}
}

// A section's decisions add up to its part of the objective, alternatives never beat what was chosen
// (unless they are excluded by a core), and explain tells the same stored and recomputed.
func TestPricesAddUp(t *testing.T) {
	m, s := demo(t), twoCores(t, 0.5)
	in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: quick(), Engine: exact.Engine{}}
	p := solve(t, in).Plan
	for _, x := range p.Solver {
		rows := 1
		fmt.Sscanf(x.Problem, "partition prefill@%d", &rows)
		var sum int64
		for _, sec := range m.Graph().Sections {
			for _, n := range sec.Nodes {
				d := DecisionAt(p, sec.Name+"."+n.Name, rows)
				if d == nil {
					t.Fatalf("%s.%s@%d is not decided", sec.Name, n.Name, rows)
				}
				sum += d.PredictNS * int64(max(1, sec.Layers))
			}
		}
		// The last repetition hands nothing over to a next one; divisions by rows count for more than
		// they take, because of calls with fewer rows.
		if diff := sum - x.ObjectiveNS; diff > 5000 || diff < 0 && (rows == 1 || float64(x.ObjectiveNS) > 1.4*float64(sum)) {
			t.Errorf("%s: decisions add up to %d ns, objective %d ns", x.Problem, sum, x.ObjectiveNS)
		}
	}
	cheaper := 0
	for _, d := range p.Decisions {
		stored, err := Explain(p, d.Node, d.Rows, nil)
		if err != nil {
			t.Fatal(err)
		}
		chosen := 0
		for i, r := range stored {
			if r.Chosen {
				chosen++
				if r.NS != d.PredictNS {
					t.Errorf("%s@%d: explained as %d ns, decided as %d", d.Node, d.Rows, r.NS, d.PredictNS)
				}
			} else if r.NS < d.PredictNS {
				cheaper++
				if r.Note == "" {
					t.Errorf("%s@%d: %+v is cheaper and nothing says why not", d.Node, d.Rows, r)
				}
			}
			if i > 0 && stored[i-1].NS > r.NS {
				t.Errorf("%s@%d: rows are out of order", d.Node, d.Rows)
			}
		}
		if chosen != 1 {
			t.Errorf("%s@%d: %d rows are chosen", d.Node, d.Rows, chosen)
		}
	}
	if cheaper == 0 {
		t.Error("nothing was excluded: the case is not tested")
	}
	for _, node := range []string{"layers.ffn_down", "layers.attention", "layers.ffn_norm"} {
		stored, err := Explain(p, node, 256, nil)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Explain(p, node, 256, &in)
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

func TestExplainUnknown(t *testing.T) {
	m, s := demo(t), twoCores(t, 1)
	p := solve(t, Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: quick()}).Plan
	for node, want := range map[string]string{"layers.ffn_dwn": "layers.ffn_down", "layers.ffn_down": "[1 16 256]"} {
		_, err := Explain(p, node, 7, nil)
		if err == nil || diag.ClassOf(err) != diag.ClassUsage || !strings.Contains(err.Error()+fmt.Sprint(diag.HintsOf(err)), want) {
			t.Errorf("%s@7: got %v (%v), want %q", node, err, diag.HintsOf(err), want)
		}
	}
}

// Equal inputs give equal bytes, also from costs that were written and read again.
func TestDeterministic(t *testing.T) {
	m, s := demo(t), twoCores(t, 0.7)
	c := costs(t, s, m, op.A8TQ8C)
	w := permit(op.A8TQ8C)
	w.Buckets = []int{64}
	path := t.TempDir() + "/costs.yaml"
	if err := roofline.Write(path, c); err != nil {
		t.Fatal(err)
	}
	again, err := roofline.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var first []byte
	for i, x := range []*roofline.Costs{c, c, again} {
		p := solve(t, Input{Model: m, SoC: s, Costs: x, Workload: w}).Plan
		b, err := planir.Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = b
		} else if !bytes.Equal(first, b) {
			t.Fatalf("solve %d gives another plan", i)
		}
	}
}

// Where handing over is dear, producer and consumer are divided alike: columns, then the reduction.
func TestDearHandoversPair(t *testing.T) {
	require.Slow(t)
	m := open(t, "tinyllama-1.1b")
	strategies := func(us float64) map[planir.Strategy]int {
		s := twoCores(t, 1)
		for i := range s.Links {
			s.Links[i].HandoverUS = us
		}
		w := permit(op.A32W32)
		w.Buckets = []int{64}
		p, err := prepared(t, Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: w}).eachAlone(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n := map[planir.Strategy]int{}
		for _, d := range p.Decisions {
			if d.Rows == 1 && strings.HasPrefix(d.Node, "layers.") {
				n[d.Strategy]++
			}
		}
		return n
	}
	if n := strategies(0.3); n[planir.WeightCentric] < 4 {
		t.Errorf("cheap hand-overs: %v, want every matrix in columns", n)
	}
	if n := strategies(60); n[planir.Paired] < 1 {
		t.Errorf("dear hand-overs: %v, want pairs", n)
	}
	if n := strategies(100e3); n[planir.Single] != 10 {
		t.Errorf("hand-overs dearer than the work: %v, want single processors", n)
	}
}

// What gets faster or cheaper never makes the optimum worse.
func TestFasterNeverHurts(t *testing.T) {
	require.Slow(t)
	m := demo(t)
	w := workload.Default()
	w.Buckets = []int{64, 256}
	objective := func(change func(s *socs.SoC)) map[string]int64 {
		s := twoCores(t, 0.5)
		change(s)
		out := map[string]int64{}
		for _, x := range solve(t, Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: w}).Plan.Solver {
			out[x.Problem] = x.ObjectiveNS
		}
		return out
	}
	base := objective(func(*socs.SoC) {})
	for name, change := range map[string]func(s *socs.SoC){
		"joint bandwidth": func(s *socs.SoC) { s.Joint[0].BandwidthGBps *= 1.3 },
		"hand-overs": func(s *socs.SoC) {
			for i := range s.Links {
				s.Links[i].HandoverUS /= 3
			}
		},
		"a core": func(s *socs.SoC) {
			s.Processors[0].BandwidthGBps *= 1.5
			for k, v := range s.Processors[0].Sim.Schemes {
				v.PeakGops *= 1.5
				s.Processors[0].Sim.Schemes[k] = v
			}
		},
	} {
		for p, ns := range objective(change) {
			if float64(ns) > 1.01*float64(base[p]) { // 1 %: the fit's
				t.Errorf("faster %s: %s takes %d ns, before %d", name, p, ns, base[p])
			}
		}
	}
}

// The workload's schemes are tried and the faster one taken; without permission precision stays.
func TestSchemes(t *testing.T) {
	require.Slow(t)
	m, s := demo(t), twoCores(t, 1)
	both := costs(t, s, m, op.A32W32, op.A8TQ8C)
	scheme := func(p *planir.Plan, rows int) op.Scheme { return p.DecisionFor("layers.ffn_down", rows).Scheme }
	p := solve(t, Input{Model: m, SoC: s, Costs: both, Workload: quick()}).Plan
	if scheme(p, 1) != op.A32W32 || scheme(p, 256) != op.A32W32 {
		t.Errorf("nobody permitted %q, %q", scheme(p, 1), scheme(p, 256))
	}
	w := quick()
	w.Schemes.Decode = []op.Scheme{op.A32W32, op.A8TQ8C}
	p = solve(t, Input{Model: m, SoC: s, Costs: both, Workload: w}).Plan
	if scheme(p, 1) != op.A8TQ8C || scheme(p, 256) != op.A32W32 || p.DecisionFor("head.lm_head", 1).Scheme != op.A8TQ8C {
		t.Errorf("decode in %q, prefill in %q", scheme(p, 1), scheme(p, 256))
	}
	if found := check.Plan(p, m, s); len(found) > 0 {
		t.Fatal(found)
	}
	// The head alone may be more precise, or less, than decode is.
	for _, x := range []struct{ decode, head op.Scheme }{{op.A8TQ8C, op.A32W32}, {op.A32W32, op.A8TQ8C}} {
		h := quick()
		h.Schemes.Decode, h.Schemes.Head = []op.Scheme{x.decode}, []op.Scheme{x.head}
		p = solve(t, Input{Model: m, SoC: s, Costs: both, Workload: h}).Plan
		if got := p.DecisionFor("head.lm_head", 1).Scheme; scheme(p, 1) != x.decode || got != x.head || scheme(p, 256) != op.A32W32 {
			t.Errorf("decode in %q, head in %q, prefill in %q; want %+v", scheme(p, 1), got, scheme(p, 256), x)
		}
		if n, err := h.Needs(512); err != nil || len(n.Schemes) != 2 {
			t.Errorf("to measure: %v, %v", n.Schemes, err)
		}
	}
	// What was never measured is left out, and said.
	r := solve(t, Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: w})
	if scheme(r.Plan, 1) != op.A32W32 || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0].Summary, "a8t/q8c") {
		t.Errorf("scheme %q, warnings %v", scheme(r.Plan, 1), r.Warnings)
	}
}

// Where the only permitted scheme was never measured, one hint says with which command to measure it.
func TestUnmeasuredScheme(t *testing.T) {
	m, s := demo(t), twoCores(t, 1)
	_, err := Solve(context.Background(), Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: permit(op.A8TQ8C), Engine: exact.Engine{}})
	if hints := diag.HintsOf(err); diag.ClassOf(err) != diag.ClassInput || len(hints) != 1 || !strings.Contains(hints[0], "hetc profile --soc SOC --model MODEL --workload") || !strings.Contains(err.Error(), "never measured") {
		t.Errorf("%v (hints %q)", err, hints)
	}
}

// A processor that was not measured completely is named.
func TestIncompleteCosts(t *testing.T) {
	m, s := demo(t), twoCores(t, 1)
	c := costs(t, s, m, op.A32W32)
	c.Families = slices.DeleteFunc(c.Families, func(f roofline.Family) bool { return f.Proc == "c1" && f.Kind == op.Norm })
	path := t.TempDir() + "/costs.yaml"
	if err := roofline.Write(path, c); err != nil {
		t.Fatal(err)
	}
	c, err := roofline.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	w := quick()
	w.Buckets = []int{16}
	r := solve(t, Input{Model: m, SoC: s, Costs: c, Workload: w})
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0].Summary, `"c1"`) || !strings.Contains(r.Warnings[0].Summary, "norm") {
		t.Errorf("warnings %v", r.Warnings)
	}
	if n := len(prediction(t, r.Plan, "decode").Singles); n != 2 {
		t.Errorf("%d processors execute everything alone, want 2", n)
	}
}

// Many processors are all considered alone, and the fastest together.
func TestManyProcessors(t *testing.T) {
	require.Slow(t)
	m, s := demo(t), twoCores(t, 1)
	for i := range 8 {
		p := s.Processors[1]
		p.Name = fmt.Sprintf("x%d", i)
		p.Select, p.Cores = p.Name, []int{2 + i}
		p.BandwidthGBps = float64(1 + i)
		s.Processors = append(s.Processors, p)
	}
	s.Links = nil
	for _, a := range s.Processors {
		for _, b := range s.Processors {
			if a.Name != b.Name {
				s.Links = append(s.Links, socs.Link{From: a.Name, To: b.Name, HandoverUS: 0.3})
			}
		}
	}
	w := quick()
	w.Buckets = []int{64}
	r := solve(t, Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: w})
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0].Summary, "of 11 processors the 6") {
		t.Errorf("warnings %v", r.Warnings)
	}
	if n := len(prediction(t, r.Plan, "decode").Singles); n != 11 {
		t.Errorf("%d processors were tried alone, want 11", n)
	}
	used := map[string]bool{}
	for _, d := range r.Plan.Decisions {
		for _, sh := range d.Shares {
			used[sh.Proc] = true
		}
	}
	if len(used) < 3 || used["x0"] {
		t.Errorf("used %v, want at least three, without the slowest", used)
	}
}

func TestErrors(t *testing.T) {
	m, s := demo(t), twoCores(t, 1)
	c := costs(t, s, m, op.A32W32)
	for name, x := range map[string]struct {
		in    func() Input
		class diag.Class
		want  []string // in the error or its hints
	}{
		"scheme never measured": {func() Input { return Input{Model: m, SoC: s, Costs: c, Workload: permit(op.A8TQ8C)} }, diag.ClassInput,
			[]string{"quant", "hetc profile"}},
		"costs of another SoC": {func() Input {
			other := twoCores(t, 1)
			other.Name = "other"
			return Input{Model: m, SoC: other, Costs: c}
		}, diag.ClassInput, []string{`"two-cores"`, `"other"`, "profile this SoC"}},
		"costs of an edited SoC": {func() Input {
			edited := twoCores(t, 1)
			edited.Processors[0].BandwidthGBps *= 2
			return Input{Model: m, SoC: edited, Costs: c}
		}, diag.ClassInput, []string{"digest", "fitted with"}},
		"context beyond the model": {func() Input {
			w := workload.Default()
			w.Context = 1 << 20
			return Input{Model: m, SoC: s, Costs: c, Workload: w}
		}, diag.ClassInput, []string{"1024"}},
		"nobody attends": {func() Input {
			lame := twoCores(t, 1)
			for i := range lame.Processors {
				lame.Processors[i].Kinds = []op.Kind{op.Embed, op.Norm, op.MatMul, op.Add, op.GLU, op.SelectRow}
				lame.Processors[i].KV = nil
			}
			return Input{Model: m, SoC: lame, Costs: costs(t, lame, m, op.A32W32)}
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
			measured := &roofline.Costs{Schema: c.Schema, SoC: c.SoC, SoCDigest: digest, Fingerprint: c.Fingerprint, Simulated: c.Simulated, Record: c.Record,
				Processors: c.Processors, Families: c.Families, Handovers: c.Handovers, Copies: c.Copies, Sharing: c.Sharing, Infeasible: c.Infeasible}
			return Input{Model: m, SoC: lame, Costs: measured}
		}, diag.ClassInfeasible, []string{"a32/w32", "another scheme"}},
		"too little memory": {func() Input {
			small := twoCores(t, 1)
			for i := range small.Processors {
				small.Processors[i].AddressBytes = 1 << 20
			}
			return Input{Model: m, SoC: small, Costs: costs(t, small, m, op.A32W32)}
		}, diag.ClassInfeasible, []string{"at most 1048576 bytes", "soc.address_bytes", "fewer bits"}},
		"too small graphs": {func() Input {
			small := twoCores(t, 1)
			for i := range small.Processors {
				small.Processors[i].GraphBytes = 1 << 10
			}
			return Input{Model: m, SoC: small, Costs: costs(t, small, m, op.A32W32)}
		}, diag.ClassInfeasible, []string{"layers.qkv", "at most 1024"}},
		"too many graphs": {func() Input {
			small := twoCores(t, 1)
			for i := range small.Processors {
				small.Processors[i].MaxGraphs = 2
			}
			return Input{Model: m, SoC: small, Costs: costs(t, small, m, op.A32W32)}
		}, diag.ClassInfeasible, []string{"at most 2"}},
	} {
		in := x.in()
		in.Engine = exact.Engine{}
		if in.Workload == nil {
			in.Workload = quick()
			in.Workload.Buckets = []int{16}
		}
		_, err := Solve(context.Background(), in)
		if err == nil || diag.ClassOf(err) != x.class {
			t.Errorf("%s: got %v of class %d, want class %d", name, err, diag.ClassOf(err), x.class)
			continue
		}
		for _, want := range x.want {
			if text := err.Error() + fmt.Sprint(diag.HintsOf(err)); !strings.Contains(text, want) {
				t.Errorf("%s: %q, want %q", name, text, want)
			}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Solve(ctx, Input{Model: m, SoC: s, Costs: c, Engine: exact.Engine{}}); diag.ClassOf(err) != diag.ClassInterrupted {
		t.Errorf("cancelled: %v", err)
	}
}

// On a phone with a GPU and an NPU: the paper's strategies come out, and the NPU's address space holds.
func TestPhone(t *testing.T) {
	m := open(t, "llama-3-8b")
	s, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	w := permit(op.A8TQ4B32)
	w.Buckets = []int{256}
	in := Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A8TQ4B32), Workload: w, Engine: exact.Engine{}}
	r := solve(t, in)
	if found := check.Plan(r.Plan, m, s); len(found) > 0 {
		t.Fatal(found)
	}
	if !r.Plan.SoC.Simulated {
		t.Error("the plan does not say that its times are simulated")
	}
	if load := check.Load(r.Plan, s.Processor("npu")); load.Bytes > s.Processor("npu").AddressBytes || load.Bytes < 1<<30 {
		t.Errorf("the NPU holds %d bytes", load.Bytes)
	}
	for _, x := range r.Plan.Solver {
		if gap := float64(x.ObjectiveNS)/float64(x.BoundNS) - 1; gap < 0 || gap > 0.05 {
			t.Errorf("%s: %d ns with bound %d ns, %s", x.Problem, x.ObjectiveNS, x.BoundNS, x.Status)
		}
	}
	if p := prediction(t, r.Plan, "prefill@256"); p.PlanNS*3 > best(p) { // HeteroInfer sec. 5.3.1: 5.85 times the GPU
		t.Errorf("prefill of 256 tokens takes %d ns, single processors %v", p.PlanNS, p.Singles)
	}
	rows, err := Explain(r.Plan, "layers.ffn_down", 256, &in)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, x := range rows {
		fmt.Fprintf(&text, "%s %s\n", x.Strategy, strings.Join(processors(x.Shares), "+"))
	}
	for _, want := range []string{"single cpu\n", "single gpu\n", "single npu\n", "weight-centric gpu+npu\n", "activation-centric gpu+npu\n", "weight-centric cpu+gpu+npu\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("explain says nothing of %q:\n%s", want, text.String())
		}
	}
}

// Calls of many lengths are divided by columns, calls of one length by whatever is fastest then.
func TestLengths(t *testing.T) {
	m, s := demo(t), twoCores(t, 1)
	for i := range s.Links { // makes divisions by columns dearer, which hand over more
		s.Links[i].HandoverUS = 20
	}
	c := costs(t, s, m, op.A32W32)
	rows := func(prompts ...workload.Prompt) int {
		w := workload.Default()
		w.Buckets, w.Prompts = []int{256}, prompts
		n := 0
		for _, d := range solve(t, Input{Model: m, SoC: s, Costs: c, Workload: w}).Plan.Decisions {
			if d.Rows == 256 && d.Axis == planir.AxisRows && d.Scheme != "" {
				n++
			}
		}
		return n
	}
	if n := rows(workload.Prompt{Tokens: 256, Share: 1}); n < 3 {
		t.Errorf("full buckets: %d matrices are divided by rows, want most of 4", n)
	}
	if n := rows(workload.Prompt{Tokens: 130, Share: 1}, workload.Prompt{Tokens: 140, Share: 1}); n > 0 {
		t.Errorf("half empty buckets: %d matrices are divided by rows", n)
	}
}

// Rows that are no multiple of an NPU's are padded: the whole, and the last piece.
func TestPadding(t *testing.T) {
	require.Slow(t)
	m := open(t, "llama-3-8b")
	s, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	s.Processor("npu").AddressBytes = 0
	w := permit(op.A8TQ4B32)
	w.Buckets = []int{48, 250}
	p := solve(t, Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A8TQ4B32), Workload: w}).Plan
	seen := map[planir.Strategy]bool{}
	for _, d := range p.Decisions {
		if d.Rows == 1 {
			continue
		}
		seen[d.Strategy] = true
		for _, sh := range d.Shares {
			rows := d.Rows
			if d.Axis == planir.AxisRows {
				rows = sh.To - sh.From
			}
			if sh.PadRows > 0 {
				rows = sh.PadRows
			}
			if sh.Proc == "npu" && rows%32 != 0 {
				t.Errorf("%s@%d: %s gives the NPU %d rows", d.Node, d.Rows, d.ShareText(), rows)
			}
		}
		for _, a := range d.Alternatives {
			seen[a.Strategy] = true
		}
	}
	for _, want := range []planir.Strategy{planir.Padding, planir.Hybrid, planir.ActivationDivide} {
		if !seen[want] {
			t.Errorf("no decision or alternative is %q", want)
		}
	}
}
