// Package problem knows the optimisation problems that solve poses, as plain data: engines see
// nothing of models, processors or plans, and their answers can be recomputed from the data alone.
//
// Read Partition (problem.go) first: one program, whose sections are chains of operators with a choice each. Joint
// (joint.go) couples several programs by limits, Buckets, Tiers, Shadows and Scales are problems of their own. Each has
// a checker, and a linear program for HiGHS in relay_*.go.
package problem

import (
	"context"
	"fmt"

	"github.com/hetc/hetc/internal/diag"
)

// Limits of an instance: far above any real one, low enough that validation and sums stay safe.
const (
	maxChains  = 256
	maxItems   = 4096    // of one chain
	maxChoices = 1 << 18 // of all items together
	maxClasses = 1 << 12 // of one item and side
	MaxProcs   = 64
	MaxRepeat  = 1 << 16
	MaxNS      = 1 << 40 // 18 minutes: of one choice or hand-over
)

// Partition is the tensor-partition problem of one program (HeteroInfer sec. 4.4): chains, one after
// another, of items in execution order, one choice each. It minimises the sum over the chains of
//
//	Repeat * (sum of the choices' costs + sum of the inner edges) + Wraps * (edge from the last item to the first)
//
// An edge is the hand-over between two neighbours. It is priced over location classes (which
// processor holds which part of the activation), not over pairs of choices: many choices share a class.
type Partition struct {
	Name      string   // "prefill@256"
	Procs     []string // processors that choices refer to by index
	Conflicts [][2]int // processors that no solution uses together, in whatever chain: they share a core
	Chains    []Chain
}

// Chain is one section of a program.
type Chain struct {
	Name   string // "layers"
	Repeat int    // executions, at least 1
	Breaks int    // how often another chain comes between two of them, where all processors meet
	Items  []Item
}

// Wraps returns how often the first item follows the last one.
func (c *Chain) Wraps() int { return c.Repeat - 1 - c.Breaks }

// Item is one operator: the choices to execute it, and the cost of moving its input there.
type Item struct {
	Name    string
	Choices []Choice
	Before  []string // location classes its choices read from
	After   []string // location classes its choices leave their result in
	// EdgeNS[a][b] is the hand-over from class a of the After of the item before to class b of
	// Before. For the first item that is the last item of the repetition before; it is empty when
	// no repetition follows another.
	EdgeNS [][]int64
}

// Choice is one way to execute an item.
type Choice struct {
	Label    string // "weight-centric cols npu 0:3072, gpu 3072:5632"; unique in its item
	Procs    []int  // processors that take part, ascending
	CostNS   int64  // of one execution once its input is there
	EnergyNJ int64  // of one execution; modelled, 0 where nothing is known
	Assets   []int  // into Joint.Assets, ascending: what has to be open; nil outside a joint problem
	Before   int    // index into Item.Before
	After    int    // index into Item.After
}

// Status says how good a solution is known to be.
type Status string

const (
	Optimal  Status = "optimal"  // proved: the bound equals the objective
	Feasible Status = "feasible" // the bound is lower, or it is not known to be the first of the optimal ones
	// LimitReached: the search ended at its limit without a solution, and without a proof that there is none.
	LimitReached Status = "limit"
)

// Solution is an engine's answer.
type Solution struct {
	Choices     [][]int // per chain and item, index into the item's choices
	ObjectiveNS int64
	BoundNS     int64 // no solution is cheaper
	Status      Status
}

// Engine solves instances. Errors are of class ClassInfeasible when no combination of choices keeps all
// limits (for joint problems with an InfeasibleError in the chain), ClassInterrupted when ctx ended. Of
// equally good solutions an engine that reports Optimal returns the one whose choices, read as a vector (parts, chains,
// items in order), are lexicographically smallest, so that every engine returns the same.
type Engine interface {
	Name() string
	Partition(ctx context.Context, p *Partition) (Solution, error)
	Joint(ctx context.Context, j *Joint, limits Limits) (JointSolution, error)
	// Of equally good choices of buckets the first by Buckets.Precedes is returned.
	Buckets(ctx context.Context, b *Buckets, limits Limits) (BucketSolution, error)
	Tiers(ctx context.Context, p *Tiers, limits Limits) (TierSolution, error)
	Shadows(ctx context.Context, s *Shadows, limits Limits) (ShadowSolution, error)
}

// Size returns the number of choices of all items.
func (p *Partition) Size() int {
	size := 0
	for k := range p.Chains {
		for i := range p.Chains[k].Items {
			size += len(p.Chains[k].Items[i].Choices)
		}
	}
	return size
}

// Validate returns the first reason why the instance has no meaning: numbers out of range, indices that point nowhere,
// duplicates, empty items. The error is of class ClassInternal: users do not write instances.
func (p *Partition) Validate() error { return internal("partition", p.Name, p.validate()) }

// internal turns an error about an instance or a solution into one of class ClassInternal.
func internal(what, name string, err error) error {
	if err == nil {
		return nil
	}
	return diag.New(diag.ClassInternal, "%s %q: %v", what, name, err)
}

// checkBound reports a bound that contradicts the objective or the status.
func checkBound(status Status, objective, bound int64) error {
	if bound > objective || status == Optimal && bound != objective {
		return fmt.Errorf("status %q with objective %d and bound %d", status, objective, bound)
	}
	return nil
}

// validate checks processors and conflicts, then the chains.
func (p *Partition) validate() error {
	if !within(len(p.Procs), 1, MaxProcs) {
		return fmt.Errorf("%d processors, want 1..%d", len(p.Procs), MaxProcs)
	}
	names := names{}
	for _, name := range p.Procs {
		if !names.add(name) {
			return fmt.Errorf("processor name %q is empty or appears twice", name)
		}
	}
	last := len(p.Procs) - 1
	for _, pair := range p.Conflicts {
		if !within(pair[0], 0, last) || !within(pair[1], 0, last) || pair[0] == pair[1] {
			return fmt.Errorf("conflict between processors %d and %d of %d", pair[0], pair[1], len(p.Procs))
		}
	}
	if size := p.Size(); size > maxChoices {
		return fmt.Errorf("%d choices, want at most %d", size, maxChoices)
	}
	if !within(len(p.Chains), 1, maxChains) {
		return fmt.Errorf("%d chains, want 1..%d", len(p.Chains), maxChains)
	}
	return p.validateChains()
}

// validateChains also adds up the worst case: no sum can overflow.
func (p *Partition) validateChains() error {
	var worst int64
	names := names{}
	for k := range p.Chains {
		chain := &p.Chains[k]
		if !names.add(chain.Name) {
			return fmt.Errorf("chain name %q is empty or appears twice", chain.Name)
		}
		once, err := chain.validate(len(p.Procs))
		if err != nil {
			return fmt.Errorf("chain %q: %v", chain.Name, err)
		}
		if once > (1<<62-worst)/int64(chain.Repeat) {
			return fmt.Errorf("chain %q: costs of up to %d ns, %d times, are out of range",
				chain.Name, once, chain.Repeat)
		}
		worst += once * int64(chain.Repeat)
	}
	return nil
}

// names are the names seen so far.
type names map[string]bool

// add reports whether a name is neither empty nor among those seen.
func (n names) add(name string) bool {
	if name == "" || n[name] {
		return false
	}
	n[name] = true
	return true
}

// within reports whether a number is one of low..high.
func within[T int | int64](number, low, high T) bool { return low <= number && number <= high }

// validate returns the most that one execution of the chain can cost.
func (c *Chain) validate(procs int) (worst int64, err error) {
	if !within(c.Repeat, 1, MaxRepeat) {
		return 0, fmt.Errorf("repeat is %d, want 1..%d", c.Repeat, MaxRepeat)
	}
	if !within(c.Breaks, 0, c.Repeat-1) {
		return 0, fmt.Errorf("%d breaks between %d executions", c.Breaks, c.Repeat)
	}
	if !within(len(c.Items), 1, maxItems) {
		return 0, fmt.Errorf("%d items, want 1..%d", len(c.Items), maxItems)
	}
	names := names{}
	for i := range c.Items {
		it := &c.Items[i]
		if !names.add(it.Name) {
			return 0, fmt.Errorf("item name %q is empty or appears twice", it.Name)
		}
		if err := it.validate(procs); err != nil {
			return 0, fmt.Errorf("item %q: %v", it.Name, err)
		}
		edge, err := c.validateEdges(i)
		if err != nil {
			return 0, fmt.Errorf("item %q: %v", it.Name, err)
		}
		var cost int64
		for _, choice := range it.Choices {
			cost = max(cost, choice.CostNS)
		}
		worst += cost + edge
	}
	return worst, nil
}

// validateEdges returns the most that the edge into item i can cost.
func (c *Chain) validateEdges(i int) (worst int64, err error) {
	it := &c.Items[i]
	prev := &c.Items[(i+len(c.Items)-1)%len(c.Items)]
	if i == 0 && c.Wraps() == 0 {
		if len(it.EdgeNS) != 0 {
			return 0, fmt.Errorf("edges into the first item of a chain that never follows itself")
		}
		return 0, nil
	}
	if len(it.EdgeNS) != len(prev.After) {
		return 0, fmt.Errorf("edges from %d classes, want %d", len(it.EdgeNS), len(prev.After))
	}
	for from, row := range it.EdgeNS {
		if len(row) != len(it.Before) {
			return 0, fmt.Errorf("edges from class %d to %d classes, want %d", from, len(row), len(it.Before))
		}
		for to, ns := range row {
			if !within(ns, 0, MaxNS) {
				return 0, fmt.Errorf("edge %d to %d costs %d ns, want 0..%d", from, to, ns, int64(MaxNS))
			}
			worst = max(worst, ns)
		}
	}
	return worst, nil
}

// validate checks location classes, which have distinct names, and the choices, which refer to them.
func (it *Item) validate(procs int) error {
	if len(it.Choices) == 0 {
		return fmt.Errorf("no choices")
	}
	for _, classes := range [][]string{it.Before, it.After} {
		if !within(len(classes), 1, maxClasses) {
			return fmt.Errorf("%d location classes, want 1..%d", len(classes), maxClasses)
		}
		seen := map[string]bool{}
		for _, class := range classes {
			if seen[class] {
				return fmt.Errorf("location class %q appears twice", class)
			}
			seen[class] = true
		}
	}
	labels := names{}
	for j, choice := range it.Choices {
		switch {
		case !labels.add(choice.Label):
			return fmt.Errorf("choice %d: label %q is empty or appears twice", j, choice.Label)
		case !within(choice.CostNS, 0, MaxNS):
			return fmt.Errorf("choice %q costs %d ns, want 0..%d", choice.Label, choice.CostNS, int64(MaxNS))
		case !within(choice.Before, 0, len(it.Before)-1) || !within(choice.After, 0, len(it.After)-1):
			return fmt.Errorf("choice %q: location classes %d and %d do not exist",
				choice.Label, choice.Before, choice.After)
		case len(choice.Procs) == 0:
			return fmt.Errorf("choice %q uses no processor", choice.Label)
		case !ascending(choice.Procs, procs):
			return fmt.Errorf("choice %q: processors %v, want ascending numbers below %d",
				choice.Label, choice.Procs, procs)
		}
	}
	return nil
}

// ascending reports whether numbers are indices of a list of so many, each larger than the one before.
func ascending(numbers []int, count int) bool {
	for i, number := range numbers {
		if !within(number, 0, count-1) || i > 0 && numbers[i-1] >= number {
			return false
		}
	}
	return true
}

// Conflict returns two processors that choices use together although they exclude each other; ok is false if there are
// none.
func (p *Partition) Conflict(choices [][]int) (a, b string, ok bool) {
	used := make([]bool, len(p.Procs))
	for k := range choices {
		for i, choice := range choices[k] {
			for _, proc := range p.Chains[k].Items[i].Choices[choice].Procs {
				used[proc] = true
			}
		}
	}
	for _, pair := range p.Conflicts {
		if used[pair[0]] && used[pair[1]] {
			return p.Procs[pair[0]], p.Procs[pair[1]], true
		}
	}
	return "", "", false
}

// ObjectiveNS recomputes the objective of one choice per item.
func (p *Partition) ObjectiveNS(choices [][]int) int64 {
	var total int64
	for k := range p.Chains {
		total += p.Chains[k].ObjectiveNS(choices[k])
	}
	return total
}

// ObjectiveNS returns the chain's part of the objective.
func (c *Chain) ObjectiveNS(choices []int) int64 {
	var once, wrap int64
	for i := range c.Items {
		it := &c.Items[i]
		choice := &it.Choices[choices[i]]
		once += choice.CostNS
		if len(it.EdgeNS) == 0 {
			continue
		}
		prev := (i + len(c.Items) - 1) % len(c.Items)
		edge := it.EdgeNS[c.Items[prev].Choices[choices[prev]].After][choice.Before]
		if i == 0 {
			wrap = edge
		} else {
			once += edge
		}
	}
	return int64(c.Repeat)*once + int64(c.Wraps())*wrap
}

// Verify recomputes a solution from the instance, whatever engine it came from: every choice exists,
// no conflict, the objective is what the choices cost, and the bound does not exceed it.
func (p *Partition) Verify(solution Solution) error {
	return internal("verify solution of partition", p.Name, p.verify(&solution))
}

// verify does the work of Verify; its error has no class.
func (p *Partition) verify(solution *Solution) error {
	if err := p.verifyChoices(solution.Choices); err != nil {
		return err
	}
	objective, bound := solution.ObjectiveNS, solution.BoundNS
	if got := p.ObjectiveNS(solution.Choices); got != objective {
		return fmt.Errorf("objective is %d ns, and its choices cost %d ns", objective, got)
	}
	if checkBound(solution.Status, objective, bound) != nil {
		return fmt.Errorf("status %q with objective %d ns and bound %d ns", solution.Status, objective, bound)
	}
	return nil
}

// verifyChoices reports choices that do not exist or are in conflict.
func (p *Partition) verifyChoices(choices [][]int) error {
	if len(choices) != len(p.Chains) {
		return fmt.Errorf("choices for %d chains, want %d", len(choices), len(p.Chains))
	}
	for k, list := range choices {
		items := p.Chains[k].Items
		if len(list) != len(items) {
			return fmt.Errorf("%d choices for %d items of chain %q", len(list), len(items), p.Chains[k].Name)
		}
		for i, choice := range list {
			if !within(choice, 0, len(items[i].Choices)-1) {
				return fmt.Errorf("item %q has no choice %d", items[i].Name, choice)
			}
		}
	}
	if one, other, ok := p.Conflict(choices); ok {
		return fmt.Errorf("uses %q and %q together", one, other)
	}
	return nil
}

// IndependentSets lists the maximal sets of processors without a conflict, as bit masks, in a fixed order; false when
// there are more than limit. It decides processor after processor, in before out.
func IndependentSets(procs int, pairs [][2]int, limit int) (out []uint64, ok bool) {
	conflicts := make([]uint64, procs)
	for _, pair := range pairs {
		conflicts[pair[0]] |= 1 << pair[1]
		conflicts[pair[1]] |= 1 << pair[0]
	}
	var grow func(proc int, set uint64) bool
	grow = func(proc int, set uint64) bool {
		if proc == procs {
			for other := range procs {
				if set&(1<<other) == 0 && conflicts[other]&set == 0 {
					return true // not maximal
				}
			}
			out = append(out, set)
			return len(out) <= limit
		}
		if conflicts[proc]&set == 0 && !grow(proc+1, set|1<<proc) {
			return false
		}
		// Leaving it out is of use only if a processor that excludes it comes in.
		return conflicts[proc] == 0 || grow(proc+1, set)
	}
	if !grow(0, 0) {
		return nil, false
	}
	return out, true
}
