package emit

import (
	"bytes"
	"testing"

	"github.com/hetc/hetc/planir"
)

// fullReport is a report with a value in every field.
var fullReport = Report{
	Schema: reportSchema,
	Target: &planir.Target{
		SoC:       "phone",
		Fallbacks: []planir.Fallback{{Node: "layers.qkv", Rows: 64, From: "npu", Reason: "no"}},
	},
	Compilers: []ReportCompiler{{
		Proc:    "npu",
		Driver:  "qnn",
		Version: "QNN 1",
		Token:   "v2",
		Options: map[string]string{"opt": "3"},
	}},
	Graphs: []ReportGraph{{
		ReportItem: ReportItem{"graph/0001.000", 7, "ab"},
		Name:       "npu/layers.qkv@64",
		Proc:       "npu",
		Ops:        []string{"norm[1,2]"},
		Rows:       1,
		Facts:      map[string]int64{"spill_bytes": 3},
		Tried:      "graph/0001.000",
		Errors:     &ReportErrors{1e-3, 1e-2, 1e-3, 1e-2},
	}},
	Bounds:    boundsText,
	Unchecked: []string{"never loaded on a device"},
}

// badReports are texts that are no report.
var badReports = []string{
	"",
	"{}",
	"null",
	`{"schema":"hetc.npu-report/1"}`,
	`{"schema":"hetc.npu-report/1","compilers":null,"graphs":null,"bounds":"","not_checked":null} `,
}

// A text that is incomplete or not in canonical form is no report.
func TestDecodeReportRefuses(t *testing.T) {
	for _, text := range badReports {
		if _, err := DecodeReport([]byte(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

// FuzzDecodeReport refuses a text, or finds a report with one canonical form that can be shown on a terminal.
func FuzzDecodeReport(f *testing.F) {
	for _, report := range []*Report{{Schema: reportSchema}, &fullReport} {
		text, err := report.encode()
		if err != nil {
			f.Fatal(err)
		}
		if _, err := DecodeReport(text); err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, text := range badReports {
		f.Add([]byte(text))
	}

	f.Fuzz(func(t *testing.T, text []byte) {
		report, err := DecodeReport(text)
		if err != nil {
			return
		}
		again, err := report.encode()
		if err != nil || !bytes.Equal(again, text) {
			t.Fatalf("%q is written as %q (%v)", text, again, err)
		}
		for _, c := range text {
			if c < ' ' || c > '~' {
				t.Fatalf("%q has characters that a terminal acts on", text)
			}
		}
	})
}
