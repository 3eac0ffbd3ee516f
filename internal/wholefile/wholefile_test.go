package wholefile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/hetc/hetc/internal/diag"
)

// names are those of what a directory holds.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestWriteReplacesWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	for _, text := range []string{"first", "second, longer", ""} {
		if err := Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("got %q, %v, want %q", got, err, text)
		}
	}
	if err := Write(path, []byte("kept")); err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	err := Stream(path, func(w io.Writer) error {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			return err
		}
		return stop
	})
	if !errors.Is(err, stop) || diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("got %v, want the writer's error", err)
	}
	refused := diag.New(diag.ClassInput, "a value is NaN")
	if err := Stream(path, func(io.Writer) error { return refused }); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("class %d of %v, want the writer's", diag.ClassOf(err), err)
	}
	if got, _ := os.ReadFile(path); string(got) != "kept" {
		t.Errorf("a failed write left %d bytes, want the old content", len(got))
	}
	if err := Write(dir, nil); err == nil || len(diag.HintsOf(err)) == 0 {
		t.Errorf("write over a directory: got %v", err)
	}
	if err := Write(filepath.Join(dir, "no", "x"), nil); diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("write into a missing directory: got %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("%d files are left, want 1", len(left))
	}
}
