package solver

import (
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/solver/price"
)

// modelError is the relative error of the timeline itself: executions on a virtual clock, where operators take exactly
// the measured time, are within it.
const modelError = 0.01

// prediction returns predictTimes with the modelled energy and the times on single processors.
func (s *planner) prediction(plan *planir.Plan, ph *planir.PhaseProgram) (planir.Prediction, error) {
	pred, err := s.predictTimes(plan, ph)
	if err != nil {
		return pred, err
	}

	nj, ok, err := s.energy(plan, ph)
	if err != nil {
		return pred, err
	}
	if ok {
		pred.EnergyUJ = microjoules(nj)
	}
	pred.Singles, err = s.singleTimes(ph.Rows)
	return pred, err
}

// predictTimes walks a lowered program three times: with the expected, the low and the high time of every step and
// hand-over.
func (s *planner) predictTimes(plan *planir.Plan, ph *planir.PhaseProgram) (planir.Prediction, error) {
	pred := planir.Prediction{Program: ph.Name}
	of, err := s.workOf(plan, ph)
	if err != nil {
		return pred, err
	}

	var sections []int64
	expected := func(e price.Estimate) int64 { return e.NS }
	low := func(e price.Estimate) int64 { return e.Low }
	high := func(e price.Estimate) int64 { return e.High }
	if pred.PlanNS, sections, err = s.predictSections(ph, of, expected); err != nil {
		return pred, err
	}
	if pred.LowNS, _, err = s.predictSections(ph, of, low); err != nil {
		return pred, err
	}
	if pred.HighNS, _, err = s.predictSections(ph, of, high); err != nil {
		return pred, err
	}
	// Where samples had no noise their intervals are empty. The model of what happens between operators still has an
	// error.
	pred.LowNS = min(pred.LowNS, price.Whole(float64(pred.PlanNS)*(1-modelError)))
	pred.HighNS = max(pred.HighNS, price.Whole(math.Ceil(float64(pred.PlanNS)*(1+modelError))))

	for i, ns := range sections {
		layers := int64(max(1, ph.Sections[i].Layers))
		pred.Sections = append(pred.Sections, planir.SectionTime{Section: ph.Sections[i].Name, NS: ns / layers})
	}
	return pred, nil
}

// microjoules rounds an energy to the unit of predictions.
func microjoules(nj int64) int64 { return (nj + 500) / 1000 }

// energy returns the modelled energy of one execution of a program in nanojoules, as its decisions were priced. ok is
// false if the SoC does not state the power of a processor that takes part.
func (s *planner) energy(plan *planir.Plan, ph *planir.PhaseProgram) (nj int64, ok bool, err error) {
	pr, err := s.program(ph.Rows, s.assigned(ph.Rows))
	if err != nil {
		return 0, false, err
	}

	total := 0.0
	for _, posed := range pr.instances {
		for i := range posed.candidates {
			node := posed.section.Nodes[i].Name
			nodeNJ, ok := s.energyOfNode(plan, posed, i, DecisionAt(plan, node, ph.Rows))
			if !ok {
				return 0, false, nil
			}
			repeat := float64(posed.section.Repeat) * s.keptShare(plan, node)
			total += float64(repeat * nodeNJ)
		}
	}
	return price.Whole(math.Round(total)), true, nil
}

// energyOfNode returns the modelled energy of one execution of a section's i-th node, in nanojoules: that of its
// candidate. In a pipeline of heads it is the power of each processor times the time of its share.
func (s *planner) energyOfNode(plan *planir.Plan, posed *instance, i int, decision *planir.Decision) (float64, bool) {
	busy := 0.0
	for _, share := range decision.Shares {
		if s.Power[share.Proc] == 0 {
			return 0, false
		}
		busy += float64(s.Power[share.Proc] * float64(share.PredictNS))
	}
	if pipeline, _ := lower.PipelineOf(plan, decision.Node, decision.Rows); pipeline != nil {
		return busy, true
	}
	choice := posed.candidateLike(i, decision)
	if choice < 0 {
		panic("BUG: decision on " + decision.Node + " is none of its candidates")
	}
	return float64(posed.candidates[i][choice].EnergyNJ), true
}

// singleTimes returns the times of a program on each processor that can execute all of it.
func (s *planner) singleTimes(rows int) (out []planir.SingleTime, err error) {
	pr, err := s.program(rows, s.assigned(rows))
	if err != nil {
		return nil, err
	}
	for i := range s.Procs {
		name := s.Procs[i].Name
		if ns, ok := pr.alone[name]; ok {
			out = append(out, planir.SingleTime{Proc: name, NS: ns})
		}
	}
	return out, nil
}

// timeSingles predicts programs on each processor that can execute all of one. It lowers a plan that leaves these
// programs to the processor, so that joined steps count as in the plan itself.
func (s *planner) timeSingles(plan *planir.Plan) error {
	for i := range s.Procs {
		name := s.Procs[i].Name
		other, whole, err := s.planOnOne(plan, name)
		if err != nil {
			return err
		}
		if len(whole) == 0 {
			continue
		}

		if err := s.lower(other); err != nil {
			return err
		}

		for j := range other.Program.Programs {
			ph := &other.Program.Programs[j]
			if pr := whole[ph.Rows]; pr != nil {
				if err := s.timeAlone(other, ph, pr, name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// timeAlone notes the predicted time of a program that a plan leaves to one processor.
func (s *planner) timeAlone(plan *planir.Plan, ph *planir.PhaseProgram, pr *program, proc string) error {
	work, err := s.workOf(plan, ph)
	if err != nil {
		return err
	}
	ns, _, err := s.predictSections(ph, work, func(e price.Estimate) int64 { return e.NS })
	if err != nil {
		return err
	}
	if pr.alone == nil {
		pr.alone = map[string]int64{}
	}
	pr.alone[proc] = ns
	return nil
}

// planOnOne returns a plan in which a processor has all programs that it can execute by itself, and those programs by
// rows. Both are nil where the time of each is known already.
func (s *planner) planOnOne(plan *planir.Plan, name string) (*planir.Plan, map[int]*program, error) {
	other, whole := *plan, map[int]*program{}
	other.Decisions = nil
	given := map[int]bool{} // rows of the programs that it executes
	isNew := false          // the time of at least one of them is not known
	for i := range plan.Program.Programs {
		rows := plan.Program.Programs[i].Rows
		pr, err := s.program(rows, s.assigned(rows))
		if err != nil {
			return nil, nil, err
		}
		list, ok := pr.decisionsOn(name)
		if !ok {
			continue
		}
		given[rows], whole[rows] = true, pr
		other.Decisions = append(other.Decisions, list...)
		_, known := pr.alone[name]
		isNew = isNew || !known
	}

	if !isNew {
		return nil, nil, nil
	}

	for _, decision := range plan.Decisions {
		if !given[decision.Rows] {
			other.Decisions = append(other.Decisions, decision)
		}
	}
	return &other, whole, nil
}

// decisionsOn returns the program's decisions if a processor executes all of it; false when it cannot.
func (pr *program) decisionsOn(name string) (out []planir.Decision, ok bool) {
	for _, posed := range pr.instances {
		choices, _, ok := posed.onProcessor(name)
		if !ok {
			return nil, false
		}
		for i, choice := range choices {
			out = append(out, posed.candidates[i][choice].Decision)
		}
	}
	return out, true
}

// DecisionAt returns the decision on a node for a program with that many rows; the head's may be that of one row.
func DecisionAt(plan *planir.Plan, node string, rows int) *planir.Decision {
	if decision := plan.DecisionFor(node, rows); decision != nil {
		return decision
	}
	return plan.DecisionFor(node, 1)
}

// expected returns the workload's objective: the weighted mean over programs of what of returns for a call.
func (s *request) expected(plan *planir.Plan, of func(planir.Prediction) int64) float64 {
	total := 0.0
	for _, pred := range plan.Predictions {
		for i := range plan.Program.Programs {
			ph := &plan.Program.Programs[i]
			if ph.Name != pred.Program {
				continue
			}
			if ph.Phase == "decode" {
				total += float64(s.want.Weights.Decode * s.want.DecodeNS(ph.Rows, float64(of(pred))))
			}
			if bucket := slices.Index(s.want.Buckets, ph.Rows); bucket >= 0 {
				total += float64(s.want.Weights.Prefill * float64(s.want.Share[bucket]*float64(of(pred))))
			}
		}
	}
	return total
}

// expectedNJ returns the expected modelled energy; 0 if it is not known for every program. A limit of energy bounds
// this number: the sum over the plan's predictions, in whole microjoules.
func (s *planner) expectedNJ(plan *planir.Plan) float64 {
	nj := map[string]int64{}
	for i := range plan.Program.Programs {
		ph := &plan.Program.Programs[i]
		energy, ok, err := s.energy(plan, ph)
		if err != nil || !ok {
			return 0
		}
		nj[ph.Name] = 1000 * microjoules(energy)
	}
	return s.expected(plan, func(pred planir.Prediction) int64 { return nj[pred.Program] })
}

// checkMemory warns when what the plan holds exceeds a memory of the SoC.
func (s *request) checkMemory(plan *planir.Plan) {
	need := plan.Memory.Total
	for _, memory := range s.in.SoC.Memory {
		isHosts := slices.Contains(memory.Processors, s.in.SoC.Control)
		if !isHosts || memory.Bytes <= 0 || need <= memory.Bytes {
			continue
		}
		warning := diag.New(diag.ClassInfeasible, "the plan holds %d bytes, and memory %q of SoC %q has %d",
			need, memory.Name, s.in.SoC.Name, memory.Bytes).
			WithHint("permit schemes with fewer bits in the workload, " +
				"such as schemes: {prefill: [a8t/q8c], decode: [a8t/q8c]}")
		warning.Severity = diag.Warning
		s.notes = append(s.notes, warning)
	}
}

// idleNS returns the time that the objective adds to a program of a plan for calls that do not fill it.
func (pr *program) idleNS(plan *planir.Plan) int64 {
	var total int64
	for _, in := range pr.instances {
		for i := range in.candidates {
			decision := DecisionAt(plan, in.section.Nodes[i].Name, in.section.Rows)
			at := in.candidateLike(i, decision)
			if at < 0 {
				continue
			}
			candidate := &in.candidates[i][at]
			total += (candidate.CostNS - candidate.PredictNS) * int64(in.section.Repeat)
		}
	}
	return total
}

// expectedNS returns the expected time: that of the programs' timelines, and what is added for calls that do not fill
// them.
func (s *planner) expectedNS(plan *planir.Plan) (float64, error) {
	idle := map[string]int64{}
	for i := range plan.Program.Programs {
		ph := &plan.Program.Programs[i]
		if !slices.Contains(s.want.Buckets, ph.Rows) {
			continue
		}
		pr, err := s.program(ph.Rows, s.assigned(ph.Rows))
		if err != nil {
			return 0, err
		}
		idle[ph.Name] = pr.idleNS(plan)
	}
	return s.expected(plan, func(pred planir.Prediction) int64 { return pred.PlanNS + idle[pred.Program] }), nil
}
