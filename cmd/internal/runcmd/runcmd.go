// Package runcmd knows the command line of hetrun, which hetc run shares: it verifies a bundle for
// this machine, loads its plan onto the processors, and generates text, logits or timings.
package runcmd

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/tokenizer"
)

type options struct {
	terms      accept.Terms
	prompt     string
	promptFile string
	prompts    string
	tokens     string
	chat       bool
	system     string
	messages   string
	maxTokens  int
	sampler    executor.Sampler
	check      bool
	dumpLogits string
	bench      bool
	promptLen  int
	gen        int
	rounds     int
	steps      bool
	stats      bool
	trace      string
	anyMachine bool
	simulates  bool // hetc run: also what was made for a simulated SoC
	deadline   time.Duration
}

// New returns the command. drivers yields what it may open a plan's processors with; with simulates it
// also runs bundles that were made for a simulated SoC, on whatever machine this is.
func New(ui *cli.Streams, use string, simulates bool, drivers func(*planir.Plan) ([]driver.Driver, error)) *cobra.Command {
	given := options{simulates: simulates}
	cmd := &cobra.Command{
		Use:   use + " BUNDLE --trust KEY.pub (--prompt TEXT [--chat] | --messages FILE | --prompts FILE | --tokens 1,5,7 | --bench)",
		Short: "verify a bundle and execute it on this machine",
		Long: `Verifies a bundle against a trusted key, checks that it was made for this machine, loads its plan
onto the processors, and executes it. Nothing of the bundle is used before it is verified.

With --prompt the text is continued and streamed to standard output; with --chat it is a message that the
model answers, written by the model's chat template. --messages takes a whole conversation as JSON,
[{"role":"user","content":"Hello"}]. With --tokens the ids are used as they are.

--prompts takes a file with one prompt per line, or of a name that ends in .jsonl with lines such as {"id": "a",
"prompt": "Hello"}, or "messages" or "tokens" in place of the prompt. As many of them as the plan has
sequences (batches in the workload) are decoded together; with one, they are answered one after the other. Each gets the
answer that it would get alone. Answers are printed in the order of the prompts, with their ids, by default the numbers
of their lines. A prompt that cannot be processed leaves the others alone and counts when all are done.

--dump-logits writes the logits of every prompt position as safetensors (tensor "logits", float32 [T,V]).
--check executes the bundle's reference program (emit --with-reference) as well and fails unless both
agree. --bench prints prefill and decode times, per lane and step.

--trace writes what ran when, as JSON that ui.perfetto.dev and chrome://tracing show: programs and sections, and the steps and
waits of every lane, the first ` + fmt.Sprint(traceEvents) + ` of each. Times of a simulated SoC are simulated there, too.

` + cli.ExitCodes,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return diag.New(diag.ClassUsage, "%s: got %d arguments, want one bundle", c.CommandPath(), len(args)).WithHint("usage: %s", c.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.Required(cmd, "trust"); err != nil {
				return err
			}
			return run(cmd.Context(), ui, args[0], &given, cmd.Flags().Changed, drivers)
		},
	}
	flags := cmd.Flags()
	given.terms.Register(flags)
	given.terms.RegisterCopy(flags)
	flags.StringVar(&given.prompt, "prompt", "", "text to continue")
	flags.StringVar(&given.promptFile, "prompt-file", "", "file with the text to continue, - for standard input")
	flags.BoolVar(&given.chat, "chat", false, "the prompt is a message: write it by the model's chat template, and answer")
	flags.StringVar(&given.system, "system", "", "system message in front, under --chat")
	flags.StringVar(&given.messages, "messages", "", "JSON file with a conversation to answer, - for standard input")
	flags.StringVar(&given.prompts, "prompts", "", "file with prompts to continue, one per line, or JSON lines (.jsonl), - for standard input")
	flags.StringVar(&given.tokens, "tokens", "", "token ids to continue, separated by commas")
	flags.IntVar(&given.maxTokens, "max-tokens", 64, "most tokens to generate")
	flags.Float64Var(&given.sampler.Temperature, "temperature", 0, "0 is greedy")
	flags.IntVar(&given.sampler.TopK, "top-k", 0, "draw from the k likeliest tokens, 0: all")
	flags.Float64Var(&given.sampler.TopP, "top-p", 0, "draw from the smallest set of this probability, 0: all")
	flags.Uint64Var(&given.sampler.Seed, "seed", 0, "seed of sampling; same seed, same text")
	flags.BoolVar(&given.check, "check", false, "also execute the reference program and fail unless both agree")
	flags.StringVar(&given.dumpLogits, "dump-logits", "", "write the logits of every prompt position to this safetensors file")
	flags.BoolVar(&given.bench, "bench", false, "measure prefill and decode")
	flags.IntVar(&given.promptLen, "prompt-len", 256, "tokens of the prompt under --bench")
	flags.IntVar(&given.gen, "gen", 32, "tokens to generate under --bench")
	flags.IntVar(&given.rounds, "rounds", 5, "measured rounds under --bench, after one that is not counted")
	flags.BoolVar(&given.steps, "steps", false, "list every step with its time")
	flags.BoolVar(&given.stats, "stats", false, "show where the time up to the first token went, and how much memory was used")
	flags.StringVar(&given.trace, "trace", "", "write what ran when to this file, for ui.perfetto.dev")
	flags.BoolVar(&given.anyMachine, "any-machine", false, "do not refuse a bundle that was made for another machine")
	flags.DurationVar(&given.deadline, "deadline", 2*time.Minute, "give up when no step finishes for this long")
	return cmd
}

func (o *options) validate(changed func(string) bool) error {
	inputs := 0
	for _, f := range []string{"prompt", "prompt-file", "messages", "prompts", "tokens"} {
		if changed(f) {
			inputs++
		}
	}
	switch {
	case o.bench && inputs > 0:
		return diag.New(diag.ClassUsage, "--bench makes its own prompt").WithHint("use --prompt-len and --gen to set its sizes")
	case o.bench && (o.check || o.dumpLogits != ""):
		return diag.New(diag.ClassUsage, "--bench cannot be combined with --check or --dump-logits").WithHint("run them separately")
	case !o.bench && inputs != 1:
		return diag.New(diag.ClassUsage, "got %d of --prompt, --prompt-file, --messages, --prompts and --tokens, want one", inputs).WithHint("or --bench")
	case o.chat && !changed("prompt") && !changed("prompt-file") && !changed("prompts"):
		return diag.New(diag.ClassUsage, "--chat needs --prompt, --prompt-file or --prompts").WithHint("--messages is a conversation already")
	case changed("system") && !o.chat:
		return diag.New(diag.ClassUsage, "--system needs --chat").WithHint("a conversation of --messages has its own system message")
	case changed("tokens") && o.tokens == "":
		return diag.New(diag.ClassUsage, "--tokens is empty").WithHint("write ids separated by commas: --tokens 1,5,7")
	case changed("prompt-file") && o.promptFile == "", changed("messages") && o.messages == "", changed("prompts") && o.prompts == "", changed("dump-logits") && o.dumpLogits == "", changed("trace") && o.trace == "":
		return diag.New(diag.ClassUsage, "--prompt-file, --messages, --prompts, --dump-logits or --trace is empty").WithHint("give the name of a file")
	case o.trace != "" && filepath.Clean(o.trace) == filepath.Clean(o.dumpLogits):
		return diag.New(diag.ClassUsage, "--trace and --dump-logits name one file, %q", o.trace).WithHint("give each its own")
	case o.dumpLogits != "" && o.check:
		return diag.New(diag.ClassUsage, "--dump-logits cannot be combined with --check").WithHint("run them separately")
	case o.prompts != "" && (o.check || o.dumpLogits != "" || o.stats || o.maxTokens == 0):
		return diag.New(diag.ClassUsage, "--prompts is for generating text: it goes with neither --check, --dump-logits, --stats nor --max-tokens 0").WithHint("give one prompt with --prompt")
	case o.deadline <= 0:
		return diag.New(diag.ClassUsage, "--deadline %v: want more than nothing", o.deadline).WithHint("give a time such as 30s or 2m")
	}
	for _, bound := range []struct {
		name      string
		got, want int
	}{{"max-tokens", o.maxTokens, 0}, {"prompt-len", o.promptLen, 1}, {"gen", o.gen, 0}, {"rounds", o.rounds, 1}} {
		if bound.got < bound.want {
			return diag.New(diag.ClassUsage, "--%s %d: want at least %d", bound.name, bound.got, bound.want)
		}
	}
	// A flag that would change nothing is a misunderstanding.
	for _, f := range []string{"prompt-len", "gen", "rounds"} {
		if changed(f) && !o.bench {
			return diag.New(diag.ClassUsage, "--%s is for --bench, which is not there", f).WithHint("add --bench, or leave it out")
		}
	}
	if o.stats && (o.bench || o.dumpLogits != "" || o.check || o.maxTokens == 0) {
		return diag.New(diag.ClassUsage, "--stats is for generating text alone").WithHint("leave --bench, --check, --dump-logits out, and generate a token at least")
	}
	for _, f := range []string{"max-tokens", "temperature", "top-k", "top-p", "seed"} {
		if changed(f) && (o.bench || o.dumpLogits != "") {
			return diag.New(diag.ClassUsage, "--%s is for generating, which --bench and --dump-logits do not do", f).WithHint("leave it out, or run them separately")
		}
	}
	if err := o.terms.Validate(); err != nil {
		return err
	}
	return o.sampler.Validate()
}

func run(ctx context.Context, ui *cli.Streams, path string, flags *options, changed func(string) bool, list func(*planir.Plan) ([]driver.Driver, error)) error {
	if err := flags.validate(changed); err != nil {
		return err
	}
	for _, out := range []string{flags.dumpLogits, flags.trace} {
		if out == "" {
			continue
		}
		if err := wholefile.Writable(out); err != nil {
			return err
		}
	}
	stopwatch := newStopwatch()
	opened, err := openBundle(ui, path, flags)
	if err != nil {
		return err
	}
	defer opened.Close()
	vocabulary := beside(opened.tokenizer)
	defer vocabulary() // it reads the bundle
	stopwatch.mark("open and verify the bundle")
	plan, err := opened.entry()
	if err != nil {
		return err
	}
	if err := opened.checkTarget(plan, flags); err != nil {
		return err
	}
	stopwatch.mark("read the plan")
	drivers, err := list(plan)
	if err != nil {
		return err
	}
	options := executor.Options{Drivers: drivers, Deadline: flags.deadline, OnDemand: !flags.bench, Checked: true}
	if flags.trace != "" {
		options.Trace = traceEvents
	}
	machine, refusal := Execute(ctx, plan, opened, 0, options)
	if refusal == nil {
		defer machine.Close()
		if !flags.bench && flags.tokens == "" {
			machine.Foresee(ctx) // while the tokenizer is read
		}
	}
	stopwatch.mark("open processors")
	var tok tokenizer.Tokenizer
	if unbound, err := vocabulary(); err != nil {
		return err
	} else if unbound != nil {
		if tok, err = unbound.Begin(plan.Model.BOS); err != nil {
			return err
		}
	}
	var jobs []job
	var prompt []int32
	if flags.prompts != "" {
		jobs, err = flags.jobs(ctx, ui, tok)
	} else {
		prompt, err = flags.input(ctx, ui, tok)
	}
	if err != nil {
		return err
	}
	stopwatch.mark("tokenizer and prompt")
	if refusal != nil {
		return refusal
	}
	switch emulated := machine.Emulated(); {
	case len(emulated) > 0:
		ui.Notef("%s", emulatedNote(emulated))
	case plan.SoC.Simulated:
		ui.Notef("times are simulated (soc %q)", plan.SoC.Name)
	case plan.Evidence() == planir.Unproved:
		ui.Notef("%s", plan.EvidenceText())
	}
	if plan.SoC.Imported {
		ui.Notef("the plan was made from times measured elsewhere (imported)")
	}
	err = func() error {
		switch {
		case flags.bench:
			return flags.runBench(ctx, ui, machine)
		case flags.dumpLogits != "":
			return flags.runDump(ctx, ui, machine, prompt)
		case flags.prompts != "":
			return flags.generateAll(ctx, ui, machine, tok, jobs)
		}
		if flags.check {
			if err := flags.runCheck(ctx, ui, opened, machine, prompt, drivers); err != nil {
				return err
			}
			machine.Reset()
		}
		return flags.generate(ctx, ui, machine, tok, prompt, stopwatch, opened.CopiedBytes())
	}()
	if mem.IsFault(err) { // of a page that cannot be read although nobody has changed the file
		err = fmt.Errorf("%s: %w", path, err)
	}
	if err == nil && flags.trace != "" {
		err = flags.writeTrace(ui, machine)
	}
	if err != nil {
		return err
	}
	return opened.Remember(ui)
}

// emulatedNote says whose times these are.
func emulatedNote(names []string) string {
	return fmt.Sprintf("emulated, not device time: %s is an emulator on this machine, with a device's results; no time here is one of a device", strings.Join(names, ", "))
}

// traceEvents is how many events of each lane a trace holds: some hundred tokens of a model of twenty layers.
const traceEvents = 1 << 17

func (o *options) writeTrace(ui *cli.Streams, m *executor.Machine) error {
	lost := int64(0)
	err := wholefile.Stream(o.trace, func(w io.Writer) (err error) {
		lost, err = m.WriteTrace(w)
		return err
	})
	if err != nil {
		return err
	}
	ui.Notef("wrote trace %s; open it at ui.perfetto.dev", o.trace)
	if lost > 0 {
		ui.Warnf("%s holds the beginning: %d later events are left out (the first %d of each lane are kept)", o.trace, lost, traceEvents)
	}
	return nil
}

// input turns the flags into token ids.
func (o *options) input(ctx context.Context, ui *cli.Streams, tok tokenizer.Tokenizer) ([]int32, error) {
	switch {
	case o.bench:
		return nil, nil
	case o.tokens != "":
		var ids []int32
		for _, f := range strings.Split(o.tokens, ",") {
			token, err := strconv.ParseInt(strings.TrimSpace(f), 10, 32)
			if err != nil {
				return nil, diag.New(diag.ClassUsage, "--tokens: %q is not a token id", f).WithHint("write ids separated by commas: --tokens 1,5,7")
			}
			ids = append(ids, int32(token))
		}
		return ids, nil
	}
	text := o.prompt
	if file := o.promptFile + o.messages; file != "" {
		data, err := readAll(ctx, ui, file)
		if err != nil {
			return nil, err
		}
		text = data
	}
	if tok == nil {
		return nil, diag.New(diag.ClassInput, "the bundle has no tokenizer").WithHint("give token ids with --tokens")
	}
	var ids []int32
	var err error
	if o.answers() {
		var messages []tokenizer.Message
		if messages, err = o.conversation(text); err == nil {
			ids, err = answer(ctx, tok, messages)
		}
	} else {
		ids, err = tok.Prompt(text)
	}
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, diag.New(diag.ClassInput, "the prompt is empty and the model has no token to begin with").WithHint("give some text")
	}
	return ids, nil
}

// answers reports whether the input is a conversation.
func (o *options) answers() bool { return o.chat || o.messages != "" }

// conversation is that of one message, or of a list of them as JSON.
func (o *options) conversation(text string) ([]tokenizer.Message, error) {
	if o.messages != "" {
		return tokenizer.ParseMessages([]byte(text))
	}
	return o.message(text), nil
}

// message is a conversation that begins with a message.
func (o *options) message(text string) (messages []tokenizer.Message) {
	if o.system != "" {
		messages = append(messages, tokenizer.Message{Role: "system", Content: o.system})
	}
	return append(messages, tokenizer.Message{Role: "user", Content: text})
}

type generated struct {
	ID        string  `json:"id,omitempty"` // of --prompts
	Text      string  `json:"text,omitempty"`
	Tokens    []int32 `json:"tokens"`
	Prompt    []int32 `json:"prompt_tokens"`
	PrefillUS float64 `json:"prefill_us"`
	DecodeUS  float64 `json:"decode_us"` // median of one token
	Simulated bool    `json:"simulated,omitempty"`
	Emulated  bool    `json:"emulated,omitempty"` // times are those of an emulator, not of a device

	Evidence planir.Evidence `json:"evidence"` // what stands behind the bundle's plan

	Stopped bool   `json:"stopped"`
	Full    bool   `json:"context_full,omitempty"` // what ended it
	Error   string `json:"error,omitempty"`        // of --prompts: why it was not generated

	Steps []executor.StepStat `json:"steps,omitempty"`
	Stats *stats              `json:"stats,omitempty"`
}

func (o *options) generate(ctx context.Context, ui *cli.Streams, machine *executor.Machine, tok tokenizer.Tokenizer, prompt []int32, watch *stopwatch, copied int64) error {
	out := bufio.NewWriter(ui.Out)
	var text strings.Builder
	emit := func(piece string) {
		text.WriteString(piece)
		if !ui.JSON {
			_, _ = out.WriteString(piece)
			_ = out.Flush()
		}
	}
	var stream *tokenizer.Stream
	if tok != nil {
		stream = tok.Stream()
	}
	// The prompt is repeated when there is an answer: weights are verified on first use, and what is refused prints nothing.
	repeat := func() {
		if tok != nil && o.tokens == "" && !o.answers() && !ui.JSON {
			fmt.Fprint(out, o.prompt)
		}
	}
	first := true
	generation, err := machine.Generate(ctx, prompt, o.maxTokens, &o.sampler, func(id int32) bool {
		if first {
			watch.split("load and verify weights", machine.LoadTime(), "prefill and first token")
			repeat()
		}
		if stream != nil {
			emit(stream.Push(id))
		} else if !ui.JSON {
			if !first {
				fmt.Fprint(out, ",")
			}
			fmt.Fprint(out, id)
			_ = out.Flush()
		}
		first = false
		return true
	})
	if first {
		if err != nil {
			return err
		}
		repeat()
	}
	if stream != nil {
		emit(stream.Flush())
	}
	if !ui.JSON {
		fmt.Fprintln(out)
		_ = out.Flush()
	}
	if err != nil {
		return err
	}
	result := generated{Text: text.String(), Tokens: generation.Tokens, Prompt: prompt, PrefillUS: float64(generation.PrefillNS) / 1e3, DecodeUS: median(generation.DecodeNS) / 1e3, Simulated: generation.Virtual, Emulated: len(machine.Emulated()) > 0, Evidence: machine.Plan().Evidence(), Stopped: generation.Stopped, Full: generation.Full}
	if o.steps {
		result.Steps = machine.Stats()
		printSteps(ui, result.Steps)
	}
	if o.stats {
		result.Stats = watch.stats(machine, len(prompt), tok != nil, copied)
		result.Stats.print(ui)
	}
	return ui.Result(result)
}

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

func (o *options) runDump(ctx context.Context, ui *cli.Streams, m *executor.Machine, prompt []int32) error {
	all, vocab, err := logits(ctx, m, prompt)
	if err != nil {
		return err
	}
	if err := writeLogits(o.dumpLogits, all, len(prompt), vocab); err != nil {
		return err
	}
	ui.Printf("%s: logits [%d,%d]\n", o.dumpLogits, len(prompt), vocab)
	return ui.Result(map[string]any{"file": o.dumpLogits, "rows": len(prompt), "vocabulary": vocab})
}

// logits executes the prompt and returns the logits of every position, row-major.
func logits(ctx context.Context, m *executor.Machine, prompt []int32) (all []float32, vocab int, err error) {
	const copies, value = 2, 4 // what is compared with, or written; bytes
	if err := EnoughMemory(nil, copies*value*int64(len(prompt))*int64(m.Vocabulary()), machine.FreeMemory()); err != nil {
		return nil, 0, fmt.Errorf("logits of %d tokens: %w", len(prompt), err)
	}
	m.Reset()
	err = m.Do(ctx, func(c *executor.Control) error {
		_, err := c.Forward(prompt, executor.WantAll, func(_ int, row []float32) error {
			vocab = len(row)
			all = append(all, row...)
			return nil
		})
		return err
	})
	return all, vocab, err
}

type checked struct {
	Positions  int     `json:"positions"`
	MaxAbsDiff float64 `json:"max_abs_diff"`
	MeanKL     float64 `json:"mean_kl"`
	SameTop    float64 `json:"same_top_token"`
	LimitAbs   float64 `json:"limit_abs,omitempty"`
	LimitKL    float64 `json:"limit_kl,omitempty"`
}

// Limits of --check. Float32 programs differ from the reference by rounding alone. With quantised
// activations a rounding difference moves single activations to the next of 255 steps, which later
// layers amplify to about the cost of the quantisation itself (mean KL 0.0003 to 0.0007 between equally
// good executions of the small demo model); a wrong shard costs far more than the limit.
const (
	checkAbs = 1e-3
	checkKL  = 0.01
)

func (o *options) runCheck(ctx context.Context, ui *cli.Streams, b *opened, machine *executor.Machine, prompt []int32, drivers []driver.Driver) error {
	if !b.Has(referencePlan) {
		return diag.New(diag.ClassInput, "--check needs a reference program, and this bundle has none").WithHint("emit it with --with-reference")
	}
	plan, err := b.plan(referencePlan)
	if err != nil {
		return err
	}
	ref, err := Execute(ctx, plan, b.reference(), 0, executor.Options{Drivers: drivers, Deadline: o.deadline, Checked: true})
	if err != nil {
		return err
	}
	defer ref.Close()
	got, vocab, err := logits(ctx, machine, prompt)
	if err != nil {
		return err
	}
	want, _, err := logits(ctx, ref, prompt)
	if err != nil {
		return err
	}
	checked := compare(got, want, vocab)
	quantised := slices.ContainsFunc(machine.Plan().Decisions, func(d planir.Decision) bool { return d.Scheme.Rounds() })
	if quantised {
		checked.LimitKL = checkKL
	} else {
		checked.LimitAbs = checkAbs
	}
	ui.Notef("check: %d positions against the reference: largest difference %.2g, mean KL %.2g, same top token %.1f %%", checked.Positions, checked.MaxAbsDiff, checked.MeanKL, 100*checked.SameTop)
	if quantised && !(checked.MeanKL <= checkKL) || !quantised && !(checked.MaxAbsDiff <= checkAbs) {
		return diag.New(diag.ClassRun, "check: execution differs from the reference: largest difference %.3g, mean KL %.3g, want difference <= %.3g or KL <= %.3g", checked.MaxAbsDiff, checked.MeanKL, checkAbs, checkKL).
			WithHint("this is a defect of a driver or of the plan's execution, not of quantisation; hetrun --steps shows what ran where")
	}
	return nil
}

// compare measures how far two sets of logits [T,vocab] are apart.
func compare(got, want []float32, vocab int) checked {
	rows := len(want) / vocab
	result := checked{Positions: rows}
	if len(got) != len(want) {
		result.MaxAbsDiff, result.MeanKL = math.Inf(1), math.Inf(1)
		return result
	}
	same := 0
	for t := 0; t < rows; t++ {
		found, wanted := got[t*vocab:(t+1)*vocab], want[t*vocab:(t+1)*vocab]
		lg, lw := logSumExp(found), logSumExp(wanted)
		kl := 0.0
		for i := range wanted {
			d := math.Abs(float64(found[i]) - float64(wanted[i]))
			result.MaxAbsDiff = max(result.MaxAbsDiff, d) // the builtin: NaN sticks
			lp := float64(wanted[i]) - lw
			kl += math.Exp(lp) * (lp - (float64(found[i]) - lg))
		}
		result.MeanKL += kl / float64(rows)
		if argmax(found) == argmax(wanted) {
			same++
		}
	}
	result.SameTop = float64(same) / float64(rows)
	return result
}

func logSumExp(v []float32) float64 {
	hi := float64(slices.Max(v))
	sum := 0.0
	for _, x := range v {
		sum += math.Exp(float64(x) - hi)
	}
	return hi + math.Log(sum)
}

func argmax(v []float32) int {
	best := 0
	for i, x := range v {
		if x > v[best] {
			best = i
		}
	}
	return best
}

func printSteps(ui *cli.Streams, steps []executor.StepStat) {
	rows := make([][]string, len(steps))
	for i, st := range steps {
		us := func(ns int64) string { return fmt.Sprintf("%.1f", float64(ns)/1e3/float64(st.Runs)) }
		rows[i] = []string{st.Program, st.Section, st.Proc, st.Node, strconv.FormatInt(st.Runs, 10), us(st.RunNS), us(st.WaitNS), fmt.Sprintf("%.1f", float64(st.ExpectNS)/1e3)}
	}
	ui.Table([]string{"program", "section", "lane", "step", ">runs", ">us", ">wait us", ">expected us"}, rows)
}

// readAll reads a prompt from a file, or from standard input for "-". It returns when ctx ends even while
// nobody writes to the input.
func readAll(ctx context.Context, s *cli.Streams, path string) (string, error) {
	const limit = 16 << 20
	in := s.In
	if path != "-" {
		file, err := wholefile.Open(path)
		if err != nil {
			return "", fmt.Errorf("prompt: %w", err)
		}
		defer file.Close()
		in = file
	}
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(in, limit+1))
		done <- result{data, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case result := <-done:
		switch {
		case result.err != nil:
			return "", diag.New(diag.ClassInput, "read prompt: %w", result.err)
		case len(result.data) > limit:
			return "", diag.New(diag.ClassInput, "read prompt %q: more than %d bytes", path, limit)
		}
		return string(result.data), nil
	}
}
