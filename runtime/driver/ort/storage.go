package ort

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// storage is the type in which the library gets the codes of 8-bit weights. The products are the same integers either
// way; the library has another kernel for each type, and not all of them are exact on every CPU. Artifacts and packed
// weights do not know of it: this driver translates them when it loads.
// RATIONALE: Why does the driver multiply 255 by 127 when it starts?
type storage int

const (
	signed  storage = iota // int8, as they are packed
	shifted                // uint8, 128 more, with a zero point of 128; memory is freed once the library has its copy
	inexact                // neither is multiplied exactly: 8-bit products are not executed
)

// shift is what is added to a code, modulo 256: its highest bit changes.
const shift = 0x80

// keyOf names the options of a session that decide which kernels the library has.
func keyOf(options *ortapi.SessionOptions) string {
	return fmt.Sprintf("%q %q %q", options.Provider, options.ProviderOptions, options.Config)
}

// exactStorage returns the first type of weights that the library multiplies exactly on this CPU with these options of
// a session. The environment remembers the answer, since every processor asks.
func (e *env) exactStorage(options *ortapi.SessionOptions) (storage, error) {
	key := keyOf(options)
	envs.Lock()
	defer envs.Unlock()
	if known, ok := e.storages[key]; ok {
		return known, nil
	}
	found := inexact
	for _, candidate := range []storage{signed, shifted} {
		exact, err := e.multiplies(candidate, options)
		if err != nil {
			return 0, err
		}
		if exact {
			found = candidate
			break
		}
	}
	if e.storages == nil {
		e.storages = map[string]storage{}
	}
	e.storages[key] = found
	return found, nil
}

// multiplies reports whether products of the largest codes come out exactly: one row and several, because the library
// has kernels for single rows, and depths and widths that leave a remainder in every tile.
func (e *env) multiplies(weights storage, options *ortapi.SessionOptions) (bool, error) {
	for _, rows := range []int{1, 6} {
		got, want, err := e.largestProducts(weights, rows, options)
		if err != nil || !slices.Equal(got, want) {
			return false, err
		}
	}
	return true, nil
}

// extremes are the signs of neighbouring codes of +-127: sums of two products of them exceed 16 bits unless they
// cancel, and which ones cancel differs from pattern to pattern.
var extremes = [][]int8{{1}, {-1}, {1, -1}, {1, 1, -1}, {-1, 1, 1, 1}}

// Shape of the weights that are tried.
const extremeDepth, extremeCols = 131, 37

// extremeCode returns a code of a row or a column of the largest codes.
func extremeCode(line, at int) int {
	signs := extremes[line%len(extremes)]
	return 127 * int(signs[at%len(signs)])
}

// extremeProducts returns what rows of the largest codes times columns of them are, row by row. They are below 2^24.
func extremeProducts[T int32 | float32](rows, cols int) (products []T) {
	for row := range rows {
		for col := range cols {
			sum := 0
			for at := range extremeDepth {
				sum += extremeCode(row, at) * extremeCode(col, at)
			}
			products = append(products, T(sum))
		}
	}
	return products
}

// largestProducts multiplies rows of the largest activations by columns of the largest weights. It returns what the
// library computes and what is right, both [rows,cols].
func (e *env) largestProducts(weights storage, rows int, options *ortapi.SessionOptions) (got, want []float32,
	err error) {
	const depth, cols = extremeDepth, extremeCols
	memory, err := mem.Alloc(roundUp(rows*depth)+roundUp(depth*cols)+4*rows*cols, driver.Align)
	if err != nil {
		return nil, nil, err
	}
	defer memory.Close()
	left := memory.Bytes()[:rows*depth]
	right := memory.Bytes()[roundUp(rows*depth):][:depth*cols]
	result := memory.Bytes()[roundUp(rows*depth)+roundUp(depth*cols):]
	for i := range left {
		left[i] = byte(shift + extremeCode(i/depth, i%depth))
	}
	for i := range right {
		right[i] = byte(extremeCode(i%cols, i/cols))
	}
	if err := e.multiply(left, right, result, rows, weights, options); err != nil {
		return nil, nil, err
	}
	got, err = mem.View[float32](result)
	return slices.Clone(got), extremeProducts[float32](rows, cols), err
}

// multiply computes one product of 8-bit codes by the operator that products have: left [rows,depth] with a zero point
// of 128, right [depth,cols], which it overwrites, result f32 [rows,cols].
func (e *env) multiply(left, right, result []byte, rows int, weights storage, options *ortapi.SessionOptions) error {
	const depth, cols = extremeDepth, extremeCols
	run := once{input: left, inDims: []int64{int64(rows), depth}, output: result, outDims: []int64{int64(rows), cols},
		result: onnx.Float32}
	run.model = run.product(onnx.Tensor{Type: onnx.Int8, Dims: []int64{depth, cols}},
		onnx.Node{Domain: onnx.Contrib, Op: "MatMulIntegerToFloat", In: list("a", "w", "one", "one", "zero")})
	run.model.Graph.Initializers = append(run.model.Graph.Initializers, onnx.Float32s("one", nil, 1))
	typ := onnx.Int8
	if weights == shifted {
		shiftModel(run.model)
		shiftCodes(right, right)
		typ = onnx.Uint8
		run.loaded = func() { clear(right) } // the library has to compute with its own copy: the shifted one is freed
	}
	return e.runWeighted(&run, right, typ, []int64{depth, cols}, options)
}

// exactConvolution reports whether the library convolves the largest codes exactly on this CPU with these options of a
// session: as products, with a few pixels and with many. The environment remembers the answer.
func (e *env) exactConvolution(options *ortapi.SessionOptions) (bool, error) {
	key := keyOf(options)
	envs.Lock()
	defer envs.Unlock()
	if known, ok := e.convolves[key]; ok {
		return known, nil
	}
	exact := true
	for _, pixels := range []int{2, 6, 35} {
		got, want, err := e.largestConvolution(pixels, options)
		if err != nil {
			return false, err
		}
		exact = exact && slices.Equal(got, want)
	}
	if e.convolves == nil {
		e.convolves = map[string]bool{}
	}
	e.convolves[key] = exact
	return exact, nil
}

// largestConvolution convolves an image of the largest codes with kernels of the largest weights. It returns what the
// library computes and what is right, both [cols,pixels].
func (e *env) largestConvolution(pixels int, options *ortapi.SessionOptions) (got, want []int32, err error) {
	const depth, cols = extremeDepth, extremeCols
	memory, err := mem.Alloc(roundUp(depth*pixels)+roundUp(cols*depth)+4*cols*pixels, driver.Align)
	if err != nil {
		return nil, nil, err
	}
	defer memory.Close()
	image, kernels := memory.Bytes()[:depth*pixels], memory.Bytes()[roundUp(depth*pixels):][:cols*depth]
	result := memory.Bytes()[roundUp(depth*pixels)+roundUp(cols*depth):]
	for i := range image {
		image[i] = byte(shift + extremeCode(i%pixels, i/pixels))
	}
	for i := range kernels {
		kernels[i] = byte(shift + extremeCode(i/depth, i%depth))
	}
	if err := e.convolve(image, kernels, result, int64(pixels), options); err != nil {
		return nil, nil, err
	}
	got, err = mem.View[int32](result)
	return slices.Clone(got), extremeProducts[int32](cols, pixels), err
}

// convolve computes one convolution of 8-bit codes around 128 by the operator that products have: an image
// [depth,pixels], kernels [cols,depth], result i32 [cols,pixels].
func (e *env) convolve(image, kernels, result []byte, pixels int64, options *ortapi.SessionOptions) error {
	const depth, cols = extremeDepth, extremeCols
	run := once{input: image, inDims: []int64{1, depth, 1, pixels}, output: result,
		outDims: []int64{1, cols, 1, pixels}, result: onnx.Int32}
	dims := []int64{cols, depth, 1, 1}
	run.model = run.product(onnx.Tensor{Type: onnx.Uint8, Dims: dims}, onnx.Node{Op: "ConvInteger",
		In: list("a", "w", "zero", "zero"), Attrs: []onnx.Attr{onnx.Ints("kernel_shape", 1, 1)}})
	return e.runWeighted(&run, kernels, onnx.Uint8, dims, options)
}

// once is a model that is executed a single time: a product of codes "a" and weights "w", with the zero point "zero".
type once struct {
	model           *onnx.Model
	input, output   []byte
	inDims, outDims []int64
	result          onnx.Type // of the output
	loaded          func()    // called once there is a session; nil: nothing is
}

// product returns the model of a node that reads a weight of some type and shape.
func (o *once) product(weight onnx.Tensor, node onnx.Node) *onnx.Model {
	weight.Name = "w"
	count := int64(1)
	for _, dim := range weight.Dims {
		count *= dim
	}
	weight.External = &onnx.External{Location: ortapi.Weights, Length: weight.Type.Bytes(count)}
	node.Name, node.Out = "n0", list("y")
	return &onnx.Model{
		IR: onnx.IR, Producer: "hetc",
		Opsets: []onnx.OpsetID{{Domain: "", Version: onnx.Opset}, {Domain: onnx.Contrib, Version: onnx.ContribOpset}},
		Graph: onnx.Graph{
			Name:         "exact",
			Inputs:       []onnx.Value{{Name: "a", Type: onnx.Uint8, Dims: o.inDims}},
			Outputs:      []onnx.Value{{Name: "y", Type: o.result, Dims: o.outDims}},
			Initializers: []onnx.Tensor{weight, {Name: "zero", Type: onnx.Uint8, Raw: []byte{shift}}},
			Nodes:        []onnx.Node{node},
		}}
}

// runWeighted executes a model with the bytes of its weights.
func (e *env) runWeighted(run *once, weights []byte, typ onnx.Type, dims []int64,
	options *ortapi.SessionOptions) error {
	weight, err := e.NewTensor(weights, ortapi.ElementType(typ), dims)
	if err != nil {
		return err
	}
	defer weight.Close()
	given := *options
	given.Initializers = []ortapi.Initializer{{Name: "w", Value: weight}}
	session, err := e.NewSession(run.model.Marshal(), &given)
	if err != nil {
		return err
	}
	defer session.Close()
	if run.loaded != nil {
		run.loaded()
	}
	binding, err := session.NewBinding()
	if err != nil {
		return err
	}
	in, err := e.NewTensor(run.input, ortapi.ElementType(onnx.Uint8), run.inDims)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := e.NewTensor(run.output, ortapi.ElementType(run.result), run.outDims)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := errors.Join(binding.BindInput("a", in), binding.BindOutput("y", out)); err != nil {
		return err
	}
	return session.Run(binding)
}

// shiftModel has the products of a model take 8-bit weights as uint8 with a zero point of 128, an operand that follows
// the zero point of the activations.
func shiftModel(model *onnx.Model) {
	const weight, zeroPoint = 1, 5 // places of operands
	types := map[string]*onnx.Type{}
	for i := range model.Graph.Initializers {
		tensor := &model.Graph.Initializers[i]
		types[tensor.Name] = &tensor.Type
	}
	name := ""
	for i := range model.Graph.Nodes {
		node := &model.Graph.Nodes[i]
		if node.Op != "MatMulIntegerToFloat" {
			continue
		}
		name = "shift"
		*types[node.In[weight]] = onnx.Uint8
		for len(node.In) <= zeroPoint {
			node.In = append(slices.Clip(node.In), "")
		}
		node.In[zeroPoint] = name
	}
	if name != "" {
		model.Graph.Initializers = append(model.Graph.Initializers,
			onnx.Tensor{Name: name, Type: onnx.Uint8, Raw: []byte{shift}})
	}
}

// shiftCodes writes every code of from, 128 more, to the same place of to, which may be from.
func shiftCodes(to, from []byte) {
	const eight = shift * 0x0101010101010101 // codes at once
	at := 0
	for ; at+8 <= len(from); at += 8 {
		binary.LittleEndian.PutUint64(to[at:], binary.LittleEndian.Uint64(from[at:])^eight)
	}
	for ; at < len(from); at++ {
		to[at] = from[at] ^ shift
	}
}

// transposeCodes writes a matrix [rows,cols] of codes as [cols,rows], in squares that stay in a core's cache.
func transposeCodes(to, from []byte, rows, cols int) {
	const side = 64
	for top := 0; top < rows; top += side {
		for left := 0; left < cols; left += side {
			for row := top; row < min(rows, top+side); row++ {
				for col, code := range from[row*cols+left : row*cols+min(cols, left+side)] {
					to[(left+col)*rows+row] = code
				}
			}
		}
	}
}

// isInteger reports whether a scheme's products are those of 8-bit codes by 8-bit codes.
func isInteger(scheme op.Scheme) bool { return scheme.Weight() == "q8c" }

// refuseInexact says why a graph has products that a processor with these weights does not execute.
func (p *processor) refuseInexact(graph *op.Graph) error {
	if p.storage != inexact {
		return nil
	}
	for i, node := range graph.Nodes {
		if !isInteger(node.Op.Scheme) {
			continue
		}
		return diag.New(diag.ClassUnavailable, "node %d (%s %s): library %q (version %s) multiplies 8-bit numbers "+
			"inexactly on this CPU, with weights of int8 and of uint8: %w", i, node.Op.Kind, node.Op.Scheme,
			p.env.lib.Path, p.env.lib.Version, driver.ErrIncapable).
			WithHint("plan with scheme %s here, or with the driver host", strings.Join(floatSchemes(), " or "))
	}
	return nil
}

// floatSchemes returns the schemes that need no exact products of 8-bit codes.
func floatSchemes() (out []string) {
	for _, scheme := range op.SchemesOf(Name) {
		if !isInteger(scheme) {
			out = append(out, string(scheme))
		}
	}
	return out
}
