package executor

import (
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/moves"
	"github.com/hetc/hetc/runtime/driver"
)

// planMoves tells the calls of processors with memory of their own which parts of their operands travel. It does not
// concern calls of processors on the host's memory, nor the caches: see cacheHoldings.
func (m *Machine) planMoves(pr *program) {
	if m.spaces == 0 {
		return
	}
	travel := moves.Of(m.plan, pr.PhaseProgram, func(proc string) int { return m.loader.lanes[proc].space })
	for place, call := range travel {
		st := pr.sections[place.Section].lanes[place.Lane].steps[place.Step]
		st.calls[place.Iteration].bind.Moves = &driver.Moves{Fetch: partsOf(st.In, call.Fetch),
			Hand: partsOf(st.Out, call.Hand)}
	}
}

// partsOf returns the travelling parts of views as rectangles within them.
func partsOf(views []planir.View, travels [][]planir.View) [][]driver.Rect {
	out := make([][]driver.Rect, len(views))
	for i, view := range views {
		for _, part := range travels[i] {
			out[i] = append(out[i], driver.Rect{R0: part.R0 - view.R0, R1: part.R1 - view.R0,
				C0: part.C0 - view.C0, C1: part.C1 - view.C0})
		}
	}
	return out
}

// cacheHoldings says how many positions of each sequence the memories hold of the cache: a count for each head of each
// layer. Within a program only one processor appends to a head's cache and reads it, so nothing moves. Another program
// may give the head to another processor, which then gets the positions that it lacks.
type cacheHoldings struct {
	cells int       // heads of all layers
	held  [][]int32 // [memory][sequence*cells + cell]
}

// headUse is a head of a layer in a program, and the memory of the processor that has it there.
type headUse struct{ cell, space int }

// newHoldings prepares cacheHoldings for machines with memories other than the host's.
func (m *Machine) newHoldings() {
	cache := &m.plan.Program.Cache
	m.holds.cells = cache.Layers * cache.KVHeads
	for range m.spaces + 1 {
		m.holds.held = append(m.holds.held, make([]int32, m.Sequences()*m.holds.cells))
	}
}

// uses returns the heads that a program's processors append to.
func (m *Machine) uses(pr *program) (list []headUse) {
	heads := m.plan.Program.Cache.KVHeads
	for _, section := range pr.sections {
		for _, ls := range section.lanes {
			for _, st := range ls.steps {
				if st.Heads == nil {
					continue
				}
				for iter := range section.iters {
					for head := st.Heads[0]; head < st.Heads[1] && st.works(iter); head++ {
						list = append(list, headUse{st.layer(iter)*heads + head, ls.lane.space})
					}
				}
			}
		}
	}
	return list
}

// gather gives each processor of a program the positions of a sequence that it lacks, of the heads that it has in that
// program. The program is about to write behind them.
func (m *Machine) gather(pr *program, sequence, pos int) error {
	for _, use := range pr.uses {
		if err := m.makeAvailable(use.cell, use.space, sequence, pos); err != nil {
			return err
		}
		// other processors that held more have what is overwritten now
		for space := range m.holds.held {
			count := &m.holds.held[space][sequence*m.holds.cells+use.cell]
			*count = min(*count, int32(pos))
		}
	}
	return nil
}

// gathered notes that a program has appended to a sequence, which has pos positions now.
func (m *Machine) gathered(pr *program, sequence, pos int) {
	for _, use := range pr.uses {
		m.holds.held[use.space][sequence*m.holds.cells+use.cell] = int32(pos)
	}
}

// makeAvailable makes a memory hold the first positions of a head's cache, by way of the host's.
func (m *Machine) makeAvailable(cell, space, sequence, pos int) error {
	at := sequence*m.holds.cells + cell
	held := func(space int) *int32 { return &m.holds.held[space][at] }
	if int(*held(space)) >= pos {
		return nil
	}
	if int(*held(0)) < pos {
		from := slices.IndexFunc(m.holds.held, func(counts []int32) bool { return int(counts[at]) >= pos })
		if from < 0 {
			return diag.New(diag.ClassRun, "move the cache of sequence %d: no processor holds %d positions", sequence,
				pos)
		}
		if err := m.moveCache(cell, sequence, int(*held(0)), pos, m.mirrors[from].Pull); err != nil {
			return err
		}
		*held(0) = int32(pos)
	}
	if space == 0 {
		return nil
	}
	if err := m.moveCache(cell, sequence, int(*held(space)), pos, m.mirrors[space].Push); err != nil {
		return err
	}
	*held(space) = int32(pos)
	return nil
}

// moveCache moves positions [from,to) of the keys and values of a head in a layer.
func (m *Machine) moveCache(cell, sequence, from, to int, move func(offset, count int64) error) error {
	cache := &m.plan.Program.Cache
	row := cache.Type.CacheRowBytes(cache.HeadDim)
	head := int64(cache.MaxContext) * row
	layer, kvHead := cell/cache.KVHeads, cell%cache.KVHeads
	for which := range 2 { // k, v
		first := m.offset[cacheName] + int64(sequence)*cache.SequenceBytes() +
			(int64(2*layer+which)*int64(cache.KVHeads)+int64(kvHead))*head
		if err := move(first+int64(from)*row, int64(to-from)*row); err != nil {
			return diag.New(diag.ClassRun, "move the cache of sequence %d: %w", sequence, err)
		}
	}
	return nil
}

// toHost makes the host's memory hold the first positions of a sequence.
func (m *Machine) toHost(sequence, positions int) error {
	for cell := range m.holds.cells {
		if err := m.makeAvailable(cell, 0, sequence, positions); err != nil {
			return err
		}
	}
	return nil
}

// fromHost notes that the host's memory alone holds a sequence.
func (m *Machine) fromHost(sequence, positions int) {
	for space, counts := range m.holds.held {
		for i := range counts[sequence*m.holds.cells:][:m.holds.cells] {
			counts[sequence*m.holds.cells+i] = 0
			if space == 0 {
				counts[sequence*m.holds.cells+i] = int32(positions)
			}
		}
	}
}
