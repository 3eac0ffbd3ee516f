package emit

import (
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// checkCalibration refuses a calibration (nil: none) other than the one that the plan was made with.
func checkCalibration(plan *planir.Plan, cal *calibration.Calibration) error {
	want := plan.Calibration()
	if cal == nil {
		if want == "" {
			return nil
		}
		return diag.New(diag.ClassInput, "pack weights: the plan was made with calibration %.12s, and none is given",
			want).
			WithHint("pass the calibration the plan was solved with: --calibration cal.yaml")
	}
	got, err := cal.Digest()
	if err != nil {
		return err
	}
	switch want {
	case got:
		return cal.CheckModel(plan.Model.Name, plan.Model.Digest)
	case "":
		return diag.New(diag.ClassInput, "pack weights: calibration %.12s is given, and the plan was made without one",
			got).
			WithHint("solve again with --calibration, or leave it out here")
	}
	return diag.New(diag.ClassInput,
		"pack weights: calibration has digest %.12s, want %.12s, with which the plan was made", got, want).
		WithHint("give the file that hetc solve read, or solve again with this one")
}

// foldFactors returns those of a fold group in a layer (-1: of none), nil where nothing is folded.
func (c *Content) foldFactors(group string, layer, want int) ([]float32, error) {
	if group == "" {
		return nil, nil
	}
	fold := c.calibration.Fold(group, max(0, layer))
	if fold == nil {
		return nil, nil
	}
	if len(fold.Factors) != want {
		return nil, diag.New(diag.ClassInput, "calibration: fold %q has %d factors in layer %d, want %d",
			group, len(fold.Factors), fold.Layer, want)
	}
	return fold.Factors, nil
}

// staticScales returns the scales of what enters a class of products in a layer (-1: of none), after folding: one for
// the whole class, or several that rows choose from.
func (c *Content) staticScales(weight *op.Weight, layer int) ([]float32, error) {
	var activation *calibration.Activation
	if c.calibration != nil {
		activation = c.calibration.Activation(weight.ScaleOf, max(0, layer))
	}
	if activation == nil {
		return nil, diag.New(diag.ClassInput,
			"calibration: nothing is said about what enters %q in layer %d, whose static scale is wanted",
			weight.ScaleOf, max(0, layer)).
			WithHint("measure this model again: hetc calibrate --model DIR --text FILE -o cal.yaml")
	}
	if weight.N > 1 {
		scales := c.calibration.RowScales(weight.ScaleOf, max(0, layer), weight.N)
		if scales == nil {
			return nil, diag.New(diag.ClassInput,
				"calibration: nothing is said about %d static scales of what enters %q in layer %d",
				weight.N, weight.ScaleOf, max(0, layer)).
				WithHint("measure them: hetc calibrate --model DIR --text FILE --schemes %s -o cal.yaml",
					severalScales(weight.N))
		}
		return scales, nil
	}
	factors, err := c.foldFactors(weight.FoldRows, layer, activation.K)
	if err != nil {
		return nil, err
	}
	if weight.Outliers > 0 && !c.plan.Pruned(weight.ScaleOf, max(0, layer)) {
		return []float32{activation.InnerScale(factors, weight.Outliers)}, nil
	}
	return []float32{activation.StaticScale(factors, c.calibration.Share(weight.ScaleOf))}, nil
}

// headNumbers returns the scales and the shares of positions of the query heads of a layer, for a sparse attention.
func (c *Content) headNumbers(weight *op.Weight, layer int) ([]float32, error) {
	var measured *calibration.Attention
	if c.calibration != nil {
		measured = c.calibration.Attention
	}
	if measured == nil || layer < 0 || layer >= len(measured.Layers) {
		return nil, diag.New(diag.ClassInput, "calibration: nothing is said about the heads of %q in layer %d, and "+
			"the plan has sparse attention", weight.HeadsOf, layer).
			WithHint("measure them: hetc calibrate --attention --model DIR --text FILE -o cal.yaml")
	}
	shares := measured.Ratios(weight.Density)[layer]
	heads := make([]op.SparseHead, len(shares))
	for i, share := range shares {
		scales := measured.Scales(layer, i)
		heads[i] = op.SparseHead{QueryScale: scales.Query, KeyScale: scales.Key, Share: float32(share)}
	}
	values := op.SparseHeads(heads)
	if len(values) != weight.N {
		return nil, diag.New(diag.ClassInput,
			"calibration: layer %d has %d heads, and %q has %d numbers, want 3 a head", layer, len(heads), weight.Name,
			weight.N)
	}
	return values, nil
}

// severalScales returns the scheme whose rows choose from n static scales.
func severalScales(n int) op.Scheme {
	for _, scheme := range op.Schemes {
		if scheme.Scales() == n {
			return scheme
		}
	}
	return ""
}

// gridSteps returns those of the grids of a class of products in a layer (-1: of none), [2,N] for a weight:
// the step of what enters in all columns of the first row, that of the results in the second.
//
// What enters is divided by the factors of the fold in front of the class, and the results by those of
// the fold behind it. The latter's columns are those of the weight that the class multiplies by.
func (c *Content) gridSteps(weight *op.Weight, layer int) ([]float32, error) {
	var activation *calibration.Activation
	if c.calibration != nil {
		activation = c.calibration.Activation(weight.ScaleOf, max(0, layer))
	}
	fail := func(format string, args ...any) ([]float32, error) {
		return nil, diag.New(diag.ClassInput, "calibration: "+format, args...).
			WithHint("measure this model again: hetc calibrate --model DIR --text FILE -o cal.yaml")
	}
	if activation == nil {
		return fail("nothing is said about what enters %q in layer %d, whose steps are wanted",
			weight.ScaleOf, max(0, layer))
	}
	if len(activation.OutMax) > 0 && len(activation.OutMax) != weight.N {
		return fail("class %q has %d columns in layer %d, want %d",
			weight.ScaleOf, len(activation.OutMax), activation.Layer, weight.N)
	}
	factors, err := c.foldFactors(weight.FoldRows, layer, activation.K)
	if err != nil {
		return nil, err
	}
	// The factors behind are listed by the columns of the weight that the class multiplies by: find it.
	var divide []float32
	var interleave []int
	if weight.FoldCols != "" {
		of := &c.plan.Program.Weights[slices.IndexFunc(c.plan.Program.Weights, func(x op.Weight) bool {
			return x.FoldCols == weight.FoldCols && x.ScaleOf == "" &&
				className(&c.graph, x.Name, max(0, layer)) == weight.ScaleOf
		})]
		interleave = of.Interleave
		if divide, err = c.foldFactors(weight.FoldCols, layer, of.N/max(1, len(of.Interleave))); err != nil {
			return nil, err
		}
	}
	in, out, ok := activation.Steps(factors, divide, interleave, weight.FoldSource)
	if !ok {
		return fail("nothing is said about what %q computes in layer %d, and steps of its results are wanted",
			weight.ScaleOf, max(0, layer))
	}
	values := make([]float32, 2*weight.N)
	for i := range weight.N {
		values[i], values[weight.N+i] = in, out
	}
	return values, nil
}

// importance returns what the calibration says about the rows of a weight whose scales are searched, after folding; nil
// where it says nothing. Folding multiplies a row of the weight and divides what enters it, so mean squares and main
// directions are divided by the same factors.
func (c *Content) importance(pl planir.Placement) (*pack.Importance, error) {
	if c.calibration == nil || !pack.Searched(pl.Pack.Scheme) {
		return nil, nil
	}
	weight := c.weight(pl)
	at := packKey{weight.Name, pl.Layer}
	c.importanceMu.Lock()
	defer c.importanceMu.Unlock()
	if imp, ok := c.lastImportance[at]; ok {
		return imp, nil
	}
	activation := c.calibration.Activation(className(&c.graph, weight.Name, pl.Layer), max(0, pl.Layer))
	if activation == nil {
		return nil, nil
	}
	if activation.K != weight.K {
		return nil, diag.New(diag.ClassInput, "calibration: class %q has %d channels in layer %d, want %d",
			activation.Class, activation.K, activation.Layer, weight.K)
	}
	factors, err := c.foldFactors(weight.FoldRows, pl.Layer, weight.K)
	if err != nil {
		return nil, err
	}
	square := slices.Clone(activation.MeanSquare)
	directions := slices.Clone(activation.Directions)
	for i, factor := range factors {
		square[i] /= factor * factor
		for j := range len(directions) / activation.K {
			directions[i*len(directions)/activation.K+j] /= factor
		}
	}
	imp, err := pack.NewImportance(square, directions)
	if err != nil {
		return nil, err
	}
	// Only the last one is kept.
	clear(c.lastImportance) // placements of one weight and layer follow one another
	c.lastImportance[at] = imp
	return imp, nil
}

// className returns the node that multiplies by a weight in a layer, as the calibration names classes; "" for none.
// Sections without layers are executed once, and match every layer.
func className(g *models.Graph, weight string, layer int) string {
	for i := range g.Sections {
		section := &g.Sections[i]
		if section.Layers > 0 && (layer < section.First || layer >= section.First+section.Layers) {
			continue
		}
		for _, node := range section.Nodes {
			if len(node.W) > 0 && node.W[0] == weight {
				return section.Name + "." + node.Name
			}
		}
	}
	return ""
}
