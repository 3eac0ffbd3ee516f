// Package qnn knows how a graph becomes a context binary for Qualcomm's NPU (HTP), without the device: it is written as
// an ONNX model with its weights and compiled by the vendor's compiler, which ONNX Runtime's plugin brings along.
//
// An artifact is the compiled ONNX model: one EPContext node that stands for the binary, and the conversions at
// its edge. Inputs "i0", "i1", ... and outputs "o0", "o1", ... are the graph's by position; the metadata
// "hetc.graph" is the graph itself. For the emulator the model holds its binary; for a device it names the binary
// of its group, in which all numbers of rows share their weights, and which does not load on x86.
package qnn

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// name is the driver that loads the artifacts.
const name = "qnn"

// Defaults of Options.
const (
	defaultTime   = 10 * time.Minute
	defaultMemory = 12 << 30
	CacheBytes    = 32 << 30
)

// Options bound the time, memory and disk space of compiling. The zero value has the defaults and no cache.
type Options struct {
	Time time.Duration // of one process of the compiler; 0: defaultTime
	// Memory is the address space of one process, and of all at once as far as it can be foreseen, bytes;
	// 0: defaultMemory.
	Memory     int64
	Cache      string           // folder of compiled graphs; empty: none are kept
	CacheBytes int64            // most bytes in the folder; 0: CacheBytes
	Now        func() time.Time // orders kept graphs by use; nil: by age
}

// New returns the compiler of the driver "qnn". No library is opened before there is something to compile.
func New(options Options) driver.GroupCompiler {
	if options.Time == 0 {
		options.Time = defaultTime
	}
	if options.Memory == 0 {
		options.Memory = defaultMemory
	}
	if options.CacheBytes == 0 {
		options.CacheBytes = CacheBytes
	}
	return &compiler{options: options, budget: newBudget(options.Memory), toolchains: map[[2]string]*toolchain{}}
}

// compiler compiles groups of graphs. It finds the libraries of a target once, and bounds the memory
// of its processes together.
type compiler struct {
	options Options
	budget  *budget

	mu         sync.Mutex
	toolchains map[[2]string]*toolchain // by the files that a target names
}

// Name implements driver.Compiler.
func (*compiler) Name() string { return name }

// Compile compiles one graph with its weights; without weights it refuses, since there is no artifact without.
func (c *compiler) Compile(ctx context.Context, g op.Graph, w driver.Weights,
	t driver.Target) (driver.Artifact, error) {
	compiled, err := c.CompileGroup(ctx, []driver.Piece{{Name: "graph", Graph: g, Weights: w}}, t)
	if err != nil {
		return driver.Artifact{}, err
	}
	artifact := compiled.Artifacts[0].Artifact
	artifact.Shared = compiled.Shared
	return artifact, nil
}

// CompileGroup compiles a group, for the emulator each of its graphs in a process of its own. The bytes of what it
// makes depend on the graphs, their weights, the target and the libraries, not on names, folders, or the order of the
// pieces.
//
// Facts: "bytes" of the artifact, "context_bytes" of the binary that holds the graph (with others of the group, or
// alone), "spill_bytes" and "vtcm_bytes" of memory, "nodes" of the artifact's model, "edge_nodes" of them that
// convert on the CPU, "cpu_nodes" (always 0), "arch" and "soc_model" that the binary is for.
func (c *compiler) CompileGroup(
	ctx context.Context, group []driver.Piece, asked driver.Target,
) (*driver.CompiledGroup, error) {
	compiled, err := c.compileGroup(ctx, group, asked)
	if err != nil {
		return nil, diag.New(diag.ClassOr(err, diag.ClassRun), "compile for processor %q: %w", asked.Proc, err)
	}
	return compiled, nil
}

// compileGroup is CompileGroup, whose errors name the processor.
func (c *compiler) compileGroup(
	ctx context.Context, group []driver.Piece, asked driver.Target,
) (*driver.CompiledGroup, error) {
	if len(group) == 0 {
		return nil, diag.New(diag.ClassInput, "no graph")
	}
	to, err := readTarget(asked)
	if err != nil {
		return nil, err
	}
	cache, err := c.cache()
	if err != nil {
		return nil, err
	}
	if cache != nil {
		defer cache.Close()
	}
	tools, err := c.tools(ctx, to, cache)
	if err != nil {
		return nil, err
	}
	work := &groupJob{compiler: c, cache: cache, tools: tools, to: to, group: group, refused: map[int]error{},
		result: driver.CompiledGroup{Artifacts: make([]driver.CompiledArtifact, len(group)), Cached: true}}
	work.prepare()
	if asked.Emulator {
		err = work.compileEach(ctx)
	} else {
		err = work.compileShared(ctx)
	}
	if err == nil {
		err = work.refusal()
	}
	if err != nil {
		return nil, err
	}
	return &work.result, nil
}

// groupJob is a group in the making.
type groupJob struct {
	*compiler
	cache   *cas.Cache // nil: none
	tools   *toolchain
	to      target
	group   []driver.Piece
	jobs    []*job               // one for each piece
	refused map[int]error        // reasons for not compiling, by piece
	result  driver.CompiledGroup // the artifacts made so far
}

// prepare makes the jobs of all graphs, and refuses the graphs that are not valid.
func (g *groupJob) prepare() {
	for i := range g.group {
		one, err := prepare(&g.group[i])
		if err != nil {
			g.refuse(i, err)
		}
		g.jobs = append(g.jobs, one)
	}
}

// refusal returns the error that names the graphs which were refused, nil where none was.
func (g *groupJob) refusal() error {
	if len(g.refused) == 0 {
		return nil
	}
	refused := &driver.Refused{Pieces: slices.Sorted(maps.Keys(g.refused))}
	for _, i := range refused.Pieces {
		refused.Reasons = append(refused.Reasons, g.refused[i])
	}
	return refused
}

// refuse notes a graph that is not compiled.
func (g *groupJob) refuse(i int, err error) {
	g.refused[i] = diag.New(diag.ClassOr(err, diag.ClassRun), "graph %q: %w", g.group[i].Name, err)
}

// compileEach compiles for the emulator.
func (g *groupJob) compileEach(ctx context.Context) error {
	for i := range g.group {
		if made, err := g.compileAlone(ctx, i); err != nil {
			return err
		} else if made != nil {
			g.result.Artifacts[i].Artifact = artifact(made, 0, nil)
		}
	}
	return nil
}

// compileAlone compiles one graph in a process of its own, as a second one in the same process gets other bytes, and
// notes the results of its sample. A graph that is refused has no result.
func (g *groupJob) compileAlone(ctx context.Context, i int) (*result, error) {
	if g.refused[i] != nil {
		return nil, nil
	}
	made, err := g.run(ctx, []*job{g.jobs[i]}, []int{i}, false)
	if made != nil && g.jobs[i].sampleDigest != "" {
		g.result.Artifacts[i].Emulated, g.result.Artifacts[i].Portable = made.Emulated, made.Portable
	}
	return made, err
}

// compileShared compiles for a device: all graphs in one process, by rows and then contents, so that
// nothing depends on the order of the caller. Samples are tried on binaries of their own, which the
// emulator loads.
//
// The compiler names at most one graph that it refuses. So the others are compiled again without it,
// until nothing is refused: as many processes as there are bad graphs, and one more.
func (g *groupJob) compileShared(ctx context.Context) error {
	var order []int
	for i := range g.group {
		if g.refused[i] == nil {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		if more := g.group[i].Graph.Rows() - g.group[j].Graph.Rows(); more != 0 {
			return more
		}
		return strings.Compare(g.jobs[i].digest, g.jobs[j].digest)
	})
	for len(order) > 0 { // without those that are refused, until all of these are known
		var jobs []*job
		for _, i := range order {
			jobs = append(jobs, g.jobs[i].untried())
		}
		made, err := g.run(ctx, jobs, order, true)
		if err != nil {
			return err
		}
		if made == nil {
			order = slices.DeleteFunc(order, func(i int) bool { return g.refused[i] != nil })
			continue
		}
		g.result.Shared = made.Shared
		for at, i := range order {
			g.result.Artifacts[i].Artifact = artifact(made, at, made.Shared)
		}
		break
	}
	for _, i := range order {
		if g.jobs[i].sampleDigest == "" {
			continue
		}
		token := g.result.Token
		twin, err := g.compileAlone(ctx, i)
		if err != nil {
			return err
		}
		if twin != nil {
			g.result.Artifacts[i].Twin = fmt.Sprintf("%x", sha256.Sum256(twin.Models[0]))
		}
		g.result.Token = token
	}
	return nil
}

// run compiles jobs, which are the pieces order, in one process. Where one of them is to blame it is refused, and there
// is no result.
func (g *groupJob) run(ctx context.Context, jobs []*job, order []int, shared bool) (*result, error) {
	made, err := g.compile(ctx, jobs, shared)
	var at *graphError
	switch {
	case errors.As(err, &at) && at.graph >= 0 && at.graph < len(order):
		g.refuse(order[at.graph], diag.New(diag.ClassOr(err, diag.ClassRun), "for soc_model %d, htp_arch %d: %w",
			g.to.soc, g.to.arch, err))
		return nil, nil
	case err != nil:
		return nil, err
	}
	for _, graph := range made.Answer.Graphs {
		if err := g.to.matches(&made.Answer, graph.Token); err != nil {
			return nil, err
		}
		g.result.Token = graph.Token
	}
	g.result.Cached = g.result.Cached && made.cached
	g.result.Compiler = fmt.Sprintf("QNN %s (plugin %s, ONNX Runtime %s)",
		short(made.Answer.SDK), made.Answer.Provider, made.Answer.ORT)
	return made, nil
}

// artifact is graph k of a result, with what the compiler reported of it.
func artifact(r *result, k int, shared []byte) driver.Artifact {
	facts, code := r.Answer.Graphs[k], r.Models[k]
	return driver.Artifact{Driver: name, Code: code, Shared: shared, Facts: map[string]int64{
		"bytes": int64(len(code)), "context_bytes": facts.Context, "spill_bytes": facts.Spill, "vtcm_bytes": facts.VTCM,
		"nodes": facts.Nodes, "edge_nodes": facts.Edge, "cpu_nodes": 0,
		"arch": r.Answer.Arch, "soc_model": r.Answer.SoC,
	}}
}

// short is "2.51.0" of "v2.51.0.260929181845".
func short(sdk string) string {
	parts := strings.Split(strings.TrimPrefix(sdk, "v"), ".")
	return strings.Join(parts[:min(3, len(parts))], ".")
}

// job is one graph to compile.
type job struct {
	piece          *driver.Piece
	digest         string   // of graph and weights
	sampleDigest   string   // "": it is not tried
	sample         [][]byte // inputs, nil until translate
	*compilerInput          // nil until translate
}

// untried returns the job without its sample.
func (j *job) untried() *job {
	copied := *j
	copied.sampleDigest = ""
	return &copied
}

// translation names what translate makes of a graph: it is raised whenever the models of the tests change, so that
// nothing is taken from a cache that was made of others.
const translation = "1"

// prepare makes the job of a piece; what is in the cache is not translated, and its weights need not be there.
func prepare(piece *driver.Piece) (*job, error) {
	if err := piece.Graph.Validate(); err != nil {
		return nil, diag.New(diag.ClassInput, "%w", err)
	}
	text, err := json.Marshal(&piece.Graph)
	if err != nil { // a NaN
		return nil, diag.New(diag.ClassInput, "%w", err)
	}
	later := piece.Later
	if later == nil {
		later = &driver.Later{Weights: piece.Weights.Digest(), Sample: driver.SampleDigest(piece.Sample)}
	}
	hash := sha256.New()
	hash.Write(text)
	fmt.Fprintln(hash, later.Weights)
	return &job{piece: piece, digest: hex.EncodeToString(hash.Sum(nil)), sampleDigest: later.Sample}, nil
}

// translate makes what the compiler reads. A graphError says that graph i is to blame.
func (j *job) translate(i int) error {
	weights, sample, err := j.piece.Now()
	if err != nil {
		return err
	}
	if j.compilerInput, err = translate(&j.piece.Graph, weights); err != nil {
		return &graphError{i, err}
	}
	if j.sampleDigest == "" {
		return nil
	}
	inputs := j.piece.Graph.Launches(op.F32).Inputs
	if len(sample) != len(inputs) {
		return &graphError{i, diag.New(diag.ClassInput, "the sample has %d inputs, want %d", len(sample), len(inputs))}
	}
	for at, raw := range sample {
		input := inputs[at]
		if want := input.Rows * input.Cols * input.Type.Bytes(); len(raw) != want {
			return &graphError{i, diag.New(diag.ClassInput, "input %d of the sample has %d bytes, want %d",
				at, len(raw), want)}
		}
	}
	j.sample = sample
	return nil
}

// compile returns what a process makes of jobs, from the cache if it is there.
func (g *groupJob) compile(ctx context.Context, jobs []*job, shared bool) (*result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	// All that the bytes depend on: how hetc translates, the libraries, the target, and the graphs with their samples.
	parts := []string{translation, g.tools.key, fmt.Sprint(g.to.options()), fmt.Sprint(shared)}
	for _, j := range jobs {
		parts = append(parts, j.digest, "sample", j.sampleDigest)
	}
	key := cas.KeyOf("qnn", parts...)
	if g.cache != nil {
		data, err := g.cache.Read(key)
		if err == nil {
			// An entry that cannot be read is compiled again, like one that is missing.
			if made, err := decode(data, len(jobs)); err == nil {
				made.cached = true
				return made, nil
			}
		} else if !errors.Is(err, cas.ErrMissing) {
			return nil, err
		}
	}
	for i, j := range jobs {
		if err := j.translate(i); err != nil {
			return nil, err
		}
	}
	made, err := g.start(ctx, jobs, shared)
	if err != nil {
		return nil, err
	}
	if g.cache != nil {
		e, err := g.cache.Put(key, made.write)
		if err != nil {
			return nil, err
		}
		e.Close()
	}
	return made, nil
}

// cache opens the cache, nil without one.
func (c *compiler) cache() (*cas.Cache, error) {
	if c.options.Cache == "" {
		return nil, nil
	}
	return cas.Open(c.options.Cache, cas.Options{MaxBytes: c.options.CacheBytes, Now: c.options.Now})
}

// write writes the model of a job and its sample.
func (j *job) write(dir string, i int) error {
	if err := writeNew(dir, modelFile(i), j.model); err != nil {
		return err
	}
	for at, part := range j.sample {
		if err := writeNew(dir, sampleFile(i, at), part); err != nil {
			return err
		}
	}
	return nil
}
