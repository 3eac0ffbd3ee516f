package matrix

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/workload"
)

const (
	maxRecord = 1 << 30
	maxText   = 256 << 20 // plans, costs
	// parsedRecord is how much larger a record is in memory than in its file.
	parsedRecord = 8
)

// modelInput is a model of the configuration, once opened.
type modelInput struct {
	entry  modelEntry
	err    error
	model  *models.Model
	digest cas.Digest
	files  map[string][]byte // of the tokenizer

	calibration       *calibration.Calibration // nil: none
	calibrationDigest string                   // "" for none
}

// socInput is a SoC and its record.
type socInput struct {
	entry  socEntry
	err    error
	soc    *socs.SoC
	part   *socs.SoC // what is measured and planned with: of a target what its device executes
	digest string
	facts  *record.Set // of a target's compiler, nil: none
	record cas.Digest  // of the record's bytes
	bytes  int64       // of the record
	cut    bool        // its last line was cut off
}

// workloadInput is a workload.
type workloadInput struct {
	entry    workloadEntry
	err      error
	workload *workload.Workload
	digest   string
}

// openInputs reads what the cells need, each once. What cannot be read fails the cells that need it; the
// error is for what concerns all.
func (b *build) openInputs(ctx context.Context, cells []*Cell) (closeAll func(), err error) {
	// inputs are shared by pointer: the first cell that uses one opens it
	seen := map[any]bool{}
	once := func(x any) bool { old := seen[x]; seen[x] = true; return !old }
	var opened []*models.Model
	closeAll = func() {
		for _, model := range opened {
			model.Close()
		}
	}
	for _, cell := range cells {
		if err := ctx.Err(); err != nil {
			return closeAll, err
		}
		if once(cell.soc) {
			cell.soc.err = b.openSoC(cell.soc)
		}
		if input := cell.workload; once(input) {
			if input.entry.Workload == "" {
				input.workload = workload.Default()
			} else {
				input.workload, input.err = workload.Read(b.o.Config.inside(input.entry.Workload))
			}
			if input.err == nil {
				input.digest, input.err = input.workload.Digest()
			}
		}
		if input := cell.model; once(input) {
			// Also after an error the model may be open, and must be closed.
			if input.err = b.openModel(ctx, input); input.model != nil {
				opened = append(opened, input.model)
			}
		}
	}
	return closeAll, nil
}

// openModel reads what plans need to know of a model, once for all its cells.
func (b *build) openModel(ctx context.Context, input *modelInput) (err error) {
	if input.model, err = b.o.Config.openModel(input.entry); err != nil {
		return err
	}
	if input.digest, err = b.modelDigest(input.model); err != nil {
		return err
	}
	if input.entry.Calibration != "" {
		if input.calibration, err = calibration.Read(b.o.Config.inside(input.entry.Calibration)); err != nil {
			return err
		}
		if err = input.calibration.CheckModel(input.model.Name, input.digest.String()); err != nil {
			return err
		}
		if input.calibrationDigest, err = input.calibration.Digest(); err != nil {
			return err
		}
	}
	if b.o.Key == nil || !input.model.HasWeights() { // there will be no bundles
		return nil
	}
	if input.files, err = input.model.TokenizerFiles(); err != nil {
		return err
	}
	return b.o.Tools.TryTokenizer(ctx, input.model, input.files)
}

// openSoC reads a SoC with its record and facts, once for all its cells.
func (b *build) openSoC(input *socInput) (err error) {
	if input.soc, err = b.o.Config.openSoC(input.entry); err != nil {
		return err
	}
	if input.digest, err = input.soc.Digest(); err != nil {
		return err
	}
	input.part = input.soc
	if input.entry.Target != "" {
		if input.part, err = input.soc.Restricted(); err != nil {
			return err
		}
		if err := input.checkTwin(); err != nil {
			return err
		}
		if input.facts, err = b.openFacts(input); err != nil {
			return err
		}
	}
	// simulated times need no record; a real machine's do
	if input.entry.Record == "" {
		if !input.soc.Simulated() {
			value, key := input.entry.source()
			return diag.New(diag.ClassInput, "%s %q: a real machine needs a record, and none is given", key,
				input.entry.Name).
				WithHint("measure it there: hetc profile --%s %s --model DIR -o rec.jsonl; then {%s: %s, record: "+
					"rec.jsonl}", key, value, key, value)
		}
		return nil
	}
	data, err := b.readRecord(input)
	if err != nil {
		return err
	}
	input.record, input.bytes = sha256.Sum256(data), int64(len(data))
	input.cut = len(data) > 0 && data[len(data)-1] != '\n'
	return nil
}

// checkTwin refuses a twin where no plan can have one: none of the processors that may execute is compiled for, and
// only what is compiled has a twin.
func (s *socInput) checkTwin() error {
	if !s.entry.Twin {
		return nil
	}
	var compiled []string
	for i := range s.part.Processors {
		proc := &s.part.Processors[i]
		if proc.Target == nil || proc.Target.Compiler == "" {
			continue
		}
		if len(s.entry.Only) == 0 || slices.Contains(s.entry.Only, proc.Name) {
			return nil
		}
		compiled = append(compiled, proc.Name)
	}
	if compiled == nil {
		return diag.New(diag.ClassInput, "target %q has twin: true, and none of its processors has a compiler",
			s.entry.Target).WithHint("leave twin: true out")
	}
	return diag.New(diag.ClassInput, "target %q has twin: true, and only: %q leaves out what is compiled for, %q",
		s.entry.Name, s.entry.Only, compiled).WithHint("leave twin: true out, or add %s to only", compiled[0])
}

// openFacts reads what a target's compiler said: the file of facts, else what the record holds of them.
func (b *build) openFacts(input *socInput) (*record.Set, error) {
	file := cmp.Or(input.entry.Facts, input.entry.Record)
	if file == "" {
		return nil, nil
	}
	set, err := record.Open(b.o.Config.inside(file))
	if err != nil {
		return nil, err
	}
	if len(set.Facts()) == 0 {
		if input.entry.Facts == "" {
			return nil, nil
		}
		return nil, diag.New(diag.ClassInput, "record %q has no compiler facts", file).
			WithHint("hetc profile --compiler-only --target %s makes them", input.entry.Target)
	}
	return set, nil
}

// factsText returns what of the compiler facts a plan depends on, "" where there are none.
func (s *socInput) factsText() (string, error) {
	if s.facts == nil {
		return "", nil
	}
	text, err := json.Marshal(s.facts.Facts())
	if err != nil {
		return "", fmt.Errorf("compiler facts: %w", err)
	}
	return string(text), nil
}

// readRecord returns the bytes of a SoC's record.
func (b *build) readRecord(s *socInput) ([]byte, error) {
	return wholefile.Read(b.o.Config.inside(s.entry.Record), maxRecord)
}

// errChanged is for an input that is not what it was when the run began.
func errChanged(what, name string) error {
	return diag.New(diag.ClassInput, "%s %q changed while it was built from", what, name).
		WithHint("build again when no other program writes to it")
}

// recordSource is the record that costs are fitted to: the key of these costs, and how the record's bytes are read.
type recordSource struct {
	name string // for messages
	key  cas.Key
	read func(ctx context.Context) ([]byte, error)
}

// costs returns the key of a cell's costs, and how they are made or found.
func (b *build) costs(cell *Cell) (cas.Key, func(context.Context) (*roofline.Costs, error), error) {
	input := cell.soc
	from := b.givenRecord(input)
	if input.entry.Record == "" {
		var err error
		if from, err = b.simulatedRecord(cell); err != nil {
			return cas.Key{}, nil, err
		}
	}
	if b.o.AcceptNoisy { // costs that were accepted are not found by a build that accepts none
		from.key = cas.KeyOf("noisy", from.key.String())
	}
	return from.key, func(ctx context.Context) (*roofline.Costs, error) {
		entry, _, err := b.obtain(ctx, from.key, func(path string) error {
			return b.fit(ctx, input, from, path)
		}, cell.warn)
		if err != nil {
			return nil, err
		}
		defer entry.Close()
		text, err := entry.Data(maxText)
		if err != nil {
			return nil, err
		}
		return roofline.Parse("costs of "+input.entry.Name, text)
	}, nil
}

// givenRecord returns the record that the configuration names. It must not change while the build runs.
func (b *build) givenRecord(input *socInput) *recordSource {
	return &recordSource{
		name: input.entry.Record,
		key:  cas.KeyOf("costs", b.o.Program, input.digest, input.record.String()),
		read: func(context.Context) ([]byte, error) {
			data, err := b.readRecord(input)
			if err == nil && sha256.Sum256(data) != input.record {
				err = errChanged("record", input.entry.Record)
			}
			return data, err
		},
	}
}

// simulatedRecord returns the record of a simulated SoC, with what the cell's model and workload need. It follows from
// SoC and requests, so that all models with the same requests share it.
func (b *build) simulatedRecord(cell *Cell) (*recordSource, error) {
	input := cell.soc
	needs, err := cell.workload.workload.Needs(cell.model.model.MaxContext)
	if err != nil {
		return nil, err
	}
	want := profiler.Want{Buckets: needs.Buckets, Batches: needs.Batches, Schemes: needs.On(input.part),
		MaxContext: needs.Context, Caches: needs.Caches, Densities: needs.Densities}
	requests, err := profiler.Requests(input.part, cell.model.model, want)
	if err != nil {
		return nil, err
	}
	list, err := json.Marshal(requests)
	if err != nil {
		return nil, fmt.Errorf("requests: %w", err)
	}
	measured := cas.KeyOf("record", b.o.Program, input.digest, string(list))
	return &recordSource{
		name: "simulated record of " + input.entry.Name,
		key:  cas.KeyOf("costs", b.o.Program, input.digest, measured.String()),
		read: func(ctx context.Context) ([]byte, error) {
			entry, _, err := b.obtain(ctx, measured, func(path string) error {
				return b.o.Tools.Simulate(ctx, input.soc, requests, path)
			}, cell.warn)
			if err != nil {
				return nil, err
			}
			defer entry.Close()
			return entry.Data(maxRecord)
		},
	}, nil
}

// fit fits costs to a record and writes them.
func (b *build) fit(ctx context.Context, input *socInput, from *recordSource, path string) error {
	data, err := from.read(ctx)
	if err != nil {
		return err
	}
	give, err := b.memory.take(ctx, baseBytes+parsedRecord*int64(len(data)))
	if err != nil {
		return fmt.Errorf("fit: %w", err)
	}
	defer give()
	set, err := record.Read(from.name, bytes.NewReader(data))
	if err != nil {
		return err
	}
	if !b.o.AcceptNoisy {
		if err := set.Steady(from.name); err != nil {
			return err
		}
	}
	costs, err := roofline.Fit(input.soc, set)
	if err != nil {
		return err
	}
	return roofline.Write(path, costs)
}

// plan makes the plan of a cell.
func (b *build) plan(ctx context.Context, cell *Cell) error {
	costsKey, costs, err := b.costs(cell)
	if err != nil {
		return err
	}
	if cell.soc.cut {
		cell.warn("%s: the last line was cut off and is not used", cell.soc.entry.Record)
	}
	input := cell.model
	facts, err := cell.soc.factsText()
	if err != nil {
		return err
	}
	// the plan follows from these, and from nothing else
	parts := []string{b.o.Program, input.digest.String(), input.model.Name, cell.soc.digest, costsKey.String(),
		cell.workload.digest, input.calibrationDigest, cell.soc.entry.Target, facts}
	key := cas.KeyOf("plan", append(parts, cell.soc.entry.Only...)...)
	warnings := cas.KeyOf("warnings", key.String())
	err = b.settle(ctx, cell, &cell.Plan, key, func(path string) error {
		prices, err := costs(ctx)
		if err != nil {
			return err
		}
		return b.solve(ctx, cell, prices, warnings, path)
	})
	if err != nil || cell.Plan.State == WillBuild || cell.Plan.State == WillCopy {
		return err
	}
	// read back what is there, new or old: the report shows its predictions
	plan, err := plantext.Read(cell.Plan.File)
	if err != nil {
		return err
	}
	cell.Predictions, cell.Evidence = plan.Predictions, plan.Evidence()
	if cell.Target { // what emit makes of it
		cell.Evidence = planir.Unproved
	}
	if cell.Plan.Digest, err = planir.Digest(plan); err != nil {
		return err
	}
	if err := b.outline(cell, plan); err != nil {
		return err
	}
	return b.showWarnings(cell, warnings)
}

// solve makes the plan of a cell from its costs, and keeps what solve warned of.
func (b *build) solve(ctx context.Context, cell *Cell, prices *roofline.Costs, warnings cas.Key, path string) error {
	// Taken only now: a plan from the cache needs no memory.
	give, err := b.memory.take(ctx, solveBytes)
	if err != nil {
		return fmt.Errorf("solve: %w", err)
	}
	defer give()
	input := cell.model
	in := solver.Input{Model: input.model, SoC: cell.soc.soc, Costs: prices, Workload: cell.workload.workload,
		Calibration: input.calibration, Engine: b.o.Tools.Engine, Facts: cell.soc.facts, Only: cell.soc.entry.Only}
	if cell.soc.entry.Target != "" {
		if err := in.ForTarget(); err != nil {
			return err
		}
	}
	result, err := solver.Solve(ctx, in)
	if err != nil {
		return err
	}
	// The key says what the plan was made from, so that must still be true.
	if result.Plan.Model.Digest != input.digest.String() {
		return errChanged("model", input.entry.Model)
	}
	if err := b.keepWarnings(warnings, result.Warnings); err != nil {
		return err
	}
	text, err := plantext.Encode(result.Plan)
	if err != nil {
		return err
	}
	return wholefile.Write(path, text)
}

// outline writes the outline of a cell's plan where the configuration wants it, and tells how it differs from the one
// that was there.
func (b *build) outline(cell *Cell, p *planir.Plan) error {
	if cell.Outline == "" {
		return nil
	}
	text, err := planir.Outline(p)
	if err != nil {
		return err
	}
	// tell what changed against the last outline, and keep the file where nothing did
	before, err := wholefile.Read(cell.Outline, maxText)
	switch {
	case err == nil:
		if cell.Changes = planir.OutlineChanges(string(before), text); cell.Changes == nil {
			return nil
		}
	case !errors.Is(err, fs.ErrNotExist):
		return diag.New(diag.ClassIO, "outline: %w", err)
	}
	// only tell what would be done
	if b.o.DryRun {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(cell.Outline), 0o755); err != nil {
		return diag.New(diag.ClassIO, "outline: %w", err)
	}
	return wholefile.Write(cell.Outline, []byte(text))
}

// keepWarnings stores what solve had to say, so that it is said in every run.
func (b *build) keepWarnings(key cas.Key, list diag.List) error {
	if len(list) == 0 {
		return nil
	}
	var lines []string
	for _, finding := range list {
		lines = append(lines, finding.Error())
	}
	text, err := json.Marshal(lines)
	if err != nil {
		return fmt.Errorf("warnings: %w", err)
	}
	entry, err := b.o.Cache.Put(key, func(path string) error { return wholefile.Write(path, text) })
	if err != nil {
		return err
	}
	return entry.Close()
}

// showWarnings repeats the warnings that were kept with a result from the cache.
func (b *build) showWarnings(cell *Cell, key cas.Key) error {
	entry, err := b.o.Cache.Get(key)
	if err != nil {
		return nil // there were none, or the cache has lost them
	}
	defer entry.Close()
	text, err := entry.Data(maxText)
	if err != nil {
		return err
	}
	var lines []string
	if err := json.Unmarshal(text, &lines); err != nil {
		return fmt.Errorf("warnings: %w", err)
	}
	cell.Warnings = append(cell.Warnings, lines...)
	return nil
}

// bundle makes the bundle of a cell, whose plan is there; for a target also its twin.
func (b *build) bundle(ctx context.Context, cell *Cell) error {
	// reasons for no bundle, none of which is an error
	switch input := cell.model; {
	case b.o.Config.Sign == signNever:
		cell.Bundle = Artifact{State: Omitted, Why: "sign: never"}
		return nil
	case !input.model.HasWeights():
		cell.Bundle = Artifact{State: Omitted, Why: "the model has no weights"}
		return nil
	case b.o.Key == nil:
		cell.Bundle = Artifact{State: Omitted, Why: NoKey}
		return nil
	case cell.Plan.State == WillBuild:
		cell.Bundle.State = WillBuild
		return nil
	}

	var target *Target
	if entry := &cell.soc.entry; entry.Target != "" {
		target = &Target{AllowFallback: entry.AllowFallback}
		// the twin first: the bundle names its digest
		if entry.Twin {
			cell.Twin = &Artifact{File: twinFile(cell)}
			if err := b.emit(ctx, cell, cell.Twin,
				&Target{AllowFallback: entry.AllowFallback, Emulator: true}); err != nil {
				cell.Twin.State = Failed
				return fmt.Errorf("twin: %w", err)
			}
			target.Twin = cell.Twin
		}
	}
	return b.emit(ctx, cell, &cell.Bundle, target)
}

// twinFile returns where the twin of a cell's bundle lies: beside it.
func twinFile(c *Cell) string { return strings.TrimSuffix(c.Bundle.File, ".hetb") + ".twin.hetb" }

// emit makes one bundle of a cell's plan, for the plan's processors or for t.
func (b *build) emit(ctx context.Context, cell *Cell, artifact *Artifact, target *Target) error {
	key, err := b.bundleKey(ctx, cell, target)
	if err != nil {
		return err
	}
	err = b.settle(ctx, cell, artifact, key, func(path string) error {
		options, err := b.emitOptions(cell)
		if err != nil {
			return err
		}
		give, err := b.memory.take(ctx, emitBytes(options.Plan))
		if err != nil {
			return fmt.Errorf("emit: %w", err)
		}
		defer give()
		_, err = b.o.Tools.Emit(ctx, path, *options, cell.soc.soc, target, &b.o.Key.Public)
		return err
	})
	if err != nil || artifact.State == WillBuild || artifact.State == WillCopy {
		return err
	}
	unverified, err := bundle.Inspect(artifact.File)
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	artifact.Digest = unverified.Digest.String()
	return nil
}

// bundleKey returns the key of everything that a bundle's bytes follow from.
func (b *build) bundleKey(ctx context.Context, cell *Cell, target *Target) (cas.Key, error) {
	input := cell.model
	options, err := json.Marshal(b.o.Config.Bundle)
	if err != nil {
		return cas.Key{}, fmt.Errorf("bundle options: %w", err)
	}
	parts := []string{b.o.Program, cell.Plan.content.String(), input.digest.String(), cell.soc.digest,
		b.o.Key.Public.ID(), string(options), runtime.GOOS, runtime.GOARCH}
	if target != nil {
		// a target's bundle also depends on its compiler and on the twin that it names
		libraries, err := b.o.Tools.Compilers(ctx, cell.soc.part)
		if err != nil {
			return cas.Key{}, err
		}
		twin := ""
		if target.Twin != nil {
			twin = target.Twin.content.String()
		}
		parts = append(parts, "target", cell.soc.soc.Name, fmt.Sprint(target.AllowFallback, target.Emulator), twin,
			libraries, input.calibrationDigest)
	}
	for _, name := range slices.Sorted(maps.Keys(input.files)) {
		parts = append(parts, name, string(input.files[name]))
	}
	return cas.KeyOf("bundle", parts...), nil
}

// emitOptions returns those of every bundle of a cell.
func (b *build) emitOptions(cell *Cell) (*emit.Options, error) {
	text, err := wholefile.Read(cell.Plan.File, maxText)
	if err != nil {
		return nil, err
	}
	if sha256.Sum256(text) != cell.Plan.content {
		return nil, errChanged("plan", cell.Plan.File)
	}
	plan, err := plantext.Decode(cell.Plan.File, text)
	if err != nil {
		return nil, err
	}
	input, options := cell.model, b.o.Config.Bundle.stated()
	options.Plan, options.Model, options.Calibration, options.Files = plan, input.model, input.calibration, input.files
	options.Signers = []bundle.Signer{b.o.Key.Signer()}
	return options, nil
}

// Program returns the digest of the running program, which stands for the version of every algorithm and format.
func Program() (string, error) {
	path := "/proc/self/exe" // what runs, even when its file was replaced
	if _, err := os.Stat(path); err != nil {
		if path, err = os.Executable(); err != nil {
			return "", diag.New(diag.ClassIO, "find this program's file: %w", err)
		}
	}
	file, err := os.Open(path)
	if err != nil {
		return "", diag.New(diag.ClassIO, "read this program's file: %w", err)
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := file.WriteTo(hash); err != nil {
		return "", diag.New(diag.ClassIO, "read this program's file: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
