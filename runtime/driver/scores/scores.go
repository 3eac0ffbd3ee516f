// Package scores knows how an estimate of scores (op.Estimate) is put to a processor of static shapes, which multiplies
// codes of 8 bits and knows neither the cache nor positions.
//
// The processor has one graph: of each key head the products of a fixed number of queries with a fixed number of keys
// (op.Launch), all of them codes around 128. What depends on positions, rows and scales happens here, on the thread of
// the call. Queries and keys are rounded with the scales of the call's bucket. The graph is launched for as many keys
// as the call sees. Its products are compared with the largest of each query, and pooled over the queries of a block.
//
// RATIONALE: Why does one graph serve every bucket of scales?
package scores

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// Estimate is one operator with its weight, and the operands of its launches.
type Estimate[T int32 | float32] struct {
	op     op.Op
	launch op.Launch
	heads  []op.SparseHead
	group  int

	queries, keys []byte // codes [KVHeads*launch.Rows, HeadDim], [KVHeads*launch.Keys, HeadDim]
	products      []T    // [KVHeads*launch.Rows, launch.Keys]
	codes         []byte // of all keys that the call sees, as the keys of one launch behind those of the other
	lines         []T    // products of a launch's queries with all these keys
	key           []float32

	// of the current call
	view             cacheView
	rows, from, to   int // rows in use, and the positions that some query sees before its block
	queryScale       []float32
	keyScale         []float32   // by key head
	storedScales     [][]float32 // of a cache of 8 bits, by key head and position from the first
	qkv              []float32
	out              []float32
	qkvLine, outLine int
}

// cacheView is where the keys of the call's sequence are.
type cacheView struct {
	raw     []byte // from position 0 of key head 0
	context int    // positions of a head
}

// Heads reads the weight "heads" of an estimate, and refuses numbers that make no sense.
func Heads(operator op.Op, weight []float32) (heads []op.SparseHead, err error) {
	if want := 3 * operator.Heads; len(weight) != want {
		return nil, fmt.Errorf("the scales of heads are %d numbers, want %d", len(weight), want)
	}
	for head := range operator.Heads {
		numbers, err := op.SparseHeadOf(weight, head)
		if err != nil {
			return nil, err
		}
		heads = append(heads, numbers)
	}
	return heads, nil
}

// New prepares an estimate with the values of its weight "heads". The operands of launches are memory of the caller's,
// of the shapes that op.Op.Operands says: queries and keys are written before a launch, products are read after it.
func New[T int32 | float32](operator op.Op, weight []float32, queries, keys []byte, products []T) (*Estimate[T], error) {
	e := &Estimate[T]{op: operator, launch: operator.Launch(), group: operator.Heads / operator.KVHeads,
		queries: queries, keys: keys, products: products, key: make([]float32, operator.HeadDim)}
	var err error
	if e.heads, err = Heads(operator, weight); err != nil {
		return nil, err
	}
	for i, value := range operator.Operands(op.F32) {
		have := []int{len(queries), len(keys), len(products)}[i]
		if want := value.Rows * value.Cols; have != want {
			return nil, fmt.Errorf("operand %q has %d elements, want %d", value.Name, have, want)
		}
	}
	e.queryScale, e.keyScale = make([]float32, operator.Heads), make([]float32, operator.KVHeads)
	e.storedScales = make([][]float32, operator.KVHeads)
	return e, nil
}

// Run executes a call: launch computes products of the operands. Rows beyond those in use have no part in the result.
func (e *Estimate[T]) Run(graph *op.Graph, bindings *driver.Bindings, launch func() error) error {
	if err := e.bind(graph, bindings); err != nil || e.rows == 0 {
		return err
	}
	var spans []op.SparseSpan
	for r0 := 0; r0 < e.rows; r0 += e.op.Block {
		spans = append(spans, e.op.SpanOf(bindings.Scalars.Pos+r0, min(e.op.Block, e.rows-r0)))
	}
	e.from, e.to = spans[0].Inner, spans[len(spans)-1].Block
	if e.from >= e.to || !slices.ContainsFunc(spans, e.choice) {
		return nil
	}
	e.choose()
	if !e.roundKeys() {
		return e.refused(0)
	}
	each := e.launch.Rows / e.group // rows of a launch
	for r0 := 0; r0 < e.rows; r0 += each {
		rows := min(each, e.rows-r0)
		if bad := e.roundQueries(r0, rows); bad >= 0 {
			return e.refused(bad)
		}
		first, last := r0/e.op.Block, (r0+rows-1)/e.op.Block
		if !slices.ContainsFunc(spans[first:last+1], e.choice) {
			continue
		}
		if err := e.multiply(spans[first].Inner, spans[last].Block, launch); err != nil {
			return err
		}
		for block := first; block <= last; block++ {
			skip := block*e.op.Block - r0
			for head := range e.op.Heads {
				e.pool(&spans[block], block, head, head*each+skip, min(e.op.Block, rows-skip))
			}
		}
	}
	return nil
}

// choice reports whether the scores of some head have a say in what a block of queries keeps.
func (e *Estimate[T]) choice(span op.SparseSpan) bool {
	return slices.ContainsFunc(e.heads, func(head op.SparseHead) bool { return !span.Decided(head.Share, e.op.Least) })
}

// width returns the number of keys that the launches of a call take, those of the last one whole.
func (e *Estimate[T]) width() int { return op.RoundUp(e.to-e.from, e.launch.Keys) }

// multiply launches the products of the current queries with the keys of positions from..to-1.
func (e *Estimate[T]) multiply(from, to int, launch func() error) error {
	keys, width := e.launch.Keys, e.width()
	if want := e.op.KVHeads * e.launch.Rows * width; len(e.lines) < want {
		e.lines = make([]T, want)
	}
	for at := (from - e.from) / keys * keys; at < to-e.from; at += keys {
		copy(e.keys, e.codes[at/keys*len(e.keys):])
		if err := launch(); err != nil {
			return err
		}
		for line := range e.op.KVHeads * e.launch.Rows {
			copy(e.lines[line*width+at:][:keys], e.products[line*keys:])
		}
	}
	return nil
}

// pool writes what positions are worth to a block of queries of a head, whose products are rows lines. It rounds as the
// host's kernels do, so that equal scores are equal there too: a score is the product times both scales, and then less
// the query's largest.
func (e *Estimate[T]) pool(span *op.SparseSpan, block, head, line, rows int) {
	width, begin, end := e.width(), span.Inner-e.from, span.Block-e.from
	if span.Decided(e.heads[head].Share, e.op.Least) {
		return
	}
	at := block*e.outLine + head*e.op.Context
	out := e.out[at+span.Inner : at+span.Block]
	for i := range out {
		out[i] = float32(math.Inf(-1))
	}
	for row := range rows {
		products := e.lines[(line+row)*width+begin:][:len(out)]
		if e.op.KV == op.Q8 {
			poolStored(out, products, e.queryScale[head], e.storedScales[head/e.group][begin:end])
			continue
		}
		scale := e.queryScale[head] * e.keyScale[head/e.group]
		largest := products[0]
		for _, product := range products {
			largest = max(largest, product)
		}
		top := float32(largest) * scale
		for i, product := range products {
			out[i] = max(out[i], float32(float32(product)*scale)-top)
		}
	}
}

// poolStored adds a query's products with keys that have a scale each.
func poolStored[T int32 | float32](out []float32, products []T, scale float32, keyScales []float32) {
	top := float32(math.Inf(-1))
	for i, product := range products {
		top = max(top, float32(product)*(scale*keyScales[i]))
	}
	for i, product := range products {
		out[i] = max(out[i], float32(float32(product)*(scale*keyScales[i]))-top)
	}
}

// refused returns the error about a row that 8 bits cannot represent.
func (e *Estimate[T]) refused(row int) error {
	return fmt.Errorf("node 0 (%s), row %d: %w", e.op.Kind, row,
		errors.New("a query or a cached key is NaN or infinite, which 8 bits cannot represent"))
}

// bind checks the operands of a call before any of its memory is touched, and makes them current.
func (e *Estimate[T]) bind(graph *op.Graph, bindings *driver.Bindings) error {
	if err := bindings.Matches(graph); err != nil {
		return err
	}
	scalars := bindings.Scalars
	if e.rows = min(e.op.M, scalars.Rows); e.rows == 0 {
		return nil
	}
	if err := bindings.CheckSpan(e.rows); err != nil {
		return err
	}
	if scalars.Pos+e.rows > e.op.Context {
		return fmt.Errorf("node 0 (%s), row 0: the context reaches beyond %d positions, for which the operator was made",
			e.op.Kind, e.op.Context)
	}
	in, out := &bindings.In[0], &bindings.Out[0]
	blocks := (e.rows + e.op.Block - 1) / e.op.Block
	var err error
	if e.qkv, err = floats(in, graph.Inputs[0], e.rows, "input"); err != nil {
		return err
	}
	if e.out, err = floats(out, graph.Outputs[0], blocks, "output"); err != nil {
		return err
	}
	e.qkvLine, e.outLine = in.Stride, out.Stride
	keys, err := bindings.Cached(&bindings.K, "k", &e.op)
	if err != nil {
		return err
	}
	e.view = cacheView{keys, bindings.MaxContext}
	_, err = bindings.Cached(&bindings.V, "v", &e.op)
	return err
}

// floats returns the numbers of a view from its first to its last element in use.
func floats(view *driver.View, want op.Value, rows int, role string) ([]float32, error) {
	if view.Type != want.Type || view.Cols != want.Cols || view.Rows < rows {
		return nil, fmt.Errorf("%s %q: got view %s [%d,%d], want %s [%d,%d]", role, want.Name, view.Type, view.Rows,
			view.Cols, want.Type, rows, want.Cols)
	}
	raw, err := view.Window(rows)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", role, want.Name, err)
	}
	values, err := mem.View[float32](raw)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", role, want.Name, err)
	}
	return values, nil
}

// query returns a query of a row of the call.
func (e *Estimate[T]) query(row, head int) []float32 {
	at := row*e.qkvLine + (head/e.group*(e.group+2)+head%e.group)*e.op.HeadDim
	return e.qkv[at : at+e.op.HeadDim]
}

// choose takes the scales of the nearest bucket for each key head.
func (e *Estimate[T]) choose() {
	for kvHead := range e.op.KVHeads {
		heads := e.heads[kvHead*e.group : (kvHead+1)*e.group]
		factors := [2]float32{1, 1}
		if e.op.Buckets > 0 {
			var queryScale, largestQuery, keyScale, largestKey float32
			for i, head := range heads {
				queryScale = max(queryScale, head.QueryScale)
				for row := range e.rows {
					largestQuery = largest(e.query(row, kvHead*e.group+i), largestQuery)
				}
			}
			if e.op.KV != op.Q8 {
				keyScale = heads[0].KeyScale
				for pos := e.from; pos < e.to; pos++ {
					largestKey = largest(e.keyAt(kvHead, pos), largestKey)
				}
			}
			factors = op.NearestFactors(e.op.Buckets, queryScale, keyScale, largestQuery, largestKey)
		}
		for i, head := range heads {
			e.queryScale[kvHead*e.group+i] = head.QueryScale * factors[0]
		}
		e.keyScale[kvHead] = heads[0].KeyScale * factors[1]
	}
}

// largest returns the largest of a magnitude and those of numbers.
func largest(values []float32, most float32) float32 {
	for _, value := range values {
		most = max(most, value, -value)
	}
	return most
}

// roundQueries writes the codes of rows from r0 on, and codes of zero for what is left of the launch. It returns the
// first row with a number that is not finite, -1: there is none.
func (e *Estimate[T]) roundQueries(r0, rows int) (bad int) {
	dim, each := e.op.HeadDim, e.launch.Rows/e.group
	for head := range e.op.Heads {
		to := e.queries[head*each*dim : (head+1)*each*dim]
		for row := range rows {
			if !round(to[row*dim:(row+1)*dim], e.query(r0+row, head), e.queryScale[head]) {
				return r0 + row
			}
		}
		fill(to[rows*dim:])
	}
	return -1
}

// roundKeys makes the codes of all keys that the call sees, and codes of zero for what is left of the last launch. It
// reports whether all numbers are finite.
func (e *Estimate[T]) roundKeys() bool {
	dim, keys, each := e.op.HeadDim, e.launch.Keys, len(e.keys)/e.op.KVHeads
	if want := e.width() / keys * len(e.keys); len(e.codes) < want {
		e.codes = make([]byte, want)
	}
	for pos := e.from; pos < e.to; pos += keys {
		count := min(keys, e.to-pos)
		for kvHead := range e.op.KVHeads {
			to := e.codes[(pos-e.from)/keys*len(e.keys)+kvHead*each:][:each]
			if e.op.KV == op.Q8 {
				e.storedKeys(to, kvHead, pos, count)
			} else {
				for i := range count {
					if !round(to[i*dim:(i+1)*dim], e.keyAt(kvHead, pos+i), e.keyScale[kvHead]) {
						return false
					}
				}
			}
			fill(to[count*dim:])
		}
	}
	return true
}

// storedKeys copies keys that the cache holds as codes, and notes their scales.
func (e *Estimate[T]) storedKeys(to []byte, kvHead, pos, count int) {
	dim := e.op.HeadDim
	line := dim + 4
	if want := e.width(); len(e.storedScales[kvHead]) < want {
		e.storedScales[kvHead] = make([]float32, want)
	}
	scales := e.storedScales[kvHead][pos-e.from:]
	for i := range count {
		row := e.view.raw[(kvHead*e.view.context+pos+i)*line:][:line]
		copy(to[i*dim:], row[:dim])
		scales[i] = math.Float32frombits(binary.LittleEndian.Uint32(row[dim:]))
	}
}

// keyAt returns a cached key as float32, valid until the next call.
func (e *Estimate[T]) keyAt(kvHead, pos int) []float32 {
	size := int(e.op.KV.CacheRowBytes(e.op.HeadDim))
	number.Decode(e.key, e.view.raw[(kvHead*e.view.context+pos)*size:][:size], e.op.KV)
	return e.key
}

// zero is the code of zero.
const zero = 128

// round writes the codes of numbers, which saturate at 127 times the scale. It reports whether all of them are finite.
func round(codes []byte, values []float32, scale float32) bool {
	for i, value := range values {
		if value-value != 0 {
			return false
		}
		code := math.RoundToEven(float64(value / scale))
		codes[i] = byte(zero + int(max(-127, min(127, code))))
	}
	return true
}

// fill writes codes of zero.
func fill(codes []byte) {
	for i := range codes {
		codes[i] = zero
	}
}
