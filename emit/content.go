package emit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
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
	mu       sync.Mutex
	inMemory map[packKey]*mem.Region // packed weights in memory
	shared   *Content                // packed weights are taken from there where they are equal

	// What decides about rounding and folding.
	calibration    *calibration.Calibration // nil: none
	graph          models.Graph
	importanceMu   sync.Mutex
	lastImportance map[packKey]*pack.Importance // of the weight that was packed last
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

// newContent returns a content without artifacts.
func newContent(plan *planir.Plan, m *models.Model, cal *calibration.Calibration) (*Content, error) {
	if err := checkCalibration(plan, cal); err != nil {
		return nil, err
	}
	content := &Content{
		plan: plan, model: m, artifacts: map[string]artifact{}, blobs: map[string]planir.WeightBlob{},
		inMemory:    map[packKey]*mem.Region{},
		calibration: cal, graph: m.Graph(), lastImportance: map[packKey]*pack.Importance{},
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

// compilerFor returns the compiler of a processor's driver.
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

// ShareWith makes c take packed weights from another content where both pack the same. The other one is closed after c.
func (c *Content) ShareWith(other *Content) { c.shared = other }

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
	packed, err := c.packedWeight(blob.Packs[i])
	if err != nil {
		return nil, err
	}
	from := offset - blob.Packs[i].Offset
	return packed[from : from+bytes : from+bytes], nil
}

// packedWeight returns a packed weight from memory: its own, or that of the content it shares with. It packs a weight
// that neither has, and frees the memory when the content is closed.
func (c *Content) packedWeight(pl planir.Placement) ([]byte, error) {
	if c.shared != nil && c.shared.model == c.model {
		if same, ok := c.shared.equalPlacement(pl, c); ok {
			return c.shared.packedWeight(same)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at := packKey{pl.Pack.Name, pl.Layer}
	if region, ok := c.inMemory[at]; ok {
		return region.Bytes(), nil
	}
	region, err := mem.Alloc(int(pl.Pack.Bytes), 4096)
	if err != nil {
		return nil, diag.New(diag.ClassRun, "plan content: %w", err)
	}
	if err := c.packPlacement(region.Bytes(), pl); err != nil {
		return nil, errors.Join(err, region.Close())
	}
	c.inMemory[at] = region
	return region.Bytes(), nil
}

// packKey is a pack in a layer.
type packKey struct {
	pack  string
	layer int
}

// equalPlacement finds the placement of c with the same bytes as pl of another content of the same model: same pack
// apart from its name, same weight, same layer. Weights that a calibration decides about are equal only under the same
// calibration.
func (c *Content) equalPlacement(pl planir.Placement, other *Content) (planir.Placement, bool) {
	weight := other.weight(pl)
	calibrated := weight.FoldRows != "" || weight.FoldCols != "" || weight.ScaleOf != "" || weight.HeadsOf != "" ||
		pack.Searched(pl.Pack.Scheme)
	if pl.Pack.Slotted { // which experts it has is decided by the plan
		return planir.Placement{}, false
	}
	if calibrated && c.plan.Calibration() != other.plan.Calibration() {
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

// Close releases packed weights held in memory, and what was compiled with weights.
func (c *Content) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	for _, region := range c.inMemory {
		err = errors.Join(err, region.Close())
	}
	clear(c.inMemory)
	if c.scratch != "" {
		if failed := os.RemoveAll(c.scratch); failed != nil {
			err = errors.Join(err, diag.New(diag.ClassIO, "remove what was compiled: %w", failed))
		}
		c.scratch = ""
	}
	return err
}
