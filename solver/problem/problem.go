// Package problem knows the optimisation problems that solve poses, as plain data: engines see
// nothing of models, processors or plans, and their answers can be recomputed from the data alone.
package problem

import (
	"context"
	"fmt"

	"github.com/hetc/hetc/internal/diag"
)

// Limits of an instance: far above any real one, low enough that validation and sums stay safe.
const (
	MaxChains  = 256
	MaxItems   = 4096    // of one chain
	MaxChoices = 1 << 18 // of all items together
	MaxClasses = 1 << 12 // of one item and side
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

// Wraps is how often the first item follows the last one.
func (c *Chain) Wraps() int { return c.Repeat - 1 - c.Breaks }

// Item is one operator: what it can be executed as, and what it costs to get its input there.
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

// Status says what is known about a solution.
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
}

// Size is the number of choices of all items.
func (p *Partition) Size() int {
	n := 0
	for k := range p.Chains {
		for i := range p.Chains[k].Items {
			n += len(p.Chains[k].Items[i].Choices)
		}
	}
	return n
}

// Validate reports the first thing that makes the instance meaningless: numbers out of range,
// indices that point nowhere, duplicates, empty items. The error is of class ClassInternal: users
// do not write instances.
func (p *Partition) Validate() error {
	fail := func(format string, args ...any) error {
		return diag.New(diag.ClassInternal, "partition %q: %s", p.Name, fmt.Sprintf(format, args...))
	}
	if len(p.Procs) == 0 || len(p.Procs) > MaxProcs {
		return fail("%d processors, want 1..%d", len(p.Procs), MaxProcs)
	}
	names := map[string]bool{}
	for _, name := range p.Procs {
		if name == "" || names[name] {
			return fail("processor name %q is empty or appears twice", name)
		}
		names[name] = true
	}
	for _, c := range p.Conflicts {
		if c[0] < 0 || c[0] >= len(p.Procs) || c[1] < 0 || c[1] >= len(p.Procs) || c[0] == c[1] {
			return fail("conflict between processors %d and %d of %d", c[0], c[1], len(p.Procs))
		}
	}
	if n := p.Size(); n > MaxChoices {
		return fail("%d choices, want at most %d", n, MaxChoices)
	}
	if len(p.Chains) == 0 || len(p.Chains) > MaxChains {
		return fail("%d chains, want 1..%d", len(p.Chains), MaxChains)
	}
	// No sum can overflow: the worst case is added up.
	var worst int64
	chains := map[string]bool{}
	for k := range p.Chains {
		c := &p.Chains[k]
		if c.Name == "" || chains[c.Name] {
			return fail("chain name %q is empty or appears twice", c.Name)
		}
		chains[c.Name] = true
		w, err := c.validate(len(p.Procs))
		if err != nil {
			return fail("chain %q: %v", c.Name, err)
		}
		if w > (1<<62-worst)/int64(c.Repeat) {
			return fail("chain %q: costs of up to %d ns, %d times, are out of range", c.Name, w, c.Repeat)
		}
		worst += w * int64(c.Repeat)
	}
	return nil
}

// validate returns the most that one execution of the chain can cost.
func (c *Chain) validate(procs int) (worst int64, err error) {
	if c.Repeat < 1 || c.Repeat > MaxRepeat {
		return 0, fmt.Errorf("repeat is %d, want 1..%d", c.Repeat, MaxRepeat)
	}
	if c.Breaks < 0 || c.Breaks >= c.Repeat {
		return 0, fmt.Errorf("%d breaks between %d executions", c.Breaks, c.Repeat)
	}
	if len(c.Items) == 0 || len(c.Items) > MaxItems {
		return 0, fmt.Errorf("%d items, want 1..%d", len(c.Items), MaxItems)
	}
	names := map[string]bool{}
	for i := range c.Items {
		it := &c.Items[i]
		if it.Name == "" || names[it.Name] {
			return 0, fmt.Errorf("item name %q is empty or appears twice", it.Name)
		}
		names[it.Name] = true
		if err := it.validate(procs); err != nil {
			return 0, fmt.Errorf("item %q: %v", it.Name, err)
		}
		prev := len(c.Items[(i+len(c.Items)-1)%len(c.Items)].After)
		if i == 0 && c.Wraps() == 0 {
			if len(it.EdgeNS) != 0 {
				return 0, fmt.Errorf("item %q: edges into the first item of a chain that never follows itself", it.Name)
			}
		} else if len(it.EdgeNS) != prev {
			return 0, fmt.Errorf("item %q: edges from %d classes, want %d", it.Name, len(it.EdgeNS), prev)
		}
		var cost, edge int64
		for a, row := range it.EdgeNS {
			if len(row) != len(it.Before) {
				return 0, fmt.Errorf("item %q: edges from class %d to %d classes, want %d", it.Name, a, len(row), len(it.Before))
			}
			for b, ns := range row {
				if ns < 0 || ns > MaxNS {
					return 0, fmt.Errorf("item %q: edge %d to %d costs %d ns, want 0..%d", it.Name, a, b, ns, int64(MaxNS))
				}
				edge = max(edge, ns)
			}
		}
		for _, ch := range it.Choices {
			cost = max(cost, ch.CostNS)
		}
		worst += cost + edge
	}
	return worst, nil
}

func (it *Item) validate(procs int) error {
	if len(it.Choices) == 0 {
		return fmt.Errorf("no choices")
	}
	for _, classes := range [][]string{it.Before, it.After} {
		if len(classes) == 0 || len(classes) > MaxClasses {
			return fmt.Errorf("%d location classes, want 1..%d", len(classes), MaxClasses)
		}
		seen := map[string]bool{}
		for _, c := range classes {
			if seen[c] {
				return fmt.Errorf("location class %q appears twice", c)
			}
			seen[c] = true
		}
	}
	labels := map[string]bool{}
	for j, c := range it.Choices {
		switch {
		case c.Label == "" || labels[c.Label]:
			return fmt.Errorf("choice %d: label %q is empty or appears twice", j, c.Label)
		case c.CostNS < 0 || c.CostNS > MaxNS:
			return fmt.Errorf("choice %q costs %d ns, want 0..%d", c.Label, c.CostNS, int64(MaxNS))
		case c.Before < 0 || c.Before >= len(it.Before) || c.After < 0 || c.After >= len(it.After):
			return fmt.Errorf("choice %q: location classes %d and %d do not exist", c.Label, c.Before, c.After)
		case len(c.Procs) == 0:
			return fmt.Errorf("choice %q uses no processor", c.Label)
		}
		labels[c.Label] = true
		for k, q := range c.Procs {
			if q < 0 || q >= procs || k > 0 && c.Procs[k-1] >= q {
				return fmt.Errorf("choice %q: processors %v, want ascending numbers below %d", c.Label, c.Procs, procs)
			}
		}
	}
	return nil
}

// Conflict returns two processors that choices uses together although they must not be, or ok = false.
func (p *Partition) Conflict(choices [][]int) (a, b string, ok bool) {
	used := make([]bool, len(p.Procs))
	for k := range choices {
		for i, c := range choices[k] {
			for _, q := range p.Chains[k].Items[i].Choices[c].Procs {
				used[q] = true
			}
		}
	}
	for _, c := range p.Conflicts {
		if used[c[0]] && used[c[1]] {
			return p.Procs[c[0]], p.Procs[c[1]], true
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

// ObjectiveNS is the chain's part of the objective.
func (c *Chain) ObjectiveNS(choices []int) int64 {
	var once, wrap int64
	for i := range c.Items {
		it := &c.Items[i]
		ch := it.Choices[choices[i]]
		once += ch.CostNS
		if len(it.EdgeNS) == 0 {
			continue
		}
		prev := (i + len(c.Items) - 1) % len(c.Items)
		edge := it.EdgeNS[c.Items[prev].Choices[choices[prev]].After][ch.Before]
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
func (p *Partition) Verify(s Solution) error {
	fail := func(format string, args ...any) error {
		return diag.New(diag.ClassInternal, "verify solution of partition %q: %s", p.Name, fmt.Sprintf(format, args...))
	}
	if err := p.verifyChoices(s.Choices); err != nil {
		return fail("%v", err)
	}
	if got := p.ObjectiveNS(s.Choices); got != s.ObjectiveNS {
		return fail("objective is %d ns, and its choices cost %d ns", s.ObjectiveNS, got)
	}
	if s.BoundNS > s.ObjectiveNS || s.Status == Optimal && s.BoundNS != s.ObjectiveNS {
		return fail("status %q with objective %d ns and bound %d ns", s.Status, s.ObjectiveNS, s.BoundNS)
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
		for i, c := range list {
			if c < 0 || c >= len(items[i].Choices) {
				return fmt.Errorf("item %q has no choice %d", items[i].Name, c)
			}
		}
	}
	if a, b, ok := p.Conflict(choices); ok {
		return fmt.Errorf("uses %q and %q together", a, b)
	}
	return nil
}

// IndependentSets lists the maximal sets of n processors without a conflict, as bit masks, in a fixed
// order; false when there are more than limit.
func IndependentSets(n int, pairs [][2]int, limit int) (out []uint64, ok bool) {
	conflicts := make([]uint64, n)
	for _, c := range pairs {
		conflicts[c[0]] |= 1 << c[1]
		conflicts[c[1]] |= 1 << c[0]
	}
	var grow func(q int, set uint64) bool
	grow = func(q int, set uint64) bool {
		if q == n {
			for r := range n {
				if set&(1<<r) == 0 && conflicts[r]&set == 0 {
					return true // not maximal
				}
			}
			out = append(out, set)
			return len(out) <= limit
		}
		if conflicts[q]&set == 0 && !grow(q+1, set|1<<q) {
			return false
		}
		// Leaving q out is of use only if a processor that excludes it comes in.
		return conflicts[q] == 0 || grow(q+1, set)
	}
	if !grow(0, 0) {
		return nil, false
	}
	return out, true
}
