// Package onnxgraph knows how a graph of the plan is laid out as an ONNX model: what values, nodes and the graph itself
// are called, and the operators that every ONNX compiler writes alike.
//
// Inputs "i0", "i1", ... and outputs "o0", "o1", ... are the graph's by position. What belongs to node i of the graph
// is named "n<i>". The metadata GraphKey is the graph itself, in the canonical form.
package onnxgraph

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
)

// GraphKey is the entry of a model's metadata that holds the graph.
const GraphKey = "hetc.graph"

// Writer writes one graph, node by node. A value that is changed in place is another tensor after every change.
type Writer struct {
	onnx.Builder
	Graph   *op.Graph
	Now     map[string]string // value of the graph -> the tensor that it is at this point
	Last    map[string]int    // value -> the last node that writes it
	Outputs map[string]string // value -> its tensor among the outputs
	Out     []string          // tensors that the current node writes, by position
}

// New begins a model with the inputs and outputs of a valid graph. types maps the type of an input or output; what it
// refuses is refused.
func New(graph *op.Graph, types func(v op.Value, output bool) (onnx.Type, error)) (*Writer, error) {
	text, err := json.Marshal(graph)
	if err != nil { // a NaN
		return nil, err
	}
	opsets := []onnx.OpsetID{{Domain: "", Version: onnx.Opset}, {Domain: onnx.Contrib, Version: onnx.ContribOpset}}
	writer := &Writer{Graph: graph, Now: map[string]string{}, Last: map[string]int{}, Outputs: map[string]string{}}
	writer.Model = &onnx.Model{
		IR: onnx.IR, Producer: "hetc", Opsets: opsets, Props: []onnx.Prop{{Key: GraphKey, Value: string(text)}},
	}
	writer.Model.Graph.Name = "hetc"
	for i, node := range graph.Nodes {
		for _, name := range node.Out {
			writer.Last[name] = i
		}
	}
	declare := func(list *[]onnx.Value, tensors map[string]string, prefix string, v op.Value, output bool) error {
		typ, err := types(v, output)
		if err != nil {
			return err
		}
		tensors[v.Name] = fmt.Sprintf("%s%d", prefix, len(*list))
		*list = append(*list, onnx.Value{Name: tensors[v.Name], Type: typ, Dims: []int64{int64(v.Rows), int64(v.Cols)}})
		return nil
	}
	// Inputs are the values' first tensors; outputs are those of their last writers.
	for _, v := range graph.Inputs {
		if err := declare(&writer.Model.Graph.Inputs, writer.Now, "i", v, false); err != nil {
			return nil, err
		}
	}
	for _, v := range graph.Outputs {
		if _, written := writer.Last[v.Name]; !written {
			return nil, diag.New(diag.ClassInput, "output %q is an input that no node writes", v.Name)
		}
		if err := declare(&writer.Model.Graph.Outputs, writer.Outputs, "o", v, true); err != nil {
			return nil, err
		}
	}
	return writer, nil
}

// Products begins the model that a processor of static shapes executes for a graph that is one estimate of scores: of
// each key head the products of codes of queries, input "i0" [heads*queries, columns], with those of keys, input "i1"
// [heads*keys, columns], as output "o0" [heads*queries, keys] of a type. The driver makes the codes and pools the
// products.
func Products(graph *op.Graph, products op.Type, typ onnx.Type) (*Writer, error) {
	if graph.Estimate() == nil {
		return nil, diag.New(diag.ClassInput, "%q is executed in a graph of its own alone", op.Estimate)
	}
	writer, err := New(graph.Launches(products), func(v op.Value, output bool) (onnx.Type, error) {
		if output {
			return typ, nil
		}
		return onnx.Uint8, nil
	})
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(graph)
	if err != nil {
		return nil, err
	}
	writer.Model.Props[0].Value = string(text)
	return writer, nil
}

// Nodes calls write for every node, with the tensors that it reads and the numbers of its weights.
func (w *Writer) Nodes(write func(node *op.Node, in []string, weights []int) error) error {
	for i := range w.Graph.Nodes {
		node := &w.Graph.Nodes[i]
		w.Node, w.Out = i, nil
		for at, name := range node.Out {
			tensor := fmt.Sprintf("v%d.%d", i, at)
			if out, ok := w.Outputs[name]; ok && w.Last[name] == i {
				tensor = out
			}
			w.Out = append(w.Out, tensor)
		}
		in := make([]string, len(node.In))
		for at, name := range node.In {
			in[at] = w.Now[name]
		}
		weights, err := w.weights(node)
		if err == nil {
			err = write(node, in, weights)
		}
		if err != nil {
			return diag.New(diag.ClassInput, "node %d (%s): %w", i, node.Op.Kind, err)
		}
		for at, name := range node.Out {
			w.Now[name] = w.Out[at]
		}
	}
	return nil
}

// weights finds a node's weights among the graph's; they must have the layout that ONNX compilers read.
func (w *Writer) weights(node *op.Node) ([]int, error) {
	out := make([]int, len(node.W))
	for at, name := range node.W {
		out[at] = slices.IndexFunc(w.Graph.Weights, func(spec op.WeightSpec) bool { return spec.Name == name })
		have, want := w.Graph.Weights[out[at]], node.Op.WeightSpec(node.Op.Sig().W[at], op.OnnxLayout)
		if have.Name = want.Name; have != want {
			return nil, diag.New(diag.ClassInput, "weight %q is %s %s [%d,%d], want %s %s [%d,%d]",
				name, have.Scheme, have.Layout, have.K, have.N, want.Scheme, want.Layout, want.K, want.N)
		}
	}
	return out, nil
}

// Common writes the operators that have one form for all compilers; false for others. weight is the tensor of the
// node's weight k.
func (w *Writer) Common(o op.Op, in []string, weight func(k int) string) bool {
	switch o.Kind {
	case op.Norm:
		w.Add("", "", "SimplifiedLayerNormalization", List(in[0], weight(0)), w.Out,
			onnx.Int("axis", -1), onnx.Float("epsilon", Epsilon(o)), onnx.Int("stash_type", 1))
	case op.LayerNorm:
		w.Add("", "", "LayerNormalization", List(in[0], weight(0), weight(1)), w.Out,
			onnx.Int("axis", -1), onnx.Float("epsilon", Epsilon(o)))
	case op.Softcap:
		bent := w.Do("tanh", "", "Tanh", List(w.Do("div", "", "Div", List(in[0], w.Float(float32(o.Cap))))))
		w.Add("", "", "Mul", List(bent, w.Float(float32(o.Cap))), w.Out)
	case op.Clip:
		w.Add("", "", "Clip", List(in[0], w.Float(float32(-o.Cap)), w.Float(float32(o.Cap))), w.Out)
	case op.Add:
		w.Add("", "", "Add", in, w.Out)
	case op.Copy:
		w.Add("", "", "Identity", in, w.Out)
	default:
		return false
	}
	return true
}

// Epsilon returns what norms add, never 0, so that rows of zeros give zeros.
func Epsilon(o op.Op) float32 { return max(float32(o.Eps), 1.1754944e-38) }

// GLU divides the columns of gate and up, which alternate in turns of Interleave unless they are in halves already.
// activate writes out = act(in).
func (w *Writer) GLU(o op.Op, in string, halves bool, activate func(suffix, act, in, out string)) {
	turn, rows, turns := int64(o.Interleave), int64(o.Rows()), int64(o.N/o.Interleave)
	out := w.Out[0]
	alternate := turns > 1 && !halves
	if alternate {
		in = w.Reshape("turns", in, rows*turns, 2*turn)
		out = w.Name("mul:")
	}
	gate, up, act := w.Name("gate:"), w.Name("up:"), w.Name("act:")
	w.Add("split", "", "Split", List(in), List(gate, up), onnx.Int("axis", 1), onnx.Int("num_outputs", 2))
	activate("act", o.Act, gate, act)
	w.Add("", "", "Mul", List(act, up), List(out))
	if alternate {
		w.Add("columns", "", "Reshape", List(out, w.Ints(rows, int64(o.N))), w.Out)
	}
}

// Group writes a product of several matrices: its rows are split, each part is a product of its own, and the results
// are joined. in are the tensors of the activations, of quantised rows with their scales. product writes that of one
// matrix.
func (w *Writer) Group(o op.Op, in []string, product func(slot int, one op.Op, in []string) error) error {
	one, count := o.Products()
	if count == 1 {
		return product(0, one, in)
	}
	out := w.Out
	parts := make([][]string, count) // the operands of each product
	for i, tensor := range in {
		var pieces []string
		for slot := range count {
			pieces = append(pieces, w.Name(fmt.Sprintf("in%d.%d:", i, slot)))
			parts[slot] = append(parts[slot], pieces[slot])
		}
		w.Add(fmt.Sprintf("in%d", i), "", "Split", List(tensor), pieces, onnx.Int("axis", 0),
			onnx.Int("num_outputs", int64(count)))
	}
	var results []string
	for slot := range count {
		w.Part = fmt.Sprintf("slot%d", slot)
		w.Out = List(w.Name("result:"))
		if err := product(slot, one, parts[slot]); err != nil {
			return err
		}
		results = append(results, w.Out[0])
	}
	w.Part, w.Out = "", out
	w.Add("", "", "Concat", results, w.Out, onnx.Int("axis", 0))
	return nil
}

// Reshape gives a tensor another shape, which costs nothing.
func (w *Writer) Reshape(suffix, in string, dims ...int64) string {
	return w.Do(suffix, "", "Reshape", List(in, w.Ints(dims...)))
}

// List returns the tensors of a node.
func List(names ...string) []string { return names }
