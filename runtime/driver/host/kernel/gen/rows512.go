package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// glu512 writes the gated functions whose gate is a sigmoid, in registers of 512 bits: what unit256 writes, with the same
// bits, but constants stay in registers.
func glu512() {
	low, high, infinite, log2e, round := z[31], z[30], z[29], z[28], z[27]
	ln2Hi, ln2Lo, linear, cubic := z[26], z[25], z[24], z[23]
	poly := z[15:22] // poly[0] is 1
	spread := func(v float32, to reg.VecPhysical) { broadcast32(math.Float32bits(v), to) }
	// exponent is the function of the same name for registers of 256 bits, where x may be positive. One instruction
	// multiplies by the power of two, and rounds what becomes subnormal once, as that function does.
	exponent := func(x, n, f, p reg.VecPhysical) {
		VMAXPS(x, low, f)
		VMINPS(f, high, f)
		VMOVAPS(round, n)
		VFMADD231PS(log2e, f, n) // the integer in the low bits
		VSUBPS(round, n, n)      // and as a number
		VFNMADD231PS(ln2Hi, n, f)
		VFNMADD231PS(ln2Lo, n, f)
		VMOVAPS(poly[6], p)
		for i := 5; i >= 0; i-- {
			VFMADD213PS(poly[i], f, p)
		}
		VSCALEFPS(n, p, p)
		VCMPPS(U8(14), high, x, reg.K1) // x > high
		VCMPPS(U8(5), low, x, reg.K2)   // not x < low
		VMOVAPS(infinite, reg.K1, p)
		VMOVAPS_Z(p, reg.K2, x)
	}
	for _, gate := range []struct{ name, act string }{{"siluMul512", "op.SiLU"}, {"geluTanhMul512", "op.GELUTanh"}} {
		function(gate.name, "(y *float32, x *float32, interleave int, groups int)",
			"computes Set.GLU with "+gate.act+" for groups groups of interleave columns, both at least 1; interleave is a multiple of 16.")
		spread(-87.33654, low)
		spread(88.72283, high)
		broadcast32(0x7f800000, infinite)
		spread(math.Log2E, log2e)
		spread(0x1.8p23, round)
		spread(0x1.62e4p-1, ln2Hi)
		spread(0x1.7f7d1cf79abcap-20, ln2Lo)
		for i, coef := range []float32{1, 1, 0.5, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720} {
			spread(coef, poly[i])
		}
		if gate.act == "op.GELUTanh" {
			spread(-2*0.7978845608028654, linear)
			spread(-2*0.7978845608028654*0.044715, cubic)
		}
		out, input, gap, groups, count := param("y"), param("x"), param("interleave"), param("groups"), GP64()
		Label("group")
		MOVQ(gap, count)
		along("columns", count, 64, []reg.GPVirtual{out, input}, func() {
			x, e := z[0], z[1]
			// Rows are longer than a page, and prefetchers of processors stop at the end of one.
			PREFETCHT0(Mem{Base: input, Disp: 1024})
			PREFETCHT0(Mem{Base: input, Index: gap, Scale: 4, Disp: 1024})
			PREFETCHT0(Mem{Base: out, Disp: 512})
			VMOVUPS(Mem{Base: input}, x)
			if gate.act == "op.GELUTanh" { // 0.5 + 0.5*tanh(u) is the sigmoid of 2u, u = sqrt(2/pi)*(x+0.044715*x^3)
				VMULPS(x, x, z[2])
				VMOVAPS(cubic, e)
				VFMADD213PS(linear, z[2], e)
				VMULPS(x, e, e)
			} else {
				zero512(e)
				VSUBPS(x, e, e)
			}
			exponent(e, z[2], z[3], z[4])
			VADDPS(poly[0], e, e)
			VDIVPS(e, x, x)
			VMULPS(Mem{Base: input, Index: gap, Scale: 4}, x, x)
			VMOVUPS(x, Mem{Base: out})
		})
		LEAQ(Mem{Base: input, Index: gap, Scale: 4}, input)
		DECQ(groups)
		JNZ(LabelRef("group"))
		VZEROUPPER()
		RET()
	}
}

// quant512 is quant256 in registers of 512 bits, which one instruction packs with saturation, and without divisions,
// which take longer than everything else.
//
// The first quotient is the product with the rounded reciprocal. Adding its remainder, a fused multiply-add, times the
// reciprocal makes it one of the two neighbours of the exact quotient. Then the remainder is exact, and the same once
// more rounds as a division would (Markstein, IBM Journal of Research and Development 34:1, 1990). This holds where
// nothing underflows; quotients so small that their remainders do become zero in any case.
func quant512() {
	function("quant512", "(y *uint8, x *float32, n int, scale float32, inverse float32)",
		"quantises x to u8 as Set.QuantRows does. inverse is 1/scale, both between 2^-60 and 2^60. n is a multiple",
		"of 16.")
	out, input, count := param("y"), param("x"), param("n")
	scale, _ := Param("scale").Resolve()
	reciprocal, _ := Param("inverse").Resolve()
	values, packed, quotient, rest, step, inverse := z[0], z[1].AsX(), z[2], z[5], z[6], z[7]
	VBROADCASTSS(scale.Addr, step)
	VBROADCASTSS(reciprocal.Addr, inverse)
	broadcast32(0x80808080, z[3])
	broadcast32(0x81818181, z[4]) // -127 in every byte
	loop16("quant", count, func() {
		VMOVUPS(Mem{Base: input}, values)
		VMULPS(inverse, values, quotient)
		for range 2 {
			VMOVAPS(values, rest)
			VFNMADD231PS(step, quotient, rest)
			VFMADD231PS(inverse, rest, quotient)
		}
		VCVTPS2DQ(quotient, values)
		VPMOVSDB(values, packed)
		VPMAXSB(z[4].AsX(), packed, packed)
		VPXOR(z[3].AsX(), packed, packed)
		VMOVDQU(packed, Mem{Base: out})
	}, map[reg.GPVirtual]int{input: 64, out: 16}, input, out)
	VZEROUPPER()
	RET()
}

// norm512 writes what sumSquares256 and norm256 are for a mean of zero, in registers of 512 bits. Sums have the same
// order: a register holds two of the other kernel's.
func norm512() {
	function("sumSquares512", "(x *float32, n int) float64",
		"returns the sum of squares of x in float64, the bits of sumSquares256. n is a multiple of 16.")
	input, count := param("x"), param("n")
	zero512(z[0])
	zero512(z[1])
	along("sum", count, 64, []reg.GPVirtual{input}, func() {
		for i := range 2 {
			VCVTPS2PD(Mem{Base: input, Disp: 32 * i}, z[2+i])
			VFMADD231PD(z[2+i], z[2+i], z[i])
		}
	})
	for i := range 2 { // the second half of a register is an accumulator of its own
		VEXTRACTF64X4(U8(1), z[i], z[2+i].AsY())
		VADDPD(z[2+i].AsY(), z[i].AsY(), z[i].AsY())
	}
	VADDPD(y[1], y[0], y[0])
	VEXTRACTF128(U8(1), y[0], reg.X1)
	VADDPD(reg.X1, reg.X0, reg.X0)
	VHADDPD(reg.X0, reg.X0, reg.X0)
	VZEROUPPER()
	Store(reg.X0, ReturnIndex(0))
	RET()

	function("norm512", "(y *float32, x *float32, gain *float32, n int, inverse float64)",
		"computes gain*float32(x*inverse), the product in float64. n is a multiple of 16.")
	out, input, gain, count := param("y"), param("x"), param("gain"), param("n")
	scale, _ := Param("inverse").Resolve()
	inverse := z[4]
	VBROADCASTSD(scale.Addr, inverse)
	along("norm", count, 64, []reg.GPVirtual{out, input, gain}, func() {
		for i := range 2 {
			VCVTPS2PD(Mem{Base: input, Disp: 32 * i}, z[i])
			VMULPD(inverse, z[i], z[i])
			half := z[i].AsY()
			VCVTPD2PS(z[i], half)
			VMULPS(Mem{Base: gain, Disp: 32 * i}, half, half)
			VMOVUPS(half, Mem{Base: out, Disp: 32 * i})
		}
	})
	VZEROUPPER()
	RET()
}
