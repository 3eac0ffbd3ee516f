package explain

import (
	"context"
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// ParetoPoint is a plan that no other one found beats in both expected time and modelled energy.
type ParetoPoint struct {
	ExpectedMS float64 `json:"expected_ms"`
	EnergyMJ   float64 `json:"energy_mj"` // modelled: power of the SoC times busy time
	// LimitMJ is the limits.energy_mj of the workload that gives this plan; 0: without one.
	LimitMJ float64 `json:"limit_energy_mj,omitempty"`
	// Proved: every problem of the plan was solved to optimality under its limit. Else Gap is the largest relative
	// gap of one.
	Proved bool         `json:"proved"`
	Gap    float64      `json:"gap,omitempty"`
	Plan   *planir.Plan `json:"-"`
}

// Pareto lists efficient plans between the fastest and the one of least energy, fastest first. It uses epsilon
// constraints: it minimises the expected time under a limit of energy that goes down in equal steps. There may be
// further efficient plans between two of them. It needs the power of every processor (ClassInput otherwise).
func Pareto(ctx context.Context, in solver.Input, steps int) ([]ParetoPoint, error) {
	trial := newTrial(in, nil)
	fastest, err := trial.paretoPoint(ctx, problem.Time, 0)
	if err != nil {
		return nil, err
	}
	if fastest == nil {
		_, err := solver.Solve(ctx, in)
		return nil, Diagnose(ctx, in, err)
	}
	if fastest.EnergyMJ == 0 {
		return nil, diag.New(diag.ClassInput,
			"pareto: SoC %q does not say the power of its processors, and energy is modelled from that", in.SoC.Name).
			WithHint("add power_w, watts while it is busy, to every processor of the SoC file")
	}

	frugal, err := trial.paretoPoint(ctx, problem.Energy, 0)
	if err != nil {
		return nil, err
	}
	points := []ParetoPoint{*fastest}
	if frugal == nil || frugal.EnergyMJ >= fastest.EnergyMJ {
		return points, nil
	}

	for i := 1; i <= steps; i++ {
		limit := fastest.EnergyMJ - float64(fastest.EnergyMJ-frugal.EnergyMJ)*float64(i)/float64(steps)
		limit = math.Ceil(limit*1e4) / 1e4 // as people write it
		if points[len(points)-1].EnergyMJ <= limit {
			continue // the last one is the answer here too
		}
		point, err := trial.paretoPoint(ctx, problem.Time, limit)
		if err != nil {
			return nil, err
		}
		if point != nil {
			points = append(points, *point)
		}
	}
	// Solving for time under this limit gives the frugal plan again.
	frugal.LimitMJ = math.Ceil(frugal.EnergyMJ*1e4) / 1e4
	return efficient(append(points, *frugal)), nil
}

// paretoPoint solves for a measure under a limit of energy in mJ, 0 for none. It returns nil where there is no plan.
func (t *trial) paretoPoint(ctx context.Context, measure problem.Measure, limit float64) (*ParetoPoint, error) {
	attempt, err := t.solve(ctx, func(in *solver.Input) {
		in.Workload = workload.Edited(in.Workload, func(work *workload.Workload) {
			work.Minimise = measure
			lowers := work.Limits.EnergyMJ == 0 || limit < work.Limits.EnergyMJ
			if limit > 0 && lowers {
				work.Limits.EnergyMJ = limit
			}
		})
	})
	if err != nil {
		return nil, err
	}
	if attempt.result == nil {
		if diag.ClassOf(attempt.err) == diag.ClassInfeasible {
			return nil, nil
		}
		return nil, attempt.err
	}

	point := &ParetoPoint{ExpectedMS: attempt.result.ExpectedNS / 1e6, EnergyMJ: attempt.result.ExpectedNJ / 1e6,
		LimitMJ: limit, Plan: attempt.result.Plan}
	proof := solver.ProofOf(point.Plan.Solver)
	point.Proved, point.Gap = proof.Open == 0, proof.Gap
	return point, nil
}

// efficient drops points that another one beats, or equals and comes before.
func efficient(points []ParetoPoint) []ParetoPoint {
	var out []ParetoPoint
	for i, point := range points {
		beaten := false
		for j, other := range points {
			// Of equal points the first stays.
			asGood := other.ExpectedMS <= point.ExpectedMS && other.EnergyMJ <= point.EnergyMJ
			same := other.ExpectedMS == point.ExpectedMS && other.EnergyMJ == point.EnergyMJ
			beaten = beaten || asGood && !same || same && j < i
		}
		if !beaten {
			out = append(out, point)
		}
	}
	return out
}
