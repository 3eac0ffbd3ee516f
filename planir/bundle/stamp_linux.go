package bundle

import (
	"os"
	"syscall"
)

// stampOf reads the stamp of an open file without allocating.
func stampOf(file *os.File) (stamp, error) {
	var st syscall.Stat_t
	for {
		switch err := syscall.Fstat(int(file.Fd()), &st); err {
		case nil:
			return stamp{st.Size, st.Mtim.Nano()}, nil
		case syscall.EINTR:
		default:
			return stamp{}, err
		}
	}
}
