package opencl

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hetc/hetc/internal/affinity"
)

// libraryThreads are the numbers of the library's threads.
func libraryThreads(t *testing.T) (list []int) {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		name, err := os.ReadFile("/proc/self/task/" + task.Name() + "/comm")
		if err != nil || strings.TrimSpace(string(name)) != threadName {
			continue
		}
		number, err := strconv.Atoi(task.Name())
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, number)
	}
	return list
}

// The library's threads run on the cores of the processor that was used last, and not on that of the thread that submits
// calls to it.
func TestThreadsStayOnTheirCores(t *testing.T) {
	cores := affinity.Cores()
	if len(cores) < 2 {
		t.Skipf("needs two cores, this process may use %d", len(cores))
	}
	implementations(t, func(t *testing.T, library map[string]string) {
		for _, units := range []string{"1", ""} {
			options, want := library, cores
			if units != "" {
				options, want = with(library, optUnits, units), cores[len(cores)-1:]
			}
			p := openFirst(t, options)
			if p.cores == nil {
				t.Skipf("%s is no device of the CPU's cores", p)
			}
			exe, b := addition(t, p, nil)
			if _, err := p.Run(exe, b); err != nil {
				t.Fatal(err)
			}
			sums(t, b)
			threads := libraryThreads(t)
			if len(threads) == 0 {
				t.Error("no thread of the library was found")
			}
			for _, number := range threads {
				var set unix.CPUSet
				if err := unix.SchedGetaffinity(number, &set); errors.Is(err, unix.ESRCH) {
					continue // it has ended
				} else if err != nil {
					t.Fatal(err)
				}
				if set.Count() != len(want) || slices.ContainsFunc(want, func(core int) bool { return !set.IsSet(core) }) {
					t.Errorf("units %q: thread %d of the library may run on %d cores, want %v", units, number, set.Count(),
						want)
				}
			}
		}
	})
}
