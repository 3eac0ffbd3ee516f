package models

import (
	"slices"
	"strings"

	"github.com/hetc/hetc/planir/op"
)

// decoder is a decoder-only transformer as this package knows it: what an architecture's read function
// fills in and decoderGraph turns into a graph. Sizes that every model has are in Model.
type decoder struct {
	act       string // of the feed-forward blocks, op.Acts
	ungated   bool   // act(up(x)) instead of act(gate(x))*up(x)
	layerNorm bool   // mean and variance, with biases, instead of RMS
	gainPlus  float32
	epsKey    string  // where config.json has the norms' eps
	noPre     bool    // no norms in front of the blocks (OLMo 2)
	post      bool    // norms behind them
	clip      float64 // > 0: bound of what qkv computes
	parallel  bool    // both blocks read the same norm of x (Phi)

	qkvBias, outBias, ffnBias, headBias bool
	qkNorm                              string // "", "head": every head, "joint": all query and all key heads together

	window                       int     // of the layers in windowed
	attnScale, attnCap, logitCap float64 // 0: the usual ones
	embedScale                   float64
	rope                         rope
	router                       string // op.Routers
	jitter                       float64
	sharedGate                   bool // the shared expert is multiplied by the sigmoid of a projection
	windowed, dense              func(layer int) bool
	names                        tensorNames
}

// tensorNames are the names of stored tensors without ".weight" or ".bias", with {layer} and {expert}. A fused
// projection is given as ranges of rows of one tensor, "name[from:to]".
type tensorNames struct {
	embed, norm, head                        string
	attnNorm, attnPost, ffnNorm, ffnPost     string
	q, k, v, o, qNorm, kNorm                 string
	gate, up, down                           string
	router, expertGate, expertUp, expertDown string
	sharedGate, sharedUp, sharedDown         string
	sharedSwitch                             string
}

// layerNames are those of most architectures.
func layerNames() tensorNames {
	const l = "model.layers.{layer}."
	const e = l + "mlp.experts.{expert}."
	return tensorNames{
		embed: "model.embed_tokens", norm: "model.norm", head: "lm_head",
		attnNorm: l + "input_layernorm", ffnNorm: l + "post_attention_layernorm",
		q: l + "self_attn.q_proj", k: l + "self_attn.k_proj", v: l + "self_attn.v_proj", o: l + "self_attn.o_proj",
		qNorm: l + "self_attn.q_norm", kNorm: l + "self_attn.k_norm",
		gate: l + "mlp.gate_proj", up: l + "mlp.up_proj", down: l + "mlp.down_proj",
		router: l + "mlp.gate", expertGate: e + "gate_proj", expertUp: e + "up_proj", expertDown: e + "down_proj",
		sharedGate: l + "mlp.shared_expert.gate_proj", sharedUp: l + "mlp.shared_expert.up_proj", sharedDown: l + "mlp.shared_expert.down_proj",
		sharedSwitch: l + "mlp.shared_expert_gate",
	}
}

// withSuffix completes a tensor name, before a range of rows.
func withSuffix(name, suffix string) string {
	if i := strings.IndexByte(name, '['); i >= 0 {
		return name[:i] + suffix + name[i:]
	}
	return name + suffix
}

// graphBuilder collects nodes and weights.
type graphBuilder struct {
	m       *Model
	weights []Weight
	section *Section
}

func (b *graphBuilder) value(v Value) {
	if !slices.ContainsFunc(b.section.Values, func(o Value) bool { return o.Name == v.Name }) {
		b.section.Values = append(b.section.Values, v)
	}
}

func (b *graphBuilder) values(cols int, names ...string) {
	for _, n := range names {
		b.value(Value{Name: n, Cols: cols})
	}
}

func (b *graphBuilder) weight(w Weight) string {
	if !slices.ContainsFunc(b.weights, func(o Weight) bool { return o.Name == w.Name }) {
		b.weights = append(b.weights, w)
	}
	return w.Name
}

// node appends a node; in, w and out are names separated by spaces.
func (b *graphBuilder) node(name, in, w, out string, o ...op.Op) *Node {
	n := Node{Name: name, Ops: o, In: strings.Fields(in), W: strings.Fields(w), Out: strings.Fields(out)}
	b.section.Nodes = append(b.section.Nodes, n)
	return &b.section.Nodes[len(b.section.Nodes)-1]
}

// matmul appends y = x*W (+ bias) with W from the given tensors, interleaved by columns.
func (b *graphBuilder) matmul(name, x, y string, w Weight, bias bool) *Node {
	names := b.weight(w)
	if bias {
		v := Weight{Name: w.Name + "_bias", Interleave: w.Interleave, K: 1, N: w.N}
		for _, f := range w.From {
			v.From = append(v.From, strings.Replace(f, ".weight", ".bias", 1))
		}
		names += " " + b.weight(v)
	}
	return b.node(name, x, names, y, op.Op{Kind: op.MatMul, K: w.K, N: w.N, Scheme: op.A32W32, Bias: bias})
}

// linear is a stored projection [N,K], or several interleaved by columns.
func linear(name string, k, n int, from ...string) Weight {
	w := Weight{Name: name, K: k, N: n, Transposed: true}
	for _, f := range from {
		w.From = append(w.From, withSuffix(f, ".weight"))
	}
	return w
}

// norm appends y = norm(x) with the gain of a stored tensor.
func (b *graphBuilder) norm(name, x, y, weight, from string) {
	d := b.m.dec
	w := b.weight(Weight{Name: weight, From: []string{from + ".weight"}, K: 1, N: b.m.Hidden, Plus: d.gainPlus})
	o := op.Op{Kind: op.Norm, N: b.m.Hidden, Eps: b.m.NormEps}
	if d.layerNorm {
		o.Kind = op.LayerNorm
		w += " " + b.weight(Weight{Name: weight + "_bias", From: []string{from + ".bias"}, K: 1, N: b.m.Hidden})
	}
	b.node(name, x, w, y, o)
}

// headWeight is the name of the matrix of the head.
const headWeight = "head.lm_head"

// decoderGraph is the graph of a decoder:
//
//	x = embed[ids]
//	per layer: x += attn_out(attention(rope(qkv(norm(x))))); x += down(act(gate(norm(x))) * up(norm(x)))
//	logits = lm_head(norm(x[row]))
//
// with the variations of decoder; a layer with experts computes the second block for the experts that its
// router chooses for a token, and adds them up. Rope rotates element i of a head with element
// i+RotaryDim/2 by the angle position*invfreq[i] (product in float32): q[i]*cos - q[i+h]*sin and
// q[i+h]*cos + q[i]*sin. A fused QKV row holds KVHeads groups of Heads/KVHeads query heads, one key head
// and one value head; attention's output row holds the query heads in order. Scores are scaled by
// 1/sqrt(HeadDim).
func decoderGraph(m *Model) Graph {
	b := &graphBuilder{m: m}
	d := m.dec
	var g Graph
	section := func(name string, first, layers int) {
		g.Sections = append(g.Sections, Section{Name: name, First: first, Layers: layers})
		b.section = &g.Sections[len(g.Sections)-1]
	}

	section("embed", 0, 0)
	b.value(Value{Name: "ids", Type: op.I32, Cols: 1})
	b.values(m.Hidden, "x")
	table := b.weight(Weight{Name: "embed.table", From: []string{d.names.embed + ".weight"}, K: m.Vocab, N: m.Hidden})
	embed := b.node("embed", "ids", table, "x", op.Op{Kind: op.Embed, K: m.Vocab, N: m.Hidden, Table: m.Stored, Scale: d.embedScale})
	if m.Tied {
		embed.Packed = headWeight
	}

	name := d.classes(m.Layers)
	for first := 0; first < m.Layers; {
		last := first + 1
		for last < m.Layers && name(last) == name(first) {
			last++
		}
		section(name(first), first, last-first)
		b.attention(d.windowed != nil && d.windowed(first))
		if m.Experts > 0 && (d.dense == nil || !d.dense(first)) {
			b.experts()
		} else {
			b.feedForward("ffn", "g", "a", "d", m.FFN, d.names.gate, d.names.up, d.names.down)
		}
		out := "d"
		if d.post {
			b.values(m.Hidden, "dn")
			b.norm("ffn_post_norm", "d", "dn", "layers.ffn_post_norm", d.names.ffnPost)
			out = "dn"
		}
		b.node("ffn_add", "x "+out, "", "x", op.Op{Kind: op.Add, N: m.Hidden})
		first = last
	}

	section("head", 0, 0)
	b.values(m.Hidden, "x")
	for _, n := range []string{"xl", "hl"} {
		b.value(Value{Name: n, Cols: m.Hidden, Rows1: true})
	}
	b.value(Value{Name: "logits", Cols: m.Vocab, Rows1: true})
	b.node("head_select", "x", "", "xl", op.Op{Kind: op.SelectRow, N: m.Hidden})
	b.norm("head_norm", "xl", "hl", "head.norm", d.names.norm)
	head := d.names.head
	if m.Tied {
		head = d.names.embed
	}
	b.matmul("lm_head", "hl", "logits", linear(headWeight, m.Hidden, m.Vocab, head), d.headBias)
	if d.headBias { // a tied head has a bias of its own
		b.weights[len(b.weights)-1].From = []string{d.names.head + ".bias"}
	}
	if d.logitCap > 0 {
		b.node("logit_cap", "logits", "", "logits", op.Op{Kind: op.Softcap, N: m.Vocab, Cap: d.logitCap})
	}
	g.Weights = b.weights
	return g
}

// classes names the class of each layer: "layers" where all are alike.
func (d *decoder) classes(layers int) func(layer int) string {
	mixed := func(f func(int) bool) bool {
		for l := 1; f != nil && l < layers; l++ {
			if f(l) != f(0) {
				return true
			}
		}
		return false
	}
	windows, kinds := mixed(d.windowed), mixed(d.dense)
	return func(l int) string {
		name := "layers"
		if kinds && d.dense(l) {
			name += "_dense"
		}
		if windows && d.windowed(l) {
			name += "_windowed"
		}
		return name
	}
}

// attention appends the first block of a layer.
func (b *graphBuilder) attention(windowed bool) {
	m, d := b.m, b.m.dec
	group := m.Heads / m.KVHeads
	qkv := op.QKVColumns(m.Heads, m.KVHeads, m.HeadDim)
	heads := func(o op.Op) op.Op {
		o.Heads, o.KVHeads, o.HeadDim = m.Heads, m.KVHeads, m.HeadDim
		return o
	}
	b.values(m.Hidden, "x", "h", "t")
	b.values(qkv, "qkv")
	b.values(m.Heads*m.HeadDim, "o")
	in := "x"
	if !d.noPre {
		b.norm("attn_norm", "x", "h", "layers.attn_norm", d.names.attnNorm)
		in = "h"
	}
	fused := linear("layers.qkv", m.Hidden, qkv, d.names.q, d.names.k, d.names.v)
	if d.names.k == "" { // stored in the order of a fused row
		fused = linear("layers.qkv", m.Hidden, qkv, d.names.q)
	} else {
		fused.Interleave = []int{group * m.HeadDim, m.HeadDim, m.HeadDim}
	}
	b.matmul("qkv", in, "qkv", fused, d.qkvBias)

	var weights []string
	var chain []op.Op
	if d.qkNorm != "" {
		qk := heads(op.Op{Kind: op.QKNorm, Eps: m.NormEps, Joint: d.qkNorm == "joint"})
		q, k := 1, 1
		if qk.Joint {
			q, k = m.Heads, m.KVHeads
		}
		gains := []string{
			b.weight(Weight{Name: "layers.q_norm", From: []string{d.names.qNorm + ".weight"}, K: 1, N: q * m.HeadDim, Plus: d.gainPlus}),
			b.weight(Weight{Name: "layers.k_norm", From: []string{d.names.kNorm + ".weight"}, K: 1, N: k * m.HeadDim, Plus: d.gainPlus}),
		}
		if qk.Joint { // needs all heads at once
			b.node("qk_norm", "qkv", strings.Join(gains, " "), "qkv", qk)
		} else {
			weights, chain = gains, []op.Op{qk}
		}
	}
	if d.clip > 0 {
		b.node("qkv_clip", "qkv", "", "qkv", op.Op{Kind: op.Clip, N: qkv, Cap: d.clip})
	}
	rotate := heads(d.rope.op)
	rotate.Kind = op.Rope
	weights = append(weights, b.weight(Weight{Name: "rope.invfreq", K: d.rope.rows, N: rotate.Rotary() / 2, Const: d.rope.table}))
	attend := heads(op.Op{Kind: op.Attention, KV: op.F32, Scale: d.attnScale, Cap: d.attnCap})
	if windowed {
		attend.Window = d.window
	}
	chain = append(chain, rotate, heads(op.Op{Kind: op.KVAppend, KV: op.F32}), attend)
	b.node("attention", "qkv", strings.Join(weights, " "), "o", chain...)

	b.matmul("attn_out", "o", "t", linear("layers.attn_out", m.Heads*m.HeadDim, m.Hidden, d.names.o), d.outBias)
	out := "t"
	if d.post {
		b.values(m.Hidden, "tn")
		b.norm("attn_post_norm", "t", "tn", "layers.attn_post_norm", d.names.attnPost)
		out = "tn"
	}
	b.node("attn_add", "x "+out, "", "x", op.Op{Kind: op.Add, N: m.Hidden})
	if !d.noPre && !d.parallel { // a parallel block reads the norm of the attention
		b.norm("ffn_norm", "x", "h", "layers.ffn_norm", d.names.ffnNorm)
	}
}

// ffnInput is the value that the second block reads.
func (b *graphBuilder) ffnInput() string {
	if b.m.dec.noPre {
		return "x"
	}
	return "h"
}

// feedForward appends a dense block of n columns: nodes and weights are named after prefix, values as given.
func (b *graphBuilder) feedForward(prefix, wide, act, out string, n int, gate, up, down string) {
	m, d := b.m, b.m.dec
	b.values(n, act)
	b.values(m.Hidden, out)
	if d.ungated {
		b.values(n, wide)
		b.matmul(prefix+"_up", b.ffnInput(), wide, linear("layers."+prefix+"_up", m.Hidden, n, up), d.ffnBias)
		b.node(prefix+"_act", wide, "", act, op.Op{Kind: op.Activate, N: n, Act: d.act})
	} else {
		interleave := gcd(n, 16)
		b.values(2*n, wide)
		w := linear("layers."+prefix+"_gate_up", m.Hidden, 2*n, gate, up)
		w.Interleave = []int{interleave, interleave}
		b.matmul(prefix+"_gate_up", b.ffnInput(), wide, w, d.ffnBias)
		b.node(prefix+"_act", wide, "", act, op.Op{Kind: op.GLU, N: n, Interleave: interleave, Act: d.act})
	}
	b.matmul(prefix+"_down", act, out, linear("layers."+prefix+"_down", n, m.Hidden, down), d.ffnBias)
}

// experts appends a block of routed experts, and the shared one beside them.
func (b *graphBuilder) experts() {
	m, d := b.m, b.m.dec
	fan, n := m.ExpertsPerToken, m.ExpertFFN
	b.values(m.Experts, "router")
	b.value(Value{Name: "experts", Type: op.I32, Cols: fan})
	b.value(Value{Name: "shares", Cols: fan})
	b.value(Value{Name: "eg", Fan: fan, Cols: 2 * n})
	b.value(Value{Name: "ea", Fan: fan, Cols: n})
	b.value(Value{Name: "ed", Fan: fan, Cols: m.Hidden})
	b.values(m.Hidden, "d")
	h := b.ffnInput()
	b.matmul("router", h, "router", linear("layers.router", m.Hidden, m.Experts, d.names.router), false).Exact = true
	b.node("route", "router", "", "experts shares", op.Op{Kind: op.Route, Experts: m.Experts, Fan: fan, Router: d.router, Jitter: d.jitter})
	expert := func(name, x, y string, w Weight, spread bool) {
		w.Experts = m.Experts
		b.node(name, x+" experts", b.weight(w), y, op.Op{Kind: op.ExpertMatMul, K: w.K, N: w.N, Scheme: op.A32W32, Experts: m.Experts, Fan: fan, Spread: spread})
	}
	interleave := gcd(n, 16)
	w := linear("layers.expert_gate_up", m.Hidden, 2*n, d.names.expertGate, d.names.expertUp)
	w.Interleave = []int{interleave, interleave}
	expert("expert_gate_up", h, "eg", w, true)
	b.node("expert_act", "eg", "", "ea", op.Op{Kind: op.GLU, N: n, Interleave: interleave, Act: d.act, Fan: fan})
	expert("expert_down", "ea", "ed", linear("layers.expert_down", n, m.Hidden, d.names.expertDown), false)
	b.node("expert_sum", "ed shares", "", "d", op.Op{Kind: op.Combine, N: m.Hidden, Fan: fan})
	if m.SharedFFN == 0 {
		return
	}
	b.feedForward("shared", "sg", "sa", "sd", m.SharedFFN, d.names.sharedGate, d.names.sharedUp, d.names.sharedDown)
	if d.sharedGate {
		b.values(1, "switch")
		b.matmul("shared_switch", h, "switch", linear("layers.shared_switch", m.Hidden, 1, d.names.sharedSwitch), false).Exact = true
		b.node("shared_gate", "sd switch", "", "sd", op.Op{Kind: op.Gate, N: m.Hidden})
	}
	b.node("shared_add", "d sd", "", "d", op.Op{Kind: op.Add, N: m.Hidden})
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
