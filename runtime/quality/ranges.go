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
// executor, execute, and after Again the same once more. The second pass counts how often outlier channels exceed their
// threshold and finds which channels move together; both need what only the end of the first pass knows.
type Ranges struct {
	index  map[place]*channels
	places []*channels // in the order of execution
	// the second pass
	again bool

	stopped bool
	err     error
}

// place is a node of the graph in one layer.
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

// A rowProduct is the matrix product of a step: its node, and the rows [rows, cols] of float32 that it reads.
type rowProduct struct {
	node *op.Node
	rows func(yield func([]float32) bool)
	cols int
}

// product returns the matrix product of a step, nil where it has none.
func product(seen *executor.Observed) (*rowProduct, error) {
	index := slices.IndexFunc(seen.Graph.Nodes, func(candidate op.Node) bool { return candidate.Op.HasScheme() })
	if index < 0 {
		return nil, nil
	}
	// its first operand, where that enters the step from outside
	node := &seen.Graph.Nodes[index]
	i := slices.IndexFunc(seen.Graph.Inputs, func(value op.Value) bool { return value.Name == node.In[0] })
	if i < 0 || seen.In[i].Type != op.F32 {
		const other = "observe %q: what the product reads is not a float32 input of its step"
		return nil, diag.New(diag.ClassRun, other, seen.Node)
	}
	view := seen.In[i]
	values, err := mem.View[float32](view.Bytes())
	if err != nil {
		return nil, fmt.Errorf("observe %q: %w", seen.Node, err)
	}
	rows := func(yield func([]float32) bool) {
		for row := range seen.Rows * (view.Rows / node.Op.M) { // with experts several a token
			if !yield(values[row*view.Stride : row*view.Stride+view.Cols]) {
				return
			}
		}
	}
	return &rowProduct{node, rows, view.Cols}, nil
}

// Observe adds what a step has read and computed, if it is a matrix product. Executions are observed one after another.
// The first error is kept for Activations.
func (r *Ranges) Observe(seen executor.Observed) {
	if r.err == nil && !r.stopped {
		r.err = r.observe(&seen)
	}
}

// observe looks at the input of every product and, in the first pass, at what it computes.
func (r *Ranges) observe(seen *executor.Observed) error {
	step, err := product(seen)
	if step == nil {
		return err
	}
	at := r.at(place{seen.Node, seen.Layer}, step.cols)
	// the first pass finds ranges, the second what exceeds their thresholds
	if !r.again && step.node.Op.Kind == op.MatMul {
		if err := at.computed(seen, step.node); err != nil {
			return fmt.Errorf("observe %q: %w", seen.Node, err)
		}
	}
	for row := range step.rows {
		if r.again {
			at.exceed(row)
			at.sketch.add(row)
		} else if err := at.add(row); err != nil {
			return diag.New(diag.ClassRun, "observe %q in layer %d: %w", seen.Node, seen.Layer, err)
		}
	}
	return nil
}

// at returns what was collected of a place, new when it is seen first.
func (r *Ranges) at(at place, cols int) *channels {
	if r.index == nil {
		r.index = map[place]*channels{}
	}
	found := r.index[at]
	if found == nil {
		found = &channels{place: at, absmax: make([]float32, cols), square: make([]float64, cols)}
		r.index[at] = found
		r.places = append(r.places, found)
	}
	return found
}

// computed adds the result of a product.
func (c *channels) computed(seen *executor.Observed, node *op.Node) error {
	i := slices.IndexFunc(seen.Graph.Outputs, func(output op.Value) bool { return output.Name == node.Out[0] })
	if i < 0 || seen.Out[i].Type != op.F32 {
		return diag.New(diag.ClassRun, "what the product computes is not a float32 output of its step")
	}
	view := seen.Out[i]
	values, err := mem.View[float32](view.Bytes())
	if err != nil {
		return err
	}
	if c.out == nil {
		c.out = make([]float32, view.Cols)
	}
	for row := range min(seen.Rows, view.Rows) {
		for j, value := range values[row*view.Stride : row*view.Stride+view.Cols] {
			c.out[j] = max(c.out[j], float32(math.Abs(float64(value))))
		}
	}
	return nil
}

// add adds a row that was read. NaN and infinities are errors, since no range holds them.
func (c *channels) add(row []float32) error {
	c.rows++
	for i, value := range row {
		magnitude := float32(math.Abs(float64(value)))
		if magnitude > c.absmax[i] {
			c.absmax[i] = magnitude
		}
		c.square[i] += float64(value) * float64(value)
		if value-value != 0 {
			return fmt.Errorf("channel %d is %v", i, value)
		}
	}
	return nil
}

// exceed counts for each outlier channel whether it is beyond the threshold in a row.
func (c *channels) exceed(row []float32) {
	for j := range c.outliers {
		if value := row[c.outliers[j].Channel]; value > c.threshold || -value > c.threshold {
			c.count[j]++
		}
	}
}

// Again ends the first pass: the same windows are to be executed once more. Later calls change nothing.
func (r *Ranges) Again() {
	if r.again {
		return
	}
	r.again = true
	for _, found := range r.places {
		activation := calibration.Activation{AbsMax: found.absmax}
		found.threshold = activation.Summarise()
		found.outliers, found.count = activation.Outliers, make([]int64, len(activation.Outliers))
		found.sketch = newSketch(found.meanSquare())
	}
}

// Stop ends observing: what is executed from now on does not count.
func (r *Ranges) Stop() { r.stopped = true }

// meanSquare returns the mean of the squares of each channel.
func (c *channels) meanSquare() []float32 {
	out := make([]float32, len(c.square))
	for i, sum := range c.square {
		out[i] = float32(sum / float64(c.rows))
	}
	return out
}

// Activations returns what was observed, in the order of execution, with at most MaxRank directions.
func (r *Ranges) Activations(rank int) ([]calibration.Activation, error) {
	if r.err != nil {
		return nil, r.err
	}
	var out []calibration.Activation
	for _, found := range r.places {
		activation := calibration.Activation{
			Class: found.node, Layer: found.layer, K: len(found.absmax), Rows: found.rows,
			AbsMax: found.absmax, MeanSquare: found.meanSquare(), OutMax: found.out,
		}
		if rank > 0 {
			activation.Directions = found.sketch.directions(min(rank, MaxRank))
			activation.Directions.Round()
		}
		activation.Summarise()
		for j := range activation.Outliers {
			activation.Outliers[j].Share = float64(found.count[j]) / float64(found.rows)
		}
		out = append(out, activation)
	}
	return out, nil
}
