package park

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Spot is where one thread at a time sleeps. Its zero value is ready to be used, and must not be copied then.
type Spot struct {
	woken atomic.Uint32 // 1: a wake-up that no Sleep has taken yet
}

// Operations of the system call futex, for a word that no other process sees.
const (
	futexWait = 0 | 128
	futexWake = 1 | 128
)

// Sleep returns after a Wake that no earlier Sleep has returned for: at once where there was one.
func (s *Spot) Sleep() {
	for !s.woken.CompareAndSwap(1, 0) {
		// It returns at once where woken has changed meanwhile, and for signals: the loop looks again whatever it says.
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.woken)), futexWait, 0, 0, 0, 0)
	}
}

// Wake ends the Sleep that is under way, or the next one. Several before a Sleep count as one.
func (s *Spot) Wake() {
	if s.woken.Swap(1) == 0 {
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.woken)), futexWake, 1, 0, 0, 0)
	}
}
