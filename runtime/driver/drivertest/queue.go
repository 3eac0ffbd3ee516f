package drivertest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// Queueing says how Queue makes processors asynchronous.
type Queueing struct {
	// OwnMemory gives them memory of their own, which holds NaN until something is copied there. What a call does not
	// hand to the host becomes NaN there, so that a step which reads it computes something else.
	OwnMemory bool
	// Maps: the host shares what they allocate nevertheless, and only what they import is copied.
	Maps bool
	// Moved counts the bytes that calls and mirrors copy between the memories; nil: nothing counts them.
	Moved *atomic.Int64
	// Only are the selectors of the processors that it concerns; nil: all.
	Only []string
	// Delay is how long a call waits before it begins; nil: not at all.
	Delay func(driver.Ticket) time.Duration
}

// Queue wraps a driver whose artifacts are graphs, as the host's are, so that its processors are asynchronous: each has
// a thread of its own, which executes the calls, and occupies no cores.
func Queue(d driver.Driver, how Queueing) driver.Driver { return &queueing{d, how} }

type queueing struct {
	driver.Driver
	how Queueing
}

// Devices returns the wrapped driver's, without cores.
func (d *queueing) Devices(ctx context.Context) ([]driver.Device, error) {
	devices, err := d.Driver.Devices(ctx)
	devices = slices.Clone(devices)
	for i := range devices {
		if d.concerns(devices[i].Select) {
			devices[i].Cores = nil
		}
	}
	return devices, err
}

// concerns reports whether the processor of a selector is made asynchronous.
func (d *queueing) concerns(sel string) bool {
	return d.how.Only == nil || slices.Contains(d.how.Only, sel)
}

// Open opens a processor, whose thread begins to work when it is attached.
func (d *queueing) Open(ctx context.Context, config driver.Config) (driver.Processor, error) {
	proc, err := d.Driver.Open(ctx, config)
	if err != nil || !d.concerns(config.Select) {
		return proc, err
	}
	queue := &Queued{proc: proc, how: d.how, caps: *proc.Capabilities(), ended: make(chan struct{})}
	queue.caps.Cores, queue.caps.OwnMemory = nil, d.how.OwnMemory
	queue.changed.L = &queue.mu
	for i := range queue.slots {
		const most = 16 // operands of a graph, in general
		slot := &queue.slots[i]
		slot.bind.In, slot.bind.Out = make([]driver.View, 0, most), make([]driver.View, 0, most)
		slot.in, slot.out = make([]driver.View, 0, most), make([]driver.View, 0, most)
		slot.moves = driver.Moves{Fetch: listsFor(most), Hand: listsFor(most)}
	}
	return queue, nil
}

// Queued is a processor of Queue.
type Queued struct {
	proc driver.Processor
	how  Queueing
	caps driver.Capabilities

	mu      sync.Mutex
	changed sync.Cond // of everything below
	slots   [driver.MaxInFlight]slot
	// numbers of the calls that were submitted and have ended, and of those that the caller knows to have
	submitted, finished, known driver.Ticket
	failures                   []driver.Failure // not told yet
	attached, closed           bool
	ended                      chan struct{}

	most int // calls in flight at a time, so far
}

// ReadsTables implements driver.TableReader.
func (q *Queued) ReadsTables() bool {
	reader, ok := q.proc.(driver.TableReader)
	return ok && reader.ReadsTables()
}

// slot is what a call needs.
type slot struct {
	exe     *queuedExecutable
	bind    driver.Bindings
	scalars driver.Scalars
	moves   driver.Moves
	all     bool // Moves was nil
	span    driver.Span
	// of the processor's memory: scratch of execute
	device  driver.Bindings
	in, out []driver.View
}

// queuedExecutable is a loaded artifact, with its graph.
type queuedExecutable struct {
	driver.Executable
	graph   op.Graph
	batched bool
	rows    map[int]*rowCounts // by the rows of a call
}

// rowCounts are how many rows of each operand a call uses.
type rowCounts struct{ in, out []int }

// counts returns those of calls with so many rows.
func (e *queuedExecutable) counts(rows int) *rowCounts {
	counts, ok := e.rows[rows]
	if !ok {
		counts = &rowCounts{}
		for _, value := range e.graph.Inputs {
			counts.in = append(counts.in, min(value.Rows, rowsInUse(&e.graph, value.Name, rows)))
		}
		for _, value := range e.graph.Outputs {
			counts.out = append(counts.out, min(value.Rows, rowsInUse(&e.graph, value.Name, rows)))
		}
		e.rows[rows] = counts
	}
	return counts
}

// Most returns how many calls were in flight at a time.
func (q *Queued) Most() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.most
}

// String returns the wrapped processor's name.
func (q *Queued) String() string { return fmt.Sprint(q.proc) }

func (q *Queued) Capabilities() *driver.Capabilities { return &q.caps }
func (q *Queued) Now() driver.Tick                   { return q.proc.Now() }
func (q *Queued) WaitUntil(t driver.Tick)            { q.proc.WaitUntil(t) }

// Attach starts the processor's thread. The caller's has nothing to be bound to.
func (q *Queued) Attach() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return diag.New(diag.ClassRun, "attach to %s: the processor is closed", q)
	case q.attached:
		return diag.New(diag.ClassRun, "attach to %s: already attached", q)
	}
	q.attached = true
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is pinned, and ends with the goroutine
		defer close(q.ended)
		err := q.proc.Attach()
		result <- err
		if err == nil {
			q.work()
		}
	}()
	return <-result
}

// errQueueClosed is why a call that was submitted never began.
var errQueueClosed = errors.New("the processor is closed")

// work executes calls until the processor is closed. What was submitted then and has not begun fails.
func (q *Queued) work() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for q.finished == q.submitted && !q.closed {
			q.changed.Wait()
		}
		if q.finished == q.submitted {
			return
		}
		ticket := q.finished + 1
		slot := &q.slots[int(ticket)%len(q.slots)]
		err := errQueueClosed
		if !q.closed {
			q.mu.Unlock()
			if q.how.Delay != nil {
				time.Sleep(q.how.Delay(ticket))
			}
			slot.span, err = q.execute(slot)
			q.mu.Lock()
		}
		if err != nil {
			q.failures = append(q.failures, driver.Failure{Ticket: ticket, Err: err})
		}
		q.finished = ticket
		q.changed.Broadcast()
	}
}

// execute runs a call, on the processor's own memory where it has some.
func (q *Queued) execute(s *slot) (driver.Span, error) {
	if !q.how.OwnMemory {
		return q.proc.Run(s.exe.Executable, &s.bind)
	}
	bind := &s.device
	*bind = s.bind
	counts := s.exe.counts(s.scalars.Rows)
	s.in, s.out = append(s.in[:0], bind.In...), append(s.out[:0], bind.Out...)
	bind.In, bind.Out = s.in, s.out
	bind.K, bind.V = onDevice(bind.K), onDevice(bind.V)
	for i := range bind.In {
		bind.In[i] = onDevice(bind.In[i])
		eachRow(s.bind.In[i], bind.In[i], counts.in, i, func(row int, host, device []byte) {
			s.parts(s.moves.Fetch, i, row, &s.bind.In[i], func(from, to int) { q.copy(device[from:to], host[from:to]) })
		})
	}
	for i := range bind.Out {
		bind.Out[i] = onDevice(bind.Out[i])
	}
	if s.all {
		moveCache(s, s.bind.K, bind.K, true)
		moveCache(s, s.bind.V, bind.V, true)
	}
	span, err := q.proc.Run(s.exe.Executable, bind)
	if err != nil {
		return span, err
	}
	for i := range bind.Out {
		eachRow(s.bind.Out[i], bind.Out[i], counts.out, i, func(row int, host, device []byte) {
			if len(host) > 0 && &host[0] != &device[0] {
				poison(host) // no step may read what is not handed over
			}
			s.parts(s.moves.Hand, i, row, &s.bind.Out[i], func(from, to int) { q.copy(host[from:to], device[from:to]) })
		})
	}
	if s.all {
		moveCache(s, s.bind.K, bind.K, false)
		moveCache(s, s.bind.V, bind.V, false)
	}
	return span, nil
}

// parts visits the bytes of a row of operand i that travel.
func (s *slot) parts(moves [][]driver.Rect, i, row int, view *driver.View, visit func(from, to int)) {
	list := driver.Everything
	if !s.all {
		list = moves[i]
	}
	size := view.Type.Bytes()
	for _, part := range list {
		if part = part.Within(row+1, view.Cols); part.R0 <= row && row < part.R1 {
			visit(part.C0*size, part.C1*size)
		}
	}
}

// eachRow visits the rows of operand i that a call uses, in the host's memory and in the processor's. Run refuses views
// that do not lie in their buffers, and more operands than the graph has.
func eachRow(host, device driver.View, counts []int, i int, visit func(row int, host, device []byte)) {
	if i >= len(counts) || counts[i] < 1 || host.Cols < 0 {
		return
	}
	from, err := host.Window(min(counts[i], host.Rows))
	to, err2 := device.Window(min(counts[i], host.Rows))
	if err != nil || err2 != nil {
		return
	}
	size := host.Type.Bytes()
	for row := range min(counts[i], host.Rows) {
		at := row * host.Stride * size
		visit(row, from[at:][:host.Cols*size], to[at:][:host.Cols*size])
	}
}

// copy copies and counts.
func (q *Queued) copy(to, from []byte) {
	n := copy(to, from)
	if q.how.Moved != nil {
		q.how.Moved.Add(int64(n))
	}
}

// poison fills memory with ones: NaN in every floating-point type.
func poison(b []byte) {
	for i := range b {
		b[i] = 0xff
	}
}

// moveCache moves what a call reads of the cache to the processor, or what it adds to the host.
func moveCache(s *slot, host, device driver.View, fetch bool) {
	if host.Buffer == nil || device.Buffer == nil || s.bind.MaxContext < 1 {
		return
	}
	places, count := s.scalars.Batch[:min(len(s.scalars.Batch), max(0, s.scalars.Rows))], 1
	if !s.exe.batched {
		places = []driver.Place{{Sequence: s.scalars.Sequence, Pos: s.scalars.Pos}}
		count = s.scalars.Rows
	}
	row := int64(host.Cols) * int64(host.Type.Bytes())
	for _, place := range places {
		from, to := place.Pos, place.Pos+count
		if fetch {
			from = 0
		}
		for head := range host.Rows / s.bind.MaxContext {
			at := host.Offset + int64(place.Sequence)*s.bind.SequenceBytes +
				(int64(head)*int64(s.bind.MaxContext)+int64(from))*row
			bytes := int64(to-from) * row
			all := host.Buffer.Bytes()
			if at < 0 || bytes < 0 || at > int64(len(all)) || bytes > int64(len(all))-at {
				return // which Run refuses
			}
			there := device.Buffer.Bytes()[at:][:bytes]
			if fetch {
				copy(there, all[at:])
			} else {
				copy(all[at:], there)
			}
		}
	}
}

// Submit copies what the call needs and wakes the thread.
func (q *Queued) Submit(exe driver.Executable, b *driver.Bindings) (driver.Ticket, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	loaded, ok := exe.(*queuedExecutable)
	var why string
	switch {
	case q.closed:
		why = "the processor is closed"
	case !q.attached:
		why = "no thread is attached"
	case !ok:
		why = "the executable was not loaded on this processor"
	case b == nil || b.Scalars == nil:
		why = "no bindings or no scalars"
	case q.submitted-q.known >= driver.MaxInFlight:
		why = fmt.Sprintf("%d calls are in flight, want at most %d", q.submitted-q.known+1, driver.MaxInFlight)
	}
	if why != "" {
		return 0, diag.New(diag.ClassRun, "run on %s: %s", q, why)
	}
	if b.Moves != nil {
		if err := b.Moves.Fits(b); err != nil {
			return 0, diag.New(diag.ClassRun, "run on %s: %w", q, err)
		}
	}
	q.submitted++
	q.most = max(q.most, int(q.submitted-q.finished))
	s := &q.slots[int(q.submitted)%len(q.slots)]
	// The slot keeps the memory of its slices from call to call.
	in, out, batch := again(s.bind.In, b.In), again(s.bind.Out, b.Out), again(s.scalars.Batch, b.Scalars.Batch)
	s.exe, s.bind, s.scalars, s.all = loaded, *b, *b.Scalars, b.Moves == nil
	s.bind.In, s.bind.Out, s.bind.Scalars, s.bind.Moves = in, out, &s.scalars, nil
	if b.Scalars.Batch != nil {
		s.scalars.Batch = batch
	}
	if b.Moves != nil {
		s.moves.Fetch, s.moves.Hand = againEach(s.moves.Fetch, b.Moves.Fetch), againEach(s.moves.Hand, b.Moves.Hand)
	}
	q.changed.Broadcast()
	return q.submitted, nil
}

// Done reports whether a call has ended.
func (q *Queued) Done(t driver.Ticket) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.exists(t); err != nil {
		return false, err
	}
	return q.isDone(t), q.told(t)
}

// Wait blocks until a call has ended.
func (q *Queued) Wait(t driver.Ticket) (driver.Span, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.exists(t); err != nil {
		return driver.Span{}, err
	}
	for !q.isDone(t) {
		q.changed.Wait()
	}
	var span driver.Span
	if t+driver.MaxInFlight > q.submitted {
		span = q.slots[int(t)%len(q.slots)].span
	}
	return span, q.told(t)
}

func (q *Queued) exists(t driver.Ticket) error {
	if t < 1 || t > q.submitted {
		return diag.New(diag.ClassRun, "wait for call %d on %s: %d were submitted", t, q, q.submitted)
	}
	return nil
}

func (q *Queued) isDone(t driver.Ticket) bool {
	if q.finished < t {
		return false
	}
	q.known = max(q.known, t)
	return true
}

// told returns the first failure up to a call that was not told yet.
func (q *Queued) told(t driver.Ticket) error {
	if len(q.failures) == 0 || q.failures[0].Ticket > t {
		return nil
	}
	failure := q.failures[0]
	q.failures = q.failures[1:]
	return &failure
}

// Run is Submit and Wait.
func (q *Queued) Run(exe driver.Executable, b *driver.Bindings) (driver.Span, error) {
	t, err := q.Submit(exe, b)
	if err != nil {
		now := q.Now()
		return driver.Span{Start: now, End: now}, err
	}
	span, err := q.Wait(t)
	if failure := (*driver.Failure)(nil); errors.As(err, &failure) {
		err = failure.Err
	}
	return span, err
}

// Load keeps the artifact's graph beside what the wrapped processor loads.
func (q *Queued) Load(ctx context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	exe, err := q.proc.Load(ctx, a, w)
	if err != nil {
		return nil, err
	}
	graph, err := driver.ParseGraph(a.Code)
	if err != nil {
		return nil, errors.Join(err, exe.Close())
	}
	batched := slices.ContainsFunc(graph.Nodes, func(n op.Node) bool { return n.Op.Batch })
	return &queuedExecutable{exe, graph, batched, map[int]*rowCounts{}}, nil
}

// Alloc returns memory of the host, with a mirror where the processor has its own.
func (q *Queued) Alloc(bytes int64) (driver.Buffer, error) {
	host, err := q.proc.Alloc(bytes)
	if err != nil || !q.how.OwnMemory || q.how.Maps {
		return host, err
	}
	return q.mirror(host, bytes)
}

// Import makes memory of the host usable, by a mirror where the processor has its own.
func (q *Queued) Import(b []byte) (driver.Buffer, error) {
	host, err := q.proc.Import(b)
	if err != nil || !q.how.OwnMemory {
		return host, err
	}
	return q.mirror(host, int64(len(b)))
}

func (q *Queued) mirror(host driver.Buffer, bytes int64) (driver.Buffer, error) {
	device, err := q.proc.Alloc(bytes)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	poison(device.Bytes())
	return &mirror{q, host, device}, nil
}

// mirror is memory of the host, and of a processor.
type mirror struct {
	q            *Queued
	host, device driver.Buffer
}

func (m *mirror) Bytes() []byte { return m.host.Bytes() }
func (m *mirror) Close() error  { return errors.Join(m.host.Close(), m.device.Close()) }

func (m *mirror) Push(offset, count int64) error { return m.move(offset, count, m.device, m.host) }
func (m *mirror) Pull(offset, count int64) error { return m.move(offset, count, m.host, m.device) }

// move waits for what is in flight and copies.
func (m *mirror) move(offset, count int64, to, from driver.Buffer) error {
	have := int64(len(m.Bytes()))
	if offset < 0 || count < 0 || offset > have || count > have-offset {
		return diag.New(diag.ClassRun, "move memory of %s: bytes %d to %d of %d", m.q, offset, offset+count, have)
	}
	m.q.mu.Lock()
	defer m.q.mu.Unlock()
	for m.q.finished < m.q.submitted {
		m.q.changed.Wait()
	}
	m.q.copy(to.Bytes()[offset:][:count], from.Bytes()[offset:])
	return nil
}

// onDevice returns a view of the processor's memory.
func onDevice(v driver.View) driver.View {
	if m, ok := v.Buffer.(*mirror); ok {
		v.Buffer = m.device
	}
	return v
}

// Close gives up what has not begun, and waits for the running call.
func (q *Queued) Close() error {
	q.mu.Lock()
	first := !q.closed
	q.closed = true
	q.changed.Broadcast()
	attached := q.attached
	q.mu.Unlock()
	if !first {
		return nil
	}
	err := q.proc.Close() // which ends a hang
	if attached {
		<-q.ended
	}
	return err
}

// again returns a copy of values in the memory of an earlier one.
func again[T any](earlier, values []T) []T { return append(earlier[:0], values...) }

// againEach returns a copy of lists in the memory of earlier ones, those beyond their length included.
func againEach[T any](earlier, lists [][]T) [][]T {
	earlier = slices.Grow(earlier, max(0, len(lists)-len(earlier)))[:len(lists)]
	for i, list := range lists {
		earlier[i] = again(earlier[i], list)
	}
	return earlier
}

// listsFor is room for what travels of so many operands, in general.
func listsFor(operands int) [][]driver.Rect {
	out := make([][]driver.Rect, operands)
	for i := range out {
		out[i] = make([]driver.Rect, 0, 4)
	}
	return out
}
