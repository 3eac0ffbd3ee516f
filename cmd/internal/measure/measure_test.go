package measure

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
)

// A run that is interrupted before its first measurement removes the record that it began. It keeps one that holds
// what a compiler said, which may have taken hours.
func TestStoppedKeepsFacts(t *testing.T) {
	ui := &cli.Streams{Tool: "hetc", Out: io.Discard, Err: io.Discard}
	header := record.Header{Schema: record.Schema, SoC: "phone", SoCDigest: "d", Simulated: true, Hetc: "0.1.0"}
	for _, facts := range []bool{false, true} {
		options := &ProfileOptions{Out: filepath.Join(t.TempDir(), "rec.jsonl")}
		rec, err := record.Create(options.Out, header)
		if err != nil {
			t.Fatal(err)
		}
		if facts {
			graph := &op.Op{Kind: op.MatMul, M: 8, K: 32, N: 32, Scheme: op.A8TQ8C}
			if err := rec.AppendFacts(&record.Facts{Kind: record.CompilerFacts, Proc: "npu", Op: graph, Compiler: "QNN",
				Options: map[string]string{}, Bytes: 1}); err != nil {
				t.Fatal(err)
			}
		}
		err = options.stopped(ui, rec, profiler.Report{}, context.Canceled)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("facts %v: the error is %v, want that of the run", facts, err)
		}
		_ = rec.Close() // closed already where it was removed
		set, err := record.Open(options.Out)
		if kept := err == nil && len(set.Facts()) == 1; kept != facts {
			t.Errorf("facts %v: the record is kept: %v (%v)", facts, kept, err)
		}
	}
}
