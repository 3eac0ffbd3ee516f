package problem

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
)

// Limits of a tiers instance.
const (
	MaxTierChoices = 32
	maxTierCells   = 1 << 22 // layers * experts * choices
	MaxTierLoads   = 1 << 25 // layers * experts * observed chunks
	MaxTierRows    = 1 << 16 // routed to one expert in one chunk
	maxTierTotal   = 1 << 46 // ns, or the like, of one chunk: sums stay exact in float64
)

// Tiers is the capacity-tier problem of a model with experts (NPUMoE sec. 4.1 to 4.3). On a processor of static
// shapes (the NPU) an expert computes as many rows as are reserved for it, its tier, whatever was routed to it;
// experts of one tier and layer are launched in groups, which one graph holds. Every expert of every layer gets a
// choice: 0 is to stay on the CPU, which computes the rows there are; t > 0 is Capacities[t-1] on the NPU. Rows
// beyond a tier go to the CPU (the exact policy) or are dropped (Prune), those of the lowest saliency first.
//
// The expected time of a layer for one chunk of tokens is (NPUMoE sec. 3.2)
//
//	max( sum over the groups GroupNS, sum over the experts of the mean of CPUNS[rows on the CPU] )
//	+ SyncNS if any is on the NPU
//
// Every group is launched for every chunk, so the NPU's queue takes the same each time. The routing names the rows that
// overflow before anything is launched, so the CPU works beside the queue; where it cannot (Serial: they share a core)
// both add up. The maximum is of means: chunks in which the CPU takes longer than on average make the mean of maxima
// larger, and it is at most the sum.
type Tiers struct {
	Name       string
	Tile       int   // capacities are multiples of it
	Capacities []int // rows reserved, ascending
	MaxTiers   int   // capacities in use, over all layers

	ExpertBytes int64 // of one expert's weights
	GraphBytes  int64 // limit of one graph, 0: none
	RegionBytes int64 // limit of all experts on the NPU, 0: none
	MaxGraphs   int64 // limit of all groups, each a graph with its own weights, 0: none, -1: there is no room for one
	Serial      bool  // NPU and CPU do not work at the same time

	// Prune drops rows beyond a tier. MaxDropPPM and MaxLayerDropPPM bound the expected share of all routed rows, of
	// the model and of every layer, in parts per million. MaxLostPPM and MaxLayerLostPPM bound the expected share of
	// the squared L2 norm of what experts add to the residual stream, where layers have a Saliency: of every layer, and
	// of the mean of all layers.
	Prune                       bool
	MaxDropPPM, MaxLayerDropPPM int64
	MaxLostPPM, MaxLayerLostPPM int64

	NPUMilliwatts, CPUMilliwatts int64 // for Energy, modelled

	Chunks []TierChunk // candidates, one is chosen

	Start *TierSolution // to begin with, chunk and choices; nil: none is known

	Minimise TierMeasure           // the zero value is TierTime
	Bounds   map[TierMeasure]int64 // at most so much of a measure
}

// TierMeasure is what a tiers problem minimises or bounds. Sums over all observed chunks are the same for every chunk
// length that divides them; what one chunk takes is counted for Weight chunks.
type TierMeasure string

const (
	TierTime TierMeasure = "time" // ns, of Weight chunks
	// TierEnergy is in nJ, of Weight chunks: times of the processors times their power, hand-overs not counted.
	TierEnergy   TierMeasure = "energy"
	TierOff      TierMeasure = "off"      // routed rows, over all observed chunks, that the NPU does not compute
	TierLaunches TierMeasure = "launches" // groups, of Weight chunks: synchronisations of CPU and NPU
	// TierLost is the saliency of dropped rows: 1/SaliencyOne of a layer's squared L2 norm, over all layers.
	TierLost TierMeasure = "lost"
)

// TierMeasures lists all of them. The paper's order (NPUMoE sec. 3.2) is PaperOrder under a bound on TierTime.
var TierMeasures = []TierMeasure{TierTime, TierEnergy, TierOff, TierLaunches, TierLost}

// PaperOrder is what NPUMoE sec. 3.2 prefers, first to last: most rows on the NPU, then energy, then synchronisations.
var PaperOrder = []TierMeasure{TierOff, TierEnergy, TierLaunches}

// TierChunk is one candidate of the chunk length.
type TierChunk struct {
	Tokens int
	// Weight is how many chunks there are while every other candidate processes as many tokens; all candidates observed
	// the same tokens.
	Weight  int64
	GroupNS [][]int64   // by tier and experts less one: a launch with all that belongs to it
	CPUNS   []int64     // an expert on the CPU, by rows from 0, which is free, to the most that any expert got
	SyncNS  int64       // of a layer with an expert on the NPU
	Layers  []TierLayer // the same for all chunks
}

// TierLayer is what was routed in one layer.
type TierLayer struct {
	Name string
	Rows [][]int32 // by expert and observed chunk, as many chunks for all experts
	// Saliency is what the rows of each expert add to the layer's output (see Curve), nil where nobody measured it.
	Saliency []Curve
}

// TierSolution is an engine's answer.
type TierSolution struct {
	Chunk     int
	Choices   [][]int // by layer and expert
	Objective int64   // of the measure
	Bound     int64
	Status    Status
	Nodes     int64
	Stages    []TierStage // of InOrder, one a measure
}

// TierStage is what minimising one measure of several ended with.
type TierStage struct {
	Measure   TierMeasure
	Objective int64
	Bound     int64 // with the measures before it held at what they achieved
}

// Validate reports the first thing that makes the instance meaningless.
func (p *Tiers) Validate() error {
	fail := func(format string, args ...any) error {
		return diag.New(diag.ClassInternal, "tiers %q: %s", p.Name, fmt.Sprintf(format, args...))
	}
	if p.Tile < 1 || len(p.Capacities) < 1 || len(p.Capacities) >= MaxTierChoices {
		return fail("%d capacities of multiples of %d, want 1..%d of at least 1",
			len(p.Capacities), p.Tile, MaxTierChoices-1)
	}
	for i, capacity := range p.Capacities {
		if capacity < 1 || capacity > MaxTierRows || capacity%p.Tile != 0 || i > 0 && p.Capacities[i-1] >= capacity {
			return fail("capacities %v, want ascending multiples of %d up to %d", p.Capacities, p.Tile, MaxTierRows)
		}
	}
	if p.MaxTiers < 1 {
		return fail("at most %d tiers, want 1 or more", p.MaxTiers)
	}
	if p.ExpertBytes < 1 || p.GraphBytes < 0 || p.RegionBytes < 0 {
		return fail("experts of %d bytes, graphs of at most %d, a region of %d",
			p.ExpertBytes, p.GraphBytes, p.RegionBytes)
	}
	most := int64(0) // of shares
	if p.Prune {
		most = 1e6
	}
	if !within(p.MaxDropPPM, 0, most) || !within(p.MaxLayerDropPPM, 0, most) {
		return fail("at most %d and %d parts per million are dropped, want 0..1000000, and 0 without pruning",
			p.MaxDropPPM, p.MaxLayerDropPPM)
	}
	if !within(p.MaxLostPPM, 0, most) || !within(p.MaxLayerLostPPM, 0, most) {
		return fail("at most %d and %d parts per million of the squared norm are lost, want 0..1000000, "+
			"and 0 without pruning", p.MaxLostPPM, p.MaxLayerLostPPM)
	}
	if p.MaxGraphs < -1 {
		return fail("at most %d graphs, want -1 or more", p.MaxGraphs)
	}
	if !within(p.NPUMilliwatts, 0, 1e7) || !within(p.CPUMilliwatts, 0, 1e7) {
		return fail("processors take %d and %d mW, want 0..10000000", p.NPUMilliwatts, p.CPUMilliwatts)
	}
	if p.Minimise != "" && !slices.Contains(TierMeasures, p.Minimise) {
		return fail("minimises %q", p.Minimise)
	}
	for measure, bound := range p.Bounds {
		if !slices.Contains(TierMeasures, measure) || bound < 0 {
			return fail("bound of %d on %q", bound, measure)
		}
	}
	if !within(len(p.Chunks), 1, 64) {
		return fail("%d chunk lengths, want 1..64", len(p.Chunks))
	}
	if err := p.validateChunks(); err != nil {
		return fail("%v", err)
	}
	return nil
}

// validateChunks looks at each chunk, and that all have the same layers and experts.
func (p *Tiers) validateChunks() error {
	for i := range p.Chunks {
		if err := p.validateChunk(&p.Chunks[i]); err != nil {
			return fmt.Errorf("chunk of %d tokens: %v", p.Chunks[i].Tokens, err)
		}
		if i > 0 && len(p.Chunks[i].Layers) != len(p.Chunks[0].Layers) {
			return fmt.Errorf("chunks of %d and %d layers", len(p.Chunks[0].Layers), len(p.Chunks[i].Layers))
		}
		for l := range p.Chunks[i].Layers {
			if len(p.Chunks[i].Layers[l].Rows) != len(p.Chunks[0].Layers[l].Rows) {
				return fmt.Errorf("layer %d has other experts in chunk %d", l, i)
			}
		}
	}
	return nil
}

// validateChunk looks at one chunk length: weights, times, and then the layers.
func (p *Tiers) validateChunk(chunk *TierChunk) error {
	if chunk.Tokens < 1 || chunk.Weight < 1 || chunk.Weight > 1<<20 {
		return fmt.Errorf("weight is %d, want 1..%d", chunk.Weight, 1<<20)
	}
	if len(chunk.GroupNS) != len(p.Capacities) {
		return fmt.Errorf("groups of %d tiers, want %d", len(chunk.GroupNS), len(p.Capacities))
	}
	var dearest int64
	for tier, list := range chunk.GroupNS {
		if len(list) != len(chunk.GroupNS[0]) || p.GraphBytes > 0 && int64(len(list)) > p.GraphBytes/p.ExpertBytes {
			return fmt.Errorf("tier %d: groups of up to %d experts of %d bytes, in graphs of at most %d",
				p.Capacities[tier], len(list), p.ExpertBytes, p.GraphBytes)
		}
		for size, ns := range list {
			if ns < 0 || ns > MaxNS {
				return fmt.Errorf("tier %d: a group of %d experts takes %d ns, want 0..%d",
					p.Capacities[tier], size+1, ns, int64(MaxNS))
			}
		}
		if len(list) > 0 {
			dearest = max(dearest, list[0])
		}
	}
	if len(chunk.CPUNS) < 1 || chunk.CPUNS[0] != 0 || chunk.SyncNS < 0 || chunk.SyncNS > MaxNS {
		return fmt.Errorf("times of %d numbers of rows on the CPU, that of none being 0, and %d ns of synchronisation",
			len(chunk.CPUNS), chunk.SyncNS)
	}
	for rows, ns := range chunk.CPUNS {
		if ns < 0 || ns > MaxNS {
			return fmt.Errorf("%d rows take %d ns on the CPU, want 0..%d", rows, ns, int64(MaxNS))
		}
		dearest = max(dearest, ns)
	}
	if len(chunk.Layers) == 0 {
		return fmt.Errorf("no layers")
	}
	return p.validateLayers(chunk, dearest)
}

// validateLayers looks at the layers of a chunk, of which nothing takes longer than dearest.
func (p *Tiers) validateLayers(chunk *TierChunk, dearest int64) error {
	cells, loads := 0, 0
	var worst int64
	for l := range chunk.Layers {
		layer := &chunk.Layers[l]
		if len(layer.Rows) == 0 {
			return fmt.Errorf("layer %q has no experts", layer.Name)
		}
		if err := ValidateCurves(layer.Saliency, len(layer.Rows)); err != nil {
			return fmt.Errorf("layer %q: %w", layer.Name, err)
		}
		if (layer.Saliency == nil) != (chunk.Layers[0].Saliency == nil) {
			return fmt.Errorf("layer %q: saliency is known of some layers only", layer.Name)
		}
		cells += len(layer.Rows) * (len(p.Capacities) + 1)
		worst += int64(len(layer.Rows))*dearest + chunk.SyncNS
		if worst > maxTierTotal/chunk.Weight {
			return fmt.Errorf("costs of up to %d ns, %d times, are out of range", worst, chunk.Weight)
		}
		for expert, list := range layer.Rows {
			if len(list) == 0 || len(list) != len(layer.Rows[0]) {
				return fmt.Errorf("layer %q: %d observed chunks of expert %d, want %d, at least 1",
					layer.Name, len(list), expert, len(layer.Rows[0]))
			}
			loads += len(list)
			if cells > maxTierCells || loads > MaxTierLoads {
				return fmt.Errorf("more than %d choices or %d observed loads", maxTierCells, MaxTierLoads)
			}
			for _, rows := range list {
				if rows < 0 || int(rows) >= len(chunk.CPUNS) {
					return fmt.Errorf("layer %q: expert %d got %d rows, want 0..%d",
						layer.Name, expert, rows, len(chunk.CPUNS)-1)
				}
			}
		}
	}
	return nil
}

// TierTable is what one chunk length's choices cost: the measures are sums over the cells of the
// choices, over functions of how many experts of a layer are in each tier, and over layers with any on the NPU.
type TierTable struct {
	Groups []TierGroups // by tier
	Cells  [][][]TierCell
	Rows   []int64 // by layer: routed over all observed chunks
	Weight int64
	SyncNS int64
	p      *Tiers
}

// TierCell is one expert's part in one choice.
type TierCell struct {
	CPUNS    int64 // expected, of one chunk
	EnergyNJ int64 // of those
	Off      int64 // rows that the NPU does not compute, over all observed chunks
	Drop     int64 // rows that nobody computes
	// Lost is what those would have added, in 1/SaliencyOne of the layer's squared norm; 0 where no saliency is known.
	Lost int64
}

// TierGroups are the cheapest divisions of n experts of one tier into groups, by n: the least time, then
// the fewest launches, then large groups first. Where no graph holds a single expert only n = 0 has one.
type TierGroups struct {
	NS, EnergyNJ, Launches []int64
	size                   []int // of the first group
}

// Sizes is the division of n experts.
func (g *TierGroups) sizes(experts int) (out []int) {
	for experts > 0 {
		out = append(out, g.size[experts])
		experts -= g.size[experts]
	}
	return out
}

// groups divides up to most experts of one tier, by dynamic programming over their number; list is the time of a group
// by its experts less one.
func (p *Tiers) groups(list []int64, most int) TierGroups {
	counts := most + 1
	if len(list) == 0 {
		counts = 1
	}
	out := TierGroups{make([]int64, counts), make([]int64, counts), make([]int64, counts), make([]int, counts)}
	for i := 1; i < counts; i++ {
		out.NS[i] = math.MaxInt64
		for size := min(i, len(list)); size >= 1; size-- {
			ns, launches := out.NS[i-size]+list[size-1], out.Launches[i-size]+1
			if ns < out.NS[i] || ns == out.NS[i] && launches < out.Launches[i] {
				out.NS[i], out.Launches[i], out.size[i] = ns, launches, size
			}
		}
		size := out.size[i]
		out.EnergyNJ[i] = out.EnergyNJ[i-size] + energy(list[size-1], p.NPUMilliwatts)
	}
	return out
}

// energy is in nJ.
func energy(ns, milliwatts int64) int64 { return ns / 1000 * milliwatts }

// Table computes what the choices of one chunk length cost: for every layer, expert and choice, the rows that are not
// on the NPU and the mean time of the CPU. It looks at every observed chunk once per choice: layers * experts * choices
// * chunks steps.
func (p *Tiers) Table(chunk int) *TierTable {
	from := &p.Chunks[chunk]
	table := &TierTable{Weight: from.Weight, SyncNS: from.SyncNS, p: p}
	most := 0
	for layer := range from.Layers {
		most = max(most, len(from.Layers[layer].Rows))
	}
	for _, list := range from.GroupNS {
		table.Groups = append(table.Groups, p.groups(list, most))
	}
	var lowest orderStatistics
	for layer := range from.Layers {
		var cells [][]TierCell
		var all int64
		for expert, rows := range from.Layers[layer].Rows {
			list := make([]TierCell, len(p.Capacities)+1)
			for choice := range list {
				capacity := 0
				if choice > 0 {
					capacity = p.Capacities[choice-1]
				}
				var ns, over int64
				for _, routed := range rows {
					// Rows beyond the tier go to the CPU, chunk by chunk; choice 0 has no tier, so that all of them do.
					left := max(0, int(routed)-capacity)
					over += int64(left)
					ns += from.CPUNS[left]
				}
				cell := &list[choice]
				cell.Off = over
				// Dropped rows cost nobody time.
				if choice > 0 && p.Prune {
					cell.Drop = over
					if curves := from.Layers[layer].Saliency; curves != nil && over > 0 {
						cell.Lost = curves[expert].lost(rows, capacity, &lowest)
					}
					continue
				}
				// The mean over the observed chunks, rounded.
				cell.CPUNS = (ns + int64(len(rows))/2) / int64(len(rows))
				cell.EnergyNJ = energy(cell.CPUNS, p.CPUMilliwatts)
			}
			all += list[0].Off
			cells = append(cells, list)
		}
		table.Cells = append(table.Cells, cells)
		table.Rows = append(table.Rows, all)
	}
	return table
}

// TierCost is what a solution costs: of one chunk, or of one layer for one chunk.
type TierCost struct {
	NS                   int64 // expected time
	NPUNS, CPUNS, SyncNS int64
	EnergyNJ             int64
	Launches             int64
	Experts              int64 // on the NPU
	Rows                 int64 // routed, over all observed chunks, as the next three
	Off, Overflow        int64 // rows not on the NPU; of those, routed to experts on it
	Drop                 int64 // nobody computes
	Lost                 int64 // TierLost
}

// add adds the cost of further experts, measure by measure.
func (c *TierCost) add(more TierCost) {
	c.NS, c.Lost = c.NS+more.NS, c.Lost+more.Lost
	c.NPUNS, c.CPUNS, c.SyncNS = c.NPUNS+more.NPUNS, c.CPUNS+more.CPUNS, c.SyncNS+more.SyncNS
	c.EnergyNJ, c.Launches, c.Experts = c.EnergyNJ+more.EnergyNJ, c.Launches+more.Launches, c.Experts+more.Experts
	c.Rows, c.Off, c.Overflow, c.Drop = c.Rows+more.Rows, c.Off+more.Off, c.Overflow+more.Overflow, c.Drop+more.Drop
}

// Layer is what the choices of one layer cost.
func (t *TierTable) Layer(layer int, choices []int) (out TierCost) {
	// Experts of one tier are interchangeable for the NPU: only their number counts.
	count := make([]int, len(t.Groups))
	for expert, choice := range choices {
		cell := t.Cells[layer][expert][choice]
		out.CPUNS += cell.CPUNS
		out.EnergyNJ += cell.EnergyNJ
		out.Off += cell.Off
		out.Drop += cell.Drop
		out.Lost += cell.Lost
		if choice > 0 {
			count[choice-1]++
			out.Overflow += cell.Off
			out.Experts++
		}
	}
	for choice, n := range count {
		groups := &t.Groups[choice]
		out.NPUNS += groups.NS[n]
		out.EnergyNJ += groups.EnergyNJ[n]
		out.Launches += groups.Launches[n]
	}
	if out.Experts > 0 {
		out.SyncNS = t.SyncNS
	}
	// Both work side by side, unless they share a core.
	out.NS = max(out.NPUNS, out.CPUNS) + out.SyncNS
	if t.p.Serial {
		out.NS = out.NPUNS + out.CPUNS + out.SyncNS
	}
	out.Rows = t.Rows[layer]
	return out
}

// Total is what the choices of all layers cost.
func (t *TierTable) Total(choices [][]int) (out TierCost) {
	for l := range choices {
		out.add(t.Layer(l, choices[l]))
	}
	return out
}

// Times is how often a measure counts what a chunk costs: Weight times, and once what is a sum over all observed chunks
// already.
func (t *TierTable) Times(measure TierMeasure) int64 {
	if measure == TierOff || measure == TierLost {
		return 1
	}
	return t.Weight
}

// Of is the measure of chunks that cost so much.
func (t *TierTable) Of(measure TierMeasure, cost TierCost) int64 {
	switch measure {
	case TierEnergy:
		return t.Weight * cost.EnergyNJ
	case TierOff:
		return cost.Off
	case TierLaunches:
		return t.Weight * cost.Launches
	case TierLost:
		return cost.Lost
	}
	return t.Weight * cost.NS
}

// Measure is what p minimises.
func (p *Tiers) Measure() TierMeasure {
	if p.Minimise == "" {
		return TierTime
	}
	return p.Minimise
}

// LayerDrop is how many rows a layer may drop, TotalDrop how many the model, over all observed chunks.
func (t *TierTable) LayerDrop(layer int) int64 { return share(t.Rows[layer], t.p.MaxLayerDropPPM) }

// TotalDrop is how many rows of all layers may be dropped.
func (t *TierTable) TotalDrop() int64 {
	var all int64
	for _, rows := range t.Rows {
		all += rows
	}
	return share(all, t.p.MaxDropPPM)
}

// LayerLost is how much of its saliency a layer may lose, TotalLost how much all layers together, in 1/SaliencyOne;
// false: without limit, as nothing is dropped or no saliency is known.
func (t *TierTable) LayerLost() (int64, bool) {
	return t.p.MaxLayerLostPPM * (SaliencyOne / 1e6), t.salient()
}

// TotalLost is LayerLost of all layers.
func (t *TierTable) TotalLost() (int64, bool) {
	return t.p.MaxLostPPM * (SaliencyOne / 1e6) * int64(len(t.Cells)), t.salient()
}

// salient reports whether limits on lost saliency mean something.
func (t *TierTable) salient() bool {
	return t.p.Prune && t.p.Chunks[0].Layers[0].Saliency != nil
}

// share is a part of rows in parts per million, rounded down.
func share(rows, ppm int64) int64 { return rows * ppm / 1e6 }

// Broken names the first limit that choices break, "" where they keep all.
func (t *TierTable) Broken(choices [][]int) string {
	used := map[int]bool{}
	var total TierCost
	for layer, list := range choices {
		count := make([]int, len(t.Groups))
		for _, choice := range list {
			if choice > 0 {
				used[choice] = true
				// Groups end where no division into graphs of at most GraphBytes exists.
				if count[choice-1]++; count[choice-1] >= len(t.Groups[choice-1].NS) {
					return "the bytes of a graph"
				}
			}
		}
		cost := t.Layer(layer, list)
		if cost.Drop > 0 && cost.Drop > t.LayerDrop(layer) {
			return fmt.Sprintf("the share of rows that layer %d drops", layer)
		}
		if most, ok := t.LayerLost(); ok && cost.Lost > most {
			return fmt.Sprintf("the share of the squared norm that layer %d loses", layer)
		}
		total.add(cost)
	}
	if len(used) > t.p.MaxTiers {
		return fmt.Sprintf("the number of tiers: %d, and at most %d", len(used), t.p.MaxTiers)
	}
	if total.Drop > 0 && total.Drop > t.TotalDrop() {
		return "the share of rows that are dropped"
	}
	if most, ok := t.TotalLost(); ok && total.Lost > most {
		return "the share of the squared norm that is lost"
	}
	if t.p.MaxGraphs != 0 && total.Launches > max(0, t.p.MaxGraphs) {
		return fmt.Sprintf("the number of graphs: %d, and at most %d", total.Launches, max(0, t.p.MaxGraphs))
	}
	if experts := t.p.NPUExperts(); total.Experts > experts {
		return fmt.Sprintf("the region: %d experts, and it holds %d", total.Experts, experts)
	}
	for _, measure := range TierMeasures {
		if bound, ok := t.p.Bounds[measure]; ok && t.Of(measure, total) > bound {
			return fmt.Sprintf("the bound on %s", measure)
		}
	}
	return ""
}

// NPUExperts is how many experts the region holds.
func (p *Tiers) NPUExperts() int64 {
	if p.RegionBytes == 0 {
		return math.MaxInt64
	}
	return p.RegionBytes / p.ExpertBytes
}

// Verify recomputes a solution from the instance: every choice exists, every limit is kept, the objective is
// what the choices cost, and the bound does not exceed it.
func (p *Tiers) Verify(solution TierSolution) error {
	fail := func(format string, args ...any) error {
		return diag.New(diag.ClassInternal, "verify solution of tiers %q: %s", p.Name, fmt.Sprintf(format, args...))
	}
	if solution.Chunk < 0 || solution.Chunk >= len(p.Chunks) {
		return fail("chunk %d of %d", solution.Chunk, len(p.Chunks))
	}
	layers := p.Chunks[solution.Chunk].Layers
	if len(solution.Choices) != len(layers) {
		return fail("choices for %d layers, want %d", len(solution.Choices), len(layers))
	}
	for layer, list := range solution.Choices {
		if len(list) != len(layers[layer].Rows) {
			return fail("%d choices for %d experts of layer %d", len(list), len(layers[layer].Rows), layer)
		}
		for expert, choice := range list {
			if choice < 0 || choice > len(p.Capacities) {
				return fail("layer %d, expert %d: choice %d of %d", layer, expert, choice, len(p.Capacities))
			}
		}
	}
	table := p.Table(solution.Chunk)
	if broken := table.Broken(solution.Choices); broken != "" {
		return fail("breaks %s", broken)
	}
	if got := table.Of(p.Measure(), table.Total(solution.Choices)); got != solution.Objective {
		return fail("objective is %d, and its choices cost %d", solution.Objective, got)
	}
	if solution.Bound > solution.Objective || solution.Status == Optimal && solution.Bound != solution.Objective {
		return fail("status %q with objective %d and bound %d", solution.Status, solution.Objective, solution.Bound)
	}
	return nil
}

// InOrder minimises one measure after the other, each bounded by the best found in what follows, which begins there.
// Objective and bound are the first measure's; the status is optimal where every measure is proved.
func (p *Tiers) InOrder(ctx context.Context, engine Engine, order []TierMeasure, limits Limits) (TierSolution, error) {
	posed := *p
	posed.Bounds = maps.Clone(p.Bounds)
	if posed.Bounds == nil {
		posed.Bounds = map[TierMeasure]int64{}
	}
	var out TierSolution
	for i, measure := range order {
		posed.Minimise = measure
		solution, err := engine.Tiers(ctx, &posed, limits)
		if err != nil {
			return TierSolution{}, err
		}
		out.Nodes += solution.Nodes
		switch {
		case i == 0:
			if out = solution; solution.Choices == nil {
				return solution, nil
			}
		case solution.Choices != nil:
			out.Chunk, out.Choices = solution.Chunk, solution.Choices
		}
		posed.Start = &TierSolution{Chunk: out.Chunk, Choices: out.Choices}
		table := p.Table(out.Chunk)
		posed.Bounds[measure] = table.Of(measure, table.Total(out.Choices))
		stage := TierStage{measure, posed.Bounds[measure], max(0, min(solution.Bound, posed.Bounds[measure]))}
		if solution.Choices == nil {
			stage.Bound = 0
		}
		out.Stages = append(out.Stages, stage)
		if solution.Status != Optimal {
			out.Status = Feasible
		}
	}
	return out, nil
}
