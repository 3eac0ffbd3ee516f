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

// Tiles survive what happens to threads: goroutines multiply on more threads than there are cores, while others collect
// garbage and stop the world, and this process sends itself the signal by which Go preempts. Another process that
// multiplies meanwhile takes the cores away with tiles of its own. Every product has the same bits.
func TestTilesUnderSignals(t *testing.T) {
	if tilesModelled {
		t.Skip("a model has no state that signals could lose")
	}
	set := tilesSet(t)
	const m, k, n = 40, 515, 64
	v := newValues(plain, 3, nil)
	x, scale := make([]uint8, m*k), make([]float32, m)
	for i := range x {
		x[i] = v.code(1)
	}
	for i := range scale {
		scale[i] = 1 + float32(i)
	}
	w, _ := tiledWeight(newValues(plain, 4, nil), "q8c", k, n)
	product := func() []float32 {
		y, packed := make([]float32, m*n), make([]byte, PackedBytes(m, k, 0))
		for g := range PackGroups(m) {
			set.PackRows(packed, Rows(x, k), m, k, 0, g)
		}
		set.PackedQ8C(Rows(y, n), PackedRows{Bytes: packed, Scale: scale, M: m, K: k}, w,
			make([]byte, PackedScratch(k, 0)), n)
		return y
	}
	want := make([]float32, m*n)
	Portable().MatMulQ8C(Rows(want, n), Quantised{Codes: Rows(x, k), Scale: scale}, w, m, k, n)
	until := time.Now().Add(time.Second)
	if os.Getenv(besideEnv) == "" {
		beside := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTilesUnderSignals$")
		beside.Env = append(os.Environ(), besideEnv+"=1")
		if err := beside.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := beside.Wait(); err != nil {
				t.Error("the process beside this one:", err)
			}
		}()
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
	workers.Go(func() {
		for time.Now().Before(until) {
			runtime.GC()
		}
	})
	workers.Go(func() {
		for time.Now().Before(until) {
			if err := unix.Kill(os.Getpid(), unix.SIGURG); err != nil {
				t.Error(err)
				return
			}
		}
	})
	workers.Go(func() {
		var stats runtime.MemStats
		for time.Now().Before(until) {
			runtime.ReadMemStats(&stats)
		}
	})
	workers.Wait()
	if wrong.Load() > 0 {
		t.Errorf("%d of %d products differ", wrong.Load(), done.Load())
	}
}
