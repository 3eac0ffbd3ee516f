package drivertest

import (
	"strings"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// operators lists every kind in its variants, over shapes: 1, primes, sizes beside those of tiles,
// and sizes large enough to be divided among threads.
func operators() []op.Op {
	var out []op.Op
	add := func(ops ...op.Op) { out = append(out, ops...) }
	rowOperators(add)
	products(add)
	routers(add)
	groups(add)
	for _, heads := range [][3]int{{1, 1, 2}, {4, 2, 16}, {6, 2, 10}, {3, 3, 64}, {8, 1, 80}} {
		for _, rows := range []int{1, 5, 19} {
			headOperators(add, op.Op{M: rows, Heads: heads[0], KVHeads: heads[1], HeadDim: heads[2]})
		}
	}
	longContexts(add)
	sparseOperators(add)
	add(op.Op{Kind: op.KVAppend, M: 3, KVHeads: 2, HeadDim: 8, KV: op.F32})
	return out
}

// rowOperators are those that work on whole rows: i varies the parameters that need not be tried
// with every shape.
func rowOperators(add func(ops ...op.Op)) {
	for _, cols := range []int{1, 7, 32, 97, 256} {
		for i, rows := range []int{1, 3, 17} {
			add(
				op.Op{Kind: op.Norm, M: rows, N: cols, Eps: 1e-5},
				op.Op{Kind: op.LayerNorm, M: rows, N: cols, Eps: 1e-5},
				op.Op{Kind: op.QuantRows, M: rows, N: cols},
				op.Op{Kind: op.QuantRows, M: rows, N: cols, Static: true},
				op.Op{Kind: op.QuantRows, M: rows, N: cols, Static: true, Scales: 2 + 2*(rows%2)},
				op.Op{Kind: op.Add, M: rows, N: cols},
				op.Op{Kind: op.Copy, M: rows, N: cols},
				op.Op{Kind: op.SelectRow, M: rows, N: cols},
				op.Op{Kind: op.GLU, M: rows, N: cols, Interleave: cols, Act: op.SiLU},
				op.Op{Kind: op.GLU, M: rows, N: cols, Interleave: cols, Act: op.Acts[1+i], Fan: 3 * i},
				op.Op{Kind: op.Activate, M: rows, N: cols, Act: op.Acts[i]},
				op.Op{Kind: op.Activate, M: rows, N: cols, Act: op.Acts[3-i], Fan: 1 + i},
				op.Op{Kind: op.Gate, M: rows, N: cols},
				op.Op{Kind: op.Softcap, M: rows, N: cols, Cap: []float64{30, 0.5, 1e-3}[i]},
				op.Op{Kind: op.Clip, M: rows, N: cols, Cap: []float64{30, 0.5, 1e-3}[i]},
				op.Op{Kind: op.QuantRows, M: rows, N: cols, Fan: 1 + 3*i},
				op.Op{Kind: op.QuantRows, M: rows, N: cols, Fan: 2 + i, Static: true},
				op.Op{Kind: op.QuantRows, M: rows, N: cols, Fan: 2 + i, Static: true, Scales: 2},
				op.Op{Kind: op.Copy, M: rows, N: cols, Fan: 8 - i},
				op.Op{Kind: op.Combine, M: rows, N: cols, Fan: []int{1, 2, 8}[i]},
				op.Op{Kind: op.Combine, M: rows, N: cols, Fan: []int{5, 4, 3}[i]},
			)
			for _, elem := range []op.Type{op.F32, op.F16, op.BF16} {
				add(op.Op{Kind: op.Embed, M: rows, K: 53, N: cols, Table: elem},
					op.Op{Kind: op.Embed, M: rows, K: 53, N: cols, Table: elem, Scale: 11.3})
			}
			add(op.Op{Kind: op.Embed, M: rows, K: 53, N: cols, Scheme: op.I32Q8C},
				op.Op{Kind: op.Embed, M: rows, K: 32, N: cols, Scheme: op.I32Q8C, Scale: 11.3},
				op.Op{Kind: op.Embed, M: rows, K: 53, N: cols, Scheme: op.I32Q6C, Scale: 11.3})
		}
	}
	add(op.Op{Kind: op.GLU, M: 5, N: 96, Interleave: 16, Act: op.SiLU},
		op.Op{Kind: op.GLU, M: 2, N: 6, Interleave: 1, Act: op.SiLU},
		op.Op{Kind: op.Norm, M: 19, N: 1024}, op.Op{Kind: op.LayerNorm, M: 19, N: 1024},
		op.Op{Kind: op.QuantRows, M: 19, N: 1024}, op.Op{Kind: op.QuantRows, M: 19, N: 1024, Static: true},
		op.Op{Kind: op.Add, M: 19, N: 1024},
		op.Op{Kind: op.GLU, M: 19, N: 1024, Interleave: 16, Act: op.SiLU}, op.Op{Kind: op.Copy, M: 19, N: 1024},
		op.Op{Kind: op.Combine, M: 19, N: 1024, Fan: 4},
		op.Op{Kind: op.Softcap, M: 19, N: 1024, Cap: 50}, op.Op{Kind: op.Gate, M: 19, N: 1024})
	for _, act := range op.Acts {
		add(op.Op{Kind: op.GLU, M: 5, N: 96, Interleave: 32, Act: act},
			op.Op{Kind: op.GLU, M: 5, N: 96, Interleave: 3, Act: act, Fan: 2},
			op.Op{Kind: op.Activate, M: 19, N: 1024, Act: act},
			op.Op{Kind: op.Activate, M: 7, N: 330, Act: act, Fan: 4})
	}
}

// products are matrix products of every scheme; schemes with several static scales differ from
// others in their quantiser only, and are tried in blocks.
func products(add func(ops ...op.Op)) {
	for _, scheme := range op.Schemes {
		if scheme.Scales() > 1 {
			continue
		}
		// Shapes are M, K, N: decoding and prefill, below and above a tile, with and without a remainder.
		for i, sh := range [][3]int{{1, 1, 1}, {1, 64, 32}, {1, 97, 131}, {2, 31, 33}, {3, 5, 7}, {5, 100, 64},
			{13, 128, 97}, {1, 512, 672}, {21, 96, 160}, {33, 64, 32}} {
			operator := op.Op{Kind: op.MatMul, M: sh[0], K: sh[1], N: sh[2], Scheme: scheme}
			add(operator)
			if operator.Bias = true; i%2 == 1 || i == 0 {
				add(operator)
			}
		}
		for i, sh := range [][3]int{{1, 97, 131}, {6, 64, 32}} {
			// Each form that a compiler may give the product is tried in two shapes.
			for _, form := range op.FormsOf(sh[0], op.FormClasses) {
				add(op.Op{Kind: op.MatMul, M: sh[0], K: sh[1], N: sh[2], Scheme: scheme, Form: form, Bias: i == 1})
			}
		}
		expertProducts(add, scheme)
	}
	// Decoding and prefill; fewer columns than a task computes, a remainder, and several tasks.
	for _, sh := range [][3]int{{1, 1, 1}, {1, 64, 32}, {7, 97, 131}, {2, 300, 33}, {33, 96, 672}, {64, 2048, 96}} {
		add(op.Op{Kind: op.OutlierMatMul, M: sh[0], K: sh[1], N: sh[2], Scheme: op.A32W16})
		add(op.Op{Kind: op.OutlierMatMul, M: sh[0], K: sh[1], N: sh[2], Scheme: op.A32W16, Channels: min(sh[1], 3)})
	}
}

// kernelForms are products by each variant of kernels that a processor claims: decoding, and blocks of rows and columns
// with a remainder.
func kernelForms(caps *driver.Capabilities) (list []op.Op) {
	for _, scheme := range caps.Schemes {
		for _, form := range caps.Forms[scheme] {
			if form.Kernel() == "" {
				continue
			}
			for i, shape := range [][3]int{{21, 96, 160}, {1, 97, 131}, {6, 64, 32}} {
				list = append(list, op.Op{Kind: op.MatMul, M: shape[0], K: shape[1], N: shape[2], Scheme: scheme,
					Form: form, Bias: i == 0})
			}
		}
	}
	return list
}

// expertProducts multiply each row by the matrices of the experts chosen for it.
func expertProducts(add func(ops ...op.Op), scheme op.Scheme) {
	for _, sh := range []struct {
		m, fan, experts, k, n int
	}{
		{1, 1, 1, 1, 1}, {1, 2, 16, 64, 96}, {1, 8, 16, 33, 131}, {3, 1, 4, 100, 31}, {5, 8, 16, 32, 64},
		{17, 2, 3, 97, 33}, {9, 3, 1, 40, 160}, {50, 8, 3, 64, 32}, {11, 6, 8, 96, 300},
	} {
		operator := op.Op{Kind: op.ExpertMatMul, M: sh.m, Fan: sh.fan, Experts: sh.experts, K: sh.k, N: sh.n,
			Scheme: scheme}
		add(operator)
		// Spread: all experts of a token read its one row, as the first product of an MLP does.
		operator.Spread = true
		add(operator)
		// beside groups, some rows are sent to no expert
		operator.Sent = max(1, sh.m*sh.fan/2)
		add(operator)
	}
	for _, sh := range [][4]int{{1, 1, 1, 1}, {2, 1, 33, 131}, {4, 3, 64, 96}, {3, 16, 100, 31}, {1, 40, 96, 300}} {
		add(op.Op{Kind: op.GroupMatMul, M: sh[0] * sh[1], Experts: sh[0], K: sh[2], N: sh[3], Scheme: scheme})
	}
}

// groups move rows to the slots of experts and sum what was computed of them: one row and many, slots with less and
// more room than rows, all experts and some of them, dropped rows and exact ones.
func groups(add func(ops ...op.Op)) {
	for _, sh := range []struct {
		m, fan, experts int
		groups          op.Groups
	}{
		{1, 1, 1, "1x1"}, {3, 2, 4, "1x2,2x1"}, {17, 2, 3, "2x4"}, {50, 8, 16, "4x32,8x16"}, {9, 3, 16, "16x1"},
		{33, 4, 8, "1x100"},
	} {
		operator := op.Op{Kind: op.Dispatch, M: sh.m, N: 40, Experts: sh.experts, Fan: sh.fan, Groups: sh.groups,
			Sent: 1}
		add(operator)
		for _, operator.Salience = range op.Saliences {
			operator.K = map[string]int{op.SalienceNorm: 24, op.SalienceWeight: sh.fan}[operator.Salience]
			operator.Sent = 1
			add(operator)
			if sh.groups.Slots() == sh.experts {
				operator.Sent = 0
				add(operator)
			}
		}
		operator = op.Op{Kind: op.Collect, M: sh.m, N: 40, Fan: sh.fan, Groups: sh.groups, Sent: 1}
		add(operator)
		operator.Sent = 0
		add(operator)
	}
}

// routers choose experts; a SparseMixer chooses at most two.
func routers(add func(ops ...op.Op)) {
	for _, router := range op.Routers {
		for _, sh := range [][3]int{{1, 1, 1}, {1, 16, 2}, {3, 7, 1}, {17, 16, 8}, {5, 60, 4}, {19, 128, 8}} {
			operator := op.Op{Kind: op.Route, M: sh[0], Experts: sh[1], Fan: sh[2], Router: router}
			if router == op.RouteSparseMixer {
				// The mixer compares logits with the largest within a relative jitter.
				operator.Fan, operator.Jitter = min(2, operator.Fan), 0.01*float64(sh[0])
			}
			add(operator)
		}
	}
}

// headOperators are those of rows of heads, in the given shape: rope in its variants, norms of
// heads, caches and attention.
func headOperators(add func(ops ...op.Op), shape op.Op) {
	operator := shape
	operator.Kind = op.Rope
	// turn adds the operator, and with several rows also its form for a batch
	turn := func() {
		add(operator)
		if batch := operator; shape.M > 1 {
			batch.Batch = true
			add(batch)
		}
	}
	turn()
	// Long contexts switch to other frequencies from 40 positions on, or stretch them (NTK).
	operator.Amplitude, operator.LongFrom, operator.LongAmplitude = 0.8, 40, 1.2
	turn()
	if operator.HeadDim > 4 {
		operator.RotaryDim = operator.HeadDim / 4 * 2
		turn()
		operator.LongAmplitude, operator.NTK = 0, 4
		turn()
		operator.RotaryDim, operator.LongFrom, operator.NTK = 4, 0, 0
		turn()
	}
	operator = shape
	operator.Kind, operator.Eps = op.QKNorm, 1e-6
	add(operator)
	operator.Joint = true
	add(operator)
	for _, kv := range op.CacheTypes {
		operator := shape
		operator.Kind, operator.KV = op.KVAppend, kv
		add(operator)
		operator.Kind, operator.Context = op.Attention, testContext
		add(operator)
		// Windows of one position, within the context, of its size and beyond it.
		operator.Window = map[int]int{1: 1, 5: testContext, 19: 23}[shape.M]
		add(operator)
		operator.Window, operator.Cap, operator.Scale = operator.Window+testContext/2, 5, 0.11
		add(operator)
		if shape.M == 1 {
			continue
		}
		operator.Batch = true
		add(operator)
		// A batch is tried with and without a window, and its cache with rows of sequences of their own.
		operator.Window, operator.Cap, operator.Scale = 0, 0, 0
		add(operator)
		operator.Kind, operator.Context = op.KVAppend, 0
		add(operator)
	}
}

// longContexts are attention over several blocks of keys, with windows shorter and longer than a
// block.
func longContexts(add func(ops ...op.Op)) {
	for _, dim := range []int{20, 64} {
		for _, window := range []int{30, 130, 500} {
			operator := op.Op{Kind: op.Attention, M: 18, Heads: 4, KVHeads: 2, HeadDim: dim, KV: op.F16, Context: 420,
				Window: window}
			add(operator)
			operator.KV, operator.Cap = op.F32, 20
			add(operator)
			operator.KV = op.BF16
			add(operator)
		}
	}
}

// blocks returns pieces of a transformer as plans contain them, with the given number of rows, by
// name.
func blocks(caps *driver.Capabilities, rows int) map[string]op.Graph {
	b := &blockMaker{layouts: caps.Layouts, rows: rows, out: map[string]op.Graph{}}
	b.ends()
	for _, kvType := range op.CacheTypes {
		b.attention(kvType)
	}
	for _, scheme := range op.Schemes {
		b.mlp(scheme)
		b.experts(scheme)
	}
	return b.out
}

// Sizes of blocks: columns of the residual stream and inside an MLP, query and key heads and their
// columns, rows of the vocabulary, experts, and how many of these a row is sent to.
const hidden, ffn, heads, kvHeads, headDim, vocabulary, experts, fan = 64, 96, 4, 2, 16, 41, 6, 3

// blockMaker makes one block after the other: begin starts one, end stores it under a name.
type blockMaker struct {
	layouts map[string]string
	rows    int
	block   graph
	out     map[string]op.Graph
}

// begin starts a block with its values: inputs, outputs, and those between its nodes.
func (b *blockMaker) begin(in, out []op.Value, temps ...op.Value) {
	b.block = graph{layouts: b.layouts, Graph: op.Graph{Inputs: in, Outputs: out, Temps: temps}}
}

// end stores the block under a name, which the suite shows as that of a test.
func (b *blockMaker) end(name string) { b.out[name] = b.block.Graph }

// f32 returns a float32 value [rows, cols].
func (b *blockMaker) f32(name string, cols int) op.Value { return value(name, op.F32, b.rows, cols) }

// quantised adds a node that quantises the rows of a value, and returns the names of codes and
// scales.
func (b *blockMaker) quantised(quant op.Op, in string) []string {
	codes, scales := value(in+"8", op.U8, quant.Rows(), quant.N), value(in+"s", op.F32, quant.Rows(), 1)
	b.block.Temps = append(b.block.Temps, codes, scales)
	b.block.node(quant, names(in), static(quant, in), names(codes.Name, scales.Name))
	return names(codes.Name, scales.Name)
}

// ends makes the two ends of a model: the embedding, and the head with its norm.
func (b *blockMaker) ends() {
	b.begin([]op.Value{value("ids", op.I32, b.rows, 1)}, []op.Value{b.f32("x", hidden), b.f32("n", hidden)})
	b.block.node(op.Op{Kind: op.Embed, M: b.rows, K: vocabulary, N: hidden, Table: op.F32}, names("ids"),
		names("table"), names("x"))
	b.block.node(op.Op{Kind: op.Norm, M: b.rows, N: hidden, Eps: 1e-5}, names("x"), names("gain"), names("n"))
	b.end("embed")

	b.begin([]op.Value{b.f32("x", hidden)}, []op.Value{value("logits", op.F32, 1, vocabulary)},
		value("last", op.F32, 1, hidden), value("n", op.F32, 1, hidden))
	b.block.node(op.Op{Kind: op.SelectRow, M: b.rows, N: hidden}, names("x"), nil, names("last"))
	b.block.node(op.Op{Kind: op.Norm, M: 1, N: hidden, Eps: 1e-5}, names("last"), names("gain"), names("n"))
	b.block.node(op.Op{Kind: op.MatMul, M: 1, K: hidden, N: vocabulary, Scheme: op.A32W32}, names("n"),
		names("lm_head"), names("logits"))
	b.end("head")
}

// attention makes rope, cache and attention, of one sequence and of a batch; and the same with
// norms of heads, partial and long rope, a window and capped scores.
func (b *blockMaker) attention(kvType op.Type) {
	qkv := op.QKVColumns(heads, kvHeads, headDim)
	// The fused row is an input that rope changes and that is not read afterwards.
	ops := op.Op{Kind: op.Rope, M: b.rows, Heads: heads, KVHeads: kvHeads, HeadDim: headDim}
	chain := func(batch bool) {
		b.begin([]op.Value{b.f32("qkv", qkv)}, []op.Value{b.f32("y", heads*headDim)})
		part := ops
		part.Batch = batch
		b.block.node(part, names("qkv"), names("invfreq"), names("qkv"))
		part.Kind, part.KV = op.KVAppend, kvType
		b.block.node(part, names("qkv"), nil, nil)
		part.Kind, part.Context = op.Attention, testContext
		b.block.node(part, names("qkv"), nil, names("y"))
	}
	chain(false)
	b.end("attention " + string(kvType))
	chain(true)
	b.end("attention of a batch " + string(kvType))

	// The same with everything in front of it and around it, in a sliding window.
	shape := op.Op{M: b.rows, Heads: heads, KVHeads: kvHeads, HeadDim: headDim}
	with := func(k op.Kind) op.Op { operator := shape; operator.Kind = k; return operator }
	b.begin([]op.Value{b.f32("qkv", qkv)}, []op.Value{b.f32("y", heads*headDim)})
	ops = with(op.QKNorm)
	ops.Eps = 1e-6
	b.block.node(ops, names("qkv"), names("qgain", "kgain"), names("qkv"))
	ops = with(op.Rope)
	ops.RotaryDim, ops.LongFrom, ops.LongAmplitude = 8, 20, 1.1
	b.block.node(ops, names("qkv"), names("invfreq"), names("qkv"))
	ops = with(op.KVAppend)
	ops.KV = kvType
	b.block.node(ops, names("qkv"), nil, nil)
	ops = with(op.Attention)
	ops.KV, ops.Context, ops.Window, ops.Cap, ops.Scale = kvType, testContext, 15, 10, 0.3
	b.block.node(ops, names("qkv"), nil, names("y"))
	b.end("window " + string(kvType))
}

// mlp makes a norm, a gated MLP and the residual sum.
func (b *blockMaker) mlp(scheme op.Scheme) {
	b.begin([]op.Value{b.f32("x", hidden)}, []op.Value{b.f32("y", hidden)}, b.f32("n", hidden), b.f32("h", 2*ffn),
		b.f32("a", ffn), b.f32("d", hidden))
	// product adds a matrix product, with its quantiser or its grid steps
	product := func(k, n int, in, weight, output string) {
		operator := op.Op{Kind: op.MatMul, M: b.rows, K: k, N: n, Scheme: scheme}
		if scheme.Grid() {
			b.block.node(operator, names(in), names(weight, weight+"_steps"), names(output))
			return
		}
		if !scheme.QuantisedRows() {
			b.block.node(operator, names(in), names(weight), names(output))
			return
		}
		b.block.node(operator, b.quantised(scheme.QuantRows(b.rows, k, 1), in), names(weight), names(output))
	}
	b.block.node(op.Op{Kind: op.Norm, M: b.rows, N: hidden, Eps: 1e-5}, names("x"), names("gain"), names("n"))
	product(hidden, 2*ffn, "n", "gate_up", "h")
	b.block.node(op.Op{Kind: op.GLU, M: b.rows, N: ffn, Interleave: 16, Act: op.SiLU}, names("h"), nil, names("a"))
	product(ffn, hidden, "a", "down", "d")
	b.block.node(op.Op{Kind: op.Add, M: b.rows, N: hidden}, names("x", "d"), nil, names("y"))
	b.end("mlp " + strings.ReplaceAll(string(scheme), "/", ":"))
}

// experts makes a mixture of experts, with a shared expert behind a gate.
func (b *blockMaker) experts(scheme op.Scheme) {
	wide := func(name string, t op.Type, cols int) op.Value { return value(name, t, b.rows*fan, cols) }
	b.begin([]op.Value{b.f32("x", hidden)}, []op.Value{b.f32("y", hidden)},
		b.f32("n", hidden), b.f32("logits", experts), value("ids", op.I32, b.rows, fan), b.f32("weights", fan),
		wide("h", op.F32, 2*ffn), wide("a", op.F32, ffn), wide("d", op.F32, hidden), b.f32("s", hidden),
		b.f32("g", 1), b.f32("shared", hidden))
	product := func(k, n int, spread bool, in, weight, output string) {
		operator := op.Op{Kind: op.ExpertMatMul, M: b.rows, K: k, N: n, Scheme: scheme, Experts: experts, Fan: fan,
			Spread: spread}
		if !scheme.QuantisedRows() {
			b.block.node(operator, names(in, "ids"), names(weight), names(output))
			return
		}
		quant := scheme.QuantRows(b.rows, k, fan)
		if spread {
			quant.Fan = 0
		}
		b.block.node(operator, append(b.quantised(quant, in), "ids"), names(weight), names(output))
	}
	b.block.node(op.Op{Kind: op.LayerNorm, M: b.rows, N: hidden, Eps: 1e-5}, names("x"), names("gain", "bias"),
		names("n"))
	b.block.node(op.Op{Kind: op.MatMul, M: b.rows, K: hidden, N: experts, Scheme: op.A32W32}, names("n"),
		names("router"), names("logits"))
	b.block.node(op.Op{Kind: op.Route, M: b.rows, Experts: experts, Fan: fan, Router: op.RouteSoftmaxNorm},
		names("logits"), nil, names("ids", "weights"))
	product(hidden, 2*ffn, true, "n", "gate_up", "h")
	b.block.node(op.Op{Kind: op.GLU, M: b.rows, N: ffn, Interleave: 32, Act: op.GELUTanh, Fan: fan}, names("h"), nil,
		names("a"))
	product(ffn, hidden, false, "a", "down", "d")
	b.block.node(op.Op{Kind: op.Combine, M: b.rows, N: hidden, Fan: fan}, names("d", "weights"), nil, names("s"))
	b.block.node(op.Op{Kind: op.MatMul, M: b.rows, K: hidden, N: 1, Scheme: op.A32W32, Bias: true}, names("n"),
		names("gate", "gate_bias"), names("g"))
	b.block.node(op.Op{Kind: op.Gate, M: b.rows, N: hidden}, names("n", "g"), nil, names("shared"))
	b.block.node(op.Op{Kind: op.Add, M: b.rows, N: hidden}, names("s", "shared"), nil, names("s"))
	b.block.node(op.Op{Kind: op.Add, M: b.rows, N: hidden}, names("x", "s"), nil, names("y"))
	b.end("moe " + strings.ReplaceAll(string(scheme), "/", ":"))
}
