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
	p := &Problem{Chunks: 2, Layers: rapid.IntRange(1, 4).Draw(t, "layers")}
	if rapid.Bool().Draw(t, "handover") {
		p.Handover = func(from, to int) int64 { return int64(1 + from) }
	}
	for i := range rapid.IntRange(1, most).Draw(t, "tasks") {
		task := Task{Lane: rapid.IntRange(0, 1).Draw(t, "lane")}
		for range p.Chunks {
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
		p.Tasks = append(p.Tasks, task)
	}
	p.Tasks[0].Back = []int{len(p.Tasks) - 1}
	return p
}

// naive is the time of an order from the definition: whatever starts before what it must follow is moved behind it, until
// nothing is.
func naive(p *Problem, o Order) int64 {
	type event struct{ chunk, layer, task int }
	var list []event
	for iteration := range p.Layers + 1 {
		next := slices.Clone(o.Starts)
		for _, chunk := range o.Turns {
			layer, task := iteration, next[chunk]
			if task >= len(p.Tasks) {
				task -= len(p.Tasks)
			} else if o.Starts[chunk] > 0 {
				layer--
			}
			if layer >= 0 && layer < p.Layers {
				list = append(list, event{chunk, layer, task})
			}
			next[chunk]++
		}
	}
	start := map[event]int64{}
	follows := func(a, b event) (gap int64, follows bool) { // b follows a
		one, other := &p.Tasks[a.task], &p.Tasks[b.task]
		same := a.chunk == b.chunk
		follows = same && a.layer == b.layer && slices.Contains(other.After, a.task) ||
			same && a.layer == b.layer-1 && slices.Contains(other.Back, a.task) ||
			a.chunk == b.chunk-1 && a.layer == b.layer && slices.Contains(other.Cache, a.task)
		gap = one.NS[a.chunk]
		if follows && one.Lane != other.Lane && p.Handover != nil {
			gap += p.Handover(one.Lane, other.Lane)
		}
		return gap, follows
	}
	for moved := true; moved; {
		moved = false
		for i, b := range list {
			for j, a := range list {
				gap, must := follows(a, b)
				if !must && (j >= i || p.Tasks[a.task].Lane != p.Tasks[b.task].Lane) {
					continue
				}
				if at := start[a] + gap; at > start[b] {
					start[b], moved = at, true
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
	for _, e := range list {
		end = max(end, start[e]+p.Tasks[e.task].NS[e.chunk])
	}
	return end
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
		p := drawProblem(t, 3)
		least := int64(math.MaxInt64)
		for _, starts := range p.starts() {
			every(len(p.Tasks), func(turns []int) {
				order := Order{turns, starts}
				next := make([]int, 2)
				for _, chunk := range turns {
					if !p.may(next, chunk, starts) {
						return // attention before the cache that it reads
					}
					next[chunk]++
				}
				took := naive(p, order)
				if took == math.MaxInt64 {
					t.Fatalf("%+v in %+v waits in a circle", p, order)
				}
				if have := p.Time(order); have != took {
					t.Fatalf("%+v in %+v takes %d ns, want %d ns", p, order, have, took)
				}
				least = min(least, took)
			})
		}
		got, err := p.Exact(t.Context(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if got.NS != least || got.BoundNS != least || p.Time(got.Order) != least {
			t.Fatalf("%+v: %+v, the least is %d ns", p, got, least)
		}
		if in, greedy := p.InOrder(), p.Greedy(); in.NS < least || greedy.NS < least || p.Time(greedy.Order) != greedy.NS {
			t.Fatalf("%+v: in order %d ns, by the rule %d ns, the least is %d ns", p, in.NS, greedy.NS, least)
		}
	})
}

// A search that ends early says a bound that is none too high, and an order that is none worse than the rules'.
func TestExactOrderEndsEarly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem(t, 5)
		best, err := p.Exact(t.Context(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		early, err := p.Exact(t.Context(), 1+rapid.IntRange(0, 30).Draw(t, "nodes"))
		if err != nil {
			t.Fatal(err)
		}
		if early.BoundNS > best.NS || early.NS < best.NS || early.NS > min(p.InOrder().NS, p.Greedy().NS) {
			t.Fatalf("%+v: early %+v, best %+v", p, early, best)
		}
	})
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	p := &Problem{Chunks: 2, Layers: 4, Tasks: []Task{{NS: []int64{5, 5}}, {Lane: 1, NS: []int64{5, 5}, After: []int{0}}}}
	p.Tasks[0].Back = []int{1}
	if _, err := p.Exact(ended, 1<<20); err == nil {
		t.Error("a search goes on when its context has ended")
	}
}

// Where attention is longer than the product before it, only a chunk that is a part of a layer behind hides all of it.
func TestPartOfALayerBehindHidesAttention(t *testing.T) {
	p := &Problem{Chunks: 2, Layers: 20, Tasks: []Task{
		{Lane: 0, NS: []int64{1, 1}, Back: []int{2}},                                  // products before attention
		{Lane: 1, NS: []int64{4, 4}, After: []int{0}, Back: []int{}, Cache: []int{1}}, // attention
		{Lane: 0, NS: []int64{8, 8}, After: []int{1}},                                 // products behind it
	}}
	exact, err := p.Exact(t.Context(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	// Lane 0 computes 18 ns a layer; attention of the first layer of one chunk and of the last of the other may remain.
	if in := p.InOrder().NS; in < 20*24 || exact.NS > 20*18+10 || exact.BoundNS != exact.NS {
		t.Errorf("in order %d ns, exact %+v, want at most %d ns", in, exact, 20*18+10)
	}
}
