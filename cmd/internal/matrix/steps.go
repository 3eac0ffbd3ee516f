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
	seen := map[any]bool{}
	once := func(x any) bool { old := seen[x]; seen[x] = true; return !old }
	var opened []*models.Model
	closeAll = func() {
		for _, m := range opened {
			m.Close()
		}
	}
	for _, c := range cells {
		if err := ctx.Err(); err != nil {
			return closeAll, err
		}
		if once(c.soc) {
			c.soc.err = b.openSoC(c.soc)
		}
		if w := c.workload; once(w) {
			if w.entry.Workload == "" {
				w.workload = workload.Default()
			} else {
				w.workload, w.err = workload.Read(b.o.Config.inside(w.entry.Workload))
			}
			if w.err == nil {
				w.digest, w.err = w.workload.Digest()
			}
		}
		if m := c.model; once(m) {
			if m.err = b.openModel(m); m.model != nil {
				opened = append(opened, m.model)
			}
		}
	}
	return closeAll, nil
}

func (b *build) openModel(m *modelInput) (err error) {
	if m.model, err = b.o.Config.openModel(m.entry); err != nil {
		return err
	}
	if m.digest, err = b.modelDigest(m.model); err != nil {
		return err
	}
	if m.entry.Calibration != "" {
		if m.calibration, err = calibration.Read(b.o.Config.inside(m.entry.Calibration)); err != nil {
			return err
		}
		if err = m.calibration.CheckModel(m.model.Name, m.digest.String()); err != nil {
			return err
		}
		if m.calibrationDigest, err = m.calibration.Digest(); err != nil {
			return err
		}
	}
	if b.o.Key != nil && m.model.HasWeights() {
		m.files, err = m.model.TokenizerFiles()
	}
	return err
}

func (b *build) openSoC(s *socInput) (err error) {
	if s.soc, err = b.o.Config.openSoC(s.entry); err != nil {
		return err
	}
	if s.digest, err = s.soc.Digest(); err != nil {
		return err
	}
	s.part = s.soc
	if s.entry.Target != "" {
		if s.part, err = s.soc.Restricted(); err != nil {
			return err
		}
		if s.facts, err = b.openFacts(s); err != nil {
			return err
		}
	}
	if s.entry.Record == "" {
		if !s.soc.Simulated() {
			value, key := s.entry.source()
			return diag.New(diag.ClassInput, "%s %q: a real machine needs a record, and none is given", key, s.entry.Name).
				WithHint("measure it there: hetc profile --%s %s --model DIR -o rec.jsonl; then {%s: %s, record: rec.jsonl}", key, value, key, value)
		}
		return nil
	}
	data, err := b.readRecord(s)
	if err != nil {
		return err
	}
	s.record, s.bytes = sha256.Sum256(data), int64(len(data))
	s.cut = len(data) > 0 && data[len(data)-1] != '\n'
	return nil
}

// openFacts reads what a target's compiler said: the file of facts, else what the record holds of them.
func (b *build) openFacts(s *socInput) (*record.Set, error) {
	file := cmp.Or(s.entry.Facts, s.entry.Record)
	if file == "" {
		return nil, nil
	}
	set, err := record.Open(b.o.Config.inside(file))
	if err != nil {
		return nil, err
	}
	if len(set.Facts()) == 0 {
		if s.entry.Facts == "" {
			return nil, nil
		}
		return nil, diag.New(diag.ClassInput, "record %q has no compiler facts", file).
			WithHint("hetc profile --compiler-only --target %s makes them", s.entry.Target)
	}
	return set, nil
}

// factsText is what of the compiler facts a plan depends on, "" where there are none.
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

func (b *build) readRecord(s *socInput) ([]byte, error) {
	return wholefile.Read(b.o.Config.inside(s.entry.Record), maxRecord)
}

// errChanged is for an input that is not what it was when the run began.
func errChanged(what, name string) error {
	return diag.New(diag.ClassInput, "%s %q changed while it was built from", what, name).WithHint("build again when nobody writes to it")
}

// costs returns the key of a cell's costs, and how they are made or found.
func (b *build) costs(c *Cell) (cas.Key, func(context.Context) (*roofline.Costs, error), error) {
	s := c.soc
	var key cas.Key
	var read func(ctx context.Context) ([]byte, error)
	if s.entry.Record != "" {
		key = cas.KeyOf("costs", b.o.Program, s.digest, s.record.String())
		read = func(context.Context) ([]byte, error) {
			data, err := b.readRecord(s)
			if err == nil && sha256.Sum256(data) != s.record {
				err = errChanged("record", s.entry.Record)
			}
			return data, err
		}
	} else {
		needs, err := c.workload.workload.Needs(c.model.model.MaxContext)
		if err != nil {
			return key, nil, err
		}
		want := profiler.Want{Buckets: needs.Buckets, Batches: needs.Batches, Schemes: needs.On(s.part), MaxContext: needs.Context}
		requests, err := profiler.Requests(s.part, c.model.model, want)
		if err != nil {
			return key, nil, err
		}
		// What is measured follows from SoC and requests, whatever model they come from.
		list, err := json.Marshal(requests)
		if err != nil {
			return key, nil, fmt.Errorf("requests: %w", err)
		}
		measured := cas.KeyOf("record", b.o.Program, s.digest, string(list))
		key = cas.KeyOf("costs", b.o.Program, s.digest, measured.String())
		read = func(ctx context.Context) ([]byte, error) {
			e, _, err := b.obtain(ctx, measured, func(path string) error {
				return b.o.Tools.Simulate(ctx, s.soc, requests, path)
			}, c.warn)
			if err != nil {
				return nil, err
			}
			defer e.Close()
			return e.Data(maxRecord)
		}
	}
	if b.o.AcceptNoisy { // costs that were accepted are not found by a build that accepts none
		key = cas.KeyOf("noisy", key.String())
	}
	name := s.entry.Record
	if name == "" {
		name = "simulated record of " + s.entry.Name
	}
	return key, func(ctx context.Context) (*roofline.Costs, error) {
		e, _, err := b.obtain(ctx, key, func(path string) error {
			data, err := read(ctx)
			if err != nil {
				return err
			}
			give, err := b.memory.take(ctx, baseBytes+parsedRecord*int64(len(data)))
			if err != nil {
				return fmt.Errorf("fit: %w", err)
			}
			defer give()
			set, err := record.Read(name, bytes.NewReader(data))
			if err != nil {
				return err
			}
			if !b.o.AcceptNoisy {
				if err := set.Steady(name); err != nil {
					return err
				}
			}
			costs, err := roofline.Fit(s.soc, set)
			if err != nil {
				return err
			}
			return roofline.Write(path, costs)
		}, c.warn)
		if err != nil {
			return nil, err
		}
		defer e.Close()
		text, err := e.Data(maxText)
		if err != nil {
			return nil, err
		}
		return roofline.Parse("costs of "+s.entry.Name, text)
	}, nil
}

// plan makes the plan of a cell.
func (b *build) plan(ctx context.Context, c *Cell) error {
	costsKey, costs, err := b.costs(c)
	if err != nil {
		return err
	}
	if c.soc.cut {
		c.warn("%s: the last line was cut off and is not used", c.soc.entry.Record)
	}
	m := c.model
	facts, err := c.soc.factsText()
	if err != nil {
		return err
	}
	parts := []string{b.o.Program, m.digest.String(), m.model.Name, c.soc.digest, costsKey.String(), c.workload.digest, m.calibrationDigest, c.soc.entry.Target, facts}
	key := cas.KeyOf("plan", append(parts, c.soc.entry.Only...)...)
	warnings := cas.KeyOf("warnings", key.String())
	err = b.settle(ctx, c, &c.Plan, key, func(path string) error {
		prices, err := costs(ctx)
		if err != nil {
			return err
		}
		give, err := b.memory.take(ctx, solveBytes)
		if err != nil {
			return fmt.Errorf("solve: %w", err)
		}
		defer give()
		in := solver.Input{Model: m.model, SoC: c.soc.soc, Costs: prices, Workload: c.workload.workload, Calibration: m.calibration,
			Engine: b.o.Tools.Engine, Facts: c.soc.facts, Only: c.soc.entry.Only}
		if c.soc.entry.Target != "" {
			if err := in.ForTarget(); err != nil {
				return err
			}
		}
		r, err := solver.Solve(ctx, in)
		if err != nil {
			return err
		}
		if r.Plan.Model.Digest != m.digest.String() {
			return errChanged("model", m.entry.Model)
		}
		if err := b.keepWarnings(warnings, r.Warnings); err != nil {
			return err
		}
		text, err := plantext.Encode(r.Plan)
		if err != nil {
			return err
		}
		return wholefile.Write(path, text)
	})
	if err != nil || c.Plan.State == WillBuild || c.Plan.State == WillCopy {
		return err
	}
	p, err := plantext.Read(c.Plan.File)
	if err != nil {
		return err
	}
	c.Predictions, c.Evidence = p.Predictions, p.Evidence()
	if c.Target { // what emit makes of it
		c.Evidence = planir.Unproved
	}
	if c.Plan.Digest, err = planir.Digest(p); err != nil {
		return err
	}
	if err := b.outline(c, p); err != nil {
		return err
	}
	return b.showWarnings(c, warnings)
}

// outline writes the outline of a cell's plan where the configuration wants it, and tells how it differs from the one
// that was there.
func (b *build) outline(c *Cell, p *planir.Plan) error {
	if c.Outline == "" {
		return nil
	}
	text, err := planir.Outline(p)
	if err != nil {
		return err
	}
	before, err := wholefile.Read(c.Outline, maxText)
	switch {
	case err == nil:
		if c.Changes = planir.OutlineChanges(string(before), text); c.Changes == nil {
			return nil
		}
	case !errors.Is(err, fs.ErrNotExist):
		return diag.New(diag.ClassIO, "outline: %w", err)
	}
	if b.o.DryRun {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(c.Outline), 0o755); err != nil {
		return diag.New(diag.ClassIO, "outline: %w", err)
	}
	return wholefile.Write(c.Outline, []byte(text))
}

// keepWarnings stores what solve had to say, so that it is said in every run.
func (b *build) keepWarnings(key cas.Key, list diag.List) error {
	if len(list) == 0 {
		return nil
	}
	var lines []string
	for _, w := range list {
		lines = append(lines, w.Error())
	}
	text, err := json.Marshal(lines)
	if err != nil {
		return fmt.Errorf("warnings: %w", err)
	}
	e, err := b.o.Cache.Put(key, func(path string) error { return wholefile.Write(path, text) })
	if err != nil {
		return err
	}
	return e.Close()
}

func (b *build) showWarnings(c *Cell, key cas.Key) error {
	e, err := b.o.Cache.Get(key)
	if err != nil {
		return nil // there were none, or the cache has lost them
	}
	defer e.Close()
	text, err := e.Data(maxText)
	if err != nil {
		return err
	}
	var lines []string
	if err := json.Unmarshal(text, &lines); err != nil {
		return fmt.Errorf("warnings: %w", err)
	}
	c.Warnings = append(c.Warnings, lines...)
	return nil
}

// bundle makes the bundle of a cell, whose plan is there; for a target also its twin.
func (b *build) bundle(ctx context.Context, c *Cell) error {
	switch m := c.model; {
	case b.o.Config.Sign == signNever:
		c.Bundle = Artifact{State: Omitted, Why: "sign: never"}
		return nil
	case !m.model.HasWeights():
		c.Bundle = Artifact{State: Omitted, Why: "the model has no weights"}
		return nil
	case b.o.Key == nil:
		c.Bundle = Artifact{State: Omitted, Why: NoKey}
		return nil
	case c.Plan.State == WillBuild:
		c.Bundle.State = WillBuild
		return nil
	}

	var t *Target
	if e := &c.soc.entry; e.Target != "" {
		t = &Target{AllowFallback: e.AllowFallback}
		if e.Twin {
			c.Twin = &Artifact{File: twinFile(c)}
			if err := b.emit(ctx, c, c.Twin, &Target{AllowFallback: e.AllowFallback, Emulator: true}); err != nil {
				c.Twin.State = Failed
				return fmt.Errorf("twin: %w", err)
			}
			t.Twin = c.Twin
		}
	}
	return b.emit(ctx, c, &c.Bundle, t)
}

// twinFile is where the twin of a cell's bundle lies: beside it.
func twinFile(c *Cell) string { return strings.TrimSuffix(c.Bundle.File, ".hetb") + ".twin.hetb" }

// emit makes one bundle of a cell's plan, for the plan's processors or for t.
func (b *build) emit(ctx context.Context, c *Cell, a *Artifact, t *Target) error {
	key, err := b.bundleKey(ctx, c, t)
	if err != nil {
		return err
	}
	err = b.settle(ctx, c, a, key, func(path string) error {
		o, err := b.emitOptions(c)
		if err != nil {
			return err
		}
		give, err := b.memory.take(ctx, emitBytes(o.Plan))
		if err != nil {
			return fmt.Errorf("emit: %w", err)
		}
		defer give()
		_, err = b.o.Tools.Emit(ctx, path, *o, c.soc.soc, t, &b.o.Key.Public)
		return err
	})
	if err != nil || a.State == WillBuild || a.State == WillCopy {
		return err
	}
	u, err := bundle.Inspect(a.File)
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	a.Digest = u.Digest.String()
	return nil
}

// bundleKey is the key of everything that a bundle's bytes follow from.
func (b *build) bundleKey(ctx context.Context, c *Cell, t *Target) (cas.Key, error) {
	m := c.model
	options, err := json.Marshal(b.o.Config.Bundle)
	if err != nil {
		return cas.Key{}, fmt.Errorf("bundle options: %w", err)
	}
	parts := []string{b.o.Program, c.Plan.content.String(), m.digest.String(), c.soc.digest, b.o.Key.Public.ID(), string(options), runtime.GOOS, runtime.GOARCH}
	if t != nil {
		libraries, err := b.o.Tools.Compilers(ctx, c.soc.part)
		if err != nil {
			return cas.Key{}, err
		}
		twin := ""
		if t.Twin != nil {
			twin = t.Twin.content.String()
		}
		parts = append(parts, "target", c.soc.soc.Name, fmt.Sprint(t.AllowFallback, t.Emulator), twin, libraries, m.calibrationDigest)
	}
	for _, name := range slices.Sorted(maps.Keys(m.files)) {
		parts = append(parts, name, string(m.files[name]))
	}
	return cas.KeyOf("bundle", parts...), nil
}

// emitOptions are those of every bundle of a cell.
func (b *build) emitOptions(c *Cell) (*emit.Options, error) {
	text, err := wholefile.Read(c.Plan.File, maxText)
	if err != nil {
		return nil, err
	}
	if sha256.Sum256(text) != c.Plan.content {
		return nil, errChanged("plan", c.Plan.File)
	}
	p, err := plantext.Decode(c.Plan.File, text)
	if err != nil {
		return nil, err
	}
	m, x := c.model, b.o.Config.Bundle
	return &emit.Options{
		Plan: p, Model: m.model, Calibration: m.calibration, Signers: []bundle.Signer{b.o.Key.Signer()}, Files: m.files, Reference: x.WithReference,
		Product: x.Product, Version: x.Version, SecurityVersion: x.SecurityVersion, Generation: x.KeyringGeneration, NotAfter: x.NotAfter,
	}, nil
}

// Program is the digest of the running program, which stands for the version of every algorithm and format.
func Program() (string, error) {
	path := "/proc/self/exe" // what runs, even when its file was replaced
	if _, err := os.Stat(path); err != nil {
		if path, err = os.Executable(); err != nil {
			return "", diag.New(diag.ClassIO, "find this program's file: %w", err)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return "", diag.New(diag.ClassIO, "read this program's file: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := f.WriteTo(h); err != nil {
		return "", diag.New(diag.ClassIO, "read this program's file: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
