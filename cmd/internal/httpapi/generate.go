package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
	"github.com/hetc/hetc/runtime/tokenizer"
)

// endpoint is a way to have text generated.
type endpoint struct {
	fields map[string]field
	format format
	prefix string // of ids
	// maxTokens is the length of answers to requests that do not say; 0: as long as may be
	maxTokens int
	// prompt is the tokens to continue.
	prompt func(ctx context.Context, tok tokenizer.Tokenizer, r *request) ([]int32, error)
}

var chat = endpoint{fields: chatFields, format: chatFormat{}, prefix: "chatcmpl-", prompt: conversation}

// completion has OpenAI's default length.
var completion = endpoint{fields: completionFields, format: textFormat{}, prefix: "cmpl-", prompt: continued,
	maxTokens: 16}

// conversation returns the tokens of messages up to where the answer begins. Templates write the token that begins a
// text.
func conversation(ctx context.Context, tok tokenizer.Tokenizer, r *request) ([]int32, error) {
	if r.messages == nil {
		return nil, refuse("messages", "messages is missing; want a list of at least one message")
	}
	text, err := tok.Chat(ctx, r.messages, tokenizer.ChatOptions{AddGenerationPrompt: true, Now: time.Now()})
	if err != nil {
		if ctx.Err() == nil {
			err = refuse("messages", "messages: %v; /v1/completions takes text without a template", err)
		}
		return nil, err
	}
	return tok.Encode(text)
}

// continued returns the tokens of a text, or those that the request gives.
func continued(_ context.Context, tok tokenizer.Tokenizer, r *request) ([]int32, error) {
	if r.ids != nil {
		return r.ids, nil
	}
	return tok.Prompt(r.text)
}

// generate answers a request for text.
func (a *API) generate(w http.ResponseWriter, r *http.Request, e *endpoint) {
	body, wrong := a.body(w, r)
	if wrong != nil {
		a.fail(w, wrong)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.Timeout)
	defer cancel()
	asked, err := a.understand(ctx, e, body, strings.Join(r.Header.Values(classHeader), ", "))
	var answer Answer
	if err == nil {
		answer, err = a.engine.Submit(asked.submission)
	}
	if err != nil {
		a.failed(ctx, w, err)
		return
	}
	defer end(answer)
	g := a.generation(e, asked, answer)
	w.Header().Set("X-Request-Id", g.head.ID)
	if asked.stream {
		g.stream(ctx, w)
	} else {
		g.whole(ctx, w)
	}
}

// readers is how many bodies are parsed and turned into tokens at a time. This bounds the memory of that work and
// leaves cores to the model. A body beyond longBody takes many times its bytes, and tenths of a second. Such bodies
// take turns, so that short ones do not wait for them. Before each, the garbage of the one before is collected: that
// takes milliseconds, and without it the garbage of several would add up.
const (
	readers  = 2
	longBody = 64 << 10
)

// await waits for the turn of a body of so many bytes. The caller calls leave when the body has become tokens.
func (a *API) await(ctx context.Context, size int) (leave func(), err error) {
	turns := []chan struct{}{a.reading}
	if size > longBody {
		turns = []chan struct{}{a.readingLong, a.reading}
	}
	held := 0
	leave = func() {
		for _, turn := range turns[:held] {
			<-turn
		}
	}
	for _, turn := range turns {
		select {
		case turn <- struct{}{}:
			held++
		case <-ctx.Done():
			leave()
			return nil, ctx.Err()
		}
	}
	return leave, nil
}

// understand turns a body into the request to the engine.
func (a *API) understand(ctx context.Context, e *endpoint, body []byte, class string) (*request, error) {
	leave, err := a.await(ctx, len(body))
	if err != nil {
		return nil, err
	}
	defer leave()
	if len(body) > longBody {
		runtime.GC()
	}
	asked, wrong := parse(body, e.fields)
	if wrong == nil && asked.model != "" {
		wrong = a.named(asked.model)
	}
	if wrong == nil {
		wrong = classify(asked, class)
	}
	if wrong != nil {
		return nil, wrong
	}
	if err := a.submit(ctx, e, asked); err != nil {
		return nil, err
	}
	asked.messages, asked.text, asked.ids = nil, "", nil // the engine has the tokens
	return asked, nil
}

// end waits until a request has left the engine.
func end(answer Answer) {
	answer.Cancel()
	for more := true; more; {
		_, more, _ = answer.Next(context.Background())
	}
}

// body reads the body of a request, which has to be JSON: pages of the web may send other types without asking.
func (a *API) body(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return nil, refuse("", "content type %q; send the header Content-Type: application/json",
			brief(r.Header.Get("Content-Type"))).as(http.StatusUnsupportedMediaType, "unsupported_media_type")
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, refuse("", "content encoding %q; send the body as it is, without that header", brief(encoding)).
			as(http.StatusUnsupportedMediaType, "unsupported_media_type")
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout))
	body, large, err := a.read(r)
	switch {
	case large:
		return nil, refuse("", "the body has more than %d bytes; shorten it, or have the server started with another "+
			"--max-body", a.MaxBody).as(http.StatusRequestEntityTooLarge, "request_too_large")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, refuse("", "the body did not come within %v; send the request again", readTimeout).
			as(http.StatusRequestTimeout, "body_timeout")
	case err != nil:
		return nil, refuse("", "read the body: %v", err)
	case !utf8.Valid(body): // encoding/json would put other characters in place of what is none
		return nil, refuse("", "the body is not UTF-8, as JSON has to be")
	}
	// net/http reads on, without a time limit, to notice when the client leaves.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return body, nil
}

// read returns the body of a request, or that it is too large. A body that is too large is read to its end and dropped:
// most clients send everything before they read an answer, and would otherwise report a broken connection. A client
// that asks before it sends (Expect: 100-continue) is refused at once.
func (a *API) read(r *http.Request) (body []byte, large bool, err error) {
	if r.ContentLength > a.MaxBody && r.Header.Get("Expect") != "" {
		return nil, true, nil
	}
	if size := r.ContentLength; 0 <= size && size <= a.MaxBody {
		body, err = readSized(r.Body, int(size))
		return body, false, err
	}
	body, err = io.ReadAll(io.LimitReader(r.Body, min(a.MaxBody, math.MaxInt64-1)+1))
	if large = int64(len(body)) > a.MaxBody; large {
		_, err = io.Copy(io.Discard, r.Body)
	}
	return body, large, err
}

// firstPart is how many bytes of a body are read before memory is taken for as many as its head announces.
const firstPart = 64 << 10

// readSized reads a body of known size.
func readSized(from io.Reader, size int) ([]byte, error) {
	body := make([]byte, min(size, firstPart))
	read, err := io.ReadFull(from, body)
	if err != nil || read == size {
		return body, err
	}
	body = append(make([]byte, 0, size), body...)[:size]
	_, err = io.ReadFull(from, body[read:])
	return body, err
}

// classHeader overrides the class that follows from service_tier.
const classHeader = "X-Hetc-Class"

// classify says whether somebody waits for the answer.
func classify(asked *request, header string) *problem {
	asked.class = scheduler.Reactive
	switch strings.ToLower(header) {
	case "":
		if asked.tier == tierFlex {
			asked.class = scheduler.Proactive
		}
	case "proactive":
		asked.class = scheduler.Proactive
	case "reactive":
	default:
		return refuse(classHeader, "header %s: want reactive or proactive, got %q", classHeader, brief(header))
	}
	return nil
}

// submit makes the request to the engine.
func (a *API) submit(ctx context.Context, e *endpoint, asked *request) error {
	prompt, err := e.prompt(ctx, a.Tokenizer, asked)
	if err != nil {
		return err
	}
	name := "messages"
	if asked.messages == nil {
		name = "prompt"
	}
	switch count := len(prompt); {
	case count == 0:
		return refuse(name, "%s: no tokens, and the model has none to begin with; give some text", name)
	case count > a.Context:
		return refuse(name, "%s: %d tokens, and the context has %d; shorten it", name, count, a.Context).
			as(http.StatusBadRequest, "context_length_exceeded")
	}
	for i, id := range prompt {
		if id < 0 || int(id) >= a.Vocabulary {
			return refuse(name, "%s[%d]: token id %d, want 0 to %d", name, i, id, a.Vocabulary-1)
		}
	}
	// The last token of an answer needs no position.
	most := min(a.MaxTokens, a.Context-len(prompt)+1)
	switch {
	case asked.maxTokens > 0:
		most = min(most, asked.maxTokens)
	case e.maxTokens > 0:
		most = min(most, e.maxTokens)
	}
	sampler := asked.sampler
	if !asked.seeded {
		sampler.Seed = a.draw()
	}
	scores := -1
	if asked.logProbs {
		scores = asked.likely
	}
	asked.submission = serving.Request{Class: asked.class, Prompt: prompt, MaxTokens: most, Sampler: sampler,
		LogProbs: scores}
	return nil
}

// failed answers with an error, unless the client has left.
func (a *API) failed(ctx context.Context, w http.ResponseWriter, err error) {
	abortIfLeft(ctx)
	a.fail(w, a.problemOf(ctx, err))
}

// abortIfLeft breaks the connection of a client that has left. A client that has closed only its sending side still
// reads, and must not take an empty or partial response for the answer.
func abortIfLeft(ctx context.Context) {
	if errors.Is(ctx.Err(), context.Canceled) {
		panic(http.ErrAbortHandler)
	}
}

// problemOf returns what a client gets for an error.
func (a *API) problemOf(ctx context.Context, err error) *problem {
	var wrong *problem
	switch class := diag.ClassOf(err); {
	case errors.As(err, &wrong):
		return wrong
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &problem{status: http.StatusGatewayTimeout, kind: kindServer, code: "timeout",
			message: fmt.Sprintf("not answered within %v; ask for fewer tokens, or have the server started with another "+
				"--request-timeout", a.Timeout)}
	case errors.Is(err, serving.ErrFull):
		return &problem{status: http.StatusTooManyRequests, kind: kindRate, code: "rate_limit_exceeded",
			message: "the queue is full; send the request again later"}
	case errors.Is(err, serving.ErrDraining):
		return unavailable("draining", "the server is shutting down; send the request to another one")
	case class == diag.ClassInput || class == diag.ClassUsage:
		return refuse("", "%s", told(err))
	}
	a.Logf("a request failed: %s", told(err))
	return &problem{status: http.StatusInternalServerError, kind: kindServer,
		message: "the request could not be computed; the server's log says why"}
}

// generation is an answer on its way to a client.
type generation struct {
	api      *API
	asked    *request
	format   format
	head     head
	answer   Answer
	composed composer
	tokens   int   // of the answer so far
	latest   int64 // when the latest token came, in ns from the submission; -1: none has
}

// generation begins an answer.
func (a *API) generation(e *endpoint, asked *request, answer Answer) *generation {
	tier := "default"
	if asked.class == scheduler.Proactive {
		tier = tierFlex
	}
	now := time.Now()
	return &generation{
		api: a, asked: asked, format: e.format, answer: answer, latest: -1,
		head: head{ID: fmt.Sprintf("%s%016x", e.prefix, a.draw()), Created: now.Unix(), Model: a.Model,
			Fingerprint: a.Fingerprint, Tier: tier},
		composed: composer{decode: a.Tokenizer.Stream(), stops: newStopper(asked.stop),
			ends: spelledBy(asked.stop, a.special)},
	}
}

// Reasons for which an answer ends, as OpenAI calls them.
const (
	finishStop   = "stop"
	finishLength = "length"
)

// follow shows each piece of the answer as soon as it is there, and returns why the answer ended. It calls pause before
// it waits for a token.
func (g *generation) follow(ctx context.Context, show func(part) error, pause func() error) (finish string, err error) {
	for {
		if !g.answer.Ready() {
			if err := pause(); err != nil {
				return "", err
			}
		}
		token, there, err := g.answer.Next(ctx)
		if err != nil {
			return "", err
		}
		if !there {
			return g.finish(show)
		}
		g.tokens++
		g.api.metrics.generated(g.asked.class, token.AfterNS, g.latest)
		g.latest = token.AfterNS
		piece, scores, stopped := g.composed.push(token.ID, g.score(&token))
		if piece != "" || len(scores) > 0 {
			if err := show(part{text: piece, scores: scores}); err != nil {
				return "", err
			}
		}
		if stopped {
			g.answer.Enough()
			return finishStop, nil
		}
	}
}

// finish hands on the rest of an answer that has ended.
func (g *generation) finish(show func(part) error) (string, error) {
	reason, err := g.answer.End()
	if err != nil {
		return "", err
	}
	if reason == serving.Cancelled {
		return "", serving.ErrDraining
	}
	piece, scores, stopped := g.composed.finish()
	if piece != "" || len(scores) > 0 {
		err = show(part{text: piece, scores: scores})
	}
	if stopped || reason == serving.Stop {
		return finishStop, err
	}
	return finishLength, err
}

// score returns a token with its log probability, nil where none is asked for.
func (g *generation) score(token *serving.Token) *scored {
	if !g.asked.logProbs {
		return nil
	}
	tok := g.api.Tokenizer
	out := &scored{text: tokenText(tok, token.ID), logProb: token.LogProb}
	for _, other := range token.Likely {
		out.likely = append(out.likely, scored{text: tokenText(tok, other.ID), logProb: other.LogProb})
	}
	return out
}

// usage counts the tokens of an answer, once the engine has ended it.
func (g *generation) usage() usage {
	end(g.answer)
	counted := g.answer.Usage()
	return usage{Prompt: counted.PromptTokens, Completion: g.tokens, Total: counted.PromptTokens + g.tokens,
		Details: promptDetails{counted.ReusedTokens}}
}

// whole answers with one document.
func (g *generation) whole(ctx context.Context, w http.ResponseWriter) {
	var text strings.Builder
	var all part
	finish, err := g.follow(ctx, func(p part) error {
		text.WriteString(p.text)
		all.scores = append(all.scores, p.scores...)
		return nil
	}, func() error { return nil })
	if err != nil {
		g.api.failed(ctx, w, err)
		return
	}
	all.text, all.finish = text.String(), &finish
	g.api.write(w, http.StatusOK, g.format.whole(g.head, all, g.asked.logProbs, g.usage()))
}

// stream answers with server-sent events. The status 200 goes out before the first token, so that an error from then on
// is an event, and the last one.
func (g *generation) stream(ctx context.Context, w http.ResponseWriter) {
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-cache")
	header.Set("X-Accel-Buffering", "no") // nginx holds events back otherwise
	var counted **usage
	if g.asked.usage {
		counted = new(*usage)
	}
	out := eventStream{w: w, control: http.NewResponseController(w), held: true} // the head
	show := func(p part) error {
		return out.send(encode(g.format.event(g.head, p, g.asked.logProbs, counted)))
	}
	var err error
	if g.format != (textFormat{}) {
		err = show(part{first: true})
	}
	finish := ""
	if err == nil {
		finish, err = g.follow(ctx, show, out.flush)
	}
	if err == nil {
		err = show(part{finish: &finish})
	}
	if err == nil && g.asked.usage {
		err = out.send(encode(g.format.last(g.head, g.usage())))
	}
	if err == nil {
		err = out.send([]byte("[DONE]\n"))
	}
	if err != nil && !errors.Is(err, errGone) {
		abortIfLeft(ctx)
		_ = out.send(encode(g.api.problemOf(ctx, err)))
	}
	_ = out.flush()
}

// errGone says that a client takes no more.
var errGone = errors.New("the client has gone")

// eventStream is a stream of server-sent events. Events that are there at the same time go out together: each write
// costs the server and its client as much as a step of a small model.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	held    bool // something is buffered
}

// send writes an event; data ends with a line feed.
func (e *eventStream) send(data []byte) error {
	e.held = true
	return e.within(func() error {
		_, err := fmt.Fprintf(e.w, "data: %s\n", data)
		return err
	})
}

// flush sends what is buffered.
func (e *eventStream) flush() error {
	if !e.held {
		return nil
	}
	e.held = false
	return e.within(e.control.Flush)
}

// within writes under the time limit. A client that does not take it in time is gone.
func (e *eventStream) within(write func() error) error {
	err := e.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err == nil || errors.Is(err, http.ErrNotSupported) {
		err = write()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return nil
}
