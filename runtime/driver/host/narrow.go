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

// narrow is a product whose activations and results are rounded to 16 bits, as another processor
// computes it. It shows that processor's numbers and is not fast. Rows are rounded to a dense copy,
// once for all columns. A worker unpacks one tile of the weight after the other, multiplies in
// float32, and rounds the results.
type narrow struct {
	exe         *executable
	op          *op.Op
	output      *operand
	packed      []byte
	tileBytes   int
	bias        []float32 // nil without
	round       roundings
	halfWeights bool // weights are rounded to f16 too

	// of the current call
	rows  int
	tasks tileTasks
}

// narrowMatMul adds the step that rounds the activations, and returns the one that multiplies.
func (b *builder) narrowMatMul() (step, error) {
	x := &narrow{exe: b.exe, op: &b.op, output: b.out[0], halfWeights: b.op.Scheme == op.A16FW16,
		round: roundings{activations: halve, results: halve, bad: errNotHalf}}
	size, err := pack.TileBytes(x.op.Scheme.Weight(), x.op.K)
	if err != nil {
		return step{}, err
	}
	weights := b.weights
	if x.op.Scheme.Grid() {
		last := len(weights) - 1
		if x.round, err = gridRoundings(&weights[last], x.op.N); err != nil {
			return step{}, err
		}
		weights = weights[:last]
	}
	if x.op.Bias {
		if x.bias, err = mem.View[float32](weights[1].Bytes); err != nil {
			return step{}, err
		}
	}
	x.packed, x.tileBytes = weights[0].Bytes, int(size)

	need := &x.exe.need
	need.rows = max(need.rows, x.op.M*x.op.K)
	need.local = max(need.local, x.op.K*pack.TileN) // one unpacked tile for each worker
	b.before = append(b.before, b.roundRows(x.round))
	return step{m: x.op.M, plan: x.plan, span: x.span, refused: func(int) error { return x.round.bad }}, nil
}

// plan divides the tiles of the weight.
func (x *narrow) plan(rows int) int {
	tiles := (x.op.N + pack.TileN - 1) / pack.TileN
	x.rows, x.tasks = rows, tileTasks{tiles: tiles, block: tiles}
	if workers := len(x.exe.proc.cores); workers > 1 {
		x.tasks = divideTiles(tiles, workers, 1, 1)
	}
	return x.tasks.count()
}

// span multiplies by the tiles of the tasks [from,to).
func (x *narrow) span(worker, from, to int) {
	for tile, end := x.tasks.tilesOf(from, to); tile < end; tile++ {
		x.multiply(worker, tile)
	}
}

// multiply multiplies all rows by a tile of the weight, and refuses the first row whose results cannot be rounded.
func (x *narrow) multiply(worker, tile int) {
	weight := x.exe.have.mine(worker)[:x.op.K*pack.TileN]
	pack.UnpackTile(weight, x.op.Scheme.Weight(), x.op.K, x.packed[tile*x.tileBytes:(tile+1)*x.tileBytes])
	if x.halfWeights {
		halve(weight, weight) // one beyond f16 makes its results infinite, which are refused
	}
	column, set := tile*pack.TileN, x.exe.proc.set
	cols := min(pack.TileN, x.op.N-column)
	products := x.output.from(0, column)
	set.MatMulF32(products, kernel.Rows(x.exe.have.row, x.op.K), weight, x.rows, x.op.K, cols)
	if x.bias != nil {
		set.Add(products, products, kernel.Rows(x.bias[column:], 0), x.rows, cols)
	}
	for at := range x.rows {
		if row := products.Data[at*products.Stride:][:cols]; !x.round.results(row, row) {
			x.exe.refuse(at)
			return
		}
	}
}

// roundRows makes the step that writes the rounded activations to scratch.
func (b *builder) roundRows(round roundings) step {
	exe, cols, input := b.exe, b.op.K, b.in[0]
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
