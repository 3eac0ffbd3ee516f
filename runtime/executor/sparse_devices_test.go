package executor_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	qnncompiler "github.com/hetc/hetc/emit/compile/qnn"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/qnn"
	"github.com/hetc/hetc/runtime/executor"
)

// TestMain also is the processes of Qualcomm's compiler and emulator, which run in one of their own.
func TestMain(m *testing.M) {
	work := map[bool]func() error{}
	work[qnn.Worker(os.Args[1:])] = qnn.Work
	work[qnncompiler.Worker(os.Args[1:])] = func() error { return qnncompiler.Work(".", os.Stdin) }
	if work := work[true]; work != nil {
		if err := work(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	m.Run()
}

// withBuckets has the estimates of a calibration's plan choose among pairs of scales.
func withBuckets(p *planir.Plan, buckets int) {
	p.Attention.Buckets = buckets
	for i := range p.Program.Graphs {
		for j := range p.Program.Graphs[i].Graph.Nodes {
			if node := &p.Program.Graphs[i].Graph.Nodes[j]; node.Op.Kind == op.Estimate {
				node.Op.Buckets = buckets
			}
		}
	}
}

// testEstimatesOn compares sparse attention whose scores a device estimates, beside the host, with what the host
// computes alone: prompts in one call, in calls that do not fill their program, and in chunks, with caches of every type
// that the device reads. Logits may differ by a share of the largest.
func testEstimatesOn(t *testing.T, device planir.Proc, options executor.Options, share float64) {
	first, _ := cores(t)
	m, err := models.Open("../../testdata/arch/llama-plain")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	ids := readLogits(t, "../../testdata/arch/llama-plain/logits.safetensors")[130].ids
	cal := attentive(t, m, 0.3)
	rows, host := []int{1, 16, 64}, proc("a", first, "")
	for _, kv := range device.KV {
		for _, buckets := range []int{0, 9} {
			plan := func(procs []planir.Proc, f layoutOf) *planir.Plan {
				p := sparsePlan(t, m, cal, procs, rows, rows[1:], 130, 8, kv, f)
				withBuckets(p, buckets)
				return p
			}
			alone := machineWith(t, m, plan([]planir.Proc{host}, nil), cal, executor.Options{})
			beside := plan([]planir.Proc{host, device}, byStages)
			estimates := 0
			for i := range beside.Program.Graphs {
				if graph := &beside.Program.Graphs[i]; graph.Proc == device.Name && graph.Graph.Estimate() != nil {
					estimates++
				}
			}
			if estimates == 0 {
				t.Fatalf("no graph of %q estimates", device.Name)
			}
			shared := machineWith(t, m, beside, cal, options,
				append(bothCompilers(), qnncompiler.New(qnncompiler.Options{}))...)
			for _, chunks := range [][]int{nil, {5, 1, 20}, {64, 40, 26}} {
				want := allLogits(t, alone, ids, chunks...)
				got := allLogits(t, shared, ids, chunks...)
				size := maxDiff(want, make([]float32, len(want)))
				// Kernels round scores in different orders, and so may select either of two nearly equal positions.
				if difference := maxDiff(got, want); difference > share*size {
					t.Errorf("cache %s, %d buckets, chunks %v: logits differ by %g, of %g at most", kv, buckets, chunks, difference, size)
				}
			}
			shared.Close()
			alone.Close()
		}
	}
}

// Where ONNX Runtime estimates the scores, logits are the host's.
func TestSparseAttentionEstimatedByORT(t *testing.T) {
	needORT(t)
	first, second := cores(t)
	for name, sel := range map[string]string{"the host's core": first, "another core": second, "both cores": first + "-" + second} {
		t.Run(name, func(t *testing.T) { testEstimatesOn(t, ortProc(t, "b", sel), withORT(), 0.02) })
	}
}

// Where devices of OpenCL estimate the scores in the host's memory, logits are the host's.
func TestSparseAttentionEstimatedByOpenCL(t *testing.T) {
	for _, device := range openclProcs(t, "b", nil) {
		if device.OwnMemory { // rule P003
			continue
		}
		t.Run(device.Select, func(t *testing.T) { testEstimatesOn(t, device, withOpenCL(), 0.02) })
	}
}

// Where graphs that Qualcomm's compiler made estimate the scores in the vendor's emulator, logits are the host's but for
// positions that are equal on the products' grid of 16 bits.
func TestSparseAttentionEstimatedByQNN(t *testing.T) {
	require.Slow(t)
	testEstimatesOn(t, qnnProc(t, "b"), executor.Options{Drivers: []driver.Driver{host.New(), qnn.New()}}, 0.08)
}

// qnnProc is what a plan says of the emulator of Qualcomm's NPU; without it the test is skipped.
func qnnProc(t testing.TB, name string) planir.Proc {
	t.Helper()
	require.Deps()
	if _, err := ortapi.FindQNN(""); err != nil {
		require.Skip(t, qnn.Name, err)
	}
	options := map[string]string{"soc_model": "57", "htp_arch": "75", "vtcm_mb": "8"}
	p, err := qnn.New().Open(t.Context(), driver.Config{Select: "emulator", Options: options})
	if err != nil {
		require.Skip(t, qnn.Name, err)
	}
	proc := planir.Proc{Name: name, Kind: "npu", Driver: qnn.Name, Select: "emulator", Options: options,
		Set: p.Capabilities().Offered()}
	slices.Sort(proc.Kinds)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return proc
}
