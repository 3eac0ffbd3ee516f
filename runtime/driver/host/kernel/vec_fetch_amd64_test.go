package kernel

import (
	"fmt"
	"testing"

	"github.com/hetc/hetc/planir/pack"
)

// Kernels for rows that are not packed ask memory for what they multiply next: with one call for a tile, for what lies
// a little ahead, with several, for the next tile. Steps that are no multiple of a line may leave out one of a hundred.
func TestVecFetchesAll(t *testing.T) {
	const k = 2048
	const blocks32, blocks128 = k / BlockK, k / pack.Block128
	q8cBytes, _ := q8cTileBytes(k)
	q6cBytes, _ := q6cTileBytes(k)
	always := func(count int) func(int) int { return func(int) int { return count } }
	steps := func(count int) func(int) int { return func(rows int) int { return avx512vnni.fetches(count, rows) } }
	kernels := []fetchingKernel{
		{name: "q8cRows512", most: most512, bytes: q8cBytes, steps: k / 4, fetches: steps(k / 4)},
		{name: "q6cRows512", most: mostQ6Cx512, bytes: q6cBytes, steps: k / sixRows, fetches: always(k / sixRows)},
		{name: "q4Rows512", most: mostQ4x512, bytes: blocks32 * q4BlockBytes(BlockK), steps: blocks32,
			fetches: always(blocks32 * (BlockK/4 + 1))},
		{name: "q4x128Rows512", most: mostQ4x512, bytes: blocks128 * q4BlockBytes(pack.Block128), steps: blocks128,
			fetches: always(blocks128 * (pack.Block128/4 + 1))},
		{name: "f32Rows512", most: most512, bytes: 4 * k * TileN, steps: k, fetches: steps(k)},
		{name: "bf16Rows512", most: most512, bytes: 2 * k * TileN, steps: k, fetches: always(k)},
	}
	functions := readAssembly("vec_avx512_amd64.s")
	for _, kernel := range kernels {
		for rows := 1; rows <= kernel.most; rows++ {
			for _, calls := range []int{1, 2, 5} {
				lines := kernel.bytes / line
				missing := kernel.notFetched(t, functions[kernel.name], rows, calls)
				if missing > lines/100 {
					what := fmt.Sprintf("%s of %d rows, %d calls", kernel.name, rows, calls)
					t.Errorf("%s: %d of %d lines are not asked for", what, missing, lines)
				}
			}
		}
	}
}

// fetchingKernel is a kernel that asks for memory.
type fetchingKernel struct {
	name    string
	most    int                // rows that it multiplies
	bytes   int                // of a tile
	steps   int                // the argument steps, groups, blocks or k
	fetches func(rows int) int // how often it asks
}

// notFetched executes the assembly of the calls for a tile, without its vectors, and returns how many lines of what is
// multiplied next they do not ask for.
func (f fetchingKernel) notFetched(t *testing.T, code *assembly, rows, calls int) int {
	t.Helper()
	const weight = 1 << 30
	asked := map[uint64]bool{}
	begin := uint64(0) // of what is multiplied next
	for call := range calls {
		ahead, stride := fetch(f.bytes, f.fetches(rows), call, calls, false)
		if call == 0 {
			begin = uint64(weight + ahead)
		}
		steps := uint64(f.steps)
		arguments := map[string]uint64{ // others are 0
			"rows":   uint64(rows),
			"steps":  steps,
			"groups": steps,
			"blocks": steps,
			"k":      steps,
			"w":      weight,
			"ahead":  uint64(ahead),
			"stride": uint64(stride),
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
		if !cpu.instruction(line) && line.name[0] != 'V' {
			t.Fatalf("%s is not known", line.name)
		}
	}
}
