package opencl

import (
	"errors"
	"fmt"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/runtime/driver"
)

// buffer is memory of the host and the device's buffer of it: one and the same memory, or a copy each.
type buffer struct {
	p      *processor
	host   []byte
	region *mem.Region // of memory that the processor allocated
	mapped bool        // the host's memory is a mapping of the device's
	device *clapi.Buffer
	copies bool
}

// mirror is a buffer with a copy on the device.
type mirror struct{ *buffer }

// own returns the buffer of a view, nil where it is not one of this processor.
func (p *processor) own(b driver.Buffer) *buffer {
	var found *buffer
	switch b := b.(type) {
	case *buffer:
		found = b
	case mirror:
		found = b.buffer
	}
	if found == nil || found.p != p || found.device == nil {
		return nil
	}
	return found
}

// Bytes returns the host's memory.
func (b *buffer) Bytes() []byte { return b.host }

// Close waits for the calls that use the memory.
func (b *buffer) Close() error {
	b.p.Mu.Lock()
	defer b.p.Mu.Unlock()
	if b.device == nil {
		return nil
	}
	if b.p.hangs { // a kernel may still write there
		b.device, b.host = nil, nil
		return nil
	}
	if !b.p.idle(closePatience) {
		return diag.New(diag.ClassRun, "close buffer of %s: calls that use it have not finished", b.p)
	}
	return b.free()
}

// free gives the memory back; no call uses it.
func (b *buffer) free() (err error) {
	if b.mapped && !b.p.gone {
		err = b.p.queue.Unmap(b.device, b.host)
	}
	err = errors.Join(err, b.device.Close())
	if b.region != nil {
		err = errors.Join(err, b.region.Close())
	}
	b.device, b.host = nil, nil
	return err
}

// Alloc returns zeroed memory, which the device computes on where it can.
func (p *processor) Alloc(bytes int64) (driver.Buffer, error) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if bytes < 0 || bytes > mem.MaxBytes {
		return nil, diag.New(diag.ClassInput, "allocate on %s: size %d bytes, want 0 to %d", p, bytes, mem.MaxBytes)
	}
	if p.gone {
		return nil, diag.New(diag.ClassRun, "allocate on %s: the processor is closed", p)
	}
	if p.sharesOwn() {
		return p.allocMapped(bytes)
	}
	region, err := mem.Alloc(int(bytes), 4096)
	if err != nil {
		return nil, fmt.Errorf("allocate on %s: %w", p, err)
	}
	made, err := p.wrap(region.Bytes(), region)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("allocate on %s: %w", p, err), region.Close())
	}
	return made, nil
}

// allocMapped allocates memory of the device and keeps it mapped.
func (p *processor) allocMapped(bytes int64) (driver.Buffer, error) {
	out := &buffer{p: p, mapped: true}
	var err error
	if out.device, err = p.device.context.NewBuffer(clapi.ReadWrite|clapi.AllocHost, max(1, bytes), nil); err != nil {
		return nil, fmt.Errorf("allocate on %s: %w", p, err)
	}
	if out.host, err = p.queue.Map(out.device, max(1, bytes)); err != nil {
		return nil, errors.Join(fmt.Errorf("allocate on %s: %w", p, err), out.device.Close())
	}
	out.host = out.host[:bytes]
	clear(out.host)
	return out, nil
}

// Import makes memory of the host usable: without a copy where the device computes on it.
func (p *processor) Import(b []byte) (driver.Buffer, error) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if !mem.Aligned(b, driver.Align) {
		return nil, diag.New(diag.ClassInput, "import to %s: address of %d bytes is not a multiple of %d", p, len(b),
			driver.Align)
	}
	if p.gone {
		return nil, diag.New(diag.ClassRun, "import to %s: the processor is closed", p)
	}
	made, err := p.wrap(b, nil)
	if err != nil {
		return nil, fmt.Errorf("import to %s: %w", p, err)
	}
	return made, nil
}

// wrap makes a buffer of memory of the host, with a copy on the device where that does not compute on the host's.
func (p *processor) wrap(host []byte, region *mem.Region) (driver.Buffer, error) {
	out := &buffer{p: p, host: host, region: region, copies: !p.shares}
	var err error
	if p.shares && len(host) > 0 {
		out.device, err = p.device.context.NewBuffer(clapi.ReadWrite|clapi.UseHost, int64(len(host)), host)
	} else {
		out.device, err = p.device.context.NewBuffer(clapi.ReadWrite, max(1, int64(len(host))), nil)
	}
	if err != nil {
		return nil, err
	}
	if out.copies {
		return mirror{out}, nil
	}
	return out, nil
}

// Push copies bytes of the host to the device, after the calls in flight.
func (m mirror) Push(offset, count int64) error { return m.move(offset, count, true) }

// Pull copies bytes of the device to the host, after the calls in flight.
func (m mirror) Pull(offset, count int64) error { return m.move(offset, count, false) }

func (m mirror) move(offset, count int64, push bool) error {
	p := m.p
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if m.device == nil || p.gone {
		return diag.New(diag.ClassRun, "copy memory of %s: the buffer or the processor is closed", p)
	}
	if offset < 0 || count < 0 || offset > int64(len(m.host)) || count > int64(len(m.host))-offset {
		return diag.New(diag.ClassInput, "copy memory of %s: bytes %d..%d of a buffer of %d", p, offset, offset+count,
			len(m.host))
	}
	data := m.host[offset : offset+count]
	if push {
		return p.queue.Write(m.device, offset, data, true)
	}
	return p.queue.Read(m.device, offset, data, true)
}

// weight makes packed bytes readable by the device: in place, or as a copy of its own.
func (p *processor) weight(data []byte) (*clapi.Buffer, error) {
	if p.shares {
		return p.device.context.NewBuffer(clapi.ReadOnly|clapi.UseHost, int64(len(data)), data)
	}
	made, err := p.device.context.NewBuffer(clapi.ReadOnly, int64(len(data)), nil)
	if err != nil {
		return nil, err
	}
	if err := p.queue.Write(made, 0, data, true); err != nil {
		return nil, errors.Join(err, made.Close())
	}
	return made, nil
}
