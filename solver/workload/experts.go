package workload

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// Experts are what a workload wants of capacity tiers.
type Experts struct {
	// Tiers is how many are in use at most; 0: DefaultTiers.
	Tiers int `json:"tiers,omitempty" yaml:"tiers,omitempty"`
	// Capacities are the rows to choose from; empty: multiples of the processor's tile.
	Capacities []int `json:"capacities,omitempty" yaml:"capacities,omitempty,flow"`
	// Chunks are the lengths to choose from, in tokens; empty: 256, 512, 1024.
	Chunks []int `json:"chunks,omitempty" yaml:"chunks,omitempty,flow"`
	// Overflow is what happens to rows beyond the capacity: exact (default) or prune.
	Overflow string `json:"overflow,omitempty" yaml:"overflow,omitempty"`
	// MaxDrop is, with prune, the share of all routed rows that may be dropped.
	MaxDrop float64 `json:"max_drop,omitempty" yaml:"max_drop,omitempty"`
	// MaxLayerDrop is the same of each layer; 0: MaxDrop.
	MaxLayerDrop float64 `json:"max_layer_drop,omitempty" yaml:"max_layer_drop,omitempty"`
	// MaxLost is, with prune, the share that may be lost of the squared norm of what experts add.
	MaxLost float64 `json:"max_lost,omitempty" yaml:"max_lost,omitempty"`
	// MaxLayerLost is the same of each layer; 0: MaxLost.
	MaxLayerLost float64 `json:"max_layer_lost,omitempty" yaml:"max_layer_lost,omitempty"`
	// Serial: NPU and CPU never work at the same time.
	Serial bool `json:"serial,omitempty" yaml:"serial,omitempty"`
	// Prefer is time (default), offload (NPUMoE sec. 3.2) or saliency (least lost).
	Prefer string `json:"prefer,omitempty" yaml:"prefer,omitempty"`
	// MaxUSToken is, with offload or saliency, the time of a token's experts in microseconds.
	MaxUSToken float64 `json:"max_us_per_token,omitempty" yaml:"max_us_per_token,omitempty"`
}

// DefaultTiers is how many tiers are in use where a workload does not say.
const DefaultTiers = 4

// Overflow policies and preferences.
const (
	OverflowExact  = "exact"
	OverflowPrune  = "prune"
	PreferTime     = "time"
	PreferOffload  = "offload"
	PreferSaliency = "saliency"
)

// validate checks ranges, and that limits stand only where they mean something: shares lost with prune, a target time
// with a preference that is not time.
func (e *Experts) validate(check *checker) {
	check.want(within(e.Tiers, 0, problem.MaxTierChoices-1), "experts.tiers", "%d tiers, want 1..%d",
		e.Tiers, problem.MaxTierChoices-1)
	for _, choice := range []struct {
		path string
		list []int
		most int
	}{{"experts.capacities", e.Capacities, problem.MaxTierRows}, {"experts.chunks", e.Chunks, maxLoadTokens}} {
		check.want(len(choice.list) < problem.MaxTierChoices, choice.path, "%d numbers, want at most %d",
			len(choice.list), problem.MaxTierChoices-1)
		last := 0
		for i, n := range choice.list {
			check.want(within(n, last+1, choice.most), fmt.Sprintf("%s[%d]", choice.path, i),
				"%d, want ascending numbers of 1..%d", n, choice.most)
			last = max(0, n)
		}
	}
	check.want(slices.Contains([]string{"", OverflowExact, OverflowPrune}, e.Overflow), "experts.overflow",
		"overflow is %q, want %s or %s", e.Overflow, OverflowExact, OverflowPrune)
	check.want(slices.Contains([]string{"", PreferTime, PreferOffload, PreferSaliency}, e.Prefer), "experts.prefer",
		"prefers %q, want %s, %s or %s", e.Prefer, PreferTime, PreferOffload, PreferSaliency)
	prunes := e.Overflow == OverflowPrune
	check.want(e.Prefer != PreferSaliency || prunes, "experts.prefer",
		"prefers %s, and nothing is lost unless overflow is %s", PreferSaliency, OverflowPrune)
	for _, limit := range []struct {
		path  string
		share float64
	}{
		{"experts.max_drop", e.MaxDrop}, {"experts.max_layer_drop", e.MaxLayerDrop},
		{"experts.max_lost", e.MaxLost}, {"experts.max_layer_lost", e.MaxLayerLost},
	} {
		check.want(limit.share == 0 || prunes && within(limit.share, 0, 1), limit.path,
			"share is %v, want 0..1, and 0 unless overflow is prune", limit.share)
	}
	targeted := e.Prefer == PreferOffload || e.Prefer == PreferSaliency
	check.want(e.MaxUSToken == 0 || targeted && within(e.MaxUSToken, 0, 1e9), KeyExperts,
		"target is %v us, want 0..1e9, and 0 unless prefer is %s or %s", e.MaxUSToken, PreferOffload, PreferSaliency)
	check.want(!targeted || e.MaxUSToken != 0, KeyExperts,
		"prefer: %s wants the time that a token's experts may take, in all layers, in microseconds", e.Prefer)
}
