package bench

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
)

// The SoC file of another machine is refused; a simulated one is the same everywhere.
func TestOfThisMachine(t *testing.T) {
	for _, test := range []struct {
		soc  *socs.SoC
		fits bool
	}{
		{soc: nil, fits: true},
		{soc: &socs.SoC{Name: "catalog"}, fits: true},
		{soc: &socs.SoC{Name: "here", Fingerprint: host.Fingerprint()}, fits: true},
		{soc: &socs.SoC{Name: "there", Fingerprint: "cpu-0"}, fits: false},
	} {
		err := ofThisMachine(test.soc)
		if (err == nil) != test.fits {
			t.Errorf("%+v: got %v, want it taken %v", test.soc, err, test.fits)
		}
		if err != nil && (diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), `"cpu-0"`)) {
			t.Errorf("got %v", err)
		}
	}
}

// Tables have no interval of 95 % of fewer rounds than that needs.
func TestIntervalsOfFewRounds(t *testing.T) {
	times := stat.Summary{N: 5, Low: 1e6, High: 2e6}
	if got := msInterval(times); got != "-" {
		t.Errorf("5 rounds: got %s, want -", got)
	}
	times.N = 6
	if got := msInterval(times); got != "1.000..2.000" {
		t.Errorf("6 rounds: got %s", got)
	}
	for rounds, want := range map[int]string{5: "-", 6: "1.10..1.30"} {
		rows := pairRows([]pair{{Low: 1.1, High: 1.3, rounds: rounds}})
		if rows[0][3] != want {
			t.Errorf("pairs of %d rounds: got %s, want %s", rounds, rows[0][3], want)
		}
	}
}

// A decoded token reads every dense matrix, and of the experts' those it is given to, in all layers.
func TestDecodeBytes(t *testing.T) {
	for _, c := range []struct {
		name      string
		embedding op.Scheme // of a tied model: its rows are those of the head's matrix
	}{
		{"models/tiny-llama-kjv", ""},
		{"models/tiny-llama-kjv", op.I32Q8C},
		{"arch/qwen2-moe-dense-layers-fused", ""},
	} {
		name := c.name
		m, err := models.Open("../../../testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		g := m.Graph()
		p := &planir.Plan{Schema: planir.Schema, SoC: planir.SoCRef{Control: "a"}, MaxContext: 64, KV: op.F32,
			Procs: []planir.Proc{{
				Name: "a", Set: capability.Set{
					Schemes: op.Schemes, Layouts: map[string]string{"q8c": pack.N32, "w32": pack.N32},
					DynamicRows: true, WeightRanges: true, StridedInput: true, StridedOutput: true,
				},
			}}}
		p.Decisions, err = lower.Trivial(&g, "a", []int{1}, p.MaxContext, p.KV,
			func(node string, _ int) op.Scheme {
				if node == "embed.embed" {
					return c.embedding
				}
				return op.A8TQ8C
			})
		if err != nil {
			t.Fatal(err)
		}
		if err := lower.Lower(p, &g); err != nil {
			t.Fatal(err)
		}
		want := int64(0)
		for _, s := range g.Sections {
			for _, n := range s.Nodes {
				for _, o := range n.Ops {
					if !o.HasScheme() {
						continue
					}
					if o.Scheme = op.A8TQ8C; n.Exact {
						o.Scheme = op.A32W32
					}
					bytes, err := pack.Bytes(pack.Expert(o.WeightSpec("weight", pack.N32)))
					if err != nil {
						t.Fatal(err)
					}
					want += bytes * int64(max(1, o.Fan)) * int64(max(1, s.Layers))
				}
			}
		}
		if got := p.DecodeBytes(); got != want {
			t.Errorf("%s: %d bytes, want %d", name, got, want)
		}
	}
}

// One to five rounds have no 95 % interval, whatever is computed from them.
func TestRatioInterval(t *testing.T) {
	for rounds, want := range map[int]string{1: "-", 5: "-", 6: "1.18..1.20"} {
		if got := ratioInterval(rounds, 1.18, 1.2); got != want {
			t.Errorf("%d rounds: got %q, want %q", rounds, got, want)
		}
	}
}
