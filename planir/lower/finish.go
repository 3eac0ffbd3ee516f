package lower

import (
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// finish fills in what depends on all programs: buffers, cache, weights, packs, the references to packs, and the
// decider. The order matters: packs are sorted by the rank of their weights, and references need the names of packs.
func (b *builder) finish(rows []int) error {
	b.finishBuffers()
	b.finishCache()
	rank := b.finishWeights()
	if err := b.markFolds(rank); err != nil {
		return err
	}
	b.dropSlottedPacks()
	if err := b.finishPacks(rank); err != nil {
		return err
	}

	for _, fixup := range b.fixups {
		use, own := b.packs[fixup.from.key]
		if !own {
			use = b.packs[fixup.from.key.whole()]
		}
		*fixup.ref = planir.WeightRef{Pack: use.name, C0: fixup.from.n0 - use.lo, C1: fixup.from.n1 - use.lo,
			Tiers: fixup.from.tiers, Slot: fixup.from.slot}
	}

	b.finishDecider(rows)
	return nil
}

// finishDecider names the program for every number of tokens: the smallest that holds all of them, and for more tokens
// the largest, or the program of chunks in flight.
func (b *builder) finishDecider(rows []int) {
	rows = slices.DeleteFunc(slices.Clone(rows), func(count int) bool { return slices.Contains(b.plan.Batches, count) })
	whole := b.plan.MaxContext + 1 // tokens from which on there are several whole chunks
	if len(b.out.InFlight) > 0 {
		whole = b.out.InFlight[0].Rows
	}

	for i, count := range rows {
		lo, hi := 1, count
		if i > 0 {
			lo = rows[i-1] + 1
		}
		if i == len(rows)-1 {
			hi = b.plan.MaxContext
		}
		hi = min(hi, whole-1)
		if lo <= hi {
			entry := planir.Decide{Min: lo, Max: hi, Program: ProgramName(count, count == 1)}
			b.out.Decider = append(b.out.Decider, entry)
		}
	}

	if whole <= b.plan.MaxContext {
		entry := planir.Decide{Min: whole, Max: b.plan.MaxContext, Program: b.out.InFlight[0].Name}
		b.out.Decider = append(b.out.Decider, entry)
	}
}

// finishBuffers keeps the buffers that steps touch. A value that stays within one step needs no buffer.
func (b *builder) finishBuffers() {
	touched := map[string]bool{planir.IDs: true, planir.Logits: true}
	for _, program := range b.out.All() {
		touched[program.Own(planir.IDs)], touched[program.Own(planir.Logits)] = true, true
		for _, section := range program.Sections {
			for _, lane := range section.Lanes {
				for _, step := range lane.Steps {
					for _, view := range slices.Concat(step.In, step.Out) {
						touched[view.Buffer] = true
					}
				}
			}
		}
	}

	for _, name := range b.order {
		if touched[name] {
			b.out.Buffers = append(b.out.Buffers, *b.buffers[name])
		}
	}
}

// finishCache takes the cache's layers and heads from the operators that append to it.
func (b *builder) finishCache() {
	cache := &b.out.Cache
	*cache = planir.Cache{Type: b.plan.KV, MaxContext: b.plan.MaxContext}
	if count := b.plan.Sequences(); count > 1 {
		cache.Sequences = count
	}
	for _, section := range b.model.Sections {
		for _, node := range section.Nodes {
			for _, operator := range node.Ops {
				if operator.Kind == op.KVAppend {
					cache.Layers = max(cache.Layers, section.First+section.Layers)
					cache.KVHeads, cache.HeadDim = operator.KVHeads, operator.HeadDim
				}
			}
		}
	}
}

// layersOf returns the range of a section's layers; false for a section of none.
func layersOf(section *models.Section) (op.LayerRange, bool) {
	return op.LayerRange{From: section.First, To: section.First + section.Layers}, section.Layers > 0
}

// finishWeights lists the model's weights, then the computed ones that packs hold. It returns the index of each.
func (b *builder) finishWeights() (rank map[string]int) {
	// A weight that several sections name has the layers of all of them: a stored name with {layer} is one tensor for
	// each.
	layers := map[string][]op.LayerRange{}
	for i := range b.model.Sections {
		section := &b.model.Sections[i]
		for _, node := range section.Nodes {
			for _, name := range node.W {
				if own, repeated := layersOf(section); repeated {
					layers[name] = appendRange(layers[name], own)
				}
			}
		}
	}

	rank = map[string]int{}
	for i, weight := range b.model.Weights {
		rank[weight.Name] = i
		if weight.Kind() == op.StoredWeight {
			weight.Layers = layers[weight.Name]
		}
		b.out.Weights = append(b.out.Weights, weight)
	}
	b.finishComputed(rank)
	return rank
}

// finishComputed lists the computed weights that packs hold, which depends on the decided schemes, and adds them to the
// index.
func (b *builder) finishComputed(rank map[string]int) {
	used := map[string]bool{}
	for key := range b.packs {
		used[key.weight] = true
	}

	for i := range b.model.Sections {
		section := &b.model.Sections[i]
		for _, node := range section.Nodes {
			for _, added := range b.computedOf(section.Name+"."+node.Name, node.Ops[len(node.Ops)-1]) {
				if !used[added.Name] {
					continue
				}
				if _, again := rank[added.Name]; !again {
					rank[added.Name] = len(b.out.Weights)
					b.out.Weights = append(b.out.Weights, added)
				}
				if own, repeated := layersOf(section); repeated {
					weight := &b.out.Weights[rank[added.Name]]
					weight.Layers = appendRange(weight.Layers, own)
				}
			}
		}
	}
}

// computedOf returns the computed weights that a class of products may have: scales, then steps. Experts also have a
// list of the experts in slots, for each program with tiers.
func (b *builder) computedOf(class string, product op.Op) (out []op.Weight) {
	if product.Kind == op.ExpertMatMul {
		for i := range b.plan.Experts {
			tiers := &b.plan.Experts[i]
			out = append(out, op.Weight{Name: SlotsWeight(tiers.Rows), SlotsOf: tiers.Rows, K: 1, N: tiers.Slots()})
		}
	}
	if product.Kind == op.Attention && b.plan.Attention != nil {
		return []op.Weight{{Name: models.HeadsWeight(class), HeadsOf: class, Density: b.plan.Attention.Density, K: 1,
			N: len(op.SparseHeads(make([]op.SparseHead, product.Heads)))}}
	}
	for _, scales := range scaleCounts {
		out = append(out, op.Weight{Name: ScaleWeight(class, scales), ScaleOf: class, K: 1, N: scales})
	}
	return append(out,
		op.Weight{Name: InnerScaleWeight(class), ScaleOf: class, K: 1, N: 1, Outliers: op.OutlierChannels(product.K)},
		op.Weight{Name: StepsWeight(class), ScaleOf: class, K: 2, N: product.N})
}

// markFolds marks the weights that the plan's folds change: a fold divides the columns of one weight by factors and
// multiplies the rows of those that read its result, so that the product stays the same. rank is the weights' place.
func (b *builder) markFolds(rank map[string]int) error {
	groups := b.model.Folds()
	for _, name := range b.plan.Folds {
		at := slices.IndexFunc(groups, func(group models.FoldGroup) bool { return group.Name == name })
		if at < 0 {
			return diag.New(diag.ClassIllegal, "lower plan: the model has no weights that are folded as %q", name)
		}
		for _, part := range groups[at].Divide {
			weight := &b.out.Weights[rank[part.Weight]]
			weight.FoldCols, weight.FoldSource = name, part.Source
			if steps, ok := rank[StepsWeight(b.classOf(part.Weight))]; ok { // of what the columns compute
				b.out.Weights[steps].FoldCols, b.out.Weights[steps].FoldSource = name, part.Source
			}
		}

		for _, multiplied := range groups[at].Multiply {
			b.out.Weights[rank[multiplied]].FoldRows = name
		}

		for _, class := range groups[at].Readers {
			for _, computed := range Computed(class) {
				if index, ok := rank[computed]; ok {
					b.out.Weights[index].FoldRows = name
				}
			}
		}
	}
	return nil
}

// classOf returns the node that multiplies by a weight, "" where none does.
func (b *builder) classOf(weight string) string {
	for i := range b.model.Sections {
		for _, node := range b.model.Sections[i].Nodes {
			if len(node.W) > 0 && node.W[0] == weight {
				return b.model.Sections[i].Name + "." + node.Name
			}
		}
	}
	return ""
}

// appendRange adds a range behind the others, which it may continue or repeat.
func appendRange(list []op.LayerRange, layers op.LayerRange) []op.LayerRange {
	if count := len(list); count > 0 && list[count-1].To >= layers.From {
		list[count-1].To = max(list[count-1].To, layers.To)
		return list
	}
	return append(list, layers)
}
