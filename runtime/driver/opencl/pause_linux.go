package opencl

import "syscall"

// pause sleeps for a moment. The runtime's own sleep takes a millisecond at least.
func pause() { _ = syscall.Nanosleep(&syscall.Timespec{Nsec: 20_000}, nil) }
