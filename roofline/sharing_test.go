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

// Products on a GPU that are done before the NPU beside it has set up do not show what both can read together: then it is what streams read.
func TestSharingThatProductsDoNotShow(t *testing.T) {
	s := openSoC(t, "apple-m2-max")
	joint, _ := s.JointGBps(gpuAndNPU...)
	for _, x := range []struct {
		name      string
		cv        float64
		seeds     uint64
		tolerance float64
	}{{"exact", 0, 1, 1e-3}, {"noise of 2 %", 0.02, 10, 0.1}} {
		t.Run(x.name, func(t *testing.T) {
			for seed := range x.seeds {
				n := noise{rand.New(rand.NewPCG(5, seed)), x.cv, 9}
				set := record.NewSet(header(t, s))
				put := func(m record.Measurement, ns float64) {
					m.Samples = n.samples(ns)
					add(t, set, m)
				}
				for i, proc := range gpuAndNPU {
					other := gpuAndNPU[1-i]
					own, theirs := s.Processor(proc).BandwidthGBps, s.Processor(other).BandwidthGBps
					put(record.Measurement{Kind: record.Bandwidth, Proc: proc, Bytes: 1 << 28}, (1<<28)/own)
					put(record.Measurement{Kind: record.Bandwidth, Proc: proc, Bytes: 1 << 28, Concurrent: []record.Partner{{Proc: other}}}, (1<<28)/(own/(own+theirs)*joint))
					for _, cols := range []int{640, 1280, 2560, 3840, 5120} {
						for _, rows := range []int{1, 16, 128} {
							o := matmul(rows, 2560, cols, op.A8TQ4B32)
							ns, err := sim.NS(s, proc, o)
							if err != nil {
								t.Fatal(err)
							}
							put(record.Measurement{Kind: record.Op, Proc: proc, Op: &o, Layout: "n32"}, float64(ns))
						}
						o := matmul(1, 2560, cols, op.A8TQ4B32)
						put(record.Measurement{Kind: record.Op, Proc: proc, Op: &o, Layout: "n32", Concurrent: []record.Partner{{Proc: other, Op: &o, Layout: "n32"}}}, beside(t, s, proc, o, other, o))
					}
				}
				c, err := Fit(s, set)
				if err != nil {
					t.Fatal(err)
				}
				at := slices.IndexFunc(c.Sharing, func(x Sharing) bool { return slices.Equal(x.Procs, gpuAndNPU) })
				if got := c.Sharing[at].BytesPerNS; math.Abs(got/joint-1) > x.tolerance {
					t.Errorf("seed %d: gpu and npu read %.1f bytes/ns together, want %g", seed, got, joint)
				}
			}
		})
	}
}
