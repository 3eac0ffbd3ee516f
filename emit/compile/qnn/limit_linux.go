package qnn

import (
	"os/exec"
	"syscall"
)

// limitMemory bounds this process's address space.
func limitMemory(bytes int64) error {
	if bytes == 0 {
		return nil
	}
	return syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: uint64(bytes), Max: uint64(bytes)})
}

// ownProcessGroup gives a process a group of its own, and kills it with all that it has started.
func ownProcessGroup(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
}
