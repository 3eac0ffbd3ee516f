// Package bench knows how plans, kernels, engines and solvers are measured against each other in the same run. Each
// file is one command of hetc bench, but for the largest two: engines*.go and sets*.go. sets.go solves the plans to
// compare, and bench.go opens them side by side.
package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/cmd/internal/planview"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
)

// Options are the flags of hetc bench processors and bench sets.
type Options struct {
	Plan, Model, SoC string
	Record, Workload string
	Calibration      string
	Loads            string // of experts
	PromptLen        int    // tokens
	Gen              int    // tokens decoded after the prompt
	Rounds           int    // of measuring
	All              bool   // measure also sets that equal another one in drivers, kinds and numbers of cores
}

// candidate is a plan that is measured, with its summaries and predictions in ns.
type candidate struct {
	Name      string       `json:"name"`
	Prefill   stat.Summary `json:"prefill_ns"`
	Decode    stat.Summary `json:"decode_ns"`
	PrefillNS int64        `json:"predicted_prefill_ns"`
	DecodeNS  int64        `json:"predicted_decode_ns"`

	machine *executor.Machine // of the open plan
	prefill []float64         // samples of a prompt, ns
	decode  []float64         // samples of a token, ns: means over a round
}

// Processors measures a plan against the plans that use only one of its processors.
func Processors(ctx context.Context, ui *cli.Streams, options *Options) error {
	plan, err := plantext.Read(options.Plan)
	if err != nil {
		return err
	}
	model, err := models.Open(options.Model)
	if err != nil {
		return err
	}
	defer model.Close()
	soc, err := bindings.SoCOf(plan, options.SoC)
	if err != nil {
		return err
	}
	if err := ofThisMachine(soc); err != nil {
		return err
	}
	if err := check.Plan(plan, model, soc).Err(); err != nil {
		return err
	}

	// Check this before the weights are packed, because packing is slow.
	if need := options.PromptLen + options.Gen; need > plan.MaxContext {
		return diag.New(diag.ClassUsage, "--prompt-len %d and --gen %d need a context of %d, the plan has %d",
			options.PromptLen, options.Gen, need, plan.MaxContext).
			WithHint("measure fewer, or solve for a workload with a larger context")
	}
	cal, err := bindings.ReadCalibration(options.Calibration)
	if err != nil {
		return err
	}

	list, release, err := candidates(ctx, plan, model, cal, soc)
	defer release()
	if err != nil {
		return err
	}

	predict(list, plan, options)
	virtual, err := measureRounds(ctx, list, options, nil)
	if err != nil {
		return err
	}
	return report(ui, plan, model, soc, list, options, virtual)
}

// ofThisMachine refuses the SoC file of another machine, whose predictions, bandwidths and cores are not those of this
// one. A catalog SoC is simulated anywhere, and no SoC at all is fine.
func ofThisMachine(soc *socs.SoC) error {
	if soc == nil || soc.Fingerprint == "" || soc.Fingerprint == host.Fingerprint() {
		return nil
	}
	return diag.New(diag.ClassInput, "SoC %q was probed on another machine: its fingerprint is %q, this one has %q",
		soc.Name, soc.Fingerprint, host.Fingerprint()).
		WithHint("measure there, or make the SoC file and the record here: hetc probe, hetc profile. The cores that " +
			"this process may use (taskset, cpuset) are part of the fingerprint")
}

// measureRounds measures all candidates in every round, in random order, so that a machine whose speed changes favours
// none. The first round is a warm-up. The machine is watched before each later round, unless watch is nil. virtual
// reports that times are simulated.
func measureRounds(
	ctx context.Context, list []*candidate, options *Options, watch *machineWatch,
) (virtual bool, err error) {
	for _, candidate := range list {
		if err := candidate.refuseEmulator(); err != nil {
			return false, err
		}
	}

	rng := rand.New(rand.NewPCG(1, 2)) // the order of measurements, not their values
	for round := -1; round < options.Rounds; round++ {
		if round >= 0 {
			if err := watch.look(ctx); err != nil {
				return false, err
			}
		}

		for _, i := range rng.Perm(len(list)) {
			candidate := list[i]
			times, err := runcmd.Round(ctx, candidate.machine, options.PromptLen, options.Gen)
			if err != nil {
				return false, fmt.Errorf("measure %q: %w", candidate.Name, err)
			}
			virtual = times.Virtual
			if round >= 0 {
				candidate.add(times.PrefillNS, times.DecodeNS)
			}
		}
	}

	for _, candidate := range list {
		if candidate.Prefill, err = stat.Summarise(candidate.prefill); err != nil {
			return false, err
		}
		if candidate.Decode, err = stat.Summarise(candidate.decode); err != nil {
			return false, err
		}
	}

	return virtual, nil
}

// refuseEmulator returns an error if the plan uses an emulator, because its times say nothing about a device.
func (c *candidate) refuseEmulator() error {
	emulators := c.machine.Emulated()
	if len(emulators) == 0 {
		return nil
	}
	return diag.New(diag.ClassInput, "measure %q: %s is an emulator, whose times are none of a device's", c.Name,
		strings.Join(emulators, ", "))
}

// add adds the times of a round to the samples: those of prompts, and the mean of all tokens, since the time of a
// single token depends on its position.
func (c *candidate) add(prefill, decode []int64) {
	for _, ns := range prefill {
		c.prefill = append(c.prefill, float64(ns))
	}
	sum := 0.0
	for _, ns := range decode {
		sum += float64(ns)
	}
	c.decode = append(c.decode, sum/float64(len(decode)))
}

// candidates opens the plan, and for every processor the plan that uses it alone with the same
// schemes and lengths. The caller calls release, also after an error, to close the opened plans.
func candidates(
	ctx context.Context, plan *planir.Plan, model *models.Model, cal *calibration.Calibration, soc *socs.SoC,
) (list []*candidate, release func(), err error) {
	// release is valid from here on, whatever fails below.
	opened := &fleet{model: model, cal: cal, soc: soc}
	release = opened.close

	procs := plan.Procs
	if soc != nil {
		// The SoC also has the processors that the plan leaves idle.
		procs = nil
		for i := range soc.Processors {
			procs = append(procs, check.Proc(&soc.Processors[i]))
		}
	}

	names, plans := []string{"plan"}, []*planir.Plan{plan}
	for i := range procs {
		single, err := singlePlan(plan, model, &procs[i])
		if err != nil {
			continue // The processor lacks an operator or a scheme, so it is no alternative.
		}
		names, plans = append(names, procs[i].Name), append(plans, single)
	}

	// Equal packed weights are held once, so those of the first plan count for all.
	if err := runcmd.EnoughMemory(plans, runcmd.WeightBytes(plan), machine.FreeMemory()); err != nil {
		return nil, release, fmt.Errorf("measure %d plans side by side: %w", len(plans), err)
	}

	for i := range plans {
		if err := opened.open(ctx, names[i], plans[i]); err != nil {
			return nil, release, err
		}
	}

	return opened.list, release, nil
}

// fleet holds plans of one model that are open side by side, each on a machine of its own. Equal
// packed weights are held once.
type fleet struct {
	model *models.Model
	cal   *calibration.Calibration
	soc   *socs.SoC

	list    []*candidate
	first   *emit.Content // its packed weights are shared by the others
	threads int           // of all open plans
	closers []func() error
}

// close closes all opened plans in reverse order.
func (f *fleet) close() {
	for _, closeOne := range slices.Backward(f.closers) {
		_ = closeOne()
	}
}

// openAll opens plans under their labels, unless they do not fit in memory together.
func (f *fleet) openAll(ctx context.Context, labels []string, plans []*planir.Plan) error {
	if err := runcmd.EnoughMemory(plans, heldBytes(plans), machine.FreeMemory()); err != nil {
		return fmt.Errorf("measure %d plans side by side: %w", len(plans), err)
	}
	for i, plan := range plans {
		if err := f.open(ctx, labels[i], plan); err != nil {
			return err
		}
	}
	return nil
}

// howMeasured returns the word for times: simulated on a virtual clock, else measured.
func howMeasured(virtual bool) string {
	if virtual {
		return "simulated"
	}
	return "measured"
}

// enoughRounds is the least number whose extremes hold the median in 95 of 100 cases: fewer have no 95 % interval.
const enoughRounds = 6

// interleaved says in how many rounds plans took turns, and where these are too few for what tables call a 95 %
// interval.
func interleaved(rounds int) string {
	text := cli.Count(rounds, "interleaved round")
	if rounds < enoughRounds {
		text += fmt.Sprintf(" (too few for 95 %% intervals, which need %d)", enoughRounds)
	}
	return text
}

// msInterval writes the 95 % interval of times in ns as milliseconds, "-" where there are too few for one.
func msInterval(times stat.Summary) string {
	if times.N < enoughRounds {
		return "-"
	}
	return fmt.Sprintf("%.3f..%.3f", times.Low/1e6, times.High/1e6)
}

// ratioInterval writes the 95 % interval of a ratio, "-" where there are too few rounds for one.
func ratioInterval(rounds int, low, high float64) string {
	if rounds < enoughRounds {
		return "-"
	}
	return fmt.Sprintf("%.2f..%.2f", low, high)
}

// open opens a plan and adds it to the list. It raises GOMAXPROCS to the threads of all open plans, because a thread
// that waits must not take the place of one that computes.
func (f *fleet) open(ctx context.Context, name string, plan *planir.Plan) error {
	content, err := emit.NewCalibrated(ctx, plan, f.model, f.cal, bindings.Compilers(f.soc))
	if err != nil {
		return err
	}

	f.closers = append(f.closers, content.Close)
	if f.first == nil {
		f.first = content
	} else {
		content.ShareWith(f.first)
	}

	f.threads += executor.Threads(plan)
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), f.threads+2))
	machine, err := executor.Open(ctx, plan, runcmd.UntilDone(ctx, content),
		executor.Options{Drivers: bindings.Drivers(f.soc)})
	if err != nil {
		return fmt.Errorf("open %q: %w", name, err)
	}

	f.closers = append(f.closers, machine.Close)
	f.list = append(f.list, &candidate{Name: name, machine: machine})
	return nil
}

// singlePlan returns the base plan with everything on one processor. It fails where that processor lacks
// an operator or a scheme.
func singlePlan(base *planir.Plan, model *models.Model, proc *planir.Proc) (*planir.Plan, error) {
	single := *base
	single.Beside, single.Drafts, single.InFlight = nil, nil, nil
	single.Batches = nil // one sequence is measured
	single.Procs = []planir.Proc{*proc}
	single.SoC.Control = proc.Name

	var lengths []int // of programs, rows
	for _, program := range base.Program.Programs {
		if !program.Batch() {
			lengths = append(lengths, program.Rows)
		}
	}

	scheme := func(node string, rows int) op.Scheme {
		// Lengths for which the plan decided nothing, such as the head's, use the schemes of one row.
		for _, length := range []int{rows, 1} {
			if decision := base.DecisionFor(node, length); decision != nil {
				return decision.Scheme
			}
		}
		return ""
	}

	graph := model.Graph()
	var err error
	single.Decisions, err = lower.Trivial(&graph, proc.Name, lengths, base.MaxContext, base.KV, scheme)
	if err != nil {
		return nil, err
	}
	if err := lower.Lower(&single, &graph); err != nil {
		return nil, err
	}
	return &single, planir.Check(&single).Err()
}

// predict fills in the times that the plan predicts for a prompt and a token.
func predict(list []*candidate, plan *planir.Plan, options *Options) {
	for _, candidate := range list {
		proc := candidate.Name
		if candidate.machine.Plan() == plan {
			proc = ""
		}

		// As the executor does: the decider names a program for the rows that are left, and each program takes its
		// rows.
		for left := options.PromptLen; left > 0; {
			program := plan.Program.For(left)
			candidate.PrefillNS += predictedTime(plan, program.Name, proc)
			left -= min(left, program.Rows)
		}
		candidate.DecodeNS = predictedTime(plan, "decode", proc)
	}
}

// predictedTime returns the time in ns that a plan predicts for a program, or for the same program on one processor
// alone if proc is not empty; 0 where it predicts none.
func predictedTime(plan *planir.Plan, program, proc string) int64 {
	prediction := plan.PredictionOf(program)
	if prediction == nil {
		return 0
	}
	if proc == "" {
		return prediction.PlanNS
	}

	for _, single := range prediction.Singles {
		if single.Proc == proc {
			return single.NS
		}
	}
	return 0
}

// report shows the decisions of the plan, its times beside those of single processors, and the bandwidth at which it
// decodes. list[0] is the plan itself; the others are those of single processors.
func report(
	ui *cli.Streams, base *planir.Plan, m *models.Model, soc *socs.SoC, list []*candidate, options *Options,
	virtual bool,
) error {
	planview.ShowDecisions(ui, base, soc)
	ui.Printf("\n%s, prompt of %d tokens, %d decoded, medians of %s:\n", howMeasured(virtual),
		options.PromptLen, options.Gen, interleaved(options.Rounds))
	ui.Table([]string{"candidate", "phase", ">median ms", ">95 % interval", ">predicted ms", ">error",
		">best single / this"}, candidateRows(list))

	bytes := base.DecodeBytes()
	doc := map[string]any{
		"soc": base.SoC.Name, "simulated": virtual, "prompt_len": options.PromptLen, "gen": options.Gen,
		"rounds": options.Rounds, "candidates": list, "weight_bytes_per_token": bytes,
	}
	rate := float64(bytes) / list[0].Decode.Median // bytes per nanosecond are GB/s
	ui.Printf("\ndecode reads %.1f MB of weights a token: %.1f GB/s", float64(bytes)/1e6, rate)
	if soc != nil && !virtual {
		showJoint(ui, doc, base, soc, list, bytes)
	}
	ui.Printf("\n")
	return ui.Result(doc)
}

// candidateRows returns the times of every plan, first for prefill and then for decode, beside its prediction and the
// best single processor.
func candidateRows(list []*candidate) (rows [][]string) {
	ms := func(ns float64) string { return fmt.Sprintf("%.3f", ns/1e6) }
	for _, phase := range []struct {
		name string
		of   func(*candidate) (stat.Summary, int64)
	}{
		{"prefill", func(c *candidate) (stat.Summary, int64) { return c.Prefill, c.PrefillNS }},
		{"decode", func(c *candidate) (stat.Summary, int64) { return c.Decode, c.DecodeNS }},
	} {
		best := 0.0
		for _, candidate := range list[1:] {
			if times, _ := phase.of(candidate); best == 0 || times.Median < best {
				best = times.Median
			}
		}
		for _, candidate := range list {
			times, predicted := phase.of(candidate)
			row := []string{candidate.Name, phase.name, ms(times.Median), msInterval(times), "-", "-", ratio(best, times.Median)}
			if predicted > 0 {
				row[4] = ms(float64(predicted))
				row[5] = fmt.Sprintf("%+.0f %%", 100*(float64(predicted)/times.Median-1))
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// showJoint compares the decode bandwidth with what the processors of the plan's decode reach together, if that was
// measured. The plan's bound is the less of two speeds: that of all processors by themselves, added up, and that at
// which memory delivers the weights.
func showJoint(ui *cli.Streams, doc map[string]any, base *planir.Plan, soc *socs.SoC, list []*candidate, bytes int64) {
	used := decodeProcs(base)
	joint, ok := soc.JointGBps(used...)
	if !ok {
		return
	}

	sum := 0.0
	for _, candidate := range list[1:] {
		if slices.Contains(used, candidate.Name) {
			sum += 1e9 / candidate.Decode.Median
		}
	}

	rate := float64(bytes) / list[0].Decode.Median
	bound := min(sum, joint*1e9/float64(bytes))
	tps := 1e9 / list[0].Decode.Median
	ui.Printf(", %.0f %% of the joint %.1f GB/s\nplan %.2f tokens/s, %.2f of min(sum of singles %.2f, joint "+
		"bandwidth / bytes %.2f)", 100*rate/joint, joint, tps, tps/bound, sum, joint*1e9/float64(bytes))
	doc["joint_gbps"], doc["share_of_joint"], doc["share_of_bound"] = joint, rate/joint, tps/bound
}

// decodeProcs returns the processors that a plan decodes one token with, in the order in which its program names them.
func decodeProcs(plan *planir.Plan) (names []string) {
	for _, program := range plan.Program.Programs {
		if program.Rows != 1 {
			continue
		}
		for _, section := range program.Sections {
			for _, lane := range section.Lanes {
				if !slices.Contains(names, lane.Proc) {
					names = append(names, lane.Proc)
				}
			}
		}
	}
	return names
}

// ratio formats a over b.
func ratio(a, b float64) string { return fmt.Sprintf("%.2f", a/b) }
