package bundle

import (
	"os"
	"syscall"
)

// stampOf reads the stamp of an open file without allocating.
func stampOf(f *os.File) (stamp, error) {
	var st syscall.Stat_t
	for {
		switch err := syscall.Fstat(int(f.Fd()), &st); err {
		case nil:
			return stamp{st.Size, st.Mtim.Nano()}, nil
		case syscall.EINTR:
		default:
			return stamp{}, err
		}
	}
}
