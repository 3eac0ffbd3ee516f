package wholefile

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/diag"
)

func TestDirectoryIsWholeOrNotThere(t *testing.T) {
	parent := t.TempDir()
	path := filepath.Join(parent, "above", "model")
	two := func(dir string) error {
		return errors.Join(Write(filepath.Join(dir, "a"), []byte("1")), Write(filepath.Join(dir, "b"), []byte("2")))
	}
	full := errors.New("disk full")
	err := Directory(path, func(dir string) error {
		return errors.Join(Write(filepath.Join(dir, "a"), []byte("1")), full)
	})
	if !errors.Is(err, full) {
		t.Errorf("filling it fails: got %v, want %v", err, full)
	}
	if left := names(t, filepath.Dir(path)); len(left) > 0 {
		t.Errorf("after a failure there is %q, want nothing", left)
	}
	if err := os.Mkdir(path, 0o755); err != nil { // one that is empty is replaced
		t.Fatal(err)
	}
	if err := Directory(path, two); err != nil {
		t.Fatal(err)
	}
	if got := names(t, path); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the directory has %q, want a and b", got)
	}
	if err := Directory(path, two); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("a directory with files: got %v, want an error of class %v", err, diag.ClassInput)
	}
	if got := names(t, filepath.Dir(path)); !slices.Equal(got, []string{"model"}) {
		t.Errorf("beside the directory there is %q, want it alone", got)
	}
}

func TestDirectoryFollowsLinks(t *testing.T) {
	parent := t.TempDir()
	empty, link := filepath.Join(parent, "empty"), filepath.Join(parent, "link")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(empty, link); err != nil {
		t.Skipf("links cannot be made here: %v", err)
	}
	err := Directory(link, func(dir string) error { return Write(filepath.Join(dir, "a"), []byte("1")) })
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, empty); !slices.Equal(got, []string{"a"}) {
		t.Errorf("the directory behind the link has %q, want a", got)
	}
}
