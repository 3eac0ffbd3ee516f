package qnn

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/emit/onnxgraph"
	"github.com/hetc/hetc/internal/golden"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// The test binary plays the compiler's process.
func TestMain(m *testing.M) {
	if what := os.Getenv(play); what != "" && Worker(os.Args[1:]) {
		os.Exit(played(what))
	}
	if Worker(os.Args[1:]) {
		if err := Work(".", os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(golden.Main(m))
}

// libraries skips a test without them.
func libraries(t *testing.T) {
	t.Helper()
	require.Deps()
	_, err := ortapi.FindQNN("")
	if err == nil {
		_, err = ortapi.Find("")
	}
	if err != nil {
		require.Skip(t, "qnn", err)
	}
}

// piece is a graph with random weights and a sample, and the results of the sample in float64 with the weights' values.
type piece struct {
	driver.Piece
	want map[string][]float64 // values of the graph by name
}

// build makes a piece of a graph: gains near 1, products that keep the size of what enters them, and steps twice as
// large as needed.
func build(t testing.TB, g op.Graph, seed uint64) piece {
	t.Helper()
	p := piece{Piece: driver.Piece{Name: "graph", Graph: g}, want: map[string][]float64{}}
	r := rand.New(rand.NewPCG(seed, 0))
	if err := g.Validate(); err != nil {
		t.Fatal(err)
	}
	p.Weights = make(driver.Weights, len(g.Weights))
	specOf := func(name string) int {
		for j, s := range g.Weights {
			if s.Name == name {
				return j
			}
		}
		t.Fatalf("no weight %q", name)
		return 0
	}
	put := func(name string, v []float32) {
		j := specOf(name)
		spec := g.Weights[j]
		size, err := pack.Bytes(spec)
		if err != nil {
			t.Fatal(err)
		}
		src, err := pack.Floats(v, spec.K, spec.N)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, size)
		if err := pack.Pack(b, spec, src); err != nil {
			t.Fatal(err)
		}
		p.Weights[j] = driver.Packed{Spec: spec, Bytes: b}
	}
	get := func(name string) []float32 {
		j := specOf(name)
		v := make([]float32, g.Weights[j].K*g.Weights[j].N)
		if err := pack.Unpack(v, g.Weights[j], p.Weights[j].Bytes); err != nil {
			t.Fatal(err)
		}
		return v
	}
	normal := func(n int, mean, size float64) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(mean + size*r.NormFloat64())
		}
		return v
	}
	for _, v := range g.Inputs {
		x := make([]float64, v.Rows*v.Cols)
		var b []byte
		for i := range x {
			switch v.Type {
			case op.U8:
				c := byte(128 + max(-127, min(127, math.Round(40*r.NormFloat64()))))
				x[i], b = float64(c)-128, append(b, c)
			default:
				f := float32(r.NormFloat64())
				if v.Cols > 50 && i%v.Cols == 33 { // outliers of a residual
					f *= 50
				}
				if v.Cols == 1 {
					f = 0.03
				}
				x[i], b = float64(f), binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
			}
		}
		p.want[v.Name], p.Sample = x, append(p.Sample, b)
	}
	top := func(x []float64) (m float64) {
		for _, v := range x {
			m = max(m, math.Abs(v))
		}
		return m
	}
	for _, n := range g.Nodes {
		o := n.Op
		x := p.want[n.In[0]]
		y := make([]float64, o.Rows()*o.N)
		switch o.Kind {
		case op.Norm, op.LayerNorm:
			gain := normal(o.N, 1, 0.2)
			put(n.W[0], gain)
			bias := make([]float32, o.N)
			if o.Kind == op.LayerNorm {
				bias = normal(o.N, 0, 0.2)
				put(n.W[1], bias)
			}
			for i := range o.Rows() {
				row := x[i*o.N : (i+1)*o.N]
				mean, square := 0.0, 0.0
				if o.Kind == op.LayerNorm {
					for _, v := range row {
						mean += v / float64(o.N)
					}
				}
				for _, v := range row {
					square += (v - mean) * (v - mean) / float64(o.N)
				}
				for c, v := range row {
					y[i*o.N+c] = (v-mean)/math.Sqrt(square+float64(onnxgraph.Epsilon(o)))*float64(gain[c]) + float64(bias[c])
				}
			}
		case op.QuantRows:
			s := coarse(top(x) / 127)
			put(n.W[0], []float32{s})
			for i, v := range x {
				y[i] = math.RoundToEven(v / float64(s))
			}
			scales := make([]float64, o.M)
			for i := range scales {
				scales[i] = float64(s)
			}
			p.want[n.Out[1]] = scales
		case op.MatMul:
			w := normal(o.K*o.N, 0, 1/math.Sqrt(float64(o.K)))
			for k := range o.K { // a column of zeros
				w[k*o.N+o.N-1] = 0
			}
			put(n.W[0], w)
			w = get(n.W[0])
			for i := range o.M {
				for k := range o.K {
					for c := range o.N {
						y[i*o.N+c] += float64(x[i*o.K+k] * float64(w[k*o.N+c]))
					}
				}
			}
			if o.Scheme.QuantisedRows() {
				for i := range y {
					y[i] *= p.want[n.In[1]][i/o.N]
				}
			}
			if o.Bias {
				bias := normal(o.N, 0, 0.3)
				put(n.W[1], bias)
				for i := range y {
					y[i] += float64(bias[i%o.N])
				}
			}
			if o.Scheme.Grid() {
				steps := make([]float32, 2*o.N)
				for c := range o.N {
					steps[c], steps[o.N+c] = coarse(2*top(x)/op.GridMax), coarse(2*top(y)/op.GridMax)
				}
				put(n.W[len(n.W)-1], steps)
			}
		case op.GroupMatMul:
			for slot, name := range n.W {
				put(name, normal(o.K*o.N, 0, 1/math.Sqrt(float64(o.K))))
				w, each := get(name), o.M/o.Experts
				for i := slot * each; i < (slot+1)*each; i++ {
					for c := range o.N {
						for k := range o.K {
							y[i*o.N+c] += float64(x[i*o.K+k] * float64(w[k*o.N+c]))
						}
						y[i*o.N+c] *= p.want[n.In[1]][i]
					}
				}
			}
		case op.GLU:
			for i := range o.Rows() {
				for c := range o.N {
					at := i*2*o.N + c/o.Interleave*2*o.Interleave + c%o.Interleave
					y[i*o.N+c] = act(o.Act, x[at]) * x[at+o.Interleave]
				}
			}
		case op.Activate:
			for i, v := range x {
				y[i] = act(o.Act, v)
			}
		case op.Gate:
			for i, v := range x {
				y[i] = v / (1 + math.Exp(-p.want[n.In[1]][i/o.N]))
			}
		case op.Softcap:
			for i, v := range x {
				y[i] = o.Cap * math.Tanh(v/o.Cap)
			}
		case op.Clip:
			for i, v := range x {
				y[i] = max(-o.Cap, min(o.Cap, v))
			}
		case op.Add:
			for i, v := range x {
				y[i] = v + p.want[n.In[1]][i]
			}
		case op.Copy:
			copy(y, x)
		default:
			t.Fatalf("no reference for %q", o.Kind)
		}
		p.want[n.Out[0]] = y
	}
	return p
}

// coarse is the next larger number of 6 bits, so that the last bits of a machine's arithmetic do not matter.
func coarse(v float64) float32 {
	f, e := math.Frexp(v)
	return float32(math.Ldexp(math.Ceil(f*64)/64, e))
}

func act(name string, x float64) float64 {
	switch name {
	case op.SiLU:
		return x / (1 + math.Exp(-x))
	case op.GELU:
		return x / 2 * (1 + math.Erf(x/math.Sqrt2))
	case op.GELUTanh:
		return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	return max(x, 0)
}

// differ is the relative euclidean distance of results.
func differ(got []byte, want []float64) float64 {
	values := make([]float64, len(want))
	for i := range values {
		values[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(got[4*i:])))
	}
	return distance(values, want)
}

// distance is differ of numbers.
func distance(got, want []float64) float64 {
	d, n := 0.0, 0.0
	for i, w := range want {
		d, n = d+(got[i]-w)*(got[i]-w), n+w*w
	}
	return math.Sqrt(d / n)
}

func single(o op.Op) op.Graph { return op.Single(o, op.OnnxLayout) }

// gen3 is the Snapdragon 8 Gen 3.
func gen3(emulator bool) driver.Target {
	return driver.Target{Proc: "npu", Options: map[string]string{"soc_model": "57", "htp_arch": "75", "vtcm_mb": "8"}, Emulator: emulator}
}

// block is a piece of a layer: the norm, a gated product and the way back, with the sum in place.
func block(m int, scheme op.Scheme, bias bool) op.Graph {
	const hidden, ffn = 64, 96
	v := func(name string, t op.Type, cols int) op.Value {
		return op.Value{Name: name, Type: t, Rows: m, Cols: cols}
	}
	x := v("x", op.F32, hidden)
	g := op.Graph{Inputs: []op.Value{x}, Outputs: []op.Value{x}, Temps: []op.Value{
		v("n", op.F32, hidden), v("h", op.F32, 2*ffn), v("a", op.F32, ffn), v("d", op.F32, hidden),
	}}
	node := func(o op.Op, in, w, out []string) {
		for i, role := range o.Sig().W {
			spec := o.WeightSpec(role, op.OnnxLayout)
			spec.Name = w[i]
			g.Weights = append(g.Weights, spec)
		}
		g.Nodes = append(g.Nodes, op.Node{Op: o, In: in, W: w[:len(o.Sig().W)], Out: out})
	}
	up, down := []string{"up", "bias", "up_steps"}, []string{"down", "down_steps"}
	if !bias {
		up = []string{"up", "up_steps"}
	}
	in := func(x string, n int, steps string) []string {
		if !scheme.QuantisedRows() {
			return []string{x}
		}
		g.Temps = append(g.Temps, v(x+"8", op.U8, n), v(x+"s", op.F32, 1))
		node(op.Op{Kind: op.QuantRows, M: m, N: n, Static: true}, []string{x}, []string{steps}, []string{x + "8", x + "s"})
		return []string{x + "8", x + "s"}
	}
	node(op.Op{Kind: op.Norm, M: m, N: hidden, Eps: 1e-5}, []string{"x"}, []string{"gain"}, []string{"n"})
	node(op.Op{Kind: op.MatMul, M: m, K: hidden, N: 2 * ffn, Scheme: scheme, Bias: bias}, in("n", hidden, "n_scale"), up, []string{"h"})
	node(op.Op{Kind: op.GLU, M: m, N: ffn, Interleave: 16, Act: op.SiLU}, []string{"h"}, nil, []string{"a"})
	node(op.Op{Kind: op.MatMul, M: m, K: ffn, N: hidden, Scheme: scheme}, in("a", ffn, "a_scale"), down, []string{"d"})
	node(op.Op{Kind: op.Add, M: m, N: hidden}, []string{"x", "d"}, nil, []string{"x"})
	return g
}

// expertGroup is a group of experts: two products of a matrix for each slot, with the gated unit between them.
func expertGroup(slots, each int) op.Graph {
	const hidden, ffn = 64, 96
	rows := slots * each
	v := func(name string, t op.Type, cols int) op.Value {
		return op.Value{Name: name, Type: t, Rows: rows, Cols: cols}
	}
	g := op.Graph{Inputs: []op.Value{v("x", op.F32, hidden)}, Outputs: []op.Value{v("y", op.F32, hidden)}, Temps: []op.Value{
		v("x8", op.U8, hidden), v("xs", op.F32, 1), v("h", op.F32, 2*ffn), v("a", op.F32, ffn), v("a8", op.U8, ffn), v("as", op.F32, 1),
	}}
	node := func(o op.Op, in, out []string) {
		n := op.Node{Op: o, In: in, Out: out}
		for _, role := range o.Sig().W {
			spec := o.WeightSpec(role, op.OnnxLayout)
			spec.Name = fmt.Sprintf("w%d", len(g.Weights))
			g.Weights, n.W = append(g.Weights, spec), append(n.W, spec.Name)
		}
		g.Nodes = append(g.Nodes, n)
	}
	node(op.Op{Kind: op.QuantRows, M: rows, N: hidden, Static: true}, []string{"x"}, []string{"x8", "xs"})
	node(op.Op{Kind: op.GroupMatMul, M: rows, K: hidden, N: 2 * ffn, Experts: slots, Scheme: op.A8SQ8C}, []string{"x8", "xs"}, []string{"h"})
	node(op.Op{Kind: op.GLU, M: rows, N: ffn, Interleave: 16, Act: op.SiLU}, []string{"h"}, []string{"a"})
	node(op.Op{Kind: op.QuantRows, M: rows, N: ffn, Static: true}, []string{"a"}, []string{"a8", "as"})
	node(op.Op{Kind: op.GroupMatMul, M: rows, K: ffn, N: hidden, Experts: slots, Scheme: op.A8SQ8C}, []string{"a8", "as"}, []string{"y"})
	return g
}

// chain is a graph of operators on rows, one after the other.
func chain() op.Graph {
	x := op.Value{Name: "x", Type: op.F32, Rows: 5, Cols: 96}
	g := op.Graph{Inputs: []op.Value{x, {Name: "gate", Type: op.F32, Rows: 5, Cols: 1}}}
	last := "x"
	for i, o := range []op.Op{
		{Kind: op.LayerNorm, Eps: 1e-5}, {Kind: op.Activate, Act: op.GELU}, {Kind: op.Gate}, {Kind: op.Softcap, Cap: 2},
		{Kind: op.Activate, Act: op.ReLU}, {Kind: op.Add}, {Kind: op.Clip, Cap: 20}, {Kind: op.Copy},
	} {
		o.M, o.N = 5, 96
		y := fmt.Sprintf("y%d", i)
		in := []string{last}
		switch o.Kind {
		case op.Gate:
			in = append(in, "gate")
		case op.Add:
			in = append(in, "x")
		}
		n := op.Node{Op: o, In: in, Out: []string{y}}
		for _, role := range o.Sig().W {
			g.Weights, n.W = append(g.Weights, o.WeightSpec(role, op.OnnxLayout)), append(n.W, role)
		}
		g.Nodes = append(g.Nodes, n)
		g.Temps, last = append(g.Temps, op.Value{Name: y, Type: op.F32, Rows: 5, Cols: 96}), y
	}
	g.Outputs, g.Temps = g.Temps[len(g.Temps)-1:], g.Temps[:len(g.Temps)-1]
	return g
}

// graphs are what is compiled.
func graphs() map[string]op.Graph {
	out := map[string]op.Graph{}
	for _, o := range []op.Op{
		{Kind: op.Norm, M: 5, N: 96, Eps: 1e-5},
		{Kind: op.LayerNorm, M: 5, N: 96, Eps: 1e-5},
		{Kind: op.GLU, M: 5, N: 64, Interleave: 16, Act: op.SiLU},
		{Kind: op.GLU, M: 5, N: 64, Interleave: 64, Act: op.GELUTanh, Fan: 2},
		{Kind: op.Activate, M: 5, N: 96, Act: op.GELU},
		{Kind: op.Activate, M: 5, N: 96, Act: op.ReLU},
		{Kind: op.Gate, M: 5, N: 96},
		{Kind: op.Softcap, M: 5, N: 96, Cap: 30},
		{Kind: op.Clip, M: 5, N: 96, Cap: 2},
		{Kind: op.Add, M: 5, N: 96},
		{Kind: op.Copy, M: 5, N: 96},
		{Kind: op.GroupMatMul, M: 6, K: 64, N: 96, Experts: 2, Scheme: op.A8SQ8C},
	} {
		out[strings.ReplaceAll(o.Key(), "/", "-")] = single(o)
	}
	for _, s := range schemes {
		for _, o := range []op.Op{{M: 1, Bias: true}, {M: 9}} {
			o.Kind, o.K, o.N, o.Scheme = op.MatMul, 64, 96, s
			out[strings.ReplaceAll(o.Key(), "/", "-")] = single(o)
		}
		if len(forms[s]) > 0 {
			o := op.Op{Kind: op.MatMul, M: 12, K: 64, N: 96, Scheme: s, Form: op.ConvForm(4, 3), Bias: true}
			out[strings.ReplaceAll(o.Key(), "/", "-")] = single(o)
			images := block(9, s, true)
			for i := range images.Nodes {
				if operator := &images.Nodes[i].Op; operator.Kind == op.MatMul {
					operator.Form = op.ConvForm(3, 3)
				}
			}
			out["block of convolutions "+strings.ReplaceAll(string(s), "/", "-")] = images
		}
		out["chain"] = chain()
		out["group of experts"], out["group of one expert"] = expertGroup(3, 4), expertGroup(1, 8)
		out["block "+strings.ReplaceAll(string(s), "/", "-")] = block(9, s, true)
	}
	return out
}

// bound is the relative error that the emulator may have: some units of half precision; the NPU's kernel of 4-bit
// columns drops the low byte of its sums. A group of experts rounds to 8 bits between its products, where the last bits
// of what comes before move single codes: twice what half precision moves, in the emulator and in the source on the
// CPU, whose results between the products are on the same grid of 16 bits.
func bound(t *testing.T, p piece) (emulated, portable float64) {
	for _, n := range p.Graph.Nodes {
		switch {
		case n.Op.Scheme == op.A16SQ4C:
			return 1.5e-2, 2e-3
		case n.Op.Kind == op.GroupMatMul && len(p.Graph.Nodes) > 1:
			most := 2e-3 + 2*distance(inHalf(t, p), p.want[p.Graph.Outputs[0].Name])
			return most, most
		}
	}
	return 2e-3, 2e-3
}

// inHalf computes a group of experts with rows in half precision, and the results of its products on grids of 16 bits.
func inHalf(t *testing.T, p piece) []float64 {
	half := func(v float64) float64 { return float64(number.HalfToFloat(number.FloatToHalf(float32(v)))) }
	values := map[string][]float64{}
	for _, input := range p.Graph.Inputs {
		for _, v := range p.want[input.Name] {
			values[input.Name] = append(values[input.Name], half(v))
		}
	}
	for _, n := range p.Graph.Nodes {
		o, x := n.Op, values[n.In[0]]
		y := make([]float64, o.Rows()*o.N)
		switch o.Kind {
		case op.QuantRows:
			for i, v := range x {
				y[i] = max(-127, min(127, math.RoundToEven(v/p.want[n.Out[1]][0])))
			}
		case op.GroupMatMul:
			scale, each := p.want[n.In[1]][0], o.M/o.Experts
			for slot, name := range n.W {
				at := slices.IndexFunc(p.Graph.Weights, func(spec op.WeightSpec) bool { return spec.Name == name })
				w := make([]float32, o.K*o.N)
				if err := pack.Unpack(w, p.Graph.Weights[at], p.Weights[at].Bytes); err != nil {
					t.Fatal(err)
				}
				longest := 0.0
				for col := range o.N {
					sum := 0.0
					for k := range o.K {
						sum += float64(w[k*o.N+col]) * float64(w[k*o.N+col])
					}
					longest = max(longest, math.Sqrt(sum))
				}
				step := 127 * math.Sqrt(float64(o.K)) * longest * scale / op.GridMax
				for i := slot * each; i < (slot+1)*each; i++ {
					for col := range o.N {
						sum := 0.0
						for k := range o.K {
							sum += x[i*o.K+k] * float64(w[k*o.N+col])
						}
						y[i*o.N+col] = half(math.RoundToEven(sum*scale/step) * step)
					}
				}
			}
		case op.GLU:
			for i := range o.Rows() {
				for c := range o.N {
					at := i*2*o.N + c/o.Interleave*2*o.Interleave + c%o.Interleave
					gate := half(x[at] * half(1/(1+math.Exp(-x[at]))))
					y[i*o.N+c] = half(gate * x[at+o.Interleave])
				}
			}
		default:
			t.Fatalf("no reference in half precision for %q", o.Kind)
		}
		values[n.Out[0]] = y
	}
	return values[p.Graph.Outputs[0].Name]
}

// Every operator and scheme is compiled wholly for the NPU, and its emulator computes what the graph says.
func TestEmulated(t *testing.T) {
	libraries(t)
	for name, g := range graphs() {
		if o := g.Nodes[0].Op; len(g.Nodes) == 1 && !o.Bias && o.Interleave != 16 {
			continue // in a block or the chain
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := build(t, g, 1)
			b, err := New(Options{}).CompileGroup(t.Context(), []driver.Piece{p.Piece}, gen3(true))
			if err != nil {
				t.Fatal(err)
			}
			a := b.Artifacts[0]
			want := p.want[g.Outputs[0].Name]
			emulated, portable := differ(a.Emulated[0], want), differ(a.Portable[0], want)
			most, source := bound(t, p)
			if emulated > most || portable > source || emulated == 0 {
				t.Errorf("relative error %.2g on the emulator, %.2g of the source on the CPU, want at most %.2g and %.2g",
					emulated, portable, most, source)
			}
			f := a.Facts
			if b.Shared != nil || f["arch"] != 75 || f["soc_model"] != 57 || f["vtcm_bytes"] != 8<<20 || f["cpu_nodes"] != 0 || f["nodes"] != f["edge_nodes"]+1 || f["bytes"] != int64(len(a.Code)) || f["context_bytes"] >= f["bytes"] {
				t.Errorf("facts %v", f)
			}
			if b.Token != "v2:6:2.51.0:5.51.0:75:57:8:0" || b.Compiler == "" || b.Cached {
				t.Errorf("compiler %q, token %q, cached %v", b.Compiler, b.Token, b.Cached)
			}
			m, err := onnx.Parse(a.Code)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := m.Prop(onnxgraph.GraphKey)
			var back op.Graph
			if err := json.Unmarshal([]byte(text), &back); err != nil || !reflect.DeepEqual(back, g) {
				t.Errorf("the artifact stands for %+v (%v), want %+v", back, err, g)
			}
		})
	}
}

// A group for a device shares its weights, and a binary is the same bytes in every folder, run, and order.
func TestShared(t *testing.T) {
	libraries(t)
	var group, back []driver.Piece
	for _, m := range []int{1, 8, 64} {
		p := build(t, single(op.Op{Kind: op.MatMul, M: m, K: 256, N: 512, Scheme: op.A16SQ8C}), 7)
		p.Weights = append(driver.Weights{}, p.Weights...)
		if m > 1 { // the steps are of the weight, not of the sample
			p.Weights = group[0].Weights
		}
		p.Name = fmt.Sprint("rows ", m)
		if m != 8 {
			p.Sample = nil
		}
		group = append(group, p.Piece)
	}
	back = append(back, group...)
	slices.Reverse(back)
	compileGroup := func(group []driver.Piece, emulator bool) *driver.CompiledGroup {
		t.Helper()
		t.Setenv("TMPDIR", t.TempDir())
		b, err := New(Options{}).CompileGroup(t.Context(), group, gen3(emulator))
		if err != nil {
			t.Fatal(err)
		}
		if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		return b
	}
	a, again := compileGroup(group, false), compileGroup(back, false)
	slices.Reverse(again.Artifacts)
	if !reflect.DeepEqual(a, again) {
		t.Error("in another folder and order they have other bytes")
	}
	unshared := compileGroup(group, true)
	all := int64(0)
	for _, x := range unshared.Artifacts {
		all += x.Facts["context_bytes"]
	}
	if a.Shared == nil || int64(len(a.Shared)) > all*6/10 {
		t.Errorf("the binary has %d bytes, those of each graph alone %d", len(a.Shared), all)
	}
	for i, x := range a.Artifacts {
		if len(x.Code) > 1<<14 || x.Facts["context_bytes"] != int64(len(a.Shared)) || !bytes.Equal(x.Shared, a.Shared) {
			t.Errorf("%s: %d bytes beside a binary of %d, facts %v", group[i].Name, len(x.Code), len(x.Shared), x.Facts)
		}
		if x.Facts["spill_bytes"] != unshared.Artifacts[i].Facts["spill_bytes"] {
			t.Errorf("%s: spill %d with others, %d alone", group[i].Name, x.Facts["spill_bytes"], unshared.Artifacts[i].Facts["spill_bytes"])
		}
		tried := group[i].Sample != nil
		if twin := fmt.Sprintf("%x", sha256.Sum256(unshared.Artifacts[i].Code)); (x.Twin == twin) != tried || (x.Emulated != nil) != tried {
			t.Errorf("%s: twin %q, want %q where it is tried", group[i].Name, x.Twin, twin)
		}
		if !reflect.DeepEqual(x.Emulated, unshared.Artifacts[i].Emulated) {
			t.Errorf("%s: the twin's results differ", group[i].Name)
		}
	}
}

// The compiler's memory outside the NPU does not grow with rows: 250 rows spill, 256 do not.
func TestSpill(t *testing.T) {
	libraries(t)
	g := func(m int) op.Graph {
		return single(op.Op{Kind: op.MatMul, M: m, K: 2048, N: 2048, Scheme: op.A16SQ8C})
	}
	small := g(1)
	w := make(driver.Weights, len(small.Weights))
	for j, s := range small.Weights {
		n, err := pack.Bytes(s)
		if err != nil {
			t.Fatal(err)
		}
		w[j] = driver.Packed{Spec: s, Bytes: make([]byte, n)}
	}
	for i := range 2048 * 2048 {
		w[0].Bytes[i] = byte(i % 251)
	}
	_, at, _, err := pack.OnnxParts(small.Weights[0])
	if err != nil {
		t.Fatal(err)
	}
	copy(w[0].Bytes[at:], number.Bytes(slices.Repeat([]float32{0.001}, 2048)))
	copy(w[1].Bytes, number.Bytes(slices.Repeat([]float32{0.001}, 4096)))
	var group []driver.Piece
	rows := []int{1, 250, 256, 257}
	for _, m := range rows {
		group = append(group, driver.Piece{Name: fmt.Sprint(m), Graph: g(m), Weights: w})
	}
	b, err := New(Options{}).CompileGroup(t.Context(), group, gen3(false))
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range rows {
		spill := b.Artifacts[i].Facts["spill_bytes"]
		if (spill > 1<<20) != (m == 250 || m == 257) {
			t.Errorf("%d rows spill %d bytes", m, spill)
		}
	}
	if n := len(b.Shared); n > 2048*2048*115/100 {
		t.Errorf("%d graphs share a binary of %d bytes", len(rows), n)
	}
}
