package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// amx writes the kernels of the tier amx: products in tiles of 16 rows of 64 bytes. Those whose sums stay in tiles are
// here, those whose weights do in amx_staying.go with 4-bit weights in amx_nibbles.go, and those of attention in
// amx_attention.go.
//
// A tile of activations has 16 rows of 64 k. A tile of weights has 16 quads of k of 16 columns, which is how a packed
// weight has them already, 128 bytes from quad to quad. The product of both is 16x16 int32 and takes 16 cycles. Four
// of them, of two tiles of activations and two of weights, need four loads: as many as the first-level cache gives
// meanwhile.
//
// Activations are packed as signed bytes, so that TDPBSSD needs no correction. The rows of a pass lie together, first
// their first 64 k, row by row, and then the next ones.
//
// Every kernel sets up the tiles and gives them back before it returns: the state of a thread is large only while it
// multiplies, whatever goroutine runs on it, and the caller decides by the configuration how many rows and k the tiles
// have. Neither Go's assembler nor avo knows the instructions, so that their bytes are written here, and registers are
// chosen by hand.
//
// Most machines cannot execute this. With the tag tilemodel its place is taken by a model of these instructions, which
// interprets the assembly, and tests of the package then compute with that.
func amx() {
	ConstraintExpr("!tilemodel")
	q8cTiles()
	newStayingTiles("q8cStayingAMX", 0).generate()
	q8cScale()
	tileRow()
	tileNibbles()
	peakTiles()
	tileTimes()
	tiledAttention()
}

// Tiles of a 2x2 product: tmm0..tmm3 are sums, of the first 16 rows and then of the second, columns 0..15 and 16..31.
const (
	tileX0, tileX1 = 4, 5 // activations of both groups of rows
	tileW0, tileW1 = 6, 7 // weights of both halves of the columns
)

// Prefixes of VEX that tell instructions of the same opcode apart.
const (
	vexNone, vex66, vexF3, vexF2 = 0, 1, 2, 3
)

// tileBytes emits the bytes of an instruction behind a comment with its text.
func tileBytes(text string, code ...byte) {
	Comment(text)
	for _, part := range code {
		Instruction(&ir.Instruction{Opcode: "BYTE", Operands: []Op{U8(part)}})
	}
}

// vex is a three-byte VEX prefix of map 0F38 and 128 bits: rex are inverted extension bits (r, x, b), source is the
// register in the prefix.
func vex(r, x, b bool, source int, prefix byte) []byte {
	second := byte(0xe2)
	for i, extended := range []bool{r, x, b} {
		if extended {
			second &^= 0x80 >> i
		}
	}
	return []byte{0xc4, second, byte(^source&15)<<3 | prefix}
}

// registers are the names of general registers, by number, in the manufacturer's manuals.
var registers = [...]string{"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12",
	"r13", "r14", "r15"}

// tileMem emits a tile instruction on memory at base+disp, with stride between rows. form is its text in the syntax of
// the GNU assembler, for memory and tile: a test compares what that makes of it.
func tileMem(form string, prefix byte, tile int, base, stride reg.GPPhysical, disp int) {
	number := func(r reg.GPPhysical) byte { return byte(r.PhysicalIndex()) }
	memory := fmt.Sprintf("%d(%%%s,%%%s)", disp, registers[number(base)], registers[number(stride)])
	code := append(vex(false, number(stride) > 7, number(base) > 7, 0, prefix), 0x4b)
	code = append(code, 0x84|byte(tile)<<3, number(stride)&7<<3|number(base)&7)
	code = append(code, byte(disp), byte(disp>>8), byte(disp>>16), byte(disp>>24))
	tileBytes(fmt.Sprintf(form, memory, tile), code...)
}

// tileLoad loads a tile from memory.
func tileLoad(tile int, base, stride reg.GPPhysical, disp int) {
	tileMem("{disp32} tileloadd %[1]s, %%tmm%[2]d", vexF2, tile, base, stride, disp)
}

// tileLoadOnce loads a tile that is not needed again soon: it need not stay in the first-level cache.
func tileLoadOnce(tile int, base, stride reg.GPPhysical, disp int) {
	tileMem("{disp32} tileloaddt1 %[1]s, %%tmm%[2]d", vex66, tile, base, stride, disp)
}

// tileStore stores a tile to memory.
func tileStore(tile int, base, stride reg.GPPhysical, disp int) {
	tileMem("{disp32} tilestored %%tmm%[2]d, %[1]s", vexF3, tile, base, stride, disp)
}

// tileZero clears tiles 0..n-1.
func tileZero(n int) {
	for tile := range n {
		tileClear(tile)
	}
}

// tileClear clears a tile.
func tileClear(tile int) {
	code := append(vex(false, false, false, 0, vexF2), 0x49, 0xc0|byte(tile)<<3)
	tileBytes(fmt.Sprintf("tilezero %%tmm%d", tile), code...)
}

// tileMultiply adds to sum the products of signed activations x with signed weights w.
func tileMultiply(sum, x, w int) {
	tileBytes(fmt.Sprintf("tdpbssd %%tmm%d, %%tmm%d, %%tmm%d", w, x, sum), append(vex(false, false, false, w, vexF2),
		0x5e, 0xc0|byte(sum)<<3|byte(x))...)
}

// tileConfigure takes the shapes of all tiles from the 64 bytes at RAX.
func tileConfigure() {
	tileBytes("ldtilecfg (%rax)", append(vex(false, false, false, 0, vexNone), 0x49, 0x00)...)
}

// tileRelease gives the tiles back.
func tileRelease() {
	tileBytes("tilerelease", append(vex(false, false, false, 0, vexNone), 0x49, 0xc0)...)
}

// load reads a parameter into a register of choice.
func load(name string, to reg.GPPhysical) { Load(Param(name), to) }

// inPlace is a parameter as an operand in memory, for which no register is left.
func inPlace(name string) Op {
	parameter, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return parameter.Addr
}

// q8cTiles writes the kernel of 8-bit weights. A call adds the products of a piece of k to integer sums; that of the
// last piece makes float results of them.
//
// The weights of a piece stay in the first-level cache for all groups of rows. Activations, which are needed again with
// the next columns, are loaded past that cache: they are as many lines as the weights and would push them out, and
// products would wait for the second-level cache, which gives a tile in 21 cycles instead of the 16 that it is
// multiplied in.
//
// Two groups of rows are multiplied at a time, and share the weights of a step. The second one is lag steps behind the
// first: it begins with the weights of step lag, and ends with those before it, while the first one has gone on to the
// next group. Sums of one group are then stored while those of the other grow; were both stored at once, the products
// of the next groups would wait.
//
// While groups are multiplied, the results of the groups before them are written, and the lines that the next results
// will go to are prefetched: two rows in each step. Written by itself, each row of results would wait for its lines, in
// a page of its own, for as long as the products take.
//
// A core whose other hardware thread works multiplies a fifth faster when each step prefetches the weights of the next
// one; others multiply slower, since prefetches take as much of the first-level cache's time as loads. Prefetching
// activations, too, is slower everywhere. A part of what is multiplied after these weights is brought to the
// second-level cache meanwhile: else the first two groups, which are the first to read them, would wait for memory.
func q8cTiles() {
	function("q8cTilesAMX", "(config *byte, groups int, x *byte, pitch int, stride int, advance int, w *byte, "+
		"steps int, lag int, sums *int32, before *float32, ldb int, y *float32, ldy int, next *float32, last int, "+
		"scales *float32, xscale *float32, rows int, fetch int, ahead *byte)",
		"computes products of groups of rows with a piece of a q8c tile. x is the first of steps (at least 1) tiles",
		"of activations, stride bytes from row to row, advance from tile to tile and pitch from group to group; w is the",
		"piece's first row. The second of two groups is lag (1..steps-1) steps behind the first; with lag 0 groups are",
		"multiplied one by one. config is the shape of the tiles, whose rows are those of a group. The products are",
		"added to before [groups*rows][32], integers in rows ldb bytes apart, or to nothing if it is nil and ldb is 0,",
		"and written to y [groups*rows][32], in rows ldy bytes apart: integers as well, unless last is not 0, when they",
		"become results, times xscale of the row and scales [32] of the column. y may be before. sums is room for 2048",
		"integers. next, if it is not nil, is where memory is asked for the first rows that are written after these.",
		"Where fetch is not 0, each step prefetches the weights of the next one. Others are prefetched from ahead on,",
		"256 bytes in each step.")
	k := &q8cTileKernel{
		x: [2]reg.GPPhysical{reg.RSI, reg.R8}, w: reg.RDI, count: reg.R10, stride: reg.RDX, line: reg.R9,
		sums: reg.RBX, ldy: reg.R11, asked: reg.RCX, ahead: reg.RAX,
		pending: pendingRows{sums: reg.R12, y: reg.R13, ldy: reg.R11, scale: reg.R15, left: reg.R14},
		until:   AllocLocal(8), group: AllocLocal(8), groupBefore: AllocLocal(8),
	}
	load("config", reg.RAX)
	tileConfigure()
	load("scales", reg.RAX)
	for half := range 2 {
		VMOVUPS(Mem{Base: reg.RAX, Disp: 64 * half}, z[half])
	}
	load("stride", k.stride)
	load("ldy", k.ldy)
	load("sums", k.sums)
	load("ahead", k.ahead)
	MOVQ(I32(q8cQuadBytes), k.line)
	load("rows", k.count)
	IMULQ(k.ldy, k.count)
	MOVQ(k.count, k.group)
	load("rows", k.count)
	IMULQ(inPlace("ldb"), k.count)
	MOVQ(k.count, k.groupBefore)
	XORQ(k.pending.left, k.pending.left)
	CMPQ(inPlace("lag"), I8(0))
	JE(LabelRef("single"))
	k.pairs()
	Label("single")
	k.singles()
	Label("end")
	k.pending.rest("last")
	tileRelease()
	VZEROUPPER()
	RET()
}

// Sizes in bytes of what the kernel walks over.
const (
	q8cQuadBytes  = 128               // a quad of k of 32 columns of weights
	q8cTileBytes  = 16 * q8cQuadBytes // the weights of a step
	q8cGroupBytes = 16 * q8cQuadBytes // the integer sums of a group of rows
	q8cAheadBytes = 256               // weights that a step prefetches for later: in eight pairs of groups, all of a tile
)

// q8cTileKernel are the registers of q8cTilesAMX.
type q8cTileKernel struct {
	x           [2]reg.GPPhysical // tiles of activations of both groups
	stride      reg.GPPhysical    // bytes from row to row of them
	w, line     reg.GPPhysical    // weights of the step, and the bytes from quad to quad
	count       reg.GPPhysical    // steps that are left; between groups, scratch
	sums        reg.GPPhysical    // room for the integer sums of a pair of groups
	ldy         reg.GPPhysical
	asked       reg.GPPhysical // the row of y that is prefetched next
	ahead       reg.GPPhysical // weights that are prefetched for later
	until       Mem            // the first row that is not prefetched
	group       Mem            // bytes from group to group of y
	groupBefore Mem            // the same of before
	pending     pendingRows    // results of the groups before
}

// pairs multiplies two groups at a time, and then jumps to the end. The parameter x is the first group of a pair, y the
// next group whose sums will be complete, and groups the number of those that are not.
func (k *q8cTileKernel) pairs() {
	CMPQ(inPlace("groups"), I8(2))
	JLT(LabelRef("single"))
	load("x", k.x[0])
	k.begin(0, "lead", 0)
	k.steps("lead", k.firstSteps, 0)

	Label("pair")
	MOVQ(k.x[0], k.x[1])
	ADDQ(inPlace("pitch"), k.x[1])
	k.begin(1, "pair", 1)
	k.steps("pair", k.lastSteps, 0, 1)
	load("x", k.x[1]) // the second group goes on with the first weights
	ADDQ(inPlace("pitch"), k.x[1])
	k.end(0, "pair")
	CMPQ(inPlace("groups"), I8(2))
	JLT(LabelRef("trail"))
	MOVQ(k.x[1], k.x[0])
	ADDQ(inPlace("pitch"), k.x[0])
	MOVQ(k.x[0], inPlace("x"))
	k.begin(0, "next", 1)
	k.steps("next", k.firstSteps, 0, 1)
	k.end(1, "next")
	CMPQ(inPlace("groups"), I8(2))
	JGE(LabelRef("pair"))
	k.steps("alone", k.lastSteps, 0)
	k.end(0, "alone")
	JMP(LabelRef("end"))

	Label("trail")
	k.steps("trail", k.firstSteps, 1)
	k.end(1, "trail")
	JMP(LabelRef("end"))
}

// singles multiplies one group after the other.
func (k *q8cTileKernel) singles() {
	load("x", k.x[0])
	k.begin(0, "single", 0)
	k.steps("single", func() {
		load("w", k.w)
		load("steps", k.count)
	}, 0)
	k.end(0, "single")
	load("x", k.x[0])
	ADDQ(inPlace("pitch"), k.x[0])
	MOVQ(k.x[0], inPlace("x"))
	CMPQ(inPlace("groups"), I8(0))
	JG(LabelRef("single"))
}

// firstSteps are those that the second of two groups ends with.
func (k *q8cTileKernel) firstSteps() {
	load("w", k.w)
	load("lag", k.count)
}

// lastSteps are those behind the first ones.
func (k *q8cTileKernel) lastSteps() {
	load("steps", k.count)
	SUBQ(inPlace("lag"), k.count)
}

// begin starts the sums of the first group of two (0) or of the second (1), whose rows of y lie so many groups behind
// those at y. The first has the rows of both prefetched.
func (k *q8cTileKernel) begin(which int, id string, behind int) {
	load("before", k.count)
	TESTQ(k.count, k.count)
	JNZ(LabelRef(id + "_more"))
	for half := range 2 {
		tileClear(2*which + half)
	}
	JMP(LabelRef(id + "_begin"))
	Label(id + "_more")
	for range behind {
		ADDQ(k.groupBefore, k.count)
	}
	load("ldb", k.ldy)
	for half := range 2 {
		tileLoad(2*which+half, k.count, k.ldy, 64*half)
	}
	load("ldy", k.ldy)
	Label(id + "_begin")
	if which == 0 {
		load("y", k.count)
		for range behind {
			ADDQ(k.group, k.count)
		}
		k.lookAhead(id, behind)
	}
}

// lookAhead finds out which rows are prefetched while the groups at count, and one behind, are multiplied: those of the
// next two, or those at next.
func (k *q8cTileKernel) lookAhead(id string, behind int) {
	for range 2 {
		ADDQ(k.group, k.count)
	}
	MOVQ(k.count, k.asked)
	CMPQ(inPlace("groups"), I8(2+behind))
	JG(LabelRef(id + "_ask"))
	load("next", k.asked)
	Label(id + "_ask")
	MOVQ(k.asked, k.count)
	TESTQ(k.asked, k.asked)
	JZ(LabelRef(id + "_until"))
	for range 2 {
		ADDQ(k.group, k.count)
	}
	Label(id + "_until")
	MOVQ(k.count, k.until)
}

// steps emits a loop over so many steps as prepare counts, of the first group of two (0), the second (1), or both.
func (k *q8cTileKernel) steps(id string, prepare func(), which ...int) {
	prepare()
	Label(id + "_step")
	k.step(id, which)
	DECQ(k.count)
	JNZ(LabelRef(id + "_step"))
}

// step multiplies one step, prefetches weights and two rows of y, and writes the results of two rows.
func (k *q8cTileKernel) step(id string, which []int) {
	CMPQ(inPlace("fetch"), I8(0))
	JEQ(LabelRef(id + "_fetched"))
	for line := range q8cTileBytes / 64 {
		PREFETCHT0(Mem{Base: k.w, Disp: q8cTileBytes + 64*line})
	}
	Label(id + "_fetched")
	k.multiply(which)
	for line := range q8cAheadBytes / 64 {
		PREFETCHT1(Mem{Base: k.ahead, Disp: 64 * line})
	}
	ADDQ(I32(q8cAheadBytes), k.ahead)
	for _, group := range which {
		ADDQ(inPlace("advance"), k.x[group])
	}
	ADDQ(I32(q8cTileBytes), k.w)
	CMPQ(k.asked, k.until)
	JGE(LabelRef(id + "_asked"))
	for range 2 {
		prefetchWrite(k.asked, 0)
		prefetchWrite(k.asked, 64)
		ADDQ(k.ldy, k.asked)
	}
	Label(id + "_asked")
	for range 2 {
		TESTQ(k.pending.left, k.pending.left)
		JZ(LabelRef(id + "_next"))
		k.pending.row()
	}
	Label(id + "_next")
}

// multiply emits the loads and the products of one step of the first group, the second, or both.
func (k *q8cTileKernel) multiply(which []int) {
	tileLoadOnce(tileX0+which[0], k.x[which[0]], k.stride, 0)
	tileLoad(tileW0, k.w, k.line, 0)
	tileLoad(tileW1, k.w, k.line, 64)
	for _, group := range which[1:] {
		tileLoadOnce(tileX0+group, k.x[group], k.stride, 0)
	}
	for _, group := range which {
		tileMultiply(2*group, tileX0+group, tileW0)
		tileMultiply(2*group+1, tileX0+group, tileW1)
	}
}

// end stores the sums of the first group of two (0) or of the second (1): in y, or, after the last part, where their
// results are made from them while the next groups are multiplied. Two rooms alternate, so that the sums of the
// groups before stay until their results are written; the second group follows the first.
func (k *q8cTileKernel) end(which int, id string) {
	CMPQ(inPlace("last"), I8(0))
	JNE(LabelRef(id + "_last"))
	load("y", k.count)
	for half := range 2 {
		tileStore(2*which+half, k.count, k.ldy, 64*half)
	}
	JMP(LabelRef(id + "_end"))

	Label(id + "_last")
	if which == 0 {
		k.pending.rest(id)
		MOVQ(k.sums, k.pending.sums)
		load("y", k.pending.y)
		load("xscale", k.pending.scale)
	}
	for half := range 2 {
		tileStore(2*which+half, k.sums, k.line, q8cGroupBytes*which+64*half)
	}
	ADDQ(inPlace("rows"), k.pending.left)
	if which == 1 {
		NEGQ(k.sums) // the other one of two rooms
		ADDQ(inPlace("sums"), k.sums)
		ADDQ(inPlace("sums"), k.sums)
		ADDQ(I32(2*q8cGroupBytes), k.sums)
	}
	load("rows", k.count)
	SHLQ(I8(2), k.count)
	ADDQ(k.count, inPlace("xscale"))
	Label(id + "_end")
	MOVQ(k.group, k.count)
	ADDQ(k.count, inPlace("y"))
	MOVQ(k.groupBefore, k.count)
	ADDQ(k.count, inPlace("before"))
	DECQ(inPlace("groups"))
}

// pendingRows are registers of rows of products whose results are not written yet.
type pendingRows struct {
	sums, y, ldy, scale, left reg.GPPhysical
}

// row writes the results of one row. The scales of its columns are in registers 0 and 1.
func (p *pendingRows) row() {
	for half := range 2 {
		VCVTDQ2PS(Mem{Base: p.sums, Disp: 64 * half}, z[2+half])
		VMULPS_BCST(Mem{Base: p.scale}, z[half], z[4+half])
		VMULPS(z[4+half], z[2+half], z[2+half])
		VMOVUPS(z[2+half], Mem{Base: p.y, Disp: 64 * half})
	}
	ADDQ(I32(q8cQuadBytes), p.sums)
	ADDQ(p.ldy, p.y)
	ADDQ(I8(4), p.scale)
	DECQ(p.left)
}

// rest writes those of all rows that are left.
func (p *pendingRows) rest(id string) {
	TESTQ(p.left, p.left)
	JZ(LabelRef(id + "_written"))
	Label(id + "_write")
	p.row()
	JNZ(LabelRef(id + "_write"))
	Label(id + "_written")
}

// prefetchWrite asks for a line that will be written.
func prefetchWrite(base reg.GPPhysical, disp int) {
	number := byte(base.PhysicalIndex())
	text := fmt.Sprintf("{disp32} prefetchw %d(%%%s)", disp, registers[number])
	code := []byte{0x40 | number>>3, 0x0f, 0x0d, 0x88 | number&7}
	if number < 8 {
		code = code[1:]
	}
	if number&7 == 4 {
		panic("a base that needs another form")
	}
	tileBytes(text, append(code, byte(disp), byte(disp>>8), byte(disp>>16), byte(disp>>24))...)
}

// q8cScale makes results of the integer sums of one group.
func q8cScale() {
	function("q8cScaleAMX", "(rows int, y *float32, ldy int, sums *int32, xscale *float32, scales *float32)",
		"writes sums [2][16][16] of rows (1..16) rows, times xscale of the row and scales [32] of the column, to",
		"y [rows][32]. ldy is in bytes.")
	scales := param("scales")
	for half := range 2 {
		VMOVUPS(Mem{Base: scales, Disp: 64 * half}, z[half])
	}
	alongTile(func(sums, output, scale reg.GPVirtual) {
		for half := range 2 {
			VCVTDQ2PS(Mem{Base: sums, Disp: 1024 * half}, z[2+half])
			VMULPS_BCST(Mem{Base: scale}, z[half], z[4+half])
			VMULPS(z[4+half], z[2+half], z[2+half])
			VMOVUPS(z[2+half], Mem{Base: output, Disp: 64 * half})
		}
	})
}

// tileRow packs whole tiles of one row.
func tileRow() {
	function("tileRow64", "(dst *byte, pitch int, x *uint8, turns int)",
		"writes turns (at least 1) times 64 activations of a row x, as signed bytes, to dst, pitch bytes from piece",
		"to piece.")
	dst, pitch, x, count := param("dst"), param("pitch"), param("x"), param("turns")
	broadcast32(0x80808080, z[0])
	Label("turn")
	VPXORD(Mem{Base: x}, z[0], z[1])
	VMOVDQU64(z[1], Mem{Base: dst})
	ADDQ(I32(64), x)
	ADDQ(pitch, dst)
	DECQ(count)
	JNZ(LabelRef("turn"))
	VZEROUPPER()
	RET()
}

// peakTiles is the loop that products of tiles are measured against.
func peakTiles() {
	function("peakTilesAMX", "(config *byte, turns int, ones *byte, sums *int32)",
		"does turns (at least 1) times 4*16*16*64 multiply-adds by TDPBSSD on tiles whose rows are all the",
		"64 bytes at ones, and stores the sums [4][16][16], which add up to the number done where these are 1.")
	load("config", reg.RAX)
	tileConfigure()
	load("turns", reg.RCX)
	load("ones", reg.RSI)
	load("sums", reg.RBX)
	XORQ(reg.R9, reg.R9)
	MOVQ(I32(64), reg.RDX)
	tileZero(4)
	for tile := tileX0; tile <= tileW1; tile++ {
		tileLoad(tile, reg.RSI, reg.R9, 0)
	}
	Label("turn")
	for sum := range 4 {
		tileMultiply(sum, tileX0+sum/2, tileW0+sum%2)
	}
	DECQ(reg.RCX)
	JNZ(LabelRef("turn"))
	for tile := range 4 {
		tileStore(tile, reg.RBX, reg.RDX, 1024*tile)
	}
	tileRelease()
	RET()
}

// tileTimes measures whether the core has its tiles for itself.
func tileTimes() {
	const products, chained = 16, 16 // products, and cycles for each of them
	function("tileTimesAMX", "(config *byte, ones *byte, times *uint64)",
		fmt.Sprintf("measures, in ticks of the processor's clock, %d products of tiles whose rows are all the", products),
		fmt.Sprintf("64 bytes at ones, and a chain of instructions of about %d cycles for each of them. times is [2].", chained))
	load("config", reg.RAX)
	tileConfigure()
	load("ones", reg.RSI)
	load("times", reg.RBX)
	XORQ(reg.R9, reg.R9)
	tileZero(4)
	for tile := tileX0; tile <= tileW1; tile++ {
		tileLoad(tile, reg.RSI, reg.R9, 0)
	}
	multiply := func(count int) {
		for product := range count {
			sum := product % 4
			tileMultiply(sum, tileX0+sum/2, tileW0+sum%2)
		}
	}
	multiply(8) // the first ones take longer
	ticks(reg.R10)
	multiply(products)
	ticks(reg.R11)
	SUBQ(reg.R10, reg.R11)
	MOVQ(reg.R11, Mem{Base: reg.RBX})
	tileRelease()

	const latency, perTurn = 3, 8 // cycles of a multiplication, and multiplications
	MOVQ(I32(products*chained/latency/perTurn), reg.RCX)
	ticks(reg.R10)
	Label("chain")
	for range perTurn {
		IMULQ(reg.RSI, reg.RSI)
	}
	DECQ(reg.RCX)
	JNZ(LabelRef("chain"))
	ticks(reg.R11)
	SUBQ(reg.R10, reg.R11)
	MOVQ(reg.R11, Mem{Base: reg.RBX, Disp: 8})
	RET()
}

// ticks reads the clock when everything before is done.
func ticks(to reg.GPPhysical) {
	LFENCE()
	RDTSC()
	SHLQ(I8(32), reg.RDX)
	ORQ(reg.RDX, reg.RAX)
	MOVQ(reg.RAX, to)
	LFENCE()
}
