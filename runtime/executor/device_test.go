package executor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
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
		{"the host's memory", drivertest.Queueing{Only: selectors, Delay: jitter}, capability.WaitSleep},
		{"own memory", drivertest.Queueing{Only: selectors, OwnMemory: true}, capability.WaitSleep},
		{"memory that it allocates", drivertest.Queueing{Only: selectors, OwnMemory: true, Maps: true}, capability.WaitSleep},
		{"own memory, waiting for events", drivertest.Queueing{Only: selectors, OwnMemory: true, Delay: jitter}, capability.WaitEvent},
		{"own memory, polling", drivertest.Queueing{Only: selectors, OwnMemory: true}, capability.WaitPoll},
	}
}

// options are those of a machine with such processors.
func (d *device) options(p *planir.Plan) executor.Options {
	for i := range p.Procs {
		p.Procs[i].Wait = d.wait
	}
	return executor.Options{Drivers: []driver.Driver{drivertest.Queue(host.New(), d.how)}}
}

// What asynchronous processors compute, alone, as the control processor, beside and divided with one that is called
// synchronously, has the very bits that synchronous execution has.
func TestDevicesComputeTheSameBits(t *testing.T) {
	require.Slow(t)
	m := open(t)
	s0, s1 := cores(t)
	ids, _ := ref[int32](t, "ids_3")
	ids = ids[:50]
	two := []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}
	// Sections of one processor alone run on into each other.
	second := func(d *planir.Decision, _ *lower.Node) { d.Shares[0].Proc = "b" }
	layouts := map[string]layoutOf{"columns": byColumns, "rows": byRows, "pairs": byPairs, "swapped": swapped,
		"first": bySingle, "second": second}
	if testing.Short() {
		layouts = map[string]layoutOf{"rows": byRows, "swapped": swapped, "second": second}
	}
	for name, layout := range layouts {
		p := makePlan(t, m, two, []int{1, 16}, 64, op.A8TQ8C, layout)
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

// Whatever is given to which of several processors, of which some are asynchronous.
func TestDevicesAmongOthers(t *testing.T) {
	require.Slow(t)
	m := open(t)
	s0, s1 := cores(t)
	both := s0 + "-" + s1
	ids, _ := ref[int32](t, "ids_3")
	ids = ids[:40]
	want := allLogits(t, machine(t, m, makePlan(t, m, []planir.Proc{proc("a", s0, "")}, []int{1, 16}, 64, op.A8TQ8C, bySingle), executor.Options{}), ids)
	procs := []planir.Proc{proc("a", s0, ""), proc("b", s1, ""), proc("c", both, "")}
	procs[2].Cores = nil // it is a device in all of them
	for seed := range uint64(6) {
		p := makePlan(t, m, procs, []int{1, 16}, 64, op.A8TQ8C, among(rand.New(rand.NewPCG(seed, 1)), "a", "b", "c"))
		for _, which := range [][]string{{both}, {s0, both}, {s1, both}, {s0, s1, both}} {
			for i, d := range devices(which...) {
				if i != int(seed)%5 {
					continue
				}
				x := machine(t, m, p, d.options(p))
				for _, pieces := range [][]int{nil, {1, 1, 1, 20, 1}} {
					if diff := maxDiff(allLogits(t, x, ids, pieces...), want); diff != 0 {
						t.Errorf("seed %d, processors %v, %s, in pieces of %v: differs from one processor by %g, want equal bits", seed, which, d.name, pieces, diff)
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
			p := makePlan(t, m, []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}, []int{1, 16}, 64, op.A32W32, byColumns)
			want := allLogits(t, machine(t, m, p, executor.Options{}), ids)
			for _, which := range [][]string{{s1}, {s0, s1}} {
				d := devices(which...)[1+i%2]
				x := machine(t, m, p, d.options(p))
				if diff := maxDiff(allLogits(t, x, ids), want); diff != 0 {
					t.Errorf("processors %v, %s: differs from synchronous execution by %g, want equal bits", which, d.name, diff)
				}
				x.Close()
			}
		})
	}
}

// Batches, prompts beside decoding, and caches that are kept and restored: the bits of synchronous execution.
func TestDeviceBatches(t *testing.T) {
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
func TestDeviceMoves(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	for name, c := range map[string]struct {
		layout layoutOf
		most   int64 // bytes of a token
		least  int64
	}{
		"alone":   {func(d *planir.Decision, _ *lower.Node) { d.Shares[0].Proc = "b" }, int64(4 + 4*m.Vocab), int64(4 + 4*m.Vocab)},
		"divided": {byColumns, int64(m.Layers * 40 * m.Hidden * 4), int64(2 * m.Vocab)},
	} {
		var moved atomic.Int64
		d := device{how: drivertest.Queueing{Only: []string{s1}, OwnMemory: true, Moved: &moved}}
		p := makePlan(t, m, []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}, []int{1, 16}, 64, op.A32W32, c.layout)
		x := machine(t, m, p, d.options(p))
		if err := x.Do(context.Background(), func(c *executor.Control) error {
			_, err := c.Forward([]int32{1, 2, 3}, executor.WantNone, nil)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		moved.Store(0)
		const tokens = 4
		for range tokens {
			if err := x.Do(context.Background(), func(c *executor.Control) error {
				_, err := c.Forward([]int32{5}, executor.WantLast, nil)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		if got := moved.Load() / tokens; got < c.least || got > c.most {
			t.Errorf("%s: a token moves %d bytes, want %d to %d", name, got, c.least, c.most)
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
	// one token on the first processor, more on the second
	turns := func(d *planir.Decision, _ *lower.Node) {
		if d.Rows > 1 {
			d.Shares[0].Proc = "b"
		}
	}
	p := makePlan(t, m, []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}, []int{1, 16}, 64, op.A8TQ8C, turns)
	x := machine(t, m, p, executor.Options{})
	pieces := []int{1, 17, 1, 1, 5, 1}
	want := allLogits(t, x, ids, pieces...)
	x.Close()
	for i, which := range [][]string{{s0}, {s1}, {s0, s1}} {
		for j, d := range devices(which...) {
			if testing.Short() && i != j {
				continue
			}
			x := machine(t, m, p, d.options(p))
			if diff := maxDiff(allLogits(t, x, ids, pieces...), want); diff != 0 {
				t.Errorf("processors %v, %s: differs from synchronous execution by %g, want equal bits", which, d.name, diff)
			}
			// keep 30 positions, spoil the cache by another text, restore 25, and go on
			var got []float32
			err := x.Do(context.Background(), func(c *executor.Control) error {
				data, err := c.Cached(0, 30)
				if err != nil {
					return err
				}
				c.Truncate(0, 0)
				if _, err := c.Forward(slices.Repeat([]int32{7}, 40), executor.WantNone, nil); err != nil {
					return err
				}
				if err := c.Restore(0, 25, 30, data); err != nil {
					return err
				}
				_, err = c.Forward(ids[25:], executor.WantAll, func(_ int, l []float32) error {
					got = append(got, l...)
					return nil
				})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := maxDiff(got, want[25*m.Vocab:]); diff != 0 {
				t.Errorf("processors %v, %s, restored: differs by %g, want equal bits", which, d.name, diff)
			}
			x.Close()
		}
	}
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
			p := makePlan(t, m, []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}, []int{1, 8}, 128, op.A8TQ8C, byPairs)
			x := machine(t, m, p, d.options(p))
			const tokens = 30
			var before, after runtime.MemStats
			if err := x.Do(context.Background(), func(c *executor.Control) error {
				one := []int32{5}
				sink := func(int, []float32) error { return nil }
				for i := -5; i < tokens; i++ {
					if i == 0 {
						runtime.ReadMemStats(&before)
					}
					if _, err := c.Forward(one, executor.WantLast, sink); err != nil {
						return err
					}
				}
				runtime.ReadMemStats(&after)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if n := after.Mallocs - before.Mallocs; n > tokens/2 {
				t.Errorf("processors %v, %s: %d allocations for %d decoded tokens, want none per token", which, d.name, n, tokens)
			}
			x.Close()
		}
	}
}

// A call that fails or hangs in flight, at any step, ends every lane with an error that names the step or the deadline;
// the next call returns too, and so does Close.
func TestDeviceFaults(t *testing.T) {
	require.Slow(t)
	m := open(t)
	s0, s1 := cores(t)
	two := []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}
	divided := makePlan(t, m, two, []int{1, 16}, 64, op.A32W32, byPairs)
	alone := makePlan(t, m, two, []int{1, 16}, 64, op.A32W32, bySingle)
	prompt := []int32{1, 30, 40, 50, 60, 70, 80}
	for _, which := range [][]string{{s0}, {s1}, {s0, s1}} {
		p := divided
		if len(which) == 1 && which[0] == s0 {
			p = alone // its sections run on into each other
		}
		hung := map[string]string{s0: "a", s1: "b"}[which[len(which)-1]]
		for _, wait := range []capability.Waiting{capability.WaitSleep, capability.WaitEvent} {
			for _, hang := range []bool{false, true} {
				for _, k := range []int{1, 7, 30, 61} {
					if testing.Short() && (k != 7 || (wait == capability.WaitEvent) != hang) || hang && drivertest.Race {
						continue
					}
					t.Run(fmt.Sprintf("processors %v hang=%v step %d wait=%q", which, hang, k, wait), func(t *testing.T) {
						for i := range p.Procs {
							p.Procs[i].Wait = wait
						}
						ctx, cancel := context.WithCancel(context.Background())
						defer cancel()
						c, err := emit.NewContent(ctx, p, m, []driver.Compiler{hostcompiler.New()})
						if err != nil {
							t.Fatal(err)
						}
						faulty := drivertest.Inject(ctx, host.New(), drivertest.Fault{At: drivertest.AtRun, K: k, Hang: hang, Select: which[len(which)-1]})
						d := drivertest.Queue(faulty, drivertest.Queueing{Only: which, OwnMemory: k%2 == 1})
						deadline := 10 * time.Second
						if hang {
							deadline = 150 * time.Millisecond
						}
						x, err := executor.Open(ctx, p, c, executor.Options{Drivers: []driver.Driver{d}, Deadline: deadline})
						if err != nil {
							t.Fatal(err)
						}
						within(t, time.Minute, func() {
							_, err := x.Generate(context.Background(), prompt, 4, &executor.Sampler{}, nil)
							if err == nil {
								t.Error("generate succeeded in spite of the fault")
								return
							}
							var injected *drivertest.Error
							switch {
							case !hang && (!errors.As(err, &injected) || !strings.Contains(err.Error(), "step")):
								t.Errorf("got %v, want the injected failure of a step", err)
							case hang && !blames(err, hung):
								t.Errorf("got %v, want the step that hangs on processor %q", err, hung)
							}
							if _, err := x.Generate(context.Background(), prompt, 2, &executor.Sampler{}, nil); err == nil {
								t.Error("a second call succeeded on a driver that keeps failing")
							}
							_ = x.Close() // it may leave the processor behind
							cancel()
						})
					})
				}
			}
		}
	}
}

// A generation on asynchronous processors is cancelled in the middle, and the machine works afterwards.
func TestDeviceCancel(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	two := []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}
	for i, d := range append(devices(s1), devices(s0)...) {
		layout := byPairs
		if i >= len(devices(s1)) {
			layout = bySingle // its sections run on into each other
		}
		p := makePlan(t, m, two, []int{1, 8}, 512, op.A8TQ8C, layout)
		x := machine(t, m, p, d.options(p))
		ctx, cancel := context.WithCancel(context.Background())
		n := 0
		within(t, time.Minute, func() {
			if _, err := x.Generate(ctx, []int32{1, 2, 3}, 500, &executor.Sampler{}, func(int32) bool {
				if n++; n == 3 {
					time.AfterFunc(time.Millisecond, cancel)
				}
				return true
			}); !errors.Is(err, context.Canceled) {
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

// A trace of a device has its steps one after another, in sections and calls, and waits behind the steps that end them;
// statistics count each step of each layer.
func TestDeviceTrace(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	for _, d := range devices(s1) {
		p := makePlan(t, m, []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}, []int{1, 8}, 64, op.A8TQ8C, byPairs)
		o := d.options(p)
		o.Trace = 10000
		x := machine(t, m, p, o)
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
		for _, stat := range x.Stats() {
			if want := int64(m.Layers); stat.Program == "decode" && stat.Section == "layers" && stat.Runs != 2*want {
				t.Errorf("%s: step %q on %q ran %d times, want %d", d.name, stat.Node, stat.Proc, stat.Runs, 2*want)
			}
		}
		x.Close()
	}
}
