package executor

import (
	"testing"
	"time"

	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/runtime/driver"
)

// lookedAt is a processor whose call is done, and that counts how it was asked for it.
type lookedAt struct {
	driver.Asynchronous
	asked, awaited int
}

func (l *lookedAt) Done(driver.Ticket) (bool, error)        { l.asked++; return true, nil }
func (l *lookedAt) Wait(driver.Ticket) (driver.Span, error) { l.awaited++; return driver.Span{}, nil }

// A thread that waits for events asks for a call that is about to end, and has the driver wake it for a longer one.
func TestBlockAsksForShortCalls(t *testing.T) {
	m := &Machine{origin: time.Now()}
	for expected, want := range map[time.Duration]lookedAt{0: {asked: 1}, time.Hour: {awaited: 1}} {
		device := &lookedAt{}
		ls := &laneSection{lane: &lane{wait: capability.WaitEvent, queue: &queue{Asynchronous: device, count: 1}}}
		st := &step{awaited: true}
		st.estimateNS.Store(int64(expected))
		ls.began.Store(m.now())
		*ls.lane.queue.at(0) = pending{step: st, part: ls, ticket: 1, rows: 1}
		if !m.waitInDriver(&crewSection{lanes: []*laneSection{ls}, feeds: 1}) || device.asked != want.asked ||
			device.awaited != want.awaited {
			t.Errorf("a call of %v: asked %d times and awaited %d times, want %d and %d", expected, device.asked,
				device.awaited, want.asked, want.awaited)
		}
		if ls.lane.queue.done != 1 {
			t.Errorf("a call of %v: the queue does not know that it is done", expected)
		}
	}
}
