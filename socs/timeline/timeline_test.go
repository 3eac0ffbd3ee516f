package timeline

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// steps is the work of a section: the phases of each step, the same in every iteration, and when steps ran.
type steps struct {
	phases [][][]Phase
	spans  map[[3]int][3]int64
}

func (x *steps) Phases(lane, step, _ int) []Phase { return x.phases[lane][step] }

func (x *steps) Ran(lane, step, iteration int, idle, start, end int64) {
	if x.spans == nil {
		x.spans = map[[3]int][3]int64{}
	}
	x.spans[[3]int{lane, step, iteration}] = [3]int64{idle, start, end}
}

func reading(setup, memory float64) []Phase {
	return []Phase{{SetupNS: setup, MemoryNS: memory, Rate: 1}}
}

func both(joint float64) Memory {
	return Memory{Sets: []Set{{Procs: []string{"a", "b"}, BytesPerNS: joint}}}
}

// Two that read share 1.5 bytes per ns while both do. a sets up until 10, in which b reads 10 of 50. Both then take 4/3 as
// long: b is done at 10 + 40*4/3 = 63.3, and a has 60 of 100 left, which it reads alone.
func TestContention(t *testing.T) {
	m := Machine{Memory: both(1.5)}
	x := steps{phases: [][][]Phase{{reading(10, 100)}, {reading(0, 50)}}}
	s := Section{Lanes: []Lane{{Proc: "a", Thread: 0, Steps: make([]Step, 1)}, {Proc: "b", Thread: 1, Steps: make([]Step, 1)}}}
	ns, ok := Walk(&m, &s, &x)
	if a, b := x.spans[[3]int{0, 0, 0}], x.spans[[3]int{1, 0, 0}]; !ok || ns != 123 || a != [3]int64{0, 0, 123} || b != [3]int64{0, 0, 63} {
		t.Errorf("%d ns, %v, spans %v and %v, want 123 ns, ends at 123 and 63", ns, ok, a, b)
	}
	// While b is repeated all along, what a reads takes 4/3 as long.
	if got := Beside(&m, []string{"a", "b"}, [][]Phase{reading(0, 120), reading(0, 7)}); got != 160 {
		t.Errorf("beside a stream: %v ns, want 160", got)
	}
	if got := Together(&m, []string{"a", "b"}, [][]Phase{reading(10, 100), reading(0, 50)}); !slices.Equal(got, []float64{123, 63}) {
		t.Errorf("together: %v, want 123 and 63", got)
	}
	if got := Beside(&m, []string{"a", "b"}, [][]Phase{reading(0, 120), nil}); got != 120 {
		t.Errorf("beside nothing: %v ns, want 120", got)
	}
}

// A lane of another processor notices the start 5 later, waits for a flag 5 after it was set, and the control processor notices its end
// 5 after that. Flags of the iteration before are waited for from the second on.
func TestFlags(t *testing.T) {
	m := Machine{Handover: func(from, to string) float64 { return 5 }}
	x := steps{phases: [][][]Phase{{reading(10, 0)}, {reading(20, 0)}}}
	s := Section{Iterations: 2, Control: "a", Lanes: []Lane{
		{Proc: "a", Thread: 0, Steps: []Step{{After: []After{{Lane: 1, Step: 0, Back: true}}}}},
		{Proc: "b", Thread: 1, Steps: []Step{{After: []After{{Lane: 0, Step: 0}}}}},
	}}
	ns, ok := Walk(&m, &s, &x)
	// a 0-10, b 15-35, a 40-50, b 55-75, noticed at 80.
	if want := map[[3]int][3]int64{{0, 0, 0}: {0, 0, 10}, {1, 0, 0}: {0, 15, 35}, {0, 0, 1}: {10, 40, 50}, {1, 0, 1}: {35, 55, 75}}; !ok || ns != 80 || len(x.spans) != 4 {
		t.Errorf("%d ns, %v, %v, want 80 ns, %v", ns, ok, x.spans, want)
	} else {
		for k, v := range want {
			if x.spans[k] != v {
				t.Errorf("step %v: %v, want %v", k, x.spans[k], v)
			}
		}
	}
	s.Lanes[0].Steps[0].After[0].Back = false
	if _, ok := Walk(&m, &s, &x); ok {
		t.Error("a circle came to an end")
	}
}

// Lanes of one thread take turns: the first goes on until it waits.
func TestTurns(t *testing.T) {
	x := steps{phases: [][][]Phase{{reading(10, 0), reading(1, 0)}, {reading(20, 0)}, {reading(3, 0)}}}
	s := Section{Lanes: []Lane{
		{Proc: "a", Thread: 7, Steps: []Step{{}, {After: []After{{Lane: 2, Step: 0}}}}},
		{Proc: "b", Thread: 8, Steps: make([]Step, 1)},
		{Proc: "c", Thread: 7, Steps: make([]Step, 1)},
	}}
	ns, ok := Walk(&Machine{}, &s, &x)
	if a, c := x.spans[[3]int{0, 1, 0}], x.spans[[3]int{2, 0, 0}]; !ok || ns != 20 || c != [3]int64{10, 10, 13} || a != [3]int64{13, 13, 14} {
		t.Errorf("%d ns, %v, %v", ns, ok, x.spans)
	}
}

// Together, activities never read more than any set among them can, nobody is faster than alone, and measured pairs answer
// for themselves.
func TestSlow(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		positive := rapid.Float64Range(1, 1e6)
		procs := []string{"a", "b", "c", "d"}[:rapid.IntRange(2, 4).Draw(rt, "n")]
		m := Memory{Sets: []Set{{Procs: procs, BytesPerNS: rapid.Float64Range(1e-3, 1e3).Draw(rt, "joint")}, {Procs: procs[:2], BytesPerNS: rapid.Float64Range(1e-3, 1e3).Draw(rt, "joint of two")}}}
		var active []Activity
		for _, name := range procs {
			m.Sets[0].Compute = append(m.Sets[0].Compute, rapid.Float64Range(1, 2).Draw(rt, "slow"))
			active = append(active, Activity{name, &Phase{ComputeNS: positive.Draw(rt, "compute"), MemoryNS: positive.Draw(rt, "memory"), Rate: rapid.Float64Range(0.1, 100).Draw(rt, "rate"), Sharp: rapid.SampledFrom([]float64{0, 1, 2, 4, 7, sharpest}).Draw(rt, "p")}})
		}
		slow := m.Slow(active, nil)
		for _, s := range m.Sets {
			sum := 0.0
			for i := range s.Procs {
				p := active[i].Phase
				if !(slow[i] >= 1) {
					rt.Fatalf("factor %v", slow[i])
				}
				sum += p.MemoryNS * p.Rate / (p.work(1, 1) * slow[i])
			}
			if sum > s.BytesPerNS*1.001 {
				rt.Fatalf("%v read %v bytes per ns together, want at most %v", s.Procs, sum, s.BytesPerNS)
			}
		}
	})
	p, q := &Phase{MemoryNS: 1, Rate: 1, Key: "x"}, &Phase{MemoryNS: 1, Rate: 1, Key: "y"}
	m := both(1.5)
	m.Pairs = map[Pair]float64{{"a", "x", "b", "y"}: 1.7}
	if got := m.Slow([]Activity{{"a", p}, {"b", q}}, nil); got[0] != 1.7 || math.Abs(got[1]-4.0/3) > 1e-9 {
		t.Errorf("a measured pair: %v, want 1.7 and 4/3", got)
	}
	class := Class{"matmul", "a8t/q8c", 1}
	m.Alike = map[Alike]float64{{"a", "b", class}: 1.5, {"b", "a", class}: 0.5}
	p, q = &Phase{MemoryNS: 1, Rate: 1, Class: class}, &Phase{MemoryNS: 1, Rate: 1, Class: class}
	if got := m.Slow([]Activity{{"a", p}, {"b", q}}, nil); math.Abs(got[0]-2) > 1e-9 || got[1] != 1 {
		t.Errorf("activities of a class: %v, want 1.5 times 4/3, and no less than 1", got)
	}
	if got := m.Slow([]Activity{{"a", p}, {"c", q}}, nil); got[0] != 1 || got[1] != 1 {
		t.Errorf("a set of which nothing is known: %v, want 1 and 1", got)
	}
}

// counted counts the steps of a lane.
type counted struct {
	steps
	runs []int
}

func (x *counted) Ran(lane, step, iteration int, idle, start, end int64) {
	x.runs[lane]++
	x.steps.Ran(lane, step, iteration, idle, start, end)
}

// A lane that is repeated all along takes no more events than a lane of any length needs, and one without work none.
func TestEndless(t *testing.T) {
	m := Machine{Memory: both(1.5)}
	for _, c := range []struct {
		name    string
		own     float64
		ns      int64
		atLeast int
	}{
		{"often", 1e4, 133_333_333, 900},
		{"too often", 1e-3, 133_333_333, 900},
		{"without work", 0, 100_000_000, 0},
	} {
		x := counted{steps{phases: [][][]Phase{{reading(0, 1e8)}, {reading(0, c.own/2), reading(0, c.own/2)}}}, make([]int, 2)}
		s := Section{Lanes: []Lane{{Proc: "a", Thread: 0, Steps: make([]Step, 1)},
			{Proc: "b", Thread: 1, Steps: make([]Step, 2), Endless: true}}}
		ns, ok := Walk(&m, &s, &x)
		if !ok || max(ns-c.ns, c.ns-ns) > 1000 || x.runs[1] < c.atLeast || x.runs[1] > 4*mostRounds {
			t.Errorf("%s: %d ns, %v, want %d ns; %d steps of the other lane", c.name, ns, ok, c.ns, x.runs[1])
		}
	}
}

// However lanes contend, a section takes at least as long as its longest lane alone, and every step runs after what it waits for.
func TestWalkOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		procs := []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(rt, "lanes")]
		m := Machine{Memory: Memory{Sets: []Set{{Procs: procs, BytesPerNS: 1.2}}}, Handover: func(string, string) float64 { return 3 }}
		s, x := Section{Iterations: rapid.IntRange(1, 3).Draw(rt, "iterations"), Control: "a"}, steps{}
		longest := 0.0
		var order [][2]int // steps that may be waited for
		for i, name := range procs {
			l := Lane{Proc: name, Thread: i}
			var phases [][]Phase
			alone := 0.0
			for range rapid.IntRange(0, 4).Draw(rt, "steps") {
				step := Step{}
				if len(order) > 0 && rapid.Bool().Draw(rt, "waits") {
					by := order[rapid.IntRange(0, len(order)-1).Draw(rt, "by")]
					step.After = append(step.After, After{Lane: by[0], Step: by[1], Back: rapid.Bool().Draw(rt, "back")})
				}
				l.Steps = append(l.Steps, step)
				p := reading(float64(rapid.IntRange(0, 9).Draw(rt, "setup")), float64(rapid.IntRange(0, 9).Draw(rt, "memory")))
				phases, alone = append(phases, p), alone+ns(p)
			}
			for k := range l.Steps {
				order = append(order, [2]int{i, k})
			}
			s.Lanes, x.phases = append(s.Lanes, l), append(x.phases, phases)
			longest = max(longest, alone*float64(s.Iterations))
		}
		took, ok := Walk(&m, &s, &x)
		if !ok || float64(took) < longest-1 {
			rt.Fatalf("%d ns, %v, want at least %v", took, ok, longest)
		}
		for key, span := range x.spans {
			for _, a := range s.Lanes[key[0]].Steps[key[1]].After {
				by := [3]int{a.Lane, a.Step, key[2]}
				if a.Back {
					by[2]--
				}
				if before, ok := x.spans[by]; ok && a.Lane != key[0] && span[1] < before[2]+2 {
					rt.Fatalf("step %v starts at %d, %v ended at %d", key, span[1], by, before[2])
				}
			}
		}
	})
}

// A thread that computes besides gives a processor its steps: before its own, and each once what it waits for is there.
func TestSubmissions(t *testing.T) {
	m := Machine{Handover: func(from, to string) float64 {
		return map[[2]string]float64{{"cpu", "gpu"}: 3, {"gpu", "cpu"}: 4}[[2]string{from, to}]
	}}
	section := func(submit float64) *Section {
		return &Section{Iterations: 2, Control: "cpu", Lanes: []Lane{
			{Proc: "cpu", Thread: 0, Steps: []Step{{After: []After{{Lane: 1, Step: 1, Back: true}}}}},
			{Proc: "gpu", Thread: 1, SubmitNS: submit, Steps: []Step{
				{After: []After{{Lane: 1, Step: 1, Back: true}}}, {After: []After{{Lane: 0, Step: 0}}},
			}},
		}}
	}
	phases := [][][]Phase{{reading(10, 0)}, {reading(20, 0), reading(5, 0)}}
	for _, c := range []struct {
		submit float64
		ns     int64
		cpu    [2]int64 // when its steps start
		gpu    [4]int64
	}{
		// cpu 0-10; gpu gets its first step at 3: 3-23, the second 23-28; noticed at 32: cpu 32-42; gpu 28-48 and 48-53.
		{0, 57, [2]int64{0, 32}, [4]int64{3, 23, 28, 48}},
		// Both first steps of a processor that is fed cost 2 of the thread: cpu starts at 2, gpu at 3. The second is
		// given at 12 to 14, when the cpu is done; the third at 14 to 16, and the fourth after the cpu's second step.
		{2, 57, [2]int64{2, 32}, [4]int64{3, 23, 28, 48}},
		// Giving takes 6: cpu 6-16, gpu 6-26, second given 16-22, third 22-28; gpu 26-31, 31-51; noticed at 35: cpu 35-45,
		// given 45-51; 51-56.
		{6, 60, [2]int64{6, 35}, [4]int64{6, 26, 31, 51}},
		// Giving takes longer than executing: given 0-30, cpu 30-40, given 40-70 and 70-100, gpu 70-75 and noticed at 79:
		// the thread is free at 100: cpu 100-110, given 110-140, gpu 140-145.
		{30, 149, [2]int64{30, 100}, [4]int64{30, 70, 100, 140}},
	} {
		x := steps{phases: phases}
		ns, ok := Walk(&m, section(c.submit), &x)
		cpu := [2]int64{x.spans[[3]int{0, 0, 0}][1], x.spans[[3]int{0, 0, 1}][1]}
		gpu := [4]int64{x.spans[[3]int{1, 0, 0}][1], x.spans[[3]int{1, 1, 0}][1], x.spans[[3]int{1, 0, 1}][1],
			x.spans[[3]int{1, 1, 1}][1]}
		if !ok || ns != c.ns || cpu != c.cpu || gpu != c.gpu || len(x.spans) != 6 {
			t.Errorf("submitting takes %v: %d ns, cpu at %v, gpu at %v, want %d, %v, %v", c.submit, ns, cpu, gpu, c.ns,
				c.cpu, c.gpu)
		}
	}
	// Steps that a call leaves out are not given: no thread takes time for them. cpu 0-10, noticed by way of the flags of
	// the gpu at 14, cpu 14-24, 28.
	x := steps{phases: [][][]Phase{{reading(10, 0)}, {nil, nil}}}
	if ns, ok := Walk(&m, section(30), &x); !ok || ns != 28 {
		t.Errorf("without work for the processor: %d ns, %v, want 28", ns, ok)
	}
}
