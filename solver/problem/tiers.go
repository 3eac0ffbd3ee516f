package problem

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
)

// Limits of a tiers instance.
const (
	MaxTierChoices = 32
	MaxTierLoads   = 1 << 25 // layers * experts * observed chunks
	MaxTierRows    = 1 << 16 // routed to one expert in one chunk
	// TierOne is the whole of a multiplier. Sums of so many ns, multiplied by it, stay below maxTierTotal.
	TierOne      = 1 << 10
	maxTierTotal = 1 << 60
	maxTierBytes = 1 << 50 // of a limit, and of what a slot takes of it
)

// Tiers is the capacity-tier problem of a mixture of experts (NPUMoE sec. 4.1 to 4.3). A processor of static shapes
// computes an expert in a slot, which has as many rows as are reserved for it: its tier. All layers have the same
// slots, so that they share graphs; each layer puts its own experts there. Slots of one tier are divided into groups, a
// launch each. Rows beyond a slot, and all rows of experts without one, are computed by the control processor, which
// takes any number; with Drop rows beyond a slot are left out.
//
// Both processors work at the same time. A layer takes for one observed chunk
//
//	max(sum of the groups' times, CallNS + sum over the experts of CPUNS[rows left]) + LayerNS
//
// and the sum of both with Serial. What is minimised is the sum over layers and observed chunks, so that the joint
// distribution of loads counts, with ShapeNS for each different graph. Without any slot LayerNS does not count: that is
// the dynamic plan, which is one of the choices. Limits say what slots may hold: large ones have large buffers, too.
type Tiers struct {
	Name       string
	Tile       int   // capacities are multiples of it
	Capacities []int // rows reserved, ascending
	MaxTiers   int   // capacities in use
	Serial     bool  // the processors share a core

	ExpertBytes int64 // of one expert's weights
	GraphBytes  int64 // limit of a group, 0: none
	MaxGraphs   int64 // limit of different graphs, each a number of experts and of rows; 0: none, -1: no room for one
	OwnGraphs   bool  // every group is another graph, since weights are part of it

	Limits []TierLimit // that all slots keep together

	Drop       bool  // rows beyond a slot are left out
	MaxDropPPM int64 // of the rows routed in a layer over all observed chunks, in parts per million

	GroupNS [][]int64 // by tier and experts less one: a launch with all that belongs to it
	CPUNS   []int64   // an expert on the control processor, by rows from 0, which is free
	CallNS  int64     // of the control processor's products, in each layer
	LayerNS int64     // of a layer with slots, beside its processors' queues: hand-overs
	ShapeNS int64     // of every different graph: its part of opening the bundle, by chunk

	Layers []TierLayer
}

// TierLimit bounds what all slots hold of something together: the region of their processor, or the memory of the
// process. Weights are resident in every layer; buffers of packed rows and of results are shared by the layers.
type TierLimit struct {
	Name   string
	Bytes  int64 // at most
	Expert int64 // bytes of an expert in a slot, in all layers together
	Row    int64 // bytes of a row of a slot
}

// Slot returns what a slot of so many rows holds.
func (l *TierLimit) Slot(rows int) int64 { return l.Expert + l.Row*int64(rows) }

// Taken returns what slots, by tier, hold.
func (l *TierLimit) Taken(tiers *Tiers, slots []int) (bytes int64) {
	for tier, count := range slots {
		bytes += int64(count) * l.Slot(tiers.Capacities[tier])
	}
	return bytes
}

// Overfull returns the first limit that slots, by tier, exceed, nil where they keep all.
func (p *Tiers) Overfull(slots []int) *TierLimit {
	for i := range p.Limits {
		if p.Limits[i].Taken(p, slots) > p.Limits[i].Bytes {
			return &p.Limits[i]
		}
	}
	return nil
}

// TierLayer is what was routed in one layer.
type TierLayer struct {
	Name string
	Rows [][]int32 // by expert and observed chunk, as many chunks for all experts
}

// TierSolution is an engine's answer. Objective and Bound are in ns, of all observed chunks together.
type TierSolution struct {
	Slots     []int   // by tier: slots of every layer
	Choices   [][]int // by layer and expert: 0 none, t > 0 a slot of Capacities[t-1]
	Objective int64
	Bound     int64 // no choice is cheaper
	Status    Status
	Nodes     int64
}

// Chunks returns the number of observed chunks.
func (p *Tiers) Chunks() int { return len(p.Layers[0].Rows[0]) }

// Experts returns the number of experts of a layer.
func (p *Tiers) Experts() int { return len(p.Layers[0].Rows) }

// Validate reports the first thing that makes the instance meaningless.
func (p *Tiers) Validate() error {
	for _, check := range []func() error{p.validateCapacities, p.validateSizes, p.validateLimits, p.validateTimes} {
		if err := check(); err != nil {
			return diag.New(diag.ClassInternal, "tiers %q: %v", p.Name, err)
		}
	}
	for i := range p.Layers {
		if err := p.validateLayer(&p.Layers[i]); err != nil {
			return diag.New(diag.ClassInternal, "tiers %q: layer %q: %v", p.Name, p.Layers[i].Name, err)
		}
	}
	return nil
}

// validateCapacities looks at the capacities that tiers may have.
func (p *Tiers) validateCapacities() error {
	isCountValid := len(p.Capacities) >= 1 && len(p.Capacities) < MaxTierChoices
	if p.Tile < 1 || p.MaxTiers < 1 || !isCountValid {
		return fmt.Errorf("%d capacities of multiples of %d, at most %d in use, want 1..%d of at least 1",
			len(p.Capacities), p.Tile, p.MaxTiers, MaxTierChoices-1)
	}
	for i, capacity := range p.Capacities {
		isInRange := capacity >= 1 && capacity <= MaxTierRows
		isAscending := i == 0 || p.Capacities[i-1] < capacity
		if !isInRange || !isAscending || capacity%p.Tile != 0 {
			return fmt.Errorf("capacities %v, want ascending multiples of %d up to %d", p.Capacities, p.Tile,
				MaxTierRows)
		}
	}
	return nil
}

// validateSizes looks at sizes of graphs and layers, and at how many rows may be dropped.
func (p *Tiers) validateSizes() error {
	switch {
	case p.ExpertBytes < 1 || p.GraphBytes < 0 || p.MaxGraphs < -1:
		return fmt.Errorf("experts of %d bytes, graphs of at most %d, at most %d graphs", p.ExpertBytes, p.GraphBytes,
			p.MaxGraphs)
	case !within(p.MaxDropPPM, 0, 1e6) || !p.Drop && p.MaxDropPPM != 0:
		return fmt.Errorf("at most %d parts per million are dropped, want 0..1000000, and 0 without dropping",
			p.MaxDropPPM)
	case len(p.Layers) == 0 || len(p.Layers[0].Rows) == 0 || len(p.Layers[0].Rows[0]) == 0:
		return errors.New("no layers, experts or observed chunks")
	case len(p.Layers)*p.Experts()*p.Chunks() > MaxTierLoads:
		return fmt.Errorf("more than %d observed loads", MaxTierLoads)
	}
	return nil
}

// validateLimits looks at what slots share.
func (p *Tiers) validateLimits() error {
	for i := range p.Limits {
		limit := &p.Limits[i]
		if !within(limit.Bytes, 1, maxTierBytes) || !within(limit.Expert, 0, maxTierBytes) ||
			!within(limit.Row, 0, maxTierBytes/MaxTierRows) || limit.Expert+limit.Row < 1 {
			return fmt.Errorf("limit %q: at most %d bytes, %d for an expert and %d for a row", limit.Name, limit.Bytes,
				limit.Expert, limit.Row)
		}
	}
	return nil
}

// validateTimes looks at the times, and that sums of them stay in range.
func (p *Tiers) validateTimes() error {
	if len(p.GroupNS) != len(p.Capacities) {
		return fmt.Errorf("groups of %d tiers, want %d", len(p.GroupNS), len(p.Capacities))
	}
	dearest := max(p.CallNS, p.LayerNS, p.ShapeNS)
	least := min(p.CallNS, p.LayerNS, p.ShapeNS)
	for tier, list := range p.GroupNS {
		if len(list) != len(p.GroupNS[0]) || p.GraphBytes > 0 && int64(len(list)) > p.GraphBytes/p.ExpertBytes {
			return fmt.Errorf("tier %d: groups of up to %d experts of %d bytes, in graphs of at most %d",
				p.Capacities[tier], len(list), p.ExpertBytes, p.GraphBytes)
		}
		for _, ns := range list {
			dearest, least = max(dearest, ns), min(least, ns)
		}
	}
	if len(p.CPUNS) == 0 || p.CPUNS[0] != 0 {
		return fmt.Errorf("times of %d numbers of rows, want at least that of none, which is 0", len(p.CPUNS))
	}
	for _, ns := range p.CPUNS {
		dearest, least = max(dearest, ns), min(least, ns)
	}
	if least < 0 || dearest > MaxNS {
		return fmt.Errorf("times of %d to %d ns, want 0..%d", least, dearest, int64(MaxNS))
	}
	terms := float64(len(p.Layers)) * float64(p.Chunks()) * float64(2*p.Experts()+len(p.Capacities)+4)
	if terms*float64(dearest)*TierOne > maxTierTotal {
		return fmt.Errorf("times of up to %d ns in %d layers of %d experts and %d chunks are out of range",
			dearest, len(p.Layers), p.Experts(), p.Chunks())
	}
	return nil
}

// validateLayer looks at the loads of a layer.
func (p *Tiers) validateLayer(layer *TierLayer) error {
	if len(layer.Rows) != p.Experts() {
		return fmt.Errorf("%d experts, want %d", len(layer.Rows), p.Experts())
	}
	for expert, list := range layer.Rows {
		if len(list) != p.Chunks() {
			return fmt.Errorf("%d observed chunks of expert %d, want %d", len(list), expert, p.Chunks())
		}
		for _, rows := range list {
			if rows < 0 || int(rows) >= len(p.CPUNS) {
				return fmt.Errorf("expert %d got %d rows, want 0..%d", expert, rows, len(p.CPUNS)-1)
			}
		}
	}
	return nil
}

// MostSlots returns how many slots a layer may have at most: one for each expert, and of the smallest tier as many as
// keep the limits.
func (p *Tiers) MostSlots() int { return p.MostOf(0) }

// MostOf is MostSlots of one tier.
func (p *Tiers) MostOf(tier int) int {
	most := int64(p.Experts())
	for i := range p.Limits {
		most = min(most, p.Limits[i].Bytes/p.Limits[i].Slot(p.Capacities[tier]))
	}
	if len(p.GroupNS[0]) == 0 || p.MaxGraphs < 0 {
		return 0
	}
	return int(most)
}

// Left returns how many rows an expert with a choice leaves, of those routed to it.
func (p *Tiers) Left(rows int32, choice int) int {
	if choice == 0 {
		return int(rows)
	}
	return max(0, int(rows)-p.Capacities[choice-1])
}

// LeftNS returns the control processor's time for an expert with a choice.
func (p *Tiers) LeftNS(rows int32, choice int) int64 {
	if p.Drop && choice > 0 {
		return 0
	}
	return p.CPUNS[p.Left(rows, choice)]
}

// Dropped returns how many rows of an expert are left out over all observed chunks.
func (p *Tiers) Dropped(layer, expert, choice int) (out int64) {
	if !p.Drop || choice == 0 {
		return 0
	}
	for _, rows := range p.Layers[layer].Rows[expert] {
		out += int64(p.Left(rows, choice))
	}
	return out
}

// MostDropped returns how many rows a layer may leave out over all observed chunks.
func (p *Tiers) MostDropped(layer int) int64 {
	all := int64(0)
	for _, list := range p.Layers[layer].Rows {
		for _, rows := range list {
			all += int64(rows)
		}
	}
	return all * p.MaxDropPPM / 1e6
}

// TierGroups are the cheapest divisions of slots of one tier into groups, by their number.
type TierGroups struct {
	NS     []int64 // in one layer
	Shapes []int64 // different graphs: of sizes, with OwnGraphs all
	Size   []int   // of all groups but the last, which may be smaller
}

// Sizes returns the groups' sizes for a number of slots.
func (g *TierGroups) Sizes(slots int) (out []int) {
	for slots > 0 {
		out = append(out, min(slots, g.Size[slots]))
		slots -= g.Size[slots]
	}
	return out
}

// Groups divides up to MostSlots slots of every tier: all groups have one size but the last, which has what is left.
// The size is the one whose groups take least time in all layers with what their graphs cost, of equal ones the
// largest.
func (p *Tiers) Groups() []TierGroups {
	most := p.MostSlots()
	out := make([]TierGroups, len(p.Capacities))
	for tier, list := range p.GroupNS {
		groups := TierGroups{make([]int64, most+1), make([]int64, most+1), make([]int, most+1)}
		for slots := 1; slots <= most; slots++ {
			best := int64(math.MaxInt64)
			for size := min(slots, len(list)); size >= 1; size-- {
				ns, shapes := int64(slots/size)*list[size-1], int64(1)
				if rest := slots % size; rest > 0 {
					ns, shapes = ns+list[rest-1], 2
				}
				if p.OwnGraphs {
					shapes = int64((slots + size - 1) / size)
				}
				if cost := int64(len(p.Layers))*ns + shapes*p.ShapeNS; cost < best {
					best, groups.NS[slots], groups.Shapes[slots], groups.Size[slots] = cost, ns, shapes, size
				}
			}
		}
		out[tier] = groups
	}
	return out
}

// Time returns what slots, by tier, and the choices of all layers cost: the objective.
func (p *Tiers) Time(slots []int, choices [][]int) int64 {
	groups := p.Groups()
	dynamic := slices.Max(slots) == 0
	var npu, total int64
	for tier, count := range slots {
		npu += groups[tier].NS[count]
		total += groups[tier].Shapes[count] * p.ShapeNS * int64(p.Chunks())
	}
	for layer, list := range choices {
		for chunk := range p.Chunks() {
			cpu := p.CallNS
			for expert, choice := range list {
				cpu += p.LeftNS(p.Layers[layer].Rows[expert][chunk], choice)
			}
			switch {
			case dynamic:
				total += cpu
			case p.Serial:
				total += npu + cpu + p.LayerNS
			default:
				total += max(npu, cpu) + p.LayerNS
			}
		}
	}
	return total
}

// Broken names the first limit that a solution breaks, "" where it keeps all.
func (p *Tiers) Broken(slots []int, choices [][]int) string {
	all, used, shapes := 0, 0, int64(0)
	for _, count := range slots {
		if count > 0 {
			used++
		}
		all += count
	}
	if most := p.MostSlots(); all > most {
		return fmt.Sprintf("the number of slots: %d, and there is room for %d", all, most)
	}
	if limit := p.Overfull(slots); limit != nil {
		return fmt.Sprintf("%s: %d bytes, and at most %d", limit.Name, limit.Taken(p, slots), limit.Bytes)
	}
	groups := p.Groups()
	for tier, count := range slots {
		shapes += groups[tier].Shapes[count]
	}
	if used > p.MaxTiers {
		return fmt.Sprintf("the number of tiers: %d, and at most %d", used, p.MaxTiers)
	}
	if p.MaxGraphs > 0 && shapes > p.MaxGraphs {
		return fmt.Sprintf("the number of graphs: %d, and at most %d", shapes, p.MaxGraphs)
	}
	for layer, list := range choices {
		dropped := int64(0)
		for expert, choice := range list {
			dropped += p.Dropped(layer, expert, choice)
		}
		if dropped > p.MostDropped(layer) {
			return fmt.Sprintf("the share of rows that layer %d drops", layer)
		}
	}
	return ""
}

// Verify recomputes a solution from the instance: every slot of every layer has an expert, every limit is kept, the
// objective is what the choices cost, and the bound does not exceed it.
func (p *Tiers) Verify(solution TierSolution) error {
	fail := func(format string, args ...any) error {
		return diag.New(diag.ClassInternal, "verify solution of tiers %q: %s", p.Name, fmt.Sprintf(format, args...))
	}
	if len(solution.Slots) != len(p.Capacities) || len(solution.Choices) != len(p.Layers) {
		return fail("slots of %d tiers and choices for %d layers, want %d and %d",
			len(solution.Slots), len(solution.Choices), len(p.Capacities), len(p.Layers))
	}
	for layer, list := range solution.Choices {
		counts := make([]int, len(p.Capacities)+1)
		for _, choice := range list {
			if choice < 0 || choice >= len(counts) {
				return fail("layer %d: choice %d of %d", layer, choice, len(counts))
			}
			counts[choice]++
		}
		if len(list) != p.Experts() || !slices.Equal(counts[1:], solution.Slots) {
			return fail("layer %d: experts in slots %v, want %v", layer, counts[1:], solution.Slots)
		}
	}
	if broken := p.Broken(solution.Slots, solution.Choices); broken != "" {
		return fail("breaks %s", broken)
	}
	if got := p.Time(solution.Slots, solution.Choices); got != solution.Objective {
		return fail("objective is %d, and its choices cost %d", solution.Objective, got)
	}
	if solution.Bound > solution.Objective || (solution.Status == Optimal) != (solution.Bound == solution.Objective) {
		return fail("status %q with objective %d and bound %d", solution.Status, solution.Objective, solution.Bound)
	}
	return nil
}
