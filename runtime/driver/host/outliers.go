package host

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// outlierCols is how many columns of a result one task computes; the driver states it (memory).
const outlierCols = 8 * pack.TileN

// outliers multiplies what a static scale cuts off by the weight (op.OutlierMatMul).
//
// A first step marks the channels in which any row exceeds the range of the scale. Tasks of the second step then take a
// range of columns and some rows: they widen the marked channels' rows of the weight, for that range, and add them up
// for every row, each times what the row has beyond the range. Channels are taken in ascending order, and those that a
// row does not exceed add nothing, so the bits of a row depend on no other row and on no division into tasks.
//
// NaN and infinities are refused, as by the step that quantises the same rows for the product, which may be another
// processor's.
//
// Scratch holds Gathered rows of the weight at a time. Where more channels are marked, they are taken in several
// passes, each of which begins with the sum so far.
//
// Where single rows of the weight are given (driver.Rows), those of the marked channels are got between the two steps,
// by one thread: a row that cannot be verified fails the call before anything is computed with it.
type outliers struct {
	exe           *executable
	op            *op.Op
	input, output *operand
	matrix        *matrixRows
	limit         float32 // the largest magnitude that the scale holds
	most          int     // channels of a pass
	found         *exceeding

	// of the current call
	rows, rowBlock int // all rows, and those of a task
}

// outliers adds the step that marks, and returns the one that multiplies.
func (b *builder) outliers() (step, error) {
	scale, err := mem.View[float32](b.weights[1].Bytes)
	if err != nil {
		return step{}, err
	}
	matrix, err := newMatrixRows(&b.weights[0])
	if err != nil {
		return step{}, err
	}
	if !(scale[0] > 0) {
		return step{}, fmt.Errorf("the static scale is %v, want a positive number", scale[0])
	}
	x := &outliers{exe: b.exe, op: &b.op, input: b.in[0], output: b.out[0], matrix: matrix, limit: 127 * scale[0],
		most: b.op.Gathered(), found: &b.exe.proc.exceeding}
	x.exe.need.local = max(x.exe.need.local, (x.most+1)*(outlierCols+1))
	b.before = append(b.before, b.markExceeding(x.limit))
	return step{m: x.op.M, fetch: x.fetch, plan: x.plan, task: x.task}, nil
}

// fetch gets the rows of the weight for the channels that are marked.
func (x *outliers) fetch() error {
	x.found.collect(len(x.exe.proc.cores), x.op.K)
	cold, err := x.matrix.fetch(x.found)
	x.exe.outliers.add(len(x.found.channels), x.most, cold)
	return err
}

// ranges returns how many ranges of columns there are.
func (x *outliers) ranges() int { return (x.op.N + outlierCols - 1) / outlierCols }

// plan divides the result into ranges of columns and, where that is worth handing over, blocks of rows.
func (x *outliers) plan(rows int) int {
	x.rows, x.rowBlock = rows, rows
	ranges, workers := x.ranges(), len(x.exe.proc.cores)
	if workers > 1 && rows*x.op.N*(1+len(x.found.channels)) >= 2*minTask {
		x.rowBlock = max(1, (rows*ranges+workers*tasksPerWorker-1)/(workers*tasksPerWorker))
	}
	return ranges * ((rows + x.rowBlock - 1) / x.rowBlock)
}

// task computes some rows of a range of columns, in passes over the channels.
func (x *outliers) task(worker, task int) {
	ranges := x.ranges()
	column, r0 := task%ranges*outlierCols, task/ranges*x.rowBlock
	cols, r1 := min(x.op.N-column, outlierCols), min(x.rows, r0+x.rowBlock)
	for row := r0; row < r1; row++ {
		clear(x.output.f32[row*x.output.ld+column:][:cols])
	}
	own, found := x.exe.have.mine(worker), x.found
	factors, weight := own[:x.most+1], own[x.most+1:]
	for from := 0; from < len(found.channels); from += x.most {
		channels := found.channels[from:min(len(found.channels), from+x.most)]
		for i := range channels {
			widen(weight[(1+i)*outlierCols:][:cols], found.rows[from+i][column:])
		}
		for row := r0; row < r1; row++ {
			if !beyond(factors[1:], x.input.f32[row*x.input.ld:], channels, x.limit) {
				continue
			}
			copy(weight, x.output.f32[row*x.output.ld+column:][:cols]) // the sum so far
			factors[0] = 1
			x.exe.proc.set.Combine(x.output.from(row, column), kernel.Rows(weight, outlierCols),
				kernel.Rows(factors, len(factors)), 1, 1+len(channels), cols)
		}
	}
}

// markExceeding makes the step that marks the channels of which some row exceeds the limit.
func (b *builder) markExceeding(limit float32) step {
	exe, channels, input, found := b.exe, b.op.K, b.in[0], &b.exe.proc.exceeding
	mark := b.byRows(channels, func(worker, r0, r1 int) {
		mine := found.marks[worker*channels:][:channels]
		for row := r0; row < r1; row++ {
			for channel, value := range input.f32[row*input.ld:][:channels] {
				if value >= -limit && value <= limit {
					continue
				}
				mine[channel] = true
				if value-value != 0 { // NaN, infinite
					exe.refuse(row)
				}
			}
		}
	})
	mark.prepare = func(int) { found.begin(len(exe.proc.cores), channels) }
	mark.refused = func(row int) error {
		values := input.f32[row*input.ld:][:channels]
		at := slices.IndexFunc(values, func(value float32) bool { return value-value != 0 })
		return fmt.Errorf("value %d is %v, and no finite scale holds it", at, values[at])
	}
	return mark
}

// exceeding collects what a call has found beyond its static scale. A processor executes one call at a time, so its
// steps share the memory; it has as much as the step with most channels needs.
type exceeding struct {
	marks    []bool     // [worker][channel] that some row exceeds
	channels []int      // those that are marked, ascending
	rows     [][]uint16 // of the weight, of these channels
}

// begin makes room for a call, which has found nothing yet.
func (e *exceeding) begin(workers, channels int) {
	e.marks = slices.Grow(e.marks[:0], workers*channels)[:workers*channels]
	clear(e.marks)
	e.channels, e.rows = slices.Grow(e.channels[:0], channels), slices.Grow(e.rows[:0], channels)
}

// collect lists the channels that some worker has marked.
func (e *exceeding) collect(workers, channels int) {
	e.channels = e.channels[:0]
	for channel := range channels {
		for worker := range workers {
			if e.marks[worker*channels+channel] {
				e.channels = append(e.channels, channel)
				break
			}
		}
	}
}

// widen converts bfloat16 values, as many as out holds.
func widen(out []float32, values []uint16) {
	for i, value := range values[:len(out)] {
		out[i] = math.Float32frombits(uint32(value) << 16)
	}
}

// beyond sets out to what a row has beyond the limit in each of some channels, and reports whether that is anything.
func beyond(out, row []float32, channels []int, limit float32) (exceeds bool) {
	for i, channel := range channels {
		value := row[channel]
		rest := value - float32(math.Max(math.Min(float64(value), float64(limit)), float64(-limit)))
		out[i] = rest
		exceeds = exceeds || rest != 0
	}
	return exceeds
}

// matrixRows are rows [N] of a matrix of bfloat16 numbers: of all of it, or of rows that come one by one.
type matrixRows struct {
	all    []uint16    // nil: source has them
	source driver.Rows // nil: all are there
	cols   int
}

// newMatrixRows returns the rows of a weight.
func newMatrixRows(weight *driver.Packed) (*matrixRows, error) {
	out := &matrixRows{source: weight.Rows, cols: weight.Spec.N}
	if out.source != nil {
		return out, nil
	}
	var err error
	out.all, err = mem.View[uint16](weight.Bytes)
	return out, err
}

// fetch gets the rows of the channels that were found, and returns how many of them were read from a file.
func (m *matrixRows) fetch(found *exceeding) (cold int, err error) {
	found.rows = found.rows[:0]
	for _, row := range found.channels {
		if m.source == nil {
			found.rows = append(found.rows, m.all[row*m.cols:][:m.cols])
			continue
		}
		data, copied, err := m.source.Row(row)
		if err != nil {
			return cold, fmt.Errorf("channel %d: %w", row, err)
		}
		values, err := mem.View[uint16](data)
		if err != nil {
			return cold, fmt.Errorf("channel %d: %w", row, err)
		}
		if len(values) != m.cols {
			return cold, fmt.Errorf("channel %d: got a row of %d numbers, want %d", row, len(values), m.cols)
		}
		found.rows = append(found.rows, values)
		if !copied {
			cold++
		}
	}
	return cold, nil
}

// outlierCounts is a driver.OutlierCount that is read while calls add to it.
type outlierCounts struct{ calls, channels, most, beyond, cold atomic.Int64 }

// add counts a call with so many channels beyond the scale, of which the rows of cold were read from a file. gathered
// is how many channels one pass takes. One call runs at a time.
func (c *outlierCounts) add(channels, gathered, cold int) {
	c.calls.Add(1)
	c.channels.Add(int64(channels))
	c.most.Store(max(c.most.Load(), int64(channels)))
	if channels > gathered {
		c.beyond.Add(1)
	}
	c.cold.Add(int64(cold))
}

// Outliers implements driver.Outlying.
func (e *executable) Outliers() driver.OutlierCount {
	counts := &e.outliers
	return driver.OutlierCount{Calls: counts.calls.Load(), Channels: counts.channels.Load(), Most: counts.most.Load(),
		Beyond: counts.beyond.Load(), Cold: counts.cold.Load()}
}
