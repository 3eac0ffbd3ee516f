package scheduler_test

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/runtime/scheduler"
)

// The machine of these tests: a chunk of up to 100 tokens takes 10 us a token, an iteration 200 us and 20 us for each
// request.
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
		return scheduler.Side{Tokens: tokens, ChunkNS: int64(tokens) * 18_000, AloneNS: int64(tokens) * 15_000,
			DecodeNS: decode(batch) * 5 / 4}, n > 1
	}
}

// job is a request of a test, and what became of it.
type job struct {
	scheduler.Request
	at, tokens          int64 // when it arrives, what it wants
	left                int   // of the prompt
	first, last, served int64 // when it got the first and last token; how many so far
	gap                 int64 // longest time without progress since it has a slot
	moved               int64
}

// play runs requests to their ends on a virtual clock and returns the actions.
func play(t interface{ Fatalf(string, ...any) }, config scheduler.Config, jobs []*job) (end int64, kinds []string) {
	state, err := scheduler.New(config)
	if err != nil {
		t.Fatalf("%v", err)
	}
	byID := map[scheduler.ID]*job{}
	queue := slices.Clone(jobs)
	slices.SortStableFunc(queue, func(a, b *job) int { return int(a.at - b.at) })
	now, running := int64(0), map[scheduler.ID]bool{}
	var flying *job // whose chunk is processed beside decoding
	part := 0.0     // of it that is done
	progress := func(j *job) {
		j.gap = max(j.gap, now-j.moved)
		j.moved = now
		if j.left > 0 {
			return
		}
		if j.served++; j.served == 1 {
			j.first = now
		}
		if j.served == j.tokens {
			j.last = now
			state.End(j.ID)
			delete(running, j.ID)
		}
	}
	begins := func(id scheduler.ID) *job {
		j := byID[id]
		if !running[j.ID] {
			running[j.ID], j.moved = true, now
		}
		if flying != nil {
			t.Fatalf("a chunk of request %d begins, and one of request %d has not ended", j.ID, flying.ID)
		}
		return j
	}
	processed := func(j *job, tokens int) {
		j.left -= tokens
		state.Prefilled(now, j.ID, tokens)
		if j.left == 0 {
			progress(j) // the first token comes from the last chunk
		} else {
			j.gap, j.moved = max(j.gap, now-j.moved), now
		}
	}
	lands := func() {
		j := flying
		s, _ := config.Beside(j.left, 1)
		flying = nil
		processed(j, s.Tokens)
	}
	for steps := 0; ; steps++ {
		if steps > 1_000_000 {
			t.Fatalf("no end after %d steps", steps)
		}
		for len(queue) > 0 && queue[0].at <= now {
			j := queue[0]
			queue = queue[1:]
			j.left, byID[j.ID] = j.Prompt, j
			if err := state.Submit(now, j.Request); err != nil {
				t.Fatalf("submit: %v", err)
			}
		}
		action := state.Next(now)
		switch action.Kind {
		case scheduler.Idle:
			if len(queue) == 0 {
				if left := state.Running(0) + state.Running(1) + state.Waiting(0) + state.Waiting(1); left > 0 {
					t.Fatalf("idle, and %d requests have not ended", left)
				}
				return now, kinds
			}
			now = queue[0].at
		case scheduler.Prefill:
			j := begins(action.Requests[0])
			tokens, ns := config.ChunkNS(j.left)
			now += ns
			processed(j, tokens)
			kinds = append(kinds, "prefill")
		case scheduler.Begin:
			flying, part = begins(action.Requests[0]), 0
			kinds = append(kinds, "begin")
		case scheduler.Await:
			if flying == nil || flying.ID != action.Requests[0] {
				t.Fatalf("waits for request %d, of which no chunk was begun", action.Requests[0])
			}
			s, _ := config.Beside(flying.left, 1)
			now += int64((1 - part) * float64(s.AloneNS))
			kinds = append(kinds, "await")
			lands()
		case scheduler.Decode:
			ids := slices.Clone(action.Requests)
			if flying == nil {
				now += config.DecodeNS(len(ids))
			} else {
				s, _ := config.Beside(flying.left, len(ids))
				now += s.DecodeNS
				part += float64(s.DecodeNS) / float64(s.ChunkNS)
			}
			state.Decoded(now, ids)
			kinds = append(kinds, "decode")
			for _, id := range ids {
				if j := byID[id]; !running[id] || j.left > 0 {
					t.Fatalf("decoded request %d, of whose prompt %d tokens are left", id, j.left)
				}
				progress(byID[id])
			}
			if flying != nil && part >= 1 {
				lands()
			}
		}
		if got := state.Running(scheduler.Proactive) + state.Running(scheduler.Reactive); got != len(running) {
			t.Fatalf("%d requests are said to run, and %d do", got, len(running))
		}
		if len(running) > config.Slots {
			t.Fatalf("%d requests run in %d slots", len(running), config.Slots)
		}
	}
}

// drawJobs are random requests of both classes.
func drawJobs(t *rapid.T) (jobs []*job) {
	for i := range rapid.IntRange(1, 20).Draw(t, "requests") {
		jobs = append(jobs, &job{
			Request: scheduler.Request{ID: scheduler.ID(i + 1), Prompt: rapid.IntRange(1, 700).Draw(t, "prompt"),
				Class: scheduler.Class(rapid.IntRange(0, 1).Draw(t, "class"))},
			at: rapid.Int64Range(0, 30e6).Draw(t, "at"), tokens: rapid.Int64Range(1, 60).Draw(t, "tokens"),
		})
	}
	return jobs
}

// Whatever arrives, every policy brings every request to its end, in as many slots as there are, and never idles while
// there is something to do: what play checks.
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

// A reactive request waits for one program call, whatever proactive ones are there: its first token comes as soon as on
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
		one := &job{Request: scheduler.Request{ID: 99, Prompt: rapid.IntRange(1, 700).Draw(t, "own"),
			Class: scheduler.Reactive}, at: rapid.Int64Range(0, 40e6).Draw(t, "own at"), tokens: 5}
		play(t, c, append(jobs, one))
		idle := int64(one.Prompt) * 10_000
		if took := one.first - one.at; took > idle+boundary {
			t.Fatalf("first token after %d ns: %d on an idle machine, and a boundary is at most %d", took, idle, boundary)
		}
	})
}

// Requests that somebody waits for do not starve background work: one that has a slot moves on within its age, and what
// the requests before it may take of a boundary each.
func TestNothingStarves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := config(scheduler.Full, 4)
		c.AgeNS, c.Queue, c.Slack, c.Gap = 5e6, 0, 0, 0
		jobs := drawJobs(t)
		for i := range 200 { // a reactive request is always there
			jobs = append(jobs, &job{Request: scheduler.Request{ID: scheduler.ID(1000 + i), Prompt: 150,
				Class: scheduler.Reactive}, at: int64(i) * 1e6, tokens: 8})
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
// the chunks of no more old requests than have one. When all of them took turns by arrival, reactive ones waited for
// the whole queue.
func TestOldRequestsLeaveASlot(t *testing.T) {
	c := config(scheduler.Full, 4)
	c.AgeNS, c.Queue = 5e6, 0
	var jobs, urgent []*job
	for i := range 100 {
		jobs = append(jobs, &job{Request: scheduler.Request{ID: scheduler.ID(i + 1), Prompt: 400}, tokens: 20})
	}
	for i := range 30 {
		urgent = append(urgent, &job{Request: scheduler.Request{ID: scheduler.ID(1000 + i), Prompt: 150, Class: scheduler.Reactive},
			at: 50e6 + int64(i)*10e6, tokens: 4})
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
	for slack, want := range map[float64][]scheduler.ID{
		0: {1}, 0.1: {1, 3}, 0.2: {1, 3, 4}, 9: {1, 3, 4, 2}, // 220 us alone, 20 us more for each
	} {
		c := config(scheduler.Full, 8)
		c.Slack, c.Gap = slack, 0
		state, err := scheduler.New(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, request := range []scheduler.Request{{ID: 2, Prompt: 90}, {ID: 3, Prompt: 20}, {ID: 4, Prompt: 60},
			{ID: 1, Prompt: 50, Class: scheduler.Reactive}} {
			if err := state.Submit(0, request); err != nil {
				t.Fatal(err)
			}
			if action := state.Next(0); action.Kind != scheduler.Prefill || action.Requests[0] != request.ID {
				t.Fatalf("got %+v, want the prompt of request %d", action, request.ID)
			}
			state.Prefilled(0, request.ID, request.Prompt)
		}
		if got := state.Next(0); got.Kind != scheduler.Decode || !slices.Equal(got.Requests, want) {
			t.Errorf("slack %v: got %v, want %v decoded", slack, got, want)
		}
	}
}

// Background prompts are processed beside decoding where that takes less time than turns, and beside reactive decoding
// where it stays within the slack. A reactive prompt gets all processors, unless one of them is about as soon while
// others decode, and waits for the chunk that was begun.
func TestBeside(t *testing.T) {
	want := func(what string, c scheduler.Config, classes []scheduler.Class, kinds ...string) {
		t.Helper()
		var jobs []*job
		for i, class := range classes {
			jobs = append(jobs, &job{Request: scheduler.Request{ID: scheduler.ID(i + 1), Prompt: 100, Class: class},
				at: int64(i) * 1_100_000, tokens: 20})
		}
		_, got := play(t, c, jobs)
		if len(got) < len(kinds) || !slices.Equal(got[:len(kinds)], kinds) {
			t.Errorf("%s: got %v, want %v first", what, got[:min(len(got), len(kinds))], kinds)
		}
	}
	c := config(scheduler.Full, 4)
	side(&c)
	background, urgent := []scheduler.Class{0, 0}, []scheduler.Class{1, 0}
	// a step for two takes hardly longer than one for one: decoding waits for the prompt
	want("background, joined by the prompt", c, background, "prefill", "decode", "prefill", "decode")
	each := c // a step takes as long for each of its requests
	each.DecodeNS = func(n int) int64 { return 220_000 * int64(n) }
	side(&each)
	want("background", each, background, "prefill", "decode", "begin", "decode", "decode")
	c.Slack = 0.25
	want("within the slack", c, urgent, "prefill", "decode", "begin", "decode", "decode")
	c.Slack = 0.1
	want("beyond the slack", c, urgent, "prefill", "decode", "decode", "decode")
	want("a reactive prompt", c, []scheduler.Class{1, 1}, "prefill", "decode", "prefill")
	// Algorithm 1: beside requests that decode one processor has the chunk, where that ends it little later than turns
	// of 1 ms and a step; beside nobody all of them have it
	quick := c
	quick.Slack = 0.25
	side(&quick)
	besides := quick.Beside
	quick.Beside = func(n, batch int) (scheduler.Side, bool) {
		s, ok := besides(n, batch)
		s.ChunkNS = int64(s.Tokens) * 14_000
		return s, ok
	}
	want("a reactive prompt, soon enough by itself", quick, []scheduler.Class{1, 1}, "prefill", "decode", "begin", "decode",
		"decode")
	want("a reactive prompt, background that can wait", quick, []scheduler.Class{0, 1}, "prefill", "decode", "prefill")
	want("a reactive prompt alone", quick, []scheduler.Class{1}, "prefill", "decode", "decode")
	want("interrupted", each, []scheduler.Class{0, 0, 1}, "prefill", "decode", "begin", "decode", "decode", "decode", "decode", "await", "prefill")
	slow := c.Beside
	c.Beside = func(n, batch int) (scheduler.Side, bool) {
		s, ok := slow(n, batch)
		s.ChunkNS *= 10
		return s, ok && s.DecodeNS > 0
	}
	c.DecodeNS = func(int) int64 { return 20_000 } // turns cost nothing then
	want("slower than turns", c, background, "prefill", "decode")
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

func TestRefusals(t *testing.T) {
	for name, change := range map[string]func(*scheduler.Config){
		"policy": func(c *scheduler.Config) { c.Policy = "best" }, "slots": func(c *scheduler.Config) { c.Slots = 0 },
		"reserved": func(c *scheduler.Config) { c.Reserved = c.Slots }, "queue": func(c *scheduler.Config) { c.Queue = -1 },
		"slack": func(c *scheduler.Config) { c.Slack = -1 }, "gap": func(c *scheduler.Config) { c.Gap = 1 },
		"no times": func(c *scheduler.Config) { c.DecodeNS = nil },
	} {
		c := config(scheduler.Full, 2)
		change(&c)
		if _, err := scheduler.New(c); err == nil {
			t.Errorf("%s: accepted %+v", name, c)
		}
	}
	c := config(scheduler.Full, 1)
	c.Queue = 2
	state, err := scheduler.New(c)
	if err != nil {
		t.Fatal(err)
	}
	for id := range scheduler.ID(3) {
		err := state.Submit(0, scheduler.Request{ID: id, Prompt: 1})
		if full := id == 2; errors.Is(err, scheduler.ErrFull) != full || (err != nil) != full {
			t.Errorf("request %d: %v", id, err)
		}
	}
	if err := state.Submit(0, scheduler.Request{ID: 7}); err == nil {
		t.Error("a request without a prompt was accepted")
	}
}

// Background work that waits leaves room in the queue for those who wait, and the other way round. Without classes
// there is one queue.
func TestQueuesOfClasses(t *testing.T) {
	for policy, full := range map[scheduler.Policy]bool{scheduler.Full: false, scheduler.Batching: true, scheduler.FCFS: true} {
		for _, first := range []scheduler.Class{scheduler.Proactive, scheduler.Reactive} {
			c := config(policy, 1)
			c.Queue = 2
			state, err := scheduler.New(c)
			if err != nil {
				t.Fatal(err)
			}
			var errs []error
			for id := range scheduler.ID(3) {
				errs = append(errs, state.Submit(0, scheduler.Request{ID: id, Class: first, Prompt: 1}))
			}
			errs = append(errs, state.Submit(0, scheduler.Request{ID: 3, Class: 1 - first, Prompt: 1}))
			for i, want := range []bool{false, false, true, full} {
				if errors.Is(errs[i], scheduler.ErrFull) != want {
					t.Errorf("%s, %s requests first: request %d: %v, want full: %v", policy, first, i, errs[i], want)
				}
			}
		}
	}
}
