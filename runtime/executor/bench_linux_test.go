package executor

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	ortcompiler "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/ort"
)

var origin = time.Now()

// clock is the time in nanoseconds.
func clock() int64 { return int64(time.Since(origin)) }

func work(d time.Duration) {
	for until := clock() + int64(d); clock() < until; {
	}
}

// cpu is the processor time that the calling thread has used, in nanoseconds.
func cpu() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return t.Nano()
}

// meeting is what came of some hand-overs: how late the waiting thread went on each time, and the share of the
// time in which it used its core.
type meeting struct {
	lateNS []float64
	busy   float64
}

// handing hands over as often as busy has elements from a thread on one core, which works so long each time, to a
// thread on another, by means of post and wait. reply is by an atomic flag that both spin on.
func handing(cores [2]int, busy []time.Duration, post, wait func(n int64)) meeting {
	var posted, reply atomic.Int64
	var x meeting
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		minimizeTimerSlack()
		defer close(done)
		_ = affinity.Pin(cores[1])
		used, began := cpu(), clock()
		for n := range busy {
			wait(int64(n) + 1)
			x.lateNS = append(x.lateNS, float64(clock()-posted.Load()))
			reply.Store(int64(n) + 1)
		}
		x.busy = float64(cpu()-used) / float64(clock()-began)
	}()
	begun := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer close(begun)
		_ = affinity.Pin(cores[0])
		for n, d := range busy {
			work(d)
			posted.Store(clock())
			post(int64(n) + 1)
			for reply.Load() <= int64(n) {
			}
		}
	}()
	<-begun
	<-done
	return x
}

func bySpin(cores [2]int, _ time.Duration, busy []time.Duration) meeting {
	var f atomic.Int64
	return handing(cores, busy, f.Store, func(n int64) {
		for f.Load() < n {
		}
	})
}

func byFutex(cores [2]int, _ time.Duration, busy []time.Duration) meeting {
	const waitPrivate, wakePrivate = 128, 129
	f := new(uint32)
	call := func(op, val uintptr) { // on a word of the heap, which stays where it is
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(f)), op, val, 0, 0, 0)
	}
	return handing(cores, busy, func(n int64) {
		atomic.StoreUint32(f, uint32(n))
		call(wakePrivate, 1)
	}, func(n int64) {
		for atomic.LoadUint32(f) < uint32(n) {
			call(waitPrivate, uintptr(n-1))
		}
	})
}

func byChannel(cores [2]int, _ time.Duration, busy []time.Duration) meeting {
	c := make(chan struct{}, 1)
	return handing(cores, busy, func(int64) { c <- struct{}{} }, func(int64) { <-c })
}

// byExecutor has two lanes: a step of the first works and sets a flag, for which one of the second waits.
func byExecutor(cores [2]int, expect time.Duration, busy []time.Duration) meeting {
	var posted, used, began int64
	var x meeting
	x.lateNS = make([]float64, 0, len(busy))
	m, s := lanesOf([]driver.Processor{on(cores[0]), on(cores[1])}, len(busy), []planned{
		{lane: 0, waits: []planir.Wait{{Flag: 1, Back: true}}, expect: expect, run: do(func(n int) {
			work(busy[n])
			posted = clock()
		})},
		{lane: 1, waits: []planir.Wait{{Flag: 0}}, run: do(func(n int) {
			x.lateNS = append(x.lateNS, float64(clock()-posted))
			if n == 0 {
				used, began = cpu(), clock()
			}
			if n == len(busy)-1 {
				x.busy = float64(cpu()-used) / float64(clock()-began)
			}
		})},
	})
	defer m.Close()
	if err := runOnce(m, s); err != nil {
		panic(err)
	}
	return x
}

// planned is a step of a section made by hand: number n sets flag n.
type planned struct {
	lane   int
	waits  []planir.Wait
	expect time.Duration
	run    func(iter int) driver.Executable
	bind   driver.Bindings
}

func do(f func(iter int)) func(int) driver.Executable {
	return func(iter int) driver.Executable {
		return &notedStep{func() error {
			f(iter)
			return nil
		}}
	}
}

// lanesOf is a machine of a lane for each processor with a section of steps.
func lanesOf(procs []driver.Processor, iters int, steps []planned) (*Machine, *section) {
	m := &Machine{deadline: 10 * time.Second, origin: time.Now(), jobs: make(chan job), flags: make([]flag, len(steps))}
	s := &section{Section: &planir.Section{Name: "bench", Layers: iters, Flags: len(steps)}, iters: iters}
	for i, p := range procs {
		l := &lane{name: fmt.Sprint(i), proc: p, dynamic: true}
		m.lanes = append(m.lanes, l)
		s.lanes = append(s.lanes, &laneSection{lane: l})
	}
	m.control = m.lanes[0]
	m.formCrews()
	for n, p := range steps {
		st := &step{Step: &planir.Step{Node: fmt.Sprint(n), Wait: p.waits, Set: &n}, graph: &op.Graph{}, rows: 1}
		st.estimateNS.Store(int64(p.expect))
		for iter := range iters {
			c := call{exe: p.run(iter), bind: p.bind}
			c.bind.Scalars = &st.scalars
			st.add(c)
		}
		ls := s.lanes[p.lane]
		ls.steps = append(ls.steps, st)
	}
	m.connectLanes(s)
	if err := m.startCrews(); err != nil {
		panic(err)
	}
	return m, s
}

func us(ns float64) string { return fmt.Sprintf("%.2f", ns/1e3) }

// twoCores are the first two cores of the process.
func twoCores(b *testing.B) [2]int {
	cores := affinity.Cores()
	if len(cores) < 2 {
		b.Skipf("needs two cores, this process may use %d", len(cores))
	}
	return [2]int{cores[0], cores[1]}
}

// How late a lane goes on after another has set the flag that it waits for, and how much of its core it uses
// meanwhile, beside other means, which take turns: medians of the rounds' medians.
func BenchmarkRendezvous(b *testing.B) {
	cores := twoCores(b)
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 6))
	type means struct {
		name string
		by   func(cores [2]int, expect time.Duration, busy []time.Duration) meeting
	}
	list := []means{{"flag, spinning", bySpin}, {"executor", byExecutor}, {"futex", byFutex}, {"Go channel", byChannel}}
	cases := []struct {
		name   string
		work   time.Duration
		spread float64
		times  int
	}{
		{name: "2 us", work: 2e3, times: 200},
		{name: "20 us", work: 20e3, times: 100},
		{name: "100 us", work: 100e3, times: 60},
		{name: "500 us", work: 500e3, times: 30},
		{name: "500 us ± 20 %", work: 500e3, spread: 0.2, times: 30},
		{name: "3 ms", work: 3e6, times: 10},
	}
	const rounds = 12
	random := rand.New(rand.NewPCG(1, 2))
	var table strings.Builder
	table.WriteString("\n| wait | means | late us, p50 | p90 | to spinning | 95 % interval | core used |\n" +
		"| --- | --- | ---: | ---: | ---: | --- | ---: |\n")
	for b.Loop() {
		for _, c := range cases {
			p50, p90, busy := make([][]float64, len(list)), make([][]float64, len(list)), make([][]float64, len(list))
			for round := -1; round < rounds; round++ {
				times := make([]time.Duration, c.times)
				for i := range times {
					times[i] = c.work + time.Duration(float64(c.work)*c.spread*(2*random.Float64()-1))
				}
				for _, i := range random.Perm(len(list)) {
					x := list[i].by(cores, c.work, times)
					if round < 0 {
						continue
					}
					slices.Sort(x.lateNS)
					p50[i] = append(p50[i], stat.Median(x.lateNS))
					p90[i] = append(p90[i], x.lateNS[len(x.lateNS)*9/10])
					busy[i] = append(busy[i], x.busy)
				}
			}
			for i, l := range list {
				ratio, low, high, err := stat.Ratio(p50[i], p50[0], 1000, 1)
				if err != nil {
					b.Fatal(err)
				}
				fmt.Fprintf(&table, "| %s | %s | %s | %s | %.2f | %.2f..%.2f | %.0f %% |\n", c.name, l.name,
					us(stat.Median(p50[i])), us(stat.Median(p90[i])), ratio, low, high, 100*stat.Median(busy[i]))
				if l.name == "executor" {
					b.ReportMetric(stat.Median(p50[i]), strings.ReplaceAll(c.name, " ", "")+"-p50-ns")
				}
			}
		}
	}
	b.Log(table.String())
}

// nop is a processor of one core and something to do there that takes next to no time.
type nop func(b *testing.B, core int) (driver.Processor, func(int) driver.Executable, driver.Bindings)

func nothing(_ *testing.B, core int) (driver.Processor, func(int) driver.Executable, driver.Bindings) {
	return on(core), do(func(int) {}), driver.Bindings{}
}

// loaded is a processor with an operator of one float32 input and output, and weights of zeros, ready to run.
func loaded(
	b *testing.B, d driver.Driver, c driver.Compiler, sel string, o op.Op,
) (driver.Processor, func(int) driver.Executable, driver.Bindings) {
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	p, err := d.Open(ctx, driver.Config{Select: sel})
	must(err)
	g := op.Single(o, op.OnnxLayout)
	var w driver.Weights
	for _, spec := range g.Weights {
		n, err := pack.Bytes(spec)
		must(err)
		r, err := mem.Alloc(int(n), 64)
		must(err)
		b.Cleanup(func() { r.Close() })
		w = append(w, driver.Packed{Spec: spec, Bytes: r.Bytes()})
	}
	a, err := c.Compile(ctx, g, w, driver.Target{})
	must(err)
	exe, err := p.Load(ctx, a, w)
	must(err)
	in, out := g.Inputs[0], g.Outputs[0]
	const half = 1 << 16
	buf, err := p.Alloc(2 * half)
	must(err)
	view := func(at int64, v op.Value) []driver.View {
		return []driver.View{{Buffer: buf, Type: v.Type, Offset: at, Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}}
	}
	return p, func(int) driver.Executable { return exe }, driver.Bindings{In: view(0, in), Out: view(half, out)}
}

// copies copies a row of 8 numbers by a driver.
func copies(d driver.Driver, c driver.Compiler) nop {
	return func(b *testing.B, core int) (driver.Processor, func(int) driver.Executable, driver.Bindings) {
		return loaded(b, d, c, fmt.Sprint(core), op.Op{Kind: op.Copy, M: 1, N: 8})
	}
}

// What the executor adds to a step: what a section takes less what its steps take when they are called in a loop on the
// same thread, in turns, medians of the rounds.
func BenchmarkDispatch(b *testing.B) {
	cores := twoCores(b)
	require.Deps()
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 6))
	const steps, iters, rounds = 12, 40, 60
	type target struct {
		name string
		nop  nop
	}
	targets := []target{{"nothing", nothing}, {"host, a copy", copies(host.New(), hostcompiler.New())}}
	if _, err := ort.New().Devices(context.Background()); err == nil {
		targets = append(targets, target{"ort, a copy", copies(ort.New(), ortcompiler.New())})
	} else if require.Listed(ort.Name) {
		b.Fatal(err)
	}
	forms := []struct {
		name  string
		cores []int
	}{
		{"one lane", cores[:1]},
		{"two lanes of one core in turn", []int{cores[0], cores[0]}},
		{"two lanes of two cores in turn", cores[:]},
	}
	var table strings.Builder
	table.WriteString("\n| step | lanes | us a step, called directly | by the executor | added | 95 % interval |\n" +
		"| --- | --- | ---: | ---: | ---: | --- |\n")
	for b.Loop() {
		for _, t := range targets {
			for _, f := range forms {
				var procs []driver.Processor
				list := make([]planned, steps)
				for i, core := range f.cores {
					p, run, bind := t.nop(b, core)
					procs = append(procs, p)
					for n := i; n < steps; n += len(f.cores) {
						list[n] = planned{lane: i, run: run, bind: bind}
						if len(f.cores) > 1 {
							list[n].waits = []planir.Wait{{Flag: (n + steps - 1) % steps, Back: n == 0}}
						}
					}
				}
				m, s := lanesOf(procs, iters, list)
				var direct, through, added []float64
				err := m.Do(context.Background(), func(*Control) error {
					for range rounds {
						began := clock()
						for iter := range iters {
							for range len(f.cores) { // as many steps as the section has, all on this thread
								for _, st := range s.lanes[0].steps {
									st.scalars.Rows = 1
									c := &st.calls[iter]
									if _, err := procs[0].Run(c.exe, &c.bind); err != nil {
										return err
									}
								}
							}
						}
						middle := clock()
						if err := m.runSection(s, driver.Scalars{Rows: 1}, false); err != nil {
							return err
						}
						d, e := float64(middle-began)/(steps*iters), float64(clock()-middle)/(steps*iters)
						direct, through, added = append(direct, d), append(through, e), append(added, e-d)
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
				m.Close()
				for _, p := range procs {
					p.Close()
				}
				x, err := stat.Summarise(added)
				if err != nil {
					b.Fatal(err)
				}
				fmt.Fprintf(&table, "| %s | %s | %s | %s | %s | %s..%s |\n", t.name, f.name, us(stat.Median(direct)),
					us(stat.Median(through)), us(x.Median), us(x.Low), us(x.High))
				b.ReportMetric(x.Median, strings.ReplaceAll(t.name+"-"+f.name, " ", "-")+"-ns")
			}
		}
	}
	b.Log(table.String())
}

// A library's own two threads, which divide a product and wait for each other, beside two processors of one core with
// half of its columns each, which the executor has wait for each other before the next one: in turns.
func BenchmarkTwoCores(b *testing.B) {
	cores := twoCores(b)
	require.Deps()
	if _, err := ort.New().Devices(context.Background()); err != nil {
		require.Skip(b, ort.Name, err)
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 6))
	const steps, rounds = 200, 40
	var table strings.Builder
	table.WriteString("\n| product, float32 | one core, us | the library's two threads | two processors |" +
		" two threads / two processors | 95 % interval |\n| --- | ---: | ---: | ---: | ---: | --- |\n")
	product := func(sel string, n int) (driver.Processor, planned) {
		o := op.Op{Kind: op.MatMul, M: 1, K: 512, N: n, Scheme: op.A32W32}
		p, run, bind := loaded(b, ort.New(), ortcompiler.New(), sel, o)
		return p, planned{run: run, bind: bind}
	}
	for b.Loop() {
		for _, n := range []int{128, 256, 512, 1024, 2048, 4096} {
			type form struct {
				m     *Machine
				s     *section
				times []float64
			}
			var forms []*form
			first, second := fmt.Sprint(cores[0]), fmt.Sprint(cores[1])
			for _, sels := range [][]string{{first}, {first + "-" + second}, {first, second}} {
				var procs []driver.Processor
				var list []planned
				for i, sel := range sels {
					p, step := product(sel, n/len(sels))
					step.lane = i
					if len(sels) > 1 {
						step.waits = []planir.Wait{{Flag: 1 - i, Back: true}}
					}
					procs, list = append(procs, p), append(list, step)
				}
				m, s := lanesOf(procs, steps, list)
				forms = append(forms, &form{m: m, s: s})
				defer m.Close()
			}
			for round := -1; round < rounds; round++ {
				for _, f := range forms {
					err := f.m.Do(context.Background(), func(*Control) error {
						began := clock()
						err := f.m.runSection(f.s, driver.Scalars{Rows: 1}, false)
						if round >= 0 {
							f.times = append(f.times, float64(clock()-began)/steps)
						}
						return err
					})
					if err != nil {
						b.Fatal(err)
					}
				}
			}
			ratio, low, high, err := stat.Ratio(forms[1].times, forms[2].times, 1000, 1)
			if err != nil {
				b.Fatal(err)
			}
			fmt.Fprintf(&table, "| [1,512] x [512,%d] | %s | %s | %s | %.2f | %.2f..%.2f |\n", n,
				us(stat.Median(forms[0].times)), us(stat.Median(forms[1].times)), us(stat.Median(forms[2].times)),
				ratio, low, high)
		}
	}
	b.Log(table.String())
}
