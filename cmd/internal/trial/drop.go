package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/quality"
)

// DropShares are the shares of dropped rows for which losses are measured where nothing else is said.
var DropShares = []float64{0, 0.01, 0.02, 0.05, 0.1, 0.2}

// DropOptions say what MeasureDrops measures.
type DropOptions struct {
	Text   *Text
	Shares []float64 // of the rows that routers send to experts, each at least 0 and below 1
	Rules  []string  // of op.Saliences
	// Progress is called after every window that was executed: done of all, and what the next ones are for.
	Progress func(done, all int, what string)
}

// DropResult is what dropping a share of the rows of experts by a rule costs, against the model in float32.
type DropResult struct {
	Salience string  `json:"salience"`
	Share    float64 `json:"share"`   // asked for, where routing is that of the observed windows
	Dropped  float64 `json:"dropped"` // of the rows that were routed in the compared windows
	Groups   string  `json:"groups"`
	quality.Result
}

// MeasureDrops executes plans whose capacity tiers drop rows of experts (NPUMoE 4.1), and compares them with the model
// in float32. The observed windows show how many rows routers send to each expert. Slots are made for these loads, and
// losses are measured on the windows between. The slots are the paper's: the experts of a layer in four quarters by
// load. A quarter's slots have a multiple of the mean rows of its busiest expert. The multiple is chosen so that the
// share is dropped.
func MeasureDrops(ctx context.Context, model *Model, options DropOptions) (_ []DropResult, err error) {
	if model.Experts < 2 {
		return nil, diag.New(diag.ClassInput, "model %q has %d experts, and rows are dropped among several", model.Name,
			model.Experts).WithHint("hetc models list shows which have")
	}
	observed, compared, err := options.Text.halves(shorterWindows)
	if err != nil {
		return nil, err
	}
	size := len(compared[0].Tokens)
	routes, counting := quality.Routes{Tokens: size}, true
	run, err := openComparison(ctx, model, compared, func(seen executor.Observed) {
		if counting {
			routes.Observe(seen)
		}
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, run.close()) }()
	run.progress = options.Progress
	run.all = len(observed) + len(compared)*(1+len(options.Rules)*len(options.Shares))
	if err := run.observe(ctx, observed, "loads"); err != nil {
		return nil, err
	}
	counting = false
	ranked, err := rankLoads(&routes)
	if err != nil {
		return nil, err
	}
	if err := run.reference(ctx); err != nil {
		return nil, err
	}
	var out []DropResult
	for _, rule := range options.Rules {
		for _, share := range options.Shares {
			tiers := ranked.tiers(size, share)
			tiers.Salience = rule
			what := fmt.Sprintf("%.3g %% by %s", 100*share, rule)
			result := DropResult{Salience: rule, Share: share, Groups: string(tiers.Shape())}
			if err := run.measureDrop(ctx, what, *tiers, &result); err != nil {
				return nil, fmt.Errorf("%s: %w", what, err)
			}
			out = append(out, result)
		}
	}
	return out, nil
}

// measureDrop compares the windows with tiers, and says in the result what is dropped and lost.
func (c *comparison) measureDrop(
	ctx context.Context, what string, tiers planir.ExpertTiers, result *DropResult,
) (err error) {
	plan, err := c.planned(tiers.Rows, op.F32, Float32, nil, nil, tiers)
	if err != nil {
		return err
	}
	machine, err := c.Open(ctx, plan, nil, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	var tally quality.Tally
	if err := c.compare(ctx, what, machine, &tally); err != nil {
		return err
	}
	var routed, dropped int64
	for _, layer := range machine.Experts() {
		routed, dropped = routed+layer.Routed, dropped+layer.Dropped
	}
	result.Dropped = float64(dropped) / float64(max(1, routed))
	result.Result, err = tally.Result()
	return err
}

// rankedLoads are the rows that experts were sent, with the experts of each layer by their load.
type rankedLoads struct {
	layers []int
	order  [][]int     // by layer: experts, the busiest first
	rows   [][][]int32 // by layer, rank and window

	// by quarter: how many experts it has, and the mean rows of its busiest one over all layers
	size []int
	mean []float64
}

// rankLoads ranks the experts of what was routed.
func rankLoads(routes *quality.Routes) (*rankedLoads, error) {
	out := &rankedLoads{layers: routes.Layers()}
	for _, layer := range out.layers {
		rows, err := routes.Rows(layer)
		if err != nil {
			return nil, err
		}
		order := make([]int, len(rows))
		for expert := range order {
			order[expert] = expert
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(sum(rows[b]), sum(rows[a])) })
		ranked := make([][]int32, len(rows))
		for rank, expert := range order {
			ranked[rank] = rows[expert]
		}
		out.order, out.rows = append(out.order, order), append(out.rows, ranked)
	}
	experts := len(out.order[0])
	for from, part := 0, 1; part <= 4; part++ {
		to := experts * part / 4
		if to == from {
			continue
		}
		mean := 0.0
		for _, ranked := range out.rows {
			mean += float64(sum(ranked[from])) / float64(len(ranked[from])*len(out.rows))
		}
		out.size, out.mean = append(out.size, to-from), append(out.mean, mean)
		from = to
	}
	return out, nil
}

// sum adds numbers.
func sum(list []int32) (out int64) {
	for _, number := range list {
		out += int64(number)
	}
	return out
}

// tiers returns those of windows of so many tokens that drop about a share of the observed rows: nothing for a share of
// 0, whatever is routed.
func (l *rankedLoads) tiers(tokens int, share float64) *planir.ExpertTiers {
	out := &planir.ExpertTiers{Rows: tokens, Loads: "traced", Experts: len(l.order[0]), Overflow: planir.OverflowDrop,
		Status: "feasible"}
	capacities := func(multiple float64) (rows []int) {
		for _, mean := range l.mean {
			rows = append(rows, min(tokens, int(math.Ceil(multiple*mean))))
		}
		return rows
	}
	best := slices.Repeat([]int{tokens}, len(l.mean))
	if share > 0 {
		const steps = 128 // of a multiple of 1
		nearest := math.Inf(1)
		for i := 1; i <= 16*steps; i++ {
			rows := capacities(float64(i) / steps)
			if off := math.Abs(l.dropped(rows) - share); off < nearest {
				nearest, best = off, rows
			}
		}
	}
	for tier, rows := range best {
		out.Groups = append(out.Groups, planir.ExpertGroup{Slots: l.size[tier], Rows: max(1, rows)})
	}
	for i, layer := range l.layers {
		out.Layers = append(out.Layers, planir.ExpertLayer{Layer: layer, Slots: l.order[i], Moved: 1})
	}
	return out
}

// dropped returns the share of the observed rows beyond the capacities of the quarters.
func (l *rankedLoads) dropped(capacities []int) float64 {
	var routed, beyond int64
	for _, ranked := range l.rows {
		rank := 0
		for tier, size := range l.size {
			for range size {
				for _, rows := range ranked[rank] {
					routed += int64(rows)
					beyond += int64(max(0, int(rows)-capacities[tier]))
				}
				rank++
			}
		}
	}
	return float64(beyond) / float64(max(1, routed))
}

// CalibrateDrops returns the losses of MeasureDrops as a calibration keeps them, by what was really dropped: for each
// rule ascending, without those of no dropped row. In a short text several shares may be dropped alike: the first
// counts.
func CalibrateDrops(results []DropResult) (out []calibration.DropLoss) {
	for i := range results {
		if result := &results[i]; result.Dropped > 0 {
			out = append(out, calibration.DropLoss{Salience: result.Salience, Share: result.Dropped,
				KL: result.KL.Mean, Low: result.KL.Low, High: result.KL.High,
				TopAgreement: result.TopAgreement.Mean, PerplexityRatio: result.PerplexityRatio.Mean})
		}
	}
	slices.SortStableFunc(out, func(a, b calibration.DropLoss) int {
		return cmp.Or(cmp.Compare(a.Salience, b.Salience), cmp.Compare(a.Share, b.Share))
	})
	return slices.CompactFunc(out, func(a, b calibration.DropLoss) bool {
		return a.Salience == b.Salience && a.Share == b.Share
	})
}
