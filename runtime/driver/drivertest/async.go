package drivertest

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

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
	c := &chain{session: open(t, factory, factory.Config)}
	c.q = c.proc.(driver.Asynchronous)
	add := op.Op{Kind: op.Add, M: 1, N: columns}
	if err := c.caps.Supports(add); err != nil {
		t.Skip(err)
	}
	artifact, err := c.compile(single(c.caps, add), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.exe, err = c.load(artifact, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.exe.Close() })
	view := func() driver.View {
		memory := c.memory(int64(4 * columns))
		var buffer driver.Buffer
		if err := c.lane.do(func() (err error) {
			buffer, err = c.proc.Import(memory)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { buffer.Close() })
		return driver.View{Buffer: buffer, Type: op.F32, Rows: 1, Cols: columns, Stride: columns}
	}
	c.ones, c.sums[0], c.sums[1] = view(), view(), view()
	store(c.ones, slices.Repeat([]float64{1}, columns))
	return c
}

// calls submits n calls from call number first on, each with the same bindings and scalars, which are spoiled as soon as
// Submit has returned. moves may be nil.
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
	c := newChain(t, factory, 1000)
	for round := range 3 {
		c.start()
		const n = driver.MaxInFlight
		if err := c.lane.do(func() error {
			last, err := c.calls(0, n, nil)
			if err != nil {
				return err
			}
			for began := time.Now(); ; {
				done, err := c.q.Done(last)
				if err != nil {
					return err
				}
				if done {
					break
				}
				if time.Since(began) > patience {
					return errors.New("the calls are never done")
				}
				runtime.Gosched()
			}
			end := driver.Tick(math.MinInt64)
			for ticket := last - n + 1; ticket <= last; ticket++ {
				if done, err := c.q.Done(ticket); !done || err != nil {
					return fmt.Errorf("call %d is not done (%v), and call %d is", ticket, err, last)
				}
				span, err := c.q.Wait(ticket)
				again, err2 := c.q.Wait(ticket)
				if err != nil || err2 != nil || span != again {
					return fmt.Errorf("wait for call %d: %v, %v, and again %v, %v", ticket, span, err, again, err2)
				}
				if span.Start < end || span.End < span.Start || span.End > c.q.Now() {
					return fmt.Errorf("call %d ran %v, the one before until %v, and it is %v", ticket, span, end, c.q.Now())
				}
				end = span.End
			}
			return nil
		}); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		c.sum(n)
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
	c := newChain(t, factory, 257)
	for _, n := range []int{1, 2, 9, 40} {
		c.start()
		if err := c.lane.do(func() error {
			last, err := c.calls(0, n, func(i int) *driver.Moves {
				return movesOf([]bool{i == 0, i == 0}, []bool{i == n-1})
			})
			if err != nil {
				return err
			}
			_, err = c.q.Wait(last)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		c.sum(n)
	}
	// Of a processor with memory of its own nothing arrives unasked.
	if !c.caps.OwnMemory {
		return
	}
	c.start()
	stays := func(int) *driver.Moves { return movesOf([]bool{true, true}, []bool{false}) }
	if err := c.lane.do(func() error {
		last, err := c.calls(0, 1, stays)
		if err != nil {
			return err
		}
		_, err = c.q.Wait(last)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if decode(c.sums[1].Bytes(), op.F32) == 1 {
		t.Error("an output that is not handed over arrives in the host's memory")
	}
}

// Submit and Done return while calls run: submitting many and asking once takes less than executing them.
func testBlocks(t *testing.T, factory *Factory) {
	c := newChain(t, factory, 1<<20)
	for range 5 { // other work on the machine may delay a thread
		c.start()
		var asked, all time.Duration
		if err := c.lane.do(func() error {
			began := time.Now()
			last, err := c.calls(0, driver.MaxInFlight, nil)
			if err != nil {
				return err
			}
			if _, err = c.q.Done(last); err != nil {
				return err
			}
			asked = time.Since(began)
			_, err = c.q.Wait(last)
			all = time.Since(began)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		c.sum(driver.MaxInFlight)
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
	proc := session.proc.(driver.Asynchronous)
	for _, c := range []struct {
		o     op.Op
		input string
		value float64
	}{
		{op.Op{Kind: op.Embed, M: 3, K: 10, N: 16, Table: op.F32}, "ids", 10},
		{op.Op{Kind: op.QuantRows, M: 3, N: 40}, "x", math.NaN()},
	} {
		if session.caps.Supports(c.o) != nil {
			continue
		}
		tr := session.newTrial(single(session.caps, c.o), testContext, 12)
		good := tr.bind(place{}, scalars(0, 3))
		tr.vals[c.input].v[tr.vals[c.input].value.Cols] = c.value
		bad := tr.bind(place{}, scalars(0, 3))
		for _, ask := range []string{"Wait", "Done"} {
			if err := session.lane.do(func() error {
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
				for _, want := range []driver.Ticket{tickets[1], tickets[3]} {
					var err error
					for began := time.Now(); err == nil && time.Since(began) < patience; {
						if ask == "Wait" {
							if _, err = proc.Wait(tickets[4]); err == nil {
								break
							}
						} else if _, err = proc.Done(tickets[4]); err == nil {
							runtime.Gosched()
						}
					}
					var failure *driver.Failure
					if !errors.As(err, &failure) || failure.Ticket != want {
						return fmt.Errorf("%s: got %v, want the failure of call %d", ask, err, want)
					}
				}
				if _, err := proc.Wait(tickets[4]); err != nil {
					return fmt.Errorf("told again: %w", err)
				}
				_, err := proc.Run(tr.exe, &good.b)
				return err
			}); err != nil {
				t.Errorf("%s: %v", c.o.Key(), err)
			}
		}
	}
}

// MaxInFlight calls may be in flight, no more, and when the caller knows of the end of some, others follow.
func testFlight(t *testing.T, factory *Factory) {
	c := newChain(t, factory, 64)
	c.start()
	total := driver.MaxInFlight
	if err := c.lane.do(func() error {
		last, err := c.calls(0, driver.MaxInFlight, nil)
		if err != nil {
			return err
		}
		// One more is refused, unless the driver has noticed by itself that the first is done.
		if one, err := c.calls(total, 1, nil); err == nil {
			total, last = total+1, one
			if done, err := c.q.Done(last - driver.MaxInFlight); !done || err != nil {
				return fmt.Errorf("call %d in flight was accepted", driver.MaxInFlight+1)
			}
		}
		for range 300 { // at different depths
			some := 1 + total%17
			if _, err := c.q.Wait(last - driver.MaxInFlight + driver.Ticket(some)); err != nil {
				return err
			}
			if last, err = c.calls(total, some, nil); err != nil {
				return err
			}
			total += some
		}
		_, err = c.q.Wait(last)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	c.sum(total)
}

// Questions about calls that do not exist are errors.
func testUnknown(t *testing.T, factory *Factory) {
	c := newChain(t, factory, 64)
	c.start()
	if err := c.lane.do(func() error {
		last, err := c.calls(0, 1, nil)
		if err != nil {
			return err
		}
		for _, ticket := range []driver.Ticket{0, last + 1, math.MaxUint64} {
			if _, err := c.q.Done(ticket); err == nil {
				return fmt.Errorf("call %d is said to be done or not", ticket)
			}
			if _, err := c.q.Wait(ticket); err == nil {
				return fmt.Errorf("call %d is waited for", ticket)
			}
		}
		_, err = c.q.Wait(last)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// Closing with calls in flight returns, and what follows are errors; memory is not written afterwards.
func testCloseInFlight(t *testing.T, factory *Factory) {
	for range 3 {
		c := newChain(t, factory, 1<<16)
		c.start()
		var last driver.Ticket
		if err := c.lane.do(func() (err error) {
			last, err = c.calls(0, driver.MaxInFlight/2, nil)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- c.proc.Close() }()
		select {
		case err := <-closed:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(patience):
			t.Fatal("close does not return")
		}
		before := slices.Clone(c.sums[0].Bytes())
		time.Sleep(2 * time.Millisecond)
		if !slices.Equal(before, c.sums[0].Bytes()) {
			t.Fatal("a closed processor writes")
		}
		if err := c.lane.do(func() error {
			if _, err := c.calls(0, 1, nil); err == nil {
				return errors.New("a closed processor accepts a call")
			}
			_, _ = c.q.Wait(last) // whatever it says, it returns
			_, _ = c.q.Done(last)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// Submitting, asking and waiting allocate nothing in the steady state.
func testAllocations(t *testing.T, factory *Factory) {
	if Race {
		t.Skip("the race detector allocates")
	}
	c := newChain(t, factory, 64)
	c.start()
	const calls = 2000
	scalars := driver.Scalars{Rows: 1, KVLen: 1, Seq: 1}
	bind := driver.Bindings{In: []driver.View{c.sums[0], c.ones}, Out: []driver.View{c.sums[1]}, Scalars: &scalars,
		Moves: movesOf([]bool{true, false}, []bool{true})}
	var before, after runtime.MemStats
	if err := c.lane.do(func() error {
		for i := -4 * driver.MaxInFlight; i < calls; i++ {
			if i == 0 {
				runtime.ReadMemStats(&before)
			}
			ticket, err := c.q.Submit(c.exe, &bind)
			if err != nil {
				return err
			}
			if i%8 != 0 {
				_, err = c.q.Done(ticket)
			} else {
				_, err = c.q.Wait(ticket)
			}
			if err != nil {
				return err
			}
		}
		runtime.ReadMemStats(&after)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
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
	if err := session.lane.do(func() error {
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
		for _, r := range [][2]int64{{-1, 10}, {0, 4097}, {4096, 1}, {math.MaxInt64, 1}, {1, math.MaxInt64}, {0, -1}} {
			if mirror.Push(r[0], r[1]) == nil || mirror.Pull(r[0], r[1]) == nil {
				return fmt.Errorf("%d bytes from %d on were moved", r[1], r[0])
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
