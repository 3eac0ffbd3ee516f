package kernel

import (
	"encoding/binary"
	"fmt"
	"sync"

	"golang.org/x/sys/cpu"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/pack"
)

//go:generate go run -C gen . -tier avx2 -out ../vec_avx2_amd64.s -stubs ../vec_avx2_amd64.go -pkg kernel
//go:generate go run -C gen . -tier avxvnni -out ../vec_avxvnni_amd64.s -stubs ../vec_avxvnni_amd64.go -pkg kernel
//go:generate go run -C gen . -tier avx512 -out ../vec_avx512_amd64.s -stubs ../vec_avx512_amd64.go -pkg kernel
//go:generate go run -C gen . -tier attention -out ../vec_heads_amd64.s -stubs ../vec_heads_amd64.go -pkg kernel
//go:generate go run -C gen . -tier peak -out ../vec_peak_amd64.s -stubs ../vec_peak_amd64.go -pkg kernel

// measuredSets returns the sets of vector instructions that this CPU has, slowest first.
func measuredSets() []*Set {
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
	return sets
}

// namedSets returns the sets that this machine has and that the timing of kernels does not choose.
func namedSets() []*Set {
	if tilesLack() != "" {
		return nil
	}
	return []*Set{amxSet(avx512vnni.set())}
}

// lacking says what this machine lacks for a set, "" where that is not known.
func lacking(name string) string {
	if name == "amx" {
		return tilesLack()
	}
	return ""
}

// tilesLack says why this process cannot multiply in tiles, "" if it can. The kernel keeps the state of tiles for
// processes that have asked for it, once.
var tilesLack = sync.OnceValue(func() string {
	features := &cpu.X86
	if !features.HasAMXTile || !features.HasAMXInt8 {
		return "the CPU has no tiles of 8-bit integers (AMX)"
	}
	if sets := measuredSets(); len(sets) == 0 || sets[len(sets)-1].Name != "avx512vnni" {
		return "the CPU has tiles (AMX) without AVX-512 VNNI"
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
	set.MatMulQ4B32 = func(y []float32, ldy int, x []uint8, ldx int, xscale []float32, sums []int32, ldsums int,
		w []byte, m, k, n int) {
		t.matMulQ4(BlockK, y, ldy, x, ldx, xscale, sums, ldsums, w, m, k, n)
	}
	set.MatMulQ4B128 = func(y []float32, ldy int, x []uint8, ldx int, xscale []float32, sums []int32, ldsums int,
		w []byte, m, k, n int) {
		t.matMulQ4(pack.Block128, y, ldy, x, ldx, xscale, sums, ldsums, w, m, k, n)
	}
	set.MatMulQ6C = t.matMulQ6C
	if t.wide() {
		set.PackFrom, set.PackRowsF32 = packFrom, packRowsF32
		set.PackedF32, set.PackedBF16 = packedF32, packedBF16
	}
	if t == avx512vnni {
		set.PackRows, set.PackedQ8C = packRows, packedQ8C
		set.PackedQ4B32 = func(y []float32, ldy int, x []byte, xscale []float32, w, scratch []byte, m, k, n int) {
			packedQ4(BlockK, y, ldy, x, xscale, w, scratch, m, k, n)
		}
		set.PackedQ4B128 = func(y []float32, ldy int, x []byte, xscale []float32, w, scratch []byte, m, k, n int) {
			packedQ4(pack.Block128, y, ldy, x, xscale, w, scratch, m, k, n)
		}
	}
	set.BlockSums, set.QuantRows, set.QuantStatic, set.Norm, set.LayerNorm = vecBlockSums, t.quantRows,
		t.quantStatic, vecNorm, vecLayerNorm
	set.GLU, set.Activate, set.Softcap, set.Gate, set.Scale = t.glu, vecActivate, vecSoftcap, vecGate, vecScale
	set.Add, set.Combine, set.Rope = vecAdd, t.combine, vecRope
	set.AttentionF32, set.AttentionF16, set.AttentionQ8 = t.attentionF32, t.attentionF16, t.attentionQ8
	set.Peak, set.Below, set.PoolBelow = vecPeak, vecBelow, vecPoolBelow
	set.FromF16, set.FromBF16, set.ToF16 = vecFromF16, vecFromBF16, vecToF16
	set.PeakI8, set.PeakF32, set.Stream, set.Issue = t.peakI8, t.peakF32, t.stream, issue
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

// fetch returns the arguments ahead and stride, in bytes, of call number call of calls over one
// tile, whose kernel prefetches in steps steps. With several calls each prefetches its part of the
// next tile, so that memory works while the core multiplies. A single call, and the calls of the
// last tile, prefetch a little ahead of themselves.
func fetch(tileBytes, steps, call, calls int, last bool) (ahead, stride int) {
	if calls == 1 || last {
		return prefetchBytes, (tileBytes + steps - 1) / steps
	}
	part := (tileBytes + calls - 1) / calls
	return tileBytes + call*part, (part + steps - 1) / steps
}

// fetches is how often a kernel of steps steps prefetches: with many rows the widest kernels do so
// every other step.
func (t tier) fetches(steps, rows int) int {
	if rows >= manyRows && t.wide() {
		return (steps + 1) / 2
	}
	return steps
}

// manyRows is the constant of the same name in gen.
const manyRows = 7

// output is where a kernel writes columns j.. of rows r..: y itself, or out where fewer than TileN
// columns exist in y. ld is in elements.
func output(y []float32, ldy, r, j, cols int, out *[maxRows * TileN]float32) (dst *float32, ld int) {
	if cols < TileN {
		return &out[0], TileN
	}
	return &y[r*ldy+j], ldy
}

// A pass takes some rows and some k of the activations over all tiles of a weight, so that they and the tiles' part
// stay in the second-level cache meanwhile.
const (
	passRows  = 132 // at most, a multiple of every row count of one call
	passBytes = 1 << 20
)

// passOf is how many of left rows the next pass takes.
func passOf(left int) int { return min(left, (share(left, passRows)+maxRows-1)/maxRows*maxRows) }

// matMulF32 divides the product into passes over rows and k.
func (t tier) matMulF32(y []float32, ldy int, x []float32, ldx int, w []float32, m, k, n int) {
	if m == 0 {
		return
	}
	// The assembly trusts its arguments: their ends must exist.
	_, _, _ = y[(m-1)*ldy+n-1], x[(m-1)*ldx+k-1], w[(n+TileN-1)/TileN*TileN*k-1]
	for row := 0; row < m; {
		rows, count := passOf(m-row), k
		if rows > t.mostF32() { // else every weight is used only once
			count = share(k, passBytes/(4*(rows+2*TileN))) // two tiles: this one and the next
		}
		for pos := 0; pos < k; pos += count {
			t.passF32(y[row*ldy:], ldy, x[row*ldx:], ldx, w, rows, k, n, pos, min(count, k-pos))
		}
		row += rows
	}
}

// passF32 is the part of matMulF32 over count of k from p on, added to y unless p is 0. Sums run in
// the order of k, so they are the same as in one pass.
func (t tier) passF32(y []float32, ldy int, x []float32, ldx int, w []float32, m, k, n, p, count int) {
	var out [maxRows * TileN]float32
	more := min(p, 1)
	most := t.mostF32()
	calls := (m + most - 1) / most
	for j := 0; j < n; j += TileN {
		cols := min(TileN, n-j)
		for row, call := 0, 0; row < m; call++ {
			rows := share(m-row, most)
			dst, ld := output(y, ldy, row, j, cols, &out)
			// the sum continues in out
			if cols < TileN && more != 0 {
				for i := range rows {
					copy(out[i*TileN:], y[(row+i)*ldy+j:(row+i)*ldy+j+cols])
				}
			}
			ahead, stride := fetch(4*count*TileN, t.fetches(count, rows), call, calls, j+TileN >= n)
			// the next tile's part begins after the rest of this tile
			if calls > 1 {
				ahead += 4 * (k - count) * TileN
			}
			t.rowsF32(rows, dst, ld, &x[row*ldx+p], ldx, count, &w[j*k+p*TileN], ahead, stride, more)
			if cols < TileN {
				copyColumns(y, ldy, row, j, cols, rows, out[:])
			}
			row += rows
		}
	}
}

// matMulBF16 takes all rows and all of k in one pass.
func (t tier) matMulBF16(y []float32, ldy int, x []float32, ldx int, w []uint16, m, k, n int) {
	if m == 0 {
		return
	}
	_, _, _ = y[(m-1)*ldy+n-1], x[(m-1)*ldx+k-1], w[(n+TileN-1)/TileN*TileN*k-1]
	var out [maxRows * TileN]float32
	most := t.mostF32()
	calls := (m + most - 1) / most
	for j := 0; j < n; j += TileN {
		cols := min(TileN, n-j)
		for row, call := 0, 0; row < m; call++ {
			rows := share(m-row, most)
			dst, ld := output(y, ldy, row, j, cols, &out)
			ahead, stride := fetch(2*k*TileN, k, call, calls, j+TileN >= n)
			if t.wide() {
				bf16Rows512(rows, dst, 4*ld, &x[row*ldx], 4*ldx, k, &w[j*k], ahead, stride)
			} else {
				bf16Rows256(rows, dst, 4*ld, &x[row*ldx], 4*ldx, k, &w[j*k], ahead, stride)
			}
			if cols < TileN {
				copyColumns(y, ldy, row, j, cols, rows, out[:])
			}
			row += rows
		}
	}
}

// matMulQ8C divides the product into passes over rows only: 8-bit rows are short.
func (t tier) matMulQ8C(y []float32, ldy int, x []uint8, ldx int, xscale []float32, w []byte, m, k, n int) {
	if m == 0 {
		return
	}
	bytes, _ := q8cTileBytes(k)
	_, _, _, _ = y[(m-1)*ldy+n-1], x[(m-1)*ldx+k-1], xscale[m-1], w[(n+TileN-1)/TileN*bytes-1]
	if m >= wordsFrom && (t == avx2 || t == avx512) {
		wordsQ8C(y, ldy, x, ldx, xscale, w, m, k, n)
		return
	}
	for row := 0; row < m; {
		rows := passOf(m - row)
		t.passQ8C(y[row*ldy:], ldy, x[row*ldx:], ldx, xscale[row:], w, rows, k, n)
		row += rows
	}
}

// passQ8C is matMulQ8C for rows that stay in the second-level cache.
func (t tier) passQ8C(y []float32, ldy int, x []uint8, ldx int, xscale []float32, w []byte, m, k, n int) {
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
					copy(last[4*i:4*i+4], x[(row+i)*ldx+k&^3:(row+i)*ldx+k])
				}
			}
			dst, ld := output(y, ldy, row, j, cols, &out)
			ahead, stride := fetch(bytes, t.fetches((k+3)/4, rows), call, calls, j+TileN >= n)
			switch t {
			case avx512vnni:
				q8cRows512(rows, dst, 4*ld, &x[row*ldx], ldx, k/4, tail, tile, ahead, stride, &xscale[row])
			case avxvnni:
				q8cRowsVNNI(rows, dst, 4*ld, &x[row*ldx], ldx, k/4, tail, tile, ahead, stride, &xscale[row])
			default:
				q8cRows256(rows, dst, 4*ld, &x[row*ldx], ldx, k/4, tail, tile, ahead, stride, &xscale[row])
			}
			if cols < TileN {
				copyColumns(y, ldy, row, j, cols, rows, out[:])
			}
			row += rows
		}
	}
}

// matMulQ6C unpacks a tile for each call of a kernel: weights of 6 bits are for few rows.
func (t tier) matMulQ6C(y []float32, ldy int, x []uint8, ldx int, xscale []float32, sums []int32, ldsums int, w []byte,
	m, k, n int) {
	if m == 0 {
		return
	}
	groups, whole, blocks := (k+sixRows-1)/sixRows, k/sixRows, (k+BlockK-1)/BlockK
	bytes, _ := q6cTileBytes(k)
	_, _, _, _, _ = y[(m-1)*ldy+n-1], x[(m-1)*ldx+k-1], xscale[m-1], sums[(m-1)*ldsums+blocks-1],
		w[(n+TileN-1)/TileN*bytes-1]
	most := mostQ6C
	if t == avx512vnni {
		most = mostQ6Cx512
	}
	var out [maxRows * TileN]float32
	var start [maxRows]int32
	var last [maxRows * sixRows]uint8 // the k%sixRows last activations of each row
	var tail *uint8
	// 128 stands for 0, so padding adds nothing
	if k%sixRows != 0 {
		tail = &last[0]
		for i := range last {
			last[i] = 128
		}
	}
	calls := (m + most - 1) / most
	for row, call := 0, 0; row < m; call++ {
		rows := share(m-row, most)
		for i := range rows {
			start[i] = sixStart(sums[(row+i)*ldsums:][:blocks])
			if tail != nil {
				copy(last[sixRows*i:sixRows*(i+1)], x[(row+i)*ldx+whole*sixRows:(row+i)*ldx+k])
			}
		}
		for j := 0; j < n; j += TileN {
			cols := min(TileN, n-j)
			tile := &w[j/TileN*bytes]
			dst, ld := output(y, ldy, row, j, cols, &out)
			ahead, stride := fetch(bytes, groups, call, calls, j+TileN >= n)
			switch t {
			case avx512vnni:
				q6cRows512(rows, dst, 4*ld, &x[row*ldx], ldx, whole, tail, tile, ahead, stride, &xscale[row], &start[0])
			case avxvnni:
				q6cRowsVNNI(rows, dst, 4*ld, &x[row*ldx], ldx, whole, tail, tile, ahead, stride, &xscale[row], &start[0])
			default:
				q6cRows256(rows, dst, 4*ld, &x[row*ldx], ldx, whole, tail, tile, ahead, stride, &xscale[row], &start[0])
			}
			if cols < TileN {
				copyColumns(y, ldy, row, j, cols, rows, out[:])
			}
		}
		row += rows
	}
}

// matMulQ4 is the product of 4-bit weights in blocks of block rows, BlockK or pack.Block128.
func (t tier) matMulQ4(block int, y []float32, ldy int, x []uint8, ldx int, xscale []float32, sums []int32,
	ldsums int, w []byte, m, k, n int) {
	if m == 0 {
		return
	}
	blocks, full := (k+block-1)/block, k/block
	bytes := blocks * q4BlockBytes(block)
	_, _, _, _, _ = y[(m-1)*ldy+n-1], x[(m-1)*ldx+k-1], xscale[m-1], sums[(m-1)*ldsums+(k+BlockK-1)/BlockK-1],
		w[(n+TileN-1)/TileN*bytes-1]
	if m >= nibblesFrom && (t == avx2 || t == avx512) {
		nibblesQ4(block, y, ldy, x, ldx, xscale, sums, ldsums, w, m, k, n)
		return
	}
	// Many rows: unpack whole tiles first, and do the rest below.
	if whole := n &^ (TileN - 1); t == avx512vnni && m >= panelRows && whole > 0 {
		matMulQ4Panels(block, y, ldy, x, ldx, xscale, w[:whole/TileN*bytes], m, k, whole)
		if y, w, n = y[whole:], w[whole/TileN*bytes:], n-whole; n == 0 {
			return
		}
	}
	var out [maxRows * TileN]float32
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
	calls := (m + most - 1) / most
	for j := 0; j < n; j += TileN {
		cols := min(TileN, n-j)
		tile := &w[j/TileN*bytes]
		// rows share the tile; each call takes as many as its kernel has registers for
		for line, call := 0, 0; line < m; call++ {
			rows := share(m-line, most)
			if tail != nil {
				for i := range rows {
					row := last[pitch*i : pitch*(i+1)]
					copy(row[:block], x[(line+i)*ldx+full*block:(line+i)*ldx+k])
					for index := range (pitch - block) / 4 {
						sum := int32(0)
						if pos := full*block/BlockK + index; pos*BlockK < k {
							sum = sums[(line+i)*ldsums+pos]
						}
						binary.LittleEndian.PutUint32(row[block+4*index:], uint32(sum))
					}
				}
			}
			dst, ld := output(y, ldy, line, j, cols, &out)
			ahead, stride := fetch(bytes, (block/4+1)*blocks, call, calls, j+TileN >= n)
			switch long := block != BlockK; {
			case t == avx512vnni && long:
				q4x128Rows512(rows, dst, 4*ld, &x[line*ldx], ldx, full, tail, tile, ahead, stride, &xscale[line])
			case t == avx512vnni:
				q4Rows512(rows, dst, 4*ld, &x[line*ldx], ldx, full, tail, tile, ahead, stride, &xscale[line])
			case t == avxvnni && long:
				q4x128RowsVNNI(rows, dst, 4*ld, &x[line*ldx], ldx, full, tail, tile, ahead, stride, &xscale[line],
					&sums[line*ldsums], 4*ldsums)
			case t == avxvnni:
				q4RowsVNNI(rows, dst, 4*ld, &x[line*ldx], ldx, full, tail, tile, ahead, stride, &xscale[line],
					&sums[line*ldsums], 4*ldsums)
			case long:
				q4x128Rows256(rows, dst, 4*ld, &x[line*ldx], ldx, full, tail, tile, ahead, stride, &xscale[line],
					&sums[line*ldsums], 4*ldsums)
			default:
				q4Rows256(rows, dst, 4*ld, &x[line*ldx], ldx, full, tail, tile, ahead, stride, &xscale[line],
					&sums[line*ldsums], 4*ldsums)
			}
			if cols < TileN {
				copyColumns(y, ldy, line, j, cols, rows, out[:])
			}
			line += rows
		}
	}
}

// Panels are unpacked parts of a tile of 4-bit weights.
const (
	panelRows  = 2*mostQ4x512 + 1 // rows from which unpacking a weight once pays: those of three calls of a kernel that unpacks it
	panelBytes = 16 * 1280        // of unpacked blocks
	cacheLine  = 64
)

// matMulQ4Panels is matMulQ4 for n a multiple of TileN: each panel of a tile is unpacked once for
// all rows. Kernels add to y, which starts at zero, and the last call of a tile multiplies by
// xscale.
func matMulQ4Panels(block int, y []float32, ldy int, x []uint8, ldx int, xscale []float32, w []byte, m, k, n int) {
	long := block != BlockK
	panelBlock := TileN*block + 8*TileN // bytes of an unpacked block
	var space [panelBytes + cacheLine]byte
	panel := space[-mem.Address(space[:])&(cacheLine-1):] // crossing lines costs a third of the speed
	var last [mostPanel * pack.Block128]uint8             // the k%block last activations of each row
	for i := range last {
		last[i] = 128
	}
	blocks, full, step := (k+block-1)/block, k/block, panelBytes/panelBlock
	calls := (m + mostPanel - 1) / mostPanel
	at := 0
	for j := 0; j < n; j += TileN {
		for row := range m {
			clear(y[row*ldy+j : row*ldy+j+TileN])
		}
		// whole counts the blocks of this panel that have all their activations: all, or all but
		// the last
		for index := 0; index < blocks; index += step {
			count := min(step, blocks-index)
			whole := min(count, full-index) // blocks with all activations: all, or all but the last
			if long {
				q4x128Unpack512(&panel[0], &w[at], count)
			} else {
				q4Unpack512(&panel[0], &w[at], count)
			}
			next := at + count*q4BlockBytes(block)
			for row, call := 0, 0; row < m; call++ {
				rows := share(m-row, mostPanel)
				ahead, stride := fetch(count*q4BlockBytes(block), block/4*count, call, calls, next == len(w))
				var scale, wholeScale *float32
				if index+count == blocks {
					scale = &xscale[row]
				}
				if whole == count {
					wholeScale = scale
				}
				if whole > 0 {
					if long {
						q4x128Panel512(rows, &y[row*ldy+j], 4*ldy, &x[row*ldx+index*block], ldx, whole,
							&panel[0], &w[at], ahead, stride, wholeScale)
					} else {
						q4Panel512(rows, &y[row*ldy+j], 4*ldy, &x[row*ldx+index*block], ldx, whole,
							&panel[0], &w[at], ahead, stride, wholeScale)
					}
				}
				// the last block, with padded activations
				if whole < count {
					for i := range rows {
						copy(last[block*i:block*(i+1)], x[(row+i)*ldx+full*block:(row+i)*ldx+k])
					}
					if long {
						q4x128Panel512(rows, &y[row*ldy+j], 4*ldy, &last[0], block, 1,
							&panel[whole*panelBlock], &w[at], 0, 0, scale)
					} else {
						q4Panel512(rows, &y[row*ldy+j], 4*ldy, &last[0], block, 1, &panel[whole*panelBlock],
							&w[at], 0, 0, scale)
					}
				}
				row += rows
			}
			at = next
		}
	}
}
