package scheduler

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// byArrival are all requests.
func (s *State) byArrival() []*task {
	return slices.SortedFunc(maps.Values(s.tasks), func(a, b *task) int { return int(a.arrived - b.arrived) })
}

// scan is what groups says, found by a look at every request.
func (s *State) scan(now int64) (reactive, proactive []*task) {
	for _, t := range s.byArrival() {
		if t.Class == Reactive || s.aged(now, t) {
			reactive = append(reactive, t)
		} else {
			proactive = append(proactive, t)
		}
	}
	return reactive, proactive
}

// scanPrompt is the first of some requests whose prompt can be processed.
func (s *State) scanPrompt(among []*task, slots int) *task {
	for _, t := range among {
		if t.left > 0 && t.ID != s.beside && (t.slot() || s.used() < slots) {
			return t
		}
	}
	return nil
}

// decodingOf are the requests that decode.
func decodingOf(all []*task) (out []*task) {
	for _, t := range all {
		if t.decodes() {
			out = append(out, t)
		}
	}
	return out
}

// check compares what a decision of each policy is made from with a look at every request.
func (s *State) check(t *rapid.T, now int64) {
	reactive, proactive := s.groups(now)
	allReactive, allProactive := s.scan(now)
	if !slices.Equal(reactive.decoding(), decodingOf(allReactive)) {
		t.Fatalf("other reactive requests decode")
	}
	if !slices.Equal(proactive.decoding(), decodingOf(allProactive)) {
		t.Fatalf("other proactive requests decode")
	}

	slots := s.config.Slots
	urgent := s.prompt(reactive, slots)
	if want := s.scanPrompt(allReactive, slots); urgent != want {
		t.Fatalf("the next reactive prompt is %+v, want %+v", urgent, want)
	}
	if urgent == nil { // else the next proactive one is not asked for
		unreserved := slots - s.config.Reserved
		background := s.prompt(proactive, unreserved)
		if want := s.scanPrompt(allProactive, unreserved); background != want {
			t.Fatalf("the next proactive prompt is %+v, want %+v", background, want)
		}
	}
	next := s.prompt(group{s.active, earlier(s.first(Reactive), s.first(Proactive))}, slots)
	if want := s.scanPrompt(s.byArrival(), slots); next != want {
		t.Fatalf("the next prompt of all is %+v, want %+v", next, want)
	}

	waiting := s.Waiting(Proactive) + s.Waiting(Reactive)
	if waiting+len(s.active) != len(s.tasks) || len(s.active) != s.used() {
		t.Fatalf("%d wait and %d have one of %d slots, of %d requests", waiting, len(s.active), s.used(), len(s.tasks))
	}
}

// Decisions rest on the requests with a slot and the first that wait, whatever arrives, ends or is given up.
func TestDecisionsAreThoseOfAScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := Default(rapid.IntRange(1, 5).Draw(t, "slots"))
		config.Policy = rapid.SampledFrom(Policies).Draw(t, "policy")
		config.Reserved = rapid.IntRange(0, config.Slots-1).Draw(t, "reserved")
		config.Queue, config.AgeNS = 0, rapid.SampledFrom([]int64{0, 50, 500}).Draw(t, "age")
		config.ChunkNS = func(n int) (int, int64) { return min(n, 10), 10 }
		config.DecodeNS = func(n int) int64 { return 5 + int64(n) }
		if rapid.Bool().Draw(t, "beside") {
			config.Beside = func(n, batch int) (Side, bool) {
				return Side{Tokens: min(n, 10), ChunkNS: 12, AloneNS: 11, DecodeNS: 6 + int64(batch)}, n > 1
			}
		}
		state, err := New(config)
		if err != nil {
			t.Fatal(err)
		}

		now, id := int64(0), ID(0)
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			now += rapid.Int64Range(0, 30).Draw(t, "ns")
			for range rapid.IntRange(0, 2).Draw(t, "arrive") {
				id++
				request := Request{
					ID:     id,
					Class:  Class(rapid.IntRange(0, 1).Draw(t, "class")),
					Prompt: rapid.IntRange(1, 40).Draw(t, "prompt"),
				}
				if err := state.Submit(now, request); err != nil {
					t.Fatal(err)
				}
			}
			if id > 0 {
				gone := ID(rapid.Int64Range(1, int64(id)).Draw(t, "gone"))
				if rapid.IntRange(0, 3).Draw(t, "ends") == 0 && gone != state.beside {
					state.End(gone)
				}
			}

			state.check(t, now)

			switch action := state.Next(now); action.Kind {
			case Prefill, Await:
				state.Prefilled(now, action.Requests[0], rapid.IntRange(1, 10).Draw(t, "tokens"))
			case Decode:
				state.Decoded(now, slices.Clone(action.Requests))
				if beside := state.beside; beside != 0 && rapid.Bool().Draw(t, "lands") {
					state.Prefilled(now, beside, 10)
				}
			}
		}
	})
}

// A decision costs no more when many wait: nothing is gathered of them.
func TestDecisionsDoNotScanTheQueue(t *testing.T) {
	allocations := func(policy Policy, waiting int) float64 {
		config := Default(4)
		config.Policy, config.Queue = policy, 0
		config.ChunkNS = func(n int) (int, int64) { return n, 10 }
		config.DecodeNS = func(int) int64 { return 10 }
		state, err := New(config)
		if err != nil {
			t.Fatal(err)
		}
		for i := range waiting {
			if err := state.Submit(0, Request{ID: ID(i + 1), Class: Class(i % 2), Prompt: 10}); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 * config.Slots { // all slots are taken, and decode
			if action := state.Next(0); action.Kind == Prefill {
				state.Prefilled(0, action.Requests[0], 10)
			}
		}
		return testing.AllocsPerRun(20, func() { state.Decoded(0, slices.Clone(state.Next(0).Requests)) })
	}

	for _, policy := range Policies {
		few, many := allocations(policy, 10), allocations(policy, 20_000)
		if many > few {
			t.Errorf("%s: a decision takes %v allocations where 10 requests wait, and %v where 20000 do", policy, few,
				many)
		}
	}
}
