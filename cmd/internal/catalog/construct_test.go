package catalog

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
)

func TestConstructIsInterrupted(t *testing.T) {
	text, out := filepath.Join(t.TempDir(), "text"), filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(text, []byte("In the beginning\nGod created the heaven and the earth.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	silent := &cli.Streams{Out: io.Discard, Err: io.Discard}
	err := Construct(ctx, silent, "../../../testdata/models/tiny-llama-kjv", text, out, 7)
	if diag.ClassOf(err) != diag.ClassInterrupted {
		t.Errorf("got %v of class %v, want class %v", err, diag.ClassOf(err), diag.ClassInterrupted)
	}
	if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: got %v, want that it is not there", err)
	}
}
