package kernel

import (
	"github.com/klauspost/cpuid/v2"

	"github.com/hetc/hetc/planir/pack"
)

// A product of one row waits for memory. Cores of Intel's CPUs with AVX-512 read several tiles side by side faster than
// one after the other, because their prefetchers follow each of them. Those of Zen 4 read slower, and those of Zen 5 read
// a single tile at the speed of memory. docs/kernels.md has the measurements.

// sideBySide says that this CPU reads several tiles side by side faster.
var sideBySide = cpuid.CPU.IsVendor(cpuid.Intel)

// mostStreams is the number of tiles that a kernel reads side by side, at least two.
const mostStreams = 4

// streamAhead is how many bytes before its use a weight is asked for in each of several tiles.
const streamAhead = 2048

// streaming reports whether products of m rows with n columns read tiles side by side.
func streaming(m, n int) bool { return sideBySide && m == 1 && n > TileN }

// tileSteps are the steps of a kernel over a tile, of which bytes are its whole size and step those of a step.
type tileSteps struct{ bytes, step, count int }

// tileGroup is some tiles that one call computes.
type tileGroup struct {
	column, tiles int
	offset        int // of the first tile
	dst           *float32
	columns       int // of the result, where they are fewer than those of the tiles

	// Requests of the last steps are for the next group: those ahead of the end of a tile would ask for the beginning of
	// the one beside it.
	steps, last, ahead, jump int
}

// room is where kernels write the results of tiles that have columns beyond those of y.
type room [mostStreams * TileN]float32

// next returns the group that begins at a column, for tiles of a row of n columns.
func (s tileSteps) next(y []float32, out *room, column int) tileGroup {
	left := (len(y) - column + TileN - 1) / TileN
	tiles := share(left, mostStreams)
	group := tileGroup{
		column: column, tiles: tiles, offset: column / TileN * s.bytes,
		dst: &y[column], columns: min(tiles*TileN, len(y)-column),
		steps: s.count, ahead: min(streamAhead, s.bytes),
	}
	if group.columns < tiles*TileN {
		group.dst = &out[0]
	}
	if tiles < left {
		group.steps = min(s.count, (s.bytes-group.ahead+s.step-1)/s.step)
		group.last, group.jump = s.count-group.steps, (tiles-1)*s.bytes
	}
	return group
}

// finish copies what the call wrote to room, and returns the column after the group.
func (g *tileGroup) finish(y []float32, out *room) int {
	if g.columns < g.tiles*TileN {
		copy(y[g.column:], out[:g.columns])
	}
	return g.column + g.tiles*TileN
}

// streamF32 is matMulF32 of one row.
func streamF32(y, x Matrix[float32], w []float32, k, n int) {
	row, from, out := y.row(0, n), x.at(0, 0), room{}
	tile := tileSteps{4 * k * TileN, 4 * TileN, k}
	for column := 0; column < n; {
		g := tile.next(row, &out, column)
		f32Streams512(g.tiles, g.dst, from, g.steps, g.last, nil, &w[g.offset/4], tile.bytes, g.ahead, g.jump)
		column = g.finish(row, &out)
	}
}

// streamBF16 is matMulBF16 of one row.
func streamBF16(y, x Matrix[float32], w []uint16, k, n int) {
	row, from, out := y.row(0, n), x.at(0, 0), room{}
	tile := tileSteps{2 * k * TileN, 2 * TileN, k}
	for column := 0; column < n; {
		g := tile.next(row, &out, column)
		bf16Streams512(g.tiles, g.dst, from, g.steps, g.last, nil, &w[g.offset/2], tile.bytes, g.ahead, g.jump)
		column = g.finish(row, &out)
	}
}

// streamQ8C is matMulQ8C of one row.
func streamQ8C(y Matrix[float32], x Quantised, w []byte, k, n int) {
	row, from, out := y.row(0, n), x.Codes.at(0, 0), room{}
	bytes, _ := q8cTileBytes(k)
	tile := tileSteps{bytes, 4 * TileN, k / 4}
	last, tail := [4]uint8{128, 128, 128, 128}, (*uint8)(nil)
	if copy(last[:], x.Codes.row(0, k)[k&^3:]) > 0 {
		tail = &last[0]
	}
	for column := 0; column < n; {
		g := tile.next(row, &out, column)
		q8cStreams512(g.tiles, g.dst, from, g.steps, g.last, tail, &w[g.offset], bytes, g.ahead, g.jump, &x.Scale[0])
		column = g.finish(row, &out)
	}
}

// streamQ6C is matMulQ6C of one row.
func streamQ6C(y Matrix[float32], x Quantised, w []byte, k, n int) {
	row, from, out := y.row(0, n), x.Codes.at(0, 0), room{}
	bytes, _ := q6cTileBytes(k)
	tile := tileSteps{bytes, sixGroup, k / sixRows}
	var input sixInput
	tail := input.set(x, 0, 1, k)
	for column := 0; column < n; {
		g := tile.next(row, &out, column)
		q6cStreams512(g.tiles, g.dst, from, g.steps, g.last, tail, &w[g.offset], bytes, g.ahead, g.jump, &x.Scale[0],
			&input.start[0])
		column = g.finish(row, &out)
	}
}

// streamQ4 is rowsQ4 of one row.
func streamQ4(block int, y Matrix[float32], x Quantised, w []byte, k, n int) {
	row, from, sums, out := y.row(0, n), x.Codes.at(0, 0), x.Sums.at(0, 0), room{}
	blocks, step := (k+block-1)/block, q4BlockBytes(block)
	tile := tileSteps{blocks * step, step, k / block}
	var last [pack.Block128 + 4*pack.Block128/BlockK]uint8 // the activations of a part of a block, then their sums
	var tail *uint8
	if k%block != 0 {
		tail = &last[0]
		for i := range block {
			last[i] = 128
		}
		end := block
		if block != BlockK {
			end = len(last)
		}
		x.lastBlock(last[:end], 0, k, block)
	}
	for column := 0; column < n; {
		g := tile.next(row, &out, column)
		if block == BlockK {
			q4Streams512(g.tiles, g.dst, from, g.steps, g.last, tail, &w[g.offset], tile.bytes, g.ahead, g.jump,
				&x.Scale[0], sums)
		} else {
			q4x128Streams512(g.tiles, g.dst, from, g.steps, g.last, tail, &w[g.offset], tile.bytes, g.ahead, g.jump,
				&x.Scale[0], sums)
		}
		column = g.finish(row, &out)
	}
}
