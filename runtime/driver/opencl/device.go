package opencl

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

// device is a device that processors of this process share: its context, its programs, and what was found out about
// it. It stays open until the process ends.
type device struct {
	context  *clapi.Context
	identity driver.Identity
	features kernel.Features
	maxAlloc int64
	// what the probe found: the device computes on imported memory of the host, and on memory that it allocates and
	// the host has mapped
	imports, allocates bool

	programs programs
}

// shared are the open devices. One that was lost is opened anew.
var shared struct {
	sync.Mutex
	of map[string]*device
}

// share opens a device, or returns it where it is open. A device that lacks what every kernel needs is refused by name.
func share(from *clapi.Device) (*device, error) {
	shared.Lock()
	defer shared.Unlock()
	name := from.ID()
	if open := shared.of[name]; open != nil {
		return open, nil
	}
	var opened *device
	if err := inherit(func() (err error) {
		opened, err = openDevice(from)
		return err
	}); err != nil {
		return nil, err
	}
	if shared.of == nil {
		shared.of = map[string]*device{}
	}
	shared.of[name] = opened
	return opened, nil
}

// openDevice asks a device what it is, makes its context and finds out what memory it shares.
func openDevice(from *clapi.Device) (*device, error) {
	opened := &device{}
	if err := opened.describe(from); err != nil {
		return nil, err
	}
	var err error
	if opened.identity, err = identityOf(from); err != nil {
		return nil, err
	}
	if opened.context, err = from.Open(); err != nil {
		return nil, err
	}
	opened.programs.context, opened.programs.identity, opened.programs.keep = opened.context, opened.identity, idlePrograms
	if err := opened.probe(); err != nil {
		return nil, errors.Join(err, opened.context.Close())
	}
	return opened, nil
}

// forget lets the next Open open the device anew.
func forget(lost *device) {
	shared.Lock()
	defer shared.Unlock()
	for name, open := range shared.of {
		if open == lost {
			delete(shared.of, name)
		}
	}
}

// describe reads what the device says about itself, and refuses one that cannot do what every kernel needs.
func (d *device) describe(from *clapi.Device) error {
	var group, alloc, local uint64
	for _, want := range []struct {
		param clapi.Param
		to    *uint64
		least uint64
		what  string
	}{
		{clapi.DeviceAvailable, nil, 1, "it is not available"},
		{clapi.DeviceEndianLittle, nil, 1, "it is big-endian, packed weights are little-endian"},
		{clapi.DeviceCompiler, nil, 1, "it has no compiler for kernels"},
		{clapi.DeviceComputeUnits, nil, 1, "it has no compute units"},
		{clapi.DeviceMaxWorkGroup, &group, 1, "it has no work groups"},
		{clapi.DeviceMaxAlloc, &alloc, 1, "it allocates no memory"},
		{clapi.DeviceLocalType, &local, 0, ""},
	} {
		value, err := from.Number(want.param)
		if err != nil {
			return err
		}
		if value < want.least {
			return diag.New(diag.ClassUnavailable, "device %q: %s: %w", from.Name, want.what, driver.ErrIncapable)
		}
		if want.to != nil {
			*want.to = value
		}
	}
	version, err := from.Text(clapi.DeviceVersion)
	if err != nil {
		return err
	}
	var major, minor int
	if _, err := fmt.Sscanf(version, "OpenCL %d.%d", &major, &minor); err != nil || major*10+minor < 12 {
		return diag.New(diag.ClassUnavailable, "device %q: its version is %q, want OpenCL 1.2 or later: %w", from.Name,
			version, driver.ErrIncapable)
	}
	var subGroups uint64
	if major >= 3 { // earlier devices do not know the question
		if subGroups, err = from.Number(clapi.DeviceMaxSubGroups); err != nil {
			return err
		}
	}
	images, err := from.Number(clapi.DeviceImages)
	if err == nil && images > 0 {
		images, err = from.Number(clapi.DeviceImageBuffer)
	}
	if err != nil {
		return err
	}
	extensions, err := from.Text(clapi.DeviceExtensions)
	if err != nil {
		return err
	}
	d.maxAlloc = int64(min(alloc, 1<<62))
	d.features = kernel.Features{Dedicated: local == clapi.LocalDedicated, MaxGroup: int(min(group, 1<<20)),
		IntegerDot: slices.Contains(strings.Fields(extensions), "cl_khr_integer_dot_product"),
		ImageWords: int(min(images, 1<<31-1)), SubGroups: subGroups > 0}
	return nil
}

// probe finds out whether host and device see what the other writes without a copy in between. A kernel reads what the
// host wrote after the buffer was made and writes elsewhere, twice, with other numbers.
func (d *device) probe() error {
	source, err := kernel.Probe()
	if err != nil {
		return err
	}
	program, err := d.context.Build(source, buildOptions(source)) // of this program's own source, for now
	if err != nil {
		return err
	}
	defer program.Close()
	queue, err := d.context.NewQueue()
	if err != nil {
		return err
	}
	defer queue.Close()
	run, err := program.Kernel("probe")
	if err != nil {
		return err
	}
	defer run.Close()
	region, err := mem.Alloc(2*probeBytes, 4096)
	if err != nil {
		return err
	}
	defer region.Close()
	trial := &probe{queue: queue, kernel: run}
	// Memory of the host that the device is given.
	for i := range 2 {
		trial.bytes[i] = region.Bytes()[i*probeBytes : (i+1)*probeBytes]
		if trial.buffers[i], err = d.context.NewBuffer(clapi.ReadWrite|clapi.UseHost, probeBytes,
			trial.bytes[i]); err != nil {
			return err
		}
		defer trial.buffers[i].Close()
	}
	if d.imports, err = trial.run(); err != nil {
		return err
	}
	// Memory of the device that the host has mapped.
	for i := range 2 {
		if trial.buffers[i], err = d.context.NewBuffer(clapi.ReadWrite|clapi.AllocHost, probeBytes, nil); err != nil {
			return err
		}
		defer trial.buffers[i].Close()
		if trial.bytes[i], err = queue.Map(trial.buffers[i], probeBytes); err != nil {
			return err
		}
	}
	d.allocates, err = trial.run()
	for i := range 2 {
		err = errors.Join(err, queue.Unmap(trial.buffers[i], trial.bytes[i]))
	}
	return errors.Join(err, queue.Finish())
}

const probeBytes = 4096

// probe is two buffers whose memory the host reaches.
type probe struct {
	queue   *clapi.Queue
	kernel  *clapi.Kernel
	buffers [2]*clapi.Buffer
	bytes   [2][]byte
}

// run reports whether the kernel read what the host wrote last, and the host what the kernel wrote, each time.
func (p *probe) run() (bool, error) {
	from, err := mem.View[int32](p.bytes[0])
	if err != nil {
		return false, err
	}
	to, err := mem.View[int32](p.bytes[1])
	if err != nil {
		return false, err
	}
	for try := range int32(3) {
		for i := range from {
			from[i], to[i] = 1000*try+int32(i), -1
		}
		for i := range 2 {
			if err := p.queue.SetBuffer(p.kernel, i, p.buffers[i]); err != nil {
				return false, err
			}
		}
		if _, err := p.queue.Launch(p.kernel, [3]int{len(from), 1, 1}, [3]int{}, false); err != nil {
			return false, err
		}
		if err := p.queue.Finish(); err != nil {
			return false, err
		}
		for i := range to {
			if to[i] != 1000*try+int32(i)+1 {
				return false, nil
			}
		}
	}
	return true, nil
}
