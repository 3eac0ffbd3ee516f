package models

import (
	"math"
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// architecture is what has to be known of one family of models.
type architecture struct {
	name      string // config key "architectures"
	modelType string // config key "model_type"
	// read fills the model from the config; refusals are collected in c.
	read func(c *config, m *Model)
}

// architectures lists what can be read, in the order error messages name it.
var architectures = []architecture{
	{"LlamaForCausalLM", "llama", readLlama},
	{"MistralForCausalLM", "mistral", readMistral},
	{"Qwen2ForCausalLM", "qwen2", readQwen2},
	{"Qwen3ForCausalLM", "qwen3", readQwen3},
	{"MixtralForCausalLM", "mixtral", readMixtral},
	{"Qwen2MoeForCausalLM", "qwen2_moe", readQwen2Moe},
	{"Qwen3MoeForCausalLM", "qwen3_moe", readQwen3Moe},
	{"OlmoeForCausalLM", "olmoe", readOlmoe},
	{"PhiMoEForCausalLM", "phimoe", readPhiMoe},
	{"PhimoeForCausalLM", "phimoe", readPhiMoe},
	{"Olmo2ForCausalLM", "olmo2", readOlmo2},
	{"GemmaForCausalLM", "gemma", readGemma},
	{"Gemma2ForCausalLM", "gemma2", readGemma2},
	{"PhiForCausalLM", "phi", readPhi},
	{"Phi3ForCausalLM", "phi3", readPhi3},
	{"Starcoder2ForCausalLM", "starcoder2", readStarcoder2},
	{"InternLM2ForCausalLM", "internlm2", readInternLM2},
}

// defaults are what an architecture assumes of keys that are absent.
type defaults struct {
	kvHeads int // 0: as many as query heads
	headDim int // 0: hidden_size / num_attention_heads
	context int
	eps     float64
	epsKey  string // "": rms_norm_eps
	act     string // "": silu
	actKey  string // "": hidden_act
	tied    bool
	rope    ropeOptions
}

// decoder reads what all decoders share.
func (c *config) decoder(model *Model, assumed defaults) {
	model.Hidden = c.dim("hidden_size", 0)
	model.Layers = c.bounded("num_hidden_layers", 0, maxLayers)
	model.Heads = c.dim("num_attention_heads", 0)
	if assumed.kvHeads == 0 || c.absent("num_key_value_heads") == null {
		assumed.kvHeads = model.Heads
	}
	model.KVHeads = c.dim("num_key_value_heads", assumed.kvHeads)
	model.FFN = c.dim("intermediate_size", 0)
	model.Vocab = c.dim("vocab_size", 0)
	model.MaxContext = c.dim("max_position_embeddings", assumed.context)
	if assumed.headDim == 0 && model.Heads > 0 {
		assumed.headDim = model.Hidden / model.Heads
		if !c.has("head_dim") && model.Hidden%model.Heads != 0 {
			c.fail("hidden_size", "%d, want a multiple of num_attention_heads %d (or a head_dim)", model.Hidden, model.Heads)
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
	// Fused rows must stay within what an operator can describe.
	c.product("num_attention_heads", "(num_attention_heads + 2*num_key_value_heads) * head_dim", model.Heads+2*model.KVHeads, model.HeadDim)
	c.product("intermediate_size", "2 * intermediate_size", 2, model.FFN)
	epsKey, actKey := "rms_norm_eps", "hidden_act"
	if assumed.epsKey != "" {
		epsKey = assumed.epsKey
	}
	if assumed.actKey != "" {
		actKey = assumed.actKey
	}
	model.NormEps, model.dec.epsKey = c.float(epsKey, assumed.eps, 0, 1), epsKey
	if assumed.act == "" {
		assumed.act = "silu"
	}
	model.dec.act = c.activation(actKey, assumed.act)
	if assumed.rope.theta == 0 {
		assumed.rope.theta = 10000
	}
	model.dec.rope = c.rope(model.HeadDim, model.MaxContext, assumed.rope)
	model.RopeTheta = model.dec.rope.theta
	if model.dec.rope.stretch > 1 {
		model.MaxContext = int(min(maxDim, float64(model.MaxContext)*model.dec.rope.stretch))
	}
	model.BOS = c.id("bos_token_id", model.Vocab)
	model.EOS = c.ids("eos_token_id", model.Vocab)
	model.Tied = c.bool("tie_word_embeddings", assumed.tied)
}

// activations are the names of configuration files. Some name approximations that differ in the last digits.
var activations = map[string]string{
	"silu": op.SiLU, "swish": op.SiLU, "gelu": op.GELU, "relu": op.ReLU,
	"gelu_new": op.GELUTanh, "gelu_pytorch_tanh": op.GELUTanh, "gelu_fast": op.GELUTanh,
}

func (c *config) activation(key, def string) string {
	name := c.text(key, def)
	act, ok := activations[name]
	if !ok {
		c.fail(key, "%s is not supported; supported: silu, gelu, gelu_pytorch_tanh, gelu_new, relu", brief(name))
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
	return c.integer("sliding_window", 0, 0, maxDim)
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
			c.fail("layer_types", `%s is not supported; supported: "full_attention" and "sliding_attention"`, brief(list[layer]))
			return
		}
	}
	if !slices.Contains(windowed, true) {
		return
	}
	if window == 0 {
		if list != nil {
			c.fail("sliding_window", "missing, and layer_types names layers with a window")
		}
		return
	}
	model.dec.window = window
	model.dec.windowed = func(l int) bool { return windowed[l] }
}

// fullAttention refuses windows.
func (c *config) fullAttention() {
	c.must("sliding_window", nil, "attention over the whole context")
	c.must("use_sliding_window", false, "attention over the whole context")
	for _, layerType := range c.list("layer_types") {
		if layerType != "full_attention" {
			c.fail("layer_types", "%s is not supported; supported: \"full_attention\" in every layer", brief(layerType))
			break
		}
	}
}

// plainLogits refuses soft caps.
func (c *config) plainLogits() {
	c.must("attn_logit_softcapping", nil, "plain softmax attention")
	c.must("final_logit_softcapping", nil, "plain logits")
}

// noExperts refuses mixtures.
func (c *config) noExperts() {
	c.must("num_local_experts", nil, "dense feed-forward blocks")
	c.must("num_experts", nil, "dense feed-forward blocks")
}

func readLlama(cfg *config, model *Model) {
	cfg.decoder(model, defaults{context: 2048, eps: 1e-6})
	bias := cfg.bool("attention_bias", false)
	model.dec.qkvBias, model.dec.outBias, model.dec.ffnBias = bias, bias, cfg.bool("mlp_bias", false)
	cfg.fullAttention()
	cfg.plainLogits()
	cfg.noExperts()
}

func readMistral(cfg *config, model *Model) {
	cfg.decoder(model, defaults{kvHeads: 8, context: 4096 * 32, eps: 1e-6})
	cfg.everyWindow(model, cfg.window(4096))
	cfg.plainBias()
	cfg.plainLogits()
	cfg.noExperts()
}

// everyWindow gives every layer the window, whatever layer_types says: these architectures do not read it.
func (c *config) everyWindow(model *Model, window int) {
	c.read["layer_types"] = true
	if window > 0 {
		model.dec.window, model.dec.windowed = window, func(int) bool { return true }
	}
}

// plainBias refuses biases.
func (c *config) plainBias() {
	c.must("attention_bias", false, "attention projections without bias")
	c.must("mlp_bias", false, "feed-forward projections without bias")
}

func readQwen2(cfg *config, model *Model) {
	cfg.decoder(model, defaults{kvHeads: 32, context: 32768, eps: 1e-6})
	model.dec.qkvBias = true
	cfg.qwenWindow(model)
	cfg.plainLogits()
	cfg.noExperts()
}

// qwenWindow reads the window of Qwen models: of layers from max_window_layers.
func (c *config) qwenWindow(model *Model) {
	window := c.window(4096)
	if !c.bool("use_sliding_window", false) {
		window = 0
	}
	from := c.integer("max_window_layers", 28, 0, maxLayers)
	c.layerTypes(model, window, func(l int) bool { return l >= from })
}

func readQwen3(cfg *config, model *Model) {
	cfg.decoder(model, defaults{kvHeads: 32, headDim: 128, context: 32768, eps: 1e-6})
	model.dec.qkvBias = cfg.bool("attention_bias", false)
	model.dec.outBias = model.dec.qkvBias
	model.dec.qkNorm = "head"
	cfg.qwenWindow(model)
	cfg.plainLogits()
	cfg.noExperts()
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
			c.fail("mlp_only_layers", "got %s, want layer numbers", brief(element))
			return
		}
		dense[int(layer)] = true
	}
	model.dec.dense = func(l int) bool { return dense[l] || (l+1)%step != 0 }
}

func readMixtral(cfg *config, model *Model) {
	cfg.decoder(model, defaults{kvHeads: 8, context: 4096 * 32, eps: 1e-5, rope: ropeOptions{theta: 1e6}})
	cfg.everyWindow(model, cfg.window(0))
	cfg.experts(model, "num_local_experts", 8, 2, model.FFN)
	model.dec.router = op.RouteSoftmaxNorm
	cfg.read["router_jitter_noise"] = true // training only
	const e = "model.layers.{layer}.block_sparse_moe."
	names := &model.dec.names
	names.router, names.expertGate, names.expertUp, names.expertDown = e+"gate", e+"experts.{expert}.w1", e+"experts.{expert}.w3", e+"experts.{expert}.w2"
	cfg.plainBias()
	cfg.plainLogits()
}

func readQwen2Moe(cfg *config, model *Model) {
	cfg.decoder(model, defaults{kvHeads: 16, context: 32768, eps: 1e-6})
	model.dec.qkvBias = cfg.bool("qkv_bias", true)
	window := cfg.window(4096)
	if !cfg.bool("use_sliding_window", false) {
		window = 0
	}
	from := cfg.integer("max_window_layers", 28, 0, maxLayers)
	cfg.layerTypes(model, window, func(l int) bool { return l%2 == 0 && l < from })
	cfg.experts(model, "num_experts", 60, 4, cfg.dim("moe_intermediate_size", 1408))
	model.SharedFFN = cfg.dim("shared_expert_intermediate_size", 5632)
	cfg.product("shared_expert_intermediate_size", "2 * shared_expert_intermediate_size", 2, model.SharedFFN)
	model.dec.sharedGate = true
	model.dec.router = cfg.router("norm_topk_prob", false)
	cfg.sparseLayers(model)
	cfg.plainLogits()
}

func readQwen3Moe(cfg *config, model *Model) {
	cfg.decoder(model, defaults{kvHeads: 4, context: 32768, eps: 1e-6})
	model.dec.qkvBias = cfg.bool("attention_bias", false)
	model.dec.outBias = model.dec.qkvBias
	model.dec.qkNorm = "head"
	window := cfg.window(4096)
	if !cfg.bool("use_sliding_window", false) {
		window = 0
	}
	cfg.read["max_window_layers"] = true // every layer has the window
	cfg.everyWindow(model, window)
	cfg.experts(model, "num_experts", 128, 8, cfg.dim("moe_intermediate_size", 768))
	model.dec.router = cfg.router("norm_topk_prob", false)
	cfg.sparseLayers(model)
	cfg.plainLogits()
}

func readOlmoe(cfg *config, model *Model) {
	cfg.decoder(model, defaults{context: 4096, eps: 1e-5})
	bias := cfg.bool("attention_bias", false)
	model.dec.qkvBias, model.dec.outBias = bias, bias
	model.dec.qkNorm = "joint"
	model.dec.clip = cfg.float("clip_qkv", 0, 1e-6, 1e6) // q and k behind their norms, and v
	cfg.fullAttention()
	cfg.experts(model, "num_experts", 64, 8, model.FFN)
	model.dec.router = cfg.router("norm_topk_prob", false)
	cfg.plainLogits()
}

func readPhiMoe(cfg *config, model *Model) {
	cfg.decoder(model, defaults{kvHeads: 8, context: 4096 * 32, eps: 1e-5, rope: ropeOptions{theta: 1e6, mscale: true}})
	bias := cfg.bool("attention_bias", false)
	model.dec.qkvBias, model.dec.outBias, model.dec.headBias = bias, bias, cfg.bool("lm_head_bias", false)
	model.dec.layerNorm = true
	cfg.everyWindow(model, cfg.window(0))
	cfg.experts(model, "num_local_experts", 16, 2, model.FFN)
	model.dec.router = op.RouteSparseMixer
	model.dec.jitter = cfg.float("router_jitter_noise", 0.01, 0, 1)
	cfg.read["input_jitter_noise"] = true // training only
	const e = "model.layers.{layer}.block_sparse_moe."
	names := &model.dec.names
	names.router, names.expertGate, names.expertUp, names.expertDown = e+"gate", e+"experts.{expert}.w1", e+"experts.{expert}.w3", e+"experts.{expert}.w2"
	cfg.must("num_experts_per_tok", 2.0, "2: the router is defined for two")
	cfg.plainLogits()
}

func readOlmo2(cfg *config, model *Model) {
	cfg.decoder(model, defaults{context: 2048, eps: 1e-5})
	bias := cfg.bool("attention_bias", false)
	model.dec.qkvBias, model.dec.outBias = bias, bias
	model.dec.qkNorm, model.dec.noPre, model.dec.post = "joint", true, true
	names := &model.dec.names
	names.attnPost, names.ffnPost = "model.layers.{layer}.post_attention_layernorm", "model.layers.{layer}.post_feedforward_layernorm"
	cfg.fullAttention()
	cfg.plainLogits()
	cfg.noExperts()
}

// gemma reads what the Gemma generations share: gains stored as their distance from 1, and embeddings
// scaled by the root of their length.
func (c *config) gemma(model *Model, assumed defaults) {
	assumed.context, assumed.eps, assumed.tied, assumed.headDim = 8192, 1e-6, true, 256
	assumed.act = "gelu_pytorch_tanh"
	c.decoder(model, assumed)
	bias := c.bool("attention_bias", false)
	model.dec.qkvBias, model.dec.outBias = bias, bias
	model.dec.gainPlus = 1
	model.dec.embedScale = float64(float32(math.Sqrt(float64(model.Hidden))))
	c.must("use_bidirectional_attention", false, "causal attention")
	c.noExperts()
}

func readGemma(cfg *config, model *Model) {
	cfg.gemma(model, defaults{kvHeads: 16})
	if model.dec.act == op.GELU { // the first files say gelu and mean its approximation
		model.dec.act = op.GELUTanh
	}
	cfg.read["hidden_activation"] = true // repeats hidden_act
	cfg.fullAttention()
	cfg.plainLogits()
}

func readGemma2(cfg *config, model *Model) {
	cfg.gemma(model, defaults{kvHeads: 4, actKey: "hidden_activation"})
	cfg.read["hidden_act"] = true // an older spelling that nobody reads
	const l = "model.layers.{layer}."
	names := &model.dec.names
	names.attnPost, names.ffnNorm, names.ffnPost = l+"post_attention_layernorm", l+"pre_feedforward_layernorm", l+"post_feedforward_layernorm"
	model.dec.post = true
	model.dec.attnScale = 1 / math.Sqrt(cfg.float("query_pre_attn_scalar", 256, 1e-3, maxDim))
	softcap := func(key string, def float64) float64 {
		if cfg.absent(key) == null {
			return 0
		}
		return cfg.float(key, def, 1e-3, 1<<20)
	}
	model.dec.attnCap, model.dec.logitCap = softcap("attn_logit_softcapping", 50), softcap("final_logit_softcapping", 30)
	cfg.layerTypes(model, cfg.window(4096), func(l int) bool { return l%2 == 0 })
}

func readPhi(cfg *config, model *Model) {
	cfg.decoder(model, defaults{context: 2048, eps: 1e-5, epsKey: "layer_norm_eps", act: "gelu_new", rope: ropeOptions{partial: 0.5}})
	dec := model.dec
	dec.layerNorm, dec.parallel, dec.ungated = true, true, true
	dec.qkvBias, dec.outBias, dec.ffnBias, dec.headBias = true, true, true, true
	const l = "model.layers.{layer}."
	dec.names.norm, dec.names.o = "model.final_layernorm", l+"self_attn.dense"
	dec.names.up, dec.names.down = l+"mlp.fc1", l+"mlp.fc2"
	cfg.must("qk_layernorm", false, "heads without norms")
	cfg.fullAttention()
	cfg.plainLogits()
	cfg.noExperts()
	for _, key := range []string{"resid_pdrop", "embd_pdrop"} {
		cfg.read[key] = true // training only
	}
}

func readPhi3(cfg *config, model *Model) {
	cfg.decoder(model, defaults{context: 4096, eps: 1e-5, rope: ropeOptions{partial: 1, su: true, original: 4096}})
	const l = "model.layers.{layer}."
	query, kv := model.Heads*model.HeadDim, model.KVHeads*model.HeadDim
	names := &model.dec.names
	names.q, names.k, names.v = rows(l+"self_attn.qkv_proj", 0, query), rows(l+"self_attn.qkv_proj", query, query+kv), rows(l+"self_attn.qkv_proj", query+kv, query+2*kv)
	names.gate, names.up = rows(l+"mlp.gate_up_proj", 0, model.FFN), rows(l+"mlp.gate_up_proj", model.FFN, 2*model.FFN)
	cfg.everyWindow(model, cfg.window(0))
	cfg.plainBias()
	cfg.plainLogits()
	cfg.noExperts()
	for _, key := range []string{"resid_pdrop", "embd_pdrop"} {
		cfg.read[key] = true // training only
	}
}

func readStarcoder2(cfg *config, model *Model) {
	cfg.decoder(model, defaults{kvHeads: 2, context: 4096, eps: 1e-5, epsKey: "norm_epsilon", act: "gelu_pytorch_tanh", tied: true})
	dec := model.dec
	dec.layerNorm, dec.ungated = true, true
	bias := cfg.bool("use_bias", true)
	dec.qkvBias, dec.outBias, dec.ffnBias = bias, bias, bias
	const l = "model.layers.{layer}."
	dec.names.up, dec.names.down = l+"mlp.c_fc", l+"mlp.c_proj"
	cfg.everyWindow(model, cfg.window(0))
	cfg.plainLogits()
	cfg.noExperts()
	for _, key := range []string{"residual_dropout", "embedding_dropout"} {
		cfg.read[key] = true // training only
	}
}

func readInternLM2(cfg *config, model *Model) {
	cfg.decoder(model, defaults{context: 2048, eps: 1e-6})
	const l = "model.layers.{layer}."
	names := &model.dec.names
	names.embed, names.head = "model.tok_embeddings", "output"
	names.attnNorm, names.ffnNorm = l+"attention_norm", l+"ffn_norm"
	names.q, names.k, names.v, names.o = l+"attention.wqkv", "", "", l+"attention.wo"
	names.gate, names.up, names.down = l+"feed_forward.w1", l+"feed_forward.w3", l+"feed_forward.w2"
	bias := cfg.bool("bias", false)
	model.dec.qkvBias, model.dec.outBias = bias, bias
	cfg.read["attn_implementation"] = true
	cfg.fullAttention()
	cfg.plainLogits()
	cfg.noExperts()
}
