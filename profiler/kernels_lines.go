package profiler

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// kernelSet adds the lines of one set of kernels to a comparison.
type kernelSet struct {
	*comparison
	set    string
	one    *lane // on the first core
	many   *lane // on all cores; one if there is only one core
	bounds driver.Bounds
	loops  map[op.Type]*loop // on one core, by type of numbers
}

// peakNames are the names of the lines of register-only loops.
var peakNames = map[op.Type]string{op.I8: "int8 peak", op.F32: "f32 peak"}

// peak returns the register-only loop of a type of numbers.
func (s *kernelSet) peak(numbers op.Type) func(int64) int64 {
	if numbers == op.I8 {
		return s.bounds.PeakI8
	}
	return s.bounds.PeakF32
}

// mark returns the share that a line has to reach: the value in the marked set, 0 in the others.
func (s *kernelSet) mark(value float64) float64 {
	if s.set != s.options.Marked {
		return 0
	}
	return value
}

// gemmMark is the mark of products of many rows.
func (s *kernelSet) gemmMark(scheme op.Scheme) float64 {
	if s.set == tileSet {
		switch scheme {
		case op.A8TQ8C:
			return s.mark(tileMark)
		case op.A8TQ4B32, op.A8TQ4B128, op.A8CQ4B32:
			return s.mark(tileNibblesMark)
		}
	}
	return s.mark(gemmMarks[scheme])
}

// attentionMark is the mark of attention of a prompt over a cache of such numbers.
func (s *kernelSet) attentionMark(cached op.Type) float64 {
	if s.set == tileSet && cached == op.BF16 {
		return s.mark(tileAttentionMark)
	}
	return s.mark(attentionMark)
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
				if err := s.addGEMM(ctx, operator, numbers, what, s.gemmMark(scheme)); err != nil {
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
	atPeak := time.Duration(float64(operator.Flops()) / register.rate)
	if atPeak > s.size.longest {
		return nil
	}
	loaded, times, err := s.load(ctx, s.one, operator, 0)
	if err != nil {
		return err
	}

	line := Kernel{
		Set: s.set, What: what, Shape: shapeOf(operator), Cores: 1, Unit: "Gop/s", Of: peakNames[numbers], Mark: mark,
	}
	s.add(line, func(ctx context.Context) (rate, bound float64, err error) {
		err = s.one.do(ctx, func() error {
			before := register.run()
			ns, err := loaded.run(times)
			rate, bound = float64(operator.Flops())/ns, (before+register.run())/2
			return err
		})
		return rate, bound, err
	})
	return nil
}

// addGEMV adds an operator that is bound by memory, measured between two readings of the memory of its weights. The
// readings are half of that memory away from the weights in use, so that no cache holds them. It also adds one line for
// the reading itself.
func (s *kernelSet) addGEMV(ctx context.Context, operator op.Op, bytes int64, what string, mark float64) error {
	loaded, times, err := s.load(ctx, s.one, operator, s.size.cold)
	if err != nil {
		return err
	}

	memory := loaded.stores[len(loaded.stores)-1].region.Bytes()
	memory = memory[:min(int64(len(memory)), s.size.cold)&^511]
	part := min(s.size.stream, len(memory)/4&^511)
	read := func() float64 {
		at := (len(memory)/2 + len(memory)/len(loaded.exes)*loaded.next) % (len(memory) - part) &^ 511
		start := time.Now()
		sink.Add(s.bounds.Stream(memory[at : at+part]))
		return float64(part) / float64(time.Since(start).Nanoseconds())
	}
	line := Kernel{Set: s.set, What: what, Shape: shapeOf(operator), Cores: 1, Unit: "GB/s", Of: "stream", Mark: mark}
	s.add(line, func(ctx context.Context) (rate, bound float64, err error) {
		err = s.one.do(ctx, func() error {
			before := read()
			ns, err := loaded.run(times)
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
// without multiples of 32 columns. The first is measured over every type of cache, the others over narrower ones than
// float32.
var headShapes = []headShape{{32, 4, 64}, {14, 2, 64}, {16, 16, 80}, {24, 6, 96}, {32, 8, 128}}

// headShape is a number of query heads, of heads of keys and values, and of columns of each.
type headShape struct{ heads, kvHeads, dim int }

// longPrompt is the ratio of positions to rows in a call at the end of a long prompt. A step of decode has as many
// positions.
const longPrompt = 4

// addAttention adds attention of a prompt, of the end of a longer one, and of a decode step.
func (s *kernelSet) addAttention(ctx context.Context) error {
	rows := s.size.rows[len(s.size.rows)/2]
	for number, shape := range headShapes {
		for _, cached := range s.one.caps.KV {
			if number > 0 && cached == op.F32 && len(s.one.caps.KV) > 1 {
				continue
			}
			operator := s.decodeStep(shape, cached)
			operator.M = rows
			for _, positions := range []int{rows, longPrompt * rows} {
				operator.Context = positions
				if err := s.addGEMM(ctx, operator, op.F32, "attention", s.attentionMark(cached)); err != nil {
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

// decodeStep returns attention of a decode step at the end of a long prompt.
func (s *kernelSet) decodeStep(shape headShape, cached op.Type) op.Op {
	return op.Op{
		Kind: op.Attention, M: 1, Heads: shape.heads, KVHeads: shape.kvHeads, HeadDim: shape.dim, KV: cached,
		Context: longPrompt * s.size.rows[len(s.size.rows)/2],
	}
}

// cachedBytes returns the number of bytes that attention of one row reads from the caches.
func cachedBytes(operator op.Op) int64 {
	return 2 * int64(operator.Context*operator.KVHeads) * operator.KV.CacheRowBytes(operator.HeadDim)
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

	// The first shape of heads stands for all, because it needs the most multiply-adds for each byte.
	for _, cached := range s.many.caps.KV {
		operator := s.decodeStep(headShapes[0], cached)
		if err := s.addStream(ctx, operator, cachedBytes(operator), "attention"); err != nil {
			return err
		}
	}

	return nil
}

// rate returns the work per nanosecond of cores together, in one window.
func (s *kernelSet) rate(ctx context.Context, cores []int, work func(int) func() int64) (float64, error) {
	all, err := sampleRates(ctx, cores, nil, 1, 2*s.size.loop, work)
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

	// The middle size stands for all, because the speed-up of a product hardly depends on it.
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

// addStream adds an operator of one row on all cores. Its bound is the rate at which these cores read its weights or
// cache.
func (s *kernelSet) addStream(ctx context.Context, operator op.Op, bytes int64, what string) error {
	cores := s.options.Cores
	loaded, times, err := s.load(ctx, s.many, operator, s.size.cold)
	if err != nil {
		return err
	}
	memory := loaded.stores[len(loaded.stores)-1].region.Bytes()
	if len(memory) < 2*len(cores)*readChunk {
		return nil
	}

	line := Kernel{
		Set: s.set, What: what, Shape: shapeOf(operator), Cores: len(cores), Unit: "GB/s", Of: "stream",
	}
	s.add(line, func(ctx context.Context) (rate, bound float64, err error) {
		bound, err = s.rate(ctx, cores, reading(memory, len(cores), s.bounds.Stream))
		if err != nil {
			return 0, 0, err
		}
		ns, err := steadyTime(ctx, loaded, times)
		return float64(bytes) / ns, bound, err
	})
	return nil
}

// steadyTime returns the time in ns of an execution that follows another, as in a program. The first one after a pause
// has to wake threads.
func steadyTime(ctx context.Context, loaded *loadedOp, loops int) (float64, error) {
	source := soloSource{loaded}
	if _, err := source.sample(ctx, 1); err != nil {
		return 0, err
	}
	return source.sample(ctx, loops)
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

// load loads an operator. times is the number of executions that fill a visit.
func (c *comparison) load(
	ctx context.Context, lane *lane, operator op.Op, footprint int64,
) (loaded *loadedOp, times int, err error) {
	loaded, err = c.runner.loadOp(ctx, lane, operator, lane.caps.Layouts[operator.Scheme.Weight()], footprint)
	if err != nil {
		return nil, 0, err
	}

	var ns float64
	err = lane.do(ctx, func() (err error) {
		for range 2 {
			if ns, err = loaded.run(1); err != nil {
				return err
			}
		}
		return nil
	})
	return loaded, max(1, int(float64(c.size.visit)/max(ns, 1))), err
}
