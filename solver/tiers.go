package solver

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// Capacity tiers. An NPU of static shapes executes experts in graphs of fixed rows, so that how many rows an expert
// gets has to be guessed. A tier is such a capacity. Slots of one tier form groups, each a graph; rows beyond a slot go
// to the control processor, or are dropped. Experts without a slot stay there.
//
// The loads say how many rows each expert got in chunks of text. For every bucket PoseTiers prices all choices by
// them, an engine chooses slots and the expert in each, and Plan writes that down. The problem knows two processors and
// how long experts keep each. So its answer is tried: the whole plan is solved again with it, and it is kept for the
// buckets whose programs are predicted to take less of what is minimised.

// openingPerCall returns the share of the time to open its graphs that each call of a prompt's program of that many
// rows pays.
func (in *Input) openingPerCall(plan *planir.Plan, rows int) (ns int64) {
	opened := map[string]bool{}
	for i := range plan.Program.Programs {
		program := &plan.Program.Programs[i]
		if program.Name != lower.ProgramName(rows, false) {
			continue
		}
		for _, section := range program.Sections {
			for _, lane := range section.Lanes {
				for _, step := range lane.Steps {
					if !opened[step.Run] {
						opened[step.Run] = true
						ns += openingNS(in.SoC.Processor(lane.Proc), in.Workload.Experts.CallsPerOpen)
					}
				}
			}
		}
	}
	return ns
}

// withTiers solves a plan again with capacity tiers of experts, where its input has loads, and keeps those with which
// a program takes less of what is minimised.
func (s *session) withTiers(ctx context.Context, dynamic *Result) (*Result, error) {
	in := s.in
	if in.Loads == nil {
		if !reflect.DeepEqual(in.Workload.Experts, workload.Experts{}) {
			dynamic.Warnings = append(dynamic.Warnings, warning(
				"%s says how capacity tiers of experts are chosen, and without --loads none are", in.Workload.Title()))
		}
		return dynamic, nil
	}
	if err := in.Loads.Fits(in.Model); err != nil {
		return nil, err
	}

	best, err := s.solveWithRule(ctx, dynamic, in.TierRule, in.TierRule.find() != nil)
	if err != nil {
		return nil, err
	}
	if s.groupsMayStay() {
		other, err := s.solveWithRule(ctx, dynamic, TierRule{Slots: "optimal"}, false)
		if err != nil {
			return nil, err
		}
		if s.takesLess(other, best) {
			best = other
		}
	}
	return s.withLoads(best)
}

// onlyWithTiers looks for a plan where dynamic experts have none, which why says: with tiers prompts may keep a limit
// of time or energy. The tiers are those for the plan without these limits.
func (s *session) onlyWithTiers(ctx context.Context, why error) (*Result, error) {
	if limits := &s.in.Workload.Limits; limits.PrefillMS == 0 && limits.EnergyMJ == 0 {
		return nil, why
	}
	if err := s.in.Loads.Fits(s.in.Model); err != nil {
		return nil, err
	}

	in := s.in
	in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) {
		w.Limits.PrefillMS, w.Limits.EnergyMJ = 0, 0
	})
	free, err := newSession(in)
	if err != nil {
		return nil, err
	}
	dynamic, err := free.solveDynamic(ctx)
	if diag.ClassOf(err) == diag.ClassInfeasible {
		return nil, why
	}
	if err != nil {
		return nil, err
	}

	tiered, err := s.solveWithRule(ctx, dynamic, s.in.TierRule, true)
	if err != nil && diag.ClassOf(err) != diag.ClassInfeasible {
		return nil, err
	}
	if err != nil || len(tiered.Plan.Experts) == 0 {
		return nil, unproved(why)
	}
	return s.withLoads(tiered)
}

// withLoads notes the loads among the inputs of a plan.
func (s *session) withLoads(result *Result) (*Result, error) {
	digest, err := s.in.Loads.Digest()
	if err != nil {
		return nil, err
	}
	result.Plan.Inputs = append(result.Plan.Inputs, planir.Input{Kind: "loads", Digest: digest})
	return result, nil
}

// groupsMayStay reports whether solve's own tiers are also tried with groups on their processor alone, as the rule
// "optimal" has them. The problem of a program counts no meetings between its sections, so it may divide groups where
// that is slower. This happens where the region of the processor is limited (TestRulesInARegion).
func (s *session) groupsMayStay() bool {
	npu, err := staticProcessor(s.in.SoC)
	if err != nil || s.in.TierRule.find() != nil {
		return false
	}
	return npu.AddressBytes > 0 || s.in.Workload.Limits.AddressBytes[npu.Name] > 0
}

// takesLess reports whether one result with tiers takes less than another one of what is minimised, or as much of it in
// less time.
func (s *session) takesLess(one, other *Result) bool {
	first := 0
	if measure := s.measure(); measure != problem.Time {
		first = cmp.Compare(one.amountOf(measure), other.amountOf(measure))
	}
	return cmp.Or(first, cmp.Compare(one.openedNS(), other.openedNS())) < 0
}

// openedNS returns the expected time in ns, with what each call of a prompt's program pays for opening its graphs.
func (r *Result) openedNS() float64 {
	by, ns := r.session, r.ExpectedNS
	for i, rows := range by.want.Rows() {
		if !by.decodes(rows) {
			ns += float64(by.callWeight(i) * float64(by.in.openingPerCall(r.Plan, rows)))
		}
	}
	return ns
}

// solveWithRule solves a plan again with the tiers of a rule, and keeps those that pay (tiersPay), or all of
// them. A plan holds more than its slots, so the plan with tiers may break a limit; then the tiers are decided again
// for less room.
func (s *session) solveWithRule(ctx context.Context, dynamic *Result, rule TierRule, all bool) (*Result, error) {
	npu, err := staticProcessor(s.in.SoC)
	if err != nil {
		return nil, err
	}
	room := s.tierRoom(dynamic.Plan, npu)

	for try := 1; ; try++ {
		decided, err := s.decideTiers(ctx, dynamic.Plan, rule, room, npu)
		if err != nil {
			return nil, err
		}

		best, err := s.withDecided(ctx, dynamic, decided, rule, all)
		if diag.ClassOf(err) != diag.ClassInfeasible {
			return best, err
		}

		if try < roomTries && room.limited() {
			room = room.smaller()
			continue
		}
		if all {
			return nil, err
		}
		left := append(slices.Clone(decided.left), fmt.Sprintf("no plan has room for them: %v", err))
		return dynamic.withoutTiers(left, decided.reports), nil
	}
}

// withoutTiers returns the plan without tiers, with the reason why tiers were not kept.
func (r *Result) withoutTiers(left []string, reports []planir.Solve) *Result {
	out, plan := *r, *r.Plan
	out.Plan, out.TiersLeft = &plan, left
	plan.Solver = append(slices.Clip(plan.Solver), reports...)
	return &out
}

// withDecided solves a plan again with decided tiers. Buckets for which they do not pay are solved without them, unless
// all are to be kept. It fails with class ClassInfeasible if no plan has room for the tiers.
func (s *session) withDecided(ctx context.Context, dynamic *Result, decided *decidedTiers, rule TierRule,
	all bool) (*Result, error) {
	in := s.in
	in.TierRule = rule

	tiers, left := decided.tiers, decided.left
	for len(tiers) > 0 {
		in.tiers = tiers
		other, err := s.solveSame(ctx, in, dynamic.Plan)
		if err != nil {
			return nil, err
		}
		var kept []planir.ExpertTiers
		for _, bucket := range tiers {
			pay, compared := s.tiersPay(other.Plan, dynamic.Plan, bucket.Rows)
			if pay || all {
				kept = append(kept, bucket)
				continue
			}
			left = append(left, fmt.Sprintf("at %d rows %s would %s", bucket.Rows, bucket.Shape(), compared))
		}
		if len(kept) == len(tiers) {
			return other.withoutTiers(left, decided.reports), nil
		}
		tiers = kept
	}
	return dynamic.withoutTiers(left, decided.reports), nil
}

// tiersOf returns the capacity tiers of the program of that many rows, nil where experts are dynamic.
func (in *Input) tiersOf(rows int) *planir.ExpertTiers {
	plan := planir.Plan{Experts: in.tiers}
	return plan.TiersOf(rows)
}

// tiersPay reports whether a prompt's program of that many rows takes less of what is minimised in a plan with tiers
// than in the dynamic one, or as much of it in less time. Memory is what the whole plans hold. compared says what each
// takes.
func (s *session) tiersPay(tiered, dynamic *planir.Plan, rows int) (pay bool, compared string) {
	type amount struct {
		energyUJ, bytes, ns int64
	}
	of := func(plan *planir.Plan) amount {
		prompt := predictedPrompt(plan, rows)
		return amount{prompt.EnergyUJ, plan.Memory.Total, prompt.PlanNS + s.in.openingPerCall(plan, rows)}
	}
	with, without := of(tiered), of(dynamic)

	first := 0
	compared = fmt.Sprintf("take %.3f ms, and dynamic experts take %.3f ms", float64(with.ns)/1e6,
		float64(without.ns)/1e6)
	switch s.measure() {
	case problem.Energy:
		first = cmp.Compare(with.energyUJ, without.energyUJ)
		compared = fmt.Sprintf("take %.3f mJ, and dynamic experts take %.3f mJ", float64(with.energyUJ)/1e3,
			float64(without.energyUJ)/1e3)
	case problem.Memory:
		first = cmp.Compare(with.bytes, without.bytes)
		compared = fmt.Sprintf("have a process hold %s, and dynamic experts %s", unit.Bytes(with.bytes),
			unit.Bytes(without.bytes))
	}
	return cmp.Or(first, cmp.Compare(with.ns, without.ns)) < 0, compared
}

// predictedPrompt returns the prediction of a prompt's program of that many rows.
func predictedPrompt(plan *planir.Plan, rows int) (prompt planir.Prediction) {
	for i := range plan.Predictions {
		if plan.Predictions[i].Program == lower.ProgramName(rows, false) {
			return plan.Predictions[i]
		}
	}
	return prompt
}

// solveSame solves for the buckets and batches of a plan with another input.
func (s *session) solveSame(ctx context.Context, in Input, plan *planir.Plan) (*Result, error) {
	fresh, err := sessionFor(in, s.want)
	if err != nil {
		return nil, err
	}
	fresh.prices = s.prices
	buckets, batches := programSizes(plan)
	sized, err := fresh.withSizes(buckets, batches)
	if err != nil {
		return nil, err
	}
	defer sized.close()
	return sized.solve(ctx)
}

// programSizes returns the buckets and batches of a plan.
func programSizes(plan *planir.Plan) (buckets, batches []int) {
	for i := range plan.Program.Programs {
		switch rows := plan.Program.Programs[i].Rows; {
		case !plan.Decodes(rows):
			buckets = append(buckets, rows)
		case rows > 1:
			batches = append(batches, rows)
		}
	}
	return buckets, batches
}

// decidedTiers are the capacity tiers of buckets, with the engine's reports, and the reasons why other buckets have
// none.
type decidedTiers struct {
	tiers   []planir.ExpertTiers
	reports []planir.Solve
	left    []string
}

// decideTiers decides the capacity tiers of every bucket of a plan, with the schemes that the plan gives experts,
// within a room that the buckets share.
func (s *session) decideTiers(ctx context.Context, plan *planir.Plan, rule TierRule, all TierRoom,
	npu *socs.Processor) (out *decidedTiers, err error) {
	room := all
	buckets, _ := programSizes(plan)
	for range sharedRounds {
		out = &decidedTiers{}
		for _, rows := range buckets {
			if rows < 2 {
				continue
			}
			if err := s.decideBucket(ctx, plan, rule, room, rows, out); err != nil {
				return nil, err
			}
		}
		if len(out.tiers) < 2 {
			break
		}

		schemes := s.expertSchemes(plan, out.tiers[0].Rows)
		if !room.share(all, out.tiers, s.in.Model, schemes, npu) {
			break
		}
	}
	return out, nil
}

// decideBucket decides the capacity tiers of one bucket.
func (s *session) decideBucket(ctx context.Context, plan *planir.Plan, rule TierRule, room TierRoom, rows int,
	out *decidedTiers) error {
	instance, solution, err := rule.Choose(ctx, s.in, func(in Input) (*TierInstance, error) {
		return PoseTiers(in, rows, s.expertSchemes(plan, rows), room)
	})
	if err != nil {
		return err
	}

	posed, chunks := instance.Problem, int64(instance.Problem.Chunks())
	if rule.find() == nil { // a rule proves nothing
		out.reports = append(out.reports, planir.Solve{
			Problem: "tiers " + posed.Name, Status: string(solution.Status), Choices: len(posed.Capacities),
			ObjectiveNS: solution.Objective / chunks, BoundNS: solution.Bound / chunks,
		})
	}

	if tiers := instance.Plan(solution); tiers != nil {
		out.tiers = append(out.tiers, *tiers)
		return nil
	}

	out.left = append(out.left, fmt.Sprintf(
		"at %d rows no expert gains by a slot on %s: dynamic experts take %.3f ms on %s",
		rows, instance.NPU, float64(solution.Objective)/float64(chunks)/1e6, instance.CPU))
	return nil
}

// expertSchemes returns the schemes of the products of a plan's experts, in order.
func (s *session) expertSchemes(plan *planir.Plan, rows int) (schemes []op.Scheme) {
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for _, node := range sec.Nodes {
			if len(schemes) == 2 || !slices.Contains(models.ExpertNodes, node.Name) {
				continue
			}
			if decision := plan.DecisionFor(sec.Name+"."+node.Name, rows); decision != nil && decision.Scheme != "" {
				schemes = append(schemes, decision.Scheme)
			}
		}
	}
	return schemes
}
