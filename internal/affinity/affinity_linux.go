package affinity

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/hetc/hetc/internal/diag"
)

// allowed asks for the cores of the main thread, because other threads may be pinned already.
func allowed() []int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &set); err != nil {
		return numbered()
	}
	var cores []int
	for cpu := 0; len(cores) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			cores = append(cores, cpu)
		}
	}
	return cores
}

// Pin restricts the calling thread, which is locked to its goroutine for good, to one core. Threads that C
// code starts from it inherit that. Where the system has no call for it, nothing happens.
func Pin(core int) error {
	noted()
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return diag.New(diag.ClassUnavailable, "pin thread to core %d: %w", core, err).
			WithHint("keep core %d in this process's cpuset, and allow sched_setaffinity where system calls are filtered "+
				"(systemd: SystemCallFilter without ~@resources)", core)
	}
	return nil
}
