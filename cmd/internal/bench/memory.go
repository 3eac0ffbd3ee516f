package bench

import (
	"context"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
)

// memoryWatch reads memory before every round. Decoding waits for memory, so its prediction holds only while memory is
// as fast as it was when the SoC was probed and profiled.
type memoryWatch struct {
	processor *socs.Processor  // its cores read
	stream    *profiler.Stream // nil: nothing is watched
	gbps      []float64
}

// memoryReport compares the bandwidth before the rounds with that of the probe.
type memoryReport struct {
	Processor  string       `json:"processor"` // its cores read
	ProbedGBps float64      `json:"probed_gbps"`
	GBps       stat.Summary `json:"gbps"` // of the rounds
}

// openMemoryWatch allocates the memory that the processor of this machine with the most cores reads. The watch of a
// simulated SoC does nothing.
func openMemoryWatch(ctx context.Context, soc *socs.SoC) (*memoryWatch, error) {
	watch := &memoryWatch{}
	for i := range soc.Processors {
		proc := &soc.Processors[i]
		if proc.Driver == host.Name && (watch.processor == nil || len(proc.Cores) > len(watch.processor.Cores)) {
			watch.processor = proc
		}
	}

	if watch.processor == nil {
		return watch, nil
	}

	var err error
	watch.stream, err = profiler.OpenStream(ctx, host.New(), watch.processor.Cores, soc.LastCacheBytes())
	return watch, err
}

// look reads memory once.
func (w *memoryWatch) look(ctx context.Context) error {
	if w == nil || w.stream == nil {
		return nil
	}
	now, err := w.stream.GBps(ctx)
	w.gbps = append(w.gbps, now)
	return err
}

// show prints the bandwidth before the rounds, beside that of the SoC file. It returns nil if nothing was watched.
func (w *memoryWatch) show(ui *cli.Streams) (*memoryReport, error) {
	if len(w.gbps) == 0 {
		return nil, nil
	}
	summary, err := stat.Summarise(w.gbps)
	if err != nil {
		return nil, err
	}
	ui.Printf("\nmemory before the rounds, read by %s: %.1f GB/s (%.1f..%.1f); when the SoC was probed: %.1f. "+
		"Decoding takes\nthat much more or less time than predicted, where it waits for memory.\n", w.processor.Name,
		summary.Median, summary.Low, summary.High, w.processor.BandwidthGBps)
	return &memoryReport{w.processor.Name, w.processor.BandwidthGBps, summary}, nil
}

// close frees the memory.
func (w *memoryWatch) close() {
	if w.stream != nil {
		w.stream.Close()
	}
}
