package solver

import (
	"context"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// planner makes plans of programs under chosen schemes, and predicts them.
type planner struct {
	schemeChoice
	chosen *planir.Solve // report of the choice of schemes, nil when there was no choice
	phase  string        // what a search for schemes is for, "" for the plan without a bound of memory
	nodes  int64         // limit of an engine's nodes in that search, 0: the engine's own

	// below is the objective that joint problems have to beat. A search that proves it cannot may end without a
	// solution; 0: none may.
	below float64
}

// programKey identifies a program of a session: its rows and its assignment (assignment.key).
type programKey struct {
	rows    int
	schemes string
}

// program is the problem of one number of rows under one assignment. Sections that repeat for other layers with the
// same decisions are posed once.
type program struct {
	name      string
	sections  []lower.Section
	instances []*instance
	choices   [][]int          // by itself, once solved: of the posed chains
	alone     map[string]int64 // on one processor, predicted: see timeSingles
	report    planir.Solve
}

// program returns the problem of a number of rows under an assignment, posed at most once while the session keeps it.
func (s *planner) program(rows int, schemes assignment) (*program, error) {
	key := programKey{rows, schemes.key()}
	if program := s.programs[key]; program != nil {
		return program, nil
	}

	posed := &program{name: s.programName(rows)}
	var err error
	if posed.sections, err = s.expand(rows, schemes); err != nil {
		return nil, err
	}
	for i := range posed.sections {
		if isRepeated(posed.sections, i) {
			continue
		}
		posedSection, err := s.poseSection(&posed.sections[i], rows)
		if err != nil {
			return nil, err
		}
		posed.instances = append(posed.instances, posedSection)
	}
	return posed, s.keepProgram(key, posed)
}

// isRepeated reports whether a section of that name came before section i: it has the same decisions, for other layers.
func isRepeated(sections []lower.Section, i int) bool {
	return slices.ContainsFunc(sections[:i], func(sec lower.Section) bool { return sec.Name == sections[i].Name })
}

// solved is the decisions of every program, in the order of demand.rows.
type solved struct {
	decisions [][]planir.Decision
	reports   []planir.Solve
}

// eachAlone solves every program by itself and lowers the plan.
func (s *planner) eachAlone(ctx context.Context) (*planir.Plan, error) {
	var made solved
	for _, rows := range s.want.Rows() {
		pr, err := s.program(rows, s.assigned(rows))
		if err != nil {
			return nil, err
		}
		report, err := pr.solve(ctx, &s.request)
		if err != nil {
			return nil, err
		}
		made.decisions = append(made.decisions, pr.decisions(pr.choices))
		made.reports = append(made.reports, report)
	}
	return s.buildPlan(made)
}

// buildPlan makes the plan of decisions and lowers it. The plan has the digests of everything it was made from: model,
// SoC and inputs, so that a checker can tell whether they have changed.
func (s *planner) buildPlan(made solved) (*planir.Plan, error) {
	plan := &planir.Plan{
		Schema: planir.Schema, MaxContext: s.want.Context, KV: s.want.Cache, Batches: s.want.Batches,
		Model: planir.ModelRef{Name: s.in.Model.Name, EOS: s.in.Model.EOS, BOS: s.in.Model.BOS},
		SoC: planir.SoCRef{
			Name: s.in.SoC.Name, Fingerprint: s.in.SoC.Fingerprint, Simulated: s.in.SoC.Simulated(),
			Imported: s.in.Costs.Imported, Control: s.in.SoC.Control,
			Target: s.in.Targeted(),
		},
		Attention: s.attentionOf(),
	}

	var err error
	if plan.Model.Digest, err = s.in.Model.Digest(); err != nil {
		return nil, err
	}
	// The whole SoC, also where the plan is for a part of it: that is what the user has a file of.
	if plan.SoC.Digest, err = s.in.WholeSoC().Digest(); err != nil {
		return nil, err
	}
	if plan.Inputs, err = s.inputs(); err != nil {
		return nil, err
	}
	if s.in.Calibration != nil {
		plan.Folds = s.in.Calibration.Groups()
	}
	plan.Solver = made.reports
	if s.chosen != nil {
		plan.Solver = append(plan.Solver, *s.chosen)
	}

	// Last, as lowering reads what the plan says of model and processors.
	if err := s.lowerDecisions(plan, made.decisions); err != nil {
		return nil, err
	}
	return plan, nil
}

// inputs lists the inputs beside model and SoC, with their digests. Those that a solve can do without are in it where
// they were given.
func (s *request) inputs() ([]planir.Input, error) {
	type input struct {
		kind   string
		digest func() (string, error)
	}
	given := []input{{"costs", s.in.Costs.Digest}, {"workload", s.in.Workload.Digest}}
	if s.in.Calibration != nil {
		given = append(given, input{planir.CalibrationInput, s.in.Calibration.Digest})
	}
	if s.facts != nil {
		given = append(given, input{FactsInput, s.in.Facts.FactsDigest})
	}

	var list []planir.Input
	for _, one := range given {
		digest, err := one.digest()
		if err != nil {
			return nil, err
		}
		list = append(list, planir.Input{Kind: one.kind, Digest: digest})
	}
	return list, nil
}

// assigned returns the assignment of the phase that a number of rows belongs to.
func (s *schemeChoice) assigned(rows int) assignment {
	if s.decodes(rows) {
		return s.decode
	}
	return s.prefill
}

// predict adds the predicted times. The problem leaves out some hand-overs, so a program may turn out slower than on
// its best single processor. It is then given to that processor, unless that breaks a bound or the plan does not
// minimise time.
//
// Programs are lowered together, so one program is given away at a time, and everything is predicted again. If a bound
// breaks, the last change is undone and no more are made.
func (s *session) predict(plan *planir.Plan) error {
	kept := s.keepPrograms || s.measure() != problem.Time || len(s.in.Ratio) > 0
	if err := s.timeSingles(plan); err != nil {
		return err
	}

	for {
		plan.Predictions = nil
		before := *plan
		before.Decisions, before.Solver = slices.Clone(plan.Decisions), slices.Clone(plan.Solver)

		changed, err := s.predictPrograms(plan, !kept)
		if err != nil || !changed {
			return err
		}

		if err := s.lower(plan); err != nil {
			return err
		}

		taken, err := s.amountsTaken(plan)
		if err != nil {
			return err
		}
		if len(s.brokenBounds(plan, taken)) > 0 {
			*plan, kept = before, true
		}
	}
}

// predictPrograms adds the prediction of every program. With give, the first program that is slower than on a single
// processor is given to the fastest one; changed reports whether one was.
func (s *session) predictPrograms(plan *planir.Plan, give bool) (changed bool, err error) {
	for i := range plan.Program.Programs {
		program := &plan.Program.Programs[i]

		predicted, err := s.prediction(plan, program)
		if err != nil {
			return false, err
		}
		if proc := fasterSingle(&predicted); proc != "" && give && !changed {
			if changed, err = s.placeOn(plan, program.Rows, proc); err != nil {
				return false, err
			}
		}
		plan.Predictions = append(plan.Predictions, predicted)
	}
	return changed, nil
}

// fasterSingle returns the processor that alone executes a program fastest, if that is faster than the plan, else "".
func fasterSingle(predicted *planir.Prediction) (proc string) {
	least := predicted.PlanNS
	for _, single := range predicted.Singles {
		if single.NS < least {
			least, proc = single.NS, single.Proc
		}
	}
	return proc
}

// placeOn decides all sections that only this program has for one processor. It returns false if they are decided so
// already. The program's report then says that its solution was replaced.
func (s *planner) placeOn(plan *planir.Plan, rows int, proc string) (bool, error) {
	pr, err := s.program(rows, s.assigned(rows))
	if err != nil {
		return false, err
	}
	changed := false
	var total int64
	for _, posed := range pr.instances {
		choices, ns, ok := posed.onProcessor(proc)
		if !ok {
			panic("BUG: processor " + proc + " was said to execute everything")
		}
		total += ns

		for _, decision := range posed.decisions(choices) {
			old := plan.DecisionFor(decision.Node, decision.Rows)
			switch {
			case old != nil:
				changed = changed || !price.SameShares(old, &decision)
				*old = decision
			case !sameHead(plan, &decision): // else the head is decided as in decode
				plan.Decisions = append(plan.Decisions, decision)
				changed = true
			}
		}
	}

	if !changed {
		return false, nil
	}

	for i := range plan.Solver {
		if report := &plan.Solver[i]; report.Problem == "partition "+pr.name {
			report.ObjectiveNS, report.Status = total, StatusReplaced
		}
	}
	return true, nil
}
