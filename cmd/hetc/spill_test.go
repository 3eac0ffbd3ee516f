package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/emit/compile/qnn"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// spillRecord is what Qualcomm's compiler says about one product of 2048 by 2048 (see TestSpillRecord).
const spillRecord = "../../testdata/facts/snapdragon-8gen3-2048.jsonl"

// spillRows are the lengths in it: every eighth from 200 to 520, and some between.
func spillRows() []int {
	out := []int{1, 64, 128, 250, 252, 254, 255, 257, 258, 260, 500, 508, 510, 511, 513}
	for m := 200; m <= 520; m += 8 {
		out = append(out, m)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// askSpill asks the compiler about some lengths of that product.
func askSpill(t *testing.T, path string, rows, shared []int) *record.Set {
	t.Helper()
	soc, err := socs.OpenTarget("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	header, err := profiler.Header(soc, "", "", cli.Version, 1)
	if err != nil {
		t.Fatal(err)
	}
	header.Environment = record.Environment{OS: "linux", Arch: "amd64"} // of no account for what a compiler says
	w, err := record.Create(path, header)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	requests := []profiler.FactRequest{{Proc: "npu", Op: op.Op{Kind: op.MatMul, M: rows[0], K: 2048, N: 2048, Scheme: op.A16SQ8C}, Rows: rows, Shared: shared}}
	o := profiler.FactOptions{Compilers: map[string]driver.GroupCompiler{"qnn": qnn.New(qnn.Options{})}, Seed: 1}
	if _, err := profiler.CompilerFacts(t.Context(), soc, requests, w, o); err != nil {
		t.Fatal(err)
	}
	return w.Set()
}

// The buffer that a graph spills to is not monotone in its rows: that is why lengths are chosen by what the compiler says. The
// record was made by the compiler itself (HETC_UPDATE=1 makes it again where the library is), docs/npu.md prints it, and
// where the library is some of it is asked for again.
func TestSpillRecord(t *testing.T) {
	if os.Getenv("HETC_UPDATE") != "" && haveQNN() == nil {
		tmp := filepath.Join(t.TempDir(), "facts.jsonl")
		askSpill(t, tmp, spillRows(), []int{64, 128, 256, 512})
		b, err := os.ReadFile(tmp)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(spillRecord), 0o755)
		}
		if err == nil {
			err = os.WriteFile(spillRecord, b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	set, err := record.Open(spillRecord)
	if err != nil {
		t.Fatal(err)
	}
	spill, whole := map[int]int64{}, map[int]int64{}
	var shared *record.Facts
	for _, f := range set.Facts() {
		if f.Rows != nil {
			shared = f
			continue
		}
		if f.Op.K != 2048 || f.Op.N != 2048 || f.Op.Scheme != op.A16SQ8C || f.Refused != "" || !strings.HasPrefix(f.Compiler, "QNN ") {
			t.Errorf("%s by %q: %+v", f.Key(), f.Compiler, f)
		}
		spill[f.Op.M], whole[f.Op.M] = f.SpillBytes, f.Bytes
	}
	for _, m := range spillRows() {
		if _, ok := spill[m]; !ok {
			t.Errorf("no facts of %d rows", m)
		}
	}
	for _, m := range []int{200, 224, 240, 248, 256, 264, 272, 504, 512, 520} {
		if spill[m] != 0 {
			t.Errorf("%d rows spill %d bytes, want 0", m, spill[m])
		}
	}
	for _, m := range []int{250, 252, 255, 257, 260, 508, 511, 513} {
		if spill[m] < 1<<20 {
			t.Errorf("%d rows spill %d bytes, want MiB", m, spill[m])
		}
	}
	if shared == nil || len(shared.Rows) != 4 || float64(shared.Bytes) > 1.15*float64(whole[512]) {
		t.Errorf("four lengths in one binary: %+v, want at most 1.15 times the %d bytes of one", shared, whole[512])
	}
	text, err := os.ReadFile("../../docs/npu.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []int{248, 250, 252, 255, 256, 257, 260, 264, 504, 508, 511, 512, 513, 520} {
		if row := fmt.Sprintf("| %d | %.1f |", m, float64(spill[m])/(1<<20)); !strings.Contains(string(text), "\n"+row+"\n") {
			t.Errorf("docs/npu.md lacks the row %s", row)
		}
	}

	if err := haveQNN(); err != nil {
		require.Skip(t, "qnn", err)
	}
	again := askSpill(t, filepath.Join(t.TempDir(), "again.jsonl"), []int{250, 256}, nil)
	for _, f := range again.Facts() {
		if f.SpillBytes != spill[f.Op.M] || f.Bytes != whole[f.Op.M] {
			t.Errorf("%d rows: %d bytes that spill %d, and the record has %d and %d: another compiler (%s)? HETC_UPDATE=1 makes it again", f.Op.M, f.Bytes, f.SpillBytes, whole[f.Op.M], spill[f.Op.M], f.Compiler)
		}
	}
}

// haveQNN says why Qualcomm's compiler is not here.
func haveQNN() error {
	require.Deps()
	if _, err := ortapi.FindQNN(""); err != nil {
		return err
	}
	_, err := ortapi.Find("")
	return err
}
