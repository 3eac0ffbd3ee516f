package quality

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

// Routes counts which experts a model's router chooses, by chunks of Tokens consecutive tokens, and notes how much each
// adds to the residual stream: pass Observe to the executor, and execute windows of a whole number of chunks, one after
// another.
type Routes struct {
	Tokens int

	// by number of layer
	layers map[int]*routes
	err    error
}

// routes are those of one layer.
type routes struct {
	seen  int         // tokens
	rows  [][]int32   // by expert and chunk
	ids   []int32     // of the tokens that the experts compute
	norms [][]float64 // by expert: squared L2 norm of what each of its rows adds
}

// Observe counts what a step reads. Of the first product of a layer's experts, that is the numbers of the chosen
// experts; of the sum of what they computed, their results and the router's weights.
func (r *Routes) Observe(seen executor.Observed) {
	if r.err != nil {
		return
	}
	for i := range seen.Graph.Nodes {
		switch node := &seen.Graph.Nodes[i]; {
		case node.Op.Kind == op.ExpertMatMul && node.Op.Spread:
			r.err = r.count(seen, node)
		case node.Op.Kind == op.Combine:
			r.err = r.addNorms(seen, node)
		}
	}
}

// input is an input of a step as numbers, with its stride.
func input[T float32 | int32](seen executor.Observed, name string, kind op.Type) ([]T, int, error) {
	i := slices.IndexFunc(seen.Graph.Inputs, func(value op.Value) bool { return value.Name == name })
	if i < 0 || seen.In[i].Type != kind {
		const other = "observe %q in layer %d: %q is no input of type %s of its step"
		return nil, 0, diag.New(diag.ClassRun, other, seen.Node, seen.Layer, name, kind)
	}
	list, err := mem.View[T](seen.In[i].Bytes())
	if err != nil {
		return nil, 0, fmt.Errorf("observe %q: %w", seen.Node, err)
	}
	return list, seen.In[i].Stride, nil
}

// count counts the chosen experts, Fan of them a token. A chunk begins with a zero for each expert.
func (r *Routes) count(seen executor.Observed, node *op.Node) error {
	// the router's choice is the last operand
	ids, stride, err := input[int32](seen, node.In[len(node.In)-1], op.I32)
	if err != nil {
		return err
	}
	if r.layers == nil {
		r.layers = map[int]*routes{}
	}
	layer := r.layers[seen.Layer]
	if layer == nil {
		layer = &routes{rows: make([][]int32, node.Op.Experts), norms: make([][]float64, node.Op.Experts)}
		r.layers[seen.Layer] = layer
	}
	layer.ids = layer.ids[:0]
	for row := range seen.Rows {
		if layer.seen%r.Tokens == 0 {
			for expert := range layer.rows {
				layer.rows[expert] = append(layer.rows[expert], 0)
			}
		}
		for _, expert := range ids[row*stride : row*stride+node.Op.Fan] {
			if expert < 0 || int(expert) >= len(layer.rows) {
				const outside = "observe %q in layer %d: expert %d of %d"
				return diag.New(diag.ClassRun, outside, seen.Node, seen.Layer, expert, len(layer.rows))
			}
			layer.rows[expert][layer.seen/r.Tokens]++
			layer.ids = append(layer.ids, expert)
		}
		layer.seen++
	}
	return nil
}

// addNorms notes what the experts, whose numbers were counted last, add.
func (r *Routes) addNorms(seen executor.Observed, node *op.Node) error {
	layer := r.layers[seen.Layer]
	if layer == nil || len(layer.ids) != seen.Rows*node.Op.Fan {
		const differs = "observe %q in layer %d: %d rows are summed up, and not as many were sent to experts"
		return diag.New(diag.ClassRun, differs, seen.Node, seen.Layer, seen.Rows)
	}
	computed, width, err := input[float32](seen, node.In[0], op.F32)
	if err != nil {
		return err
	}
	shares, stride, err := input[float32](seen, node.In[1], op.F32)
	if err != nil {
		return err
	}
	for i, expert := range layer.ids {
		// what an expert adds has the norm of its output times its share
		sum := 0.0
		for _, value := range computed[i*width : i*width+node.Op.N] {
			sum += float64(float64(value) * float64(value))
		}
		share := float64(shares[i/node.Op.Fan*stride+i%node.Op.Fan])
		layer.norms[expert] = append(layer.norms[expert], float64(share*share)*sum)
	}
	layer.ids = layer.ids[:0]
	return nil
}

// Layers are the numbers of the layers with experts, ascending.
func (r *Routes) Layers() []int { return slices.Sorted(maps.Keys(r.layers)) }

// Rows are the tokens that chose each expert of a layer, by expert and chunk.
func (r *Routes) Rows(layer int) ([][]int32, error) {
	if r.err != nil {
		return nil, r.err
	}
	counted := r.layers[layer]
	if counted == nil || counted.seen%r.Tokens != 0 {
		const part = "routes of layer %d: no whole number of chunks of %d tokens was executed"
		return nil, diag.New(diag.ClassRun, part, layer, r.Tokens)
	}
	return counted.rows, nil
}

// Norms are by expert of a layer, for each of its rows, the squared L2 norm of what it adds to the layer's output: the
// expert's output times the router's weight.
func (r *Routes) Norms(layer int) ([][]float64, error) {
	chunks, err := r.Rows(layer)
	if err != nil {
		return nil, err
	}
	norms := r.layers[layer].norms
	for expert, list := range norms {
		rows := 0
		for _, count := range chunks[expert] {
			rows += int(count)
		}
		if len(list) != rows {
			const differs = "routes of layer %d: %d rows of expert %d, and it computed %d"
			return nil, diag.New(diag.ClassRun, differs, layer, rows, expert, len(list))
		}
	}
	return norms, nil
}
