package profiler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// Options controls Run.
type Options struct {
	Drivers   map[string]driver.Driver   // by name, for the processors of the SoC
	Compilers map[string]driver.Compiler // by name of their driver
	Budget    time.Duration              // 0: as long as it takes
	Seed      uint64                     // order of measurements and contents of operands
	Rounds    int                        // visits to every operator, spread over the run; 0: one
	Flagged   bool                       // also measure anew what the record has flagged
	Rule      stat.Rule                  // default stat.DefaultRule
	Progress  func(Progress)             // called when a measurement begins and when it ends; may be nil

	now    func() time.Time // tests
	window time.Duration    // tests: of one bandwidth sample
	memory int64            // tests: bytes to stream
}

// Progress is where a run stands.
type Progress struct {
	Key     string // of the measurement that began or ended
	Ended   bool
	Done    int // ended in this run or present before
	Total   int
	Elapsed time.Duration
	Left    time.Duration // estimate, at most what is left of the budget
}

// Report is what a run did.
type Report struct {
	Measured int       // in this run
	Present  int       // were in the record already, and were not visited again
	Refused  []Refusal // the processor cannot do it, or failed
	Left     []string  // keys that were never measured, because the budget ended
	Warnings map[string]int
	Elapsed  time.Duration
}

// Refusal is a request that could not be measured.
type Refusal struct {
	Key string
	Err error
}

// Rounds is the number of visits to every operator that suits a machine whose speed changes from
// second to second, as that of most machines does: all operators then meet the same mixture of fast
// and slow moments.
const Rounds = 8

// Pending returns the requests of which the set has fewer than rounds visits, in the order in which
// Run takes them up: by priority, and shuffled by seed within one.
func Pending(requests []Request, set *record.Set, rounds int, seed uint64) []Request {
	out := slices.Clone(requests)
	rng := rand.New(rand.NewPCG(seed, 3))
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	sort.SliceStable(out, func(i, j int) bool { return out[i].Priority < out[j].Priority })
	seen := map[string]bool{}
	return slices.DeleteFunc(out, func(request Request) bool {
		key := request.Key()
		want := max(rounds, 1)
		if set != nil && set.Header.Simulated {
			want = 1 // a virtual clock knows no slow moments
		}
		drop := seen[key] || set != nil && set.Rounds(key) >= want
		seen[key] = true
		return drop
	})
}

// Flagged returns the requests whose measurements in the set carry warnings, ordered as by Pending.
func Flagged(requests []Request, set *record.Set, seed uint64) []Request {
	return slices.DeleteFunc(Pending(requests, nil, 1, seed), func(request Request) bool {
		known := set.Lookup(request.Key())
		return known == nil || len(known.Warnings) == 0
	})
}

// Limits of sampling.
const (
	window      = 8                      // measurements in progress at the same time, their samples interleaved
	minSample   = 200 * time.Microsecond // one sample is at least that long, or one execution
	warmTime    = 500 * time.Millisecond // cap of warming up
	warmWindows = 10                     // cap of warming up
	// two windows of warming up agree within this share
	warmAgree = 0.02
	maxTime   = 2 * time.Second       // of sampling one operator, once it has its minimum of samples
	minTime   = 20 * time.Millisecond // the same, however short the budget
	// enough where the budget allows no more
	fewSamples      = 3
	sentinelEvery   = 20 // samples
	sentinelSamples = 3
	// share by which a sentinel's time may move
	sentinelDrift = 0.03
	// how often a task starts again because the machine changed
	maxRequeues = 2
	quietTime   = 300 * time.Microsecond // for the threads of another processor to go to sleep
	maxLoops    = 1 << 16
	gcEvery     = 4096 // loaded executables, of a few kilobytes of garbage each
)

// Run measures the requests that the writer's record does not have yet. It appends each one when it
// is done, so that a kill loses only those in progress. Requests are taken by priority, in random
// order within one, a few at a time with their samples interleaved at random. A sentinel operator
// watches for drift of the machine.
//
// When the budget ends, what no plan can do without is still measured, with few samples, and the
// rest is reported as left; that is no error. A request that a processor refuses is reported. Any
// other failure ends the run, with what was measured in the record.
//
// soc describes the processors and must be the SoC of the record. A driver that is not there is a
// driver.Unavailable.
func Run(
	ctx context.Context, soc *socs.SoC, requests []Request, writer *record.Writer, options Options,
) (Report, error) {
	if options.now == nil {
		options.now = time.Now
	}
	if options.window == 0 {
		options.window = probeWindow
	}
	if options.Rule == (stat.Rule{}) {
		options.Rule = stat.DefaultRule
	}
	if digest, err := soc.Digest(); err != nil || digest != writer.Set().Header.SoCDigest {
		return Report{}, diag.New(diag.ClassInput, "profile: the record is about another SoC than %q", soc.Name)
	}
	if options.Rounds = max(options.Rounds, 1); soc.Simulated() {
		options.Rounds = 1
	}
	limit := memoryLimit()
	all := Pending(requests, nil, 1, options.Seed)
	r := &runner{
		soc: soc, o: options, w: writer, lanes: map[string]*lane{}, rng: rand.New(rand.NewPCG(options.Seed, 4)),
		began: options.now(), coldBytes: min(max(beyondCaches(soc), 64<<20), limit/4),
		stores: stores{seed: options.Seed, limit: limit, all: map[string]*store{}},
		report: Report{Warnings: map[string]int{}}, ids: smallestTable(requests),
		total: len(all) * options.Rounds, done: map[string]bool{}, begun: writer.Set().Len() > 0,
	}
	if options.Flagged {
		r.flagged = Flagged(requests, writer.Set(), options.Seed)
		r.total += len(r.flagged)
	}
	for _, request := range all {
		r.before += min(writer.Set().Rounds(request.Key()), r.o.Rounds)
	}
	// A collection in the middle of a sample would be measured.
	if !soc.Simulated() {
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
	}
	err := r.rounds(ctx, requests)
	r.count(all)
	if cerr := r.close(ctx); err == nil {
		err = cerr
	}
	r.report.Elapsed = options.now().Sub(r.began)
	return r.report, err
}

// memoryLimit is how many bytes operands may take: half of what is free.
func memoryLimit() int64 {
	if free := availableBytes(); free > 0 {
		return free / 2
	}
	return 16 << 30
}

// beyondCaches is through how many bytes operands rotate that no cache shall hold.
// RATIONALE: Why do cold operands rotate through eight times the last cache?
func beyondCaches(soc *socs.SoC) int64 { return 8 * soc.LastCacheBytes() }

// count reports which requests the record had before, and which are flagged now.
func (r *runner) count(requests []Request) {
	set := r.w.Set()
	for _, request := range requests {
		key := request.Key()
		known := set.Lookup(key)
		switch {
		case known == nil:
		case !r.done[key]:
			r.report.Present++
		case set.Rounds(key) >= r.o.Rounds:
			for _, flag := range known.Warnings {
				r.report.Warnings[flag]++
			}
		}
	}
}

// runner is the state of one Run.
type runner struct {
	moves  bool // operands of processors with memory of their own travel in every call
	soc    *socs.SoC
	o      Options
	w      *record.Writer
	lanes  map[string]*lane
	stores stores
	memory []byte // for bandwidth
	free   func() error

	queue   []Request
	ahead   int // visits after those of the queue
	active  []*task
	must    bool            // what no plan can do without is measured although the budget has ended
	total   int             // visits
	before  int             // visits that the record had when the run began
	visits  int             // of this run
	begun   bool            // the record had measurements when the run began
	anew    bool            // what is visited is measured anew, in one visit
	flagged []Request       // measurements that the record had flagged when the run began
	done    map[string]bool // keys of this run
	rng     *rand.Rand
	began   time.Time
	report  Report
	last    *lane // that ran a sample last

	coldBytes int64 // through which operands are rotated that no cache shall hold
	// embedding ids are below it
	ids   int
	loads int // executables loaded since the last collection
}

// task is a request in progress.
type task struct {
	req  Request
	src  source
	lane *lane // whose sentinel watches it, nil for none
	// ns of the first execution
	first float64
	// executions of a sample
	loops int
	// ns per execution
	samples  []float64
	spent    time.Duration
	block    int // samples since the sentinel last agreed
	requeued int
	dear     bool          // three samples have to do
	drifted  bool          // some samples were taken while the machine changed
	cap      time.Duration // of sampling, once there is the minimum of samples
	verdict  string        // warning that belongs to the samples so far
	done     bool
	ns       float64 // of one execution, from warming up
}

// rounds visits every request once a round. Without a budget, a round goes over all of them. With a
// budget, first everything that no plan can do without is visited once. Then comes what an earlier
// run left, and then all rounds of a priority before the first of the next one. Flagged
// measurements are repeated at the end.
func (r *runner) rounds(ctx context.Context, requests []Request) error {
	classes := [][]Request{requests}
	if r.o.Budget > 0 {
		classes = byPriority(requests)
	}
	visit := func(class, round int) error {
		r.ahead = 0
		for _, later := range classes[class+1:] {
			r.ahead += len(later) * r.o.Rounds
		}
		r.ahead += len(classes[class]) * (r.o.Rounds - 1 - round)
		r.queue = Pending(classes[class], r.w.Set(), round+1, r.o.Seed+uint64(round))
		return r.run(ctx)
	}
	for number, class := range classes {
		if r.o.Budget > 0 && class[0].Priority <= priorityGlue {
			r.must = true
			err := visit(number, 0)
			r.must = false
			if err != nil {
				return err
			}
		}
	}
	// What an earlier run left comes before more visits to what it measured.
	for class := range classes {
		if !r.begun {
			break
		}
		if err := visit(class, 0); err != nil {
			return err
		}
	}
	for class := range classes {
		for round := range r.o.Rounds {
			if err := visit(class, round); err != nil {
				return err
			}
		}
	}
	r.ahead, r.queue, r.anew = 0, r.flagged, true
	if err := r.run(ctx); err != nil {
		return err
	}
	r.listLeft(requests)
	return nil
}

// byPriority divides requests into classes, those that are measured first first.
func byPriority(requests []Request) (classes [][]Request) {
	by := map[int][]Request{}
	for _, request := range requests {
		by[request.Priority] = append(by[request.Priority], request)
	}
	for _, priority := range slices.Sorted(maps.Keys(by)) {
		classes = append(classes, by[priority])
	}
	return classes
}

// listLeft reports what was neither measured nor refused.
func (r *runner) listLeft(requests []Request) {
	refused := map[string]bool{}
	for _, refusal := range r.report.Refused {
		refused[refusal.Key] = true
	}
	for _, request := range Pending(requests, nil, 1, r.o.Seed) {
		if key := request.Key(); !r.w.Set().Has(key) && !refused[key] {
			r.report.Left = append(r.report.Left, key)
		}
	}
}

// run measures the queue: it keeps a window of tasks in progress and takes one sample of each in
// turn, in random order.
func (r *runner) run(ctx context.Context) error {
	for len(r.queue)+len(r.active) > 0 {
		if err := r.fillWindow(ctx); err != nil {
			return err
		}
		r.rng.Shuffle(len(r.active), func(i, j int) { r.active[i], r.active[j] = r.active[j], r.active[i] })
		for _, task := range slices.Clone(r.active) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := r.sample(ctx, task); err != nil {
				if err := r.refuse(ctx, task, err); err != nil {
					return err
				}
			}
		}
		if err := r.judge(ctx); err != nil {
			return err
		}
	}
	return nil
}

// over reports whether the budget has ended.
func (r *runner) over() bool {
	return r.o.Budget > 0 && r.o.now().Sub(r.began) >= r.o.Budget
}

// fillWindow begins requests until enough are in progress or the budget has ended.
func (r *runner) fillWindow(ctx context.Context) error {
	together := window
	if r.o.Rounds > 1 && !r.anew {
		together = 1 // rounds interleave already, and a kill then loses one visit
	}
	for len(r.active) < together && len(r.queue) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if r.over() && !r.must {
			r.queue = nil // rounds lists what is left
			return nil
		}
		taken := &task{req: r.queue[0]}
		r.queue = r.queue[1:]
		r.progress(taken, false)
		err := r.begin(ctx, taken)
		if err == nil {
			r.active = append(r.active, taken)
			continue
		}
		if err := r.refuse(ctx, taken, err); err != nil {
			return err
		}
	}
	return nil
}

// refuse drops a task that its processor does not execute. It returns errors that are not about
// this one request.
func (r *runner) refuse(ctx context.Context, failed *task, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if failed.src != nil {
		failed.src.close(ctx)
	}
	r.active = slices.DeleteFunc(r.active, func(other *task) bool { return other == failed })
	switch {
	case errors.Is(err, driver.ErrUnavailable), diag.ClassOf(err) == diag.ClassUnavailable,
		diag.ClassOf(err) == diag.ClassIO:
		return fmt.Errorf("measure %s: %w", failed.req.Key(), err)
	case failed.lane != nil && failed.lane.dead:
		return fmt.Errorf("measure %s: %w", failed.req.Key(), err)
	}
	r.report.Refused = append(r.report.Refused, Refusal{failed.req.Key(), err})
	return nil
}

// begin opens a task, runs it once, warms it up, and decides on the length and number of its
// samples.
func (r *runner) begin(ctx context.Context, task *task) (err error) {
	what := &task.req.What
	if r.loads > gcEvery {
		r.loads = 0
		runtime.GC() // here, because it is off while samples are taken
	}
	start := r.o.now()
	if task.src, err = r.open(ctx, what); err != nil {
		return err
	}
	virtual := r.virtual(what.Proc)
	if what.Op != nil && !virtual {
		if task.lane, err = r.lane(ctx, what.Proc, nil); err != nil {
			return err
		}
		if err := r.sentinel(ctx, task.lane, what); err != nil {
			return err
		}
	}
	r.quiet(task.lane)
	if task.first, err = task.src.sample(ctx, 1); err != nil {
		return err
	}
	task.ns, task.loops = task.first, 1
	task.cap = r.sampleCap()
	switch {
	case virtual:
		return nil // nothing has to warm up
	case what.Kind == record.Bandwidth:
		return nil // its windows are long, and the first is dropped
	case what.Kind == record.Sync:
		task.loops = syncLoops
		return nil
	}
	// Operators so dear that ten samples would take an undue part of the budget get three and a flag.
	task.dear = r.o.Budget > 0 && time.Duration(task.first)*time.Duration(r.o.Rule.Min) > r.o.Budget/200
	if task.dear && time.Duration(task.first) > r.o.Budget/1000 {
		return nil // the first run has warmed it up
	}
	return r.warm(ctx, task, start)
}

// warm runs a task until two windows agree, and sets how many executions make a sample.
func (r *runner) warm(ctx context.Context, task *task, start time.Time) (err error) {
	before := task.first
	for i := range warmWindows {
		if task.ns, err = task.src.sample(ctx, task.loops); err != nil {
			return err
		}
		task.loops = loopsFor(task.ns)
		if i > 0 && math.Abs(task.ns-before) <= warmAgree*before || r.o.now().Sub(start) > warmTime {
			break
		}
		before = task.ns
	}
	return nil
}

// sampleCap divides three fifths of the budget that is left among what is left to do; the rest is
// for loading and warming up. Operators that are precise earlier leave their part to the others.
func (r *runner) sampleCap() time.Duration {
	if r.o.Budget == 0 {
		return maxTime
	}
	left := r.o.Budget - r.o.now().Sub(r.began)
	return min(max(left*3/5/time.Duration(len(r.queue)+len(r.active)+r.ahead+1), minTime/time.Duration(r.o.Rounds)),
		maxTime)
}

// loopsFor is how many executions of ns nanoseconds make a sample of minSample.
func loopsFor(ns float64) int {
	if ns <= 0 {
		return 1000
	}
	return int(min(max(math.Ceil(float64(minSample.Nanoseconds())/ns), 1), maxLoops))
}

// quiet waits until the threads of the processor that ran before are asleep.
func (r *runner) quiet(lane *lane) {
	if lane != nil && r.last != nil && lane != r.last {
		time.Sleep(quietTime)
	}
	if lane != nil {
		r.last = lane
	}
}

// sample takes one sample of a task.
func (r *runner) sample(ctx context.Context, task *task) error {
	r.quiet(task.lane)
	start := r.o.now()
	if source, ok := task.src.(alone); ok && !r.virtual(task.req.What.Proc) {
		if err := source.settle(ctx, task.req.What.Footprint); err != nil {
			return err
		}
	}
	ns, err := task.src.sample(ctx, task.loops)
	if err != nil {
		return err
	}
	if !r.virtual(task.req.What.Proc) { // how long a simulation takes must not show in its record
		task.spent += r.o.now().Sub(start)
	}
	task.samples = append(task.samples, round(ns, 7))
	task.block++
	if task.lane != nil {
		task.lane.sentinel.since++
	}
	return nil
}

// judge decides which tasks have enough samples, and asks the sentinels of their lanes whether the
// machine is still what it was. Samples taken while it changed are dropped and taken again. Tasks
// that pass are written.
func (r *runner) judge(ctx context.Context) error {
	over := r.over()
	ask := map[*lane]bool{}
	for _, task := range r.active {
		task.done = r.enough(task, over)
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
			if task.lane != lane {
				continue
			}
			switch {
			case steady:
				task.block = 0
			case task.requeued < maxRequeues && !over:
				// What was sampled while the machine changed is not kept.
				task.samples = task.samples[:len(task.samples)-task.block]
				task.block, task.done = 0, false
				task.requeued++
			default:
				task.block, task.drifted = 0, true
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

// enough applies the stopping rule and sets the warning that belongs to the samples.
func (r *runner) enough(task *task, over bool) bool {
	count := len(task.samples)
	task.verdict = ""
	if r.o.Rounds > 1 && !r.anew {
		return r.visited(task, over)
	}
	if r.virtual(task.req.What.Proc) && count >= fewSamples && slices.Max(task.samples) == slices.Min(task.samples) {
		return true // no noise: more samples say the same
	}
	if task.dear || over {
		if count < fewSamples {
			return false
		}
		if count < r.o.Rule.Min {
			task.verdict = record.FewSamples
			return true
		}
	}
	switch verdict := r.o.Rule.Judge(task.samples); {
	case verdict == stat.Precise:
		return true
	case verdict != stat.More, over, count >= r.o.Rule.Min && task.spent >= task.cap:
		task.verdict = record.Noisy
		return true
	}
	return false
}

// visited is the stopping rule of one visit among several. Each visit takes the same few samples,
// so that no moment of the machine counts more than another; the last visit judges all samples
// together.
func (r *runner) visited(task *task, over bool) bool {
	each := (r.o.Rule.Min+r.o.Rounds-1)/r.o.Rounds + 1
	if task.dear {
		each = 1
	}
	if len(task.samples) < each && !over {
		return false
	}
	samples := task.samples
	if old := r.w.Set().Lookup(task.req.Key()); old != nil {
		samples = slices.Concat(old.Samples, samples)
	}
	switch {
	case len(samples) < r.o.Rule.Min:
		task.verdict = record.FewSamples
	case r.w.Set().Rounds(task.req.Key())+1 >= r.o.Rounds && r.o.Rule.Judge(samples) != stat.Precise:
		task.verdict = record.Noisy
	}
	return true
}

// finish writes a task's measurement.
func (r *runner) finish(ctx context.Context, ended *task) error {
	what := ended.req.What
	what.First, what.Loops, what.Samples = round(ended.first, 7), ended.loops, ended.samples
	what.Simulated = r.virtual(what.Proc)
	what.Round = r.w.Set().Rounds(what.Key())
	if ended.drifted || stat.Drift(what.Samples, sentinelDrift) {
		what.Warnings = append(what.Warnings, record.Drifted)
	}
	if ended.verdict != "" {
		what.Warnings = append(what.Warnings, ended.verdict)
	}
	old := r.w.Set().Lookup(what.Key())
	// a repetition replaces the flagged measurement only if it is better
	what.Anew = r.anew && (len(what.Warnings) == 0 || narrower(what.Samples, old.Samples))
	ended.src.close(ctx)
	r.active = slices.DeleteFunc(r.active, func(other *task) bool { return other == ended })
	if err := r.w.Append(&what); err != nil {
		return err
	}
	r.visits++
	if key := what.Key(); !r.done[key] {
		r.done[key] = true
		r.report.Measured++
	}
	r.progress(ended, true)
	return nil
}

// narrower reports whether the interval of a's median is narrower than that of b's.
func narrower(first, second []float64) bool {
	one, errX := stat.Summarise(first)
	other, errY := stat.Summarise(second)
	return errX == nil && (errY != nil || one.Relative() < other.Relative())
}

// progress reports where the run stands. The time left is estimated from the visits so far.
func (r *runner) progress(task *task, ended bool) {
	if r.o.Progress == nil {
		return
	}
	done := r.before + r.visits + len(r.report.Refused)
	now := Progress{Key: task.req.Key(), Ended: ended, Done: done, Total: r.total, Elapsed: r.o.now().Sub(r.began)}
	if count := r.visits; count > 0 {
		now.Left = time.Duration(float64(now.Elapsed) / float64(count) * float64(r.total-done))
	}
	if r.o.Budget > 0 {
		left := max(r.o.Budget-now.Elapsed, 0)
		if now.Left == 0 || now.Left > left {
			now.Left = left
		}
	}
	r.o.Progress(now)
}

// ---- the sentinel

// sentinel is one operator that is measured again and again: when its time moves, the machine has
// changed.
type sentinel struct {
	// executions of a sample, and the medians of the last readings in ns
	src   source
	loops int
	past  []float64
	since int // samples of others since it was asked
}

// sentinelMemory is the number of past readings that a new one is compared with.
const sentinelMemory = 15

// sentinel makes the lane's sentinel if it has none yet: an addition in the second-level cache,
// which feels both the clock and the neighbours. A processor without additions gets the operator of
// what.
func (r *runner) sentinel(ctx context.Context, lane *lane, what *record.Measurement) error {
	if lane.sentinel != nil {
		return nil
	}
	operator, layout := op.Op{Kind: op.Add, M: 64, N: 1024}, ""
	if lane.caps.Supports(operator) != nil {
		operator, layout = *what.Op, what.Layout
	}
	ld, err := r.newLoad(ctx, lane, operator, layout, 0)
	if err != nil {
		return err
	}
	made := &sentinel{src: alone{ld}, loops: 1}
	for range 5 {
		ns, err := made.src.sample(ctx, made.loops)
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
	r.quiet(lane)
	var xs []float64
	for range sentinelSamples {
		ns, err := watch.src.sample(ctx, watch.loops)
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

// ---- processors and memory

// unknown is the error for a request on a processor that the SoC lacks.
func (r *runner) unknown(name string) error {
	return diag.New(diag.ClassInput, "measure on %q: SoC %q has no such processor, it has %s", name, r.soc.Name,
		strings.Join(processorNames(r.soc), ", "))
}

// virtual reports whether a processor is simulated: its clock is virtual, and measuring it is
// exact.
func (r *runner) virtual(name string) bool {
	proc := r.soc.Processor(name)
	return proc != nil && proc.Driver == socs.SimDriver
}

// lane returns the open processor of a name, opened with more options where given. Emulators are
// refused, because their times say nothing about the device.
func (r *runner) lane(ctx context.Context, name string, options map[string]string) (*lane, error) {
	proc := r.soc.Processor(name)
	if proc == nil {
		return nil, r.unknown(name)
	}
	// A processor with other options is another lane, opened beside the first.
	key := name
	for _, option := range sortedNames(options) {
		key += " " + option + "=" + options[option]
	}
	if opened := r.lanes[key]; opened != nil {
		return opened, nil
	}
	from := r.o.Drivers[proc.Driver]
	if from == nil {
		return nil, &driver.Unavailable{Driver: proc.Driver, Found: "no such driver in this build"}
	}
	// On a virtual clock the time does not depend on what is computed, so nothing is.
	if r.virtual(name) {
		all := map[string]string{"compute": "false"}
		maps.Copy(all, options)
		options = all
	}
	opened, err := openLane(ctx, proc, from, options)
	if err != nil {
		return nil, err
	}
	if opened.caps.Emulated {
		opened.close()
		return nil, diag.New(diag.ClassUnavailable,
			"processor %q of driver %q is an emulator (%q): its times are none of the device's, and are not measured",
			name, proc.Driver, proc.Select).
			WithHint("profile on the device; what the compiler says of its graphs is recorded without one by hetc " +
				"profile --compiler-only")
	}
	// A record is of one clock: times of both must not meet in one fit.
	if opened.caps.Virtual != r.virtual(name) {
		opened.close()
		return nil, diag.New(diag.ClassInput, "processor %q of driver %q: its clock is virtual = %v, the SoC says %v",
			name, proc.Driver, opened.caps.Virtual, r.virtual(name))
	}
	opened.ops = &operands{proc: opened.proc, seed: r.o.Seed, bufs: map[string]driver.Buffer{}, ids: r.ids}
	r.lanes[key] = opened
	return opened, nil
}

// smallestTable is the smallest vocabulary among the requests: ids below it are valid in every
// embedding.
func smallestTable(requests []Request) int {
	rows := math.MaxInt32
	for i := range requests {
		if operator := requests[i].What.Op; operator != nil && operator.Kind == op.Embed {
			rows = min(rows, operator.K)
		}
	}
	return rows
}

// stream returns the memory for bandwidth, which is allocated at the first call.
func (r *runner) stream() ([]byte, error) {
	if r.memory == nil {
		bytes := r.o.memory
		if bytes == 0 {
			bytes = streamBytes(r.soc.LastCacheBytes())
		}
		region, err := touched(bytes)
		if err != nil {
			return nil, err
		}
		r.memory, r.free = region.Bytes(), region.Close
	}
	return r.memory, nil
}

// close ends tasks and lanes. Memory that the thread of a dead lane may still read stays allocated.
func (r *runner) close(ctx context.Context) error {
	for _, task := range r.active {
		if task.src != nil {
			task.src.close(ctx)
		}
	}
	var first error
	dead := false
	for _, name := range sortedNames(r.lanes) {
		lane := r.lanes[name]
		if lane.sentinel != nil {
			lane.sentinel.src.close(ctx)
		}
		if err := lane.close(); err != nil && first == nil {
			first = fmt.Errorf("close processor %q: %w", lane.name, err)
		}
		dead = dead || lane.dead
	}
	if dead {
		return first // its thread may still touch the memory
	}
	r.stores.close()
	if r.free != nil {
		if err := r.free(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// sortedNames are the keys of a map, in an order that does not change from run to run.
func sortedNames[V any](byName map[string]V) []string { return slices.Sorted(maps.Keys(byName)) }
