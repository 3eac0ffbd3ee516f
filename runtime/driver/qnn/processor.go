package qnn

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/scores"
)

// processor runs compiled graphs.
type processor struct {
	driver.Local
	soc, arch int // of the options, 0: not given
	caps      *driver.Capabilities
	engine    engine

	loaded map[*executable]bool
	files  map[[32]byte]*staged
}

// executable is a loaded graph.
type executable struct {
	p *processor
	m *model
	// of the program in the engine
	id     int
	closed bool
	// nil where the binary is the graph's own
	staged *staged
	// largest magnitudes of inputs and of outputs
	most [2][]float32

	estimate *scores.Estimate[float32] // of a graph that is one
	codes    [2][]byte                 // of queries and of keys, for a launch
	products [1][]byte
}

// staged is a shared binary in a folder of its own, which exists while graphs refer to it.
type staged struct {
	dir   string
	key   [32]byte
	used  int
	files int // of models beside it
}

// Capabilities are fixed when the processor is opened.
func (p *processor) Capabilities() *driver.Capabilities { return p.caps }

// Attach pins nothing: the NPU, or the process that emulates it, computes.
func (p *processor) Attach() error { return p.AttachBy(func() error { return nil }) }

// Load takes no weights: they are compiled in.
func (p *processor) Load(ctx context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	return p.LoadBy(ctx, func() (driver.Executable, error) { return p.load(ctx, a, w) })
}

// load compares the artifact with this processor, device and libraries before any of them sees it.
func (p *processor) load(ctx context.Context, artifact driver.Artifact, w driver.Weights) (*executable, error) {
	switch {
	case artifact.Driver != Name:
		return nil, fmt.Errorf("it was compiled for driver %q, want %q", artifact.Driver, Name)
	case len(w) > 0:
		return nil, fmt.Errorf("got %d weights, want none: they are compiled into the artifact", len(w))
	}
	model, err := parse(artifact.Code)
	if err != nil {
		return nil, err
	}
	if err := p.accept(&artifact, model); err != nil {
		return nil, err
	}
	graph := &model.graph
	exe := &executable{p: p, m: model, most: [2][]float32{largest(graph, graph.Inputs), largest(graph, graph.Outputs)}}
	prog := program{Code: model.code, In: model.in, Out: model.out}
	if model.shared {
		if prog.File, err = p.stage(exe, artifact.Shared); err != nil {
			return nil, err
		}
		prog.Code = nil
	}
	if exe.id, err = p.engine.load(ctx, prog); err != nil {
		return nil, errors.Join(err, p.unstage(exe))
	}
	model.code = nil // the library has its own copy
	if err := exe.prepareEstimate(); err != nil {
		return nil, errors.Join(err, p.engine.unload(exe.id), p.unstage(exe))
	}
	p.loaded[exe] = true
	return exe, nil
}

// accept refuses what this processor does not compute or load. What the artifact says of itself is compared first; the
// library is asked last, and on a device alone.
func (p *processor) accept(artifact *driver.Artifact, model *model) error {
	if err := artifact.Matches(&model.graph); err != nil {
		return err
	}
	for i, node := range model.graph.Nodes {
		if err := supports(p.caps, node.Op); err != nil {
			return fmt.Errorf("node %d (%s): %w", i, node.Op.Kind, err)
		}
	}
	if err := model.token.match(p.soc, p.arch, p.engine.about().Backend.API); err != nil {
		return err
	}
	switch {
	case model.shared && p.caps.Emulated:
		return diag.New(diag.ClassInput,
			"its binary holds the weights of several graphs, which the emulator cannot load").
			WithHint("hetc emit --for-emulator writes the bundle with a binary for each graph")
	case model.shared != (len(artifact.Shared) > 0):
		return diag.New(diag.ClassInput, "it says that its binary is %s, and got a shared one of %d bytes",
			map[bool]string{true: "shared", false: "its own"}[model.shared], len(artifact.Shared))
	case p.caps.Emulated:
		return nil
	}

	fits, err := p.engine.compatible(model.token.text)
	if err != nil {
		return err
	}
	if fits == ortapi.Unsupported {
		return diag.New(diag.ClassInput,
			"it was compiled for %s with SDK %s (%q), which the library says this device does not load",
			socName(model.token.soc), model.token.sdk, model.token.text).
			WithHint("emit the bundle for this SoC: hetc emit --target NAME")
	}
	return nil
}

// stage writes the artifact's model beside its shared binary, in a folder that no other user can
// write to. The library opens the binary by the name in the model, from the model's folder. The
// bytes are those of a verified bundle.
func (p *processor) stage(exe *executable, binary []byte) (file string, err error) {
	key := sha256.Sum256(binary)
	found := p.files[key]
	if found == nil {
		dir, err := os.MkdirTemp("", ".hetc-qnn-*") // of mode 0700
		if err != nil {
			return "", diag.New(diag.ClassIO, "create a folder for the shared binary of %d bytes: %w", len(binary),
				err).WithHint("set TMPDIR to a folder that can be written")
		}
		if err := os.WriteFile(filepath.Join(dir, sharedFile), binary, 0o600); err != nil {
			os.RemoveAll(dir)
			return "", diag.New(diag.ClassIO, "write the shared binary of %d bytes: %w", len(binary),
				err).WithHint("set TMPDIR to a folder with enough space")
		}
		found = &staged{dir: dir, key: key}
		p.files[key] = found
	}
	found.used++
	found.files++
	exe.staged = found
	file = filepath.Join(found.dir, fmt.Sprintf("%d.onnx", found.files))
	if err := os.WriteFile(file, exe.m.code, 0o600); err != nil {
		return "", errors.Join(diag.New(diag.ClassIO, "write the model of a shared binary: %w", err), p.unstage(exe))
	}
	return file, nil
}

// unstage releases the folder, and removes it after its last user.
func (p *processor) unstage(e *executable) error {
	staged := e.staged
	e.staged = nil
	if staged == nil {
		return nil
	}
	if staged.used--; staged.used > 0 {
		return nil
	}
	delete(p.files, staged.key)
	return os.RemoveAll(staged.dir)
}

// Close waits for a running call. Calling it again does nothing.
func (e *executable) Close() error {
	e.p.Mu.Lock()
	defer e.p.Mu.Unlock()
	return e.release()
}

// release is Close for a caller that holds the processor's lock.
func (e *executable) release() error {
	if e.closed {
		return nil
	}
	e.closed = true
	delete(e.p.loaded, e)
	return errors.Join(e.p.engine.unload(e.id), e.p.unstage(e))
}

// Run computes all rows: shapes are static.
func (p *processor) Run(exe driver.Executable, b *driver.Bindings) (driver.Span, error) {
	return p.RunBy(p, exe, b)
}

// Owns is for RunBy.
func (p *processor) Owns(exe driver.Executable) (here, open bool) {
	loaded, ok := exe.(*executable)
	here = ok && loaded.p == p
	return here, here && !loaded.closed
}

// Execute is for RunBy.
func (p *processor) Execute(exe driver.Executable, bindings *driver.Bindings) error {
	loaded := exe.(*executable)
	graph := &loaded.m.graph
	if loaded.estimate != nil {
		return loaded.estimate.Run(graph, bindings, func() error {
			return p.engine.run(loaded.id, loaded.codes[:], loaded.products[:])
		})
	}
	if err := bindings.MatchesAll(graph); err != nil || bindings.Scalars.Rows == 0 {
		return err
	}
	in, out, err := bindings.Dense(graph)
	if err != nil {
		return err
	}
	for i, raw := range in {
		if err := numbers(raw, graph.Inputs[i], loaded.most[0][i]); err != nil {
			return fmt.Errorf("node 0, input %w", err)
		}
	}
	if err := p.engine.run(loaded.id, in, out); err != nil {
		return err
	}
	for i, raw := range out {
		if err := numbers(raw, graph.Outputs[i], loaded.most[1][i]); err != nil {
			return fmt.Errorf("output %w", err)
		}
	}
	return nil
}

// prepareEstimate gives an estimate of scores memory for its launches.
func (e *executable) prepareEstimate() error {
	operator := e.m.graph.Estimate()
	if operator == nil {
		return nil
	}
	operands := operator.Operands(op.F32)
	products := make([]float32, operands[2].Rows*operands[2].Cols)
	for i := range e.codes {
		e.codes[i] = make([]byte, operands[i].Rows*operands[i].Cols)
	}
	e.products[0] = mem.Bytes(products)
	var err error
	e.estimate, err = scores.New(*operator, e.m.heads, e.codes[0], e.codes[1], products)
	return err
}

// mostHalf is the largest number of half precision.
const mostHalf = 65504

// largest returns the largest magnitudes that values of a graph may have: that of half precision where an operator
// other than a product on a grid reads or writes them. Of larger ones the emulator makes other numbers: 102,784 of
// 70,000.
func largest(graph *op.Graph, values []op.Value) []float32 {
	out := make([]float32, len(values))
	for i, value := range values {
		out[i] = math.MaxFloat32
		for _, node := range graph.Nodes {
			grid := node.Op.Kind == op.QuantRows || node.Op.HasScheme() && !node.Op.Scheme.Half()
			if !grid && (slices.Contains(node.In, value.Name) || slices.Contains(node.Out, value.Name)) {
				out[i] = mostHalf
			}
		}
	}
	return out
}

// numbers refuses NaN, infinities, and magnitudes above most, which the NPU would turn into other numbers.
func numbers(raw []byte, bound op.Value, most float32) error {
	if bound.Type != op.F32 {
		return nil
	}
	values, err := mem.View[float32](raw)
	if err != nil {
		return fmt.Errorf("%q: %w", bound.Name, err)
	}
	for i, number := range values {
		switch {
		case number <= most && number >= -most:
		case number-number != 0:
			return fmt.Errorf("%q, row %d: a value is NaN or infinite", bound.Name, i/bound.Cols)
		default:
			return fmt.Errorf("%q, row %d: a value is %v, want at most %v in magnitude, the most that half precision has",
				bound.Name, i/bound.Cols, number, most)
		}
	}
	return nil
}

// Close waits for a running call and closes what is still loaded. Buffers stay valid until they are closed.
func (p *processor) Close() error {
	return p.CloseBy(func() (err error) {
		for exe := range p.loaded {
			if p.caps.Emulated {
				exe.closed = true // all of it ends with its process
			} else {
				err = errors.Join(err, exe.release())
			}
		}
		return errors.Join(err, p.engine.close())
	})
}
