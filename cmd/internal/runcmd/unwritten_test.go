package runcmd

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
)

// fullDisk takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// Once the output takes no more, the rest of the answer is not computed. The command fails, and writes no trace.
func TestAnswerIsNotWritten(t *testing.T) {
	path, trust := vendorBundle(t, false)
	prompts := filepath.Join(t.TempDir(), "prompts.jsonl")
	if err := os.WriteFile(prompts, []byte(`{"tokens": [1, 5]}`+"\n"+`{"tokens": [1, 7]}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, input := range [][]string{{"--tokens", "1,5"}, {"--prompts", prompts}} {
		v := vendor{Driver: host.New(), opened: new(int), version: "1"}
		run := func(out io.Writer, more ...string) error {
			ui := &cli.Streams{Tool: "hetrun", Out: out, Err: io.Discard}
			cmd := New(ui, "hetrun", false, func(*planir.Plan) ([]driver.Driver, error) { return []driver.Driver{host.New(), v}, nil })
			cmd.SetArgs(append(append([]string{path, "--trust", trust, "--max-tokens", "20"}, input...), more...))
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			return cmd.ExecuteContext(t.Context())
		}
		if err := run(io.Discard); err != nil {
			t.Fatal(err)
		}
		trace := filepath.Join(t.TempDir(), "trace.json")
		if err := run(fullDisk{}, "--trace", trace); diag.ClassOf(err) != diag.ClassIO {
			t.Errorf("%v: got %v, want an error of class io", input, err)
		}
		if _, err := os.Stat(trace); err == nil {
			t.Errorf("%v: a run that failed wrote a trace", input)
		}
	}
}
