package problem

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
)

// Shadows is the choice of products that keep their shadow outliers (llm.npu sec. 3.3), a multiple-choice knapsack
// problem: every group takes one of its options, so that the cost of all is least and their use at most Max. A group is
// a layer, an option a set of its products that keep shadows. Under a limit of quality the cost is time and the use is
// what clipping the others loses; under a limit of time it is the other way round. Losses are measured and may be
// negative.
type Shadows struct {
	Name   string
	Groups []ShadowGroup
	Max    int64 // of the options' use together
}

// ShadowGroup is what one choice is made of.
type ShadowGroup struct {
	Name    string
	Options []ShadowOption
}

// ShadowOption is one way, in whole units of the objective and of the limit.
type ShadowOption struct{ Cost, Use int64 }

// ShadowSolution is an engine's answer.
type ShadowSolution struct {
	Options   []int // by group, index into its options
	Objective int64
	Bound     int64 // no solution is cheaper
	Status    Status
	Nodes     int64
}

// Bounds of an instance: sums of all options stay far within int64.
const (
	maxShadowGroups  = 1 << 13
	maxShadowOptions = 1 << 10
	maxShadowNumber  = 1 << 48
)

// Validate reports the first thing that makes the instance meaningless; of class ClassInternal.
func (s *Shadows) Validate() error { return internal("shadows", s.Name, s.validate()) }

func (s *Shadows) validate() error {
	if !within(len(s.Groups), 1, maxShadowGroups) {
		return fmt.Errorf("%d groups, want 1..%d", len(s.Groups), maxShadowGroups)
	}
	for i := range s.Groups {
		group := &s.Groups[i]
		if !within(len(group.Options), 1, maxShadowOptions) {
			return fmt.Errorf("group %q has %d options, want 1..%d", group.Name, len(group.Options), maxShadowOptions)
		}
		for j, option := range group.Options {
			if max(option.Cost, -option.Cost, option.Use, -option.Use) > maxShadowNumber {
				return fmt.Errorf("group %q: option %d has cost %d and use %d, want at most 2^48", group.Name, j,
					option.Cost, option.Use)
			}
		}
	}
	return nil
}

// Total returns the cost and the use of a choice.
func (s *Shadows) Total(options []int) (cost, use int64) {
	for i, option := range options {
		cost += s.Groups[i].Options[option].Cost
		use += s.Groups[i].Options[option].Use
	}
	return cost, use
}

// Verify recomputes a solution.
func (s *Shadows) Verify(solution ShadowSolution) error {
	return internal("verify shadows", s.Name, s.verify(solution))
}

func (s *Shadows) verify(solution ShadowSolution) error {
	if len(solution.Options) != len(s.Groups) {
		return fmt.Errorf("%d options for %d groups", len(solution.Options), len(s.Groups))
	}
	for i, option := range solution.Options {
		if option < 0 || option >= len(s.Groups[i].Options) {
			return fmt.Errorf("option %d of group %q, want 0..%d", option, s.Groups[i].Name, len(s.Groups[i].Options)-1)
		}
	}
	cost, use := s.Total(solution.Options)
	if cost != solution.Objective || use > s.Max {
		return fmt.Errorf("objective %d and use %d of at most %d, and the options have %d", solution.Objective, use,
			s.Max, cost)
	}
	return checkBound(solution.Status, solution.Objective, solution.Bound)
}

// Infeasible returns the error where no choice stays within the limit.
func (s *Shadows) Infeasible() error {
	return diag.New(diag.ClassInfeasible, "shadows %q: no choice stays within %d", s.Name, s.Max).
		WithHint("raise the limit")
}

// PaperPrune is llm.npu's rule (sec. 3.3): of products with these importances, the ratio of the largest outlier to what
// the scale holds, the given share is pruned, the least important first; of equally important ones the first. It
// returns the indices of those that are pruned, ascending.
func PaperPrune(importance []float64, share float64) []int {
	order := make([]int, len(importance))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(importance[a], importance[b]) })
	pruned := order[:min(len(order), int(share*float64(len(order))+0.5))]
	slices.Sort(pruned)
	return pruned
}
