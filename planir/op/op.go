// Package op knows one operator of a language model: its kind, shape, element types,
// quantisation scheme, floating-point work and memory traffic. It is the vocabulary that
// models, records, cost models, plans and drivers share.
package op

import (
	"fmt"
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

// Kind names an operator. M is always the number of rows (tokens).
type Kind string

const (
	// Embed looks rows up: ids i32 [M,1], table [V=K,N] -> f32 [M,N].
	Embed Kind = "embed"
	// SelectRow copies one row: f32 [M,N] -> f32 [1,N]; the row index is the scalar Row of the call.
	SelectRow Kind = "select_row"
	// Norm is RMS normalisation: f32 [M,N], gain f32 [1,N] -> f32 [M,N].
	Norm Kind = "norm"
	// QuantRows quantises rows to 8 bit with one scale each: f32 [M,N] -> u8 [M,N], f32 [M,1].
	QuantRows Kind = "quant_rows"
	// MatMul multiplies by a weight: activations [M,K] (f32, or u8 with scales [M,1]) x weight [K,N] -> f32 [M,N].
	MatMul Kind = "matmul"
	// Rope rotates the query and key heads of a fused QKV row in place: f32 [M,(Heads+2*KVHeads)*HeadDim].
	Rope Kind = "rope"
	// KVAppend stores the key and value heads of a fused QKV row at positions Pos..Pos+Rows-1 of the cache.
	KVAppend Kind = "kv_append"
	// Attention is causal attention over the cache: fused QKV [M,(Heads+2*KVHeads)*HeadDim] -> f32 [M,Heads*HeadDim].
	// Context is the number of cached positions a cost is asked for.
	Attention Kind = "attention"
	// SiluMul is silu(gate)*up: f32 [M,2N], gate and up interleaved by Interleave columns -> f32 [M,N].
	SiluMul Kind = "silu_mul"
	// Add adds: f32 [M,N] + f32 [M,N] -> f32 [M,N].
	Add Kind = "add"
	// Copy moves a view: [M,N] -> [M,N] of the same type.
	Copy Kind = "copy"
)

// Kinds lists every kind in a fixed order.
var Kinds = []Kind{Embed, SelectRow, Norm, QuantRows, MatMul, Rope, KVAppend, Attention, SiluMul, Add, Copy}

// Scheme names activation and weight quantisation, written activation/weight ("a8t/q8c").
type Scheme string

const (
	A32W32   Scheme = "a32/w32"
	A8TQ8C   Scheme = "a8t/q8c"
	A8TQ4B32 Scheme = "a8t/q4b32"
)

// Schemes lists the schemes hetc can pack and execute.
var Schemes = []Scheme{A32W32, A8TQ8C, A8TQ4B32}

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
func (s Scheme) QuantisedRows() bool { return s.Activation() == "a8t" }

// WeightBytes is the stored size of a [K,N] weight in the weight scheme, without padding:
// w32 4 bytes a value; q8c 1 byte a value and 8 bytes a column (scale and column sum);
// q4b32 half a byte a value and a 2-byte scale per block of 32.
func WeightBytes(scheme string, k, n int) int64 {
	kk, nn := int64(k), int64(n)
	switch scheme {
	case "w32":
		return 4 * kk * nn
	case "q8c":
		return kk*nn + 8*nn
	case "q4b32":
		blocks := (kk + 31) / 32
		return blocks * 18 * nn
	}
	return 0
}

// Op is one operator with its shape. Fields a kind does not use are zero.
type Op struct {
	Kind Kind `json:"kind" yaml:"kind"`
	M    int  `json:"m" yaml:"m"`                     // rows
	K    int  `json:"k,omitempty" yaml:"k,omitempty"` // reduction length (MatMul), vocabulary (Embed)
	N    int  `json:"n,omitempty" yaml:"n,omitempty"` // output columns

	Scheme Scheme `json:"scheme,omitempty" yaml:"scheme,omitempty"` // MatMul
	Table  Type   `json:"table,omitempty" yaml:"table,omitempty"`   // Embed: element type of the table

	Heads   int  `json:"heads,omitempty" yaml:"heads,omitempty"`       // query heads
	KVHeads int  `json:"kv_heads,omitempty" yaml:"kv_heads,omitempty"` // key/value heads
	HeadDim int  `json:"head_dim,omitempty" yaml:"head_dim,omitempty"` // even for Rope
	Context int  `json:"context,omitempty" yaml:"context,omitempty"`   // Attention: cached positions including the new rows
	KV      Type `json:"kv,omitempty" yaml:"kv,omitempty"`             // KVAppend, Attention: element type of the cache

	Interleave int `json:"interleave,omitempty" yaml:"interleave,omitempty"` // SiluMul: columns of gate, then as many of up

	Eps float64 `json:"eps,omitempty" yaml:"eps,omitempty"` // Norm: added to the mean square; no influence on cost
}

// QKVColumns is the width of a fused QKV row of heads query and kvHeads key/value heads.
func QKVColumns(heads, kvHeads, headDim int) int { return (heads + 2*kvHeads) * headDim }

// Key names everything of the operator that can influence its cost, in a stable form, e.g.
// "matmul[256,2048]x[2048,5632] a8t/q8c".
func (o Op) Key() string {
	switch o.Kind {
	case MatMul:
		return fmt.Sprintf("matmul[%d,%d]x[%d,%d] %s", o.M, o.K, o.K, o.N, o.Scheme)
	case Rope:
		return fmt.Sprintf("rope[%d] heads=%d/%d dim=%d", o.M, o.Heads, o.KVHeads, o.HeadDim)
	case KVAppend:
		return fmt.Sprintf("kv_append[%d] heads=%d dim=%d kv=%s", o.M, o.KVHeads, o.HeadDim, o.KV)
	case Attention:
		return fmt.Sprintf("attention[%d] heads=%d/%d dim=%d context=%d kv=%s", o.M, o.Heads, o.KVHeads, o.HeadDim, o.Context, o.KV)
	case Embed:
		return fmt.Sprintf("embed[%d]x[%d,%d] %s", o.M, o.K, o.N, o.Table)
	default:
		return fmt.Sprintf("%s[%d,%d]", o.Kind, o.M, o.N)
	}
}

// Flops counts multiplications and additions (2 per multiply-add). Attention counts the causal
// half only: row i of M attends to Context-M+i+1 positions.
func (o Op) Flops() int64 {
	m, k, n := int64(o.M), int64(o.K), int64(o.N)
	switch o.Kind {
	case MatMul:
		return 2 * m * k * n
	case Attention:
		return 4 * o.attended() * int64(o.Heads) * int64(o.HeadDim)
	case Norm:
		return 4 * m * n
	case QuantRows, SiluMul:
		return 6 * m * n
	case Add:
		return m * n
	case Rope:
		return 3 * m * int64(o.Heads+o.KVHeads) * int64(o.HeadDim)
	}
	return 0
}

// attended is the number of (query row, cached position) pairs of a causal attention.
func (o Op) attended() int64 {
	m, c := int64(o.M), int64(o.Context)
	if c < m {
		c = m
	}
	return m*(c-m) + m*(m+1)/2
}

// Bytes is the memory traffic of one execution with nothing cached: weights, inputs and outputs once.
func (o Op) Bytes() int64 {
	m, k, n := int64(o.M), int64(o.K), int64(o.N)
	switch o.Kind {
	case MatMul:
		in := 4 * m * k
		if o.Scheme.QuantisedRows() {
			in = m*k + 4*m
		}
		return WeightBytes(o.Scheme.Weight(), o.K, o.N) + in + 4*m*n
	case Attention:
		row := int64(o.HeadDim) * int64(o.KV.Bytes())
		return 2*int64(max(o.Context, o.M))*int64(o.KVHeads)*row + 8*m*int64(o.Heads)*int64(o.HeadDim)
	case KVAppend:
		return 2 * m * int64(o.KVHeads) * int64(o.HeadDim) * int64(4+o.KV.Bytes())
	case Rope:
		return 8 * m * int64(o.Heads+o.KVHeads) * int64(o.HeadDim)
	case Embed:
		return m * n * int64(o.Table.Bytes()+4)
	case Norm, Copy:
		return 8 * m * n
	case SelectRow:
		return 8 * n
	case QuantRows:
		return 5*m*n + 4*m
	case SiluMul, Add:
		return 12 * m * n
	}
	return 0
}

// maxDim bounds every dimension, so that products of three fit in int64 comfortably.
const maxDim = 1 << 24

// Validate reports the first field that makes no sense for the kind.
func (o Op) Validate() error {
	bad := func(field string, v int, want string) error {
		return fmt.Errorf("operator %q: %s = %d, want %s", o.Kind, field, v, want)
	}
	pos := func(fields ...any) error {
		for i := 0; i < len(fields); i += 2 {
			if v := fields[i+1].(int); v < 1 || v > maxDim {
				return bad(fields[i].(string), v, fmt.Sprintf("1..%d", maxDim))
			}
		}
		return nil
	}
	if err := pos("m", o.M); err != nil {
		return err
	}
	switch o.Kind {
	case MatMul:
		if _, err := ParseScheme(string(o.Scheme)); err != nil {
			return fmt.Errorf("operator %q: %w", o.Kind, err)
		}
		return pos("k", o.K, "n", o.N)
	case Embed:
		if o.Table.Bytes() == 0 {
			return fmt.Errorf("operator %q: unknown table type %q", o.Kind, o.Table)
		}
		return pos("k", o.K, "n", o.N)
	case Norm, QuantRows, Add, Copy, SelectRow:
		return pos("n", o.N)
	case SiluMul:
		if err := pos("n", o.N, "interleave", o.Interleave); err != nil {
			return err
		}
		if o.N%o.Interleave != 0 {
			return bad("n", o.N, fmt.Sprintf("a multiple of interleave %d", o.Interleave))
		}
		return nil
	case Rope, KVAppend, Attention:
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
		if o.Kind == Rope {
			if o.HeadDim%2 != 0 {
				return bad("head_dim", o.HeadDim, "even")
			}
			return nil
		}
		if o.KV != F32 && o.KV != F16 {
			return fmt.Errorf("operator %q: cache type %q, want f32 or f16", o.Kind, o.KV)
		}
		if o.Kind == Attention {
			return pos("context", o.Context)
		}
		return nil
	}
	return fmt.Errorf("unknown operator %q", o.Kind)
}
