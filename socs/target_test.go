package socs

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
)

// Every SoC of a Qualcomm phone or laptop is a target, with the numbers its document prints.
func TestTargets(t *testing.T) {
	require.Slow(t)
	names, err := Targets()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][2]int{
		"snapdragon-8gen1": {36, 69}, "snapdragon-8gen2": {43, 73}, "adreno-740-opencl": {43, 73},
		"redmi-k60-pro": {43, 73}, "redmi-k60-champion": {43, 73},
		"snapdragon-8gen3": {57, 75}, "redmi-k70-pro": {57, 75}, "xiaomi-14": {57, 75}, "snapdragon-x-elite": {60, 73},
		"snapdragon-8-elite": {69, 79}, "snapdragon-8-elite-gen5": {87, 81},
	}
	if !slices.Equal(names, slices.Sorted(maps.Keys(want))) {
		t.Fatalf("targets %q, want %q", names, slices.Sorted(maps.Keys(want)))
	}
	text, err := os.ReadFile("../docs/soc.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		soc, err := OpenTarget(name)
		if err != nil {
			t.Fatal(err)
		}
		npu := soc.TargetNPU().Target
		if got := [2]int{npu.SoCModel, npu.HTPArch}; got != want[name] || npu.Driver != "qnn" ||
			npu.Compiler != "qnn" || npu.Select != "htp" || npu.VTCMMB != 8 {
			t.Errorf("%s: target %+v, want soc_model and instruction set %v", name, npu, want[name])
		}
		if got := npu.Options(); got["soc_model"] != fmt.Sprint(npu.SoCModel) || got["vtcm_mb"] != "8" ||
			got["opt"] != "3" {
			t.Errorf("%s: options %v", name, got)
		}
		if !slices.ContainsFunc(strings.Split(string(text), "\n"), func(row string) bool {
			return strings.HasPrefix(row, "| ") && strings.Contains(row, name) &&
				strings.HasSuffix(row, fmt.Sprintf("| %d | %d | 8 |", npu.SoCModel, npu.HTPArch))
		}) {
			t.Errorf("docs/soc.md: no row of target %s with %d, %d, 8", name, npu.SoCModel, npu.HTPArch)
		}
	}
	for _, name := range Catalog() {
		if _, err := OpenTarget(name); !slices.Contains(names, name) &&
			(err == nil || !strings.Contains(strings.Join(diag.HintsOf(err), " "), "snapdragon-8gen3")) {
			t.Errorf("%s as a target: got %v, want a refusal that names those there are", name, err)
		}
	}
}

func TestRestricted(t *testing.T) {
	soc, err := Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	before, _ := soc.Digest()
	soc.Processor("npu").Target.Kinds = []op.Kind{op.MatMul}
	soc.Processor("npu").Target.Schemes = []op.Scheme{op.A8TQ8C}
	machine, err := soc.Restricted()
	if err != nil {
		t.Fatal(err)
	}
	if got := names(machine); !slices.Equal(got, []string{"cpu", "npu"}) || machine.Name != soc.Name ||
		len(soc.Processors) != 3 {
		t.Errorf("processors %q of %q, want cpu and npu", got, machine.Name)
	}
	npu, cpu := machine.Processor("npu"), machine.Processor("cpu")
	if !slices.Equal(npu.Kinds, []op.Kind{op.MatMul}) || !slices.Equal(npu.Schemes, []op.Scheme{op.A8TQ8C}) {
		t.Errorf("npu executes %v in %v", npu.Kinds, npu.Schemes)
	}
	if !cpu.Executes(op.Attention) || len(cpu.Schemes) < 3 {
		t.Errorf("cpu executes %v in %v, want what it did", cpu.Kinds, cpu.Schemes)
	}
	if _, ok := machine.Link("cpu", "npu"); !ok || len(machine.Links) != 2 || len(machine.Joint) != 1 ||
		len(machine.Memory) != 1 || len(machine.Memory[0].Processors) != 2 {
		t.Errorf("links %v, joint %v, memory %v: want those of cpu and npu", machine.Links, machine.Joint,
			machine.Memory)
	}
	for _, p := range machine.Points {
		if p.Processor == "gpu" {
			t.Errorf("point of a processor that is left out: %+v", p)
		}
	}
	for _, name := range []string{"cpu", "npu", "gpu"} {
		soc.Processor(name).Target = nil
	}
	if _, err := soc.Restricted(); err == nil || !strings.Contains(err.Error(), "none of its processors") {
		t.Errorf("without target data: got %v", err)
	}
	soc, _ = Open("snapdragon-8gen3")
	soc.Processor("cpu").Target = nil
	if _, err := soc.Restricted(); err == nil || !strings.Contains(err.Error(), `control processor "cpu"`) {
		t.Errorf("without target data of the control processor: got %v", err)
	}
	soc, _ = Open("snapdragon-8gen3")
	if again, _ := soc.Digest(); again != before {
		t.Errorf("restricting changed the catalog: digest %s, want %s", again, before)
	}
}

func TestTargetIsValidated(t *testing.T) {
	for want, edit := range map[string]func(*Target){
		"no driver":                       func(x *Target) { x.Driver = "" },
		"is no device's":                  func(x *Target) { x.Driver = SimDriver },
		"needs the vendor's number":       func(x *Target) { x.SoCModel = 0 },
		"needs the size":                  func(x *Target) { x.VTCMMB = 0 },
		"-1, want 0..65536":               func(x *Target) { x.SoCModel = -1 },
		"5000, want 0..1024":              func(x *Target) { x.VTCMMB = 5000 },
		"4, want 0..3":                    func(x *Target) { x.Opt = 4 },
		"not among the processor's kinds": func(x *Target) { x.Kinds = []op.Kind{op.Attention} },
		"unknown operator":                func(x *Target) { x.Kinds = []op.Kind{"softmax"} },
		"listed twice":                    func(x *Target) { x.Schemes = []op.Scheme{op.A8TQ8C, op.A8TQ8C} },
		"not among the processor's schem": func(x *Target) { x.Schemes = []op.Scheme{op.A8TQ4B128} },
		"can be printed":                  func(x *Target) { x.Select = "htp\x1b[2J" },
	} {
		soc, err := Open("snapdragon-8gen3")
		if err != nil {
			t.Fatal(err)
		}
		edit(soc.Processor("npu").Target)
		if err := soc.Validate(); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "processors.npu.target") {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
	if _, err := Parse("x", []byte("schema: hetc.soc/1\nname: x\ninherit: snapdragon-8gen3\nprocessors:\n  - {name: "+
		"npu, target: {soc_mode: 3}}\n")); err == nil || !strings.Contains(err.Error(), "soc_mode") ||
		!strings.Contains(fmt.Sprint(diag.HintsOf(err)), "soc_model") {
		t.Errorf("an unknown key: got %v, want the nearest named", err)
	}
}
