package executor

import (
	"slices"

	"github.com/hetc/hetc/internal/diag"
)

// cacheHoldings says how many cached positions of each sequence each memory holds: a count for each head of each layer.
// Within a program one processor alone appends to a head's cache and reads it, so nothing moves. Another program may
// give the head to another processor, which then gets the positions that it lacks.
type cacheHoldings struct {
	cells int       // heads of all layers
	held  [][]int32 // [memory][sequence*cells + cell]
}

// headUse is a head of a layer in a program, and the memory of the processor that has it there.
type headUse struct{ cell, space int }

// newHoldings prepares cacheHoldings for machines with memories other than the host's.
func (m *Machine) newHoldings() {
	cache := &m.plan.Program.Cache
	m.holdings.cells = cache.Layers * cache.KVHeads
	for range m.spaces + 1 {
		m.holdings.held = append(m.holdings.held, make([]int32, m.Sequences()*m.holdings.cells))
	}
}

// headUses lists the heads that a program's processors append to.
func (m *Machine) headUses(pr *program) (list []headUse) {
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

// provideCaches gives each processor of a program the cached positions of a sequence that it lacks, of the heads that
// it has in that program. The program is about to append to them.
func (m *Machine) provideCaches(pr *program, sequence, pos int) error {
	for _, use := range pr.uses {
		if err := m.provideHead(use.cell, use.space, sequence, pos); err != nil {
			return err
		}
		// positions from pos on are overwritten now: whoever holds them holds old values
		for space := range m.holdings.held {
			count := &m.holdings.held[space][sequence*m.holdings.cells+use.cell]
			*count = min(*count, int32(pos))
		}
	}
	return nil
}

// noteAppended notes that a program has appended to a sequence, which has pos positions now.
func (m *Machine) noteAppended(pr *program, sequence, pos int) {
	for _, use := range pr.uses {
		m.holdings.held[use.space][sequence*m.holdings.cells+use.cell] = int32(pos)
	}
}

// provideHead makes a memory hold the first positions of a head's cache. What it lacks travels through the host's
// memory.
func (m *Machine) provideHead(cell, space, sequence, pos int) error {
	at := sequence*m.holdings.cells + cell
	held := func(space int) *int32 { return &m.holdings.held[space][at] }
	if int(*held(space)) >= pos {
		return nil
	}
	if int(*held(0)) < pos {
		from := slices.IndexFunc(m.holdings.held, func(counts []int32) bool { return int(counts[at]) >= pos })
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
	layer, head := cell/cache.KVHeads, cell%cache.KVHeads
	for kv := range 2 {
		if err := move(m.headOffset(sequence, layer, kv, head)+int64(from)*row, int64(to-from)*row); err != nil {
			return diag.New(diag.ClassRun, "move the cache of sequence %d: %w", sequence, err)
		}
	}
	return nil
}

// provideToHost makes the host's memory hold the first positions of a sequence.
func (m *Machine) provideToHost(sequence, positions int) error {
	for cell := range m.holdings.cells {
		if err := m.provideHead(cell, 0, sequence, positions); err != nil {
			return err
		}
	}
	return nil
}

// noteRestored notes that the host's memory alone holds a sequence.
func (m *Machine) noteRestored(sequence, positions int) {
	for space, counts := range m.holdings.held {
		for i := range counts[sequence*m.holdings.cells:][:m.holdings.cells] {
			counts[sequence*m.holdings.cells+i] = 0
			if space == 0 {
				counts[sequence*m.holdings.cells+i] = int32(positions)
			}
		}
	}
}
