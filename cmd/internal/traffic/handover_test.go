package traffic

import (
	"runtime"
	"strings"
	"testing"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/socs"
)

// A measurement whose cores were moved is told, and no other.
func TestMovedCoresAreTold(t *testing.T) {
	var told strings.Builder
	ui := &cli.Streams{Tool: "hetc", Err: &told}
	showHandovers(ui, []*Report{
		{Policy: "full", Load: "1"}, // on a simulated machine
		{Policy: "full", Load: "2", Handover: &HandoverReport{Planned: 0.06, Before: 0.05, After: 0.08}},
		{Policy: "fcfs", Load: "3", Handover: &HandoverReport{Planned: 0.06, Before: 0.06, After: 0.26}},
		{Policy: "full", Load: "4", Idle: true, Handover: &HandoverReport{Planned: 0.06, Before: 0.26, After: 0.06}},
		{Policy: "batching", Handover: &HandoverReport{Planned: 0.26, Before: 0.25, After: 0.06}},
	})

	lines := strings.Split(strings.TrimSpace(told.String()), "\n")
	want := []string{
		"load 3, fcfs: a hand-over between cores took 0.06 us before and 0.26 us after",
		"load 4, reactive alone:",
		"batching: a hand-over",
	}
	if len(lines) != len(want) {
		t.Fatalf("told %q, want %d lines", lines, len(want))
	}
	for i, line := range lines {
		if !strings.Contains(line, want[i]) {
			t.Errorf("line %d is %q, want %q", i, line, want[i])
		}
	}
}

// The distance of two cores is measured where the SoC file has one.
func TestGauge(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("one core")
	}
	soc := &socs.SoC{
		Processors: []socs.Processor{
			{Name: "a", Cores: []int{0}},
			{Name: "b", Cores: []int{1}},
			{Name: "npu"},
		},
		Links: []socs.Link{
			{From: "a", To: "npu", HandoverUS: 9},
			{From: "a", To: "b", HandoverUS: 0.1},
		},
	}
	distance, err := newGauge(t.Context(), soc)
	if err != nil {
		t.Skip(err) // the process may not have both cores
	}

	report, err := distance.report(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if report.Planned != 0.1 || report.Before <= 0 || report.After <= 0 || report.After != distance.latest {
		t.Errorf("%+v", report)
	}
}

// A SoC without hand-overs has no gauge, and no gauge has no report.
func TestNoGauge(t *testing.T) {
	for _, soc := range []*socs.SoC{nil, {}} {
		if distance, err := newGauge(t.Context(), soc); distance != nil || err != nil {
			t.Errorf("%+v, %v of a SoC without hand-overs", distance, err)
		}
	}
	if report, err := (*gauge)(nil).report(t.Context()); report != nil || err != nil {
		t.Errorf("%+v, %v of no gauge", report, err)
	}
}
