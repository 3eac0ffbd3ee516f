package traffic

import (
	"context"

	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/serving"
)

// virtualClock plays a trace with the server itself on a clock that only program calls and waiting move on. One
// goroutine does everything, that of the server, so that a trace goes the same way every time.
type virtualClock struct {
	took func(serving.Call) int64 // what a call takes, in ns

	server  *serving.Server
	trace   []Request
	prompts [][]int32
	answers []*serving.Answer // of the requests that have arrived
	now     int64
	err     error // of a request that was refused
}

// play plays a trace to its end.
func (c *virtualClock) play(ctx context.Context, machine *executor.Machine, trace []Request, options serving.Options) (
	courses []course, metrics serving.Metrics, err error) {
	c.trace, c.prompts = trace, prompts(machine, trace)
	options.Clock = c
	if c.server, err = serving.New(machine, options); err != nil {
		return nil, metrics, err
	}
	if err := c.server.Run(ctx); err != nil {
		return nil, metrics, err
	}
	if err := ctx.Err(); err != nil {
		return nil, metrics, err
	}
	if c.err != nil {
		return nil, metrics, c.err
	}
	for i, answer := range c.answers {
		one := course{class: trace[i].class(), prompt: trace[i].Prompt, arrived: c.at(i)}
		for token := range answer.Tokens() { // which has room for all of them
			one.last = one.arrived + token.AfterNS
			if one.tokens++; one.tokens == 1 {
				one.first = one.last
			}
		}
		if err := whole(answer); err != nil {
			return nil, metrics, err
		}
		courses = append(courses, one)
	}
	return courses, c.server.Metrics(), nil
}

// at is when request number i of the trace arrives: ns.
func (c *virtualClock) at(i int) int64 { return int64(c.trace[i].AtMS * 1e6) }

// Now returns the time since the beginning of the trace: ns.
func (c *virtualClock) Now() int64 { return c.now }

// Called lets the time of a program call pass.
func (c *virtualClock) Called(call serving.Call) { c.now += c.took(call) }

// Boundary submits the requests that have arrived by now, each at its own time.
func (c *virtualClock) Boundary() {
	now := c.now
	for ; len(c.answers) < len(c.trace) && c.at(len(c.answers)) <= now; c.now = now {
		i := len(c.answers)
		c.now = c.at(i)
		answer, err := c.server.Submit(asks(&c.trace[i], c.prompts[i]))
		if err != nil {
			c.err, c.trace = err, c.trace[:i]
			return
		}
		c.answers = append(c.answers, answer)
	}
}

// Idle lets the time pass until the next request arrives; after the last one, the server ends.
func (c *virtualClock) Idle(context.Context) {
	if len(c.answers) == len(c.trace) {
		c.server.Drain()
		return
	}
	c.now = c.at(len(c.answers))
}
