package qnn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/qnn"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

func TestMain(m *testing.M) {
	if Worker(os.Args[1:]) {
		if err := Work(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if compile.Worker(os.Args[1:]) {
		if err := compile.Work(".", os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	require.Deps()
	os.Exit(m.Run())
}

// The graph of the tests: y [M,N] = x [M,K] x w [K,N], in half precision or on a grid.
const (
	rows, red, cols = 8, 64, 32
	step            = float32(1) / 8192 // of values of -4 to 4
)

func graph(s op.Scheme) op.Graph {
	return op.Single(op.Op{Kind: op.MatMul, M: rows, K: red, N: cols, Scheme: s}, op.OnnxLayout)
}

// Where the binary of an artifact lies.
const (
	embedded = "embedded"
	shared   = "shared"
)

// ramp are values of -1 to 1 without a pattern along rows or columns.
func ramp(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i*7919%201-100) / 400
	}
	return x
}

// source is the graph for the compiler.
func source(s op.Scheme) *onnx.Model {
	m := &onnx.Model{IR: onnx.IR, Producer: "test", Opsets: []onnx.OpsetID{{Domain: "", Version: onnx.Opset}}, Graph: onnx.Graph{
		Name:    "product",
		Inputs:  []onnx.Value{{Name: "x", Type: onnx.Float32, Dims: []int64{rows, red}}},
		Outputs: []onnx.Value{{Name: "y", Type: onnx.Float32, Dims: []int64{rows, cols}}},
	}}
	g := &m.Graph
	if s.Half() {
		g.Initializers = []onnx.Tensor{onnx.Float32s("w", []int64{red, cols}, ramp(red*cols)...)}
		g.Nodes = []onnx.Node{{Name: "n0", Op: "MatMul", In: []string{"x", "w"}, Out: []string{"y"}}}
		return m
	}
	w := make([]byte, red*cols)
	for i, v := range ramp(red * cols) {
		w[i] = byte(int8(v * 400))
	}
	scales := make([]float32, cols)
	for i := range scales {
		scales[i] = 1. / 400
	}
	zeros := onnx.Tensor{Name: "wz", Type: onnx.Int8, Dims: []int64{cols}, Raw: make([]byte, cols)}
	g.Initializers = []onnx.Tensor{onnx.Float32s("s", nil, step), {Name: "z", Type: onnx.Uint16, Raw: []byte{0, 0x80}},
		{Name: "w", Type: onnx.Int8, Dims: []int64{red, cols}, Raw: w}, onnx.Float32s("ws", []int64{cols}, scales...), zeros}
	g.Nodes = []onnx.Node{
		{Name: "n0", Op: "QuantizeLinear", In: []string{"x", "s", "z"}, Out: []string{"xq"}}, {Name: "n1", Op: "DequantizeLinear", In: []string{"xq", "s", "z"}, Out: []string{"xd"}},
		{Name: "n2", Op: "DequantizeLinear", In: []string{"w", "ws", "wz"}, Out: []string{"wd"}, Attrs: []onnx.Attr{onnx.Int("axis", 1)}},
		{Name: "n3", Op: "MatMul", In: []string{"xd", "wd"}, Out: []string{"m"}},
		{Name: "n4", Op: "QuantizeLinear", In: []string{"m", "s", "z"}, Out: []string{"yq"}}, {Name: "n5", Op: "DequantizeLinear", In: []string{"yq", "s", "z"}, Out: []string{"y"}},
	}
	return m
}

// artifact makes the library's model hetc's own.
func artifact(g op.Graph, wrapper []byte) (*onnx.Model, error) {
	m, err := onnx.Read(wrapper)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(&g)
	if err != nil {
		return nil, err
	}
	m.IR = onnx.IR
	m.Props = append([]onnx.Prop{{Key: keyGraph, Value: string(text)}}, m.Props...)
	return m, nil
}

// compiler is the libraries in this process, for all tests.
var compiler = sync.OnceValues(func() (*local, error) {
	q, err := ortapi.FindQNN("")
	if err != nil {
		return nil, err
	}
	return openLocal("", *q)
})

// compiled are the models of the tests, in hetc's form, by scheme; shared ones with their binary.
var compiled struct {
	sync.Mutex
	of map[string][2][]byte
}

func build(t testing.TB, s op.Scheme, where string) (model, binary []byte) {
	t.Helper()
	l, err := compiler()
	if err != nil {
		require.Skip(t, "qnn", err)
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("the compiler is for linux/amd64")
	}
	compiled.Lock()
	defer compiled.Unlock()
	key := string(s) + where
	if b, ok := compiled.of[key]; ok {
		return b[0], b[1]
	}
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.onnx"), filepath.Join(dir, "out.onnx")
	if err := os.WriteFile(in, source(s).Marshal(), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &ortapi.SessionOptions{Devices: []ortapi.Device{l.device}, ProviderOptions: [][2]string{{"backend_path", l.v.QNN.Backend}, {"soc_model", "57"}, {"vtcm_mb", "8"},
		{"htp_graph_finalization_optimization_mode", "3"}, {"offload_graph_io_quantization", "1"}}}
	if err := l.env.Compile(ortapi.Compilation{Model: in, Output: out, Embed: where == embedded}, o); err != nil {
		t.Fatal(err)
	}
	wrapper, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	m, err := artifact(graph(s), wrapper)
	if err != nil {
		t.Fatal(err)
	}
	if where == shared {
		for i := range m.Graph.Nodes {
			for j := range m.Graph.Nodes[i].Attrs {
				if a := &m.Graph.Nodes[i].Attrs[j]; a.Name == "ep_cache_context" {
					if binary, err = os.ReadFile(filepath.Join(dir, a.S)); err != nil {
						t.Fatal(err)
					}
					a.S = sharedFile
				}
			}
		}
	}
	if compiled.of == nil {
		compiled.of = map[string][2][]byte{}
	}
	compiled.of[key] = [2][]byte{m.Marshal(), binary}
	return m.Marshal(), binary
}

func open(t testing.TB, options map[string]string) driver.Processor {
	t.Helper()
	p, err := New().Open(t.Context(), driver.Config{Select: emulator, Options: options})
	if err != nil {
		if errors.Is(err, driver.ErrUnavailable) {
			require.Skip(t, "qnn", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// operands are buffers of the graph's input and output with their bindings.
func operands(t testing.TB, p driver.Processor) (x, y []float32, b *driver.Bindings) {
	t.Helper()
	view := func(r, c int) ([]float32, driver.View) {
		buf, err := p.Alloc(int64(r * c * 4))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { buf.Close() })
		v, err := mem.View[float32](buf.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		return v, driver.View{Buffer: buf, Type: op.F32, Rows: r, Cols: c, Stride: c}
	}
	x, in := view(rows, red)
	y, out := view(rows, cols)
	return x, y, &driver.Bindings{In: []driver.View{in}, Out: []driver.View{out}, Scalars: &driver.Scalars{Rows: rows, KVLen: rows, Seq: rows}}
}

// The emulator computes what the graph says, two processors at a time, and gives everything back.
func TestRun(t *testing.T) {
	for _, s := range []op.Scheme{op.A16FW16, op.A16SQ8C} {
		t.Run(strings.ReplaceAll(string(s), "/", "-"), func(t *testing.T) {
			code, _ := build(t, s, embedded)
			p, other := open(t, map[string]string{"soc_model": "57", "htp_arch": "75", "vtcm_mb": "8", "opt": "3"}), open(t, nil)
			if c := p.Capabilities(); !c.WeightsInArtifacts || !c.Emulated || c.Virtual || c.DynamicRows {
				t.Errorf("capabilities %+v", c)
			}
			var results [2][]float32
			for i, p := range []driver.Processor{p, other} {
				if err := p.Attach(); err != nil {
					t.Fatal(err)
				}
				e, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, nil)
				if err != nil {
					t.Fatal(err)
				}
				x, y, b := operands(t, p)
				copy(x, ramp(rows*red))
				span, err := p.Run(e, b)
				if err != nil || span.End <= span.Start {
					t.Fatalf("span %v, %v", span, err)
				}
				w := ramp(red * cols)
				for r := range rows {
					for c := range cols {
						var want float64
						for k := range red {
							want += float64(x[r*red+k]) * float64(w[k*cols+c])
						}
						if d := math.Abs(float64(y[r*cols+c]) - want); d > 2e-3 {
							t.Fatalf("[%d,%d]: got %v, want %v", r, c, y[r*cols+c], want)
						}
					}
				}
				results[i] = slices.Clone(y)
				if err := errors.Join(e.Close(), e.Close()); err != nil {
					t.Error(err)
				}
				if _, err := p.Run(e, b); err == nil || !strings.Contains(err.Error(), "executable is closed") {
					t.Errorf("run after close: %v", err)
				}
			}
			if !slices.Equal(results[0], results[1]) {
				t.Error("two processors computed different results")
			}
		})
	}
}

// like sets values to one of that size, with the signs of the first column of a matrix: so that its sum is large.
func like(values, matrix []float32, size float32) {
	for i := range values {
		values[i] = float32(math.Copysign(float64(size), float64(matrix[i*len(matrix)/len(values)])))
	}
}

// What a call cannot mean is refused by name, and the processor stays usable.
func TestRunRefuses(t *testing.T) {
	code, _ := build(t, op.A16FW16, embedded)
	p := open(t, nil)
	e, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, nil)
	if err != nil {
		t.Fatal(err)
	}
	x, y, good := operands(t, p)
	if _, err := p.Run(e, good); err == nil || !strings.Contains(err.Error(), "no thread is attached") {
		t.Errorf("without a thread: %v", err)
	}
	if err := p.Attach(); err != nil {
		t.Fatal(err)
	}
	if p.Attach() == nil {
		t.Error("a second thread was attached")
	}
	for name, c := range map[string]struct {
		change func(*driver.Bindings)
		want   string
	}{
		"no scalars":    {func(b *driver.Bindings) { b.Scalars = nil }, "no scalars"},
		"negative rows": {func(b *driver.Bindings) { b.Scalars.Rows = -1 }, "rows -1"},
		"fewer rows":    {func(b *driver.Bindings) { b.Scalars.Rows = 3 }, "shapes are static"},
		"no inputs":     {func(b *driver.Bindings) { b.In = nil }, "got 0 inputs"},
		"other type":    {func(b *driver.Bindings) { b.In[0].Type = op.F16 }, "want f32 [8,64]"},
		"fewer columns": {func(b *driver.Bindings) { b.Out[0].Cols = 31 }, "want f32 [8,32]"},
		"strided":       {func(b *driver.Bindings) { b.In[0].Stride = 65 }, "stride 65"},
		"outside":       {func(b *driver.Bindings) { b.Out[0].Offset = 1 << 40 }, "does not fit"},
		"NaN":           {func(*driver.Bindings) { x[2*red+1] = float32(math.NaN()) }, `input "x", row 2: a value is NaN`},
		"infinity":      {func(*driver.Bindings) { x[2*red+1] = float32(math.Inf(1)) }, "row 2"},
		"no half":       {func(*driver.Bindings) { x[2*red+1] = -7e4 }, `input "x", row 2: a value is -70000, want at most 65504`},
		"no half out":   {func(*driver.Bindings) { like(x[2*red:3*red], ramp(red*cols), 6e4) }, `output "y", row 2: a value is `},
	} {
		b := *good
		s := *good.Scalars
		b.Scalars, b.In, b.Out = &s, slices.Clone(good.In), slices.Clone(good.Out)
		copy(x, ramp(rows*red))
		c.change(&b)
		if _, err := p.Run(e, &b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	copy(x, ramp(rows*red))
	y[0] = 99
	if _, err := p.Run(e, good); err != nil || y[0] == 99 {
		t.Errorf("a good call after bad ones: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(e, good); err == nil || !strings.Contains(err.Error(), "processor is closed") {
		t.Errorf("after close: %v", err)
	}
	if _, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, nil); err == nil {
		t.Error("a closed processor loaded")
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// A processor's process is gone when it is closed, and prints nothing where this one prints.
func TestProcess(t *testing.T) {
	p := open(t, nil)
	r := p.(*processor).engine.(*remote)
	if !strings.Contains(r.v.String(), "HTP interface 5.") {
		t.Errorf("versions %v", r.v)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if r.c.ProcessState == nil {
		t.Error("the process was not waited for")
	}
	lib, err := New().(driver.Described).Library(t.Context())
	if err != nil || !strings.HasPrefix(lib.Version, "5.") || lib.Path == "" {
		t.Errorf("library %+v, %v", lib, err)
	}
}

// What is no artifact, or of another device, is refused before any library sees it.
func TestLoadRefuses(t *testing.T) {
	code, _ := build(t, op.A16SQ8C, embedded)
	m, err := onnx.Parse(code)
	if err != nil {
		t.Fatal(err)
	}
	p := open(t, map[string]string{"soc_model": "57", "htp_arch": "75"})
	refused := func(name string, a driver.Artifact, w driver.Weights, want string) {
		t.Helper()
		e, err := p.Load(t.Context(), a, w)
		if e != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
		if c := diag.ClassOf(err); c == diag.ClassInternal {
			t.Errorf("%s: class %v", name, c)
		}
	}
	prop := func(key, value string) []byte {
		c := *m
		c.Props = slices.Clone(m.Props)
		for i := range c.Props {
			if c.Props[i].Key == key {
				c.Props[i].Value = value
			}
		}
		return c.Marshal()
	}
	own := func(code []byte) driver.Artifact { return driver.Artifact{Driver: Name, Code: code} }
	refused("other driver", driver.Artifact{Driver: "ort", Code: code}, nil, `compiled for driver "ort"`)
	refused("weights", own(code), driver.Weights{{}}, "got 1 weights, want none")
	refused("truncated", own(code[:len(code)/2]), nil, "unexpected EOF")
	refused("empty", own(nil), nil, "the artifact is empty")
	refused("no artifact", own((&onnx.Model{}).Marshal()), nil, "what graph it was made of")
	refused("other SoC", own(prop(keyToken, "v2:6:2.51.0:5.51.0:79:69:8:0")), nil, "compiled for SoC 69 (SM8750, Snapdragon 8 Elite), this processor is of SoC 57 (SM8650, Snapdragon 8 Gen 3)")
	refused("other architecture", own(prop(keyToken, "v2:6:2.51.0:5.51.0:79:57:8:0")), nil, "architecture v79, this processor is a v75")
	refused("newer library", own(prop(keyToken, "v2:6:2.99.0:5.99.0:75:57:8:0")), nil, "version 5.99.0 of the HTP's interface (SDK 2.99.0), the library here has 5.")
	refused("other interface", own(prop(keyToken, "v2:6:2.51.0:6.0.0:75:57:8:0")), nil, "version 6.0.0")
	refused("other backend", own(prop(keyToken, "v2:4:2.51.0:5.51.0:75:57:8:0")), nil, "of backend 4, want 6")
	refused("file beside", driver.Artifact{Driver: Name, Code: code, Shared: []byte{1}}, nil, "got a shared one of 1 bytes")
	sharedCode, binary := build(t, op.A16SQ8C, shared)
	refused("shared for the emulator", driver.Artifact{Driver: Name, Code: sharedCode, Shared: binary}, nil, "which the emulator cannot load")
	broken := *m
	broken.Graph.Nodes = slices.Clone(m.Graph.Nodes)
	for i := range broken.Graph.Nodes {
		n := &broken.Graph.Nodes[i]
		n.Attrs = slices.Clone(n.Attrs)
		for j := range n.Attrs {
			if n.Attrs[j].Name == "ep_cache_context" {
				n.Attrs[j].S = n.Attrs[j].S[:len(n.Attrs[j].S)/2]
			}
		}
	}
	refused("half a binary", own(broken.Marshal()), nil, "")
	// None of it harmed the processor.
	e, err := p.Load(t.Context(), own(code), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// device is an engine that keeps what it is asked to load: there is no NPU here.
type device struct {
	files, codes []string
	binaries     [][]byte
	answer       ortapi.Compatibility
	failure      error
	closed       bool
}

func (*device) about() versions {
	return versions{Backend: ortapi.QNNBackend{API: ortapi.QNNVersion{Major: 5, Minor: 51}}}
}
func (d *device) compatible(string) (ortapi.Compatibility, error) { return d.answer, nil }
func (d *device) load(_ context.Context, p program) (int, error) {
	if d.failure != nil {
		return 0, d.failure
	}
	model, binary := []byte(nil), []byte(nil)
	var err error
	if p.File != "" {
		if model, err = os.ReadFile(p.File); err == nil {
			binary, err = os.ReadFile(filepath.Join(filepath.Dir(p.File), sharedFile))
		}
	}
	d.files, d.codes, d.binaries = append(d.files, p.File), append(d.codes, string(model)), append(d.binaries, binary)
	return len(d.files), err
}
func (d *device) run(int, [][]byte, [][]byte) error { return nil }
func (d *device) unload(int) error                  { return nil }
func (d *device) close() error                      { d.closed = true; return nil }

// loadsAsDevice loads artifacts of one binary on a processor that is a device in all but its engine.
func loadsAsDevice(t *testing.T, a, b driver.Artifact) {
	t.Helper()
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	d := &device{}
	p := &processor{Local: driver.Local{Name: Name + ":" + htp}, soc: 57, arch: 75, caps: capabilities(false), engine: d, loaded: map[*executable]bool{}, files: map[[32]byte]*staged{}}
	left := func() int {
		list, err := os.ReadDir(tmp)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	var loaded []driver.Executable
	for _, x := range []driver.Artifact{a, b, a} {
		e, err := p.Load(t.Context(), x, nil)
		if err != nil {
			t.Fatal(err)
		}
		loaded = append(loaded, e)
	}
	for i, x := range []driver.Artifact{a, b, a} {
		if d.codes[i] != string(x.Code) || string(d.binaries[i]) != string(x.Shared) || filepath.Dir(d.files[i]) != filepath.Dir(d.files[0]) {
			t.Errorf("program %d: model of %d bytes, binary of %d in %q", i, len(d.codes[i]), len(d.binaries[i]), d.files[i])
		}
	}
	if st, err := os.Stat(filepath.Dir(d.files[0])); err != nil || st.Mode().Perm() != 0o700 || left() != 1 {
		t.Errorf("folder %v, %v, %d folders", st, err, left())
	}
	for i, e := range loaded {
		if left() != 1 {
			t.Errorf("%d folders with %d programs", left(), len(loaded)-i)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	if left() != 0 {
		t.Errorf("%d folders are left", left())
	}
	refused := func(change func(*driver.Artifact), want string) {
		t.Helper()
		x := a
		change(&x)
		if _, err := p.Load(t.Context(), x, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if left() != 0 {
			t.Errorf("%d folders are left after %q", left(), want)
		}
	}
	refused(func(x *driver.Artifact) { x.Shared = nil }, "says that its binary is shared, and got a shared one of 0 bytes")
	d.answer = ortapi.Unsupported
	refused(func(*driver.Artifact) {}, "compiled for SoC 57 (SM8650, Snapdragon 8 Gen 3) with SDK 2.")
	d.answer = ortapi.Optimal
	d.failure = errors.New("the device says no")
	refused(func(*driver.Artifact) {}, "the device says no")
	d.failure = nil
	t.Setenv("TMPDIR", filepath.Join(tmp, "gone"))
	if _, err := p.Load(t.Context(), a, nil); err == nil || !strings.Contains(err.Error(), "create a folder for the shared binary") || diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("without a folder: %v", err)
	}
	t.Setenv("TMPDIR", tmp)
	if _, err := p.Load(t.Context(), a, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil || !d.closed || left() != 0 {
		t.Errorf("close: %v, %v, %d folders", err, d.closed, left())
	}
	e := open(t, target)
	if _, err := e.Load(t.Context(), a, nil); err == nil || !strings.Contains(err.Error(), "which the emulator cannot load") {
		t.Errorf("on the emulator: %v", err)
	}
}
