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

// operand is a value of a graph during one call. raw reaches from the first to the last element of
// the rows in use, and the typed slice of its type is a view of raw.
type operand struct {
	value op.Value
	input int   // index of its binding among the inputs, -1
	out   int   // index of its binding among the outputs, -1
	temp  int64 // offset in the arena in bytes, -1 where it is bound or never held as a whole
	uses  []use

	raw []byte
	f32 []float32
	i32 []int32
	u16 []uint16
	ld  int // elements from row to row
}

// from returns the float32 rows from row on, without the columns before column.
func (o *operand) from(row, column int) kernel.Matrix[float32] {
	return kernel.Rows(o.f32, o.ld).From(row, column)
}

// codes returns the 8-bit rows from row on.
func (o *operand) codes(row int) kernel.Matrix[uint8] { return kernel.Rows(o.raw, o.ld).From(row, 0) }

// use says how a node uses an operand: at most tokens tokens, with perToken rows each.
type use struct{ tokens, perToken int }

// rows returns the number of rows in use in a call of the given number of tokens.
func (o *operand) rows(tokens int) int {
	rows := 0
	for _, use := range o.uses {
		rows = max(rows, min(use.tokens, tokens)*use.perToken)
	}
	return rows
}

// usedBy records the use by a node, to which the operand is the value of its signature.
func (o *operand) usedBy(by op.Op, value op.Value) {
	found := use{tokens: min(by.M, value.Rows), perToken: max(1, value.Rows/by.M)}
	if by.InUse(value, 1) == value.Rows { // all of it in every call
		found = use{tokens: 1, perToken: value.Rows}
	}
	if !slices.Contains(o.uses, found) {
		o.uses = append(o.uses, found)
	}
}

// set makes the operand an [rows, value.Cols] matrix of row pitch ld over raw.
func (o *operand) set(raw []byte, ld int) (err error) {
	o.raw, o.ld = raw, ld
	switch o.value.Type {
	case op.F32:
		o.f32, err = mem.View[float32](raw)
	case op.I32:
		o.i32, err = mem.View[int32](raw)
	case op.F16, op.BF16:
		o.u16, err = mem.View[uint16](raw)
	}
	return err
}

// executable is a graph with its weights. Operands, scratch and the current call are fields, where
// the prepared steps find them without allocating.
type executable struct {
	proc   *processor
	graph  op.Graph
	closed bool

	operands []operand
	steps    []step
	begins   func(worker, rows int) []byte // of the first step that has it; nil: none has
	need     scratchSizes
	have     scratch // in the processor's arena of number placed
	placed   int

	driver.State
	k, v operand // the caches of all sequences

	outliers outlierCounts
	bad      atomic.Int64 // lowest row a kernel refused
	blame    atomic.Int64 // of a chain of n steps: that row times n, plus the number of the step
}

// scratchSizes is how much memory the steps of a graph need at most: each finds what it needs in the same scratch. All
// but bytes count units of 4 bytes.
type scratchSizes struct {
	bytes  int64 // temporary values and all of the following
	scales int
	sums   int
	rows   int
	order  int
	packs  int
	local  int // of one worker
}

// scratch is memory that only lives during one step: parts of the processor's arena.
type scratch struct {
	scale []float32 // row scales without gaps
	sum   []int32   // block sums
	row   []float32 // rows by expert
	rank  []int32   // which rows they are
	pack  []float32 // packed rows
	own   []float32 // of all workers
	local int       // elements of own for one worker
}

// mine returns the scratch of one worker.
func (s *scratch) mine(worker int) []float32 { return s.own[worker*s.local:][:s.local] }

// Close frees nothing by itself: later calls of Run are refused, and the garbage collector does the rest.
func (e *executable) Close() error {
	e.closed = true
	return nil
}

// load checks an artifact and its weights and prepares its steps, so that a call has nothing left
// to check but its operands.
func (p *processor) load(artifact driver.Artifact, weight driver.Weights) (*executable, error) {
	if artifact.Driver != Name {
		return nil, fmt.Errorf("it was compiled for driver %q, want %q", artifact.Driver, Name)
	}
	graph, err := p.graph(&artifact)
	if err != nil {
		return nil, err
	}
	exe := &executable{proc: p, graph: graph, placed: -1}
	checked, err := weight.Check(&graph, true, func(scheme string) string { return layouts[scheme] }, pack.Bytes)
	if err != nil {
		return nil, err
	}
	if err := exe.build(checked); err != nil {
		return nil, err
	}
	exe.steps = exe.chained()
	for i := range exe.steps {
		exe.steps[i].finish()
		if exe.begins == nil {
			exe.begins = exe.steps[i].begins
		}
	}
	// Every piece starts on a cache line.
	for _, words := range []int{exe.need.scales, exe.need.sums, exe.need.rows, exe.need.order, exe.need.packs} {
		exe.need.bytes += roundUp(4 * int64(words))
	}
	exe.need.bytes += roundUp(4*int64(exe.need.local)) * int64(len(p.cores))
	if err := p.reserve(exe.need.bytes); err != nil {
		return nil, err
	}
	return exe, nil
}

// graph returns the graph of an artifact, which must be the plan's. One artifact serves every layer, so that it is
// parsed once.
func (p *processor) graph(artifact *driver.Artifact) (op.Graph, error) {
	if known, ok := p.graphs[string(artifact.Code)]; ok {
		return known, artifact.Matches(&known)
	}
	parsed, err := artifact.ParseGraph()
	if err != nil {
		return op.Graph{}, err
	}
	p.graphs[string(artifact.Code)] = parsed
	return parsed, nil
}

// build makes the operands, one step for each node, and steps before it where it needs some.
func (e *executable) build(checked driver.Weights) error {
	weights := map[string]driver.Packed{}
	for _, weight := range checked {
		weights[weight.Spec.Name] = weight
	}
	index, err := e.declare()
	if err != nil {
		return err
	}
	for i := 0; i < len(e.graph.Nodes); i++ {
		node := i
		build := e.builder(node, index, weights)
		if e.graph.EndsWithGLU(i) {
			i++
			build.unit = e.builder(i, index, weights)
		}
		built, err := build.build()
		if err != nil {
			return fmt.Errorf("node %d (%s): %w", node, build.op.Kind, err)
		}
		for _, part := range append(build.before, built) {
			part.node = node
			e.steps = append(e.steps, part)
		}
	}
	return nil
}

// builder returns the builder of a node, and notes its use of operands.
func (e *executable) builder(i int, index map[string]int, weights map[string]driver.Packed) *builder {
	node := &e.graph.Nodes[i]
	build := &builder{exe: e, op: node.Op}
	sig := node.Op.Sig()
	for j, name := range node.In {
		operand := &e.operands[index[name]]
		operand.usedBy(node.Op, sig.In[j])
		build.in = append(build.in, operand)
	}
	for j, name := range node.Out {
		operand := &e.operands[index[name]]
		operand.usedBy(node.Op, sig.Out[j])
		build.out = append(build.out, operand)
	}
	for _, name := range node.W {
		build.weights = append(build.weights, weights[name])
	}
	return build
}

// chained joins neighbouring steps that work on the same rows, or groups of heads, into chains.
func (e *executable) chained() (out []step) {
	for i := 0; i < len(e.steps); {
		step, end := &e.steps[i], i+1
		if step.rows == nil {
			out = append(out, *step)
			i++
			continue
		}
		for end < len(e.steps) && e.steps[end].rows != nil && e.steps[end].m == step.m &&
			e.steps[end].rows.fan == step.rows.fan && e.steps[end].rows.groups == step.rows.groups {
			end++
		}
		out = append(out, e.chain(e.steps[i:end]))
		i = end
	}
	return out
}

// roundUp returns the next multiple of the alignment of values in the arena.
func roundUp(bytes int64) int64 { return (bytes + align - 1) / align * align }

// declare makes the operands and returns their indices by name.
func (e *executable) declare() (map[string]int, error) {
	// Workers hold some columns at a time of what only a gated linear unit reads.
	unheld := map[string]bool{}
	for i := range e.graph.Nodes {
		if e.graph.EndsWithGLU(i) {
			unheld[e.graph.Nodes[i].Out[0]] = true
		}
	}
	index := map[string]int{}
	for i, slot := range e.graph.Slots() {
		made := operand{value: slot.Value, input: slot.Input, out: slot.Output, temp: -1}
		if !slot.Bound() && !unheld[slot.Name] {
			made.temp = e.need.bytes
			e.need.bytes += roundUp(int64(slot.Rows) * int64(slot.Cols) * int64(slot.Type.Bytes()))
			if e.need.bytes > maxWork {
				return nil, fmt.Errorf("value %q: temporary values need more than %d bytes", slot.Name, int64(maxWork))
			}
		}
		index[slot.Name] = i
		e.operands = append(e.operands, made)
	}
	return index, nil
}

// bind checks the operands of a call and makes them current.
func (e *executable) bind(bindings *driver.Bindings) error {
	rows, err := e.Bind(bindings, &e.graph)
	if err != nil || rows == 0 {
		return err
	}
	// The processor's arena has grown since this executable last ran, so that its temporaries lie elsewhere.
	if e.placed != e.proc.arenaNumber {
		if err := e.placeInArena(); err != nil {
			return err
		}
	}
	for i := range e.operands {
		if err := e.bindOperand(&e.operands[i], bindings); err != nil {
			return err
		}
	}
	if e.KV == "" {
		return nil
	}
	keys, values, err := e.BindCaches(bindings, rows)
	if err != nil {
		return err
	}
	if err := e.k.bindCache(keys, &bindings.K, "k"); err != nil {
		return err
	}
	return e.v.bindCache(values, &bindings.V, "v")
}

// bindOperand makes the view of an operand current, if it is an input or an output. One that is both is computed in
// place: both bindings must be the same memory.
func (e *executable) bindOperand(operand *operand, bindings *driver.Bindings) error {
	if operand.input < 0 && operand.out < 0 {
		return nil
	}
	if operand.input < 0 {
		return e.bindView(operand, &bindings.Out[operand.out], "output")
	}
	if err := e.bindView(operand, &bindings.In[operand.input], "input"); err != nil || operand.out < 0 {
		return err
	}
	address, ld := mem.Address(operand.raw), operand.ld
	if err := e.bindView(operand, &bindings.Out[operand.out], "output"); err != nil {
		return err
	}
	if mem.Address(operand.raw) != address || operand.ld != ld {
		return fmt.Errorf("value %q is computed in place, but bound to different views as input and output",
			operand.value.Name)
	}
	return nil
}

// bindCache makes one cache of all sequences current.
func (o *operand) bindCache(cache []byte, view *driver.View, name string) error {
	o.value = op.Value{Name: name, Type: view.Type}
	if err := o.set(cache, view.Stride); err != nil {
		return fmt.Errorf("cache %q: %w", name, err)
	}
	return nil
}

// placeInArena lays out temporary values and scratch in the processor's current arena.
func (e *executable) placeInArena() error {
	arena := e.proc.arena.Bytes()
	at := int64(0)
	for i := range e.operands {
		operand := &e.operands[i]
		if operand.temp < 0 {
			continue
		}
		size := int64(operand.value.Rows) * int64(operand.value.Cols) * int64(operand.value.Type.Bytes())
		if err := operand.set(arena[operand.temp:operand.temp+size], operand.value.Cols); err != nil {
			return err
		}
		at = operand.temp + roundUp(size)
	}
	// Scratch follows the temporary values: n numbers of 4 bytes, each piece aligned.
	take := func(n int) []byte {
		data := arena[at : at+4*int64(n)]
		at += roundUp(4 * int64(n))
		return data
	}
	var err error
	if e.have.scale, err = mem.View[float32](take(e.need.scales)); err != nil {
		return err
	}
	if e.have.sum, err = mem.View[int32](take(e.need.sums)); err != nil {
		return err
	}
	if e.have.row, err = mem.View[float32](take(e.need.rows)); err != nil {
		return err
	}
	if e.have.rank, err = mem.View[int32](take(e.need.order)); err != nil {
		return err
	}
	if e.have.pack, err = mem.View[float32](take(e.need.packs)); err != nil {
		return err
	}
	e.have.local = int(roundUp(4*int64(e.need.local)) / 4)
	if e.have.own, err = mem.View[float32](take(e.have.local * len(e.proc.cores))); err != nil {
		return err
	}
	e.placed = e.proc.arenaNumber
	return nil
}

// bindView checks a binding against a value and makes it current.
func (e *executable) bindView(o *operand, v *driver.View, role string) error {
	rows := o.rows(e.Scalars.Rows)
	if v.Type != o.value.Type || v.Cols != o.value.Cols || v.Rows < rows {
		return fmt.Errorf("%s %q: got view %s [%d,%d], want %s [%d,%d]", role, o.value.Name, v.Type, v.Rows, v.Cols,
			o.value.Type, rows, o.value.Cols)
	}
	return o.window(v, rows, role)
}

// window makes the first rows of a view current, after checking that they lie inside its buffer.
func (o *operand) window(v *driver.View, rows int, role string) error {
	data, err := v.Window(rows)
	if err == nil {
		err = o.set(data, v.Stride)
	}
	if err != nil {
		return fmt.Errorf("%s %q: %w", role, o.value.Name, err)
	}
	return nil
}

// run executes the steps of the bound call, each when the one before is done.
func (e *executable) run() error {
	for i := range e.steps {
		step := &e.steps[i]
		rows := min(step.m, e.Scalars.Rows)
		if rows == 0 {
			return nil
		}
		e.bad.Store(math.MaxInt64)
		if step.prepare != nil {
			step.prepare(rows)
		}
		if step.fetch != nil {
			if err := step.fetch(); err != nil {
				return fmt.Errorf("node %d (%s): %w", step.node, e.graph.Nodes[step.node].Op.Kind, err)
			}
		}
		e.proc.team.run(step.plan(rows), step.span == nil, step.work)
		if row := e.bad.Load(); row != math.MaxInt64 {
			return fmt.Errorf("node %d (%s), row %d: %w", step.node, e.graph.Nodes[step.node].Op.Kind, row,
				step.refused(int(row)))
		}
	}
	return nil
}

// refuse records a row that cannot be computed; the lowest one is reported, whichever worker comes
// first.
func (e *executable) refuse(row int) { lower(&e.bad, int64(row)) }

// lower sets x to the minimum of itself and v.
func lower(x *atomic.Int64, v int64) {
	for {
		old := x.Load()
		if v >= old || x.CompareAndSwap(old, v) {
			return
		}
	}
}
