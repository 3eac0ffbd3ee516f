package kernel

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/pack"
)

// tileInstructions are those of tiles in the generated assembly: the text of each, and the bytes that stand for it.
func tileInstructions(t *testing.T) (texts []string, code [][]byte) {
	t.Helper()
	source, err := os.ReadFile("vec_amx_amd64.s")
	if err != nil {
		t.Fatal(err)
	}

	one := regexp.MustCompile(`BYTE +\$0x([0-9a-f]{2})`)
	instruction := regexp.MustCompile(`(?m)// (.*)\n((?:\s*BYTE .*\n)+)`)
	for _, match := range instruction.FindAllStringSubmatch(string(source), -1) {
		var bytes []byte
		for _, part := range one.FindAllStringSubmatch(match[2], -1) {
			var value byte
			if _, err := fmt.Sscanf(part[1], "%x", &value); err != nil {
				t.Fatal(err)
			}
			bytes = append(bytes, value)
		}
		texts, code = append(texts, match[1]), append(code, bytes)
	}

	if len(texts) < 50 {
		t.Fatalf("found %d instructions of tiles", len(texts))
	}
	return texts, code
}

// The GNU assembler makes the same bytes of the text that stands beside them.
func TestTileEncodings(t *testing.T) {
	texts, code := tileInstructions(t)
	sameEncodings(t, texts, code)
}

// sameEncodings compares the bytes of instructions with what the GNU assembler makes of their texts.
func sameEncodings(t *testing.T, texts []string, code [][]byte) {
	t.Helper()
	as, err := exec.LookPath("as")
	if err != nil {
		t.Skip("there is no GNU assembler to compare with:", err)
	}

	dir := t.TempDir()
	source, object := filepath.Join(dir, "code.s"), filepath.Join(dir, "code.bin")
	if err := os.WriteFile(source, []byte(strings.Join(texts, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, as, "--64", "-o", object, source).CombinedOutput(); err != nil {
		t.Skipf("this assembler does not know the instructions: %v: %.200s", err, out)
	}
	made, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}

	if bytes.Contains(made, slices.Concat(code...)) {
		return
	}
	for i := range code { // the first one that is not found after those before it
		if !bytes.Contains(made, slices.Concat(code[:i+1]...)) {
			t.Fatalf("instruction %d, %s: the assembler makes other bytes than % x", i, texts[i], code[i])
		}
	}
}

// The set of tiles is refused with what the machine lacks. Where it is there, it is the best one.
func TestTilesAreRefused(t *testing.T) {
	set, err := ByName("amx")
	reason := tilesLack()
	switch {
	case reason == "" && (err != nil || set.Name != "amx"):
		t.Errorf("with tiles: got %v, %v", set, err)
	case reason != "" && (diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), reason)):
		t.Errorf("without tiles: got %v, want class unavailable and the reason %q", err, reason)
	}
	if got, want := Best().Name == "amx", reason == ""; got != want {
		t.Errorf("the best set is %s, and tiles lack %q", Best().Name, reason)
	}
}

// The activations of a group lie in tiles, padding is zero, and packing a group packs all of its rows.
func TestPackTiles(t *testing.T) {
	tilesSet(t)
	for _, m := range []int{24, 32, 45, 128, 150, 256, 290} {
		for _, k := range []int{1, 31, 32, 64, 67, 100, 128, 200, 333} {
			for _, block := range []int{0, 32, 128} {
				x := make([]uint8, m*k)
				for i := range x {
					x[i] = uint8(i*7 + i>>8)
				}
				got := bytes.Repeat([]byte{0x5a}, PackedBytes(m, k, block))

				for group := range PackGroups(m) {
					packTiles(got, Rows(x, k), m, k, block, group)
				}

				if block == 0 {
					checkPackedTiles(t, got, x, m, k)
				} else {
					checkPackedNibbles(t, got, x, m, k, block)
				}
			}
		}
	}
}

// checkPackedTiles compares packed rows with the activations [m,k] that they are made of.
func checkPackedTiles(t *testing.T, got, x []uint8, m, k int) {
	t.Helper()
	const width = tileK
	padded := tiledK(k, 0)
	for row := range m {
		first := row / tilePass * tilePass
		rows := min(tilePass, m-first)
		for pos := range padded {
			piece := min(width, padded-pos/width*width)
			at := first*padded + pos/width*width*rows + row%tilePass*piece + pos%width
			want := uint8(0)
			if pos < k {
				want = x[row*k+pos] ^ 0x80
			}
			if got[at] != want {
				t.Fatalf("%dx%d: row %d, k %d is %#x, want %#x", m, k, row, pos, got[at], want)
			}
		}
	}
}

// checkPackedNibbles compares rows packed for blocks with the activations [m,k] that they are made of.
func checkPackedNibbles(t *testing.T, got, x []uint8, m, k, block int) {
	t.Helper()
	width := nibbleWidth(block)
	tiles := tiledK(k, block) / width // of a row
	for row := range m {
		piece := row / nibbleCall * nibbleCall
		left := min(nibbleCall, m-piece)
		for pos := range tiledK(k, block) {
			tile, of := pos/width, pos%width
			at := (piece*tiles + tile*left + row - piece) * width
			want := uint8(0)
			if pos < k {
				want = x[row*k+pos] ^ 0x80
			}
			if value := got[at+of]; value != want {
				t.Fatalf("%dx%d in blocks of %d: row %d, k %d is %#x, want %#x", m, k, block, row, pos, value, want)
			}
		}
	}
}

// tilesSet is the set amx, or the test is skipped with what this machine lacks. A model of tiles lacks nothing; what is
// not multiplied in tiles is then computed by the portable functions.
func tilesSet(t *testing.T) *Set {
	t.Helper()
	if tilesModelled {
		set := amxSet(Portable())
		set.MatMulQ4B32 = func(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
			fusedQ4(BlockK, y, x, w, m, k, n)
		}
		set.MatMulQ4B128 = func(y Matrix[float32], x Quantised, w []byte, m, k, n int) {
			fusedQ4(pack.Block128, y, x, w, m, k, n)
		}
		return set
	}

	if reason := tilesLack(); reason != "" {
		t.Skip(reason)
	}
	set, err := ByName("amx")
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// fusedQ4 is a product with 4-bit weights rounded as every set with fused multiply-adds rounds it.
func fusedQ4(block int, y Matrix[float32], x Quantised, w []byte, m, k, n int) {
	blocks, bytes := (k+block-1)/block, q4BlockBytes(block)
	for row := range m {
		for col := range n {
			sum := float32(0)
			for index := range blocks {
				packed := w[(col/TileN*blocks+index)*bytes:][:bytes]
				dot := int32(0)
				for pos := index * block; pos < min(k, (index+1)*block); pos++ {
					in := pos % block
					nibble := packed[in/4*64+col%16*4+in%4] >> (col % TileN / 16 * 4) & 15
					dot += (int32(nibble) - 8) * (int32(*x.Codes.at(row, pos)) - 128)
				}
				scale := number.HalfToFloat(binary.LittleEndian.Uint16(packed[16*block+2*(col%TileN):]))
				sum = fma32(float32(dot), scale, sum)
			}
			*y.at(row, col) = sum * x.Scale[row]
		}
	}
}

// Products in tiles are those of the portable set: whole groups of rows and what is left of one, in one pass and in
// several, and every remainder of k.
func TestTileProducts(t *testing.T) {
	sets := bothTiles(t)
	seed := uint64(0)
	for _, name := range tileProducts {
		for i, m := range []int{24, 25, 31, 32, 33, 47, 48, 64, 100} {
			for _, k := range []int{1, 3, 31, 32, 60, 61, 64, 65, 127, 128, 130, 192, 261} {
				seed++
				s := shape{
					m: m, k: k, n: []int{1, 32, 33, 64}[(int(seed)+i)%4],
					gapX: int(seed%4) * 5, gapY: int(seed%3) * 7, gapS: int(seed % 3),
				}
				x, w := newValues(uint8(seed)%kinds, seed, nil), newValues(uint8(seed/3)%kinds, seed+1<<32, nil)
				twinMatMul(t, sets, name, s, x, w, seed%2 == 0)
			}
		}

		// Parts of k with their pieces, and passes of the rows.
		for _, s := range []shape{
			{m: 24, k: tilePart + 64 + 5, n: 32}, {m: 33, k: 2*tilePart + 200, n: 40}, {m: 80, k: 2 * tilePart, n: 65},
			{m: 270, k: 70, n: 33}, {m: 300, k: 600, n: 32}, {m: 140, k: 1000, n: 64},
		} {
			twinMatMul(t, sets, name, s, newValues(plain, 5, nil), newValues(plain, 6, nil), true)
		}
	}

	// Passes whose weights stay in tiles, and those that are too small for it.
	rows := []int{127, 128, 129, 136, 200, 255, 256, 257, 384, 500}
	if tilesModelled {
		rows = []int{129, 257} // a model takes long
	}
	for i, m := range rows {
		for _, k := range []int{128, 256, 1024, 1152} {
			seed++
			s := shape{m: m, k: k, n: []int{31, 32, 33, 70}[(int(seed)+i)%4], gapX: i, gapY: int(seed % 3), gapS: i % 2}
			x, w := newValues(uint8(seed)%kinds, seed, nil), newValues(uint8(seed/3)%kinds, seed+1<<32, nil)
			twinMatMul(t, sets, "MatMulQ8C", s, x, w, seed%2 == 0)
			twinMatMul(t, sets, "MatMulRequant", s, x, newValues(uint8(seed/3)%kinds, seed+1<<32, nil), seed%2 == 0)
		}
	}
	s := shape{m: 130, k: tilePart + stayK, n: 33} // parts of k
	for _, name := range []string{"MatMulQ8C", "MatMulRequant"} {
		twinMatMul(t, sets, name, s, newValues(plain, 7, nil), newValues(plain, 8, nil), true)
	}
}

// bothTiles are the set of tiles twice: as on a core whose other hardware thread works, and as on one whose does not.
func bothTiles(t *testing.T) (sets []*Set) {
	t.Helper()
	for _, shared := range []bool{true, false} {
		set := *tilesSet(t)
		set.Name = fmt.Sprintf("%s, core shared %v", set.Name, shared)
		set.PackedQ8C = func(y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
			multiplyTiles(y, x, q8cSource(w, x.K), n, shared)
		}
		set.PackedRequant = func(y Matrix[float32], x PackedRows, w, scratch []byte, n int) {
			multiplyTiles(y, x, requantSource(w, x.K, scratch), n, shared)
		}
		sets = append(sets, &set)
	}
	return sets
}

// The clock runs while it is found out whether a core is shared.
func TestCoreShared(t *testing.T) {
	tilesSet(t)
	if tilesModelled {
		t.Skip("the model has no clock")
	}
	var times [2]uint64
	config, ones := shapeTiles(tileRows, tileK), [tileK]byte{}
	tileTimesAMX(&config[0], &ones[0], &times[0])
	if times[0] == 0 || times[1] == 0 {
		t.Errorf("products took %d ticks and the chain %d", times[0], times[1])
	}
}

// tileProducts are the products that the set of tiles has kernels for.
var tileProducts = []string{"MatMulQ8C", "MatMulQ4B32", "MatMulQ4B128", "MatMulRequant"}

// Products in tiles of any size are those of the portable set: also those of several passes of rows and parts of k.
func FuzzTiles(f *testing.F) {
	if reason := tilesLack(); reason != "" && !tilesModelled {
		f.Skip(reason)
	}
	for i := range uint8(len(tileProducts)) {
		f.Add(i, uint8(13), uint16(300), uint16(64), uint8(0), uint8(edges), uint8(highest), uint64(2), uint8(0))
		f.Add(i, uint8(31), uint16(200), uint16(70), uint8(9), uint8(plain), uint8(edges), uint64(4), uint8(0))
		f.Add(i, uint8(1), uint16(131), uint16(40), uint8(3), uint8(lowest), uint8(lowest), uint64(5), uint8(2))
		f.Add(i, uint8(22), uint16(7), uint16(33), uint8(1), uint8(highest), uint8(plain), uint64(7), uint8(4))
		f.Add(i, uint8(12), uint16(70), uint16(65), uint8(2), uint8(plain), uint8(plain), uint64(8), uint8(10))
		f.Add(i, uint8(0), uint16(129), uint16(5), uint8(0), uint8(edges), uint8(second), uint64(9), uint8(8))
	}
	// large has the parts of k and the passes of rows that are before what k and m say.
	f.Fuzz(func(t *testing.T, which, m uint8, k, n uint16, gaps, kindX, kindW uint8, seed uint64, large uint8) {
		const halfParts, halfPasses, mostProducts = 5, 3, 8 << 20
		name := tileProducts[int(which)%len(tileProducts)]
		s := shape{
			m:    packFrom + int(m%45) + int(large/halfParts%halfPasses)*tilePass/2,
			k:    1 + int(k%300) + int(large%halfParts)*tilePart/2,
			gapX: int(gaps % 8), gapY: int(gaps / 8 % 8), gapS: int(gaps / 64),
		}
		s.n = 1 + int(n)%min(70, mostProducts/(s.m*s.k)) // fewer columns of large ones
		x, w := newValues(kindX%kinds, seed, nil), newValues(kindW%kinds, seed+1, nil)
		twinMatMul(t, bothTiles(t), name, s, x, w, seed%2 == 1)
	})
}
