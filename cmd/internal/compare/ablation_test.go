package compare

import (
	"math"
	"strings"
	"testing"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/workload"
)

// TestShortGroups writes equal groups once.
func TestShortGroups(t *testing.T) {
	for groups, want := range map[string]string{
		"-": "-", "4x96": "4x96", "1x32,1x32,1x32": "3 of 1x32", "2x64,4x32,4x32,1x32": "2x64, 2 of 4x32, 1x32",
	} {
		if got := ShortGroups(groups); got != want {
			t.Errorf("groups %q are %q, want %q", groups, got, want)
		}
	}
}

// TestTiersIn counts the launches of static processors in one program, in every layer, and takes the mean of shares.
func TestTiersIn(t *testing.T) {
	lanes := []planir.Lane{{Proc: "npu", Steps: make([]planir.Step, 3)}, {Proc: "cpu", Steps: make([]planir.Step, 5)}}
	plan := &planir.Plan{Procs: []planir.Proc{{Name: "npu"}, {Name: "cpu"}},
		Experts: []planir.ExpertTiers{{Rows: 64, Experts: 8,
			Groups: []planir.ExpertGroup{{Slots: 2, Rows: 16}, {Slots: 1, Rows: 8}},
			Layers: []planir.ExpertLayer{{Moved: 0.5, Overflow: 0.1}, {Moved: 0.7, Overflow: 0.2}}}}}
	plan.Procs[0].StaticShapes = true
	for _, rows := range []int{1, 64} {
		plan.Program.Programs = append(plan.Program.Programs, planir.PhaseProgram{Rows: rows,
			Sections: []planir.Section{{Layers: 2, Lanes: lanes}, {Lanes: lanes[:1]}}})
	}
	got := TiersIn(plan, 64)
	if got.Slots != 3 || got.Launches != 3*2+3 || got.Groups != "2x16,1x8" || math.Abs(got.Moved-60) > 1e-9 ||
		math.Abs(got.Overflow-15) > 1e-9 {
		t.Errorf("%+v, want 3 slots in 2x16,1x8, 9 launches, 60 %% moved and 15 %% beyond", got)
	}
	if got := TiersIn(plan, 1); got.Groups != "-" || got.Slots != 0 || got.Launches != 9 {
		t.Errorf("%+v of a program without tiers", got)
	}
}

// TestAblation executes every row of the ablation with a small model: what a row is called is what its plan is, times
// are as predicted, and no rule is faster than solve.
func TestAblation(t *testing.T) {
	soc, err := socs.Parse("small-npu.yaml", []byte(smallNPU))
	if err != nil {
		t.Fatal(err)
	}
	for i := range soc.Processors { // zeros for weights say nothing of which expert is in a slot
		soc.Processors[i].Options = map[string]string{"compute": "false"}
	}
	model, err := models.Open("../../../testdata/arch/olmoe-plain")
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	const chunk = 128
	loads, err := workload.Synthetic(model, "zipf:1", chunk, 16, 1)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := ablate(t.Context(), soc, model, loads, op.A32W32, chunk)
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]ablatedRow{}
	for _, row := range rows {
		by[row.Plan] = row
		if off := float64(row.ExecutedNS)/float64(row.PredictedNS) - 1; math.Abs(off) > 0.05 {
			t.Errorf("%s takes %d ns, predicted %d", row.Plan, row.ExecutedNS, row.PredictedNS)
		}
		if row.Ratio > 1.02 || row.Ratio != float64(rows[0].ExecutedNS)/float64(row.ExecutedNS) {
			t.Errorf("solve takes %.3f times as long as %s", row.Ratio, row.Plan)
		}
	}
	if len(by) != len(TierRows) {
		t.Fatalf("%d rows, want %d: %v", len(by), len(TierRows), by)
	}
	shapedAsCalled(t, by, model.Experts)
	table := ablationTable(rows)
	if strings.Count(table, "\n| small-npu |") != len(rows) {
		t.Errorf("a table of %d rows:\n%s", len(rows), table)
	}
}

// shapedAsCalled compares the tiers of rows with their names.
func shapedAsCalled(t *testing.T, by map[string]ablatedRow, experts int) {
	t.Helper()
	capacities := map[string]bool{}
	for group := range strings.SplitSeq(by["one tier"].Groups, ",") {
		_, rows, _ := strings.Cut(group, "x")
		capacities[rows] = true
	}
	if by["everything dynamic"].Slots != 0 || by["one tier"].Slots == 0 || len(capacities) != 1 {
		t.Errorf("dynamic experts: %+v; one tier: %+v", by["everything dynamic"], by["one tier"])
	}
	for _, row := range []string{"paper's tiers", "without residency"} {
		if by[row].Slots != experts {
			t.Errorf("%s: %d slots, want one for each of %d experts", row, by[row].Slots, experts)
		}
	}
	for group := range strings.SplitSeq(by["without grouping"].Groups, ",") {
		if !strings.HasPrefix(group, "1x") {
			t.Errorf("without grouping: %s", by["without grouping"].Groups)
		}
	}
}
