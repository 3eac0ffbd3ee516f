package host

import (
	"errors"
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

var (
	errNotOnGrid = errors.New("holds NaN or an infinity, which no step represents")
	errNotHalf   = errors.New("an activation, a weight or a result is NaN or too large for f16")
)

// narrowMatMul is a product whose activations and results are rounded to 16 bits: rows are rounded to a dense copy, a
// worker unpacks one tile of the weight after another and multiplies in float32, and rounds what comes out. It is
// there to show what such a product of another processor computes, not for its speed.
func (b *builder) narrowMatMul() (step, error) {
	e, o, x, y, set := b.e, b.op, b.in[0], b.out[0], b.e.p.set
	scheme := o.Scheme.Weight()
	tileBytes, err := pack.TileBytes(scheme, o.K)
	if err != nil {
		return step{}, err
	}
	round, roundOut, bad := halve, halve, errNotHalf
	weights := b.w
	if o.Scheme.Grid() {
		steps, err := mem.View[float32](weights[len(weights)-1].Bytes)
		if err != nil {
			return step{}, err
		}
		for i, v := range steps {
			if !(v > 0 && v <= math.MaxFloat32) || v != steps[i/o.N*o.N] {
				return step{}, fmt.Errorf("step %d of column %d is %v, want one positive number for all columns", i/o.N, i%o.N, v)
			}
		}
		round, roundOut, bad = onGrid(steps[0]), onGrid(steps[o.N]), errNotOnGrid
		weights = weights[:len(weights)-1]
	}
	var bias []float32
	if o.Bias {
		if bias, err = mem.View[float32](weights[1].Bytes); err != nil {
			return step{}, err
		}
	}
	packed, halfWeights := weights[0].Bytes, o.Scheme == op.A16FW16

	e.need.rows = max(e.need.rows, o.M*o.K)
	e.need.local = max(e.need.local, o.K*pack.TileN)
	before := b.byRows(6*o.K, func(_, r0, r1 int) {
		for r := r0; r < r1; r++ {
			if !round(e.have.row[r*o.K:][:o.K], x.f32[r*x.ld:][:o.K]) {
				e.refuse(r)
				return
			}
		}
	})
	before.refused = func(int) error { return bad }
	b.before = append(b.before, before)

	workers, tiles := len(e.p.cores), (o.N+pack.TileN-1)/pack.TileN
	var rows int
	var tasks tileTasks
	return step{
		m: o.M,
		plan: func(n int) int {
			rows, tasks = n, tileTasks{tiles: tiles, block: tiles, last: tiles}
			if workers > 1 {
				tasks = divideTiles(tiles, workers, 1, 1, true)
			}
			return tasks.count()
		},
		task: func(worker, t int) {
			tile, end := tasks.of(t)
			w := e.have.mine(worker)[:o.K*pack.TileN]
			for ; tile < min(end, tiles); tile++ {
				pack.UnpackTile(w, scheme, o.K, packed[tile*int(tileBytes):(tile+1)*int(tileBytes)])
				if halfWeights {
					halve(w, w) // one beyond f16 makes its results infinite, which are refused
				}
				column := tile * pack.TileN
				n := min(pack.TileN, o.N-column)
				out := y.f32[column:]
				set.MatMulF32(out, y.ld, e.have.row, o.K, w, rows, o.K, n)
				if bias != nil {
					set.Add(out, y.ld, out, y.ld, bias[column:], 0, rows, n)
				}
				for r := range rows {
					if row := out[r*y.ld:][:n]; !roundOut(row, row) {
						e.refuse(r)
						break
					}
				}
			}
		},
		refused: func(int) error { return bad },
	}, nil
}

// onGrid rounds numbers to the nearest multiples of a step, halves to even ones, at most op.GridMax of them. It returns
// false for NaN and infinities.
func onGrid(step float32) func(dst, src []float32) bool {
	return func(dst, src []float32) bool {
		finite := true
		for i, v := range src {
			if !(v >= -math.MaxFloat32 && v <= math.MaxFloat32) {
				finite = false
				continue
			}
			q := min(max(v/step, -op.GridMax), op.GridMax)
			dst[i] = float32(math.RoundToEven(float64(q))) * step
		}
		return finite
	}
}

// halve rounds numbers to f16. It returns false where one is not finite in f16.
func halve(dst, src []float32) bool {
	finite := true
	for i, v := range src {
		if b := math.Float32bits(v); b>>23&0xff-113 < 28 { // 2^-14 up to 2^14: ten bits of fraction, halves to even
			dst[i] = math.Float32frombits((b + 0xfff + b>>13&1) &^ 0x1fff)
			continue
		}
		h := number.FloatToHalf(v)
		finite = finite && h&0x7c00 != 0x7c00
		dst[i] = number.HalfToFloat(h)
	}
	return finite
}
