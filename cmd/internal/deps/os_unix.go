//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// group makes the end of a command the end of what it started.
func group(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
}
