package executor

import (
	"context"
)

// Source yields the verified bytes of a plan's artifacts and weights blobs by name. The bytes stay
// valid and unchanged while the Machine is open; weights are 64-byte aligned at least.
type Source interface {
	Blob(name string) ([]byte, error)                       // an artifact
	Range(name string, offset, bytes int64) ([]byte, error) // a part of a weights blob
}

// Copier is an optional interface of a Source: CopyRange is Range into memory of the caller, where a Source can do that
// without making what it maps resident.
type Copier interface {
	CopyRange(name string, offset int64, out []byte) error
}

// Part is a piece of a weights blob that Range is going to be asked for. Few says that little of it will be read.
type Part struct {
	Blob          string
	Offset, Bytes int64
	Few           bool
}

// Ahead is an optional interface of a Source. It prepares many parts at a time before Range is
// called for them, in about their order, until ctx ends. through learns of how many of them, from the first on, Range
// will find prepared what can be; its calls come one at a time, with ever larger numbers. Ahead returns no error: what
// cannot be prepared is refused by Range.
type Ahead interface {
	Ahead(ctx context.Context, parts []Part, through func(parts int))
}

// Steady is an optional interface of a Source. Unchanged returns an error if the bytes that it gave
// out have changed, as far as it can tell. It is called after every program call and must be cheap.
type Steady interface {
	Unchanged() error
}
