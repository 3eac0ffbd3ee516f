package executor

import (
	"testing"
	"time"
)

// Time in which the process was stopped is no time that a lane has waited.
func TestStoppedTimeIsNoWaiting(t *testing.T) {
	m := &Machine{origin: time.Now()}
	looks := 0
	ready := func() bool {
		looks++
		if looks == 400 || looks == 600 {
			m.origin = m.origin.Add(-time.Hour) // SIGSTOP, an hour, SIGCONT
		}
		return looks == 1000
	}
	var most int64
	stop := func(waited int64) bool {
		most = max(most, waited)
		return waited > int64(10*time.Second)
	}

	became := m.await(&crew{}, ready, expectNothing, stop)

	if !became {
		t.Errorf("given up after %v", time.Duration(most))
	}
	if most < 2*int64(mostBetween) {
		t.Errorf("waited %v, want each stop to count for %v", time.Duration(most), mostBetween)
	}
}

// What never becomes ready is given up after its time.
func TestWaitIsGivenUp(t *testing.T) {
	const limit = 50 * time.Millisecond
	m := &Machine{origin: time.Now()}
	never := func() bool { return false }
	stop := func(waited int64) bool { return waited > int64(limit) }
	began := time.Now()

	became := m.await(&crew{}, never, expectNothing, stop)

	if took := time.Since(began); became || took < limit {
		t.Errorf("ready: %v after %v, want to be given up after %v", became, took, limit)
	}
}

// expectNothing says that what is awaited may end at any time.
func expectNothing(int64) int64 { return 0 }
