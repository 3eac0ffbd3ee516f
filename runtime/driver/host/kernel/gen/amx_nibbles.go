package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Products of packed rows with 4-bit weights. Every block has its own scale, so that the tile of its sums is stored, and
// vector instructions make float32 numbers of it and add them, scaled, to the sums in memory. A block of 32 fills half
// of a tile's 64 bytes, which takes as long as all of it. Tiles of bfloat16, whose sums need no conversion, were not
// faster: a store waits longer for them.
//
// A step of a kernel keeps the weights of 32 columns in four tiles, and walks over groups of up to 16 rows: two tiles of
// activations are loaded for four products. On an Intel Xeon (Emerald Rapids class) a load or a product takes 24 cycles
// and more while the other hardware thread of the core is busy, as if there were no tiles left for renaming, and a store
// or a zero nothing. While it is idle, a product takes 16 cycles, in which as many vector multiply-adds can begin.
//
// The instructions of a group are mixed with the vector instructions for the group before, and a tile is stored when
// the next products have begun. So neither waits for the other. A store right behind its product made both last longer
// by half.
const (
	nibbleSum0, nibbleSum1 = 0, 1 // sums of products in turn
	nibbleX0, nibbleX1     = 2, 3 // activations of both halves of a step's k
	nibbleW                = 4    // weights: columns 0..15 and 16..31 of the first half, then those of the second
)

// nibbleTiles is one kernel.
type nibbleTiles struct {
	name  string
	block int
}

// pairs reports whether a step is two blocks, or one that fills two tiles.
func (n nibbleTiles) pairs() bool { return n.block == 32 }

// tileNibbles generates the kernels of 4-bit weights.
func tileNibbles() {
	tileSteps("tileSteps32", 32)
	tileSteps("tileSteps64", 64)
	tileUnpack("tileUnpack32", 32)
	tileUnpack("tileUnpack128", 128)
	nibbleTiles{"q4TilesAMX", 32}.generate()
	nibbleTiles{"q4x128TilesAMX", 128}.generate()
	q4Scale()
}

// generate emits the kernel.
func (n nibbleTiles) generate() {
	TEXT(n.name, NOSPLIT, "func(config *byte, groups int, x *byte, pitch int, next int, advance int, panel *byte, steps int, dots *int32, sums *float32, spare *float32, w *byte, fetch int, y *float32, ldy int)")
	what := "one unpacked block each"
	if n.pairs() {
		what = "two unpacked blocks each"
	}
	Doc(n.name+" adds products of groups of rows with steps (at least 1), "+what+", to sums [groups][2][16][16].",
		"x is the first tile of activations, next bytes before the other one of the step, advance before the next step and",
		"pitch before the next group. dots is room for 1024 integers and spare for the sums of a group. config is the shape",
		"of the tiles. Lines are prefetched from w on, fetch bytes further for each group of each step, and two lines of each",
		"of two rows of y, ldy bytes apart, to be written.")
	Pragma("noescape")
	stride, groups, steps, ahead := reg.RAX, reg.RCX, reg.RDX, reg.RBX
	x, x1, stepX := reg.RSI, reg.R9, reg.R8
	results := reg.R11
	sums, before, panel, scales, dots := reg.RDI, reg.R10, reg.R13, reg.R12, reg.R15
	load("config", reg.RAX)
	tileConfigure()
	load("x", stepX)
	load("panel", panel)
	load("steps", steps)
	load("dots", dots)
	load("spare", before)
	load("w", ahead)
	load("y", results)
	MOVQ(panel, scales)
	MOVQ(I32(64), stride)
	strideX := stride
	if n.pairs() {
		strideX = reg.R14
		MOVQ(I32(32), strideX)
	}

	Label("step")
	n.loadWeights(panel, x1, stride)
	MOVQ(stepX, x)
	load("sums", sums)
	load("groups", groups)
	Label("group")
	MOVQ(x, x1)
	ADDQ(inPlace("next"), x1)
	for line := range nibbleLines {
		PREFETCHT1(Mem{Base: ahead, Disp: 64 * line})
	}
	ADDQ(inPlace("fetch"), ahead)
	for range nibbleResults {
		prefetchWrite(results, 0)
		prefetchWrite(results, 64)
		ADDQ(inPlace("ldy"), results)
	}
	n.loadScales(scales)
	tile := 16 * min(n.block, 64) // bytes of activations
	vectors := func(from, to int) {
		for line := from / 2; line < min(to/2, tile/64); line++ { // of the next group
			PREFETCHT0(Mem{Base: x, Disp: tile + 64*line})
			PREFETCHT0(Mem{Base: x1, Disp: tile + 64*line})
		}
		for vec := from; vec < to; vec++ {
			n.vector(vec, dots, before)
		}
	}
	w := func(half, columns int) int { return nibbleW + 2*half + columns }
	tileLoad(nibbleX0, x, strideX, 0)
	if n.pairs() {
		tileLoad(nibbleX1, x1, strideX, 0)
	}
	for product := range 4 {
		sum := product % 2
		if n.pairs() { // both blocks of columns 0..15, then those of the others
			tileStore(sum, dots, stride, 1024*((product+2)%4))
			tileClear(sum)
			tileMultiply(sum, nibbleX0+sum, w(sum, product/2))
			vectors(8*product, 8*product+8)
			continue
		}
		if product < 2 {
			tileStore(sum, dots, stride, 1024*product)
			tileClear(sum)
		}
		if product == 2 {
			tileLoad(nibbleX1, x1, strideX, 0)
		}
		tileMultiply(sum, nibbleX0+product/2, w(product/2, sum))
		switch product {
		case 1:
			vectors(0, 8)
		case 2:
			vectors(8, 20)
		case 3:
			vectors(20, 32)
		}
	}
	MOVQ(sums, before)
	MOVQ(panel, scales)
	ADDQ(I32(2048), sums)
	ADDQ(inPlace("pitch"), x)
	DECQ(groups)
	JNZ(LabelRef("group"))
	ADDQ(I32(n.stepBytes()), panel)
	ADDQ(inPlace("advance"), stepX)
	DECQ(steps)
	JNZ(LabelRef("step"))

	for sum := range 2 {
		at := sum
		if n.pairs() {
			at += 2
		}
		tileStore(sum, dots, stride, 1024*at)
	}
	tileRelease()
	n.loadScales(scales)
	vectors(0, 32)
	VZEROUPPER()
	RET()
}

// nibbleLines is the number of lines that are prefetched for each group of each step.
const nibbleLines = 2

// nibbleResults is the number of rows of results that are asked for meanwhile.
const nibbleResults = 2

// stepBytes is the size of the unpacked weights of a step.
func (n nibbleTiles) stepBytes() int {
	if n.pairs() {
		return 2 * spreadBytes(n.block)
	}
	return spreadBytes(n.block)
}

// loadWeights loads the four tiles of weights of a step.
func (n nibbleTiles) loadWeights(panel, quads, stride reg.GPPhysical) {
	half := 2048
	if n.pairs() {
		half = spreadBytes(n.block)
	}
	MOVQ(I32(128), quads)
	for tile := range 4 {
		tileLoad(nibbleW+tile, panel, quads, tile/2*half+tile%2*64)
	}
}

// loadScales loads the scales of a step: those of both halves of the columns in z28 and z29, and of the second block in
// z30 and z31.
func (n nibbleTiles) loadScales(panel reg.GPPhysical) {
	for i := range n.stepBytes() / spreadBytes(n.block) {
		for half := range 2 {
			VMOVUPS(Mem{Base: panel, Disp: (i+1)*spreadBytes(n.block) - 128 + 64*half}, z[28+2*i+half])
		}
	}
}

// vector adds the dots of a row and 16 columns, which their scales make float32, to its sum.
func (n nibbleTiles) vector(vec int, dots, sums reg.GPPhysical) {
	half := vec / 16
	sum := Mem{Base: sums, Disp: 64 * vec}
	if !n.pairs() {
		total := z[vec%28]
		VCVTDQ2PS(Mem{Base: dots, Disp: 64 * vec}, total)
		VFMADD213PS(sum, z[28+half], total)
		VMOVUPS(total, sum)
		return
	}
	at := 2048*half + 64*(vec%16)
	total, second := z[vec%14], z[14+vec%14]
	VCVTDQ2PS(Mem{Base: dots, Disp: at}, total)
	VCVTDQ2PS(Mem{Base: dots, Disp: at + 1024}, second)
	VFMADD213PS(sum, z[28+half], total)
	VFMADD231PS(z[30+half], second, total)
	VMOVUPS(total, sum)
}

// tileUnpack unpacks 4-bit blocks: 16*(nibble-8) as int8, and scales over 16, in the places of spreadBytes.
func tileUnpack(name string, block int) {
	TEXT(name, NOSPLIT, "func(panel *byte, w *byte, blocks int)")
	Doc(fmt.Sprintf("%s unpacks blocks (at least 1) of a q4b%d tile, %d bytes each:", name, block, spreadBytes(block)),
		fmt.Sprintf("[%d][32][4] int8 of 16*(nibble-8), and the scales of the columns over 16.", block/4))
	Pragma("noescape")
	panel, weights, count := param("panel"), param("w"), param("blocks")
	lo, hi, c80, cF0, sixteenth := z[0], z[1], z[2], z[3], z[4]
	broadcast32(0x80808080, c80)
	broadcast32(0xf0f0f0f0, cF0)
	broadcast32(0x3d800000, sixteenth)
	Label("block")
	quads := GP64()
	MOVQ(I32(block/32), quads)
	Label("quads")
	for quad := range 8 {
		VMOVDQU64(Mem{Base: weights, Disp: 64 * quad}, hi)
		VPSLLD(I8(4), hi, lo)
		VPTERNLOGD(U8(0x6a), c80, cF0, lo) // (lo & f0) ^ 80
		VPTERNLOGD(U8(0x6a), c80, cF0, hi)
		VMOVDQU64(lo, Mem{Base: panel, Disp: 128 * quad})
		VMOVDQU64(hi, Mem{Base: panel, Disp: 128*quad + 64})
	}
	ADDQ(I32(512), weights)
	ADDQ(I32(1024), panel)
	DECQ(quads)
	JNZ(LabelRef("quads"))
	for half := range 2 {
		VCVTPH2PS(Mem{Base: weights, Disp: 32 * half}, lo)
		VMULPS(sixteenth, lo, lo)
		VMOVUPS(lo, Mem{Base: panel, Disp: 64 * half})
	}
	ADDQ(I32(64), weights)
	ADDQ(I32(128), panel)
	DECQ(count)
	JNZ(LabelRef("block"))
	VZEROUPPER()
	RET()
}

// tileSteps packs rows for steps of two tiles, each of which has so many activations of a row.
func tileSteps(name string, width int) {
	TEXT(name, NOSPLIT, "func(dst *byte, pitch int, advance int, x *uint8, turns int)")
	Doc(fmt.Sprintf("%s writes turns (at least 1) times %d activations of a row x as signed bytes: half of them to dst, half to", name, 2*width),
		"pitch bytes behind it, and the next ones advance bytes behind those.")
	Pragma("noescape")
	dst, second, advance, x, count := param("dst"), param("pitch"), param("advance"), param("x"), param("turns")
	broadcast32(0x80808080, z[0])
	ADDQ(dst, second)
	Label("turn")
	for half, to := range []reg.Register{dst, second} {
		from := Mem{Base: x, Disp: width * half}
		if width == 32 {
			VPXORD(from, z[0].AsY(), z[1+half].AsY())
			VMOVDQU(z[1+half].AsY(), Mem{Base: to})
		} else {
			VPXORD(from, z[0], z[1+half])
			VMOVDQU64(z[1+half], Mem{Base: to})
		}
	}
	ADDQ(I32(2*width), x)
	ADDQ(advance, dst)
	ADDQ(advance, second)
	DECQ(count)
	JNZ(LabelRef("turn"))
	VZEROUPPER()
	RET()
}

// q4Scale makes results of the float sums of one group.
func q4Scale() {
	TEXT("q4ScaleAMX", NOSPLIT, "func(rows int, y *float32, ldy int, sums *float32, xscale *float32)")
	Doc("q4ScaleAMX writes sums [2][16][16] of rows (1..16) rows, times xscale of the row, to y [rows][32]. ldy is in",
		"bytes.")
	Pragma("noescape")
	alongTile(func(sums, output, scale reg.GPVirtual) {
		VBROADCASTSS(Mem{Base: scale}, z[0])
		for half := range 2 {
			VMULPS(Mem{Base: sums, Disp: 1024 * half}, z[0], z[1+half])
			VMOVUPS(z[1+half], Mem{Base: output, Disp: 64 * half})
		}
	})
}
