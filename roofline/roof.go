package roofline

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
)

// Roof is the share of the hardware's limit that an execution reaches: of the processors' peak rates or of their memory
// bandwidth, whichever bounds it more.
type Roof struct {
	Bound  string  `json:"bound"` // "int8 peak", "f32 peak" or streamBound
	Share  float64 `json:"share"` // time at the bound over time taken; see AboveProbe
	cached bool    // the operands may lie in a cache
}

// streamBound is the bound of operators that read for longer than they compute.
const streamBound = "stream bandwidth"

// MostOfProbe is the largest share of a probed rate that is still taken for that rate: two measurements of one rate
// differ by a few percent.
const MostOfProbe = 1.05

// String is "61 % of int8 peak", "read from a cache" if memory could not have delivered the operands, or "above the
// probed int8 peak".
func (r Roof) String() string {
	switch {
	case r.Share <= MostOfProbe:
		return fmt.Sprintf("%.0f %% of %s", 100*r.Share, r.Bound)
	case r.AboveProbe():
		return "above the probed " + r.Bound
	}
	return "read from a cache"
}

// AboveProbe reports whether the execution was faster than the probed rates allow, and no cache explains it. Then the
// processor was slower while it was probed than while it was measured.
func (r Roof) AboveProbe() bool {
	return r.Share > MostOfProbe && (r.Bound != streamBound || !r.cached)
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
		return Roof{Bound: streamBound, Share: memory / float64(ns), cached: mayBeCached(soc, procs, bytes)}, true
	}
	return Roof{Bound: names[of], Share: compute / float64(ns)}, true
}

// mayBeCached reports whether so many bytes fit the caches of the processors together, as far as their sizes are known.
func mayBeCached(soc *socs.SoC, procs []string, bytes int64) bool {
	host := !slices.ContainsFunc(procs, func(name string) bool {
		described := soc.Processor(name)
		return described == nil || described.Kind != socs.KindCPU
	})
	if !host || soc.CPU == nil || len(soc.CPU.Caches) == 0 {
		return true
	}
	var total int64
	for _, cache := range soc.CPU.Caches {
		instances := max(1, soc.CPU.Cores/max(1, len(cache.Cores)))
		total += int64(instances) * cache.Bytes
	}
	return bytes <= total
}
