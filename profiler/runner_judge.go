package profiler

import (
	"context"
	"slices"

	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
)

// sample takes one sample of a task.
func (r *runner) sample(ctx context.Context, task *task) error {
	r.letOthersSleep(task.lane)
	start := r.options.now()
	virtual := r.virtual(task.request.What.Proc)
	source, solo := task.source.(soloSource)
	if solo && !virtual {
		if err := source.warmOperands(ctx, task.request.What.Footprint); err != nil {
			return err
		}
	}

	ns, err := task.source.sample(ctx, task.loops)
	if err != nil {
		return err
	}

	// The record of a simulation must not depend on the time that simulating takes.
	if !virtual {
		task.spent += r.options.now().Sub(start)
	}
	task.samples = append(task.samples, round(ns, 7))
	task.sinceSentinel++
	if task.lane != nil {
		task.lane.sentinel.since++
	}
	return nil
}

// judge decides which tasks have enough samples, and asks the sentinels of their lanes whether the
// machine is still what it was. Samples taken while it changed are dropped and taken again. Tasks
// that pass are written.
func (r *runner) judge(ctx context.Context) error {
	over := r.budgetEnded()
	ask := map[*lane]bool{}
	for _, task := range r.active {
		task.done = r.hasEnough(task, over)
		if task.lane != nil && (task.done || task.lane.sentinel.since >= sentinelEvery) {
			ask[task.lane] = true
		}
	}

	for _, name := range sortedNames(r.lanes) {
		lane := r.lanes[name]
		if !ask[lane] {
			continue
		}
		steady, err := r.steady(ctx, lane)
		if err != nil {
			return err
		}

		for _, task := range r.active {
			if task.lane == lane {
				task.keep(steady, over)
			}
		}
	}

	for _, task := range slices.Clone(r.active) {
		if !task.done {
			continue
		}
		if err := r.finish(ctx, task); err != nil {
			return err
		}
	}

	return nil
}

// keep decides about the samples since the sentinel last agreed. If the machine was not steady they are dropped, a few
// times at most; if the budget is over they stay, and the task is marked as drifted.
func (t *task) keep(steady, over bool) {
	switch {
	case steady:
	case t.requeued < maxRequeues && !over:
		t.samples = t.samples[:len(t.samples)-t.sinceSentinel]
		t.done = false
		t.requeued++
	default:
		t.drifted = true
	}
	t.sinceSentinel = 0
}

// hasEnough applies the stopping rule and sets the warning that belongs to the samples.
func (r *runner) hasEnough(task *task, over bool) bool {
	count := len(task.samples)
	task.verdict = ""
	if r.options.Rounds > 1 && !r.remeasuring {
		return r.visitComplete(task, over)
	}
	virtual := r.virtual(task.request.What.Proc)
	if virtual && count >= fewSamples && slices.Max(task.samples) == slices.Min(task.samples) {
		return true // equal samples of a simulation have no noise
	}

	if task.expensive || over {
		if count < fewSamples {
			return false
		}
		if count < r.options.Rule.Min {
			task.verdict = record.FewSamples
			return true
		}
	}

	verdict := r.options.Rule.Judge(task.samples)
	if verdict == stat.Precise {
		return true
	}
	late := count >= r.options.Rule.Min && task.spent >= task.sampleLimit
	if verdict == stat.More && !over && !late {
		return false
	}
	task.verdict = record.Noisy
	return true
}

// visitComplete is the stopping rule of one visit among several. Each visit takes the same few samples, so that no
// moment of the machine counts more than another; the last visit judges all samples together.
func (r *runner) visitComplete(task *task, over bool) bool {
	each := (r.options.Rule.Min+r.options.Rounds-1)/r.options.Rounds + 1
	if task.expensive {
		each = 1
	}
	if len(task.samples) < each && !over {
		return false
	}

	key := task.request.Key()
	samples := task.samples
	if old := r.writer.Set().Lookup(key); old != nil {
		samples = slices.Concat(old.Samples, samples)
	}
	last := r.writer.Set().Rounds(key)+1 >= r.options.Rounds
	switch {
	case len(samples) < r.options.Rule.Min:
		task.verdict = record.FewSamples
	case last && r.options.Rule.Judge(samples) != stat.Precise:
		task.verdict = record.Noisy
	}

	return true
}

// finish writes a task's measurement.
func (r *runner) finish(ctx context.Context, ended *task) error {
	what := ended.request.What
	what.First, what.Loops, what.Samples = round(ended.first, 7), ended.loops, ended.samples
	what.Simulated = r.virtual(what.Proc)
	what.Round = r.writer.Set().Rounds(what.Key())
	if ended.drifted || stat.Drift(what.Samples, sentinelDrift) {
		what.Warnings = append(what.Warnings, record.Drifted)
	}
	if ended.verdict != "" {
		what.Warnings = append(what.Warnings, ended.verdict)
	}

	// A repetition replaces the flagged measurement only if it is better.
	old := r.writer.Set().Lookup(what.Key())
	what.Anew = r.remeasuring && (len(what.Warnings) == 0 || narrower(what.Samples, old.Samples))
	ended.source.close(ctx)
	r.active = slices.DeleteFunc(r.active, func(other *task) bool { return other == ended })
	if err := r.writer.Append(&what); err != nil {
		return err
	}

	r.visits++
	key := what.Key()
	if !r.done[key] {
		r.done[key] = true
		r.report.Measured++
	}
	r.progress(ended, true)
	return nil
}

// narrower reports whether the interval of the median is narrower with the first samples than with the second. Samples
// without an interval are never narrower.
func narrower(first, second []float64) bool {
	one, err := stat.Summarise(first)
	if err != nil {
		return false
	}
	other, err := stat.Summarise(second)
	return err != nil || one.Relative() < other.Relative()
}
