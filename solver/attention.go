package solver

import (
	"context"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// attention says how a solve decides about attention; it is nil before the workload is known.
type attention struct {
	planir.Attention         // of no density: every program is dense
	every            bool    // program of a prompt is sparse, else those of Rows
	decode           bool    // the program that decodes one sequence is sparse
	kl               float64 // what it loses in prompts, in nats a token
	decodeKL         float64 // what it loses where the rest does not count, as when decoding
}

// sparse reports whether the program of that many rows has sparse attention. Batches have none.
func (a *attention) sparse(rows int, decodes bool) bool {
	switch {
	case a == nil || a.Density == 0:
		return false
	case decodes:
		return rows == 1 && a.decode
	}
	return a.every || slices.Contains(a.Rows, rows)
}

// solveAttention decides which programs have sparse attention (shadowAttn). Prompts of few tokens are faster without
// it, and so is decoding over few positions, because all scores are estimated before the selected ones are computed. So
// it solves with dense attention everywhere and with sparse attention wherever that is possible. It compares the
// predicted time of each program (energy, where that is minimised), and solves again with the better kind in each. Of
// these plans it returns the one that takes least, and among equal ones the densest; the sparse one where no dense one
// keeps the limits. With attention "sparse" prompts are sparse in any case, as in the paper.
func solveAttention(ctx context.Context, in Input) (*Result, error) {
	chosen, err := in.density()
	if in.Workload.Attention == workload.AttentionSparse {
		if err != nil {
			return nil, err
		}
		in.attention = chosen
		return Solve(ctx, in)
	}

	in.attention = &attention{}
	dense, failed := Solve(ctx, in)
	sparseMayHelp := err == nil && diag.ClassOf(failed) == diag.ClassInfeasible
	if failed != nil && !sparseMayHelp {
		return nil, failed
	}
	if err != nil {
		dense.Warnings = append(dense.Warnings, warning("attention is dense: %v", err))
		return dense, nil
	}

	chosen.decode = in.mayDecodeSparsely(chosen)
	sparse, err := in.solveSparse(ctx, chosen)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && !isRefusal(err):
		return nil, err
	case failed != nil && err != nil: // dense attention breaks a limit, and sparse attention is no way out
		return nil, unproved(failed)
	case failed != nil:
		return sparse, nil
	case err != nil:
		dense.Warnings = append(dense.Warnings, warning("attention is dense: no plan selects positions: %v", err))
		return dense, nil
	}

	plans := []*Result{dense, sparse}
	mixed, err := in.solveMixed(ctx, chosen, sparse.Plan, dense.Plan)
	if err != nil {
		return nil, err
	}
	if mixed != nil {
		plans = append(plans, mixed)
	}

	best := dense
	for _, result := range plans {
		if result.amountOf(in.Workload.Minimise) < best.amountOf(in.Workload.Minimise) {
			best = result
		}
	}
	return best, nil
}

// solveSparse solves with sparse attention in every program that may have it. Decode stays dense if its measurement is
// missing, or if no plan can have sparse decode.
func (in Input) solveSparse(ctx context.Context, at *attention) (*Result, error) {
	in.attention = at
	result, err := Solve(ctx, in)
	if !at.decode || !isRefusal(err) {
		return result, err
	}
	at.decode = false
	return Solve(ctx, in)
}

// solveMixed solves with sparse attention in the programs that take less with it, and with dense attention in the
// others. The result is nil if one kind takes less in all programs, or if the mixture has no plan.
func (in Input) solveMixed(ctx context.Context, chosen *attention, sparse, dense *planir.Plan) (*Result, error) {
	rows := sparseRows(sparse, dense, in.Workload.Minimise)
	if len(rows) == 0 || len(rows) == len(sparse.Attention.Rows) {
		return nil, nil
	}
	mixed := *chosen
	mixed.every, mixed.Rows, mixed.decode = false, rows, rows[0] == 1
	in.attention = &mixed
	result, err := Solve(ctx, in)
	if isRefusal(err) {
		return nil, nil
	}
	return result, err
}

// isRefusal reports whether an error of a solve says that this choice has no plan, so that others count. Defects and
// interruptions end the whole solve.
func isRefusal(err error) bool {
	switch diag.ClassOf(err) {
	case diag.ClassInfeasible, diag.ClassInput, diag.ClassUnavailable:
		return err != nil
	}
	return false
}

// mayDecodeSparsely reports whether the program that decodes one sequence may select positions. The loss must be known
// and within the limit of quality, and no batch may exist: batches are dense, so a sequence would get other logits in a
// batch than alone.
func (in *Input) mayDecodeSparsely(at *attention) bool {
	if len(in.Workload.Batches) > 0 {
		return false
	}
	limit := in.Workload.Quality.MaxKL.Decode
	return limit == 0 || at.decodeKL > 0 && at.decodeKL < limit
}

// warning makes a warning for a result.
func warning(format string, args ...any) *diag.Diagnostic {
	out := diag.New(diag.ClassInput, format, args...)
	out.Severity = diag.Warning
	return out
}

// sparseRows returns the rows of the programs with sparse attention that are predicted to take less than those of the
// same name of another plan, or that it does not have: less energy where that is minimised, else less time.
func sparseRows(sparse, dense *planir.Plan, minimised problem.Measure) (rows []int) {
	takes := func(prediction *planir.Prediction) int64 {
		if minimised == problem.Energy {
			return prediction.EnergyUJ
		}
		return prediction.PlanNS
	}
	before := map[string]int64{}
	for i := range dense.Predictions {
		before[dense.Predictions[i].Program] = takes(&dense.Predictions[i])
	}

	for _, program := range sparse.Program.Programs {
		if !sparse.Sparse(program.Rows) {
			continue
		}
		for i := range sparse.Predictions {
			prediction := &sparse.Predictions[i]
			if prediction.Program != program.Name {
				continue
			}
			if most, both := before[program.Name]; !both || takes(prediction) < most {
				rows = append(rows, program.Rows)
			}
		}
	}
	slices.Sort(rows)
	return rows
}

// density returns the share of positions that sparse attention keeps, and the least number of them. If the workload
// says a density, it is that one. Otherwise it is, of the densities within the limit of quality by the calibration, the
// one with which prompts attend to fewest positions.
func (in *Input) density() (*attention, error) {
	want := in.Workload
	if in.Calibration == nil || in.Calibration.Attention == nil {
		return nil, diag.New(diag.ClassInput,
			"solve: %s has attention %q, and no calibration says how heads are rounded and "+
				"what they need", want.Title(), want.Attention).
			WithHint("measure it with hetc calibrate --attention --model DIR --text FILE -o cal.yaml, " +
				"and give it with --calibration cal.yaml")
	}

	measured, limit := in.Calibration.Attention, want.Quality.MaxKL.Prefill
	buckets := want.ScaleBuckets
	if buckets == 1 {
		buckets = 0
	}
	out := &attention{Attention: planir.Attention{Density: want.Density, Block: measured.Block, Buckets: buckets},
		every: true}

	demand, err := want.Apply(in.Model.MaxContext)
	if err != nil {
		return nil, err
	}
	if out.chooseDensity(measured, demand, limit) || want.Density > 0 && limit == 0 {
		out.Estimated = measured.Estimated(out.Density)
		return out, nil
	}
	if want.Density == 0 && limit == 0 {
		return nil, diag.New(diag.ClassInput,
			"solve: %s has attention %q, and neither a density nor a limit of quality",
			want.Title(), want.Attention).
			WithHint("add density: 0.2 or quality: {max_kl: {prefill: ...}} to the workload")
	}
	return nil, diag.New(diag.ClassInfeasible,
		"solve: %s has attention %q, and no density that the calibration measured (%v) "+
			"loses less than the %v nats a token that prefill may", want.Title(), want.Attention, measured.Densities,
		limit).
		WithHint("raise quality.max_kl.prefill, or leave density and attention out")
}

// chooseDensity takes, of the measured densities that lose less than limit, the one with which prompts attend to fewest
// positions. If a density is asked for it considers only that one, and a limit of 0 means no limit then. It returns
// false if there is none.
func (a *attention) chooseDensity(measured *calibration.Attention, demand *workload.Demand, limit float64) bool {
	asked, fewest := a.Density, int64(math.MaxInt64)
	for i := range measured.Losses {
		loss := &measured.Losses[i]
		within := loss.KL < limit
		if limit == 0 { // a density alone: nothing asks for a least number
			within = asked > 0 && loss.Least == 0
		}
		isAsked := asked == 0 || loss.Density == asked
		if !within || !isAsked {
			continue
		}

		// Of the two rules that plans may have, the one that loses less.
		alone := measured.DensityLoss(calibration.RuleHeads, loss.Density, loss.Least)
		rest := measured.DensityLoss(calibration.RuleRest, loss.Density, loss.Least)
		better := alone
		if alone == nil || rest != nil && rest.KL < alone.KL {
			better = rest
		}
		if loss != better {
			continue
		}

		attended := attendedPairs(demand, loss, measured.Block)
		losesLess := attended == fewest && loss.KL < a.kl
		if attended >= fewest && !losesLess {
			continue
		}
		fewest = attended
		a.Density, a.Least, a.kl, a.Rest, a.decodeKL = loss.Density, loss.Least, loss.KL, loss == rest, 0
		if alone != nil {
			a.decodeKL = alone.KL
		}
	}
	return fewest < math.MaxInt64
}

// attendedPairs returns a number proportional to the pairs of a query and a position that sparse attention computes in
// the prompts of a workload. Without prompts it assumes one prompt that fills the context.
func attendedPairs(demand *workload.Demand, loss *calibration.DensityLoss, block int) (sum int64) {
	pairs := func(tokens int) int64 {
		return op.Op{Kind: op.SparseAttend, M: tokens, Heads: 1, KVHeads: 1, HeadDim: 1, Context: tokens, Block: block,
			Density: loss.Density, Least: loss.Least}.Flops()
	}
	if len(demand.Prompts) == 0 {
		return pairs(demand.Context)
	}
	for _, prompt := range demand.Prompts {
		sum += int64(prompt.Share * float64(pairs(prompt.Tokens)))
	}
	return sum
}

// deductAttentionLoss subtracts the loss of sparse attention from the limits of quality of the phases that have it.
func (in *Input) deductAttentionLoss(want *workload.Demand) {
	if in.attention == nil {
		return
	}
	pay := func(limit *float64, loss float64) {
		if *limit > 0 {
			*limit = max(workload.Lossless, *limit-loss)
		}
	}
	pay(&want.MaxKL.Prefill, in.attention.kl)
	if in.attention.decode {
		pay(&want.MaxKL.Decode, in.attention.decodeKL)
	}
}

// attentionOf returns what a plan with programs of these buckets says about attention, nil where all of it is dense.
func (s *request) attentionOf() *planir.Attention {
	at := s.in.attention
	if at == nil || at.Density == 0 {
		return nil
	}
	out := new(at.Attention)
	out.Rows = nil
	for _, rows := range s.want.Rows() {
		if s.sparse(rows) {
			out.Rows = append(out.Rows, rows)
		}
	}

	if len(out.Rows) == 0 {
		return nil
	}
	slices.Sort(out.Rows)
	return out
}

// sparse reports whether the program of that many rows has sparse attention.
func (s *request) sparse(rows int) bool { return s.in.attention.sparse(rows, s.decodes(rows)) }
