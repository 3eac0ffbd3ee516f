package profiler

import (
	"context"
	"fmt"
	"time"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// Stream tells how fast a processor's cores read memory together at the moment. On a virtual machine that depends on
// what its neighbours do, and decoding is as fast as memory is read.
type Stream struct {
	Processor  string  // that has the most cores
	ProbedGBps float64 // what the SoC file says of it

	cores  []int
	region *mem.Region
	read   func([]byte) uint64
}

// Windows of one reading of a Stream.
const (
	streamSamples = 3
	streamWindow  = 10 * time.Millisecond
)

// OpenStream allocates memory that no cache holds, for the processor of the SoC with the most cores. Such a processor's
// driver is one of drivers. It returns nil for a SoC without processors whose cores read for themselves.
func OpenStream(ctx context.Context, soc *socs.SoC, drivers []driver.Driver) (*Stream, error) {
	var most *socs.Processor
	for i := range soc.Processors {
		proc := &soc.Processors[i]
		if readsOnCores(proc) && proc.Sim == nil && (most == nil || len(proc.Cores) > len(most.Cores)) {
			most = proc
		}
	}
	if most == nil {
		return nil, nil
	}
	out := &Stream{Processor: most.Name, ProbedGBps: most.BandwidthGBps, cores: most.Cores, read: sum}
	for _, from := range drivers {
		if from.Name() != most.Driver {
			continue
		}
		_, bounds, err := describe(ctx, from, most.Cores, most.Options)
		if err != nil {
			return nil, fmt.Errorf("read memory as %q: %w", most.Name, err)
		}
		if bounds.Stream != nil {
			out.read = bounds.Stream
		}
	}
	var err error
	if out.region, err = touched(streamBytes(soc.LastCacheBytes())); err != nil {
		return nil, err
	}
	return out, nil
}

// GBps reads for some ten milliseconds.
func (s *Stream) GBps(ctx context.Context) (float64, error) {
	rate, err := rates(ctx, s.cores, nil, streamSamples, streamWindow, reading(s.region.Bytes(), len(s.cores), s.read))
	if err != nil {
		return 0, err
	}
	return stat.Median(rate), nil
}

// Close frees the memory.
func (s *Stream) Close() { s.region.Close() }
