package solving

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// openModels opens an engine that writes linear programs to dir, and has it write one.
func openModels(t *testing.T, dir string) *Log {
	t.Helper()
	flags := &EngineFlags{engine: "exact", models: dir, of: ofAll}
	_, log, err := flags.Open(&cli.Streams{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	model := &milp.Model{Name: "m", Vars: []milp.Var{{Name: "x", Cost: 1, High: 1}},
		Rows: []milp.Row{{Name: "r", High: 1, Terms: []milp.Term{{Var: 0, Coef: 1}}}}}
	if file := log.write(model); file == "" || log.err != nil {
		t.Fatalf("wrote %q, %v", file, log.err)
	}
	return log
}

// An interrupted solve leaves no linear programs, and of their directory what was there before.
func TestDiscardModels(t *testing.T) {
	parent := t.TempDir()
	log := openModels(t, filepath.Join(parent, "a", "b"))
	if err := log.discard(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v; want nothing", left, err)
	}
	if file := log.write(&milp.Model{Name: "late"}); file != "" {
		t.Errorf("a late engine wrote %q", file)
	}

	if err := os.WriteFile(filepath.Join(parent, "notes"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := openModels(t, parent).discard(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) != 1 || left[0].Name() != "notes" {
		t.Errorf("left %v, %v; want the file that was there", left, err)
	}
}

// A pattern that is none is refused before a directory is made.
func TestPatternOfModels(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "models")
	flags := &EngineFlags{engine: "exact", models: dir, of: "["}
	if _, _, err := flags.Open(&cli.Streams{}, 0); diag.ClassOf(err) != diag.ClassUsage {
		t.Errorf("got %v, want an error of class %v", err, diag.ClassUsage)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the directory was made")
	}
}
