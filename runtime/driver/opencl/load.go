package opencl

import (
	"errors"
	"fmt"
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

// inUse returns the number of rows in use in a call of the given number of tokens.
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
	code   *parsed
	closed bool

	operands []operand
	steps    []step
	weights  []*clapi.Buffer
	work     int64 // bytes of the arena

	refusals int   // steps that can refuse rows, each with a word of the notes
	refusing []int // which ones
	places   int   // word of a call's notes at which the places of rows begin
	words    int   // of a call's notes

	driver.State
	appends  bool // it stores keys and values
	longest  int  // context that the estimates of scores were made for, 0: there are none
	longFrom int  // sequences beyond it are rotated differently, 0: none are
	sides    [2]cacheSide
	slot     int // first word of the call's notes
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

// parsed is an artifact with the number of executables that were made of it: one serves every layer.
type parsed struct {
	*kernel.Code
	bytes string
	users int
}

// parse returns the artifact of these bytes, which the executable uses until it is freed.
func (p *processor) parse(data []byte) (*parsed, error) {
	code := p.codes[string(data)]
	if code == nil {
		read, err := kernel.Parse(data)
		if err != nil {
			return nil, err
		}
		code = &parsed{Code: read, bytes: string(data)}
		p.codes[code.bytes] = code
	}
	code.users++
	return code, nil
}

// leave forgets an artifact that no executable uses any more.
func (p *processor) leave(code *parsed) {
	if code.users--; code.users == 0 {
		delete(p.codes, code.bytes)
	}
}

// free gives back what loading made.
func (e *executable) free() (err error) {
	e.p.leave(e.code)
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
	code, err := p.parse(artifact.Code)
	if err != nil {
		return nil, err
	}
	exe := &executable{p: p, graph: code.Graph, code: code}
	if err := exe.prepare(artifact, weights); err != nil {
		return nil, errors.Join(err, exe.free())
	}
	return exe, nil
}

// prepare compares the graph with the artifact's and its weights, declares the operands, makes the weights readable and
// builds a step for each node.
func (e *executable) prepare(artifact driver.Artifact, weights driver.Weights) error {
	if err := artifact.Matches(&e.graph); err != nil {
		return err
	}
	checked, err := weights.Check(&e.graph, false, func(scheme string) string { return layouts[scheme] }, pack.Bytes)
	if err != nil {
		return err
	}
	byName := map[string]weight{}
	for _, packed := range checked {
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
	if e.Placed {
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

// declare makes the operands and returns their indices by name.
func (e *executable) declare() (map[string]int, error) {
	index := map[string]int{}
	for i, slot := range e.graph.Slots() {
		made := operand{value: slot.Value, input: slot.Input, out: slot.Output, temp: -1}
		if !slot.Bound() {
			at, err := e.scratch(int64(slot.Rows) * int64(slot.Cols) * int64(slot.Type.Bytes()))
			if err != nil {
				return nil, fmt.Errorf("value %q: %w", slot.Name, err)
			}
			made.temp, made.ld = at, slot.Cols
		}
		index[slot.Name] = i
		e.operands = append(e.operands, made)
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
