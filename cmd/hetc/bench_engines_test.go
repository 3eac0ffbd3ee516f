//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hetc/hetc/cmd/internal/bench"
	"github.com/hetc/hetc/cmd/internal/engines"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/require"
)

// nativeLlamaCpp is the folder of llama.cpp that make deps-bench fills, or that the environment names. Tests that need
// it are skipped without, unless HETC_REQUIRE lists llama.cpp.
func nativeLlamaCpp(t *testing.T) string {
	t.Helper()
	require.Deps()
	l, err := engines.FindLlamaCpp(true)
	if err != nil {
		require.Skip(t, "llama.cpp", err)
	}
	return l.Dir
}

// The real engines on the small trained model: what is compared is there and makes sense. Times are not judged.
func TestBenchEnginesReal(t *testing.T) {
	require.Slow(t)
	t.Setenv(native.EnvDir, nativeLlamaCpp(t))
	model, err := filepath.Abs("../../testdata/models/tiny-llama-kjv")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(model, "valid.txt"))
	if err != nil {
		t.Fatal(err)
	}
	const few = 6000 // bytes: six windows
	if err := os.WriteFile(filepath.Join(dir, "text"), text[:few], 0o644); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("hetc", "--json", "bench", "engines", "--model", model, "--prompt-len", "32", "--gen", "4", "--depth", "8", "--rounds", "1", "--reps", "1", "--formats", "Q4_0",
		"--max-memory", "40MiB", "--text", "text", "--max-others", "0", "--profile-budget", "1s", "--work", "w")
	c.Dir = dir
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var doc struct {
		CPU     string
		Kernels string
		Models  []bench.EnginesModel
	}
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.CPU == "" || doc.Kernels == "" || len(doc.Models) != 1 {
		t.Fatalf("cpu %q, kernels %q, %d models", doc.CPU, doc.Kernels, len(doc.Models))
	}
	m := &doc.Models[0]
	if got := fmt.Sprint(len(m.Plans), len(m.Match.Series), len(m.Match.Ratios)); got != "2 9 6" {
		t.Errorf("plans, series, ratios: %s, want 2 9 6", got)
	}
	known := 0 // peaks: a process may be too short to be looked at
	for _, s := range m.Match.Series {
		const least, most = 2 << 20, 1 << 30
		if s.Peak != 0 {
			known++
		}
		if !(s.Summary.Median > 0) || s.Peak != 0 && (s.Peak < least || s.Peak > most) || s.Version == "" || s.Backend == "" {
			t.Errorf("%s %s %v: %v tokens/s, %d bytes, version %q, backend %q", s.Engine, s.Form, s.Task, s.Summary.Median, s.Peak, s.Version, s.Backend)
		}
		if s.Engine == "llama.cpp" && !strings.HasPrefix(s.Backend, "libggml-cpu-") {
			t.Errorf("backend %q", s.Backend)
		}
	}
	if known < len(m.Match.Series)/2 {
		t.Errorf("the memory of %d of %d is known", known, len(m.Match.Series))
	}
	var of []string
	for _, q := range m.Quality {
		of = append(of, q.Engine+" "+q.Phase)
		if !(q.MeanKL > 0 && q.MeanKL < 0.1) || !(q.SameTop > 0.8 && q.SameTop <= 1) || !(q.Perplexity > 5 && q.Perplexity < 50) || !(q.KLError > 0) {
			t.Errorf("%+v", q)
		}
	}
	if got := strings.Join(of, ", "); got != "hetc prefill, hetc decode, hetc prefill, hetc decode, llama.cpp " {
		t.Errorf("quality of %q; skipped: %+v\n%s", got, m.Skipped, errs.String())
	}
}

// A command that is ended takes the engine along that it is measuring, whether it is asked to or killed.
func TestBenchEnginesEnded(t *testing.T) {
	require.Slow(t)
	model, err := filepath.Abs("../../testdata/models/tiny-llama-kjv")
	if err != nil {
		t.Fatal(err)
	}
	shared := t.TempDir() // the second run uses the plan of the first
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			dir := t.TempDir()
			pid := filepath.Join(dir, "pid")
			for name, script := range map[string]string{ // stands in for an engine that is at work
				"llama-quantize": "echo $$ > '" + pid + ".tmp'; mv '" + pid + ".tmp' '" + pid + "'; exec sleep 600",
				"llama-bench":    "exit 1",
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			c := exec.Command("hetc", "bench", "engines", "--model", model, "--prompt-len", "8", "--gen", "2", "--depth", "4", "--profile-budget", "1s", "--work", shared)
			c.Env = append(os.Environ(), native.EnvDir+"="+dir)
			var errs bytes.Buffer
			c.Stderr = &errs
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- c.Wait() }()
			var child int
			for child == 0 {
				select {
				case err := <-ended:
					t.Fatalf("it ended by itself: %v\n%s", err, errs.String())
				case <-time.After(10 * time.Millisecond):
				}
				if text, err := os.ReadFile(pid); err == nil {
					child, _ = strconv.Atoi(strings.TrimSpace(string(text)))
				}
			}
			if err := c.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			<-ended
			if code := c.ProcessState.ExitCode(); signal == syscall.SIGTERM && code != 130 {
				t.Errorf("exit code %d, want 130\n%s", code, errs.String())
			}
			for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				if err := syscall.Kill(child, 0); errors.Is(err, syscall.ESRCH) {
					break
				}
				if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child)); err != nil || bytes.Contains(stat, []byte(") Z ")) {
					break // nobody has waited for it yet
				}
				if time.Now().After(deadline) {
					_ = syscall.Kill(child, syscall.SIGKILL)
					t.Fatalf("process %d is still there", child)
				}
			}
			if left, err := filepath.Glob(filepath.Join(shared, "*", ".*")); err != nil || signal == syscall.SIGTERM && len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
}
