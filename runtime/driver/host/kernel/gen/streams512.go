package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of streams compute a few rows of several tiles, which they read side by side: a step multiplies
// activations by their weights in each tile. A core whose prefetcher follows several streams keeps more lines on their
// way then. Activations are broadcast once for all tiles. Results have the bits of the kernels of rows.

// The largest number of tiles for 1, 2 and more rows, limited by registers. The callers in package kernel have the same
// numbers.
var (
	streamsInOrder = []int{4, 4, 4, 3} // of kernels with two sums for a row of a tile
	streamsOfSix   = []int{4, 3}
	streamsOfFour  = []int{4, 3, 2}
)

// streams are the tiles of a call.
type streams struct {
	rows, count int  // of activations, and of tiles
	x, tiles    rows // pointers to each row of activations and to each tile

	start, left reg.GPVirtual // the first activation, and the steps that are left
	last, tail  reg.GPVirtual // the parameters of these names, zero when they were used
	ahead       reg.GPVirtual // how many bytes ahead of its use a weight is prefetched
}

// streamKernel is what the kernels of streams differ in.
type streamKernel struct {
	name, scheme string
	activations  int    // of a step
	typ, weight  string // the Go types of an activation and of a weight
	parameters   string // beside those that all kernels have
	more         string // what the comment says of these
	most         []int  // the largest number of tiles for 1 row, 2 and so on
}

// parameterList is the signature.
func (k streamKernel) parameterList() string {
	return "(shape int, y *float32, ldy int, x *" + k.typ + ", ldx int, steps int, last int, tail *" + k.typ +
		", w *" + k.weight + ", pitch int, ahead int, jump int" + k.parameters + ")"
}

// shapes are the numbers of rows and tiles that the kernel has a body for, as 10*rows+tiles. One tile alone is the last
// of an odd number where at most two are taken.
func (k streamKernel) shapes() (all []int) {
	for row, most := range k.most {
		least := 2
		if most == 2 {
			least = 1
		}
		for tiles := least; tiles <= most; tiles++ {
			all = append(all, 10*(row+1)+tiles)
		}
	}
	return all
}

// emit writes the function, with body for each number of rows and tiles.
func (k streamKernel) emit(body func(id string, s *streams)) {
	doc := []string{
		fmt.Sprintf("computes rows of several %s tiles, which are pitch bytes apart, into y [rows][32*tiles].",
			k.scheme),
		fmt.Sprintf("shape is 10*rows+tiles, with 1..%d rows and 2..%d tiles, fewer for many rows. x holds",
			len(k.most), k.most[0]),
		fmt.Sprintf("%d*(steps+last) of each row's activations; tail is nil or [rows][%d] more of them. Each tile is",
			k.activations, k.activations),
		"prefetched ahead bytes before its use, in the last steps jump bytes further on. Strides are in bytes.",
	}
	if k.more != "" {
		doc = append(doc, k.more)
	}
	function(k.name, k.parameterList(), doc...)
	shapes := k.shapes()
	shape := Load(Param("shape"), GP64())
	for _, form := range shapes[1:] {
		CMPQ(shape, I8(form))
		JEQ(LabelRef(label("shape", form)))
	}
	for _, form := range shapes {
		Label(label("shape", form))
		s := &streams{rows: form / 10, count: form % 10}
		s.tiles = rows{ld: param("pitch"), own: true}
		for range s.count {
			s.tiles.base = append(s.tiles.base, GP64())
		}
		s.tiles.set(param("w"))
		s.x = newRows(s.rows)
		Load(Param("ldx"), s.x.ld)
		s.start, s.left = param("x"), param("steps")
		s.ahead, s.last, s.tail = param("ahead"), param("last"), param("tail")
		body(label(k.name, form), s)
		VZEROUPPER()
		RET()
	}
}

// weights is the operand disp bytes into a tile.
func (s *streams) weights(tile, disp int) Mem { return s.tiles.at(tile, disp) }

// fetch prefetches what is ahead of the operand of that displacement.
func (s *streams) fetch(tile, disp int) {
	PREFETCHT0(Mem{Base: s.tiles.base[tile], Index: s.ahead, Scale: 1, Disp: disp})
}

// sum is one of the first registers, that of 16 columns of a row.
func (s *streams) sum(row, tile, half int) reg.VecPhysical { return z[2*(row*s.count+tile)+half] }

// sumCount is the number of these registers.
func (s *streams) sumCount() int { return 2 * s.rows * s.count }

// each emits body for each of them.
func (s *streams) each(body func(row, tile, half int)) {
	for row := range s.rows {
		for tile := range s.count {
			for half := range 2 {
				body(row, tile, half)
			}
		}
	}
}

// loop emits a loop over all steps of xBytes of activations and wBytes of each tile. next emits what else is moved on
// after a step, and padded what else must point at the tail, of pitch bytes for each row.
func (s *streams) loop(id string, unroll, xBytes, wBytes int, step func(i int), next func(), pitch int, padded func()) {
	s.x.set(s.start)
	Label(id + "_start")
	steps(id, s.left, unroll, step, func(count int) {
		s.x.advance(count * xBytes)
		s.tiles.advance(count * wBytes)
		next()
	})
	TESTQ(s.last, s.last)
	JZ(LabelRef(id + "_tail"))
	MOVQ(s.last, s.left)
	XORQ(s.last, s.last)
	ADDQ(param("jump"), s.ahead)
	JMP(LabelRef(id + "_start"))
	Label(id + "_tail")
	TESTQ(s.tail, s.tail)
	JZ(LabelRef(id + "_end"))
	MOVQ(I32(pitch), s.x.ld)
	s.x.set(s.tail)
	padded()
	XORQ(s.tail, s.tail)
	MOVQ(I32(1), s.left)
	JMP(LabelRef(id + "_start"))
	Label(id + "_end")
}

// store stores the sums of each row. finish emits what is done with those of a row before.
func (s *streams) store(finish func(row int)) {
	out, ldy := param("y"), param("ldy")
	alongRows(s.rows, out, ldy, func(row int, output reg.GPVirtual) {
		finish(row)
		for tile := range s.count {
			for half := range 2 {
				VMOVUPS(s.sum(row, tile, half), Mem{Base: output, Disp: 128*tile + 64*half})
			}
		}
	})
}

// scaled stores the sums, which convert makes integers without offsets, times the scales of their row and columns,
// which the tiles point to.
func (s *streams) scaled(factor, scale reg.VecPhysical, convert func(sum reg.VecPhysical, tile, half int)) {
	scales := param("xscale")
	s.store(func(row int) {
		VBROADCASTSS(Mem{Base: scales, Disp: 4 * row}, scale)
		for tile := range s.count {
			for half := range 2 {
				sum := s.sum(row, tile, half)
				convert(sum, tile, half)
				VCVTDQ2PS(sum, sum)
				VMULPS(s.weights(tile, 64*half), scale, factor)
				VMULPS(factor, sum, sum)
			}
		}
	})
}

func nothing() {}

// streams512 generates the kernels of streams.
func streams512() {
	q8cStreams512()
	q6cStreams512()
	q4Streams512("q4Streams512", 32)
	q4Streams512("q4x128Streams512", 128)
	f32Streams512()
	bf16Streams512()
}

// q8cStreams512 multiplies by VPDPBUSD. Few sums have two registers each, so that the instruction's latency does not
// show.
func q8cStreams512() {
	kernel := streamKernel{name: "q8cStreams512", scheme: "q8c", activations: 4, typ: "uint8", weight: "uint8",
		parameters: ", xscale *float32", most: streamsInOrder}
	kernel.emit(func(id string, s *streams) {
		sets := 1
		if s.sumCount() <= 6 {
			sets = 2
		}
		acts, w := z[24:28], [2]reg.VecPhysical{z[28], z[29]}
		zero512(z[:sets*s.sumCount()]...)
		s.loop(id, 4, 4, 128, func(i int) {
			for row := range s.rows {
				VPBROADCASTD(s.x.at(row, 4*i), acts[(s.rows*i+row)%4])
			}
			for tile := range s.count {
				for half, weights := range w {
					s.fetch(tile, 128*i+64*half)
					VMOVDQU64(s.weights(tile, 128*i+64*half), weights)
					for row := range s.rows {
						sum := s.sum(row, tile, half)
						if i%sets == 1 {
							sum = z[s.sumCount()+2*(row*s.count+tile)+half]
						}
						VPDPBUSD(weights, acts[(s.rows*i+row)%4], sum)
					}
				}
			}
		}, nothing, 4, nothing)
		if sets == 2 {
			for i := range s.sumCount() {
				VPADDD(z[s.sumCount()+i], z[i], z[i])
			}
		}
		// y = float32(sum - 128*colsum) * (xscale*scale)
		offset := z[30]
		s.scaled(z[28], z[29], func(sum reg.VecPhysical, tile, half int) {
			VPSLLD(I8(7), s.weights(tile, 128+64*half), offset)
			VPSUBD(offset, sum, sum)
		})
	})
}

// q6cStreams512 unpacks codes as q6cRows512 does.
func q6cStreams512() {
	kernel := streamKernel{name: "q6cStreams512", scheme: "q6c", activations: sixRows, typ: "uint8", weight: "uint8",
		parameters: ", xscale *float32, start *int32", most: streamsOfSix,
		more: "start is what the sums of each row begin at."}
	kernel.emit(func(id string, s *streams) {
		acts, low, six, c80 := z[12:20], z[20], z[21], z[22]
		nibbles, high, codes, shifted := z[23], z[24], z[25:29], z[29]
		broadcast32(0x0f0f0f0f, low)
		broadcast32(0x3f3f3f3f, six)
		broadcast32(0x80808080, c80)
		start := param("start")
		s.each(func(row, tile, half int) {
			VPBROADCASTD(Mem{Base: start, Disp: 4 * row}, s.sum(row, tile, half))
		})
		s.loop(id, 1, sixRows, sixGroup, func(int) {
			for row := range s.rows {
				for quad := range 4 {
					VPXORD_BCST(s.x.at(row, 4*quad), c80, acts[4*row+quad])
				}
			}
			for tile := range s.count {
				for half := range 2 {
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
						nibble := nibbles
						if quad%2 == 0 {
							VMOVDQU64(s.weights(tile, sixPlane*(quad/2)+64*half), nibbles)
						} else {
							nibble = shifted
							VPSRLD(I8(4), nibbles, shifted)
						}
						VPTERNLOGD(U8(0xd8), low, nibble, code) // the nibble where low is 1
						VPANDD(six, code, code)
						for row := range s.rows {
							VPDPBUSD(acts[4*row+quad], code, s.sum(row, tile, half))
						}
					}
				}
			}
		}, nothing, sixRows, nothing)
		// y = float32(sum) * (xscale*scale)
		s.scaled(z[28], z[29], func(reg.VecPhysical, int, int) {})
	})
}

// q4Streams512 multiplies 16*nibble, unsigned, by signed activations. The offset of the nibbles, 8 times the sum of a
// block's activations, is the same for all columns, so the sums of a block start at its negative. The factor 16 is
// removed at the end, exactly.
func q4Streams512(name string, block int) {
	pitch, more := block, "sums are those of each 32 activations."
	if block != 32 {
		pitch += 4 * block / 32
		more = fmt.Sprintf("sums are those of each 32 activations; the %d of a row of tail follow it.", block/32)
	}
	kernel := streamKernel{name: name, scheme: fmt.Sprintf("q4b%d", block), activations: block, typ: "uint8",
		weight: "uint8", parameters: ", xscale *float32, sums *int32, ldsums int", most: streamsOfFour, more: more}
	kernel.emit(func(id string, s *streams) {
		k := newQ4Streams(s, block)
		s.loop(id, 1, 0, 64, func(int) {
			k.begin()
			inSteps(id, block, k.multiply)
			k.accumulate()
		}, func() { k.sums.advance(4 * block / 32) }, pitch, func() {
			if block != 32 {
				MOVQ(s.x.ld, k.sums.ld)
				ADDQ(I32(block), s.tail)
				k.sums.set(s.tail)
			}
		})
		k.store()
	})
}

// q4Streams is q4Streams512 for some rows and tiles.
type q4Streams struct {
	*streams
	block          int  // weights that share a scale
	sums           rows // sums of activations
	unpacked, acts []reg.VecPhysical
	offset         reg.VecPhysical
	c80, cF0       reg.VecPhysical
}

// newQ4Streams chooses registers, more of them for one row, and begins the float32 sums.
func newQ4Streams(s *streams, block int) q4Streams {
	k := q4Streams{
		streams: s, block: block, sums: newRows(s.rows),
		unpacked: z[24:26], acts: z[26:29], offset: z[29], c80: z[30], cF0: z[31],
	}
	if s.rows == 1 {
		k.unpacked, k.acts = z[16:24], z[24:28]
	}
	Load(Param("ldsums"), k.sums.ld)
	k.sums.set(param("sums"))
	broadcast32(0x80808080, k.c80)
	broadcast32(0xf0f0f0f0, k.cF0)
	zero512(z[:s.sumCount()]...)
	return k
}

// dot is the register of the integer sums of a block.
func (k q4Streams) dot(row, tile, half int) reg.VecPhysical {
	return z[k.sumCount()+2*(row*k.count+tile)+half]
}

// begin starts the integer sums of a block at -128 times the sum of its activations: 16 times 8 of them.
func (k q4Streams) begin() {
	zero := k.unpacked[0]
	zero512(zero)
	for row := range k.rows {
		VPBROADCASTD(k.sums.at(row, 0), k.offset)
		for i := 1; i < k.block/32; i++ {
			VPADDD_BCST(k.sums.at(row, 4*i), k.offset, k.offset)
		}
		VPSLLD(I8(7), k.offset, k.offset)
		for tile := range k.count {
			for half := range 2 {
				VPSUBD(k.offset, zero, k.dot(row, tile, half))
			}
		}
	}
}

// multiply takes 32 rows of the weights.
func (k q4Streams) multiply() {
	for quad := range 8 {
		act := func(row int) reg.VecPhysical { return k.acts[(k.rows*quad+row)%len(k.acts)] }
		for row := range k.rows {
			VPXORD_BCST(k.x.at(row, 4*quad), k.c80, act(row))
		}
		for tile := range k.count {
			turn := 2 * (k.count*quad + tile) % len(k.unpacked)
			low, high := k.unpacked[turn], k.unpacked[turn+1]
			k.fetch(tile, 64*quad)
			VPSLLD(I8(4), k.weights(tile, 64*quad), low)
			VPANDD(k.cF0, low, low)
			VPANDD(k.weights(tile, 64*quad), k.cF0, high)
			for row := range k.rows {
				VPDPBUSD(act(row), low, k.dot(row, tile, 0))
				VPDPBUSD(act(row), high, k.dot(row, tile, 1))
			}
		}
	}
	k.x.advance(32)
	k.tiles.advance(512)
}

// accumulate adds a block's sums, times its scales, to the float32 sums.
func (k q4Streams) accumulate() {
	for tile := range k.count {
		k.fetch(tile, 0) // the line of scales
		for half := range 2 {
			scales := k.unpacked[half]
			VCVTPH2PS(k.weights(tile, 32*half), scales)
			for row := range k.rows {
				dot := k.dot(row, tile, half)
				VCVTDQ2PS(dot, dot)
				VFMADD231PS(scales, dot, k.sum(row, tile, half))
			}
		}
	}
}

// store stores the float32 sums over 16, times the scales of the rows.
func (k q4Streams) store() {
	sixteenth, scale := z[30], z[31]
	broadcast32(0x3d800000, sixteenth)
	scales := param("xscale")
	k.streams.store(func(row int) {
		VBROADCASTSS(Mem{Base: scales, Disp: 4 * row}, scale)
		for tile := range k.count {
			for half := range 2 {
				sum := k.sum(row, tile, half)
				VMULPS(sixteenth, sum, sum)
				VMULPS(scale, sum, sum)
			}
		}
	})
}

// f32Streams512 and bf16Streams512 have one sum per result and k in order, as f32Rows512.
func f32Streams512() {
	kernel := streamKernel{name: "f32Streams512", scheme: "w32", activations: 1, typ: "float32", weight: "float32",
		most: streamsInOrder}
	kernel.emit(func(id string, s *streams) {
		acts, w := z[24:28], [2]reg.VecPhysical{z[28], z[29]}
		zero512(z[:s.sumCount()]...)
		s.loop(id, 4, 4, 128, func(i int) {
			for row := range s.rows {
				VBROADCASTSS(s.x.at(row, 4*i), acts[(s.rows*i+row)%4])
			}
			for tile := range s.count {
				for half, weights := range w {
					s.fetch(tile, 128*i+64*half)
					VMOVUPS(s.weights(tile, 128*i+64*half), weights)
					for row := range s.rows {
						VFMADD231PS(acts[(s.rows*i+row)%4], weights, s.sum(row, tile, half))
					}
				}
			}
		}, nothing, 4, nothing)
		s.store(func(int) {})
	})
}

// bf16Streams512 widens weights as bf16Rows512 does.
func bf16Streams512() {
	kernel := streamKernel{name: "bf16Streams512", scheme: "w16", activations: 1, typ: "float32", weight: "uint16",
		most: streamsInOrder}
	kernel.emit(func(id string, s *streams) {
		acts, w, upper := z[24:28], [2]reg.VecPhysical{z[28], z[29]}, z[31]
		broadcast32(0xffff0000, upper)
		zero512(z[:s.sumCount()]...)
		s.loop(id, 4, 4, 64, func(i int) {
			for row := range s.rows {
				VBROADCASTSS(s.x.at(row, 4*i), acts[(s.rows*i+row)%4])
			}
			for tile := range s.count {
				s.fetch(tile, 64*i)
				VPSLLD(I8(16), s.weights(tile, 64*i), w[0])
				VPANDD(s.weights(tile, 64*i), upper, w[1])
				for row := range s.rows {
					for half, weights := range w {
						VFMADD231PS(acts[(s.rows*i+row)%4], weights, s.sum(row, tile, half))
					}
				}
			}
		}, nothing, 4, nothing)
		s.store(func(int) {})
	})
}
