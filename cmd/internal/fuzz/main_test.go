package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
)

const broken = `package broken

import (
	"bytes"
	"testing"
)

func FuzzFine(f *testing.F) {
	f.Add([]byte("a"))
	f.Fuzz(func(t *testing.T, b []byte) {})
}

func FuzzCrash(f *testing.F) {
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 0 {
			panic("crash")
		}
	})
}

var kept []byte

func FuzzHog(f *testing.F) {
	f.Add([]byte("a"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if kept == nil {
			kept = bytes.Repeat([]byte("x"), 300<<20)
		}
	})
}

var dropped []byte

func FuzzGarbage(f *testing.F) {
	f.Add([]byte("a"))
	f.Fuzz(func(t *testing.T, b []byte) {
		dropped = bytes.Repeat([]byte("x"), 8<<20)
	})
}

func FuzzHang(f *testing.F) {
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 0 {
			select {}
		}
	})
}
`

// A target that crashes, one that takes too much memory and one that never ends are failures, each by its name. Garbage
// is no failure, however seldom the process that fuzzes collects its own.
func TestFailuresAreFound(t *testing.T) {
	require.Slow(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module broken\n\ngo 1.26\n", "b.go": "package broken\n", "b_test.go": broken} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	o := options{time: time.Second, memoryMiB: 256, grace: 20 * time.Second, stall: 3 * time.Second}
	ctx := context.Background()
	targets, err := o.find(ctx, t.TempDir(), []string{"./..."})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOGC", "off")
	want := map[string]string{
		"FuzzFine": "", "FuzzCrash": "panic: crash", "FuzzHog": "want at most 256", "FuzzGarbage": "",
		"FuzzHang": "hangs: an input took longer",
	}
	if runtime.GOOS == "windows" {
		want["FuzzHog"] = "" // peak memory is not known there
	}
	if len(targets) != len(want) {
		t.Fatalf("found %v, want %d targets", targets, len(want))
	}
	for _, x := range targets {
		o := o
		if x.name == "FuzzHang" {
			o.time = 7 * time.Second
		}
		err := o.fuzz(ctx, x, filepath.Join(dir, "cache"))
		if want[x.name] == "" {
			if err != nil {
				t.Errorf("%s: %v", x.name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want[x.name]) {
			t.Errorf("%s: got %v, want %q", x.name, err, want[x.name])
		}
	}
	kept, err := os.ReadDir(filepath.Join(dir, "testdata", "fuzz", "FuzzCrash"))
	if err != nil || len(kept) == 0 {
		t.Errorf("the input that crashed was not kept: %v", err)
	}
	if err := (&options{time: time.Second, only: "FuzzNothing"}).run(ctx, nil); err == nil || !strings.Contains(err.Error(), "no fuzz target") {
		t.Errorf("nothing to run: got %v", err)
	}
}

func TestProgress(t *testing.T) {
	for name, c := range map[string]struct {
		out     string
		inputs  int64
		stalled bool
	}{
		"even": {"fuzz: elapsed: 0s, gathering baseline coverage: 0/3 completed\nfuzz: elapsed: 3s, execs: 100 (33/sec), new interesting: 4 (total: 7)\n" +
			"fuzz: elapsed: 6s, execs: 200 (33/sec), new interesting: 7 (total: 10)\nfuzz: elapsed: 6s, execs: 200 (0/sec), new interesting: 7 (total: 10)\nPASS\n", 200, false},
		"slow seeds": {"fuzz: elapsed: 0s, gathering baseline coverage: 0/3 completed\nfuzz: elapsed: 9s, gathering baseline coverage: 2/3 completed\n" +
			"fuzz: elapsed: 12s, execs: 1 (0/sec), new interesting: 4 (total: 7)\n", 1, false},
		"stuck": {"fuzz: elapsed: 3s, execs: 100 (33/sec), new interesting: 4 (total: 7)\nfuzz: elapsed: 6s, execs: 100 (0/sec), new interesting: 4 (total: 7)\n" +
			"fuzz: elapsed: 9s, execs: 100 (0/sec), new interesting: 4 (total: 7)\n", 100, true},
		"minutes": {"fuzz: elapsed: 57s, execs: 100 (33/sec)\nfuzz: elapsed: 1m0s, execs: 200 (33/sec)\nfuzz: elapsed: 1m3s, execs: 200 (33/sec)\n", 200, false},
		"nothing": {"PASS\n", 0, true},
	} {
		if n, stalled := progress(c.out, 6*time.Second); n != c.inputs || stalled != c.stalled {
			t.Errorf("%s: got %d inputs, stalled %v, want %d, %v", name, n, stalled, c.inputs, c.stalled)
		}
	}
}

// A deadline that is met is told from a crash.
func TestEndOfTime(t *testing.T) {
	const met = "fuzz: elapsed: 1m0s, execs: 234553 (0/sec), new interesting: 5 (total: 305)\n--- FAIL: FuzzX (61.41s)\n    context deadline exceeded\nFAIL\n"
	const crash = "--- FAIL: FuzzX (1.41s)\n    --- FAIL: FuzzX (0.00s)\n        x_test.go:3: context deadline exceeded\n\n    Failing input written to testdata/fuzz/FuzzX/1\nFAIL\n"
	if !endOfTime.MatchString(met) || endOfTime.MatchString(crash) {
		t.Errorf("got %v and %v, want true and false", endOfTime.MatchString(met), endOfTime.MatchString(crash))
	}
}
