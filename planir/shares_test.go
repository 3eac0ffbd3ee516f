package planir_test

import (
	"slices"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// What ShareText writes is read back, and nothing else is read.
func TestParseShares(t *testing.T) {
	for _, decision := range []planir.Decision{
		{Shares: []planir.Share{{Proc: "cpu"}}},
		{Shares: []planir.Share{{Proc: "host:0", PadRows: 64, Form: op.Form("conv 8x8")}}},
		{Axis: planir.AxisCols, Shares: []planir.Share{{Proc: "npu", To: 3072, PadRows: 32, Form: op.Swapped},
			{Proc: "gpu", From: 3072, To: 5632}}},
		{Axis: planir.AxisK, Shares: []planir.Share{{Proc: "k", To: 1}, {Proc: "rows", From: 1, To: 2}}},
	} {
		axis, shares, err := planir.ParseShares(decision.ShareText())
		if err != nil || axis != decision.Axis || !slices.Equal(shares, decision.Shares) {
			t.Errorf("%q: %q %+v %v", decision.ShareText(), axis, shares, err)
		}
	}
	for _, text := range []string{"", "cols npu", "cols npu 1", "cols npu a:b", "npu 1:2", "npu rows many", "npu, "} {
		if axis, shares, err := planir.ParseShares(text); err == nil {
			t.Errorf("%q is read as %q %+v", text, axis, shares)
		}
	}
}
