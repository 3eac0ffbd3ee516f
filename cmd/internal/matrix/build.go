package matrix

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/problem"
)

// Options are what Run needs.
type Options struct {
	Config *Config
	Output string // directory, instead of the configuration's
	Only   string // SOC/MODEL/WORKLOAD with *, or a prefix; "": all

	Jobs      int   // at the same time
	MaxMemory int64 // bytes for all jobs together
	DryRun    bool  // change nothing; the cache is open for reading only

	AcceptNoisy bool // plan with records of which most measurements are noisy

	Cache   *cas.Cache
	Program string           // digest of this program: what another one made is made again
	Key     *emit.PrivateKey // nil: no bundles
	Tools   Tools
	Now     func() time.Time

	Note     func(format string, args ...any) // tells what is going on; called by one goroutine at a time
	Progress bool                             // tell about every cell that is finished
}

// Tools are what the command line binds: engines, drivers and compilers.
type Tools struct {
	Engine problem.Engine
	// Simulate measures requests on a simulated SoC, into a record.
	Simulate func(ctx context.Context, soc *socs.SoC, requests []profiler.Request, record string) error
	// Emit checks the plan and writes a bundle of it, for the plan's processors or for t, which key signs.
	Emit func(ctx context.Context, path string, o emit.Options, soc *socs.SoC, t *Target,
		key *bundle.Key) (bundle.Digest, error)
	// Compilers identifies the libraries of this machine that compile for the device of a SoC.
	Compilers func(ctx context.Context, soc *socs.SoC) (string, error)
	// TryTokenizer refuses tokenizer files that Emit would not sign.
	TryTokenizer func(ctx context.Context, model *models.Model, files map[string][]byte) error
}

// Target is what a bundle is for that is not the plan's own processors: the device of the SoC, or its emulator.
type Target struct {
	AllowFallback bool
	Emulator      bool
	Twin          *Artifact // whose digests the device's bundle repeats, nil: none
}

// State is what became of a file.
type State string

const (
	Built     State = "built"     // made in this run
	Cached    State = "cached"    // taken from the cache
	Unchanged State = "unchanged" // it was there
	Failed    State = "failed"
	Omitted   State = "omitted" // not asked for, or not possible
	WillBuild State = "would build"
	WillCopy  State = "would copy"
)

// NoKey is why a bundle is omitted that was wanted.
const NoKey = "no key"

// Artifact is one file of the output.
type Artifact struct {
	File   string `json:"file,omitempty"`
	State  State  `json:"state"`
	Bytes  int64  `json:"bytes,omitempty"`
	Digest string `json:"digest,omitempty"` // of a plan; of a bundle its identity
	Why    string `json:"why,omitempty"`    // not made

	content cas.Digest // of the file's bytes, where it is or could be there
}

// Cell is one combination and what became of it.
type Cell struct {
	SoC       string          `json:"soc"`
	Model     string          `json:"model"`
	Workload  string          `json:"workload"`
	Target    bool            `json:"target,omitempty"` // for the SoC's device
	Simulated bool            `json:"simulated"`        // times
	Evidence  planir.Evidence `json:"evidence,omitempty"`
	Plan      Artifact        `json:"plan"`
	Bundle    Artifact        `json:"bundle"`
	Twin      *Artifact       `json:"twin,omitempty"` // of the bundle, for the emulator
	// file of the plan's outline, where the configuration wants outlines
	Outline     string              `json:"outline,omitempty"`
	Changes     []string            `json:"changes,omitempty"` // of the outline, against the file that was there
	Predictions []planir.Prediction `json:"predictions,omitempty"`
	Warnings    []string            `json:"warnings,omitempty"`
	Error       *Failure            `json:"error,omitempty"`

	// shared by all cells with the same model, SoC or workload
	model    *modelInput
	soc      *socInput
	workload *workloadInput
}

// Name returns the cell's name in messages: SOC/MODEL/WORKLOAD.
func (c *Cell) Name() string { return cellName(c.SoC, c.Model, c.Workload) }

// Failure is why a cell failed.
type Failure struct {
	Class    string   `json:"class"`
	ExitCode int      `json:"exit_code"`
	Message  string   `json:"message"`
	Hints    []string `json:"hints,omitempty"`
	Stack    string   `json:"stack,omitempty"` // of a defect
	Err      error    `json:"-"`
}

// Report is what a run did.
type Report struct {
	Output string        `json:"output"`
	DryRun bool          `json:"dry_run,omitempty"`
	KeyID  string        `json:"keyid,omitempty"`
	Counts map[State]int `json:"counts"` // of cells: one with a file that was built counts as built
	Cells  []*Cell       `json:"cells"`
}

// Summary counts the cells by what became of them.
func (r *Report) Summary() string {
	var parts []string
	for _, state := range []State{Built, WillBuild, Cached, WillCopy, Unchanged, Failed} {
		if n := r.Counts[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	return strings.Join(parts, ", ")
}

// build is one Run.
type build struct {
	o      Options
	out    string
	memory *budget

	mu sync.Mutex
	// by the key that a cell is producing now
	making map[cas.Key]chan struct{} // closed when it is made
	done   int
}

// Run builds the matrix. A cell that fails does not stop the others: its reason is in the report. The
// error is for what concerns all of them; when ctx ends it is of class ClassInterrupted.
func Run(ctx context.Context, options Options) (*Report, error) {
	if options.Note == nil {
		options.Note = func(string, ...any) {}
	}
	run := &build{o: options, memory: newBudget(options.MaxMemory), making: map[cas.Key]chan struct{}{}}
	run.out = options.Output
	if run.out == "" {
		run.out = options.Config.inside(options.Config.Output)
	}
	report := &Report{Output: run.out, DryRun: options.DryRun, Counts: map[State]int{}}
	if options.Key != nil {
		report.KeyID = options.Key.Public.ID()
	}
	// list the cells, own the output directory, open each input once
	var err error
	if report.Cells, err = run.cells(); err != nil {
		return nil, err
	}
	if !options.DryRun {
		unlock, err := run.lock(ctx)
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(max(options.MaxMemory, 2*baseBytes)))
	closeAll, err := run.openInputs(ctx, report.Cells)
	defer closeAll()
	if err != nil {
		return nil, err
	}
	// No more jobs than have their basic memory.
	jobs := min(max(options.Jobs, 1), max(int(options.MaxMemory/baseBytes), 1))
	next := make(chan *Cell)
	var wg sync.WaitGroup
	for range jobs {
		wg.Go(func() {
			for cell := range next {
				run.cell(ctx, cell)
				run.note(cell, len(report.Cells))
			}
		})
	}
	for _, cell := range report.Cells {
		if ctx.Err() != nil {
			break
		}
		next <- cell
	}
	close(next)
	wg.Wait()
	if ctx.Err() != nil && run.done < len(report.Cells) {
		return nil, diag.New(diag.ClassInterrupted, "build: interrupted after %d of %d: %w", run.done,
			len(report.Cells), ctx.Err()).
			WithHint("the same command goes on where it stopped: what is finished is kept")
	}
	for _, cell := range report.Cells {
		report.Counts[cell.state()]++
	}
	return report, nil
}

// state sums a cell up: the most that happened to one of its files.
func (c *Cell) state() State {
	for _, state := range []State{Failed, WillBuild, Built, WillCopy, Cached} {
		if c.Plan.State == state || c.Bundle.State == state || c.Twin != nil && c.Twin.State == state {
			return state
		}
	}
	return Unchanged
}

// cells lists what is asked for.
func (b *build) cells() ([]*Cell, error) {
	config := b.o.Config
	if err := checkPattern(b.o.Only); err != nil {
		return nil, err
	}
	var out []*Cell
	var all []string
	models, workloads := make([]*modelInput, len(config.Models)), make([]*workloadInput, len(config.Workloads))
	for i := range config.Models {
		models[i] = &modelInput{entry: config.Models[i]}
	}
	for i := range config.Workloads {
		workloads[i] = &workloadInput{entry: config.Workloads[i]}
	}
	for i := range config.SoCs {
		soc := &socInput{entry: config.SoCs[i]}
		for _, model := range models {
			for _, work := range workloads {
				// Excluded cells do not exist: --only does not match them, and hints do not name them.
				if config.excluded(model.entry.Name, soc.entry.Name, work.entry.Name) {
					continue
				}
				all = append(all, cellName(soc.entry.Name, model.entry.Name, work.entry.Name))
				if !selected(b.o.Only, soc.entry.Name, model.entry.Name, work.entry.Name) {
					continue
				}
				made := &Cell{Target: soc.entry.Target != "", SoC: soc.entry.Name, Model: model.entry.Name,
					Workload: work.entry.Name,
					model:    model, soc: soc, workload: work}
				base := filepath.Join(b.out, made.SoC, made.Model, made.Workload)
				made.Plan, made.Bundle = Artifact{File: base + ".plan.yaml"}, Artifact{File: base + ".hetb"}
				if config.Outlines != "" {
					made.Outline = filepath.Join(config.inside(config.Outlines), made.SoC, made.Model, made.Workload+
						".txt")
				}
				out = append(out, made)
			}
		}
	}
	if len(all) == 0 {
		return nil, diag.New(diag.ClassInput, "build: everything is excluded").WithHint("remove an exclusion")
	}
	if len(out) == 0 {
		return nil, diag.New(diag.ClassUsage, "--only %q matches nothing", b.o.Only).
			WithHint("%s (SOC/MODEL/WORKLOAD, each with * for anything, or a prefix)", nearest(b.o.Only, all))
	}
	return out, nil
}

// nearest returns a hint at what the part of a pattern that matches nothing may have meant.
func nearest(pattern string, cells []string) string {
	parts := strings.Split(pattern, "/")
	// The first part that no cell matches is the one that is misspelt.
	for i, part := range parts {
		var names []string
		matches := false
		for _, c := range cells {
			name := strings.Split(c, "/")
			matches = matches || selected(strings.Join(parts[:i+1], "/"), name...)
			if !slices.Contains(names, name[i]) {
				names = append(names, name[i])
			}
		}
		if !matches {
			return diag.DidYouMean(part, names)
		}
	}
	return ""
}

// lock makes the output directory, keeps other builds out of it, and removes what a killed one left.
func (b *build) lock(ctx context.Context) (unlock func(), err error) {
	unlock, err = OwnDirectory(ctx, b.out, func() { b.o.Note("waiting for another build into %q", b.out) })
	if err != nil {
		return nil, err
	}
	cells, err := b.cells()
	for _, cell := range cells {
		for _, file := range []string{cell.Plan.File, cell.Bundle.File, twinFile(cell), cell.Outline} {
			if file != "" {
				wholefile.RemoveLeftBehind(file) // also beside what is not written again
			}
		}
	}
	return unlock, err
}

// note tells that a cell is finished.
func (b *build) note(c *Cell, of int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A cancelled cell is not finished: it is made by the next run.
	if c.Error != nil && errors.Is(c.Error.Err, context.Canceled) {
		return
	}
	if b.done++; b.o.Progress {
		b.o.Note("%d of %d: %s: %s", b.done, of, c.Name(), c.state())
	}
}

// cell makes the files of one cell.
func (b *build) cell(ctx context.Context, cell *Cell) {
	// guarded turns a panic into an error of the cell.
	var stack string
	guarded := func(make func(context.Context, *Cell) error) (err error) {
		defer func() {
			if p := recover(); p != nil { // one defect stops one cell
				stack = string(debug.Stack())
				err = diag.New(diag.ClassInternal, "a defect of hetc: %v", p).
					WithHint("please report it with the configuration and what is printed")
			}
		}()
		return make(ctx, cell)
	}
	// An input that could not be read fails each cell that needs it.
	err := firstOf(cell.soc.err, cell.model.err, cell.workload.err, cell.placeable())
	if err == nil {
		cell.Simulated = cell.soc.soc.Simulated()
		err = guarded(b.plan)
	}
	failed := &cell.Plan
	if err == nil {
		failed, err = &cell.Bundle, guarded(b.bundle)
	} else {
		cell.Bundle = Artifact{State: Omitted, Why: "there is no plan"}
	}
	if err != nil {
		failed.State = Failed
		if _, serr := os.Stat(failed.File); serr == nil {
			failed.Why = "an older file is still there"
		}
		class := diag.ClassOf(err)
		if errors.Is(err, context.Canceled) {
			class = diag.ClassInterrupted
		}
		cell.Error = &Failure{
			Class: class.String(), ExitCode: int(class), Message: err.Error(), Hints: diag.HintsOf(err), Stack: stack,
			Err: err,
		}
	}
}

// firstOf returns the first error that is one.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// placeable returns why one of the cell's files could not be written: known before it is made, which may take hours.
func (c *Cell) placeable() error {
	files := []string{c.Plan.File, c.Bundle.File}
	if c.soc.entry.Twin {
		files = append(files, twinFile(c))
	}
	if c.Outline != "" {
		files = append(files, c.Outline)
	}
	for _, file := range files {
		if _, err := wholefile.Target(file); err != nil {
			return err
		}
		if _, err := existingDir(file); err != nil {
			return err
		}
	}
	return nil
}

// existingDir returns the directory of a file, or the one above it that is there: what is not is made when the file is
// written.
func existingDir(file string) (string, error) {
	for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
		st, err := os.Stat(dir)
		switch {
		case err == nil && !st.IsDir():
			return "", diag.New(diag.ClassIO, "write %q: %q is a file, want a directory", file, dir).
				WithHint("move it away, or name another output")
		case err == nil || dir == filepath.Dir(dir):
			return dir, nil
		}
	}
}

// settle makes a file what the content of a key is.
func (b *build) settle(
	ctx context.Context, cell *Cell, artifact *Artifact, key cas.Key, produce func(path string) error,
) error {
	// the cache knows what the file should be: there is nothing to do when it is
	want, bytes, known, err := b.o.Cache.Sum(key)
	if err != nil {
		return err
	}
	if known {
		// A file that holds the content is left alone, so that its time of change stays.
		same, err := b.holds(artifact.File, want, bytes)
		if err != nil {
			return err
		}
		if same {
			artifact.State, artifact.Bytes, artifact.content = Unchanged, bytes, want
			return nil
		}
	}
	if b.o.DryRun {
		entry, err := b.o.Cache.Get(key)
		switch {
		case err == nil:
			artifact.State, artifact.Bytes, artifact.content = WillCopy, entry.Bytes, entry.Digest
			return entry.Close()
		case errors.Is(err, cas.ErrMissing):
			artifact.State = WillBuild
			return nil
		}
		return err
	}
	// Known now rather than when it is made, which may take hours.
	dir, err := existingDir(artifact.File)
	if err == nil {
		err = wholefile.Writable(filepath.Join(dir, filepath.Base(artifact.File)))
	}
	if err != nil {
		return err
	}
	// take the content from the cache, or make it
	entry, made, err := b.obtain(ctx, key, produce, cell.warn)
	if err != nil {
		return err
	}
	defer entry.Close()
	artifact.State, artifact.Bytes, artifact.content = Cached, entry.Bytes, entry.Digest
	if made {
		artifact.State = Built
	}
	// The cache may have forgotten what the file is.
	same, err := b.holds(artifact.File, entry.Digest, entry.Bytes)
	if err != nil || same {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(artifact.File), 0o755); err != nil {
		return diag.New(diag.ClassIO, "output: %w", err)
	}
	return entry.Save(artifact.File)
}

// warn adds a warning to the cell.
func (c *Cell) warn(format string, args ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...))
}

// obtain returns the content of a key, and makes it where the cache has none. Cells that need the same
// wait for the one that makes it.
func (b *build) obtain(
	ctx context.Context, key cas.Key, produce func(path string) error, warn func(string, ...any),
) (entry *cas.Entry, made bool, err error) {
	for {
		// one cell makes a key; the others wait, then look again
		b.mu.Lock()
		wait, busy := b.making[key]
		if !busy {
			wait = make(chan struct{})
			b.making[key] = wait
			b.mu.Unlock()
			defer func() {
				b.mu.Lock()
				delete(b.making, key)
				close(wait)
				b.mu.Unlock()
			}()
			break
		}
		b.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
	// this cell owns the key now
	entry, err = b.o.Cache.Get(key)
	if !errors.Is(err, cas.ErrMissing) {
		return entry, false, err
	}
	if errors.Is(err, cas.ErrCorrupt) {
		warn("a content was damaged in the cache and is made again")
	}
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	entry, err = b.o.Cache.Put(key, produce)
	return entry, true, err
}
