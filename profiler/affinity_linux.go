package profiler

import (
	"golang.org/x/sys/unix"

	"github.com/hetc/hetc/internal/diag"
)

// pin restricts the calling thread, which must be locked for good, to one core.
func pin(core int) error {
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return diag.New(diag.ClassUnavailable, "pin thread to core %d: %w", core, err)
	}
	return nil
}
