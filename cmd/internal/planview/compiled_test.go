package planview

import (
	"strings"
	"testing"

	"github.com/hetc/hetc/planir"
)

// Why a length was taken is said in words, with numbers, and that they are no times.
func TestCompiledWords(t *testing.T) {
	list := []planir.Compiled{
		{Node: "layers.attn_out", Proc: "npu", Graphs: []planir.CompiledGraph{
			{Rows: 1, For: []int{1}},
			{Rows: 256, For: []int{250},
				Avoided: []planir.Spill{{Rows: 250, Bytes: 8257536}, {Rows: 254, Bytes: 8388608}}}}},
		{
			Node: "layers.ffn_down", Proc: "npu",
			Graphs: []planir.CompiledGraph{{Rows: 512, For: []int{500, 512}, SpillBytes: 11 << 20}},
		},
	}
	got := CompiledWords(list)
	want := []string{
		"layers.attn_out is computed at 256 rows on npu for 250 rows: that takes the same predicted time, and " +
			"spills less: none there, 7.88 MiB at 250 rows and 8 MiB at 254 rows (spill bytes reported by the " +
			"compiler, not a time).",
		"layers.ffn_down is computed at 512 rows on npu for 500 and 512 rows, where the compiler reports 11 MiB of " +
			"spill (bytes, not a time): no length of the same time is known to spill less.",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if at := CompiledFor(&planir.Plan{Compiled: list}, 250); len(at) != 1 || len(at[0].Graphs) != 1 ||
		at[0].Graphs[0].Rows != 256 {
		t.Errorf("of programs of 250 rows: %+v", at)
	}
}
