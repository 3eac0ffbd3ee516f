package trial

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
)

// strengths are tried for every group: how much of what sticks out moves from the activations to the weights, 0 to 1
// (alpha of SmoothQuant sec. 4.1).
var strengths = []float64{0.35, 0.5, 0.65}

// leastGain is the share of a loss that a fold must save to be kept.
const leastGain = 0.05

// fold tries to fold a group and keeps what helps: the strength that saves most of the first scheme's loss, a
// share of it at least and beyond noise, among those with which no other scheme loses more, beyond noise. unfolded
// are the losses of single classes.
func (c *calibrating) fold(
	ctx context.Context, group *models.FoldGroup, schemes []op.Scheme, unfolded map[candidate]*quality.Tally,
) error {
	// one reader's loss is known; several need a measurement together
	var before []*quality.Tally // by scheme
	for _, scheme := range schemes {
		tally := unfolded[candidate{group.Readers[0], scheme}]
		if len(group.Readers) > 1 {
			var err error
			if tally, err = c.measure(ctx, group.Name, change{scheme: scheme, classes: group.Readers}); err != nil {
				return err
			}
		}
		before = append(before, tally)
	}
	// What channels meet in the weights: a factor moves range from one to the other.
	top, err := c.rowMax(group)
	if err != nil {
		return err
	}
	type try struct {
		folds []calibration.Fold
		kl    float64
	}
	var tries []try
	for _, strength := range strengths {
		folds, err := c.factors(group, top, strength)
		if err != nil {
			return err
		}
		tally, err := c.measure(ctx, group.Name+" folded",
			change{scheme: schemes[0], classes: group.Readers, folds: folds})
		if err != nil {
			return err
		}
		if tally.KL() <= before[0].KL()*(1-leastGain) && quality.Ratio(tally, before[0]).High < 1 {
			tries = append(tries, try{folds, tally.KL()})
		}
	}
	// the best strength with which no other scheme loses more
	slices.SortStableFunc(tries, func(a, b try) int { return cmp.Compare(a.kl, b.kl) })
	for _, try := range tries {
		ok := true
		for i := 1; ok && i < len(schemes); i++ {
			tally, err := c.measure(ctx, group.Name+" folded",
				change{scheme: schemes[i], classes: group.Readers, folds: try.folds})
			if err != nil {
				return err
			}
			ok = quality.Ratio(tally, before[i]).Low <= 1
		}
		if ok {
			c.out.Folds = append(c.out.Folds, try.folds...)
			break
		}
	}
	return nil
}

// layers returns those in which a group has readers.
func (c *calibrating) layers(group *models.FoldGroup) []int {
	var out []int
	graph := c.Graph()
	for _, class := range group.Readers {
		section, _, _ := strings.Cut(class, ".")
		for _, part := range graph.Sections {
			if part.Name != section {
				continue
			}
			for l := range max(1, part.Layers) {
				if !slices.Contains(out, part.First+l) {
					out = append(out, part.First+l)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// rowMax returns the largest magnitude in every row of the weights that a group multiplies, by layer.
func (c *calibrating) rowMax(group *models.FoldGroup) (map[int][]float32, error) {
	graph := c.Graph()
	out := map[int][]float32{}
	for _, layer := range c.layers(group) {
		top := make([]float32, group.K)
		for _, name := range group.Multiply {
			weight := graph.Weight(name)
			for e := range max(1, weight.Experts) {
				for _, source := range weight.Sources(layer, e) {
					tensor, err := c.Tensor(source)
					if err != nil { // weights of other layers
						continue
					}
					if err := addRowMax(top, tensor, weight.Transposed); err != nil {
						return nil, err
					}
				}
			}
		}
		out[layer] = top
	}
	return out, nil
}

// addRowMax raises top [K] to the largest magnitudes of a stored matrix [K,N], or [N,K] if transposed.
func addRowMax(top []float32, tensor models.Tensor, transposed bool) error {
	rows, cols := tensor.Shape()[0], tensor.Shape()[len(tensor.Shape())-1]
	// top has an entry for each channel that is read, whichever way the matrix lies
	at := rows
	if transposed {
		at = cols
	}
	if at != len(top) || len(tensor.Shape()) != 2 {
		return fmt.Errorf("weight of shape %v is read by a group of %d channels", tensor.Shape(), len(top))
	}
	buf := make([]float32, cols)
	for row := range rows {
		if err := tensor.Read(buf, row, row+1, 0, cols); err != nil {
			return err
		}
		for i, value := range buf {
			at := row
			if transposed {
				at = i
			}
			top[at] = max(top[at], float32(math.Abs(float64(value))))
		}
	}
	return nil
}

// factors returns those of a group at a strength: the largest activation of a channel to its power, over the largest
// weight to the rest of it (SmoothQuant eq. 4), in units of their geometric mean. Channels that are silent or
// read by nothing have factor 1.
func (c *calibrating) factors(
	group *models.FoldGroup, top map[int][]float32, strength float64,
) ([]calibration.Fold, error) {
	var out []calibration.Fold
	for _, layer := range c.layers(group) {
		var activation *calibration.Activation
		for _, class := range group.Readers {
			if activation == nil {
				activation = c.out.Activation(class, layer)
			}
		}
		if activation == nil || activation.K != group.K {
			return nil, fmt.Errorf("group %q in layer %d was not observed", group.Name, layer)
		}
		// logarithms, so that the mean is that of the factors' product
		logs, mean, live := make([]float64, activation.K), 0.0, 0
		for i, x := range activation.AbsMax {
			if x > 0 && top[layer][i] > 0 {
				logs[i] = strength*math.Log(float64(x)) - (1-strength)*math.Log(float64(top[layer][i]))
				mean += logs[i]
				live++
			}
		}
		fold := calibration.Fold{Group: group.Name, Layer: layer, Factors: make([]float32, activation.K)}
		for i, x := range activation.AbsMax {
			fold.Factors[i] = 1
			if x > 0 && top[layer][i] > 0 {
				fold.Factors[i] = float32(min(calibration.MaxFactor,
					max(calibration.MinFactor, math.Exp(logs[i]-mean/float64(live)))))
			}
		}
		out = append(out, fold)
	}
	return out, nil
}
