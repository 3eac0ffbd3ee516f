package driver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
)

// Local has what processors have in common whose driver is part of this process; they embed it. Buffers are memory of
// the host, the clock is the process's, and calls exclude each other.
type Local struct {
	Name string // in errors

	Mu       sync.Mutex // held by all calls below: Close may come from another goroutine
	attached bool
	closed   bool
}

// began is the origin of the clock of all local processors.
var began = time.Now()

// String names the processor in errors.
func (l *Local) String() string { return l.Name }

// Now counts from one moment for all processors of this process, so that their times compare.
func (l *Local) Now() Tick { return Tick(time.Since(began)) }

// WaitUntil does nothing: real time passes by itself.
func (l *Local) WaitUntil(Tick) {}

// Alloc returns memory of this machine, zeroed and aligned.
func (l *Local) Alloc(bytes int64) (Buffer, error) { return AllocHost(l.Name, bytes) }

// Import takes over aligned memory without a copy; it stays the caller's.
func (l *Local) Import(b []byte) (Buffer, error) { return ImportHost(l.Name, b) }

// AttachBy attaches the calling thread, once, by what bind does to it.
func (l *Local) AttachBy(bind func() error) error {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if l.closed {
		return diag.New(diag.ClassRun, "attach to %s: the processor is closed", l)
	}
	if l.attached {
		return diag.New(diag.ClassRun, "attach to %s: already attached", l)
	}
	if err := bind(); err != nil {
		return fmt.Errorf("attach to %s: %w", l, err)
	}
	l.attached = true
	return nil
}

// LoadBy loads an artifact with load.
func (l *Local) LoadBy(ctx context.Context, load func() (Executable, error)) (Executable, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if l.closed {
		return nil, diag.New(diag.ClassInput, "load artifact on %s: the processor is closed", l)
	}
	exe, err := load()
	if err != nil {
		return nil, diag.New(diag.ClassOr(err, diag.ClassInput), "load artifact on %s: %w", l, err)
	}
	return exe, nil
}

// Runner executes what it has loaded.
type Runner interface {
	// Owns reports whether the executable was loaded here, and has not been closed.
	Owns(exe Executable) (here, open bool)
	// Execute runs an executable that it owns.
	Execute(exe Executable, b *Bindings) error
}

// RunBy executes one call on p, which embeds l. It allocates nothing unless it fails.
func (l *Local) RunBy(p Runner, exe Executable, b *Bindings) (Span, error) {
	start := l.Now()
	err := l.run(p, exe, b)
	if err != nil {
		err = diag.New(diag.ClassOr(err, diag.ClassRun), "run on %s: %w", l, err)
	}
	return Span{Start: start, End: l.Now()}, err
}

// run does the work of RunBy, without the clock and the class of errors.
func (l *Local) run(p Runner, exe Executable, b *Bindings) error {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	here, open := p.Owns(exe)
	switch {
	case l.closed:
		return errors.New("the processor is closed")
	case !l.attached:
		return errors.New("no thread is attached")
	case !here:
		return errors.New("the executable was not loaded on this processor")
	case !open:
		return errors.New("the executable is closed")
	}
	return p.Execute(exe, b)
}

// CloseBy closes the processor, once, by what release does. It waits for a running call.
func (l *Local) CloseBy(release func() error) error {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	return release()
}

// Matches checks that a call's bindings can be those of a graph: as many operands, and rows and
// position of at least 0.
func (b *Bindings) Matches(g *op.Graph) error {
	switch {
	case b == nil || b.Scalars == nil:
		return errors.New("no bindings or no scalars")
	case b.Scalars.Rows < 0 || b.Scalars.Pos < 0:
		return fmt.Errorf("got rows %d at position %d, want both at least 0", b.Scalars.Rows, b.Scalars.Pos)
	case len(b.In) != len(g.Inputs) || len(b.Out) != len(g.Outputs):
		return fmt.Errorf("got %d inputs and %d outputs, want %d and %d", len(b.In), len(b.Out), len(g.Inputs),
			len(g.Outputs))
	}
	return nil
}

// MatchesAll is Matches for a graph of static shapes: a call has all its rows, or none and then
// does nothing.
func (b *Bindings) MatchesAll(g *op.Graph) error {
	if err := b.Matches(g); err != nil {
		return err
	}
	if rows := b.Scalars.Rows; rows != 0 && rows < g.Rows() {
		return fmt.Errorf("got %d rows, want all %d: shapes are static", rows, g.Rows())
	}
	return nil
}

// Dense returns the memory of a call's operands, for libraries that know no layout but dense rows.
// A value that is both input and output is in one place.
func (b *Bindings) Dense(g *op.Graph) (in, out [][]byte, err error) {
	in, out = make([][]byte, len(b.In)), make([][]byte, len(b.Out))
	for i := range b.In {
		if in[i], err = b.In[i].dense(g.Inputs[i], "input"); err != nil {
			return nil, nil, err
		}
	}
	for i := range b.Out {
		if out[i], err = b.Out[i].dense(g.Outputs[i], "output"); err != nil {
			return nil, nil, err
		}
		for j, value := range g.Inputs {
			if value.Name == g.Outputs[i].Name && mem.Address(in[j]) != mem.Address(out[i]) {
				return nil, nil, fmt.Errorf("value %q is computed in place, but bound to different views as input and output",
					value.Name)
			}
		}
	}
	return in, out, nil
}

// dense returns the rows of a value, which must follow each other without gaps.
func (v *View) dense(want op.Value, role string) ([]byte, error) {
	if v.Type != want.Type || v.Cols != want.Cols || v.Rows < want.Rows {
		return nil, fmt.Errorf("%s %q: got view %s [%d,%d], want %s [%d,%d]", role, want.Name, v.Type, v.Rows, v.Cols,
			want.Type, want.Rows, want.Cols)
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

// CheckPlaces checks the places of a batch's first rows: each of another sequence and inside its cache. Where nothing
// is cached, only positions mean something.
func (b *Bindings) CheckPlaces(rows int, cached bool) error {
	places := b.Scalars.Batch
	if len(places) < rows {
		return fmt.Errorf("got places of %d rows, want those of %d sequences", len(places), rows)
	}
	for i, at := range places[:rows] {
		if at.Pos < 0 || at.Pos > math.MaxInt32 || cached && at.Pos >= b.MaxContext {
			return fmt.Errorf("row %d lies at position %d, want one in a cache of %d", i, at.Pos, b.MaxContext)
		}
		if !cached {
			continue
		}
		if at.Sequence < 0 || at.Sequence >= max(1, b.Sequences) {
			return fmt.Errorf("row %d is of sequence %d, want 0..%d", i, at.Sequence, max(1, b.Sequences)-1)
		}
		for j, other := range places[:i] {
			if at.Sequence == other.Sequence {
				return fmt.Errorf("rows %d and %d are both of sequence %d", j, i, at.Sequence)
			}
		}
	}
	return nil
}

// CheckSpan checks that so many rows of one sequence lie inside its cache.
func (b *Bindings) CheckSpan(rows int) error {
	pos, sequence := b.Scalars.Pos, b.Scalars.Sequence
	if b.MaxContext < 1 || pos+rows > b.MaxContext {
		return fmt.Errorf("positions %d..%d do not fit a cache of %d", pos, pos+rows-1, b.MaxContext)
	}
	if count := max(1, b.Sequences); sequence < 0 || sequence >= count {
		return fmt.Errorf("sequence %d, want 0..%d", sequence, count-1)
	}
	return nil
}

// CheckCache checks that a side of the cache holds all sequences, as an operator's type of cache, number of key heads
// and columns of a head say, and returns what it holds of the first one.
func (b *Bindings) CheckCache(view *View, name string, kv op.Type, heads, dim int) ([]byte, error) {
	element, cols := kv.CacheRow(dim)
	if view.Type != element || view.Cols != cols || view.Stride != cols ||
		int64(view.Rows) != int64(heads)*int64(b.MaxContext) {
		return nil, fmt.Errorf("cache %q: got view %s [%d,%d] of stride %d, want dense %s [%d*%d,%d]", name, view.Type,
			view.Rows, view.Cols, view.Stride, element, heads, b.MaxContext, cols)
	}
	first, err := view.Window(view.Rows)
	if err != nil {
		return nil, fmt.Errorf("cache %q: %w", name, err)
	}
	if b.Sequences < 2 {
		return first, nil
	}
	need, others := int64(len(first)), int64(b.Sequences-1)
	have := int64(len(view.Buffer.Bytes())) - view.Offset // holds the first one
	// The division bounds the product that would overflow.
	if b.SequenceBytes < need || b.SequenceBytes%int64(view.Type.Bytes()) != 0 || b.SequenceBytes > (have-need)/others {
		return nil, fmt.Errorf("cache %q: %d sequences of %d bytes, %d bytes apart, do not fit the %d bytes from its offset",
			name, b.Sequences, need, b.SequenceBytes, have)
	}
	return first, nil
}

// Cached returns one side of the cache, of the call's sequence from position 0 of the first key head on, after
// CheckCache. CheckSpan comes first.
func (b *Bindings) Cached(view *View, name string, operator *op.Op) ([]byte, error) {
	first, err := b.CheckCache(view, name, operator.KV, operator.KVHeads, operator.HeadDim)
	if err != nil || b.Sequences < 2 {
		return first, err
	}
	need, at := int64(len(first)), view.Offset+int64(b.Scalars.Sequence)*b.SequenceBytes
	return view.Buffer.Bytes()[at : at+need], nil
}
