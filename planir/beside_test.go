package planir_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
)

// besidePlan is a plan divided over two cores, of which the second one also processes prompts while the first decodes.
func besidePlan(t testing.TB) *planir.Plan {
	t.Helper()
	s := shapes["batch"]
	plan := build(t, s.scheme, s.rows, s.change)
	plan.Beside = &planir.Beside{Prefill: "b", Decode: "a", Pairs: []planir.BesidePair{
		{PrefillRows: 16, DecodeRows: 1, PrefillNS: 10, DecodeNS: 2},
		{PrefillRows: 16, DecodeRows: 4, PrefillNS: 11, DecodeNS: 3},
	}}
	if err := lower.Lower(plan, graph(t)); err != nil {
		t.Fatal(err)
	}
	return plan
}

// besideEarlier are those of the faults that an earlier rule finds.
var besideEarlier = map[string]string{
	"a program of another processor": "P010", "a program that is everybody's": "P010", "a flag": "P007",
	"short ids": "P004",
}

// besideFaults break P017 or an earlier rule, each by one change of besidePlan.
var besideFaults = map[string]func(p *planir.Plan){
	"of no processor":                 func(p *planir.Plan) { p.Beside.Prefill = "c" },
	"of the control processor":        func(p *planir.Plan) { p.SoC.Control = "b" },
	"of one processor":                func(p *planir.Plan) { p.Beside.Decode = "b" },
	"of processors that share a core": func(p *planir.Plan) { p.Proc("b").Cores = []int{0} },
	"times of no program":             func(p *planir.Plan) { p.Beside.Pairs[1].DecodeRows = 3 },
	"times below 0":                   func(p *planir.Plan) { p.Beside.Pairs[0].PrefillNS = -1 },
	"times in another order":          func(p *planir.Plan) { p.Beside.Pairs[1].DecodeRows = 1 },
	"programs of nothing":             func(p *planir.Plan) { p.Beside = nil },
	"a program of another processor":  func(p *planir.Plan) { p.Program.Beside[0].On = "b" },
	"a program that is everybody's":   func(p *planir.Plan) { p.Program.Programs[0].On = "a" },
	"a flag":                          func(p *planir.Plan) { p.Program.Beside[0].Sections[1].Flags = 1 },
	"a buffer of all processors": func(p *planir.Plan) {
		for i := range p.Program.Beside {
			for j := range p.Program.Beside[i].Sections {
				for k := range p.Program.Beside[i].Sections[j].Lanes {
					lane := &p.Program.Beside[i].Sections[j].Lanes[k]
					for s := range lane.Steps {
						for _, views := range [][]planir.View{lane.Steps[s].In, lane.Steps[s].Out} {
							for v := range views {
								if views[v].Buffer == "a/x" {
									views[v].Buffer = "x"
								}
							}
						}
					}
				}
			}
		}
	},
	"nothing for prompts": func(p *planir.Plan) {
		p.Beside.Pairs = nil
		p.Program.Beside = slices.DeleteFunc(p.Program.Beside,
			func(ph planir.PhaseProgram) bool { return ph.Phase == "prefill" })
	},
	"nothing for one sequence": func(p *planir.Plan) {
		p.Beside.Pairs = nil
		p.Program.Beside = slices.DeleteFunc(p.Program.Beside,
			func(ph planir.PhaseProgram) bool { return ph.Rows == 1 })
	},
	"nothing for a batch": func(p *planir.Plan) {
		p.Beside.Pairs = nil
		p.Program.Beside = slices.DeleteFunc(p.Program.Beside,
			func(ph planir.PhaseProgram) bool { return ph.Rows == 4 })
	},
	"no logits": func(p *planir.Plan) {
		for i := range p.Program.Beside {
			for j := range p.Program.Beside[i].Sections {
				if p.Program.Beside[i].Phase == "prefill" {
					p.Program.Beside[i].Sections[j].Logits = false
				}
			}
		}
	},
	"no lane": func(p *planir.Plan) {
		for i := range p.Program.Beside {
			sections := p.Program.Beside[i].Sections
			p.Program.Beside[i].Sections = append(sections, planir.Section{Name: "nothing"})
		}
	},
	"two programs of a kind": func(p *planir.Plan) {
		again := p.Program.Beside[0]
		again.Name = "again"
		p.Program.Beside = append(p.Program.Beside, again)
	},
	"short ids": func(p *planir.Plan) {
		for i := range p.Program.Buffers {
			if p.Program.Buffers[i].Name == "b/ids" {
				p.Program.Buffers[i].Rows = 3
			}
		}
	},
}

// Every program of one processor has the weights, graphs of its rows and the caches of the others, and buffers of its
// own.
func TestBesideIsLegal(t *testing.T) {
	plan := besidePlan(t)
	if err := planir.Check(plan).Err(); err != nil {
		t.Fatal(err)
	}
	alone := *plan
	alone.Beside = nil
	if err := lower.Lower(&alone, graph(t)); err != nil {
		t.Fatal(err)
	}
	with, without := planir.MemoryOf(plan), planir.MemoryOf(&alone)
	if with.Weights != without.Weights || with.Cache != without.Cache || with.Pool <= without.Pool {
		t.Errorf("%v, and without work beside decoding %v: want the same weights and caches, and more buffers", with,
			without)
	}
	if got := len(plan.Program.Beside); got != 3 {
		t.Fatalf("%d programs, want decode, decode@4 and prefill@16", got)
	}
	for _, ph := range plan.Program.Beside {
		if on := map[string]string{"prefill": "b", "decode": "a"}[ph.Phase]; ph.On != on ||
			!strings.HasSuffix(ph.Name, "/"+on) {
			t.Errorf("%s is on %q, want %q", ph.Name, ph.On, on)
		}
	}
	if plan.Program.ProgramOn("b", 16) == nil || plan.Program.ProgramOn("b", 1) != nil ||
		plan.Program.ProgramOn("", 1) != nil {
		t.Error("found other programs of one processor")
	}
	data, err := planir.Encode(plan)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := planir.Decode(data); err != nil || planir.Dump(again) != planir.Dump(plan) {
		t.Errorf("read again: %v", err)
	}
}
