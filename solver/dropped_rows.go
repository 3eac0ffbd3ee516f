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
	limit := in.Workload.Quality.MaxKL.Prefill
	switch {
	case limit == 0:
		in.drops = in.mostDrops()
		return Solve(ctx, in)
	case limit <= workload.Lossless: // nothing may be lost
		in.drops = &drops{}
		return Solve(ctx, in)
	case in.Calibration == nil || len(in.Calibration.Drops) == 0:
		return nil, diag.New(diag.ClassInput,
			"solve: %s bounds quality and has rows of experts dropped, and no calibration says what that costs",
			in.Workload.Title()).
			WithHint("measure it: hetc calibrate --drop --model DIR --text FILE -o cal.yaml, " +
				"or leave overflow: drop out")
	}

	in.drops = &drops{}
	best, failed := Solve(ctx, in)
	if failed != nil && diag.ClassOf(failed) != diag.ClassInfeasible {
		return nil, failed
	}

	tried := map[drops]bool{{}: true}
	for _, kl := range []float64{limit - best.prefillKL(), limit / 2, limit} {
		choice := in.dropsWithin(kl)
		if tried[choice] || choice.kl > limit {
			continue
		}

		tried[choice] = true
		in.drops = &choice
		result, err := Solve(ctx, in)
		if isRefusal(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if best == nil || result.amountOf(in.Workload.Minimise) < best.amountOf(in.Workload.Minimise) {
			best = result
		}
	}

	if best == nil {
		return nil, unproved(failed)
	}
	return best, nil
}

// mostDrops returns the largest share that the workload permits, by the rule that it names or that loses least.
func (in *Input) mostDrops() *drops {
	want := &in.Workload.Experts
	rule := want.Salience
	if in.Calibration != nil && rule == "" {
		rule, _ = in.Calibration.MostDropped(workload.LargestKL, want.MaxDrop, "")
	}
	return &drops{salience: cmp.Or(rule, op.SalienceWeight), share: want.MaxDrop}
}

// dropsWithin returns the largest share that loses no more than kl by the calibration; no drops if that is nothing.
func (in *Input) dropsWithin(kl float64) drops {
	want := &in.Workload.Experts
	rule, share := in.Calibration.MostDropped(kl, want.MaxDrop, want.Salience)
	if ppm(share) == 0 {
		return drops{}
	}
	lost, _ := in.Calibration.DropLoss(rule, share)
	return drops{salience: rule, share: share, kl: lost}
}

// prefillKL returns what prompts lose by a plan; 0 for none.
func (r *Result) prefillKL() (kl float64) {
	if r == nil {
		return 0
	}
	for _, quality := range r.Plan.Quality {
		if quality.Phase == "prefill" {
			kl = quality.KL
		}
	}
	return kl
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
