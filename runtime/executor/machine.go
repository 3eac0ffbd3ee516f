// Package executor knows how to walk a program over processors: one lane per processor, flags
// between lanes, one pool of shared buffers, the KV cache, and the decider that picks a program for
// the number of tokens at hand. It knows operators and steps, not models, and evaluates no cost model.
//
// Lanes of processors that occupy the same core take turns on one thread, their crew. The control crew is that of the
// plan's control processor. It starts sections, meets the other crews between them, and runs whatever a caller does
// between two program calls (sampling), so that decoding needs no switch to another thread.
//
// Read Open (machine.go) for what is loaded, run.go for one program call, and crew.go for how a thread walks the steps
// of its lanes and waits for flags. device.go is about processors that execute calls by themselves.
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
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// Source yields the verified bytes of a plan's artifacts and weights blobs by name. The bytes stay
// valid and unchanged while the Machine is open; weights are 64-byte aligned at least.
type Source interface {
	Blob(name string) ([]byte, error)                       // an artifact
	Range(name string, offset, bytes int64) ([]byte, error) // a part of a weights blob
}

// Copier is an optional interface of a Source: CopyRange is Range into memory of the caller, where a Source can do that
// without making what it maps resident.
type Copier interface {
	CopyRange(name string, offset int64, out []byte) error
}

// Part is a piece of a weights blob that Range is going to be asked for. Few says that little of it will be read.
type Part struct {
	Blob          string
	Offset, Bytes int64
	Few           bool
}

// Ahead is an optional interface of a Source. It prepares many parts at a time before Range is
// called for them, in about their order, until ctx ends. through learns of how many of them, from the first on, Range
// will find prepared what can be; its calls come one at a time, with ever larger numbers. Ahead returns no error: what
// cannot be prepared is refused by Range.
type Ahead interface {
	Ahead(ctx context.Context, parts []Part, through func(parts int))
}

// Steady is an optional interface of a Source. Unchanged returns an error if the bytes that it gave
// out have changed, as far as it can tell. It is called after every program call and must be cheap.
type Steady interface {
	Unchanged() error
}

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
// of Graph, valid during the call of Observe only.
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
	// the control thread gives all asynchronous processors their calls, whatever the plan says
	feedsAll bool
	origin   time.Time
	programs map[string]*program
	order    []*program

	loader     loader
	pool       []byte
	small      *mem.Region // the pool while it lies in ordinary pages; nil: it does not
	called     bool        // a call has ended
	home       *lane       // whose processor allocated the pool, as homeBuffer; nil: it is the host's memory
	homeBuffer driver.Buffer
	spaces     int             // memories besides the host's
	mirrors    []driver.Mirror // the pool in each memory; [0] is nil
	holds      holdings        // of the caches, where there are several memories
	buffers    map[string]*planir.Buffer
	offset     map[string]int64
	pos        []int // of each sequence
	// scratch of Step and Extend, so that they allocate nothing
	places  []driver.Place // of the rows of a batch
	one     [1]int32       // token of a sequence that is decoded alone
	jobs    chan job
	poison  atomic.Pointer[error]
	steps   atomic.Uint64 // finished steps of all lanes: the watchdog's heartbeat
	flags   []flag
	broken  atomic.Pointer[error] // a lane never came back: nothing can run any more
	lost    chan struct{}         // closed then
	flight  *flight               // a chunk that is processed beside other calls; nil: none
	started bool
	closers []func() error
	close   sync.Once
}

// job is a function for the control lane's thread.
type job struct {
	run  func() error
	done chan error
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
	uses     []use      // of the caches, where there are several memories
}

// section is a loaded section: iters times the same steps, one iteration for each layer, and more where steps are
// layers behind others.
type section struct {
	*planir.Section
	iters int
	lanes []*laneSection // of the lanes that have steps here
	crews []*crewSection // the same lanes by the threads that run them
	rest  []*crew        // threads that have no steps here, and a core that is needed

	schedule *driver.Schedule // of the lanes with virtual clocks; nil: there are none
}

// step is one step with everything resolved: one executable and one set of bindings per iteration.
type step struct {
	*planir.Step
	section  *planir.Section
	graph    *op.Graph
	rows     int // of the graph's operands along the call's rows
	kind     op.Kind
	counts   bool // its graph stops at a call's last row, whatever the processor does
	waits    []wait
	awaited  bool // another lane waits for its flag
	scalars  driver.Scalars
	calls    []call       // of each iteration
	lately   atomic.Int64 // what a run takes at least, in nanoseconds: at first what the plan expects; 0 for unknown
	runNS    int64
	waitNS   int64
	runCount int64
}

// wait is a flag that a step needs set, and the lane that sets it.
type wait struct {
	flag   *flag
	back   int64 // 1: by the iteration before
	setter *laneSection
	after  int // steps of an iteration of the setter's, up to the one that sets it
}

// layer is the layer that a step computes in an iteration.
func (st *step) layer(iter int) int {
	layer, _ := st.Layer(st.section, iter)
	return layer
}

// works reports whether a step has anything to do in an iteration: it may be layers behind others.
func (st *step) works(iter int) bool { return st.calls[iter].exe != nil }

// call is a step in one iteration: what to run, and its operands.
type call struct {
	step       *step
	iter       int
	exe        driver.Executable
	bind       driver.Bindings
	dispatched *dispatched // nil: nothing is counted
}

// add appends the call of the next iteration.
func (st *step) add(c call) {
	c.step, c.iter = st, len(st.calls)
	st.calls = append(st.calls, c)
}

// describe names a step in an iteration, with its graph, its layer and the operator that takes most of the time, for errors.
func (st *step) describe(iter int) string {
	operator := ""
	if len(st.graph.Nodes) > 0 {
		operator = ", " + mainOp(st.graph).Key()
	}
	return fmt.Sprintf("step %q (graph %q, layer %d%s)", st.Node, st.Run, st.layer(iter), operator)
}

// lane is one processor with its steps.
type lane struct {
	name string
	proc driver.Processor
	crew *crew
	// its clock is virtual
	virt    bool
	dynamic bool // calls may use fewer rows than the graph's
	// what an asynchronous processor has in flight, and how its end is noticed; nil: Run is called, and returns
	queue *queue
	wait  capability.Waiting
	// what the processor has to do: the call that it executes (an asynchronous one: the oldest in flight), and the graph
	// that its driver loads; nil: none. An error about a processor that hangs names them.
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
	machine = &Machine{plan: p, deadline: options.Deadline, observe: options.Observe, origin: time.Now(),
		programs: map[string]*program{}, jobs: make(chan job), lost: make(chan struct{})}
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
	if err := machine.allocate(options.OnDemand); err != nil {
		return machine, err
	}
	if err := machine.prepare(src); err != nil {
		return machine, err
	}
	for _, pr := range machine.order {
		if options.OnDemand {
			break
		}
		if err := machine.load(ctx, pr); err != nil {
			return machine, err
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
		opened := &lane{name: pr.Name, proc: proc, virt: proc.Capabilities().Virtual,
			dynamic: proc.Capabilities().DynamicRows}
		// An observer of steps wants one after another, with all operands in the host's memory.
		if async, ok := proc.(driver.Asynchronous); ok && m.observe == nil {
			opened.queue = &queue{Asynchronous: async, offset: m.now() - int64(proc.Now())}
		}
		opened.wait = pr.Wait
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

// allocate lays out the buffers and the caches in one pool, each on its own cache lines. sparing says that the first
// call shall not wait for what later ones gain from.
func (m *Machine) allocate(sparing bool) error {
	m.buffers, m.offset = map[string]*planir.Buffer{}, map[string]int64{}
	var size int64
	for i := range m.plan.Program.Buffers {
		buffer := &m.plan.Program.Buffers[i]
		m.buffers[buffer.Name], m.offset[buffer.Name] = buffer, size
		size += planir.BufferBytes(int64(buffer.Rows) * int64(buffer.Cols) * int64(buffer.Type.Bytes()))
	}
	m.offset[cacheName] = size
	size += m.plan.Program.Cache.Bytes()
	if err := m.allocatePool(size, sparing); err != nil {
		return diag.New(diag.ClassRun, "allocate pool of %d bytes: %w", size, err).
			WithHint("a smaller context (max_context) needs less memory")
	}
	sequences := m.Sequences()
	m.pos, m.places = make([]int, sequences), make([]driver.Place, 0, sequences)
	if m.mirrors = make([]driver.Mirror, m.spaces+1); m.spaces > 0 {
		m.newHoldings()
	}
	return nil
}

// allocatePool gives the pool its memory, and numbers the memories of the processors that mirror it. Some devices copy
// memory that they are given and share what they allocate themselves: such a one allocates the pool.
func (m *Machine) allocatePool(size int64, sparing bool) error {
	for _, lane := range m.lanes {
		if !lane.proc.Capabilities().OwnMemory || m.observe != nil {
			continue // for an observer each call moves all its operands
		}
		if m.home == nil {
			shared, err := m.shareWith(lane, size)
			if err != nil {
				return err
			}
			if shared {
				continue
			}
		}
		m.spaces++
		lane.space = m.spaces
	}
	if m.home != nil {
		return nil
	}
	allocate := mem.Alloc
	if sparing {
		allocate = mem.AllocSmall
	}
	pool, err := allocate(int(size), 4096)
	if err != nil {
		return err
	}
	if m.pool = pool.Bytes(); sparing {
		m.small = pool
	}
	m.closers = append(m.closers, pool.Close)
	return nil
}

// enlarge moves the pool to large pages before the second call. The first token does not wait until they are all zero:
// a short prompt touches a little of each head's cache, and so every large page of it.
// RATIONALE: When does the cache lie in large pages?
func (m *Machine) enlarge() {
	if m.small != nil && m.called {
		_ = m.small.Enlarge() // what is not enlarged is as right
		m.small = nil
	}
	m.called = true
}

// shareWith has a lane's processor allocate the pool if it shares what it allocates, and returns whether it does.
func (m *Machine) shareWith(lane *lane, size int64) (bool, error) {
	try, err := lane.proc.Alloc(driver.Align)
	if err != nil {
		return false, err
	}
	_, mirrors := try.(driver.Mirror)
	usable := !mirrors && mem.Aligned(try.Bytes(), driver.Align)
	if err := try.Close(); err != nil || !usable {
		return false, err
	}
	pool, err := lane.proc.Alloc(size)
	if err != nil {
		return false, err
	}
	m.closers = append(m.closers, pool.Close)
	m.home, m.homeBuffer, m.pool = lane, pool, pool.Bytes()
	return true, nil
}

// ends are the buffers that a program begins and ends with: token ids [rows] and logits [rows,vocabulary].
func (m *Machine) ends(phase *planir.PhaseProgram) (ids []int32, logits []float32, err error) {
	data := m.pool
	view := func(name string) []byte {
		buffer := m.buffers[phase.Own(name)]
		return data[m.offset[phase.Own(name)]:][:4*buffer.Rows*buffer.Cols]
	}
	if ids, err = mem.View[int32](view(planir.IDs)); err != nil {
		return nil, nil, err
	}
	logits, err = mem.View[float32](view(planir.Logits))
	return ids, logits, err
}

const cacheName = "\x00cache"

// compiledKey names a graph with compiled-in weights, in a layer; layer -1 means that its weights
// belong to no layer.
type compiledKey struct {
	graph string
	layer int
}

// compiledBlobs are the blobs of such a graph: its artifact, and the binary that the artifact refers
// to, "" for none.
type compiledBlobs struct{ artifact, shared string }

// loader is what loading a program needs, and what the programs share.
type loader struct {
	src      Source
	steady   Steady // nil: src is none
	weights  *weights
	pool     map[*lane]driver.Buffer // imported once per processor: views of the pool share the handle
	lanes    map[string]*lane
	graphs   map[string]*planir.Graph
	codes    map[string][]byte
	compiled map[compiledKey]compiledBlobs
	loaded   map[string]driver.Executable // by graph and weights
	took     time.Duration
	foreseen *upcoming // what Foresee began; nil: nothing
}

// newLoader finds out where the artifacts and weights of a plan are, and loads none.
func newLoader(plan *planir.Plan, src Source) loader {
	load := loader{
		src: src, weights: newWeights(plan, src), pool: map[*lane]driver.Buffer{}, lanes: map[string]*lane{},
		graphs: map[string]*planir.Graph{}, codes: map[string][]byte{}, loaded: map[string]driver.Executable{},
		compiled: map[compiledKey]compiledBlobs{},
	}
	load.steady, _ = src.(Steady)
	for _, group := range plan.GraphGroups() {
		var shared string
		if group.Context != "" {
			shared = planir.LayerBlob(group.Context, group.Layer)
		}
		for _, graph := range group.Graphs {
			load.compiled[compiledKey{graph.Name, group.Layer}] = compiledBlobs{planir.LayerBlob(graph.Artifact,
				group.Layer), shared}
		}
	}
	for i := range plan.Program.Graphs {
		load.graphs[plan.Program.Graphs[i].Name] = &plan.Program.Graphs[i]
	}
	return load
}

// prepare does the part of loading that reads no weights.
func (m *Machine) prepare(src Source) error {
	load := &m.loader
	*load = newLoader(m.plan, src)
	m.closers = append(m.closers, load.weights.close)
	for _, lane := range m.lanes {
		load.lanes[lane.name] = lane
		if lane == m.home {
			load.pool[lane] = m.homeBuffer
			continue
		}
		buf, err := lane.proc.Import(m.pool)
		if err != nil {
			return diag.New(diag.ClassRun, "share the pool with processor %q: %w", lane.name, err)
		}
		load.pool[lane] = buf
		m.closers = append(m.closers, buf.Close)
		if lane.space > 0 {
			mirror, ok := buf.(driver.Mirror)
			if !ok {
				return diag.New(diag.ClassRun, "share the pool with processor %q: it computes on memory of its own, and driver %q does not move values there",
					lane.name, m.plan.Proc(lane.name).Driver)
			}
			m.mirrors[lane.space] = mirror
		}
	}
	flags := 0
	for _, phase := range m.plan.Program.All() {
		pr := &program{PhaseProgram: phase}
		var err error
		if pr.ids, pr.logits, err = m.ends(phase); err != nil {
			return err
		}
		m.programs[pr.Name] = pr
		m.order = append(m.order, pr)
		for _, section := range pr.Sections {
			flags = max(flags, section.Flags)
		}
	}
	m.flags = make([]flag, flags)
	return nil
}

// load makes a program executable, while no lane is running.
func (m *Machine) load(ctx context.Context, pr *program) (err error) {
	if fault := mem.CatchFault(func() { err = m.loadSections(ctx, pr) }); fault != nil {
		return fmt.Errorf("load program %q: %w", pr.Name, fault)
	}
	return err
}

// loadSections loads the steps of all lanes in all layers. Their weights are prepared meanwhile, in the same order, so
// that little is left to load when the last of them are ready.
func (m *Machine) loadSections(ctx context.Context, pr *program) error {
	defer func(began time.Time) { m.loader.took += time.Since(began) }(time.Now())
	if coming := m.comingOf(ctx, pr); coming != nil {
		m.loader.weights.await = coming.await
		defer func() {
			coming.end()
			m.loader.weights.await = nil
		}()
	}
	var sections []*section
	for i := range pr.PhaseProgram.Sections {
		loaded, err := m.loadSection(ctx, pr.PhaseProgram, &pr.PhaseProgram.Sections[i])
		if err != nil {
			return err
		}
		sections = append(sections, loaded)
	}
	pr.sections = sections
	m.moves(pr)
	if m.spaces > 0 {
		pr.uses = m.uses(pr)
	}
	return nil
}

// loadSection loads the steps of a section, layer after layer.
func (m *Machine) loadSection(ctx context.Context, program *planir.PhaseProgram, from *planir.Section) (*section,
	error) {
	loaded := &section{Section: from, iters: from.Iterations()}
	for i := range loaded.Lanes {
		ls := &laneSection{lane: m.loader.lanes[loaded.Lanes[i].Proc]}
		for j := range loaded.Lanes[i].Steps {
			ls.steps = append(ls.steps, m.newStep(ls.lane, &loaded.Lanes[i].Steps[j], loaded))
		}
		loaded.lanes = append(loaded.lanes, ls)
	}
	for iter := range loaded.iters {
		for _, ls := range loaded.lanes {
			for _, st := range ls.steps {
				if err := m.loadCall(ctx, program, ls.lane, st, iter); err != nil {
					return nil, err
				}
			}
		}
	}
	m.connect(loaded)
	m.arrange(loaded)
	return loaded, nil
}

// wants calls visit for each part that a program reads and that has not been asked for yet, in the
// order of its steps.
func (m *Machine) wants(pr *program, visit func(placeKey, Part)) {
	weights := m.loader.weights
	seen := map[placeKey]bool{}
	for i := range pr.PhaseProgram.Sections {
		section := &pr.PhaseProgram.Sections[i]
		for it := range max(1, section.Layers) {
			for j := range section.Lanes {
				if m.plan.Proc(section.Lanes[j].Proc).WeightsInArtifacts {
					continue // its weights are in no weights blob
				}
				for step := range section.Lanes[j].Steps {
					for _, ref := range section.Lanes[j].Steps[step].W {
						at, key := weights.place(ref.Pack, section.First+it)
						if !seen[key] && weights.bytes[key] == nil && !weights.byRow[ref.Pack] {
							seen[key] = true
							few := at.Pack.Layout == op.RowsLayout && at.Pack.Bytes > planir.TableStep
							visit(key, Part{at.blob, at.Offset, at.Pack.Bytes, few})
						}
					}
				}
			}
		}
	}
}

// newStep is a step of a lane's, whose calls are not loaded yet.
func (m *Machine) newStep(on *lane, from *planir.Step, section *section) *step {
	graph := m.loader.graphs[from.Run]
	st := &step{Step: from, section: section.Section, graph: &graph.Graph, rows: graph.Graph.Rows(),
		kind: mainOp(&graph.Graph).Kind, counts: graph.Graph.CountsRows()}
	if !on.virt {
		st.lately.Store(from.ExpectNS)
	}
	st.calls = make([]call, 0, section.iters)
	for range section.iters {
		st.add(call{}) // loadCall fills it
	}
	return st
}

// loadCall loads the graph of a step with the weights of an iteration's layer, and binds its operands.
func (m *Machine) loadCall(ctx context.Context, program *planir.PhaseProgram, on *lane, st *step, iter int) error {
	layer, works := st.Layer(st.section, iter)
	if !works {
		return nil
	}
	made := &st.calls[iter]
	exe, err := m.executable(ctx, on, st, m.loader.graphs[st.Run], layer)
	if err != nil {
		return err
	}
	made.bind = m.bindings(st, layer, m.loader.pool[on])
	if made.dispatched, err = m.countsDispatch(program, st, layer, &made.bind); err != nil {
		return err
	}
	made.exe = exe
	return nil
}

// executable loads a graph with the weights of a step in a layer. Steps that read the same weights
// share it.
func (m *Machine) executable(ctx context.Context, on *lane, st *step, graph *planir.Graph,
	layer int) (driver.Executable, error) {
	loader, proc := &m.loader, m.plan.Proc(on.name)
	fail := func(err error) (driver.Executable, error) {
		return nil, fmt.Errorf("load graph %q: %w", graph.Name, err)
	}
	artifact := driver.Artifact{Driver: proc.Driver, Graph: &graph.Graph}
	var weights driver.Weights
	var key string
	// weights compiled in: the artifact is the layer's own
	if proc.WeightsInArtifacts {
		blobs, ok := loader.compiled[compiledKey{graph.Name, layer}]
		if !ok {
			blobs = loader.compiled[compiledKey{graph.Name, -1}]
		}
		key = "\x00" + blobs.artifact
		if exe := loader.loaded[key]; exe != nil {
			return exe, nil
		}
		var err error
		if artifact.Code, err = loader.src.Blob(blobs.artifact); err != nil {
			return fail(err)
		}
		if blobs.shared != "" {
			if artifact.Shared, err = loader.src.Blob(blobs.shared); err != nil {
				return fail(err)
			}
		}
	} else {
		var ok bool
		var err error
		if artifact.Code, ok = loader.codes[graph.Artifact]; !ok {
			if artifact.Code, err = loader.src.Blob(graph.Artifact); err != nil {
				return fail(err)
			}
			loader.codes[graph.Artifact] = artifact.Code
		}
		if weights, key, err = loader.weights.resolve(st.W, layer); err != nil {
			return fail(err)
		}
		key = graph.Name + "\x00" + key
		if exe := loader.loaded[key]; exe != nil {
			return exe, nil
		}
	}
	on.loads.Store(graph)
	exe, err := on.proc.Load(ctx, artifact, weights)
	on.loads.Store(nil)
	if err != nil {
		class := diag.ClassRun
		switch found := diag.ClassOf(err); found {
		case diag.ClassUnavailable, diag.ClassVerify: // something is missing on this machine, or it is another graph
			class = found
		}
		failed := diag.New(class, "load graph %q on processor %q: %w", graph.Name, on.name, err)
		if len(diag.HintsOf(err)) == 0 && ctx.Err() == nil {
			failed = failed.WithHint("where the artifact is damaged, or of another version of hetc, emit the bundle again")
		}
		return nil, failed
	}
	loader.loaded[key] = exe
	m.steps.Add(1) // the watchdog sees progress
	m.closers = append(m.closers, exe.Close)
	return exe, nil
}

// mainOp is the operator that dominates the cost of a graph: a product, else attention, else the first one.
func mainOp(g *op.Graph) *op.Op {
	found := &g.Nodes[0].Op
	for i := range g.Nodes {
		operator := &g.Nodes[i].Op
		if operator.HasScheme() {
			return operator
		}
		if operator.Kind.ReadsCache() {
			found = operator
		}
	}
	return found
}

// intact returns an error if the bytes that a call was computed with have changed meanwhile.
func (m *Machine) intact() error {
	if m.loader.steady == nil {
		return nil
	}
	return m.loader.steady.Unchanged()
}

// LoadTime is how long loading programs and checking their weights has taken so far.
func (m *Machine) LoadTime() time.Duration { return m.loader.took }

// bindings are the operands of a step in a layer: windows of the pool, which all layers share, and
// the layer's cache.
func (m *Machine) bindings(st *step, layer int, pool driver.Buffer) driver.Bindings {
	view := func(v planir.View) driver.View {
		buffer := m.buffers[v.Buffer]
		size := int64(buffer.Type.Bytes())
		return driver.View{
			Buffer: pool, Type: buffer.Type,
			Offset: m.offset[v.Buffer] + (int64(v.R0)*int64(buffer.Cols)+int64(v.C0))*size,
			Rows:   v.R1 - v.R0, Cols: v.C1 - v.C0, Stride: buffer.Cols,
		}
	}
	cache := &m.plan.Program.Cache
	bind := driver.Bindings{Scalars: &st.scalars, MaxContext: cache.MaxContext}
	for _, ref := range st.In {
		bind.In = append(bind.In, view(ref))
	}
	for _, ref := range st.Out {
		bind.Out = append(bind.Out, view(ref))
	}
	if st.Heads != nil {
		caches := cache
		bind.Sequences, bind.SequenceBytes = m.Sequences(), caches.SequenceBytes()
		element, cols := caches.Type.CacheRow(caches.HeadDim)
		head := int64(caches.MaxContext) * caches.Type.CacheRowBytes(caches.HeadDim)
		half := int64(caches.KVHeads) * head
		at := func(which int) driver.View {
			return driver.View{
				Buffer: pool, Type: element,
				Offset: m.offset[cacheName] + (2*int64(layer)+int64(which))*half + int64(st.Heads[0])*head,
				Rows:   (st.Heads[1] - st.Heads[0]) * caches.MaxContext, Cols: cols, Stride: cols,
			}
		}
		bind.K, bind.V = at(0), at(1)
	}
	return bind
}

// weights finds the packed bytes of weight references. A pack is asked of the source when it is first needed.
type weights struct {
	plan   *planir.Plan
	src    Source
	places map[placeKey]place
	bytes  map[placeKey][]byte
	byRow  map[string]bool        // packs of which single rows are read
	rows   map[placeKey]*packRows // those of them that are loaded
	copies []*mem.Region          // of their hot rows
	await  func(placeKey)         // returns when what is being prepared of a pack is; nil: nothing is
}

// placeKey names a pack in a layer, and place is where it lies in which blob.
type placeKey struct {
	pack  string
	layer int // -1: none
}

type place struct {
	planir.Placement
	blob string
}

// newWeights indexes the packs of all weights blobs.
func newWeights(p *planir.Plan, src Source) *weights {
	out := &weights{plan: p, src: src, places: map[placeKey]place{}, bytes: map[placeKey][]byte{},
		byRow: p.Program.ReadByRow(), rows: map[placeKey]*packRows{}}
	for _, blob := range p.Program.WeightBlobs() {
		for _, pl := range blob.Packs {
			out.places[placeKey{pl.Pack.Name, pl.Layer}] = place{pl, blob.Name}
		}
	}
	return out
}

// place is where a layer's pack lies, or the pack that all layers share.
func (w *weights) place(name string, layer int) (place, placeKey) {
	key := placeKey{name, -1}
	at, ok := w.places[key]
	if !ok {
		key.layer = layer
		at = w.places[key]
	}
	return at, key
}

// pack returns the bytes of a layer's pack, or of the one that all layers share.
func (w *weights) pack(name string, layer int) (*planir.Pack, []byte, placeKey, error) {
	at, key := w.place(name, layer)
	data, ok := w.bytes[key]
	if !ok {
		if w.await != nil {
			w.await(key)
		}
		var err error
		if data, err = w.src.Range(at.blob, at.Offset, at.Pack.Bytes); err != nil {
			return nil, nil, key, err
		}
		w.bytes[key] = data
	}
	return at.Pack, data, key, nil
}

// packRows are the rows of a layer's pack of which few are read, or of the one that all layers share.
func (w *weights) packRows(name string, layer int) (*packRows, placeKey, error) {
	at, key := w.place(name, layer)
	if rows := w.rows[key]; rows != nil {
		return rows, key, nil
	}
	rows, err := newPackRows(w.src, at, w.plan.HotRows(at.Pack.Weight, key.layer))
	if err != nil {
		return nil, key, err
	}
	w.rows[key] = rows
	if rows.copies != nil {
		w.copies = append(w.copies, rows.copies)
	}
	return rows, key, nil
}

// close releases the copies of hot rows.
func (w *weights) close() (err error) {
	for _, region := range w.copies {
		err = errors.Join(err, region.Close())
	}
	w.copies = nil
	return err
}

// resolve returns the weights of a step in one layer, and a key that equal weights share.
func (w *weights) resolve(refs []planir.WeightRef, layer int) (driver.Weights, string, error) {
	var out driver.Weights
	key := ""
	for _, ref := range refs {
		if w.byRow[ref.Pack] && ref.C0 == 0 && ref.Tiers == 0 { // such packs are never divided by steps
			rows, at, err := w.packRows(ref.Pack, layer)
			if err != nil {
				return nil, "", err
			}
			out = append(out, driver.Packed{Spec: rows.at.Pack.Spec(), Rows: rows})
			key += fmt.Sprintf("%s@%d\x00", ref, at.layer)
			continue
		}
		packed, data, at, err := w.pack(ref.Pack, layer)
		if err != nil {
			return nil, "", err
		}
		spec := packed.Spec()
		var stride int64
		if spec.Experts > 0 {
			stride = int64(len(data)) / int64(spec.Experts)
		}
		if ref.Tiers > 0 { // the expert that is in the slot
			held := int64(slices.Index(w.plan.Holds(packed, layer), w.plan.InSlot(ref, layer)))
			spec, data, stride = pack.Expert(spec), data[held*stride:(held+1)*stride], 0
		}
		if ref.C0 != 0 || ref.C1 != spec.N {
			sub, off, bytes, err := pack.Columns(spec, ref.C0, ref.C1)
			if err != nil {
				return nil, "", err
			}
			spec, data = sub, data[off:off+bytes]
		}
		out = append(out, driver.Packed{Spec: spec, Bytes: data, Stride: stride})
		key += fmt.Sprintf("%s@%d\x00", ref, at.layer)
	}
	return out, key, nil
}

// Close stops the crews and releases everything. A thread that does not return in 5 s, or in one where Do has given up
// on it, is ErrLeftBehind.
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

// Plan is the plan being executed.
func (m *Machine) Plan() *planir.Plan { return m.plan }

// Emulated are the names of processors whose results are a device's and whose times are not: programs that imitate one.
func (m *Machine) Emulated() (names []string) {
	for _, lane := range m.lanes {
		if lane.proc.Capabilities().Emulated {
			names = append(names, lane.name)
		}
	}
	return names
}

// Sequences is how many sequences are cached: the most that can be decoded together.
func (m *Machine) Sequences() int { return m.plan.Sequences() }

// Pos is the number of positions in the caches of all sequences.
func (m *Machine) Pos() int {
	longest := 0
	for _, pos := range m.pos {
		longest += pos
	}
	return longest
}

// Reset empties the caches.
func (m *Machine) Reset() { clear(m.pos) }
