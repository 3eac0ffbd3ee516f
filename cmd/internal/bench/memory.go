package bench

import (
	"context"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/socs"
)

// memoryWatch reads memory before every round. Decoding is bound by it, so that a prediction is only as good as memory
// is as fast as it was when the SoC was probed and profiled.
type memoryWatch struct {
	stream *profiler.Stream // nil: nothing is watched
	gbps   []float64
}

// memoryReport is what a watch saw.
type memoryReport struct {
	Processor  string       `json:"processor"` // whose cores read
	ProbedGBps float64      `json:"probed_gbps"`
	GBps       stat.Summary `json:"gbps"` // of the rounds
}

// openMemoryWatch allocates what is read.
func openMemoryWatch(ctx context.Context, soc *socs.SoC) (*memoryWatch, error) {
	stream, err := profiler.OpenStream(ctx, soc, bindings.Drivers(soc))
	return &memoryWatch{stream: stream}, err
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

// show prints what was seen, beside what the SoC file says.
func (w *memoryWatch) show(ui *cli.Streams) (*memoryReport, error) {
	if len(w.gbps) == 0 {
		return nil, nil
	}
	summary, err := stat.Summarise(w.gbps)
	if err != nil {
		return nil, err
	}
	ui.Printf("\nmemory before the rounds, read by %s: %.1f GB/s (%.1f..%.1f); when the SoC was probed: %.1f. What "+
		"reads\nmemory, as decoding does, takes longer by that.\n", w.stream.Processor, summary.Median, summary.Low,
		summary.High, w.stream.ProbedGBps)
	return &memoryReport{w.stream.Processor, w.stream.ProbedGBps, summary}, nil
}

// close frees the memory.
func (w *memoryWatch) close() {
	if w.stream != nil {
		w.stream.Close()
	}
}
