package order

import (
	"cmp"
	"context"
	"slices"
)

// Problem is one layer that repeats, for several chunks in flight. Each chunk has the same tasks in the same order. An
// Order interleaves them once for all layers, and each lane executes its tasks in that order, iteration by iteration.
// An iteration may begin with the last tasks of a chunk in the layer before; such a chunk is a part of a layer behind.
type Problem struct {
	Tasks  []Task // of a chunk, in an order in which one processor could execute them
	Chunks int
	Layers int
	// Handover is what passing a result from one lane to another takes, in ns; nil: nothing.
	Handover func(from, to int) int64
}

// Task is a step of a chunk.
type Task struct {
	Lane int
	NS   []int64 // of each chunk
	// After are the tasks of the same chunk and layer, and Back those of the layer before, that it must follow.
	After, Back []int
	// Cache are the tasks of the same layer that it must follow in the chunk before.
	Cache []int
}

// Order is an interleaving. Turns lists, turn by turn, the number of the chunk whose next task comes next. Starts is,
// for each chunk, the task with which its iterations start; unless it is the first task, it belongs to the layer
// before.
type Order struct {
	Turns, Starts []int
}

// Result is an order with the time that all layers take in it, in ns.
type Result struct {
	Order
	NS int64
	// BoundNS is a time that no order falls short of: NS where that is proved to be the least, 0 where nothing is
	// known.
	BoundNS int64
}

// InOrder returns all tasks of a chunk before those of the next.
func (p *Problem) InOrder() Result {
	var turns []int
	for chunk := range p.Chunks {
		turns = append(turns, slices.Repeat([]int{chunk}, len(p.Tasks))...)
	}
	return p.result(Order{Turns: turns, Starts: make([]int, p.Chunks)})
}

// result returns an order with its time.
func (p *Problem) result(order Order) Result {
	return Result{Order: order, NS: p.newWalk(order.Starts).time(order.Turns)}
}

// Greedy returns the order in which the paper's rule (Graph.Greedy) starts the tasks of a layer in the middle, repeated
// for all layers. Of the orders that begin with different tasks it returns the best.
func (p *Problem) Greedy() Result {
	graph := make(Graph, p.Chunks)
	for chunk := range graph {
		for range p.Layers {
			for i := range p.Tasks {
				task := &p.Tasks[i]
				graph[chunk] = append(graph[chunk],
					Subgraph{Lane: task.Lane, NS: task.NS[chunk], Attention: len(task.Cache) > 0})
			}
		}
	}

	schedule := graph.Greedy()
	best := p.InOrder()
	best.NS = -1
	for _, starts := range p.starts() {
		result := p.result(p.period(&schedule, starts))
		if best.NS < 0 || result.NS < best.NS {
			best = result
		}
	}
	return best
}

// starts returns the tasks with which iterations may start: the first task of the first chunk, any task of the others.
func (p *Problem) starts() (out [][]int) {
	count := len(p.Tasks)
	if p.Layers < 2 {
		count = min(count, 1)
	}
	for first := range count {
		starts := slices.Repeat([]int{first}, p.Chunks)
		starts[0] = 0
		out = append(out, starts)
	}
	return out
}

// at returns number i of the tasks that a chunk has in an iteration, and by how many layers it is behind.
func (p *Problem) at(starts []int, chunk, i int) (task, behind int) {
	task = starts[chunk] + i
	if task >= len(p.Tasks) {
		return task - len(p.Tasks), 0
	}
	return task, min(1, starts[chunk])
}

// period returns the order of the tasks of a middle layer in a schedule, given the first tasks. A chunk that would
// overtake the cache of the chunk before it waits.
func (p *Problem) period(schedule *Schedule, starts []int) Order {
	middle := p.Layers / 2
	out := Order{Starts: starts}
	next := make([]int, p.Chunks)

	for range p.Chunks * len(p.Tasks) {
		best, start := -1, int64(0)
		for chunk := range p.Chunks {
			if next[chunk] == len(p.Tasks) || !p.may(next, chunk, starts) {
				continue
			}
			task, behind := p.at(starts, chunk, next[chunk])
			at := schedule.Start[chunk][(middle-behind)*len(p.Tasks)+task]
			if best < 0 || at < start {
				best, start = chunk, at
			}
		}

		out.Turns = append(out.Turns, best)
		next[best]++
	}
	return out
}

// may reports whether the next task of a chunk comes, in the list, after the tasks of the chunk before that it needs.
func (p *Problem) may(next []int, chunk int, starts []int) bool {
	task, behind := p.at(starts, chunk, next[chunk])
	if chunk == 0 {
		return true
	}
	isLater := func(needed int) bool {
		other := min(1, starts[chunk-1]) // how many layers it is behind
		position := needed - starts[chunk-1]
		if position < 0 {
			position, other = position+len(p.Tasks), 0
		}
		return other > behind || other == behind && position >= next[chunk-1]
	}
	return !slices.ContainsFunc(p.Tasks[task].Cache, isLater)
}

// Exact returns the order with the least time. It is depth-first branch and bound over interleavings, the most
// promising first. nodes bounds the search; if it ends there, the result has a bound below the time.
//
// The state is a prefix of the list. Its bound (walk.time) is the time of all layers when the lanes execute the prefix
// in this order, and each lane the rest of its tasks in any order before the next iteration, even at once if their
// inputs are available. Every completion satisfies these conditions, so none takes less. Two neighbouring tasks of
// different chunks and lanes may be exchanged without changing what any lane does; of both lists the search visits one.
// It begins with the best of the other rules, so it never finds less than they do. The cost is exponential at worst,
// and linear in the number of layers for each prefix.
func (p *Problem) Exact(ctx context.Context, nodes int) (Result, error) {
	best := p.InOrder()
	if greedy := p.Greedy(); greedy.NS < best.NS {
		best = greedy
	}
	bound := int64(-1) // of what was not searched to the end
	search := search{problem: p, best: best}

	all := p.starts()
	for i, starts := range all {
		if err := ctx.Err(); err != nil {
			return search.best, err
		}
		search.walk, search.turns, search.next = p.newWalk(starts), nil, make([]int, p.Chunks)
		low := search.walk.time(nil)
		if low >= search.best.NS {
			continue
		}

		search.left = nodes / (len(all) - i)
		nodes -= search.left
		search.extend(ctx)
		nodes += max(0, search.left)
		if search.left <= 0 && (bound < 0 || low < bound) {
			bound = low
		}
	}
	if err := ctx.Err(); err != nil {
		return search.best, err
	}

	search.best.BoundNS = search.best.NS
	if bound >= 0 {
		search.best.BoundNS = min(bound, search.best.NS)
	}
	return search.best, nil
}

// search is the state of Exact.
type search struct {
	problem *Problem
	walk    *walk
	turns   []int // the beginning
	next    []int // of each chunk, its first task that is not in it
	best    Result
	left    int // nodes
}

// extend tries all next tasks.
func (s *search) extend(ctx context.Context) {
	type child struct {
		chunk int
		low   int64
	}
	var children []child
	for chunk := range s.next {
		ended := s.next[chunk] == len(s.problem.Tasks)
		if ended || !s.problem.may(s.next, chunk, s.walk.starts) || s.twin(chunk) {
			continue
		}

		s.left--
		interrupted := s.left%1024 == 0 && ctx.Err() != nil
		if s.left <= 0 || interrupted {
			s.left = min(s.left, 0)
			return
		}
		children = append(children, child{chunk, s.walk.time(append(s.turns, chunk))})
	}
	slices.SortStableFunc(children, func(a, b child) int { return cmp.Compare(a.low, b.low) })
	for _, child := range children {
		if child.low >= s.best.NS {
			return
		}
		s.turns = append(s.turns, child.chunk)
		s.next[child.chunk]++
		if len(s.turns) == len(s.next)*len(s.problem.Tasks) {
			s.best = Result{Order: Order{Turns: slices.Clone(s.turns), Starts: s.walk.starts}, NS: child.low}
		} else {
			s.extend(ctx)
		}
		s.turns = s.turns[:len(s.turns)-1]
		s.next[child.chunk]--
	}
}

// twin reports whether the latest task is of a later chunk and another lane, and the next task of a chunk could also
// stand before it. Of these two orders only one is searched.
func (s *search) twin(chunk int) bool {
	if len(s.turns) == 0 {
		return false
	}

	latest := s.turns[len(s.turns)-1]
	before, _ := s.problem.at(s.walk.starts, latest, s.next[latest]-1)
	next, _ := s.problem.at(s.walk.starts, chunk, s.next[chunk])
	return latest > chunk && s.problem.Tasks[before].Lane != s.problem.Tasks[next].Lane
}

// walk computes the times of orders with the same first tasks.
type walk struct {
	*Problem
	starts []int
	ends   [][][]int64 // by chunk, layer and task
	free   perLane
	next   []int
}

// newWalk returns a walk with its memory.
func (p *Problem) newWalk(starts []int) *walk {
	out := &walk{Problem: p, starts: starts, ends: make([][][]int64, p.Chunks), next: make([]int, p.Chunks)}
	for chunk := range out.ends {
		out.ends[chunk] = make([][]int64, p.Layers)
		for layer := range out.ends[chunk] {
			out.ends[chunk][layer] = make([]int64, len(p.Tasks))
		}
	}
	return out
}

// time returns the time of all layers when the lanes execute their tasks in the order of a list of turns. For a prefix
// of a list it returns a lower bound of the times of all lists that begin so (see Exact).
func (w *walk) time(turns []int) (end int64) {
	w.free = perLane{}
	for iteration := range w.Layers + min(1, slices.Max(w.starts)) {
		clear(w.next)
		for _, chunk := range turns {
			index, behind := w.at(w.starts, chunk, w.next[chunk])
			at, task := w.start(chunk, iteration-behind, index)
			if task != nil {
				at = max(at, w.free[task.Lane]) + task.NS[chunk]
				w.ends[chunk][iteration-behind][index] = at
				w.free[task.Lane] = at
				end = max(end, at)
			}
			w.next[chunk]++
		}

		// What is left of the list: tasks of a lane that are not ordered among each other.
		latest, load := w.free, w.free
		for chunk := range w.Chunks {
			for i := w.next[chunk]; i < len(w.Tasks); i++ {
				index, behind := w.at(w.starts, chunk, i)
				at, task := w.start(chunk, iteration-behind, index)
				if task == nil {
					continue
				}
				at = max(at, w.free[task.Lane]) + task.NS[chunk]
				w.ends[chunk][iteration-behind][index] = at
				latest[task.Lane] = max(latest[task.Lane], at)
				load[task.Lane] += task.NS[chunk]
			}
		}
		for lane := range w.free {
			w.free[lane] = max(latest[lane], load[lane])
			end = max(end, w.free[lane])
		}
	}
	return end
}

// start returns when the inputs of a task of a layer are available; the task is nil if there is no such layer.
func (w *walk) start(chunk, layer, index int) (at int64, task *Task) {
	if layer < 0 || layer >= w.Layers {
		return 0, nil
	}
	task = &w.Tasks[index]
	follow := func(chunk, layer int, tasks []int) {
		for _, other := range tasks {
			ready := w.ends[chunk][layer][other]
			if from := w.Tasks[other].Lane; w.Handover != nil && from != task.Lane {
				ready += w.Handover(from, task.Lane)
			}
			at = max(at, ready)
		}
	}
	follow(chunk, layer, task.After)
	if layer > 0 {
		follow(chunk, layer-1, task.Back)
	}
	if chunk > 0 {
		follow(chunk-1, layer, task.Cache)
	}
	return at, task
}
