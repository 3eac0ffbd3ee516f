package matrix

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/filelock"
	"github.com/hetc/hetc/internal/wholefile"
)

// OwnDirectory makes a directory, and keeps other processes that call it out until unlock is called or this process
// dies. While another has it, it waits, and says so once.
func OwnDirectory(ctx context.Context, dir string, waiting func()) (unlock func(), err error) {
	if err := wholefile.WritableDirectory(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, diag.New(diag.ClassIO, "output %q: %w", dir, err)
	}
	file, err := os.Open(dir)
	if err != nil {
		return nil, diag.New(diag.ClassIO, "output %q: %w", dir, err)
	}
	for first := true; ; first = false {
		// Where there are no locks, files are replaced whole all the same.
		if err := filelock.Try(file); !errors.Is(err, filelock.ErrBusy) {
			return func() { file.Close() }, nil
		}
		if first {
			waiting()
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, ctx.Err()
		// File locks cannot be waited for with a context, so they are polled.
		case <-time.After(100 * time.Millisecond):
		}
	}
}
