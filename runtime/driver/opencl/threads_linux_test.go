package opencl

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/require"
)

// libraryThreads returns the numbers of the library's threads.
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

// ofCores fails unless the library has threads, and each of them may run on these cores alone.
func ofCores(t *testing.T, want []int) {
	t.Helper()
	threads := libraryThreads(t)
	if len(threads) == 0 {
		t.Error("no thread of the library was found")
	}
	for _, number := range threads {
		var set unix.CPUSet
		err := unix.SchedGetaffinity(number, &set)
		if errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		if set.Count() != len(want) || slices.ContainsFunc(want, func(core int) bool { return !set.IsSet(core) }) {
			t.Errorf("thread %d of the library may run on %d cores, want %v", number, set.Count(), want)
		}
	}
}

// The library's threads run on the cores of the processor that was used last, and not on that of the thread that
// submits calls to it.
func TestThreadsStayOnTheirCores(t *testing.T) {
	cores := affinity.Cores()
	if len(cores) < 2 {
		t.Skipf("needs two cores, this process may use %d", len(cores))
	}
	implementations(t, func(t *testing.T, library map[string]string) {
		for _, c := range []struct {
			options map[string]string
			want    []int
		}{
			{options: with(library, optUnits, "1"), want: cores[len(cores)-1:]},
			{options: library, want: cores},
		} {
			p := openFirst(t, c.options)
			if p.cores == nil {
				t.Skipf("%s is no device of the CPU's cores", p)
			}
			adds(t, p)
			ofCores(t, c.want)
		}
	})
}

// Threads that a library starts when a device is opened are moved too, although those of another library are on the
// cores of the device already.
func TestThreadsOfTwoLibraries(t *testing.T) {
	cores := affinity.Cores()
	if len(cores) < 2 {
		t.Skipf("needs two cores, this process may use %d", len(cores))
	}
	require.Deps()
	file := filepath.Join(os.Getenv(native.EnvDir), clapi.IntelFolder, clapi.IntelLibrary)
	if _, err := os.Stat(file); err != nil {
		t.Skip("needs two implementations of OpenCL: make deps-opencl")
	}
	// The system's implementation starts its threads when it is asked for devices, which no test before this one has
	// done where it runs by itself.
	for _, library := range []map[string]string{{optLibrary: file}, nil} {
		p := openFirst(t, with(library, optUnits, "1"))
		if p.cores == nil {
			t.Skipf("%s is no device of the CPU's cores", p)
		}
		adds(t, p)
		ofCores(t, cores[len(cores)-1:])
	}
}
