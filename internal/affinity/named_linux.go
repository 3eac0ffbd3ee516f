package affinity

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hetc/hetc/internal/diag"
)

// Named calls work on a thread of that name, of at most 15 bytes. Threads that C code starts meanwhile inherit the name,
// and those that they start: so a library's own threads can be told from all others. Go starts none of its threads from
// one that is locked, as this one is.
// RATIONALE: How are a library's threads found?
func Named(name string, work func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const file = "/proc/thread-self/comm"
	if before, err := os.ReadFile(file); err == nil && os.WriteFile(file, []byte(name), 0) == nil {
		defer func() { _ = os.WriteFile(file, bytes.TrimSpace(before), 0) }() // it was allowed before
	}
	return work()
}

// PinNamed restricts all threads of a name to cores and returns how many there are.
func PinNamed(name string, cores []int) (count int, err error) {
	var set unix.CPUSet
	for _, core := range cores {
		set.Set(core)
	}
	const tasks = "/proc/self/task/"
	list, err := os.ReadDir(tasks)
	if err != nil {
		return 0, diag.New(diag.ClassUnavailable, "list the process's threads: %w", err)
	}
	for _, task := range list {
		number, err := strconv.Atoi(task.Name())
		if err != nil {
			continue
		}
		called, err := os.ReadFile(tasks + task.Name() + "/comm")
		if err != nil || string(bytes.TrimSpace(called)) != name {
			continue // it may have ended
		}
		switch err := unix.SchedSetaffinity(number, &set); {
		case err == nil:
			count++
		case !errors.Is(err, unix.ESRCH):
			return count, diag.New(diag.ClassUnavailable, "pin thread %d (%q) to cores %v: %w", number, name, cores, err)
		}
	}
	return count, nil
}
