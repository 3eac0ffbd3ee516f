package solver

import (
	"math"
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
	sections := make([]timeline.Section, len(ph.Sections))
	for i := range ph.Sections {
		sec := &ph.Sections[i]
		sections[i] = timeline.Section{Iterations: sec.Iterations(), Control: control}
		setters := settersOf(sec)
		threads := map[string]int{}
		number := func(thread string) int {
			if _, ok := threads[thread]; !ok {
				threads[thread] = len(threads)
			}
			return threads[thread]
		}

		for j := range sec.Lanes {
			from := &sec.Lanes[j]
			lane := timeline.Lane{Proc: from.Proc, Thread: number(thread(from.Proc)),
				Steps: make([]timeline.Step, len(from.Steps))}
			if lane.SubmitNS = submit(from.Proc); lane.SubmitNS > 0 {
				lane.Feeder = number(thread(control))
			}
			for k := range from.Steps {
				for _, wait := range from.Steps[k].Wait {
					after := setters[wait.Flag]
					after.Back = wait.Back
					lane.Steps[k].After = append(lane.Steps[k].After, after)
				}
			}
			sections[i].Lanes = append(sections[i].Lanes, lane)
		}
	}
	return sections
}

// settersOf returns the step that sets each flag of a section.
func settersOf(sec *planir.Section) map[int]timeline.After {
	setters := map[int]timeline.After{}
	for i := range sec.Lanes {
		for j := range sec.Lanes[i].Steps {
			if flag := sec.Lanes[i].Steps[j].Set; flag != nil {
				setters[*flag] = timeline.After{Lane: i, Step: j}
			}
		}
	}
	return setters
}

// sectionWork is the work of a section's steps, under one assumption about their times.
type sectionWork struct {
	section    *planir.Section
	number     int                  // of the section
	phases     [][][]timeline.Phase // by lane and step
	copied     transfers
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

// Ran is called by the walk for every step; the prediction of a program needs none of it.
func (e *sectionWork) Ran(_, _, _ int, _, _, _ int64) {}

// assumeTimes returns the work of a section with those times of its steps that pick selects.
func assumeTimes(sec *planir.Section, of map[stepKey]stepWork, pick func(price.Estimate) int64) *sectionWork {
	out := &sectionWork{section: sec, phases: make([][][]timeline.Phase, len(sec.Lanes))}
	for i := range sec.Lanes {
		lane := &sec.Lanes[i]
		out.phases[i] = make([][]timeline.Phase, len(lane.Steps))
		for j := range lane.Steps {
			work := of[keyOf(lane, &lane.Steps[j])]
			out.phases[i][j] = work.phases
			if ns := pick(work.Estimate); ns != work.NS && work.NS > 0 {
				out.phases[i][j] = stretched(work.phases, float64(ns)/float64(work.NS))
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
		// One of two processors that are never combined may still start the other: that price is not known.
		if s.Thread(from) == s.Thread(to) || s.Apart[[2]string{from, to}] {
			return 0
		}
		handover, failed := s.prices.Handover(from, to)
		if failed != nil {
			err = failed
		}
		return float64(pick(handover))
	}}

	for i, sec := range timelineSections(ph, s.in.SoC.Control, s.Thread, submit) {
		work := assumeTimes(&ph.Sections[i], done.of, pick)
		work.number, work.copied = i, done.copied
		ns, ok := timeline.Walk(&on, &sec, work)
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
	from              int // its first row, which tells the chunk
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

	works := map[stepKey]stepWork{}
	for i := range ph.Sections {
		for _, lane := range ph.Sections[i].Lanes {
			for j := range lane.Steps {
				step := &lane.Steps[j]
				key := keyOf(&lane, step)
				if _, ok := works[key]; ok {
					continue
				}

				left := call{max(0, rows-step.R0), context(step.R0)}
				if step.Full { // its rows are no tokens: every call executes all of them
					left.rows = graphs[step.Run].Graph.Rows()
				}
				work, err := s.graphWork(plan.Proc(lane.Proc), &graphs[step.Run].Graph, left)
				if err != nil {
					return programWork{}, diag.New(diag.ClassOr(err, diag.ClassInput), "predict step %q of %s: %w",
						step.Node, ph.Name, err)
				}
				works[key] = work
			}
		}
	}

	copied, err := s.copyTimes(plan, ph, rows)
	return programWork{works, copied, s.submissions(plan)}, err
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
	spaces := memorySpaces(plan)
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
		step := &lane.Steps[place.Step]
		left := math.MaxInt // rows of the call, from the step's first one on
		if plan.Proc(lane.Proc).DynamicRows && !step.Full {
			left = rows - step.R0
		}

		var took copyNS
		var err error
		fetched := movedBytes(step.In, call.Fetch, left, types)
		if took.fetch, err = s.timeOfCopies(s.in.SoC.Control, lane.Proc, fetched); err != nil {
			return nil, err
		}
		handed := movedBytes(step.Out, call.Hand, left, types)
		if took.hand, err = s.timeOfCopies(lane.Proc, s.in.SoC.Control, handed); err != nil {
			return nil, err
		}
		out[place] = took
	}
	return out, nil
}

// memorySpaces numbers the processors of a plan that have memory of their own, from 1.
func memorySpaces(plan *planir.Plan) map[string]int {
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
	return spaces
}

// movedBytes lists the bytes of each copy of a step's operands: the parts of views that travel, as far as a call of so
// many rows has them.
func movedBytes(views []planir.View, travels [][]planir.View, rows int, types map[string]op.Type) (list []int64) {
	for i, view := range views {
		end := view.R1
		if rows < end-view.R0 {
			end = view.R0 + rows
		}
		for _, part := range travels[i] {
			if used := min(part.R1, end) - part.R0; used > 0 {
				list = append(list, int64(used)*int64(part.C1-part.C0)*int64(types[view.Buffer].Bytes()))
			}
		}
	}
	return list
}

// timeOfCopies returns the time of copies of so many bytes each, one after the other, in ns.
func (s *request) timeOfCopies(from, to string, copies []int64) (sum float64, err error) {
	for _, bytes := range copies {
		estimate, err := s.prices.Copy(from, to, bytes)
		if err != nil {
			return 0, err
		}
		sum += float64(estimate.NS)
	}
	return sum, nil
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
		// A measured operator includes a launch, and a graph is launched once.
		estimate := est[0]
		if i > 0 {
			saved := min(launch.NS, estimate.NS)
			phase = price.Shorten(phase, float64(saved))
			estimate.NS -= saved
			estimate.Low, estimate.High = max(0, estimate.Low-saved), max(0, estimate.High-saved)
		}

		if share := s.gatedShare(on, graph, i, called); share < 1 {
			phase = phase.Times(share)
			estimate.NS = int64(float64(estimate.NS) * share)
			estimate.Low, estimate.High = int64(float64(estimate.Low)*share), int64(float64(estimate.High)*share)
		}

		out.phases = append(out.phases, phase)
		out.NS += estimate.NS
		out.Low += estimate.Low
		out.High += estimate.High
	}
	return out, nil
}

// gatedShare returns how much of its time node i of a graph takes if it is a product that ends with a gated linear
// unit, or that unit; else 1.
func (s *request) gatedShare(on *planir.Proc, graph *op.Graph, i int, called call) float64 {
	if !on.FusesGLU {
		return 1
	}
	for _, product := range []int{i - 1, i} {
		if product >= 0 && graph.EndsWithGLU(product) {
			operator := graph.Nodes[product].Op
			operator.M = min(operator.M, called.rows)
			return s.prices.GatedShare(on.Name, operator, graph.Nodes[product+1].Op)
		}
	}
	return 1
}
