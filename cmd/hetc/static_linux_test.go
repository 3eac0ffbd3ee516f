package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/runtime/executor"
)

// The static programs open no libraries: none is linked, and a driver that needs one is refused by name.
func TestStaticDrivers(t *testing.T) {
	require.Slow(t)
	root := t.TempDir()
	build := exec.Command("go", "build", "-trimpath", "-tags", "hetc_static", "-ldflags", "-s -w", "-o", root, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	exe := filepath.Join(root, "hetc")
	checkStatic(t, exe)
	out, err := exec.Command(exe, "drivers").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "opens no shared libraries") || strings.Contains(string(out), "ort ") {
		t.Errorf("hetc drivers: %v\n%s", err, out)
	}
	soc := filepath.Join(root, "soc.yaml")
	if err := os.WriteFile(soc, []byte(boardSoC("ort")), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, "profile", "--soc", soc, "--model", artifacts(t).model, "-o", filepath.Join(root, "x.jsonl"))
	out, err = c.CombinedOutput()
	if c.ProcessState.ExitCode() != 4 || !strings.Contains(string(out), `driver "ort" is not available: found no such driver in this build`) {
		t.Errorf("hetc profile: %v\n%s", err, out)
	}
}

// checkStatic fails for a program that needs a loader or libraries.
func checkStatic(t *testing.T, exe string) {
	t.Helper()
	f, err := elf.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("%s has a segment %v: it is not static", filepath.Base(exe), p.Type)
		}
	}
}

// The static hetrun is one file that needs nothing else: no loader, no library, no /proc. It needs as much memory as
// its plan says.
func TestStatic(t *testing.T) {
	require.Slow(t)
	root := t.TempDir()
	exe := filepath.Join(root, "hetrun")
	build := exec.Command("go", "build", "-trimpath", "-tags", "hetc_static", "-ldflags", "-s -w", "-o", exe, "../hetrun")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	st, err := os.Stat(exe)
	if err != nil {
		t.Fatal(err)
	}
	if limit := int64(15_000_000); st.Size() > limit {
		t.Errorf("hetrun has %d bytes, want at most %d", st.Size(), limit)
	}
	checkStatic(t, exe)

	whole := artifacts(t)
	d := &dir{T: t, path: root, artifacts: whole.path, model: whole.model}
	d.must(os.Symlink(d.model, d.at("model")))
	soc := strings.Replace(boardSoC("host"), "cpu-0000000000000000", hostFingerprint(), 1)
	d.write("soc.yaml", soc)
	d.write("w.yaml", header+"buckets: [16]\ncontext: 64\n")
	d.hetc("profile --soc soc.yaml --model model --workload w.yaml -o rec.jsonl --budget 1s")
	d.hetc("solve --soc soc.yaml --record rec.jsonl --accept-noisy --model model --workload w.yaml -o plan.yaml")
	d.hetc("keygen --out k")
	d.hetc("emit --plan plan.yaml --soc soc.yaml --model model --key k.key -o app.hetb")
	run := func(t *testing.T, c *exec.Cmd) string {
		var out, errw bytes.Buffer
		c.Stdout, c.Stderr = &out, &errw
		if err := c.Run(); err != nil {
			t.Fatalf("%v: %v\n%s", c.Args, err, errw.String())
		}
		return out.String()
	}
	t.Run("memory", func(t *testing.T) {
		for _, c := range []struct {
			prompt string
			tokens int
		}{{"In", 1}, {"In the beginning God created the heaven and the earth.", 30}} {
			used := memoryOf(t, exe, root, "app.hetb", "--trust", "k.pub", "--prompt", c.prompt, "--max-tokens", strconv.Itoa(c.tokens))
			if off := used.off(); off > 1 || off < -1 {
				t.Errorf("prompt %q, %d tokens: %v", c.prompt, c.tokens, used)
			}
		}
	})
	t.Run("hot rows", func(t *testing.T) { hotRowsInMemory(t, exe) })
	t.Run("empty image", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("changing the root directory needs root")
		}
		line := []string{"app.hetb", "--trust", "k.pub", "--prompt", "In the beginning God created", "--max-tokens", "8", "--stats"}
		here := exec.Command("hetrun", line...)
		here.Dir = root
		want, _, _ := strings.Cut(run(t, here), "\n")
		image := &exec.Cmd{Path: "/hetrun", Args: append([]string{"hetrun"}, line...), Dir: "/", Env: []string{}, SysProcAttr: &syscall.SysProcAttr{Chroot: root}}
		out := run(t, image)
		if text, _, _ := strings.Cut(out, "\n"); text != want || !strings.HasPrefix(text, "In the beginning") {
			t.Errorf("on an empty image: %q, want %q", text, want)
		}
		for _, part := range []string{"load and verify weights", "first token"} {
			if !strings.Contains(out, part) {
				t.Errorf("--stats says nothing about %q:\n%s", part, out)
			}
		}
	})
}

// usedMemory is what hetrun says of its memory.
type usedMemory struct {
	Peak     float64                `json:"peak_bytes"`
	Predict  float64                `json:"predicted_peak_bytes"`
	Outliers []executor.OutlierStat `json:"outliers"`
}

// memoryOf executes a bundle in a folder, and skips the test where the system does not say what a process needed.
func memoryOf(t *testing.T, exe, folder string, line ...string) usedMemory {
	t.Helper()
	c := exec.Command(exe, append(line, "--stats", "--json")...)
	c.Dir = folder
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", c.Args, err, errs.String())
	}
	var said struct {
		Stats usedMemory `json:"stats"`
	}
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatal(err)
	}
	if said.Stats.Peak == 0 {
		t.Skip("this system does not say what a process needed at most (/proc/self/status)")
	}
	t.Logf("%v: %v", line, said.Stats)
	return said.Stats
}

// off is how far the memory is from the predicted one, where 1 is what it may be at most. Of its own 8 MiB of code and
// tables a process has half or all in memory: systems map what they have of a file in one piece together, and the pieces
// of one that was just written are small.
func (m usedMemory) off() float64 {
	const share, code = 0.05, 4 << 20
	return (m.Peak - m.Predict) / (share*m.Predict + code)
}

// String compares the sizes.
func (m usedMemory) String() string {
	return fmt.Sprintf("%.0f bytes at most, %.0f predicted: %.2f times what they may differ by", m.Peak, m.Predict, m.off())
}
