package trial

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
)

// several returns the numbers of static scales, beyond one, that the schemes have.
func several(schemes []op.Scheme) []int {
	var out []int
	for _, scheme := range schemes {
		if n := scheme.Scales(); n > 1 && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// choose observes the rows of the observed windows once more, divided by folds, and finds for every class and layer the
// static scales that schemes with several of them have.
func (c *calibrating) choose(ctx context.Context, folds []calibration.Fold) (_ []calibration.Scales, err error) {
	plan, err := c.Plan(c.size, Float32, nil)
	if err != nil {
		return nil, err
	}
	// the group of folds that divides what a class reads
	group := map[string]string{}
	for _, folded := range c.groups {
		for _, class := range folded.Readers {
			group[class] = folded.Name
		}
	}
	cal := calibration.Calibration{Folds: folds}
	rows := quality.RowScales{Factors: func(class string, layer int) []float32 {
		if fold := cal.Fold(group[class], layer); fold != nil {
			return fold.Factors
		}
		return nil
	}}
	machine, err := c.Open(ctx, plan, nil, rows.Observe)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	// The scales of rows follow from float32 activations, so one execution serves every scheme.
	for i, window := range c.observed {
		if err := quality.Execute(ctx, machine.Machine, window); err != nil {
			return nil, fmt.Errorf("window %d: %w", 2*i+1, err)
		}
		c.step("scales of rows")
	}
	var out []calibration.Scales
	for i := range c.out.Activations {
		activation := &c.out.Activations[i]
		samples, err := rows.Samples(activation.Class, activation.Layer)
		if err != nil {
			return nil, err
		}
		for _, n := range several(c.o.Schemes) {
			values, err := staticScales(samples, n)
			if err != nil {
				return nil, fmt.Errorf("static scales of %q in layer %d: %w", activation.Class, activation.Layer, err)
			}
			out = append(out, calibration.Scales{Class: activation.Class, Layer: activation.Layer, Values: values})
		}
	}
	return out, nil
}

// staticScales are n scales, ascending, with the least mean squared difference from the samples, of which each has the
// smallest that holds it. Where fewer have that, the last one is repeated.
func staticScales(samples []float64, n int) ([]float32, error) {
	// Clustering in one dimension under the condition that every sample is covered.
	best, err := exact.Scales(&problem.Scales{Samples: samples, K: n, Cover: true})
	if err != nil {
		return nil, err
	}
	var out []float32
	for _, s := range best.Scales {
		v := float32(min(s, math.MaxFloat32))
		if v == 0 {
			v = 1 // nothing but zeros
		}
		out = append(out, v)
	}
	slices.Sort(out)
	for len(out) < n {
		out = append(out, out[len(out)-1])
	}
	return out, nil
}
