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

// config translates the metadata of an architecture to the keys of a config.json.
func (k *keys) config(arch *architecture) map[string]any {
	k.layers = k.int("block_count", -1, 1, maxLayers)
	hidden := k.int("embedding_length", -1, 1, maxDim)
	k.heads = k.int("attention.head_count", -1, 1, maxDim)
	k.kvHeads = k.int("attention.head_count_kv", k.heads, 1, maxDim)
	k.headDim = k.int("attention.key_length", hidden/k.heads, 1, maxDim)
	if dim := k.int("attention.value_length", k.headDim, 1, maxDim); dim != k.headDim {
		k.fail("attention.value_length", "%d is not supported; supported: attention.key_length %d", dim, k.headDim)
	}
	k.ffn = k.int("feed_forward_length", -1, 1, maxDim)
	context := k.int("context_length", -1, 1, math.MaxInt32)

	config := map[string]any{
		"architectures": []any{arch.classes[0]}, "model_type": arch.model,
		"hidden_size": int64(hidden), "num_hidden_layers": int64(k.layers),
		"num_attention_heads": int64(k.heads), "num_key_value_heads": int64(k.kvHeads), "head_dim": int64(k.headDim),
		"intermediate_size": int64(k.ffn), "max_position_embeddings": int64(context),
		"hidden_act": cmp.Or(arch.activation, "silu"),
	}
	embedding, _ := k.f.Tensor("token_embd.weight")
	if len(embedding.Shape) == 2 {
		config["vocab_size"] = int64(embedding.Shape[0])
		if vocab := k.int("vocab_size", embedding.Shape[0], 1, maxDim); vocab != embedding.Shape[0] {
			k.fail("vocab_size", "%d, but tensor %q has %d rows", vocab, embedding.Name, embedding.Shape[0])
		}
	} else {
		config["vocab_size"] = int64(k.int("vocab_size", -1, 1, maxDim))
	}
	_, head := k.f.Tensor("output.weight")
	config["tie_word_embeddings"] = !head
	k.specialTokens(config)

	eps, storedEps := arch.epsKeys()
	config[eps] = k.float(storedEps, -1, 0, 1)
	rotary := k.int("rope.dimension_count", k.headDim, 2, maxDim)
	switch {
	case arch.partial && rotary <= k.headDim:
		config["partial_rotary_factor"] = float64(rotary) / float64(k.headDim)
	case rotary != k.headDim:
		k.fail("rope.dimension_count", "%d is not supported; supported: the whole head of %d", rotary, k.headDim)
	}
	rope := k.rope(arch, rotary, context)
	config["rope_parameters"] = rope
	if rope["rope_type"] == "longrope" {
		config["original_max_position_embeddings"] = rope["original_max_position_embeddings"] // where Phi 3 has it
	}
	window := k.window(arch, config)

	if arch.experts {
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
	norm, saysNorm := k.bool("expert_weights_norm")
	switch arch.model {
	case "llama":
		_, qkv := k.anyLayer("attn_q.bias", "attn_qkv.bias")
		_, out := k.anyLayer("attn_output.bias")
		if qkv != out {
			k.fail("block_count", "attention has a bias in some projections but not in all, which is not supported")
		}
		_, mlp := k.anyLayer("ffn_gate.bias", "ffn_up.bias", "ffn_down.bias")
		config["attention_bias"], config["mlp_bias"] = qkv, mlp
		if window > 0 {
			config["architectures"], config["model_type"] = []any{"MistralForCausalLM"}, "mistral"
		}
	case "mixtral":
		if saysNorm && !norm {
			k.fail("expert_weights_norm", "false is not supported in this architecture")
		}
	case "qwen2_moe", "qwen3_moe", "olmoe":
		if !saysNorm {
			norm = arch.model == "qwen3_moe" // what readers of the format assume
		}
		config["norm_topk_prob"] = norm
		if arch.model == "olmoe" {
			if clip := k.float("attention.clamp_kqv", 0, 0, math.MaxFloat32); clip > 0 {
				config["clip_qkv"] = clip
			}
			break
		}
		k.expertFFN = k.int("expert_feed_forward_length", k.rowsOf("ffn_up_exps.weight", 1, k.ffn), 1, maxDim)
		config["moe_intermediate_size"] = int64(k.expertFFN)
		if arch.model == "qwen2_moe" {
			config["shared_expert_intermediate_size"] = int64(k.int("expert_shared_feed_forward_length", k.rowsOf("ffn_up_shexp.weight", 0, k.ffn), 1, maxDim))
		}
	case "phimoe":
		_, config["attention_bias"] = k.anyLayer("attn_q.bias", "attn_qkv.bias")
		_, config["lm_head_bias"] = k.f.Tensor("output.bias")
	case "olmo2":
		if window > 0 {
			k.fail("attention.sliding_window", "%d is not supported in this architecture (Olmo 3)", window)
		}
	case "starcoder2":
		_, config["use_bias"] = k.anyLayer("attn_output.bias")
	case "gemma", "gemma2":
		config["hidden_activation"] = arch.activation
		if arch.model == "gemma2" {
			config["attn_logit_softcapping"] = k.float("attn_logit_softcapping", 50, 1e-3, math.MaxFloat32)
			config["final_logit_softcapping"] = k.float("final_logit_softcapping", 30, 1e-3, math.MaxFloat32)
			config["query_pre_attn_scalar"] = int64(k.queryScalar(hidden))
		}
	}
	if arch.model != "gemma2" {
		k.must("attn_logit_softcapping", 0)
		k.must("final_logit_softcapping", 0)
		if scale := k.float("attention.scale", 0, 0, math.MaxFloat32); scale != 0 && math.Abs(scale*math.Sqrt(float64(k.headDim))-1) > 1e-4 {
			k.fail("attention.scale", "%v is not supported; supported: 1/sqrt of the head's %d", scale, k.headDim)
		}
	}
	// What other architectures of the format have; here it would change the computation unseen.
	k.must("attention.causal", 1)
	k.must("attention.max_alibi_bias", 0)
	if arch.model != "olmoe" {
		k.must("attention.clamp_kqv", 0)
	}
	k.must("logit_scale", 0, 1)
	k.must("embedding_scale", 0, 1)
	k.must("residual_scale", 0, 1)
	k.must("expert_group_count", 0, 1)
	k.must("moe_every_n_layers", 0, 1)
	k.must("interleave_moe_layer_step", 0, 1)
	k.must("nextn_predict_layers", 0)
	k.must("attention.temperature_length", 0)
	k.must("attention.temperature_scale", 0)
	parallel := 0.0
	if arch.name == "phi2" {
		parallel = 1
	}
	k.must("use_parallel_residual", parallel)
	for _, key := range []string{"pooling_type", "tensor_data_layout", "rope.scaling.finetuned"} {
		k.read[key] = true // says nothing about what the model computes
	}
	return config
}

// countKey is the configuration key for the number of experts.
func (a *architecture) countKey() string {
	if a.model == "mixtral" || a.model == "phimoe" {
		return "num_local_experts"
	}
	return "num_experts"
}

// queryScalar is the square of what scores are divided by; files do not say it, but Gemma 2's 27B
// (46 layers) divides by the width of a head as if heads shared the residual stream.
func (k *keys) queryScalar(hidden int) int {
	if scale := k.float("attention.scale", 0, 0, math.MaxFloat32); scale > 0 {
		return int(math.Round(1 / (scale * scale)))
	}
	if k.layers == 46 {
		return hidden / k.heads
	}
	return k.headDim
}

// window translates the sliding window: its size (0: none), and which layers have it.
func (k *keys) window(arch *architecture, config map[string]any) int {
	def := 0
	if arch.model == "gemma2" {
		def = 4096
	}
	window := k.int("attention.sliding_window", def, 0, math.MaxInt32)
	var sliding []bool
	const key = "attention.sliding_window_pattern"
	k.read[key] = true
	switch pattern, ok := k.f.Value(arch.name + "." + key); {
	case ok:
		if sliding, ok = pattern.([]bool); ok && len(sliding) == k.layers {
			break
		}
		round, isInt := toInt(pattern)
		if !isInt || round < 1 {
			k.fail(key, "got %s, want a bool for each of %d layers, or how many layers make a round", brief(pattern), k.layers)
			return 0
		}
		sliding = make([]bool, k.layers)
		for i := range sliding {
			sliding[i] = i%round < round-1
		}
	case arch.model == "gemma2":
		sliding = make([]bool, k.layers)
		for i := range sliding {
			sliding[i] = i%2 == 0
		}
	}
	if window == 0 {
		return 0
	}
	config["sliding_window"] = int64(window)
	if strings.HasPrefix(arch.model, "qwen") {
		config["use_sliding_window"] = true
	}
	if sliding != nil {
		types := make([]any, k.layers)
		for i := range types {
			types[i] = "full_attention"
			if sliding[i] {
				types[i] = "sliding_attention"
			}
		}
		config["layer_types"] = types
	}
	return window
}

// specialTokens sets the ids that begin and end a text.
func (k *keys) specialTokens(config map[string]any) {
	vocab, _ := config["vocab_size"].(int64)
	id := func(key string) (int64, bool) {
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
