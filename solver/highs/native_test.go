package highs

import (
	"bytes"
	"context"
	"encoding/gob"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver/milp"
)

// nativeEngine returns HiGHS as a library, or skips the test where it is not there.
func nativeEngine(t testing.TB) *Native {
	t.Helper()
	native, err := OpenNative()
	if err != nil {
		require.Skip(t, "highs-native", err)
	}
	return native
}

// Two builds of one release find the same objectives, and almost always the same values.
func TestNativeAgrees(t *testing.T) {
	require.Slow(t)
	wasm, native := engine(t), nativeEngine(t)
	for _, model := range []*milp.Model{assignment(12, 3), hard(12, 2, 3)} {
		one, other := must(t, wasm, model, milp.Options{}), must(t, native, model, milp.Options{})
		isOptimal := one.Status == milp.Optimal && other.Status == milp.Optimal
		if !isOptimal || math.Abs(one.Objective-other.Objective) > 1e-6 {
			t.Errorf("%s: %+v and %+v", model.Name, one, other)
		}
	}

	draws := 0
	rapid.Check(t, func(t *rapid.T) {
		if draws++; draws > 30 && os.Getenv("HETC_LONG") == "" {
			return // a process each
		}
		model := draw(t)
		one, err := wasm.Solve(context.Background(), model, milp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		other, err := native.Solve(context.Background(), model, milp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if one.Status != other.Status || one.X != nil && math.Abs(one.Objective-other.Objective) > 1e-6 {
			t.Fatalf("%+v and %+v", one, other)
		}
	})
}

// The process gets limits and starts, and passes on its log and progress.
func TestNativeOptions(t *testing.T) {
	require.Slow(t)
	native := nativeEngine(t)
	lines, calls := 0, 0
	progress := func(objective, bound float64, _ int64) {
		if calls++; bound > objective+1e-6 {
			t.Errorf("objective %v, bound %v", objective, bound)
		}
	}
	result := must(t, native, hard(30, 3, 7), milp.Options{Nodes: 200, Progress: progress,
		Log: func(string) { lines++ }})
	if result.Status != milp.Feasible || calls == 0 || lines == 0 {
		t.Errorf("%v, %d calls, %d lines", result.Status, calls, lines)
	}

	best := must(t, native, hard(12, 2, 3), milp.Options{})
	takesStart(t, native, hard(12, 2, 3), best.X)
}

// What is wrong with a model is said as the WebAssembly engine says it.
func TestNativeRefusals(t *testing.T) {
	native := nativeEngine(t)
	unbounded := &milp.Model{Name: "down", Vars: []milp.Var{{Name: "x", Cost: 1, Low: -inf, High: 0, Integer: true}}}
	_, err := native.Solve(context.Background(), unbounded, milp.Options{})
	if !isRefused(err, diag.ClassInput, false, "unbounded") {
		t.Errorf("unbounded: %v", err)
	}
	bad := assignment(2, 1)
	bad.Vars[0].Cost = math.NaN()
	if _, err := native.Solve(context.Background(), bad, milp.Options{}); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("invalid: %v", err)
	}
}

func TestNativeCancel(t *testing.T) { cancelSoon(t, nativeEngine(t)) }

// A process that crashes, hangs or talks nonsense is an error that names the library, or ends with the context.
func TestNativeProcess(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the processes are shell scripts")
	}
	dir := t.TempDir()
	start := func(script string) *Native {
		file := filepath.Join(dir, "program")
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return &Native{library: "/lib/libhighs.so", program: file}
	}

	for script, want := range map[string]string{
		"kill -SEGV $$":                "segmentation fault",
		"echo free: bad >&2; exit 134": "exit status 134: free: bad",
		"cat >/dev/null":               "ended without an answer",
		"echo nonsense":                `"/lib/libhighs.so" crashed`,
		"yes 2>/dev/null":              `"/lib/libhighs.so" crashed`,
	} {
		_, err := start(script).Solve(context.Background(), assignment(3, 1), milp.Options{})
		if !isRefused(err, diag.ClassInternal, true, want, `engine "highs-native"`) {
			t.Errorf("%s: got %v, want %q", script, err, want)
		}
	}

	cancelSoon(t, start("exec sleep 30"))
	gone := &Native{library: "x", program: filepath.Join(dir, "gone")}
	_, err := gone.Solve(context.Background(), assignment(3, 1), milp.Options{})
	if diag.ClassOf(err) != diag.ClassInternal {
		t.Errorf("no program: %v", err)
	}
}

// Other libraries are refused by name.
func TestNativeOtherLibrary(t *testing.T) {
	native := nativeEngine(t)
	native.library = filepath.Join(t.TempDir(), "libhighs.so")
	solve := func() error {
		_, err := native.Solve(context.Background(), assignment(3, 1), milp.Options{})
		return err
	}

	if err := os.WriteFile(native.library, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := solve(); !isRefused(err, diag.ClassUnavailable, false, "is not a shared library") {
		t.Errorf("got %v", err)
	}
	if compileEmpty(t, native.library) {
		if err := solve(); !isRefused(err, diag.ClassUnavailable, false, "has no function") {
			t.Errorf("got %v", err)
		}
	}

	dir := t.TempDir()
	t.Setenv("HETC_NATIVE_DIR", dir)
	t.Chdir(dir)
	if _, err := OpenNative(); !isRefused(err, diag.ClassUnavailable, true, dir) {
		t.Errorf("got %v", err)
	}
}

// compileEmpty makes a shared library without functions; false where there is no C compiler.
func compileEmpty(t *testing.T, library string) bool {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil || runtime.GOOS != "linux" {
		return false
	}
	source := filepath.Join(t.TempDir(), "x.c")
	if err := os.WriteFile(source, []byte("int x;"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(compiler, "-shared", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return true
}

// The pipe is read while the process writes: a long log does not block it.
func TestNativeLongLog(t *testing.T) {
	require.Slow(t)
	native := nativeEngine(t)
	lines := 0
	begun := time.Now()
	must(t, native, hard(30, 3, 7), milp.Options{Nodes: 500, Log: func(string) { lines++ }})
	if lines < 20 {
		t.Errorf("%d lines after %v", lines, time.Since(begun))
	}
}

// encodedRequest returns a request as the engine writes it to its process.
func encodedRequest(f *testing.F, asked request) []byte {
	f.Helper()
	var text bytes.Buffer
	if err := gob.NewEncoder(&text).Encode(asked); err != nil {
		f.Fatal(err)
	}
	return text.Bytes()
}

// nowhere is a library that does not exist.
const nowhere = "/nonexistent/libhighs.so"

// lastFrame returns the last thing that the process answers to a request; an error if it cannot read that.
func lastFrame(asked []byte) (*frame, error) {
	var out bytes.Buffer
	if err := Work(nowhere, bytes.NewReader(asked), &out); err != nil {
		return nil, err
	}
	var last frame
	for decoder := gob.NewDecoder(&out); ; {
		var next frame
		if err := decoder.Decode(&next); err != nil {
			return &last, nil
		}
		last = next
	}
}

// The process answers or refuses whatever it is asked; the library, which trusts what it is given, gets legal models
// only.
func FuzzWork(f *testing.F) {
	good := encodedRequest(f, request{Model: *assignment(3, 1)})
	broken := assignment(3, 1)
	broken.Rows[0].Terms[0].Var = 1 << 20
	for want, asked := range map[string][]byte{
		nowhere:             good,
		"variable":          encodedRequest(f, request{Model: *broken}),
		"start of 1 values": encodedRequest(f, request{Model: *assignment(3, 1), Start: []float64{1}}),
	} {
		last, err := lastFrame(asked)
		if err != nil || last.Failed == nil || !strings.Contains(last.Failed.Summary, want) {
			f.Errorf("got %+v, %v, want %q", last, err, want)
		}
		f.Add(asked)
	}
	for n := 0; n < len(good); n += 97 {
		if _, err := lastFrame(good[:n]); err == nil {
			f.Errorf("a request of %d bytes of %d was read", n, len(good))
		}
	}

	f.Fuzz(func(t *testing.T, asked []byte) {
		if last, err := lastFrame(asked); err == nil && (last.Failed == nil || last.Done != nil) {
			t.Fatalf("without a library it says %+v", last)
		}
	})
}
