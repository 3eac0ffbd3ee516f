//go:build unix && !solaris && !illumos && !aix

package filelock

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// openFlags keep an open from following a link and from hanging on a pipe.
const openFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// lock takes an exclusive lock, and retries when a signal interrupts it.
func lock(file *os.File, wait bool) error {
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	for {
		err := syscall.Flock(int(file.Fd()), how)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrBusy
		case errors.Is(err, syscall.ENOLCK): // NFS without its lock service
			return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
		}
		return err // ENOSYS and ENOTSUP are errors.ErrUnsupported
	}
}
