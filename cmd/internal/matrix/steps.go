package matrix

import (
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
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/solver"
)

const (
	maxRecord = 1 << 30
	maxText   = 256 << 20 // plans, costs
	// parsedRecord is how much larger a record is in memory than in its file.
	parsedRecord = 8
)

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

	// The plan follows from these parts, and from nothing else.
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

	// The report shows predictions of the plan in the file, new or old.
	plan, err := plantext.Read(cell.Plan.File)
	if err != nil {
		return err
	}

	cell.Predictions, cell.Evidence = plan.Predictions, plan.Evidence()
	if cell.Target {
		cell.Evidence = planir.Unproved // emit proves nothing about another device
	}
	cell.Plan.Digest, err = planir.Digest(plan)
	if err != nil {
		return err
	}
	if err := b.outline(cell, plan); err != nil {
		return err
	}
	return b.showWarnings(cell, warnings)
}

// solve makes the plan of a cell from its costs, and keeps the warnings of solve.
func (b *build) solve(ctx context.Context, cell *Cell, prices *roofline.Costs, warnings cas.Key, path string) error {
	noise, err := b.noise(ctx, cell.soc)
	if err != nil {
		return err
	}

	// Only now, because a plan from the cache needs no memory.
	give, err := b.memory.take(ctx, solveBytes)
	if err != nil {
		return fmt.Errorf("solve: %w", err)
	}

	defer give()
	input := cell.model
	in := solver.Input{
		Model: input.model, SoC: cell.soc.soc, Costs: prices, Workload: cell.workload.workload,
		Calibration: input.calibration, Engine: b.o.Tools.Engine, Facts: cell.soc.facts, Only: cell.soc.entry.Only,
	}
	if cell.soc.entry.Target != "" {
		if err := in.ForTarget(); err != nil {
			return err
		}
	}

	result, err := solver.Solve(ctx, in)
	if err != nil {
		return err
	}

	// The key of the plan contains the digest of the model, which therefore must not have changed.
	if result.Plan.Model.Digest != input.digest.String() {
		return errChanged("model", input.entry.Model)
	}
	if err := b.keepWarnings(warnings, slices.Concat(noise, result.Warnings)); err != nil {
		return err
	}
	text, err := plantext.Encode(result.Plan)
	if err != nil {
		return err
	}
	return wholefile.Write(path, text)
}

// outline writes the outline of a cell's plan where the configuration wants it. It reports the changes against the
// outline in the file, and keeps the file if there are none.
func (b *build) outline(cell *Cell, plan *planir.Plan) error {
	if cell.Outline == "" {
		return nil
	}
	text, err := planir.Outline(plan)
	if err != nil {
		return err
	}

	before, err := wholefile.Read(cell.Outline, maxText)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return diag.New(diag.ClassIO, "outline: %w", err)
	}

	if err == nil {
		cell.Changes = planir.OutlineChanges(string(before), text)
		if cell.Changes == nil {
			return nil
		}
	}

	if b.o.DryRun {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(cell.Outline), 0o755); err != nil {
		return diag.New(diag.ClassIO, "outline: %w", err)
	}
	return wholefile.Write(cell.Outline, []byte(text))
}

// keepWarnings stores the warnings of solve, so that every run shows them.
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
		return nil // the plan has no warnings, or the cache has lost them
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

// bundle makes the bundle of a cell with a finished plan; for a target also its twin.
func (b *build) bundle(ctx context.Context, cell *Cell) error {
	if why := b.noBundle(cell.model.model); why != "" {
		cell.Bundle = Artifact{State: Omitted, Why: why}
		return nil
	}
	if cell.Plan.State == WillBuild {
		cell.Bundle.State = WillBuild
		return nil
	}

	entry := &cell.soc.entry
	if entry.Target == "" {
		return b.emit(ctx, cell, &cell.Bundle, nil)
	}

	target := &Target{AllowFallback: entry.AllowFallback}
	if entry.Twin {
		// The twin comes first, because the bundle names its digest.
		cell.Twin = &Artifact{File: twinFile(cell)}
		emulator := &Target{AllowFallback: entry.AllowFallback, Emulator: true}
		if err := b.emit(ctx, cell, cell.Twin, emulator); err != nil {
			cell.Twin.State = Failed
			return fmt.Errorf("twin: %w", err)
		}
		target.Twin = cell.Twin
	}

	return b.emit(ctx, cell, &cell.Bundle, target)
}

// noBundle returns the reason why a model gets no bundle, which is no error; "" if it gets one.
func (b *build) noBundle(model *models.Model) string {
	switch {
	case b.o.Config.Sign == signNever:
		return "sign: never"
	case !model.HasWeights():
		return "the model has no weights"
	case b.o.Key == nil:
		return NoKey
	}
	return ""
}

// twinFile returns the path of the twin, beside the bundle of a cell.
func twinFile(cell *Cell) string { return strings.TrimSuffix(cell.Bundle.File, ".hetb") + ".twin.hetb" }

// emit makes one bundle of a cell's plan: for the plan's processors, or for the target unless that is nil.
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

// bundleKey returns the key of all inputs that determine the bytes of a bundle.
func (b *build) bundleKey(ctx context.Context, cell *Cell, target *Target) (cas.Key, error) {
	input := cell.model
	options, err := json.Marshal(b.o.Config.Bundle)
	if err != nil {
		return cas.Key{}, fmt.Errorf("bundle options: %w", err)
	}

	parts := []string{b.o.Program, cell.Plan.content.String(), input.digest.String(), cell.soc.digest,
		b.o.Key.Public.ID(), string(options), runtime.GOOS, runtime.GOARCH}
	if target != nil {
		// The bundle of a target also depends on its compiler, and on the twin that it names.
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

// emitOptions returns the options of every bundle of a cell.
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
	path := "/proc/self/exe" // the running program, even when its file was replaced
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
