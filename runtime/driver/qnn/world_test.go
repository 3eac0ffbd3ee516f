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

// libraries returns the path of a provider beside a backend, in a folder of their own. Each is compiled from
// testdata/fake.c with definitions.
func libraries(t *testing.T, provider, backend []string) string {
	t.Helper()
	dir := fakeBackend(t, backend)
	path := filepath.Join(dir, "libonnxruntime_providers_qnn.so")
	compileFake(t, path, provider)
	return path
}

// fakeBackend returns a folder with a backend that is compiled with definitions.
func fakeBackend(t *testing.T, definitions []string) string {
	t.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("the emulator is for linux/amd64")
	}
	if _, err := ortapi.Find(""); err != nil {
		require.Skip(t, "qnn", err)
	}
	dir := t.TempDir()
	compileFake(t, filepath.Join(dir, "libQnnHtp.so"), definitions)
	return dir
}

// compileFake compiles testdata/fake.c to a library.
func compileFake(t *testing.T, path string, definitions []string) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("libraries for tests need a C compiler: %v", err)
	}
	args := []string{"-shared", "-fPIC", "-w", "-o", path, "testdata/fake.c"}
	for _, d := range definitions {
		args = append(args, "-D"+d)
	}
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// copyProvider puts the provider of this machine beside a backend, and returns its path.
func copyProvider(t *testing.T, dir string) string {
	t.Helper()
	found, err := ortapi.FindQNN("")
	if err != nil {
		require.Skip(t, "qnn", err)
	}
	library, err := os.ReadFile(found.Provider)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "libonnxruntime_providers_qnn.so")
	if err := os.WriteFile(path, library, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// emulatorOf selects the emulator with the libraries at a path.
func emulatorOf(path string) driver.Config {
	return driver.Config{Select: emulator, Options: map[string]string{"library": path}}
}

// Libraries that crash, end, hang or offer nothing are an error that says so, in time and without a stack.
func TestOpenWorld(t *testing.T) {
	require.Slow(t)
	long := startLimit
	t.Cleanup(func() { startLimit = long })
	good := []string{"FAKE_BACKEND"}
	for _, c := range []struct {
		name     string
		provider []string
		limit    time.Duration
		want     string
		class    diag.Class
	}{
		{
			name:     "crash",
			provider: []string{"FAKE_PROVIDER", "FAKE_CRASH"},
			limit:    long,
			want:     "SIGSEGV",
			class:    diag.ClassRun,
		},
		{
			name:     "abort",
			provider: []string{"FAKE_PROVIDER", "FAKE_ABORT"},
			limit:    long,
			want:     "the fake aborts",
			class:    diag.ClassRun,
		},
		{
			name:     "exit",
			provider: []string{"FAKE_PROVIDER", "FAKE_EXIT"},
			limit:    long,
			want:     "ended without an answer",
			class:    diag.ClassRun,
		},
		{
			name:     "hang",
			provider: []string{"FAKE_PROVIDER", "FAKE_HANG"},
			limit:    3 * time.Second,
			want:     "took more than",
			class:    diag.ClassUnavailable,
		},
		{
			name:     "no device",
			provider: []string{"FAKE_PROVIDER"},
			limit:    long,
			want:     "offers no device on this machine",
			class:    diag.ClassUnavailable,
		},
		{
			name:     "no plugin",
			provider: good,
			limit:    long,
			want:     "register execution provider",
			class:    diag.ClassUnavailable,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			startLimit = c.limit
			path := libraries(t, c.provider, good)

			p, err := New().Open(t.Context(), emulatorOf(path))

			if p != nil || err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) != c.class {
				t.Fatalf("got %v of class %v, want %q of class %v", err, diag.ClassOf(err), c.want, c.class)
			}
			if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "goroutine") {
				t.Errorf("%q has stacks", err)
			}
		})
	}
}

// An interrupt ends the wait for a library that does not come back.
func TestHang(t *testing.T) {
	path := libraries(t, []string{"FAKE_PROVIDER", "FAKE_HANG"}, []string{"FAKE_BACKEND"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()

	start := time.Now()
	p, err := New().Open(ctx, emulatorOf(path))

	if p != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > startLimit/2 {
		t.Errorf("the interrupt took %v", took)
	}
}

// A graph that is not loaded in time ends the process, so that later loads are told of a crash.
func TestLoadLimit(t *testing.T) {
	code, _ := build(t, op.A16SQ8C, embedded)
	p := open(t, nil)
	artifact := driver.Artifact{Driver: Name, Code: code}
	long := loadLimit
	t.Cleanup(func() { loadLimit = long })

	loadLimit = time.Nanosecond
	_, err := p.Load(t.Context(), artifact, nil)
	if err == nil || !strings.Contains(err.Error(), "loading a graph took more than 1ns") {
		t.Errorf("got %v, want the limit", err)
	}
	loadLimit = long
	_, err = p.Load(t.Context(), artifact, nil)
	if err == nil || !strings.Contains(err.Error(), "crashed") {
		t.Errorf("got %v, want a crash", err)
	}
}

// refuseToOpen expects that no processor is opened, and that the error and its hints mention words.
func refuseToOpen(t *testing.T, config driver.Config, unavailable bool, words ...string) {
	t.Helper()
	p, err := New().Open(t.Context(), config)
	if p != nil || err == nil || errors.Is(err, driver.ErrUnavailable) != unavailable {
		t.Fatalf("got %v", err)
	}
	text := err.Error() + strings.Join(diag.HintsOf(err), " ")
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("got %v (%v), want %q", err, diag.HintsOf(err), word)
		}
	}
}

// onEmulator skips the test where there is no emulator.
func onEmulator(t *testing.T) {
	t.Helper()
	if platform(runtime.GOOS, runtime.GOARCH) != emulator {
		t.Skip("the emulator is for linux/amd64")
	}
}

// A processor or option that cannot be had is refused, and the error says what there is.
func TestOpenRefuses(t *testing.T) {
	onEmulator(t)
	for _, c := range []struct {
		config driver.Config
		words  []string
	}{
		{
			config: driver.Config{Select: "cpu"},
			words:  []string{"no such processor", "emulator on linux/amd64, htp on arm64"},
		},
		{
			config: driver.Config{Select: htp},
			words:  []string{"this is linux/amd64", "there is no Hexagon NPU here", "--for-emulator"},
		},
		{
			config: driver.Config{Select: emulator, Options: map[string]string{"speed": "1"}},
			words:  []string{`unknown option "speed"`, "soc_model"},
		},
		{
			config: driver.Config{Select: emulator, Options: map[string]string{"soc_model": "8gen3"}},
			words:  []string{`option "soc_model" is "8gen3", want a number`},
		},
	} {
		refuseToOpen(t, c.config, false, c.words...)
	}
}

// Libraries that are not there make the driver unavailable. The error says what was tried and how to get them.
func TestOpenWithoutLibraries(t *testing.T) {
	onEmulator(t)
	gone := filepath.Join(t.TempDir(), "gone.so")
	refuseToOpen(t, emulatorOf(gone), true, "gone.so", ortapi.EnvQNN, "make deps-qnn")

	t.Setenv(ortapi.EnvQNN, "")
	t.Run("nowhere", func(t *testing.T) {
		t.Setenv("HETC_NATIVE_DIR", t.TempDir())
		t.Chdir(t.TempDir())
		refuseToOpen(t, driver.Config{Select: emulator}, true, "onnxruntime-qnn", "make deps-qnn")
		if _, err := New().Devices(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("devices: %v", err)
		}
	})

	path := libraries(t, []string{"FAKE_PROVIDER"}, []string{"FAKE_BACKEND"})
	config := emulatorOf(path)
	config.Options["onnxruntime"] = gone
	refuseToOpen(t, config, true, "gone.so", ortapi.EnvLibrary)

	if err := os.Remove(filepath.Join(filepath.Dir(path), "libQnnHtp.so")); err != nil {
		t.Fatal(err)
	}
	refuseToOpen(t, emulatorOf(path), true, "no libQnnHtp.so beside it")
}

// The process of a processor starts no other process.
func TestProcessOfAProcess(t *testing.T) {
	onEmulator(t)
	t.Setenv(workerEnv, "1")
	_, err := openRemote(t.Context(), "", ortapi.QNN{})
	if err == nil || !strings.Contains(err.Error(), "does not start another") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// A backend without an interface is refused: the provider would leave everything to the CPU.
func TestBackendWithoutInterface(t *testing.T) {
	path := copyProvider(t, fakeBackend(t, []string{"FAKE_BACKEND", "FAKE_NOTHING"}))
	_, err := New().Open(t.Context(), emulatorOf(path))
	if err == nil || !strings.Contains(err.Error(), "names no interface") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// A backend of another version loads nothing, even where the artifact claims that version: a graph that the provider
// does not take is an error, and not computed by the CPU.
func TestBackendOfAnotherVersion(t *testing.T) {
	code, _ := build(t, op.A16SQ8C, embedded)
	path := copyProvider(t, fakeBackend(t, []string{"FAKE_BACKEND"}))
	p := open(t, map[string]string{"library": path})

	_, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: code}, nil)
	if err == nil || !strings.Contains(err.Error(), "the library here has 4.99.0") {
		t.Errorf("a backend of another version: %v", err)
	}
	if class := diag.ClassOf(err); class != diag.ClassUnavailable {
		t.Errorf("class %v of %v", class, err)
	}

	claimed := changed(t, code, func(m *onnx.Model) { setProp(m, keyToken, "v2:6:2.51.0:4.99.0:75:57:8:0") })
	if _, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: claimed}, nil); err == nil {
		t.Error("a graph was loaded by a backend that is none")
	}
}

// A process that ends is an error of the call that it computes and of all later ones, and results are not touched.
func TestCrash(t *testing.T) {
	code, _ := build(t, op.A16SQ8C, embedded)
	artifact := driver.Artifact{Driver: Name, Code: code}
	p := open(t, nil)
	if err := p.Attach(); err != nil {
		t.Fatal(err)
	}
	exe, err := p.Load(t.Context(), artifact, nil)
	if err != nil {
		t.Fatal(err)
	}
	x, y, bindings := operands(t, p)
	copy(x, ramp(rows*red))
	y[0] = 99

	if err := p.(*processor).engine.(*remote).c.Process.Kill(); err != nil {
		t.Fatal(err)
	}

	for range 2 {
		_, err := p.Run(exe, bindings)
		if err == nil || !strings.Contains(err.Error(), "crashed: signal: killed") {
			t.Fatalf("got %v, want a crash", err)
		}
		if class := diag.ClassOf(err); class != diag.ClassRun {
			t.Errorf("class %v of %v", class, err)
		}
		if y[0] != 99 {
			t.Error("the result was written")
		}
	}
	if _, err := p.Load(t.Context(), artifact, nil); err == nil || !strings.Contains(err.Error(), "crashed") {
		t.Errorf("load: %v", err)
	}
	if err := errors.Join(exe.Close(), p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
}

// A binary that is noise, or that belongs to several graphs, makes the library fail or crash. That is an error.
func TestDisguised(t *testing.T) {
	code, binary := build(t, op.A16SQ8C, shared)
	p := open(t, nil)
	for what, text := range map[string]string{
		"noise": strings.Repeat("noise", 4000),
		"zeros": strings.Repeat("\x00", 1<<16),
		"half":  string(binary[:len(binary)/2]),
	} {
		disguised := changed(t, code, func(m *onnx.Model) { embed(m, text) })
		exe, err := p.Load(t.Context(), driver.Artifact{Driver: Name, Code: disguised}, nil)
		if exe != nil || err == nil {
			t.Errorf("%s was loaded", what)
		}
		if p.(*processor).engine.(*remote).dead != nil {
			p = open(t, nil)
		}
	}
}

// Requests without a library are refused.
func TestRequestsWithoutLibrary(t *testing.T) {
	for _, q := range requests {
		var none *local
		if err := answer(&none, &q, &reply{}); err == nil {
			t.Errorf("%+v is answered", q)
		}
	}
}

// requests are one request of each kind, and an empty one.
var requests = []request{
	{Run: &call{7, [][]byte{{1}}}},
	{Unload: 9},
	{},
	{Load: &program{Code: []byte("x")}},
}

// Bytes are decoded to a request or are an error, and a call of a program that is not loaded is refused.
func FuzzRequest(f *testing.F) {
	for _, q := range requests {
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(q); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
		f.Add(b.Bytes()[:b.Len()/2])
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var q request
		if err := gob.NewDecoder(bytes.NewReader(in)).Decode(&q); err != nil {
			return
		}
		if q.Open != nil || q.Load != nil || q.Compatible != nil {
			return // the library answers these
		}
		l := &local{}
		if err := answer(&l, &q, &reply{}); err == nil && q.Run != nil {
			t.Errorf("%+v ran", q)
		}
	})
}
