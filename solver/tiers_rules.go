package solver

import (
	"context"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// TierRule is a way to choose capacity tiers other than for the least time, to compare with. Its tiers are kept
// whatever they gain, and their groups run on the processor of static shapes.
type TierRule struct {
	Slots     string // a name of tierRules; "": solve's own choice, where it pays
	Ungrouped bool   // every slot is a graph of its own
}

// PaperLadder are the capacities of NPUMoE, in rows.
var PaperLadder = []int{16, 32, 64, 128, 256}

// tierRule is a way to choose slots.
type tierRule struct {
	name string
	// restrict changes what the problem may choose from before it is priced; nil: nothing.
	restrict func(want *workload.Experts, tile int)
	// choose finds the slots and the expert in each.
	choose func(ctx context.Context, engine problem.Engine, tiers *problem.Tiers) (problem.TierSolution, error)
}

var tierRules = []tierRule{
	// those of the least time
	{name: "optimal", choose: solvedTiers},
	// the one capacity with which experts take the least time
	{name: "one", restrict: func(want *workload.Experts, _ int) { want.Tiers = 1 }, choose: solvedTiers},
	// every expert in the smallest capacity of the ladder at or above its expected load
	{name: "paper", restrict: ladder, choose: ladderTiers},
	// the optimal ones, and slots for all other experts too
	{name: "all", choose: slotsForAll},
}

// ungrouped is the name that makes every slot a graph of its own.
const ungrouped = "ungrouped"

// ParseTierRule reads the names of a rule: one of those for slots, and "ungrouped". No names are solve's own choice.
func ParseTierRule(names []string) (rule TierRule, err error) {
	var known []string
	for i := range tierRules {
		known = append(known, tierRules[i].name)
	}

	for _, name := range names {
		switch {
		case name == ungrouped:
			rule.Ungrouped = true
		case slices.Contains(known, name) && rule.Slots == "":
			rule.Slots = name
		default:
			return TierRule{}, diag.New(diag.ClassUsage,
				"capacity tiers %q: want one of %s, and %s where every slot is to be a graph of its own",
				strings.Join(names, ","), strings.Join(known, ", "), ungrouped)
		}
	}

	if rule.Ungrouped && rule.Slots == "" {
		rule.Slots = tierRules[0].name
	}
	return rule, nil
}

// find returns the row of the rule, nil for solve's own choice.
func (r TierRule) find() *tierRule {
	at := slices.IndexFunc(tierRules, func(row tierRule) bool { return row.name == r.Slots })
	if at < 0 {
		return nil
	}
	return &tierRules[at]
}

// Choose poses the problem of a program of that many rows and chooses its tiers by the rule. Except for solve's own
// choice their bound is 0, since other choices may take less.
func (r TierRule) Choose(ctx context.Context, in Input,
	pose func(in Input) (*TierInstance, error)) (*TierInstance, problem.TierSolution, error) {
	rule := r.find()
	if rule == nil {
		instance, err := pose(in)
		if err != nil {
			return nil, problem.TierSolution{}, err
		}
		solution, err := in.Engine.Tiers(ctx, instance.Problem, problem.Limits{})
		return instance, solution, err
	}
	if rule.restrict != nil {
		npu, err := staticProcessor(in.SoC)
		if err != nil {
			return nil, problem.TierSolution{}, err
		}
		in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) {
			rule.restrict(&w.Experts, max(1, npu.Tile.M))
		})
	}

	instance, err := pose(in)
	if err != nil {
		return nil, problem.TierSolution{}, err
	}

	if r.Ungrouped {
		for tier, list := range instance.Problem.GroupNS {
			instance.Problem.GroupNS[tier] = list[:min(1, len(list))]
		}
	}

	solution, err := rule.choose(ctx, in.Engine, instance.Problem)
	if err != nil {
		return nil, problem.TierSolution{}, err
	}
	if broken := instance.Problem.Broken(solution.Slots, solution.Choices); broken != "" {
		return nil, problem.TierSolution{}, diag.New(diag.ClassInfeasible, "capacity tiers by rule %q: they exceed %s",
			r.Slots, broken)
	}
	solution.Bound, solution.Status = 0, problem.Feasible
	return instance, solution, nil
}

// solvedTiers returns the engine's solution.
func solvedTiers(ctx context.Context, engine problem.Engine, tiers *problem.Tiers) (problem.TierSolution, error) {
	return engine.Tiers(ctx, tiers, problem.Limits{})
}

// ladder restricts the capacities to those of the paper that are multiples of the processor's tile.
func ladder(want *workload.Experts, tile int) {
	want.Capacities = nil
	for _, rows := range PaperLadder {
		if rows%tile == 0 {
			want.Capacities = append(want.Capacities, rows)
		}
	}
	want.Tiers = max(1, len(want.Capacities))
}

// ladderTiers returns NPUMoE's own tiers (sec. 4.1): every expert has a slot, and the busiest experts have the largest
// slots.
func ladderTiers(_ context.Context, _ problem.Engine, tiers *problem.Tiers) (problem.TierSolution, error) {
	return busiestFirst(tiers, tiers.LadderSlots(tiers.Capacities)), nil
}

// slotsForAll extends the engine's solution: all experts without a slot get one, of one capacity, the one with which
// the experts take the least time.
func slotsForAll(ctx context.Context, engine problem.Engine, tiers *problem.Tiers) (problem.TierSolution, error) {
	if most := tiers.MostSlots(); most < tiers.Experts() {
		return problem.TierSolution{}, diag.New(diag.ClassInfeasible,
			"capacity tiers: there is room for %d slots in a layer, and it has %d experts", most, tiers.Experts())
	}
	solved, err := solvedTiers(ctx, engine, tiers)
	if err != nil {
		return solved, err
	}
	rest := tiers.Experts()
	for _, count := range solved.Slots {
		rest -= count
	}
	if rest == 0 {
		return solved, nil
	}

	best := problem.TierSolution{Objective: math.MaxInt64}
	for tier := range solved.Slots {
		slots := slices.Clone(solved.Slots)
		slots[tier] += rest
		other := busiestFirst(tiers, slots)
		if other.Objective < best.Objective && tiers.Broken(slots, other.Choices) == "" {
			best = other
		}
	}
	if best.Slots == nil {
		return best, diag.New(diag.ClassInfeasible,
			"capacity tiers: no slots for all %d experts keep the limits of graphs and tiers", tiers.Experts())
	}
	return best, nil
}

// busiestFirst returns slots with the busiest experts of every layer in the largest.
func busiestFirst(tiers *problem.Tiers, slots []int) problem.TierSolution {
	choices := tiers.InOrder(slots)
	return problem.TierSolution{Slots: slots, Choices: choices, Objective: tiers.Time(slots, choices)}
}
