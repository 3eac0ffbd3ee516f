package workload

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
)

// Experts are what a workload wants of capacity tiers.
type Experts struct {
	// Tiers is how many are in use at most in a program; 0: DefaultTiers.
	Tiers int `json:"tiers,omitempty" yaml:"tiers,omitempty"`
	// Capacities are the rows to choose from; empty: multiples of the processor's tile.
	Capacities []int `json:"capacities,omitempty" yaml:"capacities,omitempty,flow"`
	// Overflow is what happens to rows beyond a slot: exact (default) or drop.
	Overflow string `json:"overflow,omitempty" yaml:"overflow,omitempty"`
	// Salience is, with drop, the rule by which rows are dropped, of op.Saliences but random; empty: the one that the
	// calibration knows to lose least, else by the router's weight.
	Salience string `json:"salience,omitempty" yaml:"salience,omitempty"`
	// MaxDrop is, with drop, the share of the rows routed in a layer that may be dropped, in each layer.
	MaxDrop float64 `json:"max_drop,omitempty" yaml:"max_drop,omitempty"`

	// CallsPerOpen is how many calls of a program opening the bundle serves, of which each pays its part of what its
	// graphs take to open; 0: opening is not priced, and only limits.open_ms bounds it.
	CallsPerOpen int `json:"calls_per_open,omitempty" yaml:"calls_per_open,omitempty"`

	// What earlier versions knew, to say what became of it.
	Chunks       []int   `json:"chunks,omitempty" yaml:"chunks,omitempty,flow"`
	MaxLayerDrop float64 `json:"max_layer_drop,omitempty" yaml:"max_layer_drop,omitempty"`
	MaxLost      float64 `json:"max_lost,omitempty" yaml:"max_lost,omitempty"`
	MaxLayerLost float64 `json:"max_layer_lost,omitempty" yaml:"max_layer_lost,omitempty"`
	Serial       bool    `json:"serial,omitempty" yaml:"serial,omitempty"`
	Prefer       string  `json:"prefer,omitempty" yaml:"prefer,omitempty"`
	MaxUSToken   float64 `json:"max_us_per_token,omitempty" yaml:"max_us_per_token,omitempty"`
}

// DefaultTiers is how many tiers are in use where a workload does not say.
const DefaultTiers = 3

// Overflow policies, as a plan names them.
const (
	OverflowExact = "exact"
	OverflowDrop  = "drop"
)

// saliences are the rules that a workload may ask for.
var saliences = []string{op.SalienceNorm, op.SalienceWeight}

// validate checks ranges, and that a share is dropped only where rows may be.
func (e *Experts) validate(check *checker) {
	check.want(within(e.Tiers, 0, problem.MaxTierChoices-1), "experts.tiers", "%d tiers, want 1..%d",
		e.Tiers, problem.MaxTierChoices-1)
	check.want(len(e.Capacities) < problem.MaxTierChoices, "experts.capacities", "%d numbers, want at most %d",
		len(e.Capacities), problem.MaxTierChoices-1)
	last := 0
	for i, n := range e.Capacities {
		check.want(within(n, last+1, problem.MaxTierRows), fmt.Sprintf("experts.capacities[%d]", i),
			"%d, want ascending numbers of 1..%d", n, problem.MaxTierRows)
		last = max(0, n)
	}
	check.want(slices.Contains([]string{"", OverflowExact, OverflowDrop}, e.Overflow), "experts.overflow",
		"overflow is %q, want %s or %s", e.Overflow, OverflowExact, OverflowDrop)
	check.want(e.MaxDrop == 0 || e.Overflow == OverflowDrop && within(e.MaxDrop, 0, 1), "experts.max_drop",
		"share is %v, want 0..1, and 0 unless overflow is drop", e.MaxDrop)
	check.want(e.Salience == "" || e.Overflow == OverflowDrop && slices.Contains(saliences, e.Salience),
		"experts.salience", "salience is %q, want %s, and none unless overflow is drop", e.Salience,
		diag.OneOf(saliences))
	check.want(within(e.CallsPerOpen, 0, 1<<30), "experts.calls_per_open", "%d calls, want 0..%d", e.CallsPerOpen,
		1<<30)
	for _, gone := range []struct {
		key, instead string
		given        bool
	}{
		{"chunks", "every bucket of the workload has tiers of its own: buckets", len(e.Chunks) > 0},
		{"max_layer_drop", "max_drop bounds every layer", e.MaxLayerDrop != 0},
		{"max_lost", "max_drop bounds what is dropped", e.MaxLost != 0},
		{"max_layer_lost", "max_drop bounds what is dropped", e.MaxLayerLost != 0},
		{"serial", "processors that share a core take turns without it", e.Serial},
		{"prefer", "tiers are chosen for the least expected time", e.Prefer != ""},
		{"max_us_per_token", "limits.prefill_ms bounds the time of a program", e.MaxUSToken != 0},
	} {
		check.want(!gone.given, "experts."+gone.key, "%s is no longer a key: %s", gone.key, gone.instead)
	}
}
