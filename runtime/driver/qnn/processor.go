package qnn

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// began is the origin of the clock of all processors of this process.
var began = time.Now()

// processor runs compiled graphs.
type processor struct {
	selected  string
	soc, arch int // of the options, 0: not given
	caps      *driver.Capabilities
	engine    engine

	mu       sync.Mutex // Close may come from another goroutine while a call runs
	attached bool
	closed   bool
	loaded   map[*executable]bool
	files    map[[32]byte]*staged
}

// executable is a loaded graph.
type executable struct {
	p      *processor
	m      *model
	id     int
	closed bool
	staged *staged
}

// staged is a shared binary in a folder of its own, for as long as graphs refer to it.
type staged struct {
	dir   string
	key   [32]byte
	used  int
	files int // of models beside it
}

func (p *processor) Capabilities() *driver.Capabilities { return p.caps }

// String names the processor in errors.
func (p *processor) String() string { return Name + ":" + p.selected }

// Attach pins nothing: the NPU, or the process that emulates it, computes.
func (p *processor) Attach() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return diag.New(diag.ClassRun, "attach to %s: the processor is closed", p)
	}
	if p.attached {
		return diag.New(diag.ClassRun, "attach to %s: already attached", p)
	}
	p.attached = true
	return nil
}

func (p *processor) Alloc(bytes int64) (driver.Buffer, error) {
	return driver.AllocHost(p.String(), bytes)
}

func (p *processor) Import(b []byte) (driver.Buffer, error) { return driver.ImportHost(p.String(), b) }

// Load takes no weights: they are compiled in.
func (p *processor) Load(ctx context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, diag.New(diag.ClassInput, "load artifact on %s: the processor is closed", p)
	}
	e, err := p.load(ctx, a, w)
	if err != nil {
		return nil, diag.New(diag.ClassOr(err, diag.ClassInput), "load artifact on %s: %w", p, err)
	}
	return e, nil
}

func (p *processor) load(ctx context.Context, a driver.Artifact, w driver.Weights) (*executable, error) {
	switch {
	case a.Driver != Name:
		return nil, fmt.Errorf("it was compiled for driver %q, want %q", a.Driver, Name)
	case len(w) > 0:
		return nil, fmt.Errorf("got %d weights, want none: they are compiled into the artifact", len(w))
	}
	m, err := parse(a.Code)
	if err != nil {
		return nil, err
	}
	for i, n := range m.graph.Nodes {
		if err := supports(p.caps, n.Op); err != nil {
			return nil, fmt.Errorf("node %d (%s): %w", i, n.Op.Kind, err)
		}
	}
	if err := m.token.match(p.soc, p.arch, p.engine.about().Backend.API); err != nil {
		return nil, err
	}
	switch {
	case m.shared && p.caps.Emulated:
		return nil, diag.New(diag.ClassInput, "its binary holds the weights of several graphs, which the emulator cannot load").
			WithHint("hetc emit --for-emulator writes the bundle with a binary for each graph")
	case m.shared != (len(a.Shared) > 0):
		return nil, diag.New(diag.ClassInput, "it says that its binary is %s, and got a shared one of %d bytes", map[bool]string{true: "shared", false: "its own"}[m.shared], len(a.Shared))
	}
	if !p.caps.Emulated {
		c, err := p.engine.compatible(m.token.text)
		if err != nil {
			return nil, err
		}
		if c == ortapi.Unsupported {
			return nil, diag.New(diag.ClassInput, "it was compiled for %s with SDK %s (%q), which the library says this device does not load", socName(m.token.soc), m.token.sdk, m.token.text).
				WithHint("emit the bundle for this SoC: hetc emit --target NAME")
		}
	}
	e := &executable{p: p, m: m}
	prog := program{Code: m.code, In: m.in, Out: m.out}
	if m.shared {
		if prog.File, err = p.stage(e, a.Shared); err != nil {
			return nil, err
		}
		prog.Code = nil
	}
	if e.id, err = p.engine.load(ctx, prog); err != nil {
		return nil, errors.Join(err, p.unstage(e))
	}
	m.code = nil // the library has its own copy
	p.loaded[e] = true
	return e, nil
}

// stage puts the artifact's model beside its shared binary, in a folder that nobody else can write to: the library
// opens the binary by the name in the model, from the model's folder. The bytes are those of a verified bundle.
func (p *processor) stage(e *executable, binary []byte) (file string, err error) {
	key := sha256.Sum256(binary)
	s := p.files[key]
	if s == nil {
		dir, err := os.MkdirTemp("", ".hetc-qnn-*") // of mode 0700
		if err != nil {
			return "", diag.New(diag.ClassIO, "no place for the shared binary of %d bytes: %w", len(binary), err).WithHint("set TMPDIR to a folder that can be written")
		}
		if err := os.WriteFile(filepath.Join(dir, sharedFile), binary, 0o600); err != nil {
			os.RemoveAll(dir)
			return "", diag.New(diag.ClassIO, "write the shared binary of %d bytes: %w", len(binary), err).WithHint("set TMPDIR to a folder with enough space")
		}
		s = &staged{dir: dir, key: key}
		p.files[key] = s
	}
	s.used++
	s.files++
	e.staged = s
	file = filepath.Join(s.dir, fmt.Sprintf("%d.onnx", s.files))
	if err := os.WriteFile(file, e.m.code, 0o600); err != nil {
		return "", errors.Join(diag.New(diag.ClassIO, "write the model of a shared binary: %w", err), p.unstage(e))
	}
	return file, nil
}

// unstage removes the folder with its last user.
func (p *processor) unstage(e *executable) error {
	s := e.staged
	e.staged = nil
	if s == nil {
		return nil
	}
	if s.used--; s.used > 0 {
		return nil
	}
	delete(p.files, s.key)
	return os.RemoveAll(s.dir)
}

func (e *executable) Close() error {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	return e.release()
}

func (e *executable) release() error {
	if e.closed {
		return nil
	}
	e.closed = true
	delete(e.p.loaded, e)
	return errors.Join(e.p.engine.unload(e.id), e.p.unstage(e))
}

func (p *processor) Now() driver.Tick { return driver.Tick(time.Since(began)) }

func (p *processor) WaitUntil(driver.Tick) {}

// Run computes all rows: shapes are static.
func (p *processor) Run(exe driver.Executable, b *driver.Bindings) (driver.Span, error) {
	start := p.Now()
	err := p.run(exe, b)
	if err != nil {
		err = diag.New(diag.ClassOr(err, diag.ClassRun), "run on %s: %w", p, err)
	}
	return driver.Span{Start: start, End: p.Now()}, err
}

func (p *processor) run(exe driver.Executable, b *driver.Bindings) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := exe.(*executable)
	switch {
	case p.closed:
		return errors.New("the processor is closed")
	case !p.attached:
		return errors.New("no thread is attached")
	case !ok || e.p != p:
		return errors.New("the executable was not loaded on this processor")
	case e.closed:
		return errors.New("the executable is closed")
	}
	return e.run(b)
}

func (e *executable) run(b *driver.Bindings) error {
	g := &e.m.graph
	if b == nil || b.Scalars == nil {
		return errors.New("no bindings or no scalars")
	}
	rows := b.Scalars.Rows
	switch {
	case rows < 0 || b.Scalars.Pos < 0:
		return fmt.Errorf("got rows %d at position %d, want both at least 0", rows, b.Scalars.Pos)
	case len(b.In) != len(g.Inputs) || len(b.Out) != len(g.Outputs):
		return fmt.Errorf("got %d inputs and %d outputs, want %d and %d", len(b.In), len(b.Out), len(g.Inputs), len(g.Outputs))
	case rows == 0:
		return nil
	case rows < g.Rows():
		return fmt.Errorf("got %d rows, want all %d: shapes are static", rows, g.Rows())
	}
	in, out := make([][]byte, len(b.In)), make([][]byte, len(b.Out))
	var err error
	for i := range b.In {
		if in[i], err = dense(&b.In[i], g.Inputs[i], "input"); err != nil {
			return err
		}
		if err := numbers(in[i], g.Inputs[i]); err != nil {
			return err
		}
	}
	for i := range b.Out {
		if out[i], err = dense(&b.Out[i], g.Outputs[i], "output"); err != nil {
			return err
		}
		for j, v := range g.Inputs {
			if v.Name == g.Outputs[i].Name && mem.Address(in[j]) != mem.Address(out[i]) {
				return fmt.Errorf("value %q is computed in place, but bound to different views as input and output", v.Name)
			}
		}
	}
	return e.p.engine.run(e.id, in, out)
}

// dense is the memory of an operand, whose rows lie one after another.
func dense(v *driver.View, want op.Value, role string) ([]byte, error) {
	if v.Type != want.Type || v.Cols != want.Cols || v.Rows < want.Rows {
		return nil, fmt.Errorf("%s %q: got view %s [%d,%d], want %s [%d,%d]", role, want.Name, v.Type, v.Rows, v.Cols, want.Type, want.Rows, want.Cols)
	}
	raw, err := v.Window(want.Rows)
	if err == nil && want.Rows > 1 && v.Stride != v.Cols {
		err = fmt.Errorf("rows of %d columns lie %d apart, want them dense", v.Cols, v.Stride)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", role, want.Name, err)
	}
	return raw, nil
}

// numbers refuses values that the NPU's grids have no place for: they would count as something else.
func numbers(raw []byte, v op.Value) error {
	if v.Type != op.F32 {
		return nil
	}
	x, err := mem.View[float32](raw)
	if err != nil {
		return fmt.Errorf("input %q: %w", v.Name, err)
	}
	for i, f := range x {
		if math.IsNaN(float64(f)) || math.IsInf(float64(f), 0) {
			return fmt.Errorf("node 0, input %q, row %d: a value is NaN or infinite", v.Name, i/v.Cols)
		}
	}
	return nil
}

// Close waits for a running call and closes what is still loaded. Buffers stay valid until they are closed.
func (p *processor) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var err error
	if p.caps.Emulated {
		err = p.engine.close() // all of it ends with its process
		for e := range p.loaded {
			e.closed = true
		}
		return err
	}
	for e := range p.loaded {
		err = errors.Join(err, e.release())
	}
	return errors.Join(err, p.engine.close())
}
