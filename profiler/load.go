package profiler

import (
	"context"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
)

// maxCopies bounds how many sets of bindings rotate through cold operands.
const maxCopies = 1024

// loadedOp is an operator that is ready to run on a lane: one executable per copy of its weights, and
// bindings that rotate through the copies.
type loadedOp struct {
	lane   *lane
	op     op.Op
	glu    *op.Op // the gated linear unit that it ends with, nil: none
	member groupMember
	// exes and binds correspond: each execution uses the pair at next, and moves on.
	exes   []driver.Executable
	binds  []driver.Bindings
	next   int
	stores []*store
	loadNS float64 // time of the first Load

	// evict is read before every pass over the copies, outside the measured time. Weights are then
	// cold although the copies are few.
	evict []byte

	callNS float64 // of an asynchronous processor: what a call took in the latest sample
}

// Numbers of copies of the weights for processors that store their own: loading takes long, and
// memory twice.
const (
	fewCopies  = 3  // of an operator alone, with what else lies in the caches evicted before each pass over them
	someCopies = 64 // of operators side by side, whose company must not stop
)

// loadOp compiles an operator and loads it on a lane. Its weights or cache rotate through
// footprint bytes; 0 means one copy.
func (r *runner) loadOp(
	ctx context.Context, lane *lane, operator op.Op, layout string, footprint int64,
) (*loadedOp, error) {
	return r.loadInGroup(ctx, lane, operator, layout, footprint, alone)
}

// groupMember is one of several operators that are measured side by side: its number, and how many they are. Each has
// weights and caches of its own. Otherwise it would find in a shared cache what another one has just read.
type groupMember struct{ number, operators int }

var alone = groupMember{number: 0, operators: 1}

// loadInGroup is loadOp for a member of a group, whose operators share the footprint.
func (r *runner) loadInGroup(
	ctx context.Context, lane *lane, operator op.Op, layout string, footprint int64, beside groupMember,
) (*loadedOp, error) {
	return r.loaded(ctx, &loadedOp{lane: lane, op: operator, member: beside}, layout, footprint)
}

// loadMeasured is loadInGroup for what is to be measured.
func (r *runner) loadMeasured(
	ctx context.Context, lane *lane, what *record.Measurement, beside groupMember,
) (*loadedOp, error) {
	ld := &loadedOp{lane: lane, op: *what.Op, glu: what.GLU, member: beside}
	return r.loaded(ctx, ld, what.Layout, r.footprint(what.Cold, what.Footprint))
}

// loaded returns ld with its copies, or frees them if one cannot be loaded.
func (r *runner) loaded(ctx context.Context, ld *loadedOp, layout string, footprint int64) (*loadedOp, error) {
	if err := r.loadCopies(ctx, ld, layout, footprint); err != nil {
		ld.close(ctx)
		return nil, err
	}
	r.loads += len(ld.exes)
	return ld, nil
}

// loadCopies lays out the operands and loads every copy.
func (r *runner) loadCopies(ctx context.Context, ld *loadedOp, layout string, footprint int64) error {
	lane := ld.lane
	graph := op.Single(ld.op, layout)
	if ld.glu != nil {
		graph = op.Gated(ld.op, *ld.glu, layout)
	}
	if err := lane.caps.Supports(ld.op); err != nil {
		return diag.New(diag.ClassInfeasible, "%s on processor %q: %w", ld.op.Key(), lane.name, err)
	}
	compiler := r.options.Compilers[lane.soc.Driver]
	if compiler == nil {
		return diag.New(diag.ClassUnavailable, "measure on processor %q: no compiler for driver %q in this build",
			lane.name, lane.soc.Driver)
	}
	weights, copies, err := r.weights(ld, &graph, footprint)
	if err != nil {
		return err
	}
	if copies, err = r.reduceCopies(ld, copies, footprint); err != nil {
		return err
	}
	views, caches, err := r.bindings(ld, &graph, footprint)
	if err == nil {
		err = ld.copyToDevice(ctx, views.In)
	}
	if err != nil {
		return err
	}
	experts, err := ld.expertChoices(footprint)
	if err != nil {
		return err
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
		if err := ld.loadCopy(ctx, compiler, graph, ld.weightsOfCopy(weights, copies[i/each], i)); err != nil {
			return err
		}
	}
	if lane.caps.Prepacks {
		return ld.runEachOnce(ctx)
	}
	return nil
}

// runEachOnce executes every copy but the first once. A library may allocate memory in the first execution of a graph.
// That memory lies on pages that were never used, while those of a running model were.
func (ld *loadedOp) runEachOnce(ctx context.Context) error {
	return ld.lane.do(ctx, func() error {
		for i := 1; i < len(ld.exes); i++ {
			if _, err := ld.lane.proc.Run(ld.exes[i], &ld.binds[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// expertChoices returns the operands that choose experts, for products of experts on a real processor; nil for all
// others. Without a footprint there is one choice, so that the weights are as warm as they can be.
func (ld *loadedOp) expertChoices(footprint int64) ([]driver.View, error) {
	if ld.op.Kind != op.ExpertMatMul || ld.lane.caps.Virtual {
		return nil, nil
	}
	choices, err := ld.lane.ops.experts(ld.op)
	if err == nil && footprint == 0 {
		choices = choices[:1]
	}
	return choices, err
}

// weightsOfCopy returns the weights with the first one at an offset of its store. A library that packs weights again
// may keep equal ones once. There each copy gets its number in the lowest bits, which change no value much.
func (ld *loadedOp) weightsOfCopy(weights driver.Weights, at int64, number int) driver.Weights {
	packed := slices.Clone(weights)
	if len(packed) == 0 {
		return packed
	}
	bytes := int64(len(packed[0].Bytes))
	packed[0].Bytes = ld.stores[0].region.Bytes()[at : at+bytes : at+bytes]
	if ld.lane.caps.Prepacks {
		packed[0].Bytes[0], packed[0].Bytes[1] = byte(number), byte(number>>8)
	}
	return packed
}

// reduceCopies reduces the number of copies if a processor stores a copy of its own of each. An operator that is
// measured alone then reads other memory between passes, which evicts the copies from the caches. Beside other
// processors that would disturb them, so more copies are kept instead.
func (r *runner) reduceCopies(ld *loadedOp, copies []int64, footprint int64) ([]int64, error) {
	if !ld.lane.caps.Prepacks || len(copies) <= fewCopies {
		return copies, nil
	}
	if ld.member != alone {
		return evenlySpaced(copies, someCopies), nil
	}
	evict, err := r.stream()
	if err != nil {
		return nil, err
	}
	ld.evict = evict[:min(int64(len(evict)), footprint)/512*512]
	return evenlySpaced(copies, fewCopies), nil
}

// copyToDevice copies operands to a processor with memory of its own, where they stay.
func (ld *loadedOp) copyToDevice(ctx context.Context, views []driver.View) error {
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

// loadCopy compiles the graph with weights and loads it.
func (ld *loadedOp) loadCopy(
	ctx context.Context, compiler driver.Compiler, graph op.Graph, weights driver.Weights,
) error {
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
func (r *runner) weights(ld *loadedOp, graph *op.Graph, footprint int64) (driver.Weights, []int64, error) {
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
			st, bytes, err = r.stores.weights(spec, cold, ld.member.operators)
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
			copies = st.slots(bytes, cold, max(1, maxCopies/choices(ld.op)), ld.member)
		}
	}
	return out, copies, nil
}

// bindings places the operands of the graph in the lane's buffers, and caches for operators that
// have state. The scalars are those of the last chunk of a prompt that fills the operator's
// context.
func (r *runner) bindings(ld *loadedOp, graph *op.Graph, footprint int64) (driver.Bindings, [][2]driver.View, error) {
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
		if out.In, err = ops.layOut("in place ", graph.Inputs, offsets); err == nil {
			out.Out = out.In
		}
	} else if out.In, err = ops.layOut("in ", graph.Inputs, offsets); err == nil {
		out.Out, err = ops.layOut("out ", graph.Outputs, offsets)
	}
	if err == nil && operator.Kind == op.OutlierMatMul {
		out.In[0], err = ops.outliers(operator)
	}
	if err == nil && operator.Kind == op.SparseAttend {
		out.In[len(out.In)-1], err = ops.positions(operator, pos)
	}
	if ld.lane.caps.OwnMemory && !r.copyOperands {
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

// layOut places values one after the other in the buffers of a name, one buffer per type; offsets
// holds how far each buffer is used.
func (o *operands) layOut(name string, values []op.Value, offsets map[string]int64) (views []driver.View, err error) {
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
func (r *runner) caches(ld *loadedOp, binds *driver.Bindings, footprint int64) (out [][2]driver.View, err error) {
	operator := ld.op
	each := op.RoundUp(int64(binds.Sequences)*binds.SequenceBytes, 64)
	if each > maxActivation {
		return nil, diag.New(diag.ClassInput, "cache of %s has %d bytes, want at most %d",
			operator.Key(), each, int64(maxActivation))
	}
	st, err := r.stores.cache(operator.KV, max(2*each*int64(ld.member.operators), footprint))
	if err != nil {
		return nil, err
	}
	ld.stores = append(ld.stores, st)
	offsets := []int64{0}
	if footprint > 0 {
		offsets = st.slots(2*each, footprint, maxCopies, ld.member)
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

// Bytes returns the memory of the whole store.
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

// run executes the operator the given number of times on the lane's thread and returns nanoseconds per execution.
// Before that it wakes the processor's threads.
func (ld *loadedOp) run(times int) (float64, error) {
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
		return ld.runQueued(queue, times)
	}
	start, uncounted := proc.Now(), driver.Tick(0)
	for range times {
		// A pass over all copies begins: what the caches hold by now must go.
		if ld.next == 0 && ld.evict != nil {
			began := proc.Now()
			readMemory(ld.evict)
			if err := ld.runOnce(proc); err != nil {
				return 0, err
			}
			uncounted += proc.Now() - began
		}
		if err := ld.runOnce(proc); err != nil {
			return 0, err
		}
	}
	return float64(proc.Now()-start-uncounted) / float64(times), nil
}

// startNoise has times on a virtual clock begin a sequence of noise.
func (ld *loadedOp) startNoise(sequence string) {
	proc, ok := ld.lane.proc.(driver.Virtual)
	if !ok {
		return
	}
	for _, exe := range slices.Compact(slices.Clone(ld.exes)) {
		proc.Draw(exe, sequence)
	}
}

// runOnce executes the operator with the next copy of its operands.
func (ld *loadedOp) runOnce(proc driver.Processor) error {
	_, err := proc.Run(ld.exes[ld.next], &ld.binds[ld.next])
	if ld.next++; ld.next == len(ld.exes) {
		ld.next = 0
	}
	return err
}

// evenlySpaced returns count of the copies, evenly spaced.
func evenlySpaced(copies []int64, count int) []int64 {
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
func (ld *loadedOp) close(ctx context.Context) {
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
