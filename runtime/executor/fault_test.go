package executor_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/patience"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// mostWait is how long the process runs before what has not returned counts as a hang: many times what it takes under
// the race detector on cores that others use.
const mostWait = 5 * time.Minute

// returns fails the test when f does not return: an executor must never hang.
func returns(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	if _, ok := patience.Await(done, mostWait); !ok {
		t.Fatalf("no return within %v", mostWait)
	}
}

// blames reports whether an error names a step with its graph and its layer on a processor, and says that it hangs.
func blames(err error, processor string) bool {
	step := `step "[^"]+" \(graph "[^"]+", layer -?\d+, [a-z_]+\[.*\)`
	hangs := regexp.MustCompile(step + ` on processor "` + processor + `" is not done.*hangs$`)
	return err != nil && hangs.MatchString(err.Error())
}

// keptContent is contentOf that is never closed: a processor that hangs may be left behind, and read it.
func keptContent(t *testing.T, p *planir.Plan, m *models.Model) *emit.Content {
	t.Helper()
	c, err := emit.NewContent(context.Background(), p, m, []driver.Compiler{hostcompiler.New()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// openFaulty opens a plan with a driver that fails. Where it hangs, the deadline is short; else it is longer than any
// step, also on a machine that has other work.
func openFaulty(
	ctx context.Context, t *testing.T, m *models.Model, p *planir.Plan, d driver.Driver, hang bool,
) *executor.Machine {
	t.Helper()
	deadline := 10 * time.Second
	if hang {
		deadline = 150 * time.Millisecond
	}
	options := executor.Options{Drivers: []driver.Driver{d}, Deadline: deadline}
	x, err := executor.Open(ctx, p, keptContent(t, p, m), options)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// endsWithFault wants a generation to end with the injected failure of a step, or with the step that hangs on the named
// processor. Then the next call returns as well, and so does Close. end ends what hangs, so that no thread is left.
func endsWithFault(t *testing.T, x *executor.Machine, hang bool, processor string, end func()) {
	t.Helper()
	prompt := []int32{1, 30, 40, 50, 60, 70, 80}
	returns(t, func() {
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
		case hang && !blames(err, processor):
			t.Errorf("got %v, want the step that hangs on processor %q", err, processor)
		}

		if _, err := x.Generate(context.Background(), prompt, 2, &executor.Sampler{}, nil); err == nil {
			t.Error("a second call succeeded on a driver that keeps failing")
		}
		end()
		_ = x.Close() // it may leave the processor behind
	})
}

// A driver that does not return from loading a graph, and a caller that does not return, are told apart from a step
// that hangs.
func TestErrorTellsWhatHangs(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	p := makePlan(t, m, planSpec{
		procs: pairOn(s0, s1), rows: []int{1, 16}, context: 64, scheme: op.A32W32, layout: byPairs,
	})
	generate := func(x *executor.Machine, _ context.Context) error {
		_, err := x.Generate(context.Background(), []int32{1}, 1, &executor.Sampler{}, nil)
		return err
	}
	stay := func(x *executor.Machine, ended context.Context) error {
		return x.Do(context.Background(), func(*executor.Control) error {
			<-ended.Done()
			return nil
		})
	}
	for _, c := range []struct {
		fault drivertest.Fault
		run   func(x *executor.Machine, ended context.Context) error
		want  string
	}{
		{
			fault: drivertest.Fault{At: drivertest.AtLoad, K: 3, Hang: true, Select: s1},
			run:   generate,
			want:  `a32/w32) is being loaded on processor "b": the processor hangs`,
		},
		{
			run:  stay,
			want: "no processor has anything to do: what runs between two steps does not return",
		},
	} {
		ctx, end := context.WithCancel(context.Background())
		x, err := executor.Open(ctx, p, keptContent(t, p, m), executor.Options{
			Deadline: 150 * time.Millisecond,
			OnDemand: true,
			Drivers:  []driver.Driver{drivertest.Inject(ctx, host.New(), c.fault)},
		})
		if err != nil {
			t.Fatal(err)
		}
		returns(t, func() {
			if err := c.run(x, ctx); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			end()
			_ = x.Close()
		})
	}
}

// An interruption of a processor that hangs does not wait for the deadline.
func TestInterruptedHang(t *testing.T) {
	require.Slow(t)
	m := open(t)
	s0, s1 := cores(t)
	p := makePlan(t, m, planSpec{
		procs: pairOn(s0, s1), rows: []int{1, 16}, context: 64, scheme: op.A32W32, layout: byPairs,
	})
	hanging, release := context.WithCancel(context.Background())
	defer release()
	d := drivertest.Inject(hanging, host.New(), drivertest.Fault{At: drivertest.AtRun, K: 7, Hang: true, Select: s0})
	options := executor.Options{Drivers: []driver.Driver{d}, Deadline: time.Hour}
	x, err := executor.Open(hanging, p, keptContent(t, p, m), options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	returns(t, func() {
		_, err := x.Generate(ctx, []int32{1, 30, 40, 50, 60, 70, 80}, 4, &executor.Sampler{}, nil)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}

		_, err = x.Generate(context.Background(), []int32{1}, 1, &executor.Sampler{}, nil)
		if !blames(err, "a") {
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
	both := s0 + "-" + s1
	planOn := func(second string) *planir.Plan {
		return makePlan(t, m, planSpec{
			procs: pairOn(s0, second), rows: []int{1, 16}, context: 64, scheme: op.A32W32, layout: byPairs,
		})
	}
	apart, shared := planOn(s1), planOn(both)
	for _, lane := range []struct {
		name      string
		sel       string
		processor string
		plan      *planir.Plan
	}{
		{name: "core " + s0, sel: s0, processor: "a", plan: apart},
		{name: "core " + s1, sel: s1, processor: "b", plan: apart},
		{name: "shared core " + s0, sel: s0, processor: "a", plan: shared},
		{name: "shared cores " + both, sel: both, processor: "b", plan: shared},
	} {
		for _, hang := range []bool{false, true} {
			for _, call := range []int{1, 2, 7, 30, 61} {
				t.Run(fmt.Sprintf("%s hang=%v step %d", lane.name, hang, call), func(t *testing.T) {
					if hang && drivertest.Race {
						t.Skip("hangs wait for deadlines, and show no race that failures do not")
					}
					ctx, end := context.WithCancel(context.Background())
					defer end()
					fault := drivertest.Fault{At: drivertest.AtRun, K: call, Hang: hang, Select: lane.sel}
					x := openFaulty(ctx, t, m, lane.plan, drivertest.Inject(ctx, host.New(), fault), hang)

					endsWithFault(t, x, hang, lane.processor, end)
				})
			}
		}
	}
}

// A driver that fails while a processor is opened or a graph loaded leaves no machine.
func TestFaultOnOpenOrLoadLeavesNoMachine(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	p := makePlan(t, m, planSpec{
		procs: pairOn(s0, s1), rows: []int{1}, context: 16, scheme: op.A32W32, layout: byColumns,
	})
	content := contentOf(t, p, m)
	for _, fault := range []drivertest.Fault{
		{At: drivertest.AtOpen, K: 1},
		{At: drivertest.AtOpen, K: 2},
		{At: drivertest.AtLoad, K: 1},
		{At: drivertest.AtLoad, K: 25},
	} {
		returns(t, func() {
			d := drivertest.Inject(context.Background(), host.New(), fault)

			x, err := executor.Open(context.Background(), p, content, executor.Options{Drivers: []driver.Driver{d}})

			var injected *drivertest.Error
			if !errors.As(err, &injected) || x != nil {
				t.Errorf("fault at %s %d: got %v, want the injected failure and no machine", fault.At, fault.K, err)
			}
		})
	}
}

// sandboxed is a driver whose processors may not be pinned to their cores.
type sandboxed struct{ driver.Driver }

type unpinned struct{ driver.Processor }

var errUnpinned = diag.New(diag.ClassUnavailable, "pin thread: not permitted")

func (unpinned) Attach() error { return errUnpinned }

func (s sandboxed) Open(ctx context.Context, config driver.Config) (driver.Processor, error) {
	opened, err := s.Driver.Open(ctx, config)
	if err != nil {
		return nil, err
	}
	return unpinned{opened}, nil
}

// What a processor says of why no thread may attach to it keeps its class: it is not there, and nothing has failed.
func TestAttachKeepsItsClass(t *testing.T) {
	m := open(t)
	s0, _ := cores(t)
	p := makePlan(t, m, planSpec{procs: singleOn(s0), rows: []int{1}, context: 16, scheme: op.A32W32, layout: byColumns})
	returns(t, func() {
		x, err := executor.Open(context.Background(), p, contentOf(t, p, m),
			executor.Options{Drivers: []driver.Driver{sandboxed{host.New()}}})
		if err == nil {
			_, err = x.Generate(context.Background(), []int32{1}, 1, &executor.Sampler{}, nil)
			_ = x.Close()
		}
		if !errors.Is(err, errUnpinned) || diag.ClassOf(err) != diag.ClassUnavailable {
			t.Errorf("got %v of class %v", err, diag.ClassOf(err))
		}
	})
}

// A cancelled context stops a generation between steps.
func TestCancelEndsBetweenSteps(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	x := machine(t, m, makePlan(t, m, planSpec{
		procs: []planir.Proc{proc("a", s0, "portable"), proc("b", s1, "portable")}, rows: []int{1, 8},
		context: 1024, scheme: op.A32W32, layout: byPairs,
	}), executor.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	tokens := 0
	returns(t, func() {
		_, err := x.Generate(ctx, []int32{1, 2, 3}, 1000, &executor.Sampler{}, func(int32) bool {
			tokens++
			if tokens == 3 {
				cancel()
			}
			return true
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	})
	if tokens > 10 {
		t.Errorf("%d tokens after the cancellation, want few", tokens-3)
	}
}

// The steady state allocates nothing: a collection in the middle of a token would stop all lanes.
func TestDecodeAllocatesNothing(t *testing.T) {
	m := open(t)
	s0, s1 := cores(t)
	x := machine(t, m, makePlan(t, m, planSpec{
		procs: pairOn(s0, s1), rows: []int{1, 8}, context: 128, scheme: op.A8TQ8C, layout: byPairs,
	}), executor.Options{})

	const tokens = 40
	allocations := decodingAllocations(t, x, tokens)

	// The watchdog's ticker and the runtime itself may allocate a little beside the lanes.
	if allocations > tokens/2 {
		t.Errorf("%d allocations for %d decoded tokens, want none per token", allocations, tokens)
	}
}

// A sampler draws the same tokens for the same seed, and only those that its limits leave.
func TestSamplerRepeatsBySeed(t *testing.T) {
	logits := []float32{0, 3, 1, 3, -2}
	for _, c := range []struct {
		sampler executor.Sampler
		largest bool // draws the two largest only
	}{
		{sampler: executor.Sampler{Temperature: 0.8, Seed: 7}},
		{sampler: executor.Sampler{Temperature: 2, TopK: 2, Seed: 1}, largest: true},
		{sampler: executor.Sampler{Temperature: 1, TopP: 0.5, Seed: 3}, largest: true},
	} {
		first, second := c.sampler, c.sampler
		count := map[int32]int{}
		for range 200 {
			x, err := first.Next(logits)
			if err != nil {
				t.Fatal(err)
			}
			y, err := second.Next(logits)
			if err != nil {
				t.Fatal(err)
			}
			if x != y {
				t.Fatalf("%+v: same seed, different tokens %d and %d", c.sampler, x, y)
			}
			count[x]++
		}
		if c.largest && count[1]+count[3] != 200 {
			t.Errorf("%+v: drew %v, want tokens 1 and 3 only", c.sampler, count)
		}
	}
	if err := (&executor.Sampler{TopP: 2}).Validate(); err == nil {
		t.Error("top-p 2: want an error")
	}
}

// Greedy sampling takes the first of the largest logits, and passes over NaN.
func TestGreedySampler(t *testing.T) {
	nan := float32(math.NaN())
	s := &executor.Sampler{}
	if id, err := s.Next([]float32{0, 3, 1, 3, -2}); err != nil || id != 1 {
		t.Errorf("got %d, %v, want the first of the largest, 1", id, err)
	}
	if id, err := s.Next([]float32{nan, 1, nan}); err != nil || id != 1 {
		t.Errorf("one finite logit: got %d, %v", id, err)
	}
	if _, err := s.Next([]float32{nan, nan}); err == nil {
		t.Error("logits of NaN: want an error")
	}
}
