//go:build unix

package bundle

import (
	"os"
	"syscall"
)

// openFlags keep an open from following a link and from hanging on a FIFO.
const openFlags = os.O_RDONLY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// links returns the number of names the file has.
func links(st os.FileInfo) uint64 {
	if info, ok := st.Sys().(*syscall.Stat_t); ok {
		return uint64(info.Nlink)
	}
	return 1
}
