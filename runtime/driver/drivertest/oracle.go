package drivertest

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// array is a dense [rows,cols] matrix in double precision, with what is needed to judge a result:
// how far each element may be off.
type array struct {
	value op.Value
	v     []float64
	// size is what the error of an element is relative to: the sum of the magnitudes of its terms.
	// For u8 it is the permitted difference itself: 1 where the exact value lies between two codes.
	size []float64
	// slack is how far a processor may be off that rounds activations again. For an activation
	// function it is the magnitude of its argument, times what the result is multiplied by.
	slack []float64
	// doubt is a further permitted difference, where the exact value lies so near the middle of two
	// roundings that either is right.
	doubt []float64
}

// newArray returns an array of zeros in the shape of a value.
func newArray(v op.Value) *array {
	elems := v.Rows * v.Cols
	return &array{value: v, v: make([]float64, elems), size: make([]float64, elems), slack: make([]float64, elems),
		doubt: make([]float64, elems)}
}

// at returns the element of row r and column c.
func (a *array) at(r, c int) float64 { return a.v[r*a.value.Cols+c] }

// set stores a result, rounded to float32, and the magnitude of its terms.
func (a *array) set(r, c int, v, size float64) {
	i := r*a.value.Cols + c
	a.v[i], a.size[i] = float64(float32(v)), math.Max(math.Abs(v), size)
}

// stored is the matrix [k,n] that packed bytes stand for, or one such matrix after the other for
// experts.
type stored struct {
	k, n int
	v    []float32
}

// rowsInUse returns the number of rows of a value that a call of the given number of tokens uses. A node
// has one row or several rows for each token.
func rowsInUse(g *op.Graph, name string, tokens int) int {
	rows := 0
	note := func(names []string, values []op.Value, by op.Op) {
		for i, value := range values {
			if names[i] == name {
				// Several rows for each token are those of its experts.
				rows = max(rows, by.InUse(value, tokens))
			}
		}
	}
	for _, node := range g.Nodes {
		sig := node.Op.Sig()
		note(node.In, sig.In, node.Op)
		note(node.Out, sig.Out, node.Op)
	}
	return rows
}

// cache is one layer's keys and values of some sequences, [sequences*heads*maxContext, dim] each.
type cache struct {
	typ        op.Type
	heads, dim int
	maxContext int
	sequences  int
	// What the oracle expects the buffers below to hold.
	k, v         []float64
	kbuf, vbuf   driver.Buffer
	kview, vview driver.View
}

// row returns the index of a position and head in the caches of all sequences.
func (c *cache) row(at driver.Place, head int) int {
	return (at.Sequence*c.heads+head)*c.maxContext + at.Pos
}

// round makes a row what the cache's type stores of it.
func (c *cache) round(row []float64) {
	bytes := make([]byte, c.typ.CacheRowBytes(c.dim))
	c.encode(bytes, row)
	copy(row, c.decode(bytes))
}

// encode stores a row. Of 8 bits, a row has the scale that makes its largest magnitude 127, and then all numbers are
// rounded to the nearest multiple of it, ties to even.
func (c *cache) encode(dst []byte, row []float64) {
	if c.typ != op.Q8 {
		for i, value := range row {
			encode(dst[i*c.typ.Bytes():], c.typ, value)
		}
		return
	}
	largest := 0.0
	for _, value := range row {
		largest = math.Max(largest, math.Abs(value))
	}
	scale := float32(largest) / 127
	for i, value := range row {
		code := 0.0
		if scale != 0 {
			code = math.RoundToEven(float64(float32(value) / scale))
		}
		dst[i] = uint8(128 + math.Max(-127, math.Min(127, code)))
	}
	encode(dst[len(row):], op.F32, float64(scale))
}

// decode reads a row that encode or a processor wrote.
func (c *cache) decode(src []byte) []float64 {
	row := make([]float64, c.dim)
	for i := range row {
		if c.typ == op.Q8 {
			row[i] = float64(float32(decode(src[c.dim:], op.F32)) * float32(int(src[i])-128))
		} else {
			row[i] = decode(src[i*c.typ.Bytes():], c.typ)
		}
	}
	return row
}

// fill stores all rows in a view of a cache.
func (c *cache) fill(view driver.View, rows []float64) {
	data, size := view.Bytes(), int(c.typ.CacheRowBytes(c.dim))
	for i := range len(rows) / c.dim {
		c.encode(data[i*size:], rows[i*c.dim:(i+1)*c.dim])
	}
}

// reroundSlack bounds the error of column j of a product with weight w [K,N] when the activations x
// are rounded to 8 bits with one scale per block: half a step for each element, times the weights.
func reroundSlack(o op.Op, j int, w []float32, x []float64) (slack float64) {
	block := o.Scheme.BlockK()
	if block < 2 {
		return 0
	}
	for from := 0; from < o.K; from += block {
		largest, sum := 0.0, 0.0
		for place := from; place < min(o.K, from+block); place++ {
			largest, sum = math.Max(largest, math.Abs(x[place])), sum+math.Abs(float64(w[place*o.N+j]))
		}
		slack += largest / 127 / 2 * sum
	}
	return slack
}

// evaluate computes the rows in use of every node in double precision, by the definitions. Between
// nodes it rounds values to float32, as every processor stores them.
func evaluate(g *op.Graph, vals map[string]*array, weights map[string]stored, c *cache, s driver.Scalars) {
	for i := range g.Nodes {
		node := &g.Nodes[i]
		// A node with fewer rows than the call has tokens, such as the head, uses all of its own.
		computed := evaluation{Op: node.Op, cache: c, scalars: &s, tokens: min(node.Op.M, s.Rows)}
		computed.rows = computed.tokens * max(1, computed.Fan)
		for _, name := range node.In {
			computed.in = append(computed.in, vals[name])
		}
		for _, name := range node.Out {
			computed.out = append(computed.out, vals[name])
		}
		for _, name := range node.W {
			computed.w = append(computed.w, weights[name])
		}
		define := definitions[computed.Kind]
		if define == nil {
			panic(fmt.Sprintf("BUG: no oracle for operator %q", computed.Kind))
		}
		define(&computed)
	}
}

// evaluation is one node with its operands.
type evaluation struct {
	op.Op
	in, out []*array
	w       []stored
	cache   *cache
	scalars *driver.Scalars

	// in use: tokens of the call, and rows, which are one or Fan for each token
	tokens, rows int
}

// definitions are what the operators compute.
var definitions = map[op.Kind]func(*evaluation){
	op.Embed: func(e *evaluation) {
		e.each(func(row, j int) (float64, float64) {
			id := int(e.in[0].at(row, 0))
			at := id*e.N + j
			if e.Scheme != "" {
				at = j*e.K + id
			}
			if e.Scale != 0 {
				return float64(e.w[0].v[at]) * e.Scale, 0
			}
			return float64(e.w[0].v[at]), 0
		})
	},
	op.SelectRow: func(e *evaluation) {
		for j := range e.N {
			e.out[0].set(0, j, e.in[0].at(e.scalars.Row, j), 0)
		}
	},
	op.Copy: func(e *evaluation) {
		for row := range e.rows {
			for j := range e.N {
				e.out[0].v[row*e.N+j], e.out[0].size[row*e.N+j] = e.in[0].at(row, j), 0
			}
		}
	},
	op.Norm:          norm,
	op.LayerNorm:     layerNorm,
	op.QKNorm:        qkNorm,
	op.QuantRows:     quantRows,
	op.MatMul:        matMul,
	op.ExpertMatMul:  expertMatMul,
	op.GroupMatMul:   groupMatMul,
	op.Dispatch:      dispatch,
	op.Collect:       collect,
	op.OutlierMatMul: outlierMatMul,
	op.Route: func(e *evaluation) {
		for row := range e.tokens {
			for j, chosen := range chooseExperts(e.Op, e.in[0].v[row*e.Experts:(row+1)*e.Experts]) {
				e.out[0].set(row, j, float64(chosen.expert), 0)
				e.out[1].set(row, j, chosen.weight, chosen.size)
			}
		}
	},
	op.Combine: func(e *evaluation) {
		for row := range e.tokens {
			for j := range e.N {
				sum, size := 0.0, 0.0
				for i := range e.Fan {
					term := e.in[0].at(row*e.Fan+i, j) * e.in[1].at(row, i)
					sum, size = sum+term, size+math.Abs(term)
				}
				e.out[0].set(row, j, sum, size)
			}
		}
	},
	op.GLU: func(e *evaluation) {
		e.each(func(row, j int) (float64, float64) {
			at := j/e.Interleave*2*e.Interleave + j%e.Interleave
			gate, up := e.in[0].at(row, at), e.in[0].at(row, at+e.Interleave)
			value, size := activation(e.Act, gate)
			e.out[0].slack[row*e.N+j] = math.Abs(gate * up)
			return value * up, size * math.Abs(up)
		})
	},
	op.Activate: func(e *evaluation) {
		e.each(func(row, j int) (float64, float64) {
			e.out[0].slack[row*e.N+j] = math.Abs(e.in[0].at(row, j))
			return activation(e.Act, e.in[0].at(row, j))
		})
	},
	op.Softcap: func(e *evaluation) {
		e.each(func(row, j int) (float64, float64) { return e.Cap * math.Tanh(e.in[0].at(row, j)/e.Cap), 0 })
	},
	op.Clip: func(e *evaluation) {
		e.each(func(row, j int) (float64, float64) { return min(max(e.in[0].at(row, j), -e.Cap), e.Cap), 0 })
	},
	op.Gate: func(e *evaluation) {
		e.each(func(row, j int) (float64, float64) {
			gate := e.in[1].at(row, 0)
			value := e.in[0].at(row, j) / (1 + math.Exp(-gate))
			return value, math.Abs(value * gate) // the exponential's error grows with its argument
		})
	},
	op.Add: func(e *evaluation) {
		e.each(func(row, j int) (float64, float64) {
			left, right := e.in[0].at(row, j), e.in[1].at(row, j)
			return left + right, math.Abs(left) + math.Abs(right)
		})
	},
	op.Rope:      rope,
	op.KVAppend:  kvAppend,
	op.Attention: attention,

	op.Estimate:     estimate,
	op.Select:       selectPositions,
	op.SparseAttend: sparseAttention,
}

// each sets the first output of every row in use to the values, with the magnitudes of their terms.
func (e *evaluation) each(value func(row, j int) (value, size float64)) {
	for row := range e.rows {
		for j := range e.N {
			v, size := value(row, j)
			e.out[0].set(row, j, v, size)
		}
	}
}

// place returns the sequence and position of a row.
func (e *evaluation) place(row int) driver.Place {
	if e.Batch {
		return e.scalars.Batch[row]
	}
	return driver.Place{Sequence: e.scalars.Sequence, Pos: e.scalars.Pos + row}
}

// group returns the number of query heads that share a key.
func (e *evaluation) group() int { return e.Heads / e.KVHeads }

// headAt returns the first column of a query or key head. A row has the query heads of a group, its key
// and its value, then those of the next group. Heads are numbered without the values.
func (e *evaluation) headAt(head int) int {
	group := e.group()
	return (head/(group+1)*(group+2) + head%(group+1)) * e.HeadDim
}

// unchanged copies a row of the input to the output and returns a copy of it, because output and
// input may be the same memory.
func (e *evaluation) unchanged(row int) []float64 {
	cols := e.in[0].value.Cols
	values := e.in[0].v[row*cols : (row+1)*cols]
	for j, value := range values {
		e.out[0].set(row, j, value, 0)
	}
	return slices.Clone(values) // the output may be the input
}

// norm leaves zeros at zero, also where the root is zero.
func norm(e *evaluation) {
	for row := range e.rows {
		sum := 0.0
		for j := range e.N {
			sum += e.in[0].at(row, j) * e.in[0].at(row, j)
		}
		root := math.Sqrt(sum/float64(e.N) + e.Eps)
		for j := range e.N {
			value := e.in[0].at(row, j)
			if value != 0 {
				value = value / root * float64(e.w[0].v[j])
			}
			e.out[0].set(row, j, value, 0)
		}
	}
}

// layerNorm has a mean to subtract, whose cancellation is what the error is relative to.
func layerNorm(e *evaluation) {
	for row := range e.rows {
		mean, sum := 0.0, 0.0
		for j := range e.N {
			mean += e.in[0].at(row, j) / float64(e.N)
		}
		for j := range e.N {
			sum += (e.in[0].at(row, j) - mean) * (e.in[0].at(row, j) - mean)
		}
		root := math.Sqrt(sum/float64(e.N) + e.Eps)
		for j := range e.N {
			value, gain, bias := e.in[0].at(row, j), float64(e.w[0].v[j]), float64(e.w[1].v[j])
			result, size := 0.0, 0.0
			if value != mean {
				result, size = (value-mean)/root*gain, (math.Abs(value)+math.Abs(mean))/root*math.Abs(gain)
			}
			e.out[0].set(row, j, result+bias, size+math.Abs(bias))
		}
	}
}

// qkNorm normalises each query and key head by itself, or with Joint all queries together and all keys together.
func qkNorm(e *evaluation) {
	group := e.group()
	for row := range e.rows {
		values := e.unchanged(row)
		// Sums of squares of each head, in the order of headAt: a group's queries, then its key.
		squares := make([]float64, e.Heads+e.KVHeads)
		queries, keys := 0.0, 0.0
		for head := range squares {
			for _, value := range values[e.headAt(head):][:e.HeadDim] {
				squares[head] += value * value
			}
			if head%(group+1) == group {
				keys += squares[head]
			} else {
				queries += squares[head]
			}
		}
		for head, square := range squares {
			kvHead, i := head/(group+1), head%(group+1)
			mean, gain := square/float64(e.HeadDim), e.w[0].v
			if i == group {
				gain = e.w[1].v
			}
			switch {
			case e.Joint && i < group:
				mean, gain = queries/float64(e.Heads*e.HeadDim), gain[(kvHead*group+i)*e.HeadDim:]
			case e.Joint:
				mean, gain = keys/float64(e.KVHeads*e.HeadDim), gain[kvHead*e.HeadDim:]
			}
			from := e.headAt(head)
			for i, value := range values[from : from+e.HeadDim] {
				if value != 0 {
					e.out[0].set(row, from+i, value/math.Sqrt(mean+e.Eps)*float64(gain[i]), 0)
				}
			}
		}
	}
}

// outlierMatMul multiplies what lies beyond the scale. Of more channels than one pass takes the sums are rounded in
// between.
func outlierMatMul(e *evaluation) {
	limit := float64(127 * e.w[1].v[0])
	beyond := func(row, k int) float64 {
		value := e.in[0].at(row, k)
		return value - min(max(value, -limit), limit)
	}
	channels := 0
	for k := range e.K {
		for row := range e.tokens {
			if beyond(row, k) != 0 {
				channels++
				break
			}
		}
	}
	rounded := 0.0
	if e.Channels > 0 && channels > e.Channels {
		rounded = 0x1p-24 * float64((channels-1)/e.Channels)
	}
	e.each(func(row, j int) (sum, size float64) {
		for k := range e.K {
			term := beyond(row, k) * float64(e.w[0].v[k*e.N+j])
			sum, size = sum+term, size+math.Abs(term)
		}
		e.out[0].doubt[row*e.N+j] = rounded * size
		return sum, size
	})
}

// quantRows rounds to codes around 128. doubt is 1 where the exact quotient lies in the middle of
// two codes.
func quantRows(e *evaluation) {
	for row := range e.rows {
		top := 0.0
		for j := range e.N {
			top = math.Max(top, math.Abs(e.in[0].at(row, j)))
		}
		// A dynamic scale maps the largest magnitude of the row to the code 127.
		scale := float64(float32(top / 127))
		if e.Static {
			scale = float64(op.StaticScale(e.w[0].v, float32(top)))
		}
		e.out[1].set(row, 0, scale, 0)
		for j := range e.N {
			code, doubt := 0.0, 0.0
			if scale != 0 {
				exact := e.in[0].at(row, j) / scale
				code = math.Max(-127, math.Min(127, math.RoundToEven(exact)))
				if fraction := math.Abs(exact - math.Trunc(exact)); math.Abs(fraction-0.5) < 1e-3 {
					doubt = 1
				}
			}
			e.out[0].v[row*e.N+j], e.out[0].size[row*e.N+j] = 128+code, doubt
		}
	}
}

// activations returns the values of a row of a product's input, dequantised where it is quantised.
func (e *evaluation) activations(row int) []float64 {
	scale, zero := 1.0, 0.0
	if e.Scheme.QuantisedRows() {
		scale, zero = e.in[1].at(row, 0), 128
	}
	out := make([]float64, e.K)
	for p := range out {
		out[p] = (e.in[0].at(row, p) - zero) * scale
	}
	return out
}

// matMul is a product, with the roundings that its scheme defines for activations and results.
func matMul(e *evaluation) {
	weight := e.w[0].v
	// This scheme multiplies in f16, so that weights count as rounded to it.
	if e.Scheme == op.A16FW16 {
		weight = make([]float32, e.K*e.N)
		for i := range weight {
			weight[i] = float32(round(op.F16, float64(e.w[0].v[i])))
		}
	}
	narrow, after := narrowing(e.Op, e.w[len(e.w)-1])
	for row := range e.rows {
		exact := e.activations(row)
		rounded, off := exact, make([]float64, e.K)
		if narrow != nil {
			rounded = make([]float64, e.K)
			// off is how far each activation may be off, because its own input is only known to
			// 1e-7
			for p, value := range exact {
				rounded[p], off[p] = narrow(value, 1e-7*math.Abs(value))
			}
		}
		for j := range e.N {
			sum, size, doubt := 0.0, 0.0, 0.0
			for p, value := range rounded {
				factor := float64(weight[p*e.N+j])
				sum, size, doubt = sum+value*factor, size+math.Abs(value*factor), doubt+off[p]*math.Abs(factor)
			}
			if e.Bias {
				bias := float64(e.w[1].v[j])
				sum, size = sum+bias, size+math.Abs(bias)
			}
			if narrow != nil {
				sum, doubt = after(sum, doubt+1e-5*size)
			}
			e.out[0].doubt[row*e.N+j] = doubt
			e.out[0].set(row, j, sum, size)
			e.out[0].slack[row*e.N+j] = reroundSlack(e.Op, j, weight, exact)
		}
	}
}

// groupMatMul is the product of each row with the matrix of its slot.
func groupMatMul(e *evaluation) {
	for row := range e.rows {
		values, weight := e.activations(row), e.w[row/(e.M/e.Experts)].v
		for j := range e.N {
			sum, size := 0.0, 0.0
			for p, value := range values {
				term := value * float64(weight[p*e.N+j])
				sum, size = sum+term, size+math.Abs(term)
			}
			e.out[0].set(row, j, sum, size)
			e.out[0].slack[row*e.N+j] = reroundSlack(e.Op, j, weight, values)
		}
	}
}

// expertMatMul is the product of each row with the matrix of its expert. Spread rows are those of
// tokens: all experts of a token read the same one.
func expertMatMul(e *evaluation) {
	ids := e.in[len(e.in)-1]
	for row := range e.rows {
		from := row
		if e.Spread {
			from = row / e.Fan
		}
		id := int(ids.at(row/e.Fan, row%e.Fan))
		if id < 0 { // sent to no expert
			for j := range e.N {
				e.out[0].set(row, j, 0, 0)
			}
			continue
		}
		values, expert := e.activations(from), e.w[0].v[id*e.K*e.N:]
		for j := range e.N {
			sum, size := 0.0, 0.0
			for p, value := range values {
				term := value * float64(expert[p*e.N+j])
				sum, size = sum+term, size+math.Abs(term)
			}
			e.out[0].set(row, j, sum, size)
		}
	}
}

// dispatch gives each slot the rows that are sent to its expert, as many as it has room for: the first, or those of the
// largest salience, and of equal salience the first.
func dispatch(e *evaluation) {
	groups := e.Groups.List()
	places, first, slot := e.out[len(groups)], 0, 0
	for i := range e.rows {
		places.v[i] = -1
		if e.Sent > 0 {
			e.out[len(groups)+1].v[i] = e.in[1].v[i]
		}
	}
	salience := func(row int) (sum float64) {
		switch e.Salience {
		case op.SalienceNorm:
			for j := range e.K {
				value := e.in[2].at(row/e.Fan, j)
				sum += value * value
			}
		case op.SalienceWeight:
			sum = e.in[2].at(row/e.Fan, row%e.Fan)
		case op.SalienceRandom:
			sum = float64(op.RandomSalience(row))
		}
		return sum
	}
	for g, group := range groups {
		out := e.out[g]
		clear(out.v)
		for range group.Slots {
			var rows []int
			for row := range e.rows {
				if e.in[1].v[row] == float64(e.w[0].v[slot]) {
					rows = append(rows, row)
				}
			}
			slot++
			for len(rows) > group.Rows { // one after the other the last, or the least salient and of these the last
				worst := len(rows) - 1
				for i, row := range slices.Backward(rows) {
					if salience(row) < salience(rows[worst]) {
						worst = i
					}
				}
				if e.Salience != "" && e.Sent > 0 {
					e.out[len(groups)+1].v[rows[worst]] = -1
				}
				rows = slices.Delete(rows, worst, worst+1)
			}
			for i, row := range rows {
				places.v[row] = float64(first + i)
				if e.Sent > 0 {
					e.out[len(groups)+1].v[row] = -1
				}
				at := (slot - 1 - slotsBefore(groups, g)) * group.Rows
				for j := range e.N {
					out.set(at+i, j, e.in[0].at(row/e.Fan, j), 0)
				}
			}
			first += group.Rows
		}
	}
}

// slotsBefore returns the number of slots of the groups before one.
func slotsBefore(groups []op.Group, group int) (count int) {
	for _, before := range groups[:group] {
		count += before.Slots
	}
	return count
}

// collect sums the rows of a token, of which each is that of its place, else that of the rest, else 0.
func collect(e *evaluation) {
	groups := e.Groups.List()
	places, weights := e.in[len(e.in)-2], e.in[len(e.in)-1]
	row := func(row, j int) float64 {
		at := int(places.v[row])
		if at < 0 {
			if e.Sent == 0 {
				return 0
			}
			return e.in[len(groups)].at(row, j)
		}
		for g, group := range groups {
			if at < group.Slots*group.Rows {
				return e.in[g].at(at, j)
			}
			at -= group.Slots * group.Rows
		}
		panic("BUG: a place beyond the groups")
	}
	for token := range e.tokens {
		for j := range e.N {
			sum, size := 0.0, 0.0
			for i := range e.Fan {
				term := row(token*e.Fan+i, j) * weights.at(token, i)
				sum, size = sum+term, size+math.Abs(term)
			}
			e.out[0].set(token, j, sum, size)
		}
	}
}

// rope rotates the first columns of each query and key head by angles that grow with the position.
func rope(e *evaluation) {
	half := e.Rotary() / 2
	for row := range e.rows {
		at, seq := e.place(row), e.scalars.Seq
		if e.Batch {
			seq = at.Pos + 1
		}
		freq, amplitude := rotation(e.Op, e.w[0].v, seq)
		values := e.unchanged(row)
		for head := range e.Heads + e.KVHeads {
			from := e.headAt(head)
			for i := range half {
				sin, cos := math.Sincos(float64(float32(at.Pos) * freq[i]))
				left, right := values[from+i]*amplitude, values[from+i+half]*amplitude
				size := math.Abs(left) + math.Abs(right)
				e.out[0].set(row, from+i, left*cos-right*sin, size)
				e.out[0].set(row, from+i+half, right*cos+left*sin, size)
			}
		}
	}
}

// kvAppend stores the keys and values of a row at its position, rounded to the cache's type.
func kvAppend(e *evaluation) {
	group := e.group()
	for row := range e.rows {
		for kvHead := range e.KVHeads {
			at := e.cache.row(e.place(row), kvHead) * e.HeadDim
			for i := range e.HeadDim {
				key := (kvHead*(group+2)+group)*e.HeadDim + i
				e.cache.k[at+i] = e.in[0].at(row, key)
				e.cache.v[at+i] = e.in[0].at(row, key+e.HeadDim)
			}
			e.cache.round(e.cache.k[at : at+e.HeadDim])
			e.cache.round(e.cache.v[at : at+e.HeadDim])
		}
	}
}

// attention is the mean of the values up to each row's position, weighted by the softmax of their scores.
func attention(e *evaluation) {
	group := e.group()
	for row := range e.rows {
		end := e.place(row)
		for head := range e.Heads {
			kvHead := head / group
			begin := e.cache.row(driver.Place{Sequence: end.Sequence}, kvHead)
			query := (kvHead*(group+2) + head%group) * e.HeadDim
			shares, steep := e.shares(row, query, begin, end.Pos+1)
			relative, absolute := e.roundedShares(begin, shares)
			for i := range e.HeadDim {
				sum, size := 0.0, 0.0
				for pos, share := range shares {
					term := share * e.cache.v[(begin+pos)*e.HeadDim+i]
					sum, size = sum+term, size+math.Abs(term)
				}
				e.out[0].set(row, head*e.HeadDim+i, sum, e.cached(size)*steep)
				e.out[0].doubt[row*e.out[0].value.Cols+head*e.HeadDim+i] = relative*size + absolute
			}
		}
	}
}

// roundedShares returns how far a sum of weighted values may be off because of how weights are rounded: relative to the
// magnitude of its terms where the cache is bf16, since weights are rounded to that and what they are relative to is not
// defined; by a number where it has 8 bits, since a weight times the scale of its value may be rounded to 1/65535 of the
// largest weight and the largest scale in a block.
func (e *evaluation) roundedShares(begin int, shares []float64) (relative, absolute float64) {
	switch e.KV {
	case op.BF16:
		return 1.0 / (1 << 8), 0
	case op.Q8:
		largest := 0.0 // value: 127 times the largest scale, or more
		for _, value := range e.cache.v[begin*e.HeadDim : (begin+len(shares))*e.HeadDim] {
			largest = math.Max(largest, math.Abs(value))
		}
		return 0, float64(len(shares)) * slices.Max(shares) * largest / 65535 / 2
	}
	return 0, 0
}

// query returns a query as attention multiplies it: rounded as a key is where the cache has 16 bits of bfloat16 or 8.
func (e *evaluation) query(row, column int) []float64 {
	query := make([]float64, e.HeadDim)
	for i := range query {
		query[i] = e.in[0].at(row, column+i)
	}
	if e.KV == op.BF16 || e.KV == op.Q8 {
		e.cache.round(query)
	}
	return query
}

// shares returns the softmax of a query's scores with count positions, whose keys begin at a row of the
// cache. steep is the largest magnitude of a score, by which the error of a share grows.
func (e *evaluation) shares(row, query, begin, count int) (shares []float64, steep float64) {
	return e.sharesOf(row, query, begin, count, func(int) bool { return true })
}

// sharesOf is shares among those positions that are seen.
func (e *evaluation) sharesOf(row, query, begin, count int, seen func(pos int) bool) (shares []float64, steep float64) {
	scale, first := e.Scale, 0
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(e.HeadDim))
	}
	if e.Window > 0 {
		first = max(0, count-e.Window)
	}
	shares = make([]float64, count)
	top, sum, steep := math.Inf(-1), 0.0, 1.0
	numbers := e.query(row, query)
	for pos := first; pos < count; pos++ {
		if !seen(pos) {
			continue
		}
		score := 0.0
		for i, number := range numbers {
			score += number * e.cache.k[(begin+pos)*e.HeadDim+i]
		}
		score *= scale
		if e.Cap > 0 {
			score = e.Cap * math.Tanh(score/e.Cap)
		}
		shares[pos], top, steep = score, math.Max(top, score), math.Max(steep, math.Abs(score))
	}
	for pos := first; pos < count; pos++ {
		if !seen(pos) {
			continue
		}
		// Less the largest score, no exponential overflows.
		shares[pos] = math.Exp(shares[pos] - top)
		sum += shares[pos]
	}
	for pos := first; pos < count; pos++ {
		shares[pos] /= sum
	}
	return shares, steep
}

// narrowing returns how a product rounds its activations (x) and its results (y) to 16 bits, nil
// where it does not. Each function returns the rounded value, and how far off a processor may be
// whose exact value is only known to err. steps are those of a grid.
func narrowing(operator op.Op, steps stored) (x, y func(v, err float64) (float64, float64)) {
	// The permitted difference is how far the rounded value moves when the exact one moves by err.
	with := func(to func(v float64) float64) func(v, err float64) (float64, float64) {
		return func(v, err float64) (float64, float64) {
			mid := to(v)
			return mid, math.Max(to(v+err)-mid, mid-to(v-err))
		}
	}
	grid := func(step float32) func(v float64) float64 {
		return func(v float64) float64 {
			return math.Max(-32767, math.Min(32767, math.RoundToEven(v/float64(step)))) * float64(step)
		}
	}
	switch {
	case operator.Scheme.Grid():
		return with(grid(steps.v[0])), with(grid(steps.v[operator.N]))
	case operator.Scheme.Half():
		half := with(func(v float64) float64 { return round(op.F16, v) })
		return half, half
	}
	return nil, nil
}

// activation is act(input) and the magnitude of its terms: an exponential turns the absolute error
// of its argument into a relative one.
func activation(act string, input float64) (output, size float64) {
	sigmoid := func(u float64) (y, size float64) {
		y = input / (1 + math.Exp(-u))
		return y, math.Abs(y) * math.Max(1, math.Abs(u))
	}
	switch act {
	case op.SiLU:
		return sigmoid(input)
	case op.GELU:
		output = input * (1 + math.Erf(input/math.Sqrt2)) / 2
		return output, math.Abs(input)
	case op.GELUTanh:
		return sigmoid(2 * math.Sqrt(2/math.Pi) * (input + 0.044715*input*input*input))
	case op.ReLU:
		return math.Max(input, 0), 0
	}
	panic("BUG: no oracle for activation function " + act)
}

// rotation returns the frequencies and the amplitude of a rope for a sequence of seq positions.
func rotation(o op.Op, table []float32, seq int) (freq []float32, amplitude float64) {
	half := o.Rotary() / 2
	freq, amplitude = table[:half], o.Amplitude
	if o.LongFrom > 0 && seq > o.LongFrom {
		if o.NTK == 0 {
			freq, amplitude = table[half:], o.LongAmplitude
		} else {
			// NTK scaling: the base grows with how far the sequence exceeds LongFrom, so that slow frequencies are
			// stretched most.
			stretch := o.NTK*float64(seq)/float64(o.LongFrom) - (o.NTK - 1)
			freq = make([]float32, half)
			for i := range freq {
				freq[i] = float32(float64(table[i]) * math.Pow(stretch, -float64(i)/float64(half-1)))
			}
		}
	}
	if amplitude == 0 {
		amplitude = 1
	}
	return freq, amplitude
}

// choice is an expert of a token, with its weight and the magnitude by which that may be off.
type choice struct {
	expert       int
	weight, size float64
}

// chooseExperts sorts the experts of one token by logit, of equal ones the lower index first, and
// computes the weights of the first Fan.
func chooseExperts(operator op.Op, logits []float64) []choice {
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
	out := make([]choice, operator.Fan)
	for j := range out {
		among := order // the experts of the softmax
		switch operator.Router {
		case op.RouteSoftmaxNorm:
			among = order[:operator.Fan]
		case op.RouteSparseMixer:
			among = nil
			top := float32(logits[order[j]])
			for _, i := range order[j:] {
				logit := float32(logits[i])
				// Experts far below the best one are masked; the negated comparison keeps NaN among the others.
				if !((top-logit)/max(float32(math.Abs(logits[i])), top) > float32(2*operator.Jitter)) {
					among = append(among, i)
				}
			}
		}
		// The weight is exp(own) over the sum, computed relative to own.
		own, sum, steep := logits[order[j]], 0.0, 1.0
		for _, i := range among {
			sum += math.Exp(logits[i] - own)
			steep = math.Max(steep, math.Abs(logits[i]-own))
		}
		out[j] = choice{order[j], 1 / sum, steep / sum}
	}
	return out
}

// round is v as the type stores it.
func round(t op.Type, v float64) float64 {
	var b [4]byte
	encode(b[:], t, v)
	return decode(b[:], t)
}

// encode stores a number; f16 and bf16 round to nearest, ties to even.
func encode(dst []byte, elem op.Type, value float64) {
	switch elem {
	case op.F32:
		binary.LittleEndian.PutUint32(dst, math.Float32bits(float32(value)))
	case op.I32:
		binary.LittleEndian.PutUint32(dst, uint32(int32(value)))
	case op.U8:
		dst[0] = uint8(value)
	case op.I8:
		dst[0] = uint8(int8(value))
	case op.BF16:
		// The upper half of a float32, and one more where the lower half is more than half of its unit, or that and
		// the upper one is odd.
		bits := math.Float32bits(float32(value))
		brain := uint16(bits >> 16)
		low := bits & 0xffff
		if low > 0x8000 || low == 0x8000 && brain%2 == 1 {
			brain++
		}
		binary.LittleEndian.PutUint16(dst, brain)
	case op.F16:
		half, size := uint16(0), math.Abs(value)
		if math.Signbit(value) {
			half = 1 << 15
		}
		if size != 0 {
			exponent := max(-14, math.Ilogb(size))
			// units of 2^(e-10); 1024..2048 unless subnormal
			fraction := math.RoundToEven(math.Ldexp(size, 10-exponent))
			if fraction < 1024 {
				half |= uint16(fraction)
			} else {
				half |= uint16(exponent+14)<<10 + uint16(fraction) // the implicit bit counts as one exponent step
			}
		}
		binary.LittleEndian.PutUint16(dst, half)
	default:
		panic("BUG: type " + string(elem))
	}
}

// decode reads a number that encode wrote.
func decode(src []byte, elem op.Type) float64 {
	switch elem {
	case op.F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(src)))
	case op.I32:
		return float64(int32(binary.LittleEndian.Uint32(src)))
	case op.U8:
		return float64(src[0])
	case op.I8:
		return float64(int8(src[0]))
	case op.BF16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(src)) << 16))
	case op.F16:
		half := binary.LittleEndian.Uint16(src)
		exponent, fraction := int(half>>10&31), float64(half&1023)
		value := fraction * 0x1p-24
		if exponent > 0 {
			value = (fraction + 1024) * math.Float64frombits(uint64(1023+exponent-25)<<52) // 2^(e-25)
		}
		if half>>15 == 1 {
			value = -value
		}
		return value
	}
	panic("BUG: type " + string(elem))
}
