package models

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

const tinyEntry = `schema: hetc.model/1
name: small
source: made up for tests
config: {architectures: [LlamaForCausalLM], hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 96, vocab_size: 300, max_position_embeddings: 128, rms_norm_eps: 1.0e-5,
  rope_theta: 10000.0, bos_token_id: 1}
`

// openEntry returns the catalog entry of these tests.
func openEntry(t *testing.T) *Model {
	t.Helper()
	entry, err := parseEntry("small.yaml", []byte(tinyEntry))
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

// synth writes a random model of an entry, and opens it until the test ends.
func synth(t *testing.T, entry *Model, seed uint64) *Model {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "new", "model")
	if err := Synth(t.Context(), entry, dir, seed, ""); err != nil {
		t.Fatal(err)
	}
	if beside, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(beside) != 1 {
		t.Fatalf("left beside the directory: %v, %v", beside, err)
	}
	model, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	return model
}

// digestOf returns the digest of a model.
func digestOf(t *testing.T, model *Model) string {
	t.Helper()
	digest, err := model.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// A random model follows from its seed, on any number of processors, and opens with nothing unread or unused.
func TestSynthIsDeterministicAndLoadable(t *testing.T) {
	entry := openEntry(t)
	model := synth(t, entry, 7)
	if !model.Synthetic || model.Stored != op.BF16 || len(model.Ignored()) > 0 || len(model.UnreadKeys()) > 0 {
		t.Errorf("got synthetic %v, %s, ignored %v, unread %v", model.Synthetic, model.Stored, model.Ignored(),
			model.UnreadKeys())
	}

	before := runtime.GOMAXPROCS(1)
	again := synth(t, entry, 7)
	runtime.GOMAXPROCS(before)
	// An earlier build wrote this one: synthetic models keep their digests.
	const want = "03d235475c37c2808ae9e6d8b3092de6089d7a57981e7a5c96c3d4fc18b8acb6"
	if got, one := digestOf(t, model), digestOf(t, again); got != want || one != want {
		t.Errorf("got %s, and %s on one processor, want %s", got, one, want)
	}
	if digestOf(t, synth(t, entry, 8)) == want {
		t.Error("another seed gives the same weights")
	}
}

// Weights have the spread that keeps what flows through a model of one size, and some channels stick out.
func TestSynthSpreads(t *testing.T) {
	model := synth(t, openEntry(t), 7)
	values := func(name string) []float32 {
		tensor, err := model.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		return allValues(t, tensor)
	}
	const hidden, ffn = 64, 96
	for name, want := range map[string]float64{
		"model.layers.1.mlp.up_proj.weight": 0.8 / math.Sqrt(hidden),
		"model.embed_tokens.weight":         0.02,
		"lm_head.weight":                    0.8 / math.Sqrt(hidden),
		// 3 of 64 rows are 10 times as large.
		"model.layers.0.mlp.down_proj.weight": 0.3 * 0.8 / math.Sqrt(ffn) * math.Sqrt((61+300)/64.0),
	} {
		mean, deviation := moments(values(name))
		if math.Abs(mean) > want/20 || math.Abs(deviation/want-1) > 0.1 {
			t.Errorf("%s: mean %g, deviation %g, want 0 and %g", name, mean, deviation, want)
		}
	}
	gains, excess := values("model.norm.weight"), 0.0
	for _, gain := range gains {
		excess += float64(gain) - 1
	}
	if excess != 8+6+5+4+4+3-6 {
		t.Errorf("norm gains %v", gains)
	}
}

// moments returns the mean and the standard deviation.
func moments(values []float32) (mean, deviation float64) {
	for _, value := range values {
		mean += float64(value) / float64(len(values))
	}
	for _, value := range values {
		deviation += (float64(value) - mean) * (float64(value) - mean) / float64(len(values))
	}
	return mean, math.Sqrt(deviation)
}

// A directory with something in it, and a model that is no catalog entry, are refused.
func TestSynthRefuses(t *testing.T) {
	entry := openEntry(t)
	model := synth(t, entry, 7)
	if err := Synth(t.Context(), entry, model.Dir, 7, ""); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("occupied directory: got %v", err)
	}
	elsewhere := filepath.Join(t.TempDir(), "x")
	if err := Synth(t.Context(), model, elsewhere, 7, ""); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("not an entry: got %v", err)
	}
}

// Of a run that is cancelled nothing is left.
func TestSynthCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	parent := t.TempDir()
	err := Synth(ctx, openEntry(t), filepath.Join(parent, "x"), 7, "")
	if diag.ClassOf(err) != diag.ClassInterrupted {
		t.Errorf("got %v, want an interruption", err)
	}
	if left, _ := os.ReadDir(parent); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// What a synthetic tensor is drawn from follows from the graph, for every architecture.
func TestRolesOfWeights(t *testing.T) {
	roles := map[string]role{
		"embed.table":           embedding,
		"layers.attn_norm":      gain,
		"layers.attn_norm_bias": bias,
		"layers.q_norm":         headGain,
		"layers.qkv":            projection,
		"layers.qkv_bias":       bias,
		"layers.attn_out":       residual,
		"layers.router":         projection,
		"layers.expert_gate_up": projection,
		"layers.expert_down":    residual,
		"layers.shared_switch":  projection,
		"layers.shared_down":    residual,
		"layers.ffn_gate_up":    projection,
		"layers.ffn_up":         projection,
		"layers.ffn_down":       residual,
		"layers.ffn_post_norm":  gain,
		"head.lm_head":          projection,
	}
	seen := map[string]bool{}
	files, err := filepath.Glob("../testdata/arch/*/config.json")
	if err != nil || len(files) < 20 {
		t.Fatalf("found %d models (%v)", len(files), err)
	}
	for _, file := range files {
		model, err := Open(filepath.Dir(file))
		if err != nil {
			continue // refused by a key, see TestReferenceModelsOpen
		}
		graph := model.Graph()
		for i := range graph.Weights {
			weight := &graph.Weights[i]
			want, listed := roles[weight.Name]
			if !listed {
				continue
			}
			seen[weight.Name] = true
			tied := model.Tied && weight.Name == "head.lm_head" // it is the table
			if got := graph.role(weight); got != want && !tied {
				t.Errorf("%s: %s has role %d, want %d", model.Name, weight.Name, got, want)
			}
		}
		model.Close()
	}
	for name := range roles {
		if !seen[name] {
			t.Errorf("no model has %s", name)
		}
	}
}
