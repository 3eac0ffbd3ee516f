package exact

import (
	"context"

	"github.com/hetc/hetc/solver/problem"
)

// Joint implements problem.Engine. Where no limit binds each part is solved on its own.
func (e Engine) Joint(ctx context.Context, j *problem.Joint, limits problem.Limits) (problem.JointSolution, error) {
	if err := j.Validate(); err != nil {
		return problem.JointSolution{}, err
	}
	if j.Minimise == problem.Energy || j.Minimise == problem.Memory {
		return problem.JointSolution{Status: problem.LimitReached}, nil
	}
	out := problem.JointSolution{Status: problem.Optimal}
	for i := range j.Parts {
		s, err := e.Partition(ctx, j.Parts[i].Partition)
		if err != nil {
			return problem.JointSolution{}, err
		}
		out.Choices = append(out.Choices, s.Choices)
	}
	u := j.Use(out.Choices)
	out.Objective = j.Objective(&u)
	out.Bound = out.Objective
	if j.Broken(&u) != nil {
		return problem.JointSolution{Status: problem.LimitReached, Bound: out.Bound}, nil
	}
	return out, nil
}
