package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/engines"
	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/solver/workload"
)

// enginesPlan is a plan of hetc that is measured.
type enginesPlan struct {
	Form      string                 `json:"form"`
	Digest    string                 `json:"digest"`
	Schemes   map[string][]op.Scheme `json:"schemes"` // of matrices, by phase
	Bytes     int64                  `json:"weight_bytes"`
	Predicted int64                  `json:"predicted_memory_bytes,omitempty"` // peak memory, as the plan predicts it
	MaxMemory int64                  `json:"max_memory_bytes,omitempty"`       // the bound it was solved under

	name, bundle string // of files
	plan         *planir.Plan
}

// firstPlan returns the plan of --plan, checked, or solves one from measurements of this machine.
func (b *enginesBench) firstPlan(ctx context.Context, dir, model string) (*planir.Plan, error) {
	if b.Plan != "" {
		return b.givenPlan(ctx, model)
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

// givenPlan returns the plan of --plan if it fits the SoC, the model and the measured tasks.
func (b *enginesBench) givenPlan(ctx context.Context, model string) (*planir.Plan, error) {
	if err := b.step(ctx, "check", b.Plan, "--soc", b.SoC, "--model", model); err != nil {
		return nil, err
	}
	plan, err := plantext.Read(b.Plan)
	if err != nil {
		return nil, err
	}
	if what, need := b.longest(); need > plan.MaxContext {
		return nil, usage("%s needs a context of %d tokens, and plan %q has %d", what, need, b.Plan, plan.MaxContext).
			WithHint("measure fewer, or solve for a workload with a larger context")
	}
	return plan, nil
}

// tryPlan executes a given plan once, before other engines convert the model: it may have been made for another machine,
// for other cores, or for a simulated SoC.
func (b *enginesBench) tryPlan(ctx context.Context, dir string, made *enginesPlan) error {
	if b.Plan == "" {
		return nil
	}
	engine, task := b.hetc(dir, made), engines.Task{Depth: 1, Gen: 1, Reps: 1}
	_, args := engine.Command(task, len(b.Cores))
	out, err := b.output(ctx, args...)
	if err != nil {
		return err
	}
	_, err = engine.Parse(task, len(b.Cores), out, nil)
	return err
}

// hetc returns the engine that executes a plan's bundle.
func (b *enginesBench) hetc(dir string, made *enginesPlan) *engines.Hetc {
	return &engines.Hetc{
		Program: b.self, Bundle: made.bundle, Trust: filepath.Join(dir, "local.pub"),
		Of: made.Form, Kernels: host.Kernels(), Release: cli.Version,
	}
}

// solve returns the command line of hetc solve with the files of a folder.
func (b *enginesBench) solve(dir, model string) []string {
	line := []string{"solve", "--soc", filepath.Join(dir, "soc.yaml"), "--record", filepath.Join(dir, "rec.jsonl"),
		"--accept-noisy", "--model", model}
	return append(line, b.withCalibration()...)
}

// withCalibration returns the flag by which a measured model is solved and packed with its calibration, if it has one.
func (b *enginesBench) withCalibration() []string {
	if b.calibration == "" || b.QualityModel != "" {
		return nil
	}
	return []string{"--calibration", b.calibration}
}

// writeWorkload writes the workload that a plan is solved for: the one of --workload, or the measured tasks.
//
// A bounded plan may use the schemes of both phases in each, so that one copy of the weights can serve both. The last
// matrix of prefill is excepted, because its errors are errors of logits. Where no workload is given, prefill may also
// requantise the weights of decode.
func (b *enginesBench) writeWorkload(path string, bounded bool) error {
	permits := b.tasksWorkload()
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
		if b.Workload == "" && slices.Contains(both, op.A8TQ4B32) {
			permits.Schemes.Prefill = append(slices.Clone(both), op.A8CQ4B32)
		}
	}

	text, err := decode.YAML(*permits)
	if err != nil {
		return err
	}
	return wholefile.Write(path, text)
}

// tasksWorkload returns the workload of the measured tasks, where each prompt is as frequent as another.
func (b *enginesBench) tasksWorkload() *workload.Workload {
	longest := slices.Max(b.Prompts)

	// A calibration makes blocks of 128 lose about as much as blocks of 32 without one, and they are 8 % smaller.
	fourBits := op.A8TQ4B32
	if b.calibration != "" {
		fourBits = op.A8TQ4B128
	}

	permits := &workload.Workload{
		Schema:       workload.Schema,
		OutputTokens: b.Gen,
		Context:      max(longest, slices.Max(b.Depths)+b.Gen),
		Cache:        workload.CacheBest, // every type loses less than a tenth of what 8-bit products lose
		Schemes: workload.Schemes{
			Prefill:     []op.Scheme{op.A8TQ8C},
			Decode:      []op.Scheme{op.A8TQ8C, fourBits},
			Head:        []op.Scheme{op.A8TQ8C, op.A8TQ6C},
			PrefillHead: []op.Scheme{op.A8TQ8C},
		},
	}

	// Buckets are powers of two, so that prompts of any length are cut into few pieces.
	const largest = 512 // rows
	for rows := 64; rows <= min(largest, longest); rows *= 2 {
		permits.Buckets = append(permits.Buckets, rows)
	}
	if len(permits.Buckets) == 0 {
		permits.Buckets = []int{max(2, longest)}
	}

	for _, tokens := range b.Prompts {
		permits.Prompts = append(permits.Prompts, workload.Prompt{Tokens: tokens, Share: 1})
	}
	return permits
}

// measure probes the machine and profiles the model's operators.
func (b *enginesBench) measure(ctx context.Context, dir, model string) error {
	soc := filepath.Join(dir, "soc.yaml")
	records := filepath.Join(dir, "rec.jsonl")

	// The workload permits every scheme that the first or the bounded plan may use.
	workloadFile := filepath.Join(dir, "measured.yaml")
	if err := b.writeWorkload(workloadFile, b.Memory != ""); err != nil {
		return err
	}

	return b.unlessDone([]string{records, soc}, model, []string{workloadFile}, func() error {
		if err := b.step(ctx, "probe", "--force", "-o", soc); err != nil {
			return err
		}
		return b.step(ctx, "profile", "--soc", soc, "--model", model, "--workload", workloadFile,
			"--budget", b.profile.String(), "-o", records)
	})
}

// notBounded lists the classes of errors that leave out only the plan within --max-memory: no plan keeps the bound, or
// llama.cpp fails with the format that defines it.
var notBounded = []diag.Class{diag.ClassInfeasible, diag.ClassRun}

// addLimitedPlan adds the plan within --max-memory to a model, or the reason why there is none.
func (b *enginesBench) addLimitedPlan(
	ctx context.Context, dir, path string, measured *EnginesModel, peers []engines.Engine,
) error {
	if b.Memory == "" {
		return nil
	}
	limited, err := b.limitedPlan(ctx, dir, path, peers)
	if err == nil {
		measured.Plans = append(measured.Plans, limited)
		return nil
	}
	if ctx.Err() != nil || !slices.Contains(notBounded, diag.ClassOf(err)) {
		return err
	}

	// The other plans are worth measuring without it.
	measured.NoBounded = err.Error()
	b.s.Warnf("%v", err)
	return nil
}

// peakOf measures the peak memory of llama.cpp with a format in one round, bytes. The format is one of --formats.
func (b *enginesBench) peakOf(ctx context.Context, format string, peers []engines.Engine) (int64, error) {
	index := slices.IndexFunc(peers, func(e engines.Engine) bool {
		return e.Name() == engines.LlamaCppName && e.Form() == format
	})
	if index < 0 {
		return 0, b.noFormat(format)
	}

	trial := engines.Match{
		Engines: peers[index : index+1], Cores: b.Cores, Rounds: 1, Seed: b.Seed, Timeout: b.timeout,
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

// checkMemoryFormat refuses a format of --max-memory without the engine that has it, before anything is measured.
func (b *enginesBench) checkMemoryFormat() error {
	if b.maxFormat == "" || slices.ContainsFunc(b.peers, isLlama) {
		return nil
	}
	return b.noFormat(b.maxFormat)
}

// isLlama reports whether an engine is llama.cpp.
func isLlama(other peer) bool {
	_, is := other.(*llamaPeer)
	return is
}

// noFormat says why the format of --max-memory cannot be measured.
func (b *enginesBench) noFormat(format string) error {
	if slices.ContainsFunc(b.peers, isLlama) {
		return diag.New(diag.ClassRun, "--max-memory %s: llama.cpp does not have the model in that format", format)
	}
	return diag.New(diag.ClassUnavailable, "--max-memory %s needs llama.cpp", format).
		WithHint("make deps-bench builds it; or give a size")
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
	solve := append(b.solve(dir, model), "--workload", workloadFile)
	solve = append(solve, "--max-memory", fmt.Sprintf("%dB", bytes), "-o", out)
	if err := b.step(ctx, solve...); err != nil {
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

// bundle emits a plan of which the file is dir/name.yaml, unless this program has emitted it before.
func (b *enginesBench) bundle(ctx context.Context, dir, model, name string, solved *planir.Plan) (enginesPlan, error) {
	made := describePlan(solved)
	made.Form, made.name, made.bundle = name, name, filepath.Join(dir, name+".hetb")
	digest, err := planir.Digest(solved)
	if err != nil {
		return made, err
	}
	made.Digest = digest

	// The key signs for this run only; the measured process trusts its public part.
	key := filepath.Join(dir, "local")
	if !exist(key+".key", key+".pub") {
		if err := b.newKey(ctx, key); err != nil {
			return made, err
		}
	}

	plan, soc := filepath.Join(dir, name+".yaml"), filepath.Join(dir, "soc.yaml")
	if b.Plan != "" {
		plan, soc = b.Plan, b.SoC
	}
	from := []string{plan, key + ".pub"}
	if b.calibration != "" {
		from = append(from, b.calibration)
	}
	return made, b.unlessDone([]string{made.bundle}, model, from, func() error {
		emit := append([]string{"emit", "--plan", plan, "--model", model, "--soc", soc}, b.withCalibration()...)
		return b.step(ctx, append(emit, "--key", key+".key", "-o", made.bundle)...)
	})
}

// newKey makes a key and its public part. One of them may be there without the other.
func (b *enginesBench) newKey(ctx context.Context, path string) error {
	if err := remove(path+".key", path+".pub"); err != nil {
		return err
	}
	return b.step(ctx, "keygen", "--out", path)
}

// describePlan returns a plan with its schemes, sizes and predicted memory.
func describePlan(solved *planir.Plan) enginesPlan {
	described := enginesPlan{plan: solved, Schemes: map[string][]op.Scheme{}}
	for _, decision := range solved.Decisions {
		phase := "prefill"
		if solved.Decodes(decision.Rows) {
			phase = "decode"
		}
		if decision.Scheme != "" && !slices.Contains(described.Schemes[phase], decision.Scheme) {
			described.Schemes[phase] = append(described.Schemes[phase], decision.Scheme)
		}
	}

	for _, blob := range solved.Program.WeightBlobs() {
		described.Bytes += blob.Size
	}
	if solved.Memory != nil {
		described.Predicted = solved.Memory.Total
	}
	return described
}
