package solver

import (
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs/timeline"
	"github.com/hetc/hetc/solver/price"
)

// effort is what a step does alone on its processor, and how long that takes.
type effort struct {
	phases []timeline.Phase
	price.Estimate
}

// sections lays a lowered program out for walks, one for each of its sections: lanes with their steps, and instead of flags the steps
// that set them. It knows nothing of how the decisions came about.
func sections(ph *planir.Phase, control string, thread func(lane string) string) []timeline.Section {
	out := make([]timeline.Section, len(ph.Sections))
	for i := range ph.Sections {
		s := &ph.Sections[i]
		setters, threads := map[int]timeline.After{}, map[string]int{}
		for l := range s.Lanes {
			for k := range s.Lanes[l].Steps {
				if set := s.Lanes[l].Steps[k].Set; set != nil {
					setters[*set] = timeline.After{Lane: l, Step: k}
				}
			}
		}
		out[i] = timeline.Section{Iterations: s.Layers, Control: control}
		for l := range s.Lanes {
			from := &s.Lanes[l]
			on := thread(from.Proc)
			if _, ok := threads[on]; !ok {
				threads[on] = len(threads)
			}
			lane := timeline.Lane{Proc: from.Proc, Thread: threads[on], Steps: make([]timeline.Step, len(from.Steps))}
			for k := range from.Steps {
				for _, w := range from.Steps[k].Wait {
					after := setters[w.Flag]
					after.Back = w.Back
					lane.Steps[k].After = append(lane.Steps[k].After, after)
				}
			}
			out[i].Lanes = append(out[i].Lanes, lane)
		}
	}
	return out
}

// efforts are those of a section's steps, under one assumption about their times.
type efforts struct {
	phases [][][]timeline.Phase // by lane and step
}

// Phases are the same in every iteration.
func (e *efforts) Phases(lane, step, _ int) []timeline.Phase { return e.phases[lane][step] }

// Ran notes nothing.
func (e *efforts) Ran(_, _, _ int, _, _, _ int64) {}

// assume is the efforts of a section with their expected times, or those that pick selects.
func assume(s *planir.Section, of map[stepKey]effort, pick func(price.Estimate) int64) *efforts {
	out := &efforts{phases: make([][][]timeline.Phase, len(s.Lanes))}
	for l := range s.Lanes {
		lane := &s.Lanes[l]
		out.phases[l] = make([][]timeline.Phase, len(lane.Steps))
		for k := range lane.Steps {
			st := &lane.Steps[k]
			e := of[stepKey{lane.Proc, st.Node, st.Run}]
			out.phases[l][k] = e.phases
			if ns := pick(e.Estimate); ns != e.NS && e.NS > 0 {
				out.phases[l][k] = stretched(e.phases, float64(ns)/float64(e.NS))
			}
		}
	}
	return out
}

// stretched is phases that take that many times as long.
func stretched(phases []timeline.Phase, factor float64) []timeline.Phase {
	out := make([]timeline.Phase, len(phases))
	for i := range phases {
		out[i] = phases[i].Times(factor)
	}
	return out
}

// walk predicts a program and each of its sections, under one assumption about all times.
func (s *session) walk(ph *planir.Phase, of map[stepKey]effort, pick func(price.Estimate) int64) (total int64, each []int64, err error) {
	m := timeline.Machine{Memory: *s.prices.Memory(), Handover: func(from, to string) float64 {
		if s.Thread(from) == s.Thread(to) || s.Apart[[2]string{from, to}] {
			return 0 // of those that are never combined one may still be started by the other, at a price that nobody knows
		}
		h, failed := s.prices.Handover(from, to)
		if failed != nil {
			err = failed
		}
		return float64(pick(h))
	}}
	for i, sec := range sections(ph, s.in.SoC.Control, s.Thread) {
		ns, ok := timeline.Walk(&m, &sec, assume(&ph.Sections[i], of, pick))
		if !ok {
			panic("BUG: lanes of " + ph.Sections[i].Name + " wait in a circle, which rule P008 excludes")
		}
		each = append(each, ns)
		total += ns
	}
	return total, each, err
}

// stepKey names a step: what is told apart by it takes the same time.
type stepKey struct{ lane, node, graph string }

// efforts are what the steps of a program do: the operators of their graphs, which are launched once.
func (s *session) efforts(p *planir.Plan, ph *planir.Phase) (map[stepKey]effort, error) {
	graphs := map[string]*planir.Graph{}
	for i := range p.Program.Graphs {
		graphs[p.Program.Graphs[i].Name] = &p.Program.Graphs[i]
	}
	out := map[stepKey]effort{}
	for i := range ph.Sections {
		for _, l := range ph.Sections[i].Lanes {
			for k := range l.Steps {
				st := &l.Steps[k]
				key := stepKey{l.Proc, st.Node, st.Run}
				if _, ok := out[key]; ok {
					continue
				}
				e, err := s.effort(ph, l.Proc, graphs[st.Run])
				if err != nil {
					return nil, diag.New(diag.ClassOr(err, diag.ClassInput), "predict step %q of %s: %w", st.Node, ph.Name, err)
				}
				out[key] = e
			}
		}
	}
	return out, nil
}

// effort is what a graph does on a processor: that of its operators less the launches that it saves.
func (s *session) effort(ph *planir.Phase, proc string, g *planir.Graph) (effort, error) {
	var out effort
	launch, err := s.prices.Launch(proc)
	if err != nil && len(g.Graph.Nodes) > 1 {
		return out, err
	}
	for i, n := range g.Graph.Nodes {
		t := price.Task{Proc: proc, Op: n.Op}
		if t.Op.Kind == op.Attention {
			t.Op.Context = s.want.ContextAt(ph.Rows)
		}
		est, err := s.prices.Together([]price.Task{t})
		if err != nil {
			return out, err
		}
		phase, err := s.prices.Phase(t)
		if err != nil {
			return out, err
		}
		e := est[0]
		if i > 0 {
			saved := min(launch, e.NS)
			phase = price.Shorten(phase, float64(saved))
			e.NS, e.Low, e.High = e.NS-saved, max(0, e.Low-saved), max(0, e.High-saved)
		}
		out.phases = append(out.phases, phase)
		out.NS, out.Low, out.High = out.NS+e.NS, out.Low+e.Low, out.High+e.High
	}
	return out, nil
}
