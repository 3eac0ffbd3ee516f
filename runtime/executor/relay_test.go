package executor

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/runtime/driver"
)

// In every turn of a relay the thread computes, then the call that waits for it, then the thread again; what lies
// beside the call may run at any time before the next turn. Each turn has a call of its own, and what the parts took
// adds up to no more than the turn.
func TestRelay(t *testing.T) {
	const turns, long = 12, 400 * time.Microsecond
	for _, wait := range capability.Waitings {
		for _, fed := range []bool{true, false} {
			var turn, flights atomic.Int64
			var wrong atomic.Pointer[string]
			note := func(text string) { wrong.CompareAndSwap(nil, &text) }
			own, device := on(0), newNotedQueue(&noted{})
			work := RelayWork{}
			for i := range int64(turns) {
				before := func() error {
					if turn.Load() != 2*i {
						note("a turn begins before the one before it has ended")
					}
					turn.Store(2*i + 1)
					return nil
				}
				call := func() error {
					if flights.Add(1) <= 1+turns { // those that are timed by themselves
						return nil
					}
					if turn.Load() != 2*i+1 {
						note("a call runs before what it waits for")
					}
					time.Sleep(long)
					turn.Store(2 * (i + 1))
					return nil
				}
				work.Before = append(work.Before, RelayCall{Exe: &notedStep{before}})
				work.Call = append(work.Call, RelayCall{Exe: &notedStep{call}})
				work.Meanwhile = append(work.Meanwhile, RelayCall{Exe: &notedStep{func() error { return nil }}})
			}
			relay, err := NewRelay(own, device, wait, fed, work)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				turn.Store(0)
				flights.Store(0)
				got, err := relay.Run(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if got.Turn < int64(long) || got.Before+got.Meanwhile+got.Submit > got.Turn || got.Submit <= 0 {
					t.Errorf("wait %q, fed %v: %+v, want turns of at least %v", wait, fed, got, long)
				}
				if turn.Load() != 2*turns {
					t.Errorf("wait %q, fed %v: %d half turns, want %d", wait, fed, turn.Load(), 2*turns)
				}
			}
			if text := wrong.Load(); text != nil {
				t.Errorf("wait %q, fed %v: %s", wait, fed, *text)
			}
			if err := relay.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A step or a call that fails ends the run by name, and lists of unlike lengths are refused.
func TestRelayFails(t *testing.T) {
	broken, fine := &notedStep{func() error { return errors.New("out of paper") }}, &notedStep{func() error { return nil }}
	for _, c := range []struct {
		before, call driver.Executable
		want         string
	}{{broken, fine, `step "before"`}, {fine, broken, "out of paper"}} {
		relay, err := NewRelay(on(0), newNotedQueue(&noted{}), capability.WaitEvent, true,
			RelayWork{Before: []RelayCall{{Exe: c.before}}, Meanwhile: []RelayCall{{Exe: fine}},
				Call: []RelayCall{{Exe: c.call}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := relay.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
		if err := relay.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := NewRelay(on(0), newNotedQueue(&noted{}), capability.WaitEvent, true,
		RelayWork{Before: []RelayCall{{Exe: fine}}}); err == nil {
		t.Error("a relay without calls was made")
	}
}
