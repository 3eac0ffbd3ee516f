package quality

import (
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
)

// Ranges collects what enters and leaves the matrix products of executions in float32 on one lane: pass Observe to the
// executor, execute, and after Again the same once more, which counts how often outlier channels exceed and finds which
// channels move together.
type Ranges struct {
	index  map[place]*channels
	places []*channels // in the order of execution
	again  bool

	stopped bool
	err     error
}

type place struct {
	node  string
	layer int
}

// MaxRank is the most directions that can be told apart well.
const MaxRank = sketchWidth * 2 / 3

// channels is what entered one node in one layer.
type channels struct {
	place
	rows   int64
	absmax []float32
	out    []float32 // largest magnitudes of what was computed, nil with experts
	square []float64 // sum

	threshold float32 // of an outlier
	outliers  []calibration.Outlier
	count     []int64 // rows in which each outlier exceeds
	sketch    *sketch
}

// product is the matrix product of a step and the rows of float32 that it reads, nil where it has none.
func product(o *executor.Observed) (n *op.Node, rows func(yield func([]float32) bool), cols int, err error) {
	k := slices.IndexFunc(o.Graph.Nodes, func(n op.Node) bool { return n.Op.HasScheme() })
	if k < 0 {
		return nil, nil, 0, nil
	}
	n = &o.Graph.Nodes[k]
	i := slices.IndexFunc(o.Graph.Inputs, func(v op.Value) bool { return v.Name == n.In[0] })
	if i < 0 || o.In[i].Type != op.F32 {
		return nil, nil, 0, diag.New(diag.ClassRun, "observe %q: what the product reads is not a float32 input of its step", o.Node)
	}
	v := o.In[i]
	x, err := mem.View[float32](v.Bytes())
	if err != nil {
		return nil, nil, 0, fmt.Errorf("observe %q: %w", o.Node, err)
	}
	return n, func(yield func([]float32) bool) {
		for m := range o.Rows * (v.Rows / n.Op.M) { // with experts several a token
			if !yield(x[m*v.Stride : m*v.Stride+v.Cols]) {
				return
			}
		}
	}, v.Cols, nil
}

// Observe adds what a step has read and computed, if it is a matrix product. Executions are observed one after another.
func (r *Ranges) Observe(o executor.Observed) {
	if r.err != nil || r.stopped {
		return
	}
	n, rows, cols, err := product(&o)
	if err != nil {
		r.err = err
	}
	if n == nil {
		return
	}
	if r.index == nil {
		r.index = map[place]*channels{}
	}
	p := place{o.Node, o.Layer}
	c := r.index[p]
	if c == nil {
		c = &channels{place: p, absmax: make([]float32, cols), square: make([]float64, cols)}
		r.index[p] = c
		r.places = append(r.places, c)
	}
	if !r.again && n.Op.Kind == op.MatMul {
		if err := c.computed(&o, n); err != nil {
			r.err = fmt.Errorf("observe %q: %w", o.Node, err)
			return
		}
	}
	for row := range rows {
		if r.again {
			c.exceed(row)
			c.sketch.add(row)
		} else if err := c.add(row); err != nil {
			r.err = diag.New(diag.ClassRun, "observe %q in layer %d: %w", o.Node, o.Layer, err)
			return
		}
	}
}

// computed adds the result of a product.
func (c *channels) computed(o *executor.Observed, n *op.Node) error {
	i := slices.IndexFunc(o.Graph.Outputs, func(v op.Value) bool { return v.Name == n.Out[0] })
	if i < 0 || o.Out[i].Type != op.F32 {
		return diag.New(diag.ClassRun, "what the product computes is not a float32 output of its step")
	}
	v := o.Out[i]
	y, err := mem.View[float32](v.Bytes())
	if err != nil {
		return err
	}
	if c.out == nil {
		c.out = make([]float32, v.Cols)
	}
	for m := range min(o.Rows, v.Rows) {
		for j, x := range y[m*v.Stride : m*v.Stride+v.Cols] {
			c.out[j] = max(c.out[j], float32(math.Abs(float64(x))))
		}
	}
	return nil
}

func (c *channels) add(row []float32) error {
	c.rows++
	for i, v := range row {
		a := float32(math.Abs(float64(v)))
		if a > c.absmax[i] {
			c.absmax[i] = a
		}
		c.square[i] += float64(v) * float64(v)
		if v-v != 0 {
			return fmt.Errorf("channel %d is %v", i, v)
		}
	}
	return nil
}

func (c *channels) exceed(row []float32) {
	for j := range c.outliers {
		if v := row[c.outliers[j].Channel]; v > c.threshold || -v > c.threshold {
			c.count[j]++
		}
	}
}

// Again ends the first pass: the same windows are to be executed once more.
func (r *Ranges) Again() {
	r.again = true
	for _, c := range r.places {
		a := calibration.Activation{AbsMax: c.absmax}
		c.threshold = a.Summarise()
		c.outliers, c.count = a.Outliers, make([]int64, len(a.Outliers))
		c.sketch = newSketch(c.meanSquare())
	}
}

// Stop ends observing: what is executed from now on does not count.
func (r *Ranges) Stop() { r.stopped = true }

func (c *channels) meanSquare() []float32 {
	out := make([]float32, len(c.square))
	for i, s := range c.square {
		out[i] = float32(s / float64(c.rows))
	}
	return out
}

// Activations is what was observed, in the order of execution, with at most MaxRank directions.
func (r *Ranges) Activations(rank int) ([]calibration.Activation, error) {
	if r.err != nil {
		return nil, r.err
	}
	var out []calibration.Activation
	for _, c := range r.places {
		a := calibration.Activation{Class: c.node, Layer: c.layer, K: len(c.absmax), Rows: c.rows, AbsMax: c.absmax, OutMax: c.out}
		a.MeanSquare = c.meanSquare()
		a.Directions = c.sketch.directions(min(rank, MaxRank))
		a.Directions.Round()
		a.Summarise()
		for j := range a.Outliers {
			a.Outliers[j].Share = float64(c.count[j]) / float64(c.rows)
		}
		out = append(out, a)
	}
	return out, nil
}
