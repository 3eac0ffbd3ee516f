//go:build unix

package highs

import (
	"os"
	"syscall"
)

// private reports whether the directory is the user's own, and no other user may enter it.
func private(dir string) bool {
	st, err := os.Lstat(dir)
	if err != nil || !st.IsDir() {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || int(sys.Uid) != os.Getuid() {
		return false
	}
	return st.Mode().Perm()&0o077 == 0 || os.Chmod(dir, 0o700) == nil
}
