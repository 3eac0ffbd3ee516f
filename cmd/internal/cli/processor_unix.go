//go:build unix

package cli

import (
	"syscall"
	"time"
)

// ProcessorTime is what this process has used of all processors together; 0 where the system does not say.
func ProcessorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
