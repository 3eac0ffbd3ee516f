package kernel

import (
	"testing"

	"github.com/hetc/hetc/planir/pack"
)

// Kernels for rows that are not packed ask memory for what they multiply next: with one call for a tile, for what lies
// a little ahead, with several, for the next tile. Their assembly is executed without its vectors, and the lines that
// it prefetches are counted; steps that are no multiple of a line may leave out one of a hundred.
func TestVecFetchesAll(t *testing.T) {
	const k = 2048
	q8cBytes, _ := q8cTileBytes(k)
	q6cBytes, _ := q6cTileBytes(k)
	tests := []struct {
		kernel      string
		least, most int
		bytes       int // of a tile
		steps       int // the argument of that name, or that named groups, blocks or k
		fetches     func(rows int) int
	}{
		{"q8cRows512", 1, most512, q8cBytes, k / 4, func(rows int) int { return avx512vnni.fetches(k/4, rows) }},
		{"q6cRows512", 1, mostQ6Cx512, q6cBytes, k / sixRows, func(int) int { return k / sixRows }},
		{"q4Rows512", 1, mostQ4x512, k / BlockK * q4BlockBytes(BlockK), k / BlockK,
			func(int) int { return k / BlockK * (BlockK/4 + 1) }},
		{"q4x128Rows512", 1, mostQ4x512, k / pack.Block128 * q4BlockBytes(pack.Block128), k / pack.Block128,
			func(int) int { return k / pack.Block128 * (pack.Block128/4 + 1) }},
		{"f32Rows512", 1, most512, 4 * k * TileN, k, func(rows int) int { return avx512vnni.fetches(k, rows) }},
		{"bf16Rows512", 1, most512, 2 * k * TileN, k, func(int) int { return k }},
	}
	functions := readAssembly("vec_avx512_amd64.s")
	for _, test := range tests {
		for rows := test.least; rows <= test.most; rows++ {
			for _, calls := range []int{1, 2, 5} {
				asked := map[uint64]bool{}
				const weight = 1 << 30
				begin := uint64(0) // of what is multiplied next
				for call := range calls {
					ahead, stride := fetch(test.bytes, test.fetches(rows), call, calls, false)
					if call == 0 {
						begin = uint64(weight + ahead)
					}
					steps := uint64(test.steps)
					arguments := map[string]uint64{"rows": uint64(rows), "steps": steps, "groups": steps, "blocks": steps, "k": steps,
						"w": weight, "ahead": uint64(ahead), "stride": uint64(stride)} // others are 0
					execute(t, functions[test.kernel], &integerMachine{
						argument: func(name string, _ int) uint64 { return arguments[name] },
						fetch:    func(address uint64) { asked[address/line] = true },
					})
				}
				lines, missing := test.bytes/line, 0
				for i := range lines {
					if !asked[begin/line+uint64(i)] {
						missing++
					}
				}
				if missing > lines/100 {
					t.Errorf("%s of %d rows, %d calls: %d of %d lines are not asked for", test.kernel, rows, calls, missing,
						lines)
				}
			}
		}
	}
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
