package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/profiler/record"
)

// A profile that is killed ten times loses nothing it had written, and --resume goes on each time.
func TestKilledProfileResumes(t *testing.T) {
	require.Slow(t)
	dir := t.TempDir()
	model, err := filepath.Abs("../../testdata/models/tiny-llama-kjv")
	if err != nil {
		t.Fatal(err)
	}
	hetc := func(args ...string) *exec.Cmd {
		c := exec.Command("hetc", args...)
		c.Dir = dir
		return c
	}
	if out, err := hetc("probe", "-o", "soc.yaml").CombinedOutput(); err != nil {
		t.Fatalf("probe: %v\n%s", err, out)
	}
	path := filepath.Join(dir, "rec.jsonl")
	var before []byte
	grown := 0
	for i := range 10 {
		c := hetc("profile", "--soc", "soc.yaml", "--model", model, "-o", "rec.jsonl", "--resume")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		// Killed somewhere in the measurements after its first new line.
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if st, err := os.Stat(path); err == nil && st.Size() > int64(len(before))+200 {
				break
			}
		}
		time.Sleep(time.Duration(37*i%100) * time.Millisecond)
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		now, err := os.ReadFile(path)
		if err != nil && i > 0 {
			t.Fatalf("after kill %d: %v", i, err)
		}
		whole := now
		if n := len(whole); n > 0 && whole[n-1] != '\n' {
			for n > 0 && whole[n-1] != '\n' {
				n--
			}
			whole = whole[:n] // the line that was being written
		}
		if len(whole) < len(before) || string(whole[:len(before)]) != string(before) {
			t.Fatalf("after kill %d: lines that had been written are gone or changed", i)
		}
		if len(whole) > len(before) {
			grown++
		}
		before = whole
	}
	if grown < 9 { // the first run may be killed with the header alone
		t.Errorf("the record grew in %d of 10 runs, want at least 9", grown)
	}
	set, err := record.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	n := set.Len()
	out, err := hetc("profile", "--soc", "soc.yaml", "--model", model, "-o", "rec.jsonl", "--resume", "--budget", "1s").CombinedOutput()
	if err != nil {
		t.Fatalf("resume: %v\n%s", err, out)
	}
	if set, err = record.Open(path); err != nil || set.Truncated || set.Len() <= n {
		t.Errorf("after resuming: %v, want more than %d measurements and no cut line", err, n)
	}
}
