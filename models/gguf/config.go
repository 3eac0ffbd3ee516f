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
func (k *keys) config(a *architecture) map[string]any {
	k.layers = k.int("block_count", -1, 1, maxLayers)
	hidden := k.int("embedding_length", -1, 1, maxDim)
	k.heads = k.int("attention.head_count", -1, 1, maxDim)
	k.kvHeads = k.int("attention.head_count_kv", k.heads, 1, maxDim)
	k.headDim = k.int("attention.key_length", hidden/k.heads, 1, maxDim)
	if v := k.int("attention.value_length", k.headDim, 1, maxDim); v != k.headDim {
		k.fail("attention.value_length", "%d is not supported; supported: attention.key_length %d", v, k.headDim)
	}
	k.ffn = k.int("feed_forward_length", -1, 1, maxDim)
	context := k.int("context_length", -1, 1, math.MaxInt32)

	c := map[string]any{
		"architectures": []any{a.classes[0]}, "model_type": a.model,
		"hidden_size": int64(hidden), "num_hidden_layers": int64(k.layers),
		"num_attention_heads": int64(k.heads), "num_key_value_heads": int64(k.kvHeads), "head_dim": int64(k.headDim),
		"intermediate_size": int64(k.ffn), "max_position_embeddings": int64(context),
		"hidden_act": cmp.Or(a.activation, "silu"),
	}
	embedding, _ := k.f.Tensor("token_embd.weight")
	if len(embedding.Shape) == 2 {
		c["vocab_size"] = int64(embedding.Shape[0])
		if n := k.int("vocab_size", embedding.Shape[0], 1, maxDim); n != embedding.Shape[0] {
			k.fail("vocab_size", "%d, but tensor %q has %d rows", n, embedding.Name, embedding.Shape[0])
		}
	} else {
		c["vocab_size"] = int64(k.int("vocab_size", -1, 1, maxDim))
	}
	_, head := k.f.Tensor("output.weight")
	c["tie_word_embeddings"] = !head
	k.specialTokens(c)

	eps, storedEps := a.epsKeys()
	c[eps] = k.float(storedEps, -1, 0, 1)
	rotary := k.int("rope.dimension_count", k.headDim, 2, maxDim)
	switch {
	case a.partial && rotary <= k.headDim:
		c["partial_rotary_factor"] = float64(rotary) / float64(k.headDim)
	case rotary != k.headDim:
		k.fail("rope.dimension_count", "%d is not supported; supported: the whole head of %d", rotary, k.headDim)
	}
	rope := k.rope(a, rotary, context)
	c["rope_parameters"] = rope
	if rope["rope_type"] == "longrope" {
		c["original_max_position_embeddings"] = rope["original_max_position_embeddings"] // where Phi 3 has it
	}
	window := k.window(a, c)

	if a.experts {
		k.experts = k.int("expert_count", -1, 1, maxExperts)
		used := k.int("expert_used_count", -1, 1, k.experts)
		k.must("expert_gating_func", 1)
		k.must("expert_weights_scale", 0, 1)
		k.must("expert_shared_count", 0, 1)
		k.must("leading_dense_block_count", 0)
		k.expertFFN = k.ffn
		c["num_experts_per_tok"] = int64(used)
		c[a.countKey()] = int64(k.experts)
	}
	norm, saysNorm := k.bool("expert_weights_norm")
	switch a.model {
	case "llama":
		_, qkv := k.anyLayer("attn_q.bias", "attn_qkv.bias")
		_, out := k.anyLayer("attn_output.bias")
		if qkv != out {
			k.fail("block_count", "attention has a bias in some projections but not in all, which is not supported")
		}
		_, mlp := k.anyLayer("ffn_gate.bias", "ffn_up.bias", "ffn_down.bias")
		c["attention_bias"], c["mlp_bias"] = qkv, mlp
		if window > 0 {
			c["architectures"], c["model_type"] = []any{"MistralForCausalLM"}, "mistral"
		}
	case "mixtral":
		if saysNorm && !norm {
			k.fail("expert_weights_norm", "false is not supported in this architecture")
		}
	case "qwen2_moe", "qwen3_moe", "olmoe":
		if !saysNorm {
			norm = a.model == "qwen3_moe" // what readers of the format assume
		}
		c["norm_topk_prob"] = norm
		if a.model == "olmoe" {
			if clip := k.float("attention.clamp_kqv", 0, 0, math.MaxFloat32); clip > 0 {
				c["clip_qkv"] = clip
			}
			break
		}
		k.expertFFN = k.int("expert_feed_forward_length", k.rowsOf("ffn_up_exps.weight", 1, k.ffn), 1, maxDim)
		c["moe_intermediate_size"] = int64(k.expertFFN)
		if a.model == "qwen2_moe" {
			c["shared_expert_intermediate_size"] = int64(k.int("expert_shared_feed_forward_length", k.rowsOf("ffn_up_shexp.weight", 0, k.ffn), 1, maxDim))
		}
	case "phimoe":
		_, c["attention_bias"] = k.anyLayer("attn_q.bias", "attn_qkv.bias")
		_, c["lm_head_bias"] = k.f.Tensor("output.bias")
	case "olmo2":
		if window > 0 {
			k.fail("attention.sliding_window", "%d is not supported in this architecture (Olmo 3)", window)
		}
	case "starcoder2":
		_, c["use_bias"] = k.anyLayer("attn_output.bias")
	case "gemma", "gemma2":
		c["hidden_activation"] = a.activation
		if a.model == "gemma2" {
			c["attn_logit_softcapping"] = k.float("attn_logit_softcapping", 50, 1e-3, math.MaxFloat32)
			c["final_logit_softcapping"] = k.float("final_logit_softcapping", 30, 1e-3, math.MaxFloat32)
			c["query_pre_attn_scalar"] = int64(k.queryScalar(hidden))
		}
	}
	if a.model != "gemma2" {
		k.must("attn_logit_softcapping", 0)
		k.must("final_logit_softcapping", 0)
		if v := k.float("attention.scale", 0, 0, math.MaxFloat32); v != 0 && math.Abs(v*math.Sqrt(float64(k.headDim))-1) > 1e-4 {
			k.fail("attention.scale", "%v is not supported; supported: 1/sqrt of the head's %d", v, k.headDim)
		}
	}
	// What other architectures of the format have; here it would change the computation unseen.
	k.must("attention.causal", 1)
	k.must("attention.max_alibi_bias", 0)
	if a.model != "olmoe" {
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
	if a.name == "phi2" {
		parallel = 1
	}
	k.must("use_parallel_residual", parallel)
	for _, key := range []string{"pooling_type", "tensor_data_layout", "rope.scaling.finetuned"} {
		k.read[key] = true // says nothing about what the model computes
	}
	return c
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
	if v := k.float("attention.scale", 0, 0, math.MaxFloat32); v > 0 {
		return int(math.Round(1 / (v * v)))
	}
	if k.layers == 46 {
		return hidden / k.heads
	}
	return k.headDim
}

// window translates the sliding window: its size (0: none), and which layers have it.
func (k *keys) window(a *architecture, c map[string]any) int {
	def := 0
	if a.model == "gemma2" {
		def = 4096
	}
	window := k.int("attention.sliding_window", def, 0, math.MaxInt32)
	var sliding []bool
	const key = "attention.sliding_window_pattern"
	k.read[key] = true
	switch v, ok := k.f.Value(a.name + "." + key); {
	case ok:
		if sliding, ok = v.([]bool); ok && len(sliding) == k.layers {
			break
		}
		n, isInt := toInt(v)
		if !isInt || n < 1 {
			k.fail(key, "got %s, want a bool for each of %d layers, or how many layers make a round", brief(v), k.layers)
			return 0
		}
		sliding = make([]bool, k.layers)
		for i := range sliding {
			sliding[i] = i%n < n-1
		}
	case a.model == "gemma2":
		sliding = make([]bool, k.layers)
		for i := range sliding {
			sliding[i] = i%2 == 0
		}
	}
	if window == 0 {
		return 0
	}
	c["sliding_window"] = int64(window)
	if strings.HasPrefix(a.model, "qwen") {
		c["use_sliding_window"] = true
	}
	if sliding != nil {
		types := make([]any, k.layers)
		for i := range types {
			types[i] = "full_attention"
			if sliding[i] {
				types[i] = "sliding_attention"
			}
		}
		c["layer_types"] = types
	}
	return window
}

// specialTokens sets the ids that begin and end a text.
func (k *keys) specialTokens(c map[string]any) {
	vocab, _ := c["vocab_size"].(int64)
	id := func(key string) (int64, bool) {
		n, ok := k.f.integer("tokenizer.ggml." + key)
		return int64(n), ok && n >= 0 && int64(n) < vocab
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
		c["bos_token_id"] = bos
	}
	var ends []any
	if hasEOS {
		ends = append(ends, eos)
	}
	for _, key := range []string{"eot_token_id", "eom_token_id"} {
		if n, ok := id(key); ok && !slices.Contains(ends, any(n)) {
			ends = append(ends, n)
		}
	}
	switch len(ends) {
	case 0:
	case 1:
		c["eos_token_id"] = ends[0]
	default:
		c["eos_token_id"] = ends
	}
	if n, ok := id("padding_token_id"); ok {
		c["pad_token_id"] = n
	}
}

// anyLayer returns the first tensor of these that layer 0 has.
func (k *keys) anyLayer(names ...string) (Tensor, bool) {
	for _, n := range names {
		if t, ok := k.f.Tensor("blk.0." + n); ok {
			return t, true
		}
	}
	return Tensor{}, false
}

// rowsOf is dimension dim of a tensor of layer 0, def when there is none.
func (k *keys) rowsOf(name string, dim, def int) int {
	if t, ok := k.anyLayer(name); ok && dim < len(t.Shape) {
		return t.Shape[dim]
	}
	return def
}

// fileTypes are the numbers of general.file_type.
var fileTypes = map[op.Type]uint32{op.F32: 0, op.F16: 1, q4_0: 2, q8_0: 7, op.BF16: 32}
