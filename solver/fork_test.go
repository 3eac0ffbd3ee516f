package solver

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/highs"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// forksOf names the forks of a model's sections: split, first nodes of both branches, join.
func forksOf(t *testing.T, model *models.Model, scheme op.Scheme) (out []string) {
	t.Helper()
	graph := model.Graph()
	sections, err := lower.Expand(&graph, 1, 64, op.F32, func(string) op.Scheme { return scheme }, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range sections {
		nodes := sections[i].Nodes
		for _, fork := range findForks(&sections[i]) {
			out = append(out, fmt.Sprintf("%s: %s | %s -> %s", nodes[fork.split].Name, nodes[fork.split+1].Name,
				nodes[fork.second].Name, nodes[fork.join].Name))
		}
	}
	return out
}

// Which architectures have operators that may run side by side: parallel blocks, and shared beside routed experts.
func TestForksOfArchitectures(t *testing.T) {
	want := map[string][]string{
		"phi-2 a32/w32":             {"layers.attn_norm: layers.qkv | layers.ffn_up -> layers.ffn_add"},
		"phi-2 a8t/q8c":             {"layers.qkv_quant: layers.qkv | layers.ffn_up -> layers.ffn_add"},
		"qwen1.5-moe-a2.7b a32/w32": {"layers.ffn_norm: layers.router | layers.shared_gate_up -> layers.shared_add"},
		"qwen1.5-moe-a2.7b a8t/q8c": {"layers.expert_gate_up_quant: layers.expert_gate_up | layers.shared_gate_up -> " +
			"layers.shared_add"},
	}
	for _, name := range models.CatalogNames() {
		model := open(t, name)
		for _, scheme := range []op.Scheme{op.A32W32, op.A8TQ8C} {
			key := name + " " + string(scheme)
			if got := forksOf(t, model, scheme); !slices.Equal(got, want[key]) {
				t.Errorf("%s: forks %q, want %q", key, got, want[key])
			}
		}
	}
}

// With capacity tiers the slots are a branch beside the dynamic products, whatever the scheme.
func TestForksOfTiers(t *testing.T) {
	model := open(t, "phi-3.5-moe")
	graph := model.Graph()
	tiers := &planir.ExpertTiers{Rows: 64, Experts: model.Experts, Sent: 8, Overflow: planir.OverflowExact,
		Groups: []planir.ExpertGroup{{Slots: 2, Rows: 16}}}
	for layer := range model.Layers {
		tiers.Layers = append(tiers.Layers, planir.ExpertLayer{Layer: layer, Slots: []int{0, 1}})
	}

	for _, scheme := range []op.Scheme{op.A32W32, op.A8TQ8C} {
		sections, err := lower.Expand(&graph, 64, 64, op.F32, func(string) op.Scheme { return scheme }, tiers, nil)
		if err != nil {
			t.Fatal(err)
		}

		found := false
		for i := range sections {
			nodes := sections[i].Nodes
			for _, fork := range findForks(&sections[i]) {
				found = found || nodes[fork.split].Op().Kind == op.Dispatch && nodes[fork.join].Op().Kind == op.Collect
			}
		}
		if !found {
			t.Errorf("%s: no fork from dispatch to collect", scheme)
		}
	}
}

// drawnFork is an instance with a fork between random nodes: two processors or three, some of which may not work at the
// same time.
func drawnFork(t *rapid.T) *instance {
	draw := draws{t}
	procs := draw.number("procs", 2, 3)
	section := &price.Section{Machine: &price.Machine{Beside: map[[2]int]bool{}, Apart: map[[2]string]bool{}},
		Section: &lower.Section{}}
	for i := range procs {
		section.Procs = append(section.Procs, planir.Proc{Name: fmt.Sprint("p", i)})
		for j := range i {
			able := draw.number("beside", 0, 3) > 0
			section.Beside[[2]int{i, j}], section.Beside[[2]int{j, i}] = able, able
		}
	}

	first, second := draw.number("first", 1, 2), draw.number("second", 1, 2)
	fork := forkJoin{split: draw.number("before", 0, 1)}
	fork.second = fork.split + 1 + first
	fork.join = fork.second + second
	length := fork.join + 1 + draw.number("behind", 0, 1)
	in := &instance{section: section, chain: problem.Chain{Name: "layers", Repeat: draw.number("repeat", 1, 3)}}
	for i := range length {
		item := draw.item(fmt.Sprint("n", i), procs)
		if i > 0 || in.chain.Wraps() > 0 {
			item.EdgeNS = draw.edges()
		}
		masks := make([]uint64, len(item.Choices))
		for choice := range masks {
			masks[choice] = maskOf(item.Choices[choice].Procs)
		}
		in.chain.Items, in.masks = append(in.chain.Items, item), append(in.masks, masks)
	}

	fork.entry = forkHandover{draw.classes(&in.chain.Items[fork.second]), draw.edges()}
	fork.exit = forkHandover{draw.classes(&in.chain.Items[fork.join]), draw.edges()}
	in.forks = []forkJoin{fork}
	in.findPaths()
	in.posed = in.withForkChoices()
	return in
}

// draws draws the parts of an instance whose nodes have two location classes before and behind them.
type draws struct{ t *rapid.T }

// number draws a number from least to most.
func (d draws) number(name string, least, most int) int {
	return rapid.IntRange(least, most).Draw(d.t, name)
}

// edges draws the hand-overs between two nodes.
func (d draws) edges() (out [][]int64) {
	for range 2 {
		out = append(out, []int64{int64(d.number("edge", 0, 9)), int64(d.number("edge", 0, 9))})
	}
	return out
}

// item draws a node with one to three choices on some processors.
func (d draws) item(name string, procs int) problem.Item {
	item := problem.Item{Name: name, Before: []string{"a", "b"}, After: []string{"x", "y"}}
	for i := range d.number("choices", 1, 3) {
		set := d.number("set", 1, 1<<procs-1)
		choice := problem.Choice{Label: fmt.Sprint(i), CostNS: int64(d.number("cost", 0, 60)),
			Before: d.number("from", 0, 1), After: d.number("to", 0, 1)}
		for proc := range procs {
			if set>>proc&1 == 1 {
				choice.Procs = append(choice.Procs, proc)
			}
		}
		item.Choices = append(item.Choices, choice)
	}
	return item
}

// classes draws the class of every choice of a node.
func (d draws) classes(item *problem.Item) (out []int) {
	for range item.Choices {
		out = append(out, d.number("class", 0, 1))
	}
	return out
}

// objective is what choices of nodes count for in a solution.
func (in *instance) objective(choices []int) int64 {
	first := in.neighbourHandover(0, choices[len(choices)-1], choices[0])
	return int64(in.chain.Repeat)*(in.sectionNS(choices, in.cost)-first) + int64(in.chain.Wraps())*first
}

// Where nothing slows down beside other work, the chain with its ways through a fork has the optimum of all choices of
// nodes, as going through both branches at once finds it.
func TestForkAgainstEnumeration(t *testing.T) {
	beside := 0
	rapid.Check(t, func(rt *rapid.T) {
		in := drawnFork(rt)
		partition := partitionOf(in)
		best := int64(never)
		eachChoice(&in.chain, func(choices []int) { best = min(best, in.objective(choices)) })

		sol, err := exact.Engine{}.Partition(context.Background(), partition)
		if err == nil {
			err = partition.Verify(sol)
		}
		if err != nil {
			rt.Fatal(err)
		}

		nodes := in.choicesOfNodes(sol.Choices[0])
		if sol.ObjectiveNS != best || in.objective(nodes) != best {
			rt.Fatalf("objective %d ns, its nodes %v take %d, and the best of all %d", sol.ObjectiveNS, nodes,
				in.objective(nodes), best)
		}
		if in.sideBySide(&in.forks[0], nodes) && best < in.chain.ObjectiveNS(nodes) {
			beside++
		}
	})
	if beside == 0 && !testing.Short() { // which draws twenty, and every seventh time none with such an optimum
		t.Error("no solution ran branches side by side")
	}
}

// eachChoice calls visit with every combination of a chain's choices.
func eachChoice(chain *problem.Chain, visit func([]int)) {
	now := make([]int, len(chain.Items))
	for {
		visit(now)
		i := len(now) - 1
		for ; i >= 0; i-- {
			if now[i]++; now[i] < len(chain.Items[i].Choices) {
				break
			}
			now[i] = 0
		}
		if i < 0 {
			return
		}
	}
}

// The chain with ways through forks is a linear program like any other: HiGHS finds the same optimum, and the same
// first solution.
func TestForkHiGHS(t *testing.T) {
	require.Slow(t)
	require.Deps()
	general, err := highs.Open()
	if err != nil {
		require.Skip(t, "highs", err)
	}
	forks := rapid.Custom(drawnFork)
	for seed := range 40 {
		in := forks.Example(seed)
		partition := partitionOf(in)
		want, err := exact.Engine{}.Partition(t.Context(), partition)
		if err != nil {
			t.Fatal(err)
		}
		got, err := problem.Relay{General: general, Exact: exact.Engine{}}.Partition(t.Context(), partition)
		if err == nil {
			err = partition.Verify(got)
		}
		if err != nil {
			t.Fatal(err)
		}
		same := got.ObjectiveNS == want.ObjectiveNS && fmt.Sprint(got.Choices) == fmt.Sprint(want.Choices)
		if !same || got.Status != problem.Optimal {
			t.Errorf("seed %d: %d ns (%s) with %v, exact %d ns with %v", seed, got.ObjectiveNS, got.Status,
				got.Choices, want.ObjectiveNS, want.Choices)
		}
	}
}

// partitionOf returns the problem of one instance.
func partitionOf(in *instance) *problem.Partition {
	partition := &problem.Partition{Name: "drawn", Chains: []problem.Chain{in.posed}}
	for i := range in.section.Procs {
		partition.Procs = append(partition.Procs, in.section.Procs[i].Name)
	}
	return partition
}

// Where every operator is executed whole, by CPU or GPU, no placement of a parallel block's is predicted to be faster
// than the plan: all of them are lowered and timed. What the problem says a plan takes is what the timeline says, to
// within two percent.
func TestForkAgainstTimeline(t *testing.T) {
	require.Slow(t)
	soc, err := socs.Open("core-ultra-5-125h")
	if err != nil {
		t.Fatal(err)
	}
	model := open(t, "phi-2")
	work := permit(op.A8TQ8C)
	work.Buckets, work.Context = []int{16}, 256
	ses := prepared(t, Input{Model: model, SoC: soc, Costs: costs(t, soc, model, op.A8TQ8C), Workload: work,
		Only: []string{"cpu", "gpu"}, Strategies: []planir.Strategy{planir.Single, planir.Padding}})
	plan, err := ses.bestWithinBounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	// Nodes that no sensible plan separates are placed together.
	groups := [][]string{{"attn_norm", "qkv_quant"}, {"qkv"}, {"attention"}, {"attn_out_quant", "attn_out"},
		{"attn_add"}, {"ffn_up"}, {"ffn_act", "ffn_down_quant", "ffn_down"}, {"ffn_add"}}
	for at, rows := range ses.want.Rows() {
		pr, err := ses.program(rows, ses.assigned(rows))
		if err != nil {
			t.Fatal(err)
		}
		mine, err := ses.timelineNS(plan, rows)
		if err != nil {
			t.Fatal(err)
		}
		best := int64(never)
		for placement := range 1 << len(groups) {
			decisions := decisionsOf(t, ses, plan)
			for i := range decisions[at] {
				decision := &decisions[at][i]
				name, inLayers := strings.CutPrefix(decision.Node, "layers.")
				for group, nodes := range groups {
					if inLayers && slices.Contains(nodes, name) {
						proc := []string{"cpu", "gpu"}[placement>>group&1]
						*decision = single(t, pr, decision.Node, proc)
					}
				}
			}

			trial := *plan
			if err := ses.lowerDecisions(&trial, decisions); err != nil {
				t.Fatal(err)
			}
			ns, err := ses.timelineNS(&trial, rows)
			if err != nil {
				t.Fatal(err)
			}
			best = min(best, ns)
		}

		if float64(mine) > 1.001*float64(best) {
			t.Errorf("%s: the plan is predicted to take %d ns, a placement of its operators %d", pr.name, mine, best)
		}
		if bound := plan.Solver[at].BoundNS; math.Abs(float64(bound)/float64(mine)-1) > 0.02 {
			t.Errorf("%s: %d ns are proved, and %d predicted", pr.name, bound, mine)
		}
	}
}

// decisionsOf returns the decisions of a plan, by program.
func decisionsOf(t *testing.T, ses *session, plan *planir.Plan) (decisions [][]planir.Decision) {
	t.Helper()
	for _, rows := range ses.want.Rows() {
		pr, err := ses.program(rows, ses.assigned(rows))
		if err != nil {
			t.Fatal(err)
		}
		decisions = append(decisions, pr.decisionsIn(plan))
	}
	return decisions
}

// single is the decision of a node for one processor.
func single(t *testing.T, pr *program, node, proc string) planir.Decision {
	t.Helper()
	for _, in := range pr.instances {
		for i := range in.candidates {
			for _, candidate := range in.candidates[i] {
				if candidate.Node == node && candidate.Axis == planir.AxisNone && candidate.Shares[0].Proc == proc {
					return candidate.Decision
				}
			}
		}
	}
	t.Fatalf("%s does not execute %s", proc, node)
	return planir.Decision{}
}
