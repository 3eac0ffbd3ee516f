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
	b := bound{}
	products := slices.ContainsFunc(g.Nodes, func(n op.Node) bool { return n.Op.HasScheme() })
	for _, n := range g.Nodes {
		one, ok := bounds[n.Op.Scheme]
		switch {
		case n.Op.Kind == op.QuantRows && products:
			continue // what rounding loses is in their bounds
		case n.Op.Kind == op.QuantRows:
			one = bounds[op.A8SQ8C]
		case !ok:
			one = halfBound
		}
		if n.Op.HasScheme() || b.float == 0 {
			b.float, b.portable = b.float+one.float, b.portable+one.portable
		}
	}
	return b
}

// trial is how a graph did.
type trial struct {
	float, portable float64 // relative errors
	bound           bound
}

// proof computes references on a thread of its own.
type proof struct {
	driver driver.Driver
	jobs   chan func(driver.Processor)
	failed error
}

func newProof(d driver.Driver) *proof { return &proof{driver: d} }

// do runs f with the processor of the oracle.
func (p *proof) do(ctx context.Context, f func(driver.Processor) error) error {
	if p.jobs == nil && p.failed == nil {
		p.failed = p.start(ctx)
	}
	if p.failed != nil {
		return p.failed
	}
	done := make(chan error, 1)
	p.jobs <- func(x driver.Processor) { done <- f(x) }
	return <-done
}

func (p *proof) start(ctx context.Context) error {
	devices, err := p.driver.Devices(ctx)
	if err != nil {
		return err
	}
	widest := slices.MaxFunc(devices, func(a, b driver.Device) int { return len(a.Cores) - len(b.Cores) })
	x, err := p.driver.Open(ctx, driver.Config{Select: widest.Select})
	if err != nil {
		return err
	}
	jobs, begun := make(chan func(driver.Processor)), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: see driver.Processor
		err := x.Attach()
		begun <- err
		for f := range jobs {
			f(x)
		}
		_ = x.Close() // it holds memory only
	}()
	p.jobs = jobs
	return <-begun
}

func (p *proof) close() {
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
func (p *proof) sample(ctx context.Context, g *op.Graph, w driver.Weights) (*sample, error) {
	if g.State() {
		return nil, diag.New(diag.ClassInfeasible, "it uses the cache, and nothing says what that held")
	}
	f := &floats{}
	defer f.close()
	if err := f.rewrite(g, w); err != nil {
		return nil, err
	}
	text, err := json.Marshal(g)
	if err != nil {
		return nil, err
	}
	seed := fnv.New64a()
	_, _ = seed.Write(text)
	rng := rand.New(rand.NewPCG(seed.Sum64(), 0))
	base := make([][]float32, len(f.graph.Inputs))
	for i, v := range f.graph.Inputs {
		base[i] = make([]float32, v.Rows*v.Cols)
		for k := range base[i] {
			base[i][k] = float32(2*rng.Float64() - 1)
		}
	}
	// Inputs are made smaller until nothing leaves the range that the calibration gave it.
	scale := 1.0
	for range 12 {
		s := &sample{}
		in := make([][]float32, len(base))
		for i := range base {
			in[i] = make([]float32, len(base[i]))
			for k, x := range base[i] {
				in[i][k] = float32(float64(x) * float64(scale) * float64(f.amplitude[i]))
			}
		}
		s.in = f.bind(g, in) // rounds what enters as 8 bits
		out, err := p.run(ctx, f, in)
		if err != nil {
			return nil, err
		}
		worst := 0.0
		for _, l := range f.limits {
			for _, x := range out[l.output] {
				worst = max(worst, math.Abs(float64(x))/float64(l.most))
			}
		}
		if worst > 1 {
			scale *= fullScale / worst
			continue
		}
		s.want = make([][]float32, len(g.Outputs))
		for i := range g.Outputs {
			if k := f.outputs[i]; k >= 0 {
				s.want[i] = out[k]
			}
		}
		return s, nil
	}
	return nil, diag.New(diag.ClassRun, "no inputs were found whose results stay within the ranges of the calibration")
}

// floats is a graph in float32: products by the values that the packed weights stand for, and no rounding of activations.
type floats struct {
	graph     op.Graph
	weights   driver.Weights
	regions   []*mem.Region
	amplitude []float32 // of each input, its largest value
	outputs   []int     // of the original graph's outputs, the places among graph.Outputs; -1: scales
	limits    []limit   // of values that a grid holds
	from      []int     // of the original graph's inputs, the places among graph.Inputs; -1: scales
}

type limit struct {
	output int
	most   float32
}

func (f *floats) close() {
	for _, r := range f.regions {
		_ = r.Close() // memory only
	}
}

// rewrite makes f the graph in float32. Quantised rows are the values they stand for, clipped where their scale is static; their scales are gone.
func (f *floats) rewrite(g *op.Graph, w driver.Weights) error {
	weights := map[string]driver.Packed{}
	for i, spec := range g.Weights {
		weights[spec.Name] = w[i]
	}
	scales := map[string]bool{} // values that are scales of rows
	alias := map[string]string{}
	for _, n := range g.Nodes {
		switch {
		case n.Op.Kind == op.QuantRows:
			scales[n.Out[1]] = true
			if len(n.W) == 0 { // static scales saturate, which float32 imitates
				alias[n.Out[0]] = n.In[0]
			}
		case n.Op.HasScheme() && n.Op.Scheme.QuantisedRows():
			scales[n.In[1]] = true
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
		k := weights[name]
		v := make([]float32, k.Spec.K*k.Spec.N)
		return k, v, pack.Unpack(v, k.Spec, k.Bytes)
	}
	done := map[string]bool{}
	for _, n := range g.Nodes {
		if n.Op.Kind == op.QuantRows {
			if len(n.W) > 0 {
				_, v, err := unpacked(n.W[0])
				if err != nil {
					return err
				}
				most := 127 * v[len(v)-1]
				holds[n.In[0]] = most
				f.graph.Nodes = append(f.graph.Nodes, op.Node{Op: op.Op{Kind: op.Clip, M: n.Op.Rows(), N: n.Op.N, Cap: float64(most)}, In: []string{real(n.In[0])}, Out: n.Out[:1]})
			}
			continue
		}
		m := op.Node{Op: n.Op}
		for _, name := range n.In {
			if !scales[name] {
				m.In = append(m.In, real(name))
			}
		}
		m.Out = n.Out
		roles := n.Op.Sig().W
		if n.Op.Kind == op.ExpertMatMul {
			return diag.New(diag.ClassInfeasible, "products by experts are not tried")
		}
		if n.Op.Kind == op.MatMul {
			m.Op.Scheme, m.Op.Form = op.A32W32, ""
		}
		for i, name := range n.W {
			k, v, err := unpacked(name)
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
				set(m.In[0], v[0])
				set(n.Out[0], v[k.Spec.N])
				continue
			}
			spec := op.WeightSpec{Name: name, K: k.Spec.K, N: k.Spec.N, Scheme: string(op.F32), Layout: op.RowsLayout}
			if n.Op.Kind == op.MatMul && roles[i] == "weight" {
				spec.Scheme, spec.Layout = op.A32W32.Weight(), pack.N32
			}
			if !done[name] {
				if err := plain(spec, v); err != nil {
					return err
				}
				done[name] = true
			}
			m.W = append(m.W, name)
		}
		f.graph.Nodes = append(f.graph.Nodes, m)
	}
	as := func(v op.Value) op.Value {
		if v.Type == op.U8 {
			v.Type = op.F32
		}
		return v
	}
	place := map[string]int{}
	for _, v := range g.Inputs {
		if scales[v.Name] {
			f.from = append(f.from, -1)
			continue
		}
		if v.Type != op.F32 && v.Type != op.U8 {
			return diag.New(diag.ClassInfeasible, "inputs of type %s are not tried", v.Type)
		}
		f.from = append(f.from, len(f.graph.Inputs))
		f.graph.Inputs = append(f.graph.Inputs, as(v))
		amplitude := float32(math.Sqrt(3)) // a deviation of 1
		if most, ok := steps[v.Name]; ok {
			amplitude = most / 2 // the largest that was seen
		} else if most, ok := holds[v.Name]; ok {
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
	for _, v := range g.Outputs {
		at := -1
		if !scales[v.Name] {
			v.Name = real(v.Name)
			at = output(v)
		}
		f.outputs = append(f.outputs, at)
	}
	for _, v := range slices.Concat(g.Temps, g.Outputs) {
		if scales[v.Name] || alias[v.Name] != "" {
			continue
		}
		if most, ok := steps[v.Name]; ok {
			f.limits = append(f.limits, limit{output(v), most})
		} else if _, is := place[v.Name]; !is {
			f.graph.Temps = append(f.graph.Temps, as(v))
		}
	}
	if err := f.graph.Validate(); err != nil {
		return fmt.Errorf("in float32: %w", err)
	}
	return nil
}

// bind are the original graph's inputs for those of its float32 form, which it changes to what these stand for.
func (f *floats) bind(g *op.Graph, in [][]float32) [][]byte {
	out := make([][]byte, len(g.Inputs))
	bytesOf := func(v []float32) []byte {
		b := make([]byte, 4*len(v))
		for i, x := range v {
			binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(x))
		}
		return b
	}
	// Scales follow from the rows they belong to, as op.QuantRows has it.
	scales := map[string]string{}
	for _, n := range g.Nodes {
		if n.Op.HasScheme() && n.Op.Scheme.QuantisedRows() {
			scales[n.In[0]] = n.In[1]
		}
	}
	at := map[string]int{}
	for i, v := range g.Inputs {
		at[v.Name] = i
	}
	for i, v := range g.Inputs {
		if f.from[i] < 0 {
			continue
		}
		x := in[f.from[i]]
		if v.Type != op.U8 {
			out[i] = bytesOf(x)
			continue
		}
		codes, rows := make([]byte, len(x)), make([]float32, v.Rows)
		for r := range v.Rows {
			row := x[r*v.Cols : (r+1)*v.Cols]
			most := float32(0)
			for _, y := range row {
				most = max(most, float32(math.Abs(float64(y))))
			}
			step := most / 127
			if step == 0 {
				step = 1
			}
			rows[r] = step
			for k, y := range row {
				q := math.RoundToEven(float64(y / step))
				codes[r*v.Cols+k] = byte(int(q) + 128)
				row[k] = float32(q) * step
			}
		}
		out[i] = codes
		if k, ok := at[scales[v.Name]]; ok {
			out[k] = bytesOf(rows)
		}
	}
	return out
}

// run executes the graph in float32.
func (p *proof) run(ctx context.Context, f *floats, in [][]float32) (out [][]float32, err error) {
	code, err := json.Marshal(&f.graph)
	if err != nil {
		return nil, err
	}
	err = p.do(ctx, func(x driver.Processor) error {
		exe, err := x.Load(ctx, driver.Artifact{Driver: p.driver.Name(), Code: code}, f.weights)
		if err != nil {
			return err
		}
		defer exe.Close()
		rows := f.graph.Rows()
		b := driver.Bindings{Scalars: &driver.Scalars{Rows: rows, KVLen: rows, Seq: rows}}
		buffers := map[string]driver.View{}
		view := func(v op.Value) (driver.View, error) {
			if have, ok := buffers[v.Name]; ok { // changed in place
				return have, nil
			}
			buf, err := x.Alloc(4 * int64(v.Rows) * int64(v.Cols))
			if err != nil {
				return driver.View{}, err
			}
			buffers[v.Name] = driver.View{Buffer: buf, Type: op.F32, Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}
			return buffers[v.Name], nil
		}
		defer func() {
			for _, v := range buffers {
				_ = v.Buffer.Close() // memory only
			}
		}()
		for i, v := range f.graph.Inputs {
			w, err := view(v)
			if err != nil {
				return err
			}
			for k, y := range in[i] {
				binary.LittleEndian.PutUint32(w.Buffer.Bytes()[4*k:], math.Float32bits(y))
			}
			b.In = append(b.In, w)
		}
		for _, v := range f.graph.Outputs {
			w, err := view(v)
			if err != nil {
				return err
			}
			b.Out = append(b.Out, w)
		}
		if _, err := x.Run(exe, &b); err != nil {
			return err
		}
		for _, w := range b.Out {
			out = append(out, numbers(w.Buffer.Bytes()[:4*w.Rows*w.Cols]))
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
func (s *sample) judge(g *op.Graph, a *driver.BakedArtifact) (*trial, error) {
	t := &trial{bound: boundOf(g)}
	if len(a.Emulated) != len(g.Outputs) || len(a.Portable) != len(g.Outputs) {
		return nil, diag.New(diag.ClassRun, "its sample was not executed: %d and %d outputs, want %d", len(a.Emulated), len(a.Portable), len(g.Outputs))
	}
	emulated, portable := s.values(g, a.Emulated), s.values(g, a.Portable)
	for i := range g.Outputs {
		if s.want[i] == nil {
			continue
		}
		if len(emulated[i]) != len(s.want[i]) || len(portable[i]) != len(s.want[i]) {
			return nil, diag.New(diag.ClassRun, "output %q of its sample has %d and %d values, want %d", g.Outputs[i].Name, len(emulated[i]), len(portable[i]), len(s.want[i]))
		}
		// The worst output counts: a large one must not hide a small one that is wrong.
		t.float = max(t.float, relative(emulated[i], s.want[i]))
		t.portable = max(t.portable, relative(emulated[i], portable[i]))
	}
	return t, t.err()
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
func (s *sample) values(g *op.Graph, out [][]byte) [][]float32 {
	scale := map[string]string{}
	for _, n := range g.Nodes {
		if n.Op.Kind == op.QuantRows {
			scale[n.Out[0]] = n.Out[1]
		}
	}
	at := map[string]int{}
	for i, v := range g.Outputs {
		at[v.Name] = i
	}
	res := make([][]float32, len(out))
	for i, v := range g.Outputs {
		if v.Type != op.U8 {
			res[i] = numbers(out[i])
			continue
		}
		k, ok := at[scale[v.Name]]
		if !ok || len(out[k]) < 4*v.Rows || len(out[i]) < v.Rows*v.Cols {
			continue // a length that judge refuses
		}
		steps := numbers(out[k])
		for r := range v.Rows {
			for c := range v.Cols {
				res[i] = append(res[i], float32(int(out[i][r*v.Cols+c])-128)*steps[r])
			}
		}
	}
	return res
}

// relative is the Euclidean norm of a-b over that of b; infinite for what is no number.
func relative(a, b []float32) float64 {
	var diff, size float64
	for i := range a {
		d := float64(a[i]) - float64(b[i])
		diff += float64(d * d)
		size += float64(float64(b[i]) * float64(b[i]))
	}
	r := math.Sqrt(diff / max(size, math.SmallestNonzeroFloat64))
	if math.IsNaN(r) {
		return math.Inf(1)
	}
	return r
}
