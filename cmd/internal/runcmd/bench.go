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
	SoC        string              `json:"soc"`
	Simulated  bool                `json:"simulated"`
	Emulated   []string            `json:"emulated,omitempty"` // processors that are emulators: no time is one of a device
	Evidence   planir.Evidence     `json:"evidence"`           // what stands behind the bundle's plan
	PromptLen  int                 `json:"prompt_len"`
	Gen        int                 `json:"gen"`
	Rounds     int                 `json:"rounds"`
	PrefillUS  float64             `json:"prefill_us"`
	DecodeUS   float64             `json:"decode_us"`
	PrefillTPS float64             `json:"prefill_tokens_per_s"`
	DecodeTPS  float64             `json:"decode_tokens_per_s"`
	PredictUS  map[string]float64  `json:"predicted_us,omitempty"`
	Prefills   []float64           `json:"prefill_samples_us"` // of every round
	Decodes    []float64           `json:"decode_samples_us"`  // of a token, mean of every round
	Batches    []batchTime         `json:"batches,omitempty"`  // of a plan that decodes several sequences together
	Lanes      []laneTime          `json:"lanes"`
	Account    []kindTime          `json:"account"`
	Steps      []executor.StepStat `json:"steps"`
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

func (o *options) runBench(ctx context.Context, s *cli.Streams, m *executor.Machine) error {
	r, err := Measure(ctx, m, o.promptLen, o.gen, o.rounds)
	if err != nil {
		return err
	}
	p := m.Plan()
	var batches []batchTime
	if len(p.Batches) > 0 && o.gen > 0 {
		if batches, err = measureBatches(ctx, m, o.promptLen, o.gen, o.rounds); err != nil {
			return err
		}
	}
	out := timing{Batches: batches, SoC: p.SoC.Name, Simulated: r.Virtual, Emulated: m.Emulated(), Evidence: p.Evidence(), PromptLen: o.promptLen, Gen: o.gen, Rounds: o.rounds,
		PrefillUS: median(r.PrefillNS) / 1e3, DecodeUS: median(r.DecodeNS) / 1e3, PredictUS: map[string]float64{}, Steps: m.Stats()}
	out.PrefillTPS = float64(o.promptLen) / out.PrefillUS * 1e6
	if out.DecodeUS > 0 {
		out.DecodeTPS = 1e6 / out.DecodeUS
	}
	for _, pr := range p.Predictions {
		out.PredictUS[pr.Program] = float64(pr.PlanNS) / 1e3
	}
	for _, ns := range r.PrefillNS {
		out.Prefills = append(out.Prefills, float64(ns)/1e3)
	}
	for round := range slices.Chunk(r.DecodeNS, max(1, o.gen)) {
		sum := int64(0)
		for _, ns := range round {
			sum += ns
		}
		out.Decodes = append(out.Decodes, float64(sum)/1e3/float64(len(round)))
	}
	out.Lanes = lanes(out.Steps)
	out.Account = account(out.Steps)
	note := ""
	if r.Virtual {
		note = " (simulated)"
	}
	if len(out.Emulated) > 0 {
		note = " (emulated, not device time)"
	}
	s.Printf("prefill of %d tokens: %.1f ms, %.1f tokens/s%s\n", o.promptLen, out.PrefillUS/1e3, out.PrefillTPS, note)
	if o.gen > 0 {
		s.Printf("decode: %.3f ms a token, %.1f tokens/s%s\n", out.DecodeUS/1e3, out.DecodeTPS, note)
	}
	if len(batches) > 0 {
		var rows [][]string
		for _, b := range batches {
			predicted := "-"
			if b.PredictUS > 0 {
				predicted = fmt.Sprintf("%.3f", b.PredictUS/1e3)
			}
			rows = append(rows, []string{fmt.Sprint(b.Sequences), fmt.Sprintf("%.3f", b.StepUS/1e3), predicted, fmt.Sprintf("%.1f", b.TPS), fmt.Sprintf("%.2f", b.TPS/batches[0].TPS)})
		}
		s.Table([]string{">decoded together", ">ms a step", ">predicted ms", ">tokens/s", ">times one"}, rows)
	}
	rows := make([][]string, len(out.Lanes))
	for i, l := range out.Lanes {
		rows[i] = []string{l.Program, l.Proc, fmt.Sprintf("%.1f", l.RunUS), fmt.Sprintf("%.1f", l.WaitUS)}
	}
	s.Table([]string{"program", "lane", ">in steps us", ">waiting us"}, rows)
	rows = nil
	for _, k := range out.Account {
		rows = append(rows, []string{k.Program, k.Kind, fmt.Sprintf("%.1f", k.US), fmt.Sprintf("%.1f %%", 100*k.Share)})
	}
	s.Table([]string{"program", "operators", ">us", ">share"}, rows)
	if o.steps {
		printSteps(s, out.Steps)
	}
	return s.Result(out)
}

// lanes adds up steps per program and processor, per execution of the program.
func lanes(steps []executor.StepStat) []laneTime {
	type key struct{ program, proc string }
	var out []laneTime
	index := map[key]int{}
	runs := executions(steps)
	for _, st := range steps {
		k := key{st.Program, st.Proc}
		i, ok := index[k]
		if !ok {
			i = len(out)
			index[k] = i
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
			return kindTime{program, kind, float64(ns) / 1e3 / float64(runs[program]), float64(ns) / float64(max(total, 1))}
		}
		kinds := slices.SortedFunc(maps.Keys(ns), func(a, b string) int { return cmp.Or(cmp.Compare(ns[b], ns[a]), cmp.Compare(a, b)) })
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
	DecodeNS  []int64
	Virtual   bool
}

// Measure runs rounds of a prefill of promptLen tokens and gen decoded tokens after one round that is
// not counted.
func Measure(ctx context.Context, m *executor.Machine, promptLen, gen, rounds int) (Times, error) {
	var t Times
	for r := -1; r < rounds; r++ {
		if r == 0 {
			m.ResetStats()
		}
		one, err := Round(ctx, m, promptLen, gen)
		if err != nil {
			return t, err
		}
		if r >= 0 {
			t.PrefillNS = append(t.PrefillNS, one.PrefillNS...)
			t.DecodeNS = append(t.DecodeNS, one.DecodeNS...)
		}
		t.Virtual = one.Virtual
	}
	return t, nil
}

// shortNS is below which a prefill runs once more before it is counted: 100 ms.
const shortNS = 100_000_000

// Round measures one prefill and gen decoded tokens on an empty cache.
func Round(ctx context.Context, m *executor.Machine, promptLen, gen int) (Times, error) {
	var t Times
	if limit := m.Plan().MaxContext; promptLen > limit || gen > limit-promptLen {
		return t, diag.New(diag.ClassUsage, "--prompt-len %d and --gen %d exceed the plan's context of %d", promptLen, gen, limit).
			WithHint("measure fewer tokens, or, where the model has more positions, solve with a larger context in the workload")
	}
	prompt := benchPrompt(promptLen, m.Vocabulary(), 0)
	m.Reset()
	err := m.Do(ctx, func(c *executor.Control) error {
		one := []int32{0}
		next := func(_ int, logits []float32) error {
			one[0] = int32(argmax(logits))
			return nil
		}
		x, err := c.Forward(prompt, executor.WantLast, next)
		if err != nil {
			return err
		}
		if x.NS < shortNS && !x.Virtual {
			// What ran before has left its data in the caches and its lanes are still going to sleep: a short
			// program would mostly measure that.
			m.Reset()
			if x, err = c.Forward(prompt, executor.WantLast, next); err != nil {
				return err
			}
		}
		t.PrefillNS, t.Virtual = append(t.PrefillNS, x.NS), x.Virtual
		for i := 0; i < gen; i++ {
			if x, err = c.Forward(one, executor.WantLast, next); err != nil {
				return err
			}
			t.DecodeNS = append(t.DecodeNS, x.NS)
		}
		return nil
	})
	return t, err
}

// measureBatches measures steps of one sequence and of every batch of the plan in turn, round by round, each after a
// prompt of that length, after one round that is not counted.
func measureBatches(ctx context.Context, m *executor.Machine, promptLen, gen, rounds int) ([]batchTime, error) {
	p := m.Plan()
	var out []batchTime
	for _, n := range append([]int{1}, p.Batches...) {
		b := batchTime{Sequences: n}
		for _, pr := range p.Predictions {
			if i := slices.IndexFunc(p.Program.Programs, func(ph planir.Phase) bool { return ph.Name == pr.Program && ph.Phase == "decode" && ph.Rows == n }); i >= 0 {
				b.PredictUS = float64(pr.PlanNS) / 1e3
			}
		}
		out = append(out, b)
	}
	steps := make([][]int64, len(out))
	tokens := make([]executor.Token, m.Sequences())
	m.Reset()
	err := m.Do(ctx, func(c *executor.Control) error {
		next := func(i int, logits []float32) error {
			tokens[i].ID = int32(argmax(logits))
			return nil
		}
		begin := make([]int32, len(tokens))
		for i := range tokens {
			tokens[i].Sequence = i
			if _, err := c.Extend(i, benchPrompt(promptLen, m.Vocabulary(), i), executor.WantLast, func(_ int, logits []float32) error { return next(i, logits) }); err != nil {
				return err
			}
			begin[i] = tokens[i].ID
		}
		for round := -1; round < rounds; round++ {
			for k := range out {
				for i := range tokens {
					c.Truncate(i, promptLen)
					tokens[i].ID = begin[i]
				}
				sum := int64(0)
				for range gen {
					t, err := c.Step(tokens[:out[k].Sequences], next)
					if err != nil {
						return err
					}
					sum += t.NS
					if round >= 0 {
						steps[k] = append(steps[k], t.NS)
					}
				}
				if round >= 0 {
					out[k].Samples = append(out[k].Samples, float64(sum)/1e3/float64(gen))
				}
			}
		}
		return nil
	})
	for k := range out {
		out[k].StepUS = median(steps[k]) / 1e3
		out[k].TPS = float64(out[k].Sequences) * 1e6 / max(out[k].StepUS, 1e-3)
	}
	return out, err
}

// benchPrompt is fixed: times do not depend on the text, only on its length.
func benchPrompt(n, vocab, number int) []int32 {
	prompt := make([]int32, n)
	for i := range prompt {
		prompt[i] = int32((i*7919 + number + 1) % vocab)
	}
	return prompt
}
