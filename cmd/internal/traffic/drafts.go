package traffic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
	"github.com/hetc/hetc/runtime/tokenizer"
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

// draftText is a kind of text that drafts are measured with: a prompt, and an answer that is drawn or given.
type draftText struct {
	name    string
	sampler executor.Sampler
	prompt  []int32
	answer  []int32 // nil: what the model says
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
	texts := draftTexts(on.machine.Vocabulary(), on.plan.MaxContext-options.Tokens, options.Tokens)
	if len(texts) == 0 {
		return diag.New(diag.ClassUsage, "bench drafts: --tokens %d, and the plan has a context of %d", options.Tokens,
			on.plan.MaxContext)
	}
	var reports []*DraftReport
	var rows [][]string
	if options.Text != "" {
		own, err := ownText(on.model, options.Text, on.plan.MaxContext-options.Tokens, options.Tokens)
		if err != nil {
			return err
		}
		texts = append(texts, own)
	}
	if err := serving.Warm(ctx, on.machine); err != nil {
		return err
	}
	for _, text := range texts {
		request := serving.Request{Class: scheduler.Reactive, Prompt: text.prompt, MaxTokens: options.Tokens,
			Sampler: text.sampler, Given: text.answer, IgnoreEnd: true, LogProbs: -1}
		report, err := compareDrafts(ctx, on.machine, request, options.Rounds)
		if err != nil {
			return err
		}
		report.Text = text.name
		reports = append(reports, report)
		rows = append(rows, []string{report.Text, fmt.Sprintf("%.3f", report.PlainMS),
			fmt.Sprintf("%.3f", report.DraftMS),
			fmt.Sprintf("%.3f", report.Speedup), fmt.Sprint(report.Drafted), fmt.Sprint(report.Right)})
	}
	ui.Table([]string{"text", ">plain ms a token", ">with drafts ms a token", ">times as fast", ">draft tokens",
		">right"},
		rows)
	return ui.Result(reports)
}

const longestText = 1 << 24 // bytes

// longestPrompt is how many tokens the prompts have at most: all kinds of text are decoded at about the same positions.
const longestPrompt = 192

// draftTexts returns the kinds of text, with prompts of at most room tokens; none where that is too little. The first
// two are what the model says, which depends on the model; the others are given, so that they are what their names say.
func draftTexts(vocabulary, room, tokens int) []draftText {
	room = min(room, longestPrompt)
	if room < 3 {
		return nil
	}
	random := func(n int, seed uint64) []int32 {
		source := rand.New(rand.NewPCG(seed, 22))
		out := make([]int32, n)
		for i := range out {
			out[i] = source.Int32N(int32(vocabulary))
		}
		return out
	}
	thrice := slices.Repeat(random(room/3, 3), 3)
	passage := random(room, 4)
	code := codeLike(vocabulary, room+tokens)
	return []draftText{
		{name: "model's own, greedy", prompt: thrice},
		{name: "model's own, sampled", prompt: thrice, sampler: executor.Sampler{Temperature: 1, Seed: 7}},
		{name: "copying", prompt: passage, answer: slices.Repeat(passage, tokens/room+1)[:tokens]},
		{name: "code-like", prompt: code[:room], answer: code[room:]},
		{name: "random", prompt: random(room, 5), answer: random(tokens, 6)},
	}
}

// codeLike returns a text of n tokens that repeats as programs do: lines of twenty kinds, the frequent ones much more
// often than the rare ones, with names in them that come from a few that are in use.
func codeLike(vocabulary, n int) []int32 {
	random := rand.New(rand.NewPCG(8, 22))
	const kinds, names, place = 20, 12, -1
	words := func(n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = random.Int32N(int32(vocabulary))
		}
		return out
	}
	var lines, used [][]int32
	for range kinds {
		line := words(4 + random.IntN(9))
		for range 1 + random.IntN(2) {
			line[random.IntN(len(line))] = place
		}
		lines = append(lines, line)
	}
	for range names {
		used = append(used, words(1+random.IntN(3)))
	}
	var out []int32
	for len(out) < n {
		// the square makes the first kinds frequent
		at := random.Float64()
		for _, token := range lines[int(at*at*kinds)] {
			if token == place {
				out = append(out, used[random.IntN(names)]...)
			} else {
				out = append(out, token)
			}
		}
	}
	return out[:n]
}

// ownText returns a file in the tokens of the model: the first ones are the prompt, those behind them the answer.
func ownText(model *models.Model, path string, room, tokens int) (text draftText, err error) {
	data, err := wholefile.Read(path, longestText)
	if err != nil {
		return text, err
	}
	files, err := model.TokenizerFiles()
	if err != nil {
		return text, err
	}
	if len(files["tokenizer"]) == 0 {
		return text, diag.New(diag.ClassInput, "bench drafts: --text %q, and model %q has no tokenizer", path,
			model.Name).
			WithHint("leave --text out: the other texts need no tokenizer")
	}
	encoder, err := tokenizer.New(files["tokenizer"], files["config"], model.BOS)
	if err != nil {
		return text, err
	}
	ids, err := encoder.Encode(string(data))
	if err != nil {
		return text, err
	}
	room = min(room, longestPrompt)
	if len(ids) < room+tokens {
		return text, diag.New(diag.ClassInput,
			"%q has %d tokens, want at least %d: %d of the prompt, %d of the answer", path,
			len(ids), room+tokens, room, tokens)
	}
	return draftText{name: filepath.Base(path), prompt: ids[:room], answer: ids[room:][:tokens]}, nil
}

// compareDrafts has a request answered plainly and with drafts, in turns. Times are medians over the rounds; answers
// that differ are an error.
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
				return nil, diag.New(diag.ClassInternal,
					"BUG: an answer with drafts differs from plain decoding: %v, want %v", ids,
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

// answerAlone has one request answered by a server with drafts of so many tokens (serving.Options.Draft), and returns
// the tokens and the ms that each of them took behind the first.
func answerAlone(ctx context.Context, machine *executor.Machine, request serving.Request, most int) (ids []int32,
	ms float64,
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
