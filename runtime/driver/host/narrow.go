package host

import (
	"errors"
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

var (
	errNotOnGrid = errors.New("holds NaN or an infinity, which no step represents")
	errNotHalf   = errors.New("an activation, a weight or a result is NaN or too large for f16")
)

// narrowMatMul returns a product whose activations and results are rounded to 16 bits, as another
// processor computes it. It shows that processor's numbers and is not fast. Rows are rounded to a
// dense copy. A worker unpacks one tile of the weight after the other, multiplies in float32, and
// rounds the results.
func (b *builder) narrowMatMul() (step, error) {
	exe, operator, output, set := b.e, b.op, b.out[0], b.e.p.set
	scheme := operator.Scheme.Weight()
	tileBytes, err := pack.TileBytes(scheme, operator.K)
	if err != nil {
		return step{}, err
	}
	round, weights := roundings{activations: halve, results: halve, bad: errNotHalf}, b.w
	if operator.Scheme.Grid() {
		last := len(weights) - 1
		if round, err = gridRoundings(&weights[last], operator.N); err != nil {
			return step{}, err
		}
		weights = weights[:last]
	}
	var bias []float32
	if operator.Bias {
		if bias, err = mem.View[float32](weights[1].Bytes); err != nil {
			return step{}, err
		}
	}
	packed, halfWeights := weights[0].Bytes, operator.Scheme == op.A16FW16

	exe.need.rows = max(exe.need.rows, operator.M*operator.K)
	// One unpacked tile for each worker.
	exe.need.local = max(exe.need.local, operator.K*pack.TileN)
	// Activations are rounded once for all columns.
	b.before = append(b.before, b.roundRows(round))

	workers, tiles := len(exe.p.cores), (operator.N+pack.TileN-1)/pack.TileN
	var rows int
	var tasks tileTasks
	return step{
		m: operator.M,
		plan: func(n int) int {
			rows, tasks = n, tileTasks{tiles: tiles, block: tiles}
			if workers > 1 {
				tasks = divideTiles(tiles, workers, 1, 1)
			}
			return tasks.count()
		},
		span: func(worker, from, to int) {
			tile, end := tasks.of(from, to)
			weight := exe.have.mine(worker)[:operator.K*pack.TileN]
			for ; tile < end; tile++ {
				pack.UnpackTile(weight, scheme, operator.K, packed[tile*int(tileBytes):(tile+1)*int(tileBytes)])
				if halfWeights {
					halve(weight, weight) // one beyond f16 makes its results infinite, which are refused
				}
				column := tile * pack.TileN
				cols := min(pack.TileN, operator.N-column)
				products := output.from(0, column)
				set.MatMulF32(products, kernel.Rows(exe.have.row, operator.K), weight, rows, operator.K, cols)
				if bias != nil {
					set.Add(products, products, kernel.Rows(bias[column:], 0), rows, cols)
				}
				for at := range rows {
					if row := products.Data[at*products.Stride:][:cols]; !round.results(row, row) {
						exe.refuse(at)
						break
					}
				}
			}
		},
		refused: func(int) error { return round.bad },
	}, nil
}

// roundRows makes the step that writes the rounded activations to scratch.
func (b *builder) roundRows(round roundings) step {
	exe, cols, input := b.e, b.op.K, b.in[0]
	rounded := b.byRows(6*cols, func(_, r0, r1 int) {
		for row := r0; row < r1; row++ {
			if !round.activations(exe.have.row[row*cols:][:cols], input.f32[row*input.ld:][:cols]) {
				exe.refuse(row)
				return
			}
		}
	})
	rounded.refused = func(int) error { return round.bad }
	return rounded
}

// roundings are how a product rounds its activations and its results. They return false for what has no rounded form,
// which is the error bad.
type roundings struct {
	activations, results func(dst, src []float32) bool
	bad                  error
}

// gridRoundings returns the roundings to a grid. Its weight has a step of the activations and one of the results, each
// repeated for all n columns.
func gridRoundings(weight *driver.Packed, n int) (roundings, error) {
	steps, err := mem.View[float32](weight.Bytes)
	if err != nil {
		return roundings{}, err
	}
	for i, width := range steps {
		if !(width > 0 && width <= math.MaxFloat32) || width != steps[i/n*n] {
			return roundings{}, fmt.Errorf("step %d of column %d is %v, want one positive number for all columns",
				i/n, i%n, width)
		}
	}
	return roundings{activations: onGrid(steps[0]), results: onGrid(steps[n]), bad: errNotOnGrid}, nil
}

// onGrid returns a function that rounds numbers to multiples of step, halves to even, saturating at
// op.GridMax of them. It returns false for NaN and infinities.
func onGrid(step float32) func(dst, src []float32) bool {
	return func(dst, src []float32) bool {
		finite := true
		for i, value := range src {
			if !(value >= -math.MaxFloat32 && value <= math.MaxFloat32) {
				finite = false
				continue
			}
			quotient := min(max(value/step, -op.GridMax), op.GridMax)
			dst[i] = float32(math.RoundToEven(float64(quotient))) * step
		}
		return finite
	}
}

// halve rounds numbers to f16. It returns false where one is not finite in f16.
func halve(dst, src []float32) bool {
	finite := true
	for i, value := range src {
		// 2^-14 up to 2^14: ten bits of fraction, halves to even
		if bits := math.Float32bits(value); bits>>23&0xff-113 < 28 {
			dst[i] = math.Float32frombits((bits + 0xfff + bits>>13&1) &^ 0x1fff)
			continue
		}
		half := number.FloatToHalf(value)
		finite = finite && half&0x7c00 != 0x7c00
		dst[i] = number.HalfToFloat(half)
	}
	return finite
}
