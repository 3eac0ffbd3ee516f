package runcmd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/strictjson"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/tokenizer"
)

// job is one prompt of --prompts.
type job struct {
	id   string
	text string // repeated in front of the answer, empty for conversations and tokens
	ids  []int32
}

// line is a prompt as JSON: one of its ways to be given.
type line struct {
	ID       any             `json:"id"` // a string or a number; default: the number of the line
	Prompt   string          `json:"prompt"`
	Messages json.RawMessage `json:"messages"`
	Tokens   []int32         `json:"tokens"`
}

// wants are the JSON types of the keys of a line that have one.
var wants = map[string]string{"prompt": "a string", "tokens": "a list of token ids"}

// jobs reads the prompts of a file: JSON lines when its name ends in .jsonl, otherwise one text per line. Empty
// lines are nothing.
func (o *options) jobs(ctx context.Context, s *cli.Streams, tok tokenizer.Tokenizer) ([]job, error) {
	data, err := readAll(ctx, s, o.prompts)
	if err != nil {
		return nil, err
	}
	data = strings.TrimPrefix(data, "\ufeff") // editors on Windows begin a text so
	var out []job
	seen := map[string]int{}
	// All prompts are read before the first is answered: a mistake in the last one costs no generation.
	for i, text := range strings.Split(data, "\n") {
		text = strings.TrimSuffix(text, "\r")
		if strings.TrimSpace(text) == "" {
			continue
		}
		asked := line{Prompt: text}
		if strings.HasSuffix(o.prompts, ".jsonl") {
			asked, err = parseLine(text)
		}
		j := job{}
		if err == nil {
			j, err = o.job(ctx, tok, &asked, i+1)
		}
		if err != nil {
			return nil, diag.New(classOf(err), "%s:%d: %w", o.prompts, i+1, err)
		}
		if first := seen[j.id]; first > 0 {
			return nil, diag.New(diag.ClassInput, "%s:%d: id %q is that of line %d", o.prompts, i+1, j.id, first).
				WithHint("give every prompt an id of its own, or none any")
		}
		seen[j.id] = i + 1
		out = append(out, j)
	}
	if len(out) == 0 {
		return nil, diag.New(diag.ClassInput, "%s holds no prompt", o.prompts).WithHint("write one per line")
	}
	return out, nil
}

// classOf returns the class of a prompt's error: of the input, unless it says otherwise.
func classOf(err error) diag.Class {
	if class := diag.ClassOf(err); class != diag.ClassInternal {
		return class
	}
	return diag.ClassInput
}

// parseLine reads a line of JSON, an error of class ClassInput unless it holds one prompt.
func parseLine(text string) (line, error) {
	var asked line
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	// ids may be numbers beyond the integers of a float64
	decoder.UseNumber()
	err := decoder.Decode(&asked)
	if err == nil {
		if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one value")
		}
	}
	if err == nil {
		err = strictjson.OnceEach([]byte(text))
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		err = fmt.Errorf("got %s, want an object", wrong.Value)
		if want, ok := wants[wrong.Field]; ok {
			err = fmt.Errorf("key %q: got %s, want %s", wrong.Field, wrong.Value, want)
		}
	}
	if err != nil {
		return asked, diag.New(diag.ClassInput, "%w", err).
			WithHint(`write {"id": "a", "prompt": "Hello"}, or instead of prompt messages or tokens`)
	}
	ways := 0
	for _, has := range []bool{asked.Prompt != "", asked.Messages != nil, asked.Tokens != nil} {
		if has {
			ways++
		}
	}
	if ways != 1 {
		return asked, diag.New(diag.ClassInput, "got %d of prompt, messages and tokens, want one", ways)
	}
	return asked, nil
}

// job encodes a prompt that stands in line number n.
func (o *options) job(ctx context.Context, tok tokenizer.Tokenizer, asked *line, n int) (job, error) {
	j := job{id: strconv.Itoa(n)}
	switch id := asked.ID.(type) {
	case nil:
	case string:
		j.id = id
	case json.Number:
		j.id = id.String()
	default:
		return j, diag.New(diag.ClassInput, "id is %v, want a string or a number", id)
	}
	// Answers are lines that begin with the id: one with a line feed would look like two answers.
	if strings.ContainsFunc(j.id, unicode.IsControl) {
		return j, diag.New(diag.ClassInput, "id %q has control characters", j.id).WithHint("give it another id")
	}
	if asked.Tokens != nil {
		j.ids = asked.Tokens
		return j, someTokens(j.ids)
	}
	if tok == nil {
		return j, diag.New(diag.ClassInput, "the bundle has no tokenizer").
			WithHint(`give token ids: {"tokens": [1, 5, 7]} in a file that ends in .jsonl`)
	}
	var err error
	switch {
	case asked.Messages != nil:
		var messages []tokenizer.Message
		if messages, err = tokenizer.ParseMessages(asked.Messages); err == nil {
			j.ids, err = answer(ctx, tok, messages)
		}
	case o.chat:
		j.ids, err = answer(ctx, tok, o.message(asked.Prompt))
	default:
		j.text = asked.Prompt
		j.ids, err = tok.Prompt(asked.Prompt)
	}
	if err == nil {
		err = someTokens(j.ids)
	}
	return j, err
}

// someTokens refuses a prompt without any.
func someTokens(ids []int32) error {
	if len(ids) > 0 {
		return nil
	}
	return diag.New(diag.ClassInput, "the prompt has no tokens").WithHint("give some text, or at least one token id")
}

// answer returns the tokens of a conversation up to where the model's answer begins. Templates write the token that
// begins a text.
func answer(ctx context.Context, tok tokenizer.Tokenizer, messages []tokenizer.Message) ([]int32, error) {
	text, err := tok.Chat(ctx, messages, tokenizer.ChatOptions{AddGenerationPrompt: true, Now: time.Now()})
	if err != nil {
		return nil, err
	}
	return tok.Encode(text)
}

// batch is the document of --prompts --json.
type batch struct {
	Sequences int         `json:"sequences"` // decoded together at most
	Answers   []generated `json:"answers"`   // in the order of the prompts
	Tokens    int         `json:"tokens"`    // of all answers
	Seconds   float64     `json:"seconds"`   // of this machine, prompts included
}

// answerOf returns what is printed of a prompt's answer.
func answerOf(j *job, outcome *executor.Outcome, machine *executor.Machine, tok tokenizer.Tokenizer) generated {
	answer := generated{ID: j.id, Tokens: outcome.Tokens, Prompt: j.ids, Cached: outcome.Cached,
		PrefillUS: float64(outcome.PrefillNS) / 1e3, DecodeUS: median(outcome.DecodeNS) / 1e3,
		Simulated: outcome.Virtual, Emulated: len(machine.Emulated()) > 0, Evidence: machine.Plan().Evidence(),
		Stopped: outcome.Stopped, Full: outcome.Full}
	if outcome.Err != nil {
		answer.Error = outcome.Err.Error()
	}
	if tok != nil {
		var text strings.Builder
		stream := tok.Stream()
		for _, id := range outcome.Tokens {
			text.WriteString(stream.Push(id))
		}
		// A character may be cut off by the number of tokens; what is left of it is replaced.
		text.WriteString(stream.Flush())
		answer.Text = text.String()
	}
	return answer
}

// generateAll answers all prompts, as many at a time as the plan decodes together, and prints the answers in the order
// of the prompts, each once those before it are there.
func (o *options) generateAll(
	ctx context.Context, ui *cli.Streams, machine *executor.Machine, tok tokenizer.Tokenizer, jobs []job,
	prefix beginning,
) error {
	if machine.Sequences() == 1 {
		ui.Notef("the plan decodes one sequence at a time: prompts are answered one after the other (a workload " +
			"with batches decodes several together)")
	}
	requests := make([]executor.Request, len(jobs))
	for i, j := range jobs {
		requests[i] = executor.Request{Prompt: j.ids, MaxTokens: o.maxTokens, Sampler: o.sampler,
			Restore: func(control *executor.Control, sequence int) (int, error) {
				return prefix.restore(control, sequence, j.ids)
			}}
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := answerList{
		ui: ui, machine: machine, tok: tok, jobs: jobs, out: bufio.NewWriter(ui.Out), cancel: cancel,
		batch: batch{Sequences: machine.Sequences(), Answers: make([]generated, len(jobs))}, ended: make([]bool, len(jobs)),
	}
	began := time.Now()
	_, err := machine.GenerateBatch(ctx, requests, answers.add)
	if answers.unwritten != nil {
		return notWritten(answers.unwritten)
	}
	if err != nil {
		return err
	}
	answers.batch.Seconds = time.Since(began).Seconds()
	if o.steps {
		printSteps(ui, machine.Stats())
	}
	if err := ui.Result(answers.batch); err != nil || len(answers.failed) == 0 {
		return err
	}
	return diag.New(diag.ClassOf(answers.failed[0]), "%d of %d prompts could not be answered: %w", len(answers.failed),
		len(jobs), answers.failed[0])
}

// answerList collects the answers of generateAll and prints them in the order of the prompts.
type answerList struct {
	ui      *cli.Streams
	machine *executor.Machine
	tok     tokenizer.Tokenizer
	jobs    []job
	out     *bufio.Writer
	cancel  func() // ends the answers to come

	batch     batch
	ended     []bool // which answers are there
	next      int    // answers before this one are printed
	failed    []error
	unwritten error
}

// add takes an answer. A failed one does not stop the others; the command fails at the end.
func (l *answerList) add(i int, outcome *executor.Outcome) {
	answer := answerOf(&l.jobs[i], outcome, l.machine, l.tok)
	if outcome.Err != nil {
		l.failed = append(l.failed, fmt.Errorf("prompt %s: %w", answer.ID, outcome.Err))
	}
	l.batch.Tokens += len(outcome.Tokens)
	l.batch.Answers[i], l.ended[i] = answer, true
	for ; l.next < len(l.jobs) && l.ended[l.next]; l.next++ {
		l.show(l.next)
	}
}

// show prints an answer.
func (l *answerList) show(i int) {
	answer := &l.batch.Answers[i]
	switch {
	case answer.Error != "":
		l.ui.Warnf("prompt %s: %s", answer.ID, answer.Error)
		return
	case answer.Full:
		l.ui.Notef("prompt %s: the context of %d positions is full", answer.ID, l.machine.Plan().MaxContext)
	}
	if l.ui.JSON {
		return
	}
	text := l.jobs[i].text + answer.Text
	if l.tok == nil {
		text = strings.Trim(strings.ReplaceAll(fmt.Sprint(answer.Tokens), " ", ","), "[]")
	}
	fmt.Fprintf(l.out, "[%s] %s\n", answer.ID, text)
	if l.unwritten = l.out.Flush(); l.unwritten != nil {
		l.cancel() // the answers to come would be lost, too
	}
}
