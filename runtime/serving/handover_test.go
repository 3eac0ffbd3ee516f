package serving_test

import (
	"context"
	"testing"

	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
)

// readerClock is a clock on which program calls take what the plan says. It notes when a reader could first have had
// each token of the one answer.
type readerClock struct {
	t      *testing.T
	server *serving.Server
	times  *serving.Times
	answer *serving.Answer
	now    int64
	tokens []serving.Token
	given  []int64 // when the reader had each of them
	woken  int     // how often the reader was told of tokens
}

func (c *readerClock) Now() int64 { return c.now }

// Called comes before the call's own tokens are there: what is, was there when it began.
func (c *readerClock) Called(call serving.Call) {
	c.look()
	_, ns := c.times.Planned(call)
	c.now += ns
}

func (c *readerClock) Boundary() {}

func (c *readerClock) Idle(context.Context) {
	c.look()
	c.server.Drain()
}

// look notes the tokens that the reader is told of.
func (c *readerClock) look() {
	if !c.answer.Told() {
		return
	}
	c.woken++
	for c.answer.Ready() {
		token, there, err := c.answer.Next(c.t.Context())
		if err != nil || !there {
			return
		}
		c.tokens, c.given = append(c.tokens, token), append(c.given, c.now)
	}
}

// Readers of a fast model are woken for several tokens at a time, but for the first one at once, and for no token more
// than a millisecond after it was there. Where a step takes as long, they are woken for each.
func TestReadersAreWokenSeldom(t *testing.T) {
	x := machine(t, demo)
	for _, test := range []struct {
		decodeNS int64
		tokens   int
		woken    int
	}{
		{decodeNS: 100e3, tokens: 32, woken: 1 + 3}, // the first one; of 31 others 11 at a time, the last at once
		{decodeNS: 999e3, tokens: 8, woken: 1 + 4},  // two at a time
		{decodeNS: 1001e3, tokens: 8, woken: 8},
		{decodeNS: 100e3, tokens: 1, woken: 1},
	} {
		plan := x.Plan()
		for i := range plan.Predictions {
			if plan.Predictions[i].Program == "decode" {
				plan.Predictions[i].PlanNS = test.decodeNS
			}
		}
		clock := &readerClock{t: t, times: serving.TimesOf(plan)}
		server, err := serving.New(x, serving.Options{Scheduler: scheduler.Default(4), Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		clock.server = server
		clock.answer = submit(t, server, serving.Request{
			Prompt: []int32{1, 2, 3}, MaxTokens: test.tokens, IgnoreEnd: true, LogProbs: -1,
		})

		if err := server.Run(t.Context()); err != nil {
			t.Fatal(err)
		}

		if clock.woken != test.woken || len(clock.given) != test.tokens {
			t.Errorf("steps of %d ns: woken %d times for %d tokens, want %d times for %d", test.decodeNS, clock.woken,
				len(clock.given), test.woken, test.tokens)
		}
		for i, token := range clock.tokens {
			late := clock.given[i] - token.AfterNS // the request arrived at 0
			atOnce := i == 0 || i == test.tokens-1
			if late < 0 || late > 1e6 || late > 0 && atOnce {
				t.Errorf("steps of %d ns: token %d was there %d ns before its reader was told", test.decodeNS, i, late)
			}
		}
	}
}
