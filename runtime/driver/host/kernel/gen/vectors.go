package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// f32 is a constant of eight equal numbers in memory.
func f32(name string, v float32) Mem { return const32(name, math.Float32bits(v)) }

// Constants of exponent, made once.
var (
	expLow, expHigh, expInf, expLog2e, expRound, expLn2Hi, expLn2Lo, expBias Mem
	expPoly                                                                  [7]Mem
	magnitude, bytes80, minus127                                             Mem
)

// vectors256 writes the functions on rows. They process 16 numbers a turn, in registers of 8, and
// use AVX2, which mostly is enough to keep up with the caches (see rows512.go for what is not).
func vectors256() {
	expLow, expHigh = f32("expLow256", -87.33654), f32("expHigh256", 88.72283)
	expInf, expLog2e = const32("expInf256", 0x7f800000), f32("expLog2e256", math.Log2E)
	expRound, expBias = f32("expRound256", 0x1.8p23), const32("expBias256", 127)
	expLn2Hi, expLn2Lo = f32("expLn2Hi256", 0x1.62e4p-1), f32("expLn2Lo256", 0x1.7f7d1cf79abcap-20)
	for i, coef := range []float32{1, 1, 0.5, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720} {
		expPoly[i] = f32("expPoly256x"+string(rune('0'+i)), coef)
	}
	// masks of the sign bit's complement, of u8 offsets, and -127 in every byte
	magnitude = const32("magnitude256", 0x7fffffff)
	bytes80, minus127 = const32("bytes256", 0x80808080), const32("minus256", 0x81818181)

	maxAbs256()
	quant256()
	sumSquares256()
	norm256()
	add256()
	scale256()
	pooling256()
	activations256()
	softcap256()
	rope256()
	fromF16256()
	fromBF16256()
	toF16256()
	round := brain256()
	toBF16256(round)
	roundBF16256(round)
	blockSums256()
}

// function starts a kernel. The first line of doc has no name yet.
func function(name, params string, doc ...string) {
	TEXT(name, NOSPLIT, "func"+params)
	doc[0] = name + " " + doc[0]
	Doc(doc...)
	Pragma("noescape")
}

// param loads a parameter into a register.
func param(name string) reg.GPVirtual {
	result := GP64()
	Load(Param(name), result)
	return result
}

// loop16 runs body n/16 times (n a multiple of 16, at least 0). After each turn it moves the
// pointers, in the given order, by advance bytes.
func loop16(id string, n reg.GPVirtual, body func(), advance map[reg.GPVirtual]int, order ...reg.GPVirtual) {
	SHRQ(U8(4), n)
	JZ(LabelRef(id + "_done"))
	Label(id + "_loop")
	body()
	for _, row := range order {
		ADDQ(I32(advance[row]), row)
	}
	DECQ(n)
	JNZ(LabelRef(id + "_loop"))
	Label(id + "_done")
}

// along is loop16 for pointers that all move by bytes each.
func along(id string, n reg.GPVirtual, bytes int, pointers []reg.GPVirtual, body func()) {
	steps := map[reg.GPVirtual]int{}
	for _, row := range pointers {
		steps[row] = bytes
	}
	loop16(id, n, body, steps, pointers...)
}

// maxAbs256 compares magnitudes as integers: without the sign bit, float32 order like their bits,
// and NaN above infinity.
func maxAbs256() {
	function("maxAbs256", "(x *float32, n int) uint32",
		"returns the largest magnitude of x as bits, by which NaN is larger than infinity. n is a multiple of 16.")
	input, count := param("x"), param("n")
	zero256(y[0], y[1])
	VMOVDQU(magnitude, y[4])
	along("max", count, 64, []reg.GPVirtual{input}, func() {
		VPAND(Mem{Base: input}, y[4], y[2])
		VPAND(Mem{Base: input, Disp: 32}, y[4], y[3])
		VPMAXUD(y[2], y[0], y[0])
		VPMAXUD(y[3], y[1], y[1])
	})
	// fold the register in halves
	VPMAXUD(y[1], y[0], y[0])
	VEXTRACTI128(U8(1), y[0], reg.X1)
	VPMAXUD(reg.X1, reg.X0, reg.X0)
	VPSHUFD(U8(0x4e), reg.X0, reg.X1)
	VPMAXUD(reg.X1, reg.X0, reg.X0)
	VPSHUFD(U8(0xb1), reg.X0, reg.X1)
	VPMAXUD(reg.X1, reg.X0, reg.X0)
	result := GP32()
	VMOVD(reg.X0, result)
	Store(result, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// quant256 packs with saturation, first to 16 and then to 8 bit; the final maximum keeps -128 out,
// whose negative no int8 holds.
func quant256() {
	function("quant256", "(y *uint8, x *float32, n int, scale float32)",
		"quantises x to u8 as Set.QuantRows does. n is a multiple of 16.")
	out, input, count := param("y"), param("x"), param("n")
	scale, _ := Param("scale").Resolve()
	VBROADCASTSS(scale.Addr, y[4])
	VMOVDQU(bytes80, y[5])
	VMOVDQU(minus127, y[6])
	loop16("quant", count, func() {
		VMOVUPS(Mem{Base: input}, y[0])
		VMOVUPS(Mem{Base: input, Disp: 32}, y[1])
		VDIVPS(y[4], y[0], y[0])
		VDIVPS(y[4], y[1], y[1])
		VCVTPS2DQ(y[0], y[0])
		VCVTPS2DQ(y[1], y[1])
		VPACKSSDW(y[1], y[0], y[0])
		// VPACKSSDW packs within lanes; this restores the order
		VPERMQ(U8(0xd8), y[0], y[0])
		VEXTRACTI128(U8(1), y[0], reg.X1)
		VPACKSSWB(reg.X1, reg.X0, reg.X0)
		VPMAXSB(reg.X6, reg.X0, reg.X0)
		VPXOR(reg.X5, reg.X0, reg.X0)
		VMOVDQU(reg.X0, Mem{Base: out})
	}, map[reg.GPVirtual]int{input: 64, out: 16}, input, out)
	VZEROUPPER()
	RET()
}

// sumSquares256 sums in float64, because a square of float32 may overflow; four accumulators hide
// the latency.
func sumSquares256() {
	function("sumSquares256", "(x *float32, n int, mean float64) float64",
		"returns the sum of squares of x-mean in float64. n is a multiple of 16.")
	input, count := param("x"), param("n")
	scale, _ := Param("mean").Resolve()
	mean := y[8]
	VBROADCASTSD(scale.Addr, mean)
	zero256(y[0:4]...)
	along("sum", count, 64, []reg.GPVirtual{input}, func() {
		for i := range 4 {
			VCVTPS2PD(Mem{Base: input, Disp: 16 * i}, y[4+i])
			VSUBPD(mean, y[4+i], y[4+i])
			VFMADD231PD(y[4+i], y[4+i], y[i])
		}
	})
	VADDPD(y[1], y[0], y[0])
	VADDPD(y[3], y[2], y[2])
	VADDPD(y[2], y[0], y[0])
	VEXTRACTF128(U8(1), y[0], reg.X1)
	VADDPD(reg.X1, reg.X0, reg.X0)
	VHADDPD(reg.X0, reg.X0, reg.X0)
	VZEROUPPER()
	Store(reg.X0, ReturnIndex(0))
	RET()
}

// norm256 multiplies in float64, two halves of a register at a time, and rounds once before the
// gain.
func norm256() {
	function("norm256", "(y *float32, x *float32, gain *float32, n int, mean float64, inverse float64)",
		"computes gain*float32((x-mean)*inverse), the parentheses in float64. n is a multiple of 16.")
	out, input, gain, count := param("y"), param("x"), param("gain"), param("n")
	scale, _ := Param("inverse").Resolve()
	average, _ := Param("mean").Resolve()
	inverse, mean := y[4], y[5]
	VBROADCASTSD(scale.Addr, inverse)
	VBROADCASTSD(average.Addr, mean)
	along("norm", count, 64, []reg.GPVirtual{out, input, gain}, func() {
		for i := range 4 {
			VCVTPS2PD(Mem{Base: input, Disp: 16 * i}, y[i])
			VSUBPD(mean, y[i], y[i])
			VMULPD(inverse, y[i], y[i])
		}
		for i := range 4 {
			vec := y[i].AsX()
			VCVTPD2PSY(y[i], vec)
			VMULPS(Mem{Base: gain, Disp: 16 * i}, vec, vec)
			VMOVUPS(vec, Mem{Base: out, Disp: 16 * i})
		}
	})
	VZEROUPPER()
	RET()
}

// add256 generates the sum of two vectors, 16 elements a turn.
func add256() {
	function("add256", "(y *float32, a *float32, b *float32, n int)", "computes a+b. n is a multiple of 16.")
	out, left, right, count := param("y"), param("a"), param("b"), param("n")
	along("add", count, 64, []reg.GPVirtual{out, left, right}, func() {
		for i := range 2 {
			VMOVUPS(Mem{Base: left, Disp: 32 * i}, y[i])
			VADDPS(Mem{Base: right, Disp: 32 * i}, y[i], y[i])
			VMOVUPS(y[i], Mem{Base: out, Disp: 32 * i})
		}
	})
	VZEROUPPER()
	RET()
}

// scale256 generates the product of a vector and a number.
func scale256() {
	function("scale256", "(y *float32, n int, s float32)", "multiplies y by s. n is a multiple of 16.")
	out, count := param("y"), param("n")
	scale, _ := Param("s").Resolve()
	VBROADCASTSS(scale.Addr, y[2])
	along("scale", count, 64, []reg.GPVirtual{out}, func() {
		for i := range 2 {
			VMULPS(Mem{Base: out, Disp: 32 * i}, y[2], y[i])
			VMOVUPS(y[i], Mem{Base: out, Disp: 32 * i})
		}
	})
	VZEROUPPER()
	RET()
}

// pooling256 generates what reduces scores: the largest of a row, and rows less their largest number.
func pooling256() {
	function("peak256", "(x *float32, n int) float32",
		"returns the largest of x, finite numbers. n is a multiple of 16.")
	input, count := param("x"), param("n")
	VMOVUPS(Mem{Base: input}, y[0])
	VMOVUPS(Mem{Base: input, Disp: 32}, y[1])
	along("peak", count, 64, []reg.GPVirtual{input}, func() {
		for i := range 2 {
			VMAXPS(Mem{Base: input, Disp: 32 * i}, y[i], y[i])
		}
	})
	// fold the register in halves
	VMAXPS(y[1], y[0], y[0])
	VEXTRACTF128(U8(1), y[0], reg.X1)
	VMAXPS(reg.X1, reg.X0, reg.X0)
	VPSHUFD(U8(0x4e), reg.X0, reg.X1)
	VMAXPS(reg.X1, reg.X0, reg.X0)
	VPSHUFD(U8(0xb1), reg.X0, reg.X1)
	VMAXPS(reg.X1, reg.X0, reg.X0)
	VZEROUPPER()
	Store(reg.X0, ReturnIndex(0))
	RET()

	for _, pool := range []bool{false, true} {
		name := map[bool]string{false: "below256", true: "poolBelow256"}[pool]
		does := map[bool]string{false: "computes x-top", true: "computes max(y,x-top)"}[pool]
		function(name, "(y *float32, x *float32, n int, top float32)", does+". n is a multiple of 16.")
		out, input, count := param("y"), param("x"), param("n")
		top, _ := Param("top").Resolve()
		VBROADCASTSS(top.Addr, y[2])
		along(name, count, 64, []reg.GPVirtual{out, input}, func() {
			for i := range 2 {
				VMOVUPS(Mem{Base: input, Disp: 32 * i}, y[i])
				VSUBPS(y[2], y[i], y[i])
				if pool {
					VMAXPS(Mem{Base: out, Disp: 32 * i}, y[i], y[i])
				}
				VMOVUPS(y[i], Mem{Base: out, Disp: 32 * i})
			}
		})
		VZEROUPPER()
		RET()
	}
}

// exponent replaces x by e^x with the method of expf: x = i*ln2 + rest, a polynomial of degree 6 in
// rest, times 2^i by its exponent bits. Below the smallest normal number it gives zero, above the
// largest infinity, and NaN for NaN. Where positive is false x is never positive, and the checks of
// overflow are left out. t, f, p and u are overwritten.
func exponent(x reg.VecPhysical, positive bool, t, f, p, u reg.VecPhysical) {
	VMOVUPS(expLow, f)
	VMAXPS(x, f, f) // MAX and MIN of NaN and a number give the operand named first here: x
	if positive {
		VMOVUPS(expHigh, t)
		VMINPS(f, t, f)
	}
	// adding 1.5*2^23 rounds to an integer, which the low mantissa bits then hold
	VMOVUPS(expRound, u)
	VMOVAPS(u, t)
	VFMADD231PS(expLog2e, f, t) // the integer in the low bits
	VSUBPS(u, t, p)             // and as a number
	VFNMADD231PS(expLn2Hi, p, f)
	VFNMADD231PS(expLn2Lo, p, f)
	VMOVUPS(expPoly[6], p)
	for i := 5; i >= 0; i-- {
		VFMADD213PS(expPoly[i], f, p)
	}
	VPSUBD(u, t, t)
	halves := []reg.VecPhysical{t}
	if positive { // two steps, because 2^128 is not a float32
		VPSRAD(U8(1), t, u)
		VPSUBD(u, t, t)
		halves = append(halves, u)
	}
	for _, half := range halves {
		VPADDD(expBias, half, half)
		VPSLLD(U8(23), half, half)
		VMULPS(half, p, p)
	}
	VCMPPS(U8(1), expLow, x, t) // x < low
	if positive {
		VCMPPS(U8(14), expHigh, x, u) // x > high
		VMOVUPS(expInf, x)
		VBLENDVPS(u, x, p, p)
	}
	VANDNPS(p, t, x)
}

// unit256 writes a function y = unit(x), or with gated the form act(gate)*up of Set.GLU. unit
// replaces y[at] and may use the 6 registers after it; two registers are interleaved, from y[0] and
// y[7].
func unit256(name, act string, gated bool, unit func(at int)) {
	// gap is the distance in elements from a gate column to its up column, nil where not gated
	loop := func(out, x, n reg.GPVirtual, gap *reg.GPVirtual) {
		along(name, n, 64, []reg.GPVirtual{out, x}, func() {
			for i := range 2 {
				VMOVUPS(Mem{Base: x, Disp: 32 * i}, y[7*i])
				unit(7 * i)
				if gap != nil {
					VMULPS(Mem{Base: x, Index: *gap, Scale: 4, Disp: 32 * i}, y[7*i], y[7*i])
				}
				VMOVUPS(y[7*i], Mem{Base: out, Disp: 32 * i})
			}
		})
	}
	if !gated {
		function(name, "(y *float32, x *float32, n int)", "applies "+act+". n is a multiple of 16.")
		out, input, count := param("y"), param("x"), param("n")
		VMOVUPS(expPoly[0], y[14])
		loop(out, input, count, nil)
		VZEROUPPER()
		RET()
		return
	}
	function(name, "(y *float32, x *float32, interleave int, groups int)",
		"computes Set.GLU with "+act+" for groups groups of interleave columns, a multiple of 16.")
	out, input, gap, groups := param("y"), param("x"), param("interleave"), param("groups")
	// a group is interleave gate columns, then as many up columns; loop ends at the up columns,
	// which are skipped
	VMOVUPS(expPoly[0], y[14])
	TESTQ(groups, groups)
	JZ(LabelRef(name + "_end"))
	Label(name + "_group")
	count := GP64()
	MOVQ(gap, count)
	loop(out, input, count, &gap)
	LEAQ(Mem{Base: input, Index: gap, Scale: 4}, input)
	DECQ(groups)
	JNZ(LabelRef(name + "_group"))
	Label(name + "_end")
	VZEROUPPER()
	RET()
}

// activations256 writes the activation functions. y[14] is 1 throughout.
func activations256() {
	one := y[14]
	// sigmoid divides y[at] by 1+e^y[at+1].
	sigmoid := func(at int) {
		exponent(y[at+1], true, y[at+2], y[at+3], y[at+4], y[at+5])
		VADDPS(one, y[at+1], y[at+1])
		VDIVPS(y[at+1], y[at], y[at])
	}
	// x*sigmoid(x)
	silu := func(at int) {
		VXORPS(y[at+1], y[at+1], y[at+1])
		VSUBPS(y[at], y[at+1], y[at+1])
		sigmoid(at)
	}
	// 0.5 + 0.5*tanh(u) is the sigmoid of 2u, u = sqrt(2/pi)*(x+0.044715*x^3).
	linear, cubic := f32("geluLinear256", -2*0.7978845608028654), f32("geluCubic256", -2*0.7978845608028654*0.044715)
	geluTanh := func(at int) {
		VMULPS(y[at], y[at], y[at+2])
		VMOVUPS(cubic, y[at+1])
		VFMADD213PS(linear, y[at+2], y[at+1])
		VMULPS(y[at], y[at+1], y[at+1])
		sigmoid(at)
	}
	// As gelu of the portable set: Phi(-|x|) is e^(-x^2/2) times a polynomial in t = 1/(1+0.3*|x|).
	slope, half := f32("geluSlope256", 0.3), f32("geluHalf256", -0.5)
	var poly []Mem
	for i, coef := range []float32{0.035675004, -0.15720393, 0.20635478, -0.05368467, 0.12856211, 0.099913366,
		0.12075397, 0.1196293} {
		poly = append(poly, f32("geluPoly256x"+string(rune('0'+i)), coef))
	}
	gelu := func(at int) {
		value, exp, tmp, sum := y[at], y[at+1], y[at+6], y[at+2]
		VMULPS(half, value, exp)
		VMULPS(value, exp, exp)
		exponent(exp, false, y[at+2], y[at+3], y[at+4], y[at+5])
		VANDPS(magnitude, value, tmp)
		VMOVUPS(slope, sum)
		VFMADD213PS(one, sum, tmp)
		VDIVPS(tmp, one, tmp)
		VMOVUPS(poly[0], sum)
		for _, coef := range poly[1:] {
			VFMADD213PS(coef, tmp, sum)
		}
		VMULPS(tmp, sum, sum)
		VMULPS(exp, sum, sum)
		VMULPS(value, sum, sum)           // x*Phi(-|x|)
		VSUBPS(sum, value, tmp)           // x*(1-Phi(-|x|))
		VBLENDVPS(value, sum, tmp, value) // by the sign of x
	}
	for _, gated := range []bool{false, true} {
		suffix := map[bool]string{true: "Mul256", false: "256"}[gated]
		unit256("silu"+suffix, "op.SiLU", gated, silu)
		unit256("gelu"+suffix, "op.GELU", gated, gelu)
		unit256("geluTanh"+suffix, "op.GELUTanh", gated, geluTanh)
	}
}

// softcap256 computes tanh by the rational function of tanhf, on the magnitude; the sign is put
// back at the end.
func softcap256() {
	bound, one := f32("tanhBound256", 9), expPoly[0]
	signs := const32("tanhSigns256", 0x80000000)
	var p, q []Mem
	for i, coef := range []float32{1.3354058e-08, 2.0608657e-05, 0.003495563, 0.13381004, 1} {
		p = append(p, f32("tanhP256x"+string(rune('0'+i)), coef))
	}
	for i, coef := range []float32{7.776314e-07, 0.00032855931, 0.025876887, 0.4671432, 1} {
		q = append(q, f32("tanhQ256x"+string(rune('0'+i)), coef))
	}
	function("softcap256", "(y *float32, x *float32, n int, scale float32, limit float32)",
		"computes limit*tanh(x*scale). n is a multiple of 16.")
	out, input, count := param("y"), param("x"), param("n")
	s, _ := Param("scale").Resolve()
	l, _ := Param("limit").Resolve()
	scale, limit := y[15], y[14]
	VBROADCASTSS(s.Addr, scale)
	VBROADCASTSS(l.Addr, limit)
	along("cap", count, 64, []reg.GPVirtual{out, input}, func() {
		for i := range 2 {
			vec, sign, top, bottom := y[5*i], y[5*i+1], y[5*i+2], y[5*i+3]
			VMULPS(Mem{Base: input, Disp: 32 * i}, scale, vec)
			VMOVUPS(signs, sign)
			VANDPS(sign, vec, sign)
			VXORPS(sign, vec, vec) // the magnitude
			VMOVUPS(bound, top)
			VMINPS(vec, top, vec) // MIN of NaN and a number gives the operand named first here
			VMULPS(vec, vec, y[5*i+4])
			VMOVUPS(p[0], top)
			VMOVUPS(q[0], bottom)
			for term := 1; term < len(p); term++ {
				VFMADD213PS(p[term], y[5*i+4], top)
				VFMADD213PS(q[term], y[5*i+4], bottom)
			}
			VDIVPS(bottom, top, top)
			VMULPS(vec, top, vec)
			// rounding may give more than 1
			VMOVUPS(one, top)
			VMINPS(vec, top, vec)
			VMULPS(limit, vec, vec)
			VORPS(sign, vec, vec)
			VMOVUPS(vec, Mem{Base: out, Disp: 32 * i})
		}
	})
	VZEROUPPER()
	RET()
}

// rope256 computes a*cos-b*sin and b*cos+a*sin.
func rope256() {
	function("rope256", "(a *float32, b *float32, cos *float32, sin *float32, n int)",
		"rotates the pairs (a,b) by the given angles. n is a multiple of 16.")
	left, right, cosine, sine, count := param("a"), param("b"), param("cos"), param("sin"), param("n")
	along("rope", count, 64, []reg.GPVirtual{left, right, cosine, sine}, func() {
		for i := range 2 {
			offset := 32 * i
			VMOVUPS(Mem{Base: left, Disp: offset}, y[0])
			VMOVUPS(Mem{Base: right, Disp: offset}, y[1])
			VMOVUPS(Mem{Base: cosine, Disp: offset}, y[2])
			VMOVUPS(Mem{Base: sine, Disp: offset}, y[3])
			VMULPS(y[2], y[0], y[4])
			VMULPS(y[3], y[1], y[5])
			VSUBPS(y[5], y[4], y[4])
			VMOVUPS(y[4], Mem{Base: left, Disp: offset})
			VMULPS(y[2], y[1], y[1])
			VMULPS(y[3], y[0], y[0])
			VADDPS(y[0], y[1], y[1])
			VMOVUPS(y[1], Mem{Base: right, Disp: offset})
		}
	})
	VZEROUPPER()
	RET()
}

// fromF16256 takes multiples of 8, because heads have such widths: the loop does 16 and a step does
// the rest.
func fromF16256() {
	function("fromF16256", "(dst *float32, src *uint16, n int)", "widens float16. n is a multiple of 8.")
	dst, src, count := param("dst"), param("src"), param("n")
	eight := GP64()
	MOVQ(count, eight)
	loop16("half", count, func() {
		for i := range 2 {
			VCVTPH2PS(Mem{Base: src, Disp: 16 * i}, y[i])
			VMOVUPS(y[i], Mem{Base: dst, Disp: 32 * i})
		}
	}, map[reg.GPVirtual]int{dst: 64, src: 32}, dst, src)
	// a remaining half
	TESTQ(I32(8), eight)
	JZ(LabelRef("half_end"))
	VCVTPH2PS(Mem{Base: src}, y[0])
	VMOVUPS(y[0], Mem{Base: dst})
	Label("half_end")
	VZEROUPPER()
	RET()
}

// fromBF16256 generates the widening of bfloat16: a shift by 16 bits.
func fromBF16256() {
	function("fromBF16256", "(dst *float32, src *uint16, n int)", "widens bfloat16. n is a multiple of 16.")
	dst, src, count := param("dst"), param("src"), param("n")
	loop16("brain", count, func() {
		for i := range 2 {
			VPMOVZXWD(Mem{Base: src, Disp: 16 * i}, y[i])
			VPSLLD(U8(16), y[i], y[i])
			VMOVDQU(y[i], Mem{Base: dst, Disp: 32 * i})
		}
	}, map[reg.GPVirtual]int{dst: 64, src: 32}, dst, src)
	VZEROUPPER()
	RET()
}

// toF16256 finds infinities and NaN by their exponent bits, all ones, and collects them in X2.
func toF16256() {
	function("toF16256", "(dst *uint16, src *float32, n int) uint32",
		"rounds to float16 and returns 0 if all results are finite. n is a multiple of 16.")
	dst, src, count := param("dst"), param("src"), param("n")
	constant := GP32()
	MOVL(U32(0x7c007c00), constant)
	VMOVD(constant, reg.X3)
	VPBROADCASTD(reg.X3, reg.X3)
	VPXOR(reg.X2, reg.X2, reg.X2)
	loop16("half", count, func() {
		for i := range 2 {
			vec := y[i].AsX()
			VMOVUPS(Mem{Base: src, Disp: 32 * i}, y[i])
			VCVTPS2PH(U8(0), y[i], vec)
			VMOVDQU(vec, Mem{Base: dst, Disp: 16 * i})
			VPAND(reg.X3, vec, vec)
			VPCMPEQW(reg.X3, vec, vec)
			VPOR(vec, reg.X2, reg.X2)
		}
	}, map[reg.GPVirtual]int{dst: 32, src: 64}, dst, src)
	result := GP32()
	VPMOVMSKB(reg.X2, result)
	Store(result, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// brain256 writes the rounding of eight numbers in y[0] to bfloat16, in the upper halves of y[0] with any lower ones.
// It uses y[1] to y[3].
func brain256() func() {
	one, half := const32("brainOne256", 1), const32("brainHalf256", 0x7fff)
	quiet, normal := const32("brainQuiet256", 0x400000), const32("brainNormal256", 0x7fffff)
	return func() {
		VPAND(magnitude, y[0], y[1])
		VPCMPGTD(expInf, y[1], y[2]) // NaN
		VPCMPGTD(normal, y[1], y[1]) // not below the normal numbers
		// NaN becomes a quiet one, which only its upper half tells then, and all others get half of a last place.
		VPSRLD(U8(16), y[0], y[3])
		VPAND(one, y[3], y[3])
		VPADDD(half, y[3], y[3])
		VPADDD(y[0], y[3], y[3])
		VPAND(y[1], y[3], y[3])
		VPOR(quiet, y[0], y[1])
		VPBLENDVB(y[2], y[1], y[3], y[3])
		// The sign stays of what is below the normal numbers.
		VPSRLD(U8(31), y[0], y[0])
		VPSLLD(U8(31), y[0], y[0])
		VPOR(y[3], y[0], y[0])
	}
}

// toBF16256 finds infinities and NaN as toF16256 does.
func toBF16256(round func()) {
	function("toBF16256", "(dst *uint16, src *float32, n int) uint32",
		"rounds to bfloat16 and returns 0 if all results are finite. n is a multiple of 16.")
	dst, src, count := param("dst"), param("src"), param("n")
	VPXOR(y[5], y[5], y[5])
	loop16("brainto", count, func() {
		for i := range 2 {
			VMOVUPS(Mem{Base: src, Disp: 32 * i}, y[0])
			round()
			VPAND(expInf, y[0], y[1])
			VPCMPEQD(expInf, y[1], y[1])
			VPOR(y[1], y[5], y[5])
			VPSRLD(U8(16), y[0], y[0])
			VEXTRACTI128(U8(1), y[0], reg.X1)
			VPACKUSDW(reg.X1, reg.X0, reg.X0)
			VMOVDQU(reg.X0, Mem{Base: dst, Disp: 16 * i})
		}
	}, map[reg.GPVirtual]int{dst: 32, src: 64}, dst, src)
	result := GP32()
	VPMOVMSKB(y[5], result)
	Store(result, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// roundBF16256 is toBF16256 in place.
func roundBF16256(round func()) {
	function("roundBF16256", "(x *float32, n int)",
		"rounds numbers to those that are bfloat16 numbers. n is a multiple of 16.")
	x, count := param("x"), param("n")
	loop16("brainround", count, func() {
		for i := range 2 {
			VMOVUPS(Mem{Base: x, Disp: 32 * i}, y[0])
			round()
			VPSRLD(U8(16), y[0], y[0])
			VPSLLD(U8(16), y[0], y[0])
			VMOVUPS(y[0], Mem{Base: x, Disp: 32 * i})
		}
	}, map[reg.GPVirtual]int{x: 64}, x)
	VZEROUPPER()
	RET()
}

// blockSums256 adds 32 bytes with VPSADBW, the sum of differences from zero, and takes 32*128 off.
func blockSums256() {
	function("blockSums256", "(sums *int32, x *uint8, blocks int)",
		"computes the sum of u-128 over each 32 bytes of x.")
	sums, input, count := param("sums"), param("x"), param("blocks")
	VPXOR(y[2], y[2], y[2])
	TESTQ(count, count)
	JZ(LabelRef("sums_done"))
	Label("sums_loop")
	VPSADBW(Mem{Base: input}, y[2], y[0])
	VEXTRACTI128(U8(1), y[0], reg.X1)
	VPADDQ(reg.X1, reg.X0, reg.X0)
	VPSHUFD(U8(0x4e), reg.X0, reg.X1)
	VPADDQ(reg.X1, reg.X0, reg.X0)
	sum := GP32()
	VMOVD(reg.X0, sum)
	SUBL(I32(32*128), sum)
	MOVL(sum, Mem{Base: sums})
	ADDQ(I32(32), input)
	ADDQ(I32(4), sums)
	DECQ(count)
	JNZ(LabelRef("sums_loop"))
	Label("sums_done")
	VZEROUPPER()
	RET()
}

// attention256 writes what attention with 512 bits needs beside products: transposing keys.
func attention256() {
	transpose256("transposeF32", "*float32", func(src Mem, v reg.VecPhysical) { VMOVUPS(src, v) }, 4)
	transpose256("transposeF16", "*uint16", func(src Mem, v reg.VecPhysical) { VCVTPH2PS(src, v) }, 2)
}

// transpose256 writes a function that turns 8 rows of n numbers into 8 columns of a tile, 8x8
// numbers a turn, by three rounds of exchanges. load reads 8 numbers of size bytes as float32.
func transpose256(name, typ string, load func(Mem, reg.VecPhysical), size int) {
	function(name, "(dst *float32, src "+typ+", ld int, n int)",
		"stores 8 rows of n numbers (a multiple of 8), ld bytes apart, as 8 columns of dst [n][32].")
	dst, row, count := param("dst"), param("src"), param("n")
	input := newRows(8)
	Load(Param("ld"), input.ld)
	input.set(row)
	SHRQ(U8(3), count)
	JZ(LabelRef("t_done"))
	Label("t_loop")
	for i := range 8 {
		load(input.at(i, 0), y[i])
	}
	// pairs of rows, then fours, then halves
	for i := 0; i < 8; i += 2 {
		VUNPCKLPS(y[i+1], y[i], y[8+i])
		VUNPCKHPS(y[i+1], y[i], y[9+i])
	}
	for i := 0; i < 8; i += 4 {
		VUNPCKLPD(y[10+i], y[8+i], y[i])
		VUNPCKHPD(y[10+i], y[8+i], y[i+1])
		VUNPCKLPD(y[11+i], y[9+i], y[i+2])
		VUNPCKHPD(y[11+i], y[9+i], y[i+3])
	}
	for i := range 4 {
		VPERM2F128(U8(0x20), y[4+i], y[i], y[8+i])
		VPERM2F128(U8(0x31), y[4+i], y[i], y[12+i])
	}
	for i := range 8 {
		VMOVUPS(y[8+i], Mem{Base: dst, Disp: 128 * i})
	}
	input.advance(8 * size)
	ADDQ(I32(8*128), dst)
	DECQ(count)
	JNZ(LabelRef("t_loop"))
	Label("t_done")
	VZEROUPPER()
	RET()
}
