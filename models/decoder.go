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

// inLayer is the beginning of the names of a layer's tensors, in Hugging Face directories and here.
const inLayer = "model.layers.{layer}."

// layerNames are those of most architectures.
func layerNames() tensorNames {
	const attention, mlp, expert = inLayer + "self_attn.", inLayer + "mlp.", inLayer + "mlp.experts.{expert}."
	const shared = mlp + "shared_expert."
	return tensorNames{
		embed: "model.embed_tokens", norm: "model.norm", head: "lm_head",
		attnNorm: inLayer + "input_layernorm", ffnNorm: inLayer + "post_attention_layernorm",
		q: attention + "q_proj", k: attention + "k_proj", v: attention + "v_proj", o: attention + "o_proj",
		qNorm: attention + "q_norm", kNorm: attention + "k_norm",
		gate: mlp + "gate_proj", up: mlp + "up_proj", down: mlp + "down_proj", router: mlp + "gate",
		expertGate: expert + "gate_proj", expertUp: expert + "up_proj", expertDown: expert + "down_proj",
		sharedGate: shared + "gate_proj", sharedUp: shared + "up_proj", sharedDown: shared + "down_proj",
		sharedSwitch: mlp + "shared_expert_gate",
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
	for _, name := range names {
		b.value(Value{Name: name, Cols: cols})
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
	node := Node{Name: name, Ops: o, In: strings.Fields(in), W: strings.Fields(w), Out: strings.Fields(out)}
	b.section.Nodes = append(b.section.Nodes, node)
	return &b.section.Nodes[len(b.section.Nodes)-1]
}

// matmul appends y = x*W (+ bias) with W from the given tensors, interleaved by columns.
func (b *graphBuilder) matmul(name, in, out string, weight Weight, bias bool) *Node {
	names := b.weight(weight)
	if bias {
		biases := Weight{Name: weight.Name + "_bias", Interleave: weight.Interleave, K: 1, N: weight.N}
		for _, source := range weight.From {
			biases.From = append(biases.From, strings.Replace(source, ".weight", ".bias", 1))
		}
		names += " " + b.weight(biases)
	}
	return b.node(name, in, names, out, op.Op{Kind: op.MatMul, K: weight.K, N: weight.N, Scheme: op.A32W32, Bias: bias})
}

// linear is a stored projection [N,K], or several interleaved by columns.
func linear(name string, k, n int, from ...string) Weight {
	weight := Weight{Name: name, K: k, N: n, Transposed: true}
	for _, source := range from {
		weight.From = append(weight.From, withSuffix(source, ".weight"))
	}
	return weight
}

// norm appends y = norm(x) with the gain of a stored tensor.
func (b *graphBuilder) norm(name, in, out, weight, from string) {
	dec := b.m.dec
	weights := b.weight(Weight{Name: weight, From: []string{from + ".weight"}, K: 1, N: b.m.Hidden, Plus: dec.gainPlus})
	operator := op.Op{Kind: op.Norm, N: b.m.Hidden, Eps: b.m.NormEps}
	if dec.layerNorm {
		operator.Kind = op.LayerNorm
		weights += " " + b.weight(Weight{Name: weight + "_bias", From: []string{from + ".bias"}, K: 1, N: b.m.Hidden})
	}
	b.node(name, in, weights, out, operator)
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
func decoderGraph(model *Model) Graph {
	builder := &graphBuilder{m: model}
	dec := model.dec
	var graph Graph
	section := func(name string, first, layers int) {
		graph.Sections = append(graph.Sections, Section{Name: name, First: first, Layers: layers})
		builder.section = &graph.Sections[len(graph.Sections)-1]
	}

	section("embed", 0, 0)
	builder.value(Value{Name: "ids", Type: op.I32, Cols: 1})
	builder.values(model.Hidden, "x")
	table := builder.weight(Weight{Name: "embed.table", From: []string{dec.names.embed + ".weight"}, K: model.Vocab, N: model.Hidden})
	embed := builder.node("embed", "ids", table, "x", op.Op{Kind: op.Embed, K: model.Vocab, N: model.Hidden, Table: model.Stored, Scale: dec.embedScale})
	if model.Tied {
		embed.Packed = headWeight
	}

	name := dec.classes(model.Layers)
	for first := 0; first < model.Layers; {
		last := first + 1
		for last < model.Layers && name(last) == name(first) {
			last++
		}
		section(name(first), first, last-first)
		builder.attention(dec.windowed != nil && dec.windowed(first))
		if model.Experts > 0 && (dec.dense == nil || !dec.dense(first)) {
			builder.experts()
		} else {
			builder.feedForward("ffn", "g", "a", "d", model.FFN, dec.names.gate, dec.names.up, dec.names.down)
		}
		out := "d"
		if dec.post {
			builder.values(model.Hidden, "dn")
			builder.norm("ffn_post_norm", "d", "dn", "layers.ffn_post_norm", dec.names.ffnPost)
			out = "dn"
		}
		builder.node("ffn_add", "x "+out, "", "x", op.Op{Kind: op.Add, N: model.Hidden})
		first = last
	}

	section("head", 0, 0)
	builder.values(model.Hidden, "x")
	for _, value := range []string{"xl", "hl"} {
		builder.value(Value{Name: value, Cols: model.Hidden, Rows1: true})
	}
	builder.value(Value{Name: "logits", Cols: model.Vocab, Rows1: true})
	builder.node("head_select", "x", "", "xl", op.Op{Kind: op.SelectRow, N: model.Hidden})
	builder.norm("head_norm", "xl", "hl", "head.norm", dec.names.norm)
	head := dec.names.head
	if model.Tied {
		head = dec.names.embed
	}
	builder.matmul("lm_head", "hl", "logits", linear(headWeight, model.Hidden, model.Vocab, head), dec.headBias)
	if dec.headBias { // a tied head has a bias of its own
		builder.weights[len(builder.weights)-1].From = []string{dec.names.head + ".bias"}
	}
	if dec.logitCap > 0 {
		builder.node("logit_cap", "logits", "", "logits", op.Op{Kind: op.Softcap, N: model.Vocab, Cap: dec.logitCap})
	}
	graph.Weights = builder.weights
	return graph
}

// classes names the class of each layer: "layers" where all are alike.
func (d *decoder) classes(layers int) func(layer int) string {
	mixed := func(f func(int) bool) bool {
		for layer := 1; f != nil && layer < layers; layer++ {
			if f(layer) != f(0) {
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
	model, dec := b.m, b.m.dec
	group := model.Heads / model.KVHeads
	qkv := op.QKVColumns(model.Heads, model.KVHeads, model.HeadDim)
	heads := func(o op.Op) op.Op {
		o.Heads, o.KVHeads, o.HeadDim = model.Heads, model.KVHeads, model.HeadDim
		return o
	}
	b.values(model.Hidden, "x", "h", "t")
	b.values(qkv, "qkv")
	b.values(model.Heads*model.HeadDim, "o")
	in := "x"
	if !dec.noPre {
		b.norm("attn_norm", "x", "h", "layers.attn_norm", dec.names.attnNorm)
		in = "h"
	}
	fused := linear("layers.qkv", model.Hidden, qkv, dec.names.q, dec.names.k, dec.names.v)
	if dec.names.k == "" { // stored in the order of a fused row
		fused = linear("layers.qkv", model.Hidden, qkv, dec.names.q)
	} else {
		fused.Interleave = []int{group * model.HeadDim, model.HeadDim, model.HeadDim}
	}
	b.matmul("qkv", in, "qkv", fused, dec.qkvBias)

	var weights []string
	var chain []op.Op
	if dec.qkNorm != "" {
		qk := heads(op.Op{Kind: op.QKNorm, Eps: model.NormEps, Joint: dec.qkNorm == "joint"})
		queries, keys := 1, 1
		if qk.Joint {
			queries, keys = model.Heads, model.KVHeads
		}
		gains := []string{
			b.weight(Weight{Name: "layers.q_norm", From: []string{dec.names.qNorm + ".weight"}, K: 1, N: queries * model.HeadDim, Plus: dec.gainPlus}),
			b.weight(Weight{Name: "layers.k_norm", From: []string{dec.names.kNorm + ".weight"}, K: 1, N: keys * model.HeadDim, Plus: dec.gainPlus}),
		}
		if qk.Joint { // needs all heads at once
			b.node("qk_norm", "qkv", strings.Join(gains, " "), "qkv", qk)
		} else {
			weights, chain = gains, []op.Op{qk}
		}
	}
	if dec.clip > 0 {
		b.node("qkv_clip", "qkv", "", "qkv", op.Op{Kind: op.Clip, N: qkv, Cap: dec.clip})
	}
	rotate := heads(dec.rope.op)
	rotate.Kind = op.Rope
	weights = append(weights, b.weight(Weight{Name: "rope.invfreq", K: dec.rope.rows, N: rotate.Rotary() / 2, Const: dec.rope.table}))
	attend := heads(op.Op{Kind: op.Attention, KV: op.F32, Scale: dec.attnScale, Cap: dec.attnCap})
	if windowed {
		attend.Window = dec.window
	}
	chain = append(chain, rotate, heads(op.Op{Kind: op.KVAppend, KV: op.F32}), attend)
	b.node("attention", "qkv", strings.Join(weights, " "), "o", chain...)

	b.matmul("attn_out", "o", "t", linear("layers.attn_out", model.Heads*model.HeadDim, model.Hidden, dec.names.o), dec.outBias)
	out := "t"
	if dec.post {
		b.values(model.Hidden, "tn")
		b.norm("attn_post_norm", "t", "tn", "layers.attn_post_norm", dec.names.attnPost)
		out = "tn"
	}
	b.node("attn_add", "x "+out, "", "x", op.Op{Kind: op.Add, N: model.Hidden})
	if !dec.noPre && !dec.parallel { // a parallel block reads the norm of the attention
		b.norm("ffn_norm", "x", "h", "layers.ffn_norm", dec.names.ffnNorm)
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
func (b *graphBuilder) feedForward(prefix, wide, act, out string, cols int, gate, up, down string) {
	model, dec := b.m, b.m.dec
	b.values(cols, act)
	b.values(model.Hidden, out)
	if dec.ungated {
		b.values(cols, wide)
		b.matmul(prefix+"_up", b.ffnInput(), wide, linear("layers."+prefix+"_up", model.Hidden, cols, up), dec.ffnBias)
		b.node(prefix+"_act", wide, "", act, op.Op{Kind: op.Activate, N: cols, Act: dec.act})
	} else {
		interleave := gcd(cols, 16)
		b.values(2*cols, wide)
		weight := linear("layers."+prefix+"_gate_up", model.Hidden, 2*cols, gate, up)
		weight.Interleave = []int{interleave, interleave}
		b.matmul(prefix+"_gate_up", b.ffnInput(), wide, weight, dec.ffnBias)
		b.node(prefix+"_act", wide, "", act, op.Op{Kind: op.GLU, N: cols, Interleave: interleave, Act: dec.act})
	}
	b.matmul(prefix+"_down", act, out, linear("layers."+prefix+"_down", cols, model.Hidden, down), dec.ffnBias)
}

// experts appends a block of routed experts, and the shared one beside them.
func (b *graphBuilder) experts() {
	model, dec := b.m, b.m.dec
	fan, cols := model.ExpertsPerToken, model.ExpertFFN
	b.values(model.Experts, "router")
	b.value(Value{Name: "experts", Type: op.I32, Cols: fan})
	b.value(Value{Name: "shares", Cols: fan})
	b.value(Value{Name: "eg", Fan: fan, Cols: 2 * cols})
	b.value(Value{Name: "ea", Fan: fan, Cols: cols})
	b.value(Value{Name: "ed", Fan: fan, Cols: model.Hidden})
	b.values(model.Hidden, "d")
	in := b.ffnInput()
	b.matmul("router", in, "router", linear("layers.router", model.Hidden, model.Experts, dec.names.router), false).Exact = true
	b.node("route", "router", "", "experts shares", op.Op{Kind: op.Route, Experts: model.Experts, Fan: fan, Router: dec.router, Jitter: dec.jitter})
	expert := func(name, x, y string, w Weight, spread bool) {
		w.Experts = model.Experts
		b.node(name, x+" experts", b.weight(w), y, op.Op{Kind: op.ExpertMatMul, K: w.K, N: w.N, Scheme: op.A32W32, Experts: model.Experts, Fan: fan, Spread: spread})
	}
	interleave := gcd(cols, 16)
	weight := linear("layers.expert_gate_up", model.Hidden, 2*cols, dec.names.expertGate, dec.names.expertUp)
	weight.Interleave = []int{interleave, interleave}
	expert("expert_gate_up", in, "eg", weight, true)
	b.node("expert_act", "eg", "", "ea", op.Op{Kind: op.GLU, N: cols, Interleave: interleave, Act: dec.act, Fan: fan})
	expert("expert_down", "ea", "ed", linear("layers.expert_down", cols, model.Hidden, dec.names.expertDown), false)
	b.node("expert_sum", "ed shares", "", "d", op.Op{Kind: op.Combine, N: model.Hidden, Fan: fan})
	if model.SharedFFN == 0 {
		return
	}
	b.feedForward("shared", "sg", "sa", "sd", model.SharedFFN, dec.names.sharedGate, dec.names.sharedUp, dec.names.sharedDown)
	if dec.sharedGate {
		b.values(1, "switch")
		b.matmul("shared_switch", in, "switch", linear("layers.shared_switch", model.Hidden, 1, dec.names.sharedSwitch), false).Exact = true
		b.node("shared_gate", "sd switch", "", "sd", op.Op{Kind: op.Gate, N: model.Hidden})
	}
	b.node("shared_add", "d sd", "", "d", op.Op{Kind: op.Add, N: model.Hidden})
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
