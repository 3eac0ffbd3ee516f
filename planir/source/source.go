// Package source knows how far a predicted time rests on measurement.
package source

import "slices"

// Source says what a predicted time rests on. The empty source claims nothing: no time was predicted.
//
// Whether measurements were simulated or imported is known of all times of a plan together (planir.SoCRef), not of
// one. Compilers of devices report sizes and refusals, so no time comes from them.
type Source string

const (
	// Measured: this very operator, hand-over or copy was measured.
	Measured Source = "measured"
	// Interpolated: measured ones lie on both sides of it.
	Interpolated Source = "interpolated"
	// Extrapolated: it lies beyond what was measured, and the fitted roofline answers.
	Extrapolated Source = "extrapolated"
	// Described: nothing of its kind was measured, and the SoC file answers. Operators always have a measurement of
	// their kind; launches, hand-overs, copies and joint bandwidths may have none.
	Described Source = "described"
)

// All lists the sources, the strongest first.
var All = []Source{Measured, Interpolated, Extrapolated, Described}

// Valid reports whether the source is one of All.
func (s Source) Valid() bool { return slices.Contains(All, s) }

// Weak reports whether the source is weaker than Interpolated: no measurements lie around the time.
func (s Source) Weak() bool { return s == Extrapolated || s == Described }

// Weakest returns the weakest of sources, empty for none or only empty ones. A sum or a maximum of times rests on the
// weakest of their sources.
func Weakest(sources ...Source) (weakest Source) {
	rank := -1
	for _, source := range sources {
		if at := slices.Index(All, source); at > rank {
			weakest, rank = source, at
		}
	}
	return weakest
}
