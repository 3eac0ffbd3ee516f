//go:build linux || darwin

package machine

import (
	"math"

	"golang.org/x/sys/unix"
)

// AddressSpace returns the most virtual memory the process may have, in bytes (ulimit -v).
func AddressSpace() int64 { return limit(unix.RLIMIT_AS) }

// FileSize returns the size a file may reach that the process writes, in bytes (ulimit -f).
func FileSize() int64 { return limit(unix.RLIMIT_FSIZE) }

// OpenFiles returns how many files the process may have open (ulimit -n).
func OpenFiles() int64 { return limit(unix.RLIMIT_NOFILE) }

// limit returns a limit of this process, the largest number where there is none.
func limit(which int) int64 {
	var rlimit unix.Rlimit
	if err := unix.Getrlimit(which, &rlimit); err != nil || rlimit.Cur > math.MaxInt64 {
		return Unlimited
	}
	return int64(rlimit.Cur)
}

// DiskSpace returns how many bytes this user can still write in the file system of path; ok is false where
// the system does not say.
func DiskSpace(path string) (bytes int64, ok bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true
}
