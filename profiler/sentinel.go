package profiler

import (
	"context"
	"math"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
)

// sentinel is one operator that is measured again and again: when its time moves, the machine has
// changed.
type sentinel struct {
	source source
	loops  int       // executions of a sample
	past   []float64 // medians of the last readings, ns
	since  int       // samples of other operators since it was asked
}

// sentinelMemory is the number of past readings that a new one is compared with.
const sentinelMemory = 15

// ensureSentinel makes the lane's sentinel if it has none yet: an addition in the second-level cache,
// which feels both the clock and the neighbours. A processor without additions gets the operator of
// what.
func (r *runner) ensureSentinel(ctx context.Context, lane *lane, what *record.Measurement) error {
	if lane.sentinel != nil {
		return nil
	}
	operator, layout := op.Op{Kind: op.Add, M: 64, N: 1024}, ""
	if lane.caps.Supports(operator) != nil {
		operator, layout = *what.Op, what.Layout
	}
	ld, err := r.loadOp(ctx, lane, operator, layout, 0)
	if err != nil {
		return err
	}
	made := &sentinel{source: soloSource{ld}, loops: 1}
	for range 5 {
		ns, err := made.source.sample(ctx, made.loops)
		if err != nil {
			return err
		}
		made.loops = loopsFor(ns)
	}
	lane.sentinel = made
	for range 3 {
		if _, err := r.steady(ctx, lane); err != nil {
			return err
		}
	}
	return nil
}

// steady asks the lane's sentinel whether its time is that of its recent past, within 3 % or within
// its own noise.
func (r *runner) steady(ctx context.Context, lane *lane) (bool, error) {
	watch := lane.sentinel
	r.letOthersSleep(lane)
	var xs []float64
	for range sentinelSamples {
		ns, err := watch.source.sample(ctx, watch.loops)
		if err != nil {
			return false, err
		}
		xs = append(xs, ns)
	}
	now := stat.Median(xs)
	watch.since = 0
	ok := true
	if len(watch.past) >= 3 {
		sum, err := stat.Summarise(watch.past)
		if err != nil {
			return false, err
		}
		// 4 MAD is about 2.7 standard deviations of a normal distribution.
		ok = math.Abs(now-sum.Median) <= max(sentinelDrift*sum.Median, 4*sum.MAD)
	}
	watch.past = append(watch.past, now)
	if len(watch.past) > sentinelMemory {
		watch.past = watch.past[1:]
	}
	return ok, nil
}
