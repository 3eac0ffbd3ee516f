package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hetc/hetc/internal/mem"
)

// Few lines have the same bits whether blocks pass together or one by one, with what comes next and without, and
// whatever lies around the cache.
func TestTileFewLines(t *testing.T) {
	if reason := tilesLack(); reason != "" && !tilesModelled {
		t.Skip(reason)
	}
	dims, contexts := []int{16, 48, 64, 80, 112, 128, 256}, []int{128, 129, 500, 513, 1300}
	if tilesModelled {
		dims, contexts = []int{48, 64, 128}, []int{400}
	}
	for _, dim := range dims {
		for lines := 1; lines <= fewLines; lines++ {
			for i, context := range contexts {
				rows := 1 // of several heads, or several of one
				if i%3 == 2 {
					rows = lines
				}
				a := Attention{M: rows, Heads: lines / rows, Dim: dim, Pos: context - rows, Scale: 0.3}
				if i%2 == 1 && context > 2*keyBlock+7 {
					a.Window = context - 2*keyBlock - 7
				}
				name := fmt.Sprintf("%d rows %dx%d of %d", rows, a.Heads, dim, context)
				t.Run(name, func(t *testing.T) { checkFewLines(t, a) })
			}
		}
	}
}

// checkFewLines attends both ways.
func checkFewLines(t *testing.T, a Attention) {
	rng := rand.New(rand.NewPCG(uint64(a.Dim), uint64(a.Heads)))
	size, columns := a.context()*a.Dim, a.Heads*a.Dim
	q := normals(rng, a.M*columns)
	k, v := guardedSlice[uint16](t, size), guardedSlice[uint16](t, size)
	toBF16(k, normals(rng, size))
	toBF16(v, normals(rng, size))
	scratch := guardedSlice[float32](t, AttentionScratch(a.Heads, a.Dim))
	attend := func(together bool) []float32 {
		task := newTileTask(scratch, a, 0, a.M)
		task.k, task.v = k, v
		if task.few.blocks == 0 {
			t.Fatal("these are no few lines")
		}
		if !together {
			task.few.blocks = 0
		}
		task.begin(Rows(q, columns))
		task.attend()
		y := guardedSlice[float32](t, a.M*columns)
		task.finish(Rows(y, columns))
		return y
	}

	want, got := attend(false), attend(true)
	a.NextKeys, a.NextValues = mem.Bytes(k), mem.Bytes(v)
	asking := attend(true)

	for i := range want {
		if got[i] != want[i] || asking[i] != want[i] {
			t.Fatalf("element %d is %v, and %v with what comes next, want %v", i, got[i], asking[i], want[i])
		}
	}
}

// Kernels that share what is to be asked for ask for nearly all of it, and for nothing behind it.
func TestTileAsks(t *testing.T) {
	task := &tileTask{scores: make([]float32, 1)}
	for size := range 300 {
		for steps := 1; steps < 70; steps += 7 {
			ahead := blocksAhead{next: make([]byte, size*cacheLine), lines: size}
			total := 0
			for kernels := 3; kernels > 0; kernels-- {
				_, asks := ahead.ask(task, steps, 1, kernels)
				total += asks * steps
			}
			if ahead.lines != size-total || total > size || size-total >= steps {
				t.Fatalf("%d of %d lines are asked for in %d steps", total, size, steps)
			}
		}
	}
}
