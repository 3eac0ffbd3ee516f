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

// Progress is the state of a run when a measurement begins or ends.
type Progress struct {
	Key     string // of the measurement that began or ended
	Ended   bool
	Done    int // ended in this run or present before
	Total   int
	Elapsed time.Duration
	Left    time.Duration // estimate, at most the rest of the budget
}

// Report summarises a run.
type Report struct {
	Measured int            // requests measured in this run
	Present  int            // requests that the record had already, and that were not visited again
	Refused  []Refusal      // the processor cannot execute them, or failed
	Left     []string       // keys that were never measured, because the budget ended
	Warnings map[string]int // number of measurements by warning
	Elapsed  time.Duration
}

// Refusal is a request that could not be measured.
type Refusal struct {
	Key string
	Err error
}

// Rounds is the number of visits to every operator on a machine with a speed that changes from second to second, as on
// most machines. All operators then meet the same mixture of fast and slow moments.
const Rounds = 8

// Pending returns the requests of which the set has fewer than rounds visits, in the order in which
// Run takes them up: by priority, and shuffled by seed within one.
func Pending(requests []Request, set *record.Set, rounds int, seed uint64) []Request {
	out := slices.Clone(requests)
	rng := rand.New(rand.NewPCG(seed, 3))
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	sort.SliceStable(out, func(i, j int) bool { return out[i].Priority < out[j].Priority })

	wanted := max(rounds, 1)
	if set != nil && set.Header.Simulated {
		wanted = 1 // a virtual clock knows no slow moments
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(out, func(request Request) bool {
		key := request.Key()
		if seen[key] {
			return true
		}
		seen[key] = true
		return set != nil && set.Rounds(key) >= wanted
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
	maxActive = 8                      // measurements in progress at the same time, their samples interleaved
	minSample = 200 * time.Microsecond // one sample is at least that long, or one execution
	maxLoops  = 1 << 16                // executions of a sample

	warmTime    = 500 * time.Millisecond // of warming up, at most
	warmWindows = 10                     // of warming up, at most
	warmAgree   = 0.02                   // two windows of warming up agree within this share

	maxTime    = 2 * time.Second       // of sampling one operator, once it has its minimum of samples
	minTime    = 20 * time.Millisecond // the same, however short the budget
	fewSamples = 3                     // suffice where the budget allows no more

	sentinelEvery   = 20 // samples
	sentinelSamples = 3
	sentinelDrift   = 0.03 // the time of a sentinel may change by this share
	maxRequeues     = 2    // restarts of a task because the machine changed

	quietTime = 300 * time.Microsecond // for the threads of another processor to go to sleep
	gcEvery   = 4096                   // loaded executables, of a few kilobytes of garbage each
)

// Run measures the requests that the writer's record does not have yet. It appends each one when it
// is done, so that a kill loses only those in progress. Requests are taken by priority, in random
// order within one, a few at a time with their samples interleaved at random. A sentinel operator
// watches for drift of the machine.
//
// When the budget ends, the requests that every plan needs are still measured, with few samples. The others are
// reported as left, which is no error. A request that a processor refuses is reported. Any other failure ends the run;
// the record keeps the finished measurements.
//
// soc describes the processors and must be the SoC of the record, else the error has class ClassInput. A driver that is
// not there is a driver.Unavailable.
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
	digest, err := soc.Digest()
	if err != nil || digest != writer.Set().Header.SoCDigest {
		return Report{}, diag.New(diag.ClassInput, "profile: the record is about another SoC than %q", soc.Name)
	}

	options.Rounds = max(options.Rounds, 1)
	if soc.Simulated() {
		options.Rounds = 1
	}

	memory := newStores(options.Seed)
	all := Pending(requests, nil, 1, options.Seed)
	r := &runner{
		soc: soc, options: options, writer: writer, lanes: map[string]*lane{},
		rng:   rand.New(rand.NewPCG(options.Seed, 4)),
		began: options.now(), coldBytes: min(max(beyondCaches(soc), 64<<20), memory.limit/4),
		stores: memory,
		report: Report{Warnings: map[string]int{}}, vocabulary: smallestTable(requests),
		total: len(all) * options.Rounds, done: map[string]bool{}, resumed: writer.Set().Len() > 0,
	}
	if options.Flagged {
		r.flagged = Flagged(requests, writer.Set(), options.Seed)
		r.total += len(r.flagged)
	}
	for _, request := range all {
		r.visitsBefore += min(writer.Set().Rounds(request.Key()), r.options.Rounds)
	}

	if !soc.Simulated() {
		defer raiseThreads(runtime.NumCPU())()
		// A collection in the middle of a sample would be measured.
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
	}
	err = r.visitAll(ctx, requests)
	r.count(all)
	if cerr := r.close(ctx); err == nil {
		err = cerr
	}
	r.report.Elapsed = options.now().Sub(r.began)
	return r.report, err
}

// beyondCaches returns the number of bytes that operands rotate through so that no cache holds them.
// RATIONALE: Why do cold operands rotate through eight times the last cache?
func beyondCaches(soc *socs.SoC) int64 { return 8 * soc.LastCacheBytes() }

// count reports which requests the record had before, and which are flagged now.
func (r *runner) count(requests []Request) {
	set := r.writer.Set()
	for _, request := range requests {
		key := request.Key()
		known := set.Lookup(key)
		switch {
		case known == nil:
		case !r.done[key]:
			r.report.Present++
		case set.Rounds(key) >= r.options.Rounds:
			for _, flag := range known.Warnings {
				r.report.Warnings[flag]++
			}
		}
	}
}

// runner is the state of one Run.
type runner struct {
	soc     *socs.SoC
	options Options
	writer  *record.Writer
	report  Report
	began   time.Time
	rng     *rand.Rand

	// The measurements to take, in visits: one visit is a few samples of one request.
	queue        []Request
	active       []*task         // in progress, their samples interleaved
	laterVisits  int             // visits that follow those of the queue
	total        int             // all visits
	visitsBefore int             // visits that the record had when the run began
	visits       int             // visits of this run
	done         map[string]bool // keys measured in this run
	flagged      []Request       // measurements that the record had flagged when the run began
	resumed      bool            // the record had measurements when the run began
	mandatory    bool            // every plan needs the queue, so that it is measured although the budget has ended
	remeasuring  bool            // the queue is measured anew, each request in one visit

	// Processors and the memory of operands.
	lanes        map[string]*lane
	lastLane     *lane // ran the latest sample
	stores       stores
	memory       []byte              // read to measure bandwidth
	read         func([]byte) uint64 // how; nil until the first call of reader
	freeMemory   func() error
	coldBytes    int64 // that cold operands rotate through, more than the caches hold
	copyOperands bool  // every call copies operands to and from processors with memory of their own
	vocabulary   int   // embedding ids are below it
	loads        int   // executables loaded since the last garbage collection
}

// task is a request in progress.
type task struct {
	request Request
	source  source
	lane    *lane // whose sentinel watches it, nil for none

	first float64 // ns of the first execution
	ns    float64 // ns of one execution, from warming up
	loops int     // executions of a sample

	samples     []float64     // ns per execution
	spent       time.Duration // on samples
	sampleLimit time.Duration // of spent, once there is the minimum of samples
	expensive   bool          // three samples have to do
	verdict     string        // warning that belongs to the samples so far
	done        bool

	sinceSentinel int  // samples since the sentinel last agreed
	requeued      int  // how often samples were dropped because the machine changed
	drifted       bool // some samples were taken while the machine changed
}

// visitAll visits every request once a round. Without a budget, a round goes over all of them.
//
// With a budget, the requests that every plan needs are visited once first. Next come those that an earlier run left,
// and then all rounds of a priority before the first of the next one. Flagged measurements are repeated at the end.
func (r *runner) visitAll(ctx context.Context, requests []Request) error {
	classes := [][]Request{requests}
	if r.options.Budget > 0 {
		classes = byPriority(requests)
	}
	visit := func(class, round int) error {
		r.laterVisits = 0
		for _, later := range classes[class+1:] {
			r.laterVisits += len(later) * r.options.Rounds
		}
		r.laterVisits += len(classes[class]) * (r.options.Rounds - 1 - round)
		r.queue = Pending(classes[class], r.writer.Set(), round+1, r.options.Seed+uint64(round))
		return r.run(ctx)
	}

	for number, class := range classes {
		if r.options.Budget <= 0 || class[0].Priority > priorityGlue {
			continue
		}
		r.mandatory = true
		err := visit(number, 0)
		r.mandatory = false
		if err != nil {
			return err
		}
	}

	// Requests that an earlier run left come before more visits to those that it measured.
	if r.resumed {
		for class := range classes {
			if err := visit(class, 0); err != nil {
				return err
			}
		}
	}

	for class := range classes {
		for round := range r.options.Rounds {
			if err := visit(class, round); err != nil {
				return err
			}
		}
	}

	r.laterVisits, r.queue, r.remeasuring = 0, r.flagged, true
	if err := r.run(ctx); err != nil {
		return err
	}
	r.listLeft(requests)
	return nil
}

// byPriority divides requests into classes of equal priority, in the order of measuring.
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

// listLeft reports the requests that were neither measured nor refused.
func (r *runner) listLeft(requests []Request) {
	refused := map[string]bool{}
	for _, refusal := range r.report.Refused {
		refused[refusal.Key] = true
	}
	for _, request := range Pending(requests, nil, 1, r.options.Seed) {
		key := request.Key()
		if !r.writer.Set().Has(key) && !refused[key] {
			r.report.Left = append(r.report.Left, key)
		}
	}
}

// run measures the queue: it keeps a few tasks in progress and takes one sample of each in turn, in random order.
func (r *runner) run(ctx context.Context) error {
	for len(r.queue)+len(r.active) > 0 {
		if err := r.beginSome(ctx); err != nil {
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

// budgetEnded reports whether the budget has ended.
func (r *runner) budgetEnded() bool {
	return r.options.Budget > 0 && r.options.now().Sub(r.began) >= r.options.Budget
}

// beginSome begins requests until enough are in progress or the budget has ended.
func (r *runner) beginSome(ctx context.Context) error {
	together := maxActive
	if r.options.Rounds > 1 && !r.remeasuring {
		together = 1 // rounds interleave already, and a kill then loses one visit
	}

	for len(r.active) < together && len(r.queue) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if r.budgetEnded() && !r.mandatory {
			r.queue = nil // listLeft reports the rest
			return nil
		}

		taken := &task{request: r.queue[0]}
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
	if failed.source != nil {
		failed.source.close(ctx)
	}
	r.active = slices.DeleteFunc(r.active, func(other *task) bool { return other == failed })
	switch {
	case errors.As(err, new(unopened)), errors.Is(err, driver.ErrUnavailable),
		diag.ClassOf(err) == diag.ClassUnavailable, diag.ClassOf(err) == diag.ClassIO:
		return fmt.Errorf("measure %s: %w", failed.request.Key(), err)
	case failed.lane != nil && failed.lane.dead:
		return fmt.Errorf("measure %s: %w", failed.request.Key(), err)
	}

	r.report.Refused = append(r.report.Refused, Refusal{failed.request.Key(), err})
	return nil
}

// begin opens a task, runs it once, warms it up, and decides on the length and number of its
// samples.
func (r *runner) begin(ctx context.Context, task *task) (err error) {
	what := &task.request.What
	if r.loads > gcEvery {
		r.loads = 0
		runtime.GC() // here, because it is off while samples are taken
	}
	start := r.options.now()
	if task.source, err = r.openSource(ctx, what); err != nil {
		return err
	}

	virtual := r.virtual(what.Proc)
	if what.Op != nil && !virtual {
		if task.lane, err = r.lane(ctx, what.Proc, nil); err != nil {
			return err
		}
		if err := r.ensureSentinel(ctx, task.lane, what); err != nil {
			return err
		}
	}

	r.letOthersSleep(task.lane)
	if task.first, err = task.source.sample(ctx, 1); err != nil {
		return err
	}

	task.ns, task.loops = task.first, 1
	task.sampleLimit = r.sampleCap()
	switch {
	case virtual:
		return nil // a simulation needs no warm-up
	case what.Kind == record.Bandwidth:
		return nil // windows are long, and the first is dropped
	case what.Kind == record.Sync:
		task.loops = syncLoops
		return nil
	}

	// Operators whose minimum of samples would take too much of the budget get three samples and a flag.
	first, budget := time.Duration(task.first), r.options.Budget
	task.expensive = budget > 0 && first*time.Duration(r.options.Rule.Min) > budget/200
	if task.expensive && first > r.options.Budget/1000 {
		return nil // one execution is warm-up enough
	}
	return r.warm(ctx, task, start)
}

// warm runs a task until two windows agree, and sets the number of executions of a sample.
func (r *runner) warm(ctx context.Context, task *task, start time.Time) (err error) {
	before := task.first
	for i := range warmWindows {
		if task.ns, err = task.source.sample(ctx, task.loops); err != nil {
			return err
		}
		task.loops = loopsFor(task.ns)
		agree := i > 0 && math.Abs(task.ns-before) <= warmAgree*before
		if agree || r.options.now().Sub(start) > warmTime {
			break
		}
		before = task.ns
	}
	return nil
}

// sampleCap returns the time for sampling one operator. It divides three fifths of the rest of the budget among the
// visits that are left; two fifths are for loading and warming up. Operators that are precise earlier leave time for
// the others.
func (r *runner) sampleCap() time.Duration {
	if r.options.Budget == 0 {
		return maxTime
	}
	left := r.options.Budget - r.options.now().Sub(r.began)
	visits := len(r.queue) + len(r.active) + r.laterVisits + 1
	least := minTime / time.Duration(r.options.Rounds)
	return min(max(left*3/5/time.Duration(visits), least), maxTime)
}

// loopsFor returns the number of executions of ns nanoseconds each that make a sample of minSample.
func loopsFor(ns float64) int {
	if ns <= 0 {
		return 1000
	}
	return int(min(max(math.Ceil(float64(minSample.Nanoseconds())/ns), 1), maxLoops))
}

// letOthersSleep waits until the threads of the processor that ran before are asleep.
func (r *runner) letOthersSleep(lane *lane) {
	if lane != nil && r.lastLane != nil && lane != r.lastLane {
		time.Sleep(quietTime)
	}
	if lane != nil {
		r.lastLane = lane
	}
}

// progress reports where the run stands. The time left is estimated from the visits so far.
func (r *runner) progress(task *task, ended bool) {
	if r.options.Progress == nil {
		return
	}
	done := r.visitsBefore + r.visits + len(r.report.Refused)
	now := Progress{Key: task.request.Key(), Ended: ended, Done: done, Total: r.total,
		Elapsed: r.options.now().Sub(r.began)}
	if r.visits > 0 {
		now.Left = time.Duration(float64(now.Elapsed) / float64(r.visits) * float64(r.total-done))
	}
	if r.options.Budget > 0 {
		left := max(r.options.Budget-now.Elapsed, 0)
		if now.Left == 0 || now.Left > left {
			now.Left = left
		}
	}

	r.options.Progress(now)
}

// smallestTable returns the smallest vocabulary among the requests: ids below it are valid in every
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
		bytes := r.options.memory
		if bytes == 0 {
			bytes = streamBytes(r.soc.LastCacheBytes())
		}
		region, err := allocTouched(bytes)
		if err != nil {
			return nil, err
		}
		r.memory, r.freeMemory = region.Bytes(), region.Close
	}
	return r.memory, nil
}

// reader returns the function by which cores read memory: a kernel of the first processor that has one, as in Probe. A
// loop in Go reads a quarter less on some CPUs, so that two cores would seem to disturb each other less.
func (r *runner) reader(ctx context.Context) (func([]byte) uint64, error) {
	if r.read != nil {
		return r.read, nil
	}

	for i := range r.soc.Processors {
		proc := &r.soc.Processors[i]
		if !readsOnCores(proc) || r.virtual(proc.Name) {
			continue
		}
		lane, err := r.lane(ctx, proc.Name, nil)
		if err != nil {
			return nil, err
		}
		bounded, ok := lane.proc.(driver.Bounded)
		if ok && bounded.Bounds().Stream != nil {
			r.read = bounded.Bounds().Stream
			return r.read, nil
		}
	}

	r.read = readMemory
	return r.read, nil
}

// close ends tasks and lanes. Memory that the thread of a dead lane may still read stays allocated.
func (r *runner) close(ctx context.Context) error {
	for _, task := range r.active {
		if task.source != nil {
			task.source.close(ctx)
		}
	}

	var first error
	dead := false
	for _, name := range sortedNames(r.lanes) {
		lane := r.lanes[name]
		if lane.sentinel != nil {
			lane.sentinel.source.close(ctx)
		}
		if err := lane.close(); err != nil && first == nil {
			first = fmt.Errorf("close processor %q: %w", lane.name, err)
		}
		dead = dead || lane.dead
	}

	if dead {
		return first
	}

	r.stores.close()
	if r.freeMemory != nil {
		if err := r.freeMemory(); err != nil && first == nil {
			first = err
		}
	}

	return first
}

// sortedNames returns the keys of a map, in an order that does not change from run to run.
func sortedNames[V any](byName map[string]V) []string { return slices.Sorted(maps.Keys(byName)) }
