package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The softmax of few lines between products in tiles (see amx_few.go). A row of scores is one position of 1, 2, 4 or 8
// lines, so that a vector holds 16, 8, 4 or 2 positions. Sums of weights have the order of softmaxTiles512, and results
// are the same bits.

// fewSoftmax is a step of the softmax for a number of lines.
type fewSoftmax struct {
	tiledSoftmax
	lines  int
	orders map[int]Mem
	ahead  places
}

// softmaxFew512 writes the step for a block.
func softmaxFew512() {
	orders := map[int]Mem{}
	for _, lines := range []int{2, 4, 8} {
		orders[lines] = lineOrder(lines)
	}
	function("softmaxFew512", "(lines int, s *float32, scale float32, state *float32, pitch int, fades *float32, "+
		"p *uint16, next *byte, half int, across int, asks int)",
		"is softmaxTiles512 for four chunks of scores s [128][lines] of 1, 2, 4 or 8 lines, whose weights p are",
		"[4][lines][32]. Earlier sums shall fade by fades[line]. "+asksForPlaces,
		"A step is a vector of scores, and eight of them in the search for the largest.")
	lines := param("lines")
	each := []int{1, 2, 4, 8}
	for _, count := range each[:3] {
		CMPQ(lines, I8(count))
		JEQ(LabelRef(label("few", count)))
	}
	for i := range each {
		count := each[len(each)-1-i]
		Label(label("few", count))
		softmax := fewSoftmax{tiledSoftmax: newTiledSoftmax(), lines: count, orders: orders}
		softmax.block()
		VZEROUPPER()
		RET()
	}
}

// askPlaces is for what no kernel asks for.
func askPlaces() {
	function("askPlaces", "(next *byte, half int, across int, asks int)",
		"asks memory asks times for a line at next, half bytes behind it, and across bytes behind both.")
	newPlaces().ask("places")
	RET()
}

// newPlaces reads the parameters next, half, across and asks.
func newPlaces() places {
	return places{
		next: param("next"), half: param("half"), left: GP64(), across: inPlace("across"), count: inPlace("asks"),
	}
}

// lineOrder are the indices of words that sort positions of some lines by line.
func lineOrder(lines int) Mem {
	order := GLOBL(fmt.Sprintf("lineOrder512x%d", lines), 8|16)
	positions := 32 / lines
	for i := range 32 {
		DATA(2*i, U16(i%positions*lines+i/positions))
	}
	return order
}

// block emits a block.
func (f *fewSoftmax) block() {
	id := label("few", f.lines)
	s, state, pitch, fades, p := param("s"), param("state"), param("pitch"), param("fades"), param("p")
	f.ahead = newPlaces()
	f.tops(s, state, fades)
	sum := f.sums[0]
	zero512(sum)
	chunks := GP64()
	MOVQ(I32(4), chunks)
	Label(id + "_chunk")
	for half := range 2 {
		f.weights(id, s, half)
	}
	f.turn(p)
	ADDQ(I32(128*f.lines), s)
	ADDQ(I32(64*f.lines), p)
	DECQ(chunks)
	JNZ(LabelRef(id + "_chunk"))
	f.total(state, pitch, fades)
}

// vectors is the number of vectors of 16 positions.
func (f *fewSoftmax) vectors() int { return f.lines }

// largest folds a vector until a line's number is the largest of it in all positions.
func (f *fewSoftmax) largest(x, free reg.VecPhysical) {
	VSHUFF64X2(U8(0x4e), x, x, free)
	VMAXPS(free, x, x)
	if f.lines <= 4 {
		VSHUFF32X4(U8(0xb1), x, x, free)
		VMAXPS(free, x, x)
	}
	if f.lines <= 2 {
		VPERMILPS(U8(0x4e), x, free)
		VMAXPS(free, x, x)
	}
	if f.lines == 1 {
		VPERMILPS(U8(0xb1), x, free)
		VMAXPS(free, x, x)
	}
}

// repeat loads a number of each line, as often as there are positions in a vector.
func (f *fewSoftmax) repeat(from Mem, to reg.VecPhysical) {
	switch f.lines {
	case 8:
		VBROADCASTF64X4(from, to)
	case 4:
		VBROADCASTF32X4(from, to)
	case 2:
		VBROADCASTSD(from, to)
	default:
		VBROADCASTSS(from, to)
	}
}

// store stores the first number of each line.
func (f *fewSoftmax) store(from reg.VecPhysical, to Mem) {
	switch f.lines {
	case 8:
		VMOVUPS(from.AsY(), to)
	case 4:
		VMOVUPS(from.AsX(), to)
	case 2:
		VMOVSD(from.AsX(), to)
	default:
		VMOVSS(from.AsX(), to)
	}
}

// tops finds the largest scores, and what earlier sums fade by.
func (f *fewSoftmax) tops(s, state, fades reg.Register) {
	all := 8 * f.vectors()
	for i := range 4 {
		VMOVUPS(Mem{Base: s, Disp: 64 * i}, z[i])
	}
	for i := 4; i < all; i++ {
		VMAXPS(Mem{Base: s, Disp: 64 * i}, z[i%4], z[i%4])
		if i%8 == 7 {
			f.ahead.ask(fmt.Sprintf("tops%d_%d", f.lines, i))
		}
	}
	VMAXPS(z[1], z[0], z[0])
	VMAXPS(z[3], z[2], z[2])
	VMAXPS(z[2], z[0], z[0])
	f.largest(z[0], z[1])
	VMULPS(f.scale, z[0], z[0])
	before := z[16]
	f.repeat(Mem{Base: state}, before)
	VMAXPS(before, z[0], f.top)
	VSUBPS(f.top, before, before)
	f.power(before)
	f.store(f.top, Mem{Base: state})
	f.store(before, Mem{Base: fades})
}

// weights makes weights of half a chunk, adds them up, and rounds them to registers from 0 on.
func (f *fewSoftmax) weights(id string, s reg.Register, half int) {
	n := f.vectors()
	exps := z[8 : 8+n]
	for i, x := range exps {
		VMOVUPS(Mem{Base: s, Disp: 64 * (n*half + i)}, x)
		VFMSUB213PS(f.top, f.scale, x)
		f.power(x)
		f.ahead.ask(fmt.Sprintf("%s_%d_%d", id, half, i))
	}
	f.add(exps)
	for i := 0; i < n; i += 2 {
		if n > 1 {
			roundPairs(exps[i], exps[i+1], z[(n*half+i)/2])
		} else if half == 0 {
			VMOVAPS(exps[0], z[16])
		} else {
			roundPairs(z[16], exps[0], z[0])
		}
	}
}

// add adds weights of 16 positions: of pairs of neighbouring positions the first and the fifth, the second and the
// sixth and so on.
func (f *fewSoftmax) add(exps []reg.VecPhysical) {
	sum, free := f.sums[0], z[17]
	for i := range 4 {
		for _, pair := range []int{i, i + 4} {
			each := 8 / f.lines // pairs in a vector
			vec, part := exps[pair/each], pair%each
			switch {
			case f.lines == 8:
				VADDPS(vec, sum, sum)
			case f.lines == 4 && part == 0:
				VADDPS(vec.AsY(), sum.AsY(), sum.AsY())
			case f.lines == 4:
				VEXTRACTF64X4(U8(1), vec, free.AsY())
				VADDPS(free.AsY(), sum.AsY(), sum.AsY())
			case f.lines == 2:
				VEXTRACTF32X4(U8(part), vec, free.AsX())
				VADDPS(free.AsX(), sum.AsX(), sum.AsX())
			default:
				VEXTRACTF32X4(U8(part/2), vec, free.AsX())
				if part%2 == 1 {
					VPERMILPS(U8(0x4e), free.AsX(), free.AsX())
				}
				VADDPS(free.AsX(), sum.AsX(), sum.AsX())
			}
		}
	}
}

// turn stores the rounded weights of a chunk, in registers from 0 on, by line.
func (f *fewSoftmax) turn(p reg.Register) {
	n := f.vectors()
	words := z[:n]
	out := func(line int, vec reg.VecPhysical) { VMOVDQU64(vec, Mem{Base: p, Disp: 64 * line}) }
	if n == 1 {
		out(0, words[0])
		return
	}
	order := z[19]
	VMOVDQU64(f.orders[n], order)
	for _, vec := range words {
		VPERMW(vec, order, vec)
	}
	switch n {
	case 2:
		VSHUFI64X2(U8(0x44), words[1], words[0], z[8])
		VSHUFI64X2(U8(0xee), words[1], words[0], z[9])
		out(0, z[8])
		out(1, z[9])
	case 4:
		turnQuarters([4]reg.VecPhysical(words), z[8:12])
		for line := range 4 {
			out(line, words[line])
		}
	case 8:
		var low, high [4]reg.VecPhysical
		for i := range 4 {
			low[i], high[i] = z[8+i], z[12+i]
			VPUNPCKLQDQ(words[2*i+1], words[2*i], low[i])
			VPUNPCKHQDQ(words[2*i+1], words[2*i], high[i])
		}
		turnQuarters(low, z[:4])
		turnQuarters(high, z[4:8])
		for i := range 4 {
			out(2*i, low[i])
			out(2*i+1, high[i])
		}
	}
}

// turnQuarters transposes four by four lanes of 128 bits of four vectors.
func turnQuarters(vecs [4]reg.VecPhysical, free []reg.VecPhysical) {
	for i, lanes := range []uint8{0x44, 0xee} {
		VSHUFI32X4(U8(lanes), vecs[1], vecs[0], free[2*i])
		VSHUFI32X4(U8(lanes), vecs[3], vecs[2], free[2*i+1])
	}
	for i := range 4 {
		VSHUFI32X4(U8([]uint8{0x88, 0xdd}[i%2]), free[i/2*2+1], free[i/2*2], vecs[i])
	}
}

// total adds the weights to the earlier ones, which fade.
func (f *fewSoftmax) total(state, pitch, fades reg.Register) {
	sum, odd := f.sums[0], z[0]
	switch f.lines {
	case 8:
		VEXTRACTF64X4(U8(1), sum, odd.AsY())
	case 4:
		VEXTRACTF32X4(U8(1), sum, odd.AsX())
	case 2:
		VPERMILPS(U8(0x4e), sum.AsX(), odd.AsX())
	default:
		VPERMILPS(U8(0xb1), sum.AsX(), odd.AsX())
	}
	VADDPS(odd, sum, odd)
	f.repeat(Mem{Base: state, Index: pitch, Scale: 1}, z[1])
	f.repeat(Mem{Base: fades}, z[2])
	VFMADD231PS(z[2], z[1], odd)
	f.store(odd, Mem{Base: state, Index: pitch, Scale: 1})
}
