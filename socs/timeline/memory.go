// Package timeline knows when things happen on processors that share one memory: how much activities that run side by
// side slow each other down (Memory), and when the steps of lanes begin and end that wait for each other (Walk). A
// prediction fills it with fitted times, a simulation with the times of its description, so that both mean the same
// by a lane, a hand-over and contention.
package timeline

import (
	"math"
	"slices"
)

// Phase is a part of an activity, alone on its processor. It takes SetupNS, in which memory is not touched, and then
// (ComputeNS^Sharp + MemoryNS^Sharp)^(1/Sharp). Sharp 0 stands for the larger of both.
type Phase struct {
	SetupNS, ComputeNS, MemoryNS float64
	Sharp                        float64
	// Rate is how fast the memory part reads: bytes per nanosecond.
	Rate float64
	// Key names the activity among the measured pairs of a Memory; "" is none of them.
	Key string
	// Class is what a Memory knows of it beside activities of the same class; the zero Class: nothing.
	Class Class
}

// Class is what activities have in common that slow each other down alike: parts of one operator of any size.
type Class struct {
	Kind, Scheme string
	Rows         int
}

// NS returns the time of the phase alone.
func (p *Phase) NS() float64 { return p.SetupNS + p.work(1, 1) }

// work returns the time after the set-up when compute and memory take that many times as long.
func (p *Phase) work(compute, memory float64) float64 {
	return norm(float64(p.ComputeNS*compute), float64(p.MemoryNS*memory), p.Sharp)
}

// demand returns how much it reads then: bytes per nanosecond.
func (p *Phase) demand(compute, memory float64) float64 {
	alone := p.work(compute, memory)
	if alone == 0 {
		return 0
	}
	return float64(float64(p.MemoryNS*p.Rate) / alone)
}

// Times returns the phase with all its times that many times as long.
func (p *Phase) Times(factor float64) Phase {
	phase := *p
	phase.SetupNS, phase.ComputeNS, phase.MemoryNS = float64(p.SetupNS*factor), float64(p.ComputeNS*factor),
		float64(p.MemoryNS*factor)
	return phase
}

// sharpest is the sharpness from which on the norm is the larger of both.
const sharpest = 64

// norm is (x^power + y^power)^(1/power): the sum for 1, the larger one for 0 and large powers.
func norm(x, y, power float64) float64 {
	hi, lo := max(x, y), min(x, y)
	if hi == 0 || lo == 0 || power == 0 || power >= sharpest {
		return hi
	}
	if power == 1 {
		return hi + lo
	}
	ratio := lo / hi
	switch power { // the forms that are fitted
	case 2:
		return hi * math.Sqrt(1+float64(ratio*ratio))
	case 4:
		return hi * math.Sqrt(math.Sqrt(1+float64(float64(ratio*ratio)*float64(ratio*ratio))))
	}
	return hi * math.Pow(1+math.Pow(ratio, power), 1/power)
}

// Memory is how processors share memory.
type Memory struct {
	Sets []Set
	// Pairs are measured: by how much an activity slows down while another one runs beside it and nothing else does.
	Pairs map[Pair]float64
	// Alike says how many times as much as by Sets activities of a class slow down beside one of the same class.
	Alike map[Alike]float64
}

// Set is a set of processors that read at most BytesPerNS together. Compute is by how much the arithmetic of each slows
// down meanwhile, at least 1; nil: not at all.
type Set struct {
	Procs      []string
	BytesPerNS float64
	Compute    []float64
}

// Pair names an activity on a processor while another one runs on another processor.
type Pair struct{ Proc, Key, Beside, BesideKey string }

// Alike names activities of a class on a processor while another one works on the same.
type Alike struct {
	Proc, Beside string
	Class        Class
}

// Activity is a phase that a processor is executing, past its set-up.
type Activity struct {
	Proc  string
	Phase *Phase
}

// Slow returns by how much each of the activities slows down, at least 1, while all run on distinct processors.
//
// The memory parts of all are stretched by one common factor, the least with which no set among the processors reads
// more than it can. An activity that computes for longer than it reads hides some of that. Sets of which nothing is
// known do not slow down.
func (m *Memory) Slow(active []Activity, out []float64) []float64 {
	out = out[:0]
	for range active {
		out = append(out, 1)
	}
	if len(active) < 2 {
		return out
	}
	// by how much computing itself slows down in company
	compute := make([]float64, len(active))
	for i := range compute {
		compute[i] = 1
	}
	var sets []*Set
	for number := range m.Sets {
		set := &m.Sets[number]
		if !among(set, active) {
			continue
		}
		sets = append(sets, set)
		for i := range active {
			if at := slices.Index(set.Procs, active[i].Proc); at >= 0 && set.Compute != nil {
				compute[i] = max(compute[i], set.Compute[at])
			}
		}
	}
	// the least common stretch with which every set reads no more than it can
	stretch := 1.0
	for _, set := range sets {
		stretch = fit(set, active, compute, stretch)
	}
	for i := range active {
		phase := active[i].Phase
		if alone := phase.work(1, 1); alone > 0 {
			out[i] = max(phase.work(compute[i], stretch)/alone, 1)
		}
	}
	if len(active) == 2 {
		for i := range active {
			out[i] = max(m.measured(&active[i], &active[1-i], out[i]), 1)
		}
	}
	return out
}

// measured is by how much an activity slows down beside another one: as a measured pair did, or else by the law of the
// sets and as much more as activities of their class did.
func (m *Memory) measured(one, other *Activity, law float64) float64 {
	if one.Phase.Key != "" {
		if factor, ok := m.Pairs[Pair{one.Proc, one.Phase.Key, other.Proc, other.Phase.Key}]; ok {
			return factor
		}
	}
	if class := one.Phase.Class; class == other.Phase.Class && class.Kind != "" {
		if factor, ok := m.Alike[Alike{one.Proc, other.Proc, class}]; ok {
			return law * factor
		}
	}
	return law
}

// among reports whether all processors of a set are active.
func among(s *Set, active []Activity) bool {
	for _, name := range s.Procs {
		if !slices.ContainsFunc(active, func(a Activity) bool { return a.Proc == name }) {
			return false
		}
	}
	return true
}

// fit returns the least stretch of memory parts, from the given one on, with which the members of a set read no more
// than they can together. Demand falls as the stretch grows: bisection finds it.
func fit(s *Set, active []Activity, compute []float64, from float64) float64 {
	excess := func(stretch float64) bool {
		sum := 0.0
		for i := range active {
			if slices.Contains(s.Procs, active[i].Proc) {
				sum += active[i].Phase.demand(compute[i], stretch)
			}
		}
		return sum > float64(s.BytesPerNS*(1+1e-12))
	}
	if !excess(from) {
		return from
	}
	lo, hi := from, 2*from
	for hi < 1e15 && excess(hi) {
		lo, hi = hi, 2*hi
	}
	for range 60 {
		mid := (lo + hi) / 2
		if excess(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}
