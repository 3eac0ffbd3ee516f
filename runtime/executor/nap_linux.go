package executor

import (
	"time"

	"golang.org/x/sys/unix"
)

// sharpen makes the calling thread's naps end on time, to which the kernel otherwise adds up to 50
// us.
func sharpen() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // without it naps are longer, nothing else
}

// nap sleeps on the calling thread: Go's timers would first hand the processor over.
func nap(d time.Duration) {
	left := unix.Timespec{Nsec: d.Nanoseconds()}
	_ = unix.Nanosleep(&left, nil)
}

// threadTime returns the time in ns that the calling thread has used a core.
func threadTime() int64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now) != nil {
		return 0
	}
	return now.Nano()
}
