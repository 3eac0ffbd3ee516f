package wholefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hetc/hetc/internal/diag"
)

// Standard is what other programs take for standard input or output. Here it is the name of a file, which nobody means.
const Standard = "-"

// Open opens a regular file for reading. A file that is missing, or is a directory, a device or a pipe,
// which might have no end or never begin, or a link that leads nowhere, is of class ClassInput; one
// that cannot be read is of class ClassIO. errors.Is finds fs.ErrNotExist for a missing one.
func Open(path string) (*os.File, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, cannotRead(path, err)
	}
	if err := regular(path, st); err != nil { // before opening: to open a device can mean to use it
		return nil, err
	}
	file, err := os.OpenFile(path, openFlags, 0)
	if err != nil {
		return nil, cannotRead(path, err)
	}
	if st, err = file.Stat(); err == nil {
		err = regular(path, st)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// Read returns the contents of a regular file of at most limit bytes; errors as Open's.
func Read(path string, limit int64) ([]byte, error) {
	file, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit+1)) // a file may grow while it is read
	if err != nil {
		return nil, cannotRead(path, err)
	}
	if int64(len(data)) > limit {
		return nil, diag.New(diag.ClassInput, "read %q: more than %d bytes", path, limit).
			WithHint("is this the right file?")
	}
	return data, nil
}

// cannotRead returns the error of a file that could not be opened, with what the user may have meant.
func cannotRead(path string, err error) error {
	err = bare(err)
	if st, lerr := os.Lstat(path); lerr == nil && st.Mode()&fs.ModeSymlink != 0 && !errors.Is(err, fs.ErrPermission) {
		to, _ := os.Readlink(path)
		return diag.New(diag.ClassInput, "read %q: a link to %q, which leads nowhere", path, to).
			WithHint("fetch the file again, or make the link anew")
	}
	diagnostic := diag.New(diag.ClassInput, "read %q: %w", path, err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		diagnostic = diag.New(diag.ClassInput, "read %q: %w", path, fs.ErrNotExist)
	case !errors.Is(err, syscall.ENOTDIR): // else a part of the path is a file
		return diag.New(diag.ClassIO, "read %q: %w", path, err)
	}
	if hint := Instead(path); hint != "" {
		return diagnostic.WithHint("%s", hint)
	}
	return diagnostic
}

// Instead returns the hint for a path at which no file is: what the user may have meant; "" if nothing is known.
func Instead(path string) string {
	if path == Standard {
		return "standard input is not read here: write it to a file, and give its name"
	}
	for dir := filepath.Dir(path); dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err == nil && !st.IsDir() {
			return fmt.Sprintf("%q is a file and no directory: give the name alone", dir)
		}
	}
	if near := neighbour(path); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return ""
}

// neighbour returns a file beside path with nearly its name, "" when there is none.
func neighbour(path string) string {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return ""
	}
	defer dir.Close()
	const most = 1000 // names to look through
	names, _ := dir.Readdirnames(most)
	near := diag.Nearest(filepath.Base(path), names)
	if near == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(path), near)
}

// regular refuses what is no regular file: reading it may block or never end.
func regular(path string, st fs.FileInfo) error {
	if st.Mode().IsRegular() {
		return nil
	}
	diagnostic := diag.New(diag.ClassInput, "read %q: %s, want a file", path, kind(st.Mode()))
	if st.IsDir() {
		return diagnostic.WithHint("give the name of a file in it")
	}
	return diagnostic.WithHint("copy what it gives into a file first")
}

// kind says what a file that is no regular one is.
func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "it is a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "it is a pipe"
	case mode&fs.ModeSocket != 0:
		return "it is a socket"
	case mode&fs.ModeDevice != 0:
		return "it is a device"
	}
	return "it is no regular file"
}
