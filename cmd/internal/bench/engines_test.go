package bench

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// A plan that reads the embedding from a tied head shows its quality on a tied model only.
func TestQualityModelIsTied(t *testing.T) {
	m := untied(t)
	_, err := new(enginesBench).schemesQuality(t.Context(), t.TempDir(), m, "llama-plain",
		&enginesPlan{plan: decided(m, op.I32Q8C)})
	if err == nil || diag.ClassOf(err) != diag.ClassInput ||
		!strings.Contains(err.Error(), "a table and a head of its own") {
		t.Errorf("got %v", err)
	}
}

// Rounded keys and values cost accuracy, so the type of cache is judged with the schemes.
func TestQualityHasThePlansCache(t *testing.T) {
	m := untied(t)
	on, err := trial.Open(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	from := decided(m, op.A32W32)
	for _, cache := range []op.Type{op.F32, op.F16, op.Q8} {
		from.KV = cache
		for _, phase := range []string{"prefill", "decode"} {
			plan, err := phasePlan(on, "llama-plain", from, nil, phase)
			if err != nil {
				t.Fatal(err)
			}
			if plan.KV != cache {
				t.Errorf("%s: got a cache of %s, want %s", phase, plan.KV, cache)
			}
		}
	}
}

// untied opens a model with two matrices for the embedding and the head.
func untied(t *testing.T) *models.Model {
	t.Helper()
	m, err := models.Open("../../../testdata/arch/llama-plain")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	if m.Tied {
		t.Fatal("want a model with two matrices")
	}
	return m
}

// decided returns what a plan in float32 decides for rows of one token, but for the scheme of the embedding.
func decided(m *models.Model, embedding op.Scheme) *planir.Plan {
	p := &planir.Plan{}
	g := m.Graph()
	for _, s := range g.Sections {
		for _, n := range s.Nodes {
			d := planir.Decision{Node: s.Name + "." + n.Name, Rows: 1, Scheme: op.A32W32}
			if n.Ops[0].Kind == op.Embed {
				d.Scheme = embedding
			}
			p.Decisions = append(p.Decisions, d)
		}
	}
	return p
}
