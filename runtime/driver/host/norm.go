package host

import (
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// normWeights returns the weights of a normalisation, which are vectors. It refuses an epsilon that is negative,
// infinite or NaN.
func (b *builder) normWeights() (vectors [][]float32, err error) {
	for _, weight := range b.weights {
		values, err := mem.View[float32](weight.Bytes)
		if err != nil {
			return nil, err
		}
		vectors = append(vectors, values)
	}
	if !(b.op.Eps >= 0 && b.op.Eps <= math.MaxFloat32) {
		return nil, fmt.Errorf("eps = %v, want a number of at least 0", b.op.Eps)
	}
	return vectors, nil
}

// norm divides rows by their root mean square.
func (b *builder) norm() (step, error) {
	operator, input, output, kernel := b.op, b.in[0], b.out[0], b.exe.proc.set.Norm
	vectors, err := b.normWeights()
	if err != nil {
		return step{}, err
	}
	return b.byRows(4*operator.N, func(_, r0, r1 int) {
		kernel(output.from(r0, 0), input.from(r0, 0), vectors[0], operator.Eps, r1-r0, operator.N)
	}), nil
}

// layerNorm has two vectors: gain and bias.
func (b *builder) layerNorm() (step, error) {
	operator, input, output, kernel := b.op, b.in[0], b.out[0], b.exe.proc.set.LayerNorm
	vectors, err := b.normWeights()
	if err != nil {
		return step{}, err
	}
	return b.byRows(6*operator.N, func(_, r0, r1 int) {
		kernel(output.from(r0, 0), input.from(r0, 0), vectors[0], vectors[1], operator.Eps, r1-r0, operator.N)
	}), nil
}

// qkNorm normalises head by head, or jointly all query heads and all key heads. In a fused row the
// queries, the key and the value of a group lie together, so the joint form copies heads together,
// normalises and copies them back.
func (b *builder) qkNorm() (step, error) {
	exe, operator, input, output, normalise := b.exe, b.op, b.in[0], b.out[0], b.exe.proc.set.Norm
	vectors, err := b.normWeights()
	if err != nil {
		return step{}, err
	}
	qgain, kgain, dim, group := vectors[0], vectors[1], operator.HeadDim, operator.Heads/operator.KVHeads
	width := (group + 2) * dim // of a group in a row
	if !operator.Joint {
		return b.byGroups(4*(operator.Heads+operator.KVHeads)*dim, func(_, kvHead, r0, r1 int) {
			if input != output {
				copyColumns(output, input, kvHead*width, width, r0, r1)
			}
			for i := range group + 1 {
				gain := qgain
				if i == group {
					gain = kgain
				}
				head := output.from(r0, kvHead*width+i*dim)
				normalise(head, head, gain, operator.Eps, r1-r0, dim)
			}
		}), nil
	}
	exe.need.local = max(exe.need.local, operator.Heads*dim)
	joint := func(together, row []float32, gain []float32, columns int) {
		for kvHead := range operator.KVHeads {
			copy(together[kvHead*columns:(kvHead+1)*columns], row[kvHead*width:])
		}
		kvCols := operator.KVHeads * columns
		heads := kernel.Rows(together, kvCols)
		normalise(heads, heads, gain, operator.Eps, 1, kvCols)
		for kvHead := range operator.KVHeads {
			copy(row[kvHead*width:], together[kvHead*columns:(kvHead+1)*columns])
		}
	}
	return b.byRows(4*(operator.Heads+operator.KVHeads)*dim, func(worker, r0, r1 int) {
		if input != output {
			copyRows(output, input, r0, r1)
		}
		for at := r0; at < r1; at++ {
			row := output.f32[at*output.ld : at*output.ld+operator.KVHeads*width]
			joint(exe.have.mine(worker), row, qgain, group*dim)
			joint(exe.have.mine(worker), row[group*dim:], kgain, dim)
		}
	}), nil
}
