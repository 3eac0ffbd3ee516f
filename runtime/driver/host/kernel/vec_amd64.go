package kernel

import (
	"encoding/binary"

	"golang.org/x/sys/cpu"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/pack"
)

//go:generate go run -C gen . -tier avx2 -out ../vec_avx2_amd64.s -stubs ../vec_avx2_amd64.go -pkg kernel
//go:generate go run -C gen . -tier avxvnni -out ../vec_avxvnni_amd64.s -stubs ../vec_avxvnni_amd64.go -pkg kernel
//go:generate go run -C gen . -tier avx512 -out ../vec_avx512_amd64.s -stubs ../vec_avx512_amd64.go -pkg kernel
//go:generate go run -C gen . -tier peak -out ../vec_peak_amd64.s -stubs ../vec_peak_amd64.go -pkg kernel

// vectorSets returns the sets of vector instructions that this CPU has, slowest first.
func vectorSets() []*Set {
	c := &cpu.X86
	if !c.HasAVX2 || !c.HasFMA || !c.HasF16C {
		return nil
	}
	wide := c.HasAVX512F && c.HasAVX512BW && c.HasAVX512VL && c.HasAVX512DQ
	var sets []*Set
	for _, t := range []struct {
		tier tier
		has  bool
	}{{avx2, true}, {avx512, wide}, {avxvnni, c.HasAVXVNNI}, {avx512vnni, wide && c.HasAVX512VNNI}} {
		if t.has {
			sets = append(sets, t.tier.set())
		}
	}
	return sets
}

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
	s := Portable()
	s.Name = [...]string{avx2: "avx2", avx512: "avx512", avxvnni: "avxvnni", avx512vnni: "avx512vnni"}[t]
	s.MatMulF32, s.MatMulBF16, s.MatMulQ8C = t.matMulF32, t.matMulBF16, t.matMulQ8C
	s.MatMulQ4B32 = func(y []float32, ldy int, x []uint8, ldx int, xscale []float32, sums []int32, ldsums int, w []byte, m, k, n int) {
		t.matMulQ4(BlockK, y, ldy, x, ldx, xscale, sums, ldsums, w, m, k, n)
	}
	s.MatMulQ4B128 = func(y []float32, ldy int, x []uint8, ldx int, xscale []float32, sums []int32, ldsums int, w []byte, m, k, n int) {
		t.matMulQ4(pack.Block128, y, ldy, x, ldx, xscale, sums, ldsums, w, m, k, n)
	}
	if t.wide() {
		s.PackFrom, s.PackRowsF32 = packFrom, packRowsF32
		s.PackedF32, s.PackedBF16 = packedF32, packedBF16
	}
	if t == avx512vnni {
		s.PackRows, s.PackedQ8C = packRows, packedQ8C
		s.PackedQ4B32 = func(y []float32, ldy int, x []byte, xscale []float32, w, scratch []byte, m, k, n int) {
			packedQ4(BlockK, y, ldy, x, xscale, w, scratch, m, k, n)
		}
		s.PackedQ4B128 = func(y []float32, ldy int, x []byte, xscale []float32, w, scratch []byte, m, k, n int) {
			packedQ4(pack.Block128, y, ldy, x, xscale, w, scratch, m, k, n)
		}
	}
	s.BlockSums, s.QuantRows, s.QuantStatic, s.Norm, s.LayerNorm = vecBlockSums, vecQuantRows, vecQuantStatic, vecNorm, vecLayerNorm
	s.GLU, s.Activate, s.Softcap, s.Gate, s.Scale = vecGLU, vecActivate, vecSoftcap, vecGate, vecScale
	s.Add, s.Combine, s.Rope = vecAdd, t.combine, vecRope
	s.AttentionF32, s.AttentionF16 = t.attentionF32, t.attentionF16
	s.FromF16, s.FromBF16, s.ToF16 = vecFromF16, vecFromBF16, vecToF16
	s.PeakI8, s.PeakF32, s.Stream, s.Issue = t.peakI8, t.peakF32, t.stream, issue
	return s
}

// The row counts of one call of a matrix kernel, limited by registers.
const (
	maxRows     = 12
	mostF32     = 3
	mostQ8C     = 2
	mostQ8CVNNI = 3
	mostQ4      = 2
	most512     = 12
	mostQ4x512  = 6
)

// share is how many of left rows the next call takes: as few calls as possible, of nearly equal size,
// so that time grows evenly with the number of rows.
func share(left, most int) int {
	calls := (left + most - 1) / most
	return (left + calls - 1) / calls
}

// mostF32 is the number of rows of a float32 product.
func (t tier) mostF32() int {
	if t.wide() {
		return most512
	}
	return mostF32
}

// prefetchBytes is how far ahead of its use a weight is asked for. The hardware prefetcher stops at page ends.
const prefetchBytes = 4096

// fetch tells call (of calls over the same tile) which weights to ask for while it computes: its share
// of the next tile, so that memory works while the cores multiply; with a single call, what is a little
// ahead. steps is how often the kernel asks for a tile.
func fetch(tileBytes, steps, call, calls int, last bool) (ahead, stride int) {
	if calls == 1 || last {
		return prefetchBytes, (tileBytes + steps - 1) / steps
	}
	part := (tileBytes + calls - 1) / calls
	return tileBytes + call*part, (part + steps - 1) / steps
}

// fetches is how often a kernel of steps steps asks for weights; with many rows the widest ones do so every other step.
func (t tier) fetches(steps, rows int) int {
	if rows >= manyRows && t.wide() {
		return (steps + 1) / 2
	}
	return steps
}

const manyRows = 7

// output is where a kernel writes one tile of rows [r,r+rows): y itself, or out if the tile's last columns
// do not exist in y.
func output(y []float32, ldy, r, j, cols int, out *[maxRows * TileN]float32) (dst *float32, ld int) {
	if cols < TileN {
		return &out[0], TileN
	}
	return &y[r*ldy+j], ldy
}

func copyColumns(y []float32, ldy, r, j, cols, rows int, out *[maxRows * TileN]float32) {
	for i := range rows {
		copy(y[(r+i)*ldy+j:(r+i)*ldy+j+cols], out[i*TileN:])
	}
}

// A pass takes some rows and some k of the activations over all tiles of a weight, so that they and the tiles' part
// stay in the second-level cache meanwhile.
const (
	passRows  = 132 // at most, a multiple of every row count of one call
	passBytes = 1 << 20
)

// passOf is how many of left rows the next pass takes.
func passOf(left int) int { return min(left, (share(left, passRows)+maxRows-1)/maxRows*maxRows) }

func (t tier) matMulF32(y []float32, ldy int, x []float32, ldx int, w []float32, m, k, n int) {
	if m == 0 {
		return
	}
	// The assembly trusts its arguments: their ends must exist.
	_, _, _ = y[(m-1)*ldy+n-1], x[(m-1)*ldx+k-1], w[(n+TileN-1)/TileN*TileN*k-1]
	for r := 0; r < m; {
		rows, count := passOf(m-r), k
		if rows > t.mostF32() { // else every weight is used only once
			count = share(k, passBytes/(4*(rows+2*TileN))) // two tiles: this one and the next
		}
		for p := 0; p < k; p += count {
			t.passF32(y[r*ldy:], ldy, x[r*ldx:], ldx, w, rows, k, n, p, min(count, k-p))
		}
		r += rows
	}
}

// passF32 is matMulF32 over count k from p on, added to y unless p is 0. Sums are the same as in one pass.
func (t tier) passF32(y []float32, ldy int, x []float32, ldx int, w []float32, m, k, n, p, count int) {
	var out [maxRows * TileN]float32
	more := min(p, 1)
	most := t.mostF32()
	calls := (m + most - 1) / most
	for j := 0; j < n; j += TileN {
		cols := min(TileN, n-j)
		for r, call := 0, 0; r < m; call++ {
			rows := share(m-r, most)
			dst, ld := output(y, ldy, r, j, cols, &out)
			if cols < TileN && more != 0 {
				for i := range rows {
					copy(out[i*TileN:], y[(r+i)*ldy+j:(r+i)*ldy+j+cols])
				}
			}
			ahead, stride := fetch(4*count*TileN, t.fetches(count, rows), call, calls, j+TileN >= n)
			if calls > 1 {
				ahead += 4 * (k - count) * TileN
			}
			t.rowsF32(rows, dst, ld, &x[r*ldx+p], ldx, count, &w[j*k+p*TileN], ahead, stride, more)
			if cols < TileN {
				copyColumns(y, ldy, r, j, cols, rows, &out)
			}
			r += rows
		}
	}
}

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
		for r, call := 0, 0; r < m; call++ {
			rows := share(m-r, most)
			dst, ld := output(y, ldy, r, j, cols, &out)
			ahead, stride := fetch(2*k*TileN, k, call, calls, j+TileN >= n)
			if t.wide() {
				bf16Rows512(rows, dst, 4*ld, &x[r*ldx], 4*ldx, k, &w[j*k], ahead, stride)
			} else {
				bf16Rows256(rows, dst, 4*ld, &x[r*ldx], 4*ldx, k, &w[j*k], ahead, stride)
			}
			if cols < TileN {
				copyColumns(y, ldy, r, j, cols, rows, &out)
			}
			r += rows
		}
	}
}

func (t tier) matMulQ8C(y []float32, ldy int, x []uint8, ldx int, xscale []float32, w []byte, m, k, n int) {
	if m == 0 {
		return
	}
	bytes, _ := q8cTileBytes(k)
	_, _, _, _ = y[(m-1)*ldy+n-1], x[(m-1)*ldx+k-1], xscale[m-1], w[(n+TileN-1)/TileN*bytes-1]
	for r := 0; r < m; {
		rows := passOf(m - r)
		t.passQ8C(y[r*ldy:], ldy, x[r*ldx:], ldx, xscale[r:], w, rows, k, n)
		r += rows
	}
}

// passQ8C is matMulQ8C for rows that stay in the second-level cache.
func (t tier) passQ8C(y []float32, ldy int, x []uint8, ldx int, xscale []float32, w []byte, m, k, n int) {
	bytes, _ := q8cTileBytes(k)
	var out [maxRows * TileN]float32
	var last [maxRows * 4]uint8 // the k%4 last activations of each row
	var tail *uint8
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
		for r, call := 0, 0; r < m; call++ {
			rows := share(m-r, most)
			if tail != nil {
				for i := range rows {
					copy(last[4*i:4*i+4], x[(r+i)*ldx+k&^3:(r+i)*ldx+k])
				}
			}
			dst, ld := output(y, ldy, r, j, cols, &out)
			ahead, stride := fetch(bytes, t.fetches((k+3)/4, rows), call, calls, j+TileN >= n)
			switch t {
			case avx512vnni:
				q8cRows512(rows, dst, 4*ld, &x[r*ldx], ldx, k/4, tail, tile, ahead, stride, &xscale[r])
			case avxvnni:
				q8cRowsVNNI(rows, dst, 4*ld, &x[r*ldx], ldx, k/4, tail, tile, ahead, stride, &xscale[r])
			default:
				q8cRows256(rows, dst, 4*ld, &x[r*ldx], ldx, k/4, tail, tile, ahead, stride, &xscale[r])
			}
			if cols < TileN {
				copyColumns(y, ldy, r, j, cols, rows, &out)
			}
			r += rows
		}
	}
}

// matMulQ4 is the product of 4-bit weights in blocks of block rows, BlockK or pack.Block128.
func (t tier) matMulQ4(block int, y []float32, ldy int, x []uint8, ldx int, xscale []float32, sums []int32, ldsums int, w []byte, m, k, n int) {
	if m == 0 {
		return
	}
	blocks, full := (k+block-1)/block, k/block
	bytes := blocks * q4BlockBytes(block)
	_, _, _, _, _ = y[(m-1)*ldy+n-1], x[(m-1)*ldx+k-1], xscale[m-1], sums[(m-1)*ldsums+(k+BlockK-1)/BlockK-1], w[(n+TileN-1)/TileN*bytes-1]
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
		for r, call := 0, 0; r < m; call++ {
			rows := share(m-r, most)
			if tail != nil {
				for i := range rows {
					row := last[pitch*i : pitch*(i+1)]
					copy(row[:block], x[(r+i)*ldx+full*block:(r+i)*ldx+k])
					for b := range (pitch - block) / 4 {
						sum := int32(0)
						if p := full*block/BlockK + b; p*BlockK < k {
							sum = sums[(r+i)*ldsums+p]
						}
						binary.LittleEndian.PutUint32(row[block+4*b:], uint32(sum))
					}
				}
			}
			dst, ld := output(y, ldy, r, j, cols, &out)
			ahead, stride := fetch(bytes, (block/4+1)*blocks, call, calls, j+TileN >= n)
			switch long := block != BlockK; {
			case t == avx512vnni && long:
				q4x128Rows512(rows, dst, 4*ld, &x[r*ldx], ldx, full, tail, tile, ahead, stride, &xscale[r])
			case t == avx512vnni:
				q4Rows512(rows, dst, 4*ld, &x[r*ldx], ldx, full, tail, tile, ahead, stride, &xscale[r])
			case t == avxvnni && long:
				q4x128RowsVNNI(rows, dst, 4*ld, &x[r*ldx], ldx, full, tail, tile, ahead, stride, &xscale[r], &sums[r*ldsums], 4*ldsums)
			case t == avxvnni:
				q4RowsVNNI(rows, dst, 4*ld, &x[r*ldx], ldx, full, tail, tile, ahead, stride, &xscale[r], &sums[r*ldsums], 4*ldsums)
			case long:
				q4x128Rows256(rows, dst, 4*ld, &x[r*ldx], ldx, full, tail, tile, ahead, stride, &xscale[r], &sums[r*ldsums], 4*ldsums)
			default:
				q4Rows256(rows, dst, 4*ld, &x[r*ldx], ldx, full, tail, tile, ahead, stride, &xscale[r], &sums[r*ldsums], 4*ldsums)
			}
			if cols < TileN {
				copyColumns(y, ldy, r, j, cols, rows, &out)
			}
			r += rows
		}
	}
}

const (
	panelRows  = 7         // rows from which unpacking a weight beforehand pays
	panelBytes = 16 * 1280 // of unpacked blocks
	cacheLine  = 64
)

// matMulQ4Panels is matMulQ4 for n a multiple of TileN: a panel of each tile is unpacked once for all rows.
func matMulQ4Panels(block int, y []float32, ldy int, x []uint8, ldx int, xscale []float32, w []byte, m, k, n int) {
	long := block != BlockK
	panelBlock := TileN*block + 8*TileN // bytes of an unpacked block
	var space [panelBytes + cacheLine]byte
	panel := space[-mem.Address(space[:])&(cacheLine-1):] // crossing lines costs a third of the speed
	var last [most512 * pack.Block128]uint8               // the k%block last activations of each row
	for i := range last {
		last[i] = 128
	}
	var around [(most512 + 1) * TileN]float32
	sums := around[-mem.Address(mem.Bytes(around[:]))&(cacheLine-1)/4:]
	blocks, full, step := (k+block-1)/block, k/block, panelBytes/panelBlock
	calls := (m + most512 - 1) / most512
	at := 0
	for j := 0; j < n; j += TileN {
		for r := range m {
			clear(y[r*ldy+j : r*ldy+j+TileN])
		}
		for b := 0; b < blocks; b += step {
			count := min(step, blocks-b)
			whole := min(count, full-b) // blocks with all activations: all, or all but the last
			if long {
				q4x128Unpack512(&panel[0], &w[at], count)
			} else {
				q4Unpack512(&panel[0], &w[at], count)
			}
			next := at + count*q4BlockBytes(block)
			for r, call := 0, 0; r < m; call++ {
				rows := share(m-r, most512)
				ahead, stride := fetch(count*q4BlockBytes(block), block/4*count, call, calls, next == len(w))
				var scale, wholeScale *float32
				if b+count == blocks {
					scale = &xscale[r]
				}
				if whole == count {
					wholeScale = scale
				}
				if whole > 0 {
					if long {
						q4x128Panel512(rows, &y[r*ldy+j], 4*ldy, &sums[0], &x[r*ldx+b*block], ldx, whole, &panel[0], &w[at], ahead, stride, wholeScale)
					} else {
						q4Panel512(rows, &y[r*ldy+j], 4*ldy, &sums[0], &x[r*ldx+b*block], ldx, whole, &panel[0], &w[at], ahead, stride, wholeScale)
					}
				}
				if whole < count {
					for i := range rows {
						copy(last[block*i:block*(i+1)], x[(r+i)*ldx+full*block:(r+i)*ldx+k])
					}
					if long {
						q4x128Panel512(rows, &y[r*ldy+j], 4*ldy, &sums[0], &last[0], block, 1, &panel[whole*panelBlock], &w[at], 0, 0, scale)
					} else {
						q4Panel512(rows, &y[r*ldy+j], 4*ldy, &sums[0], &last[0], block, 1, &panel[whole*panelBlock], &w[at], 0, 0, scale)
					}
				}
				r += rows
			}
			at = next
		}
	}
}
