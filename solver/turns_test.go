package solver

import (
	"context"
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
	for _, p := range []struct{ name, core, peak, kinds string }{
		{"h0", "0", "50", ""}, {"h1", "1", "50", ""}, {"x0", "0", "200", "matmul, norm, glu, add, copy"}, {"x1", "1", "200", "matmul, norm, glu, add, copy"},
	} {
		text += `
  - {name: ` + p.name + `, kind: cpu, driver: sim, select: ` + p.name + `, cores: [` + p.core + `], bandwidth_gbps: 10, launch_us: 0.2, tile: {k: 32, n: 32},
     schemes: [a32/w32], layouts: {w32: n32}, `
		if p.kinds == "" {
			text += "kv: [f32], dynamic_rows: true, strided_output: true, strided_input: true, weight_ranges: true"
		} else {
			text += "kinds: [" + p.kinds + "], static_shapes: true"
		}
		text += ", sim: {schemes: {a32/w32: {peak_gops: " + p.peak + "}}, other_gops: 10}}"
	}
	text += "\nlinks:"
	for _, a := range []string{"h", "x"} {
		for _, b := range []string{"h", "x"} {
			text += "\n  - {from: " + a + "0, to: " + b + "1, handover_us: 0.3}\n  - {from: " + b + "1, to: " + a + "0, handover_us: 0.3}"
		}
	}
	s, err := socs.Parse("with-library.yaml", []byte(text+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	c := costs(t, s, demo(t), op.A32W32)
	for i := range s.Processors {
		s.Processors[i].Driver, s.Processors[i].Sim = "host", nil
	}
	s.Fingerprint, c.Fingerprint, c.Simulated = "f", "f", false
	if c.SoCDigest, err = s.Digest(); err != nil {
		t.Fatal(err)
	}
	return s, c
}

// lanesOf are the processors of a program's layers.
func lanesOf(p *planir.Plan, program string) (out []string) {
	for _, ph := range p.Program.Programs {
		for _, sec := range ph.Sections {
			if ph.Name == program && sec.Name == "layers" {
				for _, l := range sec.Lanes {
					out = append(out, l.Proc)
				}
			}
		}
	}
	return out
}

// Processors of one thread take turns in a section: products on the fast one, what it lacks on the other (also where
// one of a pair lacks it), and the prediction adds their times up.
func TestTakingTurns(t *testing.T) {
	require.Slow(t)
	s, c := withLibrary(t)
	m := demo(t)
	for _, x := range []struct {
		only []string
		want string
	}{
		{[]string{"x0"}, "h0 x0"}, {[]string{"x1"}, "h1 x1"}, {[]string{"h1"}, "h1"}, {[]string{"x0", "x1"}, "h0 h1 x0 x1"}, {[]string{"h0", "h1"}, "h0 h1"}, {[]string{"h0", "x1"}, "h0 h1 x1"}, {nil, "h0 h1 x0 x1"},
	} {
		r := solve(t, Input{Model: m, SoC: s, Costs: c, Workload: quick(), Only: x.only})
		if found := check.Plan(r.Plan, m, s); found.Err() != nil {
			t.Fatal(found)
		}
		if got := strings.Join(lanesOf(r.Plan, "prefill@256"), " "); got != x.want {
			t.Errorf("only %v: the layers run on %s, want %s", x.only, got, x.want)
		}
		for _, d := range r.Plan.Decisions {
			for _, sh := range d.Shares {
				if o := sh.Proc; len(x.only) > 0 && !slices.Contains(x.only, o) && strings.HasSuffix(d.Node, "ffn_down") {
					t.Errorf("only %v: %s on %s", x.only, d.Node, o)
				}
			}
		}
		if len(x.only) != 1 {
			continue
		}
		var sum int64
		for _, d := range r.Plan.Decisions {
			if d.Rows == 256 && strings.HasPrefix(d.Node, "layers.") {
				sum += d.PredictNS
			}
		}
		i := slices.IndexFunc(prediction(t, r.Plan, "prefill@256").Sections, func(x planir.SectionTime) bool { return x.Section == "layers" })
		if got := prediction(t, r.Plan, "prefill@256").Sections[i].NS; got < sum*99/100 || got > sum*101/100 {
			t.Errorf("only %v: a layer is predicted to take %d ns, and its nodes on one core %d", x.only, got, sum)
		}
	}
	_, err := Solve(context.Background(), Input{Model: m, SoC: s, Costs: c, Workload: quick(), Engine: exact.Engine{}, Only: []string{"x2"}})
	if err == nil || diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), `"x2"`) {
		t.Errorf("an unknown processor: %v", err)
	}
}
