//go:build unix && !solaris && !illumos && !aix

package bundle

import (
	"errors"
	"os"
	"syscall"
)

// claims says that claim works on this system.
const claims = true

var errTaken = errors.New("another process holds or removed it")

// claim locks f until it is closed or this process dies. It fails with errTaken when another process holds the lock, or
// held it between the opening and the locking here and removed the file, and with ErrUnsupported on a file system
// without locks.
func claim(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	for err == syscall.EINTR {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return errTaken
	case err != nil:
		return errors.ErrUnsupported
	}
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	if named, err := os.Lstat(f.Name()); err != nil || !os.SameFile(opened, named) {
		return errTaken
	}
	return nil
}
