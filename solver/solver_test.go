package solver

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/golden"
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
)

func TestMain(m *testing.M) { os.Exit(golden.Main(m)) }

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
  - {from: c0, to: c01, handover_us: 5}
  - {from: c01, to: c0, handover_us: 5}
  - {from: c1, to: c01, handover_us: 5}
  - {from: c01, to: c1, handover_us: 5}
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
	digest, err := s.Digest()
	if err != nil {
		t.Fatal(err)
	}
	set := record.NewSet(record.Header{Schema: record.Schema, SoC: s.Name, SoCDigest: digest, Simulated: true, Hetc: "test"})
	g := m.Graph()
	add := func(p *socs.Processor, o op.Op) {
		if !p.Executes(o.Kind) {
			return
		}
		layout := op.RowsLayout
		if o.Kind == op.MatMul {
			layout = p.Layouts[o.Scheme.Weight()]
		} else if len(o.Sig().W) == 0 {
			layout = ""
		}
		ns, err := sim.NS(s, p.Name, o)
		if err != nil {
			return // infeasible
		}
		x := record.Measurement{Kind: record.Op, Proc: p.Name, Op: &o, Layout: layout, Cold: o.Kind == op.MatMul, Unit: "ns", Loops: 1, Samples: []float64{float64(ns)}, Simulated: true}
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
			for _, rows := range []int{1, 4, 16, 64, 128, 256, 512} {
				sections, err := lower.Expand(&g, rows, 1024, op.F32, func(string) op.Scheme { return scheme })
				if err != nil {
					t.Fatal(err)
				}
				for _, sec := range sections {
					for _, n := range sec.Nodes {
						for _, o := range n.Ops {
							for _, c := range []int{64, 320, 1024} {
								if o.Kind == op.Attention {
									o.Context = max(c, rows)
								}
								add(p, o)
							}
							if o.Kind == op.MatMul {
								half := o
								half.N = socs.Round(o.N/2, 32)
								add(p, half)
								half = o
								half.K = socs.Round(o.K/2, 32)
								add(p, half)
								add(p, op.Op{Kind: op.Add, M: o.M, N: o.N})
								add(p, op.Op{Kind: op.Copy, M: o.M, N: o.N})
							}
							if o.Kind == op.SiluMul || o.Kind == op.Add {
								o.N /= 2
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

func TestTwoCores(t *testing.T) {
	m := demo(t)
	for _, ratio := range []float64{1, 0.5, 0.1} {
		t.Run(fmt.Sprint(ratio), func(t *testing.T) {
			s := twoCores(t, ratio)
			r := solve(t, Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32)})
			if found := check.Plan(r.Plan, m, s); len(found) > 0 {
				t.Fatal(found)
			}
			for _, pred := range r.Plan.Predictions {
				best := int64(0)
				for _, x := range pred.Singles {
					if best == 0 || x.NS < best {
						best = x.NS
					}
				}
				if len(pred.Singles) != 3 || pred.PlanNS > best {
					t.Errorf("%s: predicted %d ns, single processors %v", pred.Program, pred.PlanNS, pred.Singles)
				}
				if pred.LowNS > pred.PlanNS || pred.PlanNS > pred.HighNS {
					t.Errorf("%s: interval %d..%d around %d", pred.Program, pred.LowNS, pred.HighNS, pred.PlanNS)
				}
				t.Logf("%s: %d (%d..%d) singles %v sections %v", pred.Program, pred.PlanNS, pred.LowNS, pred.HighNS, pred.Singles, pred.Sections)
			}
			for _, d := range r.Plan.Decisions {
				if strings.HasPrefix(d.Node, "layers.") && (d.Rows == 1 || d.Rows == 256) {
					t.Logf("%s@%d %s %s: %d", d.Node, d.Rows, d.Strategy, d.ShareText(), d.PredictNS)
				}
			}
			for _, x := range r.Plan.Solver {
				if x.Status != "optimal" || x.BoundNS != x.ObjectiveNS {
					t.Errorf("%+v", x)
				}
				t.Logf("%+v", x)
			}
		})
	}
}

func TestLarge(t *testing.T) {
	for _, c := range []struct {
		soc, model string
		scheme     op.Scheme
	}{{"two", "tinyllama-1.1b", op.A8TQ8C}, {"snapdragon-8gen3", "llama-3-8b", op.A8TQ4B32}, {"snapdragon-8gen3", "llama-3-8b", op.A32W32}} {
		t.Run(c.soc+string(c.scheme), func(t *testing.T) {
			m := open(t, c.model)
			var s *socs.SoC
			if c.soc == "two" {
				s = twoCores(t, 1)
			} else {
				var err error
				s, err = socs.Open(c.soc)
				if err != nil {
					t.Fatal(err)
				}
			}
			w := DefaultWorkload()
			w.Schemes = Schemes{Prefill: []op.Scheme{c.scheme}, Decode: []op.Scheme{c.scheme}}
			start := time.Now()
			k := costs(t, s, m, c.scheme)
			t.Log("fit", time.Since(start))
			start = time.Now()
			r := solve(t, Input{Model: m, SoC: s, Costs: k, Workload: w})
			t.Log("solve", time.Since(start), r.Warnings)
			for _, pred := range r.Plan.Predictions {
				t.Logf("%s: %d (%d..%d) singles %v sections %v", pred.Program, pred.PlanNS, pred.LowNS, pred.HighNS, pred.Singles, pred.Sections)
			}
			for _, d := range r.Plan.Decisions {
				if d.Rows == 1 || d.Rows == 256 {
					t.Logf("%s@%d %s %s: %d", d.Node, d.Rows, d.Strategy, d.ShareText(), d.PredictNS)
				}
			}
			for _, x := range r.Plan.Solver {
				t.Logf("%+v", x)
			}
			rows, err := Explain(r.Plan, "layers.ffn_down", 256, nil)
			for _, x := range rows {
				t.Logf("%+v", x)
			}
			if err != nil {
				t.Fatal(err)
			}
			rows, err = Explain(r.Plan, "layers.ffn_down", 256, &Input{Model: m, SoC: s, Costs: k, Workload: w, Engine: exact.Engine{}})
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range rows {
				t.Logf("again %+v", x)
			}
		})
	}
}
