package check_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
)

const machine = `schema: hetc.soc/1
name: machine
fingerprint: one
control: host:0
processors:
  - name: host:0
    kind: cpu
    driver: host
    select: "0"
    cores: [0]
    tile: {k: 32, n: 32}
    schemes: [a32/w32, a8t/q8c]
    layouts: {w32: n32, q8c: n32}
    kv: [f32]
    dynamic_rows: true
    strided_output: true
    strided_input: true
    weight_ranges: true
    graph_bytes: 1073741824
    address_bytes: 1073741824
    max_graphs: 1000
  - name: host:1
    kind: cpu
    driver: host
    select: "1"
    options: {kernel: reference}
    cores: [1]
    tile: {k: 32, n: 32}
    schemes: [a32/w32, a8t/q8c]
    layouts: {w32: n32, q8c: n32}
    kv: [f32]
    dynamic_rows: true
    strided_output: true
    strided_input: true
    weight_ranges: true
`

// soc is the machine.
func soc(t testing.TB) *socs.SoC {
	t.Helper()
	parsed, err := socs.Parse("machine.yaml", []byte(machine))
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// model is the demo model.
func model(t testing.TB) *models.Model {
	t.Helper()
	opened, err := models.Open("../../testdata/models/tiny-llama-kjv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close() })
	return opened
}

// plan is a legal plan with every matmul in two columns.
func plan(t testing.TB, model *models.Model, soc *socs.SoC) *planir.Plan {
	t.Helper()
	digest, err := model.Digest()
	if err != nil {
		t.Fatal(err)
	}
	socDigest, err := soc.Digest()
	if err != nil {
		t.Fatal(err)
	}
	graph := model.Graph()
	planned := &planir.Plan{
		Schema: planir.Schema,
		Model:  planir.ModelRef{Name: model.Name, Digest: digest, BOS: model.BOS, EOS: model.EOS},
		SoC: planir.SoCRef{Name: soc.Name, Digest: socDigest, Fingerprint: soc.Fingerprint,
			Simulated: soc.Simulated(), Control: soc.Control},
		MaxContext: 128, KV: op.F32,
	}

	for i := range soc.Processors {
		planned.Procs = append(planned.Procs, check.Proc(&soc.Processors[i]))
	}

	planned.Decisions, err = lower.Trivial(&graph, "host:0", []int{1, 16}, planned.MaxContext, planned.KV,
		func(string, int) op.Scheme { return op.A32W32 })
	if err != nil {
		t.Fatal(err)
	}

	for i := range planned.Decisions {
		decision := &planned.Decisions[i]
		if weight := graph.Weight(decision.Node); weight != nil && decision.Scheme != "" {
			decision.Strategy, decision.Axis = planir.WeightCentric, planir.AxisCols
			decision.Shares = []planir.Share{{Proc: "host:0", To: weight.N / 2},
				{Proc: "host:1", From: weight.N / 2, To: weight.N}}
		}
	}

	if err := lower.Lower(planned, &graph); err != nil {
		t.Fatal(err)
	}
	memory := planir.MemoryOf(planned)
	planned.Memory = &memory
	return planned
}

// A legal plan fits its model and SoC; speeds measured again are mentioned.
func TestLegalPlan(t *testing.T) {
	model, machine := model(t), soc(t)
	planned := plan(t, model, machine)
	if found := check.Plan(planned, model, machine); len(found) > 0 {
		t.Fatal(found)
	}
	if found := check.Plan(planned, model, nil); len(found) > 0 {
		t.Fatalf("without a SoC: %v", found)
	}

	// Speeds measured again do not make the plan illegal, but are mentioned.
	machine.Processors[0].BandwidthGBps = 12
	found := check.Plan(planned, model, machine)
	if found.Err() != nil || len(found) != 1 || found[0].Severity != diag.Warning || found[0].Code != "P021" {
		t.Fatalf("a changed speed gives %v, want one warning", found)
	}
}

// Every rule is broken by a plan, model or SoC that differs from a legal combination in one place.
func TestRules(t *testing.T) {
	cases := []struct {
		rule, name, want string
		mutate           func(p *planir.Plan, s *socs.SoC)
	}{
		{"P001", "rules of plans come first", "schema", func(p *planir.Plan, s *socs.SoC) { p.Schema = "hetc.plan/9" }},
		{"P020", "another model", "digest",
			func(p *planir.Plan, s *socs.SoC) { p.Model.Digest = strings.Repeat("0", 64) }},
		{"P020", "another end", "ends them with", func(p *planir.Plan, s *socs.SoC) { p.Model.EOS = []int{5} }},
		{"P021", "another name", `"machine"`, func(p *planir.Plan, s *socs.SoC) { p.SoC.Name = "phone" }},
		{"P021", "another machine", "fingerprint", func(p *planir.Plan, s *socs.SoC) { s.Fingerprint = "two" }},
		{"P021", "another control", "control", func(p *planir.Plan, s *socs.SoC) { p.SoC.Control = "host:1" }},
		{"P021", "said to be simulated", "simulated", func(p *planir.Plan, s *socs.SoC) { p.SoC.Simulated = true }},
		{"P022", "processor gone", "has no processor",
			func(p *planir.Plan, s *socs.SoC) { s.Processors = s.Processors[:1] }},
		{"P022", "another driver", "driver is host",
			func(p *planir.Plan, s *socs.SoC) { s.Processors[1].Driver = "ort" }},
		{"P022", "another kind", "kind is cpu", func(p *planir.Plan, s *socs.SoC) { s.Processors[1].Kind = "gpu" }},
		{"P022", "another selection", "select is 1",
			func(p *planir.Plan, s *socs.SoC) { s.Processors[1].Select = "2" }},
		{"P022", "another option", "and the SoC says none", func(p *planir.Plan, s *socs.SoC) { s.Processors[1].Options = nil }},
		{"P022", "another core", "cores", func(p *planir.Plan, s *socs.SoC) { s.Processors[1].Cores = []int{3} }},
		{"P022", "another layout", "layouts",
			func(p *planir.Plan, s *socs.SoC) { s.Processors[1].Layouts["w32"] = "n64" }},
		{"P022", "a scheme too many", "schemes",
			func(p *planir.Plan, s *socs.SoC) { s.Processors[1].Schemes = []op.Scheme{op.A32W32} }},
		{"P022", "an operator too many", "kinds is norm", func(p *planir.Plan, s *socs.SoC) {
			s.Processors[0].Kinds = slices.DeleteFunc(slices.Clone(op.Kinds),
				func(k op.Kind) bool { return k == op.Norm })
		}},
		{"P022", "a cache it cannot read", "kv is f32",
			func(p *planir.Plan, s *socs.SoC) { s.Processors[0].KV = []op.Type{op.F16} }},
		{"P022", "coarser tiles", "tile.n is 32", func(p *planir.Plan, s *socs.SoC) { s.Processors[1].Tile.N = 64 }},
		{"P022", "coarser tiles along K", "tile.k is 32",
			func(p *planir.Plan, s *socs.SoC) { s.Processors[1].Tile.K = 64 }},
		{"P022", "no strides", "strided_output",
			func(p *planir.Plan, s *socs.SoC) { s.Processors[1].StridedOutput = false }},
		{"P022", "a smaller graph limit", "graph_bytes",
			func(p *planir.Plan, s *socs.SoC) { s.Processors[0].GraphBytes = 1 << 20 }},
		{"P023", "a decision too many", "no operator of a program", func(planned *planir.Plan, s *socs.SoC) {
			decision := planned.Decisions[0]
			decision.Node = "layers.extra"
			planned.Decisions = append(planned.Decisions, decision)
		}},
		{"P023", "a decision too few", "not decided at 16 rows", func(p *planir.Plan, s *socs.SoC) {
			p.Decisions = slices.DeleteFunc(p.Decisions,
				func(d planir.Decision) bool { return d.Node == "layers.ffn_act" && d.Rows == 16 })
		}},
		{"P024", "a weight of nobody", "has no weight", func(p *planir.Plan, s *socs.SoC) {
			p.Program.Weights = append(p.Program.Weights, op.Weight{Name: "extra", K: 1, N: 1})
		}},
		{"P024", "a scale of another class", "layers.qkv.scale", func(planned *planir.Plan, s *socs.SoC) {
			planned.Inputs = append(planned.Inputs, planir.Input{Kind: planir.CalibrationInput, Digest: "d"})
			planned.Program.Weights = append(planned.Program.Weights,
				op.Weight{Name: "layers.qkv.scale", ScaleOf: "layers.ffn_down", K: 1, N: 1})
		}},
		{"P005", "a scale instead of a weight", "layers.qkv", func(planned *planir.Plan, s *socs.SoC) {
			planned.Inputs = append(planned.Inputs, planir.Input{Kind: planir.CalibrationInput, Digest: "d"})
			for i := range planned.Program.Weights {
				if w := &planned.Program.Weights[i]; w.Name == "layers.qkv" {
					*w = op.Weight{Name: w.Name, ScaleOf: "layers.qkv", K: 1, N: 1, Layers: w.Layers}
				}
			}
		}},
		{"P026", "a scale that nobody asked for", "program has", func(planned *planir.Plan, s *socs.SoC) {
			planned.Inputs = append(planned.Inputs, planir.Input{Kind: planir.CalibrationInput, Digest: "d"})
			planned.Program.Weights = append(planned.Program.Weights,
				op.Weight{Name: "layers.qkv.scale", ScaleOf: "layers.qkv", K: 1, N: 1})
		}},
		{"P024", "another tensor", "from",
			func(p *planir.Plan, s *socs.SoC) { p.Program.Weights[0].From = []string{"model.norm.weight"} }},
		{"P024", "not transposed", "layers.ffn_down", func(planned *planir.Plan, s *socs.SoC) {
			for i := range planned.Program.Weights {
				if w := &planned.Program.Weights[i]; w.Name == "layers.ffn_down" {
					w.Transposed = false
				}
			}
		}},
		{"P025", "a size too small", "bytes", func(p *planir.Plan, s *socs.SoC) { p.Program.Packs[0].Bytes -= 4 }},
		{"P026", "another decision", "where its decisions give", func(p *planir.Plan, s *socs.SoC) {
			p.DecisionFor("layers.ffn_norm", 16).Shares[0].Proc = "host:1"
		}},
		{"P026", "a wait too many", "where its decisions give", func(p *planir.Plan, s *socs.SoC) {
			st := &p.Program.Programs[0].Sections[1].Lanes[1].Steps[0]
			st.Wait = append(st.Wait, st.Wait...)
		}},
		{"P026", "another expected time", "expect", func(p *planir.Plan, s *socs.SoC) {
			p.Program.Programs[0].Sections[1].Lanes[0].Steps[0].ExpectNS = 5
		}},
		{"P027", "too much for its memory", "addresses at most",
			func(p *planir.Plan, s *socs.SoC) { s.Processors[0].AddressBytes = 1 << 20 }},
		{"P027", "too many graphs", "holds at most 3",
			func(p *planir.Plan, s *socs.SoC) { s.Processors[0].MaxGraphs = 3 }},
		{"P028", "fewer weights", "weights_bytes",
			func(p *planir.Plan, s *socs.SoC) { p.Memory.Weights--; p.Memory.Total-- }},
		{"P028", "a smaller cache", "cache_bytes",
			func(p *planir.Plan, s *socs.SoC) { p.Memory.Cache /= 2; p.Memory.Total -= p.Memory.Cache }},
		{"P028", "another sum", "add up to", func(p *planir.Plan, s *socs.SoC) { p.Memory.Total++ }},
		{"P028", "above its bound", "its bound is",
			func(p *planir.Plan, s *socs.SoC) { p.Memory.Max = p.Memory.Total - 1 }},
	}
	cases = append(cases, cases[0])
	cases[len(cases)-1].rule, cases[len(cases)-1].name, cases[len(cases)-1].want = "P029",
		"tiers of a model without experts", "has 0 in layers"
	cases[len(cases)-1].mutate = func(p *planir.Plan, s *socs.SoC) {
		p.Experts = []planir.ExpertTiers{{
			Rows: 64, Loads: "synthetic uniform", Experts: 1, Overflow: planir.OverflowExact, Sent: 1,
			Status: "optimal",
			Groups: []planir.ExpertGroup{{Slots: 1, Rows: 16}}, Layers: []planir.ExpertLayer{{Slots: []int{0}}},
		}}
	}
	broken := map[string]bool{}
	for _, test := range cases {
		t.Run(test.rule+" "+test.name, func(t *testing.T) {
			model, machine := model(t), soc(t)
			planned := plan(t, model, machine)
			test.mutate(planned, machine)
			found := check.Plan(planned, model, machine)
			if found.Err() == nil {
				t.Fatalf("no rule is broken: %v", found)
			}
			text := ""
			for _, diagnostic := range found {
				if diagnostic.Severity != diag.Error {
					continue
				}
				text += diagnostic.Error() + "\n"
				isTold := diagnostic.Hint != "" && diagnostic.Path != ""
				if diagnostic.Code != test.rule || !isTold || diagnostic.Class != diag.ClassIllegal {
					t.Errorf("got %v (hint %q), want rule %s with path and hint", diagnostic, diagnostic.Hint,
						test.rule)
				}
			}
			if !strings.Contains(text, test.want) {
				t.Errorf("got %q, want %q", text, test.want)
			}
		})
		broken[test.rule] = true
	}
	for _, rule := range check.Rules {
		if !broken[rule.ID] {
			t.Errorf("rule %s has no case that breaks it", rule.ID)
		}
	}
}

// A processor is loaded with the weights that its steps read, once or for every graph, and with buffers.
func TestLoad(t *testing.T) {
	model, machine := model(t), soc(t)
	planned := plan(t, model, machine)
	first, second := check.Load(planned, machine.Processor("host:0")), check.Load(planned, machine.Processor("host:1"))
	// host:1 has the second half of every matrix: of qkv, attn_out, gate_up and down in six layers and of the head.
	weights := int64(6*(256*512+256*256+256*1536+768*256)+256*2048) * 4 / 2
	if second.Bytes < weights || second.Bytes > weights+1<<20 {
		t.Errorf("host:1 holds %d bytes, want its weights (%d) and buffers of less than 1 MiB", second.Bytes, weights)
	}
	if first.Bytes <= second.Bytes || first.Graphs <= second.Graphs {
		t.Errorf("host:0 holds %+v, host:1 %+v", first, second)
	}

	// When every graph owns its weights, each of the two row counts has its own.
	machine.Processor("host:1").WeightBytes = socs.WeightsPerGraph
	if own := check.Load(planned, machine.Processor("host:1")); own.Bytes < 2*weights-256*2048*2 {
		t.Errorf("with weights per graph host:1 holds %d bytes, want about twice %d", own.Bytes, weights)
	}
}
