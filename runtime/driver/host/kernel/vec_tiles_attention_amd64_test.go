package kernel

import (
	"slices"
	"testing"
)

// Whatever the heads and their size, a task fits into scratch, with groups to keep the scores of.
func TestTaskOfTilesFits(t *testing.T) {
	room := make([]float32, AttentionScratch(72, 290))
	for heads := 1; heads <= 72; heads++ {
		for dim := 1; dim <= 290; dim += 1 + dim/40 {
			for _, rows := range []int{1, AttentionRows(heads)} {
				a := Attention{M: rows, Heads: heads, Dim: dim}
				if task := newTileTask(room[:AttentionScratch(heads, dim)], a, 0, rows); task.batch < 1 {
					t.Fatalf("%d heads of %d: no group fits", heads, dim)
				}
			}
		}
	}
}

// Attention in tiles gives a row the same bits alone, with some rows and with all, whatever the heads, their size, the
// window and the rest: also where tiles are filled in part, and where other positions begin and end a block.
func TestTilesGiveRowsTheirBits(t *testing.T) {
	const rows = 21
	set := tilesSet(t)
	seed := uint64(0)
	for _, dim := range []int{1, 31, 40, 72, 80, 96, 112, 192} {
		for _, heads := range []int{1, 3, 5, 16} {
			seed++
			x := newValues(uint8(seed%kinds), seed, nil)
			a := Attention{
				M: rows, Heads: heads, Dim: dim, Scale: 0.1,
				Pos:    []int{0, 15, 113, 127, 250}[seed%5],
				Window: []int{0, 1, 17, 129}[seed%4],
				Cap:    []float64{0, 30}[seed%2],
			}
			if seed%3 == 0 {
				a.Rest = Rest{Key: x.matrix(1, dim, dim, 10), Value: x.matrix(1, dim, dim, 10), Count: 9}
			}
			w := newAttentionTwin(t, a, 0, 0, x, false)
			want := w.call(set, "bf16")

			for _, chunk := range []int{1, 2, 8, 13} {
				got := make([]float32, len(want))
				for first := 0; first < rows; first += chunk {
					a.M, a.Pos = min(chunk, rows-first), w.a.Pos+first
					end, line := (a.Pos+a.M)*dim, first*heads*dim
					scratch := make([]float32, AttentionScratch(heads, dim))
					set.AttentionBF16(Rows(got[line:], heads*dim), Rows(w.q[line:], heads*dim), w.kb[:end], w.vb[:end],
						scratch, a)
				}
				if !slices.Equal(got, want) {
					t.Fatalf("%v, kind %d: rows differ in chunks of %d", w.a, x.kind, chunk)
				}
			}
		}
	}
}
