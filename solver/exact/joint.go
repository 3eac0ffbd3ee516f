package exact

import (
	"context"
	"errors"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/problem"
)

// Joint implements problem.Engine. Where no limit binds each part is solved on its own. Else limits and shared assets
// are priced (relaxation), and a search over assets closes what gap is left. Limits.Nodes bounds the nodes (0: a second or two of work)
// visited to find and prove the optimum, and again those visited to find the first of several optimal solutions: a
// solution that is not proved to be that one is Feasible, with its objective as bound.
func (Engine) Joint(ctx context.Context, j *problem.Joint, limits problem.Limits) (problem.JointSolution, error) {
	if err := j.Validate(); err != nil {
		return problem.JointSolution{}, err
	}
	for i := range j.Parts {
		if _, err := variants(j.Parts[i].Partition); err != nil {
			return problem.JointSolution{}, diag.New(diag.ClassInfeasible, "%v: %w", err,
				&problem.InfeasibleError{Limits: []problem.Limit{{Kind: problem.LimitProcs, Index: i, Name: j.Parts[i].Partition.Name, Need: 1}}})
		}
	}
	infeasible := func(why []problem.Limit) error {
		return diag.New(diag.ClassInfeasible, "joint %q: %w", j.Name, &problem.InfeasibleError{Limits: why})
	}
	why, err := hopeless(ctx, j)
	if why != nil {
		return problem.JointSolution{}, infeasible(why)
	}
	var s problem.JointSolution
	if err == nil {
		s, err = solveJoint(ctx, j, limits, false)
	}
	if errors.Is(err, errNone) {
		if why, err = conflict(ctx, j); err != nil {
			return problem.JointSolution{}, err
		}
		return problem.JointSolution{}, infeasible(why)
	}
	return s, err
}

// errNone: proved that there is no solution.
var errNone = errors.New("no solution")

// solveJoint solves a valid instance, to the first solution found where any will do.
func solveJoint(ctx context.Context, j *problem.Joint, limits problem.Limits, anyOne bool) (problem.JointSolution, error) {
	stopped := func(err error) (problem.JointSolution, error) {
		return problem.JointSolution{}, diag.New(diag.ClassInterrupted, "solve joint %q: %w", j.Name, err)
	}
	none := func() (problem.JointSolution, error) { return problem.JointSolution{}, errNone }
	if j.MaxBytes > 0 && j.Resident > j.MaxBytes {
		return none()
	}
	c, err := compile(j)
	if err != nil {
		return problem.JointSolution{}, err
	}
	nodes := limits.Nodes
	if nodes <= 0 {
		nodes = c.defaultNodes()
	}
	s := newSearch(ctx, c)
	s.most = limits.Bytes
	root := c.root()
	for i := range root.allowed {
		if len(root.allowed[i]) == 0 {
			return none()
		}
	}
	if limits.Start != nil && j.Keeps(limits.Start) {
		for _, part := range limits.Start {
			for _, list := range part {
				s.x = append(s.x, list...)
			}
		}
		u := j.Use(limits.Start)
		s.value = j.Objective(&u)
	}
	// Without prices: the optimum where no limit binds.
	s.r.permit(root.allowed, false)
	c.bestFree = s.r.evaluate(root)
	if c.bestFree == unreachable {
		return none()
	}
	root.bound = c.bestFree
	if s.offer(s.r.x) && (j.Minimise != problem.Memory || anyOne) {
		return s.solution(s.value, problem.Optimal), nil
	}
	s.r.usage(root)
	s.repair(root)
	s.cheapest(root, 1, 0)
	if len(c.rows) > c.nRows {
		for _, assets := range []float64{0, 1.0 / 16, 1} {
			for _, paths := range []float64{1.0 / 16, 1, 64} {
				s.cheapest(root, assets, paths)
			}
		}
	}
	s.improve(root)
	if err := ctx.Err(); err != nil {
		return stopped(err)
	}
	if anyOne && s.x != nil {
		return s.solution(c.bound(root.bound), problem.Feasible), nil
	}
	s.anyOne = anyOne
	// The root: many steps, with repairs in between.
	s.r.permit(root.allowed, false)
	s.r.prime(root)
	for range rootRounds {
		s.r.permit(root.allowed, false)
		if !s.r.climb(root, rootSteps, rootPasses, s.useless, s.tryRelaxed) || s.useless(root.bound) {
			break
		}
		s.r.attain(root)
		s.repair(root)
		if err := ctx.Err(); err != nil {
			return stopped(err)
		}
		if root.reach <= 4*leastReach {
			break
		}
	}
	s.discount(root)
	if anyOne && s.x != nil {
		return s.solution(min(c.bound(root.bound), s.value), problem.Feasible), nil
	}
	s.queue = queue{root.child()}
	s.kept = s.queue[0].bytes()
	left, err := s.run(root, nodes)
	if err != nil {
		return stopped(err)
	}
	if s.x == nil {
		if left == unreachable {
			return none()
		}
		return problem.JointSolution{Status: problem.LimitReached, Bound: max(c.bound(left), 0), Nodes: s.nodes}, nil
	}
	if left != unreachable {
		out := s.solution(min(c.bound(left), s.value), problem.Feasible)
		out.Open = s.left()
		return out, nil
	}
	// Proved. Now the first of the optimal solutions.
	s.first, s.queue = true, s.ties
	if left, err = s.run(root, s.nodes+nodes); err != nil {
		return stopped(err)
	}
	if left != unreachable {
		return s.solution(s.value, problem.Feasible), nil
	}
	return s.solution(s.value, problem.Optimal), nil
}

// cheapest offers solutions that take little of the limits over assets and those over paths: each limit is priced so that
// all of it costs as much as the worst solution, times a factor.
func (s *search) cheapest(root *node, assets, paths float64) {
	n := root.child()
	for k := range s.c.rows {
		n.mult[k] = float64(s.c.worst) / float64(max(s.c.rows[k].cap, 1))
		if k < s.c.nRows {
			n.mult[k] *= assets
		} else {
			n.mult[k] *= paths
		}
	}
	for a := range s.c.assets {
		as := &s.c.assets[a]
		price := as.fixed
		for k, size := range as.size {
			price += int64(min(float64(float64(size)*n.mult[k]), float64(s.c.clamp)))
		}
		as.price = min(price, s.c.clamp)
		s.c.portion(n, as)
	}
	s.r.permit(n.allowed, false)
	if s.r.evaluate(n) != unreachable {
		s.r.usage(n)
		s.tryRelaxed()
		s.repair(n)
	}
}

// discount repairs and improves what the relaxation chooses where limits cost a little less than they should: assets that
// do not fit together, but are all worth their bytes.
func (s *search) discount(root *node) {
	for _, f := range []float64{1, 0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5} {
		n := root.child()
		for k := range s.c.rows {
			s.r.price(n, k, n.mult[k]*f)
		}
		s.r.permit(n.allowed, false)
		if s.ctx.Err() != nil || s.r.evaluate(n) == unreachable {
			return
		}
		s.r.usage(n)
		s.tryRelaxed()
		before := s.value
		if s.repair(root); s.value < before || f == 1 {
			s.improve(root)
		}
	}
}

// left lists the choices of all nodes that were not searched (JointSolution.Open).
func (s *search) left() [][][][]int {
	in := make([][]bool, len(s.c.items))
	for i, it := range s.c.items {
		in[i] = make([]bool, len(it.base))
	}
	for _, n := range s.queue {
		for i, list := range n.allowed {
			for _, j := range list {
				in[i][j] = true
			}
		}
	}
	out := make([][][][]int, len(s.c.parts))
	for p := range s.c.parts {
		out[p] = make([][][]int, len(s.nest[p]))
	}
	for i, it := range s.c.items {
		var list []int
		for j, left := range in[i] {
			if left {
				list = append(list, j)
			}
		}
		out[it.part][it.chain] = append(out[it.part][it.chain], list)
	}
	return out
}

func (s *search) solution(bound int64, status problem.Status) problem.JointSolution {
	out := problem.JointSolution{Objective: s.value, Bound: bound, Status: status, Nodes: s.nodes}
	for _, part := range s.choices(s.x) {
		var chains [][]int
		for _, list := range part {
			chains = append(chains, slices.Clone(list))
		}
		out.Choices = append(out.Choices, chains)
	}
	return out
}

// root is the node where nothing is decided.
func (c *joint) root() *node {
	n := &node{reach: firstReach, state: make([]int8, len(c.assets)), mult: make([]float64, len(c.rows)), lambda: make([]int64, len(c.links))}
	for _, it := range c.items {
		n.allowed = append(n.allowed, it.keep)
	}
	return n
}

// defaultNodes is a second or two's work: fewer nodes of large instances, and where limits on times or energy
// are part of every evaluation.
func (c *joint) defaultNodes() int64 {
	work := int64(2000000)
	if len(c.rows) > c.nRows {
		work = 800000
	}
	size := int64(1)
	for _, it := range c.items {
		size += int64(len(it.keep))
	}
	return min(max(work/size, 100), 20000)
}
