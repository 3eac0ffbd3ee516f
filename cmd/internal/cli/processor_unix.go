//go:build unix

package cli

import (
	"syscall"
	"time"
)

// ProcessorTime returns what this process has used of all processors together; 0 where the system does not say.
func ProcessorTime() time.Duration {
	var rusage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &rusage); err != nil {
		return 0
	}
	return time.Duration(rusage.Utime.Nano() + rusage.Stime.Nano())
}
