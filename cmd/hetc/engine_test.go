package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/cmd/internal/solving"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver/highs"
)

// solvedBy is the part of solve's result that tells about engines.
type solvedBy struct {
	Digest string           `json:"digest"`
	Solves []solving.Solved `json:"solves"`
}

// engineDir has costs of a problem that HiGHS solves in seconds.
func engineDir(t *testing.T) *dir {
	d := artifacts(t)
	out := &dir{T: t, path: t.TempDir(), model: d.model}
	for _, f := range []string{"costs.yaml", "w.yaml"} {
		b, err := os.ReadFile(d.at(f))
		out.must(err)
		out.must(os.WriteFile(out.at(f), b, 0o600))
	}
	return out
}

func solveWith(t *testing.T, d *dir, args ...string) (out []byte, code int, stderr string) {
	t.Helper()
	c := exec.Command("hetc", append([]string{"--json", "solve", "--soc", "snapdragon-8gen3", "--costs", "costs.yaml", "--model", d.model, "--workload", "w.yaml"}, args...)...)
	c.Dir = d.path
	var errs strings.Builder
	c.Stderr = &errs
	out, _ = c.Output()
	return out, c.ProcessState.ExitCode(), errs.String()
}

// Every engine that is there gives the same plan; which it was, how large the problems were and how long they took stands
// in the output.
func TestEngines(t *testing.T) {
	require.Slow(t)
	require.Deps()
	d := engineDir(t)
	plans := map[string]string{}
	for _, engine := range []string{"auto", "exact", "highs", "highs-native"} {
		t.Run(engine, func(t *testing.T) {
			var err error
			switch engine {
			case "highs":
				_, err = highs.Locate()
			case "highs-native":
				_, err = highs.LocateNative()
			}
			if err != nil {
				require.Skip(t, engine, err)
			}
			out, code, stderr := solveWith(t, d, "--only", "cpu,gpu", "--engine", engine, "-o", engine+".yaml", "--write-models", "models-"+engine, "--write-models-of", "all")
			if code != 0 {
				t.Fatalf("exit code %d\n%s%s", code, out, stderr)
			}
			var r solvedBy
			if err := json.Unmarshal(out, &r); err != nil || len(r.Solves) == 0 {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, x := range r.Solves {
				general := strings.HasPrefix(engine, "highs")
				if want := map[bool]string{true: engine, false: "exact"}[general]; x.Engine != want || x.Status != "optimal" || x.Objective <= 0 || x.Bound != x.Objective ||
					x.Gap == nil || *x.Gap != 0 || x.Choices < 1 || (x.Vars > 0) != general || (x.Rows > 0) != general || x.MS <= 0 || x.Failed != "" {
					t.Errorf("%+v", x)
				}
			}
			plans[engine] = r.Digest
			files, err := filepath.Glob(d.at("models-" + engine + "/*.lp"))
			if err != nil || len(files) != len(r.Solves) {
				t.Errorf("%d models of %d problems, %v", len(files), len(r.Solves), err)
			}
			b, err := os.ReadFile(files[0])
			if err != nil || !strings.Contains(string(b), "Minimize") || !strings.HasSuffix(string(b), "End\n") {
				t.Errorf("%s: %v", files[0], err)
			}
			checkIndex(t, d.at("models-"+engine), files, r.Solves)
		})
	}
	for engine, digest := range plans {
		if digest != plans["exact"] {
			t.Errorf("%s gives plan %.12s, exact %.12s", engine, digest, plans["exact"])
		}
	}
}

// checkIndex compares the index of written models with the files and with the answers that solve reports.
func checkIndex(t *testing.T, dir string, files []string, solves []solving.Solved) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, solving.IndexName))
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]int{}
	for _, x := range solves {
		answers[fmt.Sprint(x.Problem, x.Status, x.Objective)]++
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	if len(lines) != len(files) {
		t.Fatalf("%d lines of %d files", len(lines), len(files))
	}
	for i, line := range lines {
		var x solving.Indexed
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatal(err)
		}
		answer := fmt.Sprint(x.Problem, x.Status, x.Objective)
		if answers[answer]--; x.File != filepath.Base(files[i]) || answers[answer] < 0 || x.Of != 1 {
			t.Errorf("%s: %s", files[i], line)
		}
	}
}

// An engine that is asked for and not there is an error that says where it was looked for; one that nobody asked for is
// not missed.
func TestEngineMissing(t *testing.T) {
	require.Slow(t)
	if where, err := highs.Locate(); err == nil && where == highs.Embedded {
		t.Skip("the solver is in the program")
	}
	d := engineDir(t)
	t.Setenv("HETC_NATIVE_DIR", t.TempDir())
	for _, engine := range []string{"highs", "highs-native"} {
		out, code, _ := solveWith(t, d, "--engine", engine, "-o", "x.yaml")
		if code != 4 || !strings.Contains(string(out), `engine \"`+engine+`\": `) || !strings.Contains(string(out), "make deps") && engine == "highs" {
			t.Errorf("%s: exit code %d\n%s", engine, code, out)
		}
	}
	if out, code, stderr := solveWith(t, d, "-o", "x.yaml"); code != 0 {
		t.Errorf("auto: exit code %d\n%s%s", code, out, stderr)
	}
	if out, code, _ := solveWith(t, d, "--engine", "gurobi", "-o", "x.yaml"); code != 2 || !strings.Contains(string(out), "want auto, exact, highs or highs-native") {
		t.Errorf("unknown: exit code %d\n%s", code, out)
	}
	d.must(os.WriteFile(d.at("file"), nil, 0o600))
	if out, code, _ := solveWith(t, d, "--write-models", "file/x", "-o", "y.yaml"); code != 9 {
		t.Errorf("no directory: exit code %d\n%s", code, out)
	}
}

// A signal ends a solve that is inside HiGHS.
func TestEngineInterrupted(t *testing.T) {
	require.Slow(t)
	require.Deps()
	if runtime.GOOS == "windows" {
		t.Skip("no signals")
	}
	d := &dir{T: t, path: t.TempDir()}
	d.hetc("profile --soc snapdragon-8gen3 --model llama-3-8b -o big.jsonl")
	for _, engine := range []string{"highs", "highs-native"} {
		t.Run(engine, func(t *testing.T) {
			locate := map[string]func() (string, error){"highs": highs.Locate, "highs-native": highs.LocateNative}[engine]
			if _, err := locate(); err != nil {
				require.Skip(t, engine, err)
			}
			c := exec.Command("hetc", "solve", "--soc", "snapdragon-8gen3", "--record", "big.jsonl", "--model", "llama-3-8b", "--engine", engine, "-o", "x.yaml")
			c.Dir = d.path
			var errs strings.Builder
			c.Stderr = &errs
			d.must(c.Start())
			time.Sleep(6 * time.Second)
			begun := time.Now()
			d.must(c.Process.Signal(os.Interrupt))
			hung := time.AfterFunc(time.Minute, func() { _ = c.Process.Kill() })
			defer hung.Stop()
			_ = c.Wait()
			if code := c.ProcessState.ExitCode(); code != 130 || time.Since(begun) > 10*time.Second || !strings.Contains(errs.String(), "interrupted") {
				t.Errorf("exit code %d after %v: %s", code, time.Since(begun), errs.String())
			}
		})
	}
}

// The benchmark solves its problems and the plan's own, also without HiGHS.
func TestBenchSolver(t *testing.T) {
	require.Slow(t)
	d := engineDir(t)
	t.Setenv("HETC_NATIVE_DIR", t.TempDir())
	c := exec.Command("hetc", "--json", "bench", "solver", "--soc", "snapdragon-8gen3", "--costs", "costs.yaml", "--model", d.model, "--workload", "w.yaml", "--markdown", "b.md")
	c.Dir = d.path
	out, err := c.Output()
	var r solvedBy
	if err != nil || json.Unmarshal(out, &r) != nil || len(r.Solves) < 3 {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, x := range r.Solves {
		// Tiers of so many experts are searched up to a limit, and the gap is stated.
		if x.Engine != "exact" || x.Status != "optimal" && !strings.HasPrefix(x.Problem, "tiers") {
			t.Errorf("%+v", x)
		}
	}
	if b, err := os.ReadFile(d.at("b.md")); err != nil || !strings.Contains(string(b), "| tiers 48 layers of 128 experts, 8 tiers |") {
		t.Errorf("%v\n%s", err, b)
	}
}
