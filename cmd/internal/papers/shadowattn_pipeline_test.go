package papers

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func drawPipeline(t *rapid.T, most int) headPipeline {
	n := rapid.IntRange(1, most).Draw(t, "heads")
	time := rapid.Int64Range(0, 12)
	var p headPipeline
	for h := range n {
		p.heads = append(p.heads, headWork{time.Draw(t, "topk"), time.Draw(t, "qkv")})
		if h == 0 || rapid.Bool().Draw(t, "new launch") {
			p.launches = append(p.launches, headLaunch{npu: time.Draw(t, "npu")})
		}
		l := &p.launches[rapid.IntRange(0, len(p.launches)-1).Draw(t, "launch")]
		if h == 0 {
			l = &p.launches[0]
		}
		l.heads = append(l.heads, h)
	}
	p.launches = slices.DeleteFunc(p.launches, func(l headLaunch) bool { return len(l.heads) == 0 })
	return p
}

func TestHeadPlannersAgainstEveryOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := drawPipeline(rt, 5)
		all, contiguous := p.everyOrder()
		greedy, launch, head := p.greedy(false), p.byLaunch(), p.byHead()
		for _, s := range []struct {
			name string
			headSchedule
		}{{"greedy", greedy}, {"by launch", launch}, {"by head", head}} {
			end, err := p.run(s.launches, s.heads)
			if err != nil || end != s.end {
				rt.Fatalf("%s: says %d, is %d: %v", s.name, s.end, end, err)
			}
		}
		if !p.contiguous(greedy.launches, greedy.heads) || !p.contiguous(launch.launches, launch.heads) {
			rt.Fatal("heads of a launch do not follow each other")
		}
		if launch.end != contiguous || head.end != all || greedy.end < contiguous {
			rt.Fatalf("%+v: greedy %d, by launch %d (all orders %d), by head %d (all orders %d)", p, greedy.end,
				launch.end, contiguous, head.end, all)
		}
		if s := p.sequential(); head.end > s {
			rt.Fatalf("best %d takes longer than one after the other, %d", head.end, s)
		}
	})
}

// The two stages beside the NPU may as well take the heads in the same order.
func TestStagesTakeHeadsInOneOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := drawPipeline(rt, 4)
		least := int64(math.MaxInt64)
		permutations(len(p.launches), func(launches []int) {
			released := map[int]int64{}
			clock := int64(0)
			for _, i := range launches {
				clock += p.launches[i].npu
				for _, h := range p.launches[i].heads {
					released[h] = clock
				}
			}
			permutations(len(p.heads), func(first []int) {
				selected := map[int]int64{}
				t1 := int64(0)
				for _, h := range first {
					t1 = max(t1, released[h]) + p.heads[h].topk
					selected[h] = t1
				}
				second := slices.Clone(first)
				permutations(len(second), func(order []int) {
					t2 := int64(0)
					for _, i := range order {
						t2 = max(t2, selected[second[i]]) + p.heads[second[i]].qkv
					}
					least = min(least, t2)
				})
			})
		})
		if got := p.byHead().end; got != least {
			rt.Fatalf("%+v: %d, with two orders %d", p, got, least)
		}
	})
}

func TestHeadPlannersScaleAndPermute(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := drawPipeline(rt, 9)
		k := rapid.Int64Range(2, 9).Draw(rt, "scale")
		scaled := headPipeline{}
		for _, l := range p.launches {
			scaled.launches = append(scaled.launches, headLaunch{npu: k * l.npu, heads: l.heads})
		}
		for _, h := range p.heads {
			scaled.heads = append(scaled.heads, headWork{k * h.topk, k * h.qkv})
		}
		turned := headPipeline{heads: p.heads, launches: slices.Clone(p.launches)}
		slices.Reverse(turned.launches)
		if a, b := p.byHead().end, scaled.byHead().end; b != k*a {
			rt.Fatalf("scaled by %d: %d after %d", k, b, a)
		}
		if a, b := p.byLaunch().end, turned.byLaunch().end; a != b {
			rt.Fatalf("launches reversed: %d after %d", b, a)
		}
		if p.byHead().end > p.byLaunch().end || p.byLaunch().end > p.greedy(false).end {
			rt.Fatal("a wider choice ends later")
		}
	})
}

// Read literally, line 25 returns an order that is not one of the heads, whenever the launch tried last is not
// selected.
func TestLiteralLine25(t *testing.T) {
	p := headPipeline{
		launches: []headLaunch{{npu: 1, heads: []int{0}}, {npu: 5, heads: []int{1}}}, heads: []headWork{{1, 1}, {1, 1}},
	}
	literal, meant := p.greedy(true), p.greedy(false)
	if !slices.Equal(literal.heads, []int{1, 1}) || !slices.Equal(meant.heads, []int{0, 1}) {
		t.Errorf("literal %v, meant %v", literal.heads, meant.heads)
	}
	if literal.end != meant.end {
		t.Errorf("the times of both are committed by line 27: %d, %d", literal.end, meant.end)
	}
	if _, err := p.run(literal.launches, literal.heads); err == nil {
		t.Error("an order with a head twice runs")
	}
}

func TestBestLaunches(t *testing.T) {
	npu := func(n int) int64 { return []int64{0, 20, 30, 35, 40}[n] }
	// Where multiplication bounds the time, fusing only delays its start.
	heads := []headWork{{1, 100}, {1, 100}, {1, 100}, {1, 100}}
	fused := headPipeline{launches: []headLaunch{{npu: npu(4), heads: []int{0, 1, 2, 3}}}, heads: heads}
	_, best := bestLaunches([][]int{{0, 1, 2, 3}}, heads, npu)
	if got := fused.byHead().end; got != 441 || best.end != 421 {
		t.Errorf("one launch %d, best %d", got, best.end)
	}
	// Where the NPU does, it saves.
	heads = []headWork{{1, 1}, {1, 1}, {1, 1}, {1, 1}}
	if p, best := bestLaunches([][]int{{0, 1, 2, 3}}, heads, npu); len(p.launches) != 1 || best.end != 45 {
		t.Errorf("%d launches, end %d", len(p.launches), best.end)
	}
	// Heads of unlike buckets cannot share one.
	if p, _ := bestLaunches([][]int{{0, 2}, {1, 3}}, heads, npu); len(p.launches) != 2 {
		t.Errorf("%d launches of two buckets", len(p.launches))
	}
	points := [][2]float64{{1, 2}, {2, 3}, {4, 4}}
	for n, want := range map[int]float64{1: 2, 2: 3, 3: 3.5, 4: 4, 6: 5} {
		if got := launchTime(points, n); got != want {
			t.Errorf("%d heads: %v, want %v", n, got, want)
		}
	}
}
