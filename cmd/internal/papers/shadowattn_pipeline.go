package papers

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// headPipeline is the attention of one layer as shadowAttn sec. 3.4 runs it: the NPU estimates the scores of the
// heads of a launch together, then the processor beside it selects each head's positions and multiplies them. Times
// are integers of one unit. Every head is in one launch.
type headPipeline struct {
	launches []headLaunch
	heads    []headWork
}

// headLaunch is heads whose scores the NPU estimates together, in npu units of time.
type headLaunch struct {
	npu   int64
	heads []int
}

// headWork is what the processor beside the NPU does for a head: selecting positions, then multiplying them.
type headWork struct{ topk, qkv int64 }

// headSchedule is in which order launches and heads run, and when the last head is done.
type headSchedule struct {
	launches []int
	heads    []int
	end      int64
}

// greedyHeads is C/GPUPlan, lines 1 to 13 of Algorithm 1: the order of the heads of one launch that is done at npu,
// and when top-k and multiplication are done with them.
func (p headPipeline) greedyHeads(npu, topk, qkv int64, heads []int) ([]int, int64, int64) {
	var order []int
	for range heads {
		least, selected := int64(math.MaxInt64), -1
		for _, head := range heads {
			if slices.Contains(order, head) {
				continue
			}
			end := max(qkv, max(npu, topk)+p.heads[head].topk) + p.heads[head].qkv
			if end < least {
				least, selected = end, head
			}
		}
		order = append(order, selected)
		topk = max(npu, topk) + p.heads[selected].topk
		qkv = max(qkv, topk) + p.heads[selected].qkv
	}
	return order, topk, qkv
}

// greedy is Plan, lines 14 to 28 of Algorithm 1. Line 25 appends the order that line 22 assigned last, which is that of
// the launch tried last; literal does so, otherwise it is that of the launch selected.
func (p headPipeline) greedy(literal bool) headSchedule {
	var schedule headSchedule
	var npu, topk int64
	for range p.launches {
		least, selected := int64(math.MaxInt64), -1
		var best, last []int
		for i, launch := range p.launches {
			if slices.Contains(schedule.launches, i) {
				continue
			}
			order, _, end := p.greedyHeads(npu+launch.npu, topk, schedule.end, launch.heads)
			last = order
			if end < least {
				least, selected, best = end, i, order
			}
		}
		if literal {
			best = last
		}
		schedule.launches = append(schedule.launches, selected)
		schedule.heads = append(schedule.heads, best...)
		npu += p.launches[selected].npu
		_, topk, schedule.end = p.greedyHeads(npu, topk, schedule.end, p.launches[selected].heads)
	}
	return schedule
}

// run recomputes when a schedule ends from the dependencies alone (Eq. 4: estimate, then top-k, then
// multiplication, each on a processor that does one thing at a time). A schedule that leaves out or repeats
// something is an error.
func (p headPipeline) run(launches, heads []int) (int64, error) {
	// estimates follow each other on the NPU and release their heads
	released := make([]int64, len(p.heads))
	seen := make([]int, len(p.heads))
	done := make([]int, len(p.launches))
	clock := int64(0)
	for _, i := range launches {
		done[i]++
		clock += p.launches[i].npu
		for _, h := range p.launches[i].heads {
			released[h] = clock
		}
	}
	var selecting, multiplying int64
	for _, head := range heads {
		seen[head]++
		selecting = max(selecting, released[head]) + p.heads[head].topk
		multiplying = max(multiplying, selecting) + p.heads[head].qkv
	}
	for i, n := range done {
		if n != 1 {
			return 0, fmt.Errorf("launch %d runs %d times", i, n)
		}
	}
	for h, n := range seen {
		if n != 1 {
			return 0, fmt.Errorf("head %d runs %d times", h, n)
		}
	}
	return multiplying, nil
}

// sequential is the time with nothing beside anything else.
func (p headPipeline) sequential() int64 {
	end := int64(0)
	for _, launch := range p.launches {
		end += launch.npu
	}
	for _, work := range p.heads {
		end += work.topk + work.qkv
	}
	return end
}

// johnson is the order of heads, all of which may start at once, in which two stages end first, whatever the stages are
// doing before them: heads with less top-k than multiplication by ascending top-k, then the others by descending
// multiplication (Johnson 1954).
func (p headPipeline) johnson(heads []int) []int {
	order := slices.Clone(heads)
	slices.SortStableFunc(order, func(a, b int) int {
		workA, workB := p.heads[a], p.heads[b]
		first, second := workA.topk < workA.qkv, workB.topk < workB.qkv
		switch {
		case first != second:
			if first {
				return -1
			}
			return 1
		case first:
			return cmp.Compare(workA.topk, workB.topk)
		}
		return cmp.Compare(workB.qkv, workA.qkv)
	})
	return order
}

// label is a partial schedule: when top-k and multiplication are done, and how it came about.
type label struct {
	topk, qkv int64
	last      int
	from      *label
}

// pareto keeps the labels that no other is as good as in both times.
//
// A label that is at least as good in both times can replace another one in every schedule, so that nothing is
// lost.
func pareto(labels []*label) []*label {
	slices.SortStableFunc(labels, func(a, b *label) int {
		return cmp.Or(cmp.Compare(a.topk, b.topk), cmp.Compare(a.qkv, b.qkv))
	})
	kept := labels[:0]
	for _, label := range labels {
		if len(kept) == 0 || label.qkv < kept[len(kept)-1].qkv {
			kept = append(kept, label)
		}
	}
	return kept
}

// path is what was added, first to last.
func (l *label) path() []int {
	var steps []int
	for ; l.from != nil; l = l.from {
		steps = append(steps, l.last)
	}
	slices.Reverse(steps)
	return steps
}

// byLaunch is the best schedule in which the heads of a launch follow each other, as in Algorithm 1: within a
// launch Johnson's rule is optimal and the time top-k is done does not depend on the order; over sets of launches,
// of which the NPU's clock is a function, a dynamic program keeps the undominated pairs of times. It takes
// 2^launches steps, however many heads.
func (p headPipeline) byLaunch() headSchedule {
	count := len(p.launches)
	orders := make([][]int, count)
	for i, launch := range p.launches {
		orders[i] = p.johnson(launch.heads)
	}
	// by set of launches done; a larger set has a larger number, so each set is complete when it
	// comes up
	states := make([][]*label, 1<<count)
	states[0] = []*label{{}}
	for set := range states {
		states[set] = pareto(states[set])
		npu := int64(0)
		for i, launch := range p.launches {
			if set>>i&1 == 1 {
				npu += launch.npu
			}
		}
		for i, launch := range p.launches {
			if set>>i&1 == 1 {
				continue
			}
			for _, from := range states[set] {
				next := &label{topk: from.topk, qkv: from.qkv, last: i, from: from}
				for _, h := range orders[i] {
					next.topk = max(next.topk, npu+launch.npu) + p.heads[h].topk
					next.qkv = max(next.qkv, next.topk) + p.heads[h].qkv
				}
				states[set|1<<i] = append(states[set|1<<i], next)
			}
		}
	}
	best := leastQKV(states[len(states)-1])
	schedule := headSchedule{launches: best.path(), end: best.qkv}
	for _, i := range schedule.launches {
		schedule.heads = append(schedule.heads, orders[i]...)
	}
	return schedule
}

// byHead is the best schedule of all: heads in any order, and launches in the order in which they are first needed
// (launching another one earlier only delays those). Top-k is never done before the launch of a head it has
// selected, so the times of two stages and the set of heads done say everything: 2^heads steps instead of the n!
// that the paper fears.
//
// The state is the set of heads done with the undominated pairs of times. It is correct because what follows
// depends on nothing else.
func (p headPipeline) byHead() headSchedule {
	of := make([]int, len(p.heads))
	for i, launch := range p.launches {
		for _, h := range launch.heads {
			of[h] = i
		}
	}
	// by set of heads done, as in byLaunch
	states := make([][]*label, 1<<len(p.heads))
	states[0] = []*label{{}}
	started := make([]bool, len(p.launches))
	for set := range states {
		states[set] = pareto(states[set])
		clear(started)
		npu := int64(0)
		for head := range p.heads {
			if set>>head&1 == 1 && !started[of[head]] {
				started[of[head]] = true
				npu += p.launches[of[head]].npu
			}
		}
		for head, work := range p.heads {
			if set>>head&1 == 1 {
				continue
			}
			ready := int64(0)
			if !started[of[head]] {
				ready = npu + p.launches[of[head]].npu
			}
			for _, from := range states[set] {
				topk := max(from.topk, ready) + work.topk
				states[set|1<<head] = append(states[set|1<<head],
					&label{topk: topk, qkv: max(from.qkv, topk) + work.qkv, last: head, from: from})
			}
		}
	}
	best := leastQKV(states[len(states)-1])
	schedule := headSchedule{heads: best.path(), end: best.qkv}
	for _, h := range schedule.heads {
		if !slices.Contains(schedule.launches, of[h]) {
			schedule.launches = append(schedule.launches, of[h])
		}
	}
	return schedule
}

// leastQKV is the label whose processor is free first.
func leastQKV(labels []*label) *label {
	return slices.MinFunc(labels, func(a, b *label) int { return cmp.Compare(a.qkv, b.qkv) })
}

// launchTime is the NPU's time for heads launched together, from the times of 1, 2 and 4 that sec. 3.4 prints:
// between them and beyond them on the line through the nearest two. points are (heads, time), ascending.
func launchTime(points [][2]float64, heads int) float64 {
	i := 1
	for i < len(points)-1 && points[i][0] < float64(heads) {
		i++
	}
	a, b := points[i-1], points[i]
	slope := (b[1] - a[1]) / (b[0] - a[0])
	return a[1] + float64(slope*(float64(heads)-a[0]))
}

// bestLaunches splits the heads of each bucket into launches, in every way, and returns the pipeline whose best
// schedule ends first, of like ones that with fewest launches. npu is the time of a launch of so many heads. For
// few heads: every set partition is tried.
func bestLaunches(buckets [][]int, heads []headWork, npu func(n int) int64) (headPipeline, headSchedule) {
	var best headPipeline
	var found headSchedule
	found.end = math.MaxInt64
	var split func(done []headLaunch, open [][]int)
	split = func(done []headLaunch, open [][]int) {
		if len(open) == 0 {
			pipeline := headPipeline{launches: slices.Clone(done), heads: heads}
			schedule := pipeline.byHead()
			if schedule.end < found.end || schedule.end == found.end && len(pipeline.launches) < len(best.launches) {
				best, found = pipeline, schedule
			}
			return
		}
		// the first head's launch takes any subset of the others: each partition comes up once
		first, rest := open[0][0], open[0][1:]
		for with := range 1 << len(rest) {
			launch := headLaunch{heads: []int{first}}
			var left []int
			for i, head := range rest {
				if with>>i&1 == 1 {
					launch.heads = append(launch.heads, head)
				} else {
					left = append(left, head)
				}
			}
			launch.npu = npu(len(launch.heads))
			further := open[1:]
			if len(left) > 0 {
				further = append([][]int{left}, further...)
			}
			split(append(slices.Clone(done), launch), further)
		}
	}
	split(nil, buckets)
	return best, found
}

// permutations calls f with every order of 0..n-1; f must not keep it.
func permutations(count int, f func([]int)) {
	order := make([]int, count)
	for i := range order {
		order[i] = i
	}
	var walk func(k int)
	walk = func(k int) {
		if k == count {
			f(order)
			return
		}
		for i := k; i < count; i++ {
			order[k], order[i] = order[i], order[k]
			walk(k + 1)
			order[k], order[i] = order[i], order[k]
		}
	}
	walk(0)
}

// contiguous reports whether the heads of each launch follow each other in the order of the launches.
func (p headPipeline) contiguous(launches, heads []int) bool {
	for _, i := range launches {
		count := len(p.launches[i].heads)
		for _, h := range heads[:count] {
			if !slices.Contains(p.launches[i].heads, h) {
				return false
			}
		}
		heads = heads[count:]
	}
	return true
}

// everyOrder is the least time over every order of launches with every order of heads, and over those that keep the
// heads of a launch together: for few heads.
func (p headPipeline) everyOrder() (all, contiguous int64) {
	all, contiguous = math.MaxInt64, math.MaxInt64
	permutations(len(p.launches), func(launches []int) {
		permutations(len(p.heads), func(heads []int) {
			end, err := p.run(launches, heads)
			if err != nil {
				panic("BUG: an order of all heads: " + err.Error())
			}
			all = min(all, end)
			if p.contiguous(launches, heads) {
				contiguous = min(contiguous, end)
			}
		})
	})
	return all, contiguous
}
