package executor_test

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

// attentive is a calibration in which every head of a model has the same scales and importance.
func attentive(t testing.TB, m *models.Model, density float64) *calibration.Calibration {
	t.Helper()
	digest, err := m.Digest()
	if err != nil {
		t.Fatal(err)
	}
	text := calibration.Text{SHA256: digest, Tokens: 16, Windows: 2, WindowTokens: 8}
	cal := &calibration.Calibration{Schema: calibration.Schema, Model: calibration.Model{Name: m.Name, Digest: digest}, Text: text}
	at := &calibration.Attention{Text: text, Heads: m.Heads, KVHeads: m.KVHeads, Block: 8, Clamp: 1e-3, Densities: []float64{density}}
	for layer := range m.Layers {
		made := calibration.AttentionLayer{Layer: layer}
		for range m.KVHeads {
			made.KeyScales = append(made.KeyScales, 0.05)
		}
		for range m.Heads {
			made.Heads = append(made.Heads, calibration.AttentionHead{QueryScale: 0.05, Mass: []float64{1}})
		}
		at.Layers = append(at.Layers, made)
	}
	at.Buckets = at.MeanBuckets()
	at.Losses = []calibration.DensityLoss{{Rule: calibration.RuleHeads, Density: density, TopAgreement: 1, PerplexityRatio: 1}}
	cal.Attention = at
	if err := cal.Validate(); err != nil {
		t.Fatal(err)
	}
	return cal
}

// sparsePlan is a plan whose programs of these rows have sparse attention, and how it divides its nodes.
func sparsePlan(t testing.TB, m *models.Model, cal *calibration.Calibration, procs []planir.Proc, rows, sparse []int, context, block int,
	kv op.Type, f layoutOf) *planir.Plan {
	t.Helper()
	digest, err := cal.Digest()
	if err != nil {
		t.Fatal(err)
	}
	plan := makePlan(t, m, procs[:1], rows, context, op.A32W32, bySingle)
	plan.Procs, plan.KV = procs, kv
	plan.Inputs = []planir.Input{{Kind: planir.CalibrationInput, Digest: digest}}
	if len(sparse) > 0 {
		plan.Attention = &planir.Attention{Density: cal.Attention.Densities[0], Block: block, Rows: sparse}
	}
	plan.Decisions = nil
	g := m.Graph()
	seen := map[string]bool{}
	for _, r := range rows {
		made, err := lower.Trivial(lower.GraphOf(plan, &g, r), procs[0].Name, []int{r}, context, kv,
			func(string, int) op.Scheme { return op.A32W32 })
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range made {
			if key := d.Node + fmt.Sprint(d.Rows); !seen[key] {
				seen[key] = true
				plan.Decisions = append(plan.Decisions, d)
			}
		}
		sections, err := lower.Expand(lower.GraphOf(plan, &g, r), r, context, kv, func(string) op.Scheme { return op.A32W32 }, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sections {
			for _, n := range s.Nodes {
				if d := plan.DecisionFor(n.Name, r); d != nil && len(procs) > 1 && f != nil {
					f(d, &n)
				}
			}
		}
	}
	if err := lower.Lower(plan, &g); err != nil {
		t.Fatal(err)
	}
	if l := planir.Check(plan); l.Err() != nil {
		t.Fatal(l.Err())
	}
	return plan
}

// byStages has the second processor estimate what the first one selects and attends to.
func byStages(d *planir.Decision, n *lower.Node) {
	if n.Op().Kind == op.Estimate {
		d.Shares[0].Proc = "b"
	}
}

// byKeyHeads divides every part of an attention by heads.
func byKeyHeads(d *planir.Decision, n *lower.Node) {
	if o := n.Op(); o.Kind.Along() == op.AlongHeads {
		divide(d, planir.AxisHeads, o.KVHeads, 1)
	}
}

// TestSparseAttention compares sparse attention of everything with dense attention, for every architecture: in prompts
// of one token, in one call, in chunks and token by token. Of a share of the positions the bits do not depend on
// who computes what.
func TestSparseAttention(t *testing.T) {
	dirs := archDirs(t)
	if testing.Short() {
		dirs = nil
		for _, name := range []string{"llama-plain", "llama-mqa", "gemma2-caps", "mistral-window"} {
			dirs = append(dirs, filepath.Join("../../testdata/arch", name, "config.json"))
		}
	}
	a, b := cores(t)
	pair := []planir.Proc{proc("a", a, ""), proc("b", b, "")}
	for _, config := range dirs {
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			texts := readLogits(t, filepath.Join(dir, "logits.safetensors"))
			context := max(130, min(m.MaxContext, 160))
			rows := []int{1, 16, 64}
			dense := machine(t, m, makePlan(t, m, pair[:1], rows, context, op.A32W32, bySingle), executor.Options{})
			all := attentive(t, m, 1)
			every := machineWith(t, m, sparsePlan(t, m, all, pair[:1], rows, rows, context, 8, op.F32, nil), all, executor.Options{})
			some := attentive(t, m, 0.3)
			machines := []*executor.Machine{}
			for _, f := range []layoutOf{nil, byStages, byKeyHeads} {
				machines = append(machines, machineWith(t, m, sparsePlan(t, m, some, pair, rows, rows, context, 8, op.F32, f), some,
					executor.Options{}))
			}
			for _, n := range lengths {
				ids := texts[n].ids
				for _, chunks := range [][]int{nil, {5, 1, 20}, {3, 1, 1, 1, 60}} {
					if chunks != nil && (n < 33 || dependsOnLength(m)) {
						continue
					}
					want := allLogits(t, dense, ids, chunks...)
					size := maxDiff(want, make([]float32, len(want)))
					if got := maxDiff(allLogits(t, every, ids, chunks...), want); got > 1e-5*max(1, size) {
						t.Errorf("%d tokens in chunks %v: logits of all positions differ by %.2g, of %.2g at most", n, chunks, got, size)
					}
					first := allLogits(t, machines[0], ids, chunks...)
					if difference := maxDiff(first, want); n > 100 && difference == 0 {
						t.Errorf("%d tokens: a third of the positions gives the logits of all", n)
					} else if math.IsInf(difference, 0) || math.IsNaN(difference) {
						t.Errorf("%d tokens: logits are not finite", n)
					}
					for i, other := range machines[1:] {
						if got := maxDiff(allLogits(t, other, ids, chunks...), first); got != 0 {
							t.Errorf("%d tokens in chunks %v, layout %d: differs from one processor by %g, want equal bits", n, chunks, i+1, got)
						}
					}
				}
			}
			for _, x := range append(machines, dense, every) {
				x.Close()
			}
		})
	}
}

// Of a cache of 16 and of 8 bits all positions give what dense attention gives. Of a share so small that it selects the
// block's own positions and the first ones alone, logits are finite.
func TestSparseAttentionOfNarrowCaches(t *testing.T) {
	a, _ := cores(t)
	m, err := models.Open("../../testdata/arch/llama-plain")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	ids := readLogits(t, "../../testdata/arch/llama-plain/logits.safetensors")[130].ids
	for _, kv := range op.CacheTypes {
		run := func(density float64, sparse ...int) []float32 {
			cal := attentive(t, m, density)
			x := machineWith(t, m, sparsePlan(t, m, cal, []planir.Proc{proc("a", a, "")}, []int{1, 64}, sparse, 130, 16, kv, nil), cal,
				executor.Options{})
			defer x.Close()
			return allLogits(t, x, ids)
		}
		dense := run(1)
		if d := maxDiff(run(1, 1, 64), dense); d > 1e-5*maxDiff(dense, make([]float32, len(dense))) {
			t.Errorf("cache %s: logits of all positions differ by %g", kv, d)
		}
		if d := maxDiff(run(1e-9, 64), dense); d == 0 || math.IsInf(d, 0) || math.IsNaN(d) {
			t.Errorf("cache %s: logits of almost no positions differ by %g", kv, d)
		}
	}
}
