package bench

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/engines"
	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/filelock"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/solver/workload"
)

// EnginesOptions are the flags of hetc bench engines.
type EnginesOptions struct {
	Models, Formats []string
	// keys of the engines to compare with, each of which must be there; none: all that are installed
	Peers []string
	// tokens of prompts, tokens in the cache before decoding, and the cores that all engines are bound to
	Prompts, Depths, Cores []int
	// tokens to decode
	Gen int
	// processes for each engine and task, and repetitions in each process
	Rounds, Reps        int
	Workload, Plan, SoC string
	// a size, or the format whose size it is; and the folder that keeps the files of all steps
	Memory, Work string
	// to compare what the formats lose
	Text, QualityModel           string
	Out, Markdown                string
	Budget, ProfileBudget, Limit string
	// cores that other processes may keep busy meanwhile; 0: that is not checked
	MaxOthers float64
	Seed      uint64
}

// enginesBench is one run of the command, with the parsed flags.
type enginesBench struct {
	*EnginesOptions
	s *cli.Streams
	// the other engines, and those that are not there
	peers  []peer
	absent []EnginesSkipped
	// path of this program, and the folder of all files
	self, dir               string
	maxBytes                int64  // of --max-memory, where it is a size
	maxFormat               string // of --max-memory, where it is a format
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

// validate checks all flags first, because measuring takes an hour.
func (o *EnginesOptions) validate() (*enginesBench, error) {
	bench := &enginesBench{EnginesOptions: o}
	for _, check := range []func() error{
		// In this order: later checks rely on lists that are not empty.
		o.checkNumbers, o.checkFormats, o.checkPeers, o.checkPrompts, o.checkCores, o.checkCombinations, bench.readMemory,
		bench.readTimes, o.checkFiles,
	} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	var err error
	if bench.self, err = os.Executable(); err != nil {
		return nil, diag.New(diag.ClassUnavailable, "bench engines: find the file of this program: %w", err)
	}
	return bench, nil
}

// usage returns an error of the command line.
func usage(format string, args ...any) *diag.Diagnostic {
	return diag.New(diag.ClassUsage, format, args...)
}

// checkNumbers refuses numbers out of range, and empty lists.
func (o *EnginesOptions) checkNumbers() error {
	const mostTokens, mostRounds = 1 << 20, 1000
	for _, bound := range []struct {
		name      string
		got, most int
	}{{"gen", o.Gen, mostTokens}, {"rounds", o.Rounds, mostRounds},
		{"reps", o.Reps, mostRounds}} {
		if bound.got < 1 || bound.got > bound.most {
			return usage("--%s %d: want 1 to %d", bound.name, bound.got, bound.most)
		}
	}
	if !(o.MaxOthers >= 0) {
		return usage("--max-others %v: want 0 or more", o.MaxOthers)
	}
	for _, list := range []struct {
		name   string
		tokens []int
	}{{"prompt-len", o.Prompts}, {"depth", o.Depths}} {
		for _, tokens := range list.tokens {
			if tokens < 1 || tokens > mostTokens {
				return usage("--%s %d: want 1 to %d", list.name, tokens, mostTokens)
			}
		}
	}
	if len(o.Prompts) == 0 || len(o.Depths) == 0 || len(o.Formats) == 0 {
		return usage("--prompt-len, --depth or --formats is empty").WithHint("leave it out for the default")
	}
	return nil
}

// checkFormats refuses words that cannot be a format of llama.cpp.
func (o *EnginesOptions) checkFormats() error {
	if err := noRepeats("formats", o.Formats); err != nil {
		return err
	}
	for _, format := range o.Formats {
		if strings.ContainsAny(format, "/\\.- ") || format == "" {
			return usage("--formats %q: not a format of llama.cpp", format).WithHint("such as Q4_0, Q8_0 or Q4_K_M")
		}
	}
	return nil
}

// checkPrompts refuses a length that is listed twice.
func (o *EnginesOptions) checkPrompts() error {
	if err := noRepeats("prompt-len", o.Prompts); err != nil {
		return err
	}
	return noRepeats("depth", o.Depths)
}

// checkCores refuses cores that this process may not use. Without --cores it takes all.
func (o *EnginesOptions) checkCores() error {
	if err := noRepeats("cores", o.Cores); err != nil {
		return err
	}
	usable, err := engines.Cores()
	if err != nil {
		return err
	}
	for _, core := range o.Cores {
		if !slices.Contains(usable, core) {
			return usage("--cores %d: this process may use %v", core, usable).WithHint("name some of those")
		}
	}
	if len(o.Cores) == 0 {
		o.Cores = usable
	}
	return nil
}

// checkCombinations refuses flags that exclude or need each other.
func (o *EnginesOptions) checkCombinations() error {
	switch {
	case o.Plan != "" && o.Workload != "":
		return usage("--plan and --workload exclude each other").WithHint("a plan has been made for a workload")
	case (o.Plan == "") != (o.SoC == ""):
		return usage("--plan and --soc belong together").WithHint("without both a plan is made")
	case o.Plan != "" && len(o.Models) != 1:
		return usage("--plan is for one model, got %d", len(o.Models))
	case o.Plan != "" && o.Memory != "":
		return usage("--max-memory makes a second plan, which --plan cannot").
			WithHint("leave --plan out, or measure the plan of hetc solve --max-memory in a run of its own")
	case o.QualityModel != "" && o.Text == "":
		return usage("--quality-model needs --text")
	}
	return nil
}

// readMemory parses --max-memory: a size, or a format whose peak memory is the bound.
func (b *enginesBench) readMemory() error {
	if b.Memory == "" {
		return nil
	}
	if slices.Contains(b.Formats, b.Memory) {
		b.maxFormat = b.Memory
		return nil
	}
	bytes, err := unit.ParseBytes(b.Memory)
	if err != nil || bytes <= 0 {
		return usage("--max-memory %q: want a size such as 700MiB, or one of the formats %s", b.Memory,
			strings.Join(b.Formats, ", "))
	}
	b.maxBytes = int64(bytes)
	return nil
}

// readTimes reads the flags that bound times.
func (b *enginesBench) readTimes() (err error) {
	for _, limit := range []struct {
		name, text string
		to         *time.Duration
	}{{"budget", b.Budget, &b.match}, {"profile-budget", b.ProfileBudget, &b.profile},
		{"timeout", b.Limit, &b.timeout}} {
		if *limit.to, err = cli.ParseTime(limit.name, limit.text); err != nil {
			return err
		}
	}
	if b.profile == 0 || b.timeout == 0 {
		return usage("--profile-budget or --timeout is empty").WithHint("leave it out for the default")
	}
	return nil
}

// checkFiles refuses a text that cannot be read and outputs that cannot be written.
func (o *EnginesOptions) checkFiles() error {
	if o.Text != "" {
		file, err := wholefile.Open(o.Text)
		if err != nil {
			return err
		}
		file.Close()
	}
	for _, path := range []string{o.Out, o.Markdown} {
		if path == "" {
			continue
		}
		if err := wholefile.Writable(path); err != nil {
			return err
		}
	}
	return nil
}

// noRepeats refuses a list that names something twice.
func noRepeats[T comparable](flag string, list []T) error {
	seen := map[T]bool{}
	for _, item := range list {
		if seen[item] {
			return usage("--%s names %v twice", flag, item)
		}
		seen[item] = true
	}
	return nil
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

// enginesPlan is a plan of hetc that is measured.
type enginesPlan struct {
	Form    string                 `json:"form"`
	Digest  string                 `json:"digest"`
	Schemes map[string][]op.Scheme `json:"schemes"` // of matrices, by phase
	Bytes   int64                  `json:"weight_bytes"`
	// peak memory as the plan predicts it, and the bound it was solved under
	Predicted int64 `json:"predicted_memory_bytes,omitempty"`
	MaxMemory int64 `json:"max_memory_bytes,omitempty"`

	name, bundle string // of files
	plan         *planir.Plan
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
}

// run measures each model. The quality of formats comes last, because it may take more memory than
// the measured processes.
func (b *enginesBench) run(ctx context.Context) error {
	done, err := b.openFolder()
	if err != nil {
		return err
	}
	defer done()
	if err := b.findPeers(ctx); err != nil {
		return err
	}
	if b.Text != "" {
		for _, path := range b.Models { // not found out after an hour
			model, err := b.openQuality(path)
			if err != nil {
				return err
			}
			model.Close()
		}
	}
	list, failed := b.measureModels(ctx)
	if ctx.Err() != nil || len(list) == 0 {
		return failed
	}
	if err := b.report(list); err != nil { // what was measured before a failure is worth showing
		return err
	}
	return failed
}

// measureModels measures each model, and then what its forms lose. An error comes with what was measured before it.
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
	peers := map[string]*peersQuality{}
	for i, path := range b.Models { // last: it may take more memory than what is measured
		if err := b.quality(ctx, path, &list[i], peers); err != nil {
			return list, fmt.Errorf("model %q: %w", path, err)
		}
	}
	return list, nil
}

// openFolder makes the folder of all files, which belongs to this run until done is called. What a run that was killed
// has left unfinished in it is removed.
func (b *enginesBench) openFolder() (done func(), err error) {
	fail := func(err error) (func(), error) { return nil, diag.New(diag.ClassIO, "bench engines: %w", err) }
	if b.Work == "" {
		if b.dir, err = os.MkdirTemp("", "hetc-engines"); err != nil {
			return fail(err)
		}
		return func() { os.RemoveAll(b.dir) }, nil
	}
	b.dir = b.Work
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return fail(err)
	}
	lock, err := filelock.Open(filepath.Join(b.dir, ".lock"), 0o644)
	if err != nil {
		return fail(err)
	}
	switch err := filelock.Try(lock); {
	case errors.Is(err, filelock.ErrBusy):
		lock.Close()
		return nil, diag.New(diag.ClassUnavailable, "--work %q: another run is using it", b.Work).
			WithHint("wait until it has ended, or name another directory")
	case err != nil: // no locks here: nobody knows whose unfinished files are
		return func() { lock.Close() }, nil
	}
	left, err := filepath.Glob(filepath.Join(b.dir, qualityFolder+"*"))
	for i := 0; err == nil && i < len(left); i++ {
		err = os.RemoveAll(left[i])
	}
	folders, _ := filepath.Glob(filepath.Join(b.dir, "*"))
	for i := 0; err == nil && i < len(folders); i++ {
		err = engines.RemoveUnfinished(folders[i])
	}
	if err != nil {
		lock.Close()
		return fail(err)
	}
	return func() { lock.Close() }, nil
}

// model makes plans, bundles and the other engine's files for one model, and measures them. taken
// are the names of earlier models, which folders are called after.
func (b *enginesBench) model(
	ctx context.Context, path string, taken map[string]bool,
) (measured EnginesModel, err error) {
	model, err := models.Open(path)
	if err != nil {
		return measured, err
	}
	defer model.Close()
	if !model.HasWeights() {
		return measured, diag.New(diag.ClassInput, "it is a catalog entry: it has shapes and no weights").
			WithHint("make random ones: hetc models synth %s -o DIR", path)
	}
	measured.Name, measured.Parameters = strings.TrimSuffix(model.Name, ".gguf"), model.Parameters()
	for n := 2; taken[measured.Name]; n++ {
		measured.Name = fmt.Sprintf("%s-%d", strings.TrimSuffix(model.Name, ".gguf"), n)
	}
	taken[measured.Name] = true
	dir := filepath.Join(b.dir, measured.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return measured, diag.New(diag.ClassIO, "bench engines: %w", err)
	}
	plan, err := b.firstPlan(ctx, dir, path)
	if err != nil {
		return measured, err
	}
	first, err := b.bundle(ctx, dir, path, "plan", plan)
	if err != nil {
		return measured, err
	}
	measured.Plans, measured.Digest = []enginesPlan{first}, plan.Model.Digest
	// All engines quantise by themselves; weights that are quantised already would be rounded twice.
	if measured.Stored = string(floatType(model)); measured.Stored == "" {
		return measured, diag.New(diag.ClassInput, "its weights are stored as %v: other engines start from float weights",
			model.StoredTypes())
	}
	peers, err := b.peersFor(ctx, dir, path, model, &measured)
	if err != nil {
		return measured, err
	}
	if b.Memory != "" {
		limited, err := b.limitedPlan(ctx, dir, path, peers)
		switch {
		case ctx.Err() == nil && slices.Contains(notBounded, diag.ClassOf(err)): // the rest is worth measuring
			measured.NoBounded = err.Error()
			b.s.Warnf("%v", err)
		case err != nil:
			return measured, err
		default:
			measured.Plans = append(measured.Plans, limited)
		}
	}
	measured.StreamGBps = b.stream(ctx)
	if measured.Match, err = b.play(ctx, dir, &measured, peers); err != nil {
		return measured, err
	}
	measured.StreamGBps = append(measured.StreamGBps, b.stream(ctx)...)
	if len(measured.Match.Ratios) == 0 {
		return measured, diag.New(diag.ClassRun, "no other engine was measured; see why above")
	}
	return measured, ctx.Err()
}

// peersFor returns the forms of the other engines that take the model. It notes in measured which ones do not, and why.
func (b *enginesBench) peersFor(ctx context.Context, dir, path string, model *models.Model,
	measured *EnginesModel) (peers []engines.Engine, err error) {
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
func (b *enginesBench) play(ctx context.Context, dir string, measured *EnginesModel,
	peers []engines.Engine) (*engines.Result, error) {
	var all []engines.Engine
	for i := range measured.Plans {
		all = append(all, &engines.Hetc{
			Program: b.self, Bundle: measured.Plans[i].bundle, Trust: filepath.Join(dir, "local.pub"),
			Of: measured.Plans[i].Form, Kernels: host.Kernels(), Release: cli.Version,
		})
	}
	const patience = time.Minute
	match := engines.Match{
		Engines: append(all, peers...), Tasks: b.tasks(), Cores: b.Cores, Rounds: b.Rounds, Seed: b.Seed,
		Timeout: b.timeout, Budget: b.match, Quiet: b.MaxOthers, Patience: patience, Note: b.s.Notef,
	}
	return match.Play(ctx)
}

// streamReadings is how many readings of memory count before the rounds and after them.
const streamReadings = 15

// stream returns how fast the cores read memory together now; empty where that is not known.
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
	best := op.Type("")
	for _, element := range m.StoredTypes() {
		switch element {
		case op.F32: // beside another type it is that of vectors only
			if len(m.StoredTypes()) == 1 {
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

// step runs a command of hetc in a process of its own, and shows it. Its memory is then not counted
// for the measured processes.
func (b *enginesBench) step(ctx context.Context, args ...string) error {
	_, err := b.output(ctx, args...)
	return err
}

// output is step, and returns what the command prints.
func (b *enginesBench) output(ctx context.Context, args ...string) ([]byte, error) {
	b.s.Notef("$ %s %s", cli.Program("hetc"), cli.Quote(args...))
	const most = time.Hour
	done, err := engines.Run(ctx, engines.Limits{Cores: b.Cores, Time: most}, b.self, args...)
	var exit *exec.ExitError
	// a diagnosed failure: pass on its class, message and hint
	if errors.As(err, &exit) && exit.ExitCode() > int(diag.ClassInternal) && exit.ExitCode() <= int(diag.ClassIO) {
		said, hint := []string{}, "run it by hand: "+cli.Program("hetc")+" "+cli.Quote(args...)
		for line := range strings.SplitSeq(string(done.Complaints), "\n") {
			if text, ok := strings.CutPrefix(line, b.s.Tool+": error: "); ok {
				said = append(said, text)
			} else if text, ok := strings.CutPrefix(line, b.s.Tool+": hint: "); ok {
				hint = text
			}
		}
		return nil, diag.New(diag.Class(exit.ExitCode()), "hetc %s: %s", args[0], strings.Join(said, "\n")).
			WithHint("%s", hint)
	}
	return done.Out, err
}

// firstPlan returns the given plan, checked, or solves one.
func (b *enginesBench) firstPlan(ctx context.Context, dir, model string) (*planir.Plan, error) {
	if b.Plan != "" {
		if err := b.step(ctx, "check", b.Plan, "--soc", b.SoC, "--model", model); err != nil {
			return nil, err
		}
		return plantext.Read(b.Plan)
	}
	workloadFile := filepath.Join(dir, "workload.yaml")
	if err := b.writeWorkload(workloadFile, false); err != nil {
		return nil, err
	}
	if err := b.measure(ctx, dir, model); err != nil {
		return nil, err
	}
	out := filepath.Join(dir, "plan.yaml")
	if err := b.step(ctx, append(b.solve(dir, model), "--workload", workloadFile, "-o", out)...); err != nil {
		return nil, err
	}
	return plantext.Read(out)
}

// solve returns the command line of hetc solve with the files of a folder.
func (b *enginesBench) solve(dir, model string) []string {
	return []string{"solve", "--soc", filepath.Join(dir, "soc.yaml"), "--record", filepath.Join(dir, "rec.jsonl"),
		"--accept-noisy", "--model", model}
}

// writeWorkload writes the workload that the plan is solved for. A bounded plan may use the schemes
// of both phases in each, so that one copy of the weights can serve both, but for the last matrix of prefill: every
// error of that is one of a logit.
func (b *enginesBench) writeWorkload(path string, bounded bool) error {
	permits := &workload.Workload{Schema: workload.Schema, OutputTokens: b.Gen,
		Context: max(slices.Max(b.Prompts), slices.Max(b.Depths)+b.Gen),
		Cache:   workload.CacheBest, // every type loses less than a tenth of what 8-bit products lose
		Schemes: workload.Schemes{Prefill: []op.Scheme{op.A8TQ8C}, Decode: []op.Scheme{op.A8TQ8C, op.A8TQ4B32},
			Head: []op.Scheme{op.A8TQ8C, op.A8TQ6C}, PrefillHead: []op.Scheme{op.A8TQ8C}}}
	const largest = 512 // rows of a program: longer prompts come in pieces
	// Powers of two, so that prompts of any length are cut into few pieces.
	for n := 64; n <= largest && n <= slices.Max(b.Prompts); n *= 2 {
		permits.Buckets = append(permits.Buckets, n)
	}
	if len(permits.Buckets) == 0 {
		permits.Buckets = []int{max(2, slices.Max(b.Prompts))}
	}
	for _, n := range b.Prompts {
		permits.Prompts = append(permits.Prompts, workload.Prompt{Tokens: n, Share: 1})
	}
	if b.Workload != "" {
		var err error
		if permits, err = workload.Read(b.Workload); err != nil {
			return err
		}
	}
	if bounded {
		both := slices.Concat(permits.Schemes.Prefill, permits.Schemes.Decode)
		slices.Sort(both)
		both = slices.Compact(both)
		permits.Schemes.Prefill, permits.Schemes.Decode = both, both
	}
	text, err := decode.YAML(*permits)
	if err != nil {
		return err
	}
	return wholefile.Write(path, text)
}

// measure probes the machine and profiles the model's operators. It skips this if the same program
// did it in this folder for the same workloads.
func (b *enginesBench) measure(ctx context.Context, dir, model string) error {
	soc, rec, both := filepath.Join(dir, "soc.yaml"), filepath.Join(dir, "rec.jsonl"), filepath.Join(dir,
		"measured.yaml")
	if err := b.writeWorkload(both, b.Memory != ""); err != nil { // all schemes that some plan may use
		return err
	}
	stamp, err := b.stamp(model, both)
	if err != nil {
		return err
	}
	// The stamp is written last: a record that was cut short is measured anew.
	done := filepath.Join(dir, "measured")
	if old, err := wholefile.Read(done, 1<<16); err == nil && bytes.Equal(old, stamp) {
		b.s.Notef("%s: used as it is: the same program has measured the same", rec)
		return nil
	}
	for _, path := range []string{done, rec} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return diag.New(diag.ClassIO, "bench engines: %w", err)
		}
	}
	if err := b.step(ctx, "probe", "--force", "-o", soc); err != nil {
		return err
	}
	if err := b.step(ctx, "profile", "--soc", soc, "--model", model, "--workload", both, "--budget", b.profile.String(),
		"-o", rec); err != nil {
		return err
	}
	return wholefile.Write(done, stamp)
}

// stamp identifies what a record was measured for: program, model, workload, cores, kernels and
// budget.
func (b *enginesBench) stamp(model, workload string) ([]byte, error) {
	// Another build may have other kernels, so the program's own bytes are part of the stamp.
	program, err := os.ReadFile(b.self)
	if err != nil {
		return nil, diag.New(diag.ClassIO, "bench engines: %w", err)
	}
	text, err := wholefile.Read(workload, 1<<20)
	if err != nil {
		return nil, err
	}
	model, err = filepath.Abs(model)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "program %x\nmodel %s\nworkload %x\ncores %v\nkernels %s\nbudget %v\n",
		sha256.Sum256(program), model, sha256.Sum256(text), b.Cores, host.Kernels(), b.profile), nil
}

// notBounded are the classes of errors after which only the plan within --max-memory is not measured: none keeps the
// bound, or llama.cpp, which tells it, fails.
var notBounded = []diag.Class{diag.ClassInfeasible, diag.ClassRun}

// peakOf measures what llama.cpp needs with a format, in one round.
func (b *enginesBench) peakOf(ctx context.Context, format string, peers []engines.Engine) (int64, error) {
	// readMemory has made sure that the format is one of llama.cpp's, which need not be there
	i := slices.IndexFunc(peers, func(e engines.Engine) bool {
		return e.Name() == engines.LlamaCppName && e.Form() == format
	})
	switch {
	case i >= 0:
	case slices.ContainsFunc(b.peers, func(p peer) bool { _, is := p.(*llamaPeer); return is }):
		return 0, diag.New(diag.ClassRun, "--max-memory %s: llama.cpp does not have the model in that format", format)
	default:
		return 0, diag.New(diag.ClassUnavailable, "--max-memory %s needs llama.cpp", format).
			WithHint("make deps-bench builds it; or give a size")
	}
	trial := engines.Match{
		Engines: peers[i : i+1], Cores: b.Cores, Rounds: 1, Seed: b.Seed, Timeout: b.timeout,
		Note: func(string, ...any) {},
	}
	for _, task := range b.tasks() {
		task.Reps = 1
		trial.Tasks = append(trial.Tasks, task)
	}
	result, err := trial.Play(ctx)
	if err != nil {
		return 0, err
	}
	for _, series := range result.Series {
		if series.Failed != "" {
			return 0, diag.New(diag.ClassRun, "--max-memory %s: llama.cpp: %s", format, series.Failed)
		}
	}
	peak := result.Peak(engines.LlamaCppName, format)
	b.s.Notef("%s %s needs %v", engines.LlamaCppName, format, unit.Bytes(peak))
	return peak, nil
}

// limitedPlan solves the plan that is bound by --max-memory. If the bound is a format, one round of
// that format measures its peak first.
func (b *enginesBench) limitedPlan(
	ctx context.Context, dir, model string, peers []engines.Engine,
) (enginesPlan, error) {
	bytes := b.maxBytes
	if b.maxFormat != "" {
		var err error
		if bytes, err = b.peakOf(ctx, b.maxFormat, peers); err != nil {
			return enginesPlan{}, err
		}
	}
	workloadFile, out := filepath.Join(dir, "bounded-workload.yaml"), filepath.Join(dir, "bounded.yaml")
	if err := b.writeWorkload(workloadFile, true); err != nil {
		return enginesPlan{}, err
	}
	if err := b.step(ctx, append(b.solve(dir, model), "--workload", workloadFile, "--max-memory",
		fmt.Sprintf("%dB", bytes), "-o", out)...); err != nil {
		return enginesPlan{}, err
	}
	plan, err := plantext.Read(out)
	if err != nil {
		return enginesPlan{}, err
	}
	made, err := b.bundle(ctx, dir, model, "bounded", plan)
	made.Form, made.MaxMemory = fmt.Sprintf("within %v", unit.Bytes(bytes)), bytes
	return made, err
}

// bundle emits a plan, unless its bundle exists: written by this version, with a plan of the same
// digest.
func (b *enginesBench) bundle(ctx context.Context, dir, model, name string, solved *planir.Plan) (enginesPlan, error) {
	made := enginesPlan{
		Form: name, name: name, plan: solved, Schemes: map[string][]op.Scheme{},
		bundle: filepath.Join(dir, name+".hetb"),
	}
	code, err := planir.Encode(solved)
	if err != nil {
		return made, err
	}
	if made.Digest, err = planir.Digest(solved); err != nil {
		return made, err
	}
	for _, decision := range solved.Decisions {
		phase := "prefill"
		if solved.Decodes(decision.Rows) {
			phase = "decode"
		}
		if decision.Scheme != "" && !slices.Contains(made.Schemes[phase], decision.Scheme) {
			made.Schemes[phase] = append(made.Schemes[phase], decision.Scheme)
		}
	}
	for _, blob := range solved.Program.WeightBlobs() {
		made.Bytes += blob.Size
	}
	if solved.Memory != nil {
		made.Predicted = solved.Memory.Total
	}
	// The key signs for this run only; its public part is what the measured process trusts.
	key := filepath.Join(dir, "local")
	if _, err := os.Stat(key + ".key"); err != nil {
		if err := b.step(ctx, "keygen", "--out", key); err != nil {
			return made, err
		}
	}
	if unverified, err := bundle.Inspect(made.bundle); err == nil && unverified.Manifest.Toolchain.Hetc == cli.Version {
		for _, blob := range unverified.Manifest.Blobs {
			if blob.Name == "plan" && blob.SHA256 == sha256.Sum256(code) {
				return made, nil
			}
		}
	}
	plan, soc := filepath.Join(dir, name+".yaml"), filepath.Join(dir, "soc.yaml")
	if b.Plan != "" {
		plan, soc = b.Plan, b.SoC
	}
	return made, b.step(ctx, "emit", "--plan", plan, "--model", model, "--soc", soc, "--key", key+".key", "-o",
		made.bundle)
}

// report shows the tables of all models, and writes the files that the flags name.
func (b *enginesBench) report(list []EnginesModel) error {
	env := measuredOn(b.Cores)
	doc := map[string]any{
		"cpu": env.CPU, "features": env.Features, "kernels": env.Kernels, "cores": b.Cores, "hetc": cli.Version,
		"models": list,
	}
	out := &page{s: b.s}
	for i := range list {
		b.show(out, env, &list[i])
	}
	if b.Markdown != "" {
		if err := wholefile.Write(b.Markdown, []byte(out.md.String())); err != nil {
			return err
		}
	}
	if b.Out != "" {
		text, err := json.MarshalIndent(doc, "", "  ")
		if err != nil {
			return err
		}
		if err := wholefile.Write(b.Out, append(text, '\n')); err != nil {
			return err
		}
	}
	return b.s.Result(doc)
}
