package kernel

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hetc/hetc/internal/diag"
)

// besideEnv tells a copy of the test that it runs beside another one.
const besideEnv = "HETC_TEST_BESIDE"

// Tiles survive what happens to threads. Goroutines multiply on more threads than there are cores, while others collect
// garbage and stop the world, and this process sends itself the signal by which Go preempts. Another process that
// multiplies meanwhile takes the cores away with tiles of its own. Every product has the same bits.
func TestTilesUnderSignals(t *testing.T) {
	if tilesModelled {
		t.Skip("a model has no state that signals could lose")
	}
	product, want := signalledProduct(t)
	until := time.Now().Add(time.Second)
	if os.Getenv(besideEnv) == "" {
		defer multiplyBeside(t)()
	}

	var wrong, done atomic.Int64
	var workers sync.WaitGroup
	for i := range 2*runtime.NumCPU() + 2 {
		workers.Go(func() {
			if i%2 == 0 { // as a lane's thread
				runtime.LockOSThread()
			}
			for count := 0; count < 3 || time.Now().Before(until); count++ {
				if !slices.Equal(product(), want) {
					wrong.Add(1)
				}
				done.Add(1)
			}
		})
	}
	repeat := func(disturb func()) {
		workers.Go(func() {
			for time.Now().Before(until) {
				disturb()
			}
		})
	}
	repeat(runtime.GC)
	repeat(func() { runtime.ReadMemStats(new(runtime.MemStats)) })
	repeat(func() {
		if err := unix.Kill(os.Getpid(), unix.SIGURG); err != nil {
			t.Error(err)
		}
	})
	workers.Wait()

	if wrong.Load() > 0 {
		t.Errorf("%d of %d products differ", wrong.Load(), done.Load())
	}
}

// signalledProduct returns a product in tiles and what it is to be.
func signalledProduct(t *testing.T) (product func() []float32, want []float32) {
	t.Helper()
	set := tilesSet(t)
	const m, k, n = 40, 515, 64
	random := newValues(plain, 3, nil)
	x, scale := make([]uint8, m*k), make([]float32, m)
	for i := range x {
		x[i] = random.code(1)
	}
	for i := range scale {
		scale[i] = 1 + float32(i)
	}
	w, _ := tiledWeight(newValues(plain, 4, nil), "q8c", k, n)

	want = make([]float32, m*n)
	Portable().MatMulQ8C(Rows(want, n), Quantised{Codes: Rows(x, k), Scale: scale}, w, m, k, n)

	product = func() []float32 {
		y, packed := make([]float32, m*n), make([]byte, PackedBytes(m, k, 0))
		for group := range PackGroups(m) {
			set.PackRows(packed, Rows(x, k), m, k, 0, group)
		}
		rows := PackedRows{Bytes: packed, Scale: scale, M: m, K: k}
		set.PackedQ8C(Rows(y, n), rows, w, make([]byte, PackedScratch(k, 0)), n)
		return y
	}
	return product, want
}

// multiplyBeside starts this test in another process, and returns a function that waits for its end.
func multiplyBeside(t *testing.T) (wait func()) {
	t.Helper()
	beside := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTilesUnderSignals$")
	beside.Env = append(os.Environ(), besideEnv+"=1")
	if err := beside.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := beside.Wait(); err != nil {
			t.Error("the process beside this one:", err)
		}
	}
}

// refusingEnv tells a copy of the test to have the system refuse the state of tiles.
const refusingEnv = "HETC_TEST_REFUSING"

// Where a sandbox refuses the state of tiles, the best set is the one without, and errors say why.
func TestTilesRefusedBySystem(t *testing.T) {
	if tilesModelled || !hasTiles() {
		t.Skip("this CPU has no tiles to refuse")
	}
	if os.Getenv(refusingEnv) == "" {
		refused := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTilesRefusedBySystem$", "-test.v")
		refused.Env = append(os.Environ(), refusingEnv+"=1")
		out, err := refused.CombinedOutput()
		if err != nil {
			t.Errorf("in a sandbox: %v\n%s", err, out)
		}
		if strings.Contains(string(out), "SKIP") {
			t.Skipf("%s", out)
		}
		return
	}

	if err := refuseTiles(unix.EPERM); err != nil {
		t.Skip("this process cannot make a sandbox:", err)
	}
	if best := Best().Name; best != pairSetName {
		t.Errorf("the best set is %s, want %s", best, pairSetName)
	}
	if reason := Refused(); !strings.Contains(reason, "not permitted") {
		t.Errorf("refused because of %q, want the system's reason", reason)
	}
	_, err := ByName("amx")
	if diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), Refused()) {
		t.Errorf("got %v, want class unavailable and the reason", err)
	}
}

// refuseTiles has the system refuse all threads of this process a state of tiles, with an error number.
func refuseTiles(number unix.Errno) error {
	const (
		offsetCall, offsetArgument = 0, 16 // of what a filter looks at: the system call, its first argument
		archReqXCompPerm           = 0x1023
	)
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	unlessEqual := func(value uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: skip, K: value}
	}
	answer := func(value uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value}
	}
	filter := []unix.SockFilter{
		load(offsetCall), unlessEqual(unix.SYS_ARCH_PRCTL, 3),
		load(offsetArgument), unlessEqual(archReqXCompPerm, 1),
		answer(unix.SECCOMP_RET_ERRNO | uint32(number)),
		answer(unix.SECCOMP_RET_ALLOW),
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}

	runtime.LockOSThread() // the thread that gives up privileges is the one that sets the filter
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}
