package main

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// An interrupt ends a command that waits for a prompt nobody writes.
func TestInterruptWhileReadingPrompt(t *testing.T) {
	dir := t.TempDir()
	hetc := func(args ...string) *exec.Cmd {
		c := exec.Command("hetc", args...)
		c.Dir = dir
		return c
	}
	model := "../../testdata/models/tiny-llama-kjv"
	if wd, err := os.Getwd(); err == nil {
		model = wd + "/" + model
	}
	for _, args := range [][]string{
		{"profile", "--soc", "snapdragon-8gen3", "--model", model, "-o", "rec.jsonl"},
		{"solve", "--soc", "snapdragon-8gen3", "--record", "rec.jsonl", "--model", model, "-o", "plan.yaml"},
		{"keygen", "--out", "k"},
		{"emit", "--plan", "plan.yaml", "--model", model, "--key", "k.key", "-o", "app.hetb"},
	} {
		if out, err := hetc(args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	c := hetc("run", "app.hetb", "--trust", "k.pub", "--prompt-file", "-")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	// The pipe takes far less than this: once it is written, the command has been reading for a while.
	if _, err := in.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	hung := time.AfterFunc(time.Minute, func() { _ = c.Process.Kill() })
	defer hung.Stop()
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 130 {
		t.Errorf("an interrupted command exited with %d, want 130", code)
	}
}
