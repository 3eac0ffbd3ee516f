package emit

import (
	"bytes"
	"testing"

	"github.com/hetc/hetc/planir"
)

// FuzzDecodeReport: whatever a bundle calls its report is refused, or has one canonical form that can be shown.
func FuzzDecodeReport(f *testing.F) {
	full := &Report{
		Schema: reportSchema, Target: &planir.Target{SoC: "phone", Fallbacks: []planir.Fallback{{Node: "layers.qkv", Rows: 64, From: "npu", Reason: "no"}}},
		Compilers: []ReportCompiler{{Proc: "npu", Driver: "qnn", Version: "QNN 1", Token: "v2", Options: map[string]string{"opt": "3"}}},
		Graphs: []ReportGraph{{ReportItem: ReportItem{"graph/0001.000", 7, "ab"}, Name: "npu/layers.qkv@64", Proc: "npu", Ops: []string{"norm[1,2]"}, Rows: 1,
			Facts: map[string]int64{"spill_bytes": 3}, Tried: "graph/0001.000", Errors: &ReportErrors{1e-3, 1e-2, 1e-3, 1e-2}}},
		Bounds: boundsText, Unchecked: []string{"never loaded on a device"},
	}
	for _, r := range []*Report{{Schema: reportSchema}, full} {
		text, err := r.encode()
		if err != nil {
			f.Fatal(err)
		}
		if _, err := DecodeReport(text); err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, bad := range []string{"", "{}", "null", `{"schema":"hetc.npu-report/1"}`, `{"schema":"hetc.npu-report/1","compilers":null,"graphs":null,"bounds":"","not_checked":null} `} {
		if _, err := DecodeReport([]byte(bad)); err == nil {
			f.Errorf("%q was read", bad)
		}
		f.Add([]byte(bad))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := DecodeReport(text)
		if err != nil {
			return
		}
		again, err := r.encode()
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
