package executor_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	qnncompiler "github.com/hetc/hetc/emit/compile/qnn"
	"github.com/hetc/hetc/internal/mem"
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

// TestMain runs the tests, or is a process of Qualcomm's compiler or emulator, which have one of their own.
func TestMain(m *testing.M) {
	work := func() error {
		m.Run()
		return nil
	}
	switch {
	case qnn.Worker(os.Args[1:]):
		work = qnn.Work
	case qnncompiler.Worker(os.Args[1:]):
		work = func() error { return qnncompiler.Work(".", os.Stdin) }
	}
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
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
// computes alone. Prompts come in one call, in calls that do not fill their program, and in chunks, with caches of
// every type that the device reads. Scores of the first layer, whose inputs are equal, may differ by off, and logits by
// a share of the largest.
func testEstimatesOn(t *testing.T, device planir.Proc, options executor.Options, off, share float64) {
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
				p := sparsePlan(t, m, cal, sparseSpec{
					procs: procs, rows: rows, sparse: rows[1:], context: 130, block: 8, cache: kv,
					layout: f,
				})
				withBuckets(p, buckets)
				return p
			}
			var wantScores, gotScores firstScores
			options.Observe = gotScores.observe
			observed := executor.Options{Observe: wantScores.observe}
			alone := machineWith(t, m, plan([]planir.Proc{host}, nil), cal, observed)
			beside := plan([]planir.Proc{host, device}, byStages)
			estimates := slices.ContainsFunc(beside.Program.Graphs, func(g planir.Graph) bool {
				return g.Proc == device.Name && g.Graph.Estimate() != nil
			})
			if !estimates {
				t.Fatalf("no graph of %q estimates", device.Name)
			}
			shared := machineWith(t, m, beside, cal, options,
				append(bothCompilers(), qnncompiler.New(qnncompiler.Options{}))...)
			for i, chunks := range [][]int{nil, {5, 1, 20}, {64, 40, 26}} {
				want := allLogits(t, alone, ids, chunks...)
				got := allLogits(t, shared, ids, chunks...)

				what := fmt.Sprintf("cache %s, %d buckets, chunks %v", kv, buckets, chunks)
				if i == 0 {
					scores := len(wantScores.values)
					if d := maxDiff(gotScores.values, wantScores.values); scores == 0 || !(d <= off) {
						t.Errorf("%s: %d scores differ by %g, want at most %g", what, scores, d, off)
					}
				}
				// Kernels round scores in different orders, and so may select either of two nearly equal positions.
				size := maxDiff(want, make([]float32, len(want)))
				if d := maxDiff(got, want); d > share*size {
					t.Errorf("%s: logits differ by %g, of %g at most", what, d, size)
				}
			}
			shared.Close()
			alone.Close()
		}
	}
}

// firstScores are the estimates of the first layer for a prompt that is as long as the context, in calls that all
// select positions.
type firstScores struct {
	pos    int
	values []float32
}

// observe keeps the estimates of a step.
func (f *firstScores) observe(seen executor.Observed) {
	if seen.Layer != 0 || len(seen.Out) == 0 || !strings.HasSuffix(seen.Node, "attention_estimate") {
		return
	}
	scores, err := mem.View[float32](seen.Out[0].Bytes())
	if err != nil {
		panic(err)
	}
	estimate := seen.Graph.Nodes[len(seen.Graph.Nodes)-1].Op
	if f.pos+seen.Rows > estimate.Context {
		return // of another prompt
	}
	for r0 := 0; r0 < seen.Rows; r0 += estimate.Block {
		span := estimate.SpanOf(f.pos+r0, min(estimate.Block, seen.Rows-r0))
		for head := range estimate.Heads {
			if !span.Decided(0.3, 0) {
				at := r0/estimate.Block*seen.Out[0].Stride + head*estimate.Context
				f.values = append(f.values, scores[at+span.Inner:at+span.Block]...)
			}
		}
	}
	f.pos += seen.Rows
}

// Where ONNX Runtime estimates the scores, logits are the host's.
func TestSparseAttentionEstimatedByORT(t *testing.T) {
	needORT(t)
	first, second := cores(t)
	for name, sel := range map[string]string{
		"the host's core": first,
		"another core":    second,
		"both cores":      first + "-" + second,
	} {
		t.Run(name, func(t *testing.T) { testEstimatesOn(t, ortProc(t, "b", sel), withORT(), 1e-5, 0.02) })
	}
}

// Where devices of OpenCL estimate the scores in the host's memory, logits are the host's.
func TestSparseAttentionEstimatedByOpenCL(t *testing.T) {
	for _, device := range openclProcs(t, "b", nil) {
		if device.OwnMemory { // rule P003
			continue
		}
		t.Run(device.Select, func(t *testing.T) { testEstimatesOn(t, device, withOpenCL(), 1e-5, 0.02) })
	}
}

// Where graphs that Qualcomm's compiler made estimate the scores in the vendor's emulator, scores are the host's within
// three steps of the products' grid of 16 bits. Positions whose scores the host has equal may be others then, more
// often with keys of 16 bits. In this model of random weights a single one changes logits by 3 to 6 % of the largest.
func TestSparseAttentionEstimatedByQNN(t *testing.T) {
	require.Slow(t)
	const step = 127 * 127 / 65535. * 8 * 0.05 * 0.05 // heads of 8 columns, and the scales of the calibration
	testEstimatesOn(t, qnnProc(t, "b"), executor.Options{Drivers: []driver.Driver{host.New(), qnn.New()}}, 3*step, 0.08)
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
