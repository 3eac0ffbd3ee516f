package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The products of attention over a bfloat16 cache in tiles, with TDPBF16PS. A tile of the left factor has 16 rows of 32
// numbers, one of the right factor 16 pairs of rows, of 16 columns.
//
// Scores are computed transposed, S^T = K Q^T: keys are the left factor, and their tiles are loaded from the cache as it
// lies there, one of 16 positions and 32 numbers after the other. Queries are the right factor, turned once a call. A
// line, which is a query head of a row, is a column of S^T, so that the softmax runs down the columns of vectors and
// folds no vector.
//
// The sums are O = P V: weights are the left factor, lines of pairs of positions, and values are the right factor, pairs
// of rows of the cache, which all lines of a task share (see tiled512.go for how both are made). Sums lie in float32
// numbers between blocks of positions.

// Tiles of scores: tmm0..tmm3 are sums of four strips of 16 positions.
const (
	tileQuery, tileKey         = 4, 5 // whole tiles of 32 numbers
	tileQueryRest, tileKeyRest = 6, 7 // what is left of a head's numbers
	stripsAtOnce               = 4
)

// Tiles of sums: tmm0..tmm5 are sums of 16 columns each.
const (
	tileWeights, tileValues = 6, 7
	mostTileColumns         = 6
)

// tiledAttention writes the kernels of attention in tiles.
func tiledAttention() {
	scoreTiles()
	weighTiles()
}

// tileMultiplyPairs adds to sum the products of bfloat16 numbers: rows of left with pairs of rows of right.
func tileMultiplyPairs(sum, left, right int) {
	tileBytes(fmt.Sprintf("tdpbf16ps %%tmm%d, %%tmm%d, %%tmm%d", right, left, sum),
		append(vex(false, false, false, right, vexF3), 0x5c, 0xc0|byte(sum)<<3|byte(left))...)
}

// askedLines is the number of lines that a tile asks memory for.
const askedLines = 8

// askLines prefetches lines of the next block.
func askLines(next reg.GPPhysical) {
	for line := range askedLines {
		PREFETCHT1(Mem{Base: next, Disp: 64 * line})
	}
	ADDQ(inPlace("stride"), next)
}

// scoreTiles is S^T for groups of 16 lines.
func scoreTiles() {
	TEXT("scoreTilesAMX", NOSPLIT, "func(config *byte, groups int, q *uint16, ldq int, k *uint16, ldk int, pitch int, strips int, whole int, rest int, s *float32, gap int, next *byte, stride int)")
	Doc("scoreTilesAMX computes scores s [128][16] of each of groups (at least 1) groups of 16 lines, 8192+gap bytes behind the",
		"end of the one before, for strips (at least 1) of 16 keys, ldk bytes from key to key and pitch from strip to strip. q",
		"has [16][16] pairs of numbers of lines for each of whole times 32 numbers, and where rest is not 0 those that are",
		"left; it is ldq bytes from group to group. config is the shape of the tiles. Lines are prefetched from next on,",
		"stride bytes further with each tile of keys.")
	Pragma("noescape")
	groups, q, part, ldk, row := reg.RCX, reg.RSI, reg.RDI, reg.RDX, reg.RAX
	keys, k0, k1, k2, k3 := reg.RBX, reg.R8, reg.R9, reg.R10, reg.R11
	strips, count, s, next := reg.R12, reg.R13, reg.R15, reg.R14
	strip := []reg.GPPhysical{k0, k1, k2, k3}
	load("config", reg.RAX)
	tileConfigure()
	load("groups", groups)
	load("q", q)
	load("ldk", ldk)
	load("s", s)
	load("next", next)
	MOVQ(I32(64), row)

	// products emits the scores of n strips.
	products := func(id string, n int) {
		MOVQ(keys, k0)
		for i := 1; i < n; i++ {
			MOVQ(strip[i-1], strip[i])
			ADDQ(inPlace("pitch"), strip[i])
		}
		tileZero(n)
		MOVQ(q, part)
		load("whole", count)
		TESTQ(count, count)
		JZ(LabelRef(id + "_rest"))
		Label(id + "_step")
		tileLoad(tileQuery, part, row, 0)
		for i := range n {
			tileLoad(tileKey, strip[i], ldk, 0)
			tileMultiplyPairs(i, tileKey, tileQuery)
			askLines(next)
			ADDQ(I32(64), strip[i])
		}
		ADDQ(I32(1024), part)
		DECQ(count)
		JNZ(LabelRef(id + "_step"))
		Label(id + "_rest")
		CMPQ(inPlace("rest"), I8(0))
		JEQ(LabelRef(id + "_store"))
		tileLoad(tileQueryRest, part, row, 0)
		for i := range n {
			tileLoad(tileKeyRest, strip[i], ldk, 0)
			tileMultiplyPairs(i, tileKeyRest, tileQueryRest)
			askLines(next)
		}
		Label(id + "_store")
		for i := range n {
			tileStore(i, s, row, 1024*i)
			ADDQ(inPlace("pitch"), keys)
		}
		ADDQ(I32(1024*n), s)
	}

	Label("group")
	load("k", keys)
	load("strips", strips)
	Label("four")
	CMPQ(strips, I8(stripsAtOnce))
	JLT(LabelRef("few"))
	products("four", stripsAtOnce)
	SUBQ(I8(stripsAtOnce), strips)
	JMP(LabelRef("four"))
	Label("few")
	TESTQ(strips, strips)
	JZ(LabelRef("end"))
	products("one", 1)
	DECQ(strips)
	JMP(LabelRef("few"))
	Label("end")
	ADDQ(inPlace("gap"), s)
	ADDQ(inPlace("ldq"), q)
	DECQ(groups)
	JNZ(LabelRef("group"))
	tileRelease()
	RET()
}

// weighTiles adds weighted values to sums.
func weighTiles() {
	TEXT("weighTilesAMX", NOSPLIT, "func(config *byte, groups int, p *uint16, v *uint16, pitch int, chunks int, columns int, y *float32, ldy int, next *byte, stride int)")
	Doc("weighTilesAMX adds p v to y for groups (at least 1) of 16 lines y, ldy bytes from line to line, whose weights p",
		"[4][16][32] are 4096 bytes apart: chunks (at least 1) of 32 positions. v has for each, pitch bytes from one to the",
		"next, columns (1..6) times [16][16] pairs of values. config is the shape of the tiles. Lines are prefetched from next",
		"on, stride bytes further with each tile of values.")
	Pragma("noescape")
	groups, p, part, v, row := reg.RCX, reg.RSI, reg.RDI, reg.RDX, reg.RAX
	y, ldy, left, next := reg.RBX, reg.R8, reg.R9, reg.R14
	load("config", reg.RAX)
	tileConfigure()
	load("groups", groups)
	load("p", p)
	load("y", y)
	load("ldy", ldy)
	load("next", next)
	MOVQ(I32(64), row)
	Label("group")
	load("v", v)
	load("chunks", left)
	MOVQ(p, part)
	load("columns", reg.R10)
	for columns := 1; columns < mostTileColumns; columns++ {
		CMPQ(reg.R10, I8(columns))
		JEQ(LabelRef(label("columns", columns)))
	}
	for columns := mostTileColumns; columns >= 1; columns-- {
		id := label("columns", columns)
		Label(id)
		for column := range columns {
			tileLoad(column, y, ldy, 64*column)
		}
		Label(id + "_step")
		tileLoad(tileWeights, part, row, 0)
		for column := range columns {
			tileLoad(tileValues, v, row, 1024*column)
			tileMultiplyPairs(column, tileWeights, tileValues)
			askLines(next)
		}
		ADDQ(I32(1024), part)
		ADDQ(inPlace("pitch"), v)
		DECQ(left)
		JNZ(LabelRef(id + "_step"))
		for column := range columns {
			tileStore(column, y, ldy, 64*column)
		}
		if columns > 1 {
			JMP(LabelRef("next"))
		}
	}
	Label("next")
	ADDQ(I32(4096), p)
	MOVQ(ldy, reg.R10)
	SHLQ(U8(4), reg.R10)
	ADDQ(reg.R10, y)
	DECQ(groups)
	JNZ(LabelRef("group"))
	tileRelease()
	RET()
}
