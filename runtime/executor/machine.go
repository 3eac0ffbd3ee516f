// Package executor knows how to walk a program over processors: one lane per processor, flags between lanes, one pool
// of shared buffers, the KV cache, and the decider that picks a program for the number of tokens at hand. It knows
// operators and steps, not models, and evaluates no cost model.
//
// Lanes of processors that occupy the same core take turns on one thread, their crew. The control crew is that of the
// plan's control processor. It starts sections, meets the other crews between them, and runs whatever a caller does
// between two program calls (sampling), so that decoding needs no switch to another thread.
//
// Read Open (machine.go) and load.go for what is loaded, job.go for what a caller does on the control thread, run.go
// for one program call, crew.go for which lanes share a thread, walk.go for how that executes their steps, and wait.go
// for how it waits for flags. device.go is about processors that execute calls by themselves, beside.go about prompts
// that are processed while other sequences are decoded.
package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// Options configure a Machine.
type Options struct {
	Drivers  []driver.Driver
	Deadline time.Duration // longest time without progress before a lane is given up; 0: two minutes
	// Checked says that the plan was given to planir.Check, which found nothing.
	Checked bool
	// OnDemand loads a program with its weights when a call first needs it, instead of all of them on opening: the
	// first token then waits for nothing that only later ones need.
	OnDemand bool
	// Observe is called after every step, on the thread of the step's lane, with what it has read (and perhaps
	// changed in place) and written. On a single lane it may change what was written: that is how a head is removed. It
	// slows execution down and is for measuring, not for serving.
	Observe func(Observed)
	// Trace is how many events of each lane are kept for WriteTrace, the first ones; 0: none.
	Trace int
}

// Observed is a step that has run: a node of a layer, in the rows of this call. In and Out are the inputs and outputs
// of Graph. They are valid only during the call of Observe.
type Observed struct {
	Node    string
	Layer   int
	Graph   *op.Graph
	Rows    int
	In, Out []driver.View
}

// Machine is a plan loaded onto its processors, with a KV cache for each of its sequences. Its methods may be called
// from any goroutine, one at a time.
type Machine struct {
	plan     *planir.Plan
	deadline time.Duration
	observe  func(Observed)
	trace    *tracer // nil: none is kept
	lanes    []*lane
	control  *lane
	crews    []*crew // that of the control lane first
	onDemand bool    // Options.OnDemand
	// the control thread gives all asynchronous processors their calls, whatever the plan says
	feedsAll bool
	origin   time.Time
	programs map[string]*program
	order    []*program

	loader     loader
	pool       []byte
	smallPages *mem.Region // the pool while it lies in ordinary pages; nil: it does not
	called     bool        // a call has ended
	home       *lane       // whose processor allocated the pool, as homeBuffer; nil: it is the host's memory
	homeBuffer driver.Buffer
	spaces     int             // memories besides the host's
	mirrors    []driver.Mirror // the pool in each memory; [0] is nil
	holdings   cacheHoldings   // of the caches, where there are several memories
	buffers    map[string]*planir.Buffer
	offset     map[string]int64
	pos        []int // of each sequence
	// scratch of Step and Extend, so that they allocate nothing
	batchPlaces []driver.Place // of the rows of a batch
	single      [1]int32       // token of a sequence that is decoded alone

	jobs    chan job
	poison  atomic.Pointer[error]
	steps   atomic.Uint64 // finished steps of all lanes: the watchdog's heartbeat
	flags   []flag
	broken  atomic.Pointer[error] // a lane never came back: nothing can run any more
	beside  *besideChunk          // what is processed beside other calls; nil: nothing
	started bool
	closers []func() error
	close   sync.Once
}

// flag is set once per iteration of its section. Padding keeps flags of different lanes apart.
type flag struct {
	epoch atomic.Int64
	_     [56]byte
}

// program is a program of the plan, with its sections once these are loaded.
type program struct {
	*planir.PhaseProgram
	ids      []int32    // of the call: [rows]
	logits   []float32  // [1 or rows,vocabulary]
	sections []*section // once loaded
	uses     []headUse  // of the caches, where there are several memories
}

// section is a loaded section: iters times the same steps, one iteration for each layer, and more where steps are
// layers behind others.
type section struct {
	*planir.Section
	iters    int
	lanes    []*laneSection // of the lanes that have steps here
	crews    []*crewSection // the same lanes by the threads that run them
	yielding []*crew        // threads that have no steps here, and a core that is needed

	schedule *driver.Schedule // of the lanes with virtual clocks; nil: there are none
}

// step is one step with everything resolved: one executable and one set of bindings per iteration.
type step struct {
	*planir.Step
	section    *planir.Section
	graph      *op.Graph
	rows       int // of the graph's operands along the call's rows
	kind       op.Kind
	counts     bool // its graph stops at a call's last row, whatever the processor does
	waits      []wait
	awaited    bool // another lane waits for its flag
	scalars    driver.Scalars
	calls      []call       // of each iteration
	estimateNS atomic.Int64 // what a run takes at least, in nanoseconds: at first what the plan expects; 0 for unknown
	runNS      int64
	waitNS     int64
	runCount   int64
}

// wait is a flag that a step needs set, and the lane that sets it.
type wait struct {
	flag   *flag
	back   int64 // 1: by the iteration before
	setter *laneSection
	after  int // steps of an iteration of the setter's, up to the one that sets it
}

// layer returns the layer that a step computes in an iteration.
func (st *step) layer(iter int) int {
	layer, _ := st.Layer(st.section, iter)
	return layer
}

// works reports whether a step has anything to do in an iteration: it may be layers behind others.
func (st *step) works(iter int) bool { return st.calls[iter].exe != nil }

// call is a step in one iteration: what to run, and its operands.
type call struct {
	step   *step
	iter   int
	exe    driver.Executable
	bind   driver.Bindings
	counts *dispatchCount // nil: nothing is counted
}

// add appends the call of the next iteration.
func (st *step) add(c call) {
	c.step, c.iter = st, len(st.calls)
	st.calls = append(st.calls, c)
}

// describe names a step in an iteration, with its graph, its layer and the operator that takes most of the time, for
// errors.
func (st *step) describe(iter int) string {
	operator := ""
	if len(st.graph.Nodes) > 0 {
		operator = ", " + mainOp(st.graph).Key()
	}
	return fmt.Sprintf("step %q (graph %q, layer %d%s)", st.Node, st.Run, st.layer(iter), operator)
}

// lane is one processor with its steps.
type lane struct {
	name    string
	proc    driver.Processor
	crew    *crew
	virtual bool // its clock is
	dynamic bool // calls may use fewer rows than the graph's
	// what an asynchronous processor has in flight, and how its end is noticed; nil: Run is called, and returns
	queue   *queue
	waiting capability.Waiting
	// what the processor has to do: the call that it executes (an asynchronous one: the oldest in flight), and the
	// graph that its driver loads; nil: none. An error about a processor that hangs names them.
	executes atomic.Pointer[call]
	loads    atomic.Pointer[planir.Graph]
	// number of the memory that the processor computes on, 0: the host's
	space  int
	events []event
	lost   int64 // events that were not kept
}

// Open loads a plan: it opens the processors its programs use, allocates the pool and the cache, and loads every
// artifact with its weights. The plan must satisfy planir.Check, and is checked unless that was done before.
func Open(ctx context.Context, p *planir.Plan, src Source, options Options) (machine *Machine, err error) {
	if !options.Checked {
		if found := planir.Check(p); found.Err() != nil {
			return nil, fmt.Errorf("open plan: %w", found.Err())
		}
	}
	machine = &Machine{plan: p, deadline: options.Deadline, observe: options.Observe, onDemand: options.OnDemand,
		origin: time.Now(), programs: map[string]*program{}, jobs: make(chan job)}
	if machine.deadline == 0 {
		machine.deadline = 2 * time.Minute
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, machine.Close())
			machine = nil
		}
	}()
	if err := machine.openLanes(ctx, options.Drivers); err != nil {
		return machine, err
	}
	if options.Trace > 0 {
		machine.trace = newTracer(options.Trace, machine.lanes)
	}
	if err := machine.allocate(); err != nil {
		return machine, err
	}
	if err := machine.prepare(src); err != nil {
		return machine, err
	}
	if !machine.onDemand {
		for _, pr := range machine.order {
			if err := machine.load(ctx, pr); err != nil {
				return machine, err
			}
		}
	}
	return machine, machine.startCrews()
}

// openLanes opens the control processor and the processors that have steps, and gives them threads.
func (m *Machine) openLanes(ctx context.Context, drivers []driver.Driver) error {
	used := map[string]bool{m.plan.SoC.Control: true}
	for _, ph := range m.plan.Program.All() {
		for _, section := range ph.Sections {
			for _, lane := range section.Lanes {
				used[lane.Proc] = true
			}
		}
	}
	for i := range m.plan.Procs {
		pr := &m.plan.Procs[i]
		if !used[pr.Name] {
			continue
		}
		proc, err := openProcessor(ctx, drivers, pr)
		if err != nil {
			return err
		}
		opened := &lane{name: pr.Name, proc: proc, virtual: proc.Capabilities().Virtual,
			dynamic: proc.Capabilities().DynamicRows}
		// An observer of steps wants one after another, with all operands in the host's memory.
		if async, ok := proc.(driver.Asynchronous); ok && m.observe == nil {
			opened.queue = &queue{Asynchronous: async, offset: m.now() - int64(proc.Now())}
		}
		opened.waiting = pr.Wait
		m.lanes = append(m.lanes, opened)
		m.closers = append(m.closers, proc.Close)
		if pr.Name == m.plan.SoC.Control {
			m.control = opened
		}
	}
	m.formCrews()
	return nil
}

// openProcessor opens a processor of a plan with the driver that it names.
func openProcessor(ctx context.Context, drivers []driver.Driver, pr *planir.Proc) (driver.Processor, error) {
	var drv driver.Driver
	names := make([]string, 0, len(drivers))
	for _, candidate := range drivers {
		names = append(names, candidate.Name())
		if candidate.Name() == pr.Driver {
			drv = candidate
		}
	}
	if drv == nil {
		return nil, diag.New(diag.ClassUnavailable, "open processor %q: driver %q is not part of this program",
			pr.Name, pr.Driver).
			WithHint("this program has the drivers %v; hetc run also has sim", names)
	}
	proc, err := drv.Open(ctx, driver.Config{Select: pr.Select, Options: pr.Options})
	if err != nil {
		if errors.Is(err, driver.ErrUnavailable) {
			return nil, diag.New(diag.ClassUnavailable, "open processor %q: %w", pr.Name, err).
				WithHint("run hetc drivers to see what this machine has; a plan is for one kind of machine")
		}
		return nil, diag.New(diag.ClassOr(err, diag.ClassRun), "open processor %q: %w", pr.Name, err)
	}
	return proc, nil
}

// Close stops the crews and releases everything. A thread that does not return within 5 s (1 s once Do has given up on
// it) is ErrLeftBehind.
func (m *Machine) Close() error {
	var err error
	m.close.Do(func() {
		m.loader.foreseen.end() // it reads the source
		m.fail(errClosed)       // what is under way beside other calls ends at its next step
		for _, crew := range m.crews {
			crew.stop.Store(true)
			crew.begin()
		}
		close(m.jobs)
		limit := patience // a busy machine may take seconds to let a thread run
		if m.broken.Load() != nil {
			limit = time.Second
		}
		timeout := time.After(limit)
		for _, crew := range m.crews {
			if !m.started {
				break
			}
			select {
			case <-crew.exited:
			case <-timeout:
				err = diag.New(diag.ClassRun, "close: %s does not return from its last step; %w", crew, ErrLeftBehind)
				return
			}
		}
		for _, lane := range m.lanes {
			if lane.queue != nil && lane.queue.count > 0 {
				err = diag.New(diag.ClassRun, "close: processor %q does not end its last calls; %w", lane.name,
					ErrLeftBehind)
				return
			}
		}
		for _, closer := range slices.Backward(m.closers) {
			err = errors.Join(err, closer())
		}
	})
	return err
}

// Plan returns the plan being executed.
func (m *Machine) Plan() *planir.Plan { return m.plan }

// Emulated returns the names of processors whose results are a device's and whose times are not: programs that imitate
// one.
func (m *Machine) Emulated() (names []string) {
	for _, lane := range m.lanes {
		if lane.proc.Capabilities().Emulated {
			names = append(names, lane.name)
		}
	}
	return names
}

// Sequences returns how many sequences are cached: the most that can be decoded together.
func (m *Machine) Sequences() int { return m.plan.Sequences() }

// Pos returns the number of positions in the caches of all sequences.
func (m *Machine) Pos() int {
	longest := 0
	for _, pos := range m.pos {
		longest += pos
	}
	return longest
}

// Reset empties the caches.
func (m *Machine) Reset() { clear(m.pos) }
