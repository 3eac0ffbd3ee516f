package qnn

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// libraries are a folder with a provider and a backend, compiled from testdata/fake.c or copied.
func libraries(t *testing.T, provider, backend []string) string {
	t.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("the emulator is for linux/amd64")
	}
	if _, err := ortapi.Find(""); err != nil {
		require.Skip(t, "qnn", err)
	}
	dir := t.TempDir()
	put := func(name string, defs []string) string {
		to := filepath.Join(dir, name)
		if len(defs) == 1 && filepath.IsAbs(defs[0]) {
			b, err := os.ReadFile(defs[0])
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to, b, 0o600); err != nil {
				t.Fatal(err)
			}
			return to
		}
		cc, err := exec.LookPath("cc")
		if err != nil {
			t.Skipf("libraries for tests need a C compiler: %v", err)
		}
		args := []string{"-shared", "-fPIC", "-w", "-o", to, "testdata/fake.c"}
		for _, d := range defs {
			args = append(args, "-D"+d)
		}
		if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return to
	}
	put("libQnnHtp.so", backend)
	return put("libonnxruntime_providers_qnn.so", provider)
}

// Whatever the libraries do, opening them is an error that says so, in time, and nothing is printed or left running.
func TestOpenWorld(t *testing.T) {
	require.Slow(t)
	old := startLimit
	t.Cleanup(func() { startLimit = old })
	good := []string{"FAKE_BACKEND"}
	for name, c := range map[string]struct {
		provider []string
		want     string
		class    diag.Class
	}{
		"crash":     {[]string{"FAKE_PROVIDER", "FAKE_CRASH"}, "SIGSEGV", diag.ClassRun},
		"abort":     {[]string{"FAKE_PROVIDER", "FAKE_ABORT"}, "the fake aborts", diag.ClassRun},
		"exit":      {[]string{"FAKE_PROVIDER", "FAKE_EXIT"}, "ended without an answer", diag.ClassRun},
		"hang":      {[]string{"FAKE_PROVIDER", "FAKE_HANG"}, "took more than", diag.ClassUnavailable},
		"no device": {[]string{"FAKE_PROVIDER"}, "offers no device on this machine", diag.ClassUnavailable},
		"no plugin": {good, "register execution provider", diag.ClassUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			if startLimit = old; name == "hang" {
				startLimit = 3 * time.Second
			}
			path := libraries(t, c.provider, good)
			p, err := New().Open(t.Context(), driver.Config{Select: emulator, Options: map[string]string{"library": path}})
			if p != nil || err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) != c.class {
				t.Fatalf("got %v of class %v, want %q of class %v", err, diag.ClassOf(err), c.want, c.class)
			}
			if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "goroutine") {
				t.Errorf("%q has stacks", err)
			}
		})
	}
}

// A library that does not come back is not waited for by who interrupts, nor without end.
func TestHang(t *testing.T) {
	path := libraries(t, []string{"FAKE_PROVIDER", "FAKE_HANG"}, []string{"FAKE_BACKEND"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start := time.Now()
	if p, err := New().Open(ctx, driver.Config{Select: emulator, Options: map[string]string{"library": path}}); p != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > startLimit/2 {
		t.Errorf("the interrupt took %v", took)
	}
	code, _ := build(t, op.A16SQ8C, embedded)
	p := open(t, nil)
	old := loadLimit
	t.Cleanup(func() { loadLimit = old })
	loadLimit = time.Nanosecond
	for _, want := range []string{"loading a graph took more than 1ns", "crashed"} {
		if _, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		loadLimit = old // so that the second time it is the process that is gone, and no limit
	}
}

// What is not there is unavailable, with what was tried and the way out.
func TestOpenRefuses(t *testing.T) {
	if platform(runtime.GOOS, runtime.GOARCH) != emulator {
		t.Skip("the emulator is for linux/amd64")
	}
	refused := func(c driver.Config, unavailable bool, want ...string) {
		t.Helper()
		p, err := New().Open(t.Context(), c)
		if p != nil || err == nil || errors.Is(err, driver.ErrUnavailable) != unavailable {
			t.Fatalf("got %v", err)
		}
		text := err.Error() + strings.Join(diag.HintsOf(err), " ")
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("got %v (%v), want %q", err, diag.HintsOf(err), w)
			}
		}
	}
	refused(driver.Config{Select: "cpu"}, false, "no such processor", "emulator on linux/amd64, htp on arm64")
	refused(driver.Config{Select: htp}, false, "this is linux/amd64", "there is no Hexagon NPU here", "--for-emulator")
	refused(driver.Config{Select: emulator, Options: map[string]string{"speed": "1"}}, false, `unknown option "speed"`, "soc_model")
	refused(driver.Config{Select: emulator, Options: map[string]string{"soc_model": "8gen3"}}, false, `option "soc_model" is "8gen3", want a number`)
	gone := filepath.Join(t.TempDir(), "gone.so")
	refused(driver.Config{Select: emulator, Options: map[string]string{"library": gone}}, true, "gone.so", ortapi.EnvQNN, "make deps-qnn")
	t.Setenv(ortapi.EnvQNN, "")
	t.Run("nowhere", func(t *testing.T) {
		t.Setenv("HETC_NATIVE_DIR", t.TempDir())
		t.Chdir(t.TempDir())
		refused(driver.Config{Select: emulator}, true, "onnxruntime-qnn", "make deps-qnn")
		if _, err := New().Devices(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("devices: %v", err)
		}
	})
	path := libraries(t, []string{"FAKE_PROVIDER"}, []string{"FAKE_BACKEND"})
	refused(driver.Config{Select: emulator, Options: map[string]string{"library": path, "onnxruntime": gone}}, true, "gone.so", ortapi.EnvLibrary)
	if err := os.Remove(filepath.Join(filepath.Dir(path), "libQnnHtp.so")); err != nil {
		t.Fatal(err)
	}
	refused(driver.Config{Select: emulator, Options: map[string]string{"library": path}}, true, "no libQnnHtp.so beside it")
	t.Setenv(workerEnv, "1")
	libraries(t, []string{"FAKE_PROVIDER"}, []string{"FAKE_BACKEND"})
	if _, err := openRemote(t.Context(), "", ortapi.QNN{}); err == nil || !strings.Contains(err.Error(), "does not start another") {
		t.Errorf("a process of a process: %v", err)
	}
}

// With a backend that is none, or of another version, the provider would leave everything to the CPU: nothing is loaded.
func TestBackend(t *testing.T) {
	code, _ := build(t, op.A16SQ8C, embedded)
	q, err := ortapi.FindQNN("")
	if err != nil {
		t.Fatal(err)
	}
	path := libraries(t, []string{q.Provider}, []string{"FAKE_BACKEND", "FAKE_NOTHING"})
	if _, err := New().Open(t.Context(), driver.Config{Select: emulator, Options: map[string]string{"library": path}}); err == nil || !strings.Contains(err.Error(), "names no interface") {
		t.Errorf("a backend without an interface: %v", err)
	}
	path = libraries(t, []string{q.Provider}, []string{"FAKE_BACKEND"})
	p := open(t, map[string]string{"library": path})
	a := driver.Artifact{Driver: Name, Code: code}
	if _, err := p.Load(t.Context(), a, nil); err == nil || !strings.Contains(err.Error(), "the library here has 4.99.0") || diag.ClassOf(err) != diag.ClassUnavailable {
		t.Errorf("a backend of another version: %v", err)
	}
	// Even where the version is believed, a provider that does not take the graph is an error, and not the CPU's business.
	m, err := onnx.Parse(code)
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.Props {
		if m.Props[i].Key == keyToken {
			m.Props[i].Value = "v2:6:2.51.0:4.99.0:75:57:8:0"
		}
	}
	if _, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: m.Marshal()}, nil); err == nil {
		t.Error("a graph was loaded by a backend that is none")
	} else {
		t.Log(err)
	}
}

// A process that ends while it computes, or crashes on what it loads, is an error of that call and of all later ones.
func TestCrash(t *testing.T) {
	code, _ := build(t, op.A16SQ8C, embedded)
	p := open(t, nil)
	if err := p.Attach(); err != nil {
		t.Fatal(err)
	}
	e, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, nil)
	if err != nil {
		t.Fatal(err)
	}
	x, y, b := operands(t, p)
	copy(x, ramp(rows*red))
	y[0] = 99
	if err := p.(*processor).engine.(*remote).c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := p.Run(e, b); err == nil || !strings.Contains(err.Error(), "crashed: signal: killed") || diag.ClassOf(err) != diag.ClassRun || y[0] != 99 {
			t.Fatalf("got %v", err)
		}
	}
	if _, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, nil); err == nil || !strings.Contains(err.Error(), "crashed") {
		t.Errorf("load: %v", err)
	}
	if err := errors.Join(e.Close(), p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
}

// A binary with shared weights that claims to be a graph's own crashes the library: that is an error, and never a result.
func TestDisguised(t *testing.T) {
	code, binary := build(t, op.A16SQ8C, shared)
	m, err := onnx.Parse(code)
	if err != nil {
		t.Fatal(err)
	}
	change := func(name string, f func(*onnx.Attr)) []byte {
		c := *m
		c.Graph.Nodes = append([]onnx.Node(nil), m.Graph.Nodes...)
		for i := range c.Graph.Nodes {
			n := &c.Graph.Nodes[i]
			n.Attrs = append([]onnx.Attr(nil), n.Attrs...)
			for j := range n.Attrs {
				if n.Attrs[j].Name == name {
					f(&n.Attrs[j])
				}
			}
		}
		return c.Marshal()
	}
	for _, path := range []string{"/etc/passwd", "../context.bin", "other.bin", sharedFile + "/../x", ""} {
		_, err := parse(change("ep_cache_context", func(a *onnx.Attr) { a.S = path }))
		if err == nil || !strings.Contains(err.Error(), "no other file is read") && !strings.Contains(err.Error(), "is empty") {
			t.Errorf("binary %q: %v", path, err)
		}
	}
	for name, value := range map[string]int64{"main_context": 0, "is_multi_soc_ep_context": 1, "embed_mode": 2} {
		if _, err := parse(change(name, func(a *onnx.Attr) { a.I = value })); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s %d: %v", name, value, err)
		}
	}
	p := open(t, nil)
	for what, text := range map[string]string{"noise": strings.Repeat("noise", 4000), "zeros": strings.Repeat("\x00", 1<<16), "half": string(binary[:len(binary)/2])} {
		c := *m
		c.Graph.Nodes = append([]onnx.Node(nil), m.Graph.Nodes...)
		code := change("ep_cache_context", func(a *onnx.Attr) { a.S = text })
		d, err := onnx.Parse(code)
		if err != nil {
			t.Fatal(err)
		}
		for i := range d.Graph.Nodes {
			for j := range d.Graph.Nodes[i].Attrs {
				if a := &d.Graph.Nodes[i].Attrs[j]; a.Name == "embed_mode" {
					a.I = 1
				}
			}
		}
		if e, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: d.Marshal()}, nil); e != nil || err == nil {
			t.Errorf("%s was loaded", what)
		} else {
			t.Logf("%s: %v", what, err)
		}
		if p.(*processor).engine.(*remote).dead != nil { // it crashed: another one for the rest
			p = open(t, nil)
		}
	}
}

// plain is an artifact in all but its binary, as the library and hetc's compiler make them.
func plain(t testing.TB) []byte {
	t.Helper()
	m := source(op.A16SQ8C)
	g := &m.Graph
	g.Nodes = []onnx.Node{
		g.Nodes[0],
		{Name: "c", Op: "EPContext", Domain: onnx.Contrib, In: []string{"xq"}, Out: []string{"yq"}, Attrs: []onnx.Attr{
			onnx.String("ep_cache_context", "binary"), onnx.String("ep_sdk_version", "v2.51.0"), onnx.Int("embed_mode", 1), onnx.String("io_name_overrides", "xq=x;"),
			onnx.Int("is_multi_soc_ep_context", 0), onnx.Int("main_context", 1), onnx.Int("max_size", 0), onnx.String("partition_name", "c"), onnx.String("source", ortapi.QNNProvider),
		}},
		g.Nodes[5],
	}
	g.Initializers = g.Initializers[:2]
	g.Inner = []onnx.Value{{Name: "yq", Type: onnx.Uint16, Dims: []int64{rows, cols}}}
	m.Opsets = append(m.Opsets, onnx.OpsetID{Domain: onnx.Contrib, Version: onnx.ContribOpset})
	m.Props = []onnx.Prop{{Key: keyToken, Value: "v2:6:2.51.0:5.51.0:75:57:8:0"}}
	a, err := artifact(graph(op.A16SQ8C), m.Marshal())
	if err != nil {
		t.Fatal(err)
	}
	return a.Marshal()
}

// What the CPU would compute, or what goes past the compiled graph, is no artifact.
func TestParseRefuses(t *testing.T) {
	code := plain(t)
	good, err := onnx.Parse(code)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := parse(code); err != nil || m.shared || m.token.soc != 57 || m.token.arch != 75 || m.token.api != (ortapi.QNNVersion{Major: 5, Minor: 51}) {
		t.Fatal(err)
	}
	context := -1
	for i, n := range good.Graph.Nodes {
		if n.Op == "EPContext" {
			context = i
		}
	}
	if context < 1 {
		t.Fatalf("no conversion before the compiled graph: %+v", good.Graph.Nodes)
	}
	for name, c := range map[string]struct {
		change func(m *onnx.Model)
		want   string
	}{
		"no graph":        {func(m *onnx.Model) { m.Props = m.Props[1:] }, "what graph it was made of"},
		"no token":        {func(m *onnx.Model) { m.Props = m.Props[:1] }, "what device and libraries"},
		"broken graph":    {func(m *onnx.Model) { m.Props[0].Value = "{" }, "parse graph"},
		"odd token":       {func(m *onnx.Model) { m.Props[1].Value = "v3:1" }, "want one of version 2"},
		"token's numbers": {func(m *onnx.Model) { m.Props[1].Value = "v2:6:2.51.0:5.51.0:x:57:8:0" }, "part 4 is no number"},
		"token's version": {func(m *onnx.Model) { m.Props[1].Value = "v2:6:2.51.0:5.51:75:57:8:0" }, "part 3 is no version"},
		"metadata":        {func(m *onnx.Model) { m.Props = append(m.Props, onnx.Prop{Key: "ort_config", Value: "{}"}) }, `metadata "ort_config" is not known`},
		"domain":          {func(m *onnx.Model) { m.Opsets = append(m.Opsets, onnx.OpsetID{Domain: "evil", Version: 1}) }, `domain "evil"`},
		"shape":           {func(m *onnx.Model) { m.Graph.Inputs[0].Dims = []int64{9, red} }, "want \"x\" f32 [8,64]"},
		"type":            {func(m *onnx.Model) { m.Graph.Outputs[0].Type = onnx.Float16 }, "output"},
		"two inputs":      {func(m *onnx.Model) { m.Graph.Inputs = append(m.Graph.Inputs, m.Graph.Inputs[0]) }, "2 inputs, the graph 1"},
		"an operator": {func(m *onnx.Model) {
			m.Graph.Nodes = append(m.Graph.Nodes, onnx.Node{Op: "MatMul", In: []string{"x", "x"}, Out: []string{"q"}})
		}, `node 3 is "MatMul", which the CPU would compute`},
		"no context":   {func(m *onnx.Model) { m.Graph.Nodes[context].Op = "Cast" }, "0 compiled graphs"},
		"other domain": {func(m *onnx.Model) { m.Graph.Nodes[context].Domain = "evil" }, "EPContext"},
		"two contexts": {func(m *onnx.Model) {
			n := m.Graph.Nodes[context]
			n.Out = []string{"again"}
			m.Graph.Nodes = append(m.Graph.Nodes, n)
		}, "2 compiled graphs"},
		"past it": {func(m *onnx.Model) { m.Graph.Nodes[len(m.Graph.Nodes)-1].In[0] = m.Graph.Nodes[0].Out[0] }, "does not come from the compiled graph"},
		"a weight as input": {func(m *onnx.Model) {
			m.Graph.Nodes[context].In = append(m.Graph.Nodes[context].In, m.Graph.Initializers[0].Name)
		}, "which comes from no input"},
		"computed twice": {func(m *onnx.Model) { m.Graph.Nodes[0].Out[0] = m.Graph.Inputs[0].Name }, "computed twice"},
		"external": {func(m *onnx.Model) {
			x := &m.Graph.Initializers[0]
			x.External, x.Raw = &onnx.External{Location: "/etc/passwd", Length: int64(len(x.Raw))}, nil
		}, `lies in the file "/etc/passwd"`},
		"a large constant": {func(m *onnx.Model) {
			m.Graph.Initializers = append(m.Graph.Initializers, onnx.Tensor{Name: "big", Type: onnx.Uint8, Dims: []int64{1 << 17}, Raw: make([]byte, 1<<17)})
		}, "131072 bytes, want at most"},
		"an attribute": {func(m *onnx.Model) {
			m.Graph.Nodes[context].Attrs = append(m.Graph.Nodes[context].Attrs, onnx.String("hidden", "x"))
		}, `attribute "hidden" that is not known`},
		"without a name": {func(m *onnx.Model) { m.Graph.Nodes[context].Attrs = m.Graph.Nodes[context].Attrs[:1] }, "has no attribute"},
		"other source": {func(m *onnx.Model) {
			for j := range m.Graph.Nodes[context].Attrs {
				if a := &m.Graph.Nodes[context].Attrs[j]; a.Name == "source" {
					a.S = "OpenVINOExecutionProvider"
				}
			}
		}, `is of "OpenVINOExecutionProvider"`},
	} {
		m, err := onnx.Parse(code)
		if err != nil {
			t.Fatal(err)
		}
		c.change(m)
		if _, err := parse(m.Marshal()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// Nothing makes the reader of artifacts fail other than by an error.
func FuzzParse(f *testing.F) {
	f.Add(plain(f))
	f.Add((&onnx.Model{}).Marshal())
	f.Fuzz(func(t *testing.T, code []byte) {
		if m, err := parse(code); err == nil && len(m.graph.Nodes) == 0 {
			t.Error("an artifact of no graph")
		}
	})
}

// Requests are decoded whatever they are, and calls of programs that are not there are refused.
func FuzzRequest(f *testing.F) {
	for _, q := range []request{{Run: &call{7, [][]byte{{1}}}}, {Unload: 9}, {}, {Load: &program{Code: []byte("x")}}} {
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(q); err != nil {
			f.Fatal(err)
		}
		var none *local
		if err := answer(&none, &q, &reply{}); err == nil {
			f.Errorf("%+v is answered without a library", q)
		}
		f.Add(b.Bytes())
		f.Add(b.Bytes()[:b.Len()/2])
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var q request
		if gob.NewDecoder(bytes.NewReader(in)).Decode(&q) != nil || q.Open != nil || q.Load != nil || q.Compatible != nil {
			return // the library's
		}
		l := &local{}
		if err := answer(&l, &q, &reply{}); err == nil && q.Run != nil {
			t.Errorf("%+v ran", q)
		}
	})
}
