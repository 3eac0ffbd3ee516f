package kernel

import "golang.org/x/sys/unix"

// permitTiles asks Linux (5.16 or later) to keep the state of tiles for all threads of this process. It refuses where
// the hypervisor hides the state, and where a thread's signal stack is too small for it; Go's are large enough.
func permitTiles() error {
	const (
		archReqXCompPerm = 0x1023
		tileData         = 18 // the number of the state component
	)
	if _, _, errno := unix.RawSyscall(unix.SYS_ARCH_PRCTL, archReqXCompPerm, tileData, 0); errno != 0 {
		return errno
	}
	return nil
}
