package measure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
)

// An import replaces an import. It does not replace one to which hetc profile has added what it measured.
func TestReplaceable(t *testing.T) {
	product := func(m int) *op.Op { return &op.Op{Kind: op.MatMul, M: m, K: 32, N: 32, Scheme: op.A8TQ8C} }
	imported := &record.Measurement{Kind: record.Op, Proc: "npu", Op: product(1), Unit: "ns", Loops: 1,
		Samples: []float64{1000}}
	measured := &record.Measurement{Kind: record.Op, Proc: "cpu", Op: product(1), Layout: "n32", Unit: "ns", First: 900,
		Loops: 1, Samples: []float64{800, 810, 805}}
	launch := &record.Measurement{Kind: record.Launch, Proc: "cpu", Op: product(1), Layout: "n32", Unit: "ns", Loops: 1,
		Samples: []float64{800}}
	refused := &record.Facts{Kind: record.CompilerFacts, Proc: "npu", Op: product(2), Compiler: record.ImportedCompiler,
		Options: map[string]string{}, Refused: "failed"}
	compiled := &record.Facts{Kind: record.CompilerFacts, Proc: "npu", Op: product(4), Compiler: "QNN",
		Options: map[string]string{}, Bytes: 1}
	for _, test := range []struct {
		name        string
		measurement *record.Measurement
		facts       *record.Facts
		want        string // part of the error; "": none
	}{
		{"imported", imported, refused, ""},
		{"measured", measured, refused, "1 measurement"},
		{"launch", launch, refused, "1 measurement"},
		{"compiled", imported, compiled, "1 compiler fact"},
	} {
		set := record.NewSet(record.Header{Schema: record.Schema, SoC: "phone", SoCDigest: "d", Fingerprint: "f",
			Hetc: "0.1.0", Imported: []record.Import{{File: "t.csv", SHA256: strings.Repeat("0", 64), Source: "t"}}})
		if err := set.Add(test.measurement); err != nil {
			t.Fatal(err)
		}
		if err := set.AddFacts(test.facts); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "rec.jsonl")
		if err := record.Write(path, set); err != nil {
			t.Fatal(err)
		}
		err := replaceable(path)
		if test.want == "" && err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if test.want != "" && (diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got %v, want an error with %q", test.name, err, test.want)
		}
	}
}

// An import replaces the SoC file of an import, and no other file.
func TestReplaceableSoC(t *testing.T) {
	const processor = "schema: hetc.soc/1\nname: phone\ncontrol: npu\nprocessors:\n" +
		"  - {name: npu, kind: npu, select: npu, kinds: [matmul], schemes: [a8t/q8c], layouts: {q8c: n32}, tile: {}"
	const sim = "sim: {schemes: {a8t/q8c: {peak_gops: 100}}, other_gops: 10}"
	for text, replaced := range map[string]bool{
		processor + ", driver: imported}\n":                             true,
		processor + ", driver: sim, bandwidth_gbps: 10, " + sim + "}\n": false,
		"my notes\n": false,
	} {
		path := filepath.Join(t.TempDir(), "soc.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := replaceableSoC(path)
		if (err == nil) != replaced || err != nil && diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("a file that begins with %.30q: got %v, want it replaced: %v", text, err, replaced)
		}
	}
	if err := replaceableSoC(filepath.Join(t.TempDir(), "new.yaml")); err != nil {
		t.Errorf("a new file: %v", err)
	}
}
