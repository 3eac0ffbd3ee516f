// Package quick knows the steps from a model to a running bundle, and which files of an earlier run
// are still valid.
package quick

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hetc/hetc/cmd/internal/bundling"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/matrix"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/runtime/tokenizer"
	"github.com/spf13/cobra"
)

// Options are the flags of hetc quick.
type Options struct {
	Model       string // name or path
	Out         string // folder for all files
	Prompt      string // text to continue; with Chat a message to answer
	Chat        bool
	MaxTokens   int
	Budget      string // time to measure
	Calibration string // file; at most one of Calibration and Text
	Text        string // file to calibrate with
	Target      string
	Only        string // processor
	Schemes     []string
	Again       bool // measure further and make everything anew
}

// Run executes the steps, which are commands of the program; root makes its root command. Errors have the class of the
// step that failed.
func Run(ctx context.Context, s *cli.Streams, o *Options, root func(*cli.Streams) *cobra.Command) error {
	return (&quick{ui: s, options: o, root: root}).run(ctx)
}

// quick is one run of the command.
type quick struct {
	ui      *cli.Streams
	options *Options
	root    func(*cli.Streams) *cobra.Command
	input   string // flag of hetrun by which the bundle takes its input
	steps   []step // done
}

// step is a command that was run, and under --json its result.
type step struct {
	Command []string        `json:"command"`
	Result  json.RawMessage `json:"result"`
}

// run makes the bundle in its folder, or finds it there, and executes it if there is a prompt.
func (q *quick) run(ctx context.Context) error {
	model, err := q.openModel(ctx)
	if err != nil {
		return err
	}
	defer model.Close()

	dir := q.options.Out
	if dir == "" {
		dir = "hetc-" + strings.TrimSuffix(model.Name, ".gguf")
	}
	schemes, err := q.schemes(model)
	if err != nil {
		return err
	}

	// Two runs in one folder would take each other's half-written files for finished ones.
	unlock, err := matrix.OwnDirectory(ctx, dir, func() {
		q.ui.Notef("waiting for another hetc that works in %q", dir)
	})
	if err != nil {
		return err
	}
	defer unlock()
	calDigest, err := q.calibration(model)
	if err != nil {
		return err
	}

	file := func(name string) string { return filepath.Join(dir, name) }
	if q.options.Again {
		if err := q.repair(file); err != nil {
			return err
		}
	}
	// A changed workload makes plan and bundle stale, whatever they belong to.
	changed, err := q.workload(file("workload.yaml"), schemes)
	if err != nil {
		return err
	}
	if q.options.Target != "" {
		return q.forTarget(ctx, schemes, file)
	}
	app := file("app.hetb")
	if !q.options.Again && !changed && q.current(file("plan.yaml"), app, model, calDigest) {
		q.ui.Printf("%s: unchanged (it belongs to this model and machine; --again makes it anew)\n", app)
	} else if err := q.forThisMachine(ctx, file); err != nil {
		return err
	}
	return q.runHere(ctx, app, file("local"))
}

// runHere executes the bundle for this machine if there is a prompt, and shows how to run it again.
func (q *quick) runHere(ctx context.Context, app, key string) error {
	if q.options.Prompt != "" {
		if err := q.step(ctx, q.execute(app, key)...); err != nil {
			return err
		}
	}
	q.ui.Printf("\n%s runs on this kind of machine:\n  %s %s --trust %s %s\n",
		app, cli.Program("hetrun"), cli.Quote(app), cli.Quote(key+".pub"), q.input)
	return q.ui.Result(map[string]any{"bundle": app, "trust": key + ".pub", "steps": q.steps})
}

// openModel opens the model. It must have weights and, for --prompt, a tokenizer.
func (q *quick) openModel(ctx context.Context) (*models.Model, error) {
	model, err := models.Open(q.options.Model)
	if err != nil {
		return nil, err
	}
	if err := q.checkModel(ctx, model); err != nil {
		model.Close()
		return nil, err
	}
	return model, nil
}

// checkModel refuses a model without weights or, for --prompt, without a usable tokenizer. It sets the flag by which
// the bundle takes its input.
func (q *quick) checkModel(ctx context.Context, model *models.Model) error {
	if !model.HasWeights() {
		return diag.New(diag.ClassInput, "model %q is a catalog entry: it has shapes and no weights", q.options.Model).
			WithHint("give a directory with weights, or make random ones: hetc models synth %s -o DIR", q.options.Model)
	}
	files, err := model.TokenizerFiles()
	if err != nil {
		return err
	}
	if files["tokenizer"] != nil {
		q.input = "--prompt TEXT"
		return q.tryTokenizer(ctx, model, files)
	}
	if q.options.Prompt != "" {
		return diag.New(diag.ClassInput, "model %q has no tokenizer, which --prompt needs", q.options.Model).
			WithHint("leave --prompt out, and give hetrun token ids (--tokens)")
	}
	q.input = "--tokens 1,2,3"
	return nil
}

// tryTokenizer refuses a tokenizer that emit would not sign, and with --chat a chat template that cannot write the
// prompt.
func (q *quick) tryTokenizer(ctx context.Context, model *models.Model, files map[string][]byte) error {
	if err := bundling.TryTokenizer(ctx, model, files); err != nil {
		return err
	}
	if !q.options.Chat {
		return nil
	}

	words, err := tokenizer.New(files["tokenizer"], files["config"], model.BOS)
	if err != nil {
		return err
	}
	_, err = words.Chat(ctx, []tokenizer.Message{{Role: "user", Content: q.options.Prompt}},
		tokenizer.ChatOptions{AddGenerationPrompt: true, Now: time.Now()})
	return err
}

// calibration returns the digest of --calibration, which must be of this model; "" for none.
func (q *quick) calibration(model *models.Model) (string, error) {
	if q.options.Calibration == "" {
		return "", nil
	}
	read, err := calibration.Read(q.options.Calibration)
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

// forThisMachine executes the steps from probing to the signed bundle.
func (q *quick) forThisMachine(ctx context.Context, file func(string) string) error {
	key := file("local")
	var cal []string
	if q.options.Calibration != "" {
		cal = []string{"--calibration", q.options.Calibration}
	}
	with := []string{"--soc", file("soc.yaml"), "--model", q.options.Model, "--workload", file("workload.yaml")}

	// Probe and profile keep files that are right, so that a run that was stopped goes on where it was. A resumed
	// profile measures what the budget of the run before left.
	profile := append([]string{"profile", "-o", file("rec.jsonl"), "--resume", "--rounds", "1",
		"--budget", q.options.Budget}, with...)
	if q.options.Again {
		profile = append(profile, "--flagged")
	}
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
	emit := []string{"emit", "--plan", file("plan.yaml"), "--model", q.options.Model, "--soc", file("soc.yaml"),
		"--key", key + ".key", "-o", file("app.hetb")}
	return q.take(ctx, append(steps, append(emit, cal...)))
}

// execute returns the command that executes a bundle with the prompt.
func (q *quick) execute(bundle, key string) []string {
	args := []string{"run", bundle, "--trust", key + ".pub", "--prompt", q.options.Prompt, "--max-tokens",
		strconv.Itoa(q.options.MaxTokens)}
	if q.options.Chat {
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

// step shows a command and executes it in this process.
func (q *quick) step(ctx context.Context, args ...string) error {
	if i := slices.Index(args, "--resume"); i > 0 && args[0] == "profile" {
		if err := q.usableRecord(ctx, args); err != nil {
			return err
		}
	}

	q.ui.Printf("$ %s %s\n", cli.Program("hetc"), cli.Quote(args...))

	// Each command gets streams of its own: under --json its result is kept, not printed.
	sub := &cli.Streams{Tool: q.ui.Tool, In: q.ui.In, Out: q.ui.Out, Err: q.ui.Err, JSON: q.ui.JSON}
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
