package models

import (
	"slices"
	"strings"

	"github.com/hetc/hetc/planir/op"
)

// decoder is a decoder-only transformer as this package knows it: what an architecture's read function
// fills in and decoderGraph turns into a graph. Sizes that every model has are in Model.
type decoder struct {
	act       string  // of the feed-forward blocks, op.Acts
	ungated   bool    // act(up(x)) instead of act(gate(x))*up(x)
	layerNorm bool    // mean and variance, with biases, instead of RMS
	gainPlus  float32 // added to stored gains of norms
	epsKey    string  // where config.json has the norms' eps
	noPre     bool    // no norms in front of the blocks (OLMo 2)
	post      bool    // norms behind them
	clip      float64 // > 0: bound of what qkv computes
	parallel  bool    // both blocks read the same norm of x (Phi)

	qkvBias, outBias, ffnBias, headBias bool
	qkNorm                              string // "", "head": every head, "joint": all query and all key heads together

	window            int     // positions that layers in windowed attend to
	attnScale         float64 // of scores; 0: 1/sqrt(HeadDim)
	attnCap, logitCap float64 // soft caps of scores and logits; 0: none
	embedScale        float64 // of embeddings; 0: 1
	rope              rope
	router            string               // op.Routers
	jitter            float64              // of the router, see op.Op
	sharedGate        bool                 // the shared expert is multiplied by the sigmoid of a projection
	windowed          func(layer int) bool // nil: no layer
	dense             func(layer int) bool // layers without experts in a mixture; nil: none
	names             tensorNames
}

// tensorNames are the names of stored tensors without ".weight" or ".bias", with {layer} and {expert}. A fused
// projection is given as ranges of rows of one tensor, "name[from:to]".
type tensorNames struct {
	embed, norm, head                        string // norm: in front of the head
	attnNorm, attnPost, ffnNorm, ffnPost     string // in front of and behind the blocks
	q, k, v, o, qNorm, kNorm                 string // k "": q is stored as a fused QKV row
	gate, up, down                           string
	router, expertGate, expertUp, expertDown string
	sharedGate, sharedUp, sharedDown         string // of the shared expert
	sharedSwitch                             string // projection whose sigmoid multiplies the shared expert
}

// inLayer is the beginning of the names of a layer's tensors, in Hugging Face directories and here.
const inLayer = "model.layers.{layer}."

// layerNames returns those of most architectures.
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

// graphBuilder collects the graph of a model, whose sizes and decoder are at hand.
type graphBuilder struct {
	*Model
	out     Graph
	section *Section // the one under construction, the last of out
}

// begin starts a section of so many layers from first; 0 layers for one that runs once.
func (b *graphBuilder) begin(name string, first, layers int) {
	b.out.Sections = append(b.out.Sections, Section{Name: name, First: first, Layers: layers})
	b.section = &b.out.Sections[len(b.out.Sections)-1]
}

// value declares a value of the section; again is fine.
func (b *graphBuilder) value(v Value) {
	if !slices.ContainsFunc(b.section.Values, func(o Value) bool { return o.Name == v.Name }) {
		b.section.Values = append(b.section.Values, v)
	}
}

// values declares float32 values of one row per token.
func (b *graphBuilder) values(cols int, names ...string) {
	for _, name := range names {
		b.value(Value{Name: name, Cols: cols})
	}
}

// weight declares a weight and returns its name; sections with the same nodes share theirs.
func (b *graphBuilder) weight(w op.Weight) string {
	if b.out.Weight(w.Name) == nil {
		b.out.Weights = append(b.out.Weights, w)
	}
	return w.Name
}

// node appends a node; in, w and out are names separated by spaces.
func (b *graphBuilder) node(name, in, w, out string, o ...op.Op) *Node {
	node := Node{Name: name, Ops: o, In: strings.Fields(in), W: strings.Fields(w), Out: strings.Fields(out)}
	b.section.Nodes = append(b.section.Nodes, node)
	return &b.section.Nodes[len(b.section.Nodes)-1]
}

// matmul appends out = in*W (+ bias).
func (b *graphBuilder) matmul(name, in, out string, weight op.Weight, bias bool) *Node {
	names := b.weight(weight)
	if bias {
		biases := op.Weight{Name: weight.Name + "_bias", Interleave: weight.Interleave, K: 1, N: weight.N}
		for _, source := range weight.From {
			biases.From = append(biases.From, strings.Replace(source, ".weight", ".bias", 1))
		}
		names += " " + b.weight(biases)
	}
	return b.node(name, in, names, out, op.Op{Kind: op.MatMul, K: weight.K, N: weight.N, Scheme: op.A32W32, Bias: bias})
}

// linear returns a stored projection [N,K], or several interleaved by columns.
func linear(name string, k, n int, from ...string) op.Weight {
	weight := op.Weight{Name: name, K: k, N: n, Transposed: true}
	for _, source := range from {
		weight.From = append(weight.From, withSuffix(source, ".weight"))
	}
	return weight
}

// gain declares the gain of a norm.
func (b *graphBuilder) gain(name, from string, n int) string {
	return b.weight(op.Weight{Name: name, From: []string{from + ".weight"}, K: 1, N: n, Plus: b.decoder.gainPlus})
}

// norm appends out = norm(in) with the gain of a stored tensor.
func (b *graphBuilder) norm(name, in, out, weight, from string) {
	weights := b.gain(weight, from, b.Hidden)
	operator := op.Op{Kind: op.Norm, N: b.Hidden, Eps: b.NormEps}
	if b.decoder.layerNorm {
		operator.Kind = op.LayerNorm
		weights += " " + b.weight(op.Weight{Name: weight + "_bias", From: []string{from + ".bias"}, K: 1, N: b.Hidden})
	}
	b.node(name, in, weights, out, operator)
}

// residual appends x += value, behind a norm of its own where the architecture has norms behind its blocks.
func (b *graphBuilder) residual(block, value, normed, from string) {
	if b.decoder.post {
		b.values(b.Hidden, normed)
		b.norm(block+"_post_norm", value, normed, "layers."+block+"_post_norm", from)
		value = normed
	}
	b.node(block+"_add", "x "+value, "", "x", op.Op{Kind: op.Add, N: b.Hidden})
}

// headWeight is the name of the matrix of the head.
const headWeight = "head.lm_head"

// decoderGraph returns the graph of a decoder:
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
	b := &graphBuilder{Model: model}
	b.embed()
	// Neighbouring layers of one class are one section.
	class := b.decoder.classes(b.Layers)
	for first := 0; first < b.Layers; {
		last := first + 1
		for last < b.Layers && class(last) == class(first) {
			last++
		}
		b.begin(class(first), first, last-first)
		b.attention(b.decoder.windowed != nil && b.decoder.windowed(first))
		if b.Experts > 0 && (b.decoder.dense == nil || !b.decoder.dense(first)) {
			b.experts()
		} else {
			names := &b.decoder.names
			b.feedForward(feedForward{"ffn", "g", "a", "d", b.FFN, names.gate, names.up, names.down})
		}
		b.residual("ffn", "d", "dn", b.decoder.names.ffnPost)
		first = last
	}
	b.head()
	return b.out
}

// embed appends the section that looks up the rows of the embedding table.
func (b *graphBuilder) embed() {
	b.begin("embed", 0, 0)
	b.value(Value{Name: "ids", Type: op.I32, Cols: 1})
	b.values(b.Hidden, "x")
	from := b.decoder.names.embed + ".weight"
	table := b.weight(op.Weight{Name: "embed.table", From: []string{from}, K: b.Vocab, N: b.Hidden})
	lookup := op.Op{Kind: op.Embed, K: b.Vocab, N: b.Hidden, Table: b.Stored, Scale: b.decoder.embedScale}
	node := b.node("embed", "ids", table, "x", lookup)
	if b.Tied {
		node.Packed = headWeight
	}
}

// head appends the section that computes the logits of one row.
func (b *graphBuilder) head() {
	b.begin("head", 0, 0)
	b.values(b.Hidden, "x")
	for _, value := range []string{"xl", "hl"} {
		b.value(Value{Name: value, Cols: b.Hidden, Rows1: true})
	}
	b.value(Value{Name: "logits", Cols: b.Vocab, Rows1: true})
	// A prompt needs the logits of its last row alone, and those of all rows would be the program's largest buffer. Who
	// wants all executes the head for each.
	b.node("head_select", "x", "", "xl", op.Op{Kind: op.SelectRow, N: b.Hidden})
	b.norm("head_norm", "xl", "hl", "head.norm", b.decoder.names.norm)
	from := b.decoder.names.head
	if b.Tied {
		from = b.decoder.names.embed
	}
	b.matmul("lm_head", "hl", "logits", linear(headWeight, b.Hidden, b.Vocab, from), b.decoder.headBias)
	if b.decoder.headBias { // a tied head has a bias of its own
		b.out.Weights[len(b.out.Weights)-1].From = []string{b.decoder.names.head + ".bias"}
	}
	if b.decoder.logitCap > 0 {
		b.node("logit_cap", "logits", "", "logits", op.Op{Kind: op.Softcap, N: b.Vocab, Cap: b.decoder.logitCap})
	}
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
	names := b.decoder.names
	b.values(b.Hidden, "x", "h", "t")
	b.values(op.QKVColumns(b.Heads, b.KVHeads, b.HeadDim), "qkv")
	b.values(b.Heads*b.HeadDim, "o")
	// Without norms in front, the projections read the residual stream itself.
	in := "x"
	if !b.decoder.noPre {
		b.norm("attn_norm", "x", "h", "layers.attn_norm", names.attnNorm)
		in = "h"
	}
	b.matmul("qkv", in, "qkv", b.fusedQKV(), b.decoder.qkvBias)
	b.scores(windowed)
	b.matmul("attn_out", "o", "t", linear("layers.attn_out", b.Heads*b.HeadDim, b.Hidden, names.o), b.decoder.outBias)
	b.residual("attn", "t", "tn", names.attnPost)
	if !b.decoder.noPre && !b.decoder.parallel { // a parallel block reads the norm of the attention
		b.norm("ffn_norm", "x", "h", "layers.ffn_norm", names.ffnNorm)
	}
}

// fusedQKV returns the projection to a fused row: stored as such, or interleaved by groups of heads.
func (b *graphBuilder) fusedQKV() op.Weight {
	names, cols := b.decoder.names, op.QKVColumns(b.Heads, b.KVHeads, b.HeadDim)
	if names.k == "" {
		return linear("layers.qkv", b.Hidden, cols, names.q)
	}
	fused := linear("layers.qkv", b.Hidden, cols, names.q, names.k, names.v)
	fused.Interleave = []int{b.Heads / b.KVHeads * b.HeadDim, b.HeadDim, b.HeadDim}
	return fused
}

// scores appends what happens between the projections: norms and bounds of the heads, rotary positions, the cache,
// and attention itself.
func (b *graphBuilder) scores(windowed bool) {
	heads := func(o op.Op) op.Op {
		o.Heads, o.KVHeads, o.HeadDim = b.Heads, b.KVHeads, b.HeadDim
		return o
	}
	var weights []string
	var chain []op.Op
	if b.decoder.qkNorm != "" {
		norm := heads(op.Op{Kind: op.QKNorm, Eps: b.NormEps, Joint: b.decoder.qkNorm == "joint"})
		gains := b.headGains(norm.Joint)
		if norm.Joint { // needs all heads at once
			b.node("qk_norm", "qkv", strings.Join(gains, " "), "qkv", norm)
		} else {
			weights, chain = gains, []op.Op{norm}
		}
	}
	if b.decoder.clip > 0 {
		cols := op.QKVColumns(b.Heads, b.KVHeads, b.HeadDim)
		b.node("qkv_clip", "qkv", "", "qkv", op.Op{Kind: op.Clip, N: cols, Cap: b.decoder.clip})
	}
	rotate := heads(b.decoder.rope.op)
	rotate.Kind = op.Rope
	frequencies := op.Weight{Name: "rope.invfreq", K: b.decoder.rope.rows, N: rotate.Rotary() / 2,
		Const: b.decoder.rope.table}
	// From rotation to attention it is one node: a piece of it has whole heads, rotated, cached and attended to by the
	// same processor, so the cache never moves.
	weights = append(weights, b.weight(frequencies))
	attend := heads(op.Op{Kind: op.Attention, KV: op.F32, Scale: b.decoder.attnScale, Cap: b.decoder.attnCap})
	if windowed {
		attend.Window = b.decoder.window
	}
	chain = append(chain, rotate, heads(op.Op{Kind: op.KVAppend, KV: op.F32}), attend)
	b.node("attention", "qkv", strings.Join(weights, " "), "o", chain...)
}

// headGains declares the gains of the norms of queries and keys: of one head each, or of all heads together.
func (b *graphBuilder) headGains(joint bool) []string {
	queries, keys := 1, 1
	if joint {
		queries, keys = b.Heads, b.KVHeads
	}
	return []string{
		b.gain("layers.q_norm", b.decoder.names.qNorm, queries*b.HeadDim),
		b.gain("layers.k_norm", b.decoder.names.kNorm, keys*b.HeadDim),
	}
}

// ffnInput returns the value that the second block reads.
func (b *graphBuilder) ffnInput() string {
	if b.decoder.noPre {
		return "x"
	}
	return "h"
}

// gateUp returns the fused projection to cols columns each of gate and up, and how many of them alternate: 16, so that
// any share of whole tiles has gate and up of the same columns, or a common divisor for odd widths.
func (b *graphBuilder) gateUp(name string, cols int, gate, up string) (op.Weight, int) {
	weight, interleave := linear(name, b.Hidden, 2*cols, gate, up), gcd(cols, 16)
	weight.Interleave = []int{interleave, interleave}
	return weight, interleave
}

// feedForward is a dense block: what its nodes and values are called, and the stored tensors of its projections.
type feedForward struct {
	prefix         string // of nodes and weights
	wide, act, out string // values behind the first product, the activation and the second product
	cols           int    // of act
	gate, up, down string
}

// feedForward appends a dense block.
func (b *graphBuilder) feedForward(f feedForward) {
	in, weights := b.ffnInput(), "layers."+f.prefix
	b.values(f.cols, f.act)
	b.values(b.Hidden, f.out)
	if b.decoder.ungated {
		b.values(f.cols, f.wide)
		b.matmul(f.prefix+"_up", in, f.wide, linear(weights+"_up", b.Hidden, f.cols, f.up), b.decoder.ffnBias)
		b.node(f.prefix+"_act", f.wide, "", f.act, op.Op{Kind: op.Activate, N: f.cols, Act: b.decoder.act})
	} else {
		// Gate and up read the same rows: one product of twice the width reads them once.
		weight, interleave := b.gateUp(weights+"_gate_up", f.cols, f.gate, f.up)
		b.values(2*f.cols, f.wide)
		b.matmul(f.prefix+"_gate_up", in, f.wide, weight, b.decoder.ffnBias)
		b.node(f.prefix+"_act", f.wide, "", f.act,
			op.Op{Kind: op.GLU, N: f.cols, Interleave: interleave, Act: b.decoder.act})
	}
	b.matmul(f.prefix+"_down", f.act, f.out, linear(weights+"_down", f.cols, b.Hidden, f.down), b.decoder.ffnBias)
}

// experts appends a block of routed experts, and the shared one beside them.
func (b *graphBuilder) experts() {
	names, in := b.decoder.names, b.ffnInput()
	fan, cols := b.ExpertsPerToken, b.ExpertFFN
	b.values(b.Experts, "router")
	b.value(Value{Name: "experts", Type: op.I32, Cols: fan})
	b.value(Value{Name: "shares", Cols: fan})
	b.value(Value{Name: "eg", Fan: fan, Cols: 2 * cols})
	b.value(Value{Name: "ea", Fan: fan, Cols: cols})
	b.value(Value{Name: "ed", Fan: fan, Cols: b.Hidden})
	b.values(b.Hidden, "d")
	// In float32 whatever the plan chooses: a rounded router picks other experts, which no later precision repairs.
	b.matmul("router", in, "router", linear("layers.router", b.Hidden, b.Experts, names.router), false).Exact = true
	route := op.Op{Kind: op.Route, Experts: b.Experts, Fan: fan, Router: b.decoder.router, Jitter: b.decoder.jitter}
	b.node("route", "router", "", "experts shares", route)
	// The products, spread where the rows of a token are not yet one for each of its experts.
	expert := func(name, x, y string, w op.Weight, spread bool) {
		w.Experts = b.Experts
		product := op.Op{Kind: op.ExpertMatMul, K: w.K, N: w.N, Scheme: op.A32W32, Fan: fan, Spread: spread}
		product.Experts = b.Experts
		b.node(name, x+" experts", b.weight(w), y, product)
	}
	gateUp, interleave := b.gateUp("layers.expert_gate_up", cols, names.expertGate, names.expertUp)
	expert("expert_gate_up", in, "eg", gateUp, true)
	b.node("expert_act", "eg", "", "ea",
		op.Op{Kind: op.GLU, N: cols, Interleave: interleave, Act: b.decoder.act, Fan: fan})
	expert("expert_down", "ea", "ed", linear("layers.expert_down", cols, b.Hidden, names.expertDown), false)
	b.node("expert_sum", "ed shares", "", "d", op.Op{Kind: op.Combine, N: b.Hidden, Fan: fan})
	if b.SharedFFN == 0 {
		return
	}
	b.feedForward(
		feedForward{"shared", "sg", "sa", "sd", b.SharedFFN, names.sharedGate, names.sharedUp, names.sharedDown})
	if b.decoder.sharedGate {
		b.values(1, "switch")
		gate := linear("layers.shared_switch", b.Hidden, 1, names.sharedSwitch)
		b.matmul("shared_switch", in, "switch", gate, false).Exact = true
		b.node("shared_gate", "sd switch", "", "sd", op.Op{Kind: op.Gate, N: b.Hidden})
	}
	b.node("shared_add", "d sd", "", "d", op.Op{Kind: op.Add, N: b.Hidden})
}

// gcd returns the greatest common divisor of two positive numbers.
func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
