package lower_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
)

func graph(t testing.TB) *models.Graph {
	t.Helper()
	return graphOf(t, "../../testdata/models/tiny-llama-kjv")
}

func graphOf(t testing.TB, dir string) *models.Graph {
	t.Helper()
	model, err := models.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	graph := model.Graph()
	return &graph
}

// proc is a processor that executes everything.
func proc(name string, tile int, cores ...int) planir.Proc {
	return planir.Proc{
		Name: name, Kind: "cpu", Driver: "host", Cores: cores,
		Set: capability.Set{
			Tile: capability.Tile{K: tile, N: tile}, Schemes: schemes,
			Layouts:     map[string]string{"q8c": "n32", "w32": "n32"},
			DynamicRows: true, StridedOutput: true, StridedInput: true, WeightRanges: true,
		},
	}
}

// plan decides everything for the processor a, in one scheme.
func plan(t testing.TB, graph *models.Graph, rows []int, scheme op.Scheme) *planir.Plan {
	t.Helper()
	return planBy(t, graph, rows, func(string, int) op.Scheme { return scheme })
}

// planBy is plan with a scheme for each node and number of rows.
func planBy(
	t testing.TB, graph *models.Graph, rows []int, schemeOf func(node string, rows int) op.Scheme,
) *planir.Plan {
	t.Helper()
	plan := &planir.Plan{
		Schema: planir.Schema, Model: planir.ModelRef{Name: "m"}, SoC: planir.SoCRef{Name: "s", Control: "a"},
		MaxContext: 64, KV: op.F32, Procs: []planir.Proc{proc("a", 32, 0), proc("b", 32, 1), proc("c", 64)},
		Inputs: []planir.Input{{Kind: planir.CalibrationInput, Digest: "d"}},
	}
	plan.Procs[2].StridedOutput, plan.Procs[2].WeightRanges = false, false // its column shares are gathered
	var err error
	plan.Decisions, err = lower.Trivial(graph, "a", rows, plan.MaxContext, plan.KV, schemeOf)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// schemes are those that all processors execute.
var schemes = []op.Scheme{op.A32W32, op.A8TQ8C, op.A8SQ8C, op.A8S2Q8C}

// The head has one row in every bucket, and one decision, unless a bucket has it in another scheme.
func TestTrivialHeadInTwoSchemes(t *testing.T) {
	graph := graphOf(t, "../../testdata/arch/llama-plain")
	planned := planBy(t, graph, []int{1, 16, 32}, func(_ string, rows int) op.Scheme {
		if rows == 16 {
			return op.A32W32
		}
		return op.A8TQ8C
	})
	if err := lower.Lower(planned, graph); err != nil {
		t.Fatal(err)
	}
	for rows, want := range map[int]op.Scheme{1: op.A8TQ8C, 16: op.A32W32, 32: ""} {
		got := op.Scheme("")
		if decision := planned.DecisionFor("head.lm_head", rows); decision != nil {
			got = decision.Scheme
		}
		if got != want {
			t.Errorf("head.lm_head@%d: got scheme %q, want %q", rows, got, want)
		}
	}
	if report := planir.Check(planned); report.Err() != nil {
		t.Errorf("got %v, want a legal plan", report.Err())
	}
}

// Each phase reads one piece of a layer: packs that only decode reads come first, then those that both phases read, then
// those of prefill.
func TestPacksLieByPhase(t *testing.T) {
	graph := graphOf(t, "../../testdata/arch/llama-plain")
	planned := planBy(t, graph, []int{1, 16, 32}, func(_ string, rows int) op.Scheme {
		if rows == 1 {
			return op.A8TQ8C
		}
		return op.A32W32
	})
	if err := lower.Lower(planned, graph); err != nil {
		t.Fatal(err)
	}

	readBy := phasesOfPacks(planned)
	var got []string
	for _, pack := range planned.Program.Packs {
		got = append(got, strings.Join(readBy[pack.Name], " and "))
	}
	got = slices.Compact(got)
	if want := []string{"decode", "decode and prefill", "prefill"}; !slices.Equal(got, want) {
		t.Errorf("packs lie in the order %q, want %q", got, want)
	}
}

// phasesOfPacks are the phases whose programs read each pack.
func phasesOfPacks(planned *planir.Plan) map[string][]string {
	phases := map[string][]string{}
	for _, program := range planned.Program.Programs {
		for _, section := range program.Sections {
			for _, lane := range section.Lanes {
				for _, step := range lane.Steps {
					for _, ref := range step.W {
						if !slices.Contains(phases[ref.Pack], program.Phase) {
							phases[ref.Pack] = append(phases[ref.Pack], program.Phase)
						}
					}
				}
			}
		}
	}
	return phases
}

// Static scales are weights of their own, for every layer that has the product, changed by the folds that change what
// enters it. Rows that are quantised in both ways are two values.
func TestStaticScales(t *testing.T) {
	// dense layers between others; two products of one input
	graph := graphOf(t, "../../testdata/arch/qwen2-moe-dense-layers-fused")
	plan := planBy(t, graph, []int{1, 16}, func(node string, _ int) op.Scheme {
		if strings.Contains(node, "shared") {
			return op.A8TQ8C
		}
		if strings.HasSuffix(node, ".attn_out") {
			return op.A8S2Q8C
		}
		return op.A8SQ8C
	})
	plan.Folds = []string{"layers.attn_norm"}
	folds := graph.Folds()
	at := slices.IndexFunc(folds, func(group models.FoldGroup) bool { return group.Name == plan.Folds[0] })
	if at < 0 || !slices.Contains(folds[at].Readers, "layers.qkv") {
		t.Fatalf("folds %v", folds)
	}
	if err := lower.Lower(plan, graph); err != nil {
		t.Fatal(err)
	}
	if err := planir.Check(plan).Err(); err != nil {
		t.Fatal(err)
	}

	layers := map[string]int{}
	for _, section := range graph.Sections {
		for _, node := range section.Nodes {
			if len(node.Ops) == 1 && node.Ops[0].HasScheme() && !node.Exact {
				layers[section.Name+"."+node.Name] += section.Layers
			}
		}
	}

	seen := 0
	for i := range plan.Program.Weights {
		weight := &plan.Program.Weights[i]
		if weight.ScaleOf == "" {
			continue
		}
		seen++
		fold := ""
		if strings.HasSuffix(weight.ScaleOf, ".qkv") {
			fold = plan.Folds[0]
		}
		checkScaleWeight(t, weight, layers, fold)
	}
	packs := 0
	for _, pack := range plan.Program.Packs {
		bytes := int64(4)
		switch {
		case strings.HasSuffix(pack.Weight, ".scale2"):
			bytes *= 2
		case !strings.HasSuffix(pack.Weight, ".scale"):
			continue
		}
		packs++
		if pack.Bytes != bytes {
			t.Errorf("pack %q has %d bytes, want %d", pack.Name, pack.Bytes, bytes)
		}
	}
	if seen < 5 || packs != seen {
		t.Errorf("%d scales and %d packs of them\n%s", seen, packs, planir.Dump(plan))
	}

	quantised := map[bool]int{}
	for _, graph := range plan.Program.Graphs {
		for _, node := range graph.Graph.Nodes {
			if node.Op.Kind == op.QuantRows {
				quantised[node.Op.Static]++
			}
		}
	}
	if quantised[true] == 0 || quantised[false] == 0 {
		t.Errorf("rows are quantised %v", quantised)
	}
}

// checkScaleWeight checks the weight of a product's static scales: two for attn_out, one for the others, and none for
// shared experts. layers counts those of each product.
func checkScaleWeight(t *testing.T, weight *op.Weight, layers map[string]int, fold string) {
	t.Helper()
	of := weight.ScaleOf
	scales := 1
	if strings.HasSuffix(of, ".attn_out") {
		scales = 2
	}
	if weight.Name != lower.ScaleWeight(of, scales) || weight.K != 1 || weight.N != scales {
		t.Errorf("%+v, want %d scales of %q", weight, scales, of)
	}
	if want, ok := layers[of]; !ok || weight.LayerCount() != want || weight.FoldRows != fold {
		t.Errorf("%+v, want %d layers and the fold %q", weight, want, fold)
	}
	if strings.Contains(of, "shared") {
		t.Errorf("%q has no static scale", of)
	}
}

// Whatever is decided, as long as shares respect the granularity, the lowered plan obeys every rule: in particular
// every read follows its write and no two lanes race. The models have experts, layers of several classes that take
// turns, biases, norms of heads, and blocks of several forms.
func TestAnyDecisionsLowerLegally(t *testing.T) {
	graphs := []*models.Graph{graph(t)}
	for _, name := range []string{
		"qwen2-moe-dense-layers-fused", "gemma2-caps", "olmoe-plain", "phi-partial", "qwen3-bias-window",
		"phimoe-default",
	} {
		graphs = append(graphs, graphOf(t, "../../testdata/arch/"+name))
	}
	rapid.Check(t, func(rt *rapid.T) {
		graph := rapid.SampledFrom(graphs).Draw(rt, "model")
		first, second := rapid.SampledFrom(schemes).Draw(rt, "scheme"), rapid.SampledFrom(schemes).Draw(rt, "another")
		schemeOf := func(node string) op.Scheme { // two products may read one value in different schemes
			if strings.Contains(node, "up") || strings.Contains(node, "qkv") {
				return second
			}
			return first
		}
		atAnyRows := func(node string, _ int) op.Scheme { return schemeOf(node) }
		rows := []int{1, rapid.IntRange(2, 33).Draw(rt, "rows")}
		plan := planBy(t, graph, rows, atAnyRows)
		for i := range plan.Procs {
			plan.Procs[i].Fuses = rapid.Bool().Draw(rt, "fuses")
			plan.Procs[i].FusesGLU = rapid.Bool().Draw(rt, "fuses a GLU")
		}
		batch := graph.Batch()
		if size := rapid.IntRange(1, 6).Draw(rt, "batch"); size > 1 && size != rows[1] {
			plan.Batches = []int{size}
			more, err := lower.Trivial(&batch, "a", plan.Batches, plan.MaxContext, plan.KV, atAnyRows)
			if err != nil {
				rt.Fatal(err)
			}
			plan.Decisions = append(plan.Decisions, more...)
		}

		nodes := map[string]*lower.Node{}
		add := func(of *models.Graph, rows int) {
			sections, err := lower.Expand(of, rows, plan.MaxContext, plan.KV, schemeOf, nil, nil)
			if err != nil {
				rt.Fatal(err)
			}
			for _, section := range sections {
				for i := range section.Nodes {
					nodes[section.Nodes[i].Name+"@"+strconv.Itoa(rows)] = &section.Nodes[i]
				}
			}
		}
		for _, count := range rows {
			add(graph, count)
		}
		for _, count := range plan.Batches {
			add(&batch, count)
		}
		for i := range plan.Decisions {
			decision := &plan.Decisions[i]
			drawShares(rt, plan, decision, nodes[decision.Node+"@"+strconv.Itoa(decision.Rows)])
		}

		if err := lower.Lower(plan, graph); err != nil {
			rt.Fatal(err)
		}
		if err := planir.Check(plan).Err(); err != nil {
			rt.Fatalf("%v\n%s", err, planir.Dump(plan))
		}
	})
}

// drawShares divides a decision at random along an axis, between up to three processors, or leaves it whole.
func drawShares(rt *rapid.T, plan *planir.Plan, decision *planir.Decision, node *lower.Node) {
	axis := rapid.SampledFrom([]planir.Axis{planir.AxisNone, planir.AxisCols, planir.AxisRows, planir.AxisK,
		planir.AxisHeads}).Draw(rt, "axis")
	length, err := lower.AxisLength(node, axis)
	procs := rapid.Permutation([]string{"a", "b", "c"}).Draw(rt, "processors")
	decision.Shares[0].Proc = procs[0]
	if rapid.IntRange(0, 3).Draw(rt, "pad") == 0 {
		decision.Shares[0].PadRows = node.Op().M + rapid.IntRange(0, 5).Draw(rt, "more")
	}
	if err != nil || axis == planir.AxisNone {
		return
	}

	// not for a processor that writes whole buffers only
	if (axis == planir.AxisHeads || inPlace(node)) && decision.Rows > 1 {
		procs = slices.DeleteFunc(procs, func(name string) bool { return name == "c" })
	}
	unit := max(lower.Granularity(node, axis, &plan.Procs[0]), lower.Granularity(node, axis, &plan.Procs[2]))
	parts := min(rapid.IntRange(1, len(procs)).Draw(rt, "parts"), (length+unit-1)/unit)
	decision.Axis, decision.Shares = axis, nil
	at := 0
	for part := range parts {
		left := (length-at+unit-1)/unit - (parts - part - 1)
		to := at + unit*rapid.IntRange(1, left).Draw(rt, "length")
		if part == parts-1 || to > length {
			to = length
		}
		decision.Shares = append(decision.Shares, planir.Share{Proc: procs[part], From: at, To: to})
		at = to
	}
}

// The embedding of a tied model can read the packed matrix of the head: one copy serves both, whoever executes them.
func TestPackedTable(t *testing.T) {
	graph := graph(t)
	planned, err := withPackedTable(t, graph, func(p *planir.Plan) {
		head := p.DecisionFor("head.lm_head", 1)
		head.Axis = planir.AxisCols
		head.Shares = []planir.Share{{Proc: "a", To: 64}, {Proc: "b", From: 64, To: 2048}}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := tablePacks(planned); !slices.Equal(got, []string{"head.lm_head/q8c.n32"}) {
		t.Errorf("packed as %q, want one copy", got)
	}
	if memory := planir.MemoryOf(planned); memory.Tables != 0 {
		t.Errorf("%d bytes of tables beside the weights", memory.Tables)
	}

	// So it can where the head has 6 bits.
	planned, err = withPackedTable(t, graph, func(planned *planir.Plan) {
		for i := range planned.Procs {
			planned.Procs[i].Schemes = append(slices.Clone(planned.Procs[i].Schemes), op.A8TQ6C)
			planned.Procs[i].Layouts = map[string]string{"q8c": "n32", "q6c": "n32", "w32": "n32"}
		}
		for i := range planned.Decisions {
			switch decision := &planned.Decisions[i]; decision.Node {
			case "embed.embed":
				decision.Scheme = op.I32Q6C
			case "head.lm_head":
				decision.Scheme = op.A8TQ6C
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	got := tablePacks(planned)
	if !slices.Equal(got, []string{"head.lm_head/q6c.n32"}) || planir.MemoryOf(planned).Tables != 0 {
		t.Errorf("packed as %q, want one copy in 6 bits", got)
	}

	// A processor that owns its copies has one more.
	planned, err = withPackedTable(t, graph, func(p *planir.Plan) {
		p.DecisionFor("embed.embed", 1).Shares[0].Proc = "c"
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := tablePacks(planned); len(got) != 2 || planir.MemoryOf(planned).Tables == 0 {
		t.Errorf("packed as %q, want a copy of the other processor's", got)
	}
}

// withPackedTable is a lowered plan whose embedding reads a packed matrix on the processor b, changed before.
func withPackedTable(t *testing.T, graph *models.Graph, change func(p *planir.Plan)) (*planir.Plan, error) {
	t.Helper()
	planned := plan(t, graph, []int{1, 16}, op.A8TQ8C)
	for i := range planned.Decisions {
		if decision := &planned.Decisions[i]; decision.Node == "embed.embed" {
			decision.Scheme, decision.Shares[0].Proc = op.I32Q8C, "b"
		}
	}
	change(planned)
	if err := lower.Lower(planned, graph); err != nil {
		return nil, err
	}
	return planned, planir.Check(planned).Err()
}

// tablePacks names the packs of the embedding and the head.
func tablePacks(plan *planir.Plan) (names []string) {
	for _, pack := range plan.Program.Packs {
		if strings.HasPrefix(pack.Name, "head.lm_head") || strings.HasPrefix(pack.Name, "embed") {
			names = append(names, pack.Name)
		}
	}
	return names
}

// A table that cannot be read packed is refused with the reason.
func TestPackedTableRefused(t *testing.T) {
	tied := graph(t)
	for name, test := range map[string]struct {
		change func(p *planir.Plan)
		want   string
	}{
		"no tiles": {func(p *planir.Plan) { p.Procs[1].Layouts = map[string]string{"q8c": "rows"} },
			`does not read weights "q8c" in layout "n32"`},
		"folded": {func(p *planir.Plan) { p.Folds = []string{"head.norm"} },
			`changed by the fold "head.norm"`},
		"a matmul's": {func(p *planir.Plan) { p.DecisionFor("embed.embed", 1).Scheme = op.A8TQ8C },
			`scheme "a8t/q8c", and "embed" takes none`},
		"of a matmul": {func(p *planir.Plan) { p.DecisionFor("layers.qkv", 1).Scheme = op.I32Q8C }, "i32/q8c"},
		"one that has one": {func(p *planir.Plan) { p.DecisionFor("layers.attn_norm", 1).Scheme = op.A8TQ8C },
			`and "norm" takes none`},
	} {
		_, err := withPackedTable(t, tied, test.change)
		if diag.ClassOf(err) != diag.ClassIllegal || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an illegal plan: %q", name, err, test.want)
		}
	}

	untied := graphOf(t, "../../testdata/arch/olmoe-plain")
	_, err := withPackedTable(t, untied, func(*planir.Plan) {})
	if err == nil || !strings.Contains(err.Error(), "no weight of a product holds the same matrix") {
		t.Errorf("a model with two matrices: %v", err)
	}
}

// inPlace reports whether a node writes a value that it reads.
func inPlace(node *lower.Node) bool {
	return slices.ContainsFunc(node.Out, func(value string) bool { return slices.Contains(node.In, value) })
}

// The steps of a node are exactly its pieces, with their operators: what is priced is executed.
func TestStepsArePieces(t *testing.T) {
	graph := graph(t)
	planned := plan(t, graph, []int{1, 16}, op.A32W32)
	decision := planned.DecisionFor("layers.ffn_down", 16)
	decision.Axis, decision.Strategy = planir.AxisK, planir.Paired
	decision.Shares = []planir.Share{{Proc: "b", To: 256}, {Proc: "a", From: 256, To: 512},
		{Proc: "c", From: 512, To: 768}}
	if err := lower.Lower(planned, graph); err != nil {
		t.Fatal(err)
	}
	schemeOf := func(string) op.Scheme { return op.A32W32 }
	sections, err := lower.Expand(graph, 16, planned.MaxContext, planned.KV, schemeOf, nil, nil)
	if err != nil {
		t.Fatal(err)
	}

	var want []string
	for i := range sections[1].Nodes {
		node := &sections[1].Nodes[i]
		if node.Name != decision.Node {
			continue
		}
		pieces, err := lower.Cut(&sections[1], node, decision, planned.Proc)
		if err != nil {
			t.Fatal(err)
		}
		for _, piece := range pieces {
			want = append(want, piece.Proc+" "+piece.Op().Key())
		}
	}
	var got []string
	for _, lane := range planned.Program.Programs[1].Sections[1].Lanes {
		for _, step := range lane.Steps {
			for i, name := range step.Nodes() {
				if name != decision.Node {
					continue
				}
				for _, made := range planned.Program.Graphs {
					if made.Name == step.Run {
						got = append(got, lane.Proc+" "+made.Graph.Nodes[i].Op.Key())
					}
				}
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if len(want) != 5 || !slices.Equal(got, want) {
		t.Fatalf("steps %v, pieces %v", got, want)
	}
}

// Decisions that cannot be lowered are refused with the reason.
func TestLowerRefuses(t *testing.T) {
	graph := graph(t)
	down := func(p *planir.Plan) *planir.Decision { return p.DecisionFor("layers.ffn_down", 16) }
	for name, test := range map[string]struct {
		change func(p *planir.Plan)
		want   string
	}{
		"no decode": {func(p *planir.Plan) {
			p.Decisions = slices.DeleteFunc(p.Decisions, func(d planir.Decision) bool { return d.Rows == 1 })
		}, "no decisions for one row"},
		"missing decision": {func(p *planir.Plan) { down(p).Node = "layers.other" },
			`no decision for "layers.ffn_down" at 16 rows`},
		"no shares": {func(p *planir.Plan) { down(p).Shares = nil }, "no shares"},
		"gap": {func(p *planir.Plan) {
			decision := down(p)
			decision.Axis = planir.AxisCols
			decision.Shares = []planir.Share{{Proc: "a", To: 64}, {Proc: "b", From: 96, To: 256}}
		}, "want a start of 64"},
		"empty share in front": {func(p *planir.Plan) {
			decision := down(p)
			decision.Axis = planir.AxisCols
			decision.Shares = []planir.Share{{Proc: "a"}, {Proc: "b", To: 256}}
		}, "share of \"a\" is 0..0"},
		"empty share behind": {func(p *planir.Plan) {
			decision := down(p)
			decision.Axis = planir.AxisRows
			decision.Shares = []planir.Share{{Proc: "a", To: 16}, {Proc: "b", From: 16, To: 16}}
		}, "share of \"b\" is 16..16"},
		"short": {func(p *planir.Plan) {
			decision := down(p)
			decision.Axis = planir.AxisCols
			decision.Shares = []planir.Share{{Proc: "a", To: 64}}
		}, "end at 64, want 256"},
		"off the tiles": {func(p *planir.Plan) {
			decision := down(p)
			decision.Axis = planir.AxisCols
			decision.Shares = []planir.Share{{Proc: "a", To: 48}, {Proc: "b", From: 48, To: 256}}
		}, "not a multiple of 32"},
		"unknown processor": {func(p *planir.Plan) { down(p).Shares[0].Proc = "z" }, `unknown processor "z"`},
		"heads of a matmul": {func(p *planir.Plan) { down(p).Axis = planir.AxisHeads },
			`cannot be divided along "heads"`},
		"attention by rows": {func(p *planir.Plan) { p.DecisionFor("layers.attention", 16).Axis = planir.AxisRows },
			"cache of earlier rows"},
		"pad too small": {func(p *planir.Plan) { down(p).Shares[0].PadRows = 8 }, "padded to 8, want at least 16"},
		"pad over the next share": {func(p *planir.Plan) {
			decision := down(p)
			decision.Axis = planir.AxisRows
			decision.Shares = []planir.Share{{Proc: "a", To: 8, PadRows: 12}, {Proc: "b", From: 8, To: 16}}
		}, "would overwrite the next share's"},
		"unknown scheme": {func(p *planir.Plan) { down(p).Scheme = "a8t/q2" }, "a8t/q2"},
		"scheme missing": {func(p *planir.Plan) { p.Procs[0].Schemes = []op.Scheme{op.A8TQ8C} },
			`does not execute scheme "a32/w32"`},
		"kind missing":   {func(p *planir.Plan) { p.Procs[0].Kinds = []op.Kind{op.MatMul} }, "does not execute"},
		"layout missing": {func(p *planir.Plan) { p.Procs[0].Layouts = nil }, "no layout"},
		"no strides": {func(planned *planir.Plan) {
			planned.Procs[0].StridedOutput = false
			decision := down(planned)
			decision.Axis, decision.Shares = planir.AxisCols, []planir.Share{{Proc: "a", To: 256}}
			decision.Shares = []planir.Share{{Proc: "a", To: 64}, {Proc: "a", From: 64, To: 256}}
		}, "no processor of the decision could gather it"},
		"no strided input": {func(planned *planir.Plan) {
			planned.Procs[1].StridedInput = false
			d := down(planned)
			d.Axis, d.Shares = planir.AxisK, []planir.Share{{Proc: "a", To: 64}, {Proc: "b", From: 64, To: 768}}
		}, "reads whole buffers only"},
		"sums on a processor without add": {func(planned *planir.Plan) {
			planned.Procs[2].Kinds = []op.Kind{op.MatMul}
			d := down(planned)
			d.Axis, d.Shares = planir.AxisK, []planir.Share{{Proc: "c", To: 64}, {Proc: "b", From: 64, To: 768}}
		}, "sums what the shares computed"},
	} {
		planned := plan(t, graph, []int{1, 16}, op.A32W32)
		test.change(planned)
		err := lower.Lower(planned, graph)
		if err == nil || !strings.Contains(err.Error(), test.want) || diag.ClassOf(err) != diag.ClassIllegal {
			t.Errorf("%s: got %v, want an illegal plan: %q", name, err, test.want)
		}
	}
}

// Neighbours on the same rows of one processor are one step; nothing is lost, and a lane that waits for a value of
// theirs waits for their step.
func TestFuse(t *testing.T) {
	graph := graph(t)
	for name, change := range map[string]func(d *planir.Decision){
		"single": func(*planir.Decision) {},
		"pairs": func(decision *planir.Decision) {
			if decision.Node == "layers.attn_out" {
				decision.Axis, decision.Strategy = planir.AxisK, planir.Paired
				decision.Shares = []planir.Share{{Proc: "a", To: 128}, {Proc: "c", From: 128, To: 256}}
			}
		},
		"norm elsewhere": func(decision *planir.Decision) {
			if decision.Node == "layers.ffn_norm" {
				decision.Shares[0].Proc = "c"
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			planned := plan(t, graph, []int{1, 16}, op.A8TQ8C)
			for i := range planned.Decisions {
				change(&planned.Decisions[i])
			}
			if err := lower.Lower(planned, graph); err != nil {
				t.Fatal(err)
			}
			if err := planir.Check(planned).Err(); err != nil {
				t.Fatal(err)
			}

			got := map[string]string{}
			for _, lane := range planned.Program.Programs[0].Sections[1].Lanes {
				for _, step := range lane.Steps {
					for _, node := range step.Nodes() {
						got[node] = lane.Proc + " " + step.Node
					}
				}
			}
			sections, err := lower.Expand(graph, 1, planned.MaxContext, planned.KV,
				func(string) op.Scheme { return op.A8TQ8C }, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, node := range sections[1].Nodes {
				if got[node.Name] == "" {
					t.Errorf("no step executes %s", node.Name)
				}
			}

			want := map[string]string{
				"layers.attn_norm": "a layers.attn_norm+layers.qkv_quant",
				"layers.ffn_act":   "a layers.ffn_act+layers.ffn_down_quant",
				"layers.ffn_norm":  "a layers.attn_add+layers.ffn_norm+layers.ffn_gate_up_quant",
			}
			switch name {
			case "pairs":
				want["layers.ffn_norm"] = "a layers.attn_out+layers.attn_add+layers.ffn_norm+layers.ffn_gate_up_quant"
			case "norm elsewhere":
				want["layers.ffn_norm"] = "c layers.ffn_norm"
				want["layers.attn_add"] = "a layers.attn_add"
			}
			for node, step := range want {
				if got[node] != step {
					t.Errorf("%s is executed by %q, want %q", node, got[node], step)
				}
			}
		})
	}
}

// A processor that fuses has products and what surrounds them in one step, and what nobody else reads in no buffer.
// Nobody waits longer for it: what another processor reads ends a step, and so does what one has written begin one.
func TestFuseProducts(t *testing.T) {
	graph := graph(t)
	const (
		front = "attn_norm+qkv_quant+qkv: x > qkv"
		out   = "attn_out_quant+attn_out+attn_add+ffn_norm+ffn_gate_up_quant"
		back  = "ffn_act+ffn_down_quant+ffn_down+ffn_add"
	)
	matrixBytes := func(name string) int64 {
		isNamed := func(weight op.Weight) bool { return strings.HasSuffix(weight.Name, name) }
		weight := graph.Weights[slices.IndexFunc(graph.Weights, isNamed)]
		return op.WeightBytes("q8c", weight.K, weight.N)
	}
	for name, test := range map[string]struct {
		change func(p *planir.Plan, d *planir.Decision)
		want   []string // steps of a layer on processor c
	}{
		"everything but attention": {func(*planir.Plan, *planir.Decision) {},
			[]string{front, out + "+ffn_gate_up+" + back + ": o x > x"}},
		"a product in two": {func(p *planir.Plan, decision *planir.Decision) {
			if decision.Node == "layers.ffn_gate_up" {
				decision.Axis, decision.Strategy = planir.AxisRows, planir.ActivationDivide
				decision.Shares = []planir.Share{{Proc: "c", To: 8}, {Proc: "b", From: 8, To: 16}}
			}
		}, []string{front, out + ": o x > x h.q h.s", "ffn_gate_up: h.q h.s > g", back + ": g x > x"}},
		"a sum that waits": {func(p *planir.Plan, decision *planir.Decision) {
			if decision.Node == "layers.ffn_norm" {
				decision.Shares[0].Proc = "b"
			}
		}, []string{front, "attn_out_quant+attn_out+attn_add: o x > x", "ffn_gate_up_quant+ffn_gate_up+" +
			back + ": h x > x"}},
		"small graphs": {func(planned *planir.Plan, _ *planir.Decision) {
			planned.Procs[2].GraphBytes = matrixBytes("ffn_gate_up")
		},
			[]string{front, out + ": o x > x h.q h.s", "ffn_gate_up+ffn_act+ffn_down_quant: h.q h.s > a.q a.s",
				"ffn_down+ffn_add: a.q a.s x > x"}},
	} {
		t.Run(name, func(t *testing.T) {
			planned := plan(t, graph, []int{1, 16}, op.A8TQ8C)
			planned.Procs[2].Fuses, planned.Procs[2].DynamicRows = true, false
			for i := range planned.Decisions {
				decision := &planned.Decisions[i]
				if !strings.HasPrefix(decision.Node, "layers.") || decision.Node == "layers.attention" {
					continue
				}
				decision.Shares[0].Proc = "c"
				if decision.Rows == 16 {
					test.change(planned, decision)
				}
			}
			if err := lower.Lower(planned, graph); err != nil {
				t.Fatal(err)
			}
			if err := planir.Check(planned).Err(); err != nil {
				t.Fatal(err)
			}
			got := stepsWithBuffers(planned, "c")
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q\nwant %q", got, test.want)
			}
			isInside := func(buffer planir.Buffer) bool { return buffer.Name == "a" || buffer.Name == "h.q" }
			if name == "everything but attention" && slices.ContainsFunc(planned.Program.Buffers, isInside) {
				t.Errorf("what stays inside has memory: %v", planned.Program.Buffers)
			}
		})
	}
}

// A processor that fuses a GLU has it in one step with the product before it, and what is between them in no buffer: if
// it computes all of both.
func TestFuseGLU(t *testing.T) {
	graph := graph(t)
	for name, test := range map[string]struct {
		change func(d *planir.Decision)
		want   []string // steps of processor a with the product and the unit
	}{
		"both": {func(*planir.Decision) {}, []string{"ffn_gate_up+ffn_act: h.q h.s > a"}},
		"a unit elsewhere": {func(decision *planir.Decision) {
			if decision.Node == "layers.ffn_act" {
				decision.Shares[0].Proc = "b"
			}
		}, []string{"ffn_gate_up: h.q h.s > g"}},
		"a product in two": {func(decision *planir.Decision) {
			if decision.Node == "layers.ffn_gate_up" {
				decision.Axis, decision.Strategy = planir.AxisRows, planir.ActivationDivide
				decision.Shares = []planir.Share{{Proc: "a", To: 8}, {Proc: "b", From: 8, To: 16}}
			}
		}, []string{"ffn_gate_up: h.q h.s > g", "ffn_act+ffn_down_quant: g > a a.q a.s"}},
	} {
		planned := plan(t, graph, []int{1, 16}, op.A8TQ8C)
		planned.Procs[0].FusesGLU = true
		for i := range planned.Decisions {
			if decision := &planned.Decisions[i]; decision.Rows == 16 {
				test.change(decision)
			}
		}
		if err := lower.Lower(planned, graph); err != nil {
			t.Fatal(err)
		}
		if err := planir.Check(planned).Err(); err != nil {
			t.Fatal(err)
		}

		var got []string
		for _, step := range stepsWithBuffers(planned, "a") {
			if strings.Contains(step, "ffn_gate_up:") || strings.Contains(step, "ffn_act") {
				got = append(got, step)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// Layers of two kinds have values of the same names. What a layer of one kind keeps inside a step, one of the other
// kind computes anew.
func TestFuseGLUInLayersOfTwoKinds(t *testing.T) {
	for _, dir := range []string{"gemma2-caps", "qwen3-bias-window", "qwen2-moe-dense-layers-fused"} {
		graph := graphOf(t, "../../testdata/arch/"+dir)
		planned := plan(t, graph, []int{1, 16}, op.A8TQ8C)
		planned.Procs[0].FusesGLU = true
		if err := lower.Lower(planned, graph); err != nil {
			t.Fatal(err)
		}
		if err := planir.Check(planned).Err(); err != nil {
			t.Fatal(err)
		}

		fused := 0
		for i := range planned.Program.Graphs {
			graph := &planned.Program.Graphs[i].Graph
			for j := range graph.Nodes[1:] {
				if !graph.Nodes[j].Op.GatedBy(&graph.Nodes[j+1].Op) {
					continue
				}
				fused++
				if !graph.EndsWithGLU(j) {
					t.Errorf("%s: %q holds what lies before its gated linear unit", dir, planned.Program.Graphs[i].Name)
				}
			}
		}
		if fused == 0 {
			t.Errorf("%s: no product ends with its gated linear unit", dir)
		}
	}
}

// stepsWithBuffers lists the steps of a layer on a processor in the program of prompts, with the buffers that they read
// and write.
func stepsWithBuffers(plan *planir.Plan, proc string) (steps []string) {
	for _, lane := range plan.Program.Programs[1].Sections[1].Lanes {
		if lane.Proc != proc {
			continue
		}
		for _, step := range lane.Steps {
			text := strings.ReplaceAll(step.Node, "layers.", "") + ":"
			for _, view := range step.In {
				text += " " + view.Buffer
			}
			text += " >"
			for _, view := range step.Out {
				text += " " + view.Buffer
			}
			steps = append(steps, text)
		}
	}
	return steps
}

// A share along K never cuts a block of weights that have one scale.
func TestGranularityOfBlocks(t *testing.T) {
	for _, test := range []struct {
		scheme     op.Scheme
		tile, want int
	}{
		{op.A32W32, 32, 32}, {op.A32W16, 0, 1}, {op.A8TQ4B32, 48, 96}, {op.A8TQ4B128, 32, 128},
		{op.A8TQ4B128, 48, 384}, {op.A8TQ4B128, 256, 256},
	} {
		node := &lower.Node{Ops: []op.Op{{Kind: op.MatMul, M: 1, K: 1024, N: 64, Scheme: test.scheme}}}
		proc := &planir.Proc{Set: capability.Set{Tile: capability.Tile{K: test.tile, N: 32}}}
		if got := lower.Granularity(node, planir.AxisK, proc); got != test.want {
			t.Errorf("%s, tiles of %d rows: shares of multiples of %d, want %d", test.scheme, test.tile, got, test.want)
		}
	}
}
