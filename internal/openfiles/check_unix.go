//go:build unix

package openfiles

import "syscall"

// Before anything else of the program: a process without descriptors for its standard files would write into others.
func init() {
	if enough() {
		return
	}
	_, _ = syscall.Write(2, []byte(refusal)) // nothing else can be done
	syscall.Exit(unavailable)
}

// enough opens files to see whether it can, and closes them.
func enough() bool {
	const plenty = 64
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	if err == nil && limit.Cur < limit.Max && limit.Max > plenty {
		return true // package os raises it in its own initialisation
	}
	var open [fewest]int
	for i := range open {
		fd, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			closeAll(open[:i])
			return err != syscall.EMFILE && err != syscall.ENFILE
		}
		open[i] = fd
	}
	closeAll(open[:])
	return true
}

// closeAll closes what was opened to see whether it can be.
func closeAll(descriptors []int) {
	for _, fd := range descriptors {
		_ = syscall.Close(fd) // nothing was written
	}
}
