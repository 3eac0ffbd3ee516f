package executor

import (
	"github.com/hetc/hetc/internal/diag"
)

// Cached copies the cache of the first positions of a sequence: [layer][k|v][kv_head][position][head_dim].
func (c *Control) Cached(sequence, positions int) ([]byte, error) {
	if err := c.machine.checkPositions(sequence, positions); err != nil {
		return nil, err
	}
	if have := c.machine.pos[sequence]; positions > have {
		return nil, diag.New(diag.ClassUsage, "keep %d positions of sequence %d: it has %d", positions, sequence, have)
	}
	if err := c.machine.provideToHost(sequence, positions); err != nil {
		return nil, err
	}
	var out []byte
	c.machine.eachCached(sequence, positions, func(run []byte) { out = append(out, run...) })
	return out, nil
}

// Restore replaces the cache of a sequence by the first positions of data, which Cached has returned for of positions.
func (c *Control) Restore(sequence, positions, of int, data []byte) error {
	machine := c.machine
	if err := machine.checkPositions(sequence, of); err != nil {
		return err
	}
	if positions < 0 || positions > of {
		return diag.New(diag.ClassUsage, "restore %d positions of %d", positions, of)
	}
	if current := machine.beside; current != nil && current.sequence == sequence {
		return diag.New(diag.ClassUsage, "restore: the prompt of sequence %d is being processed", sequence)
	}
	cache := &machine.plan.Program.Cache
	row := int(cache.Type.CacheRowBytes(cache.HeadDim))
	if want := 2 * cache.Layers * cache.KVHeads * of * row; len(data) != want {
		return diag.New(diag.ClassInput, "restore %d positions: %d bytes, want %d", of, len(data), want)
	}
	machine.eachCached(sequence, positions, func(run []byte) {
		copy(run, data)
		data = data[of*row:]
	})
	machine.pos[sequence] = positions
	machine.noteRestored(sequence, positions)
	return nil
}

// checkPositions refuses positions that no sequence has.
func (m *Machine) checkPositions(sequence, positions int) error {
	if sequence < 0 || sequence >= m.Sequences() || positions < 0 || positions > m.plan.MaxContext {
		return diag.New(diag.ClassUsage, "%d cached positions of sequence %d, want 0..%d of sequence 0..%d", positions,
			sequence, m.plan.MaxContext, m.Sequences()-1)
	}
	return nil
}

// eachCached visits the first positions of a sequence head by head: [position][row] of every layer, k and v.
func (m *Machine) eachCached(sequence, positions int, visit func(run []byte)) {
	cache := &m.plan.Program.Cache
	bytes := int64(positions) * cache.Type.CacheRowBytes(cache.HeadDim)
	for layer := range cache.Layers {
		for kv := range 2 {
			for head := range cache.KVHeads {
				visit(m.pool[m.headOffset(sequence, layer, kv, head):][:bytes])
			}
		}
	}
}

// headOffset returns where the keys (kv 0) or values (kv 1) of a head begin in the pool. The caches lie there as
// [sequence][layer][k|v][kv_head][position][head_dim].
func (m *Machine) headOffset(sequence, layer, kv, head int) int64 {
	cache := &m.plan.Program.Cache
	number := (2*layer+kv)*cache.KVHeads + head
	return m.offset[cacheBuffer] + int64(sequence)*cache.SequenceBytes() + int64(number)*m.headBytes()
}

// headBytes returns the size of the keys of one head, or of its values, in one layer.
func (m *Machine) headBytes() int64 {
	cache := &m.plan.Program.Cache
	return int64(cache.MaxContext) * cache.Type.CacheRowBytes(cache.HeadDim)
}
