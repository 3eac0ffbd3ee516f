package papers

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/cmd/internal/clock"
	"github.com/hetc/hetc/cmd/internal/precision"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/quality"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/explain"
	"github.com/hetc/hetc/solver/workload"
)

// moeSoC is a simulated SoC of the paper that computes nothing: PhiMoE has no weights here, and only times are wanted.
func moeSoC(soc *socs.SoC) { clock.TimesOnly(soc, true) }

// moeBaselines are the paper's (sec. 5.1), with what is known of where they place operators.
var moeBaselines = []struct {
	name, note string
	within     func(chunk int) restriction
}{
	{"CoreML(CPU)", "everything on the CPU", func(int) restriction { return only("cpu") }},
	{"CoreML(naive)", "a graph of each expert on the NPU that holds all rows of a chunk, everything else where it is " +
		"fastest: an assumption, the paper says that Core ML decides, and that experts may go to the NPU", naive},
	{"ANEMLL", "experts on the CPU, everything else where it is fastest",
		func(int) restriction { return only("cpu", "npu") }},
}

// naive gives every expert a graph of its own that any routing fits.
func naive(chunk int) restriction {
	return both(tiered("all", "ungrouped"), reserved(chunk))
}

// reserved has slots of so many rows and no others.
func reserved(rows int) restriction {
	return func(in *solver.Input) {
		in.Workload = workload.Edited(in.Workload, func(work *workload.Workload) {
			work.Experts = workload.Experts{Tiers: 1, Capacities: []int{rows}}
		})
	}
}

// moePrompts solves PhiMoE for prompts in the paper's chunks, executes them on the virtual clock, and compares the
// paper's baselines with solve's tiers.
func moePrompts(ctx context.Context, rows *sheet) error {
	for _, run := range []struct {
		prompt, chunk        int
		time, energy, cycles string // entries of the printed numbers
	}{
		{1024, 256, "r_prefill_1024", "", "r_cpu_cycles_1024"},
		{1024, 512, "r_prefill_1024", "r_energy_1024_chunk512", "r_cpu_cycles_1024"},
		{4096, 512, "r_prefill_4096", "r_energy_4096", ""},
		{4096, 1024, "r_prefill_4096", "r_energy_4096", ""},
	} {
		work := moeWorkload(run.chunk)
		work.Context = run.prompt + run.chunk
		work.Prompts = workload.Prompts{{Tokens: run.prompt, Share: 1}}
		from, err := newChain(ctx, "apple-m2-ultra", "phi-3.5-moe", work, moeSoC)
		if err != nil {
			return err
		}
		solved, err := moeCost(ctx, from, run.prompt, run.chunk, tiered("optimal"))
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%d_in_%d", run.prompt, run.chunk)
		rows.add(Executed, name+"/virtual_over_predicted", nil, solved.ns/solved.predicted,
			"x: the prompt with tiers for the least time on the virtual clock, over what was predicted")
		rows.add(Solved, name+"/mj_per_token", "52 to 137", 1e3*solved.joules/float64(run.chunk),
			"power of the catalog's processors times their busy time, of which the CPU's 60 W are assumed")
		for _, baseline := range moeBaselines {
			cost, err := moeCost(ctx, from, run.prompt, run.chunk, baseline.within(run.chunk))
			if err != nil {
				return fmt.Errorf("%s: %w", baseline.name, err)
			}
			at := name + "/" + baseline.name
			chunk := fmt.Sprintf("chunk_%d", run.chunk)
			rows.add(Executed, at+"/time", moe(run.time).at("values", chunk, baseline.name).num(), cost.ns/solved.ns,
				"x of the tiers for the least time, both on the virtual clock; %s", baseline.note)
			var energy, cycles any
			if run.energy != "" {
				energy = span(moe(run.energy).at("values", baseline.name))
			}
			if run.cycles != "" {
				cycles = moe(run.cycles).at("values", chunk, baseline.name).num()
			}
			rows.add(Solved, at+"/energy", energy, cost.joules/solved.joules,
				"x, of a chunk at the prompt's mean position; ranges are of several chunk sizes")
			rows.add(Solved, at+"/cpu_time", cycles, cost.cpu/solved.cpu, "x, busy time; the paper counts cycles")
		}
	}
	return nil
}

// moeTable5 prices and executes PhiMoE's experts in groups of the table's sizes and rows.
func moeTable5(ctx context.Context, rows *sheet) error {
	const chunk = 256
	model, err := models.Open("phi-3.5-moe")
	if err != nil {
		return err
	}
	expert := model.ExpertBytes([]op.Scheme{op.A32W32, op.A32W32})
	from := map[float64]*chain{} // by the experts that a graph holds
	times := map[[2]float64]float64{}
	for _, point := range moePoints() {
		group, capacity := point[0], point[1]
		if from[group] == nil {
			from[group], err = newChain(ctx, "apple-m2-ultra", model.Name, moeWorkload(chunk), func(soc *socs.SoC) {
				moeSoC(soc)
				soc.Processor("npu").GraphBytes = int64(group) * expert
			})
			if err != nil {
				return err
			}
		}
		plan, err := from[group].solve(ctx, both(tiered("all"), reserved(int(capacity))))
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%vx%v", group, capacity)
		tiers := plan.TiersOf(chunk)
		if tiers == nil || tiers.Groups[0].Slots != int(group) || tiers.Groups[0].Rows != int(capacity) {
			return fmt.Errorf("%s: the plan has groups %q", name, tiers.Shape())
		}
		ms := float64(tiers.Groups[0].ExpectNS) / 1e6 / (group * capacity)
		times[[2]float64{group, capacity}] = ms
		rows.noted(Solved, name+"/ms_per_row", point[2], ms, "ms_per_row")
		predicted, err := plan.promptNS(chunk)
		if err != nil {
			return err
		}
		executed, err := from[group].promptOnClock(ctx, plan, chunk)
		if err != nil {
			return err
		}
		rows.add(Executed, name+"/virtual_over_predicted", nil, executed/predicted,
			"x: a chunk of %d tokens with slots for all experts on the virtual clock, over what was predicted", chunk)
	}
	for _, ratio := range moeRatios() {
		rows.add(Solved, ratio.name, ratio.printed.num(), times[ratio.slow]/times[ratio.fast],
			"x: a row in groups of %vx%v over one in groups of %vx%v", ratio.slow[0], ratio.slow[1], ratio.fast[0],
			ratio.fast[1])
	}
	return nil
}

// span returns a printed number, or a printed range as text.
func span(printed value) any {
	if list, ok := printed.v.([]any); ok && len(list) == 2 {
		return fmt.Sprintf("%v to %v", printed.at(0).num(), printed.at(1).num())
	}
	return printed.num()
}

// cost is what a prompt takes in ns, on the virtual clock and as predicted, and a chunk of it in joules and in ns of
// the CPU.
type cost struct{ ns, predicted, joules, cpu float64 }

// moeCost solves within a restriction, and predicts and executes a prompt.
func moeCost(ctx context.Context, from *chain, prompt, chunk int, within restriction) (out cost, err error) {
	plan, err := from.solve(ctx, within)
	if err != nil {
		return cost{}, err
	}
	if out.predicted, err = plan.promptNS(prompt); err != nil {
		return cost{}, err
	}
	if out.ns, err = from.promptOnClock(ctx, plan, prompt); err != nil {
		return cost{}, err
	}
	program := fmt.Sprintf("prefill@%d", chunk)
	for i := range plan.Predictions {
		if plan.Predictions[i].Program == program {
			out.joules = float64(plan.Predictions[i].EnergyUJ) / 1e6
		}
	}
	for _, times := range explain.TimesOf(plan.Plan) {
		for _, busy := range times.Busy {
			if times.Program == program && busy.Proc == "cpu" {
				out.cpu = float64(busy.NS)
			}
		}
	}
	return out, nil
}

// The windows of validation text that NPUMoE's items read: every other one calibrates, those between are executed.
const (
	moeChunk   = 256
	moeWindows = 32
)

// moeTrial is a trained mixture with a text, the windows of it that say what is routed, those between, and a text of
// another kind.
type moeTrial struct {
	dir                        string
	model                      *trial.Model
	text, profiled, alike, far *trial.Text
}

// openMoE opens tiny-moe-kjv, nil where --models names no folder that has it, as a row then says. The text of another
// kind is what is transcribed of this paper: English and numbers, where the model was trained on a book.
func openMoE(ctx context.Context, rows *sheet) (*moeTrial, error) {
	dir, ok := rows.model("tiny-moe-kjv")
	if !ok {
		return nil, nil
	}
	model, text, err := openTrial(ctx, dir, moeWindows, moeChunk)
	if err != nil {
		return nil, err
	}
	out := &moeTrial{dir: dir, model: model, text: text, profiled: &trial.Text{SHA256: text.SHA256},
		alike: &trial.Text{SHA256: text.SHA256}}
	for i, window := range text.Windows {
		half := out.profiled
		if i%2 == 0 {
			half = out.alike
		}
		half.Windows = append(half.Windows, window)
	}
	other, err := data.ReadFile("data/npumoe.yaml")
	if err == nil {
		out.far, err = model.Cut(other, moeWindows/2, moeChunk)
	}
	if err != nil {
		model.Close()
		return nil, err
	}
	return out, nil
}

// moeExecuted traces the routers of tiny-moe-kjv, solves with those loads, and executes other windows of the text, and
// a text of another kind, with the paper's tiers and with dynamic experts on simulated SoCs.
func moeExecuted(ctx context.Context, rows *sheet) error {
	trained, err := openMoE(ctx, rows)
	if trained == nil {
		return err
	}
	defer trained.model.Close()
	loads, err := trial.TraceLoads(ctx, trained.model, trained.profiled, precision.LoadTokens)
	if err != nil {
		return err
	}
	for _, soc := range []string{"apple-m2-max", "apple-m2-ultra"} {
		from, err := newChain(ctx, soc, trained.dir, moeWorkload(moeChunk), nil)
		if err != nil {
			return err
		}
		var logits [2][]float32
		for i, way := range []string{"dynamic", "paper"} { // for the least time so small a model has no tiers
			within := only("cpu", "npu")
			if way == "paper" {
				within = both(within, func(in *solver.Input) {
					in.Loads, in.TierRule = loads, solver.TierRule{Slots: way}
				})
			}
			if logits[i], err = from.moeWay(ctx, rows, soc+"/"+way, trained, within); err != nil {
				return fmt.Errorf("%s on %s: %w", way, soc, err)
			}
		}
		most := 0.0
		for i, logit := range logits[0] {
			most = max(most, math.Abs(float64(logit-logits[1][i])))
		}
		rows.add(Executed, soc+"/logits_differ_by", nil, most,
			"at most, tiers beside dynamic experts: a row computes the same in a slot")
	}
	return nil
}

// moeWay solves and executes one way, and returns the logits behind the last window of the text of the same kind.
func (c *chain) moeWay(ctx context.Context, rows *sheet, name string, trained *moeTrial, within restriction) ([]float32,
	error) {
	plan, err := c.solve(ctx, within)
	if err != nil {
		return nil, err
	}
	predicted, err := plan.promptNS(moeChunk)
	if err != nil {
		return nil, err
	}
	alike, err := c.execute(ctx, plan, trained.alike.Windows)
	if err != nil {
		return nil, err
	}
	rows.add(Executed, name+"/predicted_us", nil, predicted/1e3, "a chunk of %d tokens of tiny-moe-kjv", moeChunk)
	rows.add(Executed, name+"/virtual_us", nil, alike.ns/1e3,
		"the same on the virtual clock, windows of its validation text between those that were profiled")
	tiers := plan.TiersOf(moeChunk)
	if tiers == nil {
		return alike.last, nil
	}
	slots, padding, overflow := tierShares(tiers, c.input.Model.ExpertsPerToken)
	rows.add(Solved, name+"/experts_on_npu", nil, slots, "of %d in a layer", tiers.Experts)
	far, err := c.execute(ctx, plan, trained.far.Windows)
	if err != nil {
		return nil, err
	}
	for _, text := range []struct {
		name, note string
		met        *moeRouting
	}{
		{"expected", "by the profiled windows", &moeRouting{padding: padding, overflow: overflow}},
		{"same_text", "executed on windows between those", &alike.moeRouting},
		{"other_text", "executed on a text of another kind, what hetc has transcribed of this paper", &far.moeRouting},
	} {
		rows.add(Executed, name+"/"+text.name+"/padding_percent", "31.7 to 37.5", text.met.padding,
			"of the rows that slots reserve, %s", text.note)
		rows.add(Executed, name+"/"+text.name+"/overflow_percent", "10 to 20", text.met.overflow,
			"of the routed rows, which the CPU computes, %s; the paper drops them", text.note)
		if text.name != "expected" {
			rows.add(Executed, name+"/"+text.name+"/stale_layers", nil, text.met.stale,
				"of %d, in which routing drifts from the plan's farther than chance explains, so that hetrun --stats "+
					"asks for another calibration; at most by %.3g points", len(tiers.Layers), text.met.drift)
		}
	}
	return alike.last, nil
}

// moeRouting is what became of routed rows, in percent of the reserved and of the routed ones.
type moeRouting struct {
	padding, overflow, drift float64 // the drift of the layer that drifts most
	stale                    int     // layers
}

// executed is the mean time of a window on the virtual clock in ns, the logits behind the last one, and its routing.
type executed struct {
	moeRouting
	ns   float64
	last []float32
}

// execute runs a plan on windows of text with the SoC's simulated processors.
func (c *chain) execute(ctx context.Context, plan *solvedPlan, windows []quality.Window) (out executed, err error) {
	content, err := emit.NewCalibrated(ctx, plan.Plan, c.input.Model, c.input.Calibration,
		[]driver.Compiler{sim.NewCompiler(c.input.SoC)})
	if err != nil {
		return out, err
	}
	defer content.Close()
	machine, err := executor.Open(ctx, plan.Plan, content,
		executor.Options{Drivers: []driver.Driver{sim.New(c.input.SoC)}})
	if err != nil {
		return out, err
	}
	defer machine.Close()
	for _, window := range windows {
		err := machine.Do(ctx, func(control *executor.Control) error {
			control.Truncate(0, 0)
			took, err := control.Forward(window.Tokens, executor.WantLast, func(_ int, logits []float32) error {
				out.last = slices.Clone(logits)
				return nil
			})
			out.ns += float64(took.NS) / float64(len(windows))
			return err
		})
		if err != nil {
			return out, err
		}
	}
	var routed, moved, over, reserved int64
	for _, stat := range machine.Experts() {
		routed, moved, over, reserved = routed+stat.Routed, moved+stat.Moved, over+stat.Overflow, reserved+stat.Reserved
		out.drift = max(out.drift, 100*stat.Drift())
		if stat.Stale() {
			out.stale++
		}
	}
	out.padding = 100 * (1 - float64(moved)/float64(max(1, reserved)))
	out.overflow = 100 * float64(over) / float64(max(1, routed))
	return out, nil
}

// moeDrops measures what the paper's shares of dropped rows cost tiny-moe-kjv, by the paper's rule and by another one.
func moeDrops(ctx context.Context, rows *sheet) error {
	trained, err := openMoE(ctx, rows)
	if trained == nil {
		return err
	}
	defer trained.model.Close()
	results, err := trial.MeasureDrops(ctx, trained.model, trial.DropOptions{Text: trained.text,
		Shares: []float64{0.1, 0.2}, Rules: []string{op.SalienceNorm, op.SalienceWeight}})
	if err != nil {
		return err
	}
	printed := moe("r_accuracy_details").at("values", "loss_about").num()
	by := map[string]string{op.SalienceNorm: "the norm of what attention computed, as in the paper",
		op.SalienceWeight: "the router's weight, hetc's default"}
	for _, result := range results {
		rows.add(Executed, fmt.Sprintf("%s_%v_percent", result.Salience, 100*result.Share), printed,
			100*(result.PerplexityRatio.Mean-1),
			"%% of perplexity, where the paper has accuracy; %.3g %% of the rows are dropped by %s", 100*result.Dropped,
			by[result.Salience])
	}
	return nil
}

// moeCalibration compares the busiest experts on one text with those on others.
func moeCalibration(ctx context.Context, rows *sheet) error {
	printed := moe("r_calibration").at("values")
	paper := map[int]any{4: printed.at("unseen_top4_prefill").num(), 8: printed.at("unseen_top8_prefill").num()}
	loads := workload.TracedExample()
	for _, count := range []int{2, 4, 8} {
		rows.add(Executed, fmt.Sprintf("top_%d_percent", count), paper[count],
			overlap(loads, loads, count, [2]int{0, 1}),
			"median over layers in the paper, mean here: routing of tiny-moe-kjv (16 experts, 2 a token) on one half "+
				"of a text and the other; one book, where the paper has data sets")
	}
	trained, err := openMoE(ctx, rows)
	if trained == nil {
		return err
	}
	defer trained.model.Close()
	far, err := trial.TraceLoads(ctx, trained.model, trained.far, precision.LoadTokens)
	if err != nil {
		return err
	}
	rows.noted(Executed, "cross_dataset_percent", printed.at("cross_dataset_prefill").num(),
		overlap(loads, far, 4, [2]int{0, 0}), "cross_dataset_percent")
	return nil
}

// overlap returns how many of the busiest experts in a half of some loads are among those in a half of others: percent,
// mean over layers.
func overlap(some, others *workload.Loads, count int, half [2]int) float64 {
	var shares []float64
	for i := range some.Layers {
		first, second := busiest(&some.Layers[i], half[0], count), busiest(&others.Layers[i], half[1], count)
		found := 0
		for _, expert := range first {
			if slices.Contains(second, expert) {
				found++
			}
		}
		shares = append(shares, 100*float64(found)/float64(count))
	}
	return mean(shares)
}
