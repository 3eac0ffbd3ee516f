package ortapi

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/require"
)

// installed is the installed library with its environment of two threads, for one test.
func installed(t *testing.T) (*Library, *Env) {
	t.Helper()
	require.Deps()
	l, err := Find("")
	if err != nil {
		require.Skip(t, "ort", err)
	}
	e, err := l.NewEnv(EnvOptions{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, e
}

// The library leaves no file that would identify this machine: it has no telemetry.
func TestNoTelemetry(t *testing.T) {
	const again = "HETC_TEST_TELEMETRY"
	if os.Getenv(again) != "" {
		installed(t)
		return
	}
	require.Deps()
	if _, err := Find(""); err != nil {
		require.Skip(t, "ort", err)
	}
	dir := t.TempDir()
	c := exec.Command(os.Args[0], "-test.run=^TestNoTelemetry$")
	// Without CI, which makes the library quiet by itself.
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "HETC_NATIVE_DIR", EnvLibrary} {
		if value, ok := os.LookupEnv(name); ok {
			c.Env = append(c.Env, name+"="+value)
		}
	}
	c.Env = append(c.Env, again+"=1", "HOME="+dir, "TMPDIR="+dir, "TMP="+dir, "LOCALAPPDATA="+dir)

	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

// productModel is the model o0 [m,n] = i0 [m,k] x w0 [k,n], the weight being external data.
func productModel(m, k, n int64) *onnx.Model {
	return &onnx.Model{
		IR:       onnx.IR,
		Producer: "test",
		Opsets:   []onnx.OpsetID{{Domain: "", Version: onnx.Opset}},
		Graph: onnx.Graph{
			Name:  "product",
			Nodes: []onnx.Node{{Op: "MatMul", In: []string{"i0", "w0"}, Out: []string{"o0"}}},
			Initializers: []onnx.Tensor{{
				Name:     "w0",
				Type:     onnx.Float32,
				Dims:     []int64{k, n},
				External: &onnx.External{Location: Weights, Length: k * n * 4},
			}},
			Inputs:  []onnx.Value{{Name: "i0", Type: onnx.Float32, Dims: []int64{m, k}}},
			Outputs: []onnx.Value{{Name: "o0", Type: onnx.Float32, Dims: []int64{m, n}}},
		},
	}
}

// product is the model in bytes.
func product(m, k, n int64) []byte {
	return productModel(m, k, n).Marshal()
}

// floats is memory outside the Go heap with a tensor over it.
func floats(t testing.TB, e *Env, shape ...int64) ([]float32, *Value) {
	t.Helper()
	count := int64(1)
	for _, d := range shape {
		count *= d
	}
	r, err := mem.Alloc(int(count*4), 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	x, err := mem.View[float32](r.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	v, err := e.NewTensor(r.Bytes(), Float32, shape)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return x, v
}

// bound is a product ready to run.
type bound struct {
	s       *Session
	b       *Binding
	in, out []float32
}

// newBound makes a session of a product whose weight is a tensor, and binds its operands.
func newBound(t testing.TB, e *Env, m, k, n int64, w *Value, o SessionOptions) *bound {
	t.Helper()
	o.Initializers = []Initializer{{"w0", w}}
	s, err := e.NewSession(product(m, k, n), &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	b, err := s.NewBinding()
	if err != nil {
		t.Fatal(err)
	}
	x := &bound{s: s, b: b}
	var iv, ov *Value
	x.in, iv = floats(t, e, m, k)
	x.out, ov = floats(t, e, m, n)
	if err := errors.Join(b.BindInput("i0", iv), b.BindOutput("o0", ov)); err != nil {
		t.Fatal(err)
	}
	return x
}

// run computes the product.
func (b *bound) run(t testing.TB) {
	t.Helper()
	if err := b.s.Run(b.b); err != nil {
		t.Fatal(err)
	}
}

// The installed library computes products with any number of threads, and reads operands where they are.
func TestReal(t *testing.T) {
	l, e := installed(t)
	if !strings.HasPrefix(l.Version, "1.") || l.BuildInfo == "" || !filepath.IsAbs(l.Path) {
		t.Errorf("%+v", l)
	}
	p, err := l.Providers()
	if err != nil || !slices.Contains(p, "CPUExecutionProvider") {
		t.Errorf("providers %q, %v", p, err)
	}
	const k, n = 3, 4
	w, wv := floats(t, e, k, n)
	for i := range w {
		w[i] = float32(i)
	}
	for _, threads := range []int{0, 1, 2} {
		x := newBound(t, e, 2, k, n, wv, SessionOptions{Threads: threads, Optimization: 99})
		want := "[{i0 float32 [2 3]}] [{o0 float32 [2 4]}]"
		if got := fmt.Sprint(x.s.Inputs, x.s.Outputs); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		copy(x.in, []float32{1, 0, 0, 1, 10, 100})
		x.run(t)
		if want := []float32{0, 1, 2, 3, 840, 951, 1062, 1173}; !slices.Equal(x.out, want) {
			t.Errorf("%d threads: got %v, want %v", threads, x.out, want)
		}
		x.in[0] = 2 // the memory itself is read, not a copy of it
		x.run(t)
		if x.out[1] != 2 {
			t.Errorf("%d threads: got %v", threads, x.out)
		}
	}
}

// The empty file that the library wants to see leaves no trace, wherever it can be; without any place that is told.
func TestRealWeightsFolder(t *testing.T) {
	_, e := installed(t)
	_, wv := floats(t, e, 3, 4)
	here, temp := t.TempDir(), t.TempDir()
	t.Chdir(here)
	t.Setenv("TMPDIR", temp)
	newBound(t, e, 1, 3, 4, wv, SessionOptions{Threads: 1}).s.Close()
	t.Setenv("TMPDIR", filepath.Join(temp, "gone"))
	newBound(t, e, 1, 3, 4, wv, SessionOptions{Threads: 1}).s.Close()
	if _, err := e.NewSession([]byte("rubbish"), &SessionOptions{Initializers: []Initializer{{"w0", wv}}}); err == nil {
		t.Error("rubbish was accepted")
	}
	for _, dir := range []string{here, temp} {
		if left, _ := filepath.Glob(filepath.Join(dir, ".hetc-ort-*")); len(left) > 0 {
			t.Errorf("left %q", left)
		}
	}
}

// A model or provider that the library refuses is an error in its own words.
func TestRealRefuses(t *testing.T) {
	l, e := installed(t)
	_, w := floats(t, e, 3, 4)
	with := func(v *Value) SessionOptions {
		return SessionOptions{Threads: 1, Initializers: []Initializer{{"w0", v}}}
	}
	provider := func(name string) SessionOptions {
		o := with(w)
		o.Provider, o.ProviderOptions = name, [][2]string{{"backend_path", "none"}}
		return o
	}
	offered, err := l.Providers()
	if err != nil {
		t.Fatal(err)
	}
	good := product(2, 3, 4)
	longKey := [][2]string{{strings.Repeat("k", 2000), "v"}}
	for _, c := range []struct {
		name    string
		model   []byte
		options SessionOptions
		want    string
	}{
		{"no model", []byte("rubbish"), with(w), "protobuf"},
		{"truncated", good[:len(good)/2], with(w), "INVALID_PROTOBUF"},
		{"other operator", bytes.Replace(good, []byte("MatMul"), []byte("MatMil"), 1), with(w), "MatMil"},
		{"no weight", good, SessionOptions{Threads: 1}, "weights"},
		{"unknown provider", good, provider("NoneExecutionProvider"), "NoneExecutionProvider"},
		{"absent provider", good, provider("QNNExecutionProvider"), "QNN"},
		{"absent CUDA", good, provider("CUDAExecutionProvider"), "CUDA"},
		{"absent TensorRT", good, provider("TensorrtExecutionProvider"), "TensorRT"},
		{"absent CANN", good, provider("CANNExecutionProvider"), "CANN"},
		{"absent Dnnl", good, provider("DnnlExecutionProvider"), "Dnnl"},
		{
			name:    "does not take it",
			model:   good,
			options: provider("AzureExecutionProvider"),
			want:    "fallback to CPU EP has been explicitly disabled",
		},
		{"config", good, SessionOptions{Threads: 1, Config: longKey}, "key"},
	} {
		if c.options.Provider == "AzureExecutionProvider" && !slices.Contains(offered, c.options.Provider) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			s, err := e.NewSession(c.model, &c.options)
			var failure *Error
			if s != nil || !errors.As(err, &failure) || diag.ClassOf(err) != diag.ClassRun {
				t.Fatalf("got %v, want an error of the library", err)
			}
			if text := err.Error(); !strings.Contains(text, c.want) || strings.Contains(text, "\n") {
				t.Errorf("got %q, want one line with %q", text, c.want)
			}
		})
	}

	gone := filepath.Join(t.TempDir(), "gone.onnx")
	_, err = e.NewSessionFromFile(gone, &SessionOptions{Threads: 1})
	if err == nil || !strings.Contains(err.Error(), "gone.onnx") {
		t.Errorf("absent file: %v", err)
	}
	if _, err := l.NewEnv(EnvOptions{}); err == nil {
		t.Error("a second environment was made")
	}
}

// Operands with other names, shapes or types than the model's are refused by the library.
func TestRealOperandsRefused(t *testing.T) {
	_, e := installed(t)
	_, w := floats(t, e, 3, 4)
	x := newBound(t, e, 2, 3, 4, w, SessionOptions{Threads: 1})
	_, in := floats(t, e, 2, 3)
	_, out := floats(t, e, 2, 4)
	_, three := floats(t, e, 3, 3)
	data, free, err := outside(8)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	eight, err := e.NewTensor(data, Uint8, []int64{2, 4})
	if err != nil {
		t.Fatal(err)
	}
	defer eight.Close()
	for _, c := range []struct {
		inName, outName string
		in, out         *Value
		want            string
	}{
		{"i0", "o0", three, out, "Got invalid dimensions for input: i0"},
		{"i0", "o0", in, three, "Got invalid dimensions for output: o0"},
		{"i0", "o0", in, eight, "Unexpected output data type"},
		{"i0", "o0", eight, out, "Unexpected input data type"},
		{"nothing", "o0", in, out, `bind input "nothing"`},
		{"i0", "nothing", in, out, "nothing"},
	} {
		b, err := x.s.NewBinding()
		if err != nil {
			t.Fatal(err)
		}
		if err = b.BindInput(c.inName, c.in); err == nil {
			err = b.BindOutput(c.outName, c.out)
		}
		if err == nil {
			err = x.s.Run(b)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}

	empty, err := x.s.NewBinding()
	if err != nil {
		t.Fatal(err)
	}
	if err := x.s.Run(empty); err == nil {
		t.Error("a binding without operands was run")
	}
}

// The kernel of a product finds a weight of another shape. Others trust what the model declares.
func TestRealWeightOfAnotherShape(t *testing.T) {
	_, e := installed(t)
	_, wrong := floats(t, e, 4, 3)
	x := newBound(t, e, 2, 3, 4, wrong, SessionOptions{Threads: 1})
	if err := x.s.Run(x.b); err == nil || !strings.Contains(err.Error(), "dimension mismatch") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// collect runs the garbage collector without end, and returns what stops it.
func collect() (stop func()) {
	done := make(chan struct{})
	var busy sync.WaitGroup
	busy.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				garbage = append(garbage[:0:0], make([]byte, 1<<16)...)
				runtime.GC()
			}
		}
	})
	return func() {
		close(done)
		busy.Wait()
	}
}

// onNewStack calls f on a new, small stack that grows by some frames.
func onNewStack(frames int, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		deep(frames, f)
	}()
	<-done
}

// pressed is a product whose operands are sines and cosines.
func pressed(t *testing.T, e *Env, m, k, n int64) (x *bound, weight *Value) {
	t.Helper()
	w, weight := floats(t, e, k, n)
	for i := range w {
		w[i] = float32(math.Sin(float64(i)))
	}
	x = newBound(t, e, m, k, n, weight, SessionOptions{Threads: 1, Optimization: 99})
	for i := range x.in {
		x.in[i] = float32(math.Cos(float64(i)))
	}
	return x, weight
}

// Many runs beside a busy garbage collector, on stacks that grow, give the same bits and allocate nothing.
func TestRealUnderPressure(t *testing.T) {
	_, e := installed(t)
	x, _ := pressed(t, e, 3, 64, 48)
	x.run(t)
	want := slices.Clone(x.out)
	if n := testing.AllocsPerRun(1000, func() { x.run(t) }); n != 0 {
		t.Errorf("%v allocations per run", n)
	}

	defer collect()()
	for i := range 10000 {
		clear(x.out)
		if i%100 == 0 {
			onNewStack(50, func() { x.run(t) })
		} else {
			x.run(t)
		}
		if !slices.Equal(x.out, want) {
			t.Fatalf("run %d: got %v, want %v", i, x.out[:4], want[:4])
		}
	}
}

// Sessions are made and described beside a busy garbage collector, on stacks that grow.
func TestRealSessionsUnderPressure(t *testing.T) {
	_, e := installed(t)
	const m, k, n = 3, 64, 48
	x, weight := pressed(t, e, m, k, n)
	x.run(t)

	defer collect()()
	for i := range 50 {
		onNewStack(i, func() {
			y := newBound(t, e, m, k, n, weight, SessionOptions{Threads: 1})
			defer y.s.Close()
			copy(y.in, x.in)
			y.run(t)
			shape := y.s.Outputs[0].Shape
			if len(y.s.Inputs) != 1 || y.s.Inputs[0].Name != "i0" || !slices.Equal(shape, []int64{m, n}) {
				t.Errorf("session %d: %+v", i, y.s)
			}
			if off := math.Abs(float64(y.out[5] - x.out[5])); off > 1e-4 {
				t.Errorf("session %d: got %v, want %v", i, y.out[5], x.out[5])
			}
		})
	}
}

// garbage is what collect makes.
var garbage []byte

// deep calls f below n frames of some kilobytes.
func deep(n int, f func()) {
	var frame [512]byte
	for i := range frame {
		frame[i] = byte(n)
	}
	if n == 0 {
		f()
	} else {
		deep(n-1, f)
	}
	if frame[n%512] != byte(n) {
		panic("BUG: a frame was overwritten")
	}
}

// resident is the process's resident size in bytes, 0 where it is not known.
func resident() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	var size, pages int64
	if _, e := fmt.Sscan(string(b), &size, &pages); err != nil || e != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// Sessions of several M over one weight give the results of their own ones, and hold its packed form once.
func TestRealSharedWeights(t *testing.T) {
	l, e := installed(t)
	const k, n, more = 1024, 2048, 8
	w, wv := floats(t, e, k, n)
	for i := range w {
		w[i] = float32(i%251) - 125
	}
	p, err := e.NewPrepackedWeights()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	results := map[bool][]float32{}
	growth := map[bool]int64{}
	for _, shared := range []bool{true, false} {
		o := SessionOptions{Threads: 1, Optimization: 99}
		if shared {
			o.Prepacked = p
		}
		make := func(m int64) *bound {
			x := newBound(t, e, m, k, n, wv, o)
			for i := range x.in {
				x.in[i] = float32(i%31) - 15
			}
			x.run(t)
			return x
		}
		x := make(4)
		results[shared] = slices.Clone(x.out)
		before := resident()
		for m := int64(5); m < 5+more; m++ {
			y := make(m)
			if !slices.Equal(y.out[:len(x.out)], x.out) {
				t.Errorf("shared %v: the rows of M = %d differ from those of M = 4", shared, m)
			}
		}
		growth[shared] = resident() - before
	}
	if !slices.Equal(results[true], results[false]) {
		t.Error("shared weights give other results")
	}
	const weight = k * n * 4
	t.Logf("%d more sessions: %d MiB shared, %d MiB with their own, weight %d MiB", more, growth[true]>>20,
		growth[false]>>20, weight>>20)
	if l.shares && resident() > 0 && (growth[true] > weight*more/2 || growth[false] < weight*more*7/8) {
		t.Errorf("%d more sessions: %d bytes shared, %d with their own, of a weight of %d", more, growth[true],
			growth[false], weight)
	}
}

// What is still open stays usable, whatever was closed before, and closing again does nothing.
func TestRealCloseOrder(t *testing.T) {
	l, e := installed(t)
	p, err := e.NewPrepackedWeights()
	if err != nil {
		t.Fatal(err)
	}
	w, wv := floats(t, e, 3, 4)
	for i := range w {
		w[i] = float32(i)
	}
	x := newBound(t, e, 2, 3, 4, wv, SessionOptions{Threads: 1, Prepacked: p})
	y := newBound(t, e, 2, 3, 4, wv, SessionOptions{Prepacked: p})
	copy(x.in, []float32{1, 0, 0, 1, 10, 100})
	for range 2 {
		if err := errors.Join(wv.Close(), p.Close(), e.Close(), y.b.Close(), y.s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	x.run(t)
	if want := []float32{0, 1, 2, 3, 840, 951, 1062, 1173}; !slices.Equal(x.out, want) {
		t.Errorf("got %v, want %v", x.out, want)
	}
	if err := errors.Join(x.s.Close(), x.b.Close(), x.s.Close()); err != nil {
		t.Error(err)
	}
	again, err := Load(l.Path)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // an environment can be made again, with other options
		e, err := again.NewEnv(EnvOptions{Threads: 2, Cores: []int{0}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.NewEnv(EnvOptions{}); err == nil {
			t.Error("the library loaded twice has two environments")
		}
		_, wv := floats(t, e, 3, 4)
		z := newBound(t, e, 1, 3, 4, wv, SessionOptions{})
		z.run(t)
		z.s.Close()
		e.Close()
	}
}

// The model as the library optimised it is written where it is asked to.
func TestRealOptimizedModel(t *testing.T) {
	_, e := installed(t)
	_, wv := floats(t, e, 3, 4)
	path := filepath.Join(t.TempDir(), "optimized.onnx")
	s, err := e.NewSession(product(1, 3, 4), &SessionOptions{
		Threads:            1,
		Initializers:       []Initializer{{"w0", wv}},
		OptimizedModelPath: path,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if st, err := os.Stat(path); err != nil || st.Size() == 0 {
		t.Error(err)
	}
}

// Sessions are made and run on several threads at a time.
func TestRealConcurrent(t *testing.T) {
	_, e := installed(t)
	w, wv := floats(t, e, 16, 16)
	for i := range w {
		w[i] = float32(i)
	}
	var all sync.WaitGroup
	for g := range 4 {
		x := newBound(t, e, 2, 16, 16, wv, SessionOptions{Threads: 1})
		all.Go(func() {
			runtime.LockOSThread()
			for i := range 500 {
				x.in[0] = float32(g*1000 + i)
				if err := x.s.Run(x.b); err != nil || x.out[1] != x.in[0] {
					t.Errorf("got %v, want %v, %v", x.out[1], x.in[0], err)
					return
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkRun runs the smallest product: what a call costs.
func BenchmarkRun(b *testing.B) {
	require.Deps()
	l, err := Find("")
	if err != nil {
		b.Skip(err)
	}
	e, err := l.NewEnv(EnvOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { e.Close() })
	_, wv := floats(b, e, 1, 1)
	x := newBound(b, e, 1, 1, 1, wv, SessionOptions{Threads: 1, Optimization: 99})
	b.ReportAllocs()
	for b.Loop() {
		x.run(b)
	}
}
