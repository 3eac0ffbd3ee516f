package trial

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
	"github.com/hetc/hetc/solver/problem"
)

// PruneOrders are the orders in which PruneCurve prunes shadow outliers: by what calibrate measured that they are worth,
// which is the optimum of added losses for each number of them; by llm.npu's importance; by chance.
var PruneOrders = []string{"worth", "importance", "random"}

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

// PruneCurve executes the model on a text with every product in the scheme of shadow outliers, a share of them pruned in
// each order, and compares with float32. The calibration's own text would flatter it. Random is one order by seed.
func PruneCurve(ctx context.Context, model *Model, cal *calibration.Calibration, text *Text, seed uint64) (
	out []PrunePoint, err error,
) {
	products := model.products()
	for _, x := range products {
		if cal.Shadow(x.class, x.layer) == nil {
			return nil, diag.New(diag.ClassInput,
				"prune shadow outliers: the calibration does not say what those of %q in layer %d are worth", x.class,
				x.layer).
				WithHint("measure them: hetc calibrate --model DIR --text FILE --schemes %s -o cal.yaml", op.A8OQ8C)
		}
	}
	window := len(text.Windows[0].Tokens)
	plan, err := model.Plan(window, Float32, nil)
	if err != nil {
		return nil, err
	}
	// The float32 machine stays open to the end: others share its packed weights.
	first, err := model.Open(ctx, plan, nil, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, first.Close()) }()
	reference, err := quality.NewReference()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, reference.Close()) }()
	for i, window := range text.Windows {
		if err := reference.Add(ctx, first.Machine, window); err != nil {
			return nil, fmt.Errorf("window %d: %w", i, err)
		}
	}
	measured := map[string]quality.Result{} // by what is pruned
	for _, order := range PruneOrders {
		for _, share := range PruneShares {
			away := model.prunedBy(cal, products, order, share, seed)
			point := PrunePoint{Order: order, Share: share, Pruned: len(away)}
			for x := range away {
				point.Sum += cal.Shadow(x.class, x.layer).KL
			}
			shadows := model.pruned(away, products)
			key := fmt.Sprint(shadows)
			if _, ok := measured[key]; !ok {
				if measured[key], err = model.prunedQuality(ctx, cal, reference, window, shadows); err != nil {
					return nil, err
				}
			}
			point.Result = measured[key]
			out = append(out, point)
		}
	}
	return out, nil
}

// prunedBy is a share of the products, those that an order prunes first.
func (m *Model) prunedBy(
	cal *calibration.Calibration, products []shadow, order string, share float64, seed uint64,
) map[shadow]bool {
	rank := make([]float64, len(products))
	random := rand.New(rand.NewPCG(seed, 0))
	for i, x := range products {
		switch worth := cal.Shadow(x.class, x.layer); order {
		case "worth":
			rank[i] = worth.KL
		case "importance":
			rank[i] = worth.Ratio
		default:
			rank[i] = random.Float64()
		}
	}
	away := map[shadow]bool{}
	for _, i := range problem.PaperPrune(rank, share) {
		away[products[i]] = true
	}
	return away
}

// prunedQuality compares the model with some shadow outliers pruned with a reference.
func (m *Model) prunedQuality(
	ctx context.Context, cal *calibration.Calibration, reference *quality.Reference, window int, shadows []planir.Shadow,
) (_ quality.Result, err error) {
	plan, err := m.PrunedPlan(window, func(node string) op.Scheme {
		if !m.takes(node, op.A8OQ8C) {
			return op.A8TQ8C
		}
		return op.A8OQ8C
	}, cal, shadows)
	if err != nil {
		return quality.Result{}, err
	}
	machine, err := m.Open(ctx, plan, cal, nil)
	if err != nil {
		return quality.Result{}, err
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	var tally quality.Tally
	for i := range reference.Windows() {
		if err := reference.Compare(ctx, machine.Machine, i, window, &tally); err != nil {
			return quality.Result{}, fmt.Errorf("window %d: %w", i, err)
		}
	}
	return tally.Result()
}
