package affinity

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// comm is the name of the calling thread.
func comm(t *testing.T) string {
	t.Helper()
	name, err := os.ReadFile("/proc/thread-self/comm")
	if err != nil {
		t.Skip(err)
	}
	return strings.TrimSpace(string(name))
}

// The thread has the name during the work, also where that fails, and its own afterwards.
func TestNamed(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, failed := comm(t), errors.New("failed")
	for _, want := range []error{nil, failed} {
		err := Named("hetc-affinity-test", func() error {
			if got := comm(t); got != "hetc-affinity-t" { // 15 bytes
				t.Errorf("the thread is called %q", got)
			}
			return want
		})
		if err != want {
			t.Errorf("got error %v, want %v", err, want)
		}
		if got := comm(t); got != before {
			t.Errorf("afterwards the thread is called %q, want %q", got, before)
		}
	}
}

// All threads of a name move to the cores, and no others.
func TestPinNamed(t *testing.T) {
	const name = "hetc-pin-test"
	cores := Cores()
	last := cores[len(cores)-1:]
	type thread struct{ ask, say chan unix.CPUSet }
	start := func(name string) thread {
		started := thread{make(chan unix.CPUSet), make(chan unix.CPUSet)}
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			_ = Named(name, func() error {
				started.say <- unix.CPUSet{}
				for range started.ask {
					var set unix.CPUSet
					if err := unix.SchedGetaffinity(0, &set); err != nil {
						t.Error(err)
					}
					started.say <- set
				}
				return nil
			})
		}()
		<-started.say
		return started
	}
	mine, other := []thread{start(name), start(name)}, start("hetc-other-test")
	for _, to := range [][]int{last, cores} {
		if count, err := PinNamed(name, to); err != nil || count != len(mine) {
			t.Fatalf("pinned %d threads (%v), want %d", count, err, len(mine))
		}
		for i, one := range append(mine, other) {
			want := to
			if i == len(mine) {
				want = cores
			}
			one.ask <- unix.CPUSet{}
			if set := <-one.say; set.Count() != len(want) || !set.IsSet(want[0]) {
				t.Errorf("thread %d may run on %d cores, want %v", i, set.Count(), want)
			}
		}
	}
	for _, one := range append(mine, other) {
		close(one.ask)
	}
	if count, err := PinNamed("hetc-no-such", last); err != nil || count != 0 {
		t.Errorf("pinned %d threads (%v) of a name that no thread has", count, err)
	}
}
