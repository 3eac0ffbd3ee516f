package kernel

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/klauspost/cpuid/v2"
	"golang.org/x/sys/cpu"

	"github.com/hetc/hetc/planir/pack"
)

//go:generate go run -C gen . -tier avx2 -out ../vec_avx2_amd64.s -stubs ../vec_avx2_amd64.go -pkg kernel
//go:generate go run -C gen . -tier avxvnni -out ../vec_avxvnni_amd64.s -stubs ../vec_avxvnni_amd64.go -pkg kernel
//go:generate go run -C gen . -tier avx512 -out ../vec_avx512_amd64.s -stubs ../vec_avx512_amd64.go -pkg kernel
//go:generate go run -C gen . -tier packed -out ../vec_packed512_amd64.s -stubs ../vec_packed512_amd64.go -pkg kernel
//go:generate go run -C gen . -tier codes -out ../vec_codes512_amd64.s -stubs ../vec_codes512_amd64.go -pkg kernel
//go:generate go run -C gen . -tier streams -out ../vec_streams512_amd64.s -stubs ../vec_streams512_amd64.go -pkg kernel
//go:generate go run -C gen . -tier avx512bf16 -out ../vec_avx512bf16_amd64.s -stubs ../vec_avx512bf16_amd64.go -pkg kernel
//go:generate go run -C gen . -tier attention -out ../vec_heads_amd64.s -stubs ../vec_heads_amd64.go -pkg kernel
//go:generate go run -C gen . -tier peak -out ../vec_peak_amd64.s -stubs ../vec_peak_amd64.go -pkg kernel

// measuredSets returns the sets that this machine has, slowest first.
func measuredSets() []*Set {
	sets := registerSets()
	if tilesLack() == "" {
		sets = append(sets, amxSet(sets[len(sets)-1]))
	}
	return sets
}

// registerSets returns the sets of vector instructions that this CPU has, slowest first.
func registerSets() []*Set {
	features := &cpu.X86
	if !features.HasAVX2 || !features.HasFMA || !features.HasF16C {
		return nil
	}
	wide := features.HasAVX512F && features.HasAVX512BW && features.HasAVX512VL && features.HasAVX512DQ
	var sets []*Set
	for _, candidate := range []struct {
		// has says whether the CPU has the tier's instructions
		tier tier
		has  bool
	}{{avx2, true}, {avx512, wide}, {avxvnni, features.HasAVXVNNI}, {avx512vnni, wide && features.HasAVX512VNNI}} {
		if candidate.has {
			sets = append(sets, candidate.tier.set())
		}
	}
	if wide && features.HasAVX512VNNI && features.HasAVX512BF16 {
		sets = append(sets, pairSet(avx512vnni.set()))
	}
	return sets
}

// namedSets returns nil: all sets were timed.
func namedSets() []*Set { return nil }

// lacking says what this machine lacks for a set, "" where that is not known.
func lacking(name string) string {
	if name == "amx" {
		return tilesLack()
	}
	return ""
}

// refused is what tiles lack besides a CPU that has them.
func refused() string {
	if !hasTiles() {
		return ""
	}
	return tilesLack()
}

// hasTiles says that the CPU can multiply 8-bit integers and bfloat16 in tiles.
func hasTiles() bool { return cpu.X86.HasAMXTile && cpu.X86.HasAMXInt8 && cpu.X86.HasAMXBF16 }

// tilesLack says why this process cannot multiply in tiles, "" if it can. The kernel keeps the state of tiles for
// processes that have asked for it, once.
var tilesLack = sync.OnceValue(func() string {
	if !hasTiles() {
		return "the CPU has no tiles of 8-bit integers and bfloat16 (AMX)"
	}
	if sets := registerSets(); len(sets) == 0 || sets[len(sets)-1].Name != pairSetName {
		return "the CPU has tiles (AMX) without AVX-512 VNNI and BF16"
	}
	if err := permitTiles(); err != nil {
		return fmt.Sprintf("the operating system keeps no state of tiles (AMX): %v", err)
	}
	return ""
})

// tier is an instruction set. It is a number rather than a table of functions because a call of an
// assembly function through a pointer would move its arguments to the heap.
type tier int

const (
	avx2       tier = iota // with FMA and F16C
	avx512                 // float32 products twice as wide, the others as avx2
	avxvnni                // AVX-VNNI: 8-bit and 4-bit products without detours, the others as avx2
	avx512vnni             // all products twice as wide
)

// wide tells whether float32 products use 512-bit registers.
func (t tier) wide() bool { return t == avx512 || t == avx512vnni }

// set starts from the portable functions and replaces what the tier has.
func (t tier) set() *Set {
	set := Portable()
	set.Name = [...]string{avx2: "avx2", avx512: "avx512", avxvnni: "avxvnni", avx512vnni: "avx512vnni"}[t]
	set.MatMulF32, set.MatMulBF16, set.MatMulQ8C = t.matMulF32, t.matMulBF16, t.matMulQ8C
	set.MatMulQ4B32 = func(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
		t.matMulQ4(BlockK, y, x, w, m, k, n)
	}
	set.MatMulQ4B128 = func(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
		t.matMulQ4(pack.Block128, y, x, w, m, k, n)
	}
	set.MatMulQ6C = t.matMulQ6C
	if t.wide() {
		set.PackFrom, set.PackRowsF32 = packFrom, packRowsF32
		set.PackedF32, set.PackedBF16 = packedF32, packedBF16
	}
	if t == avx512vnni {
		set.PackRows, set.PackedQ8C = packRows, packedQ8C
		set.PackedQ4B32 = func(y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
			packedQ4(BlockK, y, x, w, scratch, n)
		}
		set.PackedQ4B128 = func(y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
			packedQ4(pack.Block128, y, x, w, scratch, n)
		}
		set.RequantQ4B32 = vecRequantQ4B32
		set.PackedRequant = func(y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
			requantTiles(set, y, x, w, scratch, n)
		}
	}
	set.BlockSums, set.QuantRows, set.QuantStatic, set.Norm, set.LayerNorm = vecBlockSums, t.quantRows,
		t.quantStatic, t.norm, vecLayerNorm
	set.GLU, set.Activate, set.Softcap, set.Gate, set.Scale = t.glu, vecActivate, vecSoftcap, vecGate, vecScale
	set.Add, set.Combine, set.Rope = vecAdd, t.combine, vecRope
	set.AttentionF32, set.AttentionF16, set.AttentionQ8 = t.attentionF32, t.attentionF16, t.attentionQ8
	set.AttentionBF16 = t.attentionBF16
	set.Peak, set.Below, set.PoolBelow = vecPeak, vecBelow, vecPoolBelow
	set.FromF16, set.FromBF16, set.ToF16, set.ToBF16 = vecFromF16, vecFromBF16, vecToF16, vecToBF16
	set.PeakI8, set.PeakF32, set.Stream, set.Issue = t.peakI8, t.peakF32, t.stream, issue
	set.Fetch = vecFetch
	return set
}

// The largest row counts of one call of a matrix kernel, limited by registers: of the avx2 tier,
// then of those with 512 bits. maxRows is the largest of all.
const (
	maxRows     = 12
	mostF32     = 3
	mostQ8C     = 2
	mostQ8CVNNI = 3
	mostQ4      = 2
	most512     = 12
	mostQ4x512  = 6
	mostQ6C     = 2
	mostQ6Cx512 = 8
	mostPanel   = 7 // of unpacked blocks
)

// mostF32 is the number of rows of a float32 product.
func (t tier) mostF32() int {
	if t.wide() {
		return most512
	}
	return mostF32
}

// prefetchBytes is how far ahead of its use a weight is asked for. The hardware prefetcher stops at page ends.
const prefetchBytes = 4096

// request is what a call of a kernel prefetches: from ahead on, in bytes from its weights, and stride bytes on from one
// turn to the next. A kernel whose gap is not 0 prefetches in sidePlaces places at once, that many bytes apart.
type request struct{ ahead, stride, gap int }

// sidePlaces is the constant of the same name in gen.
const sidePlaces = 4

// turns is how often a kernel prefetches in a tile: in order, and side by side, which is 0 where it cannot.
type turns struct{ inOrder, sideBySide int }

// fetch returns what call number call of calls prefetches. The calls multiply the same bytes of a tile, behind which
// the rest of it follows, and then, unless this is the last one, another tile. With several calls each prefetches its
// part of the next tile, so that memory works while the core multiplies. On a CPU that reads several places side by
// side faster a single call prefetches the next tile, too. Otherwise a single call, and the calls of the last tile,
// prefetch a little ahead of themselves.
func fetch(bytes, rest int, every turns, call, calls int, last bool) request {
	side := sideBySide && every.sideBySide > 0
	if last || calls == 1 && !side {
		return request{ahead: prefetchBytes, stride: (bytes + every.inOrder - 1) / every.inOrder}
	}
	part := (bytes + calls - 1) / calls
	ahead := bytes + rest + call*part
	if !side {
		return request{ahead: ahead, stride: (part + every.inOrder - 1) / every.inOrder}
	}
	gap := (part + sidePlaces - 1) / sidePlaces
	return request{ahead, (gap + every.sideBySide - 1) / every.sideBySide, gap}
}

// fastRows is the number of rows up to which products with 8-bit and 6-bit weights take so few instructions that a core
// of Zen 4 reads slower with requests than without any.
const fastRows = 2

// zen4 says that this is a Zen 4, a model of AMD's family 25 with AVX-512. Its own prefetcher reads the weights of
// fastRows rows faster than requests do, 20 to 65 % faster with 8 bits, and its cores keep track of fewer requests.
// docs/kernels.md has the measurements.
var zen4 = cpuid.CPU.IsVendor(cpuid.AMD) && cpuid.CPU.Family == 25 && cpu.X86.HasAVX512F

// fetchFew is fetch for kernels of 8-bit and 6-bit weights. With few rows on Zen 4 they ask for the same lines all the
// time, which costs nothing.
func fetchFew(rows, tileBytes int, every turns, call, calls int, last bool) request {
	if zen4 && rows <= fastRows && calls == 1 {
		return request{}
	}
	return fetch(tileBytes, 0, every, call, calls, last)
}

// turns is how often a kernel of steps steps over two lines prefetches: every other step side by side or, the widest
// kernels with many rows, in order.
func (t tier) turns(steps, rows int) turns {
	half := (steps + 1) / 2
	if rows >= manyRows && t.wide() {
		return turns{half, half}
	}
	return turns{steps, half}
}

// manyRows is the constant of the same name in gen.
const manyRows = 7

// A pass takes some rows and some k of the activations over all tiles of a weight, so that they and the tiles' part
// stay in the second-level cache meanwhile.
const (
	passRows  = 132 // at most, a multiple of every row count of one call
	passBytes = 1 << 20
)

// passOf is how many of left rows the next pass takes.
func passOf(left int) int { return min(left, (share(left, passRows)+maxRows-1)/maxRows*maxRows) }

// matMulF32 divides the product into passes over rows and k.
func (t tier) matMulF32(y, x Matrix[float32], w []float32, m, k, n int) {
	if m == 0 {
		return
	}
	y.mustHold(m, n)
	x.mustHold(m, k)
	_ = w[(n+TileN-1)/TileN*TileN*k-1]
	if t.wide() && streamsInOrder.take(m, n) {
		streamF32(y, x, w, m, k, n)
		return
	}
	for row := 0; row < m; {
		rows, count := passOf(m-row), k
		if rows > t.mostF32() { // else every weight is used only once
			count = share(k, passBytes/(4*(rows+2*TileN))) // two tiles: this one and the next
		}
		for pos := 0; pos < k; pos += count {
			t.passF32(y.From(row, 0), x.From(row, 0), w, rows, k, n, part{pos, min(count, k-pos)})
		}
		row += rows
	}
}

// part is count numbers of the k of a product, from from on.
type part struct{ from, count int }

// passF32 is a part of matMulF32, added to y unless it is the first. Sums run in the order of k, so they are the same
// as in one pass.
func (t tier) passF32(y, x Matrix[float32], w []float32, m, k, n int, part part) {
	var out [maxRows * TileN]float32
	count, more := part.count, min(part.from, 1)
	most := t.mostF32()
	calls := (m + most - 1) / most
	for j := 0; j < n; j += TileN {
		cols := min(TileN, n-j)
		for row, call := 0, 0; row < m; call++ {
			rows := share(m-row, most)
			dst, ld := output(y, row, j, cols, out[:])
			// the sum continues in out
			if cols < TileN && more != 0 {
				for i := range rows {
					copy(out[i*TileN:], y.row(row+i, n)[j:])
				}
			}
			every := t.turns(count, rows)
			if !t.wide() { // f32Rows256 asks in order
				every.sideBySide = 0
			}
			ask := fetch(4*count*TileN, 4*(k-count)*TileN, every, call, calls, (j+TileN)*k >= len(w))
			from, weights := x.at(row, part.from), &w[j*k+part.from*TileN]
			if t.wide() {
				f32Rows512(rows, dst, 4*ld, from, 4*x.Stride, count, weights, ask.ahead, ask.stride, ask.gap, more)
			} else {
				f32Rows256(rows, dst, 4*ld, from, 4*x.Stride, count, weights, ask.ahead, ask.stride, more)
			}
			if cols < TileN {
				copyColumns(y, row, j, cols, rows, out[:])
			}
			row += rows
		}
	}
}

// matMulBF16 takes all rows and all of k in one pass.
func (t tier) matMulBF16(y, x Matrix[float32], w []uint16, m, k, n int) {
	if m == 0 {
		return
	}
	y.mustHold(m, n)
	x.mustHold(m, k)
	_ = w[(n+TileN-1)/TileN*TileN*k-1]
	if t.wide() && streamsInOrder.take(m, n) {
		streamBF16(y, x, w, m, k, n)
		return
	}
	var out [maxRows * TileN]float32
	most := t.mostF32()
	calls := (m + most - 1) / most
	for j := 0; j < n; j += TileN {
		cols := min(TileN, n-j)
		for row, call := 0, 0; row < m; call++ {
			rows := share(m-row, most)
			dst, ld := output(y, row, j, cols, out[:])
			ask := fetch(2*k*TileN, 0, turns{inOrder: k}, call, calls, (j+TileN)*k >= len(w))
			if t.wide() {
				bf16Rows512(rows, dst, 4*ld, x.at(row, 0), 4*x.Stride, k, &w[j*k], ask.ahead, ask.stride)
			} else {
				bf16Rows256(rows, dst, 4*ld, x.at(row, 0), 4*x.Stride, k, &w[j*k], ask.ahead, ask.stride)
			}
			if cols < TileN {
				copyColumns(y, row, j, cols, rows, out[:])
			}
			row += rows
		}
	}
}

// matMulQ8C divides the product into passes over rows only: 8-bit rows are short.
func (t tier) matMulQ8C(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	if m == 0 {
		return
	}
	bytes, _ := q8cTileBytes(k)
	y.mustHold(m, n)
	x.mustHold(m, k)
	_ = w[(n+TileN-1)/TileN*bytes-1]
	if t == avx512vnni && streamsInOrder.take(m, n) {
		streamQ8C(y, x, w, m, k, n)
		return
	}
	if m >= wordsFrom && (t == avx2 || t == avx512) {
		wordsQ8C(y, x, w, m, k, n)
		return
	}
	for row := 0; row < m; {
		rows := passOf(m - row)
		t.passQ8C(y.From(row, 0), x.From(row), w, rows, k, n)
		row += rows
	}
}

// passQ8C is matMulQ8C for rows that stay in the second-level cache.
func (t tier) passQ8C(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	codes := x.Codes
	bytes, _ := q8cTileBytes(k)
	var out [maxRows * TileN]float32
	var last [maxRows * 4]uint8 // the k%4 last activations of each row
	var tail *uint8
	// 128 stands for 0, so padding adds nothing
	if k%4 != 0 {
		tail = &last[0]
		for i := range last {
			last[i] = 128
		}
	}
	most := [...]int{avx2: mostQ8C, avx512: mostQ8C, avxvnni: mostQ8CVNNI, avx512vnni: most512}[t]
	calls := (m + most - 1) / most
	for j := 0; j < n; j += TileN {
		cols := min(TileN, n-j)
		tile := &w[j/TileN*bytes]
		for row, call := 0, 0; row < m; call++ {
			rows := share(m-row, most)
			if tail != nil {
				for i := range rows {
					copy(last[4*i:4*i+4], codes.row(row+i, k)[k&^3:])
				}
			}
			dst, ld := output(y, row, j, cols, out[:])
			ask := fetchFew(rows, bytes, t.turns((k+3)/4, rows), call, calls, (j/TileN+1)*bytes >= len(w))
			from, scale := codes.at(row, 0), &x.Scale[row]
			switch t {
			case avx512vnni:
				q8cRows512(rows, dst, 4*ld, from, codes.Stride, k/4, tail, tile, ask.ahead, ask.stride, ask.gap, scale)
			case avxvnni:
				q8cRowsVNNI(rows, dst, 4*ld, from, codes.Stride, k/4, tail, tile, ask.ahead, ask.stride, ask.gap, scale)
			default:
				q8cRows256(rows, dst, 4*ld, from, codes.Stride, k/4, tail, tile, ask.ahead, ask.stride, ask.gap, scale)
			}
			if cols < TileN {
				copyColumns(y, row, j, cols, rows, out[:])
			}
			row += rows
		}
	}
}

// matMulQ6C unpacks a tile for each call of a kernel: weights of 6 bits are for few rows.
func (t tier) matMulQ6C(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	if m == 0 {
		return
	}
	groups, whole, blocks := (k+sixRows-1)/sixRows, k/sixRows, (k+BlockK-1)/BlockK
	bytes, _ := q6cTileBytes(k)
	codes := x.Codes
	y.mustHold(m, n)
	x.mustHold(m, k)
	x.Sums.mustHold(m, blocks)
	_ = w[(n+TileN-1)/TileN*bytes-1]
	if t == avx512vnni && streamsOfSix.take(m, n) {
		streamQ6C(y, x, w, m, k, n)
		return
	}
	most := mostQ6C
	if t == avx512vnni {
		most = mostQ6Cx512
	}
	var out [maxRows * TileN]float32
	var input sixInput
	calls := (m + most - 1) / most
	for row, call := 0, 0; row < m; call++ {
		rows := share(m-row, most)
		tail, start := input.set(x, row, rows, k), &input.start[0]
		from, scale := codes.at(row, 0), &x.Scale[row]
		for j := 0; j < n; j += TileN {
			cols := min(TileN, n-j)
			tile := &w[j/TileN*bytes]
			dst, ld := output(y, row, j, cols, out[:])
			ask := fetchFew(rows, bytes, turns{groups, groups}, call, calls, (j/TileN+1)*bytes >= len(w))
			switch t {
			case avx512vnni:
				q6cRows512(rows, dst, 4*ld, from, codes.Stride, whole, tail, tile, ask.ahead, ask.stride, ask.gap, scale, start)
			case avxvnni:
				q6cRowsVNNI(rows, dst, 4*ld, from, codes.Stride, whole, tail, tile, ask.ahead, ask.stride, ask.gap, scale, start)
			default:
				q6cRows256(rows, dst, 4*ld, from, codes.Stride, whole, tail, tile, ask.ahead, ask.stride, ask.gap, scale, start)
			}
			if cols < TileN {
				copyColumns(y, row, j, cols, rows, out[:])
			}
		}
		row += rows
	}
}

// matMulQ4 is the product of 4-bit weights in blocks of block rows, BlockK or pack.Block128.
func (t tier) matMulQ4(block int, y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	if m == 0 {
		return
	}
	bytes := (k + block - 1) / block * q4BlockBytes(block)
	y.mustHold(m, n)
	x.mustHold(m, k)
	x.Sums.mustHold(m, (k+BlockK-1)/BlockK)
	_ = w[(n+TileN-1)/TileN*bytes-1]
	if m >= nibblesFrom && (t == avx2 || t == avx512) {
		nibblesQ4(block, y, x, w, m, k, n)
		return
	}
	if t == avx512vnni && streamsOfFour.take(m, n) {
		streamQ4(block, y, x, w, m, k, n)
		return
	}
	// Many rows: unpack whole tiles first, and do the rest below.
	if whole := n &^ (TileN - 1); t == avx512vnni && m >= panelRows && whole > 0 {
		matMulQ4Panels(block, y, x, w[:whole/TileN*bytes], m, k, whole)
		if n == whole {
			return
		}
		y, w, n = y.From(0, whole), w[whole/TileN*bytes:], n-whole
	}
	t.rowsQ4(block, y, x, w, m, k, n)
}

// rowsQ4 is matMulQ4 by kernels that unpack a tile for each call, of as many rows as they have registers for.
func (t tier) rowsQ4(block int, y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	blocks, full := (k+block-1)/block, k/block
	bytes := blocks * q4BlockBytes(block)
	var out [maxRows * TileN]float32
	codes, sums := x.Codes, x.Sums
	var last [mostQ4x512 * pack.Block128]uint8 // the k%block last activations of each row
	var tail *uint8
	pitch := block
	if k%block != 0 {
		tail = &last[0]
		for i := range last {
			last[i] = 128
		}
		if t != avx512vnni && block != BlockK {
			pitch += 4 * block / BlockK // their sums follow
		}
	}
	most := mostQ4
	if t == avx512vnni {
		most = mostQ4x512
	}
	every := turns{(block/4 + 1) * blocks, (block/4/sidePlaces + 1) * blocks}
	if m == 1 && (t == avx2 || t == avx512) { // q4Single256 asks in order
		every.sideBySide = 0
	}
	calls := (m + most - 1) / most
	for j := 0; j < n; j += TileN {
		cols := min(TileN, n-j)
		tile := &w[j/TileN*bytes]
		for line, call := 0, 0; line < m; call++ {
			rows := share(m-line, most)
			if tail != nil {
				for i := range rows {
					x.lastBlock(last[pitch*i:pitch*(i+1)], line+i, k, block)
				}
			}
			dst, ld := output(y, line, j, cols, out[:])
			ask := fetch(bytes, 0, every, call, calls, (j/TileN+1)*bytes >= len(w))
			t.callQ4(block, q4Call{
				rows: rows, blocks: full, y: dst, ldy: 4 * ld,
				x: codes.at(line, 0), ldx: codes.Stride, tail: tail, w: tile, request: ask,
				scale: &x.Scale[line], sums: sums.at(line, 0), ldsums: 4 * sums.Stride,
			})
			if cols < TileN {
				copyColumns(y, line, j, cols, rows, out[:])
			}
			line += rows
		}
	}
}

// q4Call are the arguments of a kernel that multiplies rows with a tile of 4-bit weights. Distances are in bytes. A kernel
// has those that it needs.
type q4Call struct {
	rows, blocks int
	y            *float32
	x, tail, w   *uint8
	panel        *uint8 // unpacked blocks, of kernels of panels
	scale        *float32
	sums         *int32 // of activations, which kernels of 512 bits do not need
	ldy, ldx     int
	ldsums       int
	request      // of prefetches
}

// callQ4 calls the kernel for a tier and a length of blocks.
func (t tier) callQ4(block int, c q4Call) {
	switch long := block != BlockK; {
	case t == avx512vnni && long:
		q4x128Rows512(c.rows, c.y, c.ldy, c.x, c.ldx, c.blocks, c.tail, c.w, c.ahead, c.stride, c.gap, c.scale)
	case t == avx512vnni:
		q4Rows512(c.rows, c.y, c.ldy, c.x, c.ldx, c.blocks, c.tail, c.w, c.ahead, c.stride, c.gap, c.scale)
	case t == avxvnni && long:
		q4x128RowsVNNI(c.rows, c.y, c.ldy, c.x, c.ldx, c.blocks, c.tail, c.w, c.ahead, c.stride, c.gap,
			c.scale, c.sums, c.ldsums)
	case t == avxvnni:
		q4RowsVNNI(c.rows, c.y, c.ldy, c.x, c.ldx, c.blocks, c.tail, c.w, c.ahead, c.stride, c.gap, c.scale, c.sums, c.ldsums)
	case long:
		q4x128Rows256(c.rows, c.y, c.ldy, c.x, c.ldx, c.blocks, c.tail, c.w, c.ahead, c.stride, c.gap,
			c.scale, c.sums, c.ldsums)
	default:
		q4Rows256(c.rows, c.y, c.ldy, c.x, c.ldx, c.blocks, c.tail, c.w, c.ahead, c.stride, c.gap, c.scale, c.sums, c.ldsums)
	}
}

// lastBlock writes the k%block last codes of row r, and if dst has room for them behind block codes, their sums.
func (a *Quantised) lastBlock(dst []byte, r, k, block int) {
	from := k / block * block
	copy(dst[:block], a.Codes.row(r, k)[from:])
	for i := range (len(dst) - block) / 4 {
		sum := int32(0)
		if pos := from/BlockK + i; pos*BlockK < k {
			sum = *a.Sums.at(r, pos)
		}
		binary.LittleEndian.PutUint32(dst[block+4*i:], uint32(sum))
	}
}

// Panels are unpacked parts of a tile of 4-bit weights.
const (
	panelRows  = 2*mostQ4x512 + 1 // rows from which unpacking a weight once pays: three calls would unpack it
	panelBytes = 16 * 1280        // of unpacked blocks
	cacheLine  = 64
)

// matMulQ4Panels is matMulQ4 for n a multiple of TileN: each panel of a tile is unpacked once for
// all rows. Kernels add to y, which starts at zero, and the last call of a tile multiplies by
// the scales.
func matMulQ4Panels(block int, y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	var space [panelBytes + cacheLine]byte
	var last [mostPanel * pack.Block128]uint8
	for i := range last {
		last[i] = 128
	}
	product := panelProduct{
		y: y, x: x, w: w, m: m, k: k, block: block, panel: aligned(space[:]), last: last[:],
	}
	blocks, step := (k+block-1)/block, panelBytes/panelBlockBytes(block)
	at := 0
	for j := 0; j < n; j += TileN {
		for row := range m {
			clear(y.row(row, n)[j : j+TileN])
		}
		for index := 0; index < blocks; index += step {
			count := min(step, blocks-index)
			product.add(j, at, index, count, index+count == blocks)
			at += count * q4BlockBytes(block)
		}
	}
}

// panelBlockBytes is the size of an unpacked block.
func panelBlockBytes(block int) int { return TileN*block + 8*TileN }

// panelProduct is the product of rows with 4-bit weights, a panel of unpacked blocks after the other.
type panelProduct struct {
	y     Matrix[float32]
	x     Quantised
	w     []byte
	m, k  int
	block int     // weights that share a scale
	panel []byte  // crossing cache lines costs a third of the speed
	last  []uint8 // room for the k%block last activations of each row, padded
}

// add unpacks count blocks at byte at of w, which begin at the block index, and adds their products to the columns from
// j on. With the last blocks of a tile it multiplies by the scales.
func (p *panelProduct) add(j, at, index, count int, last bool) {
	if p.block != BlockK {
		q4x128Unpack512(&p.panel[0], &p.w[at], count)
	} else {
		q4Unpack512(&p.panel[0], &p.w[at], count)
	}
	whole := min(count, p.k/p.block-index) // blocks with all activations: all, or all but the last
	bytes := count * q4BlockBytes(p.block)
	calls := (p.m + mostPanel - 1) / mostPanel
	for row, call := 0, 0; row < p.m; call++ {
		rows := share(p.m-row, mostPanel)
		ask := fetch(bytes, 0, turns{inOrder: p.block / 4 * count}, call, calls, at+bytes == len(p.w))
		var scale, wholeScale *float32
		if last {
			scale = &p.x.Scale[row]
		}
		if whole == count {
			wholeScale = scale
		}
		codes, out := p.x.Codes, p.y.at(row, j)
		if whole > 0 {
			p.call(q4Call{
				rows: rows, blocks: whole, y: out, ldy: 4 * p.y.Stride, x: codes.at(row, index*p.block), ldx: codes.Stride,
				panel: &p.panel[0], w: &p.w[at], request: ask, scale: wholeScale,
			})
		}
		if whole < count {
			for i := range rows {
				copy(p.last[p.block*i:p.block*(i+1)], codes.row(row+i, p.k)[p.k/p.block*p.block:])
			}
			p.call(q4Call{
				rows: rows, blocks: 1, y: out, ldy: 4 * p.y.Stride, x: &p.last[0], ldx: p.block,
				panel: &p.panel[whole*panelBlockBytes(p.block)], w: &p.w[at], scale: scale,
			})
		}
		row += rows
	}
}

// call calls the kernel for a length of blocks.
func (p *panelProduct) call(c q4Call) {
	if p.block != BlockK {
		q4x128Panel512(c.rows, c.y, c.ldy, c.x, c.ldx, c.blocks, c.panel, c.w, c.ahead, c.stride, c.scale)
	} else {
		q4Panel512(c.rows, c.y, c.ldy, c.x, c.ldx, c.blocks, c.panel, c.w, c.ahead, c.stride, c.scale)
	}
}
