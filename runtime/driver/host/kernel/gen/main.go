// Command gen writes the vector kernels of the host processor as Go assembly.
//
//	go run . -tier avx512 -out ../vec_avx512_amd64.s -stubs ../vec_avx512_amd64.go -pkg kernel
//
// It is a module of its own, so that the assembler generator is no dependency of hetc.
package main

import (
	"flag"
	"log"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func main() {
	tier := flag.String("tier", "",
		"instruction set: avx2, avxvnni, avx512 or neon; or peak, the loops they are measured against")
	flag.Parse()
	ConstraintExpr("amd64")
	switch *tier {
	case "avx512":
		avx512()
	case "avx2":
		avx2()
	case "avxvnni":
		avxvnni()
	case "peak":
		peak()
	case "neon":
		neon()
		return
	default:
		log.Fatalf("unknown tier %q", *tier)
	}
	Generate()
}

// fetcher asks for weights before they are needed: those of the next tile where this tile is used by
// several calls, else those a little ahead. The caller says where and how fast to go.
type fetcher struct{ at, stride reg.GPVirtual }

func newFetcher(w reg.GPVirtual) fetcher {
	out := fetcher{at: GP64(), stride: GP64()}
	Load(Param("ahead"), out.at)
	Load(Param("stride"), out.stride)
	ADDQ(w, out.at)
	return out
}

func (f fetcher) step(lines int) {
	for i := range lines {
		PREFETCHT0(Mem{Base: f.at, Disp: 64 * i})
	}
	ADDQ(f.stride, f.at)
}

// fetches tells whether step i of a turn of 4 asks for weights when there are m rows: with many it does every other
// time, because the work between is long, and because instructions are what a core has too few of whose other thread
// is busy.
func fetches(m, i int) bool { return m < manyRows || i%2 == 0 }

// manyRows is also known to the callers.
const manyRows = 7

// fetchOutput asks for the lines of each of m rows of y, so that the stores at the end do not wait for memory: while
// they wait, every load whose address ends in the same 12 bits does too, and rows of y often lie a multiple of 4 KiB
// apart.
func fetchOutput(m, lines int) {
	output, ldy := GP64(), GP64()
	Load(Param("y"), output)
	Load(Param("ldy"), ldy)
	for row := range m {
		for i := range lines {
			PREFETCHT0(Mem{Base: output, Disp: 64 * i})
		}
		if row < m-1 {
			ADDQ(ldy, output)
		}
	}
}

// begin zeroes accumulators of bytes each for m rows, or fills them from y where the caller wants more added.
func begin(id string, m, bytes int, acc []reg.VecPhysical, zero func(...reg.VecPhysical)) {
	more := GP64()
	Load(Param("more"), more)
	TESTQ(more, more)
	JNZ(LabelRef(id + "_more"))
	fetchOutput(m, 2)
	zero(acc...)
	JMP(LabelRef(id + "_begin"))
	Label(id + "_more")
	output, ldy := GP64(), GP64()
	Load(Param("y"), output)
	Load(Param("ldy"), ldy)
	for i, vec := range acc {
		each := len(acc) / m
		if i > 0 && i%each == 0 {
			ADDQ(ldy, output)
		}
		VMOVUPS(Mem{Base: output, Disp: i % each * bytes}, vec)
	}
	Label(id + "_begin")
}

// rows addresses up to 12 rows of a matrix: base registers four rows apart, or one for each of the first rows, and the
// row stride in bytes.
type rows struct {
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

// ownBases is for how many rows newOwnRows has registers.
const ownBases = 8

// newOwnRows makes registers for up to 12 rows of which the first ones, those with plain(row), are addressed without an
// index. Only so is a load no instruction of its own for the core when it is an operand of another one.
func newOwnRows(count int) rows {
	out := rows{ld: GP64(), own: true}
	for range min(count, ownBases) {
		out.base = append(out.base, GP64())
	}
	return out
}

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

func (r rows) at(i, disp int) Mem {
	if r.plain(i) {
		return Mem{Base: r.base[i], Disp: disp}
	}
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

func (r rows) advance(bytes int) {
	for _, base := range r.base {
		ADDQ(I32(bytes), base)
	}
}

// down moves to the next 1 or 4 rows.
func (r rows) down(count int) {
	for _, base := range r.base {
		LEAQ(Mem{Base: base, Index: r.ld, Scale: uint8(count)}, base)
	}
}

// dispatch jumps to one body per row count 1..most; each body ends with a return.
func dispatch(most int, body func(m int)) {
	count := Load(Param("rows"), GP64())
	for rows := 1; rows < most; rows++ {
		CMPQ(count, I8(rows))
		JEQ(LabelRef(label("rows", rows)))
	}
	for rows := most; rows >= 1; rows-- {
		Label(label("rows", rows))
		body(rows)
	}
}

// steps emits a loop over n (a register, counted down) that does `unroll` steps per turn and then
// single ones. step emits step i of a turn, advance moves the pointers by count steps.
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

func label(s string, i int) string {
	return s + string(rune('0'+i/10)) + string(rune('0'+i%10))
}
