package kernel

import (
	"fmt"
	"testing"
)

// The calls for the values of a part of some blocks ask, one behind the other, for all that the part is to ask for.
func TestVecBlocksAskForAll(t *testing.T) {
	for _, from := range []source{
		{k32: make([]float32, 1<<17), v32: make([]float32, 1<<17)},
		{k16: make([]uint16, 1<<17), v16: make([]uint16, 1<<17), brain: true, pairs: true},
		{k8: make([]uint8, 1<<18), v8: make([]uint8, 1<<18)},
	} {
		for heads := 1; heads <= mostFewLines; heads++ {
			for _, dim := range []int{16, 64, 80, 96, 128} {
				checkPartAsks(t, from, heads, dim)
			}
		}
	}
}

// checkPartAsks follows the calls of one part: each asks from where the one before has ended.
func checkPartAsks(t *testing.T, from source, heads, dim int) {
	t.Helper()
	a := Attention{M: 1, Heads: heads, Dim: dim, Pos: 1023}
	task := avx512vnni.newLineTask(tileKeys, make([]float32, AttentionScratch(heads, dim)), a, 0, 1, from)
	_, ahead := from.bytes(0, 2*keyBlock, dim)
	part := blocksPart{from: keyBlock / 2, to: 5 * keyBlock / 2, values: ahead[3*line:]}
	work := (part.to - part.from) * dim

	asked := 0
	for at := part.from; at < part.to; {
		end := min(at+task.valuesAtOnce(), part.to)
		for column := 0; column < dim; {
			what := fmt.Sprintf("%d heads of %d, rows of %d bytes, column %d", heads, dim, task.row, column)
			width := wideColumns(heads, dim-column)
			next := task.spread(&part, at, end, column, width, end-at)
			if next.first != &part.values[asked] {
				t.Fatalf("%s: the call does not begin at byte %d", what, asked)
			}
			if want := len(part.values) * width / work; next.stride < want {
				t.Fatalf("%s: a step moves on by %d bytes, want %d", what, next.stride, want)
			}

			column += width
			done := (at-part.from)*dim + (end-at)*column
			asked = len(part.values) * done / work
		}
		at = end
	}
	if asked != len(part.values) {
		t.Fatalf("%d heads of %d: %d of %d bytes are asked for", heads, dim, asked, len(part.values))
	}
}
