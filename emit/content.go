package emit

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// Content is everything a plan needs at run time besides itself: compiled graphs and packed weights,
// made on demand. It serves a bundle's writer and, from memory, an executor.
type Content struct {
	plan      *planir.Plan
	model     *models.Model
	artifacts map[string]driver.Artifact
	blobs     map[string]planir.WeightBlob

	mu     sync.Mutex
	loaded map[string]*mem.Region
	shared *Content // packed weights are taken from there where they are equal
}

// NewContent compiles the plan's graphs. The plan's program must belong to the model (planir/check).
func NewContent(ctx context.Context, p *planir.Plan, m *models.Model, compilers []driver.Compiler) (*Content, error) {
	c := &Content{plan: p, model: m, artifacts: map[string]driver.Artifact{}, blobs: map[string]planir.WeightBlob{}, loaded: map[string]*mem.Region{}}
	for _, b := range p.Program.WeightBlobs() {
		c.blobs[b.Name] = b
	}
	for i := range p.Program.Graphs {
		g := &p.Program.Graphs[i]
		proc := p.Proc(g.Proc)
		k := slices.IndexFunc(compilers, func(c driver.Compiler) bool { return c.Name() == proc.Driver })
		if k < 0 {
			return nil, diag.New(diag.ClassUnavailable, "compile graph %q: no compiler for driver %q in this build", g.Name, proc.Driver)
		}
		a, err := compilers[k].Compile(ctx, g.Graph, nil, driver.Target{Proc: proc.Name, Options: proc.Options})
		if err != nil {
			return nil, fmt.Errorf("compile graph %q for %q: %w", g.Name, g.Proc, err)
		}
		c.artifacts[g.Artifact] = a
	}
	return c, nil
}

// ShareWith makes c take packed weights that o has in memory too, where both pack the same.
// Plans of one model on one machine usually do.
func (c *Content) ShareWith(o *Content) { c.shared = o }

// Blob returns the bytes of an artifact or weights blob in memory, 64-byte aligned. It implements
// executor.Source.
func (c *Content) Blob(name string) ([]byte, error) {
	if a, ok := c.artifacts[name]; ok {
		return a.Code, nil
	}
	b, ok := c.blobs[name]
	if !ok {
		return nil, diag.New(diag.ClassInput, "plan content: unknown blob %q", name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.loaded[name]; ok {
		return r.Bytes(), nil
	}
	if c.shared != nil && sameWeights(c.shared, c, name) {
		return c.shared.Blob(name)
	}
	r, err := mem.Alloc(int(b.Size), 4096)
	if err != nil {
		return nil, diag.New(diag.ClassRun, "plan content: %w", err)
	}
	if err := c.fill(r.Bytes(), b); err != nil {
		return nil, err
	}
	c.loaded[name] = r
	return r.Bytes(), nil
}

// Range returns a part of a blob, of which the whole is then in memory. It implements executor.Source.
func (c *Content) Range(name string, offset, bytes int64) ([]byte, error) {
	b, err := c.Blob(name)
	if err != nil {
		return nil, err
	}
	if size := int64(len(b)); offset < 0 || bytes < 0 || offset > size || bytes > size-offset {
		return nil, diag.New(diag.ClassInput, "plan content: blob %q has %d bytes, want [%d, %d+%d)", name, size, offset, offset, bytes)
	}
	return b[offset : offset+bytes : offset+bytes], nil
}

// Close releases packed weights held in memory.
func (c *Content) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.loaded {
		if err := r.Close(); err != nil {
			return err
		}
	}
	c.loaded = map[string]*mem.Region{}
	return nil
}

// sameWeights reports whether two contents of one model have an equal blob of that name.
func sameWeights(a, b *Content, name string) bool {
	x, ok := a.blobs[name]
	y := b.blobs[name]
	return ok && a.model == b.model && x.Size == y.Size && slices.EqualFunc(x.Packs, y.Packs, func(p, q planir.Placement) bool {
		return *p.Pack == *q.Pack && p.Layer == q.Layer && p.Offset == q.Offset
	})
}

func (c *Content) fill(dst []byte, b planir.WeightBlob) error {
	for _, pl := range b.Packs {
		if err := c.pack(dst[pl.Offset:pl.Offset+pl.Pack.Bytes], pl); err != nil {
			return err
		}
	}
	return nil
}

// write streams a weights blob, one packed matrix in memory at a time.
func (c *Content) write(w io.Writer, b planir.WeightBlob) error {
	var at int64
	var buf []byte
	for i, pl := range b.Packs {
		end := b.Size
		if i+1 < len(b.Packs) {
			end = b.Packs[i+1].Offset
		}
		n := int(end - at)
		if cap(buf) < n {
			buf = make([]byte, n)
		}
		buf = buf[:n]
		clear(buf[pl.Pack.Bytes:])
		if err := c.pack(buf[:pl.Pack.Bytes], pl); err != nil {
			return err
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// pack writes what a placement holds: a matrix, or those of all experts.
func (c *Content) pack(dst []byte, pl planir.Placement) error {
	count := max(1, pl.Pack.Experts)
	size := len(dst) / count
	for e := range count {
		src, names, err := c.source(pl, e)
		if err != nil {
			return err
		}
		if err := pack.Pack(dst[e*size:(e+1)*size], pack.Expert(pl.Pack.Spec()), src); err != nil {
			return fmt.Errorf("pack %s: %w", strings.Join(names, ", "), err)
		}
	}
	return nil
}

// source is the matrix that a placement packs of an expert, and the tensors it is made of.
func (c *Content) source(pl planir.Placement, expert int) (pack.Source, []string, error) {
	i := slices.IndexFunc(c.plan.Program.Weights, func(w planir.Weight) bool { return w.Name == pl.Pack.Weight })
	w := &c.plan.Program.Weights[i]
	var whole pack.Source
	var names []string
	var err error
	if len(w.Const) > 0 {
		whole, err = pack.Floats(w.Const, w.K, w.N)
	} else {
		mw := models.Weight{From: w.From}
		names = mw.Sources(pl.Layer, expert)
		var parts []pack.Source
		for j, name := range names {
			t, err := c.model.Tensor(name)
			if err != nil {
				return nil, nil, err
			}
			n := w.N
			if len(w.Interleave) > 0 {
				total := 0
				for _, k := range w.Interleave {
					total += k
				}
				n = w.N / total * w.Interleave[j]
			}
			s, err := pack.Tensor(t, w.K, n, w.Transposed)
			if err != nil {
				return nil, nil, diag.New(diag.ClassInput, "tensor %q: %w", name, err)
			}
			parts = append(parts, s)
		}
		whole = parts[0]
		if len(parts) > 1 {
			whole, err = pack.Interleave(parts, w.Interleave)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if w.Plus != 0 {
		whole = pack.Plus(whole, w.Plus)
	}
	k := pl.Pack
	if k.K0 != 0 || k.N0 != 0 || k.K1 != w.K || k.N1 != w.N {
		whole, err = pack.Slice(whole, k.K0, k.K1, k.N0, k.N1)
	}
	return whole, names, err
}
