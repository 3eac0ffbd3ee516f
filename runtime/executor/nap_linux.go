package executor

import (
	"time"

	"golang.org/x/sys/unix"
)

// minimizeTimerSlack makes the calling thread's naps end on time. The kernel otherwise adds up to 50 us.
func minimizeTimerSlack() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // without it naps are longer, nothing else
}

// nap sleeps without leaving the calling thread: with time.Sleep the Go scheduler would run another goroutine first.
func nap(d time.Duration) {
	left := unix.Timespec{Nsec: d.Nanoseconds()}
	_ = unix.Nanosleep(&left, nil)
}

// threadTime returns the core time in ns that the calling thread has used, 0 where it is not known.
func threadTime() int64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now) != nil {
		return 0
	}
	return now.Nano()
}
