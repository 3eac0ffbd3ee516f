package executor_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// within fails the test when f does not return in time: an executor must never hang.
func within(t *testing.T, limit time.Duration, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("no return within %v", limit)
	}
}

// blames reports whether an error names a step with its graph and its layer on a processor, and says that it hangs.
func blames(err error, processor string) bool {
	return err != nil && regexp.MustCompile(`step "[^"]+" \(graph "[^"]+", layer -?\d+, [a-z_]+\[.*\) on processor "`+
		processor+`" is not done.*hangs$`).MatchString(err.Error())
}

// A driver that does not return from loading a graph, and a caller that does not return, are told apart from a step
// that hangs.
func TestWhatHangs(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	p := makePlan(t, m, []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}, []int{1, 16}, 64, op.A32W32, byPairs)
	for _, c := range []struct {
		fault drivertest.Fault
		run   func(x *executor.Machine, ended context.Context) error
		want  string
	}{
		{drivertest.Fault{At: drivertest.AtLoad, K: 3, Hang: true, Select: s1},
			func(x *executor.Machine, _ context.Context) error {
				_, err := x.Generate(context.Background(), []int32{1}, 1, &executor.Sampler{}, nil)
				return err
			}, `a32/w32) is being loaded on processor "b": the processor hangs`},
		{drivertest.Fault{}, func(x *executor.Machine, ended context.Context) error {
			return x.Do(context.Background(), func(*executor.Control) error {
				<-ended.Done()
				return nil
			})
		}, "no processor has anything to do: what runs between two steps does not return"},
	} {
		ctx, end := context.WithCancel(context.Background())
		content, err := emit.NewContent(ctx, p, m, []driver.Compiler{hostcompiler.New()})
		if err != nil {
			t.Fatal(err)
		}
		x, err := executor.Open(ctx, p, content, executor.Options{Deadline: 150 * time.Millisecond, OnDemand: true,
			Drivers: []driver.Driver{drivertest.Inject(ctx, host.New(), c.fault)}})
		if err != nil {
			t.Fatal(err)
		}
		within(t, time.Minute, func() {
			if err := c.run(x, ctx); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			end()
			_ = x.Close()
		})
	}
}

// Who interrupts a processor that hangs does not wait for the deadline.
func TestInterruptedHang(t *testing.T) {
	require.Slow(t)
	m := open(t)
	s0, s1 := cores(t)
	p := makePlan(t, m, []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}, []int{1, 16}, 64, op.A32W32, byPairs)
	end, release := context.WithCancel(context.Background())
	defer release()
	c, err := emit.NewContent(end, p, m, []driver.Compiler{hostcompiler.New()})
	if err != nil {
		t.Fatal(err)
	}
	d := drivertest.Inject(end, host.New(), drivertest.Fault{At: drivertest.AtRun, K: 7, Hang: true, Select: s0})
	x, err := executor.Open(end, p, c, executor.Options{Drivers: []driver.Driver{d}, Deadline: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	within(t, time.Minute, func() {
		if _, err := x.Generate(ctx, []int32{1, 30, 40, 50, 60, 70, 80}, 4, &executor.Sampler{}, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if _, err := x.Generate(context.Background(), []int32{1}, 1, &executor.Sampler{}, nil); !blames(err, "a") {
			t.Errorf("the next call: got %v, want the step that hangs on the processor", err)
		}
		release()
		_ = x.Close() // it may have left the processor behind
	})
}

// A lane that fails or hangs at any step ends every lane, with the first failure as the error.
func TestLaneFaults(t *testing.T) {
	require.Slow(t)
	m := open(t)
	s0, s1 := cores(t)
	apart := makePlan(t, m, []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}, []int{1, 16}, 64, op.A32W32, byPairs)
	both := s0 + "-" + s1
	shared := makePlan(t, m, []planir.Proc{proc("a", s0, ""), proc("b", both, "")}, []int{1, 16}, 64, op.A32W32, byPairs)
	prompt := []int32{1, 30, 40, 50, 60, 70, 80}
	type place struct {
		lane, name string
		p          *planir.Plan
	}
	for name, at := range map[string]place{"core " + s0: {s0, "a", apart}, "core " + s1: {s1, "b", apart}, "shared core " + s0: {s0, "a", shared}, "shared cores " + both: {both, "b", shared}} {
		lane, p := at.lane, at.p
		for _, hang := range []bool{false, true} {
			for _, k := range []int{1, 2, 7, 30, 61} {
				t.Run(fmt.Sprintf("%s hang=%v step %d", name, hang, k), func(t *testing.T) {
					if hang && drivertest.Race {
						t.Skip("hangs wait for deadlines, and show no race that failures do not")
					}
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel() // ends the injected hang, so that the test leaves no thread behind
					c, err := emit.NewContent(ctx, p, m, []driver.Compiler{hostcompiler.New()})
					if err != nil {
						t.Fatal(err)
					}
					d := drivertest.Inject(ctx, host.New(), drivertest.Fault{At: drivertest.AtRun, K: k, Hang: hang, Select: lane})
					deadline := 10 * time.Second // longer than any step, also on a machine that has other work
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
						case !hang && !errors.As(err, &injected):
							t.Errorf("got %v, want the injected failure", err)
						case !hang && !strings.Contains(err.Error(), "step"):
							t.Errorf("error %q does not name the step", err)
						case hang && !blames(err, at.name):
							t.Errorf("got %v, want the step that hangs on processor %q", err, at.name)
						}
						// Whatever happened, the next call returns as well, and so does Close.
						if _, err := x.Generate(context.Background(), prompt, 2, &executor.Sampler{}, nil); err == nil {
							t.Error("a second call succeeded on a driver that keeps failing")
						}
						cancel()
						x.Close()
					})
				})
			}
		}
	}
}

func TestFaultsOnOpenAndLoad(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	p := makePlan(t, m, []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}, []int{1}, 16, op.A32W32, byColumns)
	for _, f := range []drivertest.Fault{{At: drivertest.AtOpen, K: 1}, {At: drivertest.AtOpen, K: 2}, {At: drivertest.AtLoad, K: 1}, {At: drivertest.AtLoad, K: 25}} {
		c, err := emit.NewContent(context.Background(), p, m, []driver.Compiler{hostcompiler.New()})
		if err != nil {
			t.Fatal(err)
		}
		within(t, 10*time.Second, func() {
			x, err := executor.Open(context.Background(), p, c, executor.Options{Drivers: []driver.Driver{drivertest.Inject(context.Background(), host.New(), f)}})
			var injected *drivertest.Error
			if !errors.As(err, &injected) || x != nil {
				t.Errorf("fault at %s %d: got %v, want the injected failure and no machine", f.At, f.K, err)
			}
		})
		c.Close()
	}
}

// A cancelled context stops a generation between steps.
func TestCancel(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	x := machine(t, m, makePlan(t, m, []planir.Proc{proc("a", s0, "portable"), proc("b", s1, "portable")}, []int{1, 8}, 1024, op.A32W32, byPairs), executor.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	within(t, 30*time.Second, func() {
		_, err := x.Generate(ctx, []int32{1, 2, 3}, 1000, &executor.Sampler{}, func(int32) bool {
			if n++; n == 3 {
				cancel()
			}
			return true
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	})
	if n > 10 {
		t.Errorf("%d tokens after the cancellation, want few", n-3)
	}
}

// The steady state allocates nothing: a collection in the middle of a token would stop all lanes.
func TestDecodeAllocatesNothing(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	x := machine(t, m, makePlan(t, m, []planir.Proc{proc("a", s0, ""), proc("b", s1, "")}, []int{1, 8}, 128, op.A8TQ8C, byPairs), executor.Options{})
	// testing.AllocsPerRun would run on one Go processor, where two lanes only take turns.
	const tokens = 100 // what else allocates in the process does not grow with them
	var before, after runtime.MemStats
	err := x.Do(context.Background(), func(c *executor.Control) error {
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
	})
	if err != nil {
		t.Fatal(err)
	}
	// The watchdog's ticker and the runtime itself may allocate a little beside the lanes.
	if n := after.Mallocs - before.Mallocs; n > tokens/2 {
		t.Errorf("%d allocations for %d decoded tokens, want none per token", n, tokens)
	}
}

func TestSampler(t *testing.T) {
	logits := []float32{0, 3, 1, 3, -2}
	greedy := &executor.Sampler{}
	if id, err := greedy.Next(logits); err != nil || id != 1 {
		t.Errorf("greedy: got %d, %v, want the first of the largest, 1", id, err)
	}
	for _, s := range []executor.Sampler{{Temperature: 0.8, Seed: 7}, {Temperature: 2, TopK: 2, Seed: 1}, {Temperature: 1, TopP: 0.5, Seed: 3}} {
		a, b := s, s
		count := map[int32]int{}
		for range 200 {
			x, err := a.Next(logits)
			if err != nil {
				t.Fatal(err)
			}
			y, _ := b.Next(logits)
			if x != y {
				t.Fatalf("%+v: same seed, different tokens %d and %d", s, x, y)
			}
			count[x]++
		}
		if (s.TopK == 2 || s.TopP == 0.5) && count[1]+count[3] != 200 {
			t.Errorf("%+v: drew %v, want tokens 1 and 3 only", s, count)
		}
	}
	nan := float32(0)
	nan /= nan
	if _, err := greedy.Next([]float32{nan, nan}); err == nil {
		t.Error("logits of NaN: want an error")
	}
	if id, err := greedy.Next([]float32{nan, 1, nan}); err != nil || id != 1 {
		t.Errorf("one finite logit: got %d, %v", id, err)
	}
	if err := (&executor.Sampler{TopP: 2}).Validate(); err == nil {
		t.Error("top-p 2: want an error")
	}
}
