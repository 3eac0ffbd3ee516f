package executor

import (
	"context"

	"github.com/hetc/hetc/internal/diag"
)

// Request is a prompt to continue in a batch.
type Request struct {
	Prompt    []int32
	MaxTokens int // at least 1
	Sampler   Sampler
	OnToken   func(id int32) bool // sees every token of the result, and ends it by false; may be nil
	// Restore puts what is known of the prompt into the sequence (Control.Restore), and returns how many tokens that
	// is, fewer than all; nil: nothing is known.
	Restore func(control *Control, sequence int) (tokens int, err error)
}

// Outcome is the result of a request. Err says why nothing was generated, or why generation broke off.
type Outcome struct {
	Generation
	Cached int // tokens of the prompt that Restore has put in place
	Err    error
}

// runningRequest is a request that is being decoded.
type runningRequest struct {
	number  int // of the request
	sampler Sampler
	next    Token // sampled last
	err     error // of sampling it
}

// GenerateBatch empties the caches and continues the prompts, as many at a time as the plan has
// sequences. They are decoded together, and when one ends the next one begins in its place. Every
// request gets the tokens that it would get alone.
//
// A request that ends (see Generation), whose prompt cannot be processed, or whose logits cannot be
// sampled does not affect the others. An error of a processor ends all, and Outcomes then hold what
// there was. ended, which may be nil, gets each outcome when its request ends, on the control lane.
func (m *Machine) GenerateBatch(ctx context.Context, requests []Request,
	ended func(request int, o *Outcome)) ([]Outcome, error) {
	out := make([]Outcome, len(requests))
	for i := range requests {
		request := &requests[i]
		if err := request.Sampler.Validate(); err != nil {
			return nil, err
		}
		if request.MaxTokens < 1 {
			return nil, diag.New(diag.ClassUsage, "generate: request %d wants %d tokens, want at least 1", i,
				request.MaxTokens)
		}
	}
	m.Reset()
	if ended == nil {
		ended = func(int, *Outcome) {}
	}
	err := m.Do(ctx, func(c *Control) error { return c.generate(requests, out, ended) })
	return out, err
}

// generate is continuous batching without preemption. Free sequences of the cache are given to
// requests in order, whose prompts are processed one by one. Then one token of every running
// request is decoded together, and ended requests return their sequences. A request's result
// does not depend on the others, because no operator mixes rows of several sequences.
func (c *Control) generate(requests []Request, out []Outcome, ended func(int, *Outcome)) error {
	sequences := c.machine.Sequences()
	state := &batchState{Control: c, requests: requests, out: out, ended: ended,
		active: make([]runningRequest, 0, sequences), free: make([]int, 0, sequences)}
	for sequence := sequences - 1; sequence >= 0; sequence-- {
		state.free = append(state.free, sequence)
	}
	tokens := make([]Token, 0, sequences)
	sample := state.sampleToken // one function value, so that steps allocate nothing
	for queued := 0; ; {
		for queued < len(requests) && len(state.free) > 0 {
			if err := state.startRequest(queued); err != nil {
				return err
			}
			queued++
		}
		if len(state.active) == 0 {
			return nil
		}
		tokens = tokens[:0]
		for i := range state.active {
			tokens = append(tokens, state.active[i].next)
		}
		timing, err := c.Step(tokens, sample)
		if err != nil {
			return err
		}
		for i := range state.active {
			outcome := &out[state.active[i].number]
			outcome.DecodeNS = append(outcome.DecodeNS, timing.NS)
		}
		state.acceptTokens(0)
	}
}

// batchState is the state of generate.
type batchState struct {
	*Control
	requests []Request
	out      []Outcome
	ended    func(int, *Outcome)
	active   []runningRequest // in the order in which they began
	free     []int            // sequences
}

// startRequest processes the prompt of a request in a free sequence. One that is not admitted ends.
func (b *batchState) startRequest(number int) error {
	sequence := b.free[len(b.free)-1]
	request, outcome := &b.requests[number], &b.out[number]
	if outcome.Err = b.machine.admits(sequence, request.Prompt); outcome.Err != nil {
		b.ended(number, outcome)
		return nil
	}
	most := min(request.MaxTokens, b.machine.plan.MaxContext-len(request.Prompt)+1)
	outcome.Tokens, outcome.DecodeNS = make([]int32, 0, most), make([]int64, 0, most)
	b.free = b.free[:len(b.free)-1]
	b.active = append(b.active,
		runningRequest{number: number, sampler: request.Sampler, next: Token{Sequence: sequence}})
	if request.Restore != nil {
		var err error
		if outcome.Cached, err = request.Restore(b.Control, sequence); err != nil {
			return err
		}
	}
	last := len(b.active) - 1
	timing, err := b.Extend(sequence, request.Prompt[outcome.Cached:], WantLast,
		func(_ int, logits []float32) error { return b.sampleToken(last, logits) })
	if err != nil {
		return err
	}
	outcome.PrefillNS, outcome.Virtual = timing.NS, timing.Virtual
	b.acceptTokens(last)
	return nil
}

// sampleToken chooses the next token of the i-th running request.
func (b *batchState) sampleToken(i int, logits []float32) error {
	running := &b.active[i]
	running.next.ID, running.err = running.sampler.Next(logits)
	return nil // an error ends this request alone, not the batch
}

// acceptTokens adds the sampled tokens of the running requests from the i-th on to their results, and removes the
// requests that have ended.
func (b *batchState) acceptTokens(i int) {
	remaining := b.active[:i]
	for _, running := range b.active[i:] {
		request, outcome, sequence := &b.requests[running.number], &b.out[running.number], running.next.Sequence
		outcome.Err = running.err
		if outcome.Err == nil &&
			!outcome.addToken(b.machine, sequence, running.next.ID, request.MaxTokens, request.OnToken) {
			remaining = append(remaining, running)
			continue
		}
		b.ended(running.number, outcome)
		b.machine.pos[sequence] = 0
		b.free = append(b.free, sequence)
	}
	b.active = remaining
}
