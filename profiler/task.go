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

// load is an operator that is ready to run on a lane: one executable per copy of its weights, and
// bindings that rotate through the copies.
type load struct {
	lane *lane
	op   op.Op
	// exes and binds correspond: each execution uses the pair at next, and moves on.
	exes   []driver.Executable
	binds  []driver.Bindings
	next   int
	stores []*store
	loadNS float64 // time of the first Load

	// evict is read before every pass over the copies, outside the measured time. Operands are then
	// cold although the copies are few.
	evict []byte // read before every pass over the copies, untimed: operands are cold though the copies are few

	eachNS float64 // of an asynchronous processor: what a call took in the latest sample
}

// Numbers of copies of the weights for processors that store their own: loading takes long, and
// memory twice.
const (
	fewCopies  = 8  // of an operator alone, with what else lies in the caches evicted before each pass over them
	someCopies = 64 // of operators side by side, whose company must not stop
)

// newLoad compiles an operator and loads it on a lane. Its weights or cache rotate through
// footprint bytes; 0 means one copy.
func (r *runner) newLoad(
	ctx context.Context, lane *lane, operator op.Op, layout string, footprint int64,
) (*load, error) {
	return r.loadFor(ctx, lane, operator, layout, footprint, false)
}

// loadFor is newLoad for an operator that runs side by side with others (company) or alone.
func (r *runner) loadFor(
	ctx context.Context, lane *lane, operator op.Op, layout string, footprint int64, company bool,
) (*load, error) {
	ld := &load{lane: lane, op: operator}
	if err := r.fill(ctx, ld, layout, footprint, company); err != nil {
		ld.close(ctx)
		return nil, err
	}
	r.loads += len(ld.exes)
	return ld, nil
}

// fill lays out the operands and loads every copy.
func (r *runner) fill(ctx context.Context, ld *load, layout string, footprint int64, company bool) error {
	lane := ld.lane
	graph := op.Single(ld.op, layout)
	if err := lane.caps.Supports(ld.op); err != nil {
		return diag.New(diag.ClassInfeasible, "%s on processor %q: %w", ld.op.Key(), lane.name, err)
	}
	compiler := r.o.Compilers[lane.soc.Driver]
	if compiler == nil {
		return diag.New(diag.ClassUnavailable, "measure on processor %q: no compiler for driver %q in this build",
			lane.name, lane.soc.Driver)
	}
	weights, copies, err := r.weights(ld, &graph, footprint)
	if err != nil {
		return err
	}
	if copies, err = r.fewer(ld, copies, footprint, company); err != nil {
		return err
	}
	views, caches, err := r.bindings(ld, &graph, footprint)
	if err == nil {
		err = ld.push(ctx, views.In)
	}
	if err != nil {
		return err
	}
	var experts []driver.View // by choice
	if ld.op.Kind == op.ExpertMatMul && !lane.caps.Virtual {
		if experts, err = lane.ops.experts(ld.op); err != nil {
			return err
		}
		if footprint == 0 {
			experts = experts[:1] // as warm as can be
		}
	}
	// Every copy of the weights runs with every choice of experts, and with a cache in turn.
	each := max(len(experts), 1)
	for i := range max(len(copies)*each, len(caches)) {
		binds := views
		if len(caches) > 0 {
			cache := caches[i%len(caches)]
			binds.K, binds.V = cache[0], cache[1]
		}
		if experts != nil {
			binds.In = slices.Clone(binds.In)
			binds.In[len(binds.In)-1] = experts[i%each]
		}
		ld.binds = append(ld.binds, binds)
		if i > 0 && (i%each > 0 || len(copies) == 1) {
			ld.exes = append(ld.exes, ld.exes[i-1])
			continue
		}
		packed := slices.Clone(weights)
		if len(packed) > 0 {
			at, bytes := copies[i/each], int64(len(packed[0].Bytes))
			packed[0].Bytes = ld.stores[0].region.Bytes()[at : at+bytes : at+bytes]
			if lane.caps.Prepacks { // a library may keep equal weights once; low bits keep numbers numbers
				packed[0].Bytes[0], packed[0].Bytes[1] = byte(i), byte(i>>8)
			}
		}
		if err := ld.add(ctx, compiler, graph, packed); err != nil {
			return err
		}
	}
	return nil
}

// fewer reduces the copies where a processor stores its own of each. Alone, other memory is then
// read between passes to evict them from the caches; side by side that would disturb the company.
func (r *runner) fewer(ld *load, copies []int64, footprint int64, company bool) ([]int64, error) {
	if !ld.lane.caps.Prepacks || len(copies) <= fewCopies {
		return copies, nil
	}
	if company {
		return thin(copies, someCopies), nil
	}
	evict, err := r.stream()
	if err != nil {
		return nil, err
	}
	ld.evict = evict[:min(int64(len(evict)), footprint)/512*512]
	return thin(copies, fewCopies), nil
}

// push copies operands to a processor with memory of its own, where they stay.
func (ld *load) push(ctx context.Context, views []driver.View) error {
	return ld.lane.do(ctx, func() error {
		for i := range views {
			mirror, ok := views[i].Buffer.(driver.Mirror)
			if !ok {
				continue
			}
			if err := mirror.Push(views[i].Offset, int64(len(views[i].Bytes()))); err != nil {
				return err
			}
		}
		return nil
	})
}

// add compiles the graph with weights and loads it.
func (ld *load) add(ctx context.Context, compiler driver.Compiler, graph op.Graph, weights driver.Weights) error {
	lane := ld.lane
	return lane.do(ctx, func() error {
		target := driver.Target{Proc: lane.name, Options: lane.soc.Options}
		artifact, err := compiler.Compile(ctx, graph, weights, target)
		if err != nil {
			return err
		}
		start := lane.proc.Now()
		exe, err := lane.proc.Load(ctx, artifact, weights)
		if err != nil {
			return err
		}
		if len(ld.exes) == 0 {
			ld.loadNS = float64(lane.proc.Now() - start)
		}
		ld.exes = append(ld.exes, exe)
		return nil
	})
}

// weights returns the weights of the graph, and the offsets of the copies of the first one in its
// store. Only matrices have several copies.
func (r *runner) weights(ld *load, graph *op.Graph, footprint int64) (driver.Weights, []int64, error) {
	copies := []int64{0}
	if ld.lane.caps.Virtual {
		return nil, copies, nil
	}
	var out driver.Weights
	for i, spec := range graph.Weights {
		cold := int64(0)
		if ld.op.HasMatrix() && i == 0 {
			cold = footprint
		}
		var st *store
		var bytes int64
		var err error
		if ld.op.Kind == op.Estimate || ld.op.Kind == op.Select {
			st, bytes, err = r.stores.heads(ld.op)
		} else {
			st, bytes, err = r.stores.weights(spec, cold)
		}
		if err != nil {
			return nil, nil, err
		}
		ld.stores = append(ld.stores, st)
		packed := driver.Packed{Spec: spec, Bytes: st.region.Bytes()[:bytes:bytes]}
		if spec.Experts > 0 {
			packed.Stride = bytes / int64(spec.Experts)
		}
		out = append(out, packed)
		if cold > 0 {
			copies = st.slots(bytes, cold, max(1, maxCopies/choices(ld.op)))
		}
	}
	return out, copies, nil
}

// bindings places the operands of the graph in the lane's buffers, and caches for operators that
// have state. The scalars are those of the last chunk of a prompt that fills the operator's
// context.
func (r *runner) bindings(ld *load, graph *op.Graph, footprint int64) (driver.Bindings, [][2]driver.View, error) {
	operator, ops := ld.op, ld.lane.ops
	pos := 0
	if operator.Kind.Has("context") {
		pos = max(operator.Context-operator.M, 0)
	}
	rows := operator.M
	out := driver.Bindings{
		Scalars:    &driver.Scalars{Pos: pos, Rows: rows, KVLen: pos + rows, Seq: pos + rows},
		MaxContext: max(operator.Context, rows),
	}
	sequences := 1
	if operator.Batch { // every row is the last of its sequence
		sequences = rows
		for i := range rows {
			place := driver.Place{Sequence: i, Pos: max(operator.Context, 1) - 1}
			out.Scalars.Batch = append(out.Scalars.Batch, place)
		}
	}
	if ld.lane.caps.Virtual {
		return out, nil, nil // nothing is computed
	}
	var err error
	offsets := map[string]int64{}
	inPlace := len(graph.Inputs) == 1 && len(graph.Outputs) == 1 && graph.Inputs[0] == graph.Outputs[0]
	if inPlace {
		// Its own buffer: rotated again and again, the values stay of the same size.
		if out.In, err = ops.lay("in place ", graph.Inputs, offsets); err == nil {
			out.Out = out.In
		}
	} else if out.In, err = ops.lay("in ", graph.Inputs, offsets); err == nil {
		out.Out, err = ops.lay("out ", graph.Outputs, offsets)
	}
	if err == nil && operator.Kind == op.OutlierMatMul {
		out.In[0], err = ops.outliers(operator)
	}
	if err == nil && operator.Kind == op.SparseAttend {
		out.In[len(out.In)-1], err = ops.positions(operator, pos)
	}
	if ld.lane.caps.OwnMemory && !r.moves {
		// Operands stay on the processor: what copying them takes is the price of a link, for those that travel.
		out.Moves = &driver.Moves{Fetch: make([][]driver.Rect, len(out.In)), Hand: make([][]driver.Rect, len(out.Out))}
	}
	if err != nil || !graph.State() {
		return out, nil, err
	}
	out.Sequences = sequences
	out.SequenceBytes = int64(operator.KVHeads*out.MaxContext) * operator.KV.CacheRowBytes(operator.HeadDim)
	caches, err := r.caches(ld, &out, footprint)
	return out, caches, err
}

// lay places values one after the other in the buffers of a name, one buffer per type; offsets
// holds how far each buffer is used.
func (o *operands) lay(name string, values []op.Value, offsets map[string]int64) (views []driver.View, err error) {
	for _, value := range values {
		buffer := name + string(value.Type)
		bytes := int64(value.Rows) * int64(value.Cols) * int64(value.Type.Bytes())
		offset := offsets[buffer]
		offsets[buffer] = op.RoundUp(offset+bytes, 64)
		if _, err := o.buffer(buffer, value.Type, offset+bytes); err != nil {
			return nil, err
		}
		views = append(views, driver.View{
			Type: value.Type, Offset: offset, Rows: value.Rows, Cols: value.Cols, Stride: value.Cols,
		})
	}
	// Only now are the buffers as large as they get.
	for i := range views {
		views[i].Buffer = o.bufs[name+string(views[i].Type)]
	}
	return views, nil
}

// caches places pairs of key and value caches of all sequences in a store, as many as the footprint
// has room for.
func (r *runner) caches(ld *load, binds *driver.Bindings, footprint int64) (out [][2]driver.View, err error) {
	operator := ld.op
	each := op.RoundUp(int64(binds.Sequences)*binds.SequenceBytes, 64)
	if each > maxActivation {
		return nil, diag.New(diag.ClassInput, "cache of %s has %d bytes, want at most %d",
			operator.Key(), each, int64(maxActivation))
	}
	st, err := r.stores.cache(operator.KV, max(2*each, footprint))
	if err != nil {
		return nil, err
	}
	ld.stores = append(ld.stores, st)
	offsets := []int64{0}
	if footprint > 0 {
		offsets = st.slots(2*each, footprint, maxCopies)
	}
	for _, at := range offsets {
		element, cols := operator.KV.CacheRow(operator.HeadDim)
		keys := driver.View{
			Buffer: regionBuffer{st.region.Bytes()}, Type: element, Offset: at,
			Rows: operator.KVHeads * binds.MaxContext, Cols: cols, Stride: cols,
		}
		values := keys
		values.Offset += each
		out = append(out, [2]driver.View{keys, values})
	}
	return out, nil
}

// regionBuffer is memory of a store as a driver sees it.
type regionBuffer struct{ b []byte }

// Bytes is the memory of the whole store.
func (r regionBuffer) Bytes() []byte { return r.b }

// Close does nothing: the store frees its memory.
func (r regionBuffer) Close() error { return nil }

// A thread spins before a sample, because it has slept and its core may have lowered its clock,
// which does not happen to the lanes of a running model. Threads that help it have slept as well:
// those of a group of cores, which without being woken took up to 1.8 times as long.
// RATIONALE: How is a group of cores measured?
const (
	wakeTime  = 20_000 // ns
	wakeSpins = 5000   // cap, for clocks that stand still
)

// run executes the operator the given number of times on the lane's thread and returns nanoseconds
// per execution.
func (ld *load) run(times int) (float64, error) {
	proc := ld.lane.proc
	if !ld.lane.caps.Virtual {
		if rouser, ok := proc.(driver.Rouser); ok {
			rouser.Rouse()
		}
		begun := proc.Now()
		for i := 0; i < wakeSpins && proc.Now()-begun < wakeTime; i++ {
		}
	}
	if queue, ok := proc.(driver.Asynchronous); ok && !ld.lane.caps.Virtual {
		return ld.queued(queue, times)
	}
	start, evicting := proc.Now(), driver.Tick(0)
	for range times {
		// A pass over all copies begins: what the caches hold by now must go, and the reading is not counted.
		if ld.next == 0 && ld.evict != nil {
			began := proc.Now()
			sum(ld.evict)
			evicting += proc.Now() - began
		}
		if _, err := proc.Run(ld.exes[ld.next], &ld.binds[ld.next]); err != nil {
			return 0, err
		}
		if ld.next++; ld.next == len(ld.exes) {
			ld.next = 0
		}
	}
	return float64(proc.Now()-start-evicting) / float64(times), nil
}

// thin returns count of the copies, evenly spaced.
func thin(copies []int64, count int) []int64 {
	if len(copies) <= count {
		return copies
	}
	out := make([]int64, count)
	for i := range out {
		out[i] = copies[i*len(copies)/count]
	}
	return out
}

// close frees the executables, each once, and releases the stores.
func (ld *load) close(ctx context.Context) {
	if ld == nil {
		return
	}
	exes := slices.Compact(ld.exes)
	_ = ld.lane.do(context.WithoutCancel(ctx), func() error {
		for _, executable := range exes {
			executable.Close()
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

// sample executes the operator times times in a row on its lane.
func (a alone) sample(ctx context.Context, times int) (ns float64, err error) {
	err = a.lane.do(ctx, func() error {
		ns, err = a.run(times)
		return err
	})
	return ns, err
}

// refresh reads the operands through which the operator rotates. They then lie in the caches where
// a running model finds its own, whatever was measured meanwhile.
func (a alone) refresh(ctx context.Context, footprint int64) error {
	return a.lane.do(ctx, func() error {
		for _, st := range a.stores {
			data := st.region.Bytes()
			sum(data[:min(int64(len(data)), footprint)/512*512])
		}
		return nil
	})
}

// beside runs one operator while other processors are kept busy, by operators or by reading memory.
type beside struct {
	*load
	others []*load
	stream *streamPartner
}

// sample starts the others, waits until each has finished once, and stops them after its own runs.
// So every execution that counts had company from beginning to end.
func (b *beside) sample(ctx context.Context, times int) (ns float64, err error) {
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
		// all others are at work
		ns, err = b.run(times)
		return err
	})
	stop.Store(true)
	for _, wait := range waits {
		if failed := wait(); failed != nil && err == nil {
			err = failed
		}
	}
	if err == nil && failed.Load() {
		err = diag.New(diag.ClassRun, "a processor beside failed")
	}
	return ns, err
}

// close frees the executables of the measured operator and of its company.
func (b *beside) close(ctx context.Context) {
	b.load.close(ctx)
	for _, other := range b.others {
		other.close(ctx)
	}
}

// streamPartner reads memory on the cores of a processor while another one is measured.
type streamPartner struct {
	cores  []int
	memory []byte
	ws     *workers
}

// start begins to read, with one worker on each core.
func (s *streamPartner) start() (err error) {
	s.ws, err = startWorkers(s.cores, reading(s.memory, len(s.cores), sum))
	return err
}

// stop ends the workers.
func (s *streamPartner) stop() { s.ws.close() }

// loading measures Load itself.
type loading struct {
	r      *runner
	lane   *lane
	op     op.Op
	layout string
}

// sample loads and unloads the operator times times; compiling it is not counted.
func (s *loading) sample(ctx context.Context, times int) (float64, error) {
	total := 0.0
	for range times {
		ld, err := s.r.newLoad(ctx, s.lane, s.op, s.layout, 0)
		if err != nil {
			return 0, err
		}
		total += ld.loadNS
		ld.close(ctx)
	}
	return total / float64(times), nil
}

// close has nothing to free: sample has freed what it loaded.
func (s *loading) close(context.Context) {}

// given repeats a value that the SoC states: what the lanes of a simulated SoC cost each other is
// part of its description, and no processor executes it.
type given float64

// sample needs no measurement, so that all samples are equal.
func (g given) sample(context.Context, int) (float64, error) { return float64(g), nil }
func (g given) close(context.Context)                        {}

// copying measures a copy between two buffers, on the thread of the processor that needs the data.
type copying struct {
	lane     *lane
	dst, src []byte
}

// sample copies the whole buffer times times; the result is the time of one copy.
func (c *copying) sample(ctx context.Context, times int) (ns float64, err error) {
	err = c.lane.do(ctx, func() error {
		start := c.lane.proc.Now()
		for range times {
			copy(c.dst, c.src)
		}
		ns = float64(c.lane.proc.Now()-start) / float64(times)
		return nil
	})
	return ns, err
}

// close leaves the buffers to the stores.
func (c *copying) close(context.Context) {}

// streaming measures bandwidth with readers of its own, one per core; its samples are the time of
// bytes bytes.
type streaming struct {
	memory        []byte
	cores, beside []int
	bytes         int64
	window        time.Duration
}

// sample reads for a window of time, whatever the number of executions asked for.
func (s *streaming) sample(ctx context.Context, _ int) (float64, error) {
	xs, err := rates(ctx, s.cores, s.beside, 1, s.window, reading(s.memory, len(s.cores)+len(s.beside), sum))
	if err != nil {
		return 0, err
	}
	return float64(s.bytes) / xs[0], nil
}

// close leaves the memory to the runner, which all streams share.
func (s *streaming) close(context.Context) {}

// handing measures the hand-over of a flag between two cores.
type handing struct{ a, b int }

// sample passes the flag back and forth times times; the result is the time of one way.
func (h *handing) sample(ctx context.Context, times int) (float64, error) {
	_, xs, err := handover(ctx, h.a, h.b, 1, uint32(times))
	if err != nil {
		return 0, err
	}
	return xs[0], nil
}

// close has nothing to free: the threads end with each sample.
func (h *handing) close(context.Context) {}

// open prepares what a request needs.
func (r *runner) open(ctx context.Context, what *record.Measurement) (source, error) {
	switch what.Kind {
	case record.Op, record.Launch:
		return r.openOp(ctx, what)
	case record.Load:
		lane, err := r.lane(ctx, what.Proc, nil)
		if err != nil {
			return nil, err
		}
		return &loading{r, lane, *what.Op, what.Layout}, nil
	case record.Bandwidth:
		return r.openBandwidth(ctx, what)
	case record.Sync:
		return r.openSync(what)
	case record.Copy:
		return r.openCopy(ctx, what)
	}
	return nil, diag.New(diag.ClassInput, "measure: unknown kind %q", what.Kind)
}

// footprint is through how many bytes operands rotate; bytes is what the request states, 0 for
// nothing.
func (r *runner) footprint(cold bool, bytes int64) int64 {
	switch {
	case !cold:
		return 0
	case bytes > 0:
		return min(bytes, r.coldBytes)
	}
	return r.coldBytes
}

// openOp loads an operator and what runs beside it.
func (r *runner) openOp(ctx context.Context, what *record.Measurement) (source, error) {
	if r.virtual(what.Proc) {
		return r.openVirtual(ctx, what)
	}
	lane, err := r.lane(ctx, what.Proc, nil)
	if err != nil {
		return nil, err
	}
	ld, err := r.loadFor(ctx, lane, *what.Op, what.Layout, r.footprint(what.Cold, what.Footprint),
		len(what.Concurrent) > 0)
	if err != nil || len(what.Concurrent) == 0 {
		return alone{ld}, err
	}
	out := &beside{load: ld}
	for _, partner := range what.Concurrent {
		if err := r.soc.Concurrent(what.Proc, partner.Proc); err != nil {
			out.close(ctx)
			return nil, err
		}
		// A device reads memory by adding large matrices.
		if partner.Op == nil && !readsOnCores(r.soc.Processor(partner.Proc)) {
			operator := streamOp(false)
			partner.Op, partner.Layout = &operator, ""
		}
		// Readers of memory need no lane: one group of them reads on the cores of all partners.
		if partner.Op == nil {
			memory, err := r.stream()
			if err != nil {
				out.close(ctx)
				return nil, err
			}
			if out.stream == nil {
				out.stream = &streamPartner{memory: memory}
			}
			out.stream.cores = append(out.stream.cores, r.soc.Processor(partner.Proc).Cores...)
			continue
		}
		ol, err := r.lane(ctx, partner.Proc, nil)
		if err == nil {
			var other *load
			if other, err = r.loadFor(ctx, ol, *partner.Op, partner.Layout, r.footprint(partner.Cold, what.Footprint),
				true); err == nil {
				out.others = append(out.others, other)
			}
		}
		if err != nil {
			out.close(ctx)
			return nil, err
		}
	}
	return out, nil
}

// openVirtual is openOp on a processor with a virtual clock. Streams beside it are an option of its
// driver; operators side by side are run one after the other, and the driver then works out when
// each would have run.
func (r *runner) openVirtual(ctx context.Context, what *record.Measurement) (source, error) {
	var streams []string
	var partners []*load
	open := func(partner record.Partner) error {
		if partner.Op == nil {
			streams = append(streams, partner.Proc)
			return nil
		}
		lane, err := r.lane(ctx, partner.Proc, nil)
		if err != nil {
			return err
		}
		ld, err := r.newLoad(ctx, lane, *partner.Op, partner.Layout, 0)
		if err == nil {
			partners = append(partners, ld)
		}
		return err
	}
	closeAll := func() {
		for _, partner := range partners {
			partner.close(ctx)
		}
	}
	for _, partner := range what.Concurrent {
		if err := open(partner); err != nil {
			closeAll()
			return nil, err
		}
	}
	var options map[string]string
	if len(streams) > 0 {
		options = map[string]string{"beside": strings.Join(streams, ",")}
	}
	lane, err := r.lane(ctx, what.Proc, options)
	if err != nil {
		closeAll()
		return nil, err
	}
	ld, err := r.loadFor(ctx, lane, *what.Op, what.Layout, r.footprint(what.Cold, what.Footprint),
		len(what.Concurrent) > 0)
	switch {
	case err != nil:
		closeAll()
		return nil, err
	case len(partners) == 0:
		return alone{ld}, nil
	}
	return &settled{ld, partners}, nil
}

// settled runs one operator on a virtual clock while others repeat theirs.
type settled struct {
	*load
	others []*load
}

// sample runs each operator once, then lets the driver compute how long the first takes while the
// others repeat.
func (s *settled) sample(ctx context.Context, times int) (ns float64, err error) {
	loads := append([]*load{s.load}, s.others...)
	for range times {
		schedule := driver.Schedule{}
		for i, ld := range loads {
			proc, ok := ld.lane.proc.(driver.Virtual)
			if !ok {
				return 0, diag.New(diag.ClassRun, "measure side by side: processor %q does not tell what its calls did",
					ld.lane.name)
			}
			if _, err := (alone{ld}).sample(ctx, 1); err != nil {
				return 0, err
			}
			schedule.Lanes = append(schedule.Lanes, driver.ScheduleLane{Proc: proc,
				Calls: []driver.ScheduleCall{{Work: proc.Last()}}, Endless: i > 0})
		}
		if err := schedule.Lanes[0].Proc.(driver.Virtual).Settle(&schedule); err != nil {
			return 0, err
		}
		span := schedule.Lanes[0].Calls[0].Span
		ns += float64(span.End - span.Start)
	}
	return ns / float64(times), nil
}

// close frees the loads of the operator and of the others.
func (s *settled) close(ctx context.Context) {
	s.load.close(ctx)
	for _, other := range s.others {
		other.close(ctx)
	}
}

// streamOp measures the bandwidth of processors without readable cores: an addition of large
// matrices, which only moves memory. In virtual time it is so large that the launch does not count.
func streamOp(virtual bool) op.Op {
	operator := op.Op{Kind: op.Add, M: 2048, N: 4096}
	if virtual {
		operator.M = 1 << 22
	}
	return operator
}

// openBandwidth prepares reading memory; processors without readable cores add large matrices instead.
func (r *runner) openBandwidth(ctx context.Context, what *record.Measurement) (source, error) {
	proc := r.soc.Processor(what.Proc)
	if proc == nil {
		return nil, r.unknown(what.Proc)
	}
	if r.virtual(what.Proc) || !readsOnCores(proc) {
		operator := streamOp(r.virtual(what.Proc))
		own := *what
		own.Op, own.Layout = &operator, ""
		src, err := r.openOp(ctx, &own)
		if err != nil {
			return nil, err
		}
		return &scaled{src, float64(what.Bytes) / float64(operator.Bytes())}, nil
	}
	memory, err := r.stream()
	if err != nil {
		return nil, err
	}
	out := &streaming{memory: memory, cores: proc.Cores, bytes: what.Bytes, window: r.o.window}
	for _, partner := range what.Concurrent {
		if err := r.soc.Concurrent(what.Proc, partner.Proc); err != nil {
			return nil, err
		}
		if partner.Op != nil {
			return nil, diag.New(diag.ClassInput,
				"measure bandwidth of %q beside an operator: want beside reading memory", what.Proc)
		}
		other := r.soc.Processor(partner.Proc)
		if !readsOnCores(other) {
			return nil, diag.New(diag.ClassInfeasible,
				"measure bandwidth of %q beside %q, which is a device: that device is measured beside the cores instead",
				what.Proc, partner.Proc)
		}
		out.beside = append(out.beside, other.Cores...)
	}
	return out, nil
}

// scaled turns times of one amount of work into times of another.
type scaled struct {
	source
	factor float64
}

// sample is a sample of the source, multiplied.
func (s *scaled) sample(ctx context.Context, times int) (float64, error) {
	ns, err := s.source.sample(ctx, times)
	return ns * s.factor, err
}

// openSync prepares handing a flag from one processor's first core to the other's; a simulated SoC states the time.
// What the hand-over to a device with a queue takes, probe measures.
func (r *runner) openSync(what *record.Measurement) (source, error) {
	from, to := r.soc.Processor(what.Proc), r.soc.Processor(what.To)
	if from == nil {
		return nil, r.unknown(what.Proc)
	}
	if to == nil {
		return nil, r.unknown(what.To)
	}
	if err := r.soc.Concurrent(what.Proc, what.To); err != nil {
		return nil, err
	}
	queues := from.SingleQueue || to.SingleQueue // a device that is made of cores sets no flag on them
	if queues || r.virtual(what.Proc) || r.virtual(what.To) || len(from.Cores) == 0 || len(to.Cores) == 0 {
		link, ok := r.soc.Link(what.Proc, what.To)
		if !ok || !r.virtual(what.Proc) {
			return nil, diag.New(diag.ClassInput,
				"hand-over from %q to %q: it cannot be measured on these processors, and SoC %q does not state it",
				what.Proc, what.To, r.soc.Name)
		}
		return given(1e3 * link.HandoverUS), nil
	}
	return &handing{from.Cores[0], to.Cores[0]}, nil
}

// openCopy prepares copying between buffers of two processors, or of one; a simulated SoC states the speed.
func (r *runner) openCopy(ctx context.Context, what *record.Measurement) (source, error) {
	link, ok := r.soc.Link(what.Proc, what.To)
	if !r.virtual(what.Proc) && ok && link.CopyGBps > 0 { // into a memory that is not the host's: probe has measured it
		return given(1e3*link.CopyLaunchUS + float64(what.Bytes)/link.CopyGBps), nil
	}
	if r.virtual(what.Proc) {
		if !ok || link.CopyGBps <= 0 {
			return nil, diag.New(diag.ClassInput, "copy from %q to %q: SoC %q does not state its speed", what.Proc,
				what.To, r.soc.Name)
		}
		return given(1e3*link.CopyLaunchUS + float64(what.Bytes)/link.CopyGBps), nil
	}
	src, err := r.lane(ctx, what.Proc, nil)
	if err != nil {
		return nil, err
	}
	dst := src
	if what.To != "" {
		if dst, err = r.lane(ctx, what.To, nil); err != nil {
			return nil, err
		}
	}
	from, err := src.ops.buffer("copy from ", op.U8, what.Bytes)
	if err != nil {
		return nil, err
	}
	to, err := dst.ops.buffer("copy to ", op.U8, what.Bytes)
	if err != nil {
		return nil, err
	}
	return &copying{dst, to.Bytes()[:what.Bytes], from.Bytes()[:what.Bytes]}, nil
}
