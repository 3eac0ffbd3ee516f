// Package qnn knows how a graph becomes a context binary for Qualcomm's NPU (HTP), without the device: it is written as
// an ONNX model with its weights and compiled by the vendor's compiler, which ONNX Runtime's plugin brings along.
//
// An artifact is the compiled ONNX model: one EPContext node that stands for the binary, and the conversions at
// its edge. Inputs "i0", "i1", ... and outputs "o0", "o1", ... are the graph's by position; the metadata
// "hetc.graph" is the graph itself. For the emulator the model holds its binary; for a device it names the binary
// of its group, in which all numbers of rows share their weights, and which does not load on x86.
package qnn

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/internal/child"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/patience"
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

// Options bound what compiling takes. The zero value has the defaults and no cache.
type Options struct {
	Time time.Duration // of one process of the compiler; 0: defaultTime
	// Memory is the bytes of address space of one process, and of all at once as far as they can be foreseen;
	// 0: defaultMemory.
	Memory int64
	// Cache is the folder that keeps what was compiled; empty: nothing is kept.
	Cache      string
	CacheBytes int64            // most bytes that it keeps; 0: CacheBytes
	Now        func() time.Time // orders what it keeps by use; nil: by age
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
func (c *compiler) CompileGroup(ctx context.Context, group []driver.Piece, asked driver.Target) (*driver.CompiledGroup, error) {
	compiled, err := c.compileGroup(ctx, group, asked)
	if err != nil {
		return nil, diag.New(diag.ClassOr(err, diag.ClassRun), "compile for processor %q: %w", asked.Proc, err)
	}
	return compiled, nil
}

// compileGroup is CompileGroup, whose errors name the processor.
func (c *compiler) compileGroup(ctx context.Context, group []driver.Piece, asked driver.Target) (*driver.CompiledGroup, error) {
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
	refused map[int]error        // by piece, why it is not compiled
	result  driver.CompiledGroup // what was made so far
}

// prepare makes the jobs of all graphs, and refuses the graphs that are not valid.
func (b *groupJob) prepare() {
	for i := range b.group {
		one, err := prepare(&b.group[i])
		if err != nil {
			b.refuse(i, err)
		}
		b.jobs = append(b.jobs, one)
	}
}

// refusal returns the error that names the graphs which were refused, nil where none was.
func (b *groupJob) refusal() error {
	if len(b.refused) == 0 {
		return nil
	}
	refused := &driver.Refused{Pieces: slices.Sorted(maps.Keys(b.refused))}
	for _, i := range refused.Pieces {
		refused.Reasons = append(refused.Reasons, b.refused[i])
	}
	return refused
}

// refuse notes a graph that is not compiled.
func (b *groupJob) refuse(i int, err error) {
	b.refused[i] = diag.New(diag.ClassOr(err, diag.ClassRun), "graph %q: %w", b.group[i].Name, err)
}

// compileEach compiles for the emulator.
func (b *groupJob) compileEach(ctx context.Context) error {
	for i := range b.group {
		if made, err := b.compileAlone(ctx, i); err != nil {
			return err
		} else if made != nil {
			b.result.Artifacts[i].Artifact = artifact(made, 0, nil)
		}
	}
	return nil
}

// compileAlone compiles one graph in a process of its own, as a second one in the same process gets other bytes, and
// notes the results of its sample. A graph that is refused has no result.
func (b *groupJob) compileAlone(ctx context.Context, i int) (*result, error) {
	if b.refused[i] != nil {
		return nil, nil
	}
	made, err := b.run(ctx, []*job{b.jobs[i]}, []int{i}, false)
	if made != nil && b.jobs[i].sampleDigest != "" {
		b.result.Artifacts[i].Emulated, b.result.Artifacts[i].Portable = made.Emulated, made.Portable
	}
	return made, err
}

// compileShared compiles for a device: all graphs in one process, by rows and then contents, so that
// nothing depends on the order of the caller. Samples are tried on binaries of their own, which the
// emulator loads.
//
// The compiler names at most one graph that it refuses. So the others are compiled again without it,
// until nothing is refused: as many processes as there are bad graphs, and one more.
func (b *groupJob) compileShared(ctx context.Context) error {
	var order []int
	for i := range b.group {
		if b.refused[i] == nil {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		if more := b.group[i].Graph.Rows() - b.group[j].Graph.Rows(); more != 0 {
			return more
		}
		return strings.Compare(b.jobs[i].digest, b.jobs[j].digest)
	})
	for len(order) > 0 { // without those that are refused, until all of these are known
		var jobs []*job
		for _, i := range order {
			jobs = append(jobs, b.jobs[i].untried())
		}
		made, err := b.run(ctx, jobs, order, true)
		if err != nil {
			return err
		}
		if made == nil {
			order = slices.DeleteFunc(order, func(i int) bool { return b.refused[i] != nil })
			continue
		}
		b.result.Shared = made.Shared
		for at, i := range order {
			b.result.Artifacts[i].Artifact = artifact(made, at, made.Shared)
		}
		break
	}
	for _, i := range order {
		if b.jobs[i].sampleDigest == "" {
			continue
		}
		token := b.result.Token
		twin, err := b.compileAlone(ctx, i)
		if err != nil {
			return err
		}
		if twin != nil {
			b.result.Artifacts[i].Twin = fmt.Sprintf("%x", sha256.Sum256(twin.Models[0]))
		}
		b.result.Token = token
	}
	return nil
}

// run compiles jobs, which are the pieces order, in one process. Where one of them is to blame it is refused, and there
// is no result.
func (b *groupJob) run(ctx context.Context, jobs []*job, order []int, shared bool) (*result, error) {
	made, err := b.compile(ctx, jobs, shared)
	var at *graphError
	switch {
	case errors.As(err, &at) && at.graph >= 0 && at.graph < len(order):
		b.refuse(order[at.graph], diag.New(diag.ClassOr(err, diag.ClassRun), "for soc_model %d, htp_arch %d: %w",
			b.to.soc, b.to.arch, err))
		return nil, nil
	case err != nil:
		return nil, err
	}
	for _, graph := range made.Answer.Graphs {
		if err := b.to.matches(&made.Answer, graph.Token); err != nil {
			return nil, err
		}
		b.result.Token = graph.Token
	}
	b.result.Cached = b.result.Cached && made.cached
	b.result.Compiler = fmt.Sprintf("QNN %s (plugin %s, ONNX Runtime %s)",
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

// target is what is compiled for, and with which libraries where they are named.
type target struct {
	soc, arch    int64  // numbers of the vendor: soc_model, htp_arch
	vtcm         int64  // MiB of the NPU's own memory
	opt          int64  // level of optimisation, 0 to 3
	library, ort string // files, "": found
}

// readTarget reads a target's options: soc_model, htp_arch and vtcm_mb are needed, opt is 0 to 3 (3); library and
// onnxruntime name files.
func readTarget(asked driver.Target) (target, error) {
	to := target{opt: 3}
	fields := map[string]*int64{"soc_model": &to.soc, "htp_arch": &to.arch, "vtcm_mb": &to.vtcm, "opt": &to.opt}
	files := map[string]*string{"library": &to.library, "onnxruntime": &to.ort}
	for _, key := range slices.Sorted(maps.Keys(asked.Options)) {
		if file := files[key]; file != nil {
			*file = asked.Options[key]
			continue
		}
		to, ok := fields[key]
		if !ok {
			return target{}, diag.New(diag.ClassInput,
				"target option %q is unknown, want soc_model, htp_arch, vtcm_mb, opt, library, onnxruntime", key)
		}
		number, err := strconv.ParseInt(asked.Options[key], 10, 32)
		if err != nil || number < 0 {
			return target{}, diag.New(diag.ClassInput, "target option %s is %q, want a number", key, asked.Options[key])
		}
		*to = number
	}
	for _, key := range []string{"soc_model", "htp_arch", "vtcm_mb"} {
		if *fields[key] == 0 {
			return target{}, diag.New(diag.ClassInput, "target option %q is missing", key).
				WithHint("write it into target: of the SoC's processor")
		}
	}
	if to.opt > 3 {
		return target{}, diag.New(diag.ClassInput, "target option opt is %d, want 0 to 3", to.opt)
	}
	return to, nil
}

// Identity names everything of this machine that decides what is compiled for a target: the digests of the
// vendor's libraries. The error is ErrUnavailable where they are missing.
func (c *compiler) Identity(ctx context.Context, t driver.Target) (string, error) {
	to, err := readTarget(t)
	if err != nil {
		return "", err
	}
	cache, err := c.cache()
	if err != nil {
		return "", err
	}
	if cache != nil {
		defer cache.Close()
	}
	tools, err := c.tools(ctx, to, cache)
	if err != nil {
		return "", err
	}
	return tools.key, nil
}

// options returns the provider's for compiling. The size of VTCM is always given: without it the library notes another
// one than it uses.
func (t target) options() [][2]string {
	text := func(v int64) string { return strconv.FormatInt(v, 10) }
	return [][2]string{
		{"soc_model", text(t.soc)}, {"htp_arch", text(t.arch)}, {"vtcm_mb", text(t.vtcm)},
		{"htp_graph_finalization_optimization_mode", text(t.opt)},
		{"offload_graph_io_quantization", "1"}, {"enable_htp_spill_fill_buffer", "1"},
	}
}

// matches refuses a binary for another device than was asked for: the library takes one architecture for an unknown
// SoC, and in its compatibility string repeats what it was told, not what it did.
func (t target) matches(a *answer, token string) error {
	parts := strings.Split(token, ":")
	switch {
	case a.SoC != t.soc || a.Arch != t.arch:
		return diag.New(diag.ClassInput,
			"the compiler made a binary for soc_model %d, htp_arch %d, want soc_model %d, htp_arch %d",
			a.SoC, a.Arch, t.soc, t.arch).
			WithHint("the SoC's target: does not fit the device; see the vendor's table of SoCs")
	case len(parts) < 6 || parts[4] != strconv.FormatInt(t.arch, 10) || parts[5] != strconv.FormatInt(t.soc, 10):
		return diag.New(diag.ClassInput,
			"the binary's compatibility string is %q, want one of htp_arch %d, soc_model %d", token, t.arch, t.soc)
	}
	return nil
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

// result is what a process made; it is what the cache keeps.
type result struct {
	Answer             answer
	Models             [][]byte // compiled, in the order of the jobs
	Shared             []byte   // the binary that they refer to; nil: each holds its own
	Emulated, Portable [][]byte // results of the first graph's sample

	cached bool // no process ran
}

// graphError says at which graph of a process something happened.
type graphError struct {
	graph int
	err   error
}

// Error is that of the graph; which graph it is, callers take from the field.
func (e *graphError) Error() string { return e.err.Error() }
func (e *graphError) Unwrap() error { return e.err }

// compile returns what a process makes of jobs, from the cache if it is there.
func (b *groupJob) compile(ctx context.Context, jobs []*job, shared bool) (*result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// All that the bytes depend on: how hetc translates, the libraries, the target, and the graphs with their samples.
	parts := []string{translation, b.tools.key, fmt.Sprint(b.to.options()), fmt.Sprint(shared)}
	for _, j := range jobs {
		parts = append(parts, j.digest, "sample", j.sampleDigest)
	}
	key := cas.KeyOf("qnn", parts...)
	if b.cache != nil {
		data, err := b.cache.Read(key)
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
	made, err := b.start(ctx, jobs, shared)
	if err != nil {
		return nil, err
	}
	if b.cache != nil {
		e, err := b.cache.Put(key, made.write)
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

// resultHeader is the beginning of a kept result: what follows are the parts, one behind the other.
type resultHeader struct {
	Answer answer
	Parts  [4][]int64 // bytes of the models, the shared binary, results of the emulator, and of the source
}

// parts returns the contents of a result.
func (r *result) parts() [4][][]byte {
	return [4][][]byte{r.Models, {r.Shared}, r.Emulated, r.Portable}
}

// write keeps a result in a file: the length of a header, the header, the parts.
func (r *result) write(path string) error {
	header := resultHeader{Answer: r.Answer}
	var all [][]byte
	for i, list := range r.parts() {
		for _, part := range list {
			header.Parts[i], all = append(header.Parts[i], int64(len(part))), append(all, part)
		}
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	return writeNew(filepath.Dir(path), filepath.Base(path),
		slices.Concat([][]byte{binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text}, all)...)
}

// decode reads a result back, without copying its parts. One that this version of hetc does not understand is made
// again.
func decode(data []byte, graphs int) (*result, error) {
	short := errors.New("it is too short")
	if len(data) < 8 {
		return nil, short
	}
	size := binary.LittleEndian.Uint64(data)
	if data = data[8:]; size > uint64(len(data)) {
		return nil, short
	}
	var header resultHeader
	if err := json.Unmarshal(data[:size], &header); err != nil {
		return nil, err
	}
	data = data[size:]
	var parts [4][][]byte
	for i, list := range header.Parts {
		for _, size := range list {
			if size < 0 || size > int64(len(data)) {
				return nil, short
			}
			parts[i], data = append(parts[i], data[:size:size]), data[size:]
		}
	}
	made := &result{Answer: header.Answer, Models: parts[0], Emulated: parts[2], Portable: parts[3]}
	if len(made.Models) != graphs || len(made.Answer.Graphs) != graphs || len(parts[1]) != 1 {
		return nil, errors.New("it is of other graphs")
	}
	if len(parts[1][0]) > 0 {
		made.Shared = parts[1][0]
	}
	return made, nil
}

// folder makes one for a process: in the cache, where the next one removes what a killed one leaves, or among the
// temporary files.
func (b *groupJob) folder() (string, error) {
	if b.cache != nil {
		return b.cache.Scratch()
	}
	dir, err := os.MkdirTemp("", "hetc-qnn-")
	if err != nil {
		return "", diag.New(diag.ClassIO, "make a folder for the compiler: %w", err)
	}
	return dir, nil
}

// start runs a process in a folder of its own.
func (b *groupJob) start(ctx context.Context, jobs []*job, shared bool) (_ *result, err error) {
	var weights int64
	for _, part := range jobs[0].weights {
		weights += int64(len(part))
	}
	release, err := b.budget.take(ctx, processMemory+int64(len(jobs)+memoryFactor)*weights)
	if err != nil {
		return nil, err
	}
	defer release()
	dir, err := b.folder()
	if err != nil {
		return nil, err
	}
	defer func() {
		if failed := os.RemoveAll(dir); failed != nil && err == nil {
			err = diag.New(diag.ClassIO, "remove the compiler's folder: %w", failed)
		}
	}()
	if err := b.ask(dir, jobs, shared); err != nil {
		return nil, err
	}
	reply, err := b.process(ctx, b.tools, dir, len(jobs))
	if err != nil {
		return nil, err
	}
	made := &result{Answer: *reply}
	return made, made.readBack(dir, jobs, shared)
}

// ask writes the request and the files that it refers to. All jobs read the same weights.
func (b *groupJob) ask(dir string, jobs []*job, shared bool) error {
	asked := request{ORT: b.tools.ort.Path, Provider: b.tools.qnn.Provider, Backend: b.tools.qnn.Backend,
		System: b.tools.system, Options: b.to.options(), Shared: shared, Memory: b.options.Memory}
	for i, j := range jobs {
		if !slices.EqualFunc(j.weights, jobs[0].weights, bytes.Equal) {
			return &graphError{i, diag.New(diag.ClassInput, "it reads other weights than the first of its group")}
		}
		asked.Graphs = append(asked.Graphs, task{j.inputs, j.outputs, j.sample != nil})
		if err := j.write(dir, i); err != nil {
			return err
		}
	}
	if err := writeNew(dir, weightsFile, jobs[0].weights...); err != nil {
		return err
	}
	text, err := json.Marshal(asked)
	if err != nil {
		return err
	}
	if err := writeNew(dir, requestFile, text); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, outFolder), 0o700); err != nil {
		return diag.New(diag.ClassIO, "make a folder for the compiler: %w", err)
	}
	return nil
}

// readBack reads what the process made of jobs: the models in their canonical form, the shared binary, and the results
// of the first job's sample.
func (r *result) readBack(dir string, jobs []*job, shared bool) (err error) {
	for i := range jobs {
		code, err := os.ReadFile(filepath.Join(dir, contextFile(i)))
		if err != nil {
			return diag.New(diag.ClassIO, "read what was compiled: %w", err)
		}
		model, err := onnx.Read(code)
		if err != nil {
			return err
		}
		r.Models = append(r.Models, model.Marshal())
	}
	if shared {
		if r.Shared, err = os.ReadFile(filepath.Join(dir, outFolder, sharedFile)); err != nil {
			return diag.New(diag.ClassIO, "read what was compiled: %w", err)
		}
	}
	if jobs[0].sample == nil {
		return nil
	}
	for what, to := range map[string]*[][]byte{"emulated": &r.Emulated, "portable": &r.Portable} {
		for at, output := range jobs[0].outputs {
			raw, err := os.ReadFile(filepath.Join(dir, resultFile(0, at, what)))
			if err != nil || int64(len(raw)) != output.bytes() {
				return diag.New(diag.ClassIO, "read the sample's result: %d bytes, want %d (%w)",
					len(raw), output.bytes(), err)
			}
			*to = append(*to, raw)
		}
	}
	return nil
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

// writeNew writes a file of the process's folder.
func writeNew(dir, name string, parts ...[]byte) error {
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return diag.New(diag.ClassIO, "write for the compiler: %w", err)
	}
	for _, part := range parts {
		if _, err = file.Write(part); err != nil {
			break
		}
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return diag.New(diag.ClassIO, "write for the compiler: %w", err)
	}
	return nil
}

// process runs the compiler in dir, where so many graphs are, and reads its answer. A process that
// crashes, hangs or ends without an answer is an error of the graph that it last said it worked on. A
// full disk is told apart first, because the library has many words for it.
// RATIONALE: Why does a vendor's compiler run in a process of its own, in a folder of its own?
func (c *compiler) process(ctx context.Context, tools *toolchain, dir string, graphs int) (*answer, error) {
	limited, cancel := patience.WithTimeout(ctx, c.options.Time)
	defer cancel()
	process := exec.CommandContext(limited, tools.program, workerArg)
	process.Dir = dir
	process.Env = child.Env("TMPDIR=" + dir) // libraries leave files there
	ownProcessGroup(process)
	process.WaitDelay = time.Second
	var output outputEnds
	process.Stdout, process.Stderr = &output, &output
	alive, err := process.StdinPipe() // it ends when we do
	if err != nil {
		return nil, diag.New(diag.ClassRun, "start the compiler: %w", err)
	}
	defer alive.Close()
	if err := process.Start(); err != nil {
		return nil, diag.New(diag.ClassRun, "start the compiler: %w", err)
	}
	ended := process.Wait()
	// What it left says how far it came: the graph it worked on, and its answer if there is one.
	at := -1
	if text, err := os.ReadFile(filepath.Join(dir, progressFile)); err == nil {
		at, _ = strconv.Atoi(string(text))
	}
	text, err := os.ReadFile(filepath.Join(dir, answerFile))
	var reply *answer
	if err == nil && ended == nil {
		reply, err = readAnswer(text, graphs)
	}
	if ctx.Err() == nil && (ended != nil || err != nil || reply.Failed != nil) {
		// The library has many words for a full disk, which is no fault of the graph.
		if err := writeNew(dir, "room", make([]byte, 1<<20)); err != nil {
			return nil, err
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case limited.Err() != nil:
		return nil, &graphError{at, diag.New(diag.ClassRun, "the compiler was stopped after %v%s",
			c.options.Time, output.text())}
	case ended != nil:
		return nil, &graphError{at, diag.New(diag.ClassRun, "the compiler crashed: %w%s", ended, output.text()).
			WithHint("its memory is limited to %d MiB", c.options.Memory>>20)}
	case err != nil:
		return nil, &graphError{at, diag.New(diag.ClassRun, "the compiler ended without an answer: %w%s",
			err, output.text())}
	case reply.Failed != nil:
		return nil, &graphError{reply.Failed.Graph, diag.New(reply.Failed.Class, "%s%s",
			reply.Failed.Summary, output.text())}
	}
	return reply, nil
}

// outputEnds keeps the beginning and the end of what a process says.
type outputEnds struct {
	mu        sync.Mutex
	head, end []byte
}

// Write implements io.Writer. It never fails, so that the process is not stopped by what it says.
func (t *outputEnds) Write(text []byte) (int, error) {
	const most = 1500 // bytes of each
	t.mu.Lock()
	defer t.mu.Unlock()
	size := min(len(text), most-len(t.head))
	t.head = append(t.head, text[:size]...)
	t.end = append(t.end, text[size:]...)
	if cut := len(t.end) - most; cut > 0 {
		t.end = append([]byte(" ... "), t.end[cut:]...)
	}
	return len(text), nil
}

// text returns what was said, on one line, to follow an error.
func (t *outputEnds) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if said := strings.Join(strings.Fields(string(t.head)+string(t.end)), " "); said != "" {
		return "; it said: " + said
	}
	return ""
}

// toolchain is what compiles.
type toolchain struct {
	program string // this one, which becomes the compiler's process when it is started with workerArg
	ort     *ortapi.Library
	qnn     *ortapi.QNN
	system  string // the library that reads binaries
	key     string // digests of all libraries
}

// tools finds a target's libraries, once.
func (c *compiler) tools(ctx context.Context, to target, cache *cas.Cache) (*toolchain, error) {
	// Kept for the compiler's life: reading the libraries for their digests takes longer than finding them.
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [2]string{to.library, to.ort}
	if found := c.toolchains[key]; found != nil {
		return found, nil
	}
	qnn, err := ortapi.FindQNN(to.library)
	if err != nil {
		problem := &driver.Unavailable{Driver: name, Override: ortapi.EnvQNN, Get: ortapi.GetQNN}
		if qe, ok := errors.AsType[*ortapi.QNNError](err); ok {
			problem.Tried = qe.Tried
			if qe.Cause != nil {
				problem.Found = qe.Cause.Error()
			}
		}
		return nil, problem
	}
	ort, err := ortapi.Find(to.ort)
	if err != nil {
		problem := &driver.Unavailable{Driver: name, Found: err.Error(), Override: ortapi.EnvLibrary,
			Get: "make deps fetches ONNX Runtime"}
		if le, ok := errors.AsType[*ortapi.LoadError](err); ok {
			problem.Tried = le.Tried
		}
		return nil, problem
	}
	found := &toolchain{ort: ort, qnn: qnn,
		system: filepath.Join(filepath.Dir(qnn.Provider), native.FileNames("QnnSystem")[0])}
	if found.program, err = os.Executable(); err != nil {
		return nil, diag.New(diag.ClassUnavailable, "the program's own file is not known: %w", err)
	}
	// The key of the cache: another library may compile other bytes.
	list := []string{ort.Version}
	for _, path := range []string{ort.Path, qnn.Provider, qnn.Backend, found.system} {
		sum, err := digest(ctx, path, cache)
		if err != nil {
			return nil, err
		}
		list = append(list, sum)
	}
	found.key = strings.Join(list, " ")
	c.toolchains[key] = found
	return found, nil
}

// digest is that of a library's file. It is remembered for its path, size and time of change: these files are large.
func digest(ctx context.Context, path string, cache *cas.Cache) (string, error) {
	fail := func(err error) (string, error) {
		return "", &driver.Unavailable{Driver: name, Found: fmt.Sprintf("library %q: %v",
			path, err), Override: ortapi.EnvQNN, Get: ortapi.GetQNN}
	}
	if !strings.ContainsAny(path, `/\`) { // the system's loader found it; its version says what it is
		return path, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return fail(err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return fail(err)
	}
	key := cas.KeyOf("library", path, fmt.Sprint(st.Size()), fmt.Sprint(st.ModTime().UnixNano()))
	if cache != nil {
		if sum, _, ok, err := cache.Sum(key); err == nil && ok {
			return sum.String(), nil
		}
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return fail(err)
	}
	var d cas.Digest
	hash.Sum(d[:0])
	if cache != nil {
		if err := cache.Note(key, d, st.Size()); err != nil {
			return "", err
		}
	}
	return d.String(), nil
}
