package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
)

// shadow is a class of products in a layer, whose outliers may be computed beside it or clipped.
type shadow struct {
	class    string
	layer    int
	channels int // that enter
	columns  int // of the result
}

// shadows measures for every class and layer what its shadow outliers are worth: all compared windows are executed with
// the class in the scheme of shadow outliers, those of that layer clipped. before are the losses with all shadows.
func (c *calibrating) shadows(ctx context.Context, before map[candidate]*quality.Tally) error {
	list, err := c.shadowed()
	if err != nil {
		return err
	}
	graph := c.Graph()
	for _, x := range list {
		tally, err := c.measure(ctx, fmt.Sprintf("%s in layer %d clipped", x.class, x.layer),
			change{scheme: op.A8OQ8C, classes: []string{x.class}, folds: c.out.Folds, clips: c.out.Clips,
				pruned: c.pruned(map[shadow]bool{x: true}, []shadow{x})})
		if err != nil {
			return err
		}
		worth := quality.Difference(tally, before[candidate{x.class, op.A8OQ8C}])
		activation := c.out.Activation(x.class, x.layer)
		c.out.Shadows = append(c.out.Shadows, calibration.Shadow{
			Class: x.class, Layer: x.layer, KL: worth.Mean, Low: worth.Low, High: worth.High,
			Ratio: activation.Importance(c.dividedBy(&graph, x.class, x.layer), op.OutlierChannels(x.channels)),
		})
	}
	return nil
}

// exceeding counts on the compared windows, which the scales do not follow from, how many channels exceed the scale of
// shadow outliers of each class and layer that may have them.
func (c *calibrating) exceeding(ctx context.Context) (err error) {
	if !slices.Contains(c.o.Schemes, op.A8OQ8C) {
		return nil
	}
	plan, err := c.Plan(c.size, Float32, nil)
	if err != nil {
		return err
	}
	graph, products := c.Graph(), c.products()
	counts := quality.Exceeding{Limits: func(class string, layer int) []float32 {
		activation := c.out.Activation(class, layer)
		if activation == nil || !slices.ContainsFunc(products, func(x shadow) bool { return x.class == class }) {
			return nil
		}
		return activation.InnerLimits(c.dividedBy(&graph, class, layer), op.OutlierChannels(activation.K))
	}}
	machine, err := c.Open(ctx, plan, nil, counts.Observe)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	for i, window := range c.compared {
		if err := quality.Execute(ctx, machine.Machine, window); err != nil {
			return fmt.Errorf("window %d: %w", 2*i, err)
		}
		c.step("channels beyond scales")
	}
	c.out.Exceeding, err = counts.Counts()
	return err
}

// shadowed returns the classes and layers whose shadow outliers are measured: those with a static scale of their own,
// as pruning changes it.
func (c *calibrating) shadowed() ([]shadow, error) {
	if !slices.Contains(c.o.Schemes, op.A8OQ8C) {
		return nil, nil
	}
	classes, err := c.exclusive()
	if err != nil {
		return nil, err
	}
	var out []shadow
	for _, x := range c.products() {
		if slices.Contains(classes, x.class) {
			out = append(out, x)
		}
	}
	return out, nil
}

// products returns all classes of matrix products that may have shadow outliers, in each of their layers, in the order
// of classes.
func (m *Model) products() (out []shadow) {
	graph := m.Graph()
	for _, class := range m.Classes() {
		if !m.takes(class, op.A8OQ8C) {
			continue
		}
		for i := range graph.Sections {
			section := &graph.Sections[i]
			for _, node := range section.Nodes {
				if section.Name+"."+node.Name != class {
					continue
				}
				product := node.Ops[len(node.Ops)-1]
				for layer := range max(1, section.Layers) {
					out = append(out, shadow{class, section.First + layer, product.K, product.N})
				}
			}
		}
	}
	return out
}

// dividedBy returns the factors that a calibration's folds divide by what enters a class in a layer, nil where nothing
// is folded.
func (c *calibrating) dividedBy(graph *models.Graph, class string, layer int) []float32 {
	for _, group := range graph.Folds() {
		if slices.Contains(group.Readers, class) {
			if fold := c.out.Fold(group.Name, layer); fold != nil {
				return fold.Factors
			}
		}
	}
	return nil
}

// pruned says how a plan prunes some shadows: of all classes among them. all are those that there are of these classes.
func (m *Model) pruned(away map[shadow]bool, all []shadow) (out []planir.Shadow) {
	for _, class := range m.Classes() {
		some := slices.ContainsFunc(all, func(x shadow) bool { return x.class == class && away[x] })
		if !some {
			continue
		}
		out = append(out, planir.ShadowIn(class, m.Layers, func(layer int) bool {
			return slices.ContainsFunc(m.products(), func(x shadow) bool {
				return x.class == class && x.layer == layer && !away[x]
			})
		}))
	}
	slices.SortFunc(out, func(a, b planir.Shadow) int { return cmp.Compare(a.Node, b.Node) })
	return out
}
