package models

import (
	"cmp"
	"math"
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// architecture is what has to be known of one family of models. A new one is a row of architectures and its read
// function.
type architecture struct {
	name      string // config key "architectures"
	modelType string // config key "model_type"
	// read fills the model from the config; refusals are collected in cfg.
	read    func(cfg *config, model *Model)
	without features // a configuration that asks for one of them is refused
	ignored string   // further keys that say nothing, separated by spaces
}

// features are variations of the one graph of decoders.
type features int

const (
	windows  features = 1 << iota // sliding windows
	biases                        // of the projections
	softCaps                      // of scores and logits
	mixtures                      // of experts
)

// architectures lists what can be read, in the order error messages name it.
var architectures = []architecture{
	{"LlamaForCausalLM", "llama", readLlama, windows | softCaps | mixtures, ""},
	{"MistralForCausalLM", "mistral", readMistral, biases | softCaps | mixtures, ""},
	{"Qwen2ForCausalLM", "qwen2", readQwen2, softCaps | mixtures, ""},
	{"Qwen3ForCausalLM", "qwen3", readQwen3, softCaps | mixtures, ""},
	{"MixtralForCausalLM", "mixtral", readMixtral, biases | softCaps, "router_jitter_noise"},
	{"Qwen2MoeForCausalLM", "qwen2_moe", readQwen2Moe, softCaps, ""},
	{"Qwen3MoeForCausalLM", "qwen3_moe", readQwen3Moe, softCaps, ""},
	{"OlmoeForCausalLM", "olmoe", readOlmoe, windows | softCaps, ""},
	{"PhiMoEForCausalLM", "phimoe", readPhiMoe, softCaps, "input_jitter_noise"},
	{"PhimoeForCausalLM", "phimoe", readPhiMoe, softCaps, "input_jitter_noise"},
	{"Olmo2ForCausalLM", "olmo2", readOlmo2, windows | softCaps | mixtures, ""},
	{"GemmaForCausalLM", "gemma", readGemma, windows | softCaps | mixtures, "hidden_activation"}, // repeats hidden_act
	{"Gemma2ForCausalLM", "gemma2", readGemma2, mixtures, "hidden_act"},                          // an older spelling
	{"PhiForCausalLM", "phi", readPhi, windows | softCaps | mixtures, "resid_pdrop embd_pdrop"},
	{"Phi3ForCausalLM", "phi3", readPhi3, biases | softCaps | mixtures, "resid_pdrop embd_pdrop"},
	{"Starcoder2ForCausalLM", "starcoder2", readStarcoder2, softCaps | mixtures, "residual_dropout embedding_dropout"},
	{"InternLM2ForCausalLM", "internlm2", readInternLM2, windows | softCaps | mixtures, "attn_implementation"},
}

// refuse refuses keys that ask for a feature which the architecture does not have.
func (c *config) refuse(without features) {
	for _, key := range []struct {
		of        features
		name      string
		want      any
		supported string
	}{
		{windows, "sliding_window", nil, "attention over the whole context"},
		{windows, "use_sliding_window", false, "attention over the whole context"},
		{biases, "attention_bias", false, "attention projections without bias"},
		{biases, "mlp_bias", false, "feed-forward projections without bias"},
		{softCaps, "attn_logit_softcapping", nil, "plain softmax attention"},
		{softCaps, "final_logit_softcapping", nil, "plain logits"},
		{mixtures, "num_local_experts", nil, "dense feed-forward blocks"},
		{mixtures, "num_experts", nil, "dense feed-forward blocks"},
	} {
		if without&key.of != 0 {
			c.requireValue(key.name, key.want, key.supported)
		}
	}
	if without&windows == 0 {
		return
	}
	for _, layerType := range c.list("layer_types") {
		if layerType != "full_attention" {
			c.fail("layer_types", "%s is not supported; supported: \"full_attention\" in every layer",
				abbreviate(layerType))
			break
		}
	}
}

// defaults are what an architecture assumes of keys that are absent.
type defaults struct {
	kvHeads int     // 0: as many as query heads
	headDim int     // 0: hidden_size / num_attention_heads
	context int     // positions
	eps     float64 // of the norms
	epsKey  string  // "": rms_norm_eps
	act     string  // "": silu
	actKey  string  // "": hidden_act
	tied    bool    // the head multiplies by the embedding
	rope    ropeOptions
}

// decoder reads what all decoders share.
func (c *config) decoder(model *Model, assumed defaults) {
	model.Hidden = c.dim("hidden_size", 0)
	model.Layers = c.bounded("num_hidden_layers", 0, maxLayers)
	c.heads(model, assumed)
	model.FFN = c.dim("intermediate_size", 0)
	model.Vocab = c.dim("vocab_size", 0)
	if model.Vocab == 1 {
		c.fail("vocab_size", "1, want at least 2 tokens, between which a model can choose")
	}
	model.MaxContext = c.dim("max_position_embeddings", assumed.context)
	c.product("intermediate_size", "2 * intermediate_size", 2, model.FFN)
	model.decoder.epsKey = cmp.Or(assumed.epsKey, "rms_norm_eps")
	model.NormEps = c.float(model.decoder.epsKey, assumed.eps, 0, 1)
	model.decoder.act = c.activation(cmp.Or(assumed.actKey, "hidden_act"), cmp.Or(assumed.act, "silu"))
	assumed.rope.theta = cmp.Or(assumed.rope.theta, 10000)
	model.decoder.rope = c.rope(model.HeadDim, model.MaxContext, assumed.rope)
	model.RopeTheta = model.decoder.rope.theta
	if model.decoder.rope.stretch > 1 {
		model.MaxContext = int(min(maxDim, float64(model.MaxContext)*model.decoder.rope.stretch))
	}
	model.BOS = c.id("bos_token_id", model.Vocab)
	model.EOS = c.ids("eos_token_id", model.Vocab)
	model.Tied = c.bool("tie_word_embeddings", assumed.tied)
}

// heads reads the number of heads and their columns. Fused rows must stay within what an operator can describe.
func (c *config) heads(model *Model, assumed defaults) {
	model.Heads = c.dim("num_attention_heads", 0)
	if assumed.kvHeads == 0 || c.absent("num_key_value_heads") == null {
		assumed.kvHeads = model.Heads
	}
	model.KVHeads = c.dim("num_key_value_heads", assumed.kvHeads)
	// Where the file does not say how wide a head is, the heads share the residual stream.
	if assumed.headDim == 0 {
		assumed.headDim = 2 // where one of both is wrong, which was said: the rest is still read
		if model.Heads > 0 && model.Hidden >= model.Heads {
			assumed.headDim = model.Hidden / model.Heads
		}
		if model.Heads > 0 && !c.has("head_dim") && model.Hidden%model.Heads != 0 {
			c.fail("hidden_size", "%d, want a multiple of num_attention_heads %d (or a head_dim)",
				model.Hidden, model.Heads)
		}
	}
	model.HeadDim = c.bounded("head_dim", assumed.headDim, maxHeadDim)
	if model.HeadDim < 1 || model.HeadDim > maxHeadDim {
		if model.HeadDim > maxHeadDim {
			c.fail("hidden_size", "gives heads of %d columns, want at most %d", model.HeadDim, maxHeadDim)
		}
		model.HeadDim = 2 // the rest is still read
	}
	if model.KVHeads > 0 && model.Heads%model.KVHeads != 0 {
		c.fail("num_key_value_heads", "%d, want a divisor of num_attention_heads %d", model.KVHeads, model.Heads)
	}
	if model.HeadDim%2 != 0 && assumed.rope.partial == 0 {
		c.fail("head_dim", "%d, want an even number for rotary positions", model.HeadDim)
	}
	c.product("num_attention_heads", "(num_attention_heads + 2*num_key_value_heads) * head_dim",
		model.Heads+2*model.KVHeads, model.HeadDim)
}

// activations are the names of configuration files. Some name approximations that differ in the last digits.
var activations = map[string]string{
	"silu": op.SiLU, "swish": op.SiLU, "gelu": op.GELU, "relu": op.ReLU,
	"gelu_new": op.GELUTanh, "gelu_pytorch_tanh": op.GELUTanh, "gelu_fast": op.GELUTanh,
}

// activation reads the name of an activation, def where the key is absent, as one of op.Acts.
func (c *config) activation(key, def string) string {
	name := c.text(key, def)
	act, ok := activations[name]
	if !ok {
		c.fail(key, "%s is not supported; supported: silu, gelu, gelu_pytorch_tanh, gelu_new, relu", abbreviate(name))
		return op.SiLU
	}
	return act
}

// presence tells a key with a null from one that is not there.
type presence int

const (
	missing presence = iota
	null
	given
)

// absent reports whether a key is missing, null or given. The reference implementation tells a null
// apart only where a default depends on it.
func (c *config) absent(key string) presence {
	c.read[key] = true
	value, ok := c.keys[key]
	switch {
	case !ok:
		return missing
	case value == nil:
		return null
	}
	return given
}

// window reads sliding_window: def where the key is absent, 0 for none.
func (c *config) window(def int) int {
	switch c.absent("sliding_window") {
	case missing:
		return def
	case null:
		return 0
	}
	if c.keys["sliding_window"] == int64(0) { // the reference implementation would have rows attend to nothing
		c.fail("sliding_window", "0 positions are not supported; supported: at least 1, or null for the whole context")
		return 0
	}
	return c.integer("sliding_window", 0, 1, maxDim)
}

// layerTypes reads which layers have a window: as the file lists them, or by the architecture's rule.
func (c *config) layerTypes(model *Model, window int, rule func(layer int) bool) {
	list := c.list("layer_types")
	if list != nil && len(list) != model.Layers {
		c.fail("layer_types", "lists %d layers, want num_hidden_layers %d", len(list), model.Layers)
		return
	}
	windowed := make([]bool, model.Layers)
	for layer := range windowed {
		switch {
		case list == nil:
			windowed[layer] = rule(layer)
		case list[layer] == "sliding_attention":
			windowed[layer] = true
		case list[layer] != "full_attention":
			c.fail("layer_types", `%s is not supported; supported: "full_attention" and "sliding_attention"`,
				abbreviate(list[layer]))
			return
		}
	}
	if !slices.Contains(windowed, true) {
		return
	}
	if window == 0 {
		if list != nil {
			c.fail("layer_types", "names layers with a window that no key gives; want a sliding_window, and "+
				"use_sliding_window where the architecture has it")
		}
		return
	}
	model.decoder.window = window
	model.decoder.windowed = func(l int) bool { return windowed[l] }
}

// readLlama reads the plain decoder: RMS norms, a gated feed-forward block, rotary positions, and
// biases where the keys ask for them.
func readLlama(cfg *config, model *Model) {
	cfg.decoder(model, defaults{context: 2048, eps: 1e-6})
	cfg.attentionBias(model)
	model.decoder.ffnBias = cfg.bool("mlp_bias", false)
}

// attentionBias reads whether the four projections of the attention have biases: all or none.
func (c *config) attentionBias(model *Model) {
	bias := c.bool("attention_bias", false)
	model.decoder.qkvBias, model.decoder.outBias = bias, bias
}

// readMistral reads a Llama without biases, whose layers all have the sliding window unless layer_types tells them
// apart (Ministral, whose files name Mistral).
func readMistral(cfg *config, model *Model) {
	cfg.decoder(model, defaults{kvHeads: 8, context: 4096 * 32, eps: 1e-6})
	cfg.layerTypes(model, cfg.window(4096), func(int) bool { return true })
}

// everyWindow gives every layer the window, whatever layer_types says: these architectures do not read it.
func (c *config) everyWindow(model *Model, window int) {
	c.read["layer_types"] = true
	if window > 0 {
		model.decoder.window, model.decoder.windowed = window, func(int) bool { return true }
	}
}

// readQwen2 reads a Llama with biases in the projections to queries, keys and values only.
func readQwen2(cfg *config, model *Model) {
	cfg.decoder(model, defaults{kvHeads: 32, context: 32768, eps: 1e-6})
	model.decoder.qkvBias = true
	cfg.qwenWindow(model)
}

// optionalWindow reads the window of Qwen models, which another key switches on.
func (c *config) optionalWindow() int {
	if !c.bool("use_sliding_window", false) {
		c.read["sliding_window"] = true
		return 0
	}
	return c.window(4096)
}

// qwenWindow gives the window to the layers from max_window_layers on.
func (c *config) qwenWindow(model *Model) {
	window := c.optionalWindow()
	from := c.integer("max_window_layers", 28, 0, maxLayers)
	c.layerTypes(model, window, func(l int) bool { return l >= from })
}

// readQwen3 reads a model with a norm of every query and key head.
func readQwen3(cfg *config, model *Model) {
	cfg.decoder(model, defaults{kvHeads: 32, headDim: 128, context: 32768, eps: 1e-6})
	cfg.attentionBias(model)
	model.decoder.qkNorm = "head"
	cfg.qwenWindow(model)
}

// experts reads a mixture: how many there are, how many a token uses, and the columns of one.
func (c *config) experts(model *Model, key string, def, perToken, ffn int) {
	for _, alias := range []string{"num_experts", "num_local_experts"} {
		if alias != key && c.has(alias) && !c.has(key) {
			key = alias
		}
		c.read[alias] = true
	}
	model.Experts = c.bounded(key, def, maxExperts)
	model.ExpertsPerToken = c.bounded("num_experts_per_tok", perToken, maxPerToken)
	model.ExpertFFN = ffn
	if model.ExpertsPerToken > model.Experts {
		c.fail("num_experts_per_tok", "%d, want at most %s %d", model.ExpertsPerToken, key, model.Experts)
	}
	c.product("intermediate_size", "2 * columns of an expert", 2, ffn)
	if total := model.Experts * model.Layers; total > maxExpertsTotal {
		c.fail(key, "%d experts in %d layers, want at most %d in all", model.Experts, model.Layers, maxExpertsTotal)
	}
}

// router chooses between weights that sum to 1 and the plain softmax of all experts.
func (c *config) router(key string, def bool) string {
	if c.bool(key, def) {
		return op.RouteSoftmaxNorm
	}
	return op.RouteSoftmax
}

// sparseLayers reads which layers of a Qwen mixture have experts.
func (c *config) sparseLayers(model *Model) {
	step := c.bounded("decoder_sparse_step", 1, maxLayers)
	dense := map[int]bool{}
	for _, element := range c.list("mlp_only_layers") {
		layer, ok := element.(int64)
		if !ok || layer < 0 {
			c.fail("mlp_only_layers", "got %s, want layer numbers", abbreviate(element))
			return
		}
		dense[int(layer)] = true
	}
	model.decoder.dense = func(l int) bool { return dense[l] || (l+1)%step != 0 }
	for layer := range model.Layers {
		if !model.decoder.dense(layer) {
			return
		}
	}
	// The experts that the keys describe are in no layer.
	model.Experts, model.ExpertsPerToken, model.ExpertFFN, model.SharedFFN = 0, 0, 0, 0
}

// sparseBlock sets the names that Mixtral gave the tensors of a mixture.
func (n *tensorNames) sparseBlock() {
	const block = inLayer + "block_sparse_moe."
	n.router, n.expertGate = block+"gate", block+"experts.{expert}.w1"
	n.expertUp, n.expertDown = block+"experts.{expert}.w3", block+"experts.{expert}.w2"
}

// readMixtral reads a Mistral with a mixture of experts, whose chosen weights sum to 1.
func readMixtral(cfg *config, model *Model) {
	cfg.decoder(model, defaults{kvHeads: 8, context: 4096 * 32, eps: 1e-5, rope: ropeOptions{theta: 1e6}})
	cfg.everyWindow(model, cfg.window(0))
	cfg.experts(model, "num_local_experts", 8, 2, model.FFN)
	model.decoder.router = op.RouteSoftmaxNorm
	model.decoder.names.sparseBlock()
}

// readQwen2Moe reads a mixture with a shared expert behind a gate. The window belongs to every second
// layer below max_window_layers.
func readQwen2Moe(cfg *config, model *Model) {
	cfg.decoder(model, defaults{kvHeads: 16, context: 32768, eps: 1e-6})
	model.decoder.qkvBias = cfg.bool("qkv_bias", true)
	window := cfg.optionalWindow()
	from := cfg.integer("max_window_layers", 28, 0, maxLayers)
	cfg.layerTypes(model, window, func(l int) bool { return l%2 == 0 && l < from })
	cfg.experts(model, "num_experts", 60, 4, cfg.dim("moe_intermediate_size", 1408))
	model.SharedFFN = cfg.dim("shared_expert_intermediate_size", 5632)
	cfg.product("shared_expert_intermediate_size", "2 * shared_expert_intermediate_size", 2, model.SharedFFN)
	model.decoder.sharedGate = true
	model.decoder.router = cfg.router("norm_topk_prob", false)
	cfg.sparseLayers(model)
}

// readQwen3Moe reads a mixture of Qwen3 layers. It has no shared expert.
func readQwen3Moe(cfg *config, model *Model) {
	cfg.decoder(model, defaults{kvHeads: 4, context: 32768, eps: 1e-6})
	cfg.attentionBias(model)
	model.decoder.qkNorm = "head"
	cfg.everyWindow(model, cfg.optionalWindow())
	cfg.read["max_window_layers"] = true // every layer has the window
	cfg.experts(model, "num_experts", 128, 8, cfg.dim("moe_intermediate_size", 768))
	model.decoder.router = cfg.router("norm_topk_prob", false)
	cfg.sparseLayers(model)
}

// readOlmoe reads a mixture with one norm over all query heads and one over all key heads, and bounded
// projections.
func readOlmoe(cfg *config, model *Model) {
	cfg.decoder(model, defaults{context: 4096, eps: 1e-5})
	cfg.attentionBias(model)
	model.decoder.qkNorm = "joint"
	model.decoder.clip = cfg.float("clip_qkv", 0, 1e-6, 1e6) // q and k behind their norms, and v
	cfg.experts(model, "num_experts", 64, 8, model.FFN)
	model.decoder.router = cfg.router("norm_topk_prob", false)
}

// readPhiMoe reads a mixture with layer norms and the SparseMixer router, which is defined for two
// experts.
func readPhiMoe(cfg *config, model *Model) {
	rope := ropeOptions{theta: 1e6, mscale: true}
	cfg.decoder(model, defaults{kvHeads: 8, context: 4096 * 32, eps: 1e-5, rope: rope})
	cfg.attentionBias(model)
	model.decoder.headBias = cfg.bool("lm_head_bias", false)
	model.decoder.layerNorm = true
	cfg.everyWindow(model, cfg.window(0))
	cfg.experts(model, "num_local_experts", 16, 2, model.FFN)
	model.decoder.router = op.RouteSparseMixer
	model.decoder.jitter = cfg.float("router_jitter_noise", 0.01, 0, 1)
	model.decoder.names.sparseBlock()
	cfg.requireValue("num_experts_per_tok", 2.0, "2: the router is defined for two")
}

// readOlmo2 reads a model with norms behind its blocks, and none in front of them.
func readOlmo2(cfg *config, model *Model) {
	cfg.decoder(model, defaults{context: 2048, eps: 1e-5})
	cfg.attentionBias(model)
	model.decoder.qkNorm, model.decoder.noPre, model.decoder.post = "joint", true, true
	names := &model.decoder.names
	names.attnPost, names.ffnPost = inLayer+"post_attention_layernorm", inLayer+"post_feedforward_layernorm"
}

// gemma reads what the Gemma generations share: gains stored as their distance from 1, and embeddings
// scaled by the root of their length.
func (c *config) gemma(model *Model, assumed defaults) {
	assumed.context, assumed.eps, assumed.tied, assumed.headDim = 8192, 1e-6, true, 256
	assumed.act = "gelu_pytorch_tanh"
	c.decoder(model, assumed)
	c.attentionBias(model)
	model.decoder.gainPlus = 1
	model.decoder.embedScale = float64(float32(math.Sqrt(float64(model.Hidden))))
	c.requireValue("use_bidirectional_attention", false, "causal attention")
}

// readGemma reads the first generation of Gemma.
func readGemma(cfg *config, model *Model) {
	cfg.gemma(model, defaults{kvHeads: 16})
	if model.decoder.act == op.GELU { // the first files say gelu and mean its approximation
		model.decoder.act = op.GELUTanh
	}
}

// readGemma2 reads norms in front of and behind both blocks, soft caps, and a window in every second
// layer. A null cap is none.
func readGemma2(cfg *config, model *Model) {
	cfg.gemma(model, defaults{kvHeads: 4, actKey: "hidden_activation"})
	names := &model.decoder.names
	names.attnPost, names.ffnPost = inLayer+"post_attention_layernorm", inLayer+"post_feedforward_layernorm"
	names.ffnNorm = inLayer + "pre_feedforward_layernorm"
	model.decoder.post = true
	model.decoder.attnScale = 1 / math.Sqrt(cfg.float("query_pre_attn_scalar", 256, 1e-3, maxDim))
	softcap := func(key string, def float64) float64 {
		if cfg.absent(key) == null {
			return 0
		}
		return cfg.float(key, def, 1e-3, 1<<20)
	}
	model.decoder.attnCap = softcap("attn_logit_softcapping", 50)
	model.decoder.logitCap = softcap("final_logit_softcapping", 30)
	if cfg.absent("sliding_window") == null && !cfg.has("layer_types") {
		cfg.fail("sliding_window", "null is not supported; supported: at least 1, because every second layer has a window")
	}
	cfg.layerTypes(model, cfg.window(4096), func(l int) bool { return l%2 == 0 })
}

// readPhi reads Phi 1 to 2: layer norms, blocks in parallel, no gates, biases everywhere, and half of
// each head rotated.
func readPhi(cfg *config, model *Model) {
	cfg.decoder(model, defaults{
		context: 2048, eps: 1e-5, epsKey: "layer_norm_eps", act: "gelu_new", rope: ropeOptions{partial: 0.5},
	})
	dec := model.decoder
	dec.layerNorm, dec.parallel, dec.ungated = true, true, true
	dec.qkvBias, dec.outBias, dec.ffnBias, dec.headBias = true, true, true, true
	dec.names.norm, dec.names.o = "model.final_layernorm", inLayer+"self_attn.dense"
	dec.names.up, dec.names.down = inLayer+"mlp.fc1", inLayer+"mlp.fc2"
	cfg.requireValue("qk_layernorm", false, "heads without norms")
}

// readPhi3 reads a model that stores its projections fused: rows of q, k and v in one tensor, of gate
// and up in another.
func readPhi3(cfg *config, model *Model) {
	cfg.decoder(model, defaults{context: 4096, eps: 1e-5, rope: ropeOptions{partial: 1, su: true, original: 4096}})
	query, kv := model.Heads*model.HeadDim, model.KVHeads*model.HeadDim
	const fused, gateUp = inLayer + "self_attn.qkv_proj", inLayer + "mlp.gate_up_proj"
	names := &model.decoder.names
	names.q, names.k = rowsOfTensor(fused, 0, query), rowsOfTensor(fused, query, query+kv)
	names.v = rowsOfTensor(fused, query+kv, query+2*kv)
	names.gate, names.up = rowsOfTensor(gateUp, 0, model.FFN), rowsOfTensor(gateUp, model.FFN, 2*model.FFN)
	cfg.everyWindow(model, cfg.window(0))
}

// readStarcoder2 reads layer norms, feed-forward blocks without gates, and biases everywhere or
// nowhere.
func readStarcoder2(cfg *config, model *Model) {
	cfg.decoder(model, defaults{
		kvHeads: 2, context: 4096, eps: 1e-5, epsKey: "norm_epsilon", act: "gelu_pytorch_tanh", tied: true,
	})
	dec := model.decoder
	dec.layerNorm, dec.ungated = true, true
	bias := cfg.bool("use_bias", true)
	dec.qkvBias, dec.outBias, dec.ffnBias = bias, bias, bias
	dec.names.up, dec.names.down = inLayer+"mlp.c_fc", inLayer+"mlp.c_proj"
	cfg.everyWindow(model, cfg.window(0))
}

// readInternLM2 reads a Llama with other names. Its fused projection is stored in the order of a fused
// QKV row.
func readInternLM2(cfg *config, model *Model) {
	cfg.decoder(model, defaults{context: 2048, eps: 1e-6})
	names := &model.decoder.names
	names.embed, names.head = "model.tok_embeddings", "output"
	names.attnNorm, names.ffnNorm = inLayer+"attention_norm", inLayer+"ffn_norm"
	names.q, names.k, names.v, names.o = inLayer+"attention.wqkv", "", "", inLayer+"attention.wo"
	names.gate, names.up, names.down = inLayer+"feed_forward.w1", inLayer+"feed_forward.w3", inLayer+"feed_forward.w2"
	bias := cfg.bool("bias", false)
	model.decoder.qkvBias, model.decoder.outBias = bias, bias
}
