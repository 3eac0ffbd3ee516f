package executor

import (
	"github.com/hetc/hetc/internal/diag"
)

// Cached copies the cache of the first positions of a sequence: [layer][k|v][kv_head][position][head_dim].
func (c *Control) Cached(sequence, positions int) ([]byte, error) {
	if err := c.m.checkPositions(sequence, positions); err != nil {
		return nil, err
	}
	if have := c.m.pos[sequence]; positions > have {
		return nil, diag.New(diag.ClassUsage, "keep %d positions of sequence %d: it has %d", positions, sequence, have)
	}
	if err := c.m.toHost(sequence, positions); err != nil {
		return nil, err
	}
	var out []byte
	c.m.eachCached(sequence, positions, func(run []byte) { out = append(out, run...) })
	return out, nil
}

// Restore replaces the cache of a sequence by the first positions of a copy that Cached has made of so many (of).
func (c *Control) Restore(sequence, positions, of int, data []byte) error {
	machine := c.m
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
	at := 0
	machine.eachCached(sequence, positions, func(run []byte) {
		copy(run, data[at:])
		at += of * row
	})
	machine.pos[sequence] = positions
	machine.fromHost(sequence, positions)
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
	row := cache.Type.CacheRowBytes(cache.HeadDim)
	data := m.pool[m.offset[cacheName]:][:cache.Bytes()]
	head := int64(cache.MaxContext) * row
	first := int64(sequence) * cache.SequenceBytes()
	for i := range int64(2 * cache.Layers * cache.KVHeads) {
		visit(data[first+i*head:][:int64(positions)*row])
	}
}
