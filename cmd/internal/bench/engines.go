package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/engines"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/filelock"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver/host"
)

// enginesBench is one run of the command, with the parsed flags.
type enginesBench struct {
	*EnginesOptions
	s *cli.Streams
	// the other engines, and those that are not there
	peers                   []peer
	absent                  []EnginesSkipped
	self, dir               string // path of this program, and the folder of all files
	maxBytes                int64  // of --max-memory, where it is a size
	maxFormat               string // of --max-memory, where it is a format
	calibration             string // file for the model whose quality is measured, "" for none
	match, profile, timeout time.Duration
}

// Engines measures hetc against other engines, with the same weights on the same cores, in turns.
func Engines(ctx context.Context, ui *cli.Streams, o *EnginesOptions) error {
	bench, err := o.validate()
	if err != nil {
		return err
	}
	bench.s = ui
	return bench.run(ctx)
}

// tasks lists what is measured, in the order of the tables: starting, prompts, and decoding after each depth.
func (b *enginesBench) tasks() []engines.Task {
	const long = 512 // a process with a long prompt has repetitions within it
	const start = 8  // tokens
	out := []engines.Task{{Start: start, Reps: 1}}
	for _, n := range b.Prompts {
		task := engines.Task{Prompt: n, Reps: b.Reps}
		if n > long {
			task.Reps = 1
		}
		out = append(out, task)
	}

	for _, depth := range b.Depths {
		out = append(out, engines.Task{Depth: depth, Gen: b.Gen, Reps: b.Reps})
	}
	return out
}

// EnginesModel is the result about one model.
type EnginesModel struct {
	Name       string          `json:"name"`
	Parameters int64           `json:"parameters"`
	Digest     string          `json:"digest"`
	Stored     string          `json:"stored"` // type of the weights both engines start from
	Plans      []enginesPlan   `json:"plans"`
	NoBounded  string          `json:"no_bounded_plan,omitempty"` // why there is none
	Match      *engines.Result `json:"match"`
	// what the cores read together, before the rounds and after them, 1e9 byte/s; none where that is not known
	StreamGBps []float64         `json:"stream_gbps,omitempty"`
	Quality    []engines.Quality `json:"quality,omitempty"`
	Skipped    []EnginesSkipped  `json:"skipped,omitempty"`
	QualityOf  string            `json:"quality_model,omitempty"`
	// 4-bit weights are rounded by a calibration on the part of the text that quality does not read
	Calibrated bool `json:"calibrated,omitempty"`
}

// run measures each model and reports the results.
func (b *enginesBench) run(ctx context.Context) error {
	if err := b.checkModels(); err != nil {
		return err
	}
	done, err := b.openFolder()
	if err != nil {
		return err
	}
	defer done()
	if err := b.findPeers(ctx); err != nil {
		return err
	}
	if err := b.checkMemoryFormat(); err != nil {
		return err
	}
	if err := b.checkQualityModels(); err != nil {
		return err
	}

	if b.Finalists > 0 && b.MaxOthers == 0 {
		b.s.Warnf("--finalists judges a form by one process, and with --max-others 0 nobody sees whether other programs " +
			"slowed that process down")
	}

	list, failed := b.measureModels(ctx)
	if len(list) == 0 {
		if ctx.Err() != nil && b.Work != "" {
			return diag.New(diag.ClassInterrupted, "%w", failed).
				WithHint("the same command uses the files that are in %q already", b.Work)
		}
		return failed
	}

	// What was measured before a failure or an interruption is worth showing.
	if err := b.report(list); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return diag.New(diag.ClassInterrupted, "%w", failed).
			WithHint("the tables have what was measured until then; with --work the same command uses the files " +
				"that are there")
	}
	return failed
}

// checkModels opens every model and refuses those that cannot be measured, because measuring the first one takes an hour
// before the second one is read.
func (b *enginesBench) checkModels() error {
	for _, path := range b.Models {
		if err := b.checkModel(path); err != nil {
			return fmt.Errorf("model %q: %w", path, err)
		}
	}
	return nil
}

// checkModel refuses a model without weights that all engines can start from, and tasks that are too long for it.
func (b *enginesBench) checkModel(path string) error {
	model, err := models.Open(path)
	if err != nil {
		return err
	}
	defer model.Close()

	// All engines quantise by themselves; weights that are quantised already would be rounded twice.
	switch {
	case !model.HasWeights():
		return diag.New(diag.ClassInput, "it is a catalog entry: it has shapes and no weights").
			WithHint("make random ones: hetc models synth %s -o DIR", path)
	case floatType(model) == "":
		return diag.New(diag.ClassInput, "its weights are stored as %v: other engines start from float weights",
			model.StoredTypes())
	}
	if what, need := b.longest(); need > model.MaxContext {
		return usage("%s needs a context of %d tokens, and the model has %d", what, need, model.MaxContext).
			WithHint("measure at most as many with --prompt-len, and with --depth and --gen together")
	}
	return nil
}

// longest returns the measured task that needs the largest context, and how many tokens that is.
func (b *enginesBench) longest() (what engines.Task, tokens int) {
	for _, task := range b.tasks() {
		if need := task.Start + task.Prompt + task.Depth + task.Gen; need > tokens {
			what, tokens = task, need
		}
	}
	return what, tokens
}

// checkQualityModels opens every model that --text needs, because measuring takes an hour before the text is read.
func (b *enginesBench) checkQualityModels() error {
	if b.Text == "" {
		return nil
	}
	for _, path := range b.Models {
		model, err := b.openQuality(path)
		if err != nil {
			return err
		}
		model.Close()
	}
	return nil
}

// measureModels measures each model, and then the quality of its forms. With an error it returns the models that were
// measured before.
func (b *enginesBench) measureModels(ctx context.Context) (list []EnginesModel, err error) {
	taken := map[string]bool{}
	for _, path := range b.Models {
		model, err := b.model(ctx, path, taken)
		if model.Match != nil {
			list = append(list, model)
		}
		if err != nil {
			return list, fmt.Errorf("model %q: %w", path, err)
		}
	}

	if b.Text == "" {
		return list, nil
	}

	// Quality comes last, because it may take more memory than the measured processes.
	peers := map[string]*peersQuality{}
	for i, path := range b.Models {
		if err := b.quality(ctx, path, &list[i], peers); err != nil {
			return list, fmt.Errorf("model %q: %w", path, err)
		}
	}
	return list, nil
}

// openFolder makes the folder of all files, which belongs to this run until done is called. Without --work it is a
// temporary one.
func (b *enginesBench) openFolder() (done func(), err error) {
	if b.Work != "" {
		b.dir = b.Work
		return b.lockFolder()
	}
	b.dir, err = os.MkdirTemp("", "hetc-engines")
	if err != nil {
		return nil, ioError(err)
	}
	return func() { os.RemoveAll(b.dir) }, nil
}

// lockFolder makes the folder of --work, locks it until done is called, and removes unfinished files from it.
func (b *enginesBench) lockFolder() (done func(), err error) {
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return nil, ioError(err)
	}
	lock, err := filelock.Open(filepath.Join(b.dir, ".lock"), 0o644)
	if err != nil {
		return nil, ioError(err)
	}

	done = func() { lock.Close() }

	err = filelock.Try(lock)
	if errors.Is(err, filelock.ErrBusy) {
		done()
		return nil, diag.New(diag.ClassUnavailable, "--work %q: another run is using it", b.Work).
			WithHint("wait until it has ended, or name another directory")
	}

	if err != nil {
		// This file system has no locks, so unfinished files may belong to a run that is still at work.
		return done, nil
	}

	if err := b.removeUnfinished(); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// removeUnfinished removes the files and folders that a killed run has left unfinished in the locked folder.
func (b *enginesBench) removeUnfinished() error {
	if err := engines.RemoveMatching(b.dir, qualityFolder+"*"); err != nil {
		return err
	}
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return ioError(err)
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		if err := engines.RemoveUnfinished(filepath.Join(b.dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// ioError returns an error about the files of this comparison.
func ioError(err error) *diag.Diagnostic { return diag.New(diag.ClassIO, "bench engines: %w", err) }

// model makes plans, bundles and the files of other engines for one model, and measures them. Names in taken belong to
// earlier models; each model has a folder of its name.
func (b *enginesBench) model(
	ctx context.Context, path string, taken map[string]bool,
) (measured EnginesModel, err error) {
	model, err := models.Open(path)
	if err != nil {
		return measured, err
	}
	defer model.Close()
	measured.Name, measured.Parameters = untakenName(model.Name, taken), model.Parameters()
	dir := filepath.Join(b.dir, measured.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return measured, ioError(err)
	}

	if err := b.calibrate(ctx, path); err != nil {
		return measured, err
	}
	measured.Calibrated = b.calibration != ""
	plan, err := b.firstPlan(ctx, dir, path)
	if err != nil {
		return measured, err
	}
	first, err := b.bundle(ctx, dir, path, "plan", plan)
	if err != nil {
		return measured, err
	}

	if err := b.tryPlan(ctx, dir, &first); err != nil {
		return measured, err
	}

	measured.Plans, measured.Digest = []enginesPlan{first}, plan.Model.Digest
	measured.Stored = string(floatType(model))
	peers, err := b.peersFor(ctx, dir, path, model, &measured)
	if err != nil {
		return measured, err
	}
	if err := b.addLimitedPlan(ctx, dir, path, &measured, peers); err != nil {
		return measured, err
	}

	measured.StreamGBps = b.stream(ctx)
	measured.Match, err = b.play(ctx, dir, &measured, peers)
	if err != nil {
		return measured, err
	}
	measured.StreamGBps = append(measured.StreamGBps, b.stream(ctx)...)
	if len(measured.Match.Ratios) == 0 {
		return measured, diag.New(diag.ClassRun, "no other engine was measured; see why above")
	}
	return measured, ctx.Err()
}

// untakenName returns a model's name without the suffix of its file, with a number if an earlier model is called the
// same. It adds the name to taken.
func untakenName(file string, taken map[string]bool) string {
	base := strings.TrimSuffix(file, ".gguf")
	name := base
	for n := 2; taken[name]; n++ {
		name = fmt.Sprintf("%s-%d", base, n)
	}
	taken[name] = true
	return name
}

// peersFor returns the forms of the other engines that take the model. It notes in measured which ones do not, and why.
func (b *enginesBench) peersFor(
	ctx context.Context, dir, path string, model *models.Model, measured *EnginesModel,
) (peers []engines.Engine, err error) {
	measured.Skipped = slices.Clone(b.absent)
	for _, other := range b.peers {
		made, skipped, err := other.engines(ctx, b, dir, path, model, measured)
		if err != nil {
			return nil, err
		}
		peers, measured.Skipped = append(peers, made...), append(measured.Skipped, skipped...)
	}

	if len(peers) == 0 {
		return nil, diag.New(diag.ClassUnavailable, "no engine to compare with takes the model: %s",
			skippedText(measured.Skipped))
	}
	return peers, nil
}

// play measures hetc's plans and the forms of the other engines, in turns.
func (b *enginesBench) play(
	ctx context.Context, dir string, measured *EnginesModel, peers []engines.Engine,
) (*engines.Result, error) {
	var all []engines.Engine
	for i := range measured.Plans {
		all = append(all, b.hetc(dir, &measured.Plans[i]))
	}

	const patience = time.Minute // to wait for cores that other processes use
	match := engines.Match{
		Engines: append(all, peers...), Tasks: b.tasks(), Cores: b.Cores, Rounds: b.Rounds, Seed: b.Seed,
		Timeout: b.timeout, Budget: b.match, Finalists: b.Finalists, Quiet: b.MaxOthers, Patience: patience,
		Note: b.s.Notef,
	}
	return match.Play(ctx)
}

// streamReadings is the number of readings of memory before the rounds, and again after them.
const streamReadings = 15

// stream returns the rate at which the cores now read memory together, 1e9 byte/s, as a list of one number. It is empty
// where the rate cannot be measured.
func (b *enginesBench) stream(ctx context.Context) []float64 {
	stream, err := profiler.OpenStream(ctx, host.New(), b.Cores, 0)
	if err != nil {
		b.s.Warnf("the bandwidth of the cores is not known: %v", err)
		return nil
	}
	defer stream.Close()

	var readings []float64
	for range streamReadings {
		now, err := stream.GBps(ctx)
		if err != nil {
			b.s.Warnf("the bandwidth of the cores is not known: %v", err)
			return nil
		}
		readings = append(readings, now)
	}
	return []float64{stat.Median(readings)}
}

// floatType returns the float type in which a model's matrices are stored, "" if they are quantised.
func floatType(m *models.Model) op.Type {
	stored := m.StoredTypes()
	best := op.Type("")
	for _, element := range stored {
		switch element {
		case op.F32:
			// Beside another type, only vectors are stored in float32.
			if len(stored) == 1 {
				best = element
			}
		case op.F16, op.BF16:
			best = element
		default:
			return ""
		}
	}
	return best
}

// step runs a command of hetc and shows it. It has a process of its own, so that its memory is not counted for the
// measured ones.
func (b *enginesBench) step(ctx context.Context, args ...string) error {
	_, err := b.output(ctx, args...)
	return err
}

// output runs a command as step does, and returns the bytes of its standard output.
func (b *enginesBench) output(ctx context.Context, args ...string) ([]byte, error) {
	line := cli.Program("hetc") + " " + cli.Quote(args...)
	b.s.Notef("$ %s", line)

	const most = time.Hour
	done, err := engines.Run(ctx, engines.Limits{Cores: b.Cores, Time: most}, b.self, args...)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("hetc %s: %w", args[0], ctx.Err())
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return done.Out, err
	}
	class := diag.Class(exit.ExitCode())
	if class <= diag.ClassInternal || class > diag.ClassIO {
		return done.Out, err
	}

	// The command has diagnosed its failure: pass on its class, message and hint.
	messages, hint := diagnosed(b.s.Tool, string(done.Complaints))
	if hint == "" {
		hint = "run it by hand: " + line
	}
	return nil, diag.New(class, "hetc %s: %s", args[0], strings.Join(messages, "\n")).WithHint("%s", hint)
}

// diagnosed returns the errors, and the last hint, that a tool has written to its standard error.
func diagnosed(tool, complaints string) (messages []string, hint string) {
	for line := range strings.SplitSeq(complaints, "\n") {
		if text, ok := strings.CutPrefix(line, tool+": error: "); ok {
			messages = append(messages, text)
			continue
		}
		if text, ok := strings.CutPrefix(line, tool+": hint: "); ok {
			hint = text
		}
	}
	return messages, hint
}
