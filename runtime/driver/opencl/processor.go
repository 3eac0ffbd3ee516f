package opencl

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

// closePatience is how long closing waits for a kernel that does not end.
const closePatience = 2 * time.Second

// processor is a queue of a device. Temporary values of all graphs share one arena, because calls execute in order.
type processor struct {
	driver.Local
	device   *device
	settings settings
	caps     *driver.Capabilities
	queue    *clapi.Queue
	cores    []int // of a device made of the CPU's
	shares   bool  // the device computes on memory of the host
	gone     bool  // closed
	hangs    bool  // closed while a kernel did not end, which may still write to memory
	lost     error

	codes map[string]*parsed // artifacts of the loaded executables, by their bytes
	taken map[string]*built  // programs, by their sources

	arena      *clapi.Buffer
	arenaBytes int64

	notes notes
	calls [driver.MaxInFlight]call // by the ticket's remainder
	last  driver.Ticket            // submitted
	done  driver.Ticket            // known to be done
	told  driver.Ticket            // errors up to here were told
	early *driver.Failure          // of a call whose place another one has taken, not told yet

	waiting int // goroutines inside the library, waiting for an event

	flag     *clapi.Kernel // writes tickets, where completion is by flag
	flagWord []int32
	flagMem  *buffer
}

// call is one in flight, or one that is done.
type call struct {
	exe        *executable
	event      clapi.Event
	start, end driver.Tick
	err        error
}

// newProcessor opens a queue of the device.
func newProcessor(selector string, from *device, settings settings) (*processor, error) {
	made := &processor{Local: driver.Local{Name: Name + ":" + selector}, device: from, settings: settings,
		shares: from.imports && !settings.own, codes: map[string]*parsed{}, taken: map[string]*built{}}
	made.caps = capabilities(!made.shares, settings, &from.features)
	made.caps.SharesOwn = made.sharesOwn()
	var err error
	if made.queue, err = from.context.NewQueue(); err != nil {
		return nil, err
	}
	if settings.flag {
		if err := made.prepareFlag(); err != nil {
			return nil, errors.Join(err, made.Close())
		}
	}
	return made, nil
}

// sharesOwn reports whether the device copies memory of the host, and the host shares memory that the device allocates.
func (p *processor) sharesOwn() bool { return !p.shares && p.device.allocates && !p.settings.own }

// prepareFlag makes the word that a kernel behind each call writes the ticket to.
func (p *processor) prepareFlag() error {
	if !p.shares {
		return diag.New(diag.ClassUnavailable,
			"option %q is \"flag\", and the host does not see what the device writes", optCompletion)
	}
	source, err := kernel.Probe()
	if err != nil {
		return err
	}
	taken, err := p.device.programs.take(source, nil) // this program's own: no bundle has a binary of it
	if err != nil {
		return err
	}
	p.taken[source] = taken
	memory, err := p.Alloc(64)
	if err != nil {
		return err
	}
	p.flagMem = p.own(memory)
	if p.flagWord, err = mem.View[int32](memory.Bytes()); err != nil {
		return err
	}
	if p.flag, err = taken.Kernel("flag"); err != nil {
		return err
	}
	return p.queue.SetBuffer(p.flag, 0, p.flagMem.device)
}

// Capabilities returns those of the kernels, with or without memory of the device's own.
func (p *processor) Capabilities() *driver.Capabilities { return p.caps }

// Attach binds nothing: the device has threads of its own.
func (p *processor) Attach() error { return p.AttachBy(func() error { return nil }) }

// Load builds the programs of the artifact, which read the weights in place where the device can.
func (p *processor) Load(ctx context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	return p.LoadBy(ctx, func() (driver.Executable, error) { return p.load(a, w) })
}

// Owns is for RunBy.
func (p *processor) Owns(exe driver.Executable) (here, open bool) {
	loaded, ok := exe.(*executable)
	here = ok && loaded.p == p
	return here, here && !loaded.closed
}

// Execute is for RunBy: it enqueues the call.
func (p *processor) Execute(exe driver.Executable, b *driver.Bindings) error {
	return p.enqueue(exe.(*executable), b)
}

// Submit implements driver.Asynchronous.
func (p *processor) Submit(exe driver.Executable, b *driver.Bindings) (driver.Ticket, error) {
	if _, err := p.RunBy(p, exe, b); err != nil {
		return 0, err
	}
	return p.last, nil
}

// Run submits a call and waits for it.
func (p *processor) Run(exe driver.Executable, b *driver.Bindings) (driver.Span, error) {
	start := p.Now()
	ticket, err := p.Submit(exe, b)
	if err != nil {
		return driver.Span{Start: start, End: p.Now()}, err
	}
	span, err := p.Wait(ticket)
	if failure, ok := errors.AsType[*driver.Failure](err); ok && failure.Ticket == ticket {
		err = failure.Err
	}
	return span, err
}

// Done implements driver.Asynchronous.
func (p *processor) Done(t driver.Ticket) (bool, error) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if t > p.last || t == 0 {
		return false, p.noTicket(t)
	}
	if !p.gone {
		p.retire()
	}
	return t <= p.done, p.tell(t)
}

// noTicket returns the error for a ticket that was not given out.
func (p *processor) noTicket(t driver.Ticket) error {
	return diag.New(diag.ClassInternal, "wait on %s: call %d was not submitted, want 1..%d", p, t, p.last)
}

// Wait implements driver.Asynchronous. It does not hold the lock while it is inside the library, so that the processor
// can be closed although a kernel does not end.
func (p *processor) Wait(t driver.Ticket) (driver.Span, error) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if t > p.last || t == 0 {
		return driver.Span{}, p.noTicket(t)
	}

	for p.retire(); t > p.done; p.retire() {
		if p.gone {
			return driver.Span{}, diag.New(diag.ClassRun, "wait on %s: the processor is closed", p)
		}
		event := p.calls[t%driver.MaxInFlight].event
		if event == 0 { // completion by flag, or a call without commands behind others
			p.Mu.Unlock()
			pause()
			p.Mu.Lock()
			continue
		}
		p.waiting++
		p.Mu.Unlock()
		err := p.queue.Wait(event)
		p.Mu.Lock()
		p.waiting--
		if err != nil && !p.gone {
			p.check(err)
			p.retire()
			if t > p.done {
				return driver.Span{}, diag.New(diag.ClassRun, "wait on %s: %w", p, err)
			}
		}
	}
	span := driver.Span{}
	if p.last-t < driver.MaxInFlight {
		done := &p.calls[t%driver.MaxInFlight]
		span = driver.Span{Start: done.start, End: done.end}
	}
	return span, p.tell(t)
}

// tell returns the first error up to a ticket that was not told.
func (p *processor) tell(t driver.Ticket) error {
	if p.early != nil {
		failure := p.early
		p.early = nil
		return failure
	}

	for p.told < min(t, p.done) {
		p.told++
		call := &p.calls[p.told%driver.MaxInFlight]
		replaced := p.last-p.told >= driver.MaxInFlight
		if call.err != nil && !replaced {
			err := call.err
			call.err = nil
			err = diag.New(diag.ClassOr(err, diag.ClassRun), "run on %s: %w", p, err)
			return &driver.Failure{Ticket: p.told, Err: err}
		}
	}
	return nil
}

// retire updates done, the ticket of the last finished call, and the errors and times of calls.
func (p *processor) retire() {
	for p.done < p.last {
		next := p.done + 1
		call := &p.calls[next%driver.MaxInFlight]
		if !p.ended(call, next) {
			return
		}
		if call.event != 0 && p.waiting == 0 {
			if err := p.queue.Release(call.event); err != nil && call.err == nil {
				call.err = err
			}
		}
		call.event, call.exe, call.end = 0, nil, p.Now()
		before := &p.calls[p.done%driver.MaxInFlight]
		if p.done > 0 && call.start < before.end {
			call.start = before.end // the call waited in the queue
		}
		p.done = next
	}
}

// ended reports whether a call has ended, and notes its error. Calls of a lost device have.
func (p *processor) ended(call *call, ticket driver.Ticket) bool {
	switch {
	case p.lost != nil:
		if call.err == nil {
			call.err = p.lost
		}
	case p.flag != nil && call.exe != nil:
		if atomic.LoadInt32(&p.flagWord[0])-int32(ticket) < 0 {
			return false
		}
		call.err = p.verdict(call, ticket)
	case call.event != 0:
		status, err := p.queue.Status(call.event)
		switch {
		case err != nil:
			call.err = err
			p.check(err)
		case status > 0:
			return false
		case status < 0:
			call.err = &clapi.Error{What: "execute kernels", Code: status}
			p.check(call.err)
		default:
			call.err = p.verdict(call, ticket)
		}
	}
	return true
}

// verdict returns the error of a call whose commands were executed.
func (p *processor) verdict(c *call, t driver.Ticket) error {
	for i := range c.exe.refusals {
		if row := p.notes.words[p.notes.slot(t)+i]; row != math.MaxInt32 {
			step := &c.exe.steps[c.exe.refusing[i]]
			return fmt.Errorf("node %d (%s), row %d: %w", step.node, c.exe.graph.Nodes[step.node].Op.Kind, row,
				step.refused(c.exe, int(row)))
		}
	}
	return nil
}

// check forgets the device if an error says that it is lost.
func (p *processor) check(err error) {
	failure, ok := errors.AsType[*clapi.Error](err)
	if !ok || !failure.Lost() || p.lost != nil {
		return
	}
	p.lost = err
	forget(p.device)
}

// idle waits until no call is in flight and no thread waits inside the library, and reports whether that came true.
func (p *processor) idle(patience time.Duration) bool {
	if p.gone {
		return true
	}
	began := p.Now()
	for p.retire(); p.done < p.last || p.waiting > 0; p.retire() {
		if time.Duration(p.Now()-began) > patience {
			return false
		}
		p.Mu.Unlock()
		pause()
		p.Mu.Lock()
	}
	return true
}

// Close waits for running calls, for a while: memory and queue of a kernel that does not end are left to it. Buffers
// stay valid until they are closed.
func (p *processor) Close() error {
	p.Mu.Lock()
	ended := p.idle(closePatience)
	p.Mu.Unlock()
	return p.CloseBy(func() (err error) {
		p.gone = true
		if !ended {
			p.hangs = true
			forget(p.device)
			return diag.New(diag.ClassRun, "close %s: %d calls have not finished after %v: the device is given up", p,
				p.last-p.done, closePatience)
		}
		if p.flag != nil {
			err = p.flag.Close()
		}
		if p.flagMem != nil {
			err = errors.Join(err, p.flagMem.free())
		}
		err = errors.Join(err, p.notes.close(), p.queue.Close())
		if p.arena != nil {
			err = errors.Join(err, p.arena.Close())
		}
		err = errors.Join(err, p.device.programs.give(p.taken))
		p.taken = nil
		return err
	})
}

// reserve makes the arena at least bytes large. What calls in flight use stays until they are done.
func (p *processor) reserve(bytes int64) error {
	if bytes > maxWork || bytes > p.device.maxAlloc {
		return diag.New(diag.ClassInput, "graph needs %d bytes of temporary memory, want at most %d", bytes,
			min(maxWork, p.device.maxAlloc))
	}
	if bytes <= p.arenaBytes {
		return nil
	}
	arena, err := p.device.context.NewBuffer(clapi.ReadWrite, bytes, nil)
	if err != nil {
		return err
	}
	if p.arena != nil {
		if err := p.arena.Close(); err != nil {
			return err
		}
	}
	p.arena, p.arenaBytes = arena, bytes
	return nil
}

// maxWork bounds the temporary memory of one graph in bytes, so that a hostile artifact cannot ask for more than a
// machine has.
const maxWork = 8 << 30

// notes are numbers of calls in flight that host and kernels share. Each call has words for the lowest row that each
// step refused, the places of rows, and the frequencies of rotations.
type notes struct {
	buffer *buffer
	words  []int32
	each   int // words of a call
}

// slot returns the first word of a call.
func (n *notes) slot(t driver.Ticket) int { return int(t%driver.MaxInFlight) * n.each }

// grow makes room for that many words of a call. No call is in flight.
func (p *processor) grow(words int) error {
	words = (words + 15) &^ 15 // a cache line
	if words <= p.notes.each {
		return nil
	}
	if !p.idle(closePatience) {
		return diag.New(diag.ClassRun, "calls have not finished after %v", closePatience)
	}
	region, err := mem.Alloc(4*words*driver.MaxInFlight, 4096)
	if err != nil {
		return err
	}
	made, err := p.wrap(region.Bytes(), region)
	if err != nil {
		return errors.Join(err, region.Close())
	}
	fresh := notes{buffer: p.own(made), each: words}
	if fresh.words, err = mem.View[int32](region.Bytes()); err != nil {
		return err
	}
	err = p.notes.close()
	p.notes = fresh
	return err
}

// close frees the notes.
func (n *notes) close() error {
	if n.buffer == nil {
		return nil
	}
	err := n.buffer.free()
	n.buffer, n.words = nil, nil
	return err
}
