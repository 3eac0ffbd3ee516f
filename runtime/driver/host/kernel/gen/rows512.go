package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// glu512 writes the gated functions whose gate is a sigmoid, in registers of 512 bits: what unit256 writes, with the
// same bits, but constants stay in registers.
func glu512() {
	gluKernel512("siluMul512", "op.SiLU", false)
	gluKernel512("geluTanhMul512", "op.GELUTanh", true)
}

// gluKernel512 writes one of them. tanh says that the gate is GELU in the form with a hyperbolic tangent.
func gluKernel512(name, activation string, tanh bool) {
	function(name, "(y *float32, x *float32, interleave int, groups int)",
		"computes Set.GLU with "+activation+" for groups groups of interleave columns, both at least 1; interleave is a",
		"multiple of 16.")
	exponent := newExponent512()
	linear, cubic := z[24], z[23]
	if tanh {
		spread512(-2*0.7978845608028654, linear)
		spread512(-2*0.7978845608028654*0.044715, cubic)
	}
	out, input, gap, groups, count := param("y"), param("x"), param("interleave"), param("groups"), GP64()
	Label("group")
	MOVQ(gap, count)
	along("columns", count, 64, []reg.GPVirtual{out, input}, func() {
		value, power := z[0], z[1]
		// Rows are longer than a page, and prefetchers of processors stop at the end of one.
		PREFETCHT0(Mem{Base: input, Disp: 1024})
		PREFETCHT0(Mem{Base: input, Index: gap, Scale: 4, Disp: 1024})
		PREFETCHT0(Mem{Base: out, Disp: 512})
		VMOVUPS(Mem{Base: input}, value)
		if tanh { // 0.5 + 0.5*tanh(u) is the sigmoid of 2u, u = sqrt(2/pi)*(x+0.044715*x^3)
			VMULPS(value, value, z[2])
			VMOVAPS(cubic, power)
			VFMADD213PS(linear, z[2], power)
			VMULPS(value, power, power)
		} else {
			zero512(power)
			VSUBPS(value, power, power)
		}
		exponent.of(power, z[2], z[3], z[4])
		VADDPS(exponent.one(), power, power)
		VDIVPS(power, value, value)
		VMULPS(Mem{Base: input, Index: gap, Scale: 4}, value, value)
		VMOVUPS(value, Mem{Base: out})
	})
	LEAQ(Mem{Base: input, Index: gap, Scale: 4}, input)
	DECQ(groups)
	JNZ(LabelRef("group"))
	VZEROUPPER()
	RET()
}

// spread512 sets all numbers of a vector.
func spread512(value float32, to reg.VecPhysical) { broadcast32(math.Float32bits(value), to) }

// exponent512 are the registers of the constants of an exponential: where it becomes zero or infinite, infinity, and
// what reduces its argument to a polynomial's.
type exponent512 struct {
	low, high, infinite        reg.VecPhysical
	log2e, round, ln2Hi, ln2Lo reg.VecPhysical
	poly                       []reg.VecPhysical
}

// newExponent512 loads the constants.
func newExponent512() exponent512 {
	e := exponent512{
		low: z[31], high: z[30], infinite: z[29],
		log2e: z[28], round: z[27], ln2Hi: z[26], ln2Lo: z[25],
		poly: z[15:22],
	}
	spread512(-87.33654, e.low)
	spread512(88.72283, e.high)
	broadcast32(0x7f800000, e.infinite)
	spread512(math.Log2E, e.log2e)
	spread512(0x1.8p23, e.round)
	spread512(0x1.62e4p-1, e.ln2Hi)
	spread512(0x1.7f7d1cf79abcap-20, e.ln2Lo)
	for i, coef := range []float32{1, 1, 0.5, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720} {
		spread512(coef, e.poly[i])
	}
	return e
}

// one is a register of ones.
func (e exponent512) one() reg.VecPhysical { return e.poly[0] }

// of makes x its exponential, as exponent does for registers of 256 bits, where x may be positive. One instruction
// multiplies by the power of two, and rounds what becomes subnormal once, as that function does. The other registers
// are overwritten: by the power, what is left of x, and the polynomial.
func (e exponent512) of(x, power, rest, value reg.VecPhysical) {
	VMAXPS(x, e.low, rest)
	VMINPS(rest, e.high, rest)
	VMOVAPS(e.round, power)
	VFMADD231PS(e.log2e, rest, power) // the integer in the low bits
	VSUBPS(e.round, power, power)     // and as a number
	VFNMADD231PS(e.ln2Hi, power, rest)
	VFNMADD231PS(e.ln2Lo, power, rest)
	VMOVAPS(e.poly[6], value)
	for i := 5; i >= 0; i-- {
		VFMADD213PS(e.poly[i], rest, value)
	}
	VSCALEFPS(power, value, value)
	VCMPPS(U8(14), e.high, x, reg.K1) // x > high
	VCMPPS(U8(5), e.low, x, reg.K2)   // not x < low
	VMOVAPS(e.infinite, reg.K1, value)
	VMOVAPS_Z(value, reg.K2, x)
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
