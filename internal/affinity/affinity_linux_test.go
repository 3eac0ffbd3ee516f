package affinity

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hetc/hetc/internal/diag"
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

// A core that the process may not use is unavailable, and the way out is not that of a file.
func TestPinRefused(t *testing.T) {
	refused := make(chan error)
	go func() {
		runtime.LockOSThread()
		refused <- Pin(1023)
	}()
	err := <-refused
	if diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(fmt.Sprint(diag.HintsOf(err)), "sched_setaffinity") {
		t.Errorf("got %v of class %v, hints %q", err, diag.ClassOf(err), diag.HintsOf(err))
	}
}

// pinMain has a process pin its main thread and tell which cores it has.
const pinMain = "HETC_TEST_PIN_MAIN"

func init() {
	if os.Getenv(pinMain) == "" {
		return
	}
	var set unix.CPUSet // the main goroutine is on the main thread here
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		panic(err)
	}
	last := 0
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			last = cpu
		}
	}
	if err := Pin(last); err != nil {
		panic(err)
	}
	fmt.Println(Cores())
	os.Exit(0)
}

// The first thread that is pinned may be the main one, before anybody has asked for the process's cores.
func TestPinnedMainThread(t *testing.T) {
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), pinMain+"=1")
	out, err := command.CombinedOutput()
	if want := fmt.Sprintln(Cores()); err != nil || string(out) != want {
		t.Errorf("a process with a pinned main thread has cores %q (%v), want %q", out, err, want)
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
