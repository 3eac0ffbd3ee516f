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
	m, err := models.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	g := m.Graph()
	return &g
}

func proc(name string, tile int, cores ...int) planir.Proc {
	return planir.Proc{
		Name: name, Kind: "cpu", Driver: "host", Cores: cores,
		Set: capability.Set{
			Tile: capability.Tile{K: tile, N: tile}, Schemes: schemes, Layouts: map[string]string{"q8c": "n32", "w32": "n32"},
			DynamicRows: true, StridedOutput: true, StridedInput: true, WeightRanges: true,
		},
	}
}

func plan(t testing.TB, g *models.Graph, rows []int, scheme op.Scheme) *planir.Plan {
	t.Helper()
	return planBy(t, g, rows, func(string) op.Scheme { return scheme })
}

func planBy(t testing.TB, g *models.Graph, rows []int, schemeOf func(node string) op.Scheme) *planir.Plan {
	t.Helper()
	p := &planir.Plan{
		Schema: planir.Schema, Model: planir.ModelRef{Name: "m"}, SoC: planir.SoCRef{Name: "s", Control: "a"},
		MaxContext: 64, KV: op.F32, Procs: []planir.Proc{proc("a", 32, 0), proc("b", 32, 1), proc("c", 64)},
		Inputs: []planir.Input{{Kind: planir.CalibrationInput, Digest: "d"}},
	}
	p.Procs[2].StridedOutput, p.Procs[2].WeightRanges = false, false // its column shares are gathered
	var err error
	p.Decisions, err = lower.Trivial(g, "a", rows, p.MaxContext, p.KV, func(node string, _ int) op.Scheme { return schemeOf(node) })
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// schemes are those that all processors execute.
var schemes = []op.Scheme{op.A32W32, op.A8TQ8C, op.A8SQ8C, op.A8S2Q8C}

// The head has one row in every bucket, and one decision, unless a bucket has it in another scheme.
func TestTrivialHeadInTwoSchemes(t *testing.T) {
	g := graphOf(t, "../../testdata/arch/llama-plain")
	p := plan(t, g, []int{1, 16, 32}, op.A8TQ8C)
	var err error
	p.Decisions, err = lower.Trivial(g, "a", []int{1, 16, 32}, p.MaxContext, p.KV, func(_ string, rows int) op.Scheme {
		if rows == 16 {
			return op.A32W32
		}
		return op.A8TQ8C
	})
	if err == nil {
		err = lower.Lower(p, g)
	}
	if err != nil {
		t.Fatal(err)
	}
	for rows, want := range map[int]op.Scheme{1: op.A8TQ8C, 16: op.A32W32, 32: ""} {
		got := op.Scheme("")
		if d := p.DecisionFor("head.lm_head", rows); d != nil {
			got = d.Scheme
		}
		if got != want {
			t.Errorf("head.lm_head@%d: got scheme %q, want %q", rows, got, want)
		}
	}
	if report := planir.Check(p); report.Err() != nil {
		t.Errorf("got %v, want a legal plan", report.Err())
	}
}

// Static scales are weights of their own, for every layer that has the product, changed by the folds that change what
// enters it; rows that are quantised in both ways are two values.
func TestStaticScales(t *testing.T) {
	g := graphOf(t, "../../testdata/arch/qwen2-moe-dense-layers-fused") // dense layers between others; two products of one input
	p := planBy(t, g, []int{1, 16}, func(node string) op.Scheme {
		if strings.Contains(node, "shared") {
			return op.A8TQ8C
		}
		if strings.HasSuffix(node, ".attn_out") {
			return op.A8S2Q8C
		}
		return op.A8SQ8C
	})
	p.Folds = []string{"layers.attn_norm"}
	folds := g.Folds()
	if i := slices.IndexFunc(folds, func(f models.FoldGroup) bool { return f.Name == p.Folds[0] }); i < 0 || !slices.Contains(folds[i].Readers, "layers.qkv") {
		t.Fatalf("folds %v", folds)
	}
	if err := lower.Lower(p, g); err != nil {
		t.Fatal(err)
	}
	if err := planir.Check(p).Err(); err != nil {
		t.Fatal(err)
	}
	layers := map[string]int{}
	for _, s := range g.Sections {
		for _, n := range s.Nodes {
			if len(n.Ops) == 1 && n.Ops[0].HasScheme() && !n.Exact {
				layers[s.Name+"."+n.Name] += s.Layers
			}
		}
	}
	seen := 0
	for _, w := range p.Program.Weights {
		if w.ScaleOf == "" {
			continue
		}
		seen++
		fold := ""
		if strings.HasSuffix(w.ScaleOf, ".qkv") {
			fold = p.Folds[0]
		}
		if want, ok := layers[w.ScaleOf]; !ok || w.Name != lower.ScaleWeight(w.ScaleOf, w.N) || w.K != 1 || (w.N == 2) != strings.HasSuffix(w.ScaleOf, ".attn_out") || w.LayerCount() != want || w.FoldRows != fold {
			t.Errorf("%+v, want %d layers and the fold %q", w, want, fold)
		}
		if strings.Contains(w.ScaleOf, "shared") {
			t.Errorf("%q has no static scale", w.ScaleOf)
		}
	}
	packs := 0
	for _, k := range p.Program.Packs {
		if several := strings.HasSuffix(k.Weight, ".scale2"); several || strings.HasSuffix(k.Weight, ".scale") {
			packs++
			if want := int64(4); k.Bytes != want && !several || several && k.Bytes != 2*want {
				t.Errorf("pack %q has %d bytes", k.Name, k.Bytes)
			}
		}
	}
	if seen < 5 || packs != seen {
		t.Errorf("%d scales and %d packs of them\n%s", seen, packs, planir.Dump(p))
	}
	quantised := map[bool]int{}
	for _, gr := range p.Program.Graphs {
		for _, n := range gr.Graph.Nodes {
			if n.Op.Kind == op.QuantRows {
				quantised[n.Op.Static]++
			}
		}
	}
	if quantised[true] == 0 || quantised[false] == 0 {
		t.Errorf("rows are quantised %v", quantised)
	}
}

// Whatever is decided, as long as shares respect the granularity, the lowered plan obeys every rule:
// in particular every read follows its write and no two lanes race. The models have experts, layers of
// several classes that take turns, biases, norms of heads, and blocks of several forms.
func TestAnyDecisionsLowerLegally(t *testing.T) {
	graphs := []*models.Graph{graph(t)}
	for _, name := range []string{"qwen2-moe-dense-layers-fused", "gemma2-caps", "olmoe-plain", "phi-partial", "qwen3-bias-window", "phimoe-default"} {
		graphs = append(graphs, graphOf(t, "../../testdata/arch/"+name))
	}
	rapid.Check(t, func(rt *rapid.T) {
		g := rapid.SampledFrom(graphs).Draw(rt, "model")
		first, second := rapid.SampledFrom(schemes).Draw(rt, "scheme"), rapid.SampledFrom(schemes).Draw(rt, "another")
		schemeOf := func(node string) op.Scheme { // two products may read one value in different schemes
			if strings.Contains(node, "up") || strings.Contains(node, "qkv") {
				return second
			}
			return first
		}
		rows := []int{1, rapid.IntRange(2, 33).Draw(rt, "rows")}
		p := planBy(t, g, rows, schemeOf)
		for i := range p.Procs {
			p.Procs[i].Fuses = rapid.Bool().Draw(rt, "fuses")
		}
		nodes := map[string]*lower.Node{}
		batch := g.Batch()
		if b := rapid.IntRange(1, 6).Draw(rt, "batch"); b > 1 && b != rows[1] {
			p.Batches, rows = []int{b}, append(rows, b)
			more, err := lower.Trivial(&batch, "a", p.Batches, p.MaxContext, p.KV, func(node string, _ int) op.Scheme { return schemeOf(node) })
			if err != nil {
				rt.Fatal(err)
			}
			p.Decisions = append(p.Decisions, more...)
		}
		for i, r := range rows {
			of := g
			if i == 2 {
				of = &batch
			}
			sections, err := lower.Expand(of, r, p.MaxContext, p.KV, schemeOf, nil, nil)
			if err != nil {
				rt.Fatal(err)
			}
			for _, s := range sections {
				for i := range s.Nodes {
					nodes[s.Nodes[i].Name+"@"+strconv.Itoa(r)] = &s.Nodes[i]
				}
			}
		}
		for i := range p.Decisions {
			d := &p.Decisions[i]
			n := nodes[d.Node+"@"+strconv.Itoa(d.Rows)]
			axis := rapid.SampledFrom([]planir.Axis{planir.AxisNone, planir.AxisCols, planir.AxisRows, planir.AxisK, planir.AxisHeads}).Draw(rt, "axis")
			length, err := lower.AxisLength(n, axis)
			who := rapid.Permutation([]string{"a", "b", "c"}).Draw(rt, "processors")
			d.Shares[0].Proc = who[0]
			if rapid.IntRange(0, 3).Draw(rt, "pad") == 0 {
				d.Shares[0].PadRows = n.Op().M + rapid.IntRange(0, 5).Draw(rt, "more")
			}
			if err != nil || axis == planir.AxisNone {
				continue
			}
			if (axis == planir.AxisHeads || inPlace(n)) && d.Rows > 1 { // not for a processor that writes whole buffers only
				who = slices.DeleteFunc(who, func(p string) bool { return p == "c" })
			}
			unit := max(lower.Granularity(n, axis, &p.Procs[0]), lower.Granularity(n, axis, &p.Procs[2]))
			parts := min(rapid.IntRange(1, len(who)).Draw(rt, "parts"), (length+unit-1)/unit)
			d.Axis, d.Shares = axis, nil
			at := 0
			for k := range parts {
				left := (length-at+unit-1)/unit - (parts - k - 1)
				to := at + unit*rapid.IntRange(1, left).Draw(rt, "length")
				if k == parts-1 || to > length {
					to = length
				}
				d.Shares = append(d.Shares, planir.Share{Proc: who[k], From: at, To: to})
				at = to
			}
		}
		if err := lower.Lower(p, g); err != nil {
			rt.Fatal(err)
		}
		if err := planir.Check(p).Err(); err != nil {
			rt.Fatalf("%v\n%s", err, planir.Dump(p))
		}
	})
}

// The embedding of a tied model can read the packed matrix of the head: one copy serves both, whoever executes them.
func TestPackedTable(t *testing.T) {
	g := graph(t)
	packed := func(change func(p *planir.Plan)) (*planir.Plan, error) {
		p := plan(t, g, []int{1, 16}, op.A8TQ8C)
		for i := range p.Decisions {
			if d := &p.Decisions[i]; d.Node == "embed.embed" {
				d.Scheme, d.Shares[0].Proc = op.I32Q8C, "b"
			}
		}
		change(p)
		if err := lower.Lower(p, g); err != nil {
			return nil, err
		}
		return p, planir.Check(p).Err()
	}
	packs := func(p *planir.Plan) (names []string) {
		for _, k := range p.Program.Packs {
			if strings.HasPrefix(k.Name, "head.lm_head") || strings.HasPrefix(k.Name, "embed") {
				names = append(names, k.Name)
			}
		}
		return names
	}
	p, err := packed(func(p *planir.Plan) {
		d := p.DecisionFor("head.lm_head", 1)
		d.Axis, d.Shares = planir.AxisCols, []planir.Share{{Proc: "a", To: 64}, {Proc: "b", From: 64, To: 2048}}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := packs(p); !slices.Equal(got, []string{"head.lm_head/q8c.n32"}) {
		t.Errorf("packed as %q, want one copy", got)
	}
	if m := planir.MemoryOf(p); m.Tables != 0 {
		t.Errorf("%d bytes of tables beside the weights", m.Tables)
	}
	// So it can where the head has 6 bits.
	p, err = packed(func(p *planir.Plan) {
		for i := range p.Procs {
			p.Procs[i].Schemes = append(slices.Clone(p.Procs[i].Schemes), op.A8TQ6C)
			p.Procs[i].Layouts = map[string]string{"q8c": "n32", "q6c": "n32", "w32": "n32"}
		}
		for i := range p.Decisions {
			switch d := &p.Decisions[i]; d.Node {
			case "embed.embed":
				d.Scheme = op.I32Q6C
			case "head.lm_head":
				d.Scheme = op.A8TQ6C
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := packs(p); !slices.Equal(got, []string{"head.lm_head/q6c.n32"}) || planir.MemoryOf(p).Tables != 0 {
		t.Errorf("packed as %q, want one copy in 6 bits", got)
	}
	// A processor that owns its copies has one more.
	p, err = packed(func(p *planir.Plan) {
		p.DecisionFor("embed.embed", 1).Shares[0].Proc = "c"
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := packs(p); len(got) != 2 || planir.MemoryOf(p).Tables == 0 {
		t.Errorf("packed as %q, want a copy of the other processor's", got)
	}
	for name, c := range map[string]struct {
		change func(p *planir.Plan)
		want   string
	}{
		"no tiles":         {func(p *planir.Plan) { p.Procs[1].Layouts = map[string]string{"q8c": "rows"} }, `does not read weights "q8c" in layout "n32"`},
		"folded":           {func(p *planir.Plan) { p.Folds = []string{"head.norm"} }, `changed by the fold "head.norm"`},
		"a matmul's":       {func(p *planir.Plan) { p.DecisionFor("embed.embed", 1).Scheme = op.A8TQ8C }, `scheme "a8t/q8c", and "embed" takes none`},
		"of a matmul":      {func(p *planir.Plan) { p.DecisionFor("layers.qkv", 1).Scheme = op.I32Q8C }, "i32/q8c"},
		"one that has one": {func(p *planir.Plan) { p.DecisionFor("layers.attn_norm", 1).Scheme = op.A8TQ8C }, `and "norm" takes none`},
	} {
		if _, err := packed(c.change); err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) != diag.ClassIllegal {
			t.Errorf("%s: got %v, want an illegal plan: %q", name, err, c.want)
		}
	}
	g = graphOf(t, "../../testdata/arch/olmoe-plain")
	if _, err := packed(func(*planir.Plan) {}); err == nil || !strings.Contains(err.Error(), "no weight of a product holds the same matrix") {
		t.Errorf("a model with two matrices: %v", err)
	}
}

// inPlace reports whether a node writes a value that it reads.
func inPlace(n *lower.Node) bool {
	return slices.ContainsFunc(n.Out, func(v string) bool { return slices.Contains(n.In, v) })
}

// The steps of a node are exactly its pieces, with their operators: what is priced is executed.
func TestStepsArePieces(t *testing.T) {
	g := graph(t)
	p := plan(t, g, []int{1, 16}, op.A32W32)
	d := p.DecisionFor("layers.ffn_down", 16)
	d.Axis, d.Strategy = planir.AxisK, planir.Paired
	d.Shares = []planir.Share{{Proc: "b", To: 256}, {Proc: "a", From: 256, To: 512}, {Proc: "c", From: 512, To: 768}}
	if err := lower.Lower(p, g); err != nil {
		t.Fatal(err)
	}
	sections, err := lower.Expand(g, 16, p.MaxContext, p.KV, func(string) op.Scheme { return op.A32W32 }, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i, n := range sections[1].Nodes {
		if n.Name == d.Node {
			pieces, err := lower.Cut(&sections[1], &sections[1].Nodes[i], d, p.Proc)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range pieces {
				want = append(want, c.Proc+" "+c.Op().Key())
			}
		}
	}
	var got []string
	for _, l := range p.Program.Programs[1].Sections[1].Lanes {
		for _, st := range l.Steps {
			for i, name := range st.Nodes() {
				if name != d.Node {
					continue
				}
				for _, gr := range p.Program.Graphs {
					if gr.Name == st.Run {
						got = append(got, l.Proc+" "+gr.Graph.Nodes[i].Op.Key())
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

func TestLowerRefuses(t *testing.T) {
	g := graph(t)
	down := func(p *planir.Plan) *planir.Decision { return p.DecisionFor("layers.ffn_down", 16) }
	for name, c := range map[string]struct {
		change func(p *planir.Plan)
		want   string
	}{
		"no decode": {func(p *planir.Plan) {
			p.Decisions = slices.DeleteFunc(p.Decisions, func(d planir.Decision) bool { return d.Rows == 1 })
		}, "no decisions for one row"},
		"missing decision": {func(p *planir.Plan) { down(p).Node = "layers.other" }, `no decision for "layers.ffn_down" at 16 rows`},
		"no shares":        {func(p *planir.Plan) { down(p).Shares = nil }, "no shares"},
		"gap": {func(p *planir.Plan) {
			d := down(p)
			d.Axis = planir.AxisCols
			d.Shares = []planir.Share{{Proc: "a", To: 64}, {Proc: "b", From: 96, To: 256}}
		}, "want a start of 64"},
		"empty share in front": {func(p *planir.Plan) {
			d := down(p)
			d.Axis = planir.AxisCols
			d.Shares = []planir.Share{{Proc: "a"}, {Proc: "b", To: 256}}
		}, "share of \"a\" is 0..0"},
		"empty share behind": {func(p *planir.Plan) {
			d := down(p)
			d.Axis = planir.AxisRows
			d.Shares = []planir.Share{{Proc: "a", To: 16}, {Proc: "b", From: 16, To: 16}}
		}, "share of \"b\" is 16..16"},
		"short": {func(p *planir.Plan) {
			d := down(p)
			d.Axis = planir.AxisCols
			d.Shares = []planir.Share{{Proc: "a", To: 64}}
		}, "end at 64, want 256"},
		"off the tiles": {func(p *planir.Plan) {
			d := down(p)
			d.Axis = planir.AxisCols
			d.Shares = []planir.Share{{Proc: "a", To: 48}, {Proc: "b", From: 48, To: 256}}
		}, "not a multiple of 32"},
		"unknown processor": {func(p *planir.Plan) { down(p).Shares[0].Proc = "z" }, `unknown processor "z"`},
		"heads of a matmul": {func(p *planir.Plan) { down(p).Axis = planir.AxisHeads }, `cannot be divided along "heads"`},
		"attention by rows": {func(p *planir.Plan) { p.DecisionFor("layers.attention", 16).Axis = planir.AxisRows }, "cache of earlier rows"},
		"pad too small":     {func(p *planir.Plan) { down(p).Shares[0].PadRows = 8 }, "padded to 8, want at least 16"},
		"pad over the next share": {func(p *planir.Plan) {
			d := down(p)
			d.Axis = planir.AxisRows
			d.Shares = []planir.Share{{Proc: "a", To: 8, PadRows: 12}, {Proc: "b", From: 8, To: 16}}
		}, "would overwrite the next share's"},
		"unknown scheme": {func(p *planir.Plan) { down(p).Scheme = "a8t/q2" }, "a8t/q2"},
		"scheme missing": {func(p *planir.Plan) { p.Procs[0].Schemes = []op.Scheme{op.A8TQ8C} }, `does not execute scheme "a32/w32"`},
		"kind missing":   {func(p *planir.Plan) { p.Procs[0].Kinds = []op.Kind{op.MatMul} }, "does not execute"},
		"layout missing": {func(p *planir.Plan) { p.Procs[0].Layouts = nil }, "no layout"},
		"no strides": {func(p *planir.Plan) {
			p.Procs[0].StridedOutput = false
			d := down(p)
			d.Axis, d.Shares = planir.AxisCols, []planir.Share{{Proc: "a", To: 256}}
			d.Shares = []planir.Share{{Proc: "a", To: 64}, {Proc: "a", From: 64, To: 256}}
		}, "no processor of the decision could gather it"},
		"no strided input": {func(p *planir.Plan) {
			p.Procs[1].StridedInput = false
			d := down(p)
			d.Axis, d.Shares = planir.AxisK, []planir.Share{{Proc: "a", To: 64}, {Proc: "b", From: 64, To: 768}}
		}, "reads whole buffers only"},
		"sums on a processor without add": {func(p *planir.Plan) {
			p.Procs[2].Kinds = []op.Kind{op.MatMul}
			d := down(p)
			d.Axis, d.Shares = planir.AxisK, []planir.Share{{Proc: "c", To: 64}, {Proc: "b", From: 64, To: 768}}
		}, "sums what the shares computed"},
	} {
		p := plan(t, g, []int{1, 16}, op.A32W32)
		c.change(p)
		err := lower.Lower(p, g)
		if err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) != diag.ClassIllegal {
			t.Errorf("%s: got %v, want an illegal plan: %q", name, err, c.want)
		}
	}
}

// Neighbours on the same rows of one processor are one step; nothing is lost, and a lane that waits for a value of
// theirs waits for their step.
func TestFuse(t *testing.T) {
	g := graph(t)
	for name, change := range map[string]func(d *planir.Decision){
		"single": func(*planir.Decision) {},
		"pairs": func(d *planir.Decision) {
			if d.Node == "layers.attn_out" {
				d.Axis, d.Strategy = planir.AxisK, planir.Paired
				d.Shares = []planir.Share{{Proc: "a", To: 128}, {Proc: "c", From: 128, To: 256}}
			}
		},
		"norm elsewhere": func(d *planir.Decision) {
			if d.Node == "layers.ffn_norm" {
				d.Shares[0].Proc = "c"
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(t, g, []int{1, 16}, op.A8TQ8C)
			for i := range p.Decisions {
				change(&p.Decisions[i])
			}
			if err := lower.Lower(p, g); err != nil {
				t.Fatal(err)
			}
			if err := planir.Check(p).Err(); err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			count := map[string]int{}
			for _, l := range p.Program.Programs[0].Sections[1].Lanes {
				for _, st := range l.Steps {
					for _, n := range st.Nodes() {
						got[n] = l.Proc + " " + st.Node
						count[n]++
					}
				}
			}
			sections, err := lower.Expand(g, 1, p.MaxContext, p.KV, func(string) op.Scheme { return op.A8TQ8C }, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range sections[1].Nodes {
				if count[n.Name] == 0 {
					t.Errorf("no step executes %s", n.Name)
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
			for n, step := range want {
				if got[n] != step {
					t.Errorf("%s is executed by %q, want %q", n, got[n], step)
				}
			}
		})
	}
}

// A processor that fuses has products and what surrounds them in one step, and what nobody else reads in no buffer. Nobody
// waits longer for it: what another processor reads ends a step, and so does what one has written begin one.
func TestFuseProducts(t *testing.T) {
	g := graph(t)
	const (
		front = "attn_norm+qkv_quant+qkv: x > qkv"
		out   = "attn_out_quant+attn_out+attn_add+ffn_norm+ffn_gate_up_quant"
		back  = "ffn_act+ffn_down_quant+ffn_down+ffn_add"
	)
	matrix := func(p *planir.Plan, weight string) int64 {
		for _, w := range g.Weights {
			if strings.HasSuffix(w.Name, weight) {
				return op.WeightBytes("q8c", w.K, w.N)
			}
		}
		t.Fatal(weight)
		return 0
	}
	for name, c := range map[string]struct {
		change func(p *planir.Plan, d *planir.Decision)
		want   []string // steps of a layer on processor c
	}{
		"everything but attention": {func(*planir.Plan, *planir.Decision) {}, []string{front, out + "+ffn_gate_up+" + back + ": o x > x"}},
		"a product in two": {func(p *planir.Plan, d *planir.Decision) {
			if d.Node == "layers.ffn_gate_up" {
				d.Axis, d.Strategy = planir.AxisRows, planir.ActivationDivide
				d.Shares = []planir.Share{{Proc: "c", To: 8}, {Proc: "b", From: 8, To: 16}}
			}
		}, []string{front, out + ": o x > x h.q h.s", "ffn_gate_up: h.q h.s > g", back + ": g x > x"}},
		"a sum that waits": {func(p *planir.Plan, d *planir.Decision) {
			if d.Node == "layers.ffn_norm" {
				d.Shares[0].Proc = "b"
			}
		}, []string{front, "attn_out_quant+attn_out+attn_add: o x > x", "ffn_gate_up_quant+ffn_gate_up+" + back + ": h x > x"}},
		"small graphs": {func(p *planir.Plan, d *planir.Decision) { p.Procs[2].GraphBytes = matrix(p, "ffn_gate_up") },
			[]string{front, out + ": o x > x h.q h.s", "ffn_gate_up+ffn_act+ffn_down_quant: h.q h.s > a.q a.s", "ffn_down+ffn_add: a.q a.s x > x"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(t, g, []int{1, 16}, op.A8TQ8C)
			p.Procs[2].Fuses, p.Procs[2].DynamicRows = true, false
			for i := range p.Decisions {
				if d := &p.Decisions[i]; strings.HasPrefix(d.Node, "layers.") && d.Node != "layers.attention" {
					if d.Shares[0].Proc = "c"; d.Rows == 16 {
						c.change(p, d)
					}
				}
			}
			if err := lower.Lower(p, g); err != nil {
				t.Fatal(err)
			}
			if err := planir.Check(p).Err(); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, l := range p.Program.Programs[1].Sections[1].Lanes {
				for _, st := range l.Steps {
					if l.Proc == "c" {
						text := strings.ReplaceAll(st.Node, "layers.", "") + ":"
						for _, v := range st.In {
							text += " " + v.Buffer
						}
						text += " >"
						for _, v := range st.Out {
							text += " " + v.Buffer
						}
						got = append(got, text)
					}
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q\nwant %q", got, c.want)
			}
			if name == "everything but attention" && slices.ContainsFunc(p.Program.Buffers, func(b planir.Buffer) bool { return b.Name == "a" || b.Name == "h.q" }) {
				t.Errorf("what stays inside has memory: %v", p.Program.Buffers)
			}
		})
	}
}

// A share along K never cuts a block of weights that have one scale.
func TestGranularityOfBlocks(t *testing.T) {
	for _, c := range []struct {
		scheme op.Scheme
		tile   int
		want   int
	}{{op.A32W32, 32, 32}, {op.A32W16, 0, 1}, {op.A8TQ4B32, 48, 96}, {op.A8TQ4B128, 32, 128}, {op.A8TQ4B128, 48, 384}, {op.A8TQ4B128, 256, 256}} {
		n := &lower.Node{Ops: []op.Op{{Kind: op.MatMul, M: 1, K: 1024, N: 64, Scheme: c.scheme}}}
		if got := lower.Granularity(n, planir.AxisK, &planir.Proc{Set: capability.Set{Tile: capability.Tile{K: c.tile, N: 32}}}); got != c.want {
			t.Errorf("%s, tiles of %d rows: shares of multiples of %d, want %d", c.scheme, c.tile, got, c.want)
		}
	}
}
