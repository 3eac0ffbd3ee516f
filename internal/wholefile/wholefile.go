// Package wholefile knows how a file is replaced as a whole or not at all.
package wholefile

import (
	"bufio"
	"io"
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
// error is of class ClassIO unless write gave it another.
func Stream(path string, write func(io.Writer) error) (err error) {
	fail := func(err error) error {
		class := diag.ClassIO
		if c := diag.ClassOf(err); c != diag.ClassInternal {
			class = c
		}
		return diag.New(class, "write %q: %w", path, err)
	}
	if st, serr := os.Stat(path); serr == nil && st.IsDir() {
		return diag.New(diag.ClassIO, "write %q: it is a directory", path).WithHint("name a file")
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
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
	return os.Rename(f.Name(), path)
}
