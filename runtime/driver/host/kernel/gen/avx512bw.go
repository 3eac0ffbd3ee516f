package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// avx512bw writes what CPUs with AVX-512 but without its VNNI compute 8-bit products with.
func avx512bw() {
	q8cRowsBW()
	peakLoop("peakI8xBW", "VPMADDUBSW, VPMADDWD and VPADDD on 64-byte registers", 16, func(i int) {
		t := z[16+i%5]
		VPMADDUBSW(z[30], z[31], t)
		VPMADDWD(z[29], t, t)
		VPADDD(t, z[i], z[i])
	}, func(count int) {
		bytes512(count)
		broadcast32(0x00010001, z[29])
	}, sumI32x512)
}

// q8cRowsBW is q8cRows256 in twice the width. AVX-512 has no VPSIGNB: where a is negative, w is replaced by 0-w.
func q8cRowsBW() {
	const most = 6
	TEXT("q8cRowsBW", NOSPLIT, "func(rows int, y *float32, ldy int, x *uint8, ldx int, steps int, tail *uint8, w *uint8, ahead int, stride int, xscale *float32)")
	Doc("q8cRowsBW computes rows (1..6) rows of one q8c tile into y [rows][32]. x holds 4*steps of each row's",
		"activations; tail is nil or [rows][4] more of them, padded with 128. Strides are in bytes.")
	Pragma("noescape")
	dispatch(most, func(m int) {
		id := label("q8c", m)
		acc := func(r, half int) reg.VecPhysical { return z[2*r+half] }
		w, a := [2]reg.VecPhysical{z[12], z[13]}, [2]reg.VecPhysical{z[14], z[15]}
		t, ones, c80, zero := [4]reg.VecPhysical{z[16], z[17], z[18], z[19]}, z[20], z[21], z[22]
		negative := [2]reg.OpmaskPhysical{reg.K1, reg.K2}
		x := newRows(m)
		p, n, tail, wp := GP64(), GP64(), GP64(), GP64()
		Load(Param("x"), p)
		Load(Param("ldx"), x.ld)
		Load(Param("steps"), n)
		Load(Param("tail"), tail)
		Load(Param("w"), wp)
		fetch := newFetcher(wp)
		broadcast32(0x00010001, ones)
		broadcast32(0x80808080, c80)
		zero512(zero)
		zero512(z[:2*m]...)
		Label(id + "_start")
		x.set(p)
		steps(id, n, 2, func(i int) {
			for half := range w {
				VMOVDQU64(Mem{Base: wp, Disp: 128*i + 64*half}, w[half])
			}
			fetch.step(2)
			for r := range m {
				a, k := a[r%2], negative[r%2]
				VPBROADCASTD(x.at(r, 4*i), a)
				VPXORD(c80, a, a)
				VPMOVB2M(a, k)
				VPABSB(a, a)
				for half, w := range w {
					t := t[r%2*2+half]
					VMOVDQA64(w, t)
					VPSUBB(w, zero, k, t)
					VPMADDUBSW(t, a, t)
					VPMADDWD(ones, t, t)
					VPADDD(t, acc(r, half), acc(r, half))
				}
			}
		}, func(c int) {
			x.advance(4 * c)
			ADDQ(I32(128*c), wp)
		})
		again(id, tail, p, n, x, 4)
		out, ldy, scale := GP64(), GP64(), GP64()
		Load(Param("y"), out)
		Load(Param("ldy"), ldy)
		Load(Param("xscale"), scale)
		for r := range m {
			VBROADCASTSS(Mem{Base: scale, Disp: 4 * r}, a[0])
			for half := range 2 {
				d := acc(r, half)
				VCVTDQ2PS(d, d)
				VMULPS(Mem{Base: wp, Disp: 64 * half}, a[0], t[0])
				VMULPS(t[0], d, d)
				VMOVUPS(d, Mem{Base: out, Disp: 64 * half})
			}
			if r < m-1 {
				ADDQ(ldy, out)
			}
		}
		VZEROUPPER()
		RET()
	})
}
