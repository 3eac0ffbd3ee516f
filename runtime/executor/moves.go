package executor

import (
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
)

// Processors with memory of their own hold a second copy of the pool. What of it travels is computed once, when a program
// is loaded, by a data-flow analysis over its calls in one order that the flags allow: of each buffer the state is a set
// of disjoint rectangles, each with the memories that hold its value and the call that wrote it. A call that reads a
// rectangle which its memory lacks fetches the view, and the call that wrote it hands it to the host. Any other order has
// the same answer, because no two steps touch a view without an order (rule P009). The caches are not part of it: what
// they hold outlives programs, see holdings.

// region is a rectangle of a buffer as it was written last.
type region struct {
	view planir.View
	held uint64        // bit s: memory s holds it; 0 is the host's
	by   *driver.Moves // of the call that wrote it into a memory of its own
	out  int           // number of the output
}

// flow is the state of the analysis: the regions of each buffer.
type flow map[string][]region

// moves finds out what travels in a program. Calls of processors on the host's memory have no part in it.
func (m *Machine) moves(pr *program) {
	if m.spaces == 0 {
		return
	}
	state := flow{}
	state.write(planir.View{Buffer: pr.Own(planir.IDs), R1: pr.Rows, C1: 1}, 0, nil, 0)
	for _, section := range pr.sections {
		section.inOrder(func(ls *laneSection, st *step, iter int) {
			if !st.works(iter) {
				return
			}
			bind := &st.calls[iter].bind
			if ls.lane.space > 0 {
				bind.Moves = &driver.Moves{Fetch: make([]bool, len(st.In)), Hand: make([]bool, len(st.Out))}
			}
			for i, view := range st.In {
				// A call with few rows skips a step of later rows, and what that fetches is not there.
				if state.read(view, ls.lane.space, st.R0 == 0) {
					bind.Moves.Fetch[i] = true
				}
			}
			for i, view := range st.Out {
				state.write(view, ls.lane.space, bind.Moves, i)
			}
		})
	}
	logits := m.buffers[pr.Own(planir.Logits)]
	state.read(planir.View{Buffer: logits.Name, R1: logits.Rows, C1: logits.Cols}, 0, true)
}

// inOrder visits all steps of a section in an order in which they may execute.
func (s *section) inOrder(visit func(ls *laneSection, st *step, iter int)) {
	at := make([]int, len(s.lanes)) // steps visited
	set := map[*flag]int{}          // times
	flagOf := map[*step]*flag{}     // that the step sets, where another lane waits for it
	for _, ls := range s.lanes {
		for _, st := range ls.steps {
			for i := range st.waits {
				wait := &st.waits[i]
				flagOf[wait.setter.steps[wait.after-1]] = wait.flag
			}
		}
	}
	for moved := true; moved; {
		moved = false
		for i, ls := range s.lanes {
			for at[i] < s.iters*len(ls.steps) {
				iter, st := at[i]/len(ls.steps), ls.steps[at[i]%len(ls.steps)]
				if slices.ContainsFunc(st.waits, func(w wait) bool { return set[w.flag] < iter+1-int(w.back) }) {
					break
				}
				visit(ls, st, iter)
				if flag := flagOf[st]; flag != nil {
					set[flag]++
				}
				at[i]++
				moved = true
			}
		}
	}
}

// write replaces what a view holds: only one memory has it now.
func (f flow) write(view planir.View, space int, by *driver.Moves, out int) {
	var rest []region
	for _, old := range f[view.Buffer] {
		for _, piece := range minus(old.view, view) {
			kept := old
			kept.view = piece
			rest = append(rest, kept)
		}
	}
	f[view.Buffer] = append(rest, region{view: view, held: 1 << space, by: by, out: out})
}

// read notes that something on a memory reads a view, and returns whether the view must be fetched. kept says that the
// memory holds it from then on.
func (f flow) read(view planir.View, space int, kept bool) (fetch bool) {
	list := f[view.Buffer]
	for _, old := range list {
		fetch = fetch || old.view.Overlaps(view) && old.held&(1<<space) == 0
	}
	if !fetch {
		return false
	}
	var out []region
	for _, old := range list {
		if !old.view.Overlaps(view) {
			out = append(out, old)
			continue
		}
		if old.held&1 == 0 { // also where the reader holds it: the whole view is fetched
			old.by.Hand[old.out] = true
			old.held |= 1
		}
		if space == 0 || !kept {
			out = append(out, old)
			continue
		}
		outside := minus(old.view, view)
		for _, piece := range outside {
			other := old
			other.view = piece
			out = append(out, other)
		}
		old.view = planir.View{Buffer: view.Buffer, R0: max(old.view.R0, view.R0), R1: min(old.view.R1, view.R1),
			C0: max(old.view.C0, view.C0), C1: min(old.view.C1, view.C1)}
		old.held |= 1 << space
		out = append(out, old)
	}
	f[view.Buffer] = out
	return space > 0
}

// minus is what remains of a view without another: at most four rectangles.
func minus(view, without planir.View) (rest []planir.View) {
	if !view.Overlaps(without) {
		return []planir.View{view}
	}
	add := func(r0, r1, c0, c1 int) {
		if r0 < r1 && c0 < c1 {
			rest = append(rest, planir.View{Buffer: view.Buffer, R0: r0, R1: r1, C0: c0, C1: c1})
		}
	}
	top, bottom := max(view.R0, without.R0), min(view.R1, without.R1)
	add(view.R0, top, view.C0, view.C1)
	add(bottom, view.R1, view.C0, view.C1)
	add(top, bottom, view.C0, max(view.C0, without.C0))
	add(top, bottom, min(view.C1, without.C1), view.C1)
	return rest
}

// holdings are how many positions of each sequence the memories hold of the cache: a count for each head of each layer.
// Within a program one processor alone appends to a head's cache and reads it, so that nothing moves; another program may
// give the head to another processor, which then gets the positions that it lacks.
type holdings struct {
	cells int       // heads of all layers
	held  [][]int32 // [memory][sequence*cells + cell]
}

// use is a head of a layer in a program, and the memory of the processor that has it there.
type use struct{ cell, space int }

// newHoldings is for machines with memories besides the host's.
func (m *Machine) newHoldings() {
	cache := &m.plan.Program.Cache
	m.holds.cells = cache.Layers * cache.KVHeads
	for range m.spaces + 1 {
		m.holds.held = append(m.holds.held, make([]int32, m.Sequences()*m.holds.cells))
	}
}

// uses are the heads that a program's processors append to.
func (m *Machine) uses(pr *program) (list []use) {
	heads := m.plan.Program.Cache.KVHeads
	for _, section := range pr.sections {
		for _, ls := range section.lanes {
			for _, st := range ls.steps {
				if st.Heads == nil {
					continue
				}
				for iter := range section.iters {
					for head := st.Heads[0]; head < st.Heads[1] && st.works(iter); head++ {
						list = append(list, use{st.layer(iter)*heads + head, ls.lane.space})
					}
				}
			}
		}
	}
	return list
}

// gather gives each processor of a program the positions of a sequence that it lacks, of the heads that it has there. The
// program is about to write behind them.
func (m *Machine) gather(pr *program, sequence, pos int) error {
	for _, use := range pr.uses {
		if err := m.provide(use.cell, use.space, sequence, pos); err != nil {
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

// provide makes a memory hold the first positions of a head's cache, by way of the host's.
func (m *Machine) provide(cell, space, sequence, pos int) error {
	at := sequence*m.holds.cells + cell
	held := func(space int) *int32 { return &m.holds.held[space][at] }
	if int(*held(space)) >= pos {
		return nil
	}
	if int(*held(0)) < pos {
		from := slices.IndexFunc(m.holds.held, func(counts []int32) bool { return int(counts[at]) >= pos })
		if from < 0 {
			return diag.New(diag.ClassRun, "move the cache of sequence %d: no processor holds %d positions", sequence, pos)
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
		if err := m.provide(cell, 0, sequence, positions); err != nil {
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
