package profiler

import (
	"context"
	"errors"
	"fmt"
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

// Rounds is how many visits to every operator suit a machine whose speed changes from one second to the next, as
// that of most machines does: then all operators meet the same mixture of fast and slow moments.
const Rounds = 8

// Pending returns the requests that the set has fewer than rounds visits of, in the order in which Run
// first takes them up: by priority, and within one priority shuffled by seed.
func Pending(requests []Request, set *record.Set, rounds int, seed uint64) []Request {
	out := slices.Clone(requests)
	rng := rand.New(rand.NewPCG(seed, 3))
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	sort.SliceStable(out, func(i, j int) bool { return out[i].Priority < out[j].Priority })
	seen := map[string]bool{}
	return slices.DeleteFunc(out, func(r Request) bool {
		key := r.Key()
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
	return slices.DeleteFunc(Pending(requests, nil, 1, seed), func(r Request) bool {
		m := set.Lookup(r.Key())
		return m == nil || len(m.Warnings) == 0
	})
}

const (
	window          = 8                      // measurements in progress at the same time, their samples interleaved
	minSample       = 200 * time.Microsecond // one sample is at least that long, or one execution
	warmTime        = 500 * time.Millisecond // cap of warming up
	warmWindows     = 10                     // cap of warming up
	warmAgree       = 0.02
	maxTime         = 2 * time.Second       // of sampling one operator, once it has its minimum of samples
	minTime         = 20 * time.Millisecond // the same, however short the budget
	fewSamples      = 3
	sentinelEvery   = 20 // samples
	sentinelSamples = 3
	sentinelDrift   = 0.03
	maxRequeues     = 2
	quietTime       = 300 * time.Microsecond // for the threads of another processor to go to sleep
	maxLoops        = 1 << 16
	gcEvery         = 4096 // loaded executables, of a few kilobytes of garbage each
)

// Run measures the requests that the writer's record does not have yet and appends each when it is
// done, so that a kill loses only those in progress. It takes them by priority, in random order
// within one, a few at a time with their samples interleaved in random rounds; drift is watched by a
// sentinel operator. When the budget ends, what no plan can do without is still measured, with few samples,
// and the rest is reported as left; that is no error. A request that a
// processor refuses is reported, any other failure ends the run with what was measured in the record.
//
// s describes the processors, and must be the SoC of the record. A driver that is not there is
// a driver.Unavailable.
func Run(ctx context.Context, s *socs.SoC, requests []Request, w *record.Writer, o Options) (Report, error) {
	if o.now == nil {
		o.now = time.Now
	}
	if o.window == 0 {
		o.window = probeWindow
	}
	if o.Rule == (stat.Rule{}) {
		o.Rule = stat.DefaultRule
	}
	if digest, err := s.Digest(); err != nil || digest != w.Set().Header.SoCDigest {
		return Report{}, diag.New(diag.ClassInput, "profile: the record is about another SoC than %q", s.Name)
	}
	limit := int64(16 << 30)
	if free := availableBytes(); free > 0 {
		limit = free / 2
	}
	cold := min(max(2*s.LastCacheBytes(), 64<<20), limit/4)
	r := &runner{
		soc: s, o: o, w: w, lanes: map[string]*lane{}, rng: rand.New(rand.NewPCG(o.Seed, 4)), began: o.now(), coldBytes: cold,
		stores: stores{seed: o.Seed, limit: limit, all: map[string]*store{}},
		report: Report{Warnings: map[string]int{}}, ids: smallestTable(requests),
	}
	if o.Rounds = max(o.Rounds, 1); s.Simulated() {
		o.Rounds = 1
	}
	r.o = o
	r.total = len(Pending(requests, nil, 1, o.Seed)) * o.Rounds
	r.done = map[string]bool{}
	r.begun = w.Set().Len() > 0
	if o.Flagged {
		r.flagged = Flagged(requests, w.Set(), o.Seed)
		r.total += len(r.flagged)
	}
	all := Pending(requests, nil, 1, o.Seed)
	for _, q := range all {
		r.before += min(w.Set().Rounds(q.Key()), r.o.Rounds)
	}
	// A collection in the middle of a sample would be measured.
	if !s.Simulated() {
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
	}
	err := r.rounds(ctx, requests)
	for _, q := range all {
		key := q.Key()
		switch m := w.Set().Lookup(key); {
		case m == nil:
		case !r.done[key]:
			r.report.Present++
		case w.Set().Rounds(key) >= r.o.Rounds:
			for _, flag := range m.Warnings {
				r.report.Warnings[flag]++
			}
		}
	}
	if cerr := r.close(ctx); err == nil {
		err = cerr
	}
	r.report.Elapsed = o.now().Sub(r.began)
	return r.report, err
}

// runner is the state of one Run.
type runner struct {
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
	ids       int
	loads     int // executables loaded since the last collection
}

// task is a request in progress.
type task struct {
	req      Request
	src      source
	lane     *lane // whose sentinel watches it, nil for none
	first    float64
	loops    int
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

// rounds visits every request once a round. Without a budget a round goes over all of them; with one,
// everything that no plan can do without is visited once, then whatever an earlier run left, and then all rounds of what
// matters more come before the first of what matters less. What was flagged is measured anew at the end.
func (r *runner) rounds(ctx context.Context, requests []Request) error {
	classes := [][]Request{requests}
	if r.o.Budget > 0 {
		byPriority := map[int][]Request{}
		for _, q := range requests {
			byPriority[q.Priority] = append(byPriority[q.Priority], q)
		}
		var order []int
		for p := range byPriority {
			order = append(order, p)
		}
		sort.Ints(order)
		classes = nil
		for _, p := range order {
			classes = append(classes, byPriority[p])
		}
	}
	visit := func(c, round int) error {
		r.ahead = 0
		for _, later := range classes[c+1:] {
			r.ahead += len(later) * r.o.Rounds
		}
		r.ahead += len(classes[c]) * (r.o.Rounds - 1 - round)
		r.queue = Pending(classes[c], r.w.Set(), round+1, r.o.Seed+uint64(round))
		return r.run(ctx)
	}
	for c, class := range classes {
		if r.o.Budget > 0 && class[0].Priority <= PriorityGlue {
			r.must = true
			err := visit(c, 0)
			r.must = false
			if err != nil {
				return err
			}
		}
	}
	// What an earlier run left comes before more visits to what it measured.
	for c := range classes {
		if !r.begun {
			break
		}
		if err := visit(c, 0); err != nil {
			return err
		}
	}
	for c := range classes {
		for round := range r.o.Rounds {
			if err := visit(c, round); err != nil {
				return err
			}
		}
	}
	r.ahead, r.queue, r.anew = 0, r.flagged, true
	if err := r.run(ctx); err != nil {
		return err
	}
	refused := map[string]bool{}
	for _, x := range r.report.Refused {
		refused[x.Key] = true
	}
	for _, q := range Pending(requests, nil, 1, r.o.Seed) {
		if key := q.Key(); !r.w.Set().Has(key) && !refused[key] {
			r.report.Left = append(r.report.Left, key)
		}
	}
	return nil
}

func (r *runner) run(ctx context.Context) error {
	for len(r.queue)+len(r.active) > 0 {
		if err := r.fillWindow(ctx); err != nil {
			return err
		}
		r.rng.Shuffle(len(r.active), func(i, j int) { r.active[i], r.active[j] = r.active[j], r.active[i] })
		for _, t := range slices.Clone(r.active) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := r.sample(ctx, t); err != nil {
				if err := r.refuse(ctx, t, err); err != nil {
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

// fillWindow takes up requests until enough are in progress or the budget has ended.
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
		t := &task{req: r.queue[0]}
		r.queue = r.queue[1:]
		r.progress(t, false)
		err := r.begin(ctx, t)
		if err == nil {
			r.active = append(r.active, t)
			continue
		}
		if err := r.refuse(ctx, t, err); err != nil {
			return err
		}
	}
	return nil
}

// refuse drops a task whose processor will not execute it. Failures that are not about this one request
// are returned.
func (r *runner) refuse(ctx context.Context, t *task, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if t.src != nil {
		t.src.close(ctx)
	}
	r.active = slices.DeleteFunc(r.active, func(x *task) bool { return x == t })
	switch {
	case errors.Is(err, driver.ErrUnavailable), diag.ClassOf(err) == diag.ClassUnavailable, diag.ClassOf(err) == diag.ClassIO:
		return fmt.Errorf("measure %s: %w", t.req.Key(), err)
	case t.lane != nil && t.lane.dead:
		return fmt.Errorf("measure %s: %w", t.req.Key(), err)
	}
	r.report.Refused = append(r.report.Refused, Refusal{t.req.Key(), err})
	return nil
}

// begin opens a task, runs it once, warms it up and decides how long and how many samples are.
func (r *runner) begin(ctx context.Context, t *task) (err error) {
	m := &t.req.What
	if r.loads > gcEvery {
		r.loads = 0
		runtime.GC() // here, because it is off while samples are taken
	}
	start := r.o.now()
	if t.src, err = r.open(ctx, m); err != nil {
		return err
	}
	virtual := r.virtual(m.Proc)
	if m.Op != nil && !virtual {
		if t.lane, err = r.lane(ctx, m.Proc, nil); err != nil {
			return err
		}
		if err := r.sentinel(ctx, t.lane, m); err != nil {
			return err
		}
	}
	r.quiet(t.lane)
	if t.first, err = t.src.sample(ctx, 1); err != nil {
		return err
	}
	t.ns, t.loops = t.first, 1
	t.cap = r.sampleCap()
	switch {
	case virtual:
		return nil // nothing has to warm up
	case m.Kind == record.Bandwidth:
		return nil // its windows are long, and the first is dropped
	case m.Kind == record.Sync:
		t.loops = syncLoops
		return nil
	}
	// Operators so dear that ten samples would take an undue part of the budget get three and a flag.
	t.dear = r.o.Budget > 0 && time.Duration(t.first)*time.Duration(r.o.Rule.Min) > r.o.Budget/200
	if t.dear {
		if time.Duration(t.first) > r.o.Budget/1000 {
			return nil // the first run has warmed it up
		}
	}
	before := t.first
	for i := range warmWindows {
		if t.ns, err = t.src.sample(ctx, t.loops); err != nil {
			return err
		}
		t.loops = loopsFor(t.ns)
		if i > 0 && math.Abs(t.ns-before) <= warmAgree*before || r.o.now().Sub(start) > warmTime {
			break
		}
		before = t.ns
	}
	return nil
}

// sampleCap divides what is left of the budget among what is left to do, less than half of it kept for
// loading and warming up. Operators that are precise before leave their part to the others.
func (r *runner) sampleCap() time.Duration {
	if r.o.Budget == 0 {
		return maxTime
	}
	left := r.o.Budget - r.o.now().Sub(r.began)
	return min(max(left*3/5/time.Duration(len(r.queue)+len(r.active)+r.ahead+1), minTime/time.Duration(r.o.Rounds)), maxTime)
}

// loopsFor is how many executions of ns nanoseconds make a sample.
func loopsFor(ns float64) int {
	if ns <= 0 {
		return 1000
	}
	return int(min(max(math.Ceil(float64(minSample.Nanoseconds())/ns), 1), maxLoops))
}

// quiet waits for helpers of the processor that ran before to go to sleep.
func (r *runner) quiet(l *lane) {
	if l != nil && r.last != nil && l != r.last {
		time.Sleep(quietTime)
	}
	if l != nil {
		r.last = l
	}
}

func (r *runner) sample(ctx context.Context, t *task) error {
	r.quiet(t.lane)
	start := r.o.now()
	if a, ok := t.src.(alone); ok && t.req.What.Footprint > 0 && !r.virtual(t.req.What.Proc) {
		if err := a.refresh(ctx, t.req.What.Footprint); err != nil {
			return err
		}
	}
	ns, err := t.src.sample(ctx, t.loops)
	if err != nil {
		return err
	}
	if !r.virtual(t.req.What.Proc) { // how long a simulation takes must not show in its record
		t.spent += r.o.now().Sub(start)
	}
	t.samples = append(t.samples, round(ns, 7))
	t.block++
	if t.lane != nil {
		t.lane.sentinel.since++
	}
	return nil
}

// judge decides which tasks have enough samples, asks the sentinels of their lanes whether the machine
// still is what it was, and writes those that pass.
func (r *runner) judge(ctx context.Context) error {
	over := r.over()
	ask := map[*lane]bool{}
	for _, t := range r.active {
		t.done = r.enough(t, over)
		if t.lane != nil && (t.done || t.lane.sentinel.since >= sentinelEvery) {
			ask[t.lane] = true
		}
	}
	for _, name := range sortedNames(r.lanes) {
		l := r.lanes[name]
		if !ask[l] {
			continue
		}
		steady, err := r.steady(ctx, l)
		if err != nil {
			return err
		}
		for _, t := range r.active {
			if t.lane != l {
				continue
			}
			switch {
			case steady:
				t.block = 0
			case t.requeued < maxRequeues && !over:
				// What was sampled while the machine changed is not kept.
				t.samples = t.samples[:len(t.samples)-t.block]
				t.block, t.done = 0, false
				t.requeued++
			default:
				t.block, t.drifted = 0, true
			}
		}
	}
	for _, t := range slices.Clone(r.active) {
		if !t.done {
			continue
		}
		if err := r.finish(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// enough applies the stop rule and notes the warning that belongs to the samples.
func (r *runner) enough(t *task, over bool) bool {
	n := len(t.samples)
	t.verdict = ""
	if r.o.Rounds > 1 && !r.anew {
		return r.visited(t, over)
	}
	if r.virtual(t.req.What.Proc) && n >= fewSamples && slices.Max(t.samples) == slices.Min(t.samples) {
		return true // no noise: more samples say the same
	}
	if t.dear || over {
		if n < fewSamples {
			return false
		}
		if n < r.o.Rule.Min {
			t.verdict = record.FewSamples
			return true
		}
	}
	switch v := r.o.Rule.Judge(t.samples); {
	case v == stat.Precise:
		return true
	case v != stat.More, over, n >= r.o.Rule.Min && t.spent >= t.cap:
		t.verdict = record.Noisy
		return true
	}
	return false
}

// visited is the stop rule of one visit among several: all take the same few samples, so that no moment of
// the machine counts more than another. The last one judges all of them together.
func (r *runner) visited(t *task, over bool) bool {
	each := (r.o.Rule.Min+r.o.Rounds-1)/r.o.Rounds + 1
	if t.dear {
		each = 1
	}
	if len(t.samples) < each && !over {
		return false
	}
	samples := t.samples
	if old := r.w.Set().Lookup(t.req.Key()); old != nil {
		samples = slices.Concat(old.Samples, samples)
	}
	switch {
	case len(samples) < r.o.Rule.Min:
		t.verdict = record.FewSamples
	case r.w.Set().Rounds(t.req.Key())+1 >= r.o.Rounds && r.o.Rule.Judge(samples) != stat.Precise:
		t.verdict = record.Noisy
	}
	return true
}

// finish writes a task's measurement.
func (r *runner) finish(ctx context.Context, t *task) error {
	m := t.req.What
	m.First, m.Loops, m.Samples = round(t.first, 7), t.loops, t.samples
	m.Simulated = r.virtual(m.Proc)
	m.Round = r.w.Set().Rounds(m.Key())
	if t.drifted || stat.Drift(m.Samples, sentinelDrift) {
		m.Warnings = append(m.Warnings, record.Drifted)
	}
	if t.verdict != "" {
		m.Warnings = append(m.Warnings, t.verdict)
	}
	old := r.w.Set().Lookup(m.Key())
	m.Anew = r.anew && (len(m.Warnings) == 0 || narrower(m.Samples, old.Samples))
	t.src.close(ctx)
	r.active = slices.DeleteFunc(r.active, func(x *task) bool { return x == t })
	if err := r.w.Append(&m); err != nil {
		return err
	}
	r.visits++
	if key := m.Key(); !r.done[key] {
		r.done[key] = true
		r.report.Measured++
	}
	r.progress(t, true)
	return nil
}

// narrower reports whether the interval of a's median is narrower than that of b's.
func narrower(a, b []float64) bool {
	x, errX := stat.Summarise(a)
	y, errY := stat.Summarise(b)
	return errX == nil && (errY != nil || x.Relative() < y.Relative())
}

func (r *runner) progress(t *task, ended bool) {
	if r.o.Progress == nil {
		return
	}
	done := r.before + r.visits + len(r.report.Refused)
	p := Progress{Key: t.req.Key(), Ended: ended, Done: done, Total: r.total, Elapsed: r.o.now().Sub(r.began)}
	if n := r.visits; n > 0 {
		p.Left = time.Duration(float64(p.Elapsed) / float64(n) * float64(r.total-done))
	}
	if r.o.Budget > 0 {
		left := max(r.o.Budget-p.Elapsed, 0)
		if p.Left == 0 || p.Left > left {
			p.Left = left
		}
	}
	r.o.Progress(p)
}

// ---- the sentinel

// sentinel is one operator measured again and again: when its time moves, the machine has changed.
type sentinel struct {
	src   source
	loops int
	past  []float64
	since int // samples of others since it was asked
}

const sentinelMemory = 15

// sentinel makes the lane's sentinel when it has none yet: an addition in the second cache, which feels
// both the clock and the neighbours, or where the processor has none the operator of m.
func (r *runner) sentinel(ctx context.Context, l *lane, m *record.Measurement) error {
	if l.sentinel != nil {
		return nil
	}
	o, layout := op.Op{Kind: op.Add, M: 64, N: 1024}, ""
	if l.caps.Supports(o) != nil {
		o, layout = *m.Op, m.Layout
	}
	ld, err := r.newLoad(ctx, l, o, layout, 0)
	if err != nil {
		return err
	}
	s := &sentinel{src: alone{ld}, loops: 1}
	for range 5 {
		ns, err := s.src.sample(ctx, s.loops)
		if err != nil {
			return err
		}
		s.loops = loopsFor(ns)
	}
	l.sentinel = s
	for range 3 {
		if _, err := r.steady(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// steady asks the lane's sentinel: whether its time now is that of its recent past, within 3 % or what its
// own noise explains.
func (r *runner) steady(ctx context.Context, l *lane) (bool, error) {
	s := l.sentinel
	r.quiet(l)
	var xs []float64
	for range sentinelSamples {
		ns, err := s.src.sample(ctx, s.loops)
		if err != nil {
			return false, err
		}
		xs = append(xs, ns)
	}
	now := stat.Median(xs)
	s.since = 0
	ok := true
	if len(s.past) >= 3 {
		sum, err := stat.Summarise(s.past)
		if err != nil {
			return false, err
		}
		// 4 MAD is about 2.7 standard deviations of a normal distribution.
		ok = math.Abs(now-sum.Median) <= max(sentinelDrift*sum.Median, 4*sum.MAD)
	}
	s.past = append(s.past, now)
	if len(s.past) > sentinelMemory {
		s.past = s.past[1:]
	}
	return ok, nil
}

// ---- processors and memory

func (r *runner) unknown(name string) error {
	return diag.New(diag.ClassInput, "measure on %q: SoC %q has no such processor, it has %s", name, r.soc.Name, strings.Join(processorNames(r.soc), ", "))
}

func (r *runner) virtual(name string) bool {
	p := r.soc.Processor(name)
	return p != nil && p.Driver == socs.SimDriver
}

// lane returns the open processor of a name, opened with more options where given.
func (r *runner) lane(ctx context.Context, name string, options map[string]string) (*lane, error) {
	p := r.soc.Processor(name)
	if p == nil {
		return nil, r.unknown(name)
	}
	key := name
	for _, k := range sortedNames(options) {
		key += " " + k + "=" + options[k]
	}
	if l := r.lanes[key]; l != nil {
		return l, nil
	}
	d := r.o.Drivers[p.Driver]
	if d == nil {
		return nil, &driver.Unavailable{Driver: p.Driver, Found: "no such driver in this build"}
	}
	if r.virtual(name) {
		all := map[string]string{"compute": "false"}
		for k, v := range options {
			all[k] = v
		}
		options = all
	}
	l, err := openLane(ctx, p, d, options)
	if err != nil {
		return nil, err
	}
	if l.caps.Emulated {
		l.close()
		return nil, diag.New(diag.ClassUnavailable, "processor %q of driver %q is an emulator (%q): its times are none of the device's, and are not measured", name, p.Driver, p.Select).
			WithHint("profile on the device; what the compiler says of its graphs is recorded without one by hetc profile --compiler-only")
	}
	if l.caps.Virtual != r.virtual(name) {
		l.close()
		return nil, diag.New(diag.ClassInput, "processor %q of driver %q: its clock is virtual = %v, the SoC says %v", name, p.Driver, l.caps.Virtual, r.virtual(name))
	}
	l.ops = &operands{proc: l.proc, seed: r.o.Seed, bufs: map[string]driver.Buffer{}, ids: r.ids}
	r.lanes[key] = l
	return l, nil
}

// smallestTable is the smallest vocabulary among the requests: ids below it are valid in all.
func smallestTable(requests []Request) int {
	n := math.MaxInt32
	for i := range requests {
		if o := requests[i].What.Op; o != nil && o.Kind == op.Embed {
			n = min(n, o.K)
		}
	}
	return n
}

// stream is the memory for bandwidth, made when first needed.
func (r *runner) stream() ([]byte, error) {
	if r.memory == nil {
		bytes := r.o.memory
		if bytes == 0 {
			bytes = streamBytes(r.soc.LastCacheBytes())
		}
		m, err := touched(bytes)
		if err != nil {
			return nil, err
		}
		r.memory, r.free = m.Bytes(), m.Close
	}
	return r.memory, nil
}

func (r *runner) close(ctx context.Context) error {
	for _, t := range r.active {
		if t.src != nil {
			t.src.close(ctx)
		}
	}
	var first error
	dead := false
	for _, name := range sortedNames(r.lanes) {
		l := r.lanes[name]
		if l.sentinel != nil {
			l.sentinel.src.close(ctx)
		}
		if err := l.close(); err != nil && first == nil {
			first = fmt.Errorf("close processor %q: %w", l.name, err)
		}
		dead = dead || l.dead
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

func sortedNames[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
