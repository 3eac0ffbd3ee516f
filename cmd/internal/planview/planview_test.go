package planview

import (
	"slices"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/solver/workload"
)

// A bucket that a workload lists and the plan lacks is told; a number to choose is no list.
func TestLeftOut(t *testing.T) {
	p := &planir.Plan{}
	p.Program.Programs = []planir.PhaseProgram{{Phase: "decode", Rows: 1}, {Phase: "prefill", Rows: 16},
		{Phase: "decode", Rows: 32}}
	for _, x := range []struct {
		listed workload.Rows
		want   []int
	}{
		{workload.Rows{16}, []int{}},
		{workload.Rows{16, 32, 64}, []int{32, 64}},
		{workload.AtMost(4), []int{}},
		{nil, []int{}},
	} {
		if got := LeftOut(x.listed, p); !slices.Equal(got, x.want) {
			t.Errorf("%v: %v, want %v", x.listed, got, x.want)
		}
	}
}
