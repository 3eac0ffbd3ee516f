package bench

import (
	"testing"
	"time"

	compile "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// A meeting takes as long as its call, in every way of waiting, and asking all the time uses the core for as long.
func TestMeetingLane(t *testing.T) {
	devices, err := host.New().Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const long = 20 * time.Millisecond
	for _, wait := range capability.Waitings {
		slow := drivertest.Queue(host.New(), drivertest.Queueing{Delay: func(driver.Ticket) time.Duration { return long }})
		lane, closers, err := meetingLane(t.Context(), slow, compile.New(), driver.Config{Select: devices[0].Select}, wait, 64)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			met, err := lane.Once(t.Context(), 1)
			if err != nil || met.Took < int64(long) {
				t.Errorf("wait %q: a call of %v is met after %v (%v)", wait, long, time.Duration(met.Took), err)
			}
			if wait == capability.WaitEvent && met.Core > int64(long)/2 {
				t.Errorf("waiting for an event of %v uses a core for %v", long, time.Duration(met.Core))
			}
		}
		for i := range closers {
			if err := closers[len(closers)-1-i](); err != nil {
				t.Error(err)
			}
		}
	}
	_, closers, err := meetingLane(t.Context(), host.New(), compile.New(), driver.Config{Select: devices[0].Select}, capability.WaitSleep, 64)
	if err == nil {
		t.Error("a processor that executes synchronously is met")
	}
	for _, closer := range closers {
		_ = closer()
	}
	if _, err := meetingConfig("0", "completion"); err == nil {
		t.Error("an option without a value is accepted")
	}
}

// The quantiles are those of the samples.
func TestMeetingQuantiles(t *testing.T) {
	m := meeting{}
	for i := range int64(100) {
		m.met = append(m.met, executor.Met{Took: 99 - i, Core: i / 2})
	}
	if m.judge(); m.P50NS != 50 || m.P95NS != 95 || m.CoreNS != 25 {
		t.Errorf("got %+v", m)
	}
}
