package kernel

import "github.com/hetc/hetc/internal/mem"

// What a task of many lines needs at its end has often left the second-level cache: the room for its results, and the
// queries of the next task. Calls of kernels of scores, which find all they multiply in caches, ask for some rows of it
// each, because a core waits when more is asked for at a time than it keeps track of.

// neededRows are rows of memory that nothing has asked for yet.
type neededRows struct {
	Matrix[float32]
	rows  int
	each  int // rows that a call asks for
	lines int // cache lines of a row
}

// neededColumns is the number of columns from which on rows are asked for. Narrower ones are many, and asking for them
// took longer than it saved.
const neededColumns = 256

// need notes the results of a task and the queries of the next one.
func (t *lineTask) need(y, queries Matrix[float32]) {
	columns := t.Heads * t.Dim
	if t.lines <= prefetchLines || t.width != TileN || columns < neededColumns {
		return
	}
	most := t.tier.mostF32()
	calls := (t.context() - t.start() + t.width - 1) / t.width * ((t.lines + most - 1) / most)
	each, lines := (2*t.M+calls-1)/calls, (columns+vecN-1)/vecN
	t.needed[0] = neededRows{y, t.M, each, lines}
	if left := len(queries.Data) - columns; left >= 0 && queries.Stride > 0 {
		t.needed[1] = neededRows{queries, min(t.M, left/queries.Stride+1), each, lines}
	}
}

// askNeeded asks memory for the next rows.
func (t *lineTask) askNeeded() {
	for i := range t.needed {
		next := &t.needed[i]
		if next.rows == 0 {
			continue
		}
		count := min(next.each, next.rows)
		fetchRows(&mem.Bytes(next.Data[:1])[0], 4*next.Stride, count, next.lines)
		if next.rows -= count; next.rows > 0 {
			next.Matrix = next.From(count, 0)
		}
		return
	}
}
