package models

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// small is a valid config.json that tests change key by key.
func small() map[string]any {
	return map[string]any{
		"architectures": []any{"LlamaForCausalLM"}, "model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2,
		"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24, "vocab_size": 40,
		"max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
		"bos_token_id": 1, "eos_token_id": []any{3, 2, 3}, "torch_dtype": "bfloat16",
	}
}

// smallOf is small of another architecture.
func smallOf(class string) map[string]any {
	config := small()
	config["architectures"] = []any{class}
	delete(config, "model_type")
	return config
}

func readSmall(t testing.TB, config map[string]any) (*Model, error) {
	t.Helper()
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return readBytes("config.json", data)
}

func readBytes(name string, data []byte) (*Model, error) {
	doc, err := decode.Parse(name, data)
	if err != nil {
		return nil, err
	}
	c, err := newDocument(doc)
	if err != nil {
		return nil, err
	}
	m, err := c.model()
	if err != nil {
		return nil, err
	}
	m.graph = decoderGraph(m)
	return m, nil
}

func TestConfigIsRead(t *testing.T) {
	config := small()
	config["rope_parameters"] = map[string]any{"rope_theta": 10000.0, "rope_type": "default"}
	config["something_new"] = 1
	m, err := readSmall(t, config)
	if err != nil {
		t.Fatal(err)
	}
	got := []any{m.Hidden, m.Layers, m.Heads, m.KVHeads, m.HeadDim, m.FFN, m.Vocab, m.MaxContext, m.NormEps, m.RopeTheta, m.BOS, m.EOS, m.Stored, m.Tied, m.Synthetic, m.unread}
	want := []any{16, 2, 4, 2, 4, 24, 40, 64, 1e-5, 1e4, 1, []int{2, 3}, op.BF16, false, false, []string{"something_new"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestRopeSpellings(t *testing.T) {
	for name, c := range map[string]struct {
		theta, params, scaling any
		want                   float64
	}{
		"old":            {theta: 500000.0, want: 500000},
		"new":            {params: map[string]any{"rope_type": "default", "rope_theta": 20000}, want: 20000},
		"both":           {theta: 30000.0, params: map[string]any{"rope_theta": 40000.0}, want: 40000},
		"all three":      {theta: 30000.0, params: map[string]any{"rope_theta": 40000.0}, scaling: map[string]any{"type": "default"}, want: 30000},
		"unused keys":    {theta: 30000.0, scaling: map[string]any{"type": "linear", "factor": 2, "beta_fast": 3}, want: 30000},
		"neither":        {want: 10000},
		"unscaled":       {theta: 5000.0, scaling: map[string]any{"type": "default"}, want: 5000},
		"empty new form": {theta: 5000.0, params: map[string]any{}, want: 5000},
	} {
		config := small()
		config["rope_theta"], config["rope_parameters"], config["rope_scaling"] = c.theta, c.params, c.scaling
		m, err := readSmall(t, config)
		if err != nil || m.RopeTheta != c.want {
			t.Errorf("%s: got %v, want theta %v", name, err, c.want)
		}
	}
}

func TestUnsupportedConfigIsRefusedByKey(t *testing.T) {
	for _, c := range []struct {
		key   string
		value any
		want  string
	}{
		{"architectures", []any{"BertForMaskedLM"}, `key "architectures": ["BertForMaskedLM"] is not supported`},
		{"architectures", []any{"LlamaForCausalLM", "X"}, `key "architectures"`},
		{"architectures", "LlamaForCausalLM", `key "architectures": got "LlamaForCausalLM", want a list`},
		{"architectures", []any{map[string]any{}}, `key "architectures": element 0`},
		{"model_type", "qwen2", `key "model_type": got "qwen2", want "llama" as for the LlamaForCausalLM that "architectures" names`},
		{"model_type", 3, `key "model_type": got 3, want "llama"`},
		{"rope_scaling", map[string]any{"rope_type": "llama3", "factor": 8.0}, `key "rope_scaling.low_freq_factor": missing, want a number`},
		{"rope_scaling", map[string]any{"rope_type": "proportional", "factor": 8.0}, `key "rope_scaling.rope_type": "proportional" is not supported; supported: default, linear, dynamic`},
		{"rope_scaling", map[string]any{"type": "longrope", "short_factor": []any{1.0}, "long_factor": []any{1.0, 2.0}}, `key "rope_scaling.short_factor": got 1 numbers, want 2`},
		{"rope_scaling", map[string]any{"type": "linear", "factor": 0}, `key "rope_scaling.factor": got 0, want a number`},
		{"rope_scaling", 3, `key "rope_scaling": got 3, want an object`},
		{"rope_parameters", map[string]any{"full_attention": map[string]any{}}, `key "rope_parameters.full_attention": an empty object is not supported`},
		{"rope_theta", 0.0, `key "rope_theta": got 0, want a number`},
		{"rope_scaling", map[string]any{"type": "yarn", "factor": 2.0, "rope_theta": 1.0}, `key "rope_scaling.rope_theta": 1 has no yarn, want more than 1`},
		{"is_causal", false, `key "is_causal": false is not supported; supported: causal attention`},
		{"is_causal", nil, `key "is_causal": null is not supported; supported: causal attention`},
		{"vocab_size", 1, `key "vocab_size": 1, want at least 2 tokens`},
		{"per_layer_config", map[string]any{"1": map[string]any{"sliding_window": 4}}, `key "per_layer_config": an object with the keys 1 is not supported`},
		{"sliding_window", 4096, `key "sliding_window": 4096 is not supported; supported: attention over the whole context`},
		{"layer_types", []any{"full_attention", "sliding_attention"}, `key "layer_types": "sliding_attention" is not supported`},
		{"attention_bias", 1, `key "attention_bias": got 1, want true or false`},
		{"mlp_bias", "yes", `key "mlp_bias"`},
		{"hidden_act", "tanh", `key "hidden_act": "tanh" is not supported; supported: silu, gelu`},
		{"hidden_act", []any{"silu"}, `key "hidden_act"`},
		{"quantization_config", map[string]any{"bits": 4}, `key "quantization_config": an object with the keys bits is not supported`},
		{"num_local_experts", 8, `key "num_local_experts"`},
		{"partial_rotary_factor", 0.5, `key "partial_rotary_factor"`},
		{"torch_dtype", "float8_e4m3fn", `key "torch_dtype"`},
		{"hidden_size", nil, `key "hidden_size": missing, want an integer in 1..16777216`},
		{"hidden_size", -1, `key "hidden_size": got -1`},
		{"hidden_size", 1 << 40, `key "hidden_size": got 1099511627776`},
		{"hidden_size", "16", `key "hidden_size": got "16"`},
		{"hidden_size", 16.5, `key "hidden_size": got 16.5`},
		{"hidden_size", 18, `key "hidden_size": 18, want a multiple of num_attention_heads 4`},
		{"num_hidden_layers", 1 << 20, `key "num_hidden_layers"`},
		{"num_key_value_heads", 3, `key "num_key_value_heads": 3, want a divisor of num_attention_heads 4`},
		{"head_dim", 5, `key "head_dim": 5, want an even number`},
		{"head_dim", 1 << 23, `key "head_dim": got 8388608, want an integer in 1..8192`},
		{"intermediate_size", 1 << 24, `2 * intermediate_size = 33554432`},
		{"rms_norm_eps", "x", `key "rms_norm_eps"`},
		{"rms_norm_eps", -1.0, `key "rms_norm_eps"`},
		{"bos_token_id", -1, `key "bos_token_id": got -1, want token ids`},
		{"bos_token_id", []any{1, 2}, `key "bos_token_id": got [1 2], want one token id`},
		{"eos_token_id", []any{1, -2}, `key "eos_token_id": got [1 -2], want token ids`},
		{"eos_token_id", "</s>", `key "eos_token_id": got "</s>", want token ids`},
		{"tie_word_embeddings", 1, `key "tie_word_embeddings": got 1, want true or false`},
	} {
		config := small()
		config[c.key] = c.value
		_, err := readSmall(t, config)
		if err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s = %v: got %v\nwant %q", c.key, c.value, err, c.want)
		}
	}
}

// Small models of a class have its tokens in their configuration, which the reference implementation never looks up.
func TestTokensBeyondTheVocabulary(t *testing.T) {
	config := small()
	config["bos_token_id"], config["eos_token_id"] = 40, []any{3, 32000}
	model, err := readSmall(t, config)
	if err != nil {
		t.Fatal(err)
	}
	unread := []string{"bos_token_id 40", "eos_token_id 32000"}
	if model.BOS != -1 || !reflect.DeepEqual(model.EOS, []int{3}) || !reflect.DeepEqual(model.unread, unread) {
		t.Errorf("got begin %d, ends %v and unread keys %v, want -1, [3] and %v", model.BOS, model.EOS, model.unread, unread)
	}
}

// A Mistral that lists its layers has the window where the list says so, as AutoModel of the reference reads it.
func TestMistralWithLayerTypes(t *testing.T) {
	for _, c := range []struct {
		layers  any
		want    string
		windows []int // of each section
	}{
		{nil, "embed layers head", []int{0, 7, 0}},
		{[]any{"sliding_attention", "full_attention"}, "embed layers_windowed layers head", []int{0, 7, 0, 0}},
		{[]any{"full_attention", "full_attention"}, "embed layers head", []int{0, 0, 0}},
	} {
		config := smallOf("MistralForCausalLM")
		config["layer_types"], config["sliding_window"] = c.layers, 7
		m, err := readSmall(t, config)
		if err != nil {
			t.Fatal(err)
		}
		graph := m.Graph()
		var names []string
		var windows []int
		for _, section := range graph.Sections {
			window := 0
			for _, node := range section.Nodes {
				for _, o := range node.Ops {
					window = max(window, o.Window)
				}
			}
			names, windows = append(names, section.Name), append(windows, window)
		}
		if got := strings.Join(names, " "); got != c.want || !reflect.DeepEqual(windows, c.windows) {
			t.Errorf("layer_types %v: sections %s with windows %v, want %s with %v", c.layers, got, windows, c.want, c.windows)
		}
	}
}

// In a window of no positions the reference implementation masks all of them. A key that switches windows off makes it
// mean nothing.
func TestEmptyWindow(t *testing.T) {
	for class, refused := range map[string]bool{"MistralForCausalLM": true, "Phi3ForCausalLM": true, "Qwen2ForCausalLM": false} {
		config := smallOf(class)
		config["sliding_window"] = 0
		_, err := readSmall(t, config)
		if said := strings.Contains(fmt.Sprint(err), `key "sliding_window": 0 positions`); said != refused {
			t.Errorf("%s with a window of 0: got %v, want a refusal: %v", class, err, refused)
		}
	}
}

// Qwen models have a window only if a key switches it on, also where they list the layers that have it.
func TestListedLayersNeedAWindow(t *testing.T) {
	for _, c := range []struct {
		class   string
		use     any
		window  any
		refused bool
	}{
		{"Qwen2ForCausalLM", nil, 16, true}, {"Qwen2MoeForCausalLM", false, 16, true}, {"Qwen3ForCausalLM", true, 16, false},
		{"MistralForCausalLM", nil, nil, true}, {"MistralForCausalLM", nil, 16, false},
	} {
		config := smallOf(c.class)
		config["layer_types"] = []any{"sliding_attention", "full_attention"}
		config["use_sliding_window"], config["sliding_window"] = c.use, c.window
		_, err := readSmall(t, config)
		const refusal = `key "layer_types": names layers with a window that no key gives`
		if said := strings.Contains(fmt.Sprint(err), refusal); said != c.refused || (err != nil) != c.refused {
			t.Errorf("%s with use_sliding_window %v and a window of %v: got %v, want a refusal: %v", c.class, c.use, c.window,
				err, c.refused)
		}
	}
}

// Every second layer of a Gemma 2 has a window, so there must be one unless layer_types says otherwise. The reference
// implementation fails without one.
func TestGemma2NeedsAWindow(t *testing.T) {
	full := []any{"full_attention", "full_attention"}
	for _, c := range []struct {
		window, layers any
		refused        bool
	}{{nil, nil, true}, {8, nil, false}, {nil, full, false}} {
		config := smallOf("Gemma2ForCausalLM")
		config["head_dim"], config["sliding_window"], config["layer_types"] = 4, c.window, c.layers
		_, err := readSmall(t, config)
		if said := strings.Contains(fmt.Sprint(err), `key "sliding_window": null is not supported`); said != c.refused {
			t.Errorf("window %v, layers %v: got %v, want a refusal: %v", c.window, c.layers, err, c.refused)
		}
	}
}

// YaRN truncates the range of elements between which it interpolates unless the key says otherwise, which a null does.
func TestYarnTruncates(t *testing.T) {
	table := func(params map[string]any) []float32 {
		config := small()
		config["head_dim"] = 32
		config["rope_parameters"] = params
		maps.Copy(params, map[string]any{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64})
		model, err := readSmall(t, config)
		if err != nil {
			t.Fatal(err)
		}
		return model.decoder.rope.table
	}
	truncated, whole := table(map[string]any{"truncate": true}), table(map[string]any{"truncate": false})
	if reflect.DeepEqual(truncated, whole) {
		t.Fatal("truncating changes nothing, so that this tests nothing")
	}
	if got := table(map[string]any{}); !reflect.DeepEqual(got, truncated) {
		t.Errorf("without the key: got %v, want %v", got, truncated)
	}
	if got := table(map[string]any{"truncate": nil}); !reflect.DeepEqual(got, whole) {
		t.Errorf("truncate null: got %v, want %v", got, whole)
	}
}

// PhiMoE scales what it rotates by short_mscale and long_mscale whatever the type of scaling is, and its reference
// implementation has them for longrope alone.
func TestPhiMoEHasOneScaling(t *testing.T) {
	longrope := map[string]any{"rope_type": "longrope", "short_factor": []any{1, 2}, "long_factor": []any{2, 4},
		"short_mscale": 1.1, "long_mscale": 1.3}
	scales := map[string]any{"factor": 4.0, "short_mscale": 1.1, "long_mscale": 1.3}
	for kind, params := range map[string]map[string]any{
		"default": {}, "longrope": longrope, "yarn": scales, "linear": scales, "dynamic": scales,
	} {
		config := smallOf("PhimoeForCausalLM")
		config["rope_parameters"] = params
		params["rope_type"] = kind
		refusal := fmt.Sprintf(`key "rope_parameters.rope_type": %q is not supported; supported: default, longrope`, kind)
		_, err := readSmall(t, config)
		said := strings.HasSuffix(fmt.Sprint(err), refusal)
		if supported := kind == "default" || kind == "longrope"; said == supported || supported && err != nil {
			t.Errorf("%s: got %v, want it refused unless it is supported", kind, err)
		}
	}
}

// The original context beside the parameters wins over the one among them, except in PhiMoE.
func TestOriginalContextIsGivenTwice(t *testing.T) {
	for class, want := range map[string]int{"LlamaForCausalLM": 16, "Phi3ForCausalLM": 16, "PhimoeForCausalLM": 32} {
		config := smallOf(class)
		config["original_max_position_embeddings"] = 16
		config["rope_parameters"] = map[string]any{"rope_type": "longrope", "short_factor": []any{1, 2},
			"long_factor": []any{2, 4}, "short_mscale": 1.1, "long_mscale": 1.3, "original_max_position_embeddings": 32}
		model, err := readSmall(t, config)
		if err != nil {
			t.Fatal(err)
		}
		if got := model.decoder.rope.op.LongFrom; got != want {
			t.Errorf("%s: got the long factors beyond %d positions, want %d", class, got, want)
		}
	}
}

// Where the factors of Llama 3 are the wrong way round, a wavelength beyond both bounds is slowed down, as in the
// reference implementation.
func TestLlama3FactorsTheWrongWayRound(t *testing.T) {
	const wave = 16 // of a context of 32: 4 turns take 8 positions, one takes 32
	base := []float32{2 * math.Pi / wave}
	for _, c := range []struct{ low, high, want float64 }{{4, 1, 0.5}, {1, 4, 1 / 1.5}, {1, 1.5, 1}} {
		got := llama3Frequencies(base, 2, c.low, c.high, 32)
		if ratio := float64(got[0] / base[0]); math.Abs(ratio-c.want) > 1e-6 {
			t.Errorf("low %v, high %v: frequencies times %v, want %v", c.low, c.high, ratio, c.want)
		}
	}
}

func TestConfigErrorsCarryLinesAndHints(t *testing.T) {
	_, err := readBytes("config.json", []byte("{\n \"architectures\": [\"GPT2LMHeadModel\"]\n}"))
	if err == nil || !strings.HasPrefix(err.Error(), "config.json:2: ") {
		t.Errorf("got %v, want it at line 2", err)
	}
	if h := diag.HintsOf(err); len(h) != 1 || !strings.HasPrefix(h[0], "supported architectures: LlamaForCausalLM, MistralForCausalLM") {
		t.Errorf("got hints %q", h)
	}
	if _, err = readBytes("config.json", []byte(`{"hidden_size": 8}`)); err == nil || !strings.Contains(err.Error(), `key "architectures": missing, want the name of one`) {
		t.Errorf("got %v", err)
	}
	config := small()
	config["quantization_config"] = map[string]any{"quant_method": "fp8", "activation_scheme": "dynamic"}
	if _, err = readSmall(t, config); err == nil || !strings.Contains(err.Error(), `weights quantised by "fp8" are not supported`) ||
		strings.Join(diag.HintsOf(err), "") != quantisedHint {
		t.Errorf("got %v with hints %q", err, diag.HintsOf(err))
	}
	for _, text := range []string{"", "[]", "null", "{", `{"a":1}{"b":2}`, `{"a":1,"a":2}`, "\xff", strings.Repeat(`{"a":`, 100), `{"hidden_size": NaN}`} {
		if _, err := readBytes("config.json", []byte(text)); err == nil {
			t.Errorf("%q: accepted", text)
		}
	}
}

func TestGraphIsConsistent(t *testing.T) {
	models := []*Model{openTiny(t)}
	for _, name := range CatalogNames() {
		m, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.UnreadKeys()) > 0 {
			t.Errorf("%s: keys that mean nothing: %v", name, m.UnreadKeys())
		}
		models = append(models, m)
	}
	odd := small()
	odd["intermediate_size"], odd["head_dim"], odd["tie_word_embeddings"] = 18, 6, true
	m, err := readSmall(t, odd)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range append(models, m) {
		g := m.Graph()
		used := map[string]bool{}
		for _, s := range g.Sections {
			cols := map[string]Value{}
			for _, v := range s.Values {
				cols[v.Name] = v
			}
			for _, n := range s.Nodes {
				operands := 0
				for _, o := range n.At(3, 7) {
					if err := o.Validate(); err != nil {
						t.Errorf("%s %s: %v", m.Name, n.Name, err)
					}
					for _, w := range o.Sig().W {
						weight := g.Weight(n.W[operands])
						spec := o.WeightSpec(w, "n32")
						if weight == nil || weight.K != spec.K || weight.N != spec.N {
							t.Errorf("%s %s: weight %v, want [%d,%d]", m.Name, n.Name, weight, spec.K, spec.N)
						}
						operands++
					}
				}
				if operands != len(n.W) {
					t.Errorf("%s %s: %d weights, operators take %d", m.Name, n.Name, len(n.W), operands)
				}
				for _, w := range n.W {
					used[w] = true
				}
				for _, v := range append(n.In, n.Out...) {
					if _, ok := cols[v]; !ok {
						t.Errorf("%s %s: value %q is not declared", m.Name, n.Name, v)
					}
				}
			}
		}
		for _, w := range g.Weights {
			sum := 0
			for i := range w.From {
				sum += int(elements(sourceShape(&w, i)))
			}
			if w.Const == nil && sum != w.K*w.N || w.Const != nil && len(w.Const) != w.N {
				t.Errorf("%s %s: sources hold %d values, want [%d,%d]", m.Name, w.Name, sum, w.K, w.N)
			}
			if !used[w.Name] {
				t.Errorf("%s: weight %s is listed but not used", m.Name, w.Name)
			}
			if !strings.Contains(w.Name, "gate_up") && !strings.HasPrefix(w.Name, "layers.qkv") && w.Interleave != nil {
				t.Errorf("%s: %s is interleaved", m.Name, w.Name)
			}
		}
	}
	if g := m.Graph(); g.Weight("layers.ffn_gate_up").Interleave[0] != 2 || g.Section("layers").Nodes[7].Ops[0].Interleave != 2 {
		t.Error("18 columns of gate and up: want them interleaved by 2")
	}
}

// The published numbers of parameters are those of the catalog's shapes.
func TestCatalogParameters(t *testing.T) {
	want := map[string]int64{
		"gemma-2b": 2506172416, "internlm2-1.8b": 1889110016, "llama-2-7b": 6738415616, "llama-3-8b": 8030261248,
		"llama-3.2-1b": 1235814400, "llama-3.2-3b": 3212749824, "mistral-7b": 7241732096, "mixtral-8x7b": 46702792704, "olmoe-1b-7b": 6919161856,
		"olmoe-0.7b": 732587008, "tinyllama-0.2b": 219162624, // counted here: they are not published
		"phi-2": 2779683840, "phi-3.5-moe": 41873153344, "phi-tiny-moe": 3755220288, "qwen1.5-1.8b": 1836828672, "qwen1.5-moe-a2.7b": 14315784192,
		"qwen2-0.5b": 494032768, "qwen2-1.5b": 1543714304, "qwen3-4b": 4022468096, "qwen3-30b-a3b": 30532122624, "tinyllama-1.1b": 1100048384,
	}
	for _, name := range CatalogNames() {
		m, err := Open(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := m.Parameters(); got != want[name] {
			t.Errorf("%s: %d parameters, want %d", name, got, want[name])
		}
		if m.Name != name || m.Source == "" || m.HasWeights() {
			t.Errorf("%s: name %q, source %q, weights %v", name, m.Name, m.Source, m.HasWeights())
		}
		if _, err := m.Tensor("model.norm.weight"); diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) != 1 {
			t.Errorf("%s: reading a tensor: got %v %q, want an error with a hint", name, err, diag.HintsOf(err))
		}
		g := m.Graph()
		for _, s := range g.Sections {
			for _, n := range s.Nodes {
				for _, o := range n.At(1, 1) {
					if err := o.Validate(); err != nil {
						t.Errorf("%s: %s.%s: %v", name, s.Name, n.Name, err)
					}
				}
			}
		}
	}
}

func TestUnknownNamesGetASuggestion(t *testing.T) {
	_, err := Open("tinylama-1.1b")
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(strings.Join(diag.HintsOf(err), " "), `did you mean "tinyllama-1.1b"?`) {
		t.Errorf("got %v, hints %q", err, diag.HintsOf(err))
	}
	for _, name := range []string{"", "no/such/dir", "../catalog/llama-3-8b", filepath.Join(tinyDir, "config.json"), "a\x00b"} {
		if _, err := Open(name); diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) == 0 {
			t.Errorf("%q: got %v, hints %q", name, err, diag.HintsOf(err))
		}
	}
}

// The values PyPI torch 2.15.0 computes for 1.0 / (theta ** (arange(0, dim, 2) / dim)) in float32,
// as bits.
func TestInverseFrequencies(t *testing.T) {
	for _, c := range []struct {
		theta float64
		dim   int
		want  map[int]uint32
	}{
		{10000, 64, map[int]uint32{0: 0x3f800000, 1: 0x3f3ff911, 2: 0x3f0ff59a, 8: 0x3dcccccd, 15: 0x3c5a7bf2, 30: 0x393a7753, 31: 0x390bd472}},
		{500000, 128, map[int]uint32{1: 0x3f508ac1, 7: 0x3e73c461, 32: 0x3ab95d21, 63: 0x3624c2ff}},
	} {
		got := inverseFrequencies(c.theta, c.dim)
		if len(got) != c.dim/2 {
			t.Fatalf("got %d frequencies, want %d", len(got), c.dim/2)
		}
		for i, want := range c.want {
			if math.Float32bits(got[i]) != want {
				t.Errorf("theta %v dim %d: frequency %d is %08x, want %08x", c.theta, c.dim, i, math.Float32bits(got[i]), want)
			}
		}
	}
}

// copyModel makes a directory of the demo model's files whose files a test may change.
func copyModel(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{configName, generationName, singleName} {
		data, err := os.ReadFile(filepath.Join(tinyDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func storedTensors(t testing.TB) []safetensors.Tensor {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(tinyDir, singleName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	var out []safetensors.Tensor
	for _, name := range f.Names() {
		tensor, _ := f.Tensor(name)
		out = append(out, tensor)
	}
	return out
}

func TestBrokenDirectories(t *testing.T) {
	const norm = "model.norm.weight"
	all := storedTensors(t)
	change := func(f func(x *safetensors.Tensor) bool) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			var out []safetensors.Tensor
			for _, x := range all {
				if f(&x) {
					out = append(out, x)
				}
			}
			if err := safetensors.Write(filepath.Join(dir, singleName), out, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	set := func(key string, value any) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, configName)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var config map[string]any
			if err := json.Unmarshal(data, &config); err != nil {
				t.Fatal(err)
			}
			config[key] = value
			if err := writeJSON(path, config); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(name string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	index := func(weightMap any) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.Rename(filepath.Join(dir, singleName), filepath.Join(dir, "a.safetensors")); err != nil {
				t.Fatal(err)
			}
			if err := writeJSON(filepath.Join(dir, indexName), map[string]any{"weight_map": weightMap}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		damage func(t *testing.T, dir string)
		want   string
	}{
		"no config":            {remove(configName), "config.json"},
		"no weights":           {remove(singleName), "found neither model.safetensors nor model.safetensors.index.json"},
		"missing tensor":       {change(func(x *safetensors.Tensor) bool { return x.Name != norm }), `1 of the tensors its graph needs are missing: "model.norm.weight" [256]`},
		"wrong shape":          {change(func(x *safetensors.Tensor) bool { x.Shape = reshape(x, norm, 16, 16); return true }), `tensor "model.norm.weight": got shape [16 16], want [256]`},
		"wrong type":           {change(func(x *safetensors.Tensor) bool { retype(x, norm, "i16"); return true }), `tensor "model.norm.weight": got element type "i16", want f32, f16 or bf16`},
		"other config":         {set("intermediate_size", 512), `tensor "model.layers.0.mlp.down_proj.weight": got shape [256 768], want [256 512]`},
		"untied":               {set("tie_word_embeddings", false), `"lm_head.weight" [2048 256]`},
		"more layers":          {set("num_hidden_layers", 100), "846 of the tensors its graph needs are missing"},
		"huge layers":          {set("num_hidden_layers", 5000), `key "num_hidden_layers": got 5000`},
		"index without shards": {index(map[string]string{}), "0 shards"},
		"index to nowhere":     {index(map[string]string{norm: "b.safetensors"}), "b.safetensors"},
		"index lies":           {index(map[string]string{"x": "a.safetensors"}), `tensor "x": the index says it is in "a.safetensors", which does not hold it`},
		"index climbs":         {index(map[string]string{norm: "../a.safetensors"}), `got "../a.safetensors", want the plain name`},
		"index is absolute":    {index(map[string]string{norm: "/a.safetensors"}), "want the plain name"},
		"index with backslash": {index(map[string]string{norm: `..\a.safetensors`}), "want the plain name"},
		"index hidden":         {index(map[string]string{norm: ".safetensors"}), "want the plain name"},
		"index NUL":            {index(map[string]string{norm: "a\x00.safetensors"}), "want the plain name"},
		"index other file":     {index(map[string]string{norm: "config.json"}), "want the plain name"},
		"index number":         {index(map[string]int{norm: 1}), "got 1, want the plain name"},
		"index list":           {index([]string{norm}), `key "weight_map"`},
		"bad generation": {func(t *testing.T, dir string) {
			writeText(t, filepath.Join(dir, generationName), `{"eos_token_id": "x"}`)
		}, `generation_config.json:1: model.config: key "eos_token_id"`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyModel(t)
			c.damage(t, dir)
			m, err := Open(dir)
			if err == nil {
				m.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) != diag.ClassInput {
				t.Errorf("got %v\nwant %q", err, c.want)
			}
			if err != nil && len(err.Error()) > 4000 {
				t.Errorf("error has %d characters", len(err.Error()))
			}
		})
	}
}

// Weights of another form than can be read come with a hint how to get others.
func TestUnreadableWeightsCarryAHint(t *testing.T) {
	const norm, query = "model.norm.weight", "model.layers.0.self_attn.q_proj"
	for name, c := range map[string]struct {
		change     func(x *safetensors.Tensor)
		want, hint string
	}{
		"f64":               {func(x *safetensors.Tensor) { retype(x, norm, "f64") }, `got element type "f64"`, "save the model as bfloat16"},
		"i8":                {func(x *safetensors.Tensor) { retype(x, norm, "i8") }, `got element type "i8"`, quantisedHint},
		"GPTQ":              {rename(query+".weight", query+".qweight"), "1 of the tensors", quantisedHint},
		"compressed":        {rename(query+".weight", query+".weight_packed"), "1 of the tensors", quantisedHint},
		"another tensor":    {rename(query+".weight", query+".other"), "1 of the tensors", "a shard may be missing"},
		"another's qweight": {rename(query+".weight", "model.layers.1.qweight"), "1 of the tensors", "a shard may be missing"},
	} {
		dir := copyModel(t)
		tensors := storedTensors(t)
		for i := range tensors {
			c.change(&tensors[i])
			tensors[i].Data = make([]byte, bytesOf(&tensors[i]))
		}
		if err := safetensors.Write(filepath.Join(dir, singleName), tensors, nil); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(strings.Join(diag.HintsOf(err), ""), c.hint) {
			t.Errorf("%s: got %v with hints %q, want %q with %q", name, err, diag.HintsOf(err), c.want, c.hint)
		}
	}
}

// A model that was saved without its head lacks the prefix of all names but the head's, as those of models for
// embeddings do. It is the same model.
func TestNamesWithoutPrefix(t *testing.T) {
	want, err := openTiny(t).Digest()
	if err != nil {
		t.Fatal(err)
	}
	dir := copyModel(t)
	tensors := storedTensors(t)
	for i := range tensors {
		tensors[i].Name = strings.TrimPrefix(tensors[i].Name, "model.")
	}
	if err := safetensors.Write(filepath.Join(dir, singleName), tensors, nil); err != nil {
		t.Fatal(err)
	}
	model, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	if got, err := model.Digest(); err != nil || got != want || len(model.Ignored()) > 0 {
		t.Errorf("got %s, %v, ignoring %v, want %s", got, err, model.Ignored(), want)
	}
}

// rename gives the tensor of one name another.
func rename(from, to string) func(x *safetensors.Tensor) {
	return func(x *safetensors.Tensor) {
		if x.Name == from {
			x.Name = to
		}
	}
}

// bytesOf returns the size of a tensor of the types that are tried here.
func bytesOf(x *safetensors.Tensor) int {
	size := map[op.Type]int{"f64": 8, op.F32: 4, op.F16: 2, op.BF16: 2, "i8": 1}[x.Type]
	return size * int(elements(x.Shape))
}

func reshape(x *safetensors.Tensor, name string, shape ...int) []int {
	if x.Name == name {
		return shape
	}
	return x.Shape
}

func retype(x *safetensors.Tensor, name string, to op.Type) {
	if x.Name == name {
		x.Type = to
	}
}

func writeText(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Sharding, names and unused tensors do not change what a model is; one bit of a weight does.
func TestDigest(t *testing.T) {
	whole := openTiny(t)
	want, err := whole.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := whole.computeDigest(); again != want || len(want) != 64 {
		t.Fatalf("got %q and %q", want, again)
	}
	all := storedTensors(t)
	dir := copyModel(t)
	if err := os.Remove(filepath.Join(dir, singleName)); err != nil {
		t.Fatal(err)
	}
	shards := [2][]safetensors.Tensor{}
	files := map[string]string{}
	for i, x := range append(all, safetensors.Tensor{Name: "unused", Type: "i64", Shape: []int{1}, Data: make([]byte, 8)}) {
		shards[i%2] = append(shards[i%2], x)
		files[x.Name] = fmt.Sprintf("part-%d.safetensors", i%2)
	}
	for i, s := range shards {
		if err := safetensors.Write(filepath.Join(dir, fmt.Sprintf("part-%d.safetensors", i)), s, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeJSON(filepath.Join(dir, indexName), map[string]any{"weight_map": files}); err != nil {
		t.Fatal(err)
	}
	sharded, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer sharded.Close()
	if got, err := sharded.Digest(); got != want || err != nil {
		t.Errorf("sharded: got %s, %v, want %s", got, err, want)
	}
	if got := sharded.Ignored(); !reflect.DeepEqual(got, []string{"unused"}) {
		t.Errorf("ignored tensors: got %v", got)
	}

	seen := map[string]string{want: "the model"}
	differs := func(what string, m *Model) {
		t.Helper()
		d, err := m.computeDigest()
		if err != nil {
			t.Fatal(err)
		}
		if other, dup := seen[d]; dup {
			t.Errorf("%s has the digest of %s", what, other)
		}
		seen[d] = what
	}
	for name, f := range map[string]func(*Model){
		"another theta":  func(m *Model) { m.decoder.rope.table = inverseFrequencies(20000, m.HeadDim) },
		"another eps":    func(m *Model) { m.NormEps = 1e-6 },
		"a soft cap":     func(m *Model) { m.decoder.attnCap = 30 },
		"another window": func(m *Model) { m.decoder.window, m.decoder.windowed = 7, func(int) bool { return true } },
		"another end":    func(m *Model) { m.EOS = []int{3} },
		"no weights":     func(m *Model) { m.Dir, m.tensors = "", nil },
	} {
		c := &Model{}
		dec := *whole.decoder
		*c = Model{Architecture: whole.Architecture, Hidden: whole.Hidden, Layers: whole.Layers, Heads: whole.Heads, KVHeads: whole.KVHeads,
			HeadDim: whole.HeadDim, FFN: whole.FFN, Vocab: whole.Vocab, MaxContext: whole.MaxContext, NormEps: whole.NormEps,
			Dir: whole.Dir, BOS: whole.BOS, EOS: whole.EOS, Stored: whole.Stored, Tied: whole.Tied, decoder: &dec, graph: whole.graph, tensors: whole.tensors}
		if d, _ := c.computeDigest(); d != want {
			t.Fatal("a copy has another digest")
		}
		f(c)
		c.graph = decoderGraph(c)
		differs(name, c)
	}
	bent := &Model{Dir: whole.Dir, Architecture: whole.Architecture, tensors: maps.Clone(whole.tensors)}
	straight := &Model{Dir: whole.Dir, Architecture: whole.Architecture, tensors: whole.tensors}
	x := bent.tensors["model.embed_tokens.weight"].(plainTensor)
	x.t.Data = append([]byte(nil), x.t.Data...)
	x.t.Data[len(x.t.Data)-1] ^= 1
	bent.tensors[x.t.Name] = x
	differs("a stub", straight)
	differs("one bit", bent)
}

// pack reads weights from Tensor, Sources and Interleave; it has to agree with the words of Weight.
func TestPackReadsTheSameWeights(t *testing.T) {
	m := openTiny(t)
	g := m.Graph()
	for i := range g.Weights {
		w := &g.Weights[i]
		if w.Const != nil {
			continue
		}
		const layer = 1
		var sources []pack.Source
		for s, name := range w.Sources(layer, 0) {
			tensor, err := m.Tensor(name)
			if err != nil {
				t.Fatal(err)
			}
			shape := sourceShape(w, s)
			src, err := pack.Tensor(tensor, w.K, int(elements(shape))/w.K, w.Transposed)
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, src)
		}
		src := sources[0]
		if w.Interleave != nil {
			var err error
			if src, err = pack.Interleave(sources, w.Interleave); err != nil {
				t.Fatal(err)
			}
		}
		got, want := make([]float32, w.K*w.N), assemble(t, m, w, layer)
		if err := src.Read(got, 0, w.K, 0, w.N); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if float64(got[i]) != want[i] {
				t.Fatalf("%s: column %d, row %d: pack reads %v, want %v", w.Name, i/w.K, i%w.K, got[i], want[i])
			}
		}
	}
}

const tinyEntry = `schema: hetc.model/1
name: small
source: made up for tests
config: {architectures: [LlamaForCausalLM], hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
  intermediate_size: 96, vocab_size: 300, max_position_embeddings: 128, rms_norm_eps: 1.0e-5, rope_theta: 10000.0, bos_token_id: 1}
`

func TestSynthIsDeterministicAndLoadable(t *testing.T) {
	m, err := parseEntry("small.yaml", []byte(tinyEntry))
	if err != nil {
		t.Fatal(err)
	}
	synth := func(seed uint64) *Model {
		dir := filepath.Join(t.TempDir(), "new", "model")
		if err := Synth(context.Background(), m, dir, seed, ""); err != nil {
			t.Fatal(err)
		}
		if entries, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(entries) != 1 {
			t.Fatalf("left beside the directory: %v, %v", entries, err)
		}
		out, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { out.Close() })
		if !out.Synthetic || out.Stored != op.BF16 || len(out.Ignored()) > 0 || len(out.UnreadKeys()) > 0 {
			t.Fatalf("got synthetic %v, %s, ignored %v, unread %v", out.Synthetic, out.Stored, out.Ignored(), out.UnreadKeys())
		}
		return out
	}
	digest := func(m *Model) string {
		d, err := m.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	a := synth(7)
	old := runtime.GOMAXPROCS(1)
	b := synth(7)
	runtime.GOMAXPROCS(old)
	// The third is what an earlier build wrote: synthetic models keep their digests.
	if digest(a) != digest(b) || digest(a) != "03d235475c37c2808ae9e6d8b3092de6089d7a57981e7a5c96c3d4fc18b8acb6" {
		t.Errorf("same seed: got %s and %s", digest(a), digest(b))
	}
	if digest(a) == digest(synth(8)) {
		t.Error("another seed gives the same weights")
	}

	moments := func(name string) (mean, deviation float64, v []float32) {
		x, err := a.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		v = allValues(t, x)
		for _, f := range v {
			mean += float64(f) / float64(len(v))
		}
		for _, f := range v {
			deviation += (float64(f) - mean) * (float64(f) - mean) / float64(len(v))
		}
		return mean, math.Sqrt(deviation), v
	}
	for name, want := range map[string]float64{
		"model.layers.1.mlp.up_proj.weight": 0.8 / 8, "model.embed_tokens.weight": 0.02, "lm_head.weight": 0.8 / 8,
		// 3 of 64 rows are 10 times as large.
		"model.layers.0.mlp.down_proj.weight": 0.3 * 0.8 / math.Sqrt(96) * math.Sqrt((61+300)/64.0),
	} {
		if mean, deviation, _ := moments(name); math.Abs(mean) > want/20 || math.Abs(deviation/want-1) > 0.1 {
			t.Errorf("%s: mean %g, deviation %g, want 0 and %g", name, mean, deviation, want)
		}
	}
	_, _, gains := moments("model.norm.weight")
	large := 0.0
	for _, g := range gains {
		large += float64(g) - 1
	}
	if large != 8+6+5+4+4+3-6 {
		t.Errorf("norm gains %v", gains)
	}

	// Refused: a directory with something in it, a model that is no catalog entry, a cancelled run.
	if err := Synth(context.Background(), m, a.Dir, 7, ""); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("occupied directory: got %v", err)
	}
	if err := Synth(context.Background(), a, filepath.Join(t.TempDir(), "x"), 7, ""); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("not an entry: got %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	parent := t.TempDir()
	if err := Synth(ctx, m, filepath.Join(parent, "x"), 7, ""); diag.ClassOf(err) != diag.ClassInterrupted {
		t.Errorf("cancelled: got %v", err)
	}
	if entries, _ := os.ReadDir(parent); len(entries) != 0 {
		t.Errorf("cancelled run left %v", entries)
	}
}

func TestTensorsOfAModel(t *testing.T) {
	m, err := Open(tinyDir)
	if err != nil {
		t.Fatal(err)
	}
	if m.Name != "tiny-llama-kjv" || !m.Tied || m.Stored != op.BF16 || m.Parameters() != 5_246_208 || m.BOS != 1 || !reflect.DeepEqual(m.EOS, []int{2}) {
		t.Errorf("got %s, tied %v, %s, %d parameters, begin %d, end %v", m.Name, m.Tied, m.Stored, m.Parameters(), m.BOS, m.EOS)
	}
	if _, err := m.Tensor("nope"); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("unknown tensor: got %v", err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Tensor("model.norm.weight"); err == nil {
		t.Error("a closed model still gives tensors")
	}
	if d, err := m.Digest(); err == nil {
		t.Errorf("a closed model has digest %s", d)
	}
	if _, err := Open(filepath.Join(tinyDir, "..")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no config.json: got %v", err)
	}
}

func FuzzConfig(f *testing.F) {
	data, err := os.ReadFile(filepath.Join(tinyDir, configName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	for _, change := range []map[string]any{{}, {"rope_scaling": map[string]any{"rope_type": "default"}}, {"eos_token_id": []any{1, 2}}, {"head_dim": 6}, {"hidden_size": 1 << 24}} {
		config := small()
		maps.Copy(config, change)
		data, err := json.Marshal(config)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	more, err := filepath.Glob("../testdata/arch/*/config*.json")
	if err != nil || len(more) < 20 {
		f.Fatalf("found %d configurations (%v)", len(more), err)
	}
	for _, name := range more {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := readBytes("config.json", data)
		if err != nil {
			return
		}
		g := m.Graph()
		for _, s := range g.Sections {
			for _, n := range s.Nodes {
				for _, o := range n.At(1, 1) {
					if err := o.Validate(); err != nil {
						t.Errorf("an accepted config gives a bad operator: %v", err)
					}
				}
			}
		}
	})
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":1},"weight_map":{"a":"x.safetensors","b":"x.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../x.safetensors"}}`))
	f.Add([]byte(`{"weight_map":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, err := decode.Parse(indexName, data)
		if err != nil {
			return
		}
		c, err := newDocument(doc)
		if err != nil {
			return
		}
		shards, err := c.shards()
		if err != nil {
			return
		}
		for name := range shards {
			if filepath.Base(name) != name || strings.ContainsAny(name, "/\\:\x00") {
				t.Errorf("accepted shard name %q", name)
			}
		}
	})
}

// What a synthetic tensor is drawn from follows from the graph, for every architecture.
func TestRolesOfWeights(t *testing.T) {
	writers := map[string]role{
		"embed.table": embedding, "layers.attn_norm": gain, "layers.attn_norm_bias": bias, "layers.q_norm": headGain, "layers.qkv_bias": bias,
		"layers.attn_out": residual, "layers.ffn_down": residual, "layers.expert_down": residual, "layers.shared_down": residual, "layers.shared_switch": projection,
		"layers.router": projection, "layers.expert_gate_up": projection, "layers.ffn_gate_up": projection, "layers.ffn_up": projection, "layers.qkv": projection,
		"head.lm_head": projection, "layers.ffn_post_norm": gain,
	}
	seen := map[string]bool{}
	dirs, err := filepath.Glob("../testdata/arch/*/config.json")
	if err != nil || len(dirs) < 20 {
		t.Fatalf("found %d models (%v)", len(dirs), err)
	}
	for _, d := range dirs {
		m, err := Open(filepath.Dir(d))
		if err != nil {
			continue // refused by a key, see TestReferenceModelsOpen
		}
		g := m.Graph()
		for i := range g.Weights {
			w := &g.Weights[i]
			if want, ok := writers[w.Name]; ok {
				seen[w.Name] = true
				if got := g.role(w); got != want && !(m.Tied && w.Name == "head.lm_head") {
					t.Errorf("%s: %s has role %d, want %d", m.Name, w.Name, got, want)
				}
			}
		}
		m.Close()
	}
	for name := range writers {
		if !seen[name] {
			t.Errorf("no model has %s", name)
		}
	}
}

// A mixture whose layers are all dense has no experts, whatever its keys say of them.
func TestExpertsInNoLayer(t *testing.T) {
	for _, test := range []struct {
		architecture string
		keys         map[string]any
		want         int
	}{
		{"Qwen2MoeForCausalLM", map[string]any{"mlp_only_layers": []any{0, 1}}, 0},
		{"Qwen3MoeForCausalLM", map[string]any{"decoder_sparse_step": 3}, 0},
		{"Qwen3MoeForCausalLM", map[string]any{"decoder_sparse_step": 2}, 8},
	} {
		config := smallOf(test.architecture)
		maps.Copy(config, test.keys)
		config["num_experts"] = 8
		model, err := readSmall(t, config)
		if err != nil {
			t.Fatal(err)
		}
		if model.Experts != test.want || (len(model.ExpertLayers()) > 0) != (test.want > 0) {
			t.Errorf("%s %v: got %d experts in layers %v, want %d", test.architecture, test.keys, model.Experts,
				model.ExpertLayers(), test.want)
		}
	}
}

// A tensor of several projections or experts that holds more or less than the configuration says belongs to another
// one: the rest would be read from the wrong rows, or one expert in the place of all.
func TestTensorsOfSeveralAreWhole(t *testing.T) {
	for _, test := range []struct{ model, old, new, tensor, shape, want string }{
		{"phi3-window", `"num_key_value_heads": 2`, `"num_key_value_heads": 1`, "", "",
			`tensor "model.layers.0.self_attn.qkv_proj.weight": got shape [64 32], which is 2048 values, want 1536`},
		{"mixtral-window-fused", "", "", "model.layers.1.mlp.experts.down_proj", "[1, 32, 20]",
			`tensor "model.layers.1.mlp.experts.down_proj": got shape [1 32 20], which is 640 values, want 2560`},
		{"mixtral-window-fused", "", "", "model.layers.0.mlp.experts.gate_up_proj", "[4, 41, 32]",
			`tensor "model.layers.0.mlp.experts.gate_up_proj": got shape [4 41 32], which is 5248 values, want 5120`},
		{"mixtral-window-fused", "", "", "model.layers.0.mlp.experts.gate_up_proj", "[5, 40, 32]",
			`tensor "model.layers.0.mlp.experts.gate_up_proj": got shape [5 40 32], which is 6400 values, want 5120`},
	} {
		from, dir := filepath.Join("../testdata/arch", test.model), t.TempDir()
		text, err := os.ReadFile(filepath.Join(from, configName))
		if err != nil {
			t.Fatal(err)
		}
		text = []byte(strings.Replace(string(text), test.old, test.new, 1))
		if err := os.WriteFile(filepath.Join(dir, configName), text, 0o644); err != nil {
			t.Fatal(err)
		}
		file, err := safetensors.Open(filepath.Join(from, singleName))
		if err != nil {
			t.Fatal(err)
		}
		var tensors []safetensors.Tensor
		for _, name := range file.Names() {
			tensor, _ := file.Tensor(name)
			if name == test.tensor {
				if err := json.Unmarshal([]byte(test.shape), &tensor.Shape); err != nil {
					t.Fatal(err)
				}
				tensor.Data = make([]byte, 2*elements(tensor.Shape))
			}
			tensors = append(tensors, tensor)
		}
		if err := safetensors.Write(filepath.Join(dir, singleName), tensors, nil); err != nil {
			t.Fatal(err)
		}
		file.Close()
		model, err := Open(dir)
		if err == nil {
			model.Close()
		}
		if err == nil || !strings.Contains(err.Error(), test.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v\nwant %s", test.model, err, test.want)
		}
	}
}

// refused are the models of testdata/arch with a feature that is refused by its key.
var refused = map[string]string{
	"phi-qk-layernorm": `key "qk_layernorm"`,
}

// Every model of testdata/arch opens, with nothing left unread or unused; so do other spellings of its
// configuration beside it, and they mean the same graph.
func TestReferenceModelsOpen(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/arch/*/config.json")
	if err != nil || len(dirs) < 20 {
		t.Fatalf("found %d models (%v)", len(dirs), err)
	}
	for _, d := range dirs {
		dir := filepath.Dir(d)
		m, err := Open(dir)
		if want, no := refused[filepath.Base(dir)]; no {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %s", dir, err, want)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		if len(m.UnreadKeys()) > 0 || len(m.Ignored()) > 0 {
			t.Errorf("%s: keys that mean nothing %v, tensors that nobody uses %v", dir, m.UnreadKeys(), m.Ignored())
		}
		others, _ := filepath.Glob(filepath.Join(dir, "config.*.json"))
		for _, other := range others {
			data, err := os.ReadFile(other)
			if err != nil {
				t.Fatal(err)
			}
			o, err := readBytes(other, data)
			if err != nil {
				t.Error(err)
				continue
			}
			o.Stored = m.Stored
			if !reflect.DeepEqual(decoderGraph(o), m.Graph()) {
				t.Errorf("%s: another graph than config.json", other)
			}
		}
		m.Close()
	}
}

// A chat template in a file of its own takes the place of the one in tokenizer_config.json.
func TestTokenizerFiles(t *testing.T) {
	m := openTiny(t)
	files, err := m.TokenizerFiles()
	if err != nil || len(files) != 2 {
		t.Fatalf("got %d files, %v", len(files), err)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	open := func() (string, error) {
		files, err := (&Model{Dir: dir}).TokenizerFiles()
		return string(files["config"]), err
	}
	write(tokenizerName, "{}")
	write(templateName, "{{ \"a\" }}\n")
	if got, err := open(); err != nil || got != `{"chat_template":"{{ \"a\" }}\n"}` {
		t.Errorf("no configuration: got %s, %v", got, err)
	}
	write(tokenizerConfigName, `{"chat_template": "old", "bos_token": {"content": "s"}}`)
	if got, err := open(); err != nil || got != `{"bos_token":{"content":"s"},"chat_template":"{{ \"a\" }}\n"}` {
		t.Errorf("both: got %s, %v", got, err)
	}
	for _, bad := range []string{"[]", "null", "{"} {
		write(tokenizerConfigName, bad)
		if _, err := open(); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("configuration %s: got %v", bad, err)
		}
	}
}
