//go:build unix

package gguf

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hetc/hetc/internal/diag"
)

// To open a pipe would wait for somebody to write to it.
func TestSpecialFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := syscall.Mkfifo(at("pipe.gguf"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop.gguf", at("loop.gguf")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"pipe.gguf": "it is a pipe", "loop.gguf": "leads nowhere", "none.gguf": "not exist", ".": "it is a directory",
	} {
		_, err := Open(at(name))
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an input error that says %q", name, err, want)
		}
	}
}
