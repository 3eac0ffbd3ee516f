package record

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
)

func must(s string, err error) string {
	if err != nil {
		panic(err)
	}
	return s
}

func facts(m int) *Facts {
	return &Facts{Kind: CompilerFacts, Proc: "npu", Op: matmul(m), Compiler: "QNN 2.51.0", Options: map[string]string{"soc_model": "57"},
		Bytes: 4296704, SpillBytes: 4325376, VTCMBytes: 8 << 20, Arch: 75, CompileMS: 312.5}
}

// Facts stand beside measurements, survive the file, and do not change what measurements are.
func TestFactsInARecord(t *testing.T) {
	path := create(t, 2)
	before := must(func() (string, error) { s, _ := Open(path); return s.Digest() }())
	w, err := Resume(path, header())
	if err != nil {
		t.Fatal(err)
	}
	group := facts(8)
	group.Rows, group.SpillBytes = []int{8, 16}, 0
	for _, f := range []*Facts{facts(8), group, facts(12)} {
		if err := w.AppendFacts(f); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.AppendFacts(facts(12)); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("the same graph again: got %v", err)
	}
	w.Close()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Facts()) != 3 || s.Len() != 2 || !reflect.DeepEqual(s.LookupFacts(group.Key()), group) {
		t.Errorf("read %d facts and %d measurements, want 3 and 2", len(s.Facts()), s.Len())
	}
	if d := must(s.Digest()); d != before {
		t.Error("facts change the digest of the measurements")
	}
	// Another run of the compiler takes another time and says the same.
	other := NewSet(header())
	for _, f := range s.Facts() {
		x := *f
		x.CompileMS *= 2
		if err := other.AddFacts(&x); err != nil {
			t.Fatal(err)
		}
	}
	if must(s.FactsDigest()) != must(other.FactsDigest()) || must(NewSet(header()).FactsDigest()) != "" {
		t.Error("the digest of facts depends on how long compiling took")
	}
	newer := facts(99)
	newer.Compiler = "QNN 2.52.0"
	if err := other.AddFacts(newer); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "2.52.0") {
		t.Errorf("facts of another compiler: got %v", err)
	}
}

func TestFactsAreValidated(t *testing.T) {
	for want, edit := range map[string]func(*Facts){
		"want a processor":            func(f *Facts) { f.Proc = "" },
		"want a compiler":             func(f *Facts) { f.Compiler = "" },
		`"op" is missing`:             func(f *Facts) { f.Op = nil },
		"rows [8]":                    func(f *Facts) { f.Rows = []int{8} },
		"ascending":                   func(f *Facts) { f.Rows = []int{8, 8} },
		"the operator's 8":            func(f *Facts) { f.Rows = []int{4, 8} },
		"spill_bytes = -1":            func(f *Facts) { f.SpillBytes = -1 },
		"want a size, or why":         func(f *Facts) { f.Bytes = 0 },
		"refused = \"no\"":            func(f *Facts) { f.Refused = "no" },
		"compile_ms":                  func(f *Facts) { f.CompileMS = math.NaN() },
		"compiler facts of kind \"op": func(f *Facts) { f.Kind = Op },
	} {
		f := facts(8)
		edit(f)
		if want == "rows [8]" {
			want = "1 numbers of rows"
		}
		if err := f.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
	path := create(t, 1)
	for _, line := range []string{
		`{"kind":"compiler_facts","proc":"npu"}`,
		`{"kind":"compiler_facts","proc":"npu","op":{"kind":"matmul","m":1,"k":2,"n":3,"scheme":"a32/w32"},"compiler":"c","options":{},"bytes":1,"spill_bytes":0,"latency_us":3}`,
		`{"kind":"compiler_facts","proc":"npu","op":{"kind":"matmul","m":1,"k":2,"n":3,"scheme":"a32/w32"},"compiler":"c","options":{},"bytes":1,"spill_bytes":0,"samples":[1]}`,
	} {
		b, _ := os.ReadFile(path)
		bad := filepath.Join(t.TempDir(), "bad.jsonl")
		if err := os.WriteFile(bad, append(b, line+"\n"...), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(bad); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), ":3") {
			t.Errorf("%s: got %v, want a refusal with its line", line, err)
		}
	}
}
