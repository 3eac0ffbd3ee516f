package host

import (
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// maxDotK bounds K of 8-bit products, so that their sums are exact in int32.
const maxDotK = math.MaxInt32 / (127 * 128)

// activations are the rows that a weight is multiplied with, in the form that its scheme says.
type activations struct {
	floats    kernel.Matrix[float32]
	quantised kernel.Quantised // with sums for 6-bit and 4-bit weights
}

// product multiplies m rows by the n columns that begin with the tile at byte at of the weight. scratch is that of the
// worker.
type product func(y kernel.Matrix[float32], x activations, at int, scratch []byte, m, n int)

// product returns the multiplication of the node's scheme, the bytes of a tile, and the number of
// block sums of a row, 0 for schemes without them.
func (b *builder) product() (f product, tileBytes, sums int, err error) {
	operator, set, packed := b.op, b.exe.proc.set, b.weights[0].Bytes
	size, err := pack.TileBytes(operator.Scheme.Weight(), operator.K)
	if err != nil {
		return nil, 0, 0, err
	}
	blocks := (operator.K + pack.BlockK - 1) / pack.BlockK
	// Where the scales of quantised rows come from makes no difference here.
	stored := string(operator.Scheme)
	if operator.Scheme.QuantisedRows() {
		stored = operator.Scheme.Weight()
	}
	if operator.Scheme.Requantises() {
		stored = "requantised " + stored
	}
	switch stored {
	case string(op.A32W32):
		weight, err := mem.View[float32](packed)
		if err != nil {
			return nil, 0, 0, err
		}
		return func(y kernel.Matrix[float32], x activations, at int, _ []byte, m, n int) {
			set.MatMulF32(y, x.floats, weight[at/4:], m, operator.K, n)
		}, int(size), 0, nil
	case string(op.A32W16):
		weight, err := mem.View[uint16](packed)
		if err != nil {
			return nil, 0, 0, err
		}
		return func(y kernel.Matrix[float32], x activations, at int, _ []byte, m, n int) {
			set.MatMulBF16(y, x.floats, weight[at/2:], m, operator.K, n)
		}, int(size), 0, nil
	case "q8c":
		if err := b.exactSums(); err != nil {
			return nil, 0, 0, err
		}
		return func(y kernel.Matrix[float32], x activations, at int, _ []byte, m, n int) {
			set.MatMulQ8C(y, x.quantised, packed[at:], m, operator.K, n)
		}, int(size), 0, nil
	case "requantised q4b32":
		if err := b.exactSums(); err != nil {
			return nil, 0, 0, err
		}
		return func(y kernel.Matrix[float32], x activations, at int, scratch []byte, m, n int) {
			set.MatMulRequant(y, x.quantised, packed[at:], scratch, m, operator.K, n)
		}, int(size), 0, nil
	case "q6c", "q4b32", "q4b128":
		multiply := set.MatMulQ4B32
		switch stored {
		case "q6c":
			multiply = set.MatMulQ6C
		case "q4b128":
			multiply = set.MatMulQ4B128
		}
		return func(y kernel.Matrix[float32], x activations, at int, _ []byte, m, n int) {
			multiply(y, x.quantised, packed[at:], m, operator.K, n)
		}, int(size), blocks, nil
	}
	return nil, 0, 0, fmt.Errorf("scheme %q is not supported", operator.Scheme)
}

// exactSums refuses products whose sums over k might not be exact.
func (b *builder) exactSums() error {
	if b.op.K > maxDotK {
		return fmt.Errorf("k = %d of scheme %q, want at most %d", b.op.K, b.op.Scheme, maxDotK)
	}
	return nil
}

// packedProduct is a product whose rows are packed first, in the order in which the kernel reads them. It takes at
// least kernel.Set's PackFrom rows, and enough tiles to make up for the packing.
type packedProduct struct {
	bytes, local int // of all rows, and of a worker's scratch
	// pack packs a group of the rows [r0,r0+rows), which are multiplied together.
	pack func(x *operand, r0, rows, group int)
	// multiply is for m rows from r0 on, packed together, and the n columns that start with the tile at byte at of the
	// weight.
	multiply func(y kernel.Matrix[float32], r0, at int, scratch []byte, m, n int)
}

// Rows are packed only for as many tiles: quantised rows, float32 rows, whose packing takes longer, and for each
// worker. The driver states them (memory).
const (
	packedTiles     = 16
	packedFloats    = 64
	packedPerWorker = 4
)

// packing returns how a product packs its rows, nil where that does not pay or the kernel set cannot.
func (b *builder) packing() (*packedProduct, error) {
	exe, operator, set, weight := b.exe, b.op, b.exe.proc.set, b.weights[0].Bytes
	least := packedTiles
	if !operator.Scheme.QuantisedRows() {
		least = packedFloats
	}
	if tiles := (operator.N + pack.TileN - 1) / pack.TileN; operator.M < set.PackFrom ||
		tiles < max(least, packedPerWorker*len(exe.proc.cores)) {
		return nil, nil
	}
	if !operator.Scheme.QuantisedRows() {
		return b.packedFloats()
	}
	if set.PackRows == nil || operator.Scheme.FewRows() {
		return nil, nil
	}
	// block 0 means one scale for each column.
	block, multiply := 0, set.PackedQ8C
	switch weight := operator.Scheme.Weight(); {
	case operator.Scheme.Requantises():
		multiply = set.PackedRequant
	case weight == "q4b32":
		block, multiply = pack.BlockK, set.PackedQ4B32
	case weight == "q4b128":
		block, multiply = pack.Block128, set.PackedQ4B128
	}
	local := kernel.PackedScratch(operator.K, block)
	if operator.Scheme.Requantises() {
		local = kernel.RequantScratch(operator.K)
	}
	// packedFrom is the memory of the packed rows from r0 on.
	packedFrom := func(r0 int) []byte {
		return mem.Bytes(exe.have.pack)[kernel.PackedBytes(r0, operator.K, block):]
	}
	return &packedProduct{
		bytes: kernel.PackedBytes(operator.M, operator.K, block),
		local: local,
		pack: func(x *operand, r0, rows, group int) {
			set.PackRows(packedFrom(r0), x.codes(r0), rows, operator.K, block, group)
		},
		multiply: func(y kernel.Matrix[float32], r0, at int, scratch []byte, m, n int) {
			rows := kernel.PackedRows{Bytes: packedFrom(r0), Scale: exe.have.scale[r0:], M: m, K: operator.K}
			multiply(y, rows, weight[at:], scratch, n)
		},
	}, nil
}

// packedFloats is packed for float32 rows.
func (b *builder) packedFloats() (*packedProduct, error) {
	exe, operator, set, weight := b.exe, b.op, b.exe.proc.set, b.weights[0].Bytes
	if set.PackRowsF32 == nil {
		return nil, nil
	}
	product := &packedProduct{bytes: 4 * operator.M * operator.K, pack: func(x *operand, r0, rows, group int) {
		set.PackRowsF32(exe.have.pack[r0*operator.K:], x.from(r0, 0), rows, operator.K, group)
	}}
	if operator.Scheme == op.A32W16 {
		// Weights are views, not copies: at counts bytes, so it is halved or quartered.
		values, err := mem.View[uint16](weight)
		product.multiply = func(y kernel.Matrix[float32], r0, at int, _ []byte, m, n int) {
			set.PackedBF16(y, exe.have.pack[r0*operator.K:], values[at/2:], m, operator.K, n)
		}
		return product, err
	}
	values, err := mem.View[float32](weight)
	product.multiply = func(y kernel.Matrix[float32], r0, at int, _ []byte, m, n int) {
		set.PackedF32(y, exe.have.pack[r0*operator.K:], values[at/4:], m, operator.K, n)
	}
	return product, err
}

// rows returns the rows of x from r on, with their scales and sums from place p of the scratch.
func (b *builder) rows(x *operand, r, p, sums int) activations {
	if !b.op.Scheme.QuantisedRows() {
		return activations{floats: x.from(r, 0)}
	}
	have := &b.exe.have
	return activations{quantised: kernel.Quantised{
		Codes: x.codes(r), Scale: have.scale[p:], Sums: kernel.Rows(have.sum, sums).From(p, 0),
	}}
}

// tileTasks divides the tiles of a weight into tasks of block tiles. Workers claim several at once,
// large pieces before small ones (see team).
type tileTasks struct{ tiles, block int }

// tilesPerWorker is how many tasks each worker has of a matrix, if it is large enough. The last one
// of them may be waited for.
const tilesPerWorker = 32

// divideTiles makes tasks of a multiple of step tiles, at least least.
func divideTiles(tiles, workers, step, least int) tileTasks {
	block := max(1, tiles/(workers*tilesPerWorker), least)
	return tileTasks{tiles: tiles, block: (block + step - 1) / step * step}
}

// count returns the number of tasks.
func (t *tileTasks) count() int { return (t.tiles + t.block - 1) / t.block }

// tilesOf returns the tiles of tasks [from,to).
func (t *tileTasks) tilesOf(from, to int) (first, end int) {
	return from * t.block, min(t.tiles, to*t.block)
}

// grid is how a product is divided in a call: into blocks of rows, and each into tasks of tiles. Tasks of the first
// block come first, then those of the second.
type grid struct {
	rows, blocks int
	tileTasks
}

// block returns the rows [r0,r1) of a block. All have nearly as many.
func (g *grid) block(i int) (r0, r1 int) { return i * g.rows / g.blocks, (i + 1) * g.rows / g.blocks }

// A product that is divided by rows has so many blocks for each worker, and each at least so many rows: as many as are
// packed together.
const (
	blocksPerWorker = 4
	blockRows       = 32
)

// divide plans a product of some rows. Workers that share the tiles read all rows, and write columns of rows that
// others read next; workers that share the rows read all weights, and keep the rows that they have computed, which the
// operators between products divide in the same way. What moves fewer bytes between the cores is done: rows of models
// whose weights are small, tiles of all others, and of weights that each block of rows would requantise. Of few tiles and
// rows that are not packed, both are divided.
func (b *builder) divide(rows, tileBytes int, packs bool) grid {
	operator, set, workers := &b.op, b.exe.proc.set, len(b.exe.proc.cores)
	tiles := (operator.N + pack.TileN - 1) / pack.TileN
	out := grid{rows: rows, blocks: 1, tileTasks: tileTasks{tiles: tiles, block: tiles}}
	if workers == 1 || int64(rows)*int64(operator.K)*int64(operator.N) < 2*minProduct {
		return out
	}
	moved := int64(rows) * int64(operator.K*b.in[0].value.Type.Bytes()+4*operator.N/workers)
	if rows >= workers*blockRows && int64(tiles)*int64(tileBytes) < moved && !operator.Scheme.Requantises() {
		out.blocks = min(rows/blockRows, workers*blocksPerWorker) / workers * workers
		return out
	}
	out.tileTasks = divideTiles(tiles, workers, set.TileStep, minProduct/(rows*operator.K*pack.TileN))
	if tiles < out.tileTasks.block*workers && !packs {
		out.blocks = min(rows, 2*workers)
	}
	return out
}

// fetchAhead is how many bytes of a weight a worker asks for before it multiplies: what the lane leaves it time for,
// and a part of a second-level cache.
const fetchAhead = 256 << 10

// matMul is a product, y = x w, blocked over the tiles of the weight. Where enough rows meet enough
// tiles, a step before it packs the rows (see packed). The plan of a call divides tiles or rows (see
// divide) into tasks that workers take when they are free. Kernels sum each result in one order, so
// that its bits do not depend on the division. A call costs M*K*N multiply-adds and reads the weight
// once for each block of rows.
type matMul struct {
	b               *builder
	exe             *executable
	op              *op.Op
	input, output   *operand
	multiply        product
	tileBytes, sums int            // of a tile of the weight, and block sums of a row
	bias            []float32      // nil without
	packed          *packedProduct // nil: rows are never packed
	unit            *gatedUnit     // nil: results go to the output

	// of the current call
	work   grid
	groups int // of packed rows in the largest block
}

// matMul returns the step that multiplies, and adds the one that packs.
func (b *builder) matMul() (step, error) {
	x := &matMul{b: b, exe: b.exe, op: &b.op, input: b.in[0], output: b.out[0]}
	var err error
	if x.multiply, x.tileBytes, x.sums, err = b.product(); err != nil {
		return step{}, err
	}
	if x.op.Bias {
		if x.bias, err = mem.View[float32](b.weights[1].Bytes); err != nil {
			return step{}, err
		}
	}
	need := &x.exe.need
	need.sums = max(need.sums, x.op.M*x.sums)
	if x.op.Scheme.QuantisedRows() {
		need.scales = max(need.scales, x.op.M)
	}
	if x.packed, err = b.packing(); err != nil {
		return step{}, err
	}
	local := 0 // bytes of a worker's scratch
	if x.op.Scheme.Requantises() {
		local = kernel.RequantBytes(x.op.K)
	}
	if x.packed != nil {
		need.packs = max(need.packs, (x.packed.bytes+3)/4)
		local = max(local, x.packed.local)
		b.before = append(b.before, step{m: x.op.M, plan: x.planPacking, task: x.pack})
	}
	need.local = max(need.local, (local+3)/4)
	if b.unit != nil {
		x.unit = b.gatedUnit(local)
		need.local = max(need.local, x.unit.at+x.unit.words)
	}
	return step{m: x.op.M, begins: x.begins, plan: x.plan, span: x.span}, nil
}

// gatedUnit is the gated linear unit that a product ends with. A worker computes it from some columns of its rows while
// they are in a cache, and keeps them nowhere else.
type gatedUnit struct {
	op        op.Op
	output    *operand
	at, words int // results of the product in a worker's scratch
}

// gluWords is how many results of a product a worker holds for a gated linear unit: a part of a second-level cache, but
// two tiles of columns of its rows where those are more.
const gluWords = 64 << 10

// gatedUnit returns the unit behind a product. Its part of the scratch follows that of the product, so many bytes.
func (b *builder) gatedUnit(before int) *gatedUnit {
	unit := &gatedUnit{op: b.unit.op, output: b.unit.out[0], at: int(roundUp(int64(before)) / 4)}
	unit.words = min(max(gluWords, 2*pack.TileN*b.op.M), b.op.M*op.RoundUp(b.op.N, pack.TileN))
	return unit
}

// packs reports whether so many rows are packed.
func (x *matMul) packs(rows int) bool { return x.packed != nil && rows >= x.exe.proc.set.PackFrom }

// planPacking divides the packing into a task for each group of rows of each block.
func (x *matMul) planPacking(rows int) int {
	if !x.packs(rows) {
		return 0
	}
	x.work = x.b.divide(rows, x.tileBytes, true)
	x.groups = kernel.PackGroups((rows + x.work.blocks - 1) / x.work.blocks)
	return x.work.blocks * x.groups
}

// pack packs a group of rows. The last groups of small blocks are empty.
func (x *matMul) pack(_, task int) {
	r0, r1 := x.work.block(task / x.groups)
	if group := task % x.groups; group < kernel.PackGroups(r1-r0) {
		x.packed.pack(x.input, r0, r1-r0, group)
	}
}

// begins returns the first tiles of a worker's tasks, where it has tiles of its own.
func (x *matMul) begins(worker, rows int) []byte {
	next := x.b.divide(rows, x.tileBytes, x.packs(rows))
	if next.blocks > 1 || x.packs(rows) {
		return nil // all workers read all of it
	}
	tasks, workers := next.count(), len(x.exe.proc.cores)
	tile, end := next.tilesOf(worker*tasks/workers, (worker+1)*tasks/workers)
	return x.b.weights[0].Bytes[tile*x.tileBytes : min(end*x.tileBytes, tile*x.tileBytes+fetchAhead)]
}

// plan divides the product, and prepares the scales and the sums of its rows.
func (x *matMul) plan(rows int) int {
	x.work = x.b.divide(rows, x.tileBytes, x.packs(rows))
	x.b.gatherScales(rows)
	if x.sums > 0 && !x.packs(rows) {
		x.exe.proc.set.BlockSums(kernel.Rows(x.exe.have.sum, x.sums), x.input.codes(0), rows, x.op.K)
	}
	return x.work.count() * x.work.blocks
}

// span computes the tasks [from,to), those of one block of rows at once.
func (x *matMul) span(worker, from, to int) {
	for each := x.work.count(); from < to; {
		block, next := from/each, min(to, (from/each+1)*each)
		tile, end := x.work.tilesOf(from-block*each, next-block*each)
		r0, r1 := x.work.block(block)
		if each == 1 && !x.packs(x.work.rows) { // blocks of rows are one matrix
			_, r1 = x.work.block(to - 1)
			next = to
		}
		x.part(worker, tile, end, r0, r1)
		from = next
	}
}

// part multiplies rows [r0,r1) by the tiles [tile,end) of the weight.
func (x *matMul) part(worker, tile, end, r0, r1 int) {
	if x.unit == nil {
		x.columns(worker, x.output.from(r0, tile*pack.TileN), tile, end, r0, r1)
		return
	}
	unit, rows, set := x.unit, r1-r0, x.exe.proc.set
	results := x.exe.have.mine(worker)[unit.at:][:unit.words]
	step := unit.words / (rows * pack.TileN)
	if step > set.TileStep {
		step -= step % set.TileStep
	}
	for ; tile < end; tile += step {
		to := min(end, tile+step)
		column, products := tile*pack.TileN/2, kernel.Rows(results, (to-tile)*pack.TileN)
		x.columns(worker, products, tile, to, r0, r1)
		cols := min(unit.op.N, to*pack.TileN/2) - column
		set.GLU(unit.output.from(r0, column), products, unit.op.Act, unit.op.Interleave, rows, cols)
	}
}

// columns multiplies rows [r0,r1) by the tiles [tile,end) of the weight, to products.
func (x *matMul) columns(worker int, products kernel.Matrix[float32], tile, end, r0, r1 int) {
	column, scratch := tile*pack.TileN, mem.Bytes(x.exe.have.mine(worker))
	rows, cols := r1-r0, min(x.op.N, end*pack.TileN)-column
	if x.packs(x.work.rows) {
		x.packed.multiply(products, r0, tile*x.tileBytes, scratch, rows, cols)
	} else {
		x.multiply(products, x.b.rows(x.input, r0, r0, x.sums), tile*x.tileBytes, scratch, rows, cols)
	}
	if x.bias != nil {
		x.exe.proc.set.Add(products, products, kernel.Rows(x.bias[column:], 0), rows, cols)
	}
}
