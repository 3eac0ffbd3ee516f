package executor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// loader is the state of loading that the programs share.
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
	foreseen *prefetch // what Foresee began; nil: nothing
}

// compiledKey names a graph with compiled-in weights, in a layer; layer -1 means that its weights
// belong to no layer.
type compiledKey struct {
	graph string
	layer int
}

// compiledBlobs are the blobs of such a graph: its artifact, and the binary that the artifact refers
// to, "" for none.
type compiledBlobs struct{ artifact, shared string }

// newLoader finds out where the artifacts and weights of a plan are. It loads none.
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
				return diag.New(diag.ClassRun, "share the pool with processor %q: it computes on memory of its own, "+
					"and driver %q does not move values there", lane.name, m.plan.Proc(lane.name).Driver)
			}
			m.mirrors[lane.space] = mirror
		}
	}
	flags := 0
	for _, phase := range m.plan.Program.All() {
		pr := &program{PhaseProgram: phase}
		var err error
		if pr.ids, pr.logits, err = m.endBuffers(phase); err != nil {
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

// load makes a program executable unless it is already. No lane may be running.
func (m *Machine) load(ctx context.Context, pr *program) (err error) {
	if pr.sections != nil {
		return nil
	}
	if fault := mem.CatchFault(func() { err = m.loadSections(ctx, pr) }); fault != nil {
		return fmt.Errorf("load program %q: %w", pr.Name, fault)
	}
	return err
}

// loadSections loads the steps of all lanes in all layers. Their weights are prepared meanwhile, in the same order, so
// that little is left to load when the last of them are ready.
func (m *Machine) loadSections(ctx context.Context, pr *program) error {
	defer func(began time.Time) { m.loader.took += time.Since(began) }(time.Now())
	if coming := m.prefetchFor(ctx, pr); coming != nil {
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
	announceNext(sections)
	m.planMoves(pr)
	if m.spaces > 0 {
		pr.uses = m.headUses(pr)
	}
	return nil
}

// announceNext tells every call of a program which product its lane executes after it.
func announceNext(sections []*section) {
	next := map[*lane]driver.Executable{}
	for _, section := range slices.Backward(sections) {
		for iter := section.iters - 1; iter >= 0; iter-- {
			for _, ls := range section.lanes {
				for _, st := range slices.Backward(ls.steps) {
					made := &st.calls[iter]
					made.bind.Next = next[ls.lane]
					if made.exe != nil && slices.ContainsFunc(st.graph.Nodes, multiplies) {
						next[ls.lane] = made.exe
					}
				}
			}
		}
	}
}

// multiplies reports whether a node multiplies by a weight.
func multiplies(node op.Node) bool { return node.Op.HasScheme() }

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
	m.connectLanes(loaded)
	m.buildSchedule(loaded)
	return loaded, nil
}

// eachUnloaded calls visit for each part that a program reads and that has not been asked for yet, in the order of its
// steps.
func (m *Machine) eachUnloaded(pr *program, visit func(packKey, Part)) {
	seen := map[packKey]bool{}
	for i := range pr.PhaseProgram.Sections {
		section := &pr.PhaseProgram.Sections[i]
		for iter := range max(1, section.Layers) {
			for j := range section.Lanes {
				lane := &section.Lanes[j]
				if m.plan.Proc(lane.Proc).WeightsInArtifacts {
					continue // its weights are in no weights blob
				}
				for k := range lane.Steps {
					m.stepUnloaded(m.loader.lanes[lane.Proc], &lane.Steps[k], section.First+iter, seen, visit)
				}
			}
		}
	}
}

// stepUnloaded is eachUnloaded for one step in a layer. What was visited is in seen.
func (m *Machine) stepUnloaded(on *lane, step *planir.Step, layer int, seen map[packKey]bool,
	visit func(packKey, Part)) {
	weights := m.loader.weights
	for i, ref := range step.W {
		at, key := weights.place(ref.Pack, layer)
		if seen[key] || weights.bytes[key] != nil || weights.byRow[ref.Pack] ||
			m.readsTable(on, m.loader.graphs[step.Run], i, ref, at.Pack) {
			continue
		}
		seen[key] = true
		few := at.Pack.Layout == op.RowsLayout && at.Pack.Bytes > planir.TableStep
		visit(key, Part{at.blob, at.Offset, at.Pack.Bytes, few})
	}
}

// An embedding's table is read by rows if it has more bytes than minTableBytes and a call has at most maxTableRows
// tokens. With more of them it takes less time to check the table as a whole.
var minTableBytes, maxTableRows int64 = planir.TableStep, 64

// readsTable reports whether a step reads single rows of an embedding's table, each checked when a token first needs
// it. Where programs are loaded before they are needed, tables are checked with everything else.
// RATIONALE: Why do programs load on first use?
func (m *Machine) readsTable(on *lane, graph *planir.Graph, weight int, ref planir.WeightRef, table *planir.Pack) bool {
	reader, able := on.proc.(driver.TableReader)
	able = able && reader.ReadsTables()
	whole := ref.C0 == 0 && ref.C1 == table.Spec().N && ref.Tiers == 0
	return able && m.onDemand && whole && graph.Graph.ReadsTable(weight) && table.Bytes > minTableBytes &&
		int64(graph.Graph.Rows()) <= maxTableRows
}

// newStep returns a step of a lane's, whose calls are not loaded yet.
func (m *Machine) newStep(on *lane, from *planir.Step, section *section) *step {
	graph := m.loader.graphs[from.Run]
	st := &step{Step: from, section: section.Section, graph: &graph.Graph, rows: graph.Graph.Rows(),
		kind: mainOp(&graph.Graph).Kind, counts: graph.Graph.CountsRows()}
	if !on.virtual {
		st.estimateNS.Store(from.ExpectNS)
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
	if made.counts, err = m.newDispatchCount(program, st, layer, &made.bind); err != nil {
		return err
	}
	made.exe = exe
	return nil
}

// executable loads a graph with the weights of a step in a layer. Steps that read the same weights share it.
func (m *Machine) executable(ctx context.Context, on *lane, st *step, graph *planir.Graph,
	layer int) (driver.Executable, error) {
	loader, proc := &m.loader, m.plan.Proc(on.name)
	artifact := driver.Artifact{Driver: proc.Driver, Graph: &graph.Graph}
	var weights driver.Weights
	var key string // of the executable
	var err error
	if proc.WeightsInArtifacts {
		key, err = loader.readCompiled(&artifact, graph.Name, layer)
	} else {
		weights, key, err = m.readPacked(&artifact, on, st, graph, layer)
	}
	if err != nil {
		return nil, fmt.Errorf("load graph %q: %w", graph.Name, err)
	}
	if exe := loader.loaded[key]; exe != nil {
		return exe, nil
	}
	on.loads.Store(graph)
	exe, err := on.proc.Load(ctx, artifact, weights)
	on.loads.Store(nil)
	if err != nil {
		return nil, loadFailed(ctx, on, graph, err)
	}
	loader.loaded[key] = exe
	m.steps.Add(1) // the watchdog sees progress
	m.closers = append(m.closers, exe.Close)
	return exe, nil
}

// readCompiled reads the artifact of a graph whose weights are compiled in, so that each layer has its own. It returns
// the key of its executable. Of one that is loaded nothing is read.
func (l *loader) readCompiled(artifact *driver.Artifact, graph string, layer int) (key string, err error) {
	blobs, ok := l.compiled[compiledKey{graph, layer}]
	if !ok {
		blobs = l.compiled[compiledKey{graph, -1}]
	}
	key = "\x00" + blobs.artifact
	if l.loaded[key] != nil {
		return key, nil
	}
	if artifact.Code, err = l.src.Blob(blobs.artifact); err != nil {
		return "", err
	}
	if blobs.shared != "" {
		artifact.Shared, err = l.src.Blob(blobs.shared)
	}
	return key, err
}

// readPacked reads the artifact of a graph, which all layers share, and finds the packed weights of a step in a layer.
// It returns the key that executables of the same graph and weights have.
func (m *Machine) readPacked(artifact *driver.Artifact, on *lane, st *step, graph *planir.Graph, layer int) (
	weights driver.Weights, key string, err error) {
	loader := &m.loader
	var read bool
	if artifact.Code, read = loader.codes[graph.Artifact]; !read {
		if artifact.Code, err = loader.src.Blob(graph.Artifact); err != nil {
			return nil, "", err
		}
		loader.codes[graph.Artifact] = artifact.Code
	}
	table := func(weight int, packed *planir.Pack) bool {
		return m.readsTable(on, graph, weight, st.W[weight], packed)
	}
	weights, key, err = loader.weights.resolve(st.W, layer, table)
	return weights, graph.Name + "\x00" + key, err
}

// loadFailed returns the error of a driver that did not load a graph. It keeps the class of one about a thing that this
// machine lacks, or about an artifact of another graph.
func loadFailed(ctx context.Context, on *lane, graph *planir.Graph, err error) error {
	class := diag.ClassRun
	switch found := diag.ClassOf(err); found {
	case diag.ClassUnavailable, diag.ClassVerify:
		class = found
	}
	failed := diag.New(class, "load graph %q on processor %q: %w", graph.Name, on.name, err)
	if len(diag.HintsOf(err)) == 0 && ctx.Err() == nil {
		failed = failed.WithHint("where the artifact is damaged, or of another version of hetc, emit the bundle again")
	}
	return failed
}

// mainOp returns the operator that dominates the cost of a graph: a product, else attention, else the first one.
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

// checkIntact returns an error if the bytes that a call was computed with have changed meanwhile.
func (m *Machine) checkIntact() error {
	if m.loader.steady == nil {
		return nil
	}
	return m.loader.steady.Unchanged()
}

// LoadTime returns how long loading programs and checking their weights has taken so far.
func (m *Machine) LoadTime() time.Duration { return m.loader.took }

// bindings returns the operands of a step in a layer: windows of the pool, which all layers share, and
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
		bind.Sequences, bind.SequenceBytes = m.Sequences(), cache.SequenceBytes()
		element, cols := cache.Type.CacheRow(cache.HeadDim)
		heads := func(kv int) driver.View {
			return driver.View{
				Buffer: pool, Type: element, Offset: m.headOffset(0, layer, kv, st.Heads[0]),
				Rows: (st.Heads[1] - st.Heads[0]) * cache.MaxContext, Cols: cols, Stride: cols,
			}
		}
		bind.K, bind.V = heads(0), heads(1)
	}
	return bind
}
