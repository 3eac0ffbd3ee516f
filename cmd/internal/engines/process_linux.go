package engines

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/internal/diag"
)

// group makes a command the leader of a process group that is asked to end with the context, and that the
// kernel ends when the thread that started it is gone.
func group(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }
}

// endGroup ends what a process has left behind.
func endGroup(c *exec.Cmd) { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }

// restrict lets the calling thread, and with it the processes it starts, run on the given cores alone.
func restrict(cores []int) (undo func() bool, err error) {
	if len(cores) == 0 {
		return func() bool { return true }, nil
	}
	var old, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		return nil, diag.New(diag.ClassUnavailable, "cores of this thread: %w", err)
	}
	for _, c := range cores {
		set.Set(c)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return nil, diag.New(diag.ClassUnavailable, "run on cores %v: %w", cores, err).
			WithHint("this process may use %d cores; --cores names those to use", old.Count())
	}
	return func() bool { return unix.SchedSetaffinity(0, &old) == nil }, nil
}

// Cores are those this process may use, ascending.
func Cores() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, diag.New(diag.ClassUnavailable, "cores of this process: %w", err)
	}
	var out []int
	for c := 0; len(out) < set.Count(); c++ {
		if set.IsSet(c) {
			out = append(out, c)
		}
	}
	return out, nil
}

// peakBytes is the largest resident size of a process that has ended. The system counts the one of the process
// that started it in, so for a smaller process it is what was seen while it ran.
func peakBytes(p *os.ProcessState, seen int64) int64 {
	if p == nil {
		return 0
	}
	rusage, ok := p.SysUsage().(*syscall.Rusage)
	if !ok || rusage.Maxrss<<10 <= floor() {
		return seen
	}
	return rusage.Maxrss << 10
}

// residentPeak is the largest resident size of a running process so far, 0 when it has ended.
func residentPeak(pid int) int64 {
	return machine.MemoryField(fmt.Sprintf("/proc/%d/status", pid), "VmHWM:")
}

// floor is the largest resident size of this process: no peak of a process it starts is reported below.
func floor() int64 {
	var rusage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &rusage); err != nil {
		return 0
	}
	return rusage.Maxrss << 10
}

// cpuTime is what a process that has ended, and those it waited for, used.
func cpuTime(p *os.ProcessState) time.Duration {
	if p == nil {
		return 0
	}
	return p.UserTime() + p.SystemTime()
}

// ownTime is what this process has used.
func ownTime() (time.Duration, bool) {
	var rusage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &rusage); err != nil {
		return 0, false
	}
	return time.Duration(rusage.Utime.Nano() + rusage.Stime.Nano()), true
}
