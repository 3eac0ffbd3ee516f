package runcmd

import (
	"context"
	"fmt"

	"github.com/hetc/hetc/runtime/executor"
)

// UntilDone is src until ctx ends, so that loading gigabytes of weights can be interrupted.
func UntilDone(ctx context.Context, src executor.Source) executor.Source { return &untilDone{ctx, src} }

// untilDone refuses to load more once its context has ended.
type untilDone struct {
	ctx context.Context
	src executor.Source
}

// Blob implements executor.Source.
func (u *untilDone) Blob(name string) ([]byte, error) {
	if err := u.ctx.Err(); err != nil {
		return nil, fmt.Errorf("load %q: %w", name, err)
	}
	return u.src.Blob(name)
}

// Range implements executor.Source.
func (u *untilDone) Range(name string, offset, bytes int64) ([]byte, error) {
	if err := u.ctx.Err(); err != nil {
		return nil, fmt.Errorf("load %q: %w", name, err)
	}
	return u.src.Range(name, offset, bytes)
}

// CopyRange implements executor.Copier.
func (u *untilDone) CopyRange(name string, offset int64, out []byte) error {
	if copier, ok := u.src.(executor.Copier); ok && u.ctx.Err() == nil {
		return copier.CopyRange(name, offset, out)
	}
	data, err := u.Range(name, offset, int64(len(out)))
	copy(out, data)
	return err
}

// Ahead implements executor.Ahead.
func (u *untilDone) Ahead(ctx context.Context, parts []executor.Part, through func(parts int)) {
	if ahead, ok := u.src.(executor.Ahead); ok {
		ahead.Ahead(ctx, parts, through)
	}
}

// Unchanged says why what src gave out cannot be believed any more; it implements executor.Steady.
func (u *untilDone) Unchanged() error {
	if steady, ok := u.src.(executor.Steady); ok {
		return steady.Unchanged()
	}
	return nil
}
