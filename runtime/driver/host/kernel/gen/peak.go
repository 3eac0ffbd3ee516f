package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// peak writes the loops that say what a kernel could reach: multiply-adds on registers alone, one
// loop per instruction that the matrix kernels use, and reads of memory. All operands of the
// multiply-adds are 1, so the sum of the accumulators is the number done, which the caller checks.
func peak() {
	peakLoop("peakI8x512", "VPDPBUSD on 64-byte registers", 24, func(i int) { VPDPBUSD(z[30], z[31], z[i]) },
		bytes512, sumI32x512)
	peakLoop("peakF32x512", "VFMADD on 64-byte registers", 24, func(i int) { VFMADD231PS(z[30], z[31], z[i]) },
		floats512, sumF32x512)
	peakLoop("peakI8x256", "VPMADDUBSW, VPMADDWD and VPADDD on 32-byte registers", 8, func(i int) {
		tmp := y[8+i%5]
		VPMADDUBSW(y[14], y[15], tmp)
		VPMADDWD(y[13], tmp, tmp)
		VPADDD(tmp, y[i], y[i])
	}, bytes256, sumI32x256)
	peakLoop("peakI8xVNNI", "VPDPBUSD on 32-byte registers", 12, func(i int) { dotVEX(y[14], y[15], y[i]) }, bytes256,
		sumI32x256)
	peakLoop("peakF32x256", "VFMADD on 32-byte registers", 12, func(i int) { VFMADD231PS(y[14], y[15], y[i]) },
		floats256, sumF32x256)
	stream512()
	stream256()
	issue()
}

// issue writes a loop of instructions that depend on nothing and occupy no execution unit: clearing
// a register is done when it is renamed. Its rate is how many instructions a core can issue.
func issue() {
	const count = 240
	TEXT("issue240", NOSPLIT, "func(turns int)")
	Doc("issue240 does turns (at least 1) times 240 instructions that wait for nothing.")
	Load(Param("turns"), reg.RCX)
	Label("turn")
	for i := range count {
		chain := []reg.GPPhysical{reg.R8L, reg.R9L, reg.R10L, reg.R11L, reg.R12L, reg.R13L}[i%6]
		XORL(chain, chain)
	}
	DECQ(reg.RCX)
	JNZ(LabelRef("turn"))
	RET()
}

// peakLoop writes a loop of count independent steps a turn, enough to hide the latency of one. ones
// prepares registers, sum adds the accumulators up and stores them.
func peakLoop(name, what string, count int, step func(i int), ones, sum func(count int)) {
	function(name, "(turns int, sum *byte)",
		"does turns (at least 1) times as many multiply-adds by "+what+" as it has accumulators,",
		"and stores at sum a register whose elements add up to the number done.")
	ones(count)
	left := GP64()
	Load(Param("turns"), left)
	Label("turn")
	for i := range count {
		step(i)
	}
	DECQ(left)
	JNZ(LabelRef("turn"))
	sum(count)
	VZEROUPPER()
	RET()
}

// broadcast32 fills a register with a 4-byte pattern.
func broadcast32(v uint32, to reg.VecPhysical) {
	constant := GP32()
	MOVL(U32(v), constant)
	if to.Size() == 64 {
		VPBROADCASTD(constant, to)
		return
	}
	VMOVD(constant, to.AsX())
	VPBROADCASTD(to.AsX(), to)
}

// The preparations of the loops: clear the accumulators and set all operands to 1.
func bytes512(count int) {
	zero512(z[:count]...)
	broadcast32(0x01010101, z[30])
	VMOVDQA64(z[30], z[31])
}

// floats512 sets the accumulators to 0 and both factors to 1, so that sums count the steps.
func floats512(count int) {
	zero512(z[:count]...)
	broadcast32(0x3f800000, z[30])
	VMOVDQA64(z[30], z[31])
}

// bytes256 sets the accumulators to 0, both factors to bytes of 1, and y13 to words of 1.
func bytes256(count int) {
	zero256(y[:count]...)
	broadcast32(0x01010101, y[14])
	VMOVDQA(y[14], y[15])
	broadcast32(0x00010001, y[13])
}

// floats256 is floats512 in half the width.
func floats256(count int) {
	zero256(y[:count]...)
	broadcast32(0x3f800000, y[14])
	VMOVDQA(y[14], y[15])
}

// The ends of the loops: add the accumulators up in the first one and store it.
func sumI32x512(count int) {
	reduce(z[:count], func(a, b reg.VecPhysical) { VPADDD(a, b, b) })
	VMOVDQU64(z[0], Mem{Base: param("sum")})
}

func sumF32x512(count int) {
	reduce(z[:count], func(a, b reg.VecPhysical) { VADDPS(a, b, b) })
	VMOVUPS(z[0], Mem{Base: param("sum")})
}

func sumI32x256(count int) {
	reduce(y[:count], func(a, b reg.VecPhysical) { VPADDD(a, b, b) })
	VMOVDQU(y[0], Mem{Base: param("sum")})
}

func sumF32x256(count int) {
	reduce(y[:count], func(a, b reg.VecPhysical) { VADDPS(a, b, b) })
	VMOVUPS(y[0], Mem{Base: param("sum")})
}

// reduce adds all registers to the first.
func reduce(v []reg.VecPhysical, add func(a, b reg.VecPhysical)) {
	for _, vec := range v[1:] {
		add(vec, v[0])
	}
}

// stream512 and stream256 read eight ascending streams, each prefetched a little ahead. Measured:
// one stream reaches a few percent less, and other ways to prefetch reach no more.
func stream512() {
	streamLoop("stream512", "64-byte", func(m Mem, i int) { VPADDQ(m, z[i], z[i]) }, func() {
		zero512(z[:8]...)
	}, func() {
		reduce(z[:8], func(a, b reg.VecPhysical) { VPADDQ(a, b, b) })
	})
}

// stream256 adds the halves of each line in accumulators of their own.
func stream256() {
	streamLoop("stream256", "32-byte", func(m Mem, i int) {
		VPADDQ(m, y[i], y[i])
		m.Disp += 32
		VPADDQ(m, y[8+i], y[8+i])
	}, func() {
		zero256(y[:16]...)
	}, func() {
		reduce(y[:8], func(a, b reg.VecPhysical) { VPADDQ(a, b, b) })
	})
}

// streamAhead is how many bytes before its use a line is prefetched.
const streamAhead = 512

// streamLoop writes a function that reads a line of 64 bytes of each of eight streams a turn and
// adds words up, so that no read can be left out.
func streamLoop(name, width string, line func(m Mem, i int), zero, reduce func()) {
	function(name, "(p *byte, turns int, pitch int) uint64",
		"reads turns (at least 1) lines of 64 bytes from each of eight streams, pitch bytes apart, in "+width,
		"registers, and returns the sum of the first words of all lines.")
	input := newRows(8)
	Load(Param("pitch"), input.ld)
	input.set(param("p"))
	count := param("turns")
	zero()
	Label("turn")
	for i := range 8 {
		PREFETCHT0(input.at(i, streamAhead))
		line(input.at(i, 0), i)
	}
	input.advance(64)
	DECQ(count)
	JNZ(LabelRef("turn"))
	reduce()
	sum := GP64()
	VMOVQ(reg.X0, sum)
	Store(sum, ReturnIndex(0))
	VZEROUPPER()
	RET()
}
