package opencl

import (
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/runtime/driver"
)

// enqueue hands a call to the device: operands that travel, the kernels of each step, results that travel, and the
// event or the flag by which its end is noticed. It allocates nothing unless it fails.
func (p *processor) enqueue(e *executable, b *driver.Bindings) error {
	if p.lost != nil {
		return p.lost
	}
	if p.last-p.done >= driver.MaxInFlight {
		return fmt.Errorf("%d calls are in flight, want at most %d: ask which are done", p.last-p.done,
			driver.MaxInFlight)
	}
	if err := e.bind(b); err != nil {
		return err
	}
	if err := e.checkSelected(); err != nil {
		return err
	}
	p.claimThreads()
	ticket := p.last + 1
	inFlight := &p.calls[ticket%driver.MaxInFlight]
	p.keepFailure(ticket)
	*inFlight = call{start: p.Now()}
	if e.Scalars.Rows > 0 {
		event, err := p.commands(e, b, ticket)
		if err != nil {
			p.check(err)
			// Enqueued commands read the notes of this call, which the next call overwrites.
			if p.lost == nil {
				_ = p.queue.Finish()
			}
			return err
		}
		inFlight.exe, inFlight.event = e, event
	}
	p.last = ticket
	return nil
}

// keepFailure keeps the failure of the call that the call of a ticket replaces, unless tell has reported it or an
// earlier one is kept.
func (p *processor) keepFailure(ticket driver.Ticket) {
	replaced := p.calls[ticket%driver.MaxInFlight].err
	if ticket <= driver.MaxInFlight || replaced == nil {
		return
	}
	before := ticket - driver.MaxInFlight
	if p.told < before && p.early == nil {
		p.early = &driver.Failure{Ticket: before, Err: replaced}
	}
}

// checkSelected refuses a row to select that is not in use.
func (e *executable) checkSelected() error {
	for i := range e.steps {
		step := &e.steps[i]
		rows := min(step.m, e.Scalars.Rows)
		if !step.selects || rows <= 0 {
			continue
		}
		row := e.Scalars.Row
		if row < 0 || row >= rows {
			return fmt.Errorf("node %d (%s), row %d: want a row in 0..%d", step.node, e.graph.Nodes[step.node].Op.Kind,
				row, rows-1)
		}
	}
	return nil
}

// commands enqueues the commands of a call and returns the event of the last one.
func (p *processor) commands(e *executable, b *driver.Bindings, ticket driver.Ticket) (clapi.Event, error) {
	e.slot = p.notes.slot(ticket)
	e.note()
	if !p.shares {
		if err := e.fetch(b); err != nil {
			return 0, err
		}
	}
	last, err := p.launchSteps(e)
	if err != nil {
		return 0, err
	}
	event, err := p.queue.Launch(last.kernel, last.global, last.local, p.shares && p.flag == nil)
	if err != nil {
		return 0, err
	}
	if !p.shares {
		if err := e.hand(b); err != nil {
			return 0, err
		}
		if event, err = p.queue.Marker(); err != nil {
			return 0, err
		}
	}
	if p.flag != nil {
		if err := p.queue.SetInt(p.flag, 1, uint32(ticket)); err != nil {
			return 0, err
		}
		if _, err := p.queue.Launch(p.flag, [3]int{1, 1, 1}, [3]int{}, false); err != nil {
			return 0, err
		}
	}
	return event, p.queue.Flush()
}

// launchSteps enqueues the launches of a call but the last, which it returns: that one may have the event.
func (p *processor) launchSteps(e *executable) (last *launch, err error) {
	for i := range e.steps {
		step := &e.steps[i]
		rows := min(step.m, e.Scalars.Rows) * step.fan
		if step.selects {
			rows = 1
		}
		parts := step.parts(e, rows)
		for j := range step.launches {
			next := &step.launches[j]
			if !next.size(p, rows, parts) {
				continue
			}
			if last != nil {
				if _, err := p.queue.Launch(last.kernel, last.global, last.local, false); err != nil {
					return nil, err
				}
			}
			if err := e.arguments(next, rows, parts); err != nil {
				return nil, err
			}
			last = next
		}
	}
	return last, nil
}

// note writes the numbers of the call that kernels read, and that no row was refused.
func (e *executable) note() {
	words := e.p.notes.words[e.slot:]
	for i := range e.refusals {
		words[i] = math.MaxInt32
	}
	rows := min(e.graph.Rows(), e.Scalars.Rows)
	if e.Placed {
		for row := range rows {
			at, longer := e.At(row), int32(0)
			if e.longFrom > 0 && e.Seq(row) > e.longFrom {
				longer = 1
			}
			place := words[e.places+placeWords*row:][:placeWords]
			place[0], place[1], place[2] = int32(at.Sequence), int32(at.Pos), longer
		}
	}

	for i := range e.steps {
		if turn := e.steps[i].rotation; turn != nil {
			turn.fill(e, words[turn.at:], rows)
		}
	}
}

// arguments sets those arguments of a launch that differ from the last time.
func (e *executable) arguments(l *launch, rows, parts int) error {
	index := 0
	queue := e.p.queue
	for i := range l.args {
		arg := &l.args[i]
		buffer, value, kind := e.argument(l, arg, rows, parts)
		if buffer != nil {
			if arg.buffer != buffer || !arg.known {
				if err := queue.SetBuffer(l.kernel, index, buffer); err != nil {
					return err
				}
			}
			arg.buffer = buffer
			index++
		}
		switch {
		case kind == none || arg.known && arg.value == value:
		case kind == long:
			if err := queue.SetLong(l.kernel, index, value); err != nil {
				return err
			}
		default:
			if err := queue.SetInt(l.kernel, index, uint32(value)); err != nil {
				return err
			}
		}
		arg.value, arg.known = value, true
		if kind != none {
			index++
		}
		if arg.kind == argOperand {
			ld := int64(e.operands[arg.operand].ld)
			if arg.ld != ld {
				if err := queue.SetInt(l.kernel, index, uint32(ld)); err != nil {
					return err
				}
			}
			arg.ld = ld
			index++
		}
	}
	return nil
}

// Types of arguments behind a buffer.
const (
	none = iota
	word
	long
)

// argument returns the current value of an argument: a buffer, a number, or both.
func (e *executable) argument(l *launch, arg *argument, rows, parts int) (buffer *clapi.Buffer, value int64, kind int) {
	switch arg.kind {
	case argOperand:
		operand := &e.operands[arg.operand]
		return operand.device, operand.at, long
	case argBuffer:
		return arg.buffer, 0, none
	case argWord:
		return nil, arg.value, word
	case argNotes:
		return e.p.notes.buffer.device, 0, none
	case argNote:
		return nil, int64(e.slot) + arg.offset, word
	case argPlaces:
		return nil, int64(e.slot + e.places), word
	case argRotation:
		return nil, int64(e.slot + arg.turn.at), word
	case argRows:
		return nil, int64(rows), word
	case argFirst:
		return nil, int64(l.first), word
	case argSide:
		side := &e.sides[arg.operand]
		return side.buffer.device, side.at, long
	case argContext:
		return nil, int64(e.MaxContext), word
	case argSequence:
		return nil, int64(e.PerSeq), long
	case argParts:
		return nil, int64(parts), word
	case argSelected:
		return nil, int64(e.Scalars.Row), word
	case argScratch:
		return e.p.arena, arg.offset, long
	}
	panic("BUG: argument of no kind")
}

// fetch copies operands of a call to the device, if the host has changed them.
func (e *executable) fetch(b *driver.Bindings) error {
	notes := &e.p.notes
	bytes := mem.Bytes(notes.words[e.slot : e.slot+e.words])
	if err := e.p.queue.Write(notes.buffer.device, 4*int64(e.slot), bytes, false); err != nil {
		return err
	}

	for i := range e.operands {
		o := &e.operands[i]
		if o.input < 0 {
			continue
		}
		parts := driver.Everything
		if b.Moves != nil {
			parts = b.Moves.Fetch[o.input]
		}
		if err := e.travel(o, parts, true); err != nil {
			return err
		}
	}
	if b.Moves != nil || e.KV == "" {
		return nil
	}
	return e.travelCache(true)
}

// hand copies the results that others read to the host, and the numbers of refused rows.
func (e *executable) hand(b *driver.Bindings) error {
	for i := range e.operands {
		o := &e.operands[i]
		if o.out < 0 {
			continue
		}
		parts := driver.Everything
		if b.Moves != nil {
			parts = b.Moves.Hand[o.out]
		}
		if err := e.travel(o, parts, false); err != nil {
			return err
		}
	}
	if b.Moves == nil && e.appends {
		if err := e.travelCache(false); err != nil {
			return err
		}
	}
	notes := &e.p.notes
	bytes := mem.Bytes(notes.words[e.slot : e.slot+e.refusals])
	return e.p.queue.Read(notes.buffer.device, 4*int64(e.slot), bytes, false)
}

// travel copies parts of an operand, of the rows that are in use.
func (e *executable) travel(o *operand, parts []driver.Rect, toDevice bool) error {
	if !o.buffer.copies {
		return nil
	}
	size := o.value.Type.Bytes()
	pitch := o.ld * size
	for _, part := range parts {
		if part = part.Within(o.rows, o.value.Cols); part.Empty() {
			continue
		}
		rows, width := part.R1-part.R0, (part.C1-part.C0)*size
		begin := o.at + int64(part.R0)*int64(pitch) + int64(part.C0*size)
		end := begin + int64(rows-1)*int64(pitch) + int64(width)
		if err := e.p.queue.Copy(o.device, clapi.Rect{Offset: begin, Rows: rows, Width: width, Pitch: pitch,
			Host: o.buffer.host[begin:end], ToDevice: toDevice}); err != nil {
			return err
		}
	}
	return nil
}

// travelCache copies the positions that a call reads to the device, or those that it added to the host.
func (e *executable) travelCache(toDevice bool) error {
	rows := min(e.graph.Rows(), e.Scalars.Rows)
	if e.Batch {
		for row := range rows {
			if err := e.travelPositions(e.At(row), 1, toDevice); err != nil {
				return err
			}
		}
		return nil
	}
	return e.travelPositions(e.At(0), rows, toDevice)
}

// travelPositions copies positions of one sequence, of all heads: those before a place, or count from it on. What a
// graph does not store itself is there before the call.
func (e *executable) travelPositions(at driver.Place, count int, toDevice bool) error {
	from := at.Pos
	if toDevice {
		from = 0
		if e.appends {
			count = 0
		}
		count += at.Pos
	}
	if count == 0 {
		return nil
	}
	element, cols := e.KV.CacheRow(e.HeadDim)
	size, row := int64(element.Bytes()), int64(cols)
	for s := range e.sides {
		side := &e.sides[s]
		if !side.buffer.copies {
			continue
		}
		for head := range e.KVHeads {
			begin := (side.at + int64(at.Sequence)*int64(e.PerSeq) +
				(int64(head)*int64(e.MaxContext)+int64(from))*row) * size
			bytes := int64(count) * row * size
			if err := e.p.queue.Copy(side.buffer.device, clapi.Rect{Offset: begin, Rows: 1, Width: int(bytes),
				Pitch: int(bytes), Host: side.buffer.host[begin : begin+bytes], ToDevice: toDevice}); err != nil {
				return err
			}
		}
	}
	return nil
}
