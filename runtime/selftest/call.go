package selftest

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// position is how many positions of the cache precede those of a call, where the context is long enough.
const position = 211

// Names of what is compared beside a graph's outputs: the rows of the cache that it writes.
const (
	keys   = "cache keys"
	values = "cache values"
)

// Call is how a target is executed: its operands in the windows that the plan's step has, with numbers that follow from
// the graph.
type Call struct {
	graph   *op.Graph
	windows map[string]window // of the graph's inputs and outputs
	rows    int               // tokens of a whole call
	period  int               // tokens that differ
	places  bool              // results depend on where a row is: in the context, or among the rows
	slots   bool              // rows are multiplied by the weight of their slot
	state   *op.Op            // the node that uses the cache, nil: none
	appends bool              // the cache is written
	context int               // positions of the cache
	pos     int               // of row 0
}

// window is where a value lies in the rows of its buffer.
type window struct {
	value  op.Value
	stride int
	first  int
	tokens int // of a whole call
}

// NewCall prepares a target. The plan satisfies planir.Check.
func NewCall(plan *planir.Plan, target *Target) *Call {
	graph := &target.Graph.Graph
	call := &Call{graph: graph, windows: map[string]window{}, rows: graph.Rows()}
	cols := map[string]int{}
	for i := range plan.Program.Buffers {
		cols[plan.Program.Buffers[i].Name] = plan.Program.Buffers[i].Cols
	}
	tokens := tokensOf(graph)
	add := func(list []op.Value, views []planir.View) {
		for i, value := range list {
			call.windows[value.Name] = window{value, cols[views[i].Buffer], views[i].C0, tokens[value.Name]}
		}
	}
	add(graph.Inputs, target.Step.In)
	add(graph.Outputs, target.Step.Out)
	for i := range graph.Nodes {
		node := &graph.Nodes[i].Op
		switch node.Kind {
		case op.Rope, op.SelectRow:
			call.places = true
		case op.GroupMatMul:
			call.slots = node.Experts > 1
		case op.KVAppend, op.Attention, op.Estimate, op.SparseAttend:
			call.places, call.state = true, node
			call.appends = call.appends || node.Kind == op.KVAppend
		}
	}
	call.period = min(call.rows, Period)
	if call.places || call.slots {
		call.period = call.rows
	}
	call.pos = max(0, min(plan.MaxContext-call.rows, position))
	call.context = min(plan.MaxContext, op.RoundUp(call.pos+call.rows, 16))
	return call
}

// tokensOf returns the number of tokens of each value: the rows of the nodes that read or write it.
func tokensOf(graph *op.Graph) map[string]int {
	out := map[string]int{}
	for _, node := range graph.Nodes {
		signature := node.Op.Sig()
		for i, name := range node.In {
			out[name] = max(out[name], min(node.Op.M, signature.In[i].Rows))
		}
		for i, name := range node.Out {
			out[name] = max(out[name], min(node.Op.M, signature.Out[i].Rows))
		}
	}
	return out
}

// distinct returns the number of tokens of a value that differ.
func (c *Call) distinct(w window) int { return min(c.period, w.tokens) }

// perToken returns the number of rows that a value has for each token.
func (w window) perToken() int { return max(1, w.value.Rows/max(1, w.tokens)) }

// shapes returns the sizes of what is compared.
func (c *Call) shapes() []shape {
	var out []shape
	for _, value := range c.graph.Outputs {
		w := c.windows[value.Name]
		out = append(out, shape{value.Name, c.distinct(w) * w.perToken(), value.Cols})
	}
	if c.appends {
		width := c.state.KVHeads * c.state.HeadDim
		out = append(out, shape{keys, c.rows, width}, shape{values, c.rows, width})
	}
	return out
}

// Rows lists the numbers of tokens with which the target is called on a processor: all, and where that takes fewer,
// some of them.
func (c *Call) Rows(dynamic bool) []int {
	some := c.rows/2 + 1
	if !dynamic || c.places || some >= c.rows || some < c.period {
		return []int{c.rows}
	}
	return []int{c.rows, some}
}

// Reference returns the number of tokens that the reference computes.
func (c *Call) Reference() int { return c.period }

// numbersOf returns the distinct rows of an input.
func (c *Call) numbersOf(at int, amplitude float32) []float32 {
	value := c.graph.Inputs[at]
	w := c.windows[value.Name]
	seed := fnv.New64a()
	_, _ = seed.Write(textOf(c.graph))
	rng := rand.New(rand.NewPCG(seed.Sum64(), uint64(at)))
	out := make([]float32, c.distinct(w)*w.perToken()*value.Cols)
	limit, experts := c.ids(value.Name)
	scales := c.isScale(value.Name)
	chosen := 0
	for i := range out {
		draw := 2*rng.Float64() - 1
		switch {
		case value.Type == op.U8:
			out[i] = float32(128 + math.Round(127*draw))
		case value.Type == op.I32 && experts: // those of a token differ
			if i%value.Cols == 0 {
				chosen = int((draw + 1) / 2 * float64(limit))
			}
			out[i] = float32((chosen + i%value.Cols) % limit)
		case value.Type == op.I32:
			out[i] = float32(min(limit-1, int((draw+1)/2*float64(limit))))
		case scales: // of 8-bit rows, positive
			out[i] = float32(float64(amplitude) / 127 * (0.75 + 0.25*draw))
		default:
			out[i] = float32(float64(amplitude) * draw)
		}
	}
	return out
}

// ids returns the number of rows or experts that an input of row numbers chooses from.
func (c *Call) ids(name string) (limit int, experts bool) {
	for _, node := range c.graph.Nodes {
		if slices.Contains(node.In, name) {
			switch node.Op.Kind {
			case op.Embed:
				return node.Op.K, false
			case op.ExpertMatMul:
				return node.Op.Experts, true
			}
		}
	}
	return 2, false
}

// isScale reports whether an input holds the scales of 8-bit rows.
func (c *Call) isScale(name string) bool {
	for _, node := range c.graph.Nodes {
		if node.Op.HasScheme() && node.Op.Scheme.QuantisedRows() && node.In[1] == name {
			return true
		}
	}
	return false
}

// Result is a computed array in row-major order, the rows of all tokens of the call.
type Result struct {
	shape  shape // that of what is compared
	values []float32
	tokens int // of the call that computed it
	per    int // rows of each token
}

// Execute calls a target that was loaded on a processor with some tokens. planned takes the windows that the plan has;
// without it every operand is dense.
func (c *Call) Execute(proc driver.Processor, exe driver.Executable, amplitudes []float32, tokens int,
	planned bool) (results []Result, err error) {
	memory := &operands{proc: proc, views: map[string]driver.View{}}
	defer memory.close()
	bindings := driver.Bindings{Scalars: c.scalars(tokens), MaxContext: c.context}
	for at, value := range c.graph.Inputs {
		view, err := memory.view(c.windows[value.Name], planned)
		if err != nil {
			return nil, err
		}
		c.fill(view, c.windows[value.Name], c.numbersOf(at, amplitudes[at]))
		bindings.In = append(bindings.In, view)
	}
	for _, value := range c.graph.Outputs {
		view, err := memory.view(c.windows[value.Name], planned)
		if err != nil {
			return nil, err
		}
		bindings.Out = append(bindings.Out, view)
	}
	if c.state != nil {
		if err := c.cache(memory, &bindings); err != nil {
			return nil, err
		}
	}
	if _, err := proc.Run(exe, &bindings); err != nil {
		return nil, err
	}
	shapes := c.shapes()
	for i, value := range c.graph.Outputs {
		w := c.windows[value.Name]
		used := min(tokens, w.tokens)
		view := bindings.Out[i]
		out := Result{shape: shapes[i], tokens: used, per: w.perToken()}
		for row := range used * w.perToken() {
			out.values = appendRow(out.values, view, row)
		}
		results = append(results, out)
	}
	if c.appends {
		for i, cached := range []driver.View{bindings.K, bindings.V} {
			out := Result{shape: shapes[len(c.graph.Outputs)+i], tokens: tokens, per: 1}
			for token := range tokens {
				sequence, pos := c.place(token)
				of := cached
				of.Offset += int64(sequence) * bindings.SequenceBytes
				for head := range c.state.KVHeads {
					out.values = c.appendCached(out.values, of, head*c.context+pos)
				}
			}
			results = append(results, out)
		}
	}
	return results, nil
}

// appendCached appends a cached key or value: of an 8-bit cache the numbers that its codes and their scale stand for.
func (c *Call) appendCached(dst []float32, view driver.View, row int) []float32 {
	if c.state.KV != op.Q8 {
		return appendRow(dst, view, row)
	}
	dim := c.state.HeadDim
	data := view.Buffer.Bytes()[view.Offset+int64(row)*c.state.KV.CacheRowBytes(dim):]
	var scale [1]float32
	number.Decode(scale[:], data[dim:], op.F32)
	for _, code := range data[:dim] {
		dst = append(dst, scale[0]*float32(int(code)-128))
	}
	return dst
}

// place returns the sequence and position of a token.
func (c *Call) place(token int) (sequence, pos int) {
	if c.state.Batch {
		return token, max(0, c.pos-7*token) // sequences of different lengths
	}
	return 0, c.pos + token
}

// scalars returns those of a call.
func (c *Call) scalars(tokens int) *driver.Scalars {
	out := &driver.Scalars{Rows: tokens, Row: tokens / 2}
	if c.places {
		out.Pos, out.KVLen, out.Seq = c.pos, c.pos+tokens, c.pos+tokens
	} else {
		out.KVLen, out.Seq = tokens, tokens
	}
	for _, node := range c.graph.Nodes {
		if node.Op.Batch && out.Batch == nil {
			for token := range tokens {
				out.Batch = append(out.Batch, driver.Place{Sequence: token, Pos: max(0, c.pos-7*token)})
			}
		}
	}
	return out
}

// cache binds a cache of pseudo-random keys and values.
func (c *Call) cache(memory *operands, bindings *driver.Bindings) error {
	node, sequences := c.state, 1
	if node.Batch {
		sequences = c.rows
	}
	element, cols := node.KV.CacheRow(node.HeadDim)
	row := node.KV.CacheRowBytes(node.HeadDim)
	half := int64(node.KVHeads) * int64(c.context) * row
	buffer, err := memory.alloc(2 * half * int64(sequences))
	if err != nil {
		return err
	}
	seed := fnv.New64a()
	_, _ = seed.Write(textOf(c.graph))
	rng := rand.New(rand.NewPCG(seed.Sum64(), math.MaxUint64))
	data := buffer.Bytes()
	for at := int64(0); at < 2*half*int64(sequences); at += row {
		for i := range node.HeadDim {
			value := float32(math.Sqrt(3) * (2*rng.Float64() - 1))
			if node.KV == op.Q8 { // codes, whose scale follows
				value = float32(math.Round(float64(128 + 127/math.Sqrt(3)*float64(value))))
			}
			store(data[at+int64(i*element.Bytes()):], element, value)
		}
		if node.KV == op.Q8 {
			store(data[at+int64(node.HeadDim):], op.F32, float32(math.Sqrt(3)/127))
		}
	}
	bindings.Sequences, bindings.SequenceBytes = sequences, 2*half
	bindings.K = driver.View{Buffer: buffer, Type: element, Rows: node.KVHeads * c.context, Cols: cols, Stride: cols}
	bindings.V = bindings.K
	bindings.V.Offset = half
	return nil
}

// fill writes the rows of all tokens, which repeat.
func (c *Call) fill(view driver.View, w window, distinct []float32) {
	per, data := w.perToken(), view.Buffer.Bytes()
	for row := range view.Rows {
		from := row/per%c.distinct(w)*per + row%per
		for col := range view.Cols {
			at := view.Offset + (int64(row)*int64(view.Stride)+int64(col))*int64(view.Type.Bytes())
			store(data[at:], view.Type, distinct[from*view.Cols+col])
		}
	}
}

// store writes a number.
func store(dst []byte, elem op.Type, value float32) {
	switch elem {
	case op.F32:
		binary.LittleEndian.PutUint32(dst, math.Float32bits(value))
	case op.I32:
		binary.LittleEndian.PutUint32(dst, uint32(int32(value)))
	case op.F16:
		binary.LittleEndian.PutUint16(dst, number.FloatToHalf(value))
	case op.BF16:
		binary.LittleEndian.PutUint16(dst, number.FloatToBrain(value))
	default:
		dst[0] = byte(int(value))
	}
}

// appendRow appends the numbers of a row; 8-bit codes are those around 128.
func appendRow(dst []float32, view driver.View, row int) []float32 {
	size := view.Type.Bytes()
	data := view.Buffer.Bytes()[view.Offset+int64(row)*int64(view.Stride)*int64(size):]
	for col := range view.Cols {
		switch view.Type {
		case op.U8:
			dst = append(dst, float32(int(data[col])-128))
		case op.I8:
			dst = append(dst, float32(int8(data[col])))
		case op.I32:
			dst = append(dst, float32(int32(binary.LittleEndian.Uint32(data[4*col:]))))
		default:
			var one [1]float32
			number.Decode(one[:], data[col*size:], view.Type)
			dst = append(dst, one[0])
		}
	}
	return dst
}

// operands is the memory of a call.
type operands struct {
	proc    driver.Processor
	views   map[string]driver.View
	buffers []driver.Buffer
}

// view returns the memory of a value; one that is changed in place has one.
func (o *operands) view(w window, planned bool) (driver.View, error) {
	if view, ok := o.views[w.value.Name]; ok {
		return view, nil
	}
	view := driver.View{Type: w.value.Type, Rows: w.value.Rows, Cols: w.value.Cols, Stride: w.value.Cols}
	size := int64(w.value.Type.Bytes())
	if planned {
		view.Stride, view.Offset = w.stride, int64(w.first)*size
	}
	var err error
	view.Buffer, err = o.alloc(int64(view.Rows) * int64(view.Stride) * size)
	o.views[w.value.Name] = view
	return view, err
}

// alloc allocates memory until close.
func (o *operands) alloc(bytes int64) (driver.Buffer, error) {
	buffer, err := o.proc.Alloc(bytes)
	if err != nil {
		return nil, fmt.Errorf("memory for the self-test: %w", err)
	}
	o.buffers = append(o.buffers, buffer)
	return buffer, nil
}

// close frees all of it.
func (o *operands) close() {
	for _, buffer := range o.buffers {
		_ = buffer.Close() // memory only
	}
}

// Sketches returns what is kept of the results of the reference. Results that are no numbers can be compared with
// nothing, and are an error.
func Sketches(results []Result) ([]Sketch, error) {
	out := make([]Sketch, len(results))
	for i := range results {
		out[i] = newSketch(results[i].shape, results[i].values)
		if err := out[i].check(results[i].shape); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Finding is where a result differs most from what the reference computed.
type Finding struct {
	Output   string
	Operator string // that computes it: "matmul[256,2048]x[2048,5632] a8t/q8c"
	Difference
}

// String says where it is and how large.
func (f *Finding) String() string {
	return fmt.Sprintf("%s: output %q differs from the reference by a relative error of %.2g in rows %d to %d, columns %d "+
		"to %d", f.Operator, f.Output, f.Error, f.Row, f.LastRow, f.Col, f.LastCol)
}

// Compare finds the largest difference of the results of a call from those of the case. Rows that repeat are compared
// with the same ones of the reference, period by period; the last period ends with the last row.
func (c *Case) Compare(call *Call, results []Result) Finding {
	worst := Finding{Difference: Difference{Error: -1}}
	for i := range results {
		result, want := &results[i], &c.Results[i]
		period := want.Rows / result.per // tokens
		for first := 0; first+period <= result.tokens; {
			difference := want.Compare(result.window(first, period))
			if difference.Error > worst.Error {
				difference.Row, difference.LastRow = difference.Row+first*result.per, difference.LastRow+first*result.per
				worst = Finding{want.Name, operatorOf(call.graph, want.Name), difference}
			}
			if first+period == result.tokens {
				break
			}
			first = min(first+period, result.tokens-period)
		}
	}
	return worst
}

// window returns the rows of a period of tokens from first, in the order in which the reference has them.
func (r *Result) window(first, period int) []float32 {
	width := r.per * r.shape.cols
	out := make([]float32, 0, period*width)
	for token := range period {
		from := first + (token-first%period+period)%period
		out = append(out, r.values[from*width:(from+1)*width]...)
	}
	return out
}
