// Package scheduler knows what a machine does next for many requests: which prompt it processes on, or of which
// requests it decodes a token together. It is a state machine: it has no clock, goroutine or lock, and knows neither
// tokens nor processors, so that a server and a simulation run the same decisions.
//
// It follows Agent.xpu (sec. 4.3 to 4.5) on one queue of program calls. A request is reactive, when somebody waits for
// it, or proactive. A chunk of a prompt and an iteration of decoding are never interrupted. Between them, reactive
// requests go first, proactive ones take what those leave, and one that has waited too long counts as reactive.
package scheduler

import (
	"container/list"
	"errors"
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
)

// ID names a request. The caller chooses it.
type ID int64

// Class says whether somebody waits for a request.
type Class uint8

const (
	Proactive Class = iota // background work, which is to be done some time
	Reactive               // somebody waits for every token
)

// String returns the word for a class.
func (c Class) String() string { return [...]string{"proactive", "reactive"}[c] }

// Policy is how requests share the machine.
type Policy string

const (
	Full     Policy = "full"     // classes, preemption at boundaries, batching within the slack of reactive requests
	Batching Policy = "batching" // continuous batching in the order of arrival, without classes
	FCFS     Policy = "fcfs"     // one request after the other
)

// Policies are all of them.
var Policies = []Policy{Full, Batching, FCFS}

// Config is the settings of a State. Times are in nanoseconds, on any clock of the caller.
type Config struct {
	Policy Policy
	Slots  int // how many requests may have positions in the cache at once, at least 1
	// Reserved is how many slots proactive requests leave free, less than Slots: a reactive request then seldom waits
	// until another one ends.
	Reserved int
	// Queue is how many requests may wait for a slot, 0: as many as come. Of policy Full it counts each class by
	// itself, so that background work that waits refuses nobody who waits.
	Queue int
	// AgeNS is how long a proactive request may go without progress before it counts as reactive; 0: for ever.
	AgeNS int64
	// Slack is the share by which an iteration may become slower for reactive requests because proactive ones are
	// decoded with them: B_cap of Agent.xpu (Alg. 2) by predicted times instead of a number.
	Slack float64
	// Gap is the share of time that proactive prompts may take while reactive requests decode, in [0,1).
	Gap float64

	// ChunkNS predicts the program call that processes the first of n tokens of a prompt: how many tokens that is, and
	// how long it takes.
	ChunkNS func(n int) (tokens int, ns int64)
	// DecodeNS predicts an iteration that decodes one token of each of n requests.
	DecodeNS func(n int) int64
	// Beside predicts what happens when one processor processes the next chunk of n tokens of a prompt while another
	// one decodes a token of each of batch requests, again and again; false: that is not possible. nil: it never is.
	Beside func(n, batch int) (Side, bool)
}

// Side has the times of a chunk and of the iterations beside it.
type Side struct {
	Tokens   int   // of the prompt
	ChunkNS  int64 // while requests decode
	AloneNS  int64 // while nothing else happens
	DecodeNS int64 // an iteration meanwhile
}

// Default returns the settings of a server with this many slots. The caller adds the predictions of times.
func Default(slots int) Config {
	return Config{Policy: Full, Slots: slots, Reserved: min(1, slots-1), Queue: 64, AgeNS: 10e9, Slack: 0.25, Gap: 0.2}
}

// validate returns an error for settings without a meaning.
func (c *Config) validate() error {
	switch {
	case !slices.Contains(Policies, c.Policy):
		return diag.New(diag.ClassUsage, "scheduler: policy %q, want %s", c.Policy, diag.OneOf(Policies))
	case c.Slots < 1:
		return diag.New(diag.ClassUsage, "scheduler: %d slots, want at least 1", c.Slots)
	case c.Reserved < 0 || c.Reserved >= c.Slots:
		return diag.New(diag.ClassUsage, "scheduler: %d of %d slots reserved, want 0..%d", c.Reserved, c.Slots,
			c.Slots-1)
	case c.Queue < 0 || c.AgeNS < 0:
		return diag.New(diag.ClassUsage, "scheduler: a queue of %d and an age of %d ns, want neither below 0",
			c.Queue, c.AgeNS)
	case !(c.Slack >= 0 && c.Slack <= 100):
		return diag.New(diag.ClassUsage, "scheduler: slack of %v, want 0 to 100", c.Slack)
	case !(c.Gap >= 0 && c.Gap < 1):
		return diag.New(diag.ClassUsage, "scheduler: a gap of %v, want 0 or more and less than 1", c.Gap)
	case c.ChunkNS == nil || c.DecodeNS == nil:
		return diag.New(diag.ClassInternal, "scheduler: nothing predicts times")
	}
	return nil
}

// Request is a prompt to process and tokens to decode.
type Request struct {
	ID     ID
	Class  Class
	Prompt int // tokens, at least 1
}

// Kind is what an Action does.
type Kind uint8

const (
	Idle    Kind = iota // there is nothing to do before the next request
	Prefill             // process the next chunk of a prompt
	Decode              // decode one token of each of some requests; while a chunk is processed, beside it
	Begin               // have a processor begin with the next chunk of a prompt, and ask again at once
	Await               // wait for the end of the chunk that was begun
)

// Action is one program call. Requests are valid until the next call of a method.
type Action struct {
	Kind     Kind
	Requests []ID // one of Prefill, Begin and Await, at least one of Decode
}

// ErrFull says that no further request may wait.
var ErrFull = errors.New("the queue is full")

// task is the state of a request.
type task struct {
	Request
	arrived  int64         // its place in the order of arrival
	waits    *list.Element // its place in the queue, nil once it has a slot
	progress int64         // when it last moved on, or arrived: ns
	left     int           // tokens of the prompt still to process
	length   int           // positions in the cache
}

// decodes reports whether the prompt has been processed.
func (t *task) decodes() bool { return t.slot() && t.left == 0 }

// slot reports whether it has a place in the cache.
func (t *task) slot() bool { return t.waits == nil }

// State has all requests and their progress. Its methods are not safe for concurrent use, and time never goes back from
// one call to the next.
//
// A decision looks at the requests with a slot and at the first one that waits for a slot. So it takes no longer when
// many wait: of those that wait, the one that came first is also the oldest.
type State struct {
	config  Config
	tasks   map[ID]*task
	active  []*task      // those with a slot, in the order of arrival
	waiting [2]list.List // of *task: those without, by class, in the order of arrival
	running [2]int       // how many have a slot, by class
	arrived int64
	ids     []ID // of the latest Action

	turn   bool  // a chunk has run since the last iteration
	credit int64 // ns that proactive prompts may take beside reactive decoding
	latest ID    // whose chunk ran last, 0 once its prompt is processed
	beside ID    // whose chunk was begun and has not ended; 0: none
	counts Counts
}

// Counts are what has been decided so far.
type Counts struct {
	Chunks, Iterations int64
	Preemptions        int64 // times a prompt had to wait, half processed, for another request's
	Beside             int64 // chunks that were processed beside decoding
}

// New returns a State without requests.
func New(config Config) (*State, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	return &State{config: config, tasks: map[ID]*task{}}, nil
}

// Submit adds a request that arrives now. ErrFull refuses it.
func (s *State) Submit(now int64, request Request) error {
	if request.Prompt < 1 {
		return diag.New(diag.ClassUsage, "scheduler: request %d has a prompt of %d tokens, want at least 1", request.ID,
			request.Prompt)
	}
	if s.tasks[request.ID] != nil {
		return diag.New(diag.ClassInternal, "scheduler: request %d is there already", request.ID)
	}
	waiting := s.Waiting(request.Class)
	if s.config.Policy != Full {
		waiting = s.Waiting(Proactive) + s.Waiting(Reactive)
	}
	if s.config.Queue > 0 && waiting >= s.config.Queue {
		return fmt.Errorf("%d requests wait: %w", waiting, ErrFull)
	}
	s.arrived++
	added := &task{Request: request, arrived: s.arrived, progress: now, left: request.Prompt}
	added.waits = s.waiting[request.Class].PushBack(added)
	s.tasks[request.ID] = added
	return nil
}

// Waiting returns how many requests of a class have no slot yet.
func (s *State) Waiting(class Class) int { return s.waiting[class].Len() }

// Running returns how many requests of a class have a slot.
func (s *State) Running(class Class) int { return s.running[class] }

// Counts returns what has been decided so far.
func (s *State) Counts() Counts { return s.counts }

// Reused says that the first tokens of a request's prompt are in the cache already. It is called before the request's
// first chunk runs; at least one token is left to process.
func (s *State) Reused(id ID, tokens int) {
	known := s.tasks[id]
	if known != nil && known.length == 0 && tokens < known.left {
		known.left -= tokens
		known.length = tokens
	}
}

// Alone says that the chunk which was to begin is processed by a call of its own instead: the cache has so much of the
// prompt that only its last token is left, which is no chunk. Prefilled follows.
func (s *State) Alone(id ID) {
	if s.beside == id {
		s.beside = 0
		s.counts.Beside--
	}
}

// Prefilled says that a chunk of this many tokens of a request's prompt has been processed.
func (s *State) Prefilled(now int64, id ID, tokens int) {
	s.counts.Chunks++
	if s.beside == id {
		s.beside = 0
	} else {
		s.turn = true
	}
	if known := s.tasks[id]; known != nil {
		known.left = max(0, known.left-tokens)
		known.length += tokens
		known.progress = now
		if known.left == 0 && s.latest == id {
			s.latest = 0
		}
	}
}

// Decoded says that a token of each of these requests has been decoded.
func (s *State) Decoded(now int64, ids []ID) {
	s.counts.Iterations++
	s.turn = false
	for _, id := range ids {
		if known := s.tasks[id]; known != nil {
			known.length++
			known.progress = now
		}
	}
}

// End forgets a request: it has all its tokens, or its client went away. One whose chunk was begun ends only after
// that.
func (s *State) End(id ID) {
	ended := s.tasks[id]
	switch {
	case ended == nil:
	case ended.slot():
		s.running[ended.Class]--
		s.active = slices.DeleteFunc(s.active, func(other *task) bool { return other == ended })
	default:
		s.waiting[ended.Class].Remove(ended.waits)
	}
	delete(s.tasks, id)
	if s.latest == id {
		s.latest = 0
	}
}
