package gguf

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/planir/op"
)

// Bounds of what is believed; far above any published model.
const (
	maxLayers  = 1 << 12
	maxExperts = 1 << 12
	maxDim     = 1 << 24
)

// config translates the metadata of an architecture to the keys of a config.json. The rest of hetc then knows one form
// of a configuration, whatever file it came from.
//
// A key that would change the computation and has no Hugging Face form is refused. Problems are collected in k.errs
// in the order in which keys are read, so that one run names them all.
func (k *keys) config(arch *architecture) map[string]any {
	config := k.sizes(arch)
	k.vocabularySize(config)
	k.specialTokens(config)

	// Each reader below marks the keys that it takes; refuse then tests those that no reader covers.
	eps, storedEps := arch.epsKeys()
	config[eps] = k.float(storedEps, -1, 0, 1)
	k.rotary(arch, config)
	k.window(arch, config)
	if arch.experts {
		k.mixture(arch, config)
	}
	if norm, said := k.bool("expert_weights_norm"); said {
		k.normShares = &norm
	}
	if arch.settings != nil {
		arch.settings(k, config)
	}
	k.refuse(arch)
	return config
}

// sizes reads the dimensions that every architecture has.
func (k *keys) sizes(arch *architecture) map[string]any {
	k.layers = k.int("block_count", -1, 1, maxLayers)
	k.hidden = k.int("embedding_length", -1, 1, maxDim)
	k.heads = k.int("attention.head_count", -1, 1, maxDim)
	k.kvHeads = k.int("attention.head_count_kv", k.heads, 1, maxDim)
	k.headDim = k.int("attention.key_length", k.hidden/k.heads, 1, maxDim)
	for _, key := range []string{"attention.value_length", "attention.key_length_swa", "attention.value_length_swa"} {
		if dim := k.int(key, k.headDim, 1, maxDim); dim != k.headDim {
			k.fail(key, "%d is not supported; supported: attention.key_length %d", dim, k.headDim)
		}
	}
	k.ffn = k.int("feed_forward_length", -1, 1, maxDim)
	k.context = k.int("context_length", -1, 1, math.MaxInt32)
	return map[string]any{
		"architectures": []any{arch.classes[0]}, "model_type": arch.model,
		"hidden_size": int64(k.hidden), "num_hidden_layers": int64(k.layers),
		"num_attention_heads": int64(k.heads), "num_key_value_heads": int64(k.kvHeads), "head_dim": int64(k.headDim),
		"intermediate_size": int64(k.ffn), "max_position_embeddings": int64(k.context),
		"hidden_act": cmp.Or(arch.activation, "silu"),
	}
}

// vocabularySize is the number of rows of the embedding; a file without an output matrix uses the embedding for both.
func (k *keys) vocabularySize(config map[string]any) {
	// The tensor decides; a stated size must agree with it.
	if embedding, _ := k.f.Tensor("token_embd.weight"); len(embedding.Shape) == 2 {
		rows := embedding.Shape[0]
		config["vocab_size"] = int64(rows)
		if vocab := k.int("vocab_size", rows, 1, maxDim); vocab != rows {
			k.fail("vocab_size", "%d, but tensor %q has %d rows", vocab, embedding.Name, rows)
		}
	} else {
		config["vocab_size"] = int64(k.int("vocab_size", -1, 1, maxDim))
	}
	_, head := k.f.Tensor("output.weight")
	config["tie_word_embeddings"] = !head
}

// rotary translates how many elements of a head are rotated, and how.
func (k *keys) rotary(arch *architecture, config map[string]any) {
	rotated := k.int("rope.dimension_count", k.headDim, 2, maxDim)
	switch {
	case arch.partial && rotated <= k.headDim:
		config["partial_rotary_factor"] = rotatedShare(rotated, k.headDim)
	case rotated != k.headDim:
		k.fail("rope.dimension_count", "%d is not supported; supported: the whole head of %d", rotated, k.headDim)
	}
	k.must("rope.dimension_count_swa", float64(rotated))
	rope := k.rope(arch, rotated)
	config["rope_parameters"] = rope
	if rope["rope_type"] == "longrope" { // Phi 3 has it outside
		config["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
	}
}

// rotatedShare returns the share of a head that is rotated. Readers of a config.json multiply it by the head's elements
// and cut off the fraction, so it is rounded up where the quotient lies below the number of rotated elements.
func rotatedShare(rotated, headDim int) float64 {
	share := float64(rotated) / float64(headDim)
	if int(float64(headDim)*share) < rotated {
		share = math.Nextafter(share, 1)
	}
	return share
}

// mixture reads how many experts a layer has and how many of them a token uses.
func (k *keys) mixture(arch *architecture, config map[string]any) {
	k.experts = k.int("expert_count", -1, 1, maxExperts)
	used := k.int("expert_used_count", -1, 1, k.experts)
	k.must("expert_gating_func", 1)
	k.must("expert_weights_scale", 0, 1)
	k.must("expert_shared_count", 0, 1)
	k.must("leading_dense_block_count", 0)
	k.expertFFN = k.ffn
	config["num_experts_per_tok"] = int64(used)
	config[arch.countKey()] = int64(k.experts)
}

// llamaSettings finds out from the tensors which projections have biases; with a window the model is a Mistral.
func llamaSettings(k *keys, config map[string]any) {
	_, qkv := k.anyLayer("attn_q.bias", "attn_qkv.bias")
	_, out := k.anyLayer("attn_output.bias")
	if qkv != out {
		k.fail("block_count", "attention has a bias in some projections but not in all, which is not supported")
	}
	_, mlp := k.anyLayer("ffn_gate.bias", "ffn_up.bias", "ffn_down.bias")
	config["attention_bias"], config["mlp_bias"] = qkv, mlp
	if config["sliding_window"] != nil {
		config["architectures"], config["model_type"] = []any{"MistralForCausalLM"}, "mistral"
	}
}

// mixtralSettings refuses weights of the chosen experts that do not sum to 1.
func mixtralSettings(k *keys, _ map[string]any) {
	if k.normShares != nil && !*k.normShares {
		k.fail("expert_weights_norm", "false is not supported in this architecture")
	}
}

// shares writes whether the weights of the chosen experts sum to 1; assumed is what readers of the format take for
// a file that does not say it.
func (k *keys) shares(config map[string]any, assumed bool) {
	config["norm_topk_prob"] = assumed
	if k.normShares != nil {
		config["norm_topk_prob"] = *k.normShares
	}
}

// olmoeSettings reads the bound of the projections.
func olmoeSettings(k *keys, config map[string]any) {
	k.shares(config, false)
	if clip := k.float("attention.clamp_kqv", 0, 0, math.MaxFloat32); clip > 0 {
		config["clip_qkv"] = clip
	}
}

// qwen2MoeSettings reads the columns of an expert and of the shared one, and finds out from the tensors whether
// projections have biases.
func qwen2MoeSettings(k *keys, config map[string]any) {
	_, config["qkv_bias"] = k.anyLayer("attn_q.bias", "attn_qkv.bias")
	k.shares(config, false)
	k.expertSize(config)
	shared := k.int("expert_shared_feed_forward_length", k.rowsOf("ffn_up_shexp.weight", 0, k.ffn), 1, maxDim)
	config["shared_expert_intermediate_size"] = int64(shared)
}

// qwen3MoeSettings reads the columns of an expert.
func qwen3MoeSettings(k *keys, config map[string]any) {
	k.shares(config, true)
	k.expertSize(config)
}

// expertSize reads the columns of one expert, which Qwen models give apart from those of a dense block.
func (k *keys) expertSize(config map[string]any) {
	k.expertFFN = k.int("expert_feed_forward_length", k.rowsOf("ffn_up_exps.weight", 1, k.ffn), 1, maxDim)
	config["moe_intermediate_size"] = int64(k.expertFFN)
}

// phimoeSettings finds out from the tensors which projections have biases.
func phimoeSettings(k *keys, config map[string]any) {
	_, config["attention_bias"] = k.anyLayer("attn_q.bias", "attn_qkv.bias")
	_, config["lm_head_bias"] = k.f.Tensor("output.bias")
}

// olmo2Settings refuses the window of the next generation.
func olmo2Settings(k *keys, config map[string]any) {
	if window := config["sliding_window"]; window != nil {
		k.fail("attention.sliding_window", "%d is not supported in this architecture (Olmo 3)", window)
	}
}

// starcoder2Settings finds out from the tensors whether projections have biases.
func starcoder2Settings(k *keys, config map[string]any) {
	_, config["use_bias"] = k.anyLayer("attn_output.bias")
}

// gemmaSettings repeats the activation under the key that the reference implementation reads.
func gemmaSettings(_ *keys, config map[string]any) {
	config["hidden_activation"] = config["hidden_act"]
}

// gemma2Settings reads the soft caps, which readers assume, and what scores are divided by.
func gemma2Settings(k *keys, config map[string]any) {
	gemmaSettings(k, config)
	config["attn_logit_softcapping"] = k.float("attn_logit_softcapping", 50, 1e-3, math.MaxFloat32)
	config["final_logit_softcapping"] = k.float("final_logit_softcapping", 30, 1e-3, math.MaxFloat32)
	config["query_pre_attn_scalar"] = int64(k.queryScalar())
}

// neutral are keys that other architectures of the format have, with the values that change nothing. Any other
// value would change the computation unseen.
var neutral = []struct {
	key    string
	values []float64
}{
	{"attention.causal", []float64{1}}, {"attention.max_alibi_bias", []float64{0}},
	{"attention.clamp_kqv", []float64{0}},
	{"attention.output_scale", []float64{0, 1}}, {"attention.value_scale", []float64{0, 1}},
	{"router_logit_softcapping", []float64{0}},
	{"logit_scale", []float64{0, 1}}, {"embedding_scale", []float64{0, 1}}, {"residual_scale", []float64{0, 1}},
	{"expert_group_count", []float64{0, 1}}, {"moe_every_n_layers", []float64{0, 1}},
	{"interleave_moe_layer_step", []float64{0, 1}}, {"nextn_predict_layers", []float64{0}},
	{"attention.temperature_length", []float64{0}}, {"attention.temperature_scale", []float64{0}},
}

// refuse refuses keys with values that have no Hugging Face form in the architecture.
func (k *keys) refuse(arch *architecture) {
	// Only Gemma 2 has soft caps and a scale of scores; elsewhere they must have the values that change nothing.
	if arch.model != "gemma2" {
		k.must("attn_logit_softcapping", 0)
		k.must("final_logit_softcapping", 0)
		scale := k.float("attention.scale", 0, 0, math.MaxFloat32)
		if scale != 0 && math.Abs(scale*math.Sqrt(float64(k.headDim))-1) > 1e-4 {
			k.fail("attention.scale", "%v is not supported; supported: 1/sqrt of the head's %d", scale, k.headDim)
		}
	}
	for _, other := range neutral {
		if other.key != "attention.clamp_kqv" || arch.model != "olmoe" {
			k.must(other.key, other.values...)
		}
	}
	// Phi 2 computes attention and feed-forward side by side, every other architecture one behind the other.
	parallel := 0.0
	if arch.name == "phi2" {
		parallel = 1
	}
	k.must("use_parallel_residual", parallel)
	for _, key := range []string{"pooling_type", "tensor_data_layout", "rope.scaling.finetuned"} {
		k.read[key] = true // says nothing about what the model computes
	}
}

// countKey returns the configuration key for the number of experts.
func (a *architecture) countKey() string {
	if a.model == "mixtral" || a.model == "phimoe" {
		return "num_local_experts"
	}
	return "num_experts"
}

// queryScalar returns the square of what scores are divided by; files do not say it, but Gemma 2's 27B
// (46 layers) divides by the width of a head as if heads shared the residual stream.
func (k *keys) queryScalar() int {
	if scale := k.float("attention.scale", 0, 0, math.MaxFloat32); scale > 0 {
		return int(math.Round(1 / (scale * scale)))
	}
	if k.layers == 46 {
		return k.hidden / k.heads
	}
	return k.headDim
}

// window translates the sliding window: its size, and which layers have it. Nothing is written without a window.
func (k *keys) window(arch *architecture, config map[string]any) {
	assumed, least := 0, 0
	if arch.model == "gemma2" { // every second layer has one
		assumed, least = 4096, 1
	}
	window := k.int("attention.sliding_window", assumed, least, math.MaxInt32)
	sliding, ok := k.slidingLayers(arch)
	if !ok || window == 0 {
		return
	}
	config["sliding_window"] = int64(window)
	if strings.HasPrefix(arch.model, "qwen") {
		config["use_sliding_window"] = true
	}
	if sliding == nil {
		return
	}
	// config.json lists one type for each layer.
	types := make([]any, k.layers)
	for i := range types {
		types[i] = "full_attention"
		if sliding[i] {
			types[i] = "sliding_attention"
		}
	}
	config["layer_types"] = types
}

// slidingLayers says which layers have the window, nil where the file does not: a bool for each layer, or how many
// layers make a round of which the last has none. ok is false where it says something else.
func (k *keys) slidingLayers(arch *architecture) (sliding []bool, ok bool) {
	const key = "attention.sliding_window_pattern"
	k.read[key] = true
	pattern, said := k.f.Value(arch.name + "." + key)
	if !said && arch.model != "gemma2" {
		return nil, true
	}
	if list, isList := pattern.([]bool); isList && len(list) == k.layers {
		return list, true
	}
	// The other form is a number: in a round of that many layers, all but the last have the window.
	round, isInt := toInt(pattern)
	if !said {
		round, isInt = 2, true // Gemma 2's layers take turns
	}
	if !isInt || round < 1 {
		k.fail(key, "got %s, want a bool for each of %d layers, or how many layers make a round",
			brief(pattern), k.layers)
		return nil, false
	}
	sliding = make([]bool, k.layers)
	for i := range sliding {
		sliding[i] = i%round < round-1
	}
	return sliding, true
}

// specialTokens sets the ids that begin and end a text.
func (k *keys) specialTokens(config map[string]any) {
	vocab, _ := config["vocab_size"].(int64)
	id := func(key string) (int64, bool) { // a token that the model can produce
		token, ok := k.f.integer("tokenizer.ggml." + key)
		return int64(token), ok && token >= 0 && int64(token) < vocab
	}
	bos, hasBOS := id("bos_token_id")
	eos, hasEOS := id("eos_token_id")
	if k.f.isSentencePiece() { // readers of the format assume these
		if !hasBOS {
			bos, hasBOS = 1, vocab > 1
		}
		if !hasEOS {
			eos, hasEOS = 2, vocab > 2
		}
	}
	if hasBOS {
		config["bos_token_id"] = bos
	}
	// Chat models have up to three tokens that end a text or a turn; config.json lists them under one key.
	var ends []any
	if hasEOS {
		ends = append(ends, eos)
	}
	for _, key := range []string{"eot_token_id", "eom_token_id"} {
		if end, ok := id(key); ok && !slices.Contains(ends, any(end)) {
			ends = append(ends, end)
		}
	}
	switch len(ends) {
	case 0:
	case 1:
		config["eos_token_id"] = ends[0]
	default:
		config["eos_token_id"] = ends
	}
	if pad, ok := id("padding_token_id"); ok {
		config["pad_token_id"] = pad
	}
}

// anyLayer returns the first tensor of these that layer 0 has.
func (k *keys) anyLayer(names ...string) (Tensor, bool) {
	for _, name := range names {
		if tensor, ok := k.f.Tensor("blk.0." + name); ok {
			return tensor, true
		}
	}
	return Tensor{}, false
}

// rowsOf is dimension dim of a tensor of layer 0, def when there is none.
func (k *keys) rowsOf(name string, dim, def int) int {
	if tensor, ok := k.anyLayer(name); ok && dim < len(tensor.Shape) {
		return tensor.Shape[dim]
	}
	return def
}

// fileTypes are the numbers of general.file_type.
var fileTypes = map[op.Type]uint32{op.F32: 0, op.F16: 1, q4_0: 2, q8_0: 7, op.BF16: 32}
