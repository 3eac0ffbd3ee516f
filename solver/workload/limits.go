package workload

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hetc/hetc/internal/unit"
)

// Limits are what a plan may take at most, whatever it minimises. 0 and absent keys are no limit.
type Limits struct {
	// EnergyMJ bounds the energy of the expected request in millijoules, modelled as power_w of each processor times
	// its busy time; phases count by the workload's weights, as they do in the expected time.
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
	return l.EnergyMJ == 0 && l.PrefillMS == 0 && l.DecodeMS == 0 && l.OpenMS == 0 && len(l.AddressBytes) == 0 &&
		len(l.MaxGraphs) == 0
}

// Largest values of limits: of a number of ms or mJ, and of graphs.
const (
	MaxLimit  = 1e9
	maxGraphs = 1 << 20
)

// validate checks ranges. A limit of 0 processors' bytes or graphs is refused, since it would mean leaving one out.
func (l *Limits) validate(check *checker) {
	for _, limit := range []struct {
		path  string
		value float64
		unit  string
	}{
		{KeyEnergy, l.EnergyMJ, "mJ"}, {KeyPrefill, l.PrefillMS, "ms"}, {KeyDecode, l.DecodeMS, "ms"},
		{KeyOpen, l.OpenMS, "ms"},
	} {
		check.want(within(limit.value, 0, MaxLimit), limit.path,
			"limit is %v %s, want more than 0, at most %g (leave it out for no limit)",
			limit.value, limit.unit, MaxLimit)
	}
	for _, name := range slices.Sorted(maps.Keys(l.AddressBytes)) {
		check.want(within(l.AddressBytes[name], 1, maxMemory), KeyAddress+name,
			"limit is %v, want more than 0, at most %v",
			l.AddressBytes[name], unit.Bytes(maxMemory))
	}
	for _, name := range slices.Sorted(maps.Keys(l.MaxGraphs)) {
		check.want(within(l.MaxGraphs[name], 1, maxGraphs), KeyGraphs+name,
			"limit is %d graphs, want 1..%d (hetc solve --only leaves a processor out)", l.MaxGraphs[name], maxGraphs)
	}
}

// Keys of a workload's limits, as its file writes them. After KeyAddress and KeyGraphs comes the name of a processor.
const (
	KeyMemory    = "memory"
	KeyEnergy    = "limits.energy_mj"
	KeyPrefill   = "limits.prefill_ms"
	KeyDecode    = "limits.decode_ms"
	KeyOpen      = "limits.open_ms"
	keyPrefillKL = "quality.max_kl.prefill"
	keyDecodeKL  = "quality.max_kl.decode"
	KeyAddress   = "limits.address_bytes."
	KeyGraphs    = "limits.max_graphs."
)

// KLText writes a limit of quality; Lossless, which is as good as 0, is written so.
func KLText(x float64) string {
	if x <= Lossless {
		return "0 nats a token"
	}
	return fmt.Sprintf("%.3g nats a token", x)
}
