package host

import (
	"errors"
	"fmt"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// keyTiles is how many tiles of keys one task of estimate packs.
const keyTiles = 8

// estimate is what the steps of op.Estimate share.
type estimate struct {
	*sparse
	tiles, tileBytes int // of a key head, and the bytes of each
}

// estimate makes the step of op.Estimate, and one before it that packs the keys (see sparse.go).
func (b *builder) estimate() (step, error) {
	operator := b.op
	s, err := b.newSparse()
	if err != nil {
		return step{}, err
	}
	tileBytes, err := pack.TileBytes(op.A8TQ8C.Weight(), operator.HeadDim)
	if err != nil {
		return step{}, err
	}
	if operator.HeadDim > maxDotK {
		return step{}, fmt.Errorf("head_dim = %d, want at most %d", operator.HeadDim, maxDotK)
	}
	packs, local := sparseWords(operator, int(tileBytes))
	if int64(packs)*4 > maxWork || int64(local)*4 > maxWork {
		return step{}, fmt.Errorf("context %d needs more than %d bytes of scratch", operator.Context, int64(maxWork))
	}
	b.exe.need.packs, b.exe.need.local = max(b.exe.need.packs, packs), max(b.exe.need.local, local)
	made := &estimate{sparse: s, tiles: (operator.Context + pack.TileN - 1) / pack.TileN, tileBytes: int(tileBytes)}
	if operator.Buckets > 0 {
		b.before = append(b.before, s.nearestScales())
	}
	b.before = append(b.before, made.packing())
	return step{
		m:    operator.M,
		plan: func(int) int { return len(s.blocks) * operator.KVHeads },
		task: func(worker, t int) {
			kvHead, block := s.headAndBlock(t)
			for i := range s.group {
				if block.Decided(s.heads[kvHead*s.group+i].Share, operator.Least) {
					continue
				}
				if bad := made.score(kvHead, i, block, b.exe.have.mine(worker)); bad >= 0 {
					b.exe.refuse(block.r0 + bad)
					return
				}
			}
		},
		refused: made.refused,
	}, nil
}

// tile returns where keys of a key head are packed.
func (s *estimate) tile(kvHead, number int) []byte {
	return mem.Bytes(s.exe.have.pack)[(kvHead*s.tiles+number)*s.tileBytes:][:s.tileBytes]
}

// refused returns the error of either step.
func (s *estimate) refused(int) error {
	if s.exe.Scalars.Pos+min(s.op.M, s.exe.Scalars.Rows) > s.op.Context {
		return s.tooLong()
	}
	return errors.New("a query or a cached key is NaN or infinite, which 8 bits cannot represent")
}

// packing makes the step that packs keys, from the first position that any block looks at to the last one.
func (s *estimate) packing() step {
	var from, to, chunks int // tiles, and tasks of a key head
	return step{
		m: s.op.M,
		plan: func(count int) int {
			from, to, chunks = 0, 0, 0
			if !s.begin(count) {
				return 0
			}
			first, last := s.blocks[0], s.blocks[len(s.blocks)-1]
			from, to = first.Inner/pack.TileN, (last.Block+pack.TileN-1)/pack.TileN
			chunks = max(0, to-from+keyTiles-1) / keyTiles
			return chunks * s.op.KVHeads
		},
		task: func(worker, t int) {
			kvHead, number := t/chunks, from+t%chunks*keyTiles
			end := s.blocks[len(s.blocks)-1].Block
			for ; number < min(to, from+(t%chunks+1)*keyTiles); number++ {
				if !s.packKeys(s.tile(kvHead, number), kvHead, number*pack.TileN, end, s.exe.have.mine(worker)) {
					s.exe.refuse(0)
					return
				}
			}
		},
		refused: s.refused,
	}
}

// score writes what positions are worth to a block of queries of head i of a key head. It returns the first query that
// is not finite, else -1.
func (s *estimate) score(kvHead, i int, block *sparseBlock, own []float32) (bad int) {
	input, output, set := s.in[0], s.out[0], s.exe.proc.set
	dim, head, rows := s.op.HeadDim, kvHead*s.group+i, min(s.op.Block, s.op.M)
	scales, codes := own[:rows], mem.Bytes(own[rows:rows+(rows*dim+3)/4])
	scores := own[rows+(rows*dim+3)/4:]
	query := input.from(block.r0, (kvHead*(s.group+2)+i)*dim)
	queries := kernel.Quantised{Codes: kernel.Rows(codes, dim), Scale: scales}
	bad = set.QuantStatic(queries, s.queryScales[head:head+1], query, block.rows, dim)
	if bad >= 0 {
		return bad
	}
	start := block.Inner / pack.TileN
	columns, skip := block.Block-start*pack.TileN, block.Inner-start*pack.TileN
	ld := op.RoundUp(columns, pack.TileN)
	packed := mem.Bytes(s.exe.have.pack)[(kvHead*s.tiles+start)*s.tileBytes:]
	set.MatMulQ8C(kernel.Rows(scores, ld), queries, packed, block.rows, dim, columns)
	out := output.f32[block.index*output.ld+head*s.op.Context+block.Inner:][:columns-skip]
	for row := range block.rows {
		line := scores[row*ld+skip : row*ld+columns]
		top := set.Peak(line)
		if row == 0 {
			set.Below(out, line, top)
		} else {
			set.PoolBelow(out, line, top)
		}
	}
	return -1
}

// nearestScales makes the step that takes the scales of the nearest of several buckets, for each key head and the query
// heads that share its keys.
func (s *sparse) nearestScales() step {
	return step{
		m: s.op.M,
		plan: func(count int) int {
			if !s.begin(count) {
				return 0
			}
			return s.op.KVHeads
		},
		task: func(worker, kvHead int) {
			first, last := s.blocks[0], s.blocks[len(s.blocks)-1]
			heads := s.heads[kvHead*s.group : (kvHead+1)*s.group]
			var queryScale, largestQuery float32
			for i, head := range heads {
				queryScale = max(queryScale, head.QueryScale)
				for row := range last.r0 + last.rows {
					query := s.in[0].f32[row*s.in[0].ld+(kvHead*(s.group+2)+i)*s.op.HeadDim:][:s.op.HeadDim]
					largestQuery = largestOf(query, largestQuery)
				}
			}
			var keyScale, largestKey float32
			if s.op.KV != op.Q8 {
				keyScale = heads[0].KeyScale
				largestKey = s.largestKey(kvHead, first.Inner, last.Block, s.exe.have.mine(worker))
			}
			factors := op.NearestFactors(s.op.Buckets, queryScale, keyScale, largestQuery, largestKey)
			for i, head := range heads {
				s.queryScales[kvHead*s.group+i] = head.QueryScale * factors[0]
				s.keyScales[kvHead*s.group+i] = head.KeyScale * factors[1]
			}
		},
		refused: func(int) error { return s.tooLong() },
	}
}

// largestOf returns the largest of a magnitude and those of numbers.
func largestOf(values []float32, largest float32) float32 {
	for _, value := range values {
		largest = max(largest, value, -value)
	}
	return largest
}

// largestKey returns the largest magnitude of the keys from..to-1 of a head.
func (s *sparse) largestKey(kvHead, from, to int, own []float32) (largest float32) {
	exe, dim := s.exe, s.op.HeadDim
	begin := exe.Scalars.Sequence*exe.PerSeq + kvHead*exe.MaxContext*dim
	for pos := from; pos < to; pos++ {
		at := begin + pos*dim
		largest = largestOf(s.wide(own[:dim], &exe.k, at, at+dim), largest)
	}
	return largest
}

// sparseWords returns the scratch of estimate in units of 4 bytes: of all workers, the packed keys; of each, the
// queries of a block, their scales and scores, or a key on its way to a tile.
func sparseWords(operator op.Op, tileBytes int) (packs, local int) {
	rows, dim := min(operator.Block, operator.M), operator.HeadDim
	tiles := (operator.Context + pack.TileN - 1) / pack.TileN
	packs = (operator.KVHeads*tiles*tileBytes + 3) / 4
	return packs, max(rows+(rows*dim+3)/4+rows*tiles*pack.TileN, 2*dim+1)
}

// packKeys writes keys pos..pos+TileN-1 of a head, those below end, as a tile of a weight with 8 bits. It reports
// whether all numbers are finite.
func (s *sparse) packKeys(tile []byte, kvHead, pos, end int, own []float32) bool {
	exe, dim, set := s.exe, s.op.HeadDim, s.exe.proc.set
	scale := s.keyScales[kvHead*s.group:][:1]
	_, cols := s.op.KV.CacheRow(dim)
	words := (dim + 3) / 4 * 4
	scales := tile[words*pack.TileN:]
	sums := scales[4*pack.TileN:]
	wide, codes := own[1:1+dim], mem.Bytes(own[1+dim : 1+dim+(dim+3)/4])[:dim]
	quantised := kernel.Quantised{Codes: kernel.Rows(codes, dim), Scale: own[:1]}
	if end < pos+pack.TileN {
		clear(tile)
	}
	for column := range min(pack.TileN, end-pos) {
		from := exe.Scalars.Sequence*exe.PerSeq + (kvHead*exe.MaxContext+pos+column)*cols
		own[0] = scale[0]
		key := codes
		switch s.op.KV {
		case op.Q8:
			key = exe.k.raw[from : from+dim]
			own[0] = kernel.ScaleQ8(exe.k.raw[from:], dim)
		default:
			numbers := s.wide(wide, &exe.k, from, from+dim)
			if set.QuantStatic(quantised, scale, kernel.Rows(numbers, dim), 1, dim) >= 0 {
				return false
			}
		}
		kernel.PackColumnQ8C(tile, key, column)
		kernel.SetColumnQ8C(scales, sums, key, column, own[0])
	}
	return true
}
