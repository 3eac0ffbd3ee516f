package kernel

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
