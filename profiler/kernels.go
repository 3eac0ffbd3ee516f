package profiler

import (
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
	// Spread is the larger side of the interval of Rate over Rate. That of a register-only loop is small on a machine
	// at rest.
	Spread float64 `json:"rate_spread"`

	Of    string  `json:"of,omitempty"`         // what bounds it
	Share float64 `json:"share,omitempty"`      // median of the rounds' shares
	Low   float64 `json:"share_low,omitempty"`  // interval of the median
	High  float64 `json:"share_high,omitempty"` // of coverage stat.Confidence, with six rounds or more
	Mark  float64 `json:"mark,omitempty"`       // share to reach

	// Rounds is how many rounds count: those in which no other hardware thread of the cores was busy, else, where
	// they are too few or that is unknown, all. AllRate and AllShare are the medians over all.
	Rounds   int     `json:"rounds"`
	AllRate  float64 `json:"all_rate"`
	AllShare float64 `json:"all_share,omitempty"`
}

// Reached reports whether the line has no mark or its median share reaches it.
func (k *Kernel) Reached() bool { return k.Share >= k.Mark }

// The share of its bound that a kernel has to reach, by scheme, on a CPU whose best set is
// measured.
var (
	gemmMarks = map[op.Scheme]float64{op.A8TQ8C: 0.85, op.A32W32: 0.80}
	gemvMarks = map[op.Scheme]float64{op.A8TQ8C: 0.90, op.A8TQ6C: 0.85, op.A8TQ4B32: 0.75}
)

// attentionMark is the share of the float32 peak that attention of a prompt has to reach.
const attentionMark = 0.7

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

// sizes returns those of a real measurement, or those of tests. lastCache is the size of the
// last-level cache in bytes.
func (o *KernelOptions) sizes(lastCache int64) kernelSizes {
	if o.small {
		return kernelSizes{gemm: [][2]int{{64, 96}}, gemv: [][2]int{{64, 96}}, rows: []int{5}, cold: 8 << 20,
			stream: 1 << 18,
			visit:  50 * time.Microsecond, loop: 20 * time.Microsecond, longest: time.Second}
	}
	return kernelSizes{
		gemm: [][2]int{{1024, 1024}, {2048, 2048}, {2048, 5632}, {5632, 2048}},
		gemv: [][2]int{{2048, 2048}, {2048, 5632}, {5632, 2048}},
		rows: []int{64, 256, 512}, cold: streamBytes(lastCache), stream: 64 << 20,
		visit: 10 * time.Millisecond, loop: 1500 * time.Microsecond, longest: 200 * time.Millisecond,
	}
}

// Kernels measures matrix products and attention as a plan would run them. Each visit lies between
// two readings of what bounds the product: multiply-adds on registers alone in the same instruction
// set, or reading memory. Everything is visited once a round, in random order, so that a machine
// whose speed changes favours no line.
//
// Another hardware thread of a core, perhaps another tenant's, takes half of the instructions that
// the core issues. Products suffer from it and register-only loops hardly do. So each visit also
// lies between two readings of the rate at which the core issues instructions, and visits where it
// was low are left out.
func Kernels(ctx context.Context, options KernelOptions) ([]Kernel, error) {
	if len(options.Sets) == 0 || len(options.Cores) == 0 || options.Rounds < 1 {
		panic("BUG: no kernels, cores or rounds to measure")
	}
	machine := readMachine("/", options.Cores)
	lastCache := (&socs.SoC{CPU: &socs.CPU{Caches: machine.caches}}).LastCacheBytes()
	compared := &comparison{options: options, size: options.sizes(lastCache)}
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
		stores: stores{seed: options.Seed, limit: memoryLimit(), all: map[string]*store{}},
		options: Options{
			Drivers:   map[string]driver.Driver{name: options.Driver},
			Compilers: map[string]driver.Compiler{name: options.Compiler}, Seed: options.Seed,
		},
	}
	// The threads that wait must not take a place from one that is measured.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), len(options.Cores)+2)))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	err := compared.run(ctx, soc, len(groups))
	if cerr := compared.runner.close(ctx); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	return compared.summarise()
}

// comparison is the state of Kernels.
type comparison struct {
	options KernelOptions
	// issue reads the rate at which the first n cores begin instructions; nil where that cannot be told.
	readIssue func(ctx context.Context, n int) ([]float64, error)
	runner    *runner
	size      kernelSizes
	lines     []*kernelLine
}

// kernelLine is one line of the comparison and its samples, one a round.
type kernelLine struct {
	kernel Kernel
	visit  func(ctx context.Context) (rate, bound float64, err error) // one sample of both
	rates  []float64
	shares []float64
	issued [][]float64 // by each core, the lower of the readings before and after
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
	for round := -1; round < c.options.Rounds; round++ { // the first one warms up
		if c.options.Progress != nil && round >= 0 {
			c.options.Progress(round)
		}
		for _, i := range rng.Perm(len(c.lines)) {
			if err := ctx.Err(); err != nil {
				return err
			}
			x := c.lines[i]
			if err := c.sample(ctx, x, round >= 0); err != nil {
				return fmt.Errorf("measure %s %s with kernels %q: %w", x.kernel.What, x.kernel.Shape, x.kernel.Set, err)
			}
		}
		runtime.GC()
	}
	return nil
}

// sample visits a line, between two readings of its cores, and keeps the values where they count.
func (c *comparison) sample(ctx context.Context, x *kernelLine, counts bool) error {
	before, err := c.issueRates(ctx, x)
	if err != nil {
		return err
	}
	rate, bound, err := x.visit(ctx)
	if err != nil {
		return err
	}
	after, err := c.issueRates(ctx, x)
	if err != nil || !counts {
		return err
	}
	for core := range before {
		before[core] = min(before[core], after[core])
	}
	x.issued = append(x.issued, before)
	x.rates = append(x.rates, rate)
	if bound > 0 {
		x.shares = append(x.shares, rate/bound)
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

// watchIssueRate makes c.issue from a loop of instructions that depend on nothing. The first core is read on
// its lane's thread, the others on threads of their own.
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
			rate, err := rates(ctx, c.options.Cores[i+1:i+2], nil, 1, c.size.loop/4, computing(loop))
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
func (x *kernelLine) undisturbed(best []float64) []bool {
	out := make([]bool, len(x.issued))
	for i, cores := range x.issued {
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
			for core, v := range cores {
				all[core] = append(all[core], v)
			}
		}
	}
	out := make([]float64, len(all))
	for core, v := range all {
		if slices.Sort(v); len(v) > 0 {
			out[core] = v[len(v)-1-len(v)/10]
		}
	}
	return out
}

// kernelSet adds the lines of one set of kernels.
type kernelSet struct {
	*comparison
	set string
	// its processor on the first core, and on all cores
	one, many *lane
	bounds    driver.Bounds
	loops     map[op.Type]*loop // on one core
}

// peakNames are those of the lines of register-only loops.
var peakNames = map[op.Type]string{op.I8: "int8 peak", op.F32: "f32 peak"}

// peak returns the register-only loop of a type of numbers.
func (s *kernelSet) peak(numbers op.Type) func(int64) int64 {
	if numbers == op.I8 {
		return s.bounds.PeakI8
	}
	return s.bounds.PeakF32
}

// mark returns what a line has to reach, 0 in sets that are only compared with.
func (s *kernelSet) mark(value float64) float64 {
	if s.set != s.options.Marked {
		return 0
	}
	return value
}

// addSet adds the lines of one set: register-only loops, products, attention, and all cores
// together.
func (c *comparison) addSet(ctx context.Context, set string, one, many *lane) error {
	bounded, ok := one.proc.(driver.Bounded)
	if !ok {
		return diag.New(diag.ClassUnavailable, "measure kernels: driver %q does not tell what bounds them",
			c.options.Driver.Name())
	}
	s := &kernelSet{comparison: c, set: set, one: one, many: many, bounds: bounded.Bounds(), loops: map[op.Type]*loop{}}
	if c.readIssue == nil && s.bounds.Issue != nil {
		if err := c.watchIssueRate(ctx, one, s.bounds.Issue); err != nil {
			return err
		}
	}
	for _, numbers := range []op.Type{op.I8, op.F32} {
		register, err := c.newLoop(ctx, one, s.peak(numbers))
		if err != nil {
			return err
		}
		s.loops[numbers] = register
		peak := Kernel{Set: set, What: peakNames[numbers], Cores: 1, Unit: "Gop/s"}
		c.add(peak, func(ctx context.Context) (rate, _ float64, err error) {
			err = one.do(ctx, func() error { rate = register.run(); return nil })
			return rate, 0, err
		})
	}
	if err := s.addMatrices(ctx); err != nil {
		return err
	}
	if err := s.addAttention(ctx); err != nil {
		return err
	}
	if many == one {
		return nil
	}
	return s.allCores(ctx)
}

// addMatrices adds matrix products of every scheme: all shapes for schemes that have marks, one shape
// for the others.
func (s *kernelSet) addMatrices(ctx context.Context) error {
	middle, middleShape := s.size.rows[len(s.size.rows)/2], s.size.gemm[len(s.size.gemm)/2]
	for _, scheme := range s.one.caps.Offered().Schemes {
		numbers, what := op.F32, string(scheme)+" matmul"
		if scheme.QuantisedRows() {
			numbers = op.I8
		}
		_, main := gemmMarks[scheme]
		for _, kn := range s.size.gemm {
			for _, rows := range s.size.rows {
				if !main && (rows != middle || kn != middleShape) {
					continue
				}
				operator := op.Op{Kind: op.MatMul, M: rows, K: kn[0], N: kn[1], Scheme: scheme}
				if err := s.addGEMM(ctx, operator, numbers, what, s.mark(gemmMarks[scheme])); err != nil {
					return err
				}
			}
		}
		for _, kn := range s.size.gemv {
			operator := op.Op{Kind: op.MatMul, M: 1, K: kn[0], N: kn[1], Scheme: scheme}
			bytes := op.WeightBytes(scheme.Weight(), operator.K, operator.N)
			if err := s.addGEMV(ctx, operator, bytes, what, s.mark(gemvMarks[scheme])); err != nil {
				return err
			}
		}
	}
	return nil
}

// addGEMM adds an operator that is bound by arithmetic: it is measured between two register-only loops.
func (s *kernelSet) addGEMM(ctx context.Context, operator op.Op, numbers op.Type, what string, mark float64) error {
	register := s.loops[numbers]
	if took := time.Duration(float64(operator.Flops()) / register.rate); took > s.size.longest {
		return nil
	}
	ld, times, err := s.load(ctx, s.one, operator, 0)
	if err != nil {
		return err
	}
	line := Kernel{
		Set: s.set, What: what, Shape: shapeOf(operator), Cores: 1, Unit: "Gop/s", Of: peakNames[numbers], Mark: mark,
	}
	s.add(line, func(ctx context.Context) (rate, bound float64, err error) {
		err = s.one.do(ctx, func() error {
			before := register.run()
			ns, err := ld.run(times)
			rate, bound = float64(operator.Flops())/ns, (before+register.run())/2
			return err
		})
		return rate, bound, err
	})
	return nil
}

// addGEMV adds an operator that is bound by memory, measured between two readings of the memory in
// which its weights lie. The readings are half of that memory away from the weights in use, so that
// they find nothing in a cache. It also adds one line for the reading itself.
func (s *kernelSet) addGEMV(ctx context.Context, operator op.Op, bytes int64, what string, mark float64) error {
	ld, times, err := s.load(ctx, s.one, operator, s.size.cold)
	if err != nil {
		return err
	}
	memory := ld.stores[len(ld.stores)-1].region.Bytes()
	memory = memory[:min(int64(len(memory)), s.size.cold)&^511]
	part := min(s.size.stream, len(memory)/4&^511)
	read := func() float64 {
		at := (len(memory)/2 + len(memory)/len(ld.exes)*ld.next) % (len(memory) - part) &^ 511
		start := time.Now()
		sink.Add(s.bounds.Stream(memory[at : at+part]))
		return float64(part) / float64(time.Since(start).Nanoseconds())
	}
	line := Kernel{Set: s.set, What: what, Shape: shapeOf(operator), Cores: 1, Unit: "GB/s", Of: "stream", Mark: mark}
	s.add(line, func(ctx context.Context) (rate, bound float64, err error) {
		err = s.one.do(ctx, func() error {
			before := read()
			ns, err := ld.run(times)
			rate, bound = float64(bytes)/ns, (before+read())/2
			return err
		})
		return rate, bound, err
	})
	if s.has(s.set, "stream") {
		return nil
	}
	stream := Kernel{Set: s.set, What: "stream", Cores: 1, Unit: "GB/s"}
	s.add(stream, func(ctx context.Context) (rate, _ float64, err error) {
		err = s.one.do(ctx, func() error { rate = read(); return nil })
		return rate, 0, err
	})
	return nil
}

// headShapes are heads of attention of small models: eight, seven, four and one query heads per key head, with and
// without multiples of 32 columns. The first is measured over every type of cache, the others over 16-bit caches.
var headShapes = []headShape{{32, 4, 64}, {14, 2, 64}, {16, 16, 80}, {24, 6, 96}, {32, 8, 128}}

// headShape is query heads, heads of keys and values, and columns of each.
type headShape struct{ heads, kvHeads, dim int }

// longPrompt is the ratio of positions to rows in a call at the end of a long prompt, and of positions to a call's rows
// in a step of decode.
const longPrompt = 4

// addAttention adds attention of a prompt, of the end of a longer one, and of a decode step.
func (s *kernelSet) addAttention(ctx context.Context) error {
	usual := []op.Type{op.F16, op.BF16}
	if !slices.Contains(s.one.caps.KV, op.F16) {
		usual = s.one.caps.KV[:1]
	}
	rows := s.size.rows[len(s.size.rows)/2]
	for number, shape := range headShapes {
		for _, cached := range s.one.caps.KV {
			if number > 0 && !slices.Contains(usual, cached) {
				continue
			}
			operator := s.step(shape, cached)
			operator.M = rows
			for _, positions := range []int{rows, longPrompt * rows} {
				operator.Context = positions
				if err := s.addGEMM(ctx, operator, op.F32, "attention", s.mark(attentionMark)); err != nil {
					return err
				}
			}
			operator.M = 1
			if err := s.addGEMV(ctx, operator, cachedBytes(operator), "attention", 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// step returns attention of a decode step at the end of a long prompt.
func (s *kernelSet) step(shape headShape, cached op.Type) op.Op {
	return op.Op{
		Kind: op.Attention, M: 1, Heads: shape.heads, KVHeads: shape.kvHeads, HeadDim: shape.dim, KV: cached,
		Context: longPrompt * s.size.rows[len(s.size.rows)/2],
	}
}

// cachedBytes returns what attention of one row reads of the caches.
func cachedBytes(o op.Op) int64 {
	return 2 * int64(o.Context*o.KVHeads) * o.KV.CacheRowBytes(o.HeadDim)
}

// allCores adds the lines of all cores.
func (s *kernelSet) allCores(ctx context.Context) error {
	if err := s.addSpeedUp(ctx, op.I8, op.A8TQ8C); err != nil {
		return err
	}
	if err := s.addSpeedUp(ctx, op.F32, op.A32W32); err != nil {
		return err
	}
	for _, scheme := range s.many.caps.Offered().Schemes {
		if _, ok := gemvMarks[scheme]; !ok {
			continue
		}
		kn := s.size.gemv[len(s.size.gemv)/2]
		operator := op.Op{Kind: op.MatMul, M: 1, K: kn[0], N: kn[1], Scheme: scheme}
		bytes := op.WeightBytes(scheme.Weight(), operator.K, operator.N)
		if err := s.addStream(ctx, operator, bytes, string(scheme)+" matmul"); err != nil {
			return err
		}
	}
	// The first heads stand for all, as those that bound a core's multiply-adds most.
	for _, cached := range s.many.caps.KV {
		operator := s.step(headShapes[0], cached)
		if err := s.addStream(ctx, operator, cachedBytes(operator), "attention"); err != nil {
			return err
		}
	}
	return nil
}

// rate returns the work per nanosecond of cores together, in one window.
func (s *kernelSet) rate(ctx context.Context, cores []int, work func(int) func() int64) (float64, error) {
	all, err := rates(ctx, cores, nil, 1, 2*s.size.loop, work)
	if err != nil {
		return 0, err
	}
	return all[0], nil
}

// addSpeedUp adds the register-only loop of all cores, and matrix products whose bound is their rate on
// one core times the speed-up of that loop.
func (s *kernelSet) addSpeedUp(ctx context.Context, numbers op.Type, scheme op.Scheme) error {
	cores := s.options.Cores
	work := computing(s.peak(numbers))
	peak := Kernel{Set: s.set, What: peakNames[numbers], Cores: len(cores), Unit: "Gop/s"}
	s.add(peak, func(ctx context.Context) (rate, _ float64, err error) {
		rate, err = s.rate(ctx, cores, work)
		return rate, 0, err
	})
	// The middle size stands for all: how a product gains from cores hardly depends on it.
	kn := s.size.gemm[len(s.size.gemm)/2]
	for _, rows := range s.size.rows {
		operator := op.Op{Kind: op.MatMul, M: rows, K: kn[0], N: kn[1], Scheme: scheme}
		if !slices.Contains(s.one.caps.Schemes, scheme) || !s.hasShape(s.set, operator) {
			continue
		}
		alone, aloneTimes, err := s.load(ctx, s.one, operator, 0)
		if err != nil {
			return err
		}
		joint, jointTimes, err := s.load(ctx, s.many, operator, 0)
		if err != nil {
			return err
		}
		line := Kernel{
			Set: s.set, What: string(scheme) + " matmul", Shape: shapeOf(operator), Cores: len(cores), Unit: "Gop/s",
			Of: "gain of " + peakNames[numbers], Mark: s.mark(manyMark),
		}
		s.add(line, func(ctx context.Context) (reached, bound float64, err error) {
			// All four are measured in one round, so that a changing clock cancels out.
			oneLoop, err := s.rate(ctx, cores[:1], work)
			if err != nil {
				return 0, 0, err
			}
			allLoops, err := s.rate(ctx, cores, work)
			if err != nil {
				return 0, 0, err
			}
			aloneNS, err := steadyTime(ctx, alone, aloneTimes)
			if err != nil {
				return 0, 0, err
			}
			ns, err := steadyTime(ctx, joint, jointTimes)
			if err != nil {
				return 0, 0, err
			}
			return float64(operator.Flops()) / ns, float64(operator.Flops()) / aloneNS * allLoops / oneLoop, nil
		})
	}
	return nil
}

// addStream adds an operator of one row on all cores, bounded by how fast these cores read its bytes of weights or of
// cache.
func (s *kernelSet) addStream(ctx context.Context, operator op.Op, bytes int64, what string) error {
	cores := s.options.Cores
	ld, times, err := s.load(ctx, s.many, operator, s.size.cold)
	if err != nil {
		return err
	}
	memory := ld.stores[len(ld.stores)-1].region.Bytes()
	if len(memory) < 2*len(cores)*chunk {
		return nil
	}
	line := Kernel{
		Set: s.set, What: what, Shape: shapeOf(operator), Cores: len(cores), Unit: "GB/s", Of: "stream",
	}
	s.add(line, func(ctx context.Context) (rate, bound float64, err error) {
		if bound, err = s.rate(ctx, cores, reading(memory, len(cores), s.bounds.Stream)); err != nil {
			return 0, 0, err
		}
		ns, err := steadyTime(ctx, ld, times)
		return float64(bytes) / ns, bound, err
	})
	return nil
}

// steadyTime returns the time of an execution that follows another, as in a program: the first one after a
// pause wakes threads.
func steadyTime(ctx context.Context, ld *loadedOp, loops int) (float64, error) {
	if _, err := (soloSource{ld}).sample(ctx, 1); err != nil {
		return 0, err
	}
	return soloSource{ld}.sample(ctx, loops)
}

// add adds a line. visit takes one sample of its rate and of its bound, 0 where nothing bounds it.
func (c *comparison) add(line Kernel, visit func(context.Context) (float64, float64, error)) {
	c.lines = append(c.lines, &kernelLine{kernel: line, visit: visit})
}

// has reports whether a set has a line of that name.
func (c *comparison) has(set, what string) bool {
	return slices.ContainsFunc(c.lines, func(line *kernelLine) bool {
		return line.kernel.Set == set && line.kernel.What == what
	})
}

// hasShape reports whether a matrix product is measured on one core.
func (c *comparison) hasShape(set string, operator op.Op) bool {
	return slices.ContainsFunc(c.lines, func(line *kernelLine) bool {
		return line.kernel.Set == set && line.kernel.Shape == shapeOf(operator) &&
			line.kernel.What == string(operator.Scheme)+" matmul"
	})
}

// shapeOf returns the shape of an operator as lines show it.
func shapeOf(operator op.Op) string {
	if operator.Kind == op.Attention {
		return fmt.Sprintf("%d of %d, %dx%d %s", operator.M, operator.Context, operator.Heads/operator.KVHeads,
			operator.HeadDim, operator.KV)
	}
	return fmt.Sprintf("%dx%dx%d", operator.M, operator.K, operator.N)
}

// load loads an operator and returns how many executions fill a visit.
func (c *comparison) load(ctx context.Context, lane *lane, operator op.Op, footprint int64) (*loadedOp, int, error) {
	ld, err := c.runner.loadOp(ctx, lane, operator, lane.caps.Layouts[operator.Scheme.Weight()], footprint)
	if err != nil {
		return nil, 0, err
	}
	var ns float64
	err = lane.do(ctx, func() (err error) {
		for range 2 {
			if ns, err = ld.run(1); err != nil {
				return err
			}
		}
		return nil
	})
	return ld, max(1, int(float64(c.size.visit)/max(ns, 1))), err
}

// loop is a register-only loop of about a given duration.
type loop struct {
	peak func(ops int64) int64
	// operations of one run
	ops int64
	// of the last calibration, operations per nanosecond
	rate float64
}

// newLoop finds how many operations take about as long as is wanted.
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
func (x *loop) run() float64 {
	start := time.Now()
	done := x.peak(x.ops)
	return float64(done) / float64(max(time.Since(start).Nanoseconds(), 1))
}

// summarise summarises the samples, sorted: by set, one core before many, what bounds before what is
// bounded.
func (c *comparison) summarise() ([]Kernel, error) {
	var out []Kernel
	best := c.bestIssue()
	for _, x := range c.lines {
		result, own := x.kernel, x.undisturbed(best)
		// Rounds in which the machine was disturbed do not count; AllRate and AllShare show them.
		counted := undisturbedOnly(x.rates, own)
		rate, err := stat.Summarise(counted)
		if err != nil {
			return nil, err
		}
		all, err := stat.Summarise(x.rates)
		if err != nil {
			return nil, err
		}
		result.Rounds, result.AllRate = len(counted), round(all.Median, 4)
		result.Rate = round(rate.Median, 4)
		result.Spread = round(max(rate.High-rate.Median, rate.Median-rate.Low)/rate.Median, 3)
		if len(x.shares) > 0 {
			share, err := stat.Summarise(undisturbedOnly(x.shares, own))
			if err != nil {
				return nil, err
			}
			all, err := stat.Summarise(x.shares)
			if err != nil {
				return nil, err
			}
			result.AllShare = round(all.Median, 4)
			result.Share, result.Low, result.High = round(share.Median, 4), round(share.Low, 4), round(share.High, 4)
		}
		out = append(out, result)
	}
	set := map[string]int{}
	for i, name := range c.options.Sets {
		set[name] = i
	}
	slices.SortStableFunc(out, func(first, second Kernel) int {
		bound := func(result Kernel) int {
			if result.Of == "" {
				return 0
			}
			return 1
		}
		if order := set[first.Set] - set[second.Set]; order != 0 {
			return order
		}
		if order := first.Cores - second.Cores; order != 0 {
			return order
		}
		return bound(first) - bound(second)
	})
	return out, nil
}
