// Package filelock knows how processes keep each other out of a file or directory: with a lock that ends with the
// process which holds it, however that ends.
//
// A lock belongs to an open file. Another opening of the same path is another holder, also in this process.
package filelock

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// ErrBusy is the error of Try while another opening of the same file holds the lock.
var ErrBusy = errors.New("another process holds the lock")

// Open opens the file at path for locking, and makes it with permissions perm where it is missing. Its contents
// mean nothing. It is not to be removed: two processes could then hold locks on files of that name. Links are refused.
func Open(path string, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|openFlags, perm)
}

// Try locks an open file or directory until it is closed or this process dies. The error is ErrBusy while another process
// holds the lock. It wraps errors.ErrUnsupported where this system or file system has no locks: callers then go on
// without.
func Try(file *os.File) error { return lock(file, false) }

// Wait is Try, but waits until the lock is free.
func Wait(file *os.File) error { return lock(file, true) }

// OfTheKilled is how long TryFor may have to wait for a process that was killed: its lock lasts until its memory, which
// may be large, is taken down.
const OfTheKilled = 3 * time.Second

// TryFor is Try, but tries again for as long as patience says while another process holds the lock.
func TryFor(file *os.File, patience time.Duration) error {
	const pause = 50 * time.Millisecond
	for waited := time.Duration(0); ; waited += pause {
		err := Try(file)
		if err == nil || errors.Is(err, errors.ErrUnsupported) || waited >= patience {
			return err
		}
		time.Sleep(pause)
	}
}
