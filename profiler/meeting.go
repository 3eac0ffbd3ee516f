package profiler

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
)

// Numbers of the measurement of meetings.
const (
	meetingRounds = 41
	meetingWarm   = 4
	// Medians that differ by less count as equal; the way that keeps a core less busy is then better.
	meetingAlike = 1.03
)

// meetingColumns are the lengths of the vectors that a call adds: one that ends at once, and one that a lane sleeps
// for.
var meetingColumns = []int{1, 1 << 20}

// meeting is a way in which a lane meets the calls of a device: how it waits, with options of the driver.
type meeting struct {
	wait       capability.Waiting
	completion string            // the options' name, "" for none
	options    map[string]string // beside the processor's

	lanes []*executor.Meeting // one for each length
	took  [][]float64         // by length
	core  [][]float64

	submitNS, endNS float64 // of a call that ends at once
}

// way names the meeting in sources: "asking again and again, completion=flag".
func (m *meeting) way() string {
	text := map[capability.Waiting]string{capability.WaitSleep: "asleep as long as it is expected to take",
		capability.WaitPoll: "asking again and again", capability.WaitEvent: "woken by the driver"}[m.wait]
	if m.completion != "" {
		text += ", completion by " + m.completion
	}
	return text
}

// word names the meeting in facts: "poll", "event_flag".
func (m *meeting) word() string {
	text := string(m.wait)
	if m.wait == capability.WaitSleep {
		text = "sleep"
	}
	if m.completion != "" {
		text += "_" + m.completion
	}
	return text
}

// measureMeetings measures every way of meeting a device's calls, by the executor's own code and side by side. It
// writes the best one into the processor: the one with the least time over all lengths, and among similar ones the one that
// keeps a core least busy. launchNS is the time of a call among others in flight. What a single call takes beyond it is
// the way there and back: submitting the call, and noticing its end.
func (p *prober) measureMeetings(ctx context.Context, run *runner, proc *socs.Processor, launchNS float64) (best *meeting,
	err error) {
	p.options.note("ways of waiting for %s", proc.Name)
	names := []string{""}
	if len(proc.Cores) == 0 {
		names = append(names, slices.Sorted(maps.Keys(p.completions[proc.Name]))...)
	}
	var list []*meeting
	var closers []func() error
	defer func() {
		for _, closer := range slices.Backward(closers) {
			if failed := closer(); err == nil {
				err = failed
			}
		}
	}()
	for _, name := range names {
		for _, wait := range waysToWait(proc) {
			one := &meeting{wait: wait, completion: name, options: p.completions[proc.Name][name]}
			for _, columns := range meetingColumns {
				lane, opened, err := p.meet(ctx, run, proc, one, columns)
				closers = append(closers, opened...)
				if err != nil {
					return nil, fmt.Errorf("measure meetings of %s: %w", proc.Name, err)
				}
				one.lanes = append(one.lanes, lane)
			}
			one.took, one.core = make([][]float64, len(one.lanes)), make([][]float64, len(one.lanes))
			list = append(list, one)
		}
	}
	rounds := meetingRounds
	if p.options.memory > 0 { // tests
		rounds = 5
	}
	for round := -meetingWarm; round < rounds; round++ {
		for _, at := range run.rng.Perm(len(list)) {
			for i, lane := range list[at].lanes {
				met, err := lane.Once(ctx, 1)
				if err != nil {
					return nil, err
				}
				if round >= 0 {
					list[at].took[i] = append(list[at].took[i], float64(met.Took))
					list[at].core[i] = append(list[at].core[i], float64(met.Core))
				}
			}
		}
	}
	best = bestMeeting(list)
	if best.submitNS, err = run.submission(ctx, proc.Name); err != nil {
		return nil, err
	}
	p.chooseMeeting(proc, list, best, launchNS)
	return best, nil
}

// waysToWait returns the ways that may be best for a device. For one that is made of cores of the CPU that is the event
// of its driver: in a whole program a lane that polls slows the device's threads down, which single turns do not show.
func waysToWait(proc *socs.Processor) []capability.Waiting {
	if len(proc.Cores) > 0 {
		return []capability.Waiting{capability.WaitEvent}
	}
	return capability.Waitings
}

// bestMeeting returns the way with the least relative time over all lengths; among similar ones the one that keeps a
// core least busy.
func bestMeeting(list []*meeting) *meeting {
	ratio, core := make([]float64, len(list)), make([]float64, len(list))
	for i := range list[0].lanes {
		least := stat.Median(list[0].took[i])
		for _, other := range list {
			least = min(least, stat.Median(other.took[i]))
		}
		for number, m := range list {
			ratio[number] += stat.Median(m.took[i]) / max(least, 1) / float64(len(m.lanes))
			core[number] += stat.Median(m.core[i])
		}
	}
	return list[leastOf(ratio, core)]
}

// leastOf returns the number of the least time; of times that are alike, the one with the least use of a core.
func leastOf(took, core []float64) int {
	best := 0
	for i := range took {
		if took[i] < took[best] {
			best = i
		}
	}
	least := took[best]
	for i := range took {
		if took[i] <= least*meetingAlike && core[i] < core[best] {
			best = i
		}
	}
	return best
}

// chooseMeeting writes the best way and the times of all into the SoC.
func (p *prober) chooseMeeting(proc *socs.Processor, list []*meeting, best *meeting, launchNS float64) {
	const source = "measured: by hetc probe, by the executor's own lanes"
	at, prefix := "processors."+proc.Name, factPrefix(proc.Name)
	proc.Wait = best.wait
	if len(best.options) > 0 {
		merged := maps.Clone(best.options)
		maps.Copy(merged, proc.Options)
		proc.Options = merged
	}
	if proc.Wait != capability.WaitSleep {
		p.soc.Sources[at+".wait"] = source
	}
	for _, m := range list {
		for i, columns := range meetingColumns {
			p.soc.AddFact(fmt.Sprintf("%smeeting_%d_us_%s", prefix, columns, m.word()),
				round(stat.Median(m.took[i])/1e3, 4), source)
		}
		p.soc.AddFact(prefix+"meeting_core_us_"+m.word(), round(stat.Median(m.core[len(m.core)-1])/1e3, 4), source)
	}
	proc.SubmitUS = round(best.submitNS/1e3, 4)
	p.soc.Sources[at+".submit_us"] = "measured: by hetc probe, submitting an addition of two numbers"
	// What is neither launch nor submission is the way back.
	best.endNS = max(0, stat.Median(best.took[0])-launchNS-best.submitNS)
}

// meet opens the processor and starts a lane for it. What it returns is to be closed last first, also after an error.
func (p *prober) meet(ctx context.Context, run *runner, proc *socs.Processor, how *meeting, columns int) (
	lane *executor.Meeting, closers []func() error, err error) {
	options := maps.Clone(how.options)
	if options == nil {
		options = map[string]string{}
	}
	maps.Copy(options, proc.Options)
	return OpenMeeting(ctx, run.options.Drivers[proc.Driver], run.options.Compilers[proc.Driver],
		driver.Config{Select: proc.Select, Options: options}, how.wait, columns)
}

// OpenMeeting opens an asynchronous processor, loads an addition of two vectors of that many columns, and starts a lane
// that meets its calls in the given way. What it returns is to be closed last first, also after an error. A processor
// that executes calls synchronously is an error of class ClassInput.
func OpenMeeting(ctx context.Context, from driver.Driver, compiler driver.Compiler, config driver.Config,
	wait capability.Waiting, columns int) (lane *executor.Meeting, closers []func() error, err error) {
	added, closers, err := openAddition(ctx, from, compiler, config, columns, 1)
	if err != nil {
		return nil, closers, err
	}
	queue, ok := added.proc.(driver.Asynchronous)
	if !ok {
		return nil, closers, diag.New(diag.ClassInput, "processor %q of driver %q executes calls synchronously: there is "+
			"nothing to wait for", config.Select, from.Name()).
			WithHint("choose one that executes calls by itself, such as a device of driver opencl")
	}
	if lane, err = executor.NewMeeting(queue, wait, added.calls[0].Exe, added.calls[0].Bind); err != nil {
		return nil, closers, err
	}
	return lane, append(closers, lane.Close), nil
}

// submission returns how long the submission of a call takes to a processor that has nothing to do, in ns.
func (r *runner) submission(ctx context.Context, name string) (float64, error) {
	lane, err := r.lane(ctx, name, nil)
	if err != nil {
		return 0, err
	}
	ld, err := r.loadOp(ctx, lane, op.Op{Kind: op.Add, M: 1, N: 1}, "", 0)
	if err != nil {
		return 0, err
	}
	defer ld.close(ctx)
	queue, ok := lane.proc.(driver.Asynchronous)
	if !ok {
		return 0, nil
	}
	var samples []float64
	err = lane.do(ctx, func() error {
		for i := range meetingWarm + meetingRounds {
			began := queue.Now()
			ticket, err := queue.Submit(ld.exes[0], &ld.binds[0])
			if err != nil {
				return err
			}
			took := float64(queue.Now() - began)
			if _, err := queue.Wait(ticket); err != nil {
				return withoutCallNumber(err)
			}
			if i >= meetingWarm {
				samples = append(samples, took)
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return stat.Median(samples), nil
}
