package lower

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// packKey tells packs apart: the region of a weight, its format, and the processor for which it is packed.
type packKey struct {
	weight, scheme, layout, owner string // owner "": shared by every processor that reads tile ranges
	slotted                       bool   // an owner's pack of the experts that have a slot
	k0, k1, n0, n1                int    // n0, n1 are 0 while shared: the union of uses is taken
}

// whole returns the key of the pack of all experts.
func (k packKey) whole() packKey {
	k.slotted = false
	return k
}

// packUse is the range of columns that all uses of a pack cover, the phases that use it, and its name once that is known.
type packUse struct {
	lo, hi          int
	decode, prefill bool
	name            string
}

// order is where a pack lies in its layer: first those that only decode reads, then those that both phases read, then
// those that only prefill reads. Each phase then reads one piece of a layer.
// RATIONALE: In which pages do weights lie?
func (u *packUse) order() int {
	switch {
	case !u.prefill:
		return 0
	case u.decode:
		return 1
	}
	return 2
}

// packRange is a range of a weight's columns. It becomes a WeightRef once every pack's range is known.
type packRange struct {
	key    packKey
	n0, n1 int
	tiers  int // of a slot: see planir.WeightRef
	slot   int
}

// fixup is a weight reference to be completed once every pack is named.
type fixup struct {
	from packRange
	ref  *planir.WeightRef
}

// usePack extends a pack to a range of columns that is read.
func (b *builder) usePack(used packRange) {
	use := b.packs[used.key]
	if use == nil {
		use = &packUse{lo: used.n0, hi: used.n1}
		b.packs[used.key] = use
	}
	use.lo, use.hi = min(use.lo, used.n0), max(use.hi, used.n1)
	use.decode = use.decode || b.decodes
	use.prefill = use.prefill || !b.decodes
}

// rangesRead lists the ranges of packed weights that a piece reads, in the order of its step's weights.
func rangesRead(node *Node, piece *Piece, proc *planir.Proc, layout string) (out []packRange) {
	operator := piece.Op()
	for i, taken := range weightOps(piece.Ops) { // a share along K that adds no bias takes none
		spec := taken.op.WeightSpec(taken.role, layout)
		key := packKey{weight: node.W[i], scheme: spec.Scheme, layout: spec.Layout, k1: spec.K}
		c0, c1 := 0, spec.N
		if operator.HasMatrix() && taken.role != "scale" { // which all columns share
			if taken.role == "weight" || operator.Kind == op.GroupMatMul {
				key.k0, key.k1 = piece.K0, piece.K1
			}
			c0, c1 = piece.N0, piece.N1
		}
		_, weights, _ := operator.HeadColumns()
		if taken.op.Kind == operator.Kind && len(weights) > 0 {
			c0 = weights[0] * piece.H0 // those of its heads
			c1 += c0
		}

		// Uses of a pack by several pieces are united, unless the processor must have a pack of just its own range.
		if needsOwnPack(node, operator, taken.role, spec.Layout, c1-c0, proc) {
			key.owner, key.n0, key.n1 = piece.Proc, c0, c1
			key.slotted = operator.Kind == op.GroupMatMul
		}
		used := packRange{key: key, n0: c0, n1: c1}
		if operator.Kind == op.GroupMatMul {
			used.tiers, used.slot = node.Slots.Tiers, node.Slots.First+i
		}
		out = append(out, used)
	}
	return out
}

// needsOwnPack reports whether a processor needs a pack of just the columns that it reads of a weight, so many of them,
// rather than a range of a pack that others read too.
func needsOwnPack(node *Node, operator op.Op, role, layout string, columns int, proc *planir.Proc) bool {
	isPart := columns != node.Op().N
	switch {
	case proc.WeightsInArtifacts:
		return true
	case operator.Scheme != "" && role != "scale" && !proc.WeightRanges:
		return true
	case role == "steps" && isPart: // two rows have no column ranges
		return true
	case role == "heads" && operator.KVHeads != node.Op().KVHeads: // too few for a range to be aligned
		return true
	}
	// Nor has a matrix by rows: a part of its columns is one of each row.
	return layout == op.RowsLayout && role == "weight" && isPart
}

// Use is a range of a packed weight that a piece reads: rows K0..K1 and columns N0..N1 in a format.
type Use struct {
	Weight, Scheme, Layout string
	K0, K1, N0, N1         int
	// Owner is the processor that has a pack of just this region; "": processors read ranges of one.
	Owner   string
	Slotted bool // its pack holds only experts that have a slot
}

// Needs returns what must be loaded before a piece's step can run, unless the step is joined to its neighbours: the
// ranges of weights that it reads, and its graph, under a key that equal graphs of its processor share.
func Needs(node *Node, piece *Piece, proc *planir.Proc) (weights []Use, graph string) {
	cut := op.Single(piece.Op(), "")
	if piece.Role == Compute {
		layout := ""
		if operator := piece.Op(); operator.Scheme != "" {
			layout = proc.Layouts[operator.Scheme.Weight()]
		}
		for _, used := range rangesRead(node, piece, proc, layout) {
			key := used.key
			weights = append(weights, Use{key.weight, key.scheme, key.layout, key.k0, key.k1, used.n0, used.n1,
				key.owner, key.slotted})
		}
		cut = chain(piece.Ops, layout)
	}

	key := graphKey(piece.Proc, cut)
	if proc.WeightsInArtifacts { // a graph of its own for each set of weights
		key += fmt.Sprintf("\x00%+v", weights)
	}
	return weights, key
}

// weightOp is an operator of a chain and the role of a weight it takes.
type weightOp struct {
	op   op.Op
	role string
}

// weightOps lists the weights of a chain in the order of a node's weights.
func weightOps(ops []op.Op) (out []weightOp) {
	for _, operator := range ops {
		for _, role := range operator.Sig().W {
			out = append(out, weightOp{operator, role})
		}
	}
	return out
}

// weightsKey is equal for equal lists of ranges.
func weightsKey(list []packRange) string {
	var text strings.Builder
	for _, packed := range list {
		fmt.Fprintf(&text, "\x00%+v", packed)
	}
	return text.String()
}

// dropSlottedPacks drops a pack of the experts that have a slot if the same processor has a pack of all experts, so
// that it holds no expert twice.
func (b *builder) dropSlottedPacks() {
	for key := range b.packs {
		if key.slotted && b.packs[key.whole()] != nil {
			delete(b.packs, key)
		}
	}
}

// finishPacks lists and names the packs, by packUse.order, then by their weights (rank) and their keys. The order is
// total, so equal plans have equal programs. A name states only what distinguishes the pack from others of its weight.
func (b *builder) finishPacks(rank map[string]int) error {
	order := func(x, y packKey) int {
		return cmp.Or(b.packs[x].order()-b.packs[y].order(),
			cmp.Compare(rank[x.weight], rank[y.weight]), cmp.Compare(x.scheme, y.scheme),
			cmp.Compare(x.layout, y.layout), cmp.Compare(x.owner, y.owner), x.k0-y.k0, x.k1-y.k1, x.n0-y.n0, x.n1-y.n1)
	}
	for _, key := range slices.SortedFunc(maps.Keys(b.packs), order) {
		use, weight := b.packs[key], &b.out.Weights[rank[key.weight]]
		made := planir.Pack{
			Name: fmt.Sprintf("%s/%s.%s", key.weight, key.scheme, key.layout), Weight: key.weight,
			Experts: weight.Experts,
			K0:      key.k0, K1: key.k1, N0: use.lo, N1: use.hi, Scheme: key.scheme, Layout: key.layout,
		}

		if key.k0 != 0 || key.k1 != weight.K {
			made.Name += fmt.Sprintf(".k%d-%d", key.k0, key.k1)
		}
		if key.owner != "" {
			made.Name += fmt.Sprintf(".%s.n%d-%d", key.owner, key.n0, key.n1)
			made.InArtifact = b.plan.Proc(key.owner).WeightsInArtifacts
		}
		if key.slotted {
			made.Name += ".slots"
			made.Slotted, made.Experts = true, planir.MostSlotted(b.plan.Experts)
		}

		use.name = made.Name
		var err error
		if made.Bytes, err = pack.Bytes(made.Spec()); err != nil {
			return diag.New(diag.ClassIllegal, "lower plan: %w", err)
		}
		b.out.Packs = append(b.out.Packs, made)
	}
	return nil
}
