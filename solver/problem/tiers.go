package problem

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver/milp"
)

// Limits of a tiers instance.
const (
	MaxTierChoices = 32
	MaxTierCells   = 1 << 22 // layers * experts * choices
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
//	max( sum over the groups GroupNS, sum over the experts of the mean of CPUNS[rows on the CPU] ) + SyncNS if any is on the NPU
//
// Every group is launched for every chunk, so the NPU's queue takes the same each time. The routing names the rows that overflow before
// anything is launched, so the CPU works beside the queue; where it cannot (Serial: they share a core) both add up. The maximum is of means:
// chunks in which the CPU takes longer than on average make the mean of maxima larger, and it is at most the sum.
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

	// Prune drops rows beyond a tier. MaxDropPPM and MaxLayerDropPPM bound the expected share of all routed rows, of the model
	// and of every layer, in parts per million. MaxLostPPM and MaxLayerLostPPM bound the expected share of the squared L2 norm of what experts
	// add to the residual stream, where layers have a Saliency: of every layer, and of the mean of all layers.
	Prune                       bool
	MaxDropPPM, MaxLayerDropPPM int64
	MaxLostPPM, MaxLayerLostPPM int64

	NPUMilliwatts, CPUMilliwatts int64 // for Energy, modelled

	Chunks []TierChunk // candidates, one is chosen

	Start *TierSolution // to begin with, chunk and choices; nil: none is known

	Minimise TierMeasure           // the zero value is TierTime
	Bounds   map[TierMeasure]int64 // at most so much of a measure
}

// TierMeasure is what a tiers problem minimises or bounds. Sums over all observed chunks are the same for every chunk length that divides them; what
// one chunk takes is counted for Weight chunks.
type TierMeasure string

const (
	TierTime     TierMeasure = "time"     // ns, of Weight chunks
	TierEnergy   TierMeasure = "energy"   // nJ, of Weight chunks: times of the processors times their power, hand-overs not counted
	TierOff      TierMeasure = "off"      // routed rows, over all observed chunks, that the NPU does not compute
	TierLaunches TierMeasure = "launches" // groups, of Weight chunks: synchronisations of CPU and NPU
	TierLost     TierMeasure = "lost"     // saliency of dropped rows: 1/SaliencyOne of a layer's squared L2 norm, over all layers
)

// TierMeasures lists all of them. The paper's order (NPUMoE sec. 3.2) is PaperOrder under a bound on TierTime.
var TierMeasures = []TierMeasure{TierTime, TierEnergy, TierOff, TierLaunches, TierLost}

// PaperOrder is what NPUMoE sec. 3.2 prefers, first to last: most rows on the NPU, then energy, then synchronisations.
var PaperOrder = []TierMeasure{TierOff, TierEnergy, TierLaunches}

// TierChunk is one candidate of the chunk length.
type TierChunk struct {
	Tokens  int
	Weight  int64       // chunks while every other candidate processes as many tokens; all candidates observed the same tokens
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
		return fail("%d capacities of multiples of %d, want 1..%d of at least 1", len(p.Capacities), p.Tile, MaxTierChoices-1)
	}
	for i, c := range p.Capacities {
		if c < 1 || c > MaxTierRows || c%p.Tile != 0 || i > 0 && p.Capacities[i-1] >= c {
			return fail("capacities %v, want ascending multiples of %d up to %d", p.Capacities, p.Tile, MaxTierRows)
		}
	}
	if p.MaxTiers < 1 {
		return fail("at most %d tiers, want 1 or more", p.MaxTiers)
	}
	if p.ExpertBytes < 1 || p.GraphBytes < 0 || p.RegionBytes < 0 {
		return fail("experts of %d bytes, graphs of at most %d, a region of %d", p.ExpertBytes, p.GraphBytes, p.RegionBytes)
	}
	if p.MaxDropPPM < 0 || p.MaxLayerDropPPM < 0 || p.MaxDropPPM > 1e6 || p.MaxLayerDropPPM > 1e6 || !p.Prune && (p.MaxDropPPM > 0 || p.MaxLayerDropPPM > 0) {
		return fail("at most %d and %d parts per million are dropped, want 0..1000000, and 0 without pruning", p.MaxDropPPM, p.MaxLayerDropPPM)
	}
	if p.MaxLostPPM < 0 || p.MaxLayerLostPPM < 0 || p.MaxLostPPM > 1e6 || p.MaxLayerLostPPM > 1e6 || !p.Prune && (p.MaxLostPPM > 0 || p.MaxLayerLostPPM > 0) {
		return fail("at most %d and %d parts per million of the squared norm are lost, want 0..1000000, and 0 without pruning", p.MaxLostPPM, p.MaxLayerLostPPM)
	}
	if p.MaxGraphs < -1 {
		return fail("at most %d graphs, want -1 or more", p.MaxGraphs)
	}
	if p.NPUMilliwatts < 0 || p.NPUMilliwatts > 1e7 || p.CPUMilliwatts < 0 || p.CPUMilliwatts > 1e7 {
		return fail("processors take %d and %d mW, want 0..10000000", p.NPUMilliwatts, p.CPUMilliwatts)
	}
	if p.Minimise != "" && !slices.Contains(TierMeasures, p.Minimise) {
		return fail("minimises %q", p.Minimise)
	}
	for m, v := range p.Bounds {
		if !slices.Contains(TierMeasures, m) || v < 0 {
			return fail("bound of %d on %q", v, m)
		}
	}
	if len(p.Chunks) == 0 || len(p.Chunks) > 64 {
		return fail("%d chunk lengths, want 1..64", len(p.Chunks))
	}
	for i := range p.Chunks {
		if err := p.validateChunk(&p.Chunks[i]); err != nil {
			return fail("chunk of %d tokens: %v", p.Chunks[i].Tokens, err)
		}
		if i > 0 && len(p.Chunks[i].Layers) != len(p.Chunks[0].Layers) {
			return fail("chunks of %d and %d layers", len(p.Chunks[0].Layers), len(p.Chunks[i].Layers))
		}
		for l := range p.Chunks[i].Layers {
			if len(p.Chunks[i].Layers[l].Rows) != len(p.Chunks[0].Layers[l].Rows) {
				return fail("layer %d has other experts in chunk %d", l, i)
			}
		}
	}
	return nil
}

func (p *Tiers) validateChunk(c *TierChunk) error {
	if c.Tokens < 1 || c.Weight < 1 || c.Weight > 1<<20 {
		return fmt.Errorf("weight is %d, want 1..%d", c.Weight, 1<<20)
	}
	if len(c.GroupNS) != len(p.Capacities) {
		return fmt.Errorf("groups of %d tiers, want %d", len(c.GroupNS), len(p.Capacities))
	}
	var dearest int64
	for t, list := range c.GroupNS {
		if len(list) != len(c.GroupNS[0]) || p.GraphBytes > 0 && int64(len(list)) > p.GraphBytes/p.ExpertBytes {
			return fmt.Errorf("tier %d: groups of up to %d experts of %d bytes, in graphs of at most %d", p.Capacities[t], len(list), p.ExpertBytes, p.GraphBytes)
		}
		for g, ns := range list {
			if ns < 0 || ns > MaxNS {
				return fmt.Errorf("tier %d: a group of %d experts takes %d ns, want 0..%d", p.Capacities[t], g+1, ns, int64(MaxNS))
			}
		}
		if len(list) > 0 {
			dearest = max(dearest, list[0])
		}
	}
	if len(c.CPUNS) < 1 || c.CPUNS[0] != 0 || c.SyncNS < 0 || c.SyncNS > MaxNS {
		return fmt.Errorf("times of %d numbers of rows on the CPU, that of none being 0, and %d ns of synchronisation", len(c.CPUNS), c.SyncNS)
	}
	for r, ns := range c.CPUNS {
		if ns < 0 || ns > MaxNS {
			return fmt.Errorf("%d rows take %d ns on the CPU, want 0..%d", r, ns, int64(MaxNS))
		}
		dearest = max(dearest, ns)
	}
	if len(c.Layers) == 0 {
		return fmt.Errorf("no layers")
	}
	cells, loads := 0, 0
	var worst int64
	for l := range c.Layers {
		y := &c.Layers[l]
		if len(y.Rows) == 0 {
			return fmt.Errorf("layer %q has no experts", y.Name)
		}
		if err := ValidateCurves(y.Saliency, len(y.Rows)); err != nil {
			return fmt.Errorf("layer %q: %w", y.Name, err)
		}
		if (y.Saliency == nil) != (c.Layers[0].Saliency == nil) {
			return fmt.Errorf("layer %q: saliency is known of some layers only", y.Name)
		}
		cells += len(y.Rows) * (len(p.Capacities) + 1)
		worst += int64(len(y.Rows))*dearest + c.SyncNS
		if worst > maxTierTotal/c.Weight {
			return fmt.Errorf("costs of up to %d ns, %d times, are out of range", worst, c.Weight)
		}
		for e, list := range y.Rows {
			if len(list) == 0 || len(list) != len(y.Rows[0]) {
				return fmt.Errorf("layer %q: %d observed chunks of expert %d, want %d, at least 1", y.Name, len(list), e, len(y.Rows[0]))
			}
			loads += len(list)
			if cells > MaxTierCells || loads > MaxTierLoads {
				return fmt.Errorf("more than %d choices or %d observed loads", MaxTierCells, MaxTierLoads)
			}
			for _, n := range list {
				if n < 0 || int(n) >= len(c.CPUNS) {
					return fmt.Errorf("layer %q: expert %d got %d rows, want 0..%d", y.Name, e, n, len(c.CPUNS)-1)
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
	Lost     int64 // what those would have added, in 1/SaliencyOne of the layer's squared norm; 0 where no saliency is known
}

// TierGroups are the cheapest divisions of n experts of one tier into groups, by n: the least time, then
// the fewest launches, then large groups first. Where no graph holds a single expert only n = 0 has one.
type TierGroups struct {
	NS, EnergyNJ, Launches []int64
	size                   []int // of the first group
}

// Sizes is the division of n experts.
func (g *TierGroups) Sizes(n int) (out []int) {
	for n > 0 {
		out = append(out, g.size[n])
		n -= g.size[n]
	}
	return out
}

func (p *Tiers) groups(list []int64, most int) TierGroups {
	n := most + 1
	if len(list) == 0 {
		n = 1
	}
	g := TierGroups{make([]int64, n), make([]int64, n), make([]int64, n), make([]int, n)}
	for i := 1; i < n; i++ {
		g.NS[i] = math.MaxInt64
		for k := min(i, len(list)); k >= 1; k-- {
			ns, launches := g.NS[i-k]+list[k-1], g.Launches[i-k]+1
			if ns < g.NS[i] || ns == g.NS[i] && launches < g.Launches[i] {
				g.NS[i], g.Launches[i], g.size[i] = ns, launches, k
			}
		}
		k := g.size[i]
		g.EnergyNJ[i] = g.EnergyNJ[i-k] + energy(list[k-1], p.NPUMilliwatts)
	}
	return g
}

// energy is in nJ.
func energy(ns, milliwatts int64) int64 { return ns / 1000 * milliwatts }

// Table computes what the choices of one chunk length cost.
func (p *Tiers) Table(chunk int) *TierTable {
	c := &p.Chunks[chunk]
	t := &TierTable{Weight: c.Weight, SyncNS: c.SyncNS, p: p}
	most := 0
	for l := range c.Layers {
		most = max(most, len(c.Layers[l].Rows))
	}
	for _, list := range c.GroupNS {
		t.Groups = append(t.Groups, p.groups(list, most))
	}
	var lowest orderStatistics
	for l := range c.Layers {
		var cells [][]TierCell
		var all int64
		for e, rows := range c.Layers[l].Rows {
			list := make([]TierCell, len(p.Capacities)+1)
			for k := range list {
				capacity := 0
				if k > 0 {
					capacity = p.Capacities[k-1]
				}
				var ns, over int64
				for _, n := range rows {
					left := max(0, int(n)-capacity)
					over += int64(left)
					ns += c.CPUNS[left]
				}
				x := &list[k]
				x.Off = over
				if k > 0 && p.Prune {
					x.Drop = over
					if s := c.Layers[l].Saliency; s != nil && over > 0 {
						x.Lost = s[e].lost(rows, capacity, &lowest)
					}
					continue
				}
				x.CPUNS = (ns + int64(len(rows))/2) / int64(len(rows))
				x.EnergyNJ = energy(x.CPUNS, p.CPUMilliwatts)
			}
			all += list[0].Off
			cells = append(cells, list)
		}
		t.Cells = append(t.Cells, cells)
		t.Rows = append(t.Rows, all)
	}
	return t
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

func (c *TierCost) add(d TierCost) {
	c.NS, c.Lost = c.NS+d.NS, c.Lost+d.Lost
	c.NPUNS, c.CPUNS, c.SyncNS = c.NPUNS+d.NPUNS, c.CPUNS+d.CPUNS, c.SyncNS+d.SyncNS
	c.EnergyNJ, c.Launches, c.Experts = c.EnergyNJ+d.EnergyNJ, c.Launches+d.Launches, c.Experts+d.Experts
	c.Rows, c.Off, c.Overflow, c.Drop = c.Rows+d.Rows, c.Off+d.Off, c.Overflow+d.Overflow, c.Drop+d.Drop
}

// Layer is what the choices of one layer cost.
func (t *TierTable) Layer(layer int, choices []int) (out TierCost) {
	count := make([]int, len(t.Groups))
	for e, k := range choices {
		x := t.Cells[layer][e][k]
		out.CPUNS += x.CPUNS
		out.EnergyNJ += x.EnergyNJ
		out.Off += x.Off
		out.Drop += x.Drop
		out.Lost += x.Lost
		if k > 0 {
			count[k-1]++
			out.Overflow += x.Off
			out.Experts++
		}
	}
	for k, n := range count {
		g := &t.Groups[k]
		out.NPUNS, out.EnergyNJ, out.Launches = out.NPUNS+g.NS[n], out.EnergyNJ+g.EnergyNJ[n], out.Launches+g.Launches[n]
	}
	if out.Experts > 0 {
		out.SyncNS = t.SyncNS
	}
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

// Times is how often a measure counts what a chunk costs: Weight times, and once what is a sum over all observed chunks already.
func (t *TierTable) Times(m TierMeasure) int64 {
	if m == TierOff || m == TierLost {
		return 1
	}
	return t.Weight
}

// Of is the measure of chunks that cost so much.
func (t *TierTable) Of(m TierMeasure, c TierCost) int64 {
	switch m {
	case TierEnergy:
		return t.Weight * c.EnergyNJ
	case TierOff:
		return c.Off
	case TierLaunches:
		return t.Weight * c.Launches
	case TierLost:
		return c.Lost
	}
	return t.Weight * c.NS
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
	for _, n := range t.Rows {
		all += n
	}
	return share(all, t.p.MaxDropPPM)
}

// LayerLost is how much of its saliency a layer may lose, TotalLost how much all layers together, in 1/SaliencyOne; false: without limit, as
// nothing is dropped or no saliency is known.
func (t *TierTable) LayerLost() (int64, bool) {
	return t.p.MaxLayerLostPPM * (SaliencyOne / 1e6), t.salient()
}

// TotalLost is LayerLost of all layers.
func (t *TierTable) TotalLost() (int64, bool) {
	return t.p.MaxLostPPM * (SaliencyOne / 1e6) * int64(len(t.Cells)), t.salient()
}

func (t *TierTable) salient() bool {
	return t.p.Prune && t.p.Chunks[0].Layers[0].Saliency != nil
}

func share(rows, ppm int64) int64 { return rows * ppm / 1e6 }

// Broken names the first limit that choices break, "" where they keep all.
func (t *TierTable) Broken(choices [][]int) string {
	used := map[int]bool{}
	var total TierCost
	for l, list := range choices {
		count := make([]int, len(t.Groups))
		for _, k := range list {
			if k > 0 {
				used[k] = true
				if count[k-1]++; count[k-1] >= len(t.Groups[k-1].NS) {
					return "the bytes of a graph"
				}
			}
		}
		c := t.Layer(l, list)
		if c.Drop > 0 && c.Drop > t.LayerDrop(l) {
			return fmt.Sprintf("the share of rows that layer %d drops", l)
		}
		if most, ok := t.LayerLost(); ok && c.Lost > most {
			return fmt.Sprintf("the share of the squared norm that layer %d loses", l)
		}
		total.add(c)
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
	if n := t.p.NPUExperts(); total.Experts > n {
		return fmt.Sprintf("the region: %d experts, and it holds %d", total.Experts, n)
	}
	for _, m := range TierMeasures {
		if b, ok := t.p.Bounds[m]; ok && t.Of(m, total) > b {
			return fmt.Sprintf("the bound on %s", m)
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
func (p *Tiers) Verify(s TierSolution) error {
	fail := func(format string, args ...any) error {
		return diag.New(diag.ClassInternal, "verify solution of tiers %q: %s", p.Name, fmt.Sprintf(format, args...))
	}
	if s.Chunk < 0 || s.Chunk >= len(p.Chunks) {
		return fail("chunk %d of %d", s.Chunk, len(p.Chunks))
	}
	layers := p.Chunks[s.Chunk].Layers
	if len(s.Choices) != len(layers) {
		return fail("choices for %d layers, want %d", len(s.Choices), len(layers))
	}
	for l, list := range s.Choices {
		if len(list) != len(layers[l].Rows) {
			return fail("%d choices for %d experts of layer %d", len(list), len(layers[l].Rows), l)
		}
		for e, k := range list {
			if k < 0 || k > len(p.Capacities) {
				return fail("layer %d, expert %d: choice %d of %d", l, e, k, len(p.Capacities))
			}
		}
	}
	t := p.Table(s.Chunk)
	if broken := t.Broken(s.Choices); broken != "" {
		return fail("breaks %s", broken)
	}
	if got := t.Of(p.Measure(), t.Total(s.Choices)); got != s.Objective {
		return fail("objective is %d, and its choices cost %d", s.Objective, got)
	}
	if s.Bound > s.Objective || s.Status == Optimal && s.Bound != s.Objective {
		return fail("status %q with objective %d and bound %d", s.Status, s.Objective, s.Bound)
	}
	return nil
}

// InOrder minimises one measure after the other, each bounded by the best found in what follows, which begins there. Objective and bound are the
// first measure's; the status is optimal where every measure is proved.
func (p *Tiers) InOrder(ctx context.Context, e Engine, order []TierMeasure, limits Limits) (TierSolution, error) {
	q := *p
	q.Bounds = maps.Clone(p.Bounds)
	if q.Bounds == nil {
		q.Bounds = map[TierMeasure]int64{}
	}
	var out TierSolution
	for i, m := range order {
		q.Minimise = m
		s, err := e.Tiers(ctx, &q, limits)
		if err != nil {
			return TierSolution{}, err
		}
		out.Nodes += s.Nodes
		switch {
		case i == 0:
			if out = s; s.Choices == nil {
				return s, nil
			}
		case s.Choices != nil:
			out.Chunk, out.Choices = s.Chunk, s.Choices
		}
		q.Start = &TierSolution{Chunk: out.Chunk, Choices: out.Choices}
		t := p.Table(out.Chunk)
		q.Bounds[m] = t.Of(m, t.Total(out.Choices))
		stage := TierStage{m, q.Bounds[m], max(0, min(s.Bound, q.Bounds[m]))}
		if s.Choices == nil {
			stage.Bound = 0
		}
		out.Stages = append(out.Stages, stage)
		if s.Status != Optimal {
			out.Status = Feasible
		}
	}
	return out, nil
}

// MILP poses one chunk length. Variables: x, whether an expert takes a choice; z, whether a tier is in use; n, how many experts of
// a layer are in a tier, one-hot, since groups cost what the best division costs; a, whether a layer uses the NPU; where time counts and the
// processors overlap, t, the longer one's time in a layer.
func (p *Tiers) MILP(chunk int) (*milp.Model, *TierVars) {
	t := p.Table(chunk)
	const scale = 1e-3 // ns to us, nJ to uJ
	m := &milp.Model{Name: p.Name}
	inf := math.Inf(1)
	add := func(name string, cost float64) int {
		m.Vars = append(m.Vars, milp.Var{Name: name, Cost: cost, High: 1, Integer: true})
		return len(m.Vars) - 1
	}
	row := func(name string, low, high float64, terms []milp.Term) {
		m.Rows = append(m.Rows, milp.Row{Name: name, Low: low, High: high, Terms: terms})
	}
	unit := func(k TierMeasure) float64 {
		switch k {
		case TierTime, TierEnergy:
			return scale
		case TierLost:
			return 1 / lostUnit
		}
		return 1
	}
	m.Note = note(1/unit(p.Measure()), map[TierMeasure]string{TierTime: "ns, of all chunks", TierEnergy: "nJ, of all chunks", TierOff: "rows that the NPU does not compute",
		TierLaunches: "groups", TierLost: "lost saliency"}[p.Measure()])
	weight := float64(t.Weight)
	bounds := map[TierMeasure][]milp.Term{}
	var bytes, drops, losses, graphs []milp.Term
	v := &TierVars{x: make([][][]int, len(t.Cells))}
	z := make([]int, len(t.Groups))
	for k := range z {
		z[k] = add(fmt.Sprintf("z_%d", k+1), 0)
	}
	_, timed := p.Bounds[TierTime]
	overlap := !p.Serial && (timed || p.Measure() == TierTime)
	var npu, cpu []milp.Term // of the layer's longer time
	// cost adds a variable whose measures are those of c.
	cost := func(name string, c TierCost) int {
		c.NS = c.SyncNS
		if p.Serial {
			c.NS += c.NPUNS + c.CPUNS
		}
		if overlap && c.NPUNS > 0 {
			npu = append(npu, milp.Term{Var: len(m.Vars), Coef: float64(c.NPUNS) * scale})
		}
		if overlap && c.CPUNS > 0 {
			cpu = append(cpu, milp.Term{Var: len(m.Vars), Coef: float64(c.CPUNS) * scale})
		}
		if p.MaxGraphs != 0 && c.Launches > 0 {
			graphs = append(graphs, milp.Term{Var: len(m.Vars), Coef: float64(c.Launches)})
		}
		j := add(name, float64(t.Of(p.Measure(), c))*unit(p.Measure()))
		for b := range p.Bounds {
			if x := t.Of(b, c); x != 0 {
				bounds[b] = append(bounds[b], milp.Term{Var: j, Coef: float64(x) / float64(t.Times(b)) * unit(b)})
			}
		}
		return j
	}
	for l, cells := range t.Cells {
		counts := make([][]milp.Term, len(t.Groups))
		var layerDrops, layerLosses []milp.Term
		npu, cpu = nil, nil
		any := cost(fmt.Sprintf("a_%d", l), TierCost{SyncNS: t.SyncNS})
		v.x[l] = make([][]int, len(cells))
		for e, list := range cells {
			var one []milp.Term
			for k, x := range list {
				j := cost(fmt.Sprintf("x_%d_%d_%d", l, e, k), TierCost{CPUNS: x.CPUNS, EnergyNJ: x.EnergyNJ, Off: x.Off, Lost: x.Lost})
				v.x[l][e] = append(v.x[l][e], j)
				one = append(one, milp.Term{Var: j, Coef: 1})
				if k == 0 {
					continue
				}
				counts[k-1] = append(counts[k-1], milp.Term{Var: j, Coef: -1})
				bytes = append(bytes, milp.Term{Var: j, Coef: 1})
				if x.Drop > 0 {
					drops = append(drops, milp.Term{Var: j, Coef: float64(x.Drop)})
					layerDrops = append(layerDrops, milp.Term{Var: j, Coef: float64(x.Drop)})
				}
				if x.Lost > 0 {
					losses = append(losses, milp.Term{Var: j, Coef: float64(x.Lost) / lostUnit})
					layerLosses = append(layerLosses, milp.Term{Var: j, Coef: float64(x.Lost) / lostUnit})
				}
				row(fmt.Sprintf("tier_%d_%d_%d", l, e, k), -inf, 0, []milp.Term{{Var: j, Coef: 1}, {Var: z[k-1], Coef: -1}})
			}
			row(fmt.Sprintf("one_%d_%d", l, e), 1, 1, one)
			row(fmt.Sprintf("any_%d_%d", l, e), 1, inf, []milp.Term{{Var: v.x[l][e][0], Coef: 1}, {Var: any, Coef: 1}})
		}
		for k := range t.Groups {
			g := &t.Groups[k]
			var one []milp.Term
			for n := 0; n < min(len(g.NS), len(cells)+1); n++ {
				j := cost(fmt.Sprintf("n_%d_%d_%d", l, k+1, n), TierCost{NPUNS: g.NS[n], EnergyNJ: g.EnergyNJ[n], Launches: g.Launches[n]})
				one = append(one, milp.Term{Var: j, Coef: 1})
				if n > 0 {
					counts[k] = append(counts[k], milp.Term{Var: j, Coef: float64(n)})
				}
			}
			row(fmt.Sprintf("division_%d_%d", l, k+1), 1, 1, one)
			row(fmt.Sprintf("count_%d_%d", l, k+1), 0, 0, counts[k])
		}
		if overlap {
			// The time of both is no more than would be, were everything as slow as it can be.
			j := cost(fmt.Sprintf("t_%d", l), TierCost{})
			longest := 0.0
			for _, list := range [][]milp.Term{npu, cpu} {
				sum := 0.0
				for _, x := range list {
					sum += x.Coef
				}
				longest = max(longest, sum)
			}
			m.Vars[j].High, m.Vars[j].Integer = math.Ceil(longest), false
			if p.Measure() == TierTime {
				m.Vars[j].Cost = weight
			}
			if _, ok := p.Bounds[TierTime]; ok {
				bounds[TierTime] = append(bounds[TierTime], milp.Term{Var: j, Coef: 1})
			}
			row(fmt.Sprintf("npu_%d", l), -inf, 0, append(npu, milp.Term{Var: j, Coef: -1}))
			row(fmt.Sprintf("cpu_%d", l), -inf, 0, append(cpu, milp.Term{Var: j, Coef: -1}))
		}
		if most, ok := t.LayerLost(); ok && len(layerLosses) > 0 {
			row(fmt.Sprintf("lost_%d", l), -inf, float64(most)/lostUnit, layerLosses)
		}
		if len(layerDrops) > 0 {
			row(fmt.Sprintf("drop_%d", l), -inf, float64(t.LayerDrop(l)), layerDrops)
		}
	}
	var tiers []milp.Term
	for _, j := range z {
		tiers = append(tiers, milp.Term{Var: j, Coef: 1})
	}
	row("tiers", -inf, float64(p.MaxTiers), tiers)
	if p.RegionBytes > 0 {
		row("region", -inf, float64(p.NPUExperts()), bytes)
	}
	if len(drops) > 0 {
		row("drop", -inf, float64(t.TotalDrop()), drops)
	}
	if most, ok := t.TotalLost(); ok && len(losses) > 0 {
		row("lost", -inf, float64(most)/lostUnit, losses)
	}
	if len(graphs) > 0 {
		row("graphs", -inf, float64(max(0, p.MaxGraphs)), graphs)
	}
	for _, b := range TierMeasures {
		if limit, ok := p.Bounds[b]; ok && len(bounds[b]) > 0 {
			row("bound_"+string(b), -inf, float64(limit)/float64(t.Times(b))*unit(b), bounds[b])
		}
	}
	return m, v
}

// TierVars decodes an answer of the model.
type TierVars struct{ x [][][]int }

// Choices reads them off.
func (v *TierVars) Choices(x []float64) [][]int {
	out := make([][]int, len(v.x))
	for l, experts := range v.x {
		out[l] = make([]int, len(experts))
		for e, vars := range experts {
			for k, j := range vars {
				if x[j] > x[vars[out[l][e]]] {
					out[l][e] = k
				}
			}
		}
	}
	return out
}
