package profiler

import (
	"testing"
	"time"
)

// Pieces of a loop that is fast grow until what surrounds them is nothing beside them, and those of a slow one stay small:
// a worker stops between two pieces.
func TestPiecesOfAPeak(t *testing.T) {
	for _, loop := range []struct {
		name      string
		perSecond float64
		grows     bool
	}{{"tiles", 4e12, true}, {"scalar instructions", 1e9, false}} {
		var largest int64
		work := computing(func(ops int64) int64 {
			largest = ops
			end := time.Now().Add(time.Duration(float64(ops) / loop.perSecond * 1e9))
			for time.Now().Before(end) { // more exact than sleep
			}
			return ops
		})(0)

		first := work()
		for range 20 {
			work()
		}

		switch took := time.Duration(float64(largest) / loop.perSecond * 1e9); {
		case loop.grows && (largest == first || took < 10*time.Microsecond):
			t.Errorf("%s: a piece of %d operations takes %v", loop.name, largest, took)
		case !loop.grows && largest != first:
			t.Errorf("%s: pieces grow from %d to %d operations", loop.name, first, largest)
		}
	}
}
