package planir

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// References: everything that a plan names exists. Rules from here on look names up without testing the result, because
// checking stops after the first rule that finds something.

// references checks rule P002. It first collects the names that the program defines, in the checker's indices, and then
// looks up what the rest of the plan refers to. All later rules rely on the indices.
func (c *checker) references() {
	c.foldReferences()
	c.shadowReferences()
	c.outlierReferences()
	c.collectNames()
	c.checkProc("soc.control", c.plan.SoC.Control)
	c.laneReferences()
	for step := range c.plan.Program.steps() {
		c.stepReferences(step)
	}
	for i, decision := range c.plan.Decisions {
		for _, share := range decision.Shares {
			c.checkProc(fmt.Sprintf("decisions[%d]", i), share.Proc)
		}
	}
	c.deciderReferences()
}

// foldReferences checks that folds come with the calibration that found them.
func (c *checker) foldReferences() {
	if len(c.plan.Folds) > 0 && c.plan.Calibration() == "" {
		c.fail("folds", "groups %q are folded, and no calibration is among the inputs", c.plan.Folds)
	}
}

// shadowReferences checks that nodes whose shadow outliers are pruned have a scheme with shadow outliers.
func (c *checker) shadowReferences() {
	for i := range c.plan.Shadows {
		node := c.plan.Shadows[i].Node
		decides := func(decision Decision) bool { return decision.Node == node && decision.Scheme.Shadow() }
		if !slices.ContainsFunc(c.plan.Decisions, decides) {
			c.fail(fmt.Sprintf("shadows[%d]", i), "shadow outliers of %q are pruned, and no decision gives it any",
				node)
		}
	}
}

// outlierReferences checks the same of nodes for which a number of outlier channels is stated.
func (c *checker) outlierReferences() {
	for i, entry := range c.plan.Outliers {
		decision := c.plan.DecisionFor(entry.Node, entry.Rows)
		if decision == nil || !decision.Scheme.Shadow() {
			c.fail(fmt.Sprintf("outliers[%d]", i),
				"%d channels of %q at %d rows, and no decision gives it shadow outliers",
				entry.Channels, entry.Node, entry.Rows)
		}
	}
}

// collectNames fills the indices of buffers, graphs, weights and packs, and checks what these four name.
func (c *checker) collectNames() {
	program := &c.plan.Program
	for i := range program.Buffers {
		c.buffers[program.Buffers[i].Name] = &program.Buffers[i]
	}
	for i := range program.Graphs {
		graph := &program.Graphs[i]
		c.graphOf[graph.Name] = graph
		c.checkProc(fmt.Sprintf("program.graphs[%d].proc", i), graph.Proc)
	}
	for i := range program.Weights {
		c.weight(fmt.Sprintf("program.weights[%d]", i), &program.Weights[i])
		c.weightOf[program.Weights[i].Name] = &program.Weights[i]
	}
	c.hotReferences()
	for i := range program.Packs {
		pack := &program.Packs[i]
		c.packs[pack.Name] = pack
		if c.weightOf[pack.Weight] == nil {
			c.fail(fmt.Sprintf("program.packs[%d].weight", i), "unknown weight %q", pack.Weight)
		}
	}
}

// laneReferences checks that lanes are of processors that the plan has, and do something.
func (c *checker) laneReferences() {
	for section := range c.plan.Program.sections() {
		for i, lane := range section.Lanes {
			if c.plan.Proc(lane.Proc) == nil || len(lane.Steps) == 0 {
				c.fail(fmt.Sprintf("%s.lanes[%d]", section.path(), i),
					"lane of %q has %d steps, want a known processor with at least one", lane.Proc, len(lane.Steps))
			}
		}
	}
}

// deciderReferences checks that the decider names programs of the plan.
func (c *checker) deciderReferences() {
	program := &c.plan.Program
	for i, entry := range program.Decider {
		named := func(phase PhaseProgram) bool { return phase.Name == entry.Program }
		if !slices.ContainsFunc(program.Programs, named) && !slices.ContainsFunc(program.InFlight, named) {
			c.fail(fmt.Sprintf("program.decider[%d]", i), "unknown program %q", entry.Program)
		}
	}
}

// checkProc checks that the plan has a processor of that name.
func (c *checker) checkProc(path, proc string) {
	if c.plan.Proc(proc) == nil {
		c.fail(path, "unknown processor %q", proc)
	}
}

// weight checks the layers of a weight, what it is computed from if it is not stored, and what it is folded with.
func (c *checker) weight(path string, weight *op.Weight) {
	at := 0
	for _, layers := range weight.Layers {
		if layers.From < at || layers.To <= layers.From || layers.To > maxLayers {
			c.fail(path+".layers", "layers %v, want ascending ranges up to %d", weight.Layers, maxLayers)
		}
		at = layers.To + 1
	}
	if weight.ScaleOf != "" {
		c.staticScale(path, weight)
	}
	if weight.SlotsOf != 0 {
		c.slots(path, weight)
	}
	if weight.HeadsOf != "" {
		c.headsWeight(path, weight)
	}
	c.weightFolds(path, weight)
	if weight.Experts < 0 || weight.Experts > maxExperts {
		c.fail(path+".experts", "%d experts, want 0..%d", weight.Experts, maxExperts)
	}
}

// weightFolds checks that a weight is folded with groups that the plan folds. The folded source is one of the weight's
// tensors. A static scale has no tensors: there it is a source of the weight of the product that the scale is for.
func (c *checker) weightFolds(path string, weight *op.Weight) {
	for _, group := range []string{weight.FoldRows, weight.FoldCols} {
		if group != "" && !slices.Contains(c.plan.Folds, group) {
			c.fail(path, "weight %q is folded with group %q, and the plan folds %q", weight.Name, group, c.plan.Folds)
		}
	}
	beyond := weight.FoldSource >= max(1, len(weight.From)) && weight.ScaleOf == ""
	unused := weight.FoldSource != 0 && weight.FoldCols == ""
	if weight.FoldSource < 0 || beyond || unused {
		c.fail(path+".fold_source", "source %d of %d is folded by %q", weight.FoldSource, len(weight.From),
			weight.FoldCols)
	}
}

// isStored reports whether a weight says how its numbers are read from the model. Computed weights do not.
func isStored(weight *op.Weight) bool {
	return len(weight.From) > 0 || len(weight.Const) > 0 || len(weight.Interleave) > 0 || weight.Experts != 0 ||
		weight.Plus != 0 || weight.Transposed
}

// staticScale checks that a scale is computed from the calibration and from nothing else. It has one of two forms:
// one number for each scale that rows choose from, or the two steps of a grid for every column.
func (c *checker) staticScale(path string, weight *op.Weight) {
	most := op.MaxScales
	if weight.Outliers != 0 { // rows do not choose among scales that leave channels out
		most = 1
	}
	numbers := weight.K == 1 && weight.N >= 1 && weight.N <= most && weight.FoldCols == "" && weight.Outliers >= 0
	grid := weight.K == 2 && weight.Outliers == 0
	if !numbers && !grid || isStored(weight) {
		c.fail(path, "weight %q is the scale of %q, and [%d,%d] from %v, want 1..%d computed numbers, or the steps [2,N] of a grid",
			weight.Name, weight.ScaleOf, weight.K, weight.N, weight.From, op.MaxScales)
	}
	if c.plan.Calibration() == "" {
		c.fail(path, "weight %q is the static scale of %q, and no calibration is among the inputs", weight.Name,
			weight.ScaleOf)
	}
}

// slots checks a weight that says which experts are in the slots of a program: it is computed, and there are capacity
// tiers for its program and layers.
func (c *checker) slots(path string, weight *op.Weight) {
	tiers := c.plan.TiersOf(weight.SlotsOf)
	stored := isStored(weight) || weight.ScaleOf != "" || weight.FoldRows != "" || weight.FoldCols != ""
	if tiers == nil || stored || len(weight.Layers) == 0 || weight.K != 1 || weight.N != tiers.Slots() {
		c.fail(path, "weight %q is [%d,%d] and says what is in the slots of the program of %d rows, want computed "+
			"numbers, in layers, one for each slot of tiers that the plan has", weight.Name, weight.K, weight.N,
			weight.SlotsOf)
		return
	}
	for _, layers := range weight.Layers {
		c.tieredLayers(path, tiers, layers.From, layers.To)
	}
}

// tieredLayers checks that capacity tiers name the experts in the slots of every layer of a range.
func (c *checker) tieredLayers(path string, tiers *ExpertTiers, from, to int) {
	for layer := from; layer < to; layer++ {
		if known := tiers.Layer(layer); known == nil || len(known.Slots) != tiers.Slots() {
			c.fail(path, "the capacity tiers of %d rows do not say what is in the %d slots of layer %d", tiers.Rows,
				tiers.Slots(), layer)
			return
		}
	}
}

// slotRef checks a step's reference to the expert in a slot: the pack holds experts, and the tiers know the slot and
// the layers of the section.
func (c *checker) slotRef(step stepAt, ref WeightRef, pack *Pack) {
	tiers := c.plan.TiersOf(ref.Tiers)
	experts := 0
	if tiers != nil {
		experts = tiers.Experts
	}
	if pack.Slotted {
		experts = MostSlotted(c.plan.Experts)
	}
	if tiers == nil || ref.Slot < 0 || ref.Slot >= tiers.Slots() || pack.Experts != experts ||
		step.section.Layers == 0 {
		c.fail(step.path(".w"), "%s is one of %d experts in a slot that the plan's capacity tiers do not have", ref,
			pack.Experts)
		return
	}
	c.tieredLayers(step.path(".w"), tiers, step.section.First, step.section.First+step.section.Layers)
}

// headsWeight checks a weight that says how the heads of an attention are rounded: its numbers come from the
// calibration alone, and are those for the share of positions that the plan keeps.
func (c *checker) headsWeight(path string, weight *op.Weight) {
	other := *weight
	other.Name, other.HeadsOf, other.Density, other.Layers = "", "", 0, nil
	if want := (op.Weight{K: 1, N: weight.N}); !reflect.DeepEqual(other, want) || weight.N%3 != 0 || weight.N < 3 {
		c.fail(path, "weight %q says how the heads of %q are rounded, and has other fields than three numbers a head",
			weight.Name, weight.HeadsOf)
	}
	if at := c.plan.Attention; at == nil || at.Density != weight.Density {
		c.fail(path, "weight %q keeps a share %v of the positions, and the plan keeps another", weight.Name,
			weight.Density)
	}
	if c.plan.Calibration() == "" {
		c.fail(path, "weight %q is from a calibration, and none is among the inputs", weight.Name)
	}
}

// stepReferences checks everything that a step names: graph, buffers, packs and flags.
func (c *checker) stepReferences(step stepAt) {
	graph := c.graphOf[step.Run]
	switch {
	case graph == nil:
		c.fail(step.path(".run"), "unknown graph %q", step.Run)
	case graph.Proc != step.lane.Proc:
		c.fail(step.path(".run"), "graph %q is for %q, and this is the lane of %q", step.Run, graph.Proc,
			step.lane.Proc)
	}
	for _, view := range slices.Concat(step.In, step.Out) {
		if c.buffers[view.Buffer] == nil {
			c.fail(step.path(""), "unknown buffer %q", view.Buffer)
		}
	}
	section := step.section
	for _, ref := range step.W {
		pack := c.packs[ref.Pack]
		if pack == nil {
			c.fail(step.path(".w"), "unknown pack %q", ref.Pack)
			continue
		}
		if weight := c.weightOf[pack.Weight]; weight != nil && len(weight.Layers) > 0 { // an unknown one is found above
			c.layersOf(step, ref, weight)
		}
		if ref.Tiers > 0 {
			c.slotRef(step, ref, pack)
		}
	}
	for _, wait := range step.Wait {
		if wait.Flag < 0 || wait.Flag >= section.Flags || wait.Back && section.Layers == 0 {
			c.fail(step.path(".wait"), "flag %d of %d, back %v in a section of %d layers",
				wait.Flag, section.Flags, wait.Back, section.Layers)
		}
	}
	if step.Set != nil && (*step.Set < 0 || *step.Set >= section.Flags) {
		c.fail(step.path(".set"), "flag %d, want 0..%d", *step.Set, section.Flags-1)
	}
}

// layersOf checks that a weight of layers exists in every layer that the step's section runs.
func (c *checker) layersOf(step stepAt, ref WeightRef, weight *op.Weight) {
	section := step.section
	if section.Layers == 0 {
		c.fail(step.path(".w"), "pack %q belongs to layers, and the section to none", ref.Pack)
	}
	for layer := section.First; layer < section.First+section.Layers; layer++ {
		if !weight.InLayer(layer) {
			c.fail(step.path(".w"), "pack %q has layers %v, and the section runs layer %d", ref.Pack, weight.Layers,
				layer)
			break
		}
	}
}
