//go:build unix && !solaris && !illumos && !aix

package matrix

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// inode identifies a state of a file and tells when that state began.
func inode(path string) (id string, changed time.Time, ok bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", changed, false
	}
	changed = time.Unix(st.Ctim.Unix())
	if now := time.Unix(st.Mtim.Unix()); now.After(changed) {
		changed = now
	}
	return fmt.Sprint(st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim), changed, true
}
