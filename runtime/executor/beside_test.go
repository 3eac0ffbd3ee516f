package executor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// besidePlan is a plan divided over two cores with which the second one processes prompts while the first one decodes.
func besidePlan(t *testing.T, m *models.Model, scheme op.Scheme, rows []int, context int) *planir.Plan {
	t.Helper()
	a, b := cores(t)
	p := batchPlan(t, m, []int{2, 3}, planSpec{
		procs: pairOn(a, b), rows: rows, context: context, scheme: scheme, layout: byColumns,
	})
	p.Beside = &planir.Beside{Prefill: "b", Decode: "a"}
	g := m.Graph()
	if err := lower.Lower(p, &g); err != nil {
		t.Fatal(err)
	}
	if l := planir.Check(p); l.Err() != nil {
		t.Fatal(l.Err())
	}
	return p
}

// beside continues the first prompts by steps tokens while the last one is processed, chunk by chunk, and then decodes
// that one, too: traces as of alone.
func beside(t testing.TB, x *executor.Machine, list [][]int32, steps int) []trace {
	t.Helper()
	out := make([]trace, len(list))
	last := len(list) - 1
	x.Reset()
	do := func(f func(*executor.Control) error) {
		t.Helper()
		if err := x.Do(context.Background(), f); err != nil {
			t.Fatal(err)
		}
	}
	keepEach := func(i int, logits []float32) error { return keepIn(&out[i])(i, logits) }
	keepLast := keepIn(&out[last])
	decodeFirst := func(c *executor.Control) error {
		var tokens []executor.Token
		for k := range last {
			tokens = append(tokens, executor.Token{Sequence: k, ID: out[k].next()})
		}
		_, err := c.StepBeside(tokens, keepEach)
		return err
	}

	do(func(c *executor.Control) error {
		for k := range last {
			if _, err := c.Extend(k, list[k], executor.WantLast, keepIn(&out[k])); err != nil {
				return err
			}
		}
		return nil
	})
	for done := 0; done < len(list[last]); {
		rest := list[last][done:]
		if len(rest) == 1 { // which no program of prompts takes
			do(func(c *executor.Control) error {
				_, err := c.Extend(last, rest, executor.WantLast, keepLast)
				return err
			})
			break
		}
		count := 0
		do(func(c *executor.Control) (err error) {
			count, err = c.Begin(last, rest, true)
			return err
		})
		// One job for each step, as a server has, until the chunk has ended.
		for ended := false; !ended && len(out[0]) < steps; {
			do(func(c *executor.Control) error {
				err := decodeFirst(c)
				ended = c.Ended()
				return err
			})
		}
		do(func(c *executor.Control) error {
			_, err := c.Await(func(logits []float32) error { return keepLast(0, logits) })
			return err
		})
		done += count
	}
	for len(out[last]) < steps {
		do(func(c *executor.Control) error {
			_, err := c.Step([]executor.Token{{Sequence: last, ID: out[last].next()}}, keepLast)
			return err
		})
	}
	return out
}

// What is processed beside something else has the very bits that it has alone: the prompt and what is decoded
// meanwhile.
func TestBesideComputesTheSameBits(t *testing.T) {
	m := open(t)
	for _, scheme := range []op.Scheme{op.A8TQ8C, op.A8TQ4B32} {
		x := machine(t, m, besidePlan(t, m, scheme, []int{1, 16, 64}, 160), executor.Options{})
		for _, lengths := range [][]int{{5, 9, 70}, {3, 150}, {7, 20, 65}, {1, 2}, {30, 1, 17}} {
			list := prompts(m.Vocab, lengths...)
			want := alone(t, x, list, 6)
			for range 3 {
				same(t, fmt.Sprintf("%s, prompts of %v", scheme, lengths), want, beside(t, x, list, 6), 0)
			}
		}
		x.Close()
	}
}

// Misuse is refused, and calls of all processors wait for the chunk: they and the rest of the prompt then compute what
// they compute alone.
func TestBesideRefuses(t *testing.T) {
	m := open(t)
	x := machine(t, m, besidePlan(t, m, op.A8TQ8C, []int{1, 64}, 160), executor.Options{})
	defer x.Close()
	list := prompts(m.Vocab, 70, 4)
	want := alone(t, x, list, 1)
	x.Reset()
	err := x.Do(context.Background(), func(c *executor.Control) error {
		refused := func(what string, err error) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("got %v, want %q", err, what)
			}
		}
		sameAs := func(want []float32) func(int, []float32) error {
			return func(_ int, logits []float32) error {
				if d := maxDiff(logits, want); d != 0 {
					t.Errorf("logits differ by %g from those alone", d)
				}
				return nil
			}
		}

		_, err := c.Begin(0, list[0][:1], true)
		refused("nothing of 1 tokens", err)
		_, err = c.Await(nil)
		refused("nothing has begun", err)
		_, err = c.Begin(7, list[0], true)
		refused("sequence 7", err)

		count, err := c.Begin(0, list[0], true)
		if err != nil || count != 64 {
			return fmt.Errorf("%d tokens: %w", count, err)
		}
		_, err = c.Begin(1, list[1], true)
		refused("still being processed", err)
		_, err = c.StepBeside([]executor.Token{{Sequence: 0, ID: 5}}, nil)
		refused("whose prompt is being processed", err)
		_, err = c.StepBeside(nil, nil)
		refused("no tokens", err)

		if _, err := c.Extend(1, list[1], executor.WantLast, sameAs(want[1][0])); err != nil {
			return err
		}
		if !c.Ended() {
			t.Error("a call of all processors began before the chunk had ended")
		}
		if _, err := c.Await(nil); err != nil {
			return err
		}
		_, err = c.Extend(0, list[0][64:], executor.WantLast, sameAs(want[0][0]))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// beginJob is the job that begins a chunk of a prompt.
func beginJob(prompt []int32) func(c *executor.Control) error {
	return func(c *executor.Control) error {
		_, err := c.Begin(0, prompt, true)
		return err
	}
}

// awaitChunk is the job that waits for a chunk.
func awaitChunk(c *executor.Control) error {
	_, err := c.Await(nil)
	return err
}

// A chunk that fails is the error of the job that waits for it, also when another job has ended well meanwhile.
func TestFailedChunkIsTheErrorOfItsJob(t *testing.T) {
	m := open(t)
	_, b := cores(t)
	p := besidePlan(t, m, op.A8TQ8C, []int{1, 64}, 160)
	begin := beginJob(prompts(m.Vocab, 60)[0])
	for _, call := range []int{1, 9, 40} {
		fault := drivertest.Fault{At: drivertest.AtRun, K: call, Select: b}
		d := drivertest.Inject(context.Background(), host.New(), fault)
		x := machine(t, m, p, executor.Options{Drivers: []driver.Driver{d}})
		returns(t, func() {
			if err := x.Do(context.Background(), begin); err != nil {
				t.Errorf("begin: %v", err)
			}
			time.Sleep(20 * time.Millisecond)
			_ = x.Do(context.Background(), func(*executor.Control) error { return nil }) // which takes no notice

			err := x.Do(context.Background(), awaitChunk)
			if err == nil || !strings.Contains(err.Error(), "injected fault") {
				t.Errorf("a step that fails: got %v, want %q", err, "injected fault")
			}
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A job that fails or is cancelled gives its chunk up, and the machine goes on. Closing waits for no chunk.
func TestFailedJobGivesItsChunkUp(t *testing.T) {
	m := open(t)
	x := machine(t, m, besidePlan(t, m, op.A8TQ8C, []int{1, 64}, 160), executor.Options{})
	prompt := prompts(m.Vocab, 60)[0]
	begin := beginJob(prompt)
	want := alone(t, x, [][]int32{prompt}, 1)
	x.Reset()
	returns(t, func() {
		stop := errors.New("stop")
		err := x.Do(context.Background(), func(c *executor.Control) error { return errors.Join(begin(c), stop) })
		if !errors.Is(err, stop) {
			t.Errorf("a job that fails: got %v", err)
		}

		ctx, cancel := context.WithCancel(context.Background())
		err = x.Do(ctx, func(c *executor.Control) error {
			defer cancel()
			return begin(c)
		})
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("a job that is cancelled: got %v", err)
		}
		_ = x.Do(context.Background(), awaitChunk) // whatever became of it

		x.Reset()
		same(t, "after all that", want, alone(t, x, [][]int32{prompt}, 1), 0)
		x.Reset()
		if err := x.Do(context.Background(), begin); err != nil {
			t.Error(err)
		}
		if err := x.Close(); err != nil {
			t.Errorf("closing while a chunk is processed: %v", err)
		}
	})
}
