package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var z = [32]reg.VecPhysical{
	reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7,
	reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
	reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23,
	reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
}

func zero512(v ...reg.VecPhysical) {
	for _, r := range v {
		VPXORD(r, r, r)
	}
}

func avx512() {
	q8cRows512()
	q4Rows512("q4Rows512", 32)
	q4Rows512("q4x128Rows512", 128)
	q4Unpack512("q4Unpack512", 32)
	q4Unpack512("q4x128Unpack512", 128)
	q4Panel512("q4Panel512", 32)
	q4Panel512("q4x128Panel512", 128)
	f32Rows512()
	bf16Rows512()
	f32Add512()
	packed512()
}

// q8cRows512: one tile of 32 columns for up to 12 rows, two registers of 16 columns per row. Products
// go straight to 32 bit (VPDPBUSD does not saturate); sums of up to four rows are split so that the
// instruction's latency does not show.
func q8cRows512() {
	const most = 12
	TEXT("q8cRows512", NOSPLIT, "func(rows int, y *float32, ldy int, x *uint8, ldx int, steps int, tail *uint8, w *uint8, ahead int, stride int, xscale *float32)")
	Doc("q8cRows512 computes rows (1..12) rows of one q8c tile into y [rows][32]. x holds 4*steps of each row's",
		"activations; tail is nil or [rows][4] more of them. Strides are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("q8c", m)
		sets := 1
		switch {
		case m <= 2:
			sets = 4
		case m <= 4:
			sets = 2
		}
		unroll := 4
		acc := func(set, r, half int) reg.VecPhysical { return z[(set*m+r)*2+half] }
		w0, w1, a := z[30], z[31], []reg.VecPhysical{z[26], z[27], z[28], z[29]}
		x := newRows(m)
		p, n, tail, w := GP64(), GP64(), GP64(), GP64()
		Load(Param("x"), p)
		Load(Param("ldx"), x.ld)
		Load(Param("steps"), n)
		Load(Param("tail"), tail)
		Load(Param("w"), w)
		fetch := newFetcher(w)
		fetchOutput(m, 2)
		zero512(z[:2*m*sets]...)
		Label(id + "_start")
		x.set(p)
		step := func(i int) {
			VMOVDQU64(Mem{Base: w, Disp: 128 * i}, w0)
			VMOVDQU64(Mem{Base: w, Disp: 128*i + 64}, w1)
			if fetches(m, i) {
				fetch.step(2)
			}
			for r := range m {
				b := a[r%4]
				VPBROADCASTD(x.at(r, 4*i), b)
				VPDPBUSD(w0, b, acc(i%sets, r, 0))
				VPDPBUSD(w1, b, acc(i%sets, r, 1))
			}
		}
		steps(id, n, unroll, step, func(c int) {
			x.advance(4 * c)
			ADDQ(I32(128*c), w)
		})
		// The tail is one more step over its own little matrix.
		again(id, tail, p, n, x, 4)
		for s := 1; s < sets; s++ {
			for r := range m {
				VPADDD(acc(s, r, 0), acc(0, r, 0), acc(0, r, 0))
				VPADDD(acc(s, r, 1), acc(0, r, 1), acc(0, r, 1))
			}
		}
		// y = float32(acc - 128*colsum) * (xscale*scale)
		s0, s1, c0, c1, t, xs := z[24], z[25], z[26], z[27], z[28], z[29]
		VMOVUPS(Mem{Base: w}, s0)
		VMOVUPS(Mem{Base: w, Disp: 64}, s1)
		VPSLLD(I8(7), Mem{Base: w, Disp: 128}, c0)
		VPSLLD(I8(7), Mem{Base: w, Disp: 192}, c1)
		y, ldy, scale := GP64(), GP64(), GP64()
		Load(Param("y"), y)
		Load(Param("ldy"), ldy)
		Load(Param("xscale"), scale)
		for r := range m {
			VBROADCASTSS(Mem{Base: scale, Disp: 4 * r}, xs)
			for h, v := range []struct{ s, c reg.VecPhysical }{{s0, c0}, {s1, c1}} {
				d := acc(0, r, h)
				VPSUBD(v.c, d, d)
				VCVTDQ2PS(d, d)
				VMULPS(v.s, xs, t)
				VMULPS(t, d, d)
				VMOVUPS(d, Mem{Base: y, Disp: 64 * h})
			}
			if r < m-1 {
				ADDQ(ldy, y)
			}
		}
		VZEROUPPER()
		RET()
	})
}

// q4Rows512: nibbles become 16*(nibble-8) as int8 with two or three instructions a register, the
// activations stay u8, and the term 128*sum(nibble-8) is one more row of constant activations. So
// each block costs the same few instructions whatever the number of rows, and block sums of the
// activations are not needed. The factor 16 is taken out at the end, where it is exact. block is the number of rows of the
// weight that share a scale.
func q4Rows512(name string, block int) {
	const most = 6
	TEXT(name, NOSPLIT, "func(rows int, y *float32, ldy int, x *uint8, ldx int, blocks int, tail *uint8, w *uint8, ahead int, stride int, xscale *float32)")
	Doc(fmt.Sprintf("%s computes rows (1..6) rows of one q4b%d tile into y [rows][32]. x holds %d*blocks of each row's", name, block, block),
		fmt.Sprintf("activations; tail is nil or [rows][%d] more of them, padded with 128. Strides are in bytes.", block))
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label(name, m)
		facc := func(r, half int) reg.VecPhysical { return z[2*r+half] }
		iacc := func(r, half int) reg.VecPhysical { return z[12+2*r+half] }
		n0, n1, lo, hi, b, c80, cF0 := z[24], z[25], z[26], z[27], z[28], z[30], z[31]
		b2 := z[29]
		x := newRows(m)
		p, n, tail, w := GP64(), GP64(), GP64(), GP64()
		Load(Param("x"), p)
		Load(Param("ldx"), x.ld)
		Load(Param("blocks"), n)
		Load(Param("tail"), tail)
		Load(Param("w"), w)
		fetch := newFetcher(w)
		t := GP32()
		MOVL(U32(0x80808080), t)
		VPBROADCASTD(t, c80)
		MOVL(U32(0xf0f0f0f0), t)
		VPBROADCASTD(t, cF0)
		for r := range m {
			zero512(facc(r, 0), facc(r, 1))
		}
		Label(id + "_start")
		x.set(p)
		steps(id, n, 1, func(int) {
			zero512(n0, n1)
			for r := range m {
				zero512(iacc(r, 0), iacc(r, 1))
			}
			inSteps(id, block, func() {
				for k4 := range 8 {
					VMOVDQU64(Mem{Base: w, Disp: 64 * k4}, hi)
					fetch.step(1)
					VPSLLD(I8(4), hi, lo)
					VPTERNLOGD(U8(0x6a), c80, cF0, lo) // (lo & f0) ^ 80
					VPTERNLOGD(U8(0x6a), c80, cF0, hi)
					VPDPBUSD(lo, c80, n0)
					VPDPBUSD(hi, c80, n1)
					for r := range m {
						v := b
						if r%2 == 1 {
							v = b2
						}
						VPBROADCASTD(x.at(r, 4*k4), v)
						VPDPBUSD(lo, v, iacc(r, 0))
						VPDPBUSD(hi, v, iacc(r, 1))
					}
				}
				x.advance(32)
				ADDQ(I32(512), w)
			})
			fetch.step(1) // the line of scales
			VCVTPH2PS(Mem{Base: w}, lo)
			VCVTPH2PS(Mem{Base: w, Disp: 32}, hi)
			for r := range m {
				VPSUBD(n0, iacc(r, 0), iacc(r, 0))
				VPSUBD(n1, iacc(r, 1), iacc(r, 1))
				VCVTDQ2PS(iacc(r, 0), iacc(r, 0))
				VCVTDQ2PS(iacc(r, 1), iacc(r, 1))
				VFMADD231PS(lo, iacc(r, 0), facc(r, 0))
				VFMADD231PS(hi, iacc(r, 1), facc(r, 1))
			}
		}, func(int) { ADDQ(I32(64), w) })
		again(id, tail, p, n, x, block)
		y, ldy, scale := GP64(), GP64(), GP64()
		Load(Param("y"), y)
		Load(Param("ldy"), ldy)
		Load(Param("xscale"), scale)
		MOVL(U32(0x3d800000), t) // 1/16
		VPBROADCASTD(t, c80)
		for r := range m {
			VBROADCASTSS(Mem{Base: scale, Disp: 4 * r}, b)
			for h := range 2 {
				d := facc(r, h)
				VMULPS(c80, d, d)
				VMULPS(b, d, d)
				VMOVUPS(d, Mem{Base: y, Disp: 64 * h})
			}
			if r < m-1 {
				ADDQ(ldy, y)
			}
		}
		VZEROUPPER()
		RET()
	})
}

// inSteps emits a loop that runs body for each 32 of block rows.
func inSteps(id string, block int, body func()) {
	if block == 32 {
		body()
		return
	}
	left := GP64()
	MOVQ(I32(block/32), left)
	Label(id + "_step")
	body()
	DECQ(left)
	JNZ(LabelRef(id + "_step"))
}

// q4Unpack512 is worth its while from about 7 rows on. An unpacked block is [block/4][32][4] int8 of
// 16*(nibble-8), the first value of each column's sum as int32 (it takes 128 off each activation), and the
// column scales over 16.
func q4Unpack512(name string, block int) {
	TEXT(name, NOSPLIT, "func(panel *uint8, w *uint8, blocks int)")
	Doc(fmt.Sprintf("%s unpacks blocks of a q4b%d tile for the kernel of panels, %d bytes each.", name, block, 32*block+256))
	Pragma("noescape")
	n0, n1, lo, hi, c80, cF0, sixteenth := z[0], z[1], z[2], z[3], z[4], z[5], z[6]
	panel, w, n := GP64(), GP64(), GP64()
	Load(Param("panel"), panel)
	Load(Param("w"), w)
	Load(Param("blocks"), n)
	t := GP32()
	MOVL(U32(0x80808080), t)
	VPBROADCASTD(t, c80)
	MOVL(U32(0xf0f0f0f0), t)
	VPBROADCASTD(t, cF0)
	MOVL(U32(0x3d800000), t)
	VPBROADCASTD(t, sixteenth)
	steps("unpack", n, 1, func(int) {
		zero512(n0, n1)
		inSteps("unpack", block, func() {
			for k4 := range 8 {
				VMOVDQU64(Mem{Base: w, Disp: 64 * k4}, hi)
				VPSLLD(I8(4), hi, lo)
				VPTERNLOGD(U8(0x6a), c80, cF0, lo) // (lo & f0) ^ 80
				VPTERNLOGD(U8(0x6a), c80, cF0, hi)
				VPDPBUSD(lo, c80, n0)
				VPDPBUSD(hi, c80, n1)
				VMOVDQU64(lo, Mem{Base: panel, Disp: 128 * k4})
				VMOVDQU64(hi, Mem{Base: panel, Disp: 128*k4 + 64})
			}
			ADDQ(I32(512), w)
			ADDQ(I32(1024), panel)
		})
		for i, v := range []reg.VecPhysical{n0, n1} {
			zero512(lo)
			VPSUBD(v, lo, v)
			VMOVDQU64(v, Mem{Base: panel, Disp: 64 * i})
			VCVTPH2PS(Mem{Base: w, Disp: 32 * i}, lo)
			VMULPS(sixteenth, lo, lo)
			VMOVUPS(lo, Mem{Base: panel, Disp: 128 + 64*i})
		}
	}, func(int) {
		ADDQ(I32(64), w)
		ADDQ(I32(256), panel)
	})
	VZEROUPPER()
	RET()
}

// q4Panel512 keeps the float sums in memory, which leaves all registers to 12 rows of integer sums: in a
// dense scratch, because rows of y are often a multiple of 4 KiB apart, where loads wait for unrelated stores.
func q4Panel512(name string, block int) {
	const most = 12
	TEXT(name, NOSPLIT, "func(rows int, y *float32, ldy int, sums *float32, x *uint8, ldx int, blocks int, panel *uint8, w *uint8, ahead int, stride int, xscale *float32)")
	Doc(fmt.Sprintf("%s adds the product of rows (1..12) rows of x, %d*blocks activations each, with unpacked blocks to y", name, block),
		"[rows][32], and multiplies y by xscale unless that is nil. sums is scratch [rows][32]. w is the base of ahead. Strides",
		"are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label(name, m)
		acc := func(r, half int) reg.VecPhysical { return z[2*r+half] }
		w0, w1, a := z[30], z[31], []reg.VecPhysical{z[26], z[27], z[28], z[29]}
		x := newRows(m)
		p, n, panel, sums, out, ldy := GP64(), GP64(), GP64(), GP64(), GP64(), GP64()
		sum := func(r, half int) Mem { return Mem{Base: sums, Disp: 128*r + 64*half} }
		Load(Param("sums"), sums)
		Load(Param("y"), out)
		Load(Param("ldy"), ldy)
		for r := range m {
			for h := range 2 {
				VMOVUPS(Mem{Base: out, Disp: 64 * h}, w0)
				VMOVUPS(w0, sum(r, h))
			}
			ADDQ(ldy, out)
		}
		Load(Param("x"), p)
		Load(Param("ldx"), x.ld)
		x.set(p)
		Load(Param("w"), p)
		fetch := newFetcher(p)
		Load(Param("blocks"), n)
		Load(Param("panel"), panel)
		steps(id, n, 1, func(int) {
			VMOVDQU64(Mem{Base: panel, Disp: 32 * block}, w0)
			VMOVDQU64(Mem{Base: panel, Disp: 32*block + 64}, w1)
			for r := range m {
				VMOVDQA64(w0, acc(r, 0))
				VMOVDQA64(w1, acc(r, 1))
			}
			inSteps(id, block, func() {
				for k4 := range 8 {
					VMOVDQU64(Mem{Base: panel, Disp: 128 * k4}, w0)
					VMOVDQU64(Mem{Base: panel, Disp: 128*k4 + 64}, w1)
					fetch.step(1)
					for r := range m {
						b := a[r%4]
						VPBROADCASTD(x.at(r, 4*k4), b)
						VPDPBUSD(w0, b, acc(r, 0))
						VPDPBUSD(w1, b, acc(r, 1))
					}
				}
				x.advance(32)
				ADDQ(I32(1024), panel)
			})
			VMOVUPS(Mem{Base: panel, Disp: 128}, w0)
			VMOVUPS(Mem{Base: panel, Disp: 192}, w1)
			for r := range m {
				for h, s := range []reg.VecPhysical{w0, w1} {
					d := acc(r, h)
					VCVTDQ2PS(d, d)
					VFMADD213PS(sum(r, h), s, d)
					VMOVUPS(d, sum(r, h))
				}
			}
		}, func(int) { ADDQ(I32(256), panel) })
		Load(Param("xscale"), p)
		Load(Param("y"), out)
		Load(Param("ldy"), ldy)
		one := GP32()
		MOVL(U32(0x3f800000), one)
		VPBROADCASTD(one, a[0])
		for r := range m {
			TESTQ(p, p)
			JZ(LabelRef(label(id+"_plain", r)))
			VBROADCASTSS(Mem{Base: p, Disp: 4 * r}, a[0])
			Label(label(id+"_plain", r))
			for h := range 2 {
				VMULPS(sum(r, h), a[0], w0)
				VMOVUPS(w0, Mem{Base: out, Disp: 64 * h})
			}
			ADDQ(ldy, out)
		}
		VZEROUPPER()
		RET()
	})
}

// multiplyRow adds to acc0 and acc1 the products of element disp of row r with w0 and w1: with the loads as operands,
// because a core whose other thread is busy is short of instructions, or with a load to b.
func multiplyRow(x rows, r, disp int, w0, w1, b, acc0, acc1 reg.VecPhysical) {
	if x.plain(r) {
		VFMADD231PS_BCST(x.at(r, disp), w0, acc0)
		VFMADD231PS_BCST(x.at(r, disp), w1, acc1)
		return
	}
	VBROADCASTSS(x.at(r, disp), b)
	VFMADD231PS(w0, b, acc0)
	VFMADD231PS(w1, b, acc1)
}

// f32Rows512: one accumulator per result and k in order, so that a row's bits do not depend on the rows
// beside it.
func f32Rows512() {
	const most = 12
	TEXT("f32Rows512", NOSPLIT, "func(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *float32, ahead int, stride int, more int)")
	Doc("f32Rows512 computes rows (1..12) rows of one w32 tile of k rows into y [rows][32], or adds them to y unless more is 0. Strides",
		"are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("f32", m)
		acc := func(r, half int) reg.VecPhysical { return z[r*2+half] }
		w0, w1, a := z[30], z[31], []reg.VecPhysical{z[26], z[27], z[28], z[29]}
		x := newOwnRows(m)
		p, n, w := GP64(), GP64(), GP64()
		Load(Param("x"), p)
		Load(Param("ldx"), x.ld)
		Load(Param("k"), n)
		Load(Param("w"), w)
		fetch := newFetcher(w)
		begin(id, m, 64, z[:2*m], zero512)
		x.set(p)
		steps(id, n, 4, func(i int) {
			VMOVUPS(Mem{Base: w, Disp: 128 * i}, w0)
			VMOVUPS(Mem{Base: w, Disp: 128*i + 64}, w1)
			if fetches(m, i) {
				fetch.step(2)
			}
			for r := range m {
				multiplyRow(x, r, 4*i, w0, w1, a[r%4], acc(r, 0), acc(r, 1))
			}
		}, func(c int) {
			x.advance(4 * c)
			ADDQ(I32(128*c), w)
		})
		y, ldy := GP64(), GP64()
		Load(Param("y"), y)
		Load(Param("ldy"), ldy)
		for r := range m {
			VMOVUPS(acc(r, 0), Mem{Base: y})
			VMOVUPS(acc(r, 1), Mem{Base: y, Disp: 64})
			if r < m-1 {
				ADDQ(ldy, y)
			}
		}
		VZEROUPPER()
		RET()
	})
}

// bf16Rows512 is f32Rows512 for a w16 tile: a 32-bit word holds a column in its upper half and the column 16
// before it in its lower one, either of which becomes float32 with one instruction.
func bf16Rows512() {
	const most = 12
	TEXT("bf16Rows512", NOSPLIT, "func(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *uint16, ahead int, stride int)")
	Doc("bf16Rows512 computes rows (1..12) rows of one w16 tile of k rows into y [rows][32]. Strides are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("bf16", m)
		acc := func(r, half int) reg.VecPhysical { return z[r*2+half] }
		upper, w0, w1, a := z[25], z[30], z[31], []reg.VecPhysical{z[26], z[27], z[28], z[29]}
		x := newOwnRows(m)
		p, n, w := GP64(), GP64(), GP64()
		Load(Param("x"), p)
		Load(Param("ldx"), x.ld)
		Load(Param("k"), n)
		Load(Param("w"), w)
		fetch := newFetcher(w)
		t := GP32()
		MOVL(U32(0xffff0000), t)
		VPBROADCASTD(t, upper)
		zero512(z[:2*m]...)
		x.set(p)
		steps(id, n, 4, func(i int) {
			VMOVDQU64(Mem{Base: w, Disp: 64 * i}, w1)
			VPSLLD(I8(16), w1, w0)
			VPANDD(upper, w1, w1)
			fetch.step(1)
			for r := range m {
				multiplyRow(x, r, 4*i, w0, w1, a[r%4], acc(r, 0), acc(r, 1))
			}
		}, func(c int) {
			x.advance(4 * c)
			ADDQ(I32(64*c), w)
		})
		y, ldy := GP64(), GP64()
		Load(Param("y"), y)
		Load(Param("ldy"), ldy)
		for r := range m {
			VMOVUPS(acc(r, 0), Mem{Base: y})
			VMOVUPS(acc(r, 1), Mem{Base: y, Disp: 64})
			if r < m-1 {
				ADDQ(ldy, y)
			}
		}
		VZEROUPPER()
		RET()
	})
}

// f32Add512 is f32Rows512 for 32 columns of a row-major matrix, added to y.
func f32Add512() {
	const most = 12
	TEXT("f32Add512", NOSPLIT, "func(rows int, y *float32, ldy int, x *float32, ldx int, k int, w *float32, ldw int)")
	Doc("f32Add512 adds the product of rows (1..12) rows of x [rows][k] with w [k][32] to y [rows][32]. Strides are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("add", m)
		acc := func(r, half int) reg.VecPhysical { return z[r*2+half] }
		w0, w1, a := z[30], z[31], []reg.VecPhysical{z[26], z[27], z[28], z[29]}
		out, ldy := GP64(), GP64()
		Load(Param("y"), out)
		Load(Param("ldy"), ldy)
		for r := range m {
			VMOVUPS(Mem{Base: out}, acc(r, 0))
			VMOVUPS(Mem{Base: out, Disp: 64}, acc(r, 1))
			if r < m-1 {
				ADDQ(ldy, out)
			}
		}
		x, w := newRows(m), newRows(4)
		p, n := GP64(), GP64()
		Load(Param("w"), p)
		Load(Param("ldw"), w.ld)
		w.set(p)
		Load(Param("x"), p)
		Load(Param("ldx"), x.ld)
		x.set(p)
		Load(Param("k"), n)
		steps(id, n, 4, func(i int) {
			VMOVUPS(w.at(i, 0), w0)
			VMOVUPS(w.at(i, 64), w1)
			for r := range m {
				b := a[r%4]
				VBROADCASTSS(x.at(r, 4*i), b)
				VFMADD231PS(w0, b, acc(r, 0))
				VFMADD231PS(w1, b, acc(r, 1))
			}
		}, func(c int) {
			x.advance(4 * c)
			w.down(c)
		})
		Load(Param("y"), out)
		Load(Param("ldy"), ldy)
		for r := range m {
			VMOVUPS(acc(r, 0), Mem{Base: out})
			VMOVUPS(acc(r, 1), Mem{Base: out, Disp: 64})
			if r < m-1 {
				ADDQ(ldy, out)
			}
		}
		VZEROUPPER()
		RET()
	})
}
