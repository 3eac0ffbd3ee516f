//go:build !linux && !darwin && !freebsd

package mem

import (
	"io"
	"os"

	"github.com/hetc/hetc/internal/diag"
)

// The Go heap does not move what it allocates, so an over-long slice can be aligned.
func alloc(bytes, align int) (*Region, error) {
	return &Region{data: alignUp(make([]byte, bytes+align-1), bytes, align)}, nil
}

func allocSmall(bytes, align int) (*Region, error) { return alloc(bytes, align) }

// Alignment as of a mapping, because callers view the contents as wider types.
func mapFile(file *os.File, bytes int) (*Region, error) {
	region, err := alloc(bytes, 1<<16)
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(io.NewSectionReader(file, 0, int64(bytes)), region.data); err != nil {
		return nil, err
	}
	return region, nil
}

// guarded needs pages without access, which are not built in for this system.
func guarded(int, bool) (*Region, error) {
	return nil, diag.New(diag.ClassUnavailable, "allocate guarded memory: not built in for this operating system")
}

// advise ignores hints, which is always right.
func (r *Region) advise(int, int, Advice) error { return nil }
