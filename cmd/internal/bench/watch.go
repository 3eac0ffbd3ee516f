package bench

import (
	"context"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
)

// machineWatch reads memory and multiplies on registers before every round. Decoding waits for memory and a prompt for
// products, so their predictions hold only while the machine is as fast as it was when it was probed and profiled.
type machineWatch struct {
	processor  *socs.Processor  // its cores work
	stream     *profiler.Stream // nil: nothing is watched
	gbps       []float64
	arithmetic *profiler.Arithmetic // nil: not watched
	gops       []float64
}

// memoryReport compares the bandwidth before the rounds with that of the probe.
type memoryReport struct {
	Processor  string       `json:"processor"` // its cores read
	ProbedGBps float64      `json:"probed_gbps"`
	GBps       stat.Summary `json:"gbps"` // of the rounds
}

// arithmeticReport compares int8 arithmetic on registers before the rounds with that of the probe.
type arithmeticReport struct {
	Processor  string       `json:"processor"` // its cores multiplied
	ProbedGops float64      `json:"probed_gops"`
	Gops       stat.Summary `json:"gops"` // of the rounds
}

// openMachineWatch allocates the memory that the processor of this machine with the most cores reads. The watch of a
// simulated SoC does nothing.
func openMachineWatch(ctx context.Context, soc *socs.SoC) (*machineWatch, error) {
	watch := &machineWatch{}
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
	if watch.processor.PeakGops[string(op.I8)] > 0 {
		watch.arithmetic, err = profiler.NewArithmetic(ctx, host.New(), watch.processor.Cores, watch.processor.Options)
		if err != nil {
			return nil, err
		}
	}
	watch.stream, err = profiler.OpenStream(ctx, host.New(), watch.processor.Cores, soc.LastCacheBytes())
	return watch, err
}

// look reads memory and multiplies once.
func (w *machineWatch) look(ctx context.Context) error {
	if w == nil || w.stream == nil {
		return nil
	}
	now, err := w.stream.GBps(ctx)
	if err != nil {
		return err
	}
	w.gbps = append(w.gbps, now)

	if w.arithmetic == nil {
		return nil
	}
	now, err = w.arithmetic.Gops(ctx)
	w.gops = append(w.gops, now)
	return err
}

// show prints the speed before the rounds beside that of the SoC file, and adds it to the result of a command. It does
// nothing if nothing was watched.
func (w *machineWatch) show(ui *cli.Streams, doc map[string]any) error {
	if len(w.gbps) > 0 {
		memory, err := stat.Summarise(w.gbps)
		if err != nil {
			return err
		}
		ui.Printf("\nmemory before the rounds, read by %s: %.1f GB/s (%.1f..%.1f); when the SoC was probed: %.1f. "+
			"Decoding takes\nthat much more or less time than predicted, where it waits for memory.\n", w.processor.Name,
			memory.Median, memory.Low, memory.High, w.processor.BandwidthGBps)
		doc["memory"] = &memoryReport{w.processor.Name, w.processor.BandwidthGBps, memory}
	}

	if len(w.gops) > 0 {
		products, err := stat.Summarise(w.gops)
		if err != nil {
			return err
		}
		probed := w.processor.PeakGops[string(op.I8)]
		ui.Printf("int8 arithmetic on registers before the rounds, by %s: %.0f Gop/s (%.0f..%.0f); when the SoC was "+
			"probed: %.0f. Prompts\ntake more or less time than predicted with it, where they wait for products.\n",
			w.processor.Name, products.Median, products.Low, products.High, probed)
		doc["arithmetic"] = &arithmeticReport{w.processor.Name, probed, products}
	}
	return nil
}

// close frees the memory.
func (w *machineWatch) close() {
	if w.stream != nil {
		w.stream.Close()
	}
}
