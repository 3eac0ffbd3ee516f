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
type bakery struct {
	compilers []driver.Compiler
	oracle    driver.Driver // nil: nothing is tried
	watch     func(Event)
	memo      Memo              // nil: everything is computed
	scratch   string            // where what was compiled waits for the bundle, "": among temporary files
	classes   map[string]string // of graphs, the name of the one that is tried
}

// bakingFor is what a processor's graphs are compiled for: the device where they share binaries, else its emulator.
func bakingFor(q *planir.Proc) driver.Target {
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
func (c *Content) bake(ctx context.Context, b *bakery) ([]refusal, error) {
	groups := c.plan.Bakings()
	if len(groups) == 0 {
		return nil, nil
	}
	bakers := map[string]driver.Baker{}
	for i := range groups {
		q := c.plan.Proc(groups[i].Proc)
		k, err := compilerFor(q, groups[i].Graphs[0].Name, b.compilers)
		if err != nil {
			return nil, err
		}
		baker, ok := k.(driver.Baker)
		if !ok {
			return nil, diag.New(diag.ClassIllegal, "compile for processor %q: its artifacts hold their weights, and those of compiler %q do not", q.Name, k.Name())
		}
		bakers[q.Name] = baker
	}
	var err error
	if c.scratch, err = os.MkdirTemp(b.scratch, "hetc-emit-"); err != nil {
		return nil, diag.New(diag.ClassIO, "make a directory for what is compiled: %w", err)
	}
	proof := newProof(b.oracle)
	defer proof.close()
	b.classify(c.plan, groups)
	r := &round{content: c, bakery: b, bakers: bakers, refused: map[string]*refusal{}, proof: proof, facts: make([]*groupFacts, len(groups))}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	orders := make(chan int)
	var wg sync.WaitGroup
	for range min(workers(), len(groups)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range orders {
				if err := r.group(ctx, i, len(groups), &groups[i]); err != nil {
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
	c.facts = r.facts
	var out []refusal
	for i := range c.plan.Program.Graphs {
		if x := r.refused[c.plan.Program.Graphs[i].Name]; x != nil {
			out = append(out, *x)
		}
	}
	return out, nil
}

// classify chooses which graph of every class is tried: the first one.
func (b *bakery) classify(p *planir.Plan, groups []planir.Baking) {
	b.classes = map[string]string{}
	first := map[string]string{}
	for i := range groups {
		for _, g := range groups[i].Graphs {
			key := classOf(g)
			if first[key] == "" {
				first[key] = planir.LayerBlob(g.Artifact, groups[i].Layer)
			}
			b.classes[planir.LayerBlob(g.Artifact, groups[i].Layer)] = first[key]
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
type round struct {
	content *Content
	*bakery
	bakers map[string]driver.Baker
	proof  *proof

	weighing sync.Mutex // weights are packed, and samples made, for one group at a time: they use all cores

	mu      sync.Mutex
	refused map[string]*refusal // by graph
	facts   []*groupFacts
}

// groupFacts is what is known of a group that was made.
type groupFacts struct {
	baking   planir.Baking
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
type weighed struct {
	region  *mem.Region
	weights driver.Weights
	samples []*sample // of each graph, nil for none
}

func (w *weighed) close() error {
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

func (w *weighed) digests() digests {
	d := digests{Weights: w.weights.Digest()}
	for _, s := range w.samples {
		if s == nil {
			d.Samples = append(d.Samples, "")
		} else {
			d.Samples = append(d.Samples, driver.SampleDigest(s.in))
		}
	}
	return d
}

// scales are what a group reads, packed when it is needed.
type scales struct {
	round  *round
	group  *planir.Baking
	key    string
	known  digests
	once   sync.Once
	loaded *weighed
	err    error
}

// errForgotten says that a memo does not fit what was made.
var errForgotten = errors.New("the memo is of other weights")

// scales returns those of a group, and its digests from the memo, for which the weights are not packed.
func (r *round) scales(ctx context.Context, g *planir.Baking) (*scales, error) {
	s := &scales{round: r, group: g}
	var err error
	if s.key, err = r.recipe(g); err != nil {
		return nil, err
	}
	if r.memo != nil {
		if text, ok := r.memo.Recall(s.key); ok && json.Unmarshal(text, &s.known) == nil && len(s.known.Samples) == len(g.Graphs) {
			return s, nil
		}
	}
	s.known = digests{}
	w, err := s.weigh(ctx)
	if err != nil {
		return nil, err
	}
	s.known = w.digests()
	return s, s.remember()
}

func (s *scales) remember() error {
	if s.round.memo == nil {
		return nil
	}
	text, err := json.Marshal(s.known)
	if err != nil {
		return err
	}
	return s.round.memo.Keep(s.key, text)
}

// weigh packs the weights, unless they are.
func (s *scales) weigh(ctx context.Context) (*weighed, error) {
	s.once.Do(func() {
		s.round.weighing.Lock()
		defer s.round.weighing.Unlock()
		if s.err = ctx.Err(); s.err == nil {
			s.loaded, s.err = s.round.weigh(ctx, s.group)
		}
		if s.err != nil || s.known.Weights == "" {
			return
		}
		if d := s.loaded.digests(); d.Weights != s.known.Weights || !slices.Equal(d.Samples, s.known.Samples) {
			s.known, s.err = d, errForgotten
		}
	})
	return s.loaded, s.err
}

// recipe names everything that decides what a group reads: the model with the calibration, and what of them is packed how.
// What packs them is the program, which the memo stands for.
func (r *round) recipe(g *planir.Baking) (string, error) {
	c := r.content
	digest, err := c.model.Digest()
	if err != nil {
		return "", err
	}
	list := []any{digest, c.plan.Calibration(), g.Layer, r.oracle != nil}
	for _, ref := range g.W {
		i := slices.IndexFunc(c.plan.Program.Packs, func(k planir.Pack) bool { return k.Name == ref.Pack })
		k := &c.plan.Program.Packs[i]
		list = append(list, k, c.weight(planir.Placement{Pack: k}), ref)
	}
	for _, graph := range g.Graphs {
		name := planir.LayerBlob(graph.Artifact, g.Layer)
		list = append(list, &graph.Graph, r.classes[name] == name)
	}
	h := sha256.New()
	if err := json.NewEncoder(h).Encode(list); err != nil {
		return "", err
	}
	return "weights " + hex.EncodeToString(h.Sum(nil)), nil
}

// weigh packs what a group reads.
func (r *round) weigh(ctx context.Context, g *planir.Baking) (_ *weighed, err error) {
	c := r.content
	packs := map[string]*planir.Pack{}
	for i := range c.plan.Program.Packs {
		packs[c.plan.Program.Packs[i].Name] = &c.plan.Program.Packs[i]
	}
	var size int64
	round := func(n int64) int64 { return (n + driver.Align - 1) / driver.Align * driver.Align }
	for _, ref := range g.W {
		size += round(packs[ref.Pack].Bytes)
	}
	w := &weighed{}
	if w.region, err = mem.Alloc(int(max(size, 1)), driver.Align); err != nil {
		return nil, diag.New(diag.ClassRun, "memory for the weights of %q: %w", g.Graphs[0].Name, err)
	}
	fail := func(err error) (*weighed, error) { return nil, errors.Join(err, w.close()) }
	at := int64(0)
	for i, ref := range g.W {
		if err := ctx.Err(); err != nil {
			return fail(err)
		}
		k := packs[ref.Pack]
		pl := planir.Placement{Pack: k, Layer: g.Layer}
		if len(c.weight(pl).Layers) == 0 {
			pl.Layer = -1
		}
		bytes := w.region.Bytes()[at : at+k.Bytes]
		if err := c.pack(bytes, pl); err != nil {
			return fail(err)
		}
		spec := k.Spec()
		spec.Name = g.Graphs[0].Graph.Weights[i].Name
		var stride int64
		if k.Experts > 0 {
			stride = k.Bytes / int64(k.Experts)
		}
		w.weights = append(w.weights, driver.Packed{Spec: spec, Bytes: bytes, Stride: stride})
		at += round(k.Bytes)
	}
	for _, graph := range g.Graphs {
		var s *sample
		if name := planir.LayerBlob(graph.Artifact, g.Layer); r.oracle != nil && r.classes[name] == name {
			if s, err = r.proof.sample(ctx, &graph.Graph, w.weights); err != nil {
				return fail(fmt.Errorf("sample of graph %q: %w", graph.Name, err))
			}
		}
		w.samples = append(w.samples, s)
	}
	return w, nil
}

func label(g *planir.Baking) string {
	name, _, _ := strings.Cut(g.Graphs[0].Name, "@")
	if g.Layer < 0 {
		return name
	}
	return fmt.Sprintf("%s, layer %d", name, g.Layer)
}

// group bakes one group. What its compiler refuses is noted; an error is anything else.
func (r *round) group(ctx context.Context, i, of int, g *planir.Baking) (err error) {
	if ctx.Err() != nil {
		return nil
	}
	s, err := r.scales(ctx, g)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.loaded.close()) }()
	if err = r.bakeGroup(ctx, i, of, g, s); errors.Is(err, errForgotten) {
		if err = s.remember(); err == nil {
			s.err = nil
			err = r.bakeGroup(ctx, i, of, g, s)
		}
	}
	return err
}

// bakeGroup is group with what it reads.
func (r *round) bakeGroup(ctx context.Context, i, of int, g *planir.Baking, s *scales) error {
	e := Event{Group: i, Groups: of, Label: label(g)}
	// A graph that another layer's weights could not be compiled into is not tried again.
	var graphs []*planir.Graph
	var pieces []driver.Piece
	var places []int // of graphs among those of the group
	r.mu.Lock()
	for k, graph := range g.Graphs {
		if x := r.refused[graph.Name]; x != nil && x.layer < g.Layer {
			continue
		}
		name := planir.LayerBlob(graph.Artifact, g.Layer)
		later := &driver.Later{Weights: s.known.Weights, Sample: s.known.Samples[k], Make: func() (driver.Weights, [][]byte, error) {
			w, err := s.weigh(ctx)
			if err != nil {
				return nil, nil, err
			}
			var in [][]byte
			if x := w.samples[k]; x != nil {
				in = x.in
			}
			return named(w.weights, graph.Graph.Weights), in, nil
		}}
		graphs, pieces, places = append(graphs, graph), append(pieces, driver.Piece{Name: name, Graph: graph.Graph, Later: later}), append(places, k)
		e.Graphs = append(e.Graphs, name)
	}
	r.mu.Unlock()
	if len(pieces) == 0 {
		return nil
	}
	r.tell(e)
	e.Done = true
	baked, err := r.bakers[g.Proc].Bake(ctx, pieces, bakingFor(r.content.plan.Proc(g.Proc)))
	if ctx.Err() != nil {
		return nil // whoever ended it says why
	}
	if s.err != nil {
		return s.err
	}
	var refused *driver.Refused
	switch {
	case errors.As(err, &refused):
		for k, p := range refused.Pieces {
			r.refuse(graphs[p], g.Layer, refused.Reasons[k])
		}
	case err != nil && concernsAll(err):
		e.Err = err
		r.tell(e)
		return err
	case err != nil:
		for _, graph := range graphs {
			r.refuse(graph, g.Layer, err)
		}
	}
	if err != nil {
		e.Err = err
		r.tell(e)
		return nil
	}
	if len(baked.Artifacts) != len(pieces) || (baked.Shared != nil) != (g.Context != "") {
		return diag.New(diag.ClassInternal, "compile %s: %d artifacts with a shared binary: %v, want %d: %v", e.Label, len(baked.Artifacts), baked.Shared != nil, len(pieces), g.Context != "")
	}
	f := &groupFacts{baking: *g, compiler: baked.Compiler, token: baked.Token, cached: baked.Cached}
	f.baking.Graphs = graphs
	if g.Context != "" {
		b, err := r.keep(planir.LayerBlob(g.Context, g.Layer), g.Proc, baked.Shared)
		if err != nil {
			return err
		}
		f.shared = &b
	}
	for k := range baked.Artifacts {
		a := &baked.Artifacts[k]
		b, err := r.keep(pieces[k].Name, g.Proc, a.Code)
		if err != nil {
			return err
		}
		gf := graphFacts{blobFacts: b, graph: graphs[k], facts: a.Facts, twin: a.Twin}
		if r.oracle != nil {
			gf.tried = r.classes[pieces[k].Name]
		}
		if s.known.Samples[places[k]] != "" {
			if gf.trial, err = s.judge(ctx, places[k], a); err != nil {
				if s.err != nil {
					return s.err
				}
				r.refuse(graphs[k], g.Layer, err)
				e.Err = err
			}
		}
		f.graphs = append(f.graphs, gf)
	}
	r.facts[i] = f
	e.Cached, e.Packed = baked.Cached, s.loaded != nil
	r.tell(e)
	return nil
}

// judge compares what was computed of the sample of the group's graph k. The errors of a graph within its bound are remembered,
// so that the reference is not computed again.
func (s *scales) judge(ctx context.Context, k int, a *driver.BakedArtifact) (*trial, error) {
	g := &s.group.Graphs[k].Graph
	key := fmt.Sprintf("trial %d of %s on %s and %s", k, s.key, driver.SampleDigest(a.Emulated), driver.SampleDigest(a.Portable))
	if s.round.memo != nil {
		var known [2]float64
		if text, ok := s.round.memo.Recall(key); ok && json.Unmarshal(text, &known) == nil {
			t := &trial{known[0], known[1], boundOf(g)}
			return t, t.err()
		}
	}
	w, err := s.weigh(ctx)
	if err != nil {
		return nil, err
	}
	t, err := w.samples[k].judge(g, a)
	if err != nil || s.round.memo == nil {
		return t, err
	}
	text, err := json.Marshal([2]float64{t.float, t.portable})
	if err == nil {
		err = s.round.memo.Keep(key, text)
	}
	if err != nil {
		s.err = err // no fault of the graph
	}
	return t, err
}

// concernsAll reports an error that no other processor helps against.
func concernsAll(err error) bool {
	switch diag.ClassOf(err) {
	case diag.ClassUnavailable, diag.ClassIO, diag.ClassInterrupted, diag.ClassUsage:
		return true
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func (r *round) tell(e Event) {
	if r.watch != nil {
		r.watch(e)
	}
}

func (r *round) refuse(g *planir.Graph, layer int, reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x := r.refused[g.Name]; x == nil || layer < x.layer {
		r.refused[g.Name] = &refusal{graph: g, layer: layer, reason: reason}
	}
}

// keep writes a blob to the scratch directory.
func (r *round) keep(name, proc string, code []byte) (blobFacts, error) {
	sum := sha256.Sum256(code)
	a := artifact{proc: proc, bytes: int64(len(code)), file: filepath.Join(r.content.scratch, strings.ReplaceAll(name, "/", "-"))}
	if err := os.WriteFile(a.file, code, 0o600); err != nil {
		return blobFacts{}, diag.New(diag.ClassIO, "keep what was compiled: %w", err).WithHint("it needs room for all graphs, which is in the cache ($HETC_CACHE names another), or without one among temporary files (TMPDIR)")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.content.artifacts[name] = a
	return blobFacts{name: name, bytes: a.bytes, sha256: hex.EncodeToString(sum[:])}, nil
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
	b := &bakery{compilers: o.Compilers, oracle: o.Oracle, watch: o.Watch, memo: o.Memo, scratch: o.Scratch}
	stage := func(done bool) {
		if b.watch != nil {
			b.watch(Event{Done: done})
		}
	}
	g := o.Model.Graph()
	var fallen []planir.Fallback
	for {
		p := o.Plan
		var bad []misfit
		if o.Target != nil {
			var err error
			if p, bad, err = retarget(o.Plan, &g, o.Target, fallen); err != nil {
				return nil, nil, err
			}
		}
		var c *Content
		if len(bad) == 0 {
			if o.Target != nil {
				if err := check.Plan(p, o.Model, nil).Err(); err != nil {
					return nil, nil, fmt.Errorf("emit for target %q: %w", o.Target.SoC, err)
				}
			}
			var err error
			if c, err = newContent(p, o.Model, o.Calibration); err != nil {
				return nil, nil, err
			}
			if err = c.compile(ctx, o.Compilers); err != nil {
				return nil, nil, errors.Join(err, c.Close())
			}
			stage(false)
			refused, err := c.bake(ctx, b)
			stage(true)
			if err != nil {
				return nil, nil, errors.Join(err, c.Close())
			}
			if len(refused) == 0 {
				r, err := c.report(o)
				if err != nil {
					return nil, nil, errors.Join(err, c.Close())
				}
				return c, r, nil
			}
			for i := range refused {
				bad = append(bad, decisionsOf(p, &refused[i])...)
			}
			if err := c.Close(); err != nil {
				return nil, nil, err
			}
		}
		more, err := o.fallBack(&g, bad, fallen)
		if err != nil {
			return nil, nil, err
		}
		fallen = more
	}
}

// decisionsOf are the decisions whose steps run a graph that was refused.
func decisionsOf(p *planir.Plan, x *refusal) (out []misfit) {
	layers := ""
	if x.layer >= 0 {
		layers = fmt.Sprintf(" with the weights of layer %d", x.layer)
	}
	for i := range p.Program.Programs {
		ph := &p.Program.Programs[i]
		for _, s := range ph.Sections {
			for _, l := range s.Lanes {
				for _, st := range l.Steps {
					if st.Run != x.graph.Name {
						continue
					}
					for _, node := range st.Nodes() {
						d := p.DecisionFor(node, ph.Rows)
						if d == nil {
							d = p.DecisionFor(node, 1) // the head
						}
						if d != nil && !slices.ContainsFunc(out, func(m misfit) bool { return m.decision == d }) {
							out = append(out, misfit{decision: d, what: fmt.Sprintf("graph %q%s", x.graph.Name, layers), proc: x.graph.Proc, reason: x.reason})
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
	for _, m := range bad {
		d := m.decision
		others := able(procs, d, kinds[d.Node], m.proc)
		helps := slices.Contains(others, fmt.Sprintf("%q", control)) && m.proc != control
		again := slices.ContainsFunc(fallen, func(f planir.Fallback) bool { return f.Node == d.Node && f.Rows == d.Rows })
		if o.AllowFallback && o.Target != nil && helps && !again {
			original := o.Plan.DecisionFor(d.Node, d.Rows)
			more = append(more, planir.Fallback{Node: d.Node, Rows: d.Rows, From: original.ShareText(), Reason: oneLine(m.reason)})
			continue
		}
		if said[m.what] {
			continue
		}
		said[m.what] = true
		way := "no other processor of the plan executes it"
		if len(others) > 0 {
			way = "could be executed by " + strings.Join(others, ", ")
		}
		x := diag.New(diag.ClassOr(m.reason, diag.ClassInfeasible), "emit %s for processor %q: %w; %s", m.what, m.proc, m.reason, way)
		if helps && o.Target != nil {
			_ = x.WithHint("--allow-fallback gives such operators to %q, and says so in the plan and the report; or solve again without them on %q", control, m.proc)
		}
		list = append(list, x)
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
	for _, s := range g.Sections {
		for _, n := range s.Nodes {
			name := s.Name + "." + n.Name
			for _, o := range n.Ops {
				out[name] = append(out[name], o.Kind)
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
	s := strings.Join(strings.Fields(err.Error()), " ")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	if len(s) > most {
		s = s[:most-3] + "..."
	}
	return s
}
