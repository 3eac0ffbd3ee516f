package solver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
)

// withLibrary is two cores and, on each, a second processor that multiplies four times as fast, has static shapes and
// no attention, as a library has it; with costs. Times are those of a simulation, passed off as measured.
func withLibrary(t *testing.T) (*socs.SoC, *roofline.Costs) {
	t.Helper()
	text := `schema: hetc.soc/1
name: with-library
control: h0
processors:`
	for _, proc := range []struct{ name, core, peak, kinds string }{
		{"h0", "0", "50", ""}, {"h1", "1", "50", ""},
		{"x0", "0", "200", "matmul, norm, glu, add, copy"}, {"x1", "1", "200", "matmul, norm, glu, add, copy"},
	} {
		text += fmt.Sprintf(`
  - {name: %s, kind: cpu, driver: sim, select: %s, cores: [%s], bandwidth_gbps: 10, launch_us: 0.2,
     tile: {k: 32, n: 32}, schemes: [a32/w32], layouts: {w32: n32}, `, proc.name, proc.name, proc.core)
		if proc.kinds == "" {
			text += "kv: [f32], dynamic_rows: true, strided_output: true, strided_input: true, weight_ranges: true"
		} else {
			text += "kinds: [" + proc.kinds + "], static_shapes: true"
		}
		text += ", sim: {schemes: {a32/w32: {peak_gops: " + proc.peak + "}}, other_gops: 10}}"
	}

	text += "\nlinks:"
	for _, from := range []string{"h", "x"} {
		for _, to := range []string{"h", "x"} {
			text += fmt.Sprintf("\n  - {from: %s0, to: %s1, handover_us: 0.3}", from, to)
			text += fmt.Sprintf("\n  - {from: %s1, to: %s0, handover_us: 0.3}", to, from)
		}
	}
	soc, err := socs.Parse("with-library.yaml", []byte(text+"\n"))
	if err != nil {
		t.Fatal(err)
	}

	fitted := costs(t, soc, demo(t), op.A32W32)
	for i := range soc.Processors {
		soc.Processors[i].Driver, soc.Processors[i].Sim = "host", nil
	}
	soc.Fingerprint, fitted.Fingerprint, fitted.Simulated = "f", "f", false
	if fitted.SoCDigest, err = soc.Digest(); err != nil {
		t.Fatal(err)
	}
	return soc, fitted
}

// lanesOf are the processors of a program's layers.
func lanesOf(plan *planir.Plan, program string) (out []string) {
	for _, ph := range plan.Program.Programs {
		for _, sec := range ph.Sections {
			if ph.Name != program || sec.Name != "layers" {
				continue
			}
			for _, lane := range sec.Lanes {
				out = append(out, lane.Proc)
			}
		}
	}
	return out
}

// Processors of one thread take turns in a section: products on the fast one, what it lacks on the other (also where
// one of a pair lacks it), and the prediction adds their times up.
func TestTakingTurns(t *testing.T) {
	require.Slow(t)
	soc, costs := withLibrary(t)
	model := demo(t)
	for _, test := range []struct {
		only []string
		want string
	}{
		{[]string{"x0"}, "h0 x0"}, {[]string{"x1"}, "h1 x1"}, {[]string{"h1"}, "h1"},
		{[]string{"x0", "x1"}, "h0 h1 x0 x1"}, {[]string{"h0", "h1"}, "h0 h1"}, {[]string{"h0", "x1"}, "h0 h1 x1"},
		{nil, "h0 h1 x0 x1"},
	} {
		result := solve(t, Input{Model: model, SoC: soc, Costs: costs, Workload: quick(), Only: test.only})
		if found := check.Plan(result.Plan, model, soc); found.Err() != nil {
			t.Fatal(found)
		}
		if got := strings.Join(lanesOf(result.Plan, "prefill@256"), " "); got != test.want {
			t.Errorf("only %v: the layers run on %s, want %s", test.only, got, test.want)
		}
		for _, decision := range result.Plan.Decisions {
			if len(test.only) == 0 || !strings.HasSuffix(decision.Node, "ffn_down") {
				continue
			}
			for _, share := range decision.Shares {
				if !slices.Contains(test.only, share.Proc) {
					t.Errorf("only %v: %s on %s", test.only, decision.Node, share.Proc)
				}
			}
		}
		if len(test.only) != 1 {
			continue
		}

		var sum int64
		for _, decision := range result.Plan.Decisions {
			if decision.Rows == 256 && strings.HasPrefix(decision.Node, "layers.") {
				sum += decision.PredictNS
			}
		}
		sections := prediction(t, result.Plan, "prefill@256").Sections
		isLayers := func(section planir.SectionTime) bool { return section.Section == "layers" }
		layers := sections[slices.IndexFunc(sections, isLayers)]
		if layers.NS < sum*99/100 || layers.NS > sum*101/100 {
			t.Errorf("only %v: a layer is predicted to take %d ns, and its nodes on one core %d", test.only, layers.NS,
				sum)
		}
	}

	_, err := Solve(context.Background(), Input{Model: model, SoC: soc, Costs: costs, Workload: quick(),
		Engine: exact.Engine{}, Only: []string{"x2"}})
	if diag.ClassOf(err) != diag.ClassInput || !says(err, `"x2"`) {
		t.Errorf("an unknown processor: %v", err)
	}
}
