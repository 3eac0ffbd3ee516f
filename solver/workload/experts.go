package workload

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// ExpertTiers is what a workload wants of capacity tiers.
type Experts struct {
	Tiers        int     `json:"tiers,omitempty" yaml:"tiers,omitempty"`                       // in use at most; 0: DefaultTiers
	Capacities   []int   `json:"capacities,omitempty" yaml:"capacities,omitempty,flow"`        // rows to choose from; empty: multiples of the processor's tile
	Chunks       []int   `json:"chunks,omitempty" yaml:"chunks,omitempty,flow"`                // lengths to choose from, in tokens; empty: 256, 512, 1024
	Overflow     string  `json:"overflow,omitempty" yaml:"overflow,omitempty"`                 // exact (default), prune
	MaxDrop      float64 `json:"max_drop,omitempty" yaml:"max_drop,omitempty"`                 // with prune: share of all routed rows
	MaxLayerDrop float64 `json:"max_layer_drop,omitempty" yaml:"max_layer_drop,omitempty"`     // with prune: of those of each layer; 0: max_drop
	MaxLost      float64 `json:"max_lost,omitempty" yaml:"max_lost,omitempty"`                 // with prune: share of the squared norm of what experts add
	MaxLayerLost float64 `json:"max_layer_lost,omitempty" yaml:"max_layer_lost,omitempty"`     // with prune: of that of each layer; 0: max_lost
	Serial       bool    `json:"serial,omitempty" yaml:"serial,omitempty"`                     // NPU and CPU never work at the same time
	Prefer       string  `json:"prefer,omitempty" yaml:"prefer,omitempty"`                     // time (default), offload: NPUMoE sec. 3.2, saliency: least lost
	MaxUSToken   float64 `json:"max_us_per_token,omitempty" yaml:"max_us_per_token,omitempty"` // with offload or saliency: experts' time of a token
}

// DefaultTiers is how many tiers are in use where nobody says.
const DefaultTiers = 4

// Overflow policies and preferences.
const (
	OverflowExact  = "exact"
	OverflowPrune  = "prune"
	PreferTime     = "time"
	PreferOffload  = "offload"
	PreferSaliency = "saliency"
)

func (t *Experts) validate(fail func(path, format string, args ...any)) {
	if t.Tiers < 0 || t.Tiers >= problem.MaxTierChoices {
		fail("experts.tiers", "%d tiers, want 1..%d", t.Tiers, problem.MaxTierChoices-1)
	}
	for _, x := range []struct {
		path string
		list []int
		most int
	}{{"experts.capacities", t.Capacities, problem.MaxTierRows}, {"experts.chunks", t.Chunks, maxLoadTokens}} {
		if len(x.list) >= problem.MaxTierChoices {
			fail(x.path, "%d numbers, want at most %d", len(x.list), problem.MaxTierChoices-1)
		}
		for i, n := range x.list {
			if n < 1 || n > x.most || i > 0 && x.list[i-1] >= n {
				fail(fmt.Sprintf("%s[%d]", x.path, i), "%d, want ascending numbers of 1..%d", n, x.most)
			}
		}
	}
	if !slices.Contains([]string{"", OverflowExact, OverflowPrune}, t.Overflow) {
		fail("experts.overflow", "overflow is %q, want %s or %s", t.Overflow, OverflowExact, OverflowPrune)
	}
	if !slices.Contains([]string{"", PreferTime, PreferOffload, PreferSaliency}, t.Prefer) {
		fail("experts.prefer", "prefers %q, want %s, %s or %s", t.Prefer, PreferTime, PreferOffload, PreferSaliency)
	}
	if t.Prefer == PreferSaliency && t.Overflow != OverflowPrune {
		fail("experts.prefer", "prefers %s, and nothing is lost unless overflow is %s", PreferSaliency, OverflowPrune)
	}
	for _, x := range []struct {
		path  string
		share float64
	}{{"experts.max_drop", t.MaxDrop}, {"experts.max_layer_drop", t.MaxLayerDrop}, {"experts.max_lost", t.MaxLost}, {"experts.max_layer_lost", t.MaxLayerLost}} {
		if !(x.share >= 0 && x.share <= 1) || x.share > 0 && t.Overflow != OverflowPrune {
			fail(x.path, "share is %v, want 0..1, and 0 unless overflow is prune", x.share)
		}
	}
	targeted := t.Prefer == PreferOffload || t.Prefer == PreferSaliency
	if !(t.MaxUSToken >= 0 && t.MaxUSToken <= 1e9) || t.MaxUSToken > 0 && !targeted {
		fail("experts.max_us_per_token", "target is %v us, want 0..1e9, and 0 unless prefer is %s or %s", t.MaxUSToken, PreferOffload, PreferSaliency)
	}
	if targeted && t.MaxUSToken == 0 {
		fail("experts.max_us_per_token", "prefer: "+t.Prefer+" wants the time that a token's experts may take, in all layers, in microseconds")
	}
}
