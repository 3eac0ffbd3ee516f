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

// Routes counts which experts a model's router chooses, by chunks of Tokens consecutive tokens: pass Observe to the
// executor, and execute windows of a whole number of chunks, one after another.
type Routes struct {
	Tokens int

	// by number of layer
	layers map[int]*routes
	err    error
}

// routes are those of one layer.
type routes struct {
	seen int       // tokens
	rows [][]int32 // by expert and chunk
}

// Observe counts what the first product of a layer's experts reads: the numbers of the chosen experts.
func (r *Routes) Observe(seen executor.Observed) {
	if r.err != nil {
		return
	}
	for i := range seen.Graph.Nodes {
		if node := &seen.Graph.Nodes[i]; node.Op.Kind == op.ExpertMatMul && node.Op.Spread {
			r.err = r.count(seen, node)
		}
	}
}

// input returns an input of a step as whole numbers, with its stride.
func input(seen executor.Observed, name string) ([]int32, int, error) {
	i := slices.IndexFunc(seen.Graph.Inputs, func(value op.Value) bool { return value.Name == name })
	if i < 0 || seen.In[i].Type != op.I32 {
		const other = "observe %q in layer %d: %q is no input of type %s of its step"
		return nil, 0, diag.New(diag.ClassRun, other, seen.Node, seen.Layer, name, op.I32)
	}
	list, err := mem.View[int32](seen.In[i].Bytes())
	if err != nil {
		return nil, 0, fmt.Errorf("observe %q: %w", seen.Node, err)
	}
	return list, seen.In[i].Stride, nil
}

// count counts the chosen experts, Fan of them a token. A chunk begins with a zero for each expert.
func (r *Routes) count(seen executor.Observed, node *op.Node) error {
	// the router's choice is the last operand
	ids, stride, err := input(seen, node.In[len(node.In)-1])
	if err != nil {
		return err
	}
	if r.layers == nil {
		r.layers = map[int]*routes{}
	}
	layer := r.layers[seen.Layer]
	if layer == nil {
		layer = &routes{rows: make([][]int32, node.Op.Experts)}
		r.layers[seen.Layer] = layer
	}
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
		}
		layer.seen++
	}
	return nil
}

// Layers returns the numbers of the layers with experts, ascending.
func (r *Routes) Layers() []int { return slices.Sorted(maps.Keys(r.layers)) }

// Rows returns the tokens that chose each expert of a layer, by expert and chunk.
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
