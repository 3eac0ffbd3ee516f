package profiler

import (
	"context"
	"fmt"
	"time"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
)

// Stream tells how fast cores read memory together at the moment. On a virtual machine that depends on what its
// neighbours do, and decoding is as fast as memory is read.
type Stream struct {
	cores  []int
	region *mem.Region
	read   func([]byte) uint64
}

// Windows of one reading of a Stream.
const (
	streamSamples = 3
	streamWindow  = 10 * time.Millisecond
)

// OpenStream allocates memory that no cache holds, four times the last one. The cores read it by the instructions of a
// driver's kernels, as Probe does.
func OpenStream(ctx context.Context, from driver.Driver, cores []int, lastCacheBytes int64) (*Stream, error) {
	_, bounds, err := describe(ctx, from, cores[:1], nil) // one core's kernels are those of all
	if err != nil {
		return nil, fmt.Errorf("read memory by cores %v: %w", cores, err)
	}
	out := &Stream{cores: cores, read: bounds.Stream}
	if out.read == nil {
		out.read = sum
	}
	if out.region, err = touched(streamBytes(lastCacheBytes)); err != nil {
		return nil, err
	}
	return out, nil
}

// GBps reads for some 40 ms and returns the median rate in 1e9 bytes a second.
func (s *Stream) GBps(ctx context.Context) (float64, error) {
	rate, err := rates(ctx, s.cores, nil, streamSamples, streamWindow, reading(s.region.Bytes(), len(s.cores), s.read))
	if err != nil {
		return 0, err
	}
	return stat.Median(rate), nil
}

// Close frees the memory.
func (s *Stream) Close() { s.region.Close() }
