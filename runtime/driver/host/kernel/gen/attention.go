package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of attention with 256 bits. A line is one query head of one row. A call takes all lines of a task, so
// that what a call costs is paid once for hundreds of lines: it loops over groups of lines that fit in registers, up to
// six lines of 16 columns. Each result has one accumulator, which sums in the order of k.

// Constants of 2^x: the least x that does not give zero, what rounds to an integer that the low mantissa bits then
// hold, and a polynomial.
const (
	exp2Low   = -125
	exp2Round = 0x1.8p23
)

var exp2Poly = []float32{1, 0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512991189957,
	0.0013264729641377926}

// attentionTiles256 writes the kernels of attention.
func attentionTiles256() {
	expLow, expRound = f32("exp2Low256", exp2Low), f32("exp2Round256", exp2Round)
	for i, coef := range exp2Poly {
		expPoly[i] = f32("exp2Poly256x"+string(rune('0'+i)), coef)
	}
	scores256("scores256", 1, 6)
	scores256("scores256x32", 2, 3)
	scores256("scores256x64", 4, 1)
	for _, width := range []struct {
		name        string
		vecs, lines int
	}{{"x8", 1, 6}, {"", 2, 6}, {"x32", 4, 3}, {"x64", 8, 1}} {
		values256("values256"+width.name, width.vecs, 1, width.lines, false, false)
		values256("valuesFewF32"+width.name, width.vecs, 1, width.lines, true, false)
		values256("valuesFewF16"+width.name, width.vecs, 1, width.lines, true, true)
	}
	// 24 columns are taken by 4, 7 and 8 of few lines alone
	values256("valuesFewF32x24", 3, 3, 4, true, false)
	values256("valuesFewF16x24", 3, 3, 4, true, true)
	keysF32x16()
	keysF16x16()
	keysQ8x16()
	fromQ8x256()
	softmaxLines256()
	fadeLines256()
	fetchRows()
	fewLines256()
}

// lineGroups runs body for groups of n lines: of most, but for the last few, which are divided evenly so that none of
// their groups is too small to hide the latency of a multiply-add: from many lines on, two thirds of most are left for
// them. body moves the pointers by m lines. Calls have at least least lines, and numbers that leave fewer to no group.
func lineGroups(id string, least, most int, n reg.GPVirtual, body func(m int)) {
	many := most + (2*most+2)/3
	Label(id + "_next")
	CMPQ(n, I8(many))
	JGE(LabelRef(label(id+"_lines", most)))
	for left := many - 1; left >= least; left-- {
		CMPQ(n, I8(left))
		if left > most {
			JEQ(LabelRef(label(id+"_lines", (left+1)/2)))
		} else {
			JEQ(LabelRef(label(id+"_lines", left)))
		}
	}
	VZEROUPPER()
	RET()
	for m := most; m >= least; m-- {
		Label(label(id+"_lines", m))
		body(m)
		SUBQ(I8(m), n)
		JMP(LabelRef(id + "_next"))
	}
}

// prefetcher asks in each step for a part of what comes next, in the second-level cache. With again it asks once more,
// in the first, for what it asked for some steps before: a core drops requests that come faster than memory answers.
// With once it asks in the first alone.
type prefetcher struct {
	at, stride, near reg.GPVirtual
	again, once      bool
}

// newPrefetcher reads the parameters next and stride, in bytes.
func newPrefetcher() prefetcher {
	out := prefetcher{at: GP64(), stride: GP64()}
	Load(Param("next"), out.at)
	Load(Param("stride"), out.stride)
	return out
}

// newNearPrefetcher reads the parameter near, too, the bytes from what is asked for to what is asked for again.
func newNearPrefetcher() prefetcher {
	out := newPrefetcher()
	out.near, out.again = param("near"), true
	return out
}

// newOncePrefetcher is that of kernels of 512 bits, which read up to an eighth more when they ask once, a little ahead.
func newOncePrefetcher() prefetcher {
	out := newPrefetcher()
	out.once = true
	return out
}

// step asks for the lines that a step of so many columns can be too short for: one by one line of attention reads
// memory, and more compute.
func (p prefetcher) step(columns int) { p.lines((columns + 15) / 16) }

// lines asks for some cache lines. Those far ahead go to the second-level cache, because they would drive out of the
// first what is in use.
func (p prefetcher) lines(count int) {
	for i := range count {
		if p.once {
			PREFETCHT0(Mem{Base: p.at, Disp: 64 * i})
			continue
		}
		PREFETCHT1(Mem{Base: p.at, Disp: 64 * i})
		if p.again {
			PREFETCHT0(Mem{Base: p.at, Index: p.near, Scale: 1, Disp: 64 * i})
		}
	}
	ADDQ(p.stride, p.at)
}

// scores256 multiplies lines by tiles of 16 keys, tiles of them side by side.
func scores256(name string, tiles, most int) {
	function(name, "(n int, s *float32, lds int, q *float32, ldq int, k int, w *float32, next *byte, stride int)",
		"computes s = q w for n lines and tiles w [k][16] of keys, one after the other, one tile or as many as the",
		"name has columns. It prefetches from next on, stride bytes each step. Strides are in bytes.")
	count := param("n")
	out, row, weights := param("s"), param("q"), param("w")
	input := newLines("ldq", most)
	fetch := newPrefetcher()
	lineGroups(name, 1, most, count, func(m int) {
		k := scoreKernel256{m: m, vecs: 2 * tiles, input: input.of(m), fetch: fetch}
		k.input.set(row)
		k.point(tiles, weights)
		left := GP64()
		Load(Param("k"), left)
		zero256(y[:k.vecs*m]...)
		step := k.lines
		switch {
		case m == 1:
			step = k.line
		case tiles > 1:
			step = k.wideLines
		}
		steps(label(name, m), left, 4, func(i int) {
			fetch.step(8 * k.vecs)
			step(i)
		}, func(count int) {
			k.input.advance(4 * count)
			for _, base := range k.tiles {
				ADDQ(I32(64*count), base)
			}
		})
		storeLines256(m, k.vecs, out, param("lds"), row, input.ld)
	})
}

// newLines makes registers for the addresses of up to most lines, whose distance is the parameter ld.
func newLines(ld string, most int) rows {
	input := rows{ld: GP64(), ld3: GP64()}
	for range (most + 3) / 4 {
		input.base = append(input.base, GP64())
	}
	Load(Param(ld), input.ld)
	return input
}

// of returns the registers that count rows need.
func (r rows) of(count int) rows {
	return rows{base: r.base[:(count+3)/4], ld: r.ld, ld3: r.ld3}
}

// storeLines256 stores the sums of m lines, vecs registers each, from the first ones on, and moves out and row to the
// next lines.
func storeLines256(m, vecs int, out, ldOut, row, ldRow reg.GPVirtual) {
	for line := range m {
		for part := range vecs {
			VMOVUPS(y[vecs*line+part], Mem{Base: out, Disp: 32 * part})
		}
		ADDQ(ldOut, out)
		ADDQ(ldRow, row)
	}
}

// scoreKernel256 is scores256 for m lines, whose scores have vecs registers each.
type scoreKernel256 struct {
	m, vecs int
	input   rows
	tiles   []reg.GPVirtual
	fetch   prefetcher
}

// point sets pointers to the tiles.
func (k *scoreKernel256) point(tiles int, weights reg.GPVirtual) {
	for i := range tiles {
		k.tiles = append(k.tiles, GP64())
		if i == 0 {
			MOVQ(weights, k.tiles[0])
			continue
		}
		depth := GP64()
		Load(Param("k"), depth)
		SHLQ(U8(6), depth) // a tile, and a line between tiles
		LEAQ(Mem{Base: k.tiles[i-1], Index: depth, Scale: 1, Disp: 64}, k.tiles[i])
	}
}

// sum is the register of the scores of eight keys.
func (k *scoreKernel256) sum(line, part int) reg.VecPhysical { return y[k.vecs*line+part] }

// keys is the operand of eight keys, in step i of a turn.
func (k *scoreKernel256) keys(part, i int) Mem {
	return Mem{Base: k.tiles[part/2], Disp: 64*i + part%2*32}
}

// line multiplies a single line: keys are operands in memory.
func (k *scoreKernel256) line(i int) {
	VBROADCASTSS(k.input.at(0, 4*i), y[15])
	for part := range k.vecs {
		VFMADD231PS(k.keys(part, i), y[15], k.sum(0, part))
	}
}

// wideLines multiplies a few lines by several tiles: the lines stay in registers.
func (k *scoreKernel256) wideLines(i int) {
	for line := range k.m {
		VBROADCASTSS(k.input.at(line, 4*i), y[12+line])
	}
	for part := range k.vecs {
		VMOVUPS(k.keys(part, i), y[15])
		for line := range k.m {
			VFMADD231PS(y[15], y[12+line], k.sum(line, part))
		}
	}
}

// lines multiplies several lines by a tile: the keys stay in registers.
func (k *scoreKernel256) lines(i int) {
	VMOVUPS(k.keys(0, i), y[12])
	VMOVUPS(k.keys(1, i), y[13])
	for line := range k.m {
		scalar := y[14+line%2]
		VBROADCASTSS(k.input.at(line, 4*i), scalar)
		VFMADD231PS(y[12], scalar, k.sum(line, 0))
		VFMADD231PS(y[13], scalar, k.sum(line, 1))
	}
}

// values256 adds weighted rows of values, float32 or float16: 8*vecs of their columns, in groups of least to most
// lines. For few lines it prefetches twice.
func values256(name string, vecs, least, most int, few, half bool) {
	typ, near, again := "float32", "", ""
	if half {
		typ = "uint16"
	}
	if few {
		near, again = "near int, ", ", and once more near bytes behind that"
	}
	function(name, "(n int, y *float32, ldy int, x *float32, ldx int, k int, v *"+typ+", ldv int, next *byte, "+near+
		"stride int)",
		"adds x v to y for n lines x of k weights and columns of k rows v: 16, or as many as the name says.",
		"It prefetches from next on"+again+", stride bytes each step. Strides are in bytes.")
	count := param("n")
	out, row := param("y"), param("x")
	input := newLines("ldx", most)
	fetch := newPrefetcher
	if few {
		fetch = newNearPrefetcher
	}
	next := fetch()
	lineGroups(name, least, most, count, func(m int) {
		k := valueKernel256{m: m, vecs: vecs, half: half, input: input.of(m)}
		k.input.set(row)
		ldy, sum := param("ldy"), GP64()
		MOVQ(out, sum)
		for line := range m {
			for part := range vecs {
				VMOVUPS(Mem{Base: sum, Disp: 32 * part}, k.sum(line, part))
			}
			ADDQ(ldy, sum)
		}
		k.at = param("v")
		ldv, left := param("ldv"), param("k")
		step := k.columns
		if vecs > 3 {
			step = k.wideColumns
		}
		steps(label(name, m), left, 4, func(i int) {
			next.step(8 * vecs)
			step(i)
			ADDQ(ldv, k.at)
		}, func(count int) { k.input.advance(4 * count) })
		storeLines256(m, vecs, out, ldy, row, input.ld)
	})
}

// valueKernel256 is values256 for m lines, whose sums have vecs registers each. half says that values are float16.
type valueKernel256 struct {
	m, vecs int
	half    bool
	input   rows
	at      reg.GPVirtual // the row of values
}

// sum is the register of eight columns of a line.
func (k *valueKernel256) sum(line, part int) reg.VecPhysical { return y[k.vecs*line+part] }

// load loads eight values as float32.
func (k *valueKernel256) load(part int, to reg.VecPhysical) {
	if k.half {
		VCVTPH2PS(Mem{Base: k.at, Disp: 16 * part}, to)
	} else {
		VMOVUPS(Mem{Base: k.at, Disp: 32 * part}, to)
	}
}

// wideColumns multiplies a row of many columns: the weights of the lines stay in registers.
func (k *valueKernel256) wideColumns(i int) {
	for line := range k.m {
		VBROADCASTSS(k.input.at(line, 4*i), y[12+line])
	}
	for part := range k.vecs {
		if k.m == 1 && !k.half {
			VFMADD231PS(Mem{Base: k.at, Disp: 32 * part}, y[12], k.sum(0, part))
			continue
		}
		k.load(part, y[15])
		for line := range k.m {
			VFMADD231PS(y[15], y[12+line], k.sum(line, part))
		}
	}
}

// columns multiplies a row of few columns: they stay in registers.
func (k *valueKernel256) columns(i int) {
	for part := range k.vecs {
		k.load(part, y[12+part])
	}
	free := min(2, 4-k.vecs)
	for line := range k.m {
		scalar := y[16-free+line%free]
		VBROADCASTSS(k.input.at(line, 4*i), scalar)
		for part := range k.vecs {
			VFMADD231PS(y[12+part], scalar, k.sum(line, part))
		}
	}
}

// eightRows addresses eight rows with one base.
type eightRows struct{ base, ld, ld3, ld5, ld7 reg.GPVirtual }

func newEightRows(base, ld reg.GPVirtual) eightRows {
	out := eightRows{base: base, ld: ld, ld3: GP64(), ld5: GP64(), ld7: GP64()}
	LEAQ(Mem{Base: ld, Index: ld, Scale: 2}, out.ld3)
	LEAQ(Mem{Base: ld, Index: ld, Scale: 4}, out.ld5)
	LEAQ(Mem{Base: out.ld3, Index: ld, Scale: 4}, out.ld7)
	return out
}

func (r eightRows) at(i int) Mem {
	switch i {
	case 0:
		return Mem{Base: r.base}
	case 1, 2, 4:
		return Mem{Base: r.base, Index: r.ld, Scale: uint8(i)}
	case 3, 6:
		return Mem{Base: r.base, Index: r.ld3, Scale: uint8(i / 3)}
	case 5:
		return Mem{Base: r.base, Index: r.ld5, Scale: 1}
	}
	return Mem{Base: r.base, Index: r.ld7, Scale: 1}
}

// keysF32x16 transposes within lanes: the lower lane holds keys 0 to 3, the upper one keys 4 to 7.
func keysF32x16() {
	function("keysF32x16", "(dst *float32, src *float32, ld int, n int)",
		"stores 8 rows of n numbers (a multiple of 4), ld bytes apart, as 8 columns of dst [n][16].")
	dst, count := param("dst"), param("n")
	input := newEightRows(param("src"), param("ld"))
	SHRQ(U8(2), count)
	JZ(LabelRef("keys_done"))
	Label("keys_loop")
	transposeRows256(input)
	for i := range 4 {
		VMOVUPS(y[i], Mem{Base: dst, Disp: 64 * i})
	}
	ADDQ(I8(16), input.base)
	ADDQ(I32(4*64), dst)
	DECQ(count)
	JNZ(LabelRef("keys_loop"))
	Label("keys_done")
	VZEROUPPER()
	RET()
}

// keysF16x16 transposes before it widens, because two numbers of 16 bits move like one of 32.
func keysF16x16() {
	function("keysF16x16", "(dst *float32, src *uint16, ld int, n int)",
		"stores 8 rows of n numbers (a multiple of 8), ld bytes apart, as 8 columns of dst [n][16].")
	dst, count := param("dst"), param("n")
	input := newEightRows(param("src"), param("ld"))
	SHRQ(U8(3), count)
	JZ(LabelRef("halves_done"))
	Label("halves_loop")
	transposeHalves256(input)
	for i := range 4 {
		VPERMQ(U8(0xd8), y[i], y[i])
		VCVTPH2PS(y[i].AsX(), y[4])
		VMOVUPS(y[4], Mem{Base: dst, Disp: 128 * i})
		VEXTRACTI128(U8(1), y[i], reg.X5)
		VCVTPH2PS(reg.X5, y[5])
		VMOVUPS(y[5], Mem{Base: dst, Disp: 128*i + 64})
	}
	ADDQ(I8(16), input.base)
	ADDQ(I32(8*64), dst)
	DECQ(count)
	JNZ(LabelRef("halves_loop"))
	Label("halves_done")
	VZEROUPPER()
	RET()
}

// keysQ8x16 transposes bytes, eight keys of eight numbers a turn, before it widens them and multiplies by the scales of
// the keys.
func keysQ8x16() {
	function("keysQ8x16", "(dst *float32, src *uint8, ld int, n int)",
		"stores 8 rows of n codes (a multiple of 8), each followed by its scale and ld bytes from the next, as 8",
		"columns of numbers of dst [n][16].")
	dst, count := param("dst"), param("n")
	input := newEightRows(param("src"), param("ld"))
	ends := input // where the scales are
	ends.base = GP64()
	LEAQ(Mem{Base: input.base, Index: count, Scale: 1}, ends.base)
	for half, to := range []reg.VecPhysical{y[0], y[1]} {
		VMOVSS(ends.at(4*half), to.AsX())
		for i := 1; i < 4; i++ {
			VINSERTPS(U8(i<<4), ends.at(4*half+i), to.AsX(), to.AsX())
		}
	}
	scales := y[15]
	VINSERTF128(U8(1), reg.X1, y[0], scales)
	offset := GP32()
	MOVL(U32(0x80808080), offset)
	VMOVD(offset, reg.X14)
	VPBROADCASTD(reg.X14, reg.X14)
	SHRQ(U8(3), count)
	JZ(LabelRef("q8_done"))
	Label("q8_loop")
	x := func(i int) reg.Register { return y[i].AsX() }
	for i := range 8 {
		VMOVQ(input.at(i), x(i))
	}
	for i := 0; i < 8; i += 2 { // pairs of keys, in registers 8 to 11
		VPUNPCKLBW(x(i+1), x(i), x(8+i/2))
	}
	for i := range 2 { // four keys: numbers 0 to 3, and 4 to 7
		VPUNPCKLWD(x(9+2*i), x(8+2*i), x(2*i))
		VPUNPCKHWD(x(9+2*i), x(8+2*i), x(2*i+1))
	}
	for i := range 2 { // all eight keys of two numbers each
		VPUNPCKLDQ(x(2+i), x(i), x(4+2*i))
		VPUNPCKHDQ(x(2+i), x(i), x(5+2*i))
	}
	for i := range 4 {
		VPXOR(reg.X14, x(4+i), x(4+i)) // u-128, signed
		VPMOVSXBD(x(4+i), y[0])
		VPSRLDQ(U8(8), x(4+i), x(4+i))
		VPMOVSXBD(x(4+i), y[1])
		for half := range 2 {
			VCVTDQ2PS(y[half], y[half])
			VMULPS(scales, y[half], y[half])
			VMOVUPS(y[half], Mem{Base: dst, Disp: 128*i + 64*half})
		}
	}
	ADDQ(I8(8), input.base)
	ADDQ(I32(8*64), dst)
	DECQ(count)
	JNZ(LabelRef("q8_loop"))
	Label("q8_done")
	VZEROUPPER()
	RET()
}

// fromQ8x256 widens rows of an 8-bit cache, whose codes stand for u-128 and are followed by their scale.
func fromQ8x256() {
	function("fromQ8x256", "(dst *float32, src *uint8, n int, rows int)",
		"widens rows of n codes (a multiple of 8, at least 8), each followed by its scale, to dense rows of n numbers.")
	dst, row, rows := param("dst"), param("src"), param("rows")
	offset, left := GP32(), GP64()
	MOVL(U32(128), offset)
	VMOVD(offset, y[15].AsX())
	VPBROADCASTD(y[15].AsX(), y[15])
	TESTQ(rows, rows)
	JZ(LabelRef("codes_done"))
	Label("codes_row")
	Load(Param("n"), left)
	VBROADCASTSS(Mem{Base: row, Index: left, Scale: 1}, y[14])
	SHRQ(U8(3), left)
	Label("codes_loop")
	VPMOVZXBD(Mem{Base: row}, y[0])
	VPSUBD(y[15], y[0], y[0])
	VCVTDQ2PS(y[0], y[0])
	VMULPS(y[14], y[0], y[0])
	VMOVUPS(y[0], Mem{Base: dst})
	ADDQ(I8(8), row)
	ADDQ(I8(32), dst)
	DECQ(left)
	JNZ(LabelRef("codes_loop"))
	ADDQ(I8(4), row)
	DECQ(rows)
	JNZ(LabelRef("codes_row"))
	Label("codes_done")
	VZEROUPPER()
	RET()
}

// softmaxLines256 is one step of the online softmax over blocks of scores: of each line it keeps a running maximum and
// a running sum, and the factor by which what was summed up before shrinks, which is 2^(old maximum - new maximum). It
// takes all lines through a pass before the next, because a line waits for its maximum, and then for its sum, longer
// than it takes to compute the exponentials.
func softmaxLines256() {
	function("softmaxLines256", "(lines int, s *float32, lds int, n int, scale float32, state *float32)",
		"replaces n scores s of each line by 2^(s*scale-top) where top, state[line][0], becomes at least their",
		"maximum, scales the sum state[line][1] to the new top, adds them to it, and stores that factor in",
		"state[line][2]; state is [lines][4]. n is a multiple of 16, at least 16; lds is in bytes.")
	scores, lds, state := param("s"), param("lds"), param("state")
	k := softmaxKernel256{
		row: GP64(), left: GP64(),
		scale: y[15], top: y[14], sum: y[13], fade: y[12], low: y[11], round: y[10],
	}
	factor, _ := Param("scale").Resolve()
	VBROADCASTSS(factor.Addr, k.scale)
	VMOVUPS(expLow, k.low)
	VMOVUPS(expRound, k.round)
	passes := softmaxPasses{scores, lds, state}
	passes.each("top", k.largest)
	passes.each("exp", k.exponentials)
	VZEROUPPER()
	RET()
}

// softmaxKernel256 are the registers of softmaxLines256.
type softmaxKernel256 struct {
	row, left             reg.GPVirtual
	scale, top, sum, fade reg.VecPhysical
	low, round            reg.VecPhysical // the constants exp2Low and exp2Round
}

// along emits a loop over the scores of a line, 16 in a turn.
func (k softmaxKernel256) along(id string, line reg.GPVirtual, body func()) {
	MOVQ(line, k.row)
	Load(Param("n"), k.left)
	along(id, k.left, 64, []reg.GPVirtual{k.row}, body)
}

// largest is the first pass: the maximum, times scale, which is positive.
func (k softmaxKernel256) largest(line, stat reg.GPVirtual) {
	VMOVUPS(Mem{Base: line}, y[0])
	VMOVUPS(Mem{Base: line, Disp: 32}, y[1])
	k.along("line_top", line, func() {
		VMAXPS(Mem{Base: k.row}, y[0], y[0])
		VMAXPS(Mem{Base: k.row, Disp: 32}, y[1], y[1])
	})
	largestOf256(y[0], y[1])
	VMULPS(k.scale, y[0], y[0])
	VBROADCASTSS(Mem{Base: stat}, k.fade)
	VMAXPS(k.fade, y[0], k.top)
	VSUBPS(k.top, k.fade, k.fade)
	k.power(k.fade, y[0], y[1], y[2])
	VMOVSS(k.top.AsX(), Mem{Base: stat})
	VMOVSS(k.fade.AsX(), Mem{Base: stat, Disp: 8})
}

// exponentials is the second pass: the exponentials and their sum, in two registers.
func (k softmaxKernel256) exponentials(line, stat reg.GPVirtual) {
	sums := [2]reg.VecPhysical{k.sum, k.fade}
	VBROADCASTSS(Mem{Base: stat}, k.top)
	VXORPS(sums[0], sums[0], sums[0])
	VXORPS(sums[1], sums[1], sums[1])
	k.along("line_exp", line, func() {
		for i, sum := range sums {
			exp := y[4*i]
			VMOVUPS(Mem{Base: k.row, Disp: 32 * i}, exp)
			VFMSUB213PS(k.top, k.scale, exp)
			k.power(exp, y[4*i+1], y[4*i+2], y[4*i+3])
			VMOVUPS(exp, Mem{Base: k.row, Disp: 32 * i})
			VADDPS(exp, sum, sum)
		}
	})
	VADDPS(sums[1], sums[0], sums[0])
	sumToState(sums[0], stat)
}

// power replaces x, at most about 0, by 2^x: the nearest integer becomes the exponent, and a polynomial of degree 5 of
// the rest, with a relative error of 1.1e-7, the mantissa. Below 2^-125 it gives zero.
func (k softmaxKernel256) power(x, whole, rest, value reg.VecPhysical) {
	VADDPS(k.round, x, whole)
	VSUBPS(k.round, whole, rest)
	VSUBPS(rest, x, rest)
	VMOVUPS(expPoly[5], value)
	for i := 4; i >= 0; i-- {
		VFMADD213PS(expPoly[i], rest, value)
	}
	VPSLLD(U8(23), whole, whole)
	VPADDD(whole, value, value)
	VCMPPS(U8(1), k.low, x, whole) // x < low
	VANDNPS(value, whole, x)
}

// fadeLines256 scales lines, most of which often stay as they are.
func fadeLines256() {
	function("fadeLines256", "(lines int, y *float32, ldy int, n int, factor *float32)",
		"multiplies n numbers of each line y by its factor, 16 bytes from the one before. n is a multiple of 16, at",
		"least 16; ldy is in bytes.")
	each, row, left := softmaxPasses{param("y"), param("ldy"), param("factor")}.each, GP64(), GP64()
	each("fade", func(line, factor reg.GPVirtual) {
		CMPL(Mem{Base: factor}, I32(0x3f800000)) // 1
		JEQ(LabelRef("fade_next"))
		VBROADCASTSS(Mem{Base: factor}, y[2])
		MOVQ(line, row)
		Load(Param("n"), left)
		along("line_fade", left, 64, []reg.GPVirtual{row}, func() {
			for i := range 2 {
				VMULPS(Mem{Base: row, Disp: 32 * i}, y[2], y[i])
				VMOVUPS(y[i], Mem{Base: row, Disp: 32 * i})
			}
		})
		Label("fade_next")
	})
	VZEROUPPER()
	RET()
}

// fetchRows asks for what is needed later than what other kernels prefetch, or while a thread waits for others.
func fetchRows() {
	function("fetchRows", "(at *byte, ld int, rows int, lines int)",
		"asks for some cache lines of each of rows rows, both at least 1, in the second-level cache. ld is in bytes.")
	at, ld, rows, lines := param("at"), param("ld"), param("rows"), param("lines")
	line, left := GP64(), GP64()
	Label("fetch_row")
	MOVQ(at, line)
	MOVQ(lines, left)
	Label("fetch_line")
	PREFETCHT1(Mem{Base: line})
	ADDQ(I8(64), line)
	DECQ(left)
	JNZ(LabelRef("fetch_line"))
	ADDQ(ld, at)
	DECQ(rows)
	JNZ(LabelRef("fetch_row"))
	RET()
}

// softmaxPasses are loops over the lines of a softmax.
type softmaxPasses struct{ scores, lds, state reg.GPVirtual }

// each emits a loop over lines.
func (p softmaxPasses) each(id string, body func(line, stat reg.GPVirtual)) {
	lines, line, stat := param("lines"), GP64(), GP64()
	MOVQ(p.scores, line)
	MOVQ(p.state, stat)
	TESTQ(lines, lines)
	JZ(LabelRef(id + "_end"))
	Label(id + "_line")
	body(line, stat)
	ADDQ(p.lds, line)
	ADDQ(I8(16), stat)
	DECQ(lines)
	JNZ(LabelRef(id + "_line"))
	Label(id + "_end")
}

// largestOf256 emits the largest number of two vectors, into all of the first.
func largestOf256(vec, other reg.VecPhysical) {
	VMAXPS(other, vec, vec)
	VPERM2F128(U8(1), vec, vec, other)
	VMAXPS(other, vec, vec)
	VPERMILPS(U8(0x4e), vec, other)
	VMAXPS(other, vec, vec)
	VPERMILPS(U8(0xb1), vec, other)
	VMAXPS(other, vec, vec)
}

// sumToState emits the update of a line's sum: the sum before, which shrinks, and the numbers of a vector.
func sumToState(sum reg.VecPhysical, stat reg.GPVirtual) {
	VEXTRACTF128(U8(1), sum, reg.X3)
	VADDPS(reg.X3, sum.AsX(), reg.X0)
	VHADDPS(reg.X0, reg.X0, reg.X0)
	VHADDPS(reg.X0, reg.X0, reg.X0)
	VMOVSS(Mem{Base: stat, Disp: 4}, reg.X1)
	VMOVSS(Mem{Base: stat, Disp: 8}, reg.X2)
	VFMADD231SS(reg.X2, reg.X1, reg.X0)
	VMOVSS(reg.X0, Mem{Base: stat, Disp: 4})
}
