package wholefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/filelock"
)

// Pending is a temporary file beside its target. The caller that creates it commits or abandons it.
//
// It is locked until then, or until its process dies. So the next writer of the same target can tell what a killed
// process left behind, which it removes, from what another process is writing.
//
// Its errors are without the temporary name: the user knows nothing of that.
type Pending struct {
	file    *os.File
	target  string
	settled bool // committed or abandoned
}

// Name returns the temporary name.
func (p *Pending) Name() string { return p.file.Name() }

// Write writes at the end of what was written.
func (p *Pending) Write(data []byte) (int, error) {
	count, err := p.file.Write(data)
	return count, bare(err)
}

// WriteAt writes at an offset from the beginning.
func (p *Pending) WriteAt(data []byte, at int64) (int, error) {
	count, err := p.file.WriteAt(data, at)
	return count, bare(err)
}

// Truncate makes the file so many bytes long; what was not written is zero.
func (p *Pending) Truncate(bytes int64) error { return bare(p.file.Truncate(bytes)) }

// Create begins a file that is to replace the one at path, or what that links to. It has that one's permissions, or
// those which the umask leaves where there is none: it is never open to more people. Errors are of class ClassIO.
func Create(path string) (*Pending, error) {
	target, err := Target(path)
	if err != nil {
		return nil, err
	}
	RemoveLeftBehind(target)
	const most = 1 << 16
	for try := 0; ; try++ {
		file, err := createLike(target, temporary(target, try))
		if err == nil {
			if err = claim(file); err == nil || errors.Is(err, errors.ErrUnsupported) {
				return &Pending{file: file, target: target}, nil
			}
			err = errors.Join(fs.ErrExist, err, file.Close()) // another process took it for left behind before it was locked
		}
		if !errors.Is(err, fs.ErrExist) || try == most {
			return nil, diag.New(diag.ClassIO, "write %q: %w", path, bare(err))
		}
	}
}

// Commit gives the file the name of its target, after its contents have reached the disk. When it fails the target is
// what it was, and the file is gone.
func (p *Pending) Commit() error {
	err := p.file.Sync()
	err = p.settle(func() error {
		if err == nil {
			err = os.Rename(p.Name(), p.target)
		}
		if err != nil {
			return errors.Join(bare(err), os.Remove(p.Name()))
		}
		return nil
	})
	if err != nil {
		return err
	}
	SyncDir(filepath.Dir(p.target))
	return nil
}

// Abandon removes the file. It does nothing after Commit.
func (p *Pending) Abandon() error {
	if p.settled {
		return nil
	}
	return p.settle(func() error { return os.Remove(p.Name()) })
}

// settle does the last thing to the temporary name and then closes the file: while it is locked, no other process
// removes or reuses the name. Windows has no such locks, and neither renames nor removes an open file.
func (p *Pending) settle(last func() error) error {
	p.settled = true
	if runtime.GOOS == "windows" {
		return errors.Join(p.file.Close(), last())
	}
	return errors.Join(last(), p.file.Close())
}

// SyncDir makes names in a directory survive a crash of the machine, where its system can.
func SyncDir(dir string) {
	if opened, err := os.Open(dir); err == nil {
		_ = opened.Sync()
		_ = opened.Close() // only read
	}
}

// createLike creates the file temp, which must not exist, with the permissions that Create promises.
func createLike(target, temp string) (*os.File, error) {
	const flags = os.O_RDWR | os.O_CREATE | os.O_EXCL
	old, err := os.Stat(target)
	if err != nil || !old.Mode().IsRegular() {
		return os.OpenFile(temp, flags, 0o666)
	}
	file, err := os.OpenFile(temp, flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := file.Chmod(old.Mode().Perm()); err != nil {
		file.Close()
		os.Remove(temp)
		return nil, err
	}
	return file, nil
}

// temporary returns the name of this process's file number n in the making for target. It is never stored.
func temporary(target string, count int) string {
	return filepath.Join(filepath.Dir(target), fmt.Sprintf(".%s.%d-%d.tmp", stem(target), os.Getpid(), count))
}

// stem returns the beginning of the target's name that temporary names have: short enough that they are permitted
// wherever the target's is.
func stem(target string) string {
	const most = 200 // bytes; file systems permit 255
	base := filepath.Base(target)
	if len(base) <= most {
		return base
	}
	return strings.ToValidUTF8(base[:most], "")
}

// isTemporary reports whether a name in the target's directory is one that temporary makes, in any process.
func isTemporary(target, name string) bool {
	middle, begins := strings.CutPrefix(name, "."+stem(target)+".")
	middle, ends := strings.CutSuffix(middle, ".tmp")
	process, number, two := strings.Cut(middle, "-")
	digits := func(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }
	return begins && ends && two && digits(process) && digits(number)
}

// RemoveLeftBehind removes what killed processes left beside the file at path. A file whose lock is held has a
// writer and stays, as does everything where locks do not work. Nothing of it is an error: such a file only takes
// space. Create does the same.
func RemoveLeftBehind(path string) {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if !isTemporary(path, entry.Name()) || !entry.Type().IsRegular() {
			continue
		}
		name := filepath.Join(dir, entry.Name())
		file, err := os.OpenFile(name, openFlags, 0)
		if err != nil {
			continue
		}
		if claim(file) == nil {
			_ = os.Remove(name)
		}
		_ = file.Close() // only read
	}
}

var errTaken = errors.New("another process holds or removed it")

// claim locks f until it is closed or this process dies. It fails with errTaken when another process holds the lock, or
// held it between the opening and the locking here and removed the file, and with errors.ErrUnsupported where there are
// no locks.
func claim(file *os.File) error {
	switch err := filelock.Try(file); {
	case errors.Is(err, filelock.ErrBusy):
		return errTaken
	case err != nil:
		return errors.ErrUnsupported
	}
	opened, err := file.Stat()
	if err != nil {
		return err
	}
	if named, err := os.Lstat(file.Name()); err != nil || !os.SameFile(opened, named) {
		return errTaken
	}
	return nil
}
