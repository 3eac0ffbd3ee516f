package solver

import (
	"cmp"
	"context"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/workload"
)

// drops says how many of the rows beyond the slots of experts a solve may drop.
type drops struct {
	salience string  // rule
	share    float64 // of a layer's rows, in every layer; 0: nothing is dropped
	kl       float64 // what that loses at most, in nats a token, where quality is limited
}

// mayDrop reports whether the workload has rows beyond slots dropped.
func (in *Input) mayDrop() bool {
	return in.Loads != nil && in.Workload != nil && in.Workload.Experts.Overflow == planir.OverflowDrop
}

// solveDrops decides how much of a limit of quality is spent on dropped rows. What is left of the limit is for schemes.
// So it solves without dropping, then with shares that cost what that plan leaves of the limit, half of the limit, and
// what the workload permits at most. Of these plans it takes the one that takes least.
func solveDrops(ctx context.Context, in Input) (*Result, error) {
	want, cal := &in.Workload.Experts, in.Calibration
	limit := in.Workload.Quality.MaxKL.Prefill
	if limit == 0 {
		in.drops = &drops{salience: want.Salience, share: want.MaxDrop}
		if cal != nil && in.drops.salience == "" {
			in.drops.salience, _ = cal.MostDropped(workload.LargestKL, want.MaxDrop, "")
		}
		in.drops.salience = cmp.Or(in.drops.salience, op.SalienceWeight)
		return Solve(ctx, in)
	}
	if limit <= workload.Lossless { // nothing may be lost
		in.drops = &drops{}
		return Solve(ctx, in)
	}
	if cal == nil || len(cal.Drops) == 0 {
		return nil, diag.New(diag.ClassInput, "solve: %s bounds quality and has rows of experts dropped, and no calibration "+
			"says what that costs", in.Workload.Title()).
			WithHint("measure it: hetc calibrate --drop --model DIR --text FILE -o cal.yaml, or leave overflow: drop out")
	}
	in.drops = &drops{}
	best, failed := Solve(ctx, in)
	if failed != nil && diag.ClassOf(failed) != diag.ClassInfeasible {
		return nil, failed
	}
	spent := 0.0
	if best != nil {
		for _, quality := range best.Plan.Quality {
			if quality.Phase == "prefill" {
				spent = quality.KL
			}
		}
	}
	tried := map[drops]bool{{}: true}
	for _, kl := range []float64{limit - spent, limit / 2, limit} {
		choice := drops{}
		choice.salience, choice.share = cal.MostDropped(kl, want.MaxDrop, want.Salience)
		if ppm(choice.share) == 0 {
			continue
		}
		choice.kl, _ = cal.DropLoss(choice.salience, choice.share)
		if tried[choice] || choice.kl > limit {
			continue
		}
		tried[choice] = true
		in.drops = &choice
		result, err := Solve(ctx, in)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		less := func() bool { return result.amountOf(in.Workload.Minimise) < best.amountOf(in.Workload.Minimise) }
		if err == nil && (best == nil || less()) {
			best = result
		}
	}
	if best == nil {
		return nil, unproved(failed)
	}
	return best, nil
}

// deductDropLoss subtracts the loss of dropped rows from the limit of quality of prompts.
func (in *Input) deductDropLoss(want *workload.Demand) {
	if in.drops != nil && want.MaxKL.Prefill > 0 {
		want.MaxKL.Prefill = max(workload.Lossless, want.MaxKL.Prefill-in.drops.kl)
	}
}

// dropLoss returns the loss of the decided tiers' dropped rows by the calibration, for the program and layer with the
// largest share of them. measured is false if the calibration does not reach that share.
func (in *Input) dropLoss() (kl float64, measured bool) {
	measured = true
	for i := range in.tiers {
		tiers := &in.tiers[i]
		if tiers.Overflow != planir.OverflowDrop {
			continue
		}
		for _, layer := range tiers.Layers {
			loss, known := in.Calibration.DropLoss(tiers.Salience, layer.Overflow)
			kl, measured = max(kl, loss), measured && known
		}
	}
	return kl, measured
}
