package opencl

import (
	"slices"
	"sync"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/clapi"
)

// A device made of the CPU's cores executes on threads of the library, which the system may put on any core: also on
// that of the thread that has just submitted a call, so that both take turns instead of working side by side. While
// such a device is used, the library's threads are restricted to its cores.
// RATIONALE: How are a library's threads found?

// threadName is what threads of the library are called.
const threadName = "hetc-opencl"

// naming is held, by any number of goroutines, while their own threads have the library's name.
var naming sync.RWMutex

// claimed are the cores that the library's threads are restricted to; nil: not all of them are.
var claimed struct {
	sync.Mutex
	cores []int
}

// inherit has the library work on a thread of that name, which the threads that it starts meanwhile inherit.
func inherit(work func() error) error {
	naming.RLock()
	defer naming.RUnlock()
	defer func() {
		claimed.Lock()
		defer claimed.Unlock()
		claimed.cores = nil // new threads are where the system puts them
	}()
	return affinity.Named(threadName, work)
}

// coresOf returns the cores of a device made of them, nil for others: those of all compute units are all of the
// process's. The threads of a part get cores that no other part has, as long as there is a core for each; a part has
// the last ones, and plans give others the first.
func coresOf(from *found, units int) ([]int, error) {
	kind, err := from.Number(clapi.DeviceType)
	if err != nil || kind&clapi.TypeCPU == 0 {
		return nil, err
	}
	all := affinity.Cores()
	if units == 0 {
		return all, nil
	}
	total, err := from.Number(clapi.DeviceComputeUnits)
	if err != nil {
		return nil, err
	}
	return all[max(0, len(all)-int(total)):], nil
}

// claimThreads moves the library's threads to the processor's cores, unless they are there or the device has none.
// Processors of one process share the threads: the one that is used last has them. Where the system refuses, they stay
// where they are. While another goroutine's own thread has the name they stay too, because that thread would be moved
// with them; the next call tries again.
func (p *processor) claimThreads() {
	if p.cores == nil {
		return
	}
	claimed.Lock()
	defer claimed.Unlock()
	if slices.Equal(claimed.cores, p.cores) || !naming.TryLock() {
		return
	}
	defer naming.Unlock()
	if _, err := affinity.PinNamed(threadName, p.cores); err == nil {
		claimed.cores = p.cores
	}
}
