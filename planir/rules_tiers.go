package planir

import (
	"fmt"
	"slices"
)

// shareRounding is how far a stored share may be above its limit: shares are rounded to six digits.
const shareRounding = 1e-6

// tiers is P015. Whether the tiers are the model's and the SoC's is planir/check's question.
func (c *checker) tiers() {
	if c.plan.Tiers == nil {
		return
	}
	check := tierChecker{checker: c, tiers: c.plan.Tiers, used: map[int]bool{}}
	if !check.sizes() {
		return
	}
	check.words()
	check.stages()
	check.limits()
	for i := range check.tiers.Layers {
		if !check.layer(i) {
			return
		}
	}
	check.totals()
}

// tierChecker checks capacity tiers: the whole first, then layer by layer, and at the end what the layers add up to.
type tierChecker struct {
	*checker
	tiers *Tiers

	used            map[int]bool // capacities, by rows, that some group has
	sumNS           int64        // expected time of the layers so far
	experts, groups int64        // on the NPU, in the layers so far
}

// share checks a share, which lies in 0..1.
func (c *tierChecker) share(path string, share float64) {
	if !(share >= 0 && share <= 1) {
		c.fail(path, "share is %v, want 0..1", share)
	}
}

// sizes checks sizes and capacities; it is false where nothing else can be checked.
func (c *tierChecker) sizes() bool {
	tiers := c.tiers
	if tiers.NPU == "" || tiers.CPU == "" || tiers.NPU == tiers.CPU {
		c.fail("tiers", "groups are on processor %q, other experts on %q, want two processors", tiers.NPU, tiers.CPU)
	}
	if tiers.Experts < 1 || tiers.Experts > maxExperts || len(tiers.Layers) < 1 || len(tiers.Layers) > maxLayers {
		c.fail("tiers", "%d layers with %d experts, want 1..%d with 1..%d",
			len(tiers.Layers), tiers.Experts, maxLayers, maxExperts)
		return false
	}
	positive := tiers.Tile > 0 && tiers.MaxTiers > 0 && tiers.ExpertBytes > 0 && tiers.ChunkTokens > 0
	limits := tiers.GraphBytes >= 0 && tiers.RegionBytes >= 0 && tiers.ExpectNS >= 0
	if !positive || !limits || len(tiers.Schemes) == 0 {
		c.fail(
			"tiers", "tile %d, at most %d tiers, experts of %d bytes in graphs of %d, chunks of %d tokens in %d ns: out of range",
			tiers.Tile, tiers.MaxTiers, tiers.ExpertBytes, tiers.GraphBytes, tiers.ChunkTokens, tiers.ExpectNS)
		return false
	}
	for i, rows := range tiers.Capacities {
		if rows < 1 || rows%tiers.Tile != 0 || i > 0 && tiers.Capacities[i-1] >= rows {
			c.fail("tiers.capacities", "capacities %v, want ascending multiples of %d", tiers.Capacities, tiers.Tile)
			return false
		}
	}
	if len(tiers.Capacities) > tiers.MaxTiers {
		c.fail("tiers.capacities", "%d tiers are in use, want at most %d", len(tiers.Capacities), tiers.MaxTiers)
	}
	return true
}

// words checks what is one of several words, and the status against what was proved.
func (c *tierChecker) words() {
	tiers := c.tiers
	if tiers.Overflow != "exact" && tiers.Overflow != "prune" {
		c.fail("tiers.overflow", "overflow is %q, want exact or prune", tiers.Overflow)
	}
	if tiers.Prefer != "time" && tiers.Prefer != "offload" && tiers.Prefer != "saliency" {
		c.fail("tiers.prefer", "prefers %q, want time, offload or saliency", tiers.Prefer)
	}
	optimal := tiers.Status == "optimal"
	if !optimal && tiers.Status != "feasible" || tiers.Bound > tiers.Objective ||
		optimal && tiers.Bound != tiers.Objective {
		c.fail("tiers.status", "status is %q with objective %d and bound %d", tiers.Status, tiers.Objective,
			tiers.Bound)
	}
}

// stages checks the measures that were minimised in order.
func (c *tierChecker) stages() {
	tiers := c.tiers
	open := false // some stage is not proved
	for i, stage := range tiers.Stages {
		at := fmt.Sprintf("tiers.stages[%d]", i)
		if !slices.Contains([]string{"time", "energy", "off", "launches", "lost"}, stage.Measure) {
			c.fail(at+".measure", "measure is %q, want time, energy, off, launches or lost", stage.Measure)
		}
		other := i == 0 && (stage.Objective != tiers.Objective || stage.Bound != tiers.Bound)
		if stage.Bound < 0 || stage.Bound > stage.Objective || other {
			c.fail(at, "objective is %d with bound %d, want a bound of 0..objective, and of the first the tiers' own",
				stage.Objective, stage.Bound)
		}
		open = open || stage.Bound < stage.Objective
	}
	if open && tiers.Status == "optimal" {
		c.fail("tiers.status", "status is optimal, and a stage is not proved")
	}
}

// limits checks the shares of the whole against their limits. Where overflow is exact nothing is dropped.
func (c *tierChecker) limits() {
	tiers := c.tiers
	for _, share := range []struct {
		name  string
		value float64
	}{
		{"drop", tiers.Drop}, {"max_drop", tiers.MaxDrop}, {"max_layer_drop", tiers.MaxLayerDrop},
		{"lost", tiers.Lost}, {"max_lost", tiers.MaxLost}, {"max_layer_lost", tiers.MaxLayerLost},
	} {
		c.share("tiers."+share.name, share.value)
	}
	if tiers.MaxGraphs < 0 || tiers.SyncNS < 0 {
		c.fail("tiers", "at most %d groups, %d ns of hand-over: want 0 or more", tiers.MaxGraphs, tiers.SyncNS)
	}
	exact := tiers.Overflow == "exact"
	if exact && (tiers.Drop != 0 || tiers.MaxDrop != 0 || tiers.MaxLayerDrop != 0) ||
		tiers.Drop > tiers.MaxDrop+shareRounding {
		c.fail("tiers.drop", "a share of %v of the rows is dropped, want at most %v, and none where overflow is exact",
			tiers.Drop, tiers.MaxDrop)
	}
	if exact && (tiers.Lost != 0 || tiers.MaxLost != 0 || tiers.MaxLayerLost != 0) ||
		tiers.Lost > tiers.MaxLost+shareRounding {
		c.fail(
			"tiers.lost", "a share of %v of the squared norm is lost, want at most %v, and none where overflow is exact",
			tiers.Lost, tiers.MaxLost)
	}
}

// layer checks one layer: its shares, that every expert has one place, and its time. It is false where the sum of times
// is out of range.
func (c *tierChecker) layer(index int) bool {
	tiers, layer := c.tiers, &c.tiers.Layers[index]
	at := fmt.Sprintf("tiers.layers[%d]", index)
	if layer.Layer < 0 || layer.Layer >= maxLayers || index > 0 && tiers.Layers[index-1].Layer >= layer.Layer {
		c.fail(at, "layer %d, want ascending numbers", layer.Layer)
	}
	c.share(at+".overflow", layer.Overflow)
	c.share(at+".drop", layer.Drop)
	c.share(at+".padding", layer.Padding)
	if layer.Drop > tiers.MaxLayerDrop+shareRounding {
		c.fail(at+".drop", "a share of %v of the rows is dropped, want at most %v", layer.Drop, tiers.MaxLayerDrop)
	}
	c.share(at+".lost", layer.Lost)
	if layer.Lost > tiers.MaxLayerLost+shareRounding {
		c.fail(at+".lost", "a share of %v of the squared norm is lost, want at most %v", layer.Lost, tiers.MaxLayerLost)
	}
	if layer.ExpectNS < 0 || c.sumNS > maxBytes {
		c.fail(at, "expected time is %d ns", layer.ExpectNS)
		return false
	}
	c.sumNS += layer.ExpectNS
	seen := make([]bool, tiers.Experts)
	c.place(at+".cpu", layer.Resident, seen)
	if !slices.IsSorted(layer.Resident) {
		c.fail(at+".cpu", "experts %v, want ascending order", layer.Resident)
	}
	// Groups run one after another on the NPU, beside the CPU or in turns with it; then the layer synchronises once.
	var queueNS int64
	for i := range layer.Groups {
		c.group(fmt.Sprintf("%s.groups[%d]", at, i), layer.Groups, i, seen)
		queueNS += layer.Groups[i].ExpectNS
	}
	c.groups += int64(len(layer.Groups))
	want := max(layer.NPUNS, layer.CPUNS)
	if tiers.Serial {
		want = layer.NPUNS + layer.CPUNS
	}
	if len(layer.Groups) > 0 {
		want += tiers.SyncNS
	}
	if layer.CPUNS < 0 || layer.NPUNS != queueNS || layer.ExpectNS != want {
		c.fail(at, "the layer takes %d ns, its groups %d, and the CPU %d, want %d of %d",
			layer.ExpectNS, layer.NPUNS, layer.CPUNS, want, queueNS)
	}
	if expert := slices.Index(seen, false); expert >= 0 {
		c.fail(at, "expert %d has no tier", expert)
	}
	return true
}

// place marks the experts of a list, each of which exists and is marked once.
func (c *tierChecker) place(path string, experts []int, seen []bool) {
	for _, expert := range experts {
		if expert < 0 || expert >= len(seen) || seen[expert] {
			c.fail(path, "expert %d of %d does not exist or has a tier already", expert, len(seen))
			continue
		}
		seen[expert] = true
	}
}

// group checks one launch: its capacity, the order of launches (large ones first), and that its experts fit a graph.
func (c *tierChecker) group(at string, groups []TierGroup, index int, seen []bool) {
	tiers, group := c.tiers, &groups[index]
	if !slices.Contains(tiers.Capacities, group.Rows) {
		c.fail(at+".rows", "%d rows, want one of the tiers %v", group.Rows, tiers.Capacities)
	}
	if index > 0 && groups[index-1].Rows < group.Rows {
		c.fail(at+".rows", "%d rows after %d, want large tiers first", group.Rows, groups[index-1].Rows)
	}
	c.used[group.Rows] = true
	count := int64(len(group.Experts))
	if count == 0 || tiers.GraphBytes > 0 && count > tiers.GraphBytes/tiers.ExpertBytes {
		c.fail(at+".experts", "%d experts of %d bytes in a graph, want at least one and at most %d bytes",
			count, tiers.ExpertBytes, tiers.GraphBytes)
	}
	if group.ExpectNS < 0 || group.NextRows < 0 || group.NextNS < 0 {
		c.fail(at, "times of %d and %d ns, %d rows", group.ExpectNS, group.NextNS, group.NextRows)
	}
	c.place(at+".experts", group.Experts, seen)
	c.experts += count
}

// totals checks what the layers add up to: capacities in use, groups and experts on the NPU, and the expected time.
func (c *tierChecker) totals() {
	tiers := c.tiers
	for _, rows := range tiers.Capacities {
		if !c.used[rows] {
			c.fail("tiers.capacities", "no expert has tier %d", rows)
		}
	}
	if tiers.MaxGraphs > 0 && c.groups > tiers.MaxGraphs {
		c.fail("tiers.max_graphs", "%d groups are on %q, and it has room for %d", c.groups, tiers.NPU, tiers.MaxGraphs)
	}
	if tiers.RegionBytes > 0 && c.experts > tiers.RegionBytes/tiers.ExpertBytes {
		c.fail("tiers.region_bytes", "%d experts of %d bytes are on %q, and they may take %d",
			c.experts, tiers.ExpertBytes, tiers.NPU, tiers.RegionBytes)
	}
	if c.sumNS != tiers.ExpectNS {
		c.fail("tiers.expect_ns", "expected time is %d ns, and the layers take %d", tiers.ExpectNS, c.sumNS)
	}
}
