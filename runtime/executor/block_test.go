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

func (l *lookedAt) Done(driver.Ticket) (bool, error) {
	l.asked++
	return true, nil
}

func (l *lookedAt) Wait(driver.Ticket) (driver.Span, error) {
	l.awaited++
	return driver.Span{}, nil
}

// A thread that waits for events asks for a call that is about to end, and has the driver wake it for a longer one.
func TestBlockAsksForShortCalls(t *testing.T) {
	cases := []struct {
		expected       time.Duration
		asked, awaited int
	}{
		{expected: 0, asked: 1},
		{expected: time.Hour, awaited: 1},
	}
	for _, c := range cases {
		m := &Machine{origin: time.Now()}
		device := &lookedAt{}
		queue := &queue{Asynchronous: device, count: 1}
		part := &laneSection{lane: &lane{waiting: capability.WaitEvent, queue: queue}}
		st := &step{awaited: true}
		st.estimateNS.Store(int64(c.expected))
		part.stepBegan.Store(m.now())
		*queue.at(0) = pending{step: st, part: part, ticket: 1, rows: 1}

		waited := m.waitInDriver(&crewSection{lanes: []*laneSection{part}, asyncLanes: 1})

		if !waited || queue.done != 1 {
			t.Errorf("a call of %v: waited %v, %d calls done, want true and 1", c.expected, waited, queue.done)
		}
		if device.asked != c.asked || device.awaited != c.awaited {
			t.Errorf("a call of %v: asked %d times and awaited %d times, want %d and %d", c.expected, device.asked,
				device.awaited, c.asked, c.awaited)
		}
	}
}
