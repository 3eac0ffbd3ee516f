//go:build tilemodel

package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/hetc/hetc/internal/number"
)

// tilesModelled says that instructions of tiles are interpreted.
const tilesModelled = true

// The kernels of tiles, for machines that have none: their assembly is interpreted on real memory, so that what reads
// or writes beyond a buffer crashes as it would. The instructions of tiles are decoded from their bytes, as the manual
// describes them, and every rule whose violation a processor answers with an exception is checked.

func q8cTilesAMX(config *byte, groups int, x *byte, pitch, stride, advance int, w *byte, steps, lag int,
	sums *int32, before *float32, ldb int, y *float32, ldy int, next *float32, last int, scales, xscale *float32,
	rows, fetch int, ahead *byte) {
	model("q8cTilesAMX", config, groups, x, pitch, stride, advance, w, steps, lag, sums, before, ldb, y, ldy, next, last,
		scales, xscale, rows, fetch, ahead)
}

func q8cStayingAMX(config *byte, groups int, x *byte, pitch, next, advance int, panel *byte, steps int, dots, sums,
	spare *int32, w *byte, fetch int, y *float32, ldy int) {
	model("q8cStayingAMX", config, groups, x, pitch, next, advance, panel, steps, dots, sums, spare, w, fetch, y, ldy)
}

func q8cScaleAMX(rows int, y *float32, ldy int, sums *int32, xscale, scales *float32) {
	model("q8cScaleAMX", rows, y, ldy, sums, xscale, scales)
}

// tileTimesAMX is that of a core of its own: the model has no clock.
func tileTimesAMX(_, _ *byte, times *uint64) { *times = 0 }

func q4TilesAMX(config *byte, groups int, x *byte, pitch, next, advance int, panel *byte, steps int, dots *int32, sums,
	spare *float32, w *byte, fetch int, y *float32, ldy int) {
	model("q4TilesAMX", config, groups, x, pitch, next, advance, panel, steps, dots, sums, spare, w, fetch, y, ldy)
}

func q4x128TilesAMX(config *byte, groups int, x *byte, pitch, next, advance int, panel *byte, steps int, dots *int32, sums,
	spare *float32, w *byte, fetch int, y *float32, ldy int) {
	model("q4x128TilesAMX", config, groups, x, pitch, next, advance, panel, steps, dots, sums, spare, w, fetch, y, ldy)
}

func scoreTilesAMX(config *byte, groups int, q *uint16, ldq int, k *uint16, ldk, pitch, strips, whole, rest int,
	s *float32, gap int) {
	model("scoreTilesAMX", config, groups, q, ldq, k, ldk, pitch, strips, whole, rest, s, gap)
}

func weighTilesAMX(config *byte, groups int, p, v *uint16, pitch, chunks, columns int, y *float32, ldy int) {
	model("weighTilesAMX", config, groups, p, v, pitch, chunks, columns, y, ldy)
}

// attendTilesAMX does what the kernel does by the kernels that it joins, of which those on vectors are not interpreted.
func attendTilesAMX(config *byte, groups int, q *uint16, ldq int, k *uint16, ldk, pitch, whole, rest int, s *float32,
	scale float32, state *float32, statePitch int, p, v *uint16, chunk, columns, width int, y *float32, ldy int) {
	for group := range groups {
		line := group * groupLines
		tops := unsafe.Slice(state, 3*statePitch/4)[line:]
		sums := unsafe.Slice(y, groups*groupLines*ldy/4)[line*ldy/4:]
		scoreTilesAMX(config, 1, &unsafe.Slice(q, groups*ldq/2)[group*ldq/2], ldq, k, ldk, pitch, keyBlock/stripKeys, whole,
			rest, s, 0)
		softmaxTiles512(s, groupChunks, scale, &tops[0], statePitch, p)
		fadeTiles512(groupLines, &sums[0], ldy, 16*columns, &tops[2*statePitch/4])
		weighing := shapeTiles(groupLines, tileK)
		for column := 0; column < columns; column += width {
			weighTilesAMX(&weighing[0], 1, p, &unsafe.Slice(v, columns*tileSize)[column*tileSize], chunk, groupChunks,
				min(width, columns-column), &sums[16*column], ldy)
		}
	}
}

func attendAskingAMX(config *byte, groups int, q *uint16, ldq int, k *uint16, ldk, pitch, whole, rest int, s *float32,
	scale float32, state *float32, statePitch int, p, v *uint16, chunk, columns, width int, y *float32, ldy int, _ *byte,
	_, _ int, _ *byte, _ int) {
	attendTilesAMX(config, groups, q, ldq, k, ldk, pitch, whole, rest, s, scale, state, statePitch, p, v, chunk, columns,
		width, y, ldy)
}

// scoreFewAMX is scoreTilesAMX, whose scores of sixteen lines are left out but for those in a row of few.
func scoreFewAMX(config *byte, q, k *uint16, ldk, pitch, fours, whole, rest int, s *float32, lds int, _ *byte,
	_, _, _ int) {
	wide := *(*tileConfig)(unsafe.Slice(config, len(tileConfig{})))
	for _, tile := range []int{0, 1, 2, 3, 4, 6} {
		wide.narrow(tile, 4*groupLines)
	}
	scores, lines := make([]float32, fours*4*stripKeys*groupLines), lds/4
	scoreTilesAMX(&wide[0], 1, q, 0, k, ldk, pitch, 4*fours, whole, rest, &scores[0], 0)
	few := unsafe.Slice(s, len(scores)/groupLines*lines)
	for at := range len(scores) / groupLines {
		copy(few[at*lines:(at+1)*lines], scores[at*groupLines:])
	}
}

// weighFewAMX does what the kernel does by those that it joins, chunk by chunk.
func weighFewAMX(config *byte, p *uint16, ldp int, v *uint16, ldv, chunks, wide, half16, columns int, room *uint16,
	y *float32, ldy int, _ *byte, _, _, _ int) {
	weights := unsafe.Slice(p, chunks*ldp/2)
	values := unsafe.Slice(v, (chunks*chunkKeys-1)*ldv/2+1)
	for chunk := range chunks {
		asked := (*byte)(unsafe.Pointer(p))
		pairTiles512(room, &values[chunk*chunkKeys*ldv/2], ldv, 1, 2*columns*tileSize, wide, 16*half16, asked, 0)
		weighTilesAMX(config, 1, &weights[chunk*ldp/2], room, 2*columns*tileSize, 1, columns, y, ldy)
	}
}

func tileUnpack32(panel, w *byte, blocks int)  { model("tileUnpack32", panel, w, blocks) }
func tileUnpack128(panel, w *byte, blocks int) { model("tileUnpack128", panel, w, blocks) }

func tileSteps32(dst *byte, pitch, advance int, x *uint8, turns int) {
	model("tileSteps32", dst, pitch, advance, x, turns)
}

func tileSteps64(dst *byte, pitch, advance int, x *uint8, turns int) {
	model("tileSteps64", dst, pitch, advance, x, turns)
}

func tileRow64(dst *byte, pitch int, x *uint8, turns int) { model("tileRow64", dst, pitch, x, turns) }

func q4ScaleAMX(rows int, y *float32, ldy int, sums, xscale *float32) {
	model("q4ScaleAMX", rows, y, ldy, sums, xscale)
}

func peakTilesAMX(config *byte, turns int, ones *byte, sums *int32) {
	model("peakTilesAMX", config, turns, ones, sums)
}

var modelFunctions = sync.OnceValue(func() map[string]*assembly { return readAssembly("vec_amx_amd64.s") })

// tile is a register of 16 rows of 64 bytes, of which the shape says how many count.
type tile struct {
	rows, bytes int
	data        [16][64]byte
}

// machine is what the kernels see of a processor.
type machine struct {
	integerMachine
	vectors    [32][64]byte
	configured bool
	tiles      [8]tile
}

// modelKeeps holds what a running kernel points to, so that it lies on the heap and stays there.
var (
	modelKeeps []any
	modelLock  sync.Mutex
)

// model runs a function to its end.
func model(name string, arguments ...any) {
	modelLock.Lock()
	defer modelLock.Unlock()
	modelKeeps = arguments
	cpu := &machine{}
	var values []uint64
	for _, argument := range arguments {
		switch value := argument.(type) { // SAFETY: modelKeeps holds the pointers until the next call
		case int:
			values = append(values, uint64(value))
		case *byte:
			values = append(values, uint64(uintptr(unsafe.Pointer(value))))
		case *uint16:
			values = append(values, uint64(uintptr(unsafe.Pointer(value))))
		case *int32:
			values = append(values, uint64(uintptr(unsafe.Pointer(value))))
		case *float32:
			values = append(values, uint64(uintptr(unsafe.Pointer(value))))
		}
	}

	cpu.argument = func(_ string, offset int) uint64 { return values[offset/8] }

	function := modelFunctions()[name]
	for at := 0; ; at++ {
		line := &function.lines[at]
		switch line.name {
		case "RET":
			if cpu.configured {
				panic(name + " returns with tiles configured")
			}
			return
		case "BYTE":
			if !asksForLine(line.code) {
				cpu.tileInstruction(line.code)
			}
			continue
		}
		if label, jumps := cpu.jumps(line); jumps {
			at = function.labels[label] - 1
			continue
		}
		if !cpu.instruction(line) {
			cpu.vector(line.name, line.operands, line.operands[len(line.operands)-1])
		}
	}
}

// asksForLine tells whether an instruction is PREFETCHW, with a base of 16 registers.
func asksForLine(code []byte) bool {
	if code[0]&0xf0 == 0x40 {
		code = code[1:]
	}
	return code[0] == 0x0f && code[1] == 0x0d
}

// at is memory that a kernel addresses.
func at(address uint64, size int) []byte {
	place := uintptr(address)
	// SAFETY: an address is that of an argument, which modelKeeps holds, and an offset; a kernel that leaves its
	// buffers is what the tests look for.
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&place))), size)
}

// vectorNumber returns the number of the vector register that an operand names, and its width in bytes.
func vectorNumber(operand string) (number, width int, ok bool) {
	if operand == "" || !strings.Contains("XYZ", operand[:1]) {
		return 0, 0, false
	}
	number, err := strconv.Atoi(operand[1:])
	return number, map[byte]int{'X': 16, 'Y': 32, 'Z': 64}[operand[0]], err == nil
}

// read is a vector operand of the given size, from a register or from memory.
func (m *machine) read(operand string, size int) (out [64]byte) {
	if number, _, ok := vectorNumber(operand); ok {
		out = m.vectors[number]
	} else {
		copy(out[:], at(m.address(operand), size))
	}
	return out
}

// vector executes an instruction of AVX-512.
func (m *machine) vector(name string, operands []string, last string) {
	number, width, register := vectorNumber(last)
	if !register { // a store
		source, size, _ := vectorNumber(operands[0])
		copy(at(m.address(last), size), m.vectors[source][:size])
		return
	}
	var out [64]byte
	words := func(f func(i int) uint32) {
		for i := range width / 4 {
			binary.LittleEndian.PutUint32(out[4*i:], f(i))
		}
	}
	word := func(v *[64]byte, i int) uint32 { return binary.LittleEndian.Uint32(v[4*i:]) }
	float := func(v *[64]byte, i int) float32 { return math.Float32frombits(word(v, i)) }

	switch name {
	case "VMOVUPS", "VMOVDQU", "VMOVDQU64":
		out = m.read(operands[0], width)
	case "VPBROADCASTD":
		words(func(int) uint32 { return uint32(m.value(operands[0])) })
	case "VBROADCASTSS":
		one := m.read(operands[0], 4)
		words(func(int) uint32 { return word(&one, 0) })
	case "VPADDD":
		a, b := m.read(operands[0], width), m.read(operands[1], width)
		words(func(i int) uint32 { return word(&a, i) + word(&b, i) })
	case "VPXORD":
		a, b := m.read(operands[0], width), m.read(operands[1], width)
		words(func(i int) uint32 { return word(&a, i) ^ word(&b, i) })
	case "VPSLLD":
		a, count := m.read(operands[1], width), m.value(operands[0])
		words(func(i int) uint32 { return word(&a, i) << count })
	case "VPTERNLOGD":
		table, a := m.value(operands[0]), m.vectors[number]
		b, c := m.read(operands[2], width), m.read(operands[1], width)
		words(func(i int) (result uint32) {
			for bit := range 32 {
				index := word(&a, i)>>bit&1<<2 | word(&b, i)>>bit&1<<1 | word(&c, i)>>bit&1
				result |= uint32(table>>index&1) << bit
			}
			return result
		})
	case "VCVTPH2PS":
		half := m.read(operands[0], width/2)
		words(func(i int) uint32 {
			return math.Float32bits(number16(half[2*i:]))
		})
	case "VCVTDQ2PS":
		a := m.read(operands[0], width)
		words(func(i int) uint32 { return math.Float32bits(float32(int32(word(&a, i)))) })
	case "VMULPS":
		a, b := m.read(operands[0], width), m.read(operands[1], width)
		words(func(i int) uint32 { return math.Float32bits(float(&a, i) * float(&b, i)) })
	case "VMULPS.BCST":
		a, b := m.read(operands[0], 4), m.read(operands[1], width)
		words(func(i int) uint32 { return math.Float32bits(float(&a, 0) * float(&b, i)) })
	case "VFMADD213PS":
		a, b, c := m.vectors[number], m.read(operands[1], width), m.read(operands[0], width)
		words(func(i int) uint32 { return math.Float32bits(fma32(float(&a, i), float(&b, i), float(&c, i))) })
	case "VFMADD231PS":
		a, b, c := m.read(operands[0], width), m.read(operands[1], width), m.vectors[number]
		words(func(i int) uint32 { return math.Float32bits(fma32(float(&a, i), float(&b, i), float(&c, i))) })
	default:
		panic("the model does not know " + name)
	}
	m.vectors[number] = out
}

// number16 is a float16 number in memory.
func number16(b []byte) float32 { return number.HalfToFloat(binary.LittleEndian.Uint16(b)) }

// tileInstruction decodes and executes an instruction with the three-byte VEX prefix.
func (m *machine) tileInstruction(code []byte) {
	if code[0] != 0xc4 || code[1]&0x1f != 2 || code[2]&0x84 != 0 {
		panic(fmt.Sprintf("% x is no instruction of tiles", code))
	}
	extended := ^code[1] >> 5 // of base, index and register
	source, prefix, opcode, mod := int(^code[2]>>3&15), code[2]&3, code[3], code[4]
	register, low := int(mod>>3&7|extended>>2&1<<3), int(mod&7)
	memory := mod>>6 != 3

	switch {
	case opcode == 0x49 && memory && prefix == 0 && register == 0:
		m.configure(at(m.general[low|int(extended&1)<<3], 64))
	case opcode == 0x49 && mod == 0xc0 && prefix == 0:
		m.configured, m.tiles = false, [8]tile{}
	case opcode == 0x49 && !memory && prefix == 3 && low == 0:
		m.usable(register).data = [16][64]byte{}
	case opcode == 0x4b && mod>>6 == 2 && low == 4 && prefix >= 1:
		base, index := code[5]&7|extended&1<<3, code[5]>>3&7|extended>>1&1<<3
		address := m.general[base] + uint64(int32(binary.LittleEndian.Uint32(code[6:])))
		stride, tile := m.general[index]<<(code[5]>>6), m.usable(register)
		stores := prefix == 2 // others load, 1 with a hint
		if !stores {
			tile.data = [16][64]byte{}
		}
		for row := range tile.rows {
			piece := at(address+uint64(row)*stride, tile.bytes)
			if stores {
				copy(piece, tile.data[row][:tile.bytes])
			} else {
				copy(tile.data[row][:], piece)
			}
		}
	case opcode == 0x5e && !memory && prefix == 3:
		multiplied(m.usable(register), m.usable(low), m.usable(source), multiplyBytes)
	case opcode == 0x5c && !memory && prefix == 2:
		multiplied(m.usable(register), m.usable(low), m.usable(source), multiplyPairs)
	default:
		panic(fmt.Sprintf("the model does not know % x", code))
	}
}

// usable is a tile that has a shape.
func (m *machine) usable(number int) *tile {
	if number > 7 || !m.configured || m.tiles[number].rows == 0 {
		panic(fmt.Sprintf("tile %d has no shape", number))
	}
	return &m.tiles[number]
}

// configure is LDTILECFG with palette 1.
func (m *machine) configure(from []byte) {
	m.tiles, m.configured = [8]tile{}, true
	for i, value := range from {
		reserved := i >= 1 && i < 16 || i >= 32 && i < 48 || i >= 56
		if i == 0 && value != 1 || reserved && value != 0 {
			panic(fmt.Sprintf("byte %d of the configuration is %d", i, value))
		}
	}

	for i := range m.tiles {
		tile := &m.tiles[i]
		tile.bytes, tile.rows = int(binary.LittleEndian.Uint16(from[16+2*i:])), int(from[48+i])
		if tile.bytes > 64 || tile.rows > 16 || (tile.bytes == 0) != (tile.rows == 0) {
			panic(fmt.Sprintf("tile %d has %d rows of %d bytes", i, tile.rows, tile.bytes))
		}
	}
}

// multiplied replaces each word of sum by what a product adds to it: rows of a, and columns of four bytes of the rows
// of b.
func multiplied(sum, a, b *tile, product func(sum uint32, row []byte, column func(i int) []byte) uint32) {
	if sum == a || a == b || sum == b {
		panic("a tile is used twice")
	}
	if sum.bytes%4 != 0 || a.bytes%4 != 0 || a.rows != sum.rows || b.rows != a.bytes/4 || b.bytes != sum.bytes {
		panic(fmt.Sprintf("%dx%d tile of %dx%d and %dx%d", sum.rows, sum.bytes, a.rows, a.bytes, b.rows, b.bytes))
	}

	for row := range sum.rows {
		for col := range sum.bytes / 4 {
			at := sum.data[row][4*col:]
			column := func(i int) []byte { return b.data[i][4*col : 4*col+4] }
			result := product(binary.LittleEndian.Uint32(at), a.data[row][:a.bytes], column)
			binary.LittleEndian.PutUint32(at, result)
		}
	}
}

// multiplyBytes is TDPBSSD: signed bytes in fours.
func multiplyBytes(sum uint32, row []byte, column func(i int) []byte) uint32 {
	total := int32(sum)
	for i, left := range row {
		total += int32(int8(left)) * int32(int8(column(i / 4)[i%4]))
	}
	return uint32(total)
}

// multiplyPairs is TDPBF16PS: the lower numbers of pairs and the higher ones have sums of their own, which are added to
// each other and then to what was there. Numbers of less than 2^-126 are zero.
func multiplyPairs(sum uint32, row []byte, column func(i int) []byte) uint32 {
	number := func(b []byte) float32 {
		return flushed(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16))
	}
	var sums [2]float32
	for i := 0; i < len(row); i += 2 {
		half := i / 2 % 2
		sums[half] = flushed(fma32(number(row[i:]), number(column(i / 4)[2*half:]), sums[half]))
	}
	both := flushed(sums[0] + sums[1])
	return math.Float32bits(flushed(flushed(math.Float32frombits(sum)) + both))
}

// flushed is a number, or zero where it is less than 2^-126.
func flushed(v float32) float32 {
	if math.Abs(float64(v)) < 0x1p-126 {
		return 0
	}
	return v
}

// The model counts what the loop of the peak does.
func TestTilePeak(t *testing.T) {
	if got, want := peakTiles(1), int64(2*4*16*16*64); got != want {
		t.Errorf("one turn did %d operations, want %d", got, want)
	}
}
