package emit

import (
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// checkCalibration refuses a calibration (nil: none) other than the one that the plan was made with.
func checkCalibration(p *planir.Plan, cal *calibration.Calibration) error {
	want := p.Calibration()
	if cal == nil {
		if want == "" {
			return nil
		}
		return diag.New(diag.ClassInput, "pack weights: the plan was made with calibration %.12s, and none is given", want).
			WithHint("pass the calibration the plan was solved with: --calibration cal.yaml")
	}
	got, err := cal.Digest()
	if err != nil {
		return err
	}
	switch want {
	case got:
		return cal.CheckModel(p.Model.Name, p.Model.Digest)
	case "":
		return diag.New(diag.ClassInput, "pack weights: calibration %.12s is given, and the plan was made without one", got).
			WithHint("solve again with --calibration, or leave it out here")
	}
	return diag.New(diag.ClassInput, "pack weights: calibration has digest %.12s, want %.12s, with which the plan was made", got, want).
		WithHint("give the file that hetc solve read, or solve again with this one")
}

// factors are those of a fold group in a layer (-1: of none), nil where nothing is folded.
func (c *Content) factors(group string, layer, want int) ([]float32, error) {
	if group == "" {
		return nil, nil
	}
	f := c.cal.Fold(group, max(0, layer))
	if f == nil {
		return nil, nil
	}
	if len(f.Factors) != want {
		return nil, diag.New(diag.ClassInput, "calibration: fold %q has %d factors in layer %d, want %d", group, len(f.Factors), f.Layer, want)
	}
	return f.Factors, nil
}

// staticScales are the scales of what enters a class of products in a layer (-1: of none), as it is after folding.
func (c *Content) staticScales(w *planir.Weight, layer int) ([]float32, error) {
	var a *calibration.Activation
	if c.cal != nil {
		a = c.cal.Activation(w.ScaleOf, max(0, layer))
	}
	if a == nil {
		return nil, diag.New(diag.ClassInput, "calibration: nothing is said about what enters %q in layer %d, whose static scale is wanted", w.ScaleOf, max(0, layer)).
			WithHint("measure this model again: hetc calibrate --model DIR --text FILE -o cal.yaml")
	}
	if w.N > 1 {
		scales := c.cal.RowScales(w.ScaleOf, max(0, layer), w.N)
		if scales == nil {
			return nil, diag.New(diag.ClassInput, "calibration: nothing is said about %d static scales of what enters %q in layer %d", w.N, w.ScaleOf, max(0, layer)).
				WithHint("measure them: hetc calibrate --model DIR --text FILE --schemes %s -o cal.yaml", severalScales(w.N))
		}
		return scales, nil
	}
	factors, err := c.factors(w.FoldRows, layer, a.K)
	if err != nil {
		return nil, err
	}
	return []float32{a.StaticScale(factors, c.cal.Share(w.ScaleOf))}, nil
}

// severalScales is the scheme whose rows choose from n static scales.
func severalScales(n int) op.Scheme {
	for _, s := range op.Schemes {
		if s.Scales() == n {
			return s
		}
	}
	return ""
}

// steps are those of the grids of a class of products in a layer (-1: of none), [2,N] for weight w.
func (c *Content) steps(w *planir.Weight, layer int) ([]float32, error) {
	var a *calibration.Activation
	if c.cal != nil {
		a = c.cal.Activation(w.ScaleOf, max(0, layer))
	}
	fail := func(format string, args ...any) ([]float32, error) {
		return nil, diag.New(diag.ClassInput, "calibration: "+format, args...).
			WithHint("measure this model again: hetc calibrate --model DIR --text FILE -o cal.yaml")
	}
	if a == nil {
		return fail("nothing is said about what enters %q in layer %d, whose steps are wanted", w.ScaleOf, max(0, layer))
	}
	if len(a.OutMax) > 0 && len(a.OutMax) != w.N {
		return fail("class %q has %d columns in layer %d, want %d", w.ScaleOf, len(a.OutMax), a.Layer, w.N)
	}
	factors, err := c.factors(w.FoldRows, layer, a.K)
	if err != nil {
		return nil, err
	}
	var divide []float32
	var interleave []int
	if w.FoldCols != "" {
		of := &c.plan.Program.Weights[slices.IndexFunc(c.plan.Program.Weights, func(x planir.Weight) bool {
			return x.FoldCols == w.FoldCols && x.ScaleOf == "" && className(&c.graph, x.Name, max(0, layer)) == w.ScaleOf
		})]
		interleave = of.Interleave
		if divide, err = c.factors(w.FoldCols, layer, of.N/max(1, len(of.Interleave))); err != nil {
			return nil, err
		}
	}
	in, out, ok := a.Steps(factors, divide, interleave, w.FoldSource)
	if !ok {
		return fail("nothing is said about what %q computes in layer %d, and steps of its results are wanted", w.ScaleOf, max(0, layer))
	}
	v := make([]float32, 2*w.N)
	for i := range w.N {
		v[i], v[w.N+i] = in, out
	}
	return v, nil
}

// importance is what the calibration says about the rows of a weight that is packed in blocks, as they are after
// folding; nil where it says nothing.
func (c *Content) importance(pl planir.Placement) (*pack.Importance, error) {
	if c.cal == nil || !inBlocks(pl.Pack.Scheme) {
		return nil, nil
	}
	w := c.weight(pl)
	at := place{w.Name, pl.Layer}
	c.weigh.Lock()
	defer c.weigh.Unlock()
	if imp, ok := c.important[at]; ok {
		return imp, nil
	}
	a := c.cal.Activation(className(&c.graph, w.Name, pl.Layer), max(0, pl.Layer))
	if a == nil {
		return nil, nil
	}
	if a.K != w.K {
		return nil, diag.New(diag.ClassInput, "calibration: class %q has %d channels in layer %d, want %d", a.Class, a.K, a.Layer, w.K)
	}
	factors, err := c.factors(w.FoldRows, pl.Layer, w.K)
	if err != nil {
		return nil, err
	}
	square := slices.Clone(a.MeanSquare)
	directions := slices.Clone(a.Directions)
	for i, f := range factors {
		square[i] /= f * f
		for j := range len(directions) / a.K {
			directions[i*len(directions)/a.K+j] /= f
		}
	}
	imp, err := pack.NewImportance(square, directions)
	if err != nil {
		return nil, err
	}
	clear(c.important) // placements of one weight and layer follow one another
	c.important[at] = imp
	return imp, nil
}

// inBlocks reports whether the calibration decides how a scheme's values are rounded.
func inBlocks(scheme string) bool {
	return strings.HasPrefix(scheme, "q4")
}

// className is the node that multiplies by a weight in a layer, as the calibration names classes.
func className(g *models.Graph, weight string, layer int) string {
	for i := range g.Sections {
		s := &g.Sections[i]
		if s.Layers > 0 && (layer < s.First || layer >= s.First+s.Layers) {
			continue
		}
		for _, n := range s.Nodes {
			if len(n.W) > 0 && n.W[0] == weight {
				return s.Name + "." + n.Name
			}
		}
	}
	return ""
}
