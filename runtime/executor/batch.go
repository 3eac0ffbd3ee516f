package executor

import (
	"context"

	"github.com/hetc/hetc/internal/diag"
)

// Request is a text to continue beside others.
type Request struct {
	Prompt    []int32
	MaxTokens int // at least 1
	Sampler   Sampler
	OnToken   func(id int32) bool // sees every token of the result, and ends it by false; may be nil
}

// Outcome is what became of a request: Err says why it was not generated, or not to its end.
type Outcome struct {
	Generation
	Err error
}

// running is a request that is being decoded.
type running struct {
	request int
	sampler Sampler
	next    Token // sampled last
	err     error // of sampling it
}

// GenerateBatch empties the caches and continues the prompts, as many at a time as the plan has sequences: they are
// decoded together, and when one ends the next begins in its place. Every request gets the tokens that it would get
// alone. A request that ends (see Generation), whose prompt cannot be processed or whose logits cannot be sampled
// leaves the others alone; an error of a processor ends all, and then Outcomes hold what there was. ended, which may be
// nil, sees each outcome when its request ends, on the control lane.
func (m *Machine) GenerateBatch(ctx context.Context, requests []Request, ended func(request int, o *Outcome)) ([]Outcome, error) {
	out := make([]Outcome, len(requests))
	for i := range requests {
		r := &requests[i]
		if err := r.Sampler.Validate(); err != nil {
			return nil, err
		}
		if r.MaxTokens < 1 {
			return nil, diag.New(diag.ClassUsage, "generate: request %d wants %d tokens, want at least 1", i, r.MaxTokens)
		}
	}
	m.Reset()
	if ended == nil {
		ended = func(int, *Outcome) {}
	}
	err := m.Do(ctx, func(c *Control) error { return c.generate(requests, out, ended) })
	return out, err
}

func (c *Control) generate(requests []Request, out []Outcome, ended func(int, *Outcome)) error {
	m := c.m
	active, tokens := make([]running, 0, m.Sequences()), make([]Token, 0, m.Sequences())
	free := make([]int, 0, m.Sequences())
	for s := m.Sequences() - 1; s >= 0; s-- {
		free = append(free, s)
	}
	sample := func(i int, logits []float32) error {
		r := &active[i]
		r.next.ID, r.err = r.sampler.Next(logits)
		return nil
	}
	first := func(_ int, logits []float32) error { return sample(len(active)-1, logits) }
	// accept adds what was sampled to the results of the requests from number i on, and lets those go that have ended.
	accept := func(i int) {
		rest := active[:i]
		for _, r := range active[i:] {
			q, o := &requests[r.request], &out[r.request]
			if o.Err = r.err; o.Err == nil && !o.take(m, r.next.Sequence, r.next.ID, q.MaxTokens, q.OnToken) {
				rest = append(rest, r)
				continue
			}
			ended(r.request, o)
			m.pos[r.next.Sequence] = 0
			free = append(free, r.next.Sequence)
		}
		active = rest
	}
	for queued := 0; ; {
		for queued < len(requests) && len(free) > 0 {
			sequence := free[len(free)-1]
			q, o := &requests[queued], &out[queued]
			if o.Err = m.admits(sequence, q.Prompt); o.Err != nil {
				ended(queued, o)
			} else {
				n := min(q.MaxTokens, m.plan.MaxContext-len(q.Prompt)+1)
				o.Tokens, o.DecodeNS = make([]int32, 0, n), make([]int64, 0, n)
				free = free[:len(free)-1]
				active = append(active, running{request: queued, sampler: q.Sampler, next: Token{Sequence: sequence}})
				t, err := c.Extend(sequence, q.Prompt, WantLast, first)
				if err != nil {
					return err
				}
				o.PrefillNS, o.Virtual = t.NS, t.Virtual
				accept(len(active) - 1)
			}
			queued++
		}
		if len(active) == 0 {
			return nil
		}
		tokens = tokens[:0]
		for i := range active {
			tokens = append(tokens, active[i].next)
		}
		t, err := c.Step(tokens, sample)
		if err != nil {
			return err
		}
		for i := range active {
			o := &out[active[i].request]
			o.DecodeNS = append(o.DecodeNS, t.NS)
		}
		accept(0)
	}
}
