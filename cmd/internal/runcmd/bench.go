package runcmd

import (
	"context"
	"fmt"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/executor"
)

// timing is the document of --bench --json. Times are medians over rounds, in microseconds.
type timing struct {
	SoC        string              `json:"soc"`
	Simulated  bool                `json:"simulated"`
	PromptLen  int                 `json:"prompt_len"`
	Gen        int                 `json:"gen"`
	Rounds     int                 `json:"rounds"`
	PrefillUS  float64             `json:"prefill_us"`
	DecodeUS   float64             `json:"decode_us"`
	PrefillTPS float64             `json:"prefill_tokens_per_s"`
	DecodeTPS  float64             `json:"decode_tokens_per_s"`
	PredictUS  map[string]float64  `json:"predicted_us,omitempty"`
	Lanes      []laneTime          `json:"lanes"`
	Steps      []executor.StepStat `json:"steps"`
}

// laneTime is how a lane spent the measured rounds.
type laneTime struct {
	Program string  `json:"program"`
	Proc    string  `json:"proc"`
	RunUS   float64 `json:"run_us"`  // in steps, per execution of the program
	WaitUS  float64 `json:"wait_us"` // for other lanes' flags
}

func (o *options) runBench(ctx context.Context, s *cli.Streams, m *executor.Machine) error {
	r, err := Measure(ctx, m, o.promptLen, o.gen, o.rounds)
	if err != nil {
		return err
	}
	p := m.Plan()
	out := timing{SoC: p.SoC.Name, Simulated: r.Virtual, PromptLen: o.promptLen, Gen: o.gen, Rounds: o.rounds,
		PrefillUS: median(r.PrefillNS) / 1e3, DecodeUS: median(r.DecodeNS) / 1e3, PredictUS: map[string]float64{}, Steps: m.Stats()}
	out.PrefillTPS = float64(o.promptLen) / out.PrefillUS * 1e6
	if out.DecodeUS > 0 {
		out.DecodeTPS = 1e6 / out.DecodeUS
	}
	for _, pr := range p.Predictions {
		out.PredictUS[pr.Program] = float64(pr.PlanNS) / 1e3
	}
	out.Lanes = lanes(out.Steps)
	note := ""
	if r.Virtual {
		note = " (simulated)"
	}
	s.Printf("prefill of %d tokens: %.1f ms, %.1f tokens/s%s\n", o.promptLen, out.PrefillUS/1e3, out.PrefillTPS, note)
	if o.gen > 0 {
		s.Printf("decode: %.3f ms a token, %.1f tokens/s%s\n", out.DecodeUS/1e3, out.DecodeTPS, note)
	}
	rows := make([][]string, len(out.Lanes))
	for i, l := range out.Lanes {
		rows[i] = []string{l.Program, l.Proc, fmt.Sprintf("%.1f", l.RunUS), fmt.Sprintf("%.1f", l.WaitUS)}
	}
	s.Table([]string{"program", "lane", ">in steps us", ">waiting us"}, rows)
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
	runs := map[string]int64{} // executions of a program: those of its rarest step
	for _, st := range steps {
		if n, ok := runs[st.Program]; !ok || st.Runs < n {
			runs[st.Program] = st.Runs
		}
	}
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

// Round measures one prefill and gen decoded tokens on an empty cache. The prompt is fixed: times do
// not depend on the text, only on its length.
func Round(ctx context.Context, m *executor.Machine, promptLen, gen int) (Times, error) {
	var t Times
	if limit := m.Plan().MaxContext; promptLen > limit || gen > limit-promptLen {
		return t, diag.New(diag.ClassUsage, "--prompt-len %d and --gen %d exceed the plan's context of %d", promptLen, gen, limit).
			WithHint("measure fewer tokens, or solve with a larger context in the workload")
	}
	vocab := m.Vocabulary()
	prompt := make([]int32, promptLen)
	for i := range prompt {
		prompt[i] = int32((i*7919 + 1) % vocab)
	}
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
