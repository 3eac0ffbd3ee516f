package host

import (
	"encoding/json"
	"runtime"
	"testing"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// sharedCores returns one core for each worker. Workers share the cores that the process may use.
func sharedCores(workers int) []int {
	free := affinity.Cores()
	cores := make([]int, workers)
	for i := range cores {
		cores[i] = free[i%len(free)]
	}
	return cores
}

// testProcessor is a processor of these cores, not attached yet, which is closed with the test.
func testProcessor(t *testing.T, cores []int, set *kernel.Set) *processor {
	t.Helper()
	proc := newProcessor(cores, set)
	t.Cleanup(func() {
		if err := proc.Close(); err != nil {
			t.Error(err)
		}
	})
	return proc
}

// onAttachedThread attaches the processor to a new thread and calls work there.
func onAttachedThread(proc *processor, work func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: Attach pins the thread
		err := proc.Attach()
		if err == nil {
			err = work()
		}
		done <- err
	}()
	return <-done
}

// testArtifact is what a processor loads the graph from.
func testArtifact(t *testing.T, graph op.Graph) driver.Artifact {
	t.Helper()
	code, err := json.Marshal(&graph)
	if err != nil {
		t.Fatal(err)
	}
	return driver.Artifact{Driver: Name, Code: code}
}

// testMemory is aligned memory of zeros, which is freed with the test.
func testMemory(t *testing.T, bytes int64) []byte {
	t.Helper()
	region, err := mem.Alloc(int(bytes), align)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { region.Close() })
	return region.Bytes()[:bytes]
}

// blankWeights are weights of zeros for every weight of the graph. Static scales are 1, as zero is refused.
func blankWeights(t *testing.T, graph op.Graph) driver.Weights {
	t.Helper()
	var weights driver.Weights
	for _, spec := range graph.Weights {
		size, err := pack.Bytes(pack.Expert(spec))
		if err != nil {
			t.Fatal(err)
		}

		stride := (size + align - 1) / align * align
		bytes := stride*int64(max(1, spec.Experts)-1) + size
		weight := driver.Packed{Spec: spec, Bytes: testMemory(t, bytes)}
		if spec.Experts > 0 {
			weight.Stride = stride
		}
		if spec.Name == "steps" {
			fillOnes(weight.Bytes)
		}
		weights = append(weights, weight)
	}
	return weights
}

// fillOnes fills float32 numbers with 1.
func fillOnes(raw []byte) {
	one := []byte{0, 0, 0x80, 0x3f}
	for i := range raw {
		raw[i] = one[i%len(one)]
	}
}
