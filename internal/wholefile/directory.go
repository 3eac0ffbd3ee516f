package wholefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hetc/hetc/internal/diag"
)

// WritableDirectory returns why no directory can be made at path, or written to: a file is there (class ClassIO), or the
// path is Standard (class ClassUsage). Directories above it need not exist.
func WritableDirectory(path string) error {
	if path == Standard {
		return diag.New(diag.ClassUsage, "write %q: standard output is no directory", path).
			WithHint("name a directory; ./- is one of that name")
	}
	st, err := os.Stat(path)
	switch {
	case err != nil || st.IsDir():
		return nil
	case !st.Mode().IsRegular(): // nobody should remove /dev/null
		return diag.New(diag.ClassIO, "write %q: %s, want a directory", path, kind(st.Mode())).
			WithHint("name a directory")
	}
	return diag.New(diag.ClassIO, "write %q: it is there and no directory", path).
		WithHint("remove it, or give another name")
}

// Directory makes the directory at path, and those above it, with the files that fill writes into another one. That one
// lies beside path and is renamed when fill is done. On failure, also of fill, nothing of it is left. A directory that
// is there already must be empty, else the error is of class ClassInput; others have no class, or the one that fill gave.
func Directory(path string, fill func(dir string) error) error {
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		return diag.New(diag.ClassInput, "directory %q is not empty", path).WithHint("remove it, or give another one")
	}
	target, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if followed, err := filepath.EvalSymlinks(target); err == nil { // a link to an empty directory stays one
		target = followed
	}
	parent := filepath.Dir(target)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(parent, "."+stem(target)+".*")
	if err != nil {
		return fmt.Errorf("write %q: %w", path, bare(err)) // the user knows nothing of the temporary name
	}
	defer os.RemoveAll(temp)
	whole := filepath.Join(temp, "whole")
	if err := os.Mkdir(whole, 0o777); err != nil { // what the user's umask leaves; that of temp is 0700
		return err
	}
	if err := fill(whole); err != nil {
		return err
	}
	SyncDir(whole)
	_ = os.Remove(target) // the empty directory, which Rename would not replace
	if err := os.Rename(whole, target); err != nil {
		return err
	}
	SyncDir(parent)
	return nil
}
