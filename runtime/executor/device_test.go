package executor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// device is a way to make some of a plan's processors asynchronous.
type device struct {
	name string
	how  drivertest.Queueing
	wait capability.Waiting
}

// devices are all of them, for the processors of these selectors.
func devices(selectors ...string) []device {
	jitter := func(ticket driver.Ticket) time.Duration {
		return time.Duration(ticket*2654435761%1021/1010) * 300 * time.Microsecond
	}
	return []device{
		{
			name: "the host's memory", wait: capability.WaitSleep,
			how: drivertest.Queueing{Only: selectors, Delay: jitter},
		},
		{
			name: "own memory", wait: capability.WaitSleep,
			how: drivertest.Queueing{Only: selectors, OwnMemory: true},
		},
		{
			name: "memory that it allocates", wait: capability.WaitSleep,
			how: drivertest.Queueing{Only: selectors, OwnMemory: true, Maps: true},
		},
		{
			name: "own memory, waiting for events", wait: capability.WaitEvent,
			how: drivertest.Queueing{Only: selectors, OwnMemory: true, Delay: jitter},
		},
		{
			name: "own memory, polling", wait: capability.WaitPoll,
			how: drivertest.Queueing{Only: selectors, OwnMemory: true},
		},
	}
}

// options are those of a machine with such processors.
func (d *device) options(p *planir.Plan) executor.Options {
	for i := range p.Procs {
		p.Procs[i].Wait = d.wait
	}
	return executor.Options{Drivers: []driver.Driver{drivertest.Queue(host.New(), d.how)}}
}

// toSecond gives all to processor b.
func toSecond(d *planir.Decision, _ *lower.Node) { d.Shares[0].Proc = "b" }

// What asynchronous processors compute has the very bits that synchronous execution has: alone, as the control
// processor, and beside or divided with one that is called synchronously.
func TestDevicesComputeTheSameBits(t *testing.T) {
	require.Slow(t)
	m := open(t)
	s0, s1 := cores(t)
	ids, _ := ref[int32](t, "ids_3")
	ids = ids[:50]
	two := pairOn(s0, s1)
	layouts := map[string]layoutOf{
		"columns": byColumns,
		"rows":    byRows,
		"pairs":   byPairs,
		"swapped": swapped,
		"first":   bySingle, // sections of one processor alone run on into each other
		"second":  toSecond,
	}
	if testing.Short() {
		layouts = map[string]layoutOf{"rows": byRows, "swapped": swapped, "second": toSecond}
	}
	for name, layout := range layouts {
		p := makePlan(t, m, planSpec{
			procs: two, rows: []int{1, 16}, context: 64, scheme: op.A8TQ8C, layout: layout,
		})

		pieces := []int{1, 1, 1, 20, 1}
		x := machine(t, m, p, executor.Options{})
		want, wantPieces := allLogits(t, x, ids), allLogits(t, x, ids, pieces...)
		x.Close()

		for i, which := range [][]string{{s0}, {s1}, {s0, s1}} {
			for j, d := range devices(which...) {
				if testing.Short() && (i+j)%2 != 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s, processors %v, %s", name, which, d.name), func(t *testing.T) {
					x := machine(t, m, p, d.options(p))
					defer x.Close()
					if diff := maxDiff(allLogits(t, x, ids), want); diff != 0 {
						t.Errorf("differs from synchronous execution by %g, want equal bits", diff)
					}
					if diff := maxDiff(allLogits(t, x, ids, pieces...), wantPieces); diff != 0 {
						t.Errorf("in pieces: differs from synchronous execution by %g, want equal bits", diff)
					}
				})
			}
		}
	}
}

// Several processors, of which some are asynchronous, compute the bits of one processor, however the work is divided.
func TestDevicesAmongOthers(t *testing.T) {
	require.Slow(t)
	m := open(t)
	s0, s1 := cores(t)
	both := s0 + "-" + s1
	ids, _ := ref[int32](t, "ids_3")
	ids = ids[:40]
	want := allLogits(t, machine(t, m, makePlan(t, m, planSpec{
		procs: singleOn(s0), rows: []int{1, 16}, context: 64, scheme: op.A8TQ8C,
	}), executor.Options{}), ids)

	procs := append(pairOn(s0, s1), proc("c", both, ""))
	procs[2].Cores = nil // it is a device in all of them
	for seed := range uint64(6) {
		p := makePlan(t, m, planSpec{
			procs: procs, rows: []int{1, 16}, context: 64, scheme: op.A8TQ8C,
			layout: among(rand.New(rand.NewPCG(seed, 1)), "a", "b", "c"),
		})
		for _, which := range [][]string{{both}, {s0, both}, {s1, both}, {s0, s1, both}} {
			for i, d := range devices(which...) {
				if i != int(seed)%5 {
					continue
				}
				x := machine(t, m, p, d.options(p))
				for _, pieces := range [][]int{nil, {1, 1, 1, 20, 1}} {
					if diff := maxDiff(allLogits(t, x, ids, pieces...), want); diff != 0 {
						what := fmt.Sprintf("seed %d, processors %v, %s, in pieces of %v", seed, which, d.name, pieces)
						t.Errorf("%s: differs from one processor by %g, want equal bits", what, diff)
					}
				}
				x.Close()
			}
		}
	}
}

// Every architecture divided between the host and a processor with memory of its own has the bits of synchronous
// execution.
func TestDeviceArchitectures(t *testing.T) {
	require.Slow(t)
	s0, s1 := cores(t)
	for i, config := range archDirs(t) {
		if raceEnabled && i%4 != 0 {
			continue
		}
		dir := filepath.Dir(config)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m, err := models.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			ids := readLogits(t, filepath.Join(dir, "logits.safetensors"))[33].ids
			p := makePlan(t, m, planSpec{
				procs: pairOn(s0, s1), rows: []int{1, 16}, context: 64, scheme: op.A32W32,
				layout: byColumns,
			})
			want := allLogits(t, machine(t, m, p, executor.Options{}), ids)

			for _, which := range [][]string{{s1}, {s0, s1}} {
				d := devices(which...)[1+i%2]
				x := machine(t, m, p, d.options(p))
				if diff := maxDiff(allLogits(t, x, ids), want); diff != 0 {
					what := fmt.Sprintf("processors %v, %s", which, d.name)
					t.Errorf("%s: differs from synchronous execution by %g, want equal bits", what, diff)
				}
				x.Close()
			}
		})
	}
}

// Batches, and prompts beside decoding, have the bits of synchronous execution.
func TestDevicesBatchWithTheSameBits(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	p := besidePlan(t, m, op.A8TQ8C, []int{1, 16, 64}, 160)
	list := prompts(m.Vocab, 5, 9, 70)
	x := machine(t, m, p, executor.Options{})
	want := alone(t, x, list, 5)
	x.Close()

	for i, which := range [][]string{{s0}, {s1}, {s0, s1}} {
		for j, d := range devices(which...) {
			if testing.Short() && i != j {
				continue
			}
			name := fmt.Sprintf("processors %v, %s", which, d.name)
			x := machine(t, m, p, d.options(p))
			same(t, name+", alone", want, alone(t, x, list, 5), 0)
			same(t, name+", together", want, together(t, x, list, 5), 0)
			same(t, name+", beside", want, beside(t, x, list, 5), 0)
			x.Close()
		}
	}
}

// A model on a device with memory of its own moves token ids there and logits back. Divided, it moves what one
// processor computes and another one needs, and no cache.
func TestDevicesMoveNoMoreThanNeeded(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	for _, c := range []struct {
		name        string
		layout      layoutOf
		least, most int // bytes of a token
	}{
		{name: "alone", layout: toSecond, least: 4 + 4*m.Vocab, most: 4 + 4*m.Vocab},
		{name: "divided", layout: byColumns, least: 2 * m.Vocab, most: m.Layers * 40 * m.Hidden * 4},
	} {
		var moved atomic.Int64
		d := device{how: drivertest.Queueing{Only: []string{s1}, OwnMemory: true, Moved: &moved}}
		p := makePlan(t, m, planSpec{
			procs: pairOn(s0, s1), rows: []int{1, 16}, context: 64, scheme: op.A32W32, layout: c.layout,
		})
		x := machine(t, m, p, d.options(p))
		forward := func(ids []int32, want executor.Want) {
			err := x.Do(context.Background(), func(c *executor.Control) error {
				_, err := c.Forward(ids, want, nil)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}

		forward([]int32{1, 2, 3}, executor.WantNone)
		moved.Store(0)
		const tokens = 4
		for range tokens {
			forward([]int32{5}, executor.WantLast)
		}

		if got := int(moved.Load() / tokens); got < c.least || got > c.most {
			t.Errorf("%s: a token moves %d bytes, want %d to %d", c.name, got, c.least, c.most)
		}
		x.Close()
	}
}

// A cache is kept and restored from wherever it lies, and processors take turns with it: a prompt on one, tokens on
// another.
func TestDeviceCaches(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	ids, _ := ref[int32](t, "ids_3")
	ids = ids[:40]
	turns := func(d *planir.Decision, n *lower.Node) {
		if d.Rows > 1 {
			toSecond(d, n)
		}
	}
	p := makePlan(t, m, planSpec{
		procs: pairOn(s0, s1), rows: []int{1, 16}, context: 64, scheme: op.A8TQ8C, layout: turns,
	})
	x := machine(t, m, p, executor.Options{})
	pieces := []int{1, 17, 1, 1, 5, 1}
	want := allLogits(t, x, ids, pieces...)
	x.Close()

	for i, which := range [][]string{{s0}, {s1}, {s0, s1}} {
		for j, d := range devices(which...) {
			if testing.Short() && i != j {
				continue
			}
			what := fmt.Sprintf("processors %v, %s", which, d.name)
			x := machine(t, m, p, d.options(p))
			if diff := maxDiff(allLogits(t, x, ids, pieces...), want); diff != 0 {
				t.Errorf("%s: differs from synchronous execution by %g, want equal bits", what, diff)
			}
			if diff := maxDiff(restoredLogits(t, x, ids, 25), want[25*m.Vocab:]); diff != 0 {
				t.Errorf("%s, restored: differs by %g, want equal bits", what, diff)
			}
			x.Close()
		}
	}
}

// restoredLogits keeps 30 positions of the ids, spoils the cache by another text, and restores some of them. It returns
// the logits of the rest.
func restoredLogits(t *testing.T, x *executor.Machine, ids []int32, restored int) (got []float32) {
	t.Helper()
	const kept = 30
	err := x.Do(context.Background(), func(c *executor.Control) error {
		data, err := c.Cached(0, kept)
		if err != nil {
			return err
		}
		c.Truncate(0, 0)
		if _, err := c.Forward(slices.Repeat([]int32{7}, 40), executor.WantNone, nil); err != nil {
			return err
		}
		if err := c.Restore(0, restored, kept, data); err != nil {
			return err
		}
		_, err = c.Forward(ids[restored:], executor.WantAll, func(_ int, logits []float32) error {
			got = append(got, logits...)
			return nil
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// decodingAllocations is how many objects are allocated while so many tokens are decoded, after the first ones. The Go
// runtime allocates when it starts a thread, which a busy machine makes it do at any time, so it is the least of three
// times. testing.AllocsPerRun would run on one Go processor, where two lanes only take turns.
func decodingAllocations(t *testing.T, x *executor.Machine, tokens int) uint64 {
	t.Helper()
	least := uint64(math.MaxUint64)
	err := x.Do(context.Background(), func(c *executor.Control) error {
		one := []int32{5}
		sink := func(int, []float32) error { return nil }
		decode := func(tokens int) error {
			for range tokens {
				if _, err := c.Forward(one, executor.WantLast, sink); err != nil {
					return err
				}
			}
			return nil
		}
		if err := decode(5); err != nil {
			return err
		}
		for range 3 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if err := decode(tokens); err != nil {
				return err
			}
			runtime.ReadMemStats(&after)
			least = min(least, after.Mallocs-before.Mallocs)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return least
}

// The steady state allocates nothing on asynchronous processors either.
func TestDeviceDecodeAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	m := open(t)
	s0, s1 := cores(t)
	for i, which := range [][]string{{s1}, {s0, s1}} {
		for j, d := range devices(which...) {
			if testing.Short() && i+1 != j {
				continue
			}
			p := makePlan(t, m, planSpec{
				procs: pairOn(s0, s1), rows: []int{1, 8}, context: 128, scheme: op.A8TQ8C,
				layout: byPairs,
			})
			x := machine(t, m, p, d.options(p))
			const tokens = 30
			if n := decodingAllocations(t, x, tokens); n > tokens/2 {
				what := fmt.Sprintf("processors %v, %s", which, d.name)
				t.Errorf("%s: %d allocations for %d decoded tokens, want none per token", what, n, tokens)
			}
			x.Close()
		}
	}
}

// A call that fails or hangs in flight, at any step, ends every lane with an error that names the step or the deadline.
// The next call returns too, and so does Close.
func TestFaultInFlightEndsEveryLane(t *testing.T) {
	require.Slow(t)
	m := open(t)
	s0, s1 := cores(t)
	two := pairOn(s0, s1)
	divided := makePlan(t, m, planSpec{
		procs: two, rows: []int{1, 16}, context: 64, scheme: op.A32W32, layout: byPairs,
	})
	alone := makePlan(t, m, planSpec{procs: two, rows: []int{1, 16}, context: 64, scheme: op.A32W32})
	for _, which := range [][]string{{s0}, {s1}, {s0, s1}} {
		p := divided
		if len(which) == 1 && which[0] == s0 {
			p = alone // its sections run on into each other
		}
		faulty := which[len(which)-1]
		for _, wait := range []capability.Waiting{capability.WaitSleep, capability.WaitEvent} {
			for _, hang := range []bool{false, true} {
				for _, call := range []int{1, 7, 30, 61} {
					some := call == 7 && (wait == capability.WaitEvent) == hang
					if testing.Short() && !some || hang && drivertest.Race {
						continue
					}
					name := fmt.Sprintf("processors %v hang=%v step %d wait=%q", which, hang, call, wait)
					t.Run(name, func(t *testing.T) {
						for i := range p.Procs {
							p.Procs[i].Wait = wait
						}
						ctx, end := context.WithCancel(context.Background())
						defer end()
						fault := drivertest.Fault{At: drivertest.AtRun, K: call, Hang: hang, Select: faulty}
						queueing := drivertest.Queueing{Only: which, OwnMemory: call%2 == 1}
						d := drivertest.Queue(drivertest.Inject(ctx, host.New(), fault), queueing)

						x := openFaulty(ctx, t, m, p, d, hang)
						name := map[string]string{s0: "a", s1: "b"}[faulty]
						endsWithFault(t, x, hang, name, end)
					})
				}
			}
		}
	}
}

// A generation on asynchronous processors is cancelled in the middle, and the machine works afterwards.
func TestDevicesAreCancelled(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	two := pairOn(s0, s1)
	for i, d := range append(devices(s1), devices(s0)...) {
		layout := byPairs
		if i >= len(devices(s1)) {
			layout = bySingle // its sections run on into each other
		}
		p := makePlan(t, m, planSpec{
			procs: two, rows: []int{1, 8}, context: 512, scheme: op.A8TQ8C, layout: layout,
		})
		x := machine(t, m, p, d.options(p))
		ctx, cancel := context.WithCancel(context.Background())
		tokens := 0
		cancelSoon := func(int32) bool {
			tokens++
			if tokens == 3 {
				time.AfterFunc(time.Millisecond, cancel)
			}
			return true
		}
		returns(t, func() {
			_, err := x.Generate(ctx, []int32{1, 2, 3}, 500, &executor.Sampler{}, cancelSoon)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %v, want %v", d.name, err, context.Canceled)
			}

			x.Reset()
			if _, err := x.Generate(context.Background(), []int32{1, 2, 3}, 5, &executor.Sampler{}, nil); err != nil {
				t.Errorf("%s: afterwards: %v", d.name, err)
			}
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		})
		cancel()
	}
}

// A trace of a device has its steps one after another, in sections and calls, and waits behind the steps that end them.
// Statistics count each step of each layer.
func TestDeviceTraceIsInOrder(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	for _, d := range devices(s1) {
		p := makePlan(t, m, planSpec{
			procs: pairOn(s0, s1), rows: []int{1, 8}, context: 64, scheme: op.A8TQ8C, layout: byPairs,
		})
		options := d.options(p)
		options.Trace = 10000
		x := machine(t, m, p, options)
		if _, err := x.Generate(context.Background(), []int32{1, 2, 3}, 3, &executor.Sampler{}, nil); err != nil {
			t.Fatal(err)
		}

		var text bytes.Buffer
		if lost, err := x.WriteTrace(&text); err != nil || lost > 0 {
			t.Fatal(lost, err)
		}
		events := traced(t, text.Bytes())
		if len(events) < 100 {
			t.Errorf("%s: %d events", d.name, len(events))
		}
		want := int64(2 * m.Layers)
		for _, stat := range x.Stats() {
			ofLayers := stat.Program == "decode" && stat.Section == "layers"
			if ofLayers && stat.Runs != want {
				t.Errorf("%s: step %q on %q ran %d times, want %d", d.name, stat.Node, stat.Proc, stat.Runs, want)
			}
		}
		x.Close()
	}
}
