//go:build unix

package qnn

import (
	"os/exec"
	"syscall"
)

// errPipe is what writing to a process that is gone gives.
var errPipe error = syscall.EPIPE

// apart puts a process into a group of its own: an interrupt at the terminal is for this program, which ends the other.
func apart(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
