// Package quick knows the steps from a model to a running bundle, and which files of an earlier run
// are still valid.
package quick

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/bundling"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/matrix"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/tokenizer"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/workload"
)

// Options are the flags of hetc quick.
type Options struct {
	// a model's name or place, the folder for all files, a text to continue, and the time to measure
	Model, Out, Prompt, Budget string
	// one of both at most
	Calibration, Text string
	Target, Only      string
	Schemes           []string
	MaxTokens         int
	// measure further and make everything anew; the prompt is a message to answer
	Again, Chat bool
}

// Run executes the steps, which are commands of the program; root makes its root command.
func Run(ctx context.Context, s *cli.Streams, o *Options, root func(*cli.Streams) *cobra.Command) error {
	return (&quick{s: s, o: o, root: root}).run(ctx)
}

// quick is one run of the command.
type quick struct {
	s    *cli.Streams
	o    *Options
	root func(*cli.Streams) *cobra.Command
	// the flag of hetrun by which the bundle takes its input
	input string // flag of hetrun that the model's bundle takes
	steps []step
}

// step is a command that was run, and under --json its result.
type step struct {
	Command []string        `json:"command"`
	Result  json.RawMessage `json:"result"`
}

// quickBuckets are few, so that there is little to measure.
var quickBuckets = []int{64, 256}

// run makes the bundle in its folder, or finds it there, and executes it if there is a prompt.
func (q *quick) run(ctx context.Context) error {
	model, err := q.openModel(ctx)
	if err != nil {
		return err
	}
	defer model.Close()
	dir := q.o.Out
	if dir == "" {
		dir = "hetc-" + strings.TrimSuffix(model.Name, ".gguf")
	}
	schemes, err := q.schemes(model)
	if err != nil {
		return err
	}
	// Two of them in one folder would take each other's half-written files for finished ones.
	unlock, err := matrix.OwnDirectory(ctx, dir, func() { q.s.Notef("waiting for another hetc that works in %q", dir) })
	if err != nil {
		return err
	}
	defer unlock()
	calDigest, err := q.calibration(model)
	if err != nil {
		return err
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	if q.o.Again {
		if err := q.repair(file); err != nil {
			return err
		}
	}
	// A changed workload makes plan and bundle stale, whatever they belong to.
	changed, err := q.workload(file("workload.yaml"), schemes)
	if err != nil {
		return err
	}
	if q.o.Target != "" {
		return q.forTarget(ctx, schemes, file)
	}
	// A bundle is current where its plan still names this model, this machine and this calibration.
	key, app := file("local"), file("app.hetb")
	if !q.o.Again && !changed && q.current(file("plan.yaml"), app, model, calDigest) {
		q.s.Printf("%s: unchanged (it belongs to this model and machine; --again makes it anew)\n", app)
	} else if err := q.forThisMachine(ctx, file); err != nil {
		return err
	}
	if q.o.Prompt != "" {
		if err := q.step(ctx, q.execute(app, key)...); err != nil {
			return err
		}
	}
	q.s.Printf("\n%s runs on this kind of machine:\n  %s %s --trust %s %s\n",
		app, cli.Program("hetrun"), cli.Quote(app), cli.Quote(key+".pub"), q.input)
	return q.s.Result(map[string]any{"bundle": app, "trust": key + ".pub", "steps": q.steps})
}

// openModel opens the model. It must have weights and, for --prompt, a tokenizer.
func (q *quick) openModel(ctx context.Context) (*models.Model, error) {
	model, err := models.Open(q.o.Model)
	if err != nil {
		return nil, err
	}
	q.input = "--prompt TEXT"
	switch files, err := model.TokenizerFiles(); {
	case !model.HasWeights():
		model.Close()
		return nil, diag.New(diag.ClassInput, "model %q is a catalog entry: it has shapes and no weights", q.o.Model).
			WithHint("give a directory with weights, or make random ones: hetc models synth %s -o DIR", q.o.Model)
	case err != nil:
		model.Close()
		return nil, err
	case files["tokenizer"] == nil && q.o.Prompt != "":
		model.Close()
		return nil, diag.New(diag.ClassInput, "model %q has no tokenizer, which --prompt needs", q.o.Model).
			WithHint("leave --prompt out, and give hetrun token ids (--tokens)")
	case files["tokenizer"] == nil:
		q.input = "--tokens 1,2,3"
	default:
		if err := q.tryTokenizer(ctx, model, files); err != nil {
			model.Close()
			return nil, err
		}
	}
	return model, nil
}

// tryTokenizer refuses a tokenizer that emit would not sign, and with --chat a chat template that cannot write the
// prompt.
func (q *quick) tryTokenizer(ctx context.Context, model *models.Model, files map[string][]byte) error {
	if err := bundling.TryTokenizer(ctx, model, files); err != nil || !q.o.Chat {
		return err
	}
	tok, err := tokenizer.New(files["tokenizer"], files["config"], model.BOS)
	if err != nil {
		return err
	}
	_, err = tok.Chat(ctx, []tokenizer.Message{{Role: "user", Content: q.o.Prompt}},
		tokenizer.ChatOptions{AddGenerationPrompt: true, Now: time.Now()})
	return err
}

// calibration returns the digest of --calibration, which must be of this model; "" for none.
func (q *quick) calibration(model *models.Model) (string, error) {
	if q.o.Calibration == "" {
		return "", nil
	}
	read, err := calibration.Read(q.o.Calibration)
	if err != nil {
		return "", err
	}
	digest, err := model.Digest()
	if err != nil {
		return "", err
	}
	if err := read.CheckModel(model.Name, digest); err != nil {
		return "", err
	}
	return read.Digest()
}

// schemes returns those that the workload permits. For a target, schemes without a possible plan are
// refused.
func (q *quick) schemes(model *models.Model) ([]op.Scheme, error) {
	if q.o.Target == "" {
		return permitted(q.o.Schemes)
	}
	if _, err := socs.OpenTarget(q.o.Target); err != nil {
		return nil, err
	}
	if len(q.o.Schemes) == 0 {
		q.o.Schemes = []string{string(op.A16SQ8C)}
	}
	schemes, err := permitted(q.o.Schemes)
	if err != nil {
		return nil, err
	}
	schemes = schemes[1:] // no NPU computes the stored precision
	return schemes, q.plannable(model, schemes)
}

// forThisMachine executes the steps from probing to the signed bundle.
func (q *quick) forThisMachine(ctx context.Context, file func(string) string) error {
	key := file("local")
	var cal []string
	if q.o.Calibration != "" {
		cal = []string{"--calibration", q.o.Calibration}
	}
	with := []string{"--soc", file("soc.yaml"), "--model", q.o.Model, "--workload", file("workload.yaml")}
	// Resumed: a second run measures what the first had no time for.
	profile := append([]string{"profile", "-o", file("rec.jsonl"), "--resume", "--rounds", "1", "--budget", q.o.Budget},
		with...)
	if q.o.Again {
		profile = append(profile, "--flagged")
	}
	// Probe and profile keep what is there and right, so that a run that stopped goes on where it was.
	steps := [][]string{
		{"probe", "-o", file("soc.yaml")},
		profile,
		slices.Concat([]string{"solve", "--record", file("rec.jsonl"), "-o", file("plan.yaml"), "--accept-noisy"}, with,
			cal),
	}
	makeKey, err := keygen(key)
	if err != nil {
		return err
	}
	steps = append(steps, makeKey...)
	emit := []string{"emit", "--plan", file("plan.yaml"), "--model", q.o.Model, "--soc", file("soc.yaml"), "--key",
		key + ".key", "-o", file("app.hetb")}
	return q.take(ctx, append(steps, append(emit, cal...)))
}

// keygen returns the step that makes a key pair, none where there is one. A pair that could not be used is refused: the
// step that signs comes last.
func keygen(base string) ([][]string, error) {
	there := false
	for _, file := range []string{base + ".key", base + ".pub"} {
		if _, err := os.Lstat(file); err == nil {
			there = true
		}
	}
	if !there {
		return [][]string{{"keygen", "--out", base}}, nil
	}
	if err := usableKey(base); err != nil {
		return nil, diag.New(diag.ClassOr(err, diag.ClassInput), "quick: key pair %q: %w", base, err).
			WithHint("the same hetc quick with --again makes a new pair")
	}
	return nil, nil
}

// execute returns the command that executes a bundle with the prompt.
func (q *quick) execute(bundle, key string) []string {
	args := []string{"run", bundle, "--trust", key + ".pub", "--prompt", q.o.Prompt, "--max-tokens",
		strconv.Itoa(q.o.MaxTokens)}
	if q.o.Chat {
		args = append(args, "--chat")
	}
	return args
}

// take executes commands one after the other.
func (q *quick) take(ctx context.Context, steps [][]string) error {
	for _, args := range steps {
		if err := q.step(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// plannable refuses schemes with which no plan for the target is possible, before minutes are spent
// on the steps before solving.
func (q *quick) plannable(m *models.Model, schemes []op.Scheme) error {
	soc, err := socs.OpenTarget(q.o.Target)
	if err != nil {
		return err
	}
	workload := quickWorkload(schemes)
	in := solver.Input{Model: m, SoC: soc, Workload: &workload}
	if q.o.Only != "" {
		in.Only = []string{q.o.Only}
	}
	if err := in.ForTarget(); err != nil {
		return err
	}
	if err := in.CheckSchemes(); err != nil {
		var names []string
		for _, scheme := range schemes {
			names = append(names, string(scheme))
		}
		// the scheme that the hint suggests: one of the target's NPU, or that of experts
		more := op.A8TQ8C // of products by experts, which the control processor executes
		if npu := soc.TargetNPU(); len(npu.Target.Schemes) > 0 &&
			!slices.ContainsFunc(schemes, func(x op.Scheme) bool { return slices.Contains(npu.Target.Schemes, x) }) {
			more = npu.Target.Schemes[0]
		}
		return diag.New(diag.ClassOf(err), "quick: %w", err).
			WithHint("hetc quick permits it besides with --schemes %s,%s", strings.Join(names, ","), more)
	}
	return nil
}

// quickWorkload permits the schemes in both phases.
func quickWorkload(schemes []op.Scheme) workload.Workload {
	return workload.Workload{Schema: workload.Schema, Buckets: quickBuckets,
		Schemes: workload.Schemes{Prefill: schemes, Decode: schemes}}
}

// forTarget makes the bundle for a device that is not here, and its twin for the emulator.
// Calibration, record and compiled graphs of an earlier run are kept.
func (q *quick) forTarget(ctx context.Context, schemes []op.Scheme, file func(string) string) error {
	key, app, twin, cal := file("local"), file("app.hetb"), file("twin.hetb"), q.o.Calibration
	var steps [][]string
	// static scales need the ranges of activations
	if cal == "" && slices.ContainsFunc(schemes, op.Scheme.Static) {
		cal = file("calibration.yaml")
		_, err := os.Stat(cal)
		switch {
		case err == nil && !q.o.Again:
		case q.o.Text == "":
			return diag.New(diag.ClassUsage,
				"quick: schemes with static scales need ranges of activations, and no text is given").
				WithHint("add --text FILE with text of the kind the model will see, or --calibration FILE")
		default:
			step := []string{"calibrate", "--model", q.o.Model, "--text", q.o.Text, "-o", cal}
			for _, scheme := range schemes {
				step = append(step, "--schemes", string(scheme))
			}
			steps = append(steps, step)
		}
	}
	with := []string{"--target", q.o.Target, "--model", q.o.Model, "--workload", file("workload.yaml")}
	var ranges []string
	if cal != "" {
		ranges = []string{"--calibration", cal}
	}
	emit := slices.Concat([]string{"emit", "--plan", file("plan.yaml"), "--model", q.o.Model, "--key", key + ".key"},
		ranges)
	solve := slices.Concat([]string{"solve", "--record", file("rec.jsonl"), "--facts", file("facts.jsonl"), "-o",
		file("plan.yaml")}, with, ranges)
	if q.o.Only != "" {
		solve = append(solve, "--only", q.o.Only)
	}
	steps = append(steps,
		append([]string{"profile", "-o", file("rec.jsonl"), "--resume"}, with...),
		append([]string{"profile", "--compiler-only", "-o", file("facts.jsonl"), "--resume"}, with...),
		solve)
	makeKey, err := keygen(key)
	if err != nil {
		return err
	}
	steps = append(steps, makeKey...)
	// the twin first: its report is repeated in the device's bundle
	steps = append(steps,
		slices.Concat(emit, []string{"--for-emulator", "-o", twin}),
		slices.Concat(emit, []string{"--target", q.o.Target, "--twin", twin, "-o", app}))
	if q.o.Prompt != "" {
		steps = append(steps, q.execute(twin, key))
	}
	if err := q.take(ctx, steps); err != nil {
		return err
	}
	q.s.Printf("\n%s is for %s and was never loaded there; its twin runs here, emulated:\n  %s %s --trust %s %s\n",
		app, q.o.Target, cli.Program("hetrun"), cli.Quote(twin), cli.Quote(key+".pub"), q.input)
	return q.s.Result(map[string]any{"bundle": app, "twin": twin, "trust": key + ".pub", "steps": q.steps})
}

// step shows a command and executes it in this process.
func (q *quick) step(ctx context.Context, args ...string) error {
	if i := slices.Index(args, "--resume"); i > 0 && args[0] == "profile" {
		if err := q.usableRecord(ctx, args); err != nil {
			return err
		}
	}
	q.s.Printf("$ %s %s\n", cli.Program("hetc"), cli.Quote(args...))
	// Each command gets streams of its own: under --json its result is kept, not printed.
	sub := &cli.Streams{Tool: q.s.Tool, In: q.s.In, Out: q.s.Out, Err: q.s.Err, JSON: q.s.JSON}
	var result bytes.Buffer
	if sub.JSON {
		sub.Out = &result
	}
	if err := cli.Prepare(sub, q.root, args...).ExecuteContext(ctx); err != nil {
		if errors.Is(err, context.Canceled) {
			return diag.New(diag.ClassInterrupted, "quick: %s: %w", args[0], err).
				WithHint("the same hetc quick goes on where it stopped")
		}
		return err
	}
	q.steps = append(q.steps, step{append([]string{"hetc"}, args...), result.Bytes()})
	return nil
}

// repair removes files that no step could use or replace, so that the steps make them anew.
func (q *quick) repair(file func(string) string) error {
	soc, key := file("soc.yaml"), file("local")
	_, workloadErr := workload.Read(file("workload.yaml"))
	machine, socErr := socs.Open(soc)
	if socErr == nil && machine.Fingerprint != host.Fingerprint() {
		socErr = errors.New("it describes another machine")
	}
	for _, broken := range []struct {
		err   error
		files []string
	}{
		{socErr, []string{soc}},
		{workloadErr, []string{file("workload.yaml")}},
		{usableKey(key), []string{key + ".key", key + ".pub"}},
	} {
		// A missing file is made by its step; half of a key pair is of no use, and the other half goes too.
		if broken.err == nil || errors.Is(broken.err, fs.ErrNotExist) && len(broken.files) == 1 {
			continue
		}
		for _, f := range broken.files {
			if err := q.discard(f, broken.err); err != nil {
				return err
			}
		}
	}
	return nil
}

// usableKey returns why a key pair cannot sign, or why its public key would not verify what it
// signs.
func usableKey(base string) error {
	private, err := emit.LoadSigningKey(base + ".key")
	if err != nil {
		return err
	}
	trust, err := bundle.LoadTrust(base + ".pub")
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(trust.Keys, func(k bundle.Key) bool { return k.ID() == private.Public.ID() }) {
		return errors.New("they are no pair")
	}
	return nil
}

// discard removes a file, if it exists, and says why.
func (q *quick) discard(path string, why error) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return diag.New(diag.ClassIO, "quick: %w", err)
	}
	q.s.Notef("%s is made anew: %v", path, why)
	return nil
}

// usableRecord checks the record that a profile step would resume. A record of another SoC file,
// machine or kernel version cannot be continued; with --again it is discarded.
func (q *quick) usableRecord(ctx context.Context, step []string) error {
	value := func(flags ...string) string {
		i := slices.IndexFunc(step, func(s string) bool { return slices.Contains(flags, s) })
		return step[i+1]
	}
	path := value("-o")
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	soc, err := socs.Open(value("--soc", "--target"))
	if err != nil {
		return err
	}
	header, err := profiler.Header(soc, host.Fingerprint(), host.Kernels(), cli.Version, 1)
	if err != nil {
		return err
	}
	if err := bindings.LibraryVersions(ctx, soc, &header); err != nil {
		return err
	}
	writer, err := record.Resume(path, header)
	switch {
	case err == nil:
		return writer.Close()
	case diag.ClassOf(err) != diag.ClassInput:
		return err
	case q.o.Again:
		return q.discard(path, err)
	}
	return diag.New(diag.ClassInput, "quick: %w", err).WithHint("the same hetc quick with --again measures anew")
}

// permitted parses schemes to permit besides the stored precision; nil for none.
func permitted(offered []string) ([]op.Scheme, error) {
	if len(offered) == 0 {
		return nil, nil
	}
	out := []op.Scheme{op.A32W32}
	for _, text := range offered {
		scheme, err := op.ParseScheme(text)
		if err != nil {
			var names []string
			for _, scheme := range op.Schemes {
				names = append(names, string(scheme))
			}
			return nil, diag.New(diag.ClassUsage, "--schemes %q: no such scheme", text).
				WithHint("%s", diag.DidYouMean(text, names))
		}
		if !slices.Contains(out, scheme) {
			out = append(out, scheme)
		}
	}
	return out, nil
}

// workload writes the workload file. A file that exists is kept, also an edited one, unless
// --schemes asks for other schemes.
func (q *quick) workload(path string, schemes []op.Scheme) (changed bool, err error) {
	workload := quickWorkload(schemes)
	text, err := decode.YAML(workload)
	if err != nil {
		return false, err
	}
	old, err := wholefile.Read(path, 1<<20)
	// Only --schemes says something that the file may contradict.
	if err == nil && (bytes.Equal(old, text) || len(q.o.Schemes) == 0) {
		return false, nil // also one that was edited by hand
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, wholefile.Write(path, text)
}

// current reports whether the bundle holds the plan, and both belong to the model, the calibration
// ("" for none) and this machine.
func (q *quick) current(plan, app string, model *models.Model, calibration string) bool {
	read, err := plantext.Read(plan)
	if err != nil || read.SoC.Fingerprint != host.Fingerprint() || read.Calibration() != calibration {
		return false
	}
	if digest, err := model.Digest(); err != nil || digest != read.Model.Digest {
		return false
	}
	code, err := planir.Encode(read)
	if err != nil {
		return false
	}
	// Digests suffice: nothing of the bundle is executed before hetrun verifies it.
	unverified, err := bundle.Inspect(app)
	if err != nil || unverified.Manifest.Toolchain.Hetc != cli.Version {
		return false
	}
	// the blobs whose digests must be in the bundle
	want := map[string][]byte{"plan": code}
	files, err := model.TokenizerFiles()
	if err != nil {
		return false
	}
	maps.Copy(want, files)
	for _, blob := range unverified.Manifest.Blobs {
		if data, ok := want[blob.Name]; ok && sha256.Sum256(data) == blob.SHA256 {
			delete(want, blob.Name)
		}
	}
	return len(want) == 0
}
