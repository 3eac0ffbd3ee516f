package emit

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// How a placement's bytes come about: weightSource assembles the matrix that it packs, from tensors of the model, from
// constants, or from numbers that the calibration decides (calibrated.go); packExpert rounds and lays it out, once for
// each expert; writeBlob does so for all placements of a blob.

// writeBlob streams a weights blob. One packed matrix is in memory at a time, with the zeros that align the next one.
func (c *Content) writeBlob(out io.Writer, b planir.WeightBlob) error {
	var at int64
	var buf []byte
	for i, pl := range b.Packs {
		end := b.Size
		if i+1 < len(b.Packs) {
			end = b.Packs[i+1].Offset
		}
		size := int(end - at)
		if cap(buf) < size {
			buf = make([]byte, size)
		}
		buf = buf[:size]
		clear(buf[pl.Pack.Bytes:])
		if err := c.packPlacement(buf[:pl.Pack.Bytes], pl); err != nil {
			return err
		}
		if _, err := out.Write(buf); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// packPlacement writes what a placement holds: a matrix, or those of all experts, one behind the other.
func (c *Content) packPlacement(dst []byte, pl planir.Placement) error {
	experts := []int{0}
	if pl.Pack.Experts > 0 {
		experts = c.plan.Holds(pl.Pack, pl.Layer)
	}
	size := len(dst) / max(1, pl.Pack.Experts)
	clear(dst[size*len(experts):]) // of a layer with fewer slotted experts than another
	imp, err := c.importance(pl)
	if err != nil {
		return err
	}
	for i, expert := range experts {
		if err := c.packExpert(dst[i*size:(i+1)*size], pl, expert, imp); err != nil {
			return err
		}
	}
	return nil
}

// packExpert writes the matrix of one expert, or the only one.
func (c *Content) packExpert(dst []byte, pl planir.Placement, expert int, imp *pack.Importance) error {
	src, names, err := c.weightSource(pl, expert, imp != nil)
	if err != nil {
		return err
	}
	if err := pack.PackFor(dst, pack.Expert(pl.Pack.Spec()), src, imp); err != nil {
		return fmt.Errorf("pack %s: %w", strings.Join(names, ", "), err)
	}
	return nil
}

// slotExpert returns the expert that a reference to a slot means in a layer; false for a reference to a whole pack.
func (c *Content) slotExpert(ref planir.WeightRef, layer int) (expert int, slotted bool) {
	if ref.Tiers == 0 {
		return 0, false
	}
	return c.plan.InSlot(ref, layer), true
}

// packRef writes what a reference to columns of a pack, or to what is in a slot of it, means in a layer (-1: none).
func (c *Content) packRef(dst []byte, ref planir.WeightRef, pl planir.Placement) error {
	expert, slotted := c.slotExpert(ref, pl.Layer)
	if !slotted {
		return c.packPlacement(dst, pl)
	}
	imp, err := c.importance(pl)
	if err != nil {
		return err
	}
	return c.packExpert(dst, pl, expert, imp)
}

// specOf returns the weight that a reference means, with its size in bytes: of a slot one expert.
func specOf(ref planir.WeightRef, packed *planir.Pack) (op.WeightSpec, int64) {
	if ref.Tiers == 0 {
		return packed.Spec(), packed.Bytes
	}
	return pack.Expert(packed.Spec()), packed.Bytes / int64(packed.Experts)
}

// weightSource returns the matrix that a placement packs of an expert, and the names of the tensors it is made of. With
// front it begins at row 0 rather than at the placement's first row, since rounding by importance depends on the rows
// before.
func (c *Content) weightSource(
	pl planir.Placement, expert int, front bool,
) (matrix pack.Source, names []string, err error) {
	weight := c.weight(pl)
	switch weight.Kind() {
	case op.ScalesWeight, op.HeadsWeight, op.StepsWeight, op.SlotsWeight:
		matrix, err = c.computedWeight(weight, pl)
		return matrix, nil, err
	case op.ConstantWeight:
		matrix, err = pack.Floats(weight.Const, weight.K, weight.N)
	default:
		matrix, names, err = c.storedWeight(weight, pl.Layer, expert)
	}
	if err != nil {
		return nil, nil, err
	}
	// The fold in front of the weight, then the piece that the pack holds.
	multiply, err := c.foldFactors(weight.FoldRows, pl.Layer, weight.K)
	if err != nil {
		return nil, nil, err
	}
	if multiply != nil {
		if matrix, err = pack.ScaleRows(matrix, multiply); err != nil {
			return nil, nil, err
		}
	}
	k0 := pl.Pack.K0
	if front {
		k0 = 0
	}
	matrix, err = sliceOf(matrix, k0, pl.Pack.K1, pl.Pack.N0, pl.Pack.N1)
	return matrix, names, err
}

// computedWeight returns what a placement packs of a weight that the calibration or the plan decides. Scales and slots
// are packed whole, steps with both rows; no fold in front of it applies, as steps have theirs in them.
func (c *Content) computedWeight(weight *op.Weight, pl planir.Placement) (pack.Source, error) {
	rows := 1
	var values []float32
	var err error
	switch weight.Kind() {
	case op.ScalesWeight:
		values, err = c.staticScales(weight, pl.Layer)
	case op.HeadsWeight:
		values, err = c.headNumbers(weight, pl.Layer)
	case op.StepsWeight:
		rows = 2
		values, err = c.gridSteps(weight, pl.Layer)
	default:
		for _, expert := range c.plan.TiersOf(weight.SlotsOf).Layer(pl.Layer).Slots {
			values = append(values, float32(expert))
		}
	}
	if err != nil {
		return nil, err
	}
	if weight.Kind() == op.ScalesWeight || weight.Kind() == op.SlotsWeight {
		return pack.Floats(values, 1, len(values))
	}
	matrix, err := pack.Floats(values, rows, weight.N)
	if err != nil {
		return nil, err
	}
	return sliceOf(matrix, 0, rows, pl.Pack.N0, pl.Pack.N1)
}

// sliceOf is rows [k0,k1) and columns [n0,n1) of a matrix, the matrix itself where that is all of it.
func sliceOf(matrix pack.Source, k0, k1, n0, n1 int) (pack.Source, error) {
	k, n := matrix.Shape()
	if k0 == 0 && k1 == k && n0 == 0 && n1 == n {
		return matrix, nil
	}
	return pack.Slice(matrix, k0, k1, n0, n1)
}

// storedWeight assembles a weight from the tensors of a layer, for an expert. The columns of its sources are
// interleaved, and those of one of them divided by the factors of a fold.
func (c *Content) storedWeight(weight *op.Weight, layer, expert int) (matrix pack.Source, names []string, err error) {
	divide, err := c.foldFactors(weight.FoldCols, layer, weight.N/max(1, len(weight.Interleave)))
	if err != nil {
		return nil, nil, err
	}
	names = weight.Sources(layer, expert)
	sources := make([]pack.Source, len(names))
	for i, name := range names {
		tensor, err := c.model.Tensor(name)
		if err != nil {
			return nil, nil, err
		}
		source, err := pack.Tensor(tensor, weight.K, weight.SourceCols(i), weight.Transposed)
		if err != nil {
			return nil, nil, diag.New(diag.ClassInput, "tensor %q: %w", name, err)
		}
		if weight.Plus != 0 {
			source = pack.Plus(source, weight.Plus)
		}
		if divide != nil && i == weight.FoldSource {
			if source, err = pack.DivideColumns(source, divide); err != nil {
				return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
			}
		}
		sources[i] = source
	}
	if len(sources) == 1 {
		return sources[0], names, nil
	}
	matrix, err = pack.Interleave(sources, weight.Interleave)
	return matrix, names, err
}

// packOf returns the pack that a step reads.
func (c *Content) packOf(ref planir.WeightRef) *planir.Pack {
	i := slices.IndexFunc(c.plan.Program.Packs, func(k planir.Pack) bool { return k.Name == ref.Pack })
	return &c.plan.Program.Packs[i]
}

// placementOf returns the placement of a pack for a layer, or without one where its weight belongs to none, as the
// head's does. The placement has no offset: it says what is packed, not where.
func (c *Content) placementOf(packed *planir.Pack, layer int) planir.Placement {
	pl := planir.Placement{Pack: packed, Layer: layer}
	if len(c.weight(pl).Layers) == 0 {
		pl.Layer = -1
	}
	return pl
}

// weight returns the weight that a placement packs.
func (c *Content) weight(pl planir.Placement) *op.Weight {
	i := slices.IndexFunc(c.plan.Program.Weights, func(w op.Weight) bool { return w.Name == pl.Pack.Weight })
	return &c.plan.Program.Weights[i]
}
