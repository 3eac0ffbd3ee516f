package kernel

import "testing"

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
