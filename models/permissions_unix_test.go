//go:build unix

package models

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A synthetic model's directory and files have the permissions that the umask leaves.
func TestSynthPermissions(t *testing.T) {
	model, err := parseEntry("small.yaml", []byte(tinyEntry))
	if err != nil {
		t.Fatal(err)
	}
	for umask, want := range map[int][2]os.FileMode{0o022: {0o755, 0o644}, 0o077: {0o700, 0o600}} {
		dir := filepath.Join(t.TempDir(), "model")
		before := syscall.Umask(umask)
		err := Synth(t.Context(), model, dir, 1, "")
		syscall.Umask(before)
		if err != nil {
			t.Fatal(err)
		}
		for i, path := range []string{dir, filepath.Join(dir, configName)} {
			if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want[i] {
				t.Errorf("umask %#o: %s has mode %v (%v), want %#o", umask, path, st.Mode().Perm(), err, want[i])
			}
		}
	}
}
