// Package op knows one operator of a language model: its kind, shape, element types,
// quantisation scheme, floating-point work and memory traffic. It is the vocabulary that
// models, records, cost models, plans and drivers share.
package op

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

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

// Bytes is the size of one element, 0 for an unknown type.
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

// Kind names an operator. M is always the number of tokens. Operands have one row per token, or Fan
// rows where each token is computed by several experts; the shapes below are those of Fan = 1 unless
// they name it.
type Kind string

const (
	// Embed looks rows up: ids i32 [M,1], table [V=K,N] -> f32 [M,N]. With Scheme the table is the packed weight
	// [N,V] of a tied head, whose columns are the rows.
	Embed Kind = "embed"
	// SelectRow copies one row: f32 [M,N] -> f32 [1,N]; the row index is the scalar Row of the call.
	SelectRow Kind = "select_row"
	// Norm is RMS normalisation: f32 [M,N], gain f32 [1,N] -> f32 [M,N].
	Norm Kind = "norm"
	// LayerNorm normalises mean and variance: f32 [M,N], gain f32 [1,N], bias f32 [1,N] -> f32 [M,N].
	LayerNorm Kind = "layer_norm"
	// QuantRows quantises rows to 8 bit with one scale each: f32 [M,N] -> u8 [M,N], f32 [M,1]. With Static the scale
	// of every row is the weight f32 [1,1], and what exceeds 127 times it saturates. With Scales of them the weight is
	// f32 [1,Scales], and a row has the one that StaticScale names.
	QuantRows Kind = "quant_rows"
	// MatMul multiplies by a weight: activations [M,K] (f32, or u8 with scales [M,1]) x weight [K,N] -> f32 [M,N],
	// with Bias plus a row f32 [1,N]. Under a scheme on a grid (see Scheme.Grid) the weight steps f32 [2,N] holds two
	// steps in all its columns: x counts as the nearest multiple of steps[0], at most GridMax of them, and y is rounded
	// to one of steps[1] likewise. Under a half-precision scheme (see Scheme.Half) x and y are rounded to f16.
	MatMul Kind = "matmul"
	// ExpertMatMul multiplies each token by the weights of the experts chosen for it: activations (f32, or u8 with
	// scales), [M,K] with Spread, else [M*Fan,K], and ids i32 [M,Fan] x weight [Experts,K,N] -> f32 [M*Fan,N].
	// Row r*Fan+j of the result belongs to token r and expert ids[r,j].
	ExpertMatMul Kind = "expert_matmul"
	// Route chooses experts: router logits f32 [M,Experts] -> ids i32 [M,Fan], weights f32 [M,Fan], by the rule Router.
	Route Kind = "route"
	// Combine sums what a token's experts computed: f32 [M*Fan,N], weights f32 [M,Fan] -> f32 [M,N].
	Combine Kind = "combine"
	// QKNorm is RMS normalisation of every query and key head of a fused QKV row in place, with gains
	// [1,HeadDim]; with Joint of all query heads together and of all key heads together, with gains of
	// their whole widths: f32 [M,(Heads+2*KVHeads)*HeadDim].
	QKNorm Kind = "qk_norm"
	// Rope rotates the query and key heads of a fused QKV row in place: f32 [M,(Heads+2*KVHeads)*HeadDim].
	// The first RotaryDim elements of a head are rotated, in two halves. The frequencies [2,RotaryDim/2]
	// or [1,RotaryDim/2] depend on the length of the sequence, see LongFrom.
	Rope Kind = "rope"
	// KVAppend stores the key and value heads of a fused QKV row at positions Pos..Pos+Rows-1 of the cache.
	KVAppend Kind = "kv_append"
	// Attention is causal attention over the cache: fused QKV [M,(Heads+2*KVHeads)*HeadDim] -> f32 [M,Heads*HeadDim].
	// Context is the number of cached positions a cost is asked for.
	Attention Kind = "attention"
	// GLU is a gated linear unit, act(gate)*up: f32 [M,2N], gate and up interleaved by Interleave columns -> f32 [M,N].
	GLU Kind = "glu"
	// Activate applies Act to every element: f32 [M,N] -> f32 [M,N].
	Activate Kind = "activate"
	// Gate multiplies rows by the sigmoid of a number each: f32 [M,N], f32 [M,1] -> f32 [M,N].
	Gate Kind = "gate"
	// Softcap bounds elements smoothly, Cap*tanh(x/Cap): f32 [M,N] -> f32 [M,N].
	Softcap Kind = "softcap"
	// Clip bounds elements, min(max(x,-Cap),Cap): f32 [M,N] -> f32 [M,N].
	Clip Kind = "clip"
	// Add adds: f32 [M,N] + f32 [M,N] -> f32 [M,N].
	Add Kind = "add"
	// Copy moves a view: [M,N] -> [M,N] of the same type.
	Copy Kind = "copy"
)

// Kinds lists every kind in a fixed order.
var Kinds = []Kind{
	Embed, SelectRow, Norm, LayerNorm, QuantRows, MatMul, ExpertMatMul, Route, Combine, QKNorm, Rope, KVAppend, Attention,
	GLU, Activate, Gate, Softcap, Clip, Add, Copy,
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
	RouteSparseMixer = "sparsemixer"  // the largest, then the largest of the others; each weight is a softmax over the logits within 2*Jitter of it (PhiMoE)
)

// Routers lists them.
var Routers = []string{RouteSoftmax, RouteSoftmaxNorm, RouteSparseMixer}

// Scheme names activation and weight quantisation, written activation/weight ("a8t/q8c").
type Scheme string

const (
	A32W32    Scheme = "a32/w32"    // float32
	A32W16    Scheme = "a32/w16"    // float32 with weights in bfloat16: the stored values of a model stored so
	A8TQ8C    Scheme = "a8t/q8c"    // 8-bit rows, 8-bit weights with a scale per column
	A8SQ8C    Scheme = "a8s/q8c"    // 8-bit rows with one static scale for all of them, from a calibration
	A8S2Q8C   Scheme = "a8s2/q8c"   // the same with two static scales, of which every row takes the smallest that holds it
	A8S4Q8C   Scheme = "a8s4/q8c"   // and with four
	A8TQ4B32  Scheme = "a8t/q4b32"  // 8-bit rows, 4-bit weights with a scale per 32 of a column
	A8TQ4B128 Scheme = "a8t/q4b128" // and per 128
	A16SQ8C   Scheme = "a16s/q8c"   // 16-bit activations and results with a static step each, 8-bit weights with a scale per column
	A16SQ4C   Scheme = "a16s/q4c"   // and 4-bit weights with a scale per column
	A16FW16   Scheme = "a16f/w16"   // half-precision activations, results and weights
	A16FQ4B32 Scheme = "a16f/q4b32" // and 4-bit weights with a scale per 32 of a column
)

// GridMax is the largest multiple of its step that a 16-bit activation takes, of either sign.
const GridMax = 1<<15 - 1

// I32Q8C is the scheme of an Embed (ids are i32) that looks rows up in the 8-bit weight of a tied head. It is none of
// Schemes: a processor that executes Embed and reads 8-bit weights in hetc's own tiles can do it.
const I32Q8C Scheme = "i32/q8c"

// Schemes lists the schemes of matrix products that hetc can pack and execute.
var Schemes = []Scheme{A32W32, A32W16, A8TQ8C, A8SQ8C, A8S2Q8C, A8S4Q8C, A8TQ4B32, A8TQ4B128, A16SQ8C, A16SQ4C, A16FW16, A16FQ4B32}

// ParseScheme accepts the written form and refuses schemes hetc does not execute.
func ParseScheme(s string) (Scheme, error) {
	for _, k := range Schemes {
		if string(k) == s {
			return k, nil
		}
	}
	names := make([]string, len(Schemes))
	for i, k := range Schemes {
		names[i] = string(k)
	}
	return "", fmt.Errorf("parse scheme %q: want one of %s", s, strings.Join(names, ", "))
}

// expertSchemes names the schemes of ExpertMatMul.
func expertSchemes() string {
	var names []string
	for _, s := range Schemes {
		if s.Experts() {
			names = append(names, string(s))
		}
	}
	return strings.Join(names, ", ")
}

// Weight is the weight half of the scheme ("w32", "q8c", "q4b32").
func (s Scheme) Weight() string {
	_, w, _ := strings.Cut(string(s), "/")
	return w
}

// Activation is the activation half of the scheme ("a32", "a8t").
func (s Scheme) Activation() string {
	a, _, _ := strings.Cut(string(s), "/")
	return a
}

// QuantisedRows reports whether activations enter as u8 rows with scales.
func (s Scheme) QuantisedRows() bool { return s.Activation() == "a8t" || s.Scales() > 0 }

// Scales is the number of static scales that 8-bit rows choose from, 0 where each has its own or none.
func (s Scheme) Scales() int {
	switch s.Activation() {
	case "a8s":
		return 1
	case "a8s2":
		return 2
	case "a8s4":
		return 4
	}
	return 0
}

// QuantRows is the operator that quantises what enters a product of the scheme: m tokens with fan rows each (0 and 1: one)
// of n numbers.
func (s Scheme) QuantRows(m, n, fan int) Op {
	o := Op{Kind: QuantRows, M: m, N: n, Static: s.Scales() > 0}
	if fan > 1 {
		o.Fan = fan
	}
	if s.Scales() > 1 {
		o.Scales = s.Scales()
	}
	return o
}

// MaxScales is the most static scales that QuantRows chooses from.
const MaxScales = 4

// StaticScale is the one of several static scales that a row of 8-bit codes has whose largest magnitude is top: the smallest
// that holds it, which is not below top/127 in float32, the scale that the row would have of its own; the largest where none
// holds it.
func StaticScale(scales []float32, top float32) float32 {
	own, least, most := top/127, float32(math.Inf(1)), scales[0]
	for _, s := range scales {
		most = max(most, s)
		if s >= own {
			least = min(least, s)
		}
	}
	return min(least, most)
}

// Static reports whether the scales of activations are constants of the plan, which come from a calibration, rather
// than of each row.
func (s Scheme) Static() bool { return s.Scales() > 0 || s.Grid() }

// Grid reports whether activations enter and leave as f32 values that are rounded to multiples of a static step each,
// inside the product: the weight steps.
func (s Scheme) Grid() bool { return s.Activation() == "a16s" }

// Rounds reports whether a product rounds activations, so that two right executions may differ by a step of theirs.
func (s Scheme) Rounds() bool { return s.QuantisedRows() || s.Grid() || s.Half() }

// Half reports whether activations enter and leave as f32 values that are rounded to f16, inside the product.
func (s Scheme) Half() bool { return s.Activation() == "a16f" }

// Experts reports whether an ExpertMatMul can have the scheme.
func (s Scheme) Experts() bool { return !s.Grid() && !s.Half() }

// Twin is the scheme whose products have the same operands and the same arithmetic, so that they take the same time: of
// schemes with static scales of rows that with scales of each row, of which the one with a single static scale is the twin.
// "" for others.
func (s Scheme) Twin() Scheme {
	switch s {
	case A8SQ8C, A8S2Q8C, A8S4Q8C:
		return A8TQ8C
	case A8TQ8C:
		return A8SQ8C
	}
	return ""
}

// WeightBytes is the stored size of a [K,N] weight in the weight scheme, without padding:
// w32 4 bytes a value, w16 2; q8c 1 byte a value and 8 bytes a column (scale and column sum);
// q4b32 and q4b128 half a byte a value and a 2-byte scale per block; q4c half a byte a value and 4 bytes a column.
func WeightBytes(scheme string, k, n int) int64 {
	kk, nn := int64(k), int64(n)
	switch scheme {
	case "w32":
		return 4 * kk * nn
	case "q8c":
		return kk*nn + 8*nn
	case "w16":
		return 2 * kk * nn
	case "q4c":
		return (kk+1)/2*nn + 4*nn
	case "q4b32", "q4b128":
		block := int64(blockRows(scheme))
		return (kk + block - 1) / block * (block/2 + 2) * nn
	}
	return 0
}

// blockRows is the number of rows of a weight that share one scale, 1 for schemes without blocks.
func blockRows(weight string) int {
	switch weight {
	case "q4b32":
		return 32
	case "q4b128":
		return 128
	}
	return 1
}

// BlockK is the number of rows of a weight that share one scale: parts of it along K are multiples of it. It is 1
// for schemes without blocks.
func (s Scheme) BlockK() int { return blockRows(s.Weight()) }

// Op is one operator with its shape. Fields a kind does not use are zero.
type Op struct {
	Kind Kind `json:"kind" yaml:"kind"`
	M    int  `json:"m" yaml:"m"`                     // rows
	K    int  `json:"k,omitempty" yaml:"k,omitempty"` // reduction length (MatMul), vocabulary (Embed)
	N    int  `json:"n,omitempty" yaml:"n,omitempty"` // output columns

	Scheme Scheme `json:"scheme,omitempty" yaml:"scheme,omitempty"` // MatMul; Embed: I32Q8C, or empty
	Table  Type   `json:"table,omitempty" yaml:"table,omitempty"`   // Embed without Scheme: element type of the table

	Heads   int  `json:"heads,omitempty" yaml:"heads,omitempty"`       // query heads
	KVHeads int  `json:"kv_heads,omitempty" yaml:"kv_heads,omitempty"` // key/value heads
	HeadDim int  `json:"head_dim,omitempty" yaml:"head_dim,omitempty"` // even for Rope
	Context int  `json:"context,omitempty" yaml:"context,omitempty"`   // Attention: cached positions including the new rows
	KV      Type `json:"kv,omitempty" yaml:"kv,omitempty"`             // KVAppend, Attention: element type of the cache
	// Batch: every row is of a sequence of its own, at that one's position and on its cache (Rope, KVAppend, Attention,
	// whose Context is then that of every row); else the rows follow one another in one sequence.
	Batch bool `json:"batch,omitempty" yaml:"batch,omitempty"`

	Interleave int    `json:"interleave,omitempty" yaml:"interleave,omitempty"` // GLU: columns of gate, then as many of up
	Act        string `json:"act,omitempty" yaml:"act,omitempty"`               // GLU, Activate
	Bias       bool   `json:"bias,omitempty" yaml:"bias,omitempty"`             // MatMul: a row is added
	Static     bool   `json:"static,omitempty" yaml:"static,omitempty"`         // QuantRows: the scale is a weight
	Scales     int    `json:"scales,omitempty" yaml:"scales,omitempty"`         // QuantRows with Static: how many scales, 2..MaxScales; 0 is 1
	Form       Form   `json:"form,omitempty" yaml:"form,omitempty"`             // MatMul: how it is put to the processor

	Experts int     `json:"experts,omitempty" yaml:"experts,omitempty"` // Route, ExpertMatMul
	Fan     int     `json:"fan,omitempty" yaml:"fan,omitempty"`         // rows of operands per token: experts chosen for it; 0 is 1
	Spread  bool    `json:"spread,omitempty" yaml:"spread,omitempty"`   // ExpertMatMul: activations have one row per token
	Router  string  `json:"router,omitempty" yaml:"router,omitempty"`   // Route
	Jitter  float64 `json:"jitter,omitempty" yaml:"jitter,omitempty"`   // Route by sparsemixer

	Window    int     `json:"window,omitempty" yaml:"window,omitempty"`         // Attention: a row attends to this many positions, its own included; 0: all
	Cap       float64 `json:"cap,omitempty" yaml:"cap,omitempty"`               // Softcap, Clip, Attention: scores are Cap*tanh(score/Cap); 0: not
	Scale     float64 `json:"scale,omitempty" yaml:"scale,omitempty"`           // Attention: of scores, 0: 1/sqrt(HeadDim); Embed: of rows, 0: 1
	Joint     bool    `json:"joint,omitempty" yaml:"joint,omitempty"`           // QKNorm
	RotaryDim int     `json:"rotary_dim,omitempty" yaml:"rotary_dim,omitempty"` // Rope: 0: HeadDim
	Amplitude float64 `json:"amplitude,omitempty" yaml:"amplitude,omitempty"`   // Rope: factor of cosines and sines, 0: 1

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
func (o Op) HasScheme() bool { return o.Kind == MatMul || o.Kind == ExpertMatMul }

// Rows is the number of rows of the operands that have Fan rows per token.
func (o Op) Rows() int { return o.M * max(1, o.Fan) }

// Rotary is the number of elements of a head that Rope rotates.
func (o Op) Rotary() int {
	if o.RotaryDim > 0 {
		return o.RotaryDim
	}
	return o.HeadDim
}

// inputRows is the number of rows of an ExpertMatMul's activations.
func (o Op) inputRows() int {
	if o.Spread {
		return o.M
	}
	return o.Rows()
}

// QKVColumns is the width of a fused QKV row of heads query and kvHeads key/value heads.
func QKVColumns(heads, kvHeads, headDim int) int { return (heads + 2*kvHeads) * headDim }

// Key names everything of the operator that can influence its cost, in a stable form, e.g.
// "matmul[256,2048]x[2048,5632] a8t/q8c".
func (o Op) Key() string {
	switch o.Kind {
	case MatMul:
		b := make([]byte, 0, 64) // solvers ask for this one most, thousands of times a plan
		for i, n := range []int{o.M, o.K, o.K, o.N} {
			b = strconv.AppendInt(append(b, []string{"matmul[", ",", "]x[", ","}[i]...), int64(n), 10)
		}
		b = append(append(b, "] "...), o.Scheme...)
		return string(b) + flag(o.Bias, " bias") + flag(o.Form != "", " "+string(o.Form))
	case ExpertMatMul:
		return fmt.Sprintf("expert_matmul[%d,%d]x[%d,%d,%d] %s fan=%d", o.M, o.K, o.Experts, o.K, o.N, o.Scheme, o.Fan) + flag(o.Spread, " spread")
	case Route:
		return fmt.Sprintf("route[%d,%d] fan=%d %s", o.M, o.Experts, o.Fan, o.Router)
	case Combine:
		return fmt.Sprintf("combine[%d,%d] fan=%d", o.M, o.N, o.Fan)
	case QKNorm:
		return fmt.Sprintf("qk_norm[%d] heads=%d/%d dim=%d", o.M, o.Heads, o.KVHeads, o.HeadDim) + flag(o.Joint, " joint")
	case Rope:
		return fmt.Sprintf("rope[%d] heads=%d/%d dim=%d", o.M, o.Heads, o.KVHeads, o.HeadDim) + flag(o.Rotary() != o.HeadDim, fmt.Sprintf(" rotary=%d", o.Rotary()))
	case KVAppend:
		return fmt.Sprintf("kv_append[%d] heads=%d dim=%d kv=%s", o.M, o.KVHeads, o.HeadDim, o.KV)
	case Attention:
		return fmt.Sprintf("attention[%d] heads=%d/%d dim=%d context=%d kv=%s", o.M, o.Heads, o.KVHeads, o.HeadDim, o.Context, o.KV) +
			flag(o.Window > 0, fmt.Sprintf(" window=%d", o.Window)) + flag(o.Cap > 0, " cap") + flag(o.Batch, " batch")
	case GLU, Activate:
		return fmt.Sprintf("%s[%d,%d] %s", o.Kind, o.Rows(), o.N, o.Act)
	case Embed:
		return fmt.Sprintf("embed[%d]x[%d,%d] %s%s", o.M, o.K, o.N, o.Table, o.Scheme)
	default:
		return fmt.Sprintf("%s[%d,%d]", o.Kind, o.Rows(), o.N) + flag(o.Static, " static") + flag(o.Scales > 0, fmt.Sprint(o.Scales))
	}
}

func flag(set bool, s string) string {
	if set {
		return s
	}
	return ""
}

// Flops counts multiplications and additions (2 per multiply-add). Attention counts the causal
// half only: row i of M attends to Context-M+i+1 positions, at most Window. In a batch every row attends to Context.
func (o Op) Flops() int64 {
	m, k, n := int64(o.Rows()), int64(o.K), int64(o.N)
	switch o.Kind {
	case MatMul, ExpertMatMul:
		return 2 * m * k * n
	case Attention:
		return 4 * o.attended() * int64(o.Heads) * int64(o.HeadDim)
	case Norm:
		return 4 * m * n
	case LayerNorm, QuantRows, GLU:
		return 6 * m * n
	case Activate, Softcap:
		return 5 * m * n
	case Add, Gate, Clip:
		return m * n
	case Combine:
		return 2 * m * n
	case Route:
		return int64(o.M) * int64(o.Experts) * int64(3+o.Fan)
	case QKNorm:
		return 4 * m * int64(o.Heads+o.KVHeads) * int64(o.HeadDim)
	case Rope:
		return 3 * m * int64(o.Heads+o.KVHeads) * int64(o.Rotary())
	}
	return 0
}

// attended is the number of (query row, cached position) pairs of a causal attention.
func (o Op) attended() int64 {
	m, c := int64(o.M), int64(o.Context)
	if o.Batch {
		if w := int64(o.Window); w > 0 {
			c = min(c, w)
		}
		return m * c
	}
	if c < m {
		c = m
	}
	full := m*(c-m) + m*(m+1)/2
	if w := int64(o.Window); w > 0 && c > w {
		short := max(0, min(m, w-(c-m))) // rows that attend to fewer than Window positions
		return short*(c-m) + short*(short+1)/2 + (m-short)*w
	}
	return full
}

// Bytes is the memory traffic of one execution with nothing cached: weights, inputs and outputs once.
// An ExpertMatMul reads the weights of at most M*Fan experts.
func (o Op) Bytes() int64 {
	m, k, n := int64(o.Rows()), int64(o.K), int64(o.N)
	switch o.Kind {
	case MatMul, ExpertMatMul:
		rows, experts := m, int64(1)
		if o.Kind == ExpertMatMul {
			rows, experts = int64(o.inputRows()), min(m, int64(o.Experts))
		}
		in := 4 * rows * k
		if o.Scheme.QuantisedRows() {
			in = rows*k + 4*rows
		}
		if o.Bias {
			in += 4 * n
		}
		if o.Scheme.Grid() {
			in += 8 * n
		}
		return experts*WeightBytes(o.Scheme.Weight(), o.K, o.N) + in + 4*m*n
	case Attention:
		row := int64(o.HeadDim) * int64(o.KV.Bytes())
		cached := int64(max(o.Context, o.M))
		switch {
		case o.Batch:
			cached = o.attended()
		case o.Window > 0:
			cached = min(cached, int64(o.Window)+m)
		}
		return 2*cached*int64(o.KVHeads)*row + 8*m*int64(o.Heads)*int64(o.HeadDim)
	case KVAppend:
		return 2 * m * int64(o.KVHeads) * int64(o.HeadDim) * int64(4+o.KV.Bytes())
	case QKNorm:
		return 8 * m * int64(o.Heads+o.KVHeads) * int64(o.HeadDim)
	case Rope:
		return 8 * m * int64(o.Heads+o.KVHeads) * int64(o.Rotary())
	case Embed:
		if o.Scheme != "" { // four values of a column, then those of the tile's other columns: a line of 64 bytes for each four
			return m * n * (64/4 + 4)
		}
		return m * n * int64(o.Table.Bytes()+4)
	case Norm, LayerNorm, Copy, Activate, Softcap, Clip, Gate:
		return 8 * m * n
	case SelectRow:
		return 8 * n
	case QuantRows:
		return 5*m*n + 4*m
	case GLU, Add:
		return 12 * m * n
	case Combine:
		return 4*m*n + 4*int64(o.M)*n
	case Route:
		return int64(o.M) * int64(4*o.Experts+8*o.Fan)
	}
	return 0
}

// maxDim bounds every dimension, so that products of three fit in int64 comfortably.
const maxDim = 1 << 24

// Validate reports the first field that makes no sense for the kind, or that the kind does not use.
func (o Op) Validate() error {
	bad := func(field string, v any, want string) error {
		return fmt.Errorf("operator %q: %s = %v, want %s", o.Kind, field, v, want)
	}
	pos := func(fields ...any) error {
		for i := 0; i < len(fields); i += 2 {
			if v := fields[i+1].(int); v < 1 || v > maxDim {
				return bad(fields[i].(string), v, fmt.Sprintf("1..%d", maxDim))
			}
		}
		return nil
	}
	number := func(field string, v, lo, hi float64) error {
		if !(v >= lo && v <= hi) {
			return bad(field, v, fmt.Sprintf("%v..%v", lo, hi))
		}
		return nil
	}
	if err := pos("m", o.M); err != nil {
		return err
	}
	if err := o.unused(); err != nil {
		return err
	}
	if o.Fan < 0 || o.Fan > maxFan || int64(o.M)*int64(max(1, o.Fan)) > maxDim {
		return bad("fan", o.Fan, fmt.Sprintf("0..%d and at most %d rows", maxFan, maxDim))
	}
	switch o.Kind {
	case MatMul, ExpertMatMul:
		if _, err := ParseScheme(string(o.Scheme)); err != nil {
			return fmt.Errorf("operator %q: %w", o.Kind, err)
		}
		if err := o.Form.check(o.M); err != nil {
			return fmt.Errorf("operator %q: %w", o.Kind, err)
		}
		if o.Kind == ExpertMatMul && !o.Scheme.Experts() {
			return fmt.Errorf("operator %q: scheme %q is one of products by a single matrix, experts take one of %s", o.Kind, o.Scheme, expertSchemes())
		}
		if o.Kind == ExpertMatMul {
			if err := pos("experts", o.Experts, "fan", o.Fan); err != nil {
				return err
			}
			if o.Experts > maxExperts {
				return bad("experts", o.Experts, fmt.Sprintf("1..%d", maxExperts))
			}
		}
		return pos("k", o.K, "n", o.N)
	case Embed:
		switch {
		case o.Scheme != "" && o.Scheme != I32Q8C:
			return bad("scheme", o.Scheme, fmt.Sprintf("%s, or none", I32Q8C))
		case o.Scheme != "" && o.Table != "":
			return bad("table", o.Table, "none beside a scheme")
		case o.Scheme == "" && o.Table.Bytes() == 0:
			return fmt.Errorf("operator %q: unknown table type %q", o.Kind, o.Table)
		}
		if err := number("scale", o.Scale, 0, 1<<20); err != nil {
			return err
		}
		return pos("k", o.K, "n", o.N)
	case Norm, LayerNorm:
		if err := number("eps", o.Eps, 0, 1); err != nil {
			return err
		}
		return pos("n", o.N)
	case QuantRows:
		if o.Scales < 0 || o.Scales == 1 || o.Scales > MaxScales {
			return bad("scales", o.Scales, fmt.Sprintf("2..%d, or 0 for one", MaxScales))
		}
		return pos("n", o.N)
	case Add, Copy, SelectRow, Gate:
		return pos("n", o.N)
	case Combine:
		return pos("n", o.N, "fan", o.Fan)
	case Softcap, Clip:
		if err := number("cap", o.Cap, 1e-6, 1<<20); err != nil {
			return err
		}
		return pos("n", o.N)
	case Route:
		if err := pos("experts", o.Experts, "fan", o.Fan); err != nil {
			return err
		}
		if o.Experts > maxExperts || o.Fan > o.Experts {
			return bad("experts", o.Experts, fmt.Sprintf("fan %d..%d", o.Fan, maxExperts))
		}
		if !slices.Contains(Routers, o.Router) {
			return bad("router", o.Router, "one of "+strings.Join(Routers, ", "))
		}
		if o.Router == RouteSparseMixer && o.Fan > 2 {
			return bad("fan", o.Fan, "1 or 2 for sparsemixer")
		}
		return number("jitter", o.Jitter, 0, 1)
	case Activate, GLU:
		if !slices.Contains(Acts, o.Act) {
			return bad("act", o.Act, "one of "+strings.Join(Acts, ", "))
		}
		if o.Kind == Activate {
			return pos("n", o.N)
		}
		if err := pos("n", o.N, "interleave", o.Interleave); err != nil {
			return err
		}
		if o.N%o.Interleave != 0 {
			return bad("n", o.N, fmt.Sprintf("a multiple of interleave %d", o.Interleave))
		}
		return nil
	case QKNorm, Rope, KVAppend, Attention:
		if err := pos("kv_heads", o.KVHeads, "head_dim", o.HeadDim); err != nil {
			return err
		}
		if o.Kind != KVAppend || o.Heads != 0 {
			if err := pos("heads", o.Heads); err != nil {
				return err
			}
			if o.Heads%o.KVHeads != 0 {
				return bad("heads", o.Heads, fmt.Sprintf("a multiple of kv_heads %d", o.KVHeads))
			}
		}
		switch o.Kind {
		case QKNorm:
			return number("eps", o.Eps, 0, 1)
		case Rope:
			if r := o.Rotary(); r%2 != 0 || r > o.HeadDim || o.RotaryDim < 0 {
				return bad("rotary_dim", r, fmt.Sprintf("an even number up to head_dim %d", o.HeadDim))
			}
			if o.LongFrom < 0 || o.LongFrom > maxDim {
				return bad("long_from", o.LongFrom, fmt.Sprintf("0..%d", maxDim))
			}
			if o.NTK != 0 && (o.LongFrom == 0 || o.Rotary() < 4) {
				return bad("ntk", o.NTK, "0 without long_from, or for fewer than 4 rotated elements")
			}
			for _, f := range []struct {
				name string
				v    float64
			}{{"amplitude", o.Amplitude}, {"long_amplitude", o.LongAmplitude}, {"ntk", o.NTK}} {
				if err := number(f.name, f.v, 0, 1<<20); err != nil {
					return err
				}
			}
			return nil
		}
		if o.KV != F32 && o.KV != F16 {
			return fmt.Errorf("operator %q: cache type %q, want f32 or f16", o.Kind, o.KV)
		}
		if o.Kind == Attention {
			if o.Window < 0 || o.Window > maxDim {
				return bad("window", o.Window, fmt.Sprintf("0..%d", maxDim))
			}
			if err := number("cap", o.Cap, 0, 1<<20); err != nil {
				return err
			}
			if err := number("scale", o.Scale, 0, 1<<20); err != nil {
				return err
			}
			return pos("context", o.Context)
		}
		return nil
	}
	return fmt.Errorf("unknown operator %q", o.Kind)
}

// Bounds of mixtures of experts, far above any published model.
const (
	maxExperts = 4096
	maxFan     = 256
)

// unused refuses fields that mean nothing to the kind, so that one operator has one description.
func (o Op) unused() error {
	k := o.Kind
	in := func(kinds ...Kind) bool { return slices.Contains(kinds, k) }
	for _, f := range []struct {
		name string
		set  bool
		ok   bool
	}{
		{"scheme", o.Scheme != "", in(MatMul, ExpertMatMul, Embed)},
		{"table", o.Table != "", in(Embed)},
		{"bias", o.Bias, in(MatMul)},
		{"static", o.Static, in(QuantRows)},
		{"scales", o.Scales != 0, o.Static},
		{"form", o.Form != "", in(MatMul)},
		{"act", o.Act != "", in(GLU, Activate)},
		{"interleave", o.Interleave != 0, in(GLU)},
		{"experts", o.Experts != 0, in(Route, ExpertMatMul)},
		{"fan", o.Fan != 0, in(Route, ExpertMatMul, Combine, GLU, Activate, QuantRows, Copy)},
		{"spread", o.Spread, in(ExpertMatMul)},
		{"router", o.Router != "", in(Route)},
		{"jitter", o.Jitter != 0, k == Route && o.Router == RouteSparseMixer},
		{"window", o.Window != 0, in(Attention)},
		{"cap", o.Cap != 0, in(Attention, Softcap, Clip)},
		{"scale", o.Scale != 0, in(Attention, Embed)},
		{"batch", o.Batch, in(Rope, KVAppend, Attention)},
		{"joint", o.Joint, in(QKNorm)},
		{"rotary_dim", o.RotaryDim != 0, in(Rope)},
		{"amplitude", o.Amplitude != 0, in(Rope)},
		{"long_from", o.LongFrom != 0, in(Rope)},
		{"long_amplitude", o.LongAmplitude != 0, k == Rope && o.LongFrom != 0 && o.NTK == 0},
		{"ntk", o.NTK != 0, in(Rope)},
	} {
		if f.set && !f.ok {
			return fmt.Errorf("operator %q: %s is set, and means nothing to it", k, f.name)
		}
	}
	return nil
}
