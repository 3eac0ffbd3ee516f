package emit

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// floatGraph is a graph in float32: products use the values that the packed weights stand for, and activations are
// not rounded. Quantised rows become the values they stand for, and their scales disappear.
//
// It is the reference for the compiled graph. Only rounding of activations and sums may differ, which agreement.go
// bounds.
type floatGraph struct {
	graph     op.Graph
	weights   driver.Weights
	regions   []*mem.Region // of the weights
	amplitude []float32     // of each input, its largest value
	outputs   []int         // of the original graph's outputs, the places among graph.Outputs; -1: scales
	limits    []outputLimit // of values that a grid holds
	from      []int         // of the original graph's inputs, the places among graph.Inputs; -1: scales
}

// outputLimit is the largest magnitude that the grid of an output holds.
type outputLimit struct {
	output int // place among graph.Outputs
	most   float32
}

// close frees the weights.
func (f *floatGraph) close() {
	for _, region := range f.regions {
		_ = region.Close() // memory only
	}
}

// gridOverflow returns how many times the largest value fills its grid, over all outputs that have one.
func (f *floatGraph) gridOverflow(out [][]float32) float64 {
	worst := 0.0
	for _, limit := range f.limits {
		for _, value := range out[limit.output] {
			worst = max(worst, math.Abs(float64(value))/float64(limit.most))
		}
	}
	return worst
}

// floatBuilder rewrites a graph in float32, in one pass over its nodes and then over its values. What it learns of a
// value on the way decides about inputs and outputs at the end.
type floatBuilder struct {
	*floatGraph
	packed map[string]driver.Packed // weights of the original graph by their names
	scales map[string]bool          // values that are scales of rows
	alias  map[string]string        // of rows with a scale each, the value that they are made of
	grids  map[string]float32       // of values on a 16-bit grid, the largest magnitude
	clips  map[string]float32       // of values that a static scale bounds, the largest magnitude
	made   map[string]bool          // weights that the float32 graph has
	places map[string]int           // of outputs
}

// newFloatGraph rewrites a graph. The result is closed even after an error.
func newFloatGraph(graph *op.Graph, weights driver.Weights) (*floatGraph, error) {
	builder := &floatBuilder{
		floatGraph: &floatGraph{}, packed: map[string]driver.Packed{}, scales: map[string]bool{},
		alias: map[string]string{}, grids: map[string]float32{}, clips: map[string]float32{},
		made: map[string]bool{}, places: map[string]int{},
	}
	for i, spec := range graph.Weights {
		builder.packed[spec.Name] = weights[i]
	}
	builder.findScales(graph)
	for i := range graph.Nodes {
		if err := builder.addNode(&graph.Nodes[i]); err != nil {
			return builder.floatGraph, err
		}
	}
	for _, value := range graph.Inputs {
		if err := builder.addInput(value); err != nil {
			return builder.floatGraph, err
		}
	}
	builder.addOutputs(graph)
	if err := builder.graph.Validate(); err != nil {
		return builder.floatGraph, fmt.Errorf("in float32: %w", err)
	}
	return builder.floatGraph, nil
}

// findScales finds the values that only exist because rows are quantised. Rows with a scale each are as good as
// their source; static scales saturate, which node imitates.
func (b *floatBuilder) findScales(graph *op.Graph) {
	for _, node := range graph.Nodes {
		switch {
		case node.Op.Kind == op.QuantRows:
			b.scales[node.Out[1]] = true
			if len(node.W) == 0 {
				b.alias[node.Out[0]] = node.In[0]
			}
		case node.Op.HasScheme() && node.Op.Scheme.QuantisedRows():
			b.scales[node.In[1]] = true
		}
	}
}

// sourceOf returns the value that stands for one of the original graph.
func (b *floatBuilder) sourceOf(name string) string {
	for b.alias[name] != "" {
		name = b.alias[name]
	}
	return name
}

// addNode rewrites a node: quantisation with a static scale becomes a bound, other quantisation nothing, and everything
// else the same operator in float32.
func (b *floatBuilder) addNode(node *op.Node) error {
	switch {
	case node.Op.Kind == op.ExpertMatMul:
		return diag.New(diag.ClassInfeasible, "products by experts are not tried")
	case node.Op.Kind == op.QuantRows && len(node.W) == 0:
		return nil
	case node.Op.Kind == op.QuantRows:
		_, scales, err := b.unpacked(node.W[0])
		if err != nil {
			return err
		}
		// A static scale saturates: values beyond 127 steps of the widest scale are cut off, which a clip imitates.
		most := 127 * scales[len(scales)-1]
		b.clips[node.In[0]] = most
		clip := op.Op{Kind: op.Clip, M: node.Op.Rows(), N: node.Op.N, Cap: float64(most)}
		in := []string{b.sourceOf(node.In[0])}
		b.graph.Nodes = append(b.graph.Nodes, op.Node{Op: clip, In: in, Out: node.Out[:1]})
		return nil
	}
	// The same node without scales among its inputs, and with weights in float32.
	out := op.Node{Op: node.Op, Out: node.Out}
	for _, name := range node.In {
		if !b.scales[name] {
			out.In = append(out.In, b.sourceOf(name))
		}
	}
	if node.Op.HasScheme() {
		out.Op.Scheme, out.Op.Form = op.A32W32, ""
	}
	roles := node.Op.Sig().W
	for i, name := range node.W {
		if roles[i] == "steps" {
			if err := b.noteSteps(name, out.In[0], node.Out[0]); err != nil {
				return err
			}
			continue
		}
		if err := b.addWeight(name, node.Op.HasScheme() && strings.HasPrefix(roles[i], "weight")); err != nil {
			return err
		}
		out.W = append(out.W, name)
	}
	b.graph.Nodes = append(b.graph.Nodes, out)
	return nil
}

// unpacked returns a weight of the original graph and the values [K,N] that it stands for.
func (b *floatBuilder) unpacked(name string) (driver.Packed, []float32, error) {
	stored := b.packed[name]
	values := make([]float32, stored.Spec.K*stored.Spec.N)
	return stored, values, pack.Unpack(values, stored.Spec, stored.Bytes)
}

// noteSteps notes the grids of what a product reads and writes, the finest where several do. The weight is [2,N]: the
// step of the input, and that of the result.
func (b *floatBuilder) noteSteps(name, in, out string) error {
	stored, values, err := b.unpacked(name)
	if err != nil {
		return err
	}
	b.noteGrid(in, op.GridMax*values[0])
	b.noteGrid(out, op.GridMax*values[stored.Spec.N])
	return nil
}

// noteGrid notes the largest magnitude that the grid of a value holds; the finest grid counts.
func (b *floatBuilder) noteGrid(value string, most float32) {
	if known, ok := b.grids[value]; !ok || most < known {
		b.grids[value] = most
	}
}

// addWeight packs a weight in float32, once.
func (b *floatBuilder) addWeight(name string, matrix bool) error {
	if b.made[name] {
		return nil
	}
	b.made[name] = true
	stored, values, err := b.unpacked(name)
	if err != nil {
		return err
	}
	spec := op.WeightSpec{Name: name, K: stored.Spec.K, N: stored.Spec.N, Scheme: string(op.F32), Layout: op.RowsLayout}
	if matrix {
		spec.Scheme, spec.Layout = op.A32W32.Weight(), pack.N32
	}
	bytes, err := pack.Bytes(spec)
	if err != nil {
		return err
	}
	region, err := mem.Alloc(int(bytes), driver.Align)
	if err != nil {
		return err
	}
	b.regions = append(b.regions, region)
	source, err := pack.Floats(values, spec.K, spec.N)
	if err != nil {
		return err
	}
	if err := pack.Pack(region.Bytes(), spec, source); err != nil {
		return err
	}
	b.graph.Weights = append(b.graph.Weights, spec)
	b.weights = append(b.weights, driver.Packed{Spec: spec, Bytes: region.Bytes()})
	return nil
}

// addInput takes an input over, unless it is a scale, and says how large its values are.
func (b *floatBuilder) addInput(value op.Value) error {
	if b.scales[value.Name] {
		b.from = append(b.from, -1)
		return nil
	}
	if value.Type != op.F32 && value.Type != op.U8 {
		return diag.New(diag.ClassInfeasible, "inputs of type %s are not tried", value.Type)
	}
	b.from = append(b.from, len(b.graph.Inputs))
	b.graph.Inputs = append(b.graph.Inputs, asFloat(value))
	amplitude := float32(math.Sqrt(3)) // a deviation of 1
	if most, ok := b.grids[value.Name]; ok {
		amplitude = most / 2 // the largest that was seen
	} else if most, ok := b.clips[value.Name]; ok {
		amplitude = most
	}
	b.amplitude = append(b.amplitude, amplitude)
	return nil
}

// asFloat returns a value of the float32 graph: 8-bit rows are numbers there.
func asFloat(value op.Value) op.Value {
	if value.Type == op.U8 {
		value.Type = op.F32
	}
	return value
}

// addOutput adds a value to the outputs, once, and returns its place among them.
func (b *floatBuilder) addOutput(value op.Value) int {
	at, ok := b.places[value.Name]
	if !ok {
		at = len(b.graph.Outputs)
		b.places[value.Name] = at
		b.graph.Outputs = append(b.graph.Outputs, asFloat(value))
	}
	return at
}

// addOutputs takes outputs and temporary values over. Values on a grid become outputs, so that their size is seen.
func (b *floatBuilder) addOutputs(graph *op.Graph) {
	for _, value := range graph.Outputs {
		at := -1
		if !b.scales[value.Name] {
			value.Name = b.sourceOf(value.Name)
			at = b.addOutput(value)
		}
		b.outputs = append(b.outputs, at)
	}
	// What is left is temporary, unless its size must be checked against a grid.
	for _, value := range slices.Concat(graph.Temps, graph.Outputs) {
		if b.scales[value.Name] || b.alias[value.Name] != "" {
			continue
		}
		if most, ok := b.grids[value.Name]; ok {
			b.limits = append(b.limits, outputLimit{b.addOutput(value), most})
		} else if _, is := b.places[value.Name]; !is {
			b.graph.Temps = append(b.graph.Temps, asFloat(value))
		}
	}
}

// bind makes the original graph's inputs of those of its float32 form. It changes in to what the original inputs
// stand for: rows that enter as 8 bits are rounded, with a scale for each row as op.QuantRows has it.
func (f *floatGraph) bind(graph *op.Graph, in [][]float32) [][]byte {
	out := make([][]byte, len(graph.Inputs))
	// Scales are inputs of their own; the products say which rows they belong to.
	scales := map[string]string{} // by the rows they belong to
	for _, node := range graph.Nodes {
		if node.Op.HasScheme() && node.Op.Scheme.QuantisedRows() {
			scales[node.In[0]] = node.In[1]
		}
	}
	at := map[string]int{}
	for i, value := range graph.Inputs {
		at[value.Name] = i
	}
	for i, value := range graph.Inputs {
		switch {
		case f.from[i] < 0:
		case value.Type != op.U8:
			out[i] = number.Bytes(in[f.from[i]])
		default:
			codes, steps := quantiseRows(in[f.from[i]], value.Rows, value.Cols)
			out[i] = codes
			if of, ok := at[scales[value.Name]]; ok {
				out[of] = number.Bytes(steps)
			}
		}
	}
	return out
}

// quantiseRows rounds rows [rows,cols] to symmetric 8-bit codes around 128. It returns the codes and the step of
// each row, and leaves in values what the codes stand for.
func quantiseRows(values []float32, rows, cols int) (codes []byte, steps []float32) {
	codes, steps = make([]byte, len(values)), make([]float32, rows)
	for i := range rows {
		row := values[i*cols : (i+1)*cols]
		most := float32(0)
		for _, value := range row {
			most = max(most, float32(math.Abs(float64(value))))
		}
		step := most / 127
		if step == 0 {
			step = 1
		}
		steps[i] = step
		for col, value := range row {
			code := math.RoundToEven(float64(value / step))
			codes[i*cols+col] = byte(int(code) + 128)
			row[col] = float32(code) * step
		}
	}
	return codes, steps
}
