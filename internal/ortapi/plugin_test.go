package ortapi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/require"
)

// plugin registers a provider, compiles with it and makes a session, and gives everything back, even after an error.
func (f *fake) plugin() (told string, err error) {
	e, err := f.NewEnv(EnvOptions{})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := e.RegisterProvider("FakeExecutionProvider", "lib/of it.so"); err != nil {
		return "", err
	}
	devices, err := e.Devices()
	if err != nil {
		return "", err
	}
	if len(devices) != 2 {
		return "", fmt.Errorf("%d devices", len(devices))
	}
	d := devices[1]
	told = fmt.Sprintf("%q %q %q %q\n", devices[0].Provider, d.Provider, d.Vendor, d.Version)
	for _, info := range []string{"good", "bad"} {
		c, err := d.Compatibility(info)
		if err != nil {
			return "", err
		}
		told += c.String() + "\n"
	}
	o := &SessionOptions{Devices: devices[1:], ProviderOptions: [][2]string{{"backend_path", "x"}, {"soc_model", "57"}}}
	if err := e.Compile(Compilation{Model: "in.onnx", Output: "out.onnx", Embed: true}, o); err != nil {
		return "", err
	}
	s, err := e.NewSession([]byte("compiled"), o)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p, err := s.Placement()
	return told + fmt.Sprint(p), err
}

// Every argument of a plugin's calls arrives as it was given, and every answer comes back.
func TestPlugin(t *testing.T) {
	f := loadFake(t)
	native.Call(f.fail, 0)
	told, err := f.plugin()
	if err != nil {
		t.Fatal(err)
	}
	const want = `"CPUExecutionProvider" "FakeExecutionProvider" "Fake Company" "1.2.3"
supported
unsupported
[{FakeExecutionProvider [{n0 com.microsoft EPContext}]} {CPUExecutionProvider [{n0 com.microsoft EPContext}]}]`
	if told != want {
		t.Errorf("told:\n%s\nwant:\n%s", told, want)
	}
	const session = "level 0\nshared pool\nconfig session.record_ep_graph_assignment_info=1\ndevices backend_path=x soc_model=57\n"
	const arrived = "pool 1\narena\nregister FakeExecutionProvider lib/of it.so\n" + session + "compile in.onnx\nto out.onnx\nembedded\ncompiled\n" + session + "model compiled\n"
	if got := native.String(native.Call(f.seen), 8192); got != arrived {
		t.Errorf("arrived:\n%s\nwant:\n%s", got, arrived)
	}
	if n := native.Call(f.live); n != 0 {
		t.Errorf("%d objects were not given back", n)
	}
}

// Whichever call fails, its message comes back, and nothing is lost.
func TestPluginFailures(t *testing.T) {
	f := loadFake(t)
	native.Call(f.fail, 0)
	if _, err := f.plugin(); err != nil {
		t.Fatal(err)
	}
	all := int(native.Call(f.calls))
	if all < 50 {
		t.Fatalf("%d calls", all)
	}
	for n := 1; n <= all; n++ {
		native.Call(f.fail, uintptr(n))
		_, err := f.plugin()
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(e.Message, "asked to fail in ") || diag.ClassOf(err) != diag.ClassRun {
			t.Fatalf("call %d: %v", n, err)
		}
		if live := int(native.Call(f.live)); live != 0 {
			t.Fatalf("call %d, %v: %d objects were not given back", n, err, live)
		}
	}
}

// A library without the functions is good for everything else, and says what it lacks where they are needed.
func TestPluginIncomplete(t *testing.T) {
	for _, c := range []struct{ define, want string }{
		{"FAKE_HOLE=301", "function 301 of its interface, for plugin execution providers, is missing"},
		{"FAKE_HOLE=412", "function 412 of its interface, for plugin execution providers, is missing"},
		{"FAKE_NO_COMPILER", "does not compile models"},
		{"FAKE_COMPILE_HOLE=8", "function 8 of its interface for compiling is missing"},
		{"FAKE_MANY", "says there are 1073741824"},
	} {
		t.Run(c.define, func(t *testing.T) {
			l, err := Load(compile(t, c.define))
			if err != nil {
				t.Fatal(err)
			}
			f := &fake{Library: l}
			_, err = f.plugin()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if strings.HasPrefix(c.define, "FAKE_HOLE") && diag.ClassOf(err) != diag.ClassUnavailable {
				t.Errorf("class %v", diag.ClassOf(err))
			}
		})
	}
}

// What cannot be right is refused before the library sees it.
func TestPluginRefuses(t *testing.T) {
	f := loadFake(t)
	native.Call(f.fail, 0)
	e, err := f.NewEnv(EnvOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := errors.Join(e.RegisterProvider("x", "y")); err != nil {
		t.Fatal(err)
	}
	devices, err := e.Devices()
	if err != nil {
		t.Fatal(err)
	}
	d := devices[1:]
	for name, err := range map[string]error{
		"name":     e.RegisterProvider("a\x00", "b"),
		"path":     e.RegisterProvider("a", "b\x00"),
		"info":     second(d[0].Compatibility("\x00")),
		"device":   second(Device{}.Compatibility("")),
		"no model": e.Compile(Compilation{Output: "b"}, &SessionOptions{Devices: d}),
		"output":   e.Compile(Compilation{Model: "a", Output: "b\x00"}, &SessionOptions{Devices: d}),
		"other":    second(e.NewSession([]byte("m"), &SessionOptions{Devices: []Device{{}}})),
		"both":     second(e.NewSession([]byte("m"), &SessionOptions{Devices: d, Provider: "x"})),
		"option":   second(e.NewSession([]byte("m"), &SessionOptions{Devices: d, ProviderOptions: [][2]string{{"a", "\x00"}}})),
	} {
		if err == nil || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: %v", name, err)
		}
	}
	s, err := e.NewSession([]byte("m"), &SessionOptions{Devices: d})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Placement(); err == nil {
		t.Error("a closed session told its placement")
	}
}

func second[T any](_ T, err error) error { return err }

// The libraries are found where pip and make deps-qnn put them, or by name; what is missing is named with the way out.
func TestFindQNN(t *testing.T) {
	if err := native.Supported(); err != nil {
		t.Skip(err)
	}
	root := t.TempDir()
	t.Setenv(EnvQNN, "")
	t.Setenv(native.EnvDir, root)
	t.Chdir(root)
	refused := func(file, want string) {
		t.Helper()
		q, err := FindQNN(file)
		var qe *QNNError
		if q != nil || !errors.As(err, &qe) || !strings.Contains(err.Error(), want) || diag.ClassOf(err) != diag.ClassUnavailable {
			t.Errorf("got %v, %v, want an error with %q", q, err, want)
		}
		var d *diag.Diagnostic
		if !errors.As(err, &d) || !strings.Contains(d.Hint, "make deps-qnn") {
			t.Errorf("hint of %v", err)
		}
	}
	dir := filepath.Join(root, "onnxruntime-qnn", "onnxruntime_qnn")
	refused("", filepath.Join(root, "onnxruntime-qnn"))
	refused(filepath.Join(root, "gone.so"), "gone.so")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	provider, backend := filepath.Join(dir, native.FileNames("onnxruntime_providers_qnn")[0]), filepath.Join(dir, native.FileNames("QnnHtp")[0])
	if err := os.WriteFile(provider, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	refused("", "no "+filepath.Base(backend)+" beside it")
	if err := os.WriteFile(backend, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	want := QNN{provider, backend}
	if q, err := FindQNN(""); err != nil || *q != want {
		t.Errorf("got %v, %v, want %v", q, err, want)
	}
	t.Setenv(native.EnvDir, "")
	t.Setenv(EnvQNN, provider)
	if q, err := FindQNN(""); err != nil || *q != want {
		t.Errorf("got %v, %v, want %v", q, err, want)
	}
}

// Qualcomm's provider compiles a model, its emulator executes the result, and the placement says who did.
func TestRealQNN(t *testing.T) {
	_, e := installed(t)
	q, err := FindQNN("")
	if err != nil {
		require.Skip(t, "qnn", err)
	}
	if err := e.RegisterProvider(QNNProvider, q.Provider); err != nil {
		t.Fatal(err)
	}
	devices, err := e.Devices()
	if err != nil {
		t.Fatal(err)
	}
	devices = slices.DeleteFunc(devices, func(d Device) bool { return d.Provider != QNNProvider })
	if len(devices) != 1 || devices[0].Vendor != "Qualcomm" {
		t.Fatalf("devices %+v", devices)
	}
	const m, k, n = 8, 64, 32
	model := onnx.Model{IR: onnx.IR, Producer: "test", Opsets: []onnx.OpsetID{{Domain: "", Version: onnx.Opset}}, Graph: onnx.Graph{
		Name:         "product",
		Nodes:        []onnx.Node{{Name: "n0", Op: "MatMul", In: []string{"i0", "w0"}, Out: []string{"o0"}}},
		Initializers: []onnx.Tensor{onnx.Float32s("w0", []int64{k, n}, ramp(k*n)...)},
		Inputs:       []onnx.Value{{Name: "i0", Type: onnx.Float32, Dims: []int64{m, k}}},
		Outputs:      []onnx.Value{{Name: "o0", Type: onnx.Float32, Dims: []int64{m, n}}},
	}}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("in.onnx", model.Marshal(), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &SessionOptions{Devices: devices, ProviderOptions: [][2]string{{"backend_path", q.Backend}, {"soc_model", "57"}, {"vtcm_mb", "8"}}}
	if err := e.Compile(Compilation{Model: "in.onnx", Output: "out.onnx", Embed: true}, o); err != nil {
		t.Fatal(err)
	}
	compiled, err := os.ReadFile("out.onnx")
	if err != nil {
		t.Fatal(err)
	}
	o.ProviderOptions = o.ProviderOptions[:1]
	s, err := e.NewSession(compiled, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, err := s.Placement()
	if err != nil || len(p) != 1 || p[0].Provider != QNNProvider || len(p[0].Nodes) != 1 || p[0].Nodes[0].Op != "EPContext" {
		t.Fatalf("placement %+v, %v", p, err)
	}
	b, err := s.NewBinding()
	if err != nil {
		t.Fatal(err)
	}
	in, iv := floats(t, e, m, k)
	got, ov := floats(t, e, m, n)
	copy(in, ramp(m*k))
	if err := errors.Join(b.BindInput("i0", iv), b.BindOutput("o0", ov), s.Run(b)); err != nil {
		t.Fatal(err)
	}
	w := ramp(k * n)
	for r := range m {
		for c := range n {
			var want float32
			for i := range k {
				want += in[r*k+i] * w[i*n+c]
			}
			if d := got[r*n+c] - want; d < -0.05 || d > 0.05 { // of values up to 20, in f16
				t.Fatalf("[%d,%d]: got %v, want %v", r, c, got[r*n+c], want)
			}
		}
	}
}

// ramp are values of -1 to 1 without a pattern along rows or columns.
func ramp(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i*7919%201-100) / 100
	}
	return x
}
