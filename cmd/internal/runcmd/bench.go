package runcmd

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/executor"
)

// timing is the document of --bench --json. Times are medians over rounds, in microseconds.
type timing struct {
	SoC       string `json:"soc"`
	Simulated bool   `json:"simulated"`
	// processors that are emulators: no time is one of a device
	Emulated   []string        `json:"emulated,omitempty"`
	Evidence   planir.Evidence `json:"evidence"` // what stands behind the bundle's plan
	PromptLen  int             `json:"prompt_len"`
	Gen        int             `json:"gen"`
	Rounds     int             `json:"rounds"`
	PrefillUS  float64         `json:"prefill_us"`
	DecodeUS   float64         `json:"decode_us"`
	PrefillTPS float64         `json:"prefill_tokens_per_s"`
	DecodeTPS  float64         `json:"decode_tokens_per_s"`
	// packed matrices that one decoded token reads, and at which rate it does (1e9 byte/s)
	WeightBytes int64              `json:"weight_bytes_per_token,omitempty"`
	DecodeGBps  float64            `json:"decode_gbps,omitempty"`
	PredictUS   map[string]float64 `json:"predicted_us,omitempty"`
	Prefills    []float64          `json:"prefill_samples_us"` // of every round
	Decodes     []float64          `json:"decode_samples_us"`  // of a token, mean of every round
	Batches     []batchTime        `json:"batches,omitempty"`  // of a plan that decodes several sequences together
	Lanes       []laneTime         `json:"lanes"`
	Account     []kindTime         `json:"account"`
	// of every step, over all rounds
	Steps []executor.StepStat `json:"steps"`
}

// batchTime is what decoding sequences together takes, each after a prompt; 1 is measured beside the others.
type batchTime struct {
	Sequences int       `json:"sequences"`
	StepUS    float64   `json:"step_us"` // median of one token of each
	TPS       float64   `json:"tokens_per_s"`
	PredictUS float64   `json:"predicted_us,omitempty"`
	Samples   []float64 `json:"samples_us"` // of a step, mean of every round
}

// laneTime is how a lane spent the measured rounds.
type laneTime struct {
	Program string  `json:"program"`
	Proc    string  `json:"proc"`
	RunUS   float64 `json:"run_us"`  // in steps, per execution of the program
	WaitUS  float64 `json:"wait_us"` // for other lanes' flags
}

// kindTime is what all steps of a kind take of a program's lanes, or waiting does.
type kindTime struct {
	Program string  `json:"program"`
	Kind    string  `json:"kind"`
	US      float64 `json:"us"` // of all lanes together, per execution of the program
	Share   float64 `json:"share"`
}

// runBench measures prefill and decode in rounds, and shows times by lane and step.
func (o *options) runBench(ctx context.Context, ui *cli.Streams, machine *executor.Machine) error {
	times, err := measureRounds(ctx, machine, o.promptLen, o.gen, o.rounds)
	if err != nil {
		return err
	}
	plan, steps := machine.Plan(), machine.Stats()
	var batches []batchTime
	if len(plan.Batches) > 0 && o.gen > 0 {
		if batches, err = measureBatches(ctx, machine, o.promptLen, o.gen, o.rounds); err != nil {
			return err
		}
		steps = withBatches(plan, steps, machine.Stats())
	}
	out := timing{Batches: batches, SoC: plan.SoC.Name, Simulated: times.Virtual, Emulated: machine.Emulated(),
		Evidence: plan.Evidence(), PromptLen: o.promptLen, Gen: o.gen, Rounds: o.rounds,
		PrefillUS: median(times.PrefillNS) / 1e3, DecodeUS: median(times.DecodeNS) / 1e3,
		PredictUS: map[string]float64{}, Steps: steps}
	// Rates follow from medians, so that one disturbed round changes neither.
	out.PrefillTPS = float64(o.promptLen) / out.PrefillUS * 1e6
	if out.DecodeUS > 0 {
		out.DecodeTPS = 1e6 / out.DecodeUS
		out.WeightBytes = plan.DecodeBytes()
		out.DecodeGBps = float64(out.WeightBytes) / out.DecodeUS / 1e3
	}
	for _, pr := range plan.Predictions {
		out.PredictUS[pr.Program] = float64(pr.PlanNS) / 1e3
	}
	for _, ns := range times.PrefillNS {
		out.Prefills = append(out.Prefills, float64(ns)/1e3)
	}
	// each round decodes gen tokens: one mean per round
	for round := range slices.Chunk(times.DecodeNS, max(1, o.gen)) {
		sum := int64(0)
		for _, ns := range round {
			sum += ns
		}
		out.Decodes = append(out.Decodes, float64(sum)/1e3/float64(len(round)))
	}
	out.Lanes = lanes(out.Steps)
	out.Account = account(out.Steps)
	o.showTimes(ui, &out)
	if o.steps {
		printSteps(ui, out.Steps)
	}
	return ui.Result(out)
}

// showTimes prints rates, batches, and what lanes and operators took.
func (o *options) showTimes(ui *cli.Streams, out *timing) {
	note := " (measured)"
	if out.Simulated {
		note = " (simulated)"
	}
	if len(out.Emulated) > 0 {
		note = " (emulated, not device time)"
	}
	ui.Printf("prefill of %d tokens: %.1f ms, %.1f tokens/s%s\n", o.promptLen, out.PrefillUS/1e3, out.PrefillTPS, note)
	if o.gen > 0 {
		ui.Printf("decode: %.3f ms a token, %.1f tokens/s%s\n", out.DecodeUS/1e3, out.DecodeTPS, note)
		if out.WeightBytes > 0 {
			ui.Printf("decode reads %.1f MB of weights a token: %.1f GB/s%s\n", float64(out.WeightBytes)/1e6,
				out.DecodeGBps, note)
		}
	}
	if len(out.Batches) > 0 {
		var rows [][]string
		for _, timing := range out.Batches {
			predicted := "-"
			if timing.PredictUS > 0 {
				predicted = fmt.Sprintf("%.3f", timing.PredictUS/1e3)
			}
			rows = append(rows, []string{fmt.Sprint(timing.Sequences), fmt.Sprintf("%.3f", timing.StepUS/1e3),
				predicted, fmt.Sprintf("%.1f", timing.TPS), fmt.Sprintf("%.2f", timing.TPS/out.Batches[0].TPS)})
		}
		ui.Table([]string{">decoded together", ">ms a step", ">predicted ms", ">tokens/s", ">times one"}, rows)
	}
	rows := make([][]string, len(out.Lanes))
	for i, time := range out.Lanes {
		rows[i] = []string{time.Program, time.Proc, fmt.Sprintf("%.1f", time.RunUS), fmt.Sprintf("%.1f", time.WaitUS)}
	}
	ui.Table([]string{"program", "lane", ">in steps us", ">waiting us"}, rows)
	rows = nil
	for _, time := range out.Account {
		rows = append(rows, []string{time.Program, time.Kind, fmt.Sprintf("%.1f", time.US),
			fmt.Sprintf("%.1f %%", 100*time.Share)})
	}
	ui.Table([]string{"program", "operators", ">us", ">share"}, rows)
}

// lanes adds up steps per program and processor, per execution of the program.
func lanes(steps []executor.StepStat) []laneTime {
	type key struct{ program, proc string }
	var out []laneTime
	index := map[key]int{}
	// Per execution of the program: a short prefill runs twice a round.
	runs := executions(steps)
	for _, st := range steps {
		of := key{st.Program, st.Proc}
		i, ok := index[of]
		if !ok {
			i = len(out)
			index[of] = i
			out = append(out, laneTime{Program: st.Program, Proc: st.Proc})
		}
		out[i].RunUS += float64(st.RunNS) / 1e3 / float64(runs[st.Program])
		out[i].WaitUS += float64(st.WaitNS) / 1e3 / float64(runs[st.Program])
	}
	return out
}

// executions of each program: those of its rarest step.
func executions(steps []executor.StepStat) map[string]int64 {
	runs := map[string]int64{}
	for _, st := range steps {
		if n, ok := runs[st.Program]; !ok || st.Runs < n {
			runs[st.Program] = st.Runs
		}
	}
	return runs
}

// account adds up steps per program and kind of operator, the largest first, and then waiting.
func account(steps []executor.StepStat) []kindTime {
	// steps are sorted by program: add one run of equal programs after the other
	runs := executions(steps)
	var out []kindTime
	for i := 0; i < len(steps); {
		program := steps[i].Program
		ns, wait, total := map[string]int64{}, int64(0), int64(0)
		for ; i < len(steps) && steps[i].Program == program; i++ {
			ns[string(steps[i].Kind)] += steps[i].RunNS
			wait += steps[i].WaitNS
			total += steps[i].RunNS + steps[i].WaitNS
		}
		entry := func(kind string, ns int64) kindTime {
			return kindTime{program, kind, float64(ns) / 1e3 / float64(runs[program]),
				float64(ns) / float64(max(total, 1))}
		}
		kinds := slices.SortedFunc(maps.Keys(ns),
			func(a, b string) int { return cmp.Or(cmp.Compare(ns[b], ns[a]), cmp.Compare(a, b)) })
		for _, k := range kinds {
			out = append(out, entry(k, ns[k]))
		}
		if wait > 0 {
			out = append(out, entry("waiting", wait))
		}
	}
	return out
}

// Times are samples of one machine: one prefill time a round, one decode time a token.
type Times struct {
	PrefillNS []int64
	RanNS     []int64 // of every prefill, also of those before measured ones: what the machine's statistics count
	DecodeNS  []int64
	Virtual   bool
}

// measureRounds runs rounds of a prefill of promptLen tokens and gen decoded tokens after one round that is
// not counted.
func measureRounds(ctx context.Context, m *executor.Machine, promptLen, gen, rounds int) (Times, error) {
	var times Times
	for round := -1; round < rounds; round++ {
		if round == 0 {
			m.ResetStats()
		}
		one, err := Round(ctx, m, promptLen, gen)
		if err != nil {
			return times, err
		}
		if round >= 0 {
			times.PrefillNS = append(times.PrefillNS, one.PrefillNS...)
			times.DecodeNS = append(times.DecodeNS, one.DecodeNS...)
		}
		times.Virtual = one.Virtual
	}
	return times, nil
}

// shortNS is below which a prefill runs once more before it is counted: 100 ms.
const shortNS = 100_000_000

// Round measures one prefill and gen decoded tokens on an empty cache.
func Round(ctx context.Context, machine *executor.Machine, promptLen, gen int) (Times, error) {
	var times Times
	if limit := machine.Plan().MaxContext; promptLen > limit || gen > limit-promptLen {
		return times, diag.New(diag.ClassUsage, "--prompt-len %d and --gen %d exceed the plan's context of %d",
			promptLen, gen, limit).
			WithHint("measure fewer tokens, or, where the model has more positions, solve with a larger context in " +
				"the workload")
	}
	prompt := BenchPrompt(promptLen, machine.Vocabulary(), 0)
	// The first forward pass fills the cache with the prompt; then gen tokens, one at a time.
	machine.Reset()
	err := machine.Do(ctx, func(control *executor.Control) error {
		one := []int32{0}
		// Greedy tokens: the values do not matter, but they must be ids of the vocabulary.
		next := func(_ int, logits []float32) error {
			one[0] = int32(argmax(logits))
			return nil
		}
		timing, err := control.Forward(prompt, executor.WantLast, next)
		if err != nil {
			return err
		}
		times.RanNS = append(times.RanNS, timing.NS)
		if timing.NS < shortNS && !timing.Virtual {
			// What ran before has left its data in the caches and its lanes are still going to sleep: a short
			// program would mostly measure that.
			machine.Reset()
			if timing, err = control.Forward(prompt, executor.WantLast, next); err != nil {
				return err
			}
			times.RanNS = append(times.RanNS, timing.NS)
		}
		times.PrefillNS, times.Virtual = append(times.PrefillNS, timing.NS), timing.Virtual
		for range gen {
			if timing, err = control.Forward(one, executor.WantLast, next); err != nil {
				return err
			}
			times.DecodeNS = append(times.DecodeNS, timing.NS)
		}
		return nil
	})
	return times, err
}

// measureBatches measures steps of one sequence and of every batch of the plan, each after a prompt of that length.
// Sizes take turns in every round, so that a drift of the clock hits all alike. A round before is not counted.
func measureBatches(ctx context.Context, machine *executor.Machine, promptLen, gen, rounds int) ([]batchTime, error) {
	sizes := batchSizes(machine.Plan())
	steps := make([][]int64, len(sizes)) // ns of every step of a size
	tokens := make([]executor.Token, machine.Sequences())
	machine.Reset()
	err := machine.Do(ctx, func(control *executor.Control) error {
		next := func(i int, logits []float32) error {
			tokens[i].ID = int32(argmax(logits))
			return nil
		}
		// Each sequence has a prompt of its own.
		begin := make([]int32, len(tokens))
		for i := range tokens {
			tokens[i].Sequence = i
			if _, err := control.Extend(i, BenchPrompt(promptLen, machine.Vocabulary(), i), executor.WantLast,
				func(_ int, logits []float32) error { return next(i, logits) }); err != nil {
				return err
			}
			begin[i] = tokens[i].ID
		}
		for round := -1; round < rounds; round++ {
			if round == 0 {
				machine.ResetStats()
			}
			for at := range sizes {
				// The prompts stay: only what was decoded is dropped.
				for i := range tokens {
					control.Truncate(i, promptLen)
					tokens[i].ID = begin[i]
				}
				sum := int64(0)
				for range gen {
					timing, err := control.Step(tokens[:sizes[at].Sequences], next)
					if err != nil {
						return err
					}
					sum += timing.NS
					if round >= 0 {
						steps[at] = append(steps[at], timing.NS)
					}
				}
				if round >= 0 {
					sizes[at].Samples = append(sizes[at].Samples, float64(sum)/1e3/float64(gen))
				}
			}
		}
		return nil
	})
	for at := range sizes {
		sizes[at].StepUS = median(steps[at]) / 1e3
		sizes[at].TPS = float64(sizes[at].Sequences) * 1e6 / max(sizes[at].StepUS, 1e-3)
	}
	return sizes, err
}

// withBatches adds the steps of programs for batches to those of the rounds without batches, in the order of programs.
// Beside batches the other programs ran as well, for prompts and for one sequence, which no round counts.
func withBatches(plan *planir.Plan, rounds, batched []executor.StepStat) []executor.StepStat {
	place := map[string]int{} // of a program
	for i := range plan.Program.Programs {
		place[plan.Program.Programs[i].Name] = i
	}
	counted := map[string]bool{} // programs
	for _, step := range rounds {
		counted[step.Program] = true
	}
	out := slices.Clone(rounds)
	for _, step := range batched {
		if !counted[step.Program] {
			out = append(out, step)
		}
	}
	slices.SortStableFunc(out, func(a, b executor.StepStat) int { return place[a.Program] - place[b.Program] })
	return out
}

// batchSizes lists one sequence and every batch of a plan, with predicted times where the plan has them.
func batchSizes(plan *planir.Plan) (sizes []batchTime) {
	together := map[string]int{} // sequences of programs that decode, by name
	for _, program := range plan.Program.Programs {
		if program.Phase == "decode" {
			together[program.Name] = program.Rows
		}
	}
	for _, sequences := range append([]int{1}, plan.Batches...) {
		size := batchTime{Sequences: sequences}
		for _, prediction := range plan.Predictions {
			if together[prediction.Program] == sequences {
				size.PredictUS = float64(prediction.PlanNS) / 1e3
			}
		}
		sizes = append(sizes, size)
	}
	return sizes
}

// BenchPrompt returns a prompt of a length, another one for every number. Times do not depend on the text, only on its
// length.
func BenchPrompt(length, vocab, number int) []int32 {
	prompt := make([]int32, length)
	for i := range prompt {
		// A prime stride, so that neighbouring tokens differ as those of a text do.
		prompt[i] = int32((i*7919 + number + 1) % vocab)
	}
	return prompt
}
