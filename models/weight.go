package models

import (
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
)

// Columns writes W[k0:k1, n0:n1] of a weight in a layer as float32, column by column: dst is
// [n1-n0, k1-k0] row-major. This is where interleaved sources become one matrix: column n comes from
// the source whose turn it is in round n / sum(Interleave).
func (m *Model) Columns(w *Weight, layer, k0, k1, n0, n1 int, dst []float32) error {
	if k0 < 0 || k1 < k0 || k1 > w.K || n0 < 0 || n1 < n0 || n1 > w.N || len(dst) != (k1-k0)*(n1-n0) {
		return diag.New(diag.ClassInput, "read weight %q: [%d:%d, %d:%d] into %d values, want a part of [%d,%d] and its size",
			w.Name, k0, k1, n0, n1, len(dst), w.K, w.N)
	}
	if w.PerLayer() && (layer < 0 || layer >= m.Layers) {
		return diag.New(diag.ClassInput, "read weight %q: layer %d, want 0 to %d", w.Name, layer, m.Layers-1)
	}
	if w.Const != nil {
		copy(dst, w.Const[n0:n1]) // [1,N]
		return nil
	}
	if !m.HasWeights() {
		return m.noWeights("read weight %q", w.Name)
	}
	names := w.Sources(layer)
	sources := make([]Tensor, len(names))
	for i, name := range names {
		t, err := m.Tensor(name)
		if err != nil {
			return err
		}
		sources[i] = t
	}
	var err error
	fault := mem.CatchFault(func() { err = w.columnsOf(sources, k0, k1, n0, n1, dst) })
	if fault != nil {
		return fault
	}
	return err
}

func (w *Weight) columnsOf(sources []Tensor, k0, k1, n0, n1 int, dst []float32) error {
	rows := k1 - k0
	if !w.Transposed && w.K > 1 { // [K,N] with a single source
		line := make([]float32, n1-n0)
		for k := k0; k < k1; k++ {
			if err := sources[0].Floats(line, k*w.N+n0); err != nil {
				return err
			}
			for j, v := range line {
				dst[j*rows+k-k0] = v
			}
		}
		return nil
	}
	for n := n0; n < n1; n++ {
		source, col := w.sourceOf(n)
		if err := sources[source].Floats(dst[(n-n0)*rows:(n-n0+1)*rows], col*w.K+k0); err != nil {
			return err
		}
	}
	return nil
}

// sourceOf tells which source column n comes from, and which of its columns it is.
func (w *Weight) sourceOf(n int) (source, col int) {
	if w.Interleave == nil {
		return 0, n
	}
	_, round := w.columns(0)
	turn, rest := n/round, n%round
	for i, c := range w.Interleave {
		if rest < c {
			return i, turn*c + rest
		}
		rest -= c
	}
	panic("BUG: interleave of weight " + w.Name + " does not add up")
}
