package order

import (
	"context"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawProblem is a layer of few tasks, for two chunks.
func drawProblem(t *rapid.T, most int) *Problem {
	posed := &Problem{Chunks: 2, Layers: rapid.IntRange(1, 4).Draw(t, "layers")}
	if rapid.Bool().Draw(t, "handover") {
		posed.Handover = func(from, to int) int64 { return int64(1 + from) }
	}
	for i := range rapid.IntRange(1, most).Draw(t, "tasks") {
		task := Task{Lane: rapid.IntRange(0, 1).Draw(t, "lane")}
		for range posed.Chunks {
			task.NS = append(task.NS, rapid.Int64Range(0, 9).Draw(t, "ns"))
		}
		for j := range i {
			if j == i-1 || rapid.IntRange(0, 3).Draw(t, "after") == 0 {
				task.After = append(task.After, j)
			}
		}
		if rapid.IntRange(0, 2).Draw(t, "cache") == 0 {
			task.Cache = []int{i}
		}
		posed.Tasks = append(posed.Tasks, task)
	}
	posed.Tasks[0].Back = []int{len(posed.Tasks) - 1}
	return posed
}

// naive is the time of an order from the definition: whatever starts before what it must follow is moved behind it,
// until nothing is.
func naive(posed *Problem, order Order) int64 {
	list := eventsOf(posed, order)
	start := map[event]int64{}
	for moved := true; moved; {
		moved = false
		for i, later := range list {
			for j, earlier := range list {
				gap, must := posed.follows(earlier, later)
				sameLane := posed.Tasks[earlier.task].Lane == posed.Tasks[later.task].Lane
				if !must && (j >= i || !sameLane) {
					continue
				}
				if at := start[earlier] + gap; at > start[later] {
					start[later], moved = at, true
				}
			}
		}
		for _, at := range start {
			if at > 1<<12 {
				return math.MaxInt64 // a circle
			}
		}
	}

	end := int64(0)
	for _, event := range list {
		end = max(end, start[event]+posed.Tasks[event.task].NS[event.chunk])
	}
	return end
}

// event is the execution of a task.
type event struct{ chunk, layer, task int }

// eventsOf lists what an order executes, one iteration after the other.
func eventsOf(posed *Problem, order Order) (list []event) {
	for iteration := range posed.Layers + 1 {
		next := slices.Clone(order.Starts)
		for _, chunk := range order.Turns {
			layer, task := iteration, next[chunk]
			if task >= len(posed.Tasks) {
				task -= len(posed.Tasks)
			} else if order.Starts[chunk] > 0 {
				layer--
			}
			if layer >= 0 && layer < posed.Layers {
				list = append(list, event{chunk, layer, task})
			}
			next[chunk]++
		}
	}
	return list
}

// follows reports whether an event must follow an earlier one, and how long after its start it may start at least if
// one lane executes both or it must.
func (p *Problem) follows(earlier, later event) (gap int64, must bool) {
	before, after := &p.Tasks[earlier.task], &p.Tasks[later.task]
	sameChunk, sameLayer := earlier.chunk == later.chunk, earlier.layer == later.layer
	switch {
	case sameChunk && sameLayer:
		must = slices.Contains(after.After, earlier.task)
	case sameChunk && earlier.layer == later.layer-1:
		must = slices.Contains(after.Back, earlier.task)
	case earlier.chunk == later.chunk-1 && sameLayer:
		must = slices.Contains(after.Cache, earlier.task)
	}
	gap = before.NS[earlier.chunk]
	if must && before.Lane != after.Lane && p.Handover != nil {
		gap += p.Handover(before.Lane, after.Lane)
	}
	return gap, must
}

// every visits all interleavings of two chunks.
func every(tasks int, visit func(turns []int)) {
	var turns []int
	var walk func(left [2]int)
	walk = func(left [2]int) {
		if left == [2]int{} {
			visit(turns)
		}
		for chunk := range left {
			if left[chunk] > 0 {
				rest := left
				rest[chunk]--
				turns = append(turns, chunk)
				walk(rest)
				turns = turns[:len(turns)-1]
			}
		}
	}
	walk([2]int{tasks, tasks})
}

// The exact order is the least of all by a definition that knows no bounds, and no other rule's is below it.
func TestExactOrderIsTheLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		posed := drawProblem(t, 3)
		least := int64(math.MaxInt64)
		for _, starts := range posed.starts() {
			every(len(posed.Tasks), func(turns []int) {
				order := Order{turns, starts}
				next := make([]int, 2)
				for _, chunk := range turns {
					if !posed.may(next, chunk, starts) {
						return // attention before the cache that it reads
					}
					next[chunk]++
				}
				took := naive(posed, order)
				if took == math.MaxInt64 {
					t.Fatalf("%+v in %+v waits in a circle", posed, order)
				}
				if have := posed.result(order).NS; have != took {
					t.Fatalf("%+v in %+v takes %d ns, want %d ns", posed, order, have, took)
				}
				least = min(least, took)
			})
		}

		got, err := posed.Exact(t.Context(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if got.NS != least || got.BoundNS != least || posed.result(got.Order).NS != least {
			t.Fatalf("%+v: %+v, the least is %d ns", posed, got, least)
		}
		plain, greedy := posed.InOrder(), posed.Greedy()
		if plain.NS < least || greedy.NS < least || posed.result(greedy.Order).NS != greedy.NS {
			t.Fatalf("%+v: in order %d ns, by the rule %d ns, the least is %d ns", posed, plain.NS, greedy.NS, least)
		}
	})
}

// A search that ends early says a bound that is none too high, and an order that is none worse than the rules'.
func TestExactOrderEndsEarly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		posed := drawProblem(t, 5)
		best, err := posed.Exact(t.Context(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		early, err := posed.Exact(t.Context(), 1+rapid.IntRange(0, 30).Draw(t, "nodes"))
		if err != nil {
			t.Fatal(err)
		}
		if early.BoundNS > best.NS || early.NS < best.NS || early.NS > min(posed.InOrder().NS, posed.Greedy().NS) {
			t.Fatalf("%+v: early %+v, best %+v", posed, early, best)
		}
	})

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	posed := &Problem{Chunks: 2, Layers: 4,
		Tasks: []Task{{NS: []int64{5, 5}}, {Lane: 1, NS: []int64{5, 5}, After: []int{0}}}}
	posed.Tasks[0].Back = []int{1}
	if _, err := posed.Exact(ended, 1<<20); err == nil {
		t.Error("a search goes on when its context has ended")
	}
}

// Where attention is longer than the product before it, only a chunk that is a part of a layer behind hides all of it.
func TestPartOfALayerBehindHidesAttention(t *testing.T) {
	posed := &Problem{Chunks: 2, Layers: 20, Tasks: []Task{
		{Lane: 0, NS: []int64{1, 1}, Back: []int{2}},                                  // products before attention
		{Lane: 1, NS: []int64{4, 4}, After: []int{0}, Back: []int{}, Cache: []int{1}}, // attention
		{Lane: 0, NS: []int64{8, 8}, After: []int{1}},                                 // products behind it
	}}
	exact, err := posed.Exact(t.Context(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	// Lane 0 computes 18 ns a layer; attention of the first layer of one chunk and of the last of the other may remain.
	if in := posed.InOrder().NS; in < 20*24 || exact.NS > 20*18+10 || exact.BoundNS != exact.NS {
		t.Errorf("in order %d ns, exact %+v, want at most %d ns", in, exact, 20*18+10)
	}
}
