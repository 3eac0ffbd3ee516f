package profiler

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// operands is the memory for activations of one lane's measurements. All operators share it: only
// one runs at a time, and in a model, too, activations are warm from the operator before.
type operands struct {
	proc       driver.Processor
	seed       uint64
	bufs       map[string]driver.Buffer
	vocabulary int // embedding ids are below this
}

// close frees the buffers of all operands of the lane.
func (o *operands) close() {
	for _, buffer := range o.bufs {
		buffer.Close()
	}
	o.bufs = nil
}

// maxActivation bounds one value of a request: far above any layer, far below a typing error.
const maxActivation = 8 << 30

// buffer returns the lane's buffer of a name with at least the given bytes, filled with valid
// values of the type.
func (o *operands) buffer(name string, numbers op.Type, bytes int64) (driver.Buffer, error) {
	if old := o.bufs[name]; old != nil && int64(len(old.Bytes())) >= bytes {
		return old, nil
	}
	if bytes > maxActivation {
		return nil, diag.New(diag.ClassInput, "an operand has %d bytes, want at most %d", bytes, int64(maxActivation))
	}
	// Each buffer is half as large again as asked for, so that few are outgrown: those stay until the lane closes.
	fresh, err := o.proc.Alloc((bytes + bytes/2 + 4095) &^ 4095)
	if err != nil {
		return nil, err
	}
	o.fill(fresh.Bytes(), numbers)
	o.retire(name)
	o.bufs[name] = fresh
	return fresh, nil
}

// retire renames an outgrown buffer, which stays until the lane closes because executables may be
// bound to it.
func (o *operands) retire(name string) {
	if buffer := o.bufs[name]; buffer != nil {
		o.bufs[fmt.Sprintf("%s (outgrown %d)", name, len(o.bufs))] = buffer
	}
}

// choices returns how many selections of experts it takes to use every expert.
func choices(operator op.Op) int {
	if operator.Kind != op.ExpertMatMul {
		return 1
	}
	return (operator.Experts + operator.Rows() - 1) / operator.Rows()
}

// experts returns one view of expert ids [tokens,fan] per selection. Selections go through the
// experts in turn, so that rows are spread evenly and a token's rows use different experts.
func (o *operands) experts(operator op.Op) ([]driver.View, error) {
	rows := operator.Rows()
	step := op.RoundUp(4*int64(rows), 64)
	name := fmt.Sprintf("%d of %d experts", rows, operator.Experts)
	fresh := o.bufs[name] == nil
	buffer, err := o.buffer(name, op.I32, step*int64(choices(operator)))
	if err != nil {
		return nil, err
	}
	var out []driver.View
	for choice := range choices(operator) {
		at := step * int64(choice)
		for i := range rows {
			if fresh {
				binary.LittleEndian.PutUint32(buffer.Bytes()[at+4*int64(i):], uint32((choice*rows+i)%operator.Experts))
			}
		}
		out = append(out, driver.View{Buffer: buffer, Type: op.I32, Offset: at, Rows: operator.M, Cols: operator.Fan,
			Stride: operator.Fan})
	}
	return out, nil
}

// outliers returns a view [M,K] of rows of which as many channels exceed the static scale as a model is expected to
// have.
func (o *operands) outliers(operator op.Op) (driver.View, error) {
	name := fmt.Sprintf("%d outliers of %d channels", operator.Gathered(), operator.K)
	before := o.bufs[name]
	buffer, err := o.buffer(name, op.F32, 4*int64(operator.M)*int64(operator.K))
	if err != nil {
		return driver.View{}, err
	}
	if buffer != before {
		row := 4 * operator.K
		for at := 0; at+row <= len(buffer.Bytes()); at += row {
			for channel := range operator.Gathered() {
				const beyond = 200 * staticScale // of which 127 are within the range
				binary.LittleEndian.PutUint32(buffer.Bytes()[at+4*channel:], math.Float32bits(beyond))
			}
		}
	}
	return driver.View{Buffer: buffer, Type: op.F32, Rows: operator.M, Cols: operator.K, Stride: operator.K}, nil
}

// staticScale is the scale that holds all values of fill.
const staticScale = 1.0 / 127

// positions returns a view [blocks,heads*(1+context)] of what a sparse attention whose call begins at pos may select:
// of each head as many positions as its density keeps, spread evenly over those that are seen.
func (o *operands) positions(operator op.Op, pos int) (driver.View, error) {
	name, line, cols := "positions of "+operator.Key(), 1+operator.Context, operator.Heads*(1+operator.Context)
	before := o.bufs[name]
	buffer, err := o.buffer(name, op.I32, 4*int64(operator.Blocks())*int64(cols))
	if err != nil {
		return driver.View{}, err
	}
	for block := 0; block < operator.Blocks() && buffer != before; block++ {
		from := block * operator.Block
		span := operator.SpanOf(pos+from, min(operator.Block, operator.M-from))
		kept, seen := span.Keep(float32(operator.Density), operator.Least), span.Block-span.Inner
		for head := range operator.Heads {
			at := buffer.Bytes()[4*(block*cols+head*line):]
			binary.LittleEndian.PutUint32(at, uint32(kept))
			for i := range kept {
				binary.LittleEndian.PutUint32(at[4*(1+i):], uint32(span.Inner+i*seen/kept))
			}
		}
	}
	return driver.View{Buffer: buffer, Type: op.I32, Rows: operator.Blocks(), Cols: cols, Stride: cols}, nil
}

// constants are the weights, by role, that are one positive number: steps of a grid, and a static scale.
var constants = map[string]float32{"steps": 1.0 / op.GridMax, "scale": staticScale}

// headNumbers returns the weight of an estimate or a selection: scales, and shares of positions. A part of the heads,
// spread evenly, keeps some, and the others keep all; 0 stands for no others.
func headNumbers(heads int, estimated float64) []float32 {
	const some, all = 0.2, 2
	numbers := slices.Repeat([]op.SparseHead{{QueryScale: some, KeyScale: some, Share: some}}, heads)
	for i := range numbers {
		if estimated > 0 && int(float64(i+1)*estimated) == int(float64(i)*estimated) {
			numbers[i].Share = all
		}
	}
	return op.SparseHeads(numbers)
}

// fill writes pseudo-random values that are valid in the type: numbers of magnitude below 1, row-quantised bytes, ids
// below the vocabulary.
func (o *operands) fill(data []byte, numbers op.Type) {
	rng := rand.New(rand.NewPCG(o.seed, 1))
	fillValues(data, numbers, max(o.vocabulary, 1), rng)
}

// fillValues fills data with a few thousand random values, repeated.
func fillValues(data []byte, numbers op.Type, ids int, rng *rand.Rand) {
	const values = 4096
	size := numbers.Bytes()
	pattern := make([]byte, values*size)
	for i := range values {
		value := float32(rng.Float64()*2 - 1)
		at := pattern[i*size:]
		switch numbers {
		case op.F32:
			binary.LittleEndian.PutUint32(at, math.Float32bits(value))
		case op.F16:
			binary.LittleEndian.PutUint16(at, number.FloatToHalf(value))
		case op.BF16:
			binary.LittleEndian.PutUint16(at, uint16(math.Float32bits(value)>>16))
		case op.I32:
			binary.LittleEndian.PutUint32(at, uint32(rng.IntN(ids)))
		default:
			at[0] = byte(1 + rng.IntN(255)) // 128 is zero
		}
	}
	repeat(data, pattern)
}

// repeat fills data with copies of pattern.
func repeat(data, pattern []byte) {
	done := copy(data, pattern)
	for done < len(data) {
		done += copy(data[done:], data[:done])
	}
}

// store is memory full of packed tiles of one kind, or of cache values. Any range of whole tiles is
// a valid weight, so that cold operands can be placed anywhere in it.
type store struct {
	region *mem.Region
	unit   int64  // bytes: offsets of operands are multiples of it
	refs   int    // loaded operators that use it
	used   uint64 // stores.clock at the last use, for eviction
}

// stores holds the memory for cold operands of all lanes, within a limit in bytes.
type stores struct {
	seed  uint64
	limit int64        // in bytes; what is in use may exceed it by as much again
	free  func() int64 // the memory that can be used now, in bytes, 0 when unknown
	all   map[string]*store
	clock uint64 // counts uses, so that the store that was used longest ago is evicted first
}

// newStores returns stores that take up to half of the memory that is free, and more while it is in use.
func newStores(seed uint64) stores {
	limit := int64(16 << 30)
	if free := availableBytes(); free > 0 {
		limit = free / 2
	}
	return stores{seed: seed, limit: limit, free: availableBytes, all: map[string]*store{}}
}

// room is how many bytes a new store may have. What is in use may exceed the limit by as much again, because a
// measurement in progress keeps it. Other programs may meanwhile have taken memory that was free when the limit was
// set; a Linux without memory ends one of them, or this one, so an eighth of the limit is left.
func (s *stores) room() int64 {
	room := 2*s.limit - s.total()
	if s.free == nil {
		return room
	}
	if free := s.free(); free > 0 {
		room = min(room, free-s.limit/8)
	}
	return room
}

// get returns a store of a name with at least the given bytes, filled with repetitions of pattern,
// whose length is a multiple of unit. Stores that are not in use make room for it. The caller
// releases it by decrementing refs.
func (s *stores) get(name string, bytes, unit int64, pattern func() ([]byte, error)) (*store, error) {
	s.clock++
	if st := s.all[name]; st != nil {
		if int64(len(st.region.Bytes())) >= bytes {
			st.refs++
			st.used = s.clock
			return st, nil
		}
		if st.refs > 0 {
			// Still in use at its smaller size: the larger one stands beside it.
			s.all[fmt.Sprintf("%s (outgrown %d)", name, s.clock)] = st
		} else {
			st.region.Close()
		}
		delete(s.all, name)
	}
	for s.total()+bytes > s.limit && s.evict() {
	}
	for bytes > s.room() && s.evict() {
	}
	if room := s.room(); bytes > room {
		return nil, diag.New(diag.ClassInfeasible, "an operand needs %d bytes of memory, and measuring may take %d more",
			bytes, max(room, 0)).WithHint("end other programs that use memory")
	}
	piece, err := pattern()
	if err != nil {
		return nil, err
	}
	if int64(len(piece))%unit != 0 {
		panic(fmt.Sprintf("BUG: pattern of %d bytes, want a multiple of %d", len(piece), unit))
	}
	region, err := mem.Alloc(int(bytes), 4096)
	if err != nil {
		return nil, err
	}
	repeat(region.Bytes(), piece)
	st := &store{region: region, unit: unit, refs: 1, used: s.clock}
	s.all[name] = st
	return st, nil
}

// total returns how many bytes all stores hold.
func (s *stores) total() (bytes int64) {
	for _, st := range s.all {
		bytes += int64(len(st.region.Bytes()))
	}
	return bytes
}

// evict frees the least recently used store; false where all are in use.
func (s *stores) evict() bool {
	name := ""
	for n, st := range s.all {
		if st.refs == 0 && (name == "" || st.used < s.all[name].used) {
			name = n
		}
	}
	if name == "" {
		return false
	}
	s.all[name].region.Close()
	delete(s.all, name)
	return true
}

// close frees every store, also one that a load still refers to.
func (s *stores) close() {
	for _, st := range s.all {
		st.region.Close()
	}
	s.all = nil
}

// weights returns a store of packed weights like spec, and the size in bytes of one weight with all
// its experts. The store has at least footprint bytes and holds at least one weight for each of the operators.
func (s *stores) weights(spec op.WeightSpec, footprint int64, operators int) (*store, int64, error) {
	bytes, err := pack.Bytes(spec)
	if err != nil {
		return nil, 0, err
	}
	// Packing is slow: a few tiles or rows are packed, and the store repeats them. A weight that is
	// stored in parts repeats as a whole.
	one := pack.Expert(spec)
	var unit int64
	name := fmt.Sprintf("%s %s", spec.Layout, spec.Scheme)
	switch spec.Layout {
	case op.RowsLayout:
		one.K = min(spec.K, 64)
		unit, err = pack.Bytes(op.WeightSpec{Name: spec.Name, K: 1, N: spec.N, Scheme: spec.Scheme,
			Layout: spec.Layout})
	case pack.Onnx:
		unit, err = pack.Bytes(one)
		name += fmt.Sprintf(" [%d,%d]", spec.K, spec.N)
	default:
		one.N = 4 * pack.TileN
		unit, err = pack.TileBytes(spec.Scheme, spec.K)
	}
	if err != nil {
		return nil, 0, err
	}
	constant := constants[spec.Name]
	if constant > 0 {
		name += " " + spec.Name
	}
	name += fmt.Sprintf(" %d", unit)
	least := bytes
	if operators > 1 {
		least = int64(operators) * op.RoundUp(bytes, lcm64(unit))
	}
	st, err := s.get(name, op.RoundUp(max(least, footprint), unit), unit, func() ([]byte, error) {
		elements, err := pack.Bytes(one)
		if err != nil {
			return nil, err
		}
		few := one.N
		if spec.Layout == pack.Onnx {
			few = min(few, 4*pack.TileN)
		}
		values := make([]float32, one.K*few)
		rng := rand.New(rand.NewPCG(s.seed, uint64(unit)))
		for i := range values {
			values[i] = float32(rng.Float64()*2-1) / 16
			if constant > 0 {
				values[i] = constant
			}
		}
		src, err := pack.Floats(values, one.K, few)
		if err != nil {
			return nil, err
		}
		out := make([]byte, elements)
		return out, pack.Pack(out, one, &repeated{src, one.N})
	})
	return st, bytes, err
}

// heads returns a store of the numbers of heads that an estimate or a selection has, and their size in bytes.
func (s *stores) heads(operator op.Op) (*store, int64, error) {
	numbers := mem.Bytes(headNumbers(operator.Heads, operator.Density))
	size := int64(len(numbers))
	st, err := s.get(fmt.Sprintf("%d heads, %v estimated", operator.Heads, operator.Density), size, size,
		func() ([]byte, error) { return numbers, nil })
	return st, size, err
}

// repeated is a matrix of n columns that repeats the columns of another.
type repeated struct {
	pack.Source
	n int
}

// Shape has the source's rows and as many columns as are wanted.
func (r *repeated) Shape() (k, n int) {
	k, _ = r.Source.Shape()
	return k, r.n
}

// Read reads runs of columns, each up to the end of the source, and begins anew there.
func (r *repeated) Read(dst []float32, k0, k1, n0, n1 int) error {
	_, few := r.Source.Shape()
	for column := n0; column < n1; {
		run := min(few-column%few, n1-column)
		if err := r.Source.Read(dst[(column-n0)*(k1-k0):(column-n0+run)*(k1-k0)], k0, k1, column%few,
			column%few+run); err != nil {
			return err
		}
		column += run
	}
	return nil
}

// cache returns a store of cache values.
func (s *stores) cache(numbers op.Type, bytes int64) (*store, error) {
	return s.get("cache "+string(numbers), op.RoundUp(bytes, 4096), 64, func() ([]byte, error) {
		out, rng := make([]byte, 16384), rand.New(rand.NewPCG(s.seed, 2))
		if numbers == op.Q8 { // bytes that are usual as codes and as parts of a scale
			for i := range out {
				out[i] = byte(0x3c + rng.IntN(3))
			}
			return out, nil
		}
		fillValues(out, numbers, 1, rng)
		return out, nil
	})
}

// slots returns offsets of copies of the given bytes that do not overlap: as many as fit into the footprint, at most
// most, evenly spaced. Operators side by side divide the store and the footprint.
//
// The last copy comes first. A kernel prefetches lines behind the end of a weight. If the next copy lay there, its first
// lines would be in the cache already, which is mostly not so in a model.
func (st *store) slots(bytes, footprint int64, most int, member groupMember) []int64 {
	align := lcm64(st.unit)
	operators := int64(member.operators)
	share := int64(len(st.region.Bytes())) / operators / align * align
	first := int64(member.number) * share
	size := min(share, max(footprint/operators, bytes))

	step := op.RoundUp(max(bytes, 64), align)
	count := int(min(size/step, int64(most)))
	if count < 1 {
		return []int64{first}
	}
	step = size / int64(count) / align * align
	out := make([]int64, count)
	for i := range out {
		out[i] = first + int64(count-1-i)*step
	}
	return out
}

// lcm64 returns the least common multiple of unit and the alignment of operands.
func lcm64(unit int64) int64 {
	a, b := unit, int64(64)
	for b != 0 {
		a, b = b, a%b
	}
	return unit / a * 64
}
