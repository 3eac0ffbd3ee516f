package kernel

import (
	"github.com/klauspost/cpuid/v2"

	"github.com/hetc/hetc/planir/pack"
)

// A product of few rows waits for memory. Cores of Intel's CPUs with AVX-512 read several tiles side by side faster
// than one after the other, because their prefetchers follow each of them. Those of Zen 4 read slower, and those of
// Zen 5 read a single tile at the speed of memory. docs/kernels.md has the measurements.

// sideBySide says that this CPU reads several places side by side faster: these tiles or, where kernels take only one,
// four parts of the next (see fetch).
var sideBySide = cpuid.CPU.IsVendor(cpuid.Intel)

// streamShapes are the most tiles that a kernel reads side by side for 1 row, 2 and so on. gen has the same numbers.
type streamShapes []int

var (
	streamsInOrder = streamShapes{4, 4, 4, 3} // two sums for a row of a tile
	streamsOfSix   = streamShapes{4, 3}
	streamsOfFour  = streamShapes{4, 3, 2}
)

// streamAhead is how many bytes before its use a weight is asked for in each of several tiles.
const streamAhead = 2048

// take reports whether a product of m rows with n columns reads tiles side by side.
func (s streamShapes) take(m, n int) bool { return sideBySide && 1 <= m && m <= len(s) && n > TileN }

// tileReader divides the tiles of a product into groups that a kernel reads side by side.
type tileReader struct {
	y               Matrix[float32]
	m, n            int
	most            int // tiles of a group
	bytes           int // of a tile
	step, stepCount int // bytes of a step, and those with all activations
	column          int // of the next group

	// room is where kernels write the results of tiles that have columns beyond those of y.
	room [maxRows * TileN]float32
}

// tileGroup is what a kernel's call gets.
type tileGroup struct {
	shape, offset int
	dst           *float32
	ldy           int // in bytes

	// Requests of the last steps are for the next group: those ahead of the end of a tile would ask for the beginning
	// of the one beside it.
	steps, last, ahead, jump int
}

// next returns the next group, with no tiles at the end.
func (r *tileReader) next() (group tileGroup, ok bool) {
	if r.column >= r.n {
		return tileGroup{}, false
	}
	left := (r.n - r.column + TileN - 1) / TileN
	tiles := share(left, r.most)
	group = tileGroup{
		shape: 10*r.m + tiles, offset: r.column / TileN * r.bytes,
		dst: r.y.at(0, r.column), ldy: 4 * r.y.Stride,
		steps: r.stepCount, ahead: min(streamAhead, r.bytes),
	}
	if r.n-r.column < tiles*TileN {
		group.dst, group.ldy = &r.room[0], 4*tiles*TileN
	}
	if tiles < left {
		group.steps = min(r.stepCount, (r.bytes-group.ahead+r.step-1)/r.step)
		group.last, group.jump = r.stepCount-group.steps, (tiles-1)*r.bytes
	}
	r.column += tiles * TileN
	return group, true
}

// finish copies what a call wrote to room.
func (r *tileReader) finish(group tileGroup) {
	if group.dst != &r.room[0] {
		return
	}
	width := group.ldy / 4
	first := r.column - width
	for row := range r.m {
		copy(r.y.row(row, r.n)[first:], r.room[row*width:(row+1)*width])
	}
}

// streamF32 is matMulF32 of few rows.
func streamF32(y, x Matrix[float32], w []float32, m, k, n int) {
	tiles := tileReader{y: y, m: m, n: n, most: streamsInOrder[m-1],
		bytes: 4 * k * TileN, step: 4 * TileN, stepCount: k}
	for group, ok := tiles.next(); ok; group, ok = tiles.next() {
		f32Streams512(group.shape, group.dst, group.ldy, x.at(0, 0), 4*x.Stride, group.steps, group.last, nil,
			&w[group.offset/4], tiles.bytes, group.ahead, group.jump)
		tiles.finish(group)
	}
}

// streamBF16 is matMulBF16 of few rows.
func streamBF16(y, x Matrix[float32], w []uint16, m, k, n int) {
	tiles := tileReader{y: y, m: m, n: n, most: streamsInOrder[m-1],
		bytes: 2 * k * TileN, step: 2 * TileN, stepCount: k}
	for group, ok := tiles.next(); ok; group, ok = tiles.next() {
		bf16Streams512(group.shape, group.dst, group.ldy, x.at(0, 0), 4*x.Stride, group.steps, group.last, nil,
			&w[group.offset/2], tiles.bytes, group.ahead, group.jump)
		tiles.finish(group)
	}
}

// streamQ8C is matMulQ8C of few rows.
func streamQ8C(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	bytes, _ := q8cTileBytes(k)
	var last [4 * 4]uint8 // the k%4 last activations of each row
	var tail *uint8
	if k%4 != 0 {
		tail = &last[0]
		for i := range last {
			last[i] = 128 // stands for 0, so that padding adds nothing
		}
		for row := range m {
			copy(last[4*row:], x.Codes.row(row, k)[k&^3:])
		}
	}
	tiles := tileReader{y: y, m: m, n: n, most: streamsInOrder[m-1],
		bytes: bytes, step: 4 * TileN, stepCount: k / 4}
	for group, ok := tiles.next(); ok; group, ok = tiles.next() {
		q8cStreams512(group.shape, group.dst, group.ldy, x.Codes.at(0, 0), x.Codes.Stride, group.steps, group.last,
			tail, &w[group.offset], bytes, group.ahead, group.jump, &x.Scale[0])
		tiles.finish(group)
	}
}

// streamQ6C is matMulQ6C of few rows.
func streamQ6C(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	bytes, _ := q6cTileBytes(k)
	var input sixInput
	tail := input.set(x, 0, m, k)
	tiles := tileReader{y: y, m: m, n: n, most: streamsOfSix[m-1],
		bytes: bytes, step: sixGroup, stepCount: k / sixRows}
	for group, ok := tiles.next(); ok; group, ok = tiles.next() {
		q6cStreams512(group.shape, group.dst, group.ldy, x.Codes.at(0, 0), x.Codes.Stride, group.steps, group.last,
			tail, &w[group.offset], bytes, group.ahead, group.jump, &x.Scale[0], &input.start[0])
		tiles.finish(group)
	}
}

// streamQ4 is rowsQ4 of few rows.
func streamQ4(block int, y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	step := q4BlockBytes(block)
	// the activations of a part of a block; with long blocks their sums follow
	var last [3 * (pack.Block128 + 4*pack.Block128/BlockK)]uint8
	var tail *uint8
	if k%block != 0 {
		tail = &last[0]
		pitch := block
		if block != BlockK {
			pitch += 4 * block / BlockK
		}
		for i := range last {
			last[i] = 128
		}
		for row := range m {
			x.lastBlock(last[pitch*row:pitch*(row+1)], row, k, block)
		}
	}
	tiles := tileReader{y: y, m: m, n: n, most: streamsOfFour[m-1],
		bytes: (k + block - 1) / block * step, step: step, stepCount: k / block}
	for group, ok := tiles.next(); ok; group, ok = tiles.next() {
		codes, sums := x.Codes.at(0, 0), x.Sums.at(0, 0)
		if block == BlockK {
			q4Streams512(group.shape, group.dst, group.ldy, codes, x.Codes.Stride, group.steps, group.last, tail,
				&w[group.offset], tiles.bytes, group.ahead, group.jump, &x.Scale[0], sums, 4*x.Sums.Stride)
		} else {
			q4x128Streams512(group.shape, group.dst, group.ldy, codes, x.Codes.Stride, group.steps, group.last, tail,
				&w[group.offset], tiles.bytes, group.ahead, group.jump, &x.Scale[0], sums, 4*x.Sums.Stride)
		}
		tiles.finish(group)
	}
}
