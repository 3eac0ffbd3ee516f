package trial

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
)

// Rules by which PruneCurve prunes shadow outliers.
const (
	ByWorth      = "worth"      // those that calibrate measured to be worth least: the optimum for each number of them
	ByImportance = "importance" // llm.npu's: those whose outliers reach least beyond the scale
	ByChance     = "random"
	ByBudget     = "budget" // the optimum within the work of those that importance keeps
)

// PruneOrders are all rules, in the order in which PruneCurve tries them.
var PruneOrders = []string{ByWorth, ByImportance, ByChance, ByBudget}

// PruneShares are the shares of products that PruneCurve prunes.
var PruneShares = []float64{0, 0.25, 0.5, 0.75, 0.85, 1}

// PrunePoint is what pruning a share of all shadow outliers in an order costs.
type PrunePoint struct {
	Order  string
	Share  float64
	Pruned int     // of the products
	Sum    float64 // mean divergence that the calibration adds up for them
	quality.Result
}

// PruneCurve executes the model on a text with every product in the scheme of shadow outliers, a share of them pruned
// in each order, and compares with float32. The calibration's own text would flatter it. Random is one order by seed.
func PruneCurve(ctx context.Context, model *Model, cal *calibration.Calibration, text *Text, seed uint64) (
	out []PrunePoint, err error,
) {
	products := model.products()
	for _, product := range products {
		if cal.Shadow(product.class, product.layer) == nil {
			return nil, diag.New(diag.ClassInput,
				"prune shadow outliers: the calibration does not say what those of %q in layer %d are worth",
				product.class, product.layer).
				WithHint("measure them: hetc calibrate --model DIR --text FILE --schemes %s -o cal.yaml", op.A8OQ8C)
		}
	}
	run, err := openComparison(ctx, model, text.Windows, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, run.close()) }()
	if err := run.reference(ctx); err != nil {
		return nil, err
	}
	measured := map[string]quality.Result{} // by what is pruned
	for _, order := range PruneOrders {
		for _, share := range PruneShares {
			away, err := model.prunedBy(ctx, cal, products, order, share, seed)
			if err != nil {
				return nil, err
			}
			point := PrunePoint{Order: order, Share: share, Pruned: len(away)}
			for product := range away {
				point.Sum += cal.Shadow(product.class, product.layer).KL
			}
			shadows := model.pruned(away, products)
			key := fmt.Sprint(shadows)
			if _, ok := measured[key]; !ok {
				if measured[key], err = run.prunedQuality(ctx, cal, shadows); err != nil {
					return nil, err
				}
			}
			point.Result = measured[key]
			out = append(out, point)
		}
	}
	return out, nil
}

// prunedBy returns the share of the products that a rule prunes; within a budget it may be more of them, or fewer.
func (m *Model) prunedBy(
	ctx context.Context, cal *calibration.Calibration, products []shadow, order string, share float64, seed uint64,
) (map[shadow]bool, error) {
	rank := make([]float64, len(products))
	random := rand.New(rand.NewPCG(seed, 0))
	for i, product := range products {
		worth := cal.Shadow(product.class, product.layer)
		switch order {
		case ByWorth:
			rank[i] = worth.KL
		case ByChance:
			rank[i] = random.Float64()
		default:
			rank[i] = worth.Ratio
		}
	}
	away := map[shadow]bool{}
	for _, i := range problem.PaperPrune(rank, share) {
		away[products[i]] = true
	}
	if order == ByBudget {
		return m.withinWork(ctx, cal, products, away)
	}
	return away, nil
}

// withinWork prunes those products whose measured worth adds up to least, while the shadows of the others multiply no
// more than those would that are not away: a knapsack (problem.Shadows).
func (m *Model) withinWork(
	ctx context.Context, cal *calibration.Calibration, products []shadow, away map[shadow]bool,
) (map[shadow]bool, error) {
	const lossUnit = 1e-12 // nats
	posed := problem.Shadows{Name: "work of shadow outliers"}
	for _, product := range products {
		work := product.work(cal)
		if !away[product] {
			posed.Max += work
		}
		lost := int64(math.Round(cal.Shadow(product.class, product.layer).KL / lossUnit))
		posed.Groups = append(posed.Groups, problem.ShadowGroup{
			Name:    fmt.Sprintf("%s in layer %d", product.class, product.layer),
			Options: []problem.ShadowOption{{Use: work}, {Cost: lost}}, // kept, pruned
		})
	}
	solution, err := exact.Engine{}.Shadows(ctx, &posed, problem.Limits{})
	if err != nil {
		return nil, err
	}
	out := map[shadow]bool{}
	for i, option := range solution.Options {
		if option == 1 {
			out[products[i]] = true
		}
	}
	return out, nil
}

// work returns how many products of numbers a row of the largest counted call takes beside a product: a channel beyond
// the scale for each column.
func (x shadow) work(cal *calibration.Calibration) int64 {
	channels := float64(op.OutlierChannels(x.channels))
	at := slices.IndexFunc(cal.Exceeding, func(counted calibration.Exceeding) bool {
		return counted.Class == x.class && counted.Layer == x.layer
	})
	if at >= 0 {
		counts := cal.Exceeding[at].Counts
		channels = counts[len(counts)-1].Mean
	}
	return max(1, int64(math.Round(channels*float64(x.columns))))
}

// prunedQuality compares the model with some shadow outliers pruned with the reference.
func (c *comparison) prunedQuality(
	ctx context.Context, cal *calibration.Calibration, shadows []planir.Shadow,
) (_ quality.Result, err error) {
	plan, err := c.PrunedPlan(len(c.compared[0].Tokens), func(node string) op.Scheme {
		if !c.takes(node, op.A8OQ8C) {
			return op.A8TQ8C
		}
		return op.A8OQ8C
	}, cal, shadows)
	if err != nil {
		return quality.Result{}, err
	}
	machine, err := c.Open(ctx, plan, cal, nil)
	if err != nil {
		return quality.Result{}, err
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	var tally quality.Tally
	if err := c.compare(ctx, "pruned", machine, &tally); err != nil {
		return quality.Result{}, err
	}
	return tally.Result()
}
