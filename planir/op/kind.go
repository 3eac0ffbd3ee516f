package op

import (
	"fmt"
	"strconv"
)

// Kind names an operator. Its row in the table below answers what hetc asks about it.
type Kind string

const (
	Embed         Kind = "embed"
	SelectRow     Kind = "select_row"
	Norm          Kind = "norm"
	LayerNorm     Kind = "layer_norm"
	QuantRows     Kind = "quant_rows"
	MatMul        Kind = "matmul"
	ExpertMatMul  Kind = "expert_matmul"
	OutlierMatMul Kind = "outlier_matmul"
	GroupMatMul   Kind = "group_matmul"
	Dispatch      Kind = "dispatch"
	Collect       Kind = "collect"
	Route         Kind = "route"
	Combine       Kind = "combine"
	QKNorm        Kind = "qk_norm"
	Rope          Kind = "rope"
	KVAppend      Kind = "kv_append"
	Attention     Kind = "attention"
	Estimate      Kind = "estimate"
	Select        Kind = "select"
	SparseAttend  Kind = "sparse_attention"
	GLU           Kind = "glu"
	Activate      Kind = "activate"
	Gate          Kind = "gate"
	Softcap       Kind = "softcap"
	Clip          Kind = "clip"
	Add           Kind = "add"
	Copy          Kind = "copy"
)

// row answers every question that hetc asks about a kind of operator. M is always the number of tokens. Operands have
// one row per token, or Fan rows where each token is computed by several experts; shapes in does are those of Fan = 1
// unless they name it.
type row struct {
	kind Kind
	does string // what it computes, with the shapes of its operands: the documentation

	needs []string                           // fields of Op that are dimensions of at least 1
	takes []string                           // fields that may be set beside them
	check func(o Op) error                   // what else must hold between the fields, nil: nothing
	sig   func(o Op) Signature               // its operands
	shape func(o Op, role string) (k, n int) // of the weight with a role that is plain float32 rows, nil: there is none
	flops func(o Op) int64                   // multiplications and additions, nil: none
	bytes func(o Op) int64                   // memory traffic with nothing cached
	key   func(o Op) string                  // see Op.Key

	scaling scaling // what its time depends on
	fields  []rule  // what needs and takes say of every field of Op: filled in by rowOf
	rowwise bool    // a row of the result depends on the same row of each operand alone
	noRows  string  // why it cannot be divided by rows, "": it can
	// columns is how many columns of each operand a column of the result depends on, 0: on all of them. nil: the result
	// cannot be divided by columns.
	columns []int
	unit    columnUnit
	along   Axis // what it can be divided along besides, "": nothing
	// anyStride: every driver reads and writes ranges of columns of it, whatever else it takes of wider buffers.
	anyStride bool
	// heads is how many columns of each input, weight and output belong to one key head, of a kind that is divided
	// along key heads.
	heads func(o Op) (in, w, out []int)
}

// Axis is a dimension that only few kinds can be divided along.
type Axis string

const (
	AlongK     Axis = "k"     // the reduction, into partial sums
	AlongHeads Axis = "heads" // key heads
)

// columnUnit is what a range of columns of a result is a multiple of.
type columnUnit int

const (
	unitTile       columnUnit = iota // the tile of the processor: vectors end where they do undivided
	unitInterleave                   // Op.Interleave
	unitOne                          // any column
)

// table has a row for each kind, in the order of Kinds.
var table = []row{
	{
		kind: Embed, does: "Looks rows up: ids i32 [M,1], table [V=K,N] -> f32 [M,N]. With a scheme the table is the packed weight [N,V] of a tied head, whose columns are the rows.",
		needs: []string{"k", "n"}, takes: []string{"scheme", "table", "scale"}, check: checkEmbed,
		sig: func(o Op) Signature {
			return Signature{In: []Value{{"ids", I32, o.M, 1}}, W: []string{"table"},
				Out: []Value{floats("y", o.M, o.N)}}
		},
		bytes: func(o Op) int64 {
			// four values of a column, then those of the tile's other columns: a line of 64 bytes for each four
			if o.Scheme != "" {
				return cells(o.M, o.N) * (64/4 + 4)
			}
			return cells(o.M, o.N) * int64(o.Table.Bytes()+4)
		},
		key:     func(o Op) string { return fmt.Sprintf("embed[%d]x[%d,%d] %s%s", o.M, o.K, o.N, o.Table, o.Scheme) },
		scaling: byProduct(func(o Op) Op { return Op{Scheme: o.Scheme, Table: o.Table} }),
	},
	{
		kind: SelectRow, does: "Copies one row: f32 [M,N] -> f32 [1,N]. The row index is the scalar Row of the call.",
		needs: []string{"n"},
		sig: func(o Op) Signature {
			return Signature{In: []Value{floats("x", o.M, o.N)}, Out: []Value{floats("y", 1, o.N)}}
		},
		bytes:   func(o Op) int64 { return 8 * int64(o.N) },
		scaling: byRows, noRows: cacheFirst,
	},
	{
		kind: Norm, does: "Normalises the root mean square of rows: f32 [M,N], gain f32 [1,N] -> f32 [M,N].",
		needs: []string{"n"}, takes: []string{"eps"},
		sig: elementwise("gain"), shape: gains, flops: perElement(4), bytes: perElement(8),
		scaling: byRows, rowwise: true,
	},
	{
		kind: LayerNorm, does: "Normalises mean and variance of rows: f32 [M,N], gain f32 [1,N], bias f32 [1,N] -> f32 [M,N].",
		needs: []string{"n"}, takes: []string{"eps"},
		sig: elementwise("gain", "bias"), shape: gains, flops: perElement(6), bytes: perElement(8),
		scaling: byRows, rowwise: true,
	},
	{
		kind: QuantRows, does: "Quantises rows to 8 bit with a scale each: f32 [M,N] -> u8 [M,N], f32 [M,1]. With static the scale of every row is " +
			"the weight f32 [1,1], and what exceeds 127 times it saturates. With several scales the weight is f32 [1,scales], and a row has the one that StaticScale names.",
		needs: []string{"n"}, takes: []string{"fan", "static", "scales"}, check: checkQuantRows,
		sig: func(o Op) Signature {
			s := Signature{In: []Value{floats("x", o.Rows(), o.N)},
				Out: []Value{{"y", U8, o.Rows(), o.N}, floats("scale", o.Rows(), 1)}}
			if o.Static {
				s.W = []string{"scale"}
			}
			return s
		},
		shape:   func(o Op, _ string) (int, int) { return 1, max(1, o.Scales) },
		flops:   perElement(6),
		bytes:   func(o Op) int64 { return 5*cells(o.Rows(), o.N) + 4*int64(o.Rows()) },
		scaling: byRows, rowwise: true,
	},
	{
		kind: MatMul, does: "Multiplies by a weight: activations [M,K] (f32, or u8 with scales [M,1]) x weight [K,N] -> f32 [M,N], with bias plus a row f32 [1,N]. " +
			"Under a scheme on a grid the weight steps f32 [2,N] holds two steps in all its columns: x counts as the nearest multiple of steps[0], at most GridMax of them, " +
			"and y is rounded to one of steps[1] likewise. Under a half-precision scheme x and y are rounded to f16.",
		needs: []string{"k", "n"}, takes: []string{"scheme", "bias", "form"}, check: checkMatMul,
		sig: matMulOperands,
		shape: func(o Op, role string) (int, int) {
			if role == "steps" {
				return 2, o.N
			}
			return 1, o.N
		},
		flops: productFlops, bytes: func(o Op) int64 { return productBytes(o, o.M, 1) }, key: matMulKey,
		scaling: byProduct(func(o Op) Op { return Op{Scheme: o.Scheme, Bias: o.Bias, Form: o.Form} }),
		columns: []int{0}, along: AlongK,
	},
	{
		kind: ExpertMatMul, does: "Multiplies each token by the weights of the experts chosen for it: activations (f32, or u8 with scales), [M,K] with spread, else [M*Fan,K], " +
			"and ids i32 [M,Fan] x weight [Experts,K,N] -> f32 [M*Fan,N]. Row r*Fan+j of the result belongs to token r and expert ids[r,j]. With sent, ids may be -1: such a row of the result is 0.",
		needs: []string{"k", "n", "experts", "fan"}, takes: []string{"scheme", "spread", "sent"}, check: checkExpertMatMul,
		sig: func(o Op) Signature {
			in := append(activations(o, o.inputRows()), Value{"ids", I32, o.M, o.Fan})
			return Signature{In: in, W: []string{"weight"}, Out: []Value{floats("y", o.Rows(), o.N)}}
		},
		flops: func(o Op) int64 { return productFlops(o.priced()) },
		// of at most M*Fan experts
		bytes: func(o Op) int64 {
			o = o.priced()
			return productBytes(o, o.inputRows(), min(o.Rows(), o.Experts))
		},
		key: func(o Op) string {
			return fmt.Sprintf("expert_matmul[%d,%d]x[%d,%d,%d] %s fan=%d", o.M, o.K, o.Experts, o.K, o.N, o.Scheme,
				o.Fan) + when(o.Spread, " spread") + when(o.Sent > 0, fmt.Sprintf(" sent=%d", o.Sent))
		},
		scaling: byExpertProduct,
		columns: []int{0},
	},
	{
		kind: GroupMatMul, does: "Multiplies rows by several matrices: activations [M,K] (f32, or u8 with scales), whose first M/Experts rows belong to the first of Experts weights [K,N], " +
			"the next to the second, and so on -> f32 [M,N]. Its rows are those that a group of experts has reserved (NPUMoE 4.2).",
		needs: []string{"k", "n", "experts", "scheme"}, check: checkGroupMatMul,
		sig: func(o Op) Signature {
			s := Signature{In: activations(o, o.M), Out: []Value{floats("y", o.M, o.N)}}
			for i := range o.Experts {
				s.W = append(s.W, fmt.Sprintf("weight%d", i))
			}
			return s
		},
		flops: productFlops, bytes: func(o Op) int64 { return productBytes(o, o.M, o.Experts) },
		key: func(o Op) string {
			return fmt.Sprintf("group_matmul[%d,%d]x%d[%d,%d] %s", o.M, o.K, o.Experts, o.K, o.N, o.Scheme)
		},
		scaling: byProduct(func(o Op) Op { return Op{Scheme: o.Scheme, Experts: o.Experts} }),
		noRows:  "its rows are those of several matrices",
	},
	{
		kind: Dispatch, does: "Moves rows to the slots of their experts (NPUMoE 4): x f32 [M,N], ids i32 [M,Fan], with k what the rule salience reads, f32 [M,K], weight slots f32 [1,slots], the expert in each slot -> " +
			"for each of groups f32 [slots*rows,N], the rows of its slots in the order of tokens and zeros behind them; places i32 [M,Fan], the row of all groups together that holds a row, -1 for none; " +
			"with sent also rest i32 [M,Fan], the expert of a row that no group holds, else -1. Where an expert is sent more rows than its slot has, the first are moved; " +
			"with salience the most salient, and the others are dropped: they are in no group and not in rest.",
		needs: []string{"n", "experts", "fan", "groups"}, takes: []string{"k", "sent", "salience"}, check: checkGroups,
		sig: func(o Op) Signature {
			s := Signature{In: []Value{floats("x", o.M, o.N), {"ids", I32, o.M, o.Fan}}, W: []string{"slots"}}
			if o.K > 0 {
				s.In = append(s.In, floats("salience", o.M, o.K))
			}
			s.Out = append(groupRows(o), Value{"places", I32, o.M, o.Fan})
			if o.Sent > 0 {
				s.Out = append(s.Out, Value{"rest", I32, o.M, o.Fan})
			}
			return s
		},
		shape: func(o Op, _ string) (int, int) { return 1, o.Groups.Slots() },
		flops: func(o Op) int64 { return cells(o.M, o.Fan) + 2*cells(o.M, o.K) },
		bytes: func(o Op) int64 {
			return 4*cells(o.M+o.Groups.Rows(), o.N) + 4*cells(o.M, o.K) + 12*cells(o.M, o.Fan)
		},
		key: func(o Op) string {
			return fmt.Sprintf("dispatch[%d,%d] fan=%d groups=%s", o.M, o.N, o.Fan, o.Groups) +
				when(o.Salience != "", " "+o.Salience) + when(o.K > 0, fmt.Sprintf("=%d", o.K))
		},
		scaling: byGroups, noRows: anywhere,
	},
	{
		kind: Collect, does: "Sums what a token's experts computed, wherever it is, in the order of combine: for each of groups f32 [slots*rows,N], with sent rest f32 [M*Fan,N], places i32 [M,Fan] as " +
			"dispatch made them, weights f32 [M,Fan] -> f32 [M,N]. A row without a place is that of rest, without rest 0.",
		needs: []string{"n", "fan", "groups"}, takes: []string{"sent"}, check: checkGroups,
		sig: func(o Op) Signature {
			s := Signature{In: groupRows(o), Out: []Value{floats("y", o.M, o.N)}}
			if o.Sent > 0 {
				s.In = append(s.In, floats("rest", o.Rows(), o.N))
			}
			s.In = append(s.In, Value{"places", I32, o.M, o.Fan}, floats("weights", o.M, o.Fan))
			return s
		},
		flops: perElement(2), bytes: func(o Op) int64 { return 4*cells(o.Rows(), o.N) + 4*cells(o.M, o.N) },
		key:     func(o Op) string { return fmt.Sprintf("collect[%d,%d] fan=%d groups=%s", o.M, o.N, o.Fan, o.Groups) },
		scaling: byGroups, noRows: anywhere,
	},
	{
		kind: OutlierMatMul, does: "Multiplies what a static scale cuts off (llm.npu 3.3): x f32 [M,K], weight [K,N], scale f32 [1,1] -> f32 [M,N], the product of " +
			"x - min(max(x,-127*scale),127*scale) and the weight, bfloat16 in plain rows. Columns of x in which no row exceeds 127*scale are left out. Where more than Channels columns (0: OutlierChannels(K)) exceed it, " +
			"the product is as right, and slower.",
		needs: []string{"k", "n", "scheme"}, takes: []string{"channels"}, check: checkOutlierMatMul,
		sig: func(o Op) Signature {
			return Signature{In: []Value{floats("x", o.M, o.K)}, W: []string{"weight", "scale"},
				Out: []Value{floats("y", o.M, o.N)}}
		},
		shape: func(o Op, _ string) (int, int) { return 1, 1 },
		// all of x is looked at, and some of its columns are multiplied
		flops: func(o Op) int64 { return cells(o.M, o.K) + 2*cells(o.M, o.Gathered())*int64(o.N) },
		bytes: func(o Op) int64 {
			return 4*cells(o.M, o.K) + WeightBytes(o.Scheme.Weight(), o.Gathered(), o.N) + 4*cells(o.M, o.N)
		},
		key: func(o Op) string {
			return fmt.Sprintf("outlier_matmul[%d,%d]x[%d,%d] %s", o.M, o.K, o.K, o.N, o.Scheme) +
				when(o.Channels > 0, fmt.Sprintf(" channels=%d", o.Channels))
		},
		scaling: byProduct(func(o Op) Op { return Op{Scheme: o.Scheme, Channels: o.Channels} }),
		columns: []int{0},
	},
	{
		kind: Route, does: "Chooses experts by the rule router: logits f32 [M,Experts] -> ids i32 [M,Fan], weights f32 [M,Fan].",
		needs: []string{"experts", "fan"}, takes: []string{"router", "jitter"}, check: checkRoute,
		sig: func(o Op) Signature {
			return Signature{In: []Value{floats("logits", o.M, o.Experts)},
				Out: []Value{{"ids", I32, o.M, o.Fan}, floats("weights", o.M, o.Fan)}}
		},
		flops:   func(o Op) int64 { return cells(o.M, o.Experts) * int64(3+o.Fan) },
		bytes:   func(o Op) int64 { return int64(o.M) * int64(4*o.Experts+8*o.Fan) },
		key:     func(o Op) string { return fmt.Sprintf("route[%d,%d] fan=%d %s", o.M, o.Experts, o.Fan, o.Router) },
		scaling: byExperts,
	},
	{
		kind: Combine, does: "Sums what a token's experts computed: f32 [M*Fan,N], weights f32 [M,Fan] -> f32 [M,N].",
		needs: []string{"n", "fan"},
		sig: func(o Op) Signature {
			return Signature{In: []Value{floats("x", o.Rows(), o.N), floats("weights", o.M, o.Fan)},
				Out: []Value{floats("y", o.M, o.N)}}
		},
		flops: perElement(2), bytes: func(o Op) int64 { return 4*cells(o.Rows(), o.N) + 4*cells(o.M, o.N) },
		key:     func(o Op) string { return fmt.Sprintf("combine[%d,%d] fan=%d", o.M, o.N, o.Fan) },
		scaling: byTokens,
		rowwise: true, columns: []int{1, 0},
	},
	{
		kind: QKNorm, does: "Normalises the root mean square of every query and key head of a fused QKV row in place, with gains [1,HeadDim]; with joint of all query heads together and of all " +
			"key heads together, with gains of their whole widths: f32 [M,(Heads+2*KVHeads)*HeadDim].",
		needs: []string{"heads", "kv_heads", "head_dim"}, takes: []string{"joint", "eps"}, check: checkHeads,
		sig: inPlaceQKV("qgain", "kgain"), shape: headGains,
		flops: func(o Op) int64 { return 4 * cells(o.M, o.Heads+o.KVHeads) * int64(o.HeadDim) },
		bytes: func(o Op) int64 { return 8 * cells(o.M, o.Heads+o.KVHeads) * int64(o.HeadDim) },
		key: func(o Op) string {
			return fmt.Sprintf("qk_norm[%d] heads=%d/%d dim=%d", o.M, o.Heads, o.KVHeads, o.HeadDim) +
				when(o.Joint, " joint")
		},
		scaling: byHeads(func(o Op) Op { return Op{Joint: o.Joint} }),
	},
	{
		kind: Rope, does: "Rotates the query and key heads of a fused QKV row in place: f32 [M,(Heads+2*KVHeads)*HeadDim]. The first RotaryDim elements of a head are rotated, in two halves. " +
			"The frequencies [2,RotaryDim/2] or [1,RotaryDim/2] depend on the length of the sequence, see Op.LongFrom.",
		needs: []string{"heads", "kv_heads", "head_dim"},
		takes: []string{"batch", "rotary_dim", "amplitude", "long_from", "long_amplitude", "ntk"}, check: checkRope,
		sig: inPlaceQKV("invfreq"),
		shape: func(o Op, _ string) (int, int) {
			if o.LongFrom > 0 && o.NTK == 0 {
				return 2, o.Rotary() / 2
			}
			return 1, o.Rotary() / 2
		},
		flops: func(o Op) int64 { return 3 * cells(o.M, o.Heads+o.KVHeads) * int64(o.Rotary()) },
		bytes: func(o Op) int64 { return 8 * cells(o.M, o.Heads+o.KVHeads) * int64(o.Rotary()) },
		key: func(o Op) string {
			return fmt.Sprintf("rope[%d] heads=%d/%d dim=%d", o.M, o.Heads, o.KVHeads, o.HeadDim) +
				when(o.Rotary() != o.HeadDim, fmt.Sprintf(" rotary=%d", o.Rotary()))
		},
		scaling: byHeads(rotated),
	},
	{
		kind: KVAppend, does: "Stores the key and value heads of a fused QKV row at positions Pos..Pos+Rows-1 of the cache.",
		needs: []string{"kv_heads", "head_dim"}, takes: []string{"heads", "kv", "batch"}, check: checkHeads,
		sig: func(o Op) Signature { return Signature{In: []Value{fusedQKV(o)}, State: true} },
		bytes: func(o Op) int64 {
			return 2 * cells(o.M, o.KVHeads) * (4*int64(o.HeadDim) + o.KV.CacheRowBytes(o.HeadDim))
		},
		key: func(o Op) string {
			return fmt.Sprintf("kv_append[%d] heads=%d dim=%d kv=%s", o.M, o.KVHeads, o.HeadDim, o.KV)
		},
		scaling: byKeyHeads, along: AlongHeads,
		// Nothing is written but the cache, and what operators before it change in place.
		heads: func(o Op) (in, w, out []int) { return []int{o.groupColumns()}, nil, []int{o.groupColumns()} },
	},
	{
		kind: Attention, does: "Is causal attention over the cache: fused QKV [M,(Heads+2*KVHeads)*HeadDim] -> f32 [M,Heads*HeadDim]. Context is the number of cached positions a cost is asked for.",
		needs: []string{"heads", "kv_heads", "head_dim", "context"},
		takes: []string{"kv", "batch", "window", "cap", "scale"}, check: checkHeads,
		sig: func(o Op) Signature {
			return Signature{In: []Value{fusedQKV(o)}, Out: []Value{floats("y", o.M, o.Heads*o.HeadDim)}, State: true}
		},
		flops: func(o Op) int64 { return 4 * o.attended() * int64(o.Heads) * int64(o.HeadDim) },
		bytes: attentionBytes,
		key: func(o Op) string {
			return fmt.Sprintf("attention[%d] heads=%d/%d dim=%d context=%d kv=%s", o.M, o.Heads, o.KVHeads,
				o.HeadDim, o.Context, o.KV) +
				when(o.Window > 0, fmt.Sprintf(" window=%d", o.Window)) + when(o.Cap > 0, " cap") +
				when(o.Batch, " batch")
		},
		scaling: byContext, noRows: cacheFirst, along: AlongHeads,
		heads: func(o Op) (in, w, out []int) { return []int{o.groupColumns()}, nil, []int{o.group() * o.HeadDim} },
	},
	{
		kind: Estimate, does: "Estimates in 8 bits how much blocks of Block queries attend to each cached position (shadowAttn 3.2): fused QKV [M,(Heads+2*KVHeads)*HeadDim], " +
			"heads f32 [1,3*Heads] -> f32 [ceil(M/Block),Heads*Context]. heads holds for each query head the static scale of its queries, that of its keys (that of the first head that shares them counts), and the share of " +
			"positions that Select keeps. With buckets the scales of all heads that share a key are those times a pair of factors (op.ScaleFactors, shadowAttn 3.3): the pair with which the largest of their scales of queries, and the scale of the " +
			"keys, are nearest to what holds the largest query among the rows and the largest key that any of them sees before its block. A score is the product of query and key, each rounded to a multiple of its scale (a key of a q8 cache as it is stored), times both scales. " +
			"A position is worth the largest of its scores over the queries of the block, each less the query's largest score. Only positions that all queries of the block see and that " +
			"lie before the block are compared and written, and only for heads whose share leaves a choice: not where all are kept, or the first SparseFirst alone. " +
			"Density is the share of such heads that a cost is asked for, 0 all.",
		needs: []string{"heads", "kv_heads", "head_dim", "context", "block"},
		takes: []string{"kv", "window", "buckets", "least", "density"}, check: checkSparse,
		sig: func(o Op) Signature {
			return Signature{In: []Value{fusedQKV(o)}, W: []string{"heads"},
				Out: []Value{floats("scores", o.Blocks(), o.Heads*o.Context)}, State: true}
		},
		shape: sparseHeads,
		flops: func(o Op) int64 { return int64(2 * o.estimated() * float64(o.Heads) * float64(o.HeadDim)) },
		bytes: func(o Op) int64 {
			return int64(max(o.Context, o.M))*int64(o.KVHeads)*o.KV.CacheRowBytes(o.HeadDim) +
				4*cells(o.M, o.Heads)*int64(o.HeadDim) + 4*cells(o.Blocks(), o.Heads)*int64(max(o.Context, o.M))
		},
		key: sparseKey, scaling: byContext, noRows: cacheFirst, along: AlongHeads,
		anyStride: true, // the driver itself rounds what it reads, and pools what it writes
		heads: func(o Op) (in, w, out []int) {
			return []int{o.groupColumns()}, []int{sparseParts * o.group()}, []int{o.group() * o.Context}
		},
	},
	{
		kind: Select, does: "Selects what blocks of queries attend to: scores f32 [ceil(M/Block),Heads*Context], heads as of Estimate -> i32 [ceil(M/Block),Heads*(1+Context)], for each head the number of " +
			"positions and then these, ascending. Of V positions that a query of the block sees, ceil(share*V) are kept: the block's own, those that only some of its queries see (of a window), " +
			"and of the others the first SparseFirst and those with the largest scores, of equal ones the lower. Of the others alone the result speaks. " +
			"All are kept where V is at most Least, and at least Least where V is more and the share is above 0.",
		needs: []string{"heads", "kv_heads", "context", "block"}, takes: []string{"window", "least"}, check: checkSparse,
		sig: func(o Op) Signature {
			return Signature{In: []Value{floats("scores", o.Blocks(), o.Heads*o.Context)}, W: []string{"heads"},
				Out: []Value{{"positions", I32, o.Blocks(), o.Heads * (1 + o.Context)}}}
		},
		shape: sparseHeads,
		flops: func(o Op) int64 { return 2 * cells(o.Blocks(), o.Heads) * int64(max(o.Context, o.M)) },
		bytes: func(o Op) int64 { return 6 * cells(o.Blocks(), o.Heads) * int64(max(o.Context, o.M)) },
		key:   sparseKey, scaling: byContext, noRows: cacheFirst, along: AlongHeads,
		heads: func(o Op) (in, w, out []int) {
			return []int{o.group() * o.Context}, []int{sparseParts * o.group()}, []int{o.group() * (1 + o.Context)}
		},
	},
	{
		kind: SparseAttend, does: "Is Attention over selected positions: fused QKV [M,(Heads+2*KVHeads)*HeadDim], positions as of Select -> f32 [M,Heads*HeadDim]. A query attends to the positions selected for its block, " +
			"to those of the block up to its own, and to those of its window that only some queries of the block see. With rest the others that all queries of the block see and that lie before it count as one more position, " +
			"whose key and value are the means of those of all that lie there, selected or not, and whose weight in the softmax is that of as many as are not selected. Density is the mean share of positions that a cost is asked for.",
		needs: []string{"heads", "kv_heads", "head_dim", "context", "block", "density"},
		takes: []string{"kv", "window", "cap", "scale", "rest", "least"}, check: checkSparse,
		sig: func(o Op) Signature {
			return Signature{In: []Value{fusedQKV(o), {"positions", I32, o.Blocks(), o.Heads * (1 + o.Context)}},
				Out: []Value{floats("y", o.M, o.Heads*o.HeadDim)}, State: true}
		},
		flops: func(o Op) int64 { return 4 * o.kept() * int64(o.Heads) * int64(o.HeadDim) },
		bytes: func(o Op) int64 {
			gathered := 2 * o.kept() / int64(max(1, min(o.Block, o.M))) * int64(o.Heads) * o.KV.CacheRowBytes(o.HeadDim)
			return gathered + 8*cells(o.M, o.Heads)*int64(o.HeadDim)
		},
		key: sparseKey, scaling: byContext, noRows: cacheFirst, along: AlongHeads,
		heads: func(o Op) (in, w, out []int) {
			return []int{o.groupColumns(), o.group() * (1 + o.Context)}, nil, []int{o.group() * o.HeadDim}
		},
	},
	{
		kind: GLU, does: "Is a gated linear unit, act(gate)*up: f32 [M,2N], gate and up interleaved by Interleave columns -> f32 [M,N].",
		needs: []string{"n", "interleave"}, takes: []string{"act", "fan"}, check: checkGLU,
		sig: func(o Op) Signature {
			return Signature{In: []Value{floats("x", o.Rows(), 2*o.N)}, Out: []Value{floats("y", o.Rows(), o.N)}}
		},
		flops: perElement(6), bytes: perElement(12), key: activationKey,
		scaling: byGLU,
		rowwise: true, columns: []int{2}, unit: unitInterleave,
	},
	{
		kind: Activate, does: "Applies the activation function act to every element: f32 [M,N] -> f32 [M,N].",
		needs: []string{"n"}, takes: []string{"act", "fan"},
		sig: elementwise(), flops: perElement(5), bytes: perElement(8), key: activationKey,
		scaling: byAct, rowwise: true, columns: []int{1},
	},
	{
		kind: Gate, does: "Multiplies rows by the sigmoid of a number each: f32 [M,N], f32 [M,1] -> f32 [M,N].",
		needs: []string{"n"},
		sig: func(o Op) Signature {
			return Signature{In: []Value{floats("x", o.M, o.N), floats("gate", o.M, 1)},
				Out: []Value{floats("y", o.M, o.N)}}
		},
		flops: perElement(1), bytes: perElement(8), scaling: byRows, rowwise: true, columns: []int{1, 0},
	},
	{
		kind: Softcap, does: "Bounds elements smoothly, Cap*tanh(x/Cap): f32 [M,N] -> f32 [M,N].",
		needs: []string{"n"}, takes: []string{"cap"}, check: checkCap,
		sig: elementwise(), flops: perElement(5), bytes: perElement(8), scaling: byRowsOfAnyCap, rowwise: true,
		columns: []int{1},
	},
	{
		kind: Clip, does: "Bounds elements, min(max(x,-Cap),Cap): f32 [M,N] -> f32 [M,N].",
		needs: []string{"n"}, takes: []string{"cap"}, check: checkCap,
		sig: elementwise(), flops: perElement(1), bytes: perElement(8), scaling: byRowsOfAnyCap, rowwise: true,
		columns: []int{1},
	},
	{
		kind: Add, does: "Adds: f32 [M,N] + f32 [M,N] -> f32 [M,N].",
		needs: []string{"n"},
		sig: func(o Op) Signature {
			return Signature{In: []Value{floats("a", o.M, o.N), floats("b", o.M, o.N)},
				Out: []Value{floats("y", o.M, o.N)}}
		},
		flops: perElement(1), bytes: perElement(12), scaling: byRows, rowwise: true, columns: []int{1, 1},
		unit: unitOne,
	},
	{
		kind: Copy, does: "Moves a view: [M,N] -> [M,N] of the same type.",
		needs: []string{"n"}, takes: []string{"fan"},
		sig: elementwise(), bytes: perElement(8), scaling: byRows,
	},
}

// anywhere is why an operator on rows that are sorted by their experts cannot be divided by rows.
const anywhere = "a row may lie anywhere in the groups"

// cacheFirst is why an operator that looks back cannot be divided by rows.
const cacheFirst = "the cache of earlier rows must be complete first"

// Kinds lists every kind in a fixed order.
var Kinds = func() []Kind {
	kinds := make([]Kind, len(table))
	for i := range table {
		kinds[i] = table[i].kind
	}
	return kinds
}()

// rowOf finds the row of a kind, nil for an unknown one.
var rowOf = func() map[Kind]*row {
	rows := make(map[Kind]*row, len(table))
	for i := range table {
		table[i].fields = table[i].rules()
		rows[table[i].kind] = &table[i]
	}
	return rows
}()

// Has reports whether a field of Op, by its name in JSON, means something to the kind.
func (k Kind) Has(field string) bool {
	kind := rowOf[k]
	return kind != nil && kind.has(field)
}

// Rowwise reports whether a row of the result depends on the same row of each operand alone, so that neighbours of
// such kinds may take a row through all of them.
func (k Kind) Rowwise() bool {
	kind := rowOf[k]
	return kind != nil && kind.rowwise
}

// RowsFault is why an operator of the kind cannot be divided by rows, "" when it can.
func (k Kind) RowsFault() string {
	if kind := rowOf[k]; kind != nil {
		return kind.noRows
	}
	return ""
}

// Along is the axis besides rows and columns that an operator of the kind can be divided along, "": none.
func (k Kind) Along() Axis {
	if kind := rowOf[k]; kind != nil {
		return kind.along
	}
	return ""
}

// AnyStride reports whether every driver reads and writes ranges of columns of an operator of the kind, also one that
// else takes whole buffers only: a processor's strided_input and strided_output say nothing about it.
func (k Kind) AnyStride() bool {
	kind := rowOf[k]
	return kind != nil && kind.anyStride
}

// ReadsCache reports whether the kind reads what is cached of earlier positions.
func (k Kind) ReadsCache() bool { return k.Has("kv") && k.Has("context") }

// HeadColumns is how many columns of each input, weight and output of the operator belong to one key head, for a kind
// that is divided along them.
func (o Op) HeadColumns() (in, w, out []int) {
	if kind := rowOf[o.Kind]; kind != nil && kind.heads != nil {
		return kind.heads(o)
	}
	return nil, nil, nil
}

// ByColumns reports whether the result of the kind can be divided by columns.
func (k Kind) ByColumns() bool {
	kind := rowOf[k]
	return kind != nil && kind.columns != nil
}

// ColumnsRead is how many columns of an operand a column of the result depends on: 0 for all of them, and for a result
// that is not divided by columns. Column c depends on those from c*ColumnsRead on.
func (k Kind) ColumnsRead(operand int) int {
	kind := rowOf[k]
	if kind == nil || operand >= len(kind.columns) {
		return 0
	}
	return kind.columns[operand]
}

// ColumnUnit is what a range of columns of the result is a multiple of on a processor whose tile has that many columns.
func (o Op) ColumnUnit(tile int) int {
	switch kind := rowOf[o.Kind]; {
	case kind != nil && kind.unit == unitInterleave:
		return o.Interleave
	case kind != nil && kind.unit == unitOne:
		return 1
	}
	return max(1, tile)
}

// Key names everything of the operator that can influence its cost, in a stable form, e.g.
// "matmul[256,2048]x[2048,5632] a8t/q8c".
func (o Op) Key() string {
	if kind := rowOf[o.Kind]; kind != nil && kind.key != nil {
		return kind.key(o)
	}
	return fmt.Sprintf("%s[%d,%d]", o.Kind, o.Rows(), o.N) + when(o.Static, " static") +
		when(o.Scales > 0, fmt.Sprint(o.Scales))
}

// matMulKey is built by hand because solvers ask for it thousands of times a plan.
func matMulKey(operator Op) string {
	text := make([]byte, 0, 64)
	for i, dimension := range []int{operator.M, operator.K, operator.K, operator.N} {
		text = strconv.AppendInt(append(text, []string{"matmul[", ",", "]x[", ","}[i]...), int64(dimension), 10)
	}
	text = append(append(text, "] "...), operator.Scheme...)
	return string(text) + when(operator.Bias, " bias") + when(operator.Form != "", " "+string(operator.Form))
}

// activationKey is the key of GLU and Activate: the function matters.
func activationKey(operator Op) string {
	return fmt.Sprintf("%s[%d,%d] %s", operator.Kind, operator.Rows(), operator.N, operator.Act)
}

// when is the text if the condition is set, else "".
func when(set bool, text string) string {
	if set {
		return text
	}
	return ""
}

// Flops counts multiplications and additions (2 per multiply-add). Attention counts the causal half only: row i of M
// attends to Context-M+i+1 positions, at most Window. In a batch every row attends to Context.
func (o Op) Flops() int64 {
	if kind := rowOf[o.Kind]; kind != nil && kind.flops != nil {
		return kind.flops(o)
	}
	return 0
}

// Bytes is the memory traffic of one execution with nothing cached: weights, inputs and outputs once.
func (o Op) Bytes() int64 {
	if kind := rowOf[o.Kind]; kind != nil {
		return kind.bytes(o)
	}
	return 0
}

// cells is the number of elements of [rows,columns].
func cells(rows, columns int) int64 { return int64(rows) * int64(columns) }

// perElement counts so much for every element of the [M*Fan,N] that the operator computes.
func perElement(each int64) func(operator Op) int64 {
	return func(operator Op) int64 { return each * cells(operator.Rows(), operator.N) }
}

// productFlops counts a multiply-add for every element of every row's product.
func productFlops(operator Op) int64 {
	return 2 * cells(operator.Rows(), operator.K) * int64(operator.N)
}

// productBytes is the traffic of a product that reads inputRows rows of activations and so many weights.
func productBytes(operator Op, inputRows, weights int) int64 {
	in := 4 * cells(inputRows, operator.K)
	if operator.Scheme.QuantisedRows() {
		in = cells(inputRows, operator.K) + 4*int64(inputRows)
	}
	if operator.Bias {
		in += 4 * int64(operator.N)
	}
	if operator.Scheme.Grid() {
		in += 8 * int64(operator.N)
	}
	return int64(weights)*WeightBytes(operator.Scheme.Weight(), operator.K, operator.N) + in +
		4*cells(operator.Rows(), operator.N)
}

// attentionBytes counts the keys and values of the positions that any row attends to, once, and queries and results.
func attentionBytes(operator Op) int64 {
	cached := int64(max(operator.Context, operator.M))
	switch {
	case operator.Batch:
		cached = operator.attended()
	case operator.Window > 0:
		cached = min(cached, int64(operator.Window)+int64(operator.M))
	}
	return 2*cached*int64(operator.KVHeads)*operator.KV.CacheRowBytes(operator.HeadDim) +
		8*cells(operator.M, operator.Heads)*int64(operator.HeadDim)
}

// attended is the number of (query row, cached position) pairs of a causal attention.
func (o Op) attended() int64 {
	rows, context, window := int64(o.M), int64(o.Context), int64(o.Window)
	if o.Batch {
		if window > 0 {
			context = min(context, window)
		}
		return rows * context
	}
	context = max(context, rows)
	before := context - rows // positions that every row attends to
	if window == 0 || context <= window {
		return rows*before + rows*(rows+1)/2
	}
	short := max(0, min(rows, window-before)) // rows that attend to fewer than Window positions
	return short*before + short*(short+1)/2 + (rows-short)*window
}
