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

// lottery is prices by chance: every operator has its own on every processor, in every form, and some forms have none.
type lottery struct{ seed int }

// Together draws the prices.
func (l lottery) Together(tasks []price.Task) ([]price.Estimate, error) {
	var out []price.Estimate
	for _, task := range tasks {
		hash := fnv.New64a()
		fmt.Fprint(hash, l.seed, " ", task.Key())
		drawn := hash.Sum64()
		if task.Op.Form != "" && drawn%5 == 0 {
			return nil, errors.New("never measured")
		}
		ns := int64(1000 + drawn%9000)
		out = append(out, price.Estimate{NS: ns, Low: ns, High: ns})
	}
	return out, nil
}

// Handover returns the same time for all processors.
func (l lottery) Handover(from, to string) (price.Estimate, error) {
	return price.Estimate{NS: 700, Low: 700, High: 700}, nil
}

// Phase returns a phase of the operator's time that only computes.
func (l lottery) Phase(task price.Task) (timeline.Phase, error) {
	estimates, err := l.Together([]price.Task{task})
	if err != nil {
		return timeline.Phase{}, err
	}
	return timeline.Phase{ComputeNS: float64(estimates[0].NS)}, nil
}

// Copies and launches take no time, nothing is measured, and memory has no limit.
func (l lottery) Copy(from, to string, bytes int64) (price.Estimate, error) {
	return price.Estimate{}, nil
}
func (lottery) GatedShare(string, op.Op, op.Op) float64 { return 1 }
func (lottery) LeastGatedShare(string) float64          { return 1 }
func (l lottery) Launch(string) (price.Estimate, error) { return price.Estimate{}, nil }
func (l lottery) Measured(price.Task) []int             { return nil }
func (l lottery) Memory() *timeline.Memory              { return &timeline.Memory{} }
func (l lottery) Forms(task price.Task) []op.Form       { return op.FormsOf(task.Op.M, op.FormClasses) }

// Of a few products on two processors the solver's choice of processors, padded rows and forms costs what the best of
// all combinations costs.
func TestFormsAgainstAll(t *testing.T) {
	model := demo(t)
	soc := withNPU(t, func(npu *socs.Processor) {
		npu.Forms = map[op.Scheme][]op.Form{op.A32W32: op.FormClasses}
		rates := npu.Sim.Schemes[op.A32W32]
		rates.Forms = map[op.Form]socs.SimForm{op.Swapped: {Gain: 1}, op.BatchMatMul: {Gain: 1},
			op.Conv: {Gain: 1, Side: 8}}
		npu.Sim.Schemes[op.A32W32] = rates
	})
	work := permit(op.A32W32)
	work.Buckets = []int{30}
	session := prepared(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A32W32), Workload: work})
	sections, err := lower.Expand(session.graphFor(30), 30, session.want.Context, op.F32,
		func(string) op.Scheme { return op.A32W32 }, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	isLayers := func(section lower.Section) bool { return section.Name == "layers" }
	sec := sections[slices.IndexFunc(sections, isLayers)]
	isOther := func(node lower.Node) bool { return !node.Op().HasScheme() }
	sec.Nodes = slices.DeleteFunc(slices.Clone(sec.Nodes), isOther)
	if len(sec.Nodes) != 4 {
		t.Fatalf("%d products in a layer", len(sec.Nodes))
	}

	chosen := map[op.Form]bool{}
	for seed := range 6 {
		session.prices = lottery{seed}
		section := session.section(&sec, 30)
		lists, errs := section.Candidates()
		all := make([][]price.Candidate, len(lists))
		for i := range sec.Nodes {
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			if all[i] = everyForm(section, i); len(all[i]) < 12 {
				t.Fatalf("%d ways to execute %q", len(all[i]), sec.Nodes[i].Name)
			}
		}

		few, err := pose(section, lists)
		if err != nil {
			t.Fatal(err)
		}
		got, err := exact.Engine{}.Partition(context.Background(),
			&problem.Partition{Name: "few", Procs: []string{"c0", "c1"}, Chains: []problem.Chain{few.chain}})
		if err != nil {
			t.Fatal(err)
		}
		many, err := pose(section, all)
		if err != nil {
			t.Fatal(err)
		}
		best := int64(math.MaxInt64)
		eachChoice(&many.chain, func(choices []int) { best = min(best, many.chain.ObjectiveNS(choices)) })
		if got.ObjectiveNS != best {
			t.Errorf("seed %d: %d ns, the best of all combinations takes %d", seed, got.ObjectiveNS, best)
		}
		for i, choice := range got.Choices[0] {
			for _, share := range lists[i][choice].Shares {
				chosen[share.Form.Class()] = true
			}
		}
	}

	for _, form := range op.FormClasses {
		if !chosen[form] {
			t.Errorf("form %q is never chosen", form)
		}
	}
}

// everyForm lists all ways to execute a product of 30 rows as a whole: processors, padded rows and forms.
func everyForm(section *price.Section, node int) (all []price.Candidate) {
	for _, proc := range section.Procs {
		padded := []int{0}
		if section.Static[proc.Name] > 0 {
			padded = []int{32, 64}
		}
		for _, rows := range padded {
			for _, form := range append(op.FormsOf(max(rows, 30), op.FormClasses), "") {
				shares := []planir.Share{{Proc: proc.Name, PadRows: rows, Form: form}}
				candidate, err := section.Price(node, planir.Single, planir.AxisNone, shares)
				if err == nil {
					all = append(all, candidate)
				}
			}
		}
	}
	return all
}

// On the catalog's phone weight first wins for W4A16 (HeteroInfer sec. 4.1) and square images for INT8 (llm.npu sec.
// 4): the plan's graphs have them, the checker wants the SoC to list them, and explain says what the default takes.
func TestFormsOnThePhone(t *testing.T) {
	require.Slow(t)
	model := open(t, "llama-3.2-1b")
	for _, test := range []struct {
		scheme op.Scheme
		want   op.Form
	}{{op.A8TQ4B32, op.Swapped}, {op.A8TQ8C, op.Conv}} {
		soc, err := socs.Open("snapdragon-8gen3")
		if err != nil {
			t.Fatal(err)
		}
		work := permit(test.scheme)
		work.Buckets = []int{256}
		in := Input{Model: model, SoC: soc, Costs: costs(t, soc, model, test.scheme), Workload: work,
			Only: []string{"cpu", "npu"}, Engine: exact.Engine{}}
		result := solve(t, in)
		products := 0
		for _, graph := range result.Plan.Program.Graphs {
			for _, node := range graph.Graph.Nodes {
				if graph.Proc != "npu" || !node.Op.HasScheme() || node.Op.M == 1 {
					continue
				}
				products++
				if node.Op.Form.Class() != test.want {
					t.Errorf("%s: the graph of %s is in form %q, want %q", test.scheme, node.Op.Key(), node.Op.Form,
						test.want)
				}
				checkFastestForm(t, soc, node.Op)
			}
		}
		if products == 0 {
			t.Fatalf("%s: no products on the NPU", test.scheme)
		}

		isFormed := func(decision planir.Decision) bool {
			return decision.Rows == 256 && len(decision.Shares) == 1 && decision.Shares[0].Form != ""
		}
		at := slices.IndexFunc(result.Plan.Decisions, isFormed)
		if at < 0 {
			t.Fatalf("%s: no whole product on the NPU", test.scheme)
		}
		decision := result.Plan.Decisions[at]
		for _, input := range []*Input{nil, &in} {
			rows, err := Explain(result.Plan, decision.Node, 256, input)
			if err != nil {
				t.Fatal(err)
			}
			var chosen, plain int64
			for _, row := range rows {
				switch {
				case row.Chosen && strings.Contains(row.Shares, " as "+string(test.want)):
					chosen = row.NS
				case row.Note == "the default form":
					plain = row.NS
				}
			}
			if chosen == 0 || plain <= chosen {
				t.Errorf("%s: explain: %d ns as chosen and %d in the default form: %v", decision.Node, chosen, plain,
					rows)
			}
		}

		// A SoC that does not list the form cannot execute the plan.
		soc.Processor("npu").Forms = nil
		found := check.Plan(result.Plan, model, soc)
		if !strings.Contains(fmt.Sprint(found), "forms is "+string(test.want)) {
			t.Errorf("%s: checked against a SoC without forms: %v", test.scheme, found)
		}

		// And a plan whose processor does not is illegal in itself.
		plan := *result.Plan
		plan.Procs = slices.Clone(plan.Procs)
		plan.Proc("npu").Forms = nil
		if found := planir.Check(&plan); !strings.Contains(fmt.Sprint(found), "does not execute form") {
			t.Errorf("%s: a processor without forms: %v", test.scheme, found)
		}
	}
}

// checkFastestForm checks that no other form of a product on the NPU is simulated to be faster by more than 2 %.
func checkFastestForm(t *testing.T, soc *socs.SoC, operator op.Op) {
	t.Helper()
	fast, err := sim.NS(soc, "npu", operator)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range append(op.FormsOf(operator.M, soc.Processor("npu").Forms[operator.Scheme]), "") {
		other := operator
		other.Form = form
		if ns, err := sim.NS(soc, "npu", other); err != nil || 100*ns < 98*fast {
			t.Errorf("%s takes %d ns, in form %q %d (%v)", operator.Key(), fast, form, ns, err)
		}
	}
}

// A product with a static scale is padded to the rows of what quantises for it, whatever form is faster with more:
// compilers take both as one graph.
func TestStaticFormsKeepTheirRows(t *testing.T) {
	soc := withNPU(t, func(npu *socs.Processor) {
		npu.Forms = map[op.Scheme][]op.Form{op.A8SQ8C: {op.Conv}}
		npu.Schemes = append(npu.Schemes, op.A8SQ8C)
		rates := npu.Sim.Schemes[op.A32W32]
		rates.Forms = map[op.Form]socs.SimForm{op.Conv: {Gain: 50, Side: 8}}
		npu.Sim.Schemes[op.A8SQ8C] = rates
	})

	model := demo(t)
	work := permit(op.A8SQ8C)
	work.Buckets = []int{30, 64} // with 64 rows, a convolution would be faster than the product with 32, too
	cal := observed(model, invented(t, model, rand.New(rand.NewPCG(7, 8)), op.A8SQ8C))
	plan := solve(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8SQ8C), Workload: work,
		Calibration: cal}).Plan

	convolved := 0
	for _, decision := range plan.Decisions {
		for _, share := range decision.Shares {
			if share.Form.Class() != op.Conv {
				continue
			}
			convolved++
			if width, height, _ := share.Form.Image(); width*height != op.RoundUp(decision.Rows, 32) {
				t.Errorf("%s at %d rows: %+v", decision.Node, decision.Rows, share)
			}
		}
	}
	if convolved == 0 {
		t.Error("no product is a convolution")
	}
}
