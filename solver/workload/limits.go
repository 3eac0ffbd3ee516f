package workload

import (
	"maps"
	"slices"

	"github.com/hetc/hetc/internal/unit"
)

// Limits are what a plan may take at most, whatever it minimises. 0 and absent keys are no limit.
type Limits struct {
	// EnergyMJ bounds the energy of the expected request in millijoules, modelled as power_w of each processor times its busy
	// time; phases count by the workload's weights, as they do in the expected time.
	EnergyMJ float64 `json:"energy_mj,omitempty" yaml:"energy_mj,omitempty"`
	// PrefillMS and DecodeMS bound the predicted time of one call of every program of prefill, and of decode.
	PrefillMS float64 `json:"prefill_ms,omitempty" yaml:"prefill_ms,omitempty"`
	DecodeMS  float64 `json:"decode_ms,omitempty" yaml:"decode_ms,omitempty"`
	// OpenMS bounds compile_ms of all graphs of all processors together.
	OpenMS float64 `json:"open_ms,omitempty" yaml:"open_ms,omitempty"`
	// AddressBytes and MaxGraphs bound what processors hold, below what the SoC says of them.
	AddressBytes map[string]unit.Bytes `json:"address_bytes,omitempty" yaml:"address_bytes,omitempty"`
	MaxGraphs    map[string]int        `json:"max_graphs,omitempty" yaml:"max_graphs,omitempty"`
}

// IsZero reports whether nothing is limited.
func (l Limits) IsZero() bool {
	return l.EnergyMJ == 0 && l.PrefillMS == 0 && l.DecodeMS == 0 && l.OpenMS == 0 && len(l.AddressBytes) == 0 && len(l.MaxGraphs) == 0
}

// most is the largest limit that is accepted of a number of ms or mJ.
const MaxLimit = 1e9

// validate calls fail for everything that makes no sense.
func (l *Limits) validate(fail func(path, format string, args ...any)) {
	for _, x := range []struct {
		path  string
		value float64
		unit  string
	}{{"energy_mj", l.EnergyMJ, "mJ"}, {"prefill_ms", l.PrefillMS, "ms"}, {"decode_ms", l.DecodeMS, "ms"}, {"open_ms", l.OpenMS, "ms"}} {
		if !(x.value >= 0 && x.value <= MaxLimit) {
			fail("limits."+x.path, "limit is %v %s, want more than 0, at most %g (leave it out for no limit)", x.value, x.unit, MaxLimit)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.AddressBytes)) {
		if b := l.AddressBytes[name]; b < 1 || b > maxMemory {
			fail("limits.address_bytes."+name, "limit is %v, want more than 0, at most %v", b, unit.Bytes(maxMemory))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.MaxGraphs)) {
		if n := l.MaxGraphs[name]; n < 1 || n > 1<<20 {
			fail("limits.max_graphs."+name, "limit is %d graphs, want 1..%d (hetc solve --only leaves a processor out)", n, 1<<20)
		}
	}
}

// Keys of a workload's limits, as its file writes them. After KeyAddress and KeyGraphs comes the name of a processor.
const (
	KeyMemory    = "memory"
	KeyEnergy    = "limits.energy_mj"
	KeyPrefill   = "limits.prefill_ms"
	KeyDecode    = "limits.decode_ms"
	KeyOpen      = "limits.open_ms"
	KeyPrefillKL = "quality.max_kl.prefill"
	KeyDecodeKL  = "quality.max_kl.decode"
	KeyAddress   = "limits.address_bytes."
	KeyGraphs    = "limits.max_graphs."
	KeyExperts   = "experts.max_us_per_token"
)

// measured reports whether what schemes lose has to be known: a limit of nothing is kept without that.
func (k KLLimit) Measured() bool { return k.Prefill > Lossless || k.Decode > Lossless }
