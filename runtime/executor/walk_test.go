package executor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// noted is a processor whose steps note that they ran, and do whatever they are told.
type noted struct {
	caps   driver.Capabilities
	thread atomic.Int64 // goroutines inside Run
	beside *noted       // has the same thread: never inside Run at the same time
}

// on is a processor of one core that does what it is told.
func on(core int) *noted { return &noted{caps: driver.Capabilities{Cores: []int{core}}} }

// notedStep is something to do for a noted processor.
type notedStep struct{ run func() error }

func (*notedStep) Close() error { return nil }

func (p *noted) Capabilities() *driver.Capabilities   { return &p.caps }
func (p *noted) Alloc(int64) (driver.Buffer, error)   { return nil, errors.New("no memory") }
func (p *noted) Import([]byte) (driver.Buffer, error) { return nil, errors.New("no memory") }
func (p *noted) Now() driver.Tick                     { return driver.Tick(time.Now().UnixNano()) }
func (p *noted) WaitUntil(driver.Tick)                {}
func (p *noted) Close() error                         { return nil }
func (p *noted) Load(context.Context, driver.Artifact, driver.Weights) (driver.Executable, error) {
	return nil, errors.New("nothing to load")
}

// Attach pins the thread where there are that many cores: random sections have more.
func (p *noted) Attach() error {
	if cores := affinity.Cores(); len(p.caps.Cores) > 0 && slices.Contains(cores, p.caps.Cores[0]) {
		return affinity.Pin(p.caps.Cores[0])
	}
	return nil
}

// Run does a step, and fails where another one runs on the same thread.
func (p *noted) Run(exe driver.Executable, _ *driver.Bindings) (driver.Span, error) {
	if p.thread.Add(1) > 1 || p.beside != nil && p.beside.thread.Load() > 0 {
		return driver.Span{}, errors.New("two steps of one thread run together")
	}
	defer p.thread.Add(-1)
	start := p.Now()
	err := exe.(*notedStep).run()
	return driver.Span{Start: start, End: p.Now()}, err
}

// notedQueue executes the steps of a noted processor on a goroutine of its own.
type notedQueue struct {
	*noted
	calls               chan *notedStep
	submitted, finished atomic.Uint64
	failed              atomic.Pointer[driver.Failure]
	started             bool
	ended               chan struct{}
}

// newNotedQueue has room for as many calls as a driver may have in flight.
func newNotedQueue(p *noted) *notedQueue {
	return &notedQueue{noted: p, calls: make(chan *notedStep, driver.MaxInFlight), ended: make(chan struct{})}
}

func (q *notedQueue) Attach() error {
	q.started = true
	go func() {
		defer close(q.ended)
		for step := range q.calls {
			if _, err := q.Run(step, nil); err != nil {
				q.failed.CompareAndSwap(nil, &driver.Failure{Ticket: driver.Ticket(q.finished.Load() + 1), Err: err})
			}
			q.finished.Add(1)
		}
	}()
	return nil
}

func (q *notedQueue) Submit(exe driver.Executable, _ *driver.Bindings) (driver.Ticket, error) {
	select {
	case q.calls <- exe.(*notedStep):
		return driver.Ticket(q.submitted.Add(1)), nil
	default:
		return 0, errors.New("too many calls in flight")
	}
}

func (q *notedQueue) Done(t driver.Ticket) (bool, error) {
	done := q.finished.Load() >= uint64(t)
	if failed := q.failed.Load(); failed != nil && failed.Ticket <= t {
		q.failed.Store(nil)
		return done, failed
	}
	return done, nil
}

func (q *notedQueue) Wait(t driver.Ticket) (driver.Span, error) {
	for q.finished.Load() < uint64(t) {
		runtime.Gosched()
	}
	_, err := q.Done(t)
	now := q.Now()
	return driver.Span{Start: now - 100, End: now}, err
}

func (q *notedQueue) Close() error {
	close(q.calls)
	if q.started {
		<-q.ended
	}
	return nil
}

// random is a legal section of random steps on a random number of processors of a few cores, and a machine for it.
type random struct {
	m     *Machine
	s     *section
	steps int
	ran   [][]atomic.Int64 // [step][iteration]: when it finished, by the common count
	count atomic.Int64
	wrong atomic.Pointer[string]
}

// newRandom draws lanes, steps and waits.
func newRandom(t *rapid.T) *random {
	r := &random{m: &Machine{deadline: 10 * time.Second, origin: time.Now(), jobs: make(chan job)}}
	m := r.m
	for i := range rapid.IntRange(1, 6).Draw(t, "lanes") {
		m.lanes = append(m.lanes, r.drawLane(t, i))
	}
	m.control = rapid.SampledFrom(m.lanes).Draw(t, "control")
	r.steps = rapid.IntRange(1, 24).Draw(t, "steps")
	iters := rapid.IntRange(1, 5).Draw(t, "iterations")
	m.flags = make([]flag, r.steps)
	r.s = &section{Section: &planir.Section{Name: "random", Layers: iters, Flags: r.steps}, iters: iters}
	r.ran = make([][]atomic.Int64, r.steps)
	lanes := map[*lane]*laneSection{}
	busy := rapid.SampledFrom([]time.Duration{0, 0, 3 * time.Microsecond, 200 * time.Microsecond}).Draw(t, "busy")
	for n := range r.steps { // in this order everything could run
		r.ran[n] = make([]atomic.Int64, iters)
		l := rapid.SampledFrom(m.lanes).Draw(t, "lane")
		part := lanes[l]
		if part == nil {
			part = &laneSection{lane: l}
			lanes[l] = part
			r.s.lanes = append(r.s.lanes, part)
		}
		part.steps = append(part.steps, r.drawStep(t, n, busy))
	}

	m.plan = &planir.Plan{}
	m.plan.Program.Programs = []planir.PhaseProgram{{Sections: []planir.Section{r.planned()}}}
	m.formCrews()
	m.connectLanes(r.s)
	return r
}

// drawLane draws a lane: of a core or of none, which may be asynchronous.
func (r *random) drawLane(t *rapid.T, number int) *lane {
	p := &noted{}
	if core := rapid.IntRange(-1, 2).Draw(t, "core"); core >= 0 {
		p.caps.Cores = []int{core}
		for _, other := range r.m.lanes {
			if slices.Equal(other.proc.Capabilities().Cores, p.caps.Cores) {
				p.beside = other.proc.(*noted)
			}
		}
	}
	l := &lane{name: fmt.Sprint(number), proc: p, dynamic: true}
	if len(p.caps.Cores) == 0 && rapid.Bool().Draw(t, "asynchronous") {
		q := newNotedQueue(p)
		l.proc, l.queue = q, &queue{Asynchronous: q}
		l.waiting = rapid.SampledFrom(capability.Waitings).Draw(t, "waiting")
		r.m.closers = append(r.m.closers, q.Close)
	}
	return l
}

// drawStep draws step n, which takes some time, and waits for up to three others: later ones of the iteration before.
func (r *random) drawStep(t *rapid.T, n int, busy time.Duration) *step {
	st := &step{
		section: r.s.Section,
		Step:    &planir.Step{Node: fmt.Sprint(n), Set: &n, ExpectNS: int64(busy)},
		graph:   &op.Graph{},
		rows:    1,
	}
	if rapid.Bool().Draw(t, "expected") {
		st.estimateNS.Store(rapid.SampledFrom([]int64{1, 2000, 200_000, 3_000_000}).Draw(t, "estimateNS"))
	}
	waits := rapid.SliceOfNDistinct(rapid.IntRange(0, r.steps-1), 0, 3, rapid.ID[int]).Draw(t, "waits")
	for _, w := range waits {
		st.Wait = append(st.Wait, planir.Wait{Flag: w, Back: w >= n})
	}
	for iter := range r.s.iters {
		st.add(call{exe: &notedStep{func() error {
			for until := time.Now().Add(busy); time.Now().Before(until); {
			}
			r.note(n, iter, st.Wait)
			return nil
		}}})
	}
	return st
}

// note notes that step n ran, and complains where it has run before, or a step has not that it waits for.
func (r *random) note(n, iter int, waits []planir.Wait) {
	for _, w := range waits {
		at := iter
		if w.Back {
			at--
		}
		if at >= 0 && r.ran[w.Flag][at].Load() == 0 {
			r.complain("step %d of iteration %d ran before step %d of iteration %d, whose flag it waits for", n, iter,
				w.Flag, at)
		}
	}
	if !r.ran[n][iter].CompareAndSwap(0, r.count.Add(1)) {
		r.complain("step %d of iteration %d ran twice", n, iter)
	}
}

// planned is the section as a plan has it.
func (r *random) planned() planir.Section {
	section := planir.Section{Name: "random", Layers: r.s.iters, Flags: r.steps}
	for _, part := range r.s.lanes {
		lane := planir.Lane{Proc: part.lane.name}
		for _, st := range part.steps {
			lane.Steps = append(lane.Steps, *st.Step)
		}
		section.Lanes = append(section.Lanes, lane)
	}
	return section
}

// complain keeps the first thing that went wrong.
func (r *random) complain(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	r.wrong.CompareAndSwap(nil, &s)
}

// clear forgets what ran.
func (r *random) clear() {
	for n := range r.ran {
		for i := range r.ran[n] {
			r.ran[n][i].Store(0)
		}
	}
}

// once runs the section.
func (r *random) once() error {
	r.clear()
	return runOnce(r.m, r.s)
}

// runOnce runs a section of one row.
func runOnce(m *Machine, s *section) error {
	return m.Do(context.Background(), func(*Control) error {
		return m.runSection(s, driver.Scalars{Rows: 1}, false)
	})
}

// Every step runs once in every iteration, after those it waits for, and nothing hangs. This holds whatever lanes there
// are, on whatever threads, and whichever step waits for which.
func TestRandomSections(t *testing.T) {
	require.Slow(t)
	rapid.Check(t, func(t *rapid.T) {
		r := newRandom(t)
		if err := r.m.startCrews(); err != nil {
			t.Fatal(err)
		}
		defer r.m.Close()
		for range 3 {
			if err := r.once(); err != nil {
				t.Fatal(err)
			}
			if w := r.wrong.Load(); w != nil {
				t.Fatal(*w)
			}
			for n := range r.ran {
				for i := range r.ran[n] {
					if r.ran[n][i].Load() == 0 {
						t.Fatalf("step %d of iteration %d never ran", n, i)
					}
				}
			}
		}
	})
}

// A step that fails ends the section on every lane, and the next one runs.
func TestRandomFailures(t *testing.T) {
	require.Slow(t)
	rapid.Check(t, func(t *rapid.T) {
		r := newRandom(t)
		if err := r.m.startCrews(); err != nil {
			t.Fatal(err)
		}
		defer r.m.Close()
		ls := r.s.lanes[rapid.IntRange(0, len(r.s.lanes)-1).Draw(t, "failing lane")]
		st := ls.steps[rapid.IntRange(0, len(ls.steps)-1).Draw(t, "failing step")]
		at := &st.calls[rapid.IntRange(0, r.s.iters-1).Draw(t, "failing iteration")]

		good, fault := at.exe, errors.New("injected")
		at.exe = &notedStep{func() error { return fault }}
		err := r.once()
		if !errors.Is(err, fault) || !strings.Contains(err.Error(), fmt.Sprintf("step %q", st.Node)) {
			t.Fatalf("got %v, want the failure of step %q", err, st.Node)
		}

		at.exe = good
		if err := r.once(); err != nil {
			t.Fatal(err)
		}
	})
}

// A deadline that passes while lanes wait is an error or is just met; whatever happens, the next section runs.
func TestRandomDeadlines(t *testing.T) {
	require.Slow(t)
	rapid.Check(t, func(t *rapid.T) {
		r := newRandom(t)
		if err := r.m.startCrews(); err != nil {
			t.Fatal(err)
		}
		defer r.m.Close()
		r.m.deadline = time.Nanosecond
		for range 3 {
			r.clear()
			j := job{done: make(chan error, 1)} // without a watchdog, whose deadline is the same
			j.run = func() error { return r.m.runSection(r.s, driver.Scalars{Rows: 1}, false) }
			r.m.jobs <- j
			if err := <-j.done; err != nil {
				waited := strings.Contains(err.Error(), "waited 1ns for flag")
				if !waited && !strings.Contains(err.Error(), "not done after 1ns") {
					t.Fatal(err)
				}
			}
			r.m.poison.Store(nil)
		}

		r.m.deadline = 10 * time.Second
		if err := r.once(); err != nil {
			t.Fatal(err)
		}
	})
}

// onCores is a lane of a processor on these cores.
func onCores(name string, cores ...int) *lane {
	return &lane{name: name, proc: &noted{caps: driver.Capabilities{Cores: cores}}, dynamic: true}
}

// crewNames are the lanes of each thread.
func crewNames(m *Machine) []string {
	var names []string
	for _, crew := range m.crews {
		var lanes []string
		for _, l := range crew.lanes {
			lanes = append(lanes, l.name)
		}
		names = append(names, strings.Join(lanes, "+"))
	}
	return names
}

// Lanes of one first core have one thread, all others their own. The control lane's is the first.
func TestLanesOfOneCoreShareAThread(t *testing.T) {
	m := &Machine{}
	for i, cores := range [][]int{{1}, {0}, nil, {0, 1}, {1, 0}, nil, {2, 0}} {
		m.lanes = append(m.lanes, onCores(fmt.Sprint(i), cores...))
	}
	virtual := onCores("v", 0)
	virtual.virtual = true
	m.lanes = append(m.lanes, virtual)
	m.control = m.lanes[3]

	m.formCrews()

	got := crewNames(m)
	if want := []string{"3+1", "0+4", "2", "5", "6", "v"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The control thread feeds an asynchronous processor, unless it computes while others wait for the processor, or the
// processor for them.
func TestControlThreadFeedsDevices(t *testing.T) {
	step := planir.Step{}
	sets := func(flag int) planir.Step { return planir.Step{Set: &flag} }
	waits := func(flag int) planir.Step { return planir.Step{Wait: []planir.Wait{{Flag: flag}}} }
	on := func(proc string, step planir.Step) planir.Lane {
		return planir.Lane{Proc: proc, Steps: []planir.Step{step}}
	}
	for _, c := range []struct {
		name  string
		lanes []planir.Lane
		want  []string
	}{
		{
			name:  "alone",
			lanes: []planir.Lane{on("gpu", step)},
			want:  []string{"cpu+gpu", "npu"},
		},
		{
			name:  "beside the control processor",
			lanes: []planir.Lane{on("cpu", sets(0)), on("gpu", waits(0))},
			want:  []string{"cpu+gpu", "npu"},
		},
		{
			name:  "with another processor",
			lanes: []planir.Lane{on("npu", sets(0)), on("gpu", waits(0))},
			want:  []string{"cpu+gpu", "npu"},
		},
		{
			name:  "with both, waiting",
			lanes: []planir.Lane{on("cpu", step), on("npu", sets(0)), on("gpu", waits(0))},
			want:  []string{"cpu", "npu", "gpu"},
		},
		{
			name:  "with both, waited for",
			lanes: []planir.Lane{on("cpu", step), on("npu", waits(0)), on("gpu", sets(0))},
			want:  []string{"cpu", "npu", "gpu"},
		},
		{
			name:  "with both, apart",
			lanes: []planir.Lane{on("cpu", step), on("npu", step), on("gpu", sets(0))},
			want:  []string{"cpu+gpu", "npu"},
		},
	} {
		m := &Machine{plan: &planir.Plan{}}
		m.plan.Program.Programs = []planir.PhaseProgram{{Sections: []planir.Section{{Lanes: c.lanes}}}}
		gpu := newNotedQueue(&noted{})
		m.lanes = []*lane{
			onCores("cpu", 0),
			{name: "npu", proc: &noted{}},
			{name: "gpu", proc: gpu, queue: &queue{Asynchronous: gpu}},
		}
		m.control = m.lanes[0]

		m.formCrews()

		if got := crewNames(m); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %s", c.name, got, c.want)
		}
	}
}

// A thread without steps in a section does not spin on a core that another one's processor needs there.
func TestIdleThreadLeavesANeededCore(t *testing.T) {
	m := &Machine{deadline: 10 * time.Second, origin: time.Now(), jobs: make(chan job)}
	for i, cores := range [][]int{{0, 1}, {1}, {2}} {
		m.lanes = append(m.lanes, onCores(fmt.Sprint(i), cores...))
	}
	m.control = m.lanes[0]
	m.formCrews()
	part := func(l *lane, run func() error) *section {
		st := &step{section: &planir.Section{}, Step: &planir.Step{Node: l.name}, graph: &op.Graph{}, rows: 1}
		st.add(call{exe: &notedStep{run}})
		s := &section{Section: st.section, iters: 1, lanes: []*laneSection{{lane: l, steps: []*step{st}}}}
		m.connectLanes(s)
		return s
	}

	second := m.lanes[1].crew
	alone := part(m.lanes[1], func() error { return nil })
	both := part(m.lanes[0], func() error {
		for !second.parked.Load() {
			runtime.Gosched()
		}
		return nil
	})
	other := part(m.lanes[2], func() error { return nil })
	if !slices.Equal(both.yielding, []*crew{second}) || len(alone.yielding)+len(other.yielding) > 0 {
		t.Fatalf("%d, %d and %d threads yield, want 1, 0 and 0", len(both.yielding), len(alone.yielding),
			len(other.yielding))
	}

	if err := m.startCrews(); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for range 20 {
		for _, s := range []*section{alone, both, other} {
			if err := runOnce(m, s); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The control thread does not spin either where another processor's section needs its core.
func TestIdleControlThreadLeavesANeededCore(t *testing.T) {
	m, s := lanesOn([][]int{{1}, {0, 1}}, 1)
	defer m.Close()
	if !slices.Equal(s.yielding, []*crew{m.control.crew}) {
		t.Fatalf("%d threads rest, want the control thread", len(s.yielding))
	}
	for range 3 {
		if err := runOnce(m, s); err != nil {
			t.Fatal(err)
		}
	}
}

// lanesOn is a machine of a lane for each set of cores, the first one the control lane, and a section of one step on
// that number.
func lanesOn(cores [][]int, number int) (*Machine, *section) {
	m := &Machine{deadline: 10 * time.Second, origin: time.Now(), jobs: make(chan job)}
	for i, c := range cores {
		m.lanes = append(m.lanes, onCores(fmt.Sprint(i), c...))
	}
	m.control = m.lanes[0]
	m.formCrews()
	st := &step{section: &planir.Section{}, Step: &planir.Step{}, graph: &op.Graph{}, rows: 1}
	st.add(call{exe: &notedStep{func() error { return nil }}})
	s := &section{Section: st.section, iters: 1, lanes: []*laneSection{{lane: m.lanes[number], steps: []*step{st}}}}
	m.connectLanes(s)
	if err := m.startCrews(); err != nil {
		panic(err)
	}
	return m, s
}

// Every call knows the product that its lane executes after it, beyond iterations and sections.
func TestCallsKnowTheNextProduct(t *testing.T) {
	product := &op.Graph{Nodes: []op.Node{{Op: op.Op{Kind: op.MatMul, Scheme: op.A8TQ8C}}}}
	other := &op.Graph{Nodes: []op.Node{{Op: op.Op{Kind: op.Norm}}}}
	both, alone := &lane{}, &lane{}
	steps := func(iters int, graphs ...*op.Graph) (out []*step) {
		for _, graph := range graphs {
			st := &step{graph: graph}
			for range iters {
				st.add(call{exe: &notedStep{}})
			}
			out = append(out, st)
		}
		return out
	}
	first := &section{iters: 2, lanes: []*laneSection{
		{lane: both, steps: steps(2, other, product, other, product)},
		{lane: alone, steps: steps(2, other)},
	}}
	last := &section{iters: 1, lanes: []*laneSection{{lane: both, steps: steps(1, other, product)}}}

	announceNext([]*section{first, last})

	exe := func(of *section, step, iter int) driver.Executable { return of.lanes[0].steps[step].calls[iter].exe }
	want := []driver.Executable{
		exe(first, 1, 0), exe(first, 3, 0), exe(first, 3, 0), exe(first, 1, 1),
		exe(first, 1, 1), exe(first, 3, 1), exe(first, 3, 1), exe(last, 1, 0),
		exe(last, 1, 0), nil,
	}
	var got []driver.Executable
	for _, of := range []*section{first, last} {
		for iter := range of.iters {
			for _, st := range of.lanes[0].steps {
				got = append(got, st.calls[iter].bind.Next)
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %p, want %p", got, want)
	}
	if next := first.lanes[1].steps[0].calls[0].bind.Next; next != nil {
		t.Errorf("a lane without products is told %p", next)
	}
}
