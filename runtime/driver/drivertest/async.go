package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/patience"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// asynchronous are the tests of processors that execute calls by themselves; of others nothing is asked.
var asynchronous = []struct {
	name string
	test func(*testing.T, *Factory)
}{
	{"Order", testOrder},
	{"Moves", testMoves},
	{"Parts", testParts},
	{"Blocks", testBlocks},
	{"Failures", testFailures},
	{"Flight", testFlight},
	{"Unknown", testUnknown},
	{"CloseInFlight", testCloseInFlight},
	{"Allocations", testAllocations},
	{"Mirror", testMirror},
}

// testAsynchronous runs them.
func testAsynchronous(t *testing.T, factory *Factory) {
	session := open(t, factory, factory.Config)
	_, ok := session.proc.(driver.Asynchronous)
	if !ok && session.caps.OwnMemory {
		testMirror(t, factory)
	}
	if !ok {
		t.Skip("the processor executes calls synchronously")
	}
	session.close()
	for _, test := range asynchronous {
		t.Run(test.name, func(t *testing.T) { test.test(t, factory) })
	}
}

// chain is a graph that adds ones: a call gets a vector and writes it plus one elsewhere, so that the result of many
// calls tells how many have run, in which order.
type chain struct {
	*session
	q    driver.Asynchronous
	exe  driver.Executable
	ones driver.View
	sums [2]driver.View // of which one call reads the first, the next one the second
}

// newChain skips the test where the processor adds nothing.
func newChain(t *testing.T, factory *Factory, columns int) *chain {
	made := &chain{session: open(t, factory, factory.Config)}
	made.q = made.proc.(driver.Asynchronous)
	add := op.Op{Kind: op.Add, M: 1, N: columns}
	if err := made.caps.Supports(add); err != nil {
		t.Skip(err)
	}
	artifact, err := made.compile(single(made.caps, add), nil)
	if err != nil {
		t.Fatal(err)
	}
	if made.exe, err = made.load(artifact, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { made.exe.Close() })
	view := func() driver.View {
		memory := made.memory(int64(4 * columns))
		var buffer driver.Buffer
		made.do(func() (err error) {
			buffer, err = made.proc.Import(memory)
			return err
		})
		t.Cleanup(func() { buffer.Close() })
		return driver.View{Buffer: buffer, Type: op.F32, Rows: 1, Cols: columns, Stride: columns}
	}
	made.ones, made.sums[0], made.sums[1] = view(), view(), view()
	store(made.ones, slices.Repeat([]float64{1}, columns))
	return made
}

// calls submits n calls from call number first on, each with the same bindings and scalars, which are spoiled as soon
// as Submit has returned. moves may be nil.
func (c *chain) calls(first, n int, moves func(i int) *driver.Moves) (last driver.Ticket, err error) {
	scalars := driver.Scalars{}
	bind := driver.Bindings{In: make([]driver.View, 2), Out: make([]driver.View, 1), Scalars: &scalars}
	for i := first; i < first+n; i++ {
		scalars = driver.Scalars{Rows: 1, KVLen: 1, Seq: 1}
		bind.In[0], bind.In[1], bind.Out[0] = c.sums[i%2], c.ones, c.sums[1-i%2]
		if moves != nil {
			bind.Moves = moves(i)
		}
		ticket, err := c.q.Submit(c.exe, &bind)
		if err != nil {
			return last, fmt.Errorf("call %d: %w", i, err)
		}
		if last > 0 && ticket != last+1 || ticket == 0 {
			return last, fmt.Errorf("call %d has ticket %d, behind %d", i, ticket, last)
		}
		last, scalars = ticket, driver.Scalars{Rows: -7, Pos: -1}
		bind.In[0], bind.In[1], bind.Out[0] = driver.View{}, driver.View{}, driver.View{}
		if bind.Moves != nil { // the caller's too
			for _, lists := range [][][]driver.Rect{bind.Moves.Fetch, bind.Moves.Hand} {
				for k := range lists {
					for p := range lists[k] {
						lists[k][p] = driver.Rect{}
					}
					lists[k] = nil
				}
			}
		}
	}
	return last, nil
}

// sum fails unless every element of what call number i-1 wrote is i.
func (c *chain) sum(i int) {
	c.t.Helper()
	view := c.sums[i%2]
	data := view.Bytes()
	for col := range view.Cols {
		if got := decode(data[4*col:], op.F32); got != float64(i) {
			c.t.Fatalf("after %d calls: element %d is %v", i, col, got)
		}
	}
}

// start sets what the first call reads.
func (c *chain) start() {
	store(c.sums[0], make([]float64, c.ones.Cols))
	fillBytes(c.sums[1].Bytes(), untouched)
}

// Calls execute in the order of submission; Done of one tells of all before it, and spans do not overlap.
func testOrder(t *testing.T, factory *Factory) {
	adder := newChain(t, factory, 1000)
	for round := range 3 {
		adder.start()
		const n = driver.MaxInFlight
		if err := adder.lane.do(func() error {
			last, err := adder.calls(0, n, nil)
			if err != nil {
				return err
			}
			running, cancel := patience.WithTimeout(context.Background(), mostWait)
			defer cancel()
			for {
				done, err := adder.q.Done(last)
				if err != nil {
					return err
				}
				if done {
					break
				}
				if running.Err() != nil {
					return errors.New("the calls are never done")
				}
				runtime.Gosched()
			}
			end := driver.Tick(math.MinInt64)
			for ticket := last - n + 1; ticket <= last; ticket++ {
				if done, err := adder.q.Done(ticket); !done || err != nil {
					return fmt.Errorf("call %d is not done (%v), and call %d is", ticket, err, last)
				}
				span, err := adder.q.Wait(ticket)
				again, err2 := adder.q.Wait(ticket)
				if err != nil || err2 != nil || span != again {
					return fmt.Errorf("wait for call %d: %v, %v, and again %v, %v", ticket, span, err, again, err2)
				}
				if span.Start < end || span.End < span.Start || span.End > adder.q.Now() {
					return fmt.Errorf("call %d ran %v, the one before until %v, and it is %v", ticket, span, end,
						adder.q.Now())
				}
				end = span.End
			}
			return nil
		}); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		adder.sum(n)
	}
}

// movesOf are moves of whole operands.
func movesOf(fetch, hand []bool) *driver.Moves {
	all := func(travel []bool) (lists [][]driver.Rect) {
		for _, whole := range travel {
			var list []driver.Rect
			if whole {
				list = slices.Clone(driver.Everything)
			}
			lists = append(lists, list)
		}
		return lists
	}
	return &driver.Moves{Fetch: all(fetch), Hand: all(hand)}
}

// What stays on the processor is neither read from the host's memory nor needed there.
func testMoves(t *testing.T, factory *Factory) {
	adder := newChain(t, factory, 257)
	for _, count := range []int{1, 2, 9, 40} {
		adder.start()
		adder.do(func() error {
			last, err := adder.calls(0, count, func(i int) *driver.Moves {
				return movesOf([]bool{i == 0, i == 0}, []bool{i == count-1})
			})
			if err != nil {
				return err
			}
			_, err = adder.q.Wait(last)
			return err
		})
		adder.sum(count)
	}
	// Of a processor with memory of its own nothing arrives unasked.
	if !adder.caps.OwnMemory {
		return
	}
	adder.start()
	stays := func(int) *driver.Moves { return movesOf([]bool{true, true}, []bool{false}) }
	adder.do(func() error {
		last, err := adder.calls(0, 1, stays)
		if err != nil {
			return err
		}
		_, err = adder.q.Wait(last)
		return err
	})
	if decode(adder.sums[1].Bytes(), op.F32) == 1 {
		t.Error("an output that is not handed over arrives in the host's memory")
	}
}

// Submit and Done return while calls run: submitting many and asking once takes less than executing them.
func testBlocks(t *testing.T, factory *Factory) {
	adder := newChain(t, factory, 1<<20)
	for range 5 { // other work on the machine may delay a thread
		adder.start()
		var asked, all time.Duration
		adder.do(func() error {
			began := time.Now()
			last, err := adder.calls(0, driver.MaxInFlight, nil)
			if err != nil {
				return err
			}
			if _, err = adder.q.Done(last); err != nil {
				return err
			}
			asked = time.Since(began)
			_, err = adder.q.Wait(last)
			all = time.Since(began)
			return err
		})
		adder.sum(driver.MaxInFlight)
		if asked < all*3/4 || all < 10*time.Millisecond {
			return
		}
		t.Logf("%d calls take %v, and submitting them and asking %v", driver.MaxInFlight, all, asked)
	}
	t.Error("Submit or Done waits for calls")
}

// A failed call is told once, by its ticket, by the first question that reaches it, and calls go on.
func testFailures(t *testing.T, factory *Factory) {
	session := open(t, factory, factory.Config)
	for _, test := range []struct {
		operator op.Op
		input    string
		value    float64
	}{
		{op.Op{Kind: op.Embed, M: 3, K: 10, N: 16, Table: op.F32}, "ids", 10},
		{op.Op{Kind: op.QuantRows, M: 3, N: 40}, "x", math.NaN()},
	} {
		if session.caps.Supports(test.operator) != nil {
			continue
		}
		tr := session.newTrial(single(session.caps, test.operator), testContext, 12)
		good := tr.bind(place{}, scalars(0, 3))
		input := tr.vals[test.input]
		input.v[input.value.Cols] = test.value
		bad := tr.bind(place{}, scalars(0, 3))
		for _, question := range []string{"Wait", "Done"} {
			if err := session.lane.do(func() error { return tr.failTwice(good, bad, question) }); err != nil {
				t.Errorf("%s: %v", test.operator.Key(), err)
			}
		}
	}
}

// failTwice submits good and bad calls by turns, and asks about the last one by a question until the failures are told.
func (tr *trial) failTwice(good, bad *bound, question string) error {
	proc := tr.s.proc.(driver.Asynchronous)
	var tickets []driver.Ticket
	for _, bound := range []*bound{good, bad, good, bad, good} {
		ticket, err := proc.Submit(tr.exe, &bound.b)
		if err != nil {
			return err
		}
		tickets = append(tickets, ticket)
	}
	if _, err := proc.Wait(tickets[0]); err != nil {
		return fmt.Errorf("a call before one that fails: %w", err)
	}
	last := tickets[4]
	ask := func() (err error) {
		if question == "Wait" {
			_, err = proc.Wait(last)
			return err
		}
		running, cancel := patience.WithTimeout(context.Background(), mostWait)
		defer cancel()
		for ; err == nil && running.Err() == nil; runtime.Gosched() {
			_, err = proc.Done(last)
		}
		return err
	}
	for _, want := range []driver.Ticket{tickets[1], tickets[3]} {
		err := ask()
		var failure *driver.Failure
		if !errors.As(err, &failure) || failure.Ticket != want {
			return fmt.Errorf("%s: got %v, want the failure of call %d", question, err, want)
		}
	}
	if _, err := proc.Wait(last); err != nil {
		return fmt.Errorf("told again: %w", err)
	}
	_, err := proc.Run(tr.exe, &good.b)
	return err
}

// MaxInFlight calls may be in flight, no more, and when the caller knows of the end of some, others follow.
func testFlight(t *testing.T, factory *Factory) {
	adder := newChain(t, factory, 64)
	adder.start()
	total := driver.MaxInFlight
	adder.do(func() error {
		last, err := adder.calls(0, driver.MaxInFlight, nil)
		if err != nil {
			return err
		}
		// One more is refused, unless the driver has noticed by itself that the first is done.
		if one, err := adder.calls(total, 1, nil); err == nil {
			total, last = total+1, one
			if done, err := adder.q.Done(last - driver.MaxInFlight); !done || err != nil {
				return fmt.Errorf("call %d in flight was accepted", driver.MaxInFlight+1)
			}
		}
		for range 300 { // at different depths
			some := 1 + total%17
			if _, err := adder.q.Wait(last - driver.MaxInFlight + driver.Ticket(some)); err != nil {
				return err
			}
			if last, err = adder.calls(total, some, nil); err != nil {
				return err
			}
			total += some
		}
		_, err = adder.q.Wait(last)
		return err
	})
	adder.sum(total)
}

// Questions about calls that do not exist are errors.
func testUnknown(t *testing.T, factory *Factory) {
	adder := newChain(t, factory, 64)
	adder.start()
	adder.do(func() error {
		last, err := adder.calls(0, 1, nil)
		if err != nil {
			return err
		}
		for _, ticket := range []driver.Ticket{0, last + 1, math.MaxUint64} {
			if _, err := adder.q.Done(ticket); err == nil {
				return fmt.Errorf("call %d is said to be done or not", ticket)
			}
			if _, err := adder.q.Wait(ticket); err == nil {
				return fmt.Errorf("call %d is waited for", ticket)
			}
		}
		_, err = adder.q.Wait(last)
		return err
	})
}

// Closing with calls in flight returns, and what follows are errors; memory is not written afterwards.
func testCloseInFlight(t *testing.T, factory *Factory) {
	for range 3 {
		adder := newChain(t, factory, 1<<16)
		adder.start()
		var last driver.Ticket
		adder.do(func() (err error) {
			last, err = adder.calls(0, driver.MaxInFlight/2, nil)
			return err
		})
		closed := make(chan error, 1)
		go func() { closed <- adder.proc.Close() }()
		err, returned := patience.Await(closed, mostWait)
		if !returned {
			t.Fatal("close does not return")
		}
		if err != nil {
			t.Fatal(err)
		}
		before := slices.Clone(adder.sums[0].Bytes())
		time.Sleep(2 * time.Millisecond)
		if !slices.Equal(before, adder.sums[0].Bytes()) {
			t.Fatal("a closed processor writes")
		}
		adder.do(func() error {
			if _, err := adder.calls(0, 1, nil); err == nil {
				return errors.New("a closed processor accepts a call")
			}
			_, _ = adder.q.Wait(last) // whatever it says, it returns
			_, _ = adder.q.Done(last)
			return nil
		})
	}
}

// Submitting, asking and waiting allocate nothing in the steady state.
func testAllocations(t *testing.T, factory *Factory) {
	if Race {
		t.Skip("the race detector allocates")
	}
	adder := newChain(t, factory, 64)
	adder.start()
	const calls = 2000
	scalars := driver.Scalars{Rows: 1, KVLen: 1, Seq: 1}
	bind := driver.Bindings{In: []driver.View{adder.sums[0], adder.ones}, Out: []driver.View{adder.sums[1]},
		Scalars: &scalars, Moves: movesOf([]bool{true, false}, []bool{true})}
	var before, after runtime.MemStats
	adder.do(func() error {
		for i := -4 * driver.MaxInFlight; i < calls; i++ {
			if i == 0 {
				runtime.ReadMemStats(&before)
			}
			ticket, err := adder.q.Submit(adder.exe, &bind)
			if err != nil {
				return err
			}
			if i%8 != 0 {
				_, err = adder.q.Done(ticket)
			} else {
				_, err = adder.q.Wait(ticket)
			}
			if err != nil {
				return err
			}
		}
		runtime.ReadMemStats(&after)
		return nil
	})
	if n := after.Mallocs - before.Mallocs; n > calls/20 {
		t.Errorf("%d calls allocate %d times", calls, n)
	}
}

// A processor with memory of its own moves what it is told to, and nothing beside it.
func testMirror(t *testing.T, factory *Factory) {
	session := open(t, factory, factory.Config)
	buffer, err := session.proc.Import(session.memory(4096))
	if err != nil {
		t.Fatal(err)
	}
	defer buffer.Close()
	mirror, ok := buffer.(driver.Mirror)
	if !session.caps.OwnMemory {
		if ok {
			t.Error("the processor computes on the host's memory, and its buffers are mirrors")
		}
		return
	}
	if !ok {
		t.Fatal("the processor has memory of its own, and its buffers are no mirrors")
	}
	host := buffer.Bytes()
	for i := range host {
		host[i] = byte(i)
	}
	session.do(func() error {
		if err := mirror.Push(0, 4096); err != nil {
			return err
		}
		clear(host)
		if err := mirror.Pull(100, 1000); err != nil {
			return err
		}
		for i, got := range host {
			want := byte(0)
			if i >= 100 && i < 1100 {
				want = byte(i)
			}
			if got != want {
				return fmt.Errorf("byte %d is %d, want %d", i, got, want)
			}
		}
		if err := mirror.Push(200, 10); err != nil {
			return err
		}
		for _, wrong := range [][2]int64{
			{-1, 10}, {0, 4097}, {4096, 1}, {math.MaxInt64, 1}, {1, math.MaxInt64}, {0, -1},
		} {
			offset, count := wrong[0], wrong[1]
			if mirror.Push(offset, count) == nil || mirror.Pull(offset, count) == nil {
				return fmt.Errorf("%d bytes from %d on were moved", count, offset)
			}
		}
		return nil
	})
}
