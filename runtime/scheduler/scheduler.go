// Package scheduler knows what a machine does next for many requests: which prompt it processes on, or of which
// requests it decodes a token together. It is a state machine: it has no clock, goroutine or lock, and knows neither
// tokens nor processors, so that a server and a simulation run the same decisions.
//
// It follows Agent.xpu (sec. 4.3 to 4.5) on one queue of program calls. A request is reactive, when somebody waits for
// it, or proactive. A chunk of a prompt and an iteration of decoding are never interrupted. Between them, reactive
// requests go first, proactive ones take what those leave, and one that has waited too long counts as reactive.
package scheduler

import (
	"cmp"
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
		return diag.New(diag.ClassUsage, "scheduler: policy %q, want one of %q", c.Policy, Policies)
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

// Waiting returns how many requests of a class have no slot yet, Running how many have one.
func (s *State) Waiting(class Class) int { return s.waiting[class].Len() }

// Running returns how many requests of a class have a slot.
func (s *State) Running(class Class) int { return s.running[class] }

// Counts returns what has been decided so far.
func (s *State) Counts() Counts { return s.counts }

// Reused says that the first tokens of a request's prompt are in the cache already. It is called before the request's
// first chunk runs; at least one token is left to process.
func (s *State) Reused(id ID, tokens int) {
	if t := s.tasks[id]; t != nil && t.length == 0 && tokens < t.left {
		t.left -= tokens
		t.length = tokens
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
	if t := s.tasks[id]; t != nil {
		t.left = max(0, t.left-tokens)
		t.length += tokens
		t.progress = now
		if t.left == 0 && s.latest == id {
			s.latest = 0
		}
	}
}

// Decoded says that a token of each of these requests has been decoded.
func (s *State) Decoded(now int64, ids []ID) {
	s.counts.Iterations++
	s.turn = false
	for _, id := range ids {
		if t := s.tasks[id]; t != nil {
			t.length++
			t.progress = now
		}
	}
}

// End forgets a request: it has all its tokens, or its client went away. One whose chunk was begun ends only after
// that.
func (s *State) End(id ID) {
	if t := s.tasks[id]; t != nil && t.slot() {
		s.running[t.Class]--
		s.active = slices.DeleteFunc(s.active, func(other *task) bool { return other == t })
	} else if t != nil {
		s.waiting[t.Class].Remove(t.waits)
	}
	delete(s.tasks, id)
	if s.latest == id {
		s.latest = 0
	}
}

// Next decides what to do now. The caller does it and reports it (Prefilled, Decoded, End) before it calls Next again.
func (s *State) Next(now int64) Action {
	switch s.config.Policy {
	case FCFS:
		return s.inOrder()
	case Batching:
		return s.together()
	}
	return s.byClass(now)
}

// inOrder serves the request that came first until it ends.
func (s *State) inOrder() Action {
	first := earlier(s.first(Reactive), s.first(Proactive))
	if len(s.active) > 0 {
		first = earlier(s.active[0], first)
	}
	switch {
	case first == nil:
		return Action{}
	case !first.decodes():
		return s.prefill(first)
	}
	return s.decode([]*task{first})
}

// first returns the request of a class that has waited longest for a slot, nil where none waits.
func (s *State) first(class Class) *task {
	if at := s.waiting[class].Front(); at != nil {
		return at.Value.(*task)
	}
	return nil
}

// earlier returns the one of two requests that came first; either may be nil.
func earlier(a, b *task) *task {
	if a == nil || b != nil && b.arrived < a.arrived {
		return b
	}
	return a
}

// together is continuous batching: prompts in the order of arrival as long as there are slots, then one token of every
// request that has its prompt processed.
func (s *State) together() Action {
	all := group{s.active, earlier(s.first(Reactive), s.first(Proactive))}
	if next := s.prompt(all, s.config.Slots); next != nil {
		return s.prefill(next)
	}
	return s.decode(all.decoding())
}

// byClass is the policy Full. While a reactive prompt is processed, reactive decoding takes turns with its chunks, or
// goes on beside them. While reactive requests decode, proactive prompts are processed beside them, or get the time
// that Gap allows.
func (s *State) byClass(now int64) Action {
	reactive, proactive := s.groups(now)
	urgent := reactive.decoding()
	if s.beside != 0 {
		return s.meanwhile(reactive, proactive)
	}
	if next := s.prompt(reactive, s.config.Slots); next != nil {
		if s.paysPrompt(next, len(urgent), len(proactive.decoding())) {
			return s.begin(next)
		}
		if s.turn && len(urgent) > 0 {
			return s.decode(s.piggyback(urgent, proactive))
		}
		return s.prefill(next)
	}
	next := s.prompt(proactive, s.config.Slots-s.config.Reserved)
	if len(urgent) == 0 {
		s.credit = 0
		batch := proactive.decoding()
		if next != nil && !s.paysBackground(next, len(batch)) {
			return s.prefill(next)
		}
		if next != nil {
			return s.begin(next)
		}
		return s.decode(batch)
	}
	if next != nil && s.paysUrgent(next, len(urgent)) {
		return s.begin(next)
	}
	if next != nil {
		if _, ns := s.config.ChunkNS(next.left); s.credit >= ns {
			s.credit -= ns
			return s.prefill(next)
		}
	}
	batch := s.piggyback(urgent, proactive)
	// Of a time t, decoding takes (1-Gap)*t and proactive prompts Gap*t. Credit does not grow while no request needs
	// it.
	if next != nil {
		s.credit += int64(float64(s.config.DecodeNS(len(batch))) * s.config.Gap / (1 - s.config.Gap))
	}
	return s.decode(batch)
}

// group is requests that a decision treats alike.
type group struct {
	active []*task // with a slot, in the order of arrival
	next   *task   // that would get the next slot, nil where none waits
}

// groups returns the requests that go first, and those that take the remaining time.
func (s *State) groups(now int64) (reactive, proactive group) {
	for _, t := range s.active {
		if t.Class == Reactive || s.aged(now, t) {
			reactive.active = append(reactive.active, t)
		} else {
			proactive.active = append(proactive.active, t)
		}
	}
	reactive.next, proactive.next = s.first(Reactive), s.first(Proactive)
	if oldest := proactive.next; oldest != nil && s.aged(now, oldest) {
		// Whatever waits behind it gets no slot before it does.
		reactive.next, proactive.next = earlier(reactive.next, oldest), nil
	}
	return reactive, proactive
}

// aged reports whether a proactive request has waited so long that it counts as reactive until it moves on. A request
// without a slot does not get the reserved slots, unless no proactive request is running. Otherwise every request in
// the queue would grow old under overload, and reactive ones would wait for slots as if there were no classes.
func (s *State) aged(now int64, t *task) bool {
	if s.config.AgeNS == 0 || now-t.progress < s.config.AgeNS {
		return false
	}
	return t.slot() || s.running[Proactive] == 0 || s.used() < s.config.Slots-s.config.Reserved
}

// used returns the number of slots in use.
func (s *State) used() int { return s.running[Proactive] + s.running[Reactive] }

// pays reports whether the next chunk of a prompt is to be processed beside the decoding of so many requests. It must
// be possible, and take less time than the alternative: a call of all processors for the chunk, plus otherwise for each
// iteration whose tokens are decoded meanwhile.
func (s *State) pays(next *task, batch int, otherwise int64) bool {
	if s.config.Beside == nil || batch == 0 {
		return false
	}
	side, possible := s.config.Beside(next.left, batch)
	if !possible || side.DecodeNS <= 0 {
		return false
	}
	tokens, ns := s.config.ChunkNS(next.left)
	turns := float64(ns)*float64(side.Tokens)/float64(tokens) +
		float64(otherwise)*float64(side.ChunkNS)/float64(side.DecodeNS)
	return float64(side.ChunkNS) < turns
}

// paysBackground does what pays does beside the decoding of background requests. They could wait for the prompt and be
// decoded together with it. Their tokens then cost what they add to an iteration that runs for the prompt's request
// anyway.
func (s *State) paysBackground(next *task, batch int) bool {
	return s.pays(next, batch, s.config.DecodeNS(batch+1)-s.config.DecodeNS(1))
}

// paysUrgent does what pays does beside the decoding of reactive requests, which does not wait for anything, and may
// become slower as far as the slack allows.
func (s *State) paysUrgent(next *task, batch int) bool {
	alone := s.config.DecodeNS(batch)
	if !s.pays(next, batch, alone) {
		return false
	}
	side, _ := s.config.Beside(next.left, batch)
	return float64(side.DecodeNS) <= float64(alone)*(1+s.config.Slack)
}

// paysPrompt is Algorithm 1 of Agent.xpu for a reactive prompt, with the variants of a chunk that a plan has: while
// nothing decodes all processors share the chunk; while requests decode, one processor has it by itself, where that
// gets more done and the chunk ends, at the latest, only a slack later than all processors by turns with decoding would
// end it.
func (s *State) paysPrompt(next *task, urgent, background int) bool {
	// Background requests do not decode between the chunks of a reactive prompt.
	batch, iteration := background, int64(0)
	if urgent > 0 {
		batch, iteration = urgent, s.config.DecodeNS(urgent)
	}
	if batch == 0 || !s.pays(next, batch, s.config.DecodeNS(batch)) {
		return false
	}
	side, _ := s.config.Beside(next.left, batch)
	tokens, ns := s.config.ChunkNS(next.left)
	turns := float64(ns+iteration) * float64(side.Tokens) / float64(tokens)
	return float64(side.ChunkNS) <= turns*(1+s.config.Slack)
}

// begin returns the action that begins with the next chunk of a request's prompt.
func (s *State) begin(t *task) Action {
	s.prefill(t)
	s.beside = t.ID
	s.counts.Beside++
	return Action{Begin, s.ids}
}

// meanwhile returns what to do beside a chunk: decode, unless that would only delay a reactive prompt, which waits for
// the chunk's end.
func (s *State) meanwhile(reactive, proactive group) Action {
	batch := reactive.decoding()
	switch {
	case len(batch) > 0:
		batch = s.piggyback(batch, proactive)
	case s.prompt(reactive, s.config.Slots) == nil:
		batch = proactive.decoding()
	}
	if len(batch) == 0 {
		s.ids = append(s.ids[:0], s.beside)
		return Action{Await, s.ids}
	}
	return s.decode(batch)
}

// prompt returns the request of a group whose prompt is to be processed next: the one that came first, if there is a
// slot for it. slots is how many may be in use with it.
func (s *State) prompt(among group, slots int) *task {
	var begun *task
	at := slices.IndexFunc(among.active, func(t *task) bool { return t.left > 0 && t.ID != s.beside })
	if at >= 0 {
		begun = among.active[at]
	}
	if s.used() >= slots {
		return begun
	}
	return earlier(begun, among.next)
}

// decoding returns those of the requests whose prompts have been processed.
func (g group) decoding() (out []*task) {
	for _, t := range g.active {
		if t.decodes() {
			out = append(out, t)
		}
	}
	return out
}

// piggyback adds proactive requests to reactive ones that decode, as many as the slack allows, the shortest first: a
// long sequence makes the iteration slower for all. RATIONALE.md: "Why does slack bound a batch of two classes, and not
// a number?"
func (s *State) piggyback(urgent []*task, proactive group) []*task {
	batch := slices.Clip(urgent)
	limit := float64(s.config.DecodeNS(len(urgent))) * (1 + s.config.Slack)
	others := proactive.decoding()
	slices.SortStableFunc(others, func(a, b *task) int { return cmp.Compare(a.length, b.length) })
	for _, t := range others {
		if float64(s.config.DecodeNS(len(batch)+1)) > limit {
			break
		}
		batch = append(batch, t)
	}
	return batch
}

// prefill returns the action that processes the next chunk of a request's prompt.
func (s *State) prefill(t *task) Action {
	if interrupted := s.tasks[s.latest]; interrupted != nil && interrupted != t && interrupted.left > 0 {
		s.counts.Preemptions++
	}
	s.latest = t.ID
	if !t.slot() {
		s.waiting[t.Class].Remove(t.waits)
		t.waits = nil
		s.running[t.Class]++
		at, _ := slices.BinarySearchFunc(s.active, t.arrived, func(other *task, arrived int64) int {
			return cmp.Compare(other.arrived, arrived)
		})
		s.active = slices.Insert(s.active, at, t)
	}
	s.ids = append(s.ids[:0], t.ID)
	return Action{Prefill, s.ids}
}

// decode returns the action that decodes a token of each of these requests; there is nothing to do without any.
func (s *State) decode(batch []*task) Action {
	if len(batch) == 0 {
		return Action{}
	}
	s.ids = s.ids[:0]
	for _, t := range batch {
		s.ids = append(s.ids, t.ID)
	}
	return Action{Decode, s.ids}
}
