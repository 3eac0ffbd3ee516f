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

// operands compares the model's inputs and outputs with the graph's. It finds the operands that are inspected around a
// call: every quant_rows has its scales among the outputs, every table its ids among the inputs.
func (m *model) operands() error {
	graph := &m.graph
	launches := graph.Launches(op.I32)
	m.inputs, m.outputs = launches.Inputs, launches.Outputs
	for i := range m.checks {
		checked := &m.checks[i]
		checked.graph = -1
		node := checked.Node
		if node < 0 || node >= len(graph.Nodes) || graph.Nodes[node].Op.Kind != op.QuantRows {
			return fmt.Errorf("checks: node %d is no quant_rows", node)
		}
	}
	own := m.checks // outputs of the model alone
	if err := m.findInspected(); err != nil {
		return err
	}
	outs := m.onnx.Graph.Outputs
	if len(outs) < len(own) {
		return fmt.Errorf("the model has %d outputs, want %d more than the graph", len(outs), len(own))
	}
	graphs := len(outs) - len(own)
	for i, checked := range own {
		value, rows := outs[graphs+i], int64(graph.Nodes[checked.Node].Op.Rows())
		if value.Name != checked.Output || value.Type != onnx.Float32 || !slices.Equal(value.Dims, []int64{rows, 1}) {
			return fmt.Errorf("output %q of the model is %v %v, want the scales %q f32 [%d,1]", value.Name,
				value.Type, value.Dims, checked.Output, rows)
		}
	}
	return errors.Join(sameValues("input", m.onnx.Graph.Inputs, input, m.inputs),
		sameValues("output", outs[:graphs], output, m.outputs))
}

// findInspected adds the scales that are outputs of the graph to the checks, and finds the ids of tables.
func (m *model) findInspected() error {
	place := func(values []op.Value, name string) int {
		return slices.IndexFunc(values, func(value op.Value) bool { return value.Name == name })
	}
	for i, node := range m.graph.Nodes {
		switch node.Op.Kind {
		case op.QuantRows:
			if at := place(m.graph.Outputs, node.Out[1]); at >= 0 {
				m.checks = append(m.checks, check{Node: i, Output: output(at), graph: at})
			}
			if !slices.ContainsFunc(m.checks, func(checked check) bool { return checked.Node == i }) {
				return fmt.Errorf("node %d (%s): its scales are not among the outputs, where values without an answer "+
					"would show", i, node.Op.Kind)
			}
		case op.Embed:
			at := place(m.graph.Inputs, node.In[0])
			if at < 0 {
				return fmt.Errorf("node %d (%s): its ids are not an input of the graph", i, node.Op.Kind)
			}
			m.ids = append(m.ids, lookup{i, at})
		}
	}
	return nil
}

// sameValues compares names, types and shapes of a model's inputs or outputs with the graph's.
func sameValues(what string, got []onnx.Value, name func(int) string, want []op.Value) error {
	if len(got) != len(want) {
		return fmt.Errorf("the model has %d %ss, the graph %d", len(got), what, len(want))
	}
	for i, value := range want {
		have, dims := got[i], []int64{int64(value.Rows), int64(value.Cols)}
		if have.Name != name(i) || have.Type != elements[value.Type] || !slices.Equal(have.Dims, dims) {
			return fmt.Errorf("%s %q of the model is %v %v, want %q %s [%d,%d]", what, have.Name, have.Type, have.Dims,
				name(i), value.Type, value.Rows, value.Cols)
		}
	}
	return nil
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

// sessionWeights are the weights of a session, as the library gets them.
type sessionWeights struct {
	values  []ortapi.Initializer // tensors over packed bytes, or over those of copies and kernels
	copies  []*mem.Region        // 8-bit codes as uint8, needed until there is a session
	kernels []*mem.Region        // those of convolutions, needed as long as the session
}

// close releases everything.
func (w *sessionWeights) close() error {
	closeValues(w.values)
	return errors.Join(closeCopies(w.copies), closeCopies(w.kernels))
}

// initializers returns the weights as tensors in the model's shapes. Every external initializer must belong to a
// weight.
func (p *processor) initializers(m *model, weights driver.Weights) (out sessionWeights, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, out.close())
			out = sessionWeights{}
		}
	}()
	declared := map[string]*onnx.Tensor{}
	for i := range m.onnx.Graph.Initializers {
		if tensor := &m.onnx.Graph.Initializers[i]; tensor.External != nil {
			declared[tensor.Name] = tensor
		}
	}
	for i, weight := range weights {
		list, err := parts(i, weight)
		if err != nil {
			return out, err
		}
		for _, one := range list {
			tensor := declared[one.name]
			delete(declared, one.name)
			if tensor == nil {
				return out, fmt.Errorf("weight %q: the model has no initializer %q for it", weight.Spec.Name, one.name)
			}
			if err := p.storeCodes(&out, &one, tensor, weight.Spec); err != nil {
				return out, err
			}
			if err := fits(&one, tensor); err != nil {
				return out, fmt.Errorf("weight %q: %w", weight.Spec.Name, err)
			}
			value, err := p.env.NewTensor(one.bytes, ortapi.ElementType(one.typ), tensor.Dims)
			if err != nil {
				return out, err
			}
			out.values = append(out.values, ortapi.Initializer{Name: one.name, Value: value})
		}
	}
	for name := range declared {
		return out, fmt.Errorf("initializer %q of the model belongs to no weight of the graph", name)
	}
	return out, nil
}

// storeCodes copies 8-bit codes that the library is to get as uint8, and makes the part one of the copy: kernels of a
// convolution, which are transposed too, and all codes where the library multiplies them exactly in this form only.
func (p *processor) storeCodes(out *sessionWeights, one *part, tensor *onnx.Tensor, spec op.WeightSpec) error {
	kernel := len(tensor.Dims) == 4
	if one.typ != onnx.Int8 || !kernel && p.storage != shifted {
		return nil
	}
	region, err := mem.Alloc(len(one.bytes), driver.Align)
	if err != nil {
		return err
	}
	if kernel {
		out.kernels = append(out.kernels, region)
		transposeCodes(region.Bytes(), one.bytes, spec.K, spec.N)
		shiftCodes(region.Bytes(), region.Bytes())
	} else {
		out.copies = append(out.copies, region)
		shiftCodes(region.Bytes(), one.bytes)
	}
	one.typ, one.bytes = onnx.Uint8, region.Bytes()
	return nil
}

// fits refuses an initializer of another type or size than the part of the weight that it stands for.
func fits(one *part, tensor *onnx.Tensor) error {
	count := int64(1)
	for _, dim := range tensor.Dims {
		count *= dim // of a parsed model: no overflow
	}
	size := int64(len(one.bytes))
	if tensor.Type == one.typ && one.typ.Bytes(count) == size && tensor.External.Location == ortapi.Weights {
		return nil
	}
	return fmt.Errorf("initializer %q of the model is %v %v in %q, want %v of %d bytes in %q", one.name, tensor.Type,
		tensor.Dims, tensor.External.Location, one.typ, size, ortapi.Weights)
}

// closeValues releases tensors over weights; the weights' bytes are the caller's.
func closeValues(list []ortapi.Initializer) {
	for _, initializer := range list {
		initializer.Value.Close()
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
	model, err := p.model(artifact.Code)
	if err != nil {
		return nil, err
	}
	if err := artifact.Matches(&model.graph); err != nil {
		return nil, err
	}
	if weights, err = weights.Check(&model.graph, false, layout, pack.Bytes); err != nil {
		return nil, err
	}
	var given driver.Weights
	if model.graph.Estimate() == nil { // whose scales do not enter the library's graph
		given = weights
	}
	stored, err := p.initializers(model, given)
	if err != nil {
		return nil, err
	}
	options := p.options(len(p.cores))
	options.Initializers, options.Prepacked = stored.values, p.env.prepacked
	exe := &executable{p: p, m: model, initializers: stored.values, memory: &mem.Region{}, kernels: stored.kernels}
	if exe.session, err = p.env.NewSession(model.code, options); err != nil {
		return nil, errors.Join(err, stored.close())
	}
	released := closeCopies(stored.copies) // the library has its own now, and computes with them: see multiply
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

// model returns the model of an artifact, which is parsed and checked once: one artifact serves every layer.
func (p *processor) model(code []byte) (*model, error) {
	if known := p.models[string(code)]; known != nil {
		return known, nil
	}
	made, err := parse(code)
	if err != nil {
		return nil, err
	}
	if err := p.refuseInexact(&made.graph); err != nil {
		return nil, err
	}
	for i, node := range made.graph.Nodes {
		if err := p.caps.Supports(node.Op); err != nil {
			return nil, fmt.Errorf("node %d (%s): %w", i, node.Op.Kind, err)
		}
	}
	made.code = code
	if p.storage == shifted {
		shiftModel(made.onnx)
		made.code = made.onnx.Marshal()
	}
	p.models[string(code)] = made
	return made, nil
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
