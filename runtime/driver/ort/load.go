package ort

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// model is an artifact that computes what its graph says.
type model struct {
	code   []byte
	graph  op.Graph
	onnx   *onnx.Model
	checks []check
	ids    []lookup
}

// check is an output of the model with the row scales of a quant_rows node: a value without an answer shows there.
type check struct {
	Node   int    `json:"node"`
	Output string `json:"output"`
	graph  int    // which of the graph's outputs it is, -1: one of the model alone
}

// lookup is an input of the graph with the ids of rows of a table.
type lookup struct{ node, input int }

// parse checks that an artifact is for this driver, whole, and computes what its graph says.
func parse(code []byte) (*model, error) {
	parsed, err := onnx.Parse(code)
	if err != nil {
		return nil, err
	}
	text, ok := parsed.Prop("hetc.graph")
	if !ok {
		return nil, diag.New(diag.ClassInput, "the model does not say what graph it was made of").WithHint("compile the bundle again")
	}
	m := &model{code: code, onnx: parsed}
	if m.graph, err = driver.ParseGraph([]byte(text)); err != nil {
		return nil, err
	}
	if text, ok := parsed.Prop("hetc.checks"); ok {
		if err := json.Unmarshal([]byte(text), &m.checks); err != nil {
			return nil, fmt.Errorf("checks: %w", err)
		}
	}
	if err := m.operands(); err != nil {
		return nil, err
	}
	return m, verify(parsed, &m.graph)
}

// operands compares the model's inputs and outputs with the graph's and finds those that are looked at by us: every
// quant_rows has its scales among the outputs, every table its ids among the inputs.
func (m *model) operands() error {
	g := &m.graph
	for i := range m.checks {
		c := &m.checks[i]
		if c.graph = -1; c.Node < 0 || c.Node >= len(g.Nodes) || g.Nodes[c.Node].Op.Kind != op.QuantRows {
			return fmt.Errorf("checks: node %d is no quant_rows", c.Node)
		}
	}
	extra := len(m.checks)
	for i, n := range g.Nodes {
		switch n.Op.Kind {
		case op.QuantRows:
			if k := slices.IndexFunc(g.Outputs, func(v op.Value) bool { return v.Name == n.Out[1] }); k >= 0 {
				m.checks = append(m.checks, check{Node: i, Output: output(k), graph: k})
			}
			if !slices.ContainsFunc(m.checks, func(c check) bool { return c.Node == i }) {
				return fmt.Errorf("node %d (%s): its scales are not among the outputs, where values without an answer would show", i, n.Op.Kind)
			}
		case op.Embed:
			k := slices.IndexFunc(g.Inputs, func(v op.Value) bool { return v.Name == n.In[0] })
			if k < 0 {
				return fmt.Errorf("node %d (%s): its ids are not an input of the graph", i, n.Op.Kind)
			}
			m.ids = append(m.ids, lookup{i, k})
		}
	}
	compare := func(what string, got []onnx.Value, name func(int) string, want []op.Value) error {
		if len(got) != len(want) {
			return fmt.Errorf("the model has %d %ss, the graph %d", len(got), what, len(want))
		}
		for i, v := range want {
			if w := got[i]; w.Name != name(i) || w.Type != elements[v.Type] || !slices.Equal(w.Dims, []int64{int64(v.Rows), int64(v.Cols)}) {
				return fmt.Errorf("%s %q of the model is %v %v, want %q %s [%d,%d]", what, w.Name, w.Type, w.Dims, name(i), v.Type, v.Rows, v.Cols)
			}
		}
		return nil
	}
	outs := m.onnx.Graph.Outputs
	if len(outs) < extra {
		return fmt.Errorf("the model has %d outputs, want %d more than the graph", len(outs), extra)
	}
	for i, c := range m.checks[:extra] {
		w := outs[len(outs)-extra+i]
		if rows := int64(g.Nodes[c.Node].Op.Rows()); w.Name != c.Output || w.Type != onnx.Float32 || !slices.Equal(w.Dims, []int64{rows, 1}) {
			return fmt.Errorf("output %q of the model is %v %v, want the scales %q f32 [%d,1]", w.Name, w.Type, w.Dims, c.Output, rows)
		}
	}
	return errors.Join(compare("input", m.onnx.Graph.Inputs, input, g.Inputs), compare("output", outs[:len(outs)-extra], output, g.Outputs))
}

// Names of the model's operands, by their place in the graph.
func input(i int) string  { return fmt.Sprintf("i%d", i) }
func output(i int) string { return fmt.Sprintf("o%d", i) }

// elements are the library's element types.
var elements = map[op.Type]onnx.Type{
	op.F32: onnx.Float32, op.F16: onnx.Float16, op.BF16: onnx.BFloat16, op.I32: onnx.Int32, op.I8: onnx.Int8, op.U8: onnx.Uint8,
}

// part is what an initializer of the model is given: a part of a packed weight.
type part struct {
	name  string
	typ   onnx.Type
	bytes []byte
}

// parts divides weight i of a graph.
func parts(i int, w driver.Packed) ([]part, error) {
	name := fmt.Sprintf("w%d", i)
	if w.Spec.Layout == op.RowsLayout {
		return []part{{name, elements[op.Type(w.Spec.Scheme)], w.Bytes}}, nil
	}
	values, at, scales, err := pack.OnnxParts(w.Spec)
	if err != nil {
		return nil, err
	}
	typ := map[string]onnx.Type{"w32": onnx.Float32, "q8c": onnx.Int8, "q4b32": onnx.Uint8, "q4b128": onnx.Uint8}[w.Spec.Scheme]
	out := []part{{name, typ, w.Bytes[:values]}}
	if scales > 0 {
		out = append(out, part{name + ".scale", onnx.Float32, w.Bytes[at : at+4*scales]})
	}
	return out, nil
}

// initializers are the weights as tensors over their packed bytes, in the model's shapes.
func (p *processor) initializers(m *model, w driver.Weights) (out []ortapi.Initializer, err error) {
	defer func() {
		if err != nil {
			closeValues(out)
			out = nil
		}
	}()
	declared := map[string]*onnx.Tensor{}
	for i := range m.onnx.Graph.Initializers {
		if t := &m.onnx.Graph.Initializers[i]; t.External != nil {
			declared[t.Name] = t
		}
	}
	for i, one := range w {
		list, err := parts(i, one)
		if err != nil {
			return out, err
		}
		for _, x := range list {
			t := declared[x.name]
			delete(declared, x.name)
			if t == nil {
				return out, fmt.Errorf("weight %q: the model has no initializer %q for it", one.Spec.Name, x.name)
			}
			n := int64(1)
			for _, d := range t.Dims {
				n *= d // of a parsed model: no overflow
			}
			n = x.typ.Bytes(n)
			if t.Type != x.typ || n != int64(len(x.bytes)) || t.External.Location != ortapi.Weights {
				return out, fmt.Errorf("weight %q: initializer %q of the model is %v %v in %q, want %v of %d bytes in %q", one.Spec.Name, x.name, t.Type, t.Dims, t.External.Location, x.typ, len(x.bytes), ortapi.Weights)
			}
			v, err := p.env.NewTensor(x.bytes, ortapi.ElementType(x.typ), t.Dims)
			if err != nil {
				return out, err
			}
			out = append(out, ortapi.Initializer{Name: x.name, Value: v})
		}
	}
	for name := range declared {
		return out, fmt.Errorf("initializer %q of the model belongs to no weight of the graph", name)
	}
	return out, nil
}

func closeValues(list []ortapi.Initializer) {
	for _, i := range list {
		i.Value.Close()
	}
}

// optimization is the library's "extended": constants are folded, and what compilers left apart is joined; nothing
// depends on the CPU.
const optimization = 2

// asWritten keeps the library from rewriting graphs around what quantises and dequantises.
const asWritten = "session.disable_quant_qdq"

// load makes a session of the artifact with its weights.
func (p *processor) load(a driver.Artifact, w driver.Weights) (*executable, error) {
	if a.Driver != Name {
		return nil, fmt.Errorf("it was compiled for driver %q, want %q", a.Driver, Name)
	}
	m := p.models[string(a.Code)] // one artifact serves every layer
	if m == nil {
		var err error
		if m, err = parse(a.Code); err != nil {
			return nil, err
		}
		for i, n := range m.graph.Nodes {
			if err := p.caps.Supports(n.Op); err != nil {
				return nil, fmt.Errorf("node %d (%s): %w", i, n.Op.Kind, err)
			}
		}
		p.models[string(a.Code)] = m
	}
	w, err := w.Check(m.graph.Weights, layout, pack.Bytes)
	if err != nil {
		return nil, err
	}
	values, err := p.initializers(m, w)
	if err != nil {
		return nil, err
	}
	o := &ortapi.SessionOptions{
		Threads: 1, Optimization: optimization, Config: append(slices.Clone(p.config), [2]string{asWritten, "1"}), Provider: p.provider, ProviderOptions: p.providerOptions,
		Initializers: values, Prepacked: p.env.prepacked,
	}
	if n := len(p.cores); n > 1 {
		if n == len(affinity.Cores()) {
			o.Threads = 0
		} else {
			o.Threads, o.Cores = n, p.cores[1:]
			// Their threads would spin on after a graph, in the way of those of the next one.
			o.Config = append(o.Config, [2]string{"session.force_spinning_stop", "1"})
		}
	}
	e := &executable{p: p, m: m, initializers: values, memory: &mem.Region{}}
	if e.session, err = p.env.NewSession(m.code, o); err != nil {
		closeValues(values)
		return nil, err
	}
	if err := e.prepare(); err != nil {
		return nil, errors.Join(err, e.release())
	}
	p.loaded[e] = true
	return e, nil
}
