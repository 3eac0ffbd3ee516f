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
	makeSoftmaxConstants()
	scoreTiles()
	weighTiles()
	attendTiles("attendTilesAMX", false)
	attendTiles("attendAskingAMX", true)
	fewTiles()
}

// tileMultiplyPairs adds to sum the products of bfloat16 numbers: rows of left with pairs of rows of right.
func tileMultiplyPairs(sum, left, right int) {
	tileBytes(fmt.Sprintf("tdpbf16ps %%tmm%d, %%tmm%d, %%tmm%d", right, left, sum),
		append(vex(false, false, false, right, vexF3), 0x5c, 0xc0|byte(sum)<<3|byte(left))...)
}

// askedLines is the number of lines that a tile asks memory for.
const askedLines = 8

// askLines prefetches lines of the next block.
func askLines(next reg.GPPhysical, stride Op) {
	for line := range askedLines {
		PREFETCHT1(Mem{Base: next, Disp: 64 * line})
	}
	ADDQ(stride, next)
}

// stripScores are registers of the product of some strips of keys with a group of queries: where they are, and the rows'
// distances. q and ldk stay as they are.
type stripScores struct {
	row, q, part, ldk, keys reg.GPPhysical
	strips                  []reg.GPPhysical
	count, s, next          reg.GPPhysical
	asks                    bool
}

// ask prefetches lines of the next block, if that is wanted.
func (p stripScores) ask() {
	if p.asks {
		askLines(p.next, inPlace("strideK"))
	}
}

// multiply emits the product. Keys and scores move on.
func (p stripScores) multiply(id string) {
	for i, strip := range p.strips {
		if i == 0 {
			MOVQ(p.keys, strip)
			continue
		}
		MOVQ(p.strips[i-1], strip)
		ADDQ(inPlace("pitch"), strip)
	}
	tileZero(len(p.strips))
	MOVQ(p.q, p.part)
	load("whole", p.count)
	TESTQ(p.count, p.count)
	JZ(LabelRef(id + "_rest"))
	Label(id + "_step")
	tileLoad(tileQuery, p.part, p.row, 0)
	for i, strip := range p.strips {
		tileLoad(tileKey, strip, p.ldk, 0)
		tileMultiplyPairs(i, tileKey, tileQuery)
		p.ask()
		ADDQ(I32(64), strip)
	}
	ADDQ(I32(1024), p.part)
	DECQ(p.count)
	JNZ(LabelRef(id + "_step"))
	Label(id + "_rest")
	CMPQ(inPlace("rest"), I8(0))
	JEQ(LabelRef(id + "_store"))
	tileLoad(tileQueryRest, p.part, p.row, 0)
	for i, strip := range p.strips {
		tileLoad(tileKeyRest, strip, p.ldk, 0)
		tileMultiplyPairs(i, tileKeyRest, tileQueryRest)
		p.ask()
	}
	Label(id + "_store")
	for i := range p.strips {
		tileStore(i, p.s, p.row, 1024*i)
		ADDQ(inPlace("pitch"), p.keys)
	}
	ADDQ(I32(1024*len(p.strips)), p.s)
}

// scoreTiles is S^T for groups of 16 lines.
func scoreTiles() {
	TEXT("scoreTilesAMX", NOSPLIT, "func(config *byte, groups int, q *uint16, ldq int, k *uint16, ldk int, pitch int, strips int, whole int, rest int, s *float32, gap int)")
	Doc("scoreTilesAMX computes scores s [128][16] of each of groups (at least 1) groups of 16 lines, 8192+gap bytes behind the",
		"end of the one before, for strips (at least 1) of 16 keys, ldk bytes from key to key and pitch from strip to strip. q",
		"has [16][16] pairs of numbers of lines for each of whole times 32 numbers, and where rest is not 0 those that are",
		"left; it is ldq bytes from group to group. config is the shape of the tiles.")
	Pragma("noescape")
	groups, q, part, ldk, row := reg.RCX, reg.RSI, reg.RDI, reg.RDX, reg.RAX
	keys, k0, k1, k2, k3 := reg.RBX, reg.R8, reg.R9, reg.R10, reg.R11
	strips, count, s := reg.R12, reg.R13, reg.R15
	strip := []reg.GPPhysical{k0, k1, k2, k3}
	load("config", reg.RAX)
	tileConfigure()
	load("groups", groups)
	load("q", q)
	load("ldk", ldk)
	load("s", s)
	MOVQ(I32(64), row)

	products := func(id string, n int) {
		stripScores{row: row, q: q, part: part, ldk: ldk, keys: keys, strips: strip[:n], count: count, s: s}.
			multiply(id)
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
	TEXT("weighTilesAMX", NOSPLIT, "func(config *byte, groups int, p *uint16, v *uint16, pitch int, chunks int, columns int, y *float32, ldy int)")
	Doc("weighTilesAMX adds p v to y for groups (at least 1) of 16 lines y, ldy bytes from line to line, whose weights p",
		"[4][16][32] are 4096 bytes apart: chunks (at least 1) of 32 positions. v has for each, pitch bytes from one to the",
		"next, columns (1..6) times [16][16] pairs of values. config is the shape of the tiles.")
	Pragma("noescape")
	groups, p, part, v, row := reg.RCX, reg.RSI, reg.RDI, reg.RDX, reg.RAX
	y, ldy, left := reg.RBX, reg.R8, reg.R9
	load("config", reg.RAX)
	tileConfigure()
	load("groups", groups)
	load("p", p)
	load("y", y)
	load("ldy", ldy)
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

// sumTiles are tiles of sums in a kernel that computes scores, too: those of strips, and of what is left of a head's
// numbers where nothing is.
var sumTiles = []int{0, 1, 2, 3, tileQueryRest, tileKeyRest}

// byColumns emits body for 1..6 columns, whose number is at width. Each begins with a label, and ends with a jump.
func byColumns(id string, width Op, free reg.GPPhysical, body func(columns int)) {
	MOVQ(width, free)
	for columns := 1; columns < mostTileColumns; columns++ {
		CMPQ(free, I8(columns))
		JEQ(LabelRef(label(id, columns)))
	}
	for columns := mostTileColumns; columns >= 1; columns-- {
		Label(label(id, columns))
		body(columns)
		if columns > 1 {
			JMP(LabelRef(id + "_end"))
		}
	}
	Label(id + "_end")
}

// attendTiles takes groups through a whole block. The unit of tiles sleeps when it has nothing to do for some hundred
// cycles, and products after that take longer by as many. So weights of a chunk are multiplied while those of the next
// one are computed.
func attendTiles(name string, asks bool) {
	signature := "func(config *byte, groups int, q *uint16, ldq int, k *uint16, ldk int, pitch int, whole int, rest int, s *float32, scale float32, state *float32, statePitch int, p *uint16, v *uint16, chunk int, columns int, width int, y *float32, ldy int"
	if asks {
		signature += ", nextK *byte, strideK int, strideV int, nextV *byte, strideS int"
	}
	TEXT(name, NOSPLIT, signature+")")
	if asks {
		Doc(name+" is attendTilesAMX. Lines are prefetched from nextK on, strideK bytes further with each tile of keys and",
			"strideV with each tile of values, and from nextV on, strideS with each four positions of weights.")
	} else {
		Doc(name+" takes a block of 128 positions, to which each line attends, into account for groups (at least 1) of 16",
			"lines: the scores of scoreTilesAMX, the softmax of softmaxTiles512, whose factors fade sums, and weighTilesAMX, width",
			"(1..6, or 1..4 where rest is not 0) of columns at a time. s and p have room for a group. config is the shape of the",
			"tiles.")
	}
	Pragma("noescape")
	a := &attendKernel{
		asks: asks, row: reg.RAX, stat: reg.RBX, statePitch: reg.RDX,
		sums: reg.R8, ldy: reg.R9, p: reg.RSI, v: reg.RDI, count: reg.R12,
		groups: AllocLocal(8), q: AllocLocal(8), state: AllocLocal(8), y: AllocLocal(8),
		nextK: AllocLocal(8), nextV: AllocLocal(8),
	}
	keep := func(name string, to Mem) {
		load(name, reg.RCX)
		MOVQ(reg.RCX, to)
	}
	load("config", reg.RAX)
	tileConfigure()
	a.softmax = newTiledSoftmax()
	MOVQ(I32(64), a.row)
	keep("groups", a.groups)
	keep("q", a.q)
	keep("state", a.state)
	keep("y", a.y)
	if asks {
		keep("nextK", a.nextK)
		keep("nextV", a.nextV)
	}

	Label("group")
	a.score()
	a.fade()
	a.weigh()
	a.others()
	a.next()
	JNZ(LabelRef("group"))
	tileRelease()
	VZEROUPPER()
	RET()
}

// attendKernel are the registers and variables of attendTiles: p, v and sums move through weights, values and sums of a
// group, stat is its state.
type attendKernel struct {
	asks                              bool
	row, stat, statePitch             reg.GPPhysical
	sums, ldy, p, v, count            reg.GPPhysical
	groups, q, state, y, nextK, nextV Mem
	softmax                           tiledSoftmax
}

// score computes the scores of a group.
func (a *attendKernel) score() {
	scores := stripScores{
		row: a.row, q: reg.RSI, part: reg.RDI, ldk: reg.RDX, keys: reg.RBX,
		strips: []reg.GPPhysical{reg.R8, reg.R9, reg.R10, reg.R11}, count: reg.R13, s: reg.R15, next: reg.R14,
		asks: a.asks,
	}
	MOVQ(a.q, scores.q)
	load("ldk", scores.ldk)
	load("k", scores.keys)
	load("s", scores.s)
	if a.asks {
		MOVQ(a.nextK, scores.next)
	}
	MOVQ(I32(2), reg.R12)
	Label("strips")
	scores.multiply("strips")
	DECQ(reg.R12)
	JNZ(LabelRef("strips"))
}

// fade finds the largest scores, and scales earlier sums where these have grown.
func (a *attendKernel) fade() {
	MOVQ(a.state, a.stat)
	load("statePitch", a.statePitch)
	load("s", reg.R8)
	MOVQ(I32(4), reg.R9)
	fade := a.softmax.tops(reg.R8, reg.R9, a.stat, a.statePitch)
	VCMPPS(U8(4), a.softmax.poly[0], fade, reg.K1) // not 1
	KORTESTW(reg.K1, reg.K1)
	JZ(LabelRef("faded"))
	MOVQ(I32(16), reg.R8)
	MOVQ(a.y, reg.R9)
	load("ldy", reg.R10)
	LEAQ(Mem{Base: a.stat, Index: a.statePitch, Scale: 2}, reg.R11)
	MOVQ(inPlace("columns"), reg.RCX)
	SHLQ(U8(4), reg.RCX)
	fadeLines(reg.R8, reg.R9, reg.R10, reg.R11, reg.RSI, reg.RDI, reg.RCX)
	Label("faded")
}

// load loads the tiles of sums of some columns.
func (a *attendKernel) load(columns int) {
	for column, tile := range sumTiles[:columns] {
		tileLoad(tile, a.sums, a.ldy, 64*column)
	}
}

// multiply adds a chunk of weighted values to them.
func (a *attendKernel) multiply(columns int) {
	tileLoad(tileQuery, a.p, a.row, 0)
	for column, tile := range sumTiles[:columns] {
		tileLoad(tileKey, a.v, a.row, 1024*column)
		tileMultiplyPairs(tile, tileQuery, tileKey)
		if a.asks {
			askLines(reg.R14, inPlace("strideV"))
		}
	}
	ADDQ(I32(1024), a.p)
	ADDQ(inPlace("chunk"), a.v)
}

// store stores them.
func (a *attendKernel) store(columns int) {
	for column, tile := range sumTiles[:columns] {
		tileStore(tile, a.sums, a.ldy, 64*column)
	}
}

// weigh makes weights of scores, and adds the weighted values of the first columns meanwhile: those of a chunk while the
// weights of the next one are computed.
func (a *attendKernel) weigh() {
	s, out, nextValue := reg.R10, reg.R11, reg.R15
	MOVQ(a.y, a.sums)
	load("ldy", a.ldy)
	load("s", s)
	load("p", out)
	load("p", a.p)
	load("v", a.v)
	if a.asks {
		MOVQ(a.nextV, nextValue)
	}
	byColumns("begin", inPlace("width"), reg.RCX, a.load)
	XORQ(a.count, a.count)
	Label("chunk")
	CMPQ(a.count, I8(4))
	JEQ(LabelRef("weighted"))
	a.softmax.weights(s, out, func(step int) {
		if !a.asks {
			return
		}
		// More of them are only needed where the heads are long.
		CMPQ(inPlace("strideS"), I32(64*askedLines))
		JLE(LabelRef(label("few_asked", step)))
		for line := range askedLines {
			PREFETCHT1(Mem{Base: nextValue, Disp: 64 * (askedLines + line)})
		}
		Label(label("few_asked", step))
		askLines(nextValue, inPlace("strideS"))
	})
	ADDQ(I32(64*chunkRows), s)
	ADDQ(I32(1024), out)
	Label("weighted")
	TESTQ(a.count, a.count)
	JZ(LabelRef("add_end"))
	byColumns("add", inPlace("width"), reg.RCX, a.multiply)
	ADDQ(I8(1), a.count)
	CMPQ(a.count, I8(5))
	JNE(LabelRef("chunk"))
	byColumns("store", inPlace("width"), reg.RCX, a.store)
	a.softmax.total(a.stat, a.statePitch)
}

// others adds the weighted values of the columns behind the first ones.
func (a *attendKernel) others() {
	left, values, width := reg.R13, reg.R10, reg.R11
	load("columns", left)
	load("v", values)
	Label("others")
	load("width", width)
	SUBQ(width, left)
	JLE(LabelRef("others_end"))
	MOVQ(width, reg.RCX)
	SHLQ(U8(6), reg.RCX)
	ADDQ(reg.RCX, a.sums)
	SHLQ(U8(4), reg.RCX)
	ADDQ(reg.RCX, values)
	CMPQ(left, width)
	JGE(LabelRef("others_begin"))
	MOVQ(left, width)
	Label("others_begin")
	byColumns("others_load", width, reg.RCX, a.load)
	load("p", a.p)
	MOVQ(values, a.v)
	MOVQ(I32(4), a.count)
	Label("others_chunk")
	byColumns("others_add", width, reg.RCX, a.multiply)
	DECQ(a.count)
	JNZ(LabelRef("others_chunk"))
	byColumns("others_store", width, reg.RCX, a.store)
	JMP(LabelRef("others"))
	Label("others_end")
}

// next moves on to the next group, and sets the flag of zero after the last one.
func (a *attendKernel) next() {
	MOVQ(a.y, reg.RCX)
	MOVQ(a.ldy, reg.RDI)
	SHLQ(U8(4), reg.RDI)
	ADDQ(reg.RDI, reg.RCX)
	MOVQ(reg.RCX, a.y)
	MOVQ(a.q, reg.RCX)
	ADDQ(inPlace("ldq"), reg.RCX)
	MOVQ(reg.RCX, a.q)
	ADDQ(I8(64), a.stat)
	MOVQ(a.stat, a.state)
	MOVQ(a.groups, reg.RCX)
	DECQ(reg.RCX)
	MOVQ(reg.RCX, a.groups)
}
