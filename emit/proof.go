package emit

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// A graph is tried on values that nobody chose: pseudo-random numbers from its own shape, as large as the calibration says
// that its inputs are. What the vendor's emulator computes with the compiled binary is compared with two others: the
// same operators in float32 on the values that the packed weights stand for, and the uncompiled model in another engine.
//
// Bounds are of the relative error in the Euclidean norm, for one product; a graph may have as many times that as it has
// products. Against the other engine they are three times what the emulator of the oldest target (v69) differed by on
// products of 2048 x 2048: 1.1e-2 with 8-bit activations, 1.1e-3 with 16-bit ones and 8-bit weights, 1.2e-3 with 4-bit ones,
// 1e-5 in half precision, 4e-4 with 4-bit blocks. Against float32 rounding of activations comes on top: 8 bits of one scale leave
// about 1 %, and half precision half a unit of its 11th bit for every operator.
type bound struct{ float, portable float64 }

var bounds = map[op.Scheme]bound{
	op.A8SQ8C:  {5e-2, 3.3e-2},
	op.A8TQ8C:  {5e-2, 3.3e-2},
	op.A16SQ8C: {5e-3, 3.3e-3},
	op.A16SQ4C: {5e-3, 3.6e-3},
}

// halfBound is that of everything that is computed in half precision: schemes a16f, and operators on rows.
var halfBound = bound{5e-3, 3e-3}

// boundOf is that of a graph.
func boundOf(g *op.Graph) bound {
	total := bound{}
	products := slices.ContainsFunc(g.Nodes, func(n op.Node) bool { return n.Op.HasScheme() })
	for _, node := range g.Nodes {
		one, ok := bounds[node.Op.Scheme]
		switch {
		case node.Op.Kind == op.QuantRows && products:
			continue // what rounding loses is in their bounds
		case node.Op.Kind == op.QuantRows:
			one = bounds[op.A8SQ8C]
		case !ok:
			one = halfBound
		}
		if node.Op.HasScheme() || total.float == 0 {
			total.float, total.portable = total.float+one.float, total.portable+one.portable
		}
	}
	return total
}

// trial is how a graph did.
type trial struct {
	float, portable float64 // relative errors
	bound           bound
}

// proof computes references on a thread of its own.
type oracle struct {
	driver driver.Driver
	jobs   chan func(driver.Processor)
	failed error
}

func newOracle(d driver.Driver) *oracle { return &oracle{driver: d} }

// do runs f with the processor of the oracle.
func (p *oracle) do(ctx context.Context, work func(driver.Processor) error) error {
	if p.jobs == nil && p.failed == nil {
		p.failed = p.start(ctx)
	}
	if p.failed != nil {
		return p.failed
	}
	done := make(chan error, 1)
	p.jobs <- func(x driver.Processor) { done <- work(x) }
	return <-done
}

func (p *oracle) start(ctx context.Context) error {
	devices, err := p.driver.Devices(ctx)
	if err != nil {
		return err
	}
	widest := slices.MaxFunc(devices, func(a, b driver.Device) int { return len(a.Cores) - len(b.Cores) })
	proc, err := p.driver.Open(ctx, driver.Config{Select: widest.Select})
	if err != nil {
		return err
	}
	jobs, begun := make(chan func(driver.Processor)), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: see driver.Processor
		err := proc.Attach()
		begun <- err
		for work := range jobs {
			work(proc)
		}
		_ = proc.Close() // it holds memory only
	}()
	p.jobs = jobs
	return <-begun
}

func (p *oracle) close() {
	if p.jobs != nil {
		close(p.jobs)
	}
}

// sample is values of a graph's inputs, and what float32 makes of them.
type sample struct {
	in   [][]byte
	want [][]float32 // of each output; nil for one that float32 does not have
}

// fullScale is which part of the largest value that a grid holds a sample is brought to.
const fullScale = 0.75

// sample makes one of a graph with its weights.
func (p *oracle) sample(ctx context.Context, graph *op.Graph, w driver.Weights) (*sample, error) {
	if graph.State() {
		return nil, diag.New(diag.ClassInfeasible, "it uses the cache, and nothing says what that held")
	}
	float := &floatGraph{}
	defer float.close()
	if err := float.rewrite(graph, w); err != nil {
		return nil, err
	}
	text, err := json.Marshal(graph)
	if err != nil {
		return nil, err
	}
	seed := fnv.New64a()
	_, _ = seed.Write(text)
	rng := rand.New(rand.NewPCG(seed.Sum64(), 0))
	base := make([][]float32, len(float.graph.Inputs))
	for i, value := range float.graph.Inputs {
		base[i] = make([]float32, value.Rows*value.Cols)
		for at := range base[i] {
			base[i][at] = float32(2*rng.Float64() - 1)
		}
	}
	// Inputs are made smaller until nothing leaves the range that the calibration gave it.
	scale := 1.0
	for range 12 {
		made := &sample{}
		in := make([][]float32, len(base))
		for i := range base {
			in[i] = make([]float32, len(base[i]))
			for at, value := range base[i] {
				in[i][at] = float32(float64(value) * float64(scale) * float64(float.amplitude[i]))
			}
		}
		made.in = float.bind(graph, in) // rounds what enters as 8 bits
		out, err := p.run(ctx, float, in)
		if err != nil {
			return nil, err
		}
		worst := 0.0
		for _, limit := range float.limits {
			for _, value := range out[limit.output] {
				worst = max(worst, math.Abs(float64(value))/float64(limit.most))
			}
		}
		if worst > 1 {
			scale *= fullScale / worst
			continue
		}
		made.want = make([][]float32, len(graph.Outputs))
		for i := range graph.Outputs {
			if at := float.outputs[i]; at >= 0 {
				made.want[i] = out[at]
			}
		}
		return made, nil
	}
	return nil, diag.New(diag.ClassRun, "no inputs were found whose results stay within the ranges of the calibration")
}

// floats is a graph in float32: products by the values that the packed weights stand for, and no rounding of activations.
type floatGraph struct {
	graph     op.Graph
	weights   driver.Weights
	regions   []*mem.Region
	amplitude []float32     // of each input, its largest value
	outputs   []int         // of the original graph's outputs, the places among graph.Outputs; -1: scales
	limits    []outputLimit // of values that a grid holds
	from      []int         // of the original graph's inputs, the places among graph.Inputs; -1: scales
}

type outputLimit struct {
	output int
	most   float32
}

func (f *floatGraph) close() {
	for _, region := range f.regions {
		_ = region.Close() // memory only
	}
}

// rewrite makes f the graph in float32. Quantised rows are the values they stand for, clipped where their scale is static; their scales are gone.
func (f *floatGraph) rewrite(graph *op.Graph, w driver.Weights) error {
	weights := map[string]driver.Packed{}
	for i, spec := range graph.Weights {
		weights[spec.Name] = w[i]
	}
	scales := map[string]bool{} // values that are scales of rows
	alias := map[string]string{}
	for _, node := range graph.Nodes {
		switch {
		case node.Op.Kind == op.QuantRows:
			scales[node.Out[1]] = true
			if len(node.W) == 0 { // static scales saturate, which float32 imitates
				alias[node.Out[0]] = node.In[0]
			}
		case node.Op.HasScheme() && node.Op.Scheme.QuantisedRows():
			scales[node.In[1]] = true
		}
	}
	real := func(name string) string {
		for alias[name] != "" {
			name = alias[name]
		}
		return name
	}
	steps := map[string]float32{} // of values on a grid, the largest magnitude
	holds := map[string]float32{} // of values with a static scale
	plain := func(spec op.WeightSpec, values []float32) error {
		bytes, err := pack.Bytes(spec)
		if err != nil {
			return err
		}
		region, err := mem.Alloc(int(bytes), driver.Align)
		if err != nil {
			return err
		}
		f.regions = append(f.regions, region)
		src, err := pack.Floats(values, spec.K, spec.N)
		if err == nil {
			err = pack.Pack(region.Bytes(), spec, src)
		}
		if err != nil {
			return err
		}
		f.graph.Weights = append(f.graph.Weights, spec)
		f.weights = append(f.weights, driver.Packed{Spec: spec, Bytes: region.Bytes()})
		return nil
	}
	unpacked := func(name string) (driver.Packed, []float32, error) {
		stored := weights[name]
		values := make([]float32, stored.Spec.K*stored.Spec.N)
		return stored, values, pack.Unpack(values, stored.Spec, stored.Bytes)
	}
	done := map[string]bool{}
	for _, node := range graph.Nodes {
		if node.Op.Kind == op.QuantRows {
			if len(node.W) > 0 {
				_, values, err := unpacked(node.W[0])
				if err != nil {
					return err
				}
				most := 127 * values[len(values)-1]
				holds[node.In[0]] = most
				f.graph.Nodes = append(f.graph.Nodes, op.Node{Op: op.Op{Kind: op.Clip, M: node.Op.Rows(), N: node.Op.N, Cap: float64(most)}, In: []string{real(node.In[0])}, Out: node.Out[:1]})
			}
			continue
		}
		product := op.Node{Op: node.Op}
		for _, name := range node.In {
			if !scales[name] {
				product.In = append(product.In, real(name))
			}
		}
		product.Out = node.Out
		roles := node.Op.Sig().W
		if node.Op.Kind == op.ExpertMatMul {
			return diag.New(diag.ClassInfeasible, "products by experts are not tried")
		}
		if node.Op.Kind == op.MatMul {
			product.Op.Scheme, product.Op.Form = op.A32W32, ""
		}
		for i, name := range node.W {
			stored, values, err := unpacked(name)
			if err != nil {
				return err
			}
			if roles[i] == "steps" {
				set := func(value string, step float32) {
					most := op.GridMax * step
					if old, ok := steps[value]; !ok || most < old {
						steps[value] = most
					}
				}
				set(product.In[0], values[0])
				set(node.Out[0], values[stored.Spec.N])
				continue
			}
			spec := op.WeightSpec{Name: name, K: stored.Spec.K, N: stored.Spec.N, Scheme: string(op.F32), Layout: op.RowsLayout}
			if node.Op.Kind == op.MatMul && roles[i] == "weight" {
				spec.Scheme, spec.Layout = op.A32W32.Weight(), pack.N32
			}
			if !done[name] {
				if err := plain(spec, values); err != nil {
					return err
				}
				done[name] = true
			}
			product.W = append(product.W, name)
		}
		f.graph.Nodes = append(f.graph.Nodes, product)
	}
	as := func(v op.Value) op.Value {
		if v.Type == op.U8 {
			v.Type = op.F32
		}
		return v
	}
	place := map[string]int{}
	for _, value := range graph.Inputs {
		if scales[value.Name] {
			f.from = append(f.from, -1)
			continue
		}
		if value.Type != op.F32 && value.Type != op.U8 {
			return diag.New(diag.ClassInfeasible, "inputs of type %s are not tried", value.Type)
		}
		f.from = append(f.from, len(f.graph.Inputs))
		f.graph.Inputs = append(f.graph.Inputs, as(value))
		amplitude := float32(math.Sqrt(3)) // a deviation of 1
		if most, ok := steps[value.Name]; ok {
			amplitude = most / 2 // the largest that was seen
		} else if most, ok := holds[value.Name]; ok {
			amplitude = most
		}
		f.amplitude = append(f.amplitude, amplitude)
	}
	output := func(v op.Value) int {
		if at, ok := place[v.Name]; ok {
			return at
		}
		place[v.Name] = len(f.graph.Outputs)
		f.graph.Outputs = append(f.graph.Outputs, as(v))
		return place[v.Name]
	}
	for _, value := range graph.Outputs {
		at := -1
		if !scales[value.Name] {
			value.Name = real(value.Name)
			at = output(value)
		}
		f.outputs = append(f.outputs, at)
	}
	for _, value := range slices.Concat(graph.Temps, graph.Outputs) {
		if scales[value.Name] || alias[value.Name] != "" {
			continue
		}
		if most, ok := steps[value.Name]; ok {
			f.limits = append(f.limits, outputLimit{output(value), most})
		} else if _, is := place[value.Name]; !is {
			f.graph.Temps = append(f.graph.Temps, as(value))
		}
	}
	if err := f.graph.Validate(); err != nil {
		return fmt.Errorf("in float32: %w", err)
	}
	return nil
}

// bind are the original graph's inputs for those of its float32 form, which it changes to what these stand for.
func (f *floatGraph) bind(graph *op.Graph, in [][]float32) [][]byte {
	out := make([][]byte, len(graph.Inputs))
	bytesOf := func(v []float32) []byte {
		raw := make([]byte, 4*len(v))
		for i, number := range v {
			binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(number))
		}
		return raw
	}
	// Scales follow from the rows they belong to, as op.QuantRows has it.
	scales := map[string]string{}
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
		if f.from[i] < 0 {
			continue
		}
		values := in[f.from[i]]
		if value.Type != op.U8 {
			out[i] = bytesOf(values)
			continue
		}
		codes, rows := make([]byte, len(values)), make([]float32, value.Rows)
		for at := range value.Rows {
			row := values[at*value.Cols : (at+1)*value.Cols]
			most := float32(0)
			for _, number := range row {
				most = max(most, float32(math.Abs(float64(number))))
			}
			step := most / 127
			if step == 0 {
				step = 1
			}
			rows[at] = step
			for col, number := range row {
				code := math.RoundToEven(float64(number / step))
				codes[at*value.Cols+col] = byte(int(code) + 128)
				row[col] = float32(code) * step
			}
		}
		out[i] = codes
		if of, ok := at[scales[value.Name]]; ok {
			out[of] = bytesOf(rows)
		}
	}
	return out
}

// run executes the graph in float32.
func (p *oracle) run(ctx context.Context, float *floatGraph, in [][]float32) (out [][]float32, err error) {
	code, err := json.Marshal(&float.graph)
	if err != nil {
		return nil, err
	}
	err = p.do(ctx, func(proc driver.Processor) error {
		exe, err := proc.Load(ctx, driver.Artifact{Driver: p.driver.Name(), Code: code}, float.weights)
		if err != nil {
			return err
		}
		defer exe.Close()
		rows := float.graph.Rows()
		bindings := driver.Bindings{Scalars: &driver.Scalars{Rows: rows, KVLen: rows, Seq: rows}}
		buffers := map[string]driver.View{}
		view := func(value op.Value) (driver.View, error) {
			if have, ok := buffers[value.Name]; ok { // changed in place
				return have, nil
			}
			buf, err := proc.Alloc(4 * int64(value.Rows) * int64(value.Cols))
			if err != nil {
				return driver.View{}, err
			}
			buffers[value.Name] = driver.View{Buffer: buf, Type: op.F32, Rows: value.Rows, Cols: value.Cols, Stride: value.Cols}
			return buffers[value.Name], nil
		}
		defer func() {
			for _, view := range buffers {
				_ = view.Buffer.Close() // memory only
			}
		}()
		for i, value := range float.graph.Inputs {
			bound, err := view(value)
			if err != nil {
				return err
			}
			for at, number := range in[i] {
				binary.LittleEndian.PutUint32(bound.Buffer.Bytes()[4*at:], math.Float32bits(number))
			}
			bindings.In = append(bindings.In, bound)
		}
		for _, value := range float.graph.Outputs {
			out, err := view(value)
			if err != nil {
				return err
			}
			bindings.Out = append(bindings.Out, out)
		}
		if _, err := proc.Run(exe, &bindings); err != nil {
			return err
		}
		for _, view := range bindings.Out {
			out = append(out, numbers(view.Buffer.Bytes()[:4*view.Rows*view.Cols]))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("compute the reference in float32: %w", err)
	}
	return out, nil
}

// numbers are float32 values.
func numbers(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

// judge compares what was computed with what should have been. An error refuses the graph.
func (s *sample) judge(graph *op.Graph, a *driver.BakedArtifact) (*trial, error) {
	result := &trial{bound: boundOf(graph)}
	if len(a.Emulated) != len(graph.Outputs) || len(a.Portable) != len(graph.Outputs) {
		return nil, diag.New(diag.ClassRun, "its sample was not executed: %d and %d outputs, want %d", len(a.Emulated), len(a.Portable), len(graph.Outputs))
	}
	emulated, portable := s.values(graph, a.Emulated), s.values(graph, a.Portable)
	for i := range graph.Outputs {
		if s.want[i] == nil {
			continue
		}
		if len(emulated[i]) != len(s.want[i]) || len(portable[i]) != len(s.want[i]) {
			return nil, diag.New(diag.ClassRun, "output %q of its sample has %d and %d values, want %d", graph.Outputs[i].Name, len(emulated[i]), len(portable[i]), len(s.want[i]))
		}
		// The worst output counts: a large one must not hide a small one that is wrong.
		result.float = max(result.float, relative(emulated[i], s.want[i]))
		result.portable = max(result.portable, relative(emulated[i], portable[i]))
	}
	return result, result.err()
}

// err refuses a graph beyond its bound.
func (t *trial) err() error {
	var wrong []string
	if !(t.float <= t.bound.float) {
		wrong = append(wrong, fmt.Sprintf("%.2g from float32, want at most %.2g", t.float, t.bound.float))
	}
	if !(t.portable <= t.bound.portable) {
		wrong = append(wrong, fmt.Sprintf("%.2g from the uncompiled model in another engine, want at most %.2g", t.portable, t.bound.portable))
	}
	if len(wrong) == 0 {
		return nil
	}
	return diag.New(diag.ClassRun, "executed by the emulator it differs by a relative error of %s", strings.Join(wrong, ", and "))
}

// values are the outputs as numbers; quantised rows as what they stand for.
func (s *sample) values(graph *op.Graph, out [][]byte) [][]float32 {
	scale := map[string]string{}
	for _, node := range graph.Nodes {
		if node.Op.Kind == op.QuantRows {
			scale[node.Out[0]] = node.Out[1]
		}
	}
	at := map[string]int{}
	for i, value := range graph.Outputs {
		at[value.Name] = i
	}
	res := make([][]float32, len(out))
	for i, value := range graph.Outputs {
		if value.Type != op.U8 {
			res[i] = numbers(out[i])
			continue
		}
		of, ok := at[scale[value.Name]]
		if !ok || len(out[of]) < 4*value.Rows || len(out[i]) < value.Rows*value.Cols {
			continue // a length that judge refuses
		}
		steps := numbers(out[of])
		for row := range value.Rows {
			for col := range value.Cols {
				res[i] = append(res[i], float32(int(out[i][row*value.Cols+col])-128)*steps[row])
			}
		}
	}
	return res
}

// relative is the Euclidean norm of a-b over that of b; infinite for what is no number.
func relative(a, b []float32) float64 {
	var diff, size float64
	for i := range a {
		off := float64(a[i]) - float64(b[i])
		diff += float64(off * off)
		size += float64(float64(b[i]) * float64(b[i]))
	}
	ratio := math.Sqrt(diff / max(size, math.SmallestNonzeroFloat64))
	if math.IsNaN(ratio) {
		return math.Inf(1)
	}
	return ratio
}
