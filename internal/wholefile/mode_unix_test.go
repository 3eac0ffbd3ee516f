//go:build unix

package wholefile

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A new file has the permissions that the umask leaves. A file that is replaced keeps its own.
func TestPermissions(t *testing.T) {
	writers := map[string]func(dir, path string) error{
		"Write": func(_, path string) error { return Write(path, []byte("new")) },
		"Adopt": func(dir, path string) error {
			own := filepath.Join(dir, "own")
			if err := os.WriteFile(own, []byte("new"), 0o640); err != nil {
				return err
			}
			return Adopt(own, path)
		},
	}
	for _, c := range []struct {
		umask int
		old   fs.FileMode // of the file that is replaced; 0 without one
		want  fs.FileMode
	}{
		{umask: 0o022, want: 0o644},
		{umask: 0o077, want: 0o600},
		{umask: 0o002, want: 0o664},
		{umask: 0, want: 0o666},

		{umask: 0o022, old: 0o600, want: 0o600},
		{umask: 0, old: 0o600, want: 0o600},
		{umask: 0o077, old: 0o644, want: 0o644},
		{umask: 0o022, old: 0o640, want: 0o640},
		{umask: 0o022, old: 0o400, want: 0o400},
		{umask: 0o022, old: 0o755, want: 0o755},
	} {
		for what, write := range writers {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			if c.old != 0 {
				createWithMode(t, path, c.old)
			}

			before := syscall.Umask(c.umask)
			err := write(dir, path)
			syscall.Umask(before)

			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Mode().Perm(); got != c.want {
				t.Errorf("%s with umask %#o over a file of mode %#o: got mode %#o, want %#o", what, c.umask, c.old, got,
					c.want)
			}
			if left := names(t, dir); len(left) != 1 {
				t.Errorf("%s: left %q, want one file", what, left)
			}
		}
	}
}

// createWithMode creates a file with a mode, whatever the umask is.
func createWithMode(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}
