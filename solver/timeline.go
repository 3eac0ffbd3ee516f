package solver

import (
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/moves"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs/timeline"
	"github.com/hetc/hetc/solver/price"
)

// stepWork is the work of a step alone on its processor: its phases, and their time as an interval with the expected
// time.
type stepWork struct {
	phases []timeline.Phase
	price.Estimate
}

// timelineSections lays a lowered program out for walks, one for each of its sections. A lane has its steps, each with
// the steps of other lanes for which it waits. Lanes with equal thread(lane) share a thread. submit is the time in ns
// that the control processor's thread needs to give a lane's processor a step. This function knows nothing of how the
// decisions were made.
func timelineSections(ph *planir.PhaseProgram, control string, thread func(lane string) string,
	submit func(lane string) float64) []timeline.Section {
	out := make([]timeline.Section, len(ph.Sections))
	for i := range ph.Sections {
		sec := &ph.Sections[i]
		setters, threads := map[int]timeline.After{}, map[string]int{}
		for l := range sec.Lanes {
			for k := range sec.Lanes[l].Steps {
				if set := sec.Lanes[l].Steps[k].Set; set != nil {
					setters[*set] = timeline.After{Lane: l, Step: k}
				}
			}
		}
		number := func(thread string) int {
			if _, ok := threads[thread]; !ok {
				threads[thread] = len(threads)
			}
			return threads[thread]
		}
		out[i] = timeline.Section{Iterations: sec.Iterations(), Control: control}
		for j := range sec.Lanes {
			from := &sec.Lanes[j]
			lane := timeline.Lane{Proc: from.Proc, Thread: number(thread(from.Proc)),
				Steps: make([]timeline.Step, len(from.Steps))}
			if lane.SubmitNS = submit(from.Proc); lane.SubmitNS > 0 {
				lane.Feeder = number(thread(control))
			}
			for i := range from.Steps {
				for _, w := range from.Steps[i].Wait {
					after := setters[w.Flag]
					after.Back = w.Back
					lane.Steps[i].After = append(lane.Steps[i].After, after)
				}
			}
			out[i].Lanes = append(out[i].Lanes, lane)
		}
	}
	return out
}

// sectionWork is the work of a section's steps, under one assumption about their times.
type sectionWork struct {
	section    *planir.Section
	phases     [][][]timeline.Phase // by lane and step
	copied     transfers
	number     int // of the section
	withCopies map[copyKey][]timeline.Phase
}

// transfers are the times of moving the operands of calls.
type transfers map[moves.Place]copyNS

// copyNS is the time of moving the operands of a call in ns: to its processor before it, and to the host after it.
type copyNS struct{ fetch, hand float64 }

// copyKey is a step with copies, which differ from iteration to iteration.
type copyKey struct {
	lane, step int
	copyNS
}

// Phases returns the phases of a step, between its copies. They are the same in every iteration in which it has a
// layer.
func (e *sectionWork) Phases(lane, step, iteration int) []timeline.Phase {
	if _, works := e.section.Lanes[lane].Steps[step].Layer(e.section, iteration); !works {
		return nil
	}
	phases := e.phases[lane][step]
	took := e.copied[moves.Place{Section: e.number, Lane: lane, Step: step, Iteration: iteration}]
	if took == (copyNS{}) || len(phases) == 0 {
		return phases
	}
	key := copyKey{lane, step, took}
	if e.withCopies[key] == nil {
		if e.withCopies == nil {
			e.withCopies = map[copyKey][]timeline.Phase{}
		}
		e.withCopies[key] = slices.Concat([]timeline.Phase{{SetupNS: took.fetch}}, phases,
			[]timeline.Phase{{SetupNS: took.hand}})
	}
	return e.withCopies[key]
}

// Ran notes nothing.
func (e *sectionWork) Ran(_, _, _ int, _, _, _ int64) {}

// assumeTimes returns the work of a section with the expected times of its steps, or those that pick selects.
func assumeTimes(sec *planir.Section, of map[stepKey]stepWork, pick func(price.Estimate) int64) *sectionWork {
	out := &sectionWork{section: sec, phases: make([][][]timeline.Phase, len(sec.Lanes))}
	for l := range sec.Lanes {
		lane := &sec.Lanes[l]
		out.phases[l] = make([][]timeline.Phase, len(lane.Steps))
		for k := range lane.Steps {
			st := &lane.Steps[k]
			effort := of[keyOf(lane, st)]
			out.phases[l][k] = effort.phases
			if ns := pick(effort.Estimate); ns != effort.NS && effort.NS > 0 {
				out.phases[l][k] = stretched(effort.phases, float64(ns)/float64(effort.NS))
			}
		}
	}
	return out
}

// stretched returns phases that take that many times as long.
func stretched(phases []timeline.Phase, factor float64) []timeline.Phase {
	out := make([]timeline.Phase, len(phases))
	for i := range phases {
		out[i] = phases[i].Times(factor)
	}
	return out
}

// programWork is the work of the steps of a program in a call, and the control thread's time for the processors that it
// feeds.
type programWork struct {
	of     map[stepKey]stepWork
	copied transfers
	submit map[string]float64 // ns of the control thread for each step, by processor
}

// predictSections predicts a program and each of its sections, in ns. pick selects the expected, the low or the high
// time of every step and hand-over.
func (s *request) predictSections(ph *planir.PhaseProgram, done programWork,
	pick func(price.Estimate) int64) (total int64, each []int64, err error) {
	submit := func(lane string) float64 { return done.submit[lane] }
	on := timeline.Machine{Memory: *s.prices.Memory(), Handover: func(from, to string) float64 {
		if s.Thread(from) == s.Thread(to) || s.Apart[[2]string{from, to}] {
			return 0 // one of two that are never combined may still start the other: its price is not known
		}
		h, failed := s.prices.Handover(from, to)
		if failed != nil {
			err = failed
		}
		return float64(pick(h))
	}}
	for i, sec := range timelineSections(ph, s.in.SoC.Control, s.Thread, submit) {
		does := assumeTimes(&ph.Sections[i], done.of, pick)
		does.number, does.copied = i, done.copied
		ns, ok := timeline.Walk(&on, &sec, does)
		if !ok {
			panic("BUG: lanes of " + ph.Sections[i].Name + " wait in a circle, which rule P008 excludes")
		}
		each = append(each, ns)
		total += ns
	}
	return total, each, err
}

// stepKey names a step: steps with equal keys take the same time.
type stepKey struct {
	lane, node, graph string
	from              int // first row, of which chunk it is
}

// keyOf returns the key of a lane's step.
func keyOf(lane *planir.Lane, st *planir.Step) stepKey {
	return stepKey{lane.Proc, st.Node, st.Run, st.R0}
}

// call describes how a program is called.
type call struct {
	rows    int // of the call, at most the program's
	context int // positions that attention works on
}

// workOf returns the work of a program's steps: the operators of their graphs, each graph launched once.
func (s *request) workOf(plan *planir.Plan, ph *planir.PhaseProgram) (programWork, error) {
	return s.workAt(plan, ph, ph.Rows, func(from int) int { return s.contextOf(plan, ph, from) })
}

// workOfCall returns the work of a call with fewer rows. A processor that takes any number of rows computes only those.
func (s *request) workOfCall(plan *planir.Plan, ph *planir.PhaseProgram, called call) (programWork, error) {
	return s.workAt(plan, ph, called.rows, func(int) int { return called.context })
}

// workAt returns the work of a call of so many rows. The number of positions on which attention of a step works depends
// on the step's first row.
func (s *request) workAt(plan *planir.Plan, ph *planir.PhaseProgram, rows int,
	context func(from int) int) (programWork, error) {
	graphs := map[string]*planir.Graph{}
	for i := range plan.Program.Graphs {
		graphs[plan.Program.Graphs[i].Name] = &plan.Program.Graphs[i]
	}
	out := map[stepKey]stepWork{}
	for i := range ph.Sections {
		for _, lane := range ph.Sections[i].Lanes {
			for i := range lane.Steps {
				st := &lane.Steps[i]
				key := keyOf(&lane, st)
				if _, ok := out[key]; ok {
					continue
				}
				left := call{max(0, rows-st.R0), context(st.R0)}
				if st.Full { // its rows are no tokens: every call executes all of them
					left.rows = graphs[st.Run].Graph.Rows()
				}
				effort, err := s.graphWork(plan.Proc(lane.Proc), &graphs[st.Run].Graph, left)
				if err != nil {
					return programWork{}, diag.New(diag.ClassOr(err, diag.ClassInput), "predict step %q of %s: %w",
						st.Node, ph.Name, err)
				}
				out[key] = effort
			}
		}
	}
	copied, err := s.copyTimes(plan, ph, rows)
	return programWork{out, copied, s.submissions(plan)}, err
}

// submissions returns how long the control thread takes to submit a step, in ns, for each processor that it feeds. A
// device that works on the control processor's own cores takes turns with it anyway.
func (s *request) submissions(plan *planir.Plan) map[string]float64 {
	out := map[string]float64{}
	control := s.Thread(s.in.SoC.Control)
	submitNS := func(proc string) float64 {
		if described := s.in.SoC.Processor(proc); described != nil {
			return 1e3 * described.SubmitUS
		}
		return 0
	}
	computes := func(proc string) bool { return s.Thread(proc) == control && submitNS(proc) == 0 }
	for i := range plan.Procs {
		name := plan.Procs[i].Name
		if took := submitNS(name); took > 0 && s.Thread(name) != control && plan.FedByControl(name, computes) {
			out[name] = took
		}
	}
	return out
}

// copyTimes prices the operands of a call that travel between the host's memory and processors with memory of their
// own.
func (s *request) copyTimes(plan *planir.Plan, ph *planir.PhaseProgram, rows int) (transfers, error) {
	sets := make([]*capability.Set, len(plan.Procs))
	for i := range plan.Procs {
		sets[i] = &plan.Procs[i].Set
	}
	spaces := map[string]int{}
	for i, copies := range capability.Copying(sets) {
		if copies {
			spaces[plan.Procs[i].Name] = len(spaces) + 1
		}
	}
	if len(spaces) == 0 {
		return nil, nil
	}
	types := map[string]op.Type{}
	for _, buffer := range plan.Program.Buffers {
		types[buffer.Name] = buffer.Type
	}
	out := transfers{}
	for place, call := range moves.Of(plan, ph, func(proc string) int { return spaces[proc] }) {
		lane := &ph.Sections[place.Section].Lanes[place.Lane]
		step, proc := &lane.Steps[place.Step], plan.Proc(lane.Proc)
		price := func(views []planir.View, travels [][]planir.View, from, to string) (sum float64, err error) {
			for i, view := range views {
				end := view.R1
				if proc.DynamicRows && !step.Full {
					end = min(end, view.R0+rows-step.R0)
				}
				for _, part := range travels[i] {
					used := min(part.R1, end) - part.R0
					if used <= 0 {
						continue
					}
					bytes := int64(used) * int64(part.C1-part.C0) * int64(types[view.Buffer].Bytes())
					estimate, err := s.prices.Copy(from, to, bytes)
					if err != nil {
						return 0, err
					}
					sum += float64(estimate.NS)
				}
			}
			return sum, nil
		}
		var took copyNS
		var err error
		if took.fetch, err = price(step.In, call.Fetch, s.in.SoC.Control, lane.Proc); err != nil {
			return nil, err
		}
		if took.hand, err = price(step.Out, call.Hand, lane.Proc, s.in.SoC.Control); err != nil {
			return nil, err
		}
		out[place] = took
	}
	return out, nil
}

// graphWork returns the work of a graph on a processor: that of its operators, less the launches that one graph saves.
// It is empty if no row of the call is left for the graph.
func (s *request) graphWork(on *planir.Proc, graph *op.Graph, called call) (stepWork, error) {
	var out stepWork
	if called.rows == 0 {
		return out, nil
	}
	proc := on.Name
	launch, err := s.prices.Launch(proc)
	if err != nil && len(graph.Nodes) > 1 {
		return out, err
	}
	for i, n := range graph.Nodes {
		task := price.Task{Proc: proc, Op: n.Op}
		if on.DynamicRows {
			task.Op.M = min(task.Op.M, called.rows)
		}
		if task.Op.Kind.Has("context") {
			task.Op.Context = called.context
		}
		est, err := s.prices.Together([]price.Task{task})
		if err != nil {
			return out, err
		}
		phase, err := s.prices.Phase(task)
		if err != nil {
			return out, err
		}
		estimate := est[0]
		// A measured operator includes a launch, and a graph is launched once.
		if i > 0 {
			saved := min(launch.NS, estimate.NS)
			phase = price.Shorten(phase, float64(saved))
			estimate.NS, estimate.Low, estimate.High = estimate.NS-saved, max(0, estimate.Low-saved), max(0,
				estimate.High-saved)
		}
		out.phases = append(out.phases, phase)
		out.NS, out.Low, out.High = out.NS+estimate.NS, out.Low+estimate.Low, out.High+estimate.High
	}
	return out, nil
}
