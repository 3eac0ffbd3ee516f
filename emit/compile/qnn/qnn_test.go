package qnn

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/hetc/hetc/internal/golden"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// The test binary plays the compiler's process.
func TestMain(m *testing.M) {
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
					y[i*o.N+c] = (v-mean)/math.Sqrt(square+float64(epsilon(o)))*float64(gain[c]) + float64(bias[c])
				}
			}
		case op.QuantRows:
			s := float32(top(x) / 127)
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
						y[i*o.N+c] += x[i*o.K+k] * float64(w[k*o.N+c])
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
					steps[c], steps[o.N+c] = float32(2*top(x)/op.GridMax), float32(2*top(y)/op.GridMax)
				}
				put(n.W[len(n.W)-1], steps)
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
	d, n := 0.0, 0.0
	for i, w := range want {
		v := float64(math.Float32frombits(binary.LittleEndian.Uint32(got[4*i:])))
		d, n = d+(v-w)*(v-w), n+w*w
	}
	return math.Sqrt(d / n)
}

func single(o op.Op) op.Graph { return op.Single(o, op.OnnxLayout) }

// gen3 is the Snapdragon 8 Gen 3.
func gen3(emulator bool) driver.Target {
	return driver.Target{Proc: "npu", Options: map[string]string{"soc_model": "57", "htp_arch": "75", "vtcm_mb": "8"}, Emulator: emulator}
}

func TestFirst(t *testing.T) {
	libraries(t)
	p := build(t, single(op.Op{Kind: op.MatMul, M: 16, K: 128, N: 96, Scheme: op.A16SQ8C}), 1)
	b, err := New(Options{}).Bake(t.Context(), []driver.Piece{p.Piece}, gen3(true))
	if err != nil {
		t.Fatal(err)
	}
	a := b.Artifacts[0]
	t.Log(b.Compiler, b.Token, a.Facts, differ(a.Emulated[0], p.want["y"]), differ(a.Portable[0], p.want["y"]))
}
