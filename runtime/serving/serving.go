// Package serving knows how many requests share one machine: it asks the scheduler what to do next, lets the executor
// do it, samples, and hands every token to whom it belongs. What a request gets does not depend on the others.
//
// One goroutine, that of Run, uses the machine; between two program calls it takes notice of new and cancelled
// requests. The cache of a request that has ended stays where it is until another one needs its place: a request whose
// prompt begins with the same tokens processes only the rest.
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
	// Scheduler is what requests are scheduled by. Slots of 0 are as many as the plan has sequences; the functions that
	// predict times are the plan's.
	Scheduler scheduler.Config
	// Draft is how many tokens are guessed at most from what has come before, and verified together, when one request
	// decodes alone and the plan's times promise a gain; 0: none; below 0: as the plan says. A plan whose programs
	// differ in schemes, or compute in floating point, would not verify drafts to the bit, and gets none.
	Draft int
	// Prefix are tokens whose cache was computed ahead of time by this plan, and PrefixCache is that
	// (executor.Control.Cached); nil: there are none. Prompts that begin with them, or with some of them, do not
	// process these again.
	Prefix      []int32
	PrefixCache []byte
	// Ended is told of every request that got a token, when it ends; nil: nothing is. It must not call the Server.
	Ended func(Ended)
	// Clock is the time of a simulated machine; nil: it is real. On a simulated clock nothing is processed beside
	// decoding and nothing is drafted: what these gain is measured in real time.
	Clock Clock
}

// Ended is what a request was and took.
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
	Given    []int32
	LogProbs int // how many of the likeliest tokens come with every token, beside its own log probability; -1: neither
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

// Usage is what a request took.
type Usage struct {
	PromptTokens    int
	ReusedTokens    int // of the prompt, from the cache
	GeneratedTokens int
	// Guessed is how many of the generated tokens the text so far had a guess for, where somebody wants to know it
	// (Options.Ended) or drafts are tried, and Right how many of those guesses were right.
	Guessed, Right int
}

// ErrFull refuses a request because as many wait as may; ErrDraining because the server accepts none any more.
var (
	ErrFull     = scheduler.ErrFull
	ErrDraining = errors.New("the server is shutting down")
)

// Answer is a request under way. Its methods are for one goroutine at a time.
type Answer struct {
	server  *Server
	id      scheduler.ID
	request Request
	more    chan struct{} // with room for one: there is something new

	// What follows is guarded by the server's mutex. A request takes memory for the tokens that it has, not for those
	// that it may get: many of long contexts may wait. A slow reader holds up no other request.
	tokens []Token
	taken  int   // of them, by the reader
	untold int   // of them, that the reader does not know of
	since  int64 // when the first of those was there, on the server's clock
	ended  bool
	ending Reason // why its reader wants it to end; "": it does not

	// What follows is the loop's until the request has ended.
	guesses guesses
	slot    int // -1: none yet
	done    int // tokens of the prompt in the cache
	next    int32
	given   int // tokens of request.Given that were taken
	reason  Reason
	err     error
	usage   Usage
	arrived int64 // on the server's clock
}

// Next waits for the next token: the first one at once, later ones at most a millisecond longer than they take, so that
// a reader of a fast model is not woken for each. There is none when the request has ended, or when ctx has: then with
// its error.
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
		a.tokens, a.taken, a.untold = a.tokens[:0], 0, 0
	}
	return token, true, a.ended
}

// Ready reports whether Next returns at once.
func (a *Answer) Ready() bool {
	a.server.mutex.Lock()
	defer a.server.mutex.Unlock()
	return a.taken < len(a.tokens) || a.ended
}

// give adds a token, which the server tells of before its next call. The mutex is held.
func (a *Answer) give(token Token) {
	if a.untold == 0 {
		a.since = a.arrived + token.AfterNS
	}
	a.tokens = append(a.tokens, token)
	a.untold++
}

// tell has the reader look again. The mutex is held.
func (a *Answer) tell() {
	a.untold = 0
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

// End says why the request ended, once it has: an error when a processor failed or its logits meant nothing.
func (a *Answer) End() (Reason, error) { return a.reason, a.err }

// Usage returns what the request took, once it has ended.
func (a *Answer) Usage() Usage { return a.usage }

// Cancel ends the request at the next boundary. It may be called more than once, and after the end.
func (a *Answer) Cancel() { a.leave(Cancelled) }

// Enough ends the request at the next boundary, too, because its reader has all that it wants.
func (a *Answer) Enough() { a.leave(Stop) }

// leave notes why the reader wants the end; the first reason counts.
func (a *Answer) leave(reason Reason) {
	a.server.mutex.Lock()
	if a.ending == "" {
		a.ending = reason
	}
	a.server.mutex.Unlock()
	a.server.notify()
}

// slot is a sequence of the cache: what it holds, and who uses it.
type slot struct {
	cached prefix.Cached
	user   *Answer
	used   int64 // when it was last given to a request, in the order of that
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

	ended    func(Ended)    // nil: none is told
	drafts   *planir.Drafts // nil: none are tried
	guessing bool           // what a draft would be is looked up

	mutex    sync.Mutex // guards what follows
	state    *scheduler.State
	answers  map[scheduler.ID]*Answer
	lastID   scheduler.ID
	draining bool
	metrics  Metrics
	tally    tally

	prefix      prefix.Cached // what was computed ahead of time
	prefixCache []byte

	slots []slot // of the loop
	uses  int64
	// whose chunk is processed beside decoding, and how many tokens that is; nil: of none
	beside      *Answer
	besideCount int
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

// notify lets the loop look again.
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
