package planir

import "github.com/hetc/hetc/planir/op"

// Tiers are capacity tiers of experts (NPUMoE sec. 4): decisions for targets whose expert graphs have static shapes.
// The program of this plan executes every expert with the rows it was sent, so no result depends on them. Times are
// expected ones of a chunk of ChunkTokens, from the loads among the plan's inputs.
type Tiers struct {
	Loads string `json:"loads" yaml:"loads"` // what they are: "traced", "synthetic zipf:1.2"
	NPU   string `json:"npu" yaml:"npu"`     // processor of groups
	CPU   string `json:"cpu" yaml:"cpu"`     // processor of all other experts, and of overflow

	Experts int `json:"experts" yaml:"experts"` // of a layer
	// of the experts' products, in order
	Schemes     []op.Scheme `json:"schemes" yaml:"schemes"`
	ExpertBytes int64       `json:"expert_bytes" yaml:"expert_bytes"`                   // of one expert on the NPU
	GraphBytes  int64       `json:"graph_bytes,omitempty" yaml:"graph_bytes,omitempty"` // limit of a group, 0: none
	// limit of all groups, 0: none
	RegionBytes int64 `json:"region_bytes,omitempty" yaml:"region_bytes,omitempty"`
	// groups at most, beside the graphs of the program, 0: no limit
	MaxGraphs int64 `json:"max_graphs,omitempty" yaml:"max_graphs,omitempty"`
	// NPU and CPU take turns; otherwise a layer takes the longer one's time
	Serial bool `json:"serial,omitempty" yaml:"serial,omitempty"`
	// of a layer with groups, beside either
	SyncNS int64 `json:"sync_ns,omitempty" yaml:"sync_ns,omitempty"`

	Tile     int `json:"tile" yaml:"tile"`           // capacities are multiples
	MaxTiers int `json:"max_tiers" yaml:"max_tiers"` // capacities in use at most
	// in use, ascending: rows reserved for an expert
	Capacities []int `json:"capacities,omitempty" yaml:"capacities,omitempty"`

	// exact: to the CPU; prune: lowest saliency first, dropped
	Overflow string `json:"overflow" yaml:"overflow"`
	// share of routed rows, of all layers
	MaxDrop      float64 `json:"max_drop,omitempty" yaml:"max_drop,omitempty"`
	MaxLayerDrop float64 `json:"max_layer_drop,omitempty" yaml:"max_layer_drop,omitempty"` // of each
	// share of the squared L2 norm of what experts add, mean of all layers
	MaxLost      float64 `json:"max_lost,omitempty" yaml:"max_lost,omitempty"`
	MaxLayerLost float64 `json:"max_layer_lost,omitempty" yaml:"max_layer_lost,omitempty"` // of each

	ChunkTokens int    `json:"chunk_tokens" yaml:"chunk_tokens"`
	ExpectNS    int64  `json:"expect_ns" yaml:"expect_ns"` // of all layers' experts
	Prefer      string `json:"prefer" yaml:"prefer"`       // time, offload, saliency
	// of the chunk lengths' common multiple: ns, or with offload rows not on the NPU, or with saliency 1e-9 of a
	// layer's squared norm
	Objective int64  `json:"objective" yaml:"objective"`
	Bound     int64  `json:"bound" yaml:"bound"`   // no choice is below it
	Status    string `json:"status" yaml:"status"` // optimal, feasible
	// where several measures are minimised in order; the first is Objective
	Stages []TierStage `json:"stages,omitempty" yaml:"stages,omitempty"`
	Drop   float64     `json:"drop,omitempty" yaml:"drop,omitempty"`
	Lost   float64     `json:"lost,omitempty" yaml:"lost,omitempty"`
	Layers []TierLayer `json:"layers" yaml:"layers"`
}

// TierStage is a measure that was minimised, those before it held at what they achieved: rows not on the NPU ("off"),
// energy in nJ ("energy"), groups ("launches"), lost saliency in 1e-9 of a layer's squared norm ("lost"), ns ("time");
// all of the chunk lengths' common multiple.
type TierStage struct {
	Measure   string `json:"measure" yaml:"measure"`
	Objective int64  `json:"objective" yaml:"objective"`
	Bound     int64  `json:"bound" yaml:"bound"` // no choice is below it
}

// TierLayer is one layer. Shares are of the rows that are expected to be routed in it; Padding is that of rows which
// the NPU computes of those it computes for nobody.
type TierLayer struct {
	Layer    int   `json:"layer" yaml:"layer"`
	ExpectNS int64 `json:"expect_ns" yaml:"expect_ns"`
	NPUNS    int64 `json:"npu_ns,omitempty" yaml:"npu_ns,omitempty"` // its groups, one after another
	CPUNS    int64 `json:"cpu_ns,omitempty" yaml:"cpu_ns,omitempty"` // experts and rows on the CPU
	// load of the busiest expert over the mean (NPUMoE sec. 4.1)
	Imbalance float64 `json:"imbalance" yaml:"imbalance"`
	Overflow  float64 `json:"overflow,omitempty" yaml:"overflow,omitempty"`
	Drop      float64 `json:"drop,omitempty" yaml:"drop,omitempty"`
	// of the squared L2 norm of what the layer's experts add, by the rows dropped
	Lost     float64 `json:"lost,omitempty" yaml:"lost,omitempty"`
	Padding  float64 `json:"padding,omitempty" yaml:"padding,omitempty"`
	Resident []int   `json:"cpu,omitempty" yaml:"cpu,omitempty"` // experts that stay on the CPU, ascending
	// large tiers first, and in them the busiest experts
	Groups []TierGroup `json:"groups,omitempty" yaml:"groups,omitempty"`
}

// TierGroup is one launch. NextRows is the best other choice for all of its experts (0: the CPU), NextNS what the layer
// would take with it.
type TierGroup struct {
	Rows     int   `json:"rows" yaml:"rows"` // reserved for each
	Experts  []int `json:"experts" yaml:"experts"`
	ExpectNS int64 `json:"expect_ns" yaml:"expect_ns"` // of the launch
	NextRows int   `json:"next_rows,omitempty" yaml:"next_rows,omitempty"`
	NextNS   int64 `json:"next_ns" yaml:"next_ns"`
}
