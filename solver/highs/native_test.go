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
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver/milp"
)

func nativeEngine(t testing.TB) *Native {
	t.Helper()
	n, err := OpenNative()
	if err != nil {
		require.Skip(t, "highs-native", err)
	}
	return n
}

// Two builds of one release find the same objectives, and almost always the same values.
func TestNativeAgrees(t *testing.T) {
	require.Slow(t)
	w, n := engine(t), nativeEngine(t)
	for _, m := range []*milp.Model{assignment(12, 3), hard(12, 2, 3)} {
		a, b := must(t, w, m, milp.Options{}), must(t, n, m, milp.Options{})
		if a.Status != milp.Optimal || b.Status != milp.Optimal || math.Abs(a.Objective-b.Objective) > 1e-6 {
			t.Errorf("%s: %+v and %+v", m.Name, a, b)
		}
	}
	draws := 0
	rapid.Check(t, func(t *rapid.T) {
		if draws++; draws > 30 && os.Getenv("HETC_LONG") == "" {
			return // a process each
		}
		m := draw(t)
		a, err := w.Solve(context.Background(), m, milp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := n.Solve(context.Background(), m, milp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if a.Status != b.Status || a.X != nil && math.Abs(a.Objective-b.Objective) > 1e-6 {
			t.Fatalf("%+v and %+v", a, b)
		}
	})
}

func TestNativeOptions(t *testing.T) {
	require.Slow(t)
	n := nativeEngine(t)
	m := hard(30, 3, 7)
	var lines []string
	calls := 0
	r := must(t, n, m, milp.Options{Nodes: 200, Log: func(l string) { lines = append(lines, l) }, Progress: func(objective, bound float64, _ int64) {
		if calls++; bound > objective+1e-6 {
			t.Errorf("objective %v, bound %v", objective, bound)
		}
	}})
	if r.Status != milp.Feasible || calls == 0 || len(lines) == 0 {
		t.Errorf("%v, %d calls, %d lines", r.Status, calls, len(lines))
	}
	best := must(t, n, hard(12, 2, 3), milp.Options{})
	lines = nil
	must(t, n, hard(12, 2, 3), milp.Options{Start: best.X, Log: func(l string) { lines = append(lines, l) }})
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "MIP start solution is feasible") }) {
		t.Errorf("the start was not taken: %q", lines)
	}
	unbounded := &milp.Model{Name: "down", Vars: []milp.Var{{Name: "x", Cost: 1, Low: -inf, High: 0, Integer: true}}}
	if _, err := n.Solve(context.Background(), unbounded, milp.Options{}); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "unbounded") {
		t.Errorf("unbounded: %v", err)
	}
	bad := assignment(2, 1)
	bad.Vars[0].Cost = math.NaN()
	if _, err := n.Solve(context.Background(), bad, milp.Options{}); diag.ClassOf(err) != diag.ClassInput {
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
		if diag.ClassOf(err) != diag.ClassInternal || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `engine "highs-native"`) || len(diag.HintsOf(err)) == 0 {
			t.Errorf("%s: got %v, want %q", script, err, want)
		}
	}
	cancelSoon(t, start("exec sleep 30"))
	if _, err := (&Native{library: "x", program: filepath.Join(dir, "gone")}).Solve(context.Background(), assignment(3, 1), milp.Options{}); diag.ClassOf(err) != diag.ClassInternal {
		t.Errorf("no program: %v", err)
	}
}

// Other libraries are refused by name.
func TestNativeOtherLibrary(t *testing.T) {
	n := nativeEngine(t)
	file := filepath.Join(t.TempDir(), "libhighs.so")
	if err := os.WriteFile(file, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.library = file
	if _, err := n.Solve(context.Background(), assignment(3, 1), milp.Options{}); diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), "is not a shared library") {
		t.Errorf("got %v", err)
	}
	if cc, err := exec.LookPath("cc"); err == nil && runtime.GOOS == "linux" {
		source := filepath.Join(t.TempDir(), "x.c")
		if err := os.WriteFile(source, []byte("int x;"), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(cc, "-shared", "-o", file, source).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if _, err := n.Solve(context.Background(), assignment(3, 1), milp.Options{}); diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), "has no function") {
			t.Errorf("got %v", err)
		}
	}
	dir := t.TempDir()
	t.Setenv("HETC_NATIVE_DIR", dir)
	t.Chdir(dir)
	if _, err := OpenNative(); diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), dir) || len(diag.HintsOf(err)) == 0 {
		t.Errorf("got %v", err)
	}
}

// The pipe is read while the process writes: long logs block nobody.
func TestNativeLongLog(t *testing.T) {
	require.Slow(t)
	n := nativeEngine(t)
	lines := 0
	begun := time.Now()
	must(t, n, hard(30, 3, 7), milp.Options{Nodes: 500, Log: func(string) { lines++ }})
	if lines < 20 {
		t.Errorf("%d lines after %v", lines, time.Since(begun))
	}
}

// Whatever the process is asked, it answers or refuses; the library, which trusts what it is given, gets legal models
// only.
func FuzzWork(f *testing.F) {
	ask := func(q request) []byte {
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(q); err != nil {
			f.Fatal(err)
		}
		return b.Bytes()
	}
	const nowhere = "/nonexistent/libhighs.so"
	said := func(in []byte) (*frame, error) {
		var out bytes.Buffer
		if err := Work(nowhere, bytes.NewReader(in), &out); err != nil {
			return nil, err
		}
		var last frame
		for d := gob.NewDecoder(&out); ; {
			var x frame
			if err := d.Decode(&x); err != nil {
				return &last, nil
			}
			last = x
		}
	}
	good := ask(request{Model: *assignment(3, 1)})
	broken := assignment(3, 1)
	broken.Rows[0].Terms[0].Var = 1 << 20
	for want, in := range map[string][]byte{nowhere: good, "variable": ask(request{Model: *broken}), "start of 1 values": ask(request{Model: *assignment(3, 1), Start: []float64{1}})} {
		if x, err := said(in); err != nil || x.Failed == nil || !strings.Contains(x.Failed.Summary, want) {
			f.Errorf("got %+v, %v, want %q", x, err, want)
		}
		f.Add(in)
	}
	for n := 0; n < len(good); n += 97 {
		if _, err := said(good[:n]); err == nil {
			f.Errorf("a request of %d bytes of %d was read", n, len(good))
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if x, err := said(in); err == nil && (x.Failed == nil || x.Done != nil) {
			t.Fatalf("without a library it says %+v", x)
		}
	})
}
