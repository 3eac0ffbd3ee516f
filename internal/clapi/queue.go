package clapi

import (
	"unsafe"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/native"
)

// Queue executes commands in the order in which they are enqueued. Arguments that C reads or writes lie outside the
// Go heap, in one block, so that enqueuing allocates nothing.
type Queue struct {
	context *Context
	id      uintptr
	region  *mem.Region
	words   []uintptr // the block
	args    [16]uintptr

	waitArgs [2]uintptr
}

// Places in a queue's block, in words.
const (
	atEvent  = 0
	atValue  = 2
	atGlobal = 4
	atLocal  = 8
	atHere   = 12 // origins and extents of rectangles
	atThere  = 16
	atExtent = 20
	atWaited = 24
	blockLen = 32
)

// Event is a command that was enqueued; 0 is none.
type Event uintptr

// Complete is the status of a command that is done. Those before it are positive, error codes negative.
const Complete = 0

// NewQueue makes a queue.
func (c *Context) NewQueue() (*Queue, error) {
	var code int32
	id := native.Call(c.lib.fn[fnCreateCommandQueue], c.id, c.device.id, 0, uintptr(unsafe.Pointer(&code)))
	if err := check("create queue", uintptr(code)); err != nil {
		return nil, err
	}
	region, err := mem.Alloc(blockLen*int(wordBytes), 64)
	if err != nil {
		native.Call(c.lib.fn[fnReleaseCommandQueue], id)
		return nil, err
	}
	// SAFETY: the region has that many aligned words, and lives as long as the queue.
	words := unsafe.Slice((*uintptr)(unsafe.Pointer(&region.Bytes()[0])), blockLen)
	return &Queue{context: c, id: id, region: region, words: words}, nil
}

// Close gives the queue back. Commands that were enqueued finish.
func (q *Queue) Close() error {
	if q.id == 0 {
		return nil
	}
	err := release(q.context.lib, fnReleaseCommandQueue, "release queue", &q.id)
	if failure := q.region.Close(); err == nil {
		err = failure
	}
	q.words = nil
	return err
}

// address is that of a word of the block.
func (q *Queue) address(word int) uintptr {
	return mem.Address(q.region.Bytes()) + uintptr(word)*wordBytes
}

// call calls a function with the first n arguments.
func (q *Queue) call(fn function, n int) uintptr {
	return native.Call(q.context.lib.fn[fn], q.args[:n]...)
}

// setArg sets an argument of a kernel to the bytes of the block's value.
func (q *Queue) setArg(k *Kernel, index int, bytes uintptr) error {
	q.args[0], q.args[1], q.args[2], q.args[3] = k.id, uintptr(index), bytes, q.address(atValue)
	if code := q.call(fnSetKernelArg, 4); int32(code) != 0 {
		return &Error{What: "set argument of kernel " + k.name, Code: int32(code)}
	}
	return nil
}

// SetBuffer sets an argument of a kernel to a buffer.
func (q *Queue) SetBuffer(k *Kernel, index int, b *Buffer) error {
	q.words[atValue] = b.id
	return q.setArg(k, index, wordBytes)
}

// SetInt sets an argument of type int or float, by its bits.
func (q *Queue) SetInt(k *Kernel, index int, bits uint32) error {
	q.words[atValue] = uintptr(bits)
	return q.setArg(k, index, 4)
}

// SetLong sets an argument of type long.
func (q *Queue) SetLong(k *Kernel, index int, value int64) error {
	*(*int64)(unsafe.Pointer(&q.words[atValue])) = value // SAFETY: two words of the block belong to the value
	return q.setArg(k, index, 8)
}

// eventPlace returns where the event of a command is written, 0 where none is wanted.
func (q *Queue) eventPlace(want bool) uintptr {
	q.words[atEvent] = 0
	if !want {
		return 0
	}
	return q.address(atEvent)
}

// Launch enqueues a kernel over global work items, in groups of local ones; local[0] == 0 leaves that to the device.
func (q *Queue) Launch(k *Kernel, global, local [3]int, event bool) (Event, error) {
	at := uintptr(0)
	for i := range 3 {
		q.words[atGlobal+i], q.words[atLocal+i] = uintptr(global[i]), uintptr(local[i])
	}
	if local[0] > 0 {
		at = q.address(atLocal)
	}
	q.args = [16]uintptr{q.id, k.id, 3, 0, q.address(atGlobal), at, 0, 0, q.eventPlace(event)}
	if code := q.call(fnEnqueueNDRangeKernel, 9); int32(code) != 0 {
		return 0, &Error{What: "launch kernel " + k.name, Code: int32(code)}
	}
	return Event(q.words[atEvent]), nil
}

// Write enqueues a copy of memory outside the Go heap, which stays as it is until the command is done, to a buffer.
func (q *Queue) Write(b *Buffer, offset int64, data []byte, block bool) error {
	return q.transfer(fnEnqueueWriteBuffer, "write to buffer", b, offset, data, block)
}

// Read enqueues a copy of a buffer to memory outside the Go heap.
func (q *Queue) Read(b *Buffer, offset int64, data []byte, block bool) error {
	return q.transfer(fnEnqueueReadBuffer, "read buffer", b, offset, data, block)
}

func (q *Queue) transfer(fn function, what string, b *Buffer, offset int64, data []byte, block bool) error {
	if len(data) == 0 {
		return nil
	}
	q.args = [16]uintptr{q.id, b.id, boolean(block), uintptr(offset), uintptr(len(data)), mem.Address(data)}
	return check(what, q.call(fn, 9))
}

// boolean is cl_bool.
func boolean(value bool) uintptr {
	if value {
		return 1
	}
	return 0
}

// Rect is rows of width bytes, pitch bytes apart, from a byte of a buffer, and as many in memory of the host that
// begins with the first of them and has the same pitch.
type Rect struct {
	Offset             int64
	Rows, Width, Pitch int
	Host               []byte // from the first to the last byte of the rows
	ToDevice, Blocking bool
}

// Copy enqueues a copy of rows between a buffer and memory outside the Go heap.
func (q *Queue) Copy(b *Buffer, r Rect) error {
	if r.Rows == 0 || r.Width == 0 {
		return nil
	}
	fn, what := fnEnqueueReadBufferRect, "read rows of buffer"
	if r.ToDevice {
		fn, what = fnEnqueueWriteBufferRect, "write rows of buffer"
	}
	if r.Rows == 1 || r.Pitch == r.Width {
		linear := fnEnqueueReadBuffer
		if r.ToDevice {
			linear = fnEnqueueWriteBuffer
		}
		return q.transfer(linear, what, b, r.Offset, r.Host, r.Blocking)
	}
	// A rectangle begins at a column and a row of its pitch.
	pitch := int64(r.Pitch)
	q.words[atHere], q.words[atHere+1], q.words[atHere+2] = uintptr(r.Offset%pitch), uintptr(r.Offset/pitch), 0
	q.words[atThere], q.words[atThere+1], q.words[atThere+2] = 0, 0, 0
	q.words[atExtent], q.words[atExtent+1], q.words[atExtent+2] = uintptr(r.Width), uintptr(r.Rows), 1
	q.args = [16]uintptr{q.id, b.id, boolean(r.Blocking), q.address(atHere), q.address(atThere), q.address(atExtent),
		uintptr(r.Pitch), 0, uintptr(r.Pitch), 0, mem.Address(r.Host), 0, 0, 0}
	return check(what, q.call(fn, 14))
}

// Map makes a buffer readable and writable by the host until Unmap, and waits for that.
func (q *Queue) Map(b *Buffer, bytes int64) ([]byte, error) {
	var code int32
	at := native.Call(q.context.lib.fn[fnEnqueueMapBuffer], q.id, b.id, 1, mapRead|mapWrite, 0, uintptr(bytes), 0, 0,
		0, uintptr(unsafe.Pointer(&code)))
	if err := check("map buffer", uintptr(code)); err != nil {
		return nil, err
	}
	if at == 0 {
		return nil, diag.New(diag.ClassRun, "opencl: map buffer: the device gave no address")
	}
	// SAFETY: the library has mapped that many bytes there, outside the Go heap; the detour over a pointer to the
	// address says so to vet.
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), int(bytes)), nil
}

// Unmap ends what Map began; data is not touched afterwards.
func (q *Queue) Unmap(b *Buffer, data []byte) error {
	q.args = [16]uintptr{q.id, b.id, mem.Address(data)}
	return check("unmap buffer", q.call(fnEnqueueUnmapMemObject, 6))
}

// Marker enqueues an event that completes when everything before it has.
func (q *Queue) Marker() (Event, error) {
	q.args = [16]uintptr{q.id, 0, 0, q.eventPlace(true)}
	err := check("enqueue marker", q.call(fnEnqueueMarker, 4))
	return Event(q.words[atEvent]), err
}

// Flush hands what was enqueued to the device.
func (q *Queue) Flush() error {
	q.args[0] = q.id
	return check("flush queue", q.call(fnFlush, 1))
}

// Finish waits until everything that was enqueued is done.
func (q *Queue) Finish() error {
	q.args[0] = q.id
	return check("finish queue", q.call(fnFinish, 1))
}

// Status returns the state of a command: Complete, positive before, or an error code.
func (q *Queue) Status(e Event) (int32, error) {
	q.words[atValue] = 0
	q.args = [16]uintptr{uintptr(e), eventStatus, 4, q.address(atValue), 0}
	err := check("look at event", q.call(fnGetEventInfo, 5))
	return int32(uint32(q.words[atValue])), err
}

// Wait waits until a command is done. One goroutine may wait while another one uses the queue.
func (q *Queue) Wait(e Event) error {
	q.words[atWaited] = uintptr(e)
	q.waitArgs[0], q.waitArgs[1] = 1, q.address(atWaited)
	return check("wait for event", native.Call(q.context.lib.fn[fnWaitForEvents], q.waitArgs[:]...))
}

// Release gives an event back.
func (q *Queue) Release(e Event) error {
	q.args[0] = uintptr(e)
	return check("release event", q.call(fnReleaseEvent, 1))
}
