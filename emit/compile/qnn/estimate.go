package qnn

import (
	"encoding/json"
	"math"

	"github.com/hetc/hetc/emit/onnxgraph"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// headsKey is the entry of a model's metadata with the weight "heads" of an estimate, which the driver rounds by.
const headsKey = "hetc.heads"

// productStep is the step of products on their grid of 16 bits, for each column of a head.
const productStep = 127 * 127 / 2. / (math.MaxUint16 / 2)

// estimate writes the products of codes of an estimate of scores. Codes of queries are every 256th of 16 bits, as those
// of products with 8-bit rows are, and so have results of 16 bits. These saturate at half of what the largest codes in
// every column give: few columns of a head are large, and all positions beyond are selected alike. The NPU takes every
// operator on codes between a conversion to numbers and one back.
func estimate(graph *op.Graph, weights driver.Weights) (*compilerInput, error) {
	writer, err := onnxgraph.Products(graph, op.F32, onnx.Float32)
	if err != nil {
		return nil, err
	}
	operator := graph.Estimate()
	launch, kvHeads, dim := operator.Launch(), int64(operator.KVHeads), int64(operator.HeadDim)
	zero8 := writer.Constant(onnx.Tensor{Type: onnx.Uint8, Raw: []byte{0x80}})
	zero16 := writer.Constant(onnx.Tensor{Type: onnx.Uint16, Raw: []byte{0, 0x80}})
	one, fine := writer.Float(1), writer.Float(1.0/256)
	step := writer.Float(float32(productStep * float64(dim)))
	numbers := func(suffix, codes, scale, zero string) string {
		return writer.Do(suffix+".float", "", "DequantizeLinear", list(codes, scale, zero))
	}
	codes := func(suffix, numbers, scale, zero string) string {
		return writer.Do(suffix+".codes", "", "QuantizeLinear", list(numbers, scale, zero))
	}
	again := func(suffix, in, scale, zero string) string {
		return numbers(suffix, codes(suffix, in, scale, zero), scale, zero)
	}
	queries := writer.Reshape("queries", numbers("in0", "i0", one, zero8), kvHeads, int64(launch.Rows), dim)
	queries = again("fine", again("queries", queries, one, zero8), fine, zero16)
	keys := writer.Reshape("keys", numbers("in1", "i1", one, zero8), kvHeads, int64(launch.Keys), dim)
	columns := writer.Do("columns", "", "Transpose", list(again("keys", keys, one, zero8)), onnx.Ints("perm", 0, 2, 1))
	products := writer.Do("", "", "MatMul", list(queries, again("columns", columns, one, zero8)))
	products = again("products", products, step, zero16)
	rows := writer.Reshape("shape", products, kvHeads*int64(launch.Rows), int64(launch.Keys))
	writer.Add("float", "", "DequantizeLinear", list(codes("shape", rows, step, zero16), step, zero16), list("o0"))
	heads, err := json.Marshal(number.Floats(weights[0].Bytes))
	if err != nil {
		return nil, err
	}
	writer.Model.Props = append(writer.Model.Props, onnx.Prop{Key: headsKey, Value: string(heads)})
	return &compilerInput{model: writer.Model.Marshal(), inputs: tensors(writer.Model.Graph.Inputs),
		outputs: tensors(writer.Model.Graph.Outputs)}, nil
}
