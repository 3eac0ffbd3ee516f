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
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// Content is everything a plan needs at run time besides itself: compiled graphs and packed weights. It serves the
// writer of a bundle and, from memory, an executor.
//
// Graphs are compiled when it is made. Weights are packed on demand: one at a time for a bundle, and kept until Close
// for an executor, which may call Blob and Range from several goroutines.
type Content struct {
	plan      *planir.Plan
	model     *models.Model
	artifacts map[string]artifact // by the names of their blobs
	scratch   string              // directory of those that hold weights, "" for none
	facts     []*groupFacts       // of the groups that were compiled
	blobs     map[string]planir.WeightBlob

	// Under mu: what an executor keeps in memory.
	mu     sync.Mutex
	loaded map[packKey]*mem.Region // packed weights in memory
	shared *Content                // packed weights are taken from there where they are equal

	// What decides about rounding and folding.
	cal          *calibration.Calibration // nil: none
	graph        models.Graph
	importanceMu sync.Mutex
	important    map[packKey]*pack.Importance // of the weight that was packed last
}

// NewContent is NewCalibrated of a plan that was made without a calibration.
func NewContent(ctx context.Context, p *planir.Plan, m *models.Model, compilers []driver.Compiler) (*Content, error) {
	return NewCalibrated(ctx, p, m, nil, compilers)
}

// NewCalibrated compiles the plan's graphs. The plan's program must belong to the model (planir/check), and cal be
// the calibration that the plan was made with, nil for none: its folds and its activations decide what is packed.
func NewCalibrated(ctx context.Context, p *planir.Plan, m *models.Model, cal *calibration.Calibration,
	compilers []driver.Compiler) (*Content, error) {
	content, err := newContent(p, m, cal)
	if err != nil {
		return nil, err
	}
	err = content.compile(ctx, compilers)
	if err == nil {
		_, err = content.compileGroups(ctx, &compileOptions{compilers: compilers})
	}
	if err != nil {
		return nil, errors.Join(err, content.Close())
	}
	return content, nil
}

// newContent is a content without artifacts.
func newContent(plan *planir.Plan, m *models.Model, cal *calibration.Calibration) (*Content, error) {
	if err := checkCalibration(plan, cal); err != nil {
		return nil, err
	}
	content := &Content{
		plan: plan, model: m, artifacts: map[string]artifact{}, blobs: map[string]planir.WeightBlob{},
		loaded: map[packKey]*mem.Region{},
		cal:    cal, graph: m.Graph(), important: map[packKey]*pack.Importance{},
	}
	for _, blob := range plan.Program.WeightBlobs() {
		content.blobs[blob.Name] = blob
	}
	return content, nil
}

// compile makes the artifacts that hold no weights.
func (c *Content) compile(ctx context.Context, compilers []driver.Compiler) error {
	for i := range c.plan.Program.Graphs {
		graph := &c.plan.Program.Graphs[i]
		proc := c.plan.Proc(graph.Proc)
		if proc.WeightsInArtifacts {
			continue
		}
		compiler, err := compilerFor(proc, graph.Name, compilers)
		if err != nil {
			return err
		}
		compiled, err := compiler.Compile(ctx, graph.Graph, nil, driver.Target{Proc: proc.Name, Options: proc.Options})
		if err != nil {
			return fmt.Errorf("compile graph %q for %q: %w", graph.Name, graph.Proc, err)
		}
		c.artifacts[graph.Artifact] = artifact{proc: graph.Proc, code: compiled.Code, bytes: int64(len(compiled.Code))}
	}
	return nil
}

// compilerFor is the compiler of a processor's driver.
func compilerFor(proc *planir.Proc, graph string, compilers []driver.Compiler) (driver.Compiler, error) {
	at := slices.IndexFunc(compilers, func(c driver.Compiler) bool { return c.Name() == proc.Driver })
	if at < 0 {
		return nil, diag.New(diag.ClassUnavailable, "compile graph %q: no compiler for driver %q in this build",
			graph, proc.Driver)
	}
	return compilers[at], nil
}

// artifact is a blob that a compiler made: in memory, or in a file of the scratch directory.
type artifact struct {
	proc  string
	code  []byte // nil where it is in the file
	file  string // "" where it is in memory
	bytes int64
}

// read returns the bytes.
func (a artifact) read() ([]byte, error) {
	if a.file == "" {
		return a.code, nil
	}
	data, err := os.ReadFile(a.file)
	if err != nil {
		return nil, diag.New(diag.ClassIO, "read back what was compiled: %w", err)
	}
	return data, nil
}

// ShareWith makes c take packed weights from o where both pack the same; o is closed after c.
func (c *Content) ShareWith(o *Content) { c.shared = o }

// Blob returns an artifact. It implements executor.Source.
func (c *Content) Blob(name string) ([]byte, error) {
	made, ok := c.artifacts[name]
	if !ok {
		return nil, diag.New(diag.ClassInput, "plan content: unknown artifact %q", name)
	}
	return made.read()
}

// Range returns the packed weight that lies there in a weights blob, or a part of one, in memory; a weight begins
// 64-byte aligned. It implements executor.Source.
func (c *Content) Range(name string, offset, bytes int64) ([]byte, error) {
	blob := c.blobs[name]
	i := slices.IndexFunc(blob.Packs, func(pl planir.Placement) bool {
		return offset >= pl.Offset && bytes >= 0 && offset-pl.Offset <= pl.Pack.Bytes-bytes
	})
	if i < 0 {
		return nil, diag.New(diag.ClassInput, "plan content: blob %q has no packed weight of %d bytes at %d",
			name, bytes, offset)
	}
	packed, err := c.packed(blob.Packs[i])
	if err != nil {
		return nil, err
	}
	from := offset - blob.Packs[i].Offset
	return packed[from : from+bytes : from+bytes], nil
}

// packed returns a packed weight from memory: its own, or that of the content it shares with. It packs a weight that
// neither has, and frees the memory when the content is closed.
func (c *Content) packed(pl planir.Placement) ([]byte, error) {
	if c.shared != nil && c.shared.model == c.model {
		if same, ok := c.shared.equal(pl, c); ok {
			return c.shared.packed(same)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at := packKey{pl.Pack.Name, pl.Layer}
	if region, ok := c.loaded[at]; ok {
		return region.Bytes(), nil
	}
	region, err := mem.Alloc(int(pl.Pack.Bytes), 4096)
	if err != nil {
		return nil, diag.New(diag.ClassRun, "plan content: %w", err)
	}
	if err := c.pack(region.Bytes(), pl); err != nil {
		return nil, errors.Join(err, region.Close())
	}
	c.loaded[at] = region
	return region.Bytes(), nil
}

// packKey is a pack in a layer.
type packKey struct {
	pack  string
	layer int
}

// equal finds the placement of c with the same bytes as pl of another content of the same model: same pack apart from
// its name, same weight, same layer. Weights that a calibration decides about are equal only under the same
// calibration.
func (c *Content) equal(pl planir.Placement, o *Content) (planir.Placement, bool) {
	weight := o.weight(pl)
	calibrated := weight.FoldRows != "" || weight.FoldCols != "" || weight.ScaleOf != "" || weight.HeadsOf != "" ||
		pack.Searched(pl.Pack.Scheme)
	if calibrated && c.plan.Calibration() != o.plan.Calibration() || pl.Pack.Slotted { // which experts it has is the plan's
		return planir.Placement{}, false
	}
	for _, blob := range c.blobs {
		for _, own := range blob.Packs {
			packing := *own.Pack
			packing.Name = pl.Pack.Name
			if own.Layer == pl.Layer && packing == *pl.Pack && reflect.DeepEqual(c.weight(own), weight) {
				return own, true
			}
		}
	}
	return planir.Placement{}, false
}

// packOf is the pack that a step reads.
func (c *Content) packOf(ref planir.WeightRef) *planir.Pack {
	i := slices.IndexFunc(c.plan.Program.Packs, func(k planir.Pack) bool { return k.Name == ref.Pack })
	return &c.plan.Program.Packs[i]
}

// weight is the weight that a placement packs.
func (c *Content) weight(pl planir.Placement) *op.Weight {
	i := slices.IndexFunc(c.plan.Program.Weights, func(w op.Weight) bool { return w.Name == pl.Pack.Weight })
	return &c.plan.Program.Weights[i]
}

// Close releases packed weights held in memory, and what was compiled with weights.
func (c *Content) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	for _, region := range c.loaded {
		err = errors.Join(err, region.Close())
	}
	clear(c.loaded)
	if c.scratch != "" {
		if failed := os.RemoveAll(c.scratch); failed != nil {
			err = errors.Join(err, diag.New(diag.ClassIO, "remove what was compiled: %w", failed))
		}
		c.scratch = ""
	}
	return err
}

// write streams a weights blob. One packed matrix is in memory at a time, with the zeros that align the next one.
func (c *Content) write(out io.Writer, b planir.WeightBlob) error {
	var at int64
	var buf []byte
	for i, pl := range b.Packs {
		end := b.Size
		if i+1 < len(b.Packs) {
			end = b.Packs[i+1].Offset
		}
		size := int(end - at)
		if cap(buf) < size {
			buf = make([]byte, size)
		}
		buf = buf[:size]
		clear(buf[pl.Pack.Bytes:])
		if err := c.pack(buf[:pl.Pack.Bytes], pl); err != nil {
			return err
		}
		if _, err := out.Write(buf); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// pack writes what a placement holds: a matrix, or those of all experts, one behind the other.
func (c *Content) pack(dst []byte, pl planir.Placement) error {
	experts := []int{0}
	if pl.Pack.Experts > 0 {
		experts = c.plan.Holds(pl.Pack, pl.Layer)
	}
	size := len(dst) / max(1, pl.Pack.Experts)
	clear(dst[size*len(experts):]) // of a layer with fewer slotted experts than another
	imp, err := c.importance(pl)
	if err != nil {
		return err
	}
	for i, expert := range experts {
		if err := c.packExpert(dst[i*size:(i+1)*size], pl, expert, imp); err != nil {
			return err
		}
	}
	return nil
}

// packExpert writes the matrix of one expert, or the only one.
func (c *Content) packExpert(dst []byte, pl planir.Placement, expert int, imp *pack.Importance) error {
	src, names, err := c.source(pl, expert, imp != nil)
	if err != nil {
		return err
	}
	if err := pack.PackFor(dst, pack.Expert(pl.Pack.Spec()), src, imp); err != nil {
		return fmt.Errorf("pack %s: %w", strings.Join(names, ", "), err)
	}
	return nil
}

// slotExpert is the expert that a reference to a slot means in a layer; false for a reference to a whole pack.
func (c *Content) slotExpert(ref planir.WeightRef, layer int) (expert int, slotted bool) {
	if ref.Tiers == 0 {
		return 0, false
	}
	return c.plan.InSlot(ref, layer), true
}

// packRef writes what a reference to columns of a pack, or to what is in a slot of it, means in a layer (-1: none).
func (c *Content) packRef(dst []byte, ref planir.WeightRef, pl planir.Placement) error {
	expert, slotted := c.slotExpert(ref, pl.Layer)
	if !slotted {
		return c.pack(dst, pl)
	}
	imp, err := c.importance(pl)
	if err != nil {
		return err
	}
	return c.packExpert(dst, pl, expert, imp)
}

// specOf is the weight that a reference means, with its size in bytes: of a slot one expert.
func specOf(ref planir.WeightRef, packed *planir.Pack) (op.WeightSpec, int64) {
	if ref.Tiers == 0 {
		return packed.Spec(), packed.Bytes
	}
	return pack.Expert(packed.Spec()), packed.Bytes / int64(packed.Experts)
}

// source is the matrix that a placement packs of an expert, and the names of the tensors it is made of. With front it
// begins at row 0 rather than at the placement's first row, since rounding by importance depends on the rows before.
func (c *Content) source(pl planir.Placement, expert int, front bool) (matrix pack.Source, names []string, err error) {
	weight := c.weight(pl)
	switch weight.Kind() {
	case op.ScalesWeight, op.HeadsWeight, op.StepsWeight, op.SlotsWeight:
		matrix, err = c.computed(weight, pl)
		return matrix, nil, err
	case op.ConstantWeight:
		matrix, err = pack.Floats(weight.Const, weight.K, weight.N)
	default:
		matrix, names, err = c.stored(weight, pl.Layer, expert)
	}
	if err != nil {
		return nil, nil, err
	}
	// The fold in front of the weight, then the piece that the pack holds.
	multiply, err := c.factors(weight.FoldRows, pl.Layer, weight.K)
	if err != nil {
		return nil, nil, err
	}
	if multiply != nil {
		if matrix, err = pack.ScaleRows(matrix, multiply); err != nil {
			return nil, nil, err
		}
	}
	k0 := pl.Pack.K0
	if front {
		k0 = 0
	}
	matrix, err = part(matrix, k0, pl.Pack.K1, pl.Pack.N0, pl.Pack.N1)
	return matrix, names, err
}

// computed is what a placement packs of a weight that the calibration or the plan decides. Scales and slots are packed
// whole, steps with both rows; no fold in front of it applies, as steps have theirs in them.
func (c *Content) computed(weight *op.Weight, pl planir.Placement) (pack.Source, error) {
	rows := 1
	var values []float32
	var err error
	switch weight.Kind() {
	case op.ScalesWeight:
		values, err = c.staticScales(weight, pl.Layer)
	case op.HeadsWeight:
		values, err = c.heads(weight, pl.Layer)
	case op.StepsWeight:
		rows = 2
		values, err = c.steps(weight, pl.Layer)
	default:
		for _, expert := range c.plan.TiersOf(weight.SlotsOf).Layer(pl.Layer).Slots {
			values = append(values, float32(expert))
		}
	}
	if err != nil {
		return nil, err
	}
	if weight.Kind() == op.ScalesWeight || weight.Kind() == op.SlotsWeight {
		return pack.Floats(values, 1, len(values))
	}
	matrix, err := pack.Floats(values, rows, weight.N)
	if err != nil {
		return nil, err
	}
	return part(matrix, 0, rows, pl.Pack.N0, pl.Pack.N1)
}

// part is rows [k0,k1) and columns [n0,n1) of a matrix, the matrix itself where that is all of it.
func part(matrix pack.Source, k0, k1, n0, n1 int) (pack.Source, error) {
	if k, n := matrix.Shape(); k0 == 0 && k1 == k && n0 == 0 && n1 == n {
		return matrix, nil
	}
	return pack.Slice(matrix, k0, k1, n0, n1)
}

// stored assembles a weight from the tensors of a layer, for an expert. The columns of its sources are interleaved, and
// those of one of them divided by the factors of a fold.
func (c *Content) stored(weight *op.Weight, layer, expert int) (matrix pack.Source, names []string, err error) {
	divide, err := c.factors(weight.FoldCols, layer, weight.N/max(1, len(weight.Interleave)))
	if err != nil {
		return nil, nil, err
	}
	names = weight.Sources(layer, expert)
	sources := make([]pack.Source, len(names))
	for i, name := range names {
		tensor, err := c.model.Tensor(name)
		if err != nil {
			return nil, nil, err
		}
		source, err := pack.Tensor(tensor, weight.K, weight.SourceCols(i), weight.Transposed)
		if err != nil {
			return nil, nil, diag.New(diag.ClassInput, "tensor %q: %w", name, err)
		}
		if weight.Plus != 0 {
			source = pack.Plus(source, weight.Plus)
		}
		if divide != nil && i == weight.FoldSource {
			if source, err = pack.DivideColumns(source, divide); err != nil {
				return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
			}
		}
		sources[i] = source
	}
	if len(sources) == 1 {
		return sources[0], names, nil
	}
	matrix, err = pack.Interleave(sources, weight.Interleave)
	return matrix, names, err
}
