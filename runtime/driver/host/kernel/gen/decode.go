package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of attention for few lines, which read the cache once and spend as long on reading as on multiplying. Keys
// are transposed in registers, eight at a time, and multiplied at once with all lines: tiles in memory, which many lines
// share, would be stored for one or eight uses. Seven and eight lines fill a vector by themselves; over float32 queries
// are then transposed instead, once for all keys. Sums run in the order of the numbers of a key, as those of tiles do, so that
// results are the same bits.

// mostFewLines is the number of lines whose sums over eight keys fit beside the keys. With float32, which needs no
// widening, a vector holds numbers of eight keys up to mostKeyLines lines, and else of eight lines.
const (
	mostFewLines = 8
	mostKeyLines = 6
)

// keyForm is how eight keys become vectors of one number of each.
type keyForm struct {
	name, typ string
	numbers   int // of each key in a turn
	bytes     int // of these, in the cache
	behind    int // bytes behind the numbers of a key
	most      int // lines
	// begin emits what is done once for eight keys before the first turn
	begin func(keys eightRows, dim reg.GPVirtual, out Mem)
	// turn emits the transposition in registers 0 to 7, and calls use with the register of each number, in their order,
	// and with two registers that are free then
	turn func(keys eightRows, out Mem, use func(number int, keys reg.VecPhysical, free [2]reg.VecPhysical))
}

// fewLines256 writes the kernels of attention for few lines.
func fewLines256() {
	scoresFew256(keyForm{
		name: "F32", typ: "float32", numbers: 4, bytes: 16, most: mostKeyLines,
		begin: func(eightRows, reg.GPVirtual, Mem) {}, turn: turnF32,
	})
	scoresFew256(keyForm{
		name: "F16", typ: "uint16", numbers: 8, bytes: 16, most: mostFewLines,
		begin: func(eightRows, reg.GPVirtual, Mem) {}, turn: turnF16,
	})
	scoresFew256(keyForm{
		name: "Q8", typ: "uint8", numbers: 8, bytes: 8, behind: 4, most: mostFewLines,
		begin: scalesQ8, turn: turnQ8,
	})
	scoresEight256()
}

// turnF32 transposes four numbers of eight keys as keysF32x16 does.
func turnF32(keys eightRows, _ Mem, use func(int, reg.VecPhysical, [2]reg.VecPhysical)) {
	transposeRows256(keys)
	for number := range 4 {
		use(number, y[number], [2]reg.VecPhysical{y[4], y[5]})
	}
}

// transposeRows256 makes four vectors, in registers 0 to 3, of a number of eight keys each.
func transposeRows256(keys eightRows) {
	for i := range 4 {
		VMOVUPS(keys.at(i), y[i].AsX())
		VINSERTF128(U8(1), keys.at(i+4), y[i], y[i])
	}
	VUNPCKLPS(y[1], y[0], y[4])
	VUNPCKHPS(y[1], y[0], y[5])
	VUNPCKLPS(y[3], y[2], y[6])
	VUNPCKHPS(y[3], y[2], y[7])
	VUNPCKLPD(y[6], y[4], y[0])
	VUNPCKHPD(y[6], y[4], y[1])
	VUNPCKLPD(y[7], y[5], y[2])
	VUNPCKHPD(y[7], y[5], y[3])
}

// turnF16 transposes eight numbers of eight keys before it widens them.
func turnF16(keys eightRows, _ Mem, use func(int, reg.VecPhysical, [2]reg.VecPhysical)) {
	transposeHalves256(keys)
	for pair := range 4 {
		VPERMQ(U8(0xd8), y[pair], y[pair])
		VCVTPH2PS(y[pair].AsX(), y[4])
		VEXTRACTI128(U8(1), y[pair], reg.X5)
		VCVTPH2PS(reg.X5, y[5])
		for half := range 2 {
			use(2*pair+half, y[4+half], [2]reg.VecPhysical{y[6], y[7]})
		}
	}
}

// transposeHalves256 makes four vectors, in registers 0 to 3, of two numbers of eight keys each: of both those of the
// first four keys, then those of the others.
func transposeHalves256(keys eightRows) {
	for i := range 4 {
		VMOVDQU(keys.at(i), y[i].AsX())
		VINSERTI128(U8(1), keys.at(i+4), y[i], y[i])
	}
	VPUNPCKLWD(y[1], y[0], y[4])
	VPUNPCKHWD(y[1], y[0], y[5])
	VPUNPCKLWD(y[3], y[2], y[6])
	VPUNPCKHWD(y[3], y[2], y[7])
	VPUNPCKLDQ(y[6], y[4], y[0])
	VPUNPCKHDQ(y[6], y[4], y[1])
	VPUNPCKLDQ(y[7], y[5], y[2])
	VPUNPCKHDQ(y[7], y[5], y[3])
}

// scalesQ8 stores the scales of eight keys where their scores will be, because no register is left for them.
func scalesQ8(keys eightRows, dim reg.GPVirtual, out Mem) {
	ends := keys
	ends.base = GP64()
	LEAQ(Mem{Base: keys.base, Index: dim, Scale: 1}, ends.base)
	for half, to := range []reg.VecPhysical{y[0], y[1]} {
		VMOVSS(ends.at(4*half), to.AsX())
		for i := 1; i < 4; i++ {
			VINSERTPS(U8(i<<4), ends.at(4*half+i), to.AsX(), to.AsX())
		}
	}
	VINSERTF128(U8(1), reg.X1, y[0], y[0])
	VMOVUPS(y[0], out)
}

// turnQ8 transposes eight codes of eight keys before it widens them and multiplies by the scales of the keys.
func turnQ8(keys eightRows, out Mem, use func(int, reg.VecPhysical, [2]reg.VecPhysical)) {
	x := func(i int) reg.Register { return y[i].AsX() }
	for i := range 4 { // keys i and 4+i
		VMOVQ(keys.at(i), x(i))
		VPINSRQ(U8(1), keys.at(4+i), x(i), x(i))
	}
	for i := range 2 { // pairs of keys
		VPUNPCKLBW(x(2*i+1), x(2*i), x(4+2*i))
		VPUNPCKHBW(x(2*i+1), x(2*i), x(5+2*i))
	}
	for i := range 2 { // four keys: numbers 0 to 3, and 4 to 7
		VPUNPCKLWD(x(6+i), x(4+i), x(2*i))
		VPUNPCKHWD(x(6+i), x(4+i), x(2*i+1))
	}
	for i := range 2 { // all eight keys of two numbers each
		VPUNPCKLDQ(x(2+i), x(i), x(4+2*i))
		VPUNPCKHDQ(x(2+i), x(i), x(5+2*i))
	}
	for pair := range 4 {
		VPXOR(bytes80x128, x(4+pair), x(4+pair)) // u-128, signed
		VPMOVSXBD(x(4+pair), y[0])
		VPSRLDQ(U8(8), x(4+pair), x(4+pair))
		VPMOVSXBD(x(4+pair), y[1])
		for half := range 2 {
			VCVTDQ2PS(y[half], y[half])
			VMULPS(out, y[half], y[half])
			use(2*pair+half, y[half], [2]reg.VecPhysical{y[2], y[3]})
		}
	}
}

// bytes80x128 turns codes around 128 into signed ones.
var bytes80x128 Mem

// scoresFew256 multiplies lines by keys as they are cached. Up to four lines take sixteen keys at a time, so that two
// chains of sums run.
func scoresFew256(form keyForm) {
	name := "scoresFew" + form.name
	function(name, "(rows int, s *float32, lds int, q *float32, ldq int, k *"+form.typ+", ld int, dim int, groups int, next *byte, near int, stride int)",
		"computes s = q k for rows lines (1.."+string(rune('0'+form.most))+") and 8*groups rows k of dim numbers (a multiple of 8) as they are cached. It",
		"prefetches from next on, and once more near bytes behind that, stride bytes for each turn over 8 keys. Strides are in",
		"bytes.")
	if form.behind > 0 {
		bytes80x128 = const32("codesSign256", 0x80808080)
	}
	dispatch(form.most, func(m int) {
		id := label(name, m)
		count, out, keys := param("groups"), param("s"), newEightRows(param("k"), param("ld"))
		next := newNearPrefetcher()
		queries := newRows(m)
		for _, groups := range []int{2, 1} {
			if m*groups > mostFewLines {
				continue
			}
			part := id + string(rune('0'+groups))
			Label(part + "_next")
			CMPQ(count, I8(groups))
			JLT(LabelRef(part + "_end"))
			form.eightKeys(part, m, groups, out, next, queries, keys)
			SUBQ(I8(groups), count)
			JMP(LabelRef(part + "_next"))
			Label(part + "_end")
		}
		VZEROUPPER()
		RET()
	})
}

// eightKeys emits the product of m lines of queries with groups of eight keys, and moves on to the next keys.
func (form keyForm) eightKeys(
	id string, m, groups int, out reg.GPVirtual, next prefetcher, queries rows, keys eightRows,
) {
	acc := func(line, group int) reg.VecPhysical { return y[8+groups*line+group] }
	zero256(y[8 : 8+groups*m]...)
	each := []eightRows{keys}
	if groups > 1 {
		second := keys
		second.base = GP64()
		LEAQ(Mem{Base: keys.base, Index: keys.ld, Scale: 8}, second.base)
		each = append(each, second)
	}
	left := GP64()
	Load(Param("dim"), left)
	for group := range groups {
		form.begin(each[group], left, Mem{Base: out, Disp: 32 * group})
	}
	Load(Param("ldq"), queries.ld)
	queries.set(Load(Param("q"), GP64()))
	SHRQ(U8(form.numbers/4+1), left) // 4 or 8 numbers
	Label(id + "_turn")
	for group := range groups {
		next.lines(form.bytes / 8)
		form.turn(each[group], Mem{Base: out, Disp: 32 * group}, func(number int, vec reg.VecPhysical, free [2]reg.VecPhysical) {
			for line := range m {
				VBROADCASTSS(queries.at(line, 4*number), free[line%2])
				VFMADD231PS(vec, free[line%2], acc(line, group))
			}
		})
	}
	queries.advance(4 * form.numbers)
	for group := range groups {
		ADDQ(I8(form.bytes), each[group].base)
	}
	DECQ(left)
	JNZ(LabelRef(id + "_turn"))
	line := GP64()
	MOVQ(out, line)
	alongRows(m, line, param("lds"), func(row int, at reg.GPVirtual) {
		for group := range groups {
			VMOVUPS(acc(row, group), Mem{Base: at, Disp: 32 * group})
		}
	})
	ADDQ(I8(32*groups), out)
	LEAQ(Mem{Base: each[groups-1].base, Index: keys.ld7, Scale: 1, Disp: form.behind}, keys.base)
}

// scoresEight256 multiplies eight lines, one in each number of a vector, by keys. Twelve keys at a time are enough sums to
// hide the latency of a multiply-add. Each number of a key is broadcast to all lines, which takes a load; but a core has
// as many of these in a cycle as multiply-adds. Of every second key a load therefore broadcasts two numbers, and a
// shuffle each selects one.
func scoresEight256() {
	function("scoresEight256", "(keys int, s *float32, lds int, q *float32, k *float32, dim int, next *byte, near int, stride int)",
		"computes s = q k for eight lines q [dim][16], of which the first eight numbers count, and a multiple of 4 rows k of dim",
		"numbers, a multiple of 8. It prefetches from next on, and once more near bytes behind that, stride bytes for each four",
		"numbers of four keys. lds is in bytes.")
	count, out, key, query, left := param("keys"), param("s"), param("k"), GP64(), GP64()
	next := newNearPrefetcher()
	cached := newRows(12)
	for _, keys := range []int{12, 8, 4} {
		id := label("scoresEight", keys)
		Label(id + "_next")
		CMPQ(count, I8(keys))
		JLT(LabelRef(id + "_end"))
		used := rows{base: cached.base[:keys/4], ld: cached.ld, ld3: cached.ld3}
		Load(Param("dim"), used.ld)
		MOVQ(used.ld, left)
		SHRQ(U8(3), left)
		SHLQ(U8(2), used.ld)
		used.set(key)
		for range keys / 4 {
			LEAQ(Mem{Base: key, Index: used.ld, Scale: 4}, key)
		}
		Load(Param("q"), query)
		zero256(y[:keys]...)
		Label(id + "_turn")
		for pair := range 4 {
			twoNumbersOfKeys(keys, pair, query, used)
			if pair%2 == 0 {
				for range keys / 4 {
					next.lines(1)
				}
			}
		}
		ADDQ(I32(8*64), query)
		used.advance(8 * 4)
		DECQ(left)
		JNZ(LabelRef(id + "_turn"))
		Load(Param("lds"), used.ld)
		lines := rows{base: cached.base[:2], ld: cached.ld, ld3: cached.ld3}
		lines.set(out)
		for first := 0; first < keys; first += 4 {
			storeFourKeys(first, lines)
		}
		ADDQ(I8(4*keys), out)
		SUBQ(I8(keys), count)
		JMP(LabelRef(id + "_next"))
		Label(id + "_end")
	}
	VZEROUPPER()
	RET()
}

// twoNumbersOfKeys emits the multiply-adds of a pair of numbers of eight lines with those of each key, whose sums are in
// the registers from 0 on.
func twoNumbersOfKeys(keys, pair int, query reg.GPVirtual, cached rows) {
	first, second, one, other := y[12], y[13], y[14], y[15]
	VMOVUPS(Mem{Base: query, Disp: 64 * 2 * pair}, first)
	VMOVUPS(Mem{Base: query, Disp: 64 * (2*pair + 1)}, second)
	for key := range keys {
		if key%2 == 1 {
			VBROADCASTSD(cached.at(key, 8*pair), other)
			VMOVSLDUP(other, one)
			VMOVSHDUP(other, other)
		} else {
			VBROADCASTSS(cached.at(key, 8*pair), one)
			VBROADCASTSS(cached.at(key, 8*pair+4), other)
		}
		VFMADD231PS(one, first, y[key])
		VFMADD231PS(other, second, y[key])
	}
}

// storeFourKeys stores the sums of four keys, one in each of the registers from first on, as four columns of eight
// lines.
func storeFourKeys(first int, lines rows) {
	key := y[first : first+4]
	VUNPCKLPS(key[1], key[0], y[12])
	VUNPCKHPS(key[1], key[0], y[13])
	VUNPCKLPS(key[3], key[2], y[14])
	VUNPCKHPS(key[3], key[2], y[15])
	VUNPCKLPD(y[14], y[12], key[0]) // of lines 0 and 4
	VUNPCKHPD(y[14], y[12], key[1])
	VUNPCKLPD(y[15], y[13], key[2])
	VUNPCKHPD(y[15], y[13], key[3])
	for line := range 4 {
		VMOVUPS(key[line].AsX(), lines.at(line, 4*first))
		VEXTRACTF128(U8(1), key[line], lines.at(4+line, 4*first))
	}
}
