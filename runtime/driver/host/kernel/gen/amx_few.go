package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The products of attention in tiles for few lines, a step of decode, which reads its cache once. Several blocks pass
// together, because changing between tiles and vectors costs as much as a product: the scores of all blocks, then the
// softmax of each (see tiled_few.go), then the sums. Rows of scores are as long as there are lines, rounded up to a
// power of two, so that a vector holds several positions.
//
// Each step asks memory for lines of the blocks that come next. A core reads several places side by side faster than
// one after the other, so a request is for a line in each of four: both halves of the keys, and both of the values.

// places are where a kernel asks memory: next moves through the first of four places, half bytes before the second one;
// the other two are across bytes behind these. count is how often a step asks.
type places struct {
	next, half, left reg.Register
	across, count    Op
}

// ask asks for lines.
func (p places) ask(id string) {
	MOVQ(p.count, p.left)
	TESTQ(p.left, p.left)
	JZ(LabelRef(id + "_asked"))
	Label(id + "_ask")
	for pair := range 2 {
		PREFETCHT0(Mem{Base: p.next})
		PREFETCHT0(Mem{Base: p.next, Index: p.half, Scale: 1})
		if pair == 0 {
			ADDQ(p.across, p.next)
		} else {
			SUBQ(p.across, p.next)
		}
	}
	ADDQ(I8(64), p.next)
	DECQ(p.left)
	JNZ(LabelRef(id + "_ask"))
	Label(id + "_asked")
}

// asksForPlaces describes the parameters of places.
const asksForPlaces = "Each step asks memory asks times for a line at next, half bytes behind it, and " +
	"across bytes behind both."

// fewTiles writes the kernels for few lines.
func fewTiles() {
	scoreFew()
	weighFew()
}

// scoreFew is scoreTiles for one group of few lines and strips in fours.
func scoreFew() {
	declareScoreFew()
	row, lds, q, part, ldk := reg.RAX, reg.RBX, reg.RSI, reg.RDI, reg.RDX
	strips := []reg.GPPhysical{reg.R8, reg.R9, reg.R10, reg.R11}
	count, s := reg.R13, reg.R15
	ahead := places{next: reg.R14, half: reg.R12, left: reg.RCX, across: inPlace("across"), count: inPlace("asks")}
	load("config", reg.RAX)
	tileConfigure()
	MOVQ(I32(64), row)
	load("lds", lds)
	load("q", q)
	load("ldk", ldk)
	load("s", s)
	load("next", reg.R14)
	load("half", reg.R12)
	load("k", strips[0])
	Label("four")
	for i, strip := range strips[1:] {
		MOVQ(strips[i], strip)
		ADDQ(inPlace("pitch"), strip)
	}
	tileZero(stripsAtOnce)
	MOVQ(q, part)
	load("whole", count)
	TESTQ(count, count)
	JZ(LabelRef("rest"))
	Label("step")
	tileLoad(tileQuery, part, row, 0)
	for i, strip := range strips {
		tileLoad(tileKey, strip, ldk, 0)
		tileMultiplyPairs(i, tileKey, tileQuery)
		ahead.ask(label("step", i))
		ADDQ(I32(64), strip)
	}
	ADDQ(I32(1024), part)
	DECQ(count)
	JNZ(LabelRef("step"))
	Label("rest")
	CMPQ(inPlace("rest"), I8(0))
	JEQ(LabelRef("store"))
	tileLoad(tileQueryRest, part, row, 0)
	for i, strip := range strips {
		tileLoad(tileKeyRest, strip, ldk, 0)
		tileMultiplyPairs(i, tileKeyRest, tileQueryRest)
		ahead.ask(label("rest", i))
	}
	Label("store")
	storeStrips(s, lds, part)
	load("whole", count)
	SHLQ(U8(6), count)
	MOVQ(strips[3], strips[0])
	SUBQ(count, strips[0])
	ADDQ(inPlace("pitch"), strips[0])
	DECQ(inPlace("fours"))
	JNZ(LabelRef("four"))
	tileRelease()
	RET()
}

// storeStrips stores the scores of four strips, one behind the other. size is overwritten.
func storeStrips(s, lds, size reg.GPPhysical) {
	MOVQ(lds, size)
	SHLQ(U8(4), size)
	for strip := range stripsAtOnce {
		tileStore(strip, s, lds, 0)
		ADDQ(size, s)
	}
}

// declareScoreFew writes the head of scoreFewAMX.
func declareScoreFew() {
	TEXT("scoreFewAMX", NOSPLIT, "func(config *byte, q *uint16, k *uint16, ldk int, pitch int, fours int, whole int, "+
		"rest int, s *float32, lds int, next *byte, half int, across int, asks int)")
	Doc("scoreFewAMX computes scores s of few lines, lds bytes from position to position, for fours (at least 1) times",
		"four strips of 16 keys, as scoreTilesAMX does for a group. "+asksForPlaces,
		"A step is a tile of keys.")
	Pragma("noescape")
}

// weighFew adds weighted values of some columns, as they are cached: those of a chunk become tiles while those of the
// chunk before are multiplied.
func weighFew() {
	declareWeighFew()
	row, y, ldy := reg.RAX, reg.RBX, reg.R8
	w := fewValues{
		p: reg.RSI, tile: reg.RDI, at: reg.RDX, ldv: reg.R9, line: reg.R10, to: reg.R11, row: row,
		left: reg.R12, count: reg.RCX,
	}
	w.pieces = AllocLocal(8)
	w.ahead = places{next: reg.R14, half: reg.R15, left: reg.RCX, across: inPlace("across"), count: inPlace("asks")}
	load("config", reg.RAX)
	tileConfigure()
	MOVQ(I32(64), row)
	load("p", w.p)
	load("v", w.at)
	load("ldv", w.ldv)
	load("room", w.tile)
	load("next", reg.R14)
	load("half", reg.R15)
	load("chunks", w.left)
	load("y", y)
	load("ldy", ldy)
	byColumns("load", inPlace("columns"), reg.RCX, func(columns int) {
		for column := range columns {
			tileLoad(column, y, ldy, 64*column)
		}
	})
	MOVQ(w.tile, w.to)
	w.pair("first")
	load("columns", reg.R13)
	SHLQ(U8(10), reg.R13) // to the other chunk
	Label("chunk")
	DECQ(w.left)
	JZ(LabelRef("last"))
	MOVQ(w.tile, w.to)
	ADDQ(reg.R13, w.to)
	w.pair("next")
	Label("last")
	byColumns("add", inPlace("columns"), reg.RCX, func(columns int) {
		tileLoad(tileWeights, w.p, row, 0)
		for column := range columns {
			tileLoad(tileValues, w.tile, row, 1024*column)
			tileMultiplyPairs(column, tileWeights, tileValues)
			w.ahead.ask(label(label("add", columns)+"_", column))
		}
	})
	ADDQ(inPlace("ldp"), w.p)
	ADDQ(reg.R13, w.tile)
	NEGQ(reg.R13)
	TESTQ(w.left, w.left)
	JNZ(LabelRef("chunk"))
	byColumns("store", inPlace("columns"), reg.RCX, func(columns int) {
		for column := range columns {
			tileStore(column, y, ldy, 64*column)
		}
	})
	tileRelease()
	VZEROUPPER()
	RET()
}

// declareWeighFew writes the head of weighFewAMX.
func declareWeighFew() {
	TEXT("weighFewAMX", NOSPLIT, "func(config *byte, p *uint16, ldp int, v *uint16, ldv int, chunks int, wide int, "+
		"half16 int, columns int, room *uint16, y *float32, ldy int, next *byte, half int, across int, asks int)")
	Doc("weighFewAMX adds p v to few lines y, ldy bytes from line to line, for chunks (at least 1) of 32 positions.",
		"Weights p are tiles of lines, ldp bytes from chunk to chunk. Rows v, ldv bytes apart, have wide times 32",
		"columns, and 16 more where half16 is not 0: columns (1..6) tiles. room is for two chunks of them.",
		asksForPlaces,
		"A step is a tile of values, once as it is made and once as it is multiplied.")
	Pragma("noescape")
}

// fewValues are registers of weighFew: at is where the values of the next chunk are, to and line move through tiles and
// rows as they are made, and tile is what is multiplied.
type fewValues struct {
	p, tile, at, ldv, line, to, row, left, count reg.GPPhysical
	pieces                                       Mem
	ahead                                        places
}

// pair makes tiles of a chunk of values, as pairTiles512 does, and moves on to the next one.
func (w fewValues) pair(id string) {
	vecs := func(i int) (first, second, low, high reg.VecPhysical) {
		return z[4*(i%4)], z[4*(i%4)+1], z[4*(i%4)+2], z[4*(i%4)+3]
	}
	rows := func(part string, asks int, pair func(i int, low, high Mem)) {
		MOVQ(w.at, w.line)
		for i := range chunkRows / 2 {
			pair(i, Mem{Base: w.line}, Mem{Base: w.line, Index: w.ldv, Scale: 1})
			LEAQ(Mem{Base: w.line, Index: w.ldv, Scale: 2}, w.line)
			if every := chunkRows / 2 / asks; i%every == every-1 {
				w.ahead.ask(label(id+part, i))
			}
		}
	}
	MOVQ(inPlace("wide"), w.count)
	TESTQ(w.count, w.count)
	JZ(LabelRef(id + "_half"))
	MOVQ(w.count, w.pieces)
	Label(id + "_wide")
	rows("_wide", 2, func(i int, low, high Mem) {
		a, b, c, d := vecs(i)
		VMOVDQU64(low, a)
		VMOVDQU64(high, b)
		VPUNPCKLWD(b, a, c)
		VPUNPCKHWD(b, a, d)
		VMOVDQU64(c, Mem{Base: w.to, Disp: 64 * i})
		VMOVDQU64(d, Mem{Base: w.to, Disp: 1024 + 64*i})
	})
	ADDQ(I8(64), w.at)
	ADDQ(I32(2048), w.to)
	DECQ(w.pieces)
	JNZ(LabelRef(id + "_wide"))
	Label(id + "_half")
	CMPQ(inPlace("half16"), I8(0))
	JEQ(LabelRef(id + "_end"))
	rows("_half", 1, func(i int, low, high Mem) {
		a, b, _, _ := vecs(i)
		VPMOVZXWD(low, a)
		VPMOVZXWD(high, b)
		VPSLLD(U8(16), b, b)
		VPORD(b, a, a)
		VMOVDQU64(a, Mem{Base: w.to, Disp: 64 * i})
	})
	Label(id + "_end")
	load("wide", w.count)
	SHLQ(U8(6), w.count)
	SUBQ(w.count, w.at)
	MOVQ(w.ldv, w.line)
	SHLQ(U8(5), w.line)
	ADDQ(w.line, w.at)
}
