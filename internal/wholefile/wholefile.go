// Package wholefile knows how a file is read or replaced: a regular one, as a whole or not at all.
package wholefile

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hetc/hetc/internal/diag"
)

// Write replaces the file at path with data.
func Write(path string, data []byte) error {
	return Stream(path, func(out io.Writer) error {
		_, err := out.Write(data)
		return err
	})
}

// Stream replaces the file at path with what write produces: a temporary file in the same directory,
// synced and renamed. On failure, also of write, path is untouched and nothing is left beside it; the
// error is of class ClassIO unless write gave it another. Where path is a symbolic link, the file it
// points to is replaced. A directory, device or pipe is refused and stays what it is. Permissions are those of
// Create, and what a killed process left beside path is removed.
func Stream(path string, write func(io.Writer) error) error {
	pending, err := Create(path)
	if err != nil {
		return err
	}
	defer pending.Abandon()
	out := bufio.NewWriterSize(pending, 1<<18)
	err = write(out)
	if err == nil {
		err = out.Flush()
	}
	if err == nil {
		err = pending.Commit()
	}
	if err == nil {
		return nil
	}
	class := diag.ClassIO
	if least := diag.ClassOf(err); least != diag.ClassInternal {
		class = least
	}
	return diag.New(class, "write %q: %w", path, err)
}

// Adopt gives the file at own the name path, with the permissions of Create. It is Stream for a file that is whole
// already, on the same file system.
func Adopt(own, path string) error {
	model, err := Create(path) // its permissions are the wanted ones
	if err != nil {
		return err
	}
	st, err := model.file.Stat()
	if err := errors.Join(err, model.Abandon()); err != nil {
		return err
	}
	file, err := os.OpenFile(own, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(file.Chmod(st.Mode().Perm()), file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(own, model.target); err != nil {
		return err
	}
	SyncDir(filepath.Dir(model.target))
	return nil
}

// Writable reports why Stream could not replace the file at path, nil if it could: a command asks before
// it works for minutes. That there is room for all of a file is not known. Errors are of class ClassIO.
func Writable(path string) error {
	target, err := Target(path)
	if err != nil {
		return err
	}
	dir := filepath.Dir(target)
	switch st, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return diag.New(diag.ClassIO, "write %q: directory %q does not exist", path, dir).
			WithHint("make it: mkdir -p %q", dir)
	case err != nil:
		return diag.New(diag.ClassIO, "write %q: %w", path, bare(err))
	case !st.IsDir():
		return diag.New(diag.ClassIO, "write %q: %q is a file, want a directory", path, dir).
			WithHint("name another path")
	}
	pending, err := Create(path)
	if err != nil {
		return err
	}
	// A full disk makes a file, but takes nothing into it.
	const block = 4096
	if _, err := pending.Write(make([]byte, block)); err != nil {
		return errors.Join(diag.New(diag.ClassIO, "write %q: %w", path, err), pending.Abandon())
	}
	return pending.Abandon()
}

// bare is err without the paths it repeats.
func bare(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}

// Target returns the path at which a file is to be created or replaced when the user says path: path itself,
// or what it links to. A path that leads to a directory, device or pipe, or to a private key, of which there may be no
// other copy, is an error of class ClassIO. Standard is one of class ClassUsage.
func Target(path string) (string, error) {
	if path == Standard {
		return "", diag.New(diag.ClassUsage, "write %q: standard output is no file", path).
			WithHint("name a file; ./- is one of that name")
	}
	// What a link leads to is asked of the system first: the links of /proc/self/fd, such as /dev/stdout, lead to pipes
	// that have no path.
	st, missing := os.Stat(path)
	if missing == nil && !st.Mode().IsRegular() {
		return "", diag.New(diag.ClassIO, "write %q: %s, want a file", path, kind(st.Mode())).WithHint("name a file")
	}

	target := path
	if st, err := os.Lstat(path); err == nil && st.Mode()&fs.ModeSymlink != 0 {
		if target, err = filepath.EvalSymlinks(path); err != nil {
			return "", diag.New(diag.ClassIO, "write %q: a link that leads nowhere: %w", path, err).
				WithHint("remove the link, or name another file")
		}
	}
	if missing == nil && isPrivateKey(target) {
		return "", diag.New(diag.ClassIO, "write %q: it is a private key, which is never replaced", path).
			WithHint("name another file")
	}
	return target, nil
}

// isPrivateKey reports whether the regular file at path begins as a private key in PEM does.
func isPrivateKey(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()

	const longest = 64 // bytes of a first line
	begin := make([]byte, longest)
	count, _ := io.ReadFull(file, begin)
	line, _, _ := strings.Cut(string(begin[:count]), "\n")
	return strings.HasPrefix(line, "-----BEGIN ") && strings.Contains(line, "PRIVATE KEY-----")
}
