//go:build unix && !solaris && !illumos && !aix

package record

import (
	"os"
	"syscall"
)

// lock keeps a second writer out until the file is closed, or its process dies.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
