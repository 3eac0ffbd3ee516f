package roofline

import (
	"fmt"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
)

// Roof is the share of the hardware's limit that an execution reaches: of the processors' peak rates or of their memory
// bandwidth, whichever bounds it more.
type Roof struct {
	Bound string  `json:"bound"` // "int8 peak", "f32 peak" or streamBound
	Share float64 `json:"share"` // time at the bound over time taken; above 1 where operands lay in a cache
}

// streamBound is the bound of operators that read for longer than they compute.
const streamBound = "stream bandwidth"

// MostOfStream is the largest share of the probed bandwidth that is still taken for reading memory: two measurements of
// one bandwidth differ by a few percent. What is read faster comes from a cache.
const MostOfStream = 1.05

// String is "61 % of int8 peak", or "read from a cache" where memory could not have delivered the operands.
func (r Roof) String() string {
	if r.Bound == streamBound && r.Share > MostOfStream {
		return "read from a cache"
	}
	return fmt.Sprintf("%.0f %% of %s", 100*r.Share, r.Bound)
}

// RoofOf compares ns nanoseconds, in which procs together execute ops side by side, with the peaks and the joint
// bandwidth that the SoC states for these processors. It counts the arithmetic of matrix products and attentions, and
// the reading of weights and caches; activations and the other operators' operands lie in caches. It returns false if
// nothing counts, or if the SoC does not state the numbers.
func RoofOf(soc *socs.SoC, procs []string, ops []op.Op, ns int64) (Roof, bool) {
	joint, ok := soc.JointGBps(procs...)
	if !ok || ns <= 0 {
		return Roof{}, false
	}
	names := map[op.Type]string{op.I8: "int8 peak", op.F32: "f32 peak"}
	times := map[op.Type]float64{} // at the peak of the type
	bytes := int64(0)
	for _, operator := range ops {
		arithmetic := op.F32
		switch {
		case operator.HasScheme():
			if operator.Scheme.QuantisedRows() {
				arithmetic = op.I8
			}
			experts := 1
			if operator.Experts > 0 {
				experts = min(operator.Rows(), operator.Experts)
			}
			bytes += int64(experts) * op.WeightBytes(operator.Scheme.Weight(), operator.K, operator.N)
		case operator.Kind.ReadsCache():
			bytes += operator.Bytes()
		default:
			continue
		}
		peak := 0.0
		for _, name := range procs {
			described := soc.Processor(name)
			if described == nil || described.PeakGops[string(arithmetic)] == 0 {
				return Roof{}, false
			}
			peak += described.PeakGops[string(arithmetic)]
		}
		times[arithmetic] += float64(operator.Flops()) / peak
	}
	if bytes == 0 {
		return Roof{}, false
	}
	compute, of := times[op.I8]+times[op.F32], op.I8
	if times[op.F32] > times[op.I8] {
		of = op.F32
	}
	if memory := float64(bytes) / joint; memory > compute {
		return Roof{Bound: streamBound, Share: memory / float64(ns)}, true
	}
	return Roof{Bound: names[of], Share: compute / float64(ns)}, true
}
