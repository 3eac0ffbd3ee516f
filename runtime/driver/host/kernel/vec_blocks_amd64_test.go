package kernel

import "testing"

// The calls for the values of a part of some blocks ask, one behind the other, for all that the part is to ask for.
func TestVecBlocksAskForAll(t *testing.T) {
	for _, from := range []source{
		{k32: make([]float32, 1<<17), v32: make([]float32, 1<<17)},
		{k16: make([]uint16, 1<<17), v16: make([]uint16, 1<<17), brain: true, pairs: true},
		{k8: make([]uint8, 1<<18), v8: make([]uint8, 1<<18)},
	} {
		for heads := 1; heads <= mostFewLines; heads++ {
			for _, dim := range []int{16, 64, 80, 96, 128} {
				a := Attention{M: 1, Heads: heads, Dim: dim, Pos: 1023}
				task := avx512vnni.newLineTask(tileKeys, make([]float32, AttentionScratch(heads, dim)), a, 0, 1, from)
				_, ahead := from.bytes(0, 2*keyBlock, dim)
				part := blocksPart{from: keyBlock / 2, to: 5 * keyBlock / 2, values: ahead[3*line:]}
				asked := 0
				for at := part.from; at < part.to; {
					end := min(at+task.valuesAtOnce(), part.to)
					for column := 0; column < dim; {
						width := wideColumns(heads, dim-column)
						next := task.spread(&part, at, end, column, width, end-at)
						if next.first != &part.values[asked] {
							t.Fatalf("%d heads of %d, rows of %d bytes: a call does not begin at byte %d", heads, dim, task.row, asked)
						}
						column += width
						done := (at-part.from)*dim + (end-at)*column
						asked = len(part.values) * done / ((part.to - part.from) * dim)
						if want := len(part.values) * width / ((part.to - part.from) * dim); next.stride < want {
							t.Fatalf("%d heads of %d, rows of %d bytes: a step moves on by %d bytes, want %d", heads, dim, task.row,
								next.stride, want)
						}
					}
					at = end
				}
				if asked != len(part.values) {
					t.Fatalf("%d heads of %d: %d of %d bytes are asked for", heads, dim, asked, len(part.values))
				}
			}
		}
	}
}
