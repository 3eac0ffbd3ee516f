//go:build !linux && !darwin

package machine

// AddressSpace returns the most virtual memory the process may have, in bytes.
func AddressSpace() int64 { return Unlimited }

// FileSize returns the size a file may reach that the process writes, in bytes.
func FileSize() int64 { return Unlimited }

// OpenFiles returns how many files the process may have open.
func OpenFiles() int64 { return Unlimited }

// DiskSpace is not known on this system.
func DiskSpace(string) (bytes int64, ok bool) { return 0, false }
