package runcmd

import (
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
)

// EnoughMemory refuses, before anything is allocated, plans whose buffers and caches exceed the free
// bytes of memory, 0 for unknown: the system would end the process in the middle instead. Weights that the
// process holds itself, rather than as a mapped file, are given as held.
func EnoughMemory(plans []*planir.Plan, held, free int64) error {
	need := float64(held) // sums of hostile plans stay ordered
	for _, plan := range plans {
		need += float64(plan.Program.Cache.Bytes())
		for i := range plan.Program.Buffers {
			buffer := &plan.Program.Buffers[i]
			need += float64(buffer.Rows) * float64(buffer.Cols) * float64(buffer.Type.Bytes())
		}
	}
	if free > 0 && need > float64(free) {
		return diag.New(diag.ClassUnavailable, "needs %v of memory, and %v are free",
			unit.Bytes(min(need, math.MaxInt64/2)), unit.Bytes(free)).
			WithHint("solve with a smaller context in the workload, or with 8 or 4 bit weights (schemes:), or use a " +
				"machine with more memory")
	}
	return nil
}

// WeightBytes returns the size of a plan's packed weights.
func WeightBytes(p *planir.Plan) int64 {
	var bytes int64
	for _, blob := range p.Program.WeightBlobs() {
		bytes += blob.Size
	}
	return bytes
}
