package trial

import (
	"context"
	"slices"

	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
)

// shares are tried in turn: how much of the observed range static scales cover.
var shares = []float32{0.85, 0.7, 0.6, 0.5, 0.4, 0.3}

// clip finds for every class whether static scales that cover a part of the range lose less, as the calibration's
// folds leave it: shares are tried from the largest as long as each saves a part of the loss, beyond noise. before
// are the losses without.
func (c *calibrating) clip(ctx context.Context, before map[candidate]*quality.Tally) error {
	if !slices.Contains(c.o.Schemes, op.A8SQ8C) {
		return nil
	}
	scheme, folded := op.A8SQ8C, len(c.out.Folds) > 0
	classes, err := c.exclusive()
	if err != nil {
		return err
	}
	unneeded := func(runs int) { c.all -= runs * len(c.compared) }
	unneeded(len(shares) * (len(c.Classes()) - len(classes)))
	for _, class := range classes {
		tried := candidate{class, scheme}
		best, found := before[tried], float32(1)
		// from the largest share on, until one helps no more
		for at, share := range shares {
			tally, err := c.measure(ctx, class+" clipped", change{scheme: scheme, classes: tried.classes(),
				folds: c.out.Folds, clips: []calibration.Clip{{Class: class, Share: share}}})
			if err != nil {
				return err
			}
			// A gain must be large enough to matter and certain beyond the interval of the ratio.
			if !(tally.KL() <= best.KL()*(1-leastGain)) || quality.Ratio(tally, best).High >= 1 {
				unneeded(len(shares) - 1 - at)
				break
			}
			best, found = tally, share
		}
		if found == 1 {
			continue
		}
		c.out.Clips = append(c.out.Clips, calibration.Clip{Class: class, Share: found})
		if err := c.lose(tried, best, folded); err != nil {
			return err
		}
	}
	if len(c.out.Clips) == 0 {
		unneeded(1)
		return nil
	}
	// the loss of all classes together, with every clip
	tried := candidate{calibration.All, scheme}
	tally, err := c.measure(ctx, tried.class+" clipped",
		change{scheme: scheme, folds: c.out.Folds, clips: c.out.Clips})
	if err != nil {
		return err
	}
	return c.lose(tried, tally, folded)
}

// clipRuns returns how often all windows are executed to find clips at most.
func (c *calibrating) clipRuns() int {
	if !slices.Contains(c.o.Schemes, op.A8SQ8C) { // 16-bit grids have room, and nothing to gain
		return 0
	}
	return len(shares)*len(c.Classes()) + 1
}

// exclusive returns the classes with rows of their own: those that share quantised rows with another share their scale.
func (c *calibrating) exclusive() ([]string, error) {
	graph := c.Graph()
	// Lowering decides which products share quantised rows, so it is asked instead of guessed.
	sections, err := lower.Expand(&graph, c.size, c.size, op.F32, func(string) op.Scheme { return op.A8SQ8C }, nil, nil)
	if err != nil {
		return nil, err
	}
	readers := map[string][]string{} // by weight that is the scale
	for i := range sections {
		scale := map[string]string{} // by value
		for _, node := range sections[i].Nodes {
			switch operator := node.Op(); {
			case operator.Kind == op.QuantRows:
				scale[node.Out[0]] = node.W[0]
			case operator.HasScheme() && operator.Scheme.Static():
				w := scale[node.In[0]]
				readers[w] = append(readers[w], node.Name)
			}
		}
	}
	return slices.DeleteFunc(c.Classes(), func(class string) bool {
		return slices.ContainsFunc(readers[lower.ScaleWeight(class, 1)], func(r string) bool { return r != class }) ||
			len(readers[lower.ScaleWeight(class, 1)]) == 0
	}), nil
}
