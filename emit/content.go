package emit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// Content is everything a plan needs at run time besides itself: compiled graphs and packed weights,
// made on demand. It serves a bundle's writer and, from memory, an executor.
type Content struct {
	plan      *planir.Plan
	model     *models.Model
	artifacts map[string]artifact // by the names of their blobs
	scratch   string              // directory of those that hold weights, "" for none
	facts     []*groupFacts       // of what was baked
	blobs     map[string]planir.WeightBlob

	mu     sync.Mutex
	loaded map[place]*mem.Region
	shared *Content // packed weights are taken from there where they are equal

	cal       *calibration.Calibration // nil: none
	graph     models.Graph
	weigh     sync.Mutex
	important map[place]*pack.Importance // of the weight that was packed last
}

// NewContent is NewCalibrated of a plan that was made without a calibration.
func NewContent(ctx context.Context, p *planir.Plan, m *models.Model, compilers []driver.Compiler) (*Content, error) {
	return NewCalibrated(ctx, p, m, nil, compilers)
}

// NewCalibrated compiles the plan's graphs. The plan's program must belong to the model (planir/check), and cal be
// the calibration that the plan was made with, nil for none: its folds and its activations decide what is packed.
func NewCalibrated(ctx context.Context, p *planir.Plan, m *models.Model, cal *calibration.Calibration, compilers []driver.Compiler) (*Content, error) {
	c, err := newContent(p, m, cal)
	if err != nil {
		return nil, err
	}
	err = c.compile(ctx, compilers)
	if err == nil {
		_, err = c.bake(ctx, &bakery{compilers: compilers})
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// newContent is a content without artifacts.
func newContent(p *planir.Plan, m *models.Model, cal *calibration.Calibration) (*Content, error) {
	if err := checkCalibration(p, cal); err != nil {
		return nil, err
	}
	c := &Content{
		plan: p, model: m, artifacts: map[string]artifact{}, blobs: map[string]planir.WeightBlob{}, loaded: map[place]*mem.Region{},
		cal: cal, graph: m.Graph(), important: map[place]*pack.Importance{},
	}
	for _, b := range p.Program.WeightBlobs() {
		c.blobs[b.Name] = b
	}
	return c, nil
}

// compile makes the artifacts that hold no weights.
func (c *Content) compile(ctx context.Context, compilers []driver.Compiler) error {
	for i := range c.plan.Program.Graphs {
		g := &c.plan.Program.Graphs[i]
		proc := c.plan.Proc(g.Proc)
		if proc.Bakes {
			continue
		}
		k, err := compilerFor(proc, g.Name, compilers)
		if err != nil {
			return err
		}
		a, err := k.Compile(ctx, g.Graph, nil, driver.Target{Proc: proc.Name, Options: proc.Options})
		if err != nil {
			return fmt.Errorf("compile graph %q for %q: %w", g.Name, g.Proc, err)
		}
		c.artifacts[g.Artifact] = artifact{proc: g.Proc, code: a.Code, bytes: int64(len(a.Code))}
	}
	return nil
}

func compilerFor(proc *planir.Proc, graph string, compilers []driver.Compiler) (driver.Compiler, error) {
	k := slices.IndexFunc(compilers, func(c driver.Compiler) bool { return c.Name() == proc.Driver })
	if k < 0 {
		return nil, diag.New(diag.ClassUnavailable, "compile graph %q: no compiler for driver %q in this build", graph, proc.Driver)
	}
	return compilers[k], nil
}

// artifact is a blob that a compiler made: in memory, or in a file of the scratch directory.
type artifact struct {
	proc  string
	code  []byte
	file  string
	bytes int64
}

// read returns the bytes.
func (a artifact) read() ([]byte, error) {
	if a.file == "" {
		return a.code, nil
	}
	b, err := os.ReadFile(a.file)
	if err != nil {
		return nil, diag.New(diag.ClassIO, "read back what was compiled: %w", err)
	}
	return b, nil
}

// ShareWith makes c take packed weights from o where both pack the same; o is closed after c.
func (c *Content) ShareWith(o *Content) { c.shared = o }

// Blob returns an artifact. It implements executor.Source.
func (c *Content) Blob(name string) ([]byte, error) {
	a, ok := c.artifacts[name]
	if !ok {
		return nil, diag.New(diag.ClassInput, "plan content: unknown artifact %q", name)
	}
	return a.read()
}

// Range returns the packed weight that lies there in a weights blob, in memory and 64-byte aligned. It
// implements executor.Source.
func (c *Content) Range(name string, offset, bytes int64) ([]byte, error) {
	b := c.blobs[name]
	i := slices.IndexFunc(b.Packs, func(pl planir.Placement) bool { return pl.Offset == offset && pl.Pack.Bytes == bytes })
	if i < 0 {
		return nil, diag.New(diag.ClassInput, "plan content: blob %q has no packed weight of %d bytes at %d", name, bytes, offset)
	}
	return c.packed(b.Packs[i])
}

// packed packs a weight, unless it is in memory here or where c shares.
func (c *Content) packed(pl planir.Placement) ([]byte, error) {
	if c.shared != nil && c.shared.model == c.model {
		if same, ok := c.shared.equal(pl, c); ok {
			return c.shared.packed(same)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at := place{pl.Pack.Name, pl.Layer}
	if r, ok := c.loaded[at]; ok {
		return r.Bytes(), nil
	}
	r, err := mem.Alloc(int(pl.Pack.Bytes), 4096)
	if err != nil {
		return nil, diag.New(diag.ClassRun, "plan content: %w", err)
	}
	if err := c.pack(r.Bytes(), pl); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	c.loaded[at] = r
	return r.Bytes(), nil
}

// place is a pack in a layer.
type place struct {
	pack  string
	layer int
}

// equal finds the placement of c that packs what pl of another content of the same model does.
func (c *Content) equal(pl planir.Placement, o *Content) (planir.Placement, bool) {
	w := o.weight(pl)
	if c.plan.Calibration() != o.plan.Calibration() && (w.FoldRows != "" || w.FoldCols != "" || w.ScaleOf != "" || inBlocks(pl.Pack.Scheme)) {
		return planir.Placement{}, false
	}
	for _, b := range c.blobs {
		for _, own := range b.Packs {
			k := *own.Pack
			k.Name = pl.Pack.Name
			if own.Layer == pl.Layer && k == *pl.Pack && reflect.DeepEqual(c.weight(own), w) {
				return own, true
			}
		}
	}
	return planir.Placement{}, false
}

// weight is the weight that a placement packs.
func (c *Content) weight(pl planir.Placement) *planir.Weight {
	i := slices.IndexFunc(c.plan.Program.Weights, func(w planir.Weight) bool { return w.Name == pl.Pack.Weight })
	return &c.plan.Program.Weights[i]
}

// Close releases packed weights held in memory, and what was compiled with weights.
func (c *Content) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	for _, r := range c.loaded {
		err = errors.Join(err, r.Close())
	}
	clear(c.loaded)
	if c.scratch != "" {
		if e := os.RemoveAll(c.scratch); e != nil {
			err = errors.Join(err, diag.New(diag.ClassIO, "remove what was compiled: %w", e))
		}
		c.scratch = ""
	}
	return err
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
	imp, err := c.importance(pl)
	if err != nil {
		return err
	}
	for e := range count {
		src, names, err := c.source(pl, e, imp != nil)
		if err != nil {
			return err
		}
		if err := pack.PackFor(dst[e*size:(e+1)*size], pack.Expert(pl.Pack.Spec()), src, imp); err != nil {
			return fmt.Errorf("pack %s: %w", strings.Join(names, ", "), err)
		}
	}
	return nil
}

// source is the matrix that a placement packs of an expert, and the tensors it is made of. With front, the rows in
// front of the placement's come with it.
func (c *Content) source(pl planir.Placement, expert int, front bool) (pack.Source, []string, error) {
	w := c.weight(pl)
	var whole pack.Source
	var names []string
	var err error
	if w.ScaleOf != "" && w.K == 2 {
		v, err := c.steps(w, pl.Layer)
		if err != nil {
			return nil, nil, err
		}
		s, err := pack.Floats(v, 2, w.N)
		if k := pl.Pack; err == nil && (k.N0 != 0 || k.N1 != w.N) {
			s, err = pack.Slice(s, 0, 2, k.N0, k.N1)
		}
		return s, nil, err
	}
	if w.ScaleOf != "" {
		v, err := c.staticScales(w, pl.Layer)
		if err != nil {
			return nil, nil, err
		}
		s, err := pack.Floats(v, 1, len(v))
		return s, nil, err
	}
	if len(w.Const) > 0 {
		whole, err = pack.Floats(w.Const, w.K, w.N)
	} else {
		divide, err := c.factors(w.FoldCols, pl.Layer, w.N/max(1, len(w.Interleave)))
		if err != nil {
			return nil, nil, err
		}
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
			if w.Plus != 0 {
				s = pack.Plus(s, w.Plus)
			}
			if divide != nil && j == w.FoldSource {
				if s, err = pack.DivideColumns(s, divide); err != nil {
					return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
				}
			}
			parts = append(parts, s)
		}
		whole = parts[0]
		if len(parts) > 1 {
			if whole, err = pack.Interleave(parts, w.Interleave); err != nil {
				return nil, nil, err
			}
		}
	}
	if err != nil {
		return nil, nil, err
	}
	multiply, err := c.factors(w.FoldRows, pl.Layer, w.K)
	if err == nil && multiply != nil {
		whole, err = pack.ScaleRows(whole, multiply)
	}
	if err != nil {
		return nil, nil, err
	}
	k := pl.Pack
	k0 := k.K0
	if front {
		k0 = 0
	}
	if k0 != 0 || k.N0 != 0 || k.K1 != w.K || k.N1 != w.N {
		whole, err = pack.Slice(whole, k0, k.K1, k.N0, k.N1)
	}
	return whole, names, err
}
