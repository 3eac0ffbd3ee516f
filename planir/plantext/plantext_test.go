package plantext_test

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/golden"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/planir/source"
)

func TestMain(m *testing.M) { os.Exit(golden.Main(m)) }

// plan uses every part of the format: two lanes, all axes, a static processor's padding, optional
// fields present and absent, texts that YAML would read as numbers.
func plan(t testing.TB) *planir.Plan {
	t.Helper()
	model, err := models.Open("../../testdata/models/tiny-llama-kjv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	graph := model.Graph()
	proc := func(name, sel string, core int) planir.Proc {
		return planir.Proc{
			Name: name, Kind: "cpu", Driver: "host", Select: sel, Cores: []int{core},
			Options: map[string]string{"wait": "spin", "kernel": "fast"},
			Set: capability.Set{
				Tile: capability.Tile{M: 1, K: 32, N: 32}, Layouts: map[string]string{"q8c": "n32", "w32": "n32"},
				Schemes:     []op.Scheme{op.A8TQ8C},
				DynamicRows: true, StridedOutput: true, StridedInput: true, WeightRanges: true,
				Memory: &capability.Memory{StepBytes: 3,
					Scratch: &capability.Scratch{Align: 64, Block: 32, PackRows: 24}},
			},
			GraphBytes: 1 << 31,
		}
	}
	planned := &planir.Plan{
		Schema: planir.Schema,
		Model:  planir.ModelRef{Name: "1e3", Digest: "0123", BOS: -1, EOS: []int{2}},
		SoC:    planir.SoCRef{Name: "yes", Digest: "00", Fingerprint: "1.0", Simulated: true, Control: "host:0"},
		Inputs: []planir.Input{{Kind: "costs", Digest: "12"}, {Kind: "workload", Digest: "0x1"}},

		MaxContext: 64, KV: op.F32,
		Procs: []planir.Proc{proc("host:0", "0", 0), proc("host:1", "1", 1)},
		Predictions: []planir.Prediction{{
			Program: "decode", PlanNS: 10, LowNS: 9, HighNS: 12,
			Singles:  []planir.SingleTime{{Proc: "host:0", NS: 20}},
			Sections: []planir.SectionTime{{Section: "layers", NS: 1}},
		}},
		Solver: []planir.Solve{{Problem: "partition layers@1", Status: "optimal", ObjectiveNS: 9, BoundNS: 9,
			Choices: 3}},
	}
	planned.Decisions, err = lower.Trivial(&graph, "host:0", []int{1, 16}, 64, op.F32,
		func(string, int) op.Scheme { return op.A8TQ8C })
	if err != nil {
		t.Fatal(err)
	}
	for i := range planned.Decisions {
		decision := &planned.Decisions[i]
		decision.PredictNS = int64(i)
		switch decision.Node {
		case "layers.ffn_down":
			decision.Strategy, decision.Axis = planir.Paired, planir.AxisK
			decision.Shares = []planir.Share{{Proc: "host:0", To: 256, PredictNS: 5},
				{Proc: "host:1", From: 256, To: 768}}
			decision.Source = source.Interpolated
			decision.Alternatives = []planir.Alternative{{Strategy: planir.Single, Shares: "host:0", PredictNS: 7,
				Source: source.Described}}
		case "layers.attention":
			decision.Strategy, decision.Axis = planir.WeightCentric, planir.AxisHeads
			decision.Shares = []planir.Share{{Proc: "host:1", To: 1}, {Proc: "host:0", From: 1, To: 2}}
		case "layers.qkv":
			decision.Strategy, decision.Shares[0].PadRows = planir.Padding, 32
		}
	}
	if err := lower.Lower(planned, &graph); err != nil {
		t.Fatal(err)
	}
	if err := planir.Check(planned).Err(); err != nil {
		t.Fatal(err)
	}
	return planned
}

func TestRoundTrip(t *testing.T) {
	planned := plan(t)
	text, err := plantext.Encode(planned)
	if err != nil {
		t.Fatal(err)
	}
	q, err := plantext.Decode("plan.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(planned, q) {
		t.Fatal("decoded plan differs")
	}
	// Both forms have one digest: a plan that was read from YAML is the plan that was written.
	a, err := planir.Digest(planned)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := planir.Digest(q); a != b {
		t.Fatalf("digest %s became %s", a, b)
	}
	if again, _ := plantext.Encode(q); !bytes.Equal(text, again) {
		t.Fatal("encoding it again gives another text")
	}
	golden.Equal(t, "yaml", text)
}

func TestDecodeRefuses(t *testing.T) {
	text, err := plantext.Encode(plan(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ old, new, want string }{
		"unknown key":     {"max_context: 64", "max_contxt: 64", `did you mean "max_context"`},
		"other schema":    {"hetc.plan/2", "hetc.record/1", "schema"},
		"text for number": {"max_context: 64", "max_context: many", "max_context"},
		"view":            {"x[0:1,0:256]", "x[0:1]", "name[r0:r1,c0:c1]"},
		"key twice":       {"kv: f32\n", "kv: f32\nkv: f32\n", "kv"},
	} {
		bad := strings.Replace(string(text), test.old, test.new, 1)
		if bad == string(text) {
			t.Errorf("%s: the test changed nothing", name)
		}
		_, err := plantext.Decode("plan.yaml", []byte(bad))
		if err == nil || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v, want an input error", name, err)
			continue
		}
		if all := err.Error() + strings.Join(diag.HintsOf(err), " "); !strings.Contains(all, test.want) ||
			!strings.Contains(all, "plan.yaml:") {
			t.Errorf("%s: %q, want %q and a line", name, all, test.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	text, err := plantext.Encode(plan(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("schema: hetc.plan/2\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		planned, err := plantext.Decode("plan.yaml", b)
		if err != nil {
			return
		}
		text, err := plantext.Encode(planned)
		if err != nil {
			return // not every value has a text, such as control characters
		}
		q, err := plantext.Decode("again.yaml", text)
		if err != nil {
			t.Fatalf("what Encode wrote is refused: %v\n%s", err, text)
		}
		a, errA := planir.Digest(planned)
		c, errC := planir.Digest(q)
		if errA == nil && (errC != nil || a != c) {
			t.Fatalf("digest changed: %v", errC)
		}
	})
}
