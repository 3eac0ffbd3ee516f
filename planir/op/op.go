// Package op knows one operator of a language model: its kind, shape, element types,
// quantisation scheme, floating-point work and memory traffic. It is the vocabulary that
// models, records, cost models, plans and drivers share.
//
// Op (op.go) is one operator; its Kind and its Scheme decide what the fields mean. What hetc knows of each kind is a
// row of kindTable (kind_table.go, explained at kindRow in kind.go), and of each scheme a row in scheme.go: ask their
// methods before you compare names. Op.Validate (fields.go) checks the fields, Op.Key names the operator in records,
// Op.Flops and Op.Bytes count its work. Graph (graph.go) is several operators on named values, which one driver
// executes in one call; Weight (weight.go) is a matrix of the model.
package op

import "strings"

// Type is an element type of a buffer or weight.
type Type string

const (
	F32  Type = "f32"
	F16  Type = "f16"
	BF16 Type = "bf16"
	I32  Type = "i32"
	I8   Type = "i8"
	U8   Type = "u8" // row-quantised activations: value = (u - 128) * scale of the row
)

// Q8 is the type of a cache alone: rows of 8-bit codes as U8, each row followed by its scale, a float32. Attention
// multiplies them with queries of the same form.
const Q8 Type = "q8"

// CacheTypes are the types that keys and values are stored in, the most exact one first. Over a cache of BF16 attention
// multiplies in it: queries and the weights of the softmax are rounded to it, too, as keys and values are.
var CacheTypes = []Type{F32, F16, BF16, Q8}

// CacheRow returns how a cache of the type stores a key or a value of dim numbers: cols elements.
func (t Type) CacheRow(dim int) (element Type, cols int) {
	if t == Q8 {
		return U8, dim + F32.Bytes()
	}
	return t, dim
}

// CacheRowBytes returns the size of a cached key or value of dim numbers.
func (t Type) CacheRowBytes(dim int) int64 {
	element, cols := t.CacheRow(dim)
	return int64(cols) * int64(element.Bytes())
}

// Bytes returns the size of one element, 0 for an unknown type and for one of whole rows.
func (t Type) Bytes() int {
	switch t {
	case F32, I32:
		return 4
	case F16, BF16:
		return 2
	case I8, U8:
		return 1
	}
	return 0
}

// Activation functions of GLU and Activate.
const (
	SiLU     = "silu"      // x*sigmoid(x)
	GELU     = "gelu"      // x*Phi(x), Phi the normal distribution
	GELUTanh = "gelu_tanh" // its approximation with tanh
	ReLU     = "relu"
)

// Acts lists them.
var Acts = []string{SiLU, GELU, GELUTanh, ReLU}

// Rules of Route.
const (
	RouteSoftmax     = "softmax"      // softmax over all experts, the Fan largest
	RouteSoftmaxNorm = "softmax_norm" // the same, weights scaled to sum to 1
	// the largest, then the largest of the others; each weight is a softmax over the logits within 2*Jitter of it
	// (PhiMoE)
	RouteSparseMixer = "sparsemixer"
)

// Routers lists them.
var Routers = []string{RouteSoftmax, RouteSoftmaxNorm, RouteSparseMixer}

// Rules of Dispatch: which of the rows beyond a slot are the least salient, and dropped.
const (
	SalienceNorm   = "norm"   // of tokens with the smallest norm of what attention computed (NPUMoE 3.2)
	SalienceWeight = "weight" // with the smallest router weight
	// in a fixed order that has nothing to do with what rows hold: a baseline to measure rules against, which solve
	// never chooses
	SalienceRandom = "random"
)

// Saliences lists them.
var Saliences = []string{SalienceNorm, SalienceWeight, SalienceRandom}

// Op is one operator with its shape. Fields a kind does not use are zero.
type Op struct {
	Kind Kind `json:"kind" yaml:"kind"`
	M    int  `json:"m" yaml:"m"`                     // tokens: rows of the operands, times Fan where each has several
	K    int  `json:"k,omitempty" yaml:"k,omitempty"` // reduction length (MatMul), vocabulary (Embed)
	N    int  `json:"n,omitempty" yaml:"n,omitempty"` // output columns

	Scheme Scheme `json:"scheme,omitempty" yaml:"scheme,omitempty"` // products; Embed: I32Q8C, I32Q6C, or empty
	Table  Type   `json:"table,omitempty" yaml:"table,omitempty"`   // Embed without Scheme: element type of the table

	Heads   int `json:"heads,omitempty" yaml:"heads,omitempty"`       // query heads
	KVHeads int `json:"kv_heads,omitempty" yaml:"kv_heads,omitempty"` // key/value heads
	HeadDim int `json:"head_dim,omitempty" yaml:"head_dim,omitempty"` // even for Rope
	// Attention: cached positions including the new rows
	Context int  `json:"context,omitempty" yaml:"context,omitempty"`
	KV      Type `json:"kv,omitempty" yaml:"kv,omitempty"` // KVAppend, Attention: element type of the cache
	// Batch: every row is of a sequence of its own, at that one's position and on its cache (Rope, KVAppend, Attention,
	// whose Context is then that of every row); else the rows follow one another in one sequence.
	Batch bool `json:"batch,omitempty" yaml:"batch,omitempty"`

	// GLU: columns of gate, then as many of up
	Interleave int    `json:"interleave,omitempty" yaml:"interleave,omitempty"`
	Act        string `json:"act,omitempty" yaml:"act,omitempty"`       // GLU, Activate
	Bias       bool   `json:"bias,omitempty" yaml:"bias,omitempty"`     // MatMul: a row is added
	Static     bool   `json:"static,omitempty" yaml:"static,omitempty"` // QuantRows: the scale is a weight
	// QuantRows with Static: how many scales, 2..MaxScales; 0 is 1
	Scales int `json:"scales,omitempty" yaml:"scales,omitempty"`
	// MatMul: how it is put to the processor
	Form Form `json:"form,omitempty" yaml:"form,omitempty"`

	// Route, ExpertMatMul, Dispatch: of a layer; GroupMatMul: of the group
	Experts int `json:"experts,omitempty" yaml:"experts,omitempty"`
	// rows of operands per token: experts chosen for it; 0 is 1
	Fan int `json:"fan,omitempty" yaml:"fan,omitempty"`
	// OutlierMatMul: of the K channels so many are multiplied at once, and are expected to exceed the scale in some
	// row; 0: OutlierChannels(K)
	Channels int `json:"channels,omitempty" yaml:"channels,omitempty"`
	// ExpertMatMul: activations have one row per token
	Spread bool `json:"spread,omitempty" yaml:"spread,omitempty"`
	// ExpertMatMul, Dispatch, Collect: of the M*Fan rows so many are expected to be computed apart from groups, 0:
	// there are no groups, or no such rows. Costs are those of so many rows.
	Sent int `json:"sent,omitempty" yaml:"sent,omitempty"`
	// Dispatch, Collect: slots of experts and the rows that they have reserved
	Groups Groups `json:"groups,omitempty" yaml:"groups,omitempty"`
	// Dispatch: rows beyond a slot are dropped by this rule; empty: none is
	Salience string  `json:"salience,omitempty" yaml:"salience,omitempty"`
	Router   string  `json:"router,omitempty" yaml:"router,omitempty"` // Route
	Jitter   float64 `json:"jitter,omitempty" yaml:"jitter,omitempty"` // Route by sparsemixer

	// Attention: a row attends to this many positions, its own included; 0: all
	Window int `json:"window,omitempty" yaml:"window,omitempty"`
	// Estimate, Select, SparseAttend: queries of a block share a selection; the last block may have fewer
	Block int `json:"block,omitempty" yaml:"block,omitempty"`
	// Estimate: pairs of scales to choose from, see ScaleFactors; 0 is 1
	Buckets int `json:"buckets,omitempty" yaml:"buckets,omitempty"`
	// SparseAttend: what is not selected counts as one position, the mean of all
	Rest bool `json:"rest,omitempty" yaml:"rest,omitempty"`
	// Estimate, Select, SparseAttend: rows that see no more positions attend to all of them, and others keep at least
	// so many for each head that keeps any by its share
	Least int `json:"least,omitempty" yaml:"least,omitempty"`
	// SparseAttend: mean share of the positions that is attended to, of which a cost is asked for; Estimate: share of
	// the query heads whose scores are estimated, 0 is all
	Density float64 `json:"density,omitempty" yaml:"density,omitempty"`
	// Softcap, Clip, Attention: scores are Cap*tanh(score/Cap); 0: not
	Cap float64 `json:"cap,omitempty" yaml:"cap,omitempty"`
	// Attention: of scores, 0: 1/sqrt(HeadDim); Embed: of rows, 0: 1
	Scale     float64 `json:"scale,omitempty" yaml:"scale,omitempty"`
	Joint     bool    `json:"joint,omitempty" yaml:"joint,omitempty"`           // QKNorm
	RotaryDim int     `json:"rotary_dim,omitempty" yaml:"rotary_dim,omitempty"` // Rope: 0: HeadDim
	// Rope: factor of cosines and sines, 0: 1
	Amplitude float64 `json:"amplitude,omitempty" yaml:"amplitude,omitempty"`

	// Rope: sequences of more than LongFrom positions (the sequence's length when the call has finished,
	// Scalars.Seq) are rotated by other frequencies: those of the second row of the table, with LongAmplitude
	// (0: 1); or with NTK by those of the only row, f[i] * g^(-i/(RotaryDim/2-1)) for
	// g = NTK*length/LongFrom - (NTK-1).
	LongFrom      int     `json:"long_from,omitempty" yaml:"long_from,omitempty"`
	LongAmplitude float64 `json:"long_amplitude,omitempty" yaml:"long_amplitude,omitempty"`
	NTK           float64 `json:"ntk,omitempty" yaml:"ntk,omitempty"`

	Eps float64 `json:"eps,omitempty" yaml:"eps,omitempty"` // norms: added to the mean square; no influence on cost
}

// HasScheme reports whether o multiplies by a quantised weight.
func (o Op) HasScheme() bool {
	return o.Kind == MatMul || o.Kind == ExpertMatMul || o.Kind == GroupMatMul
}

// HasMatrix reports whether o multiplies by a matrix [K,N] of the model.
func (o Op) HasMatrix() bool { return o.HasScheme() || o.Kind == OutlierMatMul }

// Rows returns the number of rows of the operands that have Fan rows per token.
func (o Op) Rows() int { return o.M * max(1, o.Fan) }

// Products returns the products of one matrix each that a GroupMatMul consists of: what one of them is, and how many
// there are.
func (o Op) Products() (one Op, count int) {
	return Op{Kind: MatMul, M: o.M / max(1, o.Experts), K: o.K, N: o.N, Scheme: o.Scheme}, o.Experts
}

// asSent returns an ExpertMatMul of as many tokens as have the rows that are expected to be sent.
func (o Op) asSent() Op {
	if o.Sent > 0 && o.Fan > 0 {
		o.M, o.Sent = min(o.M, (o.Sent+o.Fan-1)/o.Fan), 0
	}
	return o
}

// InUse returns how many rows of an operand a call of some tokens uses: as many as it has for each token. Groups of
// experts are used whole, however many rows are sent to them.
func (o Op) InUse(operand Value, tokens int) int {
	if o.Groups != "" && strings.HasPrefix(operand.Name, groupRole) {
		return operand.Rows
	}
	return min(tokens, o.M, operand.Rows) * max(1, operand.Rows/o.M)
}

// Rotary returns the number of elements of a head that Rope rotates.
func (o Op) Rotary() int {
	if o.RotaryDim > 0 {
		return o.RotaryDim
	}
	return o.HeadDim
}

// inputRows returns the number of rows of an ExpertMatMul's activations.
func (o Op) inputRows() int {
	if o.Spread {
		return o.M
	}
	return o.Rows()
}

// QKVColumns returns the width of a fused QKV row of heads query and kvHeads key/value heads.
func QKVColumns(heads, kvHeads, headDim int) int { return (heads + 2*kvHeads) * headDim }

// RoundUp returns the least multiple of unit that is at least size. A unit below 2 leaves the size.
func RoundUp[T int | int64](size, unit T) T {
	if unit < 2 {
		return size
	}
	return (size + unit - 1) / unit * unit
}
