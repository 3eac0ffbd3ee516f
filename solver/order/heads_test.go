package order

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawHeads is an attention of a few turns in launches.
func drawHeads(t *rapid.T, most int) *Heads {
	time := rapid.Int64Range(0, 12)
	heads := &Heads{OneLane: rapid.Bool().Draw(t, "one lane"), ScoresNS: rapid.Int64Range(0, 3).Draw(t, "scores")}
	if !heads.OneLane {
		heads.PositionsNS = rapid.Int64Range(0, 3).Draw(t, "positions")
	}
	for turn := range rapid.IntRange(1, most).Draw(t, "turns") {
		heads.Turns = append(heads.Turns, Turn{time.Draw(t, "select"), time.Draw(t, "attend")})
		if turn == 0 || rapid.Bool().Draw(t, "new launch") {
			heads.Launches = append(heads.Launches, Launch{NS: time.Draw(t, "launch")})
		}
		launch := &heads.Launches[rapid.IntRange(0, len(heads.Launches)-1).Draw(t, "launch of turn")]
		launch.Turns = append(launch.Turns, turn)
	}
	heads.Launches = slices.DeleteFunc(heads.Launches, func(l Launch) bool { return len(l.Turns) == 0 })
	return heads
}

// permutations calls visit with every order of 0..count-1; visit must not keep it.
func permutations(count int, visit func([]int)) {
	order := make([]int, count)
	for i := range order {
		order[i] = i
	}
	var walk func(from int)
	walk = func(from int) {
		if from == count {
			visit(order)
			return
		}
		for i := from; i < count; i++ {
			order[from], order[i] = order[i], order[from]
			walk(from + 1)
			order[from], order[i] = order[i], order[from]
		}
	}
	walk(0)
}

// contiguous reports whether the turns of each launch follow each other in the order of the launches.
func (h *Heads) contiguous(launches, turns []int) bool {
	for _, i := range launches {
		count := len(h.Launches[i].Turns)
		for _, turn := range turns[:count] {
			if !slices.Contains(h.Launches[i].Turns, turn) {
				return false
			}
		}
		turns = turns[count:]
	}
	return true
}

// everyHeadOrder is the least time over every order of launches with every order of turns, and over those that keep the
// turns of a launch together.
func everyHeadOrder(t *rapid.T, heads *Heads) (all, contiguous int64) {
	all, contiguous = math.MaxInt64, math.MaxInt64
	permutations(len(heads.Launches), func(launches []int) {
		permutations(len(heads.Turns), func(turns []int) {
			end, err := heads.Time(launches, turns)
			if err != nil {
				t.Fatal(err)
			}
			all = min(all, end)
			if heads.contiguous(launches, turns) {
				contiguous = min(contiguous, end)
			}
		})
	})
	return all, contiguous
}

// The exact order is the best of all orders, that of whole launches the best of these, Algorithm 1 an order that is no
// better, and each ends when the dependencies say.
func TestHeadOrdersAgainstEveryOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		heads := drawHeads(t, 5)
		all, contiguous := everyHeadOrder(t, heads)
		exact, bound := heads.Exact()
		greedy, whole, plain := heads.Greedy(), heads.byLaunch(), heads.InOrder()
		for name, order := range map[string]HeadOrder{
			"exact": exact, "greedy": greedy, "whole launches": whole, "in order": plain,
		} {
			if end, err := heads.Time(order.Launches, order.Turns); err != nil || end != order.NS {
				t.Fatalf("%s: says %d, is %d: %v", name, order.NS, end, err)
			}
		}
		if exact.NS != all || bound != all || whole.NS != contiguous || greedy.NS < contiguous {
			t.Fatalf("%+v: exact %d with bound %d (all orders %d), whole launches %d (all %d), Algorithm 1 %d", heads,
				exact.NS, bound, all, whole.NS, contiguous, greedy.NS)
		}
		if !heads.contiguous(greedy.Launches, greedy.Turns) {
			t.Fatal("Algorithm 1 separates the turns of a launch")
		}
		if least := heads.least(); least > all {
			t.Fatalf("%+v: bound %d exceeds %d", heads, least, all)
		}
	})
}

// The exact order of many heads is no later than Algorithm 1 or the order of the heads, and its bound no later than it.
func TestHeadOrdersOfManyHeads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		heads := drawHeads(t, 24)
		exact, bound := heads.Exact()
		if end, err := heads.Time(exact.Launches, exact.Turns); err != nil || end != exact.NS {
			t.Fatalf("says %d, is %d: %v", exact.NS, end, err)
		}
		greedy, plain := heads.Greedy(), heads.InOrder()
		isBounded := bound <= exact.NS && heads.least() <= exact.NS
		if exact.NS > greedy.NS || exact.NS > plain.NS || !isBounded {
			t.Fatalf("%+v: exact %d with bound %d, Algorithm 1 %d, in order %d", heads, exact.NS, bound, greedy.NS,
				plain.NS)
		}
	})
}

// Of two stages behind the estimate both may take the heads in one order: with two orders nothing ends earlier.
func TestStagesTakeHeadsInOneOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		heads := drawHeads(t, 4)
		heads.OneLane = false
		least := int64(math.MaxInt64)
		permutations(len(heads.Launches), func(launches []int) {
			released := map[int]int64{}
			at := int64(0)
			for _, i := range launches {
				at += heads.Launches[i].NS
				for _, turn := range heads.Launches[i].Turns {
					released[turn] = at + heads.ScoresNS
				}
			}

			permutations(len(heads.Turns), func(first []int) {
				selected := map[int]int64{}
				now := int64(0)
				for _, turn := range first {
					now = max(now, released[turn]) + heads.Turns[turn].SelectNS
					selected[turn] = now + heads.PositionsNS
				}
				permutations(len(heads.Turns), func(second []int) {
					end := int64(0)
					for _, turn := range second {
						end = max(end, selected[turn]) + heads.Turns[turn].AttendNS
					}
					least = min(least, max(at, end))
				})
			})
		})
		if got, _ := heads.Exact(); got.NS != least {
			t.Fatalf("%+v: %d, with two orders %d", heads, got.NS, least)
		}
	})
}

// Orders that leave out or repeat something are errors.
func TestHeadOrdersAreComplete(t *testing.T) {
	heads := &Heads{Launches: []Launch{{1, []int{0}}, {5, []int{1}}}, Turns: []Turn{{1, 1}, {1, 1}}}
	for _, bad := range [][2][]int{{{0, 1}, {1, 1}}, {{0, 0}, {0, 1}}, {{0}, {0, 1}}, {{0, 1}, {0}}} {
		if _, err := heads.Time(bad[0], bad[1]); err == nil {
			t.Errorf("launches %v and turns %v are an order", bad[0], bad[1])
		}
	}
}
