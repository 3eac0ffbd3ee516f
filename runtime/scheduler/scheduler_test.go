package scheduler_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/runtime/scheduler"
)

// config is for the machine of these tests: a chunk of up to 100 tokens takes 10 us a token, an iteration 200 us and 20
// us for each request.
func config(policy scheduler.Policy, slots int) scheduler.Config {
	out := scheduler.Default(slots)
	out.Policy = policy
	out.ChunkNS = func(n int) (int, int64) { return min(n, 100), int64(min(n, 100)) * 10_000 }
	out.DecodeNS = func(n int) int64 { return 200_000 + 20_000*int64(n) }
	return out
}

// side has one of two processors process a chunk, in 18 us a token beside decoding and 15 us alone, while the other one
// decodes a quarter slower.
func side(c *scheduler.Config) {
	decode := c.DecodeNS
	c.Beside = func(n, batch int) (scheduler.Side, bool) {
		tokens := min(n, 100)
		return scheduler.Side{
			Tokens:   tokens,
			ChunkNS:  int64(tokens) * 18_000,
			AloneNS:  int64(tokens) * 15_000,
			DecodeNS: decode(batch) * 5 / 4,
		}, n > 1
	}
}

// job is a request of a test, and what became of it.
type job struct {
	scheduler.Request
	at     int64 // when it arrives
	tokens int64 // what it wants

	left        int   // tokens of the prompt
	served      int64 // tokens that it got
	first, last int64 // when it got the first and the last token
	gap         int64 // longest time without progress since it has a slot
	moved       int64 // when it made progress
}

// fataler is a test, of testing or of rapid.
type fataler interface{ Fatalf(string, ...any) }

// player runs requests on a virtual clock, and checks what the scheduler says.
type player struct {
	t       fataler
	config  scheduler.Config
	state   *scheduler.State
	queue   []*job // that have not arrived
	byID    map[scheduler.ID]*job
	running map[scheduler.ID]bool
	now     int64
	kinds   []string // of the actions so far

	flying *job    // whose chunk is processed beside decoding
	part   float64 // of it that is done
}

// play runs requests to their ends and returns when that was, and the actions.
func play(t fataler, config scheduler.Config, jobs []*job) (end int64, kinds []string) {
	state, err := scheduler.New(config)
	if err != nil {
		t.Fatalf("%v", err)
	}
	queue := slices.Clone(jobs)
	slices.SortStableFunc(queue, func(a, b *job) int { return int(a.at - b.at) })
	p := &player{
		t: t, config: config, state: state, queue: queue,
		byID: map[scheduler.ID]*job{}, running: map[scheduler.ID]bool{},
	}
	for range 1_000_000 {
		p.arrive()
		if !p.act(state.Next(p.now)) {
			return p.now, p.kinds
		}
		if got := state.Running(scheduler.Proactive) + state.Running(scheduler.Reactive); got != len(p.running) {
			t.Fatalf("%d requests are said to run, and %d do", got, len(p.running))
		}
		if len(p.running) > config.Slots {
			t.Fatalf("%d requests run in %d slots", len(p.running), config.Slots)
		}
	}
	t.Fatalf("no end after a million steps")
	return 0, nil
}

// arrive submits the requests that have arrived by now.
func (p *player) arrive() {
	for len(p.queue) > 0 && p.queue[0].at <= p.now {
		j := p.queue[0]
		p.queue = p.queue[1:]
		j.left, p.byID[j.ID] = j.Prompt, j
		if err := p.state.Submit(p.now, j.Request); err != nil {
			p.t.Fatalf("submit: %v", err)
		}
	}
}

// act does what the scheduler says, and reports whether there is more to do.
func (p *player) act(action scheduler.Action) (more bool) {
	switch action.Kind {
	case scheduler.Idle:
		return p.idle()
	case scheduler.Prefill:
		j := p.begins(action.Requests[0])
		tokens, ns := p.config.ChunkNS(j.left)
		p.now += ns
		p.processed(j, tokens)
		p.kinds = append(p.kinds, "prefill")
	case scheduler.Begin:
		p.flying, p.part = p.begins(action.Requests[0]), 0
		p.kinds = append(p.kinds, "begin")
	case scheduler.Await:
		if p.flying == nil || p.flying.ID != action.Requests[0] {
			p.t.Fatalf("waits for request %d, of which no chunk was begun", action.Requests[0])
		}
		side, _ := p.config.Beside(p.flying.left, 1)
		p.now += int64((1 - p.part) * float64(side.AloneNS))
		p.kinds = append(p.kinds, "await")
		p.lands()
	case scheduler.Decode:
		p.decode(slices.Clone(action.Requests))
	}
	return true
}

// idle waits for the next request. Without one, all must have ended.
func (p *player) idle() (more bool) {
	if len(p.queue) > 0 {
		p.now = p.queue[0].at
		return true
	}
	left := p.state.Running(0) + p.state.Running(1) + p.state.Waiting(0) + p.state.Waiting(1)
	if left > 0 {
		p.t.Fatalf("idle, and %d requests have not ended", left)
	}
	return false
}

// decode decodes a token of each request.
func (p *player) decode(ids []scheduler.ID) {
	if p.flying == nil {
		p.now += p.config.DecodeNS(len(ids))
	} else {
		side, _ := p.config.Beside(p.flying.left, len(ids))
		p.now += side.DecodeNS
		p.part += float64(side.DecodeNS) / float64(side.ChunkNS)
	}
	p.state.Decoded(p.now, ids)
	p.kinds = append(p.kinds, "decode")
	for _, id := range ids {
		j := p.byID[id]
		if !p.running[id] || j.left > 0 {
			p.t.Fatalf("decoded request %d, of whose prompt %d tokens are left", id, j.left)
		}
		p.moves(j)
		p.serve(j)
	}
	if p.flying != nil && p.part >= 1 {
		p.lands()
	}
}

// begins is the request of which a chunk begins.
func (p *player) begins(id scheduler.ID) *job {
	j := p.byID[id]
	if !p.running[j.ID] {
		p.running[j.ID], j.moved = true, p.now
	}
	if p.flying != nil {
		p.t.Fatalf("a chunk of request %d begins, and one of request %d has not ended", j.ID, p.flying.ID)
	}
	return j
}

// lands ends the chunk that was processed beside decoding.
func (p *player) lands() {
	j := p.flying
	side, _ := p.config.Beside(j.left, 1)
	p.flying = nil
	p.processed(j, side.Tokens)
}

// processed has so many tokens of a prompt processed. The first token comes from the last chunk.
func (p *player) processed(j *job, tokens int) {
	j.left -= tokens
	p.state.Prefilled(p.now, j.ID, tokens)
	p.moves(j)
	if j.left == 0 {
		p.serve(j)
	}
}

// moves notes progress of a request.
func (p *player) moves(j *job) {
	j.gap = max(j.gap, p.now-j.moved)
	j.moved = p.now
}

// serve gives a request a token, and ends it with the last one.
func (p *player) serve(j *job) {
	j.served++
	if j.served == 1 {
		j.first = p.now
	}
	if j.served == j.tokens {
		j.last = p.now
		p.state.End(j.ID)
		delete(p.running, j.ID)
	}
}

// drawJobs are random requests of both classes.
func drawJobs(t *rapid.T) (jobs []*job) {
	for i := range rapid.IntRange(1, 20).Draw(t, "requests") {
		jobs = append(jobs, &job{
			Request: scheduler.Request{
				ID:     scheduler.ID(i + 1),
				Prompt: rapid.IntRange(1, 700).Draw(t, "prompt"),
				Class:  scheduler.Class(rapid.IntRange(0, 1).Draw(t, "class")),
			},
			at:     rapid.Int64Range(0, 30e6).Draw(t, "at"),
			tokens: rapid.Int64Range(1, 60).Draw(t, "tokens"),
		})
	}
	return jobs
}

// Every policy brings every request to its end, whatever arrives, in as many slots as there are. It never idles while
// there is something to do, which play checks.
func TestEveryRequestEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := config(rapid.SampledFrom(scheduler.Policies).Draw(t, "policy"), rapid.IntRange(1, 6).Draw(t, "slots"))
		c.Reserved = rapid.IntRange(0, c.Slots-1).Draw(t, "reserved")
		c.AgeNS = rapid.SampledFrom([]int64{0, 1e6, 1e9}).Draw(t, "age")
		c.Gap = rapid.SampledFrom([]float64{0, 0.2, 0.9}).Draw(t, "gap")
		c.Queue = 0
		if rapid.Bool().Draw(t, "beside") {
			side(&c)
		}
		jobs := drawJobs(t)

		play(t, c, jobs)

		for _, j := range jobs {
			if j.served != j.tokens {
				t.Fatalf("request %d got %d of %d tokens", j.ID, j.served, j.tokens)
			}
		}
	})
}

// A reactive request waits for one program call, whatever proactive ones are there. Its first token comes as soon as on
// an idle machine, but for that call, the iterations it takes turns with, and reactive requests before it.
func TestReactiveWaitsForOneBoundary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := config(scheduler.Full, rapid.IntRange(2, 6).Draw(t, "slots"))
		c.AgeNS, c.Queue = 0, 0
		boundary := max(c.DecodeNS(c.Slots), 100*10_000)
		if rapid.Bool().Draw(t, "beside") {
			side(&c)
			boundary = c.DecodeNS(c.Slots)*5/4 + 100*15_000 // an iteration, then the rest of the chunk beside it
		}
		jobs := drawJobs(t)
		for _, j := range jobs {
			j.Class = scheduler.Proactive
		}
		prompt := rapid.IntRange(1, 700).Draw(t, "own")
		one := &job{
			Request: scheduler.Request{ID: 99, Prompt: prompt, Class: scheduler.Reactive},
			at:      rapid.Int64Range(0, 40e6).Draw(t, "own at"),
			tokens:  5,
		}

		play(t, c, append(jobs, one))

		idle := int64(one.Prompt) * 10_000
		if took := one.first - one.at; took > idle+boundary {
			t.Fatalf("first token after %d ns: %d on an idle machine, and a boundary is at most %d", took, idle,
				boundary)
		}
	})
}

// Reactive requests do not starve background work. A background request with a slot moves on within its age, and what
// the requests before it may take of a boundary each.
func TestNothingStarves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := config(scheduler.Full, 4)
		c.AgeNS, c.Queue, c.Slack, c.Gap = 5e6, 0, 0, 0
		jobs := drawJobs(t)
		for i := range 200 { // a reactive request is always there
			jobs = append(jobs, &job{
				Request: scheduler.Request{ID: scheduler.ID(1000 + i), Prompt: 150, Class: scheduler.Reactive},
				at:      int64(i) * 1e6,
				tokens:  8,
			})
		}

		play(t, c, jobs)

		bound := c.AgeNS + 8*(c.DecodeNS(c.Slots)+100*10_000)
		for _, j := range jobs {
			if j.Class == scheduler.Proactive && j.gap > bound {
				t.Fatalf("request %d made no progress for %d ns, want at most %d", j.ID, j.gap, bound)
			}
		}
	})
}

// Under overload every background request that waits grows old. Reactive requests then still find a slot, and wait for
// the chunks of no more old requests than have one. Turns by arrival would have them wait for the whole queue.
func TestOldRequestsLeaveASlot(t *testing.T) {
	c := config(scheduler.Full, 4)
	c.AgeNS, c.Queue = 5e6, 0
	var jobs, urgent []*job
	for i := range 100 {
		jobs = append(jobs, &job{Request: scheduler.Request{ID: scheduler.ID(i + 1), Prompt: 400}, tokens: 20})
	}
	for i := range 30 {
		urgent = append(urgent, &job{
			Request: scheduler.Request{ID: scheduler.ID(1000 + i), Prompt: 150, Class: scheduler.Reactive},
			at:      50e6 + int64(i)*10e6,
			tokens:  4,
		})
	}

	end, _ := play(t, c, append(jobs, urgent...))

	if end < 500e6 { // well behind the last reactive request
		t.Fatalf("all ended after %d ns: no overload", end)
	}
	const idle, chunk = 150 * 10_000, 100 * 10_000
	most := idle + int64(c.Slots)*(chunk+c.DecodeNS(c.Slots))
	for _, j := range urgent {
		if took := j.first - j.at; took > most {
			t.Errorf("request %d got its first token after %d ns, want at most %d", j.ID, took, most)
		}
	}
}

// Without reactive requests the classes cost nothing: background work takes as long as with continuous batching.
func TestProactiveAloneIsBatching(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 6).Draw(t, "slots")
		jobs := drawJobs(t)
		var ends []int64
		for _, policy := range []scheduler.Policy{scheduler.Batching, scheduler.Full} {
			c := config(policy, slots)
			c.Reserved, c.Queue, c.AgeNS = 0, 0, 0
			again := make([]*job, len(jobs))
			for i, j := range jobs {
				again[i] = &job{Request: j.Request, at: j.at, tokens: j.tokens}
				again[i].Class = scheduler.Proactive
			}
			end, _ := play(t, c, again)
			ends = append(ends, end)
		}
		if ends[0] != ends[1] {
			t.Fatalf("ends at %d ns, with continuous batching at %d", ends[1], ends[0])
		}
	})
}

// The shortest proactive sequences are decoded with reactive ones, as many as the slack allows.
func TestPiggyback(t *testing.T) {
	requests := []scheduler.Request{
		{ID: 2, Prompt: 90},
		{ID: 3, Prompt: 20},
		{ID: 4, Prompt: 60},
		{ID: 1, Prompt: 50, Class: scheduler.Reactive},
	}
	for _, c := range []struct {
		slack float64 // of 220 us for the reactive one alone, and 20 us more for each other
		want  []scheduler.ID
	}{
		{slack: 0, want: []scheduler.ID{1}},
		{slack: 0.1, want: []scheduler.ID{1, 3}},
		{slack: 0.2, want: []scheduler.ID{1, 3, 4}},
		{slack: 9, want: []scheduler.ID{1, 3, 4, 2}},
	} {
		config := config(scheduler.Full, 8)
		config.Slack, config.Gap = c.slack, 0
		state, err := scheduler.New(config)
		if err != nil {
			t.Fatal(err)
		}
		for _, request := range requests {
			if err := state.Submit(0, request); err != nil {
				t.Fatal(err)
			}
			action := state.Next(0)
			if action.Kind != scheduler.Prefill || action.Requests[0] != request.ID {
				t.Fatalf("got %+v, want the prompt of request %d", action, request.ID)
			}
			state.Prefilled(0, request.ID, request.Prompt)
		}

		got := state.Next(0)

		if got.Kind != scheduler.Decode || !slices.Equal(got.Requests, c.want) {
			t.Errorf("slack %v: got %v, want %v decoded", c.slack, got, c.want)
		}
	}
}

// wantActions plays requests of 100 tokens that arrive 1.1 ms apart, and compares the first actions.
func wantActions(t *testing.T, c scheduler.Config, classes []scheduler.Class, kinds ...string) {
	t.Helper()
	var jobs []*job
	for i, class := range classes {
		jobs = append(jobs, &job{
			Request: scheduler.Request{ID: scheduler.ID(i + 1), Prompt: 100, Class: class},
			at:      int64(i) * 1_100_000,
			tokens:  20,
		})
	}

	_, got := play(t, c, jobs)

	if len(got) < len(kinds) || !slices.Equal(got[:len(kinds)], kinds) {
		t.Errorf("got %v, want %v first", got[:min(len(got), len(kinds))], kinds)
	}
}

// besideConfig has one of two processors process chunks beside decoding, whose steps take so long by the number of
// requests (nil: as config says).
func besideConfig(decodeNS func(n int) int64) scheduler.Config {
	c := config(scheduler.Full, 4)
	if decodeNS != nil {
		c.DecodeNS = decodeNS
	}
	side(&c)
	return c
}

// Background prompts are processed beside decoding where that takes less time than turns.
func TestBackgroundBeside(t *testing.T) {
	background := []scheduler.Class{scheduler.Proactive, scheduler.Proactive}
	each := func(n int) int64 { return 220_000 * int64(n) }

	t.Run("a step for two takes hardly longer", func(t *testing.T) { // decoding waits for the prompt
		wantActions(t, besideConfig(nil), background, "prefill", "decode", "prefill", "decode")
	})
	t.Run("a step takes as long for each", func(t *testing.T) {
		wantActions(t, besideConfig(each), background, "prefill", "decode", "begin", "decode", "decode")
	})
	t.Run("slower than turns", func(t *testing.T) {
		c := besideConfig(nil)
		slow := c.Beside
		c.Beside = func(n, batch int) (scheduler.Side, bool) {
			s, ok := slow(n, batch)
			s.ChunkNS *= 10
			return s, ok && s.DecodeNS > 0
		}
		c.DecodeNS = func(int) int64 { return 20_000 } // turns cost nothing then
		wantActions(t, c, background, "prefill", "decode")
	})
	t.Run("interrupted by a reactive prompt", func(t *testing.T) { // which waits for the chunk that was begun
		classes := []scheduler.Class{scheduler.Proactive, scheduler.Proactive, scheduler.Reactive}
		wantActions(t, besideConfig(each), classes,
			"prefill", "decode", "begin", "decode", "decode", "decode", "decode", "await", "prefill")
	})
}

// A background prompt is processed beside reactive decoding where that stays within the slack.
func TestBackgroundBesideReactive(t *testing.T) {
	classes := []scheduler.Class{scheduler.Reactive, scheduler.Proactive}
	c := besideConfig(nil)

	c.Slack = 0.25
	t.Run("within the slack", func(t *testing.T) {
		wantActions(t, c, classes, "prefill", "decode", "begin", "decode", "decode")
	})
	c.Slack = 0.1
	t.Run("beyond the slack", func(t *testing.T) {
		wantActions(t, c, classes, "prefill", "decode", "decode", "decode")
	})
}

// A reactive prompt gets all processors, unless one of them has processed it about as soon while others decode
// (Algorithm 1): little later than turns of 1 ms and a step.
func TestReactiveBeside(t *testing.T) {
	usual := besideConfig(nil)
	usual.Slack = 0.1
	quick := besideConfig(nil)
	quick.Slack = 0.25
	beside := quick.Beside
	quick.Beside = func(n, batch int) (scheduler.Side, bool) {
		s, ok := beside(n, batch)
		s.ChunkNS = int64(s.Tokens) * 14_000
		return s, ok
	}
	two := []scheduler.Class{scheduler.Reactive, scheduler.Reactive}

	t.Run("slow by itself", func(t *testing.T) {
		wantActions(t, usual, two, "prefill", "decode", "prefill")
	})
	t.Run("soon enough by itself", func(t *testing.T) {
		wantActions(t, quick, two, "prefill", "decode", "begin", "decode", "decode")
	})
	t.Run("background that can wait", func(t *testing.T) {
		classes := []scheduler.Class{scheduler.Proactive, scheduler.Reactive}
		wantActions(t, quick, classes, "prefill", "decode", "prefill")
	})
	t.Run("alone", func(t *testing.T) {
		wantActions(t, quick, []scheduler.Class{scheduler.Reactive}, "prefill", "decode", "decode")
	})
}

// A half-processed prompt that has to wait is counted, and goes on where it was.
func TestPreemption(t *testing.T) {
	state, err := scheduler.New(config(scheduler.Full, 4))
	if err != nil {
		t.Fatal(err)
	}
	submit := func(id scheduler.ID, class scheduler.Class, prompt int) {
		t.Helper()
		if err := state.Submit(0, scheduler.Request{ID: id, Class: class, Prompt: prompt}); err != nil {
			t.Fatal(err)
		}
	}
	next := func(want scheduler.ID) {
		t.Helper()
		action := state.Next(0)
		if action.Kind != scheduler.Prefill || action.Requests[0] != want {
			t.Fatalf("got %+v, want a chunk of request %d", action, want)
		}
		state.Prefilled(0, want, 100)
	}

	submit(1, scheduler.Proactive, 300)
	next(1)
	submit(2, scheduler.Reactive, 200)
	next(2)
	next(2)
	state.End(2)
	next(1)
	next(1)

	if counts := state.Counts(); counts.Preemptions != 1 || counts.Chunks != 5 {
		t.Errorf("got %+v, want 1 preemption of 5 chunks", counts)
	}
}

// A configuration that cannot be is refused.
func TestRefusedConfigurations(t *testing.T) {
	for name, change := range map[string]func(*scheduler.Config){
		"policy":   func(c *scheduler.Config) { c.Policy = "best" },
		"slots":    func(c *scheduler.Config) { c.Slots = 0 },
		"reserved": func(c *scheduler.Config) { c.Reserved = c.Slots },
		"queue":    func(c *scheduler.Config) { c.Queue = -1 },
		"slack":    func(c *scheduler.Config) { c.Slack = -1 },
		"gap":      func(c *scheduler.Config) { c.Gap = 1 },
		"no times": func(c *scheduler.Config) { c.DecodeNS = nil },
	} {
		c := config(scheduler.Full, 2)
		change(&c)
		if _, err := scheduler.New(c); err == nil {
			t.Errorf("%s: accepted %+v", name, c)
		}
	}
}

// A request without a prompt is refused, and one beyond the queue.
func TestRefusedRequests(t *testing.T) {
	c := config(scheduler.Full, 1)
	c.Queue = 2
	state, err := scheduler.New(c)
	if err != nil {
		t.Fatal(err)
	}
	for id := range scheduler.ID(2) {
		if err := state.Submit(0, scheduler.Request{ID: id, Prompt: 1}); err != nil {
			t.Errorf("request %d: %v", id, err)
		}
	}
	if err := state.Submit(0, scheduler.Request{ID: 2, Prompt: 1}); !errors.Is(err, scheduler.ErrFull) {
		t.Errorf("request 2: got %v, want %v", err, scheduler.ErrFull)
	}
	if err := state.Submit(0, scheduler.Request{ID: 7}); err == nil {
		t.Error("a request without a prompt was accepted")
	}
}

// Requests of one class that wait leave room in the queue for those of the other class. Without classes there is one
// queue.
func TestQueuesOfClasses(t *testing.T) {
	for _, c := range []struct {
		policy scheduler.Policy
		shared bool // by the classes
	}{
		{policy: scheduler.Full},
		{policy: scheduler.Batching, shared: true},
		{policy: scheduler.FCFS, shared: true},
	} {
		for _, first := range []scheduler.Class{scheduler.Proactive, scheduler.Reactive} {
			config := config(c.policy, 1)
			config.Queue = 2
			state, err := scheduler.New(config)
			if err != nil {
				t.Fatal(err)
			}
			requests := []struct {
				class scheduler.Class
				full  bool
			}{
				{class: first},
				{class: first},
				{class: first, full: true},
				{class: 1 - first, full: c.shared},
			}
			for i, request := range requests {
				err := state.Submit(0, scheduler.Request{ID: scheduler.ID(i), Class: request.class, Prompt: 1})
				if errors.Is(err, scheduler.ErrFull) != request.full {
					what := fmt.Sprintf("%s, %s requests first", c.policy, first)
					t.Errorf("%s: request %d: %v, want full: %v", what, i, err, request.full)
				}
			}
		}
	}
}
