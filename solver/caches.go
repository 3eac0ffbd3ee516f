package solver

import (
	"context"
	"errors"
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// solveCaches solves with every type of cache that the workload leaves open. It returns the plan that takes least of
// the measure, and among equal ones the one with the more exact cache. A type that no plan can have is left out, and
// the result says so: no processor works on it, or it loses too much. If there is no plan at all, the error is that of
// the most exact type, or of the smallest one if all of them hold too much.
func solveCaches(ctx context.Context, in Input) (*Result, error) {
	var best *Result
	var refused error
	var left diag.List
	most, allProved := math.Inf(1), true
	for _, cache := range in.Workload.Caches() {
		in.cache = cache
		result, err := Solve(ctx, in)
		switch {
		case ctx.Err() != nil:
			return nil, errors.Join(err, ctx.Err())
		case err != nil && diag.ClassOf(err) != diag.ClassInfeasible && diag.ClassOf(err) != diag.ClassInput:
			return nil, err // nothing that another type of cache would mend
		case err != nil:
			tooLarge := namesLimit(refused, workload.KeyMemory) && namesLimit(err, workload.KeyMemory)
			if refused == nil || tooLarge {
				refused = err
			}
			allProved = allProved && Proved(err)
			left = append(left, diag.New(diag.ClassOf(err), "no plan caches keys and values in %s: %w", cache, err))
			continue
		}

		if takes := result.amountOf(in.Workload.Minimise); takes < most {
			best, most = result, takes
		}
	}

	if best == nil && !allProved {
		return nil, unproved(refused)
	}
	if best == nil {
		return nil, refused
	}
	best.Warnings = append(best.Warnings, left...)
	return best, nil
}

// amountOf returns how much the plan takes of a measure.
func (r *Result) amountOf(measure problem.Measure) float64 {
	switch measure {
	case problem.Energy:
		return r.ExpectedNJ
	case problem.Memory:
		return float64(r.Plan.Memory.Total)
	}
	return r.ExpectedNS
}

// deductCacheLoss subtracts the loss of the cache's type from the limits of quality.
func (in *Input) deductCacheLoss(want *workload.Demand) error {
	if in.Calibration == nil || want.MaxKL == (workload.KLLimit{}) {
		return nil
	}
	lost, measured := in.Calibration.CacheLoss(want.Cache)
	if !measured {
		return diag.New(diag.ClassInput,
			"solve: %s bounds quality, and the calibration does not say what a cache in %s loses",
			in.Workload.Title(), want.Cache).
			WithHint("make it again with hetc calibrate, or set cache to %s", op.F32)
	}

	for _, limit := range []struct {
		phase string
		nats  *float64
	}{{"prefill", &want.MaxKL.Prefill}, {"decode", &want.MaxKL.Decode}} {
		switch {
		case *limit.nats == 0 || lost == 0:
		case lost >= *limit.nats:
			return diag.New(diag.ClassInfeasible, "solve: %s is to lose at most %s, and a cache in %s loses %.3g alone",
				limit.phase, workload.KLText(*limit.nats), want.Cache, lost).
				WithHint("set cache to a more exact type, or raise quality.max_kl.%s in the workload", limit.phase)
		default:
			*limit.nats -= lost
		}
	}
	return nil
}
