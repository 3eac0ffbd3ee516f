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

// Routes counts which experts a model's router chooses, by chunks of Tokens consecutive tokens, and notes how much each adds to the
// residual stream: pass Observe to the executor, and execute windows of a whole number of chunks, one after another.
type Routes struct {
	Tokens int

	layers map[int]*routes
	err    error
}

type routes struct {
	seen  int         // tokens
	rows  [][]int32   // by expert and chunk
	ids   []int32     // of the tokens that the experts compute
	norms [][]float64 // by expert: squared L2 norm of what each of its rows adds
}

// Observe counts what a step reads: the chosen experts' numbers, if it is the first product of a layer's experts; what they
// computed and the router's weights, if it is the sum of both.
func (r *Routes) Observe(o executor.Observed) {
	if r.err != nil {
		return
	}
	for i := range o.Graph.Nodes {
		switch n := &o.Graph.Nodes[i]; {
		case n.Op.Kind == op.ExpertMatMul && n.Op.Spread:
			r.err = r.count(o, n)
		case n.Op.Kind == op.Combine:
			r.err = r.weigh(o, n)
		}
	}
}

// input is an input of a step, as numbers.
func input[T float32 | int32](o executor.Observed, name string, t op.Type) ([]T, int, error) {
	i := slices.IndexFunc(o.Graph.Inputs, func(v op.Value) bool { return v.Name == name })
	if i < 0 || o.In[i].Type != t {
		return nil, 0, diag.New(diag.ClassRun, "observe %q in layer %d: %q is no input of type %s of its step", o.Node, o.Layer, name, t)
	}
	list, err := mem.View[T](o.In[i].Bytes())
	if err != nil {
		return nil, 0, fmt.Errorf("observe %q: %w", o.Node, err)
	}
	return list, o.In[i].Stride, nil
}

func (r *Routes) count(o executor.Observed, n *op.Node) error {
	ids, stride, err := input[int32](o, n.In[len(n.In)-1], op.I32)
	if err != nil {
		return err
	}
	if r.layers == nil {
		r.layers = map[int]*routes{}
	}
	y := r.layers[o.Layer]
	if y == nil {
		y = &routes{rows: make([][]int32, n.Op.Experts), norms: make([][]float64, n.Op.Experts)}
		r.layers[o.Layer] = y
	}
	y.ids = y.ids[:0]
	for m := range o.Rows {
		if y.seen%r.Tokens == 0 {
			for e := range y.rows {
				y.rows[e] = append(y.rows[e], 0)
			}
		}
		for _, e := range ids[m*stride : m*stride+n.Op.Fan] {
			if e < 0 || int(e) >= len(y.rows) {
				return diag.New(diag.ClassRun, "observe %q in layer %d: expert %d of %d", o.Node, o.Layer, e, len(y.rows))
			}
			y.rows[e][y.seen/r.Tokens]++
			y.ids = append(y.ids, e)
		}
		y.seen++
	}
	return nil
}

func (r *Routes) weigh(o executor.Observed, n *op.Node) error {
	y := r.layers[o.Layer]
	if y == nil || len(y.ids) != o.Rows*n.Op.Fan {
		return diag.New(diag.ClassRun, "observe %q in layer %d: %d rows are summed up, and not as many were sent to experts", o.Node, o.Layer, o.Rows)
	}
	computed, width, err := input[float32](o, n.In[0], op.F32)
	if err != nil {
		return err
	}
	shares, stride, err := input[float32](o, n.In[1], op.F32)
	if err != nil {
		return err
	}
	for i, e := range y.ids {
		sum := 0.0
		for _, v := range computed[i*width : i*width+n.Op.N] {
			sum += float64(float64(v) * float64(v))
		}
		w := float64(shares[i/n.Op.Fan*stride+i%n.Op.Fan])
		y.norms[e] = append(y.norms[e], float64(w*w)*sum)
	}
	y.ids = y.ids[:0]
	return nil
}

// Layers are the numbers of the layers with experts, ascending.
func (r *Routes) Layers() []int { return slices.Sorted(maps.Keys(r.layers)) }

// Rows are the tokens that chose each expert of a layer, by expert and chunk.
func (r *Routes) Rows(layer int) ([][]int32, error) {
	if r.err != nil {
		return nil, r.err
	}
	y := r.layers[layer]
	if y == nil || y.seen%r.Tokens != 0 {
		return nil, diag.New(diag.ClassRun, "routes of layer %d: no whole number of chunks of %d tokens was executed", layer, r.Tokens)
	}
	return y.rows, nil
}

// Norms are by expert of a layer, for each of its rows, the squared L2 norm of what it adds to the layer's output: the expert's
// output times the router's weight.
func (r *Routes) Norms(layer int) ([][]float64, error) {
	if _, err := r.Rows(layer); err != nil {
		return nil, err
	}
	y := r.layers[layer]
	for e, list := range y.norms {
		rows := 0
		for _, n := range y.rows[e] {
			rows += int(n)
		}
		if len(list) != rows {
			return nil, diag.New(diag.ClassRun, "routes of layer %d: %d rows of expert %d, and it computed %d", layer, rows, e, len(list))
		}
	}
	return y.norms, nil
}
