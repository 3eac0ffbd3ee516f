// Command gen writes the vector kernels of the host processor as Go assembly.
//
//	go run . -tier avx512 -out ../vec_avx512_amd64.s -stubs ../vec_avx512_amd64.go -pkg kernel
//
// It is a module of its own, so that the assembler generator is no dependency of hetc.
//
// A matrix kernel computes m rows of one tile: the loop over k broadcasts an activation of each
// row, loads 32 weights once for all rows, and accumulates in registers. Each m has its own body,
// because registers cannot be indexed: the generator unrolls over rows, and a kernel jumps to the
// body of its row count.
//
// Operands stand in the order of Go's assembler: the destination is last, and VPSUBD(a, b, c) is
// c = b - a.
package main

import (
	"flag"
	"log"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// main writes the assembly of one tier and its Go declarations; go generate calls it for each.
func main() {
	tier := flag.String("tier", "",
		"instruction set: avx2, avxvnni, avx512, avx512bf16, amx, neon or i8mm; packed, streams and codes, with that of avx512; "+
			"attention, with that of avx2; tiled, beside amx; or peak, the loops they are measured against")
	flag.Parse()
	ConstraintExpr("amd64")
	switch *tier {
	case "avx512":
		avx512()
	case "avx512bf16":
		pairs512()
	case "avx2":
		avx2()
	case "avxvnni":
		avxvnni()
	case "attention":
		attentionTiles256()
	case "codes":
		codes512()
	case "packed":
		packed512()
	case "streams":
		streams512()
	case "amx":
		amx()
	case "tiled":
		tiled512()
	case "peak":
		peak()
	case "neon":
		neon()
		return
	case "i8mm":
		i8mm()
		return
	default:
		log.Fatalf("unknown tier %q", *tier)
	}
	Generate()
}

// fetcher prefetches weights: those of the next tile where several calls share this tile, else
// those a little ahead in this one. The caller chooses the next line to prefetch and the bytes from one step to the
// next, because only it knows how many calls there are.
type fetcher struct{ at, stride reg.GPVirtual }

// newFetcher reads the parameters ahead, in bytes from w, and stride.
func newFetcher(w reg.GPVirtual) fetcher {
	out := fetcher{at: GP64(), stride: GP64()}
	Load(Param("ahead"), out.at)
	Load(Param("stride"), out.stride)
	ADDQ(w, out.at)
	return out
}

// step prefetches lines cache lines and moves on by stride, which may be less than those lines.
func (f fetcher) step(lines int) {
	for i := range lines {
		PREFETCHT0(Mem{Base: f.at, Disp: 64 * i})
	}
	ADDQ(f.stride, f.at)
}

// sidePlaces is the number of places that kernels prefetch side by side. Package kernel has the same number.
const sidePlaces = 4

// sideFetcher is a fetcher of kernels that prefetch side by side where the parameter gap is not zero: the same part of
// what is multiplied next, divided into sidePlaces places that are gap bytes apart, for the second-level cache.
type sideFetcher struct {
	fetcher
	id       string
	gap, far reg.GPVirtual // one gap and three
	steps    int           // emitted so far, for labels
}

// sideBySide reads the parameter gap of the kernel with labels of id.
func (f fetcher) sideBySide(id string) *sideFetcher {
	out := &sideFetcher{fetcher: f, id: id, gap: GP64(), far: GP64()}
	Load(Param("gap"), out.gap)
	LEAQ(Mem{Base: out.gap, Index: out.gap, Scale: 2}, out.far)
	return out
}

// step prefetches lines cache lines, or side lines in each of several places. Either may be 0, for steps that prefetch
// in one of the two ways only.
func (f *sideFetcher) step(lines, side int) {
	if lines == 0 && side == 0 {
		return
	}
	ordered, done := label(f.id+"_ordered", f.steps), label(f.id+"_fetched", f.steps)
	f.steps++
	TESTQ(f.gap, f.gap)
	switch {
	case side == 0:
		JNZ(LabelRef(done))
	case lines == 0:
		JZ(LabelRef(done))
	default:
		JZ(LabelRef(ordered))
	}
	if side > 0 {
		for i := range side {
			PREFETCHT1(Mem{Base: f.at, Disp: 64 * i})
			PREFETCHT1(Mem{Base: f.at, Index: f.gap, Scale: 1, Disp: 64 * i})
			PREFETCHT1(Mem{Base: f.at, Index: f.gap, Scale: 2, Disp: 64 * i})
			PREFETCHT1(Mem{Base: f.at, Index: f.far, Scale: 1, Disp: 64 * i})
		}
		ADDQ(f.stride, f.at)
		if lines > 0 {
			JMP(LabelRef(done))
			Label(ordered)
		}
	}
	if lines > 0 {
		f.fetcher.step(lines)
	}
	Label(done)
}

// fetches reports whether step i of an unrolled turn of 4 prefetches when there are m rows. With
// many rows every other step is enough, since the work between is long. It saves instructions,
// which are what limits a core whose other hardware thread is busy.
func fetches(m, i int) bool { return m < manyRows || i%2 == 0 }

// stepLines is the number of lines that step i of a turn, over two lines, prefetches: also those of a step that
// prefetches nothing.
func stepLines(m, i int) int {
	switch {
	case m < manyRows:
		return 2
	case fetches(m, i):
		return 4
	}
	return 0
}

// oneOf returns 1 for one step of count, else 0: the lines that step i prefetches in each of several places.
func oneOf(count, i int) int {
	if i%count == 0 {
		return 1
	}
	return 0
}

// manyRows is the number of rows from which fetches skips steps. The callers in package kernel
// compute stride with the same constant.
const manyRows = 7

// fetchOutput prefetches the lines of each of m rows of y, so that the stores at the end do not
// wait for memory. While a store waits, so does every load whose address has the same low 12 bits,
// and rows of y often lie a multiple of 4 KiB apart.
func fetchOutput(m, lines int) {
	eachRow(m, func(_ int, output reg.GPVirtual) {
		for i := range lines {
			PREFETCHT0(Mem{Base: output, Disp: 64 * i})
		}
	})
}

// eachRow emits body for each of m rows of y, with the address of the row in output.
func eachRow(m int, body func(row int, output reg.GPVirtual)) {
	alongRows(m, param("y"), param("ldy"), body)
}

// eachScaledRow is eachRow for epilogues that multiply a row by its scale, an element of xscale.
func eachScaledRow(m int, body func(row int, output reg.GPVirtual, scale Mem)) {
	output, ldy, scales := param("y"), param("ldy"), param("xscale")
	alongRows(m, output, ldy, func(row int, output reg.GPVirtual) {
		body(row, output, Mem{Base: scales, Disp: 4 * row})
	})
}

// alongRows moves output from row to row, but not beyond the last one.
func alongRows(m int, output, ldy reg.GPVirtual, body func(row int, output reg.GPVirtual)) {
	for row := range m {
		body(row, output)
		if row < m-1 {
			ADDQ(ldy, output)
		}
	}
}

// begin starts the accumulators of m rows, of the given bytes each: at zero, or at y where the
// parameter more is not 0. A product over a part of k continues the sum of the parts before it in
// this way.
func begin(id string, m, bytes int, acc []reg.VecPhysical, zero func(...reg.VecPhysical)) {
	more := GP64()
	Load(Param("more"), more)
	TESTQ(more, more)
	JNZ(LabelRef(id + "_more"))
	fetchOutput(m, 2)
	zero(acc...)
	JMP(LabelRef(id + "_begin"))
	Label(id + "_more")
	each := len(acc) / m
	eachRow(m, func(row int, output reg.GPVirtual) {
		for i, vec := range acc[row*each : (row+1)*each] {
			VMOVUPS(Mem{Base: output, Disp: i * bytes}, vec)
		}
	})
	Label(id + "_begin")
}

// rows addresses up to 12 rows of a matrix with few registers. Either there is one base register
// for every four rows, and an index of 0, 1, 2 or 3 strides selects the row; or the first rows have
// a base register each.
type rows struct {
	// base addresses, ld the stride in bytes, ld3 three times the stride (x86 indices scale by 1,
	// 2, 4 and 8 only)
	base    []reg.GPVirtual
	ld, ld3 reg.GPVirtual
	own     bool // a base for each row, as far as they go
}

// newRows makes registers for count rows; set fills them.
func newRows(count int) rows {
	out := rows{ld: GP64(), ld3: GP64()}
	for i := 0; i < count; i += 4 {
		out.base = append(out.base, GP64())
	}
	return out
}

// ownBases is the number of rows that get a base register of their own from newOwnRows.
const ownBases = 8

// newOwnRows makes registers for up to 12 rows, of which the first ownBases are addressed without
// an index. Only an operand without an index is fused with the multiply-add that reads it; with
// one, the load costs an instruction of its own.
func newOwnRows(count int) rows {
	out := rows{ld: GP64(), own: true}
	for range min(count, ownBases) {
		out.base = append(out.base, GP64())
	}
	return out
}

// plain reports whether row i is addressed without an index.
func (r rows) plain(i int) bool { return r.own && i < len(r.base) }

// set points the rows at p with stride ld bytes (already in r.ld).
func (r rows) set(p reg.Register) {
	if r.own {
		MOVQ(p, r.base[0])
		for i := 1; i < len(r.base); i++ {
			LEAQ(Mem{Base: r.base[i-1], Index: r.ld, Scale: 1}, r.base[i])
		}
		return
	}
	LEAQ(Mem{Base: r.ld, Index: r.ld, Scale: 2}, r.ld3)
	MOVQ(p, r.base[0])
	for i := 1; i < len(r.base); i++ {
		LEAQ(Mem{Base: r.base[i-1], Index: r.ld, Scale: 4}, r.base[i])
	}
}

// at is the operand disp bytes into row i.
func (r rows) at(i, disp int) Mem {
	if r.plain(i) {
		return Mem{Base: r.base[i], Disp: disp}
	}
	// rows 8..11 lie four strides below rows 4..7
	if r.own {
		return Mem{Base: r.base[i-4], Index: r.ld, Scale: 4, Disp: disp}
	}
	mem := Mem{Base: r.base[i/4], Disp: disp}
	switch i % 4 {
	case 1:
		mem.Index, mem.Scale = r.ld, 1
	case 2:
		mem.Index, mem.Scale = r.ld, 2
	case 3:
		mem.Index, mem.Scale = r.ld3, 1
	}
	return mem
}

// advance moves all rows along by bytes.
func (r rows) advance(bytes int) {
	for _, base := range r.base {
		ADDQ(I32(bytes), base)
	}
}

// down moves to the rows count strides below; count is 1 or 4, which an index can scale by.
func (r rows) down(count int) {
	for _, base := range r.base {
		LEAQ(Mem{Base: base, Index: r.ld, Scale: uint8(count)}, base)
	}
}

// dispatch jumps to one body per row count 1..most; each body ends with a return.
func dispatch(most int, body func(m int)) { dispatchFrom(1, most, body) }

// dispatchFrom is dispatch for kernels that take at least a number of rows.
func dispatchFrom(least, most int, body func(m int)) {
	count := Load(Param("rows"), GP64())
	for rows := least; rows < most; rows++ {
		CMPQ(count, I8(rows))
		JEQ(LabelRef(label("rows", rows)))
	}
	for rows := most; rows >= least; rows-- {
		Label(label("rows", rows))
		body(rows)
	}
}

// steps emits a loop over n, a register counted down: turns of unroll steps, then single ones. step
// emits step i of a turn, and advance moves the pointers by count steps. Within a turn the steps
// use displacements, so that pointers move once a turn.
func steps(id string, n reg.GPVirtual, unroll int, step func(i int), advance func(count int)) {
	if unroll > 1 {
		SUBQ(I8(unroll), n)
		JLT(LabelRef(id + "_few"))
		Label(id + "_many")
		for i := range unroll {
			step(i)
		}
		advance(unroll)
		SUBQ(I8(unroll), n)
		JGE(LabelRef(id + "_many"))
		Label(id + "_few")
		ADDQ(I8(unroll), n)
	} else {
		TESTQ(n, n)
	}
	JZ(LabelRef(id + "_done"))
	Label(id + "_one")
	step(0)
	advance(1)
	DECQ(n)
	JNZ(LabelRef(id + "_one"))
	Label(id + "_done")
}

// rowKernel is what kernels of rows have in common: registers of a product of m rows of activations with a tile of
// weights, step by step.
type rowKernel struct {
	id string // of the labels
	m  int

	input                    rows
	row, left, tail, weights reg.GPVirtual // the first row, steps that are left, and the parameters of these names
	fetch                    fetcher
}

// newRowKernel loads the parameters of a kernel, of which count is the number of steps. It makes registers that the
// kernel needs besides, own.
func newRowKernel(id string, m int, count string, own ...*reg.GPVirtual) rowKernel {
	k := rowKernel{id: id, m: m, input: newRows(m), row: GP64(), left: GP64(), tail: GP64(), weights: GP64()}
	for _, register := range own {
		*register = GP64()
	}
	Load(Param("x"), k.row)
	Load(Param("ldx"), k.input.ld)
	Load(Param(count), k.left)
	Load(Param("tail"), k.tail)
	Load(Param("w"), k.weights)
	k.fetch = newFetcher(k.weights)
	return k
}

// loop emits a loop over all steps of xBytes of activations and wBytes of weights, which goes once more over the tail.
func (k rowKernel) loop(unroll, xBytes, wBytes int, step func(i int)) {
	Label(k.id + "_start")
	k.input.set(k.row)
	steps(k.id, k.left, unroll, step, func(count int) {
		k.input.advance(xBytes * count)
		ADDQ(I32(wBytes*count), k.weights)
	})
	k.again(xBytes)
}

// again runs the loop, which began at the label id_start, once more over the tail: one step of activations padded to a
// whole step, in rows of pitch bytes. It jumps back with a count of 1 and clears tail, so that the second arrival falls
// through. A nil tail skips it. more emits what else must point at the tail.
func (k rowKernel) again(pitch int, more ...func()) {
	TESTQ(k.tail, k.tail)
	JZ(LabelRef(k.id + "_sum"))
	MOVQ(k.tail, k.row)
	XORQ(k.tail, k.tail)
	MOVQ(I32(1), k.left)
	MOVQ(I32(pitch), k.input.ld)
	for _, emit := range more {
		emit()
	}
	JMP(LabelRef(k.id + "_start"))
	Label(k.id + "_sum")
}

// label numbers the labels of a body with two digits, the number of rows.
func label(s string, i int) string {
	return s + string(rune('0'+i/10)) + string(rune('0'+i%10))
}
