package executor

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/runtime/driver"
)

// watchedRelay is the work of a relay whose parts note where they run out of order.
type watchedRelay struct {
	half  atomic.Int64 // turns of which the first half has ended, and turns that have
	calls atomic.Int64
	wrong atomic.Pointer[string]
}

const (
	relayTurns = 12
	relayCall  = 400 * time.Microsecond // how long a call takes
)

// note keeps the first thing that went wrong.
func (w *watchedRelay) note(text string) { w.wrong.CompareAndSwap(nil, &text) }

// work has a step, a call that waits for it, and a step meanwhile, in each turn.
func (w *watchedRelay) work() (work RelayWork) {
	for turn := range int64(relayTurns) {
		before := func() error {
			if w.half.Load() != 2*turn {
				w.note("a turn begins before the one before it has ended")
			}
			w.half.Store(2*turn + 1)
			return nil
		}
		call := func() error {
			if w.calls.Add(1) <= 1+relayTurns { // those that are timed by themselves
				return nil
			}
			if w.half.Load() != 2*turn+1 {
				w.note("a call runs before what it waits for")
			}
			time.Sleep(relayCall)
			w.half.Store(2 * (turn + 1))
			return nil
		}
		work.Before = append(work.Before, RelayCall{Exe: &notedStep{before}})
		work.Call = append(work.Call, RelayCall{Exe: &notedStep{call}})
		work.Meanwhile = append(work.Meanwhile, RelayCall{Exe: &notedStep{func() error { return nil }}})
	}
	return work
}

// In every turn of a relay the thread computes, then the call that waits for it, then the thread again. What lies
// beside the call may run at any time before the next turn. Each turn has a call of its own, and what the parts took
// adds up to no more than the turn.
func TestRelayTakesTurns(t *testing.T) {
	for _, wait := range capability.Waitings {
		for _, fed := range []bool{true, false} {
			t.Run(fmt.Sprintf("wait %q, fed %v", wait, fed), func(t *testing.T) {
				watched := &watchedRelay{}
				relay, err := NewRelay(on(0), newNotedQueue(&noted{}), wait, fed, watched.work())
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					watched.half.Store(0)
					watched.calls.Store(0)

					got, err := relay.Run(t.Context())
					if err != nil {
						t.Fatal(err)
					}

					if got.Turn < int64(relayCall) {
						t.Errorf("%+v, want turns of at least %v", got, relayCall)
					}
					if got.Before+got.Meanwhile+got.Submit > got.Turn || got.Submit <= 0 {
						t.Errorf("%+v, want parts that add up to no more than the turn", got)
					}
					if ended := watched.half.Load(); ended != 2*relayTurns {
						t.Errorf("%d half turns, want %d", ended, 2*relayTurns)
					}
				}
				if text := watched.wrong.Load(); text != nil {
					t.Error(*text)
				}
				if err := relay.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A step or a call that fails ends the run by name.
func TestRelayNamesAFailure(t *testing.T) {
	broken := &notedStep{func() error { return errors.New("out of paper") }}
	fine := &notedStep{func() error { return nil }}
	for _, c := range []struct {
		before, call driver.Executable
		want         string
	}{
		{before: broken, call: fine, want: `step "before"`},
		{before: fine, call: broken, want: "out of paper"},
	} {
		relay, err := NewRelay(on(0), newNotedQueue(&noted{}), capability.WaitEvent, true, RelayWork{
			Before:    []RelayCall{{Exe: c.before}},
			Call:      []RelayCall{{Exe: c.call}},
			Meanwhile: []RelayCall{{Exe: fine}},
		})
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
}

// A relay needs a call for every step before one.
func TestRelayRefuses(t *testing.T) {
	work := RelayWork{Before: []RelayCall{{Exe: &notedStep{}}}}
	if _, err := NewRelay(on(0), newNotedQueue(&noted{}), capability.WaitEvent, true, work); err == nil {
		t.Error("a relay without calls was made")
	}
}
