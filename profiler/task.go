package profiler

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
)

// maxCopies bounds how many sets of bindings rotate through cold operands.
const maxCopies = 1024

// load is an operator ready to run on a lane: one executable per copy of its weights.
type load struct {
	lane   *lane
	op     op.Op
	exes   []driver.Executable
	binds  []driver.Bindings
	next   int
	stores []*store
	loadNS float64 // time of the first Load

	evict []byte // read before every pass over the copies, untimed: operands are cold though the copies are few
}

// Copies of the weights of processors that make their own: loading takes long, and memory twice.
const (
	fewCopies  = 8  // of an operator alone, with what else lies in the caches evicted before each pass over them
	someCopies = 64 // of operators side by side, whose company must not stop
)

// newLoad compiles o and loads it on l. footprint is through how many bytes its weights or cache are
// rotated, 0 for one copy.
func (r *runner) newLoad(ctx context.Context, l *lane, o op.Op, layout string, footprint int64) (*load, error) {
	return r.loadFor(ctx, l, o, layout, footprint, false)
}

// loadFor is newLoad, for an operator that runs side by side with others or alone.
func (r *runner) loadFor(ctx context.Context, l *lane, o op.Op, layout string, footprint int64, company bool) (*load, error) {
	g := op.Single(o, layout)
	ld := &load{lane: l, op: o}
	ok := false
	defer func() {
		if !ok {
			ld.close(ctx)
		}
	}()
	if err := l.caps.Supports(o); err != nil {
		return nil, diag.New(diag.ClassInfeasible, "%s on processor %q: %w", o.Key(), l.name, err)
	}
	compiler := r.o.Compilers[l.soc.Driver]
	if compiler == nil {
		return nil, diag.New(diag.ClassUnavailable, "measure on processor %q: no compiler for driver %q in this build", l.name, l.soc.Driver)
	}
	weights, copies, err := r.weights(ld, &g, footprint)
	if err != nil {
		return nil, err
	}
	if l.caps.Prepacks && len(copies) > fewCopies {
		if company {
			copies = thin(copies, someCopies)
		} else {
			copies = thin(copies, fewCopies)
			if ld.evict, err = r.stream(); err != nil {
				return nil, err
			}
			ld.evict = ld.evict[:min(int64(len(ld.evict)), footprint)/512*512]
		}
	}
	views, caches, err := r.bindings(ld, &g, footprint)
	if err != nil {
		return nil, err
	}
	var experts []driver.View // by choice
	if o.Kind == op.ExpertMatMul && !l.caps.Virtual {
		if experts, err = l.ops.experts(o); err != nil {
			return nil, err
		}
		if footprint == 0 {
			experts = experts[:1] // as warm as can be
		}
	}
	// Every copy of the weights runs with every choice of experts, and with a cache in turn.
	each := max(len(experts), 1)
	for i := range max(len(copies)*each, len(caches)) {
		b := views
		if len(caches) > 0 {
			c := caches[i%len(caches)]
			b.K, b.V = c[0], c[1]
		}
		if experts != nil {
			b.In = slices.Clone(b.In)
			b.In[len(b.In)-1] = experts[i%each]
		}
		ld.binds = append(ld.binds, b)
		if i > 0 && (i%each > 0 || len(copies) == 1) {
			ld.exes = append(ld.exes, ld.exes[i-1])
			continue
		}
		w := slices.Clone(weights)
		if len(w) > 0 {
			at, bytes := copies[i/each], int64(len(w[0].Bytes))
			w[0].Bytes = ld.stores[0].region.Bytes()[at : at+bytes : at+bytes]
			if l.caps.Prepacks { // a library may keep equal weights once; low bits keep numbers numbers
				w[0].Bytes[0], w[0].Bytes[1] = byte(i), byte(i>>8)
			}
		}
		err := l.do(ctx, func() error {
			a, err := compiler.Compile(ctx, g, w, driver.Target{Proc: l.name, Options: l.soc.Options})
			if err != nil {
				return err
			}
			start := l.proc.Now()
			exe, err := l.proc.Load(ctx, a, w)
			if err != nil {
				return err
			}
			if i == 0 {
				ld.loadNS = float64(l.proc.Now() - start)
			}
			ld.exes = append(ld.exes, exe)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	ok = true
	r.loads += len(ld.exes)
	return ld, nil
}

// weights finds the weights of g, and where in the first one's store its copies lie, through which the
// operator rotates: only matrices have several.
func (r *runner) weights(ld *load, g *op.Graph, footprint int64) (driver.Weights, []int64, error) {
	copies := []int64{0}
	if ld.lane.caps.Virtual {
		return nil, copies, nil
	}
	var out driver.Weights
	for i, spec := range g.Weights {
		cold := int64(0)
		if ld.op.HasScheme() && i == 0 {
			cold = footprint
		}
		st, bytes, err := r.stores.weights(spec, cold)
		if err != nil {
			return nil, nil, err
		}
		ld.stores = append(ld.stores, st)
		w := driver.Packed{Spec: spec, Bytes: st.region.Bytes()[:bytes:bytes]}
		if spec.Experts > 0 {
			w.Stride = bytes / int64(spec.Experts)
		}
		out = append(out, w)
		if cold > 0 {
			copies = st.slots(bytes, cold, max(1, maxCopies/choices(ld.op)))
		}
	}
	return out, copies, nil
}

// bindings lays the operands of g into the lane's buffers and the caches, one pair per copy.
func (r *runner) bindings(ld *load, g *op.Graph, footprint int64) (driver.Bindings, [][2]driver.View, error) {
	o, l := ld.op, ld.lane
	pos := 0
	if o.Kind == op.Attention {
		pos = max(o.Context-o.M, 0)
	}
	b := driver.Bindings{Scalars: &driver.Scalars{Pos: pos, Rows: o.M, KVLen: pos + o.M, Seq: pos + o.M}, MaxContext: max(o.Context, o.M)}
	sequences := 1
	if o.Batch { // every row is the last of its sequence
		sequences = o.M
		for i := range o.M {
			b.Scalars.Batch = append(b.Scalars.Batch, driver.Place{Sequence: i, Pos: max(o.Context, 1) - 1})
		}
	}
	if l.caps.Virtual {
		return b, nil, nil // nothing is computed
	}
	at := map[string]int64{}
	place := func(name string, values []op.Value) (views []driver.View, err error) {
		for _, v := range values {
			buffer := name + string(v.Type)
			bytes := int64(v.Rows) * int64(v.Cols) * int64(v.Type.Bytes())
			offset := at[buffer]
			at[buffer] = roundUp(offset+bytes, 64)
			if _, err := l.ops.buffer(buffer, v.Type, offset+bytes); err != nil {
				return nil, err
			}
			views = append(views, driver.View{Type: v.Type, Offset: offset, Rows: v.Rows, Cols: v.Cols, Stride: v.Cols})
		}
		// Only now are the buffers as large as they get.
		for i := range views {
			views[i].Buffer = l.ops.bufs[name+string(views[i].Type)]
		}
		return views, nil
	}
	var err error
	inPlace := len(g.Inputs) == 1 && len(g.Outputs) == 1 && g.Inputs[0] == g.Outputs[0]
	if inPlace {
		// Its own buffer: rotated again and again, the values stay of the same size.
		if b.In, err = place("in place ", g.Inputs); err == nil {
			b.Out = b.In
		}
	} else if b.In, err = place("in ", g.Inputs); err == nil {
		b.Out, err = place("out ", g.Outputs)
	}
	if err != nil || !g.State() {
		return b, nil, err
	}
	rows := o.KVHeads * b.MaxContext
	b.Sequences, b.SequenceBytes = sequences, int64(rows)*int64(o.HeadDim)*int64(o.KV.Bytes())
	each := roundUp(int64(sequences)*b.SequenceBytes, 64)
	if each > maxActivation {
		return b, nil, diag.New(diag.ClassInput, "cache of %s has %d bytes, want at most %d", o.Key(), each, int64(maxActivation))
	}
	st, err := r.stores.cache(o.KV, max(2*each, footprint))
	if err != nil {
		return b, nil, err
	}
	ld.stores = append(ld.stores, st)
	offsets := []int64{0}
	if footprint > 0 {
		offsets = st.slots(2*each, footprint, maxCopies)
	}
	var caches [][2]driver.View
	buffer := regionBuffer{st.region.Bytes()}
	for _, at := range offsets {
		k := driver.View{Buffer: buffer, Type: o.KV, Offset: at, Rows: rows, Cols: o.HeadDim, Stride: o.HeadDim}
		v := k
		v.Offset += each
		caches = append(caches, [2]driver.View{k, v})
	}
	return b, caches, nil
}

// regionBuffer is memory of a store as a driver sees it.
type regionBuffer struct{ b []byte }

func (r regionBuffer) Bytes() []byte { return r.b }
func (r regionBuffer) Close() error  { return nil }

// wakeTime is how long a thread spins before a sample: it has slept, and its core may have too, which
// lanes of a running model do not.
const (
	wakeTime  = 20_000 // ns
	wakeSpins = 5000   // cap, for clocks that stand still
)

// run executes n times on the lane's thread and returns nanoseconds per execution.
func (ld *load) run(n int) (float64, error) {
	p := ld.lane.proc
	if !ld.lane.caps.Virtual {
		begun := p.Now()
		for i := 0; i < wakeSpins && p.Now()-begun < wakeTime; i++ {
		}
	}
	start, evicting := p.Now(), driver.Tick(0)
	for range n {
		if ld.next == 0 && ld.evict != nil {
			began := p.Now()
			sum(ld.evict)
			evicting += p.Now() - began
		}
		if _, err := p.Run(ld.exes[ld.next], &ld.binds[ld.next]); err != nil {
			return 0, err
		}
		if ld.next++; ld.next == len(ld.exes) {
			ld.next = 0
		}
	}
	return float64(p.Now()-start-evicting) / float64(n), nil
}

// thin keeps n of the copies, spread over all.
func thin(copies []int64, n int) []int64 {
	if len(copies) <= n {
		return copies
	}
	out := make([]int64, n)
	for i := range out {
		out[i] = copies[i*len(copies)/n]
	}
	return out
}

func (ld *load) close(ctx context.Context) {
	if ld == nil {
		return
	}
	exes := slices.Compact(ld.exes)
	ld.lane.do(context.WithoutCancel(ctx), func() error {
		for _, e := range exes {
			e.Close()
		}
		return nil
	})
	for _, st := range ld.stores {
		st.refs--
	}
	ld.exes, ld.stores = nil, nil
}

// source takes samples of one request.
type source interface {
	// sample measures n executions and returns nanoseconds per execution. It runs on the caller's
	// goroutine and uses lanes as it needs them.
	sample(ctx context.Context, n int) (float64, error)
	close(ctx context.Context)
}

// alone runs one operator on an idle machine.
type alone struct{ *load }

func (a alone) sample(ctx context.Context, n int) (ns float64, err error) {
	err = a.lane.do(ctx, func() error {
		ns, err = a.run(n)
		return err
	})
	return ns, err
}

// refresh reads the operands through which the operator rotates, so that they lie where a model in use
// finds its own, whatever was measured meanwhile.
func (a alone) refresh(ctx context.Context, footprint int64) error {
	return a.lane.do(ctx, func() error {
		for _, st := range a.stores {
			b := st.region.Bytes()
			sum(b[:min(int64(len(b)), footprint)/512*512])
		}
		return nil
	})
}

// beside runs one operator while others keep other processors busy.
type beside struct {
	*load
	others []*load
	stream *streamPartner
}

// sample starts the others, waits until each has finished once, and stops them after its own runs, so that
// every execution it counts had company from beginning to end.
func (b *beside) sample(ctx context.Context, n int) (ns float64, err error) {
	var stop, failed atomic.Bool
	var waits []func() error
	begun := make([]atomic.Bool, len(b.others))
	if b.stream != nil {
		if err := b.stream.start(); err != nil {
			return 0, err
		}
		defer b.stream.stop()
	}
	for i, other := range b.others {
		waits = append(waits, other.lane.start(ctx, func() error {
			for !stop.Load() {
				if _, err := other.run(1); err != nil {
					failed.Store(true)
					return err
				}
				begun[i].Store(true)
			}
			return nil
		}))
	}
	err = b.lane.do(ctx, func() error {
		for i := range begun {
			for spins := 1; !begun[i].Load(); spins++ {
				if failed.Load() || ctx.Err() != nil {
					return ctx.Err()
				}
				if spins&0xfff == 0 {
					runtime.Gosched()
				}
			}
		}
		var err error
		ns, err = b.run(n)
		return err
	})
	stop.Store(true)
	for _, wait := range waits {
		if e := wait(); e != nil && err == nil {
			err = e
		}
	}
	if err == nil && failed.Load() {
		err = diag.New(diag.ClassRun, "a processor beside failed")
	}
	return ns, err
}

func (b *beside) close(ctx context.Context) {
	b.load.close(ctx)
	for _, o := range b.others {
		o.close(ctx)
	}
}

// streamPartner reads memory on the cores of a processor while another one is measured.
type streamPartner struct {
	cores  []int
	memory []byte
	ws     *workers
}

func (s *streamPartner) start() (err error) {
	s.ws, err = startWorkers(s.cores, reading(s.memory, len(s.cores), sum))
	return err
}

func (s *streamPartner) stop() { s.ws.close() }

// loading times Load itself.
type loading struct {
	r      *runner
	lane   *lane
	op     op.Op
	layout string
}

func (s *loading) sample(ctx context.Context, n int) (float64, error) {
	total := 0.0
	for range n {
		ld, err := s.r.newLoad(ctx, s.lane, s.op, s.layout, 0)
		if err != nil {
			return 0, err
		}
		total += ld.loadNS
		ld.close(ctx)
	}
	return total / float64(n), nil
}

func (s *loading) close(context.Context) {}

// given repeats a value that the SoC states: what a simulated SoC's lanes cost each other is part
// of its description, no processor executes it.
type given float64

func (g given) sample(context.Context, int) (float64, error) { return float64(g), nil }
func (g given) close(context.Context)                        {}

// copying copies between two buffers on the thread of the processor that needs the data.
type copying struct {
	lane     *lane
	dst, src []byte
}

func (c *copying) sample(ctx context.Context, n int) (ns float64, err error) {
	err = c.lane.do(ctx, func() error {
		start := c.lane.proc.Now()
		for range n {
			copy(c.dst, c.src)
		}
		ns = float64(c.lane.proc.Now()-start) / float64(n)
		return nil
	})
	return ns, err
}

func (c *copying) close(context.Context) {}

// streaming measures bandwidth with readers of its own, one per core.
type streaming struct {
	memory        []byte
	cores, beside []int
	bytes         int64
	window        time.Duration
}

func (s *streaming) sample(ctx context.Context, _ int) (float64, error) {
	xs, err := rates(ctx, s.cores, s.beside, 1, s.window, reading(s.memory, len(s.cores)+len(s.beside), sum))
	if err != nil {
		return 0, err
	}
	return float64(s.bytes) / xs[0], nil
}

func (s *streaming) close(context.Context) {}

// handing measures the hand-over of a flag between two cores.
type handing struct{ a, b int }

func (h *handing) sample(ctx context.Context, n int) (float64, error) {
	_, xs, err := handover(ctx, h.a, h.b, 1, uint32(n))
	if err != nil {
		return 0, err
	}
	return xs[0], nil
}

func (h *handing) close(context.Context) {}

// open prepares what a request needs.
func (r *runner) open(ctx context.Context, m *record.Measurement) (source, error) {
	switch m.Kind {
	case record.Op, record.Launch:
		return r.openOp(ctx, m)
	case record.Load:
		l, err := r.lane(ctx, m.Proc, nil)
		if err != nil {
			return nil, err
		}
		return &loading{r, l, *m.Op, m.Layout}, nil
	case record.Bandwidth:
		return r.openBandwidth(ctx, m)
	case record.Sync:
		return r.openSync(m)
	case record.Copy:
		return r.openCopy(ctx, m)
	}
	return nil, diag.New(diag.ClassInput, "measure: unknown kind %q", m.Kind)
}

// footprint is through how many bytes the operands of m are rotated.
func (r *runner) footprint(cold bool, bytes int64) int64 {
	switch {
	case !cold:
		return 0
	case bytes > 0:
		return min(bytes, r.coldBytes)
	}
	return r.coldBytes
}

func (r *runner) openOp(ctx context.Context, m *record.Measurement) (source, error) {
	if r.virtual(m.Proc) {
		return r.openVirtual(ctx, m)
	}
	l, err := r.lane(ctx, m.Proc, nil)
	if err != nil {
		return nil, err
	}
	ld, err := r.loadFor(ctx, l, *m.Op, m.Layout, r.footprint(m.Cold, m.Footprint), len(m.Concurrent) > 0)
	if err != nil || len(m.Concurrent) == 0 {
		return alone{ld}, err
	}
	b := &beside{load: ld}
	for _, p := range m.Concurrent {
		if err := r.soc.Concurrent(m.Proc, p.Proc); err != nil {
			b.close(ctx)
			return nil, err
		}
		if p.Op == nil {
			memory, err := r.stream()
			if err != nil {
				b.close(ctx)
				return nil, err
			}
			if b.stream == nil {
				b.stream = &streamPartner{memory: memory}
			}
			b.stream.cores = append(b.stream.cores, r.soc.Processor(p.Proc).Cores...)
			continue
		}
		ol, err := r.lane(ctx, p.Proc, nil)
		if err == nil {
			var other *load
			if other, err = r.loadFor(ctx, ol, *p.Op, p.Layout, r.footprint(p.Cold, m.Footprint), true); err == nil {
				b.others = append(b.others, other)
			}
		}
		if err != nil {
			b.close(ctx)
			return nil, err
		}
	}
	return b, nil
}

// openVirtual is openOp on a processor with a virtual clock: streams beside it are an option of its driver, and when operators
// ran side by side is settled once they have run.
func (r *runner) openVirtual(ctx context.Context, m *record.Measurement) (source, error) {
	var streams []string
	var partners []*load
	open := func(p record.Partner) error {
		if p.Op == nil {
			streams = append(streams, p.Proc)
			return nil
		}
		l, err := r.lane(ctx, p.Proc, nil)
		if err != nil {
			return err
		}
		ld, err := r.newLoad(ctx, l, *p.Op, p.Layout, 0)
		if err == nil {
			partners = append(partners, ld)
		}
		return err
	}
	closeAll := func() {
		for _, p := range partners {
			p.close(ctx)
		}
	}
	for _, p := range m.Concurrent {
		if err := open(p); err != nil {
			closeAll()
			return nil, err
		}
	}
	var options map[string]string
	if len(streams) > 0 {
		options = map[string]string{"beside": strings.Join(streams, ",")}
	}
	l, err := r.lane(ctx, m.Proc, options)
	if err != nil {
		closeAll()
		return nil, err
	}
	ld, err := r.loadFor(ctx, l, *m.Op, m.Layout, r.footprint(m.Cold, m.Footprint), len(m.Concurrent) > 0)
	if err != nil || len(partners) == 0 {
		return alone{ld}, err
	}
	return &settled{ld, partners}, nil
}

// settled runs one operator on a virtual clock while others repeat theirs.
type settled struct {
	*load
	others []*load
}

// sample runs each once, and then lets the driver find out how long the first takes while the others go on.
func (s *settled) sample(ctx context.Context, n int) (ns float64, err error) {
	loads := append([]*load{s.load}, s.others...)
	for range n {
		schedule := driver.Schedule{}
		for i, ld := range loads {
			proc, ok := ld.lane.proc.(driver.Virtual)
			if !ok {
				return 0, diag.New(diag.ClassRun, "measure side by side: processor %q does not tell what its calls did", ld.lane.name)
			}
			if _, err := (alone{ld}).sample(ctx, 1); err != nil {
				return 0, err
			}
			schedule.Lanes = append(schedule.Lanes, driver.ScheduleLane{Proc: proc, Calls: []driver.ScheduleCall{{Work: proc.Last()}}, Endless: i > 0})
		}
		if err := schedule.Lanes[0].Proc.(driver.Virtual).Settle(&schedule); err != nil {
			return 0, err
		}
		span := schedule.Lanes[0].Calls[0].Span
		ns += float64(span.End - span.Start)
	}
	return ns / float64(n), nil
}

func (s *settled) close(ctx context.Context) {
	s.load.close(ctx)
	for _, o := range s.others {
		o.close(ctx)
	}
}

// streamOp is what measures the bandwidth of processors without readable cores: an addition of
// large matrices, which only moves memory. What takes only virtual time is so large that the launch does not count.
func streamOp(virtual bool) op.Op {
	o := op.Op{Kind: op.Add, M: 2048, N: 4096}
	if virtual {
		o.M = 1 << 22
	}
	return o
}

func (r *runner) openBandwidth(ctx context.Context, m *record.Measurement) (source, error) {
	p := r.soc.Processor(m.Proc)
	if p == nil {
		return nil, r.unknown(m.Proc)
	}
	if r.virtual(m.Proc) || len(p.Cores) == 0 {
		o := streamOp(r.virtual(m.Proc))
		x := *m
		x.Op, x.Layout = &o, ""
		src, err := r.openOp(ctx, &x)
		if err != nil {
			return nil, err
		}
		return &scaled{src, float64(m.Bytes) / float64(o.Bytes())}, nil
	}
	memory, err := r.stream()
	if err != nil {
		return nil, err
	}
	s := &streaming{memory: memory, cores: p.Cores, bytes: m.Bytes, window: r.o.window}
	for _, c := range m.Concurrent {
		if err := r.soc.Concurrent(m.Proc, c.Proc); err != nil {
			return nil, err
		}
		if c.Op != nil {
			return nil, diag.New(diag.ClassInput, "measure bandwidth of %q beside an operator: want beside reading memory", m.Proc)
		}
		s.beside = append(s.beside, r.soc.Processor(c.Proc).Cores...)
	}
	return s, nil
}

// scaled turns times of one amount of work into times of another.
type scaled struct {
	source
	factor float64
}

func (s *scaled) sample(ctx context.Context, n int) (float64, error) {
	ns, err := s.source.sample(ctx, n)
	return ns * s.factor, err
}

func (r *runner) openSync(m *record.Measurement) (source, error) {
	a, b := r.soc.Processor(m.Proc), r.soc.Processor(m.To)
	if a == nil {
		return nil, r.unknown(m.Proc)
	}
	if b == nil {
		return nil, r.unknown(m.To)
	}
	if err := r.soc.Concurrent(m.Proc, m.To); err != nil {
		return nil, err
	}
	if r.virtual(m.Proc) || r.virtual(m.To) || len(a.Cores) == 0 || len(b.Cores) == 0 {
		l, ok := r.soc.Link(m.Proc, m.To)
		if !ok || !r.virtual(m.Proc) {
			return nil, diag.New(diag.ClassInput, "hand-over from %q to %q: it cannot be measured on these processors, and SoC %q does not state it", m.Proc, m.To, r.soc.Name)
		}
		return given(1e3 * l.HandoverUS), nil
	}
	return &handing{a.Cores[0], b.Cores[0]}, nil
}

func (r *runner) openCopy(ctx context.Context, m *record.Measurement) (source, error) {
	if r.virtual(m.Proc) {
		l, ok := r.soc.Link(m.Proc, m.To)
		if !ok || l.CopyGBps <= 0 {
			return nil, diag.New(diag.ClassInput, "copy from %q to %q: SoC %q does not state its speed", m.Proc, m.To, r.soc.Name)
		}
		return given(1e3*l.CopyLaunchUS + float64(m.Bytes)/l.CopyGBps), nil
	}
	src, err := r.lane(ctx, m.Proc, nil)
	if err != nil {
		return nil, err
	}
	dst := src
	if m.To != "" {
		if dst, err = r.lane(ctx, m.To, nil); err != nil {
			return nil, err
		}
	}
	from, err := src.ops.buffer("copy from ", op.U8, m.Bytes)
	if err != nil {
		return nil, err
	}
	to, err := dst.ops.buffer("copy to ", op.U8, m.Bytes)
	if err != nil {
		return nil, err
	}
	return &copying{dst, to.Bytes()[:m.Bytes], from.Bytes()[:m.Bytes]}, nil
}
