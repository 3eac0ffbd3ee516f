package ortapi

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
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

// A library that cannot be used is an error of class unavailable, in one line that says what is wrong with it.
func TestLoadRefuses(t *testing.T) {
	require.Slow(t)
	dir := t.TempDir()
	whole, err := os.ReadFile(compile(t))
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name    string
		path    string
		problem Problem
		cause   native.Problem
		want    string
	}{
		{
			name:    "absent",
			path:    filepath.Join(dir, "gone.so"),
			problem: Unloadable,
			cause:   native.Absent,
			want:    "gone.so\": not there",
		},
		{
			name:    "a folder",
			path:    dir + "/",
			problem: Unloadable,
			cause:   native.Broken,
			want:    "a folder",
		},
		{
			name:    "text",
			path:    file("text.so", []byte("no library")),
			problem: Unloadable,
			cause:   native.Broken,
			want:    "not a shared library",
		},
		{
			name:    "truncated",
			path:    file("half.so", whole[:len(whole)/2]),
			problem: Unloadable,
			cause:   native.Broken,
			want:    "not a shared library",
		},
		{
			name:    "other symbol",
			path:    compile(t, "FAKE_NO_SYMBOL"),
			problem: NotORT,
			cause:   native.MissingSymbol,
			want:    `no function "OrtGetApiBase"`,
		},
		{
			name:    "no base",
			path:    compile(t, "FAKE_NO_BASE"),
			problem: NotORT,
			want:    "OrtGetApiBase returned nothing",
		},
		{
			name:    "empty base",
			path:    compile(t, "FAKE_EMPTY_BASE"),
			problem: NotORT,
			want:    "OrtApiBase lacks functions",
		},
		{
			name:    "no version",
			path:    compile(t, `FAKE_VERSION="banana"`),
			problem: NotORT,
			want:    `version "banana"`,
		},
		{
			name:    "too old",
			path:    compile(t, `FAKE_VERSION="1.23.2"`),
			problem: TooOld,
			want:    "version 1.23.2 is too old, want 1.24 or later",
		},
		{
			name:    "too new",
			path:    compile(t, `FAKE_VERSION="2.0.0"`),
			problem: TooNew,
			want:    "version 2.0.0 is too new, want 1.24 to 1.x",
		},
		{
			name:    "no interface",
			path:    compile(t, "FAKE_NO_API"),
			problem: TooNew,
			want:    "version 1.28.0 does not offer version 24 of its interface",
		},
		{
			name:    "hole",
			path:    compile(t, "FAKE_HOLE=133"),
			problem: NotORT,
			want:    "function 133 of its interface is missing",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			library, err := Load(c.path)

			var problem *LoadError
			if library != nil || !errors.As(err, &problem) || problem.Problem != c.problem {
				t.Fatalf("got %v, want problem %d", err, c.problem)
			}
			if text := err.Error(); !strings.Contains(text, c.want) || strings.Contains(text, "\n") {
				t.Errorf("got %q, want one line with %q", text, c.want)
			}
			var cause *native.Error
			if c.cause != 0 && (!errors.As(err, &cause) || cause.Problem != c.cause) {
				t.Errorf("cause %v, want %v", cause, c.cause)
			}
			if class := diag.ClassOf(fmt.Errorf("open: %w", err)); class != diag.ClassUnavailable {
				t.Errorf("class %v", class)
			}
		})
	}
}

// fake is the library for tests with the addresses of its own functions.
type fake struct {
	*Library

	live  uintptr // counts the objects that were not given back
	calls uintptr // counts the calls
	fail  uintptr // says which call shall fail
	seen  uintptr // tells the arguments that arrived
}

// loadFake compiles and loads the library for tests, in which no call fails.
func loadFake(t *testing.T) *fake {
	t.Helper()
	path := compile(t)
	library, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := native.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{Library: library}
	for name, address := range map[string]*uintptr{
		"fake_live":  &f.live,
		"fake_calls": &f.calls,
		"fake_fail":  &f.fail,
		"fake_seen":  &f.seen,
	} {
		if *address, err = symbols.Symbol(name); err != nil {
			t.Fatal(err)
		}
	}
	native.Call(f.fail, 0)
	return f
}

// allGivenBack fails if an object was not given back.
func (f *fake) allGivenBack(t *testing.T) {
	t.Helper()
	if n := native.Call(f.live); n != 0 {
		t.Errorf("%d objects were not given back", n)
	}
}

// failEveryCall calls work once, and then again for each of its calls, which fails. Its message is to come back as an
// error, and every object is to be given back.
func (f *fake) failEveryCall(t *testing.T, least int, work func() error) {
	t.Helper()
	if err := work(); err != nil {
		t.Fatal(err)
	}
	calls := int(native.Call(f.calls))
	if calls < least {
		t.Fatalf("%d calls, want at least %d", calls, least)
	}
	for n := 1; n <= calls; n++ {
		native.Call(f.fail, uintptr(n))
		err := work()
		var failure *Error
		if !errors.As(err, &failure) || diag.ClassOf(err) != diag.ClassRun {
			t.Fatalf("call %d: %v", n, err)
		}
		if failure.Code != 11 || failure.Code.String() != "EP_FAIL" {
			t.Fatalf("call %d: code %d, %v", n, failure.Code, failure.Code)
		}
		if !strings.Contains(failure.Message, "asked to fail in ") {
			t.Fatalf("call %d: message %q", n, failure.Message)
		}
		if live := int(native.Call(f.live)); live != 0 {
			t.Fatalf("call %d, %v: %d objects were not given back", n, err, live)
		}
	}
}

// everything makes and uses one object of each kind, and closes all of it even after an error.
func (f *fake) everything(data []byte) (s *Session, err error) {
	var closers []func() error
	defer func() {
		for _, closer := range closers { // in the order of making, which is the wrong one
			for range 2 {
				if e := closer(); err == nil {
					err = e
				}
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
	s, err = e.NewSession([]byte("bytes of a model"), &SessionOptions{
		Threads:            2,
		Cores:              []int{4},
		Optimization:       99,
		Config:             [][2]string{{"key", "value"}},
		Provider:           "XExecutionProvider",
		ProviderOptions:    [][2]string{{"first", "1"}, {"second", "two"}, {"third", ""}},
		Initializers:       []Initializer{{"w0", v}},
		Prepacked:          w,
		OptimizedModelPath: "some/where",
	})
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
	s3, err := e.NewSession([]byte("other"), &SessionOptions{
		Threads:         1,
		Provider:        "CUDAExecutionProvider",
		ProviderOptions: [][2]string{{"device_id", "0"}},
	})
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

// The library says its version, its build and its providers.
func TestAbout(t *testing.T) {
	f := loadFake(t)
	if f.BuildInfo != "a build for tests" || f.Version != "1.28.0" {
		t.Errorf("version %q, build %q", f.Version, f.BuildInfo)
	}
	got, err := f.Providers()
	if want := []string{"OneExecutionProvider", "Two ExecutionProvider"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("providers %q, %v", got, err)
	}
}

// everythingArrived are the arguments of everything, with the folder of weights replaced.
const everythingArrived = `pool 3
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

// Every argument arrives as it was given, and everything is given back, in whatever order it is closed. The folder that
// the library wants to see for weights is removed.
func TestArguments(t *testing.T) {
	f := loadFake(t)
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

	got := native.String(native.Call(f.seen), 8192)
	if _, rest, found := strings.Cut(got, "folder_path="); found {
		folder, _, _ := strings.Cut(rest, "\n")
		got = strings.Replace(got, folder, "FOLDER", 1)
		if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("folder %q is still there: %v", folder, err)
		}
	}
	if got != everythingArrived {
		t.Errorf("arrived:\n%s\nwant:\n%s", got, everythingArrived)
	}
	f.allGivenBack(t)
	const operands = "[{v0 float16 [-1 3000000000]} {v1 element type 0 []}] [{v0 float16 [-1 3000000000]}]"
	if got := fmt.Sprint(s.Inputs, s.Outputs); got != operands {
		t.Errorf("got %s, want %s", got, operands)
	}
}

// Whichever call fails, its message comes back as an error, and no object is lost.
func TestFailures(t *testing.T) {
	f := loadFake(t)
	data, free, err := outside(12)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	f.failEveryCall(t, 60, func() error {
		_, err := f.everything(data)
		return err
	})
}

// newFakeEnv makes an environment that is closed after the test.
func newFakeEnv(t *testing.T, f *fake) *Env {
	t.Helper()
	e, err := f.NewEnv(EnvOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// sixtyFour is memory of 64 bytes outside the Go heap, which is freed after the test.
func sixtyFour(t *testing.T) []byte {
	t.Helper()
	data, free, err := outside(64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(free)
	return data
}

// Threads and cores that make no sense are refused, and so is a second environment.
func TestEnvRefuses(t *testing.T) {
	f := loadFake(t)
	for _, o := range []EnvOptions{
		{Threads: -1},
		{Threads: 5000},
		{Threads: 2, Cores: []int{}},
		{Threads: 2, Cores: []int{0, 1}},
		{Threads: 2, Cores: []int{-1}},
	} {
		if _, err := f.NewEnv(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}

	newFakeEnv(t, f)
	if _, err := f.NewEnv(EnvOptions{}); err == nil || !strings.Contains(err.Error(), "has an environment") {
		t.Errorf("a second environment: %v", err)
	}
}

// A tensor whose shape or type does not fit its memory is refused.
func TestTensorRefuses(t *testing.T) {
	e, data := newFakeEnv(t, loadFake(t)), sixtyFour(t)
	for _, c := range []struct {
		typ   ElementType
		shape []int64
	}{
		{typ: Float32, shape: []int64{4, 3}},
		{typ: Float32, shape: []int64{-4, -4}},
		{typ: 8, shape: []int64{64}},
		{typ: Uint8, shape: []int64{1 << 40, 1 << 40}},
		{typ: Uint8, shape: nil},
		{typ: Uint8, shape: append(make([]int64, 65), 64)},
	} {
		if _, err := e.NewTensor(data, c.typ, c.shape); err == nil {
			t.Errorf("%v %v of %d bytes was accepted", c.typ, c.shape, len(data))
		}
	}
}

// Options of a session that cannot be right are an error of input before the library sees them.
func TestSessionRefuses(t *testing.T) {
	e := newFakeEnv(t, loadFake(t))
	v, err := e.NewTensor(sixtyFour(t), Float32, []int64{16})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	w, err := e.NewPrepackedWeights()
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
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
		"closed":            {Initializers: []Initializer{{"a", &Value{}}}},
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
}

// A binding takes operands with a name and a value, and belongs to its session.
func TestBindingRefuses(t *testing.T) {
	e := newFakeEnv(t, loadFake(t))
	v, err := e.NewTensor(sixtyFour(t), Float32, []int64{16})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	s, err := e.NewSession([]byte("m"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	other, err := e.NewSession([]byte("m"), &SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	b, err := s.NewBinding()
	if err != nil {
		t.Fatal(err)
	}

	if err := errors.Join(b.BindInput("a", v), s.Run(b)); err != nil {
		t.Error(err)
	}
	if b.BindInput("a\x00", v) == nil {
		t.Error("a name with a NUL byte was bound")
	}
	if b.BindInput("a", &Value{}) == nil || b.BindOutput("a", nil) == nil {
		t.Error("an operand without a value was bound")
	}
	if other.Run(b) == nil {
		t.Error("a binding of another session was run")
	}
}

// What is closed makes nothing more. The environment lives as long as its sessions, and can be made again after that.
func TestClosed(t *testing.T) {
	f := loadFake(t)
	e, data := newFakeEnv(t, f), sixtyFour(t)
	v, err := e.NewTensor(data, Float32, []int64{16})
	if err != nil {
		t.Fatal(err)
	}
	s, err := e.NewSession([]byte("m"), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.NewBinding()
	if err != nil {
		t.Fatal(err)
	}

	e.Close()
	if _, err := e.NewSession([]byte("m"), &SessionOptions{}); err == nil {
		t.Error("a closed environment made a session")
	}
	if _, err := e.NewPrepackedWeights(); err == nil {
		t.Error("a closed environment made a container")
	}
	if err := s.Run(b); err != nil {
		t.Errorf("a session of a closed environment: %v", err)
	}

	s.Close()
	if s.Run(b) == nil || b.BindInput("a", v) == nil {
		t.Error("a closed session was used")
	}
	if _, err := s.NewBinding(); err == nil {
		t.Error("a closed session made a binding")
	}

	v.Close()
	f.allGivenBack(t)
	if _, err := e.NewTensor(data, Uint8, []int64{64}); err == nil {
		t.Error("an environment that is gone made a tensor")
	}
	newFakeEnv(t, f)
}
