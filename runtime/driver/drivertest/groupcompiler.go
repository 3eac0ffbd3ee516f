package drivertest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// GroupCompiler makes artifacts that hold their weights out of those of another compiler, and loads them
// with its driver. It stands for a vendor's compiler and driver in tests. The weights are in the
// layouts of the other driver.
type GroupCompiler struct {
	name     string
	driver   driver.Driver
	compiler driver.Compiler

	// Refuse, if set, is asked about every piece; an error means that it cannot be compiled.
	Refuse func(p driver.Piece) error
	// Disturb, if set, changes the results that the compiler claims for a sample.
	Disturb func(p driver.Piece, emulated [][]byte)
	// Fail, if set, is the error of every compilation.
	Fail error
	// Keep, if set, caches what was made of weights given by digest (driver.Later), so that they
	// are not asked for again.
	Keep map[string]*driver.CompiledGroup

	mu       sync.Mutex
	Compiled []string // names of the pieces that were compiled, in the order of the calls
}

// NewGroupCompiler wraps a driver and its compiler as a pair called name.
func NewGroupCompiler(name string, d driver.Driver, c driver.Compiler) *GroupCompiler {
	return &GroupCompiler{name: name, driver: d, compiler: c}
}

// Driver returns the driver that loads the artifacts.
func (b *GroupCompiler) Driver() driver.Driver { return &groupDriver{b.driver, b} }

// Name is that of the pair.
func (b *GroupCompiler) Name() string { return b.name }

// Token is the compatibility string of the artifacts.
const Token = "compiled:1"

// Compile always fails: artifacts need their weights at compile time, in CompileGroup.
func (b *GroupCompiler) Compile(context.Context, op.Graph, driver.Weights, driver.Target) (driver.Artifact, error) {
	return driver.Artifact{}, diag.New(diag.ClassInput, "compile without weights: artifacts of %q hold theirs", b.name)
}

// compiledCode is the JSON of an artifact: the other compiler's code, and the weights or the digest of
// the shared binary that holds them.
type compiledCode struct {
	Token   string           `json:"token"`
	Code    []byte           `json:"code"`
	Specs   []artifactWeight `json:"weights"`
	Shared  string           `json:"shared,omitempty"` // SHA-256 of the binary that holds the weights' bytes
	Weights []byte           `json:"bytes,omitempty"`
}

// artifactWeight describes one weight; their bytes follow each other.
type artifactWeight struct {
	// Stride is in bytes between experts, 0 without them; Bytes is the size of all.
	Spec   op.WeightSpec `json:"spec"`
	Stride int64         `json:"stride"`
	Bytes  int           `json:"bytes"`
}

// CompileGroup implements driver.GroupCompiler.
func (b *GroupCompiler) CompileGroup(ctx context.Context, group []driver.Piece,
	target driver.Target) (*driver.CompiledGroup, error) {
	if b.Fail != nil {
		return nil, b.Fail
	}
	if err := b.refused(group); err != nil {
		return nil, err
	}
	if kept := b.kept(group, target); kept != nil {
		return kept, nil
	}
	out := &driver.CompiledGroup{Compiler: "test compiler 1", Token: Token}
	for i := range group {
		piece := group[i]
		var err error
		if piece.Weights, piece.Sample, err = piece.Now(); err != nil {
			return nil, err
		}
		// A group shares the weights of its first piece, which become the shared binary. For the emulator each artifact
		// holds its own.
		switch all := bytesOf(piece.Weights); {
		case target.Emulator:
		case i == 0:
			out.Shared = all
		case !slices.Equal(all, out.Shared):
			return nil, fmt.Errorf("pieces %q and %q hold other weights", group[0].Name, piece.Name)
		}
		compiled, err := b.compiled(ctx, piece, target)
		if err != nil {
			return nil, err
		}
		compiled.Shared = out.Shared
		out.Artifacts = append(out.Artifacts, compiled)
		b.mu.Lock()
		b.Compiled = append(b.Compiled, piece.Name)
		b.mu.Unlock()
	}
	b.keep(group, target, out)
	return out, nil
}

// refused asks about all pieces, so that the caller learns in one call what to leave out of the group.
func (b *GroupCompiler) refused(group []driver.Piece) error {
	refused := &driver.Refused{}
	for i, piece := range group {
		if b.Refuse == nil {
			continue
		}
		if err := b.Refuse(piece); err != nil {
			refused.Pieces, refused.Reasons = append(refused.Pieces, i), append(refused.Reasons, err)
		}
	}
	if len(refused.Pieces) > 0 {
		return refused
	}
	return nil
}

// bytesOf returns the bytes of all weights, one after the other; not nil.
func bytesOf(weights driver.Weights) []byte {
	all := []byte{}
	for _, weight := range weights {
		all = append(all, weight.Bytes...)
	}
	return all
}

// compiled makes the artifact of a piece. A sample is executed here, as a vendor's emulator would; its twin is the
// artifact that such an emulator loads.
func (b *GroupCompiler) compiled(ctx context.Context, piece driver.Piece,
	target driver.Target) (out driver.CompiledArtifact, err error) {
	code, err := b.code(ctx, piece, target, target.Emulator)
	if err != nil {
		return out, err
	}
	out.Artifact = driver.Artifact{Driver: b.name, Code: code,
		Facts: map[string]int64{"bytes": int64(len(code)), "spill_bytes": 0}}
	if piece.Sample == nil {
		return out, nil
	}
	if out.Emulated, err = b.execute(ctx, piece); err != nil {
		return out, err
	}
	for _, part := range out.Emulated {
		out.Portable = append(out.Portable, slices.Clone(part))
	}
	if b.Disturb != nil {
		b.Disturb(piece, out.Emulated)
	}
	twin, err := b.code(ctx, piece, target, true)
	out.Twin = fmt.Sprintf("%x", sha256.Sum256(twin))
	return out, err
}

// code compiles a piece with its weights inside (alone), or with the digest of those of the group.
func (b *GroupCompiler) code(ctx context.Context, piece driver.Piece, target driver.Target, alone bool) ([]byte,
	error) {
	artifact, err := b.compiler.Compile(ctx, piece.Graph, piece.Weights, target)
	if err != nil {
		return nil, err
	}
	code := compiledCode{Token: Token, Code: artifact.Code}
	for _, weight := range piece.Weights {
		code.Specs = append(code.Specs, artifactWeight{weight.Spec, weight.Stride, len(weight.Bytes)})
	}
	all := bytesOf(piece.Weights)
	if alone {
		code.Weights = all
	} else {
		code.Shared = fmt.Sprintf("%x", sha256.Sum256(all))
	}
	return json.Marshal(code)
}

// keep notes what was made of a group whose weights have digests: others cannot be recognised again without reading the
// weights.
func (b *GroupCompiler) keep(group []driver.Piece, target driver.Target, made *driver.CompiledGroup) {
	key := keyOf(group, target)
	if b.Keep == nil || key == "" {
		return
	}
	kept := *made
	kept.Cached = true
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Keep[key] = &kept
}

// kept returns what was made of equal pieces before, nil for nothing.
func (b *GroupCompiler) kept(group []driver.Piece, t driver.Target) *driver.CompiledGroup {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Keep[keyOf(group, t)]
}

// keyOf returns the cache key of a group whose weights are given by digest, "" for any other.
func keyOf(group []driver.Piece, t driver.Target) string {
	key := fmt.Sprint(t.Emulator)
	for _, piece := range group {
		if piece.Later == nil {
			return ""
		}
		text, err := json.Marshal(&piece.Graph)
		if err != nil {
			return ""
		}
		key += fmt.Sprintf(" %s %s %s", text, piece.Later.Weights, piece.Later.Sample)
	}
	return key
}

// execute runs a sample on the wrapped driver, on a thread of its own as the driver wants it.
func (b *GroupCompiler) execute(ctx context.Context, p driver.Piece) ([][]byte, error) {
	type result struct {
		out [][]byte
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // for good
		out, err := b.run(ctx, p)
		done <- result{out, err}
	}()
	r := <-done
	return r.out, r.err
}

// run executes a piece on the wrapped driver and returns its outputs.
func (b *GroupCompiler) run(ctx context.Context, piece driver.Piece) (out [][]byte, err error) {
	devices, err := b.driver.Devices(ctx)
	if err != nil {
		return nil, err
	}
	proc, err := b.driver.Open(ctx, driver.Config{Select: devices[0].Select})
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	if err := proc.Attach(); err != nil {
		return nil, err
	}
	artifact, err := b.compiler.Compile(ctx, piece.Graph, piece.Weights, driver.Target{})
	if err != nil {
		return nil, err
	}
	exe, err := proc.Load(ctx, artifact, piece.Weights)
	if err != nil {
		return nil, err
	}
	defer exe.Close()
	bind, buffers, err := bindSample(proc, &piece)
	if err == nil {
		_, err = proc.Run(exe, bind)
	}
	if err == nil {
		for _, view := range bind.Out {
			out = append(out, slices.Clone(view.Bytes()))
		}
	}
	for _, buffer := range buffers {
		err = errors.Join(err, buffer.Close())
	}
	return out, err
}

// bindSample returns the operands of one call from position 0 that uses all rows, as a sample has no state before it,
// and their buffers, which are the caller's to close also after an error. A value that is input and output at once has
// one view.
func bindSample(
	proc driver.Processor, piece *driver.Piece,
) (bind *driver.Bindings, buffers []driver.Buffer, err error) {
	rows := piece.Graph.Rows()
	bind = &driver.Bindings{Scalars: &driver.Scalars{Rows: rows, KVLen: rows, Seq: rows}}
	views := map[string]driver.View{}
	view := func(value op.Value) (driver.View, error) {
		if view, ok := views[value.Name]; ok {
			return view, nil
		}
		buffer, err := proc.Alloc(int64(value.Rows) * int64(value.Cols) * int64(value.Type.Bytes()))
		if err != nil {
			return driver.View{}, err
		}
		buffers = append(buffers, buffer)
		views[value.Name] = driver.View{Buffer: buffer, Type: value.Type, Rows: value.Rows, Cols: value.Cols,
			Stride: value.Cols}
		return views[value.Name], nil
	}
	for i, value := range piece.Graph.Inputs {
		input, err := view(value)
		if err != nil {
			return nil, buffers, err
		}
		copy(input.Buffer.Bytes(), piece.Sample[i])
		bind.In = append(bind.In, input)
	}
	for _, value := range piece.Graph.Outputs {
		output, err := view(value)
		if err != nil {
			return nil, buffers, err
		}
		bind.Out = append(bind.Out, output)
	}
	return bind, buffers, nil
}

// groupDriver loads the artifacts of a GroupCompiler. Its processors take neither ranges of weights nor
// strides, as NPUs do.
type groupDriver struct {
	driver.Driver
	b *GroupCompiler
}

// Name is that of the pair, so that bundles and plans do not name the wrapped driver.
func (d *groupDriver) Name() string { return d.b.name }

// Accepts checks the compatibility string of an artifact.
func (d *groupDriver) Accepts(token string) error {
	if token != Token {
		return fmt.Errorf("token %q, want %q", token, Token)
	}
	return nil
}

// Open opens a processor of the wrapped driver, and claims less for it than that could do.
func (d *groupDriver) Open(ctx context.Context, c driver.Config) (driver.Processor, error) {
	proc, err := d.Driver.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	caps := *proc.Capabilities()
	caps.Set = caps.Set.Clone()
	caps.WeightsInArtifacts, caps.WeightRanges, caps.DynamicRows = true, false, false
	caps.StridedInput, caps.StridedOutput = false, false
	return &groupProcessor{proc, &caps, d}, nil
}

// groupProcessor runs what the wrapped one does, with the capabilities of an NPU.
type groupProcessor struct {
	driver.Processor
	caps *driver.Capabilities
	d    *groupDriver
}

// Capabilities returns those that Open has reduced.
func (p *groupProcessor) Capabilities() *driver.Capabilities { return p.caps }

// Load copies the weights out of the artifact, or out of the shared binary, and has the wrapped
// driver load them.
func (p *groupProcessor) Load(ctx context.Context, artifact driver.Artifact,
	weights driver.Weights) (driver.Executable, error) {
	if len(weights) > 0 {
		return nil, diag.New(diag.ClassInput, "load artifact on %q: %d weights, and it holds its own", p.d.b.name,
			len(weights))
	}
	var code compiledCode
	if err := json.Unmarshal(artifact.Code, &code); err != nil {
		return nil, diag.New(diag.ClassInput, "load artifact on %q: %w", p.d.b.name, err)
	}
	if err := p.d.Accepts(code.Token); err != nil {
		return nil, diag.New(diag.ClassInput, "load artifact on %q: %w", p.d.b.name, err)
	}
	// from is what is left of the weights' bytes, which follow each other in the order of Specs.
	from := code.Weights
	if code.Shared != "" {
		from = artifact.Shared
		if sum := sha256.Sum256(from); fmt.Sprintf("%x", sum) != code.Shared {
			return nil, diag.New(diag.ClassInput, "load artifact on %q: the shared binary has digest %x, want %s",
				p.d.b.name, sum, code.Shared)
		}
	}
	loaded := &compiledExecutable{}
	for _, spec := range code.Specs {
		if spec.Bytes < 0 || spec.Bytes > len(from) {
			return nil, errors.Join(diag.New(diag.ClassInput,
				"load artifact on %q: weights of %d bytes, want %d more", p.d.b.name, len(from), spec.Bytes),
				loaded.Close())
		}
		buf, err := driver.AllocHost(p.d.b.name, int64(spec.Bytes))
		if err != nil {
			return nil, errors.Join(err, loaded.Close())
		}
		loaded.memory = append(loaded.memory, buf)
		copy(buf.Bytes(), from[:spec.Bytes])
		from = from[spec.Bytes:]
		weights = append(weights, driver.Packed{Spec: spec.Spec, Bytes: buf.Bytes(), Stride: spec.Stride})
	}
	inner := driver.Artifact{Driver: p.d.Driver.Name(), Code: code.Code, Graph: artifact.Graph}
	exe, err := p.Processor.Load(ctx, inner, weights)
	if err != nil {
		return nil, errors.Join(err, loaded.Close())
	}
	loaded.Executable = exe
	return loaded, nil
}

// Run hands the wrapped processor its own executable; the weights stay where Load has put them.
func (p *groupProcessor) Run(exe driver.Executable, b *driver.Bindings) (driver.Span, error) {
	return p.Processor.Run(exe.(*compiledExecutable).Executable, b)
}

// compiledExecutable owns its weights.
type compiledExecutable struct {
	driver.Executable
	memory []driver.Buffer
}

// Close closes the executable before the memory that it reads, and is called for half-loaded ones too.
func (e *compiledExecutable) Close() error {
	var err error
	if e.Executable != nil {
		err = e.Executable.Close()
	}
	for _, buffer := range e.memory {
		err = errors.Join(err, buffer.Close())
	}
	return err
}
