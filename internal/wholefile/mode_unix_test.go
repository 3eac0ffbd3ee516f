//go:build unix

package wholefile

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A new file has the permissions that the umask leaves; one that is replaced keeps its own, whoever writes it.
func TestPermissions(t *testing.T) {
	for _, c := range []struct {
		umask     int
		old, want fs.FileMode // old 0: there is no file
	}{
		{0o022, 0, 0o644}, {0o077, 0, 0o600}, {0o002, 0, 0o664}, {0, 0, 0o666},
		{0o022, 0o600, 0o600}, {0, 0o600, 0o600}, {0o077, 0o644, 0o644}, {0o022, 0o640, 0o640}, {0o022, 0o400, 0o400}, {0o022, 0o755, 0o755},
	} {
		for what, write := range map[string]func(dir, path string) error{
			"Write": func(_, path string) error { return Write(path, []byte("new")) },
			"Adopt": func(dir, path string) error {
				own := filepath.Join(dir, "own")
				if err := os.WriteFile(own, []byte("new"), 0o640); err != nil {
					return err
				}
				return Adopt(own, path)
			},
		} {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			if c.old != 0 {
				if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(path, c.old); err != nil {
					t.Fatal(err)
				}
			}
			before := syscall.Umask(c.umask)
			err := write(dir, path)
			syscall.Umask(before)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			st, err := os.Stat(path)
			if err != nil || st.Mode().Perm() != c.want {
				t.Errorf("%s with umask %#o over a file of mode %#o: mode %v (%v), want %#o", what, c.umask, c.old, st.Mode().Perm(), err, c.want)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
				t.Errorf("%s: left %v, %v, want one file", what, left, err)
			}
		}
	}
}
