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

// Options are the configuration, bounds and tools of Run.
type Options struct {
	Config *Config
	Output string // directory, instead of the configuration's
	Only   string // SOC/MODEL/WORKLOAD with *, or a prefix; "": all

	Jobs      int   // at the same time
	MaxMemory int64 // bytes for all jobs together
	DryRun    bool  // change nothing; the cache is open for reading only

	AcceptNoisy bool // plan with records of which most measurements are unsteady

	Cache   *cas.Cache
	Program string           // digest of this program, which does not reuse the results of another one
	Key     *emit.PrivateKey // nil: no bundles
	Tools   Tools
	Now     func() time.Time

	Note     func(format string, args ...any) // shows progress; called by one goroutine at a time
	Progress bool                             // note every finished cell
}

// Tools are the engine, drivers and compilers that the command line binds.
type Tools struct {
	Engine problem.Engine
	// Simulate measures requests on a simulated SoC, into a record.
	Simulate func(ctx context.Context, soc *socs.SoC, requests []profiler.Request, record string) error
	// Emit checks the plan and writes a bundle signed with key: for the plan's processors, or for the target unless
	// that is nil.
	Emit func(ctx context.Context, path string, options emit.Options, soc *socs.SoC, target *Target,
		key *bundle.Key) (bundle.Digest, error)
	// Compilers identifies the libraries of this machine that compile for the device of a SoC.
	Compilers func(ctx context.Context, soc *socs.SoC) (string, error)
	// TryTokenizer refuses tokenizer files that Emit would not sign.
	TryTokenizer func(ctx context.Context, model *models.Model, files map[string][]byte) error
}

// Target describes a bundle for the device of the SoC, or for its emulator.
type Target struct {
	AllowFallback bool
	Emulator      bool
	Twin          *Artifact // the device's bundle repeats its digests; nil: none
}

// State is the outcome for a file.
type State string

const (
	Built     State = "built"     // made in this run
	Cached    State = "cached"    // taken from the cache
	Unchanged State = "unchanged" // the file had the content already
	Failed    State = "failed"
	Omitted   State = "omitted" // not wanted, or not possible
	WillBuild State = "would build"
	WillCopy  State = "would copy"
)

// NoKey is the reason for omitting a wanted bundle.
const NoKey = "no key"

// Artifact is one file of the output.
type Artifact struct {
	File   string `json:"file,omitempty"`
	State  State  `json:"state"`
	Bytes  int64  `json:"bytes,omitempty"`
	Digest string `json:"digest,omitempty"` // of a plan; of a bundle its identity
	Why    string `json:"why,omitempty"`    // it was not made

	content cas.Digest // of the file's bytes
}

// Cell is one combination of SoC, model and workload, with its files.
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

// Failure describes the error that a cell failed with.
type Failure struct {
	Class    string   `json:"class"`
	ExitCode int      `json:"exit_code"`
	Message  string   `json:"message"`
	Hints    []string `json:"hints,omitempty"`
	Stack    string   `json:"stack,omitempty"` // of a defect
	Err      error    `json:"-"`
}

// Report lists the cells of a run with their outcomes.
type Report struct {
	Output string        `json:"output"`
	DryRun bool          `json:"dry_run,omitempty"`
	KeyID  string        `json:"keyid,omitempty"`
	Counts map[State]int `json:"counts"` // of cells: one with a file that was built counts as built
	Cells  []*Cell       `json:"cells"`
}

// Summary returns the number of cells by state, such as "3 built, 1 failed".
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

	mu     sync.Mutex
	making map[cas.Key]chan struct{} // keys that cells are producing now; a channel is closed at the end
	done   int                       // finished cells
}

// Run builds the matrix. A cell that fails does not stop the others; the report has its reason. An error concerns all
// cells; it has class ClassInterrupted when ctx ends.
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

	var err error
	report.Cells, err = run.cells()
	if err != nil {
		return nil, err
	}

	if !options.DryRun {
		unlock, err := run.lock(ctx, report.Cells)
		if err != nil {
			return nil, run.interrupted(ctx, report.Cells, err)
		}
		defer unlock()
	}

	defer debug.SetMemoryLimit(debug.SetMemoryLimit(max(options.MaxMemory, 2*baseBytes)))
	closeAll, err := run.openInputs(ctx, report.Cells)
	defer closeAll()
	if err != nil {
		return nil, run.interrupted(ctx, report.Cells, err)
	}

	run.makeAll(ctx, report.Cells)
	if run.done < len(report.Cells) {
		if err := run.interrupted(ctx, report.Cells, nil); err != nil {
			return nil, err
		}
	}

	for _, cell := range report.Cells {
		report.Counts[cell.state()]++
	}
	return report, nil
}

// interrupted returns the error of a run that ended with its context, and any other error as it is. A nil err stands
// for cells that were not finished.
func (b *build) interrupted(ctx context.Context, cells []*Cell, err error) error {
	if ctx.Err() == nil || err != nil && !errors.Is(err, ctx.Err()) {
		return err
	}
	return diag.New(diag.ClassInterrupted, "build: interrupted after %d of %d: %w", b.done, len(cells), ctx.Err()).
		WithHint("the same command goes on where it stopped: what is finished is kept")
}

// makeAll makes the files of all cells, several cells at a time, until ctx ends.
func (b *build) makeAll(ctx context.Context, cells []*Cell) {
	// Every job needs its basic memory.
	jobs := min(max(b.o.Jobs, 1), max(int(b.o.MaxMemory/baseBytes), 1))
	next := make(chan *Cell)
	var workers sync.WaitGroup
	for range jobs {
		workers.Go(func() {
			for cell := range next {
				b.cell(ctx, cell)
				b.note(cell, len(cells))
			}
		})
	}

	for _, cell := range cells {
		if ctx.Err() != nil {
			break
		}
		next <- cell
	}

	close(next)
	workers.Wait()
}

// state returns the state of a cell: that of the file with which most happened.
func (c *Cell) state() State {
	for _, state := range []State{Failed, WillBuild, Built, WillCopy, Cached} {
		if c.Plan.State == state || c.Bundle.State == state || c.Twin != nil && c.Twin.State == state {
			return state
		}
	}
	return Unchanged
}

// cells lists the cells of the configuration that --only selects.
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
				if selected(b.o.Only, soc.entry.Name, model.entry.Name, work.entry.Name) {
					out = append(out, b.newCell(soc, model, work))
				}
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

// newCell returns the cell of some inputs with the paths of its files.
func (b *build) newCell(soc *socInput, model *modelInput, work *workloadInput) *Cell {
	made := &Cell{
		Target: soc.entry.Target != "", SoC: soc.entry.Name, Model: model.entry.Name, Workload: work.entry.Name,
		model: model, soc: soc, workload: work,
	}
	base := filepath.Join(b.out, made.SoC, made.Model, made.Workload)
	made.Plan, made.Bundle = Artifact{File: base + ".plan.yaml"}, Artifact{File: base + ".hetb"}
	if outlines := b.o.Config.Outlines; outlines != "" {
		made.Outline = filepath.Join(b.o.Config.inside(outlines), made.SoC, made.Model, made.Workload+".txt")
	}
	return made
}

// nearest returns a hint for a pattern that matches nothing: the name nearest to its first part that no cell matches.
func nearest(pattern string, cells []string) string {
	parts := strings.Split(pattern, "/")
	for i, part := range parts {
		var names []string
		matches := false
		for _, cell := range cells {
			name := strings.Split(cell, "/")
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

// lock makes the output directory, keeps other builds out of it, and removes unfinished files of a killed build.
func (b *build) lock(ctx context.Context, cells []*Cell) (unlock func(), err error) {
	unlock, err = OwnDirectory(ctx, b.out, func() { b.o.Note("waiting for another build into %q", b.out) })
	if err != nil {
		return nil, err
	}

	for _, cell := range cells {
		for _, file := range []string{cell.Plan.File, cell.Bundle.File, twinFile(cell), cell.Outline} {
			if file != "" {
				wholefile.RemoveLeftBehind(file) // also of files that are not written again
			}
		}
	}

	return unlock, nil
}

// note counts a finished cell and shows the progress.
func (b *build) note(cell *Cell, of int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A cancelled cell is not finished; the next run makes it.
	if cell.Error != nil && errors.Is(cell.Error.Err, context.Canceled) {
		return
	}
	b.done++
	if b.o.Progress {
		b.o.Note("%d of %d: %s: %s", b.done, of, cell.Name(), cell.state())
	}
}

// cell makes the files of one cell.
func (b *build) cell(ctx context.Context, cell *Cell) {
	// guarded turns a panic into an error of the cell, so that a defect stops only one cell.
	var stack string
	guarded := func(make func(context.Context, *Cell) error) (err error) {
		defer func() {
			if defect := recover(); defect != nil {
				stack = string(debug.Stack())
				err = diag.New(diag.ClassInternal, "a defect of hetc: %v", defect).
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

	if err == nil {
		return
	}

	failed.State = Failed
	if _, err := os.Stat(failed.File); err == nil {
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

// firstOf returns the first error that is not nil.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// placeable returns an error if one of the cell's files cannot be written. It is asked before the files are made, which
// may take hours.
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

// existingDir returns the directory of a file or, where that is missing, the nearest one above it that exists. Missing
// ones are made when the file is written.
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

// settle gives a file the content of a key: it keeps a file with that content, else takes the content from the cache or
// produces it.
func (b *build) settle(
	ctx context.Context, cell *Cell, artifact *Artifact, key cas.Key, produce func(path string) error,
) error {
	want, bytes, known, err := b.o.Cache.Sum(key)
	if err != nil {
		return err
	}

	if known {
		// A file with the content is not written, so that its time of change stays.
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
		return b.foresee(artifact, key)
	}

	// Check this before the content is made, which may take hours.
	dir, err := existingDir(artifact.File)
	if err == nil {
		err = wholefile.Writable(filepath.Join(dir, filepath.Base(artifact.File)))
	}
	if err != nil {
		return err
	}

	entry, made, err := b.obtain(ctx, key, produce, cell.warn)
	if err != nil {
		return err
	}

	defer entry.Close()
	artifact.State, artifact.Bytes, artifact.content = Cached, entry.Bytes, entry.Digest
	if made {
		artifact.State = Built
	}

	// The file may have the content although the cache did not know the key.
	same, err := b.holds(artifact.File, entry.Digest, entry.Bytes)
	if err != nil || same {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(artifact.File), 0o755); err != nil {
		return diag.New(diag.ClassIO, "output: %w", err)
	}
	return entry.Save(artifact.File)
}

// foresee sets the state that a file would get: copied if the cache has the content of the key, else built.
func (b *build) foresee(artifact *Artifact, key cas.Key) error {
	entry, err := b.o.Cache.Get(key)
	if errors.Is(err, cas.ErrMissing) {
		artifact.State = WillBuild
		return nil
	}
	if err != nil {
		return err
	}
	artifact.State, artifact.Bytes, artifact.content = WillCopy, entry.Bytes, entry.Digest
	return entry.Close()
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
		// One cell makes a key; the others wait, then look again.
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

	// This cell owns the key now.
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
