package executor_test

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/tokenizer"
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

// Of the positions that the estimate puts first, nearly all are those of exact scores: on held-out text, at shares of 5 to
// 40 %, with static scales of each head from the text's first half.
func TestEstimateFindsTheLargestScores(t *testing.T) {
	a, _ := cores(t)
	m, err := models.Open(demo)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	const tokens, block = 512, op.SparseBlock
	files, err := m.TokenizerFiles()
	if err != nil {
		t.Fatal(err)
	}
	encoder, err := tokenizer.New(files["tokenizer"], files["config"], m.BOS)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(demo, "valid.txt"))
	if err != nil {
		t.Fatal(err)
	}
	ids, err := encoder.Encode(string(text))
	if err != nil || len(ids) < tokens {
		t.Fatalf("the text has %d tokens (%v), want %d", len(ids), err, tokens)
	}
	dim, group := m.HeadDim, m.Heads/m.KVHeads
	width := (group + 2) * dim
	// queries and keys behind rotation, by layer, and estimated scores of the only call
	type layer struct{ qkv, scores []float32 }
	run := func(cal *calibration.Calibration) []layer {
		layers := make([]layer, m.Layers)
		plan := sparsePlan(t, m, cal, []planir.Proc{proc("a", a, "")}, []int{1, tokens}, []int{tokens}, tokens, block, op.F32, nil)
		x := machineWith(t, m, plan, cal, executor.Options{Observe: func(o executor.Observed) {
			if len(o.Out) == 0 {
				return
			}
			values, err := mem.View[float32](o.Out[0].Bytes())
			switch {
			case err != nil: // positions
			case strings.HasSuffix(o.Node, "attention_append"):
				layers[o.Layer].qkv = slices.Clone(values)
			case strings.HasSuffix(o.Node, "attention_estimate"):
				layers[o.Layer].scores = slices.Clone(values)
			}
		}})
		defer x.Close()
		allLogits(t, x, ids[:tokens])
		return layers
	}
	cal := attentive(t, m, 1)
	for i, seen := range run(cal) {
		at := &cal.Attention.Layers[i]
		most := func(head, place int) (top float32) {
			for row := range tokens / 2 {
				for _, value := range seen.qkv[row*m.KVHeads*width+head/group*width+place*dim:][:dim] {
					top = max(top, value, -value)
				}
			}
			return top
		}
		for head := range m.Heads {
			at.Heads[head].QueryScale = most(head, head%group) / 127
			at.KeyScales[head/group] = most(head, group) / 127
		}
	}
	cal.Attention.Buckets = cal.Attention.MeanBuckets()
	least := map[float64]float64{0.05: 0.95, 0.1: 0.96, 0.2: 0.97, 0.4: 0.98}
	layers := run(cal)
	for _, share := range []float64{0.05, 0.1, 0.2, 0.4} {
		found, wanted := 0, 0
		for _, seen := range layers {
			for head := range m.Heads {
				for first := tokens / 2; first < tokens; first += 5 * block {
					exact := make([]float32, first)
					for row := first; row < first+block; row++ {
						query := seen.qkv[row*m.KVHeads*width+head/group*width+head%group*dim:][:dim]
						scores, top := make([]float32, first), float32(math.Inf(-1))
						for pos := range scores {
							for i, value := range seen.qkv[pos*m.KVHeads*width+head/group*width+group*dim:][:dim] {
								scores[pos] += query[i] * value
							}
							top = max(top, scores[pos])
						}
						for pos, score := range scores {
							if below := score - top; row == first || below > exact[pos] {
								exact[pos] = below
							}
						}
					}
					count := int(share * float64(first))
					estimated := seen.scores[first/block*m.Heads*tokens+head*tokens:][:first]
					want := largest(exact, count)
					for pos := range largest(estimated, count) {
						if want[pos] {
							found++
						}
					}
					wanted += count
				}
			}
		}
		recall := float64(found) / float64(wanted)
		t.Logf("recall at %v: %.4f of %d", share, recall, wanted)
		if recall < least[share] {
			t.Errorf("recall at %v is %.4f, want at least %v", share, recall, least[share])
		}
	}
}

// largest are the places of the count largest values.
func largest(values []float32, count int) map[int]bool {
	places := make([]int, len(values))
	for i := range places {
		places[i] = i
	}
	slices.SortStableFunc(places, func(a, b int) int { return cmp.Compare(values[b], values[a]) })
	out := map[int]bool{}
	for _, place := range places[:count] {
		out[place] = true
	}
	return out
}
