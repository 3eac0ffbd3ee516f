package op

import "fmt"

// kindTable has a row for each kind, in the order of Kinds.
var kindTable = []kindRow{
	{
		kind: Embed,
		doc: "Looks rows up: ids i32 [M,1], table [V=K,N] -> f32 [M,N]. With a scheme the table is the packed " +
			"weight [N,V] of a tied head, whose columns are the rows.",
		required: []string{"k", "n"}, optional: []string{"scheme", "table", "scale"}, check: checkEmbed,
		signature: func(o Op) Signature {
			return Signature{In: []Value{{"ids", I32, o.M, 1}}, W: []string{"table"},
				Out: []Value{f32Operand("y", o.M, o.N)}}
		},
		bytes: func(o Op) int64 {
			// four values of a column, then those of the tile's other columns: a line of 64 bytes for each four
			if o.Scheme != "" {
				return elements(o.M, o.N) * (64/4 + 4)
			}
			return elements(o.M, o.N) * int64(o.Table.Bytes()+4)
		},
		key:     func(o Op) string { return fmt.Sprintf("embed[%d]x[%d,%d] %s%s", o.M, o.K, o.N, o.Table, o.Scheme) },
		scaling: byProduct(func(o Op) Op { return Op{Scheme: o.Scheme, Table: o.Table} }),
	},
	{
		kind: SelectRow, doc: "Copies one row: f32 [M,N] -> f32 [1,N]. The row index is the scalar Row of the call.",
		required: []string{"n"},
		signature: func(o Op) Signature {
			return Signature{In: []Value{f32Operand("x", o.M, o.N)}, Out: []Value{f32Operand("y", 1, o.N)}}
		},
		bytes:   func(o Op) int64 { return 8 * int64(o.N) },
		scaling: byRows, rowsFault: cacheFirst,
	},
	{
		kind: Norm, doc: "Normalises the root mean square of rows: f32 [M,N], gain f32 [1,N] -> f32 [M,N].",
		required: []string{"n"}, optional: []string{"eps"},
		signature: elementwise("gain"), shape: gains, flops: perElement(4), bytes: perElement(8),
		scaling: byRows, rowwise: true,
	},
	{
		kind:     LayerNorm,
		doc:      "Normalises mean and variance of rows: f32 [M,N], gain f32 [1,N], bias f32 [1,N] -> f32 [M,N].",
		required: []string{"n"}, optional: []string{"eps"},
		signature: elementwise("gain", "bias"), shape: gains, flops: perElement(6), bytes: perElement(8),
		scaling: byRows, rowwise: true,
	},
	{
		kind: QuantRows,
		doc: "Quantises rows to 8 bit with a scale each: f32 [M,N] -> u8 [M,N], f32 [M,1]. With static the " +
			"scale of every row is the weight f32 [1,1], and what exceeds 127 times it saturates. With " +
			"several scales the weight is f32 [1,scales], and a row has the one that StaticScale names.",
		required: []string{"n"}, optional: []string{"fan", "static", "scales"}, check: checkQuantRows,
		signature: func(o Op) Signature {
			s := Signature{In: []Value{f32Operand("x", o.Rows(), o.N)},
				Out: []Value{{"y", U8, o.Rows(), o.N}, f32Operand("scale", o.Rows(), 1)}}
			if o.Static {
				s.W = []string{"scale"}
			}
			return s
		},
		shape:   func(o Op, _ string) (int, int) { return 1, max(1, o.Scales) },
		flops:   perElement(6),
		bytes:   func(o Op) int64 { return 5*elements(o.Rows(), o.N) + 4*int64(o.Rows()) },
		scaling: byRows, rowwise: true,
	},
	{
		kind: MatMul,
		doc: "Multiplies by a weight: activations [M,K] (f32, or u8 with scales [M,1]) x weight [K,N] -> f32 " +
			"[M,N], with bias plus a row f32 [1,N]. Under a scheme on a grid the weight steps f32 [2,N] holds " +
			"two steps in all its columns: x counts as the nearest multiple of steps[0], at most GridMax of " +
			"them, and y is rounded to one of steps[1] likewise. Under a half-precision scheme x and y are " +
			"rounded to f16.",
		required: []string{"k", "n"}, optional: []string{"scheme", "bias", "form"}, check: checkMatMul,
		signature: matMulOperands,
		shape: func(o Op, role string) (int, int) {
			if role == "steps" {
				return 2, o.N
			}
			return 1, o.N
		},
		flops: productFlops, bytes: func(o Op) int64 { return productBytes(o, o.M, 1) }, key: matMulKey,
		scaling: byProduct(func(o Op) Op { return Op{Scheme: o.Scheme, Bias: o.Bias, Form: o.Form} }),
		columns: []int{0}, axis: AlongK,
	},
	{
		kind: ExpertMatMul,
		doc: "Multiplies each token by the weights of the experts chosen for it: activations (f32, or u8 with " +
			"scales), [M,K] with spread, else [M*Fan,K], and ids i32 [M,Fan] x weight [Experts,K,N] -> f32 " +
			"[M*Fan,N]. Row r*Fan+j of the result belongs to token r and expert ids[r,j]. With sent, ids may " +
			"be -1: such a row of the result is 0.",
		required: []string{"k", "n", "experts", "fan"}, optional: []string{"scheme", "spread", "sent"},
		check: checkExpertMatMul,
		signature: func(o Op) Signature {
			in := append(activations(o, o.inputRows()), Value{"ids", I32, o.M, o.Fan})
			return Signature{In: in, W: []string{"weight"}, Out: []Value{f32Operand("y", o.Rows(), o.N)}}
		},
		flops: func(o Op) int64 { return productFlops(o.asSent()) },
		// of at most M*Fan experts
		bytes: func(o Op) int64 {
			o = o.asSent()
			return productBytes(o, o.inputRows(), min(o.Rows(), o.Experts))
		},
		key: func(o Op) string {
			return fmt.Sprintf("expert_matmul[%d,%d]x[%d,%d,%d] %s fan=%d", o.M, o.K, o.Experts, o.K, o.N, o.Scheme,
				o.Fan) + textIf(o.Spread, " spread") + textIf(o.Sent > 0, fmt.Sprintf(" sent=%d", o.Sent))
		},
		scaling: byExpertProduct,
		columns: []int{0},
	},
	{
		kind: GroupMatMul,
		doc: "Multiplies rows by several matrices: activations [M,K] (f32, or u8 with scales), whose first " +
			"M/Experts rows belong to the first of Experts weights [K,N], the next to the second, and so on " +
			"-> f32 [M,N]. Its rows are those that a group of experts has reserved (NPUMoE 4.2).",
		required: []string{"k", "n", "experts", "scheme"}, check: checkGroupMatMul,
		signature: func(o Op) Signature {
			s := Signature{In: activations(o, o.M), Out: []Value{f32Operand("y", o.M, o.N)}}
			for i := range o.Experts {
				s.W = append(s.W, fmt.Sprintf("weight%d", i))
			}
			return s
		},
		flops: productFlops, bytes: func(o Op) int64 { return productBytes(o, o.M, o.Experts) },
		key: func(o Op) string {
			return fmt.Sprintf("group_matmul[%d,%d]x%d[%d,%d] %s", o.M, o.K, o.Experts, o.K, o.N, o.Scheme)
		},
		scaling:   byProduct(func(o Op) Op { return Op{Scheme: o.Scheme, Experts: o.Experts} }),
		rowsFault: "its rows are those of several matrices",
	},
	{
		kind: Dispatch,
		doc: "Moves rows to the slots of their experts (NPUMoE 4): x f32 [M,N], ids i32 [M,Fan], with k what " +
			"the rule salience reads, f32 [M,K], weight slots f32 [1,slots], the expert in each slot -> for " +
			"each of groups f32 [slots*rows,N], the rows of its slots in the order of tokens and zeros behind " +
			"them; places i32 [M,Fan], the row of all groups together that holds a row, -1 for none; with " +
			"sent also rest i32 [M,Fan], the expert of a row that no group holds, else -1. Where an expert is " +
			"sent more rows than its slot has, the first are moved; with salience the most salient, and the " +
			"others are dropped: they are in no group and not in rest.",
		required: []string{"n", "experts", "fan", "groups"}, optional: []string{"k", "sent", "salience"},
		check: checkGroups,
		signature: func(o Op) Signature {
			s := Signature{In: []Value{f32Operand("x", o.M, o.N), {"ids", I32, o.M, o.Fan}}, W: []string{"slots"}}
			if o.K > 0 {
				s.In = append(s.In, f32Operand("salience", o.M, o.K))
			}
			s.Out = append(groupRows(o), Value{"places", I32, o.M, o.Fan})
			if o.Sent > 0 {
				s.Out = append(s.Out, Value{"rest", I32, o.M, o.Fan})
			}
			return s
		},
		shape: func(o Op, _ string) (int, int) { return 1, o.Groups.Slots() },
		flops: func(o Op) int64 { return elements(o.M, o.Fan) + 2*elements(o.M, o.K) },
		bytes: func(o Op) int64 {
			return 4*elements(o.M+o.Groups.Rows(), o.N) + 4*elements(o.M, o.K) + 12*elements(o.M, o.Fan)
		},
		key: func(o Op) string {
			return fmt.Sprintf("dispatch[%d,%d] fan=%d groups=%s", o.M, o.N, o.Fan, o.Groups) +
				textIf(o.Salience != "", " "+o.Salience) + textIf(o.K > 0, fmt.Sprintf("=%d", o.K))
		},
		scaling: byGroups, rowsFault: anywhere,
	},
	{
		kind: Collect,
		doc: "Sums what a token's experts computed, wherever it is, in the order of combine: for each of " +
			"groups f32 [slots*rows,N], with sent rest f32 [M*Fan,N], places i32 [M,Fan] as dispatch made " +
			"them, weights f32 [M,Fan] -> f32 [M,N]. A row without a place is that of rest, without rest 0.",
		required: []string{"n", "fan", "groups"}, optional: []string{"sent"}, check: checkGroups,
		signature: func(o Op) Signature {
			s := Signature{In: groupRows(o), Out: []Value{f32Operand("y", o.M, o.N)}}
			if o.Sent > 0 {
				s.In = append(s.In, f32Operand("rest", o.Rows(), o.N))
			}
			s.In = append(s.In, Value{"places", I32, o.M, o.Fan}, f32Operand("weights", o.M, o.Fan))
			return s
		},
		flops: perElement(2), bytes: func(o Op) int64 { return 4*elements(o.Rows(), o.N) + 4*elements(o.M, o.N) },
		key:     func(o Op) string { return fmt.Sprintf("collect[%d,%d] fan=%d groups=%s", o.M, o.N, o.Fan, o.Groups) },
		scaling: byGroups, rowsFault: anywhere,
	},
	{
		kind: OutlierMatMul,
		doc: "Multiplies what a static scale cuts off (llm.npu 3.3): x f32 [M,K], weight [K,N], scale f32 " +
			"[1,1] -> f32 [M,N], the product of x - min(max(x,-127*scale),127*scale) and the weight, bfloat16 " +
			"in plain rows. Columns of x in which no row exceeds 127*scale are left out. Where more than " +
			"Channels columns (0: OutlierChannels(K)) exceed it, the product is as right, and slower.",
		required: []string{"k", "n", "scheme"}, optional: []string{"channels"}, check: checkOutlierMatMul,
		signature: func(o Op) Signature {
			return Signature{In: []Value{f32Operand("x", o.M, o.K)}, W: []string{"weight", "scale"},
				Out: []Value{f32Operand("y", o.M, o.N)}}
		},
		shape: func(o Op, _ string) (int, int) { return 1, 1 },
		// all of x is looked at, and some of its columns are multiplied
		flops: func(o Op) int64 { return elements(o.M, o.K) + 2*elements(o.M, o.Gathered())*int64(o.N) },
		bytes: func(o Op) int64 {
			return 4*elements(o.M, o.K) + WeightBytes(o.Scheme.Weight(), o.Gathered(), o.N) + 4*elements(o.M, o.N)
		},
		key: func(o Op) string {
			return fmt.Sprintf("outlier_matmul[%d,%d]x[%d,%d] %s", o.M, o.K, o.K, o.N, o.Scheme) +
				textIf(o.Channels > 0, fmt.Sprintf(" channels=%d", o.Channels))
		},
		scaling: byProduct(func(o Op) Op { return Op{Scheme: o.Scheme, Channels: o.Channels} }),
		columns: []int{0},
	},
	{
		kind: Route,
		doc: "Chooses experts by the rule router: logits f32 [M,Experts] -> ids i32 [M,Fan], weights f32 " +
			"[M,Fan].",
		required: []string{"experts", "fan"}, optional: []string{"router", "jitter"}, check: checkRoute,
		signature: func(o Op) Signature {
			return Signature{In: []Value{f32Operand("logits", o.M, o.Experts)},
				Out: []Value{{"ids", I32, o.M, o.Fan}, f32Operand("weights", o.M, o.Fan)}}
		},
		flops:   func(o Op) int64 { return elements(o.M, o.Experts) * int64(3+o.Fan) },
		bytes:   func(o Op) int64 { return int64(o.M) * int64(4*o.Experts+8*o.Fan) },
		key:     func(o Op) string { return fmt.Sprintf("route[%d,%d] fan=%d %s", o.M, o.Experts, o.Fan, o.Router) },
		scaling: byExperts,
	},
	{
		kind: Combine, doc: "Sums what a token's experts computed: f32 [M*Fan,N], weights f32 [M,Fan] -> f32 [M,N].",
		required: []string{"n", "fan"},
		signature: func(o Op) Signature {
			return Signature{In: []Value{f32Operand("x", o.Rows(), o.N), f32Operand("weights", o.M, o.Fan)},
				Out: []Value{f32Operand("y", o.M, o.N)}}
		},
		flops: perElement(2), bytes: func(o Op) int64 { return 4*elements(o.Rows(), o.N) + 4*elements(o.M, o.N) },
		key:     func(o Op) string { return fmt.Sprintf("combine[%d,%d] fan=%d", o.M, o.N, o.Fan) },
		scaling: byTokens,
		rowwise: true, columns: []int{1, 0},
	},
	{
		kind: QKNorm,
		doc: "Normalises the root mean square of every query and key head of a fused QKV row in place, with " +
			"gains [1,HeadDim]; with joint of all query heads together and of all key heads together, with " +
			"gains of their whole widths: f32 [M,(Heads+2*KVHeads)*HeadDim].",
		required: []string{"heads", "kv_heads", "head_dim"}, optional: []string{"joint", "eps"}, check: checkHeads,
		signature: inPlaceQKV("qgain", "kgain"), shape: headGains,
		flops: func(o Op) int64 { return 4 * elements(o.M, o.Heads+o.KVHeads) * int64(o.HeadDim) },
		bytes: func(o Op) int64 { return 8 * elements(o.M, o.Heads+o.KVHeads) * int64(o.HeadDim) },
		key: func(o Op) string {
			return fmt.Sprintf("qk_norm[%d] heads=%d/%d dim=%d", o.M, o.Heads, o.KVHeads, o.HeadDim) +
				textIf(o.Joint, " joint")
		},
		scaling: byHeads(func(o Op) Op { return Op{Joint: o.Joint} }),
	},
	{
		kind: Rope,
		doc: "Rotates the query and key heads of a fused QKV row in place: f32 [M,(Heads+2*KVHeads)*HeadDim]. " +
			"The first RotaryDim elements of a head are rotated, in two halves. The frequencies " +
			"[2,RotaryDim/2] or [1,RotaryDim/2] depend on the length of the sequence, see Op.LongFrom.",
		required: []string{"heads", "kv_heads", "head_dim"},
		optional: []string{"batch", "rotary_dim", "amplitude", "long_from", "long_amplitude", "ntk"}, check: checkRope,
		signature: inPlaceQKV("invfreq"),
		shape: func(o Op, _ string) (int, int) {
			if o.LongFrom > 0 && o.NTK == 0 {
				return 2, o.Rotary() / 2
			}
			return 1, o.Rotary() / 2
		},
		flops: func(o Op) int64 { return 3 * elements(o.M, o.Heads+o.KVHeads) * int64(o.Rotary()) },
		bytes: func(o Op) int64 { return 8 * elements(o.M, o.Heads+o.KVHeads) * int64(o.Rotary()) },
		key: func(o Op) string {
			return fmt.Sprintf("rope[%d] heads=%d/%d dim=%d", o.M, o.Heads, o.KVHeads, o.HeadDim) +
				textIf(o.Rotary() != o.HeadDim, fmt.Sprintf(" rotary=%d", o.Rotary()))
		},
		scaling: byHeads(rotated),
	},
	{
		kind:     KVAppend,
		doc:      "Stores the key and value heads of a fused QKV row at positions Pos..Pos+Rows-1 of the cache.",
		required: []string{"kv_heads", "head_dim"}, optional: []string{"heads", "kv", "batch"}, check: checkHeads,
		signature: func(o Op) Signature { return Signature{In: []Value{fusedQKV(o)}, State: true} },
		bytes: func(o Op) int64 {
			return 2 * elements(o.M, o.KVHeads) * (4*int64(o.HeadDim) + o.KV.CacheRowBytes(o.HeadDim))
		},
		key: func(o Op) string {
			return fmt.Sprintf("kv_append[%d] heads=%d dim=%d kv=%s", o.M, o.KVHeads, o.HeadDim, o.KV)
		},
		scaling: byKeyHeads, axis: AlongHeads,
		// Nothing is written but the cache, and what operators before it change in place.
		heads: func(o Op) (in, w, out []int) { return []int{o.groupColumns()}, nil, []int{o.groupColumns()} },
	},
	{
		kind: Attention,
		doc: "Is causal attention over the cache: fused QKV [M,(Heads+2*KVHeads)*HeadDim] -> f32 " +
			"[M,Heads*HeadDim]. Context is the number of cached positions a cost is asked for. Over a cache of bf16 " +
			"both factors of its products are bfloat16: queries are rounded to it, and so are the weights of the " +
			"softmax, relative to the largest score so far. Over a cache of q8 the queries of each head are rounded as " +
			"keys are.",
		required: []string{"heads", "kv_heads", "head_dim", "context"},
		optional: []string{"kv", "batch", "window", "cap", "scale"}, check: checkHeads,
		signature: func(o Op) Signature {
			return Signature{In: []Value{fusedQKV(o)}, Out: []Value{f32Operand("y", o.M, o.Heads*o.HeadDim)},
				State: true}
		},
		flops: func(o Op) int64 { return 4 * o.attendedPairs() * int64(o.Heads) * int64(o.HeadDim) },
		bytes: attentionBytes,
		key: func(o Op) string {
			return fmt.Sprintf("attention[%d] heads=%d/%d dim=%d context=%d kv=%s", o.M, o.Heads, o.KVHeads,
				o.HeadDim, o.Context, o.KV) +
				textIf(o.Window > 0, fmt.Sprintf(" window=%d", o.Window)) + textIf(o.Cap > 0, " cap") +
				textIf(o.Batch, " batch")
		},
		scaling: byContext, rowsFault: cacheFirst, axis: AlongHeads,
		heads: func(o Op) (in, w, out []int) { return []int{o.groupColumns()}, nil, []int{o.group() * o.HeadDim} },
	},
	{
		kind: Estimate,
		doc: "Estimates in 8 bits how much blocks of Block queries attend to each cached position (shadowAttn " +
			"3.2): fused QKV [M,(Heads+2*KVHeads)*HeadDim], heads f32 [1,3*Heads] -> f32 " +
			"[ceil(M/Block),Heads*Context]. heads holds for each query head the static scale of its queries, " +
			"that of its keys (that of the first head that shares them counts), and the share of positions " +
			"that Select keeps. With buckets the scales of all heads that share a key are those times a pair " +
			"of factors (op.ScaleFactors, shadowAttn 3.3): the pair with which the largest of their scales of " +
			"queries, and the scale of the keys, are nearest to what holds the largest query among the rows " +
			"and the largest key that any of them sees before its block. A score is the product of query and " +
			"key, each rounded to a multiple of its scale (a key of a q8 cache as it is stored), times both " +
			"scales. A position is worth the largest of its scores over the queries of the block, each less " +
			"the query's largest score. Only positions that all queries of the block see and that lie before " +
			"the block are compared and written, and only for heads whose share leaves a choice: not where " +
			"all are kept, or the first SparseFirst alone. Density is the share of such heads that a cost is " +
			"asked for, 0 all.",
		required: []string{"heads", "kv_heads", "head_dim", "context", "block"},
		optional: []string{"kv", "window", "buckets", "least", "density"}, check: checkSparse,
		signature: func(o Op) Signature {
			return Signature{In: []Value{fusedQKV(o)}, W: []string{"heads"},
				Out: []Value{f32Operand("scores", o.Blocks(), o.Heads*o.Context)}, State: true}
		},
		shape: sparseHeads,
		flops: func(o Op) int64 { return int64(2 * o.estimatedPairs() * float64(o.Heads) * float64(o.HeadDim)) },
		bytes: func(o Op) int64 {
			return int64(max(o.Context, o.M))*int64(o.KVHeads)*o.KV.CacheRowBytes(o.HeadDim) +
				4*elements(o.M, o.Heads)*int64(o.HeadDim) + 4*elements(o.Blocks(), o.Heads)*int64(max(o.Context, o.M))
		},
		key: sparseKey, scaling: byContext, rowsFault: cacheFirst, axis: AlongHeads,
		anyStride: true, // the driver itself rounds what it reads, and pools what it writes
		heads: func(o Op) (in, w, out []int) {
			return []int{o.groupColumns()}, []int{sparseParts * o.group()}, []int{o.group() * o.Context}
		},
	},
	{
		kind: Select,
		doc: "Selects what blocks of queries attend to: scores f32 [ceil(M/Block),Heads*Context], heads as of " +
			"Estimate -> i32 [ceil(M/Block),Heads*(1+Context)], for each head the number of positions and " +
			"then these, ascending. Of V positions that a query of the block sees, ceil(share*V) are kept: " +
			"the block's own, those that only some of its queries see (of a window), and of the others the " +
			"first SparseFirst and those with the largest scores, of equal ones the lower. Of the others " +
			"alone the result speaks. All are kept where V is at most Least, and at least Least where V is " +
			"more and the share is above 0.",
		required: []string{"heads", "kv_heads", "context", "block"}, optional: []string{"window", "least"},
		check: checkSparse,
		signature: func(o Op) Signature {
			return Signature{In: []Value{f32Operand("scores", o.Blocks(), o.Heads*o.Context)}, W: []string{"heads"},
				Out: []Value{{"positions", I32, o.Blocks(), o.Heads * (1 + o.Context)}}}
		},
		shape: sparseHeads,
		flops: func(o Op) int64 { return 2 * elements(o.Blocks(), o.Heads) * int64(max(o.Context, o.M)) },
		bytes: func(o Op) int64 { return 6 * elements(o.Blocks(), o.Heads) * int64(max(o.Context, o.M)) },
		key:   sparseKey, scaling: byContext, rowsFault: cacheFirst, axis: AlongHeads,
		heads: func(o Op) (in, w, out []int) {
			return []int{o.group() * o.Context}, []int{sparseParts * o.group()}, []int{o.group() * (1 + o.Context)}
		},
	},
	{
		kind: SparseAttend,
		doc: "Is Attention over selected positions: fused QKV [M,(Heads+2*KVHeads)*HeadDim], positions as of " +
			"Select -> f32 [M,Heads*HeadDim]. A query attends to the positions selected for its block, to " +
			"those of the block up to its own, and to those of its window that only some queries of the block " +
			"see. With rest the others that all queries of the block see and that lie before it count as one " +
			"more position, whose key and value are the means of those of all that lie there, selected or " +
			"not, and whose weight in the softmax is that of as many as are not selected. Density is the mean " +
			"share of positions that a cost is asked for.",
		required: []string{"heads", "kv_heads", "head_dim", "context", "block", "density"},
		optional: []string{"kv", "window", "cap", "scale", "rest", "least"}, check: checkSparse,
		signature: func(o Op) Signature {
			return Signature{In: []Value{fusedQKV(o), {"positions", I32, o.Blocks(), o.Heads * (1 + o.Context)}},
				Out: []Value{f32Operand("y", o.M, o.Heads*o.HeadDim)}, State: true}
		},
		flops: func(o Op) int64 { return 4 * o.selectedPairs() * int64(o.Heads) * int64(o.HeadDim) },
		bytes: func(o Op) int64 {
			blocks := o.selectedPairs() / int64(max(1, min(o.Block, o.M)))
			gathered := 2 * blocks * int64(o.Heads) * o.KV.CacheRowBytes(o.HeadDim)
			return gathered + 8*elements(o.M, o.Heads)*int64(o.HeadDim)
		},
		key: sparseKey, scaling: byContext, rowsFault: cacheFirst, axis: AlongHeads,
		heads: func(o Op) (in, w, out []int) {
			return []int{o.groupColumns(), o.group() * (1 + o.Context)}, nil, []int{o.group() * o.HeadDim}
		},
	},
	{
		kind: GLU,
		doc: "Is a gated linear unit, act(gate)*up: f32 [M,2N], gate and up interleaved by Interleave columns " +
			"-> f32 [M,N].",
		required: []string{"n", "interleave"}, optional: []string{"act", "fan"}, check: checkGLU,
		signature: func(o Op) Signature {
			return Signature{In: []Value{f32Operand("x", o.Rows(), 2*o.N)},
				Out: []Value{f32Operand("y", o.Rows(), o.N)}}
		},
		flops: perElement(6), bytes: perElement(12), key: activationKey,
		scaling: byGLU,
		rowwise: true, columns: []int{2}, unit: unitInterleave,
	},
	{
		kind: Activate, doc: "Applies the activation function act to every element: f32 [M,N] -> f32 [M,N].",
		required: []string{"n"}, optional: []string{"act", "fan"},
		signature: elementwise(), flops: perElement(5), bytes: perElement(8), key: activationKey,
		scaling: byAct, rowwise: true, columns: []int{1},
	},
	{
		kind: Gate, doc: "Multiplies rows by the sigmoid of a number each: f32 [M,N], f32 [M,1] -> f32 [M,N].",
		required: []string{"n"},
		signature: func(o Op) Signature {
			return Signature{In: []Value{f32Operand("x", o.M, o.N), f32Operand("gate", o.M, 1)},
				Out: []Value{f32Operand("y", o.M, o.N)}}
		},
		flops: perElement(1), bytes: perElement(8), scaling: byRows, rowwise: true, columns: []int{1, 0},
	},
	{
		kind: Softcap, doc: "Bounds elements smoothly, Cap*tanh(x/Cap): f32 [M,N] -> f32 [M,N].",
		required: []string{"n"}, optional: []string{"cap"}, check: checkCap,
		signature: elementwise(), flops: perElement(5), bytes: perElement(8), scaling: byRowsOfAnyCap, rowwise: true,
		columns: []int{1},
	},
	{
		kind: Clip, doc: "Bounds elements, min(max(x,-Cap),Cap): f32 [M,N] -> f32 [M,N].",
		required: []string{"n"}, optional: []string{"cap"}, check: checkCap,
		signature: elementwise(), flops: perElement(1), bytes: perElement(8), scaling: byRowsOfAnyCap, rowwise: true,
		columns: []int{1},
	},
	{
		kind: Add, doc: "Adds: f32 [M,N] + f32 [M,N] -> f32 [M,N].",
		required: []string{"n"},
		signature: func(o Op) Signature {
			return Signature{In: []Value{f32Operand("a", o.M, o.N), f32Operand("b", o.M, o.N)},
				Out: []Value{f32Operand("y", o.M, o.N)}}
		},
		flops: perElement(1), bytes: perElement(12), scaling: byRows, rowwise: true, columns: []int{1, 1},
		unit: unitOne,
	},
	{
		kind: Copy, doc: "Moves a view: [M,N] -> [M,N] of the same type.",
		required: []string{"n"}, optional: []string{"fan"},
		signature: elementwise(), bytes: perElement(8), scaling: byRows,
	},
}

// anywhere says why an operator on rows that are sorted by their experts cannot be divided by rows.
const anywhere = "a row may lie anywhere in the groups"

// cacheFirst says why an operator that reads the cache cannot be divided by rows.
const cacheFirst = "the cache of earlier rows must be complete first"
