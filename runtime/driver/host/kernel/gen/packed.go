package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of packed activations. A kernel that broadcasts activations spends one load
// instruction for each row. VPDPBUSD can broadcast its signed operand from memory without one, so
// here the activations are signed and the weights unsigned. The activations of a group of rows lie
// in the order in which the kernel reads them, behind one pointer. The offset of the weights adds
// 128 times a sum of activations; the sums start at its negative.
const (
	leastPacked = 9 // rows of a group
	mostPacked  = 14
)

// packed512 generates the kernels of packed rows: those that pack, and those that multiply.
func packed512() {
	packQuad512("packQuad512", packSums)
	packQuad512("packBlocks512", packEach)
	packQuad512("packFloats512", packFloats)
	f32Packed512("f32Packed512", false)
	f32Packed512("bf16Packed512", true)
	q8cPacked512("q8cFirst512", true)
	q8cPacked512("q8cPacked512", false)
	q4Spread512("q4Spread512", 32)
	q4Spread512("q4x128Spread512", 128)
	q4Packed512("q4Packed512", 32)
	q4Packed512("q4x128Packed512", 128)
}

// packedRows emits one step: every row's activation times both weights. Most rows take it from memory as an operand,
// which is a load for each of the two; every third row loads it once, to one of the registers b. Of 14 rows 25 loads
// and 35 instructions make 28 multiply-adds: a core begins 28 loads in the time of these, and, while its other hardware
// thread is busy, 42 instructions.
func packedRows(
	x reg.Register, disp, m int, weights pair, b []reg.VecPhysical, acc func(r, half int) reg.VecPhysical, floats bool,
) {
	loaded := (m + 2) / 3
	next := 0
	for row := range m {
		at := Mem{Base: x, Disp: disp + 4*row}
		if row*loaded/m == (row+1)*loaded/m {
			for half, weight := range weights {
				if floats {
					VFMADD231PS_BCST(at, weight, acc(row, half))
				} else {
					VPDPBUSD_BCST(at, weight, acc(row, half))
				}
			}
			continue
		}
		vec := b[next%len(b)]
		next++
		VPBROADCASTD(at, vec)
		for half, weight := range weights {
			if floats {
				VFMADD231PS(vec, weight, acc(row, half))
			} else {
				VPDPBUSD(vec, weight, acc(row, half))
			}
		}
	}
}

// startPacked starts the sums of both halves at the values that lie in front of the group's
// activations, one int32 a row.
func startPacked(x reg.Register, m int, acc func(r, half int) reg.VecPhysical) {
	for row := range m {
		VPBROADCASTD(Mem{Base: x, Disp: 4 * row}, acc(row, 0))
		VMOVDQA64(acc(row, 0), acc(row, 1))
	}
}

// What packQuad512 packs.
const (
	packSums   = iota // 8-bit activations, with one sum
	packEach          // 8-bit activations, with the sum of each 32
	packFloats        // float32 activations, each in the place of four others
)

// packQuad512 packs four rows: it transposes 16 words of 4 activations of each, 4x4 words in every
// 128-bit lane, and computes -128 times their sums with VPDPBUSD. kind says what is packed and
// where the sums go.
func packQuad512(name string, kind int) {
	typ, params := "*uint8", ""
	what := []string{
		"writes 64*turns signed activations of each of four rows of x: 4 of each row, 16 bytes, every pitch bytes.",
	}
	switch kind {
	case packSums:
		params = ", head *int32"
		what = append(what, "head is what their sums of products start at, [4].")
	case packEach:
		what = append(what, "What the sums of products of each 32 activations start at comes first, 16 bytes.")
	case packFloats:
		typ = "*float32"
		what = []string{
			"writes 16*turns activations of each of four rows of x: one of each row, 16 bytes, every pitch bytes.",
		}
	}
	function(name, "(dst *byte, pitch int, x "+typ+", ldx int, turns int"+params+")", what...)
	p := quadPacker{kind: kind, c80: z[8], totals: z[10:14]}
	p.input = newRows(4)
	Load(Param("x"), p.input.base[0])
	Load(Param("ldx"), p.input.ld)
	p.input.set(p.input.base[0])
	p.output = newRows(4)
	Load(Param("dst"), p.output.base[0])
	Load(Param("pitch"), p.output.ld)
	p.output.set(p.output.base[0])
	count := param("turns")
	if kind != packFloats {
		broadcast32(0x80808080, p.c80)
		zero512(p.totals...)
	}
	Label("turn")
	p.turn()
	DECQ(count)
	JNZ(LabelRef("turn"))

	// one block of all: add the two halves up
	if kind == packSums {
		p.heads()
		head := param("head")
		VEXTRACTI64X4(U8(1), p.totals[0], z[1].AsY())
		VPADDD(z[1].AsY(), p.totals[0].AsY(), p.totals[0].AsY())
		VMOVDQU(p.totals[0].AsX(), Mem{Base: head})
	}
	VZEROUPPER()
	RET()
}

// quadPacker are the registers of packQuad512. totals are the sums of each row's activations.
type quadPacker struct {
	kind          int
	input, output rows
	c80           reg.VecPhysical
	totals        []reg.VecPhysical
}

// turn packs a vector of each row. A vector is 64 activations, two blocks: the sums of both are ready then.
func (p quadPacker) turn() {
	for row := range 4 {
		if p.kind == packFloats {
			VMOVUPS(p.input.at(row, 0), z[row])
			continue
		}
		VPXORD(p.input.at(row, 0), p.c80, z[row])
		VPDPBUSD(z[row], p.c80, p.totals[row])
	}
	if p.kind == packEach {
		p.heads()
		zero512(p.totals[1:]...)
	}
	turnWords(z[:4], z[4:8])
	for lane := range 4 {
		p.storeLane(lane)
	}
	p.input.advance(64)
}

// storeLane stores four groups of words of four rows. A block's sums go in front of its first words.
func (p quadPacker) storeLane(lane int) {
	first := p.output.base[0]
	if p.kind == packEach && lane%2 == 0 {
		if lane == 0 {
			VMOVDQU(p.totals[0].AsX(), Mem{Base: first})
		} else {
			VEXTRACTI32X4(U8(lane), p.totals[0], Mem{Base: first})
			zero512(p.totals[0])
		}
		ADDQ(p.output.ld, first)
	}
	for word := range 4 {
		if lane == 0 {
			VMOVDQU(z[word].AsX(), p.output.at(word, 0))
		} else {
			VEXTRACTI32X4(U8(lane), z[word], p.output.at(word, 0))
		}
	}
	LEAQ(Mem{Base: first, Index: p.output.ld, Scale: 4}, first)
}

// heads leaves in each lane of the first total minus the sums of rows 0..3 over that lane's half: 32 activations.
func (p quadPacker) heads() {
	total := p.totals[0]
	turnWords(p.totals, z[4:8])
	for _, vec := range p.totals[1:] {
		VPADDD(vec, total, total)
	}
	VSHUFI64X2(U8(0xb1), total, total, z[4]) // the other quarter of each half
	VPADDD(z[4], total, total)
	zero512(z[4])
	VPSUBD(total, z[4], total)
}

// q8cPacked512 computes one group of rows and one tile. The first group flips the sign bits of the
// weights on its way, which makes them unsigned, and leaves them in panel for the other groups.
func q8cPacked512(name string, first bool) {
	what := "activations and the unsigned weights in panel. w is the tile. ldy is in bytes."
	if first {
		what = "activations, and writes the tile's weights to panel, unsigned. w is the tile. ldy is in bytes."
	}
	function(name, "(rows int, y *float32, ldy int, x *byte, steps int, panel *byte, w *byte, ahead int, stride int, "+
		"gap int, xscale *float32)",
		fmt.Sprintf("computes rows (%d..%d) rows of a q8c tile of 4*steps rows into y [rows][32], from a group of packed",
			leastPacked, mostPacked),
		what)
	dispatchFrom(leastPacked, mostPacked, func(m int) {
		acc := func(row, half int) reg.VecPhysical { return z[2*row+half] }
		w, c80, bcasts := pair{z[30], z[31]}, z[29], z[2*m:30]
		input, count, panel, weights := param("x"), param("steps"), param("panel"), param("w")
		fetch := newFetcher(weights).sideBySide(label(name, m))
		if first {
			bcasts = z[2*m : 29]
			broadcast32(0x80808080, c80)
		}
		fetchOutput(m, 2)
		startPacked(input, m, acc)
		ADDQ(I32(4*m), input)
		steps(label(name, m), count, 4, func(i int) {
			unsigned := Mem{Base: panel, Disp: 128 * i}
			if first {
				w.load(Mem{Base: weights, Disp: 128 * i})
				VPXORD(c80, w[0], w[0])
				VPXORD(c80, w[1], w[1])
				VMOVDQU64(w[0], unsigned)
				VMOVDQU64(w[1], unsigned.Offset(64))
			} else {
				w.load(unsigned)
			}
			if i%4 == 0 { // in order one line of two: the core fetches its neighbour
				fetch.step(1, 1)
			}
			packedRows(input, 4*m*i, m, w, bcasts, acc, false)
		}, func(count int) {
			ADDQ(I32(4*m*count), input)
			ADDQ(I32(128*count), panel)
			if first {
				ADDQ(I32(128*count), weights)
			}
		})
		// the scales stand behind the tile's weights, which only the first group has walked over
		if !first {
			Load(Param("w"), weights)
			Load(Param("steps"), count)
			SHLQ(U8(7), count)
			ADDQ(count, weights)
		}
		storePacked(m, weights, acc)
		VZEROUPPER()
		RET()
	})
}

// storePacked stores y = float32(sum) * (xscale*scale), with the scales of the columns at scales.
func storePacked(m int, scales reg.GPVirtual, acc func(row, half int) reg.VecPhysical) {
	columns, factor := pair{z[30], z[31]}, z[29]
	for half, vec := range columns {
		VMOVUPS(Mem{Base: scales, Disp: 64 * half}, vec)
	}
	eachScaledRow(m, func(row int, output reg.GPVirtual, scale Mem) {
		for half, vec := range columns {
			sum := acc(row, half)
			VCVTDQ2PS(sum, sum)
			VMULPS_BCST(scale, vec, factor)
			VMULPS(factor, sum, sum)
			VMOVUPS(sum, Mem{Base: output, Disp: 64 * half})
		}
	})
}

// spreadBytes is the size of an unpacked block of a 4-bit tile: [block/4][32][4] uint8 of
// 16*nibble, then the column scales over 16.
func spreadBytes(block int) int { return 32*block + 128 }

// q4Spread512 unpacks 4-bit blocks for packed activations. Nibbles stay unsigned; packed sums start
// at -128 times the sum of activations, and 16*nibble-128 is 16*(nibble-8).
func q4Spread512(name string, block int) {
	function(name, "(panel *byte, w *byte, blocks int)",
		fmt.Sprintf("unpacks blocks of a q4b%d tile for packed activations, %d bytes each.", block,
			spreadBytes(block)))
	lo, hi, cF0, sixteenth := z[0], z[1], z[2], z[3]
	panel, weights, count := param("panel"), param("w"), param("blocks")
	broadcast32(0xf0f0f0f0, cF0)
	broadcast32(0x3d800000, sixteenth)
	steps("spread", count, 1, func(int) {
		inSteps("spread", block, func() {
			for k4 := range 8 {
				VMOVDQU64(Mem{Base: weights, Disp: 64 * k4}, hi)
				VPSLLD(I8(4), hi, lo)
				VPANDD(cF0, lo, lo)
				VPANDD(cF0, hi, hi)
				VMOVDQU64(lo, Mem{Base: panel, Disp: 128 * k4})
				VMOVDQU64(hi, Mem{Base: panel, Disp: 128*k4 + 64})
			}
			ADDQ(I32(512), weights)
			ADDQ(I32(1024), panel)
		})
		for half := range 2 {
			VCVTPH2PS(Mem{Base: weights, Disp: 32 * half}, lo)
			VMULPS(sixteenth, lo, lo)
			VMOVUPS(lo, Mem{Base: panel, Disp: 64 * half})
		}
	}, func(int) {
		ADDQ(I32(64), weights)
		ADDQ(I32(128), panel)
	})
	VZEROUPPER()
	RET()
}

// q4Packed512 multiplies a group of packed rows with unpacked blocks, each half of the rows by itself: 7 rows of
// integer and of float sums fill the registers. With sums in memory a core would store 28 vectors for each block of 14
// rows, one a cycle, and on an AMD EPYC (Zen 5 class) multiplied four fifths as fast.
func q4Packed512(name string, block int) {
	function(name, "(rows int, y *float32, ldy int, sums *float32, x *byte, blocks int, panel *byte, w *byte, "+
		"ahead int, stride int, gap int, xscale *float32)",
		fmt.Sprintf("adds the product of a group of rows (%d..%d) of packed activations with unpacked blocks to sums",
			leastPacked, mostPacked),
		"[rows][32], or writes the sums times xscale to y [rows][32] unless that is nil. w is the base of ahead, ldy",
		"is in bytes.")
	dispatchFrom(leastPacked, mostPacked, func(m int) {
		sums, weights := param("sums"), param("w")
		fetch := newFetcher(weights).sideBySide(label(name, m))
		scale, output, ldy := param("xscale"), param("y"), param("ldy")
		parts := (m + mostHalf - 1) / mostHalf
		for part := range parts {
			first, end := part*m/parts, (part+1)*m/parts
			q4Half512(q4Half{
				id: label(label(name, m)+"_", part), block: block, group: m, first: first, rows: end - first,
				sums: sums, scale: scale, output: output, ldy: ldy,
				fetch: func() {
					if part == 0 {
						fetch.step(1, 1)
					} else {
						fetch.step(0, 1)
					}
				},
			})
		}
		VZEROUPPER()
		RET()
	})
}

// mostHalf is the number of rows whose integer and float sums fit into registers.
const mostHalf = 7

// q4Half is a part of the rows of a group.
type q4Half struct {
	id                       string
	block                    int
	group, first, rows       int // rows of the group, and those of the part
	sums, scale, output, ldy reg.GPVirtual
	fetch                    func()
}

// q4Half512 emits the product of a part of a group, from the blocks' first to their last.
func q4Half512(half q4Half) {
	acc := func(r, column int) reg.VecPhysical { return z[2*r+column] }
	total := func(r, column int) reg.VecPhysical { return z[2*mostHalf+2*r+column] }
	w0, w1, bcasts := z[30], z[31], z[4*mostHalf:30]
	sum := func(r, column int) Mem { return Mem{Base: half.sums, Disp: 128*(half.first+r) + 64*column} }
	input, count, panel := param("x"), param("blocks"), param("panel")
	if half.first > 0 {
		ADDQ(I8(4*half.first), input)
	}
	for row := range half.rows {
		for column := range 2 {
			VMOVUPS(sum(row, column), total(row, column))
		}
	}
	steps(half.id, count, 1, func(int) {
		startPacked(input, half.rows, acc)
		ADDQ(I32(4*half.group), input)
		inSteps(half.id, half.block, func() {
			for k4 := range 8 {
				VMOVDQU64(Mem{Base: panel, Disp: 128 * k4}, w0)
				VMOVDQU64(Mem{Base: panel, Disp: 128*k4 + 64}, w1)
				if k4 == 0 {
					half.fetch()
				}
				packedRows(input, 4*half.group*k4, half.rows, pair{w0, w1}, bcasts, acc, false)
			}
			ADDQ(I32(32*half.group), input)
			ADDQ(I32(1024), panel)
		})
		VMOVUPS(Mem{Base: panel}, w0)
		VMOVUPS(Mem{Base: panel, Disp: 64}, w1)
		for row := range half.rows {
			for column, scales := range []reg.VecPhysical{w0, w1} {
				VCVTDQ2PS(acc(row, column), acc(row, column))
				VFMADD231PS(scales, acc(row, column), total(row, column))
			}
		}
	}, func(int) { ADDQ(I32(128), panel) })
	// the last call of a tile gives scales
	TESTQ(half.scale, half.scale)
	JNZ(LabelRef(half.id + "_scaled"))
	for row := range half.rows {
		for column := range 2 {
			VMOVUPS(total(row, column), sum(row, column))
		}
	}
	JMP(LabelRef(half.id + "_end"))
	Label(half.id + "_scaled")
	for row := range half.rows {
		VBROADCASTSS(Mem{Base: half.scale, Disp: 4 * (half.first + row)}, w0)
		for column := range 2 {
			VMULPS(total(row, column), w0, w1)
			VMOVUPS(w1, Mem{Base: half.output, Disp: 64 * column})
		}
		ADDQ(half.ldy, half.output)
	}
	Label(half.id + "_end")
}

// f32Packed512 is f32Rows512 or bf16Rows512 for a group of packed rows, with the same bits: one
// accumulator per result and k in order.
func f32Packed512(name string, bf16 bool) {
	scheme, typ, gap := "w32", "*float32", "gap int, "
	if bf16 { // half the bytes for the same work: side by side gained nothing
		scheme, typ, gap = "w16", "*uint16", ""
	}
	function(name, "(rows int, y *float32, ldy int, x *float32, k int, w "+typ+", ahead int, stride int, "+gap+
		"more int)",
		fmt.Sprintf("computes rows (%d..%d) rows of k rows of a %s tile into y [rows][32], or adds them to y unless more is 0,",
			leastPacked, mostPacked, scheme),
		"from a group of packed activations. ldy is in bytes.")
	dispatchFrom(leastPacked, mostPacked, func(m int) {
		id := label(name, m)
		acc := func(r, half int) reg.VecPhysical { return z[2*r+half] }
		w0, w1, bcasts := z[30], z[31], z[2*m:30]
		input, count, weights := param("x"), param("k"), param("w")
		inOrder := newFetcher(weights)
		fetch := func(int) { inOrder.step(1) }
		if !bf16 {
			side := inOrder.sideBySide(id)
			fetch = func(i int) { side.step(1, oneOf(4, i)) }
		}
		row := 128 // bytes of the tile
		var upper reg.VecPhysical
		if bf16 {
			upper, bcasts, row = z[29], z[2*m:29], 64
			broadcast32(0xffff0000, upper)
		}
		begin(id, m, 64, z[:2*m], zero512)
		steps(id, count, 4, func(i int) {
			at := Mem{Base: weights, Disp: row * i}
			if bf16 {
				VPSLLD(I8(16), at, w0)
				VPANDD(at, upper, w1)
			} else {
				VMOVUPS(at, w0)
				VMOVUPS(at.Offset(64), w1)
			}
			if i%2 == 0 {
				fetch(i)
			}
			packedRows(input, 4*m*i, m, pair{w0, w1}, bcasts, acc, true)
		}, func(c int) {
			ADDQ(I32(4*m*c), input)
			ADDQ(I32(row*c), weights)
		})
		eachRow(m, func(row int, output reg.GPVirtual) {
			VMOVUPS(acc(row, 0), Mem{Base: output})
			VMOVUPS(acc(row, 1), Mem{Base: output, Disp: 64})
		})
		VZEROUPPER()
		RET()
	})
}
