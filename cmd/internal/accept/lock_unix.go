//go:build unix && !solaris && !illumos && !aix

package accept

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// lock waits for a lock file to be nobody else's. The file stays: a file that is removed can be locked twice.
func lock(path string, patience time.Duration) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o666)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil, errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOLCK): // a file system without locks
			return func() { _ = f.Close() }, nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return nil, errors.Join(fmt.Errorf("lock %q: %w", path, err), f.Close())
		case time.Now().After(deadline):
			return nil, errors.Join(fmt.Errorf("lock %q: another process holds it for more than %v", path, patience), f.Close())
		}
	}
}
