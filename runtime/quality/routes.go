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

	layers map[int]*routes
	err    error
}

type routes struct {
	seen int       // tokens
	rows [][]int32 // by expert and chunk
}

// Observe counts what a step reads, if it is the first product of a layer's experts: the chosen experts' numbers.
func (r *Routes) Observe(o executor.Observed) {
	k := slices.IndexFunc(o.Graph.Nodes, func(n op.Node) bool { return n.Op.Kind == op.ExpertMatMul && n.Op.Spread })
	if k < 0 || r.err != nil {
		return
	}
	n := &o.Graph.Nodes[k]
	i := slices.IndexFunc(o.Graph.Inputs, func(v op.Value) bool { return v.Name == n.In[len(n.In)-1] })
	if i < 0 || o.In[i].Type != op.I32 {
		r.err = diag.New(diag.ClassRun, "observe %q: the experts' numbers are no input of its step", o.Node)
		return
	}
	v := o.In[i]
	ids, err := mem.View[int32](v.Bytes())
	if err != nil {
		r.err = fmt.Errorf("observe %q: %w", o.Node, err)
		return
	}
	if r.layers == nil {
		r.layers = map[int]*routes{}
	}
	y := r.layers[o.Layer]
	if y == nil {
		y = &routes{rows: make([][]int32, n.Op.Experts)}
		r.layers[o.Layer] = y
	}
	for m := range o.Rows {
		if y.seen%r.Tokens == 0 {
			for e := range y.rows {
				y.rows[e] = append(y.rows[e], 0)
			}
		}
		for _, e := range ids[m*v.Stride : m*v.Stride+n.Op.Fan] {
			if e < 0 || int(e) >= len(y.rows) {
				r.err = diag.New(diag.ClassRun, "observe %q in layer %d: expert %d of %d", o.Node, o.Layer, e, len(y.rows))
				return
			}
			y.rows[e][y.seen/r.Tokens]++
		}
		y.seen++
	}
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
