package kernel

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hetc/hetc/planir/pack"
)

// Kernels for rows that are not packed ask memory for what they multiply next: with one call for a tile, for what lies
// a little ahead, with several, or side by side, for the next tile. Steps that are no multiple of a line may leave out
// a few of a hundred.
func TestVecFetchesAll(t *testing.T) {
	const k = 2048
	const blocks32, blocks128 = k / BlockK, k / pack.Block128
	q8cBytes, _ := q8cTileBytes(k)
	q6cBytes, _ := q6cTileBytes(k)
	always := func(inOrder, side int) func(int) turns { return func(int) turns { return turns{inOrder, side} } }
	steps := func(count int) func(int) turns { return func(rows int) turns { return avx512vnni.turns(count, rows) } }
	kernels := []fetchingKernel{
		{name: "q8cRows512", most: most512, bytes: q8cBytes, steps: k / 4, fetches: steps(k / 4)},
		{name: "q6cRows512", most: mostQ6Cx512, bytes: q6cBytes, steps: k / sixRows, fetches: always(k/sixRows, k/sixRows)},
		{name: "q4Rows512", most: mostQ4x512, bytes: blocks32 * q4BlockBytes(BlockK), steps: blocks32,
			fetches: always(blocks32*(BlockK/4+1), blocks32*(BlockK/16+1))},
		{name: "q4x128Rows512", most: mostQ4x512, bytes: blocks128 * q4BlockBytes(pack.Block128), steps: blocks128,
			fetches: always(blocks128*(pack.Block128/4+1), blocks128*(pack.Block128/16+1))},
		{name: "f32Rows512", most: most512, bytes: 4 * k * TileN, steps: k, fetches: steps(k)},
		{name: "bf16Rows512", most: most512, bytes: 2 * k * TileN, steps: k, fetches: always(k, 0)},
	}
	check(t, readAssembly("vec_avx512_amd64.s"), kernels, []int{1, 2, 5}, false, true)

	narrow := []fetchingKernel{
		{name: "q8cRowsVNNI", most: mostQ8CVNNI, bytes: q8cBytes, steps: k / 4, fetches: always(k/4, k/8)},
		{name: "q6cRowsVNNI", most: mostQ6C, bytes: q6cBytes, steps: k / sixRows, fetches: always(k/sixRows, k/sixRows)},
		{name: "q4RowsVNNI", most: mostQ4, bytes: blocks32 * q4BlockBytes(BlockK), steps: blocks32,
			fetches: always(blocks32*(BlockK/4+1), blocks32*(BlockK/16+1))},
		{name: "q4x128RowsVNNI", most: mostQ4, bytes: blocks128 * q4BlockBytes(pack.Block128), steps: blocks128,
			fetches: always(blocks128*(pack.Block128/4+1), blocks128*(pack.Block128/16+1))},
	}
	check(t, readAssembly("vec_avxvnni_amd64.s"), narrow, []int{1, 2, 5}, false, true)

	for i := range narrow { // the same with AVX2 alone, which has another kernel for 4-bit weights of one row
		narrow[i].name = strings.Replace(narrow[i].name, "VNNI", "256", 1)
		narrow[i].most = min(narrow[i].most, mostQ8C)
		if strings.HasPrefix(narrow[i].name, "q4") {
			narrow[i].least = 2
		}
	}
	check(t, readAssembly("vec_avx2_amd64.s"), narrow, []int{1, 2, 5}, false, true)
}

// Kernels of packed rows ask for the next tile, side by side for all of it. In order they leave lines out that the core
// fetches by itself.
func TestVecFetchesAllPacked(t *testing.T) {
	const k = 2048
	bytes, _ := q8cTileBytes(k)
	same := func(count int) func(int) turns { return func(int) turns { return turns{count, count} } }
	kernels := []fetchingKernel{
		{name: "q8cFirst512", least: 9, most: mostPacked, bytes: bytes, steps: k / 4, fetches: same(k / 16)},
		{name: "q8cPacked512", least: 9, most: mostPacked, bytes: bytes, steps: k / 4, fetches: same(k / 16)},
		{name: "f32Packed512", least: 9, most: mostPacked, bytes: 4 * k * TileN, steps: k, fetches: same(k / 4)},
		{name: "q4Packed512", least: 9, most: mostPacked, bytes: k / BlockK * q4BlockBytes(BlockK),
			steps: k / BlockK, fetches: same(2 * k / 32)},
		{name: "q4x128Packed512", least: 9, most: mostPacked,
			bytes: k / pack.Block128 * q4BlockBytes(pack.Block128), steps: k / pack.Block128, fetches: same(2 * k / 32)},
	}
	check(t, readAssembly("vec_packed512_amd64.s"), kernels, []int{2, 3, 10}, true)
}

// check executes kernels in the ways that are given, in order or side by side.
func check(t *testing.T, functions map[string]*assembly, kernels []fetchingKernel, calls []int, ways ...bool) {
	t.Helper()
	defer func(was bool) { sideBySide = was }(sideBySide)
	for _, kernel := range kernels {
		for rows := max(1, kernel.least); rows <= kernel.most; rows++ {
			for _, calls := range calls {
				for _, sideBySide = range ways {
					lines := kernel.bytes / line
					missing := kernel.notFetched(t, functions[kernel.name], rows, calls)
					if missing > lines/64 {
						what := fmt.Sprintf("%s of %d rows, %d calls, side by side %t", kernel.name, rows, calls, sideBySide)
						t.Errorf("%s: %d of %d lines are not asked for", what, missing, lines)
					}
				}
			}
		}
	}
}

// fetchingKernel is a kernel that asks for memory.
type fetchingKernel struct {
	name    string
	least   int                  // rows that it multiplies, 1 where it is 0
	most    int                  // of them
	bytes   int                  // of a tile
	steps   int                  // the argument steps, groups, blocks or k
	fetches func(rows int) turns // how often it asks
}

// notFetched executes the assembly of the calls for a tile, without its vectors, and returns how many lines of what is
// multiplied next they do not ask for.
func (f fetchingKernel) notFetched(t *testing.T, code *assembly, rows, calls int) int {
	t.Helper()
	const weight = 1 << 30
	asked := map[uint64]bool{}
	begin := uint64(0) // of what is multiplied next
	for call := range calls {
		ask := fetch(f.bytes, 0, f.fetches(rows), call, calls, false)
		if call == 0 {
			begin = uint64(weight + ask.ahead)
		}
		steps := uint64(f.steps)
		arguments := map[string]uint64{ // others are 0
			"rows":   uint64(rows),
			"steps":  steps,
			"groups": steps,
			"blocks": steps,
			"k":      steps,
			"w":      weight,
			"ahead":  uint64(ask.ahead),
			"stride": uint64(ask.stride),
			"gap":    uint64(ask.gap),
		}
		execute(t, code, &integerMachine{
			argument: func(name string, _ int) uint64 { return arguments[name] },
			fetch:    func(address uint64) { asked[address/line] = true },
		})
	}

	missing := 0
	for i := range f.bytes / line {
		if !asked[begin/line+uint64(i)] {
			missing++
		}
	}
	return missing
}

// execute runs a kernel, without its vectors, to its end.
func execute(t *testing.T, kernel *assembly, cpu *integerMachine) {
	t.Helper()
	for at := 0; ; at++ {
		line := &kernel.lines[at]
		if line.name == "RET" {
			return
		}
		if label, jumps := cpu.jumps(line); jumps {
			at = kernel.labels[label] - 1
			continue
		}
		vector := line.name[0] == 'V' || line.name == "BYTE" || line.name == "LONG" // see dotVEX in gen
		if !cpu.instruction(line) && !vector {
			t.Fatalf("%s is not known", line.name)
		}
	}
}
