package driver

import (
	"fmt"
	"math"
)

// Asynchronous is implemented by processors that execute calls by themselves while the caller goes on: GPUs, NPUs with
// a queue. Run of such a processor is Submit and Wait in one. The methods are called from one goroutine at a time, like
// those of Processor, after Attach.
type Asynchronous interface {
	Processor
	// Submit enqueues a call and returns without waiting for it, or for any other. Calls execute one after another in
	// the order of submission, so that each sees what earlier ones of the same processor wrote. The driver copies what
	// it needs of Bindings and Scalars before it returns. The memory behind the views stays untouched by others until
	// the call is done. At most MaxInFlight calls are in flight; one more is an error. What Run refuses, Submit refuses
	// or the call fails with. A refused call has no ticket and changes nothing. Submit allocates nothing in the steady
	// state.
	//
	// A driver may collect calls before it starts them, but Done and Wait of any ticket start all that were submitted.
	Submit(exe Executable, b *Bindings) (Ticket, error)
	// Done reports, without blocking, whether a call is done, and with it all that were submitted before. Once it has
	// said so, memory of the host holds what the calls handed back. It allocates nothing.
	//
	// The error is a *Failure: of the first failed call up to t that was not told yet, by Done or by Wait. Calls
	// behind a failed one are done at some time too, and what they wrote is undefined. The processor stays usable,
	// unless the error says that the device is lost; then everything in flight is done, and Submit fails.
	Done(t Ticket) (bool, error)
	// Wait blocks until a call is done, in the driver's own way (an event), and returns when it ran. Of a call that is
	// done it returns at once; the driver knows the spans of the last MaxInFlight calls, and returns none (equal ends)
	// for earlier ones. The span is the device's where it tells, else what the driver noticed; its clock is Now.
	// A ticket that Submit has not returned is an error. Errors are those of Done. It allocates nothing.
	Wait(t Ticket) (Span, error)
}

// MaxInFlight is the largest number of calls of an Asynchronous processor that are submitted and not yet known to be
// done. It is enough for several layers of a model, and small enough for a driver to allocate what it needs for each in
// advance.
const MaxInFlight = 64

// Ticket numbers the calls of a processor in the order of submission, from 1.
type Ticket uint64

// Failure says which call of an Asynchronous processor failed.
type Failure struct {
	Ticket Ticket
	Err    error
}

// Error returns the call's error.
func (f *Failure) Error() string { return fmt.Sprintf("call %d: %v", f.Ticket, f.Err) }

// Unwrap returns the call's error.
func (f *Failure) Unwrap() error { return f.Err }

// Moves lists the parts of a call's operands that travel between the host and a processor with memory of its own
// (capability.Set.OwnMemory), as parts of their views. The rest is read from and written to the processor's copy alone.
// The cache then stays where it is; see Mirror.
type Moves struct {
	// Fetch, for each of Bindings.In: what something else has written since the processor held it, so that it is copied
	// to the processor before the call, and nothing beside it: the processor's copy may be newer there.
	Fetch [][]Rect
	// Hand, for each of Bindings.Out: what something else reads, so that it is copied to the host after the call, and
	// nothing beside it: others may write there at the same time.
	Hand [][]Rect
}

// Rect is rows [R0,R1) and columns [C0,C1) of a view. Rows beyond those that a call uses do not travel.
type Rect struct{ R0, R1, C0, C1 int }

// Everything is all of a view, whatever its size.
var Everything = []Rect{{R1: math.MaxInt, C1: math.MaxInt}}

// Fits returns an error unless the moves are of as many operands as bindings have, and every part has an order of rows
// and columns.
func (m *Moves) Fits(b *Bindings) error {
	if len(m.Fetch) != len(b.In) || len(m.Hand) != len(b.Out) {
		return fmt.Errorf("moves of %d inputs and %d outputs, want %d and %d", len(m.Fetch), len(m.Hand), len(b.In),
			len(b.Out))
	}
	for _, lists := range [2][][]Rect{m.Fetch, m.Hand} {
		for _, parts := range lists {
			for _, part := range parts {
				if part.R0 < 0 || part.C0 < 0 || part.R1 < part.R0 || part.C1 < part.C0 {
					return fmt.Errorf("moves of rows %d..%d and columns %d..%d, want both in order", part.R0, part.R1, part.C0,
						part.C1)
				}
			}
		}
	}
	return nil
}

// Within returns the part that lies in a view of so many rows and columns; it may be empty.
func (p Rect) Within(rows, cols int) Rect {
	return Rect{min(p.R0, rows), min(p.R1, rows), min(p.C0, cols), min(p.C1, cols)}
}

// Empty reports whether the part has no elements.
func (p Rect) Empty() bool { return p.R0 >= p.R1 || p.C0 >= p.C1 }

// Mirror is implemented by buffers of processors with memory of their own, which hold a second copy of each byte there.
// The copy begins with zeros. Nothing is copied automatically: calls move their operands, as Moves says, and these
// methods move everything else. They wait for the calls in flight and return when the bytes have arrived. Processors
// that work on the host's memory have no such buffers.
type Mirror interface {
	Buffer
	// Push copies bytes [offset, offset+count) of the host to the processor.
	Push(offset, count int64) error
	// Pull copies bytes [offset, offset+count) of the processor to the host.
	Pull(offset, count int64) error
}
