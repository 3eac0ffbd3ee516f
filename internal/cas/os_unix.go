//go:build unix && !solaris && !illumos && !aix

package cas

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// lockFile locks a file until it is closed or this process dies: errBusy when another open file holds
// the lock, another error where the file system has no locks.
func lockFile(f *os.File, wait bool) error {
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	for {
		err := syscall.Flock(int(f.Fd()), how)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errBusy
		}
		return err
	}
}

// private reports whether strangers can not put anything below root, a directory in dir. Where everybody
// may write to dir, its sticky bit and our own root keep them out.
func private(dir, root string) bool {
	open := func(st fs.FileInfo) bool { return st.Mode().Perm()&0o002 != 0 }
	st, err := os.Stat(dir)
	if err != nil || open(st) && st.Mode()&fs.ModeSticky == 0 {
		return false
	}
	below, err := os.Lstat(root)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil || !below.IsDir() || open(below) {
		return false
	}
	own, ok := below.Sys().(*syscall.Stat_t)
	return !open(st) || ok && int(own.Uid) == os.Geteuid()
}
