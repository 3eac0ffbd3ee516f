//go:build unix && !solaris && !illumos && !aix

package record

import (
	"os"
	"syscall"
)

// lock fails when another open file of this path holds the lock.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
