//go:build unix

package socs

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A SoC file does not inherit from a pipe, which would have to be waited for.
func TestInheritPipe(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o644); err != nil {
		t.Fatal(err)
	}
	child := filepath.Join(dir, "child.yaml")
	if err := os.WriteFile(child, []byte("schema: hetc.soc/1\nname: child\ninherit: pipe.yaml\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(child); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("got %v, want %q", err, "not a regular file")
	}
}
