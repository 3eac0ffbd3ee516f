// Package wholefile knows how a file is read or replaced: a regular one, as a whole or not at all.
package wholefile

import (
	"bufio"
	"errors"
	"fmt"
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
// points to is replaced. A directory, device or pipe is refused and stays what it is. Permissions are those of
// Create.
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
	f, err := createBeside(target)
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
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), target)
}

// createBeside is Create with a name of its own.
func createBeside(target string) (*os.File, error) {
	const most = 1 << 16
	for try := 0; ; try++ {
		name := fmt.Sprintf(".%s.%d-%d.tmp", filepath.Base(target), os.Getpid(), try)
		f, err := Create(filepath.Join(filepath.Dir(target), name), target)
		if err == nil || !errors.Is(err, fs.ErrExist) || try == most {
			return f, err
		}
	}
}

// Create makes the file temp, which nobody has yet, for target. It is as private as target, if that is there, and
// otherwise what the user's umask makes of a new file: so what is renamed to target is never open to more people than
// what was there, nor than the user wants.
func Create(temp, target string) (*os.File, error) {
	const flags = os.O_RDWR | os.O_CREATE | os.O_EXCL
	old, err := os.Stat(target)
	if err != nil || !old.Mode().IsRegular() {
		return os.OpenFile(temp, flags, 0o666)
	}
	f, err := os.OpenFile(temp, flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(old.Mode().Perm()); err != nil {
		f.Close()
		os.Remove(temp)
		return nil, err
	}
	return f, nil
}

// Adopt gives the file at own the name path, with the permissions of Create. It is Stream for a file that is whole
// already, on the same file system.
func Adopt(own, path string) error {
	target, err := Target(path)
	if err != nil {
		return err
	}
	model, err := createBeside(target) // its permissions are the wanted ones
	if err != nil {
		return err
	}
	defer os.Remove(model.Name())
	defer model.Close()
	st, err := model.Stat()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(own, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(st.Mode().Perm()), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(own, target)
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
