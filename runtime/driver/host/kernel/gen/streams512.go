package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of streams compute one row of several tiles, which they read side by side: a step multiplies an activation
// by its weights in each of them. A core whose prefetcher follows several streams keeps more lines on their way then.
// Activations are broadcast once for all tiles. Results have the bits of the kernels of rows.
const (
	leastStreams = 2
	mostStreams  = 4
)

// streams are the tiles of a call: a pointer to each, and how far ahead of it requests are.
type streams struct {
	tiles             rows
	ahead, last, tail reg.GPVirtual
	x, count          reg.GPVirtual
}

// streamFunction emits a kernel for each number of tiles. The loop's step is emitted by body.
func streamFunction(name, typ, weight, more string, body func(id string, s *streams, tiles int), doc ...string) {
	function(name, "(tiles int, y *float32, x *"+typ+", steps int, last int, tail *"+typ+
		", w *"+weight+", pitch int, ahead int, jump int"+more+")", doc...)
	dispatchOver("tiles", leastStreams, mostStreams, func(tiles int) {
		s := &streams{tiles: rows{ld: param("pitch"), own: true}}
		for range tiles {
			s.tiles.base = append(s.tiles.base, GP64())
		}
		s.tiles.set(param("w"))
		s.ahead, s.last, s.tail = param("ahead"), param("last"), param("tail")
		s.x, s.count = param("x"), param("steps")
		body(label(name, tiles), s, tiles)
		VZEROUPPER()
		RET()
	})
}

// streamDoc describes the parameters that all kernels of streams have. What a step is comes first.
func streamDoc(what, step string) []string {
	return []string{
		fmt.Sprintf("computes one row of tiles (%d..%d) %s tiles, pitch bytes apart, into y [tiles][32]. A step is", leastStreams, mostStreams, what),
		step + ", and tail nil or those of one more. It prefetches each tile ahead",
		"bytes before its use, in the last steps, behind steps others, jump bytes further on.",
	}
}

// weights is the operand disp bytes into a tile.
func (s *streams) weights(tile, disp int) Mem { return s.tiles.at(tile, disp) }

// fetch prefetches what is ahead of the operand of that displacement.
func (s *streams) fetch(tile, disp int) {
	PREFETCHT0(Mem{Base: s.tiles.base[tile], Index: s.ahead, Scale: 1, Disp: disp})
}

// loop emits a loop over all steps of xBytes of activations and wBytes of each tile. padded emits what else must point
// at the tail.
func (s *streams) loop(id string, unroll, xBytes, wBytes int, step func(i int), next, padded func()) {
	Label(id + "_start")
	steps(id, s.count, unroll, step, func(count int) {
		ADDQ(I32(count*xBytes), s.x)
		s.tiles.advance(count * wBytes)
		next()
	})
	TESTQ(s.last, s.last)
	JZ(LabelRef(id + "_tail"))
	MOVQ(s.last, s.count)
	XORQ(s.last, s.last)
	ADDQ(param("jump"), s.ahead)
	JMP(LabelRef(id + "_start"))
	Label(id + "_tail")
	TESTQ(s.tail, s.tail)
	JZ(LabelRef(id + "_end"))
	MOVQ(s.tail, s.x)
	XORQ(s.tail, s.tail)
	MOVQ(I32(1), s.count)
	padded()
	JMP(LabelRef(id + "_start"))
	Label(id + "_end")
}

// eachHalf emits body for the 16 columns in each register of sums of all tiles.
func eachHalf(tiles int, body func(tile, half int)) {
	for tile := range tiles {
		for half := range 2 {
			body(tile, half)
		}
	}
}

// storeHalves stores the first registers, the sums of all tiles.
func storeHalves(tiles int) {
	out := param("y")
	eachHalf(tiles, func(tile, half int) { VMOVUPS(z[2*tile+half], Mem{Base: out, Disp: 128*tile + 64*half}) })
}

// streams512 generates the kernels of streams.
func streams512() {
	q8cStreams512()
	q6cStreams512()
	q4Streams512("q4Streams512", 32)
	q4Streams512("q4x128Streams512", 128)
	f32Streams512()
	bf16Streams512()
}

func nothing() {}

// q8cStreams512 multiplies by VPDPBUSD with weights in memory.
func q8cStreams512() {
	streamFunction("q8cStreams512", "uint8", "uint8", ", xscale *float32", func(id string, s *streams, tiles int) {
		sets := 1
		if tiles == 2 {
			sets = 2 // so that the instruction's latency does not show
		}
		acc := func(set, tile, half int) reg.VecPhysical { return z[2*(set*tiles+tile)+half] }
		acts, scale, factor, offset := z[24:28], z[28], z[29], z[30]
		zero512(z[:2*tiles*sets]...)
		s.loop(id, 4, 4, 128, func(i int) {
			VPBROADCASTD(Mem{Base: s.x, Disp: 4 * i}, acts[i])
			eachHalf(tiles, func(tile, half int) {
				s.fetch(tile, 128*i+64*half)
				VPDPBUSD(s.weights(tile, 128*i+64*half), acts[i], acc(i%sets, tile, half))
			})
		}, nothing, nothing)
		// y = float32(acc - 128*colsum) * (xscale*scale)
		xscale := param("xscale")
		VBROADCASTSS(Mem{Base: xscale}, scale)
		eachHalf(tiles, func(tile, half int) {
			dst := acc(0, tile, half)
			if sets == 2 {
				VPADDD(acc(1, tile, half), dst, dst)
			}
			VPSLLD(I8(7), s.weights(tile, 128+64*half), offset)
			VPSUBD(offset, dst, dst)
			VCVTDQ2PS(dst, dst)
			VMULPS(s.weights(tile, 64*half), scale, factor)
			VMULPS(factor, dst, dst)
		})
		storeHalves(tiles)
	}, streamDoc("q8c", "4 activations")...)
}

// q6cStreams512 unpacks codes as q6cRows512 does.
func q6cStreams512() {
	streamFunction("q6cStreams512", "uint8", "uint8", ", xscale *float32, start *int32", func(id string, s *streams, tiles int) {
		acc := func(tile, half int) reg.VecPhysical { return z[2*tile+half] }
		low, six, c80, acts := z[16], z[17], z[18], z[28:32]
		nibbles, high, codes := z[19], z[20], z[21:28]
		broadcast32(0x0f0f0f0f, low)
		broadcast32(0x3f3f3f3f, six)
		broadcast32(0x80808080, c80)
		start := param("start")
		eachHalf(tiles, func(tile, half int) { VPBROADCASTD(Mem{Base: start}, acc(tile, half)) })
		s.loop(id, 1, sixRows, sixGroup, func(int) {
			for quad, act := range acts {
				VPXORD_BCST(Mem{Base: s.x, Disp: 4 * quad}, c80, act)
			}
			eachHalf(tiles, func(tile, half int) {
				for plane := range 3 {
					s.fetch(tile, sixPlane*plane+64*half)
				}
				VMOVDQU64(s.weights(tile, 2*sixPlane+64*half), high)
				// the high bits of each quad stand above its low ones
				bits := [4]reg.VecPhysical{codes[0], codes[1], high, codes[3]}
				VPSLLD(I8(4), high, bits[0])
				VPSLLD(I8(2), high, bits[1])
				VPSRLD(I8(2), high, bits[3])
				for quad, code := range bits {
					low4 := nibbles
					if quad%2 == 0 {
						VMOVDQU64(s.weights(tile, sixPlane*(quad/2)+64*half), nibbles)
					} else {
						low4 = codes[4]
						VPSRLD(I8(4), nibbles, low4)
					}
					VPTERNLOGD(U8(0xd8), low, low4, code) // the nibble where low is 1
					VPANDD(six, code, code)
					VPDPBUSD(acts[quad], code, acc(tile, half))
				}
			})
		}, nothing, nothing)
		// y = float32(acc) * (xscale*scale)
		scale, factor := z[28], z[29]
		xscale := param("xscale")
		VBROADCASTSS(Mem{Base: xscale}, scale)
		eachHalf(tiles, func(tile, half int) {
			dst := acc(tile, half)
			VCVTDQ2PS(dst, dst)
			VMULPS(s.weights(tile, 64*half), scale, factor)
			VMULPS(factor, dst, dst)
		})
		storeHalves(tiles)
	}, streamDoc("q6c", "16 activations")...)
}

// q4Streams512 multiplies 16*nibble, unsigned, by signed activations. The offset of the nibbles, 8 times the sum of a
// block's activations, is the same for all columns, so the sums of a block start at its negative. The factor 16 is
// removed at the end, exactly.
func q4Streams512(name string, block int) {
	streamFunction(name, "uint8", "uint8", ", xscale *float32, sums *int32", func(id string, s *streams, tiles int) {
		total := func(tile, half int) reg.VecPhysical { return z[2*tile+half] }
		acc := func(tile, half int) reg.VecPhysical { return z[8+2*tile+half] }
		low, high, acts := z[16:20], z[20:24], z[24:28]
		c80, offset, zero, cF0 := z[28], z[29], z[30], z[31]
		sums := param("sums")
		broadcast32(0x80808080, c80)
		broadcast32(0xf0f0f0f0, cF0)
		zero512(zero)
		eachHalf(tiles, func(tile, half int) { zero512(total(tile, half)) })
		s.loop(id, 1, 0, 64, func(int) {
			VPBROADCASTD(Mem{Base: sums}, offset)
			for i := 1; i < block/32; i++ {
				VPADDD_BCST(Mem{Base: sums, Disp: 4 * i}, offset, offset)
			}
			VPSLLD(I8(7), offset, offset)
			eachHalf(tiles, func(tile, half int) { VPSUBD(offset, zero, acc(tile, half)) })
			inSteps(id, block, func() {
				for quad := range 8 {
					act := acts[quad%4]
					VPXORD_BCST(Mem{Base: s.x, Disp: 4 * quad}, c80, act)
					for tile := range tiles {
						turn := (quad*tiles + tile) % 4
						s.fetch(tile, 64*quad)
						VPSLLD(I8(4), s.weights(tile, 64*quad), low[turn])
						VPANDD(cF0, low[turn], low[turn])
						VPANDD(s.weights(tile, 64*quad), cF0, high[turn])
						VPDPBUSD(act, low[turn], acc(tile, 0))
						VPDPBUSD(act, high[turn], acc(tile, 1))
					}
				}
				ADDQ(I32(32), s.x)
				s.tiles.advance(512)
			})
			eachHalf(tiles, func(tile, half int) {
				if half == 0 {
					s.fetch(tile, 0) // the line of scales
				}
				dst, scales := acc(tile, half), low[half]
				VCVTPH2PS(s.weights(tile, 32*half), scales)
				VCVTDQ2PS(dst, dst)
				VFMADD231PS(scales, dst, total(tile, half))
			})
		}, func() { ADDQ(I32(4*block/32), sums) }, func() {
			if block != 32 {
				LEAQ(Mem{Base: s.x, Disp: block}, sums)
			}
		})
		sixteenth, scale := z[30], z[29]
		broadcast32(0x3d800000, sixteenth)
		xscale := param("xscale")
		VBROADCASTSS(Mem{Base: xscale}, scale)
		eachHalf(tiles, func(tile, half int) {
			dst := total(tile, half)
			VMULPS(sixteenth, dst, dst)
			VMULPS(scale, dst, dst)
		})
		storeHalves(tiles)
	}, q4StreamDoc(block)...)
}

// q4StreamDoc says where the sums of activations are.
func q4StreamDoc(block int) []string {
	doc := streamDoc(fmt.Sprintf("q4b%d", block), fmt.Sprintf("%d activations", block))
	last := "sums are those of each 32 activations"
	if block != 32 {
		last += fmt.Sprintf("; the %d of the tail follow it", block/32)
	}
	return append(doc, last+".")
}

// f32Streams512 and bf16Streams512 have one accumulator per result and k in order, as f32Rows512.
func f32Streams512() {
	streamFunction("f32Streams512", "float32", "float32", "", func(id string, s *streams, tiles int) {
		acts := z[24:28]
		zero512(z[:2*tiles]...)
		s.loop(id, 4, 4, 128, func(i int) {
			VBROADCASTSS(Mem{Base: s.x, Disp: 4 * i}, acts[i])
			eachHalf(tiles, func(tile, half int) {
				s.fetch(tile, 128*i+64*half)
				VFMADD231PS(s.weights(tile, 128*i+64*half), acts[i], z[2*tile+half])
			})
		}, nothing, nothing)
		storeHalves(tiles)
	}, streamDoc("w32", "one activation")...)
}

func bf16Streams512() {
	streamFunction("bf16Streams512", "float32", "uint16", "", func(id string, s *streams, tiles int) {
		upper, acts := z[31], z[24:28]
		broadcast32(0xffff0000, upper)
		zero512(z[:2*tiles]...)
		s.loop(id, 4, 4, 64, func(i int) {
			VBROADCASTSS(Mem{Base: s.x, Disp: 4 * i}, acts[i])
			for tile := range tiles {
				first, second := z[16+2*(tile%4)], z[17+2*(tile%4)]
				s.fetch(tile, 64*i)
				VPSLLD(I8(16), s.weights(tile, 64*i), first)
				VPANDD(s.weights(tile, 64*i), upper, second)
				VFMADD231PS(first, acts[i], z[2*tile])
				VFMADD231PS(second, acts[i], z[2*tile+1])
			}
		}, nothing, nothing)
		storeHalves(tiles)
	}, streamDoc("w16", "one activation")...)
}
