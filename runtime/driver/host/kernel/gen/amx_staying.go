package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Products of packed rows with weights that stay in tiles. A step of a kernel keeps the weights of 32 columns in four
// tiles, and walks over groups of up to 16 rows: two tiles of activations are loaded for four products. The tiles of
// their sums are stored, and vector instructions add them to the sums in memory.
//
// 4-bit weights need that, because every block has its own scale: vector instructions make float32 numbers of the sums
// and add them scaled. A block of 32 fills half of a tile's 64 bytes, which takes as long as all of it. Tiles of
// bfloat16, whose sums need no conversion, were not faster: a store waits longer for them.
//
// 8-bit weights gain by it where the core is shared. On an Intel Xeon (Emerald Rapids class) a load or a product takes
// 24 cycles and more while the other hardware thread of the core is busy, as if there were no tiles left for renaming,
// and a store or a zero nothing; the kernel whose sums stay in tiles (q8cTiles) loads twice as many. While the other
// thread is idle, a product takes 16 cycles, in which as many vector multiply-adds can begin, and loads nothing.
//
// The instructions of a group are mixed with the vector instructions for the group before, and a tile is stored when
// the next products have begun. So neither waits for the other. A store right behind its product made both last longer
// by half.
const (
	staySum0, staySum1 = 0, 1 // sums of products in turn
	stayX0, stayX1     = 2, 3 // activations of both halves of a step's k
	stayW              = 4    // weights: columns 0..15 and 16..31 of the first half, then those of the second
)

// stayVectors is the number of vectors of sums of a group: 16 rows of 32 columns.
const stayVectors = 32

// stayResults is the number of rows of results that are prefetched meanwhile.
const stayResults = 2

// stayingTiles is one kernel and its registers. Those of a group move on with each group, those of a step with each
// step.
type stayingTiles struct {
	name  string
	block int // weights that share a scale; 0: all, whose sums stay integers
	lines int // of weights that are prefetched for each group of each step, as many as the callers say

	groups, steps   reg.GPPhysical // that are left
	stride, strideX reg.GPPhysical // bytes from row to row of a tile of integer sums, and of activations

	x, otherX, stepX reg.GPPhysical // activations: both tiles of a group, and the first tile of the step
	panel, scales    reg.GPPhysical // weights of the step, and those of the group whose sums are made now
	dots             reg.GPPhysical // integer sums, stored by tiles and read by vectors
	sums, before     reg.GPPhysical // sums of the group, and of the one before it

	ahead, results reg.GPPhysical // what is prefetched: weights, and rows of results
}

// newStayingTiles chooses the registers of a kernel. The tiles of blocks of 32 are half as wide.
func newStayingTiles(name string, block int) stayingTiles {
	s := stayingTiles{
		name: name, block: block, lines: 2,
		groups: reg.RCX, steps: reg.RDX, stride: reg.RAX, strideX: reg.RAX,
		x: reg.RSI, otherX: reg.R9, stepX: reg.R8, panel: reg.R13, scales: reg.R12, dots: reg.R15,
		sums: reg.RDI, before: reg.R10, ahead: reg.RBX, results: reg.R11,
	}
	if s.pairs() {
		s.strideX = reg.R14
	}
	if s.integers() {
		s.lines = 4
	}
	return s
}

// pairs reports whether a step is two blocks, or one that fills two tiles.
func (s stayingTiles) pairs() bool { return s.block == 32 }

// integers reports whether sums stay integers.
func (s stayingTiles) integers() bool { return s.block == 0 }

// stepBytes is the size of the weights of a step.
func (s stayingTiles) stepBytes() int {
	switch {
	case s.integers():
		return 2 * q8cTileBytes
	case s.pairs():
		return 2 * spreadBytes(s.block)
	}
	return spreadBytes(s.block)
}

// generate emits the kernel: a loop over steps, each of which goes over all groups of rows.
//
// The sums of a group are made while the next one is multiplied, and those of the last one behind the loops. The
// first group of all has none before it: its vectors add what happens to lie in dots to spare room.
func (s stayingTiles) generate() {
	s.declare()
	s.begin()

	Label("step")
	s.loadWeights()
	MOVQ(s.stepX, s.x)
	load("sums", s.sums)
	load("groups", s.groups)

	Label("group")
	MOVQ(s.x, s.otherX)
	ADDQ(inPlace("next"), s.otherX)
	s.prefetch()
	s.loadScales()
	if s.pairs() {
		s.multiplyPair()
	} else {
		s.multiplyLong()
	}
	MOVQ(s.sums, s.before)
	MOVQ(s.panel, s.scales)
	ADDQ(I32(4*16*stayVectors), s.sums)
	ADDQ(inPlace("pitch"), s.x)
	DECQ(s.groups)
	JNZ(LabelRef("group"))

	ADDQ(I32(s.stepBytes()), s.panel)
	ADDQ(inPlace("advance"), s.stepX)
	DECQ(s.steps)
	JNZ(LabelRef("step"))

	s.finish()
}

// declare begins the function.
func (s stayingTiles) declare() {
	what, sums := "one unpacked block each", "float32"
	switch {
	case s.integers():
		what, sums = "128 k of a q8c tile each", "int32"
	case s.pairs():
		what = "two unpacked blocks each"
	}
	function(s.name, "(config *byte, groups int, x *byte, pitch int, next int, advance int, panel *byte, steps int, "+
		"dots *int32, sums *"+sums+", spare *"+sums+", w *byte, fetch int, y *float32, ldy int)",
		"adds products of groups of rows with steps (at least 1), "+what+", to sums [groups][2][16][16].",
		"x is the first tile of activations, next bytes before the other one of the step, advance before the next",
		"step and pitch before the next group. dots is room for 1024 integers and spare for the sums of a group.",
		fmt.Sprintf("config is the shape of the tiles. %d lines are prefetched from w on, fetch bytes further for each group", s.lines),
		"of each step, and two lines of each of two rows of y, ldy bytes apart, to be written.")
}

// begin configures the tiles and loads what lasts longer than a step.
func (s stayingTiles) begin() {
	load("config", reg.RAX)
	tileConfigure()
	load("x", s.stepX)
	load("panel", s.panel)
	load("steps", s.steps)
	load("dots", s.dots)
	load("spare", s.before)
	load("w", s.ahead)
	load("y", s.results)
	MOVQ(s.panel, s.scales)
	MOVQ(I32(64), s.stride)
	if s.pairs() {
		MOVQ(I32(32), s.strideX)
	}
}

// loadWeights loads the four tiles of weights of a step.
func (s stayingTiles) loadWeights() {
	half := 2048
	if s.pairs() {
		half = spreadBytes(s.block)
	}
	quads := s.otherX // free between two groups
	MOVQ(I32(128), quads)
	for tile := range 4 {
		tileLoad(stayW+tile, s.panel, quads, tile/2*half+tile%2*64)
	}
}

// prefetch asks for weights of the next part, and for rows of results.
func (s stayingTiles) prefetch() {
	for line := range s.lines {
		PREFETCHT1(Mem{Base: s.ahead, Disp: 64 * line})
	}
	ADDQ(inPlace("fetch"), s.ahead)
	for range stayResults {
		prefetchWrite(s.results, 0)
		prefetchWrite(s.results, 64)
		ADDQ(inPlace("ldy"), s.results)
	}
}

// loadScales loads the scales of a step: those of both halves of the columns in z28 and z29, and of the second block in
// z30 and z31.
func (s stayingTiles) loadScales() {
	if s.integers() {
		return
	}
	for i := range s.stepBytes() / spreadBytes(s.block) {
		for half := range 2 {
			VMOVUPS(Mem{Base: s.scales, Disp: (i+1)*spreadBytes(s.block) - 128 + 64*half}, z[28+2*i+half])
		}
	}
}

// multiplyPair multiplies a group with two blocks: both blocks of columns 0..15, then those of the others.
func (s stayingTiles) multiplyPair() {
	tileLoad(stayX0, s.x, s.strideX, 0)
	tileLoad(stayX1, s.otherX, s.strideX, 0)
	for product := range 4 {
		block, columns := product%2, product/2
		s.begun(block, (product+2)%4)
		tileMultiply(block, stayX0+block, stayW+2*block+columns)
		s.vectors(8*product, 8*product+8)
	}
}

// multiplyLong multiplies a group with a step of one block, or of integers: both halves of the columns by its first
// tile, then by its second.
func (s stayingTiles) multiplyLong() {
	tileLoad(stayX0, s.x, s.strideX, 0)
	for columns := range 2 {
		s.begun(columns, columns)
		tileMultiply(columns, stayX0, stayW+columns)
	}
	s.vectors(0, 8)
	tileLoad(stayX1, s.otherX, s.strideX, 0)
	tileMultiply(staySum0, stayX1, stayW+2)
	s.vectors(8, 20)
	tileMultiply(staySum1, stayX1, stayW+3)
	s.vectors(20, stayVectors)
}

// begun stores the sums of the products before, in their place among the dots, and clears the tile for the next ones.
func (s stayingTiles) begun(sum, place int) {
	tileStore(sum, s.dots, s.stride, 1024*place)
	tileClear(sum)
}

// vectors makes the sums from..to-1 of the group before, and prefetches activations of the next group.
func (s stayingTiles) vectors(from, to int) {
	tile := 1024 // bytes of activations
	if s.pairs() {
		tile = 512
	}
	for line := from / 2; line < min(to/2, tile/64); line++ {
		PREFETCHT0(Mem{Base: s.x, Disp: tile + 64*line})
		PREFETCHT0(Mem{Base: s.otherX, Disp: tile + 64*line})
	}
	for vec := from; vec < to; vec++ {
		s.vector(vec)
	}
}

// vector adds the dots of a row and 16 columns to its sum: integers, or what their scales make of them.
func (s stayingTiles) vector(vec int) {
	half := vec / 16
	sum := Mem{Base: s.before, Disp: 64 * vec}
	if s.integers() {
		total := z[vec]
		VMOVDQU64(Mem{Base: s.dots, Disp: 64 * vec}, total)
		VPADDD(sum, total, total)
		VMOVDQU64(total, sum)
		return
	}
	if !s.pairs() {
		total := z[vec%28]
		VCVTDQ2PS(Mem{Base: s.dots, Disp: 64 * vec}, total)
		VFMADD213PS(sum, z[28+half], total)
		VMOVUPS(total, sum)
		return
	}

	at := 2048*half + 64*(vec%16)
	total, second := z[vec%14], z[14+vec%14]
	VCVTDQ2PS(Mem{Base: s.dots, Disp: at}, total)
	VCVTDQ2PS(Mem{Base: s.dots, Disp: at + 1024}, second)
	VFMADD213PS(sum, z[28+half], total)
	VFMADD231PS(z[30+half], second, total)
	VMOVUPS(total, sum)
}

// finish stores the last sums of products and adds them to those of the last group.
func (s stayingTiles) finish() {
	for sum := range 2 {
		place := sum
		if s.pairs() {
			place += 2
		}
		tileStore(sum, s.dots, s.stride, 1024*place)
	}
	tileRelease()
	s.loadScales()
	s.vectors(0, stayVectors)
	VZEROUPPER()
	RET()
}
