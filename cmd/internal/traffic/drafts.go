package traffic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
)

// DraftReport is how one kind of text was decoded plainly and with drafts.
type DraftReport struct {
	Text    string  `json:"text"`
	Tokens  int     `json:"tokens"` // of every answer
	PlainMS float64 `json:"plain_ms_a_token"`
	DraftMS float64 `json:"draft_ms_a_token"`
	Speedup float64 `json:"speedup"`      // median over rounds of the one time over the other
	Drafted int64   `json:"draft_tokens"` // in one round
	Right   int64   `json:"right_tokens"`
}

// draftTexts are the kinds of text that drafts are measured with: how the model's answer is drawn.
var draftTexts = []struct {
	name    string
	sampler executor.Sampler
}{
	{"greedy", executor.Sampler{}},
	{"sampled", executor.Sampler{Temperature: 1, Seed: 7}},
	{"random", executor.Sampler{Temperature: 1e4, Seed: 7}}, // every token is about as likely
}

// RunDrafts decodes the same answers plainly and with the drafts of the plan, in turns, and compares times and tokens.
func RunDrafts(ctx context.Context, ui *cli.Streams, options *Options) error {
	if options.Rounds < 1 || options.Tokens < 2 {
		return diag.New(diag.ClassUsage, "bench drafts: %d rounds of %d tokens, want at least 1 of at least 2",
			options.Rounds, options.Tokens)
	}
	on, err := options.open(ctx)
	if err != nil {
		return err
	}
	defer on.Close()
	switch drafts := on.plan.Drafts; {
	case on.plan.SoC.Simulated:
		return diag.New(diag.ClassInput, "bench drafts: the plan is for the simulated SoC %q, on which no time passes",
			on.plan.SoC.Name).WithHint("take a plan for this machine")
	case drafts == nil:
		return diag.New(diag.ClassInput, "bench drafts: the plan says nothing of drafts").
			WithHint("solve with drafts in the workload, such as drafts: {acceptance: 0.7}")
	case drafts.Tokens == 0:
		ui.Notef("the plan says that drafts do not pay at an acceptance of %.2f: both columns are plain decoding",
			drafts.Acceptance)
	}
	prompt := draftPrompt(on.machine.Vocabulary(), on.plan.MaxContext-options.Tokens)
	if len(prompt) == 0 {
		return diag.New(diag.ClassUsage, "bench drafts: --tokens %d, and the plan has a context of %d", options.Tokens,
			on.plan.MaxContext)
	}
	var reports []*DraftReport
	var rows [][]string
	for _, text := range draftTexts {
		request := serving.Request{Class: scheduler.Reactive, Prompt: prompt, MaxTokens: options.Tokens,
			Sampler: text.sampler, IgnoreEnd: true, LogProbs: -1}
		report, err := compareDrafts(ctx, on.machine, request, options.Rounds)
		if err != nil {
			return err
		}
		report.Text = text.name
		reports = append(reports, report)
		rows = append(rows, []string{report.Text, fmt.Sprintf("%.3f", report.PlainMS), fmt.Sprintf("%.3f", report.DraftMS),
			fmt.Sprintf("%.3f", report.Speedup), fmt.Sprint(report.Drafted), fmt.Sprint(report.Right)})
	}
	ui.Table([]string{"text", ">plain ms a token", ">with drafts ms a token", ">times as fast", ">draft tokens", ">right"},
		rows)
	return ui.Result(reports)
}

// draftPrompt is a passage of random tokens, three times over, of at most so many tokens: something to copy.
func draftPrompt(vocabulary, most int) []int32 {
	random := rand.New(rand.NewPCG(3, 22))
	passage := make([]int32, max(0, min(64, most/3)))
	for i := range passage {
		passage[i] = random.Int32N(int32(vocabulary))
	}
	return slices.Repeat(passage, 3)
}

// compareDrafts has a request answered plainly and with drafts, in turns. Times are medians over the rounds; answers that
// differ are an error.
func compareDrafts(ctx context.Context, machine *executor.Machine, request serving.Request, rounds int) (*DraftReport,
	error) {
	out := &DraftReport{Tokens: request.MaxTokens}
	var times [2][]float64
	var ratios []float64
	var first []int32
	for range rounds {
		var took [2]float64
		for way, most := range []int{0, -1} {
			ids, ms, metrics, err := answerAlone(ctx, machine, request, most)
			if err != nil {
				return nil, err
			}
			if first == nil {
				first = ids
			}
			if !slices.Equal(ids, first) {
				return nil, diag.New(diag.ClassInternal, "BUG: an answer with drafts differs from plain decoding: %v, want %v", ids,
					first)
			}
			took[way] = ms
			times[way] = append(times[way], ms)
			if way == 1 {
				out.Drafted, out.Right = metrics.DraftTokens, metrics.RightTokens
			}
		}
		ratios = append(ratios, took[0]/took[1])
	}
	out.PlainMS, out.DraftMS = percentile(times[0], 0.5), percentile(times[1], 0.5)
	out.Speedup = percentile(ratios, 0.5)
	return out, nil
}

// answerAlone has one request answered by a server with drafts of so many tokens (serving.Options.Draft), and returns the
// tokens and the ms that each of them took behind the first.
func answerAlone(ctx context.Context, machine *executor.Machine, request serving.Request, most int) (ids []int32, ms float64,
	metrics serving.Metrics, err error) {
	server, err := serving.New(machine, serving.Options{Scheduler: scheduler.Default(1), Draft: most})
	if err != nil {
		return nil, 0, metrics, err
	}
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	answer, err := server.Submit(request)
	if err == nil {
		var first time.Time
		for token := range answer.Tokens() {
			if ids = append(ids, token.ID); len(ids) == 1 {
				first = time.Now()
			}
		}
		ms = float64(time.Since(first)) / 1e6 / float64(max(1, len(ids)-1))
		_, err = answer.End()
	}
	server.Drain()
	if err = errors.Join(err, <-done); err == nil && len(ids) < request.MaxTokens {
		err = fmt.Errorf("bench drafts: the answer ended after %d of %d tokens: %w", len(ids), request.MaxTokens,
			context.Cause(ctx))
	}
	return ids, ms, server.Metrics(), err
}
