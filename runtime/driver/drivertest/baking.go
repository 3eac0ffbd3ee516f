package drivertest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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

// Baker makes artifacts that hold their weights of those of another compiler, and loads them with its driver: what a
// vendor's compiler and driver do, without them. The weights are in the layouts of the other driver.
type Baker struct {
	name     string
	driver   driver.Driver
	compiler driver.Compiler

	// Refuse, if set, is asked about every piece; an error is why it cannot be compiled.
	Refuse func(p driver.Piece) error
	// Disturb, if set, changes what a sample's results are said to be.
	Disturb func(p driver.Piece, emulated [][]byte)
	// Fail, if set, is why nothing can be compiled.
	Fail error
	// Keep, if set, holds what was made of weights that come later (driver.Later), and they are not asked for again.
	Keep map[string]*driver.Baked

	mu    sync.Mutex
	Baked []string // names of the pieces that were compiled, in the order of the calls
}

// NewBaker wraps a driver and its compiler as a pair called name.
func NewBaker(name string, d driver.Driver, c driver.Compiler) *Baker {
	return &Baker{name: name, driver: d, compiler: c}
}

// Driver loads what the Baker makes.
func (b *Baker) Driver() driver.Driver { return &bakingDriver{b.driver, b} }

// Name is that of the pair.
func (b *Baker) Name() string { return b.name }

// Token is the compatibility string of what is baked.
const Token = "baked:1"

// Compile refuses: artifacts hold their weights.
func (b *Baker) Compile(context.Context, op.Graph, driver.Weights, driver.Target) (driver.Artifact, error) {
	return driver.Artifact{}, diag.New(diag.ClassInput, "compile without weights: artifacts of %q hold theirs", b.name)
}

// bakedCode is an artifact.
type bakedCode struct {
	Token   string        `json:"token"`
	Code    []byte        `json:"code"`
	Specs   []bakedWeight `json:"weights"`
	Shared  string        `json:"shared,omitempty"` // SHA-256 of the binary that holds the weights' bytes
	Weights []byte        `json:"bytes,omitempty"`
}

type bakedWeight struct {
	Spec   op.WeightSpec `json:"spec"`
	Stride int64         `json:"stride"`
	Bytes  int           `json:"bytes"`
}

// Bake implements driver.Baker.
func (b *Baker) Bake(ctx context.Context, group []driver.Piece, t driver.Target) (*driver.Baked, error) {
	if b.Fail != nil {
		return nil, b.Fail
	}
	refused := &driver.Refused{}
	for i, p := range group {
		if b.Refuse != nil {
			if err := b.Refuse(p); err != nil {
				refused.Pieces, refused.Reasons = append(refused.Pieces, i), append(refused.Reasons, err)
			}
		}
	}
	if len(refused.Pieces) > 0 {
		return nil, refused
	}
	out := &driver.Baked{Compiler: "test compiler 1", Token: Token}
	if x := b.kept(group, t); x != nil {
		return x, nil
	}
	for i, p := range group {
		var err error
		if p.Weights, p.Sample, err = p.Now(); err != nil {
			return nil, err
		}
		var all []byte
		for _, w := range p.Weights {
			all = append(all, w.Bytes...)
		}
		if i > 0 && !t.Emulator && !slices.Equal(all, out.Shared) {
			return nil, fmt.Errorf("pieces %q and %q hold other weights", group[0].Name, p.Name)
		}
		make := func(alone bool) ([]byte, error) {
			a, err := b.compiler.Compile(ctx, p.Graph, p.Weights, t)
			if err != nil {
				return nil, err
			}
			c := bakedCode{Token: Token, Code: a.Code}
			for _, w := range p.Weights {
				c.Specs = append(c.Specs, bakedWeight{w.Spec, w.Stride, len(w.Bytes)})
			}
			if alone {
				c.Weights = all
			} else {
				sum := sha256.Sum256(all)
				c.Shared = hex.EncodeToString(sum[:])
			}
			return json.Marshal(c)
		}
		code, err := make(t.Emulator)
		if err != nil {
			return nil, err
		}
		a := driver.BakedArtifact{Artifact: driver.Artifact{Driver: b.name, Code: code, Facts: map[string]int64{"bytes": int64(len(code)), "spill_bytes": 0}}}
		if !t.Emulator {
			out.Shared = all
			if out.Shared == nil {
				out.Shared = []byte{}
			}
			a.Shared = out.Shared
		}
		if p.Sample != nil {
			if a.Emulated, err = b.execute(ctx, p); err != nil {
				return nil, err
			}
			for _, v := range a.Emulated {
				a.Portable = append(a.Portable, slices.Clone(v))
			}
			if b.Disturb != nil {
				b.Disturb(p, a.Emulated)
			}
			twin, err := make(true)
			if err != nil {
				return nil, err
			}
			sum := sha256.Sum256(twin)
			a.Twin = hex.EncodeToString(sum[:])
		}
		out.Artifacts = append(out.Artifacts, a)
		b.mu.Lock()
		b.Baked = append(b.Baked, p.Name)
		b.mu.Unlock()
	}
	if key := keyOf(group, t); b.Keep != nil && key != "" {
		b.mu.Lock()
		kept := *out
		kept.Cached = true
		b.Keep[key] = &kept
		b.mu.Unlock()
	}
	return out, nil
}

// kept is what was made of equal pieces before, nil for nothing.
func (b *Baker) kept(group []driver.Piece, t driver.Target) *driver.Baked {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Keep[keyOf(group, t)]
}

// keyOf names a group whose weights are known by their digests, "" for another.
func keyOf(group []driver.Piece, t driver.Target) string {
	key := fmt.Sprint(t.Emulator)
	for _, p := range group {
		if p.Later == nil {
			return ""
		}
		text, err := json.Marshal(&p.Graph)
		if err != nil {
			return ""
		}
		key += fmt.Sprintf(" %s %s %s", text, p.Later.Weights, p.Later.Sample)
	}
	return key
}

// execute runs a sample on the wrapped driver.
func (b *Baker) execute(ctx context.Context, p driver.Piece) ([][]byte, error) {
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

func (b *Baker) run(ctx context.Context, p driver.Piece) (out [][]byte, err error) {
	devices, err := b.driver.Devices(ctx)
	if err != nil {
		return nil, err
	}
	x, err := b.driver.Open(ctx, driver.Config{Select: devices[0].Select})
	if err != nil {
		return nil, err
	}
	defer x.Close()
	if err := x.Attach(); err != nil {
		return nil, err
	}
	a, err := b.compiler.Compile(ctx, p.Graph, p.Weights, driver.Target{})
	if err != nil {
		return nil, err
	}
	exe, err := x.Load(ctx, a, p.Weights)
	if err != nil {
		return nil, err
	}
	defer exe.Close()
	rows := p.Graph.Rows()
	bind := driver.Bindings{Scalars: &driver.Scalars{Rows: rows, KVLen: rows, Seq: rows}}
	views := map[string]driver.View{}
	view := func(v op.Value) (driver.View, error) {
		if w, ok := views[v.Name]; ok {
			return w, nil
		}
		buf, err := x.Alloc(int64(v.Rows) * int64(v.Cols) * int64(v.Type.Bytes()))
		views[v.Name] = driver.View{Buffer: buf, Type: v.Type, Rows: v.Rows, Cols: v.Cols, Stride: v.Cols}
		return views[v.Name], err
	}
	for i, v := range p.Graph.Inputs {
		w, err := view(v)
		if err != nil {
			return nil, err
		}
		copy(w.Buffer.Bytes(), p.Sample[i])
		bind.In = append(bind.In, w)
	}
	for _, v := range p.Graph.Outputs {
		w, err := view(v)
		if err != nil {
			return nil, err
		}
		bind.Out = append(bind.Out, w)
	}
	if _, err := x.Run(exe, &bind); err != nil {
		return nil, err
	}
	for _, w := range bind.Out {
		out = append(out, slices.Clone(w.Bytes()))
	}
	for _, w := range views {
		err = errors.Join(err, w.Buffer.Close())
	}
	return out, err
}

// bakingDriver loads artifacts that hold their weights.
type bakingDriver struct {
	driver.Driver
	b *Baker
}

func (d *bakingDriver) Name() string { return d.b.name }

// Accepts is the compatibility check of artifacts.
func (d *bakingDriver) Accepts(token string) error {
	if token != Token {
		return fmt.Errorf("token %q, want %q", token, Token)
	}
	return nil
}

func (d *bakingDriver) Open(ctx context.Context, c driver.Config) (driver.Processor, error) {
	p, err := d.Driver.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	caps := *p.Capabilities()
	caps.Set = caps.Set.Clone()
	caps.Bakes, caps.WeightRanges, caps.DynamicRows, caps.StridedInput, caps.StridedOutput = true, false, false, false, false
	return &bakingProcessor{p, &caps, d}, nil
}

type bakingProcessor struct {
	driver.Processor
	caps *driver.Capabilities
	d    *bakingDriver
}

func (p *bakingProcessor) Capabilities() *driver.Capabilities { return p.caps }

func (p *bakingProcessor) Load(ctx context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	if len(w) > 0 {
		return nil, diag.New(diag.ClassInput, "load artifact on %q: %d weights, and it holds its own", p.d.b.name, len(w))
	}
	var c bakedCode
	if err := json.Unmarshal(a.Code, &c); err != nil {
		return nil, diag.New(diag.ClassInput, "load artifact on %q: %w", p.d.b.name, err)
	}
	if err := p.d.Accepts(c.Token); err != nil {
		return nil, diag.New(diag.ClassInput, "load artifact on %q: %w", p.d.b.name, err)
	}
	from := c.Weights
	if c.Shared != "" {
		from = a.Shared
		if sum := sha256.Sum256(from); hex.EncodeToString(sum[:]) != c.Shared {
			return nil, diag.New(diag.ClassInput, "load artifact on %q: the shared binary has digest %x, want %s", p.d.b.name, sum, c.Shared)
		}
	}
	e := &bakedExecutable{}
	for _, s := range c.Specs {
		if s.Bytes < 0 || s.Bytes > len(from) {
			return nil, errors.Join(diag.New(diag.ClassInput, "load artifact on %q: weights of %d bytes, want %d more", p.d.b.name, len(from), s.Bytes), e.Close())
		}
		buf, err := driver.AllocHost(p.d.b.name, int64(s.Bytes))
		if err != nil {
			return nil, errors.Join(err, e.Close())
		}
		e.memory = append(e.memory, buf)
		copy(buf.Bytes(), from[:s.Bytes])
		from = from[s.Bytes:]
		w = append(w, driver.Packed{Spec: s.Spec, Bytes: buf.Bytes(), Stride: s.Stride})
	}
	exe, err := p.Processor.Load(ctx, driver.Artifact{Driver: p.d.Driver.Name(), Code: c.Code}, w)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	e.Executable = exe
	return e, nil
}

func (p *bakingProcessor) Run(exe driver.Executable, b *driver.Bindings) (driver.Span, error) {
	return p.Processor.Run(exe.(*bakedExecutable).Executable, b)
}

// bakedExecutable owns its weights.
type bakedExecutable struct {
	driver.Executable
	memory []driver.Buffer
}

func (e *bakedExecutable) Close() error {
	var err error
	if e.Executable != nil {
		err = e.Executable.Close()
	}
	for _, m := range e.memory {
		err = errors.Join(err, m.Close())
	}
	return err
}
