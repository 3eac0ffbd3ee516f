//go:build unix

package wholefile

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hetc/hetc/internal/diag"
)

// What has no end or never begins is neither read nor replaced.
func TestSpecialFiles(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{pipe: "it is a pipe", "/dev/zero": "it is a device", "/dev/null": "it is a device"} {
		if _, err := Read(path, 1); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), want) {
			t.Errorf("read %s: got %v, want %q", path, err, want)
		}
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := Write(path, []byte("x")); diag.ClassOf(err) != diag.ClassIO || !strings.Contains(err.Error(), want) {
			t.Errorf("write %s: got %v, want %q", path, err, want)
		}
		if after, err := os.Lstat(path); err != nil || after.Mode().Type() != before.Mode().Type() || after.Mode().Type() == fs.FileMode(0) {
			t.Errorf("%s was replaced: %v, %v", path, after, err)
		}
	}
}
