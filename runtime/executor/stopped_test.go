package executor

import (
	"testing"
	"time"
)

// Time in which the process was stopped is no time that a lane has waited.
func TestStopIsNoWait(t *testing.T) {
	m := &Machine{origin: time.Now()}
	looks := 0
	ready := func() bool {
		if looks++; looks == 400 || looks == 600 {
			m.origin = m.origin.Add(-time.Hour) // SIGSTOP, an hour, SIGCONT
		}
		return looks == 1000
	}
	var most int64
	stop := func(waited int64) bool {
		most = max(most, waited)
		return waited > int64(10*time.Second)
	}
	if !m.await(&crew{}, ready, func(int64) int64 { return 0 }, stop) {
		t.Errorf("given up after %v", time.Duration(most))
	}
	if most < 2*int64(mostBetween) {
		t.Errorf("waited %v, want each stop to count for %v", time.Duration(most), mostBetween)
	}
	looks = -1 << 40 // never ready: it is given up as late as ever
	began := time.Now()
	if m.await(&crew{}, ready, func(int64) int64 { return 0 }, func(waited int64) bool { return waited > int64(50*time.Millisecond) }) || time.Since(began) < 50*time.Millisecond {
		t.Errorf("given up after %v, want 50ms", time.Since(began))
	}
}
