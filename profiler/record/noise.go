package record

import (
	"slices"

	"github.com/hetc/hetc/internal/diag"
)

// mostNoisy is the part of the measurements that may be flagged Noisy or Drifted before a plan is refused. The fit
// gives flagged points less weight; once they are the majority it has nothing better to rest on.
const mostNoisy = 0.5

// Noise returns how many measurements are flagged Noisy or Drifted, among how many.
func (s *Set) Noise() (flagged, all int) {
	for _, what := range s.all {
		if slices.Contains(what.Warnings, Noisy) || slices.Contains(what.Warnings, Drifted) {
			flagged++
		}
	}
	return flagged, len(s.all)
}

// Steady reports whether a plan may rest on the measurements. The error, of class ClassInput and code record.noisy,
// says how many do not agree with themselves, and what to do.
func (s *Set) Steady(name string) error {
	flagged, all := s.Noise()
	if float64(flagged) <= mostNoisy*float64(all) {
		return nil
	}
	return diag.New(diag.ClassInput, "record %q: %d of %d measurements are flagged noisy or drift, want at most "+
		"half: the machine was busy", name, flagged, all).
		WithCode("record.noisy").
		WithHint("end other programs and measure those anew (hetc profile --resume --flagged, with a larger --budget " +
			"if it has one), or plan with them all the same: --accept-noisy")
}
