package exact

import (
	"context"
	"errors"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/problem"
)

// Joint implements problem.Engine. Where no limit binds, each part is solved on its own. Otherwise limits and shared
// assets get prices (relaxation), and a branch and bound over assets closes the remaining gap (search).
//
// Limits.Nodes bounds the nodes visited to find and prove the optimum (0: a second or two of work). It also bounds
// those of a second search, for the lexicographically first of the optimal solutions. A solution that is optimal but
// not proved to be that first one is Feasible, with its objective as bound.
func (Engine) Joint(ctx context.Context, joint *problem.Joint, limits problem.Limits) (problem.JointSolution, error) {
	if err := joint.Validate(); err != nil {
		return problem.JointSolution{}, err
	}
	for p := range joint.Parts {
		if _, err := processorSets(joint.Parts[p].Partition); err != nil {
			limit := problem.Limit{Kind: problem.LimitProcs, Index: p, Name: joint.Parts[p].Partition.Name, Need: 1}
			return problem.JointSolution{}, diag.New(diag.ClassInfeasible, "%v: %w", err,
				&problem.InfeasibleError{Limits: []problem.Limit{limit}})
		}
	}

	// A limit on time or energy that no choices keep is found at once; a search would take long to prove it.
	why, err := hopeless(ctx, joint)
	infeasible := why != nil
	var solution problem.JointSolution
	if err == nil && !infeasible {
		solution, err = solveJoint(ctx, joint, limits, false)
	}
	if errors.Is(err, errNone) {
		why, err = conflict(ctx, joint)
		infeasible = err == nil
	}
	if infeasible {
		err = diag.New(diag.ClassInfeasible, "joint %q: %w", joint.Name, &problem.InfeasibleError{Limits: why})
	}
	return solution, err
}

// errNone says that it is proved that there is no solution.
var errNone = errors.New("no solution")

// solveJoint solves a valid instance: first heuristics, then the bound of the root, then the search, and at last the
// search for the first of the optimal solutions. With anyOne it returns the first solution that it finds.
func solveJoint(
	ctx context.Context, joint *problem.Joint, limits problem.Limits, anyOne bool,
) (problem.JointSolution, error) {
	if joint.MaxBytes > 0 && joint.Resident > joint.MaxBytes {
		return problem.JointSolution{}, errNone
	}
	prep, err := compile(joint)
	if err != nil {
		return problem.JointSolution{}, err
	}
	search := newSearch(ctx, prep)
	search.most, search.cutoff = limits.Bytes, limits.Most

	root := prep.root()
	search.start(limits.Start)
	if !search.boundWithoutPrices(root) {
		return problem.JointSolution{}, errNone
	}
	if search.tooDear(root.bound) {
		return search.allTooDear(), nil
	}

	isProof := joint.Minimise != problem.Memory || anyOne
	if search.offer(search.relax.choices) && isProof {
		return search.solution(search.value, problem.Optimal), nil
	}
	search.construct(root)
	if err := ctx.Err(); err != nil {
		return stopped(joint, err)
	}

	if anyOne && search.best != nil {
		return search.solution(prep.bound(root.bound), problem.Feasible), nil
	}
	search.anyOne = anyOne
	if err := search.climbRoot(root); err != nil {
		return stopped(joint, err)
	}
	if search.tooDear(root.bound) {
		return search.allTooDear(), nil
	}

	// The root's prices now show which assets are worth their bytes. Slightly lower prices suggest further sets.
	search.discount(root)
	if anyOne && search.best != nil {
		return search.solution(min(prep.bound(root.bound), search.value), problem.Feasible), nil
	}

	nodes := limits.Nodes
	if nodes <= 0 {
		nodes = prep.defaultNodes()
	}
	return search.prove(root, nodes)
}

// boundWithoutPrices bounds the root as if there were no limits, which gives the optimum where none binds. It reports
// false if there is no solution even then.
func (s *search) boundWithoutPrices(root *treeNode) bool {
	if slices.ContainsFunc(root.allowed, func(list []int32) bool { return len(list) == 0 }) {
		return false
	}
	s.relax.permit(root.allowed, false)
	root.bound = s.relax.evaluate(root)
	return root.bound != unreachable
}

// stopped returns the answer of a solve whose context ended.
func stopped(joint *problem.Joint, err error) (problem.JointSolution, error) {
	return problem.JointSolution{}, diag.New(diag.ClassInterrupted, "solve joint %q: %w", joint.Name, err)
}

// start takes the given choices as the best solution so far, if they keep the limits.
func (s *search) start(choices [][][]int) {
	if choices == nil || !s.prep.joint.Keeps(choices) {
		return
	}
	for _, part := range choices {
		for _, list := range part {
			s.best = append(s.best, list...)
		}
	}
	use := s.prep.joint.Use(choices)
	s.value = s.prep.joint.Objective(&use)
}

// construct looks for solutions before the ascent finds prices. It repairs the optimum without limits, tries fixed
// prices of the limits, and improves the best solution that it found.
func (s *search) construct(root *treeNode) {
	s.relax.usage(root)
	s.repair(root)
	s.cheapest(root, 1, 0)
	if s.prep.pathRows() {
		for _, assets := range []float64{0, 1.0 / 16, 1} {
			for _, paths := range []float64{1.0 / 16, 1, 64} {
				s.cheapest(root, assets, paths)
			}
		}
	}
	s.improve(root)
}

// climbRoot bounds the root with many steps of the ascent, and repairs its choices in between.
func (s *search) climbRoot(root *treeNode) error {
	s.relax.permit(root.allowed, false)
	s.relax.prime(root)
	for range rootRounds {
		s.relax.permit(root.allowed, false)
		possible := s.relax.climb(root, rootSteps, rootPasses, s.useless, s.tryRelaxed)
		if !possible || s.useless(root.bound) {
			return nil
		}

		s.relax.attain(root)
		s.repair(root)
		if err := s.ctx.Err(); err != nil {
			return err
		}
		// The ascent has come to rest: further rounds would not raise the bound.
		if root.reach <= 4*leastReach {
			return nil
		}
	}
	return nil
}

// prove searches the tree. If that proves the optimum, it searches again for the first of the optimal solutions.
func (s *search) prove(root *treeNode, nodes int64) (problem.JointSolution, error) {
	// First search: find the optimum and prove it.
	s.queue = queue{root.child()}
	s.kept = s.queue[0].bytes()
	left, err := s.run(root, nodes)
	if err != nil {
		return stopped(s.prep.joint, err)
	}

	switch {
	case left == unreachable && s.cutoff > 0 && (s.best == nil || s.value > s.cutoff):
		return s.allTooDear(), nil
	case s.best == nil && left == unreachable:
		return problem.JointSolution{}, errNone
	case s.best == nil:
		bound := max(s.prep.bound(left), 0)
		return problem.JointSolution{Status: problem.LimitReached, Bound: bound, Nodes: s.nodes}, nil
	case left != unreachable:
		out := s.solution(min(s.prep.bound(left), s.value), problem.Feasible)
		out.Open = s.openChoices()
		return out, nil
	}

	// The objective is proved. Nodes that can tie are searched again, in the order of choices.
	s.first, s.queue = true, s.ties
	if left, err = s.run(root, s.nodes+nodes); err != nil {
		return stopped(s.prep.joint, err)
	}
	if left != unreachable {
		return s.solution(s.value, problem.Feasible), nil
	}
	return s.solution(s.value, problem.Optimal), nil
}

// tooDear reports whether a bound says that no solution is of interest by its objective.
func (s *search) tooDear(bound int64) bool { return s.cutoff > 0 && bound > s.prep.scale(s.cutoff) }

// allTooDear returns the answer that every solution, if there are any, costs more than is of interest.
func (s *search) allTooDear() problem.JointSolution {
	return problem.JointSolution{Status: problem.LimitReached, Bound: s.cutoff + 1, Nodes: s.nodes}
}

// openChoices lists, per part, chain and item, the choices that some waiting node still allows (JointSolution.Open).
// A better solution, if there is one, consists of these.
func (s *search) openChoices() [][][][]int {
	out := make([][][][]int, len(s.prep.parts))
	for p := range out {
		out[p] = make([][][]int, len(s.nested[p]))
	}
	for i, it := range s.prep.items {
		open := make([]bool, len(it.base))
		for _, node := range s.queue {
			for _, choice := range node.allowed[i] {
				open[choice] = true
			}
		}

		var list []int
		for choice, is := range open {
			if is {
				list = append(list, choice)
			}
		}
		out[it.part][it.chain] = append(out[it.part][it.chain], list)
	}
	return out
}

// solution returns the best known solution.
func (s *search) solution(bound int64, status problem.Status) problem.JointSolution {
	out := problem.JointSolution{Objective: s.value, Bound: bound, Status: status, Nodes: s.nodes}
	for _, part := range s.choices(s.best) {
		out.Choices = append(out.Choices, cloneLists(part))
	}
	return out
}

// root returns the node where nothing is decided: with all choices that reduce kept, all assets free, all prices 0.
func (c *prepared) root() *treeNode {
	node := &treeNode{
		reach: firstReach, state: make([]int8, len(c.assets)),
		mult: make([]float64, len(c.rows)), lambda: make([]int64, len(c.links)),
	}
	for _, it := range c.items {
		node.allowed = append(node.allowed, it.keep)
	}
	return node
}

// defaultNodes limits a search to about two seconds. Large instances, and those whose every evaluation includes limits
// on times or energy, get fewer nodes.
func (c *prepared) defaultNodes() int64 {
	work := int64(2000000)
	if c.pathRows() {
		work = 800000
	}
	size := int64(1)
	for _, it := range c.items {
		size += int64(len(it.keep))
	}
	return min(max(work/size, 100), 20000)
}
