package kernel

import "testing"

// Whatever the heads and their size, a task fits into scratch, with groups to keep the scores of.
func TestTileTasksFit(t *testing.T) {
	for heads := 1; heads < 80; heads++ {
		for dim := 1; dim < 520; dim++ {
			scratch := make([]float32, AttentionScratch(heads, dim))
			for _, rows := range []int{1, AttentionRows(heads)} {
				a := Attention{M: rows, Heads: heads, Dim: dim}
				if task := newTileTask(scratch, a, 0, rows); task.batch < 1 {
					t.Fatalf("%d heads of %d: no group fits", heads, dim)
				}
			}
		}
	}
}
