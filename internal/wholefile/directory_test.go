package wholefile

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/diag"
)

// fillTwo writes two files.
func fillTwo(dir string) error {
	return errors.Join(Write(filepath.Join(dir, "a"), []byte("1")), Write(filepath.Join(dir, "b"), []byte("2")))
}

// A directory that cannot be filled is not there, and neither is anything of what was written.
func TestDirectoryThatFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "above", "model")
	full := errors.New("disk full")

	err := Directory(path, func(dir string) error {
		return errors.Join(fillTwo(dir), full)
	})

	if !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
	if left := names(t, filepath.Dir(path)); len(left) > 0 {
		t.Errorf("after a failure there is %q, want nothing", left)
	}
}

// A directory is whole when it appears. It replaces an empty one, and not one with files.
func TestDirectoryIsWhole(t *testing.T) {
	parent := t.TempDir()
	path := filepath.Join(parent, "model")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}

	if err := Directory(path, fillTwo); err != nil {
		t.Fatal(err)
	}
	if got := names(t, path); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the directory has %q, want a and b", got)
	}

	if err := Directory(path, fillTwo); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("a directory with files: got %v, want an error of class %v", err, diag.ClassInput)
	}
	if got := names(t, parent); !slices.Equal(got, []string{"model"}) {
		t.Errorf("beside the directory there is %q, want it alone", got)
	}
}

// The directory behind a link is filled, and the link stays.
func TestDirectoryFollowsLinks(t *testing.T) {
	parent := t.TempDir()
	empty, link := filepath.Join(parent, "empty"), filepath.Join(parent, "link")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(empty, link); err != nil {
		t.Skipf("links cannot be made here: %v", err)
	}

	if err := Directory(link, fillTwo); err != nil {
		t.Fatal(err)
	}

	if got := names(t, empty); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the directory behind the link has %q, want a and b", got)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v, %v", info, err)
	}
}
