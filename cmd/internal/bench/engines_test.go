package bench

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// A plan that reads the embedding from a tied head shows its quality on a tied model only.
func TestQualityModelIsTied(t *testing.T) {
	m, err := models.Open("../../../testdata/arch/llama-plain")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if m.Tied {
		t.Fatal("want a model with two matrices")
	}
	p := &planir.Plan{}
	g := m.Graph()
	for _, s := range g.Sections {
		for _, n := range s.Nodes {
			d := planir.Decision{Node: s.Name + "." + n.Name, Rows: 1, Scheme: op.A32W32}
			if n.Ops[0].Kind == op.Embed {
				d.Scheme = op.I32Q8C
			}
			p.Decisions = append(p.Decisions, d)
		}
	}

	_, err = new(enginesBench).schemesQuality(t.Context(), t.TempDir(), m, "llama-plain", &enginesPlan{plan: p})
	if err == nil || diag.ClassOf(err) != diag.ClassInput ||
		!strings.Contains(err.Error(), "a table and a head of its own") {
		t.Errorf("got %v", err)
	}
}
