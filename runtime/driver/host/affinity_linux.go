package host

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/hetc/hetc/internal/diag"
)

// allowedCores lists the cores the process may use: those of its main thread, because other
// threads may be pinned already.
func allowedCores() []int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &set); err != nil {
		return numberedCores()
	}
	var cores []int
	for c := 0; len(cores) < set.Count(); c++ {
		if set.IsSet(c) {
			cores = append(cores, c)
		}
	}
	return cores
}

// pin restricts the calling thread to one core.
func pin(core int) error {
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return diag.New(diag.ClassUnavailable, "pin thread to core %d: %w", core, err)
	}
	return nil
}
