package wholefile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
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

// A private key may have no copy: no output replaces it, under its own name or another.
func TestPrivateKeysAreNotReplaced(t *testing.T) {
	for _, label := range []string{"PRIVATE KEY", "EC PRIVATE KEY", "HETC DEV PRIVATE KEY"} {
		dir := t.TempDir()
		path, text := filepath.Join(dir, "release.key"), "-----BEGIN "+label+"-----\nMC4C\n-----END "+label+"-----\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(dir, "plan.yaml")
		if err := os.Symlink(path, link); err != nil {
			link = path
		}
		for what, err := range map[string]error{
			"write": Write(path, nil), "through a link": Write(link, nil), "ask": Writable(path),
		} {
			if diag.ClassOf(err) != diag.ClassIO || len(diag.HintsOf(err)) == 0 {
				t.Errorf("%s, %s: got %v, want an error of class %v with a hint", label, what, err, diag.ClassIO)
			}
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%s: the key is now %q, %v", label, got, err)
		}
	}
}

// What other programs take for standard input or output is not taken for the name of a file.
func TestStandardIsNoName(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("e", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read("-", 1); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(diag.HintsOf(err)[0], "standard input") {
		t.Errorf("read: got %v with hints %q, want one about standard input", err, diag.HintsOf(err))
	}
	for what, err := range map[string]error{"write": Write("-", nil), "ask": Writable("-")} {
		if diag.ClassOf(err) != diag.ClassUsage || len(diag.HintsOf(err)) == 0 {
			t.Errorf("%s: got %v, want an error of class %v with a hint", what, err, diag.ClassUsage)
		}
	}
	if err := Write("./-", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got, err := Read("./-", 1); err != nil || string(got) != "x" {
		t.Errorf("a file of that name: got %q, %v", got, err)
	}
}
