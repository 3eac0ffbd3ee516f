package profiler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// Measurements of a device beside cores.
const (
	jointSamples = 9 // windows in which the cores read
	jointWindow  = 30 * time.Millisecond
	jointFlight  = 4 // calls of the device that are submitted together
)

// readsOnCores reports whether a processor's bandwidth is what readers on its cores reach. A device made of cores reads
// by its own threads.
func readsOnCores(proc *socs.Processor) bool { return len(proc.Cores) > 0 && !proc.SingleQueue }

// measureJoint measures what a device and the cores of every other processor reach together, and writes it as the joint
// bandwidth of the two: the device adds large matrices while the cores read, and both are counted over the same time.
func (p *prober) measureJoint(ctx context.Context, run *runner, proc *socs.Processor, large op.Op) error {
	lane, err := run.lane(ctx, proc.Name, nil)
	if err != nil {
		return err
	}
	queue, ok := lane.proc.(driver.Asynchronous)
	if !ok {
		return nil
	}
	ld, err := run.loadOp(ctx, lane, large, "", 0)
	if err != nil {
		return err
	}
	defer ld.close(ctx)
	known := map[string]float64{} // by cores
	for i := range p.soc.Processors {
		other := &p.soc.Processors[i]
		if !readsOnCores(other) || p.soc.Concurrent(proc.Name, other.Name) != nil {
			continue
		}
		cores := fmt.Sprint(other.Cores)
		if _, ok := known[cores]; !ok {
			p.options.note("memory bandwidth of %s beside cores %v", proc.Name, other.Cores)
			if known[cores], err = p.jointBandwidth(ctx, run, ld, queue, other.Cores); err != nil {
				return fmt.Errorf("measure %s beside cores %v: %w", proc.Name, other.Cores, err)
			}
		}
		set := socs.Joint{Processors: []string{other.Name, proc.Name}, BandwidthGBps: round(known[cores], 3)}
		slices.Sort(set.Processors)
		p.soc.Joint = append(p.soc.Joint, set)
		p.soc.Sources[set.Path()] = "measured: by hetc probe, adding large matrices beside reading memory beyond the last " +
			"cache"
	}
	return nil
}

// submission is a group of calls: when it was submitted and when its last call was done.
type submission struct{ from, to time.Time }

// jointBandwidth returns how many GB/s a device and cores reach at the same time.
func (p *prober) jointBandwidth(
	ctx context.Context, run *runner, ld *loadedOp, queue driver.Asynchronous, cores []int,
) (float64, error) {
	memory, err := run.stream()
	if err != nil {
		return 0, err
	}
	var flights []submission
	var stop atomic.Bool
	started := make(chan struct{})
	begun := sync.OnceFunc(func() { close(started) })
	wait := ld.lane.start(ctx, func() error {
		defer begun() // also after an error
		for !stop.Load() {
			from := time.Now()
			if _, err := ld.timeSubmitted(queue, jointFlight); err != nil {
				return err
			}
			flights = append(flights, submission{from, time.Now()})
			begun()
		}
		return nil
	})
	select {
	case <-started:
	case <-ctx.Done():
	}
	window := p.options.window
	if window == 0 {
		window = jointWindow
	}
	from := time.Now()
	read, err := sampleRates(ctx, cores, nil, jointSamples, window, reading(memory, len(cores), p.read))
	to := time.Now()
	stop.Store(true)
	if failed := wait(); err == nil {
		err = failed
	}
	if err != nil {
		return 0, err
	}
	var calls, spent float64
	for _, flight := range flights {
		if !flight.from.Before(from) && !flight.to.After(to) {
			calls, spent = calls+jointFlight, spent+float64(flight.to.Sub(flight.from))
		}
	}
	if calls == 0 {
		return 0, diag.New(diag.ClassRun, "the device finished no call of %v within %v", ld.op.Key(), to.Sub(from))
	}
	return stat.Median(read) + calls*float64(ld.op.Bytes())/spent, nil
}
