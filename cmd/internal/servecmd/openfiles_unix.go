//go:build unix

package servecmd

import (
	"math"
	"syscall"
)

// mostFiles returns how many files this process may have open, 0 where that is unknown. Package os has raised the limit
// as far as it may be.
func mostFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(uint64(limit.Cur), math.MaxInt32))
}
