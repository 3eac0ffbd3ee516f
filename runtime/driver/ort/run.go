package ort

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/scores"
)

// executable is a session, with the operands of its last call: binding memory costs, and most calls
// have the same.
type executable struct {
	p            *processor
	m            *model
	session      *ortapi.Session
	initializers []ortapi.Initializer

	binding *ortapi.Binding
	values  map[string]*ortapi.Value
	in, out []driver.View // of the last call
	at      []uintptr     // addresses of their buffers
	memory  *mem.Region   // of outputs that only the checks see, or that are copied
	kernels []*mem.Region // weights of convolutions of 8-bit codes, of which the library makes no copy
	detours []detour
	scales  [][]float32 // of the model's checks
	ids     [][]int32   // of its lookups

	estimate *scores.Estimate[int32] // of a graph that is one
}

// detour is an output that is computed apart and copied, because it lies where an input does.
type detour struct{ from, to []byte }

// Close waits for a running call.
func (e *executable) Close() error {
	e.p.Mu.Lock()
	defer e.p.Mu.Unlock()
	return e.release()
}

// release is Close for a caller that holds the processor's lock.
func (e *executable) release() error {
	if e.session == nil {
		return nil
	}
	err := e.session.Close() // and its binding
	for _, value := range e.values {
		err = errors.Join(err, value.Close())
	}
	closeValues(e.initializers)
	delete(e.p.loaded, e)
	err = errors.Join(err, e.memory.Close(), closeCopies(e.kernels))
	e.session, e.values, e.kernels = nil, nil, nil
	return err
}

// prepare compares the operands that the session reports with the graph's.
func (e *executable) prepare() (err error) {
	values := map[string]op.Value{}
	for i, value := range e.m.inputs {
		values[input(i)] = value
	}
	for i, value := range e.m.outputs {
		values[output(i)] = value
	}
	for _, io := range slices.Concat(e.session.Inputs, e.session.Outputs) {
		value, ok := values[io.Name]
		if ok && (io.Type != ortapi.ElementType(elements[value.Type]) ||
			!slices.Equal(io.Shape, []int64{int64(value.Rows), int64(value.Cols)})) {
			return diag.New(diag.ClassRun, "the library takes %q as type %v %v, want %s [%d,%d]", io.Name, io.Type,
				io.Shape, value.Type, value.Rows, value.Cols)
		}
	}
	e.values = map[string]*ortapi.Value{}
	e.binding, err = e.session.NewBinding()
	return err
}

// run executes one call: it binds operands that moved, checks ids before and scales after it, and
// copies outputs that took a detour.
func (e *executable) run(bindings *driver.Bindings) error {
	graph := &e.m.graph
	if e.estimate != nil {
		return e.estimate.Run(graph, bindings, e.launch)
	}
	if err := bindings.MatchesAll(graph); err != nil || bindings.Scalars.Rows == 0 {
		return err
	}
	if !e.bound(bindings) {
		if err := e.bind(bindings); err != nil {
			e.in = nil
			return err
		}
	}
	for i, lookup := range e.m.ids {
		operator := graph.Nodes[lookup.node].Op
		for row, id := range e.ids[i] {
			if id < 0 || int(id) >= operator.K {
				return fmt.Errorf("node %d (%s), row %d: id %d, want 0..%d", lookup.node, operator.Kind, row, id,
					operator.K-1)
			}
		}
	}
	if err := e.session.Run(e.binding); err != nil {
		return err
	}
	for i, checker := range e.m.checks {
		for row, scale := range e.scales[i] {
			if wide := float64(scale); math.IsNaN(wide) || math.IsInf(wide, 0) {
				return fmt.Errorf("node %d (%s), row %d: a value is NaN or infinite", checker.Node,
					graph.Nodes[checker.Node].Op.Kind, row)
			}
		}
	}
	for _, detour := range e.detours {
		copy(detour.to, detour.from)
	}
	return nil
}

// prepareEstimate binds memory for the launches of an estimate, whose scales are a weight that the library does not
// get.
func (e *executable) prepareEstimate(weights driver.Weights) error {
	numbers, err := mem.View[float32](weights[0].Bytes)
	if err != nil {
		return err
	}
	operator := e.m.graph.Estimate()
	operands := operator.Operands(op.I32)
	sizes, bytes := [3]int{}, 0
	for i, value := range operands {
		sizes[i] = value.Rows * value.Cols * value.Type.Bytes()
		bytes += roundUp(sizes[i])
	}
	if e.memory, err = mem.Alloc(bytes, driver.Align); err != nil {
		return err
	}
	var parts [3][]byte
	free := e.memory.Bytes()
	for i, value := range operands {
		parts[i], free = free[:sizes[i]:sizes[i]], free[roundUp(sizes[i]):]
		name, bind := input(i), e.binding.BindInput
		if i == 2 {
			name, bind = output(0), e.binding.BindOutput
		}
		if err := e.give(name, parts[i], value, bind); err != nil {
			return err
		}
	}
	products, err := mem.View[int32](parts[2])
	if err != nil {
		return err
	}
	e.estimate, err = scores.New(*operator, numbers, parts[0], parts[1], products)
	return err
}

// launch multiplies the codes of an estimate.
func (e *executable) launch() error { return e.session.Run(e.binding) }

// bound reports whether the operands lie where those of the last call lay.
func (e *executable) bound(bindings *driver.Bindings) bool {
	if e.in == nil || !slices.Equal(e.in, bindings.In) || !slices.Equal(e.out, bindings.Out) {
		return false
	}
	for i := range bindings.In {
		if mem.Address(bindings.In[i].Buffer.Bytes()) != e.at[i] {
			return false
		}
	}
	for i := range bindings.Out {
		if mem.Address(bindings.Out[i].Buffer.Bytes()) != e.at[len(bindings.In)+i] {
			return false
		}
	}
	return true
}

// bind checks the operands of a call and binds their memory.
func (e *executable) bind(bindings *driver.Bindings) error {
	graph := &e.m.graph
	ins, outs, err := bindings.Dense(graph)
	if err != nil {
		return err
	}
	own, err := e.place(ins, outs)
	if err != nil {
		return err
	}
	for i, raw := range ins {
		if err := e.give(input(i), raw, graph.Inputs[i], e.binding.BindInput); err != nil {
			return err
		}
	}
	for i, raw := range own[:len(outs)] {
		if err := e.give(output(i), raw, graph.Outputs[i], e.binding.BindOutput); err != nil {
			return err
		}
	}
	if err := e.observe(ins, own); err != nil {
		return err
	}
	e.in, e.out, e.at = slices.Clone(bindings.In), slices.Clone(bindings.Out), e.at[:0]
	for _, view := range slices.Concat(bindings.In, bindings.Out) {
		e.at = append(e.at, mem.Address(view.Buffer.Bytes()))
	}
	return nil
}

// observe finds what is inspected around a call: the scales that the library writes, and the ids
// that it reads.
func (e *executable) observe(ins, own [][]byte) error {
	graph := &e.m.graph
	e.scales, e.ids = e.scales[:0], e.ids[:0]
	extra := own[len(graph.Outputs):]
	for _, checker := range e.m.checks {
		var raw []byte
		if checker.graph >= 0 {
			raw = own[checker.graph]
		} else {
			raw, extra = extra[0], extra[1:]
			value := op.Value{Type: op.F32, Rows: graph.Nodes[checker.Node].Op.Rows(), Cols: 1}
			if err := e.give(checker.Output, raw, value, e.binding.BindOutput); err != nil {
				return err
			}
		}
		scales, err := mem.View[float32](raw)
		if err != nil {
			return err
		}
		e.scales = append(e.scales, scales)
	}
	for _, lookup := range e.m.ids {
		ids, err := mem.View[int32](ins[lookup.input])
		if err != nil {
			return err
		}
		e.ids = append(e.ids, ids)
	}
	return nil
}

// place decides where the library writes: into the outputs themselves, or into memory of our own. The latter is for the
// model's own outputs, and for outputs that lie over an input.
func (e *executable) place(ins, outs [][]byte) ([][]byte, error) {
	graph := &e.m.graph
	own := slices.Clone(outs)
	e.detours = e.detours[:0]
	bytes := 0
	apart := make([]bool, len(outs))
	for i, raw := range outs {
		if apart[i] = e.writesApart(raw, ins); apart[i] {
			bytes += roundUp(len(raw))
		}
	}
	for _, checker := range e.m.checks {
		if checker.graph < 0 {
			bytes += roundUp(4 * graph.Nodes[checker.Node].Op.Rows())
		}
	}
	if bytes > len(e.memory.Bytes()) {
		region, err := mem.Alloc(bytes, driver.Align)
		if err != nil {
			return nil, err
		}
		old := e.memory
		e.memory = region
		if err := old.Close(); err != nil {
			return nil, err
		}
	}
	free := e.memory.Bytes()
	take := func(size int) []byte {
		data := free[:size:size]
		free = free[roundUp(size):]
		return data
	}
	for i, raw := range outs {
		if apart[i] {
			own[i] = take(len(raw))
			e.detours = append(e.detours, detour{from: own[i], to: raw})
		}
	}
	for _, checker := range e.m.checks {
		if checker.graph < 0 {
			own = append(own, take(4*graph.Nodes[checker.Node].Op.Rows()))
		}
	}
	return own, nil
}

// writesApart reports whether an output is computed in other memory: it lies over an input, which the library may read
// after it has written the output, unless it replaces that input element by element.
func (e *executable) writesApart(out []byte, ins [][]byte) bool {
	nodes := e.m.graph.Nodes
	same := func(in []byte) bool { return mem.Address(in) == mem.Address(out) && len(in) == len(out) }
	if len(nodes) == 1 && inPlace[nodes[0].Op.Kind] && slices.ContainsFunc(ins, same) {
		return false
	}
	return slices.ContainsFunc(ins, func(in []byte) bool { return overlap(out, in) })
}

// inPlace are the operators that the library computes element by element, so that the result may
// replace an operand.
var inPlace = map[op.Kind]bool{op.Add: true, op.Clip: true}

// roundUp returns the next multiple of the alignment that buffers have.
func roundUp(bytes int) int { return (bytes + driver.Align - 1) &^ (driver.Align - 1) }

// overlap reports whether two pieces of memory share a byte.
func overlap(a, b []byte) bool {
	from, to := mem.Address(a), mem.Address(b)
	return from < to+uintptr(len(b)) && to < from+uintptr(len(a))
}

// give binds memory to an operand of the session and releases the tensor it had before.
func (e *executable) give(name string, raw []byte, v op.Value, bind func(string, *ortapi.Value) error) error {
	tensor, err := e.p.env.NewTensor(raw, ortapi.ElementType(elements[v.Type]), []int64{int64(v.Rows), int64(v.Cols)})
	if err != nil {
		return err
	}
	if err := bind(name, tensor); err != nil {
		return errors.Join(err, tensor.Close())
	}
	if old := e.values[name]; old != nil {
		err = old.Close()
	}
	e.values[name] = tensor
	return err
}
