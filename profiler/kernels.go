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
	// Spread is the larger side of the interval of Rate over Rate. That of a register-only loop is small on a machine at rest.
	Spread float64 `json:"rate_spread"`

	Of    string  `json:"of,omitempty"`         // what bounds it
	Share float64 `json:"share,omitempty"`      // median of the rounds' shares
	Low   float64 `json:"share_low,omitempty"`  // interval of the median
	High  float64 `json:"share_high,omitempty"` // of coverage stat.Confidence, with six rounds or more
	Mark  float64 `json:"mark,omitempty"`       // share to reach

	// Rounds is how many rounds count: those in which no other hardware thread of the cores was busy, else, where
	// they are too few or nobody can tell, all. AllRate and AllShare are the medians over all.
	Rounds   int     `json:"rounds"`
	AllRate  float64 `json:"all_rate"`
	AllShare float64 `json:"all_share,omitempty"`
}

// Reached reports whether the line has no mark or its median share reaches it.
func (k *Kernel) Reached() bool { return k.Share >= k.Mark }

// What a kernel has to reach of what bounds it, on a CPU whose best set is measured.
var (
	gemmMarks = map[op.Scheme]float64{op.A8TQ8C: 0.85, op.A32W32: 0.80}
	gemvMarks = map[op.Scheme]float64{op.A8TQ8C: 0.90, op.A8TQ4B32: 0.75}
)

// manyMark is what cores together have to reach over one, over the same of the register-only loop.
const manyMark = 0.95

// A core is a round's own when it began instructions at ownIssue of the best rate seen of it, before and after; and
// such rounds alone count when there are leastOwn.
const (
	ownIssue = 0.8
	leastOwn = 9
)

// sizes of a comparison.
type kernelSizes struct {
	gemm, gemv [][2]int // K, N
	rows       []int
	cold       int64 // bytes through which weights of a GEMV are rotated
	stream     int   // bytes of one reading
	visit      time.Duration
	loop       time.Duration // of one register-only loop
	longest    time.Duration // at the peak; larger shapes are left out
}

func (o *KernelOptions) sizes(lastCache int64) kernelSizes {
	if o.small {
		return kernelSizes{gemm: [][2]int{{64, 96}}, gemv: [][2]int{{64, 96}}, rows: []int{5}, cold: 8 << 20, stream: 1 << 18,
			visit: 50 * time.Microsecond, loop: 20 * time.Microsecond, longest: time.Second}
	}
	return kernelSizes{
		gemm: [][2]int{{1024, 1024}, {2048, 2048}, {2048, 5632}, {5632, 2048}},
		gemv: [][2]int{{2048, 2048}, {2048, 5632}, {5632, 2048}},
		rows: []int{64, 256, 512}, cold: streamBytes(lastCache), stream: 64 << 20,
		visit: 10 * time.Millisecond, loop: 1500 * time.Microsecond, longest: 200 * time.Millisecond,
	}
}

// Kernels measures matrix products and attention as a plan would run them, each between two readings of what bounds it:
// multiply-adds on registers alone in the same instruction set, or reading memory. Everything is visited once a round, in
// random order, so that a machine whose speed changes does not favour anybody. Another hardware thread of a core, which may be
// somebody else's, takes half of the instructions that a core begins: products feel it and register-only loops hardly
// do. So each visit is also between two readings of that rate, and those where it was low are left out.
func Kernels(ctx context.Context, o KernelOptions) ([]Kernel, error) {
	if len(o.Sets) == 0 || len(o.Cores) == 0 || o.Rounds < 1 {
		panic("BUG: no kernels, cores or rounds to measure")
	}
	m := readMachine("/", o.Cores)
	c := &comparison{o: o, size: o.sizes((&socs.SoC{CPU: &socs.CPU{Caches: m.caches}}).LastCacheBytes())}
	s := &socs.SoC{}
	groups := [][]int{o.Cores[:1]}
	if len(o.Cores) > 1 {
		groups = append(groups, o.Cores)
	}
	for _, set := range o.Sets {
		for _, cores := range groups {
			s.Processors = append(s.Processors, socs.Processor{Name: set + ":" + selector(cores), Driver: o.Driver.Name(),
				Select: selector(cores), Options: map[string]string{"kernels": set}, Cores: cores})
		}
	}
	limit := int64(16 << 30)
	if free := availableBytes(); free > 0 {
		limit = free / 2
	}
	c.r = &runner{soc: s, lanes: map[string]*lane{}, stores: stores{seed: o.Seed, limit: limit, all: map[string]*store{}}, ids: 1, coldBytes: c.size.cold,
		o: Options{Drivers: map[string]driver.Driver{o.Driver.Name(): o.Driver}, Compilers: map[string]driver.Compiler{o.Driver.Name(): o.Compiler}, Seed: o.Seed}}
	// The threads that wait must not take a place from one that is measured.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), len(o.Cores)+2)))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	err := c.run(ctx, s, len(groups))
	if cerr := c.r.close(ctx); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	return c.lines()
}

// comparison is the state of Kernels.
type comparison struct {
	o KernelOptions
	// issue reads the rate at which the first n cores begin instructions; nil where that cannot be told.
	issue func(ctx context.Context, n int) ([]float64, error)
	r     *runner
	size  kernelSizes
	all   []*contender
}

// contender is one line of the comparison.
type contender struct {
	line   Kernel
	visit  func(ctx context.Context) (rate, bound float64, err error) // one sample of both
	rates  []float64
	shares []float64
	issued [][]float64 // by each core, the lower of the readings before and after
}

func (c *comparison) run(ctx context.Context, s *socs.SoC, groups int) error {
	for i := 0; i < len(s.Processors); i += groups {
		one, err := c.r.lane(ctx, s.Processors[i].Name, nil)
		if err != nil {
			return err
		}
		many := one
		if groups > 1 {
			if many, err = c.r.lane(ctx, s.Processors[i+1].Name, nil); err != nil {
				return err
			}
		}
		if err := c.enter(ctx, c.o.Sets[i/groups], one, many); err != nil {
			return err
		}
	}
	rng := rand.New(rand.NewPCG(c.o.Seed, 5))
	for round := -1; round < c.o.Rounds; round++ { // the first one warms up
		if c.o.Progress != nil && round >= 0 {
			c.o.Progress(round)
		}
		for _, i := range rng.Perm(len(c.all)) {
			if err := ctx.Err(); err != nil {
				return err
			}
			x := c.all[i]
			fail := func(err error) error {
				return fmt.Errorf("measure %s %s with kernels %q: %w", x.line.What, x.line.Shape, x.line.Set, err)
			}
			before, err := c.issued(ctx, x)
			if err != nil {
				return fail(err)
			}
			rate, bound, err := x.visit(ctx)
			if err != nil {
				return fail(err)
			}
			after, err := c.issued(ctx, x)
			if err != nil {
				return fail(err)
			}
			if round < 0 {
				continue
			}
			for k := range before {
				before[k] = min(before[k], after[k])
			}
			x.issued = append(x.issued, before)
			x.rates = append(x.rates, rate)
			if bound > 0 {
				x.shares = append(x.shares, rate/bound)
			}
		}
		runtime.GC()
	}
	return nil
}

// issued is what the cores of a line begin now, nothing where that cannot be told.
func (c *comparison) issued(ctx context.Context, x *contender) ([]float64, error) {
	if c.issue == nil {
		return nil, nil
	}
	return c.issue(ctx, x.line.Cores)
}

// watch makes issue of a loop of instructions that wait for nothing.
func (c *comparison) watch(ctx context.Context, one *lane, loop func(int64) int64) error {
	l, err := c.newLoop(ctx, one, loop)
	if err != nil {
		return err
	}
	c.issue = func(ctx context.Context, n int) ([]float64, error) {
		out := make([]float64, n)
		if err := one.do(ctx, func() error { out[0] = l.run(); return nil }); err != nil {
			return nil, err
		}
		for i := range out[1:] {
			r, err := rates(ctx, c.o.Cores[i+1:i+2], nil, 1, c.size.loop/4, computing(loop))
			if err != nil {
				return nil, err
			}
			out[i+1] = r[0]
		}
		return out, nil
	}
	return nil
}

// own says for every visit of a line whether its cores were its own. best are the cores' best readings.
func (x *contender) own(best []float64) []bool {
	out := make([]bool, len(x.issued))
	for i, cores := range x.issued {
		out[i] = true
		for k, v := range cores {
			out[i] = out[i] && v >= ownIssue*best[k]
		}
	}
	return out
}

// chosen are the values of the visits that count, which are all when too few are their own.
func chosen(values []float64, own []bool) []float64 {
	var out []float64
	for i, v := range values {
		if own[i] {
			out = append(out, v)
		}
	}
	if len(out) < leastOwn {
		return values
	}
	return out
}

// best are the cores' best readings: of the upper tenth, so that one odd reading says nothing.
func (c *comparison) best() []float64 {
	all := make([][]float64, len(c.o.Cores))
	for _, x := range c.all {
		for _, cores := range x.issued {
			for k, v := range cores {
				all[k] = append(all[k], v)
			}
		}
	}
	out := make([]float64, len(all))
	for k, v := range all {
		if slices.Sort(v); len(v) > 0 {
			out[k] = v[len(v)-1-len(v)/10]
		}
	}
	return out
}

// enter adds the lines of one set: one is its processor on one core, many on all.
func (c *comparison) enter(ctx context.Context, set string, one, many *lane) error {
	b, ok := one.proc.(driver.Bounded)
	if !ok {
		return diag.New(diag.ClassUnavailable, "measure kernels: driver %q does not tell what bounds them", c.o.Driver.Name())
	}
	bounds := b.Bounds()
	if c.issue == nil && bounds.Issue != nil {
		if err := c.watch(ctx, one, bounds.Issue); err != nil {
			return err
		}
	}
	marked := set == c.o.Marked
	mark := func(marks map[op.Scheme]float64, s op.Scheme) float64 {
		if !marked {
			return 0
		}
		return marks[s]
	}
	peaks := map[op.Type]func(int64) int64{op.I8: bounds.PeakI8, op.F32: bounds.PeakF32}
	names := map[op.Type]string{op.I8: "int8 peak", op.F32: "f32 peak"}
	loops := map[op.Type]*loop{}
	for _, t := range []op.Type{op.I8, op.F32} {
		l, err := c.newLoop(ctx, one, peaks[t])
		if err != nil {
			return err
		}
		loops[t] = l
		c.add(Kernel{Set: set, What: names[t], Cores: 1, Unit: "Gop/s"}, func(ctx context.Context) (rate, _ float64, err error) {
			err = one.do(ctx, func() error { rate = l.run(); return nil })
			return rate, 0, err
		})
	}
	typeOf := func(s op.Scheme) op.Type {
		if s.QuantisedRows() {
			return op.I8
		}
		return op.F32
	}
	// gemm is between two register-only loops.
	gemm := func(o op.Op, t op.Type, what string, mark float64) error {
		if took := time.Duration(float64(o.Flops()) / loops[t].rate); took > c.size.longest {
			return nil
		}
		ld, n, err := c.load(ctx, one, o, 0)
		if err != nil {
			return err
		}
		c.add(Kernel{Set: set, What: what, Shape: shapeOf(o), Cores: 1, Unit: "Gop/s", Of: names[t], Mark: mark}, func(ctx context.Context) (rate, bound float64, err error) {
			err = one.do(ctx, func() error {
				before := loops[t].run()
				ns, err := ld.run(n)
				rate, bound = float64(o.Flops())/ns, (before+loops[t].run())/2
				return err
			})
			return rate, bound, err
		})
		return nil
	}
	// gemv is between two readings of the memory that its weights lie in, half a memory away.
	gemv := func(o op.Op, bytes int64, what string, mark float64) error {
		ld, n, err := c.load(ctx, one, o, c.size.cold)
		if err != nil {
			return err
		}
		memory := ld.stores[len(ld.stores)-1].region.Bytes()
		memory = memory[:min(int64(len(memory)), c.size.cold)&^511]
		part := min(c.size.stream, len(memory)/4&^511)
		read := func() float64 {
			at := (len(memory)/2 + len(memory)/len(ld.exes)*ld.next) % (len(memory) - part) &^ 511
			start := time.Now()
			sink.Add(bounds.Stream(memory[at : at+part]))
			return float64(part) / float64(time.Since(start).Nanoseconds())
		}
		c.add(Kernel{Set: set, What: what, Shape: shapeOf(o), Cores: 1, Unit: "GB/s", Of: "stream", Mark: mark}, func(ctx context.Context) (rate, bound float64, err error) {
			err = one.do(ctx, func() error {
				before := read()
				ns, err := ld.run(n)
				rate, bound = float64(bytes)/ns, (before+read())/2
				return err
			})
			return rate, bound, err
		})
		if !c.has(set, "stream") {
			c.add(Kernel{Set: set, What: "stream", Cores: 1, Unit: "GB/s"}, func(ctx context.Context) (rate, _ float64, err error) {
				err = one.do(ctx, func() error { rate = read(); return nil })
				return rate, 0, err
			})
		}
		return nil
	}
	for _, scheme := range one.caps.Offered().Schemes {
		for _, kn := range c.size.gemm {
			for _, m := range c.size.rows {
				if _, main := gemmMarks[scheme]; !main && (m != c.size.rows[len(c.size.rows)/2] || kn != c.size.gemm[len(c.size.gemm)/2]) {
					continue // one shape says enough
				}
				o := op.Op{Kind: op.MatMul, M: m, K: kn[0], N: kn[1], Scheme: scheme}
				if err := gemm(o, typeOf(scheme), string(scheme)+" matmul", mark(gemmMarks, scheme)); err != nil {
					return err
				}
			}
		}
		for _, kn := range c.size.gemv {
			o := op.Op{Kind: op.MatMul, M: 1, K: kn[0], N: kn[1], Scheme: scheme}
			if err := gemv(o, op.WeightBytes(scheme.Weight(), o.K, o.N), string(scheme)+" matmul", mark(gemvMarks, scheme)); err != nil {
				return err
			}
		}
	}
	if err := c.attention(one, gemm, gemv); err != nil {
		return err
	}
	if many == one {
		return nil
	}
	return c.together(ctx, set, marked, one, many, peaks, bounds.Stream)
}

// attention adds a prefill's and a decode's, of the shape of a small model.
func (c *comparison) attention(one *lane, gemm func(op.Op, op.Type, string, float64) error, gemv func(op.Op, int64, string, float64) error) error {
	a := op.Op{Kind: op.Attention, M: c.size.rows[len(c.size.rows)/2], Heads: 32, KVHeads: 4, HeadDim: 64, KV: one.caps.KV[len(one.caps.KV)-1]}
	a.Context = a.M
	if err := gemm(a, op.F32, "attention", 0); err != nil {
		return err
	}
	a.Context, a.M = 4*a.M, 1
	return gemv(a, int64(2*a.Context*a.KVHeads*a.HeadDim*a.KV.Bytes()), "attention", 0)
}

// together adds lines that compare cores together with one: their rate over one core's, over the same of the
// register-only loop.
func (c *comparison) together(ctx context.Context, set string, marked bool, one, many *lane, peaks map[op.Type]func(int64) int64, stream func([]byte) uint64) error {
	n := len(c.o.Cores)
	rate := func(ctx context.Context, cores []int, work func(int) func() int64) (float64, error) {
		xs, err := rates(ctx, cores, nil, 1, 2*c.size.loop, work)
		if err != nil {
			return 0, err
		}
		return xs[0], nil
	}
	mark := 0.0
	if marked {
		mark = manyMark
	}
	kn := c.size.gemm[len(c.size.gemm)/2]
	for _, x := range []struct {
		t      op.Type
		scheme op.Scheme
		name   string
	}{{op.I8, op.A8TQ8C, "int8 peak"}, {op.F32, op.A32W32, "f32 peak"}} {
		work := computing(peaks[x.t])
		c.add(Kernel{Set: set, What: x.name, Cores: n, Unit: "Gop/s"}, func(ctx context.Context) (r, _ float64, err error) {
			r, err = rate(ctx, c.o.Cores, work)
			return r, 0, err
		})
		for _, m := range c.size.rows {
			o := op.Op{Kind: op.MatMul, M: m, K: kn[0], N: kn[1], Scheme: x.scheme}
			if !slices.Contains(one.caps.Schemes, x.scheme) || !c.hasShape(set, o) {
				continue
			}
			alone, nAlone, err := c.load(ctx, one, o, 0)
			if err != nil {
				return err
			}
			joint, nJoint, err := c.load(ctx, many, o, 0)
			if err != nil {
				return err
			}
			c.add(Kernel{Set: set, What: string(x.scheme) + " matmul", Shape: shapeOf(o), Cores: n, Unit: "Gop/s", Of: "gain of " + x.name, Mark: mark}, func(ctx context.Context) (r, bound float64, err error) {
				loop1, err := rate(ctx, c.o.Cores[:1], work)
				if err != nil {
					return 0, 0, err
				}
				loops, err := rate(ctx, c.o.Cores, work)
				if err != nil {
					return 0, 0, err
				}
				ns1, err := steady(ctx, alone, nAlone)
				if err != nil {
					return 0, 0, err
				}
				ns, err := steady(ctx, joint, nJoint)
				if err != nil {
					return 0, 0, err
				}
				r = float64(o.Flops()) / ns
				return r, float64(o.Flops()) / ns1 * loops / loop1, nil
			})
		}
	}
	for _, scheme := range many.caps.Offered().Schemes {
		if _, ok := gemvMarks[scheme]; !ok {
			continue
		}
		kn := c.size.gemv[len(c.size.gemv)/2]
		o := op.Op{Kind: op.MatMul, M: 1, K: kn[0], N: kn[1], Scheme: scheme}
		ld, loops, err := c.load(ctx, many, o, c.size.cold)
		if err != nil {
			return err
		}
		memory := ld.stores[0].region.Bytes()
		if len(memory) < 2*n*chunk {
			continue
		}
		c.add(Kernel{Set: set, What: string(scheme) + " matmul", Shape: shapeOf(o), Cores: n, Unit: "GB/s", Of: "stream"}, func(ctx context.Context) (r, bound float64, err error) {
			if bound, err = rate(ctx, c.o.Cores, reading(memory, n, stream)); err != nil {
				return 0, 0, err
			}
			ns, err := steady(ctx, ld, loops)
			return float64(op.WeightBytes(scheme.Weight(), o.K, o.N)) / ns, bound, err
		})
	}
	return nil
}

// steady is the time of an execution after another, as in a program: the first one after a pause wakes threads.
func steady(ctx context.Context, ld *load, n int) (float64, error) {
	if _, err := (alone{ld}).sample(ctx, 1); err != nil {
		return 0, err
	}
	return alone{ld}.sample(ctx, n)
}

func (c *comparison) add(k Kernel, visit func(context.Context) (float64, float64, error)) {
	c.all = append(c.all, &contender{line: k, visit: visit})
}

func (c *comparison) has(set, what string) bool {
	return slices.ContainsFunc(c.all, func(x *contender) bool { return x.line.Set == set && x.line.What == what })
}

func (c *comparison) hasShape(set string, o op.Op) bool {
	return slices.ContainsFunc(c.all, func(x *contender) bool {
		return x.line.Set == set && x.line.Shape == shapeOf(o) && x.line.What == string(o.Scheme)+" matmul"
	})
}

func shapeOf(o op.Op) string {
	if o.Kind == op.Attention {
		return fmt.Sprintf("%d of %d", o.M, o.Context)
	}
	return fmt.Sprintf("%dx%dx%d", o.M, o.K, o.N)
}

// load loads an operator and finds how many executions make a visit.
func (c *comparison) load(ctx context.Context, l *lane, o op.Op, footprint int64) (*load, int, error) {
	ld, err := c.r.newLoad(ctx, l, o, l.caps.Layouts[o.Scheme.Weight()], footprint)
	if err != nil {
		return nil, 0, err
	}
	var ns float64
	err = l.do(ctx, func() (err error) {
		for range 2 {
			if ns, err = ld.run(1); err != nil {
				return err
			}
		}
		return nil
	})
	return ld, max(1, int(float64(c.size.visit)/max(ns, 1))), err
}

// loop is a register-only loop of about a given time.
type loop struct {
	peak func(ops int64) int64
	ops  int64
	rate float64
}

func (c *comparison) newLoop(ctx context.Context, l *lane, peak func(int64) int64) (*loop, error) {
	x := &loop{peak: peak, ops: 1 << 16}
	return x, l.do(ctx, func() error {
		for range 3 {
			x.rate = x.run()
			x.ops = int64(x.rate*float64(c.size.loop)) + 1
		}
		return nil
	})
}

func (x *loop) run() float64 {
	start := time.Now()
	done := x.peak(x.ops)
	return float64(done) / float64(max(time.Since(start).Nanoseconds(), 1))
}

// lines are the results: what bounds a set before its kernels, one core before many.
func (c *comparison) lines() ([]Kernel, error) {
	var out []Kernel
	best := c.best()
	for _, x := range c.all {
		k, own := x.line, x.own(best)
		counted := chosen(x.rates, own)
		rate, err := stat.Summarise(counted)
		if err != nil {
			return nil, err
		}
		all, err := stat.Summarise(x.rates)
		if err != nil {
			return nil, err
		}
		k.Rounds, k.AllRate = len(counted), round(all.Median, 4)
		k.Rate = round(rate.Median, 4)
		k.Spread = round(max(rate.High-rate.Median, rate.Median-rate.Low)/rate.Median, 3)
		if len(x.shares) > 0 {
			share, err := stat.Summarise(chosen(x.shares, own))
			if err != nil {
				return nil, err
			}
			all, err := stat.Summarise(x.shares)
			if err != nil {
				return nil, err
			}
			k.AllShare = round(all.Median, 4)
			k.Share, k.Low, k.High = round(share.Median, 4), round(share.Low, 4), round(share.High, 4)
		}
		out = append(out, k)
	}
	set := map[string]int{}
	for i, s := range c.o.Sets {
		set[s] = i
	}
	slices.SortStableFunc(out, func(a, b Kernel) int {
		bound := func(k Kernel) int {
			if k.Of == "" {
				return 0
			}
			return 1
		}
		if d := set[a.Set] - set[b.Set]; d != 0 {
			return d
		}
		if d := a.Cores - b.Cores; d != 0 {
			return d
		}
		return bound(a) - bound(b)
	})
	return out, nil
}
