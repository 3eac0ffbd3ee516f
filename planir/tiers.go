package planir

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// Tiers are capacity tiers of experts (NPUMoE sec. 4): decisions for targets whose expert graphs have static shapes. The
// program of this plan executes every expert with the rows it was sent, so no result depends on them. Times are expected
// ones of a chunk of ChunkTokens, from the loads among the plan's inputs.
type Tiers struct {
	Loads string `json:"loads" yaml:"loads"` // what they are: "traced", "synthetic zipf:1.2"
	NPU   string `json:"npu" yaml:"npu"`     // processor of groups
	CPU   string `json:"cpu" yaml:"cpu"`     // processor of all other experts, and of overflow

	Experts     int         `json:"experts" yaml:"experts"`                               // of a layer
	Schemes     []op.Scheme `json:"schemes" yaml:"schemes"`                               // of the experts' products, in order
	ExpertBytes int64       `json:"expert_bytes" yaml:"expert_bytes"`                     // of one expert on the NPU
	GraphBytes  int64       `json:"graph_bytes,omitempty" yaml:"graph_bytes,omitempty"`   // limit of a group, 0: none
	RegionBytes int64       `json:"region_bytes,omitempty" yaml:"region_bytes,omitempty"` // limit of all groups, 0: none
	MaxGraphs   int64       `json:"max_graphs,omitempty" yaml:"max_graphs,omitempty"`     // groups at most, beside the graphs of the program, 0: no limit
	Serial      bool        `json:"serial,omitempty" yaml:"serial,omitempty"`             // NPU and CPU take turns; otherwise a layer takes the longer one's time
	SyncNS      int64       `json:"sync_ns,omitempty" yaml:"sync_ns,omitempty"`           // of a layer with groups, beside either

	Tile       int   `json:"tile" yaml:"tile"`                                 // capacities are multiples
	MaxTiers   int   `json:"max_tiers" yaml:"max_tiers"`                       // capacities in use at most
	Capacities []int `json:"capacities,omitempty" yaml:"capacities,omitempty"` // in use, ascending: rows reserved for an expert

	Overflow     string  `json:"overflow" yaml:"overflow"`                                 // exact: to the CPU; prune: lowest saliency first, dropped
	MaxDrop      float64 `json:"max_drop,omitempty" yaml:"max_drop,omitempty"`             // share of routed rows, of all layers
	MaxLayerDrop float64 `json:"max_layer_drop,omitempty" yaml:"max_layer_drop,omitempty"` // of each
	MaxLost      float64 `json:"max_lost,omitempty" yaml:"max_lost,omitempty"`             // share of the squared L2 norm of what experts add, mean of all layers
	MaxLayerLost float64 `json:"max_layer_lost,omitempty" yaml:"max_layer_lost,omitempty"` // of each

	ChunkTokens int         `json:"chunk_tokens" yaml:"chunk_tokens"`
	ExpectNS    int64       `json:"expect_ns" yaml:"expect_ns"`               // of all layers' experts
	Prefer      string      `json:"prefer" yaml:"prefer"`                     // time, offload, saliency
	Objective   int64       `json:"objective" yaml:"objective"`               // of the chunk lengths' common multiple: ns, or with offload rows not on the NPU, or with saliency 1e-9 of a layer's squared norm
	Bound       int64       `json:"bound" yaml:"bound"`                       // no choice is below it
	Status      string      `json:"status" yaml:"status"`                     // optimal, feasible
	Stages      []TierStage `json:"stages,omitempty" yaml:"stages,omitempty"` // where several measures are minimised in order; the first is Objective
	Drop        float64     `json:"drop,omitempty" yaml:"drop,omitempty"`
	Lost        float64     `json:"lost,omitempty" yaml:"lost,omitempty"`
	Layers      []TierLayer `json:"layers" yaml:"layers"`
}

// TierStage is a measure that was minimised, those before it held at what they achieved: rows not on the NPU ("off"), energy in nJ ("energy"),
// groups ("launches"), lost saliency in 1e-9 of a layer's squared norm ("lost"), ns ("time"); all of the chunk lengths' common multiple.
type TierStage struct {
	Measure   string `json:"measure" yaml:"measure"`
	Objective int64  `json:"objective" yaml:"objective"`
	Bound     int64  `json:"bound" yaml:"bound"` // no choice is below it
}

// TierLayer is one layer. Shares are of the rows that are expected to be routed in it; Padding is that of rows which the NPU
// computes of those it computes for nobody.
type TierLayer struct {
	Layer     int         `json:"layer" yaml:"layer"`
	ExpectNS  int64       `json:"expect_ns" yaml:"expect_ns"`
	NPUNS     int64       `json:"npu_ns,omitempty" yaml:"npu_ns,omitempty"` // its groups, one after another
	CPUNS     int64       `json:"cpu_ns,omitempty" yaml:"cpu_ns,omitempty"` // experts and rows on the CPU
	Imbalance float64     `json:"imbalance" yaml:"imbalance"`               // load of the busiest expert over the mean (NPUMoE sec. 4.1)
	Overflow  float64     `json:"overflow,omitempty" yaml:"overflow,omitempty"`
	Drop      float64     `json:"drop,omitempty" yaml:"drop,omitempty"`
	Lost      float64     `json:"lost,omitempty" yaml:"lost,omitempty"` // of the squared L2 norm of what the layer's experts add, by the rows dropped
	Padding   float64     `json:"padding,omitempty" yaml:"padding,omitempty"`
	Resident  []int       `json:"cpu,omitempty" yaml:"cpu,omitempty"`       // experts that stay on the CPU, ascending
	Groups    []TierGroup `json:"groups,omitempty" yaml:"groups,omitempty"` // large tiers first, and in them the busiest experts
}

// TierGroup is one launch. NextRows is the best other choice for all of its experts (0: the CPU), NextNS what the layer would take with it.
type TierGroup struct {
	Rows     int   `json:"rows" yaml:"rows"` // reserved for each
	Experts  []int `json:"experts" yaml:"experts"`
	ExpectNS int64 `json:"expect_ns" yaml:"expect_ns"` // of the launch
	NextRows int   `json:"next_rows,omitempty" yaml:"next_rows,omitempty"`
	NextNS   int64 `json:"next_ns" yaml:"next_ns"`
}

// tiers checks the expert tiers; whether they are the model's and the SoC's is planir/check's question.
func (c *checker) tiers() {
	t := c.p.Tiers
	if t == nil {
		return
	}
	at := "tiers"
	share := func(path string, v float64) {
		if !(v >= 0 && v <= 1) {
			c.fail(path, "share is %v, want 0..1", v)
		}
	}
	if t.NPU == "" || t.CPU == "" || t.NPU == t.CPU {
		c.fail(at, "groups are on processor %q, other experts on %q, want two processors", t.NPU, t.CPU)
	}
	if t.Experts < 1 || t.Experts > maxExperts || len(t.Layers) < 1 || len(t.Layers) > maxLayers {
		c.fail(at, "%d layers with %d experts, want 1..%d with 1..%d", len(t.Layers), t.Experts, maxLayers, maxExperts)
		return
	}
	if t.Tile < 1 || t.MaxTiers < 1 || t.ExpertBytes < 1 || t.GraphBytes < 0 || t.RegionBytes < 0 || t.ChunkTokens < 1 || t.ExpectNS < 0 || len(t.Schemes) == 0 {
		c.fail(at, "tile %d, at most %d tiers, experts of %d bytes in graphs of %d, chunks of %d tokens in %d ns: out of range",
			t.Tile, t.MaxTiers, t.ExpertBytes, t.GraphBytes, t.ChunkTokens, t.ExpectNS)
		return
	}
	for i, n := range t.Capacities {
		if n < 1 || n%t.Tile != 0 || i > 0 && t.Capacities[i-1] >= n {
			c.fail(at+".capacities", "capacities %v, want ascending multiples of %d", t.Capacities, t.Tile)
			return
		}
	}
	if len(t.Capacities) > t.MaxTiers {
		c.fail(at+".capacities", "%d tiers are in use, want at most %d", len(t.Capacities), t.MaxTiers)
	}
	if t.Overflow != "exact" && t.Overflow != "prune" {
		c.fail(at+".overflow", "overflow is %q, want exact or prune", t.Overflow)
	}
	if t.Prefer != "time" && t.Prefer != "offload" && t.Prefer != "saliency" {
		c.fail(at+".prefer", "prefers %q, want time, offload or saliency", t.Prefer)
	}
	switch {
	case t.Status != "optimal" && t.Status != "feasible", t.Bound > t.Objective, t.Status == "optimal" && t.Bound != t.Objective:
		c.fail(at+".status", "status is %q with objective %d and bound %d", t.Status, t.Objective, t.Bound)
	}
	open := false
	for i, s := range t.Stages {
		at := fmt.Sprintf("%s.stages[%d]", at, i)
		if !slices.Contains([]string{"time", "energy", "off", "launches", "lost"}, s.Measure) {
			c.fail(at+".measure", "measure is %q, want time, energy, off, launches or lost", s.Measure)
		}
		if s.Bound < 0 || s.Bound > s.Objective || i == 0 && (s.Objective != t.Objective || s.Bound != t.Bound) {
			c.fail(at, "objective is %d with bound %d, want a bound of 0..objective, and of the first the tiers' own", s.Objective, s.Bound)
		}
		open = open || s.Bound < s.Objective
	}
	if open && t.Status == "optimal" {
		c.fail(at+".status", "status is optimal, and a stage is not proved")
	}
	share(at+".drop", t.Drop)
	share(at+".max_drop", t.MaxDrop)
	share(at+".max_layer_drop", t.MaxLayerDrop)
	share(at+".lost", t.Lost)
	share(at+".max_lost", t.MaxLost)
	share(at+".max_layer_lost", t.MaxLayerLost)
	if t.MaxGraphs < 0 || t.SyncNS < 0 {
		c.fail(at, "at most %d groups, %d ns of hand-over: want 0 or more", t.MaxGraphs, t.SyncNS)
	}
	// Shares are rounded to six digits.
	const rounding = 1e-6
	exact := t.Overflow == "exact"
	if exact && (t.Drop != 0 || t.MaxDrop != 0 || t.MaxLayerDrop != 0) || t.Drop > t.MaxDrop+rounding {
		c.fail(at+".drop", "a share of %v of the rows is dropped, want at most %v, and none where overflow is exact", t.Drop, t.MaxDrop)
	}
	if exact && (t.Lost != 0 || t.MaxLost != 0 || t.MaxLayerLost != 0) || t.Lost > t.MaxLost+rounding {
		c.fail(at+".lost", "a share of %v of the squared norm is lost, want at most %v, and none where overflow is exact", t.Lost, t.MaxLost)
	}
	used := map[int]bool{}
	var sum, bytes, groups int64
	for i := range t.Layers {
		y := &t.Layers[i]
		at := fmt.Sprintf("tiers.layers[%d]", i)
		if y.Layer < 0 || y.Layer >= maxLayers || i > 0 && t.Layers[i-1].Layer >= y.Layer {
			c.fail(at, "layer %d, want ascending numbers", y.Layer)
		}
		share(at+".overflow", y.Overflow)
		share(at+".drop", y.Drop)
		share(at+".padding", y.Padding)
		if y.Drop > t.MaxLayerDrop+rounding {
			c.fail(at+".drop", "a share of %v of the rows is dropped, want at most %v", y.Drop, t.MaxLayerDrop)
		}
		share(at+".lost", y.Lost)
		if y.Lost > t.MaxLayerLost+rounding {
			c.fail(at+".lost", "a share of %v of the squared norm is lost, want at most %v", y.Lost, t.MaxLayerLost)
		}
		if y.ExpectNS < 0 || sum > 1<<60 {
			c.fail(at, "expected time is %d ns", y.ExpectNS)
			return
		}
		sum += y.ExpectNS
		var queue int64
		seen := make([]bool, t.Experts)
		place := func(path string, e int) {
			if e < 0 || e >= t.Experts || seen[e] {
				c.fail(path, "expert %d of %d does not exist or has a tier already", e, t.Experts)
				return
			}
			seen[e] = true
		}
		for _, e := range y.Resident {
			place(at+".cpu", e)
		}
		if !slices.IsSorted(y.Resident) {
			c.fail(at+".cpu", "experts %v, want ascending order", y.Resident)
		}
		for k := range y.Groups {
			g := &y.Groups[k]
			at := fmt.Sprintf("%s.groups[%d]", at, k)
			if !slices.Contains(t.Capacities, g.Rows) {
				c.fail(at+".rows", "%d rows, want one of the tiers %v", g.Rows, t.Capacities)
			}
			if k > 0 && y.Groups[k-1].Rows < g.Rows {
				c.fail(at+".rows", "%d rows after %d, want large tiers first", g.Rows, y.Groups[k-1].Rows)
			}
			used[g.Rows] = true
			if len(g.Experts) == 0 || t.GraphBytes > 0 && int64(len(g.Experts)) > t.GraphBytes/t.ExpertBytes {
				c.fail(at+".experts", "%d experts of %d bytes in a graph, want at least one and at most %d bytes", len(g.Experts), t.ExpertBytes, t.GraphBytes)
			}
			if g.ExpectNS < 0 || g.NextRows < 0 || g.NextNS < 0 {
				c.fail(at, "times of %d and %d ns, %d rows", g.ExpectNS, g.NextNS, g.NextRows)
			}
			for _, e := range g.Experts {
				place(at+".experts", e)
			}
			bytes += int64(len(g.Experts))
			queue += g.ExpectNS
		}
		groups += int64(len(y.Groups))
		want := max(y.NPUNS, y.CPUNS)
		if t.Serial {
			want = y.NPUNS + y.CPUNS
		}
		if len(y.Groups) > 0 {
			want += t.SyncNS
		}
		if y.CPUNS < 0 || y.NPUNS != queue || y.ExpectNS != want {
			c.fail(at, "the layer takes %d ns, its groups %d, and the CPU %d, want %d of %d", y.ExpectNS, y.NPUNS, y.CPUNS, want, queue)
		}
		if e := slices.Index(seen, false); e >= 0 {
			c.fail(at, "expert %d has no tier", e)
		}
	}
	for _, n := range t.Capacities {
		if !used[n] {
			c.fail(at+".capacities", "no expert has tier %d", n)
		}
	}
	if t.MaxGraphs > 0 && groups > t.MaxGraphs {
		c.fail(at+".max_graphs", "%d groups are on %q, and it has room for %d", groups, t.NPU, t.MaxGraphs)
	}
	if t.RegionBytes > 0 && bytes > t.RegionBytes/t.ExpertBytes {
		c.fail(at+".region_bytes", "%d experts of %d bytes are on %q, and they may take %d", bytes, t.ExpertBytes, t.NPU, t.RegionBytes)
	}
	if sum != t.ExpectNS {
		c.fail(at+".expect_ns", "expected time is %d ns, and the layers take %d", t.ExpectNS, sum)
	}
}
