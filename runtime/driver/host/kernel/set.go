// Package kernel knows the arithmetic of the host processor: one function per operator on slices of
// numbers, in a reference form, a portable form and a form per vector instruction set.
//
// A Set holds one implementation of every function. Functions are pure: they allocate nothing, start
// nothing, keep nothing, and may run at the same time on disjoint outputs. Callers guarantee the
// lengths; a function reads and writes nothing outside the documented elements (not even the
// padding between rows), because the memory beyond may belong to another lane's output.
//
// Matrices are row-major, see Matrix. Packed weights are sequences of n32 tiles (see planir/pack): 32 columns each, the
// last one padded with zeros.
package kernel

import (
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/pack"
)

// On amd64 too, where the generator runs:
//go:generate go run -C gen . -tier neon -out ../vec_neon_arm64.s -stubs ../vec_neon_arm64.go -pkg kernel

// TileN is the number of columns of one tile of a packed weight.
const TileN = pack.TileN

// BlockK is the number of consecutive k that share one scale in q4b32, and one of BlockSums.
const BlockK = pack.BlockK

// EnvVar is the environment variable that forces a kernel set by name, e.g. "portable". It
// overrules the best set, not an explicit choice of the caller.
const EnvVar = "HETC_HOST_KERNELS"

// Set is one implementation of every function.
//
// The portable set is the twin that vector sets are compared with. These functions give the same bits: MatMulQ8C,
// MatMulQ6C, RequantQ4B32, BlockSums, QuantRows, QuantStatic, Add, Scale, Gate, Rope, Peak, Below, PoolBelow and the
// conversions.
// Within a set a result's bits depend neither on the rows nor on the columns computed with it.
//
// The other functions differ by rounding. Where nothing overflows, the difference, in units of 2^-24 of the sum of the
// magnitudes of the terms of a result, is at most
//
//   - 2+2k in MatMulF32 and MatMulBF16, 4+2*ceil(k/32) in the 4-bit products,
//   - 3 in Norm, 4 in LayerNorm, 2+2*fan in Combine, 12 in GLU, Activate and Softcap,
//   - 32+2n in attention over n positions, whose terms count their scores' rounding too. In AttentionBF16 that may round
//     a weight to the other neighbour among bfloat16 numbers.
//
// m, k, n are always rows, reduction length and columns of the call; m may be 0, k and n are at least 1.
type Set struct {
	Name string

	// TileStep is the number of tiles a matrix kernel handles best in one pass; callers that divide
	// a weight among threads use multiples of it. At least 1.
	TileStep int

	// MatMulF32 computes y[r,j] = sum_p x[r,p] w[p,j] for r < m, j < n. w is ceil(n/32) tiles of
	// [k][32] float32.
	MatMulF32 func(y, x Matrix[float32], w []float32, m, k, n int)

	// MatMulQ8C computes y[r,j] = float32(dot) * (x.Scale[r] * scale[j]), dot = sum_p (x[r,p]-128) q[p,j]
	// exact. w is ceil(n/32) tiles of [Kp/4][32][4] int8, 32 float32 scales, 32 int32 column sums,
	// Kp = k rounded up to 4.
	MatMulQ8C func(y Matrix[float32], x Quantised, w []byte, m, k, n int)

	// MatMulQ6C is MatMulQ8C for weights q = code-32, from tiles of ceil(k/16) groups of 384 bytes, which are
	// [3][32][4] (see planir/pack), and 32 float32 scales. It needs x.Sums.
	MatMulQ6C func(y Matrix[float32], x Quantised, w []byte, m, k, n int)

	// BlockSums computes sums[r,b] = sum of (x[r,p]-128) over the p < k of block b
	// (p/32 == b), the term of 6-bit and 4-bit products that does not depend on the weight.
	BlockSums func(sums Matrix[int32], x Matrix[uint8], m, k int)

	// MatMulQ4B32 computes y[r,j] = x.Scale[r] * sum_b float32(dot_b) * scale[b,j], where
	// dot_b = sum_{p in b} nibble[p,j] (x[r,p]-128) - 8 x.Sums[r,b] is exact and the sum over blocks is
	// sequential. w is ceil(n/32) tiles of Kp/32 blocks of 576 bytes: nibbles [8][64], 32 float16 scales.
	MatMulQ4B32 func(y Matrix[float32], x Quantised, w []byte, m, k, n int)

	// MatMulQ4B128 is MatMulQ4B32 for tiles of ceil(k/128) blocks of 2112 bytes: nibbles [32][64], 32 float16
	// scales. x.Sums are the same, one for each 32.
	MatMulQ4B128 func(y Matrix[float32], x Quantised, w []byte, m, k, n int)

	// PackFrom is the number of rows from which packing them first pays where they are multiplied with several tiles.
	// Sets without a way to multiply packed rows have nil functions.
	PackFrom int

	// PackRows writes group g of PackGroups(m) of m rows to dst, of PackedBytes(m, k, block) bytes, for a weight in
	// blocks of block rows, 0: one of all. The order is the set's own.
	PackRows func(dst []byte, x Matrix[uint8], m, k, block, g int)

	// PackRowsF32 is PackRows for float32 and weights without blocks; dst has m*k elements.
	PackRowsF32 func(dst []float32, x Matrix[float32], m, k, g int)

	// PackedF32 and PackedBF16 are MatMulF32 and MatMulBF16, and give the same bits, for at least PackFrom rows from
	// PackRowsF32.
	PackedF32  func(y Matrix[float32], x, w []float32, m, k, n int)
	PackedBF16 func(y Matrix[float32], x []float32, w []uint16, m, k, n int)

	// PackedQ8C, PackedQ4B32 and PackedQ4B128 are MatMulQ8C, MatMulQ4B32 and MatMulQ4B128, and give the same bits,
	// for at least PackFrom rows from PackRows. scratch has PackedScratch(x.K, block) bytes of any content.
	PackedQ8C, PackedQ4B32, PackedQ4B128 func(y Matrix[float32], x PackedRows, w, scratch []byte, n int)

	// RequantQ4B32 makes the q8c tile, of RequantBytes(k) bytes, of a q4b32 one. The scale of a column is 8*top/127, top
	// being the largest magnitude of the scales of its blocks, and a value is (nibble-8)*b/8 to the nearest, halves up,
	// where b is the scale of the block times 127/top, all float32, to the nearest.
	RequantQ4B32 func(tile, w []byte, k int)

	// PackedRequant is MatMulRequant, and gives the same bits, for at least PackFrom rows from PackRows without blocks.
	// scratch has RequantScratch(x.K) bytes of any content.
	PackedRequant func(y Matrix[float32], x PackedRows, w, scratch []byte, n int)

	// MatMulBF16 is MatMulF32 for ceil(n/32) tiles of [k][32] bfloat16, columns c and 16+c side by side.
	MatMulBF16 func(y, x Matrix[float32], w []uint16, m, k, n int)

	// QuantRows quantises each row: y.Scale[r] = absmax/127 (0 for a zero row),
	// y[r,c] = 128 + clamp(roundHalfEven(x[r,c]/y.Scale[r]), -127, 127), 128 throughout when y.Scale[r] is 0.
	// It returns the first row that holds NaN or an infinity, which has no such form, or -1; rows from
	// that one on are then undefined.
	QuantRows func(y Quantised, x Matrix[float32], m, n int) int

	// QuantStatic is QuantRows where each row has the one of the scales from, which are positive and finite, that
	// op.StaticScale names: what is larger than 127 times it saturates.
	QuantStatic func(y Quantised, from []float32, x Matrix[float32], m, n int) int

	// Norm computes y[r,c] = gain[c] * (x[r,c] / sqrt(mean_c(x[r,c]^2) + eps)); a zero row gives zeros
	// even when eps is 0. y may be x.
	Norm func(y, x Matrix[float32], gain []float32, eps float64, m, n int)

	// LayerNorm computes y[r,c] = gain[c] * (d[c] / sqrt(mean_c(d[c]^2) + eps)) + bias[c] for d[c] = x[r,c] -
	// mean_c(x[r,c]); a constant row gives bias even when eps is 0. y may be x.
	LayerNorm func(y, x Matrix[float32], gain, bias []float32, eps float64, m, n int)

	// GLU computes y[r,c] = act(gate) * up for one of op.Acts. A row of x is groups of interleave gate
	// columns and then as many up columns; n, the columns of y, is a multiple of interleave.
	GLU func(y, x Matrix[float32], act string, interleave, m, n int)

	// Activate computes y[r,c] = act(x[r,c]) for one of op.Acts. y may be x.
	Activate func(y, x Matrix[float32], act string, m, n int)

	// Softcap computes y[r,c] = limit*tanh(x[r,c]/limit). y may be x.
	Softcap func(y, x Matrix[float32], limit float64, m, n int)

	// Gate computes y[r,c] = x[r,c] * 1/(1+exp(-gate[r,0])). y may be x.
	Gate func(y, x, gate Matrix[float32], m, n int)

	// Scale multiplies x by s in place.
	Scale func(x []float32, s float64)

	// Add computes y[r,c] = a[r,c] + b[r,c]. y may be a or b; a stride of 0 adds one row to all.
	Add func(y, a, b Matrix[float32], m, n int)

	// Combine computes y[r,c] = sum_j weight[r,j] * x[r*fan+j,c] over j < fan, in the order of j.
	Combine func(y, x, weight Matrix[float32], m, fan, n int)

	// Rope rotates heads consecutive heads of headDim columns in place, in each the pairs (i, i+rotary/2) of
	// the first rotary columns, by the angle whose cosine and sine are cos[r*rotary/2+i] and sin[..].
	Rope func(x Matrix[float32], cos, sin []float32, m, heads, headDim, rotary int)

	// AttentionF32 is causal attention of the rows of all query heads that share one key/value head: head h of
	// row r begins at column h*Dim of q and y; k and v are [Pos+M, Dim] dense. scratch has
	// AttentionScratch(Heads, Dim) elements of any content.
	AttentionF32 func(y, q Matrix[float32], k, v []float32, scratch []float32, a Attention)

	// AttentionF16 is AttentionF32 over a float16 cache.
	AttentionF16 func(y, q Matrix[float32], k, v []uint16, scratch []float32, a Attention)

	// AttentionBF16 is AttentionF32 over a bfloat16 cache, in whose products both factors are bfloat16: queries are
	// rounded to it, and so are the weights of the softmax, each e to the power of its score less the largest one up to
	// the end of its block of positions (see Attention). Products are added in float32. Scores, the softmax and the sum
	// of its weights stay float32, and so does what concerns Rest but the queries. Numbers are rounded as ToBF16 does;
	// what is less than 2^-126 may count as zero everywhere.
	AttentionBF16 func(y, q Matrix[float32], k, v []uint16, scratch []float32, a Attention)

	// AttentionQ8 is AttentionF32 over an 8-bit cache, whose keys and values are rows of Dim+4 bytes as StoreQ8 makes
	// them, and with queries that are rounded in the same way, each head of a row by itself. A set may round the product
	// of a weight and its value's scale to 1/65535 of the largest weight and the largest scale in its block of positions
	// (see Attention), and scales less than 2^-90 to zero. A query that is not finite gives NaN. Of this one and
	// AttentionBF16 arm64 has the portable forms only.
	AttentionQ8 func(y, q Matrix[float32], k, v []uint8, scratch []float32, a Attention)

	// Peak is the largest of at least one finite number.
	Peak func(x []float32) float32

	// Below computes y = x - top, PoolBelow y = max(y, x - top), for as many numbers as x has, all finite.
	Below, PoolBelow func(y, x []float32, top float32)

	// FromF16 and FromBF16 widen src to dst, of equal length.
	FromF16, FromBF16 func(dst []float32, src []uint16)

	// ToF16 rounds src to float16 (nearest, ties to even) and reports whether all results are finite.
	ToF16 func(dst []uint16, src []float32) bool

	// ToBF16 rounds src to bfloat16 (nearest, ties to even; what is less than 2^-126 becomes zero) and reports whether
	// all results are finite.
	ToBF16 func(dst []uint16, src []float32) bool

	// PeakI8 and PeakF32 do at least ops operations as the matrix kernels do theirs, two per multiply-add, but on
	// registers alone, and return how many they did. ops is at most 1<<40.
	PeakI8, PeakF32 func(ops int64) (done int64)

	// Stream fetches b, whole lines of 64 bytes, as fast as this set's instructions can, and returns the sum of the
	// first 8-byte words of all lines, modulo 1<<64.
	Stream func(b []byte) uint64

	// Fetch asks memory for b and does not wait: it may be read soon. nil: the CPU's instruction for that is not used.
	Fetch func(b []byte)

	// Issue does at least n instructions that wait for nothing, and returns how many it did; nil: it is not written
	// for this CPU.
	Issue func(n int64) (done int64)
}

// Attention describes a call of the function of that name.
type Attention struct {
	M, Heads, Dim int     // rows, query heads, columns of a head
	Pos           int     // position of row 0
	Window        int     // row r attends to positions Pos+r-Window+1..Pos+r, 0: to all up to Pos+r
	Scale         float64 // of scores; positive
	Cap           float64 // a score s becomes Cap*tanh(s/Cap), 0: stays
	Rest          Rest

	// NextKeys and NextValues are what the caller reads next, as they are cached: kernels may ask memory for the first
	// of them. They may be empty.
	NextKeys, NextValues []byte

	// NextQueries are those of the rows that the caller computes next. Kernels may ask memory for them. It may be
	// empty.
	NextQueries Matrix[float32]
}

// Rest is a position outside the cache that every row attends to, and whose weight in the softmax counts Count times.
// All heads of a call share it. Without a count there is none.
type Rest struct {
	Key, Value []float32 // [Dim]
	Count      int
}

// restScore is the score of Rest for a query, with the logarithm of its count.
func (a *Attention) restScore(query []float32) float32 {
	score := float32(a.Scale) * dot(query, a.Rest.Key)
	if a.Cap > 0 {
		line := [1]float32{score}
		softcapRow(line[:], line[:], float32(a.Cap))
		score = line[0]
	}
	return score + float32(math.Log(float64(a.Rest.Count)))
}

// first is the first position that row r attends to.
func (a *Attention) first(r int) int {
	if a.Window == 0 {
		return 0
	}
	return max(0, a.Pos+r+1-a.Window)
}

// Attention works on blocks of keyBlock positions from the first one on, and of at most attentionRows rows, or of as
// many more as their heads leave of attentionLines: the fewer heads share keys and values, the more rows must.
const (
	attentionRows  = 8
	attentionLines = 256
	keyBlock       = 128
)

// AttentionRows is the number of rows, each of heads query heads, that Attention computes together; more rows in a call
// cost the same each.
func AttentionRows(heads int) int { return max(attentionRows, attentionLines/heads) }

// AttentionScratch is the number of float32 of scratch that Attention needs for heads query heads:
// room for an accumulator, a query, keyBlock scores and four numbers for each of AttentionRows rows and every head,
// and for one widened block of keys and values.
func AttentionScratch(heads, headDim int) int {
	dim := paddedDim(headDim)
	return AttentionRows(heads)*heads*(2*dim+keyBlock+4) + 2*keyBlock*dim
}

// paddedDim is the columns of a head rounded up to whole tiles.
func paddedDim(dim int) int { return (dim + TileN - 1) / TileN * TileN }

// Sets returns the sets this machine can run, slowest first. Each vector set has new forms of some functions; the others
// are those of the set in parentheses.
//
//   - reference accumulates in float64, portable is plain Go.
//   - avx2 (portable) also needs FMA and F16C.
//   - avx512 (avx2) has float32 products of 512 bits.
//   - avxvnni (avx2) has products of quantised rows with AVX-VNNI. Where a CPU has avx512 and avxvnni alone, which no
//     known one does, avxvnni counts as faster, because quantised weights are what machines are short of time for.
//   - avx512vnni (avx512) has products of quantised rows and attention over 8 bits with 512 bits.
//   - avx512bf16 (avx512vnni) has attention over bfloat16 with AVX512_BF16.
//   - amx (avx512bf16) has 8-bit and 4-bit products of many rows and attention over bfloat16 in tiles, for which the
//     operating system is asked.
//   - neon (portable), on arm64, needs the dot product instructions.
//   - i8mm (neon), on arm64, has 8-bit and 4-bit products of two rows and more with matrix instructions. It was never
//     timed and is used only where it is named.
func Sets() []*Set { return append([]*Set{Reference(), Portable()}, vectorSets()...) }

// vectorSets are the sets of vector instructions that this machine can run.
func vectorSets() []*Set { return append(measuredSets(), namedSets()...) }

// Untimed names the sets that this machine can run and that were never timed on a CPU that has their instructions.
func Untimed() (names []string) {
	for _, set := range namedSets() {
		names = append(names, set.Name)
	}
	return names
}

// Refused says why this process cannot use a set whose instructions its CPU has, "" where there is no such set.
func Refused() string { return refused() }

// Best returns the fastest set this machine can run. Sets that were never timed on a CPU that has their instructions
// are not among those it looks at: they are used where they are named.
func Best() *Set {
	sets := append([]*Set{Portable()}, measuredSets()...)
	return sets[len(sets)-1]
}

// ByName returns the named set; "" is the one in EnvVar, or Best. The error lists the valid names.
func ByName(name string) (*Set, error) {
	from := ""
	if name == "" {
		name, from = os.Getenv(EnvVar), " from "+EnvVar
	}
	if name == "" {
		return Best(), nil
	}
	var names []string
	what, class := "is not available on this machine", diag.ClassUsage
	if reason := lacking(name); reason != "" { // the name is right: a plan may have it, which was made elsewhere
		what, class = what+": "+reason, diag.ClassUnavailable
	}
	for _, set := range Sets() {
		if set.Name == name {
			return set, nil
		}
		names = append(names, set.Name)
	}
	return nil, diag.New(class, "select host kernels: %q%s %s", name, from, what).
		WithHint("%s", fmt.Sprintf("available: %s", strings.Join(names, ", ")))
}
