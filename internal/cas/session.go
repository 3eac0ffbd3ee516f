package cas

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/hetc/hetc/internal/filelock"
)

// session is the directory in which one process makes contents. Its lock dies with the process, so that
// the next one sees what may be removed.
type session struct {
	dir  string
	lock *os.File
}

// lockName is the name of the lock of a session, and of the gate that all pass which begin one.
const lockName = "lock"

// staleAfter is how long a session is left alone where systems cannot tell whether its process lives.
const staleAfter = 24 * time.Hour

// begin removes dead sessions below tmp and begins one.
func (s *session) begin(tmp string, now func() time.Time) (err error) {
	// No other process may look at a session that has no lock yet.
	gate, err := filelock.Open(filepath.Join(tmp, lockName), 0o600)
	if err != nil {
		return err
	}
	defer gate.Close()
	locks := filelock.Wait(gate) == nil
	entries, err := os.ReadDir(tmp)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() && dead(filepath.Join(tmp, entry.Name()), locks, now) {
			os.RemoveAll(filepath.Join(tmp, entry.Name()))
		}
	}
	if s.dir, err = os.MkdirTemp(tmp, "p"); err != nil {
		return err
	}
	s.lock, err = filelock.Open(filepath.Join(s.dir, lockName), 0o600)
	if err == nil && locks {
		err = filelock.Try(s.lock)
	}
	if err != nil {
		os.RemoveAll(s.dir)
	}
	return err
}

// dead reports whether the process of a session has ended: a living one holds the lock. Without locks, only age tells.
func dead(dir string, locks bool, now func() time.Time) bool {
	if !locks {
		st, err := os.Stat(dir)
		return err == nil && now != nil && now().Sub(st.ModTime()) > staleAfter
	}
	file, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return true // it died before it had one
	}
	if err != nil {
		return false
	}
	defer file.Close()
	return filelock.Try(file) == nil
}

// end removes the session and lets its lock go. A cache that was opened for reading has none.
func (s *session) end() error {
	if s.lock == nil {
		return nil
	}
	err := os.RemoveAll(s.dir)
	if cerr := s.lock.Close(); err == nil {
		err = cerr
	}
	s.lock = nil
	return err
}
