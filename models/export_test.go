package models

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// A model exported to GGUF and opened again has the same graph and, stored as f32, the same values; one
// with a feature that the format does not know is refused.
func TestExportedModelsAreTheSame(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/arch/*/config.json")
	if err != nil || len(dirs) < 20 {
		t.Fatalf("found %d models (%v)", len(dirs), err)
	}
	exported := 0
	for _, file := range append(dirs, tinyDir+"/config.json") {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			model, err := Open(dir)
			if err != nil {
				if refused[filepath.Base(dir)] == "" {
					t.Fatal(err)
				}
				return
			}
			defer model.Close()
			path := filepath.Join(t.TempDir(), "m.gguf")
			err = Export(context.Background(), model, path, op.F32)
			if err != nil {
				if !strings.Contains(err.Error(), "GGUF") {
					t.Error(err)
				}
				if _, err := os.Stat(path); err == nil {
					t.Error("refused, and a file is left")
				}
				return
			}
			exported++
			again, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if again.MaxContext != model.MaxContext || again.BOS != model.BOS ||
				!reflect.DeepEqual(again.EOS, model.EOS) || again.Tied != model.Tied {
				t.Errorf("got context %d, begin %d, end %v, tied %v, want %d, %d, %v, %v", again.MaxContext, again.BOS,
					again.EOS, again.Tied, model.MaxContext, model.BOS, model.EOS, model.Tied)
			}
			if what := difference(again, model); what != "" {
				t.Errorf("%s differs", what)
			}
			compareValues(t, again, model)
		})
	}
	if exported < 25 {
		t.Errorf("%d models have a form in GGUF, want at least 25", exported)
	}
}

// compareValues expects the values of every tensor of a model in another one.
func compareValues(t *testing.T, got, want *Model) {
	t.Helper()
	for name := range want.tensors {
		tensor, err := want.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		again, err := got.Tensor(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if !slices.Equal(allValues(t, again), allValues(t, tensor)) {
			t.Errorf("%s: other values", name)
		}
	}
}

// A file that is not there is no misspelt catalog entry.
func TestMissingFileIsNotACatalogName(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "model-q8.gguf"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Open(filepath.Join(dir, "model-q9.gguf"))
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "not exist") ||
		strings.Contains(err.Error(), "catalog") {
		t.Errorf("got %v, want an input error that says that the file does not exist", err)
	}
	if hints := diag.HintsOf(err); len(hints) != 1 || !strings.Contains(hints[0], "model-q8.gguf") {
		t.Errorf("hints: got %q, want the file that is there", hints)
	}
}
