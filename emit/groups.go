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
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
)

// Some processors need graphs that hold their weights. The vendor's compiler then gets graph and weights together, and
// makes an artifact for one layer.
//
// The plan gives such graphs in groups that share weights, one group for every layer (planir.GraphGroup). A few
// goroutines compile groups. Weights are packed for one group at a time, because packing uses all cores.
//
// A compiler may refuse a graph, and a compiled graph may compute something else than its reference. Both are noted as
// refusals, not errors: fallback.go then decides whether another processor takes the operators.

// Event is progress of compiling groups: all of it begins or ends (Groups is 0), or one group does. Groups are
// numbered in the plan's order. Several are under way at once, so events of different groups mix.
type Event struct {
	Group, Groups int
	Label         string   // "npu/layers.qkv, layer 3"
	Graphs        []string // names of the artifacts' blobs
	Done          bool
	Cached        bool  // no compiler ran
	Packed        bool  // its weights were packed, and its samples computed
	Err           error // why none of it, or not all of it, was made
}

// compileOptions is what compiling groups needs beside the content.
type compileOptions struct {
	compilers   []driver.Compiler
	trialDriver driver.Driver // nil: no graph is tried
	watch       func(Event)
	memo        Memo   // nil: everything is computed
	scratch     string // where what was compiled waits for the bundle, "": among temporary files
}

// targetOf returns what a processor's graphs are compiled for: the device where they share binaries, else its emulator.
func targetOf(q *planir.Proc) driver.Target {
	return driver.Target{Proc: q.Name, Options: q.Options, Emulator: !q.Shares}
}

// refusal is a graph that was not made, with the first layer for which that was so.
type refusal struct {
	graph  *planir.Graph
	layer  int
	reason error
}

// workers returns how many groups are compiled at once: a vendor's compiler uses one core for most of its time.
func workers() int { return min(runtime.GOMAXPROCS(0), 8) }

// groupCompiler compiles all groups of a plan once.
type groupCompiler struct {
	content *Content
	*compileOptions
	byProcessor map[string]driver.GroupCompiler // its compiler
	tried       map[string]string               // by the blobs of graphs, the one of the same class that is tried
	oracle      *oracle

	// Locks are never held together: packing protects cores and memory, mu the notes.
	packing sync.Mutex // weights are packed, and samples made, for one group at a time: they use all cores

	mu      sync.Mutex
	refused map[string]*refusal // by graph
	facts   []*groupFacts
}

// groupFacts is what is known of a group that was made.
type groupFacts struct {
	group    planir.GraphGroup
	compiler string     // and its version
	token    string     // the vendor's compatibility string
	cached   bool       // no compiler ran
	shared   *blobFacts // nil: each holds its own
	graphs   []graphFacts
}

// blobFacts identifies a blob that was written to the scratch directory.
type blobFacts struct {
	name   string
	bytes  int64
	sha256 string
}

// graphFacts is what is known of a compiled graph.
type graphFacts struct {
	blobFacts
	graph *planir.Graph
	facts map[string]int64 // that the compiler reported, see driver.Artifact
	twin  string           // digest of the same graph compiled for the emulator, "" for none
	tried string           // the blob whose sample was executed, "" for none
	trial *trial           // of this one, nil if another of its class was tried
}

// compileGroups makes the artifacts that hold weights. Graphs that are not made are returned in the plan's order, all
// of them; any other failure ends it.
func (c *Content) compileGroups(ctx context.Context, options *compileOptions) ([]refusal, error) {
	groups := c.plan.GraphGroups()
	if len(groups) == 0 {
		return nil, nil
	}
	byProcessor, err := groupCompilers(c.plan, groups, options.compilers)
	if err != nil {
		return nil, err
	}
	if c.scratch, err = os.MkdirTemp(options.scratch, "hetc-emit-"); err != nil {
		return nil, diag.New(diag.ClassIO, "make a directory for what is compiled: %w", err)
	}
	run := &groupCompiler{
		content: c, compileOptions: options, byProcessor: byProcessor, tried: representatives(groups),
		oracle: newOracle(options.trialDriver), refused: map[string]*refusal{}, facts: make([]*groupFacts, len(groups)),
	}
	defer run.oracle.close()
	if err := run.compileAll(ctx, groups); err != nil {
		return nil, err
	}
	c.facts = run.facts
	var out []refusal
	for i := range c.plan.Program.Graphs {
		if refused := run.refused[c.plan.Program.Graphs[i].Name]; refused != nil {
			out = append(out, *refused)
		}
	}
	return out, nil
}

// groupCompilers finds the compiler of each processor that has groups.
func groupCompilers(plan *planir.Plan, groups []planir.GraphGroup,
	compilers []driver.Compiler) (map[string]driver.GroupCompiler, error) {
	out := map[string]driver.GroupCompiler{}
	for i := range groups {
		proc := plan.Proc(groups[i].Proc)
		compiler, err := compilerFor(proc, groups[i].Graphs[0].Name, compilers)
		if err != nil {
			return nil, err
		}
		ofGroups, ok := compiler.(driver.GroupCompiler)
		if !ok {
			return nil, diag.New(diag.ClassIllegal,
				"compile for processor %q: its artifacts hold their weights, and those of compiler %q do not",
				proc.Name, compiler.Name())
		}
		out[proc.Name] = ofGroups
	}
	return out, nil
}

// compileAll compiles the groups. The first error stops what has not begun.
func (r *groupCompiler) compileAll(ctx context.Context, groups []planir.GraphGroup) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Workers take indices from orders; the sender stops at the first error, and workers finish what they took.
	orders := make(chan int)
	var wg sync.WaitGroup
	for range min(workers(), len(groups)) {
		wg.Go(func() {
			for i := range orders {
				if err := r.compileGroup(ctx, i, &groups[i]); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := 0; i < len(groups) && ctx.Err() == nil; i++ {
		orders <- i
	}
	close(orders)
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// representatives chooses which graph of every class is tried: the first one. It is given for the blobs of all.
func representatives(groups []planir.GraphGroup) map[string]string {
	out, first := map[string]string{}, map[string]string{}
	for i := range groups {
		for _, graph := range groups[i].Graphs {
			class, blob := classOf(graph), planir.LayerBlob(graph.Artifact, groups[i].Layer)
			if first[class] == "" {
				first[class] = blob
			}
			out[blob] = first[class]
		}
	}
	return out
}

// classOf returns a key that is equal for graphs of equal structure, shapes and schemes on one processor. Layers differ
// in weights only, so one trial speaks for the class.
func classOf(g *planir.Graph) string {
	text, err := json.Marshal(g.Graph)
	if err != nil {
		panic("BUG: a valid graph does not encode: " + err.Error())
	}
	return g.Proc + "\x00" + string(text)
}

// isTried reports whether a graph of a layer is the one of its class that is tried.
func (r *groupCompiler) isTried(graph *planir.Graph, layer int) bool {
	name := planir.LayerBlob(graph.Artifact, layer)
	return r.trialDriver != nil && r.tried[name] == name
}

// label names a group for people.
func label(g *planir.GraphGroup) string {
	name, _, _ := strings.Cut(g.Graphs[0].Name, "@")
	if g.Layer < 0 {
		return name
	}
	return fmt.Sprintf("%s, layer %d", name, g.Layer)
}

// compileGroup compiles group i. What its compiler refuses is noted; an error is anything else.
//
// The memo says which weights a group has without packing them. Where it turns out to be wrong, it is corrected from
// the packed weights and the group compiled again, once.
func (r *groupCompiler) compileGroup(ctx context.Context, i int, group *planir.GraphGroup) (err error) {
	if ctx.Err() != nil {
		return nil
	}
	weights, err := r.weightsOf(ctx, group)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, weights.loaded.close()) }()
	a := &attempt{groupCompiler: r, number: i, group: group, weights: weights}
	if err = a.compile(ctx); !errors.Is(err, errStaleMemo) {
		return err
	}
	if err := weights.saveDigests(); err != nil {
		return err
	}
	weights.err = nil
	a = &attempt{groupCompiler: r, number: i, group: group, weights: weights}
	return a.compile(ctx)
}

// attempt is one group in the making.
type attempt struct {
	*groupCompiler
	number  int
	group   *planir.GraphGroup
	weights *lazyWeights
	event   Event

	graphs []*planir.Graph // those that are compiled
	pieces []driver.Piece  // of these graphs
	places []int           // of these graphs among those of the group
}

// compile has the compiler make the chosen graphs of the group, keeps the artifacts and reports progress. It ends
// without an error where nothing is left to compile, or where the work was cancelled.
func (a *attempt) compile(ctx context.Context) error {
	a.event = Event{Group: a.number, Groups: len(a.facts), Label: label(a.group)}
	a.chooseGraphs(ctx)
	if len(a.pieces) == 0 {
		return nil
	}
	a.notify(a.event)
	a.event.Done = true
	target := targetOf(a.content.plan.Proc(a.group.Proc))
	compiled, err := a.byProcessor[a.group.Proc].CompileGroup(ctx, a.pieces, target)
	switch {
	case ctx.Err() != nil:
		return nil // all returns the cause
	case a.weights.err != nil:
		return a.weights.err
	case err != nil:
		a.event.Err = err
		a.notify(a.event)
		return a.noteFailure(err)
	}
	// One artifact for each graph, and a shared binary exactly where the plan expects one.
	if len(compiled.Artifacts) != len(a.pieces) || (compiled.Shared != nil) != (a.group.Context != "") {
		return diag.New(diag.ClassInternal, "compile %s: %d artifacts with a shared binary: %v, want %d: %v",
			a.event.Label, len(compiled.Artifacts), compiled.Shared != nil, len(a.pieces), a.group.Context != "")
	}
	if err := a.keepArtifacts(ctx, compiled); err != nil {
		return err
	}
	a.event.Cached, a.event.Packed = compiled.Cached, a.weights.loaded != nil
	a.notify(a.event)
	return nil
}

// chooseGraphs takes the graphs that are compiled: one that an earlier layer's weights could not be compiled into is
// not tried again. Weights are packed when the compiler asks for them.
func (a *attempt) chooseGraphs(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for at, graph := range a.group.Graphs {
		if refused := a.refused[graph.Name]; refused != nil && refused.layer < a.group.Layer {
			continue
		}
		name := planir.LayerBlob(graph.Artifact, a.group.Layer)
		later := &driver.Later{Weights: a.weights.known.Weights, Sample: a.weights.known.Samples[at]}
		later.Make = func() (driver.Weights, [][]byte, error) {
			packed, err := a.weights.ensurePacked(ctx)
			if err != nil {
				return nil, nil, err
			}
			var in [][]byte
			if made := packed.samples[at]; made != nil {
				in = made.in
			}
			return named(packed.weights, graph.Graph.Weights), in, nil
		}
		a.graphs, a.places = append(a.graphs, graph), append(a.places, at)
		a.pieces = append(a.pieces, driver.Piece{Name: name, Graph: graph.Graph, Later: later})
		a.event.Graphs = append(a.event.Graphs, name)
	}
}

// noteFailure notes which graphs the compiler refused: those that the error names, or all of the group. It returns an
// error that would hit every group, such as a missing library or a full disk.
func (a *attempt) noteFailure(err error) error {
	var refused *driver.Refused
	switch {
	case errors.As(err, &refused):
		for at, piece := range refused.Pieces {
			a.noteRefusal(a.graphs[piece], a.group.Layer, refused.Reasons[at])
		}
	case concernsAll(err):
		return err
	default:
		for _, graph := range a.graphs {
			a.noteRefusal(graph, a.group.Layer, err)
		}
	}
	return nil
}

// keepArtifacts keeps what was compiled, and compares the samples with their references. A graph that computes
// something else is refused.
func (a *attempt) keepArtifacts(ctx context.Context, compiled *driver.CompiledGroup) error {
	facts := &groupFacts{group: *a.group, compiler: compiled.Compiler, token: compiled.Token, cached: compiled.Cached}
	facts.group.Graphs = a.graphs
	if a.group.Context != "" {
		blob, err := a.writeScratch(planir.LayerBlob(a.group.Context, a.group.Layer), a.group.Proc, compiled.Shared)
		if err != nil {
			return err
		}
		facts.shared = &blob
	}
	for at := range compiled.Artifacts {
		artifact := &compiled.Artifacts[at]
		blob, err := a.writeScratch(a.pieces[at].Name, a.group.Proc, artifact.Code)
		if err != nil {
			return err
		}
		made := graphFacts{blobFacts: blob, graph: a.graphs[at], facts: artifact.Facts, twin: artifact.Twin}
		if a.trialDriver != nil {
			made.tried = a.tried[a.pieces[at].Name]
		}
		// A graph with a sample was executed by the compiler's emulator; its results are judged now.
		if a.weights.known.Samples[a.places[at]] != "" {
			made.trial, err = a.weights.judge(ctx, a.places[at], artifact)
			if a.weights.err != nil {
				return a.weights.err
			}
			if err != nil {
				a.noteRefusal(a.graphs[at], a.group.Layer, err)
				a.event.Err = err
			}
		}
		facts.graphs = append(facts.graphs, made)
	}
	a.facts[a.number] = facts
	return nil
}

// concernsAll reports an error that no other processor helps against.
func concernsAll(err error) bool {
	switch diag.ClassOf(err) {
	case diag.ClassUnavailable, diag.ClassIO, diag.ClassInterrupted, diag.ClassUsage:
		return true
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// notify reports progress to the caller's Watch.
func (r *groupCompiler) notify(e Event) {
	if r.watch != nil {
		r.watch(e)
	}
}

// noteRefusal notes a graph that was not made, for the first of its layers.
func (r *groupCompiler) noteRefusal(g *planir.Graph, layer int, reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if earlier := r.refused[g.Name]; earlier == nil || layer < earlier.layer {
		r.refused[g.Name] = &refusal{graph: g, layer: layer, reason: reason}
	}
}

// writeScratch writes a blob to the scratch directory and returns its identity. Compiled graphs together may exceed
// memory.
func (r *groupCompiler) writeScratch(name, proc string, code []byte) (blobFacts, error) {
	sum := sha256.Sum256(code)
	file := filepath.Join(r.content.scratch, strings.ReplaceAll(name, "/", "-"))
	if err := os.WriteFile(file, code, 0o600); err != nil {
		return blobFacts{}, diag.New(diag.ClassIO, "keep what was compiled: %w", err).
			WithHint("it needs room for all graphs, which is in the cache ($HETC_CACHE names another), " +
				"or without one among temporary files (TMPDIR)")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	made := artifact{proc: proc, bytes: int64(len(code)), file: file}
	r.content.artifacts[name] = made
	return blobFacts{name: name, bytes: made.bytes, sha256: hex.EncodeToString(sum[:])}, nil
}
