package solver

import (
	"context"
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// A listed bucket need not get a program. Prompts are cut into pieces of the largest bucket, and what is left goes to
// the smallest that holds it: a prompt of 400 tokens fills a call of 512 rows, or calls of 384 and 16 where 512 is
// left out. If the workload lists prompts, every solve may leave out the largest buckets. If only limited solves did, a
// limit could give a faster plan than none. Without prompts the list says what is to be executed, and only memory
// leaves buckets out.

// fewestBuckets returns the least number of buckets that a plan may have.
func (s *request) fewestBuckets() int {
	if s.in.AllBuckets {
		return len(s.want.Buckets)
	}
	return min(1, len(s.want.Buckets))
}

// fewestBucketsForTime returns the least number of buckets if buckets are left out for the time of prompts, not for
// memory.
func (s *request) fewestBucketsForTime() int {
	if len(s.want.Prompts) == 0 {
		return len(s.want.Buckets)
	}
	return s.fewestBuckets()
}

// tryFewerBuckets compares a plan for all buckets with the best plan for only the first of them, and returns the better
// one with its session. It does not solve sets of buckets whose lower bound is no better.
func (s *session) tryFewerBuckets(ctx context.Context, plan *planir.Plan) (*session, *planir.Plan, error) {
	by, best, bestNS := s, plan, s.objective(plan)
	for buckets := len(s.want.Buckets) - 1; buckets >= s.fewestBucketsForTime(); buckets-- {
		promising, err := s.mayBeat(buckets, plan, bestNS)
		if err != nil {
			return nil, nil, err
		}
		if !promising {
			continue
		}

		fewer, err := s.withFirstBuckets(ctx, buckets)
		if err != nil {
			return nil, nil, err
		}
		other, err := fewer.planBelow(ctx, bestNS)
		if err != nil {
			return nil, nil, err
		}
		isBetter := other != nil
		if isBetter && s.measure() == problem.Time {
			if isBetter, err = takesLessTime(fewer, other, by, best); err != nil {
				return nil, nil, err
			}
		}
		if !isBetter {
			fewer.close()
			continue
		}
		if by != s {
			by.close()
		}
		by, best, bestNS = fewer, other, fewer.objective(other)
	}
	return by, best, nil
}

// takesLessTime reports whether a plan is predicted to take less time than another one, each in its session. Objectives
// cannot tell: a variant that the timeline prefers has a larger objective than what it replaces. A plan with such a
// variant would seem slower than one whose variants break a limit and are left out.
func takesLessTime(one *session, plan *planir.Plan, another *session, other *planir.Plan) (bool, error) {
	ns, err := one.expectedNS(plan)
	if err != nil {
		return false, err
	}
	otherNS, err := another.expectedNS(other)
	return ns < otherNS, err
}

// planBelow returns the best plan of a prepared session if its objective is below a number, else nil.
func (s *session) planBelow(ctx context.Context, most float64) (*planir.Plan, error) {
	found, err := s.search(ctx, most, nil, func(prefill, decode assignment) (float64, bool, error) {
		ns, err := s.solvedObjective(ctx, prefill, decode)
		return ns, err == nil, err
	})
	if err != nil || found.decode == nil {
		return nil, err
	}

	s.prefill, s.decode, s.chosen = found.prefill, found.decode, found.report
	plan, err := s.completePlan(ctx)
	if diag.ClassOf(err) == diag.ClassInfeasible {
		return nil, nil
	}
	if err != nil || s.objective(plan) >= most {
		return nil, err
	}
	return plan, nil
}

// mayBeat reports whether the first buckets, so many of them, may have an objective below most. plan is one for all
// buckets, and decodes in the same way. Every operator of prefill counts with its cheapest candidate, without
// hand-overs and without what short calls leave idle. Attention over fewer positions than it was priced for counts
// nothing.
func (s *schemeChoice) mayBeat(buckets int, plan *planir.Plan, most float64) (bool, error) {
	fewer, err := s.want.Fewer(s.in.Workload, buckets, s.in.Model.MaxContext)
	if err != nil {
		return false, err
	}
	total := s.decodeBound(plan)
	for i, rows := range fewer.Buckets {
		if fewer.Share[i] == 0 {
			continue
		}
		shorter := fewer.ContextAt(rows) < s.want.ContextAt(rows)
		total += float64(s.want.Weights.Prefill*fewer.Share[i]) * s.leastCallCost(rows, shorter, s.costWithoutIdle)
		if total >= most {
			return false, nil
		}
	}
	return true, nil
}

// decodeBound returns a lower bound of decode's part of the objective.
func (s *schemeChoice) decodeBound(plan *planir.Plan) float64 {
	if plan.Solver[0].Problem == jointProblem(s.measure()) || s.want.MaxKL != (workload.KLLimit{}) {
		if len(s.phases[1].points) == 0 {
			return 0
		}
		return s.phases[1].points[0].bound
	}
	total := 0.0
	for i := range s.want.DecodeRows() {
		total += float64(s.callWeight(i) * float64(plan.Solver[i].ObjectiveNS))
	}
	return total
}

// leastCallCost returns a lower bound of one call of the program of that many rows, whatever its schemes: the sum over
// operators of the least that a candidate takes.
func (s *pricing) leastCallCost(rows int, noAttention bool,
	takes func(node *lower.Node, candidate *price.Candidate) float64) float64 {
	cheapest := map[string]float64{}
	for key, set := range s.candidateSets {
		if key.rows != rows || set.err != nil {
			continue
		}
		node := &set.section.Nodes[set.node]
		if noAttention && node.Op().Kind == op.Attention {
			continue
		}
		least := math.Inf(1)
		for i := range set.list {
			least = min(least, takes(node, &set.list[i]))
		}
		if old, ok := cheapest[key.node]; !ok || least < old {
			cheapest[key.node] = least
		}
	}

	total := 0.0
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for _, node := range sec.Nodes {
			if least, ok := cheapest[sec.Name+"."+node.Name]; ok && !math.IsInf(least, 1) {
				total += float64(max(1, sec.Layers)) * least
			}
		}
	}
	return total
}

// costWithoutIdle returns the time or energy of a candidate, whichever is minimised, without what short calls leave
// idle.
func (s *request) costWithoutIdle(_ *lower.Node, candidate *price.Candidate) float64 {
	if s.measure() == problem.Energy {
		return float64(candidate.EnergyNJ)
	}
	return float64(candidate.PredictNS)
}
