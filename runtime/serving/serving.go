// Package serving knows how many requests share one machine. It asks the scheduler what to do next, has the executor do
// it, samples, and hands every token to its request. The answer to a request does not depend on the others.
//
// One goroutine, that of Run, uses the machine. Between two program calls it looks for new and cancelled requests. The
// cache of a request that has ended stays in its slot until another request needs the slot: a request whose prompt
// begins with the same tokens processes only the rest.
package serving

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/prefix"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/scheduler"
)

// Options configure a Server.
type Options struct {
	// Scheduler decides who goes first. Slots of 0 are as many as the plan has sequences. New sets the functions that
	// predict times, from the plan.
	Scheduler scheduler.Config
	// Draft is the most tokens of a draft; 0: no drafts; below 0: as the plan says. A draft is guessed from the text so
	// far and verified in one call, when one request decodes alone and the plan's times promise a gain. Plans whose
	// programs differ in schemes, or compute in floating point, get none: they would not verify drafts to the bit.
	Draft int
	// Prefix are tokens whose cache this plan has computed ahead of time; nil: there are none. PrefixCache is that
	// cache (executor.Control.Cached). Prompts that begin with all or some of these tokens do not process them again.
	Prefix      []int32
	PrefixCache []byte
	// Ended is called at the end of every request that got a token; nil: of none. It must not call the Server.
	Ended func(Ended)
	// Clock is the clock of a simulated machine; nil: time is real. With a simulated clock no chunk is processed beside
	// decoding and no draft is tried, because their gain is measured in real time.
	Clock Clock
}

// Ended describes a request that has ended.
type Ended struct {
	ArrivedNS int64 // since New
	Class     scheduler.Class
	Usage
}

// Request is a prompt to continue.
type Request struct {
	Class     scheduler.Class
	Prompt    []int32 // token ids, at least one
	MaxTokens int     // most tokens to generate, at least 1
	Sampler   executor.Sampler
	// IgnoreEnd generates MaxTokens whatever the model says: for measurements.
	IgnoreEnd bool
	// Given are the tokens of the answer, at least MaxTokens, whatever the logits say: for measurements of a text of
	// the caller's choice. nil: the sampler draws them.
	Given []int32
	// LogProbs asks for the log probability of every token, and for those of so many of the likeliest tokens in its
	// place; -1: for neither.
	LogProbs int
}

// Token is a generated token. LogProb is the natural logarithm of its probability before temperature and truncation.
type Token struct {
	ID      int32
	AfterNS int64 // from Submit until it was there
	LogProb float64
	Likely  []Likely // in descending order; ties by id
}

// Likely is a token that might have been next.
type Likely struct {
	ID      int32
	LogProb float64
}

// Reason is why a request ended.
type Reason string

const (
	Stop      Reason = "stop"      // the model's end token, which is not part of the answer, or Enough
	Length    Reason = "length"    // MaxTokens
	Full      Reason = "full"      // the context of the plan
	Cancelled Reason = "cancelled" // by Cancel, or by the end of Run
)

// Usage counts the tokens of a request.
type Usage struct {
	PromptTokens    int
	ReusedTokens    int // of the prompt, from the cache
	GeneratedTokens int
	// Guessed counts the generated tokens for which the text so far had a guess, and Right the right guesses. Both are
	// counted where drafts are tried or Options.Ended is set.
	Guessed, Right int
}

// ErrFull refuses a request while the queue is full, ErrDraining because the server accepts no more requests.
var (
	ErrFull     = scheduler.ErrFull
	ErrDraining = errors.New("the server is shutting down")
)

// Answer is a request under way. Its methods are for one goroutine at a time.
type Answer struct {
	server  *Server
	id      scheduler.ID
	request Request
	more    chan struct{} // wakes the reader; has room for one

	// The server's mutex guards what follows. Memory is taken for tokens that are there, not for MaxTokens: many
	// requests of long contexts may wait. The list grows while the reader is slow, and no other request waits for it.
	tokens  []Token
	taken   int   // how many of them the reader has
	silent  int   // how many of the others have come since the reader was last woken
	since   int64 // when the first silent one came, on the server's clock
	ended   bool
	wantEnd Reason // why its reader wants it to end; "": it does not

	// The loop alone uses what follows until the request has ended.
	guesses guesses
	slot    int   // -1: none yet
	done    int   // tokens of the prompt in the cache
	next    int32 // the token to decode next
	given   int   // tokens of request.Given that were taken
	reason  Reason
	err     error
	usage   Usage
	arrived int64 // on the server's clock
}

// Next waits for the next token. there is false once the request has ended; the error is that of ctx. The first token
// is returned at once. Later ones may come up to a millisecond late, so that a reader of a fast model is not woken for
// each.
func (a *Answer) Next(ctx context.Context) (token Token, there bool, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return token, false, err
		}
		token, there, ended := a.take()
		if there || ended {
			return token, there, nil
		}
		select {
		case <-a.more:
		case <-ctx.Done():
		}
	}
}

// take returns the next token, if it is there, and whether the request has ended.
func (a *Answer) take() (token Token, there, ended bool) {
	a.server.mutex.Lock()
	defer a.server.mutex.Unlock()
	if a.taken == len(a.tokens) {
		return token, false, a.ended
	}
	token = a.tokens[a.taken]
	if a.taken++; a.taken == len(a.tokens) {
		a.tokens, a.taken, a.silent = a.tokens[:0], 0, 0
	}
	return token, true, a.ended
}

// Ready reports whether Next returns at once.
func (a *Answer) Ready() bool {
	a.server.mutex.Lock()
	defer a.server.mutex.Unlock()
	return a.taken < len(a.tokens) || a.ended
}

// add adds a token. wakeReaders decides when the reader is woken for it. The mutex is held.
func (a *Answer) add(token Token) {
	if a.silent == 0 {
		a.since = a.arrived + token.AfterNS
	}
	a.tokens = append(a.tokens, token)
	a.silent++
}

// wake has the reader look again. The mutex is held.
func (a *Answer) wake() {
	a.silent = 0
	select {
	case a.more <- struct{}{}:
	default: // it is going to
	}
}

// Tokens returns the generated tokens as they come, until the request has ended.
func (a *Answer) Tokens() iter.Seq[Token] {
	return func(yield func(Token) bool) {
		for {
			token, there, _ := a.Next(context.Background())
			if !there || !yield(token) {
				return
			}
		}
	}
}

// End says why the request has ended. The error says that a processor failed, or that logits had no finite maximum.
func (a *Answer) End() (Reason, error) { return a.reason, a.err }

// Usage counts the tokens of the request, once it has ended.
func (a *Answer) Usage() Usage { return a.usage }

// Cancel ends the request at the next boundary. It may be called more than once, and after the end.
func (a *Answer) Cancel() { a.endBecause(Cancelled) }

// Enough ends the request at the next boundary, too, because its reader has all that it wants.
func (a *Answer) Enough() { a.endBecause(Stop) }

// endBecause notes why the reader wants the request to end; the first reason counts.
func (a *Answer) endBecause(reason Reason) {
	a.server.mutex.Lock()
	if a.wantEnd == "" {
		a.wantEnd = reason
	}
	a.server.mutex.Unlock()
	a.server.notify()
}

// slot is a sequence of the cache.
type slot struct {
	cached prefix.Cached // what it holds
	user   *Answer       // nil: it is free
	used   int64         // Server.uses when it was last given to a request
}

// Server is a machine that requests share.
type Server struct {
	machine *executor.Machine
	times   *Times
	context int
	end     []int // ids of end tokens
	reuse   prefix.Reuse
	clock   Clock
	wake    chan struct{}

	ended    func(Ended)    // Options.Ended
	drafts   *planir.Drafts // nil: none are tried
	guessing bool           // guesses are looked up, to be tried or counted

	mutex    sync.Mutex // guards what follows
	state    *scheduler.State
	answers  map[scheduler.ID]*Answer
	lastID   scheduler.ID
	draining bool
	metrics  Metrics
	tally    tally

	prefix      prefix.Cached // Options.Prefix
	prefixCache []byte

	// The loop alone uses what follows.
	slots       []slot
	uses        int64   // how often a slot was given to a request
	beside      *Answer // whose chunk is processed beside decoding; nil: none is
	besideCount int     // tokens of that chunk
}

// Metrics count what has happened since New.
type Metrics struct {
	Waiting, Running [2]int   // requests now, by class
	Requests         [2]int64 // accepted, by class
	Refused          [2]int64 // because the queue was full, by class
	Cancelled        [2]int64
	PromptTokens     int64 // of requests whose first chunk has run
	ReusedTokens     int64
	GeneratedTokens  int64
	Chunks           int64
	Iterations       int64
	Preemptions      int64
	Beside           int64 // chunks processed beside decoding
	DraftTokens      int64 // guessed, and RightTokens of them rightly
	RightTokens      int64
	BusyNS           int64 // in program calls
	Calls            []CallTimes
}

// New prepares a machine to be shared. Only Run may use it from then on.
func New(machine *executor.Machine, options Options) (*Server, error) {
	plan := machine.Plan()
	config := options.Scheduler
	if config.Slots == 0 {
		config.Slots = machine.Sequences()
	}
	if config.Slots > machine.Sequences() {
		return nil, diag.New(diag.ClassUsage, "serve: %d slots, and the plan has a cache for %d sequences", config.Slots,
			machine.Sequences()).
			WithHint("solve with larger batches in the workload (batches: [2, 4, 8]), or ask for fewer slots")
	}
	config.Reserved = min(config.Reserved, config.Slots-1)
	times := TimesOf(plan)
	config.ChunkNS, config.DecodeNS = times.Chunk, times.Decode
	_, exact := plan.Precision()
	if exact && !plan.ByCall() && machine.Beside() && options.Clock == nil {
		config.Beside = times.Beside
	}
	state, err := scheduler.New(config)
	if err != nil {
		return nil, err
	}
	reuse := prefix.ReuseOf(plan)
	var drafts *planir.Drafts
	if exact && reuse.Long == 0 && options.Clock == nil {
		drafts = times.draftsOf(options.Draft)
	}
	wake, clock := make(chan struct{}, 1), options.Clock
	if clock == nil {
		clock = &wallClock{time.Now(), wake}
	}
	return &Server{
		ended: options.Ended, machine: machine, times: times, drafts: drafts,
		guessing: drafts != nil || options.Ended != nil, context: plan.MaxContext, end: plan.Model.EOS, reuse: reuse,
		clock: clock, wake: wake, state: state, answers: map[scheduler.ID]*Answer{},
		slots: make([]slot, config.Slots), prefixCache: options.PrefixCache,
		prefix: reuse.Computed(options.Prefix), tally: tally{times: times, sums: map[CallKey]CallTimes{}, idle: true},
	}, nil
}

// now returns the scheduler's clock.
func (s *Server) now() int64 { return s.clock.Now() }

// notify has the loop look again.
func (s *Server) notify() {
	select {
	case s.wake <- struct{}{}:
	default: // it is going to
	}
}

// Submit adds a request. ErrFull and ErrDraining refuse it for now; other errors are of the request.
func (s *Server) Submit(request Request) (*Answer, error) {
	if err := s.admits(&request); err != nil {
		return nil, err
	}
	request.Prompt = slices.Clone(request.Prompt)
	answer := &Answer{server: s, request: request, slot: -1, more: make(chan struct{}, 1)}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.draining {
		return nil, ErrDraining
	}
	s.lastID++
	answer.id, answer.arrived = s.lastID, s.now()
	err := s.state.Submit(answer.arrived,
		scheduler.Request{ID: answer.id, Class: request.Class, Prompt: len(request.Prompt)})
	if err != nil {
		if errors.Is(err, ErrFull) {
			s.metrics.Refused[request.Class]++
		}
		return nil, err
	}
	s.answers[answer.id] = answer
	s.metrics.Requests[request.Class]++
	s.notify()
	return answer, nil
}

// admits refuses a request that the machine could not answer.
func (s *Server) admits(request *Request) error {
	if err := request.Sampler.Validate(); err != nil {
		return err
	}
	if request.MaxTokens < 1 {
		return diag.New(diag.ClassUsage, "serve: %d tokens to generate, want at least 1", request.MaxTokens)
	}
	if request.Given != nil && len(request.Given) < request.MaxTokens {
		return diag.New(diag.ClassUsage, "serve: %d tokens of the answer are given, want at least %d", len(request.Given),
			request.MaxTokens)
	}
	for i, id := range request.Given {
		if id < 0 || int(id) >= s.machine.Vocabulary() {
			return diag.New(diag.ClassInput, "serve: given token %d is id %d, want 0..%d", i, id, s.machine.Vocabulary()-1)
		}
	}
	if request.LogProbs < -1 || request.LogProbs > s.machine.Vocabulary() {
		return diag.New(diag.ClassUsage, "serve: log probabilities of %d tokens, want 0..%d, or -1 for none",
			request.LogProbs, s.machine.Vocabulary())
	}
	if request.Class > scheduler.Reactive {
		return diag.New(diag.ClassUsage, "serve: class %d, want %d or %d", request.Class, scheduler.Proactive,
			scheduler.Reactive)
	}
	if tokens := len(request.Prompt); tokens == 0 || tokens > s.context {
		return diag.New(diag.ClassInput, "serve: a prompt of %d tokens, want 1..%d, the plan's context", tokens, s.context).
			WithHint("shorten the prompt, or solve with a larger context in the workload")
	}
	for i, id := range request.Prompt {
		if id < 0 || int(id) >= s.machine.Vocabulary() {
			return diag.New(diag.ClassInput, "serve: token %d of the prompt is id %d, want 0..%d", i, id,
				s.machine.Vocabulary()-1)
		}
	}
	return nil
}

// Drain accepts no more requests. Run returns when the last one has ended.
func (s *Server) Drain() {
	s.mutex.Lock()
	s.draining = true
	s.mutex.Unlock()
	s.notify()
}

// Metrics count what has happened so far.
func (s *Server) Metrics() Metrics {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	out := s.metrics
	for _, class := range []scheduler.Class{scheduler.Proactive, scheduler.Reactive} {
		out.Waiting[class], out.Running[class] = s.state.Waiting(class), s.state.Running(class)
	}
	counts := s.state.Counts()
	out.Chunks, out.Iterations, out.Preemptions = counts.Chunks, counts.Iterations, counts.Preemptions
	out.Beside = counts.Beside
	out.Calls = s.tally.all()
	return out
}
