package affinity

import (
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A pinned thread runs on its core alone; the list of the process's cores stays what it was.
func TestPin(t *testing.T) {
	cores := Cores()
	if len(cores) == 0 || !slices.IsSorted(cores) {
		t.Fatalf("cores %v", cores)
	}
	want := cores[len(cores)-1]
	type result struct {
		err   error
		set   unix.CPUSet
		cores []int
	}
	got := make(chan result)
	go func() {
		runtime.LockOSThread() // the pinned thread ends with the goroutine
		var r result
		if r.err = Pin(want); r.err == nil {
			r.err = unix.SchedGetaffinity(0, &r.set)
		}
		r.cores = Cores()
		got <- r
	}()
	r := <-got
	if r.err != nil || r.set.Count() != 1 || !r.set.IsSet(want) || !slices.Equal(r.cores, cores) {
		t.Errorf("pinned to core %d: %v, mask of %d cores, process %v, want %v", want, r.err, r.set.Count(), r.cores, cores)
	}
	cores[0] = -1
	if Cores()[0] == -1 {
		t.Error("the list can be changed by its readers")
	}
}

// A core that does not exist is an error.
func TestPinNowhere(t *testing.T) {
	got := make(chan error)
	go func() {
		runtime.LockOSThread()
		got <- Pin(1023)
	}()
	if err := <-got; err == nil && !slices.Contains(Cores(), 1023) {
		t.Error("pinned to core 1023, which the process does not have")
	}
}
