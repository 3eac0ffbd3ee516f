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

// Pipes and devices are neither read nor replaced: they may have no end, or never begin.
func TestSpecialFiles(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		pipe:        "it is a pipe",
		"/dev/zero": "it is a device",
		"/dev/null": "it is a device",
	} {
		before := typeOf(t, path)
		if before.IsRegular() {
			t.Fatalf("%s is a regular file", path)
		}

		_, err := Read(path, 1)
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), want) {
			t.Errorf("read %s: got %v, want %q", path, err, want)
		}
		err = Write(path, []byte("x"))
		if diag.ClassOf(err) != diag.ClassIO || !strings.Contains(err.Error(), want) {
			t.Errorf("write %s: got %v, want %q", path, err, want)
		}
		if after := typeOf(t, path); after != before {
			t.Errorf("%s was replaced: %v, before %v", path, after, before)
		}
	}
}

// typeOf returns what kind of file a path is.
func typeOf(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Type()
}
