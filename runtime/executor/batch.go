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
	// Restore puts what is known of the prompt into the sequence (Control.Restore), and returns how many tokens that is,
	// fewer than all; nil: nothing is known.
	Restore func(control *Control, sequence int) (tokens int, err error)
}

// Outcome is the result of a request. Err says why nothing was generated, or why generation broke
// off.
type Outcome struct {
	Generation
	Cached int // tokens of the prompt that Restore has put in place
	Err    error
}

// running is a request that is being decoded.
type running struct {
	request int
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
// request is decoded together, and ended requests return their sequences. The state is the list of
// running requests, in the order in which they began, and of free sequences. A request's result
// does not depend on the others, because no operator mixes rows of several sequences.
func (c *Control) generate(requests []Request, out []Outcome, ended func(int, *Outcome)) error {
	machine := c.m
	active, tokens := make([]running, 0, machine.Sequences()), make([]Token, 0, machine.Sequences())
	free := make([]int, 0, machine.Sequences())
	for sequence := machine.Sequences() - 1; sequence >= 0; sequence-- {
		free = append(free, sequence)
	}
	sample := func(i int, logits []float32) error {
		sequence := &active[i]
		sequence.next.ID, sequence.err = sequence.sampler.Next(logits)
		return nil
	}
	first := func(_ int, logits []float32) error { return sample(len(active)-1, logits) }
	// accept adds sampled tokens to the requests from number i on, and removes those that have
	// ended.
	accept := func(i int) {
		rest := active[:i]
		for _, sequence := range active[i:] {
			request, outcome := &requests[sequence.request], &out[sequence.request]
			if outcome.Err = sequence.err; outcome.Err == nil &&
				!outcome.take(machine, sequence.next.Sequence, sequence.next.ID, request.MaxTokens, request.OnToken) {
				rest = append(rest, sequence)
				continue
			}
			ended(sequence.request, outcome)
			machine.pos[sequence.next.Sequence] = 0
			free = append(free, sequence.next.Sequence)
		}
		active = rest
	}
	for queued := 0; ; {
		// fill the free sequences with the next requests
		for queued < len(requests) && len(free) > 0 {
			sequence := free[len(free)-1]
			request, outcome := &requests[queued], &out[queued]
			if outcome.Err = machine.admits(sequence, request.Prompt); outcome.Err != nil {
				ended(queued, outcome)
			} else {
				most := min(request.MaxTokens, machine.plan.MaxContext-len(request.Prompt)+1)
				outcome.Tokens, outcome.DecodeNS = make([]int32, 0, most), make([]int64, 0, most)
				free = free[:len(free)-1]
				active = append(active, running{request: queued, sampler: request.Sampler,
					next: Token{Sequence: sequence}})
				if request.Restore != nil {
					var err error
					if outcome.Cached, err = request.Restore(c, sequence); err != nil {
						return err
					}
				}
				timing, err := c.Extend(sequence, request.Prompt[outcome.Cached:], WantLast, first)
				if err != nil {
					return err
				}
				outcome.PrefillNS, outcome.Virtual = timing.NS, timing.Virtual
				accept(len(active) - 1)
			}
			queued++
		}
		if len(active) == 0 {
			return nil
		}
		// one token of every running request
		tokens = tokens[:0]
		for i := range active {
			tokens = append(tokens, active[i].next)
		}
		timing, err := c.Step(tokens, sample)
		if err != nil {
			return err
		}
		for i := range active {
			outcome := &out[active[i].request]
			outcome.DecodeNS = append(outcome.DecodeNS, timing.NS)
		}
		accept(0)
	}
}
