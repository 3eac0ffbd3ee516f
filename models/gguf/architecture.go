package gguf

import "strings"

// architecture is what has to be known of one family: what its tensors are called in both worlds.
// Its configuration keys are in config.go. {l} stands for a layer, {e} for an expert.
//
// Converters rename tensors and change a few of them: rows of q and k may be permuted, norms stored plus one, experts
// stacked into one tensor. A row of the table says which, so that reading and Export undo and do the same.
type architecture struct {
	name    string     // metadata key general.architecture
	classes []string   // Hugging Face classes written as this architecture; a file yields the first that fits
	model   string     // model_type of the first class
	pairs   []namePair // all tensors that the architecture may have

	rotaryPairs bool   // rows of q and k are stored as rotary pairs (see rotaryPair)
	plusOne     bool   // norm weights are stored plus one
	ownHead     bool   // readers want an output matrix also where the head is tied
	experts     bool   // the feed-forward block is a mixture
	partial     bool   // only a part of each head may be rotated
	eps         string // configuration key of the norms' epsilon, "" for rms_norm_eps
	activation  string // hidden_act, "" for silu

	// settings translates the metadata that only this architecture has; nil for none.
	settings func(k *keys, config map[string]any)
}

// namePair is one tensor in both worlds. Those ending in .bias and norms are vectors.
type namePair struct {
	stored   string // "blk.{l}.attn_q.weight"
	hf       string // "model.layers.{l}.self_attn.q_proj.weight"
	optional bool   // a model of the architecture may lack it
}

// vector reports whether the tensor has one dimension.
func (p namePair) vector() bool {
	return strings.HasSuffix(p.hf, ".bias") || p.norm()
}

// norm reports whether the tensor belongs to a norm.
func (p namePair) norm() bool { return strings.Contains(p.hf, "norm") }

// router tensors choose experts; they are never quantised.
func (p namePair) router() bool { return strings.Contains(p.stored, "_gate_inp") }

// perLayer reports whether each layer has the tensor, perExpert whether each expert has a matrix of it.
func (p namePair) perLayer() bool  { return strings.Contains(p.stored, "{l}") }
func (p namePair) perExpert() bool { return strings.Contains(p.hf, "{e}") }

// pairs parses lines "stored hf", names without their {l} prefixes where they begin with a dot; a
// question mark after the stored name makes it optional.
func pairs(groups ...string) []namePair {
	var out []namePair
	for line := range strings.Lines(strings.Join(groups, "\n")) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		// A line such as ".attn_q.bias? .self_attn.q_proj.bias".
		stored, optional := strings.CutSuffix(fields[0], "?")
		pair := namePair{stored, fields[1], optional}
		if rest, ok := strings.CutPrefix(pair.stored, "."); ok {
			pair.stored, pair.hf = "blk.{l}."+rest, "model.layers.{l}"+pair.hf
		}
		out = append(out, pair)
	}
	return out
}

// Groups of pairs that architectures share, as pairs parses them.
const (
	outerPairs = `
		token_embd.weight       model.embed_tokens.weight
		output_norm.weight      model.norm.weight
		output.weight?          lm_head.weight`

	attentionPairs = `
		.attn_norm.weight       .input_layernorm.weight
		.attn_q.weight          .self_attn.q_proj.weight
		.attn_k.weight          .self_attn.k_proj.weight
		.attn_v.weight          .self_attn.v_proj.weight
		.attn_output.weight     .self_attn.o_proj.weight
		.ffn_norm.weight        .post_attention_layernorm.weight`
	qkvBiasPairs = `
		.attn_q.bias?           .self_attn.q_proj.bias
		.attn_k.bias?           .self_attn.k_proj.bias
		.attn_v.bias?           .self_attn.v_proj.bias`
	outBiasPairs = `
		.attn_output.bias?      .self_attn.o_proj.bias`
	qkNormPairs = `
		.attn_q_norm.weight     .self_attn.q_norm.weight
		.attn_k_norm.weight     .self_attn.k_norm.weight`

	densePairs = `
		.ffn_gate.weight        .mlp.gate_proj.weight
		.ffn_up.weight          .mlp.up_proj.weight
		.ffn_down.weight        .mlp.down_proj.weight`
	denseBiasPairs = `
		.ffn_gate.bias?         .mlp.gate_proj.bias
		.ffn_up.bias?           .mlp.up_proj.bias
		.ffn_down.bias?         .mlp.down_proj.bias`
	expertPairs = `
		.ffn_gate_inp.weight    .mlp.gate.weight
		.ffn_gate_exps.weight   .mlp.experts.{e}.gate_proj.weight
		.ffn_up_exps.weight     .mlp.experts.{e}.up_proj.weight
		.ffn_down_exps.weight   .mlp.experts.{e}.down_proj.weight`
	sharedExpertPairs = `
		.ffn_gate_inp_shexp.weight .mlp.shared_expert_gate.weight
		.ffn_gate_shexp.weight  .mlp.shared_expert.gate_proj.weight
		.ffn_up_shexp.weight    .mlp.shared_expert.up_proj.weight
		.ffn_down_shexp.weight  .mlp.shared_expert.down_proj.weight`
	sparsePairs = `
		.ffn_gate_inp.weight    .block_sparse_moe.gate.weight
		.ffn_gate_exps.weight   .block_sparse_moe.experts.{e}.w1.weight
		.ffn_up_exps.weight     .block_sparse_moe.experts.{e}.w3.weight
		.ffn_down_exps.weight   .block_sparse_moe.experts.{e}.w2.weight`
)

// gemma2Attention has another name for the norm in front of the feed-forward block.
var gemma2Attention = strings.Replace(attentionPairs,
	".ffn_norm.weight        .post_attention_layernorm", ".ffn_norm.weight .pre_feedforward_layernorm", 1)

// architectures lists what can be read and written, in the order error messages name it. A name
// occurs twice where experts decide between two classes. InternLM2 computes what Llama does, and the
// file stores it like Llama, so it is read as one.
var architectures = []architecture{
	{name: "llama", classes: []string{"LlamaForCausalLM", "MistralForCausalLM"},
		model: "llama", settings: llamaSettings, rotaryPairs: true,
		pairs: pairs(outerPairs, attentionPairs, qkvBiasPairs, outBiasPairs, densePairs, denseBiasPairs)},
	{name: "llama", classes: []string{"MixtralForCausalLM"},
		model: "mixtral", settings: mixtralSettings, rotaryPairs: true, experts: true,
		pairs: pairs(outerPairs, attentionPairs, sparsePairs)},
	{name: "internlm2", classes: []string{"LlamaForCausalLM"},
		model: "llama", settings: llamaSettings, rotaryPairs: true, ownHead: true,
		pairs: pairs(outerPairs, attentionPairs, densePairs)},
	{name: "qwen2", classes: []string{"Qwen2ForCausalLM"}, model: "qwen2",
		pairs: pairs(outerPairs, attentionPairs, qkvBiasPairs, densePairs)},
	{name: "qwen3", classes: []string{"Qwen3ForCausalLM"}, model: "qwen3",
		pairs: pairs(outerPairs, attentionPairs, qkNormPairs, densePairs)},
	{name: "qwen2moe", classes: []string{"Qwen2MoeForCausalLM"},
		model: "qwen2_moe", settings: qwen2MoeSettings, ownHead: true, experts: true,
		pairs: pairs(outerPairs, attentionPairs, qkvBiasPairs, expertPairs, sharedExpertPairs)},
	{name: "qwen3moe", classes: []string{"Qwen3MoeForCausalLM"},
		model: "qwen3_moe", settings: qwen3MoeSettings, experts: true,
		pairs: pairs(outerPairs, attentionPairs, qkNormPairs, expertPairs)},
	{name: "olmoe", classes: []string{"OlmoeForCausalLM"},
		model: "olmoe", settings: olmoeSettings, ownHead: true, experts: true,
		pairs: pairs(outerPairs, attentionPairs, qkNormPairs, expertPairs)},
	{name: "phimoe", classes: []string{"PhimoeForCausalLM", "PhiMoEForCausalLM"},
		model: "phimoe", settings: phimoeSettings, ownHead: true, experts: true,
		pairs: pairs(outerPairs, attentionPairs, qkvBiasPairs, outBiasPairs, sparsePairs, `
			output_norm.bias    model.norm.bias
			output.bias?        lm_head.bias
			.attn_norm.bias     .input_layernorm.bias
			.ffn_norm.bias      .post_attention_layernorm.bias`)},
	{name: "gemma", classes: []string{"GemmaForCausalLM"},
		model: "gemma", settings: gemmaSettings, plusOne: true, activation: "gelu_pytorch_tanh",
		pairs: pairs(outerPairs, attentionPairs, densePairs)},
	{name: "gemma2", classes: []string{"Gemma2ForCausalLM"},
		model: "gemma2", settings: gemma2Settings, plusOne: true, activation: "gelu_pytorch_tanh",
		pairs: pairs(outerPairs, gemma2Attention, densePairs, `
			.post_attention_norm.weight .post_attention_layernorm.weight
			.post_ffw_norm.weight       .post_feedforward_layernorm.weight`)},
	{name: "phi2", classes: []string{"PhiForCausalLM"},
		model: "phi", ownHead: true, partial: true, eps: "layer_norm_eps", activation: "gelu_new",
		pairs: pairs(strings.Replace(outerPairs, "model.norm", "model.final_layernorm", 1), qkvBiasPairs, `
			output_norm.bias    model.final_layernorm.bias
			output.bias         lm_head.bias
			.attn_norm.weight   .input_layernorm.weight
			.attn_norm.bias     .input_layernorm.bias
			.attn_q.weight      .self_attn.q_proj.weight
			.attn_k.weight      .self_attn.k_proj.weight
			.attn_v.weight      .self_attn.v_proj.weight
			.attn_output.weight .self_attn.dense.weight
			.attn_output.bias   .self_attn.dense.bias
			.ffn_up.weight      .mlp.fc1.weight
			.ffn_up.bias        .mlp.fc1.bias
			.ffn_down.weight    .mlp.fc2.weight
			.ffn_down.bias      .mlp.fc2.bias`)},
	{name: "phi3", classes: []string{"Phi3ForCausalLM"}, model: "phi3", partial: true,
		pairs: pairs(outerPairs, `
			.attn_norm.weight   .input_layernorm.weight
			.attn_qkv.weight    .self_attn.qkv_proj.weight
			.attn_output.weight .self_attn.o_proj.weight
			.ffn_norm.weight    .post_attention_layernorm.weight
			.ffn_up.weight      .mlp.gate_up_proj.weight
			.ffn_down.weight    .mlp.down_proj.weight`)},
	{name: "olmo2", classes: []string{"Olmo2ForCausalLM"}, model: "olmo2", settings: olmo2Settings, ownHead: true,
		pairs: pairs(outerPairs, qkNormPairs, densePairs, `
			.attn_q.weight      .self_attn.q_proj.weight
			.attn_k.weight      .self_attn.k_proj.weight
			.attn_v.weight      .self_attn.v_proj.weight
			.attn_output.weight .self_attn.o_proj.weight
			.post_attention_norm.weight .post_attention_layernorm.weight
			.post_ffw_norm.weight       .post_feedforward_layernorm.weight`)},
	{name: "starcoder2", classes: []string{"Starcoder2ForCausalLM"},
		model: "starcoder2", settings: starcoder2Settings, eps: "norm_epsilon", activation: "gelu_pytorch_tanh",
		pairs: pairs(outerPairs, attentionPairs, qkvBiasPairs, `
			output_norm.bias    model.norm.bias
			.attn_norm.bias     .input_layernorm.bias
			.attn_output.bias   .self_attn.o_proj.bias
			.ffn_norm.bias      .post_attention_layernorm.bias
			.ffn_up.weight      .mlp.c_fc.weight
			.ffn_up.bias        .mlp.c_fc.bias
			.ffn_down.weight    .mlp.c_proj.weight
			.ffn_down.bias      .mlp.c_proj.bias`)},
}

// pairedHeads is in how many heads the rows of a tensor are stored as rotary pairs, 0 for other tensors.
func (a *architecture) pairedHeads(pair namePair, heads, kvHeads int) int {
	base := strings.TrimPrefix(pair.stored, "blk.{l}.")
	switch {
	case a.rotaryPairs && strings.HasPrefix(base, "attn_q."):
		return heads
	case a.rotaryPairs && strings.HasPrefix(base, "attn_k."):
		return kvHeads
	}
	return 0
}

// epsKeys returns the keys of the norms' epsilon in a config.json and in the metadata.
func (a *architecture) epsKeys() (hf, stored string) {
	if a.eps == "" {
		return "rms_norm_eps", "attention.layer_norm_rms_epsilon"
	}
	return a.eps, "attention.layer_norm_epsilon"
}

// architectureNames lists the names of GGUF architectures, each once.
func architectureNames() string {
	var out []string
	for i, arch := range architectures {
		if i == 0 || arch.name != architectures[i-1].name {
			out = append(out, arch.name)
		}
	}
	return strings.Join(out, ", ")
}
