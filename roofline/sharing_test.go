package roofline

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver/sim"
)

// Products on a GPU that are done before the NPU beside it has set up do not show what both can read together: then it
// is what streams read.
func TestSharingThatProductsDoNotShow(t *testing.T) {
	soc := openSoC(t, "apple-m2-max")
	joint, _ := soc.JointGBps(gpuAndNPU...)
	for _, test := range []struct {
		name      string
		cv        float64
		seeds     uint64
		tolerance float64
	}{{"exact", 0, 1, 1e-3}, {"noise of 2 %", 0.02, 10, 0.1}} {
		t.Run(test.name, func(t *testing.T) {
			for seed := range test.seeds {
				n := noise{rand.New(rand.NewPCG(5, seed)), test.cv, 9}
				set := record.NewSet(header(t, soc))
				put := func(measured record.Measurement, ns float64) {
					measured.Samples = n.samples(ns)
					add(t, set, measured)
				}
				for i, proc := range gpuAndNPU {
					other := gpuAndNPU[1-i]
					own, theirs := soc.Processor(proc).BandwidthGBps, soc.Processor(other).BandwidthGBps
					put(record.Measurement{Kind: record.Bandwidth, Proc: proc, Bytes: 1 << 28}, (1<<28)/own)
					put(record.Measurement{Kind: record.Bandwidth, Proc: proc, Bytes: 1 << 28,
						Concurrent: []record.Partner{{Proc: other}}}, (1<<28)/(own/(own+theirs)*joint))
					for _, cols := range []int{640, 1280, 2560, 3840, 5120} {
						for _, rows := range []int{1, 16, 128} {
							operator := matmul(rows, 2560, cols, op.A8TQ4B32)
							ns, err := sim.NS(soc, proc, operator)
							if err != nil {
								t.Fatal(err)
							}
							put(record.Measurement{Kind: record.Op, Proc: proc, Op: &operator, Layout: "n32"},
								float64(ns))
						}
						o := matmul(1, 2560, cols, op.A8TQ4B32)
						put(record.Measurement{Kind: record.Op, Proc: proc, Op: &o, Layout: "n32",
							Concurrent: []record.Partner{{Proc: other, Op: &o, Layout: "n32"}}},
							beside(t, soc, proc, o, other, o))
					}
				}
				costs, err := Fit(soc, set)
				if err != nil {
					t.Fatal(err)
				}
				at := slices.IndexFunc(costs.Sharing, func(x Sharing) bool { return slices.Equal(x.Procs, gpuAndNPU) })
				if got := costs.Sharing[at].BytesPerNS; math.Abs(got/joint-1) > test.tolerance {
					t.Errorf("seed %d: gpu and npu read %.1f bytes/ns together, want %g", seed, got, joint)
				}
			}
		})
	}
}

// Products that compute for longer than they read do not show how long they read: then it is as long as a stream takes,
// whatever the fit makes of what single tiles leave over.
func TestReadingThatProductsDoNotShow(t *testing.T) {
	soc := openSoC(t, "snapdragon-8gen1")
	set := record.NewSet(header(t, soc))
	proc := soc.Processor("cpu")
	add(t, set, record.Measurement{Kind: record.Bandwidth, Proc: "cpu", Bytes: 1 << 28,
		Samples: []float64{(1 << 28) / proc.BandwidthGBps}})
	for _, test := range []struct {
		depth int
		cols  []int
	}{{1024, []int{2048, 3072, 16384}}, {2048, []int{32, 512, 1024, 2048, 3072, 4096, 8192, 16384}},
		{4096, []int{2048}}, {8192, []int{32, 512, 1024, 2048}}} {
		for _, cols := range test.cols {
			for _, rows := range []int{1, 2, 3, 4, 8, 16, 32, 64, 128} {
				if rows > 1 && rows < 128 && (cols != 2048 || test.depth == 4096) {
					continue
				}
				operator := matmul(rows, test.depth, cols, op.A8TQ4B32)
				ns, err := sim.NS(soc, "cpu", operator)
				if err != nil {
					t.Fatal(err)
				}
				add(t, set, record.Measurement{Kind: record.Op, Proc: "cpu", Op: &operator, Layout: "n32",
					Samples: []float64{float64(ns)}, Cold: true})
			}
		}
	}
	costs, err := Fit(soc, set)
	if err != nil {
		t.Fatal(err)
	}
	o := matmul(1, 2048, 4096, op.A8TQ4B32)
	got, err := costs.Phase(Load{Proc: "cpu", Op: o, Cold: true})
	if err != nil {
		t.Fatal(err)
	}
	if want := float64(o.Bytes()) / proc.BandwidthGBps; math.Abs(got.MemoryNS/want-1) > 0.01 {
		t.Errorf("%s reads for %.0f ns, want %.0f", o.Key(), got.MemoryNS, want)
	}
}

// A kernel that waits for each line of memory slows down beside a reader, which the joint rate does not explain: what
// parts of one operator lose beside each other holds for parts of other sizes.
func TestSharingOfAlikeParts(t *testing.T) {
	soc := openSoC(t, "apple-m2-max")
	fitted := func(beyond float64) *Costs {
		set := record.NewSet(header(t, soc))
		for i, proc := range gpuAndNPU {
			other := gpuAndNPU[1-i]
			for _, cols := range []int{10240, 20480, 40960, 81920} {
				operator := matmul(1, 2560, cols, op.A8TQ4B32)
				alone, err := sim.NS(soc, proc, operator)
				if err != nil {
					t.Fatal(err)
				}
				together := beside(t, soc, proc, operator, other, operator)
				if proc == "gpu" {
					together *= beyond
				}
				add(t, set, record.Measurement{Kind: record.Op, Proc: proc, Op: &operator, Layout: "n32",
					Samples: []float64{float64(alone)}})
				add(t, set, record.Measurement{Kind: record.Op, Proc: proc, Op: &operator, Layout: "n32",
					Concurrent: []record.Partner{{Proc: other, Op: &operator, Layout: "n32"}},
					Samples:    []float64{together}})
			}
		}
		costs, err := Fit(soc, set)
		if err != nil {
			t.Fatal(err)
		}
		return costs
	}
	slow := func(costs *Costs) float64 {
		o := matmul(1, 2560, 61440, op.A8TQ4B32)
		factors, _, err := costs.Concurrent(Load{Proc: "gpu", Op: o}, Load{Proc: "npu", Op: o})
		if err != nil {
			t.Fatal(err)
		}
		return factors[0]
	}
	law, other := fitted(1), fitted(1.5)
	at := slices.IndexFunc(law.Sharing, func(x Sharing) bool { return slices.Equal(x.Procs, gpuAndNPU) })
	if alike := law.Sharing[at].Alike; len(alike) > 0 {
		t.Errorf("the law explains all, and %+v beside", alike)
	}
	if alike := other.Sharing[at].Alike; len(alike) != 1 || alike[0].Proc != "gpu" || alike[0].Rows != 1 {
		t.Errorf("beside the law %+v, want the gpu's single rows", alike)
	}
	// The NPU is done before the GPU, which then goes on alone.
	if got := slow(other) / slow(law); got < 1.2 || got > 1.5 {
		t.Errorf("parts that are not measured slow down %.2f times as much as by the law alone, want 1.2..1.5", got)
	}
}
