package models

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// small is a valid config.json that tests change key by key.
func small() map[string]any {
	return map[string]any{
		"architectures":           []any{"LlamaForCausalLM"},
		"model_type":              "llama",
		"hidden_size":             16,
		"num_hidden_layers":       2,
		"num_attention_heads":     4,
		"num_key_value_heads":     2,
		"intermediate_size":       24,
		"vocab_size":              40,
		"max_position_embeddings": 64,
		"rms_norm_eps":            1e-5,
		"rope_theta":              10000.0,
		"hidden_act":              "silu",
		"bos_token_id":            1,
		"eos_token_id":            []any{3, 2, 3},
		"torch_dtype":             "bfloat16",
	}
}

// smallOf is small of another architecture.
func smallOf(class string) map[string]any {
	config := small()
	config["architectures"] = []any{class}
	delete(config, "model_type")
	return config
}

// One wrong key is one error: what follows from it is not the user's to correct, and may name a key that the file does
// not have.
func TestOneWrongKeyIsOneError(t *testing.T) {
	for _, wrong := range []struct {
		key   string
		value any
	}{
		{"hidden_size", 0}, {"hidden_size", "16"}, {"hidden_size", 16.5}, {"hidden_size", int64(1) << 40},
		{"num_attention_heads", 0}, {"head_dim", 7}, {"num_key_value_heads", 3},
	} {
		config := small()
		config[wrong.key] = wrong.value
		_, err := readSmall(t, config)
		if err == nil || strings.Count(err.Error(), "model.config") != 1 || !strings.Contains(err.Error(), wrong.key) {
			t.Errorf("%s = %v: got %v, want one error about it", wrong.key, wrong.value, err)
		}
	}
}

// Weights under other names are told from weights of another kind.
func TestHintsOfNoWeights(t *testing.T) {
	for _, tt := range []struct{ files, want string }{
		{"pytorch_model.bin", "only safetensors weights are read"},
		{"consolidated.safetensors", `if "consolidated.safetensors" holds all weights, call it model.safetensors`},
		{"model-1.safetensors model-2.safetensors", "model.safetensors.index.json says which tensor is in which"},
	} {
		dir := t.TempDir()
		for name := range strings.FieldsSeq(tt.files) {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		_, err := readShards(filepath.Join(dir, indexName))
		if hints := diag.HintsOf(err); len(hints) != 1 || !strings.Contains(hints[0], tt.want) {
			t.Errorf("%s: got %v with hints %q, want %q", tt.files, err, hints, tt.want)
		}
	}
}

// readSmall reads a configuration.
func readSmall(t testing.TB, config map[string]any) (*Model, error) {
	t.Helper()
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return readBytes("config.json", data)
}

// readBytes reads the text of a configuration.
func readBytes(name string, data []byte) (*Model, error) {
	parsed, err := decode.Parse(name, data)
	if err != nil {
		return nil, err
	}
	document, err := newDocument(parsed)
	if err != nil {
		return nil, err
	}
	model, err := document.model()
	if err != nil {
		return nil, err
	}
	model.graph = decoderGraph(model)
	return model, nil
}

// Every key of a configuration reaches the model, and those that mean nothing are listed.
func TestConfigIsRead(t *testing.T) {
	config := small()
	config["rope_parameters"] = map[string]any{"rope_theta": 10000.0, "rope_type": "default"}
	config["something_new"] = 1
	model, err := readSmall(t, config)
	if err != nil {
		t.Fatal(err)
	}
	for key, test := range map[string]struct{ got, want any }{
		"hidden_size":             {model.Hidden, 16},
		"num_hidden_layers":       {model.Layers, 2},
		"num_attention_heads":     {model.Heads, 4},
		"num_key_value_heads":     {model.KVHeads, 2},
		"head_dim":                {model.HeadDim, 4},
		"intermediate_size":       {model.FFN, 24},
		"vocab_size":              {model.Vocab, 40},
		"max_position_embeddings": {model.MaxContext, 64},
		"rms_norm_eps":            {model.NormEps, 1e-5},
		"rope_theta":              {model.RopeTheta, 1e4},
		"bos_token_id":            {model.BOS, 1},
		"eos_token_id":            {model.EOS, []int{2, 3}},
		"torch_dtype":             {model.Stored, op.BF16},
		"tie_word_embeddings":     {model.Tied, false},
		"synthetic":               {model.Synthetic, false},
		"unread":                  {model.unread, []string{"something_new"}},
	} {
		if !reflect.DeepEqual(test.got, test.want) {
			t.Errorf("%s: got %v, want %v", key, test.got, test.want)
		}
	}
}

// The base of rotations is written in an old and in a new form; of both the reference implementation takes one.
func TestRopeSpellings(t *testing.T) {
	unscaled := map[string]any{"type": "default"}
	linear := map[string]any{"type": "linear", "factor": 2, "beta_fast": 3}
	ofParams := func(theta any) map[string]any { return map[string]any{"rope_theta": theta} }
	for name, test := range map[string]struct {
		theta, params, scaling any
		want                   float64
	}{
		"old":            {theta: 500000.0, want: 500000},
		"new":            {params: map[string]any{"rope_type": "default", "rope_theta": 20000}, want: 20000},
		"both":           {theta: 30000.0, params: ofParams(40000.0), want: 40000},
		"all three":      {theta: 30000.0, params: ofParams(40000.0), scaling: unscaled, want: 30000},
		"unused keys":    {theta: 30000.0, scaling: linear, want: 30000},
		"neither":        {want: 10000},
		"unscaled":       {theta: 5000.0, scaling: unscaled, want: 5000},
		"empty new form": {theta: 5000.0, params: map[string]any{}, want: 5000},
	} {
		config := small()
		config["rope_theta"], config["rope_parameters"], config["rope_scaling"] = test.theta, test.params, test.scaling
		model, err := readSmall(t, config)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if model.RopeTheta != test.want {
			t.Errorf("%s: got theta %v, want %v", name, model.RopeTheta, test.want)
		}
	}
}

// unsupported are values of keys that are refused, each with a part of the error.
var unsupported = []struct {
	key   string
	value any
	want  string
}{
	{
		key:   "architectures",
		value: []any{"BertForMaskedLM"},
		want:  `key "architectures": ["BertForMaskedLM"] is not supported`,
	},
	{"architectures", []any{"LlamaForCausalLM", "X"}, `key "architectures"`},
	{"architectures", "LlamaForCausalLM", `key "architectures": got "LlamaForCausalLM", want a list`},
	{"architectures", []any{map[string]any{}}, `key "architectures": element 0`},
	{
		key:   "model_type",
		value: "qwen2",
		want: `key "model_type": got "qwen2", want "llama" as for the LlamaForCausalLM that ` +
			`"architectures" names`,
	},
	{"model_type", 3, `key "model_type": got 3, want "llama"`},
	{
		key:   "rope_scaling",
		value: map[string]any{"rope_type": "llama3", "factor": 8.0},
		want:  `key "rope_scaling.low_freq_factor": missing, want a number`,
	},
	{
		key:   "rope_scaling",
		value: map[string]any{"rope_type": "proportional", "factor": 8.0},
		want: `key "rope_scaling.rope_type": "proportional" is not supported; supported: default, ` +
			`linear, dynamic`,
	},
	{
		key:   "rope_scaling",
		value: map[string]any{"type": "longrope", "short_factor": []any{1.0}, "long_factor": []any{1.0, 2.0}},
		want:  `key "rope_scaling.short_factor": got 1 numbers, want 2`,
	},
	{
		key:   "rope_scaling",
		value: map[string]any{"type": "linear", "factor": 0},
		want:  `key "rope_scaling.factor": got 0, want a number`,
	},
	{"rope_scaling", 3, `key "rope_scaling": got 3, want an object`},
	{
		key:   "rope_parameters",
		value: map[string]any{"full_attention": map[string]any{}},
		want:  `key "rope_parameters.full_attention": an empty object is not supported`,
	},
	{"rope_theta", 0.0, `key "rope_theta": got 0, want a number`},
	{
		key:   "rope_scaling",
		value: map[string]any{"type": "yarn", "factor": 2.0, "rope_theta": 1.0},
		want:  `key "rope_scaling.rope_theta": 1 has no yarn, want more than 1`,
	},
	{"is_causal", false, `key "is_causal": false is not supported; supported: causal attention`},
	{"is_causal", nil, `key "is_causal": null is not supported; supported: causal attention`},
	{"vocab_size", 1, `key "vocab_size": 1, want at least 2 tokens`},
	{
		key:   "per_layer_config",
		value: map[string]any{"1": map[string]any{"sliding_window": 4}},
		want:  `key "per_layer_config": an object with the keys 1 is not supported`,
	},
	{
		key:   "sliding_window",
		value: 4096,
		want:  `key "sliding_window": 4096 is not supported; supported: attention over the whole context`,
	},
	{
		key:   "layer_types",
		value: []any{"full_attention", "sliding_attention"},
		want:  `key "layer_types": "sliding_attention" is not supported`,
	},
	{"attention_bias", 1, `key "attention_bias": got 1, want true or false`},
	{"mlp_bias", "yes", `key "mlp_bias"`},
	{"hidden_act", "tanh", `key "hidden_act": "tanh" is not supported; supported: silu, gelu`},
	{"hidden_act", []any{"silu"}, `key "hidden_act"`},
	{
		key:   "quantization_config",
		value: map[string]any{"bits": 4},
		want:  `key "quantization_config": an object with the keys bits is not supported`,
	},
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
}

// What a configuration asks for and no graph can do is refused by its key.
func TestUnsupportedConfigIsRefusedByKey(t *testing.T) {
	for _, test := range unsupported {
		config := small()
		config[test.key] = test.value
		_, err := readSmall(t, config)
		if err == nil || !strings.Contains(err.Error(), test.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s = %v: got %v\nwant %q", test.key, test.value, err, test.want)
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
	if model.BOS != -1 || !slices.Equal(model.EOS, []int{3}) || !slices.Equal(model.unread, unread) {
		t.Errorf("got begin %d, ends %v and unread keys %v, want -1, [3] and %v", model.BOS, model.EOS, model.unread,
			unread)
	}
}

// A Mistral that lists its layers has the window where the list says so, as AutoModel of the reference reads it.
func TestMistralWithLayerTypes(t *testing.T) {
	const windowed, full = "sliding_attention", "full_attention"
	for _, test := range []struct {
		layers   any
		sections []string
		windows  []int // of each section
	}{
		{nil, []string{"embed", "layers", "head"}, []int{0, 7, 0}},
		{[]any{windowed, full}, []string{"embed", "layers_windowed", "layers", "head"}, []int{0, 7, 0, 0}},
		{[]any{full, full}, []string{"embed", "layers", "head"}, []int{0, 0, 0}},
	} {
		config := smallOf("MistralForCausalLM")
		config["layer_types"], config["sliding_window"] = test.layers, 7
		model, err := readSmall(t, config)
		if err != nil {
			t.Fatal(err)
		}
		graph := model.Graph()
		var sections []string
		var windows []int
		for _, section := range graph.Sections {
			window := 0
			for _, node := range section.Nodes {
				for _, operator := range node.Ops {
					window = max(window, operator.Window)
				}
			}
			sections, windows = append(sections, section.Name), append(windows, window)
		}
		if !slices.Equal(sections, test.sections) || !slices.Equal(windows, test.windows) {
			t.Errorf("layer_types %v: sections %q with windows %v, want %q with %v", test.layers, sections, windows,
				test.sections, test.windows)
		}
	}
}

// In a window of no positions the reference implementation masks all of them. A key that switches windows off makes it
// mean nothing.
func TestEmptyWindow(t *testing.T) {
	for class, refused := range map[string]bool{
		"MistralForCausalLM": true,
		"Phi3ForCausalLM":    true,
		"Qwen2ForCausalLM":   false,
	} {
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
	for _, test := range []struct {
		class       string
		use, window any // keys
		refused     bool
	}{
		{"Qwen2ForCausalLM", nil, 16, true},
		{"Qwen2MoeForCausalLM", false, 16, true},
		{"Qwen3ForCausalLM", true, 16, false},
		{"MistralForCausalLM", nil, nil, true},
		{"MistralForCausalLM", nil, 16, false},
	} {
		config := smallOf(test.class)
		config["layer_types"] = []any{"sliding_attention", "full_attention"}
		config["use_sliding_window"], config["sliding_window"] = test.use, test.window
		_, err := readSmall(t, config)
		const refusal = `key "layer_types": names layers with a window that no key gives`
		said := strings.Contains(fmt.Sprint(err), refusal)
		if said != test.refused || (err != nil) != test.refused {
			t.Errorf("%s with use_sliding_window %v and a window of %v: got %v, want a refusal: %v", test.class,
				test.use, test.window, err, test.refused)
		}
	}
}

// Every second layer of a Gemma 2 has a window, so there must be one unless layer_types says otherwise. The reference
// implementation fails without one.
func TestGemma2NeedsAWindow(t *testing.T) {
	full := []any{"full_attention", "full_attention"}
	for _, test := range []struct {
		window, layers any
		refused        bool
	}{
		{window: nil, layers: nil, refused: true},
		{window: 8, layers: nil, refused: false},
		{window: nil, layers: full, refused: false},
	} {
		config := smallOf("Gemma2ForCausalLM")
		config["head_dim"], config["sliding_window"], config["layer_types"] = 4, test.window, test.layers
		_, err := readSmall(t, config)
		said := strings.Contains(fmt.Sprint(err), `key "sliding_window": null is not supported`)
		if said != test.refused {
			t.Errorf("window %v, layers %v: got %v, want a refusal: %v", test.window, test.layers, err, test.refused)
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
	longrope := map[string]any{
		"short_factor": []any{1, 2},
		"long_factor":  []any{2, 4},
		"short_mscale": 1.1,
		"long_mscale":  1.3,
	}
	scales := map[string]any{"factor": 4.0, "short_mscale": 1.1, "long_mscale": 1.3}
	for kind, params := range map[string]map[string]any{
		"default": {}, "longrope": longrope, "yarn": scales, "linear": scales, "dynamic": scales,
	} {
		config := smallOf("PhimoeForCausalLM")
		config["rope_parameters"] = params
		params["rope_type"] = kind
		refusal := fmt.Sprintf(
			`key "rope_parameters.rope_type": %q is not supported; supported: default, longrope`, kind)
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
		config["rope_parameters"] = map[string]any{
			"rope_type":                        "longrope",
			"short_factor":                     []any{1, 2},
			"long_factor":                      []any{2, 4},
			"short_mscale":                     1.1,
			"long_mscale":                      1.3,
			"original_max_position_embeddings": 32,
		}
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
	for _, test := range []struct{ low, high, want float64 }{
		{4, 1, 0.5},
		{1, 4, 1 / 1.5},
		{1, 1.5, 1},
	} {
		got := llama3Frequencies(base, 2, test.low, test.high, 32)
		if ratio := float64(got[0] / base[0]); math.Abs(ratio-test.want) > 1e-6 {
			t.Errorf("low %v, high %v: frequencies times %v, want %v", test.low, test.high, ratio, test.want)
		}
	}
}

// An error of a configuration names the line, and says what is supported.
func TestConfigErrorsCarryLinesAndHints(t *testing.T) {
	_, err := readBytes("config.json", []byte("{\n \"architectures\": [\"GPT2LMHeadModel\"]\n}"))
	if err == nil || !strings.HasPrefix(err.Error(), "config.json:2: ") {
		t.Errorf("got %v, want it at line 2", err)
	}
	const supported = "supported architectures: LlamaForCausalLM, MistralForCausalLM"
	if hints := diag.HintsOf(err); len(hints) != 1 || !strings.HasPrefix(hints[0], supported) {
		t.Errorf("got hints %q, want one that begins with %q", hints, supported)
	}

	_, err = readBytes("config.json", []byte(`{"hidden_size": 8}`))
	const missing = `key "architectures": missing, want the name of one`
	if err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("got %v, want %s", err, missing)
	}

	config := small()
	config["quantization_config"] = map[string]any{"quant_method": "fp8", "activation_scheme": "dynamic"}
	_, err = readSmall(t, config)
	const quantised = `weights quantised by "fp8" are not supported`
	hint := strings.Join(diag.HintsOf(err), "")
	if err == nil || !strings.Contains(err.Error(), quantised) || hint != quantisedHint {
		t.Errorf("got %v with hint %q, want %s with %q", err, hint, quantised, quantisedHint)
	}
}

// What is no JSON object with each key once is refused.
func TestConfigIsAnObject(t *testing.T) {
	for _, text := range []string{
		"",
		"[]",
		"null",
		"{",
		`{"a":1}{"b":2}`,
		`{"a":1,"a":2}`,
		"\xff",
		strings.Repeat(`{"a":`, 100),
		`{"hidden_size": NaN}`,
	} {
		if _, err := readBytes("config.json", []byte(text)); err == nil {
			t.Errorf("%q: accepted", text)
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

// The values PyPI torch 2.15.0 computes for 1.0 / (theta ** (arange(0, dim, 2) / dim)) in float32,
// as bits.
func TestInverseFrequencies(t *testing.T) {
	for _, test := range []struct {
		theta float64
		dim   int
		want  map[int]uint32 // some of the frequencies
	}{
		{
			theta: 10000,
			dim:   64,
			want: map[int]uint32{
				0:  0x3f800000,
				1:  0x3f3ff911,
				2:  0x3f0ff59a,
				8:  0x3dcccccd,
				15: 0x3c5a7bf2,
				30: 0x393a7753,
				31: 0x390bd472,
			},
		},
		{
			theta: 500000,
			dim:   128,
			want: map[int]uint32{
				1:  0x3f508ac1,
				7:  0x3e73c461,
				32: 0x3ab95d21,
				63: 0x3624c2ff,
			},
		},
	} {
		frequencies := inverseFrequencies(test.theta, test.dim)
		if len(frequencies) != test.dim/2 {
			t.Fatalf("got %d frequencies, want %d", len(frequencies), test.dim/2)
		}
		for i, want := range test.want {
			if got := math.Float32bits(frequencies[i]); got != want {
				t.Errorf("theta %v dim %d: frequency %d is %08x, want %08x", test.theta, test.dim, i, got, want)
			}
		}
	}
}

// What is accepted makes a graph of valid operators.
func FuzzConfig(f *testing.F) {
	for _, change := range []map[string]any{
		{},
		{"rope_scaling": map[string]any{"rope_type": "default"}},
		{"eos_token_id": []any{1, 2}},
		{"head_dim": 6},
		{"hidden_size": 1 << 24},
	} {
		config := small()
		maps.Copy(config, change)
		data, err := json.Marshal(config)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	files, err := filepath.Glob("../testdata/arch/*/config*.json")
	if err != nil || len(files) < 20 {
		f.Fatalf("found %d configurations (%v)", len(files), err)
	}
	for _, file := range append(files, filepath.Join(tinyDir, configName)) {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		model, err := readBytes("config.json", data)
		if err != nil {
			return
		}
		checkOperators(t, model)
	})
}
