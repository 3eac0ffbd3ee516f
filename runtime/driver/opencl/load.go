package opencl

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

const align = 256 // of temporary values in the arena: at least that of any vector

// operand is a value of a graph: where it is bound, or its place in the arena, and its place during the current call.
type operand struct {
	value op.Value
	input int   // index of its binding, -1
	out   int   // index of its binding, -1
	temp  int64 // offset in the arena in bytes, -1 where it is bound
	uses  []use

	device *clapi.Buffer
	buffer *buffer // nil for temporary values
	at     int64   // byte of its first element
	ld     int     // elements from row to row
	rows   int     // in use
}

// use says how a node uses an operand: perToken rows for each of at most tokens tokens.
type use struct{ tokens, perToken int }

// inUse is the number of rows in use in a call of the given number of tokens.
func (o *operand) inUse(tokens int) int {
	rows := 0
	for _, use := range o.uses {
		rows = max(rows, min(use.tokens, tokens)*use.perToken)
	}
	return rows
}

// usedBy records the use by a node of m tokens, to which the operand has the given rows.
func (o *operand) usedBy(m, rows int) {
	found := use{tokens: min(m, rows), perToken: max(1, rows/m)}
	if !slices.Contains(o.uses, found) {
		o.uses = append(o.uses, found)
	}
}

// executable is a graph with its weights. The current call's operands and numbers are fields, where the arguments of
// kernels find them without allocating.
type executable struct {
	p      *processor
	graph  op.Graph
	code   *kernel.Code
	closed bool

	operands []operand
	steps    []step
	weights  []*clapi.Buffer
	work     int64 // bytes of the arena

	refusals int   // steps that can refuse rows, each with a word of the notes
	refusing []int // which ones
	places   int   // word of a call's notes at which the places of rows begin
	words    int   // of a call's notes

	kv         op.Type // of the cache, "" for a graph without state
	kvHeads    int
	headDim    int
	appends    bool // it stores keys and values
	placed     bool // nodes ask for the place of rows
	batch      bool // and find it in Scalars.Batch
	longest    int  // context that the estimates of scores were made for, 0: there are none
	longFrom   int  // sequences beyond it are rotated differently, 0: none are
	needsSeq   bool
	sides      [2]cacheSide
	scalars    driver.Scalars
	maxContext int
	perSeq     int64 // elements of the caches from one sequence to the next
	slot       int   // first word of the call's notes
}

// cacheSide is one of the two caches of a call.
type cacheSide struct {
	buffer *buffer
	at     int64 // elements
}

// Close waits for calls in flight and frees kernels and the device's view of the weights.
func (e *executable) Close() error {
	e.p.Mu.Lock()
	defer e.p.Mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	if e.p.hangs {
		return nil
	}
	if !e.p.idle(closePatience) {
		return diag.New(diag.ClassRun, "close executable of %s: calls that use it have not finished", e.p)
	}
	return e.free()
}

// free gives back what loading made.
func (e *executable) free() (err error) {
	for i := range e.steps {
		for j := range e.steps[i].launches {
			err = errors.Join(err, e.steps[i].launches[j].kernel.Close())
		}
	}
	for _, weight := range e.weights {
		err = errors.Join(err, weight.Close())
	}
	e.steps, e.weights = nil, nil
	return err
}

// load checks an artifact and its weights and prepares its steps, so that a call has nothing left to check but its
// operands.
func (p *processor) load(artifact driver.Artifact, weights driver.Weights) (*executable, error) {
	if artifact.Driver != Name {
		return nil, fmt.Errorf("it was compiled for driver %q, want %q", artifact.Driver, Name)
	}
	if p.lost != nil {
		return nil, p.lost
	}
	code := p.codes[string(artifact.Code)] // one artifact serves every layer
	if code == nil {
		var err error
		if code, err = kernel.Parse(artifact.Code); err != nil {
			return nil, err
		}
		p.codes[string(artifact.Code)] = code
	}
	if err := artifact.Matches(&code.Graph); err != nil {
		return nil, err
	}
	exe := &executable{p: p, graph: code.Graph, code: code}
	checked, err := weights.Check(&code.Graph, func(scheme string) string { return layouts[scheme] }, pack.Bytes)
	if err != nil {
		return nil, err
	}
	if err := exe.prepare(checked); err != nil {
		return nil, errors.Join(err, exe.free())
	}
	return exe, nil
}

// prepare declares the operands, makes the weights readable and builds a step for each node.
func (e *executable) prepare(weights driver.Weights) error {
	byName := map[string]weight{}
	for _, packed := range weights {
		device, err := e.p.weight(packed.Bytes)
		if err != nil {
			return fmt.Errorf("weight %q: %w", packed.Spec.Name, err)
		}
		e.weights = append(e.weights, device)
		byName[packed.Spec.Name] = weight{packed, device}
	}
	index, err := e.declare()
	if err != nil {
		return err
	}
	for i, node := range e.graph.Nodes {
		build := builder{e: e, op: node.Op, node: i}
		signature := node.Op.Sig()
		for j, name := range node.In {
			e.operands[index[name]].usedBy(node.Op.M, signature.In[j].Rows)
			build.in = append(build.in, index[name])
		}
		for j, name := range node.Out {
			e.operands[index[name]].usedBy(node.Op.M, signature.Out[j].Rows)
			build.out = append(build.out, index[name])
		}
		for _, name := range node.W {
			build.w = append(build.w, byName[name])
		}
		if err := build.build(); err != nil {
			return fmt.Errorf("node %d (%s): %w", i, node.Op.Kind, err)
		}
	}
	e.lay()
	if err := e.p.grow(max(1, e.words)); err != nil {
		return err
	}
	return e.p.reserve(e.work)
}

// lay gives refusing steps their words, places theirs, and rotations with frequencies of their own theirs.
func (e *executable) lay() {
	e.words = e.refusals
	e.places = e.words
	if e.placed {
		e.words += placeWords * e.graph.Rows()
	}
	for i := range e.steps {
		if turn := e.steps[i].rotation; turn != nil {
			turn.at = e.words
			e.words += turn.words
		}
	}
}

// placeWords are what a kernel reads of a row: its sequence, its position, whether the sequence is long, and one
// unused.
const placeWords = 4

// weight is a packed weight and the device's buffer of it.
type weight struct {
	driver.Packed
	device *clapi.Buffer
}

// declare makes the operands and returns their indices by name. A value may be an input and an output, which is in
// place; no other value is listed twice.
func (e *executable) declare() (map[string]int, error) {
	index := map[string]int{}
	add := func(v op.Value) (*operand, error) {
		if _, ok := index[v.Name]; ok {
			return nil, fmt.Errorf("value %q is listed twice", v.Name)
		}
		index[v.Name] = len(e.operands)
		e.operands = append(e.operands, operand{value: v, input: -1, out: -1, temp: -1})
		return &e.operands[len(e.operands)-1], nil
	}
	for i, value := range e.graph.Inputs {
		operand, err := add(value)
		if err != nil {
			return nil, err
		}
		operand.input = i
	}
	for i, value := range e.graph.Outputs {
		if at, ok := index[value.Name]; ok && e.operands[at].out < 0 {
			e.operands[at].out = i
			continue
		}
		operand, err := add(value)
		if err != nil {
			return nil, err
		}
		operand.out = i
	}
	for _, value := range e.graph.Temps {
		operand, err := add(value)
		if err != nil {
			return nil, err
		}
		if operand.temp, err = e.scratch(int64(value.Rows) * int64(value.Cols) * int64(value.Type.Bytes())); err != nil {
			return nil, fmt.Errorf("value %q: %w", value.Name, err)
		}
		operand.ld = value.Cols
	}
	return index, nil
}

// scratch takes a part of the arena.
func (e *executable) scratch(bytes int64) (int64, error) {
	if bytes > maxWork || e.work > maxWork-bytes {
		return 0, fmt.Errorf("temporary values need more than %d bytes", int64(maxWork))
	}
	at := e.work
	e.work += op.RoundUp(bytes, align)
	return at, nil
}

// bind checks the operands of a call and makes them current. It returns before it changes anything but fields.
func (e *executable) bind(bindings *driver.Bindings) error {
	if err := bindings.Matches(&e.graph); err != nil {
		return err
	}
	e.scalars = *bindings.Scalars
	scalars := &e.scalars
	if scalars.Pos > math.MaxInt32 || bindings.MaxContext > math.MaxInt32 {
		return fmt.Errorf("got position %d in a cache of %d, want at most %d", scalars.Pos, bindings.MaxContext,
			math.MaxInt32)
	}
	if scalars.Rows == 0 {
		return nil
	}
	if e.batch {
		if err := bindings.CheckPlaces(min(e.graph.Rows(), scalars.Rows), e.kv != ""); err != nil {
			return err
		}
	} else if e.needsSeq && scalars.Seq <= scalars.Pos {
		return fmt.Errorf("a sequence of %d positions does not reach position %d, and the rotation depends on its length",
			scalars.Seq, scalars.Pos)
	}
	if rows := min(e.graph.Rows(), scalars.Rows); e.longest > 0 && scalars.Pos+rows > e.longest {
		return fmt.Errorf("the context reaches beyond %d positions, for which the graph was made", e.longest)
	}
	if bindings.Moves != nil {
		if err := bindings.Moves.Fits(bindings); err != nil {
			return err
		}
	}
	for i := range e.operands {
		if err := e.bindOperand(&e.operands[i], bindings); err != nil {
			return err
		}
	}
	if e.kv != "" {
		return e.bindCache(bindings)
	}
	return nil
}

// bindOperand makes one operand current. One that is computed in place has the same memory in both bindings.
func (e *executable) bindOperand(o *operand, bindings *driver.Bindings) error {
	o.rows = o.inUse(e.scalars.Rows)
	if o.temp >= 0 {
		o.device, o.at = e.p.arena, o.temp
		return nil
	}
	if o.input < 0 {
		return e.view(o, &bindings.Out[o.out], "output")
	}
	if err := e.view(o, &bindings.In[o.input], "input"); err != nil || o.out < 0 {
		return err
	}
	buffer, at, ld := o.buffer, o.at, o.ld
	if err := e.view(o, &bindings.Out[o.out], "output"); err != nil {
		return err
	}
	if o.buffer != buffer || o.at != at || o.ld != ld {
		return fmt.Errorf("value %q is computed in place, but bound to different views as input and output",
			o.value.Name)
	}
	return nil
}

// view checks a binding against a value and makes it current.
func (e *executable) view(o *operand, v *driver.View, role string) error {
	if v.Type != o.value.Type || v.Cols != o.value.Cols || v.Rows < o.rows {
		return fmt.Errorf("%s %q: got view %s [%d,%d], want %s [%d,%d]", role, o.value.Name, v.Type, v.Rows, v.Cols,
			o.value.Type, o.rows, o.value.Cols)
	}
	if err := e.place(v, o.rows, &o.buffer); err != nil {
		return fmt.Errorf("%s %q: %w", role, o.value.Name, err)
	}
	o.device, o.at, o.ld = o.buffer.device, v.Offset, v.Stride
	return nil
}

// place finds the buffer of a view, after checking that the rows lie inside it.
func (e *executable) place(v *driver.View, rows int, to **buffer) error {
	if _, err := v.Window(rows); err != nil {
		return err
	}
	if v.Stride > math.MaxInt32 || v.Offset%int64(v.Type.Bytes()) != 0 {
		return fmt.Errorf("stride %d at byte %d, want at most %d at whole elements", v.Stride, v.Offset, math.MaxInt32)
	}
	found := e.p.own(v.Buffer)
	if found == nil {
		return fmt.Errorf("its memory was not allocated on, nor imported to, %s", e.p)
	}
	*to = found
	return nil
}

// at is the sequence and position of a row in use.
func (e *executable) at(row int) driver.Place {
	if e.batch {
		return e.scalars.Batch[row]
	}
	return driver.Place{Sequence: e.scalars.Sequence, Pos: e.scalars.Pos + row}
}

// bindCache checks that the caches hold all sequences at their distance, and makes them current.
func (e *executable) bindCache(bindings *driver.Bindings) error {
	if e.batch && bindings.MaxContext < 1 {
		return fmt.Errorf("a cache of %d positions, want at least 1", bindings.MaxContext)
	}
	if !e.batch {
		if err := bindings.CheckSpan(min(e.graph.Rows(), e.scalars.Rows)); err != nil {
			return err
		}
	}
	e.maxContext, e.perSeq = bindings.MaxContext, 0
	if err := e.cache(&e.sides[0], &bindings.K, bindings, "k"); err != nil {
		return err
	}
	return e.cache(&e.sides[1], &bindings.V, bindings, "v")
}

// cache makes one cache of all sequences current, perSeq elements apart.
func (e *executable) cache(side *cacheSide, view *driver.View, bindings *driver.Bindings, name string) error {
	if _, err := bindings.CheckCache(view, name, e.kv, e.kvHeads, e.headDim); err != nil {
		return err
	}
	if err := e.place(view, view.Rows, &side.buffer); err != nil {
		return fmt.Errorf("cache %q: %w", name, err)
	}
	size := int64(view.Type.Bytes())
	side.at = view.Offset / size
	if bindings.Sequences > 1 {
		e.perSeq = bindings.SequenceBytes / size
	}
	return nil
}
