package planir_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/golden"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
)

func TestMain(m *testing.M) { os.Exit(golden.Main(m)) }

// testProcs are two CPU cores, both together, and an NPU-like processor that reads and writes whole
// buffers and owns a copy of every weight range.
func testProcs() []planir.Proc {
	host := func(name, sel string, cores ...int) planir.Proc {
		return planir.Proc{
			Name: name, Kind: "cpu", Driver: "host", Select: sel, Cores: cores,
			Set: capability.Set{
				Tile: capability.Tile{K: 32, N: 32}, Schemes: []op.Scheme{op.A32W32, op.A8TQ8C},
				Layouts:     map[string]string{"q8c": "n32", "w32": "n32"},
				DynamicRows: true, StridedOutput: true, StridedInput: true, WeightRanges: true,
			},
		}
	}
	npu := host("npu", "")
	npu.Kind, npu.Driver, npu.Tile.N, npu.Tile.K = "npu", "sim", 64, 64
	npu.DynamicRows, npu.StridedOutput, npu.StridedInput, npu.WeightRanges = false, false, false, false
	return []planir.Proc{host("a", "0", 0), host("ab", "0-1", 0, 1), host("b", "1", 1), npu}
}

// htp is the NPU, whose artifacts hold their weights.
func htp() planir.Proc {
	proc := testProcs()[3]
	proc.Name, proc.WeightsInArtifacts, proc.Shares = "htp", true, true
	return proc
}

// graph is the demo model's, cut down to two layers.
func graph(t testing.TB) *models.Graph {
	t.Helper()
	model, err := models.Open("../testdata/models/tiny-llama-kjv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	graph := model.Graph()
	for i := range graph.Sections {
		graph.Sections[i].Layers = min(graph.Sections[i].Layers, 2)
	}
	return &graph
}

// build lowers a plan for the given rows, negative ones a batch, in which everything runs on "a" but for the decisions
// that change replaces.
func build(t testing.TB, scheme op.Scheme, rows []int, change func(d *planir.Decision)) *planir.Plan {
	t.Helper()
	graph := graph(t)
	plan := &planir.Plan{
		Schema: planir.Schema, Model: planir.ModelRef{Name: "tiny", Digest: "model", BOS: 1, EOS: []int{2}},
		SoC:        planir.SoCRef{Name: "test", Digest: "soc", Control: "a"},
		MaxContext: 64, KV: op.F32, Procs: testProcs(),
	}
	batch := graph.Batch()
	for _, count := range rows {
		of := graph
		if count < 0 {
			count, of = -count, &batch
			plan.Batches = append(plan.Batches, count)
		}
		decisions, err := lower.Trivial(of, "a", []int{count}, plan.MaxContext, plan.KV,
			func(string, int) op.Scheme { return scheme })
		if err != nil {
			t.Fatal(err)
		}
		for _, decision := range decisions {
			if plan.DecisionFor(decision.Node, decision.Rows) == nil { // the head is decided at one row
				plan.Decisions = append(plan.Decisions, decision)
			}
		}
	}

	usesHTP := false
	for i := range plan.Decisions {
		if change != nil {
			change(&plan.Decisions[i])
		}
		usesHTP = usesHTP || strings.Contains(plan.Decisions[i].ShareText(), "htp")
	}
	if usesHTP {
		plan.Procs = slices.Insert(plan.Procs, 3, htp())
	}
	if err := lower.Lower(plan, graph); err != nil {
		t.Fatal(err)
	}
	return plan
}

// split divides a decision between two processors at a boundary.
func split(decision *planir.Decision, strategy planir.Strategy, axis planir.Axis, first string, at int, second string,
	end int) {
	decision.Strategy, decision.Axis = strategy, axis
	decision.Shares = []planir.Share{{Proc: first, To: at}, {Proc: second, From: at, To: end}}
}

// Ends of the axes of the demo model.
var columns = map[string]int{
	"layers.qkv": 512, "layers.attn_out": 256, "layers.ffn_gate_up": 1536, "layers.ffn_act": 768,
	"layers.ffn_down": 256, "layers.attn_add": 256, "layers.ffn_add": 256, "head.lm_head": 2048,
}

// shapes are plans with every kind of split, by name.
var shapes = map[string]struct {
	scheme op.Scheme
	rows   []int
	change func(d *planir.Decision)
}{
	"trivial": {op.A32W32, []int{1, 16}, nil},
	"columns": {op.A32W32, []int{1, 16}, func(d *planir.Decision) {
		if n, ok := columns[d.Node]; ok {
			split(d, planir.WeightCentric, planir.AxisCols, "a", n/2, "b", n)
		}
	}},
	"batch": {op.A8TQ8C, []int{1, 16, -4}, func(d *planir.Decision) {
		if n, ok := columns[d.Node]; ok {
			split(d, planir.WeightCentric, planir.AxisCols, "a", n/2, "b", n)
		}
	}},
	"rows": {op.A32W32, []int{1, 16}, func(d *planir.Decision) {
		if d.Rows > 1 && d.Node != "layers.attention" && d.Node != "head.head_select" {
			split(d, planir.ActivationDivide, planir.AxisRows, "b", 5, "a", 16)
		}
	}},
	"heads": {op.A32W32, []int{1, 16}, func(d *planir.Decision) {
		if d.Node == "layers.attention" {
			split(d, planir.WeightCentric, planir.AxisHeads, "a", 1, "b", 2)
		}
	}},
	"paired": {op.A32W32, []int{1, 16}, func(d *planir.Decision) {
		switch d.Node {
		case "layers.qkv":
			split(d, planir.WeightCentric, planir.AxisCols, "a", 256, "b", 512)
		case "layers.attention":
			split(d, planir.WeightCentric, planir.AxisHeads, "a", 1, "b", 2)
		case "layers.attn_out":
			split(d, planir.Paired, planir.AxisK, "a", 128, "b", 256)
		case "layers.ffn_gate_up":
			split(d, planir.WeightCentric, planir.AxisCols, "a", 512, "b", 1536)
		case "layers.ffn_act":
			split(d, planir.WeightCentric, planir.AxisCols, "a", 256, "b", 768)
		case "layers.ffn_down":
			split(d, planir.Paired, planir.AxisK, "a", 256, "b", 768)
		}
	}},
	"quantised": {op.A8TQ8C, []int{1, 16}, func(d *planir.Decision) {
		switch {
		case d.Node == "layers.qkv_quant" && d.Rows > 1:
			split(d, planir.ActivationDivide, planir.AxisRows, "a", 8, "b", 16)
		case columns[d.Node] > 0:
			split(d, planir.WeightCentric, planir.AxisCols, "b", 64, "a", columns[d.Node])
		}
	}},
	"padded": {op.A32W32, []int{1, 16}, func(d *planir.Decision) {
		if d.Node == "layers.ffn_down" && d.Rows > 1 {
			d.Strategy, d.Shares = planir.Padding, []planir.Share{{Proc: "npu", PadRows: 32}}
		}
		if d.Node == "head.lm_head" { // one row: columns are no stride
			split(d, planir.WeightCentric, planir.AxisCols, "npu", 1024, "a", 2048)
		}
	}},
	"hybrid": {op.A32W32, []int{1, 12}, func(d *planir.Decision) {
		if d.Node == "layers.ffn_gate_up" && d.Rows > 1 {
			split(d, planir.Hybrid, planir.AxisCols, "a", 512, "b", 1536)
			d.Shares[1].PadRows = 16
		}
	}},
	"gathered": {op.A32W32, []int{1, 16}, func(d *planir.Decision) {
		if d.Node == "layers.ffn_gate_up" { // at 16 rows the NPU cannot write its columns in place
			split(d, planir.WeightCentric, planir.AxisCols, "npu", 512, "a", 1536)
		}
		if d.Node == "layers.ffn_down" && d.Rows > 1 {
			split(d, planir.Hybrid, planir.AxisCols, "a", 64, "npu", 256)
			d.Shares[1].PadRows = 32
		}
	}},
	"artifacts": {op.A8TQ8C, []int{1, 16, 32}, func(d *planir.Decision) {
		switch d.Node {
		case "layers.qkv": // columns of one weight, an owner each
			split(d, planir.WeightCentric, planir.AxisCols, "htp", 256, "a", 512)
		case "layers.ffn_down":
			d.Shares = []planir.Share{{Proc: "htp"}}
			if d.Rows == 16 {
				d.Strategy, d.Shares[0].PadRows = planir.Padding, 24
			}
		case "layers.ffn_add", "head.lm_head", "layers.ffn_norm":
			d.Shares = []planir.Share{{Proc: "htp"}}
		}
	}},
	"three": {op.A32W32, []int{1, 16}, func(d *planir.Decision) {
		if d.Node == "layers.ffn_down" {
			d.Strategy, d.Axis = planir.Paired, planir.AxisK
			d.Shares = []planir.Share{{Proc: "b", To: 256}, {Proc: "npu", From: 256, To: 512},
				{Proc: "a", From: 512, To: 768}}
			if d.Rows > 1 { // the NPU reads whole buffers only
				d.Shares = []planir.Share{{Proc: "b", To: 256}, {Proc: "a", From: 256, To: 768}}
			}
		}
	}},
}

// A plan with any kind of split obeys all rules, is read back as it was written, and lowered to the same bytes again.
func TestEverySplitIsLegal(t *testing.T) {
	for name, test := range shapes {
		t.Run(name, func(t *testing.T) {
			plan := build(t, test.scheme, test.rows, test.change)
			if err := planir.Check(plan).Err(); err != nil {
				t.Fatalf("%v\n%s", err, planir.Dump(plan))
			}

			data, err := planir.Encode(plan)
			if err != nil {
				t.Fatal(err)
			}
			decoded, err := planir.Decode(data)
			if err != nil {
				t.Fatal(err)
			}
			if planir.Dump(decoded) != planir.Dump(plan) {
				t.Fatal("decoded plan differs")
			}

			again := build(t, test.scheme, test.rows, test.change)
			if other, _ := planir.Encode(again); !bytes.Equal(data, other) {
				t.Fatal("the same decisions lowered twice differ")
			}
		})
	}
}

// The written form of plans is what testdata has.
func TestDump(t *testing.T) {
	for _, name := range []string{"trivial", "paired", "quantised", "gathered"} {
		t.Run(name, func(t *testing.T) {
			shape := shapes[name]
			golden.Equal(t, "txt", []byte(planir.Dump(build(t, shape.scheme, shape.rows, shape.change))))
		})
	}
}

// step returns the first step of a node on a processor in the program for a number of rows.
func step(t testing.TB, plan *planir.Plan, rows int, node, proc string) *planir.Step {
	t.Helper()
	for i := range plan.Program.Programs {
		program := &plan.Program.Programs[i]
		if program.Rows != rows {
			continue
		}
		for j := range program.Sections {
			for _, lane := range program.Sections[j].Lanes {
				for k := range lane.Steps {
					if lane.Proc == proc && slices.Contains(lane.Steps[k].Nodes(), node) {
						return &lane.Steps[k]
					}
				}
			}
		}
	}
	t.Fatalf("no step of %s@%d on %s", node, rows, proc)
	return nil
}

// section returns a section of a program by its name, nil if there is none.
func section(plan *planir.Plan, program, name string) *planir.Section {
	for i := range plan.Program.Programs {
		of := &plan.Program.Programs[i]
		for j := range of.Sections {
			if of.Name == program && of.Sections[j].Name == name {
				return &of.Sections[j]
			}
		}
	}
	return nil
}

// Every rule is broken by a plan that differs from a legal one in one place.
func TestRules(t *testing.T) {
	cases := []struct {
		rule, name string
		shape      string
		mutate     func(t *testing.T, p *planir.Plan)
	}{
		{"P001", "schema of the future", "trivial", func(t *testing.T, p *planir.Plan) { p.Schema = "hetc.plan/3" }},
		{"P001", "buffer twice", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Program.Buffers[1].Name = p.Program.Buffers[0].Name }},
		{"P001", "processors out of order", "trivial", func(t *testing.T, p *planir.Plan) { slices.Reverse(p.Procs) }},
		{"P001", "control character in a name", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Program.Graphs[0].Name = "a\x1b[2J" }},
		{"P001", "decision twice", "trivial", func(t *testing.T, p *planir.Plan) { p.Decisions[1] = p.Decisions[0] }},
		{"P001", "unknown source", "trivial", func(t *testing.T, p *planir.Plan) { p.Decisions[0].Source = "guessed" }},
		{"P001", "alternative of an unknown source", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Decisions[0].Alternatives = []planir.Alternative{{Strategy: planir.Single, Shares: "a", PredictNS: 1,
				Source: "Measured"}}
		}},
		{"P001", "a negative time", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Predictions = []planir.Prediction{{Program: "decode", PlanNS: -1}}
		}},
		{"P001", "a time that overflows the clock", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Predictions = []planir.Prediction{
				{Program: "decode", Sections: []planir.SectionTime{{Section: "head", NS: math.MaxInt64}}}}
		}},
		{"P001", "no context", "trivial", func(t *testing.T, p *planir.Plan) { p.MaxContext = 0 }},
		{"P001", "cache of integers", "trivial", func(t *testing.T, p *planir.Plan) { p.KV = op.I8 }},
		{"P001", "flags beyond steps", "trivial",
			func(t *testing.T, p *planir.Plan) { section(p, "decode", "layers").Flags = 1 << 20 }},
		{"P001", "crowd of processors", "trivial", func(t *testing.T, plan *planir.Plan) {
			plan.Procs = nil
			for i := range 65 {
				proc := testProcs()[0]
				proc.Name = fmt.Sprintf("p%02d", i)
				plan.Procs = append(plan.Procs, proc)
			}
		}},
		{"P001", "folds out of order", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Folds, p.Inputs = []string{"b", "a"}, []planir.Input{{Kind: planir.CalibrationInput, Digest: "x"}}
		}},
		{"P001", "shadows out of order", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Shadows = []planir.Shadow{{Node: "layers.qkv"}, {Node: "layers.attn_out"}}
		}},
		{"P001", "shadows in layers out of order", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Shadows = []planir.Shadow{
				{Node: "layers.qkv", Layers: []op.LayerRange{{From: 1, To: 2}, {From: 0, To: 1}}}}
		}},
		{"P002", "shadows of products without any", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Shadows = []planir.Shadow{{Node: "layers.qkv", Layers: []op.LayerRange{{From: 0, To: 1}}}}
		}},
		{"P001", "hot rows out of order", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Hot = []planir.Hot{{Weight: "layers.qkv", Layer: 1, Channels: []int{1}},
				{Weight: "layers.qkv", Channels: []int{1}}}
		}},
		{"P001", "hot row twice", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Hot = []planir.Hot{{Weight: "layers.qkv", Channels: []int{1, 1}}}
		}},
		{"P001", "no hot rows", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Hot = []planir.Hot{{Weight: "layers.qkv"}} }},
		{"P001", "hot rows in no layer", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Hot = []planir.Hot{{Weight: "layers.qkv", Layer: -1, Channels: []int{1}}}
		}},
		{"P002", "hot rows of an unknown weight", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Hot = []planir.Hot{{Weight: "layers.none", Channels: []int{1}}}
		}},
		{"P002", "hot rows in a layer that is not there", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Hot = []planir.Hot{{Weight: p.Program.Weights[1].Name, Layer: 4000, Channels: []int{1}}}
		}},
		{"P002", "hot rows of a weight in tiles", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Hot = []planir.Hot{{Weight: p.Program.Weights[1].Name, Channels: []int{1}}}
		}},
		{"P002", "folds without a calibration", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Folds = []string{"layers.attn_norm"} }},
		{"P002", "weight folded by an unknown group", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Program.Weights[1].FoldRows = "none" }},
		{"P002", "fold of a source that is not there", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Program.Weights[1].FoldSource = 7 }},
		{"P002", "static scale without a calibration", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Program.Weights = append(p.Program.Weights, op.Weight{Name: "layers.qkv.scale", ScaleOf: "layers.qkv",
				K: 1, N: 1, Layers: []op.LayerRange{{From: 0, To: 2}}})
		}},
		{"P002", "static scale of several numbers", "trivial", func(t *testing.T, plan *planir.Plan) {
			plan.Inputs = []planir.Input{{Kind: planir.CalibrationInput, Digest: "x"}}
			plan.Program.Weights = append(plan.Program.Weights,
				op.Weight{Name: "layers.qkv.scale", ScaleOf: "layers.qkv", K: 1, N: 7})
		}},
		{"P002", "static scale of a tensor", "trivial", func(t *testing.T, plan *planir.Plan) {
			plan.Inputs = []planir.Input{{Kind: planir.CalibrationInput, Digest: "x"}}
			plan.Program.Weights = append(plan.Program.Weights,
				op.Weight{Name: "layers.qkv.scale", ScaleOf: "layers.qkv", K: 1, N: 1, From: []string{"t"}})
		}},
		{"P002", "unknown graph", "trivial",
			func(t *testing.T, p *planir.Plan) { step(t, p, 1, "layers.qkv", "a").Run = "a/none" }},
		{"P002", "graph of another processor", "columns", func(t *testing.T, p *planir.Plan) {
			step(t, p, 1, "layers.qkv", "a").Run = step(t, p, 1, "layers.qkv", "b").Run
		}},
		{"P002", "unknown buffer", "trivial",
			func(t *testing.T, p *planir.Plan) { step(t, p, 1, "layers.qkv", "a").In[0].Buffer = "none" }},
		{"P002", "unknown pack", "trivial",
			func(t *testing.T, p *planir.Plan) { step(t, p, 1, "layers.qkv", "a").W[0].Pack = "none" }},
		{"P002", "pack of an unknown weight", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Program.Packs[0].Weight = "none" }},
		{"P002", "layers differ", "trivial",
			func(t *testing.T, p *planir.Plan) { section(p, "decode", "layers").Layers = 3 }},
		{"P002", "flag out of range", "columns", func(t *testing.T, plan *planir.Plan) {
			st := step(t, plan, 1, "layers.qkv", "b")
			st.Wait = []planir.Wait{{Flag: section(plan, "decode", "layers").Flags}}
		}},
		{"P002", "wait back without repetition", "columns", func(t *testing.T, p *planir.Plan) {
			st := step(t, p, 1, "head.lm_head", "b")
			st.Wait = []planir.Wait{{Flag: 0, Back: true}}
		}},
		{"P002", "unknown control", "trivial", func(t *testing.T, p *planir.Plan) { p.SoC.Control = "none" }},
		{"P002", "lane of nobody", "trivial", func(t *testing.T, p *planir.Plan) {
			s := section(p, "decode", "layers")
			s.Lanes = append(s.Lanes, planir.Lane{Proc: "z"})
		}},
		{"P002", "share of nobody", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Decisions[0].Shares[0].Proc = "z" }},
		{"P002", "decider names nothing", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Program.Decider[0].Program = "prefill@7" }},
		{"P003", "operator not supported", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Procs[0].Kinds = []op.Kind{op.MatMul} }},
		{"P003", "scheme not supported", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Procs[0].Schemes = []op.Scheme{op.A8TQ8C} }},
		{"P003", "layout not read", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Procs[0].Layouts["w32"] = "n64" }},
		{"P003", "graph contradicts itself", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Program.Graphs[2].Graph.Inputs[0].Cols++ }},
		{"P003", "cache on static rows", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Procs[0].DynamicRows = false }},
		{"P003", "graph over the limit", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Procs[0].GraphBytes = 1 << 10 }},
		{"P004", "view outside its buffer", "trivial",
			func(t *testing.T, p *planir.Plan) { step(t, p, 16, "layers.qkv", "a").In[0].R1 = 1 << 20 }},
		{"P004", "view of another shape", "trivial",
			func(t *testing.T, p *planir.Plan) { step(t, p, 16, "layers.qkv", "a").In[0].C1 -= 8 }},
		{"P004", "input left out", "trivial",
			func(t *testing.T, p *planir.Plan) { step(t, p, 1, "layers.attn_add", "a").In = nil }},
		{"P004", "no cache heads", "trivial",
			func(t *testing.T, p *planir.Plan) { step(t, p, 1, "layers.attention", "a").Heads = nil }},
		{"P004", "cache heads out of range", "trivial",
			func(t *testing.T, p *planir.Plan) { step(t, p, 1, "layers.attention", "a").Heads[1] = 3 }},
		{"P004", "cache of another size", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Program.Cache.MaxContext++ }},
		{"P004", "first row beyond the program", "rows",
			func(t *testing.T, p *planir.Plan) { step(t, p, 16, "layers.qkv", "a").R0 = 16 }},
		{"P005", "columns outside the pack", "trivial",
			func(t *testing.T, p *planir.Plan) { step(t, p, 1, "layers.qkv", "a").W[0].C1 += 32 }},
		{"P005", "pack outside its weight", "trivial", func(t *testing.T, p *planir.Plan) { p.Program.Packs[0].K1++ }},
		{"P005", "weight left out", "trivial",
			func(t *testing.T, p *planir.Plan) { step(t, p, 1, "layers.qkv", "a").W = nil }},
		{"P005", "range on a processor without ranges", "columns",
			func(t *testing.T, p *planir.Plan) { p.Procs[2].WeightRanges = false }},
		{"P005", "range off the tiles", "columns", func(t *testing.T, p *planir.Plan) { p.Procs[2].Tile.N = 512 }},
		{"P006", "column used twice", "columns", func(t *testing.T, p *planir.Plan) {
			a, b := step(t, p, 1, "layers.qkv", "a"), step(t, p, 1, "layers.qkv", "b")
			b.W[0] = a.W[0]
		}},
		{"P006", "share left out", "columns", func(t *testing.T, p *planir.Plan) {
			dropStep(section(p, "decode", "head"), "head.lm_head", "b")
		}},
		{"P007", "flag set twice", "columns", func(t *testing.T, plan *planir.Plan) {
			zero := 0
			step(t, plan, 1, "layers.ffn_add", "b").Set = &zero
		}},
		{"P007", "flag never set", "columns", func(t *testing.T, p *planir.Plan) {
			for _, lane := range section(p, "decode", "layers").Lanes {
				for i := range lane.Steps {
					if lane.Steps[i].Set != nil && *lane.Steps[i].Set == 0 {
						lane.Steps[i].Set = nil
					}
				}
			}
		}},
		{"P008", "lanes wait for each other", "paired", func(t *testing.T, plan *planir.Plan) {
			// The step that feeds b now waits for what b does with it.
			norm, down := step(t, plan, 1, "layers.attn_norm", "a"), step(t, plan, 1, "layers.attn_out", "b")
			norm.Wait = append(norm.Wait, planir.Wait{Flag: *down.Set})
		}},
		{"P009", "wait left out", "columns",
			func(t *testing.T, p *planir.Plan) { step(t, p, 1, "layers.qkv", "b").Wait = nil }},
		{"P009", "wait for the repetition before left out", "columns", func(t *testing.T, p *planir.Plan) {
			for _, lane := range section(p, "decode", "layers").Lanes {
				for i := range lane.Steps {
					lane.Steps[i].Wait = slices.DeleteFunc(lane.Steps[i].Wait,
						func(w planir.Wait) bool { return w.Back })
				}
			}
		}},
		{"P010", "read before it is written", "trivial", func(t *testing.T, p *planir.Plan) {
			s := section(p, "decode", "layers").Lanes[0].Steps
			s[0], s[1] = s[1], s[0]
		}},
		{"P010", "section left out", "trivial", func(t *testing.T, p *planir.Plan) {
			p.Program.Programs[0].Sections = p.Program.Programs[0].Sections[1:]
		}},
		{"P011", "a group of cores beside one of them", "columns",
			func(t *testing.T, p *planir.Plan) { p.Procs[0].Cores = []int{0, 1} }},
		{"P011", "processors share a core that is not the first of both", "columns",
			func(t *testing.T, p *planir.Plan) { p.Procs[2].Cores = []int{1, 0} }},
		{"P011", "processors share a core on a simulated SoC", "columns",
			func(t *testing.T, p *planir.Plan) { p.Procs[2].Cores, p.SoC.Simulated = []int{0}, true }},
		{"P012", "a length without program", "trivial",
			func(t *testing.T, p *planir.Plan) { p.Program.Decider[0].Max--; p.Program.Decider[1].Max-- }},
		{"P012", "lengths overlap", "trivial", func(t *testing.T, p *planir.Plan) { p.Program.Decider[1].Min-- }},
		{"P012", "no logits", "trivial", func(t *testing.T, plan *planir.Plan) {
			for i := range plan.Program.Programs {
				for j := range plan.Program.Programs[i].Sections {
					plan.Program.Programs[i].Sections[j].Logits = false
				}
			}
		}},
		{"P013", "shares with different schemes", "columns", func(t *testing.T, plan *planir.Plan) {
			// The share of b becomes quantised, with its own pack; everything else about it is in order.
			planned := build(t, op.A8TQ8C, []int{1, 16}, shapes["columns"].change)
			from, to := step(t, planned, 1, "head.lm_head", "b"), step(t, plan, 1, "head.lm_head", "b")
			for _, graph := range planned.Program.Graphs {
				if graph.Name == from.Run {
					graph.Name += "/q"
					plan.Program.Graphs = append(plan.Program.Graphs, graph)
					to.Run = graph.Name
				}
			}
			for _, k := range planned.Program.Packs {
				if k.Name == from.W[0].Pack {
					plan.Program.Packs = append(plan.Program.Packs, k)
				}
			}
			to.W = from.W
			quant := step(t, planned, 1, "head.lm_head_quant", "a")
			for _, graph := range planned.Program.Graphs {
				if graph.Name == quant.Run {
					plan.Program.Graphs = append(plan.Program.Graphs, graph)
				}
			}
			for _, v := range planned.Program.Buffers {
				if v.Name == "hl.q" || v.Name == "hl.s" {
					plan.Program.Buffers = append(plan.Program.Buffers, v)
				}
			}
			to.In = from.In
			s := section(plan, "decode", "head")
			lane := &s.Lanes[0]
			norm := slices.IndexFunc(lane.Steps, func(st planir.Step) bool { return st.Node == "head.head_norm" })
			moved := *quant // with the norm
			moved.Wait, moved.Set = lane.Steps[norm].Wait, lane.Steps[norm].Set
			lane.Steps[norm] = moved
		}},
	}
	batchGraph := func(plan *planir.Plan, kind op.Kind) *op.Op {
		for i := range plan.Program.Graphs {
			for j := range plan.Program.Graphs[i].Graph.Nodes {
				if o := &plan.Program.Graphs[i].Graph.Nodes[j].Op; o.Kind == kind && o.Batch {
					return o
				}
			}
		}
		t.Fatalf("no %s of a batch", kind)
		return nil
	}
	program := func(plan *planir.Plan, name string) *planir.PhaseProgram {
		i := slices.IndexFunc(plan.Program.Programs, func(ph planir.PhaseProgram) bool { return ph.Name == name })
		return &plan.Program.Programs[i]
	}
	for _, test := range []struct {
		rule, name string
		mutate     func(p *planir.Plan)
	}{
		{"P001", "a cache too large", func(p *planir.Plan) { p.Program.Cache.KVHeads = 1 << 40 }},
		{"P001", "a negative cache", func(p *planir.Plan) { p.Program.Cache.Sequences = -4 }},
		{"P001", "batch of one", func(p *planir.Plan) { p.Batches = []int{1, 4} }},
		{"P001", "batches out of order", func(p *planir.Plan) { p.Batches = []int{4, 4} }},
		{"P001", "a batch too large", func(p *planir.Plan) { p.Batches[0] = 1 << 30 }},
		{"P014", "cache of fewer sequences", func(p *planir.Plan) { p.Program.Cache.Sequences = 3 }},
		{"P014", "cache of one sequence", func(p *planir.Plan) { p.Program.Cache.Sequences = 0 }},
		{"P014", "batch without a program", func(p *planir.Plan) { p.Batches = []int{3, 4} }},
		{"P014", "program of no batch", func(p *planir.Plan) { p.Batches, p.Program.Cache.Sequences = nil, 0 }},
		{"P014", "batch decoded as prefill", func(p *planir.Plan) { program(p, "decode@4").Phase = "prefill" }},
		{"P014", "prefill decoded as a batch", func(p *planir.Plan) { program(p, "prefill@16").Phase = "decode" }},
		{"P014", "rows of one sequence in a batch", func(p *planir.Plan) { batchGraph(p, op.Attention).Batch = false }},
		{"P014", "batch in the decider", func(p *planir.Plan) { p.Program.Decider[1].Program = "decode@4" }},
		{"P014", "logits of selected rows", func(p *planir.Plan) { section(p, "decode@4", "head").Logits = true }},
		{"P014", "no logits", func(p *planir.Plan) {
			ph := program(p, "decode@4")
			ph.Sections = ph.Sections[:len(ph.Sections)-1]
		}},
	} {
		cases = append(cases, struct {
			rule, name, shape string
			mutate            func(t *testing.T, p *planir.Plan)
		}{test.rule, test.name, "batch", func(_ *testing.T, p *planir.Plan) { test.mutate(p) }})
	}
	for _, test := range []struct {
		name   string
		mutate func(t *testing.T, p *planir.Plan)
	}{
		{"a pack that is in no artifact",
			func(t *testing.T, p *planir.Plan) { pack(t, p, "layers.ffn_down").InArtifact = false }},
		{"a pack in an artifact of a processor whose artifacts hold none",
			func(t *testing.T, p *planir.Plan) { pack(t, p, "layers.attn_out").InArtifact = true }},
		{"other weights at another length", func(t *testing.T, plan *planir.Plan) {
			k := *pack(t, plan, "layers.ffn_down")
			k.Name = "another"
			plan.Program.Packs = append(plan.Program.Packs, k)
			step(t, plan, 32, "layers.ffn_down", "htp").W[0].Pack = k.Name
		}},
		{"shares nothing and has a context", func(t *testing.T, p *planir.Plan) { p.Proc("htp").Shares = false }},
		{"shares and has no context", func(t *testing.T, p *planir.Plan) { compiledGraph(t, p).Context = "" }},
		{"artifact of two graphs",
			func(t *testing.T, p *planir.Plan) { compiledGraph(t, p).Artifact = p.Program.Graphs[0].Artifact }},
		{"context of the name of an artifact", func(t *testing.T, plan *planir.Plan) {
			graph := compiledGraph(t, plan)
			old := graph.Context
			for i := range plan.Program.Graphs {
				if plan.Program.Graphs[i].Context == old {
					plan.Program.Graphs[i].Context = graph.Artifact
				}
			}
		}},
		{"two sets of weights in one context", func(t *testing.T, plan *planir.Plan) {
			for i := range plan.Program.Graphs {
				if g := &plan.Program.Graphs[i]; g.Context != "" {
					g.Context = "context/0000"
				}
			}
		}},
	} {
		cases = append(cases, struct {
			rule, name, shape string
			mutate            func(t *testing.T, p *planir.Plan)
		}{"P016", test.name, "artifacts", test.mutate})
	}
	for _, test := range []struct {
		name   string
		mutate func(t *planir.ExpertTiers)
	}{
		{"expert twice", func(t *planir.ExpertTiers) { t.Layers[1].Slots[0] = 2 }},
		{"expert beyond the last", func(t *planir.ExpertTiers) { t.Layers[0].Slots[2] = 4 }},
		{"expert below the first", func(t *planir.ExpertTiers) { t.Layers[0].Slots[2] = -1 }},
		{"slot without an expert", func(t *planir.ExpertTiers) { t.Layers[1].Slots = t.Layers[1].Slots[:2] }},
		{"more experts than slots", func(t *planir.ExpertTiers) { t.Layers[1].Slots = []int{0, 1, 2, 3} }},
		{"no experts", func(t *planir.ExpertTiers) { t.Experts = 0 }},
		{"empty group", func(t *planir.ExpertTiers) { t.Groups[0].Slots = 0 }},
		{"group without rows", func(t *planir.ExpertTiers) { t.Groups[1].Rows = 0 }},
		{"no groups", func(t *planir.ExpertTiers) { t.Groups = nil }},
		{"more rows than fit", func(t *planir.ExpertTiers) { t.Groups[0].Rows = 1 << 24 }},
		{"layers out of order", func(t *planir.ExpertTiers) { slices.Reverse(t.Layers) }},
		{"layer below the first", func(t *planir.ExpertTiers) { t.Layers[0].Layer = -1 }},
		{"no layers", func(t *planir.ExpertTiers) { t.Layers = nil }},
		{"policy", func(t *planir.ExpertTiers) { t.Overflow = "hope" }},
		{"rule by which nothing is dropped", func(t *planir.ExpertTiers) { t.Salience = op.SalienceNorm }},
		{"dropped by no rule", func(t *planir.ExpertTiers) { t.Overflow = planir.OverflowDrop }},
		{"dropped by an unknown rule", func(t *planir.ExpertTiers) {
			t.Overflow, t.Salience = planir.OverflowDrop,
				"luck"
		}},
		{"overflow for nobody", func(t *planir.ExpertTiers) { t.Sent = 0 }},
		{"experts for nobody", func(t *planir.ExpertTiers) {
			t.Overflow, t.Salience, t.Sent = planir.OverflowDrop,
				op.SalienceNorm, 0
		}},
		{"decode", func(t *planir.ExpertTiers) { t.Rows = 1 }},
		{"share of nothing", func(t *planir.ExpertTiers) { t.Layers[0].Moved = math.NaN() }},
		{"share above all", func(t *planir.ExpertTiers) { t.Layers[0].Overflow = 1.5 }},
		{"bound above the time", func(t *planir.ExpertTiers) { t.BoundNS = 71 }},
		{"status", func(t *planir.ExpertTiers) { t.Status = "guess" }},
	} {
		cases = append(cases, struct {
			rule, name, shape string
			mutate            func(t *testing.T, p *planir.Plan)
		}{"P018", test.name, "trivial", func(t *testing.T, plan *planir.Plan) {
			plan.Experts = []planir.ExpertTiers{{
				Rows: 64, Loads: "synthetic uniform", Experts: 4, Overflow: planir.OverflowExact, Sent: 5,
				Groups: []planir.ExpertGroup{{Slots: 1, Rows: 32}, {Slots: 2, Rows: 16}},
				Layers: []planir.ExpertLayer{{Layer: 0, Slots: []int{3, 0, 1}, Moved: 0.8},
					{Layer: 2, Slots: []int{0, 1, 2}}},
				ExpectNS: 70, BoundNS: 60, Status: "feasible",
			}}
			if err := planir.Check(plan).Err(); err != nil {
				t.Fatalf("before the change: %v", err)
			}
			test.mutate(&plan.Experts[0])
		}})
	}
	for name, mutate := range draftFaults {
		cases = append(cases, struct {
			rule, name, shape string
			mutate            func(t *testing.T, p *planir.Plan)
		}{"P019", name, "batch", func(t *testing.T, plan *planir.Plan) {
			plan.Drafts = draftsOf(15)
			if err := planir.Check(plan).Err(); err != nil {
				t.Fatalf("before the change: %v", err)
			}
			mutate(plan)
		}})
	}
	broken := map[string]bool{}
	for _, test := range cases {
		t.Run(test.rule+" "+test.name, func(t *testing.T) {
			s := shapes[test.shape]
			plan := build(t, s.scheme, s.rows, s.change)
			if err := planir.Check(plan).Err(); err != nil {
				t.Fatalf("before the change: %v", err)
			}
			test.mutate(t, plan)
			found := planir.Check(plan)
			if len(found) == 0 {
				t.Fatal("no rule is broken")
			}
			for _, diagnostic := range found {
				if diagnostic.Code != test.rule {
					t.Errorf("breaks %s: %v", diagnostic.Code, diagnostic)
				}
				if diagnostic.Hint == "" || diagnostic.Path == "" {
					t.Errorf("%v: has no path or no hint", diagnostic)
				}
			}
		})
		broken[test.rule] = true
	}
	for name, at := range map[string]*planir.Attention{
		"rows that no program has":         {Density: 0.2, Block: 16, Rows: []int{3}},
		"a dense program":                  {Density: 0.2, Block: 16, Rows: []int{16}},
		"no rows":                          {Density: 0.2, Block: 16},
		"rows that do not ascend":          {Density: 0.2, Block: 16, Rows: []int{16, 16}},
		"more than all positions":          {Density: 1.5, Block: 16, Rows: []int{16}},
		"blocks of nothing":                {Density: 0.2, Rows: []int{16}},
		"a least of any number":            {Density: 0.2, Block: 16, Rows: []int{16}, Least: 300},
		"estimates of all as a share":      {Density: 0.2, Block: 16, Rows: []int{16}, Estimated: 1},
		"estimates of fewer than no heads": {Density: 0.2, Block: 16, Rows: []int{16}, Estimated: -0.5},
		"two pairs of scales":              {Density: 0.2, Block: 16, Rows: []int{16}, Buckets: 2},
		"a density that is no number":      {Density: math.NaN(), Block: 16, Rows: []int{16}},
		"one sequence beside batches":      {Density: 0.2, Block: 16, Rows: []int{1}},
	} {
		t.Run("P030 "+name, func(t *testing.T) {
			test := shapes["trivial"]
			if slices.Equal(at.Rows, []int{1}) {
				test = shapes["batch"]
			}
			plan := build(t, test.scheme, test.rows, test.change)
			plan.Attention = at
			found := planir.Check(plan)
			if len(found) == 0 {
				t.Fatal("no rule is broken")
			}
			for _, diagnostic := range found {
				if diagnostic.Code != "P030" || diagnostic.Hint == "" || diagnostic.Path == "" {
					t.Errorf("breaks %s: %v", diagnostic.Code, diagnostic)
				}
			}
		})
		broken["P030"] = true
	}
	for name, mutate := range besideFaults {
		t.Run("P017 "+name, func(t *testing.T) {
			plan := besidePlan(t)
			mutate(plan)
			found := planir.Check(plan)
			if len(found) == 0 {
				t.Fatal("no rule is broken")
			}
			for _, diagnostic := range found {
				if rule := cmp.Or(besideEarlier[name], "P017"); diagnostic.Code != rule || diagnostic.Hint == "" ||
					diagnostic.Path == "" {
					t.Errorf("breaks %s: %v", diagnostic.Code, diagnostic)
				}
			}
		})
		broken["P017"] = true
	}
	for name, fault := range inFlightFaults {
		t.Run("P031 "+name, func(t *testing.T) {
			plan := inFlightPlan(t)
			fault.mutate(plan)
			found := planir.Check(plan)
			if len(found) == 0 {
				t.Fatal("no rule is broken")
			}
			for _, diagnostic := range found {
				if diagnostic.Code != fault.rule || diagnostic.Hint == "" || diagnostic.Path == "" {
					t.Errorf("breaks %s: %v", diagnostic.Code, diagnostic)
				}
			}
		})
		broken["P031"] = true
	}
	for name, fault := range pipelineFaults {
		t.Run("P032 "+name, func(t *testing.T) {
			plan := pipelinePlan(t)
			fault.mutate(plan)
			found := planir.Check(plan)
			if len(found) == 0 {
				t.Fatal("no rule is broken")
			}
			for _, diagnostic := range found {
				if diagnostic.Code != fault.rule || diagnostic.Hint == "" || diagnostic.Path == "" {
					t.Errorf("breaks %s: %v", diagnostic.Code, diagnostic)
				}
			}
		})
		broken["P032"] = true
	}
	for _, rule := range planir.Rules {
		if !broken[rule.ID] {
			t.Errorf("rule %s has no plan that breaks it", rule.ID)
		}
	}
}

// pack is the pack of a weight: the only one, or the only one that lies in artifacts.
func pack(t *testing.T, plan *planir.Plan, weight string) *planir.Pack {
	t.Helper()
	var found *planir.Pack
	for i := range plan.Program.Packs {
		other := &plan.Program.Packs[i]
		inArtifact := found != nil && found.InArtifact
		if other.Weight != weight || inArtifact && !other.InArtifact {
			continue
		}
		if inArtifact {
			t.Fatalf("packs %q and %q of weight %q", found.Name, other.Name, weight)
		}
		found = other
	}
	if found == nil {
		t.Fatalf("no pack of weight %q", weight)
	}
	return found
}

// compiledGraph is the last graph that refers to a binary.
func compiledGraph(t *testing.T, plan *planir.Plan) *planir.Graph {
	t.Helper()
	for i := len(plan.Program.Graphs) - 1; i > 0; i-- {
		if plan.Program.Graphs[i].Context != "" {
			return &plan.Program.Graphs[i]
		}
	}
	t.Fatal("no artifact holds weights")
	return nil
}

// What artifacts hold is in no weights blob, and every graph of such a processor is in one group for each of its
// layers, with the graphs of other lengths that hold the same weights.
func TestGraphGroups(t *testing.T) {
	test := shapes["artifacts"]
	plan := build(t, test.scheme, test.rows, test.change)
	for _, blob := range plan.Program.WeightBlobs() {
		for _, part := range blob.Packs {
			if part.Pack.InArtifact {
				t.Errorf("pack %q of an artifact lies in blob %q", part.Pack.Name, blob.Name)
			}
		}
	}

	type summary struct {
		layer  int
		weight string
		rows   []int
	}
	var got []string
	blobs := map[string]bool{}
	claim := func(blob string) {
		if blobs[blob] {
			t.Errorf("two blobs %q", blob)
		}
		blobs[blob] = true
	}
	for _, group := range plan.GraphGroups() {
		summed := summary{layer: group.Layer}
		for _, ref := range group.W {
			summed.weight += ref.String() + " "
		}
		for _, graph := range group.Graphs {
			summed.rows = append(summed.rows, graph.Graph.Rows())
			if graph.Context != group.Context {
				t.Errorf("graph %q of context %q in a group of context %q", graph.Name, graph.Context, group.Context)
			}
			claim(planir.LayerBlob(graph.Artifact, group.Layer))
		}
		claim(planir.LayerBlob(group.Context, group.Layer))
		got = append(got, fmt.Sprintf("%+v", summed))
	}
	want := []string{
		"{layer:0 weight:layers.qkv/q8c.n32.htp.n0-256[0:256]  rows:[1 16 32]}",
		"{layer:1 weight:layers.qkv/q8c.n32.htp.n0-256[0:256]  rows:[1 16 32]}",
		"{layer:0 weight:layers.ffn_norm/f32.rows.htp.n0-256[0:256]  rows:[1 16 32]}",
		"{layer:1 weight:layers.ffn_norm/f32.rows.htp.n0-256[0:256]  rows:[1 16 32]}",
		"{layer:0 weight:layers.ffn_down/q8c.n32.htp.n0-256[0:256]  rows:[1 24 32]}",
		"{layer:1 weight:layers.ffn_down/q8c.n32.htp.n0-256[0:256]  rows:[1 24 32]}",
		"{layer:-1 weight: rows:[1]}", "{layer:-1 weight:head.lm_head/q8c.n32.htp.n0-2048[0:2048]  rows:[1]}",
		"{layer:-1 weight: rows:[16]}", "{layer:-1 weight: rows:[32]}",
	}

	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for name, want := range map[string]string{
		planir.LayerBlob("graph/0007", 3): "graph/0007.003", planir.LayerBlob("context/0001", -1): "context/0001",
	} {
		if name != want {
			t.Errorf("blob %q, want %q", name, want)
		}
	}
}

// A binary holds weights once, and a little for each further number of rows; artifacts that share nothing hold their
// own.
func TestSharedArtifactsHoldLess(t *testing.T) {
	test := shapes["artifacts"]
	plan, apart := build(t, test.scheme, test.rows, test.change), build(t, test.scheme, test.rows, test.change)
	apart.Proc("htp").Shares = false
	if err := lower.Lower(apart, graph(t)); err != nil {
		t.Fatal(err)
	}
	if err := planir.Check(apart).Err(); err != nil {
		t.Fatal(err)
	}

	var once, more int64
	for _, group := range plan.GraphGroups() {
		if group.Layer > 0 { // the layers of a pack are counted together
			continue
		}
		for _, ref := range group.W {
			bytes := pack(t, plan, strings.SplitN(ref.Pack, "/", 2)[0]).Bytes
			bytes = 2 * ((bytes + 4095) / 4096 * 4096)
			further := int64(max(0, len(group.Graphs)-1))
			once, more = once+further*(bytes/planir.FurtherGraph), more+further*bytes
		}
	}
	if got := planir.MemoryOf(apart).Weights - planir.MemoryOf(plan).Weights; once == 0 || got != more-once {
		t.Errorf("not sharing takes %d bytes, want %d for the copies and not the %d that sharing adds", got, more, once)
	}
}

// Processors with the same first core take turns on one thread.
func TestProcessorsOfOneCoreShareASection(t *testing.T) {
	plan := build(t, op.A32W32, []int{1, 16}, shapes["columns"].change)
	for _, cores := range [][]int{{0}, {0, 1}} {
		plan.Procs[2].Cores = cores
		if err := planir.Check(plan).Err(); err != nil {
			t.Errorf("cores %v beside %v: %v", cores, plan.Procs[0].Cores, err)
		}
	}
}

// dropStep removes the steps of a node on a processor.
func dropStep(section *planir.Section, node, proc string) {
	for i := range section.Lanes {
		if section.Lanes[i].Proc == proc {
			section.Lanes[i].Steps = slices.DeleteFunc(section.Lanes[i].Steps,
				func(st planir.Step) bool { return st.Node == node })
		}
	}
	section.Lanes = slices.DeleteFunc(section.Lanes, func(l planir.Lane) bool { return len(l.Steps) == 0 })
}

// Bytes that are no canonical plan are refused.
func TestDecodeRefuses(t *testing.T) {
	good, err := planir.Encode(build(t, op.A32W32, []int{1}, nil))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"empty":           nil,
		"truncated":       good[:len(good)/2],
		"white space":     append(slices.Clone(good), '\n'),
		"data after":      append(slices.Clone(good), "{}"...),
		"unknown key":     bytes.Replace(good, []byte(`{"schema"`), []byte(`{"x":1,"schema"`), 1),
		"key twice":       bytes.Replace(good, []byte(`{"schema"`), []byte(`{"schema":"hetc.plan/2","schema"`), 1),
		"list of nothing": bytes.Replace(good, []byte(`"kv":"f32"`), []byte(`"kv":"f32","predictions":[]`), 1),
		"other schema":    bytes.Replace(good, []byte("hetc.plan/2"), []byte("hetc.plan/9"), 1),
		"view with space": bytes.Replace(good, []byte("x[0:1,"), []byte("x[0:1, "), 1),
		"view with zeros": bytes.Replace(good, []byte("x[0:1,"), []byte("x[00:1,"), 1),
	} {
		if bytes.Equal(data, good) {
			t.Errorf("%s: the test changed nothing", name)
		}
		if _, err := planir.Decode(data); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A list that is empty and one that is missing are one value, with one encoding.
func TestEmptyListsHaveOneEncoding(t *testing.T) {
	data, err := planir.Encode(&planir.Plan{Schema: planir.Schema})
	if err != nil {
		t.Fatal(err)
	}
	other, err := planir.Encode(&planir.Plan{Schema: planir.Schema, Procs: []planir.Proc{},
		Decisions: []planir.Decision{}, Program: planir.Program{Programs: []planir.PhaseProgram{}}})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, other) {
		t.Fatalf("%s and %s", data, other)
	}
	for _, proc := range []planir.Proc{
		{}, {Set: capability.Set{Schemes: []op.Scheme{}, Layouts: map[string]string{}}},
	} {
		text, err := planir.Encode(&planir.Plan{Schema: planir.Schema, Procs: []planir.Proc{proc}})
		if err != nil || !bytes.Contains(text, []byte(`"schemes":[],"layouts":{}`)) {
			t.Fatalf("%s, %v", text, err)
		}
		if read, err := planir.Decode(text); err != nil || read.Procs[0].Layouts == nil {
			t.Fatalf("%s is read as %+v, %v", text, read, err)
		}
	}
}

// A plan of another version is refused by its version, whatever keys it has.
func TestOtherVersions(t *testing.T) {
	for _, text := range []string{`{"schema":"hetc.plan/1","procs":[{"tile_n":32}]}`, `{"schema":"hetc.plan/3"}`} {
		_, err := planir.Decode([]byte(text))
		if err == nil || !strings.Contains(err.Error(), `want "hetc.plan/2"`) || len(diag.HintsOf(err)) == 0 {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Whatever bytes there are, a plan that is accepted can be checked and encodes to the same bytes.
func FuzzDecode(f *testing.F) {
	data, err := planir.Encode(build(f, op.A8TQ8C, []int{1, 16}, shapes["columns"].change))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	if data, err = planir.Encode(pipelinePlan(f)); err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"schema":"hetc.plan/2"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		plan, err := planir.Decode(data)
		if err != nil {
			return
		}
		planir.Check(plan) // whatever it is, it is judged
		if again, err := planir.Encode(plan); err != nil || !bytes.Equal(again, data) {
			t.Fatalf("accepted bytes are not what the plan encodes to (%v)", err)
		}
	})
}

// The tables of rules in SPEC.md are what Rules and check.Rules say; HETC_UPDATE=1 rewrites them.
func TestSpecListsTheRules(t *testing.T) {
	type rule struct{ id, sentence string }
	var plan, relation []rule
	for _, r := range planir.Rules {
		plan = append(plan, rule{r.ID, r.Sentence})
	}
	for _, r := range check.Rules {
		relation = append(relation, rule{r.ID, r.Sentence})
	}
	spec, err := os.ReadFile("SPEC.md")
	if err != nil {
		t.Fatal(err)
	}
	want := string(spec)
	for begin, rules := range map[string][]rule{
		"<!-- rules: generated, see TestSpecListsTheRules -->\n":          plan,
		"<!-- rules of check: generated, see TestSpecListsTheRules -->\n": relation,
	} {
		const end = "<!-- end of rules -->\n"
		before, rest, ok := strings.Cut(want, begin)
		_, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("SPEC.md has no %q ... %q", begin, end)
		}
		var table strings.Builder
		table.WriteString("| rule | a legal plan |\n| --- | --- |\n")
		for i, r := range rules {
			if i > 0 && rules[i-1].id >= r.id {
				t.Errorf("rule %s follows %s", r.id, rules[i-1].id)
			}
			fmt.Fprintf(&table, "| %s | %s |\n", r.id, r.sentence)
		}
		want = before + begin + table.String() + end + after
	}
	if want == string(spec) {
		return
	}
	if os.Getenv("HETC_UPDATE") == "1" {
		if err := os.WriteFile("SPEC.md", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("the tables of rules in SPEC.md are stale; run the test with HETC_UPDATE=1")
}

// A report counts what its problem minimises: choices of schemes and sizes count energy in plans of programs that do.
func TestUnits(t *testing.T) {
	for want, plan := range map[string]planir.Plan{
		"ns": {Solver: []planir.Solve{{Problem: "partition decode"}, {Problem: "buckets"}, {Problem: "schemes"}}},
		"nJ": {Solver: []planir.Solve{{Problem: "energy decode"}, {Problem: "buckets"}, {Problem: "joint energy"}}},
	} {
		for i := range plan.Solver {
			if got := plan.UnitOf(&plan.Solver[i]); got != want {
				t.Errorf("%s is in %s, want %s", plan.Solver[i].Problem, got, want)
			}
		}
	}
	tiers := planir.Solve{Problem: "tiers of a model"}
	frugal := planir.Plan{Solver: []planir.Solve{{Problem: "energy decode"}, tiers}}
	if got := frugal.UnitOf(&tiers); got != "ns" {
		t.Errorf("tiers are in %s, want ns", got)
	}
}
