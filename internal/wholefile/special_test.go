//go:build unix

package wholefile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
		err = WritableDirectory(path)
		if hints := diag.HintsOf(err); diag.ClassOf(err) != diag.ClassIO || !strings.Contains(err.Error(), want) ||
			!slices.Equal(hints, []string{"name a directory"}) {
			t.Errorf("directory %s: got %v with hints %q, want %q and to name a directory", path, err, hints, want)
		}
		if after := typeOf(t, path); after != before {
			t.Errorf("%s was replaced: %v, before %v", path, after, before)
		}
	}
}

// /dev/stdout may be a pipe, by a link to no path. Whoever is told to remove a link that leads nowhere removes
// /dev/stdout.
func TestLinkToPipe(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer writer.Close()

	path := fmt.Sprintf("/proc/self/fd/%d", writer.Fd())
	if _, err := os.Stat(path); err != nil {
		t.Skipf("this system has no such links: %v", err)
	}
	link := filepath.Join(t.TempDir(), "stdout")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, link} {
		if _, err := Target(path); diag.ClassOf(err) != diag.ClassIO || !strings.Contains(err.Error(), "it is a pipe") {
			t.Errorf("write %s: got %v, want that it is a pipe", path, err)
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
