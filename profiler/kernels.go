package profiler

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// KernelOptions controls Kernels.
type KernelOptions struct {
	Driver   driver.Driver   // its processors are driver.Bounded
	Compiler driver.Compiler // for that driver
	Sets     []string        // values of the driver's option "kernels"
	Marked   string          // the set whose shares have marks to reach
	Cores    []int           // the first is measured alone; with more, all are measured together too
	Rounds   int
	Seed     uint64
	Progress func(round int) // called when a round begins; may be nil

	small bool // tests: little shapes, memory and time
}

// Kernel is one line of a comparison of kernels with what the hardware allows, measured beside them.
type Kernel struct {
	Set   string  `json:"kernels"`         // instruction set
	What  string  `json:"what"`            // "a8t/q8c matmul", "int8 peak"
	Shape string  `json:"shape,omitempty"` // [M,K]x[K,N] as MxKxN
	Cores int     `json:"cores"`
	Rate  float64 `json:"rate"` // median over rounds
	Unit  string  `json:"unit"` // Gop/s, GB/s
	// Spread is the larger side of the interval of Rate, divided by Rate. It is small for register-only loops on a
	// machine at rest.
	Spread float64 `json:"rate_spread"`

	Of    string  `json:"of,omitempty"`         // the line that bounds it
	Share float64 `json:"share,omitempty"`      // median of the rounds' shares
	Low   float64 `json:"share_low,omitempty"`  // interval of the median
	High  float64 `json:"share_high,omitempty"` // of coverage stat.Confidence, with six rounds or more
	Mark  float64 `json:"mark,omitempty"`       // share to reach

	// Rounds is the number of rounds that count: those in which no other hardware thread of the cores was busy, or
	// all if those are too few or unknown. AllRate and AllShare are the medians over all rounds.
	Rounds   int     `json:"rounds"`
	AllRate  float64 `json:"all_rate"`
	AllShare float64 `json:"all_share,omitempty"`
}

// Reached reports whether the line has no mark or its median share reaches it.
func (k *Kernel) Reached() bool { return k.Share >= k.Mark }

// gemmMarks and gemvMarks are the shares of its bound that a kernel has to reach, by scheme, with the best set of the
// CPU.
var (
	gemmMarks = map[op.Scheme]float64{op.A8TQ8C: 0.85, op.A32W32: 0.80}
	gemvMarks = map[op.Scheme]float64{op.A8TQ8C: 0.90, op.A8TQ6C: 0.85, op.A8TQ4B32: 0.90}
)

// attentionMark is the share of the float32 peak that attention of a prompt has to reach.
const attentionMark = 0.7

// The set that multiplies in tiles has marks of its own: of products of 8 bits, for which a core has to load as many
// tiles as it multiplies, of 4-bit weights, and of attention over bfloat16, whose bound stays the float32 peak.
const (
	tileSet           = "amx"
	tileMark          = 0.45
	tileNibblesMark   = 0.35
	tileAttentionMark = 1.4
)

// manyMark is the share that the speed-up of several cores has to reach of the speed-up of the
// register-only loop.
const manyMark = 0.95

// A round counts for a core if, before and after it, the core issued instructions at ownIssue of
// the best rate seen. If fewer than leastOwn rounds do, all rounds count.
const (
	ownIssue = 0.8
	leastOwn = 9
)

// kernelSizes are the shapes and durations of a comparison.
type kernelSizes struct {
	gemm, gemv [][2]int // K, N
	rows       []int
	cold       int64 // bytes through which weights of a GEMV are rotated
	stream     int   // bytes of one reading
	visit      time.Duration
	loop       time.Duration // of one register-only loop
	longest    time.Duration // at the peak; larger shapes are left out
}

// sizes returns the sizes of a real measurement, or of tests. lastCache is the size of the last-level cache in bytes.
func (o *KernelOptions) sizes(lastCache int64) kernelSizes {
	if o.small {
		return kernelSizes{
			gemm: [][2]int{{64, 96}}, gemv: [][2]int{{64, 96}},
			rows: []int{5}, cold: 8 << 20, stream: 1 << 18,
			visit: 50 * time.Microsecond, loop: 20 * time.Microsecond, longest: time.Second,
		}
	}
	return kernelSizes{
		gemm: [][2]int{{1024, 1024}, {2048, 2048}, {2048, 5632}, {5632, 2048}},
		gemv: [][2]int{{2048, 2048}, {2048, 5632}, {5632, 2048}},
		rows: []int{64, 256, 512}, cold: streamBytes(lastCache), stream: 64 << 20,
		visit: 10 * time.Millisecond, loop: 1500 * time.Microsecond, longest: 200 * time.Millisecond,
	}
}

// Kernels measures matrix products and attention as a plan would run them. Each visit lies between two readings of the
// bound: of multiply-adds on registers alone in the same instruction set, or of memory. All lines are visited once a
// round, in random order, so that a machine whose speed changes favours none.
//
// Another hardware thread of a core, perhaps another tenant's, takes half of the instructions that the core issues.
// That slows products down, but register-only loops hardly. So each visit also lies between two readings of the rate at
// which the core issues instructions, and visits where it was low are left out.
func Kernels(ctx context.Context, options KernelOptions) ([]Kernel, error) {
	if len(options.Sets) == 0 || len(options.Cores) == 0 || options.Rounds < 1 {
		panic("BUG: no kernels, cores or rounds to measure")
	}
	machine := readMachine("/", options.Cores)
	lastCache := (&socs.SoC{CPU: &socs.CPU{Caches: machine.caches}}).LastCacheBytes()
	compared := &comparison{options: options, size: options.sizes(lastCache)}
	memory := newStores(options.Seed)
	// operands of some fifteen kinds are kept until the end
	compared.size.cold = min(compared.size.cold, max(memory.limit/16, 2*lastCache, 64<<20))

	soc := &socs.SoC{}
	groups := [][]int{options.Cores[:1]}
	if len(options.Cores) > 1 {
		groups = append(groups, options.Cores)
	}

	for _, set := range options.Sets {
		for _, cores := range groups {
			soc.Processors = append(soc.Processors, socs.Processor{
				Name: set + ":" + selector(cores), Driver: options.Driver.Name(), Select: selector(cores),
				Options: map[string]string{"kernels": set}, Cores: cores,
			})
		}
	}

	name := options.Driver.Name()
	compared.runner = &runner{
		soc: soc, lanes: map[string]*lane{}, vocabulary: 1, coldBytes: compared.size.cold,
		stores: memory,
		options: Options{
			Drivers:   map[string]driver.Driver{name: options.Driver},
			Compilers: map[string]driver.Compiler{name: options.Compiler}, Seed: options.Seed,
		},
	}

	defer raiseThreads(len(options.Cores))()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	err := compared.run(ctx, soc, len(groups))
	if cerr := compared.runner.close(ctx); err == nil {
		err = cerr
	}
	if diag.ClassOf(err) == diag.ClassInfeasible { // of no plan: memory is missing
		err = diag.New(diag.ClassUnavailable, "measure kernels: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return compared.summarise()
}

// comparison is the state of Kernels.
type comparison struct {
	options KernelOptions
	// readIssue reads the rate at which each of the first n cores begins instructions; nil where the driver cannot.
	readIssue func(ctx context.Context, n int) ([]float64, error)
	runner    *runner
	size      kernelSizes
	lines     []*kernelLine
}

// kernelLine is one line of the comparison and its samples, one a round.
type kernelLine struct {
	kernel  Kernel
	measure func(ctx context.Context) (rate, bound float64, err error) // one sample of both
	rates   []float64
	shares  []float64
	issued  [][]float64 // by each core, the lower of the readings before and after
}

// run makes the lines of all sets, then visits them round by round in random order. groups is the
// number of processors of a set: on one core and, with more cores, on all.
func (c *comparison) run(ctx context.Context, soc *socs.SoC, groups int) error {
	for i := 0; i < len(soc.Processors); i += groups {
		one, err := c.runner.lane(ctx, soc.Processors[i].Name, nil)
		if err != nil {
			return err
		}

		many := one
		if groups > 1 {
			if many, err = c.runner.lane(ctx, soc.Processors[i+1].Name, nil); err != nil {
				return err
			}
		}

		if err := c.addSet(ctx, c.options.Sets[i/groups], one, many); err != nil {
			return err
		}
	}

	rng := rand.New(rand.NewPCG(c.options.Seed, 5))
	for round := -1; round < c.options.Rounds; round++ {
		// The first round is a warm-up.
		if c.options.Progress != nil && round >= 0 {
			c.options.Progress(round)
		}

		for _, i := range rng.Perm(len(c.lines)) {
			if err := ctx.Err(); err != nil {
				return err
			}
			line := c.lines[i]
			if err := c.sample(ctx, line, round >= 0); err != nil {
				return fmt.Errorf("measure %s %s with kernels %q: %w", line.kernel.What, line.kernel.Shape,
					line.kernel.Set, err)
			}
		}

		runtime.GC()
	}
	return nil
}

// sample visits a line, between two readings of its cores, and keeps the values where they count.
func (c *comparison) sample(ctx context.Context, line *kernelLine, counts bool) error {
	before, err := c.issueRates(ctx, line)
	if err != nil {
		return err
	}
	rate, bound, err := line.measure(ctx)
	if err != nil {
		return err
	}
	after, err := c.issueRates(ctx, line)
	if err != nil {
		return err
	}
	if !counts {
		return nil
	}

	for core := range before {
		before[core] = min(before[core], after[core])
	}
	line.issued = append(line.issued, before)
	line.rates = append(line.rates, rate)
	if bound > 0 {
		line.shares = append(line.shares, rate/bound)
	}
	return nil
}

// issueRates reads the issue rate of each core of a line now; nil where the driver cannot tell.
func (c *comparison) issueRates(ctx context.Context, line *kernelLine) ([]float64, error) {
	if c.readIssue == nil {
		return nil, nil
	}
	return c.readIssue(ctx, line.kernel.Cores)
}

// watchIssueRate makes readIssue from a loop of instructions that do not depend on each other. The first core is read
// on its lane's thread, the others on threads of their own.
func (c *comparison) watchIssueRate(ctx context.Context, one *lane, loop func(int64) int64) error {
	own, err := c.newLoop(ctx, one, loop)
	if err != nil {
		return err
	}
	c.readIssue = func(ctx context.Context, cores int) ([]float64, error) {
		out := make([]float64, cores)
		if err := one.do(ctx, func() error { out[0] = own.run(); return nil }); err != nil {
			return nil, err
		}

		for i := range out[1:] {
			rate, err := sampleRates(ctx, c.options.Cores[i+1:i+2], nil, 1, c.size.loop/4, computing(loop))
			if err != nil {
				return nil, err
			}
			out[i+1] = rate[0]
		}
		return out, nil
	}
	return nil
}

// undisturbed reports for every visit whether no other thread disturbed its cores. best are the cores' best readings.
func (l *kernelLine) undisturbed(best []float64) []bool {
	out := make([]bool, len(l.issued))
	for i, cores := range l.issued {
		out[i] = true
		for core, reading := range cores {
			out[i] = out[i] && reading >= ownIssue*best[core]
		}
	}
	return out
}

// undisturbedOnly returns the values of the undisturbed visits, or all values where these are too few.
func undisturbedOnly(values []float64, own []bool) []float64 {
	var out []float64
	for i, value := range values {
		if own[i] {
			out = append(out, value)
		}
	}
	if len(out) < leastOwn {
		return values
	}
	return out
}

// bestIssue returns the cores' best readings: the 90th percentile, so that one outlier does not count.
func (c *comparison) bestIssue() []float64 {
	all := make([][]float64, len(c.options.Cores))
	for _, line := range c.lines {
		for _, cores := range line.issued {
			for core, reading := range cores {
				all[core] = append(all[core], reading)
			}
		}
	}

	out := make([]float64, len(all))
	for core, readings := range all {
		if len(readings) == 0 {
			continue
		}
		slices.Sort(readings)
		out[core] = readings[len(readings)-1-len(readings)/10]
	}

	return out
}

// add adds a line. visit takes one sample of its rate and of its bound, 0 where nothing bounds it.
func (c *comparison) add(line Kernel, visit func(context.Context) (float64, float64, error)) {
	c.lines = append(c.lines, &kernelLine{kernel: line, measure: visit})
}

// has reports whether a set has a line of that name.
func (c *comparison) has(set, what string) bool {
	return slices.ContainsFunc(c.lines, func(line *kernelLine) bool {
		return line.kernel.Set == set && line.kernel.What == what
	})
}

// loop is a register-only loop of about a given duration.
type loop struct {
	peak func(ops int64) int64
	ops  int64   // operations of one run
	rate float64 // operations per nanosecond, when it was made
}

// newLoop makes a loop of as many operations as take about the wanted time.
func (c *comparison) newLoop(ctx context.Context, lane *lane, peak func(int64) int64) (*loop, error) {
	made := &loop{peak: peak, ops: 1 << 16}
	return made, lane.do(ctx, func() error {
		for range 3 {
			made.rate = made.run()
			made.ops = int64(made.rate*float64(c.size.loop)) + 1
		}
		return nil
	})
}

// run returns the rate of one loop, in operations per nanosecond.
func (l *loop) run() float64 {
	start := time.Now()
	done := l.peak(l.ops)
	return float64(done) / float64(max(time.Since(start).Nanoseconds(), 1))
}

// summarise summarises the samples of all lines. It sorts them by set, one core before several, bounds before the lines
// that they bound.
func (c *comparison) summarise() ([]Kernel, error) {
	var out []Kernel
	best := c.bestIssue()
	for _, line := range c.lines {
		result, err := line.summarise(best)
		if err != nil {
			return nil, err
		}
		out = append(out, result)
	}

	set := map[string]int{}
	for i, name := range c.options.Sets {
		set[name] = i
	}
	bounded := func(result *Kernel) int {
		if result.Of == "" {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(out, func(a, b Kernel) int {
		return cmp.Or(set[a.Set]-set[b.Set], a.Cores-b.Cores, bounded(&a)-bounded(&b))
	})
	return out, nil
}

// summarise returns a line with the medians of its samples. Rounds in which the machine was disturbed count only in
// AllRate and AllShare.
func (l *kernelLine) summarise(best []float64) (Kernel, error) {
	result, own := l.kernel, l.undisturbed(best)
	counted := undisturbedOnly(l.rates, own)
	rate, err := stat.Summarise(counted)
	if err != nil {
		return Kernel{}, err
	}
	all, err := stat.Summarise(l.rates)
	if err != nil {
		return Kernel{}, err
	}

	result.Rounds, result.AllRate = len(counted), round(all.Median, 4)
	result.Rate = round(rate.Median, 4)
	result.Spread = round(max(rate.High-rate.Median, rate.Median-rate.Low)/rate.Median, 3)
	if len(l.shares) == 0 {
		return result, nil
	}

	share, err := stat.Summarise(undisturbedOnly(l.shares, own))
	if err != nil {
		return Kernel{}, err
	}
	allShares, err := stat.Summarise(l.shares)
	if err != nil {
		return Kernel{}, err
	}

	result.AllShare = round(allShares.Median, 4)
	result.Share, result.Low, result.High = round(share.Median, 4), round(share.Low, 4), round(share.High, 4)
	return result, nil
}
