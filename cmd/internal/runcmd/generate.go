package runcmd

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/tokenizer"
)

// generated is an answer under --json.
type generated struct {
	ID        string  `json:"id,omitempty"` // of --prompts
	Text      string  `json:"text,omitempty"`
	Tokens    []int32 `json:"tokens"`
	Prompt    []int32 `json:"prompt_tokens"`
	Cached    int     `json:"cached_tokens,omitempty"` // of the prompt: the bundle brought their cache
	PrefillUS float64 `json:"prefill_us"`
	DecodeUS  float64 `json:"decode_us"` // median of one token
	Simulated bool    `json:"simulated,omitempty"`
	Emulated  bool    `json:"emulated,omitempty"` // times are those of an emulator, not of a device

	Evidence planir.Evidence `json:"evidence"` // what stands behind the bundle's plan

	// Stopped: the model ended its answer. Else the number of tokens did, or the context was full.
	Stopped bool   `json:"stopped"`
	Full    bool   `json:"context_full,omitempty"` // what ended it
	Error   string `json:"error,omitempty"`        // of --prompts: why it was not generated

	Steps []executor.StepStat `json:"steps,omitempty"`
	Stats *stats              `json:"stats,omitempty"`
}

// printer streams an answer: text as the tokenizer decodes it, or token ids. Under --json it only collects the text.
type printer struct {
	out    *bufio.Writer
	text   strings.Builder
	stream *tokenizer.Stream // nil: ids are printed
	quiet  bool
	prompt string // repeated in front of the answer
	first  bool   // nothing has been printed
	err    error  // why the answer could not be written
}

// begin repeats the prompt. It waits for the first token: weights are verified on first use, and what is refused
// prints nothing.
func (p *printer) begin() {
	if !p.quiet {
		fmt.Fprint(p.out, p.prompt)
	}
}

// emit prints a piece of text.
func (p *printer) emit(piece string) {
	p.text.WriteString(piece)
	if !p.quiet {
		_, _ = p.out.WriteString(piece)
		p.err = p.out.Flush()
	}
}

// push prints a token, and reports whether the next one is wanted: not when the output takes no more.
func (p *printer) push(id int32) bool {
	switch {
	case p.stream != nil:
		p.emit(p.stream.Push(id))
	case !p.quiet:
		if !p.first {
			fmt.Fprint(p.out, ",")
		}
		fmt.Fprint(p.out, id)
		p.err = p.out.Flush()
	}
	p.first = false
	return p.err == nil
}

// end prints what the tokenizer still holds, and ends the line.
func (p *printer) end() {
	if p.stream != nil {
		p.emit(p.stream.Flush())
	}
	if !p.quiet {
		fmt.Fprintln(p.out)
		p.err = p.out.Flush()
	}
}

// notWritten returns the error of an answer that the output did not take.
func notWritten(err error) error { return diag.New(diag.ClassIO, "write results: %w", err) }

// generate streams an answer to standard output. The first known tokens of the prompt are in the cache.
func (x *execution) generate(ctx context.Context, known int) error {
	ui, machine, prompt, watch := x.ui, x.machine, x.prompt, x.watch
	answer := &printer{out: bufio.NewWriter(ui.Out), quiet: ui.JSON, first: true}
	if x.tokenizer != nil {
		answer.stream = x.tokenizer.Stream()
		if x.tokens == "" && !x.answers() {
			answer.prompt = x.options.prompt
		}
	}
	// The stopwatch is split at the first token: what came before is prefill.
	generation, err := machine.Generate(ctx, prompt[known:], x.maxTokens, &x.sampler, func(id int32) bool {
		if answer.first {
			watch.split("load and verify weights", machine.LoadTime(), "prefill and first token")
			answer.begin()
		}
		return answer.push(id)
	})
	if answer.first {
		if err != nil {
			return err
		}
		answer.begin()
	}
	answer.end()
	if err != nil {
		return err
	}
	if answer.err != nil {
		return notWritten(answer.err)
	}
	result := generated{
		Text: answer.text.String(), Tokens: generation.Tokens, Prompt: prompt, Cached: known,
		PrefillUS: float64(generation.PrefillNS) / 1e3, DecodeUS: median(generation.DecodeNS) / 1e3,
		Simulated: generation.Virtual, Emulated: len(machine.Emulated()) > 0, Evidence: machine.Plan().Evidence(),
		Stopped: generation.Stopped, Full: generation.Full,
	}
	if x.steps {
		result.Steps = machine.Stats()
		printSteps(ui, result.Steps)
	}
	if x.stats {
		result.Stats = watch.stats(machine, len(prompt)-known, x.tokenizer != nil, x.bundle.CopiedBytes())
		result.Stats.print(ui)
	}
	return ui.Result(result)
}

// median returns the middle of some times, 0 of none.
func median(ns []int64) float64 {
	if len(ns) == 0 {
		return 0
	}
	sorted := slices.Clone(ns)
	slices.Sort(sorted)
	if n := len(sorted); n%2 == 0 {
		return float64(sorted[n/2-1]+sorted[n/2]) / 2
	}
	return float64(sorted[len(sorted)/2])
}

// printSteps prints the mean times of every step that was executed.
func printSteps(ui *cli.Streams, steps []executor.StepStat) {
	rows := make([][]string, len(steps))
	for i, st := range steps {
		us := func(ns int64) string { return fmt.Sprintf("%.1f", float64(ns)/1e3/float64(st.Runs)) }
		rows[i] = []string{st.Program, st.Section, st.Proc, st.Node, strconv.FormatInt(st.Runs, 10), us(st.RunNS),
			us(st.WaitNS), fmt.Sprintf("%.1f", float64(st.ExpectNS)/1e3)}
	}
	ui.Table([]string{"program", "section", "lane", "step", ">runs", ">us", ">wait us", ">expected us"}, rows)
}
