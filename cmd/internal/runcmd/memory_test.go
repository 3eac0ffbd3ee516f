package runcmd

import (
	"math"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

func TestEnoughMemory(t *testing.T) {
	small := &planir.Plan{}
	small.Program.Cache = planir.Cache{Type: op.F32, Layers: 1, KVHeads: 1, MaxContext: 1 << 10, HeadDim: 64} // 512 KiB
	huge := &planir.Plan{}
	for range 100 {
		huge.Program.Buffers = append(huge.Program.Buffers,
			planir.Buffer{Type: op.F32, Rows: math.MaxInt32, Cols: math.MaxInt32})
	}
	for _, c := range []struct {
		plans      []*planir.Plan
		held, free int64
		ok         bool
	}{
		{[]*planir.Plan{small}, 0, 1 << 20, true},
		{[]*planir.Plan{small, small, small}, 0, 1 << 20, false},
		{[]*planir.Plan{small}, 1 << 20, 1 << 20, false},
		{[]*planir.Plan{small}, 1 << 40, 0, true}, // unknown
		{[]*planir.Plan{huge}, math.MaxInt64, math.MaxInt64, false},
		{nil, 1, 1 << 30, true},
	} {
		err := EnoughMemory(c.plans, c.held, c.free)
		if c.ok != (err == nil) {
			t.Errorf("%d plans, %d bytes held, %d free: got %v", len(c.plans), c.held, c.free, err)
		}
		if err != nil && (diag.ClassOf(err) != diag.ClassUnavailable || len(diag.HintsOf(err)) == 0 ||
			!strings.Contains(err.Error(), "are free")) {
			t.Errorf("%v: class %v, hints %q", err, diag.ClassOf(err), diag.HintsOf(err))
		}
	}
}

// A process without kernels that its CPU is fit for is told so where a bundle is for another machine.
func TestAdviceOnRefusedKernels(t *testing.T) {
	if got := refusedKernels(""); got != "" {
		t.Errorf("nothing is refused, and the advice is %q", got)
	}
	const reason = "the system keeps no state"
	if got := refusedKernels(reason); !strings.Contains(got, reason) {
		t.Errorf("the advice is %q, want one with the reason", got)
	}
}
