package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// What attention in tiles needs beside products (see amx_attention.go), with AVX-512 and its instructions on bfloat16.
// Sixteen lines are a group; scores of a group are [positions][16], so that a vector is one position of all its lines.

// chunkRows is the number of positions of a tile of weights, two a pair.
const chunkRows = 32

// tiled512 writes the functions on vectors of attention in tiles.
func tiled512() {
	makeSoftmaxConstants()
	turnLines512()
	maskLines512()
	softmaxTiles512()
	softmaxFew512()
	askPlaces()
	fadeTiles512()
	pairTiles512()
	finishTiles512()
}

// turnWords transposes four by four words in every lane of 128 bits of four vectors: the first becomes the first words
// of all. free are four more registers.
func turnWords(vecs, free []reg.VecPhysical) {
	VPUNPCKLDQ(vecs[1], vecs[0], free[0])
	VPUNPCKHDQ(vecs[1], vecs[0], free[1])
	VPUNPCKLDQ(vecs[3], vecs[2], free[2])
	VPUNPCKHDQ(vecs[3], vecs[2], free[3])
	VPUNPCKLQDQ(free[2], free[0], vecs[0])
	VPUNPCKHQDQ(free[2], free[0], vecs[1])
	VPUNPCKLQDQ(free[3], free[1], vecs[2])
	VPUNPCKHQDQ(free[3], free[1], vecs[3])
}

// lowMask sets the low count bits of a mask, at most 31. free is overwritten.
func lowMask(count, free reg.GPVirtual, mask reg.Register) {
	MOVQ(count, reg.RCX)
	MOVQ(I32(1), free)
	SHLQ(reg.CL, free)
	DECQ(free)
	KMOVD(free.As32(), mask)
}

// turnLines512 makes lines columns.
func turnLines512() {
	function("turnLines512", "(dst *float32, src *float32, ld int, n int)",
		"stores 16 rows of n words (at least 1), ld bytes apart, as 16 columns of dst [n rounded up to 16][16]; there",
		"are zeros in the rows that n is rounded up by.")
	dst, left, ones := param("dst"), param("n"), GP64()
	low := newEightRows(param("src"), param("ld"))
	high := low
	high.base = GP64()
	LEAQ(Mem{Base: low.base, Index: low.ld, Scale: 8}, high.base)
	src := sixteenRows{low, high}
	MOVQ(I32(0xffff), ones)
	KMOVW(ones.As32(), reg.K1)
	Label("turn_next")
	CMPQ(left, I8(16))
	JGE(LabelRef("turn_whole"))
	lowMask(left, ones, reg.K1)
	Label("turn_whole")
	for row := range 16 {
		VMOVDQU32_Z(src.at(row), reg.K1, z[row])
	}
	for row := 0; row < 16; row += 4 {
		turnWords(z[row:row+4], z[16:20])
	}
	// vector 4g+i has in lane c the words 4c+i of rows 4g..4g+3
	for i := range 4 {
		VSHUFI32X4(U8(0x88), z[4+i], z[i], z[16])    // words i and 8+i of rows 0..7
		VSHUFI32X4(U8(0xdd), z[4+i], z[i], z[17])    // words 4+i and 12+i
		VSHUFI32X4(U8(0x88), z[12+i], z[8+i], z[18]) // of rows 8..15
		VSHUFI32X4(U8(0xdd), z[12+i], z[8+i], z[19])
		for half := range 2 {
			VSHUFI32X4(U8(0x88), z[18+half], z[16+half], z[20])
			VSHUFI32X4(U8(0xdd), z[18+half], z[16+half], z[21])
			VMOVDQU64(z[20], Mem{Base: dst, Disp: 64 * (4*half + i)})
			VMOVDQU64(z[21], Mem{Base: dst, Disp: 64 * (8 + 4*half + i)})
		}
	}
	ADDQ(I8(64), low.base)
	ADDQ(I8(64), high.base)
	ADDQ(I32(1024), dst)
	SUBQ(I8(16), left)
	JG(LabelRef("turn_next"))
	VZEROUPPER()
	RET()
}

// maskLines512 overwrites scores of positions that lines do not attend to.
func maskLines512() {
	function("maskLines512", "(s *float32, first int, rows int, span *int32)",
		"makes scores s [rows][16] negative infinity of the positions, from first on, that are not among span[line]",
		"up to, but not including, span[16+line]. rows is at least 1.")
	s, rows, span, first := param("s"), param("rows"), param("span"), param("first")
	from, to, pos, one, nothing := z[0], z[1], z[2], z[3], z[4]
	VMOVDQU64(Mem{Base: span}, from)
	VMOVDQU64(Mem{Base: span, Disp: 64}, to)
	VPBROADCASTD(first.As32(), pos)
	broadcast32(1, one)
	broadcast32(0xff800000, nothing)
	Label("mask_next")
	VPCMPD(U8(1), from, pos, reg.K1) // pos < from
	VPCMPD(U8(5), to, pos, reg.K2)   // not pos < to
	KORW(reg.K1, reg.K2, reg.K1)
	VMOVUPS(nothing, reg.K1, Mem{Base: s})
	VPADDD(one, pos, pos)
	ADDQ(I8(64), s)
	DECQ(rows)
	JNZ(LabelRef("mask_next"))
	VZEROUPPER()
	RET()
}

// tiledSoftmax is a step of the online softmax for a group of lines.
//
// The weights of a chunk become a tile of lines by exchanges of words, while they still are in registers: four rows of
// scores, rounded, are two vectors of bfloat16, whose numbers of neighbouring positions are interleaved in lanes. That
// gives pairs of two positions each, of eight lines. Then there are only pairs of four words to turn in lanes, and
// lanes to sort.
type tiledSoftmax struct {
	scale, top, rest, value reg.VecPhysical
	poly, sums              []reg.VecPhysical
}

// newTiledSoftmax loads what does not change.
func newTiledSoftmax() tiledSoftmax {
	s := tiledSoftmax{scale: z[31], top: z[30], poly: z[24:30], sums: z[22:24], rest: z[20], value: z[21]}
	for i, coef := range softmaxPoly {
		VBROADCASTSS(coef, s.poly[i])
	}
	VBROADCASTSS(inPlace("scale"), s.scale)
	return s
}

// power makes x, at most about 0, two to the power of x.
func (s *tiledSoftmax) power(x reg.VecPhysical) {
	VREDUCEPS(U8(8), x, s.rest) // x less the nearest integer
	VSUBPS(s.rest, x, x)
	VMOVAPS(s.poly[5], s.value)
	for i := 4; i >= 0; i-- {
		VFMADD213PS(s.poly[i], s.rest, s.value)
	}
	VSCALEFPS(x, s.value, x)
}

// tops finds the largest scores of chunks at s, which move on, and what earlier sums fade by, in a vector that is also
// returned, and begins sums.
func (s *tiledSoftmax) tops(at, chunks, state, pitch reg.Register) (fade reg.VecPhysical) {
	for i := range 4 {
		VMOVUPS(Mem{Base: at, Disp: 64 * i}, z[i])
	}
	Label("top_next")
	for row := range chunkRows {
		VMAXPS(Mem{Base: at, Disp: 64 * row}, z[row%4], z[row%4])
	}
	ADDQ(I32(64*chunkRows), at)
	DECQ(chunks)
	JNZ(LabelRef("top_next"))
	VMAXPS(z[1], z[0], z[0])
	VMAXPS(z[3], z[2], z[2])
	VMAXPS(z[2], z[0], z[0])
	VMULPS(s.scale, z[0], z[0])
	VMOVUPS(Mem{Base: state}, z[16])
	VMAXPS(z[16], z[0], s.top)
	VSUBPS(s.top, z[16], z[16])
	s.power(z[16])
	VMOVUPS(s.top, Mem{Base: state})
	VMOVUPS(z[16], Mem{Base: state, Index: pitch, Scale: 2})
	zero512(s.sums...)
	return z[16]
}

// weights makes a tile of weights of a chunk of scores. ask is called for each four positions.
func (s *tiledSoftmax) weights(scores, out reg.Register, ask func(step int)) {
	low, high := [2][4]reg.VecPhysical{{z[0], z[1], z[2], z[3]}, {z[8], z[9], z[10], z[11]}},
		[2][4]reg.VecPhysical{{z[4], z[5], z[6], z[7]}, {z[12], z[13], z[14], z[15]}}
	rows := [4]reg.VecPhysical{z[16], z[17], z[18], z[19]}
	for half := range 2 {
		for m := range 4 {
			ask(4*half + m)
			// positions 2m, 2m+1, 2m+8 and 2m+9 of a half
			for i, x := range rows {
				position := 16*half + 2*m + i%2 + i/2*8
				VMOVUPS(Mem{Base: scores, Disp: 64 * position}, x)
				VFMSUB213PS(s.top, s.scale, x)
				s.power(x)
				VADDPS(x, s.sums[i%2], s.sums[i%2])
			}
			roundPairs(rows[0], rows[2], s.rest)
			roundPairs(rows[1], rows[3], s.value)
			VPUNPCKLWD(s.value, s.rest, low[half][m])
			VPUNPCKHWD(s.value, s.rest, high[half][m])
		}
		turnWords(low[half][:], rows[:])
		turnWords(high[half][:], rows[:])
	}
	for line := range 4 {
		for quad, from := range [2][2][4]reg.VecPhysical{low, high} {
			for eight, lanes := range []uint8{0x88, 0xdd} {
				vec := rows[2*quad+eight]
				VSHUFI32X4(U8(lanes), from[1][line], from[0][line], vec)
				VMOVDQU64(vec, Mem{Base: out, Disp: 64 * (8*eight + 4*quad + line)})
			}
		}
	}
}

// total adds the weights to the earlier ones, which fade.
func (s *tiledSoftmax) total(state, pitch reg.Register) {
	VADDPS(s.sums[1], s.sums[0], z[0])
	VMOVUPS(Mem{Base: state, Index: pitch, Scale: 1}, z[1])
	VFMADD231PS(Mem{Base: state, Index: pitch, Scale: 2}, z[1], z[0])
	VMOVUPS(z[0], Mem{Base: state, Index: pitch, Scale: 1})
}

// softmaxTiles512 is a step of the softmax.
func softmaxTiles512() {
	function("softmaxTiles512", "(s *float32, chunks int, scale float32, state *float32, pitch int, p *uint16)",
		"turns scores s [32*chunks][16] of positions and lines into weights p [chunks][16][32] of lines and",
		"positions, rounded to bfloat16: 2^(s*scale-top) where top, state[0][line], becomes at least the largest",
		"s*scale, from then on. Earlier sums shall fade by state[2][line], as the sum of weights state[1][line] does,",
		"which those before rounding are added to. The three are pitch bytes apart. There is at least one chunk.")
	s, left, state, out, pitch := param("s"), param("chunks"), param("state"), param("p"), param("pitch")
	at, count := GP64(), GP64()
	softmax := newTiledSoftmax()
	MOVQ(s, at)
	MOVQ(left, count)
	softmax.tops(at, count, state, pitch)
	Label("exp_next")
	softmax.weights(s, out, func(int) {})
	ADDQ(I32(64*chunkRows), s)
	ADDQ(I32(1024), out)
	DECQ(left)
	JNZ(LabelRef("exp_next"))
	softmax.total(state, pitch)
	VZEROUPPER()
	RET()
}

// fadeTiles512 scales lines, most of which often stay as they are.
func fadeTiles512() {
	function("fadeTiles512", "(lines int, y *float32, ldy int, n int, factor *float32)",
		"multiplies n numbers of each of lines (at least 1) lines y by its factor. n is a multiple of 16, at least",
		"16; ldy is in bytes.")
	fadeLines(param("lines"), param("y"), param("ldy"), param("factor"), GP64(), GP64(), inPlace("n"))
	VZEROUPPER()
	RET()
}

// fadeLines multiplies n numbers of lines by their factors.
func fadeLines(lines, y, ldy, factor, at, left reg.Register, n Op) {
	Label("fade_line")
	CMPL(Mem{Base: factor}, I32(0x3f800000)) // 1
	JEQ(LabelRef("fade_next"))
	VBROADCASTSS(Mem{Base: factor}, z[0])
	MOVQ(y, at)
	MOVQ(n, left)
	Label("fade_part")
	VMULPS(Mem{Base: at}, z[0], z[1])
	VMOVUPS(z[1], Mem{Base: at})
	ADDQ(I8(64), at)
	SUBQ(I8(16), left)
	JNZ(LabelRef("fade_part"))
	Label("fade_next")
	ADDQ(ldy, y)
	ADDQ(I8(4), factor)
	DECQ(lines)
	JNZ(LabelRef("fade_line"))
}

// pairTiles512 makes tiles of the numbers of pairs of rows. Of 32 columns it interleaves numbers within lanes, which
// leaves columns 0..3, 8..11, 16..19 and 24..27 in the first tile of two: finishTiles512 sorts them.
func pairTiles512() {
	function("pairTiles512", "(dst *uint16, src *uint16, ld int, chunks int, pitch int, wide int, rest int, next *byte, "+
		"stride int)",
		"stores chunks (at least 1) of 32 rows, ld bytes apart, as tiles [16][16] of pairs of rows, pitch bytes from",
		"chunk to chunk. A row has wide times 32 columns and rest (0..31) more. Two tiles have 32 columns, four of",
		"them and four of the others in turn; the last one has 16 columns in their order where rest is at most 16.",
		"Lines are prefetched from next on, stride bytes further with each four rows of 32 columns.")
	next, stride := param("next"), param("stride")
	dst, src, ld, chunks, wide := param("dst"), param("src"), param("ld"), param("chunks"), param("wide")
	pitch, rest := param("pitch"), param("rest")
	p := rowPairs{ld: ld, to: GP64(), at: GP64()}
	left := GP64()
	p.row = GP64()
	lowMask(rest, left, reg.K1)

	Label("pair_chunk")
	MOVQ(dst, p.to)
	MOVQ(src, p.at)
	MOVQ(wide, left)
	TESTQ(left, left)
	JZ(LabelRef("pair_rest"))
	Label("pair_wide")
	p.each(func(i int, first, second Mem) {
		p.interleave(i, func(vecs pair) {
			VMOVDQU64(first, vecs[0])
			VMOVDQU64(second, vecs[1])
		})
		if i%2 == 1 {
			PREFETCHT1(Mem{Base: next})
			ADDQ(stride, next)
		}
	})
	ADDQ(I8(64), p.at)
	ADDQ(I32(2048), p.to)
	DECQ(left)
	JNZ(LabelRef("pair_wide"))

	Label("pair_rest")
	TESTQ(rest, rest)
	JZ(LabelRef("pair_end"))
	CMPQ(rest, I8(16))
	JLE(LabelRef("pair_half"))
	p.each(p.part)
	JMP(LabelRef("pair_end"))
	Label("pair_half")
	p.each(p.half)

	Label("pair_end")
	MOVQ(ld, p.row)
	SHLQ(U8(5), p.row) // 32 rows
	ADDQ(p.row, src)
	ADDQ(pitch, dst)
	DECQ(chunks)
	JNZ(LabelRef("pair_chunk"))
	VZEROUPPER()
	RET()
}

// rowPairs are registers of pairTiles512: the columns of a chunk begin at at and become tiles at to. Four pairs of rows
// have registers, in turn.
type rowPairs struct {
	ld, to, at, row reg.GPVirtual
}

// each emits body for the pairs of rows of a chunk, 32 columns or fewer of them.
func (p rowPairs) each(body func(i int, first, second Mem)) {
	MOVQ(p.at, p.row)
	for i := range chunkRows / 2 {
		body(i, Mem{Base: p.row}, Mem{Base: p.row, Index: p.ld, Scale: 1})
		LEAQ(Mem{Base: p.row, Index: p.ld, Scale: 2}, p.row)
	}
}

// interleave stores the numbers of a pair of rows, which load loads, in their row of two tiles.
func (p rowPairs) interleave(i int, load func(vecs pair)) {
	rows := pair{z[4*(i%4)], z[4*(i%4)+1]}
	low, high := z[4*(i%4)+2], z[4*(i%4)+3]
	load(rows)
	VPUNPCKLWD(rows[1], rows[0], low)
	VPUNPCKHWD(rows[1], rows[0], high)
	VMOVDQU64(low, Mem{Base: p.to, Disp: 64 * i})
	VMOVDQU64(high, Mem{Base: p.to, Disp: 1024 + 64*i})
}

// part is interleave for the columns in K1.
func (p rowPairs) part(i int, first, second Mem) {
	p.interleave(i, func(vecs pair) {
		VMOVDQU16_Z(first, reg.K1, vecs[0])
		VMOVDQU16_Z(second, reg.K1, vecs[1])
	})
}

// half stores at most 16 numbers of a pair of rows in their row of one tile.
func (p rowPairs) half(i int, first, second Mem) {
	low, high := z[4*(i%4)], z[4*(i%4)+1]
	VMOVDQU16_Z(first, reg.K1, low.AsY())
	VMOVDQU16_Z(second, reg.K1, high.AsY())
	VPMOVZXWD(low.AsY(), low)
	VPMOVZXWD(high.AsY(), high)
	VPSLLD(U8(16), high, high)
	VPORD(high, low, low)
	VMOVDQU64(low, Mem{Base: p.to, Disp: 64 * i})
}

// columnOrder are, for two vectors of 16 columns, the indices of 32 columns in the order of pairTiles512.
func columnOrder() Mem {
	order := GLOBL("columnOrder512", 8|16)
	for column := range 32 {
		DATA(4*column, U32(column/8*4+column%4+column/4%2*16))
	}
	return order
}

// sortColumns makes z0 and z2 the 32 columns at at, scaled and in their order.
func sortColumns(at reg.GPVirtual, scale reg.VecPhysical, orders pair) {
	VMULPS(Mem{Base: at}, scale, z[0])
	VMULPS(Mem{Base: at, Disp: 64}, scale, z[1])
	VMOVAPS(z[0], z[2])
	VPERMT2PS(z[1], orders[0], z[0])
	VPERMT2PS(z[1], orders[1], z[2])
}

// finishTiles512 is the end of a row.
func finishTiles512() {
	function("finishTiles512", "(lines int, y *float32, ldy int, x *float32, ldx int, total *float32, wide int, rest int)",
		"writes lines (at least 1) lines x of sums, in the order of pairTiles512, divided by the line's total to y in",
		"order. A line has wide times 32 columns and rest (0..31) more. ldx and ldy are in bytes.")
	order := columnOrder()
	lines, y, ldy, x, ldx := param("lines"), param("y"), param("ldy"), param("x"), param("ldx")
	total, wide, rest, to, at, left := param("total"), param("wide"), param("rest"), GP64(), GP64(), GP64()
	scale, orders, one := z[31], pair{z[29], z[30]}, z[28]
	broadcast32(0x3f800000, one)
	for i, vec := range orders {
		VMOVDQU64(order.Offset(64*i), vec)
	}
	lowMask(rest, left, reg.K1)
	SUBQ(I8(16), rest)
	JLE(LabelRef("finish_line"))
	lowMask(rest, left, reg.K1)
	Label("finish_line")
	VDIVSS(Mem{Base: total}, one.AsX(), z[0].AsX())
	VBROADCASTSS(z[0].AsX(), scale)
	MOVQ(x, at)
	MOVQ(y, to)
	MOVQ(wide, left)
	TESTQ(left, left)
	JZ(LabelRef("finish_rest"))
	Label("finish_wide")
	sortColumns(at, scale, orders)
	VMOVUPS(z[0], Mem{Base: to})
	VMOVUPS(z[2], Mem{Base: to, Disp: 64})
	ADDQ(I32(128), at)
	ADDQ(I32(128), to)
	DECQ(left)
	JNZ(LabelRef("finish_wide"))
	Label("finish_rest")
	CMPQ(rest, I8(-16))
	JEQ(LabelRef("finish_end"))
	TESTQ(rest, rest)
	JLE(LabelRef("finish_half"))
	sortColumns(at, scale, orders)
	VMOVUPS(z[0], Mem{Base: to})
	VMOVUPS(z[2], reg.K1, Mem{Base: to, Disp: 64})
	JMP(LabelRef("finish_end"))
	Label("finish_half")
	VMULPS(Mem{Base: at}, scale, z[0])
	VMOVUPS(z[0], reg.K1, Mem{Base: to})
	Label("finish_end")
	ADDQ(ldx, x)
	ADDQ(ldy, y)
	ADDQ(I8(4), total)
	DECQ(lines)
	JNZ(LabelRef("finish_line"))
	VZEROUPPER()
	RET()
}
