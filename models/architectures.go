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
func (c *config) decoder(m *Model, d defaults) {
	m.Hidden = c.dim("hidden_size", 0)
	m.Layers = c.bounded("num_hidden_layers", 0, maxLayers)
	m.Heads = c.dim("num_attention_heads", 0)
	if d.kvHeads == 0 || c.absent("num_key_value_heads") == null {
		d.kvHeads = m.Heads
	}
	m.KVHeads = c.dim("num_key_value_heads", d.kvHeads)
	m.FFN = c.dim("intermediate_size", 0)
	m.Vocab = c.dim("vocab_size", 0)
	m.MaxContext = c.dim("max_position_embeddings", d.context)
	if d.headDim == 0 && m.Heads > 0 {
		d.headDim = m.Hidden / m.Heads
		if !c.has("head_dim") && m.Hidden%m.Heads != 0 {
			c.fail("hidden_size", "%d, want a multiple of num_attention_heads %d (or a head_dim)", m.Hidden, m.Heads)
		}
	}
	m.HeadDim = c.bounded("head_dim", d.headDim, maxHeadDim)
	if m.HeadDim < 1 || m.HeadDim > maxHeadDim {
		if m.HeadDim > maxHeadDim {
			c.fail("hidden_size", "gives heads of %d columns, want at most %d", m.HeadDim, maxHeadDim)
		}
		m.HeadDim = 2 // the rest is still read
	}
	if m.KVHeads > 0 && m.Heads%m.KVHeads != 0 {
		c.fail("num_key_value_heads", "%d, want a divisor of num_attention_heads %d", m.KVHeads, m.Heads)
	}
	if m.HeadDim%2 != 0 && d.rope.partial == 0 {
		c.fail("head_dim", "%d, want an even number for rotary positions", m.HeadDim)
	}
	// Fused rows must stay within what an operator can describe.
	c.product("num_attention_heads", "(num_attention_heads + 2*num_key_value_heads) * head_dim", m.Heads+2*m.KVHeads, m.HeadDim)
	c.product("intermediate_size", "2 * intermediate_size", 2, m.FFN)
	epsKey, actKey := "rms_norm_eps", "hidden_act"
	if d.epsKey != "" {
		epsKey = d.epsKey
	}
	if d.actKey != "" {
		actKey = d.actKey
	}
	m.NormEps, m.dec.epsKey = c.float(epsKey, d.eps, 0, 1), epsKey
	if d.act == "" {
		d.act = "silu"
	}
	m.dec.act = c.activation(actKey, d.act)
	if d.rope.theta == 0 {
		d.rope.theta = 10000
	}
	m.dec.rope = c.rope(m.HeadDim, m.MaxContext, d.rope)
	m.RopeTheta = m.dec.rope.theta
	if m.dec.rope.stretch > 1 {
		m.MaxContext = int(min(maxDim, float64(m.MaxContext)*m.dec.rope.stretch))
	}
	m.BOS = c.id("bos_token_id", m.Vocab)
	m.EOS = c.ids("eos_token_id", m.Vocab)
	m.Tied = c.bool("tie_word_embeddings", d.tied)
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
	v, ok := c.keys[key]
	switch {
	case !ok:
		return missing
	case v == nil:
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
func (c *config) layerTypes(m *Model, window int, rule func(layer int) bool) {
	list := c.list("layer_types")
	if list != nil && len(list) != m.Layers {
		c.fail("layer_types", "lists %d layers, want num_hidden_layers %d", len(list), m.Layers)
		return
	}
	windowed := make([]bool, m.Layers)
	for l := range windowed {
		switch {
		case list == nil:
			windowed[l] = rule(l)
		case list[l] == "sliding_attention":
			windowed[l] = true
		case list[l] != "full_attention":
			c.fail("layer_types", `%s is not supported; supported: "full_attention" and "sliding_attention"`, brief(list[l]))
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
	m.dec.window = window
	m.dec.windowed = func(l int) bool { return windowed[l] }
}

// fullAttention refuses windows.
func (c *config) fullAttention() {
	c.must("sliding_window", nil, "attention over the whole context")
	c.must("use_sliding_window", false, "attention over the whole context")
	for _, t := range c.list("layer_types") {
		if t != "full_attention" {
			c.fail("layer_types", "%s is not supported; supported: \"full_attention\" in every layer", brief(t))
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

func readLlama(c *config, m *Model) {
	c.decoder(m, defaults{context: 2048, eps: 1e-6})
	bias := c.bool("attention_bias", false)
	m.dec.qkvBias, m.dec.outBias, m.dec.ffnBias = bias, bias, c.bool("mlp_bias", false)
	c.fullAttention()
	c.plainLogits()
	c.noExperts()
}

func readMistral(c *config, m *Model) {
	c.decoder(m, defaults{kvHeads: 8, context: 4096 * 32, eps: 1e-6})
	c.everyWindow(m, c.window(4096))
	c.plainBias()
	c.plainLogits()
	c.noExperts()
}

// everyWindow gives every layer the window, whatever layer_types says: these architectures do not read it.
func (c *config) everyWindow(m *Model, window int) {
	c.read["layer_types"] = true
	if window > 0 {
		m.dec.window, m.dec.windowed = window, func(int) bool { return true }
	}
}

// plainBias refuses biases.
func (c *config) plainBias() {
	c.must("attention_bias", false, "attention projections without bias")
	c.must("mlp_bias", false, "feed-forward projections without bias")
}

func readQwen2(c *config, m *Model) {
	c.decoder(m, defaults{kvHeads: 32, context: 32768, eps: 1e-6})
	m.dec.qkvBias = true
	c.qwenWindow(m)
	c.plainLogits()
	c.noExperts()
}

// qwenWindow reads the window of Qwen models: of layers from max_window_layers.
func (c *config) qwenWindow(m *Model) {
	window := c.window(4096)
	if !c.bool("use_sliding_window", false) {
		window = 0
	}
	from := c.integer("max_window_layers", 28, 0, maxLayers)
	c.layerTypes(m, window, func(l int) bool { return l >= from })
}

func readQwen3(c *config, m *Model) {
	c.decoder(m, defaults{kvHeads: 32, headDim: 128, context: 32768, eps: 1e-6})
	m.dec.qkvBias = c.bool("attention_bias", false)
	m.dec.outBias = m.dec.qkvBias
	m.dec.qkNorm = "head"
	c.qwenWindow(m)
	c.plainLogits()
	c.noExperts()
}

// experts reads a mixture: how many there are, how many a token uses, and the columns of one.
func (c *config) experts(m *Model, key string, def, perToken, ffn int) {
	for _, alias := range []string{"num_experts", "num_local_experts"} {
		if alias != key && c.has(alias) && !c.has(key) {
			key = alias
		}
		c.read[alias] = true
	}
	m.Experts = c.bounded(key, def, maxExperts)
	m.ExpertsPerToken = c.bounded("num_experts_per_tok", perToken, maxPerToken)
	m.ExpertFFN = ffn
	if m.ExpertsPerToken > m.Experts {
		c.fail("num_experts_per_tok", "%d, want at most %s %d", m.ExpertsPerToken, key, m.Experts)
	}
	c.product("intermediate_size", "2 * columns of an expert", 2, ffn)
	if n := m.Experts * m.Layers; n > maxExpertsTotal {
		c.fail(key, "%d experts in %d layers, want at most %d in all", m.Experts, m.Layers, maxExpertsTotal)
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
func (c *config) sparseLayers(m *Model) {
	step := c.bounded("decoder_sparse_step", 1, maxLayers)
	dense := map[int]bool{}
	for _, v := range c.list("mlp_only_layers") {
		l, ok := v.(int64)
		if !ok || l < 0 {
			c.fail("mlp_only_layers", "got %s, want layer numbers", brief(v))
			return
		}
		dense[int(l)] = true
	}
	m.dec.dense = func(l int) bool { return dense[l] || (l+1)%step != 0 }
}

func readMixtral(c *config, m *Model) {
	c.decoder(m, defaults{kvHeads: 8, context: 4096 * 32, eps: 1e-5, rope: ropeOptions{theta: 1e6}})
	c.everyWindow(m, c.window(0))
	c.experts(m, "num_local_experts", 8, 2, m.FFN)
	m.dec.router = op.RouteSoftmaxNorm
	c.read["router_jitter_noise"] = true // training only
	const e = "model.layers.{layer}.block_sparse_moe."
	n := &m.dec.names
	n.router, n.expertGate, n.expertUp, n.expertDown = e+"gate", e+"experts.{expert}.w1", e+"experts.{expert}.w3", e+"experts.{expert}.w2"
	c.plainBias()
	c.plainLogits()
}

func readQwen2Moe(c *config, m *Model) {
	c.decoder(m, defaults{kvHeads: 16, context: 32768, eps: 1e-6})
	m.dec.qkvBias = c.bool("qkv_bias", true)
	window := c.window(4096)
	if !c.bool("use_sliding_window", false) {
		window = 0
	}
	from := c.integer("max_window_layers", 28, 0, maxLayers)
	c.layerTypes(m, window, func(l int) bool { return l%2 == 0 && l < from })
	c.experts(m, "num_experts", 60, 4, c.dim("moe_intermediate_size", 1408))
	m.SharedFFN = c.dim("shared_expert_intermediate_size", 5632)
	c.product("shared_expert_intermediate_size", "2 * shared_expert_intermediate_size", 2, m.SharedFFN)
	m.dec.sharedGate = true
	m.dec.router = c.router("norm_topk_prob", false)
	c.sparseLayers(m)
	c.plainLogits()
}

func readQwen3Moe(c *config, m *Model) {
	c.decoder(m, defaults{kvHeads: 4, context: 32768, eps: 1e-6})
	m.dec.qkvBias = c.bool("attention_bias", false)
	m.dec.outBias = m.dec.qkvBias
	m.dec.qkNorm = "head"
	window := c.window(4096)
	if !c.bool("use_sliding_window", false) {
		window = 0
	}
	c.read["max_window_layers"] = true // every layer has the window
	c.everyWindow(m, window)
	c.experts(m, "num_experts", 128, 8, c.dim("moe_intermediate_size", 768))
	m.dec.router = c.router("norm_topk_prob", false)
	c.sparseLayers(m)
	c.plainLogits()
}

func readOlmoe(c *config, m *Model) {
	c.decoder(m, defaults{context: 4096, eps: 1e-5})
	bias := c.bool("attention_bias", false)
	m.dec.qkvBias, m.dec.outBias = bias, bias
	m.dec.qkNorm = "joint"
	m.dec.clip = c.float("clip_qkv", 0, 1e-6, 1e6) // q and k behind their norms, and v
	c.fullAttention()
	c.experts(m, "num_experts", 64, 8, m.FFN)
	m.dec.router = c.router("norm_topk_prob", false)
	c.plainLogits()
}

func readPhiMoe(c *config, m *Model) {
	c.decoder(m, defaults{kvHeads: 8, context: 4096 * 32, eps: 1e-5, rope: ropeOptions{theta: 1e6, mscale: true}})
	bias := c.bool("attention_bias", false)
	m.dec.qkvBias, m.dec.outBias, m.dec.headBias = bias, bias, c.bool("lm_head_bias", false)
	m.dec.layerNorm = true
	c.everyWindow(m, c.window(0))
	c.experts(m, "num_local_experts", 16, 2, m.FFN)
	m.dec.router = op.RouteSparseMixer
	m.dec.jitter = c.float("router_jitter_noise", 0.01, 0, 1)
	c.read["input_jitter_noise"] = true // training only
	const e = "model.layers.{layer}.block_sparse_moe."
	n := &m.dec.names
	n.router, n.expertGate, n.expertUp, n.expertDown = e+"gate", e+"experts.{expert}.w1", e+"experts.{expert}.w3", e+"experts.{expert}.w2"
	c.must("num_experts_per_tok", 2.0, "2: the router is defined for two")
	c.plainLogits()
}

func readOlmo2(c *config, m *Model) {
	c.decoder(m, defaults{context: 2048, eps: 1e-5})
	bias := c.bool("attention_bias", false)
	m.dec.qkvBias, m.dec.outBias = bias, bias
	m.dec.qkNorm, m.dec.noPre, m.dec.post = "joint", true, true
	n := &m.dec.names
	n.attnPost, n.ffnPost = "model.layers.{layer}.post_attention_layernorm", "model.layers.{layer}.post_feedforward_layernorm"
	c.fullAttention()
	c.plainLogits()
	c.noExperts()
}

// gemma reads what the Gemma generations share: gains stored as their distance from 1, and embeddings
// scaled by the root of their length.
func (c *config) gemma(m *Model, d defaults) {
	d.context, d.eps, d.tied, d.headDim = 8192, 1e-6, true, 256
	d.act = "gelu_pytorch_tanh"
	c.decoder(m, d)
	bias := c.bool("attention_bias", false)
	m.dec.qkvBias, m.dec.outBias = bias, bias
	m.dec.gainPlus = 1
	m.dec.embedScale = float64(float32(math.Sqrt(float64(m.Hidden))))
	c.must("use_bidirectional_attention", false, "causal attention")
	c.noExperts()
}

func readGemma(c *config, m *Model) {
	c.gemma(m, defaults{kvHeads: 16})
	if m.dec.act == op.GELU { // the first files say gelu and mean its approximation
		m.dec.act = op.GELUTanh
	}
	c.read["hidden_activation"] = true // repeats hidden_act
	c.fullAttention()
	c.plainLogits()
}

func readGemma2(c *config, m *Model) {
	c.gemma(m, defaults{kvHeads: 4, actKey: "hidden_activation"})
	c.read["hidden_act"] = true // an older spelling that nobody reads
	const l = "model.layers.{layer}."
	n := &m.dec.names
	n.attnPost, n.ffnNorm, n.ffnPost = l+"post_attention_layernorm", l+"pre_feedforward_layernorm", l+"post_feedforward_layernorm"
	m.dec.post = true
	m.dec.attnScale = 1 / math.Sqrt(c.float("query_pre_attn_scalar", 256, 1e-3, maxDim))
	softcap := func(key string, def float64) float64 {
		if c.absent(key) == null {
			return 0
		}
		return c.float(key, def, 1e-3, 1<<20)
	}
	m.dec.attnCap, m.dec.logitCap = softcap("attn_logit_softcapping", 50), softcap("final_logit_softcapping", 30)
	c.layerTypes(m, c.window(4096), func(l int) bool { return l%2 == 0 })
}

func readPhi(c *config, m *Model) {
	c.decoder(m, defaults{context: 2048, eps: 1e-5, epsKey: "layer_norm_eps", act: "gelu_new", rope: ropeOptions{partial: 0.5}})
	d := m.dec
	d.layerNorm, d.parallel, d.ungated = true, true, true
	d.qkvBias, d.outBias, d.ffnBias, d.headBias = true, true, true, true
	const l = "model.layers.{layer}."
	d.names.norm, d.names.o = "model.final_layernorm", l+"self_attn.dense"
	d.names.up, d.names.down = l+"mlp.fc1", l+"mlp.fc2"
	c.must("qk_layernorm", false, "heads without norms")
	c.fullAttention()
	c.plainLogits()
	c.noExperts()
	for _, k := range []string{"resid_pdrop", "embd_pdrop"} {
		c.read[k] = true // training only
	}
}

func readPhi3(c *config, m *Model) {
	c.decoder(m, defaults{context: 4096, eps: 1e-5, rope: ropeOptions{partial: 1, su: true, original: 4096}})
	const l = "model.layers.{layer}."
	q, kv := m.Heads*m.HeadDim, m.KVHeads*m.HeadDim
	n := &m.dec.names
	n.q, n.k, n.v = rows(l+"self_attn.qkv_proj", 0, q), rows(l+"self_attn.qkv_proj", q, q+kv), rows(l+"self_attn.qkv_proj", q+kv, q+2*kv)
	n.gate, n.up = rows(l+"mlp.gate_up_proj", 0, m.FFN), rows(l+"mlp.gate_up_proj", m.FFN, 2*m.FFN)
	c.everyWindow(m, c.window(0))
	c.plainBias()
	c.plainLogits()
	c.noExperts()
	for _, k := range []string{"resid_pdrop", "embd_pdrop"} {
		c.read[k] = true // training only
	}
}

func readStarcoder2(c *config, m *Model) {
	c.decoder(m, defaults{kvHeads: 2, context: 4096, eps: 1e-5, epsKey: "norm_epsilon", act: "gelu_pytorch_tanh", tied: true})
	d := m.dec
	d.layerNorm, d.ungated = true, true
	bias := c.bool("use_bias", true)
	d.qkvBias, d.outBias, d.ffnBias = bias, bias, bias
	const l = "model.layers.{layer}."
	d.names.up, d.names.down = l+"mlp.c_fc", l+"mlp.c_proj"
	c.everyWindow(m, c.window(0))
	c.plainLogits()
	c.noExperts()
	for _, k := range []string{"residual_dropout", "embedding_dropout"} {
		c.read[k] = true // training only
	}
}

func readInternLM2(c *config, m *Model) {
	c.decoder(m, defaults{context: 2048, eps: 1e-6})
	const l = "model.layers.{layer}."
	n := &m.dec.names
	n.embed, n.head = "model.tok_embeddings", "output"
	n.attnNorm, n.ffnNorm = l+"attention_norm", l+"ffn_norm"
	n.q, n.k, n.v, n.o = l+"attention.wqkv", "", "", l+"attention.wo"
	n.gate, n.up, n.down = l+"feed_forward.w1", l+"feed_forward.w3", l+"feed_forward.w2"
	bias := c.bool("bias", false)
	m.dec.qkvBias, m.dec.outBias = bias, bias
	c.read["attn_implementation"] = true
	c.fullAttention()
	c.plainLogits()
	c.noExperts()
}
