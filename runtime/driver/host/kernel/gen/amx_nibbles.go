package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Products of packed rows with 4-bit weights. Every block has its own scale, so that the tile of its sums is stored,
// and vector instructions make float32 numbers of it and add them, scaled, to the sums in memory. A block of 32 fills
// half of a tile's 64 bytes, which takes as long as all of it. Tiles of bfloat16, whose sums need no conversion, were
// not faster: a store waits longer for them.
//
// A step of a kernel keeps the weights of 32 columns in four tiles, and walks over groups of up to 16 rows: two tiles
// of activations are loaded for four products. On an Intel Xeon (Emerald Rapids class) a load or a product takes 24
// cycles and more while the other hardware thread of the core is busy, as if there were no tiles left for renaming, and
// a store or a zero nothing. While it is idle, a product takes 16 cycles, in which as many vector multiply-adds can
// begin.
//
// The instructions of a group are mixed with the vector instructions for the group before, and a tile is stored when
// the next products have begun. So neither waits for the other. A store right behind its product made both last longer
// by half.
const (
	nibbleSum0, nibbleSum1 = 0, 1 // sums of products in turn
	nibbleX0, nibbleX1     = 2, 3 // activations of both halves of a step's k
	nibbleW                = 4    // weights: columns 0..15 and 16..31 of the first half, then those of the second
)

// nibbleVectors is the number of vectors of float sums of a group: 16 rows of 32 columns.
const nibbleVectors = 32

// nibbleLines is the number of lines of weights that are prefetched for each group of each step. The callers in package
// kernel have the same number.
const nibbleLines = 2

// nibbleResults is the number of rows of results that are prefetched meanwhile.
const nibbleResults = 2

// tileNibbles generates the kernels of 4-bit weights.
func tileNibbles() {
	tileSteps("tileSteps32", 32)
	tileSteps("tileSteps64", 64)
	tileUnpack("tileUnpack32", 32)
	tileUnpack("tileUnpack128", 128)
	newNibbleTiles("q4TilesAMX", 32).generate()
	newNibbleTiles("q4x128TilesAMX", 128).generate()
	q4Scale()
}

// nibbleTiles is one kernel and its registers. Those of a group move on with each group, those of a step with each
// step.
type nibbleTiles struct {
	name  string
	block int

	groups, steps   reg.GPPhysical // that are left
	stride, strideX reg.GPPhysical // bytes from row to row of a tile of integer sums, and of activations

	x, otherX, stepX reg.GPPhysical // activations: both tiles of a group, and the first tile of the step
	panel, scales    reg.GPPhysical // unpacked weights of the step, and those of the group whose sums are made now
	dots             reg.GPPhysical // integer sums, stored by tiles and read by vectors
	sums, before     reg.GPPhysical // float sums of the group, and of the one before it

	ahead, results reg.GPPhysical // what is prefetched: packed weights, and rows of results
}

// newNibbleTiles chooses the registers of a kernel. The tiles of blocks of 32 are half as wide.
func newNibbleTiles(name string, block int) nibbleTiles {
	n := nibbleTiles{
		name: name, block: block,
		groups: reg.RCX, steps: reg.RDX, stride: reg.RAX, strideX: reg.RAX,
		x: reg.RSI, otherX: reg.R9, stepX: reg.R8, panel: reg.R13, scales: reg.R12, dots: reg.R15,
		sums: reg.RDI, before: reg.R10, ahead: reg.RBX, results: reg.R11,
	}
	if n.pairs() {
		n.strideX = reg.R14
	}
	return n
}

// pairs reports whether a step is two blocks, or one that fills two tiles.
func (n nibbleTiles) pairs() bool { return n.block == 32 }

// stepBytes is the size of the unpacked weights of a step.
func (n nibbleTiles) stepBytes() int {
	if n.pairs() {
		return 2 * spreadBytes(n.block)
	}
	return spreadBytes(n.block)
}

// generate emits the kernel: a loop over steps, each of which goes over all groups of rows.
//
// The float sums of a group are made while the next one is multiplied, and those of the last one behind the loops. The
// first group of all has none before it: its vectors add what happens to lie in dots to spare room.
func (n nibbleTiles) generate() {
	n.declare()
	n.begin()

	Label("step")
	n.loadWeights()
	MOVQ(n.stepX, n.x)
	load("sums", n.sums)
	load("groups", n.groups)

	Label("group")
	MOVQ(n.x, n.otherX)
	ADDQ(inPlace("next"), n.otherX)
	n.prefetch()
	n.loadScales()
	if n.pairs() {
		n.multiplyPair()
	} else {
		n.multiplyLong()
	}
	MOVQ(n.sums, n.before)
	MOVQ(n.panel, n.scales)
	ADDQ(I32(4*16*nibbleVectors), n.sums)
	ADDQ(inPlace("pitch"), n.x)
	DECQ(n.groups)
	JNZ(LabelRef("group"))

	ADDQ(I32(n.stepBytes()), n.panel)
	ADDQ(inPlace("advance"), n.stepX)
	DECQ(n.steps)
	JNZ(LabelRef("step"))

	n.finish()
}

// declare begins the function.
func (n nibbleTiles) declare() {
	what := "one unpacked block each"
	if n.pairs() {
		what = "two unpacked blocks each"
	}
	function(n.name, "(config *byte, groups int, x *byte, pitch int, next int, advance int, panel *byte, steps int, "+
		"dots *int32, sums *float32, spare *float32, w *byte, fetch int, y *float32, ldy int)",
		"adds products of groups of rows with steps (at least 1), "+what+", to sums [groups][2][16][16].",
		"x is the first tile of activations, next bytes before the other one of the step, advance before the next",
		"step and pitch before the next group. dots is room for 1024 integers and spare for the sums of a group.",
		"config is the shape of the tiles. Lines are prefetched from w on, fetch bytes further for each group of each",
		"step, and two lines of each of two rows of y, ldy bytes apart, to be written.")
}

// begin configures the tiles and loads what lasts longer than a step.
func (n nibbleTiles) begin() {
	load("config", reg.RAX)
	tileConfigure()
	load("x", n.stepX)
	load("panel", n.panel)
	load("steps", n.steps)
	load("dots", n.dots)
	load("spare", n.before)
	load("w", n.ahead)
	load("y", n.results)
	MOVQ(n.panel, n.scales)
	MOVQ(I32(64), n.stride)
	if n.pairs() {
		MOVQ(I32(32), n.strideX)
	}
}

// loadWeights loads the four tiles of weights of a step.
func (n nibbleTiles) loadWeights() {
	half := 2048
	if n.pairs() {
		half = spreadBytes(n.block)
	}
	quads := n.otherX // free between two groups
	MOVQ(I32(128), quads)
	for tile := range 4 {
		tileLoad(nibbleW+tile, n.panel, quads, tile/2*half+tile%2*64)
	}
}

// prefetch asks for packed weights of the next part, and for rows of results.
func (n nibbleTiles) prefetch() {
	for line := range nibbleLines {
		PREFETCHT1(Mem{Base: n.ahead, Disp: 64 * line})
	}
	ADDQ(inPlace("fetch"), n.ahead)
	for range nibbleResults {
		prefetchWrite(n.results, 0)
		prefetchWrite(n.results, 64)
		ADDQ(inPlace("ldy"), n.results)
	}
}

// loadScales loads the scales of a step: those of both halves of the columns in z28 and z29, and of the second block in
// z30 and z31.
func (n nibbleTiles) loadScales() {
	for i := range n.stepBytes() / spreadBytes(n.block) {
		for half := range 2 {
			VMOVUPS(Mem{Base: n.scales, Disp: (i+1)*spreadBytes(n.block) - 128 + 64*half}, z[28+2*i+half])
		}
	}
}

// multiplyPair multiplies a group with two blocks: both blocks of columns 0..15, then those of the others.
func (n nibbleTiles) multiplyPair() {
	tileLoad(nibbleX0, n.x, n.strideX, 0)
	tileLoad(nibbleX1, n.otherX, n.strideX, 0)
	for product := range 4 {
		block, columns := product%2, product/2
		n.begun(block, (product+2)%4)
		tileMultiply(block, nibbleX0+block, nibbleW+2*block+columns)
		n.vectors(8*product, 8*product+8)
	}
}

// multiplyLong multiplies a group with one block, which fills two tiles: both halves of the columns by the first tile,
// then by the second.
func (n nibbleTiles) multiplyLong() {
	tileLoad(nibbleX0, n.x, n.strideX, 0)
	for columns := range 2 {
		n.begun(columns, columns)
		tileMultiply(columns, nibbleX0, nibbleW+columns)
	}
	n.vectors(0, 8)
	tileLoad(nibbleX1, n.otherX, n.strideX, 0)
	tileMultiply(nibbleSum0, nibbleX1, nibbleW+2)
	n.vectors(8, 20)
	tileMultiply(nibbleSum1, nibbleX1, nibbleW+3)
	n.vectors(20, nibbleVectors)
}

// begun stores the sums of the products before, in their place among the dots, and clears the tile for the next ones.
func (n nibbleTiles) begun(sum, place int) {
	tileStore(sum, n.dots, n.stride, 1024*place)
	tileClear(sum)
}

// vectors makes the float sums from..to-1 of the group before, and prefetches activations of the next group.
func (n nibbleTiles) vectors(from, to int) {
	tile := 16 * min(n.block, 64) // bytes of activations
	for line := from / 2; line < min(to/2, tile/64); line++ {
		PREFETCHT0(Mem{Base: n.x, Disp: tile + 64*line})
		PREFETCHT0(Mem{Base: n.otherX, Disp: tile + 64*line})
	}
	for vec := from; vec < to; vec++ {
		n.vector(vec)
	}
}

// vector adds the dots of a row and 16 columns, which their scales make float32, to its sum.
func (n nibbleTiles) vector(vec int) {
	half := vec / 16
	sum := Mem{Base: n.before, Disp: 64 * vec}
	if !n.pairs() {
		total := z[vec%28]
		VCVTDQ2PS(Mem{Base: n.dots, Disp: 64 * vec}, total)
		VFMADD213PS(sum, z[28+half], total)
		VMOVUPS(total, sum)
		return
	}

	at := 2048*half + 64*(vec%16)
	total, second := z[vec%14], z[14+vec%14]
	VCVTDQ2PS(Mem{Base: n.dots, Disp: at}, total)
	VCVTDQ2PS(Mem{Base: n.dots, Disp: at + 1024}, second)
	VFMADD213PS(sum, z[28+half], total)
	VFMADD231PS(z[30+half], second, total)
	VMOVUPS(total, sum)
}

// finish stores the last sums of products and makes float sums of the last group.
func (n nibbleTiles) finish() {
	for sum := range 2 {
		place := sum
		if n.pairs() {
			place += 2
		}
		tileStore(sum, n.dots, n.stride, 1024*place)
	}
	tileRelease()
	n.loadScales()
	n.vectors(0, nibbleVectors)
	VZEROUPPER()
	RET()
}

// tileUnpack unpacks 4-bit blocks: 16*(nibble-8) as int8, and scales over 16, in the places of spreadBytes.
func tileUnpack(name string, block int) {
	function(name, "(panel *byte, w *byte, blocks int)",
		fmt.Sprintf("unpacks blocks (at least 1) of a q4b%d tile, %d bytes each:", block, spreadBytes(block)),
		fmt.Sprintf("[%d][32][4] int8 of 16*(nibble-8), and the scales of the columns over 16.", block/4))
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
	function(name, "(dst *byte, pitch int, advance int, x *uint8, turns int)",
		fmt.Sprintf("writes turns (at least 1) times %d activations of a row x as signed bytes: half of them to dst,", 2*width),
		"half to pitch bytes behind it, and the next ones advance bytes behind those.")
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

// alongTile emits a loop over the rows of a group, whose sums of columns 16..31 lie 1024 bytes behind the others.
func alongTile(body func(sums, output, scale reg.GPVirtual)) {
	output, ldy, sums, scale, count := param("y"), param("ldy"), param("sums"), param("xscale"), param("rows")
	Label("row")
	body(sums, output, scale)
	ADDQ(I32(64), sums)
	ADDQ(ldy, output)
	ADDQ(I32(4), scale)
	DECQ(count)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// q4Scale makes results of the float sums of one group.
func q4Scale() {
	function("q4ScaleAMX", "(rows int, y *float32, ldy int, sums *float32, xscale *float32)",
		"writes sums [2][16][16] of rows (1..16) rows, times xscale of the row, to y [rows][32]. ldy is in",
		"bytes.")
	alongTile(func(sums, output, scale reg.GPVirtual) {
		VBROADCASTSS(Mem{Base: scale}, z[0])
		for half := range 2 {
			VMULPS(Mem{Base: sums, Disp: 1024 * half}, z[0], z[1+half])
			VMOVUPS(z[1+half], Mem{Base: output, Disp: 64 * half})
		}
	})
}
