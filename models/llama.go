package models

import (
	"math"
	"strings"

	"github.com/hetc/hetc/planir/op"
)

// architecture is what has to be known of one family of models.
type architecture struct {
	name      string // config key "architectures"
	modelType string // config key "model_type"
	// read fills the model from the config; refusals are collected in c.
	read func(c *config, m *Model)
	// graph builds what the model computes.
	graph func(m *Model) Graph
}

// architectures lists what can be read, in the order error messages name it.
var architectures = []architecture{
	{name: "LlamaForCausalLM", modelType: "llama", read: readLlama, graph: decoderGraph},
}

// readLlama reads a dense decoder with RMS norms, rotary positions in two halves, grouped-query
// attention without biases, and a SiLU-gated feed-forward block.
func readLlama(c *config, m *Model) {
	readDecoder(c, m)
	c.must("attention_bias", false, "attention projections without bias")
	c.must("mlp_bias", false, "feed-forward projections without bias")
	c.must("sliding_window", nil, "attention over the whole context")
	c.must("use_sliding_window", false, "attention over the whole context")
	c.must("pretraining_tp", 1.0, "1 (it only changes how training split the matrices)")
}

// readDecoder reads what all decoders of this family share.
func readDecoder(c *config, m *Model) {
	m.Hidden = c.dim("hidden_size", 0)
	m.Layers = c.bounded("num_hidden_layers", 0, maxLayers)
	m.Heads = c.dim("num_attention_heads", 0)
	m.KVHeads = c.dim("num_key_value_heads", m.Heads)
	m.FFN = c.dim("intermediate_size", 0)
	m.Vocab = c.dim("vocab_size", 0)
	m.MaxContext = c.dim("max_position_embeddings", 2048)
	headDim := 0
	if m.Heads > 0 {
		headDim = m.Hidden / m.Heads
		if !c.has("head_dim") && m.Hidden%m.Heads != 0 {
			c.fail("hidden_size", "%d, want a multiple of num_attention_heads %d (or a head_dim)", m.Hidden, m.Heads)
		}
	}
	m.HeadDim = c.dim("head_dim", headDim)
	if m.HeadDim%2 != 0 {
		c.fail("head_dim", "%d, want an even number for rotary positions", m.HeadDim)
	}
	if m.KVHeads > 0 && m.Heads%m.KVHeads != 0 {
		c.fail("num_key_value_heads", "%d, want a divisor of num_attention_heads %d", m.KVHeads, m.Heads)
	}
	// Fused rows must stay within what an operator can describe.
	c.product("num_attention_heads", "(num_attention_heads + 2*num_key_value_heads) * head_dim", m.Heads+2*m.KVHeads, m.HeadDim)
	c.product("intermediate_size", "2 * intermediate_size", 2, m.FFN)
	m.NormEps = c.float("rms_norm_eps", 1e-6, 0, 1)
	m.RopeTheta = c.rope()
	m.BOS = c.id("bos_token_id", m.Vocab)
	m.EOS = c.ids("eos_token_id", m.Vocab)
	m.Tied = c.bool("tie_word_embeddings", false)
	c.must("hidden_act", "silu", `"silu"`)
	c.must("partial_rotary_factor", 1.0, "rotary positions over the whole head")
}

// decoderGraph is the graph of a pre-norm decoder:
//
//	x = embed[ids]
//	per layer: x += attn_out(attention(rope(qkv(norm(x))))); x += down(silu(gate(norm(x))) * up(norm(x)))
//	logits = lm_head(norm(x[row]))
//
// Rope rotates element i of a head with element i+HeadDim/2 by the angle position*invfreq[i]
// (product in float32): q[i]*cos - q[i+h]*sin and q[i+h]*cos + q[i]*sin. A fused QKV row holds
// KVHeads groups of Heads/KVHeads query heads, one key head and one value head; attention's output
// row holds the query heads in order. Scores are scaled by 1/sqrt(HeadDim).
func decoderGraph(m *Model) Graph {
	group := m.Heads / m.KVHeads
	qkv := op.QKVColumns(m.Heads, m.KVHeads, m.HeadDim)
	interleave := gcd(m.FFN, 16)
	layer := "model.layers.{layer}."

	norm := op.Op{Kind: op.Norm, N: m.Hidden, Eps: m.NormEps}
	matmul := func(k, n int) op.Op { return op.Op{Kind: op.MatMul, K: k, N: n, Scheme: op.A32W32} }
	heads := func(kind op.Kind, kv op.Type) op.Op {
		return op.Op{Kind: kind, Heads: m.Heads, KVHeads: m.KVHeads, HeadDim: m.HeadDim, KV: kv}
	}
	node := func(name, in, w, out string, o ...op.Op) Node {
		return Node{Name: name, Ops: o, In: strings.Fields(in), W: strings.Fields(w), Out: strings.Fields(out)}
	}

	linear := func(name string, k, n int, from ...string) Weight {
		return Weight{Name: name, From: from, K: k, N: n, Transposed: true}
	}
	gain := func(name, from string) Weight { return Weight{Name: name, From: []string{from}, K: 1, N: m.Hidden} }
	fusedQKV := linear("layers.qkv", m.Hidden, qkv, layer+"self_attn.q_proj.weight", layer+"self_attn.k_proj.weight", layer+"self_attn.v_proj.weight")
	fusedQKV.Interleave = []int{group * m.HeadDim, m.HeadDim, m.HeadDim}
	gateUp := linear("layers.ffn_gate_up", m.Hidden, 2*m.FFN, layer+"mlp.gate_proj.weight", layer+"mlp.up_proj.weight")
	gateUp.Interleave = []int{interleave, interleave}
	embedding, head := "model.embed_tokens.weight", "lm_head.weight"
	if m.Tied {
		head = embedding
	}

	return Graph{
		Sections: []Section{
			{
				Name:   "embed",
				Values: []Value{{Name: "ids", Type: op.I32, Cols: 1}, {Name: "x", Cols: m.Hidden}},
				Nodes: []Node{
					node("embed", "ids", "embed.table", "x", op.Op{Kind: op.Embed, K: m.Vocab, N: m.Hidden, Table: m.Stored}),
				},
			},
			{
				Name:   "layers",
				Layers: m.Layers,
				Values: []Value{
					{Name: "x", Cols: m.Hidden}, {Name: "h", Cols: m.Hidden}, {Name: "qkv", Cols: qkv},
					{Name: "o", Cols: m.Heads * m.HeadDim}, {Name: "t", Cols: m.Hidden},
					{Name: "g", Cols: 2 * m.FFN}, {Name: "a", Cols: m.FFN}, {Name: "d", Cols: m.Hidden},
				},
				Nodes: []Node{
					node("attn_norm", "x", "layers.attn_norm", "h", norm),
					node("qkv", "h", "layers.qkv", "qkv", matmul(m.Hidden, qkv)),
					node("attention", "qkv", "rope.invfreq", "o", heads(op.Rope, ""), heads(op.KVAppend, op.F32), heads(op.Attention, op.F32)),
					node("attn_out", "o", "layers.attn_out", "t", matmul(m.Heads*m.HeadDim, m.Hidden)),
					node("attn_add", "x t", "", "x", op.Op{Kind: op.Add, N: m.Hidden}),
					node("ffn_norm", "x", "layers.ffn_norm", "h", norm),
					node("ffn_gate_up", "h", "layers.ffn_gate_up", "g", matmul(m.Hidden, 2*m.FFN)),
					node("ffn_act", "g", "", "a", op.Op{Kind: op.GLU, N: m.FFN, Interleave: interleave, Act: op.SiLU}),
					node("ffn_down", "a", "layers.ffn_down", "d", matmul(m.FFN, m.Hidden)),
					node("ffn_add", "x d", "", "x", op.Op{Kind: op.Add, N: m.Hidden}),
				},
			},
			{
				Name: "head",
				Values: []Value{
					{Name: "x", Cols: m.Hidden}, {Name: "xl", Cols: m.Hidden, Rows1: true},
					{Name: "hl", Cols: m.Hidden, Rows1: true}, {Name: "logits", Cols: m.Vocab, Rows1: true},
				},
				Nodes: []Node{
					node("head_select", "x", "", "xl", op.Op{Kind: op.SelectRow, N: m.Hidden}),
					node("head_norm", "xl", "head.norm", "hl", norm),
					node("lm_head", "hl", "head.lm_head", "logits", matmul(m.Hidden, m.Vocab)),
				},
			},
		},
		Weights: []Weight{
			{Name: "embed.table", From: []string{embedding}, K: m.Vocab, N: m.Hidden},
			gain("layers.attn_norm", layer+"input_layernorm.weight"),
			fusedQKV,
			{Name: "rope.invfreq", K: 1, N: m.HeadDim / 2, Const: inverseFrequencies(m.RopeTheta, m.HeadDim)},
			linear("layers.attn_out", m.Heads*m.HeadDim, m.Hidden, layer+"self_attn.o_proj.weight"),
			gain("layers.ffn_norm", layer+"post_attention_layernorm.weight"),
			gateUp,
			linear("layers.ffn_down", m.FFN, m.Hidden, layer+"mlp.down_proj.weight"),
			gain("head.norm", "model.norm.weight"),
			linear("head.lm_head", m.Hidden, m.Vocab, head),
		},
	}
}

// inverseFrequencies returns 1/theta^(2i/dim) for i < dim/2, rounded to float32 after the quotient
// 2i/dim, after the power and after the reciprocal, as the reference implementation does.
func inverseFrequencies(theta float64, dim int) []float32 {
	out := make([]float32, dim/2)
	for i := range out {
		exponent := float32(2*i) / float32(dim)
		out[i] = 1 / float32(math.Pow(float64(float32(theta)), float64(exponent)))
	}
	return out
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
