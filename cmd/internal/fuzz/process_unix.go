//go:build linux || darwin

package main

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// group makes the end of a command the end of its workers.
func group(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
}

// peakMiB returns the largest resident size among an ended process and the children it waited for.
func peakMiB(p *os.ProcessState) int64 {
	if p == nil {
		return 0
	}
	rusage, ok := p.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	if runtime.GOOS == "darwin" { // bytes there, KiB elsewhere
		return rusage.Maxrss >> 20
	}
	return rusage.Maxrss >> 10
}

var limits sync.Mutex // of this process, which its children inherit

// startLimited starts a command with a bound on its address space, which keeps an input that asks for
// everything from taking the machine down. What is resident is judged afterwards.
func startLimited(process *exec.Cmd) error {
	const most = 16 << 30
	limits.Lock()
	defer limits.Unlock()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &old); err == nil {
		limited := old
		limited.Cur = min(old.Cur, most)
		if err := unix.Setrlimit(unix.RLIMIT_AS, &limited); err == nil {
			defer func() { _ = unix.Setrlimit(unix.RLIMIT_AS, &old) }()
		}
	}
	return process.Start()
}
