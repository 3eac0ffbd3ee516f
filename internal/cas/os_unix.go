//go:build unix && !solaris && !illumos && !aix

package cas

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

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
