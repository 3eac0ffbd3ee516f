package opencl

import (
	"slices"
	"sync"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/clapi"
)

// A device made of the CPU's cores executes on threads of the library, which the system may put on any core: also on that
// of the thread that has just submitted a call, so that both take turns instead of working side by side. While such a
// device is used, the library's threads are restricted to its cores.
// RATIONALE: How are a library's threads found?

// threadName is what threads of the library are called.
const threadName = "hetc-opencl"

// placed are the cores that the library's threads are restricted to; nil: none of them is.
var placed struct {
	sync.Mutex
	cores []int
}

// coresOf are the cores of a device made of them, nil for others: those of all compute units are all of the process's.
// The threads of a part get cores that no other part has, as long as there is a core for each; a part has the last ones,
// and plans give others the first.
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

// place moves the library's threads to the processor's cores, unless they are there or the device has none. Processors of
// one process share the threads: the one that is used last has them. Where the system refuses, they stay where they are.
func (p *processor) place() {
	if p.cores == nil {
		return
	}
	placed.Lock()
	defer placed.Unlock()
	if slices.Equal(placed.cores, p.cores) {
		return
	}
	if _, err := affinity.PinNamed(threadName, p.cores); err == nil {
		placed.cores = p.cores
	}
}
