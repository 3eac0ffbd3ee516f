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

// device is a device that processors of this process share: its context, its programs and its features. It stays open
// until the process ends.
type device struct {
	context   *clapi.Context
	identity  driver.Identity
	features  kernel.Features
	maxAlloc  int64
	imports   bool // the device computes on imported memory of the host
	allocates bool // the device computes on memory that it allocates and the host has mapped

	programs programs
}

// shared are the open devices. One that was lost is opened anew.
var shared struct {
	sync.Mutex
	of map[string]*device
}

// share returns an open device, or opens it. A device without the features that every kernel needs is an error.
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

// openDevice reads the features of a device, makes its context and finds out which memory it shares.
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
	programs := &opened.programs
	programs.context, programs.identity, programs.keep = opened.context, opened.identity, idlePrograms
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

// describe reads the features of a device. One that cannot execute every kernel is an error of class ClassUnavailable.
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
	_, err = fmt.Sscanf(version, "OpenCL %d.%d", &major, &minor)
	if err != nil || major*10+minor < 12 {
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

// probe finds out whether host and device see each other's writes without a copy in between. A kernel reads numbers
// that the host wrote after the buffer was made and writes elsewhere, twice, with different numbers.
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

// probe holds two buffers in memory that the host can access.
type probe struct {
	queue   *clapi.Queue
	kernel  *clapi.Kernel
	buffers [2]*clapi.Buffer
	bytes   [2][]byte
}

// run reports whether kernel and host read the last numbers of each other, each time.
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
