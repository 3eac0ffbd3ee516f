package host

import (
	"errors"
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

var errNotFinite = errors.New("holds NaN or an infinity, which 8-bit rows cannot represent")

// quantRows rounds each row to 8 bits: with a scale of its own, or with the smallest static scale that covers its
// largest value. It refuses rows that hold NaN or an infinity.
func (b *builder) quantRows() (step, error) {
	exe, operator, input, output, scale := b.exe, b.op, b.in[0], b.out[0], b.out[1]
	quantise := exe.proc.set.QuantRows
	if operator.Static {
		static, err := b.staticScales()
		if err != nil {
			return step{}, err
		}
		quantise = func(rows kernel.Quantised, x kernel.Matrix[float32], m, n int) (bad int) {
			return exe.proc.set.QuantStatic(rows, static, x, m, n)
		}
	}
	exe.need.scales = max(exe.need.scales, operator.Rows())
	step := b.byBlocks(max(1, operator.Fan), 6*operator.N, func(_, r0, r1 int) {
		dense := exe.have.scale[r0:r1]
		rows := kernel.Quantised{Codes: output.codes(r0), Scale: dense}
		if bad := quantise(rows, input.from(r0, 0), r1-r0, operator.N); bad >= 0 {
			exe.refuse(r0 + bad)
			return
		}
		for i, value := range dense {
			scale.f32[(r0+i)*scale.ld] = value
		}
	})
	step.refused = func(int) error { return errNotFinite }
	return step, nil
}

// staticScales returns the scales of a quantisation that are a weight of the graph.
func (b *builder) staticScales() ([]float32, error) {
	scales, err := mem.View[float32](b.weights[0].Bytes)
	if err != nil {
		return nil, err
	}
	scales = scales[:max(1, b.op.Scales)]
	for _, scale := range scales {
		if !(scale > 0 && scale <= math.MaxFloat32) {
			return nil, fmt.Errorf("the static scale is %v, want a positive number", scale)
		}
	}
	return scales, nil
}

// gatherScales copies the scales of quantised rows to scratch, because kernels want them without gaps.
func (b *builder) gatherScales(rows int) {
	if !b.op.Scheme.QuantisedRows() {
		return
	}
	scale := b.in[1]
	for row := range rows {
		b.exe.have.scale[row] = scale.f32[row*scale.ld]
	}
}
