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
	const session = `level 0
shared pool
config session.record_ep_graph_assignment_info=1
devices backend_path=x soc_model=57
`
	const arrived = `pool 1
arena
register FakeExecutionProvider lib/of it.so
` + session + `compile in.onnx
to out.onnx
embedded
compiled
` + session + `model compiled
`
	if got := native.String(native.Call(f.seen), 8192); got != arrived {
		t.Errorf("arrived:\n%s\nwant:\n%s", got, arrived)
	}
	f.allGivenBack(t)
}

// Whichever call of a plugin fails, its message comes back as an error, and no object is lost.
func TestPluginFailures(t *testing.T) {
	f := loadFake(t)
	f.failEveryCall(t, 50, func() error {
		_, err := f.plugin()
		return err
	})
}

// A library without the functions of plugins is loaded, and says what it lacks where they are needed.
func TestPluginIncomplete(t *testing.T) {
	for _, c := range []struct{ define, want string }{
		{
			define: "FAKE_HOLE=301",
			want:   "function 301 of its interface, for plugin execution providers, is missing",
		},
		{
			define: "FAKE_HOLE=412",
			want:   "function 412 of its interface, for plugin execution providers, is missing",
		},
		{define: "FAKE_NO_COMPILER", want: "does not compile models"},
		{define: "FAKE_COMPILE_HOLE=8", want: "function 8 of its interface for compiling is missing"},
		{define: "FAKE_MANY", want: "says there are 1073741824"},
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

// Names, devices and options that cannot be right are an error of input before the library sees them.
func TestPluginRefuses(t *testing.T) {
	f := loadFake(t)
	e, err := f.NewEnv(EnvOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.RegisterProvider("x", "y"); err != nil {
		t.Fatal(err)
	}
	devices, err := e.Devices()
	if err != nil {
		t.Fatal(err)
	}
	d := devices[1:]
	odd := [][2]string{{"a", "\x00"}}
	model := []byte("m")
	for name, err := range map[string]error{
		"name":     e.RegisterProvider("a\x00", "b"),
		"path":     e.RegisterProvider("a", "b\x00"),
		"info":     second(d[0].Compatibility("\x00")),
		"device":   second(Device{}.Compatibility("")),
		"no model": e.Compile(Compilation{Output: "b"}, &SessionOptions{Devices: d}),
		"output":   e.Compile(Compilation{Model: "a", Output: "b\x00"}, &SessionOptions{Devices: d}),
		"other":    second(e.NewSession(model, &SessionOptions{Devices: []Device{{}}})),
		"both":     second(e.NewSession(model, &SessionOptions{Devices: d, Provider: "x"})),
		"option":   second(e.NewSession(model, &SessionOptions{Devices: d, ProviderOptions: odd})),
	} {
		if err == nil || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: %v", name, err)
		}
	}

	s, err := e.NewSession(model, &SessionOptions{Devices: d})
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

// second returns the error of a call with two results.
func second[T any](_ T, err error) error { return err }

// refuseQNN expects that the libraries are not found, with what was tried and how to get them.
func refuseQNN(t *testing.T, file, want string) {
	t.Helper()
	found, err := FindQNN(file)
	var problem *QNNError
	if found != nil || !errors.As(err, &problem) || diag.ClassOf(err) != diag.ClassUnavailable {
		t.Fatalf("got %v, %v, want an error", found, err)
	}
	if !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	if hints := strings.Join(diag.HintsOf(err), " "); !strings.Contains(hints, "make deps-qnn") {
		t.Errorf("hints %q of %v", hints, err)
	}
}

// The libraries are found where pip and make deps-qnn put them, or by name. What is missing is named with the way to
// get it.
func TestFindQNN(t *testing.T) {
	if err := native.Supported(); err != nil {
		t.Skip(err)
	}
	root := t.TempDir()
	t.Setenv(EnvQNN, "")
	t.Setenv(native.EnvDir, root)
	t.Chdir(root)
	dir := filepath.Join(root, "onnxruntime-qnn", "onnxruntime_qnn")
	provider := filepath.Join(dir, native.FileNames("onnxruntime_providers_qnn")[0])
	backend := filepath.Join(dir, native.FileNames("QnnHtp")[0])
	write := func(path string) {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}

	refuseQNN(t, "", filepath.Join(root, "onnxruntime-qnn"))
	refuseQNN(t, filepath.Join(root, "gone.so"), "gone.so")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(provider)
	refuseQNN(t, "", "no "+filepath.Base(backend)+" beside it")

	write(backend)
	want := QNN{provider, backend}
	if got, err := FindQNN(""); err != nil || *got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	t.Setenv(native.EnvDir, "")
	t.Setenv(EnvQNN, provider)
	if got, err := FindQNN(""); err != nil || *got != want {
		t.Errorf("by name: got %v, %v, want %v", got, err, want)
	}
}

// qnnDevice registers Qualcomm's provider, and returns its device.
func qnnDevice(t *testing.T, e *Env) (found *QNN, devices []Device) {
	t.Helper()
	found, err := FindQNN("")
	if err != nil {
		require.Skip(t, "qnn", err)
	}
	if err := e.RegisterProvider(QNNProvider, found.Provider); err != nil {
		t.Fatal(err)
	}
	devices, err = e.Devices()
	if err != nil {
		t.Fatal(err)
	}
	devices = slices.DeleteFunc(devices, func(d Device) bool { return d.Provider != QNNProvider })
	if len(devices) != 1 || devices[0].Vendor != "Qualcomm" {
		t.Fatalf("devices %+v", devices)
	}
	return found, devices
}

// Qualcomm's provider compiles a model, its emulator executes the result, and the placement says that it did.
func TestRealQNN(t *testing.T) {
	_, e := installed(t)
	found, devices := qnnDevice(t, e)
	const m, k, n = 8, 64, 32
	model, weight := productModel(m, k, n), ramp(k*n)
	model.Graph.Nodes[0].Name = "n0"
	model.Graph.Initializers = []onnx.Tensor{onnx.Float32s("w0", []int64{k, n}, weight...)}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("in.onnx", model.Marshal(), 0o600); err != nil {
		t.Fatal(err)
	}

	backend := [2]string{"backend_path", found.Backend}
	err := e.Compile(Compilation{Model: "in.onnx", Output: "out.onnx", Embed: true}, &SessionOptions{
		Devices:         devices,
		ProviderOptions: [][2]string{backend, {"soc_model", "57"}, {"vtcm_mb", "8"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := os.ReadFile("out.onnx")
	if err != nil {
		t.Fatal(err)
	}
	s, err := e.NewSession(compiled, &SessionOptions{Devices: devices, ProviderOptions: [][2]string{backend}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	placed, err := s.Placement()
	if err != nil || len(placed) != 1 || placed[0].Provider != QNNProvider {
		t.Fatalf("placement %+v, %v", placed, err)
	}
	if nodes := placed[0].Nodes; len(nodes) != 1 || nodes[0].Op != "EPContext" {
		t.Fatalf("placed nodes %+v", nodes)
	}

	b, err := s.NewBinding()
	if err != nil {
		t.Fatal(err)
	}
	in, from := floats(t, e, m, k)
	got, to := floats(t, e, m, n)
	copy(in, ramp(m*k))
	if err := errors.Join(b.BindInput("i0", from), b.BindOutput("o0", to), s.Run(b)); err != nil {
		t.Fatal(err)
	}
	for r := range m {
		for c := range n {
			var want float32
			for i := range k {
				want += in[r*k+i] * weight[i*n+c]
			}
			if off := got[r*n+c] - want; off < -0.05 || off > 0.05 { // of values up to 20, in f16
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
