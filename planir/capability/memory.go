package capability

import (
	"fmt"

	"github.com/hetc/hetc/planir/op"
)

// Memory is what a process holds so that a processor can work, beside weights, cache and buffers. Drivers tell it, so
// that plans predict their memory without knowing any kernel.
type Memory struct {
	// of each loaded step, in each layer
	StepBytes int64 `json:"step_bytes" yaml:"step_bytes"`
	// of the driver's library, once, with nothing loaded
	LibraryBytes int64    `json:"library_bytes,omitempty" yaml:"library_bytes,omitempty"`
	Scratch      *Scratch `json:"scratch,omitempty" yaml:"scratch,omitempty"` // nil: not known
}

// Scratch says how kernels hold the temporary memory of a graph: regions that are allocated once, each as large as the
// operator that needs most of it, for all cores together or for each core. The counts are in 4-byte words where no unit
// is named. A driver whose kernels hold less of a region may state what makes the result an upper bound.
type Scratch struct {
	Align int64 `json:"align" yaml:"align"` // bytes that regions and temporary values are rounded up to
	Block int64 `json:"block" yaml:"block"` // columns of a weight's tile, and rows of K that have one sum

	// Products of PackRows rows or more pack their rows first where the weight has at least PackTiles tiles, for
	// float32 rows at least PackFloatTiles, and PackTilesPerCore for each core.
	PackRows         int64 `json:"pack_rows" yaml:"pack_rows"`
	PackTiles        int64 `json:"pack_tiles" yaml:"pack_tiles"`
	PackFloatTiles   int64 `json:"pack_float_tiles" yaml:"pack_float_tiles"`
	PackTilesPerCore int64 `json:"pack_tiles_per_core" yaml:"pack_tiles_per_core"`
	// UnpackWords is what each core holds of an unpacked weight of blocks of K, with its sums.
	UnpackWords int64 `json:"unpack_words" yaml:"unpack_words"`

	// Each core holds GLUWords results of a product that ends with a gated linear unit, or two tiles of its columns where
	// those have more: there is no temporary value of all results. 0: there is.
	GLUWords int64 `json:"glu_words,omitempty" yaml:"glu_words,omitempty"`

	// Each core multiplies ExpertRows rows of an expert at a time, or fewer where their results exceed ExpertWords.
	ExpertRows  int64 `json:"expert_rows" yaml:"expert_rows"`
	ExpertWords int64 `json:"expert_words" yaml:"expert_words"`

	// Each core multiplies what static scales cut off for OutlierCols columns of a result at a time.
	OutlierCols int64 `json:"outlier_cols,omitempty" yaml:"outlier_cols,omitempty"`

	// Each core attends with AttentionRows rows at a time to AttentionKeys positions of the cache, or with as many more
	// rows as the query heads that share keys leave of AttentionLines.
	AttentionRows  int64 `json:"attention_rows" yaml:"attention_rows"`
	AttentionLines int64 `json:"attention_lines,omitempty" yaml:"attention_lines,omitempty"`
	AttentionKeys  int64 `json:"attention_keys" yaml:"attention_keys"`
}

// maxNumber bounds the numbers of a Memory: above any real one, and products of them with a graph's sizes stay exact.
const maxNumber = 1 << 32

// Clone returns a copy that shares nothing with m, nil for nil.
func (m *Memory) Clone() *Memory {
	if m == nil {
		return nil
	}
	out := *m
	if m.Scratch != nil {
		scratch := *m.Scratch
		out.Scratch = &scratch
	}
	return &out
}

// Validate reports the first number that is out of range.
func (m *Memory) Validate() error {
	scratch := m.Scratch
	if scratch == nil {
		scratch = &Scratch{Align: 1, Block: 1, PackRows: 1}
	}
	for _, number := range []struct {
		name        string
		value, from int64
	}{
		{"step_bytes", m.StepBytes, 0}, {"library_bytes", m.LibraryBytes, 0}, {"scratch.align", scratch.Align, 1},
		{"scratch.block", scratch.Block, 1},
		{"scratch.pack_rows", scratch.PackRows, 1}, {"scratch.pack_tiles", scratch.PackTiles, 0},
		{"scratch.pack_float_tiles", scratch.PackFloatTiles, 0},
		{"scratch.pack_tiles_per_core", scratch.PackTilesPerCore, 0}, {"scratch.unpack_words", scratch.UnpackWords, 0},
		{"scratch.glu_words", scratch.GLUWords, 0},
		{"scratch.expert_rows", scratch.ExpertRows, 0}, {"scratch.expert_words", scratch.ExpertWords, 0},
		{"scratch.outlier_cols", scratch.OutlierCols, 0},
		{"scratch.attention_rows", scratch.AttentionRows, 0}, {"scratch.attention_lines", scratch.AttentionLines, 0},
		{"scratch.attention_keys", scratch.AttentionKeys, 0},
	} {
		if number.value < number.from || number.value > maxNumber {
			return fmt.Errorf("%s is %d, want %d..%d", number.name, number.value, number.from, int64(maxNumber))
		}
	}
	return nil
}

// regions are the parts of a processor's scratch, in words. An operator has at most one use of each.
type regions struct {
	sums, scales, gathered, order, packed int64 // of all rows
	own                                   int64 // of each core
}

// atLeast raises each region to that of another need.
func (r *regions) atLeast(other regions) {
	r.sums, r.scales, r.gathered = max(r.sums, other.sums), max(r.scales, other.scales), max(r.gathered, other.gathered)
	r.order, r.packed, r.own = max(r.order, other.order), max(r.packed, other.packed), max(r.own, other.own)
}

// Bytes returns the temporary memory that a processor of that many cores needs for a graph: its temporary values, and
// what its operators keep for their rows and cores. Processors hold that of their largest graph, once. It is an upper
// bound.
func (s *Scratch) Bytes(graph *op.Graph, cores int) int64 {
	var bytes int64
	for _, value := range graph.Temps {
		bytes += s.temp(value)
	}
	var most regions
	for i := range graph.Nodes {
		operator := &graph.Nodes[i].Op
		need := s.of(operator, int64(cores))
		if s.GLUWords > 0 && graph.EndsWithGLU(i) {
			bytes -= s.temp(operator.Sig().Out[0])
			need.own += s.gluWords(operator)
		}
		most.atLeast(need)
	}
	for _, words := range []int64{most.sums, most.scales, most.gathered, most.order, most.packed} {
		bytes += op.RoundUp(4*words, s.Align)
	}
	return bytes + op.RoundUp(4*most.own, s.Align)*int64(cores)
}

// temp returns the bytes of a temporary value.
func (s *Scratch) temp(value op.Value) int64 {
	return op.RoundUp(int64(value.Rows)*int64(value.Cols)*int64(value.Type.Bytes()), s.Align)
}

// gluWords returns what each core holds of the results of a product that ends with a gated linear unit.
func (s *Scratch) gluWords(product *op.Op) int64 {
	rows := int64(product.M)
	return min(max(s.GLUWords, 2*s.Block*rows), rows*op.RoundUp(int64(product.N), s.Block))
}

// of returns what one operator needs.
func (s *Scratch) of(operator *op.Op, cores int64) regions {
	rows := int64(operator.Rows())
	switch operator.Kind {
	case op.QuantRows:
		return regions{scales: rows}
	case op.MatMul:
		return s.product(operator, rows, cores)
	case op.ExpertMatMul:
		return s.experts(operator, rows)
	case op.GroupMatMul:
		return s.inputs(operator, rows)
	case op.Collect: // the rows of a token
		return regions{own: int64(operator.Fan) * int64(operator.N)}
	case op.OutlierMatMul: // a row of the weight for each channel, one for the sum so far, and a factor for each
		return regions{own: int64(operator.Gathered()+1) * (s.OutlierCols + 1)}
	case op.QKNorm:
		if operator.Joint {
			return regions{own: int64(operator.Heads) * int64(operator.HeadDim)}
		}
	case op.KVAppend:
		if operator.KV == op.Q8 {
			return regions{own: 1} // a scale
		}
	case op.Attention:
		return regions{own: s.attention(operator)}
	case op.Estimate:
		return s.estimate(operator)
	case op.Select:
		return regions{own: int64(operator.Context)} // scores in another order
	case op.SparseAttend: // dense attention of one head, and the keys and values that are gathered for it
		single := *operator
		single.Heads, single.KVHeads = 1, 1
		gathered := op.RoundUp(operator.KV.CacheRowBytes(operator.HeadDim)*int64(operator.Context), 16) / 4
		means := int64(0)
		if operator.Rest {
			means = int64(operator.KVHeads) * int64(operator.Blocks()) * 2 * int64(operator.HeadDim)
		}
		return regions{packed: means, own: s.attention(&single) + 2*gathered}
	}
	return regions{}
}

// attention returns what each core holds of the lines that it attends with, a line being one query head of one row:
// query, sum, scores and four numbers; and of a block of keys and values.
func (s *Scratch) attention(operator *op.Op) int64 {
	group := int64(max(1, operator.Heads/max(1, operator.KVHeads)))
	dim := op.RoundUp(int64(operator.HeadDim), s.Block)
	lines := max(s.AttentionRows, s.AttentionLines/group) * group
	return lines*(2*dim+s.AttentionKeys+4) + 2*s.AttentionKeys*dim
}

// estimate returns what the estimate of scores holds: the keys as tiles of 8-bit weights, each with a scale and a sum
// for every column; and for each core the queries of a block with their scales and scores, or a key before it is
// packed.
func (s *Scratch) estimate(operator *op.Op) regions {
	rows, dim := int64(min(operator.Block, operator.M)), int64(operator.HeadDim)
	columns := op.RoundUp(int64(operator.Context), s.Block)
	return regions{packed: int64(operator.KVHeads) * columns * (op.RoundUp(dim, 4) + 8) / 4,
		own: max(rows+(rows*dim+3)/4+rows*columns, 2*dim+1)}
}

// inputs returns what a product holds of its rows: scales and sums where they are quantised.
func (s *Scratch) inputs(operator *op.Op, rows int64) regions {
	if !operator.Scheme.QuantisedRows() {
		return regions{}
	}
	return regions{scales: rows, sums: rows * (int64(operator.K)/s.Block + 1)}
}

// imitated returns what schemes without kernels hold: rounded rows, and an unpacked tile for each core.
func (s *Scratch) imitated(operator *op.Op, rows int64) regions {
	return regions{gathered: rows * int64(operator.K), own: int64(operator.K) * s.Block}
}

// product returns what a matrix product needs: its quantised rows and, where packing them pays, their packed copy.
func (s *Scratch) product(operator *op.Op, rows, cores int64) regions {
	if operator.Scheme.RoundsResults() {
		return s.imitated(operator, rows)
	}
	out, depth := s.inputs(operator, rows), int64(operator.K)
	if operator.Scheme.Requantises() { // a tile of 8-bit values, with a scale and a sum for each column
		out.own = (op.RoundUp(depth, 4)/4 + 2) * s.Block
	}
	tiles := (int64(operator.N) + s.Block - 1) / s.Block
	if rows < s.PackRows || tiles < max(s.PackTiles, s.PackTilesPerCore*cores) || operator.Scheme.FewRows() {
		return out
	}
	switch block := int64(operator.Scheme.BlockK()); {
	case !operator.Scheme.QuantisedRows():
		if tiles >= s.PackFloatTiles {
			out.packed = rows * depth
		}
	case block == 1, operator.Scheme.Requantises(): // four 8-bit values a word, and a sum for each row
		out.own += op.RoundUp(depth, 4) / 4 * s.Block
		out.packed = rows * (op.RoundUp(depth, 4)/4 + 1)
	default: // the same for each block
		out.own += s.UnpackWords
		out.packed = rows * (op.RoundUp(depth, block) / block * (block/4 + 1))
	}
	return out
}

// experts returns what a product with one matrix for each expert needs: the order of rows by expert, the rows gathered
// in that order, and the results of one piece of an expert for each core.
func (s *Scratch) experts(operator *op.Op, rows int64) regions {
	if operator.Scheme.RoundsResults() {
		return s.imitated(operator, rows)
	}
	out, size := s.inputs(operator, rows), int64(4) // bytes of an element
	if operator.Scheme.QuantisedRows() {
		size = 1
	}
	out.order = rows
	out.gathered = (rows*int64(operator.K)*size + 3) / 4
	out.own = min(s.ExpertWords, min(rows, s.ExpertRows)*op.RoundUp(int64(operator.N), s.Block))
	return out
}
