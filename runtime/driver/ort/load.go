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

// model is a parsed artifact that was verified to compute its graph.
type model struct {
	graph op.Graph
	onnx  *onnx.Model // with 8-bit weights in the processor's storage
	code  []byte      // what the library gets
	// outputs that show activations that are not finite
	checks []check
	// inputs whose values are looked up in tables, so must lie in them
	ids []lookup
	// of the library's session: those of the graph, or of launches of an estimate
	inputs, outputs []op.Value
}

// check is an output of the model with the row scales of a quant_rows node. A NaN or an infinity
// among the activations shows there.
type check struct {
	Node   int    `json:"node"`
	Output string `json:"output"`
	graph  int    // which of the graph's outputs it is, -1: one of the model alone
}

// lookup is an input of the graph that holds ids of rows of a table.
type lookup struct{ node, input int }

// parse checks that an artifact is for this driver and whole, and that it computes what its graph
// says.
func parse(code []byte) (*model, error) {
	parsed, err := onnx.Parse(code)
	if err != nil {
		return nil, err
	}
	text, ok := parsed.Prop("hetc.graph")
	if !ok {
		return nil, diag.New(diag.ClassInput,
			"the model does not say what graph it was made of").WithHint("compile the bundle again")
	}
	out := &model{onnx: parsed}
	if out.graph, err = driver.ParseGraph([]byte(text)); err != nil {
		return nil, err
	}
	if text, ok := parsed.Prop("hetc.checks"); ok {
		if err := json.Unmarshal([]byte(text), &out.checks); err != nil {
			return nil, fmt.Errorf("checks: %w", err)
		}
	}
	if err := out.operands(); err != nil {
		return nil, err
	}
	return out, verify(parsed, &out.graph)
}

// operands compares the model's inputs and outputs with the graph's. It finds the operands that are
// inspected around a call: every quant_rows has its scales among the outputs, every table its ids
// among the inputs.
func (m *model) operands() error {
	graph := &m.graph
	launches := graph.Launches(op.I32)
	m.inputs, m.outputs = launches.Inputs, launches.Outputs
	for i := range m.checks {
		checked := &m.checks[i]
		if checked.graph = -1; checked.Node < 0 || checked.Node >= len(graph.Nodes) ||
			graph.Nodes[checked.Node].Op.Kind != op.QuantRows {
			return fmt.Errorf("checks: node %d is no quant_rows", checked.Node)
		}
	}
	extra := len(m.checks)
	for i, node := range graph.Nodes {
		switch node.Op.Kind {
		case op.QuantRows:
			if at := slices.IndexFunc(graph.Outputs, func(v op.Value) bool { return v.Name == node.Out[1] }); at >= 0 {
				m.checks = append(m.checks, check{Node: i, Output: output(at), graph: at})
			}
			if !slices.ContainsFunc(m.checks, func(c check) bool { return c.Node == i }) {
				return fmt.Errorf("node %d (%s): its scales are not among the outputs, where values without an answer would show", i, node.Op.Kind)
			}
		case op.Embed:
			input := slices.IndexFunc(graph.Inputs, func(v op.Value) bool { return v.Name == node.In[0] })
			if input < 0 {
				return fmt.Errorf("node %d (%s): its ids are not an input of the graph", i, node.Op.Kind)
			}
			m.ids = append(m.ids, lookup{i, input})
		}
	}
	// names, types and shapes are the graph's
	compare := func(what string, got []onnx.Value, name func(int) string, want []op.Value) error {
		if len(got) != len(want) {
			return fmt.Errorf("the model has %d %ss, the graph %d", len(got), what, len(want))
		}
		for i, declared := range want {
			if wanted := got[i]; wanted.Name != name(i) || wanted.Type != elements[declared.Type] ||
				!slices.Equal(wanted.Dims, []int64{int64(declared.Rows), int64(declared.Cols)}) {
				return fmt.Errorf("%s %q of the model is %v %v, want %q %s [%d,%d]", what, wanted.Name, wanted.Type,
					wanted.Dims, name(i), declared.Type, declared.Rows, declared.Cols)
			}
		}
		return nil
	}
	outs := m.onnx.Graph.Outputs
	if len(outs) < extra {
		return fmt.Errorf("the model has %d outputs, want %d more than the graph", len(outs), extra)
	}
	for i, checker := range m.checks[:extra] {
		value := outs[len(outs)-extra+i]
		if rows := int64(graph.Nodes[checker.Node].Op.Rows()); value.Name != checker.Output ||
			value.Type != onnx.Float32 || !slices.Equal(value.Dims, []int64{rows, 1}) {
			return fmt.Errorf("output %q of the model is %v %v, want the scales %q f32 [%d,1]", value.Name,
				value.Type, value.Dims, checker.Output, rows)
		}
	}
	return errors.Join(compare("input", m.onnx.Graph.Inputs, input, m.inputs),
		compare("output", outs[:len(outs)-extra], output, m.outputs))
}

// Names of the model's operands, by their place in the graph.
func input(i int) string  { return fmt.Sprintf("i%d", i) }
func output(i int) string { return fmt.Sprintf("o%d", i) }

// elements are the library's element types.
var elements = map[op.Type]onnx.Type{
	op.F32: onnx.Float32, op.F16: onnx.Float16, op.BF16: onnx.BFloat16, op.I32: onnx.Int32, op.I8: onnx.Int8,
	op.U8: onnx.Uint8,
}

// part is the value of one initializer: a part of a packed weight.
type part struct {
	name  string
	typ   onnx.Type
	bytes []byte
}

// parts divides weight i of a graph into the initializers of its values and its scales.
func parts(i int, weight driver.Packed) ([]part, error) {
	name := fmt.Sprintf("w%d", i)
	if weight.Spec.Layout == op.RowsLayout {
		return []part{{name, elements[op.Type(weight.Spec.Scheme)], weight.Bytes}}, nil
	}
	values, at, scales, err := pack.OnnxParts(weight.Spec)
	if err != nil {
		return nil, err
	}
	typ := map[string]onnx.Type{"w32": onnx.Float32, "q8c": onnx.Int8, "q4b32": onnx.Uint8,
		"q4b128": onnx.Uint8}[weight.Spec.Scheme]
	out := []part{{name, typ, weight.Bytes[:values]}}
	if scales > 0 {
		out = append(out, part{name + ".scale", onnx.Float32, weight.Bytes[at : at+4*scales]})
	}
	return out, nil
}

// initializers returns the weights as tensors over their packed bytes, in the model's shapes. Every
// external initializer must belong to a weight.
//
// 8-bit codes that the library gets as uint8 are copied into memory that the caller closes: copies once there is a
// session, kernels of convolutions with it.
func (p *processor) initializers(m *model, weights driver.Weights) (out []ortapi.Initializer, copies, kernels []*mem.Region,
	err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, closeCopies(copies), closeCopies(kernels))
			closeValues(out)
			out, copies, kernels = nil, nil, nil
		}
	}()
	declared := map[string]*onnx.Tensor{}
	for i := range m.onnx.Graph.Initializers {
		if tensor := &m.onnx.Graph.Initializers[i]; tensor.External != nil {
			declared[tensor.Name] = tensor
		}
	}
	for i, one := range weights {
		list, err := parts(i, one)
		if err != nil {
			return out, copies, kernels, err
		}
		for _, initializer := range list {
			tensor := declared[initializer.name]
			delete(declared, initializer.name)
			kernel := initializer.typ == onnx.Int8 && tensor != nil && len(tensor.Dims) == 4
			if initializer.typ == onnx.Int8 && (kernel || p.storage == shifted) {
				region, err := mem.Alloc(len(initializer.bytes), driver.Align)
				if err != nil {
					return out, copies, kernels, err
				}
				if kernel {
					kernels = append(kernels, region)
					transposeCodes(region.Bytes(), initializer.bytes, one.Spec.K, one.Spec.N)
					shiftCodes(region.Bytes(), region.Bytes())
				} else {
					copies = append(copies, region)
					shiftCodes(region.Bytes(), initializer.bytes)
				}
				initializer.typ, initializer.bytes = onnx.Uint8, region.Bytes()
			}
			if tensor == nil {
				return out, copies, kernels, fmt.Errorf("weight %q: the model has no initializer %q for it", one.Spec.Name,
					initializer.name)
			}
			elems := int64(1)
			for _, dim := range tensor.Dims {
				elems *= dim // of a parsed model: no overflow
			}
			elems = initializer.typ.Bytes(elems)
			if tensor.Type != initializer.typ || elems != int64(len(initializer.bytes)) ||
				tensor.External.Location != ortapi.Weights {
				return out, copies, kernels, fmt.Errorf("weight %q: initializer %q of the model is %v %v in %q, want %v of %d bytes in %q", one.Spec.Name, initializer.name, tensor.Type, tensor.Dims, tensor.External.Location, initializer.typ, len(initializer.bytes), ortapi.Weights)
			}
			value, err := p.env.NewTensor(initializer.bytes, ortapi.ElementType(initializer.typ), tensor.Dims)
			if err != nil {
				return out, copies, kernels, err
			}
			out = append(out, ortapi.Initializer{Name: initializer.name, Value: value})
		}
	}
	for name := range declared {
		return out, copies, kernels, fmt.Errorf("initializer %q of the model belongs to no weight of the graph", name)
	}
	return out, copies, kernels, nil
}

// closeValues releases tensors over weights; the weights' bytes are the caller's.
func closeValues(list []ortapi.Initializer) {
	for _, i := range list {
		i.Value.Close()
	}
}

// closeCopies releases copies of weights.
func closeCopies(copies []*mem.Region) (err error) {
	for _, region := range copies {
		err = errors.Join(err, region.Close())
	}
	return err
}

// optimization is the library's level "extended": constants are folded and operators fused. Nothing
// that it does depends on the CPU.
const optimization = 2

// asWritten keeps the library from rewriting graphs around quantising and dequantising operators.
const asWritten = "session.disable_quant_qdq"

// load makes a session of the artifact with its weights. One thread computes on one core, the
// environment's pool on all cores, and a pool of its own on some cores.
func (p *processor) load(artifact driver.Artifact, weights driver.Weights) (*executable, error) {
	if artifact.Driver != Name {
		return nil, fmt.Errorf("it was compiled for driver %q, want %q", artifact.Driver, Name)
	}
	model := p.models[string(artifact.Code)] // one artifact serves every layer
	if model == nil {
		var err error
		if model, err = parse(artifact.Code); err != nil {
			return nil, err
		}
		if err := p.refuseInexact(&model.graph); err != nil {
			return nil, err
		}
		for i, node := range model.graph.Nodes {
			if err := p.caps.Supports(node.Op); err != nil {
				return nil, fmt.Errorf("node %d (%s): %w", i, node.Op.Kind, err)
			}
		}
		if model.code = artifact.Code; p.storage == shifted {
			shiftModel(model.onnx)
			model.code = model.onnx.Marshal()
		}
		p.models[string(artifact.Code)] = model
	}
	if err := artifact.Matches(&model.graph); err != nil {
		return nil, err
	}
	weights, err := weights.Check(&model.graph, false, layout, pack.Bytes)
	if err != nil {
		return nil, err
	}
	var given driver.Weights
	if model.graph.Estimate() == nil { // whose scales do not enter the library's graph
		given = weights
	}
	values, copies, kernels, err := p.initializers(model, given)
	if err != nil {
		return nil, err
	}
	options := p.options(len(p.cores))
	options.Initializers, options.Prepacked = values, p.env.prepacked
	exe := &executable{p: p, m: model, initializers: values, memory: &mem.Region{}, kernels: kernels}
	exe.session, err = p.env.NewSession(model.code, options)
	released := closeCopies(copies) // the library has its own now: multiply tries that it computes with those
	if err != nil {
		closeValues(values)
		return nil, errors.Join(err, released, closeCopies(kernels))
	}
	prepared := exe.prepare()
	if prepared == nil && model.graph.Estimate() != nil {
		prepared = exe.prepareEstimate(weights)
	}
	if err := errors.Join(prepared, released); err != nil {
		return nil, errors.Join(err, exe.release())
	}
	p.loaded[exe] = true
	return exe, nil
}

// options returns those of a session on that many of the processor's cores.
func (p *processor) options(threads int) *ortapi.SessionOptions {
	options := &ortapi.SessionOptions{
		Threads: 1, Optimization: optimization, Config: append(slices.Clone(p.config), [2]string{asWritten, "1"}),
		Provider: p.provider, ProviderOptions: p.providerOptions,
	}
	if threads > 1 {
		// 0 threads means the environment's pool, which has one on every core.
		if threads == len(affinity.Cores()) {
			options.Threads = 0
		} else {
			options.Threads, options.Cores = threads, p.cores[1:]
			// Their threads would spin on after a graph, in the way of those of the next one.
			options.Config = append(options.Config, [2]string{"session.force_spinning_stop", "1"})
		}
	}
	return options
}
