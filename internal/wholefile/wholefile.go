// Package wholefile knows how a file is read or replaced: a regular one, as a whole or not at all.
package wholefile

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hetc/hetc/internal/diag"
)

// Write replaces the file at path with data.
func Write(path string, data []byte) error {
	return Stream(path, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// Stream replaces the file at path with what write produces: a temporary file in the same directory,
// synced and renamed. On failure, also of write, path is untouched and nothing is left beside it; the
// error is of class ClassIO unless write gave it another. Where path is a symbolic link, the file it
// points to is replaced. A directory, device or pipe is refused and stays what it is.
func Stream(path string, write func(io.Writer) error) (err error) {
	fail := func(err error) error {
		class := diag.ClassIO
		if c := diag.ClassOf(err); c != diag.ClassInternal {
			class = c
		}
		return diag.New(class, "write %q: %w", path, err)
	}
	target, err := Target(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(target), temporary(target))
	if err != nil {
		return fail(bare(err))
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			var p *fs.PathError
			if errors.As(err, &p) && p.Path == f.Name() {
				err = p.Err // the user knows nothing of a temporary file
			}
			err = fail(err)
		}
	}()
	w := bufio.NewWriterSize(f, 1<<18)
	if err = write(w); err != nil {
		return err
	}
	if err = w.Flush(); err != nil {
		return err
	}
	if err = f.Chmod(0o644); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), target)
}

// Writable reports why Stream could not replace the file at path, nil if it could: a command asks before
// it works for minutes. Errors are of class ClassIO.
func Writable(path string) error {
	target, err := Target(path)
	if err != nil {
		return err
	}
	dir := filepath.Dir(target)
	switch st, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return diag.New(diag.ClassIO, "write %q: directory %q does not exist", path, dir).WithHint("make it: mkdir -p %q", dir)
	case err != nil:
		return diag.New(diag.ClassIO, "write %q: %w", path, bare(err))
	case !st.IsDir():
		return diag.New(diag.ClassIO, "write %q: %q is a file, want a directory", path, dir).WithHint("name another path")
	}
	f, err := os.CreateTemp(dir, temporary(target))
	if err != nil {
		return diag.New(diag.ClassIO, "write %q: %w", path, bare(err))
	}
	f.Close()
	return os.Remove(f.Name())
}

// temporary is the pattern of a temporary file's name that stands for target until it is whole.
func temporary(target string) string { return "." + filepath.Base(target) + ".*" }

// bare is err without the path it repeats.
func bare(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Target is the path at which a file is to be created or replaced when the user says path: path itself,
// or what it links to. A path that leads to a directory, device or pipe is an error of class ClassIO.
func Target(path string) (string, error) {
	target := path
	if st, err := os.Lstat(path); err == nil && st.Mode()&fs.ModeSymlink != 0 {
		if target, err = filepath.EvalSymlinks(path); err != nil {
			return "", diag.New(diag.ClassIO, "write %q: a link that leads nowhere: %w", path, err).WithHint("remove the link, or name another file")
		}
	}
	if st, err := os.Stat(target); err == nil && !st.Mode().IsRegular() {
		return "", diag.New(diag.ClassIO, "write %q: %s, want a file", path, kind(st.Mode())).WithHint("name a file")
	}
	return target, nil
}
