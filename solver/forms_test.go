package solver

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/socs/timeline"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// lottery is prices by chance: every operator has its own on every processor, in every form, and some forms have
// none.
type lottery struct{ seed int }

func (d lottery) Together(tasks []price.Task) ([]price.Estimate, error) {
	var out []price.Estimate
	for _, t := range tasks {
		h := fnv.New64a()
		fmt.Fprint(h, d.seed, " ", t.Key())
		x := h.Sum64()
		if t.Op.Form != "" && x%5 == 0 {
			return nil, errors.New("never measured")
		}
		ns := int64(1000 + x%9000)
		out = append(out, price.Estimate{NS: ns, Low: ns, High: ns})
	}
	return out, nil
}

func (d lottery) Measured(price.Task) []int    { return nil }
func (d lottery) Forms(t price.Task) []op.Form { return op.FormsOf(t.Op.M, op.FormClasses) }
func (d lottery) Handover(from, to string) (price.Estimate, error) {
	return price.Estimate{NS: 700, Low: 700, High: 700}, nil
}
func (d lottery) Launch(string) (price.Estimate, error) { return price.Estimate{}, nil }
func (d lottery) Memory() *timeline.Memory              { return &timeline.Memory{} }
func (d lottery) Phase(t price.Task) (timeline.Phase, error) {
	e, err := d.Together([]price.Task{t})
	if err != nil {
		return timeline.Phase{}, err
	}
	return timeline.Phase{ComputeNS: float64(e[0].NS)}, nil
}
func (d lottery) Copy(from, to string, bytes int64) (price.Estimate, error) {
	return price.Estimate{}, nil
}

// Of a few products on two processors the solver's choice of processors, padded rows and forms costs what the best of
// all combinations costs.
func TestFormsAgainstAll(t *testing.T) {
	m := demo(t)
	s := withNPU(t, func(npu *socs.Processor) {
		npu.Forms = map[op.Scheme][]op.Form{op.A32W32: op.FormClasses}
		x := npu.Sim.Schemes[op.A32W32]
		x.Forms = map[op.Form]socs.SimForm{op.Swapped: {Gain: 1}, op.BatchMatMul: {Gain: 1}, op.Conv: {Gain: 1, Side: 8}}
		npu.Sim.Schemes[op.A32W32] = x
	})
	w := permit(op.A32W32)
	w.Buckets = []int{30}
	session := prepared(t, Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A32W32), Workload: w})
	sections, err := lower.Expand(session.graphFor(30), 30, session.want.Context, op.F32, func(string) op.Scheme { return op.A32W32 }, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(sections, func(x lower.Section) bool { return x.Name == "layers" })
	sec := sections[i]
	sec.Nodes = slices.DeleteFunc(slices.Clone(sec.Nodes), func(n lower.Node) bool { return !n.Op().HasScheme() })
	if len(sec.Nodes) != 4 {
		t.Fatalf("%d products in a layer", len(sec.Nodes))
	}
	chosen := map[op.Form]bool{}
	for seed := range 6 {
		session.prices = lottery{seed}
		st := session.section(&sec, 30)
		lists, errs := st.Candidates()
		all := make([][]price.Candidate, len(lists))
		for i := range sec.Nodes {
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			for _, p := range st.Procs {
				rows := []int{30}
				if st.Static[p.Name] > 0 {
					rows = []int{32, 64}
				}
				for _, r := range rows {
					for _, f := range append(op.FormsOf(r, op.FormClasses), "") {
						sh := planir.Share{Proc: p.Name, PadRows: r, Form: f}
						if r == 30 {
							sh.PadRows = 0
						}
						if c, err := st.Price(i, planir.Single, planir.AxisNone, []planir.Share{sh}); err == nil {
							all[i] = append(all[i], c)
						}
					}
				}
			}
			if len(all[i]) < 12 {
				t.Fatalf("%d ways to execute %q", len(all[i]), sec.Nodes[i].Name)
			}
		}
		few, err := pose(st, lists)
		if err != nil {
			t.Fatal(err)
		}
		many, err := pose(st, all)
		if err != nil {
			t.Fatal(err)
		}
		got, err := exact.Engine{}.Partition(context.Background(), &problem.Partition{Name: "few", Procs: []string{"c0", "c1"}, Chains: []problem.Chain{few.chain}})
		if err != nil {
			t.Fatal(err)
		}
		best := int64(math.MaxInt64)
		at := make([]int, len(all))
		var try func(i int)
		try = func(i int) {
			if i == len(all) {
				best = min(best, many.chain.ObjectiveNS(at))
				return
			}
			for at[i] = range all[i] {
				try(i + 1)
			}
		}
		try(0)
		if got.ObjectiveNS != best {
			t.Errorf("seed %d: %d ns, the best of all combinations takes %d", seed, got.ObjectiveNS, best)
		}
		for i, c := range got.Choices[0] {
			for _, sh := range lists[i][c].Shares {
				chosen[sh.Form.Class()] = true
			}
		}
	}
	for _, f := range op.FormClasses {
		if !chosen[f] {
			t.Errorf("form %q is never chosen", f)
		}
	}
}

// On the catalog's phone weight first wins for W4A16 (HeteroInfer sec. 4.1) and square images for INT8 (llm.npu sec.
// 4): the plan's graphs have them, the checker wants the SoC to list them, and explain says what the default takes.
func TestFormsOnThePhone(t *testing.T) {
	require.Slow(t)
	m := open(t, "llama-3.2-1b")
	for _, x := range []struct {
		scheme op.Scheme
		want   op.Form
	}{{op.A8TQ4B32, op.Swapped}, {op.A8TQ8C, op.Conv}} {
		s, err := socs.Open("snapdragon-8gen3")
		if err != nil {
			t.Fatal(err)
		}
		w := permit(x.scheme)
		w.Buckets = []int{256}
		in := Input{Model: m, SoC: s, Costs: costs(t, s, m, x.scheme), Workload: w, Only: []string{"cpu", "npu"}, Engine: exact.Engine{}}
		r := solve(t, in)
		products := 0
		for _, g := range r.Plan.Program.Graphs {
			for _, n := range g.Graph.Nodes {
				if g.Proc != "npu" || !n.Op.HasScheme() || n.Op.M == 1 {
					continue
				}
				products++
				if n.Op.Form.Class() != x.want {
					t.Errorf("%s: the graph of %s is in form %q, want %q", x.scheme, n.Op.Key(), n.Op.Form, x.want)
				}
				fast, err := sim.NS(s, "npu", n.Op)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range append(op.FormsOf(n.Op.M, s.Processor("npu").Forms[x.scheme]), "") {
					other := n.Op
					other.Form = f
					if ns, err := sim.NS(s, "npu", other); err != nil || 100*ns < 98*fast {
						t.Errorf("%s takes %d ns, in form %q %d (%v)", n.Op.Key(), fast, f, ns, err)
					}
				}
			}
		}
		if products == 0 {
			t.Fatalf("%s: no products on the NPU", x.scheme)
		}
		at := slices.IndexFunc(r.Plan.Decisions, func(d planir.Decision) bool {
			return d.Rows == 256 && len(d.Shares) == 1 && d.Shares[0].Form != ""
		})
		if at < 0 {
			t.Fatalf("%s: no whole product on the NPU", x.scheme)
		}
		d := r.Plan.Decisions[at]
		for _, input := range []*Input{nil, &in} {
			rows, err := Explain(r.Plan, d.Node, 256, input)
			if err != nil {
				t.Fatal(err)
			}
			var chosen, plain int64
			for _, row := range rows {
				switch {
				case row.Chosen && strings.Contains(row.Shares, " as "+string(x.want)):
					chosen = row.NS
				case row.Note == "the default form":
					plain = row.NS
				}
			}
			if chosen == 0 || plain <= chosen {
				t.Errorf("%s: explain: %d ns as chosen and %d in the default form: %v", d.Node, chosen, plain, rows)
			}
		}
		// A SoC that does not list the form cannot execute the plan.
		s.Processor("npu").Forms = nil
		if found := check.Plan(r.Plan, m, s); !strings.Contains(fmt.Sprint(found), "forms is "+string(x.want)) {
			t.Errorf("%s: checked against a SoC without forms: %v", x.scheme, found)
		}
		// And a plan whose processor does not is illegal in itself.
		p := *r.Plan
		p.Procs = slices.Clone(p.Procs)
		p.Proc("npu").Forms = nil
		if found := planir.Check(&p); !strings.Contains(fmt.Sprint(found), "does not execute form") {
			t.Errorf("%s: a processor without forms: %v", x.scheme, found)
		}
	}
}

// A product with a static scale is padded to the rows of what quantises for it, whatever form is faster with more:
// compilers take both as one graph.
func TestStaticFormsKeepTheirRows(t *testing.T) {
	s := withNPU(t, func(npu *socs.Processor) {
		npu.Forms = map[op.Scheme][]op.Form{op.A8SQ8C: {op.Conv}}
		npu.Schemes = append(npu.Schemes, op.A8SQ8C)
		rates := npu.Sim.Schemes[op.A32W32]
		rates.Forms = map[op.Form]socs.SimForm{op.Conv: {Gain: 50, Side: 8}}
		npu.Sim.Schemes[op.A8SQ8C] = rates
	})
	m := demo(t)
	w := permit(op.A8SQ8C)
	w.Buckets = []int{30, 64} // with 64 rows, a convolution would be faster than the product with 32, too
	cal := observed(m, invented(t, m, rand.New(rand.NewPCG(7, 8)), op.A8SQ8C))
	plan := solve(t, Input{Model: m, SoC: s, Costs: costs(t, s, m, op.A8SQ8C), Workload: w, Calibration: cal}).Plan
	convolved := 0
	for _, d := range plan.Decisions {
		for _, share := range d.Shares {
			if share.Form.Class() != op.Conv {
				continue
			}
			convolved++
			if width, height, _ := share.Form.Image(); width*height != op.RoundUp(d.Rows, 32) {
				t.Errorf("%s at %d rows: %+v", d.Node, d.Rows, share)
			}
		}
	}
	if convolved == 0 {
		t.Error("no product is a convolution")
	}
}
