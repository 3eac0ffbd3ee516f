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

// several are the numbers of static scales, beyond one, that the schemes have.
func several(schemes []op.Scheme) []int {
	var out []int
	for _, s := range schemes {
		if n := s.Scales(); n > 1 && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// choose observes the rows of the observed windows once more, divided by folds, and finds for every class and layer the
// static scales that schemes with several of them have.
func (c *calibrating) choose(ctx context.Context, folds []calibration.Fold) (_ []calibration.Scales, err error) {
	p, err := c.Plan(c.size, Float32, nil)
	if err != nil {
		return nil, err
	}
	group := map[string]string{}
	for _, g := range c.groups {
		for _, class := range g.Readers {
			group[class] = g.Name
		}
	}
	cal := calibration.Calibration{Folds: folds}
	rows := quality.RowScales{Factors: func(class string, layer int) []float32 {
		if f := cal.Fold(group[class], layer); f != nil {
			return f.Factors
		}
		return nil
	}}
	m, err := c.Open(ctx, p, nil, rows.Observe)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	for i, w := range c.observed {
		if err := quality.Execute(ctx, m.Machine, w); err != nil {
			return nil, fmt.Errorf("window %d: %w", 2*i+1, err)
		}
		c.step("scales of rows")
	}
	var out []calibration.Scales
	for i := range c.out.Activations {
		a := &c.out.Activations[i]
		samples, err := rows.Samples(a.Class, a.Layer)
		if err != nil {
			return nil, err
		}
		for _, n := range several(c.o.Schemes) {
			values, err := staticScales(samples, n)
			if err != nil {
				return nil, fmt.Errorf("static scales of %q in layer %d: %w", a.Class, a.Layer, err)
			}
			out = append(out, calibration.Scales{Class: a.Class, Layer: a.Layer, Values: values})
		}
	}
	return out, nil
}

// staticScales are n scales, ascending, with the least mean squared difference from the samples, of which each has the
// smallest that holds it. Where fewer have that, the last one is repeated.
func staticScales(samples []float64, n int) ([]float32, error) {
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
