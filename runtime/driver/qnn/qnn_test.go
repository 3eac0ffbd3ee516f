package qnn

import (
	"bytes"
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

// TestMain is a process of the driver or of the compiler where they start this program as one.
func TestMain(m *testing.M) {
	if Worker(os.Args[1:]) {
		exitAfter(Work())
	}
	if compile.Worker(os.Args[1:]) {
		exitAfter(compile.Work(".", os.Stdin))
	}
	require.Deps()
	os.Exit(m.Run())
}

// exitAfter ends the process after its work.
func exitAfter(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// The graph of the tests: y [M,N] = x [M,K] x w [K,N], in half precision or on a grid.
const (
	rows, red, cols = 8, 64, 32
	step            = float32(1) / 8192 // of values of -4 to 4
)

// graph is the product in a scheme.
func graph(scheme op.Scheme) op.Graph {
	return op.Single(op.Op{Kind: op.MatMul, M: rows, K: red, N: cols, Scheme: scheme}, op.OnnxLayout)
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
func source(scheme op.Scheme) *onnx.Model {
	m := &onnx.Model{
		IR:       onnx.IR,
		Producer: "test",
		Opsets:   []onnx.OpsetID{{Domain: "", Version: onnx.Opset}},
		Graph: onnx.Graph{
			Name:    "product",
			Inputs:  []onnx.Value{{Name: "x", Type: onnx.Float32, Dims: []int64{rows, red}}},
			Outputs: []onnx.Value{{Name: "y", Type: onnx.Float32, Dims: []int64{rows, cols}}},
		},
	}
	if scheme.Half() {
		m.Graph.Initializers = []onnx.Tensor{onnx.Float32s("w", []int64{red, cols}, ramp(red*cols)...)}
		m.Graph.Nodes = []onnx.Node{{Name: "n0", Op: "MatMul", In: []string{"x", "w"}, Out: []string{"y"}}}
		return m
	}

	const codes = 400 // of a weight of 1
	weights := make([]byte, red*cols)
	for i, v := range ramp(red * cols) {
		weights[i] = byte(int8(v * codes))
	}
	m.Graph.Initializers = []onnx.Tensor{
		onnx.Float32s("s", nil, step),
		{Name: "z", Type: onnx.Uint16, Raw: []byte{0, 0x80}},
		{Name: "w", Type: onnx.Int8, Dims: []int64{red, cols}, Raw: weights},
		onnx.Float32s("ws", []int64{cols}, slices.Repeat([]float32{1. / codes}, cols)...),
		{Name: "wz", Type: onnx.Int8, Dims: []int64{cols}, Raw: make([]byte, cols)},
	}
	columns := []onnx.Attr{onnx.Int("axis", 1)}
	m.Graph.Nodes = []onnx.Node{
		{Name: "n0", Op: "QuantizeLinear", In: []string{"x", "s", "z"}, Out: []string{"xq"}},
		{Name: "n1", Op: "DequantizeLinear", In: []string{"xq", "s", "z"}, Out: []string{"xd"}},
		{Name: "n2", Op: "DequantizeLinear", In: []string{"w", "ws", "wz"}, Out: []string{"wd"}, Attrs: columns},
		{Name: "n3", Op: "MatMul", In: []string{"xd", "wd"}, Out: []string{"m"}},
		{Name: "n4", Op: "QuantizeLinear", In: []string{"m", "s", "z"}, Out: []string{"yq"}},
		{Name: "n5", Op: "DequantizeLinear", In: []string{"yq", "s", "z"}, Out: []string{"y"}},
	}
	return m
}

// artifact makes the library's model hetc's own.
func artifact(graph op.Graph, wrapper []byte) (*onnx.Model, error) {
	m, err := onnx.Read(wrapper)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(&graph)
	if err != nil {
		return nil, err
	}
	m.IR = onnx.IR
	m.Props = append([]onnx.Prop{{Key: keyGraph, Value: string(text)}}, m.Props...)
	return m, nil
}

// compiler opens the libraries in this process, once for all tests.
var compiler = sync.OnceValues(func() (*local, error) {
	found, err := ortapi.FindQNN("")
	if err != nil {
		return nil, err
	}
	return openLocal("", *found)
})

// built are the models that build has compiled, in hetc's form, by scheme and place of the binary.
var built struct {
	sync.Mutex
	models map[string]builtModel
}

// builtModel is a model, and its binary where that is shared.
type builtModel struct{ code, binary []byte }

// build compiles the graph of the tests, once for all tests.
func build(t testing.TB, scheme op.Scheme, where string) (code, binary []byte) {
	t.Helper()
	l, err := compiler()
	if err != nil {
		require.Skip(t, "qnn", err)
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("the compiler is for linux/amd64")
	}
	built.Lock()
	defer built.Unlock()
	key := string(scheme) + where
	if m, ok := built.models[key]; ok {
		return m.code, m.binary
	}

	dir := t.TempDir()
	m, err := artifact(graph(scheme), compileIn(t, l, dir, scheme, where))
	if err != nil {
		t.Fatal(err)
	}
	if where == shared {
		file := attrOf(m, "ep_cache_context")
		if binary, err = os.ReadFile(filepath.Join(dir, file.S)); err != nil {
			t.Fatal(err)
		}
		file.S = sharedFile
	}
	if built.models == nil {
		built.models = map[string]builtModel{}
	}
	code = m.Marshal()
	built.models[key] = builtModel{code, binary}
	return code, binary
}

// compileIn compiles the graph of the tests with the library in a folder, and returns the model that wraps the binary.
func compileIn(t testing.TB, l *local, dir string, scheme op.Scheme, where string) []byte {
	t.Helper()
	in, out := filepath.Join(dir, "in.onnx"), filepath.Join(dir, "out.onnx")
	if err := os.WriteFile(in, source(scheme).Marshal(), 0o600); err != nil {
		t.Fatal(err)
	}
	options := &ortapi.SessionOptions{
		Devices: []ortapi.Device{l.device},
		ProviderOptions: [][2]string{
			{"backend_path", l.v.QNN.Backend},
			{"soc_model", "57"},
			{"vtcm_mb", "8"},
			{"htp_graph_finalization_optimization_mode", "3"},
			{"offload_graph_io_quantization", "1"},
		},
	}
	compilation := ortapi.Compilation{Model: in, Output: out, Embed: where == embedded}
	if err := l.env.Compile(compilation, options); err != nil {
		t.Fatal(err)
	}
	wrapper, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return wrapper
}

// open opens the emulator, and closes it after the test.
func open(t testing.TB, options map[string]string) driver.Processor {
	t.Helper()
	p, err := New().Open(t.Context(), driver.Config{Select: emulator, Options: options})
	if errors.Is(err, driver.ErrUnavailable) {
		require.Skip(t, "qnn", err)
	}
	if err != nil {
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
func operands(t testing.TB, p driver.Processor) (x, y []float32, bindings *driver.Bindings) {
	t.Helper()
	matrix := func(rows, cols int) ([]float32, driver.View) {
		buffer, err := p.Alloc(int64(4 * rows * cols))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { buffer.Close() })
		values, err := mem.View[float32](buffer.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		return values, driver.View{Buffer: buffer, Type: op.F32, Rows: rows, Cols: cols, Stride: cols}
	}
	x, in := matrix(rows, red)
	y, out := matrix(rows, cols)
	return x, y, &driver.Bindings{
		In:      []driver.View{in},
		Out:     []driver.View{out},
		Scalars: &driver.Scalars{Rows: rows, KVLen: rows, Seq: rows},
	}
}

// The emulator can do what the driver says: its graphs hold their weights, and its shapes are static.
func TestCapabilities(t *testing.T) {
	c := open(t, nil).Capabilities()
	if !c.WeightsInArtifacts || !c.Emulated || c.Virtual || c.DynamicRows {
		t.Errorf("capabilities %+v", c)
	}
}

// The emulator computes what the graph says, and two processors compute the same bits.
func TestRun(t *testing.T) {
	for _, scheme := range []op.Scheme{op.A16FW16, op.A16SQ8C} {
		t.Run(strings.ReplaceAll(string(scheme), "/", "-"), func(t *testing.T) {
			code, _ := build(t, scheme, embedded)
			one := open(t, map[string]string{"soc_model": "57", "htp_arch": "75", "vtcm_mb": "8", "opt": "3"})
			other := open(t, nil)
			results := runRamp(t, one, code)
			if !slices.Equal(results, runRamp(t, other, code)) {
				t.Error("two processors computed different results")
			}

			x, weight := ramp(rows*red), ramp(red*cols)
			for r := range rows {
				for c := range cols {
					var want float64
					for k := range red {
						want += float64(x[r*red+k]) * float64(weight[k*cols+c])
					}
					if got := float64(results[r*cols+c]); math.Abs(got-want) > 2e-3 {
						t.Fatalf("[%d,%d]: got %v, want %v", r, c, got, want)
					}
				}
			}
		})
	}
}

// runRamp computes the product of the ramp, and expects that the executable does not run after it is closed.
func runRamp(t *testing.T, p driver.Processor, code []byte) []float32 {
	t.Helper()
	if err := p.Attach(); err != nil {
		t.Fatal(err)
	}
	exe, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, nil)
	if err != nil {
		t.Fatal(err)
	}
	x, y, bindings := operands(t, p)
	copy(x, ramp(rows*red))

	span, err := p.Run(exe, bindings)
	if err != nil || span.End <= span.Start {
		t.Fatalf("span %v, %v", span, err)
	}
	results := slices.Clone(y)

	if err := errors.Join(exe.Close(), exe.Close()); err != nil {
		t.Error(err)
	}
	if _, err := p.Run(exe, bindings); err == nil || !strings.Contains(err.Error(), "executable is closed") {
		t.Errorf("run after close: %v", err)
	}
	return results
}

// like sets values to one size, with the signs of the first column of a matrix, so that the sum of products is large.
func like(values, matrix []float32, size float32) {
	for i := range values {
		values[i] = float32(math.Copysign(float64(size), float64(matrix[i*len(matrix)/len(values)])))
	}
}

// A call whose operands are not those of the graph, or whose values leave half precision, is refused, and the error
// says why. A good call after that computes.
func TestRunRefuses(t *testing.T) {
	code, _ := build(t, op.A16FW16, embedded)
	p := open(t, nil)
	exe, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(); err != nil {
		t.Fatal(err)
	}
	x, y, good := operands(t, p)
	third := x[2*red : 3*red]
	for _, c := range []struct {
		what   string
		change func(b *driver.Bindings)
		want   string
	}{
		{"no scalars", func(b *driver.Bindings) { b.Scalars = nil }, "no scalars"},
		{"negative rows", func(b *driver.Bindings) { b.Scalars.Rows = -1 }, "rows -1"},
		{"fewer rows", func(b *driver.Bindings) { b.Scalars.Rows = 3 }, "shapes are static"},
		{"no inputs", func(b *driver.Bindings) { b.In = nil }, "got 0 inputs"},
		{"other type", func(b *driver.Bindings) { b.In[0].Type = op.F16 }, "want f32 [8,64]"},
		{"fewer columns", func(b *driver.Bindings) { b.Out[0].Cols = 31 }, "want f32 [8,32]"},
		{"strided", func(b *driver.Bindings) { b.In[0].Stride = 65 }, "stride 65"},
		{"outside", func(b *driver.Bindings) { b.Out[0].Offset = 1 << 40 }, "does not fit"},
		{"NaN", func(*driver.Bindings) { third[1] = float32(math.NaN()) }, `input "x", row 2: a value is NaN`},
		{"infinity", func(*driver.Bindings) { third[1] = float32(math.Inf(1)) }, "row 2"},
		{
			what:   "no half",
			change: func(*driver.Bindings) { third[1] = -7e4 },
			want:   `input "x", row 2: a value is -70000, want at most 65504`,
		},
		{
			what:   "a result that is no half",
			change: func(*driver.Bindings) { like(third, ramp(red*cols), 6e4) },
			want:   `output "y", row 2: a value is `,
		},
	} {
		copy(x, ramp(rows*red))
		scalars := *good.Scalars
		bad := driver.Bindings{In: slices.Clone(good.In), Out: slices.Clone(good.Out), Scalars: &scalars}
		c.change(&bad)
		if _, err := p.Run(exe, &bad); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.what, err, c.want)
		}
	}

	copy(x, ramp(rows*red))
	y[0] = 99
	if _, err := p.Run(exe, good); err != nil || y[0] == 99 {
		t.Errorf("a good call after bad ones: %v", err)
	}
}

// A processor belongs to one thread, and computes nothing without it.
func TestAttach(t *testing.T) {
	code, _ := build(t, op.A16FW16, embedded)
	p := open(t, nil)
	exe, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _, bindings := operands(t, p)
	if _, err := p.Run(exe, bindings); err == nil || !strings.Contains(err.Error(), "no thread is attached") {
		t.Errorf("without a thread: %v", err)
	}
	if err := p.Attach(); err != nil {
		t.Fatal(err)
	}
	if p.Attach() == nil {
		t.Error("a second thread was attached")
	}
}

// A closed processor runs and loads nothing, and its executables can still be closed.
func TestClosed(t *testing.T) {
	code, _ := build(t, op.A16FW16, embedded)
	artifact := driver.Artifact{Driver: Name, Code: code}
	p := open(t, nil)
	exe, err := p.Load(t.Context(), artifact, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(); err != nil {
		t.Fatal(err)
	}
	_, _, bindings := operands(t, p)

	if err := p.Close(); err != nil {
		t.Fatal(err)
	}

	if _, err := p.Run(exe, bindings); err == nil || !strings.Contains(err.Error(), "processor is closed") {
		t.Errorf("run after close: %v", err)
	}
	if _, err := p.Load(t.Context(), artifact, nil); err == nil {
		t.Error("a closed processor loaded")
	}
	if err := exe.Close(); err != nil {
		t.Error(err)
	}
}

// A processor knows the versions of its libraries, and its process is gone when it is closed.
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
}

// The driver says which library it uses.
func TestLibrary(t *testing.T) {
	open(t, nil)
	library, err := New().(driver.Described).Library(t.Context())
	if err != nil || !strings.HasPrefix(library.Version, "5.") || library.Path == "" {
		t.Errorf("library %+v, %v", library, err)
	}
}

// What is no artifact, or is one for another device or library, is refused and does not harm the processor.
func TestLoadRefuses(t *testing.T) {
	code, _ := build(t, op.A16SQ8C, embedded)
	sharedCode, binary := build(t, op.A16SQ8C, shared)
	own := func(code []byte) driver.Artifact { return driver.Artifact{Driver: Name, Code: code} }
	ofToken := func(token string) driver.Artifact {
		return own(changed(t, code, func(m *onnx.Model) { setProp(m, keyToken, token) }))
	}
	p := open(t, map[string]string{"soc_model": "57", "htp_arch": "75"})
	for _, c := range []struct {
		what     string
		artifact driver.Artifact
		weights  driver.Weights
		want     string
	}{
		{
			what:     "other driver",
			artifact: driver.Artifact{Driver: "ort", Code: code},
			want:     `compiled for driver "ort"`,
		},
		{
			what:     "weights",
			artifact: own(code),
			weights:  driver.Weights{{}},
			want:     "got 1 weights, want none",
		},
		{
			what:     "truncated",
			artifact: own(code[:len(code)/2]),
			want:     "unexpected EOF",
		},
		{
			what:     "empty",
			artifact: own(nil),
			want:     "the artifact is empty",
		},
		{
			what:     "no artifact",
			artifact: own((&onnx.Model{}).Marshal()),
			want:     "what graph it was made of",
		},
		{
			what:     "other SoC",
			artifact: ofToken("v2:6:2.51.0:5.51.0:79:69:8:0"),
			want: "compiled for SoC 69 (SM8750, Snapdragon 8 Elite), this processor is of SoC 57 " +
				"(SM8650, Snapdragon 8 Gen 3)",
		},
		{
			what:     "other architecture",
			artifact: ofToken("v2:6:2.51.0:5.51.0:79:57:8:0"),
			want:     "architecture v79, this processor is a v75",
		},
		{
			what:     "newer library",
			artifact: ofToken("v2:6:2.99.0:5.99.0:75:57:8:0"),
			want:     "version 5.99.0 of the HTP's interface (SDK 2.99.0), the library here has 5.",
		},
		{
			what:     "other interface",
			artifact: ofToken("v2:6:2.51.0:6.0.0:75:57:8:0"),
			want:     "version 6.0.0",
		},
		{
			what:     "other backend",
			artifact: ofToken("v2:4:2.51.0:5.51.0:75:57:8:0"),
			want:     "of backend 4, want 6",
		},
		{
			what:     "file beside",
			artifact: driver.Artifact{Driver: Name, Code: code, Shared: []byte{1}},
			want:     "got a shared one of 1 bytes",
		},
		{
			what:     "shared for the emulator",
			artifact: driver.Artifact{Driver: Name, Code: sharedCode, Shared: binary},
			want:     "which the emulator cannot load",
		},
		{
			what:     "half a binary",
			artifact: own(changed(t, code, halve)),
		},
	} {
		exe, err := p.Load(t.Context(), c.artifact, c.weights)
		if exe != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.what, err, c.want)
		}
		if diag.ClassOf(err) == diag.ClassInternal {
			t.Errorf("%s: an internal error", c.what)
		}
	}

	exe, err := p.Load(t.Context(), own(code), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := exe.Close(); err != nil {
		t.Error(err)
	}
}

// device is an engine that keeps what it is asked to load: there is no NPU here.
type device struct {
	programs []deviceProgram
	answer   ortapi.Compatibility
	failure  error
	closed   bool
}

// deviceProgram is a program as the device finds it on the disk.
type deviceProgram struct {
	dir           string
	model, binary []byte
}

func (*device) about() versions {
	return versions{Backend: ortapi.QNNBackend{API: ortapi.QNNVersion{Major: 5, Minor: 51}}}
}

func (d *device) compatible(string) (ortapi.Compatibility, error) { return d.answer, nil }

func (d *device) load(_ context.Context, p program) (int, error) {
	if d.failure != nil {
		return 0, d.failure
	}
	dir := filepath.Dir(p.File)
	model, err := os.ReadFile(p.File)
	if err != nil {
		return 0, err
	}
	binary, err := os.ReadFile(filepath.Join(dir, sharedFile))
	if err != nil {
		return 0, err
	}
	d.programs = append(d.programs, deviceProgram{dir, model, binary})
	return len(d.programs), nil
}

func (d *device) run(int, [][]byte, [][]byte) error { return nil }

func (d *device) unload(int) error { return nil }

func (d *device) close() error {
	d.closed = true
	return nil
}

// openDevice opens a processor that is a device in all but its engine. Its folders for shared binaries lie in tmp.
func openDevice(t *testing.T) (p *processor, d *device, tmp string) {
	t.Helper()
	tmp = t.TempDir()
	t.Setenv("TMPDIR", tmp)
	d = &device{}
	p = &processor{
		Local:  driver.Local{Name: Name + ":" + htp},
		soc:    57,
		arch:   75,
		caps:   capabilities(false),
		engine: d,
		loaded: map[*executable]bool{},
		files:  map[[32]byte]*staged{},
	}
	return p, d, tmp
}

// countFiles counts the entries of a folder.
func countFiles(t *testing.T, dir string) int {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// A device finds the programs of one binary beside it in a folder of their own, which is removed with the last of them.
func TestSharedOnDevice(t *testing.T) {
	a, b := compileShared(t)
	p, d, tmp := openDevice(t)

	artifacts := []driver.Artifact{a, b, a}
	var loaded []driver.Executable
	for _, x := range artifacts {
		exe, err := p.Load(t.Context(), x, nil)
		if err != nil {
			t.Fatal(err)
		}
		loaded = append(loaded, exe)
	}

	dir := d.programs[0].dir
	for i, x := range artifacts {
		got := d.programs[i]
		if !bytes.Equal(got.model, x.Code) || !bytes.Equal(got.binary, x.Shared) || got.dir != dir {
			t.Errorf("program %d: model of %d bytes, binary of %d in %q", i, len(got.model), len(got.binary), got.dir)
		}
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("folder %v, %v", info, err)
	}

	for i, exe := range loaded {
		if n := countFiles(t, tmp); n != 1 {
			t.Errorf("%d folders with %d programs", n, len(loaded)-i)
		}
		if err := exe.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := countFiles(t, tmp); n != 0 {
		t.Errorf("%d folders are left", n)
	}
}

// A program that a device cannot load leaves no folder behind.
func TestDeviceRefuses(t *testing.T) {
	a, _ := compileShared(t)
	p, d, tmp := openDevice(t)
	refuse := func(x driver.Artifact, want string) {
		t.Helper()
		if _, err := p.Load(t.Context(), x, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if n := countFiles(t, tmp); n != 0 {
			t.Errorf("%d folders are left after %q", n, want)
		}
	}

	alone := a
	alone.Shared = nil
	refuse(alone, "says that its binary is shared, and got a shared one of 0 bytes")
	d.answer = ortapi.Unsupported
	refuse(a, "compiled for SoC 57 (SM8650, Snapdragon 8 Gen 3) with SDK 2.")
	d.answer = ortapi.Optimal
	d.failure = errors.New("the device says no")
	refuse(a, "the device says no")
	d.failure = nil

	t.Setenv("TMPDIR", filepath.Join(tmp, "gone"))
	_, err := p.Load(t.Context(), a, nil)
	if err == nil || !strings.Contains(err.Error(), "create a folder for the shared binary") {
		t.Errorf("without a folder: %v", err)
	}
	if class := diag.ClassOf(err); class != diag.ClassIO {
		t.Errorf("class %v of %v", class, err)
	}
}

// A processor that is closed closes its device and removes its folder.
func TestCloseDevice(t *testing.T) {
	a, _ := compileShared(t)
	p, d, tmp := openDevice(t)
	if _, err := p.Load(t.Context(), a, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if n := countFiles(t, tmp); !d.closed || n != 0 {
		t.Errorf("closed %v, %d folders", d.closed, n)
	}
}
