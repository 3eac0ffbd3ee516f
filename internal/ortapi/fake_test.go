package ortapi

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/require"
)

// compile makes a library of testdata/fake.c with the given definitions.
func compile(t *testing.T, defs ...string) string {
	t.Helper()
	if err := native.Supported(); err != nil {
		t.Skip(err)
	}
	if runtime.GOOS == "windows" {
		t.Skip("the library for tests is compiled with cc's options on Unix")
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("the library for tests needs a C compiler: %v", err)
	}
	path := filepath.Join(t.TempDir(), "libfake.so")
	args := []string{"-shared", "-fPIC", "-w", "-o", path, "testdata/fake.c"}
	for _, d := range defs {
		args = append(args, "-D"+d)
	}
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// What is wrong with a library is told apart, by name, and is of the class that commands exit with.
func TestLoadRefuses(t *testing.T) {
	require.Slow(t)
	dir := t.TempDir()
	text := filepath.Join(dir, "text.so")
	if err := os.WriteFile(text, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(compile(t))
	if err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(dir, "half.so")
	if err := os.WriteFile(half, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path    string
		problem Problem
		cause   native.Problem
		want    string
	}{
		"absent":       {filepath.Join(dir, "gone.so"), Unloadable, native.Absent, "gone.so\": not there"},
		"a folder":     {dir + "/", Unloadable, native.Broken, "a folder"},
		"text":         {text, Unloadable, native.Broken, "not a shared library"},
		"truncated":    {half, Unloadable, native.Broken, "not a shared library"},
		"other symbol": {compile(t, "FAKE_NO_SYMBOL"), NotORT, native.MissingSymbol, `no function "OrtGetApiBase"`},
		"no base":      {compile(t, "FAKE_NO_BASE"), NotORT, 0, "OrtGetApiBase returned nothing"},
		"empty base":   {compile(t, "FAKE_EMPTY_BASE"), NotORT, 0, "OrtApiBase lacks functions"},
		"no version":   {compile(t, `FAKE_VERSION="banana"`), NotORT, 0, `version "banana"`},
		"too old":      {compile(t, `FAKE_VERSION="1.23.2"`), TooOld, 0, "version 1.23.2 is too old, want 1.24 or later"},
		"too new":      {compile(t, `FAKE_VERSION="2.0.0"`), TooNew, 0, "version 2.0.0 is too new, want 1.24 to 1.x"},
		"no interface": {compile(t, "FAKE_NO_API"), TooNew, 0, "version 1.28.0 does not offer version 24 of its interface"},
		"hole":         {compile(t, "FAKE_HOLE=133"), NotORT, 0, "function 133 of its interface is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := Load(c.path)
			var le *LoadError
			if l != nil || !errors.As(err, &le) || le.Problem != c.problem || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want problem %d with %q", err, c.problem, c.want)
			}
			var ne *native.Error
			if c.cause != 0 && (!errors.As(err, &ne) || ne.Problem != c.cause) {
				t.Errorf("cause %v, want %v", ne, c.cause)
			}
			if got := diag.ClassOf(fmt.Errorf("open: %w", err)); got != diag.ClassUnavailable {
				t.Errorf("class %v", got)
			}
			if strings.ContainsAny(err.Error(), "\n") {
				t.Errorf("%q has several lines", err)
			}
		})
	}
}

// fake is the library for tests with what it counts.
type fake struct {
	*Library
	live, calls, fail, seen uintptr
}

func loadFake(t *testing.T) *fake {
	t.Helper()
	path := compile(t)
	l, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	nl, err := native.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{Library: l}
	for name, fn := range map[string]*uintptr{"fake_live": &f.live, "fake_calls": &f.calls, "fake_fail": &f.fail, "fake_seen": &f.seen} {
		if *fn, err = nl.Symbol(name); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// everything makes and uses one object of each kind, and closes all of it even after an error.
func (f *fake) everything(data []byte) (s *Session, err error) {
	var closers []func() error
	defer func() {
		for i := range closers { // in the order of making, which is the wrong one
			if e := closers[i](); err == nil {
				err = e
			}
			if e := closers[i](); err == nil {
				err = e
			}
		}
	}()
	if _, err := f.Providers(); err != nil {
		return nil, err
	}
	e, err := f.NewEnv(EnvOptions{Threads: 3, Cores: []int{1, 70}})
	if err != nil {
		return nil, err
	}
	closers = append(closers, e.Close)
	v, err := e.NewTensor(data, Float16, []int64{2, 3})
	if err != nil {
		return nil, err
	}
	closers = append(closers, v.Close)
	w, err := e.NewPrepackedWeights()
	if err != nil {
		return nil, err
	}
	closers = append(closers, w.Close)
	s, err = e.NewSession([]byte("bytes of a model"), &SessionOptions{Threads: 2, Cores: []int{4}, Optimization: 99, Config: [][2]string{{"key", "value"}},
		Provider: "XExecutionProvider", ProviderOptions: [][2]string{{"first", "1"}, {"second", "two"}, {"third", ""}},
		Initializers: []Initializer{{"w0", v}}, Prepacked: w, OptimizedModelPath: "some/where"})
	if err != nil {
		return nil, err
	}
	closers = append(closers, s.Close)
	for _, prepacked := range []*PrepackedWeights{nil, w} {
		s2, err := e.NewSessionFromFile("a file", &SessionOptions{Prepacked: prepacked})
		if err != nil {
			return nil, err
		}
		closers = append(closers, s2.Close)
	}
	s3, err := e.NewSession([]byte("other"), &SessionOptions{Threads: 1, Provider: "CUDAExecutionProvider", ProviderOptions: [][2]string{{"device_id", "0"}}})
	if err != nil {
		return nil, err
	}
	closers = append(closers, s3.Close)
	b, err := s.NewBinding()
	if err != nil {
		return nil, err
	}
	closers = append(closers, b.Close)
	if err := b.BindInput("v0", v); err != nil {
		return nil, err
	}
	if err := b.BindOutput("o", v); err != nil {
		return nil, err
	}
	return s, s.Run(b)
}

// Every argument arrives as it was given, everything is given back, in whatever order it is closed.
func TestArguments(t *testing.T) {
	f := loadFake(t)
	if f.BuildInfo != "a build for tests" || f.Version != "1.28.0" {
		t.Errorf("version %q, build %q", f.Version, f.BuildInfo)
	}
	if p, err := f.Providers(); err != nil || strings.Join(p, ",") != "OneExecutionProvider,Two ExecutionProvider" {
		t.Errorf("providers %q, %v", p, err)
	}
	native.Call(f.fail, 0)
	data, free, err := outside(12)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	data[0] = 77
	s, err := f.everything(data)
	if err != nil {
		t.Fatal(err)
	}
	const want = `pool 3
affinity 2;71
arena
tensor type 10 bytes 12 first 77 dims 2 3
level 99
threads 2
config session.use_env_allocators=1
config session.use_device_allocator_for_initializers=1
config key=value
config session.intra_op_thread_affinities=5
config session.model_external_initializers_file_folder_path=FOLDER
config session.disable_cpu_ep_fallback=1
optimized some/where
provider XExecutionProvider first=1 second=two third=
initializer w0
model bytes of a model prepacked
level 0
shared pool
config session.use_env_allocators=1
config session.use_device_allocator_for_initializers=1
model file a file
level 0
shared pool
config session.use_env_allocators=1
config session.use_device_allocator_for_initializers=1
model file a file prepacked
level 0
threads 1
config session.use_env_allocators=1
config session.use_device_allocator_for_initializers=1
config session.disable_cpu_ep_fallback=1
own device_id=0
own provider
model other
in v0
out o
`
	got := native.String(native.Call(f.seen), 8192)
	if i := strings.Index(got, "folder_path="); i >= 0 {
		folder, _, _ := strings.Cut(got[i+len("folder_path="):], "\n")
		got = strings.Replace(got, folder, "FOLDER", 1)
		if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("folder %q is still there: %v", folder, err)
		}
	}
	if got != want {
		t.Errorf("arrived:\n%s\nwant:\n%s", got, want)
	}
	if n := native.Call(f.live); n != 0 {
		t.Errorf("%d objects were not given back", n)
	}
	if want := "[{v0 float16 [-1 3000000000]} {v1 element type 0 []}] [{v0 float16 [-1 3000000000]}]"; fmt.Sprint(s.Inputs, s.Outputs) != want {
		t.Errorf("got %v %v, want %s", s.Inputs, s.Outputs, want)
	}
}

// Whichever call fails, its message comes back as an error, and nothing is lost: no status, no object.
func TestFailures(t *testing.T) {
	f := loadFake(t)
	data, free, err := outside(12)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	native.Call(f.fail, 0)
	if _, err := f.everything(data); err != nil {
		t.Fatal(err)
	}
	all := int(native.Call(f.calls))
	if all < 60 {
		t.Fatalf("%d calls", all)
	}
	for n := 1; n <= all; n++ {
		native.Call(f.fail, uintptr(n))
		_, err := f.everything(data)
		var e *Error
		if !errors.As(err, &e) || e.Code != 11 || e.Code.String() != "EP_FAIL" || !strings.Contains(e.Message, "asked to fail in ") || diag.ClassOf(err) != diag.ClassRun {
			t.Fatalf("call %d: %v", n, err)
		}
		if live := int(native.Call(f.live)); live != 0 {
			t.Fatalf("call %d, %v: %d objects were not given back", n, err, live)
		}
	}
}

// What cannot be right is refused before the library sees it.
func TestRefuses(t *testing.T) {
	f := loadFake(t)
	native.Call(f.fail, 0)
	for _, o := range []EnvOptions{{Threads: -1}, {Threads: 5000}, {Threads: 2, Cores: []int{}}, {Threads: 2, Cores: []int{0, 1}}, {Threads: 2, Cores: []int{-1}}} {
		if _, err := f.NewEnv(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	e, err := f.NewEnv(EnvOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.NewEnv(EnvOptions{}); err == nil || !strings.Contains(err.Error(), "has an environment") {
		t.Errorf("a second environment: %v", err)
	}
	data, free, err := outside(64)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	for _, c := range []struct {
		typ   ElementType
		shape []int64
	}{{Float32, []int64{4, 3}}, {Float32, []int64{-4, -4}}, {8, []int64{64}}, {Uint8, []int64{1 << 40, 1 << 40}}, {Uint8, nil}, {Uint8, append(make([]int64, 65), 64)}} {
		if _, err := e.NewTensor(data, c.typ, c.shape); err == nil {
			t.Errorf("%v %v of %d bytes was accepted", c.typ, c.shape, len(data))
		}
	}
	v, err := e.NewTensor(data, Float32, []int64{16})
	if err != nil {
		t.Fatal(err)
	}
	w, err := e.NewPrepackedWeights()
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	closed := &Value{}
	for name, o := range map[string]*SessionOptions{
		"threads":           {Threads: -1},
		"many threads":      {Threads: 1 << 20},
		"cores":             {Threads: 3, Cores: []int{1}},
		"cores of the pool": {Cores: []int{1}},
		"core":              {Threads: 2, Cores: []int{-7}},
		"key":               {Config: [][2]string{{"a\x00b", ""}}},
		"value":             {Config: [][2]string{{"a", "\x00"}}},
		"provider":          {Provider: "a\x00"},
		"provider option":   {Provider: "a", ProviderOptions: [][2]string{{"k", "v\x00"}}},
		"initializer":       {Initializers: []Initializer{{"a", nil}}},
		"closed":            {Initializers: []Initializer{{"a", closed}}},
		"name":              {Initializers: []Initializer{{"\x00", v}}},
		"path":              {OptimizedModelPath: "\x00"},
		"prepacked":         {Prepacked: w},
	} {
		if _, err := e.NewSession([]byte("m"), o); err == nil || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := e.NewSession(nil, &SessionOptions{}); err == nil {
		t.Error("an empty model was accepted")
	}
	if _, err := e.NewSessionFromFile("a\x00", &SessionOptions{}); err == nil {
		t.Error("a path with a NUL byte was accepted")
	}
	s, err := e.NewSession([]byte("m"), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.NewBinding()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.BindInput("a", v), s.Run(b)); err != nil {
		t.Error(err)
	}
	if b.BindInput("a\x00", v) == nil || b.BindInput("a", closed) == nil || b.BindOutput("a", nil) == nil {
		t.Error("a wrong operand was bound")
	}
	other, err := e.NewSession([]byte("m"), &SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if other.Run(b) == nil {
		t.Error("a binding of another session was run")
	}
	e.Close()
	if _, err := e.NewSession([]byte("m"), &SessionOptions{}); err == nil {
		t.Error("a closed environment made a session")
	}
	if _, err := e.NewPrepackedWeights(); err == nil {
		t.Error("a closed environment made a container")
	}
	if err := s.Run(b); err != nil { // the environment lives as long as its sessions
		t.Error(err)
	}
	s.Close()
	if s.Run(b) == nil || b.BindInput("a", v) == nil {
		t.Error("a closed session was used")
	}
	if _, err := s.NewBinding(); err == nil {
		t.Error("a closed session made a binding")
	}
	other.Close()
	v.Close()
	if n := native.Call(f.live); n != 0 {
		t.Errorf("%d objects were not given back", n)
	}
	if _, err := e.NewTensor(data, Uint8, []int64{64}); err == nil {
		t.Error("an environment that is gone made a tensor")
	}
	if e, err = f.NewEnv(EnvOptions{}); err != nil {
		t.Errorf("a new environment after the last one: %v", err)
	} else {
		e.Close()
	}
}
