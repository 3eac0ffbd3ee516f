package emit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// Event is progress of baking: all of it begins or ends (Groups is 0), or a group of graphs with the weights of a layer does.
// Groups are numbered in the plan's order; several are under way at once.
type Event struct {
	Group, Groups int
	Label         string   // "npu/layers.qkv, layer 3"
	Graphs        []string // names of the artifacts' blobs
	Done          bool
	Cached        bool  // no compiler ran
	Packed        bool  // its weights were packed, and its samples computed
	Err           error // why none of it, or not all of it, was made
}

// bakery is what baking needs beside the content, and what it has made for another round.
type compileOptions struct {
	compilers []driver.Compiler
	oracle    driver.Driver // nil: nothing is tried
	watch     func(Event)
	memo      Memo              // nil: everything is computed
	scratch   string            // where what was compiled waits for the bundle, "": among temporary files
	classes   map[string]string // of graphs, the name of the one that is tried
}

// bakingFor is what a processor's graphs are compiled for: the device where they share binaries, else its emulator.
func targetOf(q *planir.Proc) driver.Target {
	return driver.Target{Proc: q.Name, Options: q.Options, Emulator: !q.Shares}
}

// refusal is a graph that was not made, with the first layer for which that was so.
type refusal struct {
	graph  *planir.Graph
	layer  int
	reason error
}

// workers is how many groups are baked at once: a vendor's compiler uses one core for most of its time.
func workers() int { return min(runtime.GOMAXPROCS(0), 8) }

// bake makes the artifacts that hold weights. Graphs that are not made are returned by name, all of them; any other
// failure ends it.
func (c *Content) compileGroups(ctx context.Context, options *compileOptions) ([]refusal, error) {
	groups := c.plan.Bakings()
	if len(groups) == 0 {
		return nil, nil
	}
	byProcessor := map[string]driver.Baker{}
	for i := range groups {
		proc := c.plan.Proc(groups[i].Proc)
		compiler, err := compilerFor(proc, groups[i].Graphs[0].Name, options.compilers)
		if err != nil {
			return nil, err
		}
		groups, ok := compiler.(driver.Baker)
		if !ok {
			return nil, diag.New(diag.ClassIllegal, "compile for processor %q: its artifacts hold their weights, and those of compiler %q do not", proc.Name, compiler.Name())
		}
		byProcessor[proc.Name] = groups
	}
	var err error
	if c.scratch, err = os.MkdirTemp(options.scratch, "hetc-emit-"); err != nil {
		return nil, diag.New(diag.ClassIO, "make a directory for what is compiled: %w", err)
	}
	proof := newOracle(options.oracle)
	defer proof.close()
	options.classify(c.plan, groups)
	run := &groupCompiler{content: c, compileOptions: options, byProcessor: byProcessor, refused: map[string]*refusal{}, proof: proof, facts: make([]*groupFacts, len(groups))}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	orders := make(chan int)
	var wg sync.WaitGroup
	for range min(workers(), len(groups)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range orders {
				if err := run.compileGroup(ctx, i, len(groups), &groups[i]); err != nil {
					cancel(err)
				}
			}
		}()
	}
	for i := 0; i < len(groups) && ctx.Err() == nil; i++ {
		orders <- i
	}
	close(orders)
	wg.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	c.facts = run.facts
	var out []refusal
	for i := range c.plan.Program.Graphs {
		if refusal := run.refused[c.plan.Program.Graphs[i].Name]; refusal != nil {
			out = append(out, *refusal)
		}
	}
	return out, nil
}

// classify chooses which graph of every class is tried: the first one.
func (b *compileOptions) classify(p *planir.Plan, groups []planir.Baking) {
	b.classes = map[string]string{}
	first := map[string]string{}
	for i := range groups {
		for _, graph := range groups[i].Graphs {
			key := classOf(graph)
			if first[key] == "" {
				first[key] = planir.LayerBlob(graph.Artifact, groups[i].Layer)
			}
			b.classes[planir.LayerBlob(graph.Artifact, groups[i].Layer)] = first[key]
		}
	}
}

// classOf is equal for graphs of equal structure, shapes and schemes on one processor.
func classOf(g *planir.Graph) string {
	text, err := json.Marshal(g.Graph)
	if err != nil {
		panic("BUG: a valid graph does not encode: " + err.Error())
	}
	return g.Proc + "\x00" + string(text)
}

// round is one pass over all groups.
type groupCompiler struct {
	content *Content
	*compileOptions
	byProcessor map[string]driver.Baker
	proof       *oracle

	packing sync.Mutex // weights are packed, and samples made, for one group at a time: they use all cores

	mu      sync.Mutex
	refused map[string]*refusal // by graph
	facts   []*groupFacts
}

// groupFacts is what is known of a group that was made.
type groupFacts struct {
	group    planir.Baking
	compiler string
	token    string
	cached   bool
	shared   *blobFacts // nil: each holds its own
	graphs   []graphFacts
}

type blobFacts struct {
	name   string
	bytes  int64
	sha256 string
}

type graphFacts struct {
	blobFacts
	graph *planir.Graph
	facts map[string]int64
	twin  string
	tried string // the blob whose sample was executed, "" for none
	trial *trial // of this one, nil if another of its class was tried
}

// weighed are the packed weights of a group, and the samples of those of its graphs that are tried.
type packedGroup struct {
	region  *mem.Region
	weights driver.Weights
	samples []*sample // of each graph, nil for none
}

func (w *packedGroup) close() error {
	if w == nil {
		return nil
	}
	return w.region.Close()
}

// digests identify what a group reads.
type digests struct {
	Weights string   `json:"weights"`
	Samples []string `json:"samples"` // of each graph, "" for none
}

func (w *packedGroup) digests() digests {
	found := digests{Weights: w.weights.Digest()}
	for _, sample := range w.samples {
		if sample == nil {
			found.Samples = append(found.Samples, "")
		} else {
			found.Samples = append(found.Samples, driver.SampleDigest(sample.in))
		}
	}
	return found
}

// scales are what a group reads, packed when it is needed.
type lazyWeights struct {
	round   *groupCompiler
	group   *planir.Baking
	key     string
	digests digests
	once    sync.Once
	loaded  *packedGroup
	err     error
}

// errForgotten says that a memo does not fit what was made.
var errStaleMemo = errors.New("the memo is of other weights")

// scales returns those of a group, and its digests from the memo, for which the weights are not packed.
func (r *groupCompiler) weightsOf(ctx context.Context, g *planir.Baking) (*lazyWeights, error) {
	weights := &lazyWeights{round: r, group: g}
	var err error
	if weights.key, err = r.memoKey(g); err != nil {
		return nil, err
	}
	if r.memo != nil {
		if text, ok := r.memo.Recall(weights.key); ok && json.Unmarshal(text, &weights.digests) == nil && len(weights.digests.Samples) == len(g.Graphs) {
			return weights, nil
		}
	}
	weights.digests = digests{}
	packed, err := weights.packed(ctx)
	if err != nil {
		return nil, err
	}
	weights.digests = packed.digests()
	return weights, weights.remember()
}

func (s *lazyWeights) remember() error {
	if s.round.memo == nil {
		return nil
	}
	text, err := json.Marshal(s.digests)
	if err != nil {
		return err
	}
	return s.round.memo.Keep(s.key, text)
}

// weigh packs the weights, unless they are.
func (s *lazyWeights) packed(ctx context.Context) (*packedGroup, error) {
	s.once.Do(func() {
		s.round.packing.Lock()
		defer s.round.packing.Unlock()
		if s.err = ctx.Err(); s.err == nil {
			s.loaded, s.err = s.round.pack(ctx, s.group)
		}
		if s.err != nil || s.digests.Weights == "" {
			return
		}
		if found := s.loaded.digests(); found.Weights != s.digests.Weights || !slices.Equal(found.Samples, s.digests.Samples) {
			s.digests, s.err = found, errStaleMemo
		}
	})
	return s.loaded, s.err
}

// recipe names everything that decides what a group reads: the model with the calibration, and what of them is packed how.
// What packs them is the program, which the memo stands for.
func (r *groupCompiler) memoKey(group *planir.Baking) (string, error) {
	content := r.content
	digest, err := content.model.Digest()
	if err != nil {
		return "", err
	}
	list := []any{digest, content.plan.Calibration(), group.Layer, r.oracle != nil}
	for _, ref := range group.W {
		i := slices.IndexFunc(content.plan.Program.Packs, func(k planir.Pack) bool { return k.Name == ref.Pack })
		packing := &content.plan.Program.Packs[i]
		list = append(list, packing, content.weight(planir.Placement{Pack: packing}), ref)
	}
	for _, graph := range group.Graphs {
		name := planir.LayerBlob(graph.Artifact, group.Layer)
		list = append(list, &graph.Graph, r.classes[name] == name)
	}
	hash := sha256.New()
	if err := json.NewEncoder(hash).Encode(list); err != nil {
		return "", err
	}
	return "weights " + hex.EncodeToString(hash.Sum(nil)), nil
}

// weigh packs what a group reads.
func (r *groupCompiler) pack(ctx context.Context, group *planir.Baking) (_ *packedGroup, err error) {
	content := r.content
	packs := map[string]*planir.Pack{}
	for i := range content.plan.Program.Packs {
		packs[content.plan.Program.Packs[i].Name] = &content.plan.Program.Packs[i]
	}
	var size int64
	round := func(n int64) int64 { return (n + driver.Align - 1) / driver.Align * driver.Align }
	for _, ref := range group.W {
		size += round(packs[ref.Pack].Bytes)
	}
	packed := &packedGroup{}
	if packed.region, err = mem.Alloc(int(max(size, 1)), driver.Align); err != nil {
		return nil, diag.New(diag.ClassRun, "memory for the weights of %q: %w", group.Graphs[0].Name, err)
	}
	fail := func(err error) (*packedGroup, error) { return nil, errors.Join(err, packed.close()) }
	at := int64(0)
	for i, ref := range group.W {
		if err := ctx.Err(); err != nil {
			return fail(err)
		}
		packing := packs[ref.Pack]
		pl := planir.Placement{Pack: packing, Layer: group.Layer}
		if len(content.weight(pl).Layers) == 0 {
			pl.Layer = -1
		}
		bytes := packed.region.Bytes()[at : at+packing.Bytes]
		if err := content.pack(bytes, pl); err != nil {
			return fail(err)
		}
		spec := packing.Spec()
		spec.Name = group.Graphs[0].Graph.Weights[i].Name
		var stride int64
		if packing.Experts > 0 {
			stride = packing.Bytes / int64(packing.Experts)
		}
		packed.weights = append(packed.weights, driver.Packed{Spec: spec, Bytes: bytes, Stride: stride})
		at += round(packing.Bytes)
	}
	for _, graph := range group.Graphs {
		var s *sample
		if name := planir.LayerBlob(graph.Artifact, group.Layer); r.oracle != nil && r.classes[name] == name {
			if s, err = r.proof.sample(ctx, &graph.Graph, packed.weights); err != nil {
				return fail(fmt.Errorf("sample of graph %q: %w", graph.Name, err))
			}
		}
		packed.samples = append(packed.samples, s)
	}
	return packed, nil
}

func label(g *planir.Baking) string {
	name, _, _ := strings.Cut(g.Graphs[0].Name, "@")
	if g.Layer < 0 {
		return name
	}
	return fmt.Sprintf("%s, layer %d", name, g.Layer)
}

// group bakes one group. What its compiler refuses is noted; an error is anything else.
func (r *groupCompiler) compileGroup(ctx context.Context, i, of int, group *planir.Baking) (err error) {
	if ctx.Err() != nil {
		return nil
	}
	weights, err := r.weightsOf(ctx, group)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, weights.loaded.close()) }()
	if err = r.compileOnce(ctx, i, of, group, weights); errors.Is(err, errStaleMemo) {
		if err = weights.remember(); err == nil {
			weights.err = nil
			err = r.compileOnce(ctx, i, of, group, weights)
		}
	}
	return err
}

// bakeGroup is group with what it reads.
func (r *groupCompiler) compileOnce(ctx context.Context, i, of int, group *planir.Baking, weights *lazyWeights) error {
	event := Event{Group: i, Groups: of, Label: label(group)}
	// A graph that another layer's weights could not be compiled into is not tried again.
	var graphs []*planir.Graph
	var pieces []driver.Piece
	var places []int // of graphs among those of the group
	r.mu.Lock()
	for at, graph := range group.Graphs {
		if refusal := r.refused[graph.Name]; refusal != nil && refusal.layer < group.Layer {
			continue
		}
		name := planir.LayerBlob(graph.Artifact, group.Layer)
		later := &driver.Later{Weights: weights.digests.Weights, Sample: weights.digests.Samples[at], Make: func() (driver.Weights, [][]byte, error) {
			packed, err := weights.packed(ctx)
			if err != nil {
				return nil, nil, err
			}
			var in [][]byte
			if tried := packed.samples[at]; tried != nil {
				in = tried.in
			}
			return named(packed.weights, graph.Graph.Weights), in, nil
		}}
		graphs, pieces, places = append(graphs, graph), append(pieces, driver.Piece{Name: name, Graph: graph.Graph, Later: later}), append(places, at)
		event.Graphs = append(event.Graphs, name)
	}
	r.mu.Unlock()
	if len(pieces) == 0 {
		return nil
	}
	r.tell(event)
	event.Done = true
	compiled, err := r.byProcessor[group.Proc].Bake(ctx, pieces, targetOf(r.content.plan.Proc(group.Proc)))
	if ctx.Err() != nil {
		return nil // whoever ended it says why
	}
	if weights.err != nil {
		return weights.err
	}
	var refused *driver.Refused
	switch {
	case errors.As(err, &refused):
		for at, piece := range refused.Pieces {
			r.refuse(graphs[piece], group.Layer, refused.Reasons[at])
		}
	case err != nil && concernsAll(err):
		event.Err = err
		r.tell(event)
		return err
	case err != nil:
		for _, graph := range graphs {
			r.refuse(graph, group.Layer, err)
		}
	}
	if err != nil {
		event.Err = err
		r.tell(event)
		return nil
	}
	if len(compiled.Artifacts) != len(pieces) || (compiled.Shared != nil) != (group.Context != "") {
		return diag.New(diag.ClassInternal, "compile %s: %d artifacts with a shared binary: %v, want %d: %v", event.Label, len(compiled.Artifacts), compiled.Shared != nil, len(pieces), group.Context != "")
	}
	facts := &groupFacts{group: *group, compiler: compiled.Compiler, token: compiled.Token, cached: compiled.Cached}
	facts.group.Graphs = graphs
	if group.Context != "" {
		blob, err := r.keep(planir.LayerBlob(group.Context, group.Layer), group.Proc, compiled.Shared)
		if err != nil {
			return err
		}
		facts.shared = &blob
	}
	for at := range compiled.Artifacts {
		artifact := &compiled.Artifacts[at]
		blob, err := r.keep(pieces[at].Name, group.Proc, artifact.Code)
		if err != nil {
			return err
		}
		gf := graphFacts{blobFacts: blob, graph: graphs[at], facts: artifact.Facts, twin: artifact.Twin}
		if r.oracle != nil {
			gf.tried = r.classes[pieces[at].Name]
		}
		if weights.digests.Samples[places[at]] != "" {
			if gf.trial, err = weights.judge(ctx, places[at], artifact); err != nil {
				if weights.err != nil {
					return weights.err
				}
				r.refuse(graphs[at], group.Layer, err)
				event.Err = err
			}
		}
		facts.graphs = append(facts.graphs, gf)
	}
	r.facts[i] = facts
	event.Cached, event.Packed = compiled.Cached, weights.loaded != nil
	r.tell(event)
	return nil
}

// judge compares what was computed of the sample of the group's graph k. The errors of a graph within its bound are remembered,
// so that the reference is not computed again.
func (s *lazyWeights) judge(ctx context.Context, at int, artifact *driver.BakedArtifact) (*trial, error) {
	graph := &s.group.Graphs[at].Graph
	key := fmt.Sprintf("trial %d of %s on %s and %s", at, s.key, driver.SampleDigest(artifact.Emulated), driver.SampleDigest(artifact.Portable))
	if s.round.memo != nil {
		var known [2]float64
		if text, ok := s.round.memo.Recall(key); ok && json.Unmarshal(text, &known) == nil {
			remembered := &trial{known[0], known[1], boundOf(graph)}
			return remembered, remembered.err()
		}
	}
	packed, err := s.packed(ctx)
	if err != nil {
		return nil, err
	}
	trial, err := packed.samples[at].judge(graph, artifact)
	if err != nil || s.round.memo == nil {
		return trial, err
	}
	text, err := json.Marshal([2]float64{trial.float, trial.portable})
	if err == nil {
		err = s.round.memo.Keep(key, text)
	}
	if err != nil {
		s.err = err // no fault of the graph
	}
	return trial, err
}

// concernsAll reports an error that no other processor helps against.
func concernsAll(err error) bool {
	switch diag.ClassOf(err) {
	case diag.ClassUnavailable, diag.ClassIO, diag.ClassInterrupted, diag.ClassUsage:
		return true
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func (r *groupCompiler) tell(e Event) {
	if r.watch != nil {
		r.watch(e)
	}
}

func (r *groupCompiler) refuse(g *planir.Graph, layer int, reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if earlier := r.refused[g.Name]; earlier == nil || layer < earlier.layer {
		r.refused[g.Name] = &refusal{graph: g, layer: layer, reason: reason}
	}
}

// keep writes a blob to the scratch directory.
func (r *groupCompiler) keep(name, proc string, code []byte) (blobFacts, error) {
	sum := sha256.Sum256(code)
	made := artifact{proc: proc, bytes: int64(len(code)), file: filepath.Join(r.content.scratch, strings.ReplaceAll(name, "/", "-"))}
	if err := os.WriteFile(made.file, code, 0o600); err != nil {
		return blobFacts{}, diag.New(diag.ClassIO, "keep what was compiled: %w", err).WithHint("it needs room for all graphs, which is in the cache ($HETC_CACHE names another), or without one among temporary files (TMPDIR)")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.content.artifacts[name] = made
	return blobFacts{name: name, bytes: made.bytes, sha256: hex.EncodeToString(sum[:])}, nil
}

// named are weights under the names that a graph has for them.
func named(w driver.Weights, specs []op.WeightSpec) driver.Weights {
	out := slices.Clone(w)
	for i := range out {
		out[i].Spec.Name = specs[i].Name
	}
	return out
}

// content makes everything that is written: of the plan itself, or of what it becomes for the target. The report is nil when
// nothing is baked.
func (o *Options) content(ctx context.Context) (*Content, *Report, error) {
	options := &compileOptions{compilers: o.Compilers, oracle: o.Oracle, watch: o.Watch, memo: o.Memo, scratch: o.Scratch}
	announce := func(done bool) {
		if options.watch != nil {
			options.watch(Event{Done: done})
		}
	}
	graph := o.Model.Graph()
	var fallen []planir.Fallback
	for {
		plan := o.Plan
		var bad []misfit
		if o.Target != nil {
			var err error
			if plan, bad, err = retarget(o.Plan, &graph, o.Target, fallen); err != nil {
				return nil, nil, err
			}
		}
		var content *Content
		if len(bad) == 0 {
			if o.Target != nil {
				if err := check.Plan(plan, o.Model, nil).Err(); err != nil {
					return nil, nil, fmt.Errorf("emit for target %q: %w", o.Target.SoC, err)
				}
			}
			var err error
			if content, err = newContent(plan, o.Model, o.Calibration); err != nil {
				return nil, nil, err
			}
			if err = content.compile(ctx, o.Compilers); err != nil {
				return nil, nil, errors.Join(err, content.Close())
			}
			announce(false)
			refused, err := content.compileGroups(ctx, options)
			announce(true)
			if err != nil {
				return nil, nil, errors.Join(err, content.Close())
			}
			if len(refused) == 0 {
				report, err := content.report(o)
				if err != nil {
					return nil, nil, errors.Join(err, content.Close())
				}
				return content, report, nil
			}
			for i := range refused {
				bad = append(bad, decisionsOf(plan, &refused[i])...)
			}
			if err := content.Close(); err != nil {
				return nil, nil, err
			}
		}
		more, err := o.fallBack(&graph, bad, fallen)
		if err != nil {
			return nil, nil, err
		}
		fallen = more
	}
}

// decisionsOf are the decisions whose steps run a graph that was refused.
func decisionsOf(plan *planir.Plan, refused *refusal) (out []misfit) {
	layers := ""
	if refused.layer >= 0 {
		layers = fmt.Sprintf(" with the weights of layer %d", refused.layer)
	}
	for i := range plan.Program.Programs {
		ph := &plan.Program.Programs[i]
		for _, section := range ph.Sections {
			for _, lane := range section.Lanes {
				for _, st := range lane.Steps {
					if st.Run != refused.graph.Name {
						continue
					}
					for _, node := range st.Nodes() {
						decision := plan.DecisionFor(node, ph.Rows)
						if decision == nil {
							decision = plan.DecisionFor(node, 1) // the head
						}
						if decision != nil && !slices.ContainsFunc(out, func(m misfit) bool { return m.decision == decision }) {
							out = append(out, misfit{decision: decision, what: fmt.Sprintf("graph %q%s", refused.graph.Name, layers), proc: refused.graph.Proc, reason: refused.reason})
						}
					}
				}
			}
		}
	}
	return out
}

// fallBack gives decisions to the control processor if that is allowed and it executes them, and otherwise is the error that
// lists them all.
func (o *Options) fallBack(g *models.Graph, bad []misfit, fallen []planir.Fallback) ([]planir.Fallback, error) {
	control := o.Plan.SoC.Control
	procs := o.Plan.Procs
	if o.Target != nil {
		procs = o.Target.Procs
	}
	kinds := kindsOf(g)
	var list diag.List
	said := map[string]bool{}
	more := slices.Clone(fallen)
	for _, misfit := range bad {
		decision := misfit.decision
		others := able(procs, decision, kinds[decision.Node], misfit.proc)
		helps := slices.Contains(others, fmt.Sprintf("%q", control)) && misfit.proc != control
		again := slices.ContainsFunc(fallen, func(f planir.Fallback) bool { return f.Node == decision.Node && f.Rows == decision.Rows })
		if o.AllowFallback && o.Target != nil && helps && !again {
			original := o.Plan.DecisionFor(decision.Node, decision.Rows)
			more = append(more, planir.Fallback{Node: decision.Node, Rows: decision.Rows, From: original.ShareText(), Reason: oneLine(misfit.reason)})
			continue
		}
		if said[misfit.what] {
			continue
		}
		said[misfit.what] = true
		way := "no other processor of the plan executes it"
		if len(others) > 0 {
			way = "could be executed by " + strings.Join(others, ", ")
		}
		problem := diag.New(diag.ClassOr(misfit.reason, diag.ClassInfeasible), "emit %s for processor %q: %w; %s", misfit.what, misfit.proc, misfit.reason, way)
		if helps && o.Target != nil {
			_ = problem.WithHint("--allow-fallback gives such operators to %q, and says so in the plan and the report; or solve again without them on %q", control, misfit.proc)
		}
		list = append(list, problem)
	}
	if len(list) > 0 {
		return nil, list.Err()
	}
	slices.SortFunc(more, func(a, b planir.Fallback) int {
		at := func(f planir.Fallback) int {
			return slices.IndexFunc(o.Plan.Decisions, func(d planir.Decision) bool { return d.Node == f.Node && d.Rows == f.Rows })
		}
		return at(a) - at(b)
	})
	return more, nil
}

// kindsOf are the kinds of the operators that nodes are made of, by the names that decisions have for them.
func kindsOf(g *models.Graph) map[string][]op.Kind {
	out := map[string][]op.Kind{}
	for _, section := range g.Sections {
		for _, node := range section.Nodes {
			name := section.Name + "." + node.Name
			for _, operator := range node.Ops {
				out[name] = append(out[name], operator.Kind)
			}
			for _, quant := range lower.Quantising(name) {
				out[quant] = []op.Kind{op.QuantRows}
			}
		}
	}
	return out
}

// oneLine is an error as a plan records it: printable, of one line, and not too long.
func oneLine(err error) string {
	const most = 300
	text := strings.Join(strings.Fields(err.Error()), " ")
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	if len(text) > most {
		text = text[:most-3] + "..."
	}
	return text
}
