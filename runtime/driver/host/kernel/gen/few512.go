package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of attention for few lines with 512 bits: those of decode.go for sixteen keys in a vector, which are
// transposed in registers in the same way, in four lanes instead of two. Registers are enough for the sums of eight
// lines over two groups of sixteen keys, so that each number of a query is read once for both. Kernels take whole pairs
// of groups, and leave fewer keys to those of 256 bits. Results are the same bits.

// mostWideLines is the number of lines, mostNarrowLines that of sixteen columns of float32 values, which many lines
// have, too.
const (
	mostWideLines   = 8
	mostNarrowLines = 12
)

// wideForm is how sixteen keys become vectors of one number of each.
type wideForm struct {
	name, typ string
	numbers   int // of each key in a turn
	bytes     int // of these, in the cache
	behind    int // bytes behind the numbers of a key
	parts     int // of a turn, which pass one after the other through the first of a group's registers
	// begin emits what is done once for the keys of a group
	begin func(group int, keys sixteenRows, dim reg.GPVirtual)
	// load emits the transposition of a turn to registers 8*group to 8*group+3, with the help of those of temporaries
	load func(group int, keys sixteenRows)
	// widen emits the vector of a number of a part, of each key, into the register that it returns
	widen func(group, number int) reg.VecPhysical
	// pairs tells that a number is a pair of bfloat16, codes that it is four codes
	pairs, codes bool
}

// multiply adds to sum the products of numbers of keys and of queries.
func (f wideForm) multiply(keys, queries, sum reg.VecPhysical) {
	switch {
	case f.pairs:
		multiplyPairs(keys, queries, sum)
	case f.codes:
		VPDPBUSD(queries, keys, sum)
	default:
		VFMADD231PS(keys, queries, sum)
	}
}

// multiple is what the numbers of a key are a multiple of.
func (f wideForm) multiple() int {
	if f.pairs || f.codes {
		return f.numbers
	}
	return max(8, f.numbers)
}

// unit is what a number of the form is.
func (f wideForm) unit() string {
	switch {
	case f.pairs:
		return "pairs"
	case f.codes:
		return "words of four codes"
	}
	return "numbers"
}

// Registers of the kernels of scores beside those of keys, 0 to 3 and 8 to 11, and of sums, from 16 on.
var (
	temporaries = z[4:8]
	queryVec    = z[12]
	formVecs    = z[13:16] // constants of a form
)

// fewLines512 writes the kernels of attention for few lines, and those that turn keys for many.
func fewLines512() {
	middle := f32("codesMiddle512", 128)
	for _, form := range wideForms(middle) {
		scoresWide512(form)
		turnWide512(form)
	}
	for _, form := range valueForms() {
		valuesWide512("x64", 4, 6, form)
		valuesWide512("x32", 2, mostWideLines, form)
		most := mostWideLines
		if form.begin == nil && form.bytes == 64 {
			most = mostNarrowLines
		}
		valuesWide512("x16", 1, most, form)
	}
	softmaxLines512()
}

// wideForms are the forms of keys. Of 8 bits middle is the code of 0.
func wideForms(middle Mem) []wideForm {
	full := wideForm{
		name: "F32", typ: "float32", numbers: 4, bytes: 16, parts: 1,
		begin: func(int, sixteenRows, reg.GPVirtual) {},
		load:  func(group int, keys sixteenRows) { loadWords(group, keys, true) },
		widen: func(group, number int) reg.VecPhysical { return z[8*group+number] },
	}
	pairs := [2]reg.VecPhysical{formVecs[0], formVecs[1]}
	indices := pairIndices()
	half := wideForm{
		name: "F16", typ: "uint16", numbers: 8, bytes: 16, parts: 1,
		begin: func(group int, _ sixteenRows, _ reg.GPVirtual) {
			if group > 0 {
				return
			}
			for i, pair := range pairs {
				VMOVDQU64(indices.Offset(64*i), pair)
			}
		},
		load: func(group int, keys sixteenRows) { loadF16x16(group, keys, pairs) },
		widen: func(group, number int) reg.VecPhysical {
			pair, wide := z[8*group+number/2], temporaries[2*group+number%2]
			if number%2 == 1 {
				VEXTRACTI64X4(U8(1), pair, pair.AsY())
			}
			VCVTPH2PS(pair.AsY(), wide)
			return wide
		},
	}
	spread := spreadBytes512()
	codes := wideForm{
		name: "Q8", typ: "uint8", numbers: 16, bytes: 16, behind: 4, parts: 4,
		begin: func(group int, keys sixteenRows, dim reg.GPVirtual) {
			if group == 0 {
				VBROADCASTSS(middle, formVecs[2])
			}
			scalesQ8x16(group, keys, dim, 1)
		},
		load: loadQ8x16,
		widen: func(group, number int) reg.VecPhysical {
			wide := temporaries[2*group+number%2]
			VPSHUFB(spread.Offset(64*number), z[8*group], wide)
			VCVTDQ2PS(wide, wide)
			VSUBPS(formVecs[2], wide, wide)
			VMULPS(formVecs[group], wide, wide)
			return wide
		},
	}
	return []wideForm{full, half, codes}
}

// pairIndices are, for numbers 0 and 1 and for numbers 2 and 3 of two vectors of pairs of keys, the indices of these
// pairs: those of the first number of sixteen keys in order, then of the second.
func pairIndices() Mem {
	mem := GLOBL("keyPairs512", 8|16)
	for i := range 32 {
		number, lane, second := i/8, i%8/2, i%2 // the pairs of the second vector have indices from 16 on
		DATA(4*i, U32(16*second+4*lane+number))
	}
	return mem
}

// sixteenRows addresses sixteen rows with two bases.
type sixteenRows struct{ low, high eightRows }

func (r sixteenRows) at(i int) Mem {
	if i < 8 {
		return r.low.at(i)
	}
	return r.high.at(i - 8)
}

// loadLanes emits loads of 16 bytes of keys i, i+4, i+8 and i+12 to each of four registers. On an AMD EPYC (Zen 5
// class) insertions from memory, which are fewer instructions, delay the multiply-adds of the turn before; but float32
// keys, which mostly wait for memory, take up to 6 % less time with them.
func loadLanes(group int, keys sixteenRows, inserted bool) {
	second, third, fourth := temporaries[0], temporaries[1], temporaries[2]
	for i := range 4 {
		first := z[8*group+i]
		VMOVUPS(keys.at(i), first.AsX())
		if inserted {
			VINSERTF128(U8(1), keys.at(i+4), first.AsY(), first.AsY())
			VINSERTF32X4(U8(2), keys.at(i+8), first, first)
			VINSERTF32X4(U8(3), keys.at(i+12), first, first)
			continue
		}
		for lane, to := range []reg.VecPhysical{second, third, fourth} {
			VMOVUPS(keys.at(i+4*(lane+1)), to.AsX())
		}
		VINSERTF128(U8(1), second.AsX(), first.AsY(), first.AsY())
		VINSERTF128(U8(1), fourth.AsX(), third.AsY(), third.AsY())
		VINSERTF64X4(U8(1), third.AsY(), first, first)
	}
}

// loadWords is transposeRows256 in four lanes.
func loadWords(group int, keys sixteenRows, inserted bool) {
	key, tmp := z[8*group:8*group+4], temporaries
	loadLanes(group, keys, inserted)
	VUNPCKLPS(key[1], key[0], tmp[0])
	VUNPCKHPS(key[1], key[0], tmp[1])
	VUNPCKLPS(key[3], key[2], tmp[2])
	VUNPCKHPS(key[3], key[2], tmp[3])
	VUNPCKLPD(tmp[2], tmp[0], key[0])
	VUNPCKHPD(tmp[2], tmp[0], key[1])
	VUNPCKLPD(tmp[3], tmp[1], key[2])
	VUNPCKHPD(tmp[3], tmp[1], key[3])
}

// loadF16x16 makes four vectors of two numbers of sixteen keys each: first those of the one number, then of the other.
func loadF16x16(group int, keys sixteenRows, pairs [2]reg.VecPhysical) {
	key, tmp := z[8*group:8*group+4], temporaries
	loadLanes(group, keys, false)
	VPUNPCKLWD(key[1], key[0], tmp[0])
	VPUNPCKHWD(key[1], key[0], tmp[1])
	VPUNPCKLWD(key[3], key[2], tmp[2])
	VPUNPCKHWD(key[3], key[2], tmp[3])
	for i, vec := range key { // the indices are overwritten
		VMOVDQA64(pairs[i%2], vec)
		VPERMI2D(tmp[2+i/2], tmp[i/2], vec)
	}
}

// spreadBytes512 are, for each of four numbers, the bytes of a lane that hold it for four keys, each to become the lowest
// of 32 bits.
func spreadBytes512() Mem {
	mem := GLOBL("spreadBytes512", 8|16)
	for number := range 4 {
		for key := range 16 {
			DATA(64*number+4*key, U32(0xffffff00|4*number+key%4))
		}
	}
	return mem
}

// scalesQ8x16 keeps the scales of a group's keys, of dim numbers of bytes bytes, in a register.
func scalesQ8x16(group int, keys sixteenRows, dim reg.GPVirtual, bytes int) {
	scales, tmp := formVecs[group], z[0]
	for half, ends := range []eightRows{keys.low, keys.high} {
		for range bytes {
			ADDQ(dim, ends.base)
		}
		for four, to := range []reg.VecPhysical{z[0], z[1]} {
			VMOVSS(ends.at(4*four), to.AsX())
			for i := 1; i < 4; i++ {
				VINSERTPS(U8(i<<4), ends.at(4*four+i), to.AsX(), to.AsX())
			}
		}
		VINSERTF128(U8(1), reg.X1, tmp.AsY(), z[2+half].AsY())
		for range bytes {
			SUBQ(dim, ends.base)
		}
	}
	VINSERTF64X4(U8(1), z[3].AsY(), z[2], scales)
}

// loadQ8x16 makes four vectors of four numbers of sixteen keys each: of each number four keys in a lane.
func loadQ8x16(group int, keys sixteenRows) {
	key, tmp := z[8*group:8*group+4], temporaries
	loadLanes(group, keys, false)
	for i := range 2 { // pairs of keys
		VPUNPCKLBW(key[2*i+1], key[2*i], tmp[2*i])
		VPUNPCKHBW(key[2*i+1], key[2*i], tmp[2*i+1])
	}
	for i := range 2 { // four keys
		VPUNPCKLWD(tmp[2+i], tmp[i], key[2*i])
		VPUNPCKHWD(tmp[2+i], tmp[i], key[2*i+1])
	}
}

// scoresWide512 multiplies lines by keys as they are cached.
func scoresWide512(form wideForm) {
	name := "scoresWide" + form.name
	starts, doc := "", []string{
		"computes s = q k for rows lines (1..8), or one more, q [dim][16], a column each, and 32*groups rows k of dim",
		fmt.Sprintf("%s (a multiple of %d), as they are cached. It prefetches from next on,", form.unit(), form.multiple()),
		fmt.Sprintf("stride bytes for each turn over %d %s of 8 keys. Strides are in bytes.", form.numbers, form.unit()),
	}
	if form.codes {
		starts, doc = "starts *int32, ", append(doc, "starts is as in codeTile512.")
	}
	function(name, "(rows int, s *float32, lds int, q *float32, k *"+form.typ+", ld int, dim int, groups int, "+starts+
		"next *byte, stride int)", doc...)
	dispatchLines(func(m int) {
		id := label(name, m)
		out, keys := param("s"), newEightRows(param("k"), param("ld"))
		left, _ := Param("groups").Resolve() // counted where it lies: no register is left
		count := left.Addr
		next := newOncePrefetcher()
		Label(id + "_next")
		thirtyTwoKeys(form, id, m, out, next, keys)
		DECQ(count)
		JNZ(LabelRef(id + "_next"))
		VZEROUPPER()
		RET()
	})
}

// dispatchLines is dispatch for 1, 2, 4, 6 and 8 lines: other numbers compute one more, because the columns of queries and
// the room for scores are those of eight.
func dispatchLines(body func(m int)) {
	count := param("rows")
	bodies := []int{1, 2, 4, 6, 8}
	for _, m := range bodies[:len(bodies)-1] {
		CMPQ(count, I8(m))
		JLE(LabelRef(label("rows", m)))
	}
	for i := range bodies {
		m := bodies[len(bodies)-1-i]
		Label(label("rows", m))
		body(m)
	}
}

// thirtyTwoKeys emits the product of m lines with two groups of sixteen keys, and moves on to the next keys.
func thirtyTwoKeys(form wideForm, id string, m int, out reg.GPVirtual, next prefetcher, keys eightRows) {
	const groups = 2
	acc := func(line, group int) reg.VecPhysical { return z[16+groups*line+group] }
	if form.codes {
		startCodes(m, groups, param("starts"), acc)
	} else {
		zero512(z[16 : 16+groups*m]...)
	}
	var each []sixteenRows
	eights := []eightRows{keys}
	for i := 1; i < 2*groups; i++ {
		eight := keys
		eight.base = GP64()
		LEAQ(Mem{Base: eights[i-1].base, Index: keys.ld, Scale: 8}, eight.base)
		eights = append(eights, eight)
	}
	for group := range groups {
		each = append(each, sixteenRows{eights[2*group], eights[2*group+1]})
	}
	left, queries := param("dim"), param("q")
	for group := range groups {
		form.begin(group, each[group], left)
	}
	Label(id + "_turn")
	for group := range groups {
		for range 2 {
			next.lines(form.bytes / 8)
		}
		form.load(group, each[group])
	}
	for _, eight := range eights {
		ADDQ(I8(form.bytes), eight.base)
	}
	Label(id + "_part")
	for number := range form.numbers / form.parts {
		var vecs []reg.VecPhysical
		for group := range groups {
			vecs = append(vecs, form.widen(group, number))
		}
		for line := range m {
			VBROADCASTSS(Mem{Base: queries, Disp: 64*number + 4*line}, queryVec)
			for group := range groups {
				form.multiply(vecs[group], queryVec, acc(line, group))
			}
		}
	}
	ADDQ(I32(64*form.numbers/form.parts), queries)
	SUBQ(I8(form.numbers/form.parts), left)
	if form.parts > 1 { // a turn begins where left is a multiple of its numbers
		JZ(LabelRef(id + "_end"))
		for group := range groups {
			for i := range form.parts - 1 {
				VMOVDQA64(z[8*group+i+1], z[8*group+i])
			}
		}
		TESTQ(I32(form.numbers-1), left)
		JNZ(LabelRef(id + "_part"))
		JMP(LabelRef(id + "_turn"))
		Label(id + "_end")
	} else {
		JNZ(LabelRef(id + "_turn"))
	}
	LEAQ(Mem{Base: eights[2*groups-1].base, Index: keys.ld7, Scale: 1, Disp: form.behind}, keys.base)
	if form.codes {
		scaleCodes(m, param("starts"), formVecs[:groups], z[0], acc)
	}
	line := GP64()
	MOVQ(out, line)
	alongRows(m, line, param("lds"), func(row int, at reg.GPVirtual) {
		for group := range groups {
			VMOVUPS(acc(row, group), Mem{Base: at, Disp: 64 * group})
		}
	})
	ADDQ(I32(64*groups), out)
}

// turnWide512 makes sixteen keys columns of a tile, each number of which many lines then share.
func turnWide512(form wideForm) {
	function("turnWide"+form.name, "(dst *float32, src *"+form.typ+", ld int, n int)",
		fmt.Sprintf("stores 16 rows of n %s (a multiple of %d), as they are cached, ld bytes apart,", form.unit(), form.numbers),
		"as 16 columns of dst [n][32].")
	low := newEightRows(param("src"), param("ld"))
	high := low
	high.base = GP64()
	LEAQ(Mem{Base: low.base, Index: low.ld, Scale: 8}, high.base)
	keys, dst, left := sixteenRows{low, high}, param("dst"), param("n")
	form.begin(0, keys, left)
	Label("turn_next")
	form.load(0, keys)
	ADDQ(I8(form.bytes), low.base)
	ADDQ(I8(form.bytes), high.base)
	each := form.numbers / form.parts
	for part := range form.parts {
		if part > 0 {
			VMOVDQA64(z[part], z[0])
		}
		for number := range each {
			VMOVUPS(form.widen(0, number), Mem{Base: dst, Disp: 128 * (part*each + number)})
		}
	}
	ADDQ(I32(128*form.numbers), dst)
	SUBQ(I8(form.numbers), left)
	JNZ(LabelRef("turn_next"))
	VZEROUPPER()
	RET()
}

// valueForm is how sixteen numbers of a row of values become a vector.
type valueForm struct {
	name, typ string
	bytes     int // of sixteen numbers
	// begin, which may be nil, emits what is done once, and returns what emits that which is done for each row
	begin func() (row func(at reg.GPVirtual))
	load  func(from Mem, to reg.VecPhysical)
}

// valueForms are the forms of values. Of 8 bits the scale of a row lies behind it.
func valueForms() []valueForm {
	scale, sign := z[30], z[31]
	return []valueForm{
		{name: "F32", typ: "float32", bytes: 64, load: func(from Mem, to reg.VecPhysical) { VMOVUPS(from, to) }},
		{name: "F16", typ: "uint16", bytes: 32, load: func(from Mem, to reg.VecPhysical) { VCVTPH2PS(from, to) }},
		{
			name: "Q8", typ: "uint8", bytes: 16,
			begin: func() func(reg.GPVirtual) {
				broadcast32(0x80808080, sign)
				behind := param("scale")
				return func(at reg.GPVirtual) { VBROADCASTSS(Mem{Base: at, Index: behind, Scale: 1}, scale) }
			},
			load: func(from Mem, to reg.VecPhysical) {
				VPXORD(from, sign.AsX(), to.AsX())
				VPMOVSXBD(to.AsX(), to)
				VCVTDQ2PS(to, to)
				VMULPS(scale, to, to)
			},
		},
	}
}

// valuesWide512 adds weighted rows of values: 16*vecs of their columns.
func valuesWide512(suffix string, vecs, most int, form valueForm) {
	name, columns := "valuesWide"+form.name+suffix, suffix[1:]
	behind, doc := "", []string{
		fmt.Sprintf("adds x v to y for %s columns of k rows v and rows lines (1..%d) x of k weights. It", columns, most),
		"prefetches from next on, stride bytes each step. Strides are in bytes.",
	}
	if form.begin != nil {
		behind = "scale int, "
		doc = append(doc, "So is scale, from the columns of a row to its scale.")
	}
	function(name, "(rows int, y *float32, ldy int, x *float32, ldx int, k int, v *"+form.typ+", ldv int, "+behind+
		"next *byte, stride int)", doc...)
	dispatch(most, func(m int) {
		id := label(name, m)
		acc := func(line, part int) reg.VecPhysical { return z[vecs*line+part] }
		rows := func(body func(vec reg.VecPhysical, at Mem)) {
			alongRows(m, param("y"), param("ldy"), func(line int, at reg.GPVirtual) {
				for part := range vecs {
					body(acc(line, part), Mem{Base: at, Disp: 64 * part})
				}
			})
		}
		rows(func(vec reg.VecPhysical, at Mem) { VMOVUPS(at, vec) })
		next, at, ldv, left := newOncePrefetcher(), param("v"), param("ldv"), param("k")
		weights := newRows(m)
		Load(Param("ldx"), weights.ld)
		weights.set(param("x"))
		row := func(reg.GPVirtual) {}
		if form.begin != nil {
			row = form.begin()
		}
		Label(id + "_step")
		next.lines(max(1, form.bytes*vecs/64))
		row(at)
		for part := range vecs {
			form.load(Mem{Base: at, Disp: form.bytes * part}, z[24+part])
		}
		for line := range m {
			weight := z[28+line%2]
			VBROADCASTSS(weights.at(line, 0), weight)
			for part := range vecs {
				VFMADD231PS(z[24+part], weight, acc(line, part))
			}
		}
		ADDQ(ldv, at)
		weights.advance(4)
		DECQ(left)
		JNZ(LabelRef(id + "_step"))
		rows(func(vec reg.VecPhysical, at Mem) { VMOVUPS(vec, at) })
		VZEROUPPER()
		RET()
	})
}

// softmax512 holds what all passes of softmaxLines512 keep in registers.
type softmax512 struct {
	scale, low, round reg.VecPhysical
	poly              []reg.VecPhysical
	tops, sums, fades reg.Register    // masks of the numbers of state in four lines
	top, sum          reg.VecPhysical // of a line by itself; top of four lines, too
	row, left         reg.GPVirtual
	form              softmaxForm
	weights           rows // those of four lines, where they do not replace scores
	asks              bool // for what comes next
	next              prefetcher
	codes             softmaxCodes
}

// softmaxForm is what weights become.
type softmaxForm int

const (
	weightFloats softmaxForm = iota
	weightPairs              // bfloat16
	weightCodes              // 16 bits, their high bytes apart from the low ones
)

// softmaxLines512 is softmaxLines256 with sixteen scores in a vector, whose two halves are added where that adds its
// two vectors, so that results are the same bits.
func softmaxLines512() {
	makeSoftmaxConstants()
	signature := "(lines int, s *float32, lds int, n int, scale float32, state *float32"
	function("softmaxLines512", signature+")", "is softmaxLines256.")
	softmax512Passes(weightFloats, false)
	function("softmaxAsking512", signature+", next *byte, stride int)", "is softmaxLines512. "+softmaxAsks)
	softmax512Passes(weightFloats, true)
}

// softmaxAsks says what a softmax does that asks memory for what comes next. A step of decode would else leave memory
// idle meanwhile.
const softmaxAsks = "It prefetches from next on, stride bytes for each 16 scores."

// softmax512Passes emits a softmax whose weights replace scores, or become numbers of 16 bits.
func softmax512Passes(form softmaxForm, asks bool) {
	s := softmax512{scale: z[31], top: z[30], sum: z[29], low: z[28], round: z[27], poly: z[21:27],
		tops: reg.K2, sums: reg.K3, fades: reg.K4, form: form, asks: asks}
	if s.constants(); form != weightFloats {
		s.weights = newRows(4)
	}
	if form == weightCodes {
		s.codes.begin()
	}
	if asks {
		s.next = newOncePrefetcher()
	}
	passes := softmaxPasses{param("s"), param("lds"), param("state")}
	s.row, s.left = GP64(), GP64()
	passes.inFours("top", s.topsOfFour, s.topOfOne)
	passes.inFours("exp", s.powersOfFour, s.powersOfOne)
	VZEROUPPER()
	RET()
}

// Constants of a softmax in memory.
var (
	softmaxLow, softmaxRound Mem
	softmaxPoly              []Mem
)

func makeSoftmaxConstants() {
	softmaxLow, softmaxRound = f32("exp2Low512", exp2Low), f32("exp2Round512", exp2Round)
	for i, coef := range exp2Poly {
		softmaxPoly = append(softmaxPoly, f32("exp2Poly512x"+string(rune('0'+i)), coef))
	}
}

// constants loads what does not change.
func (s *softmax512) constants() {
	VBROADCASTSS(softmaxLow, s.low)
	VBROADCASTSS(softmaxRound, s.round)
	for i, coef := range softmaxPoly {
		VBROADCASTSS(coef, s.poly[i])
	}
	sc, _ := Param("scale").Resolve()
	VBROADCASTSS(sc.Addr, s.scale)
	for number, mask := range []reg.Register{s.tops, s.sums, s.fades} {
		bits := GP32()
		MOVL(U32(0x1111<<number), bits)
		KMOVW(bits, mask)
	}
}

// power makes x two to the power of x, 0 where x is below low. The other registers are overwritten.
func (s *softmax512) power(x, whole, rest, value reg.VecPhysical) {
	if s.form != weightFloats { // what differs below low is zero in 16 bits
		VREDUCEPS(U8(8), x, rest) // x less the nearest integer
		VSUBPS(rest, x, whole)
		s.polynomial(rest, value)
		VSCALEFPS(whole, value, x)
		return
	}
	VADDPS(s.round, x, whole)
	VSUBPS(s.round, whole, rest)
	VSUBPS(rest, x, rest)
	s.polynomial(rest, value)
	VPSLLD(U8(23), whole, whole)
	VCMPPS(U8(5), s.low, x, reg.K1) // not x < low
	VPADDD_Z(whole, value, reg.K1, x)
}

// polynomial makes value two to the power of rest, at most a half in magnitude.
func (s *softmax512) polynomial(rest, value reg.VecPhysical) {
	VMOVAPS(s.poly[5], value)
	for i := 4; i >= 0; i-- {
		VFMADD213PS(s.poly[i], rest, value)
	}
}

// topsOfFour finds the largest score of each of four lines, and what earlier sums fade by.
func (s *softmax512) topsOfFour(lines rows, stat reg.GPVirtual) {
	for i := range 4 {
		VMOVUPS(lines.at(i, 0), z[i])
	}
	Load(Param("n"), s.left)
	along("lines_top", s.left, 64, lines.base, func() {
		for i := range 4 {
			VMAXPS(lines.at(i, 0), z[i], z[i])
		}
	})
	most, fade, state := z[0], z[5], z[6]
	foldLines512(most, z[4], VMAXPS)
	exchange512(most, z[4], 0x4e, VMAXPS)
	exchange512(most, z[4], 0xb1, VMAXPS)
	VMULPS(s.scale, most, most)
	VMOVUPS(Mem{Base: stat}, state)
	VPERMILPS(U8(0), state, fade)
	VMAXPS(fade, most, s.top)
	VSUBPS(s.top, fade, fade)
	if s.form == weightCodes {
		s.codes.below(s.top, most)
	}
	s.power(fade, z[0], z[1], z[2])
	if s.form == weightCodes {
		VPERMILPS(U8(0xff), state, z[3])
		s.grow(z[3])
		VMOVAPS(z[3], s.codes.factors, state)
	}
	VMOVAPS(s.top, s.tops, state)
	VMOVAPS(fade, s.fades, state)
	VMOVUPS(state, Mem{Base: stat})
}

// topOfOne is topsOfFour of a single line.
func (s *softmax512) topOfOne(line, stat reg.GPVirtual) {
	VMOVUPS(Mem{Base: line}, z[0])
	MOVQ(line, s.row)
	Load(Param("n"), s.left)
	along("line_top", s.left, 64, []reg.GPVirtual{s.row}, func() { VMAXPS(Mem{Base: s.row}, z[0], z[0]) })
	VEXTRACTF64X4(U8(1), z[0], y[1])
	largestOf256(y[0], y[1])
	fade := z[2]
	VMULPS(s.scale, z[0], z[0])
	VBROADCASTSS(Mem{Base: stat}, fade)
	VMAXPS(fade, z[0], s.top)
	VSUBPS(s.top, fade, fade)
	if s.form == weightCodes {
		s.codes.below(s.top, z[0])
	}
	s.power(fade, z[0], z[1], z[3])
	if s.form == weightCodes {
		VBROADCASTSS(Mem{Base: stat, Disp: 12}, z[3])
		s.grow(z[3])
		VMOVSS(z[3].AsX(), Mem{Base: stat, Disp: 12})
	}
	VMOVSS(s.top.AsX(), Mem{Base: stat})
	VMOVSS(fade.AsX(), Mem{Base: stat, Disp: 8})
}

// powersOfFour makes weights of the scores of four lines, and adds them up.
func (s *softmax512) powersOfFour(lines rows, stat reg.GPVirtual) {
	top, sum := z[8:12], z[12:16]
	for i := range 4 {
		VBROADCASTSS(Mem{Base: stat, Disp: 16 * i}, top[i])
	}
	zero512(sum...)
	Load(Param("n"), s.left)
	if s.form != weightFloats {
		s.weights.ld, s.weights.ld3 = lines.ld, lines.ld3
		Load(Param("back"), s.weights.base[0])
		NEGQ(s.weights.base[0])
		ADDQ(lines.base[0], s.weights.base[0])
	}
	pointers := lines.base
	if s.form == weightCodes {
		pointers = append(s.codes.start(stat, 4), pointers...)
	}
	along("lines_exp", s.left, 64, pointers, func() {
		for i := range 4 {
			exp := z[4*(i%2)]
			VMOVUPS(lines.at(i, 0), exp)
			VFMSUB213PS(top[i], s.scale, exp)
			s.power(exp, z[4*(i%2)+1], z[4*(i%2)+2], z[4*(i%2)+3])
			switch s.form {
			case weightPairs:
				s.storePairs(exp, z[4*(i%2)+1], s.weights.at(i, 0))
			case weightCodes:
				s.codes.store(i, exp, z[4*(i%2)+1], s.weights.at(i, 0))
			default:
				VMOVUPS(exp, lines.at(i, 0))
			}
			VADDPS(exp, sum[i], sum[i])
			s.ask()
		}
		if s.form != weightFloats {
			s.weights.advance(32)
		}
	})
	for i := range 4 {
		VMOVAPS(sum[i], z[i])
	}
	all, state, before, fade := z[0], z[5], z[6], z[7]
	foldLines512(all, z[4], VADDPS)
	exchange512(all, z[4], 0xb1, VADDPS)
	exchange512(all, z[4], 0x4e, VADDPS)
	VMOVUPS(Mem{Base: stat}, state)
	VPERMILPS(U8(0x55), state, before)
	VPERMILPS(U8(0xaa), state, fade)
	VFMADD231PS(fade, before, all)
	VMOVAPS(all, s.sums, state)
	if s.form == weightCodes {
		VBROADCASTSS(s.codes.one, z[4])
		VDIVPS(state, z[4], z[4])
		VMOVAPS(z[4], s.codes.factors, state)
	}
	VMOVUPS(state, Mem{Base: stat})
}

// ask asks for a part of what comes next, up to two cache lines.
func (s *softmax512) ask() {
	if s.asks {
		s.next.lines(2)
	}
}

// storePairs stores weights as bfloat16.
func (s *softmax512) storePairs(weights, free reg.VecPhysical, to Mem) {
	roundNumbers(weights, free)
	VMOVUPS(free.AsY(), to)
}

// powersOfOne is powersOfFour of a single line.
func (s *softmax512) powersOfOne(line, stat reg.GPVirtual) {
	VBROADCASTSS(Mem{Base: stat}, s.top)
	zero512(s.sum)
	MOVQ(line, s.row)
	Load(Param("n"), s.left)
	weights := GP64()
	if s.form != weightFloats {
		Load(Param("back"), weights)
		NEGQ(weights)
		ADDQ(line, weights)
	}
	pointers := []reg.GPVirtual{s.row}
	if s.form == weightCodes {
		pointers = append(pointers, s.codes.start(stat, 1)...)
	}
	along("line_exp", s.left, 64, pointers, func() {
		exp := z[4]
		VMOVUPS(Mem{Base: s.row}, exp)
		VFMSUB213PS(s.top, s.scale, exp)
		s.power(exp, z[5], z[6], z[7])
		switch s.form {
		case weightPairs:
			s.storePairs(exp, z[5], Mem{Base: weights})
		case weightCodes:
			s.codes.store(0, exp, z[5], Mem{Base: weights})
		default:
			VMOVUPS(exp, Mem{Base: s.row})
		}
		if s.form != weightFloats {
			ADDQ(I8(32), weights)
		}
		VADDPS(exp, s.sum, s.sum)
		s.ask()
	})
	VEXTRACTF64X4(U8(1), s.sum, y[1])
	VADDPS(y[1], s.sum.AsY(), y[0])
	sumToState(y[0], stat)
	if s.form == weightCodes {
		VMOVSS(s.codes.one, reg.X4)
		VDIVSS(Mem{Base: stat, Disp: 12}, reg.X4, reg.X4)
		VMOVSS(reg.X4, Mem{Base: stat, Disp: 12})
	}
}

// inFours emits a loop over four lines at a time, so that one is computed while another one is waited for, and what is
// done once for a line is done once for four. The lines that are left pass one by one. four may move the base of its
// lines.
func (p softmaxPasses) inFours(
	id string, four func(lines rows, stat reg.GPVirtual), one func(line, stat reg.GPVirtual),
) {
	count, line, stat, lines := param("lines"), GP64(), GP64(), newRows(4)
	MOVQ(p.lds, lines.ld)
	MOVQ(p.scores, line)
	MOVQ(p.state, stat)
	SUBQ(I8(4), count)
	JLT(LabelRef(id + "_few"))
	Label(id + "_four")
	lines.set(line)
	four(lines, stat)
	LEAQ(Mem{Base: line, Index: lines.ld, Scale: 4}, line)
	ADDQ(I8(64), stat)
	SUBQ(I8(4), count)
	JGE(LabelRef(id + "_four"))
	Label(id + "_few")
	ADDQ(I8(4), count)
	JZ(LabelRef(id + "_end"))
	Label(id + "_one")
	one(line, stat)
	ADDQ(p.lds, line)
	ADDQ(I8(16), stat)
	DECQ(count)
	JNZ(LabelRef(id + "_one"))
	Label(id + "_end")
}

// foldLines512 emits the folding of four vectors, in registers 0 to 3, to four numbers each, which become the lanes of
// vec.
func foldLines512(vec, other reg.VecPhysical, fold func(ops ...Op)) {
	for i := range 4 {
		VEXTRACTF64X4(U8(1), z[i], other.AsY())
		fold(other.AsY(), y[i], y[i])
		VEXTRACTF128(U8(1), y[i], other.AsX())
		fold(other.AsX(), y[i].AsX(), y[i].AsX())
	}
	VINSERTF128(U8(1), reg.X1, y[0], y[0])
	VINSERTF128(U8(1), reg.X3, y[2], y[2])
	VINSERTF64X4(U8(1), y[2], z[0], vec)
}

// exchange512 emits the folding of a vector with its numbers exchanged within lanes.
func exchange512(vec, other reg.VecPhysical, order uint8, fold func(ops ...Op)) {
	VPERMILPS(U8(order), vec, other)
	fold(other, vec, vec)
}
