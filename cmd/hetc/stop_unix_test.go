//go:build linux || darwin || freebsd

package main

import (
	"bytes"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
)

// Time in which the process is stopped (Ctrl-Z, a debugger) is no time in which its lanes were waited for: a run that is stopped
// for longer than its deadline goes on.
func TestStoppedLongerThanTheDeadline(t *testing.T) {
	require.Slow(t)
	const deadline = 2 * time.Second
	d := artifacts(t)
	app, key := hostBundle(t)
	t.Parallel() // it sleeps
	for program, bundle := range map[string][2]string{"hetc run": {d.at("app.hetb"), d.at("k.pub")}, "hetrun": {app, key}} {
		words := append(strings.Fields(program), bundle[0], "--trust", bundle[1], "--bench", "--prompt-len", "16", "--gen", "8", "--rounds", "1000000", "--deadline", deadline.String())
		c := exec.Command(words[0], words[1:]...)
		var errs bytes.Buffer
		c.Stderr = &errs
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		hung := time.AfterFunc(2*time.Minute, func() { _ = c.Process.Kill() })
		time.Sleep(time.Second) // by now it executes
		for range 3 {
			if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatalf("%s: %v\n%s", program, err, errs.String())
			}
			time.Sleep(deadline * 5 / 4)
			d.must(c.Process.Signal(syscall.SIGCONT))
			select {
			case err := <-ended:
				t.Fatalf("%s: it ended by itself: %v\n%s", program, err, errs.String())
			case <-time.After(deadline / 4):
			}
		}
		d.must(c.Process.Signal(syscall.SIGTERM))
		<-ended
		hung.Stop()
		if code := c.ProcessState.ExitCode(); code != 130 {
			t.Errorf("%s: exit code %d, want 130\n%s", program, code, errs.String())
		}
	}
}
