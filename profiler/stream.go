package profiler

import (
	"context"
	"fmt"
	"time"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
)

// Windows of one reading of a Stream or of Arithmetic.
const (
	readingSamples = 3
	readingWindow  = 10 * time.Millisecond
)

// Stream tells how fast cores read memory together at the moment. On a virtual machine that depends on what its
// neighbours do, and decoding is as fast as memory is read.
type Stream struct {
	cores  []int
	region *mem.Region
	read   func([]byte) uint64
}

// OpenStream allocates memory that no cache holds, four times the last one. The cores read it by the instructions of a
// driver's kernels, as Probe does.
func OpenStream(ctx context.Context, from driver.Driver, cores []int, lastCacheBytes int64) (*Stream, error) {
	_, bounds, err := describe(ctx, from, cores[:1], nil) // one core's kernels are those of all
	if err != nil {
		return nil, fmt.Errorf("read memory by cores %v: %w", cores, err)
	}
	out := &Stream{cores: cores, read: bounds.Stream}
	if out.read == nil {
		out.read = readMemory
	}
	if out.region, err = allocTouched(streamBytes(lastCacheBytes)); err != nil {
		return nil, err
	}
	return out, nil
}

// GBps reads for some 40 ms and returns the median rate in 1e9 bytes a second.
func (s *Stream) GBps(ctx context.Context) (float64, error) {
	return medianRate(ctx, s.cores, reading(s.region.Bytes(), len(s.cores), s.read))
}

// Close frees the memory.
func (s *Stream) Close() { s.region.Close() }

// Arithmetic tells how fast cores multiply bytes on registers alone at the moment. Another hardware thread of a core,
// which on a virtual machine is a neighbour's, halves that while it works.
type Arithmetic struct {
	cores []int
	peak  func(ops int64) int64
}

// NewArithmetic has cores multiply by the instructions of a driver's kernels, as Probe does. Options are those of the
// processor in the SoC file, which may name kernels. It returns nil for kernels whose peak is not known.
func NewArithmetic(
	ctx context.Context, from driver.Driver, cores []int, options map[string]string,
) (*Arithmetic, error) {
	_, bounds, err := describe(ctx, from, cores[:1], options) // one core's kernels are those of all
	if err != nil {
		return nil, fmt.Errorf("multiply by cores %v: %w", cores, err)
	}
	if bounds.PeakI8 == nil {
		return nil, nil
	}
	return &Arithmetic{cores: cores, peak: bounds.PeakI8}, nil
}

// Gops multiplies for some 40 ms and returns the median rate in 1e9 operations a second, two per multiply-add.
func (a *Arithmetic) Gops(ctx context.Context) (float64, error) {
	return medianRate(ctx, a.cores, computing(a.peak))
}

// medianRate returns the median rate of one reading, in units of work per nanosecond.
func medianRate(ctx context.Context, cores []int, work func(i int) func() int64) (float64, error) {
	samples, err := sampleRates(ctx, cores, nil, readingSamples, readingWindow, work)
	if err != nil {
		return 0, err
	}
	return stat.Median(samples), nil
}
